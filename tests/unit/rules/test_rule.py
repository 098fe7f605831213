"""The tables of the manuals: rule sets and three-valued prefiltering."""

from __future__ import annotations

import pytest

from rules.rule import Rule, RuleSet, TruthValue

FALSE, MAYBE, TRUE = TruthValue.FALSE, TruthValue.MAYBE, TruthValue.TRUE
OTHER, UNTAGGED, ANY = Rule(name="other"), Rule(tagged=False), Rule(tagged=True)


@pytest.mark.parametrize(
    ("negative", "positive", "expected"),
    [
        # Without the tag a rule for untagged LCRs is MAYBE, one for all TRUE, one for another table FALSE.
        (OTHER, OTHER, FALSE), (OTHER, UNTAGGED, MAYBE), (OTHER, ANY, TRUE),
        (UNTAGGED, OTHER, FALSE), (UNTAGGED, UNTAGGED, MAYBE), (UNTAGGED, ANY, MAYBE),
        (ANY, OTHER, FALSE), (ANY, UNTAGGED, FALSE), (ANY, ANY, FALSE),
    ],
)
def test_prefilter_follows_the_table_of_the_manual(negative, positive, expected):
    assert RuleSet(include=(positive,), exclude=(negative,)).prefilter("hr", "t") is expected


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (RuleSet(), TRUE), (RuleSet(include=()), FALSE), (RuleSet(include=(), exclude=(OTHER,)), FALSE),
        (RuleSet(exclude=(OTHER,)), TRUE), (RuleSet(exclude=(ANY,)), FALSE),
    ],
)
def test_missing_and_empty_rule_sets_differ(rules, expected):
    assert rules.prefilter("hr", "t", tagged=False) is expected


@pytest.mark.parametrize("tagged", [False, True])
def test_known_tag_leaves_no_maybe(tagged):
    rules = RuleSet(include=(UNTAGGED,))
    assert rules.prefilter("hr", "t", tagged=tagged) is (FALSE if tagged else TRUE)


def test_ddl_rules_say_nothing_of_rows():
    assert RuleSet(include=(Rule(dml=False, ddl=True),)).prefilter("hr", "t") is FALSE


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("emp*", "employees", True), ("emp*", "temp", False), ("t?", "t1", True), ("t?", "t12", False),
        ("a[1]", "a[1]", True), ("a[1]", "a1", False), ("T", "t", False), ("a.b", "axb", False), ("*", "a\nb", True),
    ],
)
def test_patterns_know_stars_and_question_marks_only(pattern, name, matches):
    assert Rule(name=pattern).matches_object("hr", name) is matches


def test_unmatched_rules_are_those_that_match_no_table():
    wrong, right = Rule(name="emplyees"), Rule(name="employees")
    assert RuleSet(include=(wrong, right)).unmatched([("hr", "employees")]) == (wrong,)
    assert RuleSet().unmatched([]) == ()
