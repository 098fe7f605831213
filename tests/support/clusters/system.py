"""A whole topology under test, with real servers, Ray and Spark, and the operations that tests need."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg

from actors.controller import CONTROLLER
from actors.site.connection import embedded_server
from headrace.base.errors import HeadraceError
from headrace.base.failpoints import ENVIRONMENT, fired_count
from headrace.commands.verification import verify_topology
from headrace.console.status_view import STARTING
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.deployment.deployment import Deployment
from headrace.deployment.waiting import wait_caught_up
from headrace.faults.processes import kill
from headrace.load.contents import contents
from headrace.load.pgbench import Pgbench
from headrace.status.overview import Overview
from headrace.status.plain import plain_overview
from tests.support.databases.statements import execute
from tests.support.session.reporting import note_started
from topology.spec import TopologySpec

CAUGHT_UP_S = 180.0  # takes seconds on a quiet machine; after a fault a process restarts first (20 s under load)
_AT_REST = STARTING | {
    "ABORTED",
    "UNREACHABLE",
    "RETRYING",
    "DATABASE DOES NOT ANSWER",
    "WAITING FOR DATABASE",
    "NOT CREATED",
    "DISABLED",
}
EXECUTE_TIMEOUT_S = 120.0  # a server that is killed meanwhile restarts
HEALED_S = 180.0  # the longest start of Spark


def wait_until(what: str, holds: Callable[..., Any], timeout_s: float = HEALED_S) -> Any:
    """Wait until `holds` returns a true value, and return it; errors of the system count as false.

    It is called without arguments: those that it has are defaults, which keep the variables of a loop.
    """
    deadline, last = time.monotonic() + timeout_s, "nothing was answered"
    while time.monotonic() < deadline:
        try:
            answer = holds()
        except HeadraceError as error:
            answer, last = None, f"{type(error).__name__}: {error.message}"
        if answer:
            return answer
        time.sleep(0.1)
    raise AssertionError(f"waited {timeout_s:g} s until {what}: {last}")


@dataclass
class System:
    """A topology that is up."""

    deployment: Deployment
    servers: dict[str, EmbeddedServer]
    folder: Path
    _points: int = field(default=0)

    @property
    def spec(self) -> TopologySpec:
        return self.deployment.spec

    # ------------------------------------------------------------------ databases

    @contextlib.contextmanager
    def connection(self, site: str) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.servers[site].dsn(), autocommit=True) as connection:
            yield connection

    def execute(self, site: str, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return execute(self.servers[site].dsn(), statement, *parameters)

    def digest(self, site: str, table: str) -> tuple[int, int]:
        """Return the digest of `contents`."""
        return self.digests(site, [table])[table]

    def digests(self, site: str, tables: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return the digest of `contents` of each table, in one session."""
        with self.connection(site) as connection:
            return {table: contents(connection, table) for table in tables}

    def _differing(self, tables: Sequence[str], *, source: str = "") -> list[str]:
        """Return the tables that differ between both ends of an apply process, with its sites.

        Args:
            tables: these are compared.
            source: whose tables these are; empty: of every source.
        """
        return [
            f"{table} at {apply.source} and {apply.site}"
            for apply in (self.spec.applies if tables else ())
            if source in {"", apply.source}
            for there, here in [(self.digests(apply.source, tables), self.digests(apply.site, tables))]
            for table in tables
            if there[table] != here[table]
        ]

    @contextlib.contextmanager
    def pgbench(self, site: str, *arguments: str) -> Iterator[None]:
        """Run pgbench in the background; the block waits for its end and asserts its success."""
        run = Pgbench(self.servers[site].dsn(), *arguments, log=self.folder / "pgbench.log")
        with contextlib.closing(run.start()):
            yield
            run.wait(HEALED_S)

    # ------------------------------------------------------------------ queries

    def wait_caught_up(self, timeout_s: float = CAUGHT_UP_S) -> None:
        wait_caught_up(self.spec, self.deployment.connect(), timeout_s=timeout_s)

    def verify(self) -> list[dict[str, Any]]:
        return verify_topology(self.spec, self.deployment.connect(), timeout_s=CAUGHT_UP_S, progress=lambda _: None)

    def assert_converged(self, tables: Sequence[str] = (), *, source: str = "") -> None:
        """Assert that everything is applied, and that the product's comparison and plain SQL find equal tables.

        Args:
            tables: that SQL compares.
            source: whose tables these are; empty: of every source.
        """
        self.wait_caught_up()
        for apply in self.spec.applies:
            assert self.call(f"apply:{apply.name}", "errors") == []
        assert self._differing(tables, source=source) == []
        different = [answer for answer in self.verify() if not answer["equal"]]
        assert not different, different

    def illness(self, tables: Sequence[str] = ()) -> str:
        """Return what is wrong after a test; empty: everything runs and is applied, and all error queues are empty.

        Args:
            tables: tables that must be equal at both ends of every apply process.
        """
        wait_until("all components work", lambda: not self._at_rest())
        self.wait_caught_up()
        failed = [apply.name for apply in self.spec.applies if self.call(f"apply:{apply.name}", "errors")]
        if failed:
            return f"error transactions of {', '.join(failed)}"
        differ = self._differing(tables)
        return f"differ: {', '.join(differ)}" if differ else ""

    def _at_rest(self) -> list[str]:
        """Return the components that do not work, or not yet."""
        overview = self.deployment.overview()
        resting = [
            f"{each.name} {each.state}"
            for each in overview.components
            if each.state in _AT_REST or each.state.startswith("PAUSED: ")
        ]
        return resting if overview.state == "RUNNING" else [f"topology {overview.state}", *resting]

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.call(name, "status"))

    def wait_overview(self) -> dict[str, Any]:
        """Return the overview as `status --json` prints it, when all components answer and every lag is known."""

        def whole() -> Overview | None:
            overview = self.deployment.overview()
            states = [overview.state, *(component.state for component in overview.components)]
            is_known = all(flow.lag_s is not None for flow in overview.flows)
            return overview if is_known and not any("UNREACHABLE" in state for state in states) else None

        return plain_overview(wait_until("everybody answers, and the lag is known", whole))

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
        return self.deployment.connect().call(name, method, *arguments, timeout_s=timeout_s)

    def execute_errors(self, name: str, numbers: Sequence[int] = ()) -> list[dict[str, Any]]:
        """Execute error transactions of an apply process as the command does (default: all); return their outcomes."""
        execution, outcomes = secrets.token_hex(8), []
        self.call(name, "begin_execution", execution, list(numbers))
        deadline = time.monotonic() + EXECUTE_TIMEOUT_S
        while True:
            page = self.call(name, "execution_outcomes", execution, 5.0)
            outcomes += page["outcomes"]
            if page["is_over"]:
                return outcomes
            assert time.monotonic() < deadline, outcomes

    def wait_state(self, name: str, *states: str) -> dict[str, Any]:
        return dict(wait_until(f"{name} is {states}", lambda: (s := self.status(name))["state"] in states and s))

    # ------------------------------------------------------------------ faults

    def pid(self, name: str) -> int:
        return int(wait_until(f"{name} has a process", lambda: self.deployment.connect().pid(name)))

    def kill(self, name: str) -> int:
        """SIGKILL the component's process; return its id."""
        process = psutil.Process(self.pid(name))
        kill([process])
        return int(process.pid)

    def wait_restarted(self, name: str, old_pid: int) -> int:
        return int(wait_until(f"{name} runs again", lambda: (pid := self.pid(name)) != old_pid and pid))

    @contextlib.contextmanager
    def failpoint(self, component: str, name: str, action: str = "kill", times: int = 1) -> Iterator[Callable[[], int]]:
        """Recreate a component with an armed failpoint and disarm it at the end; yield a counter of how often it fired."""
        self._points += 1
        folder = self.folder / f"failpoint_{self._points}"
        self.recreate(component, {ENVIRONMENT: f"{name}={action}@{folder}*{times}"})
        try:
            yield lambda: fired_count(folder, name)
        finally:
            for hold in folder.glob("*.hold"):
                hold.unlink()
            self.recreate(component, {ENVIRONMENT: ""})

    def recreate(self, component: str, environment: Mapping[str, str]) -> None:
        old = self.pid(component)
        self.call(CONTROLLER, "recreate", component, dict(environment))
        self.wait_restarted(component, old)


@contextlib.contextmanager
def system_folder(name: str) -> Iterator[Path]:
    """Yield a folder for a system's files that embedded servers of another user can reach; it is always removed.

    Args:
        name: of the tested system.
    """
    made = Path(tempfile.mkdtemp(prefix=f"headrace-test-{name}-"))
    made.chmod(0o711)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def running(
    spec: TopologySpec,
    folder: Path,
    prepare: Callable[[dict[str, EmbeddedServer]], None],
    *,
    address: str | None = None,
    keep_existing: bool = False,
) -> Iterator[System]:
    """Start a topology of embedded servers, and always remove it.

    Args:
        spec: with a state folder below `folder`.
        folder: of this system.
        prepare: creates the tables, before replication starts.
        address: of a Ray cluster that already runs; None: a private one.
        keep_existing: as for `headrace up`.
    """
    deployment = Deployment(spec, address or "")
    servers = {}
    try:
        for site in spec.sites:
            if site.database.kind == "embedded":
                servers[site.name] = embedded_server(spec, site)
                servers[site.name].start()
        prepare(servers)
        note_started("topology")
        overview = deployment.up(keep_existing=keep_existing)
        assert overview.state == "RUNNING", overview.findings
        yield System(deployment, servers, folder)
    finally:
        problems = deployment.down(purge=True)
    assert problems == []
