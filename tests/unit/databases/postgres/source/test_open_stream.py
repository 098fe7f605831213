"""Opening a log stream: the checks made over one connection hold for the server of the stream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.postgres.source import database
from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.source.log_stream import replication_stream
from headrace.lcr.scn import Scn


class Session:
    """A connection to a server whose publication and slot are as required."""

    def __init__(self) -> None:
        self.info = SimpleNamespace(dbname="d")
        self.is_closed = False

    def execute(self, query, parameters=None):
        return SimpleNamespace(fetchone=lambda: (1,))

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def stream(monkeypatch):
    """A stream from the server that the dsn reaches now; the checked server is on timeline 1."""
    made = SimpleNamespace(options=SimpleNamespace(timeline=1), is_closed=False)
    made.close = lambda: setattr(made, "is_closed", True)
    monkeypatch.setattr("headrace.databases.postgres.source.log_stream.slot._timeline", lambda connection: 1)
    monkeypatch.setattr(database, "check_slot", lambda connection, name, start: start)
    monkeypatch.setattr(database, "publication_found", lambda connection, name: "publication p (1)")
    monkeypatch.setattr(database, "published_relations", lambda connection, name: ())
    monkeypatch.setattr(database, "binary_obstacles", lambda connection, relations: ())
    monkeypatch.setattr(replication_stream, "open_log_stream", lambda dsn, **settings: made)
    return made


@pytest.mark.parametrize("redo", [0, 1], ids=["no redo yet", "redo of timeline 1"])
def test_stream_of_a_timeline_that_was_not_checked_is_retried(monkeypatch, stream, redo):
    source: Any = PostgresSource("dsn", site="dbs1")
    session = Session()
    monkeypatch.setattr(PostgresSource, "_session", lambda self: session)
    source._connection = session
    assert source.open_stream("t", Scn(100), timeline=redo) is stream
    stream.options.timeline = 2  # the dsn leads to a standby that was just promoted
    with pytest.raises(DatabaseUnavailable, match="on timeline 2, and the log that was checked is on timeline 1"):
        source.open_stream("t", Scn(100), timeline=redo)
    assert stream.is_closed
    assert session.is_closed, "the next check goes to the current server"
