"""A source's database and a destination's session: tables that the source's users make and drop are carried."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg

from headrace.databases.ports import DdlOutcome, DdlPlace, DestinationSession, Instantiation
from headrace.databases.postgres.connection import connect, qualified
from headrace.databases.postgres.ddl.structure_query import read_structure, structure_query
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.ddl import DdlChange
from headrace.lcr.structure import Structure
from headrace.lcr.table_name import TableName
from tests.support.databases.destination_contract import APPLY, TAG, TOPOLOGY
from tests.support.databases.statements import row_of
from tests.support.values.ddl_changes import ddl_change

__all__ = ["CreatedPair"]

_STRUCTURE = structure_query("pg_catalog.to_regclass(%s)::pg_catalog.oid").encode()
_SEQUENCES = b"""SELECT coalesce(jsonb_object_agg(a.attname, jsonb_build_object('owner', n.nspname, 'name', s.relname,
  'type', format_type(q.seqtypid, NULL), 'start', q.seqstart, 'increment', q.seqincrement, 'min', q.seqmin, 'max', q.seqmax,
  'cache', q.seqcache, 'cycle', q.seqcycle, 'kind', p.deptype)), '{}')
FROM pg_depend p JOIN pg_class s ON s.oid = p.objid AND s.relkind = 'S' JOIN pg_namespace n ON n.oid = s.relnamespace
JOIN pg_sequence q ON q.seqrelid = s.oid JOIN pg_attribute a ON a.attrelid = p.refobjid AND a.attnum = p.refobjsubid
WHERE p.classid = 'pg_class'::regclass AND p.refclassid = 'pg_class'::regclass AND p.refobjid = to_regclass(%s)
  AND p.deptype IN ('a', 'i')"""


class CreatedPair:
    """Two databases of one server.

    Args:
        source: dsn.
        destination: dsn of a database with Headrace's schema.
        topology: its name.
    """

    def __init__(self, source: str, destination: str, topology: str = TOPOLOGY) -> None:
        self.topology, self.destination_dsn = topology, destination
        self.user = psycopg.connect(source, autocommit=True)
        self.admin = psycopg.connect(destination, autocommit=True)
        self._there = connect(source, application_name="there")
        self._here = connect(destination, application_name="here")
        self.destination = PostgresDestination(destination, site="b")
        self.destination.prepare(self.topology)
        self.epoch = self.destination.raise_epoch(self.topology, APPLY).epoch
        self.session = self.open()
        self.version = self.user.info.server_version // 10_000

    def open(self, server: int = 0) -> DestinationSession:
        """Open a session; the caller closes it."""
        return self.destination.open_session(self.topology, APPLY, server=server, epoch=self.epoch, tag=TAG)

    @contextlib.contextmanager
    def logged_on(self, dsn: str) -> Iterator[None]:
        """Let another role's session apply.

        Args:
            dsn: of the destination, as that role.
        """
        destination, was = PostgresDestination(dsn, site="b"), self.session
        was.close()
        # Another server: the role may not end the superuser's session, which may take a moment to go.
        self.session = destination.open_session(self.topology, APPLY, server=1, epoch=self.epoch, tag=TAG)
        try:
            yield
        finally:
            self.session.close()
            destination.close()

    def close(self) -> None:
        """Close everything."""
        self.session.close()
        self.destination.close()
        for connection in (self.user, self.admin, self._there, self._here):
            connection.close()

    # ------------------------------------------------------------------ at the source

    def both(self, *statements: str) -> None:
        """Run statements at both."""
        for connection in (self.user, self.admin):
            for statement in statements:
                connection.execute(statement.encode())

    def created(
        self,
        name: str,
        *statements: str,
        why_not: str = "",
        topology: str = TOPOLOGY,
        entry: int = 7,
        **attributes: Any,
    ) -> DdlChange:
        """Run statements that make a table; return the record of the table that they made.

        Args:
            name: of the table, in hr.
            statements: what the user runs.
            why_not: why it is not published.
            topology: that gets its rows.
            entry: number of the publication's entry.
            attributes: others of the record.
        """
        for statement in statements:
            self.user.execute(statement.encode())
        relation = qualified("hr", name)
        number = self.number(name)
        made = {
            "identities": {} if why_not else {topology: f"1.2.{number}.{entry}"},
            "why_not": why_not,
            "sequences": row_of(self._there.execute(_SEQUENCES, (relation,)))[0],
        }
        after = row_of(self._there.execute(_STRUCTURE, (relation,)))[0]
        values = {
            "tag": "CREATE TABLE",
            "relation": number,
            "version": self.version,
            "made": made,
            "references": self.references(number),
            **attributes,
        }
        return ddl_change(None, after, query="; ".join(statements), **values)

    def dropped(self, name: str, *statements: str, **attributes: Any) -> DdlChange:
        """Run statements that drop a table; without any: drop it. Return the record."""
        relation, number = qualified("hr", name), self.number(name)
        before = row_of(self._there.execute(_STRUCTURE, (relation,)))[0]
        for statement in statements or [f"DROP TABLE {relation}"]:
            self.user.execute(statement.encode())
        values = {"tag": "DROP TABLE", "relation": number, "version": self.version, **attributes}
        return ddl_change(before, None, query="; ".join(statements), **values)

    def altered(self, name: str, statement: str, *, now: TableName | None = None, **attributes: Any) -> DdlChange:
        """Run a statement that changes a table, after which it may have another name; return the record."""
        was, number = TableName("hr", name), self.number(name)
        before = row_of(self._there.execute(_STRUCTURE, (qualified(*was),)))[0]
        self.user.execute(statement.encode())
        after = row_of(self._there.execute(_STRUCTURE, (qualified(*(now or was)),)))[0]
        values = {
            "relation": number,
            "version": self.version,
            "references": self.references(number),
            "query": statement,
            **attributes,
        }
        return ddl_change(before, after, **values)

    def rewritten(
        self, name: str, statement: str, *, reasons: int = 4, casts: bool = False, **attributes: Any
    ) -> DdlChange:
        """Run a statement that may write a table anew, as `altered` does; return the record.

        Args:
            name: of the table.
            statement: what the user runs.
            reasons: PostgreSQL's bits, if it does.
            casts: there is a CREATE CAST of users.
            attributes: others of the record.
        """
        was = self.file(name)
        change = self.altered(name, statement, **attributes)
        if (file := self.file(name)) == was:
            return change
        rewriting = {"from": was, "encoding": "UTF8", "casts": casts}
        content = {**json.loads(change.content), "rewritten": reasons, "file": file, "rewriting": rewriting}
        return replace(change, content=json.dumps(content))

    def file(self, name: str) -> int:
        """Return the file of a table of hr at the source."""
        row = row_of(self.user.execute("SELECT pg_relation_filenode(to_regclass(%s))::int8", (qualified("hr", name),)))
        return int(row[0])

    def references(self, number: int) -> dict[str, int]:
        """Return the numbers of the tables that a table's foreign keys refer to at the source, by the keys' names."""
        query = "SELECT conname, confrelid::int8 FROM pg_constraint WHERE conrelid = %s AND contype = 'f'"
        return dict(self.user.execute(query, (number,)).fetchall())

    def number(self, name: str) -> int:
        """Return the source's number of a table of hr; 0: there is none."""
        row = row_of(self.user.execute("SELECT coalesce(to_regclass(%s)::oid::int8, 0)", (qualified("hr", name),)))
        return int(row[0])

    # ------------------------------------------------------------------ at the destination

    @staticmethod
    def place(position: int = 0, *, scn: int = 149) -> DdlPlace:
        """Return a place in the source's log."""
        return DdlPlace(source="a", transaction_id=77, order_scn=scn, position=position)

    def apply(self, *changes: DdlChange, is_in_order: bool = True, scn: int = 149) -> list[DdlOutcome]:
        """Make changes in one transaction."""
        self.session.begin()
        try:
            found = [
                self.session.change_table(each, self.place(number, scn=scn), is_in_order=is_in_order)
                for number, each in enumerate(changes)
            ]
            self.session.commit([], 0)
        except BaseException:
            self.session.rollback()
            raise
        return found

    def records(self) -> dict[str, Instantiation]:
        """Return the records of the apply process by identity."""
        return {each.identity: each for each in self.destination.instantiations(self.topology, APPLY)}

    def exists(self, name: str) -> bool:
        """Return whether the destination has something of this name in hr."""
        return row_of(self.admin.execute("SELECT to_regclass(%s)", (qualified("hr", name),)))[0] is not None

    def assert_equal(self, name: str) -> None:
        """Assert that a table, without its foreign keys, and its sequences are here as at the source."""
        relation = qualified("hr", name)
        assert self.at_destination(name) == _without(read_structure(self._there, TableName("hr", name)))
        there, here = (row_of(each.execute(_SEQUENCES, (relation,)))[0] for each in (self._there, self._here))
        for found in (*there.values(), *here.values()):
            if found["kind"] == "i":
                del found["type"]  # LIKE gives an identity column a bigint sequence with its own bounds
        assert here == there, (here, there)

    def foreign_keys(self, name: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the definitions of a table's foreign keys by their names: at the source, and here."""
        there, here = (read_structure(each, TableName("hr", name)) for each in (self._there, self._here))
        return _keys(there), _keys(here)

    def at_destination(self, name: str) -> Structure | None:
        """Return a table of hr as it is here, without its owner and its foreign keys."""
        return _without(read_structure(self._here, TableName("hr", name)))


def _keys(structure: Structure | None) -> dict[str, str]:
    parts = () if structure is None else structure.constraints
    return {part.name: part.definition for part in parts if part.is_foreign_key}


def _without(structure: Structure | None) -> Structure | None:
    if structure is None:
        return None
    kept = tuple(part for part in structure.constraints if not part.is_foreign_key)
    return replace(structure, role="", constraints=kept)
