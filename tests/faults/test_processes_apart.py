"""`processes: apart` on Ray and Spark: a killed or aborted component affects no other, even during an edit.

`test_actors_killed` has the kill of a queue, and the way there and back under load.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from actors.controller import CONTROLLER
from actors.hosting.processes import process_of
from headrace.base.errors import ApplyError
from headrace.deployment.deployment import Deployment
from tests.fix_cluster import TABLES
from tests.support.clusters.faults import apply_name, pgbench_through
from tests.support.clusters.processes_apart import listed_actors, pids, wait_processes
from tests.support.clusters.system import System, wait_until
from topology.edits.changes import Component, components_of

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

# An error of the destination's configuration: apply correctly waits for an operator.
_REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'the configuration is wrong' USING ERRCODE = 'F0000'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON notes FOR EACH ROW EXECUTE FUNCTION refuse();
ALTER TABLE notes ENABLE ALWAYS TRIGGER refuse"""
_ACCEPT = "DROP FUNCTION IF EXISTS refuse CASCADE"


@pytest.fixture
def apart(one_way: System) -> Iterator[System]:
    """The shared topology with a file that has `processes: apart`, not yet up; afterwards processes are shared again."""
    one_way.execute("src", "TRUNCATE notes")
    one_way.wait_caught_up()
    yield replace(
        one_way, deployment=Deployment(replace(one_way.spec, processes_apart=True), one_way.deployment.address)
    )
    one_way.execute("dst", _ACCEPT)
    assert one_way.deployment.up().state == "RUNNING"
    wait_processes(one_way)


def _sharing(system: System) -> list[Component]:
    """Return the components of a topology that share processes, unless the file has `processes: apart`."""
    together = replace(system.spec, processes_apart=False)
    return [each for each in components_of(system.spec) if process_of(together, each) != each.name]


def _abort(system: System, number: int) -> None:
    """Make the apply process meet an error that an operator must correct."""
    system.execute("dst", _REFUSE)
    system.execute("src", f"INSERT INTO notes VALUES ({number}, 'refused for a while')")
    system.wait_state(apply_name(system), "ABORTED")


@pytest.mark.soak  # test_apply_driver_restarts has the error, and the last test here goes apart
@pytest.mark.fault("an error that an operator must correct")
def test_aborted_component_moves_apart_and_back_and_resumes_when_fixed(one_way: System, apart: System):
    name = apply_name(apart)
    assert not {each.name for each in _sharing(apart)} & listed_actors(one_way).keys()
    _abort(one_way, 1)
    # Its error blocks no other: every component has its own process.
    with contextlib.suppress(ApplyError):  # it may be aborted again before `up` checks it
        apart.deployment.up()
    processes = wait_processes(apart)
    assert processes == {each: {each} for each in processes}
    assert "the configuration is wrong" in apart.wait_state(name, "ABORTED")["last_error"]["message"]
    before = pids(apart)

    # Ray lists each by its name, as a separate actor.
    assert {each.kind for each in _sharing(apart)} == {"queue", "propagation", "capture", "apply"}
    listed = listed_actors(apart)
    assert {each: listed.get(each) for each in before} == before
    assert len({listed[each.name] for each in _sharing(apart)}) == len(_sharing(apart))

    # The others work, and it restarts in its process.
    captured = int(apart.status("capture:capture_src")["rows_total"])
    apart.execute("src", "INSERT INTO notes VALUES (2, 'captured meanwhile')")
    wait_until("it is captured", lambda: int(apart.status("capture:capture_src")["rows_total"]) > captured)
    apart.execute("dst", _ACCEPT)
    apart.call(name, "start_component")
    wait_until("it applies", lambda: apart.status(name).get("ready"))
    apart.assert_converged(["notes"])
    assert pids(apart) == before

    # Back, while it is aborted and the cause is gone: no operator needs to start it.
    _abort(apart, 3)
    one_way.execute("dst", _ACCEPT)
    assert one_way.deployment.up().state == "RUNNING"
    assert name in next(held for held in wait_processes(one_way).values() if name in held)
    one_way.assert_converged(["notes"])
    assert one_way.execute("dst", "SELECT count(*) FROM notes") == [(3,)]


@pytest.mark.soak  # the next test has a queue
@pytest.mark.fault("SIGKILL of an actor")
def test_each_kind_of_component_killed_apart_stops_no_other(apart: System):
    apart.deployment.up()
    wait_processes(apart)
    with pgbench_through(apart) as running:
        for victim in (
            "capture:capture_src",
            "propagation:src_to_dst",
            "queue:q_dst_in",
            apply_name(apart),
            "site:src",
            "site:dst",
            "spark:dst",
        ):
            running.wait_arriving(running.arrived + 1)
            before = pids(apart)
            apart.wait_restarted(victim, apart.kill(victim))
            after = pids(apart)
            assert {name for name in after if after[name] != before[name]} == {victim}
            running.wait_arriving(running.arrived + 1)


@pytest.mark.fault("SIGKILL of an actor, and of the controller, during an edit")
@pytest.mark.parametrize(
    "victim",
    [
        "apply",
        pytest.param("capture", marks=pytest.mark.soak),
        pytest.param("queue", marks=pytest.mark.soak),
        pytest.param(CONTROLLER, marks=pytest.mark.soak),
    ],
)
def test_component_killed_during_the_edit_restarts_in_its_new_process(one_way: System, apart: System, victim: str):
    name = CONTROLLER if victim == CONTROLLER else next(each for each in pids(one_way) if each.startswith(f"{victim}:"))
    together, old = wait_processes(one_way), one_way.pid(name)
    with pgbench_through(one_way) as running, ThreadPoolExecutor(1) as pool:
        running.wait_arriving()
        editing = pool.submit(apart.deployment.up)
        # The first component has its own process.
        wait_until("the edit is under way", lambda: one_way.deployment.connect().processes().keys() - together.keys())
        killed = apart.pid(name)
        os.kill(killed, signal.SIGKILL)
        apart.wait_restarted(name, killed)
        assert editing.result().state == "RUNNING"
        processes = wait_processes(apart)
        assert processes == {each: {each} for each in processes}
        assert apart.pid(name) not in {old, killed}
        own, listed = pids(apart), listed_actors(apart)  # Ray lists each by its name, as a separate actor
        assert {each: listed.get(each) for each in own} == own
        running.wait_arriving(running.arrived + 1)

        # Otherwise the propagation shares a process with this queue.
        before = pids(apart)
        apart.wait_restarted("queue:q_src", apart.kill("queue:q_src"))
        after = pids(apart)
        assert {each for each in after if after[each] != before[each]} == {"queue:q_src"}
        running.wait_arriving(running.arrived + 1)
    apart.assert_converged(TABLES)
