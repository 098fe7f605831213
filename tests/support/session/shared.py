"""Topologies that many tests share, as each costs half a minute to start.

A module says `pytestmark = pytest.mark.unit("one_way", order=3)` for the unit of work that it belongs to, and for its
place there: the tests of a unit run one after the other, in a fixed order, in one worker. What they share is lent to
each of them by `Shared.lend`, which looks behind each test whether it is well again. A test that leaves it sick fails
alone: it is ended, and made anew for the next one. It ends with the last test of the unit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pytest

__all__ = ["FAILED", "UNITS", "Shared", "end_all", "end_unit", "group", "sort_by_unit", "unit_of"]

# In the order in which they begin: the longest first, so that no worker ends long after the others.
UNITS = ("one_way", "sites", "hub", "nodes", "drivers", "ray_up")
# One after the other: both at once are seven Spark applications on two cores, and each then takes twice as long.
_IN_ONE_WORKER = {"hub": "many sites", "nodes": "many sites"}
_OPEN = pytest.StashKey[list["Shared[Any]"]]()
FAILED = pytest.StashKey[bool]()
T = TypeVar("T")


@dataclass
class Shared(Generic[T]):
    """Something that tests share.

    Args:
        open: makes it, and leaves on the stack what ends it; with the session's config, for what it needs of others.
        illness: what is wrong with it, in words; empty: it is well. It waits for what needs a moment.
    """

    open: Callable[[ExitStack, pytest.Config], T]
    illness: Callable[[T], str] = lambda _: ""
    _stack: ExitStack | None = field(default=None, init=False, repr=False)
    _made: Any = field(default=None, init=False, repr=False)

    @contextlib.contextmanager
    def lend(self, item: pytest.Item) -> Iterator[T]:
        """Give it to a test, made anew if it has to be, and look behind the test whether it is well.

        Args:
            item: the test. It fails where it leaves what is shared sick.
        """
        yield self.keep(item.config)
        illness = "it was not looked at to the end"  # a time-out of the test, which is no Exception
        try:
            illness = self._illness()
        finally:
            if illness:
                self._end_sick(illness, item)

    def _end_sick(self, illness: str, item: pytest.Item) -> None:
        try:
            self.end()
        except Exception as error:  # noqa: BLE001 - its illness is what is to be seen
            illness += f"; it does not end, either: {error}"
        if item.stash.get(FAILED, False):
            print(f"behind the test that failed: {illness}")
        else:
            pytest.fail(f"the test left what it shares with others sick: {illness}", pytrace=False)

    def keep(self, config: pytest.Config) -> T:
        """Give it to a fixture of a module, made anew if it has to be.

        Args:
            config: of the session.
        """
        if self._stack is None:
            with ExitStack() as stack:
                self._made = self.open(stack, config)
                self._stack = stack.pop_all()
            config.stash.setdefault(_OPEN, []).append(self)
        return self._made

    def _illness(self) -> str:
        try:
            return self.illness(self._made)
        except Exception as error:  # noqa: BLE001 - whatever keeps it from being well
            return f"{type(error).__name__}: {error}"

    def end(self) -> None:
        """End it, if it was made; the next test makes it anew."""
        stack, self._stack, self._made = self._stack, None, None
        if stack is not None:
            stack.close()


def unit_of(item: pytest.Item) -> str:
    """The unit of work that a test belongs to: one that its module names, or its module."""
    mark = item.get_closest_marker("unit")
    return str(mark.args[0]) if mark else item.nodeid.partition("::")[0]


def group(items: list[pytest.Item]) -> None:
    """Have pytest-xdist keep each unit in one worker."""
    for item in items:
        unit = unit_of(item)
        item.add_marker(pytest.mark.xdist_group(_IN_ONE_WORKER.get(unit, unit)))


def sort_by_unit(items: list[pytest.Item]) -> None:
    """Sort tests by their units; in a unit by the numbers that its modules have, then as they were collected."""

    def place(item: pytest.Item) -> tuple[int, str, int]:
        mark = item.get_closest_marker("unit")
        unit = unit_of(item)
        assert mark is None or unit in UNITS, f"{item.nodeid}: there is no unit {unit}"
        return UNITS.index(unit) if mark else len(UNITS), unit, mark.kwargs.get("order", 0) if mark else 0

    items.sort(key=place)


def end_unit(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End what the tests of a unit shared, behind its last one.

    Args:
        item: the test that has just run.
        nextitem: the test that this worker runs next, if it knows.
    """
    if nextitem is None or unit_of(nextitem) != unit_of(item):
        end_all(item.config)


def end_all(config: pytest.Config) -> None:
    """End everything that is shared, the newest first, whatever of it does not end well.

    Args:
        config: of the session.
    """
    with ExitStack() as stack:
        for each in config.stash.get(_OPEN, []):
            stack.callback(each.end)
        config.stash[_OPEN] = []
