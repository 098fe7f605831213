"""Checks that users' SQL leaves an apply server's session unchanged.

They cover settings, role, replication origin, locks and prepared statements.

Users' SQL is that of handlers, and of triggers and rules that also fire for apply's writes. Functions in it can change
the session. Headrace detects such changes but does not prevent them:

- `check` runs after each round trip of handlers' statements, and before the COMMIT. It checks the settings, the role and
  the replication origin.
- `owner_check` also runs before the COMMIT. It checks the session's advisory locks.

A failed check fails the transaction, and the session is replaced, because a rollback does not undo every change. Other
leftovers are found only after the COMMIT: advisory locks that a function took, and channels that it listens to. They
are removed before the next transaction.

The session recognizes its replication origin by the position `SessionIdentity.origin_mark`, which every commit under the
origin records. PostgreSQL tells a session that it has an origin, and the origin's position, but not which origin it is.
A session without the right to query or to write that position knows only whether it has an origin.
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
    # Meaning of a commit, and visibility of rows.
    "synchronous_commit",
    "row_security",
    "search_path",
    # Input and output of statements and values.
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
    # Settings that end a session or refuse its transactions.
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
    "default_transaction_read_only",
    "default_transaction_isolation",
    "default_transaction_deferrable",
    # Name of the session for operators.
    "application_name",
)
"""Settings that users' SQL must not change, in addition to those that the session sets.

Settings that a server does not know are skipped.
"""

SETTLE = (
    "SELECT pg_catalog.set_config(name, coalesce(value, pg_catalog.current_setting(name)), false)"
    " FROM unnest(%s::text[], %s::text[]) s(name, value) WHERE pg_catalog.current_setting(name, true) IS NOT NULL"
)
"""Statement that fixes settings for the session's lifetime; NULL keeps the present value.

Otherwise a reload of the server's configuration would look like a change by a handler.
"""

# Not LOCAL, so that it also resets a value that a function set for the session.
NO_TIMEOUT = Statement(sql="SET SESSION statement_timeout TO DEFAULT")

_CHECK, _CHECK_ORIGIN = "headrace_handled", "headrace_origin"
_DIVISION_BY_ZERO = "22012"
_GONE = "26000"  # a prepared statement does not exist
_CANCELED = "57014"  # canceled by a statement_timeout that users' SQL has set: the check itself has no timeout
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
# A lock must be released as often as it was taken, but pg_locks shows it once.
_UNLOCK_ROUNDS_MAX = 100


def timeout_of(timeout_s: float) -> Statement:
    """Return the statement that sets a timeout for the following statements of the transaction."""
    return Statement(sql=f"SET LOCAL statement_timeout TO {max(1, int(timeout_s * 1000))}")


class SessionGuard:
    """Expected state of one session, and the users' SQL that ran in its transaction.

    Args:
        connection: connection of the session, with its settings, locks and origin.
        identity: identity of the session.
        names: settings that must stay, in addition to `KEPT`.
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
        self._own_role: str | None = None  # None: `note` was not called yet
        self.role = ""
        """Role taken for the transaction; empty for none."""
        self.ran_handlers = False
        self._fired: dict[str, None] = {}
        self.is_changed = False
        """Users' SQL has changed the session permanently: a rollback does not undo every change."""

    @property
    def is_needed(self) -> bool:
        """True when users' SQL has run in the transaction."""
        return self.ran_handlers or bool(self._fired)

    def fired(self, table: str) -> None:
        """Note a write to a table whose triggers or rules fire."""
        self._fired[table] = None

    def begin(self) -> None:
        """Reset the state of the transaction."""
        self.role, self.ran_handlers = "", False
        self._fired.clear()

    @property
    def is_noted(self) -> bool:
        """True when `note` was called, which is needed once per session."""
        return self._own_role is not None

    def note(self) -> None:
        """Note the expected state of the session, before the first SQL of users and before another role is taken.

        The prepared statements outlive the transaction.
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
        """Return the condition that the session has its own origin, as far as its role may query it."""
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
        """Wrap statements on Headrace's tables so that they run with the session's own rights.

        A role that was taken for the rows (`role`) has no rights on these tables, and needs none.

        Args:
            statements: statements on Headrace's tables.
        """
        return (
            [Statement(sql="RESET ROLE"), *statements, Statement(sql=f"SET LOCAL ROLE {quote(self.role)}")]
            if self.role and statements
            else statements
        )

    # ------------------------------------------------------------------ checks

    def check(self, own_type: str) -> list[Statement]:
        """Return statements that fail unless the session is as `note` found it (`raise_changed`).

        A role that was taken may not query the origin; the check before the COMMIT does it then.

        Args:
            own_type: a type that the session has created and DISCARD TEMP would drop; empty for none.
        """
        role = self.role or self._own_role or ""
        found = [Statement(sql=f"EXECUTE {_CHECK} ({sql.Literal(role).as_string(None)})")]
        if own_type:
            found.append(Statement(sql=f"SELECT 1 / (pg_catalog.to_regtype('{own_type}') IS NOT NULL)::int4"))
        return found if self.role else [*found, Statement(sql=f"EXECUTE {_CHECK_ORIGIN}")]

    def owner_check(self) -> Statement:
        """Return the statement that fails unless the session has its advisory locks (`raise_changed`).

        Its result tells whether the session has other locks, or listens to channels.
        """
        own = f"objsubid = 1 AND (classid, objid) IN ({self._pairs})"
        count = f"pg_catalog.count(*) FILTER (WHERE {own}) OPERATOR(pg_catalog.=) {self._locks}"
        rest = f"pg_catalog.count(*) FILTER (WHERE objsubid <> 2 OR classid <> {MEETING_LOCKS}::oid)"
        others = (
            f"{rest} OPERATOR(pg_catalog.>) {self._locks} OR EXISTS (SELECT FROM pg_catalog.pg_listening_channels())"
        )
        return Statement(sql=_OWN_LOCKS.format(f"1 / ({count})::int4, {others}"))

    def raise_changed(self, error: DatabaseError, *, is_check: bool) -> None:
        """Raise a `DataError` if an error means that users' SQL has changed the session.

        Args:
            error: error of a statement after users' SQL.
            is_check: whether the statement was one of the checks.

        Raises:
            DataError: users' SQL has changed the session, which must be replaced (`is_changed`).
        """
        changed = self._changed(error, is_check=is_check)
        if changed is not None:
            self.is_changed = True
            raise changed from error

    def _changed(self, error: DatabaseError, *, is_check: bool) -> DataError | None:
        """Return the error for users whose SQL changed the session; None when that is not the cause."""
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
        """Return whether the result of `owner_check` shows leftovers to remove after the commit."""
        return result.get_value(0, 1) == b"t"

    def take_back(self) -> bool:
        """After a commit, release advisory locks that are not the session's own, and stop listening to channels.

        Return False when some locks remain.
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
