"""What publishers, queues and subscribers say to each other, apart from how it travels.

A queue is one object behind one lock (`LockedQueue`). Publishers and subscribers hold a session each; what a queue has
to tell one of them is asked for (`publisher_news`, `dequeue`), so that many changes between two answers become one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from headrace.base.errors import HeadraceError, WouldBlock
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.links.ports import BatchHeader, Delivery, PublisherProgress
from headrace.status.queues import QueueStatus

__all__ = ["LockedQueue", "PublisherAccount", "PublisherNews", "QueuePort", "SessionPort"]

_STATUS_WAIT_S = 0.25  # whoever holds the lock needs milliseconds, except for a write to a disk that hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherNews:
    """What changed for a publisher; None: nothing.

    Args:
        through_scn: the queue's position in the publisher's source.
        accepted_bytes: bytes of this session's batches the queue has taken since the session began.
        credit_bytes: how many bytes may be on their way at once; 0: paused for flow control.
        durable_scn: committed at every subscriber up to here, and remembered by the queue across restarts.
        rewind_scn: the queue no longer has what a subscriber needs: send everything after this again.
    """

    through_scn: Scn
    accepted_bytes: int
    credit_bytes: int
    durable_scn: Scn | None = None
    rewind_scn: Scn | None = None


class PublisherAccount:
    """What a publisher knows of its stream: what it has sent, and what the queue has told. Not thread-safe.

    Attributes:
        accepted_scn: see `PublisherProgress`.
        durable_scn: see `PublisherProgress`.
        credit_bytes: see `PublisherProgress`.
        rewind_scn: where the queue wants it to begin again, until `progress` has answered that; None: nowhere.
    """

    def __init__(self) -> None:
        self.accepted_scn = self.durable_scn = FIRST_SCN
        self.rewind_scn: Scn | None = None
        self.credit_bytes = 0
        self._sent_bytes = self._accepted_bytes = 0

    def opened(self, needed_scn: Scn, credit_bytes: int) -> None:
        """The queue has taken the stream.

        Args:
            needed_scn: where it begins.
            credit_bytes: its first credit.
        """
        self.accepted_scn, self.credit_bytes = needed_scn, credit_bytes

    def accepted(self, through_scn: Scn, accepted_bytes: int, credit_bytes: int) -> None:
        """The queue tells how far it has come.

        Args:
            through_scn: see `PublisherNews`.
            accepted_bytes: see `PublisherNews`.
            credit_bytes: see `PublisherNews`.
        """
        self.accepted_scn, self._accepted_bytes, self.credit_bytes = through_scn, accepted_bytes, credit_bytes

    def rewound(self, rewind_scn: Scn) -> None:
        """The queue wants everything after an SCN again."""
        self.rewind_scn = rewind_scn
        self.durable_scn = FIRST_SCN  # told again: a destination may have come back from a backup

    def hear(self, news: PublisherNews) -> None:
        """Take news of the queue."""
        if news.rewind_scn is not None:
            self.rewound(news.rewind_scn)
        self.accepted(news.through_scn, news.accepted_bytes, news.credit_bytes)
        if news.durable_scn is not None:
            self.durable_scn = news.durable_scn

    def has_credit(self, size: int) -> bool:
        """Whether so many bytes may be sent now; a batch that is larger than the credit travels alone."""
        in_flight = self._sent_bytes - self._accepted_bytes
        return self.credit_bytes > 0 and (in_flight == 0 or in_flight + size <= self.credit_bytes)

    def sent(self, size: int) -> None:
        """So many bytes are on their way.

        Raises:
            WouldBlock: there is no credit for them; nothing is changed.
        """
        if not self.has_credit(size):
            raise WouldBlock
        self._sent_bytes += size

    def progress(self) -> PublisherProgress:
        """How the stream stands now; a rewind is answered once."""
        rewind, self.rewind_scn = self.rewind_scn, None
        return PublisherProgress(
            accepted_scn=self.accepted_scn,
            accepted_bytes=self._accepted_bytes,
            durable_scn=self.durable_scn,
            in_flight_bytes=self._sent_bytes - self._accepted_bytes,
            credit_bytes=self.credit_bytes,
            rewind_scn=rewind,
        )


class SessionPort(Protocol):
    """A publisher's or a subscriber's session."""

    @property
    def ended(self) -> HeadraceError | None:
        """Why the queue ended it; None while it goes on."""
        ...


_Publisher = TypeVar("_Publisher", bound=SessionPort)
_Subscriber = TypeVar("_Subscriber", bound=SessionPort)


class QueuePort(Protocol[_Publisher, _Subscriber]):
    """A queue, as what serves it sees it. Not thread-safe: a lock is held around every call (`LockedQueue`)."""

    @property
    def topology_name(self) -> str:
        """The topology it belongs to."""
        ...

    @property
    def name(self) -> str:
        """The queue's name there."""
        ...

    @property
    def takes_publishers(self) -> bool:
        """Whether publishers come to it on streams; False: its publisher is in the same process."""
        ...

    def open_subscriber(
        self, component: str, incarnation: str, needed: Mapping[str, Scn], credit_bytes: int
    ) -> _Subscriber:
        """Begin a subscriber's session; an older incarnation's ends.

        Args:
            component: name of the propagation or apply process.
            incarnation: orders the sessions of one component; greater is newer.
            needed: per source, the SCN after which the subscriber needs everything; FIRST_SCN: it never had anything.
            credit_bytes: how many bytes it can take before the first `grant`.

        Raises:
            QueueError: it is no subscriber of this queue for these sources, or a newer incarnation is connected.
            LogGone: what it needs is known to be gone.
        """
        ...

    def grant(self, session: _Subscriber, credit_bytes: int) -> None:
        """The subscriber can take so much in addition.

        Args:
            session: of the subscriber.
            credit_bytes: what is added to its credit; a batch may exceed what is left, the next one then waits.
        """
        ...

    def acknowledge(self, session: _Subscriber, source: str, scn: Scn) -> None:
        """The subscriber's destinations have committed everything up to `scn`.

        Args:
            session: of the subscriber; once it has ended and a newer one began, nothing is noted.
            source: one of those it subscribed to.
            scn: of that source; one that is not above the last is ignored.

        Raises:
            ProtocolError: the session did not subscribe to the source.
        """
        ...

    def dequeue(self, session: _Subscriber) -> Delivery | None:
        """The next batch for the subscriber; None when there is none or no credit."""
        ...

    def close_subscriber(self, session: _Subscriber) -> None:
        """The stream is gone; idempotent."""
        ...

    def open_publisher(self, component: str, incarnation: str, source: str) -> _Publisher:
        """Begin a publisher's session; an older incarnation's ends.

        Args:
            component: name of the capture process or propagation.
            incarnation: orders the sessions of one component; greater is newer.
            source: the site whose LCRs it sends.

        Raises:
            QueueError: the queue takes no LCRs of this source, or a newer incarnation or another publisher is
                connected.
        """
        ...

    def resume(self, session: _Publisher) -> tuple[Scn, int]:
        """Where the publisher must begin (everything after this SCN), and its first credit in bytes."""
        ...

    def check_credit(self, session: _Publisher, size: int) -> None:
        """Refuse a batch of which the first piece has come, before the others are kept.

        Args:
            session: of the publisher.
            size: bytes of the whole batch, as its first piece declares them.

        Raises:
            ProtocolError: it exceeds the credit; the session must end.
        """
        ...

    def enqueue(self, session: _Publisher, header: BatchHeader, data: bytes) -> None:
        """Take a batch. One the queue has already counts as taken.

        Args:
            session: of the publisher.
            header: of the batch.
            data: the encoded batch, header included.

        Raises:
            ProtocolError: it does not follow the batch before; the session must end.
        """
        ...

    def gone(self, session: _Publisher, first_scn: Scn) -> None:
        """Note that the publisher has nothing up to `first_scn` any more, though it was asked for less.

        Args:
            session: of the publisher, which sends nothing until it is asked again.
            first_scn: it can send everything after this. Subscribers that need more are refused, the others go on.
        """
        ...

    def publisher_news(self, session: _Publisher) -> PublisherNews | None:
        """What changed for the publisher since it was last asked."""
        ...

    def close_publisher(self, session: _Publisher) -> None:
        """The stream is gone; idempotent."""
        ...

    def housekeeping(self) -> float:
        """Do what time asks for; answers in how many seconds to be called again."""
        ...

    def positions_to_save(self) -> Mapping[str, Mapping[str, Scn]] | None:
        """Acknowledged positions that changed since they were saved, or None. (source -> subscriber -> SCN)."""
        ...

    def save_positions(self, positions: Mapping[str, Mapping[str, Scn]]) -> None:
        """Make positions durable. The only method that may be called without the lock: it writes a file.

        Does nothing if they are outdated.

        Args:
            positions: what `positions_to_save` answered, the same object.

        Raises:
            OSError: they could not be written.
        """
        ...

    def positions_saved(self, positions: Mapping[str, Mapping[str, Scn]], problem: OSError | None) -> None:
        """Tell the outcome of `save_positions`.

        Args:
            positions: those that `save_positions` got.
            problem: why they are not on disk; None: they are.
        """
        ...

    def status(self) -> QueueStatus:
        """Its statistics."""
        ...

    def close(self) -> None:
        """Save what is left to save and let go of the files; idempotent.

        Raises:
            OSError: the positions could not be saved.
        """
        ...


class LockedQueue(Generic[_Publisher, _Subscriber]):
    """A queue behind its lock. Its streams wait on the lock's condition for what the queue has for them.

    Args:
        core: the queue; from now on it is only touched behind this lock.
    """

    def __init__(self, core: QueuePort[_Publisher, _Subscriber]) -> None:
        self._core = core
        self._changed = threading.Condition(threading.Lock())
        self._seen, self._seen_at = core.status(), time.monotonic()

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Hold the lock while the caller reads from the core, or changes what no stream waits for."""
        with self._changed:
            yield

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock while the caller changes the core; streams look at it again afterwards."""
        with self._changed:
            yield
            self._changed.notify_all()

    def housekeeping(self) -> float:
        """Do what time asks for, saving positions outside of the lock; answers the seconds until the next time."""
        with self._changed:
            pause_s = self._core.housekeeping()
            positions = self._core.positions_to_save()
            self._changed.notify_all()
        if positions is not None:
            problem: OSError | None = None
            try:
                self._core.save_positions(positions)
            except OSError as error:
                problem = error
            with self._changed:
                self._core.positions_saved(positions, problem)
                self._changed.notify_all()
        return pause_s

    def status(self) -> QueueStatus:
        """The queue's statistics.

        While something holds the queue (a disk that hangs) the last ones, with that as their `problem`.
        """
        if not self._changed.acquire(timeout=_STATUS_WAIT_S):
            age_s = time.monotonic() - self._seen_at
            problem = f"the queue is held, by a write to its disk perhaps; these figures are {age_s:.0f} s old"
            return replace(self._seen, problem=self._seen.problem or problem)
        try:
            self._seen, self._seen_at = self._core.status(), time.monotonic()
        finally:
            self._changed.release()
        return self._seen

    def close(self) -> None:
        """Close the queue; its streams have ended before. Idempotent.

        Raises:
            OSError: the last positions could not be saved.
        """
        with self._changed:
            self._core.close()
