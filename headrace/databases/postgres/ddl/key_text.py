"""Texts of foreign keys, as the server prints them: which table they refer to, and in what two of them differ.

A foreign key is a part of the table that refers. Its text also names the other table and columns of that one, and these
names follow a RENAME there, of which no record of the referring table tells. So a text from before a change may have
names that are older than those at the destination, while one from behind it has not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.lcr.structure import ConstraintPart, Part
from headrace.lcr.table_name import TableName

__all__ = ["KeyText", "differs_in_deferral", "is_foreign_key", "is_like_key", "key_text"]

_NAME = r'(?:"(?:[^"]|"")+"|[a-z_][a-z0-9_]*)'
_COLUMN = rf"(?:PERIOD )?{_NAME}"
_COLUMNS = rf"\({_COLUMN}(?:, {_COLUMN})*\)"
_LISTED = re.compile(rf"[(,] ?(?:PERIOD )?({_NAME})")
_KEY = re.compile(
    rf"FOREIGN KEY (?P<columns>{_COLUMNS}) REFERENCES (?P<owner>{_NAME})\.(?P<name>{_NAME})(?P<referred>{_COLUMNS})"
    r"(?P<actions>.*?)(?P<deferral>(?: DEFERRABLE)?(?: INITIALLY DEFERRED)?)(?P<checks>(?: NOT ENFORCED| NOT VALID)?)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyText:
    """The definition of a foreign key in its parts, each as printed.

    Args:
        columns: its columns, in parentheses.
        table: the table that it refers to.
        referred: columns of that table, in parentheses.
        actions: MATCH, ON UPDATE and ON DELETE.
        deferral: when it is checked; empty: with each statement.
        checks: NOT ENFORCED, or NOT VALID; empty: all rows are checked.
    """

    columns: str
    table: TableName
    referred: str
    actions: str
    deferral: str
    checks: str

    @property
    def referred_columns(self) -> tuple[str, ...]:
        """Names of the columns that it refers to."""
        return tuple(_unquoted(found[1]) for found in _LISTED.finditer(self.referred))


def is_foreign_key(part: Part | None) -> bool:
    """Return whether a part is a foreign key."""
    return isinstance(part, ConstraintPart) and part.is_foreign_key


def key_text(part: Part | None) -> KeyText | None:
    """Return the text of a foreign key in its parts; None: the part is none, or its text names no schema.

    Args:
        part: as the server printed it for a session without a search path.
    """
    if not isinstance(part, ConstraintPart) or not part.is_foreign_key:
        return None
    found = _KEY.fullmatch(part.definition)
    if found is None:
        return None
    named = found.groupdict()
    table = TableName(_unquoted(named.pop("owner")), _unquoted(named.pop("name")))
    return KeyText(table=table, **named)


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def is_like_key(found: Part | None, part: Part) -> bool:
    """Return whether two foreign keys differ at most in names of the other table, which may have been renamed."""
    one, other = key_text(found), key_text(part)
    if one is None or other is None:
        return False
    kept = [(each.columns, each.actions, each.deferral, each.checks) for each in (one, other)]
    return kept[0] == kept[1]


def differs_in_deferral(found: Part | None, part: Part) -> bool:
    """Return whether two foreign keys differ in nothing but when they are checked, which ALTER CONSTRAINT changes."""
    one, other = key_text(found), key_text(part)
    if one is None or other is None or one.deferral == other.deferral:
        return False
    kept = [(each.columns, each.table, each.referred, each.actions, each.checks) for each in (one, other)]
    return kept[0] == kept[1]
