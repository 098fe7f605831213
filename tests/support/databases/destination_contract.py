"""Support for the contract suites of destinations: the harness of each database, and the suites' writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.memory.copying import MemoryTableReader, StoreTables
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.databases.ports import (
    DestinationDatabase,
    DestinationSession,
    DestinationTable,
    ErrorTransaction,
    ScnRange,
)
from headrace.databases.ports.copying import TableReader
from headrace.databases.postgres.copying.table_copy import PostgresTableReader
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.server_session.session import PostgresSession
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings
from tests.support.databases.statements import row_of

TOPOLOGY, APPLY, TAG = "contract", "apply_from_a", b"\x00"
# For rules with many tests: others show the rule on a server in `make test`, and these run only on the memory database
# there.
on_a_server_in_soak = pytest.mark.parametrize(
    "harness", ["memory", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.soak])], indirect=True
)
Row = tuple[bytes | None, ...]
Opener = Callable[..., DestinationSession]


class MemoryHarness:
    def __init__(self) -> None:
        self._store = MemoryStore()
        self._snapshots: dict[str, Any] = {}

    def destination(self, settings: TableSettings = NO_TABLE_SETTINGS) -> DestinationDatabase:
        return MemoryDestination(store=self._store, site="b", settings=settings)

    def create_table(
        self,
        name: str,
        columns: Sequence[tuple[str, str]],
        *,
        key: Sequence[str] = (),
        unique: Sequence[Sequence[str]] = (),
        not_null: Sequence[str] = (),
    ) -> None:
        self._store.create_table(
            "public",
            name,
            key=key,
            unique=unique,
            columns=[destination_column(n, f"pg_catalog.{t}", not_null=n in not_null) for n, t in columns],
        )

    def drop_table(self, name: str) -> None:
        self._store.drop_table("public", name)

    def rename_table(self, name: str, new: str) -> None:
        moved = self._store.tables.pop(("public", name))
        moved.table = replace(moved.table, name=new)
        self._store.tables["public", new] = moved

    def reader(self) -> TableReader:
        names = sorted(self._store.tables)
        return MemoryTableReader(StoreTables(self._store), self._snapshots, names)

    def insert(self, name: str, rows: Sequence[Row]) -> None:
        self._store.insert("public", name, rows)

    def rewrite(self, name: str) -> None:
        self._store.tables["public", name].file += 1

    def rows(self, name: str) -> list[Row]:
        return self._store.rows("public", name)

    def lose_next_commit_answer(self, session: DestinationSession, *, committed: bool) -> None:
        self._store.lose_next_commit_answer(committed=committed)

    def impatient(self, session: DestinationSession) -> None:
        """Do nothing: it never waits for locks."""

    def commit_lazily(self) -> None:
        """Do nothing: commits are final."""

    def crash(self) -> None:
        self._store.crash()

    def lose_times(self, until_us: int) -> None:
        """Lose the commit times of users' changes; only that they committed before a moment stays known."""
        self._store.lose_times(until_us)

    def forget_applies(self) -> None:
        """Simulate a restore to a time before the first apply process ran, while the server keeps running."""
        self._store.processes.clear()


class PostgresHarness:
    def __init__(self, dsn: str, server: EmbeddedServer) -> None:
        self._dsn, self._server = dsn, server
        self._admin = psycopg.connect(dsn, autocommit=True)
        self._destinations: list[PostgresDestination] = []

    def destination(self, settings: TableSettings = NO_TABLE_SETTINGS) -> DestinationDatabase:
        self._destinations.append(PostgresDestination(self._dsn, site="b", settings=settings))
        return self._destinations[-1]

    def create_table(
        self,
        name: str,
        columns: Sequence[tuple[str, str]],
        *,
        key: Sequence[str] = (),
        unique: Sequence[Sequence[str]] = (),
        not_null: Sequence[str] = (),
    ) -> None:
        there = self._admin.execute("SELECT to_regclass(%s)", (f"public.{name}",)).fetchone()
        if there and there[0]:
            present = {
                row[0]
                for row in self._admin.execute(
                    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT"
                    " attisdropped",
                    (name,),
                )
            }
            for column, kind in columns:
                if column not in present:
                    self._admin.execute(f"ALTER TABLE {name} ADD COLUMN {column} {kind}")
            return
        parts = [f"{n} {t}{' NOT NULL' if n in not_null else ''}" for n, t in columns]
        parts += [f"PRIMARY KEY ({', '.join(key)})"] if key else []
        parts += [f"UNIQUE ({', '.join(u)})" for u in unique]
        self._admin.execute(f"CREATE TABLE {name} ({', '.join(parts)})")

    def drop_table(self, name: str) -> None:
        self._admin.execute(f"DROP TABLE {name}")

    def rename_table(self, name: str, new: str) -> None:
        self._admin.execute(f"ALTER TABLE {name} RENAME TO {new}")

    def reader(self) -> TableReader:
        return PostgresTableReader(self._dsn)

    def insert(self, name: str, rows: Sequence[Row]) -> None:
        for row in rows:
            values = [None if value is None else value.decode() for value in row]
            self._admin.execute(f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(row))})", values)

    def rewrite(self, name: str) -> None:
        self._admin.execute(f"VACUUM FULL {name}")

    def rows(self, name: str) -> list[Row]:
        result = self._admin.pgconn.exec_params(f"SELECT * FROM {name}".encode(), None, result_format=1)
        found = [tuple(result.get_value(i, k) for k in range(result.nfields)) for i in range(result.ntuples)]
        return sorted(found, key=lambda row: [(v is not None, v or b"") for v in row])

    def lose_next_commit_answer(self, session: DestinationSession, *, committed: bool) -> None:
        assert isinstance(session, PostgresSession)
        run = session._transaction.pipeline.run

        def lost(statements, what):
            if committed:
                run(statements, what)
            session._transaction.connection.close()
            raise DatabaseUnavailable("the connection broke")

        session._transaction.pipeline.run = lost  # type: ignore[method-assign]  # of this session alone

    def impatient(self, session: DestinationSession) -> None:
        assert isinstance(session, PostgresSession)
        session._transaction.connection.execute("SET lock_timeout = '100ms'")

    def commit_lazily(self) -> None:
        """Let sessions by default answer a COMMIT before it is on disk."""
        name = self._admin.info.dbname
        self._admin.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")

    def crash(self) -> None:
        self._admin.close()
        self._server.restart(immediate=True)
        self._admin = psycopg.connect(self._dsn, autocommit=True)

    def lose_times(self, until_us: int) -> None:
        """Freeze every row of every database, as autovacuum does: commit times up to now are lost."""
        number = row_of(self._admin.execute("SELECT pg_current_xact_id()::xid::text"))[0]
        self._admin.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS true")
        names = [name for (name,) in self._admin.execute("SELECT datname FROM pg_database WHERE datconnlimit <> -2")]
        until = time.monotonic() + 60
        asked = "SELECT pg_xact_commit_timestamp(%s::text::xid) IS NOT NULL"
        while row_of(self._admin.execute(asked, (number,)))[0]:
            assert time.monotonic() < until, (
                "the server still knows the times: a transaction or a slot of another test is old"
            )
            for name in names:
                with psycopg.connect(self._server.dsn(name), autocommit=True) as connection:
                    connection.execute("VACUUM (FREEZE)")
        self._admin.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS false")

    def forget_applies(self) -> None:
        """Simulate a restore of a dump from before the first apply process ran, while the server keeps running."""
        for table in ("apply_process", "apply_epoch", "apply_session", "apply_progress"):
            self._admin.execute(f"DELETE FROM headrace.{table}")

    def close(self) -> None:
        for destination in self._destinations:
            destination.close()
        self._admin.close()


Harness = MemoryHarness | PostgresHarness


def keyed(harness: Harness, session: DestinationSession, name: str = "t") -> DestinationTable:
    harness.create_table(name, [("id", "int4"), ("a", "text"), ("b", "text")], key=["id"])
    table = session.describe("public", name)
    assert table is not None
    return table


def keyless(harness: Harness, session: DestinationSession) -> DestinationTable:
    harness.create_table("n", [("a", "int4"), ("b", "text")])
    table = session.describe("public", "n")
    assert table is not None
    return table


def ranges(*bounds: tuple[int, int]) -> list[ScnRange]:
    return [ScnRange(after=after, through=through) for after, through in bounds]


def commit(session: DestinationSession, *writes, applied=(), low_watermark: int = 0) -> tuple[int, ...]:
    session.begin()
    counts = session.write(writes)
    session.commit(applied, low_watermark)
    return counts


def error_transaction(**changed) -> ErrorTransaction:
    fields = {
        "number": 0,
        "apply": APPLY,
        "source": "a",
        "transaction_id": 77,
        "commit_scn": 150,
        "commit_time_us": 1_700_000_000_123_456,
        "row_count": 2,
        "failed_position": 1,
        "depends_on": 0,
        "conflict_type": "update_missing",
        "sqlstate": "",
        "message": "the row is not there",
        "created_us": 0,
    }
    return ErrorTransaction(**{**fields, **changed})
