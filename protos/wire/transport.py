"""gRPC between the running nodes: servers, channels, streams, errors.

Longer than 500 lines: it contains everything that needs gRPC, so that no other module does.

Job
    Provide all gRPC functions that the nodes need, so that no other module imports gRPC. `protos.links.queue_link` and
    `protos.links.redo_link` define what the streams carry.

Main path
    A server binds a free port (`Server`); the actor that owns it announces the address. A client opens its own channel
    (`Channel`), starts one stream on it and reads it on a thread (`ClientStream`). The first message names the protocol
    version and the wanted component (`Hello`); a wrong one ends the stream with FAILED_PRECONDITION.

Errors
    A `HeadraceError` crosses the wire whole: class, message, hint and context are sent as trailing metadata, so the
    caller catches what the callee raised. A broken connection is a `PropagationError`, retried with backoff. This module
    does not retry: the owner of a broken stream opens it again, and must ask the peer where to resume.

TLS
    A server with an identity (`protos.wire.identity`) only accepts connections whose certificate its authority signed. It
    reads its files again for each handshake, so that renewed ones take effect at once. A channel reads them when it is
    made, and only accepts a server with the certificate of the expected site, wherever it runs.
    `protos.wire.admission` decides what a caller may do.

Detection of a dead peer
    A process that dies closes its connections, which is noticed at once. A machine or a network that goes silent is
    detected by keepalive pings, from both ends, after `KEEPALIVE_S + KEEPALIVE_TIMEOUT_S` at most.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from typing import Any, Generic, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError

from headrace.base import errors
from headrace.base.errors import (
    BugError,
    ConfigError,
    HeadraceError,
    NotAdmitted,
    PropagationError,
    ProtocolError,
    RateExceeded,
    printable,
)
from protos import queue_pb2
from protos.wire.admission import HANDSHAKE_TIMEOUT_S, REVOKED_LOOK_S, Admission
from protos.wire.fragments import FRAGMENT_BYTES
from protos.wire.identity import CertificateError, Identity, Peer, Pem
from protos.wire.rates import Bucket, Meter

__all__ = [
    "MESSAGE_BYTES_MAX",
    "PROTOCOL_VERSION",
    "Bell",
    "Channel",
    "ClientStream",
    "Outbox",
    "Server",
    "abort",
    "accept",
    "as_streams_error",
    "ask",
    "check_hello",
    "epoch_incarnation",
    "make_hello",
    "new_incarnation",
    "read_requests",
    "words_of",
]

PROTOCOL_VERSION = 1

MESSAGE_BYTES_MAX = FRAGMENT_BYTES + (1 << 20)  # a fragment and its header

KEEPALIVE_S = 5  # between pings of a silent peer: cheap, and short against any time-out that an operator would notice
KEEPALIVE_TIMEOUT_S = 10  # an overloaded machine may answer a ping late; a false alarm costs a resend
# Streams that one server serves at once; each holds a thread. A site has a handful, so this bounds mistakes.
STREAMS_MAX = 128
# A client has its own connection, with at most two concurrent calls (redo: a watch, and a checkpoint report). A client
# that opens more does not take the threads of others.
STREAMS_PER_CONNECTION_MAX = 4
# The share of a server's streams that one site may have open: it cannot shut out the others.
PRINCIPAL_SHARE = 0.75
# Twice the served streams: connections in their handshake, and replaced ones that linger. A connection costs a
# descriptor.
CONNECTIONS_PER_STREAM = 2
# A connection without a call is of no use to us, except between two pieces that a task copies, which opens another one.
CONNECTION_IDLE_S = 300
# The certificate's files are read for a handshake, but not more often: reading takes as long as the handshake itself.
HANDSHAKE_READS_PER_S = 50
METADATA_BYTES_MAX = 8 << 10  # ours is below 5 KiB (`to_status`)
STOP_GRACE_S = 0.5
STOP_TIMEOUT_S = 10.0  # calls are cancelled after the grace, so this only bounds the effect of a bug

_OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),  # the one that takes effect; a minute by default
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_SERVER_OPTIONS = [
    *_OPTIONS,
    # Half of the clients' interval: a ping that arrives a little early is no attack.
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_S * 500),
    ("grpc.http2.max_ping_strikes", 2),  # of a client that pings more often; then its connection is closed
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    # Time until the first HTTP/2 settings arrive, with TLS and without.
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_TIMEOUT_S * 1000)),
    ("grpc.max_connection_idle_ms", CONNECTION_IDLE_S * 1000),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # two servers must never share a port
]
_CHANNEL_OPTIONS = [
    *_OPTIONS,
    # Each client has its own connection: streams do not share a window, and a new connection attempt does not wait for
    # the backoff of an old one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # a stream cannot be retried from outside, and retries keep copies of what was sent
    ("grpc.enable_http_proxy", 0),  # nodes of a cluster are never reached through a proxy of the environment
]

_ERROR_KEY = "headrace-error-bin"
_ACCEPTED_KEY = "headrace-accepted"
# gRPC refuses metadata above 8 KiB.
_MESSAGE_CHARACTERS_MAX = 1500
_HINT_CHARACTERS_MAX = 1000
_CONTEXT_CHARACTERS_MAX = 1500

# The nearest class decides. Only for people and tools that inspect the wire: our code reads the metadata.
_STATUS = {
    errors.HeadraceError: grpc.StatusCode.INTERNAL,
    errors.ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.RuleError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.DatabaseError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DatabaseUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DataError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.LogGone: grpc.StatusCode.OUT_OF_RANGE,
    errors.UnsupportedType: grpc.StatusCode.UNIMPLEMENTED,
    errors.RedoError: grpc.StatusCode.DATA_LOSS,
    errors.QueueError: grpc.StatusCode.ABORTED,
    errors.PropagationError: grpc.StatusCode.UNAVAILABLE,
    errors.FencedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.ProtocolError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotAdmitted: grpc.StatusCode.PERMISSION_DENIED,
    errors.RateExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
# The meaning of a status without our metadata: gRPC itself refused.
_REFUSED = {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED}
_HANDSHAKE_WORDS = ("handshake", "verification check", "ssl_error")
_CERTIFICATE_ADVICE = (
    "the peer presented no certificate of the expected site: `headrace check` examines the files of `tls`"
)

_Message = TypeVar("_Message")

log = logging.getLogger("headrace")


# --------------------------------------------------------------------------- errors


def abort(context: grpc.ServicerContext, error: HeadraceError) -> NoReturn:
    """End a call with an error that the caller receives unchanged; never returns.

    Call it only on the thread that serves the call.

    Args:
        context: context of the call, on the server's side.
        error: its class, message, hint and context are sent in trailing metadata, long texts truncated (`to_status`).
    """
    code, details, metadata = to_status(error)
    context.set_trailing_metadata(metadata)
    context.abort(code, details)
    raise AssertionError("abort raises")


def to_status(error: HeadraceError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return the status code, text and trailing metadata that represent an error."""
    classes = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, HeadraceError)]
    code = next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)
    context: dict[str, str | int] = {}
    room = _CONTEXT_CHARACTERS_MAX
    for name, value in error.context.items():
        room -= len(name) + len(str(value))
        if room < 0:
            break
        context[name] = value
    message = error.message[:_MESSAGE_CHARACTERS_MAX]
    content = {
        "classes": classes,
        "message": message,
        "hint": error.hint[:_HINT_CHARACTERS_MAX],
        "context": context,
    }
    return code, message, ((_ERROR_KEY, json.dumps(content, ensure_ascii=False).encode()),)


def as_streams_error(error: grpc.RpcError, peer: str) -> HeadraceError:
    """Convert a call's end to the error that the callee raised, or to one for the broken connection.

    Args:
        error: gRPC's error.
        peer: the called component, for the message.
    """
    for key, value in error.trailing_metadata() or ():
        if key == _ERROR_KEY:
            return _rebuilt(value)
    code, details = error.code(), error.details() or ""
    if code in _REFUSED:
        return ProtocolError(
            f"{peer} refused the call: {details}",
            hint="both sides must run the same version",
            peer=peer,
        )
    hint = _CERTIFICATE_ADVICE if any(word in details.lower() for word in _HANDSHAKE_WORDS) else ""
    return PropagationError(f"the connection to {peer} broke: {code.name.lower()}: {details}", hint=hint, peer=peer)


def _rebuilt(content: bytes) -> HeadraceError:
    try:
        read = json.loads(content)
        known = {kind.__name__: kind for kind in _subclasses(HeadraceError)}
        # A class that this process has not loaded becomes the nearest known one.
        kind = next(known[name] for name in read["classes"] if name in known)
        return kind(read["message"], hint=read["hint"], **read["context"])
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise ProtocolError("the peer sent an error that cannot be read", size=len(content)) from error


def _subclasses(kind: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _subclasses(child)


# --------------------------------------------------------------------------- hello


def new_incarnation() -> str:
    """Make a name for one start of a component; a later start's compares greater (as long as clocks agree)."""
    return f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}"


def epoch_incarnation(epoch: int) -> str:
    """Make the same for a component whose starts a database counts: equal in all streams of one start."""
    return f"{epoch:020d}"


def make_hello(topology: str, component: str, target: str, incarnation: str) -> queue_pb2.Hello:
    """Make the first message of a stream.

    Args:
        topology: name of the topology.
        component: name of the calling capture process, propagation or apply process.
        target: name of the wanted queue or source site.
        incarnation: incarnation of the component, from `new_incarnation` or `epoch_incarnation`; a queue ends the stream
            of a lower one.
    """
    return queue_pb2.Hello(
        protocol_version=PROTOCOL_VERSION,
        topology=topology,
        component=component,
        queue=target,
        incarnation=incarnation,
    )


def check_hello(hello: queue_pb2.Hello, topology: str, target: str) -> None:
    """Refuse a caller that speaks another version or wants another component.

    After a restart our earlier port may belong to another process; the caller must then resolve the address again.

    Args:
        hello: hello of the caller.
        topology: name of the topology that is served here.
        target: name of the queue or source site that is served here.

    Raises:
        ProtocolError: another protocol version, topology or target.
    """
    if hello.protocol_version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"{printable(hello.component) or 'the caller'} speaks protocol version {hello.protocol_version}, "
            f"{target} speaks version {PROTOCOL_VERSION}",
            hint="run the same Headrace version at both sites",
            caller_version=hello.protocol_version,
            own_version=PROTOCOL_VERSION,
        )
    if (hello.topology, hello.queue) != (topology, target):
        raise ProtocolError(
            f"{printable(hello.component)} wants {printable(hello.topology)}/{printable(hello.queue)}, this is"
            f" {topology}/{target}",
            hint="ask the controller for the address again",
        )
    if not hello.component or not hello.incarnation:
        raise ProtocolError("a caller must say who it is: component and incarnation are empty")


# --------------------------------------------------------------------------- servers


class Server:
    """A gRPC server on a free port.

    Args:
        registrations: each adds one service to the given server.
        host: address to listen on.
        streams_max: number of calls served at once; more are refused.
        admission: admission of its callers, with the identity of the serving site; None: any caller, without TLS.
        is_own: whether all callers are of the serving site, so that no share is reserved for others.

    Raises:
        ConfigError: the server cannot listen on the address.
        CertificateError: the site's certificate cannot be used.
    """

    def __init__(
        self,
        registrations: Iterable[Callable[[grpc.Server], None]],
        *,
        host: str = "127.0.0.1",
        streams_max: int = STREAMS_MAX,
        admission: Admission | None = None,
        is_own: bool = False,
    ) -> None:
        admission = admission or Admission()
        credentials = None if admission.identity is None else _server_credentials(admission.identity, admission)
        self._pool = futures.ThreadPoolExecutor(streams_max, thread_name_prefix="grpc")
        options = [*_SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", CONNECTIONS_PER_STREAM * streams_max)]
        self._server = grpc.server(self._pool, options=options, maximum_concurrent_rpcs=streams_max)
        readers = _Readers(self._server, admission, streams_max if is_own else int(PRINCIPAL_SHARE * streams_max))
        for register in registrations:
            register(readers)
        try:
            port = (
                self._server.add_insecure_port(f"{host}:0")
                if credentials is None
                else self._server.add_secure_port(f"{host}:0", credentials)
            )
        except RuntimeError as error:
            self._pool.shutdown(wait=False)
            raise ConfigError(
                f"no port can be opened on {host}",
                hint="the address must be one of this machine's",
                host=host,
            ) from error
        self.endpoint = f"{host}:{port}"
        self._server.start()
        self._stopped = threading.Event()
        if admission.has_list:
            threading.Thread(target=self._end_revoked, args=(admission,), name="revoked", daemon=True).start()

    def _end_revoked(self, admission: Admission) -> None:
        while not self._stopped.wait(REVOKED_LOOK_S):
            admission.end_revoked()

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """End every call, at the latest after `grace_s`; idempotent."""
        self._stopped.set()
        if not self._server.stop(grace_s).wait(grace_s + STOP_TIMEOUT_S):
            log.error("%s: a call does not end; the server remains until its process ends", self.endpoint)
        self._pool.shutdown(wait=False)


class _Readers:
    """Replaces a server while services are registered.

    It counts calls and messages (`protos.wire.rates`), and gives each method a parser that does not fail.

    If parsing fails, gRPC ends the call by itself, while the handler continues and ends it a second time: then the
    server can never be stopped. gRPC also logs a traceback for each such message. With this class the handler gets a
    `ProtocolError` in place of the message.
    """

    def __init__(self, server: grpc.Server, admission: Admission, calls_max: int) -> None:
        self._server, self._admission, self._calls_max = server, admission, calls_max

    def add_generic_rpc_handlers(self, handlers: Any) -> None:  # noqa: ANN401
        """Do nothing; called by generated code for servers that know only this form of the registered handlers."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Register the wrapped handlers of a service; called by generated code."""
        self._server.add_registered_method_handlers(
            service, {name: _reading(handler, self._begin(f"{service}/{name}")) for name, handler in handlers.items()}
        )

    def _begin(self, method: str) -> Callable[[grpc.ServicerContext], Meter]:
        def begin(context: grpc.ServicerContext) -> Meter:
            try:
                return self._admission.begin(context, method, self._calls_max)
            except (NotAdmitted, RateExceeded) as error:
                abort(context, error)

        return begin


_UNREADABLE = object()


def _reading(handler: Any, begin: Callable[[grpc.ServicerContext], Meter]) -> Any:  # noqa: ANN401 - a grpc.RpcMethodHandler
    """Wrap the handler of a method, so that an unparsable message becomes a ProtocolError.

    `begin` is called before it.
    """
    kind = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
    serve, parse = getattr(handler, kind), handler.request_deserializer

    def parsed(data: bytes) -> Any:  # noqa: ANN401
        try:
            return parse(data)
        except DecodeError:
            return _UNREADABLE

    def served(request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ANN401
        begin(context)
        if request is _UNREADABLE:
            abort(context, _unreadable())
        return serve(request, context)

    def served_stream(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:  # noqa: ANN401
        return serve(_readable(requests, begin(context)), context)

    wrap = getattr(grpc, f"{kind}_rpc_method_handler")
    return wrap(served_stream if handler.request_streaming else served, parsed, handler.response_serializer)


def _readable(requests: Iterator[Any], meter: Meter) -> Iterator[Any]:
    for request in requests:
        meter.pass_one()
        if request is _UNREADABLE:
            raise _unreadable()
        yield request


def _unreadable() -> ProtocolError:
    return ProtocolError("the caller sent bytes that are no message of this protocol")


def _server_credentials(identity: Identity, admission: Admission) -> grpc.ServerCredentials:
    """Make credentials that require a certificate of every client, and read the files again for each handshake."""
    configured = identity.read()

    reads = Bucket(HANDSHAKE_READS_PER_S, burst_s=1.0)

    def read_again() -> grpc.ServerCertificateConfiguration | None:
        nonlocal configured
        admission.connection_began()
        if reads.take_within(time.monotonic(), 0.0) is None:
            return None
        try:
            found = identity.read()
        except CertificateError as error:
            log.warning("%s: keeps its current certificate: %s", admission.name, error.message)
            return None
        if found == configured:
            return None
        configured = found
        log.info("%s: takes the renewed certificate %s", admission.name, identity.certificate)
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(configured), read_again, require_client_authentication=True
    )


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], root_certificates=pem.authority)


def accept(context: grpc.ServicerContext) -> None:
    """Report to the caller that its stream is served, before the first message."""
    context.send_initial_metadata(((_ACCEPTED_KEY, "1"),))


def read_requests(
    requests: Iterator[_Message], take: Callable[[_Message], None], ended: Callable[[HeadraceError | None], None]
) -> None:
    """Read a stream's requests on a separate thread until it ends.

    Args:
        requests: the handler's request iterator.
        take: called with each message; a HeadraceError that it raises ends the reading.
        ended: called once, with that error, a BugError for any other, None at the end of the stream.
    """

    def read() -> None:
        outcome: HeadraceError | None = BugError("reading a stream failed in an unforeseen way")
        try:
            for message in requests:
                take(message)
            outcome = None
        except HeadraceError as error:
            outcome = error
        except grpc.RpcError:
            outcome = None  # the caller disconnected, which is no error of ours
        finally:
            ended(outcome)

    threading.Thread(target=read, name="grpc-requests", daemon=True).start()


# --------------------------------------------------------------------------- clients


class Bell:
    """Wakes a thread that waits for any of several events. Rings are not counted."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        """Wake the waiting thread, now or when it next waits."""
        self._event.set()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for a ring, after which the caller checks everything that may have rung. False: time-out."""
        rung = self._event.wait(timeout_s)
        self._event.clear()
        return rung


class Outbox(Generic[_Message]):
    """Outgoing messages: any thread puts, gRPC's thread takes. The putting thread keeps within its credit."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Iterable[_Message] | None] = queue.SimpleQueue()

    def put(self, message: _Message) -> None:
        """Queue a message for sending."""
        self._queue.put((message,))

    def put_all(self, messages: Iterable[_Message]) -> None:
        """Queue several messages for sending; each is made when it is sent."""
        self._queue.put(messages)

    def close(self) -> None:
        """End the stream after the queued messages; idempotent."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[_Message]:
        while (messages := self._queue.get()) is not None:
            yield from messages


class Channel:
    """A connection to one server, for one client.

    Args:
        peer: address of the server; with an identity, also the site whose certificate it must present.

    Raises:
        CertificateError: the files of the identity cannot be used.
    """

    def __init__(self, peer: Peer | str) -> None:
        peer = Peer.of(peer)
        self.address = peer.address
        if peer.identity is None:
            self.grpc = grpc.insecure_channel(peer.address, options=_CHANNEL_OPTIONS)
            return
        pem = peer.identity.read()
        credentials = grpc.ssl_channel_credentials(pem.authority, pem.key, pem.certificate)
        # The name against which the certificate is verified, instead of the address; verification itself is always on.
        options = [*_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", peer.principal)]
        self.grpc = grpc.secure_channel(peer.address, credentials, options=options)

    def close(self) -> None:
        """Close the channel and end its calls; idempotent."""
        self.grpc.close()


def ask(method: Callable[..., Any], message: Any, *, timeout_s: float, peer: str) -> Any:  # noqa: ANN401 - messages
    """Make one call and wait for its answer.

    Args:
        method: method of a stub.
        message: the request.
        timeout_s: longest wait for the answer, in seconds.
        peer: the called component, for the message.

    Raises:
        PropagationError: the peer cannot be reached, or does not answer in time.
        HeadraceError: raised by the peer.
    """
    with words_of(peer):
        return method(message, timeout=timeout_s)


@contextmanager
def words_of(peer: str) -> Iterator[None]:
    """Raise the peer's error, or one for its missing answer, instead of gRPC's error.

    Args:
        peer: the called component, for the message.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise as_streams_error(error, peer) from error


class ClientStream(Generic[_Message]):
    """A client's stream, begun and read on a separate thread.

    Args:
        begin: begins the call. May take a while (it may resolve the server's address), and may raise a HeadraceError.
        peer: the called component, for messages.
        opened: called when the server has called `accept`.
        take: called with each message; must not block.
        ended: called once with the reason when the stream has ended, whichever side ended it.
    """

    def __init__(
        self,
        begin: Callable[[], Any],
        peer: str,
        *,
        opened: Callable[[], None],
        take: Callable[[_Message], None],
        ended: Callable[[HeadraceError], None],
    ) -> None:
        self._begin, self._peer = begin, peer
        self._opened, self._take, self._ended = opened, take, ended
        self._call: Any = None  # None: it has not begun
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, name=f"stream-{peer}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the stream now; idempotent.

        A stream that has not begun ends by itself when it begins; this is not waited for.
        """
        self._is_closed = True
        call = self._call
        if call is None:
            return
        call.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=STOP_GRACE_S)

    def _read(self) -> None:
        outcome: HeadraceError = BugError("reading a stream failed in an unforeseen way")
        try:
            self._call = self._begin()
            if self._is_closed:  # while the call began
                self._call.cancel()
            # Arrives when the server's handler says so, with its first message, or with the end of a refused call.
            if any(key == _ACCEPTED_KEY for key, _ in self._call.initial_metadata()):
                self._opened()
            for message in self._call:
                self._take(message)
            outcome = PropagationError(f"{self._peer} ended the stream", hint="", peer=self._peer)
        except grpc.RpcError as error:
            outcome = as_streams_error(error, self._peer)
        except HeadraceError as error:
            outcome = error
        except ValueError:  # gRPC's error for a closed channel
            if not self._is_closed:
                raise
            outcome = PropagationError(f"{self._peer}: the stream was closed", hint="", peer=self._peer)
        finally:
            with suppress(ValueError):
                if self._call is not None:
                    self._call.cancel()
            self._ended(outcome)
