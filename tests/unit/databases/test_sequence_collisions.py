"""Sequences of tables that several sites write: whether two of them can return the same value."""

from __future__ import annotations

import pytest

from headrace.databases.ports.operator import ColumnSequence
from headrace.databases.sequence_collisions import collisions
from headrace.lcr.table_name import TableName

MOST = (1 << 63) - 1


def sequence(next_value: int, increment: int = 1, least: int = 1, most: int = MOST) -> ColumnSequence:
    return ColumnSequence(
        owner="hr",
        table="t",
        column="id",
        name="hr.t_id_seq",
        next_value=next_value,
        increment=increment,
        least=least,
        most=most,
    )


APART = {
    "in turn": [sequence(11, 2), sequence(4, 2)],
    "in turn, three sites": [sequence(7, 3), sequence(8, 3), sequence(300, 3)],
    "ranges": [sequence(5, most=999), sequence(1000, least=1000)],
    "up and down": [sequence(5), sequence(-1, -1, -MOST, -1)],
}
TOGETHER = {
    "the default": [sequence(1), sequence(1)],
    "one is ahead": [sequence(1), sequence(1_000_000)],
    "steps without a turn": [sequence(1, 2), sequence(3, 2)],
    "steps that meet": [sequence(1, 2), sequence(2, 3)],
    "the third": [sequence(1, 3), sequence(2, 3), sequence(4, 3)],
    "down": [sequence(-1, -1, -MOST, -1), sequence(-5, -1, -MOST, -1)],
}


def values(sequence: ColumnSequence, count: int = 3_000) -> set[int]:
    given = (sequence.next_value + number * sequence.increment for number in range(count))
    return {value for value in given if sequence.least <= value <= sequence.most}


@pytest.mark.parametrize("found", APART.values(), ids=APART.keys())
def test_sequences_that_never_meet_are_no_finding(found):
    assert list(collisions(TableName("hr", "t"), "id", list(zip("abc", found, strict=False)))) == []


@pytest.mark.parametrize("found", TOGETHER.values(), ids=TOGETHER.keys())
def test_sequences_that_can_meet_get_statements_that_keep_them_apart(found):
    beside = list(zip("abc", found, strict=False))
    (finding,) = collisions(TableName("hr", "t"), "id", beside)
    assert not finding.is_error
    fixed = {}
    for fix in finding.fix.partition("; or ")[0].split("; "):
        site, _, statement = fix.removeprefix("at ").partition(": ALTER SEQUENCE hr.t_id_seq INCREMENT BY ")
        step, _, start = statement.partition(" RESTART WITH ")
        fixed[site] = sequence(int(start), int(step), -MOST, MOST)
    assert list(collisions(TableName("hr", "t"), "id", list(fixed.items()))) == []
    assert not set.intersection(*(values(each) for each in fixed.values()))
    # No value is returned twice.
    for each in found:
        assert all((new.next_value - each.next_value) * each.increment >= 0 for new in fixed.values())
