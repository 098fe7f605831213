"""A process of the apply process's Spark application is killed while it applies."""

from __future__ import annotations

import pytest

from tests.support.faults import apply_name, pgbench_through, spark_processes, wait_for_next_driver
from tests.support.system import System, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]


@pytest.mark.fault("SIGKILL of the Spark driver")
def test_killed_driver_is_started_again_with_a_higher_epoch(one_way: System):
    before = one_way.status(apply_name(one_way))
    with pgbench_through(one_way) as running:
        running.wait_arriving()
        (driver,) = spark_processes(one_way)["driver"]
        driver.kill()
        driver.wait(10)
        after = wait_for_next_driver(one_way, driver.pid)
    assert after["epoch"] > before["epoch"]
    assert after["drivers_started"] == before["drivers_started"] + 1
    assert "SIGKILL" in after["last_error"]["message"]


@pytest.mark.fault("SIGKILL of the JVM of the Spark driver")
def test_application_whose_driver_lost_its_jvm_is_replaced_by_itself(one_way: System):
    before = one_way.status(apply_name(one_way))
    with pgbench_through(one_way) as running:
        running.wait_arriving()
        (jvm,) = spark_processes(one_way)["gateway"]
        jvm.kill()
        after = wait_for_next_driver(one_way, before["driver_pid"])
    assert after["epoch"] > before["epoch"]


@pytest.mark.fault("SIGKILL of the application master, with which the executors end")
def test_application_that_lost_its_master_is_replaced_by_itself(one_way: System):
    before = one_way.status(apply_name(one_way))
    with pgbench_through(one_way) as running:
        running.wait_arriving()
        (master,) = spark_processes(one_way)["master"]
        master.kill()
        after = wait_for_next_driver(one_way, before["driver_pid"])
    assert after["epoch"] > before["epoch"]
    assert "no apply server has come back" in after["last_error"]["message"]


@pytest.mark.fault("SIGKILL of a Spark executor's JVM")
def test_killed_executor_is_replaced_under_the_same_driver(one_way: System):
    before = one_way.status(apply_name(one_way))
    with pgbench_through(one_way) as running:
        running.wait_arriving()
        wait_until("every apply server runs", lambda: _all_serve(one_way))
        executor = spark_processes(one_way)["executors"][0]
        executor.kill()
        executor.wait(10)
        wait_until(
            "every apply server runs on an executor that lives",
            lambda: _all_serve(one_way) and executor not in spark_processes(one_way)["executors"],
        )
    after = one_way.status(apply_name(one_way))
    assert (after["driver_pid"], after["epoch"]) == (before["driver_pid"], before["epoch"])


@pytest.mark.fault("SIGKILL of a Spark executor's Python worker")
def test_killed_worker_is_replaced_under_the_same_driver(one_way: System):
    before = one_way.status(apply_name(one_way))
    with pgbench_through(one_way) as running:
        running.wait_arriving()
        wait_until("every apply server runs", lambda: _all_serve(one_way))
        victims = spark_processes(one_way)["workers"]
        for worker in victims:  # both: then something is certain to have been at work
            worker.kill()
        wait_until(
            "every apply server runs in another process",
            lambda: _all_serve(one_way) and not set(victims) & set(spark_processes(one_way)["workers"]),
        )
    after = one_way.status(apply_name(one_way))
    assert (after["driver_pid"], after["epoch"]) == (before["driver_pid"], before["epoch"])
    assert sum(server["attempts"] for server in after["servers"]) > sum(server["attempts"] for server in before["servers"])


def _all_serve(system: System) -> bool:
    wanted = system.spec.applies[0].parallelism
    return len(spark_processes(system)["workers"]) == wanted
