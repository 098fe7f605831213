"""The start of the program, before it has loaded."""

from __future__ import annotations

import sys
import tomllib
from typing import Any

import pytest

from headrace.cli import entry
from tests.support.session.packages import ROOT


class Interrupts:
    """Ctrl-C while the command line is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "headrace.cli.app":
            raise KeyboardInterrupt


def test_interrupt_while_the_program_loads_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delitem(sys.modules, "headrace.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    with pytest.raises(SystemExit) as caught:
        entry.main()
    assert caught.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_entry_point_of_the_package_is_this_module():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"headrace": "headrace.cli.entry:main"}
