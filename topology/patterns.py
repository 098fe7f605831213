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
        if quoted is None:
            parts.append(match["plain"].replace("[", "[[]"))
        else:
            parts.append(re.sub(r"([*?[])", r"[\1]", quoted.replace('""', '"')))
        position = match.end()
        if position == len(text):
            return parts
        if text[position] != ".":
            break
        position += 1
    return []


def overlap(first: str, second: str) -> bool:
    """Whether one name can match both patterns (`*`, `?`, and single characters in brackets)."""
    return _overlap(_tokens(first), _tokens(second))


def _tokens(pattern: str) -> tuple[str, ...]:
    # "[*]" is a literal star (two characters, so that it differs from the wildcard), "*" and "?" are wildcards.
    return tuple("=" + t[1] if len(t) == 3 else t if t in "*?" else "=" + t for t in re.findall(r"\[.\]|.", pattern))


@lru_cache(maxsize=4096)
def _overlap(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    if not first or not second:
        return set(first + second) <= {"*"}
    if first[0] == "*":
        return _overlap(first[1:], second) or _overlap(first, second[1:])
    if second[0] == "*":
        return _overlap(second, first)
    return (first[0] == second[0] or "?" in (first[0], second[0])) and _overlap(first[1:], second[1:])
