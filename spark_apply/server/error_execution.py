"""Executing error transactions again, at an operator's request.

Several are executed together where possible: one destination transaction deletes all of them and writes their rows as
sets, like transactions from the queue. If that fails, halves are tried, and in the end a single one, row by row, which
decides whether it fails again. Those behind a failed one are not tried: the coordinator knows which of them depend on
it.

    5 error transactions, the 4th fails again
    1..5 as sets: counts differ -> rolled back; 1 2 committed; 3 4 5 -> rolled back; 3 committed; 4 5 -> rolled back; 4
      row by row -> rolled back
    GroupResult: executed 3, failure of the 4th

Rows older than the copy of their table are in the copy: executed again, they would put old values over new ones. They
are skipped; a transaction with no other rows is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.base.errors import COPY_THE_TABLE, ConfigError, DatabaseError, DataError, Retry, UnfitTableError
from headrace.base.failpoints import failpoint
from headrace.databases.connectors import python_values
from headrace.lcr.batch import LcrBatch
from headrace.rules.user_code.handlers import ExecutionHandler
from spark_apply.conversation.groups import Failure, GroupAssignment, GroupResult, ServerMessage
from spark_apply.handlers.final_rows import apply_final
from spark_apply.handlers.lcrs import LcrFailure
from spark_apply.handlers.loaded import ExecutionHandlers
from spark_apply.server.group_work import Work, WorkContext, refused_at_commit
from spark_apply.sets.collapse import plan_sets
from spark_apply.sets.conflicts import execute_steps
from spark_apply.sets.resolution import Resolution
from spark_apply.tables.arriving import OLDER_THAN_COPY
from spark_apply.tables.copied import beyond_copies, keys_of, moved_before, taken_over, truncated_before, without_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.databases.ports import TakenErrors
    from headrace.lcr.ddl import DdlChange
    from spark_apply.handlers.running import Handling

__all__ = ["ExecuteWork"]

_COPIED_MEANWHILE = "a table of it was copied again while it was executed: execute it again"
_IN_THE_COPY = (
    "its tables were copied again since, and the copies have its changes: delete it (headrace errors delete FILE N)"
)
_PART_COPIED = (
    "it truncates {table}, and a partition of that was attached and copied since, which it would empty: "
    f"{COPY_THE_TABLE}"
)
_PART_HAS_THEM = (
    "it deletes other rows of {table} before it changes those of a partition that was attached and copied since, which"
    f" may have these rows now: {COPY_THE_TABLE}"
)

_TAKEN_OVER = (
    "its rows are of a table that was renamed since, and {table} is another table now: edit the rows by hand in the"
    " renamed table, and delete the transaction (headrace errors delete FILE N)"
)
_DDL_AS_ROLE = "it changes the structure of {table}, which no role's rights are checked for: execute it without --role"

_NO_RIGHT = "42501"  # SQLSTATE insufficient_privilege
# Bytes of serialized rows in one destination transaction, as for a group from the queue
# (`spark_apply.driver.groups.forming`).
_TOGETHER_BYTES_MAX = 8 << 20
# Executed one by one before the coordinator gets a report: a third of a second of silence at ten milliseconds each.
_ALONE_MAX = 32


class ExecuteWork(Work):
    """Executes error transactions; the commit that writes their rows also deletes them from the error queue."""

    def __init__(self, assignment: GroupAssignment, context: WorkContext) -> None:
        super().__init__(assignment, context)
        self._handlers: ExecutionHandlers | None = None
        self._numbers = assignment.error_numbers
        self._executed = 0  # number of executed ones, from the first
        self._ranges = [(0, len(self._numbers))]  # remaining ones, the next range last
        self._alone = 0  # number executed one by one
        self._has_ddl = False  # the open destination transaction has a DDL LCR
        self._is_new = True  # nothing was tried on this session
        if assignment.role or assignment.handler:
            self._try_alone()

    @property
    def wants_new_fits(self) -> bool:
        """Whether nothing was tried on this session."""
        return self._is_new

    def broken(self, *, retried: bool) -> ServerMessage | None:
        """Restart after a rollback. A commit without an answer shows when the same numbers are taken again.

        Those that it deleted are gone.
        """
        self._is_new = True
        self._forget_changed()
        return super().broken(retried=retried)

    def step(self) -> tuple[ServerMessage, bool] | None:
        """Execute several together, or the next one alone."""
        self._is_new = False
        first, last = self._ranges[-1]
        if last - first > 1:
            done = self._execute_together(first, last)
        else:
            failure = self._execute_alone(self._numbers[first])
            if failure is not None:
                return self._executed_until(first, failure), True
            done = 1
        self._executed = first + done
        if done == last - first:
            self._ranges.pop()
        elif done:
            self._ranges[-1] = (first + done, last)
        is_over = not self._ranges or self._alone >= _ALONE_MAX
        return (self._executed_until(self._executed, None), True) if is_over else None

    def _executed_until(self, count: int, failure: Failure | None) -> GroupResult:
        return replace(self._result(failure), executed=count)

    # ------------------------------------------------------------------ several together

    def _try_alone(self) -> None:
        """Split the last range into single ones: each calls handlers or takes a role."""
        first, last = self._ranges.pop()
        self._ranges += [(place, place + 1) for place in reversed(range(first, last))]

    def _execute_together(self, first: int, last: int) -> int:
        """Execute several in one destination transaction.

        Return how many of them, from the first, are done; 0: it was rolled back, and fewer are tried next.
        """
        session = self._context.session
        session.begin()
        taken = session.take_errors(self._numbers[first:last], bytes_max=_TOGETHER_BYTES_MAX)
        if taken.count and not taken.batches:  # they are gone: deleted, or executed by a commit whose answer was lost
            session.rollback()
            return taken.count
        if taken.count and self._write(taken):
            return taken.count
        self._roll_back()
        if (first, last) == self._ranges[-1]:
            middle = first + 1 if not taken.count else (first + last) // 2  # one that is too large for this goes alone
            self._ranges[-1:] = [(middle, last), (first, middle)]
        return 0

    def _write(self, taken: TakenErrors) -> bool:
        """Write the rows of error transactions as sets, and commit; False: roll back."""
        context, batches, rows = self._context, list[LcrBatch](), 0
        copied, touched = context.copied_scns(), set[tuple[str, str]]()
        for parts in taken.batches.values():
            if len(parts) != 1:
                return False  # a streamed transaction: only its last part has the commit SCN
            whole = context.decode(parts[0])
            if whole.ddl is not None:
                return False  # alone, so that it cannot spoil the sets of others
            batch = beyond_copies(whole, copied)
            if (
                (whole.row_count and not batch.row_count)
                or truncated_before(batch, copied)
                or moved_before([whole], copied)
                or taken_over(whole, copied)
            ):
                return False  # all of it is in a copy, or it would empty one, which is a failure of its own
            touched |= {key for version in whole.tables for key in keys_of(version)}
            rows += batch.row_count
            batches.append(batch)
        handlers = context.handlers
        if handlers.rules.precommit is not None or any(handlers.handled(batch) is not None for batch in batches):
            self._try_alone()
            return False
        try:
            written = execute_steps(context.session, plan_sets(batches, context.fit_of))
            recorded = context.copied_scns()
            if written is None or any(recorded.get(name) != copied.get(name) for name in touched):
                return False
            failpoint("apply.execute_error")
            self._commit((), lambda: None, (label.text for batch in batches for label in batch.labels))
        except (DataError, UnfitTableError):
            return False
        self.totals.commits += 1
        self.totals.transactions += len(batches)
        self.totals.rows += rows
        self.totals.rows_written += written
        return True

    # ------------------------------------------------------------------ one alone

    def _execute_alone(self, number: int) -> Failure | None:
        """Execute one row by row; return why it stays in the error queue, if it does."""
        session, commits = self._context.session, self.totals.commits
        self._alone += 1
        session.begin()
        # If it cannot be deleted it is gone: deleted, or executed by a commit whose answer was lost.
        failure = self._execute(number) if session.delete_error(number) else None
        if self.totals.commits == commits:
            self._roll_back()
        self._forget_changed()
        self._context.guard.settle()  # the operator may execute it again
        return failure

    def _forget_changed(self) -> None:
        """Forget how tables were behind a DDL LCR, after the transaction's end."""
        if self._has_ddl:
            self._has_ddl = False
            self._context.forget_fits()

    def _execute(self, number: int) -> Failure | None:
        rows = left_out = ddl = 0
        self._skipped.clear()
        self._unrenamed.clear()
        labels: list[str] = []
        resolution = Resolution(self._context.conflicts)
        copied, touched = self._context.copied_scns(), set[tuple[str, str]]()
        if table := moved_before(map(self._context.decode, self._context.error_batches(number)), copied):
            return Failure(position=-1, conflict_type="", sqlstate="", message=_PART_HAS_THEM.format(table=table))
        for data in self._context.error_batches(number):
            whole = self._context.decode(data)
            batch = beyond_copies(whole, copied)
            if whole.ddl is not None and not batch.row_count:
                batch = replace(whole, ddl=whole.ddl.not_made(OLDER_THAN_COPY))
            batch = without_tables(batch, self._skipped)
            touched |= _keys_of(whole)
            left_out += whole.row_count - batch.row_count
            failure = _older_than_copies(batch, copied, is_behind_ddl=bool(ddl)) or self._apply(batch, resolution)
            if failure is not None:
                return failure
            self._write_history(resolution)  # part by part: a transaction of any size can conflict in all its rows
            rows += batch.row_count
            ddl += batch.ddl is not None
            labels += (label.text for label in batch.labels)
        if left_out and not rows:
            return Failure(position=-1, conflict_type="", sqlstate="", message=_IN_THE_COPY)
        # A copy recorded before this holds rows that may be newer than these; a later copy waits for the locks held
        # here.
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
        self.totals.rows += rows - ddl
        self.totals.rows_written += rows - ddl
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
        """Return the function that the operator named; None: none."""
        if not self._assignment.handler:
            return None
        if self._handlers is None:
            wanted = ExecutionHandler.from_bytes(self._assignment.handler)
            decode, encode = python_values()
            self._handlers = ExecutionHandlers(wanted, self._context.execution_bounds, decode=decode, encode=encode)
        why = self._assignment.failure or Failure(position=-1, conflict_type="", sqlstate="", message="")
        told = LcrFailure(kind=why.conflict_type, number=why.sqlstate, message=why.message, position=why.position)
        return self._context.executing(self._handlers, resolution, told)

    def _execute_ddl(self, batch: LcrBatch, change: DdlChange) -> Failure | None:
        if self._assignment.role:
            message = _DDL_AS_ROLE.format(table=change.base_table)
            return Failure(position=batch.first_position, conflict_type="", sqlstate="", message=message)
        self._has_ddl = True
        try:
            return self._change_table(batch, change, self._handlers or self._context.handlers, is_in_order=False)
        except DataError as error:
            return Failure(
                position=batch.first_position,
                conflict_type="",
                sqlstate=str(error.context.get("sqlstate", "")),
                message=error.message_and_hint,
            )

    def _apply(self, batch: LcrBatch, resolution: Resolution) -> Failure | None:
        if batch.ddl is not None:
            return self._execute_ddl(batch, batch.ddl)
        session, role = self._context.session, self._assignment.role
        try:
            self._check_renamed(batch)
            if role:
                session.as_role(role)
            handling = self._through(resolution) or self._context.handling(resolution, attempts=False)
            failure = apply_final(session, batch, self._context.fit_of, resolution, handling)
            if role and failure is None:
                session.as_role("")  # what is written besides the rows is Headrace's own
            elif role and failure is not None and failure.sqlstate == _NO_RIGHT:
                return replace(failure, message=f"as role {role}: {failure.message}")
        except ConfigError as error:  # of the function that the operator named
            return Failure(position=-1, conflict_type="", sqlstate="", message=f"{error.message} ({error.hint})")
        except UnfitTableError as error:
            # Do not wait for the ALTER here: the transaction stays in the error queue.
            return Failure(position=-1, conflict_type="", sqlstate="", message=f"{error.message} ({error.hint})")
        except DatabaseError as error:
            # When the apply server's own role lacks a right, the server ends: nothing could be applied. When this role
            # lacks one, only this execution is refused.
            if not role or error.retry is Retry.TIMED:
                raise
            return Failure(
                position=-1,
                conflict_type="",
                sqlstate=str(error.context.get("sqlstate", "")),
                message=f"as role {role}: {error.message}",
            )
        return failure


def _keys_of(batch: LcrBatch) -> set[tuple[str, str]]:
    """Return the keys under which `copied_scns` has the tables of a batch."""
    found = {key for version in batch.tables for key in keys_of(version)}
    if batch.ddl is not None:
        found |= {(batch.ddl.base_table_owner, batch.ddl.base_table_name), ("", str(int(batch.ddl.object_number)))}
    return found


def _older_than_copies(
    batch: LcrBatch, copied: Mapping[tuple[str, str], int], *, is_behind_ddl: bool
) -> Failure | None:
    """Return why rows must not be written to the tables that have their names now; None: they may."""
    if table := truncated_before(batch, copied):
        return Failure(position=-1, conflict_type="", sqlstate="", message=_PART_COPIED.format(table=table))
    if not is_behind_ddl and (table := taken_over(batch, copied)):
        return Failure(position=-1, conflict_type="", sqlstate="", message=_TAKEN_OVER.format(table=table))
    return None
