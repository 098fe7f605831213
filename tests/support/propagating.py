"""A propagation between queues on loopback, stepped by a thread as its host does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

from actors.staging.propagation import PropagationRunner
from protos.identity import Peer
from protos.links import GrpcLinks
from protos.transport import Bell
from streams.clock import Clock
from topology.spec import PropagationSpec

__all__ = ["Propagating"]


class Propagating:
    """See the module.

    Args:
        spec: the propagation, of topology "t" unless said otherwise.
        resolve: answers where a queue serves ("queue:q_dbs1").
        topology: its name.
        clock: of the statistics and the schedule.
    """

    def __init__(
        self,
        spec: PropagationSpec,
        resolve: Callable[[str], Peer | str],
        topology: str = "t",
        *,
        clock: Clock | None = None,
    ) -> None:
        self._bell = Bell()
        self.runner = PropagationRunner(
            spec, GrpcLinks(topology, spec.name, resolve, wake=self._bell.ring), clock=clock
        )

    def run(self, stop: threading.Event) -> None:
        """Open, step until `stop` is set, close; an error of a stream ends it."""
        with closing(self.runner):
            self.runner.open()
            while not stop.is_set():
                pause_s = self.runner.step()
                if pause_s > 0:
                    self._bell.wait(pause_s)

    def wake(self) -> None:
        """End the pause, so that a stop is noticed at once."""
        self._bell.ring()
