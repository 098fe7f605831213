"""Two databases between which DDL changes are carried, on the oldest bundled PostgreSQL and on the newest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.connection import quote
from headrace.lcr.table_name import TableName
from tests.support.databases.created_pair import CreatedPair
from tests.support.databases.ddl_pair import DdlPair
from tests.support.session.matrices import values


@pytest.fixture(params=values(["pg_16", "pg_source"], "pg_source"))
def server(request: pytest.FixtureRequest) -> EmbeddedServer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, EmbeddedServer)
    return found


@pytest.fixture
def make_pair(
    server: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str]
) -> Iterator[Callable[[TableName], DdlPair]]:
    """Return a function that makes a pair; its schema exists, its table does not."""
    with contextlib.ExitStack() as made:

        def make(table: TableName) -> DdlPair:
            pair = DdlPair(fresh_database(server), fresh_database(server), table)
            made.callback(pair.close)
            pair.both(f"CREATE SCHEMA {quote(table.owner)}")
            return pair

        yield make


@pytest.fixture
def pair(make_pair: Callable[[TableName], DdlPair]) -> DdlPair:
    """Both have hr.jobs, with two rows and a key."""
    found = make_pair(TableName("hr", "jobs"))
    found.both(
        "CREATE TABLE hr.jobs (id integer PRIMARY KEY, title varchar(20))",
        "INSERT INTO hr.jobs VALUES (1, 'one'), (2, 'two')",
    )
    return found


@pytest.fixture
def created(
    server: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    prepared_database: Callable[[EmbeddedServer], str],
) -> Iterator[CreatedPair]:
    """Both have the schema hr; the destination has a session of an apply server."""
    found = CreatedPair(fresh_database(server), prepared_database(server))
    found.both("CREATE SCHEMA hr")
    yield found
    found.close()
