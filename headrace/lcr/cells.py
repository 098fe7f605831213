"""Values of rows, addressed where they lie: the working form between batches and writes.

`Cells` is one image (old or new) of n rows times c columns, as an offset and a length per value into shared bytes.
Joining the rows of several batches copies their bytes once, and gathering a write copies them once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.lcr.values import ABSENT, ColumnValues

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Cells", "fixed"]


def fixed(array: NDArray[Any]) -> NDArray[Any]:
    """Return a contiguous read-only view: kernels see one type for decoded (read-only) and computed arrays alike."""
    flags = array.flags
    if flags.c_contiguous and not flags.writeable:
        return array
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """One image of n rows.

    Args:
        data: uint8, shared bytes.
        offsets: int64, shape (c, n); first byte of each value in `data` (meaningless for a value without bytes).
        lengths: int32, shape (c, n); bytes of each value, or NULL, UNCHANGED, ABSENT.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int32]

    @classmethod
    def joined(
        cls,
        columns: int,
        rows: int,
        blocks: Sequence[tuple[ColumnValues, NDArray[np.int32]]],
    ) -> Cells:
        """Join blocks of values.

        Args:
            columns: c, the same in every block.
            rows: n; rows that no block fills are ABSENT.
            blocks: values, and for each of their rows its place among the n (int32).
        """
        # A local import: numba takes 25 MB, which a process that never cuts a batch does not need.
        from headrace.lcr.cells_kernels import place_rows

        offsets = np.zeros((columns, rows), np.int64)
        lengths = np.full((columns, rows), ABSENT, np.int32)
        base = 0
        for values, places in blocks:
            place_rows(fixed(values.lengths), fixed(values.starts), base, fixed(places), offsets, lengths)
            base += int(values.data.shape[0])
        if len(blocks) == 1:  # noqa: SIM108
            data = blocks[0][0].data
        else:
            data = np.concatenate([np.empty(0, np.uint8), *[values.data for values, _ in blocks]])
        return cls(data=fixed(data), offsets=offsets, lengths=lengths)

    @classmethod
    def of(cls, values: ColumnValues) -> Cells:
        """Address the values of one block."""
        rows = np.arange(values.row_count, dtype=np.int32)
        return cls.joined(values.column_count, values.row_count, [(values, rows)])

    def value(self, column: int, row: int) -> bytes | int:
        """Return one value's bytes, or NULL, UNCHANGED, ABSENT.

        Args:
            column: place of the column, from 0.
            row: place of the row among the n.
        """
        length = int(self.lengths[column, row])
        if length < 0:
            return length
        offset = int(self.offsets[column, row])
        return self.data[offset : offset + length].tobytes()

    def gathered(self, rows: NDArray[np.int32], columns: NDArray[np.bool_] | None = None) -> ColumnValues:
        """Copy rows into a separate block.

        Args:
            rows: int32, the rows, in the wanted order.
            columns: bool, shape (c,); the others become ABSENT. None: all.
        """
        from headrace.lcr.cells_kernels import gather_rows

        wanted = np.ones(self.lengths.shape[0], np.bool_) if columns is None else columns
        lengths, starts, data = gather_rows(
            fixed(self.data),
            fixed(self.offsets),
            fixed(self.lengths),
            fixed(rows),
            fixed(wanted),
            np.int32(ABSENT),
        )
        return ColumnValues(lengths=lengths, data=data, starts=starts)
