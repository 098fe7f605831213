from __future__ import annotations

import io
import sys
import time

import pytest
from rich.table import Table
from rich.text import Text

from headrace.base.errors import HeadraceError
from headrace.console.output import Output
from headrace.console.progress import watch_forever
from headrace.databases.ports import Finding


def test_names_and_messages_are_printed_without_markup(capsys):
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


def test_live_view_is_folded_to_the_terminal(monkeypatch):
    """Cut at the terminal's edge, a problem would lose its fix."""

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


def unkeyed(number: int) -> Finding:
    return Finding(
        path=f"sites.b table public.t{number}",
        problem=f'"t{number}" has no key',
        fix=f"ALTER TABLE t{number} ...;",
        is_error=False,
    )


def test_findings_go_to_standard_output_and_many_of_a_kind_are_grouped(capsys):
    many = [unkeyed(number) for number in range(12)]
    wrong = [
        Finding(path=f"sites.b table public.u{number}", problem="it does not fit", fix=f"ALTER TABLE u{number};")
        for number in range(3)
    ]
    Output().findings([*many, Finding(path="sites.a", problem="another kind", fix="mend it", is_error=False), *wrong])
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.splitlines() == [
        "error: sites.b table public.u0: it does not fit",
        "  fix: ALTER TABLE u0;",
        "  fix: ALTER TABLE u1;",
        "  fix: ALTER TABLE u2;",
        "  2 more of this kind: public.u1, public.u2; --verbose lists each",
        'warning: sites.b table public.t0: "t0" has no key',
        "  fix: ALTER TABLE t0 ...;",
        "  11 more of this kind: public.t1, public.t2, public.t3, public.t4, public.t5, public.t6, public.t7,"
        " public.t8, and 3 more; --verbose lists each",
        "warning: sites.a: another kind",
        "  fix: mend it",
    ]
    Output().findings(many, is_verbose=True)
    assert capsys.readouterr().out.count("  fix: ") == 12


def test_findings_of_different_sites_are_different_kinds(capsys):
    here = [unkeyed(1), unkeyed(2)]
    there = [
        Finding(path=f"sites.c table public.t{number}", problem=f'"t{number}" has no key', fix="x", is_error=False)
        for number in (1, 2)
    ]
    Output().findings([*here, *there])
    assert capsys.readouterr().out.count("  fix: ") == 4


def test_findings_with_json_are_not_printed_in_the_document(capsys):
    Output(as_json=True).findings([unkeyed(1)])
    printed = capsys.readouterr()
    assert (printed.out, "t1" in printed.err) == ("", True)


def test_terminal_obeys_no_text_from_a_database(capsys, monkeypatch):
    """Such a text can hold control sequences: set the clipboard, clear the screen, overwrite the previous line, reverse
    the text.
    """
    hostile = "\x1b]52;c;ZXZpbA==\x07 \x1b[2J\r\x9b31m\u202eeman\b"
    output = Output()
    output.say(hostile)
    output.error(HeadraceError(hostile, hint=hostile))
    output.findings([Finding(path=hostile, problem=hostile, fix=hostile)])
    table = Table(hostile)
    table.add_row(Text(hostile), hostile)
    output.result(table)
    written = "".join(capsys.readouterr())
    assert written.count("52;c;ZXZpbA==") >= 8
    assert not [
        character
        for character in written
        if character != "\n" and (ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0)
    ]
    assert "\u202e" not in written
    assert "\u241b" in written

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    Output().error(HeadraceError(hostile))
    assert "\x1b[31m" in terminal.getvalue()  # the program's own red
    assert "\x1b]" not in terminal.getvalue()
    assert "\x1b[2J" not in terminal.getvalue()
