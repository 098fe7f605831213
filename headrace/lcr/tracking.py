"""Message tracking: labels of transactions, and the components' notes on labelled ones.

A user labels a transaction by a message in the source's log (`TRACK_PREFIX`). The capture process finds it, and puts
the label into the headers of the batches with rows of the transaction. So every component that takes or forwards a
batch notes what it did, without reading rows. A batch without labels costs nothing.

A component keeps its notes in memory, bounded by number and by age. A killed process loses its notes; positions then
show what is known (`headrace.tracing`).

Source: Oracle Streams Replication Administrator's Guide, "Tracking LCRs Through a Stream" (SET_MESSAGE_TRACKING,
V$STREAMS_MESSAGE_TRACKING).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headrace.base.clock import Clock, SystemClock

__all__ = [
    "LABELS_PER_BATCH_MAX",
    "LABEL_BYTES_MAX",
    "TRACK_PREFIX",
    "Label",
    "Note",
    "TrackLog",
    "label_of_message",
]

TRACK_PREFIX = "headrace.track"  # prefix of the messages with which users label their transactions

LABEL_BYTES_MAX = 200  # a typed name, such as an order's number or a request's identity

# Labels are for the few transactions that a user wants to follow. This many fit into a batch's header (20 KB), which is
# sent in one message. Further ones are not tracked, and the capture process counts them.
LABELS_PER_BATCH_MAX = 64

NOTES_MAX = 1000  # per component: at most half a megabyte
NOTES_AGE_MAX_S = 86_400.0  # a day: later, the effects of a transaction are in the tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A labelled transaction, as far as one batch holds it.

    Args:
        text: the label, at most `LABEL_BYTES_MAX` bytes.
        transaction_id: the source's number of the transaction.
        order_scn: order SCN of the transaction, its identity within the source.
        commit_scn: commit SCN of the transaction; 0 while it is open.
        rows: rows of the transaction in this batch.
    """

    text: str
    transaction_id: int
    order_scn: int
    commit_scn: int
    rows: int


def label_of_message(content: bytes) -> str:
    """Return the label from the content of a user's message: text, truncated where it is too long."""
    return content[:LABEL_BYTES_MAX].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A component's note on a labelled transaction.

    Args:
        label: the label's text.
        source: site where the transaction was committed.
        transaction_id, order_scn, commit_scn: as in `Label`.
        action: CAPTURED, SENT, ..., as in `docs/tasks/follow-a-transaction.md`.
        peer: the other component or server of the action; empty: none.
        detail: details for output.
        rows: row LCRs, over all times.
        first_us: time of the first such action, microseconds since the epoch.
        last_us: time of the last one.
        times: number of such actions; above 1 for a transaction in parts, or one that was resent after a restart.
    """

    label: str
    source: str
    transaction_id: int
    order_scn: int
    commit_scn: int
    action: str
    peer: str
    detail: str
    rows: int
    first_us: int
    last_us: int
    times: int


class TrackLog:
    """One component's notes on labelled transactions. One thread at a time notes; any thread may query.

    Args:
        clock: source of the notes' times.
        notes_max: bound of the number; the oldest notes are dropped.
        age_max_s: bound of the age in seconds; older notes are dropped.
    """

    def __init__(
        self, clock: Clock | None = None, *, notes_max: int = NOTES_MAX, age_max_s: float = NOTES_AGE_MAX_S
    ) -> None:
        self._clock = clock or SystemClock()
        self._notes_max, self._age_max_us = notes_max, int(age_max_s * 1e6)
        self._notes: dict[tuple[str, str, int, str, str, str], Note] = {}  # ordered by first time
        self._since_us = self._clock.time_us()

    def note(
        self, label: Label, source: str, action: str, *, peer: str = "", detail: str = "", rows: int | None = None
    ) -> None:
        """Record the component's current action on a labelled transaction.

        Args:
            label: label of the transaction.
            source: site where the transaction was committed.
            action: action of the component; a repetition is counted.
            peer: the other component or server.
            detail: details for output.
            rows: row LCRs of this action; None: those of the label.
        """
        now_us = self._clock.time_us()
        key = (label.text, source, label.order_scn, action, peer, detail)
        before = self._notes.get(key)
        self._notes[key] = Note(
            label=label.text,
            source=source,
            transaction_id=label.transaction_id,
            order_scn=label.order_scn,
            commit_scn=label.commit_scn or (before.commit_scn if before else 0),
            action=action,
            peer=peer,
            detail=detail,
            rows=(label.rows if rows is None else rows) + (before.rows if before else 0),
            first_us=before.first_us if before else now_us,
            last_us=now_us,
            times=1 + (before.times if before else 0),
        )
        if before is None:
            self._forget(now_us)

    def answer(self, text: str) -> dict[str, Any]:
        """Return the notes on a label: `since_us`, from when on nothing is forgotten, and the `notes`, plain data."""
        notes = list(self._notes.values())  # atomic in the interpreter: no note is added in between
        return {"since_us": self._since_us, "notes": [asdict(note) for note in notes if note.label == text]}

    def _forget(self, now_us: int) -> None:
        for key, note in list(self._notes.items()):
            if len(self._notes) <= self._notes_max and note.last_us > now_us - self._age_max_us:
                break
            del self._notes[key]
            self._since_us = max(self._since_us, note.last_us)
