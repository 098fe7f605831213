"""A PostgreSQL source's catalog: tables, partitions, replica identities, rights, types."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.databases.ports import NEVER_CAPTURED, CapturedTable, DictionaryTable, SourceTable
from headrace.databases.postgres.catalog.partitions import members_below, partition_rows
from headrace.lcr.batch import OldImage
from headrace.lcr.scn import ObjectNumber
from headrace.lcr.table_name import TableName
from headrace.rules.rule import RuleSet

__all__ = [
    "CatalogTable",
    "Leaf",
    "UnloggedTable",
    "captured_tables",
    "logged_generated",
    "may_read",
    "old_images",
    "publication_tables",
    "published_objects",
    "published_relations",
    "select_tables",
    "slot_name",
    "source_tables",
    "table_names",
    "unlogged_tables",
]

_NAME_BYTES_MAX = 63  # PostgreSQL's limit for identifiers
# From this version on, a publication can include the values of stored generated columns, never those of virtual ones.
GENERATED_FROM = 180000

# How long to wait for a lock on a partition to read which rows it holds. A COMMIT releases its locks within a
# millisecond of becoming visible, and a session that holds one for longer must not stop the log writer.
BOUNDS_WAIT_MS = 200


def slot_name(topology: str, site: str) -> str:
    """Return the name of the slot and of the publication: slots are cluster-wide, so it contains the site as well.

    Args:
        topology: its name.
        site: name of the source's site.

    Returns:
        At most 63 characters of a-z, 0-9 and _; with a hash unless both names consist of a-z and 0-9 and are short
        enough.
    """
    plain = f"headrace_{topology}_{site}"
    if re.fullmatch(r"[a-z0-9_]{1,63}", plain) and "_" not in topology + site:
        return plain
    # The hash covers replaced and cut characters, and where the topology's name ends.
    digest = hashlib.blake2b(f"{topology}\0{site}".encode(), digest_size=4).hexdigest()
    cleaned = re.sub(r"[^a-z0-9_]", "_", plain.lower())
    return f"{cleaned[: _NAME_BYTES_MAX - 9]}_{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A relation that stores rows: a plain table itself, or one partition.

    Args:
        number: oid.
        owner, name: its own.
        identity: `relreplident`: d, n, f or i.
        has_identity: UPDATE and DELETE can be published.
        has_primary_key: it would be an identity if no other one were set.
        is_unlogged: its changes are not in the log.
        generated_virtual: names of virtual generated columns.
        unlogged_identity: generated columns of its identity's key whose values are not in the log.
    """

    number: int
    owner: str
    name: str
    identity: str
    has_identity: bool
    has_primary_key: bool
    is_unlogged: bool
    generated_virtual: tuple[str, ...]
    unlogged_identity: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """A plain table or the root of a partitioned one.

    Args:
        number: oid.
        owner, name: as LCRs name it.
        is_partitioned: has partitions.
        has_primary_key: one that identifies rows at the moment of a change; later partitions have it, too.
        owner_role: its owner.
        is_superusers: its owner is a superuser.
        is_owned: this session's role owns it, or is a member of the owner.
        can_select: this role may read all of it.
        hides_rows: row-level security hides rows from this role.
        leaves: where rows are stored.
    """

    number: int
    owner: str
    name: str
    is_partitioned: bool
    has_primary_key: bool
    owner_role: str
    is_superusers: bool
    is_owned: bool
    can_select: bool
    hides_rows: bool
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloggedTable:
    """A table that a rule may select, but whose changes are in no log."""

    owner: str
    name: str


def _names(connection: psycopg.Connection[Any], persistence: str) -> list[tuple[int, str, str]]:
    rows = connection.execute(
        """
        SELECT c.oid::int8, n.nspname::text, c.relname::text
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = %s
          AND NOT n.nspname = ANY (%s) AND n.nspname !~ '^pg_(temp|toast_temp)_'
        ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
        """,
        (persistence, list(NEVER_CAPTURED)),
    ).fetchall()
    return [(int(number), owner, name) for number, owner, name in rows]


def table_names(connection: psycopg.Connection[Any]) -> tuple[tuple[str, str], ...]:
    """Return schema and name of every table that a rule could select."""
    return tuple((owner, name) for _, owner, name in _names(connection, "p"))


def _selected(rules: Iterable[object], owner: str, name: str) -> bool:
    return any(isinstance(r, RuleSet) and r.keeps(owner, name) for r in rules)


def unlogged_tables(connection: psycopg.Connection[Any], rules: Sequence[object]) -> tuple[UnloggedTable, ...]:
    """Return the unlogged tables that the rules would select.

    Args:
        connection: to the source.
        rules: rule sets (`headrace.rules.rule.RuleSet`); a table is selected when one of them keeps it.
    """
    names = _names(connection, "u")
    return tuple(UnloggedTable(owner=owner, name=name) for _, owner, name in names if _selected(rules, owner, name))


def select_tables(connection: psycopg.Connection[Any], rules: Sequence[object]) -> tuple[CatalogTable, ...]:
    """Return every permanent plain table and partitioned root that a rule set selects, by owner and name.

    Args:
        connection: to the source; its role's rights and memberships are part of the answer.
        rules: rule sets (`headrace.rules.rule.RuleSet`); a table is selected when one of them keeps it.
    """
    wanted = [number for number, owner, name in _names(connection, "p") if _selected(rules, owner, name)]
    if not wanted:
        return ()
    rows = connection.execute(
        """
        SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind = 'p', r.rolname::text,
               pg_has_role(c.relowner, 'USAGE'),
               has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
               row_security_active(c.oid), r.rolsuper,
               EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
        WHERE c.oid = ANY (%s)
        ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
        """,
        (wanted,),
    ).fetchall()
    leaves = _leaves(connection, wanted)
    return tuple(
        CatalogTable(
            number=int(row[0]),
            owner=row[1],
            name=row[2],
            is_partitioned=row[3],
            owner_role=row[4],
            is_owned=row[5],
            can_select=row[6],
            hides_rows=row[7],
            is_superusers=row[8],
            has_primary_key=row[9],
            leaves=tuple(leaves.get(int(row[0]), ())),
        )
        for row in rows
    )


def _leaves(connection: psycopg.Connection[Any], roots: list[int]) -> dict[int, list[Leaf]]:
    virtual = "a.attgenerated = 'v'" if connection.info.server_version >= 180000 else "false"
    rows = connection.execute(
        f"""
        SELECT root.number::int8, c.oid::int8, n.nspname::text, c.relname::text, c.relreplident::text,
               CASE c.relreplident
                   WHEN 'f' THEN true
                   -- a deferrable primary key identifies nothing at the moment of a change
                   WHEN 'd' THEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate)
                   WHEN 'i' THEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident AND i.indisvalid)
                   ELSE false
               END,
               EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate AND NOT EXISTS (
                   SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
                     AND a.attgenerated <> '' AND a.attgenerated::text <> ALL (%(logged)s))),
               c.relpersistence = 'u',
               ARRAY(SELECT a.attname::text FROM pg_attribute a
                     WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND {virtual} ORDER BY a.attnum),
               ARRAY(SELECT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
                     WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
                       AND a.attgenerated <> '' AND a.attgenerated::text <> ALL (%(logged)s) ORDER BY a.attnum)
        FROM unnest(%(roots)s::oid[]) AS root (number)
        CROSS JOIN LATERAL {members_below("root.number")} AS member
        JOIN pg_class c ON c.oid = member.number AND c.relkind = 'r'
        JOIN pg_namespace n ON n.oid = c.relnamespace
        GROUP BY root.number, c.oid, n.nspname
        ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
        """,
        {"logged": list(logged_generated(connection.info.server_version)), "roots": roots},
    ).fetchall()
    leaves: dict[int, list[Leaf]] = {}
    for row in rows:
        leaf = Leaf(
            number=int(row[1]),
            owner=row[2],
            name=row[3],
            identity=row[4],
            has_identity=row[5],
            has_primary_key=row[6],
            is_unlogged=row[7],
            generated_virtual=tuple(row[8]),
            unlogged_identity=tuple(row[9]),
        )
        leaves.setdefault(int(row[0]), []).append(leaf)
    return leaves


def old_images(connection: psycopg.Connection[Any], roots: Sequence[int]) -> dict[int, OldImage]:
    """Return what the log has of old rows of each partitioned table, by its number: the least that one of its partitions has.

    A table without partitions has no rows and no entry. Partitions, including later ones, do not inherit the table's
    replica identity.

    Args:
        connection: to the source.
        roots: numbers of tables.
    """
    rows = connection.execute(
        f"""
        SELECT c.oid::int8, array_agg(DISTINCT leaf.relreplident::text) FILTER (WHERE leaf.oid IS NOT NULL)
        FROM pg_class c LEFT JOIN LATERAL {members_below("c.oid")} AS member ON true
        LEFT JOIN pg_class leaf ON leaf.oid = member.number AND leaf.relkind = 'r'
        WHERE c.oid = ANY (%s::oid[]) AND c.relkind = 'p' GROUP BY c.oid
        """,
        (list(roots),),
    )
    return {
        int(number): OldImage.NONE if "n" in there else OldImage.FULL if there == ["f"] else OldImage.KEY
        for number, there in rows
        if there
    }


def logged_generated(version: int) -> tuple[str, ...]:
    """Return the kinds of generated columns (`pg_attribute.attgenerated`) in the log, as `publication_steps` requests them.

    Args:
        version: of the server, as `server_version_num`.
    """
    return ("s",) if version >= GENERATED_FROM else ()


def source_tables(connection: psycopg.Connection[Any], tables: Sequence[CatalogTable]) -> tuple[SourceTable, ...]:
    """Return the same tables with the columns that are in the log, and sizes.

    Args:
        connection: to the source.
        tables: from `select_tables`. A table dropped meanwhile is skipped.

    Returns:
        In the order of `tables`; size and row estimate of a partitioned table cover all its partitions.
    """
    rows = connection.execute(
        f"""
        SELECT root.number::int8,
               ARRAY(SELECT a.attname::text FROM pg_attribute a
                     WHERE a.attrelid = root.number AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated::text = ANY ('{{""}}' || %(logged)s::text[])
                     ORDER BY a.attnum),
               size.row_estimate::int8, size.bytes::int8,
               ARRAY(SELECT a.attname::text FROM pg_attribute a
                     WHERE a.attrelid = root.number AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated::text = ANY (%(logged)s)),
               ARRAY(SELECT a.attname::text FROM pg_attribute a
                     WHERE a.attrelid = root.number AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> '' AND a.attgenerated::text <> ALL (%(logged)s))
        FROM unnest(%(tables)s::oid[]) AS root (number)
        CROSS JOIN LATERAL (
            -- reltuples is -1 before the first ANALYZE: then guess by size, 100 bytes a row
            SELECT coalesce(sum(CASE WHEN c.reltuples >= 0 THEN c.reltuples ELSE pg_table_size(c.oid) / 100 END), 0),
                   coalesce(sum(pg_table_size(c.oid)), 0)
            FROM {members_below("root.number")} AS member
            JOIN pg_class c ON c.oid = member.number AND c.relkind = 'r'
        ) AS size (row_estimate, bytes)
        """,
        {
            "tables": [table.number for table in tables],
            "logged": list(logged_generated(connection.info.server_version)),
        },
    ).fetchall()
    facts = {int(row[0]): row for row in rows}
    return tuple(
        SourceTable(
            owner=table.owner,
            name=table.name,
            columns=tuple(facts[table.number][1]),
            is_partitioned=table.is_partitioned,
            row_estimate=int(facts[table.number][2]),
            bytes=int(facts[table.number][3]),
            computed=tuple(facts[table.number][4]),
            unlogged=tuple(facts[table.number][5]),
        )
        for table in tables
        if table.number in facts
    )


def publication_tables(connection: psycopg.Connection[Any], publication: str) -> dict[int, tuple[str, str]]:
    """Return the tables that a publication names, as oid -> (schema, name); empty when no such publication exists.

    Args:
        connection: to the source.
        publication: its name, from `slot_name`.
    """
    rows = connection.execute(
        """
        SELECT c.oid::int8, n.nspname::text, c.relname::text
        FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
        JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE p.pubname = %s
        ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
        """,
        (publication,),
    ).fetchall()
    return {int(number): (owner, name) for number, owner, name in rows}


def captured_tables(connection: psycopg.Connection[Any], publication: str) -> tuple[CapturedTable, ...]:
    """Return the tables that a publication names, each with its identity; not the log of DDL, which is Headrace's.

    A table is `is_made` if the event trigger published it.

    The number of the publication's entry is part of the identity: a table that leaves the publication and returns gets
    another one.

    Args:
        connection: to the source.
        publication: its name, from `slot_name`; a missing one names no table.
    """
    rows = connection.execute(
        f"""
        SELECT format('%%s.%%s.%%s.%%s', s.system_identifier, d.oid, c.oid, r.oid), n.nspname::text, c.relname::text,
               ARRAY(SELECT member.number::int8 FROM {members_below("c.oid")} AS member
                     ORDER BY member.number)
        FROM pg_control_system() s
        JOIN pg_database d ON d.datname = current_database()
        JOIN pg_publication p ON p.pubname = %s
        JOIN pg_publication_rel r ON r.prpubid = p.oid
        JOIN pg_class c ON c.oid = r.prrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname <> 'headrace_ddl'
        ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
        """,
        (publication,),
    ).fetchall()
    # Afterwards: an entry that was seen has its row by now, and keeps it if the table is dropped meanwhile.
    made = _made_entries(connection, [int(row[0].rpartition(".")[2]) for row in rows])
    return tuple(
        CapturedTable(
            identity=row[0],
            owner=row[1],
            name=row[2],
            object_numbers=tuple(ObjectNumber(int(n)) for n in row[3]),
            is_made=tuple(row[0].split(".")[2:]) in made,
        )
        for row in rows
    )


def may_read(connection: psycopg.Connection[Any], table: TableName) -> bool | None:
    """Return whether this session's role may read a table; None: there is none of that name.

    Args:
        connection: to the source.
        table: its name.
    """
    row = connection.execute(
        """
        SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = %s AND c.relkind = 'r'
        """,
        table,
    ).fetchone()
    return None if row is None else bool(row[0])


def _made_entries(connection: psycopg.Connection[Any], entries: Sequence[int]) -> set[tuple[str, str]]:
    """Return table and entry, as text, of those that the event trigger published; none where this role may not know.

    Args:
        connection: to the source.
        entries: numbers of the publication's entries.
    """
    if not may_read(connection, TableName("headrace_ddl", "made")):
        return set()
    query = "SELECT relation::text, entry::text FROM headrace_ddl.made WHERE entry = ANY (%s::oid[])"
    with contextlib.suppress(psycopg.errors.UndefinedTable), connection.transaction():  # it may just be dropped
        return set(connection.execute(query, (list(entries),)).fetchall())
    return set()


def published_objects(connection: psycopg.Connection[Any], publication: str) -> tuple[DictionaryTable, ...]:
    """Return every table that changes can come from, partitions with the root that LCRs name.

    A partition that is partitioned itself is not included: the log never names it, not even when the whole table is
    truncated. The rows of a partition that is locked for `BOUNDS_WAIT_MS` remain unknown.

    Args:
        connection: to the source, without a transaction.
        publication: its name, from `slot_name`; a missing one names no table.
    """
    rows = connection.execute(
        f"""
        SELECT c.oid::int8, rn.nspname::text, rc.relname::text, n.nspname::text, c.relname::text, rc.oid::int8,
               ARRAY(SELECT a.attname::text FROM pg_attribute a
                     WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated::text = ANY (%s) ORDER BY a.attnum)
        FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
        JOIN pg_class rc ON rc.oid = r.prrelid JOIN pg_namespace rn ON rn.oid = rc.relnamespace
        CROSS JOIN LATERAL {members_below("rc.oid")} AS member
        JOIN pg_class c ON c.oid = member.number JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE p.pubname = %s AND (c.relkind = 'r' OR c.oid = rc.oid)
        ORDER BY c.oid
        """,
        (list(logged_generated(connection.info.server_version)), publication),
    ).fetchall()
    held = _rows_held(connection, [int(row[0]) for row in rows if row[0] != row[5]])
    return tuple(
        DictionaryTable(
            object_number=ObjectNumber(int(row[0])),
            owner=row[1],
            name=row[2],
            stored_owner=row[3],
            stored_name=row[4],
            rows=held.get(int(row[0]), "") if row[1:3] != row[3:5] else "",
            root_number=ObjectNumber(int(row[5])),
            computed=tuple(row[6]),
        )
        for row in rows
    )


def _rows_held(connection: psycopg.Connection[Any], partitions: Sequence[int]) -> dict[int, str]:
    """Return which rows partitions hold.

    Partitions that cannot be read without waiting for a session's lock are skipped.
    """
    if not partitions:
        return {}
    with contextlib.suppress(psycopg.errors.LockNotAvailable):
        return _partition_rows_soon(connection, partitions)
    # PostgreSQL opens the partition and all tables above it for this.
    locked = connection.execute(
        """
        WITH RECURSIVE held (number) AS (
            SELECT relation FROM pg_locks WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock'
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            UNION SELECT i.inhrelid FROM held JOIN pg_inherits i ON i.inhparent = held.number
        )
        SELECT number::int8 FROM held
        """
    ).fetchall()
    free = set(partitions).difference(int(number) for (number,) in locked)
    with contextlib.suppress(psycopg.errors.LockNotAvailable):
        return _partition_rows_soon(connection, sorted(free))
    return {}


def _partition_rows_soon(connection: psycopg.Connection[Any], partitions: Sequence[int]) -> dict[int, str]:
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = {BOUNDS_WAIT_MS}")
        return partition_rows(connection, partitions)


def published_relations(connection: psycopg.Connection[Any], publication: str) -> list[int]:
    """Return the oids of every table that changes can come from, without waiting for a lock.

    Args:
        connection: to the source.
        publication: its name, from `slot_name`.
    """
    rows = connection.execute(
        f"""
        SELECT DISTINCT member.number::int8 FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
        CROSS JOIN LATERAL {members_below("r.prrelid")} AS member WHERE p.pubname = %s
        """,
        (publication,),
    ).fetchall()
    return [int(number) for (number,) in rows]
