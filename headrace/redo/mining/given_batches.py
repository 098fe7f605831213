"""The output of a miner: a chain of batches without gaps, with progress marks where the rules kept nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN, Scn

if TYPE_CHECKING:
    from headrace.base.clock import Clock
    from headrace.rules.evaluation import RuleEvaluation

__all__ = ["MARK_INTERVAL_S", "GivenBatches"]

MARK_INTERVAL_S = 0.1  # a progress mark ten times a second is enough for watermarks


class GivenBatches:
    """The output chain of one miner.

    Args:
        source: source site of the changes.
        sent_scn: start of the chain.
        rules: the capture process's rules.
        clock: clock for the pace of progress marks.

    Attributes:
        sent_scn: `through_scn` of the last batch given.
        batches: batches given, without progress marks.
        marks: progress marks given.
        full_evaluations: batches that prefiltering did not decide.
    """

    def __init__(self, source: str, sent_scn: Scn, rules: RuleEvaluation, clock: Clock) -> None:
        self._source, self._rules, self._clock = source, rules, clock
        self.sent_scn = sent_scn
        self._gave_at = clock.monotonic() - MARK_INTERVAL_S
        self._rows_given = 0  # of the current transaction in parts
        self.batches = self.marks = self.full_evaluations = 0

    @property
    def next_mark_at(self) -> float:
        """Time (clock, monotonic) from which the next progress mark may be given."""
        return self._gave_at + MARK_INTERVAL_S

    def first_mark(self, scn: Scn) -> LcrBatch:
        """Return the first mark, which says where the log begins.

        Without it, the first batch would seem to contain everything from the beginning.

        Args:
            scn: start of the log.
        """
        self.sent_scn = scn
        self.marks += 1
        return LcrBatch(source=self._source, previous_scn=FIRST_SCN, through_scn=scn)

    def mark(self, mined_scn: Scn, *, is_due: bool) -> LcrBatch | None:
        """Return a progress mark if there is progress to report and a mark is due; else None.

        Args:
            mined_scn: everything up to here is sent or discarded.
            is_due: the mark is due regardless of the clock.
        """
        if mined_scn <= self.sent_scn or not (is_due or self._clock.monotonic() >= self.next_mark_at):
            return None
        return LcrBatch(source=self._source, previous_scn=self.sent_scn, through_scn=mined_scn)

    def evaluated(self, batch: LcrBatch) -> LcrBatch | None:
        """Return the batch after full evaluation where prefiltering did not decide; None: it became a mark."""
        if self._rules.is_undecided(batch):
            self.full_evaluations += 1
            batch = self._rules.filter(batch)
        return None if batch.is_progress_mark else self._positioned(batch)

    def gave(self, batch: LcrBatch) -> None:
        """Note that a batch or mark was given."""
        self.sent_scn = batch.through_scn
        self._gave_at = self._clock.monotonic()
        if batch.is_progress_mark:
            self.marks += 1
        else:
            self.batches += 1

    def _positioned(self, batch: LcrBatch) -> LcrBatch:
        """Return the batch with its place in a transaction in parts.

        Functions turn a row into several or none, so the log's row numbers do not count.
        """
        before = self._rows_given if batch.continues else 0
        is_part = len(batch.transactions) > 0 and int(batch.transactions.commit_scn[-1]) == 0
        self._rows_given = before + batch.row_count if is_part else 0
        return batch if batch.first_position == before else replace(batch, first_position=before)
