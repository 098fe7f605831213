"""Mining: read redo from a restart point on and turn it into LCR batches. The core of a capture process.

Longer than 500 lines: every step moves the positions that the next one relies on.

Job
    Give every transaction that the rules let through exactly once, in commit order, from any start SCN on.

Main path
    Miner.next_batch -> RedoReader.next_header -> LogDecoder.decode -> classify (prefilter) -> Assembly.add
    -> Assembly.cut -> LcrBatch.

States
    A miner has none but its position: `sent_scn` (end of the last batch) and `captured_scn` (end of what was mined).
    Restart = a new miner with the SCN the queue needs as `start_scn`; it finds the restart point by headers alone.
    Without one (FIRST_SCN) it begins with the oldest redo there is, and gives a progress mark that says where that is.

Durable when
    Never here. What a batch carries is durable when the queue says so.

Worked flow
    redo from SCN 5 on: T1 commit 10 | first half of T2 | RESUME | T2 commit 20, T3 commit 30 (tagged) | progress 45
    Miner(start_scn=10): begins behind T1; drops the half of T2 at RESUME
    next_batch: T2; previous_scn 10, through_scn 45 (T3 is discarded, nothing else waits)
    next_batch: None
    redo: T4 with 10,000 rows, commit 60
    next_batch: first part (open, through_scn 45), ..., last part (through_scn 60)
    Miner(FIRST_SCN): a progress mark 0..5, then T1, T2; 15..20 if the segment with T1 was purged meanwhile

Source: Oracle Streams Concepts and Administration 11.2, "Capture Process"; DESIGN "LCRs are columnar from capture to
apply".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from databases.connectors import value_types
from databases.ports import DecodedChunk, LogDecoder, StreamOptions
from redo.assembly import Assembly, MinedRows, MinedTransactions
from redo.build_search import BuildSearch
from redo.dictionary import Dictionary, KnownTable, read_dictionary_record
from redo.mined_labels import MinedLabel, MinedLabels
from redo.mined_tables import TAGS_KEPT, MinedTables
from redo.mining_kernels import (
    DISCARDED_ROWS,
    ERROR,
    KEPT_BYTES,
    KEPT_ROWS,
    UNKNOWN_OBJECT,
    classify,
)
from redo.names import NamesAtSource, TableNames
from redo.records import (
    HEAD_RECORDS,
    AwaitedBuild,
    RecordHeader,
    RecordType,
    SegmentHead,
    decode_dictionary,
    decode_head,
)
from redo.restart_point import find_restart_point
from redo.segments import RESTORE_SEGMENT, RedoReader
from redo.undecodable import misfit, undecodable
from rules.evaluation import RuleEvaluation
from rules.rule import Rule, RuleSet
from rules.user_code.last_call import LastCall
from streams.clock import Clock, SystemClock
from streams.errors import CaptureError, ProtocolError, RedoError
from streams.lcr_batch import Command, LcrBatch, TableVersion
from streams.links import RedoPosition
from streams.scn import FIRST_SCN, ObjectNumber, Scn

__all__ = ["Miner", "MiningStatistics"]

ROWS_MAX_DEFAULT = 4096  # rows of a batch: enough for column-wise work, few enough for caches and latency
BYTES_MAX_DEFAULT = 1 << 20  # bytes of its values: small against message limits
MARK_INTERVAL_S = 0.1  # a progress mark ten times a second is enough for watermarks
ASK_SOURCE_INTERVAL_S = 10.0  # of the names of its tables, where a rule matches none in the log; it may be away
MINED_BYTES_MAX = 64 << 20  # redo mined without a batch before a mark tells how far we are

_DECODING_ERRORS = (ProtocolError, ValueError, IndexError, KeyError, OverflowError, struct.error)
_NO_TRUNCATES = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class MiningStatistics:
    """What a miner did since it was started.

    Args:
        captured_scn: every transaction up to here is mined.
        sent_scn: end of the last batch.
        redo_bytes: bytes of redo mined.
        transactions: transactions found that were not mined before.
        transactions_dropped: found again and dropped: mined before, or sent again by the source after a break.
        rows_kept: rows that passed prefiltering.
        rows_discarded: rows that did not.
        full_evaluations: batches evaluated in full because prefiltering answered MAYBE.
        batches: batches given, progress marks aside.
        marks: progress marks given.
        last_commit_time_us: of the last transaction mined, at the source.
        labels_left_out: labels that are not tracked, because there were too many at a time.
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


class Miner:
    """Mines the redo in one folder for one capture process. Not shared between threads.

    Args:
        folder: of the segments.
        source: the site whose log it is.
        start_scn: what is committed up to here was captured before; FIRST_SCN: nothing was, begin wherever redo does.
        rules: of the capture process.
        decoder_factory: makes the decoder for a segment's stream options.
        names: what the source's site knows of the names of its tables (`redo.names`). None: names are what the log
            says, and what no rule keeps is left out.
        clock: for the pace of progress marks.
        last_call: outlives transformation functions that end the process.

    A folder without redo is no error: mining begins when there is some.
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
        self._folder = folder
        self._source = source
        self._rules = RuleEvaluation(rules, types=value_types(), clock=clock, last_call=last_call)
        self._decoder_factory = decoder_factory
        self._tables = MinedTables(self._rules)
        self._names = TableNames(source, self._tables.keeps_any, names)
        self._clock = clock or SystemClock()
        self._at_source: set[tuple[str, str]] = set()  # names, for `unmatched_rules`
        self._ask_source_at = 0.0

        self._reader: RedoReader | None = None
        self._head: SegmentHead | None = None
        self._decoder: LogDecoder | None = None
        self._dictionary = Dictionary()
        self._search = BuildSearch(folder)
        self._unmet: set[int] = set()  # objects that redo described before this life, and whose rows it has not met
        self._record: tuple[RecordHeader, NDArray[np.uint8]] | None = None
        self._record_offset = 0
        self._begin_offset = 0  # in the restart record: what is before it was mined in an earlier life

        self._unmatched: tuple[tuple[int, Scn], tuple[Rule, ...]] | None = None

        self._assembly = Assembly(source, self._tables.versions, self._tables.tags)
        self._labels = MinedLabels()
        self._start_scn = start_scn
        self._mined_commit_scn = start_scn  # commit SCN of the last transaction mined
        self._mined_scn = start_scn
        self._sent_scn = start_scn
        self._gave_at = self._clock.monotonic() - MARK_INTERVAL_S
        self._unmarked_bytes = 0
        self._given_rows = 0  # of the transaction in parts that is being given
        self._redo_bytes = self._transactions = self._dropped = self._kept = self._discarded = 0
        self._full_evaluations = self._batches = self._marks = self._last_commit_time_us = 0

    # ------------------------------------------------------------------ what others ask

    @property
    def captured_scn(self) -> Scn:
        """Every transaction that committed up to here is mined (given, waiting for its batch, or discarded)."""
        return self._mined_scn

    @property
    def sent_scn(self) -> Scn:
        """`through_scn` of the last batch given."""
        return self._sent_scn

    @property
    def mark_due_at(self) -> float | None:
        """When (clock, monotonic) a progress mark that `next_batch` held back will be given; None: none waits."""
        if self._mined_scn <= self._sent_scn or self._assembly.is_in_parts:
            return None
        return self._gave_at + MARK_INTERVAL_S

    @property
    def unmatched_rules(self) -> tuple[Rule, ...]:
        """Positive rules that match no table that the log or its source knows: probably a misspelt name."""
        known = (len(self._tables.versions), self._dictionary.build.scn)
        if self._unmatched is None or self._unmatched[0] != known:
            self._unmatched = (known, self._rules.unmatched(self._dictionary.names()))
        unmatched = self._unmatched[1]
        if not unmatched:
            return ()
        # The log speaks of a table with its first change.
        if self._clock.monotonic() >= self._ask_source_at:
            self._ask_source_at = self._clock.monotonic() + ASK_SOURCE_INTERVAL_S
            self._at_source = self._names.at_source()
        return tuple(rule for rule in unmatched if not any(rule.matches_object(*name) for name in self._at_source))

    def take_labelled(self) -> tuple[MinedLabel, ...]:
        """What became of labelled transactions that the batches given so far cover, since the last call."""
        return self._labels.take_finished()

    def statistics(self) -> MiningStatistics:
        """Return what the miner did so far."""
        return MiningStatistics(
            captured_scn=self._mined_scn,
            max_checkpoint_scn=FIRST_SCN if self._head is None else self._head.last_commit_scn,
            sent_scn=self._sent_scn,
            redo_bytes=self._redo_bytes,
            transactions=self._transactions,
            transactions_dropped=self._dropped,
            rows_kept=self._kept,
            rows_discarded=self._discarded,
            full_evaluations=self._full_evaluations,
            batches=self._batches,
            marks=self._marks,
            last_commit_time_us=self._last_commit_time_us,
            labels_left_out=self._labels.left_out,
        )

    def close(self) -> None:
        """Let go of the files; idempotent."""
        if self._reader is not None:
            self._reader.close()

    def next_batch(
        self, durable: RedoPosition, *, bytes_max: int = BYTES_MAX_DEFAULT, rows_max: int = ROWS_MAX_DEFAULT
    ) -> LcrBatch | None:
        """Mine on, until a batch is full or all durable redo is mined.

        Args:
            durable: how far redo may be read.
            bytes_max: bytes of values after which a batch is cut; a batch exceeds them by one redo record at most.
            rows_max: rows of a batch, never exceeded.

        Returns:
            A batch or a progress mark; None when all durable redo is mined and nothing is to be told (now, see
            `mark_due_at`).

        Raises:
            RedoError: redo is damaged; names segment, offset and SCNs.
            CaptureError: its bytes cannot be decoded; names the SCN.
            LogGone: the redo needed is not there any more.
            TableLeftRules: the next change is of such a table; everything before it was given. Begin again with another
                miner.
        """
        if self._reader is None and not self._begin(durable):
            return None
        if self._sent_scn < self._start_scn:
            # Nothing was sent before: what the log begins with is told, lest it count as everything from the beginning.
            self._sent_scn = self._start_scn
            self._marks += 1
            return LcrBatch(source=self._source, previous_scn=FIRST_SCN, through_scn=self._start_scn)
        while True:
            is_full = self._assembly.row_count >= rows_max or self._assembly.value_bytes >= bytes_max
            more = not is_full and self._advance(durable, rows_max - self._assembly.row_count)
            if more and self._unmarked_bytes < MINED_BYTES_MAX:
                continue
            batch = self._assembly.cut(self._sent_scn, self._mined_scn, is_full=is_full)
            if batch is not None:
                batch = self._evaluated(batch)
            if batch is None:
                batch = self._mark(is_due=more)
            if batch is not None:
                return self._give(batch)
            if not more and not is_full:
                if self._names.left is not None:
                    raise self._names.left
                return None
            self._unmarked_bytes = 0  # inside a transaction larger than the bound: nothing to tell yet

    def _evaluated(self, batch: LcrBatch) -> LcrBatch | None:
        """The batch after full evaluation, where prefiltering did not decide; None: it became a mark."""
        if self._rules.is_undecided(batch):
            self._full_evaluations += 1
            batch = self._rules.filter(batch)
        return None if batch.is_progress_mark else self._positioned(batch)

    def _positioned(self, batch: LcrBatch) -> LcrBatch:
        """The batch with its place in a transaction in parts.

        Functions make several rows of one, or none, so what the log has does not count.
        """
        before = self._given_rows if batch.continues else 0
        is_part = len(batch.transactions) > 0 and int(batch.transactions.commit_scn[-1]) == 0
        self._given_rows = before + batch.row_count if is_part else 0
        return batch if batch.first_position == before else replace(batch, first_position=before)

    def _mark(self, *, is_due: bool) -> LcrBatch | None:
        """A progress mark, if there is progress to tell and it is time."""
        due_at = self.mark_due_at
        if due_at is None or not (is_due or self._clock.monotonic() >= due_at):
            return None
        return LcrBatch(source=self._source, previous_scn=self._sent_scn, through_scn=self._mined_scn)

    def _give(self, batch: LcrBatch) -> LcrBatch:
        self._sent_scn = batch.through_scn
        self._gave_at = self._clock.monotonic()
        self._unmarked_bytes = 0
        if batch.is_progress_mark:
            self._marks += 1
        else:
            self._batches += 1
        return self._labels.give(batch)

    # ------------------------------------------------------------------ reading redo

    def _advance(self, durable: RedoPosition, rows_max: int) -> bool:
        """Decode a bit more, at most `rows_max` rows; False when all durable redo is mined."""
        if self._names.left is not None or (self._record is None and not self._next_record(durable)):
            return False
        if self._record is not None:
            self._decode(*self._record, rows_max)
        return True

    def _next_record(self, durable: RedoPosition) -> bool:
        """Read the next record and do what it says, except decoding DATA; False at the durable end."""
        reader = self._reader
        assert reader is not None
        header = reader.next_header(durable)
        if header is None:
            return False
        # A head's own dictionary says what is known already.
        if (
            header.type is RecordType.DICTIONARY
            and header.number >= HEAD_RECORDS
            and not self._take_dictionary(reader, header, durable)
        ):
            return False
        self._redo_bytes += header.record_bytes
        self._unmarked_bytes += header.record_bytes
        if header.type is RecordType.DATA:
            data = np.frombuffer(reader.payload(header), np.uint8)
            self._record, self._record_offset = (header, data), self._begin_offset
            self._begin_offset = 0
            if self._record_offset >= data.shape[0]:
                self._finish_record(header)
        elif header.type is RecordType.SEGMENT:
            self._enter(decode_head(reader.payload(header)), reader.segment)
        elif header.type is RecordType.RESUME:
            self._resume()
        elif header.type is RecordType.PROGRESS:
            reader.payload(header)
            self._mined_scn = max(self._mined_scn, header.end_scn)
        reader.skip(header)
        return True

    def _take_dictionary(self, reader: RedoReader, header: RecordHeader, durable: RedoPosition) -> bool:
        """Take in a build, also one that is awaited from here on; False: that one is not written yet."""
        found = decode_dictionary(reader.payload(header))
        build = self._search.find(reader, durable) if isinstance(found, AwaitedBuild) else found
        if build is None:
            return False
        self._dictionary.add_found(build)
        return True

    def _finish_record(self, header: RecordHeader) -> None:
        self._record = None
        self._mined_scn = max(self._mined_scn, header.end_scn)

    def _enter(self, head: SegmentHead, number: int) -> None:
        """A new segment begins; an open transaction goes on into it.

        Args:
            head: of the segment.
            number: in the name of its file.
        """
        if head.number != number:
            raise RedoError(
                f"redo segment {number} is not there: its file holds segment {head.number}",
                hint=RESTORE_SEGMENT,
                segment=number,
            )
        if head.source != self._source:
            raise RedoError(
                f"redo segment {head.number} is of site {head.source}, not of {self._source}",
                hint="give every site a folder of its own",
                segment=head.number,
            )
        if self._head is None or self._head.options != head.options:
            self._decoder = self._decoder_factory(head.options)
        self._head = head

    def _resume(self) -> None:
        """A new stream begins in redo: what is open comes again, whole."""
        self._assembly.drop_open()
        self._labels.drop_open()
        assert self._decoder is not None
        self._decoder.reset()

    def _describe(self, payload: bytes) -> tuple[TableVersion, ...]:
        assert self._decoder is not None
        return self._decoder.describe(np.frombuffer(payload, np.uint8))

    # ------------------------------------------------------------------ decoding and prefiltering

    def _decode(self, header: RecordHeader, data: NDArray[np.uint8], rows_max: int) -> None:
        """Decode the next rows of the current record."""
        decoder = self._decoder
        assert decoder is not None
        try:
            chunk = decoder.decode(data, self._record_offset, rows_max=rows_max)
        except _DECODING_ERRORS as error:
            raise self._undecodable(header, str(error) or type(error).__name__) from error
        if chunk.consumed == 0 and not chunk.versions and not chunk.command.shape[0]:
            raise self._undecodable(header, "the decoder made no progress")
        self._record_offset += chunk.consumed
        if chunk.versions:
            self._names.look_again()
        for description in chunk.versions:
            self._use(self._dictionary.describe(description, header.last_commit_scn))
        if self._names.left is not None:
            return  # what is in the chunk comes again, in the next life
        if chunk.transaction_id.shape[0]:
            self._take(chunk, data, header)
        if self._record_offset >= data.shape[0]:
            self._finish_record(header)

    def _undecodable(self, header: RecordHeader, what: str) -> CaptureError:
        return undecodable(self._source, header, self._record_offset, what)

    def _take(self, chunk: DecodedChunk, data: NDArray[np.uint8], header: RecordHeader) -> None:
        """Drop what was mined before, prefilter the rest, and hand it to the assembly."""
        commit_scn = chunk.commit_scn
        mined = np.maximum.accumulate(np.concatenate(([self._mined_commit_scn], commit_scn)))
        dropped = chunk.order_scn < mined[:-1]

        if len(self._tables.tags) > TAGS_KEPT:
            waiting = self._assembly.tags
            self._assembly.tags = self._tables.forget_tags(np.unique(waiting[waiting >= 0]))[waiting]
        # A chunk lists every tag that its decoder has met; few of them are its own.
        tags, numbers = np.unique(chunk.tag, return_inverse=True)
        places = [-1 if number < 0 else self._tables.tag_place(chunk.tags[number]) for number in tags]
        tag = np.array(places, np.int64)[numbers]
        row_count = chunk.command.shape[0]
        row_slot = np.empty(row_count, np.int32)
        kept = np.empty(row_count, np.int64)
        kept_rows = np.zeros(commit_scn.shape[0], np.int64)
        found, truncates = self._classify(chunk, dropped, tag, (row_slot, kept, kept_rows))
        if self._names.left is not None:
            return  # what is in the chunk comes again, in the next life
        if found[ERROR]:
            raise misfit(self._source, chunk, found)
        self._mined_commit_scn = Scn(int(mined[-1]))
        self._mined_scn = max(self._mined_scn, self._mined_commit_scn)
        self._labels.find(chunk, dropped)
        self._kept += int(found[KEPT_ROWS])
        self._discarded += int(found[DISCARDED_ROWS])
        self._dropped += int((dropped & (commit_scn > 0)).sum())
        taken = ~dropped
        self._transactions += int((taken & (commit_scn > 0)).sum())
        if commit_scn[0]:
            self._last_commit_time_us = int(chunk.commit_time_us[commit_scn > 0][-1])
        rows = None
        if found[KEPT_ROWS]:
            rows = self._rows(chunk, data, row_slot, kept[: found[KEPT_ROWS]], int(found[KEPT_BYTES]), truncates)
        if not taken.any():
            return
        continues = chunk.continues and bool(taken[0])
        if continues and not self._assembly.is_open:
            raise self._undecodable(header, "a transaction goes on that never began")
        self._assembly.add(
            rows,
            MinedTransactions(
                transaction_id=chunk.transaction_id[taken],
                order_scn=chunk.order_scn[taken],
                commit_scn=commit_scn[taken],
                commit_time_us=chunk.commit_time_us[taken],
                tag=tag[taken],
                rows=kept_rows[taken],
                continues=continues,
            ),
        )

    def _classify(
        self,
        chunk: DecodedChunk,
        dropped: NDArray[np.bool_],
        tag: NDArray[np.int64],
        out: tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]],
    ) -> tuple[NDArray[np.int64], dict[int, tuple[tuple[int, ...], bool, bool]]]:
        """Find the rows to keep, after deciding under which names tables go on that are met for the first time in this life.

        Not when mining begins: a table that left the rules may never change again, and would hold up all others.

        Args:
            chunk: what was decoded.
            dropped: bool[t], see `classify`.
            tag: int64[t], see `classify`.
            out: see `classify`: `row_slot`, `kept`, `kept_rows`.

        Returns:
            What `classify` found, and the TRUNCATEs kept.
        """
        for is_known in (False, True):
            truncate_keep, truncates = self._truncates(chunk, tag, dropped)
            found = np.zeros(6, np.int64)
            classify(
                chunk.command,
                chunk.object_number,
                chunk.old_first,
                chunk.new_first,
                chunk.value_length,
                chunk.first_row,
                dropped.astype(np.uint8),
                tag,
                *self._tables.objects(),
                truncate_keep,
                *out,
                found,
            )
            if is_known or found[ERROR] != UNKNOWN_OBJECT or not self._unmet:
                break
            taken = ~np.repeat(dropped, np.diff(chunk.first_row)) & (chunk.command != Command.TRUNCATE)
            for number in self._unmet.intersection(np.unique(chunk.object_number[taken]).tolist()):
                self._meet(number)
        return found, truncates

    def _meet(self, number: int) -> KnownTable | None:
        """The table version in force of an object whose rows are next, under the name that it goes on with."""
        known = self._dictionary.current(ObjectNumber(number))
        if known is None or number not in self._unmet:
            return known
        self._use(known)
        return self._dictionary.current(ObjectNumber(number))

    def _rows(
        self,
        chunk: DecodedChunk,
        data: NDArray[np.uint8],
        row_slot: NDArray[np.int32],
        kept: NDArray[np.int64],
        value_bytes: int,
        truncates: dict[int, tuple[tuple[int, ...], bool, bool]],
    ) -> MinedRows:
        """The rows kept, without the log bytes of the others."""
        slot = row_slot[kept]
        place = {int(row): number for number, row in enumerate(kept)} if truncates else {}
        rows = MinedRows(
            data=data,
            slot=slot,
            command=chunk.command[kept],
            old_image=chunk.old_image[kept],
            old_first=chunk.old_first[kept],
            new_first=chunk.new_first[kept],
            value_offset=chunk.value_offset,
            value_length=chunk.value_length,
            value_binary=chunk.value_binary,
            value_bytes=value_bytes,
            truncates={place[row]: what for row, what in truncates.items() if row in place},
        )
        columns = np.array([len(table.columns) for table in self._tables.versions] + [0], np.int64)[slot]
        return rows.without_waste(columns, has_all_rows=kept.shape[0] == row_slot.shape[0])

    def _truncates(
        self, chunk: DecodedChunk, tag: NDArray[np.int64], dropped: NDArray[np.bool_]
    ) -> tuple[NDArray[np.uint8], dict[int, tuple[tuple[int, ...], bool, bool]]]:
        """Which TRUNCATE rows are kept, and the tables (places) each truncates."""
        if not chunk.truncates:
            return _NO_TRUNCATES, {}
        keep = np.zeros(chunk.command.shape[0], np.uint8)
        kept: dict[int, tuple[tuple[int, ...], bool, bool]] = {}
        for row, (objects, cascade, restart_identity) in chunk.truncates.items():
            transaction = int(np.searchsorted(chunk.first_row, row, side="right")) - 1
            if dropped[transaction]:
                continue
            order_scn = Scn(int(chunk.order_scn[transaction]))
            slots = self._truncated(objects, order_scn, int(tag[transaction]))
            if slots:
                keep[row] = 1
                kept[row] = (slots, cascade, restart_identity)
        return keep, kept

    def _truncated(self, objects: tuple[int, ...], order_scn: Scn, tag: int) -> tuple[int, ...]:
        """Places of the tables that a TRUNCATE of `objects` means and the rules keep; `tag`: place, -1 for NULL.

        The source truncates a partitioned table by truncating its partitions. Only when all of them are there is
        it the whole table; else each is the table with that partition, for truncating all of it would be a loss.
        """
        slots: list[int] = []
        for number in objects:
            known = self._meet(number)
            if known is None or not self._tables.keeps(known.table)[tag]:
                continue
            table = known.table
            if known.is_partition and not self._dictionary.covers_all_partitions(number, objects):
                table = self._dictionary.truncated(known, order_scn)
            if table.partition is not None or not any(
                _same_name(self._tables.versions[other], table) for other in slots
            ):
                slots.append(self._tables.place(table))
        return tuple(slots)

    def _use(self, known: KnownTable) -> None:
        """Refer an object's rows to this version from now on."""
        resolved = self._names.resolve(known)
        self._unmet.discard(known.table.object_number)
        if resolved is not known:
            self._dictionary.rename(resolved)
        self._tables.use(resolved.table)

    # ------------------------------------------------------------------ beginning

    def _begin(self, durable: RedoPosition) -> bool:
        """Go to the restart point, taking in the dictionary on the way; False when there is no redo to be read yet.

        Only headers are read, and of the payloads those that describe tables.
        """
        if durable.segment == 0:
            return False
        point = find_restart_point(self._folder, self._source, self._start_scn, durable)
        if point is None:
            return False
        if self._start_scn == FIRST_SCN:
            self._start_scn = self._mined_commit_scn = self._mined_scn = point.start_scn
        reader, self._search = RedoReader(self._folder, point.first_segment), BuildSearch(self._folder)
        while (header := reader.next_header(durable)) is not None:
            is_restart = (reader.segment, reader.offset) == (point.segment, point.offset)
            if is_restart and not point.begin_offset:
                break
            if header.type is RecordType.SEGMENT:
                self._enter(decode_head(reader.payload(header)), reader.segment)
            elif header.type is RecordType.DICTIONARY or header.has_descriptions:
                payload = reader.payload(header)
                payload = payload[: point.begin_offset] if is_restart else payload
                self._dictionary = read_dictionary_record(self._dictionary, header, payload, self._describe)
            if is_restart:
                break
            reader.skip(header)
        if self._dictionary.awaited is not None:
            found = self._search.find(reader, durable)
            if found is None:
                return False
            self._dictionary.add_found(found)
        self._unmet = {known.table.object_number for known in self._dictionary.current_tables()}
        self._reader, self._begin_offset = reader, point.begin_offset
        return True


def _same_name(one: TableVersion, other: TableVersion) -> bool:
    return (one.owner, one.name) == (other.owner, other.name)
