"""Two drivers of one apply process live at once: the older one is fenced out in every case."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator

import pytest

from actors.apply import ApplyHost
from headrace.base.errors import FencedError
from protos.wire.identity import Peer
from spark_apply.application.task_runs import ApplicationAccess
from tests.support.apply.apply_driver import Driver, DriverClient, serve_driver
from tests.support.clusters.faults import application_name, apply_name, pgbench_through
from tests.support.clusters.system import System, wait_until

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]


@contextlib.contextmanager
def another_driver(system: System) -> Iterator[Driver]:
    """Start a driver without an actor, like one left over on a machine that was cut off."""
    apply = system.spec.applies[0]
    configuration = ApplyHost(system.spec, apply.name, "")._configuration()
    queue = Peer(
        address=system.call(f"queue:{apply.queue}", "endpoint"), site=apply.site, identity=configuration.identity
    )
    access = ApplicationAccess(**system.call(application_name(system), "access"))
    spawn, log = multiprocessing.get_context("spawn"), system.folder / "another_driver.log"
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve_driver, args=(configuration, queue, access, theirs, log), daemon=True)
    process.start()
    theirs.close()
    driver = Driver(process, log, DriverClient(ours), ours)
    try:
        yield driver
    finally:
        os.kill(process.pid, signal.SIGCONT)
        driver.end()


@pytest.mark.fault("two live apply drivers")
def test_older_driver_that_was_stopped_for_a_while_is_fenced_out(one_way: System):
    """The older one freezes during its work; when it thaws, the newer one has long been applying."""
    name = apply_name(one_way)
    one_way.call(name, "stop_component")
    one_way.wait_state(name, "DISABLED")
    with another_driver(one_way) as older:
        wait_until("the older driver serves", lambda: older.status().ready)
        with pgbench_through(one_way) as running:
            running.wait_arriving(50)
            # the status may be outdated
            wait_until("the older driver says so", lambda: older.status().transactions_applied > 0)
            os.kill(older.process.pid, signal.SIGSTOP)
            one_way.call(name, "start_component")
            wait_until("the newer driver serves", lambda: one_way.status(name).get("ready"))
            wait_until("the newer driver applies", lambda: one_way.status(name)["transactions_total"] > 0)
            os.kill(older.process.pid, signal.SIGCONT)
            assert isinstance(older.wait_failure(), FencedError)
    assert one_way.status(name)["state"] != "ABORTED"
