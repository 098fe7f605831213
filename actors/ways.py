"""The ways LCRs take from a source to an apply process, as the rule sets along them: which tables arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rules.rule import RuleSet, TruthValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from topology.spec import ApplySpec, TopologySpec

__all__ = ["passes", "ways_to", "writes_alone"]


def ways_to(spec: TopologySpec, apply: ApplySpec) -> list[tuple[RuleSet, ...]]:
    """Every way from a capture of the apply's source to its queue: the rule sets along it, the apply's own last."""

    def from_queue(queue_name: str, passed: frozenset[str]) -> Iterator[tuple[RuleSet, ...]]:
        if queue_name == apply.queue:
            yield ()
        for propagation in spec.propagations:
            if propagation.from_queue == queue_name and propagation.to_queue not in passed:
                for rest in from_queue(propagation.to_queue, passed | {propagation.to_queue}):
                    yield (propagation.rules, *rest)

    return [
        (capture.rules, *rest, apply.rules)
        for capture in spec.captures if capture.source == apply.source
        for rest in from_queue(capture.queue, frozenset({capture.queue}))
    ]


def passes(ways: Sequence[tuple[RuleSet, ...]], owner: str, name: str) -> bool:
    """Whether untagged changes of a table come through on at least one way."""
    return any(
        all(rules.prefilter(owner, name, tagged=False) is not TruthValue.FALSE for rules in way) for way in ways
    )


def writes_alone(spec: TopologySpec, apply: ApplySpec, owner: str, name: str) -> bool:
    """Whether an apply process is the only one of the topology that writes a table at its site, and nobody captures it there.

    Args:
        spec: the topology.
        apply: the apply process.
        owner: schema of the table at its site.
        name: the table.
    """
    others = (each for each in spec.applies if each.name != apply.name and apply.site in (each.site, each.source))
    return not any(passes(ways_to(spec, other), owner, name) for other in others)
