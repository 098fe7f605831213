"""Support for the contract suite of sources: the harness of each database, with text columns only, keyed by `id`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import psycopg
import pytest

from headrace.base.errors import ProtocolError
from headrace.databases.memory.log import MemoryLogDecoder
from headrace.databases.memory.source import MemorySource, MemoryTransaction
from headrace.databases.ports import LogDecoder, SourceDatabase, StreamOptions
from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.source.log_stream.pgoutput import PostgresLogDecoder
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.tags import Tag
from headrace.rules.rule import Rule, RuleSet
from tests.support.databases.log_reading import Reading

TOPOLOGY = "contract"
RULES = (RuleSet(include=(Rule(owner="public"),)),)
LARGE = b"x" * 5000  # stored out of line: an UPDATE that does not change it does not log it


class Changes(Protocol):
    """A user's changes in one transaction."""

    def insert(self, table: str, /, **values: str | None) -> None: ...

    def update(self, table: str, identity: str, /, **values: str | None) -> None: ...

    def delete(self, table: str, identity: str, /) -> None: ...

    def truncate(self, *tables: str) -> None: ...

    def add_column(self, table: str, column: str) -> None: ...

    def rename_column(self, table: str, column: str, name: str) -> None: ...

    def drop_column(self, table: str, column: str) -> None: ...

    def create_table(self, name: str, columns: Sequence[str]) -> None: ...

    def drop_table(self, name: str) -> None: ...

    def rolled_back(self) -> contextlib.AbstractContextManager[None]: ...


class SourceHarness(Protocol):
    """One database as a source, and its user."""

    source: SourceDatabase

    def create_table(self, name: str, columns: Sequence[str]) -> None: ...

    def transaction(self, tag: Tag | None = None) -> contextlib.AbstractContextManager[Changes]: ...

    def decoder(self, options: StreamOptions) -> LogDecoder: ...

    def close(self) -> None: ...


class _MemoryChanges:
    def __init__(self, source: MemorySource, transaction: MemoryTransaction) -> None:
        self._source, self._transaction = source, transaction

    def insert(self, table: str, /, **values: str | None) -> None:
        self._transaction.insert(f"public.{table}", **values)

    def update(self, table: str, identity: str, /, **values: str | None) -> None:
        name = f"public.{table}"
        columns = [column.name for column in self._source.table(name).version.columns]
        row = next(row for row in self._source.rows(name) if row[0] == identity.encode())
        large = [c for c, value in zip(columns, row, strict=True) if value is not None and len(value) >= len(LARGE)]
        self._transaction.update(name, {"id": identity}, unchanged=[c for c in large if c not in values], **values)

    def delete(self, table: str, identity: str, /) -> None:
        self._transaction.delete(f"public.{table}", {"id": identity})

    def truncate(self, *tables: str) -> None:
        self._transaction.truncate(*(f"public.{table}" for table in tables))

    def add_column(self, table: str, column: str) -> None:
        self._transaction.add_column(f"public.{table}", column)

    def rename_column(self, table: str, column: str, name: str) -> None:
        self._transaction.rename_column(f"public.{table}", column, name)

    def drop_column(self, table: str, column: str) -> None:
        self._transaction.drop_column(f"public.{table}", column)

    def create_table(self, name: str, columns: Sequence[str]) -> None:
        self._transaction.create_table(f"public.{name}", columns, key=["id"])

    def drop_table(self, name: str) -> None:
        self._transaction.drop_table(f"public.{name}")

    def rolled_back(self) -> contextlib.AbstractContextManager[None]:
        return self._transaction.rolled_back()


class MemorySourceHarness:
    """The memory database."""

    def __init__(self) -> None:
        self._memory = MemorySource()
        self.source: SourceDatabase = self._memory

    def create_table(self, name: str, columns: Sequence[str]) -> None:
        self._memory.create_table(f"public.{name}", columns, key=["id"])

    @contextlib.contextmanager
    def transaction(self, tag: Tag | None = None) -> Iterator[Changes]:
        with self._memory.transaction(tag) as transaction:
            yield _MemoryChanges(self._memory, transaction)

    def decoder(self, options: StreamOptions) -> LogDecoder:
        return MemoryLogDecoder(options)

    def close(self) -> None:
        self.source.close()


class _PostgresChanges:
    def __init__(self, session: psycopg.Connection[tuple[object, ...]]) -> None:
        self._session = session

    def insert(self, table: str, /, **values: str | None) -> None:
        marks = ", ".join(["%s"] * len(values))
        self._session.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values()))

    def update(self, table: str, identity: str, /, **values: str | None) -> None:
        sets = ", ".join(f"{name} = %s" for name in values)
        self._session.execute(f"UPDATE {table} SET {sets} WHERE id = %s", [*values.values(), identity])

    def delete(self, table: str, identity: str, /) -> None:
        self._session.execute(f"DELETE FROM {table} WHERE id = %s", (identity,))

    def truncate(self, *tables: str) -> None:
        self._session.execute(f"TRUNCATE {', '.join(tables)}")

    def add_column(self, table: str, column: str) -> None:
        self._session.execute(f"ALTER TABLE {table} ADD COLUMN {column} text")

    def rename_column(self, table: str, column: str, name: str) -> None:
        self._session.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO {name}")

    def drop_column(self, table: str, column: str) -> None:
        self._session.execute(f"ALTER TABLE {table} DROP COLUMN {column}")

    def create_table(self, name: str, columns: Sequence[str]) -> None:
        self._session.execute(
            f"CREATE TABLE {name} ({', '.join(f'{column} text' for column in columns)}, PRIMARY KEY (id))"
        )

    def drop_table(self, name: str) -> None:
        self._session.execute(f"DROP TABLE {name}")

    @contextlib.contextmanager
    def rolled_back(self) -> Iterator[None]:
        self._session.execute("SAVEPOINT undone")
        yield
        self._session.execute("ROLLBACK TO SAVEPOINT undone")


class PostgresSourceHarness:
    """A database on a real server."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._admin = psycopg.connect(dsn, autocommit=True)
        self._origins: list[str] = []
        self.source: SourceDatabase = PostgresSource(dsn)

    def create_table(self, name: str, columns: Sequence[str]) -> None:
        self._admin.execute(
            f"CREATE TABLE {name} ({', '.join(f'{column} text' for column in columns)}, PRIMARY KEY (id))"
        )
        for column in columns:
            self._admin.execute(f"ALTER TABLE {name} ALTER {column} SET STORAGE EXTERNAL")

    @contextlib.contextmanager
    def transaction(self, tag: Tag | None = None) -> Iterator[Changes]:
        with psycopg.connect(self._dsn, autocommit=True) as session:
            if tag is not None:
                origin = f"headrace:{tag.topology}/{tag.apply}/0:{tag.value.hex()}"
                if origin not in self._origins:
                    self._origins.append(origin)
                    session.execute("SELECT pg_replication_origin_create(%s)", (origin,))
                session.execute("SELECT pg_replication_origin_session_setup(%s)", (origin,))
            with session.transaction():
                yield _PostgresChanges(session)
            if tag is not None:
                session.execute("SELECT pg_replication_origin_session_reset()")

    def decoder(self, options: StreamOptions) -> LogDecoder:
        return PostgresLogDecoder(options)

    def close(self) -> None:
        self.source.close()
        for origin in self._origins:
            self._admin.execute("SELECT pg_replication_origin_drop(%s)", (origin,))
        self._admin.close()


def harness_of(kind: str, request: pytest.FixtureRequest) -> SourceHarness:
    """Return an empty source: `memory`, or `postgres` in a fresh database.

    Args:
        kind: which one.
        request: of the fixture that asks.
    """
    return (
        MemorySourceHarness() if kind == "memory" else PostgresSourceHarness(request.getfixturevalue("source_database"))
    )


def reading(harness: SourceHarness, start: Scn = FIRST_SCN) -> Reading:
    """A stream of the source with its decoder."""
    stream = harness.source.open_stream(TOPOLOGY, start)
    return Reading(stream, harness.decoder(stream.options))


def message_ends(data: bytes, decoder: LogDecoder) -> list[int]:
    """Return every position in `data` at which messages are complete, including its end."""
    array, ends = np.frombuffer(data, np.uint8), []
    for end in range(1, len(data) + 1):
        try:
            decoder.describe(array[:end])
        except ProtocolError:
            continue
        ends.append(end)
    return ends
