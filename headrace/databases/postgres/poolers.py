"""Connection poolers in front of a server that lend a server process for one transaction, or for one statement.

A session that holds advisory locks, a replication origin and settings must stay with its server process. Through a
pooler in transaction mode (PgBouncer: `pool_mode = transaction`) every transaction may run in another one. What belongs
to the session stays behind and blocks other sessions. In statement mode it ends every session that begins a
transaction.

A pooler speaks the protocol itself: the process number that it gives a client, for cancel requests, is its own. A plain
forwarder (HAProxy, a tunnel) passes on the server's. Whether a pooler keeps a process for a session shows in what it
lends: another session's transaction gets the process of an open session, or that session gets another process.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg

from headrace.databases.ports import Finding
from headrace.databases.postgres.connection import connection_string

__all__ = ["lends_for_statements", "pooler_findings"]

# A pooler lends either the most recently used process, which another transaction gets at once, or the one idle for
# longest, and then the same session gets another one. A few more sessions cover processes that others use meanwhile.
_SESSIONS = 3
# A full pool makes a session wait for minutes. A session answered before has its own process, or waits.
_ANSWER_S = 5.0
_NAME = "headrace look for poolers"
_FOR_STATEMENTS = "is a connection pooler in statement mode"
_PROCESS = "SELECT pg_catalog.pg_backend_pid()"


def pooler_findings(connection: psycopg.Connection[Any], dsn: str, path: str) -> Iterator[Finding]:
    """Report a pooler behind a connection string.

    Args:
        connection: opened with that string.
        dsn: the string.
        path: of the finding: the site in the topology.
    """
    row = connection.execute(_PROCESS).fetchone()
    lent_for = "" if row is None or row[0] == connection.info.backend_pid else _lent_for(dsn)
    if not lent_for:
        return
    yield Finding(
        path=path,
        problem=f"{connection.info.host}:{connection.info.port} "
        + (
            f"{_FOR_STATEMENTS} (PgBouncer: pool_mode = statement): it ends every session that begins a transaction"
            if lent_for == "statement"
            else "is a connection pooler that lends a process of the server for one transaction (PgBouncer: pool_mode ="
            " transaction): advisory locks, replication origins, prepared statements and settings of a session are lost"
            " between its transactions"
        ),
        fix="let the connection string lead to the server itself, or to a pool that keeps a process for a whole session"
        " (pool_mode = session)",
    )


def lends_for_statements(findings: Iterable[Finding]) -> bool:
    """Whether one of these findings names a pooler through which nothing else can be asked."""
    return any(_FOR_STATEMENTS in each.problem for each in findings)


def _lent_for(dsn: str) -> str:
    """Return for how long a pooler lends processes: "transaction", "statement" or, where nothing shows, empty."""
    text = connection_string(dsn, application_name=_NAME)
    with ExitStack() as opened, contextlib.suppress(psycopg.OperationalError):

        def session() -> psycopg.Connection[Any]:
            return opened.enter_context(closing(psycopg.connect(text, autocommit=True)))

        first = session()
        own = _process(first)
        for _ in range(_SESSIONS if own is not None else 0):
            beginner = session()
            other = _process(beginner, begin=True)
            if beginner.pgconn.status != psycopg.pq.ConnStatus.OK:
                return "statement"
            again = _process(first)
            # No answer to the first session: its process was lent to the other one, and the pool has no more.
            if other == own or again not in {None, own} or (other is not None and again is None):
                return "transaction"
            if other is None:
                return ""
    return ""


def _process(connection: psycopg.Connection[Any], *, begin: bool = False) -> int | None:
    """Return the number of the process that executes a session's statement; None: no answer in time, or a refusal.

    Args:
        connection: in autocommit mode.
        begin: run it in a transaction that stays open.
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
                try:
                    session.consume_input()
                except psycopg.OperationalError:  # the pooler has ended it
                    return None
            result = session.get_result()
            if result is None:
                return found
            if result.status == psycopg.pq.ExecStatus.TUPLES_OK:
                found = int(result.get_value(0, 0) or 0)
