"""The marks of an apply process's tables: when to read, record and show them, and what to do about partitions.

`spark_apply.copy.marks.row_marks` interprets the marks; it describes the job and the flow. Only the marks are durable:
the next driver looks again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from headrace.base.errors import DatabaseError, DestinationRestarted, FencedError
from headrace.databases.ports import MarkedPart, RowMark
from headrace.lcr.table_name import TableName
from spark_apply.copy.marks.detached import DetachedPartitions
from spark_apply.copy.marks.marked_columns import paired
from spark_apply.copy.marks.older_errors import OlderErrors
from spark_apply.copy.marks.row_marks import (
    ChangedRows,
    ChangedTable,
    MarkedTable,
    Readiness,
    columns_here,
    compare_marks,
    follows,
    marked_table,
)
from spark_apply.copy.records.parts import copies_parts, here
from spark_apply.tables.arriving import restart_hint

if TYPE_CHECKING:
    from headrace.databases.ports import SourceDatabase
    from headrace.lcr.scn import Scn
    from spark_apply.copy.records.standing import Standing
    from spark_apply.copy.records.tables import TableRecords

__all__ = ["TableMarks"]

_LOOK_AGAIN_S = 1.0  # changes that must be applied first usually are within a second
_LOOK_S = 30.0  # between two unrequested looks: each reads the source's catalog for all tables


# Apply is a progress record or two behind the source's position, 0.2 s. A caller that requests a look waits for it, up
# to five seconds (`driver.control`).
_APPLIED_WAIT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """State of partitions in one look.

    Args:
        found: the standing of every table.
        recorded, now: marks, by identity.
        deadline: until then, by the monotonic clock, the look waits for changes that must be applied first.
    """

    found: Sequence[Standing]
    recorded: Mapping[str, RowMark]
    now: Mapping[str, RowMark]
    deadline: float

    def new(self, table: str) -> frozenset[str]:
        """Return numbers of partitions that a table did not have, or that left and came back."""
        was, now = (marks.get(table, RowMark()).parts for marks in (self.recorded, self.now))
        return frozenset(
            number for number, part in now.items() if number not in was or was[number].joined != part.joined
        )

    def copied_alone(self, table: str) -> frozenset[str]:
        """Return numbers of partitions that were copied alone before."""
        return frozenset(
            str(each.part.number)
            for each in self.found
            if each.part is not None and each.part.table == table and each.is_finished
        )


def _exchanged(tables: Sequence[MarkedTable], names: Mapping[str, TableName], apply: str) -> dict[str, ChangedTable]:
    """Return tables that have taken another table's name at the source since the driver started.

    The first change of such a table would stop the apply process.
    """
    holders = {table.source: table.identity for table in tables}
    return {
        table.identity: ChangedTable(
            problem=f"the source calls {table.source} now {name}, which is another table's name: when one of the two"
            " changes, apply waits, because their changes would be mixed up",
            fix=restart_hint(apply),
        )
        for table in tables
        if (name := names.get(table.identity, table.source)) != table.source
        and holders.get(name, table.identity) != table.identity
    }


@dataclass(slots=True, kw_only=True)
class TableMarks:
    """The marks of an apply process's tables. One thread at a time.

    Args:
        records: of its tables; they show the findings.
        source: the source database.
    """

    records: TableRecords
    source: SourceDatabase
    detached: DetachedPartitions = field(init=False)
    older_errors: OlderErrors = field(init=False)
    _look_at: float = 0.0
    _is_early: bool = False  # a partition came or left, and earlier changes are not applied yet
    # by table, number and joining: position at which an attached partition was present
    _came: dict[tuple[str, str, str], Scn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config, destination = self.records.config, self.records.destination
        self.detached = DetachedPartitions(
            topology=config.topology,
            apply=config.apply,
            epoch=self.records.epoch,
            source=self.source,
            destination=destination,
        )
        self.older_errors = OlderErrors(topology=config.topology, apply=config.apply, destination=destination)

    def note(self, found: Sequence[Standing], snapshot: str) -> None:
        """Record the marks of tables that are copied or kept, as a snapshot sees them.

        The marks of their partitions stay: a later look must see what happens to them.

        Raises:
            DatabaseUnavailable: one of the databases does not answer.
        """
        config, destination = self.records.config, self.records.destination
        marks = self.source.row_marks(config.topology, snapshot=snapshot)
        recorded = destination.row_marks(config.topology, config.apply, config.source.site)
        tables = {each.table.identity: marked_table(each.table) for each in found if each.table.identity in marks}
        here = columns_here(destination, list(tables.values()))
        self._record(
            {
                identity: paired(marks[identity], here.get(table.destination, {}), recorded.get(identity))
                for identity, table in tables.items()
            }
        )
        self._look_at = 0.0

    def look(self, found: Sequence[Standing], *, is_asked: bool = False) -> bool:
        """Look for tables whose rows changed without events, periodically or when requested, and show them.

        While a database does not answer, the findings stay as they are.

        Returns:
            Whether partitions must be copied now.
        """
        if time.monotonic() < self._look_at and not is_asked:
            return False
        config, destination = self.records.config, self.records.destination
        try:
            now = self.source.row_marks(config.topology)
            names = {each.identity: TableName.of(each) for each in self.source.captured(config.topology)}
            recorded = destination.row_marks(config.topology, config.apply, config.source.site)
            is_renamed = self._follow_names(found, now)
            of = _Parts(
                found=found,
                recorded=recorded,
                now=now,
                deadline=time.monotonic() + (_APPLIED_WAIT_S if is_asked else 0.0),
            )
            finished = [each for each in found if each.is_finished and each.part is None]
            tables = [self._marked(each, of) for each in finished]
            self._is_early = False
            self._came = {
                key: scn
                for key, scn in self._came.items()
                if key[1] in of.new(key[0]) and now[key[0]].parts[key[1]].joined == key[2]
            }
            self.older_errors.look_again()
            changed = compare_marks(self.source, destination, tables, recorded, now, partial(self._readiness, of))
            # Recorded before the mark that contains them: if the driver dies in between, the next one finds them again.
            for each in found:
                if each.table.identity in changed.attached:
                    self.records.begin_parts(each, changed.attached[each.table.identity])
            self._record(changed.settled, was=recorded)
            problems, is_done = self._settle_left(tables, changed, of)
            if is_done:
                # Findings about removed partitions must disappear.
                return self.look(found, is_asked=True) or is_renamed or bool(changed.attached)
        except (FencedError, DestinationRestarted):
            raise
        except DatabaseError:
            return False  # a caller that needs the database reports the error; the next look asks again
        # With DDL, the exchange is on its way.
        alone = [table for table, each in zip(tables, finished, strict=True) if not each.table.takes_ddl]
        self._look_at = time.monotonic() + (_LOOK_AGAIN_S if self._is_early else _LOOK_S)
        self.records.note_changed(
            found,
            {identity: str(each) for identity, each in (problems | _exchanged(alone, names, config.apply)).items()},
        )
        return is_renamed or bool(changed.attached)

    def _follow_names(self, found: Sequence[Standing], now: Mapping[str, RowMark]) -> bool:
        """Record renamed partitions under their current names, before another one gets the old name.

        Returns whether there were any.
        """
        names = {each.table.identity: each.table for each in found if each.part is None}
        is_renamed = False
        for each in found:
            part = (
                None
                if each.part is None or each.part.table not in now
                else now[each.part.table].parts.get(str(each.part.number))
            )
            if each.part is None or part is None:
                continue
            whole = names[each.part.table]
            if (name := here(part, whole.source, whole.destination)) != each.table.destination:
                self.records.rename_part(each, name)
                is_renamed = True
        return is_renamed

    def _readiness(self, of: _Parts, table: MarkedTable, number: str, part: MarkedPart) -> Readiness:
        """Return whether all changes from before a partition was attached are applied, and what blocks its copy.

        The log may have its rows as those of another partition, which left or gave them up.
        """
        key = table.identity, number, part.joined
        if key not in self._came:
            self._came[key] = self.source.current_scn()
        if not self.detached.is_applied(self._came[key], deadline=of.deadline):
            self._is_early = True
            return Readiness(is_applied=False)
        new = of.new(table.identity)
        never_before = [
            each
            for each in new
            if each not in of.recorded.get(table.identity, RowMark()).parts
            and each not in of.copied_alone(table.identity)
        ]
        return Readiness(
            held_by=self.older_errors.first_of(table, attached=new, never_before=never_before, seen=self._came[key])
        )

    def _marked(self, each: Standing, of: _Parts) -> MarkedTable:
        table = each.table
        return replace(
            marked_table(table),
            # Another topology's apply process may have rows there. Few tables have new partitions, so few are asked.
            copies_parts=bool(of.new(table.identity)) and copies_parts(table) and not self.records.others(table),
            detached=self.records.config.destination.tables.detached_partitions,
        )

    def _settle_left(
        self, tables: Sequence[MarkedTable], changed: ChangedRows, of: _Parts
    ) -> tuple[dict[str, ChangedTable], bool]:
        """Handle partitions that the source no longer has, as configured.

        Returns the findings to show, and whether any partition was handled.
        """
        problems, is_done = dict(changed.problems), False
        self.detached.keep(changed.left)
        for table in tables:
            if not (left := changed.left.get(table.identity)):
                continue
            outcome = self.detached.settle(table, left, of.now[table.identity], deadline=of.deadline)
            is_done |= outcome.is_done
            self._is_early |= outcome.is_early
            if outcome.problem and follows(table) and table.identity not in problems:
                problems[table.identity] = ChangedTable(
                    problem="partitions that the source no longer has (dropped or detached) cannot be detached here:"
                    f" {outcome.problem}",
                    fix="correct the reported cause, and they are detached; or detach or drop them yourself",
                )
        return problems, is_done

    def _record(self, marks: Mapping[str, RowMark], *, was: Mapping[str, RowMark] | None = None) -> None:
        config = self.records.config
        if marks:
            self.records.destination.record_row_marks(
                config.topology, config.apply, self.records.epoch, config.source.site, marks, was=was
            )
