"""Dequeuing for the apply process: connected to its queue, again and again.

The queue's address is asked of its actor on every connect, because its port changes when it restarts. What arrives is
marked with the number of the dequeue it belongs to, so that a late batch of an abandoned stream is recognised. When a
stream breaks or cannot be opened, the host decides where to go on: only the reader knows what it has taken, and only the
destination whether a newer driver runs.

A driver connects under its epoch, in all its streams. So one that was frozen and thaws after its successor began does not
replace the successor's stream, and its queue does not take its old position for a destination that lost commits.

An apply process that never applied anything asks first where its queue begins for it (`ask_beginning`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from protos.queue_link import DequeueClient
from protos.transport import Bell, epoch_incarnation
from streams.backoff import Backoff
from streams.errors import LogGone, StreamsError
from streams.scn import FIRST_SCN, Scn

if TYPE_CHECKING:
    from protos.codec import BatchHeader
    from spark_apply.driver.config import ApplyConfig

__all__ = ["CREDIT_BYTES", "FeedListener", "QueueFeed", "ask_beginning"]

# Bytes of batches on their way or waiting in the driver: several groups, so that servers never wait for the queue.
CREDIT_BYTES = 16 << 20
_STOP_TIMEOUT_S = 5.0  # a queue that does not answer holds up nothing else
_BEGINNING_POLL_S = 0.2  # how soon it is noticed that the driver shall end


class FeedListener(Protocol):
    """Who is told of batches; called on the feed's thread: only pass it on."""

    def arrived(self, mark: int, header: BatchHeader, data: bytes) -> None:
        """A batch came."""
        ...

    def feed_broke(self, mark: int) -> None:
        """The stream broke, or could not be opened; call `start` again."""
        ...

    def fail(self, error: StreamsError) -> None:
        """The queue refuses: what is needed is gone."""
        ...


class QueueFeed:
    """See the module, and `spark_apply.driver.loop.Feed`.

    Args:
        config: of the apply process.
        resolve: asks where the queue serves now.
        epoch: of the driver.
    """

    def __init__(self, config: ApplyConfig, resolve: Callable[[], str], epoch: int) -> None:
        self._config, self._resolve, self._epoch = config, resolve, epoch
        self.listener: FeedListener | None = None
        self._lock = threading.Lock()
        self._bell = Bell()
        self._mark = 0
        self._needed = FIRST_SCN
        self._durable = FIRST_SCN
        self._client: DequeueClient | None = None
        self._problem = "not connected to the queue yet"
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    # ------------------------------------------------------------------ the host's thread

    def stop(self) -> None:
        """End the feed's thread and its connection; idempotent."""
        self._stopped.set()
        self._bell.ring()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def start(self, needed: Scn) -> int:
        """See `Feed.start`."""
        with self._lock:
            self._mark += 1
            self._needed = needed
            mark = self._mark
        self._bell.ring()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="queue-feed", daemon=True)
            self._thread.start()
        return mark

    def taken(self, size: int) -> None:
        """See `Feed.taken`."""
        client = self._client
        if client is not None:
            client.grant(size)

    def durable(self, scn: Scn) -> None:
        """See `Feed.durable`."""
        self._durable = scn
        client = self._client
        if client is not None:
            client.acknowledge(self._config.source.site, scn)

    def problem(self) -> str:
        """See `Feed.problem`."""
        return self._problem

    # ------------------------------------------------------------------ the feed's thread

    def _run(self) -> None:
        backoff, done = Backoff(), 0
        while not self._stopped.is_set():
            with self._lock:
                mark, needed = self._mark, self._needed
            if mark == done:
                self._bell.wait(None)
                continue
            assert self.listener is not None
            try:
                with contextlib.closing(self._connect(needed)) as client:
                    backoff.reset()
                    self._deliver(client, mark)
                done = mark  # a newer one was wanted
            except LogGone as error:
                # Only an operator can help: the driver ends, and says so.
                self._problem = error.message
                self.listener.fail(error)
                return
            except StreamsError as error:
                self._client = None
                self._problem = error.message
                # Not on the bell, which the stream's end has rung.
                self._stopped.wait(backoff.next_s())
                # Also when there was none yet: a frozen process may have slept since it was wanted.
                done = mark
                self.listener.feed_broke(mark)

    def _connect(self, needed: Scn) -> DequeueClient:
        config = self._config
        client = _client(config, self._resolve, self._epoch, self._bell.ring)
        client.subscribe({config.source.site: needed}, CREDIT_BYTES)
        self._client, self._problem = client, ""
        # After that: what the host tells meanwhile must not be lost between the two.
        if self._durable > FIRST_SCN:
            client.acknowledge(config.source.site, self._durable)
        return client

    def _deliver(self, client: DequeueClient, mark: int) -> None:
        """Pass on what comes until another dequeue is wanted."""
        assert self.listener is not None
        while self._mark == mark and not self._stopped.is_set():
            delivery = client.poll()
            if delivery is None:
                self._bell.wait(None)
            else:
                self.listener.arrived(mark, delivery.header, delivery.data)
        self._client = None


def ask_beginning(
    config: ApplyConfig, resolve: Callable[[], str], epoch: int, *, should_end: Callable[[], bool], problem: Callable[[str], None],
) -> Scn:
    """Where the queue begins for an apply process that never applied anything.

    From the answer on the queue keeps everything for it. FIRST_SCN: told to end before the queue knew.

    Args:
        config: of the apply process.
        resolve: asks where the queue serves now.
        epoch: of the driver.
        should_end: asked all the time.
        problem: told why there is no answer yet.
    """
    backoff = Backoff()
    while not should_end():
        try:
            with contextlib.closing(_client(config, resolve, epoch)) as client:
                client.subscribe({config.source.site: FIRST_SCN}, credit_bytes=1)
                problem("the queue does not know yet where its LCRs begin")
                while not should_end():
                    if (delivery := client.poll(_BEGINNING_POLL_S)) is not None:
                        return delivery.header.through_scn if delivery.header.is_progress_mark else FIRST_SCN
        except StreamsError as error:
            problem(error.message)
            time.sleep(backoff.next_s())
    return FIRST_SCN


def _client(
    config: ApplyConfig, resolve: Callable[[], str], epoch: int, wake: Callable[[], None] | None = None
) -> DequeueClient:
    return DequeueClient(
        resolve(), topology=config.topology, component=config.apply, queue=config.queue,
        incarnation=epoch_incarnation(epoch), wake=wake,
    )
