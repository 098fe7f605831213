"""The connection of a propagation to its destination queue breaks, or goes silent."""

from __future__ import annotations

import time

import pytest

from protos.wire.transport import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S
from tests.support.clusters.faults import pgbench_through, propagation_name, proxied_propagation
from tests.support.clusters.system import System, wait_until

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

CUTS = 3
TRIES_MAX = 10  # for a cut of a second: pauses between tries double from a tenth
TRIES_PER_S = 2.0  # for a longer cut, because the machine stalls


@pytest.mark.fault("connection reset, and refused for a while")
def test_propagation_resumes_after_its_connection_was_cut(one_way: System):
    with proxied_propagation(one_way) as proxy:
        before, began = one_way.status(propagation_name(one_way)), time.monotonic()
        with pgbench_through(one_way) as running:
            running.wait_arriving()
            for cut in range(1, CUTS + 1):
                proxy.cut()
                assert proxy.connections == 0
                wait_until(
                    "the propagation noticed",
                    lambda cut=cut: (
                        one_way.status(propagation_name(one_way))["errors_total"] >= before["errors_total"] + cut
                    ),
                )
                proxy.heal()
                wait_until("the propagation connected anew", lambda: proxy.connections > 0)
        after = one_way.status(propagation_name(one_way))
        elapsed_s = time.monotonic() - began
    assert CUTS <= after["opens_total"] - before["opens_total"] <= TRIES_MAX * CUTS + TRIES_PER_S * elapsed_s


@pytest.mark.fault("half-open connection")
def test_propagation_resumes_after_its_connection_went_silent(one_way: System):
    """Nothing is reset: both ends must notice by themselves, within the time that pings take."""
    with proxied_propagation(one_way) as proxy:
        status = one_way.status(propagation_name(one_way))
        with pgbench_through(one_way) as running:
            running.wait_arriving()
            accepted = proxy.accepted
            proxy.swallow()
            wait_until(
                "the propagation noticed",
                lambda: one_way.status(propagation_name(one_way))["errors_total"] > status["errors_total"],
                timeout_s=3 * (KEEPALIVE_S + KEEPALIVE_TIMEOUT_S),
            )
            proxy.heal()
            wait_until("the propagation connected anew", lambda: proxy.accepted > accepted)
