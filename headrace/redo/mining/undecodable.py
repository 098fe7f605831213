"""Errors for redo that cannot be decoded: defects, with place and SCN."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import CaptureError
from headrace.databases.ports import DecodedChunk
from headrace.lcr.scn import scn_text
from headrace.redo.mining.mining_kernels import ERROR, ERROR_ROW, ERROR_TRANSACTION, UNKNOWN_OBJECT
from headrace.redo.records import RecordHeader

__all__ = ["misfit", "undecodable"]


def undecodable(source: str, header: RecordHeader, offset: int, what: str) -> CaptureError:
    """Return the error for a record that the decoder refuses.

    Args:
        source: source site of the redo.
        header: the record's header.
        offset: offset in the record's payload, bytes.
        what: the problem.
    """
    return CaptureError(
        f"redo of site {source} after SCN {scn_text(header.last_commit_scn)} cannot be decoded: {what}",
        hint="the redo is intact as it was written: this is a defect of the decoder, or of the source",
        source=source,
        scn=header.last_commit_scn,
        offset=offset,
    )


def misfit(source: str, chunk: DecodedChunk, found: NDArray[np.int64]) -> CaptureError:
    """Return the error for a row that does not fit its table's description in redo.

    Args:
        source: source site of the redo.
        chunk: the chunk with the row.
        found: result of `headrace.redo.mining.mining_kernels.classify` for the chunk.
    """
    number, scn = int(chunk.object_number[found[ERROR_ROW]]), int(chunk.order_scn[found[ERROR_TRANSACTION]])
    if found[ERROR] == UNKNOWN_OBJECT:  # noqa: SIM108
        what = f"the redo never described object {number}"
    else:
        what = f"a row of object {number} does not have the columns of its description"
    return CaptureError(
        f"a change of the transaction at SCN {scn_text(scn)} of site {source} cannot be read: {what}",
        hint="this is a defect of the log writer or of the decoder",
        source=source,
        scn=scn,
        object_number=number,
    )
