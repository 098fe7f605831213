"""Selection of rows to apply: not those already applied, contained in a copy, or discarded by the rules."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.databases.ports import DdlPlace
from headrace.lcr.batch import LcrBatch, TableVersion, changed_table
from headrace.lcr.cutting import row_transactions, select_rows
from headrace.lcr.table_name import TableName
from headrace.lcr.tracking import TrackLog
from headrace.rules.conditions.nodes import ConditionError
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.transformations.transformation import TransformationError
from spark_apply.driver.reading.pieces import order_scn_of
from spark_apply.tables.copied import emptied_tables, without_copied

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.databases.ports import ApplyProgress
    from headrace.lcr.ddl import DdlChange
    from spark_apply.tables.arriving import ArrivingTables

__all__ = ["ReaderStatistics", "RowSelection"]


@dataclass(slots=True)
class ReaderStatistics:
    """Totals since the start."""

    batches: int = 0
    transactions: int = 0  # complete ones dequeued
    rows: int = 0
    rows_applied_before: int = 0  # dropped: applied by an earlier incarnation
    rows_instantiated: int = 0  # dropped: in a copy, or skipped until their table has joined
    rows_discarded: int = 0  # dropped by the rules
    returned_changes: int = 0  # rows of this site's own changes that returned


class RowSelection:
    """Selects the rows to apply. It counts what it sees, and notes dropped rows of labelled transactions.

    Args:
        source: the site whose batches arrive.
        tables: the tables that arrive, and the SCN from which each is applied.
        progress: what is applied.
        returned_from: names of the source's apply processes that apply this site's own changes.
        tracks: receives notes on labelled transactions.

    Attributes:
        progress: what is applied, as of the reader's last restart.
        statistics: totals since the start.
    """

    def __init__(
        self,
        *,
        source: str,
        rules: RuleEvaluation,
        tables: ArrivingTables,
        progress: ApplyProgress,
        returned_from: Collection[str],
        tracks: TrackLog,
    ) -> None:
        self._source, self._rules, self._tables = source, rules, tables
        self._returned, self._tracks = frozenset(returned_from), tracks
        self.progress = progress
        self.statistics = ReaderStatistics()

    def restart(self, progress: ApplyProgress) -> None:
        """Begin again at the low watermark."""
        self.progress = progress
        self._tables.unsettled.withdraw(lambda scn: not self._is_applied(scn))

    def count(self, batch: LcrBatch) -> None:
        """Count a dequeued batch, before rows are selected."""
        statistics = self.statistics
        statistics.batches += 1
        statistics.transactions += len(batch.transactions) - int(batch.is_open)
        statistics.rows += batch.row_count
        if self._returned and batch.tags:
            home = np.array([tag.apply in self._returned for tag in batch.tags] + [False])
            returned = home[batch.transactions.tag]  # a NULL tag is -1: the False at the end
            statistics.returned_changes += int(np.diff(batch.transactions.first_row)[returned].sum())
        for label in batch.labels:
            self._tracks.note(label, self._source, "DEQUEUED")

    def select(self, batch: LcrBatch) -> LcrBatch:
        """Drop rows that are already applied, that the instantiation copied, or that the rules discard."""
        kept = ~self._applied(batch.transactions.order_scn)[row_transactions(batch.transactions)]
        self.statistics.rows_applied_before += int((~kept).sum())
        new = select_rows(batch, kept)
        self._withdraw(batch)
        # Skipped tables only: a table whose rows are applied raises its error then.
        with contextlib.suppress(ConditionError, TransformationError):
            for version, scn in emptied_tables(new, self._rules):
                self._tables.note_emptied(version, scn)
        left = self._beyond_copies(new)
        filtered = self._rules.filter(left)
        if filtered.ddl is not None:
            self._tables.note_ddl(filtered.ddl, DdlPlace.of(filtered))
        if filtered.truncates:
            owners = row_transactions(filtered.transactions)
            for truncate in filtered.truncates:
                self._tables.note_truncated(
                    (filtered.tables[table] for table in truncate.tables),
                    order_scn_of(filtered, int(owners[truncate.row_number])),
                )
        if batch.labels:
            self._note_dropped(batch, new, "applied before")
            self._note_dropped(new, left, "as of its instantiation SCN the copy has it, or its table is not copied yet")
            self._note_dropped(left, filtered, "by the rules of the apply process, or of a client on the way")
        self.statistics.rows_instantiated += new.row_count - left.row_count
        self.statistics.rows_discarded += left.row_count - filtered.row_count
        return filtered

    def without_strangers(self, batch: LcrBatch) -> LcrBatch:
        """Resolve unknown tables that the rules want, and drop rows of tables never copied here.

        A DDL LCR of an unknown table is dropped without asking the source, because partitions have none. New tables,
        and DROPs of tables that are gone at the source, are exceptions (`ArrivingTables.passes_uncopied`).

        Rows that passed `select` are looked at again once a table was settled as one that is not replicated.

        Args:
            batch: a batch after `select`.

        Returns:
            The batch without LCRs of tables that were never copied here.
        """
        if batch.ddl is not None:
            return self._known_ddl(batch, batch.ddl)
        used = {group.table for group in batch.groups} | {
            table for truncate in batch.truncates for table in truncate.tables
        }
        unknown = [batch.tables[table] for table in sorted(used) if self._tables.is_unknown(batch.tables[table])]
        for version in unknown:
            self._tables.resolve(version)
        known = without_copied(batch, self._first_scn) if unknown or self._tables.has_revoked else batch
        self.statistics.rows_instantiated += batch.row_count - known.row_count
        return known

    def _note_dropped(self, before: LcrBatch, after: LcrBatch, why: str) -> None:
        """Note which rows of labelled transactions were dropped."""
        rows = {(label.text, label.order_scn): label.rows for label in after.labels}
        for label in before.labels:
            if (dropped := label.rows - rows.get((label.text, label.order_scn), 0)) > 0:
                self._tracks.note(label, self._source, "DISCARDED", detail=why, rows=dropped)

    def _applied(self, order_scn: NDArray[np.int64]) -> NDArray[np.bool_]:
        # Applied up to X means order_scn < X: commit records do not overlap.
        applied = order_scn < self.progress.low_watermark
        for above in self.progress.above:
            applied |= (order_scn >= above.after) & (order_scn < above.through)
        return applied

    def _is_applied(self, order_scn: int) -> bool:
        """Return whether a transaction is applied, or in the error queue, apart from rows of joining tables."""
        return order_scn < self.progress.ahead_scn or bool(self._applied(np.array([order_scn]))[0])

    def _withdraw(self, batch: LcrBatch) -> None:
        """Forget the unsettled DDL LCRs of transactions that begin again with a batch."""
        if not self._tables.unsettled or batch.continues:
            return
        begun = {int(scn) for scn in batch.transactions.order_scn}
        self._tables.unsettled.withdraw(lambda scn: scn in begun and not self._is_applied(scn))

    def _beyond_copies(self, batch: LcrBatch) -> LcrBatch:
        """Drop what copies contain; a DDL LCR that must not be made because of them goes on, to be recorded only."""
        if batch.ddl is None:
            return without_copied(batch, self._first_scn_of_arriving)
        reason = self._refusal(batch, batch.ddl, self._rules.named(changed_table(batch.ddl)))
        if reason is None:
            return select_rows(batch, np.zeros(1, np.bool_))
        return replace(batch, ddl=batch.ddl.not_made(reason)) if reason else batch

    def _refusal(self, batch: LcrBatch, change: DdlChange, version: TableVersion) -> str | None:
        """Return why a DDL LCR is only recorded; empty: it is made; None: it is dropped."""
        order_scn, ahead_scn = int(batch.transactions.order_scn[0]), self.progress.ahead_scn
        if self._tables.passes_uncopied(change, TableName.of(version)):
            return None if order_scn < ahead_scn else ""
        return self._tables.ddl_refusal(version, order_scn, ahead_scn)

    def _known_ddl(self, batch: LcrBatch, change: DdlChange) -> LcrBatch:
        """Return a batch without its DDL LCR if that must not pass, now that its table is known."""
        version = changed_table(change)
        reason: str | None = ""
        if self._tables.is_unknown(version):
            reason = None
        elif self._tables.has_revoked and not change.why_not_made:
            reason = self._refusal(batch, change, version)
        if reason is None:
            self.statistics.rows_instantiated += 1
            return select_rows(batch, np.zeros(1, np.bool_))
        return replace(batch, ddl=change.not_made(reason)) if reason else batch

    def _first_scn_of_arriving(self, version: TableVersion) -> int:
        """Return the first SCN to apply of a table as it arrives, before it gets its name at the destination."""
        return self._first_scn(self._rules.named(version))

    def _first_scn(self, version: TableVersion) -> int:
        return self._tables.first_scn(version, self.progress.ahead_scn)
