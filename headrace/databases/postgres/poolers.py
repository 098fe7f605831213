"""Connection poolers in front of a server, which lend a process of the server for one transaction.

A session of a process that holds advisory locks, a replication origin and settings must stay with that process. Through
a pooler in transaction mode (PgBouncer: `pool_mode = transaction`) every transaction may meet another one, and what
belongs to the session stays behind, where it holds up somebody else.

A pooler speaks the protocol itself: the number of the process that it tells a client, for requests to cancel, is its
own. What only forwards bytes (HAProxy, a tunnel) tells the server's. Whether a pooler keeps a process for a session is
seen from what it lends: another session's transaction gets the process of one that is open, or that one gets another.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg

from headrace.databases.ports import Finding
from headrace.databases.postgres.connection import connection_string

__all__ = ["pooler_findings"]

# A pooler lends the process that was used last, which another transaction gets at once, or the one that was idle for
# longest, and then the same session gets another one. A few more, for one that others use at that moment.
_SESSIONS = 3
# A pool that is full lets a session wait for minutes. One that was answered before has a process of its own, or waits.
_ANSWER_S = 5.0
_NAME = "headrace look for poolers"
_PROCESS = "SELECT pg_catalog.pg_backend_pid()"


def pooler_findings(connection: psycopg.Connection[Any], dsn: str, path: str) -> Iterator[Finding]:
    """What is to be said of a pooler that a connection string leads to.

    Args:
        connection: by that string.
        dsn: the string.
        path: of the finding: the site in the topology.
    """
    row = connection.execute(_PROCESS).fetchone()
    if row is None or row[0] == connection.info.backend_pid or not _lends_for_transactions(dsn):
        return
    yield Finding(
        path=path,
        problem=f"{connection.info.host}:{connection.info.port} is a connection pooler that lends a process of the"
        " server for one transaction (PgBouncer: pool_mode = transaction): advisory locks, replication origins, prepared"
        " statements and settings of a session are lost between its transactions",
        fix="let the connection string lead to the server itself, or to a pool that keeps a process for a whole session"
        " (pool_mode = session)",
    )


def _lends_for_transactions(dsn: str) -> bool:
    """Whether a pooler lends processes for transactions; False where a full pool does not let it be seen."""
    text = connection_string(dsn, application_name=_NAME)
    with ExitStack() as opened, contextlib.suppress(psycopg.OperationalError):

        def session() -> psycopg.Connection[Any]:
            return opened.enter_context(closing(psycopg.connect(text, autocommit=True)))

        first = session()
        own = _process(first)
        for _ in range(_SESSIONS if own is not None else 0):
            other = _process(session(), begin=True)
            again = _process(first)
            # No answer to the first one: its process was lent to the other one, and the pool has no more.
            if other == own or again not in {None, own} or (other is not None and again is None):
                return True
            if other is None:
                return False
    return False


def _process(connection: psycopg.Connection[Any], *, begin: bool = False) -> int | None:
    """The number of the process that executes a session's statement; None: no answer came in time, or a refusal.

    Args:
        connection: in autocommit mode.
        begin: in a transaction that stays open.
    """
    session = connection.pgconn
    session.send_query((f"BEGIN; {_PROCESS}" if begin else _PROCESS).encode())
    deadline = time.monotonic() + _ANSWER_S
    found = None
    with selectors.DefaultSelector() as selector:
        selector.register(session.socket, selectors.EVENT_READ)
        while True:
            while session.is_busy():
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                session.consume_input()
            result = session.get_result()
            if result is None:
                return found
            if result.status == psycopg.pq.ExecStatus.TUPLES_OK:
                found = int(result.get_value(0, 0) or 0)
