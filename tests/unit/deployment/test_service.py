"""The systemd unit of the examples: an intruder in a component gains little."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from actors.cluster.local import LocalCluster
from headrace.commands import doctor
from headrace.databases.ports import Finding

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "examples" / "headrace.service"
EXPOSURE_MAX = 40  # tenths of a point of systemd 252; without these settings it was 92
HARDENED = {
    "UMask": "0077",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "RestrictSUIDSGID": "yes",
    "CapabilityBoundingSet": "",
    "AmbientCapabilities": "",
    "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes",
    "LockPersonality": "yes",
    "SystemCallArchitectures": "native",
    "ProtectClock": "yes",
    "ProtectControlGroups": "yes",
    "ProtectHostname": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "KeyringMode": "private",
    "StateDirectoryMode": "0700",
    "CacheDirectoryMode": "0700",
    "User": "headrace",
}


def settings() -> dict[str, str]:
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    found = dict(line.split("=", 1) for line in lines)
    assert len(found) == len(lines)
    return found


def test_unit_is_hardened():
    assert {name: value for name, value in settings().items() if name in HARDENED} == HARDENED


def test_only_required_folders_are_writable():
    found = settings()
    folders = found["ReadWritePaths"].split()
    assert folders == [f"/var/lib/{found['StateDirectory'].split()[0]}", f"/var/cache/{found['CacheDirectory']}"]
    variables = dict(each.split("=", 1) for each in found["Environment"].split())
    assert variables["NUMBA_CACHE_DIR"] == folders[1]
    # not /tmp, which is private to the unit: commands in a shell must find Ray's sockets
    assert variables["TMPDIR"] == f"/var/lib/{found['StateDirectory'].split()[1]}"


def test_private_cluster_has_its_sockets_in_the_folder_of_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A path too long for a socket would be replaced by one in /tmp."""
    import actors.cluster.local as local

    folder = dict(each.split("=", 1) for each in settings()["Environment"].split())["TMPDIR"]
    monkeypatch.setattr(tempfile, "gettempdir", lambda: folder)
    assert local._temporary_base() == folder
    assert LocalCluster(tmp_path)._environment().get("PATH")


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not installed: the unit's settings are compared with a list alone",
)
def test_systemd_rates_the_exposure_as_low():
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", "--no-pager", str(UNIT)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Unknown" not in done.stderr


def test_guide_shows_the_unit():
    assert UNIT.read_text().partition("\n")[2] in (ROOT / "docs" / "tasks" / "start-at-boot.md").read_text()


@pytest.mark.parametrize("user", [0, 1000])
def test_doctor_warns_of_root(monkeypatch: pytest.MonkeyPatch, user: int):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    found: list[Finding] = []
    doctor._user(found)
    assert [(each.path, each.is_error) for each in found] == ([("user", False)] if user == 0 else [])
