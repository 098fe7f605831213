"""Storage of a source's table: partitions that were unlogged for a while, or that an ALTER TABLE rewrote.

PostgreSQL lets a partition of a published table become UNLOGGED, and LOGGED again. Each change rewrites the partition,
as other forms of ALTER TABLE do, but those leave the stamp of a column. A rewritten partition without such a stamp may
have been UNLOGGED.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from headrace.databases.ports import MarkedColumn, MarkedPart, RowMark
from headrace.lcr.table_name import quoted_name
from spark_apply.copy.marks.computed_columns import both_compute
from spark_apply.copy.marks.marked_columns import earlier_column

__all__ = [
    "kept_parts",
    "logged_again",
    "may_be_one_alter",
    "noted_unlogged",
    "rewritten_columns",
    "rewritten_parts",
    "unlogged_parts",
    "written_by_alter",
]


def unlogged_parts(was: RowMark, now: RowMark) -> Iterator[str]:
    """Describe partitions that are unlogged, or were at an earlier look."""
    for number, part in now.parts.items():
        if part.is_unlogged:
            yield f"partition {part.owner}.{part.name} is UNLOGGED at the source: changes of its rows are in no log"
        elif number in was.parts and was.parts[number].is_unlogged and was.parts[number].joined == part.joined:
            yield f"partition {part.owner}.{part.name} was UNLOGGED at the source: changes of its rows are in no log"


def logged_again(now: RowMark) -> Iterator[str]:
    """Return statements for the source, after which the log has the changes of all partitions."""
    for part in now.parts.values():
        if part.is_unlogged:
            yield f"ALTER TABLE {quoted_name(part)} SET LOGGED"


def noted_unlogged(was: RowMark, now: RowMark) -> RowMark:
    """Return the recorded mark with a note of unlogged partitions, whose changes meanwhile never arrive."""
    parts = {
        number: replace(part, is_unlogged=part.is_unlogged or (number in now.parts and now.parts[number].is_unlogged))
        for number, part in was.parts.items()
    }
    return replace(was, parts=parts)


def rewritten_columns(was: RowMark, now: RowMark, here: Mapping[str, MarkedColumn]) -> Iterator[tuple[str, str]]:
    """Return columns that were rewritten in one partition alone (SET EXPRESSION), each with the partition.

    Args:
        was: the recorded mark.
        now: the source's.
        here: the destination's columns, by name.
    """
    for number, part in now.parts.items():
        earlier = was.parts.get(number)
        if not part.joined or earlier is None or earlier.computed is None or earlier.file == part.file:
            continue
        for name, stamp in (part.computed or {}).items():
            column = now.columns.get(name)
            if column is None or both_compute(column, here.get(name)) or earlier_column(was, name, column) is None:
                continue
            if stamp not in earlier.computed.values():
                yield name, f"{part.owner}.{part.name}"


def rewritten_parts(
    was: RowMark, now: RowMark, here: Mapping[str, MarkedColumn], was_written_anew: Callable[[str], bool]
) -> Iterator[str]:
    """Describe partitions that an ALTER TABLE rewrote without altering a column: the log may lack changes of rows.

    Args:
        was: the recorded mark.
        now: the source's.
        here: the destination's columns, by name.
        was_written_anew: asked about a part, by its number, if the mark does not tell.
    """
    kept = kept_parts(was, now)
    is_altered = may_be_one_alter(kept.values()) and _is_altered(was, now, here)
    for number, (earlier, part) in kept.items():
        is_known = is_altered or earlier.is_unlogged or part.is_unlogged or _is_recomputed(earlier, part)
        if not part.joined or earlier.joined != part.joined or earlier.file == part.file or is_known:
            continue
        is_altered_part = written_by_alter(earlier, part)
        if was_written_anew(number) if is_altered_part is None else is_altered_part:
            yield (
                f"partition {part.owner}.{part.name} was written anew by an ALTER TABLE that altered no column: it may"
                " have been UNLOGGED for a while"
            )


def kept_parts(was: RowMark, now: RowMark) -> dict[str, tuple[MarkedPart, MarkedPart]]:
    """Return parts that both the recorded and the current mark have, as they were and as they are, by number."""
    return {number: (was.parts[number], part) for number, part in now.parts.items() if number in was.parts}


def may_be_one_alter(kept: Iterable[tuple[MarkedPart, MarkedPart]]) -> bool:
    """Return whether one ALTER TABLE may have rewritten all parts."""
    return all(earlier.file != part.file and written_by_alter(earlier, part) is not False for earlier, part in kept)


def written_by_alter(earlier: MarkedPart, part: MarkedPart) -> bool | None:
    """Return whether an ALTER TABLE rewrote a part: it creates another table for large values.

    VACUUM FULL, CLUSTER and TRUNCATE keep that table. None: the part has no such table, or a mark does not record it.
    """
    return earlier.rewrite != part.rewrite if earlier.rewrite and part.rewrite else None


def _is_altered(was: RowMark, now: RowMark, here: Mapping[str, MarkedColumn]) -> bool:
    """Return whether an ALTER of a column of the table, with all partitions, may have rewritten them."""
    return any(
        not both_compute(column, here.get(name))
        and ((earlier := earlier_column(was, name, column)) is None or earlier.stamp != column.stamp)
        for name, column in now.columns.items()
    )


def _is_recomputed(earlier: MarkedPart, part: MarkedPart) -> bool:
    """Return whether a column that the partition computes is new or has another definition."""
    return earlier.computed is not None and not set((part.computed or {}).values()) <= set(earlier.computed.values())
