"""An intermediate site, which has queues and no database, passes changes on, whatever of it is killed; on the Ray of the shared topology."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import psycopg
import pytest

from databases.embedded import EmbeddedServer
from tests.support.system import System, running, system_folder, wait_until
from tests.support.writers import TABLES, writing
from topology.file.reading import read_topology

pytestmark = [pytest.mark.unit("sites"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

RELAY = """
topology: test_relay
state_dir: state
sites:
  a: {database: {kind: embedded}}
  relay: {database: {kind: none}}
  b: {database: {kind: embedded}}
queues:
  q_a: {site: a}
  q_relay: {site: relay}
  q_b: {site: b}
captures:
  capture_a: {site: a, source: a, queue: q_a, rules: {include: [{schema: public}]}}
propagations:
  to_relay: {from: q_a, to: q_relay}
  from_relay: {from: q_relay, to: q_b}
applies:
  apply_b: {site: b, source: a, queue: q_b}
"""


def _tables(servers: dict[str, EmbeddedServer]) -> None:
    for server in servers.values():
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(TABLES)


@pytest.fixture
def relay(ray_address: str) -> Iterator[System]:
    with system_folder("relay") as folder:
        file = folder / "relay.yaml"
        file.write_text(textwrap.dedent(RELAY))
        with running(read_topology(file), folder, _tables, address=ray_address) as system:
            yield system


@pytest.mark.fault("SIGKILL of an intermediate site's actor and of its queue")
def test_changes_pass_through_a_site_without_a_database_whose_actors_are_killed(relay: System):
    queue, onward = "queue:q_relay", "apply:apply_b"  # which dequeues from there: no propagation in between
    assert relay.status(onward)["dequeues_from"] == "q_relay"
    with writing(relay, "a") as writers:
        writers.wait_arriving("b")
        old = relay.kill("site:relay")
        assert relay.wait_restarted("site:relay", old) != old
        writers.wait_arriving("b")
        relay.call(onward, "stop_component")
        relay.wait_state(onward, "DISABLED")
        passed = relay.status(queue)["cnum_msgs"]
        wait_until("the queue has changes that nobody took", lambda: relay.status(queue)["cnum_msgs"] > passed)
        old = relay.kill(queue)
        assert relay.wait_restarted(queue, old) != old
        relay.call(onward, "start_component")
        writers.wait_arriving("b")
    relay.assert_converged(["notes", "twins"])
    writers.assert_exactly_once("b")
    assert relay.status("site:relay")["state"] == "READY"
