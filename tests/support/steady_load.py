"""One writer that writes all the time, and tables in which a row that comes twice shows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from headrace.chaos.load import paced
from tests.support.system import System

__all__ = ["NOTES_AND_EVENTS", "steady_load"]

# `notes` with a key, and `events` without one: a row that comes twice stays.
NOTES_AND_EVENTS = """
CREATE TABLE notes (id bigint PRIMARY KEY, body text);
CREATE TABLE events (number bigint, body text);
ALTER TABLE events REPLICA IDENTITY FULL;
"""

PAUSE_S = 0.03  # between two rounds of writing: beside it a small machine starts a Spark application


@contextlib.contextmanager
def steady_load(
    system: System, write: Callable[[psycopg.Connection[Any], int], None], *, site: str = "src"
) -> Iterator[None]:
    """Write a round after the other until the block ends.

    Args:
        system: the topology.
        write: writes one round; called with the connection, every statement of which commits, and the round's number,
            from 1.
        site: where it writes.
    """
    stop = threading.Event()

    def write_on() -> None:
        with system.connection(site) as connection:
            for number, _ in enumerate(paced(stop, PAUSE_S), 1):
                write(connection, number)

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()
