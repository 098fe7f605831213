"""Clients of a server that stops and refuses, in memory."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.base.errors import DatabaseError, DatabaseUnavailable
from headrace.load import clients
from headrace.load.clients import NumberedClients, paced


class Server:
    """Commits on request, and fails at some numbers: before the commit, or before its answer."""

    def __init__(self) -> None:
        self.committed: list[int] = []
        self.ends_before, self.ends_behind, self.refuses = {3}, {5}, {7}
        self.done = threading.Event()
        self._number = 0

    @contextlib.contextmanager
    def session(self, dsn: str, what: str) -> Iterator[Any]:
        assert (dsn, what) == ("here", "test")
        yield self

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        yield
        if self._number in self.ends_before:
            self.ends_before.remove(self._number)
            raise DatabaseUnavailable("the server is gone")
        self.committed.append(self._number)
        if self._number in self.ends_behind:
            raise DatabaseUnavailable("the server is gone")
        if self._number >= 10:
            self.done.set()

    def write(self, connection: Any, number: int) -> None:
        assert connection is self
        if number in self.refuses:
            raise DatabaseError("it is not to be")
        self._number = number


def test_clients_survive_their_server_and_know_acknowledged_commits(monkeypatch: pytest.MonkeyPatch):
    server = Server()
    monkeypatch.setattr(clients, "session", server.session)
    monkeypatch.setattr(clients, "RECONNECT_S", 0.0)
    writing = NumberedClients(lambda: "here", server.write, [itertools.count(1)], pause_s=0.0, what="test")
    assert server.done.wait(60.0)
    writing.end()
    writing.end()
    assert writing.doubtful == {3, 5}
    assert writing.acknowledged == set(server.committed) - {5}
    assert writing.acknowledged >= {1, 2, 4, 6, 8, 9, 10}
    assert writing.counts == [len(writing.acknowledged)]
    assert writing.sessions == [4]
    assert [failure.message for failure in writing.failures] == ["it is not to be"]


def test_no_transaction_begins_after_the_clients_ended():
    ended = threading.Event()
    ended.set()
    assert list(paced(ended, 0.0)) == list(paced(ended, 60.0)) == []


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.001, 0.1), (0.01, 0.16), (3.0, clients.PAUSE_MAX_S)])
def test_pause_grows_with_the_last_transaction_up_to_a_bound(monkeypatch, took_s: float, pause_s: float):
    """Behind a server that hung for 3 s, a client wrote nothing for 48 s."""
    now, pauses = 0.0, []

    class Ended(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            return len(pauses) == 3

    monkeypatch.setattr("headrace.load.clients.time.monotonic", lambda: now)
    for _ in paced(Ended(), 0.1):
        now += took_s
    assert pauses == pytest.approx([0.1, pause_s, pause_s])
