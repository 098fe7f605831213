"""Advisory locks that are waited for with a bound.

Their numbers can be computed, and any role that may connect to a database can take them, for as long as it likes. A
wait without a bound would hold a command or a process up for ever, without a word.
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

# Who waits for the lock alone keeps out everybody who comes later, too. A shared one keeps nobody from sharing.
_IN_THE_WAY = f"""
SELECT l.pid, a.usename, a.application_name FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a USING (pid)
WHERE {_SAME_LOCK} AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid() AND (l.mode = 'ExclusiveLock' OR l.granted AND NOT %(shared)s)
ORDER BY l.granted DESC, l.pid LIMIT 1
"""


def _numbers(key: int) -> dict[str, int]:
    """The two halves of a lock's number, as `pg_locks` shows it."""
    return {"high": (key >> 32) & 0xFFFFFFFF, "low": key & 0xFFFFFFFF}


def wait_transaction_lock(connection: psycopg.Connection[Any], key: int, *, what: str, timeout_s: float) -> None:
    """Take an advisory lock alone, until the transaction ends.

    Args:
        connection: in a transaction; its next statement sees what those who had the lock before have committed.
        key: number of the lock.
        what: the lock is for, for the message.
        timeout_s: seconds.

    Raises:
        DatabaseUnavailable: another session has it for longer; the message names that session.
    """
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    setting = "SELECT pg_catalog.set_config('lock_timeout', %s, true)"
    try:
        with connection.transaction():  # a savepoint: who waited in vain can still ask who is in the way
            before = connection.execute("SELECT pg_catalog.current_setting('lock_timeout')").fetchone()
            connection.execute(setting, (f"{timeout_s * 1000:.0f}ms",))
            # The server lets those who wait have it in their order; who only tries may be overtaken for ever.
            connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s)", (key,))
            connection.execute(setting, before)
    except psycopg.errors.LockNotAvailable as error:
        raise held_by_another(connection, key, what=what) from error


def held_by_another(
    connection: psycopg.Connection[Any], key: int, *, what: str, shared: bool = False
) -> DatabaseUnavailable:
    """Make the error for a lock that did not become free.

    Args:
        connection: to ask who is in the way.
        key: number of the lock.
        what: the lock is for.
        shared: it was to be shared.
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
