"""Columns of a source's table and their partners at the destination.

Tells whether a column at the source still has the values of its partner here.

A column is its number, at either side, whatever its name. A mark has for each column of the source's table the number
of the column that has its values here (`MarkedColumn.here`); a copy pairs them by their names. A column that the source
added later gets its partner when a look finds a column of its name at the destination, and older rows have the same
value at both sides.

Values of columns that both sides compute are never sent. For these, the expressions are compared, not the numbers
(`spark_apply.copy.marks.computed_columns`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from headrace.databases.ports import MarkedColumn, RowMark
from spark_apply.copy.marks.computed_columns import Computed, both_compute, doubtful_parts, with_uncompared

__all__ = ["earlier_column", "paired", "replaced_columns", "taken_over"]

# A cast between them depends on the session's time zone, and does not rewrite rows in UTC.
_MOMENTS = frozenset({"timestamp", "timestamptz"})


def replaced_columns(was: RowMark, now: RowMark, here: Mapping[str, MarkedColumn]) -> Iterator[str]:
    """Describe names that now mean another column than before, at the source or here.

    Args:
        was: the recorded mark.
        now: the source's.
        here: the destination's columns, by name; empty: not known.
    """
    for name, column in now.columns.items():
        there, before = here.get(name), was.columns.get(name)
        if not both_compute(column, there):
            earlier = earlier_column(was, name, column)
            if before is not None and before.number != column.number:
                yield f"column {name} is another one of that name (dropped and added, or exchanged)"
            elif before is not None and before.is_generated and not column.is_generated:
                yield f"column {name} is no longer generated (DROP EXPRESSION here, too, before the copy)"
            elif earlier is None and column.has_passing_default and not _has_value_here(was, column, there):
                yield f"column {name} was added with a default that is not constant"
            elif (
                earlier is not None
                and earlier.type_name != column.type_name
                and {earlier.type_name, column.type_name} == _MOMENTS
            ):
                yield (
                    f"column {name} became a {column.type_name} by the time zone of the session that altered it at"
                    " the source"
                )
            elif there is not None and was.width_here:
                yield from _another_here(was, name, column, there)


def _has_value_here(was: RowMark, column: MarkedColumn, there: MarkedColumn | None) -> bool:
    """Return whether older rows have the source's value here, as behind replicated DDL, whatever the default was."""
    return there is not None and bool(was.width_here) and column.keeps_older and column.older == there.older


def _another_here(was: RowMark, name: str, column: MarkedColumn, there: MarkedColumn) -> Iterator[str]:
    """Describe a destination column that has the name but perhaps not the values."""
    earlier = earlier_column(was, name, column)
    if earlier is not None and earlier.here:
        if earlier.here != there.number and name in was.columns:
            yield (
                f"column {name} here is not the one that was copied (dropped and added, or exchanged, at the"
                " destination)"
            )
        elif earlier.here != there.number:
            former = ", ".join(sorted(other for other, each in was.columns.items() if each.number == column.number))
            yield f"column {name} was called {former} before, and here another column has the name"
    elif there.number <= was.width_here:
        yield (
            f"column {name} was added at the source, and the destination already had one of that name, with its own"
            " values"
        )
    elif not _is_as_old(_older(earlier, column), there.older):
        yield f"column {name} was added, and here older rows have another value in it than at the source"


def _is_as_old(source: str | None, here: str | None) -> bool:
    """Return whether older rows have the same value at both sides.

    The server keeps no value for a source's column whose default was set later: older rows have NULL there.
    """
    return source == here or (source is None and not here)


def _older(earlier: MarkedColumn | None, column: MarkedColumn) -> str | None:
    """Return the value of older rows, which the source's server forgets when it rewrites them.

    If it is unknown, a column without a default has NULL in older rows (an empty text).
    """
    return earlier.older if earlier is not None and earlier.older and not column.keeps_older else column.older


def earlier_column(was: RowMark, name: str, column: MarkedColumn) -> MarkedColumn | None:
    """Return the column as it was recorded, under any name; None: it was not recorded."""
    found = was.columns.get(name)
    if found is not None and found.number == column.number:
        return found
    return next((each for each in was.columns.values() if each.number == column.number), None)


def paired(
    mark: RowMark, here: Mapping[str, MarkedColumn], was: RowMark | None = None, *, is_copy: bool = True
) -> RowMark:
    """Return the mark of a table whose rows here equal the source's, with each column paired with its name here.

    Args:
        mark: the source's.
        here: the destination's columns, by name; empty: not known.
        was: the mark recorded before; None: no mark.
        is_copy: the rows were copied: a copy does not change computed columns, and extra columns of the destination
            lose their values. False: a comparison found the rows equal.
    """
    columns = {
        name: replace(column, here=here[name].number if name in here else 0) for name, column in mark.columns.items()
    }
    width = max((each.number for each in here.values()), default=0)
    found = replace(
        mark, columns=columns, width_here=width if is_copy or was is None or not was.width_here else was.width_here
    )
    if not is_copy or was is None:
        return found
    doubtful = doubtful_parts(was, mark, here)
    computed = frozenset(name for name, column in mark.columns.items() if both_compute(column, here.get(name)))
    return with_uncompared(found, was, Computed(uncompared=doubtful, tables=computed))


def taken_over(
    was: RowMark, now: RowMark, here: Mapping[str, MarkedColumn], computed: Computed | None = None
) -> RowMark:
    """Return the current mark where there is no finding; it also keeps the names of dropped columns.

    Args:
        was: the recorded mark.
        now: the source's.
        here: the destination's columns, by name; empty: not known.
        computed: which definitions stay in doubt; None: none.
    """
    columns = dict(was.columns)
    for name, column in now.columns.items():
        earlier, there = earlier_column(was, name, column), here.get(name)
        partner = earlier.here if earlier is not None else 0
        if there is not None and (not partner or both_compute(column, there)):
            partner = there.number
        columns[name] = replace(column, here=partner, older=_older(earlier, column))
    width = was.width_here or max((each.number for each in here.values()), default=0)
    found = replace(now, columns=columns, width_here=width)
    return found if computed is None else with_uncompared(found, was, computed)
