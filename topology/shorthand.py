"""`replicate:` expanded into queues, captures, propagations and applies.

For every site that changes are taken from there is one capture process and one queue; for every site they go to
one more queue; for every pair one propagation and one apply process:

    capture_dbs1 -> q_dbs1 -> dbs1_to_dbs2 -> q_dbs2_in -> apply_from_dbs1_at_dbs2

Captured and received LCRs have queues of their own, so a slow destination fills only its own queue, and the way of
an LCR can be read off the names. The names depend on the two sites alone: adding a site or a table renames nothing,
which matters because positions are recorded under them.

Source: Oracle Streams Replication Administrator's Guide, "Best Practices", separate queues for capture and apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rules.rule import ANY_TAG, Rule, RuleSet
from topology.spec import ApplySpec, CaptureSpec, PropagationSpec, QueueSpec

__all__ = ["Components", "Replicate", "apply_name", "capture_name", "expand", "propagation_name", "queue_names"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate:
    """One entry of `replicate:`.

    Args:
        rules: the objects, as capture rules (untagged changes only).
        flows: (source site, destination site) pairs.
    """

    rules: tuple[Rule, ...]
    flows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Everything that moves changes."""

    queues: tuple[QueueSpec, ...] = ()
    captures: tuple[CaptureSpec, ...] = ()
    propagations: tuple[PropagationSpec, ...] = ()
    applies: tuple[ApplySpec, ...] = ()


def capture_name(source: str) -> str:
    """Name of the capture process of a site."""
    return f"capture_{source}"


def queue_names(site: str) -> tuple[str, str]:
    """Names of a site's queues: for what is captured there, for what arrives there."""
    return f"q_{site}", f"q_{site}_in"


def propagation_name(source: str, destination: str) -> str:
    """Name of the propagation between two sites."""
    return f"{source}_to_{destination}"


def apply_name(source: str, destination: str) -> str:
    """Name of the apply process at `destination` for the changes of `source`; unique in the topology."""
    return f"apply_from_{source}_at_{destination}"


def pairs_between(sites: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Every ordered pair of different sites."""
    return tuple((source, destination) for source in sites for destination in sites if source != destination)


def expand(entries: Sequence[Replicate], *, own_captures: frozenset[str] = frozenset()) -> Components:
    """Expand the shorthand, all entries together: what flows between two sites shares one path.

    Args:
        entries: in the order of the file.
        own_captures: names of capture processes that the file defines itself. What such a one takes is not known
            here, so the propagations behind it get the rules of the shorthand in any case.
    """
    wanted: dict[tuple[str, str], dict[Rule, None]] = {}  # an ordered set of rules per flow
    for entry in entries:
        for flow in entry.flows:
            wanted.setdefault(flow, {}).update(dict.fromkeys(entry.rules))
    captured: dict[str, dict[Rule, None]] = {}
    for (source, _), rules in wanted.items():
        captured.setdefault(source, {}).update(rules)
    destinations = tuple(dict.fromkeys(destination for _, destination in wanted))

    queues = [QueueSpec(name=queue_names(source)[0], site=source) for source in captured]
    queues += [QueueSpec(name=queue_names(destination)[1], site=destination) for destination in destinations]
    captures = [
        CaptureSpec(
            name=capture_name(source), site=source, source=source, queue=queue_names(source)[0],
            rules=RuleSet(include=tuple(rules)),
        )
        for source, rules in captured.items()
    ]
    propagations = []
    applies = []
    for (source, destination), rules in wanted.items():
        takes_all = rules.keys() == captured[source].keys() and capture_name(source) not in own_captures
        propagations.append(
            PropagationSpec(
                name=propagation_name(source, destination),
                from_queue=queue_names(source)[0], to_queue=queue_names(destination)[1],
                rules=RuleSet() if takes_all else _whatever_tag(rules),
            )
        )
        applies.append(
            ApplySpec(
                name=apply_name(source, destination), site=destination, source=source,
                queue=queue_names(destination)[1],
            )
        )
    return Components(
        queues=tuple(queues), captures=tuple(captures), propagations=tuple(propagations), applies=tuple(applies)
    )


def _whatever_tag(rules: dict[Rule, None]) -> RuleSet:
    """The same objects without a tag condition: the capture process has already looked at the tag.

    Source: Oracle Streams Replication Administrator's Guide, "Oracle Streams Tags", n-way replication.
    """
    return RuleSet(include=tuple(replace(rule, tags=ANY_TAG) for rule in rules))
