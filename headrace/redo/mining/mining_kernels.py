"""Kernels of mining: from decoded log bytes to columns. Every array has a fixed dtype, so each kernel compiles once."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.lcr.byte_kernels import copy_bytes

# Errors of `classify`, in `found[ERROR]`; 0: none.
UNKNOWN_OBJECT = 1  # a row of an object that redo never described
WRONG_VALUES = 2  # a row whose number of values is not its table's number of columns

# Places in `found`.
KEPT_ROWS = 0
KEPT_BYTES = 1
ERROR = 2
ERROR_ROW = 3
ERROR_TRANSACTION = 4
DISCARDED_ROWS = 5

# Commands and images, as in headrace.lcr.batch.
_TRUNCATE = 4
DDL = 5  # a row of the log of DDL (`headrace.redo.mining.ddl_log`), which no LCR has as its command
_KEY = 1
_ABSENT = -3

# Bits of a column's forms in `gather`.
TEXT_FORM = 1
BINARY_FORM = 2


@njit(cache=True)
def classify(
    command,
    object_number,
    old_first,
    new_first,
    value_length,
    first_row,
    dropped,
    tag,
    objects,
    slots,
    columns,
    verdicts,
    table_keep,
    row_slot,
    kept,
    kept_rows,
    found,
):
    """Find each row's table, and keep the rows that the rules may want.

    Args:
        command, object_number, old_first, new_first, value_length, first_row: as in `DecodedChunk`; the command of rows
            of the log of DDL is `DDL`.
        dropped: uint8[t], the transaction was mined before.
        tag: int64[t], place of the transaction's tag; -1: NULL.
        objects: int64[m] ascending, known objects.
        slots: int32[m], their places in the miner's table list.
        columns: int64[m], their numbers of columns.
        verdicts: uint8[m, k + 1], whether rows are kept, by the place of their tag; NULL last.
        table_keep: uint8[n], whether rows about whole tables, TRUNCATE and DDL, are kept; empty when there are none.
        row_slot: int32[n], out: the table's place; -1 for TRUNCATE and DDL.
        kept: int64[n], out: the kept rows, ascending.
        kept_rows: int64[t], out: kept rows per transaction.
        found: int64[6], out: totals and the first error, at the places above.
    """
    count = 0
    size = 0
    discarded = 0
    last_object = -1
    place = -1
    values_end = -1
    for transaction in range(first_row.shape[0] - 1):
        before = count
        for row in range(first_row[transaction], first_row[transaction + 1]):
            first = old_first[row] if old_first[row] >= 0 else new_first[row]
            # Values are in row order: the start of this row's values shows whether the row before had the right number.
            if values_end >= 0 and first >= 0 and first != values_end:
                found[ERROR], found[ERROR_ROW], found[ERROR_TRANSACTION] = WRONG_VALUES, row - 1, transaction
                return
            if first >= 0:
                values_end = -1
            if dropped[transaction]:
                continue
            if command[row] >= _TRUNCATE:
                if table_keep[row]:
                    row_slot[row] = -1
                    kept[count] = row
                    count += 1
                else:
                    discarded += 1
                continue
            if object_number[row] != last_object:
                last_object = object_number[row]
                place = np.searchsorted(objects, last_object)
                if place == objects.shape[0] or objects[place] != last_object:
                    found[ERROR], found[ERROR_ROW], found[ERROR_TRANSACTION] = UNKNOWN_OBJECT, row, transaction
                    return
            if not verdicts[place, tag[transaction]]:
                discarded += 1
                continue
            values_end = first
            if old_first[row] >= 0:
                values_end += columns[place]
            if new_first[row] >= 0:
                if old_first[row] >= 0 and new_first[row] != values_end:
                    found[ERROR], found[ERROR_ROW], found[ERROR_TRANSACTION] = WRONG_VALUES, row, transaction
                    return
                values_end += columns[place]
            if values_end > value_length.shape[0]:
                found[ERROR], found[ERROR_ROW], found[ERROR_TRANSACTION] = WRONG_VALUES, row, transaction
                return
            for value in range(first, values_end):
                if value_length[value] > 0:
                    size += value_length[value]
            row_slot[row] = slots[place]
            kept[count] = row
            count += 1
        kept_rows[transaction] = count - before
    if values_end >= 0 and values_end != value_length.shape[0]:
        found[ERROR], found[ERROR_ROW] = WRONG_VALUES, command.shape[0] - 1
        found[ERROR_TRANSACTION] = first_row.shape[0] - 2
    found[KEPT_ROWS], found[KEPT_BYTES], found[DISCARDED_ROWS] = count, size, discarded


@njit(cache=True)
def compact(data, old_first, new_first, columns, value_offset, value_length, value_binary, size):
    """Copy the values of some rows next to each other, so that the other log bytes can be released.

    Args:
        data: uint8, the log bytes.
        old_first, new_first: int64[n], of the kept rows; changed in place to point into the copies.
        columns: int64[n], columns of each row's table; 0 for TRUNCATE and DDL.
        value_offset, value_length, value_binary: arrays of all decoded rows.
        size: bytes of the values of the kept rows.

    Returns:
        (data, value_offset, value_length, value_binary) of the kept rows.
    """
    count = 0
    for row in range(old_first.shape[0]):
        count += columns[row] * (np.int64(old_first[row] >= 0) + np.int64(new_first[row] >= 0))
    out = np.empty(size, np.uint8)
    out_offset = np.empty(count, np.int64)
    out_length = np.empty(count, np.int32)
    out_binary = np.empty(count, np.bool_)
    value = 0
    written = 0
    for row in range(old_first.shape[0]):
        for image in range(2):
            first = old_first[row] if image == 0 else new_first[row]
            if first < 0:
                continue
            if image == 0:
                old_first[row] = value
            else:
                new_first[row] = value
            for source in range(first, first + columns[row]):
                length = value_length[source]
                out_offset[value] = written
                out_length[value] = length
                out_binary[value] = value_binary[source]
                if length > 0:
                    copy_bytes(data, value_offset[source], length, out, written)
                    written += length
                value += 1
    return out, out_offset, out_length, out_binary


@njit(cache=True)
def byte_range(value_offset, value_length):
    """Return where the bytes of these values begin and end in the log bytes; (0, 0) without bytes.

    Args:
        value_offset: int64[v], start of each value in the log bytes; ascending over values with bytes.
        value_length: int32[v], bytes of each; at most 0: it has none.
    """
    low = np.int64(0)
    high = np.int64(0)
    for value in range(value_offset.shape[0]):
        if value_length[value] > 0:
            low = value_offset[value]
            break
    for value in range(value_offset.shape[0] - 1, -1, -1):
        if value_length[value] > 0:
            high = value_offset[value] + value_length[value]
            break
    return low, high


@njit(cache=True)
def group_rows(slot, command, slot_count):
    """Sort rows by (slot, command), stable; rows with slot -1 are skipped.

    Args:
        slot: int32[n], place of each row's table in the miner's table list; -1 for TRUNCATE and DDL.
        command: uint8[n], `Command` of each row.
        slot_count: length of the table list.

    Returns:
        order: int64[k], row numbers.
        key: int64[g], slot * 8 + command of each group, ascending.
        start: int64[g + 1], start of each group in `order`.
    """
    counts = np.zeros(slot_count * 8 + 1, np.int64)
    for row in range(slot.shape[0]):
        if slot[row] >= 0:
            counts[np.int64(slot[row]) * 8 + command[row] + 1] += 1
    groups = 0
    for place in range(1, counts.shape[0]):
        if counts[place] > 0:
            groups += 1
    key = np.empty(groups, np.int64)
    start = np.zeros(groups + 1, np.int64)
    group = 0
    total = 0
    for place in range(1, counts.shape[0]):
        if counts[place] > 0:
            key[group] = place - 1
            total += counts[place]
            start[group + 1] = total
            group += 1
            counts[place] = total - counts[place]
    order = np.empty(total, np.int64)
    for row in range(slot.shape[0]):
        if slot[row] >= 0:
            place = np.int64(slot[row]) * 8 + command[row] + 1
            order[counts[place]] = row
            counts[place] += 1
    return order, key, start


@njit(cache=True)
def gather(data, value_offset, value_length, value_binary, first, old_image, is_key):
    """Turn the values of rows of one table into columns.

    Args:
        data: uint8, the log bytes.
        value_offset, value_length, value_binary: arrays of all decoded values.
        first: int64[n], index of each row's first value; -1: the row has none, every column is ABSENT.
        old_image: uint8[n]; in a KEY image columns outside the key are ABSENT. Zeros for new values.
        is_key: uint8[c].

    Returns:
        lengths: int32[c, n].
        out: uint8, the bytes, column after column.
        starts: int64[c + 1].
        forms: uint8[c], forms of the column's values: TEXT_FORM, BINARY_FORM, both or none.
    """
    columns = is_key.shape[0]
    rows = first.shape[0]
    lengths = np.empty((columns, rows), np.int32)
    forms = np.zeros(columns, np.uint8)
    starts = np.zeros(columns + 1, np.int64)
    for row in range(rows):
        place = first[row]
        if place < 0:
            for column in range(columns):
                lengths[column, row] = _ABSENT
            continue
        is_key_image = old_image[row] == _KEY
        for column in range(columns):
            length = value_length[place + column]
            if is_key_image and not is_key[column]:
                length = np.int32(_ABSENT)
            lengths[column, row] = length
            if length >= 0:
                starts[column + 1] += length
                forms[column] |= BINARY_FORM if value_binary[place + column] else TEXT_FORM
    for column in range(columns):
        starts[column + 1] += starts[column]
    out = np.empty(starts[columns], np.uint8)
    for column in range(columns):
        written = starts[column]
        for row in range(rows):
            length = lengths[column, row]
            if length > 0:
                copy_bytes(data, value_offset[first[row] + column], length, out, written)
                written += length
    return lengths, out, starts, forms
