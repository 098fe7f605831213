"""Redo transport over gRPC: ships a source's redo log to the redo receivers of other sites.

Job
    Send redo to every receiver the moment it is durable, within the receiver's credit, and return how far it is durable
    there.

Main path
    log writer -> ShippingService.announce -> Shipment.next_frame -> RedoTransport.Ship ->
      RedoShippingClient.take_nowait
    RedoShippingClient.acknowledge -> Shipment.acknowledge

Threads
    A client belongs to one thread; gRPC's thread only stores frames for `take_nowait`, and calls `wake`. At the source,
    one thread per stream reads the segments and another one the acknowledgements. They access the log writer only through
    `RedoShipper`, which any thread may call.

Durable when
    Never here: what is sent is already durable, and the next acknowledgement replaces a lost one.

Bounds
    At most `CREDIT_BYTES` are in flight to a receiver: sent and not yet durable there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from headrace.base.errors import HeadraceError, PropagationError, ProtocolError
from headrace.links.standby import RedoFrame, RedoShipper, Shipment, Shipped, StandbyPlace
from protos import redo_pb2, redo_pb2_grpc
from protos.codec import scn_from_message
from protos.wire import transport
from protos.wire.admission import RECEIVE_REDO, Admission
from protos.wire.identity import Peer
from protos.wire.transport import Channel, ClientStream, Outbox

__all__ = ["CREDIT_BYTES", "RedoShippingClient", "ShippingService"]

CONNECT_TIMEOUT_S = 10.0  # as for queues
CREDIT_BYTES = 8 << 20  # a few frames more than are written during one fsync


class ShippingService(redo_pb2_grpc.RedoTransportServicer):  # type: ignore[misc]
    """The gRPC service that ships the redo log of one source.

    Args:
        source: the source site.
        shipper: shipper of its log writer; `attach` replaces it when that is opened again.
        acknowledged: called when a receiver has more redo durably; must not block.
        admission: admission of its callers; None: any caller with a valid handshake.
    """

    def __init__(
        self,
        topology: str,
        source: str,
        shipper: RedoShipper,
        acknowledged: Callable[[], None],
        admission: Admission | None = None,
    ) -> None:
        self._topology, self._source, self._shipper, self._acknowledged = topology, source, shipper, acknowledged
        self._admission = admission or Admission()
        self._changed = threading.Condition(threading.Lock())
        self._announced = 0

    def register(self, server: Any) -> None:  # noqa: ANN401 - a grpc.Server
        """Add the service to a server."""
        redo_pb2_grpc.add_RedoTransportServicer_to_server(self, server)

    def attach(self, shipper: RedoShipper) -> None:
        """Ship another log writer's redo from now on; streams of the earlier one end."""
        with self._changed:
            self._shipper = shipper
            self._changed.notify_all()

    def announce(self) -> None:
        """Wake the streams: redo may have become durable."""
        with self._changed:
            self._announced += 1
            self._changed.notify_all()

    def Ship(  # noqa: N802 - the name in the protocol
        self,
        requests: Iterator[redo_pb2.ShipRequest],
        context: Any,  # noqa: ANN401
    ) -> Iterator[redo_pb2.ShippedRedo]:
        """Serve a receiver's stream; called by gRPC. See `RedoTransport.Ship` in redo.proto."""
        shipper = self._shipper
        shipment, stream = self._begin(shipper, requests, context)
        self.announce()  # ends an older stream of the receiver
        transport.accept(context)

        def take(request: redo_pb2.ShipRequest) -> None:
            kind = request.WhichOneof("kind")
            if kind == "durable":
                durable = request.durable
                shipment.acknowledge(
                    StandbyPlace(segment=durable.segment, offset=durable.offset, scn=scn_from_message(durable.scn))
                )
                self._acknowledged()
            elif kind == "credit_bytes":
                with self._changed:
                    stream.credit_bytes += request.credit_bytes
                    self._changed.notify_all()
            else:
                raise ProtocolError(f"a redo receiver sent {kind} after its beginning")

        def ended(problem: HeadraceError | None) -> None:
            with self._changed:
                stream.problem, stream.has_ended = problem, True
                self._changed.notify_all()

        transport.read_requests(requests, take, ended)
        try:
            yield from self._frames(shipper, shipment, stream)
            if stream.problem is not None:
                transport.abort(context, stream.problem)
        except HeadraceError as error:
            transport.abort(context, error)
        finally:
            shipment.close()

    def _begin(
        self,
        shipper: RedoShipper,
        requests: Iterator[redo_pb2.ShipRequest],
        context: Any,  # noqa: ANN401
    ) -> tuple[Shipment, _Stream]:
        """Admit a receiver and begin its stream; a refusal ends the call."""
        try:
            with self._admission.opening(context):
                begin = _begin(next(requests, None))
                transport.check_hello(begin.hello, self._topology, self._source)
                self._admission.check(context, RECEIVE_REDO, begin.hello.component)
                place = StandbyPlace(
                    segment=begin.place.segment,
                    offset=begin.place.offset,
                    scn=scn_from_message(begin.place.scn),
                    fingerprint=begin.fingerprint,
                )
                shipped = _shipped(begin.shipped)
            shipment = shipper.begin(begin.hello.component, begin.hello.incarnation, place, shipped)
        except HeadraceError as error:
            transport.abort(context, error)
        return shipment, _Stream(begin.credit_bytes)

    def _frames(self, shipper: RedoShipper, shipment: Shipment, stream: _Stream) -> Iterator[redo_pb2.ShippedRedo]:
        """Yield the frames of a stream as redo becomes durable, until it ends."""
        while (seen := self._wait(stream, shipper)) is not None:
            frame = shipment.next_frame()
            if frame is None:
                stream.seen = seen
                continue
            with self._changed:
                stream.credit_bytes -= len(frame.data)
            yield redo_pb2.ShippedRedo(
                segment=frame.segment, offset=frame.offset, data=frame.data, source_scn=frame.source_scn
            )

    def _wait(self, stream: _Stream, shipper: RedoShipper) -> int | None:
        """Wait until a frame may be sent; return the number of announcements so far; None: the stream has ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    stream.has_ended
                    or self._shipper is not shipper
                    or (stream.credit_bytes > 0 and stream.seen != self._announced)
                )
            )
            return None if stream.has_ended or self._shipper is not shipper else self._announced


class _Stream:
    """State of one stream of `ShippingService`."""

    def __init__(self, credit_bytes: int) -> None:
        self.credit_bytes = credit_bytes
        self.seen = -1  # number of announcements of which all redo is sent
        self.has_ended = False
        self.problem: HeadraceError | None = None


def _begin(request: redo_pb2.ShipRequest | None) -> redo_pb2.BeginShipping:
    if request is None or request.WhichOneof("kind") != "begin":
        raise ProtocolError("a redo receiver must send its position first")
    return request.begin


def _shipped(number: int) -> Shipped:
    try:
        return Shipped(number)
    except ValueError as error:
        raise ProtocolError(
            f"a redo receiver requested an unknown kind of redo ({number})", hint="run the same version at both sites"
        ) from error


class RedoShippingClient:
    """A redo receiver's stream from its source.

    Args:
        address: endpoint of the source site's redo, with the site whose certificate it must present.
        source: the source site.
        incarnation: incarnation of the receiver, from `transport.new_incarnation`; the source ends the stream of a lower
            one.
        wake: called on a gRPC thread when a frame arrived; must not block.
    """

    def __init__(
        self,
        address: Peer | str,
        *,
        topology: str,
        receiver: str,
        source: str,
        incarnation: str,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._peer = f"redo of {source} at {address}"
        self._hello = transport.make_hello(topology, receiver, source, incarnation)
        self._wake = wake or (lambda: None)
        self._changed = threading.Condition(threading.Lock())
        self._frames: deque[RedoFrame] = deque()
        self._is_open = False
        self._problem: HeadraceError | None = None
        self._channel = Channel(address)
        self._outbox: Outbox[redo_pb2.ShipRequest] = Outbox()
        self._stream: ClientStream[Any] | None = None

    def connect(
        self, place: StandbyPlace, *, shipped: Shipped = Shipped.REDO, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> None:
        """Open the stream, call it once.

        Args:
            place: end of what is durable here: redo from there on is wanted.
            shipped: the kind of redo that is wanted.
            timeout_s: seconds to wait for the source's answer.

        Raises:
            PropagationError: the source site cannot be reached.
            LogGone: the source no longer has the wanted redo.
            RedoError: what is durable here is not of the source's redo log.
        """
        self._outbox.put(
            redo_pb2.ShipRequest(
                begin=redo_pb2.BeginShipping(
                    hello=self._hello,
                    place=_position(place),
                    fingerprint=place.fingerprint,
                    credit_bytes=CREDIT_BYTES,
                    shipped=shipped.value,
                )
            )
        )
        call = redo_pb2_grpc.RedoTransportStub(self._channel.grpc).Ship(iter(self._outbox))
        self._stream = ClientStream(lambda: call, self._peer, opened=self._opened, take=self._take, ended=self._ended)
        with self._changed:
            self._changed.wait_for(lambda: self._is_open or self._problem, timeout_s)
            problem = self._problem
            if self._is_open:
                return
        self.close()
        raise problem or PropagationError(
            f"{self._peer} did not answer within {timeout_s:g} s", hint="", peer=self._peer
        )

    def take_nowait(self) -> RedoFrame | None:
        """Return the next frame; None: none has arrived.

        Raises:
            HeadraceError: the stream has ended, and every received frame was taken.
        """
        with self._changed:
            if self._frames:
                return self._frames.popleft()
            if self._problem is not None:
                raise self._problem
            return None

    def acknowledge(self, place: StandbyPlace) -> None:
        """Report to the source what is durable here.

        Args:
            place: end of what is durable.
        """
        self._outbox.put(redo_pb2.ShipRequest(durable=_position(place)))

    def grant(self, credit_bytes: int) -> None:
        """Grant more credit: the number of bytes that were written."""
        self._outbox.put(redo_pb2.ShipRequest(credit_bytes=credit_bytes))

    def close(self) -> None:
        """End the stream and the connection; idempotent."""
        self._outbox.close()
        if self._stream is not None:
            self._stream.close()
        self._channel.close()

    def _opened(self) -> None:
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def _take(self, message: redo_pb2.ShippedRedo) -> None:
        frame = RedoFrame(
            segment=message.segment,
            offset=message.offset,
            data=message.data,
            source_scn=scn_from_message(message.source_scn),
        )
        with self._changed:
            self._frames.append(frame)
        self._wake()

    def _ended(self, problem: HeadraceError) -> None:
        with self._changed:
            self._problem = self._problem or problem
            self._changed.notify_all()
        self._wake()


def _position(place: StandbyPlace) -> redo_pb2.RedoPosition:
    return redo_pb2.RedoPosition(segment=place.segment, offset=place.offset, scn=place.scn)
