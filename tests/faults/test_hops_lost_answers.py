"""A process dies, or its disk is full, between a durable action and its report: nothing is lost or duplicated.

The failpoint names say where; `headrace.base.failpoints` has the list. Each test asserts that its fault fired.
"""

from __future__ import annotations

import pytest

from tests.fix_cluster import TABLES
from tests.support.clusters.faults import armed, pgbench_through
from tests.support.clusters.system import System, wait_until

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]


def _through(system: System, name: str, action: str = "kill", times: int = 1) -> None:
    """Arm a failpoint, which one component has, while pgbench writes, until it has fired that often."""
    with pgbench_through(system), armed(system, name, action, times) as fired:
        wait_until(f"{name} fired {times} times", lambda: fired() >= times)
    assert fired() == times


@pytest.mark.soak
@pytest.mark.fault("SIGKILL at a failpoint of the log writer")
@pytest.mark.parametrize("name", ["log_writer.before_fsync", "log_writer.after_fsync"])
def test_log_writer_killed_around_its_fsync(one_way: System, name: str):
    _through(one_way, name)


@pytest.mark.fault("ENOSPC from the redo log's disk", kind="disk")
def test_log_writer_waits_out_a_full_disk(one_way: System):
    _through(one_way, "log_writer.write", "error", times=3)


@pytest.mark.fault("SIGKILL at a failpoint of the capture process")
def test_capture_killed_after_enqueue_before_acknowledgement(one_way: System):
    _through(one_way, "capture.after_enqueue")


@pytest.mark.soak
@pytest.mark.fault("SIGKILL at a failpoint of a queue")
@pytest.mark.parametrize("end", ["from_queue", "to_queue"])
def test_queue_killed_after_enqueue_before_acknowledgement(one_way: System, end: str):
    """Both queues have this failpoint: one of them is created anew with it."""
    queue = f"queue:{getattr(one_way.spec.propagations[0], end)}"
    with one_way.failpoint(queue, "queue.after_enqueue") as fired:
        with pgbench_through(one_way):
            wait_until("it fired", lambda: fired() >= 1)
        assert fired() == 1
    one_way.assert_converged(TABLES)


@pytest.mark.soak
@pytest.mark.fault("SIGKILL at a failpoint of the propagation")
def test_propagation_killed_after_sending_before_acceptance(one_way: System):
    _through(one_way, "propagation.after_send")
