"""Loops of `spark_apply.sets.collapse`: net changes per key, changed columns, runs of independent rows.

Images come as offset and length matrices of shape (columns, rows) into shared bytes (`headrace.lcr.cells`).
"""

# Numba compiles these: its types are inferred at the first call.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.lcr.byte_kernels import same_bytes
from spark_apply.keys.hash_kernels import hash_bytes, mix

_NULL, _UNCHANGED, _ABSENT = -1, -2, -3  # `headrace.lcr.batch`
_INSERT, _UPDATE, _DELETE = 1, 2, 3  # `headrace.lcr.batch.Command`

# The net change of a key. The first three are commands.
NET_NOTHING = 0
NET_DELETE_INSERT = 4
NET_GUARD = 5  # inserted and deleted again: nothing to write, but the row must not have existed before

# Reasons why changes cannot be collapsed.
COLLAPSED = 0
KEY_CHANGED = 1
KEY_MISSING = 2
HASH_TIE = 3
ABNORMAL = 4  # an insert after an insert, a change after a delete, old values that the change before did not leave, ...


@njit(cache=True)
def mark_columns(data, command, old_offsets, old_lengths, new_offsets, new_lengths, changed, unset):
    """Fill UNCHANGED new values from old ones; mark changed columns and columns without a new value. UPDATE rows only.

    Args:
        data: uint8, bytes of both images' values.
        command: uint8[n], `Command` of each row.
        old_offsets: int64[c, n], where each old value begins in `data`.
        old_lengths: int32[c, n], bytes of each, or NULL, UNCHANGED, ABSENT.
        new_offsets: int64[c, n], of the new values; filled in.
        new_lengths: int32[c, n], of the new values; filled in.
        changed: uint64[n, words], one bit per column, zero at the start. Set where the two values differ; a column
            without an old value counts as changed if it has a new one.
        unset: uint64[n, words], one bit per column, zero at the start. Set where there is neither value.
    """
    columns, rows = new_lengths.shape
    for column in range(columns):
        word = column >> 6
        bit = np.uint64(1) << np.uint64(column & 63)
        for i in range(rows):
            if command[i] != _UPDATE:
                continue
            new = new_lengths[column, i]
            old = old_lengths[column, i]
            if new < _NULL:
                if old >= _NULL:
                    new_lengths[column, i] = old
                    new_offsets[column, i] = old_offsets[column, i]
                else:
                    unset[i, word] |= bit
            elif old != new or (new > 0 and not same_bytes(data, new_offsets[column, i], old_offsets[column, i], new)):
                changed[i, word] |= bit


@njit(cache=True)
def find_keys(data, command, old_offsets, old_lengths, new_offsets, new_lengths, match, key_offsets, key_lengths):
    """Find each row's key values.

    An UPDATE without old key values kept its key: its new key values are used, and also filled in as old ones.

    Args:
        data: uint8, bytes of both images' values.
        command: uint8[n], `Command` of each row.
        old_offsets: int64[c, n], where each old value begins in `data`; filled in.
        old_lengths: int32[c, n], bytes of each, or NULL, UNCHANGED, ABSENT; filled in.
        new_offsets: int64[c, n], of the new values.
        new_lengths: int32[c, n], of the new values.
        match: int64[k], the columns that find a row.
        key_offsets: int64[k, n], where each key value begins in `data`. Written.
        key_lengths: int32[k, n], written.

    Returns:
        COLLAPSED: the keys identify the rows; otherwise the reason, KEY_MISSING or KEY_CHANGED.
    """
    rows = command.shape[0]
    answer = COLLAPSED
    for place in range(match.shape[0]):
        column = match[place]
        for i in range(rows):
            old, new = old_lengths[column, i], new_lengths[column, i]
            if command[i] == _INSERT:
                key_offsets[place, i] = new_offsets[column, i]
                key_lengths[place, i] = new
                if new < _NULL:
                    answer = KEY_MISSING
                continue
            if old < _NULL and command[i] == _UPDATE:
                old = new
                old_offsets[column, i] = new_offsets[column, i]
                old_lengths[column, i] = new
            elif command[i] == _UPDATE and new >= _NULL:
                same = old == new and (
                    old <= 0 or same_bytes(data, old_offsets[column, i], new_offsets[column, i], old)
                )
                if not same and answer == COLLAPSED:
                    answer = KEY_CHANGED
            key_offsets[place, i] = old_offsets[column, i]
            key_lengths[place, i] = old
            if old < _NULL:
                answer = KEY_MISSING
    return answer


@njit(cache=True)
def hash_rows(data, offsets, lengths, columns, seed, out):
    """Hash the raw bytes of some columns of every row; 0 where a value is missing.

    Args:
        data: uint8, bytes of all values.
        offsets: int64[c, n], where each value begins in `data`.
        lengths: int32[c, n], bytes of each, or NULL, UNCHANGED, ABSENT.
        columns: int64[k], which columns.
        seed: uint64, distinguishes the keys of one table.
        out: uint64[n], written; odd, or 0 where a value is UNCHANGED or ABSENT.
    """
    for i in range(out.shape[0]):
        state = seed
        known = True
        for place in range(columns.shape[0]):
            column = columns[place]
            length = np.int64(lengths[column, i])
            if length < _NULL:
                known = False
                break
            if length == _NULL:  # noqa: SIM108
                state = mix(state, np.uint64(1))
            else:
                state = hash_bytes(data, offsets[column, i], length, mix(state, np.uint64(2)))
        out[i] = (state | np.uint64(1)) if known else np.uint64(0)


@njit(cache=True)
def _copy_image(offsets, lengths, source, target):
    for column in range(lengths.shape[0]):
        offsets[column, target] = offsets[column, source]
        lengths[column, target] = lengths[column, source]


@njit(cache=True)
def _follows(data, old_offsets, old_lengths, new_offsets, new_lengths, later, earlier):
    """Return whether the old values of a row are those that an earlier row of its key left."""
    for column in range(old_lengths.shape[0]):
        length = old_lengths[column, later]
        if length < _NULL:
            continue
        if length != new_lengths[column, earlier]:
            return False
        if length > 0 and not same_bytes(data, old_offsets[column, later], new_offsets[column, earlier], length):
            return False
    return True


@njit(cache=True)
def _merge_new(offsets, lengths, changed, unset, source, target):
    for column in range(lengths.shape[0]):
        length = lengths[column, source]
        if length >= _NULL:
            offsets[column, target] = offsets[column, source]
            lengths[column, target] = length
    for word in range(changed.shape[1]):
        changed[target, word] |= changed[source, word]
        unset[target, word] &= unset[source, word]


@njit(cache=True)
def net_changes(
    data,
    command,
    hashes,
    key_offsets,
    key_lengths,
    old_offsets,
    old_lengths,
    new_offsets,
    new_lengths,
    changed,
    unset,
    net,
):
    """Reduce the changes of each key to one, in the place of the key's first row.

    Old values stay those of the first row; new values, `changed` and `unset` are merged into it.

    Args:
        data: uint8, bytes of all values.
        command: uint8[n], `Command` of each row, in source order.
        hashes: uint64[n], of the key values, from `hash_rows`.
        key_offsets: int64[k, n], where each key value begins in `data`.
        key_lengths: int32[k, n], bytes of each, or NULL.
        old_offsets: int64[c, n], of the old values; merged in place, like the next five.
        old_lengths: int32[c, n].
        new_offsets: int64[c, n], of the new values.
        new_lengths: int32[c, n].
        changed: uint64[n, words], from `mark_columns`.
        unset: uint64[n, words], from `mark_columns`.
        net: uint8[n], zero at the start: the net change in each row's place, NET_NOTHING for all but the first row of a
            key.

    Returns:
        COLLAPSED, or the reason why not: HASH_TIE or ABNORMAL. The images are then partly merged: use fresh ones.
    """
    rows = command.shape[0]
    size = 16
    while size < 2 * rows:
        size *= 2
    mask = np.uint64(size - 1)
    slots = np.full(size, -1, np.int32)
    for i in range(rows):
        place = (hashes[i] >> np.uint64(1)) & mask
        while slots[place] >= 0 and hashes[slots[place]] != hashes[i]:
            place = (place + np.uint64(1)) & mask
        if slots[place] < 0:
            slots[place] = i
            net[i] = command[i]
            continue
        first = slots[place]
        for k in range(key_lengths.shape[0]):
            length = key_lengths[k, i]
            if length != key_lengths[k, first]:
                return HASH_TIE
            if length > 0 and not same_bytes(data, key_offsets[k, i], key_offsets[k, first], length):
                return HASH_TIE
        state = net[first]
        if command[i] == _INSERT:
            if state == _DELETE:
                net[first] = NET_DELETE_INSERT
            elif state == NET_GUARD:
                net[first] = _INSERT
            else:
                return ABNORMAL
            _copy_image(new_offsets, new_lengths, i, first)
            continue
        if state not in (_INSERT, _UPDATE, NET_DELETE_INSERT):
            return ABNORMAL
        if not _follows(data, old_offsets, old_lengths, new_offsets, new_lengths, i, first):
            return ABNORMAL
        if command[i] == _UPDATE:
            _merge_new(new_offsets, new_lengths, changed, unset, i, first)
        elif state == _INSERT:
            net[first] = NET_GUARD
            _copy_image(old_offsets, old_lengths, i, first)
        else:
            net[first] = _DELETE
    return COLLAPSED


@njit(cache=True, inline="always")
def _place(seen, stamp, run, value, mask):
    """Return the place of a value of this run in the open-addressing table, or the place to put it."""
    place = (value >> np.uint64(1)) & mask
    while stamp[place] == run and seen[place] != value:
        place = (place + np.uint64(1)) & mask
    return place


@njit(cache=True)
def cut_runs(command, old_hashes, new_hashes, unset, keyless, runs):
    """Number the runs of consecutive rows that can be written as one set without changing the outcome.

    A run ends where the command changes, where an UPDATE has new values for other columns, and before a row one of
    whose keys occurred in the run.

    Args:
        command: uint8, shape (rows,).
        old_hashes: uint64, shape (keys, rows); 0: unknown or missing.
        new_hashes: uint64, shape (keys, rows); 0: unknown or missing.
        unset: uint64, shape (rows, words).
        keyless: rows are found by all their values: equal old values mean different rows, and only a row that
            an UPDATE of the run produced must not be found again.
        runs: int32, shape (rows,), the output.
    """
    keys, rows = old_hashes.shape
    size = 16
    while size < 4 * keys * rows:
        size *= 2
    mask = np.uint64(size - 1)
    seen = np.zeros(size, np.uint64)
    stamp = np.full(size, -1, np.int32)
    run = np.int32(0)
    for i in range(rows):
        ends = i > 0 and command[i] != command[i - 1]
        if i > 0 and not ends and command[i] == _UPDATE:
            for word in range(unset.shape[1]):
                ends = ends or unset[i, word] != unset[i - 1, word]
        if not ends:
            for key in range(keys):
                for image in range(2):
                    if keyless and image == 1:
                        continue
                    value = new_hashes[key, i] if image else old_hashes[key, i]
                    if value == 0:
                        continue
                    place = _place(seen, stamp, run, value, mask)
                    ends = ends or stamp[place] == run
        if ends:
            run += np.int32(1)
        runs[i] = run
        for key in range(keys):
            for image in range(2):
                if keyless and image == 0:
                    continue
                value = new_hashes[key, i] if image else old_hashes[key, i]
                if value == 0:
                    continue
                place = _place(seen, stamp, run, value, mask)
                seen[place] = value
                stamp[place] = run
