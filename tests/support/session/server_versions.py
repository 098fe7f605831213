"""Server versions that a test runs on: the newest in `make test`, the others in `make soak`, if they behave alike.

Core tests of what differs between versions, or of what everything depends on, run on each version in `make test`: they
use `on_every_version`.
"""

from __future__ import annotations

import pytest

__all__ = ["DESTINATIONS", "on_every_version"]

_EACH = ("pg_destination", "pg_16", "pg_15")
# For a fixture that takes the name of a server's fixture.
DESTINATIONS = [_EACH[0], *(pytest.param(name, marks=pytest.mark.soak) for name in _EACH[1:])]


def on_every_version(fixture: str) -> pytest.MarkDecorator:
    """Run a test on every version in `make test`.

    Args:
        fixture: the one that takes the name of a server's fixture.
    """
    return pytest.mark.parametrize(fixture, _EACH, indirect=True)
