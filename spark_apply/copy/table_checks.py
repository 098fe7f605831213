"""Which tables a round can copy, and how: checked before its snapshot, and once more under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.errors import DatabaseError, DatabaseUnavailable, DestinationRestarted
from headrace.lcr.table_name import TableName
from spark_apply.copy.pieces.reshaped import has_function
from spark_apply.copy.records.parts import captured_parts, other_bounds
from spark_apply.copy.records.tables import TableProgress, TableRecords
from spark_apply.copy.ways.both_ways import BothWays, Found
from spark_apply.copy.ways.neighbours import applied_twice, awaited, may_be_of_nothing, may_have_rows, not_copied_beside
from spark_apply.copy.ways.obstacles import not_as_called, refused, table_copy, unlike_types
from spark_apply.copy.ways.shared_tables import Move, SharedTables, is_shared

if TYPE_CHECKING:
    from headrace.databases.ports import (
        DestinationDatabase,
        DestinationSession,
        OtherCopy,
        SourceDatabase,
        SourceTable,
    )
    from headrace.databases.ports.copying import TableReader
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.copy.pieces.rounds import CopyRound, TableCopy
    from spark_apply.copy.records.standing import Standing

__all__ = ["TableChecks"]


@dataclass(slots=True, kw_only=True)
class TableChecks:
    """Checks of the tables of a round.

    Args:
        config: of the apply process.
        source: the source database.
        destination: the destination database.
        source_reader: reads the source's tables.
        both_ways: decides about tables that return to their source.
        records: of the tables; receive the reason why one cannot be copied.
        shared: decides about tables that all sites send to each other.
    """

    config: ApplyConfig
    source: SourceDatabase
    destination: DestinationDatabase
    source_reader: TableReader
    both_ways: BothWays
    records: TableRecords
    shared: SharedTables

    def captured_parts(self, pending: Sequence[Standing], snapshot: str = "") -> dict[TableName, str]:
        """Return the identities of pending partitions by name (`parts.captured_parts`); empty: no partition."""
        if not any(each.part is not None for each in pending):
            return {}
        config = self.config
        recorded = self.destination.row_marks(config.topology, config.apply, config.source.site)
        return captured_parts(pending, self.source, recorded, config.topology, snapshot=snapshot)

    def leave_moved_parts(self, this: CopyRound, chosen: Sequence[Standing]) -> None:
        """Skip partitions that left, were renamed, or got other bounds just before the snapshot.

        The next round looks at them again.
        """
        captured = self.captured_parts(chosen, this.snapshot)
        for each in chosen:
            if (
                each.part is not None
                and each.table.destination in this.copies
                and (captured.get(each.table.source) != each.table.identity or self._other_bounds(each))
            ):
                del this.copies[each.table.destination]
                this.has_failed = True

    def _other_bounds(self, each: Standing) -> str:
        """Return why a partition has other bounds here (`parts.other_bounds`); empty: the same, or a table."""
        if each.part is None:
            return ""
        whole = next((table.destination for table in self.config.tables if table.identity == each.part.table), None)
        if whole is None:
            return "its table was dropped"
        return other_bounds(each.part, each.table.destination, whole, self.source, self.destination)

    def without_dropped(
        self,
        pending: Sequence[Standing],
        all_tables: Sequence[Standing],
        facts: Mapping[TableName, SourceTable],
        captured: Mapping[TableName, str],
    ) -> list[Standing]:
        """Return the pending tables that the source still has: nothing waits for a table dropped before its copy.

        Args:
            pending: the tables that are to be copied.
            all_tables: the standing of every table.
            facts: the source's tables.
            captured: the identities of captured tables and partitions.
        """
        identities = set(captured.values())
        wholes = {each.table.source: each for each in all_tables if each.table.part_of is None}
        gone = [each for each in pending if each.table.part_of is not None and each.table.identity not in identities]
        for each in gone:
            self.records.forget_part(each, wholes[each.table.part_of or each.table.source])
        pending = [each for each in pending if each not in gone]
        for each in pending:
            if each.table.part_of is None and each.table.source not in facts and each.table.identity not in identities:
                self.records.gone.add(each.table.identity)
                if each.is_awaiting:  # the queue need not keep changes for it
                    self.records.fail_at_once(each, "the source has no such table any more")
                self.records.show(
                    TableProgress(owner=each.table.destination.owner, name=each.table.destination.name, state="GONE")
                )
        return [each for each in pending if each.table.identity not in self.records.gone]

    def check(
        self,
        this: CopyRound,
        session: DestinationSession,
        each: Standing,
        facts: Mapping[TableName, SourceTable],
        captured: Mapping[TableName, str],
    ) -> None:
        """Check whether a table can be copied, and add it to the round; otherwise record the reason.

        Args:
            this: the round.
            session: of the destination.
            each: the table.
            facts: the source's tables.
            captured: the identities of captured tables and partitions.

        Raises:
            DatabaseUnavailable: a database does not answer.
            DestinationRestarted: the destination may have lost commits.
        """
        try:
            copy, problem = self._copy_of(session, each, facts, captured)
            if not problem and (waits := awaited(each, copy.beside, self.config.topology)):
                this.waits[copy.key] = waits
            elif not problem and is_shared(each):
                problem = self._take_turn(this, session, each, copy)
            elif not problem:
                problem = self._place(this, session, each, copy)
        except (DatabaseUnavailable, DestinationRestarted):
            raise
        except DatabaseError as error:
            problem = error.message
        if problem:
            this.needs_operator = True
            self.records.fail_at_once(each, problem)

    def _copy_of(
        self,
        session: DestinationSession,
        each: Standing,
        facts: Mapping[TableName, SourceTable],
        captured: Mapping[TableName, str],
    ) -> tuple[TableCopy, str]:
        """Return the copy to make, and why it is impossible regardless of the destination's rows; empty: possible."""
        table = each.table
        copy, problem = table_copy(session, each, facts)
        if not problem and has_function(table.transformations):
            copy.log_columns = next((found.columns for found in self.source.table_versions([facts[table.source]])), ())
            problem = "" if copy.log_columns else "the source has no such table any more"
        if captured.get(table.source) != table.identity:
            problem = not_as_called(table, captured, self.config.apply)
        if not problem and each.occupant is not None:
            # Empty or not, the destination's table belongs to another table. And nothing is applied before both have
            # their names, so if redo is full, it would never receive what a copy would hold.
            problem = refused(each)
        problem = problem or self._other_bounds(each)
        copy.beside = self.records.others(table)
        return copy, problem or applied_twice(each, copy.beside, self.config.topology)

    def _place(self, this: CopyRound, session: DestinationSession, each: Standing, copy: TableCopy) -> str:
        """Add a table to the round according to the destination's rows; return why it cannot be copied beside them."""
        table, key = each.table, copy.key
        is_for_all = key in this.for_all
        # Rows of a copy that was begun are not the destination's own: they are never kept.
        may_empty = each.is_begun or (each.is_outdated and table.may_empty)
        if may_empty and not copy.beside_rows:
            copy.scn = each.record.scn if each.record is not None else copy.scn  # the rows there are of that copy
            this.to_empty.add(key)
        elif not is_for_all:
            has_rows = may_have_rows(session, copy)
            problem = self._refused(each, copy.beside_rows) if has_rows else ""
            is_kept = has_rows and not problem
            found = self.both_ways.found(each, has_rows=has_rows) if not is_kept else Found.KEEP
            if found is Found.WAIT:
                this.waits[key] = self.both_ways.waits(table)
                return ""
            if found is Found.KEEP:
                this.kept.append((each, copy.beside))
                return ""
            if found is Found.NOTHING or (has_rows and may_be_of_nothing(self.source_reader, each, copy)):
                this.of_nothing.add(key)
                copy.keeps_rows = has_rows and found is Found.NOTHING
            elif problem:
                return problem
        this.copies[key] = copy
        return ""

    def _take_turn(self, this: CopyRound, session: DestinationSession, each: Standing, copy: TableCopy) -> str:
        """Take the next step of a shared table; return why it cannot be copied."""
        move, why = self.shared.turn(each, copy.beside, has_rows=may_have_rows(session, copy))
        if move is Move.WAIT:
            this.waits[copy.key] = why
            this.is_gathering = True
        elif move is Move.KEEP_CHANGES:
            this.copies[copy.key] = copy
            this.to_await.add(copy.key)
        elif move is Move.NOTHING:
            assert each.record is not None
            # Not DONE, even before anything is applied: an earlier driver may have been beyond this SCN.
            this.has_failed |= not self.records.record(
                each.table,
                each.record.scn,
                "COPIED",
                digest=each.record.digest,
                replaces=copy.replaces,
                beside=copy.beside,
            )
        elif move is Move.ASK:
            return why
        else:
            this.for_all |= {copy.key} if move is Move.COPY else set()
            return self._place(this, session, each, copy)
        return ""

    def refuse_unlike(self, this: CopyRound, chosen: Sequence[Standing]) -> None:
        """Take tables out of a round if their types have other values at the two sites (`unlike_types`)."""
        copied = {
            each.table.destination: each
            for each in chosen
            if each.part is None and each.table.destination in this.copies
        }
        for name, problem in unlike_types(
            self.source, self.destination, [this.copies[name] for name in copied]
        ).items():
            del this.copies[name]
            this.to_empty.discard(name)
            this.needs_operator = True
            self.records.fail_at_once(copied[name], problem)

    def _refused(self, each: Standing, others: Sequence[OtherCopy]) -> str:
        """Return why a table cannot be copied into a destination table that has rows; empty: the rows are kept."""
        emptying = self.destination.how_to_empty(each.table.destination)
        if not others:
            return refused(each, emptying)
        common = self.both_ways.common_source(each.table, others)
        return not_copied_beside(each, others, self.config, emptying, common=common)
