"""Writes of single rows, merged into the fewest equivalent sets.

Rows of one set must have different keys, because a set has no order. Each set changes as many rows as it has, so its
count reveals a row that could not be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.databases.ports import Write
from headrace.lcr.cells import Cells
from headrace.lcr.values import ABSENT, ColumnValues

if TYPE_CHECKING:
    from collections.abc import Hashable

    from headrace.databases.ports import WriteSession

__all__ = ["alike", "joined", "write_each"]


def alike(writes: Sequence[Write], also: Sequence[Hashable] = ()) -> list[list[int]]:
    """Group writes that can be one set: of one table, one command, the same columns, and values in the same ones.

    Args:
        writes: of one row each; those of a table are of one version of it.
        also: values that must be equal too, one for each write; empty: none.

    Returns:
        Indexes in `writes`, ascending.
    """
    kinds: dict[Hashable, list[int]] = {}
    for place, write in enumerate(writes):
        times = write.times
        kind = (
            write.version.owner,
            write.version.name,
            write.command,
            write.match_columns,
            write.compare_columns,
            write.set_columns,
            write.paired,
            _carried(write.old),
            _carried(write.new),
            None if times is None else (times.source, times.rank, times.keys is None, times.key_form),
            also[place] if also else None,
        )
        kinds.setdefault(kind, []).append(place)
    return list(kinds.values())


def joined(writes: Sequence[Write]) -> Write:
    """Return one write of all rows, in their order.

    Args:
        writes: one group of `alike`; at least one.
    """
    first = writes[0]
    if len(writes) == 1:
        return first
    times = first.times
    return replace(
        first,
        old=_together([write.old for write in writes if write.old is not None]),
        new=_together([write.new for write in writes if write.new is not None]),
        times=None
        if times is None
        else replace(
            times,
            times_us=np.concatenate([write.times.times_us for write in writes if write.times is not None]),
            keys=None
            if times.keys is None
            else np.concatenate(
                [write.times.keys for write in writes if write.times is not None and write.times.keys is not None]
            ),
        ),
    )


def write_each(session: WriteSession, writes: Iterable[tuple[Write, int]]) -> bool:
    """Write single rows of different keys as sets, in one round trip.

    Args:
        session: in a transaction.
        writes: of one row each, and how many rows of the table each must change: 1 or 0.

    Returns:
        Whether each changed as many rows as it must; roll back if not.

    Raises:
        DataError: the destination refused a value; roll back.
    """
    given = list(writes)
    if not given:
        return True
    sets = alike([write for write, _ in given], [expected for _, expected in given])
    counts = session.write([joined([given[place][0] for place in places]) for places in sets])
    return list(counts) == [sum(given[place][1] for place in places) for places in sets]


def _carried(values: ColumnValues | None) -> bytes | None:
    return None if values is None else (values.lengths > ABSENT).tobytes()


def _together(values: Sequence[ColumnValues]) -> ColumnValues | None:
    if not values:
        return None
    blocks = [(each, np.array([place], np.int32)) for place, each in enumerate(values)]
    return Cells.joined(values[0].column_count, len(values), blocks).gathered(np.arange(len(values), dtype=np.int32))
