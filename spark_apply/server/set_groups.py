"""Groups of whole transactions: applied as sets, bisected on failure, finally row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.errors import DataError
from headrace.base.failpoints import failpoint
from headrace.databases.ports import ScnRange
from headrace.lcr.batch import LcrBatch
from headrace.lcr.cutting import row_transactions, select_rows, slice_transactions
from headrace.lcr.scn import Scn
from spark_apply.conversation.groups import (
    AppliedRange,
    Failure,
    GroupAssignment,
    GroupGo,
    OnError,
    RetryReason,
    ServerMessage,
    TransactionError,
)
from spark_apply.dependencies.hashes import KeyHashes, hash_batch, held_transactions
from spark_apply.dependencies.holds import bounded_hashes
from spark_apply.handlers.final_rows import apply_final
from spark_apply.handlers.groups import GroupPlan, plan_group, write_group
from spark_apply.handlers.loaded import NOTHING_LOADED, AttemptFailed
from spark_apply.server.group_work import HELD, Work, WorkContext, refused_at_commit
from spark_apply.sets.collapse import ResolvablePlan, plan_resolvable, plan_sets
from spark_apply.sets.conflicts import execute_steps, resolve_rows
from spark_apply.sets.resolution import Resolution, failed_conflict
from spark_apply.sets.steps import Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SetsWork"]


@dataclass(frozen=True, slots=True)
class _Queued:
    """A transaction that the commit puts into the error queue."""

    number: int
    failure: Failure
    depends_on: int


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The effects of one destination transaction."""

    errors: dict[int, _Queued]
    rows: int
    written: int
    labels: tuple[str, ...] = ()  # labels of tracked transactions that are applied


class SetsWork(Work):
    """Applies a group of whole transactions as sets, bisects it on failure, and ends row by row."""

    def __init__(self, assignment: GroupAssignment, context: WorkContext) -> None:
        super().__init__(assignment, context)
        self._batches: list[LcrBatch] | None = None
        self._ranges: list[tuple[int, int]] = []  # remaining transactions, the next range last
        self._is_prepared = False
        self._plan: list[Step] | None = None  # plan of the whole group
        self._resolvable: ResolvablePlan | None = None  # the same, where conflicts are expected
        self._handled: GroupPlan | None = None  # the same, where rows go to users' handlers
        self._hashes: KeyHashes | None = None
        self._late = -1  # the transaction in which a handler's call timed out; -1: none
        self._failed: dict[int, int] = {}  # transaction -> its number in the error queue
        self._behind: NDArray[np.int64] | None = None  # from `held_transactions`; None: nothing is held
        self._behind_stale = False

    def prepare(self) -> bool:
        """Decode and plan the whole group."""
        if self._is_prepared:
            return False
        self._decode()
        batches, fit_of = self._slice(self._assignment.first_transaction, self._count, None), self._context.fit_of
        if self._is_handled(batches):
            self._handled = plan_group(batches, self._context.handlers, fit_of)
        else:
            if self._context.expects_conflicts and self._has_handlers:
                self._resolvable = plan_resolvable(batches, fit_of)
            self._plan = plan_sets(batches, fit_of) if self._resolvable is None else self._resolvable.steps
        self._is_prepared = True
        return True

    def step(self) -> tuple[ServerMessage, bool] | None:
        """Attempt the next range of transactions."""
        self._decode()
        if not self._ranges:
            return self._result(), True
        if self._failed and self._on_error is OnError.DISABLE:
            return self._retry(RetryReason.REPLAY, self._ranges[-1][0]), True
        if self._behind_stale:
            self._find_held()
        first, last = self._ranges[-1]
        if self._apply_range(first, last):
            return None
        if last - first > 1:
            # Halves would repeat a call that times out, in each of them.
            places = [self._late, self._late + 1] if first <= self._late < last else [(first + last) // 2]
            bounds = sorted({first, *places, last})
            self._ranges[-1:] = list(pairwise(bounds))[::-1]
            return None
        assert self._go is not None
        if not self._go.below_applied:
            return self._retry(RetryReason.BELOW, first), True
        self._apply_alone(first)
        return None

    @property
    def _on_error(self) -> OnError:
        assert self._go is not None
        return self._go.on_error

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
            # Assigned again: its first transaction is the one that failed, or follows the finished ones.
            self._ranges = [(first + 1, self._count), (first, first + 1)]

    def given_back(self) -> ServerMessage | None:
        """Keep committed transactions; the reader, which knows the altered table, processes the rest again."""
        if self._doubt is not None:
            return None
        return self._retry(RetryReason.REPLAY, self._ranges[-1][0] if self._ranges else 0)

    def let_go(self, go: GroupGo) -> None:
        """Give permission to write; some of its transactions may have to join the error queue."""
        super().let_go(go)
        self._behind_stale = bool(go.held)

    def _slice(self, first: int, last: int, behind: NDArray[np.int64] | None) -> list[LcrBatch]:
        """Return the rows of some transactions, without held ones."""
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
        """Apply transactions in one destination transaction; False: it was rolled back."""
        if self._context.handlers is not NOTHING_LOADED:
            if last - first == 1 and first == self._late:
                return False  # alone it would time out once more, and then again one by one
            is_careful = self._assignment.is_careful or self._context.guard.has_lost
            if is_careful and last - first > 1 and self._is_handled(self._slice(first, last, self._behind)):
                return False  # one at a time: a call that ends this process or session then ends one transaction
            if (done := self._apply_handled(first, last)) is not None:
                return done
        has_handlers = self._has_handlers
        if (
            has_handlers
            and self._context.expects_conflicts
            and (done := self._apply_resolving(first, last)) is not None
        ):
            return done
        if self._apply_sets(first, last):
            return True
        return has_handlers and bool(self._apply_resolving(first, last))

    def _apply_handled(self, first: int, last: int) -> bool | None:
        """Apply transactions with rows that go to users' handlers.

        None: no row does, and no handler is called before the commit.
        """
        context, batches = self._context, self._slice(first, last, self._behind)
        planned = self._handled if self._is_whole(first, last) else None
        if planned is None and not self._is_handled(batches):
            return None
        resolution = Resolution(context.conflicts)
        handling = context.handling(resolution, attempts=True)
        assert handling is not None
        planned = planned or plan_group(batches, context.handlers, context.fit_of)
        context.session.begin()
        try:
            written = write_group(context.session, planned, handling)
            if written is not None and handling.precommit(self._commits(first, last)) is None:
                handling.flush()
                self._finish_sets(first, last, batches, written)
                return True
        except (DataError, AttemptFailed):
            pass
        if handling.late_scn is not None:
            self._late = int(np.searchsorted(self._commit_scns, handling.late_scn))
        self._roll_back()
        return False

    def _is_handled(self, batches: Sequence[LcrBatch]) -> bool:
        handlers = self._context.handlers
        return handlers.rules.precommit is not None or any(handlers.handled(batch) is not None for batch in batches)

    def _commits(self, first: int, last: int) -> list[int]:
        """Return the commit SCNs of a range's transactions that are applied and have rows."""
        chosen = self._slice(first, last, self._behind)
        return [
            int(batch.transactions.commit_scn[transaction])
            for batch in chosen
            for transaction in np.flatnonzero(np.diff(batch.transactions.first_row)).tolist()
        ]

    def _apply_sets(self, first: int, last: int) -> bool:
        """Apply transactions as sets, as if there were no conflicts."""
        batches = self._slice(first, last, self._behind)
        steps = (
            self._plan
            if self._plan is not None and self._is_whole(first, last)
            else plan_sets(batches, self._context.fit_of)
        )
        self._context.session.begin()
        try:
            written = execute_steps(self._context.session, steps)
            if written is not None:
                self._finish_sets(first, last, batches, written)
                return True
        except DataError:
            # A write failed, or a constraint that is checked at COMMIT.
            pass
        self._roll_back()
        return False

    def _finish_sets(self, first: int, last: int, batches: Sequence[LcrBatch], written: int) -> None:
        behind = self._behind
        errors = self._put_held([] if behind is None else [t for t in range(first, last) if behind[t] >= 0])
        self._finish_range(first, last, _Outcome(errors, sum(b.row_count for b in batches), written, _labels(batches)))

    @property
    def _has_handlers(self) -> bool:
        """Whether one of the group's tables has conflict handlers."""
        tables = self._context.conflicts.rules.tables
        assert self._batches is not None
        return bool(tables) and any(
            (version.owner, version.name) in tables for batch in self._batches for version in batch.tables
        )

    def _is_whole(self, first: int, last: int) -> bool:
        """Return whether a range is what the plans cover."""
        return self._behind is None and last == self._count and first == self._assignment.first_transaction

    def _apply_resolving(self, first: int, last: int) -> bool | None:
        """Write rows without conflicts as sets, and then those that meet conflicts.

        None: there is no conflict, or conflicts cannot be found for certain.

        Everything that the group depends on is applied, so a row found under a key of the group is what it conflicts
        with. Where that is not certain (unique keys besides the table's own), the group is bisected instead.
        """
        session, fit_of = self._context.session, self._context.fit_of
        batches = self._slice(first, last, self._behind)
        plan = (
            self._resolvable
            if self._resolvable is not None and self._is_whole(first, last)
            else plan_resolvable(batches, fit_of)
        )
        session.begin()
        try:
            found = None if plan is None else plan.around(session.conflicting)
            self._context.expects_conflicts = found is not None and bool((found[1] >= 0).any())
            if found is None or not self._context.expects_conflicts:
                session.rollback()  # nothing was written
                return None
            (steps, turns), resolution = found, Resolution(self._context.conflicts)
            written = execute_steps(session, steps)
            if written is not None and resolve_rows(session, batches, turns, fit_of, resolution):
                self._write_history(resolution)
                self._finish_sets(first, last, batches, written + int((turns >= 0).sum()))
                return True
        except DataError:
            pass
        self._roll_back()
        return False

    def _apply_alone(self, transaction: int) -> None:
        """Apply one transaction row by row; everything below is applied, so a failure is a conflict."""
        session, batch = self._context.session, self._one(transaction)
        resolution = Resolution(self._context.conflicts)
        session.begin()
        handling = self._context.handling(resolution, attempts=False)
        failure = apply_final(session, batch, self._context.fit_of, resolution, handling)
        if failure is None and handling is not None:
            failure = handling.precommit([int(self._commit_scns[transaction])])
        if failure is None:
            try:
                self._write_history(resolution)
                self._finish_range(
                    transaction, transaction + 1, _Outcome({}, batch.row_count, batch.row_count, _labels([batch]))
                )
                return
            except DataError as error:
                failure = refused_at_commit(error, batch, self._context.handlers)
        self._roll_back()
        self._check_fit(batch)
        session.begin()
        failpoint("apply.error_queue_write")
        number = self._put(transaction, failure, 0)
        record = failed_conflict(self._context.conflicts, failure, batch, number)
        self._write_history(Resolution(self._context.conflicts, [] if record is None else [record]))
        self._finish_range(transaction, transaction + 1, _Outcome({transaction: _Queued(number, failure, 0)}, 0, 0))

    def _put_held(self, held: Sequence[int]) -> dict[int, _Queued]:
        errors: dict[int, _Queued] = {}
        for transaction in held:
            failpoint("apply.error_queue_write")
            depends_on = self._depends_on(transaction, errors)
            errors[transaction] = _Queued(self._put(transaction, HELD, depends_on), HELD, depends_on)
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
            self._describe(batch, 0, failure, depends_on),
            self._context.encode(batch),
            self._stored(transaction),
            part=0,
            readable=failure.readable,
        )

    def _finish_range(self, first: int, last: int, outcome: _Outcome) -> None:
        found = self._range(first, last)
        self._commit((found,), lambda: self._done(first, last, outcome, found), outcome.labels)

    def _done(self, first: int, last: int, outcome: _Outcome, found: ScnRange) -> None:
        self._ranges.pop()
        self._applied.append(AppliedRange(after_scn=found.after, through_scn=found.through))
        for transaction, queued in outcome.errors.items():
            self._failed[transaction] = queued.number
            self._errors.append(
                TransactionError(
                    number=queued.number,
                    transaction=transaction,
                    commit_scn=int(self._commit_scns[transaction]),
                    depends_on=queued.depends_on,
                    key_hashes=self._stored(transaction).tobytes(),
                    conflict_type=queued.failure.conflict_type,
                    message=queued.failure.message,
                )
            )
            # Transactions that depend on a held one are held already.
            self._behind_stale = self._behind_stale or (
                queued.depends_on == 0 and self._on_error is not OnError.CONTINUE
            )
        self.totals.commits += 1
        self.totals.transactions += last - first - len(outcome.errors)
        self.totals.rows += outcome.rows
        self.totals.rows_written += outcome.written
        self.totals.last_commit_time_us = max(self.totals.last_commit_time_us, int(self._times_us[last - 1]))

    # ------------------------------------------------------------------ held transactions

    def _hash(self) -> KeyHashes:
        if self._hashes is None:
            assert self._batches is not None
            self._hashes = KeyHashes.joined([hash_batch(batch, self._context.fit_of) for batch in self._batches])
        return self._hashes

    def _stored(self, transaction: int) -> NDArray[np.uint64]:
        return bounded_hashes(self._hash().part(transaction, transaction + 1).stored())

    def _find_held(self) -> None:
        """Find the transactions that must join the error queue behind others of the group."""
        assert self._go is not None
        held = {found.transaction for found in self._go.held} | set(self._failed)
        # Transactions of an earlier attempt are done, even if they share keys with held ones.
        first = self._assignment.first_transaction
        behind = held_transactions(self._hash().part(first, self._count), [t - first for t in held if t >= first])
        self._behind = np.full(self._count, -1, np.int64)
        self._behind[first:] = np.where(behind >= 0, behind + first, -1)
        self._behind_stale = False


def _labels(batches: Sequence[LcrBatch]) -> tuple[str, ...]:
    """Return the labels of tracked transactions with rows in the batches."""
    return tuple(label.text for batch in batches for label in batch.labels if label.rows)
