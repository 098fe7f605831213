"""Clients that write numbered transactions, survive the end of their server, and know what it acknowledged.

A transaction whose COMMIT was sent and not answered is in doubt: it may be committed once, or not at all. Every other
transaction is known to be committed exactly once, or not at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.base.errors import DatabaseUnavailable, HeadraceError
from headrace.load.sessions import session

__all__ = ["NumberedClients", "paced"]

# On a slow or busy machine each transaction takes longer, and so does the pause after it. Clients that did not wait
# would write more than the machine can replicate, and the measured lag would be their own. A transaction takes some 3
# ms on an idle machine.
PAUSE_TIMES = 16.0
# A transaction that waited for a hanging server says nothing about the machine; after one of 3 s a client would write
# nothing for 48 s.
PAUSE_MAX_S = 2.0
RECONNECT_S = 0.1  # short compared to a restart of a server, which takes a second

Write = Callable[[Any, int], None]
"""Writes one transaction, with psycopg's connection and the transaction's number."""


def paced(ended: threading.Event, at_least_s: float) -> Iterator[None]:
    """Pause before each transaction of a client, longer if the last one took longer.

    Args:
        ended: when set, no further transaction begins.
        at_least_s: the pause on an idle machine, in seconds; 0: no pause, however busy the machine is.

    Yields:
        When the next transaction is due.
    """
    pause_s = at_least_s
    while not ended.wait(pause_s):
        began = time.monotonic()
        yield
        busy_s = min(PAUSE_TIMES * (time.monotonic() - began), PAUSE_MAX_S)
        pause_s = max(at_least_s, busy_s) if at_least_s else 0.0


@dataclass(slots=True)
class _Client:
    """One client's knowledge of its transactions."""

    numbers: Iterator[int]
    sessions: int = 0
    acknowledged: list[int] = field(default_factory=list)
    doubtful: set[int] = field(default_factory=set)  # COMMIT was sent, but not answered


class NumberedClients:
    """Clients of one server, which write from their creation until `end`.

    Args:
        dsn: returns the server's connection string, called for each session.
        write: writes one transaction; called by each client on its own thread.
        numbers: the transaction numbers of each client, without end; all of them are different.
        pause_s: pause between a client's transactions, as in `paced`.
        what: name of the clients in the server's list of sessions.
    """

    def __init__(
        self, dsn: Callable[[], str], write: Write, numbers: Sequence[Iterator[int]], *, pause_s: float, what: str
    ) -> None:
        self._dsn, self._do, self._pause_s, self._what = dsn, write, pause_s, what
        self._clients = [_Client(each) for each in numbers]
        self.failures: list[HeadraceError] = []
        """Refusals of a server that was reachable; the client continues after them."""
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(client,), daemon=True, name=what) for client in self._clients
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let no further transaction begin, without waiting for running ones."""
        self._ended.set()

    def end(self) -> None:
        """End the clients after their transactions; idempotent."""
        self.stop()
        for thread in self._threads:
            thread.join()

    @property
    def acknowledged(self) -> set[int]:
        """Numbers of the transactions whose commit is certain."""
        return {number for client in self._clients for number in list(client.acknowledged)}

    @property
    def doubtful(self) -> set[int]:
        """Numbers of the transactions whose COMMIT was sent but not answered; stable after `end`."""
        return set().union(*(client.doubtful for client in self._clients))

    @property
    def counts(self) -> list[int]:
        """Number of acknowledged transactions so far, by client."""
        return [len(client.acknowledged) for client in self._clients]

    @property
    def sessions(self) -> list[int]:
        """Number of sessions opened so far, by client."""
        return [client.sessions for client in self._clients]

    def _write(self, client: _Client) -> None:
        while not self._ended.is_set():
            try:
                self._write_in_a_session(client)
            except DatabaseUnavailable:
                pass  # the client must survive this
            except HeadraceError as error:
                self.failures.append(error)
            self._ended.wait(RECONNECT_S)

    def _write_in_a_session(self, client: _Client) -> None:
        with session(self._dsn(), self._what) as connection:
            client.sessions += 1
            for _ in paced(self._ended, self._pause_s):
                number = next(client.numbers)
                with connection.transaction():
                    self._do(connection, number)
                    client.doubtful.add(number)
                client.doubtful.discard(number)
                client.acknowledged.append(number)
