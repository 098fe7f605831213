"""Key hashes by the types' equality, and dependencies between groups and transactions."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.lcr.batch import Command, OldImage
from headrace.rules.user_code.handlers import EXECUTE_TRUE, DmlHandler, ErrorHandler, HandlerRules, HandlerStatement
from headrace.rules.user_code.source import UserFunction
from spark_apply.dependencies.hashes import (
    DependencyTracker,
    KeyHashes,
    hash_batch,
    held_transactions,
    stored_hashes,
    table_hashes,
)
from spark_apply.dependencies.holds import ErrorHolds, bounded_hashes
from spark_apply.keys.equality import Equality
from spark_apply.keys.hash_kernels import hash_values
from spark_apply.tables.fits import TableFits
from tests.support.histories.apply_history import Change, Table, Transaction, batch_of
from tests.support.session.seeds import scaled
from tests.support.values.ddl_changes import ddl_batch, ddl_change, structure


def hashes_of(values: list[bytes], equality: Equality) -> list[int]:
    data = np.frombuffer(b"".join(values), np.uint8)
    lengths = np.array([len(value) for value in values], np.int32)
    out = np.empty(len(values), np.uint64)
    lengths.flags.writeable = False
    hash_values(data, np.int64(0), lengths, np.int64(equality), out)
    return out.tolist()


def numeric_binary(value: Decimal) -> bytes:
    """Return the binary form that PostgreSQL sends."""
    if not value.is_finite():
        sign = 0xC000 if value.is_nan() else 0xF000 if value < 0 else 0xD000
        return struct.pack(">hhHh", 0, 0, sign, 0)
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(-exponent, 0)
    text = "".join(map(str, digits)) + "0" * max(exponent, 0)
    text = text.rjust(scale, "0")
    whole, fraction = text[: len(text) - scale], text[len(text) - scale :]
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int((whole + fraction)[k : k + 4]) for k in range(0, len(whole + fraction), 4)]
    weight = len(whole) // 4 - 1
    return struct.pack(f">hhHh{len(groups)}h", len(groups), weight, 0x4000 if sign else 0, scale, *groups)


@pytest.mark.seeded
@given(
    st.decimals(allow_nan=True, allow_infinity=True, places=None, min_value=None, max_value=None).filter(
        lambda value: not value.is_snan() and (not value.is_finite() or abs(value.adjusted()) < 60)
    ),
    st.integers(0, 6),
)
def test_numeric_hashes_ignore_format_and_scale(value: Decimal, zeros: int) -> None:
    texts = [
        f"{value:f}" if value.is_finite() else "NaN" if value.is_nan() else ("-" if value < 0 else "") + "Infinity"
    ]
    if value.is_finite():
        text = texts[0]
        if zeros:
            texts.append((text if "." in text else f"{text}.") + "0" * zeros)
    by_text = hashes_of([text.encode() for text in texts], Equality.NUMERIC_TEXT)
    by_binary = hashes_of([numeric_binary(value)], Equality.NUMERIC_BINARY)
    assert set(by_text) == set(by_binary)


@pytest.mark.seeded
@given(st.integers(-(2**15), 2**15 - 1))
def test_integer_hashes_ignore_width_and_format(value: int) -> None:
    binary = [value.to_bytes(width, "big", signed=True) for width in (2, 4, 8)]
    assert set(hashes_of(binary, Equality.INTEGER_BINARY)) == set(
        hashes_of([str(value).encode()], Equality.INTEGER_TEXT)
    )


@pytest.mark.seeded
@given(st.uuids())
def test_uuid_hashes_ignore_the_format(value: UUID) -> None:
    assert hashes_of([value.bytes], Equality.BYTES) == hashes_of([str(value).encode()], Equality.UUID_TEXT)


@pytest.mark.seeded
@given(st.floats(width=32))
def test_float_hashes_ignore_width(value: float) -> None:
    narrow, wide = hashes_of([struct.pack(">f", value), struct.pack(">d", value)], Equality.FLOAT_BINARY)
    assert narrow == wide


def test_float_zeros_and_nans_are_each_one_value() -> None:
    zeros = hashes_of([struct.pack(">d", 0.0), struct.pack(">d", -0.0), struct.pack(">f", -0.0)], Equality.FLOAT_BINARY)
    nans = hashes_of([b"\x7f\xf8" + bytes(6), b"\xff\xf8" + bytes(5) + b"\x01", b"\x7f\xc0\0\0"], Equality.FLOAT_BINARY)
    assert len(set(zeros)) == len(set(nans)) == 1
    assert len({*zeros, *nans, *hashes_of([struct.pack(">d", 5e-324)], Equality.FLOAT_BINARY)}) == 3


def test_trailing_blanks_are_significant_only_for_types_that_compare_them() -> None:
    values = [b"ab", b"ab  ", b" ab"]
    assert len(set(hashes_of(values, Equality.PADDED))) == 2
    assert len(set(hashes_of(values, Equality.BYTES))) == 3


@pytest.mark.seeded
@given(st.lists(st.binary(max_size=40), unique=True, max_size=30))
def test_different_bytes_have_different_hashes(values: list[bytes]) -> None:
    assert len(set(hashes_of(values, Equality.BYTES))) == len(values)


# --------------------------------------------------------------------------- batches


KEYED = Table(11, "plain", ("id", "v"), OldImage.KEY)
TWICE = Table(13, "twice", ("id", "u"), OldImage.KEY, unique=True)
FULL = Table(14, "twice_full", ("id", "u"), OldImage.FULL, unique=True)
KEYLESS = Table(15, "history", ("a", "b"), OldImage.FULL, keyless=True)


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def hashes(*changes_of: list[Change]) -> KeyHashes:
    store = MemoryStore()
    for table in (KEYED, TWICE, FULL, KEYLESS):
        table.create(store)
    fits = TableFits(lambda owner, name: store.tables[owner, name].table, lambda version: "")
    return hash_batch(batch_of([Transaction(n + 1, changes) for n, changes in enumerate(changes_of)], 0), fits.fit)


def depend(first: list[Change], second: list[Change]) -> bool:
    """Return whether the second transaction must wait for the first; groups and the error queue must agree."""
    found = hashes(first, second)
    tracker = DependencyTracker()
    assert tracker.add(1, found.of(0), []) == set()
    waits = tracker.add(2, found.of(1), [1]) == {1}
    behind = held_transactions(found, [0])[1] == 0
    holds = ErrorHolds([(7, stored_hashes(found.of(0)))]).held(found.part(1, 2))
    assert waits == behind == bool(holds)
    return waits


def insert(table: Table, *row: bytes | None) -> Change:
    return Change(table, Command.INSERT, new=row)


def update(table: Table, old: tuple[bytes | None, ...], new: tuple[bytes | None, ...]) -> Change:
    return Change(table, Command.UPDATE, old=old, new=new)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([insert(KEYED, key(1), b"x")], [insert(KEYED, key(2), b"x")], False),
        ([insert(KEYED, key(1), b"x")], [update(KEYED, (key(1), b"x"), (key(1), b"y"))], True),
        ([insert(KEYED, key(1), b"x")], [insert(TWICE, key(1), b"x")], False),
        ([update(KEYED, (key(1), b"x"), (key(2), b"x"))], [insert(KEYED, key(1), b"z")], True),
        ([insert(TWICE, key(1), b"u")], [insert(TWICE, key(2), b"u")], True),
        ([insert(TWICE, key(1), None)], [insert(TWICE, key(2), None)], False),
        ([Change(FULL, Command.DELETE, old=(key(1), b"u"))], [insert(FULL, key(2), b"u")], True),
        ([Change(TWICE, Command.DELETE, old=(key(1), b"u"))], [insert(TWICE, key(2), b"u")], False),
        ([insert(KEYLESS, b"a", b"b")], [insert(KEYLESS, b"c", b"d")], False),
        ([insert(KEYLESS, b"a", b"b")], [insert(KEYLESS, b"a", b"b")], False),
        ([insert(KEYLESS, b"a", b"b")], [update(KEYLESS, (b"c", b"d"), (b"c", b"e"))], True),
        ([update(KEYLESS, (b"c", b"d"), (b"c", b"e"))], [insert(KEYLESS, b"a", b"b")], True),
        ([insert(KEYLESS, b"a", b"b")], [Change(KEYLESS, Command.DELETE, old=(b"c", b"d"))], True),
        ([Change(KEYLESS, Command.DELETE, old=(b"c", b"d"))], [insert(KEYLESS, b"a", b"b")], True),
        (
            [Change(KEYLESS, Command.DELETE, old=(b"c", b"d"))],
            [Change(KEYLESS, Command.DELETE, old=(b"a", b"b"))],
            True,
        ),
        ([insert(KEYLESS, b"a", b"b")], [Change(KEYLESS, Command.TRUNCATE)], True),
        ([Change(KEYLESS, Command.TRUNCATE)], [insert(KEYLESS, b"a", b"b")], True),
        (
            [insert(KEYLESS, b"a", b"b"), Change(KEYLESS, Command.DELETE, old=(b"c", b"d"))],
            [insert(KEYLESS, b"a", b"b")],
            True,
        ),
        ([Change(KEYED, Command.TRUNCATE)], [insert(KEYED, key(1), b"x")], True),
        ([insert(KEYED, key(1), b"x")], [Change(KEYED, Command.TRUNCATE)], True),
        ([Change(KEYED, Command.TRUNCATE)], [insert(TWICE, key(1), b"x")], False),
    ],
)
def test_transactions_depend_through_the_unique_keys_of_their_images(
    first: list[Change],
    second: list[Change],
    expected: bool,
) -> None:
    assert depend(first, second) == expected


def test_a_table_whose_key_has_no_canonical_form_is_serialised() -> None:
    store = MemoryStore()
    columns = [destination_column("id", "pg_catalog.int4", equality="none"), destination_column("v")]
    store.create_table("public", "plain", columns, key=["id"])
    fits = TableFits(lambda owner, name: store.tables[owner, name].table, lambda version: "")
    made = [Transaction(1, [insert(KEYED, key(1), b"x")]), Transaction(2, [insert(KEYED, key(2), b"x")])]
    found = hash_batch(batch_of(made, 0), fits.fit)
    assert held_transactions(found, [0]).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("described", "apart"),
    [
        ({}, True),
        ({"ordered": True}, False),  # an exclusion constraint, an index over an expression, a firing trigger
        ({"unique_keys": ((0,),)}, False),  # of a nullable column: one row can be refused because of another
        ({"unique_keys": ((2,),)}, True),  # the destination fills it
        ({"unique_keys": ((0, 2),)}, False),
        ({"unique_keys": ((2,),), "fires": True}, False),
    ],
    ids=repr,
)
def test_keyless_inserts_that_can_refuse_each_other_depend_on_each_other(
    described: dict[str, Any], *, apart: bool
) -> None:
    columns = tuple(
        replace(destination_column(name), number=place) for place, name in enumerate(("a", "b", "filled_here"))
    )
    store = MemoryStore()
    there = store.create_table("public", "history", columns)
    fits = TableFits(lambda *_: replace(there, **described), lambda _: "")
    found = hash_batch(batch_of([Transaction(n, [insert(KEYLESS, b"a", b"b")]) for n in (1, 2)], 0), fits.fit)
    assert (held_transactions(found, [0]).tolist() == [0, -1]) is apart


def handled(*operations: str, is_of_errors: bool = False) -> HandlerRules:
    mine = {
        "owner": "public",
        "name": "history",
        "operations": operations,
        "function": UserFunction(name="own:h", version="1"),
    }
    return HandlerRules(errors=(ErrorHandler(**mine),)) if is_of_errors else HandlerRules(dml=(DmlHandler(**mine),))


@pytest.mark.parametrize("in_order", [True, False], ids=["order", "error queue"])
@pytest.mark.parametrize(
    ("handlers", "apart"),
    [
        (handled("insert"), False),  # its SQL may read the effects of earlier rows
        (handled("insert", is_of_errors=True), False),
        (handled("update", "delete"), True),
        (handled("update", is_of_errors=True), True),
        (
            HandlerRules(
                dml=(DmlHandler(owner="public", name="plain", statements=(HandlerStatement(sql=EXECUTE_TRUE),)),)
            ),
            True,
        ),
    ],
    ids=str,
)
def test_keyless_inserts_with_a_handler_depend_on_each_other(
    handlers: HandlerRules, *, apart: bool, in_order: bool
) -> None:
    store = MemoryStore()
    KEYLESS.create(store)
    fits = TableFits(lambda owner, name: store.tables[owner, name].table, lambda _: "", handlers=handlers)
    found = hash_batch(
        batch_of([Transaction(n, [insert(KEYLESS, b"a", b"b")]) for n in (1, 2)], 0), fits.fit, in_order=in_order
    )
    assert (held_transactions(found, [0]).tolist() == [0, -1]) is apart
    tracker = DependencyTracker()
    assert tracker.add(1, found.of(0), []) == set()
    assert (tracker.add(2, found.of(1), [1]) == set()) is apart


def test_inserts_of_a_table_keyed_only_at_the_source_are_independent() -> None:
    store = MemoryStore()
    there = store.create_table(
        "public", "plain", [destination_column("id", "pg_catalog.int4", equality="integer"), destination_column("v")]
    )
    fits = TableFits(lambda *_: there, lambda _: "")
    made = [
        insert(KEYED, key(1), b"x"),
        insert(KEYED, key(1), b"x"),
        update(KEYED, (key(2), b"x"), (key(2), b"y")),
        insert(KEYED, key(1), b"x"),
    ]
    found = hash_batch(batch_of([Transaction(n + 1, [change]) for n, change in enumerate(made)], 0), fits.fit)
    assert held_transactions(found, [0]).tolist() == [0, -1, 0, 2], "an UPDATE uses the table exclusively"


def test_a_group_depends_on_the_last_unfinished_group_with_its_key() -> None:
    found = hashes(*[[insert(KEYED, key(1), b"x")] for _ in range(4)])
    tracker = DependencyTracker()
    assert tracker.add(1, found.of(0), []) == set()
    assert tracker.add(2, found.of(1), [1]) == {1}
    assert tracker.add(3, found.of(2), [1, 2]) == {2}
    assert tracker.add(4, found.of(3), []) == set()


def test_everything_after_a_barrier_depends_on_it() -> None:
    found = hashes([insert(KEYED, key(1), b"x")])
    tracker = DependencyTracker()
    tracker.add_barrier(1)
    assert tracker.add(2, found.of(0), [1]) == {1}
    assert tracker.add(3, np.empty(0, np.uint64), [1, 2]) == {1}
    assert tracker.add(4, np.empty(0, np.uint64), [2, 3]) == set()


@pytest.mark.long
@pytest.mark.seeded
@settings(max_examples=scaled(15, 500))
@given(st.integers(0, 2**32))
def test_tracker_agrees_with_a_plain_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    tracker, last, unfinished = DependencyTracker(), dict[int, int](), list[int]()
    for group in range(1, 60):
        keys = {rng.randrange(1, 20_000) * 2 for _ in range(rng.randrange(0, 2000))}
        expected = {last[key] for key in keys if key in last} & set(unfinished)
        assert tracker.add(group, np.array(sorted(keys), np.uint64), list(unfinished)) == expected
        last.update(dict.fromkeys(keys, group))
        unfinished.append(group)
        unfinished = [number for number in unfinished if rng.random() < 0.8]


@pytest.mark.seeded
@given(st.integers(0, 2**32))
def test_held_transactions_follow_the_last_one_they_need(seed: int) -> None:
    rng = random.Random(seed)
    keys = [{rng.randrange(1, 40) * 2 for _ in range(rng.randrange(0, 5))} for _ in range(30)]
    direct = {t for t in range(30) if rng.random() < 0.1}
    expected: list[int] = []
    for transaction, mine in enumerate(keys):
        needed = [other for other in range(transaction) if expected[other] >= 0 and keys[other] & mine]
        # The last holder of each key: a later holder replaces an earlier one.
        last = max(
            (max(o for o in needed if k in keys[o]) for k in mine if any(k in keys[o] for o in needed)), default=-1
        )
        expected.append(transaction if transaction in direct else last)
    first = np.cumsum([0, *[len(mine) for mine in keys]])
    flat = np.array([key for mine in keys for key in sorted(mine)], np.uint64)
    assert held_transactions(KeyHashes(hashes=flat, first=first), direct).tolist() == expected


# --------------------------------------------------------------------------- error queue


def test_error_transaction_is_executable_when_no_earlier_one_shares_a_key() -> None:
    found = hashes(
        [insert(KEYED, key(1), b"x")],
        [insert(KEYED, key(1), b"y"), insert(KEYED, key(2), b"y")],
        [insert(KEYED, key(2), b"z")],
        [insert(KEYED, key(3), b"z")],
    )
    holds = ErrorHolds((number + 1, stored_hashes(found.of(number))) for number in range(4))
    assert [holds.blocker(number) for number in (1, 2, 3, 4)] == [0, 1, 2, 0]
    holds.remove(1)
    assert [holds.blocker(number) for number in (2, 3)] == [0, 2]


def test_an_error_transaction_with_too_many_keys_holds_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_apply.dependencies.holds.HASHES_PER_ERROR_MAX", 2)
    found = hashes(
        [insert(KEYED, key(k), b"x") for k in range(5)], [insert(KEYED, key(9), b"x")], [insert(TWICE, key(1), b"x")]
    )
    holds = ErrorHolds([(1, bounded_hashes(stored_hashes(found.of(0))))])
    assert [(held.transaction, held.depends_on) for held in holds.held(found.part(1, 3))] == [(0, 1)]


def test_transaction_waits_for_the_last_error_transaction_it_depends_on() -> None:
    found = hashes([insert(KEYED, key(1), b"x"), insert(KEYED, key(2), b"x")])
    one, two = (stored_hashes(hashes([insert(KEYED, key(k), b"")]).of(0)) for k in (1, 2))
    assert ErrorHolds([(5, two), (3, one)]).held(found)[0].depends_on == 5


# --------------------------------------------------------------------------- DDL


def not_described(version: object) -> Any:
    raise AssertionError(f"only the session that changes {version} sees it as it will be")


ALTERED = hash_batch(
    ddl_batch(ddl_change(structure(owner="public", name="plain"), structure(owner="public", name="plain"))),
    not_described,
)


@pytest.mark.parametrize(
    ("change", "depends"),
    [
        (insert(KEYED, key(1), b"x"), True),
        (update(KEYED, (key(1), b"x"), (key(1), b"y")), True),
        (Change(KEYED, Command.TRUNCATE), True),
        (insert(TWICE, key(1), b"x"), False),
        (insert(KEYLESS, b"a", b"b"), False),
    ],
)
def test_ddl_waits_for_changes_of_its_table_and_they_for_it(change: Change, depends: bool) -> None:
    found = hashes([change])
    for earlier, later in ((found, ALTERED), (ALTERED, found)):
        tracker = DependencyTracker()
        tracker.add(1, earlier.of(0), [])
        assert (tracker.add(2, later.of(0), [1]) == {1}) is depends
        holds = ErrorHolds([(7, earlier.stored())])
        assert bool(holds.held(later)) is depends
        holds.add(8, later.stored())
        assert (holds.blocker(8) == 7) is depends


def test_rows_behind_a_ddl_use_their_tables_as_far_as_names_tell() -> None:
    made = batch_of(
        [
            Transaction(1, [insert(KEYED, key(1), b"x"), insert(TWICE, key(1), b"x"), insert(KEYED, key(2), b"x")]),
            Transaction(2, [Change(KEYLESS, Command.TRUNCATE)]),
            Transaction(3, []),
        ],
        0,
    )
    found = table_hashes(made)
    assert [found.of(number).shape[0] for number in range(3)] == [2, 1, 0]
    others = hashes([insert(KEYED, key(9), b"x")], [insert(TWICE, key(9), b"x")], [insert(KEYLESS, b"a", b"b")])
    holds = ErrorHolds([(1, found.part(0, 1).stored()), (2, found.part(1, 2).stored())])
    assert [(held.transaction, held.depends_on) for held in holds.held(others)] == [(0, 1), (1, 1), (2, 2)]
