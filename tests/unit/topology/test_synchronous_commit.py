"""Whether commits of apply processes wait for the destination's disk: the file's setting and the plan."""

from __future__ import annotations

import pytest

from topology.edits.stored import spec_from_json, spec_to_json
from topology.file.reading import read_topology
from topology.plan import make_plan
from topology.problems import TopologyError


def test_commits_wait_for_the_disk_only_with_synchronous_commit_on(tmp_path):
    text = """
topology: t
sites: {a: {database: {kind: embedded}}, b: {database: {kind: embedded}}}
replicate: [{from: a, to: [b], tables: [hr.*]}]
"""
    file = tmp_path / "t.yaml"
    file.write_text(text)
    (apply,) = read_topology(file).applies
    assert apply.commits_lazily
    waits = "each commit waits for the disk"
    assert not [each for each in make_plan(read_topology(file)).actors if waits in each.work]
    file.write_text(text + "synchronous_commit: on\n")
    spec = read_topology(file)
    assert not spec.applies[0].commits_lazily
    assert [each.name for each in make_plan(spec).actors if waits in each.work] == [f"apply:{apply.name}"]
    assert spec_from_json(spec_to_json(spec)).applies == spec.applies
    for top, own, lazily in (("on", "off", True), ("off", "on", False)):
        mine = f"applies: {{{apply.name}: {{site: b, source: a, queue: {apply.queue}, synchronous_commit: {own}}}}}\n"
        file.write_text(f"{text}synchronous_commit: {top}\n{mine}")
        assert read_topology(file).applies[0].commits_lazily is lazily
    file.write_text(text + "synchronous_commit: local\n")
    with pytest.raises(TopologyError, match="synchronous_commit"):
        read_topology(file)
