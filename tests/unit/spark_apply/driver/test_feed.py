"""What is durable reaches the queue, whenever it is told; a driver that slept does not disturb its successor."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.staging.queue import QueueCore
from protos.transport import epoch_incarnation
from spark_apply.driver import feed as feed_module
from spark_apply.driver.feed import QueueFeed
from streams.clock import VirtualClock
from streams.errors import PropagationError, QueueError
from streams.scn import FIRST_SCN, Scn
from tests.support.staging import one_way

ENDED_S = 30.0


class Client:
    """A queue's end that notes what is acknowledged, and lets the other thread tell more in the middle of connecting."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.connected = threading.Event()
        self.meanwhile = lambda: None

    def subscribe(self, needed: dict[str, Scn], credit_bytes: int) -> None:
        pass

    def acknowledge(self, source: str, scn: Scn) -> None:
        assert source == "dbs1"
        self.acknowledged.append(scn)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()

    def poll(self) -> None:
        self.connected.set()

    def close(self) -> None:
        pass


def test_what_becomes_durable_while_the_feed_connects_is_told_to_the_queue(monkeypatch: pytest.MonkeyPatch):
    client = Client()
    monkeypatch.setattr(feed_module, "_client", lambda *_: client)
    config: Any = SimpleNamespace(source=SimpleNamespace(site="dbs1"))
    feed = QueueFeed(config, lambda: "", 1)
    feed.listener = SimpleNamespace(arrived=None, feed_broke=None)  # type: ignore[assignment]
    feed.durable(Scn(40))
    client.meanwhile = lambda: feed.durable(Scn(50))
    feed.start(FIRST_SCN)
    assert client.connected.wait(ENDED_S)
    assert max(client.acknowledged) == 50


def test_stream_that_cannot_be_opened_is_opened_again_only_when_the_host_wants_it(monkeypatch: pytest.MonkeyPatch):
    """The host looks first whether a newer driver runs: this one may have been frozen since it wanted the stream."""
    asked: list[str] = []
    broke: queue.SimpleQueue[int] = queue.SimpleQueue()

    def refuses(_config: Any, _resolve: Any, epoch: int, _wake: Any) -> Client:
        asked.append(epoch_incarnation(epoch))
        raise PropagationError("a newer incarnation is connected")

    monkeypatch.setattr(feed_module, "_client", refuses)
    config: Any = SimpleNamespace(source=SimpleNamespace(site="dbs1"))
    feed = QueueFeed(config, lambda: "", 7)
    feed.listener = SimpleNamespace(arrived=None, feed_broke=broke.put)  # type: ignore[assignment]
    for turn in (1, 2):
        mark = feed.start(FIRST_SCN)
        assert broke.get(timeout=ENDED_S) == mark
        assert len(asked) == turn
    with pytest.raises(queue.Empty):
        broke.get(timeout=1.0)
    assert len(asked) == 2
    feed.stop()


def test_queue_refuses_a_driver_of_an_older_epoch_while_its_successor_is_connected(tmp_path: Path):
    """It would ask for what its successor has acknowledged: as if the destination had lost commits."""
    core = QueueCore(one_way(tmp_path), "q_dbs1", tmp_path / "q", VirtualClock())
    for _ in range(2):  # its stream is opened again under the same epoch
        core.open_subscriber("apply_a", epoch_incarnation(1_700_000_000_001), {"dbs1": Scn(90)}, 1)
    with pytest.raises(QueueError, match="newer incarnation"):
        core.open_subscriber("apply_a", epoch_incarnation(1_700_000_000_000), {"dbs1": Scn(40)}, 1)
