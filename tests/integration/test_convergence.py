"""Sites on a real server that change the same rows at the same time: what docs/conflicts.md says of each combination of handlers.

The histories are those of `tests/support/concurrent_writes.py`. There they run by the thousand in memory; here a few of each go through slots, redo
logs, rules and apply engines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from _pytest.mark import ParameterSet

from databases.embedded import EmbeddedServer
from rules.conflict_handlers import ConflictRules
from streams.cutting import slice_transactions
from streams.lcr_batch import LcrBatch
from tests.support.concurrent_writes import TIME_FIRST, Combination, Users, random_steps
from tests.support.conflicts import COLUMNS, Shown
from tests.support.convergence import CONVERGENT, DIVERGENT, OVER_A_HUB, documented, named
from tests.support.postgres_network import PostgresNetwork
from tests.support.seeds import is_soak, scaled, seeds
from topology.file.reading import read_topology

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

HISTORIES = scaled(2, 15)  # of each combination, one after the other, each with rows of its own
WRITES = 14
APART = 100  # between the keys of two histories
TABLE = f"CREATE TABLE public.c ({', '.join(f'{name} {kind}' for name, kind in COLUMNS)}, PRIMARY KEY (id)); ALTER TABLE public.c REPLICA IDENTITY FULL"
ROW = "INSERT INTO public.c VALUES (%s, %s, %s, %s, %s, %s)"
CLOCK = "latest_timestamp, a clock is set back"  # the product waits until the server's clock is ahead: no history of a real server shows it

# What `make test` shows on servers, each kind of handler at two sites or over a hub; the database in memory shows all of them there.
CORE = {
    "maximum with insert_exists: maximum and update_missing: overwrite (2 sites)", "minimum, always falling (2 sites)",
    "delta of one list beside maximum of another (2 sites)", "latest_timestamp (2 sites)",
    "latest_timestamp with tombstones (3 sites)", "site_priority, a list for each column, values never come again (2 sites)",
    "maximum, delete wins, keys inserted once (3 sites)",
    "no handler (2 sites)", "maximum with key updates (2 sites)", "site_priority at three sites (3 sites)", "latest_timestamp over a hub (3 sites)",
    "latest_timestamp without tombstones, deletes (2 sites)",
}


def core(combinations: Sequence[Combination]) -> list[ParameterSet]:
    """The combinations, those that `make test` leaves out for `make soak` alone."""
    return [pytest.param(each, marks=() if named(each) in CORE else (pytest.mark.soak,)) for each in combinations]


class RealSites:
    """The sites of a combination, each a database with the rows 1 and 2 of every history.

    Args:
        combination: handlers, and what users do.
        network: of its sites.
    """

    def __init__(self, combination: Combination, network: PostgresNetwork) -> None:
        self.users, self.network = Users(combination), network
        self.base = 0
        self._way = {(apply.site, apply.source): apply.name for apply in network.spec.applies}
        self._sent: dict[str, deque[LcrBatch]] = {name: deque() for name in network.engines}

    def run(self, steps: Sequence[str]) -> bool:
        """Take steps, deliver the rest; whether all sites are equal, and nothing is in an error queue."""
        for step in [*steps, "deliver"]:
            self.take(step)
        spec = self.network.spec
        errors = [error for apply in spec.applies for error in self.network.sites[apply.site].destination.errors(spec.name, apply.name)]
        return not errors and len({tuple(self.rows(name)) for name in self.users.names}) == 1

    def take(self, step: str) -> None:
        """See `tests.support.concurrent_writes`."""
        if step == "deliver":
            while any(self._arrive(*way) for way in self._way):
                pass
        elif "<-" in step:
            self._arrive(*(part.strip() for part in step.split("<-")))
        else:
            name, _, what = step.partition(": ")
            kind, *words = what.split()
            self._write(name, kind, self.base + int(words[0]), self.base + int(words[-1]))

    def rows(self, name: str) -> list[Shown]:
        return self.network.sites[name].user.execute("SELECT * FROM public.c ORDER BY id").fetchall()

    def _write(self, name: str, kind: str, key: int, new_key: int) -> None:
        user = self.network.sites[name].user
        find = "SELECT * FROM public.c WHERE id = %s"
        old = user.execute(find, (key,)).fetchone()
        if (old is None) != (kind == "insert") or (kind == "move" and user.execute(find, (new_key,)).fetchone()):
            return
        if kind == "delete":
            user.execute("DELETE FROM public.c WHERE id = %s", (key,))
            return
        new = self.users.changed(name, old, kind, new_key if kind == "move" else key)
        if kind == "insert":
            user.execute(ROW, new)
        else:
            user.execute("UPDATE public.c SET (id, a, b, t, n, u) = (%s, %s, %s, %s, %s, %s) WHERE id = %s", (*new, key))

    def _arrive(self, name: str, source: str) -> bool:
        """Apply the source's next transaction at a site; False: there is none, or no way."""
        if (name, source) not in self._way:
            return False
        self._capture(source)
        apply = self._way[name, source]
        engine, sent = self.network.engines[apply], self._sent[apply]
        while sent:
            batch = sent.popleft()
            engine.batches.append(batch)
            if batch.row_count:
                engine.run()
                return True
        return False

    def _capture(self, source: str) -> None:
        """Take what is new in a site's redo, one transaction each."""
        site = self.network.sites[source]
        site.catch_up()
        for capture in site.captures:
            for apply, batch in self.network.mined(site, capture):
                count = len(batch.transactions)
                self._sent[apply] += [slice_transactions(batch, each, each + 1) for each in range(count)] if count > 1 else [batch]


@pytest.fixture
def sites_of(pg_source: EmbeddedServer, prepared_database: Callable[[EmbeddedServer], str], tmp_path: Path) -> Iterator[Callable[[Combination], RealSites]]:
    """Makes the sites of a combination."""
    made: list[PostgresNetwork] = []

    def make(combination: Combination) -> RealSites:
        names = [f"dbs{n + 1}" for n in range(combination.sites)]
        file = tmp_path / "convergence.yaml"
        databases = "".join(f"  {name}: {{database: {{kind: embedded}}}}\n" for name in names)
        ways = f"hub: {names[0]}, spokes: [{', '.join(names[1:])}]" if combination.hub else f"between: [{', '.join(names)}]"
        file.write_text(f"topology: convergence\nstate_dir: state\nsites:\n{databases}replicate:\n  - {{tables: [public.c], {ways}}}\n")
        spec = read_topology(file, {})
        times = combination.times
        applies = tuple(
            replace(apply, conflicts=ConflictRules(
                handlers=combination.handlers(apply.site), times=None if times is None else replace(times, site=apply.site),
            )) for apply in spec.applies
        )

        def prepare(_: str, connection: psycopg.Connection) -> None:
            connection.execute(TABLE.encode())
            for history in range(HISTORIES):
                for key in (1, 2):
                    connection.execute(ROW, (APART * history + key, "", "", TIME_FIRST, 100, ""))

        network = PostgresNetwork(replace(spec, applies=applies), {name: prepared_database(pg_source) for name in names}, tmp_path, prepare)
        made.append(network)
        if times is not None and times.has_tombstones:
            for site in network.sites.values():
                site.destination.keep_tombstones([("public", "c")])
        return RealSites(combination, network)

    yield make
    for network in made:
        network.close()


@pytest.mark.seeded
@pytest.mark.parametrize("combination", [*core(CONVERGENT), *core(OVER_A_HUB)], ids=named)
def test_sites_end_equal_and_without_errors_where_the_document_says_so(sites_of: Callable[[Combination], RealSites], combination: Combination) -> None:
    sites = sites_of(combination)
    for history, seed in enumerate(seeds(named(combination), test=HISTORIES, soak=HISTORIES)):
        sites.base = APART * history
        steps = random_steps(combination, seed, WRITES)
        assert sites.run(steps), steps
    met = [record for site in sites.network.sites.values() for record in site.destination.conflicts("convergence", last=1000)]
    # One in each history is what the known seeds show; new ones show fewer now and then.
    assert len(met) >= (1 if is_soak() else HISTORIES), "hardly a conflict: the histories show nothing"


@pytest.mark.parametrize("combination", [each for each in core(DIVERGENT) if each.values[0].name != CLOCK], ids=named)
def test_the_documented_history_leaves_sites_different_or_an_error(sites_of: Callable[[Combination], RealSites], combination: Combination) -> None:
    assert not sites_of(combination).run(documented()[named(combination)])
