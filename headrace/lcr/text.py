"""Row LCRs as SQL: the change as a statement, and the condition that finds its row.

Values are written as $1, $2, ..., and returned with the text.

Source: Oracle Database PL/SQL Packages and Types Reference, LCR$_ROW_RECORD: GET_ROW_TEXT, GET_WHERE_CLAUSE.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from headrace.lcr.batch import Command
from headrace.lcr.table_name import quoted

if TYPE_CHECKING:
    from headrace.lcr.lcr_value import LcrValue

__all__ = ["SqlText", "row_text", "where_clause"]

SqlText = tuple[str, tuple["LcrValue", ...]]
"""A text, and its parameters in order."""

_WITHOUT_EQUALITY = frozenset(
    f"pg_catalog.{prefix}{name}"
    for prefix in ("", "_")
    for name in (
        "json",
        "xml",
        "point",
        "line",
        "lseg",
        "box",
        "path",
        "polygon",
        "circle",
        "jsonpath",
        "txid_snapshot",
    )
)
"""Types without `=`, or with one of another meaning: like the manuals' large objects they are skipped in conditions."""


class _RowChange(Protocol):
    """The part of a row LCR that these texts need."""

    @property
    def command_type(self) -> str: ...

    @property
    def object_owner(self) -> str: ...

    @property
    def object_name(self) -> str: ...

    def get_values(self, value_type: str, *, use_old: bool = True) -> dict[str, LcrValue]: ...


class _Places:
    """Numbers the parameters of one text."""

    def __init__(self, first: int) -> None:
        self._first = first
        self.values: list[LcrValue] = []

    def of(self, value: LcrValue) -> str:
        self.values.append(value)
        return f"${self._first + len(self.values) - 1}"

    def condition(self, values: Iterable[tuple[str, LcrValue]]) -> str:
        """Return the condition on all of the values."""
        compared = [(name, value) for name, value in values if value.column.type_name not in _WITHOUT_EQUALITY]
        return " AND ".join(
            f"{quoted(name)} IS NULL" if value.is_null else f"{quoted(name)} = {self.of(value)}"
            for name, value in compared
        )


def where_clause(lcr: _RowChange, first: int) -> SqlText:
    """Return the condition that finds the row of an LCR.

    It compares all new values of an INSERT, the new row of an UPDATE, or all old values of a DELETE.

    Args:
        lcr: LCR of a row.
        first: number of the first parameter.
    """
    places = _Places(first)
    values = lcr.get_values("old" if lcr.command_type == Command.DELETE.name else "new")
    return places.condition(values.items()), tuple(places.values)


def row_text(lcr: _RowChange, first: int) -> SqlText:
    """Return the change as one statement. An UPDATE sets the columns that differ from their old values.

    Args:
        lcr: LCR of a row.
        first: number of the first parameter.
    """
    places = _Places(first)
    table = f"{quoted(lcr.object_owner)}.{quoted(lcr.object_name)}"
    old, new = (lcr.get_values(kind, use_old=False) for kind in ("old", "new"))
    if lcr.command_type == Command.INSERT.name:
        names = ", ".join(map(quoted, new))
        text = f"INSERT INTO {table} ({names}) VALUES ({', '.join(places.of(value) for value in new.values())})"
    elif lcr.command_type == Command.DELETE.name:
        text = f"DELETE FROM {table} WHERE {places.condition(old.items())}"
    else:
        keys = {name: value for name, value in new.items() if value.column.is_key and name not in old}
        changed = {
            name: value
            for name, value in new.items()
            if name not in keys and (name not in old or old[name].raw != value.raw)
        } or new
        sets = ", ".join(f"{quoted(name)} = {places.of(value)}" for name, value in changed.items())
        text = f"UPDATE {table} SET {sets} WHERE {places.condition((keys | old).items())}"
    return text, tuple(places.values)
