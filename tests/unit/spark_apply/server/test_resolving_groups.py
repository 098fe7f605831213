"""Groups with conflicts that handlers resolve: conflicting rows are applied one by one, all others as sets, in one
destination transaction.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.databases.memory import rows as memory_rows
from headrace.databases.memory.conflicts import conflicting
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.databases.ports import ConflictRecord
from headrace.rules.conflict_handlers import ConflictHandler, ConflictRules, UncomparedColumns
from protos import codec
from spark_apply.conversation.groups import (
    Failure,
    GroupGo,
    GroupMode,
    GroupPart,
    GroupResult,
    GroupRetry,
    ServerMessage,
)
from spark_apply.server.apply_server import ApplyServer
from spark_apply.sets.conflict_settings import ConflictSettings
from spark_apply.sets.conflicts import apply_rows
from spark_apply.sets.resolution import Resolution
from spark_apply.tables.fits import TableFits
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY, Engine, arm
from tests.support.apply.groups import error_group, streamed_group, whole_group
from tests.support.histories.conflicts import COLUMNS, Lcr, Shown, batch_of, handler, raw, shown
from tests.support.session.noted import noted
from tests.support.session.seeds import scaled, seeds
from tests.support.values.writes import version_of

ALL = ("a", "b", "t", "n", "u")
MAXIMUM = handler("maximum", *ALL, by="t")


class Serving:
    """An apply server at a destination with table `c`."""

    def __init__(
        self,
        *handlers: ConflictHandler,
        rows: list[Shown],
        uncompared: tuple[UncomparedColumns, ...] = (),
        not_null: str = "",
    ) -> None:
        self.store = MemoryStore()
        columns = [
            destination_column(name, f"pg_catalog.{kind}", not_null=name == not_null, equality="bytes")
            for name, kind in COLUMNS
        ]
        self.store.create_table("public", "c", columns, key=["id"])
        self.store.insert("public", "c", [raw(row) for row in rows])
        self.database = MemoryDestination(store=self.store)
        self.epoch = self.database.raise_epoch(TOPOLOGY, APPLY).epoch
        rules = ConflictRules(handlers=handlers, uncompared=uncompared)
        self.settings = ConflictSettings(apply=APPLY, source=SOURCE, site="b", rules=rules)
        self.server = ApplyServer(
            apply=APPLY,
            source=SOURCE,
            decode=codec.decode,
            encode=codec.encode,
            error_batches=self.database.error_batches,
            open_session=lambda: self.database.open_session(TOPOLOGY, APPLY, server=0, epoch=self.epoch, tag=b"\0"),
            conflicts=self.settings,
        )
        self.server.connect()
        table = self.database.describe("public", "c")
        assert table is not None
        self.version = version_of(table)
        self.scn = 100
        self.now = 0.0

    def apply(self, *lcrs: Lcr, below_applied: bool = True) -> GroupResult:
        """Apply one group in which each LCR is a transaction."""
        return self._apply(lcrs, each=True, below_applied=below_applied)

    def apply_as_one(self, *lcrs: Lcr) -> GroupResult:
        """Apply one group of one transaction."""
        return self._apply(lcrs, each=False, below_applied=True)

    def _apply(self, lcrs: Sequence[Lcr], *, each: bool, below_applied: bool) -> GroupResult:
        batch = replace(batch_of(self.version, lcrs, each=each, first_scn=self.scn), source=SOURCE)
        self.server.receive(
            whole_group(codec.encode(batch), group=self.scn, after_scn=self.scn - 10, through_scn=batch.through_scn)
        )
        self.server.receive(
            GroupGo(group=self.scn, attempt=0, low_watermark=self.scn - 10, below_applied=below_applied)
        )
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


def test_group_after_a_conflict_is_checked_first_and_not_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Serving(MAXIMUM, rows=[row(k, time=15 if k < 2 else 10) for k in range(20)])
    assert at.apply(*[update(k) for k in range(0, 20, 2)]).statistics.rollbacks == 1
    assert at.apply(*[update(k) for k in range(1, 20, 2)]).statistics.rollbacks == 0
    assert at.store.commit_count == 2
    # No conflict: it is written as sets, and the next group is not checked first.
    looked: list[object] = []
    monkeypatch.setattr(
        memory_rows,
        "conflicting",
        lambda found, write, table: (noted(looked, write), conflicting(found, write, table))[1],
    )
    for before in (20, 30, 40):
        result = at.apply(*[Lcr(old=row(k, "lcr", before), new=row(k, "lcr", before + 10)) for k in range(20)])
        assert (result.statistics.rollbacks, len(looked)) == (0, 1)
    assert at.rows() == [row(k, "lcr", 50) for k in range(20)]


def test_tables_without_handlers_are_never_checked_for_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Serving(replace(MAXIMUM, name="other"), rows=[row(1), row(2, time=15)])
    monkeypatch.setattr("headrace.databases.memory.rows.conflicting", lambda *given: pytest.fail("looked at"))
    assert len(at.apply(update(1), update(2)).errors) == 1


def test_resolving_does_not_wait_for_groups_below_but_queueing_does() -> None:
    at = Serving(MAXIMUM, rows=[row(1, time=15)])
    assert at.apply(update(1), below_applied=False).statistics.transactions == 1
    assert len(at.history()) == 1


def test_unresolved_conflict_is_queued_alone_and_others_stay_resolved() -> None:
    at = Serving(MAXIMUM, rows=[row(k, time=15) for k in range(8)] + [row(8, time=20)])
    result = at.apply(*[update(k) for k in range(9)])
    assert [error.conflict_type for error in result.errors] == ["update_differs"]
    assert at.rows() == [*[row(k, "lcr", 20) for k in range(8)], row(8, time=20)]
    assert sorted(record.outcome for record in at.history()) == ["ERROR QUEUE", *["LCR APPLIED"] * 8]
    (error,) = at.database.errors(TOPOLOGY, APPLY)
    assert [record.error_number for record in at.history() if record.outcome == "ERROR QUEUE"] == [error.number]


@pytest.mark.parametrize("committed", [True, False])
def test_commit_with_a_lost_answer_resolves_conflicts_once(committed: bool) -> None:
    at = Serving(handler("delta", "n"), rows=[row(1), (2, "a", "b", 10, 130, "u")])
    first = at.apply(update(1))
    assert first.statistics.commits == 1
    at.store.lose_next_commit_answer(committed=committed)
    at.apply(Lcr(old=row(2), new=(2, "a", "b", 10, 95, "u")))
    assert at.rows()[1] == (2, "a", "b", 10, 125, "u")
    assert len(at.history()) == 1


def test_a_column_that_is_not_compared_is_set_only_by_rows_that_changed_it() -> None:
    """A set compares and sets every column that any of its rows changed: without the comparison that would be wrong."""
    off = UncomparedColumns(owner="public", name="c", columns=("b",))
    at = Serving(rows=[row(1), (2, "a", "only here", 10, 100, "u")], uncompared=(off,))
    at.apply(Lcr(old=row(1), new=(1, "a", "lcr", 10, 100, "u")), Lcr(old=row(2), new=(2, "lcr", "b", 10, 100, "u")))
    assert at.rows() == [(1, "a", "lcr", 10, 100, "u"), (2, "lcr", "only here", 10, 100, "u")]
    assert at.history() == ()


def test_row_with_a_conflicting_update_is_not_deleted_by_a_later_delete() -> None:
    """The net change of both is a DELETE: it must keep the UPDATE's comparison."""
    off = UncomparedColumns(owner="public", name="c", columns=("b",), operations=("delete",))
    at = Serving(rows=[row(1), (2, "a", "only here", 10, 100, "u")], uncompared=(off,))
    changes = [Lcr(old=row(k), new=(k, "a", "lcr", 10, 100, "u")) for k in (1, 2)]
    result = at.apply(*changes, *[Lcr(old=change.new) for change in changes])
    assert [error.conflict_type for error in result.errors if error.depends_on == 0] == ["update_differs"]
    assert at.rows() == [(2, "a", "only here", 10, 100, "u")]


HANDLERS = (
    (
        MAXIMUM,
        handler("maximum", by="t", on="insert_exists"),
        handler("discard", on="delete_missing"),
        handler("overwrite", on="update_missing"),
        handler("overwrite", on="delete_differs"),
    ),
    (handler("minimum", "a", "t", by="t"), handler("delta", "n"), handler("overwrite", "b", "u")),
    (handler("discard"), handler("discard", on="insert_exists"), handler("discard", on="update_missing")),
    (
        handler("site_priority", priority=(SOURCE, "b")),
        handler("overwrite", on="insert_exists"),
        handler("discard", on="delete_differs"),
    ),
)


def _random_lcrs(rng: random.Random, keys: int, count: int) -> list[Lcr]:
    """Return a valid history of a source over few keys, one LCR per transaction."""
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


def _one_by_one(at: Serving, lcrs: list[Lcr]) -> None:
    """Apply each LCR as a transaction, in order, row by row: the reference for all other results."""
    session = at.database.open_session(TOPOLOGY, APPLY, server=1, epoch=at.epoch, tag=b"\0")
    fits = TableFits(session.describe, session.missing_alter, at.settings.rules)
    for number, lcr in enumerate(lcrs):
        resolution = Resolution(at.settings)
        session.begin()
        assert (
            apply_rows(session, batch_of(at.version, [lcr], first_scn=100 + 10 * number), fits.fit, resolution) is None
        )
        resolution.write(session)
        session.commit((), 0)


def _told(at: Serving) -> list[tuple[Any, ...]]:
    return sorted((r.commit_scn, r.kind, r.outcome, r.columns, r.applied_columns, r.current) for r in at.history())


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("deaths while conflicts are resolved", test=3, soak=60))
def test_conflicts_are_resolved_exactly_once_when_processes_die(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums show single application: parallel servers are killed before and after commits, and drivers restart."""
    rng = random.Random(seed)
    here: list[Shown] = [(k, "a", "b", 10, rng.randrange(500), "u") for k in range(8)]
    there = {k: (k, "a", "b", 10, 100, "u") for k in range(8)}
    lcrs = []
    for number in range(60):
        old = there[rng.randrange(8)]
        there[int(old[0] or 0)] = (old[0], f"{number}", "b", 10, int(old[4] or 0) + rng.randrange(1, 9), "u")
        lcrs.append(Lcr(old=old, new=there[int(old[0] or 0)]))
    handlers = (handler("delta", "n"), handler("overwrite", "a"))
    crashed, serial = Serving(*handlers, rows=here), Serving(*handlers, rows=here)
    batches = [
        replace(
            batch_of(crashed.version, lcrs[k : k + 6], each=True, first_scn=100 + 10 * k),
            source=SOURCE,
            previous_scn=100 + 10 * k - 10 if k else 0,
        )
        for k in range(0, 60, 6)
    ]
    arm(monkeypatch, rng, 0.1)
    engine = Engine(
        seed=seed,
        batches=batches,
        destination=crashed.database,
        parallelism=3,
        group_transactions=5,
        crash=0.01,
        conflicts=crashed.settings.rules,
        site="b",
        on_commit_lost=lambda dice: crashed.store.lose_next_commit_answer(committed=dice.random() < 0.5),
    )
    engine.run()
    assert sum(engine.crashes.values()) > 0
    monkeypatch.undo()
    _one_by_one(serial, lcrs)
    assert crashed.rows() == serial.rows()
    assert _told(crashed) == _told(serial)
    assert crashed.database.errors(TOPOLOGY, APPLY) == ()


@pytest.mark.long
@pytest.mark.seeded
@settings(max_examples=scaled(30, 600))
@given(st.integers(0, 2**32), st.sampled_from(range(len(HANDLERS))))
def test_groups_equal_row_by_row_application_of_the_same_history(seed: int, chosen: int) -> None:
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
        return  # dependents of an error transaction join it; test_apply_server and test_engine cover that
    _one_by_one(rows, lcrs)
    assert groups.rows() == rows.rows()
    assert _told(groups) == _told(rows)


# --------------------------------------------------------------------------- large transactions, the error queue


def _streamed(
    at: Serving, parts: list[list[Lcr]], *, mode: GroupMode = GroupMode.SETS, failure: Failure | None = None
) -> list[ServerMessage]:
    """Apply one transaction that arrives in parts; return the server's answers."""
    at.server.receive(streamed_group(after_scn=90, mode=mode, failure=failure))
    at.server.receive(GroupGo(group=1, attempt=0, low_watermark=90, below_applied=True))
    found: list[ServerMessage] = []
    position = 0
    for number, lcrs in enumerate(parts):
        is_last = number == len(parts) - 1
        batch = replace(batch_of(at.version, lcrs), source=SOURCE, first_position=position, continues=number > 0)
        if not is_last:
            batch = replace(
                batch,
                through_scn=batch.previous_scn,
                transactions=replace(batch.transactions, commit_scn=batch.transactions.commit_scn * 0),
            )
        position += len(lcrs)
        at.server.receive(
            GroupPart(
                group=1,
                attempt=0,
                part=number,
                batch=codec.encode(batch),
                is_last=is_last,
                through_scn=100 if is_last else 0,
            )
        )
        for _ in range(3):
            found += at.server.step(at.now).reports
    return found


def test_a_large_transaction_resolves_its_conflicts_part_by_part() -> None:
    at = Serving(MAXIMUM, rows=[row(k, time=15 if k % 3 == 0 else 10) for k in range(9)])
    answers = _streamed(at, [[update(k) for k in range(start, start + 3)] for start in (0, 3, 6)])
    assert isinstance(answers[-1], GroupResult)
    assert at.rows() == [row(k, "lcr", 20) for k in range(9)]
    assert at.store.commit_count == 1
    assert [(record.position, record.outcome) for record in at.history()] == [
        (0, "LCR APPLIED"),
        (3, "LCR APPLIED"),
        (6, "LCR APPLIED"),
    ]


def test_failed_large_transaction_records_its_conflict_with_the_error() -> None:
    at = Serving(MAXIMUM, rows=[row(k, time=15 if k == 0 else 20 if k == 4 else 10) for k in range(6)])
    parts = [[update(k) for k in range(start, start + 3)] for start in (0, 3)]
    retry = _streamed(at, parts)[-1]
    assert isinstance(retry, GroupRetry)
    assert retry.failure is not None
    assert (retry.failure.position, retry.failure.conflict_type, at.history()) == (4, "update_differs", ())
    result = _streamed(at, parts, mode=GroupMode.ERROR_QUEUE, failure=retry.failure)[-1]
    assert isinstance(result, GroupResult)
    (error,) = at.database.errors(TOPOLOGY, APPLY)
    assert [(record.position, record.outcome, record.error_number, record.columns) for record in at.history()] == [
        (4, "ERROR QUEUE", error.number, ("t",))
    ]


REFUSED = (Lcr(old=row(1), new=(1, None, "b", 10, 100, "u")), Lcr(new=(9, None, "b", 10, 100, "u")))


@pytest.mark.parametrize("refused", REFUSED, ids=["update", "insert"])
def test_resolved_conflict_is_not_recorded_when_a_later_row_is_refused(refused: Lcr) -> None:
    """The destination refuses the NULL, which is no conflict. The session then accepts only a rollback, no history."""
    at = Serving(MAXIMUM, rows=[row(0, time=15), row(1)], not_null="a")
    retry = _streamed(at, [[update(0), refused]])[-1]
    assert isinstance(retry, GroupRetry)
    assert retry.failure is not None
    assert (retry.failure.position, retry.failure.conflict_type) == (1, "")
    assert (at.rows(), at.history()) == ([row(0, time=15), row(1)], ())


@pytest.mark.parametrize("refused", REFUSED, ids=["update", "insert"])
def test_transaction_with_a_resolved_conflict_and_a_refused_row_is_queued(refused: Lcr) -> None:
    at = Serving(MAXIMUM, rows=[row(0, time=15), row(1), row(2, time=15)], not_null="a")
    at.apply_as_one(update(0), refused)
    (error,) = at.database.errors(TOPOLOGY, APPLY)
    assert (at.rows(), at.history()) == ([row(0, time=15), row(1), row(2, time=15)], ())
    result = _execute(at, error.number)
    assert result.failure is not None
    assert (result.failure.position, result.failure.conflict_type) == (1, "")
    assert at.history() == ()


def _execute(at: Serving, number: int) -> GroupResult:
    at.server.receive(error_group(number, group=7, scn=at.scn))
    at.server.receive(GroupGo(group=7, attempt=0, low_watermark=at.scn, below_applied=True))
    (result,) = at.server.step(at.now).reports
    assert isinstance(result, GroupResult)
    return result


def test_an_error_transaction_is_executed_with_the_handlers() -> None:
    """The resolution column was equal: an operator changes it so that the handler can decide."""
    at = Serving(MAXIMUM, rows=[row(1, time=20)])
    (error,) = at.apply(update(1)).errors
    at.store.tables["public", "c"].put(1, raw(row(1, time=15)))
    assert _execute(at, error.number).failure is None
    assert at.rows() == [row(1, "lcr", 20)]
    assert [record.outcome for record in at.history()] == ["ERROR QUEUE", "LCR APPLIED"]
