"""What many tests share ends with the last of them: an idle topology of two sites costs a tenth of a core, and the tests that come later start others.

Modules that share one are run one after the other (`by_what_they_share`), by the same worker where there are several (`unit_of`). A fixture of the
session opens what it shares in `shared`, and `end_what_is_no_longer_needed` closes that behind the last module that uses it.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

__all__ = ["by_what_they_share", "end_what_is_no_longer_needed", "note_last", "shared", "unit_of"]

# Session fixtures, in the order in which their modules come; what needs another one stands behind it.
SHARED = ("one_way", "ray_cluster", "spark_process")
# How a module's text says that it uses one of them: who divides tests among workers has only their names.
_USES = re.compile(r"\b(one_way|ray_cluster|ray_address|make_drivers): ")
_LONGEST = "multisite"  # the folder whose modules begin first, so that no worker ends long after the others
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
    for path, names in used.items():
        assert not names or unit_of(path) in SHARED, f"{path} uses {names} and does not name it as an argument: see _USES"
    items.sort(key=lambda item: _place(item.path, used[item.path]))


def _place(path: Path, used: set[str]) -> tuple[int, int]:
    """Where a module comes, by which of `SHARED` it uses."""
    last = -1 if path.parent.name == _LONGEST else len(SHARED)
    return min(map(SHARED.index, used), default=last), len(used)


@functools.cache
def unit_of(path: Path) -> str:
    """What one worker runs one after the other: the modules that use the same of `SHARED`, or a module that uses none.

    Args:
        path: of the module.
    """
    used = {name if name in SHARED else "ray_cluster" for name in _USES.findall(path.read_text())}
    return min(used, key=SHARED.index, default=str(path))


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
