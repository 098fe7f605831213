"""The marks of an apply process's tables: when they are looked at, recorded and shown, and what is done about partitions that came or left.

What the marks say is in `spark_apply.copy.row_marks`, which has the job and the flow. Nothing here is durable but the marks: another driver looks again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from databases.ports import MarkedPart, RowMark
from spark_apply.arriving import restart_hint
from spark_apply.copy.detached import DetachedPartitions
from spark_apply.copy.marked_columns import paired
from spark_apply.copy.parts import changes_other_parts, copies_parts, here
from spark_apply.copy.row_marks import (
    ChangedRows,
    ChangedTable,
    MarkedTable,
    columns_here,
    compare_marks,
    follows,
    marked_table,
)
from streams.errors import DatabaseError, DestinationRestarted, FencedError
from streams.table_name import TableName

if TYPE_CHECKING:
    from databases.ports import SourceDatabase
    from spark_apply.copy.records import TableRecords
    from spark_apply.copy.standing import Standing
    from streams.scn import Scn

__all__ = ["TableMarks"]

_LOOK_AGAIN_S = 1.0  # what is to be applied first is, mostly, within a second
_LOOK_S = 30.0  # between two looks that nobody asked for: the source's catalog is read for all tables


def _exchanged(tables: Sequence[MarkedTable], names: Mapping[str, TableName], apply: str) -> dict[str, ChangedTable]:
    """Tables that have another one's name at the source since the driver started: the first change of one of them would stop the apply process."""
    holders = {table.source: table.identity for table in tables}
    return {
        table.identity: ChangedTable(
            problem=f"the source calls {table.source} now {name}, which is another table's name: when one of them changes, apply waits, for their changes would be mixed up",
            fix=restart_hint(apply),
        )
        for table in tables
        if (name := names.get(table.identity, table.source)) != table.source and holders.get(name, table.identity) != table.identity
    }


@dataclass(slots=True, kw_only=True)
class TableMarks:
    """The marks of an apply process's tables. One thread at a time.

    Args:
        records: of its tables; what was found is shown there.
        source: the source database.
    """

    records: TableRecords
    source: SourceDatabase
    detached: DetachedPartitions = field(init=False)
    _look_at: float = 0.0
    _is_early: bool = False  # a partition waits until what was before it came, or left, is applied
    _new: dict[str, set[str]] = field(default_factory=dict)  # numbers of partitions that were not there before, by table
    _held: set[str] = field(default_factory=set)  # tables whose attached partitions wait for the error queue
    _came: dict[tuple[str, str, str], Scn] = field(default_factory=dict)  # by table, number and joining: attached partitions were there at that position

    def __post_init__(self) -> None:
        self.detached = DetachedPartitions(topology=self.records.config.topology, source=self.source, destination=self.records.destination)

    def note(self, found: Sequence[Standing], snapshot: str) -> None:
        """Record the marks of tables that are copied, or kept, under a snapshot.

        Args:
            found: the tables.
            snapshot: its name.

        Raises:
            DatabaseUnavailable: one of the databases does not answer.
        """
        config, destination = self.records.config, self.records.destination
        marks = self.source.row_marks(config.topology, snapshot=snapshot)
        recorded = destination.row_marks(config.topology, config.apply, config.source.site)
        tables = {each.table.identity: marked_table(each.table) for each in found if each.table.identity in marks}
        here = columns_here(destination, list(tables.values()))
        self._record({
            identity: paired(marks[identity], here.get(table.destination, {}), recorded.get(identity)) for identity, table in tables.items()
        })
        self._look_at = 0.0

    def look(self, found: Sequence[Standing], *, is_asked: bool = False) -> bool:
        """Look for tables whose rows changed without events, from time to time or when asked, and show them. What is shown stays while a database does not answer.

        Args:
            found: where every table stands.
            is_asked: look now.

        Returns:
            Whether there are partitions that are to be copied now.
        """
        if time.monotonic() < self._look_at and not is_asked:
            return False
        config, destination = self.records.config, self.records.destination
        try:
            now = self.source.row_marks(config.topology)
            names = {each.identity: TableName.of(each) for each in self.source.captured(config.topology)}
            recorded = destination.row_marks(config.topology, config.apply, config.source.site)
            is_renamed = self._follow_names(found, now)
            tables = [self._marked(each, recorded, now) for each in found if each.is_finished and each.table.part_of is None]
            self._is_early = False
            changed = compare_marks(self.source, destination, tables, recorded, now, partial(self._is_ready, is_asked))
            # Recorded before the mark that has them: a driver that dies between finds them again.
            for each in found:
                if each.table.identity in changed.attached:
                    self.records.begin_parts(each, changed.attached[each.table.identity])
            self._record(changed.settled, was=recorded)
            problems, is_done = self._settle_left(tables, changed, now, is_asked=is_asked)
            if is_done:
                return self.look(found, is_asked=True) or is_renamed or bool(changed.attached)  # what is gone is no finding any more
        except (FencedError, DestinationRestarted):
            raise
        except DatabaseError:
            return False  # whoever needs it says so; it is asked at the next look again
        self._look_at = time.monotonic() + (_LOOK_AGAIN_S if self._is_early else _LOOK_S)
        self.records.note_changed(found, {identity: str(each) for identity, each in (problems | _exchanged(tables, names, config.apply)).items()})
        return is_renamed or bool(changed.attached)

    def _follow_names(self, found: Sequence[Standing], now: Mapping[str, RowMark]) -> bool:
        """Record partitions that were renamed under their names of now, before another one gets the name; returns whether there are any."""
        names = {each.table.identity: each.table for each in found if each.part is None}
        is_renamed = False
        for each in found:
            part = None if each.part is None or each.part.table not in now else now[each.part.table].parts.get(str(each.part.number))
            if each.part is None or part is None:
                continue
            whole = names[each.part.table]
            if (name := here(part, whole.source, whole.destination)) != each.table.destination:
                self.records.rename_part(each, name)
                is_renamed = True
        return is_renamed

    def _is_ready(self, is_asked: bool, table: MarkedTable, number: str, part: MarkedPart) -> bool:  # noqa: FBT001
        """Whether everything is applied that was before a partition was attached: the log may have its rows as those of another one, which left or gave them up."""
        key = table.identity, number, part.joined
        if key not in self._came:
            self._came[key] = self.source.current_scn()
        if not self.detached.is_applied(self._came[key], waits=is_asked):
            self._is_early = True
            return False
        if self._is_held(table):
            self._is_early = True  # the next look says so
            return False
        del self._came[key]
        return True

    def _is_held(self, table: MarkedTable) -> bool:
        """Whether the error queue has changes of other partitions from before these were attached: of rows that these took over, they would change the copies.

        Asked when all that was before is applied, or in the error queue; then until there are none.
        """
        config, new = self.records.config, self._new[table.identity]
        errors = self.records.destination.errors(config.topology, config.apply)
        is_held = any(changes_other_parts(self.records.destination, each.number, table.destination, new) for each in errors)
        (self._held.add if is_held else self._held.discard)(table.identity)
        return is_held

    def _marked(self, each: Standing, recorded: Mapping[str, RowMark], now: Mapping[str, RowMark]) -> MarkedTable:
        table = each.table
        was, present = (marks.get(table.identity, RowMark()).parts for marks in (recorded, now))
        self._new[table.identity] = {number for number, part in present.items() if number not in was or was[number].joined != part.joined}
        marked = marked_table(table)
        has_new = bool(self._new[table.identity]) and not (table.identity in self._held and self._is_held(marked))
        return replace(
            marked,
            # Another topology's apply process may have rows there. That is asked of few tables.
            copies_parts=has_new and copies_parts(table) and not self.records.others(table),
            detached=self.records.config.destination.tables.detached_partitions,
        )

    def _settle_left(self, tables: Sequence[MarkedTable], changed: ChangedRows, now: Mapping[str, RowMark], *, is_asked: bool) -> tuple[dict[str, ChangedTable], bool]:
        """Do what is wanted about partitions that the source has no longer; what is to be shown then, and whether anything was done."""
        problems, is_done = dict(changed.problems), False
        self.detached.keep(changed.left)
        for table in tables:
            if not (left := changed.left.get(table.identity)):
                continue
            outcome = self.detached.settle(table, left, now[table.identity], waits=is_asked)
            is_done |= outcome.is_done
            self._is_early |= outcome.is_early
            if outcome.problem and follows(table) and table.identity not in problems:
                problems[table.identity] = ChangedTable(
                    problem=f"partitions that the source has no longer (dropped or detached) are not detached here: {outcome.problem}",
                    fix="correct what it names, and it is done then; or detach or drop them yourself",
                )
        return problems, is_done

    def _record(self, marks: Mapping[str, RowMark], *, was: Mapping[str, RowMark] | None = None) -> None:
        config = self.records.config
        if marks:
            self.records.destination.record_row_marks(config.topology, config.apply, self.records.epoch, config.source.site, marks, was=was)
