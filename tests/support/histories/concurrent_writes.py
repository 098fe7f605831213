"""Sites that write the same rows concurrently and send each other their changes.

Their histories show which handlers converge.

A site is a memory database with table `c`, users who change it, and an apply process for each other site, row by row,
with that site's conflict handlers. Changes made by apply processes are not sent on: the sites are linked directly. Over
a hub, dbs1, the others know the hub alone: it sends each of them what its users wrote and what it applied from the
rest, as its database has it. Each source's transactions come in order; the history determines how the sources
interleave at a site.

A history is a list of steps in readable form:

    dbs1: update 1      a user of dbs1 changes row 1: its texts and its time
    dbs1: set-a 1       column a alone (or set-b), and its time where that decides
    dbs1: insert 3      (a row with a new key, or with a deleted one)
    dbs1: delete 1
    dbs1: move 1 to 5   the key changes
    dbs2 <- dbs1        the next transaction of dbs1 is applied at dbs2
    deliver             everything in flight arrives
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations, product

from headrace.base.errors import DataError
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.rules.conflict_handlers import ConflictHandler, ConflictRules, RowTimes
from spark_apply.sets.collapse import plan_sets
from spark_apply.sets.conflict_settings import ConflictSettings
from spark_apply.sets.conflicts import apply_rows, execute_steps
from spark_apply.sets.resolution import Resolution
from spark_apply.tables.fits import TableFits
from tests.support.histories.conflicts import COLUMNS, Lcr, Shown, batch_of, raw, shown
from tests.support.values.writes import version_of

TIME_FIRST = 100_000
"""First value of the resolution column: later times are higher, or lower for a column that always falls."""


_ONE_COLUMN = {"set-a": "a", "set-b": "b"}
_KEYS_OF_ALL = (1, 2, 3)  # keys in exhaustive short histories: the existing rows, and a new one


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Handlers, and the users' changes under them.

    Args:
        name: as docs/how/conflicts.md calls it.
        handlers: of the apply processes at a site.
        writes: of update, set-a, set-b, insert, delete, move, add (a number alone).
        sites: number of sites.
        own_keys: only one site inserts a key, once.
        falls: the resolution column falls with every change.
        repeats: texts and times repeat: nothing distinguishes two changes.
        times: of latest_timestamp; the site's name is filled in.
        waits: a site's clock is not behind the changes applied there, as the product ensures; False: it is set back.
        hub: dbs1 is the hub, and the others know it alone.
    """

    name: str
    handlers: Callable[[str], tuple[ConflictHandler, ...]]
    writes: tuple[str, ...]
    sites: int = 2
    own_keys: bool = True
    falls: bool = False
    repeats: bool = False
    times: RowTimes | None = None
    waits: bool = True
    hub: bool = False

    def neighbours(self, name: str) -> list[str]:
        """Return the sites that a site sends to and applies from."""
        names = [f"dbs{n + 1}" for n in range(self.sites)]
        return [other for other in names if other != name and (not self.hub or names[0] in {name, other})]


class Users:
    """The users' writes at the sites of a combination.

    Args:
        combination: defines their changes.
    """

    def __init__(self, combination: Combination) -> None:
        self._combination = combination
        self.names = [f"dbs{n + 1}" for n in range(combination.sites)]
        self._texts = 0
        self._clocks = dict.fromkeys(self.names, 0)

    def changed(self, name: str, old: Shown | None, kind: str, key: int) -> Shown:
        """Return the row after a change.

        Args:
            name: the site.
            old: the row before it; None: a new one.
            kind: as in a step.
            key: of the row after it.
        """
        if kind == "add":
            assert old is not None
            return (*old[:4], int(old[4] or 0) + 1 + self.names.index(name), old[5])
        new = self._changed(name, old, key)
        if old is None or kind not in _ONE_COLUMN:
            return new
        decides = {each.resolution_column for each in self._combination.handlers(name)}
        return tuple(
            new[place] if column == _ONE_COLUMN[kind] or column in decides else old[place]
            for place, (column, _) in enumerate(COLUMNS)
        )

    def _changed(self, name: str, old: Shown | None, key: int) -> Shown:
        self._texts += 1
        text = f"{self._texts}{name}" if not self._combination.repeats else f"{self._texts % 2}"
        before = TIME_FIRST if old is None else int(old[3] or 0)
        # Unique among sites, and above the row's value: as in the manual's trigger, with clocks that differ.
        step = self._combination.sites
        self._clocks[name] = max(self._clocks[name], abs(before - TIME_FIRST) // step) + 1
        moved = self._clocks[name] * step + self.names.index(name)
        if self._combination.repeats:
            moved = self._texts % 2
        time = TIME_FIRST - moved if self._combination.falls else TIME_FIRST + moved
        return (key, text, text, time, 100 if old is None else old[4], text)


@dataclass(slots=True)
class _Site:
    store: MemoryStore
    database: MemoryDestination
    sessions: dict[str, object]
    fits: TableFits
    settings: dict[str, ConflictSettings]
    time_us: int = 0  # clock of its database
    # transactions with their commit times
    sent: dict[str, deque[tuple[tuple[Lcr, ...], int]]] = field(default_factory=dict)


class Sites:
    """The sites of a combination, with rows 1 and 2."""

    def __init__(self, combination: Combination) -> None:
        self.combination = combination
        self._users = Users(combination)
        self.names = self._users.names
        self.failures: list[str] = []
        self.met = 0  # resolved conflicts
        self.grouped = 0  # transactions applied as sets
        self._scn = 100
        self._sites: dict[str, _Site] = {}
        for name in self.names:
            store = MemoryStore()
            store.create_table(
                "public",
                "c",
                [destination_column(c, f"pg_catalog.{kind}", equality="bytes") for c, kind in COLUMNS],
                key=["id"],
            )
            store.insert("public", "c", [raw((key, "", "", TIME_FIRST, 100, "")) for key in (1, 2)])
            database = MemoryDestination(store=store)
            others = combination.neighbours(name)
            sessions = {
                other: database.open_session(
                    "t", other, server=0, epoch=database.raise_epoch("t", other).epoch, tag=b"\0"
                )
                for other in others
            }
            times = None if combination.times is None else replace(combination.times, site=name)
            rules = ConflictRules(handlers=combination.handlers(name), times=times)
            any_session = next(iter(sessions.values()))
            self._sites[name] = _Site(
                store,
                database,
                dict(sessions),
                TableFits(any_session.describe, any_session.missing_alter, rules),
                {other: ConflictSettings(apply=other, source=other, site=name, rules=rules) for other in others},
                sent={other: deque() for other in others},
            )
            table = any_session.describe("public", "c")
            assert table is not None
            self._version = version_of(table)

    # ------------------------------------------------------------------ steps

    def run(self, steps: Sequence[str]) -> bool:
        """Take the steps and deliver the rest; return whether all sites are equal and all error queues empty."""
        for step in steps:
            self.take(step)
        self.take("deliver")
        return self.is_converged

    def take(self, step: str) -> None:
        """Take one step; a change of a missing row, or to an existing key, does nothing."""
        if step == "deliver":
            while any(waiting for site in self._sites.values() for waiting in site.sent.values()):
                for name in self.names:
                    for other in self.combination.neighbours(name):
                        if self.combination.times is not None:
                            self._arrive_together(name, other)
                        while self._sites[other].sent[name]:
                            self._arrive(name, other)
            return
        if "<-" in step:
            name, other = (part.strip() for part in step.split("<-"))
            if self._sites[other].sent.get(name):
                self._arrive(name, other)
            return
        name, _, what = step.partition(": ")
        kind, *words = what.split()
        self._write(name, kind, int(words[0]), int(words[-1]))

    def _write(self, name: str, kind: str, key: int, new_key: int) -> None:
        site = self._sites[name]
        table = site.store.tables["public", "c"]
        number = table.unique[0].get((raw((key,))[0],))
        old = None if number is None else shown(table.rows[number])
        if (old is None) != (kind == "insert"):
            return
        if kind == "move" and (raw((new_key,))[0],) in table.unique[0]:
            return
        new = None if kind == "delete" else self._users.changed(name, old, kind, new_key if kind == "move" else key)
        if number is None:
            site.store.insert("public", "c", [raw(new)] if new else [])
        else:
            table.put(number, raw(new) if new else None)
        site.time_us += 1
        self._note(site, old, new)
        for waiting in site.sent.values():
            waiting.append(((Lcr(old=old, new=new),), site.time_us))

    def _note(self, site: _Site, old: Shown | None, new: Shown | None) -> None:
        """Record what a site's database knows of a user's change, under latest_timestamp."""
        times = self.combination.times
        if times is None:
            return
        if old is not None and (new is None or new[0] != old[0]):
            if times.has_tombstones:
                site.store.changed_here("public", "c", raw(old[:1]), site.time_us, is_gone=True)
            else:
                site.store.changes.get(("public", "c"), {}).pop(raw(old[:1]), None)
        if new is not None:
            site.store.changed_here("public", "c", raw(new[:1]), site.time_us)

    def _arrive(self, name: str, source: str) -> None:
        site = self._sites[name]
        lcrs, time_us = self._sites[source].sent[name].popleft()
        before = self._rows(site)
        session, resolution = site.sessions[source], Resolution(site.settings[source])
        self._scn += 10
        session.begin()  # type: ignore[attr-defined]
        batch = batch_of(self._version, lcrs, first_scn=self._scn, source=source, times_us=[time_us])
        failure = apply_rows(session, batch, site.fits.fit, resolution)
        if failure is not None:
            session.rollback()  # type: ignore[attr-defined]
            self.failures.append(f"{failure.conflict_type} at {name}: {failure.message}")
            return
        session.commit((), 0)  # type: ignore[attr-defined]
        self.met += len(resolution.records)
        self._applied(name, source, time_us, before)

    def _arrive_together(self, name: str, source: str) -> None:
        """Apply all pending transactions as one group of sets, or none if there is a conflict."""
        site, waiting = self._sites[name], self._sites[source].sent[name]
        if not waiting or any(len(lcrs) > 1 for lcrs, _ in waiting):
            return
        before = self._rows(site)
        session = site.sessions[source]
        batch = batch_of(
            self._version,
            [lcr for (lcr,), _ in waiting],
            each=True,
            first_scn=self._scn + 10,
            source=source,
            times_us=[time for _, time in waiting],
        )
        session.begin()  # type: ignore[attr-defined]
        try:
            written = execute_steps(session, plan_sets([batch], site.fits.fit))
        except DataError:
            written = None
        if written is None:
            session.rollback()  # type: ignore[attr-defined]
            return
        session.commit((), 0)  # type: ignore[attr-defined]
        self.grouped += len(waiting)
        self._scn += 10 * len(waiting)
        self._applied(name, source, waiting[-1][1], before)
        waiting.clear()

    def _applied(self, name: str, source: str, time_us: int, before: Mapping[int, Shown]) -> None:
        """Record a commit of an apply process: the clock passes the applied times.

        A hub sends on what its log has of it, with the hub's time.
        """
        site = self._sites[name]
        site.time_us = max(site.time_us, time_us) if self.combination.waits else site.time_us
        after = self._rows(site)
        lcrs = tuple(
            Lcr(old=before.get(number), new=after.get(number))
            for number in sorted({*before, *after})
            if before.get(number) != after.get(number)
        )
        if not self.combination.hub or name != self.names[0] or not lcrs:
            return
        site.time_us += 1
        for other, waiting in site.sent.items():
            if other != source:
                waiting.append((lcrs, site.time_us))

    @staticmethod
    def _rows(site: _Site) -> dict[int, Shown]:
        """Return a site's rows by their number, which stays when a row is updated, even if its key changes."""
        return {number: shown(row) for number, row in site.store.tables["public", "c"].rows.items()}

    # ------------------------------------------------------------------ the end

    @property
    def is_converged(self) -> bool:
        return not self.failures and len({tuple(self.rows(name)) for name in self.names}) == 1

    def rows(self, name: str) -> list[Shown]:
        return [shown(row) for row in self._sites[name].store.rows("public", "c")]


def random_steps(combination: Combination, seed: int, writes: int) -> list[str]:
    """Return steps that a seed determines: the given number of writes, with random arrivals between them."""
    rng = random.Random(seed)
    names = [f"dbs{n + 1}" for n in range(combination.sites)]
    slow = rng.choice([0.3, 1.0, 2.0])  # arrivals per write
    inserted, steps = 2, []
    while writes:
        if rng.random() < slow / (1 + slow):
            steps.append(" <- ".join(rng.sample(names, 2)))
            continue
        writes -= 1
        kind, name = rng.choice(combination.writes), rng.choice(names)
        if kind == "insert" and combination.own_keys:
            inserted += 1
            steps.append(f"{name}: insert {inserted}")
            continue
        key = rng.randrange(1, inserted + 1 if combination.own_keys else 5)
        steps.append(f"{name}: move {key} to {rng.randrange(1, 7)}" if kind == "move" else f"{name}: {kind} {key}")
    return steps


def every_history(combination: Combination, steps: int) -> Iterator[list[str]]:
    """Yield every history of a length that begins with a write, and writes the existing rows and one more.

    Args:
        combination: the users' changes, and the sites.
        steps: of each history.
    """
    names = [f"dbs{n + 1}" for n in range(combination.sites)]
    moves = [f"move {old} to {new}" for old, new in product(_KEYS_OF_ALL, repeat=2) if old != new]
    new_keys = _KEYS_OF_ALL[2:] if combination.own_keys else _KEYS_OF_ALL
    made = {
        kind: moves if kind == "move" else [f"{kind} {key}" for key in (new_keys if kind == "insert" else _KEYS_OF_ALL)]
        for kind in combination.writes
    }
    writes = [f"{name}: {what}" for name in names for each in made.values() for what in each]
    arrivals = [f"{name} <- {other}" for name, other in permutations(names, 2)]
    for first in writes if steps else ():
        for rest in product([*writes, *arrivals], repeat=steps - 1):
            inserts = [step for step in (first, *rest) if ": insert" in step]
            if not combination.own_keys or len(inserts) < 2:  # a history has one new key
                yield [first, *rest]


def find_divergence(combination: Combination, seeds: Sequence[int], writes: int = 8) -> list[str] | None:
    """Return the shortest history derived from the first whose sites differ at the end; None: all converge."""
    for seed in seeds:
        steps = random_steps(combination, seed, writes)
        if not Sites(combination).run(steps):
            return _shortened(combination, steps)
    return None


def _shortened(combination: Combination, steps: list[str]) -> list[str]:
    place = 0
    while place < len(steps):
        shorter = [*steps[:place], *steps[place + 1 :]]
        if Sites(combination).run(shorter):
            place += 1
        else:
            steps, place = shorter, 0
    return steps
