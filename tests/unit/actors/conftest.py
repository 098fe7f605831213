"""Fixtures of tests of controllers: a small topology and fake actors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.actors.actor_system import FakeActors
from tests.support.actors.controllers import one_way_spec
from topology.spec import TopologySpec


@pytest.fixture
def spec(tmp_path: Path) -> TopologySpec:
    """From site a to site b; a module about another topology defines its own fixture of this name."""
    return one_way_spec(tmp_path)


@pytest.fixture
def actors() -> FakeActors:
    """Fake actors before anything runs."""
    return FakeActors()
