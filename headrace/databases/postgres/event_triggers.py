"""Users' event triggers that fire for Headrace's own DDL, in sessions whose search_path is empty."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from headrace.base.errors import DatabaseError
from headrace.databases.ports import Finding
from headrace.databases.postgres.connection import NOT_FOUND, connect, quote, remedy_of, translated
from headrace.lcr.table_name import remark

__all__ = [
    "DESTINATION_TAGS",
    "DESTINATION_TRIALS",
    "SOURCE_TAGS",
    "SOURCE_TRIALS",
    "event_trigger_findings",
    "failed_in",
    "own_ddl",
    "trial_findings",
]

SOURCE_TAGS = ("CREATE PUBLICATION", "ALTER PUBLICATION", "DROP PUBLICATION")
DESTINATION_TAGS = tuple(
    f"{verb} {kind}"
    for verb in ("CREATE", "ALTER", "DROP")
    for kind in ("SCHEMA", "TABLE", "INDEX", "VIEW", "FUNCTION", "TRIGGER", "TYPE")
)
"""Includes the types that sessions of apply servers create for arrays."""
SOURCE_TRIALS = ("CREATE PUBLICATION headrace_trial",)
DESTINATION_TRIALS = (
    "CREATE TEMPORARY TABLE headrace_trial (f int)",
    "CREATE TYPE pg_temp.headrace_trial_of_arrays AS (f int)",
)
"""Statements with the tags above that show whether event triggers accept them; they are rolled back."""

# C functions and functions of extensions rely on a search_path only if their author sets it.
_TRIGGERS = """
SELECT e.evtname, p.oid::regprocedure::text, pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_event_trigger e
JOIN pg_catalog.pg_proc p ON p.oid = e.evtfoid JOIN pg_catalog.pg_language l ON l.oid = p.prolang JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE e.evtenabled <> 'D' AND e.evtevent IN ('ddl_command_start', 'ddl_command_end', 'sql_drop') AND (e.evttags IS NULL OR e.evttags && %s::text[])
  AND l.lanname NOT IN ('c', 'internal') AND NOT EXISTS (SELECT FROM unnest(p.proconfig) s WHERE s LIKE 'search_path=%%')
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
ORDER BY 1
"""

# Not Headrace's own, which never fail (`source.ddl.objects`).
_FIRING = """
SELECT e.evtname, p.oid::regprocedure::text, pg_catalog.quote_ident(p.proname) || '()', current_user FROM pg_catalog.pg_event_trigger e
JOIN pg_catalog.pg_proc p ON p.oid = e.evtfoid JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE e.evtenabled <> 'D' AND e.evtevent IN ('ddl_command_start', 'ddl_command_end', 'sql_drop', 'table_rewrite')
  AND n.nspname <> 'headrace_ddl' ORDER BY 1
"""
_NO_RIGHT = "42501"


def event_trigger_findings(connection: psycopg.Connection[Any], path: str, tags: tuple[str, ...]) -> Iterator[Finding]:
    """Warn of event triggers whose functions would not find objects that they name without a schema.

    Args:
        connection: of Headrace; the server prints names with their schemas.
        path: of the findings.
        tags: of the statements that Headrace runs in this database.
    """
    for name, function, schema in connection.execute(_TRIGGERS, (list(tags),)).fetchall():
        yield Finding(
            path=path,
            is_error=False,
            problem=f"the event trigger {quote(name)} calls {function} for Headrace's own DDL, in sessions that have an"
            " empty search_path: what it names without a schema is not found, and the DDL fails",
            fix=f"{remedy_of(function, schema)} -- with all schemas that it needs; unless it names them itself",
        )


def trial_findings(connection: psycopg.Connection[Any], path: str, statements: Sequence[str]) -> Iterator[Finding]:
    """Report event triggers that refuse Headrace's own DDL: where event triggers exist, it is run and rolled back.

    Args:
        connection: of Headrace, in autocommit mode.
        path: of the findings.
        statements: such as `SOURCE_TRIALS`.
    """
    if not connection.execute(_FIRING).fetchall():
        return
    for statement in statements:
        try:
            with connection.transaction(force_rollback=True):
                connection.execute("SET LOCAL lock_timeout = '2s'")
                connection.execute(statement.encode())
        except psycopg.Error as error:
            found = _failed_in(connection, error)
            if found is not None and found[1]:  # else `event_trigger_findings` has reported it
                yield Finding(path=path, problem=f"{error.diag.message_primary}: {found[0]}", fix=found[1])
                return


@contextlib.contextmanager
def own_ddl(dsn: str, site: str) -> Iterator[None]:
    """Name the event triggers in which Headrace's own DDL failed.

    Args:
        dsn: of the database; the failed session is not used.
        site: name of the site; empty: unknown.
    """
    try:
        yield
    except DatabaseError as error:
        what, fix = failed_in(dsn, error)
        where = f"site {site}: " if site else ""
        raise type(error)(
            f"{where}{error.message}{f': {what}' if what else ''}", hint=fix or error.hint, **error.context
        ) from error


def failed_in(dsn: str, error: DatabaseError) -> tuple[str, str]:
    """Return the event triggers in which a statement failed, and the fix; empty: none.

    Args:
        dsn: of the database.
        error: caused by one of psycopg.
    """
    cause = error.__cause__
    while isinstance(cause, DatabaseError):
        cause = cause.__cause__
    if not isinstance(cause, psycopg.Error) or not cause.diag.context:
        return "", ""
    try:
        with (
            contextlib.closing(connect(dsn, application_name="headrace looks at event triggers")) as connection,
            translated("looking at event triggers"),
        ):
            return _failed_in(connection, cause) or ("", "")
    except DatabaseError:
        return "", ""


def _failed_in(connection: psycopg.Connection[Any], error: psycopg.Error) -> tuple[str, str] | None:
    """Implement `failed_in`; no fix where a function does not find an object because of the empty search_path."""
    where, firing = f" {error.diag.context or ''}", connection.execute(_FIRING).fetchall()
    # The server omits a function's schema if that is in the search_path in which it failed, that is, one the function
    # set.
    found = [row for row in firing if f" {row[1]} " in where]
    sets_path = not found
    found = found or [row for row in firing if f" {row[2]} " in where]
    if len({row[1] for row in found}) != 1 and sets_path:
        return None  # no match, or several of that name
    _, function, _, role = found[0]
    names = [quote(name) for name, of, *_ in found if of == function]
    what = f"the event trigger {', '.join(names)} calls {function} for Headrace's own DDL"
    disabled = " ".join(f"ALTER EVENT TRIGGER {name} DISABLE;" for name in names)
    if error.sqlstate != _NO_RIGHT:
        is_for_the_path = error.sqlstate in NOT_FOUND and not sets_path
        return what, "" if is_for_the_path else f"correct the function; or {disabled}"
    return (
        f"{what}, with the rights of the role {role}",
        f"ALTER FUNCTION {function} SECURITY DEFINER; "
        + remark(f"it runs with its owner's rights then; or grant {quote(role)} what it lacks; or {disabled}"),
    )
