"""A process of the site's Spark application is killed while its apply process applies: only tasks are restarted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clusters.faults import (
    application_name,
    apply_name,
    pgbench_through,
    spark_processes,
    wait_for_next_application,
)
from tests.support.clusters.system import System, wait_until

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]


@pytest.mark.fault(
    "SIGKILL of the application's driver, of its JVM, or of the application master, with which the executors end"
)
@pytest.mark.parametrize(
    ("victim", "words"),
    [
        ("driver", "SIGKILL"),
        pytest.param("gateway", "JVM", marks=pytest.mark.soak),
        pytest.param("master", "no executor has come back", marks=pytest.mark.soak),
    ],
)
def test_headless_application_is_replaced_under_the_same_coordinator(one_way: System, victim: str, words: str):
    application, before = one_way.status(application_name(one_way)), _coordinator(one_way)
    with pgbench_through(one_way) as running:
        running.wait_arriving()
        (process,) = spark_processes(one_way)[victim]
        process.kill()
        wait_for_next_application(one_way, application["application_pid"])
    after = one_way.status(application_name(one_way))
    assert after["applications_started"] == application["applications_started"] + 1
    assert words in after["last_error"]["message"]
    assert _coordinator(one_way) == before


@pytest.mark.fault("SIGKILL of a Spark executor's JVM")
def test_killed_executor_is_replaced_under_the_same_application(one_way: System):
    application, before = _application(one_way), _coordinator(one_way)
    with pgbench_through(one_way) as running:
        running.wait_arriving()
        wait_until("every apply server runs", lambda: _all_serve(one_way))
        executor = spark_processes(one_way)["executors"][0]
        executor.kill()
        executor.wait(120)
        wait_until(
            "every apply server runs on an executor that lives",
            lambda: _all_serve(one_way) and executor not in spark_processes(one_way)["executors"],
        )
    assert (_application(one_way), _coordinator(one_way)) == (application, before)


@pytest.mark.soak
@pytest.mark.fault("SIGKILL of a Spark executor's Python worker")
def test_killed_worker_is_replaced_under_the_same_application(one_way: System):
    application, before, attempts = _application(one_way), _coordinator(one_way), _attempts(one_way)
    with pgbench_through(one_way) as running:
        running.wait_arriving()
        wait_until("every apply server runs", lambda: _all_serve(one_way))
        victims = spark_processes(one_way)["workers"]
        for worker in victims:  # both, so that one of them was certainly busy
            worker.kill()
        wait_until(
            "every apply server runs in another process",
            lambda: _all_serve(one_way) and not set(victims) & set(spark_processes(one_way)["workers"]),
        )
    assert (_application(one_way), _coordinator(one_way)) == (application, before)
    assert _attempts(one_way) > attempts


def _application(system: System) -> Any:
    return system.status(application_name(system))["application_pid"]


def _coordinator(system: System) -> tuple[int, Any]:
    """Return the process and the epoch of the apply process."""
    name = apply_name(system)
    return system.pid(name), wait_until("it has an epoch", lambda: system.status(name).get("epoch"))


def _attempts(system: System) -> int:
    return sum(server["attempts"] for server in system.status(apply_name(system))["servers"])


def _all_serve(system: System) -> bool:
    wanted = system.spec.applies[0].parallelism
    return len(spark_processes(system)["workers"]) == wanted
