"""Access control of the coordinator's endpoint. Called on gRPC's threads: checks the caller and passes messages on."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from typing import TYPE_CHECKING

from headrace.base.errors import PropagationError, ProtocolError
from protos import apply_pb2 as pb
from protos.links.apply_link import ServerStream
from spark_apply.conversation.messages import access_to_wire

if TYPE_CHECKING:
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.copy.board import CopyBoard
    from spark_apply.driver.loop import CoordinatorHost

__all__ = ["Gate"]

# Runs that have ended whose tasks may still come: Spark repeats a failed task until the run is cancelled, seconds
# later. A driver has few runs at a time: one of apply servers, one of a round of copies, and those of comparisons.
_ENDED_MAX = 64


class Gate:
    """Admits tasks of current runs: to the databases, to the pieces to copy, and to the host once it exists.

    Args:
        config: of the apply process.
    """

    def __init__(self, config: ApplyConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._tokens: set[str] = set()
        self._ended: deque[str] = deque(maxlen=_ENDED_MAX)  # tokens of the last runs that have ended
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
        """Turn away all remaining tasks of a run that has ended; open streams end by themselves."""
        with self._lock:
            self._tokens.discard(token)
            self._ended.append(token)

    def check(self, token: str) -> None:
        """Refuse a caller without the token of a current run.

        Raises:
            PropagationError: it is a task of a run that has just ended, and comes late. That is no refusal that an
                operator should hear of.
            ProtocolError: it is not a task of this process.
        """
        with self._lock:
            is_known, is_late = token in self._tokens, token in self._ended
        if is_late:
            raise PropagationError(f"the run of {self._config.apply} that the task belongs to has ended")
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
            source=access_to_wire(self._config.source),
            destination=access_to_wire(self._config.destination),
        )
