"""One running topology that scenarios change to their needs, by `up` with another file.

The sites, Ray and the Spark applications stay.

    def test_something(sites: Sites):
        system = sites.by("replicate: [{tables: [some.*], from: a, to: [b]}]", schema="some")
        system.up()

Sites a and b exist from the start; c and relay (which has no database) join where a scenario names them. All links have
TLS. A scenario has its own schema, which is created anew at its sites with the tables that it needs.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg

from actors.security.authority import make_certificates
from actors.site.connection import embedded_server
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.deployment.deployment import Deployment
from headrace.status.overview import Overview
from tests.support.clusters.system import System
from tests.support.session.reporting import note_started
from topology.file.reading import read_topology
from topology.spec import TopologySpec

__all__ = ["IDLE_BETWEEN", "NAME", "Sites", "opened"]

NAME = "test_sites"
ALL = ("a", "b", "c", "relay")
# Small segments: a scenario can purge the start of redo.
_HEAD = """\
topology: test_sites
state_dir: state
segment_bytes: 1MB
tls: {authority: certs/ca.pem, certificate: "certs/{site}.pem", key: "certs/{site}.key"}
sites:
"""
# One executor instead of two: half of what a Spark application takes to start.
_SITE = "  {name}: {{database: {{kind: {kind}}}, executors: 1}}\n"
# The topology that runs while a scenario's schema must be in no file; and, before the first scenario, the two-way one,
# so that both Spark applications start at once.
IDLE = "replicate: [{tables: [idle.rows], from: a, to: [b]}]"
IDLE_BETWEEN = "replicate: [{tables: [idle.rows], between: [a, b]}]"


@dataclass
class Sites(System):
    """A view of the running topology through one file.

    Args:
        last: the deployment whose file is in force, which all views share.
    """

    last: list[Deployment] = field(default_factory=list)

    def by(
        self,
        body: str,
        *,
        sites: Sequence[str] = ("a", "b"),
        more: str = "",
        change: Callable[[TopologySpec], TopologySpec] = lambda spec: spec,
    ) -> Sites:
        """Return the same topology with another file, not yet up; the servers of its sites run.

        Args:
            body: of the file, after its sites.
            sites: in the file.
            more: keys at the head of the file.
            change: changes that no file can express.
        """
        kinds = {"relay": "none"}
        listed = "".join(_SITE.format(name=name, kind=kinds.get(name, "embedded")) for name in sites)
        self.file.write_text(f"{_HEAD}{listed}{textwrap.dedent(more)}{textwrap.dedent(body)}")
        spec = change(read_topology(self.file))
        for name in (name for name in sites if name not in kinds):
            self.servers.setdefault(name, embedded_server(spec, spec.site(name)))
            self.servers[name].start()  # `up` stops the server of a site that has left the file
        return replace(self, deployment=Deployment(spec))

    def up(self, **options: Any) -> Overview:
        """Run `headrace up` with this view's file."""
        self.last[:] = [self.deployment]
        overview = self.deployment.up(**options)
        assert overview.state == "RUNNING", overview.findings
        return overview

    def free(self, schema: str, *, idle: str = IDLE, sites: Sequence[str] = ("a", "b")) -> None:
        """Ensure that the file in force does not name a schema; if it does, run an idle one first.

        Args:
            schema: that a scenario creates anew.
            idle: body of the idle file.
            sites: in it.
        """
        if re.search(rf"\b{schema}\b", repr(self.last[0].spec)):
            self.by(idle, sites=sites).up()

    def remake(self, schema: str, statements: str = "", sites: Sequence[str] = ("a", "b")) -> None:
        """Create a schema anew, which the file in force must not name, and run statements in it.

        Args:
            schema: its name.
            statements: run at every site, with the schema first in the search path.
            sites: where.
        """
        for site in sites:
            with self.connection(site) as connection:
                connection.execute(
                    f"DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}; SET search_path = {schema}"
                )
                if statements:
                    connection.execute(statements)

    def illness(self, tables: Sequence[str] = ()) -> str:
        """Return what is wrong with the running topology, under any file."""
        return System.illness(replace(self, deployment=self.last[0]), tables)

    @property
    def file(self) -> Path:
        return self.folder / "sites.yaml"


def opened(stack: ExitStack, folder: Path) -> Sites:
    """Return the topology, which runs on its own Ray until the stack ends it.

    Args:
        stack: ends it.
        folder: of everything.
    """
    make_certificates(folder / "certs", NAME, ALL)
    servers: dict[str, EmbeddedServer] = {}

    def destroy() -> None:
        for server in servers.values():
            server.destroy()

    stack.callback(destroy)
    file = folder / "sites.yaml"
    file.write_text(
        f"{_HEAD}{_SITE.format(name='a', kind='embedded')}{_SITE.format(name='b', kind='embedded')}{IDLE_BETWEEN}"
    )
    sites = Sites(Deployment(read_topology(file)), servers, folder).by(IDLE_BETWEEN)
    for server in servers.values():
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE SCHEMA idle; CREATE TABLE idle.rows (id bigint PRIMARY KEY)")
    note_started("topology")
    stack.callback(lambda: _down(sites))
    sites.up()
    return sites


def _down(sites: Sites) -> None:
    problems = sites.last[0].down(purge=True)
    assert not problems, problems
