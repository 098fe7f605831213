"""Invariants of a simulation, and their violations."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

__all__ = ["Invariant", "Violation", "require"]


class Invariant(Enum):
    """Conditions that hold at every moment, under every fault."""

    NOTHING_LOST = "nothing lost"
    NOTHING_TWICE = "nothing twice"
    ORDER = "transactions that depend on each other are applied in order"
    RIGHT_PLACE = "changes come only where rules and tags let them"
    WATERMARKS = "watermarks do not go back"
    PROMISES = "what was told as durable is durable"
    FENCING = "the newest incarnation goes on"
    BOUNDS = "queues and streams stay within their bounds"
    NO_ABORT = "no component aborts"
    REFUSAL = "a destination is refused only if it lost commits"
    LIVENESS = "once nothing breaks any more, everything is applied and nothing is kept"
    CONVERGENCE = "destinations are equal to what was committed"


class Violation(Exception):  # noqa: N818 - a finding of the simulation
    """An invariant does not hold.

    Args:
        invariant: the invariant.
        place: site or component.
        message: the problem.
        scns: commit SCN, in each source's log, of the transaction concerned.
    """

    def __init__(self, invariant: Invariant, place: str, message: str, scns: Mapping[str, int] | None = None) -> None:
        super().__init__(invariant, place, message, scns)
        self.invariant, self.place, self.message, self.scns = invariant, place, message, dict(scns or {})

    def __str__(self) -> str:
        return f"{self.invariant.value}: {self.place}: {self.message}"


def require(condition: object, invariant: Invariant, place: str, message: str) -> None:
    """Raise `Violation` unless `condition` is true.

    Args:
        condition: what must hold.
        invariant: the invariant that it belongs to.
        place: site or component.
        message: the problem when it does not hold.
    """
    if not condition:
        raise Violation(invariant, place, message)
