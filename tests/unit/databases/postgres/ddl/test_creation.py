"""New tables: the statements that create one, what is left out, what is refused, and what a table lacks to be it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.base.errors import DataError
from headrace.databases.postgres.connection import quote
from headrace.databases.postgres.ddl.creation import (
    PlannedCreation,
    check_creation,
    other_form,
    plan_creation,
)
from headrace.databases.postgres.ddl.refusals import drop_refusal
from headrace.lcr.ddl_record import DdlRecord
from headrace.lcr.scn import ObjectNumber
from headrace.lcr.structure import ColumnPart, ConstraintPart, IndexPart, OwnedSequence, Part, Structure
from tests.support.values.hostile_names import HOSTILE

VERSION = 18

ID = ColumnPart(number=1, name="id", type_name="integer", not_null=True)
TEXT = ColumnPart(number=2, name="t", type_name="text")
KEY = ConstraintPart(number=20, name="jobs_pkey", type="p", definition="PRIMARY KEY (id)")
CHECK = ConstraintPart(number=21, name="positive", type="c", definition="CHECK ((id > 0))")
FOREIGN = ConstraintPart(number=22, name="boss", type="f", definition="FOREIGN KEY (id) REFERENCES hr.people(id)")
BY_TEXT = IndexPart(number=30, name="by_t", definition="CREATE INDEX by_t ON hr.jobs USING btree (t)")
SEQUENCE = OwnedSequence(
    owner="hr",
    name="jobs_id_seq",
    type="integer",
    start=5,
    increment=2,
    min=1,
    max=2147483647,
    cache=1,
    cycle=False,
    kind="a",
)
OPTIONS = "INCREMENT BY 2 MINVALUE 1 MAXVALUE 2147483647 START WITH 5 CACHE 1 NO CYCLE"


def table(*parts: Part, **attributes: Any) -> Structure:
    return Structure(
        **{"owner": "hr", "name": "jobs", "role": "shop_owner", **attributes},
        columns=tuple(part for part in parts if isinstance(part, ColumnPart)),
        constraints=tuple(part for part in parts if isinstance(part, ConstraintPart)),
        indexes=tuple(part for part in parts if isinstance(part, IndexPart)),
    )


def planned(
    *parts: Part,
    sequences: dict[str, OwnedSequence] | None = None,
    keys: dict[str, str] | None = None,
    **attributes: Any,
) -> PlannedCreation:
    record = DdlRecord(
        tag="CREATE TABLE",
        relation=ObjectNumber(16400),
        before=None,
        is_known=True,
        after=table(*parts, **attributes),
        version=VERSION,
        sequences=sequences or {},
        query="CREATE TABLE jobs (id int DEFAULT evil())",
    )
    return plan_creation(record, "headrace", VERSION, keys)


def columns(*parts: ColumnPart, sequences: dict[str, OwnedSequence] | None = None) -> str:
    """Return what stands between the brackets of CREATE TABLE."""
    found = [each for each in planned(*parts, sequences=sequences).statements if each.startswith("CREATE TABLE ")]
    return found[0].removeprefix('CREATE TABLE "hr"."jobs" (').removesuffix(")")


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({}, '"c" text'),
        ({"type_name": "numeric(10,2)", "default": "1.5"}, '"c" numeric(10,2) DEFAULT 1.5'),
        (
            {"collation": 'pg_catalog."C"', "default": "'x'::text", "not_null": True},
            """"c" text COLLATE pg_catalog."C" DEFAULT 'x'::text NOT NULL""",
        ),
        ({"default": "(id + 1)", "generated": "s"}, '"c" text GENERATED ALWAYS AS ((id + 1)) STORED'),
        ({"default": "upper(t)", "generated": "v"}, '"c" text GENERATED ALWAYS AS (upper(t)) VIRTUAL'),
        ({"type_name": 'hr."My mood"[]'}, '"c" hr."My mood"[]'),
    ],
)
def test_column_has_all_its_attributes(attributes: dict[str, Any], words: str) -> None:
    column = ColumnPart(**{"number": 1, "name": "c", "type_name": "text", **attributes})
    assert columns(column) == words


def test_columns_stand_in_the_sources_order_whatever_their_numbers() -> None:
    last = ColumnPart(number=7, name="a", type_name="text")
    assert columns(last, ID) == '"id" integer NOT NULL, "a" text'


@pytest.mark.parametrize(("kind", "words"), [("a", "ALWAYS"), ("d", "BY DEFAULT")])
def test_identity_column_names_its_sequence_and_options(kind: str, words: str) -> None:
    column = ColumnPart(number=1, name="id", type_name="integer", identity=kind, not_null=True)
    sequence = OwnedSequence(
        owner="hr", name='s"q', type="integer", start=5, increment=-2, min=-9, max=7, cache=3, cycle=True, kind="i"
    )
    options = "INCREMENT BY -2 MINVALUE -9 MAXVALUE 7 START WITH 5 CACHE 3 CYCLE"
    assert columns(column, sequences={"id": sequence}) == (
        f'"id" integer GENERATED {words} AS IDENTITY (SEQUENCE NAME "hr"."s""q" {options}) NOT NULL'
    )


def test_sequence_of_a_default_is_there_before_the_table_and_belongs_to_it_afterwards() -> None:
    default = "nextval('hr.jobs_id_seq'::regclass)"
    serial = ColumnPart(number=1, name="id", type_name="integer", default=default, not_null=True)
    assert planned(serial, sequences={"id": SEQUENCE}).statements == (
        f'CREATE SEQUENCE "hr"."jobs_id_seq" AS integer {OPTIONS}',
        f'CREATE TABLE "hr"."jobs" ("id" integer DEFAULT {default} NOT NULL)',
        'ALTER SEQUENCE "hr"."jobs_id_seq" OWNED BY "hr"."jobs"."id"',
    )


def test_constraints_are_made_with_the_table_and_indexes_follow() -> None:
    plan = planned(ID, TEXT, KEY, CHECK, FOREIGN, BY_TEXT)
    assert plan.statements == (
        'CREATE TABLE "hr"."jobs" ("id" integer NOT NULL, "t" text, CONSTRAINT "jobs_pkey" PRIMARY KEY (id),'
        ' CONSTRAINT "positive" CHECK ((id > 0)))',
    )
    assert plan.last_statements(table(ID, TEXT, KEY, CHECK)) == ("CREATE INDEX by_t ON hr.jobs USING btree (t)",)
    assert plan.left_out == ('constraint "boss": it is not known which table it refers to',)
    assert plan.new_keys == ()
    check_creation(plan, table(ID, TEXT, KEY, CHECK, BY_TEXT, role="headrace"))


def test_nothing_of_the_clients_text_is_run() -> None:
    plan = planned(ID, KEY)
    assert not any("evil" in each for each in (*plan.statements, *plan.last_statements(table(ID))))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_names(name: str) -> None:
    column = ColumnPart(number=1, name=name, type_name="text")
    plan = planned(column, owner=name, name=name)
    assert plan.statements == (f"CREATE TABLE {quote(name)}.{quote(name)} ({quote(name)} text)",)


@pytest.mark.parametrize(
    ("parts", "attributes", "reason"),
    [
        ([ID], {"kind": "p"}, "partitioned"),
        ([ID], {"is_partition": True}, "partition"),
        ([ID], {"parents": 1}, "inherits"),
        ([ID], {"persistence": "u"}, "unlogged"),
        ([ColumnPart(number=1, name="c", type_name="text", default="f()", calls=True)], {}, 'column "c" calls'),
        ([ID, ConstraintPart(number=1, name="k", type="c", definition="CHECK (f())", calls=True)], {}, "calls"),
        ([ID, IndexPart(number=1, name="i", definition="CREATE INDEX i ON hr.jobs (f(id))", calls=True)], {}, "calls"),
        ([ColumnPart(number=1, name="c", type_name="int", identity="a")], {}, "sequence is not known"),
        ([ColumnPart(number=1, name="c", type_name="int", not_null=True, not_valid=True)], {}, "not valid"),
    ],
)
def test_what_is_not_created_says_why(parts: list[Part], attributes: dict[str, Any], reason: str) -> None:
    plan = planned(*parts, **attributes)
    assert reason in plan.refusal
    assert not plan.statements


def test_foreign_key_follows_the_indexes_and_is_proved() -> None:
    plan = planned(ID, TEXT, KEY, FOREIGN, BY_TEXT, keys={"boss": ""})
    assert "FOREIGN" not in "".join(plan.statements)
    assert plan.last_statements(table(ID, TEXT, KEY)) == (
        BY_TEXT.definition,
        f'ALTER TABLE ONLY "hr"."jobs" ADD CONSTRAINT "boss" {FOREIGN.definition}',
    )
    assert (plan.left_out, plan.new_keys) == ((), (FOREIGN,))
    with pytest.raises(DataError, match='constraint "boss" is missing'):
        check_creation(plan, table(ID, TEXT, KEY, BY_TEXT, role="headrace"))
    check_creation(plan, table(ID, TEXT, KEY, BY_TEXT, FOREIGN, role="headrace"))


def test_foreign_key_that_would_be_made_is_missed_at_a_table_that_is_there() -> None:
    here = table(ID, KEY, role="headrace")
    assert other_form(planned(ID, KEY, FOREIGN, keys={"boss": "hr.people is not level"}), here) == ""
    assert other_form(planned(ID, KEY, FOREIGN, keys={"boss": ""}), here).startswith('constraint "boss" is missing')


def test_function_of_a_foreign_key_is_no_reason() -> None:
    key = ConstraintPart(number=1, name="k", type="f", definition="FOREIGN KEY (id) REFERENCES hr.x(id)", calls=True)
    assert not planned(ID, key).refusal


def test_another_major_version_is_refused() -> None:
    content = {
        "format": 1, "tag": "CREATE TABLE", "relation": 1, "before": None, "is_known": True,
        "after": None, "query": "", "is_nested": False, "user": "hr", "role": "none", "version": 17,
    }  # fmt: skip
    assert "same major version" in plan_creation(DdlRecord.of(json.dumps(content)), "headrace", VERSION).refusal


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (table(ID, TEXT, role="headrace"), 'constraint "jobs_pkey" is missing'),
        (table(ID, KEY, role="headrace"), 'column "t" is missing'),
        (table(ID, TEXT, KEY, BY_TEXT, role="headrace"), 'index "by_t" is new'),
        (table(ID, TEXT, KEY), "the table itself changed"),
        (None, "the table itself changed"),
    ],
)
def test_result_that_differs_is_refused(here: Structure | None, said: str) -> None:
    with pytest.raises(DataError, match=said):
        check_creation(planned(ID, TEXT, KEY), here)


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (table(ID, TEXT, KEY, FOREIGN), ""),
        (table(ID, TEXT, KEY, CHECK, BY_TEXT, role="other"), ""),
        (table(ID, KEY), 'column "t" is missing here, and text at the source'),
        (table(ID, ColumnPart(number=2, name="t", type_name="int"), KEY), 'column "t" is int here, and text'),
        (table(ID, TEXT), 'constraint "jobs_pkey" is missing here'),
        (table(ID, TEXT, KEY, kind="p"), "it is a partitioned table"),
        (table(ID, TEXT, KEY, children=1), "others inherit"),
        (table(ID, TEXT, KEY, persistence="u"), "unlogged here"),
    ],
)
def test_table_that_is_there_needs_every_part_and_may_have_more(here: Structure, said: str) -> None:
    found = other_form(planned(ID, TEXT, KEY, FOREIGN), here)
    assert said in found
    assert bool(found) == bool(said)


def test_only_plain_tables_are_dropped() -> None:
    assert not drop_refusal(table(ID), table(ID))
    assert not drop_refusal(None, None)
    assert "partition" in drop_refusal(table(ID, kind="p"), table(ID))
    assert "at the destination" in drop_refusal(table(ID), table(ID, is_partition=True))
    assert "inherit" in drop_refusal(table(ID), table(ID, children=1))
