"""Apply reader: selects what must be applied from the dequeued batches.

Job
    Take batches in order. Drop changes that are already applied, that the instantiation copied, or that the rules of
    the apply process discard. Pass the rest on as runs of whole transactions, or as parts of a large one.

Main path
    ApplyReader.offer -> RowSelection.select -> DestinationNames.named -> KeyForms.admit -> Pieces.add
    -> ApplyReader.take -> ApplyCoordinator.accept.

States (V$STREAMS_APPLY_READER.STATE)
    INITIALIZING        until the first batch, memory only.
    IDLE                nothing to take, memory only.
    DEQUEUE MESSAGES    a batch was taken, memory only.
    SCHEDULE MESSAGES   pieces are pending for the coordinator, memory only.
    PAUSED: WAITING FOR ALTER   a transaction does not fit its destination table; everything before it was passed on.
                        The reader checks again only when all of that is applied: later changes may have other names.

Durable when
    Nothing here is durable. After a restart the reader begins at the low watermark, and recognises by `order_scn` what
    is applied above it.

Worked flow (low watermark 20, applied above: 30..40)
    batch 20..45 with T1 order 18, T2 order 25, T3 order 35, T4 order 42
    T1 < 20 is dropped, T2 passes, 30 <= T3 < 40 is dropped, T4 passes: one run 20..45 with T2 and T4

Tables copied while others are applied
    A table whose copy is not finished is skipped: all its rows are dropped. Say its copy, as of SCN 100, is equal, and
    the low watermark is 170. The table joins: the low watermark goes back to 100, and everything above is replayed.
    Up to 170 (`ApplyProgress.ahead_scn`) only rows of joining tables pass, each table's from its instantiation SCN;
    the other tables are applied there. A kill at any moment changes nothing: both SCNs are recorded with the low
    watermark.

Transactions with DDL LCRs
    Such a transaction is passed on in parts, and the coordinator writes it alone. Until it is applied the destination's
    tables are as before, so nothing behind its first DDL LCR can be checked or hashed by key: the rest of the
    transaction is passed on unchecked, and its apply server pauses if a table does not fit. What follows the
    transaction waits until it is applied. Then all tables are described again.

    T1, T2 = rows, DDL, rows, T3
    passed on: run T1; part 0, DDL as part 1, part 2 of T2 -> all are applied -> fits are forgotten -> run T3

    If the DDL makes, drops or renames a table, the destination is asked then what became of it (`spark_apply.tables.unsettled`):
    only then it is known to which table later rows belong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.errors import DatabaseError, ProtocolError, UnfitTableError
from headrace.lcr.batch import LcrBatch
from headrace.lcr.cutting import slice_transactions
from headrace.lcr.scn import Scn
from headrace.lcr.tracking import TrackLog
from headrace.rules.evaluation import RuleEvaluation
from spark_apply.driver.reading.destination_names import DestinationNames
from spark_apply.driver.reading.key_forms import KeyForms
from spark_apply.driver.reading.pieces import Piece, Pieces, order_scn_of
from spark_apply.driver.reading.row_selection import ReaderStatistics, RowSelection

if TYPE_CHECKING:
    from headrace.databases.ports import ApplyProgress, Instantiation, PartOf
    from headrace.lcr.table_name import TableName
    from spark_apply.driver.settling import DdlSettling
    from spark_apply.tables.arriving import ArrivingTables
    from spark_apply.tables.fits import TableFits

__all__ = ["ApplyReader"]


@dataclass(frozen=True, slots=True)
class _Offered:
    batch: LcrBatch
    data: bytes | None
    is_behind_ddl: bool = False  # in its transaction, or a DDL LCR itself


class ApplyReader:
    """Turns batches into pieces to apply. It holds what it was offered, so offer a batch only while `wants` is true.

    Args:
        source: the site whose batches arrive.
        progress: the progress recorded at the destination.
        tables: the tables that arrive, and the SCN from which each is applied.
        returned_from: names of the source's apply processes that apply this site's own changes; changes with their tags
            return here.
        tracks: receives notes on labelled transactions.
        settling: knows what became of DDL LCRs that make, drop or rename tables; None: they stay unsettled.
    """

    def __init__(
        self,
        *,
        source: str,
        progress: ApplyProgress,
        rules: RuleEvaluation,
        fits: TableFits,
        tables: ArrivingTables,
        returned_from: Collection[str] = (),
        tracks: TrackLog | None = None,
        settling: DdlSettling | None = None,
    ) -> None:
        self._source, self._fits, self._tables, self._settling = source, fits, tables, settling
        self._selection = RowSelection(
            source=source,
            rules=rules,
            tables=tables,
            progress=progress,
            returned_from=returned_from,
            tracks=tracks or TrackLog(),
        )
        self._names = DestinationNames(rules, tables, fits)
        self._key_forms = KeyForms(fits)  # forms of everything passed on so far
        self._pieces = Pieces(fits)
        self._waiting: deque[_Offered] = deque()  # transactions that do not fit yet, and the rest of their batch
        self.restart(progress)

    # ------------------------------------------------------------------ interface

    def restart(self, progress: ApplyProgress) -> None:
        """Restart at the low watermark; drop offered batches that were not taken, and the table descriptions."""
        self._fits.forget()
        self._selection.restart(progress)
        self._through = progress.low_watermark
        self._pieces.clear()
        self._waiting.clear()
        self.unfit: UnfitTableError | None = None
        self._resubscribe = False
        # Of unsettled DDL that is applied, the outcome decides which rows pass.
        self._must_settle = bool(self._tables.unsettled)
        self._key_forms.clear()
        self._started = False

    @property
    def needed_scn(self) -> Scn:
        """The SCN at which to start dequeuing: the `through_scn` of the last complete transactions offered."""
        return self._through

    @property
    def missing_tables(self) -> tuple[str, ...]:
        """The destination's missing tables, as in `TableFits.missing_tables`."""
        return self._fits.missing_tables

    @property
    def wants(self) -> bool:
        """Whether another batch may be offered."""
        return self._pieces.is_empty and not self._waiting and not self._must_settle and not self._resubscribe

    @property
    def has_passed_on(self) -> bool:
        """Whether every piece was taken."""
        return self._pieces.is_empty

    @property
    def statistics(self) -> ReaderStatistics:
        """Totals since the start."""
        return self._selection.statistics

    @property
    def state(self) -> str:
        """The manuals' state."""
        if self.unfit is not None:
            return "PAUSED: WAITING FOR ALTER"
        if not self._pieces.is_empty:
            return "SCHEDULE MESSAGES"
        if not self._started:
            return "INITIALIZING"
        return "IDLE" if self._pieces.open_scn is None else "DEQUEUE MESSAGES"

    @property
    def must_settle(self) -> bool:
        """Whether everything that follows must wait until what was passed on is applied; then call `retry_unfit`."""
        return self._must_settle and self._pieces.is_empty

    def change_tables(
        self,
        *,
        leave_out: Collection[tuple[str, str]],
        join: Sequence[Instantiation],
        parts: Collection[PartOf] = (),
        admit: Mapping[PartOf, Scn] | None = None,
    ) -> None:
        """Change which tables are applied; the caller calls `restart` before the next batch.

        Args:
            leave_out: destination names of tables whose rows are skipped from now on.
            join: copied tables whose rows are applied from their instantiation SCN on.
            parts: partitions to skip.
            admit: skipped partitions to apply again, with the order SCN of the TRUNCATE they are applied from.
        """
        self._tables.leave_out(leave_out, parts)
        self._tables.join(join)
        self._tables.admit(admit or {})

    def all_joined(self) -> None:
        """Note that every joining table has caught up with the others."""
        self._tables.all_joined()

    def emptied_scn(self, table: tuple[str, str]) -> Scn | None:
        """Return the SCN at which a skipped table was last emptied; None: it was not."""
        return self._tables.emptied_scn(table)

    @property
    def truncated_parts(self) -> dict[PartOf, Scn]:
        """Copied partitions whose table waits to be truncated, and the order SCN of that TRUNCATE."""
        return dict(self._tables.truncated_parts)

    @property
    def truncated_tables(self) -> dict[str, tuple[Scn, frozenset[int]]]:
        """By table identity: the order SCN of the last TRUNCATE of several partitions, and their numbers."""
        return dict(self._tables.truncated)

    @property
    def strangers(self) -> frozenset[TableName]:
        """Tables whose rows are skipped because they were never copied here."""
        return frozenset(self._tables.strangers)

    @property
    def must_resubscribe(self) -> bool:
        """Whether to dequeue again from `needed_scn`: an open transaction must be read from its beginning."""
        return self._resubscribe

    def resubscribed(self) -> None:
        """Note that the queue sends again from `needed_scn`."""
        self._resubscribe = False

    def offer(self, batch: LcrBatch, data: bytes | None) -> None:
        """Take the next batch.

        Args:
            batch: the decoded batch.
            data: its original bytes; None: the batch was changed since.

        Raises:
            ProtocolError: an earlier batch is missing, or the batch is from another source.
        """
        if batch.source != self._source:
            raise ProtocolError(f"a batch of {batch.source} came to the apply process of {self._source}")
        if batch.previous_scn != self._through:
            raise ProtocolError(
                "a batch is missing",
                expected_scn=int(self._through),
                found_scn=int(batch.previous_scn),
            )
        self._started = True
        open_scn = self._pieces.open_scn
        if batch.continues and (open_scn is None or order_scn_of(batch, 0) != open_scn):
            raise ProtocolError("a part of a transaction came without its beginning", found_scn=int(batch.previous_scn))
        if not batch.continues and not batch.is_progress_mark:
            self._pieces.drop_open()
        self._selection.count(batch)
        self._through = batch.through_scn
        self._names.note(batch.tables)
        self._split(batch, data)

    def queue_lost(self) -> None:
        """Note that the queue will send any open transaction again from its beginning, but not before it is back.

        One with DDL LCRs is given up now: it would keep even readers of its tables waiting until then.
        """
        if self._pieces.has_ddl:
            self._pieces.drop_open()

    def take(self) -> Piece | None:
        """Return the next piece to apply; None: none is pending."""
        return self._pieces.take()

    def retry_unfit(self) -> bool:
        """Check pending transactions again; True: the reader continues. Everything passed on must be applied.

        First, tables that DDL made, dropped or renamed are settled.

        Raises:
            DatabaseUnavailable: the destination did not answer; nothing has changed.
        """
        if self._settling is not None and self._tables.unsettled:
            fates = self._settling.fates(self._tables.unsettled.places)
            self._settling.take_up(self._tables.settle(fates), fates.records)
        self._fits.forget()
        self._key_forms.clear()
        waiting, unfit, had_to_settle = list(self._waiting), self.unfit, self._must_settle
        self._waiting.clear()
        self.unfit, self._must_settle = None, False
        for position, offered in enumerate(waiting):
            try:
                self._check_fit(offered.batch, offered.data, is_behind_ddl=offered.is_behind_ddl)
            except DatabaseError:
                self._waiting.extend(waiting[position:])
                self.unfit, self._must_settle = unfit, had_to_settle
                raise
        return self.unfit is None

    # ------------------------------------------------------------------ inside

    def _split(self, batch: LcrBatch, data: bytes | None) -> None:
        """Pass a batch on; an open transaction after complete ones becomes a separate piece."""
        count = len(batch.transactions)
        if batch.is_progress_mark:
            self._pieces.mark(batch.through_scn)
        elif count > 1 and (batch.is_open or batch.continues):
            cut = count - 1 if batch.is_open else 1
            self._split(slice_transactions(batch, 0, cut), None)
            self._split(slice_transactions(batch, cut, count), None)
        else:
            selected = self._selection.select(batch)
            self._check_fit(selected, data if selected is batch else None)

    def _check_fit(self, batch: LcrBatch, data: bytes | None, *, is_behind_ddl: bool = False) -> None:
        if self._resubscribe:
            return  # it follows a transaction that is read again, and so is read again too
        if self._waiting or self._must_settle:
            self._waiting.append(_Offered(batch, data, is_behind_ddl))
            return
        known = self._selection.without_strangers(batch)
        batch, data = known, data if known is batch else None
        if is_behind_ddl or batch.ddl is not None or (batch.continues and self._pieces.has_ddl):
            self._follow_ddl(batch, data)
            return
        found = self._names.named(batch)
        unfit = found.unfit
        if found.error is not None:
            self.unfit = found.error
        passing = found.batch if unfit is None else slice_transactions(found.batch, 0, unfit) if unfit else None
        if batch.continues and self._pieces.open_scn is None and unfit is None:
            self._read_again(batch)
        elif passing is not None and not self._key_forms.admit(passing):
            self._wait(batch, data)
        else:
            if passing is not None:
                self._pieces.add(passing, data if passing is batch else None)
            if unfit is not None:
                # Keep the original: after the ALTER the destination may have other names.
                rest = slice_transactions(batch, unfit, len(batch.transactions))
                self._waiting.append(_Offered(rest, None if unfit else data))
                if self._pieces.is_open_sent:
                    # Its written part holds locks that the ALTER needs, so it must be read again.
                    self._pieces.drop_open()

    def _follow_ddl(self, batch: LcrBatch, data: bytes | None) -> None:
        """Pass on a DDL LCR or a part behind one; after the transaction's last part everything must be applied."""
        self.unfit = self._names.misnamed(batch)
        if self.unfit is not None:
            self._waiting.append(_Offered(batch, data, is_behind_ddl=True))
            if self._pieces.is_open_sent:
                self._pieces.drop_open()
        elif batch.continues and self._pieces.open_scn is None:
            self._read_again(batch)
        else:
            self._pieces.add(batch, data)
            self._must_settle = not batch.is_open

    def _read_again(self, batch: LcrBatch) -> None:
        """Have the whole transaction of a part read again, even if this is the last part, which has moved `_through`."""
        self._resubscribe = True
        self._through = batch.previous_scn

    def _wait(self, batch: LcrBatch, data: bytes | None) -> None:
        """Wait until everything passed on is applied; then one transaction at a time, as keys may change their form."""
        self.unfit = None
        count = len(batch.transactions)
        pieces = [(batch, data)] if count == 1 else [(slice_transactions(batch, k, k + 1), None) for k in range(count)]
        self._waiting.extend(_Offered(piece, piece_data) for piece, piece_data in pieces)
        self._must_settle = True
