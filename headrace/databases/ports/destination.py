"""Ports of a database that changes are applied to, one per kind of record; `DestinationDatabase` combines them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.databases.ports.conflicts import ConflictRecord
    from headrace.databases.ports.ddl import DdlIn, DdlJob, DdlOutcomeKind, DdlPlace
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
            name: the table.

        Returns:
            The description; None: no such table.
        """
        ...

    def tables_in(self, owner: str) -> frozenset[str] | None:
        """Return the names of the tables in a schema, including partitions; None: no such schema."""
        ...

    def nested_tables(self, tables: Collection[TableName]) -> Mapping[TableName, TableName]:
        """Map those tables that are partitions here of another one of them, at any depth, to that one."""
        ...

    def is_reserved(self, owner: str) -> bool:
        """Whether a schema is the database's or Headrace's own.

        No LCR changes its tables, whoever sends it, and no fix asks an operator to create a table there.
        """
        ...

    def filled(self, tables: Collection[TableName]) -> tuple[TableName, ...]:
        """Return those tables that exist here, are readable and have a row, in the given order."""
        ...

    def how_to_empty(self, table: TableName) -> str:
        """Return the statements with which an operator removes the rows of a table, and of no other one.

        They spare tables that inherit from it or refer to it, and fire no triggers.
        """
        ...


class DestinationSetUp(Protocol):
    """Requirements of a destination before anything is applied, and how they are created and removed."""

    def database_identity(self) -> str:
        """Return the identity in the form of `SourceDatabase.database_identity`."""
        ...

    def preflight(self, topology: str, *, sessions: int, applies: int = 1, copies: int = 0) -> tuple[Finding, ...]:
        """Find what prevents this database from being a destination.

        Args:
            topology: owner of the apply processes: what it already has here is not counted twice.
            sessions: sessions of all its apply servers; each needs an origin.
            applies: apply processes; each has its own session.
            copies: tasks that copy tables while other tables are applied: they need additional sessions and origins.
                Lack of room for them is no error: only such a copy waits.
        """
        ...

    def preflight_tables(
        self,
        versions: Sequence[TableVersion],
        *,
        now: Sequence[TableVersion] = (),
        at_source: Mapping[TableName, TableName] | None = None,
    ) -> tuple[Finding, ...]:
        """Find what prevents these source tables from being applied here: missing tables, columns that do not fit, ...

        Args:
            versions: the tables as their rows arrive.
            now: those of them whose current form at the source is known. Where a column has another type here, they
                show whether the rows are older than the column or the column must be altered: the fix differs.
            at_source: their names at the source, by their names here, for fixes there; None: unknown.
        """
        ...

    def preflight_shapes(
        self,
        shapes: Sequence[TableShape],
        versions: Sequence[TableVersion],
        earlier_labels: Mapping[TableName, Mapping[str, str]],
    ) -> tuple[Finding, ...]:
        """Find what will fail or be slow though the columns of these source tables fit; for tables that exist here.

        Args:
            shapes: the tables at the source, under the names they have here.
            versions: the same tables' columns, in any order.
            earlier_labels: for tables with a mark, the names of their enums' labels when it was recorded, by number:
                the marks report labels renamed at the source since.
        """
        ...

    def preflight_domains(self, shapes: Sequence[TableShape]) -> tuple[Finding, ...]:
        """Find columns that would silently change values of these source tables, though their types have the same names.

        Args:
            shapes: from `SourceDatabase.domain_shapes`, under the names the tables have here.
        """
        ...

    def preflight_times(self, tables: Collection[tuple[str, str]], *, has_tombstones: bool) -> tuple[Finding, ...]:
        """Find what keeps this database from knowing when rows of tables with latest_timestamp were last changed.

        Args:
            tables: their owners and names here.
            has_tombstones: deletes by sessions of this site must be noted as well.
        """
        ...

    def preflight_ddl(self, tables: Collection[TableName], *, release: int) -> tuple[Finding, ...]:
        """Find what prevents DDL of these source tables from being applied here.

        Args:
            tables: their names here; missing tables are skipped.
            release: of the source (`SourceDatabase.release`); 0: unknown.
        """
        ...

    def plan(self, topology: str, applies: Sequence[PlannedApply]) -> tuple[PlannedStatement, ...]:
        """Return what `prepare`, instantiation and these apply processes would do, in order, without doing it.

        Args:
            topology: its name.
            applies: the topology's apply processes at this destination; empty: only what `prepare` would do.
        """
        ...

    def prepare(self, topology: str) -> tuple[str, ...]:
        """Create or upgrade the `headrace` schema, idempotently; returns the statements that were run."""
        ...

    def keep_tombstones(self, tables: Collection[tuple[str, str]]) -> tuple[str, ...]:
        """Make deletes by sessions of this site leave a tombstone, in their own transaction.

        Idempotent; called after `prepare`.

        Args:
            tables: owners and names; missing tables are skipped.

        Returns:
            The statements that were run.

        Raises:
            DatabaseError: a right is missing.
        """
        ...

    def remove(self, topology: str) -> tuple[str, ...]:
        """Fence out and forget a topology's apply processes, with everything created for them (`down --purge`).

        Returns:
            What was done, what had to stay and why, one line each.
        """
        ...


class ApplyRecords(Protocol):
    """Which incarnation may apply as which apply process, and its progress.

    An epoch ends when a newer one is raised, and when the database may have lost commits that it acknowledged: after a
    crash, a failover, a restart or a restore from a backup. From then on `open_session`, `record_low_watermark` and
    `record_instantiation` raise `DestinationRestarted` until `raise_epoch`, which reads the actual progress. So no
    commit acknowledged in an epoch is lost while the epoch lasts, and no later commit hides a loss.
    """

    def raise_epoch(self, topology: str, apply: str) -> ApplyProgress:
        """Fence out older incarnations, and only then read the progress.

        Raises the epoch, ends their sessions and waits until these are gone. A caller overtaken by a newer epoch ends
        none of its sessions and writes nothing. No epoch is given out twice, even when a restore lost the record of it.
        Copied tables whose rows the database has lost since, because no log keeps them, are recorded as to be copied
        again.

        Args:
            topology: name of the topology.
            apply: name of the apply process.

        Raises:
            FencedError: a newer epoch overtook the caller.
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
        """Open one apply server's session. Ends the session of an older incarnation and an older one of the same server.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            server: number of the apply server.
            epoch: as `raise_epoch` returned it.
            tag: marks the session's changes; empty: their tag is NULL.
            incarnation: of the server within the epoch. One lower than the highest ever seen ends no session.
            source: the site whose changes it applies: users' SQL in its transactions counts as that site's. Empty: no
                such SQL runs.
            is_lazy: commits of rows alone do not wait until they are durable; `log_positions` shows when they are. A
                crash of the database server loses the last of them, rows and progress together.

        Raises:
            FencedError: a newer epoch or a newer incarnation exists.
            DestinationRestarted: the epoch has ended (see the class).
            DatabaseUnavailable: temporary; retry.
        """
        ...

    def progress(self, topology: str, apply: str) -> ApplyProgress | None:
        """Read the progress without fencing any session; None: this apply process never ran.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
        """
        ...

    def record_low_watermark(self, topology: str, apply: str, epoch: int, scn: Scn) -> None:
        """Make a low watermark durable that advanced without data.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            epoch: as `raise_epoch` returned it.
            scn: of the apply process's source; everything up to it is applied or in the error queue. The record never
                goes back: a lower SCN changes nothing.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: the epoch has ended (see the class).
        """
        ...

    def log_positions(self, topology: str, apply: str, epoch: int) -> LogPositions:
        """Return how far this database's log is written and flushed, within the server run in which the epoch began.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            epoch: as `raise_epoch` returned it.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: the epoch has ended (see the class): the log may have diverged from what was written.
        """
        ...

    def describe_apply(
        self, topology: str, apply: str, epoch: int, configuration: Mapping[str, Any], state: Mapping[str, Any]
    ) -> None:
        """Store an apply process's description of itself, for people; no decision depends on it.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            epoch: of its driver; a record with a higher one stays.
            configuration: JSON-able (`spark_apply.driver.described`).
            state: likewise.
        """
        ...

    def ddl_outcomes(self, topology: str, apply: str, places: Collection[DdlPlace]) -> dict[DdlPlace, DdlOutcomeKind]:
        """Return what became of DDL changes, as last recorded; those without a record are missing.

        Args:
            topology: its name.
            apply: the apply process.
            places: of the changes in the source's log.
        """
        ...

    def ddl_jobs(self, topology: str, apply: str) -> tuple[DdlJob, ...]:
        """Return the indexes that are being made outside the transactions of the data, by number.

        Args:
            topology: its name.
            apply: the apply process.
        """
        ...

    def run_ddl_job(
        self, topology: str, apply: str, epoch: int, number: int, *, should_end: Callable[[], bool]
    ) -> None:
        """Make one attempt at a job, in a session of its own; its record then has the outcome, or is gone.

        Args:
            topology: its name.
            apply: the apply process.
            epoch: epoch of the driver.
            number: of the job; a missing one is ignored.
            should_end: asked several times a second: whether to break off.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: the epoch has ended with the server's run.
            DatabaseUnavailable: the destination does not answer.
        """
        ...

    def recorded_applies(self, topology: str) -> tuple[str, ...]:
        """Return the apply processes with a recorded table here that is not LEFT, even those no longer in the topology.

        Args:
            topology: its name.
        """
        ...

    def begin_handler_call(self, topology: str, apply: str, scn: Scn, function: str) -> int:
        """Record durably that a process is about to call a user's handler for a transaction.

        Returns how many earlier calls began and did not end.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            scn: of the transaction, at its source.
            function: its name and version.
        """
        ...

    def end_handler_calls(self, topology: str, apply: str, scns: Collection[Scn]) -> None:
        """Forget the calls for transactions that the process survived.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            scns: as given to `begin_handler_call`.
        """
        ...

    def forget(self, topology: str, apply: str) -> tuple[str, ...]:
        """Fence out one apply process and forget its progress, its instantiations and its errors, for a fresh start.

        Args:
            topology: name of the topology.
            apply: name of the apply process; an unknown one is a no-op.

        Returns:
            What was done, one line each.
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
            apply: name of the apply process; None: all of the topology here.
            number: only this error transaction; a queue may have very many.
            first: largest number to return, from the oldest; None: all.

        Returns:
            The error transactions of all sources, by ascending number; empty when no schema was ever prepared here.
        """
        ...

    def error_batches(self, number: int, *, original: bool = False) -> Iterator[bytes]:
        """Yield the serialized LcrBatches of one error transaction, part by part.

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
            Number of the error transaction, and uint64[n]: the hashes given to `DestinationSession.put_error`, of all
            parts together.
        """
        ...

    def error_edits(self, topology: str, number: int | None = None) -> tuple[ErrorEdit, ...]:
        """Return the edits of error transactions, including some that were executed or deleted since, in order.

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
        """Replace one part of an error transaction and record the edit, in one database transaction.

        The part as it failed is kept until the error transaction is executed or deleted; later edits do not change it.

        Args:
            topology: owner of the error queue.
            edit: `number`, and `edit` as the expected next number: another operator's edit in between is not
                overwritten.
            part: which of its parts (`error_batches`), from 0.
            batch: the edited part, serialized.
            key_hashes: hashes that later transactions must be checked against, in addition to the stored ones.

        Returns:
            False, with nothing changed: the error transaction does not exist, or `edit.edit` is not its next edit.
        """
        ...

    def note_failure(self, topology: str, found: ErrorTransaction) -> None:
        """Record why an executed error transaction failed again, in place of its earlier failure.

        Args:
            topology: owner of the error queue.
            found: `number`, and the failure: `failed_position`, `conflict_type`, `sqlstate`, `message`, `readable`. It
                no longer waits for another one. A missing one is ignored.
        """
        ...

    def delete_errors(self, topology: str, numbers: Collection[int], *, ddl_in: DdlIn | None = None) -> frozenset[int]:
        """Delete error transactions (`errors delete`) and their stored originals, all or none.

        Args:
            topology: owner of the error queue.
            numbers: of the error transactions (`ErrorTransaction.number`); one of another topology counts as missing.
            ddl_in: finds DDL LCRs, to record them as skipped; None: there are none.

        Returns:
            The numbers of those that existed.
        """
        ...

    def conflicts(self, topology: str, apply: str | None = None, *, last: int) -> tuple[ConflictRecord, ...]:
        """List the history of conflicts in order.

        Args:
            topology: name of the topology.
            apply: name of the apply process; None: all of the topology here.
            last: largest number to return: the newest ones.

        Returns:
            By ascending number; empty when no schema was ever prepared here, or only an older one.
        """
        ...


class InstantiationRecords(Protocol):
    """Records about the copies of tables and their partitions."""

    def instantiations(self, topology: str, apply: str) -> tuple[Instantiation, ...]:
        """Return the instantiation records of an apply process's tables, by owner and name.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
        """
        ...

    def arrival_seen(self, topology: str, apply: str, identity: str, *, snapshot: str) -> ArrivalSeen | None:
        """Return what a snapshot of this database shows of a table that an apply process writes here.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            identity: of its source's table.
            snapshot: its name (`Snapshot.name`); empty: the current state.

        Returns:
            None: no record of the table exists, or this apply process never ran.

        Raises:
            DatabaseUnavailable: the snapshot is gone.
        """
        ...

    def other_copies(self, topology: str, apply: str, owner: str, name: str) -> tuple[OtherCopy, ...]:
        """Return what other apply processes have recorded of a table of this database, by topology and name.

        A record belongs to the table that has its name now, and to the table it was recorded for, whatever that is
        called now. Records of a partition of this table, or of the table that this one is a partition of, count too:
        rows of one are rows of the other.

        Args:
            topology: of the asking apply process.
            apply: its name; its own records are not returned.
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
        """Record a table's instantiation, replacing earlier records of this identity.

        With `beside` it is a claim: if two apply processes claim a table at once, unaware of each other, one gets it.

        Args:
            topology: of the apply process.
            apply: its name.
            epoch: of the recording driver.
            instantiation: what is known now.
            replaces: identities of tables whose place at the destination it takes; their records are removed in the
                same transaction.
            beside: the earlier answer of `other_copies`; nothing is recorded if that has changed. None: unchecked.
                Whatever takes a table, or removes rows from it, must pass it.
            carries: the changes of other apply processes that a finished copy contains: their AWAITING records become
                COPIED, as kept rows, at these SCNs.

        Returns:
            Whether it is recorded.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: the epoch has ended (see the class).
        """
        ...

    def leave_out(self, topology: str, apply: str, *, kept: Collection[str]) -> tuple[Instantiation, ...]:
        """Record that an apply process no longer receives changes of all but some tables.

        Partitions with their own record (`PartOf`) stay or go with their tables. Copied tables become LEFT. A table
        whose rows were never ours (KEPT, or without an SCN) is forgotten. Called before the first change can be
        missing. A driver still running is fenced out.

        Args:
            topology: of the apply process.
            apply: its name.
            kept: identities of the tables whose changes continue to arrive.

        Returns:
            The tables that left, as recorded before.
        """
        ...

    def join_tables(
        self, topology: str, apply: str, epoch: int, joining: Sequence[Instantiation], *, through: Scn
    ) -> ApplyProgress:
        """Let copied tables take part, in one transaction: the low watermark goes back to the oldest copy among them.

        Tables that joined before become DONE (without a digest: KEPT), these become JOINING. The low watermark becomes
        the oldest instantiation SCN among them, or `through` if that is lower; `ahead_scn` becomes `through`. Ranges
        that the sessions recorded before are forgotten: each session must be opened again before it commits. A repeated
        call with the same arguments changes nothing.

        Args:
            topology: its name.
            apply: the apply process.
            epoch: its current one.
            joining: the tables, as recorded.
            through: the low watermark. The caller guarantees that nothing above it is applied, that it is not below the
                recorded `ahead_scn`, that no session is in a transaction, and that no copy's SCN was acknowledged
                upstream as durable.

        Returns:
            The new progress.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: the epoch has ended (see the class).
        """
        ...

    def row_marks(self, topology: str, apply: str, source: str) -> dict[str, RowMark]:
        """Return the recorded marks of the source's tables (`SourceDatabase.row_marks`), by identity.

        A mark written by another version is skipped.

        Args:
            topology: of the apply process.
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
        """Record the marks of tables whose rows here equal the source's at that moment.

        Marks of tables without a record are dropped.

        Args:
            topology: of the apply process.
            apply: its name.
            epoch: of the recording driver.
            source: name of the site.
            marks: by identity.
            was: the earlier answer of `row_marks`: marks that have changed since are not overwritten. None: all are
                recorded.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: the epoch has ended (see the class).
        """
        ...

    def marked_columns(self, tables: Sequence[TableName]) -> dict[TableName, dict[str, MarkedColumn]]:
        """Return the columns of those tables that exist here, by name; none for tables without column numbers.

        Args:
            tables: names here.
        """
        ...

    def enum_labels(self, table: TableName) -> tuple[EnumLabels, ...]:
        """Return the enumerated types of a table's columns, directly or nested; empty where types have no labels.

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
        """Compare how a table computes columns here with the source (`SourceDatabase.computed_columns`), by name.

        Args:
            table: its name here.
            wanted: the source's, under the names that these and their partitions have here.
            among: for each column, the partitions (or the unpartitioned table) whose rows the caller asks about.
            accepted: columns whose tables may have different expressions: partitions with their table's expression on
                both sides are not reported.

        Returns:
            One for each column that both compute.

        Raises:
            DatabaseUnavailable: the table is locked; retry.
        """
        ...

    def may_hold(self, table: TableName, part: TableName) -> bool:
        """Whether a table here may have rows of a partition that the source's table no longer has.

        Args:
            table: name here.
            part: the partition's name, as the destination would call it.
        """
        ...

    def partition_rows(self, table: TableName, part: TableName) -> str:
        """Return which rows a partition of a table here holds, in the form of `SourceDatabase.partition_rows`.

        Empty: the table has no such partition.

        Args:
            table: name here.
            part: name of the partition.
        """
        ...

    def missing_grant(self, part: TableName) -> str:
        """Return the GRANT statement that lets the role copy rows directly into a partition.

        Empty: no right is missing.

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
        """Detach, drop or empty a partition of a table here, at any depth.

        Args:
            topology: of the apply process that writes the table.
            apply: its name.
            epoch: of the calling driver; no newer one begins before this is done.
            table: name here.
            part: name of the partition.
            how: detach, drop or empty.
            may: called when no session can write the table, with the rows that the partition holds (`partition_rows`):
                whether to proceed.

        Returns:
            Whether it was done; True for a missing partition.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: the epoch has ended (see the class).
            DatabaseUnavailable: other sessions use the table; retry.
            DatabaseError: a right is missing, or other objects depend on it.
        """
        ...


class DestinationDatabase(
    DestinationTables, DestinationSetUp, ApplyRecords, ErrorRecords, InstantiationRecords, Protocol
):
    """A database that changes are applied to: catalog, progress, error queue, instantiation."""

    def close(self) -> None:
        """Close every connection; idempotent."""
        ...
