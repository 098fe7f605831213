"""What many tests share ends with the last of them: an idle topology of two sites costs a tenth of a core, and the tests that come later start others.

Modules that share one are run one after the other (`by_what_they_share`). A fixture of the session opens what it shares in `shared`, and
`end_what_is_no_longer_needed` closes that behind the last module that uses it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

__all__ = ["by_what_they_share", "end_what_is_no_longer_needed", "note_last", "shared"]

# Session fixtures, in the order in which their modules come; what needs another one stands behind it.
SHARED = ("one_way", "ray_cluster", "spark_process")
_OPEN = pytest.StashKey[dict[str, ExitStack]]()
_LAST = pytest.StashKey[dict[str, pytest.Item]]()


@contextlib.contextmanager
def shared(config: pytest.Config, name: str) -> Iterator[ExitStack]:
    """Where a session fixture opens what it shares.

    Args:
        config: of the session.
        name: of the fixture, one of `SHARED`.
    """
    with ExitStack() as stack:
        config.stash.setdefault(_OPEN, {})[name] = stack
        yield stack


def by_what_they_share(items: list[pytest.Item]) -> None:
    """Sort the tests, module by module: those of the first shared topology, those that use it and another one, those of the other one, the rest."""
    used: dict[Path, set[str]] = {}
    for item in items:
        used.setdefault(item.path, set()).update(name for name in SHARED if name in _fixtures(item))
    items.sort(key=lambda item: _place(used[item.path]))


def _place(used: set[str]) -> tuple[int, int]:
    """Where a module comes, by which of `SHARED` it uses."""
    return min(map(SHARED.index, used), default=len(SHARED)), len(used)


def note_last(session: pytest.Session) -> None:
    """Find, for each of `SHARED`, the last test of the last module that uses it."""
    session.config.stash[_LAST] = {}
    for name in SHARED:
        paths = [item.path for item in session.items if name in _fixtures(item)]
        if paths:
            session.config.stash[_LAST][name] = [item for item in session.items if item.path == paths[-1]][-1]


def end_what_is_no_longer_needed(item: pytest.Item) -> None:
    """Close what no later test uses. Called when the fixtures of the test's module have ended.

    Args:
        item: the test that has just run.
    """
    for name in reversed(SHARED):
        stack = item.config.stash.get(_OPEN, {}).get(name)
        if stack is not None and item.config.stash[_LAST].get(name) is item:
            stack.close()


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])
