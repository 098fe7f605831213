"""Ports of an apply server's session at a destination, one per task; `DestinationSession` combines them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.databases.ports.copying import TableWriter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.databases.ports.conflicts import ConflictRecord, LastChange, RowInTheWay, RowQuestion
    from headrace.databases.ports.ddl import DdlOutcome, DdlPlace
    from headrace.databases.ports.error_queue import ErrorTransaction, TakenErrors
    from headrace.databases.ports.handler_sql import HandlerSql, SqlResult
    from headrace.databases.ports.progress import ScnRange
    from headrace.databases.ports.tables import DestinationTable
    from headrace.databases.ports.writes import TruncatedTable, Write
    from headrace.lcr.batch import TableVersion
    from headrace.lcr.ddl import DdlChange
    from headrace.lcr.scn import Scn

__all__ = [
    "ApplyTransaction",
    "ConflictSession",
    "DestinationSession",
    "ErrorSession",
    "HandlerSession",
    "WriteSession",
]


class ApplyTransaction(Protocol):
    """The transactions of a session, one after another: data together with the progress it means.

    An acknowledged `commit` is on disk, whatever the database's own settings are.
    """

    @property
    def is_closed(self) -> bool:
        """Whether the session was closed or its connection broke: every other call then raises `DatabaseUnavailable`."""
        ...

    def begin(self) -> None:
        """Start a transaction (sent together with the first write)."""
        ...

    def savepoint(self) -> None:
        """Set (or move) the one savepoint used between rows."""
        ...

    def rollback_to_savepoint(self) -> None:
        """Undo everything after the savepoint; the transaction can continue."""
        ...

    def mark(self) -> int:
        """Set a mark for a partial undo. Marks nest. Undoing or dropping one discards the savepoint set after it."""
        ...

    def undo_to_mark(self, mark: int) -> None:
        """Undo everything after a mark and discard it, with all later marks; the transaction can continue."""
        ...

    def drop_mark(self, mark: int) -> None:
        """Keep everything after a mark and discard it, with all later marks."""
        ...

    def commit(self, applied: Sequence[ScnRange], low_watermark: Scn, labels: Sequence[str] = ()) -> None:
        """Record progress and commit, atomically.

        Args:
            applied: what this transaction applied.
            low_watermark: the coordinator's; older ranges are folded into it.
            labels: of tracked transactions among them (`headrace.lcr.tracking`): they travel on in this database's log,
                where a capture process finds them as it finds a user's. A database without such a log ignores them.

        Raises:
            DatabaseUnavailable: the outcome is unknown; `ask_outcome` on a new session returns it.
        """
        ...

    def ask_outcome(self, applied: Sequence[ScnRange]) -> bool:
        """Whether a commit whose answer was lost was made.

        Call it on a new session of the same server, before anything is committed on it. The answer is final:
        `open_session` has waited until the old session is gone.

        Args:
            applied: what the lost commit would have recorded; not empty.
            applied: what the lost commit was to record; not empty.
        """
        ...

    def rollback(self) -> None:
        """Undo the transaction; idempotent."""
        ...

    def close(self) -> None:
        """Close the connection; idempotent."""
        ...


class WriteSession(Protocol):
    """Writes rows inside the transaction, to tables that fit."""

    def describe(self, owner: str, name: str, *, fresh: bool = False) -> DestinationTable | None:
        """Describe a table; None when it does not exist. Cached unless `fresh`.

        Args:
            owner: schema of the table at the destination.
            name: of the table in that schema.
            fresh: read the catalog again and replace the cached description.
        """
        ...

    def missing_alter(self, version: TableVersion) -> str:
        """Return the statements an operator must run before rows of `version` can be written; empty: the table fits.

        `write` checks the same and raises `UnfitTableError` with this text as the hint. Call `describe` with `fresh` to
        check again.
        """
        ...

    def write(self, writes: Sequence[Write]) -> tuple[int, ...]:
        """Execute the writes in order in as few round trips as possible.

        Args:
            writes: the rows of one write differ in their keys.

        Returns:
            Rows affected per write; -1 for a write with `times` where a later change is noted for one of its rows.
        """
        ...

    def write_ahead(self, writes: Sequence[Write]) -> Callable[[], tuple[int, ...]]:
        """Start `write` and return while the database works.

        Returns:
            A function that waits and returns or raises what `write` would; it may be called more than once. Any other
            call that needs the database waits as well and raises what the writes raised; calls that undo them only
            wait.

        Raises:
            HeadraceError: as for `write`, when an error is known before everything is sent: of many rows only the last
                ones are still in flight on return.
        """
        ...

    def truncate(self, tables: Sequence[TruncatedTable], *, restart_identity: bool) -> None:
        """Truncate these tables together, and no other: a table that refers to one of them must be among them.

        For a partition, the destination's partition of that name is truncated if it holds the same rows. Where the
        table is partitioned differently or not at all, the rows of the source's partition are deleted.

        Args:
            tables: the content of one TRUNCATE; not empty.
            restart_identity: restart the sequences their columns own.

        Raises:
            DataError: another table refers to one of them; or the rows of a partition are unknown, or cannot be
                identified here.
        """
        ...

    def remove_row(self, table: DestinationTable, number: str) -> None:
        """Delete a row that `find_rows` found in this transaction.

        Args:
            table: its table.
            number: the row's (`RowInTheWay.number`).
        """
        ...

    def change_table(self, change: DdlChange, place: DdlPlace, *, is_in_order: bool = True) -> DdlOutcome:
        """Change a table's structure as the source's was changed, and record the outcome, inside the transaction.

        Each part of the table that the change touches must be here as the source has it after the change (nothing is
        done) or as it had it before (it is changed). Afterwards every touched part is as the source has it, and every
        other one as it was. Descriptions of the table from before, and from after when the transaction is rolled back,
        are not used again. A commit of the transaction waits for the disk.

        A new table whose rows are in the log of the topology (`DdlChange.creation`) is created, or found here: equal,
        empty and of nobody else. It gets an instantiation record in the same transaction: DONE at the place's order
        SCN, from which on all its rows are in the log. A dropped table is dropped, if it is the one that was recorded
        for the apply process, with its record.

        Args:
            change: what the source recorded.
            place: of the change in the source's log, for the record and for the operator's wish to skip it.
            is_in_order: False: of an error transaction, so that later changes of a new table may have been left out.
                It is then recorded as one to be copied (COPYING at SCN 1).

        Raises:
            DataError: with `DDL_REFUSED` in the context: the table is neither as before nor as after, or the database
                refuses a statement. Without: the database refuses rows that were written before.
        """
        ...


class ConflictSession(Protocol):
    """Finds the rows that a write meets, and keeps the records this needs."""

    def find_rows(self, write: Write, question: RowQuestion) -> tuple[RowInTheWay, ...]:
        """Find and lock the rows that the rows of a write meet, inside the transaction.

        Args:
            write: any number of rows; not `paired`.
            question: what to find out about them.

        Returns:
            In any order, for each row of the write (`RowInTheWay.of`): by key at most one row; by unique keys one for
            each existing row with one of them, except the row that an UPDATE changes. Uniqueness that values do not
            show (partial or expression indexes) finds none.
        """
        ...

    def conflicting(self, write: Write) -> NDArray[np.int64] | None:
        """Return which rows of a write would meet a conflict now, without locking anything.

        The result may be outdated when they are written.

        Args:
            write: any number of rows.

        Returns:
            int64, ascending: rows of an UPDATE or DELETE that find no row with their old values, and rows of an INSERT
                with an existing unique key. None: unknown for this write.
        """
        ...

    def last_changes(self, write: Write) -> tuple[LastChange, ...]:
        """Return what is known of the last changes of the rows that an UPDATE or a DELETE finds; a row may be deleted.

        Locks nothing: rows found with `find_rows` are locked already, and `write` checks again before it notes
        anything.

        Args:
            write: with `times`.

        Returns:
            One for each row of the write, in the same order.
        """
        ...

    def forget_changes(self, *, age_s: float, count: int) -> int:
        """Forget the times of changes and deletes that are too old or too many, in a separate transaction.

        Args:
            age_s: younger ones stay, seconds.
            count: most notes to keep, over all tables of the database.

        Returns:
            How many were forgotten; rows locked by other sessions are left to the next call.
        """
        ...

    def sample_times(self, *, age_s: float, every_s: float) -> None:
        """Note how far the database's own commit times go back, in separate transactions.

        With these samples it is known up to when a row with a lost time can have been changed. Without them, every
        change that arrives for such a row stays undecided.

        Args:
            age_s: changes older than this need not be distinguished, seconds.
            every_s: nothing is noted if the last sample is younger than this, seconds.
        """
        ...

    def record_conflicts(self, records: Sequence[ConflictRecord], *, count_max: int, age_max_s: float) -> None:
        """Write conflicts into the history, inside the transaction; each call also prunes a part of what exceeds its bounds.

        Args:
            records: in order; without `number` and `resolved_us`.
            count_max: most conflicts to keep.
            age_max_s: how long to keep them, seconds.
        """
        ...


class HandlerSession(Protocol):
    """Runs users' SQL inside the transaction, or lends the transaction a role's rights."""

    def run_sql(self, statements: Sequence[HandlerSql], *, timeout_s: float) -> tuple[SqlResult, ...]:
        """Run users' SQL inside the transaction, in order, in as few round trips as possible.

        Args:
            statements: of handlers.
            timeout_s: for each of them.

        Raises:
            DataError: the database refuses a statement, it took too long, or it does not read or write rows: nothing
                else is run, so a transaction can neither end nor begin here.
        """
        ...

    def as_role(self, role: str) -> None:
        """Run the rest of this transaction with a role's rights; the end of the transaction reverts it.

        Args:
            role: of the database; empty: the session's own again.

        Raises:
            DataError: the role does not exist, or the session may not assume it.
        """
        ...


class ErrorSession(Protocol):
    """Puts error transactions into the error queue, and takes them out, inside the transaction."""

    def put_error(
        self,
        transaction: ErrorTransaction,
        batch: bytes,
        key_hashes: NDArray[np.uint64],
        *,
        part: int,
        readable: Sequence[str] = (),
    ) -> int:
        """Write a failed transaction (or one part of it) into the error queue, inside the transaction.

        Args:
            transaction: its description; `number` 0 for a new one (the number is returned).
            batch: an LcrBatch with the transaction's rows, serialized.
            key_hashes: hashes that later transactions must be checked against.
            part: 0-based part of a transaction that needs several batches. `transaction.row_count` is the part's;
                `commit_scn` and `commit_time_us` are only known with the last part.
            readable: the failing LCR's values as text, "column=value" (only shown by `errors show`).
        """
        ...

    def delete_error(self, number: int) -> bool:
        """Delete an error transaction with all its parts, inside the transaction; False when it does not exist.

        `errors execute` does this together with the data it applies, then calls `commit` with an empty `applied`. Its
        edits count as EXECUTED from then on, and the originals of edited parts are deleted with it.
        """
        ...

    def take_errors(self, numbers: Sequence[int], *, bytes_max: int) -> TakenErrors:
        """Delete several error transactions, each as `delete_error` does, and return their batches.

        No operator can edit one meanwhile.

        Args:
            numbers: of the error transactions, ascending.
            bytes_max: of all batches together; the first error transaction beyond this bound, and all later ones, stay.
        """
        ...


class DestinationSession(
    ApplyTransaction, WriteSession, ConflictSession, HandlerSession, ErrorSession, TableWriter, Protocol
):
    """One apply server's session: writes data and progress in one transaction. Tagged; fenced by its epoch.

    Every method raises `DatabaseUnavailable` when the outcome is unknown or the environment is at fault, and
    `DataError` when the database refuses the data. It raises `FencedError` when a newer epoch or a newer incarnation of
    the server exists. After any error the transaction must be rolled back. A `DataError` has `context["sqlstate"]`, the
    database's error code. It has `context["violates"]` when a row may not exist together with another one ("unique": a
    unique key or the like) or without one ("foreign_key").
    """
