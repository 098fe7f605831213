"""Message tracking: labels of transactions, and what a component remembers of labelled ones.

A user labels a transaction by a message in the source's log (`TRACK_PREFIX`). The capture process finds it, and the
label travels in the headers of the batches that hold rows of the transaction: every component that takes a batch on or
passes it on notes what it did, without looking at rows. A batch without labels carries nothing for this, and no
component does anything for it.

What a component notes is in its memory, bounded by number and by age. A killed process loses its notes; positions then
say what is known (`headrace.tracking`).

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

TRACK_PREFIX = "headrace.track"  # of the messages by which users label their transactions

LABEL_BYTES_MAX = 200  # a name that people type, such as an order's number or a request's identity

# Labels are for the transactions that somebody looks for, not for all of them. So many fit into a batch's header (20
# KB), which travels in one message; further ones are not tracked, and the capture process counts them.
LABELS_PER_BATCH_MAX = 64

NOTES_MAX = 1000  # of one component: half a megabyte at the most, in every component
NOTES_AGE_MAX_S = 86_400.0  # a day: who looks for a transaction later finds its effects in the tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A labelled transaction, as far as one batch holds it.

    Args:
        text: the label, at most `LABEL_BYTES_MAX` bytes.
        transaction_id: the source's.
        order_scn: of the transaction: identifies it within its source.
        commit_scn: of the transaction; 0 while it is open.
        rows: of the transaction in this batch.
    """

    text: str
    transaction_id: int
    order_scn: int
    commit_scn: int
    rows: int


def label_of_message(content: bytes) -> str:
    """The label that a user's message gives its transaction: text, cut where it is too long."""
    return content[:LABEL_BYTES_MAX].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a component did with a labelled transaction.

    Args:
        label: the label's text.
        source: site where the transaction was committed.
        transaction_id, order_scn, commit_scn: see `Label`.
        action: CAPTURED, SENT, ...; see `docs/operations.md`.
        peer: the component or server it did that with; empty: none.
        detail: more, for people.
        rows: row LCRs, of all times.
        first_us: when it did so first, microseconds since the epoch.
        last_us: when it did so last.
        times: how often: a transaction in parts, or one that was sent again after a restart, more than once.
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
    """What one component did with labelled transactions. One thread at a time notes; any thread may ask.

    Args:
        clock: of the notes' times.
        notes_max: the oldest notes go at more.
        age_max_s: and those that are older than this many seconds.
    """

    def __init__(
        self, clock: Clock | None = None, *, notes_max: int = NOTES_MAX, age_max_s: float = NOTES_AGE_MAX_S
    ) -> None:
        self._clock = clock or SystemClock()
        self._notes_max, self._age_max_us = notes_max, int(age_max_s * 1e6)
        self._notes: dict[tuple[str, str, int, str, str, str], Note] = {}  # in the order of their first times
        self._since_us = self._clock.time_us()

    def note(
        self, label: Label, source: str, action: str, *, peer: str = "", detail: str = "", rows: int | None = None
    ) -> None:
        """Remember what the component does with a labelled transaction, now.

        Args:
            label: of the transaction.
            source: the site it was committed at.
            action: what the component does; once more the same is counted.
            peer: with which component or server.
            detail: more, for people.
            rows: row LCRs this is about; None: those of the label.
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
        """What is remembered of a label: `since_us`, from when on nothing is forgotten, and the `notes`, plain data."""
        notes = list(self._notes.values())  # one step of the interpreter: no note comes in between
        return {"since_us": self._since_us, "notes": [asdict(note) for note in notes if note.label == text]}

    def _forget(self, now_us: int) -> None:
        for key, note in list(self._notes.items()):
            if len(self._notes) <= self._notes_max and note.last_us > now_us - self._age_max_us:
                break
            del self._notes[key]
            self._since_us = max(self._since_us, note.last_us)
