"""The batches that a miner gives: a chain without gaps, in which progress marks stand where the rules kept nothing."""

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
    """See the module. One per miner.

    Args:
        source: the site whose changes they are.
        sent_scn: where the chain begins.
        rules: of the capture process.
        clock: for the pace of progress marks.

    Attributes:
        sent_scn: `through_scn` of the last batch given.
        batches: given, progress marks aside.
        marks: given.
        full_evaluations: batches that prefiltering did not decide.
    """

    def __init__(self, source: str, sent_scn: Scn, rules: RuleEvaluation, clock: Clock) -> None:
        self._source, self._rules, self._clock = source, rules, clock
        self.sent_scn = sent_scn
        self._gave_at = clock.monotonic() - MARK_INTERVAL_S
        self._rows_given = 0  # of the transaction in parts that is being given
        self.batches = self.marks = self.full_evaluations = 0

    @property
    def next_mark_at(self) -> float:
        """When (clock, monotonic) the next progress mark may be given."""
        return self._gave_at + MARK_INTERVAL_S

    def first_mark(self, scn: Scn) -> LcrBatch:
        """The mark that tells where the log begins.

        Nothing was sent before: without it what comes first would count as everything from the beginning.

        Args:
            scn: where that is.
        """
        self.sent_scn = scn
        self.marks += 1
        return LcrBatch(source=self._source, previous_scn=FIRST_SCN, through_scn=scn)

    def mark(self, mined_scn: Scn, *, is_due: bool) -> LcrBatch | None:
        """A progress mark, if there is progress to tell and it is time.

        Args:
            mined_scn: nothing up to here waits for a batch.
            is_due: it is time, whatever the clock says.
        """
        if mined_scn <= self.sent_scn or not (is_due or self._clock.monotonic() >= self.next_mark_at):
            return None
        return LcrBatch(source=self._source, previous_scn=self.sent_scn, through_scn=mined_scn)

    def evaluated(self, batch: LcrBatch) -> LcrBatch | None:
        """The batch after full evaluation, where prefiltering did not decide; None: it became a mark."""
        if self._rules.is_undecided(batch):
            self.full_evaluations += 1
            batch = self._rules.filter(batch)
        return None if batch.is_progress_mark else self._positioned(batch)

    def gave(self, batch: LcrBatch) -> None:
        """A batch, or mark, is given."""
        self.sent_scn = batch.through_scn
        self._gave_at = self._clock.monotonic()
        if batch.is_progress_mark:
            self.marks += 1
        else:
            self.batches += 1

    def _positioned(self, batch: LcrBatch) -> LcrBatch:
        """The batch with its place in a transaction in parts.

        Functions make several rows of one, or none, so what the log has does not count.
        """
        before = self._rows_given if batch.continues else 0
        is_part = len(batch.transactions) > 0 and int(batch.transactions.commit_scn[-1]) == 0
        self._rows_given = before + batch.row_count if is_part else 0
        return batch if batch.first_position == before else replace(batch, first_position=before)
