"""The topology of the unit `sites` (`tests.support.clusters.sites`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.clusters.sites import Sites, opened
from tests.support.clusters.system import system_folder
from tests.support.session.shared import Shared


def _open(stack: ExitStack, _: pytest.Config) -> Sites:
    return opened(stack, stack.enter_context(system_folder("sites")))


_SITES = Shared(_open, illness=lambda sites: sites.illness())


@pytest.fixture
def sites(request: pytest.FixtureRequest) -> Iterator[Sites]:
    """The healthy topology, with the file of the previous scenario."""
    with _SITES.lend(request.node) as lent:
        yield lent


@pytest.fixture
def sites_to_lose(request: pytest.FixtureRequest) -> Iterator[Sites]:
    """The topology for a test that leaves nothing healthy: it ends with the test."""
    try:
        yield _SITES.keep(request.config)
    finally:
        _SITES.end()
