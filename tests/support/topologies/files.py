"""Topologies for tests, written as a user would write them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.session.packages import ROOT
from topology.file.reading import examine, read_topology
from topology.problems import TopologyError, as_line
from topology.spec import TopologySpec

ONE_WAY = """
topology: t
sites:
  a: {database: {kind: embedded}}
  b: {database: {kind: embedded}}
replicate:
  - {tables: [public.*], from: a, to: [b]}
"""
SITES = """
topology: t
sites:
  dbs1: {database: {kind: embedded}}
  dbs2: {database: {kind: embedded}}
  dbs3: {database: {kind: embedded}}
  relay: {database: {kind: none}}
"""
WRITERS = """
topology: many
sites:
  a: {database: {kind: postgres, dsn: "dbname=a"}}
  b: {database: {kind: postgres, dsn: "dbname=b"}}
  c: {database: {kind: postgres, dsn: "dbname=c"}}
"""
"""Three databases of users; a test adds what they replicate."""

_EXAMPLES = ROOT / "examples"
_DSNS = {"DBS1_DSN": "host=dbs1.invalid", "DBS2_DSN": "host=dbs2.invalid"}


def example(name: str) -> TopologySpec:
    """Return a topology of the examples; where it names users' servers, these do not answer."""
    return read_topology(_EXAMPLES / f"{name}.yaml", _DSNS)


def read(folder: Path, text: str, environment: Mapping[str, str] | None = None) -> TopologySpec:
    """Read a topology given as text."""
    file = folder / "topology.yaml"
    file.write_text(textwrap.dedent(text).strip("\n"))
    return read_topology(file, environment or {})


def read_anyway(folder: Path, text: str) -> TopologySpec:
    """Read a topology given as text, in spite of problems."""
    spec = findings(folder, text)[0]
    assert spec is not None
    return spec


def findings(folder: Path, text: str) -> tuple[TopologySpec | None, list[str]]:
    """Return a topology given as text, and all of its findings: `error: ...` and `warning: ...`."""
    file = folder / "topology.yaml"
    file.write_text(textwrap.dedent(text).strip("\n"))
    found = examine(file, {})
    return found.spec, [f"{'error' if each.is_error else 'warning'}: {as_line(each)}" for each in found.findings]


def problems(folder: Path, text: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """Return every problem of a topology given as text, as the user sees it."""
    with pytest.raises(TopologyError) as caught:
        read(folder, text, environment)
    return [as_line(finding) for finding in caught.value.findings]
