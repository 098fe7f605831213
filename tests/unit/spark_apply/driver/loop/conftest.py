"""Fixtures of the driver loop's tests."""

from __future__ import annotations

import pytest

from tests.support.apply.hosted_driver import Driver


@pytest.fixture
def driver() -> Driver:
    return Driver()
