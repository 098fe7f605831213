"""Commands in messages, written as `headrace VERB FILE` or without FILE.

Before a message is shown, each command gets the file as the reader named it, so that it can be pasted into a shell.

A command for another file has a word for that file which ends with `_FILE`. `headrace down OTHER_FILE` stays as it is.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

__all__ = ["FILE_VERBS", "commands_with_file", "with_file"]

FILE_VERBS = (
    "errors list",
    "errors show",
    "errors execute",
    "errors edit",
    "errors delete",
    "check",
    "plan",
    "simulate",
    "up",
    "down",
    "start",
    "stop",
    "split",
    "merge",
    "capture",
    "status",
    "wait",
    "track",
    "explain",
    "verify",
    "copy",
    "sequences",
    "chaos",
    "conflicts",
    "audit",
)
"""Verbs of the command line whose next argument is the topology file."""

# Matches no part of another word and, without FILE, no command that a file already follows: a message may pass here
# more than once. A quoted word behind FILE is a table.
_COMMAND = (
    rf"(?<![\w/.-])headrace ({'|'.join(FILE_VERBS)})(?![\w-])(?: FILE\b|(?!"
    r" (?:[^\s'`]*\.ya?ml\b|'[^'\n]*'|[A-Z]+_FILE\b)))"
)


def with_file(text: str, file: Path | str, *, in_json: bool = False) -> str:
    """Put the topology's file into each command.

    Args:
        text: a message, a fix, or a document that contains some.
        file: as the reader named it; empty: the text stays as it is.
        in_json: the text is a JSON document, and the commands are in its strings.
    """
    parts, through = [], 0
    for start, end, command in commands_with_file(text, file, in_json=in_json):
        parts += [text[through:start], command]
        through = end
    return "".join([*parts, text[through:]])


def commands_with_file(text: str, file: Path | str, *, in_json: bool = False) -> list[tuple[int, int, str]]:
    """Return the replacements that `with_file` makes, in order: start, end (exclusive), and new text.

    The arguments are those of `with_file`.
    """
    if not str(file):
        return []
    shown = shlex.quote(str(file))
    if in_json:
        shown = json.dumps(shown)[1:-1]
    found = re.finditer(rf"{_COMMAND}(?! {re.escape(shown)})", text)
    return [(each.start(), each.end(), f"headrace {each[1]} {shown}") for each in found]
