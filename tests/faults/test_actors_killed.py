"""Each kind of actor is killed while pgbench writes at the source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.controller import CONTROLLER
from headrace.deployment.deployment import Deployment
from tests.support.clusters.faults import pgbench_through
from tests.support.clusters.processes_apart import pids, wait_processes
from tests.support.clusters.system import System
from tests.support.session.matrices import values

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]


@pytest.mark.fault("SIGKILL of an actor")
# The propagation shares a process with the first of the queues. Other tests of `make test` kill a capture process
# (test_hops_lost_answers, test_ddl_of_sites), sites and queues (test_relay) and an apply process
# (test_apply_driver_restarts).
@pytest.mark.parametrize(
    "kind",
    values(
        ["capture", "queue", "site:src", "site:dst", "apply", "spark", CONTROLLER],
        CONTROLLER,
    ),
)
def test_killed_actor_comes_back_and_nothing_is_lost_or_doubled(one_way: System, kind: str):
    names = [component.name for component in one_way.deployment.overview().components]
    victims = [kind] if kind == CONTROLLER else [name for name in names if name.startswith(kind)]
    assert victims
    with pgbench_through(one_way) as running:
        running.wait_arriving()
        for victim in victims:
            together = next(shared for shared in one_way.deployment.connect().processes().values() if victim in shared)
            old = one_way.kill(victim)
            new = one_way.wait_restarted(victim, old)
            assert new != old
            assert {name: one_way.pid(name) for name in together} == dict.fromkeys(together, new)
    if kind == "queue":
        assert {"propagation:src_to_dst", "queue:q_src"} in one_way.deployment.connect().processes().values()


@pytest.mark.soak  # test_processes_apart goes apart and kills the same queue
@pytest.mark.fault("SIGKILL of an actor")
def test_process_killed_after_processes_apart_stops_no_other_component(
    one_way: System,
):
    spec = replace(one_way.spec, processes_apart=True)
    apart = replace(one_way, deployment=Deployment(spec, one_way.deployment.address))
    with pgbench_through(one_way) as running:
        running.wait_arriving()
        together = wait_processes(one_way)
        at_first = pids(one_way)
        assert apart.deployment.up().state == "RUNNING"
        processes = wait_processes(apart)
        assert processes == {name: {name} for name in processes} != together

        # Otherwise the propagation shares a process with this queue.
        before = pids(apart)
        apart.wait_restarted("queue:q_src", apart.kill("queue:q_src"))
        after = pids(apart)
        assert {name for name in after if after[name] != before[name]} == {"queue:q_src"}
        running.wait_arriving(running.arrived + 1)

        assert one_way.deployment.up().state == "RUNNING"
        assert wait_processes(one_way) == together
        own = [name for name in at_first if name.startswith(("site:", "spark:"))]
        assert (
            {name: at_first[name] for name in own}
            == {name: after[name] for name in own}
            == {name: one_way.pid(name) for name in own}
        )
