"""Connections to PostgreSQL: pinned session settings, and its errors as Headrace's."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psycopg
from psycopg import conninfo, sql

from headrace.base.errors import INSTANTIATE_AGAIN, ConfigError, DatabaseError, DatabaseUnavailable, DataError
from headrace.lcr.table_name import remark

__all__ = [
    "NOT_FOUND",
    "NOT_IN_STATE",
    "NOT_UTF8",
    "connect",
    "connection_parameters",
    "connection_string",
    "database_identity",
    "error_from_sqlstate",
    "has_password",
    "hosts",
    "is_not_utf8",
    "is_verified",
    "pinned_settings",
    "qualified",
    "quote",
    "remedy_of",
    "storable",
    "translate",
    "translated",
    "unused_secrets",
    "without_values",
]

# Values must have the same text form whatever the role's or the database's defaults are, and printed names must be
# qualified. Other users' time-outs must not end a session that waits on purpose. `default_transaction_read_only` is how
# operators protect a copy, or a source before a switch-over, from others' writes: it must not bind apply.
_SETTINGS = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "lc_monetary": "C",  # the text form of money
    "xmloption": "content",  # `document` would refuse fragments that a column may hold
    "search_path": "",
    "standard_conforming_strings": "on",  # conditions of rules rely on it
    # A statement behind a lock sees what was committed while it waited.
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "array_nulls": "on",  # NULL in an array's text form is not a string
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",  # types are compared by their printed names
    "default_table_access_method": "heap",  # tables of the schema headrace need UPDATE and DELETE
    "exit_on_error": "off",  # a refused row only rolls back to a savepoint
    "row_security": "off",  # raises an error instead of silently hiding rows
    # Compiling costs 0.04 s per statement, and 0.8 s with optimization. On 400,000 rows compared that gained nothing:
    # a row's text is made by functions. Before PostgreSQL 18, apply's disabled scans have a huge cost that asks for it.
    "jit": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
_SETTINGS_FROM_17 = {"transaction_timeout": "0"}

# Only where the dsn sets nothing. A peer that vanished silently is noticed after 20 + 3 * 5 s.
_CONNECTION_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "35000",  # for unacknowledged data, during which no keepalives are sent
}

# Shells also have URIs of other drivers: `postgresql+psycopg://` of SQLAlchemy, `jdbc:postgresql://` of Java.
_URI_OF_ANY_DRIVER = re.compile(r"(?:jdbc:)?postgres(?:ql)?(?:\+\w+)?://")

NOT_IN_STATE = "55000"
# The environment is at fault, or the outcome is unknown: a retry may succeed.
_UNAVAILABLE_CLASSES = frozenset({"08", "53", "57", "58"})
# 25006: the server is (for now) a standby, because sessions declare their transactions as writing (`_SETTINGS`). 25P03,
# 25P04: a time-out set at the server ended the session. 55006, 55P03: another session uses or locks something. 55000: a
# snapshot's session ended, or a database accepts no connections; `write_errors` handles it for rows. The rest of class
# 55 (a parameter that cannot change, an enum value created in the same transaction) fails each time. Codes of class 40
# that the server itself never raises (40000, 40002) come from an author of a trigger.
_UNAVAILABLE_STATES = frozenset({"40001", "40003", "40P01", "25006", "25P03", "25P04", NOT_IN_STATE, "55006", "55P03"})
# Internal errors (XX000, never translated) of a statement that meets another session's DDL: an object that the snapshot
# shows has left the server's caches, or both sessions change it.
_MET_DDL = re.compile(
    r": (?:cache lookup failed for|could not find tuple for|could not open relation with OID|tuple concurrently"
    r" (?:updated|deleted))"
)
# A missing schema, table, column, type or function.
NOT_FOUND = frozenset({"3F000", "42P01", "42703", "42704", "42883"})
# Matched in the server's message about a missing object, in any language: one of our own tables or the schema was
# dropped. Functions are not included: users call them, also with wrong arguments, and must not be told to copy
# everything.
_OWN_TABLES = (
    "apply_(?:epoch|error(?:_edit|_key|_original|_part)?|process|progress|session|state)|conflict_history"
    "|ddl_(?:history|job|skip)|handler_call|instantiation"
    "|row_change(?:_set(?:_time)?)?|row_mark|schema_version"
)
_DROPPED = {
    "3F000": re.compile(r"(?<![\w.])headrace(?![\w.])"),
    "42P01": re.compile(rf"(?<![\w.])headrace\.(?:{_OWN_TABLES})(?!\w)"),
}
# Matched in the context of an error: with an empty search_path, users' functions are printed with their schema,
# whatever language the server speaks. The context contains users' texts, and the match is printed in a statement, so it
# may contain only names and types.
_FUNCTION = re.compile(r"""((?:"(?:[^"]|"")+"|[\w$]+))\.(?:"(?:[^"]|"")+"|[\w$]+)\((?:"[^"]*"|[\w$ .,\[\]])*\)(?= )""")
# Constraints whose violation is a conflict; an exclusion constraint is a unique key with other operators.
_VIOLATIONS = {"23505": "unique", "23P01": "unique", "23503": "foreign_key"}
# For a refused connection libpq gives only the server's words, not a SQLSTATE.
_UNREACHED = (
    "see that the server runs, and takes connections as the dsn says (address, role, password, pg_hba.conf,"
    " max_connections)"
)
# The server's words if it speaks English; it does not double a name's quotation marks.
_CLOSED = re.compile(r'FATAL: +database "(.+)" is not currently accepting connections')
_PORTS = re.compile(r"[0-9, ]*")
_BEHIND_HOST = re.compile(r"\s*postgres(?:ql)?://[^/?]*(.*)", re.DOTALL)
# What messages of class 22 reveal of a value: text in quotation marks, up to the last mark, because the value may
# contain some. For characters (22021, 22P05) it is the bytes: the names quoted there are of encodings.
_QUOTED = re.compile('["\u201e\u201c\u00ab\u00bb].*["\u201c\u201d\u00ab\u00bb]', re.DOTALL)
_BYTES = re.compile(r"0x[0-9a-f]{2}(?: 0x[0-9a-f]{2})*")
NOT_UTF8 = "a text is not UTF-8, and a database with the encoding SQL_ASCII keeps none out"
_LETTER_STATES = frozenset({"22021", "22P05"})
_DATA_CLASSES = frozenset({"21", "22", "23", "44"})


def connection_string(dsn: str, *, application_name: str, **parameters: str) -> str:
    """Complete a dsn.

    Args:
        dsn: libpq connection string or URI.
        application_name: of the session in `pg_stat_activity`.
        parameters: libpq parameters that override the dsn's.

    Raises:
        ConfigError: the dsn cannot be parsed.
    """
    given = connection_parameters(dsn)
    defaults = {key: value for key, value in _CONNECTION_DEFAULTS.items() if key not in given}
    # PostgreSQL truncates longer names, with a notice.
    fixed = {"application_name": application_name[:63], "client_encoding": "UTF8"}
    return conninfo.make_conninfo(dsn, **{**defaults, **fixed, **parameters})


def connection_parameters(dsn: str) -> dict[str, Any]:
    """Return the parameters that a dsn sets, by libpq's names; a password may be among them.

    Raises:
        ConfigError: the dsn cannot be parsed, or libpq would take a part of its password for a host or a port. Neither
            the error nor its cause contains any part of the dsn: logs show both.
    """
    try:
        given: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        given = {}
        is_dsn = False
    else:
        is_dsn = True
    if not is_dsn:
        raise ConfigError("a PostgreSQL dsn cannot be parsed", hint="use key=value pairs or a postgresql:// URI")
    hosts, ports = str(given.get("host") or ""), str(given.get("port") or "")
    behind_host = _BEHIND_HOST.match(dsn)
    # A leading @ is a socket in Linux's abstract namespace. An @ after the host of a URI: everything before it was the
    # password.
    if (
        any("@" in host[1:] for host in hosts.split(","))
        or not _PORTS.fullmatch(ports)
        or (behind_host and "@" in behind_host[1])
    ):
        raise ConfigError(
            "a PostgreSQL dsn has a host or a port that cannot be one",
            hint="in a URI's password, write @ : / ? # as %40 %3A %2F %3F %23",
        )
    return given


def hosts(dsn: str) -> tuple[str, ...]:
    """Return the hosts that a dsn leads to, or what replaces them; an empty one is this machine.

    Raises:
        ConfigError: the dsn cannot be parsed.
    """
    given = connection_parameters(dsn)
    named = str(given.get("hostaddr") or given.get("host") or "")
    if not named and (service := _service(given)):
        return (f"service {service}",)  # the user's service file names the host
    return tuple((named or os.environ.get("PGHOST", "")).split(","))


def unused_secrets(dsns: Iterable[str]) -> frozenset[str]:
    """Return libpq's environment variables with a secret that none of these dsns uses.

    A dsn that cannot be parsed may use them all.
    """
    for dsn in dsns:
        try:
            if not connection_parameters(dsn).get("password"):
                return frozenset()
        except ConfigError:
            return frozenset()
    return frozenset({"PGPASSWORD"})


def has_password(text: str) -> bool:
    """Whether a text is a dsn that contains a password, or a URI that may be such a dsn with a typing error."""
    scheme = _URI_OF_ANY_DRIVER.match(text)
    if scheme is None and "password" not in text:
        return False
    dsn = text if scheme is None else "postgresql://" + text[scheme.end() :]
    try:
        return bool(connection_parameters(dsn).get("password"))
    except ConfigError:
        return scheme is not None


def _service(given: Mapping[str, Any]) -> str:
    return str(given.get("service") or os.environ.get("PGSERVICE", ""))


def is_verified(dsn: str) -> bool:
    """Whether libpq refuses a server whose certificate its authority has not signed.

    `verify-ca` accepts every server of that authority: enough where the authority signs only for databases. With
    `sslrootcert=system` libpq uses `verify-full` by default. Only the dsn counts. Environment variables (`PGSSLMODE`)
    are those of the calling shell, and Ray's processes, which connect, have others. A service file is not read.

    Raises:
        ConfigError: the dsn cannot be parsed.
    """
    given = connection_parameters(dsn)
    mode = given.get("sslmode") or ""
    is_system = given.get("sslrootcert") == "system" and not mode and not _service(given)
    return mode in {"verify-full", "verify-ca"} or is_system


def connect(dsn: str, *, application_name: str, autocommit: bool = True, **parameters: str) -> psycopg.Connection[Any]:
    """Open a session with Headrace's settings.

    Args:
        dsn: libpq connection string or URI.
        application_name: of the session.
        autocommit: False: statements open transactions.
        parameters: additional libpq parameters, e.g. `replication="database"`.

    Raises:
        ConfigError: the dsn cannot be parsed.
        DatabaseUnavailable: no connection.
    """
    text = connection_string(dsn, application_name=application_name, **parameters)
    with translated("connecting"):
        connection = psycopg.connect(text, autocommit=True)
        try:
            connection.execute(pinned_settings(connection.info.server_version))
            connection.autocommit = autocommit
        except BaseException:
            connection.close()
            raise
    return connection


def pinned_settings(server_version: int) -> sql.Composed:
    """Return the statements that pin a session's settings, to be sent as one query.

    Args:
        server_version: as libpq reports it, e.g. 180004.
    """
    settings = {**_SETTINGS, **(_SETTINGS_FROM_17 if server_version >= 170000 else {})}
    return sql.SQL("; ").join(
        sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value)) for name, value in settings.items()
    )


@contextlib.contextmanager
def translated(what: str, **context: str | int) -> Iterator[None]:
    """Raise psycopg's errors as `headrace.base.errors`; `what` names the action in progress ("connecting")."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, what, **context) from error


def translate(error: psycopg.Error, what: str, **context: str | int) -> DatabaseError:
    """Convert an error into the equivalent `DatabaseError`.

    The result never contains row values: DETAIL is dropped, and so is what messages of class 22 quote or give as bytes.

    Args:
        error: from psycopg.
        what: the action in progress.
        context: added to the error's context, besides `sqlstate`, `table`, `column`, `constraint` where known.
    """
    diagnostics = error.diag
    named = {
        "table": _joined(diagnostics.schema_name, diagnostics.table_name),
        "column": diagnostics.column_name or "",
        "constraint": diagnostics.constraint_name or "",
    }
    context = {**{key: value for key, value in named.items() if value}, **context}
    state = error.sqlstate
    if state is None:
        message = f"{what}: {str(error).strip()}"
        # Without a SQLSTATE the error is libpq's or psycopg's own: usually a broken or refused connection.
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return DatabaseUnavailable(message, hint=_opened(message) or _UNREACHED, **_texts(context))
        if isinstance(error, psycopg.DataError):
            return DataError(f"{what}: {type(error).__name__}", sqlstate="", **_texts(context))
        return DatabaseError(message, **_texts(context))
    primary = diagnostics.message_primary or type(error).__name__
    text = without_values(state, primary)
    hint = _function_hint(state, diagnostics.context or "") or diagnostics.message_hint or ""
    further = f": {NOT_UTF8}: correct it, and what writes it" if is_not_utf8(state, primary) else ""
    made = error_from_sqlstate(state, f"{what}: {text}{further}", hint=hint, **context)
    quoted = primary if text != primary else None
    made.detail = "; ".join(part for part in (quoted, diagnostics.message_detail) if part)
    return made


def _opened(message: str) -> str:
    """Return the statement that opens a database that accepts no sessions; empty: the cause is another one."""
    found = _CLOSED.search(message)
    return (
        f"ALTER DATABASE {quote(found[1])} ALLOW_CONNECTIONS true; {remark('in another database of its server')}"
        if found
        else ""
    )


def without_values(sqlstate: str, message: str) -> str:
    """Remove what a server's message reveals of values.

    Args:
        sqlstate: of the error.
        message: the server's text.
    """
    if sqlstate[:2] != "22":
        return message
    return _BYTES.sub("0x...", message) if sqlstate in _LETTER_STATES else _QUOTED.sub('"..."', message)


def is_not_utf8(sqlstate: str, message: str) -> bool:
    """Whether a server found bytes that are not valid UTF-8, other than a zero byte, which no text has.

    Args:
        sqlstate: of the error.
        message: the server's text.
    """
    return sqlstate == "22021" and "UTF8" in message and not message.endswith("0x00")


def _function_hint(sqlstate: str, where: str) -> str:
    """Return the fix for a user's function, such as an event trigger's, that does not find an object it names.

    Empty: the error is not of such a function.
    """
    found = _FUNCTION.search(where) if sqlstate in NOT_FOUND else None
    if found is None:
        return ""
    return (
        f"the function {found[0]} of this database references a missing or unqualified object (Headrace's sessions"
        f" have an empty search_path): {remedy_of(found[0], found[1])} -- with all schemas that it needs"
    )


def remedy_of(function: str, schema: str) -> str:
    """Return the statement that lets a function find objects in its own schema, whoever calls it.

    Args:
        function: with its schema and argument types, as the server prints it.
        schema: as the server prints it.
    """
    return f"ALTER FUNCTION {function} SET search_path = {schema};"


def error_from_sqlstate(sqlstate: str, message: str, *, hint: str = "", **context: str | int) -> DatabaseError:
    """Classify an error by its SQLSTATE.

    Args:
        sqlstate: five characters.
        message: one sentence, no row values.
        hint: how to fix it.
        context: names and counts.

    Returns:
        `DatabaseUnavailable` when the environment is at fault or the outcome is unknown, `DataError` when the database
        refused the data itself, else a plain `DatabaseError`; `context["sqlstate"]` is set, and `context["violates"]`
        as for `DestinationSession`.
    """
    kind: type[DatabaseError] = DatabaseError
    if (
        sqlstate[:2] in _UNAVAILABLE_CLASSES
        or sqlstate in _UNAVAILABLE_STATES
        or (sqlstate == "XX000" and _MET_DDL.search(message))
    ):
        kind = DatabaseUnavailable
    elif sqlstate[:2] in _DATA_CLASSES:
        kind = DataError
    if sqlstate in _DROPPED and _DROPPED[sqlstate].search(message):
        message, hint = f"{message}: the schema headrace is damaged there", INSTANTIATE_AGAIN
    violated = {"violates": _VIOLATIONS[sqlstate]} if sqlstate in _VIOLATIONS else {}
    return kind(message, hint=hint, **_texts({**context, **violated, "sqlstate": sqlstate}))


def database_identity(connection: psycopg.Connection[Any]) -> str:
    """Return what distinguishes this database from every other one, whatever name it is reached by.

    A physical copy of a server has the same system identifier and database numbers, but another start time.
    """
    row = connection.execute(
        "SELECT c.system_identifier, d.oid::int8, extract(epoch FROM pg_catalog.pg_postmaster_start_time())"
        " FROM pg_catalog.pg_control_system() c, pg_catalog.pg_database d WHERE d.datname ="
        " pg_catalog.current_database()"
    ).fetchone()
    assert row is not None
    return f"postgres {row[0]} {row[1]} {row[2]}"


def quote(name: str) -> str:
    """Return an identifier, quoted."""
    return sql.Identifier(name).as_string(None)


def qualified(owner: str, name: str) -> str:
    """Return a table's, type's or function's name, qualified and quoted for SQL.

    Args:
        owner: schema, as in the catalog.
        name: the name, as in the catalog.
    """
    return sql.Identifier(owner, name).as_string(None)


def storable(connection: psycopg.Connection[Any], text: str) -> str:
    """Return a text that a column of type text accepts in this database, whatever it contains.

    Recording something about a value must not fail because of the value.

    Args:
        connection: to the database.
        text: may have characters that the database's encoding lacks. NUL is removed; in an encoding other than UTF8,
            non-ASCII characters are escaped.
    """
    found = text.replace("\0", "")
    return (
        found
        if connection.info.parameter_status("server_encoding") == "UTF8"
        else found.encode("ascii", "backslashreplace").decode()
    )


def _joined(*parts: str | None) -> str:
    return ".".join(part for part in parts if part)


def _texts(context: dict[str, str | int]) -> dict[str, Any]:
    return dict(context)
