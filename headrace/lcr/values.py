"""Values of rows in the form of batches: lengths and bytes, column by column, in the source's own encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ABSENT", "NULL", "UNCHANGED", "ColumnValues"]

# The three ways in which a value can have no bytes, as lengths:
NULL = -1  # the column is NULL
UNCHANGED = -2  # the column was not touched and its value is not in the log (a large value stored apart)
ABSENT = -3  # the LCR does not carry the column at all


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnValues:
    """Values of n rows times c columns, column by column.

    Args:
        lengths: int32, shape (c, n), C order; bytes of each value, or NULL, UNCHANGED, ABSENT.
        data: uint8, the values' bytes: all of column 0 in row order, then all of column 1, ...
        starts: int64, shape (c + 1,); column k's bytes are data[starts[k]:starts[k + 1]].
    """

    lengths: NDArray[np.int32]
    data: NDArray[np.uint8]
    starts: NDArray[np.int64]

    @property
    def column_count(self) -> int:
        """Number of columns."""
        return int(self.lengths.shape[0])

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return int(self.lengths.shape[1])

    def offsets(self, column: int) -> NDArray[np.int64]:
        """Return the offset of each value of `column` in `data`: int64, shape (n,), also without bytes."""
        lengths = np.maximum(self.lengths[column], 0).astype(np.int64)
        offsets = np.cumsum(lengths)
        offsets -= lengths
        offsets += self.starts[column]
        return offsets

    def value(self, column: int, row: int) -> bytes | int:
        """Return one value's bytes, or NULL, UNCHANGED, ABSENT. Slow: for views of single rows only.

        Args:
            column: place of the column, from 0.
            row: place of the row among the n.
        """
        length = int(self.lengths[column, row])
        if length < 0:
            return length
        offset = int(self.offsets(column)[row])
        return self.data[offset : offset + length].tobytes()
