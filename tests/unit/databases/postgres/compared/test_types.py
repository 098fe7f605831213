from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace

import pytest

from headrace.databases.ports import DestinationColumn, DestinationTable
from headrace.databases.postgres.catalog.destination_tables import CatalogColumn, CatalogTable, ValueForm
from headrace.databases.postgres.catalog.type_facts import equality_of
from headrace.databases.postgres.compared.types import missing_alter, missing_tables, type_with_modifier
from headrace.lcr.batch import Column, OldImage, TableVersion
from headrace.lcr.table_name import TableName


def numeric(digits: int, scale: int) -> int:
    return ((digits << 16) | (scale & 0x7FF)) + 4


def version(*columns: Column) -> TableVersion:
    return TableVersion(object_number=1, version=1, owner="hr", name="Jobs", columns=columns, old_image=OldImage.KEY)


def column(name: str, type_name: str = "pg_catalog.int4", modifier: int = -1) -> Column:
    return Column(name=name, type_name=type_name, type_modifier=modifier, is_binary=True)


def catalog(*columns: Column, base: str = "", **changes: bool) -> CatalogTable:
    """A destination table with these columns; `changes` apply to the last one."""
    flags = {"not_null": False, "has_default": False, "is_generated": False, "is_identity_always": False}
    described = [
        DestinationColumn(
            name=c.name,
            number=place,
            type_name=c.type_name,
            type_number=0,
            type_modifier=c.type_modifier,
            equality="none",
            **flags,
        )
        for place, c in enumerate(columns)
    ]
    described[-1] = replace(described[-1], **changes)
    details = tuple(
        CatalogColumn(
            name=c.name,
            form=ValueForm(type_name=c.type_name, array_type="", type_number=0),
            base_type=base or c.type_name,
            equals="",
            unique_equals="",
            is_hashable=False,
        )
        for c in columns
    )
    table = DestinationTable(
        owner="hr", name="Jobs", columns=tuple(described), key=(), unique_keys=(), serialise=True, ordered=False
    )
    return CatalogTable(
        table=table,
        columns=details,
        oid=1,
        relation="",
        is_partitioned=False,
        positions={c.name: position for position, c in enumerate(columns)},
    )


def test_equal_tables_fit_in_any_order_of_columns():
    assert missing_alter(version(column("a"), column("b")), catalog(column("b"), column("a"))) == ""


def test_missing_table_names_the_command_that_copies_its_definition():
    assert "pg_dump --schema-only" in missing_alter(version(column("a")), None)
    assert """--table='"hr"."Jobs"'""" in missing_alter(version(column("a")), None)


def test_command_for_missing_tables_executes_nothing_in_a_name():
    command = missing_tables([TableName("$(touch x)", "a`b'c")], ["$HOME"])
    words = shlex.split(command)
    assert '--schema="$HOME"' in words
    assert """--table="$(touch x)"."a`b'c\"""" in words
    done = subprocess.run(
        ["sh", "-c", f"echo {command.partition(' | ')[0]}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("--schema=")[1].startswith('"$HOME"')


def test_missing_column_is_added_with_its_type():
    missing = missing_alter(
        version(column("a"), column("Pay", "pg_catalog.numeric", numeric(8, 2))), catalog(column("a"))
    )
    assert missing == (
        'ALTER TABLE "hr"."Jobs" ADD COLUMN "Pay" numeric(8,2); -- then headrace verify FILE hr.Jobs and the fix that'
        " it prints, if the column has a DEFAULT at the source: rows that are here already lack its values"
    )


def test_missing_column_gets_the_sources_value_for_older_rows():
    there = version(column("a"), column("Pay"))
    for value, ends in (("'7'", " DEFAULT '7';"), ("", ";")):
        now = replace(there, columns=(there.columns[0], replace(there.columns[1], older_value=value)))
        assert now == there
        assert missing_alter(there, catalog(column("a")), now) == f'ALTER TABLE "hr"."Jobs" ADD COLUMN "Pay" int4{ends}'
    unknown = missing_alter(there, catalog(column("a")), there, source=TableName("app", "jobs"))
    assert unknown.startswith(
        'ALTER TABLE "hr"."Jobs" ADD COLUMN "Pay" int4; -- then headrace verify FILE app.jobs and the fix that it'
        " prints, if"
    )


def test_column_at_the_place_of_another_is_offered_as_a_rename():
    there = catalog(column("id"), column("old", "pg_catalog.text"), column("c"))
    renamed = missing_alter(version(column("id"), column("new", "pg_catalog.text"), column("c")), there)
    assert renamed == (
        'ALTER TABLE "hr"."Jobs" RENAME COLUMN "old" TO "new";'
        ' -- or, if "new" is a new column: ALTER TABLE "hr"."Jobs" ADD COLUMN "new" text;'
    )
    two = missing_alter(version(column("x"), column("y", "pg_catalog.text"), column("c")), there)
    assert [line.partition(" --")[0].split()[-3:] for line in two.splitlines()] == [
        ['"id"', "TO", '"x";'],
        ['"old"', "TO", '"y";'],
    ]


def test_column_of_another_type_or_after_all_others_is_added():
    there = catalog(column("id"), column("old", "pg_catalog.text"))
    for columns in ((column("id"), column("new")), (column("id"), column("old", "pg_catalog.text"), column("new"))):
        assert "ADD COLUMN" in missing_alter(version(*columns), there)
        assert "RENAME" not in missing_alter(version(*columns), there)


def test_column_whose_old_name_is_taken_again_may_be_a_rename():
    """RENAME COLUMN a TO a_old, then ADD COLUMN a: a new column comes last, so a_old is not the added one."""
    there = catalog(column("id"), column("a", "pg_catalog.text"))
    missing = missing_alter(
        version(column("id"), column("a_old", "pg_catalog.text"), column("a", "pg_catalog.text")), there
    )
    assert missing.startswith(
        'ALTER TABLE "hr"."Jobs" ADD COLUMN "a_old" text; -- then headrace verify FILE hr.Jobs and the fix that it'
        " prints, if"
    )
    assert missing.endswith('; or, if it was "a" before: ALTER TABLE "hr"."Jobs" RENAME COLUMN "a" TO "a_old";')


def test_different_type_is_altered():
    missing = missing_alter(version(column("a", "app.mood")), catalog(column("a", "pg_catalog.text")))
    assert missing.startswith(
        'ALTER TABLE "hr"."Jobs" ALTER COLUMN "a" TYPE "app"."mood" USING "a"::text::"app"."mood"; -- then headrace'
        " verify FILE hr.Jobs and the fix that it prints:"
    )
    assert "; or, if these rows are older" in missing
    assert 'CREATE FUNCTION headrace."hr.Jobs.a"("app"."mood") RETURNS pg_catalog.text' in missing


def test_type_of_the_same_name_fits_in_any_schema_unless_built_in():
    there = catalog(column("a", "extensions.citext"))
    assert missing_alter(version(column("a", "public.citext")), there) == ""
    assert missing_alter(version(column("a", "public.hstore")), there) != ""
    assert missing_alter(version(column("a", "pg_catalog.text")), catalog(column("a", "app.text"))) != ""
    assert (
        missing_alter(version(column("a", "public.citext")), catalog(column("a", "app.mail"), base="extensions.citext"))
        == ""
    )


def test_all_problems_are_named_at_once():
    missing = missing_alter(version(column("a"), column("b")), catalog(column("a", "pg_catalog.int8")))
    assert len(missing.splitlines()) == 2


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({"not_null": True}, False),
        ({"not_null": True, "has_default": True}, True),
        ({"not_null": True, "is_generated": True}, True),
        ({}, True),
    ],
)
def test_extra_column_must_be_nullable_or_have_a_default(changes, fits):
    missing = missing_alter(version(column("a")), catalog(column("a"), column("extra"), **changes))
    assert (missing == "") is fits
    assert fits or missing == 'ALTER TABLE "hr"."Jobs" ALTER COLUMN "extra" DROP NOT NULL;'


def test_generated_column_fits_only_a_column_that_the_source_computes():
    there = catalog(column("a", "pg_catalog.text"), is_generated=True)
    assert missing_alter(version(replace(column("a"), is_computed=True)), there) == ""
    assert missing_alter(version(column("a")), there).startswith(
        'ALTER TABLE "hr"."Jobs" ALTER COLUMN "a" DROP EXPRESSION; -- '
    )


def test_domain_fits_when_the_log_names_its_base_type():
    there = catalog(column("a", "app.positive"), base="pg_catalog.numeric")
    assert missing_alter(version(column("a", "pg_catalog.numeric")), there) == ""
    assert missing_alter(version(column("a", "app.positive")), there) == ""
    assert missing_alter(version(column("a", "pg_catalog.text")), there) != ""


@pytest.mark.parametrize(
    ("type_name", "source", "destination", "fits"),
    [
        ("varchar", 14, 14, True),
        ("varchar", 14, 24, True),
        ("varchar", 14, -1, True),
        ("varchar", 14, 13, False),
        ("varchar", -1, 14, False),
        ("_varchar", 14, 24, True),
        ("bpchar", 14, 14, True),
        ("bpchar", 14, 24, False),
        ("bpchar", 14, -1, True),
        ("numeric", numeric(8, 2), numeric(12, 2), True),
        ("numeric", numeric(8, 2), numeric(12, 4), False),
        ("numeric", numeric(8, 2), numeric(7, 2), False),
        ("numeric", -1, numeric(8, 2), False),
        ("numeric", numeric(8, 2), -1, True),
        ("timestamptz", 3, 6, True),
        ("timestamptz", -1, 6, True),
        ("timestamptz", -1, 3, False),
        ("timestamptz", 3, 2, False),
        ("bit", 5, 5, True),
        ("bit", 5, 6, False),
        ("varbit", 5, 6, True),
    ],
)
def test_modifier_fits_when_it_changes_no_value(type_name, source, destination, fits):
    name = f"pg_catalog.{type_name}"
    assert (missing_alter(version(column("a", name, source)), catalog(column("a", name, destination))) == "") is fits


@pytest.mark.parametrize(
    ("type_name", "modifier", "spelled"),
    [
        ("pg_catalog.int4", -1, "int4"),
        ("pg_catalog._int4", -1, "int4[]"),
        ("pg_catalog.varchar", 14, "varchar(10)"),
        ("pg_catalog._bpchar", 9, "character(5)[]"),
        ("pg_catalog.char", -1, '"char"'),
        ("pg_catalog.bit", 5, "bit(5)"),
        ("pg_catalog.bit", -1, '"bit"'),
        ("pg_catalog.varbit", 5, "bit varying(5)"),
        ("pg_catalog.numeric", numeric(3, -2), "numeric(3,-2)"),
        ("pg_catalog.timestamptz", 3, "timestamp(3) with time zone"),
        ("pg_catalog.time", 0, "time(0)"),
        ("pg_catalog.interval", (7176 << 16) | 2, "interval day to second(2)"),
        ("pg_catalog.interval", (6 << 16) | 0xFFFF, "interval year to month"),
        ("app.mood", -1, '"app"."mood"'),
    ],
)
def test_types_are_spelled_as_ddl_takes_them(type_name, modifier, spelled):
    assert type_with_modifier(type_name, modifier) == spelled


def test_equality_has_a_canonical_form_only_where_bytes_decide():
    plain = {"is_enum": False, "is_deterministic": True}
    assert equality_of("pg_catalog.int8", **plain) == "integer"
    assert equality_of("pg_catalog.text", **plain) == "text"
    assert equality_of("pg_catalog.date", **plain) == "bytes"
    assert equality_of("pg_catalog.text", is_enum=False, is_deterministic=False) == "none"
    assert equality_of("app.mood", is_enum=True, is_deterministic=True) == "text"
    for name in ("interval", "jsonb", "_int4", "int4range"):
        assert equality_of(f"pg_catalog.{name}", **plain) == "none"
