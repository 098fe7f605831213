"""Runs printed fixes until no finding is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psycopg

__all__ = ["granted"]

ROUNDS_MAX = 4  # one fix may make the next one necessary


def granted(superuser: psycopg.Connection, fixes: Callable[[], Sequence[str]]) -> list[str]:
    """Run fixes until none is left, and return them. No fix may be printed twice.

    Args:
        superuser: runs them.
        fixes: returns the fixes that are printed now.
    """
    given: list[str] = []
    for _ in range(ROUNDS_MAX):
        if not (found := fixes()):
            return given
        for fix in found:
            assert fix not in given, f"not enough: {fix}"
            superuser.execute(fix)
            given.append(fix)
    raise AssertionError(f"still refused after {given}")
