"""A writer that never stops, and tables in which a duplicate row shows."""

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

# `notes` has a key, and `events` has none: a duplicate row stays there.
NOTES_AND_EVENTS = """
CREATE TABLE notes (id bigint PRIMARY KEY, body text);
CREATE TABLE events (number bigint, body text);
ALTER TABLE events REPLICA IDENTITY FULL;
"""

PAUSE_S = 0.03  # between two rounds of writing: it lets a small machine start a Spark application meanwhile


@contextlib.contextmanager
def steadily(write: Callable[[int], object], *, pause_s: float = PAUSE_S, first: int = 1) -> Iterator[None]:
    """Write round after round until the block ends.

    Args:
        write: writes one round; called with its number.
        pause_s: between two rounds, as for `paced`.
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
    """Write round after round in one session until the block ends.

    Args:
        system: the topology.
        write: writes one round; called with the connection, every statement of which commits, and the round's number,
            from 1.
        site: where it writes.
    """
    with system.connection(site) as connection, steadily(lambda number: write(connection, number)):
        yield
