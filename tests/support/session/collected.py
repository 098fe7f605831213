"""All tests, as a session that collects all of them sees them before its lane's markers deselect some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

__all__ = ["Collected", "collected", "note_collected"]

_ALL = ["tests"]  # the arguments with which tests/lanes.py lets pytest collect
_COLLECTED = pytest.StashKey[tuple[pytest.Item, ...]]()


@dataclass(frozen=True, slots=True)
class Collected:
    """A test.

    Args:
        name: its node id.
        markers: names of its markers.
        fixtures: names of the fixtures that it needs, directly or not.
        is_random: whether hypothesis generates its cases.
        faults: kinds of `headrace chaos` that it injects.
    """

    name: str
    markers: frozenset[str]
    fixtures: frozenset[str]
    is_random: bool
    faults: frozenset[str]


def note_collected(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Record the tests that a session has collected, before any is deselected."""
    if config.args == _ALL:
        config.stash[_COLLECTED] = tuple(items)


def collected(config: pytest.Config) -> list[Collected]:
    """Return every test; skip the caller in a session of only some files."""
    if (items := config.stash.get(_COLLECTED, None)) is None:
        pytest.skip("needs a session that collects every test: make check ARGS='-k test_lanes'")
    return [_told(item) for item in items]


def _told(item: pytest.Item) -> Collected:
    function = getattr(item, "obj", None)
    return Collected(
        name=item.nodeid,
        markers=frozenset(mark.name for mark in item.iter_markers()),
        fixtures=frozenset(getattr(item, "fixturenames", ())),
        is_random=hasattr(function, "hypothesis") or hasattr(function, "_hypothesis_state_machine_class"),
        faults=frozenset(mark.kwargs["kind"] for mark in item.iter_markers("fault") if "kind" in mark.kwargs),
    )
