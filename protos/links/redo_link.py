"""Redo over gRPC: captures learn how far the redo log is durable, and report which redo they no longer need.

Job
    Wake a capture process the moment redo is durable, wherever it runs, and return its required checkpoint SCN.

Main path
    log writer -> RedoServer.announce -> RedoService.Watch -> RedoWatchClient.poll
    RedoWatchClient.checkpoint -> RedoService.Checkpoint -> RequiredCheckpoints.record

Threads
    The log writer belongs to another thread. This module only reads its `position`, which is replaced as a whole, and
    calls `required_checkpoints.record`, which any thread may call.

Durable when
    Never here: an announced position is already durable, and a lost checkpoint is reported again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from headrace.base.errors import HeadraceError, PropagationError
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.links.ports import RedoPosition
from headrace.links.standby import RedoShipper, RedoWriter
from headrace.status.component import WireStatus
from protos import queue_pb2, redo_pb2, redo_pb2_grpc
from protos.codec import scn_from_message
from protos.links.redo_transport import ShippingService
from protos.wire import transport
from protos.wire.admission import READ_REDO, Admission, Callers
from protos.wire.identity import Peer
from protos.wire.transport import Channel, ClientStream, Server

__all__ = ["RedoServer", "RedoService", "RedoWatchClient"]

CONNECT_TIMEOUT_S = 10.0  # as for queues
CALL_TIMEOUT_S = 5.0  # of a checkpoint, which is only recorded


class RedoService(redo_pb2_grpc.RedoServicer):  # type: ignore[misc]
    """The gRPC service of one site's redo log.

    Args:
        source: source site of the redo.
        writer: its log writer; `attach` replaces it when it is opened again.
        admission: admission of its callers; None: any caller with a valid handshake.
    """

    def __init__(self, topology: str, source: str, writer: RedoWriter, admission: Admission | None = None) -> None:
        self._topology, self._source, self._writer = topology, source, writer
        self._admission = admission or Admission()
        self._changed = threading.Condition(threading.Lock())

    def register(self, server: Any) -> None:  # noqa: ANN401 - a grpc.Server
        """Add the service to a server."""
        redo_pb2_grpc.add_RedoServicer_to_server(self, server)

    def attach(self, writer: RedoWriter) -> None:
        """Serve another log writer's position from now on."""
        with self._changed:
            self._writer = writer
            self._changed.notify_all()

    def announce(self) -> None:
        """Wake waiting streams: redo may have become durable."""
        with self._changed:
            self._changed.notify_all()

    def Watch(self, request: queue_pb2.Hello, context: Any) -> Iterator[redo_pb2.RedoPosition]:  # noqa: N802, ANN401
        """Yield the position at once and whenever it moves; called by gRPC. See `Redo.Watch` in redo.proto."""
        self._admit(request, context)
        gone = threading.Event()

        def left() -> None:
            gone.set()
            self.announce()

        if not context.add_callback(left):
            return
        told: RedoPosition | None = None
        while True:
            with self._changed:
                while not gone.is_set() and self._writer.position == told:
                    self._changed.wait()
                told = self._writer.position
            if gone.is_set():
                return
            yield redo_pb2.RedoPosition(segment=told.segment, offset=told.offset, scn=told.scn)

    def Checkpoint(  # noqa: N802 - the name in the protocol
        self,
        request: redo_pb2.RequiredCheckpoint,
        context: Any,  # noqa: ANN401
    ) -> redo_pb2.RequiredCheckpoint:
        """Record a capture process's required checkpoint SCN; called by gRPC. See `Redo.Checkpoint` in redo.proto."""
        needed = self._admit(request.hello, context, request.scn)
        writer = self._writer
        checkpoints = writer.required_checkpoints
        # Unwritten redo cannot be dispensable: an erroneous report must not let all future redo be removed.
        needed = min(needed, writer.position.scn)
        scn = (checkpoints.mine_again if request.again else checkpoints.record)(request.hello.component, needed)
        return redo_pb2.RequiredCheckpoint(hello=request.hello, scn=scn)

    def _admit(self, hello: queue_pb2.Hello, context: Any, scn: int = FIRST_SCN) -> Scn:  # noqa: ANN401
        """Abort the call of a caller that is not admitted; return the position that it sent."""
        try:
            with self._admission.opening(context, is_stream=False):
                transport.check_hello(hello, self._topology, self._source)
                self._admission.check(context, READ_REDO, hello.component)
                return scn_from_message(scn)
        except HeadraceError as error:
            transport.abort(context, error)


class RedoServer:
    """A redo log on its own port, as `headrace.links.serving.ServingRedo`.

    Args:
        source: the source site.
        writer: its log writer, or the standby redo log of a downstream site.
        shipper: ships it to the redo receivers of other sites; None: it is not shipped.
        acknowledged: called when a receiver has more redo durably; must not block. None: no callback.
        host: address to listen on.
        admission: admission of its callers; None: any caller with a valid handshake, without TLS.
    """

    def __init__(
        self,
        topology: str,
        source: str,
        writer: RedoWriter,
        *,
        shipper: RedoShipper | None = None,
        acknowledged: Callable[[], None] | None = None,
        host: str = "127.0.0.1",
        admission: Admission | None = None,
    ) -> None:
        self._admission = admission
        self._service = RedoService(topology, source, writer, admission)
        self._shipping = (
            None
            if shipper is None
            else ShippingService(topology, source, shipper, acknowledged or (lambda: None), admission)
        )
        services = [each.register for each in (self._service, self._shipping) if each is not None]
        self._server = Server(services, host=host, admission=admission)
        self.endpoint = self._server.endpoint

    def attach(self, writer: RedoWriter, shipper: RedoShipper | None = None) -> None:
        """Serve another log writer from now on (the earlier one was closed).

        Args:
            writer: the log writer.
            shipper: its shipping; None if redo is not shipped.
        """
        self._service.attach(writer)
        if self._shipping is not None and shipper is not None:
            self._shipping.attach(shipper)

    def announce(self) -> None:
        """Wake waiting streams: redo may have become durable. Cheap, callable from any thread."""
        self._service.announce()
        if self._shipping is not None:
            self._shipping.announce()

    def admit(self, callers: Callers) -> None:
        """Admit other callers from now on."""
        if self._admission is not None:
            self._admission.change(callers)

    def wire_status(self) -> WireStatus | None:
        """Return whom the server refused; None: it refuses nobody."""
        return None if self._admission is None else self._admission.status()

    def stop(self) -> None:
        """End every stream; idempotent."""
        self._server.stop()


class RedoWatchClient:
    """A capture process's view of how far redo is durable.

    Args:
        address: endpoint of the source site's redo, with the site whose certificate it must present.
        source: the source site.
        incarnation: incarnation of the capture process, from `transport.new_incarnation`.
        wake: called on a gRPC thread whenever the position has moved; must not block.
    """

    def __init__(
        self,
        address: Peer | str,
        *,
        topology: str,
        capture: str,
        source: str,
        incarnation: str,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._peer = f"redo of {source} at {address}"
        self._hello = transport.make_hello(topology, capture, source, incarnation)
        self._wake = wake
        self._changed = threading.Condition(threading.Lock())
        self._position: RedoPosition | None = None
        self._problem: HeadraceError | None = None
        self._channel = Channel(address)
        self._stub = redo_pb2_grpc.RedoStub(self._channel.grpc)
        self._stream: ClientStream[Any] | None = None

    def connect(self, timeout_s: float = CONNECT_TIMEOUT_S) -> RedoPosition:
        """Open the stream, call it once; return the current position.

        Raises:
            PropagationError: the source site cannot be reached.
            ProtocolError: it speaks another version, or is another site.
        """
        self._stream = ClientStream(
            lambda: self._stub.Watch(self._hello), self._peer, opened=lambda: None, take=self._take, ended=self._ended
        )
        with self._changed:
            self._changed.wait_for(lambda: self._position or self._problem, timeout_s)
            position, problem = self._position, self._problem
        if position is None:
            self.close()
            raise problem or PropagationError(
                f"{self._peer} did not answer within {timeout_s:g} s", hint="", peer=self._peer
            )
        return position

    def poll(self) -> RedoPosition:
        """Return how far redo is durable now.

        Raises:
            HeadraceError: the stream has ended.
        """
        with self._changed:
            if self._problem is not None or self._position is None:
                raise self._problem or PropagationError(f"{self._peer} is not connected", hint="", peer=self._peer)
            return self._position

    def checkpoint(self, scn: Scn, timeout_s: float = CALL_TIMEOUT_S) -> Scn:
        """Report to the source site that this capture process no longer needs redo below `scn`.

        Args:
            scn: the required checkpoint SCN.
            timeout_s: seconds to wait for the answer.

        Returns:
            The checkpoint on record there: the highest that this capture process has reported.

        Raises:
            PropagationError: the source site cannot be reached; report it again later.
            ProtocolError: another component now answers at the address.
        """
        return self._tell(redo_pb2.RequiredCheckpoint(hello=self._hello, scn=scn), timeout_s)

    def mine_again(self, scn: Scn, timeout_s: float = CALL_TIMEOUT_S) -> Scn:
        """Ask the source site to keep redo from `scn` on, which is below the checkpoint on record.

        This holds until the checkpoint on record, or a higher one, is reported again.

        Args:
            scn: this capture process mines again from here.
            timeout_s: seconds to wait for the answer.

        Returns:
            The checkpoint on record there.

        Raises:
            PropagationError: the source site cannot be reached.
            ProtocolError: another component now answers at the address.
        """
        return self._tell(redo_pb2.RequiredCheckpoint(hello=self._hello, scn=scn, again=True), timeout_s)

    def _tell(self, message: redo_pb2.RequiredCheckpoint, timeout_s: float) -> Scn:
        return Scn(transport.ask(self._stub.Checkpoint, message, timeout_s=timeout_s, peer=self._peer).scn)

    def close(self) -> None:
        """End the stream and the connection; idempotent."""
        if self._stream is not None:
            self._stream.close()
        self._channel.close()

    def _take(self, message: redo_pb2.RedoPosition) -> None:
        with self._changed:
            self._position = RedoPosition(message.segment, message.offset, Scn(message.scn))
            self._changed.notify_all()
        if self._wake is not None:
            self._wake()

    def _ended(self, problem: HeadraceError) -> None:
        with self._changed:
            self._problem = self._problem or problem
            self._changed.notify_all()
        if self._wake is not None:
            self._wake()
