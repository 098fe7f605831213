"""A destination database on a real server: an apply server's session, and a user's view."""

from __future__ import annotations

from typing import Any

import psycopg

from headrace.databases.ports import DestinationTable
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.server_session.session import PostgresSession

__all__ = ["Site"]


class Site:
    """A destination database, a session of apply server 0, and a user's view."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.destination = PostgresDestination(dsn, site="b")
        self.destination.prepare("top")
        self.epoch = self.destination.raise_epoch("top", "a").epoch
        self.session = self.open()
        self.user = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)

    def open(self, server: int = 0, tag: bytes = b"\x1f") -> PostgresSession:
        return self.destination.open_session("top", "a", server=server, epoch=self.epoch, tag=tag)

    def table(self, ddl: str, name: str = "t") -> DestinationTable:
        self.user.execute(ddl)
        table = self.session.describe("public", name, fresh=True)
        assert table is not None
        return table

    def rows(self, query: str = "SELECT * FROM t ORDER BY 1") -> list[tuple[Any, ...]]:
        return self.user.execute(query).fetchall()

    def commit(self, *found) -> tuple[int, ...]:
        self.session.begin()
        try:
            counts = self.session.write(found)
            self.session.commit([], 0)
        finally:
            self.session.rollback()
        return counts

    def binary(self, value: str) -> bytes:
        """Return the binary form of an SQL expression."""
        result = self.user.pgconn.exec_params(f"SELECT {value}".encode(), None, result_format=1)
        found = result.get_value(0, 0)
        assert found is not None, result.error_message
        return found

    def close(self) -> None:
        self.session.close()
        self.destination.close()
        self.user.close()
