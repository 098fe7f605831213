"""Sites on real servers that change the same rows during simultaneous faults: their handlers make them converge.

In each round users write everywhere, and several faults happen at once. One site is cut off, the capture process of
another one is killed, apply servers and drivers die, and the server of the third one stops in the middle of a
transaction and restarts. Without Ray: the test steps the parts of each site.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.base.errors import DatabaseUnavailable, DestinationRestarted
from headrace.databases.embedded.servers import EmbeddedServer
from tests.support.apply.apply_engine import Engine
from tests.support.databases.lazy_server import lazy_server
from tests.support.histories.concurrent_writes import Combination, random_steps
from tests.support.histories.convergence import CONVERGENT, OVER_A_HUB, named
from tests.support.session.seeds import scaled, seed_of
from tests.support.ways.real_sites import RealSites, network_of, site_names

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

RESTARTING = "dbs2"  # has its own server
ROUNDS = scaled(3, 9)
WRITES = 8  # of all users in a round
CRASHES = 0.03  # share of an apply process's steps that kill a part of it: several a round
BEFORE_MAX = 40  # steps of an apply process before its server stops: none to a few transactions
IN_TEST = "latest_timestamp with tombstones (3 sites)"
THREE = [each for each in CONVERGENT if each.sites == 3]


class Struck:
    """The sites of a combination, with faults.

    Args:
        sites: the sites.
        server: of `RESTARTING`.
        seed: determines the faults.
    """

    def __init__(self, sites: RealSites, server: EmbeddedServer, seed: int) -> None:
        self._sites, self._network, self._server = sites, sites.network, server
        self._rng = random.Random(seed)
        self._others = [name for name in sites.users.names if name != RESTARTING]
        self.killed: set[int | None] = set()  # ended incarnations of the server
        for engine in self._network.engines.values():
            engine.crash = CRASHES

    def strike(self) -> None:
        cut, killed = self._rng.sample(self._others, 2)
        reached = [each.name for each in self._network.spec.applies if cut not in {each.site, each.source}]
        self._send(but=cut)
        for name in reached:
            if self._network.spec.apply(name).site == RESTARTING:
                for _ in range(self._rng.randrange(BEFORE_MAX)):
                    self._network.engines[name].step()
        self.killed.add(self._server.pid())
        self._server.stop(immediate=True)
        try:
            self._run([name for name in reached if self._network.spec.apply(name).site != RESTARTING])
        finally:
            self._server.start()
        back = self._network.sites[RESTARTING]
        back.reconnect()
        with contextlib.suppress(DatabaseUnavailable):
            # fails on the old connection; the next one is new
            back.destination.progress(self._network.spec.name, "any")
        if self._rng.random() < 0.5:  # otherwise a driver notices the restart after the capture process does
            self._run(reached)
        self._network.kill_captures(killed)
        self._run(reached)

    def heal(self) -> None:
        """Run until nothing moves any more: a hub sends on what it applies."""
        for _ in self._sites.users.names:
            self._send()
            self._run(list(self._network.engines))

    def _send(self, but: str = "") -> None:
        for name, site in self._network.sites.items():
            if name != but:
                site.catch_up()
                for capture in site.captures:
                    self._network._capture(site, capture)

    def _run(self, names: list[str]) -> None:
        for name in names:
            engine = self._network.engines[name]
            engine.run()
            for number in range(engine.parallelism):
                if number not in engine.servers:
                    self._start(engine, number)

    def _start(self, engine: Engine, number: int) -> None:
        """Start an apply server; its session ends that of the killed one, which has rows locked."""
        try:
            engine.start_server(number)
        except DestinationRestarted:
            # Nothing has come to this apply process since the restart, so it notices now.
            engine.start_driver()
            engine.run()
            if number not in engine.servers:
                engine.start_server(number)


@pytest.fixture
def sites_of(
    pg_source: EmbeddedServer,
    prepared_database: Callable[[EmbeddedServer], str],
    postgres_folder: Path,
    tmp_path: Path,
) -> Iterator[Callable[[Combination], tuple[RealSites, EmbeddedServer]]]:
    """Make the sites of a combination, one of them on its own server."""
    with lazy_server(postgres_folder, wal_level="logical", track_commit_timestamp="on") as server:
        made: list[RealSites] = []

        def make(combination: Combination) -> tuple[RealSites, EmbeddedServer]:
            dsns = {
                name: server.dsn() if name == RESTARTING else prepared_database(pg_source)
                for name in site_names(combination)
            }
            made.append(RealSites(combination, network_of(combination, dsns, tmp_path, histories=1)))
            return made[0], server

        yield make
        for sites in made:
            sites.network.close()


@pytest.mark.fault(
    "a killed capture process, a site that is cut off, a server that stops at once, killed apply servers and drivers,"
    " all together"
)
@pytest.mark.seeded
@pytest.mark.parametrize(
    "combination",
    [
        pytest.param(
            each,
            marks=() if named(each) == IN_TEST else pytest.mark.soak,
            id=f"{named(each)}{' over a hub' if each.hub else ''}",
        )
        for each in (*THREE, *(each for each in OVER_A_HUB if each.name == "delta"))
    ],
)
def test_sites_converge_without_errors_under_simultaneous_faults(
    sites_of: Callable[[Combination], tuple[RealSites, EmbeddedServer]],
    combination: Combination,
) -> None:
    sites, server = sites_of(combination)
    seed = seed_of(f"conflicts under faults: {named(combination)} {combination.hub}")
    writes = [step for step in random_steps(combination, seed, ROUNDS * WRITES) if "<-" not in step]
    struck = Struck(sites, server, seed)
    for number in range(ROUNDS):
        for step in writes[number * WRITES : (number + 1) * WRITES]:
            sites.take(step)
        struck.strike()
    struck.heal()
    spec = sites.network.spec
    errors = [
        error
        for apply in spec.applies
        for error in sites.network.sites[apply.site].destination.errors(spec.name, apply.name)
    ]
    assert errors == []
    assert {name: sites.rows(name) for name in sites.users.names} == dict.fromkeys(
        sites.users.names, sites.rows("dbs1")
    )
    met = [
        record for site in sites.network.sites.values() for record in site.destination.conflicts(spec.name, last=1000)
    ]
    crashes = [each.crashes for each in sites.network.engines.values()]
    print(f"seed {seed}: {len(met)} conflicts, {crashes}")
    assert met, "no conflict: the history shows nothing"
    assert len(struck.killed) == ROUNDS
    assert sum(each.get("server", 0) + each.get("driver", 0) for each in crashes) >= ROUNDS, "hardly anything died"
