"""Conditions as people write them: at random, in every spelling that PostgreSQL knows and some that it does not.

`tests.support.values.condition_values` makes trees that are written with all their parentheses. Here parentheses are
missing, so that precedence decides; literals, names and comments have all their forms, and types do not fit.
"""

from __future__ import annotations

import random
from typing import Final

__all__ = ["COLUMNS", "VALUES", "Writer"]

COLUMNS: Final = {
    "id": "int4",
    "i2": "int2",
    "i4": "int4",
    "i8": "int8",
    "f4": "float4",
    "f8": "float8",
    "n": "numeric",
    "b": "bool",
    "b2": "bool",
    "t": "text",
    "vc": "varchar",
    "c": "bpchar",
    "nm": "name",
    "by": "bytea",
    "u": "uuid",
    "d": "date",
    "tm": "time",
    "ts": "timestamp",
    "tz": "timestamptz",
}
_NUMBERS: Final = ("int2", "int4", "int8", "float4", "float8", "numeric")
_TEXTS: Final = ("text", "varchar", "bpchar", "name")
_OF_TYPE: Final[dict[str, list[str]]] = {
    "int2": ["0", "1", "-1", "50", "32767", "-32768"],
    "int4": ["0", "1", "-1", "50", "2147483647", "-2147483648"],
    "int8": ["0", "1", "-1", "50", "9007199254740993", "9223372036854775807", "-9223372036854775808"],
    "float4": ["0", "-0", "1.5", "NaN", "Infinity", "-Infinity", "0.1", "50", "16777217", "1e-45", "3.4028235e38"],
    "float8": [
        "0",
        "-0",
        "1.5",
        "NaN",
        "Infinity",
        "-Infinity",
        "0.1",
        "50",
        "9007199254740993",
        "1e-320",
        "0.30000000000000004",
    ],
    "numeric": [
        "0",
        "0.00",
        "1.5",
        "1.50",
        "NaN",
        "Infinity",
        "-Infinity",
        "0.1",
        "50",
        "1e-30",
        "1234567890123456789012345678.000123456789012345",
        "-0.5",
        "-1234567890123456789012345678.000123456789012345",
    ],
    "bool": ["t", "f"],
    "text": ["", "a", "ab", "a ", "A", "%", "x_y", "\\", "ä", "a\nb", "it's", " a", "\u00a0"],
    "bytea": ["\\x", "\\x00", "\\x0000", "\\xff", "\\x61"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000"],
    "date": [
        "2026-01-31",
        "2000-01-01",
        "0001-01-01",
        "0001-12-31 BC",
        "4713-11-24 BC",
        "infinity",
        "-infinity",
        "1900-02-28",
        "5874897-12-31",
    ],
    "time": ["00:00:00", "24:00:00", "08:30:00", "08:30:00.5", "23:59:59.999999"],
    "timestamp": [
        "2026-01-31 08:30:00",
        "0001-12-31 23:59:59.999999 BC",
        "infinity",
        "-infinity",
        "294276-12-31 23:59:59.999999",
        "2026-01-31 00:00:00",
    ],
    "timestamptz": [
        "2026-01-31 08:30:00+00",
        "2000-01-01 00:00:00+05:30",
        "0001-12-31 23:59:59.999999+00 BC",
        "infinity",
        "2026-01-31 14:00:00+05:30",
    ],
}
VALUES: Final = {name: _OF_TYPE["text" if kind in _TEXTS else kind] for name, kind in COLUMNS.items()}
"""Texts of values, by column."""

_NUMBERS_WRITTEN: Final = [
    "0",
    "1",
    "50",
    "-1",
    "- 1",
    "+1",
    "1.5",
    "-0.5",
    "1.50",
    ".5",
    "5.",
    "1e2",
    "1E2",
    "1e-2",
    "1.5e+1",
    "9007199254740993",
    "9007199254740993.0",
    "-9223372036854775808",
    "-9223372036854775809",
    "1e30",
    "1e400",
    "1e-400",
    "0.1",
    "0.30000000000000004",
    "3.4028235e38",
    "00",
    "007",
    "1_000",
    "0x1f",
    "0b11",
    "0o17",
    "32768",
    "16777217",
    "1e-45",
    "1.0000000000000000000000000000000000001",
    "1e131071",
    "1e131072",
    "1e999999999",
    "1e-16383",
    "1e-16384",
    "0e-16384",
    "-1e1000000",
    "-1234567890123456789012345678.000123456789012345",
    "1234567890123456789012345678.000123456789012345",
    "1" * 400,
    "-(1)",
    "(1)",
    "(-1)",
    "- -1",
]
_ODD: Final = {
    "date": [
        "2026-1-31",
        "20260131",
        "31/01/2026",
        "Jan 31 2026",
        "0000-01-01",
        "2026-02-30",
        "tomorrow",
        "epoch",
        "2026-01-31 BC",
        "10000-01-01",
        "5874898-01-01",
        "J2461072",
    ],
    "time": ["08:30", "24:00", "24:00:01", "8:30", "08:30:60", "083000", "08:30:00.1234567", "08:30 AM", "allballs"],
    "timestamp": [
        "2026-01-31",
        "2026-01-31T08:30",
        "2026-01-31  08:30",
        "2026-01-31 08:30:00+05",
        "2026-01-31 24:00:00",
        "2026-01-31T",
        "2026-01-31 08:30 BC",
        "now",
        "294277-01-01",
        "2026-01-31 BC",
    ],
    "timestamptz": [
        "2026-01-31",
        "2026-01-31 08:30:00Z",
        "2026-01-31 08:30+0530",
        "2026-01-31 08:30+05:30:15",
        "2026-01-31 08:30 +05",
        "2026-01-31 +05",
        "2026-01-31+05",
        "2026-01-31 08:30:00-15:59",
        "2026-01-31 08:30:00+16",
        "2026-01-31 08:30:00+05:60",
        "2026-01-31 08:30:00+00 BC",
        "2026-01-31 08:30:00+053015",
        "294276-12-31 23:59:59.999999-12",
        "12026-01-31 08:30-07",
        "2026-01-31Z",
    ],
    "uuid": [
        "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
        "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",
        "a0eebc999c0b4ef8bb6d6bb9bd380a11",
    ],
    "bytea": ["\\x 61", "\\x6 1", "\\xFF", "abc", "\\x61 62"],
}
_PATTERNS: Final = [
    "a%",
    "%b",
    "_",
    "x\\_y",
    "%",
    "",
    "\\\\",
    "\\%",
    "%\\\\",
    "a\\b",
    "_\n_",
    "%''%",
    "__",
    "ä",
    "a\\",
    "\\\\%",
    "%a%b%",
    "_%_",
    "%_a",
    "a%_%",
    "%%",
]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class Writer:
    """Writes conditions over `COLUMNS`.

    Args:
        rng: determines everything.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def condition(self) -> str:
        """Return one condition."""
        return self._expression(self._rng.choice([0, 1, 1, 2, 3]))

    def _either(self, *of: str) -> str:
        return self._rng.choice(of)

    def _word(self, word: str) -> str:
        return self._either(word, word, word, word.upper(), word.title())

    def _column(self, name: str = "") -> str:
        name = name or self._either(*COLUMNS)
        return self._either(name, name, name.upper(), f'"{name}"')

    def _literal(self, name: str) -> str:
        kind = COLUMNS[name]
        if kind in _NUMBERS:
            return self._either(*_NUMBERS_WRITTEN)
        if kind == "bool":
            return self._either("true", "false", "TRUE", "'t'", "null")
        text = self._either(*VALUES[name])
        if self._rng.random() < 0.15:
            text = self._either(*_ODD.get(kind, ["a%", "x"]))
        if self._rng.random() > 0.07:
            return _quoted(text)
        return self._either(
            f"E{_quoted(text)}",
            f"$${text}$$",
            f"N{_quoted(text)}",
            f"U&{_quoted(text)}",
            f"{_quoted(text[:1])}\n{_quoted(text[1:])}",
        )

    def _side(self, name: str) -> str:
        chance = self._rng.random()
        if chance < 0.6:
            return self._literal(name)
        return self._column(
            self._either(*(each for each in COLUMNS if COLUMNS[each] == COLUMNS[name])) if chance < 0.9 else ""
        )

    def _comparison(self) -> str:
        name, chance = self._either(*COLUMNS), self._rng.random()
        collation = ' COLLATE "C"' if COLUMNS[name] in _TEXTS and self._rng.random() < 0.6 else ""
        negated = self._either("", "not ")
        if chance < 0.4:
            sides = [self._column(name), self._side(name)]
            self._rng.shuffle(sides)
            return f"{sides[0]} {self._either('=', '<>', '!=', '<', '<=', '>', '>=')} {sides[1]}{collation}"
        if chance < 0.53:
            return f"{self._column(name)} {self._either('is null', 'IS NOT NULL', 'isnull', 'notnull')}"
        if chance < 0.65:
            listed = [
                self._either(self._literal(name), self._literal(name), "null") for _ in range(self._rng.randint(1, 4))
            ]
            return f"{self._column(name)} {negated}{self._word('in')} ({', '.join(listed)})"
        if chance < 0.75:
            return (
                f"{self._column(name)} {negated}{self._word('between')}"
                f" {self._either('', '', 'symmetric ')}{self._side(name)} and {self._side(name)}"
            )
        if chance < 0.85:
            return f"{self._column(name)} is {negated}distinct from {self._either(self._side(name), 'null')}"
        if chance < 0.92:
            escape = self._either("", "", "", " escape '!'", " escape ''")
            return (
                f"{self._column(self._either('t', 'vc', 'nm', 'c'))}"
                f" {self._either('', 'not ')}{self._either('like', '~~', 'ilike')} '{self._either(*_PATTERNS)}'{escape}"
            )
        return self._either("b", "b2", "true", "false", "null")

    def _expression(self, depth: int) -> str:
        chance = self._rng.random()
        if depth == 0 or chance < 0.25:
            found = self._comparison()
        elif chance < 0.4:
            found = f"{self._word('not')} {self._expression(depth - 1)}"
        elif chance < 0.75:
            found = (
                f"{self._expression(depth - 1)} {self._word(self._either('and', 'or'))} {self._expression(depth - 1)}"
            )
        elif chance < 0.9:
            found = (
                f"{self._expression(depth - 1)} is"
                f" {self._either('', 'not ')}{self._either('true', 'false', 'unknown', 'null')}"
            )
        elif chance < 0.95:
            found = (
                f"{self._expression(depth - 1)} {self._either('=', '<>', 'is distinct from', '<')}"
                f" {self._expression(depth - 1)}"
            )
        else:
            found = f"{self._expression(depth - 1)}{self._either(' in (true)', ' between false and true', ' isnull', ' notnull', ' = true')}"
        if self._rng.random() < 0.3:
            found = f"({found})"
        if self._rng.random() < 0.03:
            found = found.replace(" ", self._either("\n", "\t", " /* c */ ", " -- x\n", "/* a /* b */ c */"), 1)
        return found
