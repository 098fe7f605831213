"""Columns of a source's table beside those of the destination's.

Whether a column there still has the values of the column here.

A column is its number, at either side, whatever it is called. A mark has for each column of the source's table the
number of the column that has its values here (`MarkedColumn.here`); a copy pairs them by their names. A column that the
source has since gets its partner at the first look at which the destination has one of its name, if older rows have the
same value at both sides.

What both sides compute never travels: there the expressions are compared, and the numbers are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from headrace.databases.ports import MarkedColumn, RowMark
from headrace.lcr.table_name import TableName, quoted, quoted_name

__all__ = ["both_compute", "computed_otherwise", "doubtful_columns", "paired", "replaced_columns", "taken_over"]

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
            earlier = _earlier(was, name, column)
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
    earlier = _earlier(was, name, column)
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
    """The value of older rows: the source's server forgets it when it writes the rows anew."""
    return earlier.older if earlier is not None and column.older is None else column.older


def _earlier(was: RowMark, name: str, column: MarkedColumn) -> MarkedColumn | None:
    """The column as it was recorded, under whatever name."""
    found = was.columns.get(name)
    if found is not None and found.number == column.number:
        return found
    return next((each for each in was.columns.values() if each.number == column.number), None)


def both_compute(column: MarkedColumn, there: MarkedColumn | None) -> bool:
    """Whether the source and the destination compute a column.

    Args:
        column: the source's.
        there: the destination's; None: it has none of the name.
    """
    return column.is_generated and there is not None and there.is_generated


def doubtful_columns(was: RowMark, now: RowMark, here: Mapping[str, MarkedColumn]) -> list[str]:
    """Names of the columns that both sides compute, and whose definitions are to be compared.

    The source's is not the one that was compared last.

    Args:
        was: the recorded mark.
        now: the source's.
        here: the destination's columns, by name.
    """
    return [
        name
        for name, column in now.columns.items()
        if both_compute(column, here.get(name)) and (name not in was.columns or was.columns[name].stamp != column.stamp)
    ]


def computed_otherwise(
    doubtful: Sequence[str], there: Mapping[str, str], here: Mapping[str, str], table: TableName
) -> Iterator[str]:
    """Statements that make the destination compute what the source computes since.

    Expressions that differed before are an operator's own.

    Args:
        doubtful: names of columns.
        there: types and expressions of the source, by name.
        here: of the destination.
        table: its name here.
    """
    for name in doubtful:
        if name in there and name in here and there[name] != here[name]:
            yield (
                f"ALTER TABLE {quoted_name(table)} DROP COLUMN {quoted(name)}, ADD COLUMN {quoted(name)}"
                f" {there[name]} STORED"
            )


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
    if is_copy and was is not None:
        for name, column in columns.items():
            if both_compute(column, here.get(name)):
                columns[name] = replace(column, stamp=was.columns[name].stamp if name in was.columns else "")
    width = max((each.number for each in here.values()), default=0)
    return replace(
        mark, columns=columns, width_here=width if is_copy or was is None or not was.width_here else was.width_here
    )


def taken_over(was: RowMark, now: RowMark, here: Mapping[str, MarkedColumn]) -> RowMark:
    """The mark of now, of which nothing is to be said; it also knows the names of columns that are gone.

    Args:
        was: the recorded mark.
        now: the source's.
        here: the destination's columns, by name; empty: not known.
    """
    columns = dict(was.columns)
    for name, column in now.columns.items():
        earlier, there = _earlier(was, name, column), here.get(name)
        partner = earlier.here if earlier is not None else 0
        if there is not None and (not partner or both_compute(column, there)):
            partner = there.number
        columns[name] = replace(column, here=partner, older=_older(earlier, column))
    width = was.width_here or max((each.number for each in here.values()), default=0)
    return replace(now, columns=columns, width_here=width)
