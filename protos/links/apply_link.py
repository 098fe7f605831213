"""gRPC of the apply process: the coordinator's endpoint, and the clients of its tasks.

Messages are joined from pieces and passed on as protobuf messages; nothing is decided here.
"""

from __future__ import annotations

import contextlib
import hmac
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError

from headrace.base.errors import HeadraceError, ProtocolError, RateExceeded
from protos import apply_pb2 as pb
from protos import apply_pb2_grpc
from protos.wire.admission import Admission
from protos.wire.fragments import Pieces
from protos.wire.identity import Peer
from protos.wire.transport import (
    PROTOCOL_VERSION,
    Channel,
    ClientStream,
    Outbox,
    Server,
    abort,
    read_requests,
    words_of,
)

__all__ = [
    "PIECE_BYTES",
    "REPORTS_MAX",
    "CoordinatorLink",
    "CopyLink",
    "Joiner",
    "ServerStream",
    "StreamListener",
    "check_token",
    "fetch_access",
    "make_server_hello",
    "serve_apply",
    "split",
]

PIECE_BYTES = 2 << 20  # of a message that is split: above what a group of ordinary transactions needs
# The most memory that a peer can make us hold for one message: the largest possible value (1 GB in PostgreSQL) and the
# rest of its row.
_JOINED_BYTES_MAX = 2_000_000_000
# Messages of one apply server that are pending for the coordinator. A server works on a few groups and parts, and
# reports each once.
REPORTS_MAX = 256
_CALL_TIMEOUT_S = 10.0  # of a call that only asks
_SHORT_CALLS = 32  # of copying and comparing tasks, and of lingering replaced streams; more are refused
_DRIVER = "the apply process"

_Message = TypeVar("_Message", pb.ServerMessage, pb.CoordinatorMessage)


# --------------------------------------------------------------------------- pieces


def split(message: _Message) -> Iterator[_Message]:
    """Split a message into pieces that the transport carries; a small message is yielded as it is."""
    if message.ByteSize() <= PIECE_BYTES:
        yield message
        return
    data = memoryview(message.SerializeToString())
    for start in range(0, len(data), PIECE_BYTES):
        piece = pb.Piece(data=bytes(data[start : start + PIECE_BYTES]), last=start + PIECE_BYTES >= len(data))
        yield type(message)(piece=piece)


class Joiner(Generic[_Message]):
    """Joins the pieces of a stream. One per stream and direction."""

    def __init__(self) -> None:
        self._pieces = Pieces(_JOINED_BYTES_MAX)

    def add(self, message: _Message) -> _Message | None:
        """Take the next message; return the whole one, or None while pieces are missing.

        Raises:
            ProtocolError: the pieces belong to no message, form none, or exceed the largest possible message.
        """
        if message.WhichOneof("kind") != "piece":
            if self._pieces:
                raise ProtocolError("a message came between the pieces of another")
            return message
        data = self._pieces.add(message.piece.data, is_last=message.piece.last)
        if data is None:
            return None
        try:
            return type(message).FromString(data)
        except DecodeError as error:
            raise ProtocolError("the pieces do not form a message", size=len(data)) from error


# --------------------------------------------------------------------------- driver


class ServerStream:
    """The driver's end of one apply server's stream."""

    def __init__(self, hello: pb.ServerHello) -> None:
        self.hello = hello
        self._outbox: Outbox[pb.CoordinatorMessage] = Outbox()
        self._room = threading.Semaphore(REPORTS_MAX)
        self._is_closed = False

    def send(self, message: pb.CoordinatorMessage) -> None:
        """Queue a message for sending; never blocks, never fails (a lost stream is reported by `lost`)."""
        self._outbox.put_all(split(message))

    def close(self) -> None:
        """End the stream after everything queued is sent; idempotent."""
        self._is_closed = True
        self._room.release()  # wakes a thread that waits for room
        self._outbox.close()

    def wait_room(self) -> None:
        """Wait until fewer than `REPORTS_MAX` messages are pending for the coordinator, or until the stream is closed."""
        self._room.acquire()
        if self._is_closed:
            self._room.release()

    def taken(self) -> None:
        """Note that the coordinator has taken a message that was received on this stream."""
        self._room.release()

    def outgoing(self) -> Iterator[pb.CoordinatorMessage]:
        """Return the messages that gRPC's thread sends."""
        return iter(self._outbox)


class StreamListener(Protocol):
    """Callbacks for apply servers' streams. They run on gRPC's threads: enqueue and return."""

    def accept(self, stream: ServerStream) -> None:
        """Accept a server's new stream; raise ProtocolError to refuse it."""
        ...

    def receive(self, stream: ServerStream, message: pb.ServerMessage) -> None:
        """Receive a whole message.

        Args:
            stream: the message's stream, for which `accept` has returned. The listener calls its `taken` when the
                message is no longer pending.
            message: the message, joined from its pieces.
        """
        ...

    def lost(self, stream: ServerStream, problem: str) -> None:
        """Note that the stream ended; called once.

        Args:
            stream: the stream, on which nothing more is received.
            problem: the reason, for people; empty: the server ended it in order.
        """
        ...

    def access(self, request: pb.AccessRequest) -> pb.AccessReply:
        """Return the databases to a task that asks for them; raise ProtocolError to refuse."""
        ...

    def next_copy(self, request: pb.CopyRequest) -> pb.CopyReply:
        """Return the next piece to a task that copies tables; may wait briefly."""
        ...


def serve_apply(host: str, listener: StreamListener, *, servers: int, admission: Admission | None = None) -> Server:
    """Serve the coordinator on a free port.

    Args:
        host: address that the executors reach.
        listener: callbacks for apply servers' streams.
        servers: number of apply servers.
        admission: with an identity, only tasks of this site are served; None: any caller with the token, without TLS.
    """
    admission = admission or Admission()

    def register(server: Any) -> None:  # noqa: ANN401 - a grpc.Server
        apply_pb2_grpc.add_CoordinatorServicer_to_server(_Coordinator(listener, admission), server)

    return Server([register], host=host, streams_max=2 * servers + _SHORT_CALLS, admission=admission, is_own=True)


def check_token(given: str, own: str) -> None:
    """Refuse a caller that does not know the token.

    Args:
        given: token of the caller.
        own: token of this incarnation of the process; compared in constant time.

    Raises:
        ProtocolError: the caller is a task of another incarnation, or no task.
    """
    if not hmac.compare_digest(given.encode(), own.encode()):
        raise ProtocolError("the caller does not know the token of this process")


class _Coordinator(apply_pb2_grpc.CoordinatorServicer):  # type: ignore[misc]
    def __init__(self, listener: StreamListener, admission: Admission) -> None:
        self._listener, self._admission = listener, admission

    def Serve(self, requests: Iterator[pb.ServerMessage], context: Any) -> Iterator[pb.CoordinatorMessage]:  # noqa: N802, ANN401
        with self._opening(context, is_stream=True):
            first = next(requests, None)
            if first is None or first.WhichOneof("kind") != "hello":
                raise ProtocolError("an apply server begins with its hello")
            _check_version(first.hello.protocol_version)
            stream = ServerStream(first.hello)
            self._listener.accept(stream)
        context.add_callback(stream.close)
        joiner: Joiner[pb.ServerMessage] = Joiner()

        def take(message: pb.ServerMessage) -> None:
            whole = joiner.add(message)
            if whole is not None:
                stream.wait_room()
                self._listener.receive(stream, whole)

        problem: HeadraceError | None = None

        def ended(error: HeadraceError | None) -> None:
            nonlocal problem
            problem = error
            stream.close()
            self._listener.lost(stream, "" if error is None else error.message)

        read_requests(requests, take, ended)
        yield from stream.outgoing()
        if isinstance(problem, RateExceeded):
            abort(context, problem)

    def Access(self, request: pb.AccessRequest, context: Any) -> pb.AccessReply:  # noqa: N802, ANN401
        with self._opening(context, is_stream=False):
            _check_version(request.protocol_version)
            return self._listener.access(request)

    def NextCopy(self, request: pb.CopyRequest, context: Any) -> pb.CopyReply:  # noqa: N802, ANN401
        with self._opening(context, is_stream=False):
            _check_version(request.protocol_version)
            return self._listener.next_copy(request)

    @contextlib.contextmanager
    def _opening(self, context: Any, *, is_stream: bool) -> Iterator[None]:  # noqa: ANN401
        """Serve only this site's processes; return our own errors as gRPC errors."""
        try:
            with self._admission.opening(context, is_stream=is_stream):
                self._admission.check_own_site(context)
                yield
        except HeadraceError as error:
            abort(context, error)


def _check_version(version: int) -> None:
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"the task speaks protocol version {version}, the apply process version {PROTOCOL_VERSION}",
            hint="run the same Headrace version on every node",
        )


# --------------------------------------------------------------------------- tasks


class CoordinatorLink:
    """A task's end of its stream to the driver.

    Args:
        endpoint: "host:port" of the driver, and the site whose certificate it must present.
        hello: identifies the apply server.
        inbox: called by a thread of the link with whole messages, and with a HeadraceError when the stream ended.
    """

    def __init__(
        self,
        endpoint: Peer | str,
        hello: pb.ServerHello,
        inbox: Callable[[pb.CoordinatorMessage | HeadraceError], None],
    ) -> None:
        self._channel = Channel(endpoint)
        self._outbox: Outbox[pb.ServerMessage] = Outbox()
        self._outbox.put(pb.ServerMessage(hello=hello))
        self._joiner: Joiner[pb.CoordinatorMessage] = Joiner()
        self._inbox = inbox
        self._ended = threading.Event()
        call = apply_pb2_grpc.CoordinatorStub(self._channel.grpc).Serve(iter(self._outbox))
        self._stream: ClientStream[pb.CoordinatorMessage] = ClientStream(
            lambda: call,
            _DRIVER,
            opened=lambda: None,
            take=self._take,
            ended=self._end,
        )

    def send(self, message: pb.ServerMessage) -> None:
        """Queue a message for sending; never blocks."""
        self._outbox.put_all(split(message))

    def finish(self, timeout_s: float) -> None:
        """End the sending side after everything queued is sent, wait until the driver has read it, then close."""
        self._outbox.close()
        self._ended.wait(timeout_s)
        self.close()

    def close(self) -> None:
        """End the stream now; idempotent."""
        self._outbox.close()
        self._stream.close()
        self._channel.close()

    def _take(self, message: pb.CoordinatorMessage) -> None:
        whole = self._joiner.add(message)
        if whole is not None:
            self._inbox(whole)

    def _end(self, error: HeadraceError) -> None:
        self._ended.set()
        self._inbox(error)


def make_server_hello(
    *,
    topology: str,
    apply: str,
    server: int,
    incarnation: str,
    token: str,
    pid: int,
    host: str,
) -> pb.ServerHello:
    """Make the first message of an apply server's stream.

    Args:
        topology: name of the topology.
        apply: name of the apply process.
        server: number of the apply server, from 0.
        incarnation: identifies this attempt of the task; a new text each time.
        token: token of the driver's incarnation, from the task's access.
        pid: process id of the task's Python process.
        host: name of its machine.
    """
    return pb.ServerHello(
        protocol_version=PROTOCOL_VERSION,
        topology=topology,
        apply=apply,
        server=server,
        incarnation=incarnation,
        token=token,
        pid=pid,
        host=host,
    )


def fetch_access(endpoint: Peer | str, token: str) -> pb.AccessReply:
    """Ask the driver for its databases (tasks that copy or compare).

    Args:
        endpoint: "host:port" of the driver, and the site whose certificate it must present.
        token: token of the driver's incarnation.

    Raises:
        PropagationError: the driver does not answer.
        ProtocolError: the driver no longer accepts this token.
    """
    channel = Channel(endpoint)
    try:
        with words_of(_DRIVER):
            request = pb.AccessRequest(protocol_version=PROTOCOL_VERSION, token=token)
            reply: pb.AccessReply = apply_pb2_grpc.CoordinatorStub(channel.grpc).Access(
                request, timeout=_CALL_TIMEOUT_S
            )
            return reply
    finally:
        channel.close()


class CopyLink:
    """A copying task's connection to its driver, from which it requests one piece after the other.

    Args:
        endpoint: "host:port" of the driver, and the site whose certificate it must present.
        token: token of the driver's incarnation.
        worker: number of the task.
        incarnation: identifies this attempt of the task.
    """

    def __init__(self, endpoint: Peer | str, token: str, *, worker: int, incarnation: str) -> None:
        self._channel = Channel(endpoint)
        self._stub = apply_pb2_grpc.CoordinatorStub(self._channel.grpc)
        self._token, self._worker, self._incarnation = token, worker, incarnation

    def access(self) -> pb.AccessReply:
        """Return the databases."""
        with words_of(_DRIVER):
            request = pb.AccessRequest(protocol_version=PROTOCOL_VERSION, token=self._token)
            reply: pb.AccessReply = self._stub.Access(request, timeout=_CALL_TIMEOUT_S)
            return reply

    def next(self, outcome: pb.CopyOutcome | None) -> pb.CopyReply:
        """Report the last piece's outcome and request the next piece."""
        with words_of(_DRIVER):
            request = pb.CopyRequest(
                protocol_version=PROTOCOL_VERSION,
                token=self._token,
                worker=self._worker,
                incarnation=self._incarnation,
                outcome=outcome,
            )
            reply: pb.CopyReply = self._stub.NextCopy(request, timeout=_CALL_TIMEOUT_S)
            return reply

    def close(self) -> None:
        """Close the channel; idempotent."""
        self._channel.close()
