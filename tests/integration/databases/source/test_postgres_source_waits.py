"""PostgreSQL as a source: the sessions that block what Headrace waits for."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from headrace.base.errors import HeadraceError
from headrace.databases.postgres.source import database
from headrace.databases.postgres.source.database import PostgresSource
from tests.support.databases.postgres_site import ALL, Site
from tests.support.session.matrices import cases

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

WAITED_S = 60.0  # a slow machine takes seconds to create a slot
OLD_LOCK_TIMEOUT_S = 11.0  # the former bound of `prepare` for a slot, and a little more


@contextmanager
def _in_background(call: Callable[[], object]) -> Iterator[threading.Thread]:
    failed: list[HeadraceError] = []

    def run() -> None:
        try:
            call()
        except HeadraceError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield thread
    thread.join(WAITED_S)
    assert not thread.is_alive()
    assert failed == []


def _wait_held_up(site: Site, holder: str) -> str:
    """Return the finding about a holder; autovacuum may appear beside it for a moment."""
    with closing(PostgresSource(site.dsn)) as asked:
        deadline = time.monotonic() + WAITED_S
        while not (found := [each for each in asked.holding_up() if holder in each]):
            assert time.monotonic() < deadline, "no holder is named"
            time.sleep(0.05)
    (said,) = found
    return said


# The limit is that of the other locks.
@pytest.mark.parametrize(
    ("limit", "longer_s"),
    cases(
        {"a limit of a second": ("1s", 2.0), "the usual limit": (database._LOCK_TIMEOUT, OLD_LOCK_TIMEOUT_S)},
        core=["a limit of a second"],
    ),
)
def test_slot_waits_for_an_open_transaction_of_any_length_and_names_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, limit: str, longer_s: float
):
    monkeypatch.setattr(database, "_LOCK_TIMEOUT", limit)
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(site.dsn, application_name="nightly report") as holder:
        holder.execute("INSERT INTO t VALUES (1)")
        with _in_background(lambda: site.source.prepare("topo", ALL)) as preparing:
            try:
                found = _wait_held_up(site, f"pid {holder.info.backend_pid}")
                preparing.join(longer_s)
                waits = preparing.is_alive()
            finally:
                holder.rollback()
    assert re.search(r"it began \d\d:\d\d:\d\d ago", found)
    assert "nightly report" in found
    assert "INSERT INTO t VALUES (1)" in found
    assert "idle in transaction" in found
    assert waits, "it gave up, and would have to wait for every younger transaction again"
    assert site.prepare() == ()
    assert site.source.holding_up() == ()


def test_snapshot_names_the_prepared_transaction_it_waits_for(site: Site):
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    site.run("BEGIN")
    site.run("INSERT INTO t VALUES (1)")
    site.run("PREPARE TRANSACTION 'left behind'")
    with _in_background(lambda: site.source.open_snapshot("topo").close()):
        try:
            _wait_held_up(site, "prepared transaction 'left behind'")
        finally:
            site.run("ROLLBACK PREPARED 'left behind'")


def test_retained_bytes_distinguish_an_existing_slot_from_a_missing_one(site: Site):
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    assert site.source.retained_bytes("topo") is None
    site.prepare()
    assert site.source.retained_bytes("topo") is not None
    site.source.remove("topo")
    assert site.source.retained_bytes("topo") is None
