"""A database that changes are applied to, one port for each thing that it keeps; `DestinationDatabase` is all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.databases.ports.conflicts import ConflictRecord
    from headrace.databases.ports.error_queue import ErrorEdit, ErrorTransaction
    from headrace.databases.ports.instantiations import ArrivalSeen, Carried, Instantiation, OtherCopy
    from headrace.databases.ports.planning import (
        ComputedColumn,
        ComputedDifference,
        EnumLabels,
        Finding,
        PlannedApply,
        PlannedStatement,
        TableShape,
    )
    from headrace.databases.ports.progress import ApplyProgress, LogPositions
    from headrace.databases.ports.row_marks import MarkedColumn, RowMark
    from headrace.databases.ports.session import DestinationSession
    from headrace.databases.ports.tables import DestinationTable
    from headrace.lcr.batch import TableVersion
    from headrace.lcr.scn import Scn
    from headrace.lcr.table_name import TableName

__all__ = [
    "ApplyRecords",
    "DestinationDatabase",
    "DestinationSetUp",
    "DestinationTables",
    "ErrorRecords",
    "InstantiationRecords",
]


class DestinationTables(Protocol):
    """The tables of a database, as its catalog describes them."""

    def describe(self, owner: str, name: str) -> DestinationTable | None:
        """Describe a table from the catalog, never cached.

        Args:
            owner: schema of the table here.
            name: of the table in that schema.

        Returns:
            The description; None: no such table.
        """
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

    def filled(self, tables: Collection[TableName]) -> tuple[TableName, ...]:
        """Those of the tables that exist here, may be read and have a row, in the order given."""
        ...

    def how_to_empty(self, table: TableName) -> str:
        """The statements with which an operator removes the rows of a table, and of no other one.

        Neither of those that inherit from it or refer to it, nor by triggers.
        """
        ...


class DestinationSetUp(Protocol):
    """What a database must be and have before anything is applied, and how that is made and removed."""

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

    def preflight_shapes(
        self,
        shapes: Sequence[TableShape],
        versions: Sequence[TableVersion],
        earlier_labels: Mapping[TableName, Mapping[str, str]],
    ) -> tuple[Finding, ...]:
        """What will fail or be slow though the columns of these source tables fit; of tables that exist here.

        Args:
            shapes: the tables at the source, under the names they have here.
            versions: the same tables' columns, in any order.
            earlier_labels: of tables with a mark, the names of their enums' labels when it was recorded, by number:
                what the source renamed since is said by the marks.
        """
        ...

    def preflight_domains(self, shapes: Sequence[TableShape]) -> tuple[Finding, ...]:
        """Which columns would change values of these source tables without an error, though their types have the same names.

        Args:
            shapes: from `SourceDatabase.domain_shapes`, under the names the tables have here.
        """
        ...

    def preflight_times(self, tables: Collection[tuple[str, str]], *, has_tombstones: bool) -> tuple[Finding, ...]:
        """What keeps this database from knowing when rows of tables with latest_timestamp were changed last.

        Args:
            tables: their owners and names here.
            has_tombstones: deletes by sessions of this site are to be noted as well.
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

    def remove(self, topology: str) -> tuple[str, ...]:
        """Fence out and forget a topology's apply processes, with all that was made for them (`down --purge`).

        Returns:
            What was done, and what had to stay and why, a line each.
        """
        ...


class ApplyRecords(Protocol):
    """Who may apply as which apply process, and how far it is.

    An epoch ends when a newer one is raised, and when the database may have lost what it answered to be committed:
    after a crash, a failover, a restart, a restore from a backup. From then on `open_session`, `record_low_watermark`
    and `record_instantiation` raise `DestinationRestarted` until `raise_epoch`, which reads what is really there. So
    nothing that one epoch was told to be committed is lost while it lasts, and no later commit hides that something
    was.
    """

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
            configuration: JSON-able, see `spark_apply.driver.described`.
            state: as well.
        """
        ...

    def recorded_applies(self, topology: str) -> tuple[str, ...]:
        """The apply processes of which a table is recorded here that is not LEFT, whatever their topology has by now.

        Args:
            topology: whose apply processes they are.
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

    def forget(self, topology: str, apply: str) -> tuple[str, ...]:
        """Fence out one apply process and forget its progress, its instantiations and its errors: it begins anew.

        Args:
            topology: name of the topology.
            apply: name of the apply process; unknown here: nothing is done.

        Returns:
            What was done, a line each.
        """
        ...


class ErrorRecords(Protocol):
    """The error queue, and the history of conflicts."""

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

    def error_batches(self, number: int, *, original: bool = False) -> Iterator[bytes]:
        """The serialized LcrBatches of one error transaction, part by part.

        Args:
            number: of the error transaction.
            original: as it failed, without an operator's edits.
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

    def note_failure(self, topology: str, found: ErrorTransaction) -> None:
        """An error transaction was executed and failed again: record why, in the place of why it failed before.

        Args:
            topology: whose error queue.
            found: `number`, and the failure: `failed_position`, `conflict_type`, `sqlstate`, `message`, `readable`. One
                that waited behind another does so no more. One that is not there is left alone.
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


class InstantiationRecords(Protocol):
    """What is known of the copies of tables and their partitions."""

    def instantiations(self, topology: str, apply: str) -> tuple[Instantiation, ...]:
        """What is recorded about the instantiation of an apply process's tables, by owner and name.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
        """
        ...

    def arrival_seen(self, topology: str, apply: str, identity: str, *, snapshot: str) -> ArrivalSeen | None:
        """What a snapshot of this database shows of a table that an apply process writes here.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            identity: of its source's table.
            snapshot: its name (`Snapshot.name`); empty: as it is now.

        Returns:
            None: nothing is recorded of the table, or this apply process never ran.

        Raises:
            DatabaseUnavailable: the snapshot is gone.
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
        carries: Sequence[Carried] = (),
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
            carries: what a copy that is finished has of others' changes: those of them that are AWAITING become COPIED,
                as rows that were kept, at these SCNs.

        Returns:
            Whether it is recorded.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: see the class.
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

    def enum_labels(self, table: TableName) -> tuple[EnumLabels, ...]:
        """The enumerated types of a table's columns, and of what is inside them; none where types have no labels.

        Args:
            table: its name here.
        """
        ...

    def computed_differences(
        self,
        table: TableName,
        wanted: Sequence[ComputedColumn],
        among: Mapping[str, Collection[TableName]],
        accepted: Collection[str] = (),
    ) -> dict[str, ComputedDifference]:
        """How a table computes columns here, beside the source (`SourceDatabase.computed_columns`), by name.

        Args:
            table: its name here.
            wanted: the source's, under the names that these and their partitions have here.
            among: of each column the partitions, or the table without any, whose rows are asked about.
            accepted: columns whose tables may have other expressions: nothing is said of partitions that have the
                table's at both sides.

        Returns:
            One of each column that both compute.

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


class DestinationDatabase(
    DestinationTables, DestinationSetUp, ApplyRecords, ErrorRecords, InstantiationRecords, Protocol
):
    """A database that changes are applied to: catalog, progress, error queue, instantiation."""

    def close(self) -> None:
        """Close every connection; idempotent."""
        ...
