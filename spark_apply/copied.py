"""What of a batch is in the copies of its tables already, and is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from streams.cutting import row_transactions, select_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streams.lcr_batch import LcrBatch, TableVersion

__all__ = ["FirstScn", "without_copied"]

FirstScn = Callable[["TableVersion"], int]
"""Changes of a table with an order SCN below this are left out."""


def without_copied(batch: LcrBatch, first_scn: FirstScn) -> LcrBatch:
    """Leave out rows that are older than what is applied of their tables.

    Args:
        batch: rows in source order.
        first_scn: asked per table of the batch.

    Returns:
        The batch itself when nothing is left out; transactions stay, also without rows.
    """
    kept = np.ones(batch.row_count, np.bool_)
    owners: NDArray[np.int32] | None = None
    for group in batch.groups:
        scn = first_scn(batch.tables[group.table])
        if scn and int(batch.transactions.order_scn[0]) < scn:
            owners = row_transactions(batch.transactions) if owners is None else owners
            kept[group.row_numbers[batch.transactions.order_scn[owners[group.row_numbers]] < scn]] = False
    return _without_truncates(select_rows(batch, kept), first_scn)


def _without_truncates(batch: LcrBatch, first_scn: FirstScn) -> LcrBatch:
    """TRUNCATEs only of tables that were not copied after them."""
    if not batch.truncates:
        return batch
    owners = row_transactions(batch.transactions)
    truncates = []
    for truncate in batch.truncates:
        order_scn = int(batch.transactions.order_scn[owners[truncate.row_number]])
        tables = tuple(table for table in truncate.tables if order_scn >= first_scn(batch.tables[table]))
        truncates.append(replace(truncate, tables=tables))
    if truncates == list(batch.truncates):
        return batch
    kept = np.ones(batch.row_count, np.bool_)
    for truncate in truncates:
        kept[truncate.row_number] = bool(truncate.tables)
    return select_rows(replace(batch, truncates=tuple(truncates)), kept)
