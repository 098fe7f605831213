"""Parsing SQL to conditions: supported syntax, and refusals with place and reason."""

from __future__ import annotations

import pickle
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings

from headrace.rules.conditions.condition import parse
from headrace.rules.conditions.nodes import (
    And,
    Attribute,
    Compare,
    ConditionError,
    Constant,
    Distinct,
    Image,
    In,
    IsNull,
    IsTruth,
    Like,
    Not,
    Or,
    Truth,
    ValueOf,
)
from headrace.rules.conditions.parsing import CONDITION_CHARACTERS_MAX, parsed
from headrace.rules.conditions.spelling import spelled_tree
from tests.support.session.seeds import scaled
from tests.support.values.condition_values import conditions

A, B = ValueOf(Image.ROW, "a"), ValueOf(Image.ROW, "b")
ONE = Constant(value=1)

UNDERSTOOD = {
    "a = 1": Compare("=", A, ONE),
    "1 < a": Compare(">", A, ONE),
    "A != -1.50": Compare("<>", A, Constant(value=Decimal("-1.50"))),
    '"A" = 1': Compare("=", ValueOf(Image.ROW, "A"), ONE),
    "new.a = old.b": Compare("=", ValueOf(Image.NEW, "a"), ValueOf(Image.OLD, "b")),
    "lcr.command_type = 'INSERT'": Compare("=", Attribute("command_type"), Constant(value="INSERT")),
    "lcr.tag in ('1d', null)": In(Attribute("tag"), (Constant(value=b"\x1d"), Constant(value=None))),
    "a between 1 and 2 and b is null": And(
        (And((Compare(">=", A, ONE), Compare("<=", A, Constant(value=2)))), IsNull(B))
    ),
    "a = 1 or b = 1 and not a is null": Or((Compare("=", A, ONE), And((Compare("=", B, ONE), Not(IsNull(A)))))),
    "a not in (1)": Not(In(A, (ONE,))),
    "a is not distinct from b": Not(Distinct(A, B)),
    "a is distinct from null": Not(IsNull(A)),
    "a is not true": Not(IsTruth(Compare("=", A, Constant(value=True)), Truth.TRUE)),
    "(a = 1) is unknown": IsTruth(Compare("=", A, ONE), Truth.NULL),
    "a": Compare("=", A, Constant(value=True)),
    "((a)) is not null": Not(IsNull(A)),
    "a not like 'x\\_%'": Not(Like(A, "x\\_%")),
    "a = 'it''s \\ % \"'": Compare("=", A, Constant(value="it's \\ % \"")),
    "a < 'x' collate \"C\"": Compare("<", A, Constant(value="x"), bytewise=True),
    "a = 1 /* why -- and more */": Compare("=", A, ONE),
    "a = '--' and \"--\" is null": And((Compare("=", A, Constant(value="--")), IsNull(ValueOf(Image.ROW, "--")))),
    "\u00c4B = 1": Compare("=", ValueOf(Image.ROW, "\u00c4b"), ONE),
}


@pytest.mark.parametrize(("text", "tree"), UNDERSTOOD.items(), ids=UNDERSTOOD)
def test_supported_sql_is_parsed(text, tree):
    assert parse(text, "where").tree == tree


REFUSED = {
    # text -> fragments of the message, of the hint
    "": ("is empty", "department_id = 50"),
    "a = 1; b = 2": ("several statements", "one condition"),
    "a = 1 and": ("'and' (character 9)", "write a condition"),
    "a == 1": ("'==' (character 3)", "SQL compares with ="),
    "a = 'x": ("does not end", "close it"),
    "a = 1 -- why\nand b = 2": ("'--' (character 7)", "/* ... */"),
    "a = 'x' /* why */ -- and b = 2": ("'--'", "YAML"),
    "lower(a) = 'x'": ("'LOWER(a)' (character 1)", "functions"),
    "a + 1 = 2": ("'a + 1' (character 1)", "calculations"),
    "a || 'x' = 'y'": ("cannot be evaluated", "calculations"),
    "a ilike 'x'": ("ILIKE", "locale"),
    "a ~ 'x'": ("a ~ 'x'", "LIKE"),
    "a = date '2026-01-01'": ("CAST", "literal alone"),
    "a::int = 1": ("CAST", "literal alone"),
    "a = any (array[1])": ("ANY", "IN"),
    "a in (select 1)": ("cannot be evaluated", ""),
    "exists (select 1)": ("EXISTS", "one row"),
    "case when a then b end": ("CASE", "ANDs"),
    "a = null": ("a = NULL", "IS NULL"),
    "a between null and 1": ("BETWEEN", "IS NULL"),
    "a between symmetric 1 and 2": ("SYMMETRIC", ""),
    "1 = 1": ("1 = 1", "two constants"),
    "a like 'x' escape '!'": ("ESCAPE", "backslash"),
    "a like 'x\\'": ("LIKE", "escape"),
    "a like b": ("LIKE", "text in quotes"),
    'a = b collate "de_DE"': ("COLLATE", 'COLLATE "C"'),
    "(a, b) = (1, 2)": ("(a, b)", "one by one"),
    "a = $1": ("$1", "no parameters"),
    "a = :x": ("cannot be evaluated", "no parameters"),
    "a = E'x'": ("cannot be evaluated", "without E"),
    "a = 0x1f": ("cannot be evaluated", ""),
    "hr.a = 1": ("hr.a", "the rule's own"),
    "new.a.b = 1": ("new.a.b", ""),
    "a in ()": ("cannot be", ""),
    "a in (b)": ("IN", "values only"),
    "lcr.tga is null": ("lcr.tga", "did you mean tag?"),
    "lcr.commit_scn = 1": ("lcr.commit_scn", "use scn"),
    "lcr.source_time > '2026-01-31 08:30:00'": ("lcr.source_time", "with its offset from UTC"),
    "lcr.source_time > '2026-02-31 08:30:00+00'": ("lcr.source_time", "with its offset from UTC"),
    "lcr.source_time > 5": ("lcr.source_time", "in quotes"),
    "lcr.source_time like '2026%'": ("lcr.source_time", "that is a text"),
    "lcr.command_type = 'insert'": ("insert", "capital letters"),
    "lcr.command_type < 'INSERT'": ("command_type", "no order"),
    "lcr.scn = '5'": ("scn", "without quotes"),
    "lcr.object_name = 5": ("object_name", "in quotes"),
    "lcr.tag = 'xy'": ("tag", "hexadecimal"),
    "lcr.tag": ("tag", "no truth value"),
    "a = b = c": ("cannot be evaluated", "parentheses"),
    "not": ("not", ""),
}


@pytest.mark.parametrize(("text", "expected"), REFUSED.items(), ids=REFUSED)
def test_unsupported_condition_is_refused_with_the_reason(text, expected):
    named, advice = expected
    with pytest.raises(ConditionError) as refused:
        parse(text, "where")
    assert named in refused.value.message
    assert advice in refused.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "(" * 2000 + "a = 1" + ")" * 2000,
        "a = 1 or " * 3000 + "a = 1",
        "not " * 500 + "a",
        "a" * (CONDITION_CHARACTERS_MAX + 1),
    ],
)
def test_condition_without_bounds_is_refused(text):
    with pytest.raises(ConditionError):
        parse(text, "where")


def test_list_of_a_thousand_keys_is_one_comparison():
    condition = parse(f"a in ({', '.join(map(str, range(1000)))})", "where")
    assert len(condition.tree.among) == 1000


def test_chain_of_hundreds_of_ors_is_not_deep():
    assert len(parse(" or ".join(f"a = {n}" for n in range(600)), "where").tree.items) == 600


def test_unprefixed_names_are_attributes_in_conditions_columns_elsewhere():
    assert parse("tag is null", "condition").tree == IsNull(Attribute("tag"))
    assert parse("tag is null", "where").tree == IsNull(ValueOf(Image.ROW, "tag"))
    assert parse("new.tag is null", "condition").tree == IsNull(ValueOf(Image.NEW, "tag"))


@pytest.mark.parametrize("text", ["new.a = 1", "old.a = 1", "lcr.tag is null and a = 1", "true"])
def test_subset_condition_can_reference_only_columns(text):
    with pytest.raises(ConditionError):
        parse(text, "subset")


def test_condition_is_pickled_with_its_tree():
    condition = parse("a = 1 and b is null", "subset")
    again = pickle.loads(pickle.dumps(condition))
    assert again == condition
    assert again.__dict__["tree"] == condition.tree


@pytest.mark.seeded
@settings(max_examples=scaled(60, 3000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(conditions(with_attributes=False))
def test_condition_is_unchanged_by_a_round_trip_through_sql(tree):
    """Otherwise a destination would evaluate another condition than the rules."""
    text = spelled_tree(tree)
    assert spelled_tree(parsed(text, "where")) == text
