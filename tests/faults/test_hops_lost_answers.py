"""A process dies, or its disk is full, between doing something durable and telling of it: nothing is lost, nothing
comes twice.

The failpoint names say where; `headrace.base.failpoints` has the list. Each test asserts that its fault fired.
"""

from __future__ import annotations

import pytest

from tests.fix_cluster import TABLES
from tests.support.system import System, wait_until

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

CLIENTS, TRANSACTIONS = 4, 100


def _pgbench_through(system: System, component: str, name: str, action: str = "kill", times: int = 1) -> None:
    before = system.execute("dst", "SELECT count(*) FROM pgbench_history")[0][0]
    with system.failpoint(component, name, action, times) as fired:
        with system.pgbench("src", "-c", str(CLIENTS), "-t", str(TRANSACTIONS), "-R", "200"):
            wait_until(f"{name} fired {times} times", lambda: fired() >= times)
        system.wait_caught_up()
        assert fired() == times
    system.assert_converged(TABLES)
    after, sums = (
        system.execute("dst", "SELECT count(*) FROM pgbench_history")[0][0],
        system.execute(
            "dst", "SELECT (SELECT sum(delta) FROM pgbench_history) = (SELECT sum(bbalance) FROM pgbench_branches)"
        ),
    )
    assert after == before + CLIENTS * TRANSACTIONS
    at_source = system.execute(
        "src", "SELECT (SELECT sum(delta) FROM pgbench_history) = (SELECT sum(bbalance) FROM pgbench_branches)"
    )
    assert sums == at_source


def _propagation(system: System) -> str:
    return f"propagation:{system.spec.propagations[0].name}"


@pytest.mark.soak
@pytest.mark.fault("SIGKILL at a failpoint of the log writer")
@pytest.mark.parametrize("name", ["log_writer.before_fsync", "log_writer.after_fsync"])
def test_log_writer_killed_around_its_fsync(one_way: System, name: str):
    _pgbench_through(one_way, "site:src", name)


@pytest.mark.fault("ENOSPC from the redo log's disk")
def test_log_writer_waits_out_a_full_disk(one_way: System):
    _pgbench_through(one_way, "site:src", "log_writer.write", "error", times=3)


@pytest.mark.fault("SIGKILL at a failpoint of the capture process")
def test_capture_killed_after_enqueue_before_acknowledgement(one_way: System):
    _pgbench_through(one_way, f"capture:{one_way.spec.captures[0].name}", "capture.after_enqueue")


@pytest.mark.soak
@pytest.mark.fault("SIGKILL at a failpoint of a queue")
@pytest.mark.parametrize("end", ["from_queue", "to_queue"])
def test_queue_killed_after_enqueue_before_acknowledgement(one_way: System, end: str):
    _pgbench_through(one_way, f"queue:{getattr(one_way.spec.propagations[0], end)}", "queue.after_enqueue")


@pytest.mark.fault("SIGKILL at a failpoint of the propagation")
def test_propagation_killed_after_sending_before_acceptance(one_way: System):
    _pgbench_through(one_way, _propagation(one_way), "propagation.after_send")
