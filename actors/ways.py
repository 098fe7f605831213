"""The ways LCRs take from a source to an apply process, as the rule sets along them: which tables arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rules.rule import RuleSet, TruthValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from topology.spec import ApplySpec, TopologySpec

__all__ = ["passes", "ways_to"]


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
