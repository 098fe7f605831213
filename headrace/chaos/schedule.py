"""The schedule of faults, drawn from a seed and the topology file only, so that a seed can be repeated."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError
from headrace.chaos.faults import ACTIONS
from headrace.console.fault_names import named_faults
from headrace.simulation.faults import EVERY_FAULT as SIMULATED_FAULTS

if TYPE_CHECKING:
    from headrace.chaos.faults import Action
    from topology.spec import TopologySpec

__all__ = ["EVERY_FAULT", "Planned", "fault_kinds", "schedule_of", "seconds_of"]

EVERY_FAULT = frozenset(action.kind for action in ACTIONS)
_PAUSE_S = (0.5, 3.0)  # between two faults: sometimes everything has only just healed
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One fault of a schedule.

    Args:
        number: from 1.
        action: name of the action.
        target: its target.
        seconds: time in force; 0: it is instant.
        pause_s: seconds before it, after everything has healed.
    """

    number: int
    action: str
    target: str
    seconds: float
    pause_s: float


def fault_kinds(text: str) -> frozenset[str]:
    """Parse `--faults`: names separated by commas, or "all".

    Raises:
        ConfigError: no such fault exists, or it cannot be made on a real machine: TCP keeps the order and sends nothing
            twice, and the clock is the machine's.
    """
    names = frozenset(name.strip() for name in text.split(","))
    if simulated := sorted(names & (SIMULATED_FAULTS - EVERY_FAULT)):
        raise ConfigError(
            f"--faults {', '.join(simulated)}: cannot be caused on a real machine",
            hint=f"`headrace simulate` can simulate it; here: all, or some of: {', '.join(sorted(EVERY_FAULT))}",
        )
    return named_faults(text, EVERY_FAULT)


def seconds_of(text: str) -> float:
    """Parse a duration: 90, 90s, 5m or 1h.

    Raises:
        ConfigError: the text is no duration, or not above zero.
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"--for {text}: this is no duration", hint="use for example 90s, 5m or 1h")
    return seconds


def schedule_of(spec: TopologySpec, seed: int, kinds: frozenset[str]) -> Iterator[Planned]:
    """Return the faults of a seed, without end.

    Every action that has a target comes once, in random order, then once more in another order.

    Args:
        spec: the topology, as in the file.
        seed: decides every random choice.
        kinds: kinds of faults, from `EVERY_FAULT`.

    Raises:
        ConfigError: no fault of these kinds can happen to this topology.
    """
    rng = random.Random(f"headrace chaos {seed}")
    possible: list[tuple[Action, list[str]]] = [
        (action, targets) for action in ACTIONS if action.kind in kinds and (targets := action.targets(spec))
    ]
    if not possible:
        raise ConfigError(
            f"none of these faults can happen to topology {spec.name}: {', '.join(sorted(kinds))}",
            hint="a topology of one site has no links, servers of your own are never stopped; --faults all",
        )
    return _drawn(rng, possible)


def _drawn(rng: random.Random, possible: list[tuple[Action, list[str]]]) -> Iterator[Planned]:
    number = 0
    while True:
        for action, targets in rng.sample(possible, len(possible)):
            number += 1
            yield Planned(
                number=number,
                action=action.name,
                target=rng.choice(targets),
                seconds=round(rng.uniform(*action.seconds), 1),
                pause_s=round(rng.uniform(*_PAUSE_S), 1),
            )
