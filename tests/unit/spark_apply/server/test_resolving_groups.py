"""Groups with conflicts that handlers resolve: the rows that conflict go one by one, all others as sets, in one destination transaction."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from databases import memory_destination
from databases.memory_destination import MemoryDestination
from databases.memory_store import MemoryStore, destination_column
from databases.ports import ConflictRecord
from protos import codec
from rules.conflict_handlers import ConflictHandler, ConflictRules, UncomparedColumns
from spark_apply.groups import GroupAssignment, GroupGo, GroupMode, GroupResult
from spark_apply.server.apply_server import ApplyServer
from spark_apply.server.conflicts import apply_rows
from spark_apply.server.resolution import ConflictSettings, Resolution
from spark_apply.tables import TableFits
from tests.support.apply_engine import APPLY, SOURCE, TOPOLOGY
from tests.support.conflicts import COLUMNS, Lcr, Shown, batch_of, handler, raw, shown
from tests.support.writes import version_of

ALL = ("a", "b", "t", "n", "u")
MAXIMUM = handler("maximum", *ALL, by="t")


class Serving:
    """An apply server at a destination with table `c`."""

    def __init__(self, *handlers: ConflictHandler, rows: list[Shown], uncompared: tuple[UncomparedColumns, ...] = ()) -> None:
        self.store = MemoryStore()
        columns = [destination_column(name, f"pg_catalog.{kind}", equality="bytes") for name, kind in COLUMNS]
        self.store.create_table("public", "c", columns, key=["id"])
        self.store.insert("public", "c", [raw(row) for row in rows])
        self.database = MemoryDestination(store=self.store)
        self.epoch = self.database.raise_epoch(TOPOLOGY, APPLY).epoch
        rules = ConflictRules(handlers=handlers, uncompared=uncompared)
        self.settings = ConflictSettings(apply=APPLY, source=SOURCE, site="b", rules=rules)
        self.server = ApplyServer(
            apply=APPLY, source=SOURCE, decode=codec.decode, encode=codec.encode, error_batches=self.database.error_batches,
            open_session=lambda: self.database.open_session(TOPOLOGY, APPLY, server=0, epoch=self.epoch, tag=b"\0"), conflicts=self.settings,
        )
        self.server.connect()
        table = self.database.describe("public", "c")
        assert table is not None
        self.version = version_of(table)
        self.scn = 100
        self.now = 0.0

    def apply(self, *lcrs: Lcr, below_applied: bool = True) -> GroupResult:
        """One group: each LCR is a transaction."""
        batch = replace(batch_of(self.version, lcrs, each=True, first_scn=self.scn), source=SOURCE)
        self.server.receive(GroupAssignment(
            group=self.scn, attempt=0, mode=GroupMode.SETS, streamed=False, batches=(codec.encode(batch),), after_scn=self.scn - 10,
            through_scn=batch.through_scn,
        ))
        self.server.receive(GroupGo(group=self.scn, attempt=0, low_watermark=self.scn - 10, below_applied=below_applied))
        self.scn = int(batch.through_scn) + 10
        for _ in range(2000):
            done = self.server.step(self.now)
            self.now = done.wake_at or self.now
            if done.reports:
                (result,) = done.reports
                assert isinstance(result, GroupResult)
                return result
        raise AssertionError("no end")

    def rows(self) -> list[Shown]:
        return [shown(row) for row in self.store.rows("public", "c")]

    def history(self) -> tuple[ConflictRecord, ...]:
        return self.database.conflicts(TOPOLOGY, last=10_000)


def row(key: int, value: str = "a", time: int = 10) -> Shown:
    return (key, value, "b", time, 100, "u")


def update(key: int, before: int = 10, time: int = 20) -> Lcr:
    return Lcr(old=row(key, time=before), new=row(key, "lcr", time))


def test_rows_that_conflict_are_resolved_in_the_groups_one_transaction() -> None:
    at = Serving(MAXIMUM, rows=[row(k, time=15 if k % 10 == 0 else 10) for k in range(100)])
    result = at.apply(*[update(k) for k in range(100)])
    assert (result.statistics.transactions, result.statistics.commits, result.statistics.rollbacks) == (100, 1, 1)
    assert at.store.commit_count == 1
    assert at.rows() == [row(k, "lcr", 20) for k in range(100)]
    assert [(record.kind, record.outcome, record.transaction_id) for record in at.history()] == [
        ("update_differs", "LCR APPLIED", 1100 + 10 * k) for k in range(0, 100, 10)
    ]


def test_a_group_behind_one_with_conflicts_is_looked_at_first_and_not_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Serving(MAXIMUM, rows=[row(k, time=15 if k < 2 else 10) for k in range(20)])
    assert at.apply(*[update(k) for k in range(0, 20, 2)]).statistics.rollbacks == 1
    assert at.apply(*[update(k) for k in range(1, 20, 2)]).statistics.rollbacks == 0
    assert at.store.commit_count == 2
    # No conflict: it is written as sets, and the next one is not looked at any more.
    looked: list[object] = []
    conflicting = memory_destination.conflicting
    monkeypatch.setattr(memory_destination, "conflicting", lambda found, write: looked.append(write) or conflicting(found, write))
    for before in (20, 30, 40):
        result = at.apply(*[Lcr(old=row(k, "lcr", before), new=row(k, "lcr", before + 10)) for k in range(20)])
        assert (result.statistics.rollbacks, len(looked)) == (0, 1)
    assert at.rows() == [row(k, "lcr", 50) for k in range(20)]


def test_tables_without_handlers_are_never_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Serving(replace(MAXIMUM, name="other"), rows=[row(1), row(2, time=15)])
    monkeypatch.setattr("databases.memory_destination.conflicting", lambda found, write: pytest.fail("looked at"))
    assert len(at.apply(update(1), update(2)).errors) == 1


def test_resolving_does_not_wait_for_what_is_below_but_the_error_queue_does() -> None:
    at = Serving(MAXIMUM, rows=[row(1, time=15)])
    assert at.apply(update(1), below_applied=False).statistics.transactions == 1
    assert len(at.history()) == 1


def test_a_conflict_that_nobody_resolves_goes_alone_and_the_others_stay_resolved() -> None:
    at = Serving(MAXIMUM, rows=[row(k, time=15) for k in range(8)] + [row(8, time=20)])
    result = at.apply(*[update(k) for k in range(9)])
    assert [error.conflict_type for error in result.errors] == ["update_differs"]
    assert at.rows() == [*[row(k, "lcr", 20) for k in range(8)], row(8, time=20)]
    assert sorted(record.outcome for record in at.history()) == ["ERROR QUEUE", *["LCR APPLIED"] * 8]
    (error,) = at.database.errors(TOPOLOGY, APPLY)
    assert [record.error_number for record in at.history() if record.outcome == "ERROR QUEUE"] == [error.number]


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_whose_answer_is_lost_resolves_once(committed: bool) -> None:
    at = Serving(handler("delta", "n"), rows=[row(1), (2, "a", "b", 10, 130, "u")])
    first = at.apply(update(1))
    assert first.statistics.commits == 1
    at.store.lose_next_commit_answer(committed=committed)
    at.apply(Lcr(old=row(2), new=(2, "a", "b", 10, 95, "u")))
    assert at.rows()[1] == (2, "a", "b", 10, 125, "u")
    assert len(at.history()) == 1


def test_a_column_that_is_not_compared_is_set_only_by_rows_that_changed_it() -> None:
    """A set compares and sets what any of its rows changed: without the comparison that would be wrong."""
    off = UncomparedColumns(owner="public", name="c", columns=("b",))
    at = Serving(rows=[row(1), (2, "a", "only here", 10, 100, "u")], uncompared=(off,))
    at.apply(Lcr(old=row(1), new=(1, "a", "lcr", 10, 100, "u")), Lcr(old=row(2), new=(2, "lcr", "b", 10, 100, "u")))
    assert at.rows() == [(1, "a", "lcr", 10, 100, "u"), (2, "lcr", "only here", 10, 100, "u")]
    assert at.history() == ()


HANDLERS = (
    (MAXIMUM, handler("maximum", by="t", on="insert_exists"), handler("discard", on="delete_missing"), handler("overwrite", on="update_missing"),
     handler("overwrite", on="delete_differs")),
    (handler("minimum", "a", "t", by="t"), handler("delta", "n"), handler("overwrite", "b", "u")),
    (handler("discard"), handler("discard", on="insert_exists"), handler("discard", on="update_missing")),
    (handler("site_priority", priority=(SOURCE, "b")), handler("overwrite", on="insert_exists"), handler("discard", on="delete_differs")),
)


def _random_lcrs(rng: random.Random, keys: int, count: int) -> list[Lcr]:
    """A source's valid history over few keys, one LCR a transaction."""
    there = {k: row(k) for k in range(0, keys, 2)}
    made = []
    for number in range(count):
        key = rng.randrange(keys)
        before = there.get(key)
        if before is None:
            there[key] = (key, f"i{number}", "b", rng.randrange(30), 100, "u")
            made.append(Lcr(new=there[key]))
        elif rng.random() < 0.2:
            made.append(Lcr(old=there.pop(key)))
        else:
            after = list(before)
            for column in rng.sample(range(1, 6), rng.randrange(1, 4)):
                after[column] = rng.randrange(30) if column in (3, 4) else f"{rng.randrange(9)}"
            there[key] = tuple(after)
            made.append(Lcr(old=before, new=there[key]))
    return made


@given(st.integers(0, 2**32), st.sampled_from(range(len(HANDLERS))))
def test_groups_end_as_row_by_row_does_with_the_same_history(seed: int, chosen: int) -> None:
    rng = random.Random(seed)
    here: list[Shown] = [row(k, rng.choice("ab"), rng.choice([10, 15])) for k in range(5) if rng.random() < 0.7]
    lcrs = _random_lcrs(rng, 6, 16)
    groups, rows = Serving(*HANDLERS[chosen], rows=here), Serving(*HANDLERS[chosen], rows=here)
    start = 0
    while start < len(lcrs):
        size = rng.randrange(1, 12)
        groups.apply(*lcrs[start : start + size])
        start += size
    if groups.database.errors(TOPOLOGY, APPLY):
        return  # what depends on an error transaction joins it: test_apply_server and test_engine have that
    session = rows.database.open_session(TOPOLOGY, APPLY, server=1, epoch=rows.epoch, tag=b"\0")
    fits = TableFits(session.describe, session.missing_alter, rows.settings.rules)
    for number, lcr in enumerate(lcrs):
        resolution = Resolution(rows.settings)
        session.begin()
        assert apply_rows(session, batch_of(rows.version, [lcr], first_scn=100 + 10 * number), fits.fit, resolution) is None
        resolution.write(session)
        session.commit((), 0)  # type: ignore[arg-type]
    assert groups.rows() == rows.rows()

    def told(at: Serving) -> list[tuple]:
        return sorted((r.commit_scn, r.kind, r.outcome, r.columns, r.applied_columns, r.current) for r in at.history())

    assert told(groups) == told(rows)
