"""Which rewritings of rows are certain, and what the client's text must be for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.databases.postgres.ddl.conversions import QUERY_MAX, Cast, read_casts, rewriting_refusal
from headrace.databases.postgres.ddl.planning import plan_changes
from headrace.lcr.ddl_record import CastRules, DdlRecord
from headrace.lcr.structure import Structure
from tests.support.values.ddl_changes import column, ddl_record, structure

RULES = CastRules(encoding="UTF8", has_own=False)


@pytest.mark.parametrize(
    ("text", "casts"),
    [
        ("ALTER TABLE t ALTER c TYPE bigint", {"c": Cast.ASSIGNMENT}),
        ("alter table hr.t\n\talter column C set data type BIGINT ;  -- done", {"c": Cast.ASSIGNMENT}),
        ('/* a /* b */ \' */ ALTER TABLE IF EXISTS ONLY "hr"."t" ALTER c TYPE int8', {"c": Cast.ASSIGNMENT}),
        ('ALTER TABLE t * ALTER "C ""d" TYPE varchar(10) COLLATE pg_catalog."C"', {'C "d': Cast.ASSIGNMENT}),
        (
            "ALTER TABLE t ALTER c TYPE bigint, ALTER COLUMN d TYPE numeric(10, 2)",
            {"c": Cast.ASSIGNMENT, "d": Cast.ASSIGNMENT},
        ),
        ("ALTER TABLE t ALTER c TYPE bigint USING c", {"c": Cast.ASSIGNMENT}),
        ("ALTER TABLE t ALTER c TYPE bigint USING ((c::bigint))", {"c": Cast.EXPLICIT}),
        ("ALTER TABLE t ALTER c TYPE integer USING (c)::INT", {"c": Cast.EXPLICIT}),
        ('ALTER TABLE t ALTER c TYPE double precision USING "c"::double precision', {"c": Cast.EXPLICIT}),
        ("ALTER TABLE t ALTER c TYPE numeric(10,2) USING CAST(c AS numeric(10,2))", {"c": Cast.EXPLICIT}),
        ("ALTER TABLE t ALTER integer TYPE int USING CAST((integer) AS integer)", {"integer": Cast.EXPLICIT}),
        ('ALTER TABLE t ALTER "user" TYPE text USING "user"::text', {"user": Cast.EXPLICIT}),
        ("ALTER TABLE t ALTER type TYPE int USING type::int", {"type": Cast.EXPLICIT}),
        ("ALTER TABLE t ALTER c TYPE timestamptz USING c AT TIME ZONE 'UTC'", {"c": Cast.UTC}),
        (
            "ALTER TABLE t ALTER c DROP DEFAULT, ALTER c TYPE int USING c::int, ALTER c SET DEFAULT -1, ALTER c SET NOT"
            " NULL, ALTER d DROP NOT NULL",
            {"c": Cast.EXPLICIT},
        ),
        ("ALTER TABLE t ALTER c DROP NOT NULL", {}),
    ],
)
def test_plain_conversions_are_read(text: str, casts: dict[str, Cast]) -> None:
    assert read_casts(text, "t") == casts


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t ALTER integer TYPE bigint USING int",  # two columns
        "ALTER TABLE t ALTER integer TYPE text USING int::text",
        "ALTER TABLE t ALTER int TYPE text USING CAST(integer AS text)",
        "ALTER TABLE t ALTER c TYPE text USING CAST(c AS text",
        "",
        "ALTER TABLE other ALTER c TYPE bigint",
        "ALTER TABLE t.other ALTER c TYPE bigint",
        'ALTER TABLE "T" ALTER c TYPE bigint',
        "ALTER TABLE t ALTER c TYPE bigint; SELECT 1",
        "ALTER TABLE t ALTER c TYPE bigint; ALTER TABLE t ALTER d TYPE int USING d + 1",
        "BEGIN; ALTER TABLE t ALTER c TYPE bigint; COMMIT",
        "SELECT f()",
        "DO $$ BEGIN ALTER TABLE t ALTER c TYPE bigint; END $$",
        "ALTER TABLE t ALTER c TYPE bigint USING c * 2",
        "ALTER TABLE t ALTER c TYPE bigint USING c::bigint + 1",
        "ALTER TABLE t ALTER c TYPE bigint USING -c::bigint",
        "ALTER TABLE t ALTER c TYPE bigint USING d::bigint",
        "ALTER TABLE t ALTER c TYPE bigint USING f(c)",
        "ALTER TABLE t ALTER c TYPE bigint USING bigint(c)",
        "ALTER TABLE t ALTER c TYPE bigint USING c::int",
        "ALTER TABLE t ALTER c TYPE bigint USING c::numeric::bigint",
        "ALTER TABLE t ALTER c TYPE bigint USING t.c::bigint",
        'ALTER TABLE t ALTER "user" TYPE text USING user::text',
        "ALTER TABLE t ALTER c TYPE int USING c::int, ALTER d TYPE int USING d * 2",
        "ALTER TABLE t ALTER c TYPE timestamptz USING c AT TIME ZONE 'Europe/Berlin'",
        "ALTER TABLE t ALTER c TYPE timestamptz USING c AT TIME ZONE 'UTC''x'",
        "ALTER TABLE t ALTER c TYPE timestamptz USING c AT TIME ZONE 'UTC'\n'x'",
        "ALTER TABLE t ALTER c TYPE timestamptz USING c AT TIME ZONE E'UTC'",
        "ALTER TABLE t ALTER c TYPE bigint, ADD u uuid DEFAULT gen_random_uuid()",
        "ALTER TABLE t ALTER c TYPE bigint, ADD u int DEFAULT 5",
        "ALTER TABLE t ALTER c TYPE bigint, DROP d",
        "ALTER TABLE t ALTER c TYPE bigint, ALTER d SET DEFAULT random()",
        "ALTER TABLE t ALTER c TYPE bigint, ALTER d SET DEFAULT 1 + 1",
        "ALTER TABLE t ALTER c TYPE bigint, ALTER c TYPE bigint",
        "ALTER TABLE t ALTER c TYPE",
        "ALTER TABLE t ALTER c SET EXPRESSION AS (d)",
        'ALTER TABLE t ALTER U&"c" TYPE bigint',
        "ALTER TABLE t ALTER c TYPE t.d%TYPE",
        "ALTER TABLE t ALTER c TYPE bigint )",
        "ALTER TABLE t ALTER c\u00a0TYPE bigint",
        f"ALTER TABLE t ALTER {'c' * 64} TYPE bigint",
        "ALTER TABLE t ALTER c TYPE bigint".ljust(QUERY_MAX),
    ],
)
def test_anything_else_is_not_known(text: str) -> None:
    assert read_casts(text, "t") is None


def record(*types: str, **attributes: Any) -> DdlRecord:
    """Return a record of a rewriting in which column `c` got another type."""
    before, after = (structure(column(1, "id"), column(2, "c", kind)) for kind in types)
    values = {
        "query": "ALTER TABLE jobs ALTER c TYPE whatever",
        "rewritten": 4,
        "file": 7,
        "rewriting": {"from": 5, "encoding": "UTF8", "casts": False},
        **attributes,
    }
    return DdlRecord.of(ddl_record(before, after, **values).decode())


def why(found: DdlRecord, rules: CastRules | None = RULES) -> str:
    return rewriting_refusal(found, rules).partition(": ")[2]


def test_certain_conversion_is_planned_with_its_cast() -> None:
    found = record("text", "integer", query="ALTER TABLE jobs ALTER c TYPE int USING c::int")
    assert found.before is not None
    plan = plan_changes(found, found.before, 16, rules=RULES)
    assert plan.statements == (
        'ALTER TABLE ONLY "hr"."jobs" ALTER COLUMN "c" SET DATA TYPE integer USING "c"::integer',
    )
    assert (plan.may_rewrite, plan.rewrites_alike, plan.converted) == (True, True, frozenset({"c"}))
    assert "in its log" in plan_changes(found, found.before, 16).refusal


def test_what_is_there_already_proves_no_rows() -> None:
    found = record("integer", "bigint")
    assert isinstance(found.after, Structure)
    plan = plan_changes(found, found.after, 16, rules=RULES)
    assert (plan.refusal, plan.has_work, plan.rewrites_alike) == ("", False, False)


@pytest.mark.parametrize(
    ("types", "text"),
    [
        (("integer", "bigint"), "ALTER TABLE jobs ALTER c TYPE bigint"),
        (("numeric(10,2)", "numeric(12,3)"), "ALTER TABLE jobs ALTER c TYPE numeric(12,3)"),
        (("character varying(20)", "character varying(10)"), "ALTER TABLE jobs ALTER c TYPE varchar(10)"),
        (("timestamp(6) without time zone", "timestamp(3) without time zone"), "ALTER TABLE jobs ALTER c TYPE x"),
        (
            ("timestamp without time zone", "timestamp with time zone"),
            "ALTER TABLE jobs ALTER c TYPE timestamptz USING c AT TIME ZONE 'UTC'",
        ),
        (("text", "uuid"), "ALTER TABLE jobs ALTER c TYPE uuid USING c::uuid"),
    ],
)
def test_certain_conversions(types: tuple[str, str], text: str) -> None:
    assert not rewriting_refusal(record(*types, query=text), RULES)


@pytest.mark.parametrize(
    ("types", "text"),
    [
        (("text", "integer"), "ALTER TABLE jobs ALTER c TYPE int"),
        (("timestamp without time zone", "timestamp with time zone"), "ALTER TABLE jobs ALTER c TYPE timestamptz"),
        (("text", "date"), "ALTER TABLE jobs ALTER c TYPE date USING c::date"),
        (("double precision", "text"), "ALTER TABLE jobs ALTER c TYPE text"),
        (("integer", "public.score"), "ALTER TABLE jobs ALTER c TYPE score"),
        (('public."integer"', "bigint"), "ALTER TABLE jobs ALTER c TYPE bigint"),
        (("integer[]", "bigint[]"), "ALTER TABLE jobs ALTER c TYPE bigint[]"),
        (("money", "numeric"), "ALTER TABLE jobs ALTER c TYPE numeric"),
        (("integer", "bigint"), "ALTER TABLE jobs ALTER id TYPE integer"),
        (
            ("timestamp with time zone", "timestamp with time zone"),
            "ALTER TABLE jobs ALTER c TYPE timestamptz USING c AT TIME ZONE 'UTC'",
        ),
    ],
)
def test_conversions_that_more_than_the_row_decides_on(types: tuple[str, str], text: str) -> None:
    assert "depends on more than the row" in why(record(*types, query=text))


def test_what_makes_a_conversion_uncertain() -> None:
    certain = record("integer", "bigint")
    assert not rewriting_refusal(certain, RULES)
    assert "its text is not known" in why(replace(certain, is_nested=True))
    assert "not one ALTER TABLE" in why(replace(certain, query="ALTER TABLE jobs ALTER c TYPE bigint USING c * 2"))
    assert "does not show by what" in why(replace(certain, rewriting=None))
    assert "does not show by what" in why(certain, None)
    assert "CREATE CAST" in why(certain, replace(RULES, has_own=True))
    assert "another type, too" in why(replace(certain, rewritten=2)) or "gave them" in why(
        replace(certain, rewritten=2)
    )
    assert "not because of columns" in why(replace(certain, rewritten=4 | 8))
    texts = record("character(10)", "character varying(10)")
    assert not rewriting_refusal(texts, RULES)
    assert "SQL_ASCII" in why(texts, replace(RULES, encoding="SQL_ASCII"))
    assert not rewriting_refusal(certain, replace(RULES, encoding="SQL_ASCII"))


def added(**attributes: Any) -> DdlRecord:
    new = column(2, "g", **attributes)
    made = {"rewritten": 2, "file": 7, "rewriting": {"from": 5, "encoding": "UTF8", "casts": False}}
    return DdlRecord.of(ddl_record(structure(column(1, "id")), structure(column(1, "id"), new), **made).decode())


def test_stored_column_is_computed_here() -> None:
    found = added(generated="s", default="(id * 2)", not_null=True)
    assert found.before is not None
    plan = plan_changes(found, found.before, 16, rules=RULES)
    assert plan.last_statements(found.before) == (
        'ALTER TABLE ONLY "hr"."jobs" ADD COLUMN "g" integer GENERATED ALWAYS AS ((id * 2)) STORED NOT NULL',
    )
    assert plan.rewrites_alike
    calling = added(generated="s", default="f(id)", calls=True)
    assert "may do anything" in plan_changes(calling, calling.before, 16, rules=RULES).refusal


def test_default_that_wrote_rows_anew_stays_refused() -> None:
    assert "was added with them" in why(added(default="gen_random_uuid()"))
