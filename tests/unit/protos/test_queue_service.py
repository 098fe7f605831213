"""A queue behind its service's lock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from protos import queue_pb2
from protos.links.queue_link import QueueService
from protos.wire import transport
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.queues import Queue


def test_status_is_answered_while_the_queue_is_locked_and_shows_it(tmp_path: Path) -> None:
    """A write to a hanging disk holds the lock; the caller must not wait for it."""
    queue = Queue(tmp_path)
    service = QueueService(queue.core)
    queue.send(queue.publisher(), insert_batch([10, 20]))
    before = service.status()
    assert before.problem == ""
    with service.changing():
        held = service.status()
    assert "the queue is locked" in held.problem
    assert replace(held, problem=before.problem) == before
    assert service.status().problem == before.problem


def test_subscriber_that_left_as_its_stream_opened_is_not_connected(tmp_path: Path) -> None:
    class Gone:
        """The context of a call whose caller has left."""

        def peer(self) -> str:
            return "ipv4:10.0.0.1:1"

        def send_initial_metadata(self, metadata: object) -> None:
            raise grpc.RpcError

    queue = Queue(tmp_path)
    service = QueueService(queue.core)
    requests = iter(
        [
            queue_pb2.DequeueRequest(hello=transport.make_hello("t", "apply_a", "q_dbs1", "1")),
            queue_pb2.DequeueRequest(
                subscribe=queue_pb2.Subscribe(
                    needed=[queue_pb2.SourcePosition(source="dbs1", scn=0)],
                    credit_bytes=1,
                )
            ),
        ]
    )
    with pytest.raises(grpc.RpcError):
        next(service.Dequeue(requests, Gone()))
    assert not service.status().subscribers[0].connected
