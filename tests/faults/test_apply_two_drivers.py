"""Two drivers of one apply process live at once: the older one is fenced out, whatever it still wants."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from actors.apply import ApplyHost
from protos.apply_link import ApplyControlClient
from spark_apply.application.environment import LOOPBACK, java_environment
from tests.support.faults import apply_name, pgbench_through
from tests.support.system import System, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]


@contextlib.contextmanager
def another_driver(system: System) -> Iterator[subprocess.Popen[str]]:
    """A driver that no actor looks after, as one left over on a machine that was cut off."""
    apply = system.spec.applies[0]
    configuration = ApplyHost(system.spec, apply.name, "")._configuration()
    with (system.folder / "another_driver.log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "spark_apply.application.job"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            text=True, cwd="/", env={**os.environ, **java_environment(), **LOOPBACK, "PYSPARK_PYTHON": sys.executable},
        )
    try:
        assert driver.stdin is not None
        driver.stdin.write(configuration + "\n")
        driver.stdin.flush()
        yield driver
    finally:
        with contextlib.suppress(OSError):
            driver.send_signal(signal.SIGCONT)
        driver.kill()
        driver.communicate()


def _answer(driver: subprocess.Popen[str]) -> dict[str, Any]:
    assert driver.stdout is not None
    return dict(json.loads(driver.stdout.readline()))


@pytest.mark.fault("two live apply drivers")
def test_older_driver_that_was_stopped_for_a_while_is_fenced_out(one_way: System):
    """The older one has work in hand when it freezes; when it wakes up, the newer one has long gone on."""
    name = apply_name(one_way)
    one_way.call(name, "stop_component")
    one_way.wait_state(name, "DISABLED")
    with another_driver(one_way) as older:
        client = ApplyControlClient(_answer(older)["endpoint"])
        try:
            wait_until("the older driver serves", lambda: client.status(5.0).ready)
            with pgbench_through(one_way) as running:
                running.wait_arriving(50)
                wait_until("the older driver says so", lambda: client.status(5.0).transactions_applied > 0)  # a status may be older
                older.send_signal(signal.SIGSTOP)
                one_way.call(name, "start_component")
                wait_until("the newer driver serves", lambda: one_way.status(name).get("ready"))
                wait_until("the newer driver applies", lambda: one_way.status(name)["transactions_total"] > 0)
                older.send_signal(signal.SIGCONT)
                last_words = _answer(older)
                assert older.wait(60) == 1
        finally:
            client.close()
    assert last_words["error"] == "FencedError"
    assert one_way.status(name)["state"] != "ABORTED"
