"""Apply reader: selects what must be applied from the dequeued batches.

Longer than 500 lines: each reason to leave a change out must be seen beside the others.

Job
    Take batches in order; drop changes that are already applied, that the instantiation copied, or that the rules of
    the apply process discard; pass the rest on as runs of whole transactions, or as parts of a large one.

Main path
    ApplyReader.offer -> (drop, evaluate, fit) -> ApplyReader.take -> ApplyCoordinator.accept.

States (V$STREAMS_APPLY_READER.STATE)
    INITIALIZING        until the first batch, memory only.
    IDLE                nothing to take, memory only.
    DEQUEUE MESSAGES    a batch was taken, memory only.
    SCHEDULE MESSAGES   pieces wait for the coordinator, memory only.
    PAUSED: WAITING FOR ALTER   a transaction does not fit its destination table; everything before it was passed on. The
                        reader checks again only when all of that is applied: later changes may have other names.

Durable when
    Nothing here is durable: after a restart the reader begins at the low watermark, and recognises by
    `order_scn` what is applied above it.

Worked flow (low watermark 20, applied above: 30..40)
    batch 20..45 with T1 order 18, T2 order 25, T3 order 35, T4 order 42
    T1 < 20 is dropped, T2 goes on, 30 <= T3 < 40 is dropped, T4 goes on: one run 20..45 with T2 and T4

Tables that are copied beside
    A table whose copy is not finished is left out: all its rows are dropped. When its copy, as of SCN 100, is equal,
    and the low watermark is 170, it joins: the low watermark goes back to 100 and everything from there on comes again.
    Up to 170 (`ApplyProgress.ahead_scn`) only the rows of joining tables go on, each table's from its own instantiation
    SCN; everything of the others is applied there. A kill at any moment changes nothing of this: both SCNs are recorded
    with the low watermark.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.errors import DatabaseError, ProtocolError, UnfitTableError
from headrace.lcr.batch import LcrBatch, TableVersion
from headrace.lcr.cutting import renamed, row_transactions, select_rows, slice_transactions
from headrace.lcr.scn import Scn
from headrace.lcr.tracking import TrackLog
from headrace.rules.conditions.nodes import ConditionError
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.transformations.transformation import TransformationError
from spark_apply.dependencies.hashes import KeyHashes, hash_batch
from spark_apply.tables.copied import emptied_tables, without_copied
from spark_apply.tables.fits import TableVersions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.databases.ports import ApplyProgress, Instantiation, PartOf
    from headrace.lcr.table_name import TableName
    from spark_apply.tables.arriving import ArrivingTables
    from spark_apply.tables.fits import TableFits

__all__ = ["ApplyReader", "LargeDropped", "LargePart", "Mark", "Piece", "ReaderStatistics", "Run"]

_NO_KEY = (0,)  # in place of a key's seed: 64 bits of a hash
_SEVERAL: tuple[int, ...] = ()  # a key changed its form within a transaction: nothing may follow before it is applied


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Whole transactions to apply.

    Args:
        batch: the transactions.
        data: the serialized batch; None if the batch was changed after it arrived.
        hashes: their key hashes, for dependencies.
        through_scn: the last SCN that the run covers.
    """

    batch: LcrBatch
    data: bytes | None
    hashes: KeyHashes
    through_scn: Scn


@dataclass(frozen=True, slots=True, kw_only=True)
class LargePart:
    """A part of a transaction that is larger than a batch.

    Args:
        batch: its rows.
        data: see `Run`.
        hashes: see `Run`; of one transaction.
        order_scn: identifies the transaction.
        is_first: it begins here.
        is_last: it is complete with this part.
        through_scn: the last SCN that it covers; only with the last part.
    """

    batch: LcrBatch
    data: bytes | None
    hashes: KeyHashes
    order_scn: Scn
    is_first: bool
    is_last: bool
    through_scn: Scn


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeDropped:
    """The open transaction will not be completed: its source sends it again."""

    order_scn: Scn


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Nothing to apply up to here."""

    through_scn: Scn


Piece = Run | LargePart | LargeDropped | Mark


@dataclass(slots=True)
class ReaderStatistics:
    """Totals since the start."""

    batches: int = 0
    transactions: int = 0  # complete ones dequeued
    rows: int = 0
    rows_applied_before: int = 0  # dropped: applied in an earlier incarnation
    rows_instantiated: int = 0  # dropped: in a copy, or left out until their table has joined
    rows_discarded: int = 0  # dropped by the rules
    returned_changes: int = 0  # rows of this site's own changes that came home


@dataclass(frozen=True, slots=True)
class _Offered:
    batch: LcrBatch
    data: bytes | None


@dataclass(slots=True)
class _Open:
    order_scn: Scn
    sent: bool = field(default=False)


class ApplyReader:
    """Turns batches into pieces to apply. It holds what it was offered, so offer a batch only while `wants` is true.

    Args:
        source: the site whose batches arrive.
        progress: the progress recorded at the destination.
        rules: of the apply process.
        fits: fits of the destination's tables.
        tables: which tables arrive, and from where each is applied.
        returned_from: names of the apply processes of the source that apply this site's own changes: what
            they tagged comes home.
        tracks: takes notes of labelled transactions.
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
    ) -> None:
        self._tracks = tracks or TrackLog()
        self._source, self._rules, self._fits = source, rules, fits
        self._tables, self._returned = tables, frozenset(returned_from)
        self._pieces: deque[Piece] = deque()
        self._waiting: deque[_Offered] = deque()  # transactions that do not fit yet, and the rest of their batch
        self._versions = TableVersions()
        self._key_forms: dict[int, tuple[int, ...]] = {}  # see `_forms_of`, of what was passed on so far
        self.statistics = ReaderStatistics()
        self.restart(progress)

    # ------------------------------------------------------------------ interface

    def restart(self, progress: ApplyProgress) -> None:
        """Restart at the low watermark; drop what was offered and not taken, and the descriptions of tables."""
        self._fits.forget()
        self._progress = progress
        self._through = progress.low_watermark
        self._pieces.clear()
        self._waiting.clear()
        self._open: _Open | None = None
        self.unfit: UnfitTableError | None = None
        self._resubscribe = False
        self._must_settle = False
        self._key_forms.clear()
        self._started = False

    @property
    def needed_scn(self) -> Scn:
        """Where to (re)start dequeuing: the `through_scn` of the last complete transactions offered."""
        return self._through

    @property
    def missing_tables(self) -> tuple[str, ...]:
        """See `TableFits.missing_tables`."""
        return self._fits.missing_tables

    @property
    def wants(self) -> bool:
        """Whether another batch may be offered."""
        return not self._pieces and not self._waiting and not self._resubscribe

    @property
    def state(self) -> str:
        """The manuals' state."""
        if self.unfit is not None:
            return "PAUSED: WAITING FOR ALTER"
        if self._pieces:
            return "SCHEDULE MESSAGES"
        if not self._started:
            return "INITIALIZING"
        return "IDLE" if self._open is None else "DEQUEUE MESSAGES"

    @property
    def must_settle(self) -> bool:
        """Whether waiting transactions must wait until everything passed on is applied: then call `retry_unfit`."""
        return self._must_settle and not self._pieces

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
            leave_out: names at the destination of tables whose rows are left out from now on.
            join: copied tables whose rows are applied from their instantiation SCN on.
            parts: partitions that are left out, too.
            admit: see `ArrivingTables.admit`.
        """
        self._tables.leave_out(leave_out, parts)
        self._tables.join(join)
        self._tables.admit(admit or {})

    def all_joined(self) -> None:
        """Every table that was joining is where the others are."""
        self._tables.all_joined()

    def emptied_scn(self, table: tuple[str, str]) -> Scn | None:
        """See `ArrivingTables.emptied_scn`."""
        return self._tables.emptied_scn(table)

    @property
    def truncated_parts(self) -> dict[PartOf, Scn]:
        """See `ArrivingTables.truncated_parts`."""
        return dict(self._tables.truncated_parts)

    @property
    def truncated_tables(self) -> dict[str, tuple[Scn, frozenset[int]]]:
        """See `ArrivingTables.truncated`."""
        return dict(self._tables.truncated)

    @property
    def strangers(self) -> frozenset[TableName]:
        """Tables whose rows are left out because they were never copied here."""
        return frozenset(self._tables.strangers)

    @property
    def must_resubscribe(self) -> bool:
        """Whether the caller must dequeue again from `needed_scn`, because an open transaction must be read from its beginning."""
        return self._resubscribe

    def resubscribed(self) -> None:
        """The queue sends again from `needed_scn`."""
        self._resubscribe = False

    def offer(self, batch: LcrBatch, data: bytes | None) -> None:
        """Take the next batch.

        Args:
            batch: decoded.
            data: the original bytes; None if the batch was changed since.

        Raises:
            ProtocolError: a batch before it is missing, or it is from another source.
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
        if batch.continues and (self._open is None or self._order_scn(batch, 0) != self._open.order_scn):
            raise ProtocolError("a part of a transaction came without its beginning", found_scn=int(batch.previous_scn))
        if not batch.continues and not batch.is_progress_mark:
            self._drop_open()
        self._count(batch)
        for label in batch.labels:
            self._tracks.note(label, self._source, "DEQUEUED")
        self._through = batch.through_scn
        self._note_versions(batch.tables)
        self._split(batch, data)

    def take(self) -> Piece | None:
        """The next piece to apply; None when there is none."""
        return self._pieces.popleft() if self._pieces else None

    def retry_unfit(self) -> bool:
        """Check waiting transactions again; True: the reader continues. Everything passed on must be applied.

        Raises:
            DatabaseUnavailable: the destination did not answer; nothing has changed.
        """
        self._fits.forget()
        self._key_forms.clear()
        waiting, unfit, had_to_settle = list(self._waiting), self.unfit, self._must_settle
        self._waiting.clear()
        self.unfit, self._must_settle = None, False
        for position, offered in enumerate(waiting):
            try:
                self._check_fit(offered.batch, offered.data)
            except DatabaseError:
                self._waiting.extend(waiting[position:])
                self.unfit, self._must_settle = unfit, had_to_settle
                raise
        return self.unfit is None

    # ------------------------------------------------------------------ inside

    @staticmethod
    def _order_scn(batch: LcrBatch, transaction: int) -> Scn:
        return Scn(int(batch.transactions.order_scn[transaction]))

    def _note_versions(self, tables: Sequence[TableVersion]) -> None:
        """Record the versions as their rows are applied; what cannot be transformed says so when a row of it comes."""
        for table in tables:
            with contextlib.suppress(TransformationError):
                self._versions.note((self._rules.reshaped(table),))

    def _drop_open(self) -> None:
        if self._open is not None:
            if self._open.sent:
                self._pieces.append(LargeDropped(order_scn=self._open.order_scn))
            self._open = None

    def _count(self, batch: LcrBatch) -> None:
        statistics = self.statistics
        statistics.batches += 1
        statistics.transactions += len(batch.transactions) - int(batch.is_open)
        statistics.rows += batch.row_count
        if self._returned and batch.tags:
            home = np.array([tag.apply in self._returned for tag in batch.tags] + [False])
            returned = home[batch.transactions.tag]  # a NULL tag is -1: the False at the end
            statistics.returned_changes += int(np.diff(batch.transactions.first_row)[returned].sum())

    def _split(self, batch: LcrBatch, data: bytes | None) -> None:
        """Pass a batch on; an open transaction after complete ones becomes a separate piece."""
        count = len(batch.transactions)
        if batch.is_progress_mark:
            self._pieces.append(Mark(through_scn=batch.through_scn))
        elif count > 1 and (batch.is_open or batch.continues):
            cut = count - 1 if batch.is_open else 1
            self._split(slice_transactions(batch, 0, cut), None)
            self._split(slice_transactions(batch, cut, count), None)
        else:
            self._pass_on(batch, data)

    def _pass_on(self, batch: LcrBatch, data: bytes | None) -> None:
        filtered = self._filtered(batch)
        self._check_fit(filtered, data if filtered is batch else None)

    def _check_fit(self, batch: LcrBatch, data: bytes | None) -> None:
        if self._waiting:
            self._waiting.append(_Offered(batch, data))
            return
        known = self._without_strangers(batch)
        batch, data = known, data if known is batch else None
        named, unfit = self._fitted(batch)
        passing = named if unfit < 0 else slice_transactions(named, 0, unfit) if unfit else None
        if batch.continues and self._open is None and unfit < 0:
            # Its whole transaction must be read again, even if this is the last part, which has moved `_through`.
            self._resubscribe = True
            self._through = batch.previous_scn
        elif passing is not None and not self._may_follow(passing):
            self._wait(batch, data)
        else:
            if passing is not None:
                self._emit(passing, data if passing is batch else None)
            if unfit >= 0:
                # Keep the original: after the ALTER the destination may have other names than now.
                rest = slice_transactions(batch, unfit, len(batch.transactions))
                self._waiting.append(_Offered(rest, None if unfit else data))
                if self._open is not None and self._open.sent:
                    # Its written part holds locks that the ALTER needs: it must be read again.
                    self._drop_open()

    def _wait(self, batch: LcrBatch, data: bytes | None) -> None:
        """Wait for what was passed on; if keys change their form inside the batch, transaction by transaction."""
        self.unfit = None
        count = len(batch.transactions)
        pieces = [(batch, data)] if count == 1 else [(slice_transactions(batch, k, k + 1), None) for k in range(count)]
        self._waiting.extend(_Offered(piece, piece_data) for piece, piece_data in pieces)
        self._must_settle = True

    def _may_follow(self, batch: LcrBatch) -> bool:
        """Whether hashes show the dependencies on what was passed on.

        Every table must have the same name as there, every key the same canonical form, and the same one find rows.

        A large transaction waits for everything before it, and everything after waits for it.
        """
        forms = self._forms_of(batch)
        if not (batch.is_open or batch.continues):
            several = len(batch.transactions) > 1
            for seed, form in forms.items():
                if self._key_forms.get(seed, form) != form or (
                    form == _SEVERAL and (several or seed in self._key_forms)
                ):
                    return False
        self._key_forms.update(forms)
        return True

    def _forms_of(self, batch: LcrBatch) -> dict[int, tuple[int, ...]]:
        """What each table is called, by its number.

        Canonical form of each key, by its seed, and the key that finds rows, by its table (none: its INSERTs are in no
        order); without tables whose transactions run serially anyway.

        That key changes with the replica identity: rows that are found by one have no hashes of the other's old values.
        All hashes of a table are others under another name.
        """
        forms: dict[int, tuple[int, ...]] = {}
        used = {group.table for group in batch.groups} | {
            table for truncate in batch.truncates for table in truncate.tables
        }
        for table in sorted(used):
            fit = self._fits.fit_or_error(batch.tables[table])
            number = int(fit.version.table_number)
            mine: dict[int, tuple[int, ...]] = {-number: (fit.touch,)} if number else {}
            if not fit.is_serialised:
                mine[fit.touch] = (fit.hashed_keys[0].seed,)
                mine |= {key.seed: key.equalities for key in fit.hashed_keys}
            elif (
                fit.has_free_inserts
            ):  # only use of the table shows them: what is found by a key does not depend on that
                mine[fit.touch] = _NO_KEY
            for seed, form in mine.items():
                if forms.setdefault(seed, form) != form:
                    forms[seed] = _SEVERAL
        return forms

    def _filtered(self, batch: LcrBatch) -> LcrBatch:
        """Drop rows that are applied, that the instantiation copied, or that the rules discard."""
        kept = ~self._applied(batch.transactions.order_scn)[row_transactions(batch.transactions)]
        self.statistics.rows_applied_before += int((~kept).sum())
        new = select_rows(batch, kept)
        # of tables that are left out: told when their rows are applied
        with contextlib.suppress(ConditionError, TransformationError):
            for version, scn in emptied_tables(new, self._rules):
                self._tables.note_emptied(version, scn)
        left = without_copied(new, self._first_scn_of_arriving)
        filtered = self._rules.filter(left)
        if filtered.truncates:
            owners = row_transactions(filtered.transactions)
            for truncate in filtered.truncates:
                self._tables.note_truncated(
                    (filtered.tables[table] for table in truncate.tables),
                    self._order_scn(filtered, int(owners[truncate.row_number])),
                )
        if batch.labels:
            self._note_dropped(batch, new, "applied before")
            self._note_dropped(new, left, "as of its instantiation SCN the copy has it, or its table is not copied yet")
            self._note_dropped(left, filtered, "by the rules of the apply process, or of a client on the way")
        self.statistics.rows_instantiated += new.row_count - left.row_count
        self.statistics.rows_discarded += left.row_count - filtered.row_count
        return filtered

    def _note_dropped(self, before: LcrBatch, after: LcrBatch, why: str) -> None:
        """Note which rows of labelled transactions were left out."""
        rows = {(label.text, label.order_scn): label.rows for label in after.labels}
        for label in before.labels:
            if (dropped := label.rows - rows.get((label.text, label.order_scn), 0)) > 0:
                self._tracks.note(label, self._source, "DISCARDED", detail=why, rows=dropped)

    def _applied(self, order_scn: NDArray[np.int64]) -> NDArray[np.bool_]:
        # Applied up to X means order_scn < X: commit records do not overlap.
        applied = order_scn < self._progress.low_watermark
        for above in self._progress.above:
            applied |= (order_scn >= above.after) & (order_scn < above.through)
        return applied

    def _first_scn_of_arriving(self, version: TableVersion) -> int:
        """Of a table as it comes, before its own name here is given to it."""
        return self._first_scn(self._rules.named(version))

    def _first_scn(self, version: TableVersion) -> int:
        return self._tables.first_scn(version, self._progress.ahead_scn)

    def _without_strangers(self, batch: LcrBatch) -> LcrBatch:
        """Find out which tables the unknown ones are that the rules want.

        Rows of those that were never copied here are left out.
        """
        used = {group.table for group in batch.groups} | {
            table for truncate in batch.truncates for table in truncate.tables
        }
        unknown = [batch.tables[table] for table in sorted(used) if self._tables.is_unknown(batch.tables[table])]
        for version in unknown:
            self._tables.resolve(version)
        known = without_copied(batch, self._first_scn) if unknown else batch
        self.statistics.rows_instantiated += batch.row_count - known.row_count
        return known

    def _fitted(self, batch: LcrBatch) -> tuple[LcrBatch, int]:
        """The batch with the destination's column names, and its first transaction that does not fit; -1: all fit.

        Rows that were written before a column was renamed can arrive after the destination was altered: in one
        transaction with the ALTER, or held up behind it.
        """
        used: list[tuple[int, int]] = [(int(group.row_numbers[0]), group.table) for group in batch.groups]
        truncated = [(truncate.row_number, table) for truncate in batch.truncates for table in truncate.tables]
        used += truncated
        tables = list(batch.tables)
        unfit = -1
        for row, table in sorted(used):
            try:
                if (row, table) in truncated:
                    self._tables.check_truncate(
                        tables[table],
                        self._order_scn(
                            batch, int(np.searchsorted(batch.transactions.first_row, row, side="right")) - 1
                        ),
                    )
                tables[table] = self._fitting(tables[table])
            except UnfitTableError as error:
                self.unfit = error
                unfit = int(np.searchsorted(batch.transactions.first_row, row, side="right")) - 1
                break
        return renamed(batch, tables), unfit

    def _fitting(self, version: TableVersion) -> TableVersion:
        """The version with names that fit the destination.

        Raises:
            UnfitTableError: it does not fit under any names that its columns have had since.
        """
        self._tables.check_name(version)
        renamed = [] if self._tables.lacks_columns(version) else list(self._versions.renamed(version))
        for found in renamed:
            # Another column got a column's old name: once the destination has both, the older rows would fit wrongly.
            if found.is_ambiguous and self._does_fit(found.newer) and self._does_fit(found.version):
                return found.version
        try:
            self._fits.fit(version)
        except UnfitTableError:
            for found in renamed:
                if self._does_fit(found.version):
                    return found.version
            self._fits.fit_or_error(version)
        return version

    def _does_fit(self, version: TableVersion) -> bool:
        with contextlib.suppress(UnfitTableError):
            self._fits.fit(version)
            return True
        return False

    def _emit(self, batch: LcrBatch, data: bytes | None) -> None:
        if not batch.is_open and not batch.continues:
            if batch.row_count == 0:
                self._pieces.append(Mark(through_scn=batch.through_scn))
            else:
                hashes = hash_batch(batch, self._fits.fit_or_error, in_order=True)
                self._pieces.append(Run(batch=batch, data=data, hashes=hashes, through_scn=batch.through_scn))
            return
        if self._open is None:
            self._open = _Open(order_scn=self._order_scn(batch, 0))
        self._emit_part(batch, data, self._open)

    def _emit_part(self, batch: LcrBatch, data: bytes | None, large: _Open) -> None:
        is_last = not batch.is_open
        if is_last:
            self._open = None
        if batch.row_count == 0 and not large.sent:
            # Nothing of it has to be applied so far.
            if is_last:
                self._pieces.append(Mark(through_scn=batch.through_scn))
            return
        if batch.row_count == 0 and not is_last:
            return
        self._pieces.append(
            LargePart(
                batch=batch,
                data=data,
                hashes=hash_batch(batch, self._fits.fit_or_error, in_order=True),
                order_scn=large.order_scn,
                is_first=not large.sent,
                is_last=is_last,
                through_scn=batch.through_scn,
            )
        )
        large.sent = True
