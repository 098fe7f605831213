"""Labels that a miner found in redo, until the outcome of their transactions' rows is known.

Without labels in the log this costs almost nothing: one check per chunk without messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.lcr.tracking import LABELS_PER_BATCH_MAX, TRACK_PREFIX, Label, label_of_message

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.databases.ports import DecodedChunk
    from headrace.lcr.batch import LcrBatch

__all__ = ["MinedLabel", "MinedLabels"]

# Pending labelled transactions. A batch ends at 4096 rows, but a transaction without kept rows waits for the next mark.
# This many in a tenth of a second are a load test, not a search for a transaction.
_WAITING_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedLabel:
    """The outcome of a labelled transaction.

    Args:
        label: its `rows` are those given in batches, over all parts.
        rows_found: row LCRs of the transaction in the log; changes before the label may be missing.
    """

    label: Label
    rows_found: int

    @property
    def rows_discarded(self) -> int:
        """Row LCRs that the rules discarded."""
        return max(0, self.rows_found - self.label.rows)


@dataclass(slots=True)
class _Waiting:
    texts: list[str] = field(default_factory=list)
    transaction_id: int = 0
    commit_scn: int = 0
    rows_found: int = 0
    rows_given: int = 0


class MinedLabels:
    """The labels of one miner."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}  # by the transaction's order SCN
        self._finished: list[MinedLabel] = []
        self.left_out = 0

    def find(self, chunk: DecodedChunk, dropped: NDArray[np.bool_]) -> None:
        """Take the labels of a chunk's transactions, and count their rows.

        Args:
            chunk: the decoded chunk.
            dropped: bool, one per transaction of the chunk: it was mined before.
        """
        if not chunk.messages and not self._waiting:
            return
        places = {int(scn): place for place, scn in enumerate(chunk.order_scn.tolist()) if not dropped[place]}
        for order_scn, prefix, content in chunk.messages:
            if prefix == TRACK_PREFIX and order_scn in places:
                self._add(order_scn, label_of_message(content))
        for order_scn, waiting in self._waiting.items():
            place = places.get(order_scn)
            if place is not None:
                waiting.transaction_id = int(chunk.transaction_id[place])
                waiting.commit_scn = int(chunk.commit_scn[place])
                waiting.rows_found += int(chunk.first_row[place + 1] - chunk.first_row[place])

    def drop_open(self) -> None:
        """Drop the open transaction: it is sent again as a whole, with its labels."""
        self._waiting = {scn: waiting for scn, waiting in self._waiting.items() if waiting.commit_scn}

    def give(self, batch: LcrBatch) -> LcrBatch:
        """Return the batch or mark with its transactions' labels; completely covered ones are finished."""
        if not self._waiting:
            return batch
        places = {int(scn): place for place, scn in enumerate(batch.transactions.order_scn.tolist())}
        labels: list[Label] = []
        for order_scn, waiting in list(self._waiting.items()):
            place = places.get(order_scn)
            if place is not None:
                rows = int(batch.transactions.first_row[place + 1] - batch.transactions.first_row[place])
                waiting.rows_given += rows
                commit_scn = int(batch.transactions.commit_scn[place])
                labels += self._labels(order_scn, waiting, commit_scn=commit_scn, rows=rows)
            if waiting.commit_scn and waiting.commit_scn <= batch.through_scn:
                self._finish(order_scn, waiting)
        self.left_out += max(0, len(labels) - LABELS_PER_BATCH_MAX)
        return replace(batch, labels=tuple(labels[:LABELS_PER_BATCH_MAX])) if labels else batch

    def take_finished(self) -> tuple[MinedLabel, ...]:
        """Return the outcomes of labelled transactions since the last call."""
        if not self._finished:
            return ()
        finished, self._finished = tuple(self._finished), []
        return finished

    def _add(self, order_scn: int, text: str) -> None:
        if order_scn not in self._waiting and len(self._waiting) >= _WAITING_MAX:
            self.left_out += 1
            return
        texts = self._waiting.setdefault(order_scn, _Waiting()).texts
        if text in texts:
            return
        if len(texts) >= LABELS_PER_BATCH_MAX:
            self.left_out += 1
            return
        texts.append(text)

    def _finish(self, order_scn: int, waiting: _Waiting) -> None:
        self._finished += (
            MinedLabel(label=label, rows_found=waiting.rows_found)
            for label in self._labels(order_scn, waiting, commit_scn=waiting.commit_scn, rows=waiting.rows_given)
        )
        del self._waiting[order_scn]

    @staticmethod
    def _labels(order_scn: int, waiting: _Waiting, *, commit_scn: int, rows: int) -> list[Label]:
        return [
            Label(
                text=text, transaction_id=waiting.transaction_id, order_scn=order_scn, commit_scn=commit_scn, rows=rows
            )
            for text in waiting.texts
        ]
