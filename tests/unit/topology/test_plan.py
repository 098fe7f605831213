"""The plan names every object that `up` would create, its site, and its locks."""

from __future__ import annotations

import json
from dataclasses import replace

from headrace.databases.ports import Finding, PlannedStatement, SourceTable
from tests.support.topologies.files import SITES, read, read_anyway
from topology.file.reading import read_topology
from topology.plan import LiveSite, make_plan
from topology.split import SPLIT, Split, with_splits

NEVER = "combined: never\n"
TWO_WAY = SITES + "replicate: [{schemas: [hr], between: [dbs1, dbs2]}]"


def test_plan_has_one_way_with_all_components_for_every_apply(tmp_path):
    plan = make_plan(read(tmp_path, NEVER + TWO_WAY))
    assert [(way.source, way.destination, way.components) for way in plan.ways] == [
        ("dbs1", "dbs2", ("capture_dbs1", "q_dbs1", "dbs1_to_dbs2", "q_dbs2_in", "apply_from_dbs1_at_dbs2")),
        ("dbs2", "dbs1", ("capture_dbs2", "q_dbs2", "dbs2_to_dbs1", "q_dbs1_in", "apply_from_dbs2_at_dbs1")),
    ]
    assert [way.components for way in make_plan(read(tmp_path, TWO_WAY)).ways] == [
        ("capture_dbs1", "apply_from_dbs1_at_dbs2"),
        ("capture_dbs2", "apply_from_dbs2_at_dbs1"),
    ]


def test_plan_lists_every_actor_once_with_its_site_and_requirements(tmp_path):
    text = TWO_WAY.replace(
        "dbs2: {database: {kind: embedded}}", "dbs2: {database: {kind: embedded}, node: {site_dbs2: 1}}"
    )
    actors = make_plan(read(tmp_path, f"tls: none\n{NEVER}" + text)).actors
    assert sorted((actor.name, actor.site) for actor in actors) == sorted(
        [
            ("controller", ""),
            ("site:dbs1", "dbs1"),
            ("site:dbs2", "dbs2"),
            ("site:dbs3", "dbs3"),
            ("site:relay", "relay"),
            ("capture:capture_dbs1", "dbs1"),
            ("capture:capture_dbs2", "dbs2"),
            ("queue:q_dbs1", "dbs1"),
            ("queue:q_dbs1_in", "dbs1"),
            ("queue:q_dbs2", "dbs2"),
            ("queue:q_dbs2_in", "dbs2"),
            ("propagation:dbs1_to_dbs2", "dbs1"),
            ("propagation:dbs2_to_dbs1", "dbs2"),
            ("apply:apply_from_dbs1_at_dbs2", "dbs2"),
            ("apply:apply_from_dbs2_at_dbs1", "dbs1"),
        ]
    )
    assert all(actor.resources == ((("site_dbs2", 1.0),) if actor.site == "dbs2" else ()) for actor in actors)
    combined = make_plan(read(tmp_path, f"tls: none\n{text.lstrip()}")).actors
    assert {actor.name for actor in actors} - {actor.name for actor in combined} == {
        "queue:q_dbs1",
        "queue:q_dbs1_in",
        "queue:q_dbs2",
        "queue:q_dbs2_in",
        "propagation:dbs1_to_dbs2",
        "propagation:dbs2_to_dbs1",
    }


def test_plan_shows_executors_where_the_file_sets_them(tmp_path):
    text = TWO_WAY.replace("dbs2: {database: {kind: embedded}}", "dbs2: {database: {kind: embedded}, executors: 1}")
    work = {actor.site: actor.work for actor in make_plan(read(tmp_path, text)).actors if actor.name[:6] == "apply:"}
    assert work["dbs1"].startswith("Spark job with 2 apply servers: ")
    assert work["dbs2"].startswith("Spark job with 2 apply servers on 1 executor: ")


def test_plan_shows_the_memory_for_reading_the_log_at_the_source(tmp_path):
    def work(text):
        return next(actor.work for actor in make_plan(read(tmp_path, text)).actors if actor.name == "site:dbs1")

    assert "holds as much as its shared_buffers, at most 512MB, of transactions in flight" in work(TWO_WAY)
    assert "holds 256MB of transactions in flight" in work(
        TWO_WAY.replace("kind: embedded", "kind: embedded, decoding_memory: 256MB")
    )


def test_plan_shows_the_reach_with_hops_once_per_table_group(tmp_path):
    text = (
        SITES
        + """
replicate:
  - {tables: [hr.*], hub: dbs1, spokes: [dbs2, dbs3]}
  - {tables: [crm.c1, crm.c2, crm.c3, crm.c4, crm.c5, crm.c6, crm.c7], from: dbs2, to: [dbs3]}
  - {tables: [hr.log], from: dbs2, to: [dbs3]}
"""
    )
    lines = make_plan(read_anyway(tmp_path, text)).as_text().splitlines()
    start = lines.index("Who gets what")
    assert lines[start : lines.index("Changes flow") - 1] == [
        "Who gets what",
        "  hr.* (others)",
        "    dbs1 -> dbs2 (1 hop), dbs3 (1 hop)",
        "    dbs2 -> dbs1 (1 hop), dbs3 (2 hops, over dbs1)",
        "    dbs3 -> dbs1 (1 hop), dbs2 (2 hops, over dbs1)",
        "  hr.log",
        "    dbs1 -> dbs2 (1 hop), dbs3 (1 hop)",
        "    dbs2 -> dbs1 (1 hop), dbs3 (1 hop, twice)",
        "    dbs3 -> dbs1 (1 hop), dbs2 (2 hops, over dbs1)",
        "  crm.c1, crm.c2, crm.c3, crm.c4, crm.c5, crm.c6 and 1 more",
        "    dbs2 -> dbs3 (1 hop)",
    ]


def test_plan_shows_rules_only_at_their_clients(tmp_path):
    text = (
        SITES
        + """
replicate:
  - {schemas: [hr], from: dbs1, to: [dbs2, dbs3]}
  - {tables: [crm.c*], from: dbs1, to: [dbs3]}
"""
    )
    first, second = make_plan(read(tmp_path, text)).ways
    assert first.rules == ("capture_dbs1: hr.*, crm.c*", "dbs1_to_dbs2: hr.* (tagged changes too)")
    assert second.rules == ("capture_dbs1: hr.*, crm.c*",)


def test_plan_shows_tags_of_rules_and_of_apply_processes(tmp_path):
    text = (
        SITES
        + """
queues: {q1: {site: dbs1}, q2: {site: dbs2}}
captures:
  c1: {site: dbs1, source: dbs1, queue: q1, rules: {
    include: [{schema: hr, tags: ["0B", null]}, {schema: crm, not_tags: ["02"]}], exclude: [{schema: tmp, tags: ["aa"]}]}}
propagations: {p1: {from: q1, to: q2}}
applies:
  a1: {site: dbs2, source: dbs1, queue: q2, tag: "0c", rules: {include: [{schema: hr, tagged: true}]}}
  a2: {site: dbs2, source: dbs1, queue: q2, tag: null, rules: {include: [{schema: crm, tagged: true}]}}
"""
    )
    plan = make_plan(read(tmp_path, text))
    assert plan.ways[0].rules[0] == (
        "c1: hr.* (changes with tag none, 0b), crm.* (changes with any tag but 02) except tmp.* (changes with tag aa)"
    )
    assert [actor.work.rpartition(", ")[2] for actor in plan.actors if actor.name.startswith("apply:")] == [
        "tag 0c",
        "tag none",
    ]


def test_plan_shows_every_hop_over_an_intermediate_site(tmp_path):
    text = (
        SITES
        + """
queues: {q1: {site: dbs1}, qr: {site: relay}, q2: {site: dbs2}}
captures: {c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{global: true}], exclude: [{schema: tmp}]}}}
propagations: {p1: {from: q1, to: qr}, p2: {from: qr, to: q2}}
applies: {a1: {site: dbs2, source: dbs1, queue: q2}}
"""
    )
    (way,) = make_plan(read(tmp_path, "combined: never\n" + text)).ways
    assert way.components == ("c1", "q1", "p1", "qr", "p2", "q2", "a1")
    (way,) = make_plan(read(tmp_path, text)).ways
    assert way.components == ("c1", "q1", "p1", "qr", "a1")
    assert way.rules == ("c1: every table except tmp.*",)


LIVE = LiveSite(
    statements=(
        PlannedStatement(
            statement="CREATE SOMETHING",
            effect="makes something",
            lock="TableLock on hr.employees for a moment",
            breaks=("UPDATE hr.log: it has no key",),
        ),
        PlannedStatement(statement="CREATE OTHER", effect="makes another thing", is_done=True),
    ),
    tables=(
        SourceTable(owner="hr", name="employees", columns=("id",), is_partitioned=False, row_estimate=107, bytes=81920),
    ),
    findings=(Finding(path="sites.dbs1", problem="too few senders", fix="raise the limit"),),
)


def test_plan_text_shows_statements_locks_and_failures(tmp_path):
    text = make_plan(read(tmp_path, TWO_WAY), {"dbs1": LIVE}).as_text()
    for line in (
        "  1 tables are captured",
        "    hr.employees: about 107 rows, 80kB",
        "  + CREATE SOMETHING",
        "      makes something",
        "    locks: TableLock on hr.employees for a moment",
        "    will fail from then on: UPDATE hr.log: it has no key",
        "  = CREATE OTHER",
        "      makes another thing",
        "    locks: nothing that a statement of yours could wait for",
        "  error sites.dbs1: too few senders: raise the limit",
    ):
        assert line in text.splitlines()
    assert text.count("not asked: its statements are not listed") == 2


def test_plan_shows_a_common_lock_once_below_its_statements(tmp_path):
    steps = tuple(PlannedStatement(statement=f"CREATE {name}", effect=f"makes {name}", lock="L") for name in "ab")
    lines = make_plan(read(tmp_path, TWO_WAY), {"dbs1": LiveSite(statements=steps)}).as_text().splitlines()
    start = lines.index("  + CREATE a")
    assert lines[start : start + 5] == [
        "  + CREATE a",
        "      makes a",
        "  + CREATE b",
        "      makes b",
        "    locks: L",
    ]


def test_plan_dictionary_is_json_with_everything_in_the_text(tmp_path):
    plan = make_plan(read(tmp_path, TWO_WAY), {"dbs1": LIVE})
    again = json.loads(json.dumps(plan.as_dict()))
    assert again["topology"] == "t"
    assert [actor["name"] for actor in again["actors"]] == [actor.name for actor in plan.actors]
    assert again["sites"][0]["live"]["statements"][0]["breaks"] == ["UPDATE hr.log: it has no key"]
    assert again["findings"][-1]["problem"] == "too few senders"


def test_plan_names_the_environment_variable_never_the_connection_string(tmp_path):
    spec = read(
        tmp_path,
        'topology: t\nsites: {a: {database: {kind: postgres, dsn: "${A_DSN}"}}}',
        {"A_DSN": "postgresql://u:hunter2@h/d"},
    )
    plan = make_plan(spec)
    assert "connection from A_DSN" in plan.as_text()
    assert "hunter2" not in plan.as_text() + json.dumps(plan.as_dict())


def test_plan_explains_each_optimisation(tmp_path):
    text = (
        SITES
        + """
queues: {q1: {site: dbs1}, q2: {site: dbs2}}
captures: {c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: hr}]}}}
propagations: {p1: {from: q1, to: q2, rules: {exclude: [{table: hr.t}]}}}
applies: {a1: {site: dbs2, source: dbs1, queue: q2, parallelism: 1, group_transactions: 1}}
"""
    )
    found = {item.name: (item.applies, item.reason) for item in make_plan(read(tmp_path, text)).optimisations}
    assert found == {
        "p1: batches sent on unopened": (False, "its rules look into every batch"),
        "p1: split off when its destination is away": (False, "nothing else reads q1"),
        "a1: transactions applied in groups": (False, "group_transactions is 1"),
        "a1: independent groups in parallel": (False, "parallelism is 1"),
        "c1: combined capture and apply": (False, "p1 has rules"),
        "p1: direct dequeuing": (False, "p1 has rules"),
    }


def test_plan_shows_combined_capture_and_the_bypassed_components(tmp_path):
    plan = make_plan(read(tmp_path, SITES + "replicate: [{tables: [hr.a], from: dbs1, to: [dbs2]}]"))
    assert (
        "  yes capture_dbs1: combined capture and apply: q_dbs1 has one publisher, and one way without rules leads to"
        " apply_from_dbs1_at_dbs2 (not run: dbs1_to_dbs2, q_dbs1, q_dbs2_in)" in plan.as_text().splitlines()
    )


def test_plan_shows_restarting_components_with_reasons(tmp_path):
    before = read(tmp_path, NEVER + SITES + "replicate: [{tables: [hr.a], from: dbs1, to: [dbs2]}]")
    after = read(tmp_path, NEVER + SITES + "replicate: [{tables: [hr.a, hr.b], from: dbs1, to: [dbs2]}]")
    lines = make_plan(after, prepared=before).as_text().splitlines()
    start = lines.index("Changes to what runs")
    assert lines[start + 1 : start + 5] == [
        "  site:dbs1 keeps running, with changed captures",
        "  apply:apply_from_dbs1_at_dbs2 restarts, with changed tables",
        "  capture:capture_dbs1 keeps running, with changed rules",
        "  not touched: site:dbs2, site:dbs3, site:relay, spark:dbs2, queue:q_dbs1, queue:q_dbs2_in, "
        "propagation:dbs1_to_dbs2",
    ]
    assert "Changes to what runs" not in make_plan(after).as_text()


def test_plan_shows_shared_processes_and_restarts_when_they_change(tmp_path):
    shared, apart = (read(tmp_path, f"processes: {how}\n{NEVER}" + TWO_WAY) for how in ("shared", "apart"))
    assert (
        "Actors (processes: shared: queues and propagations of a site share one, and so do its capture processes, its"
        " redo receivers, and its apply processes by fours)" in make_plan(shared).as_text().splitlines()
    )
    plan = make_plan(apart, prepared=shared)
    lines = plan.as_text().splitlines()
    assert plan.as_dict()["processes"] == "apart"
    assert "Actors (processes: apart: each actor has one with its name)" in lines
    assert "  queue:q_dbs1 restarts, with changed process" in lines
    assert "  not touched: site:dbs1, site:dbs2, site:dbs3, site:relay, spark:dbs2, spark:dbs1" in lines


def test_plan_shows_split_and_splittable_propagations(tmp_path):
    file = tmp_path / "fan_out.yaml"
    file.write_text("""
topology: t
sites: {a: {database: {kind: embedded}}, b: {database: {kind: embedded}}, c: {database: {kind: embedded}}}
replicate: [{tables: [s.*], from: a, to: [b, c]}]
propagations: {a_to_c: {from: q_a, to: q_c_in, split: never}}
""")
    spec = read_topology(file)
    found = {each.name: (each.applies, each.reason) for each in make_plan(spec).optimisations}
    assert found["a_to_b: split off when its destination is away"] == (
        True,
        "after 1800 s, from q_a; merged within 60 s",
    )
    assert found["a_to_c: split off when its destination is away"] == (False, "split: never, or a schedule")
    split = Split(
        propagation="a_to_b", queue="q_a", to_queue="q_b_in", phase=SPLIT, merges=True, by="threshold", since_us=1
    )
    plan = make_plan(spec, prepared=with_splits(spec, [split]), splits=[split])
    assert {change.action for change in plan.changes} == {"same"}  # `up` with this file keeps it split off
    assert "a -> b: capture_a.a_to_b -> q_a.a_to_b -> apply_from_a_at_b" in plan.as_text()
    moved = replace(spec, propagations=tuple(replace(each, from_queue="q_b_in") for each in spec.propagations))
    assert any(
        "is split off from queue q_a" in finding.problem for finding in make_plan(moved, splits=[split]).findings
    )
