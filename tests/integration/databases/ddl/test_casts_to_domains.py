"""Expressions that cast to domains are recorded only: the destination's domain may run what another role can replace."""

from __future__ import annotations

import pytest

from headrace.databases.ports import DdlOutcomeKind
from tests.support.databases.created_pair import CreatedPair

pytestmark = [pytest.mark.postgres]

TYPES = (
    "CREATE DOMAIN hr.dom AS text CHECK (VALUE <> 'y')",
    "CREATE TYPE hr.mood AS ENUM ('x', 'y')",
    "CREATE TYPE hr.pair AS (a hr.dom)",
)


def make(created: CreatedPair) -> None:
    created.both(*TYPES)
    (outcome,) = created.apply(created.created("jobs", "CREATE TABLE hr.jobs (id int PRIMARY KEY, title text)"))
    assert outcome.kind is DdlOutcomeKind.APPLIED


@pytest.mark.parametrize(
    ("statement", "tag"),
    [
        ("ALTER TABLE hr.jobs ADD CONSTRAINT c CHECK ((title::hr.dom)::text <> 'x')", "ALTER TABLE"),
        ("ALTER TABLE hr.jobs ADD CONSTRAINT c CHECK ((ARRAY[title]::hr.dom[])[1]::text <> 'x')", "ALTER TABLE"),
        ("ALTER TABLE hr.jobs ADD CONSTRAINT c CHECK ((ROW(title)::hr.pair).a::text <> 'x')", "ALTER TABLE"),
        ("CREATE INDEX x ON hr.jobs ((title::hr.dom))", "CREATE INDEX"),
        ("CREATE INDEX CONCURRENTLY x ON hr.jobs ((title::hr.dom))", "CREATE INDEX"),
        ("ALTER TABLE hr.jobs ADD g text GENERATED ALWAYS AS ((title::hr.dom)::text) STORED", "ALTER TABLE"),
    ],
)
def test_expression_over_a_domain_is_recorded_only(created: CreatedPair, statement: str, tag: str) -> None:
    make(created)
    is_rewritten = "GENERATED" in statement
    change = (
        created.rewritten("jobs", statement, reasons=2) if is_rewritten else created.altered("jobs", statement, tag=tag)
    )
    (outcome,) = created.apply(change)
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert "may do anything" in outcome.reason


def test_new_table_with_a_check_over_a_domain_is_recorded_only(created: CreatedPair) -> None:
    created.both(*TYPES)
    statement = "CREATE TABLE hr.made (id int PRIMARY KEY, t text CHECK ((t::hr.dom)::text <> 'x'))"
    (outcome,) = created.apply(created.created("made", statement))
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert not created.exists("made")


def test_label_of_an_enumerated_type_is_replicated(created: CreatedPair) -> None:
    make(created)
    for statement in (
        "ALTER TABLE hr.jobs ADD m hr.mood DEFAULT 'x'",
        "ALTER TABLE hr.jobs ADD CONSTRAINT c CHECK (m <> 'y'::hr.mood)",
    ):
        (outcome,) = created.apply(created.altered("jobs", statement))
        assert outcome.kind is DdlOutcomeKind.APPLIED, outcome.reason
    created.assert_equal("jobs")
