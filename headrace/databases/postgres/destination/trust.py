"""Roles that can act as the applying role: owners of the functions that its statements run, and of the schema headrace.

Functions of checks, index expressions, partition keys, defaults, generated columns, domains, ranges, policies, casts,
triggers and rules run as the role that writes. A role that may attach such a function, or owns one, has the writer's
rights. Functions that these call in turn are not examined. The owner of a schema can replace every table in it by
their own.

The connections are sessions of the applying role.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg

from headrace.databases.ports import Finding
from headrace.databases.postgres.catalog.destination_tables import CatalogTable, is_reserved
from headrace.databases.postgres.catalog.nested_types import parts_of
from headrace.databases.postgres.catalog.partitions import members_below
from headrace.databases.postgres.connection import qualified, quote
from headrace.lcr.table_name import TableName, remark

__all__ = [
    "SCHEMA_OWNER",
    "changes_of_owner",
    "functions_of_others",
    "may_act",
    "owner_findings",
    "owners_of_schema",
    "reserved_findings",
    "schema_owner_findings",
    "schemas_owner_findings",
]

_NAMED_MAX = 3  # names in a message; an operator knows the rest of the schema

# Superusers and the database's owner can do everything anyway.
_IS_OTHER = """NOT {role}.rolsuper AND {role}.rolname <> current_user
    AND {role}.oid <> (SELECT datdba FROM pg_catalog.pg_database WHERE datname = current_database())"""
SCHEMA_OWNER = f"""(SELECT r.rolname FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner
    WHERE n.nspname = 'headrace' AND {_IS_OTHER.format(role="r")})"""

# Objects that neither the current role nor a role whose rights it has owns, plus the objects of one given role.
_OF_OTHERS = """
SELECT kind, name, pg_catalog.pg_get_userbyid(owner) FROM (
  SELECT 0 AS at, 'SCHEMA' AS kind, pg_catalog.quote_ident(nspname) AS name, nspowner AS owner FROM pg_catalog.pg_namespace WHERE nspname = 'headrace'
  UNION ALL SELECT 1, CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, pg_catalog.format('headrace.%%I', relname), relowner
    FROM pg_catalog.pg_class WHERE relnamespace = pg_catalog.to_regnamespace('headrace') AND relkind IN ('r', 'v')
  UNION ALL SELECT 2, 'FUNCTION', oid::pg_catalog.regprocedure::text, proowner
    FROM pg_catalog.pg_proc WHERE pronamespace = pg_catalog.to_regnamespace('headrace')
) o WHERE owner = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = %s) OR NOT pg_catalog.pg_has_role(owner, 'USAGE') ORDER BY at, name
"""

_MAY_ACT = f"SELECT NOT ({_IS_OTHER.format(role='r')}) FROM pg_catalog.pg_roles r WHERE r.rolname = %s"
_NUMBER = "SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid"

# Functions of other owners, for each table. An owner of the schema headrace is left out here: they are the
# administrator, or `schema_owner_findings` refuses them.
_OTHERS_FUNCTIONS = f"""
WITH RECURSIVE tables AS (SELECT root, member.number AS oid FROM unnest(%s::oid[]) AS wanted (root)
                CROSS JOIN LATERAL {members_below("wanted.root")} AS member),
types (root, oid) AS (
  SELECT t.root, a.atttypid FROM tables t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
  UNION SELECT w.root, part.number FROM types w JOIN pg_catalog.pg_type t ON t.oid = w.oid CROSS JOIN LATERAL {parts_of("t")} AS part
  WHERE part.number <> 0),
using_functions (root, kind, classid, objid) AS (
  SELECT t.root, 'checks', 'pg_catalog.pg_constraint'::regclass, c.oid FROM tables t JOIN pg_catalog.pg_constraint c ON c.contype = 'c' AND c.conrelid = t.oid
  UNION ALL SELECT t.root, 'domains', 'pg_catalog.pg_constraint'::regclass, c.oid FROM types t JOIN pg_catalog.pg_constraint c ON c.contypid = t.oid
  UNION ALL SELECT t.root, 'indexes', 'pg_catalog.pg_class'::regclass, i.indexrelid FROM tables t JOIN pg_catalog.pg_index i ON i.indrelid = t.oid
  UNION ALL SELECT t.root, 'partition keys', 'pg_catalog.pg_class'::regclass, p.partrelid FROM tables t JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = t.oid
  UNION ALL SELECT t.root, CASE a.attgenerated WHEN '' THEN 'defaults' ELSE 'generated columns' END, 'pg_catalog.pg_attrdef'::regclass, d.oid
    FROM tables t JOIN pg_catalog.pg_attrdef d ON d.adrelid = t.oid JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
  UNION ALL SELECT t.root, 'policies', 'pg_catalog.pg_policy'::regclass, p.oid FROM tables t JOIN pg_catalog.pg_policy p ON p.polrelid = t.oid
  UNION ALL SELECT t.root, 'rules', 'pg_catalog.pg_rewrite'::regclass, w.oid
    FROM tables t JOIN pg_catalog.pg_rewrite w ON w.ev_class = t.oid AND w.ev_enabled IN ('A', 'R')),
called (root, kind, function) AS (
  SELECT u.root, u.kind, coalesce(o.oprcode::oid, d.refobjid) FROM using_functions u JOIN pg_catalog.pg_depend d ON (d.classid, d.objid) = (u.classid, u.objid)
    LEFT JOIN pg_catalog.pg_operator o ON d.refclassid = 'pg_catalog.pg_operator'::regclass AND o.oid = d.refobjid
    WHERE d.refclassid IN ('pg_catalog.pg_proc'::regclass, 'pg_catalog.pg_operator'::regclass)
  UNION SELECT t.root, 'triggers', g.tgfoid FROM tables t JOIN pg_catalog.pg_trigger g ON g.tgrelid = t.oid AND NOT g.tgisinternal AND g.tgenabled IN ('A', 'R')
  UNION SELECT t.root, 'ranges', f.oid FROM types t JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid, unnest(ARRAY[r.rngcanonical::oid, r.rngsubdiff::oid]) AS f (oid)
  UNION SELECT t.root, 'casts', c.castfunc FROM types t JOIN pg_catalog.pg_cast c ON c.castfunc <> 0 AND (c.castsource = t.oid OR c.casttarget = t.oid))
SELECT n.nspname::text, t.relname::text, o.rolname::text, {_IS_OTHER.format(role="o")}, c.kind, f.oid::pg_catalog.regprocedure::text, p.rolname::text,
       pg_catalog.pg_get_userbyid((SELECT datdba FROM pg_catalog.pg_database WHERE datname = current_database()))::text
FROM called c JOIN pg_catalog.pg_proc f ON f.oid = c.function JOIN pg_catalog.pg_roles p ON p.oid = f.proowner
JOIN pg_catalog.pg_class t ON t.oid = c.root JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace JOIN pg_catalog.pg_roles o ON o.oid = t.relowner
WHERE {_IS_OTHER.format(role="p")} AND NOT EXISTS (SELECT FROM pg_catalog.pg_namespace s WHERE s.nspname = 'headrace' AND s.nspowner = p.oid)
ORDER BY p.rolname, n.nspname, t.relname, c.kind, f.oid
"""

# Owning the schema adds nothing for a role that can act as the table's owner. `public` belongs to the database's owner
# through the role pg_database_owner.
_SCHEMAS_OF_OTHERS = f"""
SELECT n.nspname::text, s.rolname::text, array_agg(c.relname::text ORDER BY c.relname),
       CASE count(DISTINCT c.relowner) WHEN 1 THEN min(pg_catalog.pg_get_userbyid(c.relowner)::text)
            ELSE (SELECT pg_catalog.pg_get_userbyid(datdba)::text FROM pg_catalog.pg_database WHERE datname = current_database()) END
FROM unnest(%s::text[], %s::text[]) AS wanted (owner, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.owner
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
JOIN pg_catalog.pg_roles s ON s.oid = n.nspowner
WHERE {_IS_OTHER.format(role="s")} AND s.rolname <> 'pg_database_owner' AND NOT pg_catalog.pg_has_role(s.oid, c.relowner, 'MEMBER')
GROUP BY 1, 2 ORDER BY 1
"""


def owner_findings(
    connection: psycopg.Connection[Any], site: str, catalogs: Sequence[CatalogTable]
) -> Iterator[Finding]:
    """Report roles that can act as the applying role through functions that its writes run.

    The owner of such a function can replace it at any time; the owner of a table can attach other functions.
    """
    numbers = [catalog.oid for catalog in catalogs]
    kinds: dict[tuple[TableName, str], dict[str, set[str]]] = {}
    authors: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for schema, name, owner, owner_is_other, kind, function, author, instead in connection.execute(
        _OTHERS_FUNCTIONS.encode(), (numbers,)
    ).fetchall():
        table = TableName(schema, name)
        if owner_is_other:
            kinds.setdefault((table, owner), {}).setdefault(kind, set()).add(function)
        authors.setdefault((author, instead), {}).setdefault(function, {})[f"{kind} of {table}"] = None
    for (table, owner), found in kinds.items():
        said = ", ".join(f"{kind} ({len(functions)})" for kind, functions in found.items())
        yield Finding(
            path=f"sites.{site} table {table}",
            is_error=False,
            problem=f"its owner {quote(owner)} can act as the role that applies: functions of roles that are not"
            f" superusers run as it, in {said}",
            fix="nothing, if you trust these roles with all that is replicated here; else let the database's owner"
            f" have the functions, and the table: ALTER TABLE {qualified(*table)} OWNER TO ...",
        )
    for (author, instead), called in authors.items():
        said = _few([f"{function}, in {_few(list(places))}" for function, places in called.items()], "; ")
        yield Finding(
            path=f"sites.{site}",
            is_error=False,
            problem=f"{quote(author)} can act as the role that applies: it owns functions that run as that role, and"
            f" can replace them: {said}",
            fix=" ".join(f"ALTER FUNCTION {function} OWNER TO {quote(instead)};" for function in called)
            + " "
            + remark(f"or nothing, if you trust {author} with all that is replicated here"),
        )


def may_act(connection: psycopg.Connection[Any], role: str) -> bool:
    """Return whether a role can act as the applying role anyway, or is that role.

    Args:
        connection: session of the applying role.
        role: the role.
    """
    row = connection.execute(_MAY_ACT.encode(), (role,)).fetchone()
    return row is not None and bool(row[0])


def functions_of_others(connection: psycopg.Connection[Any], table: TableName, role: str) -> dict[str, str]:
    """Return functions that writes to a table run as the applying role, and that others own: the owner of each.

    Args:
        connection: session of the applying role.
        table: the table.
        role: the one that may own the table; its functions are omitted.
    """
    number = connection.execute(_NUMBER, (qualified(*table),)).fetchone()
    rows = connection.execute(_OTHERS_FUNCTIONS.encode(), (list(number or ()),)).fetchall()
    return {function: author for *_, function, author, _ in rows if author != role}


def _few(names: Sequence[str], separator: str = ", ") -> str:
    more = [f"and {len(names) - _NAMED_MAX} more"] if len(names) > _NAMED_MAX else []
    return separator.join([*names[:_NAMED_MAX], *more])


def schemas_owner_findings(
    connection: psycopg.Connection[Any], site: str, tables: Sequence[TableName]
) -> Iterator[Finding]:
    """Report schema owners that can replace tables of other owners by their own."""
    for schema, owner, names, instead in connection.execute(
        _SCHEMAS_OF_OTHERS, ([table.owner for table in tables], [table.name for table in tables])
    ).fetchall():
        yield Finding(
            path=f"sites.{site} schema {schema}",
            is_error=False,
            problem=f"its owner {quote(owner)} can drop tables that others own, and put tables with functions of their"
            f" own in their place, which run as the role that applies: {_few(names)}",
            # The old owner loses the right to use the schema, and so do members of the owner, which had it only that way.
            fix=f"ALTER SCHEMA {quote(schema)} OWNER TO {quote(instead)}; GRANT USAGE ON SCHEMA {quote(schema)} TO"
            f" {quote(connection.info.user)}; "
            + remark(f"or nothing, if you trust {owner} with all that is replicated here"),
        )


def owners_of_schema(connection: psycopg.Connection[Any], role: str = "") -> list[tuple[str, str, str]]:
    """Return the schema headrace and its objects with other owners: kind, name for a statement, owner.

    Args:
        connection: session of a role; its own objects are omitted.
        role: role whose objects are included in any case.
    """
    return connection.execute(_OF_OTHERS, (role,)).fetchall()


def changes_of_owner(found: Iterable[tuple[str, str, str]], role: str) -> str:
    """Return the statements that make a role the owner of the objects found by `owners_of_schema`.

    Args:
        found: kind, name and owner of each object.
        role: the new owner.
    """
    return " ".join(f"ALTER {kind} {name} OWNER TO {quote(role)};" for kind, name, _ in found)


def schema_owner_findings(
    connection: psycopg.Connection[Any], path: str, owner: str | None, role: str
) -> Iterator[Finding]:
    """Refuse a schema headrace of another owner.

    Such an owner can replace Headrace's functions, which the applying role calls.

    Args:
        connection: session of the applying role.
        path: path of the finding.
        owner: the schema's owner, as `SCHEMA_OWNER` selects it. None when the role owns the schema, or its owner can do
            everything anyway.
        role: name of the applying role.
    """
    if owner is not None:
        yield Finding(
            path=path,
            problem=f"the schema headrace belongs to {quote(owner)}, who can act as the role that applies",
            fix=f"{changes_of_owner(owners_of_schema(connection), role)} -- or to the database's owner, if several"
            " roles apply here",
        )


def reserved_findings(site: str, tables: Iterable[TableName]) -> Iterator[Finding]:
    """Refuse tables of the server's own schemas and of the schema headrace."""
    for table in tables:
        if is_reserved(table.owner):
            yield Finding(
                path=f"sites.{site} table {table}",
                problem=f"the schema {table.owner} is the server's or Headrace's own: no changes are applied there",
                fix="leave the table out of the rules, or rename it there (rename_table, rename_schema)",
            )
