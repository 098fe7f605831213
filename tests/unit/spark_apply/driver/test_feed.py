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

ENDED_S = 30.0  # a thread ends within milliseconds


class Client:
    """A queue's end that notes what is acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.connected = threading.Event()

    def subscribe(self, needed: dict[str, Scn], credit_bytes: int) -> None:
        pass

    def acknowledge(self, source: str, scn: Scn) -> None:
        assert source == "dbs1"
        self.acknowledged.append(scn)

    def poll(self) -> None:
        self.connected.set()

    def grant(self, credit_bytes: int) -> None:
        pass

    def close(self) -> None:
        pass


def connected(client: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[QueueFeed, queue.SimpleQueue[int]]:
    """A feed of this client, and the marks of the streams that it opened."""
    monkeypatch.setattr(feed_module, "_client", lambda *_: client)
    config: Any = SimpleNamespace(source=SimpleNamespace(site="dbs1"))
    opened: queue.SimpleQueue[int] = queue.SimpleQueue()
    feed = QueueFeed(config, lambda: "", 1)
    feed.listener = SimpleNamespace(arrived=None, feed_broke=None, feed_opened=opened.put)  # type: ignore[assignment]
    return feed, opened


def test_what_becomes_durable_while_the_feed_connects_is_told_to_the_queue_once_the_stream_is_confirmed(monkeypatch: pytest.MonkeyPatch):
    client = Client()
    feed, opened = connected(client, monkeypatch)
    feed.durable(Scn(40))
    first = feed.start(FIRST_SCN)
    assert opened.get(timeout=ENDED_S) == first
    feed.durable(Scn(50))
    assert client.acknowledged == []
    feed.confirm(first)
    feed.durable(Scn(60))
    assert client.acknowledged == [50, 60]
    second = feed.start(FIRST_SCN)
    assert opened.get(timeout=ENDED_S) == second
    feed.durable(Scn(70))
    feed.confirm(first)
    assert client.acknowledged == [50, 60]
    feed.confirm(second)
    assert client.acknowledged == [50, 60, 70]
    feed.stop()


def test_late_stream_of_an_older_driver_moves_nothing_of_its_successor_whose_stream_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):
    """The destination came back from a backup of 25; the older driver, which slept before it connected, had told 60."""
    core = QueueCore(one_way(tmp_path), "q_dbs1", tmp_path / "q", VirtualClock())
    newest = core.open_subscriber("apply_a", epoch_incarnation(2), {"dbs1": Scn(25)}, 1)
    core.acknowledge(newest, "dbs1", Scn(25))
    core.close_subscriber(newest)

    class Stream(Client):
        def subscribe(self, needed: dict[str, Scn], credit_bytes: int) -> None:
            self.session = core.open_subscriber("apply_a", epoch_incarnation(1), needed, credit_bytes)

        def acknowledge(self, source: str, scn: Scn) -> None:
            core.acknowledge(self.session, source, scn)

    feed, opened = connected(Stream(), monkeypatch)
    feed.start(Scn(60))
    assert opened.get(timeout=ENDED_S)
    feed.durable(Scn(60))  # its servers' last group; its host finds the newer epoch before it confirms the stream
    (subscriber,) = (each for each in core.status()["subscribers"] if each["subscriber"] == "apply_a")
    assert subscriber["acknowledged_scn"] == 25
    core.open_subscriber("apply_a", epoch_incarnation(2), {"dbs1": Scn(25)}, 1)
    feed.stop()


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
