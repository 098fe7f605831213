"""Databases that record DDL, and a session of a user of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from headrace.databases.embedded.servers import EmbeddedServer
from tests.support.databases.ddl_recording import DDL, TABLE, USER, Recording, site_of_version
from tests.support.databases.postgres_site import Site
from tests.support.session.matrices import values


@pytest.fixture(params=values(["18", "16", "15"], "18"))
def recording(request: pytest.FixtureRequest, make_site: Callable[[EmbeddedServer], Site]) -> Recording:
    site = site_of_version(request, make_site, request.param)
    site.run(TABLE)
    site.prepare(DDL)
    made = Recording(site)
    (base,) = made.records()
    assert base["base"]
    return made


@pytest.fixture
def user(recording: Recording) -> Iterator[psycopg.Connection[Any]]:
    """A session of a role without any right but those on its own schema."""
    run = recording.site.run
    run(
        f"DROP ROLE IF EXISTS {USER}; CREATE ROLE {USER} LOGIN PASSWORD 'secret'; CREATE SCHEMA own AUTHORIZATION {USER}"
    )
    recording.records()
    dsn = conninfo.make_conninfo(recording.site.dsn, user=USER, password="secret")
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield connection
    finally:
        run(f"DROP OWNED BY {USER} CASCADE; DROP ROLE {USER}")
