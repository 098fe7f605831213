"""The apply actor tells why its driver ended, in the driver's own words; the driver here is a small script."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from actors.apply import ApplyHost, DriverEnded, DriverRefused
from tests.support.topologies import ONE_WAY
from topology.reading import read_topology


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ApplyHost:
    """Its driver is `tmp_path/driver`, a shell script that a test writes."""
    file = tmp_path / "t.yaml"
    file.write_text(ONE_WAY)
    spec = read_topology(file)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "driver"))
    monkeypatch.setattr(ApplyHost, "_configuration", lambda self: "{}")
    return ApplyHost(spec, spec.applies[0].name, "fingerprint")


def script(folder: Path, *lines: str) -> None:
    driver = folder / "driver"
    driver.write_text("\n".join(["#!/bin/sh", "read -r configuration", *lines]) + "\n")
    driver.chmod(0o755)


@pytest.mark.parametrize(("retry", "kind"), [("timed", DriverEnded), ("manual", DriverRefused), ("never", DriverRefused)])
def test_words_of_a_driver_that_ends_before_it_serves_are_told(host: ApplyHost, tmp_path: Path, retry: str, kind: type):
    words = {"error": "SparkUnavailable", "message": "no room", "hint": "make room", "retry": retry}
    script(tmp_path, f"echo '{json.dumps(words)}'", "exit 1")
    with pytest.raises(kind, match="SparkUnavailable: no room") as told:
        host.open()
    host.close()
    assert told.value.hint == "make room"


def test_driver_that_ends_without_a_word_names_its_code_and_its_log(host: ApplyHost, tmp_path: Path):
    script(tmp_path, "echo '[1]'", "echo not json", "exit 7")
    with pytest.raises(DriverEnded, match="ended with code 7") as told:
        host.open()
    host.close()
    assert "driver.log" in told.value.hint
