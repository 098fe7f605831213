"""The protocol between publishers, queues and subscribers, apart from the transport.

A queue is one object behind one lock (`LockedQueue`). Publishers and subscribers hold a session each. They fetch the
queue's news (`publisher_news`, `dequeue`), so many changes between two calls become one.
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

_STATUS_WAIT_S = 0.25  # a holder of the lock needs milliseconds, except for a write to a disk that hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherNews:
    """Changes for a publisher; None: no change.

    Args:
        through_scn: the queue's position in the publisher's source.
        accepted_bytes: bytes of this session's batches that the queue has taken since the session began.
        credit_bytes: bytes that may be in flight at once; 0: paused for flow control.
        durable_scn: committed at every subscriber up to here; the queue keeps this across restarts.
        rewind_scn: the queue no longer has what a subscriber needs: send everything after this again.
    """

    through_scn: Scn
    accepted_bytes: int
    credit_bytes: int
    durable_scn: Scn | None = None
    rewind_scn: Scn | None = None


class PublisherAccount:
    """A publisher's account of its stream: sent data, and the queue's reports. Not thread-safe.

    Attributes:
        accepted_scn: as in `PublisherProgress`.
        durable_scn: as in `PublisherProgress`.
        credit_bytes: as in `PublisherProgress`.
        rewind_scn: position from which the queue wants changes again, until `progress` has returned it; None: none.
    """

    def __init__(self) -> None:
        self.accepted_scn = self.durable_scn = FIRST_SCN
        self.rewind_scn: Scn | None = None
        self.credit_bytes = 0
        self._sent_bytes = self._accepted_bytes = 0

    def opened(self, needed_scn: Scn, credit_bytes: int) -> None:
        """Note that the queue has taken the stream.

        Args:
            needed_scn: position where the stream begins.
            credit_bytes: its first credit.
        """
        self.accepted_scn, self.credit_bytes = needed_scn, credit_bytes

    def accepted(self, through_scn: Scn, accepted_bytes: int, credit_bytes: int) -> None:
        """Note the queue's progress.

        Args:
            through_scn: as in `PublisherNews`.
            accepted_bytes: as in `PublisherNews`.
            credit_bytes: as in `PublisherNews`.
        """
        self.accepted_scn, self._accepted_bytes, self.credit_bytes = through_scn, accepted_bytes, credit_bytes

    def rewound(self, rewind_scn: Scn) -> None:
        """Note that the queue wants everything after an SCN again."""
        self.rewind_scn = rewind_scn
        self.durable_scn = FIRST_SCN  # the queue reports it again: a destination may have been restored from a backup

    def hear(self, news: PublisherNews) -> None:
        """Process news of the queue."""
        if news.rewind_scn is not None:
            self.rewound(news.rewind_scn)
        self.accepted(news.through_scn, news.accepted_bytes, news.credit_bytes)
        if news.durable_scn is not None:
            self.durable_scn = news.durable_scn

    def has_credit(self, size: int) -> bool:
        """Whether so many bytes may be sent now; a batch that is larger than the credit is sent alone."""
        in_flight = self._sent_bytes - self._accepted_bytes
        return self.credit_bytes > 0 and (in_flight == 0 or in_flight + size <= self.credit_bytes)

    def sent(self, size: int) -> None:
        """Note that so many bytes are in flight.

        Raises:
            WouldBlock: the credit does not suffice; nothing is changed.
        """
        if not self.has_credit(size):
            raise WouldBlock
        self._sent_bytes += size

    def progress(self) -> PublisherProgress:
        """Return the current state of the stream; a rewind is returned once."""
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
        """Why the queue ended the session; None while it is open."""
        ...


_Publisher = TypeVar("_Publisher", bound=SessionPort)
_Subscriber = TypeVar("_Subscriber", bound=SessionPort)


class QueuePort(Protocol[_Publisher, _Subscriber]):
    """A queue, as its server sees it. Not thread-safe: a lock is held around every call (`LockedQueue`)."""

    @property
    def topology_name(self) -> str:
        """The topology of the queue."""
        ...

    @property
    def name(self) -> str:
        """The queue's name in the topology."""
        ...

    @property
    def takes_publishers(self) -> bool:
        """Whether publishers connect with streams; False: its publisher is in the same process."""
        ...

    def open_subscriber(
        self, component: str, incarnation: str, needed: Mapping[str, Scn], credit_bytes: int
    ) -> _Subscriber:
        """Begin a subscriber's session; a session of an older incarnation ends.

        Args:
            component: name of the propagation or apply process.
            incarnation: orders the sessions of one component; greater is newer.
            needed: per source, the SCN after which the subscriber needs everything; FIRST_SCN: it has nothing.
            credit_bytes: bytes that it can take before the first `grant`.

        Raises:
            QueueError: it is no subscriber of this queue for these sources, or a newer incarnation is connected.
            LogGone: changes that it needs are known to be gone.
        """
        ...

    def grant(self, session: _Subscriber, credit_bytes: int) -> None:
        """Add to the subscriber's credit.

        Args:
            session: the subscriber's session.
            credit_bytes: added bytes; a batch may exceed the rest of the credit, the next one then waits.
        """
        ...

    def acknowledge(self, session: _Subscriber, source: str, scn: Scn) -> None:
        """Note that the subscriber's destinations have committed everything up to `scn`.

        Args:
            session: the subscriber's session; if it has ended and a newer one began, nothing is noted.
            source: a subscribed source.
            scn: position in that source; one that is not above the last is ignored.

        Raises:
            ProtocolError: the session did not subscribe to the source.
        """
        ...

    def dequeue(self, session: _Subscriber) -> Delivery | None:
        """Return the next batch for the subscriber; None: no batch or no credit."""
        ...

    def close_subscriber(self, session: _Subscriber) -> None:
        """Note that the stream has ended; idempotent."""
        ...

    def open_publisher(self, component: str, incarnation: str, source: str) -> _Publisher:
        """Begin a publisher's session; a session of an older incarnation ends.

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
        """Return where the publisher must begin (everything after this SCN), and its first credit in bytes."""
        ...

    def check_credit(self, session: _Publisher, size: int) -> None:
        """Check a batch against the credit when its first piece arrives, before the others are kept.

        Args:
            session: the publisher's session.
            size: bytes of the whole batch, as its first piece declares them.

        Raises:
            ProtocolError: it exceeds the credit; the session must end.
        """
        ...

    def enqueue(self, session: _Publisher, header: BatchHeader, data: bytes) -> None:
        """Take a batch. A duplicate counts as taken.

        Args:
            session: the publisher's session.
            header: the batch's header.
            data: the encoded batch, header included.

        Raises:
            ProtocolError: it does not follow the batch before; the session must end.
        """
        ...

    def gone(self, session: _Publisher, first_scn: Scn) -> None:
        """Note that the publisher no longer has anything up to `first_scn`, though an earlier position was requested.

        Args:
            session: session of the publisher, which sends nothing until the next request.
            first_scn: it can send everything after this. Subscribers that need more are refused, the others continue.
        """
        ...

    def publisher_news(self, session: _Publisher) -> PublisherNews | None:
        """Return what changed for the publisher since the last call."""
        ...

    def close_publisher(self, session: _Publisher) -> None:
        """Note that the stream has ended; idempotent."""
        ...

    def housekeeping(self) -> float:
        """Run timed work; return the seconds until the next call."""
        ...

    def positions_to_save(self) -> Mapping[str, Mapping[str, Scn]] | None:
        """Return acknowledged positions that changed since they were saved, or None. (source -> subscriber -> SCN)."""
        ...

    def save_positions(self, positions: Mapping[str, Mapping[str, Scn]]) -> None:
        """Make positions durable; outdated positions are skipped. The only method that needs no lock: it writes a file.

        Args:
            positions: the object that `positions_to_save` returned.

        Raises:
            OSError: they could not be written.
        """
        ...

    def positions_saved(self, positions: Mapping[str, Mapping[str, Scn]], problem: OSError | None) -> None:
        """Note the outcome of `save_positions`.

        Args:
            positions: those given to `save_positions`.
            problem: why they are not on disk; None: they are.
        """
        ...

    def status(self) -> QueueStatus:
        """Return the queue's statistics."""
        ...

    def close(self) -> None:
        """Save unsaved positions and close the files; idempotent.

        Raises:
            OSError: the positions could not be saved.
        """
        ...


class LockedQueue(Generic[_Publisher, _Subscriber]):
    """A queue behind its lock. Its streams wait on the lock's condition for news of the queue.

    Args:
        core: the queue; from now on only accessed behind this lock.
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
        """Run timed work, saving positions outside of the lock; return the seconds until the next run."""
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
        """Return the queue's statistics.

        While another thread holds the queue (a disk that hangs), return the last ones, with that as their `problem`.
        """
        if not self._changed.acquire(timeout=_STATUS_WAIT_S):
            age_s = time.monotonic() - self._seen_at
            problem = f"the queue is locked, perhaps by a slow write to its disk; these figures are {age_s:.0f} s old"
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
