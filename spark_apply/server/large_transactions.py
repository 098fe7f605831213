"""Streamed transactions, which are larger than a batch or have DDL LCRs.

One destination transaction writes their parts, or puts them into the error queue. A DDL LCR is a part of its own.

Worked flow of a transaction with DDL
    rows -> change_table -> rows -> commit: rows, structure, history and progress are there together, or nothing is
    the destination refuses the DDL: rolled back, UnfitTableError; the server pauses, and the whole transaction is read
      again until the cause is repaired, the table is as the source's or the operator skips the DDL
    a row fails: rolled back; all parts go into the error queue, the DDL among them
    a CREATE TABLE is not made, or the operator skips it: its table's rows in the transaction are skipped, by the table's
      number, because its name may be another table's here
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.errors import DataError, UnfitTableError
from headrace.base.failpoints import failpoint
from headrace.databases.ports import DdlPlace, ScnRange
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from spark_apply.conversation.groups import (
    AppliedRange,
    Failure,
    GroupAssignment,
    GroupPart,
    GroupResult,
    PartDone,
    RetryReason,
    ServerMessage,
    TransactionError,
)
from spark_apply.dependencies.hashes import hash_batch, table_hashes
from spark_apply.dependencies.holds import HASHES_PER_ERROR_MAX, tables_only
from spark_apply.handlers.final_rows import apply_final
from spark_apply.handlers.groups import write_in_order
from spark_apply.server.group_work import HELD, Work, WorkContext, refused_at_commit
from spark_apply.sets.collapse import plan_sets
from spark_apply.sets.conflicts import execute_steps
from spark_apply.sets.resolution import Resolution, failed_conflict
from spark_apply.tables.copied import without_tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.lcr.ddl import DdlChange

__all__ = ["LargeErrorWork", "LargeWork"]


class _LargeBase(Work):
    """A streamed transaction: its parts in one destination transaction."""

    def __init__(self, assignment: GroupAssignment, context: WorkContext) -> None:
        super().__init__(assignment, context)
        self._parts: deque[GroupPart] = deque()
        self._begun = False
        self._committed: GroupResult | None = None
        self._resolution = Resolution(context.conflicts)
        self._labels: list[str] = []  # labels of a tracked transaction, from all its parts
        self._has_ddl = False  # a part up to the present one is a DDL LCR

    @property
    def is_ready(self) -> bool:
        return self._go is not None and bool(self._parts)

    @property
    def is_begun(self) -> bool:
        return self._begun

    def add_part(self, part: GroupPart) -> None:
        self._parts.append(part)

    def broken(self, *, retried: bool) -> ServerMessage | None:
        """Note that the written parts are lost: unless the commit succeeded, they must be sent again."""
        super().broken(retried=retried)
        self._forget_changed()
        return None if self._doubt is not None or not self._begun else self._retry(RetryReason.REPLAY, 0)

    def step(self) -> tuple[ServerMessage, bool] | None:
        """Process one part."""
        part = self._parts[0]
        batch = self._context.decode(part.batch)
        self._labels += (label.text for label in batch.labels if label.text not in self._labels)
        if not self._begun:
            self._context.session.begin()
            self._begun = True
            self._skipped.clear()
            self._unrenamed.clear()
        self._has_ddl |= batch.ddl is not None
        batch = without_tables(batch, self._skipped)
        self._check_renamed(batch)
        failure = self._write(batch, part.part)
        if failure is None and part.is_last:
            failure = self._finish(batch, part)
        if failure is not None:
            self._roll_back()
            if self._has_ddl:
                # Behind the DDL that was just rolled back, the table need not fit: that would hide the failure.
                self._forget_changed()
            else:
                self._check_fit(batch)
            return self._retry(RetryReason.REPLAY, 0, failure), True
        self._parts.popleft()
        if part.is_last:
            return self._end(), True
        self.totals.rows += 0 if batch.ddl is not None else batch.row_count
        return PartDone(group=part.group, attempt=part.attempt, part=part.part), False

    def _forget_changed(self) -> None:
        """Forget how tables were behind a DDL LCR, after a rollback."""
        if self._has_ddl:
            self._context.forget_fits()

    def _finish(self, batch: LcrBatch, part: GroupPart) -> Failure | None:
        found = ScnRange(after=Scn(self._assignment.after_scn), through=Scn(part.through_scn))
        failure = self._before_commit(batch)
        if failure is not None:
            return failure
        self._write_history(self._resolution)
        try:
            self._commit((found,), lambda: self._succeed(found, batch), self._labels)
        except DataError as error:
            return refused_at_commit(error, batch, self._context.handlers)
        return None

    def _before_commit(self, batch: LcrBatch) -> Failure | None:  # noqa: ARG002 - part of the interface
        return None

    def _end(self) -> GroupResult:
        assert self._committed is not None
        return self._committed

    def settle(self) -> ServerMessage | None:
        """Find the outcome of the commit; if it did not succeed, every part must be sent again."""
        super().settle()
        return self._retry(RetryReason.REPLAY, 0) if self._begun and self._committed is None else self._committed

    def _succeed(self, found: ScnRange, batch: LcrBatch) -> None:
        self._applied.append(AppliedRange(after_scn=found.after, through_scn=found.through))
        self.totals.commits += 1
        self.totals.rows += 0 if batch.ddl is not None else batch.row_count
        self.totals.last_commit_time_us = int(batch.transactions.commit_time_us[0])
        self._conclude(batch)
        self._committed = self._result()

    def _conclude(self, batch: LcrBatch) -> None:
        raise NotImplementedError

    def _write(self, batch: LcrBatch, part: int) -> Failure | None:
        raise NotImplementedError


class LargeWork(_LargeBase):
    """Writes parts as sets, and a failing part at once row by row, because everything below is applied."""

    def _write(self, batch: LcrBatch, part: int) -> Failure | None:  # noqa: ARG002 - its number does not matter
        if batch.ddl is not None:
            return self._apply_ddl(batch, batch.ddl)
        if not batch.row_count:
            return None
        session, fit_of = self._context.session, self._context.fit_of
        attempt = self._context.handling(self._resolution, attempts=True)
        session.savepoint()
        try:
            if attempt is None:  # noqa: SIM108
                written = execute_steps(session, plan_sets([batch], fit_of))
            else:
                written = write_in_order([batch], attempt)
        except DataError:
            written = None
        if written is None:
            session.rollback_to_savepoint()
            handling = self._context.handling(self._resolution, attempts=False)
            failure = apply_final(session, batch, fit_of, self._resolution, handling)
            if failure is not None:
                return failure  # the session accepts nothing but a rollback
            # Part by part: a transaction of any size can conflict in all its rows.
            self._write_history(self._resolution)
            written = batch.row_count
        self.totals.rows_written += written
        return None

    def _apply_ddl(self, batch: LcrBatch, change: DdlChange) -> Failure | None:
        """Change a table as a DDL LCR says.

        Raises:
            UnfitTableError: the destination refuses it: the server pauses, and everything is tried again later.
        """
        try:
            return self._change_table(batch, change, self._context.handlers, is_in_order=True)
        except DataError as error:
            raise UnfitTableError(error.message, hint=error.hint, table=str(change.base_table)) from error

    def _before_commit(self, batch: LcrBatch) -> Failure | None:
        handling = self._context.handling(self._resolution, attempts=False)
        return None if handling is None else handling.precommit([int(batch.transactions.commit_scn[0])])

    def _conclude(self, batch: LcrBatch) -> None:  # noqa: ARG002 - part of the interface
        self.totals.transactions += 1


class LargeErrorWork(_LargeBase):
    """Puts the parts into the error queue."""

    def __init__(self, assignment: GroupAssignment, context: WorkContext) -> None:
        super().__init__(assignment, context)
        self._number = 0
        self._stored: list[NDArray[np.uint64]] = []

    def _write(self, batch: LcrBatch, part: int) -> Failure | None:
        failpoint("apply.error_queue_write")
        self._labels.clear()  # nothing of it is applied
        failure = self._assignment.failure or HELD
        if batch.ddl is not None and batch.ddl.leaves_rules:
            # Whatever becomes of the transaction, later rows of the table do not arrive: it must count as left.
            self._context.session.change_table(batch.ddl, DdlPlace.of(batch))
        # Nothing behind a DDL LCR fits a table that it has not changed.
        hashes = (table_hashes(batch) if self._has_ddl else hash_batch(batch, self._context.fit_of)).stored()
        if sum(found.shape[0] for found in self._stored) + hashes.shape[0] > HASHES_PER_ERROR_MAX:
            hashes = tables_only(hashes)
        described = self._describe(batch, 0, failure, self._assignment.error_number)
        self._number = self._context.session.put_error(
            replace(described, number=self._number),
            self._parts[0].batch,
            hashes,
            part=part,
            readable=failure.readable,
        )
        self._stored.append(hashes)
        if (
            self._number
            and (record := failed_conflict(self._context.conflicts, failure, batch, self._number)) is not None
        ):
            self._resolution.records.append(record)
        return None

    def _conclude(self, batch: LcrBatch) -> None:
        failure = self._assignment.failure or HELD
        self._errors.append(
            TransactionError(
                number=self._number,
                transaction=0,
                commit_scn=int(batch.transactions.commit_scn[0]),
                depends_on=self._assignment.error_number,
                key_hashes=np.unique(np.concatenate(self._stored)).tobytes(),
                conflict_type=failure.conflict_type,
                message=failure.message,
            )
        )
