"""Labelled transactions that a coordinator has accepted, until their outcome is known. Hardly ever any."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.lcr.tracking import Label, TrackLog
    from spark_apply.conversation.groups import AppliedRange, TransactionError

__all__ = ["LabelledTransactions"]

# Those that wait for servers. A coordinator reads at most a few groups ahead; more labels than that are not followed to
# their end.
_WAITING_MAX = 4096


class LabelledTransactions:
    """See the module.

    Args:
        source: the site whose transactions they are.
        tracks: takes the notes.
    """

    def __init__(self, source: str, tracks: TrackLog) -> None:
        self._source, self._tracks = source, tracks
        self._waiting: list[Label] = []
        self._open_rows: dict[tuple[str, int], int] = {}  # of the transaction in parts, in the parts before

    def clear(self) -> None:
        """Everything that is accepted and not applied comes again."""
        self._waiting.clear()
        self._open_rows.clear()

    def accepted(self, labels: Iterable[Label]) -> None:
        """Follow these; of a transaction in parts, the last part tells the commit SCN."""
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
        """Note what a server reports of them.

        Args:
            server: its number.
            applied: what is durable: applied, or in the error queue.
            errors: those that are in the error queue.
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
        """Note those that a server had committed when it died, as its destination says.

        Args:
            server: its number.
            commit_scns: int64, of the transactions that it had committed.
        """
        found = {int(scn) for scn in commit_scns} if self._waiting else set()
        for label in tuple(self._waiting):
            if label.commit_scn in found:
                self._waiting.remove(label)
                detail = "or put into the error queue: it died before it could say which"
                self._tracks.note(label, self._source, "APPLIED", peer=f"apply server {server}", detail=detail)
