"""Dequeuing by the newest driver alone.

The source may have discarded what a newer driver has applied. If an older one, which slept for a while perhaps, asked the
queue for it, the queue would request changes that no longer exist. So the destination is asked for the newest epoch before a
stream begins, and again once it is open: this driver may have slept in between (`spark_apply.driver.loop.dequeuing`).

Used by the loop's thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.progress import check_epoch
from headrace.lcr.scn import Scn
from spark_apply.driver.loop.dequeuing import Dequeuing

if TYPE_CHECKING:
    from headrace.base.clock import Clock
    from headrace.databases.ports import DestinationDatabase
    from headrace.links.ports import Delivery
    from headrace.links.serving import Links
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.driver.loop.destination_problem import DestinationProblem
    from spark_apply.driver.reader import ApplyReader

__all__ = ["DEQUEUE_RETRY_S", "NewestDequeuing"]

DEQUEUE_RETRY_S = 1.0  # after the destination did not answer when dequeuing should begin


class NewestDequeuing:
    """See the module.

    Args:
        config: of the apply process.
        epoch: of this driver.
        destination: knows the newest epoch.
        reader: says from where on it needs the queue.
        links: make the streams.
        clock: of the retries.
        problem: is told that the destination does not answer.

    Attributes:
        told_scn: what this driver told the queue to be durable.
    """

    def __init__(
        self,
        config: ApplyConfig,
        *,
        epoch: int,
        destination: DestinationDatabase,
        reader: ApplyReader,
        links: Links,
        clock: Clock,
        problem: DestinationProblem,
    ) -> None:
        self._topology, self._apply, self._epoch = config.topology, config.apply, epoch
        self._destination, self._reader, self._clock, self._problem = destination, reader, clock, problem
        self._stream = Dequeuing(config, links, clock)
        self._begin_at: float | None = None  # a stream is to begin, as soon as the destination answers
        # a stream is open, and the destination is to be asked for the newest epoch
        self._confirm_at: float | None = None
        self.told_scn = Scn(0)

    @property
    def problem(self) -> str:
        """Why nothing comes out of the queue; empty: it does."""
        return self._stream.problem

    @property
    def due_at(self) -> float | None:
        """When `housekeep` has something to do, by the clock; None: not yet known."""
        return min((at for at in (self._begin_at, self._confirm_at) if at is not None), default=None)

    @property
    def has_batch(self) -> bool:
        """Whether a batch has arrived that was not taken."""
        return bool(self._stream.inbox)

    def take(self) -> Delivery:
        """See `Dequeuing.take`."""
        return self._stream.take()

    def tell(self, durable: Scn) -> None:
        """Tell the queue what is durable at the destination, where that is news."""
        if durable > self.told_scn:
            self.told_scn = durable
            self._stream.durable(durable)

    def begin_again(self) -> None:
        """End the stream, and begin another one from where the reader needs it.

        Raises:
            FencedError: a newer driver runs.
            LogGone: the queue refuses, because the needed changes are gone.
        """
        self._stream.end()
        self._confirm_at = None
        self._begin()

    def hear(self) -> None:
        """Take what has arrived from the queue; a stream that broke is followed by another one after a pause.

        Raises:
            FencedError: a newer driver runs.
            LogGone: the queue refuses, because the needed changes are gone.
        """
        again_at = self._stream.hear()
        if again_at is not None:
            self._begin_at, self._confirm_at = again_at, None
        elif self._stream.has_opened():
            self._confirm()

    def housekeep(self, now: float) -> None:
        """Do what is due.

        Args:
            now: monotonic seconds.

        Raises:
            FencedError: a newer driver runs.
            LogGone: the queue refuses, because the needed changes are gone.
        """
        if self._begin_at is not None and now >= self._begin_at:
            self._begin()
        if self._confirm_at is not None and now >= self._confirm_at:
            self._confirm()

    def end(self) -> None:
        """See `Dequeuing.end`."""
        self._stream.end()

    def _begin(self) -> None:
        self._begin_at = self._retry_unless_newest()
        if self._begin_at is None:
            self._begin_at = self._stream.begin(self._reader.needed_scn)

    def _confirm(self) -> None:
        self._confirm_at = self._retry_unless_newest()
        if self._confirm_at is None:
            self._stream.confirm()

    def _retry_unless_newest(self) -> float | None:
        """When to ask again, because the destination does not answer; None: it answered, and no newer driver runs."""
        try:
            progress = self._destination.progress(self._topology, self._apply)
        except DatabaseUnavailable as error:
            self._problem.note(error)
            return self._clock.monotonic() + DEQUEUE_RETRY_S
        self._problem.clear()  # while the queue is away nothing else asks, and the queue's problem would not be told
        check_epoch(0 if progress is None else progress.epoch, apply=self._apply, epoch=self._epoch)
        return None
