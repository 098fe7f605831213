"""A source's table and a destination's, between which DDL changes are carried as an apply process carries them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psycopg

from headrace.databases.postgres.connection import connect, qualified
from headrace.databases.postgres.ddl.planning import Planned, check_result, plan_changes
from headrace.databases.postgres.ddl.structure_query import read_kept_values, read_structure
from headrace.lcr.ddl_record import DdlRecord
from headrace.lcr.scn import ObjectNumber
from headrace.lcr.structure import Structure, elements
from headrace.lcr.table_name import TableName

__all__ = ["DdlPair", "carried"]

_FILE = """SELECT relfilenode FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s"""


class DdlPair:
    """Two databases of one major version, with a table of the same name.

    Args:
        source: dsn.
        destination: dsn.
        table: name of the table.
    """

    def __init__(self, source: str, destination: str, table: TableName) -> None:
        self.use(table)
        self.user = psycopg.connect(source, autocommit=True)
        self.there = connect(source, application_name="there")
        self.here = connect(destination, application_name="here")
        self.here.execute("SET session_replication_role = replica")
        self.version = self.here.info.server_version // 10000

    def use(self, table: TableName) -> None:
        """Carry changes of this table from now on."""
        self.table, self.name = table, qualified(*table)

    def close(self) -> None:
        """Close the sessions."""
        for connection in (self.user, self.there, self.here):
            connection.close()

    def both(self, *statements: str) -> None:
        """Run statements at the source and at the destination."""
        for connection in (self.user, self.here):
            for statement in statements:
                connection.execute(statement.encode())

    def at_source(self) -> Structure | None:
        """Return the source's table."""
        return read_structure(self.there, self.table)

    def at_destination(self) -> Structure | None:
        """Return the destination's table."""
        return read_structure(self.here, self.table)

    def file(self, connection: psycopg.Connection[Any]) -> object:
        """Return what differs once a table was written anew."""
        return connection.execute(_FILE, self.table).fetchone()

    def change(self, *statements: str, tag: str = "ALTER TABLE") -> DdlRecord:
        """Run statements at the source; return one record of all of them."""
        before, file = self.at_source(), self.file(self.there)
        for statement in statements:
            self.user.execute(statement.encode())
        return self.record(before, file, query="; ".join(statements), tag=tag)

    def record(self, before: Structure | None, file: object, **attributes: Any) -> DdlRecord:
        """Return the record of everything that happened at the source since.

        Args:
            before: the table before it.
            file: `file` before it.
            attributes: others of the record.
        """
        after = self.at_source()
        known = set() if before is None else {part.number for part in before.columns}
        kept = read_kept_values(self.there, self.table)
        new = [] if after is None else [part.name for part in after.columns if part.number not in known]
        values = {"tag": "ALTER TABLE", "is_known": True, "version": self.version, **attributes}
        return DdlRecord(
            relation=ObjectNumber(1),
            before=before,
            after=after,
            gone=tuple(key for key in elements(before) if key not in elements(after)),
            rewritten=0 if after is None or self.file(self.there) == file else 4,
            older={name: kept[name] for name in new if name in kept},
            **values,
        )

    def apply(self, record: DdlRecord) -> tuple[Planned, list[str]]:
        """Carry a change to the destination in one transaction; return the plan, and the statements that ran."""
        ran: list[str] = []
        with self.here.transaction():
            planned = plan_changes(record, self.at_destination(), self.version)
            if planned.has_work:
                file = self.file(self.here)
                ran += self._run(planned.statements)
                ran += self._run(planned.last_statements(self.at_destination()))
                assert self.file(self.here) == file, "the destination wrote the table anew"
                check_result(planned, self.at_destination(), read_kept_values(self.here, self.table))
        return planned, ran

    def _run(self, statements: Sequence[str]) -> Sequence[str]:
        for statement in statements:
            self.here.execute(statement.encode())
        return statements

    def rows(self, connection: psycopg.Connection[Any]) -> list[str]:
        """Return the rows as texts, sorted."""
        query = f"SELECT t::pg_catalog.text FROM ONLY {self.name} t"
        return sorted(row[0] for row in connection.execute(query.encode()))

    def add_rows(self, rows: Sequence[str]) -> None:
        """Insert rows at the destination, each with all its values."""
        of = self.name.replace("%", "%%")
        for row in rows:
            self.here.execute(f"INSERT INTO {of} SELECT (%s::{of}).*".encode(), (row,))

    def copy_rows(self) -> None:
        """Give the destination the source's rows."""
        self.here.execute(f"DELETE FROM {self.name}".encode())
        self.add_rows(self.rows(self.there))

    def assert_equal(self) -> None:
        """Assert that both tables have the same structure and the same rows."""
        assert _without_role(self.at_destination()) == _without_role(self.at_source())
        assert self.rows(self.here) == self.rows(self.there)


def _without_role(structure: Structure | None) -> Structure | None:
    return structure and replace(structure, role="")


def carried(pair: DdlPair, *statements: str) -> list[str]:
    """Make a change at the source, carry it, and compare; return what ran."""
    planned, ran = pair.apply(pair.change(*statements))
    assert not planned.refusal
    pair.assert_equal()
    return ran
