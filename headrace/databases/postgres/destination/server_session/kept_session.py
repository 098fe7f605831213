"""What users' SQL must leave of an apply server's session as it was.

Settings, role, replication origin, locks, prepared statements.

Users' SQL is that of handlers, and of triggers and rules that also fire for what apply writes. A function in it can
change what the session is. That is found, not prevented:

- `check` runs behind each round trip of handlers' statements, and before the COMMIT: the settings, the role, the
  replication origin.
- `owner_check` runs before the COMMIT besides it: the session's advisory locks.

Both fail the transaction, and the session is replaced: not all of that goes with a rollback. What is found after the
COMMIT only (advisory locks of the function's own, channels it listens to) is taken back before the next transaction.

The replication origin is known by the position `SessionIdentity.origin_mark`, which every commit under it records:
PostgreSQL tells a session that it has an origin, and how far that is, but not which one. A session that must not ask,
or cannot write that position, only knows whether it has an origin.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg
from psycopg import pq, sql

from headrace.base.errors import DatabaseError, DataError
from headrace.databases.postgres.connection import quote
from headrace.databases.postgres.destination.fencing import (
    MEETING_LOCKS,
    STAMP_FUNCTION,
    SessionIdentity,
    apply_lock_key,
)
from headrace.databases.postgres.pipeline import Statement

__all__ = ["KEPT", "NO_TIMEOUT", "SETTLE", "SessionGuard", "timeout_of"]

KEPT = (
    # What a commit means, and who may read which rows.
    "synchronous_commit",
    "row_security",
    "search_path",
    # How statements and values are read and written.
    "standard_conforming_strings",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "timezone_abbreviations",
    "bytea_output",
    "extra_float_digits",
    "client_encoding",
    "xmloption",
    "xmlbinary",
    "lc_monetary",
    "lc_numeric",
    "lc_time",
    "array_nulls",
    "backslash_quote",
    "transform_null_equals",
    "default_text_search_config",
    # What ends a session or refuses its transactions.
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
    "default_transaction_read_only",
    "default_transaction_isolation",
    "default_transaction_deferrable",
    # What operators know it by.
    "application_name",
)
"""Settings that users' SQL must leave as they were, besides those that the session sets; a server that does not know
one has no such setting.
"""

SETTLE = (
    "SELECT pg_catalog.set_config(name, coalesce(value, pg_catalog.current_setting(name)), false)"
    " FROM unnest(%s::text[], %s::text[]) s(name, value) WHERE pg_catalog.current_setting(name, true) IS NOT NULL"
)
"""Sets settings for the session's life; a value that is NULL stays what it is: otherwise a reload of the server's
configuration would look like a
change by a handler.
"""

# not LOCAL: what a function has set for the session goes too
NO_TIMEOUT = Statement(sql="SET SESSION statement_timeout TO DEFAULT")

_CHECK, _CHECK_ORIGIN = "headrace_handled", "headrace_origin"
_DIVISION_BY_ZERO = "22012"
_GONE = "26000"  # a prepared statement
_CANCELED = "57014"  # by a statement_timeout that users' SQL has set: the check has no bound of its own
_HINT = (
    "do not call set_config, pg_advisory_unlock_all, pg_replication_origin_session_reset or the like, nor SET or"
    " DEALLOCATE in a function; a function's own SET clause ends with it"
)
_MAY = "SELECT pg_catalog.has_function_privilege(%s, 'EXECUTE')"
_IS_SET_UP = "pg_catalog.pg_replication_origin_session_is_setup()"
_PROGRESS = "pg_catalog.pg_replication_origin_session_progress(pg_catalog.bool)"
_OWN_LOCKS = (
    "SELECT {} FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_catalog.pg_backend_pid()"
)
# A lock is counted as often as it was taken, and pg_locks says that once.
_UNLOCK_ROUNDS_MAX = 100


def timeout_of(timeout_s: float) -> Statement:
    """What bounds the statements that follow in the transaction."""
    return Statement(sql=f"SET LOCAL statement_timeout TO {max(1, int(timeout_s * 1000))}")


class SessionGuard:
    """Knows how one session must be, and whose SQL ran in its transaction.

    Args:
        connection: of the session, settled.
        identity: whose it is.
        names: settings that must stay, besides `KEPT`.
    """

    def __init__(self, connection: psycopg.Connection[Any], identity: SessionIdentity, names: Iterable[str]) -> None:
        self._connection, self._names = connection, (*names, *KEPT)
        keys = [
            apply_lock_key(identity.topology, identity.apply),
            apply_lock_key(identity.topology, identity.apply, identity.server),
        ]
        self._pairs = ", ".join(f"({key >> 32 & 0xFFFFFFFF}::oid, {key & 0xFFFFFFFF}::oid)" for key in keys)
        self._locks = len(set(keys))
        self._mark = identity.origin_mark
        self._own_role: str | None = None  # None: how the session must be was not noted yet
        self.role = ""
        """Taken for the transaction; empty: none."""
        self.ran_handlers = False
        self._fired: dict[str, None] = {}
        self.is_changed = False
        """Users' SQL has changed the session, for good: that does not all go with a rollback."""

    @property
    def is_needed(self) -> bool:
        """Whether users' SQL has run in the transaction."""
        return self.ran_handlers or bool(self._fired)

    def fired(self, table: str) -> None:
        """Note that a table with triggers or rules that fire was written."""
        self._fired[table] = None

    def begin(self) -> None:
        """Another transaction."""
        self.role, self.ran_handlers = "", False
        self._fired.clear()

    @property
    def is_noted(self) -> bool:
        """Whether `note` was called: once for a session."""
        return self._own_role is not None

    def note(self) -> None:
        """Before the first SQL of users, and before another role is taken: note how the session must be.

        What is prepared outlives the transaction.
        """
        found = self._connection.execute(
            "SELECT name, pg_catalog.current_setting(name) FROM unnest(%s::text[]) AS s(name) WHERE"
            " pg_catalog.current_setting(name, true) IS NOT NULL UNION ALL SELECT 'session_authorization', session_user"
            " UNION ALL SELECT 'transaction_read_only', 'off'",
            (list(self._names),),
        ).fetchall()
        same = sql.SQL(" AND ").join(
            sql.SQL("pg_catalog.current_setting({}) OPERATOR(pg_catalog.=) {}").format(
                sql.Literal(name), sql.Literal(value)
            )
            for name, value in found
        )
        self._connection.execute(
            sql.SQL(
                "PREPARE {} (text) AS SELECT 1 / (pg_catalog.current_setting('role') OPERATOR(pg_catalog.=) $1 AND"
                " {})::int4"
            ).format(sql.SQL(_CHECK), same)
        )
        self._connection.execute(f"PREPARE {_CHECK_ORIGIN} AS SELECT 1 / ({self._same_origin()})::int4".encode())
        row = self._connection.execute("SELECT pg_catalog.current_setting('role')").fetchone()
        assert row is not None
        self._own_role = str(row[0])

    def _same_origin(self) -> str:
        """The condition that the session's origin is its own, as far as its role may ask."""
        may = [
            bool((self._connection.execute(_MAY, (each,)).fetchone() or [False])[0])
            for each in (_IS_SET_UP, _PROGRESS, STAMP_FUNCTION)
        ]
        if all(may):
            return (
                f"CASE WHEN {_IS_SET_UP} THEN pg_catalog.pg_replication_origin_session_progress(false)"
                f" IS NOT DISTINCT FROM '{self._mark}'::pg_catalog.pg_lsn ELSE false END"
            )
        return _IS_SET_UP if may[0] else "true"

    def with_own_rights(self, statements: list[Statement]) -> list[Statement]:
        """Statements of what Headrace notes beside the rows.

        A role that was taken for these (`role`) has no rights on it, and needs none.

        Args:
            statements: of Headrace's tables.
        """
        return (
            [Statement(sql="RESET ROLE"), *statements, Statement(sql=f"SET LOCAL ROLE {quote(self.role)}")]
            if self.role and statements
            else statements
        )

    # ------------------------------------------------------------------ checks

    def check(self, own_type: str) -> list[Statement]:
        """Fail (`raise_changed`) unless the session is as `note` found it.

        A role that is taken may not ask about the origin: then that is asked before the COMMIT.

        Args:
            own_type: one that the session has made, and DISCARD TEMP would drop; empty: it has made none.
        """
        role = self.role or self._own_role or ""
        found = [Statement(sql=f"EXECUTE {_CHECK} ({sql.Literal(role).as_string(None)})")]
        if own_type:
            found.append(Statement(sql=f"SELECT 1 / (pg_catalog.to_regtype('{own_type}') IS NOT NULL)::int4"))
        return found if self.role else [*found, Statement(sql=f"EXECUTE {_CHECK_ORIGIN}")]

    def owner_check(self) -> Statement:
        """Fails (`raise_changed`) unless the session has its advisory locks.

        Returns whether there are others, or channels it listens to.
        """
        own = f"objsubid = 1 AND (classid, objid) IN ({self._pairs})"
        count = f"pg_catalog.count(*) FILTER (WHERE {own}) OPERATOR(pg_catalog.=) {self._locks}"
        rest = f"pg_catalog.count(*) FILTER (WHERE objsubid <> 2 OR classid <> {MEETING_LOCKS}::oid)"
        others = (
            f"{rest} OPERATOR(pg_catalog.>) {self._locks} OR EXISTS (SELECT FROM pg_catalog.pg_listening_channels())"
        )
        return Statement(sql=_OWN_LOCKS.format(f"1 / ({count})::int4, {others}"))

    def raise_changed(self, error: DatabaseError, *, is_check: bool) -> None:
        """Raise what an error means if users' SQL has changed the session.

        Args:
            error: of a statement behind users' SQL.
            is_check: whether the statement was one of the checks.

        Raises:
            DataError: it has; the session must be replaced (`is_changed`).
        """
        changed = self._changed(error, is_check=is_check)
        if changed is not None:
            self.is_changed = True
            raise changed from error

    def _changed(self, error: DatabaseError, *, is_check: bool) -> DataError | None:
        """The users' error that an error means; None: it is none of a session that they changed."""
        state = error.context.get("sqlstate")
        if not self.is_needed or not (state == _GONE or (is_check and state in {_DIVISION_BY_ZERO, _CANCELED})):
            return None
        who = ["a handler's SQL"] if self.ran_handlers else []
        who += [f"a trigger or rule of {', '.join(self._fired)}"] if self._fired else []
        return DataError(
            f"{' or '.join(who)} changed the apply server's session: its settings, role, replication origin, locks,"
            " temporary types or prepared statements",
            hint=_HINT,
            sqlstate="",
            changed="session",
        )

    # ------------------------------------------------------------------ after the commit

    @staticmethod
    def has_rest(result: pq.abc.PGresult) -> bool:
        """Whether something is to be taken back after the commit.

        Args:
            result: of `owner_check`.
        """
        return result.get_value(0, 1) == b"t"

    def take_back(self) -> bool:
        """After a commit, let go of advisory locks that are not the session's own, and of channels.

        False: some are left.
        """
        self._connection.execute("UNLISTEN *")
        wanted = (
            _OWN_LOCKS.format("classid::int8, objid::int8, objsubid, mode")
            + f" AND NOT (objsubid = 1 AND (classid, objid) IN ({self._pairs}))"
        )
        for _ in range(_UNLOCK_ROUNDS_MAX):
            found = self._connection.execute(wanted.encode()).fetchall()
            if not found:
                return True
            for upper, lower, part, mode in found:
                name = "pg_advisory_unlock_shared" if mode == "ShareLock" else "pg_advisory_unlock"
                keys = (_signed(upper << 32 | lower, 64),) if part == 1 else (_signed(upper, 32), _signed(lower, 32))
                kinds = "%s::int8" if part == 1 else "%s::int4, %s::int4"
                self._connection.execute(f"SELECT pg_catalog.{name}({kinds})".encode(), keys)
        return False


def _signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> (bits - 1) else number
