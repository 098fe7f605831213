"""What an apply server does with one group: a destination transaction at a time.

Each kind of work has `step()`: it makes one attempt at the next destination transaction (or, of a streamed
transaction, at its next part) and returns the group's last message when the group is at its end. State changes
only when an attempt has succeeded, so after `DatabaseUnavailable` the same step is simply made again.

A COMMIT whose answer was lost is remembered as a doubt; on a new session `settle` asks for its outcome first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from databases.ports import DestinationSession, ErrorTransaction, ScnRange
from spark_apply.collapse import FitOf, Step, plan_sets
from spark_apply.conflicts import ShowValue, apply_rows, execute_steps
from spark_apply.dependencies import KeyHashes, hash_batch, held_transactions, stored_hashes
from spark_apply.errors import HASHES_PER_ERROR_MAX, bounded_hashes, tables_only
from spark_apply.groups import (
    AppliedRange,
    Failure,
    GroupAssignment,
    GroupGo,
    GroupPart,
    GroupResult,
    GroupRetry,
    GroupStatistics,
    PartDone,
    RetryReason,
    ServerMessage,
    TransactionError,
)
from spark_apply.selection import row_transactions, select_rows, slice_transactions
from streams.errors import DatabaseUnavailable, DataError, UnfitTableError
from streams.failpoints import failpoint
from streams.lcr_batch import LcrBatch
from streams.scn import Scn

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ExecuteWork", "LargeErrorWork", "LargeWork", "SetsWork", "Work", "WorkContext"]

_HELD = Failure(position=-1, conflict_type="", sqlstate="", message="it depends on a transaction in the error queue")


def _refused_at_commit(error: DataError, batch: LcrBatch) -> Failure:
    """A constraint that is checked at the end of the transaction: its last row stands for all."""
    position = batch.first_position + batch.row_count - 1
    sqlstate = str(error.context.get("sqlstate", ""))
    return Failure(position=position, conflict_type="", sqlstate=sqlstate, message=error.message)


@dataclass(slots=True, kw_only=True)
class WorkContext:
    """What every work needs of its server.

    Args:
        apply: the apply process.
        source: whose transactions it applies.
        session: the destination session; replaced when it broke.
        fit_of: fits of the destination's tables.
        decode: reads a serialized batch.
        encode: serializes a batch.
        error_batches: reads an error transaction's parts.
        show: how a failing row's values are shown.
    """

    apply: str
    source: str
    session: DestinationSession
    fit_of: FitOf
    decode: Callable[[bytes], LcrBatch]
    encode: Callable[[LcrBatch], bytes]
    error_batches: Callable[[int], Iterator[bytes]]
    show: ShowValue


@dataclass(slots=True)
class _Totals:
    transactions: int = 0
    rows: int = 0
    rows_written: int = 0
    commits: int = 0
    rollbacks: int = 0
    retried: int = 0
    last_commit_time_us: int = 0

    def frozen(self) -> GroupStatistics:
        return GroupStatistics(
            transactions=self.transactions, rows=self.rows, rows_written=self.rows_written, commits=self.commits,
            rollbacks=self.rollbacks, retried=self.retried, last_commit_time_us=self.last_commit_time_us,
        )


@dataclass(slots=True)
class _Doubt:
    """A commit without an answer."""

    applied: tuple[ScnRange, ...]
    succeed: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Queued:
    """A transaction that is in the error queue when the commit is made."""

    number: int
    failure: Failure
    depends_on: int


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a destination transaction did."""

    errors: dict[int, _Queued]
    rows: int
    written: int


class Work(Protocol):
    """One group being applied."""

    totals: _Totals

    @property
    def is_ready(self) -> bool:
        """A step can be made now."""
        ...

    @property
    def is_begun(self) -> bool:
        """A destination transaction is open between steps."""
        ...

    @property
    def has_doubt(self) -> bool:
        """A commit has no answer: only a new session can tell."""
        ...

    def prepare(self) -> bool:
        """Do what can be done before the go; False when there is nothing."""
        ...

    def let_go(self, go: GroupGo) -> None:
        """It may write."""
        ...

    def add_part(self, part: GroupPart) -> None:
        """A streamed transaction's next part."""
        ...

    def step(self) -> tuple[ServerMessage, bool] | None:
        """One attempt. A message to send and whether it is the last; None: go on."""
        ...

    def broken(self, *, retried: bool) -> ServerMessage | None:
        """The transaction was rolled back; the last message when the work cannot begin it again."""
        ...

    def given_back(self) -> ServerMessage | None:
        """A table does not fit any more: what gives the group back, to be read again; None: it stays, or has ended."""
        ...

    def settle(self) -> ServerMessage | None:
        """On a new session: find out what became of a commit without an answer; the last message, if any."""
        ...


class _Base:
    """Commit, doubts and totals."""

    def __init__(self, assignment: GroupAssignment, context: WorkContext) -> None:
        self._assignment, self._context = assignment, context
        self._go: GroupGo | None = None
        self._doubt: _Doubt | None = None
        self._applied: list[AppliedRange] = []
        self._errors: list[TransactionError] = []
        self.totals = _Totals()

    @property
    def is_ready(self) -> bool:
        return self._go is not None

    @property
    def is_begun(self) -> bool:
        return False

    @property
    def has_doubt(self) -> bool:
        return self._doubt is not None

    def prepare(self) -> bool:
        return False

    def let_go(self, go: GroupGo) -> None:
        self._go = go

    def add_part(self, part: GroupPart) -> None:
        raise NotImplementedError

    def broken(self, *, retried: bool) -> ServerMessage | None:
        self.totals.retried += int(retried and self._go is not None)
        return None

    def given_back(self) -> ServerMessage | None:
        return self.broken(retried=False)

    def settle(self) -> ServerMessage | None:
        if self._doubt is None:
            return None
        # Cleared only when the answer is known: the new session may break too.
        made = self._context.session.ask_outcome(self._doubt.applied)
        doubt, self._doubt = self._doubt, None
        if made:
            doubt.succeed()
        return None

    def _commit(self, applied: tuple[ScnRange, ...], succeed: Callable[[], None]) -> None:
        assert self._go is not None
        failpoint("apply.before_commit")
        try:
            self._context.session.commit(applied, Scn(self._go.low_watermark))
        except DatabaseUnavailable:
            if applied:
                self._doubt = _Doubt(applied, succeed)
            raise
        failpoint("apply.after_commit")
        succeed()

    def _roll_back(self) -> None:
        self._context.session.rollback()
        self.totals.rollbacks += 1

    def _check_fit(self, batch: LcrBatch) -> None:
        """Before a transaction is taken for a failed one: its tables may have been altered since they were described.

        Raises:
            UnfitTableError: one does not fit: the transaction waits for the ALTER.
        """
        session = self._context.session
        used = {group.table for group in batch.groups} | {table for found in batch.truncates for table in found.tables}
        for version in (batch.tables[table] for table in sorted(used)):
            session.describe(version.owner, version.name, fresh=True)
            hint = session.missing_alter(version)
            if hint:
                raise UnfitTableError(
                    f"table {version.qualified_name} at the destination does not fit the LCRs: {hint}", hint=hint,
                    table=version.qualified_name,
                )

    def _result(self, failure: Failure | None = None) -> GroupResult:
        return GroupResult(
            group=self._assignment.group, attempt=self._assignment.attempt, applied=tuple(self._applied),
            errors=tuple(self._errors), statistics=self.totals.frozen(), failure=failure,
        )

    def _retry(self, reason: RetryReason, next_transaction: int, failure: Failure | None = None) -> GroupRetry:
        return GroupRetry(
            group=self._assignment.group, attempt=self._assignment.attempt, reason=reason,
            next_transaction=next_transaction, applied=tuple(self._applied), errors=tuple(self._errors),
            statistics=self.totals.frozen(), failure=failure,
        )

    def _describe(self, batch: LcrBatch, transaction: int, failure: Failure, depends_on: int) -> ErrorTransaction:
        found = batch.transactions
        rows = int(found.first_row[transaction + 1] - found.first_row[transaction])
        return ErrorTransaction(
            number=0, apply=self._context.apply, source=self._context.source,
            transaction_id=int(found.transaction_id[transaction]), row_count=rows,
            # An open part does not know it yet; the order SCN is just below it.
            commit_scn=Scn(int(found.commit_scn[transaction] or found.order_scn[transaction])),
            commit_time_us=int(found.commit_time_us[transaction]), failed_position=failure.position,
            depends_on=depends_on, conflict_type=failure.conflict_type, sqlstate=failure.sqlstate,
            message=failure.message, created_us=0,
        )


class SetsWork(_Base):
    """A group of whole transactions: as sets, bisected where that fails, in the end row by row."""

    def __init__(self, assignment: GroupAssignment, context: WorkContext) -> None:
        super().__init__(assignment, context)
        self._batches: list[LcrBatch] | None = None
        self._ranges: list[tuple[int, int]] = []  # transactions to do, the next one last
        self._plan: list[Step] | None = None  # of the whole group
        self._hashes: KeyHashes | None = None
        self._failed: dict[int, int] = {}  # transaction -> its number in the error queue
        self._behind: NDArray[np.int64] | None = None  # see `held_transactions`; None: nothing is held
        self._behind_stale = False

    def prepare(self) -> bool:
        """Decode and plan the whole group."""
        if self._batches is not None and self._plan is not None:
            return False
        self._decode()
        first = self._assignment.first_transaction
        if self._plan is None:
            self._plan = plan_sets(self._slice(first, self._count, None), self._context.fit_of)
        return True

    def step(self) -> tuple[ServerMessage, bool] | None:
        """One attempt at the next range of transactions."""
        self._decode()
        if not self._ranges:
            return self._result(), True
        if self._behind_stale:
            self._find_held()
        first, last = self._ranges[-1]
        if self._apply_range(first, last):
            return None
        if last - first > 1:
            middle = (first + last) // 2
            self._ranges[-1:] = [(middle, last), (first, middle)]
            return None
        assert self._go is not None
        if not self._go.below_applied:
            return self._retry(RetryReason.BELOW, first), True
        self._apply_alone(first)
        return None

    # ------------------------------------------------------------------ transactions of the group

    def _decode(self) -> None:
        if self._batches is not None:
            return
        self._batches = [self._context.decode(data) for data in self._assignment.batches]
        self._starts = np.cumsum([0, *[len(batch.transactions) for batch in self._batches]])
        self._count = int(self._starts[-1])
        self._commit_scns = np.concatenate([batch.transactions.commit_scn for batch in self._batches])
        self._times_us = np.concatenate([batch.transactions.commit_time_us for batch in self._batches])
        first = self._assignment.first_transaction
        self._ranges = [(first, self._count)]
        if self._assignment.attempt and self._count - first > 1:
            # Handed out again: the first of them is what failed, or follows what was done.
            self._ranges = [(first + 1, self._count), (first, first + 1)]

    def given_back(self) -> ServerMessage | None:
        """What of it is committed stays so; the reader, which knows how the table was altered since, sees the rest."""
        if self._doubt is not None:
            return None
        return self._retry(RetryReason.REPLAY, self._ranges[-1][0] if self._ranges else 0)

    def let_go(self, go: GroupGo) -> None:
        """It may write; some of its transactions may have to join the error queue."""
        super().let_go(go)
        self._behind_stale = bool(go.held)

    def _slice(self, first: int, last: int, behind: NDArray[np.int64] | None) -> list[LcrBatch]:
        """The rows of some transactions, without those that are held."""
        assert self._batches is not None
        pieces = []
        for start, batch in zip(self._starts.tolist(), self._batches, strict=False):
            low, high = max(first - start, 0), min(last - start, len(batch.transactions))
            if low >= high:
                continue
            piece = slice_transactions(batch, low, high)
            if behind is not None:
                free = behind[start + low : start + high] < 0
                piece = select_rows(piece, free[row_transactions(piece.transactions)])
            pieces.append(piece)
        return pieces

    def _one(self, transaction: int) -> LcrBatch:
        (batch,) = self._slice(transaction, transaction + 1, None)
        return batch

    def _range(self, first: int, last: int) -> ScnRange:
        assignment = self._assignment
        after = assignment.after_scn if first == 0 else int(self._commit_scns[first - 1])
        through = assignment.through_scn if last == self._count else int(self._commit_scns[last - 1])
        return ScnRange(after=Scn(after), through=Scn(through))

    # ------------------------------------------------------------------ attempts

    def _apply_range(self, first: int, last: int) -> bool:
        """Try transactions as sets in one destination transaction; False: rolled back."""
        behind = self._behind
        batches = self._slice(first, last, behind)
        whole = behind is None and last == self._count and first == self._assignment.first_transaction
        steps = self._plan if whole and self._plan is not None else plan_sets(batches, self._context.fit_of)
        self._context.session.begin()
        try:
            written = execute_steps(self._context.session, steps)
            if written is not None:
                errors = self._put_held([] if behind is None else [t for t in range(first, last) if behind[t] >= 0])
                self._finish_range(first, last, _Outcome(errors, sum(b.row_count for b in batches), written))
                return True
        except DataError:
            # While writing, or of a constraint that is checked at the end of the transaction.
            pass
        self._roll_back()
        return False

    def _apply_alone(self, transaction: int) -> None:
        """One transaction row by row, everything below is applied: now a failure is a conflict."""
        session, batch = self._context.session, self._one(transaction)
        session.begin()
        failure = apply_rows(session, batch, self._context.fit_of, self._context.show)
        if failure is None:
            try:
                self._finish_range(transaction, transaction + 1, _Outcome({}, batch.row_count, batch.row_count))
                return
            except DataError as error:
                failure = _refused_at_commit(error, batch)
        self._roll_back()
        self._check_fit(batch)
        session.begin()
        failpoint("apply.error_queue_write")
        number = self._put(transaction, failure, 0)
        self._finish_range(transaction, transaction + 1, _Outcome({transaction: _Queued(number, failure, 0)}, 0, 0))

    def _put_held(self, held: Sequence[int]) -> dict[int, _Queued]:
        errors: dict[int, _Queued] = {}
        for transaction in held:
            failpoint("apply.error_queue_write")
            depends_on = self._depends_on(transaction, errors)
            errors[transaction] = _Queued(self._put(transaction, _HELD, depends_on), _HELD, depends_on)
        return errors

    def _depends_on(self, transaction: int, errors: Mapping[int, _Queued]) -> int:
        assert self._go is not None
        assert self._behind is not None
        direct = [held.depends_on for held in self._go.held if held.transaction == transaction]
        other = int(self._behind[transaction])
        number = errors[other].number if other in errors else self._failed.get(other, 0)
        return max([number, *direct])

    def _put(self, transaction: int, failure: Failure, depends_on: int) -> int:
        batch = self._one(transaction)
        return self._context.session.put_error(
            self._describe(batch, 0, failure, depends_on), self._context.encode(batch), self._stored(transaction),
            part=0, readable=failure.readable,
        )

    def _finish_range(self, first: int, last: int, outcome: _Outcome) -> None:
        found = self._range(first, last)
        self._commit((found,), lambda: self._done(first, last, outcome, found))

    def _done(self, first: int, last: int, outcome: _Outcome, found: ScnRange) -> None:
        self._ranges.pop()
        self._applied.append(AppliedRange(after_scn=found.after, through_scn=found.through))
        for transaction, queued in outcome.errors.items():
            self._failed[transaction] = queued.number
            self._errors.append(TransactionError(
                number=queued.number, transaction=transaction, commit_scn=int(self._commit_scns[transaction]),
                depends_on=queued.depends_on, key_hashes=self._stored(transaction).tobytes(),
                conflict_type=queued.failure.conflict_type, message=queued.failure.message,
            ))
            # What depends on a transaction that was held is held already.
            self._behind_stale = self._behind_stale or queued.depends_on == 0
        self.totals.commits += 1
        self.totals.transactions += last - first - len(outcome.errors)
        self.totals.rows += outcome.rows
        self.totals.rows_written += outcome.written
        self.totals.last_commit_time_us = max(self.totals.last_commit_time_us, int(self._times_us[last - 1]))

    # ------------------------------------------------------------------ what is held

    def _hash(self) -> KeyHashes:
        if self._hashes is None:
            assert self._batches is not None
            self._hashes = KeyHashes.joined([hash_batch(batch, self._context.fit_of) for batch in self._batches])
        return self._hashes

    def _stored(self, transaction: int) -> NDArray[np.uint64]:
        return bounded_hashes(stored_hashes(self._hash().of(transaction)))

    def _find_held(self) -> None:
        """Find out which transactions must join the error queue behind others of the group."""
        assert self._go is not None
        held = {found.transaction for found in self._go.held} | set(self._failed)
        # What an earlier attempt did is done, whatever it has in common with what is held.
        first = self._assignment.first_transaction
        behind = held_transactions(self._hash().part(first, self._count), [t - first for t in held if t >= first])
        self._behind = np.full(self._count, -1, np.int64)
        self._behind[first:] = np.where(behind >= 0, behind + first, -1)
        self._behind_stale = False


class _LargeBase(_Base):
    """A streamed transaction: its parts in one destination transaction."""

    def __init__(self, assignment: GroupAssignment, context: WorkContext) -> None:
        super().__init__(assignment, context)
        self._parts: deque[GroupPart] = deque()
        self._begun = False
        self._committed: GroupResult | None = None

    @property
    def is_ready(self) -> bool:
        return self._go is not None and bool(self._parts)

    @property
    def is_begun(self) -> bool:
        return self._begun

    def add_part(self, part: GroupPart) -> None:
        self._parts.append(part)

    def broken(self, *, retried: bool) -> ServerMessage | None:
        """What was written is lost, and the parts are gone: unless the commit was made, they must come again."""
        super().broken(retried=retried)
        return None if self._doubt is not None or not self._begun else self._retry(RetryReason.REPLAY, 0)

    def step(self) -> tuple[ServerMessage, bool] | None:
        """One part."""
        part = self._parts[0]
        batch = self._context.decode(part.batch)
        if not self._begun:
            self._context.session.begin()
            self._begun = True
        failure = self._write(batch, part.part)
        if failure is None and part.is_last:
            failure = self._finish(batch, part)
        if failure is not None:
            self._roll_back()
            self._check_fit(batch)
            return self._retry(RetryReason.REPLAY, 0, failure), True
        self._parts.popleft()
        if part.is_last:
            return self._end(), True
        self.totals.rows += batch.row_count
        return PartDone(group=part.group, attempt=part.attempt, part=part.part), False

    def _finish(self, batch: LcrBatch, part: GroupPart) -> Failure | None:
        found = ScnRange(after=Scn(self._assignment.after_scn), through=Scn(part.through_scn))
        try:
            self._commit((found,), lambda: self._succeed(found, batch))
        except DataError as error:
            return _refused_at_commit(error, batch)
        return None

    def _end(self) -> GroupResult:
        assert self._committed is not None
        return self._committed

    def settle(self) -> ServerMessage | None:
        """When the commit was not made, everything must come again."""
        super().settle()
        return self._retry(RetryReason.REPLAY, 0) if self._begun and self._committed is None else self._committed

    def _succeed(self, found: ScnRange, batch: LcrBatch) -> None:
        self._applied.append(AppliedRange(after_scn=found.after, through_scn=found.through))
        self.totals.commits += 1
        self.totals.rows += batch.row_count
        self.totals.last_commit_time_us = int(batch.transactions.commit_time_us[0])
        self._conclude(batch)
        self._committed = self._result()

    def _conclude(self, batch: LcrBatch) -> None:
        raise NotImplementedError

    def _write(self, batch: LcrBatch, part: int) -> Failure | None:
        raise NotImplementedError


class LargeWork(_LargeBase):
    """Parts as sets; a part that fails goes row by row at once, for everything below is applied."""

    def _write(self, batch: LcrBatch, part: int) -> Failure | None:  # noqa: ARG002 - which one does not matter
        session = self._context.session
        steps = plan_sets([batch], self._context.fit_of)
        session.savepoint()
        try:
            written = execute_steps(session, steps)
        except DataError:
            written = None
        if written is None:
            session.rollback_to_savepoint()
            failure = apply_rows(session, batch, self._context.fit_of, self._context.show)
            written = batch.row_count
            if failure is not None:
                return failure
        self.totals.rows_written += written
        return None

    def _conclude(self, batch: LcrBatch) -> None:  # noqa: ARG002 - nothing of it is needed
        self.totals.transactions += 1


class LargeErrorWork(_LargeBase):
    """Parts into the error queue."""

    def __init__(self, assignment: GroupAssignment, context: WorkContext) -> None:
        super().__init__(assignment, context)
        self._number = 0
        self._stored: list[NDArray[np.uint64]] = []

    def _write(self, batch: LcrBatch, part: int) -> Failure | None:
        failpoint("apply.error_queue_write")
        failure = self._assignment.failure or _HELD
        hashes = stored_hashes(hash_batch(batch, self._context.fit_of).hashes)
        if sum(found.shape[0] for found in self._stored) + hashes.shape[0] > HASHES_PER_ERROR_MAX:
            hashes = tables_only(hashes)
        described = self._describe(batch, 0, failure, self._assignment.error_number)
        self._number = self._context.session.put_error(
            replace(described, number=self._number), self._parts[0].batch, hashes, part=part, readable=failure.readable,
        )
        self._stored.append(hashes)
        return None

    def _conclude(self, batch: LcrBatch) -> None:
        failure = self._assignment.failure or _HELD
        self._errors.append(TransactionError(
            number=self._number, transaction=0, commit_scn=int(batch.transactions.commit_scn[0]),
            depends_on=self._assignment.error_number, key_hashes=np.unique(np.concatenate(self._stored)).tobytes(),
            conflict_type=failure.conflict_type, message=failure.message,
        ))


class ExecuteWork(_Base):
    """An error transaction again, row by row, deleted from the error queue with its data."""

    def step(self) -> tuple[ServerMessage, bool] | None:
        """The whole error transaction."""
        session, number = self._context.session, self._assignment.error_number
        session.begin()
        # Not there any more: deleted, or executed by a commit whose answer was lost.
        failure = self._execute(number) if session.delete_error(number) else None
        if not self.totals.commits:
            self._roll_back()
        return self._result(failure), True

    def _execute(self, number: int) -> Failure | None:
        rows = 0
        for data in self._context.error_batches(number):
            batch = self._context.decode(data)
            failure = self._apply(batch)
            if failure is not None:
                return failure
            rows += batch.row_count
        failpoint("apply.execute_error")
        try:
            self._commit((), lambda: None)
        except DataError as error:
            return _refused_at_commit(error, batch)
        self.totals.commits += 1
        self.totals.transactions += 1
        self.totals.rows += rows
        self.totals.rows_written += rows
        return None

    def _apply(self, batch: LcrBatch) -> Failure | None:
        try:
            return apply_rows(self._context.session, batch, self._context.fit_of, self._context.show)
        except UnfitTableError as error:
            # Nothing waits for the ALTER here: the transaction stays in the error queue.
            return Failure(position=-1, conflict_type="", sqlstate="", message=f"{error.message} ({error.hint})")
