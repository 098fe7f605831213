"""Columns of a source's table beside those of the destination's.

Whether a column there still has the values of the column here.

A column is its number, at either side, whatever it is called. A mark has for each column of the source's table the
number of the column that has its values here (`MarkedColumn.here`); a copy pairs them by their names. A column that the
source has since gets its partner at the first look at which the destination has one of its name, if older rows have the
same value at both sides.

What both sides compute never travels: there the expressions are compared (`spark_apply.copy.marks.computed_columns`), and
the numbers are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from headrace.databases.ports import MarkedColumn, RowMark
from spark_apply.copy.marks.computed_columns import Computed, both_compute, doubtful_parts, with_uncompared

__all__ = ["earlier_column", "paired", "replaced_columns", "taken_over"]

# A cast between them depends on the session's time zone, and writes no row anew in UTC.
_MOMENTS = frozenset({"timestamp", "timestamptz"})


def replaced_columns(was: RowMark, now: RowMark, here: Mapping[str, MarkedColumn]) -> Iterator[str]:
    """Names that stand for another column than before, at the source or here.

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
                yield f"column {name} was generated and is not any more (DROP EXPRESSION here, too, before the copy)"
            elif earlier is None and column.has_passing_default:
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


def _another_here(was: RowMark, name: str, column: MarkedColumn, there: MarkedColumn) -> Iterator[str]:
    """A column of the destination that has the name, and maybe not the values."""
    earlier = earlier_column(was, name, column)
    if earlier is not None and earlier.here:
        if earlier.here != there.number and name in was.columns:
            yield (
                f"column {name} is another one here than the one that was copied (dropped and added, or exchanged,"
                " at the destination)"
            )
        elif earlier.here != there.number:
            former = ", ".join(sorted(other for other, each in was.columns.items() if each.number == column.number))
            yield f"column {name} was called {former} before, and here another column has the name"
    elif there.number <= was.width_here:
        yield (
            f"column {name} was added at the source, and the destination had one of that name already, with values"
            " of its own"
        )
    elif not _is_as_old(_older(earlier, column), there.older):
        yield f"column {name} was added, and here older rows have another value in it than at the source"


def _is_as_old(source: str | None, here: str | None) -> bool:
    """Whether older rows have the same value.

    Of a source's column whose default came later the server keeps none: they have NULL.
    """
    return source == here or (source is None and not here)


def _older(earlier: MarkedColumn | None, column: MarkedColumn) -> str | None:
    """The value of older rows: the source's server forgets it when it writes the rows anew.

    Without it, a column without a default is one in which older rows have NULL (an empty text).
    """
    return earlier.older if earlier is not None and earlier.older and not column.keeps_older else column.older


def earlier_column(was: RowMark, name: str, column: MarkedColumn) -> MarkedColumn | None:
    """The column as it was recorded, under whatever name.

    Args:
        was: the recorded mark.
        name: of now.
        column: of now.
    """
    found = was.columns.get(name)
    if found is not None and found.number == column.number:
        return found
    return next((each for each in was.columns.values() if each.number == column.number), None)


def paired(
    mark: RowMark, here: Mapping[str, MarkedColumn], was: RowMark | None = None, *, is_copy: bool = True
) -> RowMark:
    """The mark of a table whose rows here are the source's: its columns are those of their names here.

    Args:
        mark: the source's.
        here: the destination's columns, by name; empty: not known.
        was: what was recorded before; None: nothing.
        is_copy: the rows are copied: that does not change what the destination computes, and of the columns that it has
            besides none keeps a value. False: a comparison found them equal.
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
    """The mark of now, of which nothing is to be said; it also knows the names of columns that are gone.

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
