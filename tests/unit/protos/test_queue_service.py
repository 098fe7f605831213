"""A queue behind its service's lock."""

from __future__ import annotations

from pathlib import Path

from protos.queue_link import QueueService
from tests.support.lcr_batches import insert_batch
from tests.support.queues import Queue


def test_status_is_answered_while_something_holds_the_queue_and_says_so(tmp_path: Path) -> None:
    """A write to a disk that hangs holds the lock; whoever asks must not wait for it."""
    queue = Queue(tmp_path)
    service = QueueService(queue.core)
    queue.send(queue.publisher(), insert_batch([10, 20]))
    before = service.status()
    assert before["problem"] is None or before["problem"] == ""
    with service.changing():
        held = service.status()
    assert "the queue is held" in held["problem"]
    assert {**held, "problem": before["problem"]} == before
    assert service.status()["problem"] == before["problem"]
