"""Patterns of tables and schemas as a topology writes them: `hr.employees`, `sales.*`, `"Odd.Schema".t`."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["overlap", "parse_schema", "parse_table"]

# A part of a name: quoted (anything, a doubled quote inside), or plain with wildcards. Names are as the database
# keeps them, so unquoted parts are not folded to lower case.
_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^\s."]+)')


def parse_table(text: str) -> tuple[str, str]:
    """Split `schema.table` into the two patterns of a rule.

    Raises:
        ValueError: it is not of that form.
    """
    parts = _parts(text)
    if len(parts) != 2:
        message = f"{text!r} is not of the form schema.table"
        raise ValueError(message)
    return parts[0], parts[1]


def parse_schema(text: str) -> str:
    """Read a schema's name or pattern.

    Raises:
        ValueError: it is not one name.
    """
    parts = _parts(text)
    if len(parts) != 1:
        message = f"{text!r} is not the name of one schema"
        raise ValueError(message)
    return parts[0]


def _parts(text: str) -> list[str]:
    parts: list[str] = []
    position = 0
    while match := _PART.match(text, position):
        quoted = match["quoted"]
        part = match["plain"] if quoted is None else quoted.replace('""', '"')
        if quoted is not None and set(part) & set("*?"):
            return []  # in a rule these are always wildcards: a name with one cannot be meant alone
        parts.append(part)
        position = match.end()
        if position == len(text):
            return parts
        if text[position] != ".":
            break
        position += 1
    return []


@lru_cache(maxsize=4096)  # rules are few, but every pair of them is looked at
def overlap(first: str, second: str) -> bool:
    """Whether one name can match both patterns (`*` any characters, `?` one)."""
    if not first or not second:
        return set(first + second) <= {"*"}
    if first[0] == "*":
        return overlap(first[1:], second) or overlap(first, second[1:])
    if second[0] == "*":
        return overlap(second, first)
    return (first[0] == second[0] or "?" in (first[0], second[0])) and overlap(first[1:], second[1:])
