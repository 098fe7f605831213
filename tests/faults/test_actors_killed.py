"""Each kind of actor is killed while pgbench writes at the source."""

from __future__ import annotations

import pytest

from actors.controller import CONTROLLER
from tests.support.faults import pgbench_through
from tests.support.matrices import values
from tests.support.system import System

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]


@pytest.mark.fault("SIGKILL of an actor")
# The propagation shares a process with the first of the queues.
@pytest.mark.parametrize("kind", values(["capture", "queue", "site:src", "site:dst", "apply", "spark", CONTROLLER], "capture", "queue", "site:src", "spark", CONTROLLER))
def test_killed_actor_comes_back_and_nothing_is_lost_or_doubled(one_way: System, kind: str):
    names = [component["name"] for component in one_way.deployment.overview()["components"]]
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
