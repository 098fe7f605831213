"""What must hold while things break, looked at in every new overview of the topology.

watermarks   the low watermark of an apply process never goes back, across any restart
errors       no transaction enters an error queue
home         no change comes back to the site where it was made
refused      no destination is refused, no caller is refused, and no component gives up (ABORTED)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    """Looks at overviews, one after the other. The first one sets what later ones are compared with."""

    violated: list[Violated] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    """How many values were looked at, by invariant: one that was never looked at proves nothing."""
    during: str = ""
    _watermarks: dict[tuple[str, int], int] = field(default_factory=dict)
    """By apply process and epoch."""
    _answered_us: dict[str, int] = field(default_factory=dict)
    _acknowledged: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By apply process: the SCN, and when it was first seen, as the time of day in microseconds."""
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)
    _told: set[tuple[str, str]] = field(default_factory=set)

    def look(self, overview: Mapping[str, Any]) -> None:
        """Check one overview; what does not hold is noted once."""
        for component in overview["components"]:
            name = str(component["name"])
            self._look_at_watermark(name, component)
            self._look_at_count("errors", name, component.get("errors"), "transactions are in its error queue")
            self._look_at_count(
                "home",
                name,
                (component.get("counters") or {}).get("returned_changes"),
                "changes came back to their site",
                restarts=True,
            )
            wire = component.get("wire") or {}
            self._look_at_count(
                "refused",
                name,
                wire.get("refused_calls"),
                f"calls were refused, the last one: {wire.get('last_refusal')}",
                restarts=True,
            )
            self._look_at_refusals(name, component)
        # Behind the watermarks: components answer one after the other, and what is acknowledged meanwhile may be news
        # to them.
        for component in overview["components"]:
            for subscriber in component.get("subscribers", ()):
                self._note_acknowledged(
                    f"apply:{subscriber['subscriber']}",
                    int(subscriber.get("acknowledged_scn") or 0),
                    int(overview["at_us"]),
                )

    def _note_acknowledged(self, name: str, scn: int, at_us: int) -> None:
        """Remember what was acknowledged.

        Args:
            name: of the apply process; a propagation's name matches none.
            scn: that was acknowledged.
            at_us: when that was seen.
        """
        if scn > self._acknowledged.get(name, (0, 0))[0]:
            self._acknowledged[name] = scn, at_us

    def _look_at_watermark(self, name: str, component: Mapping[str, Any]) -> None:
        if not (watermark := int(component.get("low_watermark_scn") or 0)):
            return  # unknown, while it starts
        answered_us = int(component.get("answered_us") or 0)
        if answered_us < self._answered_us.get(name, 0):
            return  # of an overview that was begun before an earlier one and ended after it
        self._answered_us[name] = answered_us
        self.checked["watermarks"] += 1
        key = name, int(component.get("epoch") or 0)
        before = self._watermarks.get(key, 0)
        if watermark < before:
            self._violated(
                "watermarks", name, f"the low watermark went back from {before} to {watermark} in epoch {key[1]}"
            )
        self._watermarks[key] = max(watermark, before)
        acknowledged, seen_us = self._acknowledged.get(name, (0, 0))
        # Its status may be older than the overview that it is in.
        if watermark < acknowledged and answered_us > seen_us:
            self._violated("watermarks", name, f"the low watermark is {watermark}, and {acknowledged} was acknowledged")

    def _look_at_count(self, invariant: str, name: str, value: Any, words: str, *, restarts: bool = False) -> None:  # noqa: ANN401 - of a status
        """A count that must not grow.

        Args:
            invariant: that it belongs to.
            name: of the component.
            value: the count; None: unknown.
            words: about it.
            restarts: it begins at zero again when its process does.
        """
        if value is None:
            return
        self.checked[invariant] += 1
        before = self._counts.get((invariant, name))
        if before is not None and int(value) > before:
            self._violated(invariant, name, f"{int(value) - before} {words}")
        if before is None or restarts or int(value) > before:
            # What was there before anything broke is no news, and what was told once is told.
            self._counts[invariant, name] = int(value)

    def _look_at_refusals(self, name: str, component: Mapping[str, Any]) -> None:
        self.checked["refused"] += 1
        if component["state"] == "ABORTED":
            self._violated(
                "refused", name, f"aborted: {(component.get('last_error') or {}).get('message', 'no reason is known')}"
            )
        for subscriber in component.get("subscribers", ()):
            if subscriber.get("gone_scn") is not None:
                self._violated("refused", name, f"{subscriber['subscriber']} is refused: its redo is gone")

    def _violated(self, invariant: str, name: str, problem: str) -> None:
        found = Violated(invariant=invariant, component=name, problem=problem, during=self.during)
        if (name, problem) not in self._told:
            self._told.add((name, problem))
            self.violated.append(found)
