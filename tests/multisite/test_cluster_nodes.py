"""A cluster of a head and a node per site under load: a node dies, restarts or is added.

The tests of the unit share one cluster and one topology (a sends to b and c, c sends to b); each test leaves the sites
equal. Databases are the user's own, outside the nodes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import psycopg
import pytest

from actors.controller import CONTROLLER
from actors.security.authority import make_certificates
from headrace.console.status_view import notes
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.deployment.deployment import Deployment, Progress
from headrace.status.component import ComponentStatus
from headrace.status.overview import Overview
from tests.support.clusters.ray_nodes import RayNodes, has_own_disks, kill
from tests.support.clusters.system import System, wait_until
from tests.support.histories.writers import TABLES, Writers, writing
from tests.support.session.reporting import note_started
from tests.support.session.shared import Shared
from tests.support.wire.attackers import assert_spark_reads_nothing, listening_of

pytestmark = [pytest.mark.unit("nodes"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY = """
topology: test_nodes
state_dir: state
tls: {{authority: certs/ca.pem, certificate: "certs/{{site}}.pem", key: "certs/{{site}}.key"}}
sites: {sites}
replicate:
  - {{schemas: [x], from: a, to: [{to}]}}
  - {{schemas: [y], from: c, to: [b]}}
"""
SITE = """
  {name}: {{database: {{kind: postgres, dsn: "${{{variable}}}"}}, node: {{site_{name}: 1}}, executors: 1}}"""
SITES = ("a", "b", "c")
UP_S = 600.0  # half a minute on a quiet machine
NODE_PROCESSES_MIN = 5  # Ray's, and those of the site's components
CLIENTS = 2  # at each source: three apply processes apply their changes, all on one small machine


class Cluster:
    """The topology on its nodes.

    Args:
        folder: of everything.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "nodes.yaml"
        self.nodes = RayNodes(folder, folder / "state")
        make_certificates(folder / "certs", "test_nodes", (*SITES, "d"))
        self.servers = {
            name: EmbeddedServer(folder / "servers" / name, name=f"test_nodes-{name}") for name in (*SITES, "d")
        }
        self.system = System(Deployment.read(self.write("b", "c")), self.servers, folder)

    def write(self, *destinations: str) -> Path:
        """Write the file with these sites as destinations of a, and the variables it refers to."""
        names = dict.fromkeys((*SITES, *destinations))
        for name in names:
            server = self.servers[name]
            if not server.is_running:
                self._make(name, server)
            os.environ[variable(name)] = server.dsn()
        sites = "".join(SITE.format(name=name, variable=variable(name)) for name in names)
        self.file.write_text(textwrap.dedent(TOPOLOGY).format(sites=sites, to=", ".join(destinations)))
        return self.file

    @staticmethod
    def _make(name: str, server: EmbeddedServer) -> None:
        server.start()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            for schema in {"a": "x", "b": "xy", "c": "xy", "d": "x"}[name]:
                connection.execute(f"CREATE SCHEMA {schema}; SET search_path = {schema}")
                connection.execute(TABLES)

    def up(self, *destinations: str, progress: Progress | None = None) -> Overview:
        """Run `headrace up` on the head with these destinations."""
        self.system.deployment = Deployment.read(self.write(*destinations), self.nodes.address, to_start=True)
        overview = self.system.deployment.up(timeout_s=UP_S, progress=progress)
        assert overview.state == "RUNNING", overview.findings
        return overview

    def end(self) -> None:
        self.system.deployment.disconnect()
        for name, server in self.servers.items():
            server.destroy()
            os.environ.pop(variable(name), None)

    # ------------------------------------------------------------------ observations

    def components(self) -> dict[str, ComponentStatus]:
        return {each.name: each for each in self.system.deployment.overview().components if each.state != "BYPASSED"}

    def away(self, site: str) -> set[str]:
        """Return the components that do not answer, when they are known to be unavailable with a site's node."""

        def is_told() -> bool:
            return any(
                note.component == f"site:{site}" and "is missing" in note.problem
                for note in notes(self.system.deployment.overview())
            )

        wait_until(f"status says that the node of {site} is missing", is_told)
        return {name for name, each in self.components().items() if each.state == "UNREACHABLE"}

    def wait_answering(self) -> None:
        wait_until(
            "everybody answers", lambda: not any(each.state == "UNREACHABLE" for each in self.components().values())
        )

    def errors(self) -> list[object]:
        return [
            error for apply in self.system.spec.applies for error in self.system.call(f"apply:{apply.name}", "errors")
        ]


class Load:
    """Writers at both sources, and the state that they must lead to."""

    def __init__(self, cluster: Cluster, x: Writers, y: Writers) -> None:
        self.cluster, self.x, self.y = cluster, x, y

    def wait_arriving(self) -> None:
        """Wait until changes written after this call arrive everywhere."""
        for site in ("b", "c"):
            self.x.wait_arriving(site)
        self.y.wait_arriving("b")


def is_jvm(process: psutil.Process) -> bool:
    try:
        return bool(process.name() == "java")
    except psutil.Error:
        return False  # just ended


def variable(site: str) -> str:
    return f"TEST_NODES_{site.upper()}_DSN"


@contextlib.contextmanager
def loaded(cluster: Cluster, *more: str) -> Iterator[Load]:
    """Write at a and c during the block; then every acknowledged commit is everywhere exactly once."""
    with writing(cluster.system, "a", "x", CLIENTS) as x, writing(cluster.system, "c", "y", CLIENTS) as y:
        load = Load(cluster, x, y)
        load.wait_arriving()
        yield load
        load.wait_arriving()
    cluster.system.wait_caught_up()
    assert cluster.errors() == []
    x.assert_exactly_once("b", "c", *more)
    y.assert_exactly_once("b")
    assert x.acknowledged
    assert y.acknowledged


def _open(stack: ExitStack, _: pytest.Config) -> Cluster:
    folder = Path(tempfile.mkdtemp(prefix="hn-"))  # short, because it holds Ray's sockets
    folder.chmod(0o711)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    made = Cluster(folder)
    stack.callback(made.end)
    note_started("Ray of several nodes")
    stack.enter_context(made.nodes.running(*SITES))
    stack.callback(_down, made)
    note_started("topology")
    made.up("b", "c")
    return made


def _down(cluster: Cluster) -> None:
    problems = cluster.system.deployment.down(purge=True)
    assert problems == []
    assert [
        path for node in cluster.nodes.nodes.values() for path in node.state_dir.glob("*/*") if node.processes()
    ] == []


_NODES = Shared(_open, illness=lambda cluster: cluster.system.illness())


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with _NODES.lend(request.node) as lent:
        yield lent


# --------------------------------------------------------------------------- tests


def test_each_site_runs_on_its_node_and_keeps_its_files_there(cluster: Cluster):
    components, places = cluster.components(), {}
    for name, each in components.items():
        pid = cluster.system.pid(name)
        places[name] = next(
            site for site in SITES if pid in {process.pid for process in cluster.nodes[site].processes()}
        )
        assert places[name] == each.site, name
    head = {process.pid for process in cluster.nodes.head.processes()}
    assert cluster.system.pid(CONTROLLER) in head

    def jvms() -> dict[str, int]:
        return {
            node.name: sum(is_jvm(process) for process in node.processes())
            for node in (*cluster.nodes.nodes.values(), cluster.nodes.head)
        }

    # Of each application: driver, application master and its starter, one executor.
    wait_until("there are their JVMs, and no others", lambda: jvms() == {"a": 0, "b": 4, "c": 4, "head": 0})
    endpoint = cluster.system.call("queue:q_a", "endpoint")
    assert endpoint.partition(":")[0] == cluster.nodes["a"].address
    if has_own_disks():
        for site in SITES:
            assert [path.name for path in (cluster.nodes[site].state_dir / "sites").iterdir()] == [site]
            assert not (cluster.nodes[site].state_dir / "desired.json").exists()
        assert (cluster.nodes.state_dir / "desired.json").exists()
        assert not (cluster.nodes.state_dir / "sites").exists()


def test_no_process_of_spark_on_a_node_reads_what_another_user_sends(cluster: Cluster):
    """Ray was started here as its manual says, and has no secret of Spark's."""
    node = cluster.nodes["b"].processes()
    assert_spark_reads_nothing([each for each in listening_of(node) if "java" in each[0]], executors=1)


@pytest.mark.fault("SIGKILL of every process of a node, which comes back with another address")
@pytest.mark.parametrize(
    ("site", "address"),
    [
        ("a", "127.0.0.31"),
        # With a Spark application. In `make test`, those of all nodes start anew after the head.
        pytest.param("b", "127.0.0.32", marks=pytest.mark.soak),
    ],
)
def test_a_site_whose_node_is_killed_stands_still_while_the_others_go_on(cluster: Cluster, site: str, address: str):
    node = cluster.nodes[site]
    with loaded(cluster) as load:
        going, to, halted = {"a": (load.y, "b", ("b", "c")), "b": (load.x, "c", ("b",))}[site]
        pids = {name: cluster.system.pid(name) for name in cluster.components()}
        assert node.kill() >= NODE_PROCESSES_MIN
        away = {name for name, each in cluster.components().items() if each.site == site}
        wait_until("all that is of it is away, and nothing else", lambda: cluster.away(site) == away)
        known = load.x.acknowledged
        load.x.wait_writing()
        going.wait_arriving(to)
        assert [each for each in halted if set(load.x.found(each)) - known] == []
        assert cluster.system.status(CONTROLLER)["opens_total"] == 1
        node.start(address)
        load.wait_arriving()
        cluster.wait_answering()
        assert {name for name, pid in pids.items() if cluster.system.pid(name) != pid} == away
        assert node.address == address
    assert cluster.system.status(CONTROLLER)["errors_total"] == 0


@pytest.mark.soak
@pytest.mark.fault("an orderly restart of each node, one after another")
def test_sites_are_restarted_one_after_another_under_load(cluster: Cluster):
    with loaded(cluster) as load:
        for site in SITES:
            before = cluster.system.pid(f"site:{site}")
            cluster.nodes[site].stop()
            assert cluster.nodes[site].processes() == []
            cluster.nodes[site].start()
            load.wait_arriving()
            cluster.wait_answering()
            assert cluster.system.pid(f"site:{site}") != before


@pytest.mark.soak
@pytest.mark.fault("a site joins, and leaves with its node")
def test_a_site_is_added_and_removed_under_load(cluster: Cluster):
    with loaded(cluster) as load:
        pids = {name: cluster.system.pid(name) for name in cluster.components()}
        cluster.nodes.add("d").start()
        overview = cluster.up("b", "c", "d")
        assert {each.name for each in overview.components} > set(pids)
        load.x.wait_arriving("d")
        assert {name: cluster.system.pid(name) for name in pids} == pids
        cluster.up("b", "c")
        assert set(cluster.components()) == set(pids)
        cluster.nodes.remove("d")
        load.wait_arriving()
    assert {name: cluster.system.pid(name) for name in pids} == pids
    there = load.x.found("d")
    assert set(there.values()) == {1}
    assert set(there) < set(load.x.found("a"))


@pytest.mark.fault(
    "SIGKILL of every process of the head; all nodes are started anew, one of them beside processes that hang"
)
def test_everything_goes_on_from_what_is_durable_after_the_head_was_killed(cluster: Cluster):
    """A frozen process on a node still has its files open: nothing starts there before it has ended."""
    system, nodes = cluster.system, cluster.nodes
    told: dict[str, str] = {}
    with loaded(cluster) as load:
        pids = {name: system.pid(name) for name in cluster.components()}
        system.deployment.disconnect()
        assert nodes.head.kill() > 1
        load.wait_arriving()  # running processes continue for a while
        for site in ("a", "c"):
            nodes[site].stop()
        hanging = nodes["b"].freeze()
        nodes.start()

        def look(overview: Overview) -> None:
            found = {each.name: each.problem for each in overview.components if "still runs in process" in each.problem}
            if found and not told:
                told.update(found)
                kill(hanging)

        cluster.up("b", "c", progress=look)
        assert told
        assert told == {name: f"still runs in process {pids[name]} of this machine" for name in told}
        assert all(system.pid(name) != pid for name, pid in pids.items())
        load.wait_arriving()
    different = [answer for answer in system.verify() if not answer["equal"]]
    assert different == []
