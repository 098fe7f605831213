"""Notes about labelled transactions: kept, counted and forgotten ones; labels of batches that are cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.base.clock import VirtualClock
from headrace.base.errors import ProtocolError
from headrace.lcr.batch import LcrBatch
from headrace.lcr.cutting import resume_after, select_rows, slice_transactions, without_unused
from headrace.lcr.tracking import LABEL_BYTES_MAX, LABELS_PER_BATCH_MAX, Label, TrackLog, label_of_message
from headrace.links.ports import header_of
from protos import codec, lcr_pb2
from tests.support.values.lcr_batches import insert_batch


def label(scn: int, text: str = "order 7", rows: int = 1) -> Label:
    """The label of the transaction that commits at `scn` in `insert_batch`."""
    return Label(text=text, transaction_id=scn + 1000, order_scn=scn - 1, commit_scn=scn, rows=rows)


def labelled(commits: list[int], *labels: Label, previous: int = 0, rows_each: int = 1) -> LcrBatch:
    return replace(insert_batch(commits, previous=previous, rows_each=rows_each), labels=labels)


def test_note_has_its_times_and_counts_duplicates() -> None:
    clock = VirtualClock()
    tracks = TrackLog(clock)
    began_us = clock.time_us()
    tracks.note(label(10), "dbs1", "SENT", peer="queue:q")
    clock.advance(2.0)
    tracks.note(label(10, rows=2), "dbs1", "SENT", peer="queue:q")
    tracks.note(label(20, text="other"), "dbs1", "SENT")
    answer = tracks.answer("order 7")
    assert answer["since_us"] == began_us
    (note,) = answer["notes"]
    assert (note["rows"], note["times"], note["first_us"], note["last_us"]) == (3, 2, began_us, began_us + 2_000_000)


def test_notes_are_bounded_by_number_and_age_and_show_their_beginning() -> None:
    clock = VirtualClock()
    tracks = TrackLog(clock, notes_max=3, age_max_s=60.0)
    for scn in (10, 20, 30, 40, 50):
        clock.advance(1.0)
        tracks.note(label(scn), "dbs1", "SENT")
    answer = tracks.answer("order 7")
    assert [note["commit_scn"] for note in answer["notes"]] == [30, 40, 50]
    assert answer["since_us"] == answer["notes"][0]["first_us"] - 1_000_000, "notes up to then are forgotten"
    clock.advance(59.5)
    tracks.note(label(60), "dbs1", "SENT")
    assert [note["commit_scn"] for note in tracks.answer("order 7")["notes"]] == [50, 60]


def test_labels_follow_their_transactions_through_every_cut() -> None:
    batch = labelled([10, 20, 30], label(10, rows=2), label(30, rows=2), rows_each=2)
    assert [found.commit_scn for found in slice_transactions(batch, 0, 2).labels] == [10]
    rest = resume_after(batch, 20)
    assert rest is not None
    assert [found.commit_scn for found in rest.labels] == [30]
    some = select_rows(batch, np.array([True, False, True, True, False, False]))
    assert [(found.commit_scn, found.rows) for found in some.labels] == [(10, 1), (30, 0)]
    assert [found.commit_scn for found in without_unused(some).labels] == [10]


def test_labels_travel_in_the_header_and_cost_nothing_without_one() -> None:
    batch = labelled([10, 20], label(20, text="ürgent"))
    data = codec.encode(batch)
    assert codec.read_header(data).labels == batch.labels
    assert codec.decode(data).labels == batch.labels
    assert codec.header_from_message(codec.header_to_message(header_of(batch))).labels == batch.labels
    plain = replace(batch, labels=())
    message = codec.header_to_message(header_of(plain))
    message.ClearField("labels")
    assert message.SerializeToString() == codec.header_to_message(header_of(plain)).SerializeToString()


@pytest.mark.parametrize(
    "labels",
    [
        [lcr_pb2.Label(text="x")] * (LABELS_PER_BATCH_MAX + 1),
        [lcr_pb2.Label(text="x" * (LABEL_BYTES_MAX + 1))],
    ],
)
def test_labels_from_the_wire_beyond_their_bounds_are_refused(labels: list[lcr_pb2.Label]) -> None:
    header = codec.header_to_message(header_of(insert_batch([10])))
    header.labels.extend(labels)
    with pytest.raises(ProtocolError, match="labels"):
        codec.header_from_message(header)


def test_label_is_text_whatever_its_message_holds() -> None:
    assert label_of_message("ürgent".encode()) == "ürgent"
    assert len(label_of_message(b"\xff" * 5000)) == LABEL_BYTES_MAX
