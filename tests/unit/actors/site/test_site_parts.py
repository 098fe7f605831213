"""A call to a site goes to the part of the site that has the named method."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from actors.hosting.components import Components, Record
from actors.source_database import DatabaseSite
from tests.support.actors.controllers import one_way_spec
from topology.edits.receivers import Receivers

PARTS = ("redo", "source", "source.tables", "destination")


@pytest.fixture
def host(tmp_path: Path) -> DatabaseSite:
    return DatabaseSite(one_way_spec(tmp_path), "a", "")


def part_of(host: DatabaseSite, path: str) -> Any:
    found: Any = host
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("path", PARTS)
def test_part_answers_only_methods_that_the_site_lacks(host, path):
    part = part_of(host, path)
    assert part.answers
    for name in part.answers:
        assert host.answering(name) is part
        assert callable(getattr(part, name))
        assert not hasattr(host, name)


def test_no_two_parts_answer_the_same_method(host):
    for one, other in itertools.combinations(PARTS, 2):
        assert not part_of(host, one).answers & part_of(host, other).answers


def test_site_answers_all_other_methods(host):
    for name in ("status", "prepare", "preflight", "end_source", "endpoint", "stopped"):
        assert host.answering(name) is host


class _OneRecord:
    """The cluster's record of one component, site a, which is dropped when it ends."""

    def __init__(self, folder: Path) -> None:
        arguments = {"spec": one_way_spec(folder), "name": "a", "fingerprint": ""}
        self.record: Record | None = Record(
            creation="1",
            factory="actors.source_database:build",
            arguments=arguments,
            state_dir=str(folder / "state"),
        )

    def names(self) -> list[str]:
        return ["site:a"]

    def get(self, _component: str) -> Record | None:
        return self.record

    def ended(self, _component: str) -> None:
        """No other record exists."""


def test_call_by_name_reaches_the_part(tmp_path, monkeypatch):
    monkeypatch.setattr(DatabaseSite, "start", lambda _host: None)  # without a server
    records = _OneRecord(tmp_path)
    components = Components(records)
    assert components.call("site:a", "receivers") == Receivers()
    assert components.call("site:a", "stopped", ("queue:qa",)) == ()
    records.record = None
    components.settle("site:a")
