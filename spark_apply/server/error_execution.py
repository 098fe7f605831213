"""Executing an error transaction again, on an operator's request.

Rows that are older than the copy of their table are in it: executed again, they would put old values over new ones. They are
left out; a transaction of which nothing else is left is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from databases.connectors import python_values
from rules.user_code.handlers import ExecutionHandler
from spark_apply.copied import without_copied
from spark_apply.groups import Failure, GroupAssignment, ServerMessage
from spark_apply.handlers.lcrs import LcrFailure
from spark_apply.handlers.loaded import ExecutionHandlers
from spark_apply.server.conflicts import apply_final
from spark_apply.server.group_work import Work, WorkContext, refused_at_commit
from spark_apply.server.resolution import Resolution
from streams.errors import ConfigError, DatabaseError, DataError, Retry, UnfitTableError
from streams.failpoints import failpoint
from streams.lcr_batch import LcrBatch

if TYPE_CHECKING:
    from spark_apply.handlers.running import Handling

__all__ = ["ExecuteWork"]

_COPIED_MEANWHILE = "a table of it was copied again while it was executed: execute it again"
_IN_THE_COPY = (
    "its tables were copied again since, and the copies have its changes: delete it (headrace errors delete)"
)


class ExecuteWork(Work):
    """Executes an error transaction row by row; its commit also deletes it from the error queue."""

    def __init__(self, assignment: GroupAssignment, context: WorkContext) -> None:
        super().__init__(assignment, context)
        self._handlers: ExecutionHandlers | None = None

    def step(self) -> tuple[ServerMessage, bool] | None:
        """Execute the whole error transaction."""
        session, number = self._context.session, self._assignment.error_number
        session.begin()
        # It is gone: deleted, or executed by a commit whose answer was lost.
        failure = self._execute(number) if session.delete_error(number) else None
        if not self.totals.commits:
            self._roll_back()
        self._context.guard.settle()  # the operator may have it executed again
        return self._result(failure), True

    def _execute(self, number: int) -> Failure | None:
        rows = left_out = 0
        labels: list[str] = []
        resolution = Resolution(self._context.conflicts)
        copied, touched = self._context.copied_scns(), set[tuple[str, str]]()
        for data in self._context.error_batches(number):
            whole = self._context.decode(data)
            batch = without_copied(whole, lambda version: copied.get((version.owner, version.name), 0))
            touched |= {(version.owner, version.name) for version in whole.tables}
            left_out += whole.row_count - batch.row_count
            failure = self._apply(batch, resolution)
            if failure is not None:
                return failure
            self._write_history(resolution)  # part by part: a transaction of any size may conflict in all its rows
            rows += batch.row_count
            labels += (label.text for label in batch.labels)
        if left_out and not rows:
            return Failure(position=-1, conflict_type="", sqlstate="", message=_IN_THE_COPY)
        # A copy that was recorded before this holds rows that may be newer than these; a later one waits for what is locked here.
        recorded = self._context.copied_scns()
        if any(recorded.get(name) != copied.get(name) for name in touched):
            return Failure(position=-1, conflict_type="", sqlstate="", message=_COPIED_MEANWHILE)
        handling = self._context.handling(resolution, attempts=False)
        failure = self._precommit(handling, int(batch.transactions.commit_scn[-1])) if handling is not None else None
        if failure is not None:
            return failure
        self._write_history(resolution)
        failpoint("apply.execute_error")
        try:
            self._commit((), lambda: None, labels)
        except DataError as error:
            return refused_at_commit(error, batch, self._handlers or self._context.handlers)
        self.totals.commits += 1
        self.totals.transactions += 1
        self.totals.rows += rows
        self.totals.rows_written += rows
        return None

    def _precommit(self, handling: Handling, commit_scn: int) -> Failure | None:
        session, role = self._context.session, self._assignment.role
        if not role or handling.handlers.rules.precommit is None:
            return handling.precommit([commit_scn])
        try:
            session.as_role(role)
            failure = handling.precommit([commit_scn])
            if failure is None:
                session.as_role("")
        except DataError as error:
            return Failure(position=-1, conflict_type="", sqlstate="", message=f"as role {role}: {error.message}")
        return failure

    def _through(self, resolution: Resolution) -> Handling | None:
        """The function that the operator named; None: none was."""
        if not self._assignment.handler:
            return None
        if self._handlers is None:
            wanted = ExecutionHandler.from_bytes(self._assignment.handler)
            decode, encode = python_values()
            self._handlers = ExecutionHandlers(wanted, self._context.execution_bounds, decode=decode, encode=encode)
        why = self._assignment.failure or Failure(position=-1, conflict_type="", sqlstate="", message="")
        told = LcrFailure(kind=why.conflict_type, number=why.sqlstate, message=why.message, position=why.position)
        return self._context.executing(self._handlers, resolution, told)

    def _apply(self, batch: LcrBatch, resolution: Resolution) -> Failure | None:
        session, role = self._context.session, self._assignment.role
        try:
            if role:
                session.as_role(role)
            handling = self._through(resolution) or self._context.handling(resolution, attempts=False)
            failure = apply_final(session, batch, self._context.fit_of, resolution, handling)
            if role and failure is None:
                session.as_role("")  # what is written beside the rows is Headrace's own
        except ConfigError as error:  # of the function that the operator named
            return Failure(position=-1, conflict_type="", sqlstate="", message=f"{error.message} ({error.hint})")
        except UnfitTableError as error:
            # Do not wait for the ALTER here: the transaction stays in the error queue.
            return Failure(position=-1, conflict_type="", sqlstate="", message=f"{error.message} ({error.hint})")
        except DatabaseError as error:
            # Of an apply server's own role, a missing right ends it: nothing could be applied. Of this one, only this is refused.
            if not role or error.retry is Retry.TIMED:
                raise
            return Failure(
                position=-1, conflict_type="", sqlstate=str(error.context.get("sqlstate", "")), message=f"as role {role}: {error.message}",
            )
        return failure
