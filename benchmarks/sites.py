"""Cost of sites: memory, CPU and start-up time of n sites that all write to each other, and of one more apply process.

    python -m benchmarks.sites              five sites, twenty flows
    python -m benchmarks.sites --sites 3
    python -m benchmarks.sites --one-more   one more flow into a site that already has an apply process

Every site has a PostgreSQL server. Memory is the proportional set size of everything, servers included. It is measured
after a rest in which processes give back what starting needed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from benchmarks.processes import Footprint, ProcessSampler, footprint
from benchmarks.product import HeadraceTopology
from benchmarks.servers import running_servers
from headrace.databases.embedded.servers import EmbeddedServer

REST_S = 60.0  # the Java heaps shrink within half a minute
IDLE_S = 20.0
ROWS = 500
MEMORY_MAX_MB = 12 << 10  # of five sites
UP_MAX_S = 120.0
ONE_MORE_MAX_MB = 250.0
ONE_MORE_MAX_S = 3.0

_TABLES = "CREATE TABLE t (id bigint PRIMARY KEY, body text); CREATE TABLE u (LIKE t INCLUDING ALL)"


@dataclass(slots=True)
class Sites:
    """Running servers, one per site, and the topology between them."""

    servers: dict[str, EmbeddedServer]
    headrace: HeadraceTopology

    def up(self, replicate: Sequence[str], *, combined: str = "auto") -> float:
        """Bring up a topology with these flows; return the seconds of `headrace up`.

        Args:
            replicate: entries of `replicate:` in the file.
            combined: the file's `combined:`.
        """
        sites = "".join(
            f'  {site}: {{database: {{kind: postgres, dsn: "${{DSN_{site.upper()}}}"}}}}\n' for site in self.servers
        )
        flows = "".join(f"  - {entry}\n" for entry in replicate)
        began = time.monotonic()
        self.headrace.bring_up(
            f"topology: bench\nstate_dir: {self.headrace.state_dir}\ncombined:"
            f" {combined}\nsites:\n{sites}replicate:\n{flows}"
        )
        return time.monotonic() - began

    def write_everywhere(self, sites: Sequence[str]) -> None:
        """Write different rows at each of these sites, and wait until every site has all of them.

        Args:
            sites: those with writers.
        """
        for place, site in enumerate(sites):
            with psycopg.connect(self.servers[site].dsn(), autocommit=True) as connection:
                connection.execute(
                    "INSERT INTO t SELECT n * 100 + %s, 'x' FROM generate_series(1, %s) n", (place, ROWS)
                )
        self.headrace.wait_caught_up()

    def counts(self) -> dict[str, int]:
        """Return the number of rows at each site."""
        found = {}
        for site, server in self.servers.items():
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                found[site] = int(connection.execute("SELECT count(*) FROM t").fetchone()[0])  # type: ignore[index]
        return found

    def memory(self) -> dict[str, Footprint]:
        """Return the proportional set size per component, and of the servers."""
        servers = {pid: "PostgreSQL servers" for server in self.servers.values() if (pid := server.pid()) is not None}
        found = footprint(self.headrace.roots(), self.headrace.components())
        return found | {"PostgreSQL servers": _sum(footprint(tuple(servers), {}))}

    def idle_cpu(self) -> dict[str, float]:
        """Return the share of one core that each component of Headrace uses without writers."""
        sampler = ProcessSampler(self.headrace.roots(), self.headrace.components())
        sampler.start()
        time.sleep(IDLE_S)
        return {name: usage.cpu_s / IDLE_S for name, usage in sampler.stop().items()}


@contextmanager
def running_sites(names: Sequence[str]) -> Iterator[Sites]:
    """Start a server per site, each with an empty table, in a temporary folder that is removed afterwards."""
    with running_servers(names, {}) as (folder, servers):
        for server in servers.values():
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(_TABLES)
        headrace = HeadraceTopology(
            folder / "headrace",
            {name: server.dsn() for name, server in servers.items()},
            {f"DSN_{name.upper()}": server.dsn() for name, server in servers.items()},
        )
        try:
            yield Sites(servers, headrace)
        finally:
            headrace.tear_down()


def n_way(count: int) -> int:
    """Measure `count` sites that all write to each other; return 1 when a goal for five sites is missed."""
    names = [f"s{number}" for number in range(1, count + 1)]
    with running_sites(names) as sites:
        up_s = sites.up([f"{{schemas: [public], between: [{', '.join(names)}]}}"])
        _say(f"{count} sites, {count * (count - 1)} flows: up after {up_s:.1f} s; processor seconds of what runs then:")
        begun = sites.memory()
        for name, each in sorted(begun.items(), key=lambda item: -item[1].cpu_s):
            _say(f"  {name:40} {each.cpu_s:9.1f} in {each.processes} processes")
        _say(f"  {'together':40} {_sum(begun).cpu_s:9.1f}")
        sites.write_everywhere(names)
        counts = sites.counts()
        _say(f"rows at each site: {counts}")
        time.sleep(REST_S)
        used, idle = sites.memory(), sites.idle_cpu()
        for name, each in sorted(used.items(), key=lambda item: -item[1].pss_mb):
            _say(
                f"  {name:40} {each.pss_mb:9.1f} MB in {each.processes} processes, idle {idle.get(name, 0.0):.2%} of a"
                " core"
            )
        total = sum(each.pss_mb for each in used.values())
        _say(
            f"  {'together':40} {total:9.1f} MB, {total / count:.0f} MB per site; idle {sum(idle.values()):.1%} of a"
            " core"
        )
    missed = [f"{site} has {found} rows of {count * ROWS}" for site, found in counts.items() if found != count * ROWS]
    if count >= 5:
        missed += [f"{total:.0f} MB, wanted {MEMORY_MAX_MB}"] * (total > MEMORY_MAX_MB)
        missed += [f"up after {up_s:.0f} s, wanted {UP_MAX_S:.0f}"] * (up_s > UP_MAX_S)
    return _ended(missed)


def one_more() -> int:
    """Measure a further flow into a site that already has an apply process; return 1 when a goal is missed.

    Combined capture and apply is off: a further flow would end it for its source's other flow, and the cost would
    include two queues. The flow has its own table, because an apply process restarts when its tables get another
    writer.
    """
    with running_sites(["a", "b", "c"]) as sites:
        flows = ["{tables: [public.t], from: a, to: [c]}", "{tables: [public.u], from: b, to: [a]}"]
        sites.up(flows, combined="never")
        sites.write_everywhere(["a"])
        time.sleep(REST_S)
        parts_before = sites.memory()
        began = time.monotonic()
        sites.headrace.wait_caught_up()  # excludes the start-up time of the command line
        command_s = time.monotonic() - began
        edit_s = sites.up([*flows[:1], "{tables: [public.u], from: b, to: [a, c]}"], combined="never")
        sites.write_everywhere([])
        time.sleep(REST_S)
        parts_after = sites.memory()
        before, after = (_sum(parts).pss_mb for parts in (parts_before, parts_after))
        for name in sorted(parts_before.keys() | parts_after.keys()):
            was, now = (parts.get(name, Footprint(0.0, 0)) for parts in (parts_before, parts_after))
            _say(f"  {name:40} {was.pss_mb:9.1f} -> {now.pss_mb:7.1f} MB, {was.processes} -> {now.processes} processes")
        _say(
            f"one more propagation and apply process: {after - before:.0f} MB ({before:.0f} -> {after:.0f}); `headrace"
            f" up` took {edit_s:.1f} s, a command that only asks {command_s:.1f} s"
        )
    missed = [f"{after - before:.0f} MB, wanted {ONE_MORE_MAX_MB:.0f}"] * (after - before > ONE_MORE_MAX_MB)
    missed += [f"{edit_s - command_s:.1f} s, wanted {ONE_MORE_MAX_S:.0f}"] * (edit_s - command_s > ONE_MORE_MAX_S)
    return _ended(missed)


def _sum(found: dict[str, Footprint]) -> Footprint:
    return Footprint(
        round(sum(each.pss_mb for each in found.values()), 1),
        sum(each.processes for each in found.values()),
        round(sum(each.cpu_s for each in found.values()), 1),
    )


def _ended(missed: list[str]) -> int:
    _say("every goal is met" if not missed else "missed: " + "; ".join(missed))
    return 1 if missed else 0


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    """Run the chosen measurement; return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sites", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sites", type=int, default=5, help="how many sites write to each other")
    parser.add_argument("--one-more", action="store_true", help="measure one more apply process instead")
    arguments = parser.parse_args()
    return one_more() if arguments.one_more else n_way(arguments.sites)


if __name__ == "__main__":
    sys.exit(main())
