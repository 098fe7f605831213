"""Commands in messages: written as `headrace VERB FILE`, or without FILE; shown with the file that the reader has named, so that a shell takes them as they are."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

__all__ = ["FILE_VERBS", "with_file"]

FILE_VERBS = (
    "errors list", "errors show", "errors execute", "errors edit", "errors delete", "check", "plan", "simulate", "up", "down", "start", "stop", "split", "merge",
    "capture", "status", "wait", "track", "explain", "verify", "copy", "sequences", "chaos", "conflicts", "audit",
)
"""Verbs of the command line that take the topology's file next."""

# Not before a file that is there already, and not as a part of another word.
_COMMAND = re.compile(rf"(?<![\w/.-])headrace ({'|'.join(FILE_VERBS)})(?![\w-])(?: FILE\b)?(?! '?[^\s'`]*\.ya?ml\b)")


def with_file(text: str, file: Path | str, *, in_json: bool = False) -> str:
    """Put the topology's file into each command.

    Args:
        text: a message, a fix, or a document with some.
        file: as the reader named it; empty: the text stays as it is.
        in_json: the text is a JSON document, and the commands are in its strings.
    """
    if not str(file):
        return text
    shown = shlex.quote(str(file))
    if in_json:
        shown = json.dumps(shown)[1:-1]
    return _COMMAND.sub(lambda found: f"headrace {found[1]} {shown}", text)
