"""A database server stops as in a power cut, while clients write and changes are applied."""

from __future__ import annotations

import pytest

from tests.fix_cluster import TABLES
from tests.support.faults import pgbench_through
from tests.support.system import System

pytestmark = [pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]


@pytest.mark.fault("immediate stop of the destination server")
def test_destination_server_stops_immediately_and_comes_back(one_way: System):
    server = one_way.servers["dst"]
    with pgbench_through(one_way) as running:
        running.wait_arriving()
        old = server.pid()
        server.restart(immediate=True)
        assert server.pid() not in {None, old}


@pytest.mark.fault("immediate stop of the source server")
def test_source_server_stops_immediately_and_comes_back(one_way: System):
    server = one_way.servers["src"]
    one_way.execute("src", "TRUNCATE notes")
    one_way.execute("src", "INSERT INTO notes SELECT n, 'before' FROM generate_series(1, 2000) n")
    old = server.pid()
    server.restart(immediate=True)
    assert server.pid() not in {None, old}
    one_way.execute("src", "UPDATE notes SET body = 'after' WHERE id % 2 = 0")
    one_way.assert_converged(TABLES)
    assert one_way.execute("dst", "SELECT count(*) FROM notes WHERE body = 'after'") == [(1000,)]
    one_way.execute("src", "TRUNCATE notes")
