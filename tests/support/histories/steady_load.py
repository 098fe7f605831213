"""One writer that writes all the time, and tables in which a row that comes twice shows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from headrace.load.clients import paced
from tests.support.clusters.system import System
from tests.support.session.background import in_background

__all__ = ["NOTES_AND_EVENTS", "steadily", "steady_load"]

# `notes` with a key, and `events` without one: a row that comes twice stays.
NOTES_AND_EVENTS = """
CREATE TABLE notes (id bigint PRIMARY KEY, body text);
CREATE TABLE events (number bigint, body text);
ALTER TABLE events REPLICA IDENTITY FULL;
"""

PAUSE_S = 0.03  # between two rounds of writing: beside it a small machine starts a Spark application


@contextlib.contextmanager
def steadily(write: Callable[[int], object], *, pause_s: float = PAUSE_S, first: int = 1) -> Iterator[None]:
    """Write a round after the other until the block ends.

    Args:
        write: writes one round; called with its number.
        pause_s: between two rounds, see `paced`.
        first: number of the first round.
    """

    def write_on(ended: threading.Event) -> None:
        for number, _ in enumerate(paced(ended, pause_s), first):
            write(number)

    with in_background(write_on):
        yield


@contextlib.contextmanager
def steady_load(
    system: System, write: Callable[[psycopg.Connection[Any], int], None], *, site: str = "src"
) -> Iterator[None]:
    """Write a round after the other in one session until the block ends.

    Args:
        system: the topology.
        write: writes one round; called with the connection, every statement of which commits, and the round's number,
            from 1.
        site: where it writes.
    """
    with system.connection(site) as connection, steadily(lambda number: write(connection, number)):
        yield
