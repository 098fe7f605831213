"""Kernels of rule evaluation: choosing rows out of columns."""
# mypy: allow-untyped-defs

from __future__ import annotations

from numba import njit


@njit(cache=True)
def measure_rows(lengths, rows, out_lengths, out_starts):
    """Copy the lengths of `rows`, and tell where each column will begin."""
    total = 0
    for column in range(lengths.shape[0]):
        out_starts[column] = total
        for place in range(rows.shape[0]):
            length = lengths[column, rows[place]]
            out_lengths[column, place] = length
            if length > 0:
                total += length
    out_starts[lengths.shape[0]] = total


@njit(cache=True)
def copy_rows(lengths, data, starts, rows, out):
    """Copy the bytes of `rows` (ascending), column after column."""
    written = 0
    for column in range(lengths.shape[0]):
        offset = starts[column]
        row = 0
        for place in range(rows.shape[0]):
            while row < rows[place]:
                if lengths[column, row] > 0:
                    offset += lengths[column, row]
                row += 1
            length = lengths[column, row]
            if length > 0:
                out[written : written + length] = data[offset : offset + length]
                written += length
