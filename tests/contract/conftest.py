"""Fixtures of the contract suites: a destination per database, and its sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.databases.ports import DestinationDatabase, DestinationSession
from tests.support.databases.destination_contract import (
    APPLY,
    TAG,
    TOPOLOGY,
    Harness,
    MemoryHarness,
    Opener,
    PostgresHarness,
)


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    if request.param == "memory":
        yield MemoryHarness()
        return
    made = PostgresHarness(request.getfixturevalue("destination_database"), request.getfixturevalue("pg_destination"))
    yield made
    made.close()


@pytest.fixture
def destination(harness: Harness) -> DestinationDatabase:
    database = harness.destination()
    database.prepare(TOPOLOGY)
    return database


@pytest.fixture
def open_session(destination: DestinationDatabase) -> Iterator[Opener]:
    """Open sessions of the current epoch (the first call raises it); close them at the end."""
    opened: list[DestinationSession] = []

    def make(
        server: int = 0, *, epoch: int | None = None, tag: bytes = TAG, incarnation: int = 1, is_lazy: bool = False
    ) -> DestinationSession:
        if epoch is None:
            progress = destination.progress(TOPOLOGY, APPLY) or destination.raise_epoch(TOPOLOGY, APPLY)
            epoch = progress.epoch
        opened.append(
            destination.open_session(
                TOPOLOGY,
                APPLY,
                server=server,
                epoch=epoch,
                tag=tag,
                incarnation=incarnation,
                is_lazy=is_lazy,
            )
        )
        return opened[-1]

    yield make
    for session in opened:
        session.close()


@pytest.fixture
def session(open_session: Opener) -> DestinationSession:
    return open_session()
