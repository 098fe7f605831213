"""Rules and transformations for tests: what the clients of a topology file make of row LCRs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.base.errors import ConfigError
from headrace.databases.connectors import value_types
from headrace.lcr.row_lcr import RowLcr
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import RuleSet
from headrace.rules.transformations.calling import CustomCalls
from headrace.rules.transformations.custom import CustomTransformation
from headrace.rules.user_code.source import UserFunction
from headrace.testing.lcrs import batch_of, view
from topology.file.reading import read_topology
from topology.routing.ways import ways_to
from topology.spec import ApplySpec, CaptureSpec, PropagationSpec, TopologySpec

__all__ = ["Rules", "transform"]


class Rules:
    """The rules of some clients, one after the other.

    Args:
        rule_sets: of each client.
    """

    def __init__(self, rule_sets: Sequence[RuleSet]) -> None:
        self._clients = [RuleEvaluation(each, types=value_types()) for each in rule_sets]

    @classmethod
    def from_file(cls, path: Path | str, *clients: str) -> Rules:
        """The rules of a topology file.

        Args:
            path: the file.
            clients: names of capture processes, propagations and apply processes, in the order in which they get the
                LCRs. None: every client on the way, of a file with one way.

        Raises:
            TopologyError: with everything that is wrong with the file.
            ConfigError: there is no client of a name, or no name where there are several ways.
        """
        spec = read_topology(path)
        return cls([*(_named(spec, name) for name in clients)] if clients else _only_way(spec))

    def evaluate(self, lcr: RowLcr) -> list[RowLcr]:
        """What the clients make of an LCR: row migration, conditions, transformations, in the order of live.

        Args:
            lcr: as `row_lcr` makes it, changed or not.

        Returns:
            What passes; empty: it is discarded. Several: a function of a capture process made them of it.

        Raises:
            ConditionError: a condition cannot be evaluated.
            TransformationError: a transformation cannot be applied, or its function failed: the client would stop.
        """
        batch = batch_of([lcr])
        for client in self._clients:
            batch = client.filter(batch)
        return [view(batch, row) for row in range(batch.row_count)]


def transform(
    function: Callable[[RowLcr], object],
    lcr: RowLcr,
    *,
    columns: Sequence[str] | None = None,
    at_capture: bool = False,
    timeout_s: float = 30.0,
) -> list[RowLcr]:
    """What a transformation function makes of an LCR; refuses what is refused live.

    Args:
        function: the function.
        lcr: as `row_lcr` makes it; it stays as it is.
        columns: that it may change, as in the topology file; None: any.
        at_capture: it is a capture process's: it may return a list.
        timeout_s: for the call, seconds.

    Returns:
        The LCRs: one, but at a capture process.

    Raises:
        TransformationError: it failed, or did what a function must not do.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    custom = CustomTransformation(
        function=UserFunction(name=name, version="test"),
        columns=None if columns is None else tuple(columns),
        is_at_capture=at_capture,
        timeout_s=timeout_s,
    )
    calls = CustomCalls(value_types(), {custom: function})
    batch = calls.batch(batch_of([lcr]), {0: custom})
    return [view(batch, row) for row in range(batch.row_count)]


def _named(spec: TopologySpec, name: str) -> RuleSet:
    clients: tuple[CaptureSpec | PropagationSpec | ApplySpec, ...] = (*spec.captures, *spec.propagations, *spec.applies)
    for client in clients:
        if client.name == name:
            return client.rules
    raise ConfigError(f"the file has no client {name}", hint=f"it has {', '.join(client.name for client in clients)}")


def _only_way(spec: TopologySpec) -> list[RuleSet]:
    ways = [way for apply in spec.applies for way in ways_to(spec, apply)]
    if len(ways) != 1:
        raise ConfigError(
            f"the file has {len(ways)} ways",
            hint="name the clients: " + "; ".join(", ".join(client.name for client in way.clients) for way in ways),
        )
    return [client.rules for client in ways[0].clients]
