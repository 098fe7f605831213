"""The apply server: bisection, the error queue, lost answers, unavailability, ALTER, execution of errors.

Longer than 500 lines: all tests share the server over one destination in memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from headrace.base.errors import DatabaseError, DatabaseUnavailable, FencedError
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore
from headrace.databases.ports import ErrorTransaction
from headrace.lcr.batch import Command, LcrBatch, OldImage
from protos import codec
from spark_apply.conversation.groups import (
    GroupAbandon,
    GroupAbandoned,
    GroupGo,
    GroupMode,
    GroupPart,
    GroupResult,
    GroupRetry,
    HeldTransaction,
    PartDone,
    RetryReason,
    ServerMessage,
)
from spark_apply.server.apply_server import ApplyServer
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY, replace_failpoints
from tests.support.apply.groups import error_group, streamed_group, whole_group
from tests.support.histories.apply_history import Change, Table, Transaction, batch_of

T = Table(11, "plain", ("id", "v", "big"), OldImage.KEY)
OTHER = Table(12, "other", ("id", "v", "big"), OldImage.KEY)


def k(number: int) -> bytes:
    return number.to_bytes(4, "big")


def insert(key: int, value: bytes = b"v") -> Change:
    return Change(T, Command.INSERT, new=(k(key), value, b"b"))


def update(key: int, value: bytes) -> Change:
    return Change(T, Command.UPDATE, old=(k(key), b"?", b"b"), new=(k(key), value, b"b"), unchanged=frozenset({2}))


class Serving:
    """A server at a destination with table `plain`."""

    def __init__(self, *rows: int) -> None:
        self.store = MemoryStore()
        T.create(self.store)
        self.store.insert("public", "plain", [(k(row), b"old", b"b") for row in rows])
        self.database = MemoryDestination(store=self.store)
        self.epoch = self.database.raise_epoch(TOPOLOGY, APPLY).epoch
        self.opened = 0
        self.now = 0.0
        self.waits: list[float] = []
        self.copied: dict[tuple[str, str], int] = {}
        self.server = self.start()

    def start(self, error_batches: Callable[[int], Iterable[bytes]] | None = None) -> ApplyServer:
        server = ApplyServer(
            apply=APPLY,
            source=SOURCE,
            open_session=self._open,
            decode=codec.decode,
            encode=codec.encode,
            error_batches=error_batches or self.database.error_batches,
            copied_scns=lambda: self.copied,
        )
        server.connect()
        return server

    def _open(self) -> object:
        self.opened += 1
        return self.database.open_session(TOPOLOGY, APPLY, server=0, epoch=self.epoch, tag=b"\0")

    def assign(self, *transactions: Transaction, below_applied: bool = True, **fields: Any) -> None:
        batch = batch_of(transactions, 50)
        held = fields.pop("held", ())
        self.server.receive(
            whole_group(codec.encode(batch), **{"after_scn": 50, "through_scn": batch.through_scn, **fields})
        )
        self.server.receive(
            GroupGo(
                group=1,
                attempt=int(fields.get("attempt", 0)),
                low_watermark=50,
                below_applied=below_applied,
                held=held,
            )
        )

    def work(self, steps: int = 200) -> list[ServerMessage]:
        """Step until no work is left; the clock follows the server's wake-up times."""
        reports: list[ServerMessage] = []
        for _ in range(steps):
            done = self.server.step(self.now)
            reports += done.reports
            if done.wake_at is not None:
                self.waits.append(done.wake_at - self.now)
                self.now = done.wake_at
            elif done.is_idle:
                return reports
        return reports

    def errors(self) -> list[ErrorTransaction]:
        return list(self.database.errors(TOPOLOGY, APPLY))

    def values(self) -> dict[int, bytes | None]:
        return {int.from_bytes(row[0], "big"): row[1] for row in self.store.rows("public", "plain")}


def test_a_group_is_one_destination_transaction() -> None:
    at = Serving(1)
    at.assign(Transaction(1, [update(1, b"a")]), Transaction(2, [update(1, b"b"), insert(2)]))
    (result,) = at.work()
    assert isinstance(result, GroupResult)
    assert [(found.after_scn, found.through_scn) for found in result.applied] == [(50, 250)]
    assert (result.statistics.transactions, result.statistics.rows, result.statistics.rows_written) == (2, 3, 2)
    assert at.store.commit_count == 1
    assert at.values() == {1: b"b", 2: b"v"}


def test_group_is_prepared_but_not_written_before_the_go() -> None:
    at = Serving()
    batch = batch_of([Transaction(1, [insert(1)])], 50)
    at.server.receive(whole_group(codec.encode(batch), after_scn=50, through_scn=150))
    assert at.work() == []
    assert (at.server.state, at.store.commit_count) == ("WAIT DEPENDENCY", 0)
    at.server.receive(GroupGo(group=1, attempt=0, low_watermark=50, below_applied=True))
    assert len(at.work()) == 1


def test_lowest_permitted_group_is_written_first() -> None:
    at = Serving()
    for group, key in ((3, 3), (2, 2)):
        data = codec.encode(batch_of([Transaction(group, [insert(key)])], group * 100 - 50))
        at.server.receive(whole_group(data, group=group, after_scn=group * 100 - 50, through_scn=group * 100 + 50))
        at.server.receive(GroupGo(group=group, attempt=0, low_watermark=50, below_applied=False))
    assert [report.group for report in at.work()] == [2, 3]


def test_only_the_conflicting_transaction_goes_to_the_error_queue() -> None:
    at = Serving(1)
    at.assign(*[Transaction(n, [insert(n + 10)] if n != 3 else [insert(20), update(5, b"x")]) for n in range(1, 7)])
    (result,) = at.work()
    assert isinstance(result, GroupResult)
    (error,) = at.errors()
    assert (error.transaction_id, error.conflict_type, error.failed_position, error.depends_on) == (
        3,
        "update_missing",
        1,
        0,
    )
    assert "new.v=\\x78" in error.readable
    assert [(e.transaction, e.number) for e in result.errors] == [(2, error.number)]
    assert sorted(at.values()) == [1, 11, 12, 14, 15, 16]
    progress = at.database.progress(TOPOLOGY, APPLY)
    assert progress is not None
    assert progress.low_watermark == 650
    (data,) = at.database.error_batches(error.number)
    assert codec.decode(data).transactions.transaction_id.tolist() == [3]


def test_transactions_of_the_group_that_depend_on_a_failed_one_join_it() -> None:
    at = Serving(1)
    at.assign(
        Transaction(1, [update(5, b"x")]),
        Transaction(2, [update(5, b"y"), insert(6)]),
        Transaction(3, [update(6, b"z")]),
        Transaction(4, [insert(7)]),
    )
    at.work()
    assert [(e.transaction_id, e.depends_on) for e in at.errors()] == [(1, 0), (2, 1), (3, 2)]
    assert sorted(at.values()) == [1, 7]


def test_held_transactions_join_the_error_queue_with_their_groups_data() -> None:
    at = Serving()
    at.assign(
        Transaction(1, [insert(1)]), Transaction(2, [insert(2)]), held=(HeldTransaction(transaction=0, depends_on=77),)
    )
    at.work()
    assert [(e.transaction_id, e.depends_on, e.failed_position) for e in at.errors()] == [(1, 77, -1)]
    assert at.store.commit_count == 1
    assert at.values() == {2: b"v"}


def test_failure_is_not_a_conflict_before_everything_below_is_applied() -> None:
    at = Serving()
    at.assign(
        Transaction(1, [insert(1)]), Transaction(2, [update(9, b"x")]), Transaction(3, [insert(3)]), below_applied=False
    )
    (retry,) = at.work()
    assert isinstance(retry, GroupRetry)
    assert (retry.reason, retry.next_transaction) == (RetryReason.BELOW, 1)
    assert [(found.after_scn, found.through_scn) for found in retry.applied] == [(50, 150)]
    assert at.errors() == []
    at.store.insert("public", "plain", [(k(9), b"there now", b"b")])
    at.assign(
        Transaction(1, [insert(1)]),
        Transaction(2, [update(9, b"x")]),
        Transaction(3, [insert(3)]),
        attempt=1,
        first_transaction=1,
    )
    (result,) = at.work()
    assert isinstance(result, GroupResult)
    assert at.values() == {1: b"v", 3: b"v", 9: b"x"}
    assert at.errors() == []


@pytest.mark.parametrize("committed", [True, False])
def test_commit_with_a_lost_answer_is_made_exactly_once(committed: bool) -> None:
    at = Serving(1)
    at.store.lose_next_commit_answer(committed=committed)
    at.assign(Transaction(1, [insert(2)]), Transaction(2, [update(1, b"x")]))
    (result,) = at.work()
    assert isinstance(result, GroupResult)
    assert (result.statistics.transactions, at.store.commit_count, at.opened) == (2, 1, 2)
    assert at.values() == {1: b"x", 2: b"v"}


@pytest.mark.parametrize("committed", [True, False])
def test_error_with_a_lost_commit_answer_is_queued_exactly_once(committed: bool) -> None:
    at = Serving()
    at.store.lose_next_commit_answer(committed=committed)
    at.assign(Transaction(1, [update(9, b"x")]))
    (result,) = at.work()
    assert isinstance(result, GroupResult)
    assert [e.number for e in result.errors] == [e.number for e in at.errors()]
    assert len(at.errors()) == 1


def test_unreachable_database_is_retried_with_growing_delays() -> None:
    at = Serving()
    at.assign(Transaction(1, [insert(1)]))
    at.store.is_reachable = False
    assert at.work(steps=9) == []
    assert at.server.state == "ROLLBACK TRANSACTION"
    assert at.waits[:3] == pytest.approx([0.1, 0.2, 0.4])
    assert at.waits[-1] == pytest.approx(5.0)
    at.store.is_reachable = True
    (result,) = at.work()
    assert isinstance(result, GroupResult)
    assert (at.errors(), at.values(), at.server.state) == ([], {1: b"v"}, "IDLE")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_closed_session_is_replaced_after_its_first_failure(is_streamed: bool) -> None:
    """It cannot become usable again: a second failure would only replace the cause in the server's last error."""
    at = Serving(1)
    at.store.processes[TOPOLOGY, APPLY].sessions[0].close()
    if is_streamed:
        data = codec.encode(batch_of([Transaction(1, [update(1, b"x")])], 50))
        at.server.receive(streamed_group(after_scn=50))
        at.server.receive(GroupGo(group=1, attempt=0, low_watermark=50, below_applied=True))
        at.server.receive(GroupPart(group=1, attempt=0, part=0, batch=data, is_last=True, through_scn=150))
    else:
        at.assign(Transaction(1, [update(1, b"x")]))
    (result,) = at.work()
    assert isinstance(result, GroupResult)
    assert (at.values(), at.opened) == ({1: b"x"}, 2)
    assert at.waits == pytest.approx([0.1])


def test_session_that_closed_before_an_execution_is_replaced_after_its_first_failure() -> None:
    at = Serving()
    at.assign(Transaction(1, [update(9, b"x")]))
    at.work()
    (error,) = at.errors()
    at.store.insert("public", "plain", [(k(9), b"old", b"b")])
    at.store.processes[TOPOLOGY, APPLY].sessions[0].close()
    at.server.receive(error_group(error.number, group=2, scn=0))
    at.server.receive(GroupGo(group=2, attempt=0, low_watermark=0, below_applied=True))
    (result,) = at.work()
    assert isinstance(result, GroupResult)
    assert (result.executed, result.failure, at.values(), at.errors()) == (1, None, {9: b"x"}, [])
    assert at.opened == 2
    assert at.waits == pytest.approx([0.1])


def test_unavailable_lock_is_awaited_with_the_same_session() -> None:
    at = Serving(1)
    other = at.database.open_session(TOPOLOGY, APPLY, server=9, epoch=at.epoch, tag=b"\0")
    blocker = ApplyServer(
        apply=APPLY,
        source=SOURCE,
        open_session=lambda: other,
        decode=codec.decode,
        encode=codec.encode,
        error_batches=at.database.error_batches,
    )
    blocker.connect()
    part = codec.encode(batch_of([Transaction(9, [update(1, b"x"), insert(2)])], 50, first=0, last=1, is_open=True))
    blocker.receive(streamed_group(after_scn=50))
    blocker.receive(GroupGo(group=1, attempt=0, low_watermark=50, below_applied=True))
    blocker.receive(GroupPart(group=1, attempt=0, part=0, batch=part, is_last=False, through_scn=0))
    assert isinstance(blocker.step(0.0).reports[0], PartDone)
    at.assign(Transaction(1, [update(1, b"y")]))
    assert at.server.step(0.0).reports == ()
    other.rollback()
    (result,) = at.work()
    assert isinstance(result, GroupResult)
    assert (at.values(), at.opened, at.errors()) == ({1: b"y"}, 1, [])


def test_a_newer_incarnation_ends_the_server() -> None:
    at = Serving()
    at.assign(Transaction(1, [insert(1)]))
    at.database.raise_epoch(TOPOLOGY, APPLY)
    with pytest.raises(FencedError):
        at.work()
    assert at.values() == {}


def test_refused_connection_ends_the_server_without_error_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Serving()
    at.assign(Transaction(1, [insert(1)]))

    def refuse(*_: object) -> None:
        raise DatabaseError("not permitted", sqlstate="28000")

    monkeypatch.setattr("headrace.databases.memory.destination.MemorySession.write", refuse)
    with pytest.raises(DatabaseError, match="not permitted"):
        at.work()
    assert at.errors() == []


def test_group_whose_table_no_longer_fits_is_returned_for_rereading() -> None:
    at = Serving()
    at.assign(Transaction(1, [insert(1)]))
    narrow = Table(11, "plain", ("id", "v"), OldImage.KEY)
    narrow.create(at.store)
    step = at.server.step(at.now)
    (given_back,) = step.reports
    assert isinstance(given_back, GroupRetry)
    assert (given_back.reason, given_back.next_transaction, given_back.applied) == (RetryReason.REPLAY, 0, ())
    assert step.wake_at is not None
    assert at.server.state == "PAUSED: WAITING FOR ALTER"
    assert at.server.unfit is not None
    assert "ADD COLUMN big" in at.server.unfit.hint
    T.create(at.store)
    at.now = step.wake_at
    at.assign(Transaction(1, [insert(1)]), attempt=1)
    assert len(at.work()) == 1
    assert (at.values(), at.errors(), at.server.state) == ({1: b"v"}, [], "IDLE")


# --------------------------------------------------------------------------- streamed transactions

LARGE = Transaction(1, [insert(n) for n in range(30)])


def parts(transaction: Transaction, size: int = 10) -> list[LcrBatch]:
    ends = list(range(size, len(transaction.changes) + size, size))
    return [
        batch_of([transaction], 50, first=end - size, last=end, is_open=end < len(transaction.changes)) for end in ends
    ]


def stream(at: Serving, transaction: Transaction, **fields: object) -> list[ServerMessage]:
    at.server.receive(streamed_group(after_scn=50, **fields))
    at.server.receive(GroupGo(group=1, attempt=0, low_watermark=50, below_applied=True))
    reports: list[ServerMessage] = []
    for number, batch in enumerate(parts(transaction)):
        is_last = not batch.is_open
        at.server.receive(
            GroupPart(
                group=1,
                attempt=0,
                part=number,
                batch=codec.encode(batch),
                is_last=is_last,
                through_scn=batch.through_scn if is_last else 0,
            )
        )
        reports += at.work()
    return reports


def test_a_streamed_transaction_is_committed_with_its_last_part() -> None:
    at = Serving()
    found = stream(at, LARGE)
    assert [type(report) for report in found] == [PartDone, PartDone, GroupResult]
    assert (at.store.commit_count, len(at.values())) == (1, 30)


def test_streamed_transaction_that_fails_as_sets_is_written_row_by_row() -> None:
    """Two rows swap a unique value: as one set they fail, in order they do not."""
    unique = Table(13, "twice", ("id", "u", "v"), OldImage.KEY, unique=True)
    at = Serving()
    unique.create(at.store)
    changes = [Change(unique, Command.INSERT, new=(k(n), f"u{n}".encode(), b"v")) for n in range(10)]
    moved = [(k(n), f"u{n + 1}".encode(), b"v") for n in range(10)]
    changes += [Change(unique, Command.UPDATE, old=changes[n].new, new=moved[n]) for n in range(9, -1, -1)]
    assert isinstance(stream(at, Transaction(1, changes))[-1], GroupResult)
    assert at.store.rows("public", "twice") == moved


@pytest.mark.parametrize("committed", [True, False])
def test_streamed_transaction_with_a_lost_commit_is_done_or_replayed(committed: bool) -> None:
    at = Serving()
    at.store.lose_next_commit_answer(committed=committed)
    last = stream(at, LARGE)[-1]
    assert isinstance(last, GroupResult if committed else GroupRetry)
    assert len(at.values()) == (30 if committed else 0)


def test_failed_streamed_transaction_is_replayed_for_the_error_queue() -> None:
    at = Serving(25)
    last = stream(at, LARGE)[-1]
    assert isinstance(last, GroupRetry)
    assert last.reason is RetryReason.REPLAY
    assert last.failure is not None
    assert (last.failure.position, last.failure.conflict_type) == (25, "insert_exists")
    assert sorted(at.values()) == [25]
    found = stream(at, LARGE, mode=GroupMode.ERROR_QUEUE, failure=last.failure)[-1]
    assert isinstance(found, GroupResult)
    (error,) = at.errors()
    assert (error.transaction_id, error.failed_position, error.conflict_type) == (1, 25, "insert_exists")
    assert [codec.decode(data).row_count for data in at.database.error_batches(error.number)] == [10, 10, 10]
    assert [e.number for e in found.errors] == [error.number]


def test_interrupted_streamed_transaction_is_replayed_without_an_error() -> None:
    at = Serving()
    at.server.receive(streamed_group(after_scn=50))
    at.server.receive(GroupGo(group=1, attempt=0, low_watermark=50, below_applied=True))
    first, second, _ = (codec.encode(batch) for batch in parts(LARGE))
    at.server.receive(GroupPart(group=1, attempt=0, part=0, batch=first, is_last=False, through_scn=0))
    at.work()
    at.store.is_reachable = False
    at.server.receive(GroupPart(group=1, attempt=0, part=1, batch=second, is_last=False, through_scn=0))
    (retry,) = at.work(steps=1)
    assert isinstance(retry, GroupRetry)
    assert (retry.reason, retry.failure) == (RetryReason.REPLAY, None)


def test_an_abandoned_group_is_rolled_back() -> None:
    at = Serving()
    at.server.receive(streamed_group(after_scn=50))
    at.server.receive(GroupGo(group=1, attempt=0, low_watermark=50, below_applied=True))
    at.server.receive(
        GroupPart(
            group=1,
            attempt=0,
            part=0,
            batch=codec.encode(parts(LARGE)[0]),
            is_last=False,
            through_scn=0,
        )
    )
    at.work()
    assert (at.server.state, len(at.values())) == ("WAIT FOR NEXT CHUNK", 10)
    at.server.receive(GroupAbandon(group=1, attempt=0))
    at.server.receive(GroupAbandon(group=8, attempt=2))
    assert at.work() == [GroupAbandoned(group=1, attempt=0), GroupAbandoned(group=8, attempt=2)]
    assert at.values() == {}


# --------------------------------------------------------------------------- executing errors


def failed_update(at: Serving) -> int:
    at.assign(Transaction(1, [insert(1), update(5, b"x")]))
    at.work()
    return at.errors()[0].number


def execute(at: Serving, number: int) -> GroupResult:
    at.server.receive(error_group(number, group=2, scn=150))
    at.server.receive(GroupGo(group=2, attempt=0, low_watermark=150, below_applied=True))
    (result,) = at.work()
    assert isinstance(result, GroupResult)
    return result


def test_executed_error_is_deleted_with_its_data() -> None:
    at = Serving()
    number = failed_update(at)
    at.store.insert("public", "plain", [(k(5), b"mended", b"b")])
    before = at.store.commit_count
    assert execute(at, number).failure is None
    assert (at.values(), at.errors(), at.store.commit_count) == ({1: b"v", 5: b"x"}, [], before + 1)


def test_error_that_fails_again_stays_queued_and_changes_nothing() -> None:
    at = Serving()
    number = failed_update(at)
    failure = execute(at, number).failure
    assert failure is not None
    assert (failure.position, failure.conflict_type) == (1, "update_missing")
    assert (at.values(), [e.number for e in at.errors()]) == ({}, [number])


def test_error_older_than_its_tables_copy_overwrites_no_new_rows() -> None:
    at = Serving()
    number = failed_update(at)
    at.store.insert("public", "plain", [(k(5), b"newer", b"b")])
    at.copied["public", "plain"] = at.errors()[0].commit_scn
    failure = execute(at, number).failure
    assert failure is not None
    assert "copied again" in failure.message
    assert (at.values(), [e.number for e in at.errors()]) == ({5: b"newer"}, [number])


def test_error_whose_table_is_recopied_during_execution_changes_nothing() -> None:
    at = Serving()
    number = failed_update(at)
    at.store.insert("public", "plain", [(k(5), b"newer", b"b")])

    def begins(number: int) -> Iterator[bytes]:
        # Meanwhile the copy is recorded, and the table is emptied, copied and verified.
        at.copied = {("public", "plain"): at.errors()[0].commit_scn}
        return iter(at.database.error_batches(number))

    at.server = at.start(begins)
    failure = execute(at, number).failure
    assert failure is not None
    assert "execute it again" in failure.message
    assert (at.values(), [e.number for e in at.errors()]) == ({5: b"newer"}, [number])
    failure = execute(at, number).failure
    assert failure is not None
    assert "the copies have its changes" in failure.message


def test_execution_applies_only_the_tables_of_an_error_not_copied_since() -> None:
    at = Serving()
    OTHER.create(at.store)
    at.assign(Transaction(1, [update(5, b"x"), Change(OTHER, Command.INSERT, new=(k(1), b"v", b"b"))]))
    at.work()
    number = at.errors()[0].number
    at.store.insert("public", "plain", [(k(5), b"newer", b"b")])
    at.copied["public", "plain"] = at.errors()[0].commit_scn
    assert execute(at, number).failure is None
    assert at.values() == {5: b"newer"}
    assert [row[0] for row in at.store.rows("public", "other")] == [k(1)]
    assert at.errors() == []


@pytest.mark.parametrize("committed", [True, False])
def test_error_with_a_lost_execution_answer_is_executed_exactly_once(committed: bool) -> None:
    at = Serving()
    number = failed_update(at)
    at.store.insert("public", "plain", [(k(5), b"mended", b"b")])
    at.store.lose_next_commit_answer(committed=committed)
    assert execute(at, number).failure is None
    assert (at.values(), at.errors()) == ({1: b"v", 5: b"x"}, [])


def test_every_failpoint_of_the_server_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: set[str] = set()
    replace_failpoints(monkeypatch, passed.add)
    at = Serving()
    number = failed_update(at)
    at.store.insert("public", "plain", [(k(5), b"mended", b"b")])
    execute(at, number)
    assert passed == {
        "apply.before_commit",
        "apply.after_commit",
        "apply.conflict",
        "apply.error_queue_write",
        "apply.execute_error",
    }


def test_bisection_finds_any_set_of_failing_transactions() -> None:
    rng = random.Random(5)
    for _ in range(20):
        at = Serving()
        failing = {n for n in range(1, 17) if rng.random() < 0.2}
        at.assign(*[Transaction(n, [update(100 + n, b"x")] if n in failing else [insert(n)]) for n in range(1, 17)])
        (result,) = at.work()
        assert isinstance(result, GroupResult)
        assert {e.transaction_id for e in at.errors()} == failing
        assert set(at.values()) == set(range(1, 17)) - failing
        assert result.statistics.transactions == 16 - len(failing)


def test_a_failure_without_a_session_is_reported_to_the_host() -> None:
    at = Serving()
    at.store.is_reachable = False
    server = ApplyServer(
        apply=APPLY,
        source=SOURCE,
        open_session=at._open,
        decode=codec.decode,
        encode=codec.encode,
        error_batches=at.database.error_batches,
    )
    with pytest.raises(DatabaseUnavailable):
        server.connect()
    assert server.state == "INITIALIZING"
