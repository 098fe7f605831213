"""Protection of links by the `tls` setting, and the operator's explicit choice of open links."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.deployment.inspection import check_topology, plan_topology
from tests.support.topologies.files import ONE_WAY, findings, problems, read
from topology.edits.changes import changes
from topology.file.reading import read_topology
from topology.links import both_ways, made_certificate, makes_certificates
from topology.problems import TopologyError

NODES = ONE_WAY.replace("  b: {", "  b: {node: {site_b: 1}, ").lstrip()
PLAIN = f"tls: none\n{ONE_WAY.lstrip()}"


def test_file_without_tls_gets_the_certificate_files_that_up_makes(tmp_path: Path) -> None:
    spec = read(tmp_path, ONE_WAY)
    assert makes_certificates(spec)
    assert [site.tls for site in spec.sites] == [made_certificate(spec.state_dir, name) for name in ("a", "b")]
    found = check_topology(spec.file, ask_databases=False)
    assert found.findings == ()
    text = plan_topology(spec.file, ask_databases=False).as_text()
    assert (
        f"Links between components: mutual TLS, with certificates that `up` makes in {spec.state_dir}/certificates and"
        " renews" in text
    )


def test_tls_none_is_a_warning_of_check_and_plan(tmp_path: Path) -> None:
    spec, found = findings(tmp_path, PLAIN)
    assert spec is not None
    assert [site.tls for site in spec.sites] == [None, None]
    (warning,) = found
    assert warning.startswith("warning: tls (line 1): none: anyone who reaches")
    plan = plan_topology(spec.file, ask_databases=False)
    assert "Links between components: neither encrypted nor authenticated" in plan.as_text()
    assert [finding.path for finding in plan.findings] == ["tls (line 1)"]
    assert [finding.path for finding in check_topology(spec.file, ask_databases=False).findings] == ["tls (line 1)"]
    # The change that the warning advises.
    spec.file.write_text(spec.file.read_text().replace("tls: none\n", ""))
    assert check_topology(spec.file, ask_databases=False).findings == ()


def test_sites_with_nodes_require_a_tls_setting_and_each_printed_one_works(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, NODES)
    assert problem.startswith("tls: is missing, and b has a node")
    file = tmp_path / "topology.yaml"
    # A topology started by an earlier version is read and stopped with its existing links.
    running = read_topology(file, to_start=False)
    assert [site.tls for site in running.sites] == [None, None]
    assert problem.endswith(both_ways(running))
    _, line, _, files, _, none, _ = both_ways(running).split("`")
    file.write_text(f"{none}\n{NODES}")
    assert read_topology(file) == running
    made = [str(Path(sys.executable).parent / "headrace"), *shlex.split(line)[1:]]
    subprocess.run(made, check=True, capture_output=True, cwd="/")
    file.write_text(f"{files}\n{NODES}")
    assert [site.tls.key for site in read_topology(file).sites if site.tls] == [
        tmp_path / "certs" / f"{name}.key" for name in ("a", "b")
    ]
    assert check_topology(file, ask_databases=False).findings == ()


@pytest.mark.parametrize("said", ["yes", "off", "required", "[none]"])
def test_unknown_tls_value_is_refused_with_the_allowed_values(tmp_path: Path, said: str) -> None:
    (problem,) = problems(tmp_path, f"tls: {said}\n{ONE_WAY.lstrip()}")
    assert problem.startswith("tls (line 1): ")
    assert "or write none" in problem


def test_certificate_files_at_only_some_sites_are_refused(tmp_path: Path) -> None:
    text = ONE_WAY.replace("  a: {", "  a: {tls: {authority: x, certificate: y, key: z}, ")
    for more in ("", "tls: none\n"):
        with pytest.raises(TopologyError, match=r"sites\.b .*: has no tls, and a has"):
            read(tmp_path, more + text.lstrip())


def test_topology_of_an_earlier_version_gets_certificates_by_a_restart(tmp_path: Path) -> None:
    before = read(tmp_path, PLAIN)
    after = read(tmp_path, ONE_WAY)
    assert before.state_dir == after.state_dir
    found = changes(before, after)
    assert {change.action for change in found} == {"restarts"}
    # the controller knows the sites
    assert {facet for change in found for facet in change.facets} == {"certificate", "sites"}
