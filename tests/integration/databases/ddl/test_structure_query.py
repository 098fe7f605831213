"""The query that describes a table: alike under all settings, and with the functions that may do anything."""

from __future__ import annotations

import pytest

from headrace.databases.postgres.ddl.structure_query import PRINTED_WITH, STRUCTURE, read_structure, structure_query
from headrace.lcr.structure import elements, structure_from_json
from headrace.lcr.table_name import TableName
from tests.support.databases.ddl_pair import DdlPair, carried

pytestmark = [pytest.mark.postgres]


def test_query_in_a_function_prints_what_the_query_prints(pair: DdlPair) -> None:
    """The function has a user's settings around it, and the destination's session has Headrace's."""
    pair.user.execute(
        """CREATE TYPE hr.mood AS ENUM ('good');
        ALTER TABLE hr.jobs ADD at timestamptz DEFAULT '2026-11-28 10:00:00+01', ADD ago interval DEFAULT '1 day 2 hours',
        ADD feels hr.mood DEFAULT 'good', ADD price money DEFAULT 12.50, ADD raw bytea DEFAULT '\\x00ff',
        ADD CHECK (at > '2020-01-01'::timestamptz), ADD size float8 DEFAULT 0.1;
        CREATE INDEX by_mood ON hr.jobs (feels) WHERE at > '2026-01-01 00:00:00+00'"""
    )
    with_settings = " ".join(
        f"SET {name} = {value if name == 'search_path' else repr(value)}" for name, value in PRINTED_WITH.items()
    )
    pair.user.execute(
        f"CREATE FUNCTION structure_of(oid) RETURNS jsonb LANGUAGE sql VOLATILE {with_settings} AS $q$ {STRUCTURE} $q$".encode()
    )
    pair.user.execute(
        """SET search_path = hr, public; SET "DateStyle" = 'German'; SET "TimeZone" = 'Asia/Tokyo'; SET "IntervalStyle" = 'iso_8601';
        SET bytea_output = 'escape'; SET extra_float_digits = -10; SET quote_all_identifiers = on"""
    )
    row = pair.user.execute("SELECT public.structure_of('hr.jobs'::regclass)").fetchone()
    assert row is not None
    assert structure_from_json(row[0]) == pair.at_source()
    assert {str(key) for key in elements(pair.at_source())} >= {'index "by_mood"', 'column "feels"'}


def test_views_and_temporary_tables_have_no_structure(pair: DdlPair) -> None:
    pair.there.execute("CREATE VIEW hr.v AS SELECT 1; CREATE TEMPORARY TABLE jobs (id int)")
    assert read_structure(pair.there, TableName("hr", "v")) is None
    query = structure_query("'pg_temp.jobs'::pg_catalog.regclass")
    assert pair.there.execute(query.encode()).fetchone() is None


CALLS = [
    ("ALTER TABLE hr.jobs ADD c timestamptz DEFAULT now()", False),
    ("ALTER TABLE hr.jobs ADD c uuid DEFAULT gen_random_uuid()", False),
    ("CREATE SEQUENCE hr.s; ALTER TABLE hr.jobs ADD c int DEFAULT nextval('hr.s')", False),
    ("ALTER TABLE hr.jobs ADD c text DEFAULT lower('A')", False),
    ("ALTER TABLE hr.jobs ADD c tsquery DEFAULT ts_rewrite('a', 'SELECT NULL::tsquery, NULL::tsquery')", True),
    ("ALTER TABLE hr.jobs ADD c text DEFAULT hr.f(1)", True),
    ("ALTER TABLE hr.jobs ADD c text DEFAULT set_config('headrace.x', '1', false)", True),
    ("ALTER TABLE hr.jobs ADD CHECK (id > 0 AND lower(title) <> '')", False),
    ("ALTER TABLE hr.jobs ADD CHECK (id > random())", True),
    ("ALTER TABLE hr.jobs ADD CHECK (ts_rewrite('a', 'SELECT NULL::tsquery, NULL::tsquery') IS NOT NULL)", True),
    ("ALTER TABLE hr.jobs ADD CHECK (hr.f(id) <> '')", True),
    ("ALTER TABLE hr.jobs ADD CHECK (id OPERATOR(hr.===) 1)", True),
    ("ALTER TABLE hr.jobs ADD EXCLUDE USING btree (hr.f(id) WITH =)", True),
    ("ALTER TABLE hr.jobs ADD EXCLUDE USING btree (lower(title) WITH =)", False),
    ("ALTER TABLE hr.jobs ADD UNIQUE (title)", False),
    ("CREATE INDEX ON hr.jobs (lower(title)) WHERE id > 5", False),
    ("CREATE INDEX ON hr.jobs (hr.f(id))", True),
    ("CREATE INDEX ON hr.jobs (id) WHERE hr.f(id) <> ''", True),
]


@pytest.mark.parametrize(("statement", "calls"), CALLS)
def test_functions_that_may_do_anything_are_noticed(pair: DdlPair, statement: str, calls: bool) -> None:
    pair.user.execute(
        """CREATE FUNCTION hr.f(int) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1::text || ''x''';
        CREATE FUNCTION hr.same(int, int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT $1 <> $2 + 7';
        CREATE OPERATOR hr.=== (FUNCTION = hr.same, LEFTARG = int, RIGHTARG = int)"""
    )
    before = elements(pair.at_source())
    pair.user.execute(statement.encode())
    (new,) = [part for key, part in elements(pair.at_source()).items() if key not in before]
    assert new.calls == calls


def test_unique_index_that_a_foreign_key_names_stays_an_index(pair: DdlPair) -> None:
    pair.user.execute(
        "CREATE UNIQUE INDEX u ON hr.jobs (title); ALTER TABLE hr.jobs ADD FOREIGN KEY (title) REFERENCES hr.jobs (title)"
    )
    structure = pair.at_source()
    assert structure is not None
    assert [part.name for part in structure.indexes] == ["u"]


def test_not_null_that_is_not_valid_is_no_not_null(pair: DdlPair) -> None:
    if pair.version < 18:
        pytest.skip("PostgreSQL 18 has them")
    planned, _ = pair.apply(pair.change("ALTER TABLE hr.jobs ADD CONSTRAINT n NOT NULL title NOT VALID"))
    assert "not valid" in planned.refusal
    assert carried(pair, "ALTER TABLE hr.jobs VALIDATE CONSTRAINT n")
