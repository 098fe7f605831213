"""Patterns of tables: what they match, and whether two can match the same table."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rules.rule import Rule
from topology.patterns import overlap, parse_schema, parse_table

NAMES = st.text("ab.[] \"", min_size=1, max_size=6)


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
def test_a_table_pattern_is_split_at_the_dot_outside_quotes(text, expected):
    assert parse_table(text) == expected


@pytest.mark.parametrize("text", ["", "t", "a.b.c", ".t", "a.", 'a."', "a b.c", 'a"b".c', '"a*".b', 'a."b?"'])
def test_what_is_not_schema_dot_table_is_refused(text):
    with pytest.raises(ValueError, match=r"is not of the form schema\.table"):
        parse_table(text)


@given(NAMES, NAMES)
def test_a_quoted_name_matches_itself_and_nothing_else(owner, name):
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


@given(st.text("ab*?", max_size=5), st.text("ab*?", max_size=5), st.text("ab", max_size=6))
@example("a*", "*b", "ab")
def test_patterns_that_match_one_name_overlap(first, second, name):
    if fnmatchcase(name, first) and fnmatchcase(name, second):
        assert overlap(first, second)


@given(st.text("ab*?", max_size=4), st.text("ab*?", max_size=4))
def test_patterns_that_overlap_match_some_name_in_common(first, second):
    names = [""]
    for _ in range(len(first) + len(second)):
        names += [name + letter for name in names for letter in "ab" if len(name) < 8]
        names = list(dict.fromkeys(names))
    common = any(fnmatchcase(name, first) and fnmatchcase(name, second) for name in names)
    assert overlap(first, second) is common
