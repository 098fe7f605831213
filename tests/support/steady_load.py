"""One writer at the site `src` that writes all the time, and tables in which a row that comes twice shows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg

from databases.embedded import EmbeddedServer
from headrace.chaos.load import paced
from tests.support.system import System

__all__ = ["make_notes_and_events", "steady_load"]

PAUSE_S = 0.03  # between two rounds of writing: beside it a small machine starts a Spark application


def make_notes_and_events(servers: Mapping[str, EmbeddedServer]) -> None:
    """Create `notes`, with a key, and `events`, without one, at every server."""
    for server in servers.values():
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE notes (id bigint PRIMARY KEY, body text)")
            connection.execute("CREATE TABLE events (number bigint, body text)")  # no key: a row that comes twice stays
            connection.execute("ALTER TABLE events REPLICA IDENTITY FULL")


@contextlib.contextmanager
def steady_load(system: System, write: Callable[[psycopg.Connection[Any], int], None]) -> Iterator[None]:
    """Write a round after the other until the block ends.

    Args:
        system: the topology.
        write: writes one round; called with the connection, every statement of which commits, and the round's number, from 1.
    """
    stop = threading.Event()

    def write_on() -> None:
        with system.connection("src") as connection:
            for number, _ in enumerate(paced(stop, PAUSE_S), 1):
                write(connection, number)

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()
