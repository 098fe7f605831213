"""`ray up` makes a cluster of cluster.local.yaml, a topology runs on it, and Ray restarts what fails there.

The file is the one for users, with its addresses, user, mounts and commands, including `ray stop`: machines are
namespaces (`tests.support.clusters.machines`). One command differs: the environment of Python is that of the tests, as
nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from ray.autoscaler._private.constants import AUTOSCALER_HEARTBEAT_TIMEOUT_S

from actors.security.authority import make_certificates
from headrace.console.status_view import notes
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.status.plain import overview_of
from protos.wire.transport import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S
from tests.support.clusters.machines import HOME, PROJECT, Machine, Machines, why_there_are_none
from tests.support.clusters.system import wait_until
from tests.support.histories.writers import TABLES, Writers, writing
from tests.support.session.reporting import note_started
from tests.support.session.shared import Shared

pytestmark = [pytest.mark.unit("ray_up"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow, pytest.mark.soak]

FILE = "cluster.local.yaml"
SITES = ("dbs1", "dbs2")
TOPOLOGY = """
topology: test_ray_up
state_dir: /var/lib/headrace
tls: {authority: certs/ca.pem, certificate: "certs/{site}.pem", key: "certs/{site}.key"}
sites:
  dbs1: {database: {kind: postgres, dsn: "${DBS1_DSN}"}, node: {site_dbs1: 1}}
  dbs2: {database: {kind: postgres, dsn: "${DBS2_DSN}"}, node: {site_dbs2: 1}}
replicate:
  - {tables: [public.*], from: dbs1, to: [dbs2]}
"""
TABLE = "CREATE TABLE written (number bigint PRIMARY KEY)"
ROWS = 500  # more than one batch, and little work for the machine
PROGRAMS = Path(sys.prefix) / "bin"
# Other sessions at dbs1 are the destination's, which reads from the source.
OWN_SESSIONS = {
    "dbs1": "SELECT active_pid FROM pg_replication_slots WHERE active",
    "dbs2": "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'headrace%'",
}
COMMAND_S = 420.0  # the longest, `headrace up`, takes a minute on a busy machine
# Ray gives a node up after half a minute, checks its machines every five seconds, and then starts Ray there: 50 s on a
# quiet machine.
BACK_S = 300.0
SHORT_CUT_S = KEEPALIVE_S + KEEPALIVE_TIMEOUT_S + 3.0  # both ends of a stream notice it
# The live nodes, as the head knows them. It asks a node every 3 s whether it lives, waits 10 s for the answer, and
# gives the node up after the fifth missing answer: 62 to 65 s after the link went down (Ray's `health_check_*`).
NODES = """python - <<'END'
import logging, ray
ray.init("auto", log_to_driver=False, logging_level=logging.ERROR)
print("node", *(each["NodeID"] for each in ray.nodes() if each["Alive"]))
END"""
INSTALL = "~/headrace-env/bin/pip install"


def cluster_file() -> dict[str, Any]:
    """Return the file, with the tests' environment in place of the one that pip makes."""
    cluster: dict[str, Any] = yaml.safe_load((PROJECT / FILE).read_text())
    (made,) = (number for number, command in enumerate(cluster["setup_commands"]) if INSTALL in command)
    cluster["setup_commands"][made] = f"ln -sfn {sys.prefix} ~/headrace-env"
    return cluster


class Cluster:
    """The machines with the cluster of `ray up`, and the topology, whose databases they all reach.

    Args:
        folder: of everything.
    """

    def __init__(self, folder: Path) -> None:
        self.servers = {site: EmbeddedServer(folder / "servers" / site, name=f"test_ray_up-{site}") for site in SITES}
        for server in self.servers.values():
            server.start()
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(TABLE)
                connection.execute(TABLES)
        self.written = 0
        self._certificates = folder / "certs"
        make_certificates(self._certificates, "test_ray_up", SITES)
        file = cluster_file()
        self.machines = Machines(folder / "machines", [server.port for server in self.servers.values()])
        home = str(HOME).lstrip("/")
        self.head = self.machines.add(
            "head",
            file["provider"]["head_ip"],
            self._files(*SITES) | {f"{home}/hr.yaml": TOPOLOGY, f"{home}/{FILE}": yaml.safe_dump(file)},
        )
        self.nodes = {
            site: self.machines.add(site, address, self._files(site) | {"etc/headrace/site": f"{site}\n"})
            for site, address in zip(SITES, file["provider"]["worker_ips"], strict=True)
        }

    def _files(self, *sites: str) -> dict[str, str]:
        """Return the certificates of a machine, in the folder of the topology's file."""
        names = ["ca.pem", *(f"{site}.{kind}" for site in sites for kind in ("pem", "key"))]
        return {f"{HOME}/certs/{name}".lstrip("/"): (self._certificates / name).read_text() for name in names}

    def ask(self, command: str) -> tuple[int, str, str]:
        """Run a command on the head as an operator does; return exit code, output, errors."""
        environment = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"} | {
            f"{site.upper()}_DSN": server.dsn() for site, server in self.servers.items()
        }
        done = self.head.run(
            "bash", "-c", f"export PATH={PROGRAMS}:$PATH; {command}", environment=environment, timeout_s=COMMAND_S
        )
        return done.returncode, done.stdout, done.stderr

    def tell(self, command: str) -> str:
        """Run a command that must succeed."""
        code, output, errors = self.ask(command)
        assert code == 0, f"{command}: {output[-4000:]}{errors[-4000:]}"
        return output

    def overview(self) -> dict[str, Any]:
        _, output, errors = self.ask("headrace status hr.yaml --json")
        assert output, errors
        overview: dict[str, Any] = json.loads(output)
        return overview

    def components(self) -> dict[str, tuple[str, str]]:
        """Map each component to its site, and whether it answers."""
        return {
            each["name"]: (each["site"], "away" if each["state"] == "UNREACHABLE" else "there")
            for each in self.overview()["components"]
        }

    def write(self) -> None:
        """Write more rows at the source."""
        with psycopg.connect(self.servers["dbs1"].dsn(), autocommit=True) as connection:
            connection.execute(
                "INSERT INTO written SELECT generate_series(%s::bigint, %s)", (self.written + 1, self.written + ROWS)
            )
        self.written += ROWS

    def found(self) -> list[int]:
        with psycopg.connect(self.servers["dbs2"].dsn(), autocommit=True) as connection:
            return [number for (number,) in connection.execute("SELECT number FROM written ORDER BY 1")]

    def wait_arrived(self) -> None:
        """Wait until all written rows are at the destination exactly once."""
        wait_until("all rows arrive", lambda: len(self.found()) >= self.written, BACK_S)
        assert self.found() == list(range(1, self.written + 1))

    def execute(self, site: str, statement: str, /) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.servers[site].dsn(), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def sessions(self, site: str) -> set[int]:
        """Return the sessions of a site's own processes at its database: those that apply changes or read the log."""
        return {pid for (pid,) in self.execute(site, OWN_SESSIONS[site])}

    def nodes_alive(self) -> set[str]:
        """Return the ids of the nodes that Ray's head takes to be alive."""
        # Ray may print there, too, that a node has ended
        return set(next(line for line in self.tell(NODES).splitlines() if line.startswith("node ")).split()[1:])

    def end(self) -> None:
        for server in self.servers.values():
            server.destroy()


def _open(stack: ExitStack, _: pytest.Config) -> Cluster:
    folder = Path(tempfile.mkdtemp(prefix="hn-"))
    folder.chmod(0o711)
    stack.callback(shutil.rmtree, folder)
    made = Cluster(folder)
    stack.callback(made.end)
    stack.enter_context(made.machines.running())
    note_started("Ray by `ray up`")
    made.tell("ray get-auth-token --generate")
    # It sends the folder that it is called in to the machines.
    made.tell(f"cd {PROJECT} && ray up --yes ~/{FILE}")
    note_started("topology")
    # No finding about the cluster: it requires the token, and its nodes have Spark's secret.
    findings = json.loads(made.tell("headrace up hr.yaml --address auto --json"))["findings"]
    assert [each for each in findings if "Ray" in each["path"] + each["problem"]] == []
    return made


_CLUSTER = Shared(_open)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if reason := why_there_are_none():
        pytest.skip(reason)
    with _CLUSTER.lend(request.node) as lent:
        yield lent


# --------------------------------------------------------------------------- tests


def test_ray_up_starts_every_machine_and_sites_run_on_their_own(cluster: Cluster):
    cluster.write()
    cluster.wait_arrived()
    assert {name: where for name, (_, where) in cluster.components().items()} == dict.fromkeys(
        cluster.components(), "there"
    )
    for site, node in cluster.nodes.items():
        assert len(node.running("raylet")) == 1, site
        assert [path.name for path in (node.disk / "var/lib/headrace/sites").iterdir()] == [site]
    assert not (cluster.head.disk / "var/lib/headrace/sites").exists()


@pytest.mark.fault("SIGKILL of every process of Ray on a machine")
def test_ray_restarts_itself_on_a_machine_and_the_topology_recovers(cluster: Cluster):
    before, node = cluster.components(), cluster.nodes["dbs2"]
    raylets = node.running("raylet")
    assert node.kill_all_but_sshd() > 5
    cluster.write()
    _wait_as(before, cluster, node, raylets)


@pytest.mark.fault("the power of a machine, which boots again with nothing but its sshd")
def test_rebooted_machine_gets_ray_again_and_continues_from_its_redo(cluster: Cluster):
    before, node = cluster.components(), cluster.nodes["dbs1"]
    raylets = node.running("raylet")
    node.cut_power()
    cluster.write()
    wait_until("its site is away", lambda: cluster.components()["site:dbs1"] == ("dbs1", "away"), BACK_S)
    assert len(cluster.found()) == cluster.written - ROWS
    node.boot()
    _wait_as(before, cluster, node, raylets)


@pytest.mark.parametrize("site", ["dbs2", "dbs1"])
@pytest.mark.fault("the link of a machine is down, for longer than its streams live and for less time than Ray waits")
def test_machine_cut_off_briefly_continues_without_any_restart(cluster: Cluster, site: str):
    before, node = cluster.components(), cluster.nodes[site]
    began, nodes, raylets = _began(node), cluster.nodes_alive(), node.running("raylet")
    with _written_once(cluster, before) as writers:
        since = time.monotonic()
        with node.cut_off():
            wait_until("status says it", lambda: "has not answered" in _problem_of(cluster.overview(), site), BACK_S)
            time.sleep(max(0.0, since + SHORT_CUT_S - time.monotonic()))
        took_s = time.monotonic() - since
        writers.wait_arriving("dbs2")
    # otherwise this machine was so slow that the autoscaler restarted Ray there
    if took_s < AUTOSCALER_HEARTBEAT_TIMEOUT_S:
        assert (node.running("raylet"), cluster.nodes_alive(), _began(node)) == (raylets, nodes, began)


@pytest.mark.parametrize("site", ["dbs2", "dbs1"])
@pytest.mark.fault("the link of a machine is down, for longer than Ray takes to give its node up")
def test_machine_given_up_by_ray_returns_without_loss_or_duplicates(cluster: Cluster, site: str):
    before, node = cluster.components(), cluster.nodes[site]
    nodes, raylets = cluster.nodes_alive(), node.running("raylet")
    with _written_once(cluster, before) as writers:
        with node.cut_off():
            wait_until("Ray has given the node up", lambda: len(nodes - cluster.nodes_alive()) == 1, BACK_S)
            wait_until("status says so", lambda: "is missing" in _problem_of(cluster.overview(), site), BACK_S)
            # The given-up processes still run there, and could write.
            assert node.running("raylet") == raylets
            old = cluster.sessions(site)
            assert old
            held = len(writers.found("dbs2"))
            writers.wait_writing()
            _assert_told(cluster.overview(), before, site)
            assert len(writers.found("dbs2")) == held
        wait_until("Ray runs there again", lambda: node.running("raylet") - raylets, BACK_S)
        wait_until("all is there again", lambda: cluster.components() == before, BACK_S)
        writers.wait_arriving("dbs2")
        assert old.isdisjoint(cluster.sessions(site))
    assert len(node.running("raylet")) == 1


@contextlib.contextmanager
def _written_once(cluster: Cluster, before: Mapping[str, tuple[str, str]]) -> Iterator[Writers]:
    """Write rows during the block; then all of them are on both sides exactly once."""
    with writing(cluster, "dbs1") as writers:
        writers.wait_arriving("dbs2")
        yield writers
    wait_until("all is there again", lambda: cluster.components() == before, BACK_S)
    cluster.tell(f"headrace wait hr.yaml --caught-up --timeout {BACK_S:g}")
    writers.assert_exactly_once("dbs2")
    cluster.tell("headrace verify hr.yaml")
    assert notes(overview_of(cluster.overview())) == []


def _assert_told(overview: Mapping[str, Any], before: Mapping[str, tuple[str, str]], site: str) -> None:
    """Assert that exactly the machine's components are unavailable, and that nothing claims a complete destination."""
    there = {each["name"]: each["state"] for each in overview["components"] if each["state"] != "BYPASSED"}
    assert {name for name, state in there.items() if state == "UNREACHABLE"} == {
        name for name in there if before[name][0] == site
    }
    (flow,) = overview["flows"]
    assert flow["scn_gap"] is None
    assert flow["lag_s"] is None or flow["lag_s"] > 0


def _problem_of(overview: Mapping[str, Any], site: str) -> str:
    return next((note.problem for note in notes(overview_of(overview)) if note.component == f"site:{site}"), "")


def _began(node: Machine) -> set[int]:
    """Return the processes of the node's components."""
    return {pid for pid, command in node.processes().items() if command.startswith("ray::ProcessActor")}


def _wait_as(before: dict[str, tuple[str, str]], cluster: Cluster, node: Machine, raylets: set[int]) -> None:
    """Wait until everything is as before, with Ray on the machine started by Ray alone; then it works as before."""
    assert raylets
    wait_until("Ray runs there again", lambda: node.running("raylet") - raylets, BACK_S)
    wait_until("all is there again", lambda: cluster.components() == before, BACK_S)
    cluster.write()
    cluster.wait_arrived()
    cluster.tell("headrace verify hr.yaml")
