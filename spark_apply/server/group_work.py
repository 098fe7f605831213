"""The work of an apply server on one group, one destination transaction at a time.

Each kind of work has `step()`. It makes one attempt at the next destination transaction (or, for a streamed
transaction, at its next part), and returns the group's last message when the group has ended. State changes only after
a successful attempt, so after `DatabaseUnavailable` the same step can be repeated.

A COMMIT whose answer was lost is remembered as a doubt. A new session first calls `settle`, which finds its outcome.

The kinds: `set_groups` (whole transactions), `large_transactions` (streamed ones, also into the error queue),
`error_execution` (error transactions). This module contains their common part.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.base.errors import DatabaseUnavailable, DataError, UnfitTableError
from headrace.base.failpoints import failpoint
from headrace.databases.ports import (
    DDL_REFUSED,
    DdlOutcomeKind,
    DdlPlace,
    DestinationSession,
    ErrorTransaction,
    ScnRange,
)
from headrace.lcr.batch import LcrBatch
from headrace.lcr.ddl import DdlChange
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.table_name import TableName
from headrace.lcr.tracking import LABELS_PER_BATCH_MAX
from spark_apply.conversation.groups import (
    AppliedRange,
    Failure,
    GroupAssignment,
    GroupGo,
    GroupPart,
    GroupResult,
    GroupRetry,
    GroupStatistics,
    RetryReason,
    ServerMessage,
    TransactionError,
)
from spark_apply.handlers.crashes import CrashGuard, NoCalls
from spark_apply.handlers.loaded import NOTHING_LOADED, Handlers
from spark_apply.handlers.process_bounds import ProcessBounds
from spark_apply.handlers.running import Handling
from spark_apply.sets.conflict_settings import ConflictSettings
from spark_apply.sets.conflicts import RowWriter
from spark_apply.sets.resolution import Resolution
from spark_apply.sets.steps import FitOf

if TYPE_CHECKING:
    from spark_apply.handlers.lcrs import LcrFailure

__all__ = ["HELD", "Totals", "Work", "WorkContext", "refused_at_commit"]

HELD = Failure(position=-1, conflict_type="", sqlstate="", message="it depends on a transaction in the error queue")


def refused_at_commit(error: DataError, batch: LcrBatch, handlers: Handlers) -> Failure:
    """Return the failure of a check at COMMIT; it names the last row, because any row could be the cause.

    Args:
        error: error of the commit.
        batch: the transaction's rows; of a streamed one, those of its last part.
        handlers: handlers that could have been called; they are named if their SQL has changed the session.
    """
    position = batch.first_position + batch.row_count - 1
    sqlstate = str(error.context.get("sqlstate", ""))
    kind = "foreign_key" if error.context.get("violates") == "foreign_key" else ""
    called = handlers.named(batch) if error.context.get("changed") else ()
    message = f"{error.message}; its handlers: {', '.join(called)}" if called else error.message
    return Failure(position=position, conflict_type=kind, sqlstate=sqlstate, message=message)


@dataclass(slots=True, kw_only=True)
class WorkContext:
    """Everything that work needs from its server.

    Args:
        source: the site whose transactions it applies.
        session: the destination session; replaced after it broke.
        fit_of: returns the fit of a table version.
        forget_fits: forgets all fits, because a DDL LCR changed a table or was rolled back.
        error_batches: reads an error transaction's parts.
        copied_scns: returns the recorded `spark_apply.tables.copied.copied_scns`.
        conflicts: settings for resolving conflicts.
        handlers: users' handlers.
        guard: knows the handlers that ended their process or session.
        expects_conflicts: the last group met conflicts that were resolved: look for them before writing the next one.
        execution_bounds: bounds for the functions through which error transactions are executed one by one.
    """

    apply: str
    source: str
    session: DestinationSession
    fit_of: FitOf
    forget_fits: Callable[[], None]
    decode: Callable[[bytes], LcrBatch]
    encode: Callable[[LcrBatch], bytes]
    error_batches: Callable[[int], Iterator[bytes]]
    copied_scns: Callable[[], Mapping[tuple[str, str], int]]
    conflicts: ConflictSettings
    handlers: Handlers = NOTHING_LOADED
    guard: CrashGuard = field(default_factory=lambda: CrashGuard(NoCalls()))
    expects_conflicts: bool = False
    execution_bounds: ProcessBounds = field(default_factory=ProcessBounds)

    def handling(self, resolution: Resolution, *, attempts: bool) -> Handling | None:
        """Return the handlers in the session's transaction; None: there are no handlers.

        Args:
            resolution: resolves conflicts in it.
            attempts: whether a failure is tried again, as in `spark_apply.handlers.running`.
        """
        if self.handlers is NOTHING_LOADED:
            return None
        return Handling(
            self.session,
            self.handlers,
            resolution,
            RowWriter(self.session, self.fit_of),
            attempts=attempts,
            guard=self.guard,
        )

    def executing(self, handlers: Handlers, resolution: Resolution, told: LcrFailure) -> Handling:
        """Return the function that executes an error transaction, in the session's transaction.

        Args:
            handlers: calls the function.
            resolution: resolves conflicts in the transaction.
            told: why the error transaction failed.
        """
        return Handling(
            self.session,
            handlers,
            resolution,
            RowWriter(self.session, self.fit_of),
            attempts=False,
            guard=self.guard,
            told=told,
        )


@dataclass(slots=True)
class Totals:
    """Counters of the group so far."""

    transactions: int = 0
    rows: int = 0
    rows_written: int = 0
    commits: int = 0
    rollbacks: int = 0
    retried: int = 0
    last_commit_time_us: int = 0
    conflicts: int = 0
    ddl_applied: int = 0
    ddl_passed_over: int = 0
    ddl_not_applied: int = 0

    def count_ddl(self, outcome: DdlOutcomeKind) -> None:
        """Count a DDL LCR."""
        self.ddl_applied += outcome is DdlOutcomeKind.APPLIED
        self.ddl_passed_over += outcome is DdlOutcomeKind.PASSED_OVER
        self.ddl_not_applied += outcome is DdlOutcomeKind.NOT_APPLIED

    def frozen(self) -> GroupStatistics:
        """Return the counters as an immutable message."""
        return GroupStatistics(
            transactions=self.transactions,
            rows=self.rows,
            rows_written=self.rows_written,
            commits=self.commits,
            rollbacks=self.rollbacks,
            retried=self.retried,
            last_commit_time_us=self.last_commit_time_us,
            conflicts=self.conflicts,
            ddl_applied=self.ddl_applied,
            ddl_passed_over=self.ddl_passed_over,
            ddl_not_applied=self.ddl_not_applied,
        )


@dataclass(slots=True)
class _Doubt:
    """A commit without an answer."""

    applied: tuple[ScnRange, ...]
    succeed: Callable[[], None]


class Work(ABC):
    """One group in progress. Commits, doubts and totals are here; subclasses define the attempts."""

    def __init__(self, assignment: GroupAssignment, context: WorkContext) -> None:
        self._assignment, self._context = assignment, context
        self._go: GroupGo | None = None
        self._doubt: _Doubt | None = None
        self._applied: list[AppliedRange] = []
        self._errors: list[TransactionError] = []
        self._met = 0  # conflicts in the open destination transaction
        self._skipped: set[int] = set()  # in the same: numbers of new tables that the destination did not make
        # In the same: new name of each table that was not renamed as the source did, by number, and why.
        self._unrenamed: dict[int, tuple[TableName, str]] = {}
        self.totals = Totals()

    @property
    def is_ready(self) -> bool:
        """Whether `step` can be called now."""
        return self._go is not None

    @property
    def is_begun(self) -> bool:
        """Whether a destination transaction stays open between steps."""
        return False

    @property
    def wants_new_fits(self) -> bool:
        """Whether the next step needs fresh table descriptions."""
        return self._assignment.streamed and not self.is_begun

    @property
    def has_doubt(self) -> bool:
        """Whether a commit has no answer: only a new session can find its outcome."""
        return self._doubt is not None

    def prepare(self) -> bool:
        """Do work that needs no permission to write; False: there is none."""
        return False

    def let_go(self, go: GroupGo) -> None:
        """Give permission to write."""
        self._go = go

    def add_part(self, part: GroupPart) -> None:
        """Accept a streamed transaction's next part."""
        raise NotImplementedError

    def _change_table(
        self, batch: LcrBatch, change: DdlChange, handlers: Handlers, *, is_in_order: bool
    ) -> Failure | None:
        """Change a table as a DDL LCR says; return the failure of rows that were written before it.

        A new table that the destination does not get is noted in `_skipped`, and so its rows are left out.

        Args:
            batch: the DDL LCR's.
            change: the change.
            handlers: as for `refused_at_commit`.
            is_in_order: False: its transaction was in the error queue, and later ones were applied before it.

        Raises:
            DataError: the destination refuses the change itself.
        """
        try:
            outcome = self._context.session.change_table(change, DdlPlace.of(batch), is_in_order=is_in_order)
        except DataError as error:
            if DDL_REFUSED in error.context:
                raise
            return refused_at_commit(error, batch, handlers)  # deferred checks
        self._context.forget_fits()
        self.totals.count_ddl(outcome.kind)
        is_left_out = outcome.kind in {DdlOutcomeKind.NOT_APPLIED, DdlOutcomeKind.SKIPPED}
        if change.creation is not None and is_left_out:
            self._skipped.add(int(change.object_number))
        elif (name := change.name_after) is not None and name != change.base_table:
            self._unrenamed.pop(int(change.object_number), None)
            if is_left_out:
                self._unrenamed[int(change.object_number)] = (name, outcome.reason)
        return None

    def _check_renamed(self, batch: LcrBatch) -> None:
        """Check that no row of a table comes behind its RENAME in the transaction if that was left out here.

        The new name may be another table's by now, which would get the rows.

        Raises:
            UnfitTableError: one does.
        """
        if not self._unrenamed:
            return
        used = {group.table for group in batch.groups} | {each for found in batch.truncates for each in found.tables}
        for version in (batch.tables[table] for table in sorted(used)):
            name, why = self._unrenamed.get(int(version.table_number), (None, ""))
            if name == TableName.of(version):
                raise UnfitTableError(
                    f"rows of {name} come behind the RENAME of the table in one transaction, and that was left out here:"
                    f" {why}",
                    hint="rename the table at the destination by hand; if headrace.ddl_skip has the RENAME, delete it there",
                    table=str(name),
                )

    @abstractmethod
    def step(self) -> tuple[ServerMessage, bool] | None:
        """Make one attempt. Return a message to send and whether it is the last one; None: call again."""

    def broken(self, *, retried: bool) -> ServerMessage | None:
        """Note that the transaction was rolled back. Return the last message if the work cannot restart it."""
        self.totals.retried += int(retried and self._go is not None)
        self._met = 0
        return None

    def given_back(self) -> ServerMessage | None:
        """Give the group up because a table no longer fits.

        Return the message that returns the group to be read again; None: it stays, or has ended.
        """
        return self.broken(retried=False)

    def settle(self) -> ServerMessage | None:
        """On a new session, find the outcome of a commit without an answer.

        Return the last message if that ends the group.
        """
        if self._doubt is None:
            return None
        # Clear it only when the outcome is known: the new session may break too.
        made = self._context.session.ask_outcome(self._doubt.applied)
        doubt, self._doubt = self._doubt, None
        if made:
            doubt.succeed()
        return None

    def _commit(self, applied: tuple[ScnRange, ...], succeed: Callable[[], None], labels: Iterable[str] = ()) -> None:
        assert self._go is not None
        met, self._met = self._met, 0

        def done() -> None:
            self.totals.conflicts += met
            succeed()
            self._context.guard.settle(max((found.through for found in applied), default=FIRST_SCN))
            if self._assignment.is_careful:
                with contextlib.suppress(DatabaseUnavailable):  # any record left belongs to a finished transaction
                    self._context.guard.ended()

        failpoint("apply.before_commit")
        try:
            self._context.session.commit(
                applied, Scn(self._go.low_watermark), tuple(dict.fromkeys(labels))[:LABELS_PER_BATCH_MAX]
            )
        except DatabaseUnavailable:
            if applied:
                self._doubt = _Doubt(applied, done)
            raise
        failpoint("apply.after_commit")
        done()

    def _write_history(self, resolution: Resolution) -> None:
        """Write the conflicts of the open transaction into the history; count them when it is committed."""
        self._met += len(resolution.records)
        resolution.write(self._context.session)

    def _roll_back(self) -> None:
        self._met = 0
        self._context.session.rollback()
        self.totals.rollbacks += 1

    def _check_fit(self, batch: LcrBatch) -> None:
        """Check the tables before a transaction counts as failed: they may have been altered since they were described.

        Raises:
            UnfitTableError: a table does not fit: the transaction waits for the ALTER.
        """
        session = self._context.session
        used = {group.table for group in batch.groups} | {table for found in batch.truncates for table in found.tables}
        for version in (batch.tables[table] for table in sorted(used)):
            session.describe(version.owner, version.name, fresh=True)
            hint = session.missing_alter(version)
            if hint and not self._context.fit_of(version).unfit:
                raise UnfitTableError(
                    f"table {version.qualified_name} at the destination does not fit the LCRs: {hint}",
                    hint=hint,
                    table=version.qualified_name,
                )

    def _result(self, failure: Failure | None = None) -> GroupResult:
        return GroupResult(
            group=self._assignment.group,
            attempt=self._assignment.attempt,
            applied=tuple(self._applied),
            errors=tuple(self._errors),
            statistics=self.totals.frozen(),
            failure=failure,
        )

    def _retry(self, reason: RetryReason, next_transaction: int, failure: Failure | None = None) -> GroupRetry:
        return GroupRetry(
            group=self._assignment.group,
            attempt=self._assignment.attempt,
            reason=reason,
            next_transaction=next_transaction,
            applied=tuple(self._applied),
            errors=tuple(self._errors),
            statistics=self.totals.frozen(),
            failure=failure,
        )

    def _describe(self, batch: LcrBatch, transaction: int, failure: Failure, depends_on: int) -> ErrorTransaction:
        found = batch.transactions
        rows = int(found.first_row[transaction + 1] - found.first_row[transaction])
        return ErrorTransaction(
            number=0,
            apply=self._context.apply,
            source=self._context.source,
            transaction_id=int(found.transaction_id[transaction]),
            row_count=rows,
            # The commit SCN of an open part is unknown; the order SCN is just below it.
            commit_scn=Scn(int(found.commit_scn[transaction] or found.order_scn[transaction])),
            commit_time_us=int(found.commit_time_us[transaction]),
            failed_position=failure.position,
            depends_on=depends_on,
            conflict_type=failure.conflict_type,
            sqlstate=failure.sqlstate,
            message=failure.message,
            created_us=0,
        )
