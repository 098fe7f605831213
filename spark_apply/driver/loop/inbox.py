"""Inbox of the loop of an apply driver: events and calls from other threads.

gRPC's threads and control's threads never touch a core. They put events here, and the loop takes them. A call is an
action that the loop runs between two events; the caller waits for its result.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, cast

from headrace.base.errors import ApplyError, HeadraceError

if TYPE_CHECKING:
    from protos import apply_pb2 as pb
    from protos.links.apply_link import ServerStream

__all__ = ["Call", "Event", "Failed", "LoopInbox", "QueueSpoke", "ServerSpoke", "StreamLost", "StreamOpened"]

_CALL_TIMEOUT_S = 30.0
_NEVER: Final = object()  # the answer to a call that the loop did not run before it ended

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class QueueSpoke:
    """Data arrived from the queue, or its stream ended."""


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """A task's stream was accepted."""

    stream: ServerStream


@dataclass(frozen=True, slots=True)
class ServerSpoke:
    """A message arrived on a task's stream."""

    stream: ServerStream
    message: pb.ServerMessage


@dataclass(frozen=True, slots=True)
class StreamLost:
    """A task's stream ended."""

    stream: ServerStream
    problem: str


@dataclass(frozen=True, slots=True)
class Call:
    """An action for the loop's thread."""

    action: Callable[[], object]
    answer: queue.SimpleQueue[object]

    def run(self) -> None:
        """Run the action, and answer with its result or its error."""
        try:
            self.answer.put(self.action())
        except HeadraceError as error:
            self.answer.put(error)


@dataclass(frozen=True, slots=True)
class Failed:
    """A part outside the loop cannot continue."""

    error: HeadraceError


Event = QueueSpoke | StreamOpened | ServerSpoke | StreamLost | Call | Failed


class LoopInbox:
    """Events and calls for the loop. The loop calls `next` and `end`, other threads everything else.

    Args:
        apply: name of the apply process, for messages.
    """

    def __init__(self, apply: str) -> None:
        self._apply = apply
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._has_ended = threading.Event()

    # ------------------------------------------------------------------ from other threads

    def queue_spoke(self) -> None:
        """Post that data arrived from the queue, or that its stream ended."""
        self._events.put(QueueSpoke())

    def opened(self, stream: ServerStream) -> None:
        """Post that a task's stream was accepted."""
        self._events.put(StreamOpened(stream))

    def receive(self, stream: ServerStream, message: pb.ServerMessage) -> None:
        """Post a message that arrived on a task's stream. See `StreamListener.receive`."""
        self._events.put(ServerSpoke(stream, message))

    def lost(self, stream: ServerStream, problem: str) -> None:
        """Post that a task's stream ended. See `StreamListener.lost`."""
        self._events.put(StreamLost(stream, problem))

    def fail(self, error: HeadraceError) -> None:
        """Post that a part outside the loop cannot continue; the loop raises the error."""
        self._events.put(Failed(error))

    def post(self, action: Callable[[], object]) -> None:
        """Run an action on the loop's thread, without waiting for it."""
        self._events.put(Call(action, queue.SimpleQueue()))

    def wake(self) -> None:
        """End the loop's pause, because something that it checks besides events may have changed."""
        self.post(lambda: None)

    def call(self, action: Callable[[], _Answer]) -> _Answer:
        """Run an action on the loop's thread and return its result.

        Raises:
            ApplyError: the loop did not run it in time, or has ended.
            HeadraceError: raised by the action.
        """
        found = self.call_within(action, _CALL_TIMEOUT_S)
        if found is None and self._has_ended.is_set():
            raise ApplyError(
                f"apply {self._apply} has ended",
                hint="headrace status FILE says why, and headrace start FILE NAME starts it again",
            )
        if found is None:
            raise ApplyError(
                f"apply {self._apply} is busy with its destination: no answer within {_CALL_TIMEOUT_S:g} s"
            )
        return found[0]

    def call_within(self, action: Callable[[], _Answer], timeout_s: float) -> tuple[_Answer] | None:
        """Run an action on the loop's thread and return its result, like `call`, within a time limit.

        Args:
            action: what the loop runs between two events.
            timeout_s: seconds to wait for its result.

        Returns:
            The result in a tuple; None: no result in time, and the action may still run later; or the loop has ended.

        Raises:
            HeadraceError: raised by the action.
        """
        answer: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._events.put(Call(action, answer))
        if self._has_ended.is_set():
            self._end_calls()  # the call arrived after the loop had ended the others
        try:
            found = answer.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if found is _NEVER:
            return None
        if isinstance(found, HeadraceError):
            raise found
        return (cast("_Answer", found),)

    # ------------------------------------------------------------------ on the loop's thread

    def next(self, timeout_s: float) -> Event | None:
        """Return the next event; None: none arrived.

        Args:
            timeout_s: longest wait, in seconds; 0 or less: no wait.
        """
        try:
            return self._events.get(timeout=timeout_s) if timeout_s > 0 else self._events.get_nowait()
        except queue.Empty:
            return None

    def end(self) -> None:
        """Note that the loop has ended, and answer all pending and later calls at once."""
        self._has_ended.set()
        self._end_calls()

    def _end_calls(self) -> None:
        """Answer late calls that will never run; on any thread, after the loop has ended."""
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                if isinstance(event, Call):
                    event.answer.put(_NEVER)
