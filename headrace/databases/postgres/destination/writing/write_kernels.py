"""Kernels that write column values in the binary forms that PostgreSQL reads: array parameters and COPY rows.

Callers pass all inputs as read-only arrays, so that every kernel has one signature and one cached compilation.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.lcr.byte_kernels import copy_bytes

__all__ = ["ARRAY_HEADER_BYTES", "WRAPPED_BYTES", "array_sizes", "fill_arrays", "fill_copy_rows", "row_bytes"]

ARRAY_HEADER_BYTES = 20  # dimensions, has-NULLs flag, element type, length, lower bound: five 4-byte integers
WRAPPED_BYTES = 12  # a composite with one field: field count, field type, field length


@njit(cache=True, nogil=True)
def _put32(out, at, value):
    out[at] = (value >> 24) & 255
    out[at + 1] = (value >> 16) & 255
    out[at + 2] = (value >> 8) & 255
    out[at + 3] = value & 255


@njit(cache=True, nogil=True)
def row_bytes(lengths, columns):
    """Return the bytes of each row's values in some columns.

    Args:
        lengths: int32[c, n].
        columns: int64[k], the columns.

    Returns:
        int64[n].
    """
    total = np.zeros(lengths.shape[1], np.int64)
    for k in range(columns.shape[0]):
        for row in range(lengths.shape[1]):
            length = lengths[columns[k], row]
            if length > 0:
                total[row] += length
    return total


@njit(cache=True, nogil=True)
def array_sizes(lengths, columns, wrapped, first, last):
    """Return the bytes of each column's array parameter for rows first..last-1, and whether all have a value or NULL.

    Args:
        lengths: int32[c, n].
        columns: int64[k].
        wrapped: int64[k], type of the field when each value is sent in a composite, else 0.
        first: first row.
        last: row after the last.

    Returns:
        (int64[k], False when a value is UNCHANGED or ABSENT).
    """
    sizes = np.empty(columns.shape[0], np.int64)
    complete = True
    for k in range(columns.shape[0]):
        size = ARRAY_HEADER_BYTES + 4 * (last - first)
        for row in range(first, last):
            length = lengths[columns[k], row]
            if length >= 0:
                size += length + (WRAPPED_BYTES if wrapped[k] else 0)
            elif length != -1:
                complete = False
        sizes[k] = size
    return sizes, complete


@njit(cache=True, nogil=True)
def fill_arrays(lengths, data, starts, columns, elements, wrapped, first, last, out_starts, out):
    """Write one binary array per column, one after the other.

    Args:
        lengths: int32[c, n].
        data: uint8, as in `ColumnValues`.
        starts: int64[c + 1].
        columns: int64[k].
        elements: int64[k], type of the array's elements.
        wrapped: int64[k], as in `array_sizes`.
        first: first row.
        last: row after the last.
        out_starts: int64[k + 1], where each array begins in `out`.
        out: uint8.
    """
    for k in range(columns.shape[0]):
        column = columns[k]
        position = starts[column]
        for row in range(first):
            if lengths[column, row] > 0:
                position += lengths[column, row]
        at = out_starts[k]
        flags_at = at + 4
        _put32(out, at, 1)
        _put32(out, at + 4, 0)
        _put32(out, at + 8, elements[k])
        _put32(out, at + 12, last - first)
        _put32(out, at + 16, 1)
        at += ARRAY_HEADER_BYTES
        for row in range(first, last):
            length = np.int64(lengths[column, row])
            if length < 0:
                _put32(out, at, -1)
                out[flags_at + 3] = 1
                at += 4
                continue
            if wrapped[k]:
                _put32(out, at, length + WRAPPED_BYTES)
                _put32(out, at + 4, 1)
                _put32(out, at + 8, wrapped[k])
                at += 12
            _put32(out, at, length)
            copy_bytes(data, position, length, out, at + 4)
            position += length
            at += 4 + length


@njit(cache=True, nogil=True)
def fill_copy_rows(lengths, data, starts, columns, first, last, out):
    """Write rows in COPY's binary form, without file header and trailer.

    Args:
        lengths: int32[c, n].
        data: uint8, as in `ColumnValues`.
        starts: int64[c + 1].
        columns: int64[k], in the order of COPY's column list.
        first: first row.
        last: row after the last.
        out: uint8, at least (2 + 4 k) bytes per row and the values' bytes.

    Returns:
        Bytes written; -1 when a value is UNCHANGED or ABSENT.
    """
    count = columns.shape[0]
    position = np.empty(count, np.int64)
    for k in range(count):
        position[k] = starts[columns[k]]
        for row in range(first):
            if lengths[columns[k], row] > 0:
                position[k] += lengths[columns[k], row]
    at = np.int64(0)
    for row in range(first, last):
        out[at] = (count >> 8) & 255
        out[at + 1] = count & 255
        at += 2
        for k in range(count):
            length = np.int64(lengths[columns[k], row])
            if length < 0:
                if length != -1:
                    return np.int64(-1)
                _put32(out, at, -1)
                at += 4
                continue
            _put32(out, at, length)
            copy_bytes(data, position[k], length, out, at + 4)
            position[k] += length
            at += 4 + length
    return at
