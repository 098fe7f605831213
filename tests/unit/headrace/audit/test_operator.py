"""The editor of an error transaction comes from the system, and not from the environment."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

import pytest

import headrace.audit.operator
from headrace.audit.operator import operator

OWN = pwd.getpwuid(os.getuid()).pw_name
HOST = socket.gethostname()


@pytest.mark.parametrize(
    ("login", "expected"),
    [
        (str(2**32 - 1), f"{OWN}@{HOST}"),
        (str(os.getuid()), f"{OWN}@{HOST}"),
        ("4294960000", f"{OWN} (login 4294960000)@{HOST}"),
        ("", f"{OWN}@{HOST}"),
    ],
)
def test_operator_ignores_names_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: str, expected: str
):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER"):
        monkeypatch.setenv(name, "somebody_else")
    (tmp_path / "loginuid").write_text(login)
    monkeypatch.setattr(headrace.audit.operator, "_LOGIN", tmp_path / "loginuid")
    assert operator() == expected


def test_system_without_logins_names_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(headrace.audit.operator, "_LOGIN", tmp_path / "none")
    assert operator() == f"{OWN}@{HOST}"
