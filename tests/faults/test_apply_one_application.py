"""Two apply processes of a site share its Spark application: faults of one, or of the application, and the other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from headrace.faults.processes import kill
from tests.support.apply.apply_driver import ApplyDrivers, Driver, end_of_log, load, wait_for
from tests.support.databases.statements import digest

pytestmark = [pytest.mark.unit("drivers"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TABLES = ("accounts", "branches", "history", "notes")
LOAD_S = 240.0  # longer than two drivers and an application take to start on a busy machine
ENDED_S = 60.0  # a killed process is gone, and its loss noticed, within seconds
Both = tuple[ApplyDrivers, ApplyDrivers]


@pytest.fixture(scope="module")
def both(make_drivers: Callable[[str], ApplyDrivers]) -> Both:
    return make_drivers("apply_one"), make_drivers("apply_two")


def running(drivers: ApplyDrivers) -> Driver:
    alive = [each for each in drivers.started if each.is_alive]
    found = alive[-1] if alive else drivers.start()
    found.wait_ready()
    return found


def undisturbed(driver: Driver) -> tuple[int, list[int], list[int]]:
    """Return what stays for an undisturbed apply process: its epoch, its tasks' processes and their start counts."""
    status = driver.status()
    return status.epoch, driver.server_pids(), [server.attempts for server in status.servers]


def assert_same(drivers: ApplyDrivers, driver: Driver) -> None:
    driver.wait_applied(end_of_log(drivers.queue.source_dsn))
    for table in TABLES:
        assert digest(drivers.queue.source_dsn, table) == digest(drivers.queue.destination_dsn, table), table


@contextlib.contextmanager
def loaded(both: Both) -> Iterator[None]:
    """Write to both sources during the block."""
    with (
        load(both[0].queue.source_dsn, clients=2, duration_s=LOAD_S),
        load(both[1].queue.source_dsn, clients=2, duration_s=LOAD_S),
    ):
        time.sleep(0.5)
        yield
        time.sleep(0.5)


@pytest.mark.soak
@pytest.mark.fault("SIGKILL of one of two apply processes")
def test_killed_apply_process_leaves_the_others_tasks_and_stream_alone(both: Both):
    first, second = running(both[0]), running(both[1])
    application = both[0].spark.child.pid
    with loaded(both):
        before, reached = undisturbed(second), second.status().low_watermark_scn
        workers = [psutil.Process(pid) for pid in first.server_pids()]
        first.kill()
        _, alive = psutil.wait_procs(workers, timeout=ENDED_S)
        assert alive == []
        wait_for("its job to be cancelled", lambda: both[0].spark.health().runs == 1, ENDED_S)
        wait_for("the other to go on", lambda: second.status().low_watermark_scn > reached, ENDED_S)
        after = running(both[0])
        assert undisturbed(second) == before
    assert both[0].spark.child.pid == application
    assert_same(both[0], after)
    assert_same(both[1], second)


@pytest.mark.soak
def test_apply_process_that_comes_and_goes_under_load_disturbs_no_other(both: Both):
    first, second = running(both[0]), running(both[1])
    first.stop()
    with loaded(both):
        wait_for("one job", lambda: both[0].spark.health().runs == 1, ENDED_S)
        before = undisturbed(second)
        for _ in range(2):
            added = both[0].start()
            added.wait_ready()
            assert both[0].spark.health().runs == 2
            assert added.stop() == 0
            wait_for("its job to have ended", lambda: both[0].spark.health().runs == 1, ENDED_S)
        assert undisturbed(second) == before
    assert_same(both[1], second)
    assert_same(both[0], running(both[0]))


@pytest.mark.soak
@pytest.mark.fault("SIGKILL of the application's process")
def test_killed_application_interrupts_both_and_ends_neither(both: Both):
    drivers = [running(each) for each in both]
    epochs = [driver.status().epoch for driver in drivers]
    spark = both[0].spark
    with loaded(both):
        kill([psutil.Process(spark.child.pid)])
        for driver in drivers:
            wait_for(
                "why nothing is applied", lambda driver=driver: "Spark application" in driver.status().detail, ENDED_S
            )
        spark.start()
        for driver in drivers:
            driver.client.ask("moved_to", spark.access)
        for driver in drivers:
            driver.wait_ready()
    assert [driver.status().epoch for driver in drivers] == epochs
    for each, driver in zip(both, drivers, strict=True):
        assert_same(each, driver)
