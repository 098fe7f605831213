"""A spare machine takes over a site without a database and without its disk, while the given-up machine still works.

On its own cluster, as no other test lets the head give up a running node.
tests/unit/actors/staging/test_two_lives_of_a_queue.py tests it without Ray, in any order.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from actors.security.authority import make_certificates
from actors.site.connection import embedded_server
from headrace.deployment.deployment import Deployment
from tests.support.clusters import ray_nodes
from tests.support.clusters.ray_nodes import RayNodes, has_own_disks, kill
from tests.support.clusters.system import System, wait_until
from tests.support.histories.writers import TABLES, writing
from tests.support.session.reporting import note_started
from topology.file.reading import read_topology

pytestmark = [pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow, pytest.mark.soak]

SCHEMA = "relayed"
OVER_A_RELAY = """
topology: test_spare
state_dir: state
tls: {authority: certs/ca.pem, certificate: "certs/{site}.pem", key: "certs/{site}.key"}
combined: never
sites:
  a: {database: {kind: embedded}}
  b: {database: {kind: embedded}}
  relay: {database: {kind: none}, node: {site_relay: 1}}
queues: {q_a: {site: a}, q_relay: {site: relay}, q_b: {site: b}}
captures: {capture_a: {site: a, source: a, queue: q_a, rules: {include: [{schema: relayed}]}}}
propagations: {to_relay: {from: q_a, to: q_relay}, from_relay: {from: q_relay, to: q_b}}
applies: {apply_b: {site: b, source: a, queue: q_b}}
"""
GIVEN_UP_S = 600.0  # 65 s with Ray's own settings; a busy machine also starts processes then


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayNodes]:
    """A head, which gives a node up by Ray's default rules, and a node for the relay."""
    monkeypatch.setattr(ray_nodes, "_PATIENT", {})
    folder = Path(tempfile.mkdtemp(prefix="hs-"))  # short, because it holds Ray's sockets
    folder.chmod(0o711)
    note_started("Ray of several nodes")
    try:
        with RayNodes(folder, folder / "state").running("relay") as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def system(nodes: RayNodes) -> Iterator[System]:
    file = nodes.folder / "spare.yaml"
    file.write_text(textwrap.dedent(OVER_A_RELAY))
    make_certificates(nodes.folder / "certs", "test_spare", ("a", "b", "relay"))
    spec = read_topology(file)
    deployment = Deployment(spec, nodes.address)
    servers = {name: embedded_server(spec, spec.site(name)) for name in ("a", "b")}
    try:
        for server in servers.values():
            server.start()
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(f"CREATE SCHEMA {SCHEMA}; SET search_path = {SCHEMA}")
                connection.execute(TABLES)
        note_started("topology")
        assert deployment.up().state == "RUNNING"
        yield System(deployment, servers, nodes.folder)
    finally:
        problems = deployment.down(purge=True)
        for server in servers.values():
            server.destroy()
    assert problems == []


@pytest.mark.skipif(not has_own_disks(), reason="the nodes would share a disk, and its locks")
@pytest.mark.fault("the head gives a node up that works on, and another one without its disk takes its site over")
def test_two_machines_running_one_queue_lose_and_duplicate_nothing(system: System, nodes: RayNodes):
    node, queue = nodes["relay"], "queue:q_relay"
    with writing(system, "a", SCHEMA, 2) as writers:
        writers.wait_arriving("b")
        given_up = node.processes()
        old = psutil.Process(system.pid(queue))
        assert old in given_up
        # The head gets no more answers of the node. Processes there do not notice, and neither do those connected to
        # them.
        (raylet,) = (process for process in given_up if process.name() == "raylet")
        raylet.suspend()
        nodes.frozen.append(raylet)
        node.state_dir.rename(node.state_dir.with_name("state_given_up"))
        node.start("127.0.0.31")
        new = wait_until(
            "the spare machine runs the queue", lambda: (pid := system.pid(queue)) != old.pid and pid, GIVEN_UP_S
        )
        assert psutil.Process(new) in node.processes()
        system.wait_state("propagation:from_relay", "WAITING FOR LCRS", "SENDING", "PAUSED FOR FLOW CONTROL")
        assert old.is_running()
        assert old.status() != psutil.STATUS_ZOMBIE
        received = len(writers.found("b"))
        with contextlib.suppress(AssertionError):
            wait_until("changes go on", lambda: len(writers.found("b")) > received, 20.0)
        print(f"while both lives run: {'changes go on' if len(writers.found('b')) > received else 'changes wait'}")
        assert old.is_running()

        # As docs/tasks/recover.md says.
        system.call("propagation:to_relay", "stop_component")
        system.wait_state("propagation:to_relay", "DISABLED")
        system.call("propagation:to_relay", "start_component")
        writers.wait_arriving("b")
        assert old.is_running()
        assert kill(given_up) > 1
        writers.wait_arriving("b")
    system.assert_converged([f"{SCHEMA}.notes", f"{SCHEMA}.twins"])
    writers.assert_exactly_once("b")
