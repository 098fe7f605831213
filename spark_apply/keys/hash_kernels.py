"""Hashing of key values in their canonical form.

Values come in the database's binary or text form. No canonical form is ever materialised: each routine feeds
its 64-bit words to the same mixing function.
"""

# Numba compiles these: its types are inferred at the first call.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.lcr.byte_kernels import big_endian_word

# The finaliser of splitmix64 and its increment: every input bit reaches every output bit.
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_U8 = np.uint64(8)
_U27 = np.uint64(27)
_U30 = np.uint64(30)
_U31 = np.uint64(31)

# Hashes of values without bytes (NULL) or with many byte forms (NaN).
_NULL_HASH = np.uint64(0x6E756C6C00000001)
_NAN_HASH = np.uint64(0x6E616E0000000002)

NULL_LENGTH = -1  # `headrace.lcr.values.NULL`; below it: UNCHANGED, ABSENT

# `spark_apply.keys.equality.Equality`
_BYTES, _INTEGER_BINARY, _INTEGER_TEXT, _PADDED, _NUMERIC_BINARY, _NUMERIC_TEXT, _FLOAT_BINARY, _UUID_TEXT = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
)

_BLANK, _ZERO, _NINE, _MINUS, _POINT = 32, 48, 57, 45, 46
_LETTER_N, _LETTER_I, _LETTER_A = 78, 73, 97  # "NaN", "Infinity", "a"
_NUMERIC_NAN, _NUMERIC_PLUS, _NUMERIC_MINUS = 0xC000, 0xD000, 0xF000  # signs of the binary form's specials
_NUMERIC_NEGATIVE = 0x4000


@njit(cache=True, inline="always")
def mix(state, word):
    """Feed one 64-bit word into a hash, and return the new hash.

    Args:
        state: uint64, the hash so far.
        word: uint64.
    """
    value = (state ^ word) + _INCREMENT
    value = (value ^ (value >> _U30)) * _MULTIPLIER_1
    value = (value ^ (value >> _U27)) * _MULTIPLIER_2
    return value ^ (value >> _U31)


@njit(cache=True)
def hash_bytes(data, offset, length, state):
    """Hash raw bytes, eight at a time, and then their number.

    Args:
        data: uint8, contains the bytes.
        offset: index of the first byte.
        length: number of bytes, from 0.
        state: uint64, the hash so far.

    Returns:
        uint64, the new hash.
    """
    whole = length // 8
    position = offset
    for _ in range(whole):
        state = mix(state, big_endian_word(data, position))
        position += 8
    word = np.uint64(0)
    for k in range(length - whole * 8):
        word = (word << _U8) | np.uint64(data[position + k])
    return mix(mix(state, word), np.uint64(length))


@njit(cache=True)
def _uuid_text(data, offset, length, state):
    """Hash a UUID's text like `hash_bytes` of its binary form: 32 lower-case hexadecimal digits, with hyphens."""
    word, digits = np.uint64(0), 0
    for k in range(length):
        character = data[offset + k]
        if character == _MINUS:
            continue
        digit = character - _ZERO if character <= _NINE else character - _LETTER_A + 10
        word = (word << np.uint64(4)) | np.uint64(digit)
        digits += 1
        if digits % 16 == 0:
            state = mix(state, word)
            word = np.uint64(0)
    return mix(mix(state, word), np.uint64(digits // 2))


@njit(cache=True)
def _big_endian(data, offset, length):
    value = np.int64(0)
    if length and data[offset] >= 128:
        value = np.int64(-1)
    for k in range(length):
        value = (value << 8) | np.int64(data[offset + k])
    return value


@njit(cache=True)
def _integer_text(data, offset, length):
    value = np.int64(0)
    negative = length > 0 and data[offset] == _MINUS
    for k in range(1 if negative else 0, length):
        value = value * 10 + (np.int64(data[offset + k]) - _ZERO)
    return -value if negative else value


@njit(cache=True)
def _numeric_binary(data, offset, state):
    digits = (np.int64(data[offset]) << 8) | np.int64(data[offset + 1])
    weight = _big_endian(data, offset + 2, 2)
    sign = (np.int64(data[offset + 4]) << 8) | np.int64(data[offset + 5])
    if sign in (_NUMERIC_NAN, _NUMERIC_PLUS, _NUMERIC_MINUS):
        return mix(mix(state, _NAN_HASH), np.uint64(sign))
    first, last = 0, digits - 1
    while first <= last and data[offset + 8 + 2 * first] == 0 and data[offset + 9 + 2 * first] == 0:
        first += 1
        weight -= 1
    while last >= first and data[offset + 8 + 2 * last] == 0 and data[offset + 9 + 2 * last] == 0:
        last -= 1
    if first > last:
        return mix(state, np.uint64(0))
    state = mix(mix(state, np.uint64(sign + 1)), np.uint64(weight))
    for k in range(first, last + 1):
        state = mix(state, (np.uint64(data[offset + 8 + 2 * k]) << _U8) | np.uint64(data[offset + 9 + 2 * k]))
    return state


@njit(cache=True)
def _numeric_group(data, whole_start, whole_length, point, end, group, whole_groups):
    """Return base-10000 digit number `group` of a decimal number; groups are aligned at the decimal point."""
    value = np.int64(0)
    for k in range(4):
        if group < whole_groups:
            place = whole_start + whole_length - (whole_groups - group) * 4 + k
            digit = np.int64(data[place]) - _ZERO if place >= whole_start else np.int64(0)
        else:
            place = point + 1 + (group - whole_groups) * 4 + k
            digit = np.int64(data[place]) - _ZERO if place < end else np.int64(0)
        value = value * 10 + digit
    return value


@njit(cache=True)
def _numeric_text(data, offset, length, state):
    end = offset + length
    start = offset
    sign = 0
    if length and data[start] == _MINUS:
        sign = _NUMERIC_NEGATIVE
        start += 1
    if start < end and data[start] == _LETTER_N:
        return mix(mix(state, _NAN_HASH), np.uint64(_NUMERIC_NAN))
    if start < end and data[start] == _LETTER_I:
        special = _NUMERIC_MINUS if sign else _NUMERIC_PLUS
        return mix(mix(state, _NAN_HASH), np.uint64(special))
    point = start
    while point < end and data[point] != _POINT:
        point += 1
    whole_groups = (point - start + 3) // 4
    fraction = end - point - 1 if point < end else 0
    groups = whole_groups + (fraction + 3) // 4
    first, last = 0, groups - 1
    while first <= last and _numeric_group(data, start, point - start, point, end, first, whole_groups) == 0:
        first += 1
    while last >= first and _numeric_group(data, start, point - start, point, end, last, whole_groups) == 0:
        last -= 1
    if first > last:
        return mix(state, np.uint64(0))
    state = mix(mix(state, np.uint64(sign + 1)), np.uint64(whole_groups - 1 - first))
    for k in range(first, last + 1):
        state = mix(state, np.uint64(_numeric_group(data, start, point - start, point, end, k, whole_groups)))
    return state


@njit(cache=True)
def _float_bits(data, offset, length):
    """Return a float as the bits of the equal 8-byte float; all NaNs give one value, and so do both zeros."""
    bits = np.uint64(0)
    for k in range(length):
        bits = (bits << _U8) | np.uint64(data[offset + k])
    if length == 4:
        sign = (bits >> np.uint64(31)) << np.uint64(63)
        exponent = np.int64((bits >> np.uint64(23)) & np.uint64(0xFF))
        fraction = bits & np.uint64(0x7FFFFF)
        if exponent == 0xFF:
            exponent = np.int64(0x7FF)
        elif exponent != 0:
            exponent += 1023 - 127
        elif fraction != 0:
            # A subnormal 4-byte float is a normal 8-byte float.
            exponent = np.int64(1023 - 126)
            while not fraction & np.uint64(0x800000):
                fraction <<= np.uint64(1)
                exponent -= 1
            fraction &= np.uint64(0x7FFFFF)
        bits = sign | (np.uint64(exponent) << np.uint64(52)) | (fraction << np.uint64(29))
    magnitude = bits & np.uint64(0x7FFFFFFFFFFFFFFF)
    if magnitude == 0:
        return np.uint64(0)
    if magnitude > np.uint64(0x7FF0000000000000):
        return _NAN_HASH
    return bits


@njit(cache=True)
def hash_values(data, place, lengths, equality, out):
    """Hash one column's values in their canonical form; values without bytes get the NULL hash.

    Args:
        data: uint8, bytes of all values.
        place: int64, where the first value begins in `data`; each follows the one before it.
        lengths: int32[n], bytes of each, or NULL, UNCHANGED, ABSENT.
        equality: a `spark_apply.keys.equality.Equality` but NONE: the canonical form, and the form the bytes are in.
        out: uint64[n], written.
    """
    start = np.uint64(0)
    for i in range(lengths.shape[0]):
        length = np.int64(lengths[i])
        if length < 0:
            out[i] = _NULL_HASH
            continue
        offset = place
        place += length
        if equality == _BYTES:
            out[i] = hash_bytes(data, offset, length, start)
        elif equality == _INTEGER_BINARY:
            out[i] = mix(start, np.uint64(_big_endian(data, offset, length)))
        elif equality == _INTEGER_TEXT:
            out[i] = mix(start, np.uint64(_integer_text(data, offset, length)))
        elif equality == _PADDED:
            while length > 0 and data[offset + length - 1] == _BLANK:
                length -= 1
            out[i] = hash_bytes(data, offset, length, start)
        elif equality == _NUMERIC_BINARY:
            out[i] = _numeric_binary(data, offset, start)
        elif equality == _NUMERIC_TEXT:
            out[i] = _numeric_text(data, offset, length, start)
        elif equality == _UUID_TEXT:
            out[i] = _uuid_text(data, offset, length, start)
        else:
            out[i] = mix(start, _float_bits(data, offset, length))


@njit(cache=True)
def combine_key(values, lengths, seed, out, nulls, missing):
    """Combine the columns of a key into row hashes, which are even; mark rows with NULL or missing key values.

    Args:
        values: uint64[c, n], hashes of the key's columns, from `hash_values`.
        lengths: int32[c, n], lengths of the same values.
        seed: uint64, of the table and the key (`spark_apply.tables.fits.HashedKey`).
        out: uint64[n], written.
        nulls: bool[n], set where a value is NULL.
        missing: bool[n], set where a value is UNCHANGED or ABSENT.
    """
    columns, rows = lengths.shape
    for i in range(rows):
        state = seed
        for column in range(columns):
            state = mix(state, values[column, i])
            if lengths[column, i] == NULL_LENGTH:
                nulls[i] = True
            elif lengths[column, i] < NULL_LENGTH:
                missing[i] = True
        out[i] = (state >> np.uint64(1)) << np.uint64(1)


def hash_text(text: str) -> int:
    """Hash a name, the same in every process."""
    data = np.frombuffer(text.encode(), np.uint8)
    return int(hash_bytes(data, 0, data.shape[0], np.uint64(0)))
