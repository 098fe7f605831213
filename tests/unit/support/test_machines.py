"""On a system without machines the missing prerequisite is named; tests that need machines are skipped with it."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.support.clusters.machines import why_there_are_none


@pytest.mark.parametrize("program", ["/usr/sbin/sshd", "rsync"])
def test_missing_program_is_named(program, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == program else name)
    assert why_there_are_none() == f"machines need {program}, which this system does not have"


def test_machines_require_root(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert "by root alone" in why_there_are_none()
