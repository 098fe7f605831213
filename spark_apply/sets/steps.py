"""Steps of a plan: writes with known row counts, and TRUNCATEs between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.databases.ports import TruncatedTable, Write
from headrace.lcr.batch import TableVersion
from spark_apply.tables.fits import TableFit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ExpectedWrite", "FitOf", "Step", "TruncateTables"]

FitOf = Callable[[TableVersion], TableFit]
"""Returns the fit of a table version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWrite:
    """A write, the number of rows that it must affect, and the indexes of its rows among the table's rows (int32)."""

    write: Write
    expected: int
    rows: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateTables:
    """Tables to truncate together: a barrier between writes.

    A CASCADE at the source is not repeated here. The tables that it emptied there are part of the same TRUNCATE, and
    tables that refer to them only at the destination must not be emptied.

    Args:
        tables: as the destination describes them.
        restart_identity: the source truncated with RESTART IDENTITY.
        unfit: why one of them does not fit, where that is an error (`TableFit.unfit`): nothing is truncated.
    """

    tables: tuple[TruncatedTable, ...]
    restart_identity: bool
    unfit: str = ""


Step = ExpectedWrite | TruncateTables
