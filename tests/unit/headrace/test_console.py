from __future__ import annotations

import io
import sys
import time

import pytest
from rich.table import Table
from rich.text import Text

from headrace.console import Output
from headrace.progress import watch_forever


def test_names_and_messages_are_printed_as_they_are(capsys):
    """Rich takes `[red]` for markup and `:a:` for an emoji."""
    said = "site:a: [red] site:b: int[3]"
    table = Table(box=None)
    table.add_column("component")
    table.add_row(said)
    output = Output()
    output.say(said)
    output.result(said)
    output.result(table)
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out.count(said) == 2


def test_a_view_that_changes_is_folded_to_the_terminal(monkeypatch):
    """Cut at its edge, a problem would be without its fix."""
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def ends(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setattr(time, "sleep", ends)
    monkeypatch.setenv("COLUMNS", "30")
    with pytest.raises(KeyboardInterrupt):
        watch_forever(Output(), lambda: Text("WAL grows at the source\n  fix: raise redo_bytes_max: [a] :a:"))
    assert "[a]" in terminal.getvalue()
