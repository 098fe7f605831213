"""Patterns of tables and schemas as a topology writes them: `hr.employees`, `sales.*`, `"Odd.Schema".t`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import count

__all__ = ["examples", "parse_schema", "parse_table"]

# Bound of the sets of pattern positions that are searched. Plain names need one set per letter; patterns with several
# wildcards can need exponentially many. The search is breadth first, so the names found by then are the short ones,
# which suffice for patterns that people write.
_STATES_MAX = 20_000

# A part of a name: quoted (anything, a doubled quote inside), or plain with wildcards. Names are as the database stores
# them, so unquoted parts are not folded to lower case.
_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^\s."]+)')


def parse_table(text: str) -> tuple[str, str]:
    """Split `schema.table` into the two patterns of a rule.

    Raises:
        ValueError: the text is not of that form.
    """
    parts = _parts(text)
    if len(parts) != 2:
        message = f"{text!r} is not of the form schema.table"
        raise ValueError(message)
    return parts[0], parts[1]


def parse_schema(text: str) -> str:
    """Read a schema's name or pattern.

    Raises:
        ValueError: the text is not one name.
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
            return []  # `*` and `?` are always wildcards in a rule, so no rule can mean only a name that contains one
        parts.append(part)
        position = match.end()
        if position == len(text):
            return parts
        if text[position] != ".":
            break
        position += 1
    return []


def examples(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return names that the patterns can tell apart: one for each set of patterns that a name can match, also for none.

    Args:
        patterns: patterns of one part of a name (`*` any characters, `?` one).

    Returns:
        The shortest name of each set. Any name matches the same patterns as one of these.
    """
    known = tuple(dict.fromkeys(patterns))
    start = frozenset(_with_stars(known, ((number, 0) for number in range(len(known)))))
    other = next(letter for letter in map(chr, count(ord("x"))) if not any(letter in pattern for pattern in known))
    names: dict[frozenset[int], str] = {}
    seen: set[frozenset[tuple[int, int]]] = set()  # states after at least one letter: no name is empty
    pending = [(start, "")]
    for state, name in pending:  # breadth first: the loop appends to `pending`
        if name:
            matched = frozenset(number for number, place in state if place == len(known[number]))
            names.setdefault(matched, name)
        letters = {known[number][place] for number, place in state if place < len(known[number])} - {"*", "?"}
        for letter in (other, *sorted(letters)):
            following = frozenset(_with_stars(known, _after(known, state, letter)))
            if following not in seen and len(seen) < _STATES_MAX:
                seen.add(following)
                pending.append((following, name + letter))
    return tuple(dict.fromkeys((*names.values(), *(pattern for pattern in known if not set(pattern) & set("*?")))))


def _after(patterns: tuple[str, ...], state: frozenset[tuple[int, int]], letter: str) -> Iterator[tuple[int, int]]:
    """Yield the positions of the patterns after one more letter."""
    for number, place in state:
        expected = patterns[number][place] if place < len(patterns[number]) else ""
        if expected == "*":
            yield number, place
        elif expected in {"?", letter}:
            yield number, place + 1


def _with_stars(patterns: tuple[str, ...], places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the positions and those behind a `*`, which can match nothing."""
    for number, place in places:
        yield number, place
        end = place
        while end < len(patterns[number]) and patterns[number][end] == "*":
            end += 1
            yield number, end
