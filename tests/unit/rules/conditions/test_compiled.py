"""Compiled conditions, compared with the row-at-a-time reference for every type.

The rows include NULLs, missing values and unchanged large values.
"""

from __future__ import annotations

import random
import struct
import textwrap
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.databases.postgres.values.comparable import PostgresValueTypes
from headrace.lcr.batch import Command, LcrBatch, OldImage, RowGroup, TableVersion
from headrace.lcr.cutting import row_transactions
from headrace.lcr.row_lcr import RowLcr
from headrace.lcr.tags import Tag
from headrace.lcr.values import ABSENT, UNCHANGED
from headrace.lcr.values import NULL as NULL_LENGTH
from headrace.rules.conditions.compiled import CompiledCondition, Rows, check_types
from headrace.rules.conditions.condition import parse
from headrace.rules.conditions.logic import FALSE, NULL, TRUE, Known, possible
from headrace.rules.conditions.nodes import ConditionError, Node, columns_of
from headrace.rules.conditions.rowwise import truth_values
from headrace.rules.conditions.values import like_pattern
from headrace.rules.user_code.time_limit import time_limit
from tests.support.session.seeds import scaled
from tests.support.values.condition_values import columns, conditions, numeric_bytes, raw_values
from tests.support.values.lcr_batches import column_values, transactions

TYPES = PostgresValueTypes()
TABLE = TableVersion(object_number=1, version=1, owner="public", name="t", columns=columns(), old_image=OldImage.FULL)
TAGS = (Tag(value=b"\x1d"), Tag(value=b"\x11"))


@st.composite
def images(draw: st.DrawFn, used: set[str], rows: int, gaps: list[int]):
    """Values of every column; only used columns are random."""
    return [
        [draw(raw_values(column) | st.sampled_from(gaps)) for _ in range(rows)]
        if column.name in used
        else [ABSENT] * rows
        for column in TABLE.columns
    ]


@st.composite
def batches(draw: st.DrawFn, condition: Node) -> LcrBatch:
    """Rows of one command that carry the condition's columns or lack them."""
    command = draw(st.sampled_from([Command.INSERT, Command.UPDATE, Command.DELETE]))
    rows = draw(st.integers(1, 4))
    used = {value.column for value in columns_of(condition)} | {"id"}
    old = column_values(draw(images(used, rows, [NULL_LENGTH, ABSENT]))) if command is not Command.INSERT else None
    if command is Command.UPDATE and draw(st.booleans()):
        old = column_values([[ABSENT] * rows for _ in TABLE.columns])  # the update kept its key
    new = (
        column_values(draw(images(used, rows, [NULL_LENGTH, UNCHANGED, ABSENT])))
        if command is not Command.DELETE
        else None
    )
    group = RowGroup(table=0, command=command, row_numbers=np.arange(rows, dtype=np.int32), old=old, new=new)
    commits = [10 * (number + 1) for number in range(rows)]
    tags = [draw(st.integers(-1, 1)) for _ in range(rows)]
    return LcrBatch(
        source="dbs1",
        previous_scn=0,
        through_scn=commits[-1],
        tables=(TABLE,),
        tags=TAGS,
        groups=(group,),
        transactions=transactions(commits, [1] * rows, tags=tags),
    )


def rows_of(batch: LcrBatch) -> Rows:
    (group,) = batch.groups
    owner = row_transactions(batch.transactions)
    return Rows(
        table=TABLE,
        command=group.command,
        count=group.row_count,
        old=group.old,
        new=group.new,
        source=batch.source,
        tags=tuple(tag.value for tag in batch.tags),
        tag=batch.transactions.tag[owner],
        transaction_id=batch.transactions.transaction_id[owner],
        scn=batch.transactions.order_scn[owner],
        source_time_us=batch.transactions.commit_time_us[owner],
    )


def as_bits(values: frozenset[bool | None]) -> int:
    return sum({True: TRUE, False: FALSE, None: NULL}[value] for value in values)


@pytest.mark.long
@pytest.mark.seeded
@settings(
    max_examples=scaled(48, 2000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_columns_and_single_rows_give_the_same_truth_values(data):
    condition = data.draw(conditions())
    batch = data.draw(batches(condition))
    found = CompiledCondition(condition, TABLE, TYPES).outcomes(rows_of(batch))
    expected = [as_bits(truth_values(condition, RowLcr(batch, row), TYPES)) for row in range(batch.row_count)]
    assert found.tolist() == expected


@pytest.mark.seeded
@settings(
    max_examples=scaled(36, 1000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_row_outcomes_are_among_the_outcomes_possible_before_reading_rows(data):
    condition = data.draw(conditions())
    batch = data.draw(batches(condition))
    command = batch.groups[0].command
    for row, found in enumerate(CompiledCondition(condition, TABLE, TYPES).outcomes(rows_of(batch)).tolist()):
        lcr = RowLcr(batch, row)
        known: dict[str, Any] = {"object_owner": "public", "object_name": "t"}
        for more, its_command in (
            ({}, None),
            ({"tag": lcr.tag}, None),
            ({"tag": lcr.tag, "source_database_name": "dbs1"}, command),
        ):
            assert found & ~possible(condition, Known(attributes=known | more, command=its_command)) == 0


def test_condition_evaluates_every_row_of_a_group_of_many_transactions():
    table = replace(TABLE, columns=TABLE.columns[:1])
    values = column_values([[int(number).to_bytes(4, "big") for number in range(100)]])
    rows = Rows(
        table=table,
        command=Command.INSERT,
        count=100,
        old=None,
        new=values,
        source="dbs1",
        tags=(),
        tag=np.full(100, -1, np.int16),
        transaction_id=np.arange(100),
        scn=np.arange(100),
        source_time_us=1_769_848_200_000_000 + np.arange(-1, 99) * (np.arange(100) > 0),
    )
    found = CompiledCondition(parse("id between 10 and 12 or lcr.scn = 50", "where").tree, table, TYPES).outcomes(rows)
    assert np.flatnonzero(found == TRUE).tolist() == [10, 11, 12, 50]
    found = CompiledCondition(
        parse("lcr.source_time > '2026-01-31 10:30:00.000094+02'", "where").tree, table, TYPES
    ).outcomes(rows)
    assert np.flatnonzero(found == TRUE).tolist() == [96, 97, 98, 99]


def test_source_time_compares_as_an_instant_and_unknown_time_is_null():
    table = replace(TABLE, columns=tuple(column for column in TABLE.columns if column.name in ("id", "timestamptz_b")))
    values = column_values([[b"\0\0\0\1"] * 2, [(10).to_bytes(8, "big", signed=True)] * 2])
    rows = Rows(
        table=table,
        command=Command.INSERT,
        count=2,
        old=None,
        new=values,
        source="dbs1",
        tags=(),
        tag=np.array([-1, -1]),
        transaction_id=np.array([1, 2]),
        scn=np.array([1, 2]),
        source_time_us=np.array([946_684_800_000_009, 0]),
    )
    outcomes = {
        text: CompiledCondition(parse(text, "where").tree, table, TYPES).outcomes(rows).tolist()
        for text in (
            "lcr.source_time between '2000-01-01 00:00Z' and '2000-01-01 01:00:00.000009+0100'",
            "timestamptz_b > lcr.source_time",
            "lcr.source_time is null",
            "lcr.source_time in ('2000-01-01 00:00:00.000009-00:00')",
        )
    }
    assert list(outcomes.values()) == [[TRUE, NULL], [TRUE, NULL], [FALSE, TRUE], [TRUE, NULL]]


@pytest.mark.parametrize("gap", [ABSENT, UNCHANGED])
def test_value_missing_from_the_log_leaves_every_truth_value_possible(gap):
    table = replace(TABLE, columns=TABLE.columns[:2])
    new, old = column_values([[b"\0\0\0\1"], [gap]]), column_values([[b"\0\0\0\1"], [ABSENT]])
    rows = Rows(
        table=table,
        command=Command.UPDATE,
        count=1,
        old=old,
        new=new,
        source="dbs1",
        tags=(),
        tag=np.array([-1]),
        transaction_id=np.array([1]),
        scn=np.array([1]),
        source_time_us=np.array([0]),
    )
    outcome = {
        text: int(CompiledCondition(parse(text, "where").tree, table, TYPES).outcomes(rows)[0])
        for text in (
            "int2_b = 1",
            "int2_b is null",
            "int2_b = 1 and id = 2",
            "int2_b = 1 or id = 1",
            "int2_b is distinct from 1",
        )
    }
    assert list(outcome.values()) == [TRUE | FALSE | NULL, TRUE | FALSE, FALSE, TRUE, TRUE | FALSE]


@pytest.mark.parametrize(
    ("text", "outcome"),
    [("bytea_b = '\\x0000'", TRUE), ("bytea_b is distinct from '\\x0000'", FALSE), ("bytea_b > '\\x00'", TRUE)],
)
def test_trailing_zero_bytes_of_a_value_are_significant(text, outcome):
    new = column_values([[b"\0\0"] if column.name == "bytea_b" else [ABSENT] for column in TABLE.columns])
    rows = Rows(
        table=TABLE,
        command=Command.INSERT,
        count=1,
        old=None,
        new=new,
        source="dbs1",
        tags=(b"\0",),
        tag=np.array([0]),
        transaction_id=np.array([1]),
        scn=np.array([1]),
        source_time_us=np.array([0]),
    )
    assert CompiledCondition(parse(text, "where").tree, TABLE, TYPES).outcomes(rows).tolist() == [outcome]
    assert CompiledCondition(parse("tag = '00'", "condition").tree, TABLE, TYPES).outcomes(rows).tolist() == [TRUE]


def never() -> bool:
    return False


@pytest.mark.parametrize("pattern", ["%a%a%a%a%a%b", "%a_%_a%a%b%_a_", "a%a%a%a%a%ba%b"])
def test_like_with_many_wildcards_is_fast_on_a_long_text(pattern):
    found = []
    with time_limit(20.0, never):  # trying every position of every part would take years
        found += [like_pattern(pattern).match(text) is not None for text in ("a" * 5_000, "a" * 5_000 + "bbab")]
    assert found == [False, True]


def test_like_agrees_with_exhaustive_search():
    rng = random.Random(5)
    for _ in range(4_000):
        pattern = "".join(rng.choice(["%", "_", "a", "b", "\\%", "\\\\", "."]) for _ in range(rng.randrange(7)))
        text = "".join(rng.choice("ab%\\.\n") for _ in range(rng.randrange(8)))
        assert (like_pattern(pattern).match(text) is not None) == matches(pattern, text), (pattern, text)


def matches(pattern: str, text: str) -> bool:
    """LIKE by its definition."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(matches(pattern[1:], text[place:]) for place in range(len(text) + 1))
    if pattern[0] == "_":
        return bool(text) and matches(pattern[1:], text[1:])
    letters = 2 if pattern[0] == "\\" else 1
    return text[:1] == pattern[letters - 1] and matches(pattern[letters:], text[1:])


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("int8_b < 1e131071", TRUE),
        ("int8_b > -1e131071", TRUE),
        ("int8_b = 1e100000", FALSE),
        ("int8_b <> 1e100000", TRUE),
        ("int8_b > 1e-16383", TRUE),
        ("int8_b in (5, 1e100000)", TRUE),
        ("int8_b between 0e131071 and 1e100000", TRUE),
        ("int8_b is distinct from -1e100000", TRUE),
        ("numeric_b < 1e131071", TRUE),
        ("numeric_t = -12345678901234567890123456789.123456789", TRUE),
        ("numeric_t > -12345678901234567890123456789.12345679", TRUE),
        ("numeric_t in (1, -12345678901234567890123456789.123456789)", TRUE),
        ("numeric_b > 1e-16383", TRUE),
        ("numeric_b in (1e131071)", FALSE),
    ],
)
def test_numbers_of_many_digits_compare_fast(text, outcome):
    values = {
        "int8_b": (5).to_bytes(8, "big"),
        "numeric_b": numeric_bytes(Decimal(5)),
        "numeric_t": b"-12345678901234567890123456789.123456789",
    }
    image = column_values([[values.get(column.name, ABSENT)] for column in TABLE.columns])
    one = np.array([10], np.int64)
    with time_limit(20.0, never):
        tree = parse(text, "where").tree
        check_types(tree, TABLE, TYPES)
        found = CompiledCondition(tree, TABLE, TYPES).outcomes(
            Rows(
                table=TABLE,
                command=Command.INSERT,
                count=1,
                old=None,
                new=image,
                source="dbs1",
                tags=(),
                tag=np.array([-1]),
                transaction_id=one,
                scn=one,
                source_time_us=one,
            )
        )
    assert found.tolist() == [outcome]


@pytest.mark.parametrize(
    "text",
    [
        "int8_b < 1e131072",
        "int8_b < 1e999999999",
        "int8_b in (1, 1e999999999)",
        "int8_b > 1e-999999999",
        "numeric_b < 1e131072",
        "numeric_b > -1e999999999",
        "numeric_t > 1e-16384",
        "numeric_b = 1.5e-16383",
        "numeric_b > 0e-16384",
        "float8_b < 1e131072",
        f"float8_b < {10**400}",
        f"float4_t is distinct from -{10**400}",
        f"float8_b in (1, {10**400})",
        "date_b > '\u0662\u0660\u0662\u0666-01-31'",
        "time_t > '\u0660\u0668:30'",
        "timestamptz_b > '2026-01-31 08:30+\u0660\u0665'",
    ],
    ids=lambda text: text[:30],
)
def test_literals_that_the_server_refuses_are_refused_fast(text):
    with time_limit(20.0, never), pytest.raises(ConditionError):
        check_types(parse(text, "where").tree, TABLE, TYPES)


@pytest.mark.parametrize("digits", [1, 4_300, 4_304, 131_072])
def test_numbers_of_every_length_are_read(digits):
    text = "-" + "9" * digits + ".25"
    form = struct.pack(">HhHH", -(-digits // 4) + 1, -(-digits // 4) - 1, 0x4000, 2)
    groups = [int(part) for part in textwrap.wrap(text[1:-3].zfill(-(-digits // 4) * 4), 4)]
    (binary, as_text) = (
        next(column for column in TABLE.columns if column.name == name) for name in ("numeric_b", "numeric_t")
    )
    assert (
        TYPES.value(binary, form + struct.pack(f">{len(groups) + 1}H", *groups, 2500))
        == TYPES.value(as_text, text.encode())
        == Decimal(text)
    )
