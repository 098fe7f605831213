"""Labelled transactions that a coordinator has accepted, until their outcome is known. They are rare."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.lcr.tracking import Label, TrackLog
    from spark_apply.conversation.groups import AppliedRange, TransactionError

__all__ = ["LabelledTransactions"]

# Labelled transactions pending at servers. A coordinator reads at most a few groups ahead; labels beyond this bound are
# not followed to their end.
_WAITING_MAX = 4096


class LabelledTransactions:
    """Follows labelled transactions to their outcome.

    Args:
        source: the site whose transactions they are.
        tracks: receives the notes.
    """

    def __init__(self, source: str, tracks: TrackLog) -> None:
        self._source, self._tracks = source, tracks
        self._waiting: list[Label] = []
        # Rows in earlier parts of the transaction that arrives in parts.
        self._open_rows: dict[tuple[str, int], int] = {}

    def clear(self) -> None:
        """Forget all: everything accepted and not applied is replayed."""
        self._waiting.clear()
        self._open_rows.clear()

    def accepted(self, labels: Iterable[Label]) -> None:
        """Follow these labels; for a transaction in parts, the last part has the commit SCN."""
        for label in labels:
            key = label.text, label.order_scn
            if label.commit_scn:
                self._waiting.append(replace(label, rows=label.rows + self._open_rows.pop(key, 0)))
            else:
                self._open_rows = {
                    key: self._open_rows.get(key, 0) + label.rows,
                    **{
                        other: rows
                        for other, rows in self._open_rows.items()
                        if other[1] == label.order_scn and other != key
                    },
                }
        del self._waiting[:-_WAITING_MAX]

    def reported(self, server: int, applied: Iterable[AppliedRange], errors: Iterable[TransactionError]) -> None:
        """Note the outcomes that a server reports.

        Args:
            server: its number.
            applied: durable ranges: applied, or in the error queue.
            errors: transactions that are in the error queue.
        """
        if not self._waiting:
            return
        ranges, in_queue = tuple(applied), {error.commit_scn: error for error in errors}
        for label in tuple(self._waiting):
            if not any(found.after_scn < label.commit_scn <= found.through_scn for found in ranges):
                continue
            self._waiting.remove(label)
            error = in_queue.get(label.commit_scn)
            if error is None:
                self._tracks.note(label, self._source, "APPLIED", peer=f"apply server {server}")
            else:
                why = error.message or f"it depends on error transaction {error.depends_on}"
                detail = f"error transaction {error.number}: {why}"
                self._tracks.note(label, self._source, "ERROR QUEUE", peer=f"apply server {server}", detail=detail)

    def settled(self, server: int, commit_scns: NDArray[Any]) -> None:
        """Note labelled transactions that a server had committed when it died, as the destination shows.

        Args:
            server: its number.
            commit_scns: int64, commit SCNs of the transactions that it had committed.
        """
        found = {int(scn) for scn in commit_scns} if self._waiting else set()
        for label in tuple(self._waiting):
            if label.commit_scn in found:
                self._waiting.remove(label)
                detail = "or put into the error queue: it died before it could say which"
                self._tracks.note(label, self._source, "APPLIED", peer=f"apply server {server}", detail=detail)
