"""What is durable reaches the queue, whenever it is told."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from spark_apply.driver import feed as feed_module
from spark_apply.driver.feed import QueueFeed
from streams.scn import FIRST_SCN, Scn

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
    feed = QueueFeed(config, lambda: "")
    feed.listener = SimpleNamespace(arrived=None, feed_broke=None)  # type: ignore[assignment]
    feed.durable(Scn(40))
    client.meanwhile = lambda: feed.durable(Scn(50))
    feed.start(FIRST_SCN)
    assert client.connected.wait(ENDED_S)
    assert max(client.acknowledged) == 50
