"""Columns that both sides compute: a copy does not change them, so their definitions are compared.

The mark has a stamp of each definition, of the table and of each partition, because each may have its own expression
(`headrace.databases.ports.row_marks.MarkedPart.computed`). A definition that the mark lacks, or has as not compared, is
read at both sides. Where rows differ, a finding shows statements for the destination until they are executed or a
comparison finds no difference. Expressions that differed before the first copy are the operator's choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.databases.ports import ComputedDifference, MarkedColumn, MarkedPart, RowMark
from headrace.lcr.table_name import TableName
from spark_apply.copy.records.parts import here as part_here

if TYPE_CHECKING:
    from headrace.databases.ports import InstantiationRecords, SourceDatabase

__all__ = ["Computed", "both_compute", "compare_computed", "doubtful_parts", "with_uncompared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The state of columns that both sides compute, in one look.

    Args:
        differences: that affect rows.
        uncompared: numbers of the partitions whose definitions stay in doubt, by column.
        tables: columns for which the table's own definition stays in doubt.
    """

    differences: tuple[ComputedDifference, ...] = ()
    uncompared: Mapping[str, frozenset[str]] = field(default_factory=dict)
    tables: frozenset[str] = frozenset()


def both_compute(column: MarkedColumn, there: MarkedColumn | None) -> bool:
    """Return whether both the source and the destination compute a column.

    Args:
        column: the source's.
        there: the destination's; None: it has no column of that name.
    """
    return column.is_generated and there is not None and there.is_generated


def doubtful_parts(was: RowMark, now: RowMark, here: Mapping[str, MarkedColumn]) -> dict[str, frozenset[str]]:
    """Return columns that both sides compute and whose definitions must be compared.

    Args:
        was: the recorded mark.
        now: the source's.
        here: the destination's columns, by name.

    Returns:
        By column, numbers of the parts whose definitions are not known to equal the destination's; none: only the
        table's own is not known to.
    """
    found = {}
    for name, column in now.columns.items():
        if not both_compute(column, here.get(name)):
            continue
        is_known = _is_known(was, column)
        parts = frozenset(
            number
            for number, part in now.parts.items()
            if _is_doubtful(was.parts.get(number), (part.computed or {}).get(name, ""), is_known=is_known)
        )
        if parts or not is_known:
            found[name] = parts
    return found


def _is_known(was: RowMark, column: MarkedColumn) -> bool:
    """Return whether the table's own definition is the one compared last, under any name."""
    return any(each.is_generated and each.stamp == column.stamp for each in was.columns.values())


def _is_doubtful(earlier: MarkedPart | None, stamp: str, *, is_known: bool) -> bool:
    if earlier is None:
        return True
    if earlier.computed is None:
        return not is_known
    return stamp not in earlier.computed.values() or stamp in earlier.uncompared


def compare_computed(
    source: SourceDatabase,
    destination: InstantiationRecords,
    tables: tuple[TableName, TableName],
    identity: str,
    marks: tuple[RowMark, RowMark],
    here: Mapping[str, MarkedColumn],
) -> Computed:
    """Compare the definitions of columns that both sides compute.

    Args:
        source: provides the definitions.
        destination: compares them.
        tables: the table's name at the source, and here.
        identity: of the table.
        marks: the recorded one, and the source's.
        here: the destination's columns, by name.

    Raises:
        DatabaseUnavailable: one of them does not answer, or the table is locked there.
    """
    was, now = marks
    doubtful = doubtful_parts(was, now, here)
    if not doubtful:
        return Computed()
    there = source.computed_columns(identity)

    def named(part: MarkedPart) -> TableName:
        return part_here(part, *tables) if part.joined else tables[1]

    wanted = [
        replace(
            there[name],
            parts=tuple(replace(part, **part_here(part, *tables)._asdict()) for part in there[name].parts),
        )
        for name in doubtful
        if name in there
    ]
    known = {
        column.name: {TableName.of(part) for part in column.parts} if column.parts else {tables[1]} for column in wanted
    }
    among = {name: {named(now.parts[number]) for number in doubtful[name]} for name in known}
    accepted = {name for name in known if _is_known(was, now.columns[name])}
    found = destination.computed_differences(tables[1], wanted, among, accepted)
    uncompared, unsettled = {}, set[str]()
    for name, numbers in doubtful.items():
        difference = found.get(name)
        if difference is None or difference.is_of_rows:  # None: the column was altered just now
            uncompared[name] = numbers
        else:
            found_there = known[name] - set(difference.lacking)
            uncompared[name] = frozenset(number for number in numbers if named(now.parts[number]) not in found_there)
        if difference is None or not (difference.is_table_same or name in accepted):
            unsettled.add(name)
    return Computed(
        differences=tuple(each for each in found.values() if each.is_of_rows),
        uncompared=uncompared,
        tables=frozenset(unsettled),
    )


def with_uncompared(mark: RowMark, was: RowMark, computed: Computed) -> RowMark:
    """Return a mark with a note of the definitions that are not compared."""
    parts = {
        number: replace(
            part,
            uncompared=tuple(
                sorted(
                    part.computed[name]
                    for name, numbers in computed.uncompared.items()
                    if part.computed is not None and number in numbers and name in part.computed
                )
            ),
        )
        for number, part in mark.parts.items()
    }
    columns = {
        name: replace(column, stamp=was.columns[name].stamp if name in was.columns else "")
        if name in computed.tables
        else column
        for name, column in mark.columns.items()
    }
    return replace(mark, parts=parts, columns=columns)
