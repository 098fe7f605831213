"""A destination that is cut off, on real servers, Ray and Spark: split, while the others continue; merged on its
return; equal at the end.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from actors.controller import CONTROLLER
from tests.support.clusters.sites import Sites
from tests.support.clusters.system import System, wait_until
from tests.support.histories.steady_load import steady_load

pytestmark = [pytest.mark.unit("sites", order=8), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

THRESHOLDS = """\
split_threshold: 10
merge_threshold: 5
"""
FILE = "replicate: [{tables: [split.notes], from: a, to: [b, c]}]"
CLONES = {"queue:q_a.a_to_c", "capture:capture_a.a_to_c"}
# They dequeue from q_a; the propagations and their queues do not run.
NEAR, FAR = "apply_from_a_at_b", "apply_from_a_at_c"
OTHERS = ("capture:capture_a", "queue:q_a", f"apply:{NEAR}")


def _write(connection: psycopg.Connection[Any], number: int) -> None:
    connection.execute(f"INSERT INTO split.notes VALUES ({number}, repeat('x', 500))")
    connection.execute(f"UPDATE split.notes SET body = 'changed' WHERE id = {number // 2}")


def _phases(system: System) -> list[str]:
    return [each.phase for each in system.deployment.overview().splits]


def _subscribers(system: System) -> set[str]:
    return {str(each["subscriber"]) for each in system.status("queue:q_a")["subscribers"]}


def test_cut_destination_is_split_and_merged_while_others_continue(sites: Sites):
    sites.free("split")
    system = sites.by(FILE, sites=["a", "b", "c"], more=THRESHOLDS)
    system.remake("split", "CREATE TABLE notes (id bigint PRIMARY KEY, body text)", sites=["a", "b", "c"])
    system.up()
    opens = {name: system.status(name)["opens_total"] for name in OTHERS}
    with steady_load(system, _write, site="a"):
        wait_until("rows arrive", lambda: system.execute("c", "SELECT count(*) FROM split.notes") > [(20,)])
        system.call(f"apply:{FAR}", "stop_component")  # nothing arrives there any more

        wait_until("it is split off", lambda: _phases(system) == ["split"])
        wait_until("the common queue has forgotten it", lambda: _subscribers(system) == {NEAR})
        cut_at = int(system.status("queue:q_a")["sources"]["a"]["durable_scn"])
        wait_until(
            "the others' restart position moves on",
            lambda: system.status("capture:capture_a")["required_checkpoint_scn"] > cut_at,
        )
        own = wait_until(
            "its own capture process runs",
            lambda: "required_checkpoint_scn" in (s := system.status("capture:capture_a.a_to_c")) and s,
        )
        assert own["required_checkpoint_scn"] < cut_at  # the redo that it needs is kept

        # A controller that restarts finds the split, and so do all others.
        pid = system.kill(CONTROLLER)
        system.wait_restarted(CONTROLLER, pid)
        wait_until("the new controller knows it", lambda: _phases(system) == ["split"])

        system.call(f"apply:{FAR}", "start_component")
        wait_until("it is merged", lambda: _phases(system) == [])
        wait_until("the common queue has it", lambda: _subscribers(system) == {NEAR, FAR})
    wait_until("its clones have ended", lambda: not CLONES & system.deployment.connect().names())
    system.assert_converged(("split.notes",))
    # the streams of the others were not interrupted
    assert {name: system.status(name)["opens_total"] for name in OTHERS} == opens
