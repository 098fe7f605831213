"""Receivers of each table, recorded when a topology is prepared and later queried by other names."""

from __future__ import annotations

import json
from dataclasses import replace

from headrace.base.plain_data import as_json, from_json
from headrace.databases.ports import CapturedTable
from headrace.lcr.scn import ObjectNumber
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet, TagCondition
from tests.support.topologies.files import SITES, read_anyway
from topology.edits.receivers import NotedWay, Receivers

# Its apply process names tables that never arrive, which `check` refuses.
NARROW = (
    SITES
    + """
queues: {qa: {site: dbs1}, qr: {site: relay}, qb: {site: dbs2}}
captures: {c: {site: dbs1, source: dbs1, queue: qa, rules: {include: [{schema: hr}]}}}
propagations:
  wide: {from: qa, to: qr}
  narrow: {from: qr, to: qb, rules: {exclude: [{table: hr.private*}]}}
applies: {apply: {site: dbs2, source: dbs1, queue: qb, rules: {include: [{table: hr.a*, tagged: true}, {table: hr.private*}]}}}
"""
)


def captured(number: int, name: str) -> CapturedTable:
    numbers = (ObjectNumber(number), ObjectNumber(100 + number))
    return CapturedTable(identity=f"table {number}", owner="hr", name=name, object_numbers=numbers)


TABLES = (captured(1, "a"), captured(2, "other"))


def test_name_is_lost_when_any_client_on_the_way_discards_it(tmp_path):
    noted = Receivers.of(read_anyway(tmp_path, NARROW), "dbs1", TABLES)
    assert noted.lost_by("table 1", "hr", "a2") == ()
    for owner, name in (("crm", "a"), ("hr", "private_a"), ("hr", "b")):  # capture, propagation, apply
        assert noted.lost_by("table 1", owner, name) == ("apply",)
        assert noted.lost_by("table 2", owner, name) == ()  # no apply process got it under its old name either
        assert noted.lost_by(None, owner, name) == ("apply",)


def test_only_a_renamed_table_is_strayed(tmp_path):
    """A table that an edit of the rules discards keeps its name: the operator wants that."""
    noted = Receivers.of(read_anyway(tmp_path, NARROW), "dbs1", TABLES)
    assert not any(noted.is_strayed(table) for table in TABLES)
    assert noted.is_strayed(replace(TABLES[0], name="b"))
    assert not noted.is_strayed(replace(TABLES[0], name="a2"))
    assert not noted.is_strayed(replace(TABLES[1], name="b"))
    assert not noted.is_strayed(captured(3, "new"))


def test_name_is_lost_when_its_rule_masks_otherwise(tmp_path):
    """A masked table must not get another name under which a rule without the mask takes it."""
    rules = "{schema: hr, condition: \"object_name <> 'a'\"}, {table: hr.a, transform: [{delete_columns: [secret]}]}"
    masked = NARROW.replace("rules: {include: [{schema: hr}]}", f"rules: {{include: [{rules}]}}")
    noted = Receivers.of(read_anyway(tmp_path, masked), "dbs1", TABLES)
    assert noted.lost_by("table 1", "hr", "a") == ()
    assert noted.lost_by("table 1", "hr", "a2") == ("apply",)
    assert noted.is_strayed(replace(TABLES[0], name="a2"))
    renamed = NARROW.replace("{schema: hr}]}}", "{schema: hr, transform: [{rename_schema: hr}]}]}}")
    noted = Receivers.of(read_anyway(tmp_path, renamed), "dbs1", TABLES)
    assert noted.lost_by("table 1", "hr", "a2") == (), "another name alone is no other form"


def test_receivers_survive_storage(tmp_path):
    noted = Receivers.of(read_anyway(tmp_path, NARROW), "dbs1", TABLES)
    assert from_json(Receivers, json.loads(json.dumps(as_json(noted)))) == noted
    assert noted.identity_of(102) == "table 2"
    assert noted.identity_of(3) is None
    assert Receivers().lost_by("table 1", "crm", "a") == Receivers().lost_by(None, "crm", "a") == ()


def test_destinations_rename_a_table_that_arrives_under_its_source_name(tmp_path):
    noted = Receivers.of(read_anyway(tmp_path, NARROW), "dbs1", TABLES)
    assert noted.name_at_destinations(replace(TABLES[0], name="b")) == ("hr", "a")
    assert noted.name_at_destinations(TABLES[0]) is None, "the table was not renamed"
    assert noted.name_at_destinations(captured(3, "new")) is None
    assert noted.name_at_destinations(replace(TABLES[1], name="b")) is None, "no apply process got the table"
    called_otherwise = NARROW.replace("tagged: true}", "tagged: true, transform: [{rename_schema: crm}]}")
    noted = Receivers.of(read_anyway(tmp_path, called_otherwise), "dbs1", TABLES)
    assert noted.name_at_destinations(replace(TABLES[0], name="b")) is None


def test_table_without_a_tag_that_passes_the_whole_way_does_not_arrive() -> None:
    """A change has one tag along its whole way, so clients that take different tags pass nothing."""
    only = [
        RuleSet(include=(Rule(owner="hr", name="a", tags=TagCondition(listed=(tag,))),)) for tag in (b"\x01", b"\x02")
    ]
    for taken, arrives in (((only[0], only[0]), ("hr", "a")), (tuple(only), None)):
        assert NotedWay(apply="apply", rules=taken).arrival_of(TableName("hr", "a")) == arrives
