"""`ray up` makes a cluster of cluster.local.yaml, a topology runs on it, and what fails there is brought back by Ray.

The file is the one that users get, with its addresses, its user, its mounts and its commands, `ray stop` among them: machines are namespaces
(`tests.support.machines`). One command is another one: the environment of Python is that of the tests, as nothing is downloaded.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from actors.security.authority import make_certificates
from databases.embedded import EmbeddedServer
from tests.support.machines import HOME, PROJECT, Machine, Machines, why_there_are_none
from tests.support.reporting import note_started
from tests.support.shared import Shared
from tests.support.system import wait_until

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
ROWS = 500  # more than one batch, and no more work for the machine
PROGRAMS = Path(sys.prefix) / "bin"
COMMAND_S = 420.0  # the longest, `headrace up`, takes a minute on a machine that does other work beside
# Ray gives a node up after half a minute, looks at its machines every five seconds, and then starts Ray there: 50 s on a quiet machine.
BACK_S = 300.0
INSTALL = "~/headrace-env/bin/pip install"


def cluster_file() -> dict[str, Any]:
    """The file, with the environment of the tests in the place of the one that pip makes."""
    cluster: dict[str, Any] = yaml.safe_load((PROJECT / FILE).read_text())
    (made,) = (number for number, command in enumerate(cluster["setup_commands"]) if INSTALL in command)
    cluster["setup_commands"][made] = f"ln -sfn {sys.prefix} ~/headrace-env"
    return cluster


class Cluster:
    """The machines, what `ray up` makes of them, and the topology, whose databases they all reach.

    Args:
        folder: of everything.
    """

    def __init__(self, folder: Path) -> None:
        self.servers = {site: EmbeddedServer(folder / "servers" / site, name=f"test_ray_up-{site}") for site in SITES}
        for server in self.servers.values():
            server.start()
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(TABLE)
        self.written = 0
        self._certificates = folder / "certs"
        make_certificates(self._certificates, "test_ray_up", SITES)
        file = cluster_file()
        self.machines = Machines(folder / "machines", [server.port for server in self.servers.values()])
        home = str(HOME).lstrip("/")
        self.head = self.machines.add(
            "head", file["provider"]["head_ip"], self._files(*SITES) | {f"{home}/hr.yaml": TOPOLOGY, f"{home}/{FILE}": yaml.safe_dump(file)},
        )
        self.nodes = {
            site: self.machines.add(site, address, self._files(site) | {"etc/headrace/site": f"{site}\n"})
            for site, address in zip(SITES, file["provider"]["worker_ips"], strict=True)
        }

    def _files(self, *sites: str) -> dict[str, str]:
        """The certificates of a machine, in the folder of the topology's file."""
        names = ["ca.pem", *(f"{site}.{kind}" for site in sites for kind in ("pem", "key"))]
        return {f"{HOME}/certs/{name}".lstrip("/"): (self._certificates / name).read_text() for name in names}

    def ask(self, command: str) -> tuple[int, str, str]:
        """Give a command on the head, as an operator does: exit code, output, errors."""
        environment = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"} | {f"{site.upper()}_DSN": server.dsn() for site, server in self.servers.items()}
        done = self.head.run("bash", "-c", f"export PATH={PROGRAMS}:$PATH; {command}", environment=environment, timeout_s=COMMAND_S)
        return done.returncode, done.stdout, done.stderr

    def tell(self, command: str) -> str:
        """Give a command that succeeds."""
        code, output, errors = self.ask(command)
        assert code == 0, f"{command}: {output[-4000:]}{errors[-4000:]}"
        return output

    def overview(self) -> dict[str, Any]:
        _, output, errors = self.ask("headrace status hr.yaml --json")
        assert output, errors
        overview: dict[str, Any] = json.loads(output)
        return overview

    def components(self) -> dict[str, tuple[str, str]]:
        """Of each component: its site, and whether it answers."""
        return {each["name"]: (each["site"], "away" if each["state"] == "UNREACHABLE" else "there") for each in self.overview()["components"]}

    def write(self) -> None:
        """More rows at the source."""
        with psycopg.connect(self.servers["dbs1"].dsn(), autocommit=True) as connection:
            connection.execute("INSERT INTO written SELECT generate_series(%s::bigint, %s)", (self.written + 1, self.written + ROWS))
        self.written += ROWS

    def found(self) -> list[int]:
        with psycopg.connect(self.servers["dbs2"].dsn(), autocommit=True) as connection:
            return [number for (number,) in connection.execute("SELECT number FROM written ORDER BY 1")]

    def wait_arrived(self) -> None:
        """All that was written is at the destination, once."""
        wait_until("all rows arrive", lambda: len(self.found()) >= self.written, BACK_S)
        assert self.found() == list(range(1, self.written + 1))

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
    # The folder that it sends to the machines is the one that it is called in.
    made.tell(f"cd {PROJECT} && ray up --yes ~/{FILE}")
    note_started("topology")
    # Nothing is said against the cluster: it asks for the token, and its nodes have Spark's secret.
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


def test_ray_up_starts_ray_on_every_machine_of_the_file_and_each_site_runs_on_its_own(cluster: Cluster):
    cluster.write()
    cluster.wait_arrived()
    assert {name: where for name, (_, where) in cluster.components().items()} == dict.fromkeys(cluster.components(), "there")
    for site, node in cluster.nodes.items():
        assert len(node.running("raylet")) == 1, site
        assert [path.name for path in (node.disk / "var/lib/headrace/sites").iterdir()] == [site]
    assert not (cluster.head.disk / "var/lib/headrace/sites").exists()


@pytest.mark.fault("SIGKILL of every process of Ray on a machine")
def test_ray_that_ends_on_a_machine_is_started_again_by_ray_and_the_topology_is_as_before(cluster: Cluster):
    before, node = cluster.components(), cluster.nodes["dbs2"]
    raylets = node.running("raylet")
    assert node.kill_all_but_sshd() > 5
    cluster.write()
    _wait_as(before, cluster, node, raylets)


@pytest.mark.fault("the power of a machine, which boots again with nothing but its sshd")
def test_a_machine_that_boots_again_gets_its_ray_from_ray_and_goes_on_from_its_redo(cluster: Cluster):
    before, node = cluster.components(), cluster.nodes["dbs1"]
    raylets = node.running("raylet")
    node.cut_power()
    cluster.write()
    wait_until("its site is away", lambda: cluster.components()["site:dbs1"] == ("dbs1", "away"), BACK_S)
    assert len(cluster.found()) == cluster.written - ROWS
    node.boot()
    _wait_as(before, cluster, node, raylets)


def _wait_as(before: dict[str, tuple[str, str]], cluster: Cluster, node: Machine, raylets: set[int]) -> None:
    """Until everything is as before, of which Ray alone starts Ray on the machine; then it works as before."""
    assert raylets
    wait_until("Ray runs there again", lambda: node.running("raylet") - raylets, BACK_S)
    wait_until("all is there again", lambda: cluster.components() == before, BACK_S)
    cluster.write()
    cluster.wait_arrived()
    cluster.tell("headrace verify hr.yaml")
