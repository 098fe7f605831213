"""Capture SCNs in a topology file, and redo that a new or moved capture process would not find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.deployment import kept_redo
from headrace.deployment.kept_redo import redo_findings
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.redo.standby.kept_segments import read_oldest_scn
from tests.support.redo.retained_redo import Source
from tests.support.topologies.files import read
from topology.edits.capture_scns import scn_findings
from topology.spec import TopologySpec

LOCAL = """
topology: t
sites:
  a: {database: {kind: embedded}}
  b: {database: {kind: embedded}}
queues:
  qa: {site: a}
  qb: {site: b}
captures:
  c: {site: a, source: a, queue: qa, rules: {include: [{table: t.one}]}}
propagations:
  p: {from: qa, to: qb}
applies:
  x: {site: b, source: a, queue: qb}
"""
DOWNSTREAM = """
topology: t
sites:
  a: {database: {kind: embedded}}
  b: {database: {kind: embedded}}
queues:
  qb: {site: b}
captures:
  d: {site: b, source: a, queue: qb, rules: {include: [{table: t.one}]}}
applies:
  x: {site: b, source: a, queue: qb}
"""


@pytest.fixture
def local(tmp_path: Path) -> TopologySpec:
    return read(tmp_path, LOCAL)


@pytest.fixture
def downstream(tmp_path: Path) -> TopologySpec:
    return read(tmp_path, DOWNSTREAM)


def found(
    before: TopologySpec | None, after: TopologySpec, oldest: dict[tuple[str, str], int], applied: int
) -> list[str]:
    return [
        each.path
        for each in scn_findings(
            before,
            after,
            oldest_scn=lambda source, site: Scn(oldest[source, site]),
            applied_scn=lambda apply: Scn(applied),
        )
    ]


def test_downstream_capture_replacing_a_local_one_needs_source_redo(
    local: TopologySpec, downstream: TopologySpec
) -> None:
    assert found(local, downstream, {("a", "a"): 100}, applied=100) == []
    assert found(local, downstream, {("a", "a"): 101}, applied=100) == ["captures.d"]


def test_local_capture_replacing_a_downstream_one_needs_source_redo(
    local: TopologySpec, downstream: TopologySpec
) -> None:
    """The source keeps only redo that the receiver lacks."""
    assert found(downstream, local, {("a", "a"): 100}, applied=100) == []
    assert found(downstream, local, {("a", "a"): 101}, applied=100) == ["captures.c"]


def test_new_apply_process_needs_no_earlier_redo(local: TopologySpec, downstream: TopologySpec) -> None:
    assert found(local, downstream, {("a", "a"): 101}, applied=FIRST_SCN) == []
    anew = replace(downstream, applies=tuple(replace(each, name="y") for each in downstream.applies))
    assert found(local, anew, {("a", "a"): 101}, applied=100) == []


def test_unchanged_capture_processes_are_not_checked(local: TopologySpec) -> None:
    assert found(local, local, {}, applied=1) == []
    assert found(None, local, {}, applied=1) == []


def test_check_reads_the_redo_on_this_machine(
    local: TopologySpec, downstream: TopologySpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = Source(tmp_path / "redo")
    source.applied()
    source.turn()
    oldest = source.writer.oldest_scn
    assert oldest > FIRST_SCN
    assert read_oldest_scn(tmp_path / "redo") == oldest
    monkeypatch.setattr(kept_redo, "prepared_topology", lambda folder: local)
    monkeypatch.setattr(
        kept_redo, "redo_folder", lambda spec, *, source, site: tmp_path / ("redo" if site == source else "elsewhere")
    )
    asked = []

    class Progress:
        low_watermark = Scn(oldest - 1)

    class Destination:
        def progress(self, topology: str, apply: str) -> Progress:
            asked.append((topology, apply))
            return Progress()

    class Databases:
        def __init__(self, *, run: bool) -> None:
            self._run = run

        def access(self, site: str) -> str | None:
            return site if self._run else None

        def destination(self, site: str) -> Destination:
            return Destination()

    (finding,) = redo_findings(downstream, Databases(run=True))
    assert finding.path == "captures.d"
    assert asked == [("t", "x")]
    assert redo_findings(downstream, Databases(run=False)) == (), "a stopped database reports no progress"
    assert read_oldest_scn(tmp_path / "elsewhere") is None
