"""The disk of a queue's spill files is full while its subscriber is away."""

from __future__ import annotations

import pytest

from tests.fix_cluster import TABLES
from tests.support.clusters.faults import apply_name, armed
from tests.support.clusters.system import System, wait_until

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

ROWS = 20_000
ROW_BYTES = 1000  # all rows together are several times the memory of both queues


@pytest.mark.fault("ENOSPC from the disk of spill files")
def test_queue_that_cannot_spill_pauses_its_publisher_and_recovers(one_way: System):
    queue = f"queue:{one_way.spec.applies[0].queue}"
    one_way.execute("src", "TRUNCATE notes")
    one_way.wait_caught_up()
    one_way.call(apply_name(one_way), "stop_component")
    one_way.wait_state(apply_name(one_way), "DISABLED")
    restarts = one_way.pid(queue)
    try:
        with armed(one_way, "queue.spill", "error", times=10_000) as fired:
            one_way.execute(
                "src", f"INSERT INTO notes SELECT n, repeat('x', {ROW_BYTES}) FROM generate_series(1, {ROWS}) n"
            )
            paused = one_way.wait_state(queue, "PAUSED FOR FLOW CONTROL")
            assert "cannot be spilled" in paused["problem"]
            assert paused["spill_bytes"] == 0
            assert paused["memory_bytes"] < 2 * paused["memory_bytes_max"]
            assert fired() > 0
        # Space is free again, which the queue notices by itself.
        wait_until("the queue spills", lambda: one_way.status(queue)["spill_bytes"] > 0)
    finally:
        one_way.call(apply_name(one_way), "start_component")
    one_way.assert_converged(TABLES)
    assert one_way.execute("dst", "SELECT count(*) FROM notes") == [(ROWS,)]
    assert one_way.pid(queue) == restarts
    one_way.execute("src", "TRUNCATE notes")
    one_way.assert_converged(["notes"])
