"""Connections to PostgreSQL: pinned session settings, and its errors in Headrace's words."""

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

# Values must have one text form whatever the role's or the database's defaults are, names must be spelled out
# wherever the server prints them, and nobody else's time-outs may end a session that waits on purpose.
# `default_transaction_read_only` is how operators protect a copy, or a source before a switch-over, from others: a
# server's own apply is not bound by it.
_SETTINGS = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "lc_monetary": "C",  # the text form of money
    "xmloption": "content",  # `document` would refuse fragments that a column may hold
    "search_path": "",
    "standard_conforming_strings": "on",  # conditions of rules are written for it
    # a statement behind a lock sees what was committed while it waited for that
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "array_nulls": "on",  # NULL in an array's text form is no string
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",  # types are compared by the names that the server prints
    "default_table_access_method": "heap",  # the tables of the schema headrace are updated and deleted from
    "exit_on_error": "off",  # a refused row goes back to a savepoint
    "row_security": "off",  # an error instead of rows that silently stay invisible
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
_SETTINGS_FROM_17 = {"transaction_timeout": "0"}

# Only where the dsn does not say otherwise. A peer that vanished without a word is noticed after 20 + 3 * 5 s.
_CONNECTION_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "35000",  # the same when something sent was never acknowledged: no keepalives then
}

NOT_IN_STATE = "55000"
# The environment is at fault, or the outcome is unknown: the same call may succeed later.
_UNAVAILABLE_CLASSES = frozenset({"08", "53", "57", "58"})
# 25006: the server is (for now) a standby, as sessions say that their transactions write (`_SETTINGS`). 25P03, 25P04: a
# time-out set at the server ended the session. 55006, 55P03: another session uses or locks something. 55000: a
# snapshot's session ended, or a database takes no connections; see `write_errors` for rows. The rest of class 55 (a
# parameter that cannot change, an enum's value that its own transaction made) fails each time, and what the server
# itself never says of class 40 (40000, 40002) is the word of whoever wrote a trigger.
_UNAVAILABLE_STATES = frozenset({"40001", "40003", "40P01", "25006", "25P03", "25P04", NOT_IN_STATE, "55006", "55P03"})
# Internal errors (XX000, never translated) of a statement that meets DDL of another session: what the snapshot shows is
# gone from the server's caches, or is changed by both.
_MET_DDL = re.compile(
    r": (?:cache lookup failed for|could not find tuple for|could not open relation with OID|tuple concurrently"
    r" (?:updated|deleted))"
)
# A schema, table, column, type or function that is not there.
NOT_FOUND = frozenset({"3F000", "42P01", "42703", "42704", "42883"})
# In the server's words of what is not there, in whatever language: a table of our own, or the schema, which somebody
# dropped. Functions are none of these: users call them, with wrong arguments too, and are not told to copy everything.
_OWN_TABLES = (
    "apply_(?:epoch|error(?:_edit|_key|_original|_part)?|process|progress|session|state)|conflict_history"
    "|handler_call|instantiation"
    "|row_change(?:_set(?:_time)?)?|row_mark|schema_version"
)
_DROPPED = {
    "3F000": re.compile(r"(?<![\w.])headrace(?![\w.])"),
    "42P01": re.compile(rf"(?<![\w.])headrace\.(?:{_OWN_TABLES})(?!\w)"),
}
# In the context of an error: where the search_path is empty, a function of users has its schema, whatever language the
# server speaks. The context holds texts of users, and what is found there is printed in a statement: names and types
# alone.
_FUNCTION = re.compile(r"""((?:"(?:[^"]|"")+"|[\w$]+))\.(?:"(?:[^"]|"")+"|[\w$]+)\((?:"[^"]*"|[\w$ .,\[\]])*\)(?= )""")
# Constraints whose violation is a conflict of its own; an exclusion constraint is a unique key by other operators.
_VIOLATIONS = {"23505": "unique", "23P01": "unique", "23503": "foreign_key"}
# libpq gives no SQLSTATE of a connection that is refused, only the server's words.
_UNREACHED = (
    "see that the server runs, and takes connections as the dsn says (address, role, password, pg_hba.conf,"
    " max_connections)"
)
# In the server's words where it speaks English; a name's quotation marks are not doubled.
_CLOSED = re.compile(r'FATAL: +database "(.+)" is not currently accepting connections')
_PORTS = re.compile(r"[0-9, ]*")
_BEHIND_HOST = re.compile(r"\s*postgres(?:ql)?://[^/?]*(.*)", re.DOTALL)
# What messages of class 22 give of a value: in quotation marks, up to the last one, for the value may have some; of
# letters (22021, 22P05) the bytes, where names of encodings are quoted.
_QUOTED = re.compile('["\u201e\u201c\u00ab\u00bb].*["\u201c\u201d\u00ab\u00bb]', re.DOTALL)
_BYTES = re.compile(r"0x[0-9a-f]{2}(?: 0x[0-9a-f]{2})*")
NOT_UTF8 = "a text is not UTF-8, and a database with the encoding SQL_ASCII keeps none out"
_LETTER_STATES = frozenset({"22021", "22P05"})
_DATA_CLASSES = frozenset({"21", "22", "23", "44"})


def connection_string(dsn: str, *, application_name: str, **parameters: str) -> str:
    """Complete a dsn.

    Args:
        dsn: libpq connection string or URI.
        application_name: what the session calls itself in `pg_stat_activity`.
        parameters: libpq parameters that win over the dsn's.

    Raises:
        ConfigError: the dsn cannot be parsed.
    """
    given = connection_parameters(dsn)
    defaults = {key: value for key, value in _CONNECTION_DEFAULTS.items() if key not in given}
    # PostgreSQL cuts longer names, with a notice.
    fixed = {"application_name": application_name[:63], "client_encoding": "UTF8"}
    return conninfo.make_conninfo(dsn, **{**defaults, **fixed, **parameters})


def connection_parameters(dsn: str) -> dict[str, Any]:
    """The parameters that a dsn sets, by libpq's names; a password may be among them.

    Raises:
        ConfigError: the dsn cannot be parsed, or a part of its password would be taken for a host or a port. No part of
            it is in the error, nor in what caused it: logs show that too.
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
    # A leading @ is a socket in Linux's abstract namespace. An @ behind the host of a URI: all before it was the
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
    """The hosts that a dsn leads to, or what stands for them; an empty one is this machine.

    Raises:
        ConfigError: the dsn cannot be parsed.
    """
    given = connection_parameters(dsn)
    named = str(given.get("hostaddr") or given.get("host") or "")
    if not named and (service := _service(given)):
        return (f"service {service}",)  # a file of the user's says where it is
    return tuple((named or os.environ.get("PGHOST", "")).split(","))


def unused_secrets(dsns: Iterable[str]) -> frozenset[str]:
    """Variables of libpq that have a secret which it takes for none of these dsns.

    One that cannot be parsed may take it.
    """
    for dsn in dsns:
        try:
            if not connection_parameters(dsn).get("password"):
                return frozenset()
        except ConfigError:
            return frozenset()
    return frozenset({"PGPASSWORD"})


def has_password(text: str) -> bool:
    """Whether a text is a dsn with a password in it, or a URI that may be one with a typing error."""
    is_uri = text.startswith(("postgresql://", "postgres://"))
    if not is_uri and "password" not in text:
        return False
    try:
        return bool(connection_parameters(text).get("password"))
    except ConfigError:
        return is_uri


def _service(given: Mapping[str, Any]) -> str:
    return str(given.get("service") or os.environ.get("PGSERVICE", ""))


def is_verified(dsn: str) -> bool:
    """Whether libpq refuses a server whose certificate its authority has not signed.

    `verify-ca` takes every server of that authority: enough where it signs for databases alone. With
    `sslrootcert=system` libpq takes `verify-full` by itself. The dsn alone counts. Variables (`PGSSLMODE`) are those of
    the shell that asks, and Ray's processes, which connect, have others. A service file is not read.

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
        application_name: what the session calls itself.
        autocommit: False: statements open transactions.
        parameters: further libpq parameters, e.g. `replication="database"`.

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
    """The statements that pin a session's settings, to be sent as one query.

    Args:
        server_version: as libpq tells it, e.g. 180004.
    """
    settings = {**_SETTINGS, **(_SETTINGS_FROM_17 if server_version >= 170000 else {})}
    return sql.SQL("; ").join(
        sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value)) for name, value in settings.items()
    )


@contextlib.contextmanager
def translated(what: str, **context: str | int) -> Iterator[None]:
    """Raise psycopg's errors as `headrace.base.errors`; `what` says what was being done ("connecting")."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, what, **context) from error


def translate(error: psycopg.Error, what: str, **context: str | int) -> DatabaseError:
    """The `DatabaseError` that says the same.

    Never with row values (DETAIL is left out, and what the text of class 22 quotes or gives as bytes).

    Args:
        error: from psycopg.
        what: what was being done.
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
        # Without a SQLSTATE it is libpq or psycopg that speaks: mostly of a broken or refused connection.
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
    """The statement that lets sessions into a database that takes none; empty: that is not why it is not reached."""
    found = _CLOSED.search(message)
    return (
        f"ALTER DATABASE {quote(found[1])} ALLOW_CONNECTIONS true; {remark('in another database of its server')}"
        if found
        else ""
    )


def without_values(sqlstate: str, message: str) -> str:
    """A server's message without what it gives of values.

    Args:
        sqlstate: of the error.
        message: its own words.
    """
    if sqlstate[:2] != "22":
        return message
    return _BYTES.sub("0x...", message) if sqlstate in _LETTER_STATES else _QUOTED.sub('"..."', message)


def is_not_utf8(sqlstate: str, message: str) -> bool:
    """Whether a server found bytes that are no text in UTF-8, and not a zero byte, which no text has.

    Args:
        sqlstate: of the error.
        message: its own words.
    """
    return sqlstate == "22021" and "UTF8" in message and not message.endswith("0x00")


def _function_hint(sqlstate: str, where: str) -> str:
    """What to do about a function of users, as of an event trigger, that does not find what it names.

    Empty: the error is none of a function.
    """
    found = _FUNCTION.search(where) if sqlstate in NOT_FOUND else None
    if found is None:
        return ""
    return (
        f"the function {found[0]} of this database names what is not there, or without its schema (Headrace's sessions"
        f" have an empty search_path): {remedy_of(found[0], found[1])} -- with all schemas that it needs"
    )


def remedy_of(function: str, schema: str) -> str:
    """The statement that lets a function find what is in its own schema, whoever calls it.

    Args:
        function: with its schema and its arguments' types, as the server prints it.
        schema: as the server prints it.
    """
    return f"ALTER FUNCTION {function} SET search_path = {schema};"


def error_from_sqlstate(sqlstate: str, message: str, *, hint: str = "", **context: str | int) -> DatabaseError:
    """Classify an error by its SQLSTATE.

    Args:
        sqlstate: five characters.
        message: one sentence, no row values.
        hint: what to do about it.
        context: names and counts.

    Returns:
        `DatabaseUnavailable` when the environment is at fault or the outcome is unknown, `DataError` when the
        database refused the data itself, else a plain `DatabaseError`; `context["sqlstate"]` is set, and
        `context["violates"]` as `DestinationSession` says.
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
    """What tells this database from every other, whatever name it is reached by.

    A physical copy of a server has its system identifier and its databases' numbers; but it was started at another
    time.
    """
    row = connection.execute(
        "SELECT c.system_identifier, d.oid::int8, extract(epoch FROM pg_catalog.pg_postmaster_start_time())"
        " FROM pg_catalog.pg_control_system() c, pg_catalog.pg_database d WHERE d.datname ="
        " pg_catalog.current_database()"
    ).fetchone()
    assert row is not None
    return f"postgres {row[0]} {row[1]} {row[2]}"


def quote(name: str) -> str:
    """An identifier, quoted."""
    return sql.Identifier(name).as_string(None)


def qualified(owner: str, name: str) -> str:
    """A table's, type's or function's name, qualified and quoted for SQL.

    Args:
        owner: schema, as the catalog has it.
        name: in that schema, as the catalog has it.
    """
    return sql.Identifier(owner, name).as_string(None)


def storable(connection: psycopg.Connection[Any], text: str) -> str:
    """A text that a column of type text takes in this database, whatever it says.

    What is recorded of a value must not fail for the value.

    Args:
        connection: to the database.
        text: may have letters that the database's encoding lacks; without NUL, and there in ASCII, if it is another one
            than UTF8.
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
