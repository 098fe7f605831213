"""Loops over values addressed by (offset, length), for `headrace.lcr.cells`."""

# Numba compiles these and infers their types at the first call.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.lcr.byte_kernels import copy_bytes


@njit(cache=True)
def place_rows(lengths, starts, base, rows, out_offsets, out_lengths):
    """Write a block's lengths, and offsets shifted by `base`, into the columns `rows` of the two outputs.

    Args:
        lengths: int32[c, m], of the block's m rows.
        starts: int64[c + 1], first byte of each column in the block.
        base: first byte of the block in the joined bytes.
        rows: int32[m], the place of each of the block's rows among the n.
        out_offsets: int64[c, n], written.
        out_lengths: int32[c, n], written.
    """
    columns, count = lengths.shape
    for column in range(columns):
        offset = starts[column] + base
        for i in range(count):
            length = lengths[column, i]
            row = rows[i]
            out_offsets[column, row] = offset
            out_lengths[column, row] = length
            if length > 0:
                offset += length


@njit(cache=True)
def gather_rows(data, offsets, lengths, rows, wanted, absent):
    """Copy `rows` of the columns `wanted` into a separate block; other columns become `absent`.

    Args:
        data: uint8, bytes of all values.
        offsets: int64[c, n], first byte of each value in `data`.
        lengths: int32[c, n], bytes of each, or NULL, UNCHANGED, ABSENT.
        rows: int32[k], the rows, in the wanted order.
        wanted: bool[c], the columns.
        absent: ABSENT, as int32.

    Returns:
        lengths: int32[c, k].
        starts: int64[c + 1].
        data: uint8, the bytes, column after column.
    """
    columns = lengths.shape[0]
    count = rows.shape[0]
    out_lengths = np.empty((columns, count), np.int32)
    starts = np.empty(columns + 1, np.int64)
    total = np.int64(0)
    for column in range(columns):
        starts[column] = total
        if wanted[column]:
            for i in range(count):
                length = lengths[column, rows[i]]
                out_lengths[column, i] = length
                if length > 0:
                    total += length
        else:
            for i in range(count):
                out_lengths[column, i] = absent
    starts[columns] = total
    out = np.empty(total, np.uint8)
    position = np.int64(0)
    for column in range(columns):
        if wanted[column]:
            position = _copy_spans(data, offsets[column], rows, out_lengths[column], out, position)
    return out_lengths, starts, out


@njit(cache=True)
def _copy_spans(data, offsets, rows, lengths, out, position):
    """Copy a column's values, adjacent ones at once.

    Args:
        data: uint8, bytes of all values.
        offsets: int64[n], first byte of each value.
        rows: int32[k], the values to copy.
        lengths: int32[k], their lengths.
        out: uint8, written.
        position: first written byte.

    Returns:
        The position after the last written byte.
    """
    first = last = np.int64(0)
    for i in range(rows.shape[0]):
        length = np.int64(lengths[i])
        if length <= 0:
            continue
        offset = offsets[rows[i]]
        if offset != last:
            copy_bytes(data, first, last - first, out, position)
            position += last - first
            first = offset
        last = offset + length
    copy_bytes(data, first, last - first, out, position)
    return position + last - first


@njit(cache=True)
def with_constants(lengths, data, starts, places, constant_lengths, constants):
    """Build a block of selected columns and of columns with one constant value in every row.

    Args:
        lengths: int32[c, n], of the values.
        data: uint8, their bytes.
        starts: int64[c + 1], first byte of each column.
        places: int64[k], for each new column the old column that it copies; -1: the next constant.
        constant_lengths: int32[a], bytes of each constant, or NULL, UNCHANGED, ABSENT.
        constants: uint8, the bytes of all constants.

    Returns:
        lengths: int32[k, n].
        data: uint8.
        starts: int64[k + 1].
    """
    columns, count = places.shape[0], lengths.shape[1]
    out_starts = np.zeros(columns + 1, np.int64)
    constant = 0
    for column in range(columns):
        place = places[column]
        if place >= 0:
            size = starts[place + 1] - starts[place]
        else:
            size = count * max(np.int64(constant_lengths[constant]), np.int64(0))
            constant += 1
        out_starts[column + 1] = out_starts[column] + size
    out_lengths = np.empty((columns, count), np.int32)
    out = np.empty(out_starts[columns], np.uint8)
    constant, begin = 0, np.int64(0)
    for column in range(columns):
        place, at = places[column], out_starts[column]
        size = out_starts[column + 1] - at
        if place >= 0:
            out_lengths[column] = lengths[place]
            copy_bytes(data, starts[place], size, out, at)
            continue
        length = np.int64(constant_lengths[constant])
        constant += 1
        out_lengths[column] = length
        if size:  # without rows there are no bytes
            copy_bytes(constants, begin, length, out, at)
            begin += length
            done = length
            while done < size:  # twice as much in each round
                more = min(done, size - done)
                copy_bytes(out, at, more, out, at + done)
                done += more
    return out_lengths, out, out_starts
