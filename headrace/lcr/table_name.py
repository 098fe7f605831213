"""A table's name in one database.

One table has two of them, at its source and at a destination; they are equal unless a rule renames it. Code that
copies, compares or checks a table keeps both, and says which of the two it uses.
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

# commands read such a part as it stands; with a hyphen first it would be an option
_PLAIN = re.compile(r'[^\s."-][^\s."]*')
_PLAIN_FLOW = re.compile(r"[A-Za-z_][\w$]*(?:\.[A-Za-z_][\w$]*)?", re.ASCII)
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})  # what YAML does not read as a text


class Named(Protocol):
    """A table, whatever else is known of it."""

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
        """The name of a table of which more is known."""
        return cls(table.owner, table.name)

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}"


def quoted_name(table: Named) -> str:
    """A table's name for a statement that an operator runs: `"schema"."name"`, whatever characters it has."""
    return f"{quoted(table.owner)}.{quoted(table.name)}"


def quoted(name: str) -> str:
    """A column's name, or one part of another, for such a statement."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text for a statement, whatever characters it has, and whatever `standard_conforming_strings` is in the session that runs it."""
    doubled = text.replace("'", "''")
    return f"""E'{doubled.replace(chr(92), chr(92) * 2)}'""" if "\\" in doubled else f"'{doubled}'"


def remark(text: str) -> str:
    r"""What stands behind a statement as its comment: in one line, for a line break in a name would begin a statement.

    Args:
        text: of any length; of names in it that have a line break, it shows `\n`.
    """
    return "-- " + text.replace("\r", "\\r").replace("\n", "\\n")


def whole_rows(table: Named, why: str = "") -> str:
    """The statement with which a source logs whole old rows of a table.

    Args:
        table: as the source calls it.
        why: what stands behind it; empty: nothing.
    """
    of_partitions = "if it is partitioned: of each of its partitions, which do not get it from the table"
    return (
        f"ALTER TABLE {quoted_name(table)} REPLICA IDENTITY FULL;"
        f" {remark('; '.join(each for each in (of_partitions, why) if each))}"
    )


def document_remark(text: str) -> str:
    r"""What stands in a line of a document in YAML as its comment: names in it neither end the line nor make it unreadable.

    Args:
        text: of any length; each character that is not printed, such as the four line breaks that YAML knows beside
            `\n`, is shown as Python writes it.
    """
    return "# " + "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def argument(table: Named) -> str:
    """A table's name in a command that an operator runs in a shell: `hr.employees`, and quoted where it is an odd one.

    Args:
        table: as commands know it.
    """
    return shlex.quote(".".join(part if _PLAIN.fullmatch(part) else quoted(part) for part in (table.owner, table.name)))


def flow_text(text: str) -> str:
    """A name in a list or a mapping of a topology file, as `[a, b]` and `{name: a}` show it."""
    is_plain = _PLAIN_FLOW.fullmatch(text) and text.lower() not in _WORDS
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def flow_table(table: Named) -> str:
    """A table in such a list or mapping, as rules name one."""
    return flow_text(".".join(part if _PLAIN.fullmatch(part) else quoted(part) for part in (table.owner, table.name)))
