"""`check` warns of a redo log that can grow larger than its disk."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.deployment import inspection
from tests.support.actors.controllers import one_way_spec


def test_redo_bound_above_the_size_of_the_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(one_way_spec(tmp_path), redo_bytes_max=16_000_000_000)
    asked: list[Path] = []

    def usage(folder: Path) -> SimpleNamespace:
        asked.append(folder)
        return SimpleNamespace(total=200_000_000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    (found,) = inspection._disk_findings(spec)
    assert (found.path, found.is_error) == ("redo_bytes_max", False)
    assert found.problem.startswith(f"is 16.0 GB, but the disk of {spec.state_dir} has 200 MB")
    assert all(folder.exists() for folder in asked), "the state folder does not exist yet"
    assert list(inspection._disk_findings(replace(spec, redo_bytes_max=200_000_000))) == []
    elsewhere = tuple(replace(site, node=(("site_x", 1.0),)) for site in spec.sites)
    assert list(inspection._disk_findings(replace(spec, sites=elsewhere))) == [], (
        "the disk of another machine is not visible here"
    )
