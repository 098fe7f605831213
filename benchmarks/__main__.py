"""`python -m benchmarks`: the same backlog through Headrace and through PostgreSQL's native logical replication.

Both peers run alternately on the same two servers. In each run, both peers catch up and stop; both servers are vacuumed
and checkpointed; the peer's backlog is written at the source. The clock starts with the peer. It stops with the
snapshot in which the last transaction is visible and the destination's cheap sums equal the source's. Then every value
is compared. The first round is a warm-up and does not count.

The native peer runs twice per round: with the subscription's `synchronous_commit = off` (PostgreSQL's default) and with
`on`. Headrace runs with `off`, its default, or with the value of BENCH_SYNCHRONOUS_COMMIT. `ratio` compares with the
faster of native's two, `ratio_same_synchronous_commit` with the same setting. A ratio above 1 is faster than native.

Headrace runs twice per round, too: with combined capture and apply (`headrace`), and through queues and a propagation
(`queued`). With `--authentication` it runs a third time, combined and with `tls: none` (`open`), and `headrace up` is
timed in both forms: this is the cost of certificates on every link. With `--ddl` it runs once more, combined and with
`ddl: true` (`ddl`), while no DDL runs: rows should cost the same. `benchmarks.ddl` measures DDL itself.
`benchmarks.networks` measures several flows at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg

from benchmarks.native import NativePeer
from benchmarks.networks import NETWORKS, Network, measure
from benchmarks.processes import Footprint, ProcessSampler, Usage, footprint
from benchmarks.product import HeadracePeer
from benchmarks.runs import SYNCHRONOUS_COMMIT, Run, compared, middle, progress_line
from benchmarks.servers import Pair, Servers, bench_servers
from benchmarks.workloads import (
    MARK_TABLE,
    Bulk,
    Latency,
    LatencyResult,
    Oltp,
    OneTransaction,
    Workload,
    WorkloadError,
    has_mark,
    make_mark_table,
    write_mark,
)
from headrace.console.process_end import terminated_as_interrupt

RESULTS = Path(__file__).parent / "results" / "latest.json"
_ARRIVED_POLL_S = 0.005
_DRAIN_TIMEOUT_S = 600.0
_REST_S = 10.0  # after the copy of the tables: the copying tasks have ended by then
_IDLE_S = 20.0  # measuring time of idle CPU: some hundred clock ticks at a few per cent of a core
RUNS_MIN = 3  # a median of fewer runs depends on one run
_ALSO = ("open", "ddl")  # settings that a run has on demand
_HEADRACES = ("headrace", "queued", *_ALSO)  # all settings of Headrace
# The goals: the bench exits with 1 when one is missed.
RATIO_MIN = 0.5
P50_MAX_MS = 200.0
FOOTPRINT_MAX_MB = 2048.0  # of a one-way topology, databases not counted
PEAK_MAX_MB = 1024.0  # resident, of any process of Headrace, while one transaction of ten million rows passes


class Peer(Protocol):
    name: str
    pair: Pair

    def set_up(self, tables: tuple[str, ...]) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def wait_caught_up(self) -> None: ...
    def tear_down(self) -> None: ...


@dataclass(slots=True)
class Bench:
    """The bench's state: servers, peers, results."""

    servers: Servers
    native: NativePeer
    headrace: HeadracePeer
    also: tuple[str, ...] = ()  # of `_ALSO`
    runs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)

    def measure(self, workload: Workload, runs: int) -> None:
        """Warm up, then run the workload alternating through every peer and setting."""
        for number in range(runs + 1):
            for setting in self._order(number, self.also):
                run = self._run(workload, setting)
                counted = number > 0
                _say(
                    progress_line(
                        workload.name,
                        setting,
                        run,
                        counted=counted,
                        rate=f"{workload.row_changes / run.seconds:9,.0f} rows/s  ",
                    )
                )
                if counted or not run.verified:
                    self.runs.setdefault((workload.name, setting), []).append(run)

    @staticmethod
    def _order(number: int, also: tuple[str, ...] = ()) -> tuple[str, ...]:
        order = ("native", "headrace", "native_on", "queued", *also)
        return order if number % 2 else order[::-1]

    def _run(self, workload: Workload, setting: str) -> Run:
        peer: Peer = self.headrace if setting in _HEADRACES else self.native
        if isinstance(peer, NativePeer):
            peer.set_synchronous_commit("on" if setting == "native_on" else "off")
        self._rest(peer, workload, setting)
        workload.write_backlog(peer.pair.source)
        mark = write_mark(peer.pair.source)
        with psycopg.connect(peer.pair.source) as connection:
            wanted = workload.arrived(connection)
            content = workload.content(connection)
        roots = [pid for pid in (self.servers.source.pid(), self.servers.destination.pid()) if pid]
        if peer is self.headrace:  # noqa: SIM108
            sampler = ProcessSampler((*roots, *self.headrace.roots()), self.headrace.components())
        else:
            sampler = ProcessSampler(tuple(roots))
        sampler.start()
        with psycopg.connect(peer.pair.destination, autocommit=True) as connection:
            if has_mark(connection, mark):
                message = f"{workload.name}: {peer.name} drained the backlog before the clock was started"
                raise WorkloadError(message)
            start = time.perf_counter()
            peer.start()
            seconds = self._wait_arrived(connection, workload, mark, wanted) - start
            usage = sampler.stop()
            # A replica that is complete and then changes has applied something twice.
            peer.wait_caught_up()
            verified = workload.content(connection) == content
        return Run(seconds=seconds, verified=verified, usage=usage)

    def _rest(self, peer: Peer, workload: Workload, setting: str) -> None:
        """Restore the state from which a run starts: caught up, stopped, settled."""
        for each in (self.native, self.headrace):
            each.start()
        self.headrace.change(queued=setting == "queued", is_open=setting == "open", has_ddl=setting == "ddl")
        workload.reset(peer.pair.source)
        for each in (self.native, self.headrace):
            each.wait_caught_up()
        self.servers.move_slots()
        for each in (self.native, self.headrace):
            each.stop()
        self.servers.settle(self.native.pair, self.headrace.pair)

    @staticmethod
    def _wait_arrived(connection: psycopg.Connection, workload: Workload, mark: int, wanted: object) -> float:
        """Wait until everything is visible, and return that time.

        The sums are queried only after the last transaction's row is visible, so that the queries take no CPU from the
        measured peer; parallel servers may still apply others then.
        """
        deadline = time.perf_counter() + _DRAIN_TIMEOUT_S
        while time.perf_counter() < deadline:
            asked = time.perf_counter()
            if has_mark(connection, mark) and workload.arrived(connection) == wanted:
                return asked
            time.sleep(_ARRIVED_POLL_S)
        message = f"{workload.name}: the backlog did not arrive within {_DRAIN_TIMEOUT_S} s"
        raise WorkloadError(message)

    def memory(self, workload: Workload) -> dict[str, Any]:
        """Send one very large transaction through Headrace, and measure the memory of every process."""
        run = self._run(workload, "headrace")
        peak = {stage: usage.peak_mb for stage, usage in run.usage.items() if not _is_database(stage)}
        _say(
            f"  {workload.name:16} headrace     {run.seconds:7.2f} s  {workload.row_changes / run.seconds:9,.0f} rows/s  "
            f"largest process {max(peak.values()):.0f} MB  {'verified' if run.verified else 'DIFFERENT'}"
        )
        return {
            "name": workload.name,
            "row_changes": workload.row_changes,
            "headrace_s": round(run.seconds, 3),
            "verified": run.verified,
            "peak_mb": max(peak.values()),
            "peak_mb_per_stage": peak,
        }

    def latency(self, latency: Latency) -> dict[str, LatencyResult]:
        """Measure each peer while the other one is stopped."""
        found = {}
        self.headrace.start()
        self.headrace.change()
        self.headrace.stop()
        others = ("headrace", "queued", *self.also)
        peers: list[tuple[str, Peer, Peer]] = [("native", self.native, self.headrace)]
        peers += [(setting, self.headrace, self.native) for setting in others]
        for name, peer, other in peers:
            other.wait_caught_up() if name == "headrace" else other.start()
            other.stop()
            if isinstance(peer, NativePeer):
                peer.set_synchronous_commit(SYNCHRONOUS_COMMIT)
            peer.start()
            if peer is self.headrace:
                peer.change(queued=name == "queued", is_open=name == "open", has_ddl=name == "ddl")
            peer.wait_caught_up()
            Latency(rate=latency.rate, duration_s=3.0).run(peer.pair.source, peer.pair.destination)  # warm-up
            found[name] = latency.run(peer.pair.source, peer.pair.destination)
            _say(f"  latency          {name:12} p50 {found[name].p50_ms} ms, p99 {found[name].p99_ms} ms")
        return found

    def start_up(self, runs: int) -> dict[str, list[float]]:
        """Return the seconds of `headrace up` on a stopped topology, after a warm-up.

        Runs with certificates (`headrace`) and with `tls: none` (`open`) alternate.
        """
        self.native.stop()
        self.headrace.start()
        found: dict[str, list[float]] = {}
        for number in range(runs + 1):
            for setting in ("headrace", "open")[:: 1 if number % 2 else -1]:
                self.headrace.change(is_open=setting == "open")
                seconds = self.headrace.restart()
                _say(f"  {'start-up':16} {setting:12} {seconds:7.2f} s{'' if number else '  (warm-up)'}")
                if number:
                    found.setdefault(setting, []).append(seconds)
        return found


def report(
    bench: Bench,
    workloads: list[Workload],
    latencies: dict[str, LatencyResult],
    memory: dict[str, Any],
    footprints: dict[str, Footprint],
    networks: dict[Network, dict[str, list[Run]]] | None = None,
    idle: dict[str, Usage] | None = None,
    start_up: dict[str, list[float]] | None = None,
) -> dict[str, Any]:
    """Collect the results for `latest.json`.

    Args:
        bench: the finished bench.
        workloads: the measured workloads.
        latencies: results per peer; empty: not measured.
        memory: result of `Bench.memory`; empty: not measured.
        footprints: memory per component.
        networks: counted rounds per network and setting; empty: not measured.
        idle: CPU per stage of the idle one-way topology over `_IDLE_S`; empty: not measured.
        start_up: result of `Bench.start_up`; empty: not measured.
    """
    entries: list[dict[str, Any]] = []
    for workload in workloads:
        runs = {setting: found for (name, setting), found in bench.runs.items() if name == workload.name}
        seconds = {setting: statistics.median(run.seconds for run in found) for setting, found in runs.items()}
        native_s = min(seconds["native"], seconds["native_on"])
        entries.append(
            {
                **compared(workload.name, runs),
                "row_changes": workload.row_changes,
                "transactions": workload.transactions,
                "native_synchronous_commit_off_s": round(seconds["native"], 3),
                "native_synchronous_commit_on_s": round(seconds["native_on"], 3),
                "native_rows_per_s": round(workload.row_changes / native_s),
                "headrace_rows_per_s": round(workload.row_changes / seconds["headrace"]),
                "native_usage": {stage: asdict(usage) for stage, usage in middle(runs["native"]).usage.items()},
                "queued_s": round(seconds["queued"], 3),
                **{f"{setting}_s": round(seconds[setting], 3) for setting in _ALSO if setting in seconds},
                "queued_usage": {stage: asdict(usage) for stage, usage in middle(runs["queued"]).usage.items()},
                "cpu_s_per_100k_rows": {
                    setting: round(
                        statistics.median(_own_cpu_s(run) for run in runs[setting]) * 1e5 / workload.row_changes, 3
                    )
                    for setting in _HEADRACES
                    if setting in runs
                },
            }
        )
    return {
        "workloads": entries,
        "latency": {name: asdict(result) for name, result in latencies.items()},
        "memory": memory,
        "footprint": {component: asdict(each) for component, each in footprints.items()},
        "footprint_mb": round(sum(each.pss_mb for each in footprints.values()), 1),
        "start_up_s": {
            setting: {"median": round(statistics.median(seconds), 2), "runs": [round(each, 2) for each in seconds]}
            for setting, seconds in (start_up or {}).items()
        },
        "networks": [compared(network.name, rounds) for network, rounds in (networks or {}).items()],
        "idle_cpu_percent": {
            stage: round(100 * usage.cpu_s / _IDLE_S, 2)
            for stage, usage in (idle or {}).items()
            if not _is_database(stage)
        },
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
    }


def _own_cpu_s(run: Run) -> float:
    """CPU seconds of Headrace's processes in a run, the databases' not counted."""
    return sum(usage.cpu_s for stage, usage in run.usage.items() if not _is_database(stage))


def _is_database(stage: str) -> bool:
    return stage.startswith(("source:", "destination:"))


def show(result: dict[str, Any]) -> None:
    """Print the report as text."""
    _say(
        "\nratio: against the faster of native's two settings; same commit: against native with Headrace's"
        " synchronous_commit"
    )
    _say(
        f"{'workload':16} {'native s':>9} {'headrace s':>11} {'ratio':>6} {'same commit':>12} {'native rows/s':>14} "
        f"{'headrace rows/s':>16}  verified"
    )
    for entry in result["workloads"]:
        _say(
            f"{entry['name']:16} {entry['native_s']:9.2f} {entry['headrace_s']:11.2f} {entry['ratio']:6.2f} "
            f"{entry['ratio_same_synchronous_commit']:12.2f} {entry['native_rows_per_s']:14,} "
            f"{entry['headrace_rows_per_s']:16,}  {entry['verified']}"
        )
    for entry in result["workloads"]:
        for peer in ("headrace", "queued", "native"):
            usage = {stage: used for stage, used in entry[f"{peer}_usage"].items() if used["cpu_s"] >= 0.01}
            if not usage:
                continue
            _say(f"\n{entry['name']}, {peer}: CPU seconds and peak memory per stage (median run)")
            for stage, used in sorted(usage.items(), key=lambda item: -item[1]["cpu_s"]):
                _say(f"  {stage:32} {used['cpu_s']:7.2f} s {used['peak_mb']:9.1f} MB")
    _say("\ncombined capture and apply (headrace) against queues and a propagation (queued)")
    for entry in result["workloads"]:
        cpu = entry["cpu_s_per_100k_rows"]
        _say(
            f"  {entry['name']:16} {entry['headrace_s']:.2f} s against {entry['queued_s']:.2f} s; CPU of Headrace's"
            f" processes per 100,000 rows {cpu['headrace']} s against {cpu['queued']} s"
            f" ({_lower(cpu['headrace'], cpu['queued'])})"
        )
    if "queued" in result["latency"]:
        p50, queued = (result["latency"][name]["p50_ms"] for name in ("headrace", "queued"))
        _say(f"  latency p50      {p50} ms against {queued} ms ({_lower(p50, queued)})")
    for entry in result["workloads"]:
        if "open_s" in entry:
            cpu = entry["cpu_s_per_100k_rows"]
            _say(
                f"\n{entry['name']}: with certificates {entry['headrace_s']:.2f} s, with `tls: none`"
                f" {entry['open_s']:.2f} s; CPU of Headrace's processes per 100,000 rows {cpu['headrace']} s and"
                f" {cpu['open']} s"
            )
    if "open" in result["latency"]:
        p50, without = (result["latency"][name]["p50_ms"] for name in ("headrace", "open"))
        _say(f"\nlatency p50: with certificates {p50} ms, with `tls: none` {without} ms")
    _show_ddl(result)
    if start_up := result["start_up_s"]:
        _say(
            f"\n`headrace up` where nothing runs: with certificates {start_up['headrace']['median']:.2f} s, with `tls:"
            f" none` {start_up['open']['median']:.2f} s"
        )
    for entry in result["networks"]:
        _say(
            f"\n{entry['name']}: native {entry['native_s']:.2f} s, Headrace {entry['headrace_s']:.2f} s, ratio"
            f" {entry['ratio']:.2f}, same commit {entry['ratio_same_synchronous_commit']:.2f}, verified"
            f" {entry['verified']}"
        )
        for stage, used in sorted(entry["headrace_usage"].items(), key=lambda item: -item[1]["cpu_s"]):
            _say(f"  {stage:32} {used['cpu_s']:7.2f} s {used['peak_mb']:9.1f} MB")
    idle = result["idle_cpu_percent"]
    if idle:
        _say("\nidle one-way topology: CPU in per cent of one core")
        for stage, percent in sorted(idle.items(), key=lambda item: -item[1]):
            _say(f"  {stage:32} {percent:7.2f}")
        _say(f"  {'together':32} {sum(idle.values()):7.2f}")
    _say("\nfootprint of the idle one-way topology: proportional set size per component")
    for component, used in sorted(result["footprint"].items(), key=lambda item: -item[1]["pss_mb"]):
        _say(f"  {component:32} {used['pss_mb']:9.1f} MB  {used['processes']:3} processes")
    _say(f"  {'together':32} {result['footprint_mb']:9.1f} MB")
    for name, latency in result["latency"].items():
        _say(f"\nlatency, {name}: p50 {latency['p50_ms']} ms, p99 {latency['p99_ms']} ms, max {latency['max_ms']} ms")


def _show_ddl(result: dict[str, Any]) -> None:
    for entry in result["workloads"]:
        if "ddl_s" in entry:
            cpu = entry["cpu_s_per_100k_rows"]
            _say(
                f"\n{entry['name']}: with `ddl: true` {entry['ddl_s']:.2f} s, without {entry['headrace_s']:.2f} s; CPU of"
                f" Headrace's processes per 100,000 rows {cpu['ddl']} s and {cpu['headrace']} s"
            )
    if "ddl" in result["latency"]:
        p50, without = (result["latency"][name]["p50_ms"] for name in ("ddl", "headrace"))
        _say(f"\nlatency p50: with `ddl: true` {p50} ms, without {without} ms")


def _lower(found: float, other: float) -> str:
    return f"{100 * (1 - found / other):.0f} % lower" if other else "nothing to compare with"


def shortcomings(result: dict[str, Any]) -> list[str]:
    """The goals that were missed."""
    found = []
    for entry in (*result["workloads"], *result["networks"]):
        if not entry["verified"]:
            found.append(f"{entry['name']}: source and destination differ")
        if entry["ratio"] < RATIO_MIN:
            found.append(f"{entry['name']}: {entry['ratio']} of native, wanted {RATIO_MIN}")
    memory = result["memory"]
    if memory and (not memory["verified"] or memory["peak_mb"] > PEAK_MAX_MB):
        found.append(f"memory: a process had {memory['peak_mb']} MB, wanted {PEAK_MAX_MB}")
    if result["footprint_mb"] > FOOTPRINT_MAX_MB:
        found.append(f"footprint: {result['footprint_mb']} MB, wanted {FOOTPRINT_MAX_MB}")
    latency = result["latency"].get("headrace")
    if latency and latency["p50_ms"] > P50_MAX_MS:
        found.append(f"latency: p50 {latency['p50_ms']} ms, wanted {P50_MAX_MS}")
    return found


@contextlib.contextmanager
def _prepared(workloads: list[Workload], latency: Latency, also: tuple[str, ...]) -> Iterator[Bench]:
    with bench_servers() as servers:
        peers = {name: servers.make_pair(f"bench_{name}") for name in ("native", "headrace")}
        tables: tuple[str, ...] = (latency.table, MARK_TABLE)
        for workload in workloads:
            tables += tuple(table for table in workload.tables if table not in tables)
        for pair in peers.values():
            make_mark_table(pair.source)
            make_mark_table(pair.destination)
            measured: tuple[Workload | Latency, ...] = (*workloads, latency)
            for each in measured:
                each.make_tables(pair.source)
                each.make_tables(pair.destination)
                each.fill(pair.source)
        native = NativePeer(peers["native"])
        headrace = HeadracePeer(peers["headrace"], servers.folder / "headrace")
        try:
            _say("setting up native replication and Headrace ...")
            native.set_up(tables)
            headrace.set_up(tables)
            yield Bench(servers, native, headrace, also)
        finally:
            for peer in (headrace, native):
                try:
                    peer.tear_down()
                except (RuntimeError, psycopg.Error) as error:
                    _say(f"{peer.name} still runs, stop it by hand: {error}")


def _idle(headrace: HeadracePeer) -> dict[str, Usage]:
    """Return the CPU per stage of a topology without writers."""
    sampler = ProcessSampler(headrace.roots(), headrace.components())
    sampler.start()
    time.sleep(_IDLE_S)
    return sampler.stop()


def main() -> int:
    """Run the bench; return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS_MIN, help="counted runs per workload and peer")
    parser.add_argument(
        "--workload",
        action="append",
        choices=[
            "bulk",
            "oltp",
            "one_transaction",
            "latency",
            "memory",
            "footprint",
            *(network.name for network in NETWORKS),
        ],
    )
    parser.add_argument("--share", type=float, default=1.0, help="fraction of each workload's size, for experiments")
    parser.add_argument("--latency-s", type=float, default=30.0, help="duration of the latency measurement")
    parser.add_argument(
        "--authentication",
        action="store_true",
        help="measure Headrace with `tls: none` (`open`) too: what authentication and encryption cost",
    )
    parser.add_argument(
        "--ddl",
        action="store_true",
        help="measure Headrace with `ddl: true` too, while no DDL runs: what rows pay for it",
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    large = OneTransaction(name="memory", row_changes=int(10_000_000 * arguments.share))
    every: list[Workload] = [Bulk.of(arguments.share), Oltp.of(arguments.share), OneTransaction.of(arguments.share)]
    chosen = [each for each in every if not arguments.workload or each.name in arguments.workload]
    latency = Latency(duration_s=arguments.latency_s)
    latencies: dict[str, LatencyResult] = {}
    memory: dict[str, Any] = {}
    start_up: dict[str, list[float]] = {}
    also = tuple(name for name, wanted in zip(_ALSO, (arguments.authentication, arguments.ddl), strict=True) if wanted)
    with _prepared([*chosen, large], latency, also) as bench:
        time.sleep(_REST_S)
        footprints = footprint(bench.headrace.roots(), bench.headrace.components())
        idle = _idle(bench.headrace)
        _say(f"idle: {sum(usage.cpu_s for usage in idle.values()) / _IDLE_S:.1%} of a core")
        for workload in chosen:
            _say(f"{workload.name}: {workload.transactions:,} transactions, {workload.row_changes:,} row changes")
            bench.measure(workload, arguments.runs)
        if _is_wanted("latency", arguments.workload):
            latencies = bench.latency(latency)
        if _is_wanted("memory", arguments.workload):
            _say(f"memory: one transaction of {large.row_changes:,} rows")
            memory = bench.memory(large)
        if arguments.authentication:
            _say("start-up: `headrace up` where nothing runs")
            start_up = bench.start_up(arguments.runs)
    networks = {
        network: measure(network, arguments.runs, arguments.share, _say)
        for network in NETWORKS
        if _is_wanted(network.name, arguments.workload)
    }
    result = report(bench, chosen, latencies, memory, footprints, networks, idle, start_up)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    show(result)
    missed = shortcomings(result)
    _say("\n" + ("every goal is met" if not missed else "missed: " + "; ".join(missed)))
    return 1 if missed else 0


def _is_wanted(name: str, chosen: list[str] | None) -> bool:
    return not chosen or name in chosen


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    with terminated_as_interrupt():  # an interrupt also stops servers and topologies
        sys.exit(main())
