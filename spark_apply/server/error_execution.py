"""Executing an error transaction again, on an operator's request."""

from __future__ import annotations

from spark_apply.groups import Failure, ServerMessage
from spark_apply.server.conflicts import apply_rows
from spark_apply.server.group_work import Work, refused_at_commit
from streams.errors import DataError, UnfitTableError
from streams.failpoints import failpoint
from streams.lcr_batch import LcrBatch

__all__ = ["ExecuteWork"]


class ExecuteWork(Work):
    """Executes an error transaction row by row; its commit also deletes it from the error queue."""

    def step(self) -> tuple[ServerMessage, bool] | None:
        """Execute the whole error transaction."""
        session, number = self._context.session, self._assignment.error_number
        session.begin()
        # It is gone: deleted, or executed by a commit whose answer was lost.
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
            return refused_at_commit(error, batch)
        self.totals.commits += 1
        self.totals.transactions += 1
        self.totals.rows += rows
        self.totals.rows_written += rows
        return None

    def _apply(self, batch: LcrBatch) -> Failure | None:
        try:
            return apply_rows(self._context.session, batch, self._context.fit_of, self._context.show)
        except UnfitTableError as error:
            # Do not wait for the ALTER here: the transaction stays in the error queue.
            return Failure(position=-1, conflict_type="", sqlstate="", message=f"{error.message} ({error.hint})")
