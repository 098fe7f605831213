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


def test_status_is_answered_while_something_holds_the_queue_and_says_so(tmp_path: Path) -> None:
    """A write to a disk that hangs holds the lock; whoever asks must not wait for it."""
    queue = Queue(tmp_path)
    service = QueueService(queue.core)
    queue.send(queue.publisher(), insert_batch([10, 20]))
    before = service.status()
    assert before.problem == ""
    with service.changing():
        held = service.status()
    assert "the queue is held" in held.problem
    assert replace(held, problem=before.problem) == before
    assert service.status().problem == before.problem


def test_subscriber_that_is_gone_when_its_stream_opens_is_not_taken_for_connected(tmp_path: Path) -> None:
    class Gone:
        """The context of a call whose caller has gone away."""

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
