"""A database server stops as in a power cut, while clients write and changes are applied."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.fix_cluster import TABLES
from tests.support.clusters.faults import pgbench_through
from tests.support.clusters.system import System, wait_until
from tests.support.databases.lazy_server import unflushed_bytes, wal_in_memory
from tests.support.histories.writers import writing

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]


@pytest.mark.fault("immediate stop of the destination server")
def test_commits_lost_by_an_immediate_destination_stop_are_sent_again(one_way: System):
    """Only what is on the destination's disk is reported upstream: `pgbench_through` finds every change exactly once."""
    server, before = one_way.servers["dst"], _lost(one_way)
    with wal_in_memory(server.dsn()), pgbench_through(one_way) as running:
        running.wait_arriving()
        old = server.pid()
        with psycopg.connect(server.dsn(), autocommit=True) as look:
            wait_until("a commit that is not on disk", lambda: unflushed_bytes(look))
        server.restart(immediate=True)
        assert server.pid() not in {None, old}
    assert _lost(one_way) == before, "nobody was told what it lost"


def _lost(system: System) -> list[Any]:
    """Return what each subscriber is known to have lost of its acknowledged changes."""
    return [
        (each["subscriber"], each["lost"])
        for component in system.wait_overview()["components"]
        for each in component.get("subscribers", ())
    ]


@pytest.mark.soak  # test_hub_with_spokes kills the server of a site that is source and destination
@pytest.mark.fault("immediate stop of the source server")
def test_commits_acknowledged_before_an_immediate_source_stop_arrive_once(one_way: System):
    server = one_way.servers["src"]
    streams = one_way.status("site:src")["resumes_total"]
    with psycopg.connect(server.dsn()) as unfinished, writing(one_way, "src") as writers:
        writers.wait_arriving("dst")
        unfinished.execute("INSERT INTO notes VALUES (-1, 'never committed')")
        unfinished.execute("INSERT INTO twins VALUES (-1, 'never committed')")
        sessions, old = writers.sessions, server.pid()
        server.restart(immediate=True)
        assert server.pid() not in {None, old}
        writers.wait_writing()
        assert all(now > before for now, before in zip(writers.sessions, sessions, strict=True))
        with pytest.raises(psycopg.OperationalError):
            unfinished.commit()
    one_way.assert_converged(TABLES)
    assert one_way.status("site:src")["resumes_total"] > streams
    writers.assert_exactly_once("dst")
    one_way.execute("src", "TRUNCATE notes, twins")
