"""A table's name in one database.

A table has two names, at its source and at a destination; they are equal unless a rule renames it. Code that copies,
compares or checks a table keeps both, and says which of the two it uses.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import NamedTuple, Protocol

__all__ = [
    "Named",
    "TableName",
    "argument",
    "document_remark",
    "flow_table",
    "flow_text",
    "literal",
    "quoted",
    "quoted_name",
    "remark",
    "whole_rows",
]

# Commands read such a part without quotes; a leading hyphen would make it an option.
_PLAIN = re.compile(r'[^\s."-][^\s."]*')
_PLAIN_FLOW = re.compile(r"[A-Za-z_][\w$]*(?:\.[A-Za-z_][\w$]*)?", re.ASCII)
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})  # YAML does not read these as text


class Named(Protocol):
    """Any object with a table's name."""

    @property
    def owner(self) -> str:
        """Its schema."""
        ...

    @property
    def name(self) -> str:
        """Its name in the schema."""
        ...


class TableName(NamedTuple):
    """Schema and name, as the database keeps them."""

    owner: str
    name: str

    @classmethod
    def of(cls, table: Named) -> TableName:
        """Return the name of such an object."""
        return cls(table.owner, table.name)

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}"


def quoted_name(table: Named) -> str:
    """Return a table's name for an operator's statement: `"schema"."name"`, safe for any characters."""
    return f"{quoted(table.owner)}.{quoted(table.name)}"


def quoted(name: str) -> str:
    """Return a column's name, or one part of another name, for such a statement."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text literal for a statement, safe for any characters.

    It does not depend on `standard_conforming_strings` in the session that runs it.
    """
    doubled = text.replace("'", "''")
    return f"""E'{doubled.replace(chr(92), chr(92) * 2)}'""" if "\\" in doubled else f"'{doubled}'"


def remark(text: str) -> str:
    r"""Return a comment behind a statement: in one line, because a line break in a name would begin a statement.

    Args:
        text: of any length; a line break in it is shown as `\n`.
    """
    return "-- " + text.replace("\r", "\\r").replace("\n", "\\n")


def whole_rows(table: Named, why: str = "") -> str:
    """Return the statement with which a source logs whole old rows of a table.

    Args:
        table: its name at the source.
        why: comment behind the statement; empty: none.
    """
    of_partitions = "if it is partitioned: of each of its partitions, which do not get it from the table"
    return (
        f"ALTER TABLE {quoted_name(table)} REPLICA IDENTITY FULL;"
        f" {remark('; '.join(each for each in (of_partitions, why) if each))}"
    )


def document_remark(text: str) -> str:
    r"""Return a comment behind a line of a YAML document: names in it neither end the line nor make it unreadable.

    Args:
        text: of any length; each unprintable character, such as YAML's four line breaks besides `\n`, is shown in
            Python's notation.
    """
    return "# " + "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def argument(table: Named) -> str:
    """Return a table's name for a shell command: `hr.employees`, quoted if it needs it.

    Args:
        table: its name in commands.
    """
    return shlex.quote(".".join(part if _PLAIN.fullmatch(part) else quoted(part) for part in (table.owner, table.name)))


def flow_text(text: str) -> str:
    """Return a name for a list or mapping of a topology file in flow style: `[a, b]`, `{name: a}`."""
    is_plain = _PLAIN_FLOW.fullmatch(text) and text.lower() not in _WORDS
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def flow_table(table: Named) -> str:
    """Return a table for such a list or mapping, in the notation of rules."""
    return flow_text(".".join(part if _PLAIN.fullmatch(part) else quoted(part) for part in (table.owner, table.name)))
