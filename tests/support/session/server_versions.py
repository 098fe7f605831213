"""Versions of the server that a test runs on: what is the same on all of them runs on the newest in `make test`, and on
the others in `make soak`.

A core of what differs from version to version, or what everything rests on, runs on each of them in `make test`: it
says so by `on_every_version`.
"""

from __future__ import annotations

import pytest

__all__ = ["DESTINATIONS", "on_every_version"]

_EACH = ("pg_destination", "pg_16", "pg_15")
# Of a fixture that takes the name of a server's fixture.
DESTINATIONS = [_EACH[0], *(pytest.param(name, marks=pytest.mark.soak) for name in _EACH[1:])]


def on_every_version(fixture: str) -> pytest.MarkDecorator:
    """Have a test run on every version in `make test`.

    Args:
        fixture: which takes the name of a server's fixture.
    """
    return pytest.mark.parametrize(fixture, _EACH, indirect=True)
