"""gRPC between apply processes and the Spark application of their site, which runs tasks for them.

A run of tasks lives exactly as long as its call: an apply process that dies, or a network that breaks, ends the call,
and with it the tasks. In the application's process, import this module only after Spark has started: Spark's gateway
forks.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from headrace.base.errors import HeadraceError, ProtocolError
from protos import apply_pb2 as pb
from protos import apply_pb2_grpc
from protos.links.apply_link import check_token
from protos.wire.admission import Admission
from protos.wire.identity import Peer
from protos.wire.transport import PROTOCOL_VERSION, Channel, ClientStream, Server, abort, words_of

__all__ = ["HealthClient", "RunCall", "RunHandler", "serve_tasks"]

_CALL_TIMEOUT_S = 10.0  # of a call that only asks
_PEER = "the Spark application"


# --------------------------------------------------------------------------- application


class RunHandler(Protocol):
    """Runs tasks; called on gRPC's threads, concurrently."""

    def run(self, request: pb.RunRequest, call_ended: Callable[[Callable[[], None]], bool]) -> Iterator[pb.RunEvent]:
        """Run the tasks of one request.

        Args:
            request: the tasks to run.
            call_ended: registers a callback for the end of the call; False: the call has already ended, and the callback
                is not called.
        """
        ...

    def health(self) -> pb.HealthReply:
        """Return what runs."""
        ...


def serve_tasks(host: str, handler: RunHandler, token: str, *, admission: Admission | None = None) -> Server:
    """Serve an application on a free port.

    Args:
        host: address that the site's apply processes reach.
        handler: runs the tasks.
        token: token of this incarnation; callers without it are refused.
        admission: with an identity, only apply processes of this site are served; None: any caller with the token,
            without TLS.
    """
    admission = admission or Admission()

    def register(server: Any) -> None:  # noqa: ANN401 - a grpc.Server
        apply_pb2_grpc.add_SparkTasksServicer_to_server(_SparkTasks(handler, token, admission), server)

    return Server([register], host=host, admission=admission, is_own=True)


class _SparkTasks(apply_pb2_grpc.SparkTasksServicer):  # type: ignore[misc]
    def __init__(self, handler: RunHandler, token: str, admission: Admission) -> None:
        self._handler, self._token, self._admission = handler, token, admission

    def Run(self, request: pb.RunRequest, context: Any) -> Iterator[pb.RunEvent]:  # noqa: N802, ANN401
        try:
            self._admit(request.application_token, context)
            if request.protocol_version != PROTOCOL_VERSION:
                raise ProtocolError(
                    f"the apply process speaks protocol version {request.protocol_version}, the Spark application"
                    f" version {PROTOCOL_VERSION}",
                    hint="run the same Headrace version on every node",
                )
            yield from self._handler.run(request, context.add_callback)
        except HeadraceError as error:
            abort(context, error)

    def Health(self, request: pb.HealthRequest, context: Any) -> pb.HealthReply:  # noqa: N802, ANN401
        try:
            self._admit(request.application_token, context)
            reply = self._handler.health()
            refused = self._admission.status()
            names = [field.name for field in pb.Refusals.DESCRIPTOR.fields]
            reply.refusals.CopyFrom(pb.Refusals(**{name: getattr(refused, name) for name in names}))
            return reply
        except HeadraceError as error:
            abort(context, error)

    def _admit(self, token: str, context: Any) -> None:  # noqa: ANN401
        with self._admission.opening(context, is_stream=False):
            self._admission.check_own_site(context)
            check_token(token, self._token)


# --------------------------------------------------------------------------- apply process


class RunCall:
    """A run of tasks, seen by the apply process that requested it.

    Args:
        endpoint: "host:port" of the application, with the site whose certificate it must present.
        request: the tasks to run; the protocol version is filled in.
    """

    def __init__(self, endpoint: Peer | str, request: pb.RunRequest) -> None:
        request.protocol_version = PROTOCOL_VERSION
        self._events: queue.SimpleQueue[pb.RunEvent | HeadraceError] = queue.SimpleQueue()
        self._channel = Channel(endpoint)
        self._stream: ClientStream[pb.RunEvent] = ClientStream(
            lambda: apply_pb2_grpc.SparkTasksStub(self._channel.grpc).Run(request),
            _PEER,
            opened=lambda: None,
            take=self._events.put,
            ended=self._events.put,
        )

    def next(self) -> pb.RunEvent:
        """Wait for the next event.

        Raises:
            HeadraceError: the call ended, or was closed: its tasks are being cancelled.
        """
        event = self._events.get()
        if isinstance(event, HeadraceError):
            self._events.put(event)  # for the next call
            raise event
        return event

    def close(self) -> None:
        """End the call and with it the tasks; idempotent, from any thread."""
        self._stream.close()
        self._channel.close()


class HealthClient:
    """Checks an application's health, over one connection.

    A certificate that has become unusable only prevents new connections.

    Args:
        endpoint: "host:port" of the application, with the site whose certificate it must present.
        token: token of its incarnation.

    Raises:
        CertificateError: the files of the identity cannot be used.
    """

    def __init__(self, endpoint: Peer | str, token: str) -> None:
        self._channel = Channel(endpoint)
        self._token = token

    def ask(self, timeout_s: float = _CALL_TIMEOUT_S) -> pb.HealthReply:
        """Return the application's health.

        Raises:
            PropagationError: it does not answer within `timeout_s` seconds.
        """
        with words_of(_PEER):
            request = pb.HealthRequest(application_token=self._token)
            reply: pb.HealthReply = apply_pb2_grpc.SparkTasksStub(self._channel.grpc).Health(request, timeout=timeout_s)
            return reply

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._channel.close()
