"""Forming groups, permitting them to write, watermarks, and the groups of a server that dies.

Longer than 500 lines: all tests drive one state machine under a fake fleet (`tests.support.apply.coordinator_talk`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.ports import ApplyProgress, ScnRange
from headrace.lcr.scn import Scn
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import RuleSet
from protos import codec
from spark_apply.conversation.groups import (
    PARTS_AHEAD,
    AppliedRange,
    Failure,
    GroupAbandon,
    GroupAbandoned,
    GroupAssignment,
    GroupGo,
    GroupMode,
    GroupPart,
    GroupResult,
    GroupRetry,
    GroupStatistics,
    OnError,
    PartDone,
    RetryReason,
    TransactionError,
)
from spark_apply.dependencies.hashes import stored_hashes
from spark_apply.driver.coordinator import ApplyCoordinator
from spark_apply.driver.groups import forming
from spark_apply.driver.groups.executions import ExecutionRequest
from spark_apply.driver.loop.joining import TableJoins
from spark_apply.driver.reader import ApplyReader
from spark_apply.driver.reading.pieces import LargeDropped, Mark
from spark_apply.tables.arriving import ArrivingTables
from tests.support.apply.coordinator_talk import FITS, Talk, assignments, brief, made, part, run


def test_single_transaction_is_assigned_at_once() -> None:
    assert brief(Talk().accept(run(made(1, 1)))) == [(0, "Assignment", 1), (0, "Go", 1)]


def test_whole_batches_go_into_a_group_unchanged() -> None:
    talk = Talk(servers=0)
    first, second = run(made(1, 1), made(2, 2)), run(made(3, 3))
    talk.accept(first, second)
    talk.coordinator.server_joined(0, talk.progress)
    (group,) = assignments(talk.coordinator.messages())
    assert group.batches == (first.data, second.data)
    assert (group.after_scn, group.through_scn) == (50, 350)


@pytest.mark.parametrize(
    ("transactions", "rows", "expected"),
    [
        (1, 100, [150, 250, 350, 450]),
        (2, 100, [250, 450]),
        (3, 100, [350, 450]),
        (9, 2, [150, 350, 450]),
        (9, 3, [250, 350, 450]),
    ],
)
def test_groups_are_bounded_in_transactions_and_rows(transactions: int, rows: int, expected: list[int]) -> None:
    talk = Talk(servers=4, transactions=transactions, rows=rows)
    # Rows per transaction: 2, 1, 1, 5; a transaction over the limit is a separate group.
    pieces = [run(made(1, 1, 2), made(2, 3), made(3, 4)), run(made(4, 5, 6, 7, 8, 9))]
    found = assignments(talk.accept(*pieces))
    assert [group.through_scn for group in found] == expected
    counts = [sum(len(codec.decode(data).transactions) for data in group.batches) for group in found]
    assert sum(counts) == 4


@pytest.mark.parametrize("transactions", [1, 2])
def test_transaction_over_the_group_limit_is_a_group_alone(transactions: int) -> None:
    """A transaction over the row limit leaves no room for rows or transactions after it."""
    talk = Talk(servers=0, transactions=transactions, rows=2)
    talk.accept(run(made(1, 1, 2, 3, 4), made(2, 5), made(3, 6)), run(made(4, 7)))
    talk.coordinator.server_joined(0, talk.progress)
    first = assignments(talk.coordinator.messages())[0]
    assert (first.after_scn, first.through_scn) == (50, 150)


def test_a_group_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forming, "_GROUP_BYTES_MAX", 10)
    assert len(assignments(Talk(servers=4).accept(run(made(1, 1)), run(made(2, 2)), run(made(3, 3))))) == 3


def test_nothing_is_accepted_while_too_much_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forming, "_PENDING_ROWS_MAX", 2)
    talk = Talk(servers=0)
    talk.accept(run(made(1, 1)))
    assert talk.coordinator.wants
    talk.accept(run(made(2, 2)))
    assert not talk.coordinator.wants


def test_independent_groups_run_in_parallel_and_dependent_ones_wait() -> None:
    talk = Talk(transactions=1)
    first = talk.accept(run(made(1, 1)), run(made(2, 2)), run(made(3, 1)))
    assert brief(first) == [
        (0, "Assignment", 1),
        (1, "Assignment", 2),
        (0, "Assignment", 3),
        (0, "Go", 1),
        (1, "Go", 2),
    ]
    assert talk.coordinator.waits_for(0) == (3, 1)
    assert talk.done(1, 2) == []
    assert talk.coordinator.watermarks.low == 50
    assert talk.coordinator.watermarks.progress.above == (ScnRange(after=150, through=250),)
    assert brief(talk.done(0, 1)) == [(0, "Go", 3)]
    assert talk.coordinator.watermarks.low == 250
    talk.done(0, 3)
    assert (talk.coordinator.watermarks.low, talk.coordinator.state) == (350, "IDLE")


def test_coordinator_state_uses_the_manuals_words() -> None:
    talk = Talk(servers=0)
    assert talk.coordinator.state == "INITIALIZING"
    talk.coordinator.server_joined(0, talk.progress)
    assert talk.coordinator.state == "IDLE"
    talk.accept(run(made(1, 1)))
    assert talk.coordinator.state == "APPLYING"
    talk.done(0, 1)
    assert talk.coordinator.state == "IDLE"
    talk.coordinator.is_draining = True
    assert talk.coordinator.state == "SHUTTING DOWN CLEANLY"


@pytest.mark.parametrize(
    ("in_order", "keys", "expected"), [(True, (1, 2), "WAIT COMMIT"), (False, (1, 1), "WAIT DEPENDENCY")]
)
def test_server_state_distinguishes_dependency_from_commit_order(
    in_order: bool, keys: tuple[int, int], expected: str
) -> None:
    talk = Talk(transactions=1, in_order=in_order)
    talk.accept(run(made(1, keys[0])), run(made(2, keys[1])))
    assert talk.coordinator.server_state(0, "EXECUTE TRANSACTION") == "EXECUTE TRANSACTION"
    assert talk.coordinator.server_state(1, "WAIT DEPENDENCY") == expected
    talk.done(0, 1)
    talk.done(1, 2)
    assert talk.coordinator.waits_for(1) == (0, 0)


def test_a_server_holds_two_groups_at_most_unless_it_is_the_lowest() -> None:
    talk = Talk(servers=1, transactions=1)
    assert len(assignments(talk.accept(run(made(1, 1)), run(made(2, 2)), run(made(3, 3))))) == 2
    talk.coordinator.report(0, GroupRetry(group=1, attempt=0, reason=RetryReason.BELOW, next_transaction=0))
    assert brief(talk.coordinator.messages()) == [(0, "Assignment", 1), (0, "Go", 1)]


def test_returned_group_is_reassigned_and_may_write_when_all_below_is_done() -> None:
    talk = Talk(transactions=1)
    talk.accept(run(made(1, 1)), run(made(2, 2), made(3, 3)))
    applied = (AppliedRange(after_scn=150, through_scn=200),)
    talk.coordinator.report(
        1,
        GroupRetry(
            group=2,
            attempt=0,
            reason=RetryReason.BELOW,
            next_transaction=0,
            applied=applied,
        ),
    )
    again = talk.coordinator.messages()
    assert [(group.group, group.attempt) for group in assignments(again)] == [(2, 1)]
    assert not [message for _, message in again if isinstance(message, GroupGo)]
    (go,) = [message for _, message in talk.done(0, 1) if isinstance(message, GroupGo)]
    assert (go.group, go.attempt, go.below_applied) == (2, 1, True)


def test_reports_of_an_ended_attempt_are_ignored() -> None:
    talk = Talk()
    talk.accept(run(made(1, 1)))
    talk.coordinator.report(0, GroupRetry(group=1, attempt=0, reason=RetryReason.BELOW, next_transaction=0))
    talk.coordinator.messages()
    talk.coordinator.report(0, GroupResult(group=1, attempt=0, applied=()))
    assert talk.coordinator.watermarks.low == 50


def test_marks_move_the_low_watermark_when_nothing_is_in_flight() -> None:
    talk = Talk()
    talk.accept(Mark(through_scn=90))
    assert (talk.coordinator.watermarks.low, talk.coordinator.watermarks.durable) == (90, 50)
    assert [talk.coordinator.unrecorded_scn] == [90]
    talk.coordinator.watermarks.recorded(90)
    assert (talk.coordinator.watermarks.durable, talk.coordinator.unrecorded_scn) == (90, None)


def test_marks_behind_a_group_wait_for_it() -> None:
    talk = Talk()
    talk.accept(run(made(1, 1)))
    talk.accept(Mark(through_scn=190))
    assert talk.coordinator.watermarks.low == 50
    talk.done(0, 1)
    assert (talk.coordinator.watermarks.low, talk.coordinator.watermarks.durable) == (190, 150)


def test_group_range_covers_the_marks_before_it() -> None:
    talk = Talk()
    talk.accept(run(made(1, 1)))
    (group,) = assignments(talk.accept(Mark(through_scn=190), run(made(2, 2))))
    assert (group.after_scn, group.through_scn) == (150, 250)


def test_durable_scn_follows_commits_not_the_order_of_reports() -> None:
    talk = Talk(transactions=1)
    talk.accept(run(made(1, 1)), run(made(2, 2)))
    talk.done(1, 2)
    assert talk.coordinator.watermarks.durable == 50
    talk.done(0, 1)
    assert talk.coordinator.watermarks.durable == 250


def test_low_and_high_watermark_bound_the_applied_groups() -> None:
    talk = Talk(transactions=1)
    talk.accept(run(made(1, 1)), run(made(2, 2)))
    assert (talk.coordinator.watermarks.low, talk.coordinator.watermarks.high) == (50, 50)
    talk.done(1, 2)
    assert (talk.coordinator.watermarks.low, talk.coordinator.watermarks.high) == (50, 250)
    talk.done(0, 1)
    assert (talk.coordinator.watermarks.low, talk.coordinator.watermarks.high) == (250, 250)


def test_high_watermark_includes_ranges_applied_before_a_restart() -> None:
    progress = ApplyProgress(epoch=2, low_watermark=50, above=(ScnRange(after=450, through=550),))
    coordinator = ApplyCoordinator(
        progress=progress,
        errors=(),
        encode=codec.encode,
        group_transactions=1000,
        group_rows=10_000,
    )
    assert (coordinator.watermarks.low, coordinator.watermarks.high) == (50, 550)


# --------------------------------------------------------------------------- errors


def test_transactions_that_depend_on_the_error_queue_are_held_behind_it() -> None:
    stored = stored_hashes(run(made(1, 7)).hashes.of(0))
    (go,) = [m for _, m in Talk(errors=[(4, stored)]).accept(run(made(1, 1), made(2, 7))) if isinstance(m, GroupGo)]
    assert [(held.transaction, held.depends_on) for held in go.held] == [(1, 4)]


def test_new_error_holds_assigned_groups_without_permission_to_write() -> None:
    talk = Talk(transactions=1)
    first = run(made(1, 7))
    talk.accept(first, run(made(2, 7)))
    error = TransactionError(
        number=9,
        transaction=0,
        commit_scn=150,
        depends_on=0,
        key_hashes=stored_hashes(first.hashes.of(0)).tobytes(),
    )
    (go,) = [message for _, message in talk.done(0, 1, errors=(error,)) if isinstance(message, GroupGo)]
    assert [(held.transaction, held.depends_on) for held in go.held] == [(0, 9)]
    assert talk.coordinator.statistics.errors == 1


def test_low_watermark_of_a_rolled_back_execution_is_not_durable() -> None:
    stored = stored_hashes(run(made(1, 7)).hashes.of(0))
    talk = Talk(errors=[(4, stored)])
    talk.accept(Mark(through_scn=90))
    talk.coordinator.errors.executions.add([4])
    (assigned,) = assignments(talk.coordinator.messages())
    failure = Failure(position=0, conflict_type="insert_exists", sqlstate="", message="it is there")
    talk.done(0, assigned.group, statistics=GroupStatistics(rollbacks=1), applied=(), failure=failure)
    assert (talk.coordinator.watermarks.low, talk.coordinator.watermarks.durable, talk.coordinator.unrecorded_scn) == (
        90,
        50,
        90,
    )


@pytest.mark.parametrize("queued", [[4], []])
def test_low_watermark_of_an_execution_on_a_dead_server_is_not_durable(queued: list[int]) -> None:
    stored = stored_hashes(run(made(1, 7)).hashes.of(0))
    talk = Talk(servers=1, errors=[(4, stored)])
    talk.accept(Mark(through_scn=90))
    talk.coordinator.errors.executions.add([4])
    talk.coordinator.messages()
    talk.coordinator.server_lost(0)
    talk.coordinator.server_joined(0, talk.progress, [(number, stored) for number in queued])
    assert talk.coordinator.watermarks.durable == 50


def test_deleted_error_holds_nothing() -> None:
    stored = stored_hashes(run(made(1, 7)).hashes.of(0))
    talk = Talk(errors=[(4, stored)])
    talk.coordinator.errors.deleted(4)
    (go,) = [message for _, message in talk.accept(run(made(1, 7))) if isinstance(message, GroupGo)]
    assert go.held == ()


def stored_of(*keys: int) -> np.ndarray:
    """Return the stored hashes of an error transaction that inserts rows with these keys."""
    return stored_hashes(run(made(1, *keys)).hashes.of(0))


FAILED = Failure(position=0, conflict_type="insert_exists", sqlstate="", message="it is there")


def problems(talk: Talk) -> dict[int, str]:
    """Return the outcomes known so far: the message of each, empty if it was executed."""
    return {
        outcome.number: "" if outcome.failure is None else outcome.failure.message
        for outcome in talk.coordinator.errors.executions.take_outcomes()
    }


def test_errors_are_executed_together_and_no_group_writes_meanwhile() -> None:
    talk = Talk(transactions=1, errors=[(4, stored_of(7)), (5, stored_of(8)), (6, stored_of(8))])
    talk.accept(run(made(1, 1)))
    talk.coordinator.errors.executions.add([4, 5, 99])
    found = talk.coordinator.messages()
    assert [(a.mode, a.error_numbers) for a in assignments(found)] == [(GroupMode.EXECUTE_ERROR, (4, 5))]
    assert not [message for _, message in found if isinstance(message, GroupGo)]
    assert brief(talk.accept(run(made(2, 2)))) == [(0, "Assignment", 3)]
    assert brief(talk.done(0, 1)) == [(1, "Go", 2)]
    assert brief(talk.done(1, 2)) == [(0, "Go", 3)]
    left = problems(talk)
    assert (left.pop(4), left.pop(5), "not in the error queue" in left.pop(99), left) == ("", "", True, {})
    assert talk.coordinator.errors.numbers == (6,)


def test_errors_independent_of_a_failed_one_are_still_executed() -> None:
    """3 depends on 1, and 4 on 2; 1 and 5 are independent of the others."""
    talk = Talk(
        servers=1,
        errors=[(1, stored_of(7)), (2, stored_of(8)), (3, stored_of(7)), (4, stored_of(8)), (5, stored_of(9))],
    )
    talk.coordinator.errors.executions.add([1, 2, 3, 4, 5])
    (first,) = assignments(talk.coordinator.messages())
    assert first.error_numbers == (1, 2, 3, 4, 5)
    (second,) = assignments(talk.done(0, first.group, executed=1, failure=FAILED))
    assert second.error_numbers == (3,), "few at a time after a failure"
    (third,) = assignments(talk.done(0, second.group))
    assert third.error_numbers == (5,)
    talk.done(0, third.group)
    found = problems(talk)
    assert "depends on error transaction 2" in found.pop(4)
    assert found == {1: "", 2: "it is there", 3: "", 5: ""}
    assert talk.coordinator.errors.numbers == (2, 4)


def test_executions_are_small_after_a_failure_and_grow_again() -> None:
    talk = Talk(servers=1, errors=[(number, stored_of(number)) for number in range(1, 12)])
    talk.coordinator.errors.executions.add(range(1, 12))
    sent, sizes = talk.coordinator.messages(), []
    while sent:
        server, message = sent.pop(0)
        if isinstance(message, GroupAssignment):
            sizes.append(len(message.error_numbers))
        elif isinstance(message, GroupGo):
            fields = {"executed": 3, "failure": FAILED} if len(sizes) == 1 else {}
            sent += talk.done(server, message.group, **fields)
    assert sizes == [11, 1, 2, 4]
    assert sorted(problems(talk)) == list(range(1, 12))


def test_execution_that_stops_at_the_first_failure_tries_no_other_error() -> None:
    talk = Talk(servers=1, errors=[(1, stored_of(7)), (2, stored_of(8)), (3, stored_of(9)), (4, stored_of(10))])
    talk.coordinator.errors.executions.add([1, 2, 3], ExecutionRequest(stops=True))
    talk.coordinator.errors.executions.add([4])
    (first,) = assignments(talk.coordinator.messages())
    assert first.error_numbers == (1, 2, 3)
    (second,) = assignments(talk.done(0, first.group, executed=1, failure=FAILED))
    assert second.error_numbers == (4,)
    assert problems(talk) == {1: "", 2: "it is there", 3: "not tried: one before it failed"}


def test_stopping_execution_refuses_dependent_errors_in_queue_order() -> None:
    talk = Talk(servers=1, errors=[(1, stored_of(7)), (2, stored_of(8)), (3, stored_of(7)), (4, stored_of(9))])
    talk.coordinator.errors.executions.add([2, 3, 4], ExecutionRequest(stops=True))
    (first,) = assignments(talk.coordinator.messages())
    assert first.error_numbers == (2,)
    assert assignments(talk.done(0, first.group)) == []
    found = problems(talk)
    assert (found.pop(2), "depends on error transaction 1" in found.pop(3), found) == (
        "",
        True,
        {4: "not tried: one before it failed"},
    )


def test_unassigned_errors_are_withdrawn_and_assigned_ones_continue() -> None:
    talk = Talk(servers=1, errors=[(number, stored_of(number)) for number in (1, 2, 3)])
    talk.coordinator.errors.executions.add([1], ExecutionRequest(role="clerk"))
    talk.coordinator.errors.executions.add([2, 3])
    (first,) = assignments(talk.coordinator.messages())
    assert first.error_numbers == (1,)
    talk.coordinator.errors.executions.withdraw([1, 2], "nobody wants it")
    assert problems(talk) == {2: "nobody wants it"}
    (second,) = assignments(talk.done(0, first.group))
    assert second.error_numbers == (3,)
    talk.done(0, second.group)
    assert problems(talk) == {1: "", 3: ""}


@pytest.mark.parametrize("queued", [(), (5,), (4, 5)])
def test_only_errors_still_in_the_queue_are_reexecuted_after_a_death(queued: tuple[int, ...]) -> None:
    errors = [(4, stored_of(7)), (5, stored_of(8))]
    talk = Talk(servers=1, errors=errors)
    talk.coordinator.errors.executions.add([4, 5])
    (first,) = assignments(talk.coordinator.messages())
    talk.coordinator.server_lost(0)
    talk.coordinator.server_joined(0, talk.progress, [error for error in errors if error[0] in queued])
    is_begun = len(queued) < len(errors)  # it may have changed tables
    assert talk.must_replay() is is_begun
    if is_begun:
        talk.coordinator.replayed()
    again = assignments(talk.coordinator.messages())
    assert [each.error_numbers for each in again] == ([queued] if queued else [])
    assert is_begun or again[0].group == first.group
    for each in again:
        talk.done(0, each.group, attempt=each.attempt)
    assert problems(talk) == {4: "", 5: ""}
    assert talk.coordinator.errors.numbers == ()


def test_dependents_of_an_error_to_be_executed_wait_outside_the_queue() -> None:
    talk = Talk(transactions=1, errors=[(4, stored_of(7)), (5, stored_of(8))])
    talk.coordinator.errors.executions.add([4], ExecutionRequest(role="clerk"))
    talk.coordinator.errors.executions.add([5])
    (first,) = assignments(talk.coordinator.messages())
    assert first.error_numbers == (4,)
    found = talk.accept(run(made(1, 1)), run(made(2, 8)), run(made(3, 3)))
    assert brief(found) == [(1, "Assignment", 2)], "the second depends on 5, and later transactions wait with it"
    found = talk.done(0, first.group)
    assert [a.error_numbers for a in assignments(found)] == [(5,)]
    talk.done(1, 2)
    found = talk.done(0, 3)
    gos = [message for _, message in found if isinstance(message, GroupGo)]
    assert [go.held for go in gos] == [(), ()]
    assert talk.coordinator.errors.numbers == ()


def test_dependents_of_an_error_that_failed_again_join_the_queue() -> None:
    talk = Talk(transactions=1, errors=[(4, stored_of(7))])
    talk.coordinator.errors.executions.add([4])
    (first,) = assignments(talk.coordinator.messages())
    assert talk.accept(run(made(1, 7))) == []
    found = talk.done(0, first.group, failure=FAILED)
    (go,) = [message for _, message in found if isinstance(message, GroupGo)]
    assert [(held.transaction, held.depends_on) for held in go.held] == [(0, 4)]


def test_assigned_dependents_of_an_error_to_be_executed_are_replayed() -> None:
    """It had no permission to write: otherwise it would join the queue while that error is executed."""
    talk = Talk(transactions=1, errors=[(4, stored_of(7))])
    found = talk.accept(run(made(1, 1)), run(made(2, 1, 7)))
    assert brief(found) == [(0, "Assignment", 1), (1, "Assignment", 2), (0, "Go", 1)]
    talk.coordinator.errors.executions.add([4])
    assert brief(talk.coordinator.messages()) == [(0, "Assignment", 3)], "it waits for the group being written"
    assert brief(talk.done(0, 1)) == [(1, "Abandon", 2), (0, "Abandon", 3)]
    talk.coordinator.report(1, GroupAbandoned(group=2, attempt=0))
    talk.coordinator.report(0, GroupAbandoned(group=3, attempt=0))
    assert talk.coordinator.must_replay
    talk.coordinator.replayed()
    (executed,) = assignments(talk.coordinator.messages())
    assert executed.error_numbers == (4,)
    assert assignments(talk.accept(run(made(2, 1, 7)))) == []
    found = talk.done(0, executed.group)
    (go,) = [message for _, message in found if isinstance(message, GroupGo)]
    assert go.held == ()


def test_on_error_continue_waits_for_no_error_to_be_executed() -> None:
    talk = Talk(transactions=1, errors=[(4, stored_of(7))], on_error=OnError.CONTINUE)
    talk.coordinator.errors.executions.add([4])
    (first,) = assignments(talk.coordinator.messages())
    assert brief(talk.accept(run(made(1, 7)))) == [(1, "Assignment", 2)]
    assert brief(talk.done(0, first.group)) == [(1, "Go", 2)]


def test_error_that_depends_on_another_is_refused_until_that_one_is_gone() -> None:
    stored = stored_hashes(run(made(1, 7)).hashes.of(0))
    talk = Talk(errors=[(4, stored), (6, stored)])
    talk.coordinator.errors.executions.add([6])
    talk.coordinator.messages()
    (outcome,) = talk.coordinator.errors.executions.take_outcomes()
    assert outcome.failure is not None
    assert "depends on error transaction 4" in outcome.failure.message
    talk.coordinator.errors.executions.add([6, 4])
    sent = talk.coordinator.messages()
    while sent:
        server, message = sent.pop(0)
        sent += talk.done(server, message.group) if isinstance(message, GroupGo) else []
    assert {o.number: o.failure for o in talk.coordinator.errors.executions.take_outcomes()} == {4: None, 6: None}


def test_error_assigned_before_a_replay_is_executed_after_it() -> None:
    stored = [stored_hashes(run(made(1, key)).hashes.of(0)) for key in (7, 8)]
    talk = Talk(transactions=1, errors=[(4, stored[0]), (5, stored[1])])
    talk.accept(run(made(1, 1)))
    talk.coordinator.errors.executions.add([4, 5])
    assert [a.error_numbers for a in assignments(talk.coordinator.messages())] == [(4, 5)]
    talk.coordinator.report(0, GroupRetry(group=1, attempt=0, reason=RetryReason.REPLAY, next_transaction=0))
    assert brief(talk.coordinator.messages()) == [(1, "Abandon", 2)]
    talk.coordinator.report(1, GroupAbandoned(group=2, attempt=0))
    talk.coordinator.replayed()
    sent = talk.coordinator.messages()
    while sent:
        server, message = sent.pop(0)
        sent += talk.done(server, message.group) if isinstance(message, GroupGo) else []
    assert [(o.number, o.failure) for o in talk.coordinator.errors.executions.take_outcomes()] == [(4, None), (5, None)]


# --------------------------------------------------------------------------- servers that die


def test_group_without_permission_to_write_is_assigned_to_another_server() -> None:
    talk = Talk(transactions=1)
    talk.accept(run(made(1, 1)), run(made(2, 1)))
    talk.coordinator.server_lost(1)
    (again,) = assignments(talk.coordinator.messages())
    assert (again.group, again.attempt) == (2, 1)


@pytest.mark.parametrize(("progress", "expected"), [(50, (0, 0)), (150, (1, 1)), (250, None)])
def test_group_in_doubt_is_settled_by_the_destinations_progress(
    progress: int, expected: tuple[Any, ...] | None
) -> None:
    talk = Talk()
    talk.accept(run(made(1, 1), made(2, 2)))
    assert talk.coordinator.has_doubts(0)
    talk.coordinator.server_lost(0)
    assert assignments(talk.coordinator.messages()) == []
    talk.coordinator.server_joined(0, ApplyProgress(epoch=1, low_watermark=progress, above=()), [])
    found = assignments(talk.coordinator.messages())
    if expected is None:
        assert found == []
        assert talk.coordinator.watermarks.low == 250
    else:
        assert [group.first_transaction for group in found] == [expected[0]]


def test_only_the_group_in_which_a_server_died_is_written_carefully() -> None:
    talk = Talk(servers=1)
    (first,) = assignments(talk.accept(run(made(1, 1), made(2, 2))))
    assert not first.is_careful
    talk.coordinator.server_lost(0)
    talk.coordinator.server_joined(0, ApplyProgress(epoch=1, low_watermark=50, above=()), [])
    (again,) = assignments(talk.coordinator.messages())
    assert (again.attempt, again.is_careful) == (1, True)
    (behind,) = assignments(talk.accept(run(made(3, 3))))
    assert not behind.is_careful


def test_errors_recorded_by_a_dead_server_are_read_from_the_destination() -> None:
    talk = Talk(transactions=1)
    first = run(made(1, 7))
    talk.accept(first, run(made(2, 7)))
    talk.coordinator.server_lost(0)
    errors = [(3, stored_hashes(first.hashes.of(0)))]
    talk.coordinator.server_joined(0, ApplyProgress(epoch=1, low_watermark=150, above=()), errors)
    (go,) = [message for _, message in talk.coordinator.messages() if isinstance(message, GroupGo)]
    assert [held.depends_on for held in go.held] == [3]


# --------------------------------------------------------------------------- large transactions

LARGE = made(2, *range(20, 40))


def streaming() -> Talk:
    """One part of a large transaction is sent; a run before it is done."""
    talk = Talk()
    talk.accept(run(made(1, 1)), part(LARGE, 0, 4))
    talk.done(0, 1)
    return talk


def test_large_transaction_waits_for_everything_below_and_runs_alone() -> None:
    talk = Talk()
    found = talk.accept(run(made(1, 1)), part(LARGE, 0, 4))
    assert brief(found) == [(0, "Assignment", 1), (1, "Assignment", 2), (0, "Go", 1), (1, "Part", 2)]
    assert brief(talk.done(0, 1)) == [(1, "Go", 2)]
    assert brief(talk.accept(part(LARGE, 4, 20), run(made(3, 99)))) == [(0, "Assignment", 3), (1, "Part", 2)]
    assert brief(talk.done(1, 2)) == [(0, "Go", 3)]


def test_only_a_few_parts_are_in_flight() -> None:
    talk = streaming()
    for number in range(1, PARTS_AHEAD + 2):
        talk.accept(part(LARGE, number, number + 1))
    talk.accept(part(LARGE, 8, 9))
    assert not talk.coordinator.wants
    talk.coordinator.report(1, PartDone(group=2, attempt=0, part=0))
    sent = [message for _, message in talk.coordinator.messages() if isinstance(message, GroupPart)]
    assert [message.part for message in sent] == [PARTS_AHEAD]


def test_failed_large_transaction_is_replayed_for_the_error_queue() -> None:
    talk = streaming()
    failure = Failure(position=2, conflict_type="insert_exists", sqlstate="23505", message="it is there")
    talk.coordinator.report(
        1,
        GroupRetry(
            group=2,
            attempt=0,
            reason=RetryReason.REPLAY,
            next_transaction=0,
            failure=failure,
        ),
    )
    assert talk.coordinator.must_replay
    assert not talk.coordinator.wants
    assert talk.coordinator.watermarks.progress == ApplyProgress(epoch=1, low_watermark=150, above=())
    talk.coordinator.replayed()
    (again,) = assignments(talk.accept(part(LARGE, 0, 4)))
    assert (again.mode, again.failure) == (GroupMode.ERROR_QUEUE, failure)


def test_large_transaction_of_a_dead_server_is_replayed_as_sets() -> None:
    talk = streaming()
    talk.coordinator.server_lost(1)
    assert not talk.coordinator.must_replay
    talk.coordinator.server_joined(1, ApplyProgress(epoch=1, low_watermark=150, above=()), [])
    assert talk.must_replay()
    talk.coordinator.replayed()
    assert [(group.mode, group.is_careful) for group in assignments(talk.accept(part(LARGE, 0, 4)))] == [
        (GroupMode.SETS, True)
    ]


def test_complete_large_transaction_of_a_dead_server_is_done_if_committed() -> None:
    talk = streaming()
    talk.accept(part(LARGE, 4, 20))
    talk.coordinator.server_lost(1)
    talk.coordinator.server_joined(1, ApplyProgress(epoch=1, low_watermark=250, above=()), [])
    assert not talk.coordinator.must_replay
    assert talk.coordinator.watermarks.low == 250


def test_resent_large_transaction_is_rolled_back_first() -> None:
    talk = streaming()
    sent = brief(talk.accept(LargeDropped(order_scn=LARGE.order_scn), part(LARGE, 0, 20)))
    assert set(sent) == {(0, "Assignment", 3), (1, "Abandon", 2), (0, "Part", 3)}
    talk.coordinator.report(1, GroupAbandoned(group=2, attempt=0))
    assert (0, "Go", 3) in brief(talk.coordinator.messages())
    talk.done(0, 3)
    assert talk.coordinator.watermarks.low == 250


def test_large_transaction_depending_on_the_error_queue_joins_it_whole() -> None:
    stored = stored_hashes(run(made(1, 30)).hashes.of(0))
    talk = Talk(errors=[(4, stored)])
    talk.accept(part(LARGE, 0, 4))
    found = talk.accept(part(LARGE, 4, 20))
    assert [message.group for _, message in found if isinstance(message, GroupAbandon)] == [1]
    assert not talk.coordinator.must_replay
    talk.coordinator.report(0, GroupAbandoned(group=1, attempt=0))
    assert talk.must_replay()
    talk.coordinator.replayed()
    (again,) = assignments(talk.accept(part(LARGE, 0, 4)))
    assert (again.mode, again.error_number, again.failure) == (GroupMode.ERROR_QUEUE, 4, None)


def test_low_watermark_of_a_rolled_back_large_transaction_is_not_durable() -> None:
    """Its go message contains a low watermark that no commit recorded: the source may have to resend changes above the
    recorded one.
    """
    talk = Talk()
    talk.accept(Mark(through_scn=90))
    talk.accept(part(made(1, *range(20, 40)), 0, 4))
    assert talk.coordinator._groups[1].watermark_sent == 90
    talk.accept(LargeDropped(order_scn=made(1, 20).order_scn))
    talk.coordinator.report(0, GroupAbandoned(group=1, attempt=0))
    assert (talk.coordinator.watermarks.low, talk.coordinator.watermarks.durable, talk.coordinator.unrecorded_scn) == (
        90,
        50,
        90,
    )


@pytest.mark.parametrize("is_told", [True, False])
def test_low_watermark_of_a_lost_servers_transaction_is_not_durable(*, is_told: bool) -> None:
    talk = Talk()
    talk.accept(Mark(through_scn=90))
    talk.accept(part(made(1, *range(20, 40)), 0, 4))
    if is_told:
        talk.accept(LargeDropped(order_scn=made(1, 20).order_scn))
    talk.coordinator.server_lost(0)
    if not is_told:
        talk.accept(LargeDropped(order_scn=made(1, 20).order_scn))
    talk.coordinator.server_joined(0, talk.progress, [])
    assert talk.coordinator.watermarks.durable == 50


def test_error_is_executed_while_a_disabled_apply_holds_a_streamed_one() -> None:
    stored = stored_hashes(run(made(1, 7)).hashes.of(0))
    talk = Talk(errors=[(4, stored)], on_error=OnError.DISABLE)
    large = made(1, *range(20, 60))
    for first in range(0, 40, 4):
        if talk.coordinator.wants:
            assert talk.accept(part(large, first, first + 4)) == []
    assert not talk.coordinator.wants
    talk.coordinator.errors.executions.add([4])
    (assigned,) = assignments(talk.coordinator.messages())
    assert (assigned.mode, assigned.error_numbers) == (GroupMode.EXECUTE_ERROR, (4,))
    found = talk.done(0, assigned.group, applied=())
    assert "Assignment" in [
        name for _, name, _ in brief(found)
    ]  # the queue is empty: the streamed transaction continues


def test_coordinator_forgets_groups_below_the_low_watermark() -> None:
    talk = Talk(transactions=1)
    for number in range(1, 50):
        talk.accept(run(made(number, number % 5)))
        for group in [group.number for group in talk.coordinator._groups]:
            talk.done(talk.coordinator._groups[group].server, group)
    assert not talk.coordinator._groups
    assert talk.coordinator.watermarks.low == 49 * 100 + 50
    assert np.all([not held for held in talk.coordinator._slots._held.values()])


def test_groups_applied_above_a_waiting_group_take_no_memory() -> None:
    """A user may hold a lock that the lowest group needs for hours while other groups continue."""
    talk = Talk(transactions=1, servers=3)
    talk.accept(run(made(1, 0)))
    for number in range(2, 90):
        talk.accept(run(made(number, *range(number * 200, number * 200 + 200))))
        talk.done(1, number)
    groups = talk.coordinator._groups
    assert len(groups) == 2
    assert [len(group.batches) for group in groups] == [1, 0]
    assert talk.coordinator._groups._tracker._keys.shape[0] == 1 << 14
    assert talk.coordinator.watermarks.progress == ApplyProgress(
        epoch=1, low_watermark=50, above=(ScnRange(after=150, through=8950),)
    )
    assert talk.coordinator.watermarks.high == 8950
    # Unapplied changes are still tracked: the row of the first group waits for it, rows of other groups wait for
    # nothing.
    assert brief(talk.accept(run(made(90, 0)), run(made(91, 89 * 200)))) == [
        (1, "Assignment", 90),
        (2, "Assignment", 91),
        (2, "Go", 91),
    ]
    talk.done(2, 91)
    talk.done(0, 1)
    assert (talk.coordinator.watermarks.low, talk.coordinator.watermarks.durable) == (8950, 8950)
    talk.done(1, 90)
    assert (talk.coordinator.watermarks.low, talk.coordinator.watermarks.durable) == (9150, 9150)
    assert not groups


def test_low_watermark_does_not_pass_transactions_to_be_replayed() -> None:
    """Groups without permission to write are abandoned for the replay while others above and below them finish."""
    talk = Talk(servers=4, transactions=1)
    talk.accept(run(made(1, 1)), run(made(2, 1)), run(made(3, 3)), part(made(4, *range(20, 40)), 0, 4))
    assert [talk.coordinator._groups[group].server for group in (1, 2, 3, 4)] == [0, 1, 2, 3]
    talk.coordinator.server_lost(3)
    assert (1, "Abandon", 2) in brief(talk.coordinator.messages())
    talk.coordinator.report(1, GroupAbandoned(group=2, attempt=0))
    talk.done(2, 3)
    assert not talk.coordinator.must_replay
    talk.done(0, 1)
    assert talk.must_replay()
    assert talk.coordinator.watermarks.progress == ApplyProgress(
        epoch=1,
        low_watermark=150,
        above=(ScnRange(after=250, through=350),),
    )


def test_server_dying_before_it_learns_of_an_abandon_blocks_no_replay() -> None:
    talk = Talk(errors=[(4, stored_hashes(run(made(9, 77)).hashes.hashes))])
    large = made(1, *range(1, 9), 77)
    talk.accept(part(large, 0, 3))
    assert brief(talk.accept(part(large, 3, 9))) == [(0, "Abandon", 1)]
    assert not talk.coordinator.must_replay
    talk.coordinator.report(0, GroupRetry(group=1, attempt=0, reason=RetryReason.REPLAY, next_transaction=0))
    talk.coordinator.server_lost(0)
    assert talk.coordinator.must_replay


def test_transactions_held_by_a_disabling_error_are_abandoned_for_joins() -> None:
    talk = Talk(errors=[(4, stored_hashes(run(made(9, 77)).hashes.hashes))], on_error=OnError.DISABLE)
    assert talk.accept(run(made(1, 1))) == []
    talk.coordinator.settle()
    assert talk.coordinator.must_replay
    talk.coordinator.replayed()
    talk.coordinator.settle()
    assert talk.coordinator.is_settled
    assert not talk.coordinator.must_replay


def test_table_is_excluded_despite_groups_applied_above_held_ones() -> None:
    talk = Talk(servers=2, transactions=1, on_error=OnError.DISABLE)
    assert brief(talk.accept(run(made(1, 1), made(2, 1), made(3, 3)))) == [
        (0, "Assignment", 1),
        (1, "Assignment", 2),
        (0, "Assignment", 3),
        (0, "Go", 1),
        (0, "Go", 3),
    ]
    talk.done(0, 3)
    error = TransactionError(
        number=7, transaction=0, commit_scn=150, depends_on=0, key_hashes=b"", conflict_type="insert_exists", message=""
    )
    assert talk.done(0, 1, errors=(error,)) == [(1, GroupAbandon(group=2, attempt=0))]
    assert talk.coordinator.must_replay
    talk.coordinator.replayed()
    talk.accept(run(made(2, 1)), Mark(through_scn=Scn(350)))
    reader = ApplyReader(
        source="dbs1", progress=talk.progress, rules=RuleEvaluation(RuleSet()), fits=FITS, tables=ArrivingTables({})
    )
    joins = TableJoins("t", "a", epoch=1, destination=MemoryDestination(), reader=reader, coordinator=talk.coordinator)
    left = joins.leave_out([("public", "plain")])
    assert joins.is_due
    assert not joins.advance()
    assert talk.coordinator.must_replay
    talk.coordinator.replayed()
    assert joins.is_due
    assert joins.advance()
    assert left.is_set()
    assert talk.coordinator.watermarks.progress == ApplyProgress(
        epoch=1, low_watermark=150, above=(ScnRange(after=250, through=350),)
    )


def test_large_transaction_held_by_a_deleted_error_is_applied() -> None:
    talk = Talk(errors=[(4, stored_hashes(run(made(9, 77)).hashes.hashes))])
    large = made(1, *range(1, 9), 77)
    talk.accept(part(large, 0, 3))
    assert brief(talk.accept(part(large, 3, 9))) == [(0, "Abandon", 1)]
    talk.coordinator.report(0, GroupAbandoned(group=1, attempt=0))
    talk.coordinator.errors.deleted(4)
    talk.coordinator.replayed()
    (assignment,) = assignments(talk.accept(part(large, 0, 3)))
    assert assignment.mode is GroupMode.SETS
    assert brief(talk.accept(part(large, 3, 9))) == [(0, "Part", 2)]
