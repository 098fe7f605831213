"""Rules and transformations for tests: how the clients of a topology file filter and change row LCRs."""

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
    """The rules of several clients, applied in order.

    Args:
        rule_sets: one per client.
    """

    def __init__(self, rule_sets: Sequence[RuleSet]) -> None:
        self._clients = [RuleEvaluation(each, types=value_types()) for each in rule_sets]

    @classmethod
    def from_file(cls, path: Path | str, *clients: str) -> Rules:
        """Read the rules of a topology file.

        Args:
            path: the file.
            clients: names of capture processes, propagations and apply processes, in the order in which LCRs pass them.
                None: every client on the path, of a file with one path.

        Raises:
            TopologyError: the file is wrong; the error lists every problem.
            ConfigError: a client does not exist, or no client is named and the file has several paths.
        """
        spec = read_topology(path)
        return cls([*(_named(spec, name) for name in clients)] if clients else _only_way(spec))

    def evaluate(self, lcr: RowLcr) -> list[RowLcr]:
        """Return what the clients make of an LCR: row migration, conditions and transformations, in production order.

        Args:
            lcr: LCR from `row_lcr`, changed or not.

        Returns:
            The LCRs that pass; empty: it is discarded. Several, if a function of a capture process returned several.

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
    """Return what a transformation function makes of an LCR; refuse what production refuses.

    Args:
        function: the function.
        lcr: LCR from `row_lcr`; it is not changed.
        columns: columns that the function may change, as in the topology file; None: any.
        at_capture: the function belongs to a capture process: it may return a list.
        timeout_s: limit of the call, in seconds.

    Returns:
        The LCRs: exactly one, except at a capture process.

    Raises:
        TransformationError: the function failed, or did something forbidden.
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
