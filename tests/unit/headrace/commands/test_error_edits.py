"""The document of `errors edit`: a name in its comments never becomes a value."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from headrace.commands.error_edits import _document_text, _read_edited

# Each of these ends a line in YAML; the others make the document unreadable for YAML.
_BREAKS = ["\n", "\r", "\r\n", "\x85", "\u2028", "\u2029"]
_UNREADABLE = ["\x01", "\x1b", "\x7f", "\ufeff"]


@pytest.mark.parametrize("between", [*_BREAKS, *_UNREADABLE])
@pytest.mark.parametrize("where", ["object_owner", "object_name", "message"])
def test_line_break_in_a_name_adds_no_value(between: str, where: str) -> None:
    evil = f'x{between}new: {{"salary": "1000000"}}{between}# '
    named = {"object_owner": "hr", "object_name": "employees", "message": "no row"} | {where: evil}
    lcr: Any = SimpleNamespace(position=0, command_type="UPDATE", **named)
    document: dict[str, dict[str, str | None]] = {"old": {"salary": "1"}, "new": {"salary": None, evil: evil}}
    text = _document_text({"number": 7, "apply": "apply_1", "message": named["message"]}, lcr, document)
    assert _read_edited(text, document) == ()
    assert yaml.safe_load(text) == document
    assert text.startswith("# Error transaction 7 of apply_1, row 0: UPDATE ")
