"""Hosts a propagation (`actors.staging.propagation`): its connections and its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from actors.hosting.host import Host
from actors.security.wire import links_of
from headrace.status.component import ComponentStatus

if TYPE_CHECKING:
    from actors.security.wire import MakeLinks
    from actors.staging.propagation import PropagationRunner
    from headrace.base.clock import Clock
    from topology.spec import TopologySpec

__all__ = ["PropagationHost", "build"]


class PropagationHost(Host):
    """One propagation, at the site of its source queue.

    Args:
        fingerprint: fingerprint of the topology that brought this component's part; shown in its status.
        make_links: makes its streams.
    """

    kind: ClassVar[str] = "propagation"

    def __init__(
        self,
        spec: TopologySpec,
        name: str,
        fingerprint: str,
        make_links: MakeLinks = links_of,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(f"propagation:{name}", spec.state_dir, clock=clock)
        self._make_links = make_links
        self._spec = spec
        self._propagation = spec.propagation(name)
        self._fingerprint = fingerprint
        self._runner: PropagationRunner | None = None

    def open(self) -> None:
        """Connect to both queues at their current endpoints."""
        from actors.records.files import LAST_CALL, component_file
        from actors.staging.propagation import PropagationRunner
        from headrace.rules.user_code.last_call import LastCall

        if self._runner is None:
            site = self._spec.queue(self._propagation.from_queue).site
            self._runner = PropagationRunner(
                self._propagation,
                self._make_links(self._spec, site, self.name, self.wake),
                clock=self._clock,
                tracks=self.tracks,
                last_call=lambda source: LastCall(
                    component_file(self._spec.state_dir, self.name, f"{LAST_CALL}.{source}")
                ),
            )
        self._runner.open()

    def step(self) -> float:
        """Forward available batches."""
        assert self._runner is not None
        return self._runner.step()

    def close(self) -> None:
        """Close the connections; the statistics stay."""
        if self._runner is not None:
            self._runner.close()

    def late_call(self) -> str:
        """Return a message about a transformation function that has overrun its time and not returned."""
        runner = self._runner
        return "" if runner is None else runner.late_call

    def adopt(self, spec: TopologySpec, fingerprint: str) -> None:
        """Adopt changed sources and rules; they take effect with the next connection.

        See `Host.adopt` for the arguments.
        """
        self._spec, self._propagation, self._fingerprint = spec, spec.propagation(self._propagation.name), fingerprint
        self._runner = None

    def detail_state(self) -> str:
        """Return the propagation's own state."""
        runner = self._runner
        return "INITIALIZING" if runner is None else runner.state

    def details(self) -> ComponentStatus:
        """Return the propagation's statistics, when it was opened."""
        site, runner = self._spec.queue(self._propagation.from_queue).site, self._runner
        if runner is None:
            return ComponentStatus(name=self.name, site=site, fingerprint=self._fingerprint)
        return replace(runner.status(), site=site, fingerprint=self._fingerprint)


def build(spec: TopologySpec, name: str, fingerprint: str) -> PropagationHost:
    """Build the host of a propagation (`actors.hosting.runtime.Factory`).

    Args:
        spec: the topology.
        name: name of the propagation.
        fingerprint: fingerprint of the topology that brought this component's part; shown in its status.
    """
    return PropagationHost(spec, name, fingerprint)
