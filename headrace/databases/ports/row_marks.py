"""What of a source table's definition changes when its rows change, join or leave it without an event in the log.

A mark is read in the snapshot that a table is copied under, and kept with the table's record at the destination. While
the mark of now says the same, the log has every change of the table's rows since the copy (see
`spark_apply.copy.marks.row_marks`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from headrace.base.plain_data import as_json, from_json

__all__ = ["OF_TRANSACTION", "MarkedColumn", "MarkedField", "MarkedLabel", "MarkedPart", "RowMark"]


OF_TRANSACTION = "x"
"""Begins a column's stamp that goes on with the number of the transaction which wrote its definition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedColumn:
    """A column under one name.

    Args:
        number: which column it is: it keeps the number when it is renamed, and another column of the name has another
            one.
        stamp: of its definition. Whatever rewrites the column's values changes it; much else does, too. Of a column
            that both sides compute: of the table's own definition that was compared with the destination's last.
        is_generated: its values are computed, and may be in no copy.
        has_passing_default: it was added with a default, which every older row has, and whose expression says something
            else at another moment (the time, a random number).
        has_own_values: its default is not the same for all rows.
        type_name: of it, below a domain.
        older: SQL of the value that older rows have, see `Column.older_value`; where partitions disagree, of all their
            values: no column of the destination has these.
        keeps_older: the server keeps that value. It forgets it when something writes the rows anew, and of a column
            without a default it changes the stamp then.
        here: number of the destination's column that has its values; 0: the destination had none, or it is not known.
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
        owner, name: of it.
        file: whatever rewrites its rows changes it; much else does, too.
        joined: when it became a part; another one when it left and came back.
        is_unlogged: changes of its rows are in no log; recorded, they were in none at a look since.
        rewrite: which ALTER TABLE wrote its rows anew last; empty: it is not known.
        computed: of each column that it computes, a stamp of the definition, which every partition may have of its own.
            None: an earlier version did not read it.
        uncompared: those of these stamps whose definitions are not what the destination computes, or are not compared.
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
    """A label of an enumerated type (`owner.name`) of the table's columns, or of what is inside them."""

    type_name: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedField:
    """A field of a composite type (`owner.name`) of the table's columns, or of what is inside them.

    Args:
        type_name: of the composite type.
        name: of the field.
        place: which field it is, and of which type.
    """

    type_name: str
    name: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMark:
    """See the module.

    Args:
        columns: by name, also of columns that are gone: a later column of the name is another one.
        parts: by their numbers, as text.
        labels: by their numbers, as text; those of a type in their order, in a mark of now.
        fields: by number of the composite type and name.
        kept: parts that the source's table has no longer, and that the destination's keeps on purpose.
        width_here: the highest number of a column that the destination's table had when it was copied; 0: not known.
    """

    columns: dict[str, MarkedColumn] = field(default_factory=dict)
    parts: dict[str, MarkedPart] = field(default_factory=dict)
    labels: dict[str, MarkedLabel] = field(default_factory=dict)
    fields: dict[str, MarkedField] = field(default_factory=dict)
    kept: dict[str, MarkedPart] = field(default_factory=dict)
    width_here: int = 0

    def to_text(self) -> str:
        """As it is kept at a destination."""
        return json.dumps(as_json(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> RowMark:
        """Read what `to_text` wrote.

        Raises:
            ConfigError: another version of Headrace wrote it.
        """
        return from_json(cls, json.loads(text))
