from __future__ import annotations

from headrace.databases.table_digest import TableDigest

ONE = TableDigest(row_count=1, sums=(5, -1))


def test_digests_of_parts_add_up_in_any_order_within_64_bits():
    other = TableDigest(row_count=2, sums=(2**64 - 5, 3))
    assert ONE + other == other + ONE == TableDigest(row_count=3, sums=(0, 2))
    assert sum([ONE, other], TableDigest()) == ONE + other


def test_digest_is_shown_with_32_digits_and_survives_the_wire():
    assert str(ONE) == "0000000000000005ffffffffffffffff"
    assert TableDigest.from_bytes(1, ONE.to_bytes()) == ONE
    assert TableDigest.from_bytes(0, b"") == TableDigest()
