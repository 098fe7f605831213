"""Databases as sources: fresh ones on the session's servers, each with a session of its user."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from tests.support.databases.postgres_site import Site

Fresh = Callable[[EmbeddedServer], str]


@pytest.fixture
def make_site(fresh_database: Fresh) -> Iterator[Callable[[EmbeddedServer], Site]]:
    made: list[Site] = []

    def make(server: EmbeddedServer) -> Site:
        made.append(Site(fresh_database(server)))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture
def site(make_site: Callable[[EmbeddedServer], Site], pg_source: EmbeddedServer) -> Site:
    return make_site(pg_source)


# Each version and each kind of wire once in `make test`.
@pytest.fixture(
    params=[
        "18 raw",
        "16 libpq",
        "15 raw",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("18 libpq", "16 raw")),
    ]
)
def any_site(request: pytest.FixtureRequest, make_site: Callable[[EmbeddedServer], Site]) -> tuple[Site, bool]:
    """A database on each version, read through each kind of wire."""
    version, _, wire = request.param.partition(" ")
    server = request.getfixturevalue("pg_source" if version == "18" else f"pg_{version}")
    return make_site(server), wire == "libpq"
