"""The simulated network between queues and their clients, which delays messages in both directions.

Each stream behaves like the gRPC stream that it replaces (`protos.links.queue_link`): the queue's end like
`QueueService`, the client's end like `EnqueueClient` and `DequeueClient`. Within a stream, messages arrive once and in
order, as TCP guarantees. Faults happen to whole streams and between them:

    cut         everything in flight is lost, and each end notices it at a different time
    delay       a stream delivers nothing for a while
    duplicate   the client's end breaks but its messages arrive: the client opens another stream and sends them again
    reorder     as duplicate, and the old stream's messages arrive later than those of the new one
    partition   sites in different parts cannot reach each other, and streams between them are cut
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from actors.staging.queue import QueueCore
from actors.staging.queue_sessions import PublisherSession, SubscriberSession
from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, PropagationError
from headrace.lcr.scn import Scn
from headrace.links.ports import BatchHeader, Delivery, Piece, PieceCompressor, PublisherProgress, RedoWatch, Resume
from headrace.links.staging import LockedQueue, PublisherAccount, PublisherNews, QueuePort
from headrace.simulation.observing.trace import Trace
from headrace.status.component import WireStatus

__all__ = ["DequeueStream", "EnqueueStream", "Network", "SimulatedLinks", "Unserved"]

_CREDIT_BYTES_MAX = 4000  # about four batches: so little that credit which is not returned shows at once
_MESSAGES_AT_ONCE = 4  # delivered in one step: so few that much can happen in between


class Network:
    """All streams, and all queues that are served.

    Args:
        rng: decides when messages arrive.
        site_of: returns the site of a component or queue by name.
        clock: the simulation's clock.
        trace: the run's trace.
    """

    def __init__(
        self,
        rng: random.Random,
        site_of: Callable[[str], str],
        clock: Clock,
        trace: Trace,
    ) -> None:
        self.rng, self._site_of, self.clock, self.trace = rng, site_of, clock, trace
        self.streams: list[_Stream] = []
        self._served: dict[str, QueueCore] = {}
        self._incarnations = 0
        self._apart: frozenset[str] = frozenset()  # sites that cannot reach the others

    def incarnation(self) -> str:
        """Return a new incarnation, greater than all before it, as `transport.new_incarnation`."""
        self._incarnations += 1
        return f"{self._incarnations:08d}"

    def served(self, name: str, core: QueueCore) -> None:
        """Start to serve a queue.

        Args:
            name: name of the queue, or of the capture process that mounts it.
            core: the queue.
        """
        self._served[name] = core

    def core(self, name: str) -> QueueCore | None:
        """Return the core served under a name, as in `served`; None: no core is."""
        return self._served.get(name)

    def reach(self, name: str, component: str) -> QueueCore:
        """Return the core of a queue.

        Args:
            name: the queue's name.
            component: the component that connects.

        Raises:
            PropagationError: it does not answer.
        """
        core = self.core(name)
        if core is None or self._is_apart(name, component) or self.rng.random() < 0.05:
            raise PropagationError(f"queue {name} does not answer")
        return core

    def serve(self, name: str) -> None:
        """Let a queue's end of its streams do some work; an exception of the core that is no `HeadraceError` passes."""
        for stream in [each for each in self.streams if each.queue == name]:
            if self.rng.random() < 0.7:
                stream.serve(self.rng)

    def deliver(self) -> None:
        """Deliver some messages from queues to their clients."""
        for stream in list(self.streams):
            if self.rng.random() < 0.7:
                stream.deliver(self.rng)
        self.streams = [each for each in self.streams if not (each.client_left and each.server_left)]

    def queue_died(self, name: str) -> None:
        """Stop serving a queue; everything on its streams is lost."""
        self._served.pop(name, None)
        for stream in self.streams:
            if stream.queue == name:
                stream.is_cut = stream.server_left = True

    # ------------------------------------------------------------------ faults

    def cut_one(self) -> bool:
        """Lose everything on one stream; both ends notice it later."""
        return self._disturb("cut", lambda stream: setattr(stream, "is_cut", True))

    def delay_one(self) -> bool:
        """Let one stream deliver nothing for a while."""
        return self._disturb("delayed", lambda stream: stream.hold(self.rng.uniform(0.3, 5.0)))

    def repeat_one(self) -> bool:
        """Break the client's end of one stream; its messages arrive nevertheless, and the client sends them again."""
        return self._disturb("broken at the client's end", _Stream.break_client)

    def overtake_one(self) -> bool:
        """Break the client's end of one stream; its messages arrive after those of the next stream."""

        def late(stream: _Stream) -> None:
            stream.break_client()
            stream.hold(self.rng.uniform(0.3, 3.0))

        return self._disturb("broken at the client's end, its messages are late", late)

    def part(self, sites: frozenset[str]) -> None:
        """Separate these sites from all others; an empty set heals the network."""
        self._apart = sites
        for stream in self.streams:
            stream.is_cut |= self._is_apart(stream.queue, stream.component)

    def is_reachable(self, one: str, other: str) -> bool:
        """Return whether two sites reach each other."""
        return (one in self._apart) == (other in self._apart)

    def _is_apart(self, queue: str, component: str) -> bool:
        return bool(self._apart) and (self._site_of(queue) in self._apart) != (self._site_of(component) in self._apart)

    def _disturb(self, what: str, disturb: Callable[[_Stream], object]) -> bool:
        open_ones = [each for each in self.streams if not each.is_cut and not each.client_left and each.problem is None]
        if open_ones:
            stream = self.rng.choice(open_ones)
            self.trace.note(str(stream), what)
            disturb(stream)
        return bool(open_ones)


class Unserved(LockedQueue[PublisherSession, SubscriberSession]):
    """Like `QueueServer`, but without a server: its queue is called directly."""

    endpoint = ""

    def admit(self, callers: Mapping[str, Mapping[str, str]]) -> None:
        """Do nothing: callers are not checked here."""

    def wire_status(self) -> WireStatus | None:
        """Return None: there is no wire."""
        return None

    def stop(self) -> None:
        """Close the queue."""
        self.close()


class _Served(Unserved):
    def __init__(self, network: Network, name: str, core: QueueCore) -> None:
        super().__init__(core)
        self._network, self._name = network, name
        network.served(name, core)

    def stop(self) -> None:
        self._network.queue_died(self._name)
        super().stop()


class SimulatedLinks:
    """`headrace.links.serving.Links` over a simulated network.

    Args:
        network: the network that carries the streams.
        component: name of the component that connects.
        redo: opens a stream from the keeper of redo; None: the component reads no redo.
        reached_as: maps a queue to the name under which it is served; None: its own name.
    """

    def __init__(
        self,
        network: Network,
        component: str,
        redo: Callable[[], RedoWatch] | None = None,
        reached_as: Callable[[str], str] | None = None,
    ) -> None:
        self._network, self._component, self._redo, self._reached_as = network, component, redo, reached_as

    def publisher(self, queue: str, source: str, compressor: PieceCompressor | None = None) -> EnqueueStream:
        """Return a publisher's stream; compression is not simulated."""
        return EnqueueStream(self._network, queue, self._component, self._network.incarnation(), source)

    def subscriber(self, queue: str) -> DequeueStream:
        """Return a subscriber's stream."""
        name = queue if self._reached_as is None else self._reached_as(queue)
        return DequeueStream(self._network, name, self._component, self._network.incarnation())

    def redo(self, keeper: str, source: str) -> RedoWatch:
        """Return a watch of a redo log."""
        assert self._redo is not None, f"{self._component} reads no redo"
        return self._redo()

    def serve(self, core: QueuePort[Any, Any]) -> Unserved:
        """Serve a queue."""
        assert isinstance(core, QueueCore)
        return _Served(self._network, self._component, core)


class _Stream:
    """One stream; subclasses define what is sent on it."""

    session: Any

    def __init__(self, network: Network, queue: str, component: str) -> None:
        self.queue, self.component = queue, component
        self._network = network
        self._core: QueueCore | None = None
        self.up: deque[Any] = deque()
        self.down: deque[Any] = deque()
        self.problem: HeadraceError | None = None
        self.is_cut = self.client_left = self.server_left = False
        self._held_until = 0.0

    def __str__(self) -> str:
        return f"{self.component} - queue {self.queue}"

    def hold(self, seconds: float) -> None:
        """Let nothing through for so many seconds."""
        self._held_until = self._network.clock.monotonic() + seconds

    def break_client(self) -> None:
        """Report a broken stream to the client's end."""
        self.problem = self.problem or PropagationError(f"the stream to queue {self.queue} broke")

    @property
    def _is_held(self) -> bool:
        return self._network.clock.monotonic() < self._held_until

    def _note(self, what: str, header: BatchHeader) -> None:
        self._network.trace.note(str(self), what, header.source, header.previous_scn, header.through_scn)

    def _open(self, core: QueueCore) -> None:
        self._core = core
        self._network.streams.append(self)

    # ------------------------------------------------------------------ the queue's end

    def serve(self, rng: random.Random) -> None:
        """Let the queue's end take and send some messages; an exception other than `HeadraceError` passes."""
        if self.server_left or self._is_held:
            return
        if self.is_cut:
            if rng.random() < 0.2:
                self._leave()
            return
        problem: HeadraceError | None = None
        try:
            for _ in range(rng.randrange(_MESSAGES_AT_ONCE + 1)):
                if self.up:
                    self._take(self.up.popleft())
        except HeadraceError as error:
            problem = error
        problem = problem or self.session.ended
        if problem is not None:
            self.down.append(problem)
            self._leave()
            return
        if self.client_left:
            if not self.up:
                self._leave()
            return
        for _ in range(rng.randrange(_MESSAGES_AT_ONCE + 1)):
            if (answer := self._ask()) is None:
                break
            self.down.append(answer)

    def _leave(self) -> None:
        self.server_left = True
        self._close_session()

    # ------------------------------------------------------------------ the client's end

    def deliver(self, rng: random.Random) -> None:
        """Let the client's end receive some messages."""
        if self.client_left or self.problem is not None:
            self.down.clear()
            return
        if self._is_held:
            return
        if self.is_cut:
            if rng.random() < 0.2:
                self.break_client()
            return
        for _ in range(rng.randrange(_MESSAGES_AT_ONCE + 1)):
            if not self.down:
                break
            message = self.down.popleft()
            if isinstance(message, HeadraceError):
                self.problem = self.problem or message
            else:
                self._hear(message)

    def close(self) -> None:
        """Close the client's end."""
        self.client_left = True
        if self._core is None:
            self.server_left = True

    def _check(self) -> None:
        if self.problem is not None:
            raise self.problem

    # ------------------------------------------------------------------ for subclasses

    def _take(self, message: Any) -> None:
        raise NotImplementedError

    def _ask(self) -> Any:
        raise NotImplementedError

    def _hear(self, message: Any) -> None:
        raise NotImplementedError

    def _close_session(self) -> None:
        raise NotImplementedError


class EnqueueStream(_Stream):
    """A publisher's stream; the client's end behaves like `EnqueueClient`."""

    def __init__(self, network: Network, queue: str, component: str, incarnation: str, source: str) -> None:
        super().__init__(network, queue, component)
        self._incarnation, self._source = incarnation, source
        self._account = PublisherAccount()

    def connect(self, timeout_s: float = 0.0) -> Resume:
        """Open the stream, and return where to resume."""
        core = self._network.reach(self.queue, self.component)
        self.session = core.open_publisher(self.component, self._incarnation, self._source)
        needed, credit = core.resume(self.session)
        self._account.opened(needed, credit)
        self._open(core)
        return Resume(needed_scn=needed, credit_bytes=credit)

    def send_nowait(self, header: BatchHeader, data: bytes) -> None:
        """Send a batch."""
        self._check()
        self._account.sent(len(data))
        self.up.append(Delivery(header=header, data=data))

    def begin_nowait(self, header: BatchHeader, data: bytes, piece_bytes: int) -> Iterator[Piece]:
        """Send a batch in pieces; the queue's end gets it with the last piece."""
        self._check()
        self._account.sent(len(data))
        return self._pieces(header, data, piece_bytes)

    def _pieces(self, header: BatchHeader, data: bytes, piece_bytes: int) -> Iterator[Piece]:
        for start in range(0, len(data), piece_bytes):
            is_last = start + piece_bytes >= len(data)
            if is_last:
                self.up.append(Delivery(header=header, data=data))
            yield Piece(size=min(piece_bytes, len(data) - start), is_last=is_last)

    def gone(self, first_scn: Scn) -> None:
        """Report that redo below this SCN is gone."""
        self.up.append(first_scn)

    def poll(self) -> PublisherProgress:
        """Return the progress; raise the error that ended the stream."""
        self._check()
        return self._account.progress()

    def _take(self, message: Delivery | Scn) -> None:
        assert self._core is not None
        if not isinstance(message, Delivery):
            self._core.gone(self.session, message)
            return
        self._note("enqueued", message.header)
        self._core.enqueue(self.session, message.header, message.data)

    def _ask(self) -> PublisherNews | None:
        assert self._core is not None
        return self._core.publisher_news(self.session)

    def _hear(self, message: PublisherNews) -> None:
        self._account.hear(message)

    def _close_session(self) -> None:
        assert self._core is not None
        self._core.close_publisher(self.session)


class DequeueStream(_Stream):
    """A subscriber's stream; the client's end behaves like `DequeueClient`."""

    def __init__(self, network: Network, queue: str, component: str, incarnation: str) -> None:
        super().__init__(network, queue, component)
        self._incarnation = incarnation
        self._arrived: deque[Delivery] = deque()

    def subscribe(self, needed: Mapping[str, Scn], credit_bytes: int, timeout_s: float = 0.0) -> None:
        """Open the stream."""
        core = self._network.reach(self.queue, self.component)
        self.session = core.open_subscriber(
            self.component, self._incarnation, dict(needed), min(credit_bytes, _CREDIT_BYTES_MAX)
        )
        self._open(core)

    subscribe_nowait = subscribe  # a queue answers at once, or not at all

    @property
    def is_open(self) -> bool:
        """Whether the stream is open."""
        return self._core is not None

    def poll(self, timeout_s: float = 0.0) -> Delivery | None:
        """Return the next batch; None: nothing has arrived."""
        if self._arrived:
            return self._arrived.popleft()
        self._check()
        return None

    def grant(self, credit_bytes: int) -> None:
        """Grant credit to the queue."""
        self.up.append(credit_bytes)

    def acknowledge(self, source: str, scn: Scn) -> None:
        """Acknowledge everything of a source up to this SCN."""
        self.up.append((source, scn))

    def _take(self, message: Any) -> None:
        assert self._core is not None
        if isinstance(message, tuple):
            self._core.acknowledge(self.session, *message)
        else:
            self._core.grant(self.session, message)

    def _ask(self) -> Delivery | None:
        assert self._core is not None
        return self._core.dequeue(self.session)

    def _hear(self, message: Delivery) -> None:
        self._note("dequeued", message.header)
        self._arrived.append(message)

    def _close_session(self) -> None:
        assert self._core is not None
        self._core.close_subscriber(self.session)
