"""Shared fixtures for tests of sessions at a destination: the destination on each server version, or on the newest."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from tests.support.databases.destination_site import Site
from tests.support.session.server_versions import DESTINATIONS


@pytest.fixture(params=DESTINATIONS)
def site(request: pytest.FixtureRequest, prepared_database: Callable[[EmbeddedServer], str]) -> Iterator[Site]:
    made = Site(prepared_database(request.getfixturevalue(request.param)))
    yield made
    made.close()


@pytest.fixture
def site_18(destination_database: str) -> Iterator[Site]:
    made = Site(destination_database)
    yield made
    made.close()
