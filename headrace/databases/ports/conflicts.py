"""Rows that conflict with a change at a destination, and the history of conflicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ConflictRecord", "LastChange", "RowInTheWay", "RowQuestion", "WriteTimes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuestion:
    """What to find out about the rows that a write meets.

    Args:
        by_key: find the row by the write's `match_columns`; False: find the rows that have one of the new values'
            unique keys.
        compare: positions in the write's version whose old value (with `by_key`; else the new one) is compared with the
            row's.
        order: positions whose new value is ordered against the row's, in the type's own order.
        sums: positions of numbers: the row's value plus the new one minus the old one.
    """

    by_key: bool
    compare: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    sums: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowInTheWay:
    """A row of the destination that one row of a write meets; locked until the transaction ends.

    Args:
        number: identifies it inside the transaction, in the database's form.
        values: text values by column; None: NULL.
        differs: those of `RowQuestion.compare` where the row has another value.
        order: for each of `RowQuestion.order`: 1 where the write's value is higher than the row's, -1 lower, 0 equal;
            None: one is NULL.
        sums: for each of `RowQuestion.sums`, in the form of the write's columns; None: NULL.
        is_same: it has the values of `Write.match_columns` (for an INSERT: of the table's key).
        of: number of the write's row that meets it.
    """

    number: str
    values: Mapping[str, str | None]
    differs: frozenset[int]
    order: Mapping[int, int | None] = field(default_factory=dict)
    sums: Mapping[int, bytes | None] = field(default_factory=dict)
    is_same: bool = True
    of: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WriteTimes:
    """When and where the rows of a write were changed; only for tables with latest_timestamp.

    Args:
        times_us: int64[n], one per row of the write: its commit time at the source, microseconds since the epoch. For
            several changes of one row, the commit of the first: if that one is the row's last change, so are the later
            ones.
        source: the site of all of them.
        rank: of that site; of two changes at one time, the one with the higher rank counts as later.
        own_rank: of the destination's site.
        has_tombstones: deletes count as changes; False: a deleted row counts as one that never existed.
        has_one_source: no other site's changes of the table are applied here: existing rows need no note.
        keys: uint64[n]: hashes of the keys that the rows have after the write (a DELETE: had); equal keys have equal
            hashes. With them a destination may note the times of a whole set at once; None: it must note each row by
            its key.
        key_form: hashes of different key forms are not comparable.
        is_decided: the rows are locked, and were not changed later.
        awaited: for rows that were looked for and not found: the other sites whose changes in flight may be creating
            them. A destination waits for those transactions and for its clock, then looks again; changes that follow
            know of the write. A row found then counts, even if it was changed later. None: the rows were not looked
            for.
        noted_us: int64[n]: the times to note, the commit of each row's last change; None: each row has one change.
        keeps_key: key columns that the write sets get an equal value in another representation.
    """

    times_us: NDArray[np.int64]
    source: str
    rank: int
    own_rank: int
    has_tombstones: bool
    has_one_source: bool = False
    keys: NDArray[np.uint64] | None = None
    key_form: int = 0
    is_decided: bool = False
    awaited: tuple[str, ...] | None = None
    noted_us: NDArray[np.int64] | None = None
    keeps_key: bool = False

    @property
    def notes_rows(self) -> bool:
        """Whether each existing row needs its own note."""
        return not self.has_one_source and self.keys is None

    @property
    def last_us(self) -> NDArray[np.int64]:
        """The times to note: int64[n]."""
        return self.times_us if self.noted_us is None else self.noted_us

    def of_rows(self, chosen: NDArray[np.intp] | NDArray[np.int32]) -> WriteTimes:
        """Return the times of some rows.

        Args:
            chosen: their numbers, in the wanted order.
        """
        return replace(
            self,
            times_us=self.times_us[chosen],
            noted_us=None if self.noted_us is None else self.noted_us[chosen],
            keys=None if self.keys is None else self.keys[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LastChange:
    """What a destination knows of the last change of a row, which may be deleted.

    Args:
        own_us: commit time, microseconds since the epoch, of the session of this site that left the row as it is; None:
            the row does not exist, an apply process wrote it last, or the time is unknown.
        noted_us: time of the noted change: one that an apply process wrote, or a delete by a session of this site;
            None: nothing is noted.
        noted_rank: of the site that made it (`WriteTimes.rank`); this site's own deletes have `WriteTimes.own_rank`
            instead.
        noted_source: that site; empty: a delete by a session of this site.
        is_gone: the noted change is a delete.
        forgotten_us: notes up to this time may be forgotten; 0: none.
        lost_us: a session of this site may have changed or deleted the row last, at this time or earlier, and the exact
            time is lost; 0: none has.
        applied_us: when an apply process committed the last change here without a note of its time: no other source
            existed, a handler's SQL made it, or the note is forgotten; None: not so.
        applied_source: the site that made that change, at that time or earlier.
    """

    own_us: int | None = None
    noted_us: int | None = None
    noted_rank: int = 0
    noted_source: str = ""
    is_gone: bool = False
    forgotten_us: int = 0
    lost_us: int = 0
    applied_us: int | None = None
    applied_source: str = ""

    def may_be_later_than(self, times: WriteTimes, row: int = 0) -> bool:
        """Whether it is unknown which change is later.

        The row's last change has a lost or unnoted time that is not known to be earlier.

        Args:
            times: of the write.
            row: its number in the write.
        """
        unnoted_us = 0 if self.applied_us is None or self.applied_source == times.source else self.applied_us
        return 0 < max(self.lost_us, unnoted_us) >= int(times.times_us[row]) and not self.is_later_than(times, row)

    def is_later_than(self, times: WriteTimes, row: int = 0) -> bool:
        """Whether the row was changed later than a row of a write, which then loses.

        Of two changes of one source the one that arrives later is later, whatever its clock says.

        Args:
            times: of the write.
            row: its number in the write.
        """
        mine = int(times.times_us[row]), times.rank
        if self.own_us is not None and (self.own_us, times.own_rank) > mine:
            return True
        if self.noted_us is None or self.noted_source == times.source or (self.is_gone and not times.has_tombstones):
            return False
        return (self.noted_us, self.noted_rank if self.noted_source else times.own_rank) > mine


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictRecord:
    """One conflict, as the history stores it.

    Args:
        apply: the apply process.
        source: site of the transaction.
        transaction_id, commit_scn: of the source transaction.
        position: 0-based position of the row LCR in its transaction.
        owner, name: the table.
        command: INSERT, UPDATE or DELETE.
        kind: "update_differs" and others (`headrace.rules.conflict_handlers`).
        columns: where old values differ; empty for other conflicts.
        handler: what decided, such as `maximum(changed_at)`; empty: none could.
        outcome: LCR APPLIED, LCR DISCARDED, MERGED (columns of both), HANDLED (by a user's function), or ERROR QUEUE.
        applied_columns: columns of the LCR that were written.
        old, new, current: values as text, "column=value": of the LCR, and of the conflicting row or rows before.
        error_number: of the error transaction, if that is the outcome; else 0.
        number: identifies it at the destination, ascending; 0: not stored yet.
        resolved_us: time of the decision, microseconds since the epoch; 0: not stored yet.
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
