"""Requirements of latest_timestamp at a PostgreSQL database, and the triggers that note deletes (`row_changes`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import psycopg

from headrace.base.errors import DatabaseError
from headrace.databases.ports import DestinationTable, Finding
from headrace.databases.ports.operator import AS_ADMIN
from headrace.databases.postgres.catalog.destination_tables import TOMBSTONES
from headrace.databases.postgres.connection import qualified, quote
from headrace.lcr.table_name import literal

__all__ = [
    "check_triggers",
    "drop_triggers",
    "lacking_triggers",
    "make_triggers",
    "times_findings",
    "tombstones_statement",
]

_IS_PUBLIC = "pg_catalog.has_function_privilege('public', p.oid, 'EXECUTE')"
"""True when every role may attach the function to its own table, and so note deletes of another table.

Schemas before version 19 allowed this.
"""
_LACKING = f"""
SELECT n.nspname, c.relname, c.oid::pg_catalog.int8, pg_catalog.pg_has_role(c.relowner, 'USAGE') AS may,
       EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS has_key
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[])) AND c.relkind IN ('r', 'p')
  AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = c.oid AND t.tgname = '{TOMBSTONES}' AND t.tgenabled = 'O' AND NOT {_IS_PUBLIC}
      AND p.pronamespace = pg_catalog.to_regnamespace('headrace') AND p.proname = pg_catalog.format('note_gone_%%s', c.oid::pg_catalog.int8)
      AND pg_catalog.strpos(p.prosrc, pg_catalog.format('IF ROW(%%s) IS NOT DISTINCT FROM', (
        SELECT pg_catalog.string_agg(pg_catalog.format('OLD.%%I', a.attname), ', ' ORDER BY a.attnum)
        FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a
          ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
        WHERE i.indrelid = c.oid AND i.indisprimary))) > 0)
ORDER BY 1, 2
"""
# A trigger of this name that calls another function is not Headrace's.
_MADE = f"""
SELECT n.nspname, c.relname FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE t.tgname = '{TOMBSTONES}' AND t.tgparentid = 0 AND p.pronamespace = pg_catalog.to_regnamespace('headrace') ORDER BY 1, 2
"""
_FUNCTIONS = """
SELECT p.oid::pg_catalog.regprocedure::text FROM pg_catalog.pg_proc p
WHERE p.pronamespace = 'headrace'::pg_catalog.regnamespace AND p.proname ~ '^note_gone_[0-9]+$' ORDER BY 1
"""


def times_findings(
    connection: psycopg.Connection[Any],
    site: str,
    tables: Collection[tuple[str, str]],
    described: Collection[DestinationTable],
    *,
    has_tombstones: bool,
    has_admin: bool = False,
) -> Iterator[Finding]:
    """Report missing requirements of latest_timestamp.

    Args:
        connection: connection to the database.
        site: name of the site.
        tables: owners and names of the tables with latest_timestamp.
        described: those of the tables that exist.
        has_tombstones: deletes by sessions must be noted.
        has_admin: another role creates the triggers.
    """
    row = connection.execute("SHOW track_commit_timestamp").fetchone()
    if tables and row is not None and row[0] != "on":
        yield Finding(
            path=f"sites.{site}",
            problem="track_commit_timestamp is off, but latest_timestamp needs the commit times of rows",
            fix="ALTER SYSTEM SET track_commit_timestamp = on; then restart the server",
        )
    yield from _unhashed(connection, site, described)
    for owner, name, _, may, has_key in lacking_triggers(connection, tables) if has_tombstones else ():
        path = f"sites.{site} table {owner}.{name}"
        if not has_key:
            yield Finding(
                path=path,
                problem="has no primary key, which tombstones need to identify its rows",
                fix="add one, or remove the tombstones setting",
            )
        elif not may and not has_admin:
            yield Finding(
                path=path,
                problem="tombstones need a trigger on it, and this role does not own it",
                fix="make the role a member of the table's owner; or, when `up` has made the schema:"
                f" {tombstones_statement(owner, name)};",
            )


def _unhashed(
    connection: psycopg.Connection[Any], site: str, tables: Collection[DestinationTable]
) -> Iterator[Finding]:
    """Report keys that the server cannot hash, because notes are found by hashes.

    The check asks the server for each column, because arrays, domains and ranges depend on their inner types. It hashes
    the field of a NULL row: a NULL of the domain itself may violate the domain.
    """
    for table in tables:
        for column in (table.columns[place] for place in table.key):
            field = f"(NULL::{qualified(table.owner, table.name)}).{quote(column.name)}"
            try:
                with connection.transaction():
                    connection.execute(f"SELECT pg_catalog.hash_record_extended(ROW({field}), 0)".encode())
            except psycopg.errors.UndefinedFunction:
                yield Finding(
                    path=f"sites.{site} table {table.owner}.{table.name}",
                    problem="latest_timestamp finds the times of its rows by hashes of the key, but the server cannot"
                    f" hash {column.name} {column.type_name.removeprefix('pg_catalog.')}",
                    fix="use a key of other types, or another method",
                )


def check_triggers(connection: psycopg.Connection[Any], tables: Collection[tuple[str, str]]) -> None:
    """Refuse tables that lack the trigger, which another role creates.

    Raises:
        DatabaseError: at least one table lacks the trigger.
    """
    if lacking := [f"{owner}.{name}" for owner, name, *_ in lacking_triggers(connection, tables)]:
        raise DatabaseError(f"the trigger that notes deletes is missing on {', '.join(lacking)}", hint=AS_ADMIN)


def make_triggers(connection: psycopg.Connection[Any], tables: Collection[tuple[str, str]]) -> tuple[str, ...]:
    """Create the missing triggers; return the statements that were run.

    Args:
        connection: connection in autocommit mode.
        tables: owners and names of the tables.
    """
    done = []
    for owner, name, number, _, _ in lacking_triggers(connection, tables):
        connection.execute("SELECT headrace.keep_tombstones(%s::pg_catalog.oid::pg_catalog.regclass)", (number,))
        done.append(tombstones_statement(owner, name))
    return tuple(done)


def tombstones_statement(owner: str, name: str) -> str:
    """Return the statement that creates the trigger on a table."""
    return f"SELECT headrace.keep_tombstones({literal(qualified(owner, name))})"


def lacking_triggers(
    connection: psycopg.Connection[Any], tables: Collection[tuple[str, str]]
) -> list[tuple[str, str, int, bool, bool]]:
    """Return the tables without a valid trigger: owner, name, OID, whether this role may create it, whether a key exists.

    A trigger for another table (a restored dump) or for another key (an ALTER) is not valid.

    Args:
        connection: connection to the database.
        tables: owners and names of the tables. Missing tables are skipped.
    """
    wanted = sorted(tables)
    return connection.execute(
        _LACKING.encode(), ([owner for owner, _ in wanted], [name for _, name in wanted])
    ).fetchall()


def drop_triggers(connection: psycopg.Connection[Any]) -> None:
    """Drop every trigger that notes deletes, with its function, in the transaction that drops the schema."""
    for owner, name in connection.execute(_MADE.encode()).fetchall():
        connection.execute(f"DROP TRIGGER {TOMBSTONES} ON {qualified(owner, name)}".encode())
    for (function,) in connection.execute(_FUNCTIONS.encode()).fetchall():  # includes functions of dropped tables
        connection.execute(f"DROP FUNCTION {function}".encode())
