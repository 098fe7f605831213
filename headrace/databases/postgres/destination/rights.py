"""Rights that apply needs on a destination table and in the schema headrace; each missing one comes with its GRANT.

The needed rights follow from the statements, not from the table alone. A statement names the types of its values, with
their schemas. An INSERT computes, as the applying role, the defaults of columns that the source does not have,
generated columns, CHECK constraints and index expressions: it calls their functions and uses their sequences. Trigger
functions can be called without a right; what they do themselves is not known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg import sql

from headrace.databases.ports import DestinationTable, Finding
from headrace.databases.postgres.catalog.destination_tables import CatalogTable
from headrace.databases.postgres.connection import connect, qualified, quote, translated
from headrace.databases.postgres.destination.records.schema import VERSION, schema_version
from headrace.databases.postgres.destination.trust import schema_owner_findings
from headrace.lcr.batch import TableVersion

__all__ = [
    "missing_grants",
    "reference_right_findings",
    "schema_right_findings",
    "sequence_right_findings",
    "table_right_findings",
]

_OWN_TABLES_LACKING = """
SELECT c.relname FROM pg_catalog.pg_class c WHERE c.relnamespace = 'headrace'::regnamespace AND c.relkind = 'r'
  AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
           AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))
LIMIT 1
"""

_TABLE_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")

# The types that statements name: those of the columns and of array elements, for which a session also makes its own
# types. No statement names the types inside a domain, a composite type or a range.
_TYPES = """
SELECT DISTINCT n.nspname, t.typname, has_schema_privilege(n.oid, 'USAGE'), t.oid = c.oid OR has_type_privilege(t.oid, 'USAGE')
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type c ON c.oid = a.atttypid
JOIN pg_catalog.pg_type t ON t.oid = CASE WHEN c.typsubscript = 'pg_catalog.array_subscript_handler'::regproc THEN c.typelem ELSE c.oid END
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, 2
"""

# The functions and sequences from which values of the table and its partitions are computed, without a right to use them.
_CALLED = """
WITH tables AS (SELECT %(oid)s::oid AS oid UNION SELECT relid FROM pg_catalog.pg_partition_tree(%(oid)s)),
computing(classid, objid) AS (
  SELECT 'pg_catalog.pg_attrdef'::regclass, d.oid FROM pg_catalog.pg_attrdef d JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
  WHERE d.adrelid IN (SELECT oid FROM tables) AND (a.attgenerated <> '' OR NOT a.attname = ANY (%(arriving)s))
  UNION ALL SELECT 'pg_catalog.pg_constraint'::regclass, c.oid FROM pg_catalog.pg_constraint c WHERE c.contype = 'c' AND c.conrelid IN (SELECT oid FROM tables)
  UNION ALL SELECT 'pg_catalog.pg_constraint'::regclass, c.oid FROM pg_catalog.pg_constraint c
  JOIN pg_catalog.pg_attribute a ON a.atttypid = c.contypid AND a.attrelid = %(oid)s AND NOT a.attisdropped WHERE c.contypid <> 0
  UNION ALL SELECT 'pg_catalog.pg_class'::regclass, i.indexrelid FROM pg_catalog.pg_index i WHERE i.indrelid IN (SELECT oid FROM tables)
)
SELECT DISTINCT f.oid::regprocedure::text AS function, n.nspname AS schema, s.relname AS sequence
FROM computing c JOIN pg_catalog.pg_depend d ON (d.classid, d.objid) = (c.classid, c.objid) AND d.deptype = 'n'
LEFT JOIN pg_catalog.pg_proc f ON d.refclassid = 'pg_catalog.pg_proc'::regclass AND f.oid = d.refobjid AND NOT has_function_privilege(f.oid, 'EXECUTE')
LEFT JOIN pg_catalog.pg_class s ON d.refclassid = 'pg_catalog.pg_class'::regclass AND s.oid = d.refobjid
  AND CASE WHEN s.relkind = 'S' THEN NOT (has_sequence_privilege(s.oid, 'USAGE') OR has_sequence_privilege(s.oid, 'UPDATE')) END
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = s.relnamespace
WHERE f.oid IS NOT NULL OR s.oid IS NOT NULL ORDER BY 1, 2, 3
"""


# TRUNCATE ... RESTART IDENTITY requires ownership of each sequence that a column of the table or of a partition owns.
_NOT_OWNED = """
SELECT current_user, pg_catalog.pg_get_userbyid(s.relowner), pg_catalog.array_agg(s.oid::regclass::text ORDER BY 1)
FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_class s ON d.classid = 'pg_catalog.pg_class'::regclass AND s.oid = d.objid AND s.relkind = 'S'
WHERE d.refclassid = 'pg_catalog.pg_class'::regclass AND d.deptype IN ('a', 'i') AND NOT pg_catalog.pg_has_role(s.relowner, 'USAGE')
  AND d.refobjid IN (SELECT %(oid)s::oid UNION SELECT relid FROM pg_catalog.pg_partition_tree(%(oid)s)) GROUP BY 1, 2 ORDER BY 2
"""


def table_right_findings(
    connection: psycopg.Connection[Any], path: str, catalog: CatalogTable, arriving: Sequence[str]
) -> Iterator[Finding]:
    """Report the rights that the role lacks to apply the changes of a table.

    Args:
        connection: session of the applying role; must print names with their schemas.
        path: path of the findings.
        catalog: the table as it is at the destination.
        arriving: names of the source's columns.
    """
    row = connection.execute(
        "SELECT current_user, has_schema_privilege(%(owner)s, 'USAGE'), pg_catalog.row_security_active(%(oid)s::oid),"
        " ARRAY(SELECT r FROM unnest(%(rights)s::text[]) r WHERE NOT has_table_privilege(%(oid)s::oid, r))",
        {"owner": catalog.table.owner, "oid": catalog.oid, "rights": list(_TABLE_RIGHTS)},
    ).fetchone()
    assert row is not None
    role, may_use, row_security, lacking = quote(row[0]), row[1], row[2], row[3]
    table = qualified(catalog.table.owner, catalog.table.name)
    if not may_use:
        fix = sql.SQL("GRANT USAGE ON SCHEMA {} TO {};").format(
            sql.Identifier(catalog.table.owner), sql.Identifier(row[0])
        )
        yield Finding(path=path, problem="the role may not use the schema", fix=fix.as_string(None))
    if lacking:
        rights = ", ".join(lacking)
        yield Finding(path=path, problem=f"the role lacks {rights}", fix=f"GRANT {rights} ON {table} TO {role};")
    if row_security:
        yield Finding(path=path, problem="row security hides rows from the role", fix=f"ALTER ROLE {role} BYPASSRLS;")
    yield from _type_right_findings(connection, path, catalog, role)
    for function, schema, sequence in connection.execute(
        _CALLED, {"oid": catalog.oid, "arriving": list(arriving)}
    ).fetchall():
        if function:
            yield Finding(
                path=path,
                problem=f"the role may not call {function}, which computes a value of the table",
                fix=f"GRANT EXECUTE ON FUNCTION {function} TO {role};",
            )
        else:
            name = qualified(schema, sequence)
            yield Finding(
                path=path,
                problem=f"the role may not use the sequence {name}, from which a column that the source does not have"
                " takes its default",
                fix=f"GRANT USAGE ON SEQUENCE {name} TO {role};",
            )


def _type_right_findings(
    connection: psycopg.Connection[Any], path: str, catalog: CatalogTable, role: str
) -> Iterator[Finding]:
    schemas = {catalog.table.owner}
    for schema, name, may_use_schema, may_use in connection.execute(_TYPES, {"oid": catalog.oid}).fetchall():
        if not may_use_schema and schema not in schemas:
            schemas.add(schema)
            yield Finding(
                path=path,
                problem=f"the role may not use the schema {quote(schema)}, which has a type of a column",
                fix=f"GRANT USAGE ON SCHEMA {quote(schema)} TO {role};",
            )
        if not may_use:
            yield Finding(
                path=path,
                problem=f"the role may not use the type {qualified(schema, name)} of an array's elements",
                fix=f"GRANT USAGE ON TYPE {qualified(schema, name)} TO {role};",
            )


def sequence_right_findings(connection: psycopg.Connection[Any], path: str, catalog: CatalogTable) -> Iterator[Finding]:
    """Report the sequences whose ownership the role lacks for a TRUNCATE ... RESTART IDENTITY of the source.

    The server lets only the owner of the sequences run it.
    """
    for role, owner, sequences in connection.execute(_NOT_OWNED, {"oid": catalog.oid}).fetchall():
        yield Finding(
            path=path,
            is_error=False,
            problem=f"the role does not own {', '.join(sequences)}: this server refuses a TRUNCATE ... RESTART IDENTITY"
            " that comes from the source, and the transaction goes into the error queue",
            fix=f"GRANT {quote(owner)} TO {quote(role)}; -- or nothing, if the source never does that",
        )


def missing_grants(
    dsn: str,
    application_name: str,
    role: str,
    tables: Sequence[tuple[CatalogTable, TableVersion | DestinationTable]],
    command: str,
) -> list[str]:
    """Return the statements that grant a role the missing rights to write tables; uses a separate session.

    Args:
        dsn: connection string of the destination.
        application_name: name of the session.
        role: role that the transaction has taken; empty for the role of the connection string.
        tables: each table as it is at the destination, with the columns that are written.
        command: the command that the server refused.
    """
    with (
        contextlib.closing(connect(dsn, application_name=application_name)) as connection,
        translated("looking for missing rights"),
    ):
        if role:
            connection.execute(f"SET ROLE {quote(role)}".encode())
        found: list[Finding] = []
        for catalog, written in tables:
            found += table_right_findings(connection, "", catalog, [column.name for column in written.columns])
            found += sequence_right_findings(connection, "", catalog) if command == "TRUNCATE" else ()
        return list(dict.fromkeys(finding.fix for finding in found))


def reference_right_findings(
    connection: psycopg.Connection[Any], path: str, name: str, referred: int
) -> Iterator[Finding]:
    """Report the rights that the role lacks to check a foreign key, which locks the referenced rows.

    Args:
        connection: session of the applying role.
        path: path of the findings.
        name: name of the foreign key, quoted.
        referred: OID of the referenced table.
    """
    row = connection.execute(
        "SELECT current_user, n.nspname, c.relname, has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid,"
        " 'UPDATE') FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (referred,),
    ).fetchone()
    if row is not None and not row[3]:
        yield Finding(
            path=path,
            problem=f"the role may not lock the rows that the foreign key {name} references, and cannot check it",
            fix=f"GRANT SELECT, UPDATE ON {qualified(row[1], row[2])} TO {quote(row[0])};",
        )


def schema_right_findings(connection: psycopg.Connection[Any], path: str, found: dict[str, Any]) -> Iterator[Finding]:
    """Report the rights that the role lacks to create the schema headrace, or to use the existing one."""
    yield from _schema_findings(connection, path, found, quote(found["role"]))
    yield from schema_owner_findings(connection, path, found["other_owner"], found["role"])


def _schema_findings(
    connection: psycopg.Connection[Any], path: str, found: dict[str, Any], role: str
) -> Iterator[Finding]:
    if found["may_use"] is None:
        if not found["may_create"]:
            yield Finding(
                path=path,
                problem="the role may not create the schema headrace",
                fix=f"GRANT CREATE ON DATABASE {quote(found['database'])} TO {role};",
            )
        return
    if not found["may_use"]:
        yield Finding(
            path=path,
            problem="the role may not use the schema headrace",
            fix=f"GRANT USAGE, CREATE ON SCHEMA headrace TO {role};",
        )
        return
    lacking = connection.execute(_OWN_TABLES_LACKING).fetchone()
    if lacking is not None:
        yield Finding(
            path=path,
            problem="the role lacks rights on the tables of the schema headrace",
            fix=f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA headrace TO {role};",
        )
        return
    made = schema_version(connection)
    if made > VERSION:
        yield Finding(
            path=path,
            problem=f"the schema headrace was made by a newer Headrace (version {made}, known: {VERSION})",
            fix="use the newer Headrace",
        )
    elif made < VERSION and not found["may_create_in"]:
        yield Finding(
            path=path,
            problem="the role may not create tables in the schema headrace",
            fix=f"GRANT CREATE ON SCHEMA headrace TO {role};",
        )
