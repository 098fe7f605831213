"""A database that changes are applied to: sessions, writes, progress, the error queue, instantiation.

Longer than 500 lines: every promise stands at its port.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from databases.copying import TableWriter
from streams.scn import FIRST_SCN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from databases.ports.conflicts import ConflictRecord, LastChange, RowInTheWay, RowQuestion, WriteTimes
    from databases.ports.error_queue import ErrorEdit, TakenErrors
    from databases.ports.handler_sql import HandlerSql, SqlResult
    from databases.ports.planning import Finding, PlannedApply, PlannedStatement, TableShape
    from databases.ports.row_marks import MarkedColumn, RowMark
    from streams.lcr_batch import ColumnValues, Command, Partition, TableVersion
    from streams.scn import Scn
    from streams.table_name import TableName

__all__ = [
    "BEGUN",
    "ROWS_THERE",
    "ApplyProgress",
    "DestinationColumn",
    "DestinationDatabase",
    "DestinationSession",
    "DestinationTable",
    "Diversion",
    "ErrorTransaction",
    "ForeignKey",
    "FoundRows",
    "Instantiation",
    "LogPositions",
    "OtherCopy",
    "PartOf",
    "ScnRange",
    "TruncatedTable",
    "Write",
    "are_comparable",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationColumn:
    """A destination table's column, in the same words as `streams.lcr_batch.Column`."""

    name: str
    number: int  # the database's own; the column keeps it when it is renamed
    type_name: str
    type_number: int
    type_modifier: int
    not_null: bool
    has_default: bool
    is_generated: bool  # computed by the database: never written
    is_identity_always: bool  # written with OVERRIDING SYSTEM VALUE, never SET
    equality: str  # canonical form for hashing: see `spark_apply.dependencies` ("integer", "bytes", ..., "none")
    converted: tuple[str, ...] = ()  # the source's types whose values an operator's function converts
    is_ordered: bool = False  # of two values one is higher, or they are equal
    # it is the same at every site: not that of texts under the rules of a language, which have versions, too
    has_one_order: bool = True
    is_number: bool = False  # values can be added without losing any of them (not floating point)
    # of a domain the type below it, by which a source's log calls such a column; "": the type itself
    base_type: str = ""


def are_comparable(tables: Sequence[Sequence[DestinationColumn]]) -> bool:
    """Whether equal values have equal canonical forms in all tables; "bytes" are those of one type's binary form.

    Args:
        tables: of each table the columns whose values are compared, in one order; a table that lacks one compares with
            none.
    """
    first = tables[0] if tables else ()
    return all(len(columns) == len(first) for columns in tables) and all(
        one.equality == other.equality != "none" and (one.equality != "bytes" or one.type_name == other.type_name)
        for columns in tables
        for one, other in zip(first, columns, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """A foreign key of a destination table.

    Args:
        columns: names of its columns.
        owner: schema of the table that it refers to.
        name: of that table; of a partition, its partitioned table's.
        referred_columns: names of the columns there, in the order of `columns`.
    """

    columns: tuple[str, ...]
    owner: str
    name: str
    referred_columns: tuple[str, ...]


class FoundRows(Enum):
    """What the values by which an UPDATE or a DELETE finds its row can find."""

    ONE = "one"  # a unique key is among them: one row at most
    ANY = "any"  # several rows: one of them is changed
    # several rows: that is an error, which the count shows: none of them counts, or all of a write with one row
    SINGLE = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversion:
    """A rule or trigger of the destination that runs for what apply writes, and in place of it.

    Args:
        command: INSERT, UPDATE or DELETE.
        what: the kind and the name, for messages.
        is_always: it takes every row.
    """

    command: str
    what: str
    is_always: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationTable:
    """What apply must know of a table before it writes to it.

    Args:
        owner, name: as LCRs name it.
        columns: in the table's order.
        key: positions in `columns` that identify a row: the primary key, else the smallest unique key of columns that
            are all NOT NULL, else the smallest with one that is; empty: all columns together (duplicates are possible).
            With a NULL in it several rows may have it.
        unique_keys: column positions of every unique constraint and unique index, `key` included.
        serialise: dependencies cannot be told from values (no canonical equality in a key column, partial or
            expression unique index, exclusion constraint, no key): transactions on it run one after the other.
        ordered: collapsing could be noticed (several unique keys, replica triggers): rows in source order.
        fires: triggers or rules of it also run for what apply writes. They can see other tables: rows of those keep
            their order with its own.
        references: its foreign keys.
        referred: column names of each of its keys that a foreign key refers to, each once.
        is_substitute: `key` is the substitute key that the topology file sets: it need not be unique, and takes
            precedence.
        allow_duplicate_rows: see `rules.table_settings`.
        number: of the table in its database, which keeps it when it is renamed or gets another key; 0: not known.
        above: owner and name of the partitioned table that it is a partition of, the topmost; empty: it is none.
        diversions: what may take rows of a command before the table does.
    """

    owner: str
    name: str
    columns: tuple[DestinationColumn, ...]
    key: tuple[int, ...]
    unique_keys: tuple[tuple[int, ...], ...]
    serialise: bool
    ordered: bool
    fires: bool = False
    references: tuple[ForeignKey, ...] = ()
    referred: tuple[tuple[str, ...], ...] = ()
    is_substitute: bool = False
    allow_duplicate_rows: bool | None = None
    number: int = 0
    above: tuple[str, ...] = ()
    diversions: tuple[Diversion, ...] = ()

    @property
    def identifying_keys(self) -> tuple[tuple[int, ...], ...]:
        """The unique keys that can find a row, the best one first: those with a NOT NULL column.

        Of a table with a substitute key all of them: rows with a NULL in it are found by all their values.
        """
        if self.is_substitute:
            return self.unique_keys
        others = (
            key for key in self.unique_keys if key != self.key and any(self.columns[place].not_null for place in key)
        )
        return (self.key, *others) if self.key else ()

    def rows_found_by(self, columns: Collection[int], *, is_whole: bool, has_null: bool) -> FoundRows:
        """How many rows values of these columns can find, and what becomes of several.

        Args:
            columns: positions in `columns`, without generated ones.
            is_whole: they are all that the LCRs carry: rows that are found are equal in it.
            has_null: the key has a NULL: no unique key tells such rows apart.
        """
        if not has_null and any(set(key) <= set(columns) for key in self.identifying_keys):
            return FoundRows.ONE
        may_repeat = is_whole if self.allow_duplicate_rows is None else self.allow_duplicate_rows
        return FoundRows.ANY if may_repeat else FoundRows.SINGLE


@dataclass(frozen=True, kw_only=True)
class Write:
    """Rows of one table, one command and one set of columns, written as one set.

    Args:
        table: where.
        version: the source's description of the columns the values are in.
        command: INSERT, UPDATE, DELETE. (TRUNCATE goes through `DestinationSession.truncate`.)
        old: values that find and check the row, all columns of `version`; None for INSERT.
        new: values to write, all columns of `version`; None for DELETE.
        match_columns: positions in `version.columns` that find the row, taken from `old`.
        compare_columns: positions whose old value must equal the row's.
        set_columns: positions to write (INSERT: to insert).
        paired: several rows may have these values (a NULL in the key): each of the write's rows changes one row at
            most.
        times: when its rows were changed, of a table with latest_timestamp: a row of it finds no row that was changed
            later, and is noted as the last change of its key, unless a later one is.
    """

    table: DestinationTable
    version: TableVersion
    command: Command
    old: ColumnValues | None
    new: ColumnValues | None
    match_columns: tuple[int, ...]
    compare_columns: tuple[int, ...]
    set_columns: tuple[int, ...]
    paired: bool = False
    times: WriteTimes | None = None

    @property
    def row_count(self) -> int:
        """Rows in the write."""
        values = self.new if self.new is not None else self.old
        return 0 if values is None else values.row_count


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedTable:
    """A table to truncate, or one partition of the source's table (None: all of it)."""

    table: DestinationTable
    partition: Partition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScnRange:
    """Transactions with `after < commit_scn <= through`."""

    after: Scn
    through: Scn


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPositions:
    """Two positions in a database's own log.

    Every commit that was answered before is at or below `written`, and durable at or below `flushed`.
    """

    written: int
    flushed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyProgress:
    """What is committed at a destination for one apply process.

    Durable but for the last commits of lazy sessions (`LogPositions`).

    Args:
        epoch: of the incarnation that wrote last.
        low_watermark: everything up to here is applied or in the error queue.
        above: ranges above the low watermark that are applied too, disjoint and ascending.
        ahead_scn: above the low watermark while copied tables join (`DestinationDatabase.join_tables`): up to here
            every table but those that are JOINING is applied.
    """

    epoch: int
    low_watermark: Scn
    above: tuple[ScnRange, ...]
    ahead_scn: Scn = FIRST_SCN


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTransaction:
    """A transaction in the error queue, for listings; row values only in `readable`.

    Args:
        number: identifies it at the destination; ascending in the order of failing.
        apply: the apply process.
        source: source site.
        transaction_id, commit_scn, commit_time_us: of the source transaction.
        row_count: LCRs in it.
        failed_position: 0-based position of the LCR that failed; -1: it waits behind `depends_on`.
        depends_on: number of the error transaction it waits behind; 0: it failed itself.
        conflict_type: "update_missing", "insert_exists", ...; empty for other errors.
        sqlstate: of the database's error, if any.
        message: what happened, no row values.
        created_us: when, microseconds since the epoch.
        readable: the failing LCR's values as text, "column=value"; only for `errors show`.
        edits: how often an operator edited it; a transaction that failed again after that says why in its place.
    """

    number: int
    apply: str
    source: str
    transaction_id: int
    commit_scn: Scn
    commit_time_us: int
    row_count: int
    failed_position: int
    depends_on: int
    conflict_type: str
    sqlstate: str
    message: str
    created_us: int
    readable: tuple[str, ...] = ()
    edits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOf:
    """A partition of a source's table that is copied alone, and has a record of its own.

    Args:
        table: identity of the partitioned table (`CapturedTable.identity`).
        number: the partition's own at the source.
    """

    table: str
    number: int

    @property
    def identity(self) -> str:
        """Under which it is recorded."""
        return f"{self.table}/{self.number}"

    @property
    def key(self) -> tuple[str, str]:
        """What is known of it is found by this: its name may be another partition's by tomorrow.

        No table has it as its name.
        """
        return "", str(self.number)

    @classmethod
    def of(cls, identity: str) -> PartOf | None:
        """The partition that is recorded under an identity; None: a table is."""
        table, _, number = identity.partition("/")
        return cls(table=table, number=int(number)) if number else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instantiation:
    """What is known at a destination about one table's instantiation.

    Args:
        source: the site it was copied from.
        identity: which table of that site it is (`CapturedTable.identity`), or which partition (`PartOf`): it is
            recorded once per identity.
        owner, name: the table, as LCRs name it; what it was called when this was recorded.
        scn: changes with `commit_scn <= scn` are in the copy: the instantiation SCN; 0: not known yet.
        state: PENDING, COPYING, COMPARING, COPIED (equal; later changes are not applied yet), JOINING (they are being
            applied, up to `ApplyProgress.ahead_scn`; below that the low watermark says which), DONE, KEPT (its rows
            were kept, only the SCN was set), FAILED, or LEFT (it was copied, and then its changes did not come here for
            a while: its rows are out of date).
        row_count: rows copied (KEPT: not counted, 0).
        digest: of the rows, as the connector writes it; empty when not computed.
        problem: why it FAILED; empty otherwise.
        is_remade: what has this name at the destination now is another table than when this was recorded: it was
            dropped and created again, or exchanged. Recorded with it, the record stays of the earlier table; without,
            it is of this one.
        name_now: (owner, name) that the destination's table of when this was recorded has now; None: it is gone, or
            nobody knows.
        is_gone: that table is gone; False: it is there, or nobody knows.
    """

    source: str
    identity: str
    owner: str
    name: str
    scn: Scn
    state: str
    row_count: int = 0
    digest: str = ""
    problem: str = ""
    is_remade: bool = False
    name_now: tuple[str, str] | None = None
    is_gone: bool = False

    def may_be(self, owner: str, name: str) -> bool:
        """Whether the destination's table of a name can be the one that was recorded.

        Also where nobody knows that (a dump was restored).

        Args:
            owner: its schema.
            name: its name.
        """
        return not self.is_gone and self.name_now in {None, (owner, name)}

    @property
    def key(self) -> tuple[str, str]:
        """Owner and name of a table, `PartOf.key` of a partition."""
        part = PartOf.of(self.identity)
        return (self.owner, self.name) if part is None else part.key

    @property
    def is_kept(self) -> bool:
        """Its rows were kept as they were: they are an operator's own, and never removed unasked."""
        return self.state == "KEPT" or (self.state in {"COPIED", "JOINING"} and not self.digest)


BEGUN = frozenset({"COPYING", "COMPARING"})
"""States of an instantiation whose copy runs, or was interrupted and will be made again."""

ROWS_THERE = BEGUN | {"COPIED", "JOINING", "DONE", "KEPT"}
"""States of an instantiation whose rows may be in the table; those of FAILED are if it has an SCN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCopy:
    """What another apply process of the same database has recorded of a destination table, of whichever topology it is.

    Args:
        topology: whose apply process it is.
        apply: its name.
        source: the site that its rows are from.
        state: one of `ROWS_THERE`, or FAILED with an SCN: rows of its copy may be in the table. (FAILED without an SCN,
            and LEFT, are none.)
        row_count: see `Instantiation`.
        digest: see `Instantiation`.
        identity: see `Instantiation`.
    """

    topology: str
    apply: str
    source: str
    state: str
    row_count: int = 0
    digest: str = ""
    identity: str = ""

    def is_of(self, identity: str) -> bool:
        """Whether its rows are from the same table of the same source, captured by whichever topology.

        Args:
            identity: see `CapturedTable`.
        """
        table = identity.rpartition(".")[0]
        return bool(table) and self.identity.rpartition(".")[0] == table

    @property
    def is_copying(self) -> bool:
        """Whether its copy runs, or was interrupted and will be made again: the table may be emptied any moment."""
        return self.state in BEGUN

    @property
    def is_finished(self) -> bool:
        """Whether what it copied or kept is all there, and later changes are applied."""
        return not self.is_copying and self.state != "FAILED"

    @property
    def copied_nothing(self) -> bool:
        """Whether its copy was of no row, and is finished."""
        return self.is_finished and self.state != "KEPT" and bool(self.digest) and self.row_count == 0


class DestinationSession(TableWriter, Protocol):
    """One apply server's session: writes data and progress in one transaction. Tagged; fenced by its epoch.

    Every method raises `DatabaseUnavailable` when the outcome is unknown or the environment is at fault,
    `DataError` when the database refuses the data, `FencedError` when a newer epoch or a newer incarnation of the
    server exists. After any error the transaction must be rolled back. A `DataError` has `context["sqlstate"]`, the
    database's own number of the error, and `context["violates"]` when a row may not be there beside another one
    ("unique": a unique key or the like) or without one ("foreign_key").

    What `commit` answered is on disk, whatever the database's own settings are.
    """

    @property
    def is_closed(self) -> bool:
        """Whether it has ended: it was closed, or its connection broke, and every other call raises `DatabaseUnavailable`."""
        ...

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

    def begin(self) -> None:
        """Start a transaction (sent together with the first write)."""
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
            StreamsError: see `write`, where that is known before all of it is under way: of many rows only the last
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

    def savepoint(self) -> None:
        """Set (or move) the one savepoint used between rows."""
        ...

    def rollback_to_savepoint(self) -> None:
        """Undo what came after the savepoint; the transaction can go on."""
        ...

    def commit(self, applied: Sequence[ScnRange], low_watermark: Scn, labels: Sequence[str] = ()) -> None:
        """Record progress and commit, atomically.

        Args:
            applied: what this transaction applied.
            low_watermark: the coordinator's, to fold older ranges into.
            labels: of tracked transactions among them (`streams.tracking`): they go on in this database's log, where a
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

    def mark(self) -> int:
        """Set a mark to go back to; marks nest, and the savepoint that is set behind one is gone with it."""
        ...

    def undo_to_mark(self, mark: int) -> None:
        """Undo what came after a mark, which is gone with all that were set behind it; the transaction can go on."""
        ...

    def drop_mark(self, mark: int) -> None:
        """Keep what came after a mark; it is gone with all that were set behind it."""
        ...

    def remove_row(self, table: DestinationTable, number: str) -> None:
        """Delete a row that `find_rows` found in this transaction.

        Args:
            table: in which it is.
            number: see `RowInTheWay`.
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

    def as_role(self, role: str) -> None:
        """What follows in this transaction is done with a role's rights; the end of the transaction takes that back.

        Args:
            role: of the database; empty: the session's own again.

        Raises:
            DataError: there is no such role, or the session may not take it.
        """
        ...

    def close(self) -> None:
        """Close the connection; idempotent."""
        ...


class DestinationDatabase(Protocol):
    """A database that changes are applied to: catalog, progress, error queue, instantiation.

    An epoch ends when a newer one is raised, and when the database may have lost what it answered to be committed:
    after a crash, a failover, a restart, a restore from a backup. From then on `open_session`, `record_low_watermark`
    and `record_instantiation` raise `DestinationRestarted` until `raise_epoch`, which reads what is really there. So
    nothing that one epoch was told to be committed is lost while it lasts, and no later commit hides that something
    was.
    """

    def database_identity(self) -> str:
        """As `SourceDatabase.database_identity`, in the same words."""
        ...

    def preflight(self, topology: str, *, sessions: int, applies: int = 1, copies: int = 0) -> tuple[Finding, ...]:
        """What keeps this database from being a destination.

        Args:
            topology: whose apply processes are meant: what it has here already is not needed twice.
            sessions: sessions of all its apply servers, each of which needs an origin.
            applies: apply processes, each of which has a session of its own.
            copies: tasks that copy tables while the others are applied: they need sessions and origins besides. Where
                there is no place for them, that is no error: only such a copy waits.
        """
        ...

    def plan(self, topology: str, applies: Sequence[PlannedApply]) -> tuple[PlannedStatement, ...]:
        """What `prepare`, instantiation and these apply processes would do, in order, without doing it.

        Args:
            topology: its name.
            applies: the topology's apply processes at this destination; empty: only what `prepare` would do.
        """
        ...

    def prepare(self, topology: str) -> tuple[str, ...]:
        """Create or upgrade the `headrace` schema, idempotently; returns the statements run."""
        ...

    def raise_epoch(self, topology: str, apply: str) -> ApplyProgress:
        """Fence out older incarnations, and only then read the progress.

        Raises the epoch, ends their sessions and waits until they are gone. A caller that was overtaken meanwhile, by
        a newer epoch, ends nothing of it and writes nothing. No epoch is given out twice, also when a restore took back
        what recorded it. Copied tables whose rows the database has lost since, because it keeps them in no log, are
        recorded as to be copied again.

        Args:
            topology: name of the topology.
            apply: name of the apply process.

        Raises:
            FencedError: it was overtaken.
            DatabaseUnavailable: the epoch may be raised; call again.
        """
        ...

    def progress(self, topology: str, apply: str) -> ApplyProgress | None:
        """Read the progress without fencing anyone; None: this apply process never ran.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
        """
        ...

    def record_low_watermark(self, topology: str, apply: str, epoch: int, scn: Scn) -> None:
        """Make a low watermark durable that moved without data.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            epoch: as `raise_epoch` answered.
            scn: of the apply process's source; everything up to it is applied or in the error queue. What is recorded
                never goes back: a lower one changes nothing.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: see the class.
        """
        ...

    def log_positions(self, topology: str, apply: str, epoch: int) -> LogPositions:
        """How far this database's log is written and on disk, in the life of the server in which the epoch began.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            epoch: as `raise_epoch` answered.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: see the class: the log may go on otherwise than it was written.
        """
        ...

    def describe_apply(
        self, topology: str, apply: str, epoch: int, configuration: Mapping[str, Any], state: Mapping[str, Any]
    ) -> None:
        """Keep what an apply process says of itself, for people; nothing is decided by it.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            epoch: of its driver; a record of a higher one stays.
            configuration: JSON-able, see `spark_apply.described`.
            state: as well.
        """
        ...

    def open_session(
        self,
        topology: str,
        apply: str,
        *,
        server: int,
        epoch: int,
        tag: bytes,
        incarnation: int = 1,
        source: str = "",
        is_lazy: bool = False,
    ) -> DestinationSession:
        """Open one apply server's session. Ends the session of an older incarnation, and an older one of its own.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            server: number of the apply server.
            epoch: as `raise_epoch` answered.
            tag: marks the session's changes; empty: their tag is NULL.
            incarnation: of the server within the epoch. A lower one than the highest that was ever seen ends nothing.
            source: the site whose changes it applies: what users' SQL writes in its transactions counts as that site's.
                Empty: none runs.
            is_lazy: commits of rows alone do not wait until they are durable: `log_positions` tells. A crash of the
                server takes the last of them, rows and progress together.

        Raises:
            FencedError: a newer epoch or a newer incarnation exists.
            DestinationRestarted: see the class.
            DatabaseUnavailable: try again.
        """
        ...

    def preflight_times(self, tables: Collection[tuple[str, str]], *, has_tombstones: bool) -> tuple[Finding, ...]:
        """What keeps this database from knowing when rows of tables with latest_timestamp were changed last.

        Args:
            tables: their owners and names here.
            has_tombstones: deletes by sessions of this site are to be noted as well.
        """
        ...

    def keep_tombstones(self, tables: Collection[tuple[str, str]]) -> tuple[str, ...]:
        """See to it that deletes by sessions of this site leave a note, in their own transaction.

        Idempotent, behind `prepare`.

        Args:
            tables: owners and names; those that are not there are left out.

        Returns:
            The statements that were run.

        Raises:
            DatabaseError: a right is missing.
        """
        ...

    def describe(self, owner: str, name: str) -> DestinationTable | None:
        """Describe a table from the catalog, never cached.

        Args:
            owner: schema of the table here.
            name: of the table in that schema.

        Returns:
            The description; None: no such table.
        """
        ...

    def errors(
        self,
        topology: str,
        apply: str | None = None,
        *,
        number: int | None = None,
        first: int | None = None,
    ) -> tuple[ErrorTransaction, ...]:
        """List the error queue in order.

        Args:
            topology: name of the topology.
            apply: name of the apply process; None: all of the topology's here.
            number: only this error transaction; a queue may have very many.
            first: so many at most; None: all.

        Returns:
            The error transactions of all sources, by ascending number; empty when nothing was ever prepared here.
        """
        ...

    def conflicts(self, topology: str, apply: str | None = None, *, last: int) -> tuple[ConflictRecord, ...]:
        """List the history of conflicts in order.

        Args:
            topology: name of the topology.
            apply: name of the apply process; None: all of the topology's here.
            last: so many at most: the newest ones.

        Returns:
            By ascending number; empty when nothing was ever prepared here, or with an older schema.
        """
        ...

    def error_batches(self, number: int, *, original: bool = False) -> Iterator[bytes]:
        """The serialized LcrBatches of one error transaction, part by part.

        Args:
            number: of the error transaction.
            original: as it failed, without an operator's edits.
        """
        ...

    def edit_error(
        self, topology: str, edit: ErrorEdit, *, part: int, batch: bytes, key_hashes: NDArray[np.uint64]
    ) -> bool:
        """Replace one part of an error transaction, in one transaction with the record of what was changed.

        The part as it failed is kept until the transaction is executed or deleted; a later edit does not touch it.

        Args:
            topology: whose error queue.
            edit: `number`, and `edit` as it must be the next one: another operator's edit in between is not
                overwritten.
            part: which of its parts (`error_batches`), from 0.
            batch: the part as it is now, serialized.
            key_hashes: what later transactions must be checked against besides what is stored already.

        Returns:
            False, and nothing is changed: the error transaction is not there, or `edit.edit` is not its next edit.
        """
        ...

    def error_edits(self, topology: str, number: int | None = None) -> tuple[ErrorEdit, ...]:
        """The edits of error transactions, also of some that were executed or deleted since, in order.

        Args:
            topology: whose error queue.
            number: of an error transaction; None: all.

        Returns:
            In the order they were made; `EDITS_KEPT_MAX` of ended transactions at most, none older than
            `EDITS_AGE_MAX_S`.
        """
        ...

    def note_failure(self, topology: str, found: ErrorTransaction) -> None:
        """An error transaction was executed and failed again: record why, in the place of why it failed before.

        Args:
            topology: whose error queue.
            found: `number`, and the failure: `failed_position`, `conflict_type`, `sqlstate`, `message`, `readable`. One
                that waited behind another does so no more. One that is not there is left alone.
        """
        ...

    def begin_handler_call(self, topology: str, apply: str, scn: Scn, function: str) -> int:
        """Record durably that a process is about to call a user's handler for a transaction.

        How many began it before and did not end it.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            scn: of the transaction, at its source.
            function: name and version.
        """
        ...

    def end_handler_calls(self, topology: str, apply: str, scns: Collection[Scn]) -> None:
        """Forget the calls for transactions: the process lived through them.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            scns: as `begin_handler_call` got them.
        """
        ...

    def delete_errors(self, topology: str, numbers: Collection[int]) -> frozenset[int]:
        """Delete error transactions (`errors delete`) and what was kept of their originals, all or none.

        Args:
            topology: whose error queue.
            numbers: of the error transactions (`ErrorTransaction.number`); one of another topology counts as not there.

        Returns:
            The numbers of those that were there.
        """
        ...

    def instantiations(self, topology: str, apply: str) -> tuple[Instantiation, ...]:
        """What is recorded about the instantiation of an apply process's tables, by owner and name.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
        """
        ...

    def other_copies(self, topology: str, apply: str, owner: str, name: str) -> tuple[OtherCopy, ...]:
        """What other apply processes have in a table of this database, by topology and name.

        A record is of the table that has its name now, and of the table that it was recorded of, whatever that is
        called now. One of a partition, or of the table that this one is a partition of, counts, too: rows of one are
        rows of the other.

        Args:
            topology: whose apply process asks.
            apply: its name; its own records are none of others.
            owner: schema of the table.
            name: of the table.
        """
        ...

    def record_instantiation(
        self,
        topology: str,
        apply: str,
        epoch: int,
        instantiation: Instantiation,
        *,
        replaces: Collection[str] = (),
        beside: Collection[OtherCopy] | None = None,
    ) -> bool:
        """Record a table's instantiation, replacing what was recorded of this identity before.

        With `beside` it is a claim: of two apply processes that claim a table at once, and have seen nothing of each
        other, one gets it.

        Args:
            topology: whose apply process it is.
            apply: its name.
            epoch: of the driver that records it.
            instantiation: what is known now.
            replaces: identities of tables whose place at the destination it takes; their records are removed with it.
            beside: what `other_copies` answered; nothing is recorded if others have anything else in the table by now.
                None: whatever they have. Anything that takes a table, or that removes rows from it, must say it.

        Returns:
            Whether it is recorded.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: see the class.
        """
        ...

    def row_marks(self, topology: str, apply: str, source: str) -> dict[str, RowMark]:
        """What is recorded of the source's tables (`SourceDatabase.row_marks`), by identity.

        One that another version wrote is left out.

        Args:
            topology: whose apply process it is.
            apply: its name.
            source: name of the site.
        """
        ...

    def record_row_marks(
        self,
        topology: str,
        apply: str,
        epoch: int,
        source: str,
        marks: Mapping[str, RowMark],
        *,
        was: Mapping[str, RowMark] | None = None,
    ) -> None:
        """Record the marks of tables whose rows here are the source's of that moment.

        Marks of tables without a record are forgotten.

        Args:
            topology: whose apply process it is.
            apply: its name.
            epoch: of the driver that records it.
            source: name of the site.
            marks: by identity.
            was: what `row_marks` answered: those that are not the same any more stay as they are. None: all are
                recorded.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: see the class.
        """
        ...

    def marked_columns(self, tables: Sequence[TableName]) -> dict[TableName, dict[str, MarkedColumn]]:
        """The columns of those tables that are here, by name; nothing of those whose columns are not known by numbers.

        Args:
            tables: names here.
        """
        ...

    def computed_columns(self, table: TableName) -> dict[str, str]:
        """See `SourceDatabase.computed_columns`.

        Args:
            table: its name here.

        Raises:
            DatabaseUnavailable: it is locked; ask again.
        """
        ...

    def may_hold(self, table: TableName, part: TableName) -> bool:
        """Whether a table here may have rows that were of a partition that the source's table does not have any more.

        Args:
            table: name here.
            part: the partition's name, as the destination would call it.
        """
        ...

    def partition_rows(self, table: TableName, part: TableName) -> str:
        """Which rows a partition of a table here holds, in the words of `SourceDatabase.partition_rows`.

        Empty: the table has no such partition.

        Args:
            table: name here.
            part: name of the partition.
        """
        ...

    def missing_grant(self, part: TableName) -> str:
        """The statement that gives the role what it lacks to copy rows into a partition itself.

        Empty: it lacks nothing.

        Args:
            part: name of the partition.
        """
        ...

    def remove_partition(
        self,
        topology: str,
        apply: str,
        epoch: int,
        table: TableName,
        part: TableName,
        *,
        how: str,
        may: Callable[[str], bool],
    ) -> bool:
        """Detach a partition of a table here, at any depth, drop it, or remove its rows.

        Args:
            topology: whose apply process writes the table.
            apply: its name.
            epoch: of the driver that asks; no newer one begins before it is done.
            table: name here.
            part: name of the partition.
            how: detach, drop or empty.
            may: asked when nobody can write the table any more, with the rows that the partition holds
                (`partition_rows`): whether it may be done.

        Returns:
            Whether it was done; a partition that is not there is.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: see the class.
            DatabaseUnavailable: others use the table; try again.
            DatabaseError: a right is missing, or others depend on it.
        """
        ...

    def leave_out(self, topology: str, apply: str, *, kept: Collection[str]) -> tuple[Instantiation, ...]:
        """Record that changes of all but some tables do not come to an apply process any more.

        Partitions with a record of their own (`PartOf`) stay and go with their tables. What was copied of them is LEFT.
        A table whose rows were never ours (KEPT, or without an SCN) is forgotten. Called before the first change can be
        missing. A driver that still runs is fenced out.

        Args:
            topology: whose apply process it is.
            apply: its name.
            kept: identities of the tables whose changes come.

        Returns:
            The tables that left, as they were recorded before.
        """
        ...

    def recorded_applies(self, topology: str) -> tuple[str, ...]:
        """The apply processes of which a table is recorded here that is not LEFT, whatever their topology has by now.

        Args:
            topology: whose apply processes they are.
        """
        ...

    def join_tables(
        self, topology: str, apply: str, epoch: int, joining: Sequence[Instantiation], *, through: Scn
    ) -> ApplyProgress:
        """Let copied tables take part, in one transaction: the low watermark goes back to the oldest copy among them.

        Tables that joined before become DONE (without a digest: KEPT), these become JOINING. The low watermark becomes
        the oldest instantiation SCN among them, or `through` if that is lower; `ahead_scn` becomes `through`. What the
        sessions recorded before is forgotten: each must be opened again before it commits. Calling it again with the
        same arguments changes nothing.

        Args:
            topology: its name.
            apply: the apply process.
            epoch: its current one.
            joining: the tables, as they are recorded.
            through: the low watermark. The caller knows that nothing above it is applied, that it is not below the
                recorded `ahead_scn`, that no session is in a transaction, and that no copy's SCN was told upstream as
                durable.

        Returns:
            The progress as it is now.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: see the class.
        """
        ...

    def filled(self, tables: Collection[TableName]) -> tuple[TableName, ...]:
        """Those of the tables that exist here, may be read and have a row, in the order given."""
        ...

    def tables_in(self, owner: str) -> frozenset[str] | None:
        """The names of the tables in a schema, partitions too; None: there is no such schema."""
        ...

    def nested_tables(self, tables: Collection[TableName]) -> Mapping[TableName, TableName]:
        """Those of the tables that are partitions here of another one of them, at any depth, and that one."""
        ...

    def is_reserved(self, owner: str) -> bool:
        """Whether a schema is the database's or Headrace's own.

        No LCR changes a table of it, whoever sends it, and nobody is asked to put one there.
        """
        ...

    def how_to_empty(self, table: TableName) -> str:
        """The statements with which an operator removes the rows of a table, and of no other one.

        Neither of those that inherit from it or refer to it, nor by triggers.
        """
        ...

    def preflight_tables(
        self,
        versions: Sequence[TableVersion],
        *,
        now: Sequence[TableVersion] = (),
        at_source: Mapping[TableName, TableName] | None = None,
    ) -> tuple[Finding, ...]:
        """What keeps these source tables from being applied here: missing tables, columns that do not fit, ...

        Args:
            versions: the tables as their rows come.
            now: those of them that are known as the source has them at this moment. Where a column has another type
                here, they tell whether the rows are older than the column, or the column is to be altered: one fix of
                    two.
            at_source: the names that they have at the source, by their names here, for fixes there; None: not known.
        """
        ...

    def preflight_shapes(self, shapes: Sequence[TableShape], versions: Sequence[TableVersion]) -> tuple[Finding, ...]:
        """What will fail or be slow though the columns of these source tables fit; of tables that exist here.

        Args:
            shapes: the tables at the source, under the names they have here.
            versions: the same tables' columns, in any order.
        """
        ...

    def preflight_domains(self, shapes: Sequence[TableShape]) -> tuple[Finding, ...]:
        """Which columns would change values of these source tables without an error, though their types have the same names.

        Args:
            shapes: from `SourceDatabase.domain_shapes`, under the names the tables have here.
        """
        ...

    def error_key_hashes(self, topology: str, apply: str) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        """Read the key hashes of every error transaction of an apply process, in the order of the error queue.

        Args:
            topology: name of the topology.
            apply: name of the apply process.

        Yields:
            Number of the error transaction, and uint64[n]: what `DestinationSession.put_error` got, of all parts
            together.
        """
        ...

    def remove(self, topology: str) -> tuple[str, ...]:
        """Fence out and forget a topology's apply processes, with all that was made for them (`down --purge`).

        Returns:
            What was done, and what had to stay and why, a line each.
        """
        ...

    def forget(self, topology: str, apply: str) -> tuple[str, ...]:
        """Fence out one apply process and forget its progress, its instantiations and its errors: it begins anew.

        Args:
            topology: name of the topology.
            apply: name of the apply process; unknown here: nothing is done.

        Returns:
            What was done, a line each.
        """
        ...

    def close(self) -> None:
        """Close every connection; idempotent."""
        ...
