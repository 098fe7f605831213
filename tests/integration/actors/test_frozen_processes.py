"""A process that is frozen during a takeover and thaws later ends nothing of its successor.

Frozen (SIGSTOP, a suspended machine) means here: the next step of the older process runs after all steps of the newer
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from headrace.base.errors import DatabaseUnavailable, FencedError
from headrace.databases.ports import ScnRange
from headrace.databases.postgres.connection import connect
from headrace.databases.postgres.destination.database import PostgresDestination, _fold_progress
from headrace.databases.postgres.destination.fencing import (
    SessionIdentity,
    claim,
    raise_epoch,
    take_apply_lock,
    take_over,
    take_server_lock,
)
from headrace.databases.postgres.destination.server_session.session import PostgresSession
from tests.support.databases.destination_contract import commit

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY, APPLY, TAG = "top", "a", b"\x00"


class Place:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.destination = PostgresDestination(dsn)
        self.destination.prepare(TOPOLOGY)
        self.opened: list[PostgresSession] = []

    def identity(self, epoch: int, incarnation: int) -> SessionIdentity:
        return SessionIdentity(topology=TOPOLOGY, apply=APPLY, server=0, epoch=epoch, incarnation=incarnation, tag=TAG)

    def session(self, epoch: int, incarnation: int) -> PostgresSession:
        self.opened.append(PostgresSession(self.dsn, self.identity(epoch, incarnation)))
        return self.opened[-1]

    def commits(self, session: PostgresSession) -> None:
        """Check that the session lives and owns its progress."""
        commit(session, applied=[ScnRange(after=0, through=10)])


@pytest.fixture
def place(destination_database: str) -> Iterator[Place]:
    made = Place(destination_database)
    yield made
    for session in made.opened:
        session.close()
    made.destination.close()


@pytest.fixture
def frozen(place: Place) -> Iterator[psycopg.Connection]:
    """Return the older process's connection."""
    with closing(connect(place.dsn, application_name="frozen")) as connection:
        yield connection


@pytest.mark.parametrize("step", [take_server_lock, take_over])
def test_server_frozen_after_its_claim_ends_nothing_of_its_successor(
    place: Place, frozen: psycopg.Connection, step: Callable[[psycopg.Connection, SessionIdentity], object]
) -> None:
    epoch = place.destination.raise_epoch(TOPOLOGY, APPLY).epoch
    older = place.identity(epoch, 1)
    claim(frozen, older)
    newer = place.session(epoch, 2)
    with pytest.raises(FencedError):
        step(frozen, older)
    place.commits(newer)


def test_server_of_older_driver_frozen_after_its_claim_ends_no_newer_one(
    place: Place, frozen: psycopg.Connection
) -> None:
    epoch = place.destination.raise_epoch(TOPOLOGY, APPLY).epoch
    older = place.identity(epoch, 9)
    claim(frozen, older)
    newer = place.session(place.destination.raise_epoch(TOPOLOGY, APPLY).epoch, 1)
    with pytest.raises(FencedError):
        take_server_lock(frozen, older)
    place.commits(newer)


def test_driver_frozen_after_raising_its_epoch_ends_nothing_of_the_next(
    place: Place, frozen: psycopg.Connection
) -> None:
    epoch = raise_epoch(frozen, TOPOLOGY, APPLY)
    progress = place.destination.raise_epoch(TOPOLOGY, APPLY)
    assert progress.epoch == epoch + 1
    newer = place.session(progress.epoch, 1)
    with pytest.raises(FencedError):
        take_apply_lock(frozen, TOPOLOGY, APPLY, epoch)
    with pytest.raises(FencedError):
        _fold_progress(frozen, TOPOLOGY, APPLY, epoch)
    place.commits(newer)


def test_driver_frozen_while_holding_the_lock_blocks_nobody(place: Place, frozen: psycopg.Connection) -> None:
    epoch = raise_epoch(frozen, TOPOLOGY, APPLY)
    take_apply_lock(frozen, TOPOLOGY, APPLY, epoch)
    progress = place.destination.raise_epoch(TOPOLOGY, APPLY)
    newer = place.session(progress.epoch, 1)
    with pytest.raises((psycopg.Error, DatabaseUnavailable)):
        _fold_progress(frozen, TOPOLOGY, APPLY, epoch)
    place.commits(newer)


def test_successor_ends_session_that_is_frozen_while_it_writes(place: Place, frozen: psycopg.Connection) -> None:
    frozen.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
    epoch = place.destination.raise_epoch(TOPOLOGY, APPLY).epoch
    older = place.session(epoch, 1)
    older._transaction.connection.execute("BEGIN")
    older._transaction.connection.execute("INSERT INTO public.t VALUES (1)")
    newer = place.session(epoch, 2)
    newer._transaction.connection.execute("INSERT INTO public.t VALUES (1)")
    place.commits(newer)
    with pytest.raises(psycopg.Error):
        older._transaction.connection.execute("COMMIT")


def test_epoch_lost_by_a_restore_is_not_reused(place: Place, frozen: psycopg.Connection) -> None:
    """A driver that knows of commits missing in the backup must not write beside the driver that began from the backup."""
    place.destination.raise_epoch(TOPOLOGY, APPLY)
    backup = frozen.execute("SELECT epoch FROM headrace.apply_process").fetchone()
    older = place.destination.raise_epoch(TOPOLOGY, APPLY).epoch
    with frozen.transaction():  # the state after a backup was restored
        frozen.execute("UPDATE headrace.apply_process SET epoch = %s", backup)
        frozen.execute("TRUNCATE headrace.apply_epoch, headrace.apply_session")
    newer = place.session(place.destination.raise_epoch(TOPOLOGY, APPLY).epoch, 1)
    with pytest.raises(FencedError):
        place.session(older, 2)
    place.commits(newer)
