"""Check whether sequences of several sites that write one column can give out the same value twice."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from headrace.databases.ports import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.databases.ports.operator import ColumnSequence
    from headrace.lcr.table_name import TableName

__all__ = ["collisions"]


def collisions(table: TableName, column: str, beside: Sequence[tuple[str, ColumnSequence]]) -> Iterator[Finding]:
    """Report where the sequences of a column that several sites write can give out the same value twice.

    Args:
        table: the table.
        column: its column.
        beside: the column's sequences at the sites that write the table, each with its site: usually one per site.
    """
    pair = next(
        (
            (one, other)
            for number, one in enumerate(beside)
            for other in beside[number + 1 :]
            if one[0] != other[0] and _can_collide(one[1], other[1])
        ),
        None,
    )
    if pair is None:
        return
    told = " and ".join(f"{site} (next {found.next_value}, step {found.increment})" for site, found in pair)
    # Beyond every value given out so far; from there on the sequences interleave.
    step = -1 if all(found.increment < 0 for _, found in beside) else 1
    first = max(found.next_value * step for _, found in beside) * step
    fixes = "; ".join(
        f"at {site}: ALTER SEQUENCE {found.name} INCREMENT BY {step * len(beside)} RESTART WITH {first + step * number}"
        for number, (site, found) in enumerate(beside)
    )
    yield Finding(
        path=f"sites.{pair[1][0]} table {table}",
        problem=f"the sequences of column {column} at {told} can hand out the same value twice: where both sites "
        "insert, the row that comes later ends in the error queue",
        fix=f"{fixes}; or give each site a range of its own (MINVALUE, MAXVALUE)",
        is_error=False,
    )


def _can_collide(first: ColumnSequence, second: ColumnSequence) -> bool:
    (low, high), (other_low, other_high) = (
        ((each.next_value, each.most) if each.increment > 0 else (each.least, each.next_value))
        for each in (first, second)
    )
    if max(low, other_low) > min(high, other_high):
        return False
    return (first.next_value - second.next_value) % gcd(first.increment, second.increment) == 0
