"""A queue on a port of its own, in the hands of one thread, as its host has it in a topology that runs."""

from __future__ import annotations

import queue
import threading

from actors.staging.queue import QueueCore
from protos.admission import Admission
from protos.queue_link import QueueServer
from topology.spec import TopologySpec

__all__ = ["KeptQueue"]

TAKEN_S = 60.0  # for an edit: a save that is under way comes first


class KeptQueue:
    """Serves a queue from now on; its thread keeps house, takes edits, and ends the server, then the queue.

    Args:
        core: the queue.
        admission: of its callers; None: everybody who says the right hello.
    """

    def __init__(self, core: QueueCore, admission: Admission | None = None) -> None:
        self.core, self.server = core, QueueServer(core, admission=admission)
        self.service, self.endpoint = self.server.service, self.server.endpoint
        self._edits: queue.SimpleQueue[tuple[TopologySpec, threading.Event]] = queue.SimpleQueue()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"queue {core.name}", daemon=True)
        self._thread.start()

    def adopt(self, spec: TopologySpec) -> None:
        """Go on with an edited topology; returns when the queue goes by it."""
        taken = threading.Event()
        self._edits.put((spec, taken))
        self._wake.set()
        assert taken.wait(TAKEN_S), "the queue does not take the edit"

    def end(self) -> None:
        """End every stream, then the queue; idempotent."""
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self.service.housekeeping())
            self._wake.clear()
            while not self._edits.empty():
                spec, taken = self._edits.get()
                with self.service.changing():
                    self.core.adopt(spec)
                taken.set()
        self.server.stop()
