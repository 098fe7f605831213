"""Checks of `ddl: true`: what cannot carry DDL is refused, with its place and the fix; what carries it is planned."""

from __future__ import annotations

import pytest

from headrace.base.errors import ConfigError
from headrace.databases.ports import UNFIT_TABLE, Finding
from headrace.lcr.table_name import TableName
from headrace.rules.rule import RuleSet
from headrace.simulation.run import Settings, simulate
from tests.support.topologies.files import SITES, findings, problems, read
from topology.checks.ddl import or_wait
from topology.plan import make_plan
from topology.routing.ways import arriving, ddl_tables, ways_to

ENTRY = "{schemas: [hr], from: dbs1, to: [dbs2], ddl: true}"
ONE_WAY = f"{SITES}replicate:\n  - {ENTRY}\n"
AT_EVERY_SITE = "leave out ddl: true, and run DDL at every site"
CAPTURE = "captures: {{capture_dbs1: {{site: {site}, source: dbs1, queue: {queue}, rules: {rules}}}}}\n"

REFUSED = {
    "between": (
        SITES + "replicate:\n  - {schemas: [hr], between: [dbs1, dbs2], ddl: true}\n",
        "replicate[0] (line 8): ddl: true goes one way so far, and this entry has between: leave out ddl, and run DDL at"
        " every site; or write from: SITE and to: [SITE]",
    ),
    "hub": (
        SITES + "replicate:\n  - {schemas: [hr], hub: dbs1, spokes: [dbs2], ddl: true}\n",
        "replicate[0] (line 8): ddl: true goes one way so far, and this entry has hub: leave out ddl, and run DDL at"
        " every site; or write from: SITE and to: [SITE]",
    ),
    "a rule": (
        ONE_WAY + CAPTURE.format(site="dbs1", queue="q_dbs1", rules="{include: [{schema: hr, ddl: true}]}"),
        "captures.capture_dbs1.rules.include[0].ddl (line 9): ddl: true is for whole tables that go one way, and a rule can"
        " take a part of them: write it in an entry of replicate: {tables: [...], from: SITE, to: [SITE], ddl: true}",
    ),
    "a capture process with rules of its own": (
        ONE_WAY + CAPTURE.format(site="dbs1", queue="q_dbs1", rules="{include: [{schema: hr}]}"),
        "replicate[0].ddl (line 8): the DDL of hr.x does not reach dbs2: captures.capture_dbs1 has rules of its own in the"
        " file, and they take no DDL: take captures.capture_dbs1 out of the file, so that replicate makes it, or"
        f" {AT_EVERY_SITE}",
    ),
    "a capture process without positive rules": (
        ONE_WAY + CAPTURE.format(site="dbs1", queue="q_dbs1", rules="{}"),
        "captures.capture_dbs1.rules (line 9): has no include: it would take the DDL of every table of dbs1, and only"
        " replicate[0].ddl may say whose DDL is taken: list under include what it takes",
    ),
    "a subset": (
        ONE_WAY
        + "propagations: {dbs1_to_dbs2: {from: q_dbs1, to: q_dbs2_in, rules: {include: [{table: hr.t, subset: a = 1}]}}}\n",
        "replicate[0].ddl (line 8): the DDL of hr.t does not reach dbs2: propagations.dbs1_to_dbs2 has rules of its own in"
        " the file, and they take no DDL: take propagations.dbs1_to_dbs2 out of the file, so that replicate makes it, or"
        f" {AT_EVERY_SITE}",
    ),
    "a transformation": (
        ONE_WAY
        + "applies: {apply_from_dbs1_at_dbs2: {site: dbs2, source: dbs1, queue: q_dbs2_in,"
        + " rules: {include: [{schema: hr, transform: [{rename_schema: crm}]}]}}}\n",
        "replicate[0].ddl (line 8): the DDL of hr.x does not reach dbs2: applies.apply_from_dbs1_at_dbs2 has rules of its"
        " own in the file, and they take no DDL: take applies.apply_from_dbs1_at_dbs2 out of the file, so that replicate"
        f" makes it, or {AT_EVERY_SITE}",
    ),
    "a negative rule": (
        ONE_WAY
        + "applies: {apply_from_dbs1_at_dbs2: {site: dbs2, source: dbs1, queue: q_dbs2_in,"
        + " rules: {exclude: [{table: hr.log_*}]}}}\n",
        "applies.apply_from_dbs1_at_dbs2.rules.exclude[0] (line 9): discards changes of tables whose DDL goes from dbs1 to"
        " dbs2 (replicate[0].ddl): DDL is replicated of whole tables only: remove the rule, or name in replicate only"
        " tables that it does not discard",
    ),
    "another writer": (
        ONE_WAY + "  - {tables: [hr.t], from: dbs3, to: [dbs2]}\n",
        "replicate[0].ddl (line 8): apply_from_dbs3_at_dbs2 writes hr.t at dbs2, too: rows of the old form would meet the"
        f" new one, and DDL goes one way so far: {AT_EVERY_SITE} while nothing writes the table; or let"
        " apply_from_dbs1_at_dbs2 alone write it, and capture it at dbs1 alone",
    ),
    "capture at the destination": (
        ONE_WAY + "  - {tables: [hr.t], from: dbs2, to: [dbs3]}\n",
        "replicate[0].ddl (line 8): the changes of hr.t at dbs2 are captured there, for apply_from_dbs2_at_dbs3: rows of the"
        f" old form would meet the new one, and DDL goes one way so far: {AT_EVERY_SITE} while nothing writes the table;"
        " or let apply_from_dbs1_at_dbs2 alone write it, and capture it at dbs1 alone",
    ),
    "embedded servers of two versions": (
        ONE_WAY.replace("dbs2: {database: {kind: embedded}}", "dbs2: {database: {kind: embedded, version: 16}}"),
        "replicate[0].ddl (line 8): dbs1 is PostgreSQL 18 and dbs2 is PostgreSQL 16: they write one definition differently,"
        " so that no change of one can be proved at the other: use one major version at both, or leave out ddl: true, and"
        " run DDL at every site",
    ),
}


@pytest.mark.parametrize(("text", "problem"), REFUSED.values(), ids=REFUSED.keys())
def test_ddl_that_cannot_be_replicated_is_refused_with_place_and_fix(tmp_path, text, problem):
    assert problems(tmp_path, text) == [problem]


def test_downstream_capture_of_a_source_with_ddl_is_refused(tmp_path):
    text = f"""{ONE_WAY}
queues: {{q_copy: {{site: dbs3}}}}
captures: {{c: {{site: dbs3, source: dbs1, queue: q_copy, rules: {{include: [{{schema: crm}}]}}}}}}
applies: {{a: {{site: dbs3, source: dbs1, queue: q_copy}}}}
"""
    (found,) = problems(tmp_path, text)
    assert found.startswith(
        "captures.c.site (line 11): captures the changes of dbs1 at dbs3, from a copy of its redo: DDL"
    )


def test_tombstones_of_a_table_with_ddl_are_refused(tmp_path):
    text = ONE_WAY + "conflict_handlers: [{table: hr.t, method: latest_timestamp}]\ntombstones: {retention_days: 7}\n"
    found = [line for line in findings(tmp_path, text)[1] if "tombstones" in line and line.startswith("error")]
    assert found == [
        "error: replicate[0].ddl (line 8): hr.t has tombstones at dbs2: the trigger that records its deletes names the"
        f" columns of its primary key, which DDL can change: remove tombstones of hr.t, or {AT_EVERY_SITE}"
    ]


def test_each_problem_of_several_destinations_is_reported(tmp_path):
    text = ONE_WAY.replace("to: [dbs2]", "to: [dbs2, dbs3]") + "  - {tables: [hr.t], from: dbs2, to: [dbs3]}\n"
    assert [line.partition("ddl (line 8): ")[2].partition(": ")[0] for line in problems(tmp_path, text)] == [
        "the changes of hr.t at dbs2 are captured there, for apply_from_dbs2_at_dbs3",
        "apply_from_dbs2_at_dbs3 writes hr.t at dbs3, too",
    ]


def test_ddl_one_way_is_accepted_to_any_number_of_destinations(tmp_path):
    spec = read(tmp_path, ONE_WAY.replace("to: [dbs2]", "to: [dbs2, dbs3]"))
    (capture,) = spec.captures
    assert capture.rules.include is not None
    assert [rule.ddl for rule in capture.rules.include] == [True]
    assert all(propagation.rules == RuleSet() for propagation in spec.propagations)
    for apply in spec.applies:
        (way,) = ways_to(spec, apply)
        assert way.carries_ddl(TableName("hr", "employees"))
        assert not way.carries_ddl(TableName("crm", "orders"))


def test_ddl_goes_only_to_the_destinations_of_its_entry(tmp_path):
    spec = read(tmp_path, f"{ONE_WAY}  - {{schemas: [hr, crm], from: dbs1, to: [dbs3]}}\n")
    with_ddl, without = (ways_to(spec, apply)[0] for apply in spec.applies)
    assert with_ddl.apply.site == "dbs2"
    assert with_ddl.carries_ddl(TableName("hr", "t"))
    assert without.carry(TableName("hr", "t")) is not None
    assert not without.carries_ddl(TableName("hr", "t"))
    assert not with_ddl.carries_ddl(TableName("crm", "t"))
    (capture,) = spec.captures
    assert capture.rules.include is not None
    assert [(rule.owner, rule.ddl) for rule in capture.rules.include] == [("hr", True), ("crm", False)]
    tables = arriving([with_ddl], [TableName("hr", "t"), TableName("crm", "t")])
    assert ddl_tables([with_ddl], tables) == (TableName("hr", "t"),)


def test_an_entry_without_ddl_takes_none(tmp_path):
    spec = read(tmp_path, ONE_WAY.replace("ddl: true", "ddl: false"))
    assert spec == read(tmp_path, ONE_WAY.replace(", ddl: true", ""))
    (way,) = ways_to(spec, spec.applies[0])
    assert not way.carries_ddl(TableName("hr", "t"))


def test_settings_of_a_written_out_apply_process_leave_ddl(tmp_path):
    text = (
        ONE_WAY + "applies: {apply_from_dbs1_at_dbs2: {site: dbs2, source: dbs1, queue: q_dbs2_in, parallelism: 4}}\n"
    )
    spec = read(tmp_path, text)
    (way,) = ways_to(spec, spec.applies[0])
    assert way.carries_ddl(TableName("hr", "t"))


def test_plan_says_which_ways_carry_ddl(tmp_path):
    spec = read(tmp_path, f"{ONE_WAY}  - {{schemas: [hr, crm], from: dbs1, to: [dbs3]}}\n")
    rules = {way.destination: way.rules for way in make_plan(spec).ways}
    assert [line for line in rules["dbs2"] if "DDL" in line] == ["apply_from_dbs1_at_dbs2: DDL of hr.* too"]
    assert [line for line in rules["dbs3"] if "DDL" in line] == []
    assert "DDL" not in make_plan(read(tmp_path, ONE_WAY.replace(", ddl: true", ""))).as_text()


def test_unfit_table_whose_ddl_travels_may_be_waited_for(tmp_path):
    ddl, rows = read(tmp_path, ONE_WAY), read(tmp_path, ONE_WAY.replace(", ddl: true", ""))
    (apply,) = ddl.applies
    tables = arriving(ways_to(ddl, apply), [TableName("hr", "t"), TableName("crm", "t")])
    unfit = Finding(path="sites.dbs2 table hr.t", problem=UNFIT_TABLE, fix="ALTER TABLE;")
    others = [
        Finding(path="sites.dbs2 table crm.t", problem=UNFIT_TABLE, fix="ALTER TABLE;"),
        Finding(path="sites.dbs2 table hr.t", problem="has another key", fix="ALTER TABLE;"),
    ]
    found = list(or_wait([unfit, *others], ddl, apply, tables))
    assert found[0].fix == "ALTER TABLE; -- or wait: DDL of this table travels (headrace wait FILE --caught-up)"
    assert found[1:] == others
    for before in (rows, None):  # whose DDL nobody has recorded
        assert list(or_wait([unfit], before, apply, tables)) == [unfit]


def test_topology_with_ddl_is_not_simulated(tmp_path):
    with pytest.raises(ConfigError, match=r"captures\.capture_dbs1: DDL is not simulated yet"):
        simulate(read(tmp_path, ONE_WAY), 1, Settings())
