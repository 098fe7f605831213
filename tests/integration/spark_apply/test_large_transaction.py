"""One transaction many times larger than every memory bound passes, and no process grows with it."""

from __future__ import annotations

import psutil
import pytest

from actors.staging.propagation import CREDIT_BYTES
from headrace.redo.writing.log_writer import RECORD_BYTES_DEFAULT
from spark_apply.conversation.groups import PARTS_AHEAD
from spark_apply.driver.groups import forming
from tests.support.clusters.faults import apply_name, spark_processes
from tests.support.clusters.system import System

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TIMES = 13  # so many times the largest bound, which is 32 MiB, is just above twice the allowed growth
ROW_BYTES = 100_000
# The allowed growth of a process: its bounds several times over, for data that is encoded, sent and decoded at one
# moment.
GROWTH_MAX_BYTES = 200 << 20
TIMEOUT_S = 600.0  # half a gigabyte through a machine that may have other work


def _processes(system: System) -> dict[str, psutil.Process]:
    names = [f"site:{site.name}" for site in system.spec.sites]
    names += [f"queue:{queue.name}" for queue in system.spec.queues]
    names += [f"capture:{capture.name}" for capture in system.spec.captures]
    names += [f"propagation:{propagation.name}" for propagation in system.spec.propagations]
    found = {name: psutil.Process(system.pid(name)) for name in (*names, apply_name(system))}
    spark = spark_processes(system)
    for kind, processes in spark.items():
        found |= {f"Spark {kind} {number}": process for number, process in enumerate(processes)}
    return found


def _forget_peak(process: psutil.Process) -> None:
    with open(f"/proc/{process.pid}/clear_refs", "w") as file:  # noqa: PTH123 - no path of ours
        file.write("5")


def _peak_bytes(process: psutil.Process) -> int:
    with open(f"/proc/{process.pid}/status") as file:  # noqa: PTH123 - no path of ours
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def test_transaction_far_above_every_bound_passes_in_bounded_memory(one_way: System):
    queue_bytes = max(queue.memory_bytes_max for queue in one_way.spec.queues)
    bounds = (
        queue_bytes,
        CREDIT_BYTES,
        RECORD_BYTES_DEFAULT,
        forming._GROUP_BYTES_MAX,
        PARTS_AHEAD * RECORD_BYTES_DEFAULT,
        forming._PENDING_BYTES_MAX,
    )
    rows = TIMES * max(bounds) // ROW_BYTES
    assert rows * ROW_BYTES > 2 * GROWTH_MAX_BYTES, "the bound would not notice growth by the whole transaction"
    one_way.execute("src", "TRUNCATE notes")
    one_way.wait_caught_up()
    processes = _processes(one_way)
    for process in processes.values():
        _forget_peak(process)
    before = {name: process.memory_info().rss for name, process in processes.items()}
    # Long runs of one letter: small on disk, and full size in the log stream and in every later process.
    one_way.execute("src", f"INSERT INTO notes SELECT n, repeat('x', {ROW_BYTES}) FROM generate_series(1, {rows}) n")
    one_way.wait_caught_up(TIMEOUT_S)
    growth = {name: _peak_bytes(process) - before[name] for name, process in processes.items()}
    assert one_way.execute("dst", "SELECT count(*), sum(length(body)) FROM notes") == [(rows, rows * ROW_BYTES)]
    assert max(growth.values()) < GROWTH_MAX_BYTES, {name: f"{grown >> 20} MB" for name, grown in growth.items()}
    one_way.execute("src", "TRUNCATE notes")
    one_way.assert_converged(["notes"])
