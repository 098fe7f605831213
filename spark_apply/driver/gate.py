"""Who the driver's endpoint talks to. Called on gRPC's threads: checks who is there, and passes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protos import apply_pb2 as pb
from protos.apply_link import ServerStream, check_token
from spark_apply.messages import access_to_wire
from streams.errors import ProtocolError

if TYPE_CHECKING:
    from spark_apply.application.job_config import ApplyJobConfig
    from spark_apply.copy.board import CopyBoard
    from spark_apply.driver.loop import CoordinatorHost

__all__ = ["Gate"]


class Gate:
    """Lets this driver's own tasks in: to the databases, to the pieces to copy, and, once it exists, to the host.

    Args:
        config: of the apply process.
        token: of this driver's incarnation.
    """

    def __init__(self, config: ApplyJobConfig, token: str) -> None:
        self._config, self._token = config, token
        self.host: CoordinatorHost | None = None
        self.board: CopyBoard | None = None

    def accept(self, stream: ServerStream) -> None:
        """See `StreamListener.accept`."""
        hello = stream.hello
        check_token(hello.token, self._token)
        if (hello.topology, hello.apply) != (self._config.topology, self._config.apply) or self.host is None:
            raise ProtocolError(f"this is the driver of {self._config.apply}, not of {hello.apply}")
        if not 0 <= hello.server < self._config.parallelism:
            raise ProtocolError(f"apply {self._config.apply} has no server {hello.server}")
        self.host.opened(stream)

    def receive(self, stream: ServerStream, message: pb.ServerMessage) -> None:
        """See `StreamListener.receive`."""
        if self.host is not None:
            self.host.receive(stream, message)

    def lost(self, stream: ServerStream, problem: str) -> None:
        """See `StreamListener.lost`."""
        if self.host is not None:
            self.host.lost(stream, problem)

    def next_copy(self, request: pb.CopyRequest) -> pb.CopyReply:
        """See `StreamListener.next_copy`."""
        check_token(request.token, self._token)
        board = self.board
        return pb.CopyReply(done=True) if board is None else board.next(request)

    def access(self, request: pb.AccessRequest) -> pb.AccessReply:
        """See `StreamListener.access`."""
        check_token(request.token, self._token)
        return pb.AccessReply(
            source=access_to_wire(self._config.source), destination=access_to_wire(self._config.destination),
        )
