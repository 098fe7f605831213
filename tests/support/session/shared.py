"""Topologies that many tests share, as each costs half a minute to start.

A module says `pytestmark = pytest.mark.unit("one_way", order=3)` for its unit of work and its place there: the tests of
a unit run one after the other, in a fixed order, in one worker. `Shared.lend` lends each of them the shared topology,
and checks after each test that it is healthy. A test that leaves it unhealthy fails alone: the topology is ended, and
started anew for the next test. It ends with the last test of the unit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pytest

__all__ = ["FAILED", "UNITS", "Shared", "end_all", "end_unit", "group", "sort_by_unit", "unit_of"]

# In starting order: the longest first, so that no worker ends long after the others.
UNITS = ("one_way", "sites", "nodes", "drivers", "ray_up")
_OPEN = pytest.StashKey[list["Shared[Any]"]]()
FAILED = pytest.StashKey[bool]()
T = TypeVar("T")


@dataclass
class Shared(Generic[T]):
    """A resource that tests share.

    Args:
        open: starts it, and puts its clean-up on the stack; gets the session's config.
        illness: returns what is wrong with it; empty: it is healthy. It waits if that needs a moment.
    """

    open: Callable[[ExitStack, pytest.Config], T]
    illness: Callable[[T], str] = lambda _: ""
    _stack: ExitStack | None = field(default=None, init=False, repr=False)
    _made: Any = field(default=None, init=False, repr=False)

    @contextlib.contextmanager
    def lend(self, item: pytest.Item) -> Iterator[T]:
        """Lend it to a test, started anew if necessary, and check after the test that it is healthy.

        Args:
            item: the test. It fails if it leaves the resource unhealthy.
        """
        yield self.keep(item.config)
        illness = "it was not looked at to the end"  # stays so after a time-out of the test, which is no Exception
        try:
            illness = self._illness()
        finally:
            if illness:
                self._end_sick(illness, item)

    def _end_sick(self, illness: str, item: pytest.Item) -> None:
        try:
            self.end()
        except Exception as error:  # noqa: BLE001 - its error is the illness to show
            illness += f"; it does not end, either: {error}"
        if item.stash.get(FAILED, False):
            print(f"behind the test that failed: {illness}")
        else:
            pytest.fail(f"the test left what it shares with others sick: {illness}", pytrace=False)

    def keep(self, config: pytest.Config) -> T:
        """Lend it to a fixture of a module, started anew if necessary.

        Args:
            config: of the session.
        """
        if self._stack is None:
            with ExitStack() as stack:
                self._made = self.open(stack, config)
                self._stack = stack.pop_all()
            config.stash.setdefault(_OPEN, []).append(self)
        made: T = self._made
        return made

    def _illness(self) -> str:
        try:
            return self.illness(self._made)
        except Exception as error:  # noqa: BLE001 - any error means that it is unhealthy
            return f"{type(error).__name__}: {error}"

    def end(self) -> None:
        """End it, if it was started; the next test starts it anew."""
        stack, self._stack, self._made = self._stack, None, None
        if stack is not None:
            stack.close()


def unit_of(item: pytest.Item) -> str:
    """Return a test's unit of work: one that its module names, or its module."""
    mark = item.get_closest_marker("unit")
    return str(mark.args[0]) if mark else item.nodeid.partition("::")[0]


def group(items: list[pytest.Item]) -> None:
    """Have pytest-xdist keep each unit in one worker."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(unit_of(item)))


def sort_by_unit(items: list[pytest.Item]) -> None:
    """Sort tests by unit; within a unit by its modules' numbers, then in collection order."""

    def place(item: pytest.Item) -> tuple[int, str, int]:
        mark = item.get_closest_marker("unit")
        unit = unit_of(item)
        assert mark is None or unit in UNITS, f"{item.nodeid}: there is no unit {unit}"
        return UNITS.index(unit) if mark else len(UNITS), unit, mark.kwargs.get("order", 0) if mark else 0

    items.sort(key=place)


def end_unit(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the shared resources of a unit after its last test.

    Args:
        item: the test that has just run.
        nextitem: the worker's next test, if known.
    """
    if nextitem is None or unit_of(nextitem) != unit_of(item):
        end_all(item.config)


def end_all(config: pytest.Config) -> None:
    """End everything that is shared, the newest first, even if an end fails.

    Args:
        config: of the session.
    """
    with ExitStack() as stack:
        for each in config.stash.get(_OPEN, []):
            stack.callback(each.end)
        config.stash[_OPEN] = []
