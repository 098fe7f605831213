"""gRPC of the apply process: the driver's endpoint, and the clients of its tasks and of its apply actor.

`protos.apply_link` and `protos.transport` are the only importers of grpc. What arrives is handed on as protobuf
messages, joined from pieces; nothing is decided here. Import it only after Spark has started: Spark's gateway forks.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import grpc

from protos import apply_pb2 as pb
from protos import apply_pb2_grpc
from streams.errors import ApplyError, DatabaseUnavailable, ProtocolError, Retry, StreamsError

__all__ = [
    "PIECE_BYTES", "PROTOCOL_VERSION", "ApplyControlClient", "ApplyEndpoint", "ControlHandler", "CoordinatorLink",
    "Joiner", "LinkLost", "ServerStream", "StreamListener", "fetch_access", "split",
]

PROTOCOL_VERSION = 1
PIECE_BYTES = 2 << 20  # of a message that is cut: above what a group of ordinary transactions needs
_MESSAGE_BYTES = 4 << 20  # what the transport takes: a piece and room for its frame
# What a peer may make us hold for one message: the largest value there is (1 GB in PostgreSQL) and its company.
_JOINED_BYTES_MAX = 2_000_000_000
_KEEPALIVE_S = 10  # a peer that vanished without a word is noticed after this and the time-out
_KEEPALIVE_TIMEOUT_S = 5
_CALL_TIMEOUT_S = 10.0  # of a call that only asks
_CONTROL_THREADS = 8  # concurrent control calls; more wait
_STOP_GRACE_S = 0.5

_OPTIONS = [
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_S * 1000),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_S * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_S * 500),
    ("grpc.so_reuseport", 0),  # two drivers must never share a port
]
# Loopback and cluster-internal addresses are never reached through a proxy of the environment.
_CLIENT_OPTIONS = [*_OPTIONS, ("grpc.enable_http_proxy", 0)]

_Message = TypeVar("_Message", pb.ServerMessage, pb.CoordinatorMessage)


class LinkLost(ApplyError):  # noqa: N818 - says what happened
    """The stream between a task and its driver broke; the task ends and runs again."""

    code = "HDR-5010"
    retry = Retry.TIMED


# --------------------------------------------------------------------------- pieces


def split(message: _Message) -> Iterator[_Message]:
    """Cut a message into what the transport carries: itself, when it is small enough."""
    if message.ByteSize() <= PIECE_BYTES:
        yield message
        return
    data = memoryview(message.SerializeToString())
    for start in range(0, len(data), PIECE_BYTES):
        piece = pb.Piece(data=bytes(data[start : start + PIECE_BYTES]), last=start + PIECE_BYTES >= len(data))
        yield type(message)(piece=piece)


class Joiner(Generic[_Message]):
    """Puts a stream's pieces together again. One per stream and direction."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0

    def add(self, message: _Message) -> _Message | None:
        """Take the next message; the whole one, or None while pieces are missing.

        Raises:
            ProtocolError: pieces that belong to no message, or more than any message can have.
        """
        if message.WhichOneof("kind") != "piece":
            if self._pieces:
                raise ProtocolError("a message came between the pieces of another")
            return message
        self._pieces.append(message.piece.data)
        self._bytes += len(message.piece.data)
        if self._bytes > _JOINED_BYTES_MAX:
            raise ProtocolError(f"a message has more than {_JOINED_BYTES_MAX} bytes")
        if not message.piece.last:
            return None
        whole = type(message).FromString(b"".join(self._pieces))
        self._pieces.clear()
        self._bytes = 0
        return whole


class _Outbox(Generic[_Message]):
    """Messages on their way out: any thread puts, gRPC's thread takes. Bounded by the conversation itself."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()

    def put(self, message: _Message) -> None:
        for piece in split(message):
            self._queue.put(piece)

    def close(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[_Message]:
        while (message := self._queue.get()) is not None:
            yield message


# --------------------------------------------------------------------------- driver


class ServerStream:
    """The driver's end of one apply server's stream."""

    def __init__(self, hello: pb.ServerHello) -> None:
        self.hello = hello
        self._outbox: _Outbox[pb.CoordinatorMessage] = _Outbox()

    def send(self, message: pb.CoordinatorMessage) -> None:
        """Put a message on its way; never blocks, never fails (a lost stream is reported by `lost`)."""
        self._outbox.put(message)

    def close(self) -> None:
        """End the stream after what was sent; idempotent."""
        self._outbox.close()

    def outgoing(self) -> Iterator[pb.CoordinatorMessage]:
        """What gRPC's thread sends."""
        return iter(self._outbox)


class StreamListener(Protocol):
    """Who is told of apply servers' streams; called on gRPC's threads: only pass it on."""

    def accept(self, stream: ServerStream) -> None:
        """A server opened a stream; raises ProtocolError to refuse it."""
        ...

    def receive(self, stream: ServerStream, message: pb.ServerMessage) -> None:
        """A whole message came."""
        ...

    def lost(self, stream: ServerStream) -> None:
        """The stream ended; called once."""
        ...

    def access(self, request: pb.AccessRequest) -> pb.AccessReply:
        """A task asks for the databases; raises ProtocolError to refuse."""
        ...


class ControlHandler(Protocol):
    """Answers the apply actor and the command line; called on gRPC's threads, several at once."""

    def status(self) -> pb.ApplyStatus:
        """The state now."""
        ...

    def watch_instantiation(self, is_active: Callable[[], bool]) -> Iterator[pb.InstantiationProgress]:
        """Progress of the tables until all are done, or nobody listens any more."""
        ...

    def compare(self, request: pb.CompareRequest, is_active: Callable[[], bool]) -> Iterator[pb.TableComparison]:
        """Compare tables."""
        ...

    def execute_errors(self, request: pb.ErrorsRequest) -> Iterator[pb.ErrorOutcome]:
        """Execute error transactions again."""
        ...

    def delete_errors(self, request: pb.ErrorsRequest) -> Iterator[pb.ErrorOutcome]:
        """Delete error transactions."""
        ...

    def stop(self, request: pb.StopRequest) -> pb.StopReply:
        """End the driver in order."""
        ...


class _Coordinator(apply_pb2_grpc.CoordinatorServicer):  # type: ignore[misc]
    def __init__(self, listener: StreamListener) -> None:
        self._listener = listener

    def Serve(self, requests: Iterator[pb.ServerMessage], context: Any) -> Iterator[pb.CoordinatorMessage]:  # noqa: N802, ANN401
        first = next(requests, None)
        if first is None or first.WhichOneof("kind") != "hello":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "an apply server begins with its hello")
            return
        stream = ServerStream(first.hello)
        with _refusals(context):
            if first.hello.protocol_version != PROTOCOL_VERSION:
                raise ProtocolError(f"protocol version {first.hello.protocol_version}, expected {PROTOCOL_VERSION}")
            self._listener.accept(stream)
        context.add_callback(stream.close)
        threading.Thread(target=self._read, args=(stream, requests), name="apply-server-reader", daemon=True).start()
        yield from stream.outgoing()

    def _read(self, stream: ServerStream, requests: Iterator[pb.ServerMessage]) -> None:
        joiner: Joiner[pb.ServerMessage] = Joiner()
        try:
            # However the stream ends, by the peer, the network or our own close: it is lost.
            with contextlib.suppress(grpc.RpcError, ProtocolError, ValueError):
                for message in requests:
                    whole = joiner.add(message)
                    if whole is not None:
                        self._listener.receive(stream, whole)
        finally:
            stream.close()
            self._listener.lost(stream)

    def Access(self, request: pb.AccessRequest, context: Any) -> pb.AccessReply:  # noqa: N802, ANN401
        with _refusals(context):
            if request.protocol_version != PROTOCOL_VERSION:
                raise ProtocolError(f"protocol version {request.protocol_version}, expected {PROTOCOL_VERSION}")
            return self._listener.access(request)


class _Control(apply_pb2_grpc.ApplyControlServicer):  # type: ignore[misc]
    def __init__(self, handler: ControlHandler) -> None:
        self._handler = handler

    def Status(self, request: pb.StatusRequest, context: Any) -> pb.ApplyStatus:  # noqa: N802, ANN401, ARG002
        with _refusals(context):
            return self._handler.status()

    def WatchInstantiation(  # noqa: N802
        self, request: pb.StatusRequest, context: Any,  # noqa: ANN401, ARG002
    ) -> Iterator[pb.InstantiationProgress]:
        with _refusals(context):
            yield from self._handler.watch_instantiation(context.is_active)

    def Compare(self, request: pb.CompareRequest, context: Any) -> Iterator[pb.TableComparison]:  # noqa: N802, ANN401
        with _refusals(context):
            yield from self._handler.compare(request, context.is_active)

    def ExecuteErrors(self, request: pb.ErrorsRequest, context: Any) -> Iterator[pb.ErrorOutcome]:  # noqa: N802, ANN401
        with _refusals(context):
            yield from self._handler.execute_errors(request)

    def DeleteErrors(self, request: pb.ErrorsRequest, context: Any) -> Iterator[pb.ErrorOutcome]:  # noqa: N802, ANN401
        with _refusals(context):
            yield from self._handler.delete_errors(request)

    def Stop(self, request: pb.StopRequest, context: Any) -> pb.StopReply:  # noqa: N802, ANN401
        with _refusals(context):
            return self._handler.stop(request)


@contextlib.contextmanager
def _refusals(context: Any) -> Iterator[None]:  # noqa: ANN401
    """Answer our own errors with a status and their text."""
    try:
        yield
    except StreamsError as error:
        status = grpc.StatusCode.FAILED_PRECONDITION
        if isinstance(error, DatabaseUnavailable):
            status = grpc.StatusCode.UNAVAILABLE
        context.abort(status, f"{error.message}. {error.hint}" if error.hint else error.message)


@dataclass(slots=True)
class ApplyEndpoint:
    """The driver's running gRPC server."""

    address: str
    _server: Any

    @classmethod
    def start(cls, host: str, listener: StreamListener, control: ControlHandler, *, streams_max: int) -> ApplyEndpoint:
        """Serve on a free port of `host`.

        Args:
            host: address the executors and the actor reach.
            listener: of apply servers' streams.
            control: of control calls.
            streams_max: streams that may be open at once, replaced ones that still linger included.
        """
        pool = futures.ThreadPoolExecutor(max_workers=streams_max + _CONTROL_THREADS, thread_name_prefix="apply-grpc")
        server = grpc.server(pool, options=_OPTIONS)
        apply_pb2_grpc.add_CoordinatorServicer_to_server(_Coordinator(listener), server)
        apply_pb2_grpc.add_ApplyControlServicer_to_server(_Control(control), server)
        port = server.add_insecure_port(f"{host}:0")
        server.start()
        return cls(f"{host}:{port}", server)

    def stop(self) -> None:
        """Stop serving; open calls get a moment."""
        self._server.stop(_STOP_GRACE_S).wait(_STOP_GRACE_S * 2)


# --------------------------------------------------------------------------- tasks


class CoordinatorLink:
    """A task's end of its stream to the driver.

    Args:
        endpoint: "host:port" of the driver.
        hello: who is there.
        inbox: whole messages are put here by a thread of the link; None when the stream ended.
    """

    def __init__(
        self, endpoint: str, hello: pb.ServerHello, inbox: Callable[[pb.CoordinatorMessage | None], None],
    ) -> None:
        self._channel = grpc.insecure_channel(endpoint, options=_CLIENT_OPTIONS)
        self._outbox: _Outbox[pb.ServerMessage] = _Outbox()
        self._outbox.put(pb.ServerMessage(hello=hello))
        self._inbox = inbox
        self.problem = ""
        self._call = apply_pb2_grpc.CoordinatorStub(self._channel).Serve(iter(self._outbox))
        self._thread = threading.Thread(target=self._read, name="coordinator-reader", daemon=True)
        self._thread.start()

    def send(self, message: pb.ServerMessage) -> None:
        """Put a message on its way; never blocks."""
        self._outbox.put(message)

    def close(self) -> None:
        """End the stream after what was sent; idempotent."""
        self._outbox.close()
        self._thread.join(_STOP_GRACE_S)
        self._call.cancel()
        self._channel.close()

    def _read(self) -> None:
        joiner: Joiner[pb.CoordinatorMessage] = Joiner()
        try:
            for message in self._call:
                whole = joiner.add(message)
                if whole is not None:
                    self._inbox(whole)
        except grpc.RpcError as error:
            self.problem = f"{error.code().name}: {error.details()}"
        except ProtocolError as error:
            self.problem = error.message
        finally:
            self._inbox(None)


def fetch_access(endpoint: str, token: str) -> pb.AccessReply:
    """Ask the driver for its databases (tasks that copy or compare).

    Raises:
        LinkLost: the driver does not answer, or no longer accepts this token.
    """
    with grpc.insecure_channel(endpoint, options=_CLIENT_OPTIONS) as channel:
        request = pb.AccessRequest(protocol_version=PROTOCOL_VERSION, token=token)
        try:
            reply: pb.AccessReply = apply_pb2_grpc.CoordinatorStub(channel).Access(request, timeout=_CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise LinkLost(f"the apply driver does not answer: {error.code().name}") from error
        return reply


# --------------------------------------------------------------------------- actor and command line


class ApplyControlClient:
    """What the apply actor asks of its driver. Every method raises ApplyError or LinkLost with the driver's words."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint, options=_CLIENT_OPTIONS)
        self._stub = apply_pb2_grpc.ApplyControlStub(self._channel)

    def status(self, timeout_s: float = _CALL_TIMEOUT_S) -> pb.ApplyStatus:
        """The state now."""
        with _words():
            answer: pb.ApplyStatus = self._stub.Status(pb.StatusRequest(), timeout=timeout_s)
            return answer

    def watch_instantiation(self) -> Iterator[pb.InstantiationProgress]:
        """Progress of the tables until all are done."""
        with _words():
            yield from self._stub.WatchInstantiation(pb.StatusRequest())

    def compare(self, request: pb.CompareRequest) -> Iterator[pb.TableComparison]:
        """Compare tables; one answer each."""
        with _words():
            yield from self._stub.Compare(request)

    def execute_errors(self, request: pb.ErrorsRequest) -> Iterator[pb.ErrorOutcome]:
        """Execute error transactions again; one answer each."""
        with _words():
            yield from self._stub.ExecuteErrors(request)

    def delete_errors(self, request: pb.ErrorsRequest) -> Iterator[pb.ErrorOutcome]:
        """Delete error transactions; one answer each."""
        with _words():
            yield from self._stub.DeleteErrors(request)

    def stop(self, timeout_s: float) -> pb.StopReply:
        """End the driver in order."""
        with _words():
            reply: pb.StopReply = self._stub.Stop(
                pb.StopRequest(timeout_s=timeout_s), timeout=timeout_s + _CALL_TIMEOUT_S
            )
            return reply

    def close(self) -> None:
        """Close the channel; idempotent."""
        self._channel.close()


@contextlib.contextmanager
def _words() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
            raise ApplyError(error.details()) from error
        raise LinkLost(f"the apply driver: {error.code().name}: {error.details()}") from error
