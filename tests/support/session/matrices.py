"""Long matrices of one claim: core cases run in `make test`, the others in `make soak`."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

import pytest

__all__ = ["cases", "values"]


def cases(named: Mapping[str, Any], core: Collection[str]) -> list[Any]:
    """Return cases as `pytest.mark.parametrize` takes them.

    Args:
        named: each case by its name; a tuple has several arguments.
        core: the names of the cases that run in `make test`.
    """
    unknown = set(core) - set(named)
    assert not unknown, f"no cases: {unknown}"
    marks = {name: () if name in core else (pytest.mark.soak,) for name in named}
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), id=name, marks=marks[name])
        for name, case in named.items()
    ]


def values(every: Iterable[Hashable], *core: Hashable) -> list[Any]:
    """Return values of one argument as `pytest.mark.parametrize` takes them.

    Args:
        every: all of them.
        core: the values that run in `make test`.
    """
    found = list(every)
    assert set(core) <= set(found), f"no values: {set(core) - set(found)}"
    return [value if value in core else pytest.param(value, marks=pytest.mark.soak) for value in found]
