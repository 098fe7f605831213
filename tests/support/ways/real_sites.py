"""The sites of a combination of conflict handlers on real servers, each with its own database.

The combinations are those of `tests.support.histories.concurrent_writes`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psycopg

from headrace.lcr.batch import LcrBatch
from headrace.lcr.cutting import slice_transactions
from headrace.rules.conflict_handlers import ConflictRules
from tests.support.histories.concurrent_writes import TIME_FIRST, Combination, Users
from tests.support.histories.conflicts import COLUMNS, Shown
from tests.support.ways.postgres_network import PostgresNetwork
from topology.file.reading import read_topology

__all__ = ["APART", "RealSites", "network_of", "site_names"]

APART = 100  # distance between the keys of two histories
_TABLE = (
    f"CREATE TABLE public.c ({', '.join(f'{name} {kind}' for name, kind in COLUMNS)}, PRIMARY KEY (id)); ALTER"
    " TABLE public.c REPLICA IDENTITY FULL"
)
_ROW = "INSERT INTO public.c VALUES (%s, %s, %s, %s, %s, %s)"


def site_names(combination: Combination) -> list[str]:
    return [f"dbs{n + 1}" for n in range(combination.sites)]


def network_of(combination: Combination, dsns: Mapping[str, str], folder: Path, *, histories: int) -> PostgresNetwork:
    """Return the sites, with the rows 1 and 2 of every history.

    Args:
        combination: handlers, and the users' changes.
        dsns: of the databases, by site; empty ones.
        folder: of the topology's file and redo.
        histories: how many run, one after the other.
    """
    names = site_names(combination)
    file = folder / "convergence.yaml"
    databases = "".join(f"  {name}: {{database: {{kind: embedded}}}}\n" for name in names)
    ways = f"hub: {names[0]}, spokes: [{', '.join(names[1:])}]" if combination.hub else f"between: [{', '.join(names)}]"
    file.write_text(
        f"topology: convergence\nstate_dir: state\nsites:\n{databases}replicate:\n  - {{tables: [public.c], {ways}}}\n"
    )
    spec = read_topology(file, {})
    times = combination.times
    applies = tuple(
        replace(
            apply,
            conflicts=ConflictRules(
                handlers=combination.handlers(apply.site),
                times=None if times is None else replace(times, site=apply.site),
            ),
        )
        for apply in spec.applies
    )

    def prepare(_: str, connection: psycopg.Connection) -> None:
        connection.execute(_TABLE.encode())
        for history in range(histories):
            for key in (1, 2):
                connection.execute(_ROW, (APART * history + key, "", "", TIME_FIRST, 100, ""))

    network = PostgresNetwork(replace(spec, applies=applies), dsns, folder, prepare)
    if times is not None and times.has_tombstones:
        for site in network.sites.values():
            site.destination.keep_tombstones([("public", "c")])
    return network


class RealSites:
    """The sites of a combination, each a database with the rows 1 and 2 of every history.

    Args:
        combination: handlers, and the users' changes.
        network: of its sites.
    """

    def __init__(self, combination: Combination, network: PostgresNetwork) -> None:
        self.users, self.network = Users(combination), network
        self.base = 0
        self._way = {(apply.site, apply.source): apply.name for apply in network.spec.applies}
        self._sent: dict[str, deque[LcrBatch]] = {name: deque() for name in network.engines}

    def run(self, steps: Sequence[str]) -> bool:
        """Take the steps and deliver the rest; return whether all sites are equal and all error queues empty."""
        for step in [*steps, "deliver"]:
            self.take(step)
        spec = self.network.spec
        errors = [
            error
            for apply in spec.applies
            for error in self.network.sites[apply.site].destination.errors(spec.name, apply.name)
        ]
        return not errors and len({tuple(self.rows(name)) for name in self.users.names}) == 1

    def take(self, step: str) -> None:
        """Take one step of `tests.support.histories.concurrent_writes`."""
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
            user.execute(_ROW, new)
        else:
            user.execute(
                "UPDATE public.c SET (id, a, b, t, n, u) = (%s, %s, %s, %s, %s, %s) WHERE id = %s", (*new, key)
            )

    def _arrive(self, name: str, source: str) -> bool:
        """Apply the source's next transaction at a site; False: no transaction, or no way."""
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
        """Take what is new in a site's redo, transaction by transaction."""
        site = self.network.sites[source]
        site.catch_up()
        for capture in site.captures:
            for apply, batch in self.network.mined(site, capture):
                count = len(batch.transactions)
                self._sent[apply] += (
                    [slice_transactions(batch, each, each + 1) for each in range(count)] if count > 1 else [batch]
                )
