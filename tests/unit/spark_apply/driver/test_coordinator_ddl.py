"""Transactions with DDL LCRs in the coordinator: they are written alone, and everybody forgets how tables were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.databases.ports import ApplyProgress
from headrace.lcr.scn import ObjectNumber
from protos import codec
from spark_apply.conversation.groups import (
    CoordinatorMessage,
    Failure,
    GroupAbandoned,
    GroupMode,
    GroupPart,
    GroupRetry,
    GroupStatistics,
    Reopen,
    RetryReason,
)
from spark_apply.dependencies.hashes import hash_batch, stored_hashes, table_hashes
from spark_apply.driver.reading.pieces import LargePart
from tests.support.apply.coordinator_talk import FITS, Talk, assignments, brief, made, part, run
from tests.support.values.ddl_changes import column, ddl_batch, ddl_change, structure

CHANGED = GroupStatistics(commits=1, ddl_applied=1)


def ddl(number: int, *, table: str = "plain", is_last: bool = True, position: int = 0) -> LargePart:
    """A DDL LCR of the transaction with a number."""
    transaction = made(number, 1)
    change = ddl_change(
        structure(owner="public", name=table), structure(column(2, "added"), owner="public", name=table), relation=11
    )
    batch = ddl_batch(
        change,
        commit=int(transaction.commit_scn),
        previous=number * 100 - 50,
        is_open=not is_last,
        continues=position > 0,
        first_position=position,
    )
    batch.transactions.order_scn[:] = [transaction.order_scn]
    return LargePart(
        batch=batch,
        data=codec.encode(batch),
        hashes=hash_batch(batch, FITS.fit),
        order_scn=transaction.order_scn,
        is_first=position == 0,
        is_last=is_last,
        through_scn=batch.through_scn,
    )


def reopened(messages: list[tuple[int, CoordinatorMessage]]) -> list[int]:
    return [server for server, message in messages if isinstance(message, Reopen)]


def test_ddl_waits_for_everything_below_then_sessions_are_reopened() -> None:
    talk = Talk()
    found = talk.accept(run(made(1, 1)), ddl(2))
    assert brief(found) == [(0, "Assignment", 1), (1, "Assignment", 2), (0, "Go", 1), (1, "Part", 2)]
    found = talk.done(0, 1)
    assert brief(found) == [(1, "Go", 2)]
    assert reopened(talk.done(1, 2, statistics=CHANGED)) == [0, 1]
    assert brief(talk.accept(run(made(3, 1)))) == [(0, "Assignment", 3), (0, "Go", 3)]


def test_sessions_are_reopened_before_the_next_group_is_assigned() -> None:
    """An execution may have been assigned behind the DDL: it too must see the tables as they are."""
    talk = Talk(errors=[(4, stored_hashes(run(made(1, 7)).hashes.of(0)))])
    talk.accept(ddl(2, table="other"))
    talk.coordinator.errors.executions.add([4])
    assert brief(talk.coordinator.messages()) == [(1, "Assignment", 2)]
    found = talk.done(0, 1, statistics=CHANGED)
    assert [(server, type(message).__name__) for server, message in found] == [
        (0, "Reopen"),
        (1, "Reopen"),
        (1, "GroupGo"),
    ]


def test_ddl_behind_rows_of_its_transaction_is_known() -> None:
    talk, large = Talk(), made(1, *range(20, 28))
    found = talk.accept(part(large, 0, 4), ddl(1, is_last=False, position=4), part(large, 4, 8))
    assert [message.part for _, message in found if isinstance(message, GroupPart)] == [0, 1, 2]
    assert reopened(talk.done(0, 1, statistics=CHANGED)) == [0, 1]


def test_large_transaction_without_ddl_reopens_nothing() -> None:
    talk = Talk()
    talk.accept(part(made(1, *range(20, 24)), 0, 4))
    assert reopened(talk.done(0, 1)) == []


def test_ddl_of_a_dead_server_is_done_if_committed() -> None:
    talk = Talk()
    talk.accept(ddl(1))
    talk.coordinator.server_lost(0)
    talk.coordinator.server_joined(0, ApplyProgress(epoch=1, low_watermark=150, above=()), [])
    assert not talk.coordinator.must_replay
    assert talk.coordinator.watermarks.low == 150
    assert sorted(reopened(talk.coordinator.messages())) == [0, 1]


def test_ddl_of_a_dead_server_comes_again_if_not_committed() -> None:
    talk = Talk()
    talk.accept(ddl(1))
    talk.coordinator.server_lost(0)
    talk.coordinator.server_joined(0, talk.progress, [])
    assert talk.coordinator.must_replay
    assert talk.coordinator.watermarks.progress == talk.progress
    talk.coordinator.replayed()
    assert reopened(talk.coordinator.messages()) == []
    assert [each.mode for each in assignments(talk.accept(ddl(1)))] == [GroupMode.SETS]


def test_refused_ddl_comes_again_and_enters_no_error_queue() -> None:
    talk = Talk()
    for attempt in range(3):
        found = talk.accept(ddl(1))
        assert [each.mode for each in assignments(found)] == [GroupMode.SETS]
        group = assignments(found)[0].group
        talk.coordinator.report(0, GroupRetry(group=group, attempt=0, reason=RetryReason.REPLAY, next_transaction=0))
        assert talk.must_replay(), attempt
        talk.coordinator.replayed()
    assert talk.coordinator.statistics.errors == 0


@pytest.mark.parametrize("retried", [0, 1])
def test_ddl_that_is_tried_again_is_known_until_it_is_done(retried: int) -> None:
    """A lock is the server's to report; a refusal pauses it, which says more."""
    talk = Talk()
    (found,) = assignments(talk.accept(ddl(1)))
    statistics = GroupStatistics(retried=retried)
    retry = GroupRetry(
        group=found.group, attempt=0, reason=RetryReason.REPLAY, next_transaction=0, statistics=statistics
    )
    talk.coordinator.report(0, retry)
    assert talk.coordinator.ddl_retried_by == (0 if retried else -1)
    talk.coordinator.replayed()
    (again,) = assignments(talk.accept(ddl(1)))
    talk.done(0, again.group, statistics=CHANGED)
    assert talk.coordinator.ddl_retried_by == -1


def test_failed_row_takes_its_ddl_into_the_error_queue() -> None:
    talk = Talk()
    talk.accept(ddl(1, is_last=False))
    failure = Failure(position=1, conflict_type="insert_exists", sqlstate="23505", message="it is there")
    talk.coordinator.report(
        0,
        GroupRetry(
            group=1,
            attempt=0,
            reason=RetryReason.REPLAY,
            next_transaction=0,
            failure=failure,
            statistics=GroupStatistics(ddl_applied=1, rollbacks=1),
        ),
    )
    assert talk.coordinator.status()["ddl_applied"] == 0, "it was rolled back"
    talk.coordinator.replayed()
    (again,) = assignments(talk.accept(ddl(1)))
    assert (again.mode, again.failure) == (GroupMode.ERROR_QUEUE, failure)
    assert reopened(talk.done(0, again.group)) == [], "no table is changed"


def test_ddl_joins_the_error_queue_behind_rows_of_its_table() -> None:
    """They are of the table as it was, and would not fit any more."""
    stored = stored_hashes(run(made(1, 30)).hashes.of(0))
    talk = Talk(errors=[(4, stored)])
    assert [each.mode for each in assignments(talk.accept(ddl(1, table="other")))] == [GroupMode.SETS]
    talk.done(0, 1)
    talk.accept(ddl(2))
    talk.coordinator.report(0, GroupAbandoned(group=2, attempt=0))
    assert talk.coordinator.must_replay
    talk.coordinator.replayed()
    (again,) = assignments(talk.accept(ddl(2)))
    assert (again.mode, again.error_number) == (GroupMode.ERROR_QUEUE, 4)


def test_rows_are_held_behind_a_ddl_in_the_error_queue() -> None:
    stored = table_hashes(ddl(1).batch).stored()
    talk = Talk(errors=[(4, stored)])
    talk.accept(run(made(2, 7)))
    (held,) = talk.coordinator.errors.held(run(made(2, 7)).hashes)
    assert held.depends_on == 4
    other = replace(FITS.fit(run(made(2, 7)).batch.tables[0]).version, name="other", object_number=ObjectNumber(12))
    assert not talk.coordinator.errors.held(table_hashes(replace(run(made(2, 7)).batch, tables=(other,))))


@pytest.mark.parametrize("applied", [0, 1])
def test_executed_ddl_has_later_groups_formed_again(applied: int) -> None:
    """They were hashed, and are prepared, for the table as it was."""
    talk = Talk(transactions=1, errors=[(4, stored_hashes(run(made(1, 7)).hashes.of(0)))])
    talk.coordinator.errors.executions.add([4])
    (executed,) = assignments(talk.coordinator.messages())
    assert brief(talk.accept(run(made(1, 1)))) == [(1, "Assignment", 2)]
    found = talk.done(0, executed.group, statistics=GroupStatistics(commits=1, ddl_applied=applied))
    assert talk.coordinator.must_replay is bool(applied)
    if not applied:
        assert brief(found) == [(1, "Go", 2)]
        return
    assert brief(found) == [(1, "Abandon", 2)]
    talk.coordinator.replayed()
    assert reopened(talk.coordinator.messages()) == [0, 1]
    assert [each.group for each in assignments(talk.accept(run(made(1, 1))))] == [3]
    talk.done(0, 3)
    assert not talk.must_replay()


@pytest.mark.parametrize("is_executed", [True, False])
def test_execution_whose_report_is_lost_has_groups_formed_again(is_executed: bool) -> None:
    """Its server died behind the COMMIT: nobody says whether tables are as before."""
    stored = stored_hashes(run(made(1, 7)).hashes.of(0))
    talk = Talk(transactions=1, errors=[(4, stored)])
    talk.coordinator.errors.executions.add([4])
    (executed,) = assignments(talk.coordinator.messages())
    assert brief(talk.accept(run(made(1, 1)))) == [(1, "Assignment", 2)]
    talk.coordinator.server_lost(0)
    talk.coordinator.server_joined(0, talk.progress, [] if is_executed else [(4, stored)])
    assert talk.must_replay() is is_executed
    found = talk.coordinator.messages()
    if not is_executed:
        assert brief(found) == [(0, "Assignment", executed.group), (0, "Go", executed.group)]
        return
    assert brief(found) == [(1, "Abandon", 2)]
    talk.coordinator.replayed()
    assert reopened(talk.coordinator.messages()) == [0, 1]
    assert [each.group for each in assignments(talk.accept(run(made(1, 1))))] == [3]


def test_outcomes_of_ddl_are_counted() -> None:
    talk = Talk()
    talk.accept(ddl(1))
    talk.done(0, 1, statistics=GroupStatistics(commits=1, ddl_applied=2, ddl_passed_over=3, ddl_not_applied=4))
    status = talk.coordinator.status()
    assert [status[f"ddl_{outcome}"] for outcome in ("applied", "passed_over", "not_applied")] == [2, 3, 4]
