"""Findings of the proof: each with a path as counter-example, and the part of the file to change.

Errors are wrong whatever the user intended:

- duplicate delivery, returning changes and cycles (unless the file says `allow_cycle: true`)
- tables that an apply process names and never gets
- changes that are lost between sites which all write the same tables

The rest may be intended, such as a site that does not forward, and is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from headrace.base.errors import counted
from headrace.databases.ports import Finding
from headrace.rules.rule import Rule, TruthValue
from topology.proof.duplicates import Duplicates
from topology.proof.hops import OWN, Hop, Place, by_names
from topology.proof.reach import Proof
from topology.proof.words import Client, clients_of, finding_at, path_text, place_in_file, rules_of, some, taken_on
from topology.routing.change_classes import Naming
from topology.spec import ApplySpec, CaptureSpec, PropagationSpec

__all__ = ["proof_findings"]


def proof_findings(proof: Proof) -> Iterator[Finding]:
    """Yield everything that is wrong by the proof.

    Args:
        proof: of a topology whose names all have a target, and whose queues get every source from one publisher.
    """
    yield from Duplicates(proof).findings()
    yield from _mixed(proof)
    yield from _never_arriving(proof)
    yield from _never_sent(proof)
    yield from _lost(proof)
    yield from _kept_back(proof)
    yield from _unclaimed(proof)


# --------------------------------------------------------------------------- two tables as one


def _mixed(proof: Proof) -> Iterator[Finding]:
    """Yield two tables of a site that arrive at another one as one table, from different sources.

    `topology.checks.transformations` finds those of one source.
    """
    if not any(hop.names for hops in proof.hops.values() for hop in hops):
        return
    classes = proof.classes
    spoken_of = reduce(or_, (classes.class_of(*table) for table in classes.spoken_of), 0)
    told: set[tuple[str, str]] = set()
    for place in [(origin, tag) for tag in range(len(classes.tags)) for origin in proof.origins]:
        origin = place[0]
        for site in proof.arrived(place):
            if site == origin or (origin, site) in told:
                continue
            found = next(_together(proof, place, site, spoken_of), None)
            if found is not None:
                told.add((origin, site))
                (first, one), (second, other), name = found
                yield finding_at(
                    f"applies.{second[-1].apply.name}",
                    f"{one} and {other} of {origin} would both arrive at {site} as {name}: the first over"
                    f" {path_text(proof, first)}, the second over {path_text(proof, second)}",
                    "give each its own name, or exclude one of them",
                )


def _together(
    proof: Proof, place: Place, site: str, among: int
) -> Iterator[tuple[tuple[tuple[Hop, ...], str], tuple[tuple[Hop, ...], str], str]]:
    """Yield pairs of tables that have one name at a site and arrive from different sources.

    Each pair has the path and the name of each table, and the name at the site.
    """
    classes, by_name = proof.classes, dict[int, dict[int, Hop]]()
    for (hop, called), tables in proof.arrivals(place, site).items():
        left = tables & among
        while left:
            number = (left & -left).bit_length() - 1
            by_name.setdefault(number if called == OWN else called, {}).setdefault(number, hop)
            left &= left - 1
    for name, hops in by_name.items():
        one, *others = hops
        other = next((each for each in others if hops[each].source != hops[one].source), None)
        if other is not None:
            paths = [
                proof.path(place, 1 << table, lambda hop, called, last=hops[table]: hop is last and called == name)  # type: ignore[misc]  # noqa: B023
                for table in (one, other)
            ]
            texts = [".".join(classes.tables[each]) for each in (one, other, name)]
            yield (paths[0], texts[0]), (paths[1], texts[1]), texts[2]


# --------------------------------------------------------------------------- never


def _never_arriving(proof: Proof) -> Iterator[Finding]:
    """Yield rules of apply processes that get no changes, or only changes that users tag."""
    live = _live(proof)
    by_apply: dict[str, list[Hop]] = {}
    for hops in proof.hops.values():
        for hop in hops:
            by_apply.setdefault(hop.apply.name, []).append(hop)
    for apply in proof.spec.applies:
        ways = [hop.way for hop in by_apply.get(apply.name, ())]
        if not ways:
            continue
        coming = [
            (proof.classes.carried_by(way.clients[:-1]), proof.classes.named_behind(way.clients[:-1])) for way in ways
        ]
        for number, rule in enumerate(apply.rules.include or ()):
            matched, arriving = proof.classes.matched_by((rule,)), 0
            for carried, names in coming:
                arriving |= carried & proof.classes.at_source(matched, names)
            if rule.dml and not arriving:
                yield _never_arrives(proof, by_apply[apply.name][0], number)
            elif (
                rule.dml
                and rule.tags.answer(None) is TruthValue.TRUE
                and not arriving & _there(proof, live, apply.source)
            ):
                yield finding_at(
                    f"applies.{apply.name}.rules.include[{number}]",
                    f"of {rule} only changes arrive that users of {apply.source} tag themselves, on "
                    f"the way {' -> '.join(ways[0].components)}",
                    "let the rules on the way take untagged changes (tagged: false), or write here "
                    "which tags are intended",
                    is_error=False,
                )


def _never_sent(proof: Proof) -> Iterator[Finding]:
    """Yield rules of propagations to which no change comes, such as those that `replicate` made for a capture process.

    A capture process in the file that replaces the generated one may not take everything that `replicate` promises.
    """
    classes = proof.classes
    by_propagation: dict[str, list[Hop]] = {}
    for hop in (each for hops in proof.hops.values() for each in hops):
        for propagation in hop.way.propagations:
            by_propagation.setdefault(propagation.name, []).append(hop)
    for propagation in proof.spec.propagations:
        hops = by_propagation.get(propagation.name, [])
        before = [_before(hop, propagation) for hop in hops]
        coming = [(classes.carried_by(clients), classes.named_behind(clients)) for clients in before]
        for number, rule in enumerate(propagation.rules.include or ()):
            matched = classes.matched_by((rule,))
            if (
                not hops
                or not rule.dml
                or any(carried & classes.at_source(matched, names) for carried, names in coming)
            ):
                continue
            first = place_in_file(clients_of(hops[0])[0])
            yield finding_at(
                f"propagations.{propagation.name}.rules.include[{number}]",
                f"no change of {rule} ever comes to propagation {propagation.name}: {first} does not take it",
                f"add the table to {first}.rules, or write propagations.{propagation.name} with rules of what is to be"
                " sent",
                is_error=False,
            )


def _there(proof: Proof, live: dict[Place, int], site: str) -> int:
    """Return the changes in a site's redo that no user tagged, as classes."""
    there = 0
    for (at, tag), tables in live.items():
        if at == site:
            there |= tables << tag * len(proof.classes.tables)
    return there


def _never_arrives(proof: Proof, hop: Hop, number: int) -> Finding:
    rule = (hop.apply.rules.include or ())[number]
    path = " -> ".join(hop.way.components)
    told = _under_another_name(proof, hop, rule) or _not_taken(proof, hop, rule)
    return finding_at(
        f"applies.{hop.apply.name}.rules.include[{number}]",
        f"no change of {rule} ever arrives on the way {path}: {told[0]}",
        told[1],
    )


def _under_another_name(proof: Proof, hop: Hop, rule: Rule) -> tuple[str, str] | None:
    """Return the client that renames a table before it reaches a rule, and the fix; None: no client does."""
    classes, clients = proof.classes, hop.way.clients
    named = classes.tables_of(classes.matched_by((rule,)))
    for place, client in enumerate(clients_of(hop)[:-1], 1):
        taken, names = classes.tables_of(classes.carried_by(clients[:place])), classes.named_behind(clients[:place])
        table = next((table for table in names if named & taken & 1 << table), None)
        if table is not None:
            old, new = (".".join(classes.tables[each]) for each in (table, names[table]))
            return (
                f"{place_in_file(client)} renames {old} to {new}",
                f"name {new} here, and in the rules between, or leave the table its name there",
            )
    return None


def _not_taken(proof: Proof, hop: Hop, rule: Rule) -> tuple[str, str]:
    """Return the client that does not take the tables of a rule, and the fix."""
    classes = proof.classes
    wanted = classes.at_source(classes.matched_by((rule,)), classes.named_behind(hop.way.clients[:-1]))
    words, fix, passing = f"no table of {hop.source} has this name on the way", "correct the name", wanted
    for place, (client, taken) in enumerate(list(taken_on(proof, hop))[:-1]):
        if not passing & taken:
            at = place_in_file(client)
            if classes.tables_of(passing) & classes.tables_of(taken):
                words = f"{at} takes {rule} with other tags only"
                fix = f"let {at}.rules take the tags that this rule takes, or correct the rule"
            else:
                words = f"{at} does not take {rule}" if place == 0 else f"{at} takes nothing of {rule} that comes to it"
                fix = f"add the table to {at}.rules, or take it out here"
            if not passing & ~_excluded_by(proof, hop, client):
                words = f"{at} excludes it"
                fix = f"take it out of {at}.rules.exclude, or out of the rules here"
            break
        passing &= taken
    return words, fix


def _excluded_by(proof: Proof, hop: Hop, client: Client) -> int:
    """Return the classes that a client's negative rules match, by the names at the hop's source."""
    classes = proof.classes
    return classes.at_source(classes.matched_by(rules_of(client).exclude), classes.named_behind(_before(hop, client)))


def _before(hop: Hop, client: Client) -> tuple[CaptureSpec | PropagationSpec | ApplySpec, ...]:
    """Return what changes pass on a hop before they come to a client."""
    return hop.way.clients[: [each is client for each in clients_of(hop)].index(True)]


def _unclaimed(proof: Proof) -> Iterator[Finding]:
    """Yield users' changes that come to a queue from which no client takes them."""
    spec, classes = proof.spec, proof.classes
    for source in dict.fromkeys(capture.source for capture in spec.captures):
        coming: dict[str, int] = {}  # tables by their names at the source
        names: dict[str, Naming] = {}  # by queue: one publisher brings a source's changes into it
        for capture in spec.captures:
            if capture.source == source:
                coming[capture.queue] = (
                    coming.get(capture.queue, 0) | classes.taken_by(capture.rules) & classes.untagged
                )
                names[capture.queue] = classes.named_behind((capture,))
        pending = list(coming)
        for queue in pending:
            claimed, nobody = 0, True
            for propagation in spec.propagations:
                if propagation.from_queue == queue and source in propagation.sources:
                    taken = coming[queue] & classes.at_source(classes.taken_by(propagation.rules), names[queue])
                    claimed, nobody = claimed | taken, False
                    if taken & ~coming.get(propagation.to_queue, 0):
                        coming[propagation.to_queue] = coming.get(propagation.to_queue, 0) | taken
                        names[propagation.to_queue] = classes.behind(propagation.rules, names[queue])
                        pending.append(propagation.to_queue)
            for apply in spec.applies:
                if apply.queue == queue and apply.source == source:
                    claimed, nobody = (
                        claimed | coming[queue] & classes.at_source(classes.taken_by(apply.rules), names[queue]),
                        False,
                    )
            left = coming[queue] & ~claimed
            if left and not nobody:
                tables = some(proof.names(left), "tables")
                subscribers = spec.subscribers(queue)
                takers = f"{'one of ' if len(subscribers) > 1 else ''}{some(subscribers, 'subscribers')}"
                yield finding_at(
                    f"queues.{queue}",
                    f"changes of {tables} made at {source} come to this queue, and no subscriber takes them: they end"
                    " here",
                    f"let {takers} take them, or exclude them where they are captured",
                    is_error=False,
                )


# --------------------------------------------------------------------------- lost on the way


@dataclass(slots=True)
class _Loss:
    """Changes that stop at a site which forwards others of the same tables, or that a direct way does not take."""

    tables: int
    origin: str
    hops: tuple[Hop, ...]  # up to where they stop; empty: the way begins at their origin
    stopped: Hop  # the hop that does not take them on
    stopping: Client  # the client on that hop
    is_error: bool
    tags: dict[bytes | None, None] = field(default_factory=dict)
    pairs: dict[tuple[str, str], None] = field(default_factory=dict)


def _lost(proof: Proof) -> Iterator[Finding]:
    """Yield changes at a site that do not reach a site to which it sends others of the same tables."""
    going = _going_on(proof)
    together = _writing_together(proof)
    found: dict[tuple[str, bool], _Loss] = {}
    for origin in proof.origins:
        arrived = proof.arrived((origin, 0))
        for place, tables in proof.spread((origin, 0)).as_themselves.items():
            for hop in proof.hops.get(place[0], ()):
                if origin in (hop.source, hop.site):
                    continue
                there = arrived[hop.site].once if hop.site in arrived else 0
                lost = tables & going[hop] & ~hop.carried[place[1]] & ~there
                shared = lost & together.get((origin, hop.site), 0)
                for part, is_error in ((shared, True), (lost & ~shared, False)):
                    if part:
                        loss = _loss(proof, origin, place, hop, part)
                        loss.is_error = is_error
                        known = found.setdefault((place_in_file(loss.stopping), is_error), loss)
                        known.tables |= loss.tables
                        known.tags |= loss.tags
                        known.pairs[origin, hop.site] = None
    for loss in found.values():
        yield _told_of_loss(proof, loss)


def _loss(proof: Proof, origin: str, place: Place, hop: Hop, tables: int) -> _Loss:
    """Return a loss, with the client that does not take the changes.

    It is on a direct way if one exists, otherwise at the last site that the changes reach.
    """
    table = tables & -tables
    direct = next((each for each in proof.hops[origin] if each.site == hop.site), None)
    if direct is not None:
        stopping = _stopping(proof, direct, 0, table)
        return _Loss(tables=tables, origin=origin, hops=(), stopped=direct, stopping=stopping, is_error=True)
    hops = proof.path(
        (origin, 0), table, lambda hop, called: (hop.site, hop.place) == place and called == table.bit_length() - 1
    )
    return _Loss(
        tables=tables,
        origin=origin,
        hops=hops,
        stopped=hop,
        stopping=_stopping(proof, hop, place[1], table),
        is_error=True,
        tags={hops[-1].apply.tag: None},
    )


def _live(proof: Proof) -> dict[Place, int]:
    """Return the changes in the redo of sites that no user tagged: users' untagged ones, and those of apply processes."""
    live: dict[Place, int] = {(site, 0): proof.classes.untagged for site in proof.origins}
    for origin in proof.origins:
        for place, called in proof.spread((origin, 0)).once.items():
            live[place] = live.get(place, 0) | by_names(called)
    return live


def _going_on(proof: Proof) -> dict[Hop, int]:
    """Return the tables of which a hop takes live changes."""
    going: dict[Hop, int] = {}
    for (site, tag), tables in _live(proof).items():
        for hop in proof.hops.get(site, ()):
            going[hop] = going.get(hop, 0) | hop.carried[tag] & tables
    return going


def _kept_back(proof: Proof) -> Iterator[Finding]:
    """Yield sites that forward other sites' changes but not those of their own users."""
    for hop, tables in _going_on(proof).items():
        arrived = proof.arrived((hop.source, 0))
        left = tables & ~hop.carried[0] & ~(arrived[hop.site].once if hop.site in arrived else 0)
        if left:
            client = next(client for client, taken in taken_on(proof, hop) if left & ~taken)
            yield finding_at(
                f"{place_in_file(client)}.rules",
                f"changes of {some(proof.names(left), 'tables')} made at {hop.source} never arrive at {hop.site}, "
                f"while those that {hop.source} gets from others do: {place_in_file(client)} does not take untagged"
                " changes",
                "let its rules take untagged changes, too; no action is needed if this is intended",
                is_error=False,
            )


def _writing_together(proof: Proof) -> dict[tuple[str, str], int]:
    """Return tables that both sites of a pair write and get from each other, also over other writing sites."""
    to = {
        (origin, site): tables
        for origin in proof.origins
        for site, tables in proof.arrived_as_itself((origin, 0)).items()
    }
    for over in proof.origins:
        for origin in proof.origins:
            for site in proof.origins:
                more = to.get((origin, over), 0) & to.get((over, site), 0)
                if more:
                    to[origin, site] = to.get((origin, site), 0) | more
    return {(a, b): tables & to.get((b, a), 0) for (a, b), tables in to.items()}


def _stopping(proof: Proof, hop: Hop, tag: int, table: int) -> Client:
    """Return the first client on a hop that does not take changes of a table."""
    return next(client for client, taken in taken_on(proof, hop) if not proof.classes.with_tag(taken, tag) & table)


def _told_of_loss(proof: Proof, loss: _Loss) -> Finding:
    at, to, place = loss.stopped.source, loss.stopped.site, place_in_file(loss.stopping)
    problem = f"changes of {some(proof.names(loss.tables), 'tables')} made at {loss.origin} never arrive at {to}: "
    if loss.hops:
        tag = "changes without a tag" if loss.hops[-1].apply.tag is None else f"tag {loss.hops[-1].apply.tag.hex()}"
        problem += f"{path_text(proof, loss.hops, with_last=True)}, and {place} does not take {tag} on to {to}"
    else:
        problem += f"on the direct way {place} does not take them, and no other site forwards them"
    if others := len(loss.pairs) - 1:
        problem += f" (and so between {counted(others, 'other pair')} of sites)"
    problem += (
        "; both write these tables, which become different"
        if loss.is_error
        else f"; {to} gets what users of {at} write, and not this"
    )
    path, fix = _mended_loss(proof, loss)
    if not loss.is_error:
        fix += "; no action is needed if this is intended"
    return finding_at(path, problem, fix, is_error=loss.is_error)


def _mended_loss(proof: Proof, loss: _Loss) -> tuple[str, str]:
    at, to = loss.stopped.source, loss.stopped.site
    place = f"{place_in_file(loss.stopping)}.rules"
    if not loss.hops:
        excluded = _excluded_by(proof, loss.stopped, loss.stopping) & loss.tables
        return place, "take them out of its exclude rules" if excluded else "let its include rules take them"
    written = loss.hops[-1].apply
    for hop in (hop for hops in proof.hops.values() for hop in hops):
        is_same = hop.site == at and hop.source == to and hop.place == loss.hops[-1].place and hop.apply is not written
        if is_same and loss.stopped.carried[-1] & loss.tables:  # another tag would pass
            return f"applies.{written.name}.tag", (
                f"applies.{hop.apply.name} has the same tag, which keeps the changes of {to} from returning:"
                " give this one a tag of "
                f'its own, such as tag: "{loss.origin.encode().hex()}"'
            )
    tags = " and ".join("null" if tag is None else f'"{tag.hex()}"' for tag in loss.tags)
    if isinstance(loss.stopping, CaptureSpec):
        return place, (
            f"if {at} is to forward other sites' changes: let its include rules take tag {tags} too (tagged: true takes"
            f" all), and exclude on the way to each neighbour what came from it; or replicate from {loss.origin} to"
            f" {to} without {at} between"
        )
    return place, f"let its rules take tag {tags}, or replicate from {loss.origin} to {to} without {at} between"
