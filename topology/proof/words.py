"""Words for the proof's findings: paths, tables and places in the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.databases.ports import Finding
from headrace.rules.rule import RuleSet
from topology.proof.hops import Hop, Place
from topology.proof.reach import Proof, tag_text
from topology.spec import CaptureSpec, PropagationSpec

__all__ = [
    "Client",
    "as_far_as",
    "clients_of",
    "finding_at",
    "made_with",
    "path_text",
    "place_in_file",
    "rules_of",
    "some",
    "taken_on",
]

NAMED_MAX = 3  # of tables, sites and the like: the reader needs an example; `--json` has all

Client = CaptureSpec | PropagationSpec | Hop
"""A client with rules on a hop; the hop itself stands for its apply process."""


def some(names: Iterable[str], what: str) -> str:
    """Format a few names: `a, b, c and 297 other tables`.

    Args:
        names: at least one.
        what: noun for the names, in the plural.
    """
    known = list(names)
    if len(known) <= NAMED_MAX:
        return " and ".join(filter(None, [", ".join(known[:-1]), known[-1]]))
    return f"{', '.join(known[:NAMED_MAX])} and {len(known) - NAMED_MAX} other {what}"


def path_text(proof: Proof, hops: tuple[Hop, ...], *, with_last: bool = False) -> str:
    """Format a path: `dbs1 -> dbs2 (applied by a1 with tag 00) -> dbs1 (applied by a2)`.

    Args:
        proof: the proof that found it.
        hops: at least one.
        with_last: also show the tag at its end.
    """
    words = []
    for number, hop in enumerate(hops):
        over = "".join(f" -> {site}" for site in proof.sites_of((hop,))[1:-1])
        tag = (
            ""
            if number == len(hops) - 1 and not with_last
            else " without a tag"
            if hop.apply.tag is None
            else f" with tag {hop.apply.tag.hex()}"
        )
        words.append(f"{over} -> {hop.site} (applied by {hop.apply.name}{tag})")
    return hops[0].source + "".join(words)


def made_with(proof: Proof, place: Place) -> str:
    """Say how changes must be tagged, where that matters.

    Args:
        proof: the proof that found them.
        place: their origin.
    """
    _, tag = place
    if tag == 0:
        return ""
    if tag == len(proof.classes.tags) - 1:
        return " in a transaction that its user tagged"
    return f" in a transaction that its user tagged {tag_text(proof.classes.tags[tag])}"


def as_far_as(deciding: tuple[str, ...]) -> str:
    """Return the addition to a finding where conditions decide.

    Args:
        deciding: the clients with such conditions (`Proof.conditions_on`); empty: no addition.
    """
    return (
        f", as far as the conditions of {' and '.join(deciding)} are TRUE: whether one change passes all of them is not"
        " proven"
        if deciding
        else ""
    )


def place_in_file(client: Client) -> str:
    """Return the place of a client in the file."""
    if isinstance(client, Hop):
        return f"applies.{client.apply.name}"
    return f"{'captures' if isinstance(client, CaptureSpec) else 'propagations'}.{client.name}"


def clients_of(hop: Hop) -> tuple[Client, ...]:
    """Return the clients on a hop, in order."""
    return (hop.way.capture, *hop.way.propagations, hop)


def rules_of(client: Client) -> RuleSet:
    """Return a client's rules."""
    return client.apply.rules if isinstance(client, Hop) else client.rules


def taken_on(proof: Proof, hop: Hop) -> Iterator[tuple[Client, int]]:
    """Yield the clients on a hop in order, with the classes that each takes, by the names at the hop's source.

    Args:
        proof: of the topology.
        hop: of it.
    """
    classes = proof.classes
    for client, (spec, names) in zip(clients_of(hop), classes.named_along(hop.way.clients), strict=True):
        yield client, classes.at_source(classes.taken_by(spec.rules), names)


def finding_at(path: str, problem: str, fix: str, *, is_error: bool = True) -> Finding:
    """Make a finding.

    Args:
        path: the part of the file to change.
        problem: what is wrong.
        fix: how to change it.
        is_error: it can never be intended.
    """
    return Finding(path=path, problem=problem, fix=fix, is_error=is_error)
