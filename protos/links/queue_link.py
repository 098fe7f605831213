"""Queues over gRPC: the server's side of a queue, and the clients of publishers and subscribers.

Longer than 500 lines: both ends of one conversation must be read together.

Job
    Carry batches into and out of a queue, with credit forwards and DURABLE backwards, and wake waiting threads at once.

Main path
    EnqueueClient.send -> QueueService.Enqueue -> QueuePort.enqueue
    QueuePort.dequeue -> QueueService.Dequeue -> DequeueClient.poll; DequeueClient.acknowledge -> QueuePort.acknowledge

Threads
    A client belongs to one thread; gRPC's threads only store arriving messages for `poll`, and call `wake`. A queue is
    behind one lock: two threads per stream, one that reads and one that writes, wait on its condition.

Durable when
    Never here. `PublisherProgress.durable_scn` is what the queue has on disk; everything else is lost with a stream.

Worked flow
    publisher: hello, source -> Resume{needed 30, credit 16 MiB} -> batches 30..50, 50..60 -> Accepted{60} ->
      Durable{50}
    the stream breaks -> PropagationError from the next call -> close, resolve again, connect: Resume{60}
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

from headrace.base.errors import ConfigError, HeadraceError, PropagationError, ProtocolError, QueueError
from headrace.lcr.scn import Scn
from headrace.links.ports import BatchHeader, Delivery, Piece, PieceCompressor, PublisherProgress, Resume
from headrace.links.staging import LockedQueue, PublisherAccount, PublisherNews, QueuePort, SessionPort
from headrace.status.component import WireStatus
from protos import codec, queue_pb2, queue_pb2_grpc
from protos.codec import scn_from_message
from protos.wire import transport
from protos.wire.admission import PUBLISH, SUBSCRIBE, Admission, Callers
from protos.wire.fragments import Reassembly, fragments
from protos.wire.identity import Peer
from protos.wire.transport import Channel, ClientStream, Outbox, Server

__all__ = [
    "CONNECT_TIMEOUT_S",
    "DequeueClient",
    "EnqueueClient",
    "QueueServer",
    "QueueService",
]

# Between two acknowledgements of a source on one stream: those in between are merged. Only the removal of durable batches
# waits for an acknowledgement; the queue accepts four times as many messages (`protos.wire.rates`).
ACKNOWLEDGE_INTERVAL_S = 0.002
CONNECT_TIMEOUT_S = 10.0  # a node under full load answers within this; after it, the address is resolved again

_Publisher = TypeVar("_Publisher", bound=SessionPort)
_Subscriber = TypeVar("_Subscriber", bound=SessionPort)
_Session = TypeVar("_Session", bound=SessionPort)
_Answer = TypeVar("_Answer")
Address = Peer | str | Callable[[], Peer | str]


# --------------------------------------------------------------------------- the queue's side


class _Stream:
    """Whether a stream's requests have ended, and why. Guarded by the service's condition."""

    def __init__(self) -> None:
        self.is_done = False
        self.problem: HeadraceError | None = None


class QueueService(LockedQueue[_Publisher, _Subscriber], queue_pb2_grpc.QueueServicer):  # type: ignore[misc]
    """The gRPC service of one queue.

    Args:
        core: the queue; from now on it is only accessed behind this service's lock.
        admission: admission of its callers; None: any caller with a valid handshake.
    """

    def __init__(self, core: QueuePort[_Publisher, _Subscriber], admission: Admission | None = None) -> None:
        super().__init__(core)
        self._admission = admission or Admission()

    def register(self, server: Any) -> None:  # noqa: ANN401 - a grpc.Server
        """Add the service to a server."""
        queue_pb2_grpc.add_QueueServicer_to_server(self, server)

    def Enqueue(  # noqa: N802 - the name in the protocol
        self,
        requests: Iterator[queue_pb2.EnqueueRequest],
        context: Any,  # noqa: ANN401
    ) -> Iterator[queue_pb2.EnqueueReply]:
        """Serve a publisher's stream; called by gRPC. See `Queue.Enqueue` in queue.proto."""
        if not self._core.takes_publishers:
            transport.abort(
                context,
                QueueError(
                    f"{self._core.name} takes no publishers here",
                    hint="its capture process sends straight to its apply process",
                ),
            )
        try:
            with self._admission.opening(context):
                hello = self._hello(requests, context, PUBLISH)
                source = _expect(next(requests, None), "source").source
            with self._changed:
                session = self._core.open_publisher(hello.component, hello.incarnation, source)
                needed, credit = self._core.resume(session)
                self._changed.notify_all()  # ends the stream that this one replaced
        except HeadraceError as error:
            transport.abort(context, error)
        reassembly = Reassembly()

        def take(request: queue_pb2.EnqueueRequest) -> None:
            if request.WhichOneof("kind") == "gone":
                with self._changed:
                    self._core.gone(session, scn_from_message(request.gone.scn))
                    self._changed.notify_all()
                return
            fragment = _expect(request, "fragment").fragment
            if fragment.HasField("header") and not fragment.last:
                with self._changed:
                    self._core.check_credit(session, fragment.total_bytes)
            whole = reassembly.add(fragment)
            if whole is not None:
                header = codec.header_from_message(whole[0])
                with self._changed:
                    self._core.enqueue(session, header, whole[1])
                    self._changed.notify_all()

        try:
            stream = self._read(requests, context, take)
            yield queue_pb2.EnqueueReply(
                resume=queue_pb2.Resume(
                    needed_scn=needed,
                    credit_bytes=credit,
                    compressions=[queue_pb2.ZSTD],
                )
            )
            while (news := self._wait(session, stream, self._core.publisher_news, context)) is not None:
                yield from _replies(news, source)
        finally:
            with self._changed:
                self._core.close_publisher(session)
                self._changed.notify_all()

    def Dequeue(  # noqa: N802 - the name in the protocol
        self,
        requests: Iterator[queue_pb2.DequeueRequest],
        context: Any,  # noqa: ANN401
    ) -> Iterator[queue_pb2.DequeueReply]:
        """Serve a subscriber's stream; called by gRPC. See `Queue.Dequeue` in queue.proto."""
        try:
            with self._admission.opening(context):
                hello = self._hello(requests, context, SUBSCRIBE)
                subscribe = _expect(next(requests, None), "subscribe").subscribe
                needed = {position.source: scn_from_message(position.scn) for position in subscribe.needed}
                _check_credit(subscribe.credit_bytes)
            with self._changed:
                session = self._core.open_subscriber(hello.component, hello.incarnation, needed, subscribe.credit_bytes)
                self._changed.notify_all()  # ends the stream that this one replaced; a publisher may have to rewind
        except HeadraceError as error:
            transport.abort(context, error)

        def take(request: queue_pb2.DequeueRequest) -> None:
            kind = request.WhichOneof("kind")
            with self._changed:
                if kind == "credit_bytes":
                    _check_credit(request.credit_bytes)
                    self._core.grant(session, request.credit_bytes)
                elif kind == "durable":
                    self._core.acknowledge(session, request.durable.source, scn_from_message(request.durable.scn))
                else:
                    raise ProtocolError(f"a subscriber sent {kind} after its subscription")
                self._changed.notify_all()

        try:
            transport.accept(context)  # raises if the caller has already disconnected
            stream = self._read(requests, context, take)
            while (delivery := self._wait(session, stream, self._core.dequeue, context)) is not None:
                header = codec.header_to_message(delivery.header)
                for fragment in fragments(header, delivery.data):
                    yield queue_pb2.DequeueReply(fragment=fragment)
        finally:
            with self._changed:
                self._core.close_subscriber(session)
                self._changed.notify_all()

    def _hello(self, requests: Iterator[Any], context: Any, role: str) -> queue_pb2.Hello:  # noqa: ANN401
        hello: queue_pb2.Hello = _expect(next(requests, None), "hello").hello
        transport.check_hello(hello, self._core.topology_name, self._core.name)
        self._admission.check(context, role, hello.component)
        return hello

    def _read(self, requests: Iterator[Any], context: Any, take: Callable[[Any], None]) -> _Stream:  # noqa: ANN401
        stream = _Stream()

        def ended(problem: HeadraceError | None) -> None:
            with self._changed:
                stream.problem = stream.problem or problem
                stream.is_done = True
                self._changed.notify_all()

        transport.read_requests(requests, take, ended)
        if not context.add_callback(lambda: ended(None)):
            ended(None)  # the caller has already disconnected
        return stream

    def _wait(
        self,
        session: _Session,
        stream: _Stream,
        ask: Callable[[_Session], _Answer | None],
        context: Any,  # noqa: ANN401
    ) -> _Answer | None:
        """Wait for the queue's next answer to a session; None: the stream has ended."""
        with self._changed:
            while True:
                problem = session.ended or stream.problem
                if problem is not None or stream.is_done:
                    break
                answer = ask(session)
                if answer is not None:
                    return answer
                self._changed.wait()
        if problem is not None:
            transport.abort(context, problem)
        return None


def _expect(message: Any, kind: str) -> Any:  # noqa: ANN401 - a request
    found = None if message is None else message.WhichOneof("kind")
    if found != kind:
        raise ProtocolError(f"the caller sent {found or 'nothing'} where {kind} was expected")
    return message


def _check_credit(credit_bytes: int) -> None:
    if credit_bytes <= 0:
        raise ProtocolError("a subscriber grants no credit, or takes it back", credit_bytes=credit_bytes)


def _replies(news: PublisherNews, source: str) -> Iterator[queue_pb2.EnqueueReply]:
    if news.rewind_scn is not None:
        yield queue_pb2.EnqueueReply(rewind=queue_pb2.SourcePosition(source=source, scn=news.rewind_scn))
    yield queue_pb2.EnqueueReply(
        accepted=queue_pb2.Accepted(
            through_scn=news.through_scn,
            credit_bytes=news.credit_bytes,
            accepted_bytes=news.accepted_bytes,
        )
    )
    if news.durable_scn is not None:
        yield queue_pb2.EnqueueReply(durable=queue_pb2.SourcePosition(source=source, scn=news.durable_scn))


class QueueServer(Generic[_Publisher, _Subscriber]):
    """A queue on its own port: its service and the server, as `headrace.links.serving.ServingQueue`.

    Args:
        host: address to listen on.
        admission: admission of its callers; None: any caller with a valid handshake, without TLS.
    """

    def __init__(
        self,
        core: QueuePort[_Publisher, _Subscriber],
        *,
        host: str = "127.0.0.1",
        admission: Admission | None = None,
    ) -> None:
        self._admission = admission
        self.service = service = QueueService(core, admission)
        self.holding, self.changing = service.holding, service.changing
        self.housekeeping, self.status = service.housekeeping, service.status
        self._server = Server([service.register], host=host, admission=admission)
        self.endpoint = self._server.endpoint

    def admit(self, callers: Callers) -> None:
        """Admit other callers from now on."""
        if self._admission is not None:
            self._admission.change(callers)

    def wire_status(self) -> WireStatus | None:
        """Return whom the server refused; None: it refuses nobody."""
        return None if self._admission is None else self._admission.status()

    def stop(self) -> None:
        """End every stream, then close the queue; idempotent.

        Raises:
            OSError: the last positions could not be saved.
        """
        self._server.stop()
        self.service.close()


# --------------------------------------------------------------------------- clients


class _Client:
    """Common part of the two clients: one stream, and its received messages, behind one condition."""

    def __init__(
        self,
        address: Address,
        *,
        topology: str,
        component: str,
        queue: str,
        incarnation: str,
        wake: Callable[[], None] | None,
    ) -> None:
        self._address = address
        self._peer = f"queue {queue}" if callable(address) else f"queue {queue} at {address}"
        self._topology, self._component, self._queue, self._incarnation = topology, component, queue, incarnation
        self._wake = wake
        self._changed = threading.Condition(threading.Lock())
        self._is_open = self._is_closed = False
        self._problem: HeadraceError | None = None
        self._channel: Channel | None = None
        self._outbox: Outbox[Any] = Outbox()
        self._stream: ClientStream[Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the queue has accepted the stream."""
        return self._is_open

    def _start(self, take: Callable[[Any], None]) -> None:
        """Begin the call and read it on the stream's thread; does not wait."""
        self._stream = ClientStream(self._dial, self._peer, opened=self._opened, take=take, ended=self._ended)

    def _dial(self) -> Any:  # noqa: ANN401 - a call
        address = self._address() if callable(self._address) else self._address
        channel = Channel(address)
        with self._changed:
            self._channel = channel
            is_closed = self._is_closed
        if is_closed:
            channel.close()
            raise PropagationError(f"{self._peer} was closed", hint="", peer=self._peer)
        hello = transport.make_hello(
            self._topology, self._component, Peer.of(address).serves or self._queue, self._incarnation
        )
        return self._call(queue_pb2_grpc.QueueStub(channel.grpc), hello)

    def _call(self, stub: Any, hello: queue_pb2.Hello) -> Any:  # noqa: ANN401 - a stub, a call
        """Begin the call with its first messages."""
        raise NotImplementedError

    def _wait(self, timeout_s: float) -> None:
        """Wait until the server has accepted the call."""
        with self._changed:
            self._changed.wait_for(self._is_settled, timeout_s)
            if not self._is_settled():
                self._problem = PropagationError(
                    f"{self._peer} did not answer within {timeout_s:g} s", hint="", peer=self._peer
                )
            problem = self._problem
        if problem is not None:
            self.close()
            raise problem

    def _is_settled(self) -> bool:
        return self._is_open or self._problem is not None

    def _opened(self) -> None:
        """Note that the server has accepted the call."""

    def _ended(self, problem: HeadraceError) -> None:
        with self._changed:
            self._problem = self._problem or problem
            self._changed.notify_all()
        self._ring()

    def _ring(self) -> None:
        if self._wake is not None:
            self._wake()

    def close(self) -> None:
        """End the stream and the connection; idempotent."""
        with self._changed:
            self._is_closed = True
            channel = self._channel
        self._outbox.close()
        if self._stream is not None:
            self._stream.close()
        if channel is not None:
            channel.close()


class EnqueueClient(_Client):
    """A publisher's stream into a queue, for one source.

    Args:
        address: the queue's endpoint, with the site whose certificate it must present; or a callable that returns it on
            the stream's thread.
        incarnation: incarnation of the component, from `transport.new_incarnation`.
        source: the source whose batches will be sent.
        wake: called on a gRPC thread whenever `poll` has news; must not block.
        compressor: compresses what is sent; None: no compression.
    """

    def __init__(
        self,
        address: Address,
        *,
        topology: str,
        component: str,
        queue: str,
        incarnation: str,
        source: str,
        wake: Callable[[], None] | None = None,
        compressor: PieceCompressor | None = None,
    ) -> None:
        super().__init__(
            address, topology=topology, component=component, queue=queue, incarnation=incarnation, wake=wake
        )
        self._source, self._compressor = source, compressor
        self._account = PublisherAccount()
        self._resume: Resume | None = None

    def connect(self, timeout_s: float = CONNECT_TIMEOUT_S) -> Resume:
        """Open the stream; call it once.

        Raises:
            PropagationError: the queue cannot be reached.
            ProtocolError: it speaks another version, does not accept this compression, or is another queue.
            HeadraceError: raised by the queue.
        """
        self._start(self._take)
        self._wait(timeout_s)
        assert self._resume is not None  # without an answer, `_wait` has raised
        return self._resume

    def _call(self, stub: Any, hello: queue_pb2.Hello) -> Any:  # noqa: ANN401 - a stub, a call
        begin = [queue_pb2.EnqueueRequest(hello=hello), queue_pb2.EnqueueRequest(source=self._source)]
        return stub.Enqueue(itertools.chain(begin, self._outbox))

    def send_nowait(self, header: BatchHeader, data: bytes) -> None:
        """Queue a batch for sending.

        Args:
            header: header of the batch.
            data: the encoded batch, header included. A batch larger than the credit is sent when nothing else is in
                flight.

        Raises:
            WouldBlock: there is no credit; `wake` is called when there may be some.
            HeadraceError: the stream has ended.
        """
        self._reserve(len(data))
        self._put(header, data)

    def begin_nowait(self, header: BatchHeader, data: bytes, piece_bytes: int) -> Iterator[Piece]:
        """Send a batch piece by piece: each piece drawn from the result is sent at that moment. Draw all of them.

        Args:
            header: header of the batch.
            data: the encoded batch, as for `send_nowait`.
            piece_bytes: maximum bytes of the batch in a piece.

        Raises:
            WouldBlock: there is no credit; `wake` is called when there may be some.
            HeadraceError: the stream has ended.
        """
        self._reserve(len(data))
        return self._put_pieces(
            fragments(
                codec.header_to_message(header),
                data,
                self._compressor,
                piece_bytes=piece_bytes,
            )
        )

    def _put_pieces(self, pieces: Iterator[queue_pb2.Fragment]) -> Iterator[Piece]:
        for fragment in pieces:
            message = queue_pb2.EnqueueRequest(fragment=fragment)
            self._outbox.put(message)
            yield Piece(size=message.ByteSize(), is_last=fragment.last)

    def _reserve(self, size: int) -> None:
        with self._changed:
            self._check()
            self._account.sent(size)

    def send(self, header: BatchHeader, data: bytes, timeout_s: float | None = None) -> None:
        """Queue a batch for sending, waiting for credit.

        Args:
            header: header of the batch.
            data: the encoded batch, as for `send_nowait`.
            timeout_s: seconds to wait for credit; None: until there is credit or the stream ends.

        Raises:
            WouldBlock: no credit within `timeout_s`.
            HeadraceError: the stream has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_credit(len(data)), timeout_s)
            self._account.sent(len(data))
        self._put(header, data)

    def gone(self, first_scn: Scn) -> None:
        """Report that nothing up to `first_scn` can be sent any longer.

        The next `poll` with a rewind says where to continue.
        """
        self._outbox.put(queue_pb2.EnqueueRequest(gone=queue_pb2.SourcePosition(source=self._source, scn=first_scn)))

    def poll(self) -> PublisherProgress:
        """Return the current progress of the stream.

        Raises:
            HeadraceError: the stream has ended.
        """
        with self._changed:
            self._check()
            return self._account.progress()

    def _check(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _has_credit(self, size: int) -> bool:
        self._check()
        return self._account.has_credit(size)

    def _put(self, header: BatchHeader, data: bytes) -> None:
        message = codec.header_to_message(header)
        # Split during sending: a large batch is not held twice.
        self._outbox.put_all(
            queue_pb2.EnqueueRequest(fragment=fragment) for fragment in fragments(message, data, self._compressor)
        )

    def _take(self, reply: queue_pb2.EnqueueReply) -> None:
        kind = reply.WhichOneof("kind")
        with self._changed:
            if kind == "resume" and self._compressor is not None and queue_pb2.ZSTD not in reply.resume.compressions:
                self._problem = self._problem or ProtocolError(
                    f"{self._peer} takes no compressed batches: it runs an older Headrace",
                    hint="run the same Headrace version at both sites, or write compression: none for the propagation",
                )
            elif kind == "resume":
                needed = Scn(reply.resume.needed_scn)
                self._account.opened(needed, reply.resume.credit_bytes)
                self._resume = Resume(needed_scn=needed, credit_bytes=reply.resume.credit_bytes)
                self._is_open = True
            elif kind == "accepted":
                told = reply.accepted
                self._account.accepted(Scn(told.through_scn), told.accepted_bytes, told.credit_bytes)
            elif kind == "durable":
                self._account.durable_scn = Scn(reply.durable.scn)
            elif kind == "rewind":
                self._account.rewound(Scn(reply.rewind.scn))
            self._changed.notify_all()
        self._ring()


class DequeueClient(_Client):
    """A subscriber's stream out of a queue.

    Args:
        address: the queue's endpoint, with the site whose certificate it must present; or a callable that returns it on
            the stream's thread.
        incarnation: incarnation of the component, from `transport.new_incarnation`.
        wake: called on a gRPC thread whenever `poll` has news; must not block.
    """

    def __init__(
        self,
        address: Address,
        *,
        topology: str,
        component: str,
        queue: str,
        incarnation: str,
        wake: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            address, topology=topology, component=component, queue=queue, incarnation=incarnation, wake=wake
        )
        self._subscribe = queue_pb2.Subscribe()
        self._arrived: deque[Delivery] = deque()
        self._withheld = self._withheld_max = 0
        self._reassembly = Reassembly()
        self._acknowledging = threading.Lock()
        self._unsent: dict[str, Scn] = {}  # the newest unsent acknowledgement of each source
        self._acknowledged_at = 0.0

    def subscribe(self, needed: Mapping[str, Scn], credit_bytes: int, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Open the stream; call it once.

        Args:
            needed: wanted sources, each with the position after which to begin: the first batch of a source has exactly
                this `previous_scn`. FIRST_SCN: never had anything; the first batch is then a mark to where the source
                begins.
            credit_bytes: initial number of bytes that may be in flight or pending here; `grant` more as they are taken.
                The last batch may exceed it.
            timeout_s: longest wait for the queue's answer.

        Raises:
            PropagationError: the queue cannot be reached.
            ProtocolError: it speaks another version, or is another queue.
            HeadraceError: raised by the queue.
        """
        self.subscribe_nowait(needed, credit_bytes)
        self._wait(timeout_s)

    def subscribe_nowait(self, needed: Mapping[str, Scn], credit_bytes: int) -> None:
        """Open the stream without waiting for the queue's answer.

        See `Subscriber.subscribe_nowait` for the arguments.
        """
        if credit_bytes <= 0:
            raise ConfigError("a subscriber without credit would never get anything")
        self._withheld_max = credit_bytes // 8  # one eighth of the window: few messages, and the rest still flows
        positions = [queue_pb2.SourcePosition(source=source, scn=scn) for source, scn in needed.items()]
        self._subscribe = queue_pb2.Subscribe(needed=positions, credit_bytes=credit_bytes)
        self._start(self._take)

    def _call(self, stub: Any, hello: queue_pb2.Hello) -> Any:  # noqa: ANN401 - a stub, a call
        begin = [queue_pb2.DequeueRequest(hello=hello), queue_pb2.DequeueRequest(subscribe=self._subscribe)]
        return stub.Dequeue(itertools.chain(begin, self._outbox))

    def poll(self, timeout_s: float = 0.0) -> Delivery | None:
        """Return the next batch; None when none arrived within `timeout_s`.

        Batches that arrived before the stream ended are returned first.

        Raises:
            HeadraceError: the stream has ended.
        """
        # Without the lock: a deque's ends are thread-safe, and no other thread takes from it.
        with suppress(IndexError):
            return self._arrived.popleft()
        with self._changed:
            if timeout_s > 0:
                self._changed.wait_for(lambda: self._arrived or self._problem, timeout_s)
            if self._arrived:
                return self._arrived.popleft()
            if self._problem is not None:
                raise self._problem
        return None

    def grant(self, credit_bytes: int) -> None:
        """Let the queue send that many more bytes: what was taken from here.

        Small amounts are accumulated: the queue never waits for withheld credit.
        """
        self._withheld += credit_bytes
        if self._withheld > self._withheld_max:
            self._outbox.put(queue_pb2.DequeueRequest(credit_bytes=self._withheld))
            self._withheld = 0

    def acknowledge(self, source: str, scn: Scn) -> None:
        """Report to the queue that everything up to `scn` is committed at the destination.

        Sent later, and lost with the stream.

        Args:
            source: a subscribed source.
            scn: SCN of that source. It replaces an earlier acknowledgement that has not been sent yet.
        """
        with self._acknowledging:
            is_waiting = source in self._unsent
            self._unsent[source] = scn
        if not is_waiting:
            self._outbox.put_all(self._newest(source))

    def _newest(self, source: str) -> Iterator[queue_pb2.DequeueRequest]:
        """Yield the newest acknowledgement of a source when it is due. Runs on gRPC's thread, which only sends."""
        time.sleep(max(0.0, self._acknowledged_at + ACKNOWLEDGE_INTERVAL_S - time.monotonic()))
        self._acknowledged_at = time.monotonic()
        with self._acknowledging:
            scn = self._unsent.pop(source)
        yield queue_pb2.DequeueRequest(durable=queue_pb2.SourcePosition(source=source, scn=scn))

    def _opened(self) -> None:
        with self._changed:
            self._is_open = True
            self._changed.notify_all()
        self._ring()

    def _take(self, reply: queue_pb2.DequeueReply) -> None:
        whole = self._reassembly.add(reply.fragment)
        if whole is None:
            return
        delivery = Delivery(header=codec.header_from_message(whole[0]), data=whole[1])
        with self._changed:
            self._arrived.append(delivery)
            self._changed.notify_all()
        self._ring()
