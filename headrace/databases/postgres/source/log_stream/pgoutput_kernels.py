"""Numba kernels over framed pgoutput messages: `scan` for the stream's reader, `decode` for the decoder.

A frame is a CopyData message as the server sends it: 'd', int32 length (itself included), then 'w' and 24 bytes of
positions before a pgoutput message (protocol version 1), or 'k' for a keepalive. All integers are big-endian.

Kernels keep their position in an int64 state array, so that they can stop for work that Python does better (table
descriptions, new origins, messages) and continue. Counters advance only at the end of a message: whatever stops a
kernel inside a message leaves the state at its beginning.

Longer than 500 lines: both kernels read the same frames.
"""
# ruff: noqa: SIM109, SIM110 - `in` and `all` over tuples are loops to numba

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = [
    "AT_END",
    "BINARY",
    "BROKEN",
    "FULL",
    "MESSAGE",
    "MESSAGE_CONTENT_MAX",
    "MESSAGE_HEAD_BYTES",
    "ORIGIN",
    "RELATION",
    "SCAN_STATE_SIZE",
    "STATE_SIZE",
    "TEXT",
    "TRUNCATE",
    "TYPE",
    "WRONG_FORM",
    "decode",
    "find_descriptions",
    "scan",
]

# Why `decode` stopped.
AT_END = 0  # no whole frame is left
FULL = 1  # rows_max, or an output array is full
RELATION = 2  # a table description is next
TYPE = 3  # a type's name is next
ORIGIN = 4  # an origin that `origin_*` does not have is next
TRUNCATE = 5  # a TRUNCATE's row was added; its details are at STATE_PAYLOAD
MESSAGE = 6  # a message of ours is next
WRONG_FORM = 7  # a value is not in the form (binary or text) that its column's description says
BROKEN = 8  # not pgoutput

# State of `decode`.
STATE_POSITION = 0  # of the next frame
STATE_ROWS = 1
STATE_VALUES = 2
STATE_TRANSACTIONS = 3
STATE_OPEN = 4  # 1: a transaction is open
STATE_TRANSACTION_ID = 5  # of the open transaction, as the three below
STATE_ORDER_SCN = 6
STATE_COMMIT_TIME = 7
STATE_TAG = 8
STATE_PAYLOAD = 9  # start of the pgoutput message that Python must read
STATE_FRAME_END = 10  # end of its frame
STATE_COLUMN = 11  # WRONG_FORM: number of the column
STATE_SIZE = 12

# State of `scan`.
SCAN_OPEN = 0  # 1: a transaction is open after the taken data; kept from call to call
SCAN_END_SCN = 1  # highest end of a commit, or of a keepalive outside transactions; 0: none
SCAN_COMMIT_SCN = 2  # of the last commit; 0: none
SCAN_COMMIT_END = 3  # end of its frame in the taken data
SCAN_OBJECTS = 4  # number of `objects`
SCAN_TOLD = 5  # last position in any message of the server
SCAN_WANTS_ANSWER = 6  # a keepalive wants one
SCAN_FOLLOWS = 7  # what follows where the scan stopped: MORE, OTHER, DAMAGED
SCAN_KEPT = 8  # end of the taken data
SCAN_TRUNCATES = 9  # 1: a TRUNCATE is in the taken data
SCAN_TRANSACTION = 10  # number of the transaction that began last; kept from call to call
SCAN_DESCRIBERS = 11  # number of `describers`
SCAN_COMMITTED = 12  # number of the transaction of the last commit; 0: none
SCAN_SKIP = 13  # outstanding bytes of a dropped message; kept from call to call
SCAN_STATE_SIZE = 14

MORE = 0  # nothing, or part of a frame
OTHER = 1  # a message of another kind: an error, a notice, the end of the stream
DAMAGED = 2

# Form of a column's values, per column of a known table.
TEXT = 0
BINARY = 1

# headrace.lcr.batch: Command, OldImage, lengths without bytes.
_INSERT, _UPDATE, _DELETE, _TRUNCATE = 1, 2, 3, 4
_NONE, _KEY, _FULL = 0, 1, 2
_NULL, _UNCHANGED, _ABSENT = -1, -2, -3

# Microseconds from the Unix epoch to PostgreSQL's, 2000-01-01.
EPOCH_US = 946_684_800_000_000

_D, _W, _K = ord("d"), ord("w"), ord("k")
_BEGIN, _COMMIT, _ORIGIN, _RELATION, _TYPE = ord("B"), ord("C"), ord("O"), ord("R"), ord("Y")
_I, _U, _DEL, _T, _M = ord("I"), ord("U"), ord("D"), ord("T"), ord("M")
_OLD_KEY, _OLD_FULL, _NEW = ord("K"), ord("O"), ord("N")
_VALUE_NULL, _VALUE_UNCHANGED, _VALUE_TEXT, _VALUE_BINARY = ord("n"), ord("u"), ord("t"), ord("b")

# Only these logical messages are ours; others are skipped without leaving the kernel.
_PREFIX = np.frombuffer(b"headrace", np.uint8)

# Any role that may connect to a source can write logical messages of up to 1 GB. So the reader keeps only our own, and
# at most this much of their content: a marker of chaos tests has 4,096 bytes, a tag 2,000, a label 200. A truncated
# message is still too long to be a tag.
MESSAGE_CONTENT_MAX = 8192
_PREFIX_BYTES_MAX = 32  # the longest of ours is "headrace.marker"
_PREFIX_AT = 40  # in a frame: 'd', length, 'w' and its positions, 'M', flags, position
MESSAGE_HEAD_BYTES = _PREFIX_AT + _PREFIX_BYTES_MAX + 5 + MESSAGE_CONTENT_MAX
"""After this many bytes of a logical message's frame `scan` knows what to keep of it, and has it."""


@njit(cache=True, inline="always")
def _u16(b, i):
    return (np.int64(b[i]) << 8) | np.int64(b[i + 1])


@njit(cache=True, inline="always")
def _u32(b, i):
    return (np.int64(b[i]) << 24) | (np.int64(b[i + 1]) << 16) | (np.int64(b[i + 2]) << 8) | np.int64(b[i + 3])


@njit(cache=True, inline="always")
def _i64(b, i):
    return (_u32(b, i) << 32) | _u32(b, i + 4)


@njit(cache=True, inline="always")
def _put_u32(b, i, number):
    for k in range(4):
        b[i + k] = (number >> (24 - 8 * k)) & 0xFF


@njit(cache=True)
def _kept_message_end(b, i, end, filled):
    """Return the end of the part of a logical message's frame that is kept.

    Args:
        b: uint8.
        i, end: of the frame, with 'M' in it.
        filled: end of the received bytes.

    Returns:
        `end`: all of it; less: `MESSAGE_CONTENT_MAX` bytes of its content; 0: nothing, it is not ours; -1: undecided,
        more of it must arrive first.
    """
    unknown = np.int64(-1) if end > filled else end  # the decoder refuses a message that ends too early
    came = min(end, filled)
    at = i + _PREFIX_AT
    for k in range(_PREFIX.shape[0]):
        if at + k >= came:
            return unknown
        if b[at + k] != _PREFIX[k]:
            return np.int64(0)
    while at < came and b[at] != 0:
        at += 1
        if at - i - _PREFIX_AT > _PREFIX_BYTES_MAX:
            return np.int64(0)
    content = at + 5
    if content > came:
        return unknown
    if _u32(b, at + 1) <= MESSAGE_CONTENT_MAX or content + MESSAGE_CONTENT_MAX > came:
        return unknown
    return content + MESSAGE_CONTENT_MAX


@njit(cache=True)
def scan(buffer, start, filled, state, objects, describers):
    """Take the whole frames in `buffer[start:filled]`, dropping keepalives by moving later bytes over them.

    Logical messages that are not ours are dropped the same way, and long ones of ours are truncated. This happens
    before they have arrived completely: no buffer has to hold them, and redo does not get them. They are not counted: a
    transaction of only such messages is one without rows.

    Names of types ('Y') are only taken together with the table description after them, so that no reader of the data
    finds one without the other.

    Args:
        buffer: uint8, writable; data taken earlier precedes `start`.
        start: where to begin.
        filled: end of the bytes in the buffer.
        state: int64[SCAN_STATE_SIZE], in and out, the fields SCAN_*.
        objects: int64, object numbers of the table descriptions; when it is full the scan stops early.
        describers: int64, of the same length, numbers of the transactions with one of them or a TRUNCATE, each once.

    Returns:
        Where it stopped: the first byte that was not taken. Taken data ends at state[SCAN_KEPT].
    """
    is_open, end_scn, commit_scn = state[SCAN_OPEN], state[SCAN_END_SCN], state[SCAN_COMMIT_SCN]
    commit_end, found, told = state[SCAN_COMMIT_END], state[SCAN_OBJECTS], state[SCAN_TOLD]
    wants_answer, follows = state[SCAN_WANTS_ANSWER], MORE
    transaction, described = state[SCAN_TRANSACTION], state[SCAN_DESCRIBERS]
    i, kept = start + min(state[SCAN_SKIP], filled - start), start
    state[SCAN_SKIP] -= i - start
    types_at, types_kept = np.int64(-1), np.int64(-1)
    while i + 5 <= filled:
        if buffer[i] != _D:
            follows = OTHER
            break
        end = i + 1 + _u32(buffer, i + 1)
        if end - i > 30 and filled - i > 30 and buffer[i + 5] == _W and buffer[i + 30] == _M:
            kept_end = _kept_message_end(buffer, i, end, filled)
            if kept_end < 0:
                break
            if kept_end != end:
                types_at = -1
                if kept_end > 0:
                    _put_u32(buffer, i + 1, kept_end - i - 1)
                    _put_u32(buffer, kept_end - MESSAGE_CONTENT_MAX - 4, MESSAGE_CONTENT_MAX)
                    for k in range(kept_end - i):
                        buffer[kept + k] = buffer[i + k]
                    kept += kept_end - i
                state[SCAN_SKIP] = max(0, end - filled)
                i = min(end, filled)
                continue
        if end > filled:
            break
        kind = buffer[i + 5] if end > i + 5 else np.uint8(0)
        if kind == _K and end - i >= 23:
            walked = _i64(buffer, i + 6)
            told = max(told, walked)
            # Inside a transaction this position may be beyond the transaction's own commit.
            if is_open == 0:
                end_scn = max(end_scn, walked)
            wants_answer |= np.int64(buffer[i + 22])
            i = end
            continue
        if kind != _W or end - i < 31:
            follows = DAMAGED
            break
        p = i + 30
        what = buffer[p]
        if what == _TYPE:
            if types_at < 0:
                types_at, types_kept = i, kept
        else:
            if what == _RELATION or what == _T:
                if what == _RELATION and end - p < 5:
                    follows = DAMAGED
                    break
                is_listed = described > 0 and describers[described - 1] == transaction
                # Break before the names of its types count as taken: they belong to it.
                if (what == _RELATION and found == objects.shape[0]) or (
                    not is_listed and described == describers.shape[0]
                ):
                    break
                if not is_listed:
                    describers[described] = transaction
                    described += 1
            types_at = -1
            if what == _BEGIN:
                if end - p < 21:
                    follows = DAMAGED
                    break
                is_open = 1
                transaction = _u32(buffer, p + 17)
            elif what == _COMMIT:
                if end - p < 26:
                    follows = DAMAGED
                    break
                is_open = 0
                commit_scn = _i64(buffer, p + 10)
                state[SCAN_COMMITTED] = transaction
                commit_end = kept + end - i
                end_scn = max(end_scn, commit_scn)
                told = max(told, commit_scn)
            elif what == _RELATION:
                objects[found] = _u32(buffer, p + 1)
                found += 1
            elif what == _T:
                state[SCAN_TRUNCATES] = 1
        if kept != i:
            for k in range(end - i):
                buffer[kept + k] = buffer[i + k]
        kept += end - i
        i = end
    if types_at >= 0:
        # A keepalive between the names was dropped: moved bytes already precede the rest.
        if kept != i:
            for k in range(kept - types_kept):
                buffer[i - 1 - k] = buffer[kept - 1 - k]
            i -= kept - types_kept
        else:
            i = types_at
        kept = types_kept
    state[SCAN_OPEN], state[SCAN_END_SCN], state[SCAN_COMMIT_SCN] = is_open, end_scn, commit_scn
    state[SCAN_COMMIT_END], state[SCAN_OBJECTS], state[SCAN_TOLD] = commit_end, found, told
    state[SCAN_WANTS_ANSWER], state[SCAN_FOLLOWS], state[SCAN_KEPT] = wants_answer, follows, kept
    state[SCAN_TRANSACTION], state[SCAN_DESCRIBERS] = transaction, described
    return i


@njit(cache=True)
def find_descriptions(b, message_start, message_end):
    """Find the messages that describe tables ('R') and name types ('Y') in whole frames.

    Args:
        b: uint8.
        message_start, message_end: int64, outputs.

    Returns:
        (number found, which may exceed the outputs; end of the frames, -1: they are broken).
    """
    i, found, n = 0, 0, b.shape[0]
    while i + 5 <= n:
        end = i + 1 + _u32(b, i + 1)
        if b[i] != _D or end > n or end < i + 6:
            return found, -1
        if b[i + 5] == _W and end - i > 30 and (b[i + 30] == _RELATION or b[i + 30] == _TYPE):
            if found < message_start.shape[0]:
                message_start[found], message_end[found] = i + 30, end
            found += 1
        i = end
    return found, i if i == n else -1


@njit(cache=True, inline="always")
def _find_table(table_object, object_number):
    low, high = 0, table_object.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if table_object[middle] < object_number:
            low = middle + 1
        else:
            high = middle
    if low < table_object.shape[0] and table_object[low] == object_number:
        return low
    return -1


@njit(cache=True, inline="always")
def _find_origin(b, start, length, origin_first, origin_bytes):
    """Return which known origin has the name b[start : start + length]; -1: none."""
    for k in range(origin_first.shape[0] - 1):
        first = origin_first[k]
        if origin_first[k + 1] - first == length:
            same = True
            for j in range(length):
                if b[start + j] != origin_bytes[first + j]:
                    same = False
                    break
            if same:
                return k
    return -1


@njit(cache=True, inline="always")
def _is_ours(b, p, end):
    """Whether the prefix of the logical message at p begins with ours."""
    if end - p < 10 + _PREFIX.shape[0]:
        return False
    for k in range(_PREFIX.shape[0]):
        if b[p + 10 + k] != _PREFIX[k]:
            return False
    return True


@njit(cache=True)
def decode(
    b,
    state,
    rows_max,
    command,
    object_number,
    old_image,
    old_first,
    new_first,
    value_offset,
    value_length,
    value_binary,
    transaction_id,
    order_scn,
    commit_scn,
    commit_time,
    tag,
    first_row,
    table_object,
    table_first,
    table_form,
    origin_first,
    origin_bytes,
    origin_tag,
):
    """Decode frames from state[STATE_POSITION] on until something stops it (the codes at the top of the module).

    Args:
        b: uint8, the frames.
        state: int64[STATE_SIZE].
        rows_max: number of rows in the outputs at which to stop.
        command, object_number, old_image, old_first, new_first: per row, at least rows_max + 1 long.
        value_offset, value_length, value_binary: per value.
        transaction_id, order_scn, commit_scn, commit_time, tag, first_row: per transaction.
        table_object: int64[r], ascending; known tables.
        table_first: int64[r + 1], start of a table's columns in `table_form`.
        table_form: uint8, TEXT or BINARY per column.
        origin_first: int64[o + 1], start of a known origin's name in `origin_bytes`.
        origin_bytes: uint8.
        origin_tag: int16[o], index of the origin's tag; -1: NULL.

    Returns:
        Reason for stopping.
    """
    n = b.shape[0]
    i = state[STATE_POSITION]
    row, value, transaction = state[STATE_ROWS], state[STATE_VALUES], state[STATE_TRANSACTIONS]
    values_max = value_offset.shape[0]
    transactions_max = transaction_id.shape[0]
    table, table_number = -1, np.int64(-1)  # the last row's table, which most rows share
    why = AT_END
    end = i
    while i + 5 <= n:
        if b[i] != _D:
            why = BROKEN
            break
        end = i + 1 + _u32(b, i + 1)
        if end > n:
            break
        if end - i >= 6 and b[i + 5] == _K:
            i = end
            continue
        if end - i < 31 or b[i + 5] != _W:
            why = BROKEN
            break
        p = i + 30
        what = b[p]

        if what == _I or what == _U or what == _DEL:
            if state[STATE_OPEN] == 0 or end - p < 8:
                why = BROKEN
                break
            if row >= rows_max:
                why = FULL
                break
            number = _u32(b, p + 1)
            if number != table_number:
                table, table_number = _find_table(table_object, number), number
            q = p + 5
            old_at, new_at, image, v = np.int64(-1), np.int64(-1), _NONE, value
            while q < end:
                if end - q < 3:
                    why = BROKEN
                    break
                part = b[q]
                columns = _u16(b, q + 1)
                if v + columns > values_max:
                    why = FULL
                    break
                null = _NULL
                if part == _NEW and what != _DEL:
                    new_at = v
                elif part == _OLD_FULL:
                    old_at, image = v, _FULL
                elif part == _OLD_KEY:
                    # A key has no NULLs: a NULL here is not a key column, and its old value is unknown.
                    old_at, image, null = v, _KEY, _ABSENT
                else:
                    why = BROKEN
                    break
                q += 3
                first_form = np.int64(-1)
                if table >= 0 and table_first[table + 1] - table_first[table] == columns:
                    first_form = table_first[table]
                for column in range(columns):
                    if q >= end:
                        why = BROKEN
                        break
                    kind = b[q]
                    if kind == _VALUE_TEXT or kind == _VALUE_BINARY:
                        if q + 5 > end:
                            why = BROKEN
                            break
                        length = _u32(b, q + 1)
                        if q + 5 + length > end:
                            why = BROKEN
                            break
                        is_binary = kind == _VALUE_BINARY
                        if first_form >= 0 and table_form[first_form + column] != (BINARY if is_binary else TEXT):
                            why = WRONG_FORM
                            state[STATE_COLUMN] = column
                            break
                        value_offset[v], value_length[v], value_binary[v] = q + 5, length, is_binary
                        q += 5 + length
                    else:
                        if kind == _VALUE_NULL:
                            value_length[v] = null
                        elif kind == _VALUE_UNCHANGED:
                            value_length[v] = _UNCHANGED
                        else:
                            why = BROKEN
                            break
                        value_offset[v], value_binary[v] = 0, False
                        q += 1
                    v += 1
                if why != AT_END:
                    break
            if why != AT_END:
                break
            if (new_at < 0) != (what == _DEL) or (what == _DEL and old_at < 0) or (what == _I and old_at >= 0):
                why = BROKEN
                break
            command[row] = _INSERT if what == _I else (_UPDATE if what == _U else _DELETE)
            object_number[row], old_image[row], old_first[row], new_first[row] = number, image, old_at, new_at
            row += 1
            value = v

        elif what == _BEGIN:
            if end - p < 21:
                why = BROKEN
                break
            if transaction >= transactions_max or row >= rows_max:
                why = FULL
                break
            # The source replays an open transaction whole: the reader of the redo has called reset() before.
            if state[STATE_OPEN] == 1:
                why = BROKEN
                break
            order, time, number = _i64(b, p + 1), _i64(b, p + 9) + EPOCH_US, _u32(b, p + 17)
            transaction_id[transaction], order_scn[transaction] = number, order
            commit_scn[transaction], commit_time[transaction] = 0, time
            tag[transaction], first_row[transaction] = -1, row
            transaction += 1
            state[STATE_OPEN], state[STATE_TRANSACTION_ID], state[STATE_ORDER_SCN] = 1, number, order
            state[STATE_COMMIT_TIME], state[STATE_TAG] = time, -1

        elif what == _COMMIT:
            if state[STATE_OPEN] == 0 or end - p < 26:
                why = BROKEN
                break
            commit_scn[transaction - 1] = _i64(b, p + 10)
            state[STATE_OPEN] = 0

        elif what == _ORIGIN:
            if state[STATE_OPEN] == 0 or end - p < 10:
                why = BROKEN
                break
            origin = _find_origin(b, p + 9, end - p - 10, origin_first, origin_bytes)
            if origin < 0:
                why = ORIGIN
                break
            tag[transaction - 1] = origin_tag[origin]
            state[STATE_TAG] = origin_tag[origin]

        elif what == _RELATION:
            why = RELATION
            break

        elif what == _TYPE:
            why = TYPE
            break

        elif what == _T:
            if state[STATE_OPEN] == 0 or end - p < 10:
                why = BROKEN
                break
            if row >= rows_max:
                why = FULL
                break
            command[row], object_number[row], old_image[row] = _TRUNCATE, _u32(b, p + 6), _NONE
            old_first[row], new_first[row] = -1, -1
            row += 1
            state[STATE_PAYLOAD], state[STATE_FRAME_END] = p, end
            i = end
            why = TRUNCATE
            break

        elif what == _M:
            if _is_ours(b, p, end):
                state[STATE_PAYLOAD], state[STATE_FRAME_END] = p, end
                why = MESSAGE
                break

        else:
            why = BROKEN
            break
        i = end

    if why == RELATION or why == TYPE or why == ORIGIN or why == WRONG_FORM or why == BROKEN:
        state[STATE_PAYLOAD] = i + 30
        state[STATE_FRAME_END] = end
    state[STATE_POSITION], state[STATE_ROWS] = i, row
    state[STATE_VALUES], state[STATE_TRANSACTIONS] = value, transaction
    return why
