"""What a destination says of rows that are in the way of a change, and what it keeps of conflicts."""

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
    """What to find out about the rows that each row of a write meets.

    Args:
        by_key: the row that the write's `match_columns` find; False: the rows that have one of the new values' unique
            keys.
        compare: positions in the write's version whose old value is compared with the row's (with `by_key`), or whose
            new one is.
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
        order: of `RowQuestion.order`: 1 where the write's value is higher than the row's, -1 lower, 0 equal; None: one
            is NULL.
        sums: of `RowQuestion.sums`, in the form of the write's columns; None: NULL.
        is_same: it has the values of `Write.match_columns` (an INSERT: of the table's key).
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
    """When and where the rows of a write were changed: only tables with latest_timestamp have it.

    Args:
        times_us: int64[n], one per row of the write: its commit at the source, microseconds since the epoch; where the
            write is of several changes of a row, the commit of the first: if that one is the last change of its row, so
                are those that follow it.
        source: the site of all of them.
        rank: of that site; of two changes at one time the one of the higher rank counts as later.
        own_rank: of the destination's site.
        has_tombstones: a delete counts as a change; without, what is gone was never there.
        has_one_source: no other site's changes of the table are applied here: of rows that are there, nothing needs to
            be noted.
        keys: uint64[n]: hashes of the keys that the rows have behind the write (a DELETE: had), of which equal keys
            have equal ones. A destination may note the times of a whole set by them; None: it must note each row by its
            key.
        key_form: hashes of keys of another form do not compare.
        is_decided: the rows are locked, and were not changed later.
        awaited: the rows were looked for and are not there: the other sites whose changes may be making them at this
            moment. A destination waits for those that are under way, and for its clock, before it looks once more; of
            what comes behind, the write is known. A row that is there then counts, also one that was changed later.
                None: nobody looked.
        noted_us: int64[n]: what is noted, the commit of the last change of each row; None: each row has one change.
        keeps_key: columns of the key that the write sets get an equal value, which is written otherwise.
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
        """Whether each row that is there needs a note of its own."""
        return not self.has_one_source and self.keys is None

    @property
    def last_us(self) -> NDArray[np.int64]:
        """What is noted: int64[n]."""
        return self.times_us if self.noted_us is None else self.noted_us

    def of_rows(self, chosen: NDArray[np.intp] | NDArray[np.int32]) -> WriteTimes:
        """The times of some rows.

        Args:
            chosen: their numbers, in the order wanted.
        """
        return replace(
            self,
            times_us=self.times_us[chosen],
            noted_us=None if self.noted_us is None else self.noted_us[chosen],
            keys=None if self.keys is None else self.keys[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LastChange:
    """What a destination knows of the last change of a row, which may be gone.

    Args:
        own_us: the row is there as a session of this site left it, which committed then, microseconds since the epoch;
            None: it is not there, an apply process wrote it last, or nobody knows any more.
        noted_us: when a change was made that an apply process wrote, or the delete of a session of this site; None:
            nothing is noted.
        noted_rank: of the site that made it, see `WriteTimes.rank`; of this site's own deletes it is
            `WriteTimes.own_rank` instead.
        noted_source: that site; empty: a delete by a session of this site.
        is_gone: what is noted is a delete.
        forgotten_us: what was noted up to then may be forgotten; 0: nothing is.
        lost_us: a session of this site may have changed or deleted the row last, at a time that is lost, then or
            earlier; 0: none has.
        applied_us: an apply process committed the last change here then, and its time is not noted, because there was
            no other source, SQL of a handler made it, or the note is forgotten; None: not so.
        applied_source: the site that made that change, then or earlier.
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
        """Whether nobody knows which is later.

        The row was changed at a time that is lost, or was not noted, and not known to be earlier.

        Args:
            times: of the write.
            row: its number in the write.
        """
        unnoted_us = 0 if self.applied_us is None or self.applied_source == times.source else self.applied_us
        return 0 < max(self.lost_us, unnoted_us) >= int(times.times_us[row]) and not self.is_later_than(times, row)

    def is_later_than(self, times: WriteTimes, row: int = 0) -> bool:
        """Whether the row was changed later than a row of a write, which loses then.

        Of two changes of one source the one that comes later is later, whatever its clock says.

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
    """One conflict, as the history keeps it.

    Args:
        apply: the apply process.
        source: site of the transaction.
        transaction_id, commit_scn: of the source transaction.
        position: 0-based position of the row LCR in its transaction.
        owner, name: the table.
        command: INSERT, UPDATE or DELETE.
        kind: "update_differs", ...; see `headrace.rules.conflict_handlers`.
        columns: where old values differ; empty where not that is the conflict.
        handler: what decided, such as `maximum(changed_at)`; empty: none could.
        outcome: LCR APPLIED, LCR DISCARDED, MERGED (columns of both), HANDLED (by a user's function), or ERROR QUEUE.
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
