"""Hashes of rows by transaction, and the map from a hash to the last group that had it."""

# Numba compiles these: its types are inferred at the first call.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import numpy as np
from numba import njit

from spark_apply.keys.hash_kernels import mix

_SEEN_WORDS = 4096  # 32 KB, a power of two: with the 10,000 rows of a group, at most one in twenty matches by chance


@njit(cache=True)
def sort_by_transaction(hashes, transactions, count):
    """Sort hashes by their transactions, stably.

    Args:
        hashes: uint64[k].
        transactions: int32[k], index of each hash's transaction.
        count: number of transactions.

    Returns:
        The hashes, and int64[count + 1]: transaction i has the hashes from first[i] to first[i + 1].
    """
    first = np.zeros(count + 1, np.int64)
    for i in range(transactions.shape[0]):
        first[transactions[i] + 1] += 1
    for i in range(count):
        first[i + 1] += first[i]
    place = first[:count].copy()
    out = np.empty_like(hashes)
    for i in range(hashes.shape[0]):
        transaction = transactions[i]
        out[place[transaction]] = hashes[i]
        place[transaction] += 1
    return out, first


@njit(cache=True)
def track(hashes, group, base, keys, groups, users, last_users, found):
    """Put a group's hashes into the map; mark the unfinished groups that it depends on.

    A row's key depends on the last group that has it. Exclusive use depends on the last exclusive use and on every use
    since then. Use depends on the last exclusive use. Uses are bits, one per group number modulo 64. With more than 64
    unfinished groups, or an older use, some groups wait without need.

    Args:
        hashes: uint64, low bits as in `spark_apply.dependencies.hashes`.
        group: number of the group.
        base: number of the lowest unfinished group.
        keys: uint64, the map; its size is a power of two and at least twice what it will hold. 0: free. Exclusive use
            has the key of use.
        groups: int64, last group of each key; for use, the last group with exclusive use.
        users: uint64, groups with use of each key since then, as bits.
        last_users: int64, the last of these groups.
        found: bool, shape (window,); found[g - base] is set when the group depends on g.

    Returns:
        Number of keys that are new in the map.
    """
    mask = np.uint64(keys.shape[0] - 1)
    window = _bits_of(base, group)
    own = np.uint64(1) << np.uint64(group % 64)
    added = 0
    for i in range(hashes.shape[0]):
        key = hashes[i]
        if key & np.uint64(1):
            key &= ~np.uint64(2)
        elif key == 0:
            key = np.uint64(2)
        place = (key >> np.uint64(1)) & mask
        while keys[place] != key and keys[place] != 0:
            place = (place + np.uint64(1)) & mask
        if keys[place] == 0:
            keys[place] = key
            added += 1
        else:
            last = groups[place]
            if base <= last < group:
                found[last - base] = True
        if not hashes[i] & np.uint64(1):
            groups[place] = group
        elif hashes[i] & np.uint64(2):
            for other in range(base, min(group, last_users[place] + 1)):
                if users[place] & (np.uint64(1) << np.uint64(other % 64)):
                    found[other - base] = True
            groups[place], users[place], last_users[place] = group, np.uint64(0), 0
        elif groups[place] != group:
            # Bits of finished groups are dropped: without them the others are unambiguous.
            users[place] = own if last_users[place] < base else (users[place] & window) | own
            last_users[place] = group
    return added


@njit(cache=True)
def _bits_of(first, last):
    """Return the bits of the groups from `first` up to, but without, `last`."""
    if last - first >= 64:
        return ~np.uint64(0)
    bits = np.uint64(0)
    for number in range(first, last):
        bits |= np.uint64(1) << np.uint64(number % 64)
    return bits


@njit(cache=True)
def refill(keys, groups, users, last_users, live, out_keys, out_groups, out_users, out_last_users):
    """Move the keys of unfinished groups into an empty map.

    Args:
        keys: uint64[s], the full map's slots; 0: empty.
        groups: int64[s], as in `track`.
        users: uint64[s], as in `track`.
        last_users: int64[s], as in `track`.
        live: bool[s], the slots that are moved; none of them is empty.
        out_keys: uint64[z], zeros; z is a power of two, larger than the number of keys that stay. Written.
        out_groups: int64[z], written.
        out_users: uint64[z], written.
        out_last_users: int64[z], written.

    Returns:
        Number of keys in the new map.
    """
    mask = np.uint64(out_keys.shape[0] - 1)
    kept = 0
    for i in range(keys.shape[0]):
        if not live[i]:
            continue
        place = (keys[i] >> np.uint64(1)) & mask
        while out_keys[place] != 0:
            place = (place + np.uint64(1)) & mask
        out_keys[place] = keys[i]
        out_groups[place] = groups[i]
        out_users[place] = users[i]
        out_last_users[place] = last_users[i]
        kept += 1
    return kept


@njit(cache=True)
def follow_held(hashes, first, behind):
    """Find the transactions that depend on a held one of the same group.

    Args:
        hashes: uint64, in the order of their transactions, low bits as in `spark_apply.dependencies.hashes`.
        first: int64, shape (t + 1,).
        behind: int64, shape (t,): -1 free; else held (its own index when it fails or waits for another
            group's error). Set for every transaction that must follow: the index of the last one it needs.
    """
    size = 16
    while size < 4 * hashes.shape[0]:
        size *= 2
    mask = np.uint64(size - 1)
    keys = np.zeros(size, np.uint64)
    owners = np.zeros(size, np.int64)
    # One bit per hash of each key that is present. Most keys of most groups are absent, and this array stays in the
    # processor's cache.
    seen = np.zeros(_SEEN_WORDS, np.uint64)
    for transaction in range(first.shape[0] - 1):
        if behind[transaction] < 0:
            last = np.int64(-1)
            for i in range(first[transaction], first[transaction + 1]):
                wanted = hashes[i] ^ np.uint64(2) if hashes[i] & np.uint64(1) else hashes[i]
                place = mix(np.uint64(0), wanted)
                if (
                    seen[(place >> np.uint64(6)) & np.uint64(_SEEN_WORDS - 1)] >> (place & np.uint64(63)) & np.uint64(1)
                    == 0
                ):
                    continue
                place &= mask
                while keys[place] != 0 and keys[place] != wanted:
                    place = (place + np.uint64(1)) & mask
                if keys[place] == wanted and wanted != 0:
                    last = max(last, owners[place])
            behind[transaction] = last
        if behind[transaction] < 0:
            continue
        for i in range(first[transaction], first[transaction + 1]):
            for twin in range(2):
                key = hashes[i]
                if twin == 1:
                    # Exclusive use of a table counts as use of the table too.
                    if key & np.uint64(3) != np.uint64(3):
                        continue
                    key = key ^ np.uint64(2)
                if key == 0:
                    continue
                place = mix(np.uint64(0), key)
                seen[(place >> np.uint64(6)) & np.uint64(_SEEN_WORDS - 1)] |= np.uint64(1) << (place & np.uint64(63))
                place &= mask
                while keys[place] != 0 and keys[place] != key:
                    place = (place + np.uint64(1)) & mask
                keys[place] = key
                owners[place] = transaction
