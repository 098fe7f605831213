"""An apply server is killed just before and just after the destination committed its group."""

from __future__ import annotations

import pytest

from tests.support.clusters.faults import armed, pgbench_through
from tests.support.clusters.system import System, wait_until
from tests.support.session.matrices import values

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TIMES = 3


@pytest.mark.fault("SIGKILL at a failpoint of an apply server")
@pytest.mark.parametrize("name", values(["apply.before_commit", "apply.after_commit"], "apply.after_commit"))
def test_apply_server_killed_around_its_commit_loses_and_doubles_nothing(one_way: System, name: str):
    with pgbench_through(one_way) as running:
        running.wait_arriving()
        with armed(one_way, name, times=TIMES) as fired:
            wait_until(f"{name} fired", lambda: fired() == TIMES)
