"""What a destination says of rows that are in the way of a change, and what it keeps of conflicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ConflictRecord", "RowInTheWay", "RowQuestion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuestion:
    """What to find out about the rows that one row of a write meets.

    Args:
        by_key: the row that the write's `match_columns` find; False: the rows that have one of the new values' unique keys.
        compare: positions in the write's version whose old value is compared with the row's (with `by_key`), or whose new one is.
        order: positions whose new value is put in order with the row's, by the type's own order.
        sums: positions of numbers: the row's value, plus the new one, minus the old one.
    """

    by_key: bool
    compare: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    sums: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowInTheWay:
    """A row of the destination that one row of a write meets; locked until the transaction ends.

    Args:
        number: identifies it inside the transaction, as the database writes it.
        values: as the database shows them, by column; None: NULL.
        differs: of `RowQuestion.compare`: where the row has another value.
        order: of `RowQuestion.order`: 1 where the write's value is higher than the row's, -1 lower, 0 equal; None: one is NULL.
        sums: of `RowQuestion.sums`, in the form of the write's columns; None: NULL.
        is_same: it has the values of `Write.match_columns` (an INSERT: of the table's key).
    """

    number: str
    values: Mapping[str, str | None]
    differs: frozenset[int]
    order: Mapping[int, int | None] = field(default_factory=dict)
    sums: Mapping[int, bytes | None] = field(default_factory=dict)
    is_same: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictRecord:
    """One conflict, as the history keeps it.

    Args:
        apply: the apply process.
        source: site of the transaction.
        transaction_id, commit_scn: of the source transaction.
        position: 0-based position of the row LCR in its transaction.
        owner, name: the table.
        command: INSERT, UPDATE or DELETE.
        kind: "update_differs", ...; see `rules.conflict_handlers`.
        columns: where old values differ; empty where not that is the conflict.
        handler: what decided, such as `maximum(changed_at)`; empty: none could.
        outcome: LCR APPLIED, LCR DISCARDED, MERGED (columns of both), or ERROR QUEUE.
        applied_columns: columns of the LCR that were written.
        old, new, current: values as text, "column=value"; of the LCR, and of the row or rows in the way as they were.
        error_number: of the error transaction, where that is the outcome; else 0.
        number: identifies it at the destination, ascending; 0: not kept yet.
        resolved_us: when, microseconds since the epoch; 0: not kept yet.
    """

    apply: str
    source: str
    transaction_id: int
    commit_scn: int
    position: int
    owner: str
    name: str
    command: str
    kind: str
    columns: tuple[str, ...] = ()
    handler: str = ""
    outcome: str
    applied_columns: tuple[str, ...] = ()
    old: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    current: tuple[str, ...] = ()
    error_number: int = 0
    number: int = 0
    resolved_us: int = 0
