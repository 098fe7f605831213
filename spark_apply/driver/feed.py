"""Dequeuing for the apply process: connects to its queue, and reconnects after every break.

Every connect asks the queue's actor for its address, because the port changes when it restarts. Batches carry
the number of their dequeue, so that a late batch of an abandoned stream is recognised. When a
stream breaks or cannot be opened, the host decides where to continue: only the reader knows what it has taken, and only the
destination knows whether a newer driver runs.

All streams of a driver carry its epoch. So a driver that was frozen and thaws after its successor began does not
replace the successor's stream, and the queue does not interpret its old position as a loss of commits. While the successor's
stream is broken it can open one. So nothing is acknowledged on a stream before the host has found, after the stream was
opened, that no newer driver runs (`QueueFeed.confirm`): what is acknowledged is purged at the source.

An apply process that has never applied anything first asks where its queue begins for it (`ask_beginning`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from protos.identity import Peer
from protos.queue_link import DequeueClient
from protos.transport import Bell, epoch_incarnation
from streams.backoff import Backoff
from streams.errors import LogGone, StreamsError
from streams.scn import FIRST_SCN, Scn

if TYPE_CHECKING:
    from spark_apply.driver.config import ApplyConfig
    from streams.links import BatchHeader

__all__ = ["CREDIT_BYTES", "FeedListener", "QueueFeed", "ask_beginning"]

# Bytes of batches in flight or waiting in the driver: several groups, so that servers never wait for the queue.
CREDIT_BYTES = 16 << 20
_STOP_TIMEOUT_S = 5.0  # a queue that does not answer holds up nothing else
_BEGINNING_POLL_S = 0.2  # a request to end the driver is noticed within this time


class FeedListener(Protocol):
    """Receives batches and errors on the feed's thread; it must only pass them on."""

    def arrived(self, mark: int, header: BatchHeader, data: bytes) -> None:
        """A batch arrived.

        Args:
            mark: what `start` answered: batches with an older one belong to a stream that was replaced.
            header: of the batch.
            data: the encoded batch, header included; counts against `CREDIT_BYTES` until `taken`.
        """
        ...

    def feed_opened(self, mark: int) -> None:
        """A stream was opened: find out whether a newer driver runs, and call `confirm`."""
        ...

    def feed_broke(self, mark: int) -> None:
        """The stream broke, or could not be opened; call `start` again."""
        ...

    def fail(self, error: StreamsError) -> None:
        """The queue refuses, because the needed changes are gone."""
        ...


class QueueFeed:
    """See the module, and `spark_apply.driver.loop.Feed`.

    Args:
        config: of the apply process.
        resolve: returns the queue's current endpoint.
        epoch: of the driver.
    """

    def __init__(self, config: ApplyConfig, resolve: Callable[[], Peer | str], epoch: int) -> None:
        self._config, self._resolve, self._epoch = config, resolve, epoch
        self.listener: FeedListener | None = None
        self._lock = threading.Lock()
        self._bell = Bell()
        self._mark = self._confirmed = 0
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
        self._acknowledge()

    def confirm(self, mark: int) -> None:
        """See `Feed.confirm`."""
        self._confirmed = mark
        self._acknowledge()

    def problem(self) -> str:
        """See `Feed.problem`."""
        return self._problem

    def _acknowledge(self) -> None:
        client = self._client
        if client is not None and self._confirmed == self._mark and self._durable > FIRST_SCN:
            client.acknowledge(self._config.source.site, self._durable)

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
                    self.listener.feed_opened(mark)
                    self._deliver(client, mark)
                done = mark  # a newer one was requested
            except LogGone as error:
                # Only an operator can help: the driver ends and reports it.
                self._problem = error.message
                self.listener.fail(error)
                return
            except StreamsError as error:
                self._client = None
                self._problem = error.message
                # Not a wait for the bell: the end of the stream has rung it.
                self._stopped.wait(backoff.next_s())
                # Even if there was none yet: a frozen process may have slept since the request.
                done = mark
                self.listener.feed_broke(mark)

    def _connect(self, needed: Scn) -> DequeueClient:
        config = self._config
        client = _client(config, self._resolve, self._epoch, self._bell.ring)
        client.subscribe({config.source.site: needed}, CREDIT_BYTES)
        self._client, self._problem = client, ""
        return client

    def _deliver(self, client: DequeueClient, mark: int) -> None:
        """Pass batches on until another dequeue is requested."""
        assert self.listener is not None
        while self._mark == mark and not self._stopped.is_set():
            delivery = client.poll()
            if delivery is None:
                self._bell.wait(None)
            else:
                self.listener.arrived(mark, delivery.header, delivery.data)
        self._client = None


def ask_beginning(
    config: ApplyConfig, resolve: Callable[[], Peer | str], epoch: int, *, should_end: Callable[[], bool], problem: Callable[[str], None],
) -> Scn:
    """Ask where the queue begins for an apply process that has never applied anything.

    From then on the queue keeps everything for it. FIRST_SCN: the driver had to end before the queue knew.

    Args:
        config: of the apply process.
        resolve: returns the queue's current endpoint.
        epoch: of the driver.
        should_end: checked repeatedly; True ends the wait.
        problem: receives the reason why there is no answer yet.
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
    config: ApplyConfig, resolve: Callable[[], Peer | str], epoch: int, wake: Callable[[], None] | None = None
) -> DequeueClient:
    peer = Peer.of(resolve())
    return DequeueClient(
        peer, topology=config.topology, component=config.apply, queue=peer.serves or config.queue,
        incarnation=epoch_incarnation(epoch), wake=wake,
    )
