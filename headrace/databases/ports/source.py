"""Port of a database whose changes are captured: tables, preparation, log stream, snapshots and markers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.lcr.scn import FIRST_SCN

if TYPE_CHECKING:
    from headrace.databases.ports.ddl import MissedDdl
    from headrace.databases.ports.log import DictionaryBuild, LogStream, StreamOptions
    from headrace.databases.ports.planning import (
        ComputedColumn,
        Finding,
        LoggedTable,
        LogNeed,
        PlannedStatement,
        TableShape,
    )
    from headrace.databases.ports.row_marks import RowMark
    from headrace.lcr.batch import TableVersion
    from headrace.lcr.scn import ObjectNumber, Scn
    from headrace.lcr.table_name import TableName

__all__ = ["NEVER_CAPTURED", "CapturedTable", "Snapshot", "SourceDatabase", "SourceTable"]

NEVER_CAPTURED = ("pg_catalog", "information_schema", "pg_toast", "headrace", "headrace_ddl")
"""Schemas that are never captured, whatever a rule says: the system's and Headrace's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table the rules select at a source: root tables and plain tables, never partitions.

    Args:
        owner, name: of the table.
        columns: names of the columns whose values are in the log.
        is_partitioned: it has partitions.
        row_estimate, bytes: size, all partitions together.
        computed: those of `columns` that the database computes from the row's other columns.
        unlogged: names of the computed columns whose values are not in the log.
    """

    owner: str
    name: str
    columns: tuple[str, ...]
    is_partitioned: bool
    row_estimate: int
    bytes: int
    computed: tuple[str, ...] = ()
    unlogged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedTable:
    """A table whose changes are in the log, and its current name. A name stands for many tables over time.

    Args:
        identity: of the table and of one unbroken time of capture, in the connector's form; it contains the source
            database's identity. It survives a rename. It changes when the table is dropped and created again, and when
            capture was interrupted. The part before its last dot identifies the table alone: two topologies that
            capture one table have the same.
        owner, name: the table's current name; for a partitioned table, the root's.
        object_numbers: its own number and those of its partitions, as table descriptions in the log have them.
    """

    identity: str
    owner: str
    name: str
    object_numbers: tuple[ObjectNumber, ...]


class Snapshot(Protocol):
    """A consistent view of the source that other sessions can share while it is held open."""

    @property
    def scn(self) -> Scn:
        """The instantiation SCN: the snapshot has exactly the transactions with `commit_scn <= scn`."""
        ...

    @property
    def name(self) -> str:
        """The name by which other sessions of the same source use it."""
        ...

    def is_captured(self) -> bool:
        """Whether the topology's log writer has confirmed everything in it, to the very server that exported it.

        Before that a copy may hold changes that redo never gets: if a standby is promoted now, it may lack them. It may
        also have other transactions with the same SCNs, which would be dropped as copied. Redo that has the snapshot's
        changes is refused there.

        Raises:
            DatabaseUnavailable: the server is gone, and the snapshot with it.
        """
        ...

    def close(self) -> None:
        """Release the snapshot; idempotent."""
        ...


class SourceDatabase(Protocol):
    """A database whose changes are captured. One instance per process; not shared between threads."""

    def database_identity(self) -> str:
        """Return what distinguishes this database from every other one, whatever name it is reached by."""
        ...

    def release(self) -> int:
        """Return the major version: two databases of one kind and release write the same definition alike."""
        ...

    def tables(self, rules: Sequence[object]) -> tuple[SourceTable, ...]:
        """Return every table that one of the rule sets (`headrace.rules.rule.RuleSet`) selects, by owner and name."""
        ...

    def table_versions(self, tables: Sequence[SourceTable]) -> tuple[TableVersion, ...]:
        """Describe these tables as the log will, to compare them with a destination's in advance."""
        ...

    def table_shapes(self, tables: Sequence[TableName]) -> tuple[TableShape, ...]:
        """Return partitions, enum labels and keys of those tables that exist, to compare them with a destination's."""
        ...

    def domain_shapes(self, tables: Sequence[TableName]) -> tuple[TableShape, ...]:
        """Return what the log does not say of column types, and the computed columns; no other part of the shapes.

        Only for tables that exist and have such columns.
        """
        ...

    def supplemental_logging(self, rules: Sequence[object], needs: Sequence[LogNeed]) -> tuple[LoggedTable, ...]:
        """Return what the log must have of captured tables' rows beyond their keys, and whether it has it.

        Args:
            rules: as for `preflight`.
            needs: of every component that reads values.
        """
        ...

    def preflight(
        self,
        rules: Sequence[object],
        *,
        streams: int,
        needs: Sequence[LogNeed] = (),
        may_be_copied: Callable[[TableName], bool] = bool,
        topology: str = "",
    ) -> tuple[Finding, ...]:
        """Find what prevents this database from being a source.

        Args:
            rules: rule sets (`headrace.rules.rule.RuleSet`) of the topology's capture processes with this source.
            streams: log streams and snapshots open at once: one for the log writer, one per apply process of this
                source.
            needs: of every component that reads values. Findings report what the log lacks, and conditions that cannot
                be evaluated as the database would.
            may_be_copied: whether nothing else writes a table at its destinations, so that a fix may be to copy it
                again; `bool`: no table is written by others.
            topology: its name, to check who owns the objects named after it. Empty: not checked.
        """
        ...

    def plan(self, topology: str, rules: Sequence[object]) -> tuple[PlannedStatement, ...]:
        """Return what `prepare` would do now, in order, without doing it; existing objects are marked as done.

        Args:
            topology: its name; prepared objects are named after it.
            rules: as for `preflight`; they select the tables whose changes belong in the log.
        """
        ...

    def prepare(self, topology: str, rules: Sequence[object]) -> tuple[str, ...]:
        """Create or adjust what the source needs (publication, then slot), idempotently.

        Args:
            topology: its name; prepared objects are named after it.
            rules: as for `preflight`. A table that no rule set selects any longer is taken out of the log.

        Returns:
            The statements that were run, for the plan and the log.
        """
        ...

    def open_stream(
        self,
        topology: str,
        start: Scn,
        *,
        timeline: int = 0,
        allow_binary: bool = True,
        last_transaction: int = 0,
        last_commit_scn: Scn = FIRST_SCN,
    ) -> LogStream:
        """Open the log stream from `start` (FIRST_SCN: the last position confirmed to the source).

        Args:
            topology: owner of the stream.
            start: the SCN after which the stream begins.
            timeline: of the redo log that ends at `start` (`StreamOptions.timeline`); 0: no redo log exists.
            allow_binary: False: in text form, whatever the tables' types are.
            last_transaction: number of the last transaction in that redo log (`LogChunk.transaction`); 0: unknown.
            last_commit_scn: its commit SCN; FIRST_SCN: unknown.

        Raises:
            DatabaseSetBack: the database was restored to a state from before the end of that redo log.
            LogGone: the source no longer has `start`, or the slot is new or ahead of it, or the log left the timeline
                before `start`.
        """
        ...

    def check_stream(
        self, options: StreamOptions, described: Sequence[TableVersion], *, describers: Collection[int]
    ) -> None:
        """Check that tables can travel as an open stream's options say.

        Never waits for a user's locks, like `dictionary_build`.

        Args:
            options: of the open stream.
            described: the tables, as that stream describes them.
            describers: numbers of the transactions that contain the descriptions.

        Raises:
            UnsupportedType: a table cannot; drop what was read and open another stream, which uses another form.
        """
        ...

    def check_prepared(self, topology: str, start: Scn) -> str:
        """Check that what `prepare` created still exists; called every second while the log is read.

        Args:
            topology: its name.
            start: SCN up to which redo is durable.

        Returns:
            The name and identity of the object that says which changes are in the log: changes when it is recreated.

        Raises:
            CapturedNoMore: the object is missing or omits changes, which are absent from the log stream since then.
            LogGone: the log itself is no longer kept.
        """
        ...

    def retained_bytes(self, topology: str) -> int | None:
        """Return how many bytes of log the database keeps for this topology; None: nothing prepared keeps any."""
        ...

    def holding_up(self) -> tuple[str, ...]:
        """Return who blocks one of our calls at this database now (open transactions), one sentence each.

        Called on a separate connection while `prepare` or `open_snapshot` waits on another one. Empty: nobody.
        """
        ...

    def uncaptured(self, topology: str, rules: Sequence[object]) -> tuple[str, ...]:
        """Return the selected tables that were created after `prepare`.

        Their changes are not in the log until `prepare` runs again.

        Args:
            topology: its name, as given to `prepare`.
            rules: as for `preflight`; the current rule sets.

        Returns:
            One text per table: `owner.name`, the root of a partitioned table.
        """
        ...

    def refused_changes(
        self, topology: str, rules: Sequence[object], needs: Sequence[LogNeed], *, is_written: bool
    ) -> tuple[Finding, ...]:
        """Find captured tables, and partitions of them, where the database refuses users' own changes.

        They have lost what identifies a changed row in the log.

        Args:
            topology: its name, as given to `prepare`.
            rules: as for `preflight`; the current rule sets.
            needs: as for `preflight`, plus those of conflict handlers and dependencies.
            is_written: others write these tables, too.
        """
        ...

    def captured(self, topology: str) -> tuple[CapturedTable, ...]:
        """Return every table whose changes are in the log, by owner and name.

        A copy asks before it takes its snapshot. While the identity stays the same afterwards, the copy is of this
        table and the log has every change after the snapshot.
        """
        ...

    def captures_ddl(self, topology: str) -> bool:
        """Whether DDL is in the log of this topology.

        Args:
            topology: its name.
        """
        ...

    def ddl_due(self, topology: str, rules: Sequence[object]) -> tuple[str, ...]:
        """Return the statements with which `prepare` would begin or repair the recording of DDL; empty: none is missed.

        Args:
            topology: its name.
            rules: as for `preflight`; the current rule sets.
        """
        ...

    def missed_ddl(self, topology: str) -> MissedDdl | None:
        """Return the statements that could not be recorded, until `prepare` has recorded what they changed.

        Args:
            topology: its name.

        Returns:
            None: it takes no DDL, or the role may not know.
        """
        ...

    def trim_ddl_log(self) -> bool:
        """Remove old records of DDL that nobody reads any more, at most a batch of them.

        Returns:
            Whether more may be left. False also where the role may not: an administrator does it.
        """
        ...

    def row_marks(self, topology: str, *, snapshot: str = "") -> dict[str, RowMark]:
        """Read the mark of every captured table (`headrace.databases.ports.row_marks`), by identity.

        Args:
            topology: its name.
            snapshot: name of the exported snapshot to read in; empty: the committed state now.

        Returns:
            Marks only of tables whose rows can change without events in the log.
        """
        ...

    def computed_columns(self, identity: str) -> dict[str, ComputedColumn]:
        """The columns that are computed in a captured table, by name.

        Args:
            identity: of the table.

        Raises:
            DatabaseUnavailable: the table is locked; retry.
        """
        ...

    def was_written_anew(self, part: str, stamp: str = "") -> bool:
        """Whether the command that created a part's file also wrote rows, without an event in the log.

        Asked when a part's file has changed (`MarkedPart.file`) and the cause is unknown.

        Args:
            part: its number in `RowMark.parts`.
            stamp: of a column (`MarkedColumn.stamp`): the command that set it may be the one that wrote the rows.

        Raises:
            DatabaseUnavailable: the part is locked; retry.
        """
        ...

    def began_empty(self, part: str) -> bool:
        """Whether the log has every row that a part of a captured table ever had.

        That is: as far as the table's changes are in the log. False where the part was rewritten since it was created.

        Args:
            part: its number in `RowMark.parts`.

        Raises:
            DatabaseUnavailable: the part is locked; retry.
        """
        ...

    def partition_rows(self, part: str) -> str:
        """Return which rows of its table a partition holds; empty: it is not, or no longer, a partition.

        The result is a condition that means the same in another database of this kind.

        Args:
            part: its number in `RowMark.parts`.
        """
        ...

    def is_default_part(self, part: str) -> bool:
        """Whether a partition, or one above it, is the default partition.

        Args:
            part: its number in `RowMark.parts`.
        """
        ...

    def has_part(self, part: str) -> bool:
        """Whether a table with this number exists, whatever it is a partition of.

        Args:
            part: its number in `RowMark.parts`.
        """
        ...

    def holds(self, table: TableName, rows: str) -> bool:
        """Whether a table has rows that meet a condition now.

        Args:
            table: its name.
            rows: the condition, in the form of `partition_rows`.

        Raises:
            DatabaseError: the condition cannot be evaluated here, or it takes too long.
        """
        ...

    def dictionary_build(self, topology: str, *, seeing: Collection[int] = ()) -> DictionaryBuild | None:
        """Read the published tables from the catalog.

        Never waits for a user's locks: any table may be locked by a transaction that waits for this very log writer.

        Args:
            topology: its name.
            seeing: numbers of transactions in the log (`LogChunk.describers`) that the answer must reflect.

        Returns:
            The catalog's content; None: one of `seeing` is committed and not visible yet; retry.
        """
        ...

    def write_marker(self, content: bytes) -> Scn:
        """Write a marker into the log now. Everything committed before this call has a commit SCN <= the returned one."""
        ...

    def current_scn(self) -> Scn:
        """Return the current end of the log."""
        ...

    def open_snapshot(self, topology: str) -> Snapshot:
        """Export a snapshot for instantiation (from a temporary slot)."""
        ...

    def remove(self, topology: str) -> tuple[str, ...]:
        """Drop what `prepare` created (`down --purge`); returns the statements."""
        ...

    def close(self) -> None:
        """Close every connection; idempotent."""
        ...
