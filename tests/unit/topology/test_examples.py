"""Every example file is a topology without a problem or a warning, and says what its name promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from topology.checks import check
from topology.reading import read_topology

FOLDER = Path(__file__).parents[3] / "examples"
FILES = sorted(FOLDER.glob("*.yaml"))
ENVIRONMENT = {"DBS1_DSN": "postgresql://headrace@one/app", "DBS2_DSN": "postgresql://headrace@two/app"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_example_reads_without_a_finding(file):
    assert check(read_topology(file, ENVIRONMENT)) == ()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_example_keeps_its_state_out_of_version_control(file):
    assert ".headrace" in read_topology(file, ENVIRONMENT).state_dir.parts


def test_one_way_takes_the_pgbench_tables_from_dbs1_to_dbs2():
    spec = read_topology(FOLDER / "one_way.yaml", {})
    assert [(apply.source, apply.site) for apply in spec.applies] == [("dbs1", "dbs2")]
    (capture,) = spec.captures
    assert capture.rules.include is not None
    assert all(
        any(rule.matches_object("public", f"pgbench_{table}") for rule in capture.rules.include)
        for table in ("accounts", "branches", "tellers", "history")
    )


def test_two_way_replicates_in_both_directions():
    spec = read_topology(FOLDER / "two_way.yaml", {})
    assert {(apply.source, apply.site) for apply in spec.applies} == {("dbs1", "dbs2"), ("dbs2", "dbs1")}


def test_own_servers_takes_its_connection_strings_from_the_environment():
    spec = read_topology(FOLDER / "own_servers.yaml", ENVIRONMENT)
    assert [site.database.environment for site in spec.sites] == [("DBS1_DSN",), ("DBS2_DSN",)]
