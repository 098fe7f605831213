from __future__ import annotations

from rich.table import Table

from headrace.console import Output


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
