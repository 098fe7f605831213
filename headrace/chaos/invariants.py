"""Invariants that hold during faults, checked in every new overview of the topology.

watermarks   the low watermark of an apply process never goes back, across any restart
errors       no transaction enters an error queue
home         no change comes back to the site where it was made
refused      no destination is refused, no caller is refused, and no component gives up (ABORTED)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.status.applies import ApplyStatus
from headrace.status.captures import CaptureStatus
from headrace.status.component import ComponentStatus
from headrace.status.overview import Overview
from headrace.status.queues import QueueStatus, QueueSubscriber

__all__ = ["INVARIANTS", "Invariants", "Violated"]

INVARIANTS: Mapping[str, str] = {
    "watermarks": "low watermarks never go back, nor below what was acknowledged",
    "errors": "no transaction enters an error queue",
    "home": "no change comes home",
    "refused": "nobody is refused, and no component gives up",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Violated:
    """An invariant that did not hold.

    Args:
        invariant: key of `INVARIANTS`.
        component: where.
        problem: what was seen.
        during: the fault that was in force or had not healed; empty: none.
    """

    invariant: str
    component: str
    problem: str
    during: str = ""


@dataclass(slots=True)
class Invariants:
    """Checks overviews, one after the other. The first one sets the values that later ones are compared with."""

    violated: list[Violated] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    """Number of values checked, by invariant: an invariant that was never checked proves nothing."""
    during: str = ""
    _watermarks: dict[tuple[str, int], int] = field(default_factory=dict)
    """Low watermarks by apply process and epoch."""
    _answered_us: dict[str, int] = field(default_factory=dict)
    _acknowledged: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By apply process: the acknowledged SCN, and when it was first seen (time of day, in microseconds)."""
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)
    _told: set[tuple[str, str]] = field(default_factory=set)

    def look(self, overview: Overview) -> None:
        """Check one overview; each violation is recorded once."""
        for component in overview.components:
            name = component.name
            if isinstance(component, ApplyStatus):
                self._look_at_apply(component)
            if component.wire is not None:
                self._look_at_count(
                    "refused",
                    name,
                    component.wire.refused_calls,
                    f"calls were refused, the last one: {component.wire.last_refusal}",
                    restarts=True,
                )
            self._look_at_refusals(name, component)
        # After the watermarks: components answer one after the other, so an apply process's status may be older than
        # an acknowledgement in the same overview.
        for component in overview.components:
            for subscriber in _subscribers(component):
                self._note_acknowledged(f"apply:{subscriber.subscriber}", subscriber.acknowledged_scn, overview.at_us)

    def _look_at_apply(self, apply: ApplyStatus) -> None:
        self._look_at_watermark(apply)
        self._look_at_count("errors", apply.name, apply.errors, "transactions are in its error queue")
        returned = (apply.counters or {}).get("returned_changes")
        self._look_at_count("home", apply.name, returned, "changes came back to their site", restarts=True)

    def _note_acknowledged(self, name: str, scn: int, at_us: int) -> None:
        """Remember an acknowledged SCN.

        Args:
            name: the apply process; a propagation's name matches none.
            scn: the acknowledged SCN.
            at_us: when it was seen, in microseconds.
        """
        if scn > self._acknowledged.get(name, (0, 0))[0]:
            self._acknowledged[name] = scn, at_us

    def _look_at_watermark(self, apply: ApplyStatus) -> None:
        name, watermark, answered_us = apply.name, apply.low_watermark_scn, apply.answered_us
        if not watermark:
            return  # unknown, while it starts
        if answered_us < self._answered_us.get(name, 0):
            return  # from an overview that began before an earlier one and ended after it
        self._answered_us[name] = answered_us
        self.checked["watermarks"] += 1
        key = name, apply.epoch or 0
        before = self._watermarks.get(key, 0)
        if watermark < before:
            self._violated(
                "watermarks", name, f"the low watermark went back from {before} to {watermark} in epoch {key[1]}"
            )
        self._watermarks[key] = max(watermark, before)
        acknowledged, seen_us = self._acknowledged.get(name, (0, 0))
        # Its status may be older than its overview.
        if watermark < acknowledged and answered_us > seen_us:
            self._violated("watermarks", name, f"the low watermark is {watermark}, and {acknowledged} was acknowledged")

    def _look_at_count(
        self, invariant: str, name: str, value: int | None, words: str, *, restarts: bool = False
    ) -> None:
        """Check a count that must not grow.

        Args:
            invariant: the invariant that it belongs to.
            name: the component.
            value: the count; None: unknown.
            words: description of what is counted.
            restarts: whether it restarts at zero with its process.
        """
        if value is None:
            return
        self.checked[invariant] += 1
        before = self._counts.get((invariant, name))
        if before is not None and value > before:
            self._violated(invariant, name, f"{value - before} {words}")
        if before is None or restarts or value > before:
            # What was there before the first fault does not count, and each violation is reported once.
            self._counts[invariant, name] = value

    def _look_at_refusals(self, name: str, component: ComponentStatus) -> None:
        self.checked["refused"] += 1
        if component.state == "ABORTED":
            why = "no reason is known" if component.last_error is None else component.last_error.message
            self._violated("refused", name, f"aborted: {why}")
        for subscriber in _subscribers(component):
            if subscriber.gone_scn is not None:
                self._violated("refused", name, f"{subscriber.subscriber} is refused: its redo is gone")

    def _violated(self, invariant: str, name: str, problem: str) -> None:
        found = Violated(invariant=invariant, component=name, problem=problem, during=self.during)
        if (name, problem) not in self._told:
            self._told.add((name, problem))
            self.violated.append(found)


def _subscribers(component: ComponentStatus) -> tuple[QueueSubscriber, ...]:
    return component.subscribers if isinstance(component, QueueStatus | CaptureStatus) else ()
