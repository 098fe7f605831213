"""Records of tables that DDL makes or drops, in an apply server's transaction: they decide what is applied and copied.

A new table is recorded in the transaction that makes it. With the record its changes are applied, without it the table is
copied: there is no other truth.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.databases.postgres.connection import qualified
from headrace.databases.table_digest import TableDigest
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    import psycopg

    from headrace.databases.ports import DdlPlace
    from headrace.databases.postgres.destination.fencing import SessionIdentity
    from headrace.lcr.scn import ObjectNumber

__all__ = [
    "RecordOf",
    "RecordedTable",
    "SharedSequence",
    "creation_place",
    "forget",
    "is_being_copied",
    "numbered_records",
    "record_created",
    "record_left",
    "record_renamed",
    "recorded_states",
    "records_of",
    "referring_keys",
    "shared_sequences",
]

_IS_CURRENT = "i.recorded_in = 'headrace.instantiation'::pg_catalog.regclass"  # else the OIDs are from before a restore
_COPIED_AGAIN = "to be copied again"

_RECORDS = f"""SELECT i.topology, i.apply, i.source, i.identity FROM headrace.instantiation i
WHERE {_IS_CURRENT} AND i.relation = pg_catalog.to_regclass(%s)::pg_catalog.oid AND i.state <> 'LEFT' ORDER BY 1, 2, 3, 4"""
_STATES = f"""SELECT i.topology, i.apply, i.source, i.identity, i.state FROM headrace.instantiation i
WHERE {_IS_CURRENT} AND i.topology = %s AND i.apply = %s AND i.source = %s AND i.state <> 'LEFT'
  AND i.relation = pg_catalog.to_regclass(%s)::pg_catalog.oid ORDER BY i.identity"""
_OF_SOURCE = f"""SELECT i.topology, i.apply, i.source, i.identity, n.nspname::text, c.relname::text FROM headrace.instantiation i
LEFT JOIN pg_catalog.pg_class c ON c.oid = i.relation LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE {_IS_CURRENT} AND i.topology = %s AND i.apply = %s AND i.source = %s AND i.relation IS NOT NULL AND i.state <> 'LEFT'
ORDER BY 4"""
# The record of an earlier table of the name. One whose table was only renamed here stays.
_REPLACE = f"""DELETE FROM headrace.instantiation i WHERE i.topology = %(topology)s AND i.apply = %(apply)s AND i.source = %(source)s
  AND i.owner = %(owner)s AND i.name = %(name)s AND i.identity <> %(identity)s
  AND NOT coalesce({_IS_CURRENT} AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = i.relation
    AND c.oid <> pg_catalog.to_regclass(%(relation)s)::pg_catalog.oid), false)"""
_RECORD = """INSERT INTO headrace.instantiation (topology, apply, source, identity, owner, name, scn, state, row_count, digest,
    problem, changed_at, relation, recorded_in)
VALUES (%(topology)s, %(apply)s, %(source)s, %(identity)s, %(owner)s, %(name)s, %(scn)s, %(state)s, 0, %(digest)s, %(problem)s,
    pg_catalog.clock_timestamp(), pg_catalog.to_regclass(%(relation)s), 'headrace.instantiation'::pg_catalog.regclass)
ON CONFLICT (topology, apply, source, identity) DO UPDATE SET owner = excluded.owner, name = excluded.name, scn = excluded.scn,
    state = excluded.state, row_count = excluded.row_count, digest = excluded.digest, problem = excluded.problem,
    changed_at = excluded.changed_at, relation = excluded.relation, recorded_in = excluded.recorded_in"""
# The new name's earlier records go as in `_REPLACE`. The table, and its OID, stay.
_RENAME = """UPDATE headrace.instantiation SET owner = %(owner)s, name = %(name)s, changed_at = pg_catalog.clock_timestamp()
WHERE topology = %(topology)s AND apply = %(apply)s AND source = %(source)s AND identity = %(identity)s"""
_LEAVE = """UPDATE headrace.instantiation SET state = 'LEFT', changed_at = pg_catalog.clock_timestamp()
WHERE topology = %s AND apply = %s AND source = %s AND identity = %s"""
# With an SCN of 1, the copy is still to begin: of a table that DDL made in an error transaction.
_IS_COPIED = """SELECT state IN ('COPYING', 'COMPARING') AND scn > 1 FROM headrace.instantiation
WHERE topology = %s AND apply = %s AND source = %s AND identity = %s"""
_FORGET = tuple(
    f"DELETE FROM headrace.{table} WHERE topology = %s AND apply = %s AND source = %s AND identity = %s"
    for table in ("instantiation", "row_mark")
)
# Foreign keys of partitioned tables cannot be dropped alone, and those of a partition follow its table.
_REFERRING = f"""SELECT n.nspname::text, c.relname::text, k.conname::text FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class c ON c.oid = k.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE k.contype = 'f' AND k.confrelid = pg_catalog.to_regclass(%s)::pg_catalog.oid AND k.conrelid <> k.confrelid
  AND k.conparentid = 0 AND c.relkind = 'r' AND EXISTS (SELECT FROM headrace.instantiation i WHERE {_IS_CURRENT}
    AND i.topology = %s AND i.apply = %s AND i.source = %s AND i.relation = k.conrelid AND i.state <> 'LEFT')
ORDER BY 1, 2, 3"""

# Only of tables that may own them: with the same owner, in the same schema. Those of identity columns cannot pass on.
_SHARED = f"""SELECT DISTINCT ON (s.oid) n.nspname::text, s.relname::text, t.relname::text, a.attname::text
FROM pg_catalog.pg_depend o JOIN pg_catalog.pg_class s ON s.oid = o.objid AND s.relkind = 'S'
JOIN pg_catalog.pg_namespace n ON n.oid = s.relnamespace
JOIN pg_catalog.pg_depend u ON u.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND u.refclassid = o.classid AND u.refobjid = s.oid
JOIN pg_catalog.pg_attrdef d ON d.oid = u.objid AND d.adrelid <> o.refobjid
JOIN pg_catalog.pg_class t ON t.oid = d.adrelid AND t.relkind = 'r' AND t.relnamespace = s.relnamespace AND t.relowner = s.relowner
JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
WHERE o.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND o.refclassid = o.classid AND o.deptype = 'a'
  AND o.refobjid = pg_catalog.to_regclass(%s)::pg_catalog.oid AND EXISTS (SELECT FROM headrace.instantiation i WHERE {_IS_CURRENT}
    AND i.topology = %s AND i.apply = %s AND i.source = %s AND i.relation = d.adrelid AND i.state <> 'LEFT')
ORDER BY s.oid, d.adrelid, d.adnum"""
_MADE_AT = """SELECT i.topology, i.apply, i.source, i.identity FROM headrace.instantiation i
WHERE i.topology = %s AND i.apply = %s AND i.source = %s AND i.scn = %s AND i.state = 'DONE'"""
_CREATED_AT = """SELECT max(h."position") FROM headrace.ddl_history h WHERE h.topology = %s AND h.apply = %s AND h.source = %s
  AND h.order_scn = %s AND h.owner = %s AND h.name = %s AND h."position" < %s AND h.outcome IN ('APPLIED', 'PASSED OVER')
  AND h.command IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'CREATE SCHEMA')"""


class SharedSequence(NamedTuple):
    """A sequence that one table owns, and that another one's default uses; all are in one schema.

    Args:
        owner: the schema.
        name: of the sequence.
        table: that uses it.
        column: whose default uses it.
    """

    owner: str
    name: str
    table: str
    column: str


class RecordOf(NamedTuple):
    """Whose record of a table one is.

    Args:
        topology: its name.
        apply: the apply process.
        source: the site of the source's table.
        identity: of the source's table (`CapturedTable.identity`).
    """

    topology: str
    apply: str
    source: str
    identity: str

    def is_of(self, identity: SessionIdentity, source: str) -> bool:
        """Return whether it is an apply process's record of a table of this source."""
        return (self.topology, self.apply, self.source) == (identity.topology, identity.apply, source)

    def is_numbered(self, number: ObjectNumber) -> bool:
        """Return whether it is of the source's table with this number, which no later table of its name has."""
        return self.identity.split(".")[-2:-1] == [str(number)]  # the entry of the publication is behind it

    def __str__(self) -> str:
        return f"apply process {self.apply} of topology {self.topology} (from {self.source})"


class RecordedTable(NamedTuple):
    """A record of a table, and how far its copy is.

    Args:
        record: whose it is.
        state: of the copy, as in `Instantiation`.
    """

    record: RecordOf
    state: str


def records_of(connection: psycopg.Connection[Any], table: TableName) -> tuple[RecordOf, ...]:
    """Return all records of the table that has a name now, of any apply process; not those that left.

    Args:
        connection: connection of the session, in its transaction, with its own rights.
        table: its name.
    """
    return tuple(RecordOf(*row) for row in connection.execute(_RECORDS.encode(), (qualified(*table),)))


def recorded_states(
    connection: psycopg.Connection[Any], identity: SessionIdentity, source: str, table: TableName
) -> tuple[RecordedTable, ...]:
    """Return an apply process's records of the table that has a name now, as of tables of one source.

    Args:
        connection: as for `records_of`.
        identity: of the session.
        source: site of the source.
        table: its name here.
    """
    rows = connection.execute(_STATES.encode(), (identity.topology, identity.apply, source, qualified(*table)))
    return tuple(RecordedTable(RecordOf(*row[:4]), row[4]) for row in rows)


def numbered_records(
    connection: psycopg.Connection[Any], identity: SessionIdentity, source: str, number: ObjectNumber
) -> tuple[tuple[RecordOf, TableName | None], ...]:
    """Return an apply process's records of a table of the source, each with the name that the table has here now.

    Args:
        connection: as for `records_of`.
        identity: of the session.
        source: site of the source.
        number: the source's number of the table.

    Returns:
        With None if the table is gone.
    """
    rows = connection.execute(_OF_SOURCE.encode(), (identity.topology, identity.apply, source))
    found = [(RecordOf(*row[:4]), None if row[5] is None else TableName(*row[4:])) for row in rows]
    return tuple((record, name) for record, name in found if record.is_numbered(number))


def record_created(
    connection: psycopg.Connection[Any],
    identity: SessionIdentity,
    table: TableName,
    made: str,
    place: DdlPlace,
    *,
    is_in_order: bool,
) -> None:
    """Record a new table, and delete the record of an earlier table of its name.

    All its rows are in the transaction of the DDL LCR, or in later ones.

    Args:
        connection: as for `records_of`.
        identity: of the session.
        table: its name.
        made: identity of the source's table.
        place: of its DDL LCR.
        is_in_order: False: rows were left out meanwhile, so the table is to be copied.
    """
    values = {
        "topology": identity.topology,
        "apply": identity.apply,
        "source": place.source,
        "identity": made,
        "owner": table.owner,
        "name": table.name,
        "relation": qualified(*table),
        "scn": place.order_scn if is_in_order else 1,
        "state": "DONE" if is_in_order else "COPYING",
        # Without a digest, the record would be one of a table whose rows were kept (`Instantiation.is_kept`).
        "digest": str(TableDigest()) if is_in_order else "",
        "problem": "" if is_in_order else _COPIED_AGAIN,
    }
    for statement in (_REPLACE, _RECORD):
        connection.execute(statement.encode(), values)


def record_renamed(connection: psycopg.Connection[Any], record: RecordOf, name: TableName) -> None:
    """Record a table under its new name, and delete the records of earlier tables of that name.

    Args:
        connection: as for `records_of`.
        record: the table's record.
        name: that the table has now.
    """
    values = {**record._asdict(), "owner": name.owner, "name": name.name, "relation": qualified(*name)}
    for statement in (_REPLACE, _RENAME):
        connection.execute(statement.encode(), values)


def record_left(connection: psycopg.Connection[Any], record: RecordOf) -> None:
    """Record that changes of a table do not arrive any more: if it comes back, it is copied again.

    Args:
        connection: as for `records_of`.
        record: the table's record.
    """
    connection.execute(_LEAVE.encode(), record)


def is_being_copied(connection: psycopg.Connection[Any], record: RecordOf) -> bool:
    """Return whether a copy of a table has begun and is not finished.

    Args:
        connection: as for `records_of`.
        record: the table's record.
    """
    row = connection.execute(_IS_COPIED.encode(), record).fetchone()
    return row is not None and bool(row[0])


def forget(connection: psycopg.Connection[Any], record: RecordOf) -> None:
    """Delete a table's record and its mark.

    Args:
        connection: as for `records_of`.
        record: the record.
    """
    for statement in _FORGET:
        connection.execute(statement.encode(), record)


def referring_keys(
    connection: psycopg.Connection[Any], identity: SessionIdentity, source: str, table: TableName
) -> tuple[tuple[TableName, str], ...]:
    """Return the foreign keys that refer to a table, of other tables of the same source: their table, and their name.

    Args:
        connection: as for `records_of`.
        identity: of the session.
        source: site of the source.
        table: the table that they refer to.
    """
    rows = connection.execute(_REFERRING.encode(), (qualified(*table), identity.topology, identity.apply, source))
    return tuple((TableName(owner, name), key) for owner, name, key in rows)


def shared_sequences(
    connection: psycopg.Connection[Any], identity: SessionIdentity, source: str, table: TableName
) -> tuple[SharedSequence, ...]:
    """Return the sequences of a table that other tables of the same source use and may own, each with one of these.

    Args:
        connection: as for `records_of`.
        identity: of the session.
        source: site of the source.
        table: the table that owns them.
    """
    rows = connection.execute(_SHARED.encode(), (qualified(*table), identity.topology, identity.apply, source))
    return tuple(SharedSequence(*row) for row in rows)


def creation_place(
    connection: psycopg.Connection[Any],
    identity: SessionIdentity,
    table: TableName,
    number: ObjectNumber,
    place: DdlPlace,
) -> DdlPlace | None:
    """Return the place of the change that made a table, if that is in the transaction of another change; else None.

    Args:
        connection: as for `records_of`.
        identity: of the session.
        table: its name before the other change.
        number: the source's number of the table.
        place: of the other change.
    """
    of = (identity.topology, identity.apply, place.source, place.order_scn)
    if not any(RecordOf(*row).is_numbered(number) for row in connection.execute(_MADE_AT, of)):
        return None
    row = connection.execute(_CREATED_AT, (*of, *table, place.position)).fetchone()
    return None if row is None or row[0] is None else replace(place, position=row[0])
