"""Renames by clients before an apply process: the apply process follows arriving names back to the source's names."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.rules.clients_before import ClientsBefore
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import ANY_TAG, Rule, RuleSet, TagCondition
from headrace.rules.transformations.transformation import RenameSchema, RenameTable, Transformation
from tests.support.session.noted import noted
from tests.support.values.lcr_batches import table_version

INTO_SALES = Transformation(operations=(RenameSchema(owner="sales"),))
OWNERS = ("hr", "sales", "crm", "x")


def as_table(owner: str, name: str) -> Transformation:
    return Transformation(operations=(RenameTable(owner=owner, name=name),))


def kept(*clients: RuleSet) -> set[tuple[str, str]]:
    before = ClientsBefore(clients=clients, owners=OWNERS)
    return {(owner, name) for owner in OWNERS for name in ("a", "b", "c") if before.keeps(owner, name, tag=None)}


@pytest.mark.parametrize(
    ("clients", "names"),
    [
        (
            [RuleSet(include=(Rule(owner="hr", transformation=INTO_SALES),))],
            {("sales", "a"), ("sales", "b"), ("sales", "c")},
        ),
        (
            [RuleSet(include=(Rule(owner="hr", transformation=INTO_SALES),), exclude=(Rule(owner="hr", name="a"),))],
            {("sales", "b"), ("sales", "c")},
        ),
        # The negative rule names a table that no longer exists under that name.
        (
            [
                RuleSet(
                    include=(Rule(owner="hr", name="a", transformation=as_table("hr", "b")),),
                    exclude=(Rule(owner="hr", name="b"),),
                )
            ],
            {("hr", "b")},
        ),
        (
            [
                RuleSet(
                    include=(
                        Rule(owner="hr", name="a", transformation=as_table("hr", "b")),
                        Rule(owner="hr", name="b", transformation=as_table("hr", "a")),
                    )
                ),
                RuleSet(exclude=(Rule(owner="hr", name="a"),)),
            ],
            {("hr", "b")},
        ),
        (
            [
                RuleSet(include=(Rule(transformation=INTO_SALES),)),
                RuleSet(include=(Rule(owner="sales", name="a", transformation=as_table("crm", "c")),)),
            ],
            {("crm", "c")},
        ),
        (
            [RuleSet(), RuleSet(include=(Rule(owner="h*", name="?", transformation=INTO_SALES), Rule(owner="crm")))],
            {("sales", "a"), ("sales", "b"), ("sales", "c"), ("crm", "a"), ("crm", "b"), ("crm", "c")},
        ),
    ],
)
def test_name_passes_when_a_captured_table_ends_up_with_it(clients, names):
    assert kept(*clients) == names


def test_tag_is_evaluated_under_each_name_of_the_table():
    before = ClientsBefore(
        clients=(
            RuleSet(include=(Rule(owner="hr", name="a", tags=ANY_TAG, transformation=INTO_SALES),)),
            RuleSet(include=(Rule(owner="sales"),)),
        ),
        owners=OWNERS,
    )
    evaluation = RuleEvaluation(before, RuleSet())
    assert evaluation.keeps(table_version("a", owner="sales"), [None, b"\x01"]) == [True, False]
    assert not evaluation.keeps_all
    assert evaluation.keeps_any(table_version("a", owner="sales"))
    assert not evaluation.keeps_any(table_version("a", owner="hr"))


def test_unlisted_tags_share_one_evaluation(monkeypatch):
    """Users can give each transaction a different tag."""
    before = ClientsBefore(
        clients=(
            RuleSet(
                include=(
                    Rule(
                        owner="hr", tags=TagCondition(listed=(b"\x01",), takes_listed=False), transformation=INTO_SALES
                    ),
                )
            ),
        ),
        owners=OWNERS,
    )
    asked: list[Any] = []
    keeps = ClientsBefore.keeps
    monkeypatch.setattr(
        ClientsBefore,
        "keeps",
        lambda self, owner, name, *, tag: (noted(asked, tag), keeps(self, owner, name, tag=tag))[1],
    )
    evaluation, tags = RuleEvaluation(before, RuleSet()), [number.to_bytes(2, "big") for number in range(500)]
    assert evaluation.keeps(table_version("a", owner="sales"), [None, b"\x01", *tags]) == [True, False, *[True] * 500]
    assert len(asked) == 3


def test_ddl_passes_clients_that_all_take_it_under_its_own_name():
    taking, renaming = Rule(owner="hr", ddl=True), Rule(owner="hr", ddl=True, transformation=INTO_SALES)
    for rules, passes in (((taking, taking), True), ((taking, Rule()), False), ((taking, renaming), False)):
        before = ClientsBefore(clients=tuple(RuleSet(include=(rule,)) for rule in rules), owners=OWNERS)
        assert before.keeps_ddl("hr", "a", tag=None) is passes
        assert RuleEvaluation(before, RuleSet()).keeps_ddl("hr", "a", tag=None) is passes
        assert not before.keeps_ddl("sales", "a", tag=None)


def test_table_that_two_rules_rename_differently_never_arrives():
    into_crm = Transformation(operations=(RenameSchema(owner="crm"),))
    rules = RuleSet(
        include=(Rule(owner="hr", name="a", transformation=INTO_SALES), Rule(owner="hr", transformation=into_crm))
    )
    assert kept(rules) == {("crm", "b"), ("crm", "c")}
