"""Random histories of one source with conflicts, applied by an engine and row by row: both must give the same result.

The row-by-row side (`one_by_one`) has no groups, sets or servers: each transaction is tried alone, in the order of the
source. It joins the error queue if it fails or depends on a transaction there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace.databases.ports import ConflictRecord, DestinationTable
from headrace.lcr.batch import LcrBatch, OldImage, TableVersion
from headrace.rules.conflict_handlers import (
    BY_COLUMN,
    METHODS_OF_KIND,
    ConflictHandler,
    ConflictRules,
    UncomparedColumns,
)
from spark_apply.dependencies.hashes import hash_batch
from spark_apply.dependencies.holds import ErrorHolds
from spark_apply.handlers.final_rows import apply_final
from spark_apply.sets.conflict_settings import ConflictSettings
from spark_apply.sets.resolution import Resolution
from spark_apply.tables.fits import TableFits
from tests.support.apply.apply_engine import SOURCE, Engine
from tests.support.histories.conflicts import Lcr, Shown, batch_of, by_time, handler
from tests.support.values.lcr_batches import transactions
from tests.support.values.writes import version_of

SITE = "b"
NUMBERS = (3, 4)  # positions of the number columns outside the key
_SUITED = {"delta": ("t", "n")}
"""Columns that suit a method: those that it adds to, or that decide; a method that is not here takes any column."""
CHANGED_US, STEP_US = 1_700_000_000_000_000, 1000  # time of the destination's last changes


@dataclass(frozen=True, kw_only=True)
class History:
    """A random history.

    Args:
        here: the destination's rows.
        changes: of each transaction.
        rules: of the apply process.
        old_image: of the source's log.
        is_unique: u is a second unique key.
        ages: of latest_timestamp: the commit time of each transaction, in steps after the destination's rows were
            changed; empty: not needed.
        gone: keys that a user deleted when the others were changed.
    """

    here: tuple[Shown, ...]
    changes: tuple[tuple[Lcr, ...], ...]
    rules: ConflictRules
    old_image: OldImage
    is_unique: bool
    ages: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()

    def batch(self, version: TableVersion, first: int, last: int) -> LcrBatch:
        """Return some of its transactions as a batch.

        Args:
            version: of the table.
            first: the first of them.
            last: end, exclusive.
        """
        some, commits = self.changes[first:last], [100 + 10 * number for number in range(first, last)]
        found = transactions(commits, [len(each) for each in some])
        if self.ages:
            found = replace(
                found, commit_time_us=np.array([CHANGED_US + STEP_US * age for age in self.ages[first:last]], np.int64)
            )
        batch = batch_of(version, [lcr for each in some for lcr in each], first_scn=commits[0], source=SOURCE)
        return replace(batch, previous_scn=commits[0] - 10 if first else 0, through_scn=commits[-1], transactions=found)


def random_history(seed: int, count: int = 16, keys: int = 6) -> History:
    """Make a history of a source, and a destination that differs slightly.

    Args:
        seed: determines everything.
        count: transactions.
        keys: number of keys in use.
    """
    rng = random.Random(seed)
    is_unique = rng.random() < 0.3
    is_partial = rng.random() < 0.3  # a transformation removed columns
    old_image = OldImage.FULL if is_unique or rng.random() < 0.8 else OldImage.KEY
    texts = (None, "", "x", "y")
    there: dict[int, Shown] = {}
    for key in range(keys):
        if rng.random() < 0.6:
            there[key] = _random_row(rng, key, there, is_unique=is_unique)
    here: dict[int, Shown] = {}
    for key, row in there.items():
        if rng.random() < 0.8:
            changed = list(row)
            for place in range(1, 5):
                if rng.random() < 0.25:
                    changed[place] = rng.choice([None, rng.randrange(9)]) if place in NUMBERS else rng.choice(texts)
            here[key] = tuple(changed)
    for key in range(keys):
        if key not in here and rng.random() < 0.2:
            here[key] = _random_row(rng, key, here, is_unique=is_unique)
    changes = []
    for _ in range(count):
        size = rng.choice([1, 1, 2, 3])
        changes.append(
            tuple(
                _random_change(rng, there, keys, is_unique=is_unique, is_partial=is_partial, old_image=old_image)
                for _ in range(size)
            )
        )
    return History(
        here=tuple(here.values()),
        changes=tuple(changes),
        rules=_random_rules(rng),
        old_image=old_image,
        is_unique=is_unique,
    )


def random_timed_history(seed: int) -> History:
    """Make a `random_history` with latest_timestamp.

    Commits are before, after and at the same moment as those of the destination's users, and a clock goes back.

    Args:
        seed: determines everything.
    """
    made, rng = random_history(seed, keys=5), random.Random(seed + 1)
    priority = rng.choice([(SOURCE, SITE), (SITE, SOURCE)])
    handlers, times = by_time(*priority, tombstones=rng.random() < 0.7)
    ages, age = [], rng.randrange(-3, 1)
    for _ in made.changes:
        age += rng.choice([0, 0, 1, 1, 1, -1])
        ages.append(age)
    there = {row[0] for row in made.here}
    return replace(
        made,
        rules=ConflictRules(handlers=handlers, times=replace(times, site=SITE)),
        ages=tuple(ages),
        old_image=OldImage.FULL,
        gone=tuple(key for key in range(5) if key not in there and times.has_tombstones and rng.random() < 0.5),
    )


def _random_row(rng: random.Random, key: int, others: dict[int, Shown], *, is_unique: bool) -> Shown:
    numbers = (rng.choice([None, 5, 6, 7, 8]), rng.choice([None, 1, 2, 3, 100]))
    return (
        key,
        rng.choice([None, "", "x", "y"]),
        rng.choice([None, "p", "q"]),
        *numbers,
        _free(rng, others, is_unique=is_unique),
    )


def _free(rng: random.Random, others: dict[int, Shown], *, is_unique: bool) -> str | None:
    taken = {row[5] for row in others.values()} if is_unique else set()
    return rng.choice([None, *(text for text in ("u1", "u2", "u3", "u4", "u5", "u6", "u7", "u8") if text not in taken)])


def _random_change(
    rng: random.Random, there: dict[int, Shown], keys: int, *, is_unique: bool, is_partial: bool, old_image: OldImage
) -> Lcr:
    key = rng.randrange(keys)
    before = there.get(key)
    if before is None:
        there[key] = _random_row(rng, key, there, is_unique=is_unique)
        return Lcr(new=there[key])
    kind = rng.random()
    if kind < 0.2:
        return Lcr(old=there.pop(key))
    after = list(before)
    for place in rng.sample(range(1, 6), rng.randrange(4)):
        if place == 5:
            others = {k: row for k, row in there.items() if k != key}
            after[5] = _free(rng, others, is_unique=is_unique)
        elif place in NUMBERS:
            after[place] = rng.choice([None, *range(12)]) if place == 3 else int(after[4] or 0) + rng.randrange(-2, 5)
        else:
            after[place] = rng.choice([None, "", "x", "y", "z"])
    free = [k for k in range(keys) if k not in there]
    if kind < 0.3 and free:
        after[0] = rng.choice(free)
        del there[key]
    there[int(after[0])] = tuple(after)
    unchanged = tuple(p for p in (1, 2) if before[p] == after[p] and before[p] is not None and rng.random() < 0.2)
    carried = None
    if is_partial:
        carried = tuple(p for p in range(6) if p == 0 or before[p] != after[p] or rng.random() < 0.6)
        unchanged = ()
    return Lcr(old=before, new=tuple(after), unchanged=unchanged, carried=carried)


def _random_rules(rng: random.Random) -> ConflictRules:
    found: list[ConflictHandler] = []
    for kind in METHODS_OF_KIND:
        if rng.random() < 0.12:
            continue
        if kind != "update_differs":
            found.append(_handler(rng, kind, rng.choice([m for m in METHODS_OF_KIND[kind] if m != "latest_timestamp"])))
            continue
        columns = ["a", "b", "t", "n", "u"]
        rng.shuffle(columns)
        cuts = sorted(rng.sample(range(1, 5), rng.randrange(0, 3)))
        lists = [columns[a:b] for a, b in zip([0, *cuts], [*cuts, 5], strict=True)]
        for listed in lists:
            if rng.random() < 0.05:
                continue
            numbers = _suited("delta", listed)
            others = [m for m in METHODS_OF_KIND[kind] if m not in ("delta", "latest_timestamp") and _suited(m, listed)]
            if numbers and rng.random() < 0.3:
                found.append(handler("delta", *numbers))
                continue
            found.append(_handler(rng, kind, rng.choice(others), listed))
    uncompared: tuple[UncomparedColumns, ...] = ()
    if rng.random() < 0.2:
        uncompared = (
            UncomparedColumns(
                owner="public",
                name="c",
                columns=tuple(rng.sample(["a", "b", "t", "n", "u"], 2)),
                operations=rng.choice([("update",), ("delete",), ("update", "delete")]),
            ),
        )
    return ConflictRules(handlers=tuple(found), uncompared=uncompared, compare_key_only=rng.random() < 0.07)


def _suited(method: str, columns: Sequence[str]) -> list[str]:
    return [column for column in columns if column in _SUITED.get(method, columns)]


def _handler(rng: random.Random, kind: str, method: str, listed: Sequence[str] = ()) -> ConflictHandler:
    by = rng.choice(_suited(method, listed or ("a", "t", "n"))) if method in BY_COLUMN else ""
    priority = rng.choice([(SOURCE, SITE), (SITE, SOURCE)]) if method == "site_priority" else ()
    return handler(method, *listed, by=by, on=kind, priority=priority)


def batches_of(version: TableVersion, history: History, rng: random.Random) -> list[LcrBatch]:
    """Return the history in batches of some transactions each.

    Args:
        version: of the table.
        history: all of it.
        rng: determines how many.
    """
    made: list[LcrBatch] = []
    place = 0
    while place < len(history.changes):
        last = min(place + rng.randrange(1, 7), len(history.changes))
        made.append(history.batch(version, place, last))
        place = last
    return made


@dataclass(frozen=True)
class Left:
    """The result of a history.

    Args:
        errors: transactions in the error queue, with reason, and whether they are only held.
        met: the resolved conflicts.
    """

    errors: list[tuple[int, str, bool]]
    met: list[tuple[Any, ...]]


def one_by_one(destination: Any, topology: str, version: TableVersion, history: History) -> Left:
    """Apply each transaction alone, row by row, in order.

    Args:
        destination: with the table and its rows.
        topology: prepared there.
        version: of the table.
        history: to apply.
    """
    epoch = destination.raise_epoch(topology, topology).epoch
    session = destination.open_session(topology, topology, server=0, epoch=epoch, tag=b"\0")
    fits = TableFits(session.describe, session.missing_alter, history.rules)
    settings = ConflictSettings(apply=topology, source=SOURCE, site=SITE, rules=history.rules)
    holds, errors, met = ErrorHolds(), [], []
    for number in range(len(history.changes)):
        batch = history.batch(version, number, number + 1)
        hashes = hash_batch(batch, fits.fit)
        is_held, conflict = bool(holds.held(hashes)), ""
        if not is_held:
            resolution = Resolution(settings)
            session.begin()
            failure = apply_final(session, batch, fits.fit, resolution)
            if failure is None:
                met += resolution.records
                resolution.write(session)
                session.commit((), 0)
                continue
            session.rollback()
            conflict = failure.conflict_type
        holds.add(number + 1, hashes.stored())
        errors.append((1100 + 10 * number, conflict, is_held))
    session.close()
    return Left(errors=errors, met=_told(met))


def _told(records: Sequence[ConflictRecord]) -> list[tuple[Any, ...]]:
    """Return resolved conflicts in comparable form."""
    return sorted(
        (
            r.commit_scn,
            r.position,
            r.command,
            r.kind,
            r.handler,
            r.outcome,
            tuple(sorted(r.columns)),
            r.applied_columns,
            r.old,
            r.new,
        )
        for r in records
        if r.outcome != "ERROR QUEUE"
    )


def by_engine(destination: Any, topology: str, version: TableVersion, history: History, seed: int) -> Left:
    """Apply it with groups, sets and servers.

    Args:
        destination: with the table and its rows.
        topology: prepared there.
        version: of the table.
        history: to apply.
        seed: determines groups and scheduling.
    """
    rng = random.Random(seed)
    # With a second unique key, which transaction meets a value that only the destination has depends on the order of
    # two independent transactions.
    parallelism = 1 if history.is_unique else rng.randrange(1, 4)
    engine = Engine(
        seed=seed,
        batches=batches_of(version, history, rng),
        destination=destination,
        topology=topology,
        apply=topology,
        parallelism=parallelism,
        group_transactions=rng.randrange(1, 14),
        group_rows=rng.choice([6, 30]),
        conflicts=history.rules,
        site=SITE,
    )
    engine.run()
    errors = sorted(
        (e.transaction_id, e.conflict_type, e.depends_on > 0) for e in destination.errors(topology, topology)
    )
    for server in engine.servers.values():
        server.close()
    return Left(errors=errors, met=_told(destination.conflicts(topology, last=10_000)))


def described(destination: Any, history: History) -> TableVersion:
    """Return the table as its source describes it.

    Args:
        destination: with the table.
        history: defines the old values in the log.
    """
    table = destination.describe("public", "c")
    assert isinstance(table, DestinationTable)
    found = replace(version_of(table), old_image=history.old_image)
    return (
        found
        if history.old_image is OldImage.KEY
        else replace(found, columns=tuple(replace(column, is_key=False) for column in found.columns))
    )
