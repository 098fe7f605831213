"""Advisory locks with a bounded wait.

Any role that may connect to a database can compute their numbers and hold them for as long as it likes. An unbounded
wait would block a command or a process for ever, silently.
"""

from __future__ import annotations

from typing import Any

import psycopg

from headrace.base.errors import DatabaseUnavailable

__all__ = ["held_by_another", "wait_transaction_lock"]

_SAME_LOCK = (
    "l.locktype = 'advisory' AND l.classid = %(high)s::oid AND l.objid = %(low)s::oid AND l.objsubid = 1"
    " AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())"
)
"""Condition on `pg_locks l`; its parameters are `_numbers`."""

# A session that waits for an exclusive lock also blocks everyone after it. A shared lock does not block sharing.
_IN_THE_WAY = f"""
SELECT l.pid, a.usename, a.application_name FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a USING (pid)
WHERE {_SAME_LOCK} AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid() AND (l.mode = 'ExclusiveLock' OR l.granted AND NOT %(shared)s)
ORDER BY l.granted DESC, l.pid LIMIT 1
"""


def _numbers(key: int) -> dict[str, int]:
    """Return the two halves of a lock's number, as `pg_locks` shows them."""
    return {"high": (key >> 32) & 0xFFFFFFFF, "low": key & 0xFFFFFFFF}


def wait_transaction_lock(connection: psycopg.Connection[Any], key: int, *, what: str, timeout_s: float) -> None:
    """Take an exclusive advisory lock until the transaction ends.

    Args:
        connection: in a transaction; its next statement sees what earlier holders of the lock have committed.
        key: number of the lock.
        what: purpose of the lock, for the message.
        timeout_s: longest wait, seconds.

    Raises:
        DatabaseUnavailable: another session holds it for longer; the message names that session.
    """
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    setting = "SELECT pg_catalog.set_config('lock_timeout', %s, true)"
    try:
        with connection.transaction():  # a savepoint, so that a failed wait can still query the holder
            before = connection.execute("SELECT pg_catalog.current_setting('lock_timeout')").fetchone()
            connection.execute(setting, (f"{timeout_s * 1000:.0f}ms",))
            # The server grants the lock in the order of waiting; a session that only tries may be overtaken for ever.
            connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s)", (key,))
            connection.execute(setting, before)
    except psycopg.errors.LockNotAvailable as error:
        raise held_by_another(connection, key, what=what) from error


def held_by_another(
    connection: psycopg.Connection[Any], key: int, *, what: str, shared: bool = False
) -> DatabaseUnavailable:
    """Build the error for a lock that did not become free.

    Args:
        connection: used to query the holder.
        key: number of the lock.
        what: purpose of the lock.
        shared: the lock was requested in shared mode.
    """
    row = connection.execute(_IN_THE_WAY.encode(), {**_numbers(key), "shared": shared}).fetchone()
    if row is None:
        return DatabaseUnavailable(f"the lock for {what} was not free", hint="no action needed: it is free now")
    pid, role, application = row
    if pid is None:
        return DatabaseUnavailable(
            f"a prepared transaction holds the lock for {what}",
            hint="SELECT gid, owner FROM pg_prepared_xacts WHERE database = current_database() names it: its user ends it"
            " with COMMIT PREPARED or ROLLBACK PREPARED",
        )
    shown = "".join(
        (f" of role {role}" if role else "", f", which calls itself {application!r}" if application else "")
    )
    return DatabaseUnavailable(
        f"session {pid}{shown} holds the lock for {what}",
        hint="if that is another command or process of Headrace, let it end; if not, its user took a lock that is not"
        f" theirs: have them end the session, or run SELECT pg_terminate_backend({pid}) as a superuser",
        pid=int(pid),
    )
