"""A database whose changes are captured: its tables, what `prepare` makes there, snapshots and markers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.lcr.scn import FIRST_SCN

if TYPE_CHECKING:
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

NEVER_CAPTURED = ("pg_catalog", "information_schema", "pg_toast", "headrace")
"""Schemas of which nothing is captured, whatever a rule says: the system's tables and our own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table the rules select at a source: root tables and plain tables, never partitions.

    Args:
        owner, name: of the table.
        columns: names of the columns whose values are in the log.
        is_partitioned: it has partitions.
        row_estimate, bytes: how large it is, all partitions together.
        computed: those of `columns` that the database computes from the row's other columns.
        unlogged: names of the columns that it computes and whose values are not in the log.
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
    """A table whose changes are in the log, and what it is called now. A name stands for many tables over time.

    Args:
        identity: of the table and of the unbroken time in which its changes have been captured, as the connector writes
            it, with the source database's own. A table keeps it when it is renamed. It is another one when the table
            was dropped and made again, and when its changes were not captured for a while. What is before its last dot
            is of the table alone: two topologies that capture one table write it alike.
        owner, name: what the table is called now; the root of a partitioned one.
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
        """Transactions with `commit_scn <= scn` are in it, later ones are not: the instantiation SCN."""
        ...

    @property
    def name(self) -> str:
        """What other sessions of the same source need to see it."""
        ...

    def is_captured(self) -> bool:
        """Whether the topology's log writer has confirmed everything in it, to the very server that it is of.

        Before that a copy may hold what redo never has: a standby that is promoted now may lack it, and have other
        transactions of the same SCNs, which would be dropped as copied. Redo that has it is refused there.

        Raises:
            DatabaseUnavailable: the server is gone, and the snapshot with it.
        """
        ...

    def close(self) -> None:
        """Let go of it; idempotent."""
        ...


class SourceDatabase(Protocol):
    """A database whose changes are captured. One instance per process; not shared between threads."""

    def database_identity(self) -> str:
        """What tells this database from every other, whatever name it is reached by: equal only for one and the same."""
        ...

    def tables(self, rules: Sequence[object]) -> tuple[SourceTable, ...]:
        """Every table at least one of the rule sets (`headrace.rules.rule.RuleSet`) selects, by owner and name."""
        ...

    def table_versions(self, tables: Sequence[SourceTable]) -> tuple[TableVersion, ...]:
        """These tables as the log will describe them: for comparing them with a destination's beforehand."""
        ...

    def table_shapes(self, tables: Sequence[TableName]) -> tuple[TableShape, ...]:
        """Partitions, enum labels and keys of those of the tables that exist.

        For comparing them with a destination's beforehand.
        """
        ...

    def domain_shapes(self, tables: Sequence[TableName]) -> tuple[TableShape, ...]:
        """Of those tables that exist and have such columns.

        What the log does not say of their types, and what is computed; nothing else of their shapes.
        """
        ...

    def supplemental_logging(self, rules: Sequence[object], needs: Sequence[LogNeed]) -> tuple[LoggedTable, ...]:
        """What the log must have of the captured tables' rows beyond their keys, and whether it has it.

        Args:
            rules: as for `preflight`.
            needs: of everything that looks at values.
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
        """What keeps this database from being a source.

        Args:
            rules: rule sets (`headrace.rules.rule.RuleSet`) of the topology's capture processes whose source this is.
            streams: log streams and snapshots open at once: one for the log writer, one per apply process of this
                source.
            needs: of everything that looks at values: what the log lacks is told, and what cannot be evaluated as the
                database would.
            may_be_copied: whether nothing else writes a table at its destinations, so that a fix may be to copy it
                again; `bool`: none is written by others.
            topology: its name; who owns what is named after it is looked at. Empty: that is not.
        """
        ...

    def plan(self, topology: str, rules: Sequence[object]) -> tuple[PlannedStatement, ...]:
        """What `prepare` would do now, in order, without doing it; what is there already is marked as done.

        Args:
            topology: its name; what is prepared is named after it.
            rules: as for `preflight`; they select the tables whose changes are to be in the log.
        """
        ...

    def prepare(self, topology: str, rules: Sequence[object]) -> tuple[str, ...]:
        """Create or adjust what the source needs (publication, then slot), idempotently.

        Args:
            topology: its name; what is prepared is named after it.
            rules: as for `preflight`. A table that no rule set selects any more is taken out of the log.

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
        """Open the log stream from `start` (FIRST_SCN: where the source last knew us durable).

        Args:
            topology: whose stream.
            start: see above.
            timeline: of the redo log that ends at `start` (`StreamOptions.timeline`); 0: there is none.
            allow_binary: False: in text form, whatever the tables' types are.
            last_transaction: number of the last transaction in that redo log (`LogChunk.transaction`); 0: not known.
            last_commit_scn: its commit SCN; FIRST_SCN: not known.

        Raises:
            DatabaseSetBack: the database was set back to a state from before the end of that redo log.
            LogGone: the source no longer has `start`, or the slot is new or ahead of it, or the log left the timeline
                before `start`.
        """
        ...

    def check_stream(
        self, options: StreamOptions, described: Sequence[TableVersion], *, describers: Collection[int]
    ) -> None:
        """Tell whether tables can travel as an open stream's options say.

        Never waits for a user, as `dictionary_build`.

        Args:
            options: of the open stream.
            described: the tables, as that stream describes them.
            describers: numbers of the transactions in which it does.

        Raises:
            UnsupportedType: one cannot; drop what was read and open another stream, which takes another form.
        """
        ...

    def check_prepared(self, topology: str, start: Scn) -> str:
        """Tell whether what `prepare` created is still there; asked every second while the log is read.

        Args:
            topology: whose.
            start: how far redo is durable.

        Returns:
            What says which changes are in the log, with its identity: another text when it was made again.

        Raises:
            CapturedNoMore: it is not, or leaves changes out, and they are missing in the log stream since then.
            LogGone: the log itself is not kept any more.
        """
        ...

    def retained_bytes(self, topology: str) -> int | None:
        """Bytes of log that the database keeps for this topology.

        None: nothing is prepared that would make it keep any.
        """
        ...

    def holding_up(self) -> tuple[str, ...]:
        """Who holds up a call of ours at this database now (transactions that are open), a sentence each.

        Empty: nobody.

        Called on a connection of its own, while `prepare` or `open_snapshot` waits on another one.
        """
        ...

    def uncaptured(self, topology: str, rules: Sequence[object]) -> tuple[str, ...]:
        """Tables the rules select that were created after `prepare`.

        Nothing of them is in the log until it is repeated.

        Args:
            topology: its name, as `prepare` had it.
            rules: as for `preflight`; the rule sets now.

        Returns:
            One text per table: `owner.name`, the root of a partitioned table.
        """
        ...

    def refused_changes(
        self, topology: str, rules: Sequence[object], needs: Sequence[LogNeed], *, is_written: bool
    ) -> tuple[Finding, ...]:
        """Captured tables, and partitions of them, of which the database refuses the user's own changes.

        They have lost what identifies a changed row in the log.

        Args:
            topology: its name, as `prepare` had it.
            rules: as for `preflight`; the rule sets now.
            needs: as for `preflight`, and what conflict handlers and dependencies need.
            is_written: others write these tables, too.
        """
        ...

    def captured(self, topology: str) -> tuple[CapturedTable, ...]:
        """Every table whose changes are in the log, by owner and name.

        Whoever copies a table asks before the snapshot is taken: the copy is of this table, with every change after the
        snapshot in the log, as long as the identity is the same afterwards.
        """
        ...

    def row_marks(self, topology: str, *, snapshot: str = "") -> dict[str, RowMark]:
        """Read what of every captured table's definition changes when its rows change without events, by identity.

        Args:
            topology: whose.
            snapshot: name of an exported snapshot: what it sees; empty: what is committed now.

        Returns:
            Nothing of tables of which no row ever changes so.
        """
        ...

    def computed_columns(self, identity: str) -> dict[str, ComputedColumn]:
        """The columns that are computed in a captured table, by name.

        Args:
            identity: of the table.

        Raises:
            DatabaseUnavailable: it is locked; ask again.
        """
        ...

    def was_written_anew(self, part: str, stamp: str = "") -> bool:
        """Whether rows of a part were written by what made its file, without an event in the log.

        Asked of a part whose file is another one (`MarkedPart.file`), and of which no more is known.

        Args:
            part: its number in `RowMark.parts`.
            stamp: of a column (`MarkedColumn.stamp`): what gave it to the column may be what wrote the rows.

        Raises:
            DatabaseUnavailable: it is locked; ask again.
        """
        ...

    def began_empty(self, part: str) -> bool:
        """Whether the log has every row that a part of a captured table ever had, as far as the table's changes are in the log.

        It has not where the part was written anew since it was created.

        Args:
            part: its number in `RowMark.parts`.

        Raises:
            DatabaseUnavailable: it is locked; ask again.
        """
        ...

    def partition_rows(self, part: str) -> str:
        """Which rows of its table a partition holds; empty: it is none (any more).

        A condition that means the same in another database of this kind.

        Args:
            part: its number in `RowMark.parts`.
        """
        ...

    def is_default_part(self, part: str) -> bool:
        """Whether a partition, or one that it is below, takes the rows that no other one takes.

        Args:
            part: its number in `RowMark.parts`.
        """
        ...

    def has_part(self, part: str) -> bool:
        """Whether a table of this number is there, whatever it is a partition of.

        Args:
            part: its number in `RowMark.parts`.
        """
        ...

    def holds(self, table: TableName, rows: str) -> bool:
        """Whether a table has such rows now.

        Args:
            table: its name.
            rows: a condition, see `partition_rows`.

        Raises:
            DatabaseError: the condition cannot be evaluated here, or it takes too long.
        """
        ...

    def dictionary_build(self, topology: str, *, seeing: Collection[int] = ()) -> DictionaryBuild | None:
        """Read the published tables from the catalog.

        Never waits for a user: a transaction that waits for this very log writer may hold any of the tables.

        Args:
            topology: whose.
            seeing: numbers of transactions in the log (`LogChunk.describers`) that the answer must reflect.

        Returns:
            What the catalog says; None: one of `seeing` is committed and not visible yet. Ask again.
        """
        ...

    def write_marker(self, content: bytes) -> Scn:
        """Write a marker into the log now. Everything committed before this call has a commit SCN <= the answer."""
        ...

    def current_scn(self) -> Scn:
        """The end of the log now."""
        ...

    def open_snapshot(self, topology: str) -> Snapshot:
        """Export a snapshot for instantiation (a temporary slot's)."""
        ...

    def remove(self, topology: str) -> tuple[str, ...]:
        """Drop what `prepare` created (`down --purge`); returns the statements."""
        ...

    def close(self) -> None:
        """Close every connection; idempotent."""
        ...
