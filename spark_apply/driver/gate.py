"""Access control of the coordinator's endpoint. Called on gRPC's threads: checks the caller and passes messages on."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING

from protos import apply_pb2 as pb
from protos.apply_link import ServerStream
from spark_apply.messages import access_to_wire
from streams.errors import ProtocolError

if TYPE_CHECKING:
    from spark_apply.copy.board import CopyBoard
    from spark_apply.driver.config import ApplyConfig
    from spark_apply.driver.loop import CoordinatorHost

__all__ = ["Gate"]


class Gate:
    """Admits tasks of current runs: to the databases, to the pieces to copy, and to the host once it exists.

    Args:
        config: of the apply process.
    """

    def __init__(self, config: ApplyConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._tokens: set[str] = set()
        self.host: CoordinatorHost | None = None
        self.board: CopyBoard | None = None

    # ------------------------------------------------------------------ runs

    def admit(self) -> str:
        """A token for a run that is about to begin."""
        token = secrets.token_hex(16)
        with self._lock:
            self._tokens.add(token)
        return token

    def dismiss(self, token: str) -> None:
        """Refuse all remaining tasks of a run that has ended; open streams end by themselves."""
        with self._lock:
            self._tokens.discard(token)

    def check(self, token: str) -> None:
        """Refuse a caller without the token of a current run.

        Raises:
            ProtocolError: it is a task of an older run, or not a task.
        """
        with self._lock:
            is_known = token in self._tokens
        if not is_known:
            raise ProtocolError(f"the caller is no task of a run of {self._config.apply} that goes on")

    # ------------------------------------------------------------------ tasks

    def accept(self, stream: ServerStream) -> None:
        """See `StreamListener.accept`."""
        hello = stream.hello
        self.check(hello.token)
        if (hello.topology, hello.apply) != (self._config.topology, self._config.apply) or self.host is None:
            raise ProtocolError(f"this is the coordinator of {self._config.apply}, not of {hello.apply}")
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
        self.check(request.token)
        board = self.board
        return pb.CopyReply(done=True) if board is None else board.next(request)

    def access(self, request: pb.AccessRequest) -> pb.AccessReply:
        """See `StreamListener.access`."""
        self.check(request.token)
        return pb.AccessReply(
            source=access_to_wire(self._config.source), destination=access_to_wire(self._config.destination),
        )
