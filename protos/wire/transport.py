"""gRPC between the running nodes: servers, channels, streams, errors.

Longer than 500 lines: everything that needs gRPC is here and nowhere else.

Job
    Everything the nodes need of gRPC, so that nobody else imports it. What the streams carry is in
    `protos.links.queue_link` and `protos.links.redo_link`.

Main path
    A server binds a free port (`Server`), its address is told by the actor that owns it. A client opens a channel of
    its own (`Channel`), starts one stream on it and reads it on a thread (`ClientStream`). The first message names
    the protocol version and what is wanted (`Hello`); a wrong one ends the stream with FAILED_PRECONDITION.

Errors
    A `HeadraceError` crosses the wire whole: class, message, hint and context travel as trailing metadata, so the
    caller catches what the callee raised. A connection that breaks is a `PropagationError`, retried with backoff.
    There is no retry in here: a broken stream is opened again by its owner, who must ask the peer where to resume.

TLS
    A server with an identity (`protos.wire.identity`) takes only connections whose certificate its authority signed, and
    reads its files again for each handshake, so that renewed ones take effect at once. A channel reads them when it is
    made, and takes only a server whose certificate is that of the expected site, wherever it runs. What a caller may do
    is for `protos.wire.admission`.

Noticing a dead peer
    A process that dies closes its connections, which is noticed at once. A machine or a network that goes silent is
    noticed by keepalive pings, from both ends, after `KEEPALIVE_S + KEEPALIVE_TIMEOUT_S` at most.
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

KEEPALIVE_S = 5  # ping a silent peer this often: cheap, and short against any time-out an operator would notice
KEEPALIVE_TIMEOUT_S = 10  # a ping's answer may be late on a machine that is overloaded; a false alarm costs a resend
# Streams one server serves at once; each holds a thread. A site has a handful, so this is a bound against mistakes.
STREAMS_MAX = 128
# A client has a connection of its own, with at most two calls at a time (redo: it watches, and tells a checkpoint); one
# that opens more does not take the threads of the others.
STREAMS_PER_CONNECTION_MAX = 4
# Of a server's streams, what one site may have open: it cannot shut out the others.
PRINCIPAL_SHARE = 0.75
# Twice what it serves: connections in their handshake, and those that were replaced and linger. A connection costs a
# descriptor.
CONNECTIONS_PER_STREAM = 2
# A connection without a call is of no use to us, except between two pieces that a task copies, which opens another one.
CONNECTION_IDLE_S = 300
# The certificate's files are read for a handshake, but not more often: reading takes as long as the handshake itself.
HANDSHAKE_READS_PER_S = 50
METADATA_BYTES_MAX = 8 << 10  # ours is below 5 KiB, see `to_status`
STOP_GRACE_S = 0.5
STOP_TIMEOUT_S = 10.0  # calls are cancelled after the grace, so this is a bound against a defect

_OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),  # decides in fact; a minute when it is not set
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_SERVER_OPTIONS = [
    *_OPTIONS,
    # Half of what clients do: a ping that comes a little early is no attack.
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_S * 500),
    ("grpc.http2.max_ping_strikes", 2),  # of a client that pings more often; then its connection is closed
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    # Until the first HTTP/2 settings are there, with TLS and without.
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_TIMEOUT_S * 1000)),
    ("grpc.max_connection_idle_ms", CONNECTION_IDLE_S * 1000),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # two servers must never share a port
]
_CHANNEL_OPTIONS = [
    *_OPTIONS,
    # Each client has a connection of its own: streams do not share a window, and a new attempt to connect does not
    # wait for the backoff of an old one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # a stream cannot be retried from outside, and retrying keeps copies of what was sent
    ("grpc.enable_http_proxy", 0),  # nodes of a cluster are never reached through a proxy of the environment
]

_ERROR_KEY = "headrace-error-bin"
_ACCEPTED_KEY = "headrace-accepted"
# gRPC refuses metadata above 8 KiB.
_MESSAGE_CHARACTERS_MAX = 1500
_HINT_CHARACTERS_MAX = 1000
_CONTEXT_CHARACTERS_MAX = 1500

# The nearest class decides. Only for people and tools that look at the wire: we read the metadata.
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
# What a status without our metadata means: gRPC itself refused.
_REFUSED = {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED}
_HANDSHAKE_WORDS = ("handshake", "verification check", "ssl_error")
_CERTIFICATE_ADVICE = (
    "the peer shows no certificate of the site that is expected there: `headrace check` examines the files of `tls`"
)

_Message = TypeVar("_Message")

log = logging.getLogger("headrace")


# --------------------------------------------------------------------------- errors


def abort(context: grpc.ServicerContext, error: HeadraceError) -> NoReturn:
    """End a call with an error that the caller gets back as it is; never returns.

    Only on the thread that serves the call.

    Args:
        context: of the call, on the server's side.
        error: its class, message, hint and context travel in trailing metadata, long texts cut (`to_status`).
    """
    code, details, metadata = to_status(error)
    context.set_trailing_metadata(metadata)
    context.abort(code, details)
    raise AssertionError("abort raises")


def to_status(error: HeadraceError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Status code, text and trailing metadata that stand for an error."""
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
    """Turn a call's end into the error the callee raised, or into what the broken connection means.

    Args:
        error: what gRPC raised.
        peer: whom the call went to, for the message.
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
        # A class this process has not loaded becomes the nearest one it knows.
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
    """A name for one start of a component; a later start's compares greater (as long as clocks agree)."""
    return f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}"


def epoch_incarnation(epoch: int) -> str:
    """The same for a component whose starts a database counts: the same in all streams of one start."""
    return f"{epoch:020d}"


def make_hello(topology: str, component: str, target: str, incarnation: str) -> queue_pb2.Hello:
    """Make the first message of a stream.

    Args:
        topology: name of the topology.
        component: name of the capture process, propagation or apply process that calls.
        target: name of the queue, or of the source site, that is wanted.
        incarnation: of the component, from `new_incarnation` or `epoch_incarnation`; a queue ends the stream of a lower
            one.
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

    A port that was ours may have become another process's after a restart; then the caller must resolve again.

    Args:
        hello: of the caller.
        topology: name of the topology that is served here.
        target: name of the queue, or of the source site, that is served here.

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
        registrations: each adds one service to the server it is given.
        host: address to listen on; only what the other nodes can reach need be told to them.
        streams_max: calls served at once; more are refused.
        admission: of its callers, with the identity of the site that serves; None: of nobody in particular, without
            TLS.
        is_own: all its callers are of the site that serves: there are no others to leave room for.

    Raises:
        ConfigError: the address cannot be listened on.
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
            log.error("%s: a call does not end; the server is left to the end of its process", self.endpoint)
        self._pool.shutdown(wait=False)


class _Readers:
    """Stands in for a server while services are registered.

    Counts calls and messages (`protos.wire.rates`), and gives each method a parser that does not fail.

    Where parsing fails, gRPC ends the call by itself, while the handler goes on and ends it a second time: then the
    server can never be stopped. It also logs a traceback for each such message. Here the handler gets a `ProtocolError`
    in the place of the message.
    """

    def __init__(self, server: grpc.Server, admission: Admission, calls_max: int) -> None:
        self._server, self._admission, self._calls_max = server, admission, calls_max

    def add_generic_rpc_handlers(self, handlers: Any) -> None:  # noqa: ANN401
        """Called by generated code: the same handlers as the registered ones, for servers that know only this form."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Called by generated code.

        Args:
            service: name of the service.
            handlers: its methods.
        """
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
    """The handler of a method, which meets a message that cannot be parsed as a ProtocolError.

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
    """Credentials that demand a certificate of every client, and read the files again for each handshake."""
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
            log.warning("%s: goes on with the certificate that it has: %s", admission.name, error.message)
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
    """Tell the caller that its stream is served, before the first message."""
    context.send_initial_metadata(((_ACCEPTED_KEY, "1"),))


def read_requests(
    requests: Iterator[_Message], take: Callable[[_Message], None], ended: Callable[[HeadraceError | None], None]
) -> None:
    """Read a stream's requests on a thread of its own until it ends.

    Args:
        requests: what gRPC gave the handler.
        take: called with each message; a HeadraceError it raises ends the reading.
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
            outcome = None  # the caller went away, which is no error of ours
        finally:
            ended(outcome)

    threading.Thread(target=read, name="grpc-requests", daemon=True).start()


# --------------------------------------------------------------------------- clients


class Bell:
    """Wakes a thread that waits for any of several things. Rings are not counted."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        """Wake the waiter, now or when it next waits."""
        self._event.set()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for a ring; look at everything that may have rung afterwards. False: nothing rang in time."""
        rung = self._event.wait(timeout_s)
        self._event.clear()
        return rung


class Outbox(Generic[_Message]):
    """Messages on their way out: any thread puts, gRPC's thread takes. Whoever puts keeps within its credit."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Iterable[_Message] | None] = queue.SimpleQueue()

    def put(self, message: _Message) -> None:
        """Put a message on its way."""
        self._queue.put((message,))

    def put_all(self, messages: Iterable[_Message]) -> None:
        """Put several messages on their way; each is made when it is sent."""
        self._queue.put(messages)

    def close(self) -> None:
        """End the stream after what was put; idempotent."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[_Message]:
        while (messages := self._queue.get()) is not None:
            yield from messages


class Channel:
    """A connection to one server, for one client.

    Args:
        peer: where the server is; with an identity also whose certificate it must show.

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
        # The name that the certificate is verified against, in the place of the address; verification itself is always
        # on.
        options = [*_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", peer.principal)]
        self.grpc = grpc.secure_channel(peer.address, credentials, options=options)

    def close(self) -> None:
        """Close it and end its calls; idempotent."""
        self.grpc.close()


def ask(method: Callable[..., Any], message: Any, *, timeout_s: float, peer: str) -> Any:  # noqa: ANN401 - messages
    """Make one call and wait for its answer.

    Args:
        method: of a stub.
        message: the request.
        timeout_s: how long to wait.
        peer: whom it goes to, for the message.

    Raises:
        PropagationError: the peer cannot be reached, or does not answer in time.
        HeadraceError: what the peer raised.
    """
    with words_of(peer):
        return method(message, timeout=timeout_s)


@contextmanager
def words_of(peer: str) -> Iterator[None]:
    """Raise what the peer raised, or why it did not answer, instead of gRPC's error.

    Args:
        peer: whom is called, for the message.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise as_streams_error(error, peer) from error


class ClientStream(Generic[_Message]):
    """A stream of a client, begun and read on a thread of its own.

    Args:
        begin: begins the call. May take a while (it may ask where the server is), and may raise a HeadraceError.
        peer: whom it goes to, for messages.
        opened: called when the server has called `accept`.
        take: called with each message; must not block.
        ended: called once with the reason when the stream has ended, whoever ended it.
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

        One that has not begun ends by itself as soon as it does: that is not waited for.
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
            if self._is_closed:  # meanwhile
                self._call.cancel()
            # Comes when the server's handler says so, with its first message, or with the end of a refused call.
            if any(key == _ACCEPTED_KEY for key, _ in self._call.initial_metadata()):
                self._opened()
            for message in self._call:
                self._take(message)
            outcome = PropagationError(f"{self._peer} ended the stream", hint="", peer=self._peer)
        except grpc.RpcError as error:
            outcome = as_streams_error(error, self._peer)
        except HeadraceError as error:
            outcome = error
        except ValueError:  # gRPC's word for a channel that was closed
            if not self._is_closed:
                raise
            outcome = PropagationError(f"{self._peer}: the stream was closed", hint="", peer=self._peer)
        finally:
            with suppress(ValueError):
                if self._call is not None:
                    self._call.cancel()
            self._ended(outcome)
