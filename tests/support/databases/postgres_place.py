"""Tables of a real database, in the form that `tests.support.histories.apply_world` needs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.server_session.session import PostgresSession
from tests.support.apply.apply_engine import TOPOLOGY
from tests.support.histories.apply_history import Row, Table

__all__ = ["PostgresPlace"]


class PostgresPlace:
    """Tables of a database."""

    def __init__(self, dsn: str) -> None:
        self.admin = psycopg.connect(dsn, autocommit=True)
        self.destination = PostgresDestination(dsn, site="dbs2")
        self.destination.prepare(TOPOLOGY)
        self._lost: list[bool] = []

    def create(self, table: Table) -> None:
        columns = [f"{name} {'integer' if place == 0 else 'text'}" for place, name in enumerate(table.columns)]
        columns += [] if table.keyless else ["PRIMARY KEY (id)"]
        columns += ["UNIQUE (u)"] if table.unique else []
        self.admin.execute(f'CREATE TABLE "{table.name}" ({", ".join(columns)})')

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        with self.admin.cursor() as cursor:
            cursor.executemany(
                f'INSERT INTO "{table.name}" VALUES ({", ".join(["%s"] * len(table.columns))})',
                [[self._read(table, place, value) for place, value in enumerate(row)] for row in rows],
            )

    def rows(self, table: Table) -> list[Row]:
        found = self.admin.execute(f'SELECT * FROM "{table.name}"').fetchall()
        return [tuple(self._write(place, value) for place, value in enumerate(row)) for row in found]

    def lose_commit(self, rng: random.Random) -> None:
        self._lost.append(rng.random() < 0.5)

    def close(self) -> None:
        self.destination.close()
        self.admin.close()

    @staticmethod
    def _read(table: Table, place: int, value: bytes | None) -> Any:
        if value is None:
            return None
        return int.from_bytes(value, "big") if place == 0 else value.decode()

    @staticmethod
    def _write(place: int, value: Any) -> bytes | None:
        if value is None:
            return None
        written: bytes = value.to_bytes(4, "big") if place == 0 else value.encode()
        return written

    def break_commits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let `lose_commit` affect whichever session commits next."""
        commit = PostgresSession.commit

        def losing(session: PostgresSession, *arguments: Any) -> None:
            lost = self._lost.pop() if self._lost else None
            if lost is not False:
                commit(session, *arguments)
            if lost is not None:
                session.close()
                raise DatabaseUnavailable("the connection broke around COMMIT")

        monkeypatch.setattr(PostgresSession, "commit", losing)
