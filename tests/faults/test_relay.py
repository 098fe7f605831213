"""An intermediate site, which has queues and no database, passes changes on, whichever of its actors is killed."""

from __future__ import annotations

import pytest

from tests.support.clusters.sites import Sites
from tests.support.clusters.system import wait_until
from tests.support.histories.writers import TABLES, writing

pytestmark = [pytest.mark.unit("sites", order=5), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

SCHEMA = "relayed"
RELAY = """
queues: {q_a: {site: a}, q_relay: {site: relay}, q_b: {site: b}}
captures: {capture_a: {site: a, source: a, queue: q_a, rules: {include: [{schema: relayed}]}}}
propagations: {to_relay: {from: q_a, to: q_relay}, from_relay: {from: q_relay, to: q_b}}
applies: {apply_b: {site: b, source: a, queue: q_b}}
"""


@pytest.fixture
def relay(sites: Sites) -> Sites:
    sites.free(SCHEMA)
    sites.remake(SCHEMA, TABLES)
    system = sites.by(RELAY, sites=["a", "relay", "b"])
    system.up()
    return system


@pytest.mark.fault("SIGKILL of an intermediate site's actor and of its queue")
def test_changes_pass_an_intermediate_site_whose_actors_are_killed(relay: Sites):
    queue, onward = "queue:q_relay", "apply:apply_b"  # dequeues from there, without a propagation in between
    assert relay.status(onward)["dequeues_from"] == "q_relay"
    with writing(relay, "a", SCHEMA) as writers:
        writers.wait_arriving("b")
        old = relay.kill("site:relay")
        assert relay.wait_restarted("site:relay", old) != old
        writers.wait_arriving("b")
        relay.call(onward, "stop_component")
        relay.wait_state(onward, "DISABLED")
        passed = relay.status(queue)["rows_total"]
        wait_until("the queue has changes that nobody took", lambda: relay.status(queue)["rows_total"] > passed)
        old = relay.kill(queue)
        assert relay.wait_restarted(queue, old) != old
        relay.call(onward, "start_component")
        writers.wait_arriving("b")
    relay.assert_converged([f"{SCHEMA}.notes", f"{SCHEMA}.twins"])
    writers.assert_exactly_once("b")
    assert relay.status("site:relay")["state"] == "READY"
