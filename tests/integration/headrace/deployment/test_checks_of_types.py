"""Findings of `check` about types that differ at the destination: labels, domains, fields, ranges."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.support.databases.checked import Checked, replicated, rows
from tests.support.session.matrices import cases, values

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.mark.parametrize(
    "changes",
    cases(
        {
            "one": ["RENAME VALUE 'b' TO 'c'"],
            "shifted": ["RENAME VALUE 'b' TO 'c'", "RENAME VALUE 'a' TO 'b'"],
            "exchanged": ["RENAME VALUE 'a' TO 'x'", "RENAME VALUE 'b' TO 'a'", "RENAME VALUE 'x' TO 'b'"],
            "renamed and added": ["RENAME VALUE 'b' TO 'c'", "ADD VALUE 'b' BEFORE 'c'", "ADD VALUE 'd'"],
            "added": ["ADD VALUE 'c' AFTER 'b'"],
        },
        core=["exchanged", "renamed and added"],
    ),
)
def test_renamed_labels_are_renamed_by_the_fixes_of_check_and_others_added(
    checked: Checked, changes: list[str]
) -> None:
    for site in ("a", "b"):
        checked.execute(
            site,
            "CREATE TYPE mood AS ENUM ('a', 'b')",
            "CREATE TABLE t (id int PRIMARY KEY, m mood)",
            "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        )
    with replicated(checked):
        checked.execute("a", *(f"ALTER TYPE mood {change}" for change in changes))
        found = checked.about("t")
        assert ["ADD VALUE" in finding.fix for finding in found] == sorted("ADD VALUE" in each.fix for each in found)
        # All of it, in the printed order.
        for finding in found:
            for line in finding.fix.splitlines():
                checked.execute("b", *re.findall(r"ALTER TYPE [^;]+", line.partition(" -- ")[0]))
        assert not [finding for finding in checked.about("t") if "ALTER TYPE" in finding.fix]
        for query in (
            "SELECT id, m::text FROM t ORDER BY id",
            "SELECT enumlabel FROM pg_enum ORDER BY enumsortorder",
        ):
            assert rows(checked, "a", query) == rows(checked, "b", query)


def test_source_only_enum_labels_are_reported_and_fixes_keep_their_order(checked: Checked) -> None:
    labels = ["zero", "one", "two", "it's", "four"]
    domain = "CREATE DOMAIN moods AS mood[]"
    table = "CREATE TABLE t (id int PRIMARY KEY, m moods)"
    checked.execute("a", "CREATE TYPE mood AS ENUM ('zero', 'one', 'two', 'it''s', 'four')", domain, table)
    checked.execute("b", "CREATE TYPE mood AS ENUM ('one', 'four', 'own')", domain, table)
    (finding,) = [finding for finding in checked.about("t") if "lacks labels" in finding.problem]
    assert "(zero, two, it's)" in finding.problem
    checked.execute("b", *finding.fix.splitlines())
    assert not [finding for finding in checked.about("t") if "lacks labels" in finding.problem]
    with psycopg.connect(checked.dsns["b"]) as connection:
        found = connection.execute("SELECT unnest(enum_range(NULL::mood))::text").fetchall()
    assert [label for (label,) in found if label != "own"] == labels


@pytest.mark.parametrize(
    ("there", "here", "renamed"),
    cases(
        {
            "one": (["active", "done"], ["open", "done"], {"open": "active"}),
            "doubtful": (["new", "active", "done", "last"], ["open", "done"], None),
            "two": (["a", "x", "b", "y's"], ["a", "m", "b", "n"], {"m": "x", "n": "y's"}),
            "one, and a new one": (["a", "x", "b", "c"], ["a", "m", "b"], {"m": "x"}),
        },
        core=["doubtful", "one, and a new one"],
    ),
)
def test_renamed_label_is_not_to_be_added(
    checked: Checked, there: list[str], here: list[str], renamed: dict[str, str] | None
) -> None:
    for site, labels in (("a", there), ("b", here)):
        checked.execute(
            site,
            f"CREATE TYPE mood AS ENUM ({', '.join(sql.Literal(label).as_string(None) for label in labels)})",
            "CREATE TABLE t (id int PRIMARY KEY, m mood)",
        )
    (finding,) = [finding for finding in checked.about("t") if "lacks labels" in finding.problem]
    if renamed is None:
        assert "ADD VALUE 'active'" not in finding.fix
        assert "ADD VALUE 'new'" not in finding.fix
        assert "new, active stand in the place of open" in finding.fix
        return
    checked.execute("b", *finding.fix.splitlines())
    assert not [finding for finding in checked.about("t") if "lacks labels" in finding.problem]
    with psycopg.connect(checked.dsns["b"]) as connection:
        assert [label for (label,) in connection.execute("SELECT unnest(enum_range(NULL::mood))::text")] == there


def test_enum_labels_in_another_order_are_reported(checked: Checked) -> None:
    table = "CREATE TABLE t (id int PRIMARY KEY, m mood)"
    checked.execute("a", "CREATE TYPE mood AS ENUM ('low', 'middle', 'high')", table)
    checked.execute("b", "CREATE TYPE mood AS ENUM ('high', 'own', 'low', 'middle')", table)
    (finding,) = [finding for finding in checked.about("t") if "order" in finding.problem]
    assert not finding.is_error
    assert "another order than at the source (low, middle, high)" in finding.problem


def test_domain_narrower_than_the_sources_is_an_error_and_the_fix_suffices(checked: Checked) -> None:
    table = "CREATE TABLE t (id int PRIMARY KEY, v price, w name_of)"
    checked.execute("a", "CREATE DOMAIN price AS numeric(9,4); CREATE DOMAIN name_of AS varchar(5)", table)
    checked.execute("b", "CREATE DOMAIN price AS numeric(5,2); CREATE DOMAIN name_of AS varchar(9)", table)
    (finding,) = [finding for finding in checked.about("t") if "domain" in finding.problem]
    assert finding.is_error
    assert (
        "v is of the domain public.price over numeric(5,2), and at the source of public.price over numeric(9,4)"
        in finding.problem
    )
    checked.execute("b", *finding.fix.splitlines())
    assert not [finding for finding in checked.about("t") if finding.is_error]


def _soak(*case: str) -> Any:
    """Return a case of a matrix that only `make soak` runs."""
    return pytest.param(*case, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("types", "here", "column", "problem"),
    [
        _soak(
            "CREATE DOMAIN p AS numeric(9,4)",
            "CREATE DOMAIN p AS numeric(5,2)",
            "p[]",
            "where v[] is numeric(5,2), and at the source numeric(9,4)",
        ),
        _soak(
            "CREATE DOMAIN p AS timestamp",
            "CREATE DOMAIN p AS timestamp(0)",
            "p[]",
            "where v[] is timestamp(0), and at the source timestamp",
        ),
        (
            "CREATE TYPE p AS (a int, b varchar)",
            "CREATE TYPE p AS (a int, b varchar(3))",
            "p",
            "where v.b is varchar(3), and at the source varchar",
        ),
        _soak(
            "CREATE TYPE p AS (a numeric[])",
            "CREATE TYPE p AS (a numeric(5,2)[])",
            "p[]",
            "where v[].a is numeric(5,2)[], and at the source numeric[]",
        ),
        _soak(
            "CREATE TYPE p AS (a int, b timestamp)",
            "CREATE TYPE p AS (a int, b date)",
            "p",
            "where v.b is date, and at the source timestamp",
        ),
        _soak(
            "CREATE DOMAIN p AS float8",
            "CREATE DOMAIN p AS float4",
            "p[]",
            "where v[] is float4, and at the source float8",
        ),
        (
            "CREATE TYPE p AS (a int, b int)",
            "CREATE TYPE p AS (b int, a int)",
            "p",
            "fields are in another order than at the source (.a, .b)",
        ),
    ],
)
def test_types_with_narrower_or_reordered_parts_are_an_error(
    checked: Checked, types: str, here: str, column: str, problem: str
) -> None:
    checked.execute("a", types, f"CREATE TABLE t (id int PRIMARY KEY, v {column})")
    checked.execute("b", here, f"CREATE TABLE t (id int PRIMARY KEY, v {column})")
    (finding,) = [finding for finding in checked.about("t") if finding.is_error]
    assert problem in finding.problem
    assert checked.at_up("t") == [finding]
    checked.execute(
        "b",
        f"ALTER {'DOMAIN' if 'DOMAIN' in here else 'TYPE'} p RENAME TO before",
        types,
        f"ALTER TABLE public.t ALTER COLUMN v TYPE {column} USING v::text::{column}",
    )
    assert 'ALTER TABLE "public"."t" ALTER COLUMN "v" TYPE ... USING "v"::text::...' in finding.fix
    assert not [finding for finding in checked.about("t") if finding.is_error]


@pytest.mark.parametrize(
    ("there", "here", "problem", "fix"),
    [
        _soak(
            "a int, b int, c text",
            "a int",
            "lacks .b, .c",
            'ALTER TYPE "public"."p" ADD ATTRIBUTE "b" int4, ADD ATTRIBUTE "c" text;',
        ),
        _soak("a int", "a int, b int", "has besides .b", 'ALTER TYPE "public"."p" DROP ATTRIBUTE "b";'),
        (
            "a int, c text",
            "a int, b int",
            "lacks .c and has besides .b",
            'ALTER TYPE "public"."p" DROP ATTRIBUTE "b", ADD ATTRIBUTE "c" text;',
        ),
        ("a int, b int, c int", "a int, c int", "lacks .b", "make the type anew"),
    ],
)
def test_composite_type_with_other_fields_is_an_error_with_a_fix(
    checked: Checked, there: str, here: str, problem: str, fix: str
) -> None:
    checked.execute("a", f"CREATE TYPE p AS ({there})", "CREATE TABLE t (id int PRIMARY KEY, v p)")
    checked.execute("b", f"CREATE TYPE p AS ({here})", "CREATE TABLE t (id int PRIMARY KEY, v p)")
    (finding,) = [finding for finding in checked.about("t") if finding.is_error]
    assert problem in finding.problem
    assert fix in finding.fix
    assert checked.at_up("t") == [finding]
    if fix.startswith("ALTER"):
        checked.execute("b", finding.fix)
        assert not [finding for finding in checked.about("t") if finding.is_error]


@pytest.mark.parametrize("columns", values(["v p", "v p[]", "v p, w p[]", "v o"], "v p, w p[]", "v o"))
def test_field_that_looks_renamed_is_to_be_renamed_and_keeps_its_values(checked: Checked, columns: str) -> None:
    values = {
        "v p": "ROW('Elm', '1')::p",
        "v p[]": "ARRAY[ROW('Elm', '1')::p]",
        "v p, w p[]": "ROW('Elm', '1')::p, ARRAY[ROW('Elm', '1')::p]",
        "v o": "ROW(ROW('Elm', '1')::p)::o",
    }
    for site in ("a", "b"):
        checked.execute(
            site,
            "CREATE TYPE p AS (street text, zip text)",
            "CREATE TYPE o AS (inner_one p)",
            f"CREATE TABLE t (id int PRIMARY KEY, {columns})",
            f"INSERT INTO t SELECT 1, {values[columns]}",
        )
    checked.execute("a", "ALTER TYPE p RENAME ATTRIBUTE zip TO plz")
    (finding,) = [finding for finding in checked.about("t") if "is of type" in finding.problem]
    assert finding.fix.startswith('ALTER TYPE "public"."p" RENAME ATTRIBUTE "zip" TO "plz"; -- unless')
    checked.execute("b", finding.fix)
    assert not [finding for finding in checked.about("t") if "is of type" in finding.problem]
    shown = []
    for dsn in checked.dsns.values():
        with psycopg.connect(dsn) as connection:
            shown.append(connection.execute("SELECT array_agg(to_jsonb(t)) FROM t").fetchall())
    assert shown[0] == shown[1]
    assert "plz" in str(shown[0])


@pytest.mark.parametrize(
    ("there", "here", "problem"),
    [
        ("", "subtype = float8", "where v[]<> is float8, and at the source numeric"),
        (
            "CREATE DOMAIN d AS numeric(5,2);",
            "subtype = d, subtype_opclass = numeric_ops",
            "where v[]<> is numeric(5,2), and at the source numeric",
        ),
    ],
)
def test_range_over_a_type_that_would_change_the_values_is_an_error(
    checked: Checked, there: str, here: str, problem: str
) -> None:
    checked.execute("a", "CREATE TYPE p AS RANGE (subtype = numeric)", "CREATE TABLE t (id int PRIMARY KEY, v p[])")
    checked.execute("b", f"{there} CREATE TYPE p AS RANGE ({here})", "CREATE TABLE t (id int PRIMARY KEY, v p[])")
    (finding,) = checked.at_up("t")
    assert finding.is_error
    assert problem in finding.problem


@pytest.mark.parametrize(
    ("types", "here", "column"),
    [
        _soak("CREATE DOMAIN p AS numeric(5,2)", "CREATE DOMAIN p AS numeric(9,2)", "p[]"),
        ("CREATE DOMAIN p AS varchar(5)[]", "CREATE DOMAIN p AS varchar(9)[]", "p"),
        _soak(
            "CREATE DOMAIN o AS timestamp; CREATE DOMAIN p AS o",
            "CREATE DOMAIN o AS timestamp; CREATE DOMAIN p AS timestamp(6)",
            "p",
        ),
        (
            "CREATE TYPE p AS (a varchar(3), gone int, b int); ALTER TYPE p DROP ATTRIBUTE gone",
            "CREATE TYPE p AS (a varchar, b int)",
            "p",
        ),
        (
            "CREATE TYPE p AS (a int2, b int4, c varchar(5), d numeric(5,2)[])",
            "CREATE TYPE p AS (a int4, b int8, c text, d numeric(7,2)[])",
            "p",
        ),
        _soak(
            "CREATE DOMAIN d AS numeric(5,2); CREATE TYPE p AS RANGE (subtype = d, subtype_opclass = numeric_ops)",
            "CREATE TYPE p AS RANGE (subtype = numeric)",
            "p",
        ),
        _soak(
            "CREATE TYPE m AS ENUM ('x'); CREATE DOMAIN p AS m",
            "CREATE TYPE m AS ENUM ('x'); CREATE DOMAIN p AS m",
            "p",
        ),
    ],
)
def test_types_whose_parts_accept_every_value_are_no_error(
    checked: Checked, types: str, here: str, column: str
) -> None:
    for site, statements in (("a", types), ("b", here)):
        checked.execute(site, *statements.split("; "), f"CREATE TABLE t (id int PRIMARY KEY, v {column})")
    assert not [finding for finding in checked.about("t") if finding.is_error]
