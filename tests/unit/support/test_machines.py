"""Where machines cannot be had, what lacks is named; the tests that need them are skipped with it."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.support.clusters.machines import why_there_are_none


@pytest.mark.parametrize("program", ["/usr/sbin/sshd", "rsync"])
def test_a_program_that_lacks_is_named(program, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == program else name)
    assert why_there_are_none() == f"machines need {program}, which this system does not have"


def test_other_users_than_root_are_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert "by root alone" in why_there_are_none()
