"""Transactions with DDL LCRs: rows, structure, history and progress in one commit, or nothing, whatever fails.

Longer than 500 lines: every case is one more stream of parts to the same server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.databases.memory.destination import MemorySession
from headrace.databases.memory.store import destination_column
from headrace.databases.ports import DdlOutcomeKind, Write
from headrace.lcr.batch import Command, OldImage
from headrace.lcr.ddl import DdlChange
from protos import codec
from spark_apply.conversation.groups import (
    Failure,
    GroupAbandon,
    GroupAbandoned,
    GroupGo,
    GroupMode,
    GroupPart,
    GroupResult,
    GroupRetry,
    RetryReason,
)
from tests.support.apply.apply_engine import APPLY, TOPOLOGY
from tests.support.apply.groups import streamed_group, whole_group
from tests.support.apply.streaming_server import COMMIT_SCN, ORDER_SCN, Piece, StreamingServer, parts_of
from tests.support.histories.apply_history import Change, Table, Transaction, batch_of
from tests.support.values.ddl_changes import column, ddl_change, structure

OLD = Table(11, "plain", ("id", "v"), OldImage.KEY)
NEW = Table(11, "plain", ("id", "v", "c"), OldImage.KEY)
NUMBERS = {"id": 1, "v": 2, "c": 3, "w": 4}  # of the columns at the source


def k(number: int) -> bytes:
    return number.to_bytes(4, "big")


def insert(table: Table, key: int) -> Change:
    return Change(table, Command.INSERT, new=(k(key), *[b"x"] * (len(table.columns) - 1)))


def update(table: Table, key: int) -> Change:
    old, new = ((k(key), *[value] * (len(table.columns) - 1)) for value in (b"x", b"y"))
    return Change(table, Command.UPDATE, old=old, new=new)


def missing(table: Table) -> Change:
    """Return an update that finds no row."""
    values = [b"y"] * (len(table.columns) - 1)
    return Change(table, Command.UPDATE, old=(k(99), *values), new=(k(99), *values))


def structure_of(table: Table, **attributes: Any) -> dict[str, Any]:
    columns = [
        column(NUMBERS[name], name, "text" if place else "int4", not_null=not place)
        for place, name in enumerate(table.columns)
    ]
    return structure(*columns, owner="public", name=table.name, **attributes)


def change_of(before: Table = OLD, after: Table = NEW, **attributes: Any) -> DdlChange:
    return ddl_change(structure_of(before), structure_of(after), relation=11, **attributes)


class Serving(StreamingServer):
    """A server at a destination with table `plain` in its old form."""

    def __init__(self) -> None:
        super().__init__(OLD)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.store.tables["public", "plain"].table.columns)

    def keys(self) -> list[int]:
        return [int.from_bytes(row[0] or b"", "big") for row in self.store.rows("public", "plain")]

    def outcomes(self) -> list[tuple[DdlOutcomeKind, int]]:
        """Return the history: what became of each DDL LCR, and its position."""
        return [(each.outcome.kind, each.place.position) for each in self.store.ddl_history]

    def low_watermark(self) -> int:
        progress = self.database.progress(TOPOLOGY, APPLY)
        assert progress is not None
        return max(progress.low_watermark, *(each.through for each in progress.above), 0)

    def is_as_before(self) -> bool:
        return (self.columns, self.keys(), self.outcomes(), self.store.commit_count) == (OLD.columns, [], [], 0)


ROWS_AND_DDL: tuple[Piece, ...] = ([insert(OLD, 1)], change_of(), [insert(NEW, 2)])


# --------------------------------------------------------------------------- one commit


def test_rows_and_ddl_are_one_destination_transaction() -> None:
    at = Serving()
    seen: list[int] = []
    result = at.stream(*ROWS_AND_DDL, before_part=lambda _: seen.append(at.store.commit_count))
    assert isinstance(result, GroupResult)
    assert (seen, at.store.commit_count) == ([0, 0, 0], 1)
    assert at.store.rows("public", "plain") == [(k(1), b"x", None), (k(2), b"x", b"x")]
    assert (at.columns, at.low_watermark()) == (NEW.columns, COMMIT_SCN)
    assert at.outcomes() == [(DdlOutcomeKind.APPLIED, 1)]
    statistics = result.statistics
    assert (statistics.transactions, statistics.rows, statistics.rows_written) == (1, 2, 2)
    assert (statistics.ddl_applied, statistics.ddl_passed_over, statistics.ddl_not_applied) == (1, 0, 0)


def test_transaction_may_be_a_ddl_lcr_alone() -> None:
    at = Serving()
    assert isinstance(at.stream(change_of()), GroupResult)
    assert (at.columns, at.outcomes(), at.low_watermark()) == (NEW.columns, [(DdlOutcomeKind.APPLIED, 0)], COMMIT_SCN)


def test_made_change_is_passed_over() -> None:
    at = Serving()
    NEW.create(at.store)
    result = at.stream(*ROWS_AND_DDL)
    assert isinstance(result, GroupResult)
    assert (at.outcomes(), at.keys()) == ([(DdlOutcomeKind.PASSED_OVER, 1)], [1, 2])
    assert result.statistics.ddl_passed_over == 1


def test_rows_behind_ddl_that_is_not_replicated_wait_for_the_alter() -> None:
    at = Serving()
    dropped = ddl_change(structure_of(OLD), None, relation=11, tag="DROP TABLE")
    result = at.stream([insert(OLD, 1)], dropped)
    assert isinstance(result, GroupResult)
    assert (at.outcomes(), result.statistics.ddl_not_applied) == ([(DdlOutcomeKind.NOT_APPLIED, 1)], 1)
    at = Serving()
    retry = at.stream(dropped, [insert(NEW, 2)])
    assert isinstance(retry, GroupRetry)
    assert at.server.unfit is not None
    assert "ADD COLUMN c" in at.server.unfit.hint


@pytest.mark.parametrize("committed", [True, False])
def test_ddl_with_a_lost_commit_answer_is_done_exactly_once(committed: bool) -> None:
    at = Serving()
    at.store.lose_next_commit_answer(committed=committed)
    last = at.stream(*ROWS_AND_DDL, steps=9)
    if not committed:
        assert isinstance(last, GroupRetry)
        assert (last.reason, last.failure, at.is_as_before()) == (RetryReason.REPLAY, None, True)
        last = at.stream(*ROWS_AND_DDL, attempt=1)
    assert isinstance(last, GroupResult)
    assert (at.keys(), at.outcomes(), at.store.commit_count) == ([1, 2], [(DdlOutcomeKind.APPLIED, 1)], 1)


_TABLES = [OLD, NEW, Table(11, "plain", ("id", "c"), OldImage.KEY), Table(11, "plain", ("id", "w", "c"), OldImage.KEY)]


@st.composite
def transactions_with_ddl(draw: st.DrawFn) -> list[Piece]:
    """Draw a transaction that changes the table's form some times, with rows around that."""
    table, pieces, key = OLD, list[Piece](), 0
    for _ in range(draw(st.integers(1, 3))):
        after = draw(st.sampled_from([each for each in _TABLES if each is not table]))
        for is_ddl in draw(st.sampled_from([[True], [False, True], [True, False], [False, True, False]])):
            if is_ddl:
                pieces.append(change_of(table, after))
                table = after
                continue
            key += 1
            pieces.append([insert(table, key)])
    return pieces


@pytest.mark.seeded
@given(
    transactions_with_ddl(),
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from(["away", "lost", "made"])), max_size=3),
)
def test_transaction_with_ddl_is_applied_once_whatever_breaks(
    pieces: list[Piece], breaks: Sequence[tuple[int, str]]
) -> None:
    expected = Serving()
    assert isinstance(expected.stream(*pieces), GroupResult)
    at = Serving()
    for attempt, (part, how) in enumerate([*breaks, (99, "")]):

        def break_it(number: int, part: int = part, how: str = how) -> None:
            at.store.is_reachable = not (number == part and how == "away")
            if number == part and how in {"lost", "made"} and not at.store.lost_answers:
                at.store.lose_next_commit_answer(committed=how == "made")

        before = at.store.commit_count
        last = at.stream(*pieces, before_part=break_it, attempt=attempt, steps=1 if how == "away" else 9)
        at.store.is_reachable = True
        at.work()
        if isinstance(last, GroupResult):
            break
        assert at.store.commit_count == before == 0
        assert at.is_as_before()
    assert isinstance(last, GroupResult)
    assert at.store.rows("public", "plain") == expected.store.rows("public", "plain")
    assert (at.columns, at.outcomes(), at.low_watermark()) == (expected.columns, expected.outcomes(), COMMIT_SCN)
    assert at.store.commit_count == 1


# --------------------------------------------------------------------------- refused


def conflicting(at: Serving) -> None:
    """Give the destination a column of another type."""
    names = ("id", "v", "c")
    types = ("int4", "text", "int8")
    columns = [destination_column(name, f"pg_catalog.{kind}") for name, kind in zip(names, types, strict=True)]
    at.store.create_table("public", "plain", columns, key=["id"])


def test_refused_ddl_pauses_and_writes_nothing() -> None:
    at = Serving()
    conflicting(at)
    retry = at.stream([insert(OLD, 1)], change_of(), [insert(NEW, 2)])
    assert isinstance(retry, GroupRetry)
    assert (retry.reason, retry.failure) == (RetryReason.REPLAY, None)
    assert at.server.state == "PAUSED: WAITING FOR ALTER"
    assert at.server.unfit is not None
    assert "column c is neither as before" in at.server.unfit.message
    assert "ddl_skips" in at.server.unfit.hint
    assert (at.keys(), at.outcomes(), at.store.commit_count) == ([], [], 0)
    assert at.store.tables["public", "plain"].table.columns[2].type_name == "pg_catalog.int8"


def test_refused_ddl_is_applied_when_the_cause_is_repaired() -> None:
    at = Serving()
    conflicting(at)
    at.stream(*ROWS_AND_DDL)
    OLD.create(at.store)
    at.work()
    assert isinstance(at.stream(*ROWS_AND_DDL, attempt=1), GroupResult)
    assert (at.columns, at.keys(), at.server.unfit) == (NEW.columns, [1, 2], None)
    assert at.outcomes() == [(DdlOutcomeKind.APPLIED, 1)]


def test_skipped_ddl_is_recorded_and_its_wish_is_used_up() -> None:
    at = Serving()
    conflicting(at)
    skip = (TOPOLOGY, APPLY, ORDER_SCN, 1)
    at.store.ddl_skips |= {skip, (TOPOLOGY, APPLY, ORDER_SCN, 2), (TOPOLOGY, "other", ORDER_SCN, 1)}
    at.store.lose_next_commit_answer(committed=False)
    pieces: list[Piece] = [[insert(OLD, 1)], change_of(), [insert(OLD, 2)]]
    assert isinstance(at.stream(*pieces, steps=9), GroupRetry)
    assert skip in at.store.ddl_skips
    result = at.stream(*pieces, attempt=1)
    assert isinstance(result, GroupResult)
    assert (at.outcomes(), at.keys()) == ([(DdlOutcomeKind.SKIPPED, 1)], [1, 2])
    assert at.store.ddl_skips == {(TOPOLOGY, APPLY, ORDER_SCN, 2), (TOPOLOGY, "other", ORDER_SCN, 1)}
    assert result.statistics.ddl_not_applied == 0  # that was intended


# --------------------------------------------------------------------------- the error queue

FAILING: tuple[Piece, ...] = ([insert(OLD, 1)], change_of(), [insert(NEW, 2), missing(NEW)])


def failed(at: Serving) -> Failure:
    """Stream a transaction whose row behind the DDL fails; return the failure."""
    retry = at.stream(*FAILING)
    assert isinstance(retry, GroupRetry)
    assert retry.failure is not None
    return retry.failure


def queued(at: Serving) -> int:
    """Put that transaction into the error queue; return its number."""
    result = at.stream(*FAILING, attempt=1, mode=GroupMode.ERROR_QUEUE, failure=failed(at))
    assert isinstance(result, GroupResult)
    assert at.low_watermark() == COMMIT_SCN
    return result.errors[0].number


def mend(at: Serving) -> None:
    at.store.insert("public", "plain", [(k(99), b"mended")])


def test_row_that_fails_behind_ddl_takes_all_of_it_into_the_queue() -> None:
    at = Serving()
    failure = failed(at)
    assert (failure.position, failure.conflict_type) == (3, "update_missing")
    assert at.is_as_before()
    number = queued(at)
    assert (at.columns, at.keys(), at.outcomes()) == (OLD.columns, [], [])
    parts = [codec.decode(data) for data in at.database.error_batches(number)]
    assert [part.row_count for part in parts] == [1, 1, 2]
    assert parts[1].ddl == change_of()
    (error,) = at.database.errors(TOPOLOGY, APPLY)
    assert (error.row_count, error.failed_position, error.commit_scn) == (4, 3, COMMIT_SCN)


def test_queued_ddl_holds_its_whole_table() -> None:
    at = Serving()
    queued(at)
    ((_, hashes),) = at.database.error_key_hashes(TOPOLOGY, APPLY)
    assert np.unique(hashes[(hashes & np.uint64(3)) == np.uint64(3)]).shape == (1,)


def test_execution_applies_ddl_and_rows_together() -> None:
    at = Serving()
    number = queued(at)
    mend(at)
    before = at.store.commit_count
    result = at.execute(number)
    assert result.failure is None
    assert at.store.commit_count == before + 1
    assert at.store.rows("public", "plain") == [(k(1), b"x", None), (k(2), b"x", b"x"), (k(99), b"y", b"y")]
    assert (at.columns, at.outcomes()) == (NEW.columns, [(DdlOutcomeKind.APPLIED, 1)])
    assert not at.database.errors(TOPOLOGY, APPLY)
    assert (result.statistics.rows, result.statistics.ddl_applied) == (3, 1)


def test_executed_ddl_that_is_older_than_the_copy_is_recorded_only() -> None:
    """The copy has the rows, and nothing of the DDL."""
    at = Serving()
    number = queued(at)
    assert at.server._context is not None
    at.server._context.copied_scns = lambda: {("public", "plain"): COMMIT_SCN + 1}
    result = at.execute(number)
    assert result.failure is None
    assert (at.columns, at.keys(), at.outcomes()) == (OLD.columns, [], [(DdlOutcomeKind.NOT_APPLIED, 1)])
    assert (result.statistics.rows, result.statistics.ddl_not_applied) == (0, 1)
    assert not at.database.errors(TOPOLOGY, APPLY)


def test_execution_that_fails_again_undoes_its_ddl() -> None:
    at = Serving()
    number = queued(at)
    failure = at.execute(number).failure
    assert failure is not None
    assert (failure.position, failure.conflict_type) == (3, "update_missing")
    assert (at.columns, at.keys(), at.outcomes()) == (OLD.columns, [], [])
    assert len(at.database.errors(TOPOLOGY, APPLY)) == 1


def test_refused_ddl_stays_in_the_queue_with_its_reason() -> None:
    at = Serving()
    number = queued(at)
    conflicting(at)
    failure = at.execute(number).failure
    assert failure is not None
    assert failure.position == 1
    assert "column c is neither as before" in failure.message
    assert "ddl_skips" in failure.message
    assert at.server.unfit is None
    at.store.ddl_skips.add((TOPOLOGY, APPLY, ORDER_SCN, 1))
    OLD.create(at.store)
    mend(at)
    NEW.create(at.store)
    assert at.execute(number).failure is None
    assert at.outcomes() == [(DdlOutcomeKind.SKIPPED, 1)]


def test_execution_with_a_roles_rights_refuses_ddl() -> None:
    at = Serving()
    number = queued(at)
    mend(at)
    at.store.roles.add("clerk")
    failure = at.execute(number, role="clerk").failure
    assert failure is not None
    assert (failure.position, "without --role" in failure.message) == (1, True)
    assert at.columns == OLD.columns


def test_error_with_ddl_is_executed_alone() -> None:
    at = Serving()
    held = at.stream(change_of(), mode=GroupMode.ERROR_QUEUE, error_number=77)
    assert isinstance(held, GroupResult)
    (error,) = held.errors
    mode, numbers = GroupMode.EXECUTE_ERROR, (error.number, error.number + 1)
    group = whole_group(group=2, after_scn=COMMIT_SCN, through_scn=COMMIT_SCN, mode=mode, error_numbers=numbers)
    at.server.receive(group)
    at.server.receive(GroupGo(group=2, attempt=0, low_watermark=COMMIT_SCN, below_applied=True))
    (result,) = at.work()
    assert isinstance(result, GroupResult)
    assert (result.executed, result.failure, at.outcomes()) == (2, None, [(DdlOutcomeKind.APPLIED, 0)])


# --------------------------------------------------------------------------- what is known of tables


def new_key() -> DdlChange:
    """Return a change that leaves the version of the table as it is."""
    key = {"number": 9, "name": "plain_v", "type": "u", "definition": "UNIQUE (v)", "calls": False}
    return ddl_change(structure_of(OLD), structure_of(OLD, constraints=[key]), relation=11)


def unique_keys(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[int, ...], ...]]:
    """Return a list that gets the unique keys for which each write was planned."""
    seen: list[tuple[tuple[int, ...], ...]] = []
    write = MemorySession.write

    def spied(session: MemorySession, writes: Sequence[Write]) -> tuple[int, ...]:
        seen.extend(each.table.unique_keys for each in writes)
        return write(session, writes)

    monkeypatch.setattr(MemorySession, "write", spied)
    return seen


def test_rows_behind_a_new_key_are_planned_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, at = unique_keys(monkeypatch), Serving()
    assert isinstance(at.stream([insert(OLD, 1)], new_key(), [update(OLD, 1)]), GroupResult)
    assert seen == [((0,),), ((0,), (1,))]


def test_rows_behind_a_failed_execution_are_planned_for_the_old_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Serving()
    pieces: tuple[Piece, ...] = (new_key(), [insert(OLD, 1), missing(OLD)])
    failed_first = at.stream(*pieces)
    assert isinstance(failed_first, GroupRetry)
    result = at.stream(*pieces, attempt=1, mode=GroupMode.ERROR_QUEUE, failure=failed_first.failure)
    assert isinstance(result, GroupResult)
    assert at.execute(result.errors[0].number).failure is not None
    seen = unique_keys(monkeypatch)
    rows = batch_of([Transaction(2, [insert(OLD, 7)])], 150)
    at.server.receive(whole_group(codec.encode(rows), group=3, after_scn=150, through_scn=250))
    at.server.receive(GroupGo(group=3, attempt=0, low_watermark=150, below_applied=True))
    assert isinstance(at.work()[0], GroupResult)
    assert seen == [((0,),)]


def test_rolled_back_ddl_leaves_no_fit_behind() -> None:
    """The next group would be planned for a table that does not exist."""
    at = Serving()
    at.server.receive(streamed_group(after_scn=50))
    at.server.receive(GroupGo(group=1, attempt=0, low_watermark=50, below_applied=True))
    for number, batch in enumerate(parts_of(*ROWS_AND_DDL, [])[:3]):
        data = codec.encode(batch)
        at.server.receive(GroupPart(group=1, attempt=0, part=number, batch=data, is_last=False, through_scn=0))
        at.work()
    assert at.columns == NEW.columns
    at.server.receive(GroupAbandon(group=1, attempt=0))
    assert at.work() == [GroupAbandoned(group=1, attempt=0)]
    assert at.is_as_before()
    rows = batch_of([Transaction(1, [insert(NEW, 7)])], 50)
    at.server.receive(whole_group(codec.encode(rows), group=2, after_scn=50, through_scn=150))
    at.server.receive(GroupGo(group=2, attempt=0, low_watermark=50, below_applied=True))
    assert at.server.step(at.now).reports
    assert at.server.unfit is not None
    assert at.server.unfit.message.endswith(
        "does not fit the LCRs: ALTER TABLE public.plain ADD COLUMN c pg_catalog.text;"
    )
