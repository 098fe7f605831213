"""`headrace capture`: which component sets which SCN, and the output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import ConfigError
from headrace.commands.capture_scns import scn_given, scns_of, set_scns, text_of
from headrace.deployment.deployment import Deployment
from headrace.lcr.scn import Scn
from headrace.status.overview import Overview
from tests.support.actors.overviews import overview_from
from tests.support.topologies.files import read

TOPOLOGY = """
topology: t
sites:
  a: {database: {kind: embedded}}
  b: {database: {kind: embedded}}
queues:
  qa: {site: a}
  qb: {site: b}
  q2: {site: b}
captures:
  local: {site: a, source: a, queue: qa, rules: {include: [{table: t.one}]}}
  downstream: {site: b, source: a, queue: qb, rules: {include: [{table: t.two}]}}
propagations:
  p: {from: qa, to: q2}
applies:
  x: {site: b, source: a, queue: q2}
  y: {site: b, source: a, queue: qb}
"""


class Running(Deployment):
    """A deployment whose actors only record their calls."""

    def __init__(self, folder: Path) -> None:
        super().__init__(read(folder, TOPOLOGY), "")
        self.calls: list[tuple[object, ...]] = []
        self.status: dict[str, Any] = {"name": "capture:local", "state": "WAITING FOR REDO"}

    def connect(self) -> Any:
        return self

    def call(self, *arguments: object, timeout_s: float) -> None:
        self.calls.append(arguments)

    def overview(self) -> Overview:
        return overview_from({"components": [self.status]})


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(tmp_path)


def test_first_scn_is_set_where_the_redo_is_kept(running: Running) -> None:
    set_scns(running, "local", first_scn=Scn(50), start_scn=None)
    set_scns(running, "capture:downstream", first_scn=Scn(60), start_scn=None)
    assert running.calls == [("site:a", "set_first_scn", "local", 50), ("redo:a@b", "set_first_scn", "downstream", 60)]


def test_start_scn_is_set_at_the_capture_process_after_its_first_scn(running: Running) -> None:
    set_scns(running, "local", first_scn=Scn(50), start_scn=Scn(55))
    assert running.calls == [("site:a", "set_first_scn", "local", 50), ("capture:local", "capture_again", 55)]


def test_unknown_capture_process_and_invalid_scn_are_refused(running: Running) -> None:
    with pytest.raises(ConfigError, match="no component 'capture:locl'"):
        set_scns(running, "locl", first_scn=Scn(1), start_scn=None)
    with pytest.raises(ConfigError, match="--start-scn '0/x' is no SCN"):
        scn_given("0/x", "--start-scn")
    assert (scn_given("", "--start-scn"), scn_given("1/0000000A", "--start-scn"), scn_given("17", "--start-scn")) == (
        None,
        (1 << 32) + 10,
        17,
    )


def test_every_scn_of_the_manuals_is_shown_even_if_unknown(running: Running) -> None:
    running.status |= {
        "first_scn": 16,
        "start_scn": 17,
        "required_checkpoint_scn": 18,
        "applied_scn": 19,
        "captured_scn": 20,
    }
    found = scns_of(running, "local")
    assert found["max_checkpoint_scn"] is None
    assert text_of(found).splitlines() == [
        "capture:local: WAITING FOR REDO",
        "  first SCN: 0/00000010",
        "  start SCN: 0/00000011",
        "  required checkpoint SCN: 0/00000012",
        "  applied SCN: 0/00000013",
        "  maximum checkpoint SCN: unknown",
        "  captured SCN: 0/00000014",
    ]
