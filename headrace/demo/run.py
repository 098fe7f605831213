"""The demo: replication end to end, with a component killed in the middle and all tables compared at the end.

Main path
    run_demo -> servers and Ray start in parallel -> tables -> `Deployment.up` -> clients write (`headrace.demo.load`),
    a probe measures latency -> SIGKILL -> caught up -> compared, once by the product and once by plain SQL -> down.

The demo leaves nothing behind: however it ends, it stops the topology and removes its state folder; the next demo
cleans up after a killed one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import os
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.controller import CONTROLLER
from actors.site.connection import embedded_server
from actors.state_folder import check_owned, make_folder, make_private
from headrace.base.errors import ApplyError, ConfigError, HeadraceError
from headrace.commands.verification import comparison_line, verify_topology
from headrace.console.output import Output, scn_text, seconds_text
from headrace.console.process_end import terminated_as_interrupt, uninterrupted
from headrace.console.progress import live_lines
from headrace.console.status_view import is_healthy, render, summary_line
from headrace.demo.load import OneWayLoad, OrdersLoad, Probe
from headrace.deployment.deployment import Deployment
from headrace.deployment.removal import STATE_PARENT
from headrace.deployment.waiting import wait_caught_up
from headrace.faults.processes import Processes, kill
from headrace.rules.rule import ANY_TAG
from headrace.status.applies import ApplyStatus
from headrace.status.component import ComponentStatus
from headrace.status.overview import Overview
from headrace.status.plain import status_of
from topology.edits.changes import components_of
from topology.edits.stored import prepared_document
from topology.file.reading import read_topology
from topology.links import makes_certificates, with_made_certificates
from topology.plan import make_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import psutil

    from headrace.databases.embedded.servers import EmbeddedServer
    from headrace.demo.load import Load
    from headrace.rules.rule import RuleSet
    from topology.spec import TopologySpec

__all__ = ["TOPOLOGIES", "DemoOptions", "Outage", "progress_text", "run_demo", "summary_of", "summary_text"]

_MARKER = "demo"  # a file in a demo's state folder, until the demo has removed everything that it made
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KILLABLE = ("capture", "queue", "propagation", "apply", "driver", "site", "controller")
KILL_AFTER = 0.4  # share of the transactions: everything is warm by then, and enough follow
# Per destination site, because the sites share the processor; one needs 20 s on a small idle machine.
START_TIMEOUT_S = 300.0
HEAL_TIMEOUT_S = 120.0  # a killed Spark driver needs 20 s on a small machine
CAUGHT_UP_TIMEOUT_S = 300.0
SHOW_INTERVAL_S = 1.0
CALL_TIMEOUT_S = 10.0
INDENT = "  "  # of lines below the spinner


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """A form of topology that the demo can run.

    Args:
        example: name of its file.
        schema: schema of its tables; empty: pgbench's own tables.
        writers: number of sites that write, counted from the first.
        probe: indexes of the sites between which latency is measured.
    """

    example: str
    schema: str = ""
    writers: int = 1
    probe: tuple[int, int] = (0, 1)


TOPOLOGIES: Mapping[str, _Form] = {
    "oneway": _Form(example="one_way"),
    "twoway": _Form(example="two_way", schema="sales", writers=2),
    "nway": _Form(example="n_way", schema="crm", writers=3, probe=(0, 2)),
    # from spoke to spoke, through the hub
    "hub": _Form(example="hub_and_spoke", schema="stock", writers=4, probe=(1, 3)),
    "fanout": _Form(example="fan_out", schema="catalog", probe=(0, 3)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of the demo.

    Args:
        topology: the form, one of `TOPOLOGIES`.
        tagged: the rules also take tagged changes, so that changes cycle (only to show what tags prevent).
        transactions: number at each site that writes.
        clients: concurrent clients at each site that writes.
        rate: transactions per second and site; below the machine's capacity, so that latency is meaningful.
        kill: the kind of component to kill, one of `KILLABLE`.
        state_dir: folder for everything; None: the example's own.
    """

    topology: str = "oneway"
    tagged: bool = False
    transactions: int = 8000
    clients: int = 4
    rate: int = 400
    kill: str = "capture"
    state_dir: Path | None = None


@dataclass(slots=True)
class Outage:
    """The killed component, and the time of recovery."""

    component: str = ""
    killed_at: float = 0.0
    healed_s: float | None = None


@dataclass(slots=True)
class _Demo:
    options: DemoOptions
    output: Output
    spec: TopologySpec
    deployment: Deployment
    show: Callable[[str], None]
    servers: dict[str, EmbeddedServer] = field(default_factory=dict)
    outage: Outage = field(default_factory=Outage)
    _starting_since: float = 0.0

    # ------------------------------------------------------------------ main path

    def run(self) -> dict[str, Any]:
        """Run the whole demo, from a clean machine to a clean machine; return the summary."""
        began = time.monotonic()
        self._start_machines()
        load: Load = self._load()
        load.create_tables()
        self.output.say(self._plan_line())
        self._starting_since = time.monotonic()
        overview = self.deployment.up(progress=self._show_start)
        if overview.state == "REFUSED":
            self.output.findings(overview.findings)
            raise ConfigError("the preflight refused the demo's topology", hint="headrace doctor")
        self.output.say(f"replication runs after {time.monotonic() - began:.0f} s")
        load.prepare()
        probe = self._probe()
        with probe:
            load_s = self._write_and_kill(load, probe)
            self.output.say("clients are done, waiting until caught up")
            started = time.monotonic()
            self._wait_caught_up()
            drain_s = load_s + time.monotonic() - started
            self._wait_healed(probe)
        comparisons = self._verify()
        problems = load.differences()
        identical = all(comparison["equal"] for comparison in comparisons) and not problems
        for problem in problems:
            self.output.say(f"DIFFERENT: {problem}")
        if not self.output.as_json:
            self.output.result(render(self.deployment.overview()))
        summary = summary_of(
            load,
            probe,
            self.outage,
            identical=identical,
            returned_changes=self._returned_changes(),
            drain_s=drain_s,
            duration_s=time.monotonic() - began,
        )
        self.output.result(summary_text(summary, rate=self.options.rate))
        return summary

    def _show_start(self, overview: Overview) -> None:
        """Show the progress of the start until a time-out.

        Unlike in a topology started by hand, no operator is there to fix problems.
        """
        self.show(summary_line(overview))
        timeout_s = START_TIMEOUT_S * len({apply.site for apply in self.spec.applies})
        if time.monotonic() - self._starting_since > timeout_s:
            raise ApplyError(
                f"replication does not run after {timeout_s:g} s: {summary_line(overview)}", hint="headrace doctor"
            )

    def _start_machines(self) -> None:
        """Start the servers and Ray in parallel, because each waits for the disk or the processor at times."""
        self.show("starting PostgreSQL and Ray")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            cluster = pool.submit(self.deployment.cluster.start)
            started = [pool.submit(self._start_server, site.name) for site in self.spec.sites]
            for server in started:
                server.result()
            cluster.result()
        versions = ", ".join(f"{name}: PostgreSQL {server.version}" for name, server in self.servers.items())
        self.output.say(f"servers run ({versions}); Ray runs at {self.deployment.cluster.address()}")

    def _start_server(self, site: str) -> None:
        server = embedded_server(self.spec, self.spec.site(site))
        server.start()
        self.servers[site] = server

    def _load(self) -> Load:
        options, form, logs = self.options, TOPOLOGIES[self.options.topology], self.spec.state_dir / "logs"
        servers = [self.servers[site.name] for site in self.spec.sites]
        transactions, clients, rate = options.transactions, options.clients, options.rate
        if not form.schema:
            return OneWayLoad(*servers, transactions=transactions, clients=clients, rate=rate, logs=logs)
        return OrdersLoad(
            servers,
            writers=form.writers,
            schema=form.schema,
            transactions=transactions,
            clients=clients,
            rate=rate,
            logs=logs,
        )

    def _plan_line(self) -> str:
        plan = make_plan(self.spec)
        ways = "; ".join(f"{way.source} -> {way.destination}" for way in plan.ways)
        return f"topology {self.spec.file.name} checked: {ways}; {len(plan.actors)} actors"

    def _probe(self) -> Probe:
        form = TOPOLOGIES[self.options.topology]
        source, destination = (self.servers[self.spec.sites[place].name].dsn() for place in form.probe)
        return Probe(source, destination, f"{form.schema}.probe" if form.schema else "public.pgbench_probe")

    def _write_and_kill(self, load: Load, probe: Probe) -> float:
        """Run the clients to their end, and kill one component meanwhile; return the seconds taken."""
        began = shown_at = time.monotonic()
        with load.running() as clients:
            while not clients.are_done():
                done = clients.transactions_done()
                if not self.outage.component and done >= KILL_AFTER * load.transactions_wanted:
                    self._kill(probe)
                if time.monotonic() - shown_at >= SHOW_INTERVAL_S:
                    shown_at = time.monotonic()
                    self._show_state(done, load.transactions_wanted, probe)
                time.sleep(0.05)
        if not self.outage.component:
            raise ApplyError("the clients were done before anything was killed", hint="use more --transactions")
        return time.monotonic() - began

    def _show_state(self, done: int, wanted: int, probe: Probe) -> None:
        self._note_healing(probe)
        try:
            overview = self.deployment.overview()
        except HeadraceError as error:
            self.show(f"{done}/{wanted} transactions, {error.message}")
            return
        console = self.output.progress_console
        self.show(progress_text(done, wanted, overview, width=console.width if console.is_terminal else None))

    # ------------------------------------------------------------------ the fault

    def _kill(self, probe: Probe) -> None:
        name, process = self._victim()
        self.outage.killed_at = time.time()
        kill([process])
        self.outage.component = f"{name} (process {process.pid}, SIGKILL)"
        probe.outage_began(self.outage.killed_at)
        self.output.say(f"killed {self.outage.component}")

    def _victim(self) -> tuple[str, psutil.Process]:
        """Return the first component of the wanted kind, with those that share its process, and the process."""
        actors, processes = self.deployment.connect(), Processes(self.deployment)
        if self.options.kill == "driver":
            site = self.spec.applies[0].site
            return f"Spark driver of spark:{site}", processes.driver(site)
        if self.options.kill == "controller":
            return CONTROLLER, processes.of(CONTROLLER)
        name = next(c.name for c in components_of(self.spec) if c.kind == self.options.kill)
        others = sorted(
            other for names in actors.processes().values() if name in names for other in names if other != name
        )
        return name + (f" with {', '.join(others)}" if others else ""), processes.of(name)

    def _note_healing(self, probe: Probe) -> None:
        if self.outage.component and self.outage.healed_s is None:
            self.outage.healed_s = probe.healed_s(self.outage.killed_at)
            if self.outage.healed_s is not None:
                self.output.say(f"healed after {self.outage.healed_s:.1f} s")

    def _wait_healed(self, probe: Probe) -> None:
        deadline = time.monotonic() + HEAL_TIMEOUT_S
        while self.outage.healed_s is None:
            self._note_healing(probe)
            if time.monotonic() > deadline:
                raise ApplyError(f"not healed within {HEAL_TIMEOUT_S:g} s", hint="see the logs")
            time.sleep(0.05)

    # ------------------------------------------------------------------ the end

    def _wait_caught_up(self) -> None:
        wait_caught_up(
            self.spec,
            self.deployment.connect(),
            timeout_s=CAUGHT_UP_TIMEOUT_S,
            progress=self.show,
            overview=self.deployment.overview,
        )

    def _verify(self) -> list[dict[str, Any]]:
        comparisons = verify_topology(
            self.spec, self.deployment.connect(), timeout_s=CAUGHT_UP_TIMEOUT_S, progress=self.show
        )
        for comparison in comparisons:
            self.output.say(comparison_line(comparison))
        return comparisons

    def _returned_changes(self) -> int:
        """Return the number of clients' changes that came back to their site, as counted by its apply process."""
        returned = 0
        for apply in self.spec.applies:
            answer = self.deployment.connect().call(f"apply:{apply.name}", "status", timeout_s=CALL_TIMEOUT_S)
            status = status_of(answer)
            assert isinstance(status, ApplyStatus), "an apply process says what one is"
            returned += (status.counters or {}).get("returned_changes", 0)
        return returned


def progress_text(done: int, wanted: int, overview: Overview, *, width: int | None) -> str:
    """Return the progress as text: transactions, throughput, lag and SCN of every flow, and every component's state.

    Args:
        done: number of transactions that the clients have committed.
        wanted: number of transactions in total.
        overview: the current overview of the topology.
        width: columns of the terminal, which cuts longer lines; None: one line.
    """
    flows = [
        f"{flow.source}->{flow.destination} lag {seconds_text(flow.lag_s)}, SCN {scn_text(flow.applied_scn)}"
        for flow in overview.flows
    ]
    applied = sum(each.rows_per_s or 0.0 for each in overview.components if each.kind == "apply")
    numbers = f"{done}/{wanted} tx, {applied:.0f} rows/s"
    states = _states_text(overview.components) + ("" if is_healthy(overview) else " !")
    if width is None:
        return f"{', '.join([numbers, *flows])} | {states}"
    # The prefix of the progress display takes space on the first line only.
    first, *others = flows or [""]
    wrapped = textwrap.wrap(states, max(1, width - len(INDENT)), break_on_hyphens=False)
    return f"\n{INDENT}".join([f"{numbers}, {first}", *others, *wrapped])


def _states_text(components: Sequence[ComponentStatus]) -> str:
    """Return every component's state; one entry per kind if all of the kind are in the same state."""
    by_kind: dict[str, list[ComponentStatus]] = {}
    for component in components:
        by_kind.setdefault(component.kind, []).append(component)
    parts = []
    for kind, members in by_kind.items():
        if len({member.state for member in members}) == 1:
            parts.append(f"{kind} {members[0].state.lower()}")
        else:
            parts += [f"{member.name} {member.state.lower()}" for member in members]
    return ", ".join(parts)


def summary_of(
    load: Load,
    probe: Probe,
    outage: Outage,
    *,
    identical: bool,
    returned_changes: int,
    drain_s: float,
    duration_s: float,
) -> dict[str, Any]:
    """Return the summary, as `--json` prints it.

    Args:
        load: the load, whose clients are done.
        probe: the probe that ran meanwhile.
        outage: the killed component.
        identical: whether source and destination are identical.
        returned_changes: number of changes that came back to their site.
        drain_s: seconds from the clients' start until everything was applied.
        duration_s: duration of the whole demo, in seconds.
    """
    p50_ms, p99_ms = probe.latencies_ms() or (None, None)
    rows = load.row_changes()
    return {
        "identical": identical,
        "transactions": load.transactions_done(),
        "row_changes": rows,
        # Rows written before the clients started do not count as throughput.
        "rows_per_s": round((rows - load.rows_prepared) / drain_s, 1),
        "latency_p50_ms": p50_ms,
        "latency_p99_ms": p99_ms,
        "killed": outage.component,
        "healed_s": round(outage.healed_s or 0.0, 2),
        "returned_changes": returned_changes,
        "duration_s": round(duration_s, 1),
    }


def summary_text(summary: Mapping[str, Any], *, rate: int) -> str:
    """Return the summary for people.

    Args:
        summary: from `summary_of`.
        rate: transactions per second that the clients wrote at each site.
    """
    if summary["latency_p50_ms"] is None:
        latency = "not measured: every commit that was seen to arrive fell into the outage"
    else:
        latency = f"p50 {summary['latency_p50_ms']:.0f} ms, p99 {summary['latency_p99_ms']:.0f} ms (outside the outage)"
    return (
        f"\n{summary['transactions']} transactions with {summary['row_changes']} row changes,"
        f" {summary['rows_per_s']:.0f} rows/s while the clients wrote {rate} transactions/s\n"
        f"commit to visible: {latency}\n"
        f"killed {summary['killed']}: healed after {summary['healed_s']:.1f} s\n"
        f"changes that came back to their site: {summary['returned_changes']}\n"
        f"{'identical' if summary['identical'] else 'DIFFERENT'}, after {summary['duration_s']:.0f} s"
    )


def run_demo(options: DemoOptions, output: Output) -> dict[str, Any]:
    """Run the demo and clean up, whatever happens.

    Args:
        options: options of the demo.
        output: receives progress and results.

    Returns:
        The summary; `identical` is the result of the comparison.
    """
    spec = _topology(options)
    deployment = Deployment(spec)
    if options.kill not in KILLABLE:
        raise ConfigError(f"cannot kill a {options.kill!r}", hint=f"one of {', '.join(KILLABLE)}")
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]  # libpq's variables (PGSERVICE, PGOPTIONS) are for the user's own servers
    with live_lines(output, "demo") as show, terminated_as_interrupt(), _alone(spec.state_dir):
        if options.state_dir is not None:
            refuse_others_folder(spec)
        show("removing the remains of an earlier demo")
        deployment.down(purge=True)
        _remove_others(options)
        make_private(spec.state_dir)
        (spec.state_dir / _MARKER).touch()
        try:
            return _Demo(options, output, spec, deployment, show).run()
        finally:
            show("ending everything")
            with uninterrupted():
                for problem in deployment.down(purge=True):
                    output.say(f"error: {problem}")
                (spec.state_dir / _MARKER).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    spec.state_dir.rmdir()


def _topology(options: DemoOptions) -> TopologySpec:
    form = TOPOLOGIES.get(options.topology)
    if form is None:
        raise ConfigError(
            f"there is no demo of a topology {options.topology!r}", hint=f"one of {', '.join(TOPOLOGIES)}"
        )
    spec = read_topology(EXAMPLES / f"{form.example}.yaml")
    # The demo must not remove a topology of the same file that a user runs.
    state_dir = options.state_dir or spec.state_dir.with_name(f"demo_{spec.state_dir.name}")
    # One executor per site starts in half of the time of two. The second one continues when the first one dies, and a
    # demo kills none.
    sites = tuple(replace(site, executors=1) for site in spec.sites)
    moved = replace(spec, state_dir=state_dir.absolute(), sites=sites)
    spec = with_made_certificates(moved) if makes_certificates(spec) else moved
    if options.kill in {"queue", "propagation"}:  # combined capture and apply would leave none to kill
        spec = replace(spec, applies=tuple(replace(apply, combined=False) for apply in spec.applies))
    if options.tagged:
        spec = replace(spec, captures=tuple(replace(c, rules=_tagged(c.rules)) for c in spec.captures))
    return spec


def refuse_others_folder(spec: TopologySpec) -> None:
    """Refuse a state folder that no demo made, because the demo begins by removing its contents.

    Args:
        spec: the demo's topology, with the folder that the user named.

    Raises:
        ConfigError: the folder has a topology's state, or other files.
    """
    check_owned(spec.state_dir)
    prepared = prepared_document(spec.state_dir)
    is_demos = (spec.state_dir / _MARKER).exists() and prepared.get("file", str(spec.file)) == str(spec.file)
    if is_demos or not spec.state_dir.exists() or not any(spec.state_dir.iterdir()):
        return
    what = f"the state of topology {prepared['topology']}" if "topology" in prepared else "something that no demo made"
    raise ConfigError(
        f"--state-dir: in {spec.state_dir} is {what}, and a demo removes all of it",
        hint="name a folder that does not exist yet",
    )


def _remove_others(options: DemoOptions) -> None:
    """Clean up after killed demos of the other forms, unless they are still running."""
    for topology in TOPOLOGIES if options.state_dir is None else ():
        other = _topology(replace(options, topology=topology, tagged=False))
        if topology != options.topology and other.state_dir.exists():
            with contextlib.suppress(ConfigError), _alone(other.state_dir):
                Deployment(other).down(purge=True)


@contextlib.contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """Prevent a second demo from removing the servers of this one.

    Raises:
        ConfigError: another demo runs, or the folder or its lock may be another user's.
    """
    check_owned(state_dir)
    make_folder(state_dir.parent)
    file = state_dir.with_name(f"{state_dir.name}.lock")
    try:
        # In a folder such as /tmp another user may have made a link of this name.
        number = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{file} cannot be opened: {error.strerror}", hint="name another --state-dir") from error
    with os.fdopen(number, "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another demo runs in {state_dir}",
                hint="wait for its end, or give this one a folder: --state-dir",
            ) from error
        try:
            yield
        finally:
            file.unlink(missing_ok=True)  # still locked: the next demo creates a new file
            if file.parent.name == STATE_PARENT and not any(file.parent.iterdir()):
                file.parent.rmdir()


def _tagged(rules: RuleSet) -> RuleSet:
    return replace(rules, include=tuple(replace(rule, tags=ANY_TAG) for rule in rules.include or ()))
