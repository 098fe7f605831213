from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base.durable_file import replace_file
from tests.support.session.noted import noted


def test_file_is_replaced_whole_and_synced_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, steps = tmp_path / "wanted.json", []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        steps.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", lambda source, target: (noted(steps, "renamed"), replace(source, target)))
    replace_file(path, "one")
    assert steps == [f"{path}.new", "renamed", str(tmp_path)]
    replace_file(path, "two")
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]


def test_old_file_stays_when_the_new_one_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "wanted.json"
    replace_file(path, "one")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, "two")
    assert path.read_text() == "one"
