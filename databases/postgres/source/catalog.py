"""What a PostgreSQL source's catalog says: tables, partitions, replica identities, rights, types."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from databases.ports import CapturedTable, DictionaryTable, SourceTable
from databases.postgres.partitions import partition_rows
from rules.rule import RuleSet
from streams.scn import ObjectNumber

__all__ = [
    "BinaryObstacle", "CatalogTable", "Leaf", "UnloggedTable", "binary_obstacles", "captured_tables", "publication_tables",
    "published_objects", "published_relations", "select_tables", "slot_name", "source_tables", "table_names", "unlogged_tables",
]

_NAME_BYTES_MAX = 63  # PostgreSQL's limit for identifiers
# Never captured, whatever a rule says: the system's tables and our own.
_EXCLUDED_SCHEMAS = ["pg_catalog", "information_schema", "pg_toast", "headrace"]
_FIRST_NUMBER_NOT_FIXED = 10_000  # type numbers from here on differ from cluster to cluster

# Types whose binary form is a number of the source's own catalog.
_CATALOG_NUMBER_TYPES = (
    "regproc", "regprocedure", "regoper", "regoperator", "regclass", "regtype", "regrole", "regnamespace", "regconfig",
    "regdictionary", "regcollation",
)
# PostgreSQL's receive functions of these refuse the form its send functions give an empty value.
_NOT_RECEIVED_TYPES = ("int2vector", "oidvector")


def slot_name(topology: str, site: str) -> str:
    """Name of the slot and of the publication: slots are known cluster-wide, so it contains the site as well.

    Args:
        topology: its name.
        site: name of the source's site.

    Returns:
        At most 63 characters of a-z, 0-9 and _; with a hash unless both names are of a-z and 0-9 and short enough.
    """
    plain = f"headrace_{topology}_{site}"
    if re.fullmatch(r"[a-z0-9_]{1,63}", plain) and "_" not in topology + site:
        return plain
    # What was replaced or cut, and where the topology's name ends, is in the hash.
    digest = hashlib.blake2b(f"{topology}\0{site}".encode(), digest_size=4).hexdigest()
    cleaned = re.sub(r"[^a-z0-9_]", "_", plain.lower())
    return f"{cleaned[: _NAME_BYTES_MAX - 9]}_{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Where rows are stored: a plain table itself, or one partition.

    Args:
        number: oid.
        owner, name: its own.
        identity: `relreplident`: d, n, f or i.
        has_identity: UPDATE and DELETE can be published.
        is_unlogged: its changes are not in the log.
        generated_virtual: names of virtual generated columns.
    """

    number: int
    owner: str
    name: str
    identity: str
    has_identity: bool
    is_unlogged: bool
    generated_virtual: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """A plain table or the root of a partitioned one.

    Args:
        number: oid.
        owner, name: as LCRs name it.
        is_partitioned: has partitions.
        owner_role: who owns it.
        is_superusers: that is a superuser.
        is_owned: this session's role owns it, or is a member of the role that does.
        can_select: this role may read all of it.
        hides_rows: row-level security hides rows from this role.
        leaves: where rows are stored.
    """

    number: int
    owner: str
    name: str
    is_partitioned: bool
    owner_role: str
    is_superusers: bool
    is_owned: bool
    can_select: bool
    hides_rows: bool
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloggedTable:
    """A table that a rule may mean, but whose changes are in no log."""

    owner: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryObstacle:
    """A column that cannot travel in binary form, and why."""

    owner: str
    table: str
    column: str
    type_name: str
    reason: str


def _names(connection: psycopg.Connection[Any], persistence: str) -> list[tuple[int, str, str]]:
    rows = connection.execute(
        """
        SELECT c.oid::int8, n.nspname::text, c.relname::text
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = %s
          AND NOT n.nspname = ANY (%s) AND n.nspname !~ '^pg_(temp|toast_temp)_'
        ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
        """,
        (persistence, _EXCLUDED_SCHEMAS),
    ).fetchall()
    return [(int(number), owner, name) for number, owner, name in rows]


def table_names(connection: psycopg.Connection[Any]) -> tuple[tuple[str, str], ...]:
    """Schema and name of every table that a rule could select."""
    return tuple((owner, name) for _, owner, name in _names(connection, "p"))


def _selected(rules: Iterable[object], owner: str, name: str) -> bool:
    return any(isinstance(r, RuleSet) and r.keeps(owner, name) for r in rules)


def unlogged_tables(connection: psycopg.Connection[Any], rules: Sequence[object]) -> tuple[UnloggedTable, ...]:
    """Unlogged tables that the rules would select.

    Args:
        connection: to the source.
        rules: rule sets (`rules.rule.RuleSet`); a table is selected when one of them keeps it.
    """
    names = _names(connection, "u")
    return tuple(UnloggedTable(owner=owner, name=name) for _, owner, name in names if _selected(rules, owner, name))


def select_tables(connection: psycopg.Connection[Any], rules: Sequence[object]) -> tuple[CatalogTable, ...]:
    """Every permanent plain table and partitioned root that a rule set selects, by owner and name.

    Args:
        connection: to the source; its role's rights and memberships are part of the answer.
        rules: rule sets (`rules.rule.RuleSet`); a table is selected when one of them keeps it.
    """
    wanted = [number for number, owner, name in _names(connection, "p") if _selected(rules, owner, name)]
    if not wanted:
        return ()
    rows = connection.execute(
        """
        SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind = 'p', r.rolname::text,
               pg_has_role(c.relowner, 'USAGE'),
               has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
               row_security_active(c.oid), r.rolsuper
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
        WHERE c.oid = ANY (%s)
        ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
        """,
        (wanted,),
    ).fetchall()
    leaves = _leaves(connection, wanted)
    return tuple(
        CatalogTable(
            number=int(row[0]), owner=row[1], name=row[2], is_partitioned=row[3], owner_role=row[4], is_owned=row[5],
            can_select=row[6], hides_rows=row[7], is_superusers=row[8], leaves=tuple(leaves.get(int(row[0]), ())),
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
               c.relpersistence = 'u',
               ARRAY(SELECT a.attname::text FROM pg_attribute a
                     WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND {virtual} ORDER BY a.attnum)
        FROM unnest(%s::oid[]) AS root (number)
        CROSS JOIN LATERAL (SELECT root.number AS number, 0 AS level
                            UNION SELECT t.relid, t.level FROM pg_partition_tree(root.number) t) AS member
        JOIN pg_class c ON c.oid = member.number AND c.relkind = 'r'
        JOIN pg_namespace n ON n.oid = c.relnamespace
        GROUP BY root.number, c.oid, n.nspname
        ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
        """,
        (roots,),
    ).fetchall()
    leaves: dict[int, list[Leaf]] = {}
    for row in rows:
        leaf = Leaf(
            number=int(row[1]), owner=row[2], name=row[3], identity=row[4], has_identity=row[5], is_unlogged=row[6],
            generated_virtual=tuple(row[7]),
        )
        leaves.setdefault(int(row[0]), []).append(leaf)
    return leaves


def source_tables(connection: psycopg.Connection[Any], tables: Sequence[CatalogTable]) -> tuple[SourceTable, ...]:
    """The same tables with columns and sizes. Generated columns are left out: nobody may write them.

    Args:
        connection: to the source.
        tables: from `select_tables`. One that was dropped meanwhile is left out.

    Returns:
        In the order of `tables`; size and row estimate of a partitioned one are those of all its partitions.
    """
    rows = connection.execute(
        """
        SELECT root.number::int8,
               ARRAY(SELECT a.attname::text FROM pg_attribute a
                     WHERE a.attrelid = root.number AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
                     ORDER BY a.attnum),
               size.row_estimate::int8, size.bytes::int8
        FROM unnest(%s::oid[]) AS root (number)
        CROSS JOIN LATERAL (
            -- reltuples is -1 before the first ANALYZE: then guess by size, 100 bytes a row
            SELECT coalesce(sum(CASE WHEN c.reltuples >= 0 THEN c.reltuples ELSE pg_table_size(c.oid) / 100 END), 0),
                   coalesce(sum(pg_table_size(c.oid)), 0)
            FROM (SELECT root.number AS number UNION SELECT t.relid FROM pg_partition_tree(root.number) t) AS member
            JOIN pg_class c ON c.oid = member.number AND c.relkind = 'r'
        ) AS size (row_estimate, bytes)
        """,
        ([table.number for table in tables],),
    ).fetchall()
    facts = {int(row[0]): row for row in rows}
    return tuple(
        SourceTable(
            owner=table.owner, name=table.name, columns=tuple(facts[table.number][1]), is_partitioned=table.is_partitioned,
            row_estimate=int(facts[table.number][2]), bytes=int(facts[table.number][3]),
        )
        for table in tables
        if table.number in facts
    )


def publication_tables(connection: psycopg.Connection[Any], publication: str) -> dict[int, tuple[str, str]]:
    """Tables that a publication names, as oid -> (schema, name); empty when there is no such publication.

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
    """Tables that a publication names, each with its identity.

    The number of the publication's entry is part of it: a table that leaves the publication and comes back has another one.

    Args:
        connection: to the source.
        publication: its name, from `slot_name`; one that does not exist names no table.
    """
    rows = connection.execute(
        """
        SELECT format('%%s.%%s.%%s.%%s', s.system_identifier, d.oid, c.oid, r.oid), n.nspname::text, c.relname::text,
               ARRAY(SELECT member.number::int8
                     FROM (SELECT c.oid AS number UNION SELECT t.relid FROM pg_partition_tree(c.oid) t) AS member
                     ORDER BY member.number)
        FROM pg_control_system() s
        JOIN pg_database d ON d.datname = current_database()
        JOIN pg_publication p ON p.pubname = %s
        JOIN pg_publication_rel r ON r.prpubid = p.oid
        JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
        """,
        (publication,),
    ).fetchall()
    return tuple(
        CapturedTable(identity=row[0], owner=row[1], name=row[2], object_numbers=tuple(ObjectNumber(int(n)) for n in row[3]))
        for row in rows
    )


def published_objects(connection: psycopg.Connection[Any], publication: str) -> tuple[DictionaryTable, ...]:
    """Every table that changes can come from, partitions with the root that LCRs name.

    A partition that is partitioned itself is none: the log never names it, not even when all of the table is truncated.

    Args:
        connection: to the source.
        publication: its name, from `slot_name`; one that does not exist names no table.
    """
    rows = connection.execute(
        """
        SELECT c.oid::int8, rn.nspname::text, rc.relname::text, n.nspname::text, c.relname::text, rc.oid::int8
        FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
        JOIN pg_class rc ON rc.oid = r.prrelid JOIN pg_namespace rn ON rn.oid = rc.relnamespace
        CROSS JOIN LATERAL (SELECT rc.oid AS number UNION SELECT t.relid FROM pg_partition_tree(rc.oid) t) AS member
        JOIN pg_class c ON c.oid = member.number JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE p.pubname = %s AND (c.relkind = 'r' OR c.oid = rc.oid)
        ORDER BY c.oid
        """,
        (publication,),
    ).fetchall()
    held = partition_rows(connection, [int(row[0]) for row in rows])
    return tuple(
        DictionaryTable(
            object_number=ObjectNumber(int(row[0])), owner=row[1], name=row[2], stored_owner=row[3], stored_name=row[4],
            rows=held.get(int(row[0]), "") if row[1:3] != row[3:5] else "", root_number=ObjectNumber(int(row[5])),
        )
        for row in rows
    )


def published_relations(connection: psycopg.Connection[Any], publication: str) -> list[int]:
    """Oids of every table that changes can come from.

    Args:
        connection: to the source.
        publication: its name, from `slot_name`.
    """
    return [int(table.object_number) for table in published_objects(connection, publication)]


def binary_obstacles(connection: psycopg.Connection[Any], relations: Sequence[int]) -> tuple[BinaryObstacle, ...]:
    """Columns of the tables that keep a stream from being binary, one line per column.

    The server raises an error, and the slot is jammed, when it meets a type without a send function inside an
    array, range or composite. Numbers of the source's catalog mean nothing elsewhere: those in reg* values, and
    those that the binary form of arrays and composites carries of their elements' user-defined types.

    Args:
        connection: to the source.
        relations: oids of tables and partitions, see `published_relations`.
    """
    rows = connection.execute(
        """
        WITH RECURSIVE walk (top, type, part_of) AS (
            SELECT DISTINCT a.atttypid, a.atttypid, 'column'
            FROM pg_attribute a
            WHERE a.attrelid = ANY (%(relations)s) AND a.attnum > 0 AND NOT a.attisdropped
          UNION
            SELECT walk.top, part.type, part.part_of
            FROM walk JOIN pg_type t ON t.oid = walk.type
            CROSS JOIN LATERAL (
                SELECT t.typelem, 'array' WHERE t.typelem <> 0 AND t.typsubscript = 'array_subscript_handler'::regproc
                UNION ALL SELECT r.rngsubtype, 'range' FROM pg_range r WHERE r.rngtypid = t.oid
                UNION ALL SELECT r.rngtypid, 'range' FROM pg_range r WHERE r.rngmultitypid = t.oid
                UNION ALL SELECT t.typbasetype, walk.part_of WHERE t.typtype = 'd'
                UNION ALL SELECT a.atttypid, 'composite' FROM pg_attribute a
                          WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
            ) AS part (type, part_of)
        ), bad (top, reason) AS (
            SELECT walk.top, CASE
                WHEN t.oid < %(fixed)s AND t.typname = ANY (%(numbers)s)
                    THEN format('%%s is a number of this database''s catalog', t.typname)
                WHEN t.oid < %(fixed)s AND t.typname = ANY (%(not_received)s)
                    THEN format('an empty %%s is not taken back in the binary form it is sent in', t.typname)
                WHEN t.typsend = 0 AND (walk.part_of <> 'column' OR t.oid >= %(fixed)s)
                    THEN format('%%s has no binary form', format_type(t.oid, NULL))
                WHEN walk.part_of IN ('array', 'composite') AND t.oid >= %(fixed)s
                    THEN format('the number of %%s inside it is another one elsewhere', format_type(t.oid, NULL))
            END
            FROM walk JOIN pg_type t ON t.oid = walk.type
        )
        SELECT n.nspname::text, c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), min(bad.reason)
        FROM pg_attribute a JOIN bad ON bad.top = a.atttypid AND bad.reason IS NOT NULL
        JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE a.attrelid = ANY (%(relations)s) AND a.attnum > 0 AND NOT a.attisdropped
        GROUP BY n.nspname, c.relname, a.attname, a.attnum, a.atttypid, a.atttypmod
        ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C", a.attnum
        """,
        {"relations": list(relations), "numbers": list(_CATALOG_NUMBER_TYPES), "not_received": list(_NOT_RECEIVED_TYPES),
         "fixed": _FIRST_NUMBER_NOT_FIXED},
    ).fetchall()
    return tuple(
        BinaryObstacle(owner=row[0], table=row[1], column=row[2], type_name=row[3], reason=row[4]) for row in rows
    )
