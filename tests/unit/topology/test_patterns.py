"""Patterns of tables: the names that they match, and whether two patterns can match the same table."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.rules.rule import Rule
from topology.patterns import examples, parse_schema, parse_table

NAMES = st.text('ab.[] "', min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hr.employees", ("hr", "employees")),
        ("public.pgbench_*", ("public", "pgbench_*")),
        ('"Odd.Schema".t', ("Odd.Schema", "t")),
        ('hr."a ""b"""', ("hr", 'a "b"')),
        ("hr.a[1]", ("hr", "a[1]")),
    ],
)
def test_table_pattern_is_split_at_the_dot_outside_quotes(text, expected):
    assert parse_table(text) == expected


@pytest.mark.parametrize("text", ["", "t", "a.b.c", ".t", "a.", 'a."', "a b.c", 'a"b".c', '"a*".b', 'a."b?"'])
def test_name_without_schema_and_table_is_refused(text):
    with pytest.raises(ValueError, match=r"is not of the form schema\.table"):
        parse_table(text)


@pytest.mark.seeded
@given(NAMES, NAMES)
def test_quoted_name_matches_only_itself(owner, name):
    quoted = '"{}"."{}"'.format(owner.replace('"', '""'), name.replace('"', '""'))
    pattern_owner, pattern_name = parse_table(quoted)
    rule = Rule(owner=pattern_owner, name=pattern_name)
    assert rule.matches_object(owner, name)
    assert not rule.matches_object(owner, name + "x")
    assert not rule.matches_object("x" + owner, name)


def test_a_schema_is_one_name():
    assert parse_schema("hr_*") == "hr_*"
    with pytest.raises(ValueError, match="is not the name of one schema"):
        parse_schema("hr.employees")


PATTERNS = st.lists(st.text("ab*?", min_size=1, max_size=5), max_size=4)


def matched(patterns: list[str], name: str) -> frozenset[str]:
    return frozenset(pattern for pattern in patterns if fnmatchcase(name, pattern))


@pytest.mark.seeded
@given(PATTERNS, st.text("abz", min_size=1, max_size=6))
@example(["a*", "*b"], "ab")
def test_every_name_matches_the_same_patterns_as_one_of_the_examples(patterns, name):
    assert matched(patterns, name) in {matched(patterns, each) for each in examples(patterns)}


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ([], {"x"}),
        (["*"], {"x"}),
        (["employees"], {"employees", "x"}),
        (["a*", "*b"], {"a", "b", "ab", "x"}),
        (["a*", "b*"], {"a", "b", "x"}),
        (["?", "??"], {"x", "xx", "xxx"}),
        (["x"], {"x", "y"}),
    ],
)
def test_examples_are_the_shortest_names_that_patterns_distinguish(patterns, expected):
    assert set(examples(patterns)) == expected


def test_a_thousand_plain_names_have_an_example_each():
    names = [f"table_{number}" for number in range(1000)]
    assert set(examples([*names, "table_1*"])) >= set(names)
