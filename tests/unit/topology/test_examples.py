"""Every example file is a topology without findings that does what its name promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.deployment.inspection import check_topology
from topology.checks.static import check
from topology.file.reading import read_topology
from topology.plan import make_plan

FOLDER = Path(__file__).parents[3] / "examples"
SEVERAL_WRITERS = (
    "two_way",
    "n_way",
    "hub_and_spoke",
    "hub_and_spoke_explicit",
    "extended_secondaries",
    "conflicts",
    "latest_timestamp",
)
FILES = sorted(FOLDER.glob("*.yaml"))
ENVIRONMENT = {"DBS1_DSN": "postgresql://headrace@one/app", "DBS2_DSN": "postgresql://headrace@two/app"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_example_has_no_findings(file):
    found = check(read_topology(file, ENVIRONMENT))
    assert [finding for finding in found if "no conflict handler" not in finding.problem] == []
    assert bool(found) == (file.stem in SEVERAL_WRITERS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_example_state_is_ignored_by_version_control(file):
    assert ".headrace" in read_topology(file, ENVIRONMENT).state_dir.parts


def test_one_way_example_sends_the_pgbench_tables_from_dbs1_to_dbs2():
    spec = read_topology(FOLDER / "one_way.yaml", {})
    assert [(apply.source, apply.site) for apply in spec.applies] == [("dbs1", "dbs2")]
    (capture,) = spec.captures
    assert capture.rules.include is not None
    assert all(
        any(rule.matches_object("public", f"pgbench_{table}") for rule in capture.rules.include)
        for table in ("accounts", "branches", "tellers", "history")
    )


def test_two_way_example_replicates_in_both_directions():
    spec = read_topology(FOLDER / "two_way.yaml", {})
    assert {(apply.source, apply.site) for apply in spec.applies} == {("dbs1", "dbs2"), ("dbs2", "dbs1")}


def test_explicit_hub_and_spoke_example_equals_the_expanded_short_form():
    short, explicit = (read_topology(FOLDER / f"hub_and_spoke{suffix}.yaml", {}) for suffix in ("", "_explicit"))
    for kind in ("queues", "captures", "propagations", "applies"):
        assert {each.name: each for each in getattr(short, kind)} == {
            each.name: each for each in getattr(explicit, kind)
        }


def test_relay_example_forwards_one_propagation_to_two_destinations():
    plan = make_plan(read_topology(FOLDER / "relay.yaml", {}))
    assert [way.components for way in plan.ways] == [
        ("capture_news", "q_news", "news_to_relay", "q_news_relay", f"apply_news_at_{site}")
        for site in ("dbs3", "dbs4")
    ]


FLOWS = {
    "n_way": {
        ("dbs1", "dbs2"),
        ("dbs1", "dbs3"),
        ("dbs2", "dbs1"),
        ("dbs2", "dbs3"),
        ("dbs3", "dbs1"),
        ("dbs3", "dbs2"),
    },
    "hub_and_spoke": {
        (a, b)
        for hub, spoke in (("dbs1", "dbs2"), ("dbs1", "dbs3"), ("dbs1", "dbs4"))
        for a, b in ((hub, spoke), (spoke, hub))
    },
    "extended_secondaries": {
        (a, b)
        for hub, spoke in (("dbs1", "dbs2"), ("dbs2", "dbs3"), ("dbs2", "dbs4"))
        for a, b in ((hub, spoke), (spoke, hub))
    },
    "several_sources": {("dbs1", "dbs3"), ("dbs2", "dbs3")},
    "fan_out": {("dbs1", "dbs2"), ("dbs1", "dbs3"), ("dbs1", "dbs4")},
}


@pytest.mark.parametrize(("name", "flows"), FLOWS.items(), ids=FLOWS.keys())
def test_example_replicates_between_the_sites_of_its_form(name, flows):
    plan = make_plan(read_topology(FOLDER / f"{name}.yaml", {}))
    assert {(way.source, way.destination) for way in plan.ways} == flows
    assert len(plan.ways) == len(flows)


def test_tls_example_has_no_findings_with_headraces_certificates(tmp_path):
    file = tmp_path / "tls.yaml"
    file.write_text((FOLDER / "tls.yaml").read_text())
    missing = check_topology(file, ask_databases=False).findings
    assert {finding.path for finding in missing if finding.is_error} == {
        f"sites.{site}.tls.{key}" for site in ("dbs1", "dbs2") for key in ("authority", "certificate", "key")
    }
    made = subprocess.run(
        [
            sys.executable,
            "-c",
            "from headrace.cli.entry import main; main()",
            "certs",
            str(tmp_path / "certs"),
            "--topology",
            str(file),
            "--json",
        ],
        capture_output=True,
        check=True,
        text=True,
    )
    assert len(json.loads(made.stdout)["made"]) == 6
    assert check_topology(file, ask_databases=False).findings == ()


def test_certs_prints_the_settings_that_the_file_needs(tmp_path):
    plain = (FOLDER / "two_way.yaml").read_text()
    file = tmp_path / "two_way.yaml"
    file.write_text(plain)
    made = subprocess.run(
        [sys.executable, "-c", "from headrace.cli.entry import main; main()", "certs", "keys", "--topology", file.name],
        capture_output=True,
        check=True,
        text=True,
        cwd=tmp_path,
    )
    file.write_text(f"{made.stderr.partition('tls: ')[1]}{made.stderr.partition('tls: ')[2]}\n{plain}")
    assert [finding for finding in check_topology(file, ask_databases=False).findings if finding.is_error] == []
    tls = read_topology(file).sites[0].tls
    assert tls is not None
    assert tls.key.parent == tmp_path / "keys"


def test_own_servers_example_reads_connection_strings_from_environment():
    spec = read_topology(FOLDER / "own_servers.yaml", ENVIRONMENT)
    assert [site.database.environment for site in spec.sites] == [("DBS1_DSN",), ("DBS2_DSN",)]


def test_downstream_example_copies_the_redo_of_dbs1_and_mines_it_at_dbs2(tmp_path):
    plan = make_plan(read_topology(FOLDER / "downstream.yaml", {}))
    work = {actor.name: (actor.site, actor.work) for actor in plan.actors}
    assert work["redo:dbs1@dbs2"] == (
        "dbs2",
        "redo receiver: copies the redo of dbs1 synchronously: a commit waits for it where the database waits for the"
        " session headrace_downstream_dbs1",
    )
    assert work["capture:capture_dbs1"] == ("dbs2", "mines the redo of dbs1 (its copy at dbs2) for apply_from_dbs1")
    assert "log writer" in work["site:dbs1"][1]
    assert [way.components for way in plan.ways] == [("capture_dbs1", "apply_from_dbs1")]


def test_slow_line_example_compresses_and_keeps_its_queues():
    spec = read_topology(FOLDER / "slow_line.yaml", {})
    (propagation,) = spec.propagations
    assert (propagation.compression, propagation.bandwidth_max) == ("zstd", 500 << 10)
    assert propagation.schedule is not None
    assert propagation.schedule.at(1_790_000_000_000_000 // 3_600_000_000 * 3_600_000_000 + 55 * 60_000_000).is_open
    plan = make_plan(spec)
    assert {actor.name for actor in plan.actors} >= {"queue:q_dbs1", "queue:q_dbs2_in", "propagation:dbs1_to_dbs2"}
    assert "from q_dbs1 to q_dbs2_in, compressed with zstd" in plan.as_text()
    assert "no  capture_dbs1: combined capture and apply: dbs1_to_dbs2 compresses what it sends" in plan.as_text()


def test_archived_log_example_mines_two_sources_at_one_site(tmp_path):
    plan = make_plan(read_topology(FOLDER / "archived_logs.yaml", {}))
    work = {actor.name: actor.work for actor in plan.actors}
    assert work["redo:dbs1@dbs3"].startswith("redo receiver: takes the complete segments of dbs1 that are copied into ")
    assert work["redo:dbs2@dbs3"] == "redo receiver: copies the complete segments of dbs2, at most 30 s old"
    assert {way.destination for way in plan.ways} == {"dbs3"}
