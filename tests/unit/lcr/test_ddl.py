"""Records of the source's log of DDL: what becomes a DDL LCR, and with which attributes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.lcr.ddl import Creation, DdlChange, ddl_of, failed_ddl_of
from tests.support.values.ddl_changes import NUMBER, column, ddl_change, ddl_record, index, structure


def test_change_of_a_table_has_the_attributes_of_its_record() -> None:
    before, after = structure(), structure(column(1, "id"), column(2, "größe", "text"))
    content = ddl_record(before, after, query="ALTER TABLE jobs ADD größe text")
    assert ddl_of(content) == DdlChange(
        command_type="ALTER TABLE",
        object_type="TABLE",
        object_owner="hr",
        object_name="jobs",
        base_table_owner="hr",
        base_table_name="jobs",
        object_number=NUMBER,
        ddl_text="ALTER TABLE jobs ADD größe text",
        logon_user="hr",
        current_schema="",
        content=content.decode(),
    )
    assert failed_ddl_of(content) is None


JOBS, PLAN = index(7, "by_job"), index(8, "by_plan", "plan")
KEY: dict[str, Any] = {"number": 9, "name": "jobs_pkey", "type": "p", "definition": "PRIMARY KEY (id)", "calls": False}


@pytest.mark.parametrize(
    ("tag", "before", "after", "gone", "name"),
    [
        ("CREATE INDEX", [JOBS], [JOBS, PLAN], [], "by_plan"),
        ("DROP INDEX", [JOBS, PLAN], [JOBS], [], "by_plan"),
        ("DROP INDEX", [JOBS], [JOBS], [{"relation": NUMBER, "kind": "index", "name": "by_day"}], "by_day"),
        ("ALTER INDEX", [JOBS, PLAN], [JOBS, {**PLAN, "name": "plans"}], [], "by_plan"),
    ],
    ids=["create", "drop", "drop of an index that no record had", "rename"],
)
def test_change_of_an_index_names_the_index_and_its_table(tag, before, after, gone, name) -> None:
    change = ddl_change(structure(indexes=before), structure(indexes=after), tag=tag, gone=gone)
    assert (change.object_type, change.object_owner, change.object_name) == ("INDEX", "hr", name)
    assert str(change.base_table) == "hr.jobs"


def test_renamed_index_of_a_constraint_is_named_by_its_old_name() -> None:
    after = structure(constraints=[{**KEY, "name": "jobs_key"}])
    change = ddl_change(structure(constraints=[KEY]), after, tag="ALTER INDEX")
    assert (change.object_type, change.object_name) == ("INDEX", "jobs_pkey")


def test_index_dropped_with_its_column_is_a_change_of_the_table() -> None:
    change = ddl_change(structure(indexes=[JOBS]), structure(), tag="ALTER TABLE")
    assert (change.object_type, change.object_name) == ("TABLE", "jobs")


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (structure(), structure(name="tasks"), "hr.jobs"),
        (structure(), structure(owner="old"), "hr.jobs"),
        (None, structure(name="tasks"), "hr.tasks"),
        (structure(), None, "hr.jobs"),
    ],
    ids=["rename", "another schema", "create", "drop"],
)
def test_table_has_its_name_before_the_statement_if_there_was_one(before, after, named) -> None:
    assert str(ddl_change(before, after).base_table) == named


def test_base_is_no_change_and_no_failure() -> None:
    base = json.dumps({"format": 1, "base": True, "after": structure()}).encode()
    assert (ddl_of(base), failed_ddl_of(base)) == (None, None)


def test_failed_record_has_its_statement_and_no_change() -> None:
    content = json.dumps({"format": 1, "failed": "57014", "tag": "DROP TABLE", "query": "DROP TABLE t"}).encode()
    assert ddl_of(content) is None
    failed = failed_ddl_of(content)
    assert failed is not None
    assert (failed.command_type, failed.ddl_text) == ("DROP TABLE", "DROP TABLE t")
    assert "57014" in failed.reason


def _without(name: str) -> bytes:
    record = json.loads(ddl_record(structure(), structure()))
    del record[name]
    return json.dumps(record).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        ddl_record(structure(), structure(), format=2),
        ddl_record(structure(), structure(), query=7),
        ddl_record(structure(), structure(), relation=0),
        ddl_record(structure(), structure(), relation=1e400),
        ddl_record(structure(name=""), structure()),
        ddl_record(None, None),
        b'{"format": 1, "failed": "\\ud800", "tag": "T", "query": ""}',
        *map(_without, ("format", "tag", "relation", "before", "query", "user")),
    ],
)
def test_unreadable_record_is_a_failure_and_never_an_exception(content: bytes) -> None:
    assert ddl_of(content) is None
    assert failed_ddl_of(content) is not None


@pytest.mark.seeded
@given(st.binary(max_size=60), st.integers(0, 400))
def test_damage_in_a_record_never_raises(damage: bytes, place: int) -> None:
    content = ddl_record(structure(indexes=[JOBS]), structure(indexes=[PLAN]), tag="ALTER INDEX")
    damaged = content[:place] + damage + content[place + len(damage) :]
    change = ddl_of(damaged)
    assert change is None or failed_ddl_of(damaged) is None


# --------------------------------------------------------------------------- new and dropped tables

MADE: dict[str, Any] = {"identities": {"shop": "7.1.16400.16401"}, "why_not": "", "sequences": {}}


def created(made: Any) -> DdlChange:
    return ddl_change(None, structure(), tag="CREATE TABLE", made=made)


def test_creation_says_whose_log_has_the_rows() -> None:
    assert created(MADE).creation == Creation(identities={"shop": "7.1.16400.16401"}, why_not="")
    unpublished = {"identities": {}, "why_not": "it is unlogged", "sequences": {}}
    assert created(unpublished).creation == Creation(identities={}, why_not="it is unlogged")
    assert ddl_change(None, structure(), tag="CREATE TABLE").creation is None, "no rule takes the table"


@pytest.mark.parametrize(
    "made",
    [7, [], {}, {"identities": []}, {"identities": {"shop": 7}, "why_not": ""}, {"identities": {}, "why_not": None}],
)
def test_damaged_creation_counts_as_none(made: Any) -> None:
    assert created(made).creation is None


def test_only_a_new_table_has_a_creation() -> None:
    assert ddl_change(structure(), structure(column(2, "x")), made=MADE).creation is None
    assert ddl_change(structure(), None, made=MADE).creation is None
    assert ddl_change(structure(), structure(column(2, "made")), query="SELECT '\"made\"'").creation is None
    assert created(MADE).not_made("because").creation is None


def test_only_a_table_without_a_form_behind_it_is_dropped() -> None:
    assert ddl_change(structure(), None, tag="DROP TABLE").drops
    assert not ddl_change(structure(), None, tag="DROP TABLE").not_made("because").drops
    assert not created(MADE).drops
    assert not ddl_change().drops
