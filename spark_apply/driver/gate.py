"""Access control of the coordinator's endpoint. It runs on gRPC's threads: checks the caller and passes messages on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.errors import ProtocolError
from protos import apply_pb2 as pb
from protos.links.apply_link import ServerStream
from spark_apply.application.access.run_tokens import RunTokens
from spark_apply.conversation.messages import access_to_wire
from spark_apply.copy.pieces.board import BoardSlot

if TYPE_CHECKING:
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.driver.loop.inbox import LoopInbox

__all__ = ["Gate"]


class Gate:
    """Admits tasks of current runs to the databases, to the pieces to copy, and to the loop when it runs.

    Args:
        config: of the apply process.

    Attributes:
        tokens: tokens of its current runs.
        boards: where copying tasks find the board of the current round.
        inbox: the loop's inbox, for the apply servers' streams; None: the loop does not run yet.
    """

    def __init__(self, config: ApplyConfig) -> None:
        self._config = config
        self.tokens = RunTokens(config.apply)
        self.boards = BoardSlot()
        self.inbox: LoopInbox | None = None

    # ------------------------------------------------------------------ tasks

    def accept(self, stream: ServerStream) -> None:
        """Admit a server's stream; raise ProtocolError to refuse it."""
        hello = stream.hello
        self.tokens.check(hello.token)
        if (hello.topology, hello.apply) != (self._config.topology, self._config.apply) or self.inbox is None:
            raise ProtocolError(f"this is the coordinator of {self._config.apply}, not of {hello.apply}")
        if not 0 <= hello.server < self._config.parallelism:
            raise ProtocolError(f"apply {self._config.apply} has no server {hello.server}")
        self.inbox.opened(stream)

    def receive(self, stream: ServerStream, message: pb.ServerMessage) -> None:
        """Pass a server's message to the loop. See `StreamListener.receive`."""
        if self.inbox is not None:
            self.inbox.receive(stream, message)

    def lost(self, stream: ServerStream, problem: str) -> None:
        """Tell the loop that a stream ended. See `StreamListener.lost`."""
        if self.inbox is not None:
            self.inbox.lost(stream, problem)

    def next_copy(self, request: pb.CopyRequest) -> pb.CopyReply:
        """Answer a copying task with its next piece."""
        self.tokens.check(request.token)
        return self.boards.next(request)

    def access(self, request: pb.AccessRequest) -> pb.AccessReply:
        """Answer a task with the accesses to both databases; raise ProtocolError to refuse it."""
        self.tokens.check(request.token)
        return pb.AccessReply(
            source=access_to_wire(self._config.source),
            destination=access_to_wire(self._config.destination),
        )
