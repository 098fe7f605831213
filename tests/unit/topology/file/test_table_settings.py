"""Table settings in a topology file (substitute keys and others): reading, refusals, and required source logging."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.databases.applied_tables import unfit_key, with_settings
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.lcr.table_name import TableName
from headrace.rules.table_settings import NO_TABLE_SETTINGS, KeyColumns, TableSettings, TriggerFiring
from headrace.tracing.explain import key_at_source
from tests.support.topologies.files import SITES, problems, read
from topology.checks.logging_needs import log_needs
from topology.edits.stored import spec_from_json, spec_to_json
from topology.file.reading import read_topology
from topology.plan import make_plan
from topology.routing.ways import ways_to

ONE_WAY = SITES + "replicate: [{tables: [hr.t], from: dbs1, to: [dbs2]}]\n"
KEY = KeyColumns(owner="hr", name="t", columns=("code", "day"))


def test_table_settings_hold_for_every_apply_and_survive_storage(tmp_path):
    spec = read(
        tmp_path,
        ONE_WAY
        + "key_columns: [{table: hr.t, columns: [code, day]}]\nallow_duplicate_rows: true\ncolumn_mismatch: error\n"
        "triggers: [{table: hr.t, trigger: log_change, fire: always}]\ncheck_foreign_keys: [hr.t]\ndetached_partitions:"
        " follow\n",
    )
    expected = TableSettings(
        key_columns=(KEY,),
        allow_duplicate_rows=True,
        column_mismatch="error",
        check_foreign_keys=True,
        foreign_keys_of=(("hr", "t"),),
        detached_partitions="follow",
        triggers=(TriggerFiring(owner="hr", name="t", trigger="log_change", fire="always"),),
    )
    assert [apply.tables for apply in spec.applies] == [expected]
    assert spec_from_json(spec_to_json(spec)).applies[0].tables == expected
    assert TableSettings.from_bytes(expected.to_bytes()) == expected
    assert TableSettings.from_bytes(b"") == NO_TABLE_SETTINGS
    plan = make_plan(spec).as_text()
    for said in (
        "substitute key hr.t (code, day)",
        "foreign keys of hr.t are checked",
        "trigger log_change on hr.t fires always",
        "go into the error queue",
        "partitions that the source detaches or drops are detached or dropped",
    ):
        assert said in plan


def test_list_of_an_apply_process_replaces_the_files_list(tmp_path):
    spec = read(
        tmp_path,
        SITES
        + """
queues: {q1: {site: dbs1}, q2: {site: dbs2}}
captures: {c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: hr}]}}}
propagations: {p1: {from: q1, to: q2}}
key_columns: [{table: hr.t, columns: [code]}]
column_mismatch: error
detached_partitions: keep
applies:
  a1: {site: dbs2, source: dbs1, queue: q2, detached_partitions: ask, key_columns: [{table: hr.u, columns: [a]}], column_mismatch: wait, allow_duplicate_rows: false}
""",
    )
    (apply,) = spec.applies
    assert apply.tables == TableSettings(
        key_columns=(KeyColumns(owner="hr", name="u", columns=("a",)),), allow_duplicate_rows=False
    )


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("key_columns: [{table: hr.t, columns: []}]", "columns"),
        ("key_columns: [{table: hr.t, columns: [a, a]}]", "columns names a column twice: name every column once"),
        ("key_columns: [{table: hr.*, columns: [a]}]", "'hr.*' is a pattern"),
        (
            "key_columns: [{table: hr.t, columns: [a]}, {table: hr.t, columns: [b]}]",
            "hr.t has a substitute key already, key_columns[0]: keep one of them",
        ),
        ("triggers: [{table: hr.t, trigger: g, fire: sometimes}]", "'sometimes' is not one of once, always"),
        (
            "triggers: [{table: hr.t, trigger: g, fire: once}, {table: hr.t, trigger: g, fire: always}]",
            "the trigger hr.t.g is listed already, triggers[0]",
        ),
        (
            "key_columns: [{table: hr.t, columns: [a]}]\nconflict_handlers: [{table: hr.t, method: latest_timestamp,"
            " priority: [dbs1, dbs2]}]",
            "hr.t has the handler latest_timestamp, which needs the primary key",
        ),
        ("column_mismatch: skip", "'skip' is not one of wait, error"),
        ("detached_partitions: drop", "'drop' is not one of ask, keep, follow"),
    ],
)
def test_impossible_table_setting_is_refused_with_its_place(tmp_path, entry, problem):
    assert any(problem in line for line in problems(tmp_path, ONE_WAY + entry + "\n"))


def test_old_values_of_a_substitute_key_are_needed_under_source_names(tmp_path):
    spec = read(tmp_path, ONE_WAY + "key_columns: [{table: hr.t, columns: [code, day]}]\n")
    (need,) = log_needs(spec, "dbs1")
    assert need.place == "applies.apply_dbs1_to_dbs2.key_columns" or need.place.endswith(".key_columns")
    assert need.old == KEY.columns
    assert need.concerns("hr", "t")
    assert not need.concerns("hr", "u")
    assert log_needs(spec, "dbs2") == ()


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (("x",), "no such column"),
        (("made",), "computed by the database"),
        (("doc",), "values of json cannot be compared"),
        (("code",), None),
    ],
)
def test_substitute_key_that_cannot_find_rows_is_refused(columns, problem):
    table = MemoryStore().create_table(
        "hr",
        "t",
        key=["id"],
        columns=[
            destination_column("id", "pg_catalog.int4"),
            destination_column("code", "pg_catalog.text"),
            destination_column("doc", "pg_catalog.json"),
            destination_column("made", "pg_catalog.text", is_generated=True),
        ],
    )
    settings = TableSettings(key_columns=(KeyColumns(owner="hr", name="t", columns=columns),))
    found = unfit_key(with_settings(table, settings, is_hidden=False), settings, frozenset({"id", "code", "made"}))
    assert (found is None) if problem is None else (found is not None and problem in found[0])


def test_explain_finds_rows_by_the_substitute_key_with_source_names(tmp_path):
    spec = read(
        tmp_path,
        SITES
        + """
queues: {q1: {site: dbs1}, q2: {site: dbs2}}
captures: {c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: hr}]}}}
propagations: {p1: {from: q1, to: q2}}
applies:
  a1:
    site: dbs2
    source: dbs1
    queue: q2
    key_columns: [{table: hr.u, columns: [number]}]
    rules: {include: [{table: hr.t, transform: [{rename_table: hr.u}, {rename_column: {from: code, to: number}}]}]}
""",
    )
    (way,) = ways_to(spec, spec.applies[0])
    assert key_at_source(way, TableName("hr", "t")).key_of("hr", "t") == ("code",)
    assert key_at_source(way, TableName("hr", "v")) == NO_TABLE_SETTINGS
    (need,) = log_needs(spec, "dbs1")
    assert need.concerns("hr", "t")
    assert need.at_source("hr", "t", ["id", "code"]) == {"id": "id", "number": "code"}


def test_example_is_read_completely():
    spec = read_topology(Path(__file__).parents[4] / "examples" / "keys.yaml", {})
    (apply,) = spec.applies
    assert [str(each) for each in apply.tables.key_columns] == [
        "shop.customers (customer_number)",
        "shop.visits (customer_number, page, visited_at)",
    ]
    assert (apply.tables.allow_duplicate_rows, apply.tables.column_mismatch, apply.tables.check_foreign_keys) == (
        False,
        "error",
        True,
    )
