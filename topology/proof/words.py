"""What the proof's findings are told with: paths, tables and places in the file, in plain words."""

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

NAMED_MAX = 3  # of tables, sites and the like: the reader wants an example, `--json` has all

Client = CaptureSpec | PropagationSpec | Hop
"""Whatever has rules on a hop; the hop itself stands for its apply process."""


def some(names: Iterable[str], what: str) -> str:
    """A few names: `a, b, c and 297 other tables`.

    Args:
        names: one at least.
        what: they are the names of, in the plural.
    """
    known = list(names)
    if len(known) <= NAMED_MAX:
        return " and ".join(filter(None, [", ".join(known[:-1]), known[-1]]))
    return f"{', '.join(known[:NAMED_MAX])} and {len(known) - NAMED_MAX} other {what}"


def path_text(proof: Proof, hops: tuple[Hop, ...], *, with_last: bool = False) -> str:
    """A path in plain words: `dbs1 -> dbs2 (applied by a1 with tag 00) -> dbs1 (applied by a2)`.

    Args:
        proof: that found it.
        hops: of the path, one at least.
        with_last: say the tag at its end, too.
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
    """How changes must be tagged, where that matters.

    Args:
        proof: that found them.
        place: where they are made.
    """
    _, tag = place
    if tag == 0:
        return ""
    if tag == len(proof.classes.tags) - 1:
        return " in a transaction that its user tagged"
    return f" in a transaction that its user tagged {tag_text(proof.classes.tags[tag])}"


def as_far_as(deciding: tuple[str, ...]) -> str:
    """What is added where conditions decide.

    Args:
        deciding: the clients that have them (`Proof.conditions_on`); empty: nothing is added.
    """
    return (
        f", as far as the conditions of {' and '.join(deciding)} are TRUE: whether one change passes all of them is not"
        " proven"
        if deciding
        else ""
    )


def place_in_file(client: Client) -> str:
    """Where a client stands in the file."""
    if isinstance(client, Hop):
        return f"applies.{client.apply.name}"
    return f"{'captures' if isinstance(client, CaptureSpec) else 'propagations'}.{client.name}"


def clients_of(hop: Hop) -> tuple[Client, ...]:
    """The clients on a hop, in order."""
    return (hop.way.capture, *hop.way.propagations, hop)


def rules_of(client: Client) -> RuleSet:
    """Its rules."""
    return client.apply.rules if isinstance(client, Hop) else client.rules


def taken_on(proof: Proof, hop: Hop) -> Iterator[tuple[Client, int]]:
    """The clients on a hop, in order, and the classes that each of them takes, by the names that the hop's source has.

    Args:
        proof: of the topology.
        hop: of it.
    """
    classes = proof.classes
    for client, (spec, names) in zip(clients_of(hop), classes.named_along(hop.way.clients), strict=True):
        yield client, classes.at_source(classes.taken_by(spec.rules), names)


def finding_at(path: str, problem: str, fix: str, *, is_error: bool = True) -> Finding:
    """A finding.

    Args:
        path: of the part of the file to change.
        problem: what is wrong.
        fix: how to change it.
        is_error: nobody can want it.
    """
    return Finding(path=path, problem=problem, fix=fix, is_error=is_error)
