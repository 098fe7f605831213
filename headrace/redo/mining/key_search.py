"""The changes of one row in redo, for `headrace explain`.

A search mines a table's changes, whatever the capture process's own rules say, and keeps those of one key. It is cut
into pieces: each ends after a number of bytes of redo, at the end of a transaction, and returns the start of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.clock import VirtualClock
from headrace.lcr.cutting import select_rows, without_unused
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.redo.mining.miner import Miner
from headrace.rules.rule import ANY_TAG, Rule, RuleSet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.databases.ports import LogDecoder, StreamOptions
    from headrace.lcr.batch import LcrBatch, RowGroup, TableVersion
    from headrace.lcr.values import ColumnValues
    from headrace.links.ports import RedoPosition

__all__ = ["CHANGES_MAX", "FoundChange", "KeyPart", "KeySearch", "SearchedRedo"]

CHANGES_MAX = 100  # the newest ones: an operator who asks why a row differs reads no more
SEARCH_BYTES = 64 << 20  # redo in one piece: about a second, so that there is progress to show


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPart:
    """One column's value of the searched key, in both forms that the log may have.

    Args:
        column: name of the column.
        text: the database's text form.
        binary: its binary form.
    """

    column: str
    text: str
    binary: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundChange:
    """A change of the row.

    Args:
        command: INSERT, UPDATE, DELETE or TRUNCATE.
        transaction_id: the source's number of its transaction.
        order_scn, commit_scn: SCNs of its transaction.
        commit_time_us: commit time at the source, microseconds since the epoch.
        tag: tag of the transaction; None: NULL.
        tagged_by: topology and apply process that set the tag; empty: a user, or no tag.
        alone: a batch with this change only, as captured, for evaluating conditions.
    """

    command: str
    transaction_id: int
    order_scn: int
    commit_scn: int
    commit_time_us: int
    tag: bytes | None
    tagged_by: str
    alone: LcrBatch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedRedo:
    """One piece of a search.

    Args:
        first_scn: start of the piece: everything committed after it, up to `through_scn`, was searched.
        through_scn: start of the next piece.
        is_done: all durable redo was searched.
        redo_bytes: bytes of redo read.
        changes: the newest `CHANGES_MAX`, in source order.
        left_out: number of older ones that are omitted.
    """

    first_scn: int
    through_scn: int
    is_done: bool
    redo_bytes: int
    changes: tuple[FoundChange, ...]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySearch:
    """A search for the changes of one row.

    Args:
        folder: the redo folder.
        source: source site of the redo.
        decoder_factory: makes the decoder for a segment's stream options.
        owner, name: the table, under its name in the log.
        key: key of the row; columns that the log does not carry for a change do not match.
    """

    folder: Path
    source: str
    decoder_factory: Callable[[StreamOptions], LogDecoder]
    owner: str
    name: str
    key: tuple[KeyPart, ...]

    def run(self, durable: RedoPosition, start_scn: Scn, *, bytes_max: int = SEARCH_BYTES) -> SearchedRedo:
        """Search the next piece.

        Args:
            durable: position up to which redo may be read.
            start_scn: `through_scn` of the piece before; FIRST_SCN: begin with the oldest redo.
            bytes_max: bytes of redo after which the piece ends, at the end of a transaction.

        Raises:
            LogGone: redo was purged meanwhile: begin with FIRST_SCN again.
            RedoError: redo is damaged.
            CaptureError: redo cannot be decoded.
        """
        rules = RuleSet(include=(Rule(owner=self.owner, name=self.name, tags=ANY_TAG),))
        # A clock that the loop advances: marks are not delayed for the pace of a stream, because there is no stream
        # here.
        clock = VirtualClock()
        miner = Miner(self.folder, self.source, start_scn, rules, self.decoder_factory, clock=clock)
        found: list[FoundChange] = []
        left_out, first_scn, is_done = 0, int(start_scn), False
        try:
            while True:
                clock.advance(1.0)
                batch = miner.next_batch(durable)
                if batch is None:
                    is_done = True
                    break
                if batch.is_progress_mark and batch.previous_scn == FIRST_SCN and first_scn == FIRST_SCN:
                    first_scn = int(batch.through_scn)
                if not (batch.continues or batch.is_progress_mark):
                    # Drop the parts of a transaction that is sent again as a whole.
                    found = [each for each in found if each.commit_scn]
                found += self.changes_in(batch)
                if batch.continues and not batch.is_open:
                    found = _committed(found, batch)
                left_out += max(0, len(found) - CHANGES_MAX)
                del found[:-CHANGES_MAX]
                if not batch.is_open and miner.statistics().redo_bytes >= bytes_max:
                    break
            return SearchedRedo(
                first_scn=first_scn,
                through_scn=int(max(miner.sent_scn, miner.captured_scn if is_done else 0)),
                is_done=is_done,
                redo_bytes=miner.statistics().redo_bytes,
                changes=tuple(each for each in found if each.commit_scn),
                left_out=left_out,
            )
        finally:
            miner.close()

    def changes_in(self, batch: LcrBatch) -> list[FoundChange]:
        """Return the changes of the row in one batch, in order; the commit SCN is 0 in an open transaction."""
        rows = sorted(
            {
                *(row for group in batch.groups for row in self._rows(group, batch.tables[group.table])),
                *(
                    each.row_number
                    for each in batch.truncates
                    if any(self._is_mine(batch.tables[table]) for table in each.tables)
                ),
            }
        )
        return [_change(batch, row) for row in rows]

    def _rows(self, group: RowGroup, table: TableVersion) -> Iterator[int]:
        if not self._is_mine(table):
            return
        hit = np.zeros(group.row_count, np.bool_)
        for values in (group.old, group.new):
            if values is not None:
                hit |= self._matches(values, table)
        yield from group.row_numbers[hit].tolist()

    def _matches(self, values: ColumnValues, table: TableVersion) -> NDArray[np.bool_]:
        """Return which rows have the key in this image."""
        hit = np.ones(values.row_count, np.bool_)
        places = {column.name: place for place, column in enumerate(table.columns)}
        for part in self.key:
            place = places.get(part.column)
            if place is None:
                return np.zeros(values.row_count, np.bool_)
            wanted = part.binary if table.columns[place].is_binary else part.text.encode()
            hit &= _equal(values, place, wanted, hit)
        return hit

    def _is_mine(self, table: TableVersion) -> bool:
        return (table.owner, table.name) == (self.owner, self.name)


def _equal(values: ColumnValues, column: int, wanted: bytes, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which of the rows `among` have these bytes in a column."""
    hit: NDArray[np.bool_] = among & (values.lengths[column] == len(wanted))
    rows = np.flatnonzero(hit)
    if wanted and rows.shape[0]:
        places = values.offsets(column)[rows][:, None] + np.arange(len(wanted))
        hit[rows] = (values.data[places] == np.frombuffer(wanted, np.uint8)).all(axis=1)
    return hit


def _change(batch: LcrBatch, row: int) -> FoundChange:
    transactions = batch.transactions
    place = int(np.searchsorted(transactions.first_row, row, side="right")) - 1
    tag = None if transactions.tag[place] < 0 else batch.tags[int(transactions.tag[place])]
    group = int(batch.row_places[0][row])
    return FoundChange(
        command="TRUNCATE" if group < 0 else batch.groups[group].command.name,
        transaction_id=int(transactions.transaction_id[place]),
        order_scn=int(transactions.order_scn[place]),
        commit_scn=int(transactions.commit_scn[place]),
        commit_time_us=int(transactions.commit_time_us[place]),
        tag=None if tag is None else tag.value,
        tagged_by="" if tag is None or not tag.apply else f"{tag.topology}/{tag.apply}",
        alone=without_unused(select_rows(batch, np.arange(batch.row_count) == row)),
    )


def _committed(found: list[FoundChange], last: LcrBatch) -> list[FoundChange]:
    """Return the changes with the commit of a transaction in parts, of which `last` is the last part."""
    ended = last.transactions
    commit_scn, time_us = int(ended.commit_scn[0]), int(ended.commit_time_us[0])
    return [each if each.commit_scn else replace(each, commit_scn=commit_scn, commit_time_us=time_us) for each in found]
