"""Marks of a source table's definition that show when its rows change, join or leave it without an event in the log.

A mark is read in the snapshot under which a table is copied, and stored with the table's record at the destination.
While the current mark equals it, the log has every change of the table's rows since the copy
(`spark_apply.copy.marks.row_marks`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from headrace.base.plain_data import as_json, from_json

__all__ = ["OF_TRANSACTION", "MarkedColumn", "MarkedField", "MarkedLabel", "MarkedPart", "RowMark"]


OF_TRANSACTION = "x"
"""Prefix of a column's stamp, followed by the number of the transaction that wrote its definition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedColumn:
    """A column, known by its name.

    Args:
        number: identifies the column: it survives a rename, and another column of the same name has another number.
        stamp: of its definition. Whatever rewrites the column's values changes it; much else does, too. For a column
            that both sides compute: of the table's own definition that was last compared with the destination's.
        is_generated: its values are computed, and a copy may lack them.
        has_passing_default: it was added with a default, which every older row has and whose expression gives another
            value at another time (the time, a random number).
        has_own_values: its default is not the same for all rows.
        type_name: of the column, below a domain.
        older: SQL of the value that older rows have (`Column.older_value`); where partitions disagree, of all their
            values: no column of the destination has these.
        keeps_older: the server keeps that value. It drops the value when the rows are rewritten; for a column without a
            default the stamp then changes.
        here: number of the destination's column that has its values; 0: the destination had none, or it is unknown.
    """

    number: int
    stamp: str = ""
    is_generated: bool = False
    has_passing_default: bool = False
    has_own_values: bool = False
    type_name: str = ""
    older: str | None = None
    keeps_older: bool = False
    here: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedPart:
    """Where rows of the table are stored: the table itself, or one of its partitions.

    Args:
        owner, name: its own.
        file: whatever rewrites its rows changes it; much else does, too.
        joined: when it became a part; changes when it leaves and returns.
        is_unlogged: changes of its rows are in no log; in a recorded mark: some check since then found them in none.
        rewrite: the last ALTER TABLE that rewrote its rows; empty: unknown.
        computed: for each column it computes, a stamp of the definition, which may differ in every partition. None: an
            earlier version did not read it.
        uncompared: those of these stamps whose definitions differ from what the destination computes, or were not
            compared.
    """

    owner: str
    name: str
    file: int
    joined: str = ""
    is_unlogged: bool = False
    rewrite: str = ""
    computed: dict[str, str] | None = None
    uncompared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedLabel:
    """A label of an enumerated type (`owner.name`) used by the table's columns, directly or nested."""

    type_name: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedField:
    """A field of a composite type (`owner.name`) used by the table's columns, directly or nested.

    Args:
        type_name: of the composite type.
        name: of the field.
        place: its position and its type.
    """

    type_name: str
    name: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMark:
    """The mark of one table.

    Args:
        columns: by name, including dropped columns: a later column of the same name is another one.
        parts: by their numbers, as text.
        labels: by their numbers, as text; in a current mark, those of a type in their order.
        fields: by number of the composite type and name.
        kept: parts that the source's table no longer has, and that the destination's table keeps on purpose.
        width_here: the highest column number of the destination's table when it was copied; 0: unknown.
    """

    columns: dict[str, MarkedColumn] = field(default_factory=dict)
    parts: dict[str, MarkedPart] = field(default_factory=dict)
    labels: dict[str, MarkedLabel] = field(default_factory=dict)
    fields: dict[str, MarkedField] = field(default_factory=dict)
    kept: dict[str, MarkedPart] = field(default_factory=dict)
    width_here: int = 0

    def to_text(self) -> str:
        """Return the form stored at a destination."""
        return json.dumps(as_json(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> RowMark:
        """Read what `to_text` wrote.

        Raises:
            ConfigError: another version of Headrace wrote it.
        """
        return from_json(cls, json.loads(text))
