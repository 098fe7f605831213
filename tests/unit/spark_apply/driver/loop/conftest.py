"""What tests of the driver's loop share."""

from __future__ import annotations

import pytest

from tests.support.apply.hosted_driver import Driver


@pytest.fixture
def driver() -> Driver:
    return Driver()
