"""What is printed as the way out is run, until nothing is found any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psycopg

__all__ = ["granted"]

ROUNDS_MAX = 4  # what one fix makes possible, the next one may need


def granted(superuser: psycopg.Connection, fixes: Callable[[], Sequence[str]]) -> list[str]:
    """Run fixes until there are none left; those that were run. None of them is printed again.

    Args:
        superuser: who runs them.
        fixes: what is printed now.
    """
    given: list[str] = []
    for _ in range(ROUNDS_MAX):
        if not (found := fixes()):
            return given
        for fix in found:
            assert fix not in given, f"not enough: {fix}"
            superuser.execute(fix)  # type: ignore[call-overload]
            given.append(fix)
    raise AssertionError(f"still refused after {given}")
