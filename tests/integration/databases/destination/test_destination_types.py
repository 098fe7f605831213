"""Every type of pg_type survives `PostgresSession.write` unchanged, in binary and text form, by every way of writing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import DestinationTable, TruncatedTable
from headrace.databases.postgres.connection import connect
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.server_session.session import PostgresSession
from headrace.databases.postgres.destination.writing.writes import COPY_ROWS_MIN
from headrace.lcr.values import NULL
from tests.support.values.type_literals import (
    NO_BINARY,
    NO_BINARY_VALUE,
    NO_INPUT,
    USER_TYPES,
    groups,
    literals_of,
    make_tables,
    without_exceptions,
)
from tests.support.values.writes import Value, delete, insert, int4, update, version_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture(scope="module")
def databases(pg_source: EmbeddedServer, pg_destination: EmbeddedServer) -> Iterator[tuple[str, str]]:
    """Create a source and a destination database on two servers; user types have different numbers in them."""
    dsns = []
    for server in (pg_source, pg_destination):
        server.start()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS types WITH (FORCE)")
            connection.execute("CREATE DATABASE types")
        dsns.append(server.dsn("types"))
    with psycopg.connect(dsns[1], autocommit=True) as connection:
        for number in range(7):
            connection.execute(f"CREATE TYPE public.shift_{number} AS ENUM ()")
    for dsn in dsns:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(USER_TYPES)
    yield dsns[0], dsns[1]
    for server in (pg_source, pg_destination):
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS types WITH (FORCE)")


@pytest.fixture(scope="module")
def source(databases: tuple[str, str]) -> Iterator[psycopg.Connection]:
    connection = connect(databases[0], application_name="test source")
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def target(databases: tuple[str, str]) -> Iterator[psycopg.Connection]:
    connection = connect(databases[1], application_name="test destination")
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def session(databases: tuple[str, str]) -> Iterator[PostgresSession]:
    destination = PostgresDestination(databases[1], site="b")
    destination.prepare("types")
    epoch = destination.raise_epoch("types", "a").epoch
    made = destination.open_session("types", "a", server=0, epoch=epoch, tag=b"\x00")
    yield made
    made.close()
    destination.close()


def raw_rows(connection: psycopg.Connection, query: str, *, is_binary: bool) -> list[list[Value]]:
    """Return values as the log would carry them; the key is in column 0."""
    result = connection.pgconn.exec_params(query.encode(), None, result_format=int(is_binary))
    assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
    rows = [[result.get_value(i, k) for k in range(result.nfields)] for i in range(result.ntuples)]
    return [[NULL if value is None else value for value in row] for row in rows]


def image(connection: psycopg.Connection, name: str) -> list[tuple[Any, ...]]:
    return connection.execute(f"SELECT ROW(t.*)::text FROM app.{name} t ORDER BY id").fetchall()


def check_round_trip(
    source: psycopg.Connection, target: psycopg.Connection, session: PostgresSession, name: str, *, is_binary: bool
) -> None:
    """Insert, compare and update, compare and delete, insert many."""
    table = session.describe("app", name, fresh=True)
    assert table is not None
    version = version_of(table, is_binary=is_binary)
    rows = raw_rows(source, f"SELECT * FROM app.{name} ORDER BY id", is_binary=is_binary)
    run(session, insert(table, rows, version), len(rows))
    assert image(target, name) == image(source, name)
    # The old values must be recognised as the present ones, and set to the same: every column is written again.
    run(session, update(table, rows, rows, version=version), len(rows))
    assert image(target, name) == image(source, name)
    run(session, delete(table, rows, version=version), len(rows))
    key = int4 if is_binary else (lambda k: str(k).encode())
    many = [[key(k), *rows[k % len(rows)][1:]] for k in range(COPY_ROWS_MIN)]
    run(session, insert(table, many, version), len(many))
    source.execute(
        f"INSERT INTO app.{name} SELECT k, {', '.join(f'c{n}' for n in range(len(version.columns) - 1))}"
        f" FROM app.{name} t, generate_series({len(rows)}, {COPY_ROWS_MIN - 1}) k WHERE k %% {len(rows)} ="
        " t.id".replace("%%", "%")
    )
    assert image(target, name) == image(source, name)


def run(session: PostgresSession, write, count: int) -> None:
    session.begin()
    try:
        assert session.write([write]) == (count,)
        session.commit([], 0)
    finally:
        session.rollback()


@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "text"])
def test_every_type_survives_every_way_of_writing(source, target, session, is_binary):
    literals = literals_of(source)
    if is_binary:
        literals = {name: without_exceptions(name, found) for name, found in literals.items()}
        literals = {name: found for name, found in literals.items() if found}
    seen = 0
    for number, types in enumerate(groups(literals)):
        name = f"types_{number}"
        make_tables(source, target, name, types)
        check_round_trip(source, target, session, name, is_binary=is_binary)
        seen += len(types)
    assert seen > 150


def test_exceptions_are_still_needed(source):
    for name in NO_INPUT:
        with pytest.raises(psycopg.Error):
            source.execute(f"SELECT 'x'::pg_catalog.{name}")
    for name in NO_BINARY:
        row = source.execute("SELECT typsend FROM pg_type WHERE typname = %s", (name,)).fetchone()
        assert row == ("-",)
    for name, literal in NO_BINARY_VALUE.items():
        sent = source.pgconn.exec_params(f"SELECT '{literal}'::{name}".encode(), None, result_format=1).get_value(0, 0)
        received = source.pgconn.exec_params(f"SELECT $1::{name}".encode(), [sent], param_formats=[1])
        assert b"invalid" in received.error_message


@pytest.mark.soak
def test_64_mb_value_passes(source, target, session):
    for connection in (source, target):
        connection.execute("DROP TABLE IF EXISTS app.large")
        connection.execute("CREATE TABLE app.large (id integer PRIMARY KEY, v bytea)")
    table = session.describe("app", "large", fresh=True)
    value = bytes(range(256)) * (64 << 12)
    rows: list[list[Value]] = [[int4(1), value], [int4(2), value], [int4(3), b"small"]]
    run(session, insert(table, rows), 3)
    run(session, update(table, rows, [[int4(1), value[:-1]], *rows[1:]]), 3)
    found = target.execute("SELECT id, length(v) FROM app.large ORDER BY id").fetchall()
    assert found == [(1, len(value) - 1), (2, len(value)), (3, 5)]


def test_types_created_in_a_transaction_that_rolls_back_are_created_again(target, session):
    """Array values need a type of the session. A type created within a transaction is rolled back with it."""
    target.execute("DROP TABLE IF EXISTS app.wrapped")
    target.execute("CREATE TABLE app.wrapped (id integer PRIMARY KEY, v date[], w timetz[])")
    table: DestinationTable = session.describe("app", "wrapped", fresh=True)
    empty = int4(0) + int4(0)
    row = [[int4(1), empty + int4(1082), empty + int4(1266)]]
    for turn in range(3):
        session.begin()
        assert session.write([delete(table, [], version=version_of(table))]) == (0,)
        session.truncate([TruncatedTable(table=table)], restart_identity=False)  # the transaction has begun
        assert session.write([insert(table, row)]) == (1,)
        session.savepoint()
        assert session.write([update(table, row, row)]) == (1,)
        session.rollback_to_savepoint()
        assert session.write([update(table, row, row)]) == (1,)
        if turn == 1:
            session.commit([], 0)
        else:
            session.rollback()
    assert target.execute("SELECT id, v, w FROM app.wrapped").fetchall() == [(1, [], [])]
