"""Progress checks: discardable redo must be applied everywhere, and in the end everything is applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lcr.scn import Scn
from headrace.simulation.observing.violations import Invariant, Violation

if TYPE_CHECKING:
    from headrace.simulation.running import Running

__all__ = ["Convergence"]


class Convergence:
    """Checks how far a simulated topology has come.

    Args:
        sim: the simulation.
    """

    def __init__(self, sim: Running) -> None:
        self._sim = sim

    def check_told(self) -> None:
        """Check that everything that the log writers may discard is applied at every destination.

        Raises:
            Violation: a destination lacks it.
        """
        sim = self._sim
        for receiver in sim.running.receivers.values():
            receiver.check()
        for site, component in sim.running.mined(sim.topology):
            if component.keeper is None:
                continue
            required = component.keeper.required_checkpoints.lowest
            if not required:
                continue
            for apply in sim.running.applies.values():
                if apply.spec.source == site and apply.refused is None and not apply.observer.allows(Scn(required)):
                    low_watermark = apply.observer.low_watermark
                    raise Violation(
                        Invariant.PROMISES,
                        component.name,
                        f"redo below {required} may be discarded, but {apply.name} has applied everything only up to"
                        f" {low_watermark}",
                        sim.logs.scns_at(
                            site, next((each.scn for each in sim.logs.of(site) if each.scn > low_watermark), 0)
                        ),
                    )

    @property
    def is_behind(self) -> bool:
        """Whether most commits are not applied everywhere yet, so that faults still reach every stage."""
        for apply in self._sim.running.applies.values():
            source = apply.spec.source
            log: list[int] = [each.scn for each in self._sim.logs.of(source)]
            log = log or list(self._sim.workload.contested.log.get(source, []))
            if log and apply.observer.low_watermark < log[len(log) * 4 // 5] and apply.refused is None:
                return True
        return False

    @property
    def is_settled(self) -> bool:
        """Whether everything is applied, every component knows it, and no redo is kept."""
        return not self.unsettled()

    def unsettled(self) -> tuple[str, str] | tuple[()]:
        """Return what is unfinished, as place and problem; empty: nothing."""
        sim, running = self._sim, self._sim.running
        for name, site in running.mined(sim.topology):
            last = sim.databases[name].source.current_scn()
            if not any(apply.source == name for apply in sim.topology.applies):
                continue
            required = (site.keeper.required_checkpoints.lowest or 0) if site.keeper else 0
            if required < last:
                behind = [
                    f"{a.name} {a.observer.low_watermark}{' (refused)' if a.refused else ''}"
                    for a in running.applies.values()
                    if a.spec.source == name
                ]
                return (
                    site.name,
                    f"its log ends at {last}, and redo is kept from {required} on; low watermarks: {', '.join(behind)}",
                )
        for apply in running.applies.values():
            if apply.refused is None and apply.observer.is_incomplete:
                return (
                    apply.name,
                    f"its table copies are not complete or not caught up; low watermark {apply.observer.low_watermark}",
                )
        for name, queue in running.queues.items():
            batches = queue.core.status().batches if queue.core else -1
            if batches:
                return f"queue:{name}", "it is down" if batches < 0 else f"{batches} batches are left in it"
        return ()
