"""An apply server's session at a destination, one port for each thing that it does; `DestinationSession` is all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.databases.ports.copying import TableWriter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.databases.ports.conflicts import ConflictRecord, LastChange, RowInTheWay, RowQuestion
    from headrace.databases.ports.error_queue import ErrorTransaction, TakenErrors
    from headrace.databases.ports.handler_sql import HandlerSql, SqlResult
    from headrace.databases.ports.progress import ScnRange
    from headrace.databases.ports.tables import DestinationTable
    from headrace.databases.ports.writes import TruncatedTable, Write
    from headrace.lcr.batch import TableVersion
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
    """The transactions of a session, one after another: data and the progress they mean, in one.

    What `commit` answered is on disk, whatever the database's own settings are.
    """

    @property
    def is_closed(self) -> bool:
        """Whether it has ended: it was closed, or its connection broke, and every other call raises `DatabaseUnavailable`."""
        ...

    def begin(self) -> None:
        """Start a transaction (sent together with the first write)."""
        ...

    def savepoint(self) -> None:
        """Set (or move) the one savepoint used between rows."""
        ...

    def rollback_to_savepoint(self) -> None:
        """Undo what came after the savepoint; the transaction can go on."""
        ...

    def mark(self) -> int:
        """Set a mark to go back to; marks nest, and the savepoint that is set behind one is gone with it."""
        ...

    def undo_to_mark(self, mark: int) -> None:
        """Undo what came after a mark, which is gone with all that were set behind it; the transaction can go on."""
        ...

    def drop_mark(self, mark: int) -> None:
        """Keep what came after a mark; it is gone with all that were set behind it."""
        ...

    def commit(self, applied: Sequence[ScnRange], low_watermark: Scn, labels: Sequence[str] = ()) -> None:
        """Record progress and commit, atomically.

        Args:
            applied: what this transaction applied.
            low_watermark: the coordinator's, to fold older ranges into.
            labels: of tracked transactions among them (`headrace.lcr.tracking`): they go on in this database's log, where a
                capture process finds them as a user's. A database without such a log leaves them out.

        Raises:
            DatabaseUnavailable: the outcome is unknown. `ask_outcome` on a new session tells.
        """
        ...

    def ask_outcome(self, applied: Sequence[ScnRange]) -> bool:
        """After a commit whose answer was lost: was it made?

        Call it on a new session of the same server, before anything is committed on it. `open_session` has
        waited until the old one is gone, so the answer is final.

        Args:
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
            fresh: read the catalog again; what it says replaces what was cached.
        """
        ...

    def missing_alter(self, version: TableVersion) -> str:
        """What must be done before rows of `version` can be written (statements for a person); empty: it fits.

        `write` checks the same and raises `UnfitTableError` with it as the hint. Describe `fresh` to look again.
        """
        ...

    def write(self, writes: Sequence[Write]) -> tuple[int, ...]:
        """Execute the writes in order in as few round trips as possible.

        Args:
            writes: of rows that differ in their keys, inside one write.

        Returns:
            Rows affected per write; -1 of a write with `times` where a change that was made later is noted for one of
            its rows.
        """
        ...

    def write_ahead(self, writes: Sequence[Write]) -> Callable[[], tuple[int, ...]]:
        """As `write`, but the caller may go on while the database works.

        Args:
            writes: see `write`.

        Returns:
            A function that waits, and answers or raises what `write` would; it may be called more than once. Whatever
            else needs the database waits as well, and raises what the writes raised; what undoes them only waits.

        Raises:
            HeadraceError: see `write`, where that is known before all of it is under way: of many rows only the last
                ones are.
        """
        ...

    def truncate(self, tables: Sequence[TruncatedTable], *, restart_identity: bool) -> None:
        """Truncate these tables together, and no other: a table that refers to one of them must be among them.

        Of a partition: the destination's partition of that name is truncated if it holds the same rows; where the table
        is partitioned in another way, or not at all, the rows that the source's partition holds are deleted.

        Args:
            tables: what travelled in one TRUNCATE; not empty.
            restart_identity: restart the sequences their columns own.

        Raises:
            DataError: a table that is not among them refers to one of them; or the rows of a partition are not known,
                or cannot be told here.
        """
        ...

    def remove_row(self, table: DestinationTable, number: str) -> None:
        """Delete a row that `find_rows` found in this transaction.

        Args:
            table: in which it is.
            number: see `RowInTheWay`.
        """
        ...


class ConflictSession(Protocol):
    """Tells what the rows of a write meet, and keeps what is needed to tell it."""

    def find_rows(self, write: Write, question: RowQuestion) -> tuple[RowInTheWay, ...]:
        """Find and lock the rows that the rows of a write meet, inside the transaction.

        Args:
            write: any number of rows; not `paired`.
            question: what to find out about them.

        Returns:
            In any order, for each row of the write (`RowInTheWay.of`): by key one at most; by unique keys one for each
            row that has one of them, but for the row that an UPDATE is about. A uniqueness that values do not show
            (partial or expression indexes) finds none.
        """
        ...

    def conflicting(self, write: Write) -> NDArray[np.int64] | None:
        """Which rows of a write would meet a conflict now, without locking anything.

        It may be otherwise when they are written.

        Args:
            write: any number of rows.

        Returns:
            int64, ascending: rows of an UPDATE or DELETE that find no row with their old values, rows of an INSERT of
                which a
            unique key is there. None: that cannot be told for this write.
        """
        ...

    def last_changes(self, write: Write) -> tuple[LastChange, ...]:
        """What is known of the last changes of the rows that an UPDATE or a DELETE finds; a row may be gone.

        Nothing is locked: what was found with `find_rows` stays as it is, and `write` looks again before it notes
        anything.

        Args:
            write: with `times`.

        Returns:
            One for each row of the write, in their order.
        """
        ...

    def forget_changes(self, *, age_s: float, count: int) -> int:
        """Forget the times of changes and deletes that are older, or too many, in a transaction of its own.

        Args:
            age_s: what is younger stays, seconds.
            count: so many stay at most, of all tables of the database.

        Returns:
            How many were forgotten; what other sessions hold is left to the next call.
        """
        ...

    def sample_times(self, *, age_s: float, every_s: float) -> None:
        """Note how far the database's own commit times go back, so that what is lost of them later is known, in transactions of its own.

        Without it, nobody knows how late a row can have been changed whose time is lost: whatever arrives for it is
        undecided.

        Args:
            age_s: changes that are older need not be told from each other, seconds.
            every_s: nothing is noted where that was done so recently, seconds.
        """
        ...

    def record_conflicts(self, records: Sequence[ConflictRecord], *, count_max: int, age_max_s: float) -> None:
        """Write conflicts into the history, inside the transaction, and forget what is beyond its bounds (a part of it, each time).

        Args:
            records: in order; without `number` and `resolved_us`.
            count_max: conflicts that stay.
            age_max_s: how long they stay, seconds.
        """
        ...


class HandlerSession(Protocol):
    """Runs users' SQL inside the transaction, or gives it a role's rights."""

    def run_sql(self, statements: Sequence[HandlerSql], *, timeout_s: float) -> tuple[SqlResult, ...]:
        """Run users' SQL inside the transaction, in order, in as few round trips as possible.

        Args:
            statements: of handlers.
            timeout_s: for each of them.

        Raises:
            DataError: the database refuses one of them, it took too long, or it is none that reads or writes rows:
                nothing else runs, so a transaction can neither end nor begin here.
        """
        ...

    def as_role(self, role: str) -> None:
        """What follows in this transaction is done with a role's rights; the end of the transaction takes that back.

        Args:
            role: of the database; empty: the session's own again.

        Raises:
            DataError: there is no such role, or the session may not take it.
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
            transaction: its description; `number` 0 for a new one (the answer is its number).
            batch: an LcrBatch with the transaction's rows, serialized.
            key_hashes: what later transactions must be checked against.
            part: 0-based part of a transaction that needs several batches. `transaction.row_count` is the part's;
                `commit_scn` and `commit_time_us` are known from the last part on.
            readable: the failing LCR's values as text, "column=value" (only shown by `errors show`).
        """
        ...

    def delete_error(self, number: int) -> bool:
        """Delete an error transaction with all its parts, inside the transaction; False when it is not there.

        `errors execute`: together with the data it applies, then `commit` with nothing in `applied`. Its edits count as
        EXECUTED from then on, and the original of what was edited goes with it.
        """
        ...

    def take_errors(self, numbers: Sequence[int], *, bytes_max: int) -> TakenErrors:
        """Delete several error transactions, as `delete_error` does each, and read what they had.

        Nobody can edit one meanwhile.

        Args:
            numbers: of the error transactions, ascending.
            bytes_max: of all batches together; the first error transaction that goes beyond this, and all behind it,
                are left.
        """
        ...


class DestinationSession(
    ApplyTransaction, WriteSession, ConflictSession, HandlerSession, ErrorSession, TableWriter, Protocol
):
    """One apply server's session: writes data and progress in one transaction. Tagged; fenced by its epoch.

    Every method raises `DatabaseUnavailable` when the outcome is unknown or the environment is at fault,
    `DataError` when the database refuses the data, `FencedError` when a newer epoch or a newer incarnation of the
    server exists. After any error the transaction must be rolled back. A `DataError` has `context["sqlstate"]`, the
    database's own number of the error, and `context["violates"]` when a row may not be there beside another one
    ("unique": a unique key or the like) or without one ("foreign_key").
    """
