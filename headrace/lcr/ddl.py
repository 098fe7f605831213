"""DDL changes: one statement's effect on one table, as the source recorded it.

The source writes a record for each table whose structure a statement changed, in the statement's transaction. A record
is JSON (`DdlChange.content`): the table's structure before and after, and the statement's circumstances. Its text stays
as the source wrote it, and `headrace.lcr.structure` reads structures from it.

    {"format": 1, "tag": "ALTER TABLE", "relation": 16400, "before": {…}, "is_known": true, "after": {…}, "gone": […],
     "rewritten": 4, "file": 16403, "older": {…}, "references": {"<foreign key>": 16410}, "query": "ALTER TABLE …",
     "is_nested": false, "user": "hr", "role": "none", "version": 16}
    {"format": 1, "base": true, "after": {…}, "file": 16403}          the structure from which recording begins
    {"format": 1, "failed": "57014", "tag": "…", "query": "…"}       a statement that could not be recorded

Only the first kind becomes a DDL LCR. One that wrote the table's rows anew says from which file, and what decides on
conversions at the source:

    {…, "rewritten": 4, "file": 16409, "rewriting": {"from": 16403, "encoding": "UTF8", "casts": false}}

One of a new table that belongs in the log says how its rows get there:

    {…, "before": null, "is_known": true, "after": {…},
     "made": {"identities": {"<topology>": "<identity>", …}, "why_not": "", "sequences": {"<column>": {…}, …}}}

An apply process replaces the record of a change that it must not make:

    {"format": 1, "not_made": "…"}                                   why it is only recorded at the destination
    {"format": 1, "not_made": "…", "leaves": true}                   likewise; the table's later rows do not arrive
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.lcr.scn import ObjectNumber
from headrace.lcr.table_name import TableName

__all__ = ["DDL_FORMAT", "DDL_LOG", "Creation", "DdlChange", "FailedDdl", "ddl_of", "failed_ddl_of"]

DDL_FORMAT = 1
"""Format of the records that this version writes and reads."""

DDL_LOG = TableName("headrace_ddl", "log")
"""The source's table with the records, one per row in its column `content`."""

_NOT_MADE = "not_made"
_LEAVES = "leaves"
_MADE = "made"
_MARK = json.dumps({"format": DDL_FORMAT, _NOT_MADE: ""})[:-2]
_SHOWN_MAX = 200  # characters of a statement in a status: enough to recognise it
_NUMBER_END = 1 << 63  # object numbers travel as 64 bits
_INDEX_TAGS = ("CREATE INDEX", "ALTER INDEX", "DROP INDEX")  # others name a table, or change it as a side effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """How a new table's rows get into the log.

    Args:
        identities: of the table (`headrace.databases.ports.CapturedTable`), for each topology that has its rows from
            the first one on; empty: its rows are not in the log.
        why_not: why they are not, for people; empty: they are.
    """

    identities: Mapping[str, str]
    why_not: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlChange:
    """The change of one table's structure by one statement.

    A statement that changes several tables makes one change for each.

    Args:
        command_type: what the client ran, such as ALTER TABLE, CREATE INDEX, or DROP SCHEMA that reached the table.
        object_type: TABLE or INDEX.
        object_owner: schema of the object.
        object_name: name of the object: the index for statements about one, else the table.
        base_table_owner: schema of the table before the statement; of a new table, after it.
        base_table_name: name of the table, likewise.
        object_number: the source's number of the table.
        ddl_text: what the client sent: the statement, or several, or the call of a function that ran it. Long texts are
            cut.
        logon_user: who was logged on.
        current_schema: where names without a schema were looked up first; empty: not recorded.
        content: the record, JSON (the module docstring describes it).

    Raises:
        ValueError: it names no command or no table.
    """

    command_type: str
    object_type: str
    object_owner: str
    object_name: str
    base_table_owner: str
    base_table_name: str
    object_number: ObjectNumber
    ddl_text: str
    logon_user: str
    current_schema: str
    content: str

    def __post_init__(self) -> None:
        is_named = self.command_type and self.base_table_owner and self.base_table_name
        if not is_named or not 0 < self.object_number < _NUMBER_END:
            message = "a DDL change names its command and its table"
            raise ValueError(message)

    @property
    def base_table(self) -> TableName:
        """Name of the table, which rules use."""
        return TableName(self.base_table_owner, self.base_table_name)

    def not_made(self, reason: str, *, leaves: bool = False) -> DdlChange:
        """Return the change as one that a destination only records.

        Args:
            reason: why, for the operator.
            leaves: the table's later rows do not arrive (`leaves_rules`).
        """
        record = {"format": DDL_FORMAT, _NOT_MADE: reason}
        return replace(self, content=json.dumps({**record, _LEAVES: True} if leaves else record))

    @property
    def leaves_rules(self) -> bool:
        """Whether it gives the table a name under which its rows do not arrive any more."""
        return self.content.startswith(_MARK) and bool(json.loads(self.content).get(_LEAVES))

    @property
    def why_not_made(self) -> str:
        """Why a destination only records it (`not_made`); empty: it may be made."""
        if not self.content.startswith(_MARK):
            return ""
        return str(json.loads(self.content)[_NOT_MADE])

    @property
    def creation(self) -> Creation | None:
        """How the rows of the table that it creates get into the log; None: it creates none that belongs there."""
        if f'"{_MADE}"' not in self.content:
            return None  # most records: they are not read
        try:
            record = json.loads(self.content)
            made = record[_MADE]
            identities = {_text(topology): _text(identity) for topology, identity in made["identities"].items()}
            found = Creation(identities=identities, why_not=_text(made["why_not"]))
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            return None
        return found if record.get("before") is None and record.get("after") is not None else None

    @property
    def drops(self) -> bool:
        """Whether it drops the table."""
        try:
            record = json.loads(self.content)
            return record["before"] is not None and record["after"] is None
        except (ValueError, LookupError, TypeError, RecursionError):
            return False

    @property
    def name_after(self) -> TableName | None:
        """Name of the table after the statement; None: it is dropped, or the record does not say."""
        try:
            after = json.loads(self.content)["after"]
            return TableName(_text(after["owner"]), _text(after["name"]))
        except (ValueError, LookupError, TypeError, RecursionError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedDdl:
    """A statement whose effect is not known, so that no LCR has it.

    Args:
        command_type: what the client ran; empty: not known.
        ddl_text: what the client sent; empty: not known.
        reason: why the effect is not known.
    """

    command_type: str
    ddl_text: str
    reason: str

    def __str__(self) -> str:
        """Return the statement in one line, with the reason."""
        statement = " ".join(self.ddl_text.split())[:_SHOWN_MAX] or self.command_type or "a statement"
        return f"{statement}: {self.reason}"


def ddl_of(content: bytes) -> DdlChange | None:
    """Read a record of the source's log of DDL.

    Args:
        content: the record, UTF-8.

    Returns:
        The change; None: the record is a base, or `failed_ddl_of` says why it is no change.
    """
    found = _read(content)
    return found if isinstance(found, DdlChange) else None


def failed_ddl_of(content: bytes) -> FailedDdl | None:
    """Return the statement whose effect a record does not have; None: a change, or a base.

    An unreadable record counts as one: it stays in the log, and no process could ever get past it.

    Args:
        content: the record, UTF-8.
    """
    found = _read(content)
    return found if isinstance(found, FailedDdl) else None


def _read(content: bytes) -> DdlChange | FailedDdl | None:
    try:
        text = content.decode()
        record = json.loads(text)
        if record["format"] != DDL_FORMAT:
            return FailedDdl(
                command_type="", ddl_text="", reason=f"its record has the unknown format {record['format']!r:.20}"
            )
        if record.get("base"):
            return None
        if "failed" in record:
            return FailedDdl(
                command_type=_text(record["tag"]),
                ddl_text=_text(record["query"]),
                reason=f"the source could not record it (SQLSTATE {_text(record['failed'])})",
            )
        return _change(record, text)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return FailedDdl(command_type="", ddl_text="", reason="its record is damaged")


def _change(record: dict[str, Any], text: str) -> DdlChange:
    structure = record["before"] or record["after"]
    table = TableName(_text(structure["owner"]), _text(structure["name"]))
    tag = _text(record["tag"])
    index = _index(record) if tag in _INDEX_TAGS else ""
    return DdlChange(
        command_type=tag,
        object_type="INDEX" if index else "TABLE",
        object_owner=table.owner,  # an index is in the schema of its table
        object_name=index or table.name,
        base_table_owner=table.owner,
        base_table_name=table.name,
        object_number=ObjectNumber(int(record["relation"])),
        ddl_text=_text(record["query"]),
        logon_user=_text(record["user"]),
        current_schema="",
        content=text,
    )


def _index(record: dict[str, Any]) -> str:
    """Return the first index, by name, that a statement about indexes made, changed or dropped; empty: not known."""
    before, after = (_indexes(record[side] or {}) for side in ("before", "after"))
    names = {
        _text((before.get(number) or after[number])["name"])
        for number in before.keys() | after.keys()
        if before.get(number) != after.get(number)
    }
    names |= {_text(each["name"]) for each in record.get("gone") or () if each["kind"] == "index"}
    return min(names, default="")


def _indexes(structure: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the indexes of a structure by number; those of constraints are named like these."""
    return {(kind, part["number"]): part for kind in ("indexes", "constraints") for part in structure.get(kind, ())}


def _text(value: object) -> str:
    """Return a text that can be sent.

    Raises:
        ValueError: it is no text, or half a character.
    """
    if not isinstance(value, str):
        message = "not a text"
        raise ValueError(message)  # noqa: TRY004 - damage, whatever its kind
    value.encode()
    return value
