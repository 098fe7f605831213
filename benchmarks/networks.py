"""Several flows at once: one source into three destinations, and two sites that write to each other.

Headrace and PostgreSQL's native logical replication (one subscription per flow, `origin = none`) each have their own
databases on the bench's two servers. A round is measured as in `benchmarks.__main__`: everything is caught up and
stopped, every source site gets its backlog, the clock starts with the peer. It stops with the snapshot in which the
slowest site has everything. Then every value is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg
from psycopg import sql

from benchmarks.native import Flow, NativeFlows
from benchmarks.processes import ProcessSampler
from benchmarks.product import HeadraceTopology
from benchmarks.runs import Run, progress_line
from benchmarks.servers import Servers, bench_servers
from benchmarks.workloads import Bulk, WorkloadError, has_mark, make_mark_table, write_mark
from headrace.load.contents import contents

__all__ = ["NETWORKS", "Network", "measure"]

_TABLES = ("bench_rows", "bench_mark")
_ABOVE = 100_000_000  # keeps ids and marks of two sites that write to each other apart
_ARRIVED_POLL_S = 0.005
_DRAIN_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Sites and the flows between them.

    Args:
        name: in the report.
        sites: the first one's database is on the source's server, the others' on the destination's.
        flows: (from, to); a site that is a `from` has writers.
        replicate: the entry of `replicate:` in the topology file.
    """

    name: str
    sites: tuple[str, ...]
    flows: tuple[tuple[str, str], ...]
    replicate: str

    @property
    def sources(self) -> tuple[str, ...]:
        """Sites with writers."""
        return tuple(dict.fromkeys(source for source, _ in self.flows))


NETWORKS = (
    Network(
        name="fan_out",
        sites=("src", "d1", "d2", "d3"),
        flows=(("src", "d1"), ("src", "d2"), ("src", "d3")),
        replicate="{schemas: [public], from: src, to: [d1, d2, d3]}",
    ),
    Network(
        name="two_way",
        sites=("a", "b"),
        flows=(("a", "b"), ("b", "a")),
        replicate="{schemas: [public], between: [a, b]}",
    ),
)
SETTINGS = ("native", "headrace", "native_on")


def measure(network: Network, runs: int, share: float, say: Callable[[str], None]) -> dict[str, list[Run]]:
    """Warm up, then run the network alternately in every setting, on its own servers.

    Args:
        network: its sites and flows.
        runs: counted rounds per setting.
        share: fraction of the bulk workload's size per source site.
        say: takes a line of progress.

    Returns:
        The counted rounds per setting, and a warm-up whose contents differed.
    """
    found: dict[str, list[Run]] = {setting: [] for setting in SETTINGS}
    with bench_servers() as servers:
        bench = NetworkBench(network, servers, share)
        try:
            bench.set_up()
            say(
                f"{network.name}: {bench.row_changes:,} row changes at {len(network.sources)} of {len(network.sites)}"
                " sites"
            )
            for number in range(runs + 1):
                for setting in SETTINGS if number % 2 else SETTINGS[::-1]:
                    run = bench.run(setting)
                    say(progress_line(network.name, setting, run, counted=number > 0))
                    if number or not run.verified:
                        found[setting].append(run)
        finally:
            bench.tear_down(say)
    return found


class NetworkPeer(Protocol):
    """A replication system between the sites of a network."""

    name: str

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def wait_caught_up(self) -> None: ...
    def tear_down(self) -> None: ...


class NativeNetwork(NativeFlows):
    """The network as native replication.

    Args:
        network: its sites and flows.
        dsns: site -> connection string; the tables exist and are empty.
    """

    def __init__(self, network: Network, dsns: dict[str, str]) -> None:
        super().__init__(
            [
                Flow(f"bench_{network.name}_{number}", dsns[source], dsns[destination])
                for number, (source, destination) in enumerate(network.flows)
            ]
        )

    def set_up(self) -> None:
        """Publish and subscribe; nothing is copied, because the tables are empty."""
        self.subscribe(_TABLES, ", copy_data = false, origin = none")
        self.wait_caught_up()


class HeadraceNetwork(HeadraceTopology):
    """The network as a topology.

    Args:
        network: its sites and flows.
        dsns: site -> connection string; the tables exist and are empty.
        folder: of its topology file and state.
    """

    def __init__(self, network: Network, dsns: dict[str, str], folder: Path) -> None:
        super().__init__(
            folder, {site: dsns[site] for site in network.sources}, {_variable(site): dsn for site, dsn in dsns.items()}
        )
        self._network = network

    def set_up(self) -> None:
        """Bring the topology up; returns when it has caught up."""
        lines = ["topology: bench", f"state_dir: {self.state_dir}", "sites:"]
        lines += [
            f'  {site}: {{database: {{kind: postgres, dsn: "${{{_variable(site)}}}"}}}}' for site in self._network.sites
        ]
        self.bring_up("\n".join([*lines, "replicate:", f"  - {self._network.replicate}", ""]))
        self.wait_caught_up()


def _variable(site: str) -> str:
    return f"BENCH_{site.upper()}_DSN"


class NetworkBench:
    """Both peers of one network on the bench's servers, and their rounds.

    Args:
        network: its sites and flows.
        servers: the two running servers.
        share: fraction of the bulk workload's size per source site.
    """

    def __init__(self, network: Network, servers: Servers, share: float = 1.0) -> None:
        self.network, self._servers = network, servers
        self._workloads = {site: Bulk.of(share, above=number * _ABOVE) for number, site in enumerate(network.sources)}
        self.row_changes = sum(workload.row_changes for workload in self._workloads.values())
        self._dsns = {peer: self._make_databases(f"{network.name}_{peer}") for peer in ("native", "headrace")}
        self.native = NativeNetwork(network, self._dsns["native"])
        self.headrace = HeadraceNetwork(network, self._dsns["headrace"], servers.folder / network.name)

    def set_up(self) -> None:
        """Set up both peers on empty tables."""
        for dsns in self._dsns.values():
            for dsn in dsns.values():
                make_mark_table(dsn)
                next(iter(self._workloads.values())).make_tables(dsn)
        self.native.set_up()
        self.headrace.set_up()

    def tear_down(self, say: Callable[[str], None]) -> None:
        """Remove both peers; a failure is reported through `say` and does not keep the other peer."""
        for peer in (self.headrace, self.native):
            try:
                peer.tear_down()
            except (RuntimeError, psycopg.Error) as error:
                say(f"{peer.name} ({self.network.name}) still runs, stop it by hand: {error}")

    def run(self, setting: str) -> Run:
        """Measure one round.

        Args:
            setting: `native` (synchronous_commit = off), `native_on`, or `headrace`.
        """
        peer: NetworkPeer = self.headrace if setting == "headrace" else self.native
        dsns = self._dsns[peer.name]
        if peer is self.native:
            self.native.set_synchronous_commit("on" if setting == "native_on" else "off")
        self._rest(dsns)
        marks = {}
        for number, (site, workload) in enumerate(self._workloads.items()):
            workload.write_backlog(dsns[site])
            marks[site] = write_mark(dsns[site], number * _ABOVE)
        wanted, content = self._written(dsns)
        sampler = self._sampler(peer)
        sampler.start()
        start = time.perf_counter()
        peer.start()
        seconds = self._wait_arrived(dsns, list(marks.values()), wanted) - start
        usage = sampler.stop()
        # A replica that is complete and then changes has applied something twice.
        peer.wait_caught_up()
        verified = all(self._content(dsns[site]) == content for site in self.network.sites)
        return Run(seconds=seconds, verified=verified, usage=usage)

    def _make_databases(self, name: str) -> dict[str, str]:
        dsns = {}
        for number, site in enumerate(self.network.sites):
            server = self._servers.destination if number else self._servers.source
            database = f"bench_{name}_{site}"
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
            dsns[site] = server.dsn(database)
        return dsns

    def _rest(self, dsns: dict[str, str]) -> None:
        """Empty this peer's tables, and let both peers catch up and stop."""
        for peer in (self.native, self.headrace):
            peer.start()
        first = self.network.sources[0]
        with psycopg.connect(dsns[first], autocommit=True) as connection:
            connection.execute("TRUNCATE bench_rows")
        for peer in (self.native, self.headrace):
            peer.wait_caught_up()
        self._servers.move_slots()
        for peer in (self.native, self.headrace):
            peer.stop()
        self._servers.settle_databases(dsns.values())

    def _written(self, dsns: dict[str, str]) -> tuple[tuple[float, ...], tuple[int, int]]:
        """Return the final state that every site must have: sums over the rows of each source site."""
        arrived, written = [], []
        for site, workload in self._workloads.items():
            with psycopg.connect(dsns[site]) as connection:
                arrived.append(_numbers(workload.arrived(connection)))
            written.append(self._content(dsns[site]))
        return _added(arrived), (sum(each[0] for each in written), sum(each[1] for each in written))

    def _content(self, dsn: str) -> tuple[int, int]:
        with psycopg.connect(dsn) as connection:
            return contents(connection, "bench_rows")

    def _sampler(self, peer: NetworkPeer) -> ProcessSampler:
        roots = [pid for pid in (self._servers.source.pid(), self._servers.destination.pid()) if pid]
        if peer is self.headrace:
            return ProcessSampler((*roots, *self.headrace.roots()), self.headrace.components())
        return ProcessSampler(tuple(roots))

    def _wait_arrived(self, dsns: dict[str, str], marks: list[int], wanted: tuple[float, ...]) -> float:
        """Wait until every site has everything, and return that time.

        The sums are queried only after a site has every mark.
        """
        workload = next(iter(self._workloads.values()))
        seen_at = 0.0
        deadline = time.perf_counter() + _DRAIN_TIMEOUT_S
        for site in self.network.sites:
            with psycopg.connect(dsns[site], autocommit=True) as connection:
                while True:
                    asked = time.perf_counter()
                    if (
                        all(has_mark(connection, mark) for mark in marks)
                        and _numbers(workload.arrived(connection)) == wanted
                    ):
                        break
                    if asked > deadline:
                        message = (
                            f"{self.network.name}: the backlog did not arrive at {site} within {_DRAIN_TIMEOUT_S} s"
                        )
                        raise WorkloadError(message)
                    time.sleep(_ARRIVED_POLL_S)
            # A site asked after another one was complete may itself have been complete long before; then the other's
            # time counts.
            seen_at = max(seen_at, asked)
        return seen_at


def _numbers(answer: object) -> tuple[float, ...]:
    assert isinstance(answer, tuple)
    return tuple(float(each or 0) for each in answer)


def _added(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(sum(column) for column in zip(*rows, strict=True))
