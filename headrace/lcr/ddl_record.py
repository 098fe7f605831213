"""A source's record of one DDL change, read (`headrace.lcr.ddl` describes its text)."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.base.errors import ProtocolError
from headrace.lcr.scn import ObjectNumber
from headrace.lcr.structure import (
    Delta,
    OwnedSequence,
    PartKind,
    PartName,
    Structure,
    sequence_from_json,
    structure_from_json,
)

__all__ = ["CastRules", "DdlRecord", "Rewriting"]

_FORMAT = 1
_KINDS = {
    "table column": PartKind.COLUMN,
    "table constraint": PartKind.CONSTRAINT,
    "index": PartKind.INDEX,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CastRules:
    """What decides how a database converts values of built-in types, beside its major version.

    Args:
        encoding: of the database.
        has_own: some CREATE CAST of users is between built-in types.
    """

    encoding: str
    has_own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """How a statement wrote a table's rows anew.

    Args:
        from_file: the file that had the rows until then; 0: not known.
        to_file: the file that has them since then.
        rules: of the source.
    """

    from_file: int
    to_file: int
    rules: CastRules


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlRecord:
    """The change of one table's structure by one statement.

    Args:
        tag: what the client ran, such as ALTER TABLE.
        relation: the source's number of the table.
        before: the table before it. None: there was none, or it is not known.
        is_known: `before` is known; else it is what the source last knew of the table, and other changes came between.
        after: the table after it. None: it was dropped.
        gone: parts of the table that the statement says it dropped.
        rewritten: why the source wrote the table's rows anew, PostgreSQL's bits; 0: it did not.
        rewriting: how it did; None: it did not, or an earlier version of Headrace recorded it.
        older: for each column that `before` lacks, the value in rows that are older than it, printed; None: NULL.
        query: what the client sent.
        is_nested: a function or a DO block ran the statement.
        user: who was logged on.
        role: as whom; `none`: as themselves.
        version: major version of the source.
        sequences: of a new table whose rows are in the log: for each column that has one, the sequence that it owns.
        references: for each foreign key that the table has after the change, the source's number of the table that it
            refers to; empty in records of older event triggers.
    """

    tag: str
    relation: ObjectNumber
    before: Structure | None
    is_known: bool
    after: Structure | None
    gone: tuple[PartName, ...] = ()
    rewritten: int = 0
    rewriting: Rewriting | None = None
    older: Mapping[str, str | None] = field(default_factory=dict)
    query: str = ""
    is_nested: bool = False
    user: str = ""
    role: str = "none"
    version: int
    sequences: Mapping[str, OwnedSequence] = field(default_factory=dict)
    references: Mapping[str, ObjectNumber] = field(default_factory=dict)

    @classmethod
    def of(cls, content: str) -> DdlRecord:
        """Read the record of a change (`DdlChange.content`).

        Raises:
            ProtocolError: it is damaged, of another format, or no record of a change.
        """
        try:
            return _record(json.loads(content))
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            message = "the record of a DDL change is damaged, or of another version of Headrace"
            raise ProtocolError(message, hint=ProtocolError.fix) from error

    @property
    def delta(self) -> Delta:
        """What the statement changed."""
        return Delta.between(self.before, self.after, self.gone)


def _record(value: Mapping[str, Any]) -> DdlRecord:
    if value["format"] != _FORMAT:
        message = "another format"
        raise ValueError(message)
    return DdlRecord(
        tag=str(value["tag"]),
        relation=ObjectNumber(int(value["relation"])),
        before=_structure(value["before"]),
        is_known=bool(value["is_known"]),
        after=_structure(value["after"]),
        gone=tuple(
            PartName(_KINDS[each["kind"]], str(each["name"]))
            for each in value.get("gone") or ()
            if each["kind"] in _KINDS
        ),
        rewritten=_reasons(value.get("rewritten")),
        rewriting=_rewriting(value),
        older={str(name): None if old is None else str(old) for name, old in (value.get("older") or {}).items()},
        query=str(value["query"]),
        is_nested=bool(value["is_nested"]),
        user=str(value["user"]),
        role=str(value["role"]),
        version=int(value["version"]),
        sequences={
            str(name): sequence_from_json(each)
            for name, each in ((value.get("made") or {}).get("sequences") or {}).items()
        },
        references={str(name): ObjectNumber(int(each)) for name, each in (value.get("references") or {}).items()},
    )


def _structure(value: Mapping[str, Any] | None) -> Structure | None:
    return None if value is None else structure_from_json(value)


def _rewriting(value: Mapping[str, Any]) -> Rewriting | None:
    found = value.get("rewriting")
    if found is None:
        return None
    return Rewriting(
        from_file=int(found["from"] or 0),
        to_file=int(value["file"]),
        rules=CastRules(encoding=str(found["encoding"]), has_own=bool(found["casts"])),
    )


def _reasons(value: int | list[int] | None) -> int:
    """Return the reasons of all rewritings as one set of bits."""
    reasons = value if isinstance(value, list) else [value or 0]
    return functools.reduce(lambda one, other: one | int(other), reasons, 0)
