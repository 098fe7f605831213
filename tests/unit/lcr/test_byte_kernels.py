from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numba.core.errors import TypingError

from headrace.lcr.byte_kernels import big_endian_word, copy_bytes, same_bytes

GUARD = 0xAA


@njit
def _copied(data, offset, length, out, place):
    copy_bytes(data, offset, length, out, place)
    return out


@njit
def _same(data, offset, other, length):
    return same_bytes(data, offset, other, length)


@njit
def _word(data, offset):
    return big_endian_word(data, offset)


@pytest.mark.seeded
@given(data=st.binary(max_size=200), place=st.integers(0, 9), cut=st.data())
def test_exactly_the_bytes_are_copied(data, place, cut):
    offset = cut.draw(st.integers(0, len(data)))
    length = cut.draw(st.integers(0, len(data) - offset))
    out = np.full(place + length + 9, GUARD, np.uint8)
    _copied(np.frombuffer(data, np.uint8), offset, np.int32(length), out, place)
    expected = bytes([GUARD]) * place + data[offset : offset + length] + bytes([GUARD]) * 9
    assert out.tobytes() == expected


@pytest.mark.seeded
@given(left=st.binary(max_size=70), at=st.integers(0, 69), by=st.integers(1, 255))
def test_one_different_byte_is_detected(left, at, by):
    right = bytearray(left)
    data = np.frombuffer(b"x" + left + bytes(right) + b"y", np.uint8)
    assert _same(data, 1, 1 + len(left), len(left))
    if at < len(left):
        right[at] = (right[at] + by) % 256
        assert not _same(np.frombuffer(b"x" + left + bytes(right) + b"y", np.uint8), 1, 1 + len(left), len(left))


@pytest.mark.parametrize("offset", range(9))
def test_word_is_read_at_any_offset(offset):
    data = np.random.default_rng(offset).integers(0, 256, 17).astype(np.uint8)
    assert int(_word(data, offset)) == int.from_bytes(data[offset : offset + 8].tobytes(), "big")


@pytest.mark.parametrize(
    "data",
    [np.zeros(20, np.uint8)[::2], np.zeros(20, np.int32), np.zeros((20, 20), np.uint8)],
    ids=["strided", "words", "table"],
)
def test_array_with_gaps_between_its_bytes_is_refused(data):
    out = np.zeros(20, np.uint8)
    for call in (
        lambda: _copied(data, 0, 8, out, 0),
        lambda: _copied(out, 0, 8, data, 0),
        lambda: _same(data, 0, 8, 2),
        lambda: _word(data, 0),
    ):
        with pytest.raises(TypingError):
            call()


def test_read_only_array_is_not_written():
    with pytest.raises(TypingError):
        _copied(np.zeros(9, np.uint8), 0, 8, np.frombuffer(bytes(9), np.uint8), 0)
