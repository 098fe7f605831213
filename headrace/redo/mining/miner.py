"""Mining: read redo from a restart point on and turn it into LCR batches. The core of a capture process.

Job
    Give every transaction that the rules let through exactly once, in commit order, from any start SCN on.

Main path
    Miner.next_batch -> RedoScan.next_record -> RedoScan.decode (LogDecoder) -> Prefilter.find (DdlLog.find, classify)
    -> Assembly.add -> Assembly.cut -> GivenBatches.evaluated -> LcrBatch.

States
    A miner has none but its position: `sent_scn` (end of the last batch) and `captured_scn` (end of the mined redo).
    Restart = a new miner with the SCN that the queue needs as `start_scn`; it finds the restart point by headers alone.
    Without one (FIRST_SCN) it begins with the oldest redo, and gives a progress mark that says where that is.

Durable when
    Never here. A batch is durable when the queue says so.

Worked flow
    redo from SCN 5 on: T1 commit 10 | first half of T2 | RESUME | T2 commit 20, T3 commit 30 (tagged) | progress 45
    Miner(start_scn=10): begins behind T1; drops the half of T2 at RESUME
    next_batch: T2; previous_scn 10, through_scn 45 (T3 is discarded, nothing else is pending)
    next_batch: None
    redo: T4 with 10,000 rows, commit 60
    next_batch: first part (open, through_scn 45), ..., last part (through_scn 60)
    Miner(FIRST_SCN): a progress mark 0..5, then T1, T2; 15..20 if the segment with T1 was purged meanwhile

Source: Oracle Streams Concepts and Administration 11.2, "Capture Process"; DESIGN "LCRs are columnar from capture to
apply".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.clock import Clock, SystemClock
from headrace.databases.connectors import value_types
from headrace.databases.ports import DecodedChunk, LogDecoder, StreamOptions
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.links.ports import RedoPosition
from headrace.redo.mining.assembly import Assembly, MinedTransactions
from headrace.redo.mining.ddl_log import DdlLog
from headrace.redo.mining.given_batches import GivenBatches
from headrace.redo.mining.mined_labels import MinedLabel, MinedLabels
from headrace.redo.mining.mined_tables import TAGS_KEPT, MinedTables
from headrace.redo.mining.mining_kernels import ERROR
from headrace.redo.mining.names import NamesAtSource, TableNames
from headrace.redo.mining.prefilter import Prefilter
from headrace.redo.mining.redo_scan import RedoScan
from headrace.redo.mining.undecodable import misfit
from headrace.redo.mining.unmatched_rules import UnmatchedRules
from headrace.redo.records import RecordHeader, RecordType
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.user_code.last_call import LastCall

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Miner", "MiningStatistics"]

ROWS_MAX_DEFAULT = 4096  # rows of a batch: enough for column-wise work, few enough for caches and latency
BYTES_MAX_DEFAULT = 1 << 20  # bytes of its values: small against message limits
MINED_BYTES_MAX = 64 << 20  # redo mined without a batch before a mark reports progress


@dataclass(slots=True)
class _Totals:
    """Running totals for `MiningStatistics`."""

    redo_bytes: int = 0
    transactions: int = 0
    dropped: int = 0
    kept: int = 0
    discarded: int = 0
    last_commit_time_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MiningStatistics:
    """What a miner did since it was started.

    Args:
        captured_scn: every transaction up to here is mined.
        sent_scn: end of the last batch.
        redo_bytes: bytes of redo mined.
        transactions: transactions found that were not mined before.
        transactions_dropped: duplicate transactions: mined before, or sent again by the source after a break.
        rows_kept: rows that passed prefiltering.
        rows_discarded: rows that did not.
        full_evaluations: batches evaluated in full because prefiltering answered MAYBE.
        batches: batches given, without progress marks.
        marks: progress marks given.
        last_commit_time_us: commit time at the source of the last mined transaction.
        labels_left_out: labels that are not tracked, because there were too many at a time.
        ddl_failed: statements that the source could not record in its log of DDL, so that no DDL LCR has them.
        last_failed_ddl: the last one, and why it was not; empty: none.
    """

    captured_scn: Scn
    max_checkpoint_scn: Scn
    sent_scn: Scn
    redo_bytes: int
    transactions: int
    transactions_dropped: int
    rows_kept: int
    rows_discarded: int
    full_evaluations: int
    batches: int
    marks: int
    last_commit_time_us: int
    labels_left_out: int
    ddl_failed: int
    last_failed_ddl: str


class Miner:
    """Mines the redo in one folder for one capture process. Not shared between threads.

    A folder without redo is no error: mining begins when redo arrives.

    Args:
        folder: the segments' folder.
        source: source site of the log.
        start_scn: what is committed up to here was captured before; FIRST_SCN: nothing was, begin with the oldest redo.
        rules: the capture process's rules.
        decoder_factory: makes the decoder for a segment's stream options.
        names: the table names that the source's site knows (`headrace.redo.mining.names`). None: the log's names apply,
            and tables that no rule keeps are discarded.
        clock: clock for the pace of progress marks.
        last_call: outlives transformation functions that end the process.
    """

    def __init__(
        self,
        folder: Path,
        source: str,
        start_scn: Scn,
        rules: RuleSet,
        decoder_factory: Callable[[StreamOptions], LogDecoder],
        *,
        names: NamesAtSource | None = None,
        clock: Clock | None = None,
        last_call: LastCall | None = None,
    ) -> None:
        self._source = source
        evaluation = RuleEvaluation(rules, types=value_types(), clock=clock, last_call=last_call)
        clock = clock or SystemClock()
        self._tables = MinedTables(evaluation)
        table_names = TableNames(source, self._tables.keeps_any, names)
        self._unmatched = UnmatchedRules(evaluation, table_names, clock)
        self._scan = RedoScan(folder, source, decoder_factory)
        self._ddl_log = DdlLog(self._tables, evaluation, is_wanted=rules.takes_ddl)
        self._prefilter = Prefilter(self._scan, self._tables, table_names, self._ddl_log)
        self._assembly = Assembly(source, self._tables.versions, self._tables.tags)
        self._labels = MinedLabels()
        self._given = GivenBatches(source, start_scn, evaluation, clock)
        self._start_scn = start_scn
        self._mined_commit_scn = start_scn  # commit SCN of the last transaction mined
        self._mined_scn = start_scn
        self._unmarked_bytes = 0
        self._totals = _Totals()

    # ------------------------------------------------------------------ state for others

    @property
    def captured_scn(self) -> Scn:
        """Every transaction that committed up to here is mined (given, pending, or discarded)."""
        return self._mined_scn

    @property
    def sent_scn(self) -> Scn:
        """`through_scn` of the last batch given."""
        return self._given.sent_scn

    @property
    def mark_due_at(self) -> float | None:
        """Time (clock, monotonic) of a progress mark that `next_batch` held back; None: no mark is pending."""
        if self._mined_scn <= self._given.sent_scn or self._assembly.is_in_parts:
            return None
        return self._given.next_mark_at

    @property
    def unmatched_rules(self) -> tuple[Rule, ...]:
        """Positive rules that match no table in the log or at its source: probably a misspelt name."""
        return self._unmatched.find(self._scan.dictionary, len(self._tables.versions))

    def take_labelled(self) -> tuple[MinedLabel, ...]:
        """Return the outcomes of labelled transactions that the given batches cover, since the last call."""
        return self._labels.take_finished()

    def statistics(self) -> MiningStatistics:
        """Return the totals so far."""
        totals, given, head = self._totals, self._given, self._scan.head
        return MiningStatistics(
            captured_scn=self._mined_scn,
            max_checkpoint_scn=FIRST_SCN if head is None else head.last_commit_scn,
            sent_scn=given.sent_scn,
            redo_bytes=totals.redo_bytes,
            transactions=totals.transactions,
            transactions_dropped=totals.dropped,
            rows_kept=totals.kept,
            rows_discarded=totals.discarded,
            full_evaluations=given.full_evaluations,
            batches=given.batches,
            marks=given.marks,
            last_commit_time_us=totals.last_commit_time_us,
            labels_left_out=self._labels.left_out,
            ddl_failed=self._ddl_log.failed,
            last_failed_ddl=self._ddl_log.last_failed,
        )

    def close(self) -> None:
        """Close the files; idempotent."""
        self._scan.close()

    def next_batch(
        self, durable: RedoPosition, *, bytes_max: int = BYTES_MAX_DEFAULT, rows_max: int = ROWS_MAX_DEFAULT
    ) -> LcrBatch | None:
        """Mine until a batch is full or all durable redo is mined.

        Args:
            durable: position up to which redo may be read.
            bytes_max: bytes of values after which a batch is cut; a batch exceeds them by one redo record at most.
            rows_max: rows of a batch, never exceeded.

        Returns:
            A batch or a progress mark. None: all durable redo is mined, and there is nothing to report before
            `mark_due_at`.

        Raises:
            RedoError: redo is damaged; names segment, offset and SCNs.
            CaptureError: redo cannot be decoded; names the SCN.
            LogGone: the needed redo is gone.
            TableLeftRules: the next change is of such a table; everything before it was given. Begin again with another
                miner.
            TransformationError: a transformation cannot be applied; where its table lost a column, everything before
                that was given.
        """
        if not self._scan.has_begun and not self._begin(durable):
            return None
        if self._given.sent_scn < self._start_scn:
            return self._given.first_mark(self._start_scn)
        while True:
            is_full = self._assembly.row_count >= rows_max or self._assembly.value_bytes >= bytes_max
            more = not is_full and self._advance(durable, rows_max - self._assembly.row_count)
            if more and self._unmarked_bytes < MINED_BYTES_MAX:
                continue
            batch = self._assembly.cut(self._given.sent_scn, self._mined_scn, is_full=is_full)
            if batch is not None:
                batch = self._given.evaluated(batch)
                if batch is None and self._assembly.has_complete:
                    continue  # the rules keep nothing before a DDL, which is next: no mark may cover it
            if batch is None and not self._assembly.is_in_parts:
                batch = self._given.mark(self._mined_scn, is_due=more)
            if batch is not None:
                self._given.gave(batch)
                self._unmarked_bytes = 0
                return self._labels.give(batch)
            if not more and not is_full:
                if self._prefilter.left is not None:
                    raise self._prefilter.left
                return None
            self._unmarked_bytes = 0  # inside a transaction larger than the bound: nothing to report yet

    # ------------------------------------------------------------------ reading redo

    def _advance(self, durable: RedoPosition, rows_max: int) -> bool:
        """Decode a bit more, at most `rows_max` rows; False when all durable redo is mined."""
        scan = self._scan
        if self._prefilter.left is not None or (scan.record is None and not self._next_record(durable)):
            return False
        if scan.record is not None:
            self._decode(*scan.record, rows_max)
        return True

    def _next_record(self, durable: RedoPosition) -> bool:
        """Read the next record and process it, except for decoding DATA; False at the durable end."""
        header = self._scan.next_record(durable)
        if header is None:
            return False
        self._totals.redo_bytes += header.record_bytes
        self._unmarked_bytes += header.record_bytes
        if header.type is RecordType.DATA:
            self._end_record()  # all of it may have been mined before the restart
        elif header.type is RecordType.RESUME:
            self._resume()
        elif header.type is RecordType.PROGRESS:
            self._mined_scn = max(self._mined_scn, header.end_scn)
        return True

    def _end_record(self) -> None:
        """If the DATA record is decoded to its end, everything up to its progress is mined."""
        end_scn = self._scan.end_record()
        if end_scn is not None:
            self._mined_scn = max(self._mined_scn, end_scn)

    def _resume(self) -> None:
        """Handle a new stream in redo: the open transaction is sent again as a whole."""
        self._assembly.drop_open()
        self._labels.drop_open()

    # ------------------------------------------------------------------ decoding and prefiltering

    def _decode(self, header: RecordHeader, data: NDArray[np.uint8], rows_max: int) -> None:
        """Decode the next rows of the current record."""
        chunk = self._scan.decode(rows_max)
        if chunk.versions:
            self._prefilter.describe(chunk.versions, header.last_commit_scn)
        if self._prefilter.left is not None:
            return  # the next miner reads the chunk again
        if chunk.transaction_id.shape[0]:
            self._take(chunk, data)
        if self._prefilter.left is None:
            self._end_record()

    def _take(self, chunk: DecodedChunk, data: NDArray[np.uint8]) -> None:
        """Drop duplicates, prefilter the rest, and hand it to the assembly."""
        commit_scn = chunk.commit_scn
        mined = np.maximum.accumulate(np.concatenate(([self._mined_commit_scn], commit_scn)))
        dropped = chunk.order_scn < mined[:-1]

        if len(self._tables.tags) > TAGS_KEPT:
            waiting = self._assembly.tags
            self._assembly.tags = self._tables.forget_tags(np.unique(waiting[waiting >= 0]))[waiting]
        # A chunk lists every tag that its decoder has met, but uses few of them.
        tags, numbers = np.unique(chunk.tag, return_inverse=True)
        places = [-1 if number < 0 else self._tables.tag_place(chunk.tags[number]) for number in tags]
        tag = np.array(places, np.int64)[numbers]
        found = self._prefilter.find(chunk, data, dropped, tag)
        if self._prefilter.left is not None:
            return  # the next miner reads the chunk again
        if found.found[ERROR]:
            raise misfit(self._source, chunk, found.found)
        self._mined_commit_scn = Scn(int(mined[-1]))
        self._mined_scn = max(self._mined_scn, self._mined_commit_scn)
        self._labels.find(chunk, dropped)
        taken, totals = ~dropped, self._totals
        totals.kept += found.count
        totals.discarded += found.discarded
        totals.dropped += int((dropped & (commit_scn > 0)).sum())
        totals.transactions += int((taken & (commit_scn > 0)).sum())
        if commit_scn[0]:
            totals.last_commit_time_us = int(chunk.commit_time_us[commit_scn > 0][-1])
        rows = self._prefilter.rows(chunk, data, found)
        if not taken.any():
            return
        continues = chunk.continues and bool(taken[0])
        if continues and not self._assembly.is_open:
            raise self._scan.undecodable("a transaction continues that never began")
        self._assembly.add(
            rows,
            MinedTransactions(
                transaction_id=chunk.transaction_id[taken],
                order_scn=chunk.order_scn[taken],
                commit_scn=commit_scn[taken],
                commit_time_us=chunk.commit_time_us[taken],
                tag=tag[taken],
                rows=found.per_transaction[taken],
                continues=continues,
            ),
        )

    # ------------------------------------------------------------------ beginning

    def _begin(self, durable: RedoPosition) -> bool:
        """Go to the restart point, reading the dictionary on the way; False: there is no readable redo yet.

        Only headers are read, and the payloads that describe tables.
        """
        point = self._scan.restart_point(self._start_scn, durable)
        if point is None:
            return False
        if self._start_scn == FIRST_SCN:
            self._start_scn = self._mined_commit_scn = self._mined_scn = point.start_scn
        if not self._scan.begin(point, durable):
            return False
        self._prefilter.begin()
        return True
