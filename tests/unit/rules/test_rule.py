"""The manuals' tables of rule sets and three-valued prefiltering."""

from __future__ import annotations

import pytest

from headrace.rules.conditions.condition import parse
from headrace.rules.rule import ANY_TAG, UNKNOWN_TAG, Rule, RuleSet, TagCondition, TruthValue, tags_told_apart
from headrace.rules.rule import UNTAGGED as NULL_TAG
from headrace.rules.transformations.transformation import RenameSchema, Transformation

FALSE, MAYBE, TRUE = TruthValue.FALSE, TruthValue.MAYBE, TruthValue.TRUE
OTHER, UNTAGGED, ANY = Rule(name="other"), Rule(), Rule(tags=ANY_TAG)


@pytest.mark.parametrize(
    ("negative", "positive", "expected"),
    [
        # Without the tag a rule for untagged LCRs is MAYBE, a rule for all is TRUE, a rule for another table FALSE.
        (OTHER, OTHER, FALSE),
        (OTHER, UNTAGGED, MAYBE),
        (OTHER, ANY, TRUE),
        (UNTAGGED, OTHER, FALSE),
        (UNTAGGED, UNTAGGED, MAYBE),
        (UNTAGGED, ANY, MAYBE),
        (ANY, OTHER, FALSE),
        (ANY, UNTAGGED, FALSE),
        (ANY, ANY, FALSE),
    ],
)
def test_prefilter_follows_the_manuals_table(negative, positive, expected):
    assert RuleSet(include=(positive,), exclude=(negative,)).prefilter("hr", "t") is expected


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (RuleSet(), TRUE),
        (RuleSet(include=()), FALSE),
        (RuleSet(include=(), exclude=(OTHER,)), FALSE),
        (RuleSet(exclude=(OTHER,)), TRUE),
        (RuleSet(exclude=(ANY,)), FALSE),
    ],
)
def test_missing_and_empty_rule_sets_differ(rules, expected):
    assert rules.prefilter("hr", "t", tag=None) is expected


@pytest.mark.parametrize("tagged", [False, True])
def test_known_tag_never_evaluates_to_maybe(tagged):
    rules = RuleSet(include=(UNTAGGED,))
    assert rules.prefilter("hr", "t", tag=b"\x00" if tagged else None) is (FALSE if tagged else TRUE)


ELEVEN, TWELVE = b"\x11", b"\x12"
NULL_OR_ELEVEN, NOT_ELEVEN = TagCondition(listed=(None, ELEVEN)), TagCondition(listed=(ELEVEN,), takes_listed=False)
TAGS_TAKEN = {
    # condition -> outcome for NULL, 11, 12, an unknown tag
    NULL_TAG: (TRUE, FALSE, FALSE, MAYBE),
    ANY_TAG: (TRUE, TRUE, TRUE, TRUE),
    NULL_OR_ELEVEN: (TRUE, TRUE, FALSE, MAYBE),
    NOT_ELEVEN: (TRUE, FALSE, TRUE, MAYBE),
    TagCondition(listed=(None,), takes_listed=False): (FALSE, TRUE, TRUE, MAYBE),
}


@pytest.mark.parametrize(("condition", "expected"), TAGS_TAKEN.items(), ids=str)
def test_condition_on_tags_is_three_valued(condition, expected):
    rules = RuleSet(include=(Rule(tags=condition),))
    assert tuple(rules.prefilter("hr", "t", tag=tag) for tag in (None, ELEVEN, TWELVE, UNKNOWN_TAG)) == expected


@pytest.mark.parametrize(("condition", "expected"), TAGS_TAKEN.items(), ids=str)
def test_negative_rule_discards_the_tags_it_takes(condition, expected):
    turned = {TRUE: FALSE, FALSE: TRUE, MAYBE: MAYBE}
    rules = RuleSet(exclude=(Rule(tags=condition),))
    found = tuple(rules.prefilter("hr", "t", tag=tag) for tag in (None, ELEVEN, TWELVE, UNKNOWN_TAG))
    assert found == tuple(turned[answer] for answer in expected)


def test_distinguished_tags_are_null_listed_tags_and_one_other():
    sets = [
        RuleSet(include=(Rule(tags=NOT_ELEVEN), Rule())),
        RuleSet(exclude=(Rule(tags=TagCondition(listed=(TWELVE,))),)),
    ]
    first, *listed, other = tags_told_apart(sets)
    assert (first, listed) == (None, [ELEVEN, TWELVE])
    assert other not in (None, ELEVEN, TWELVE)
    zeros = RuleSet(include=(Rule(tags=TagCondition(listed=(bytes(4),))),))
    assert len(set(tags_told_apart([zeros]))) == 3


def test_ddl_rules_do_not_apply_to_rows():
    assert RuleSet(include=(Rule(dml=False, ddl=True),)).prefilter("hr", "t") is FALSE


DDL, ONLY_DDL = Rule(ddl=True), Rule(dml=False, ddl=True)


@pytest.mark.parametrize(
    ("rules", "rows", "ddl"),
    [
        (RuleSet(), True, True),
        (RuleSet(include=()), False, False),
        (RuleSet(include=(Rule(),)), True, False),
        (RuleSet(include=(DDL,)), True, True),
        (RuleSet(include=(ONLY_DDL,)), False, True),
        (RuleSet(include=(Rule(name="u", ddl=True), Rule())), True, False),
        (RuleSet(include=(DDL,), exclude=(Rule(),)), False, True),
        (RuleSet(include=(DDL,), exclude=(ONLY_DDL,)), True, False),
        (RuleSet(include=(DDL,), exclude=(Rule(name="t", ddl=True),)), False, False),
        (RuleSet(exclude=(ONLY_DDL,)), True, False),
        (RuleSet(include=(Rule(owner="other", ddl=True),)), False, False),
    ],
)
def test_rows_and_ddl_are_taken_independently(rules, rows, ddl):
    assert rules.keeps("hr", "t", tag=None) is rows
    assert rules.keeps_ddl("hr", "t", tag=None) is ddl


@pytest.mark.parametrize(("tags", "taken"), [(NULL_TAG, {None}), (ANY_TAG, {None, b"\x11"})])
def test_ddl_rule_takes_the_tags_of_the_rule(tags, taken):
    rule = Rule(ddl=True, tags=tags)
    for tag in (None, b"\x11"):
        assert RuleSet(include=(rule,)).keeps_ddl("hr", "t", tag=tag) is (tag in taken)
        assert RuleSet(exclude=(rule,)).keeps_ddl("hr", "t", tag=tag) is (tag not in taken)


@pytest.mark.parametrize(
    "part",
    [
        {"condition": parse("object_owner = 'hr'", "condition")},
        {"subset": parse("id > 5", "subset")},
        {"transformation": Transformation(operations=(RenameSchema(owner="sales"),))},
    ],
    ids=lambda part: next(iter(part)),
)
def test_rule_for_some_rows_or_changed_ones_takes_no_ddl(part):
    assert RuleSet(include=(Rule(ddl=True),)).keeps_ddl("hr", "t", tag=None)
    assert not RuleSet(include=(Rule(ddl=True, **part),)).keeps_ddl("hr", "t", tag=None)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("emp*", "employees", True),
        ("emp*", "temp", False),
        ("t?", "t1", True),
        ("t?", "t12", False),
        ("a[1]", "a[1]", True),
        ("a[1]", "a1", False),
        ("T", "t", False),
        ("a.b", "axb", False),
        ("*", "a\nb", True),
    ],
)
def test_patterns_support_only_stars_and_question_marks(pattern, name, matches):
    assert Rule(name=pattern).matches_object("hr", name) is matches


@pytest.mark.parametrize(
    ("rule", "taken"),
    [
        (Rule(owner="hr", name="jobs"), ["hr.jobs"]),
        (Rule(owner="hr"), ["hr.jobs", "hr.jobs_old"]),
        (Rule(owner="h*", name="jobs"), ["hr.jobs", "hx.jobs"]),
        (Rule(), ["hr.jobs", "hr.jobs_old", "hx.jobs"]),
    ],
    ids=["table", "schema", "wildcard", "global"],
)
def test_rule_takes_its_table_its_schema_or_all_tables(rule, taken):
    tables = ("hr", "jobs"), ("hr", "jobs_old"), ("hx", "jobs")
    assert [f"{owner}.{name}" for owner, name in tables if rule.matches_object(owner, name)] == taken


def test_unmatched_rules_are_those_that_match_no_table():
    wrong, right = Rule(name="emplyees"), Rule(name="employees")
    assert RuleSet(include=(wrong, right)).unmatched([("hr", "employees")]) == (wrong,)
    assert RuleSet().unmatched([]) == ()
