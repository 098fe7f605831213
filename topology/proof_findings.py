"""What the proof finds wrong: each finding with a path as counter-example, and the part of the file to change.

Errors are what is wrong whatever the user had in mind: changes that arrive twice, come home or go round for ever (unless the
file says `allow_cycle: true`), tables that an apply process names and never gets, and changes that are lost between sites
which all write the same tables. The rest may be meant, such as a site that does not forward, and is a warning.

What has one cause is reported once: duplicates behind a duplicate are not, nor is the same hop for every origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from databases.ports import Finding
from rules.rule import ANY_TAG, RuleSet, TruthValue
from streams.tags import DEFAULT_APPLY_TAG
from topology.proof import Hop, Place, Proof, tag_text
from topology.spec import CaptureSpec, PropagationSpec, TopologySpec

__all__ = ["proof_findings"]

_NAMED_MAX = 3  # of tables, sites and the like: the reader wants an example, `--json` has all

_Client = CaptureSpec | PropagationSpec | Hop


def proof_findings(proof: Proof) -> Iterator[Finding]:
    """Everything that a proof finds wrong.

    Args:
        proof: of a topology whose names all lead somewhere, and whose queues get every source from one publisher.
    """
    yield from _Duplicates(proof).findings()
    yield from _never_arriving(proof)
    yield from _lost(proof)
    yield from _kept_back(proof)
    yield from _unclaimed(proof)


# --------------------------------------------------------------------------- words


def _some(names: Iterable[str], what: str) -> str:
    """A few names: `a, b, c and 297 other tables`."""
    known = list(names)
    if len(known) <= _NAMED_MAX:
        return " and ".join(filter(None, [", ".join(known[:-1]), known[-1]]))
    return f"{', '.join(known[:_NAMED_MAX])} and {len(known) - _NAMED_MAX} other {what}"


def _path(proof: Proof, hops: tuple[Hop, ...], *, with_last: bool = False) -> str:
    """A path in plain words: `dbs1 -> dbs2 (applied by a1 with tag 00) -> dbs1 (applied by a2)`; the last tag too, on request."""
    words = []
    for number, hop in enumerate(hops):
        over = "".join(f" -> {site}" for site in proof.sites_of((hop,))[1:-1])
        tag = "" if number == len(hops) - 1 and not with_last else " without a tag" if hop.apply.tag is None else f" with tag {hop.apply.tag.hex()}"
        words.append(f"{over} -> {hop.site} (applied by {hop.apply.name}{tag})")
    return hops[0].source + "".join(words)


def _made_with(proof: Proof, place: Place) -> str:
    """How changes of a place must be tagged, where that matters."""
    _, tag = place
    if tag == 0:
        return ""
    if tag == len(proof.classes.tags) - 1:
        return " in a transaction that its user tagged"
    return f" in a transaction that its user tagged {tag_text(proof.classes.tags[tag])}"


def _place_in_file(client: _Client) -> str:
    if isinstance(client, Hop):
        return f"applies.{client.apply.name}"
    return f"{'captures' if isinstance(client, CaptureSpec) else 'propagations'}.{client.name}"


def _clients(hop: Hop) -> tuple[_Client, ...]:
    return (hop.way.capture, *hop.way.propagations, hop)


def _rules(client: _Client) -> RuleSet:
    return client.apply.rules if isinstance(client, Hop) else client.rules


def _taken(proof: Proof, client: _Client) -> int:
    return proof.classes.taken_by(_rules(client))


def _finding(path: str, problem: str, fix: str, *, is_error: bool = True) -> Finding:
    return Finding(path=path, problem=problem, fix=fix, is_error=is_error)


# --------------------------------------------------------------------------- more often than once


@dataclass(slots=True)
class _Duplicate:
    """Changes that come to a site where they are already, or twice; what is found again for other origins adds to it."""

    tables: int
    place: Place
    hops: tuple[Hop, ...]
    first: tuple[Hop, ...] = ()  # the path by which they came before; none: they were made there
    is_cycle: bool = False
    origins: dict[str, None] = field(default_factory=dict)


class _Duplicates:
    """Cycles, changes that come home, and changes that arrive twice; see the module."""

    def __init__(self, proof: Proof) -> None:
        self._proof = proof
        self._spec: TopologySpec = proof.spec
        # By what is wrong: the hop that brings them, and the hop that wrote what it takes.
        self._found: dict[tuple[Hop, Hop | None], _Duplicate] = {}

    def findings(self) -> Iterator[Finding]:
        proof = self._proof
        places = [(origin, tag) for tag in range(len(proof.classes.tags)) for origin in proof.origins]
        self._find_cycles(places)
        for place in places:
            self._find_homecomings(place)
        for place in places:
            self._find_second_arrivals(place)
        told: dict[tuple[str, str], list[Finding]] = {}
        for duplicate in self._found.values():
            finding = self._told(duplicate)
            told.setdefault((finding.path, finding.fix), []).append(finding)
        for first, *others in told.values():
            more = f" ({len(others)} more that the same mends)" if others else ""
            yield replace(first, problem=first.problem + more)

    def _find_cycles(self, places: list[Place]) -> None:
        """One cycle through every place that is on one, with the changes of a user that enter it: untagged ones if there are any."""
        rounds: set[frozenset[Hop]] = set()
        for inside, tables in self._proof.cycles.items():
            left = tables
            while left:
                table = left & -left
                turn = self._proof.path(inside, table, lambda hop, _, end=inside: (hop.site, hop.place) == end)  # type: ignore[misc]
                common = self._common(inside, turn, left)
                left &= ~common
                if frozenset(turn) in rounds:
                    continue
                rounds.add(frozenset(turn))
                on_it = {hop.source for hop in turn}
                place, entry = next(
                    (place, entry) for place in sorted(places, key=lambda place: (place[1], place[0] not in on_it))
                    if (entry := self._proof.path(place, table, lambda hop, _, end=inside: (hop.site, hop.place) == end))  # type: ignore[misc]
                )
                # From where it was made, once round: what closes the circle is what it began with.
                hops = (*entry, *turn)
                hops = hops[: next((number for number, hop in enumerate(hops) if hop in hops[:number]), len(hops))]
                self._found[hops[-1], None] = _Duplicate(tables=common, place=place, hops=hops, is_cycle=True)

    def _find_homecomings(self, place: Place) -> None:
        origin, _ = place
        there = self._proof.arrived(place).get(origin)
        tables = there.once & ~there.endless if there else 0
        while tables:
            hops = self._proof.path(place, tables & -tables, lambda hop, _: hop.site == origin)
            tables &= ~(self._common(place, hops, tables) if _is_behind_another(hops) else self._note(place, hops, tables))

    def _find_second_arrivals(self, place: Place) -> None:
        origin, _ = place
        for site, there in self._proof.arrived(place).items():
            if site == origin:
                continue
            by = self._proof.last_hops(place, site)
            tables = there.twice & ~there.endless
            while tables:
                table = tables & -tables
                # One hop that brings them twice begins at a site that has them twice: the cause is there.
                paths = [self._proof.path(place, table, lambda hop, _, end=last: hop is end) for last in by if by[last] & table]  # type: ignore[misc]
                if len(paths) < 2:
                    tables ^= table
                    continue
                first, *others = sorted(paths, key=len)
                for hops in others:
                    if not _is_behind_another(hops):
                        self._note(place, hops, tables, first)
                tables &= ~self._common(place, first, tables) | ~self._common(place, others[-1], tables)

    def _common(self, place: Place, hops: tuple[Hop, ...], tables: int) -> int:
        """Those of some tables that take a path."""
        tag = place[1]
        for hop in hops:
            tables &= hop.carried[tag]
            tag = hop.place
        return tables

    def _note(self, place: Place, hops: tuple[Hop, ...], tables: int, first: tuple[Hop, ...] = ()) -> int:
        """Note a duplicate.

        Returns:
            Those of the tables that take the path.
        """
        common = self._common(place, hops, tables) & (self._common(place, first, tables) if first else tables)
        key = hops[-1], hops[-2] if len(hops) > 1 else None
        known = self._found.setdefault(key, _Duplicate(tables=0, place=place, hops=hops, first=first))
        known.tables |= common
        known.origins[place[0]] = None
        return common

    # ----------------------------------------------------------------------- what to say

    def _told(self, found: _Duplicate) -> Finding:
        proof = self._proof
        origin = found.place[0]
        tables = _some(proof.names(found.tables), "tables")
        changes = f"changes of {tables} made at {origin}{_made_with(proof, found.place)}"
        if found.is_cycle:
            problem = f"{changes} go round for ever: {_path(proof, found.hops)}, and on from there"
        elif not found.first:
            problem = f"{changes} come home: {_path(proof, found.hops)}"
        elif len(found.first) == len(found.hops) == 1:
            return self._told_of_two_applies(found)
        else:
            problem = f"{changes} arrive at {found.hops[-1].site} twice: {_path(proof, found.first)}; and {_path(proof, found.hops)}"
        others = [site for site in found.origins if site != origin]
        if others and not found.is_cycle:
            problem += f"; likewise those made at {_some(others, 'sites')}"
        path, fix = self._mended(found)
        return _finding(path, problem, fix, is_error=not self._spec.allow_cycle)

    def _told_of_two_applies(self, found: _Duplicate) -> Finding:
        (first,), (last,) = found.first, found.hops
        return _finding(
            f"applies.{last.apply.name}",
            f"applies.{first.apply.name} applies the same changes of {last.source} to {last.site}, "
            f"such as those of {self._proof.names(found.tables)[0]}{_made_with(self._proof, found.place)}",
            "keep one of them, or let their rules include different tables", is_error=not self._spec.allow_cycle,
        )

    def _mended(self, found: _Duplicate) -> tuple[str, str]:
        """Where to change what, so that the last hop does not take what the hop before it wrote."""
        before, last = self._pair_to_mend(found)
        client = self._where_to_leave_out(found, last, before.place)
        tag = before.apply.tag
        at = _place_in_file(client)
        if tag is None:
            fix = f'give it a tag, such as tag: "{DEFAULT_APPLY_TAG.hex()}"'
            if last.carried[self._proof.classes.place_of(DEFAULT_APPLY_TAG)] & found.tables:
                fix += f", and leave that tag out at {at}: {_exclusion(DEFAULT_APPLY_TAG)}"
            return f"applies.{before.apply.name}.tag", fix
        sharing = self._needing_the_tag(found, before, last)
        if sharing is not None:
            own = before.source.encode()
            return f"applies.{before.apply.name}.tag", (
                f"{tag.hex()} is the tag of applies.{sharing.apply.name}, too, whose changes must go to {last.site}: give this one a tag "
                f'of its own, such as tag: "{own.hex()}", and leave that out at {at}: {_exclusion(own)}'
            )
        if isinstance(client, CaptureSpec) and self._takes_any_tag(client):
            return f"{at}.rules", f"write tagged: false (the default) in its include rules: {last.source} then sends only what its users write"
        return f"{at}.rules", f"leave out what {before.apply.name} wrote: {_exclusion(tag)}"

    def _pair_to_mend(self, found: _Duplicate) -> tuple[Hop, Hop]:
        pairs = list(zip(found.hops, found.hops[1:], strict=False))
        return next((pair for pair in pairs if pair[0].apply.tag is None), pairs[-1])

    def _takes_any_tag(self, capture: CaptureSpec) -> bool:
        return any(rule.tags == ANY_TAG for rule in capture.rules.include or ())

    def _needing_the_tag(self, found: _Duplicate, before: Hop, last: Hop) -> Hop | None:
        """Another apply process that writes with the same tag what only the last hop takes on."""
        for hops in self._proof.hops.values():
            for other in hops:
                if other.site == last.source and other.place == before.place and other.source not in (before.source, last.site):
                    by = self._proof.last_hops((other.source, 0), last.site)
                    brought = 0
                    for hop, tables in by.items():
                        brought |= tables if hop is not last else 0
                    if by.get(last, 0) & found.tables & ~brought:
                        return other
        return None

    def _where_to_leave_out(self, found: _Duplicate, last: Hop, tag: int) -> _Client:
        """The first client on the last hop that no other hop needs which takes the tag on, too."""
        needed: set[str] = set()
        for hop in self._proof.hops[last.source]:
            if hop.site != last.site and hop.carried[tag] & found.tables and self._is_needed(hop, found.tables):
                needed.update(hop.way.components)
        clients: tuple[CaptureSpec | PropagationSpec, ...] = (last.way.capture, *last.way.propagations)
        return next((client for client in clients if client.name not in needed), last)

    def _is_needed(self, hop: Hop, tables: int) -> bool:
        """Some changes come to the site of a hop by this hop alone."""
        for origin in self._proof.origins:
            if origin in (hop.site, hop.source):
                continue
            by = self._proof.last_hops((origin, 0), hop.site)
            brought = 0
            for other, coming in by.items():
                brought |= coming if other is not hop else 0
            if by.get(hop, 0) & tables & ~brought:
                return True
        return False


def _is_behind_another(hops: tuple[Hop, ...]) -> bool:
    """Whether a path comes to one of its sites twice before its end: the cause is there, and is reported of that site."""
    sites = [hops[0].source, *(hop.site for hop in hops[:-1])]
    return len(set(sites)) < len(sites)


def _exclusion(tag: bytes) -> str:
    return f'exclude: [{{global: true, tags: ["{tag.hex()}"]}}]'


# --------------------------------------------------------------------------- never


def _never_arriving(proof: Proof) -> Iterator[Finding]:
    """Rules of apply processes that no change ever comes to, or none that its user did not tag."""
    live = _live(proof)
    by_apply: dict[str, list[Hop]] = {}
    for hops in proof.hops.values():
        for hop in hops:
            by_apply.setdefault(hop.apply.name, []).append(hop)
    for apply in proof.spec.applies:
        ways = [hop.way for hop in by_apply.get(apply.name, ())]
        if not ways:
            continue
        coming = 0
        for way in ways:
            coming |= proof.classes.carried_by(way.clients[:-1])
        for number, rule in enumerate(apply.rules.include or ()):
            arriving = proof.classes.matched_by((rule,)) & coming
            if rule.dml and not arriving:
                yield _never_arrives(proof, by_apply[apply.name][0], number)
            elif rule.dml and rule.tags.answer(None) is TruthValue.TRUE and not arriving & _there(proof, live, apply.source):
                yield _finding(
                    f"applies.{apply.name}.rules.include[{number}]", f"of {rule} only changes arrive that users of {apply.source} tag themselves, on "
                    f"the way {' -> '.join(ways[0].components)}", "let the rules on the way take untagged changes (tagged: false), or write here "
                    "which tags are meant", is_error=False,
                )


def _there(proof: Proof, live: dict[Place, int], site: str) -> int:
    """The changes that are in a site's redo without users who tag them, as classes."""
    there = 0
    for (at, tag), tables in live.items():
        if at == site:
            there |= tables << tag * len(proof.classes.tables)
    return there


def _never_arrives(proof: Proof, hop: Hop, number: int) -> Finding:
    rule = (hop.apply.rules.include or ())[number]
    wanted = proof.classes.matched_by((rule,))
    path = " -> ".join(hop.way.components)
    passing = ~0
    for client in _clients(hop)[:-1]:
        if not wanted & passing & _taken(proof, client):
            at = _place_in_file(client)
            if proof.classes.tables_of(wanted & passing) & proof.classes.tables_of(_taken(proof, client)):
                words = f"{at} takes {rule} with other tags only"
                fix = f"let {at}.rules take the tags that this rule takes, or correct the rule"
            else:
                words = f"{at} does not take {rule}" if passing == ~0 else f"{at} takes nothing of {rule} that comes to it"
                fix = f"add the table to {at}.rules, or take it out here"
            if not wanted & passing & ~proof.classes.matched_by(_rules(client).exclude):
                words = f"{at} excludes it"
                fix = f"take it out of {at}.rules.exclude, or out of the rules here"
            break
        passing &= _taken(proof, client)
    return _finding(
        f"applies.{hop.apply.name}.rules.include[{number}]", f"no change of {rule} ever arrives on the way {path}: {words}", fix
    )


def _unclaimed(proof: Proof) -> Iterator[Finding]:
    """Users' changes that come to a queue from which nobody takes them."""
    spec, classes = proof.spec, proof.classes
    for source in dict.fromkeys(capture.source for capture in spec.captures):
        coming: dict[str, int] = {}
        for capture in spec.captures:
            if capture.source == source:
                coming[capture.queue] = coming.get(capture.queue, 0) | classes.taken_by(capture.rules) & classes.untagged
        pending = list(coming)
        for queue in pending:
            claimed, nobody = 0, True
            for propagation in spec.propagations:
                if propagation.from_queue == queue and source in propagation.sources:
                    taken = coming[queue] & classes.taken_by(propagation.rules)
                    claimed, nobody = claimed | taken, False
                    if taken & ~coming.get(propagation.to_queue, 0):
                        coming[propagation.to_queue] = coming.get(propagation.to_queue, 0) | taken
                        pending.append(propagation.to_queue)
            for apply in spec.applies:
                if apply.queue == queue and apply.source == source:
                    claimed, nobody = claimed | coming[queue] & classes.taken_by(apply.rules), False
            left = coming[queue] & ~claimed
            if left and not nobody:
                tables = _some(proof.names(left), "tables")
                yield _finding(
                    f"queues.{queue}", f"changes of {tables} made at {source} come to this queue, and nobody takes them from it: they end here",
                    f"let {'one of ' if len(spec.subscribers(queue)) > 1 else ''}{_some(spec.subscribers(queue), 'subscribers')} take them, or leave them out where they are captured",
                    is_error=False,
                )


# --------------------------------------------------------------------------- lost on the way


@dataclass(slots=True)
class _Loss:
    """Changes that stop at a site which sends others of the same tables on, or that a direct way does not take."""

    tables: int
    origin: str
    hops: tuple[Hop, ...]  # to where they stop; none: the way on begins where they are made
    stopped: Hop  # that does not take them on
    stopping: _Client  # on that hop
    is_error: bool
    tags: dict[bytes | None, None] = field(default_factory=dict)
    pairs: dict[tuple[str, str], None] = field(default_factory=dict)


def _lost(proof: Proof) -> Iterator[Finding]:
    """Changes that are at a site, and do not go on to where the site sends others of the same tables."""
    going = _going_on(proof)
    together = _writing_together(proof)
    found: dict[tuple[str, bool], _Loss] = {}
    for origin in proof.origins:
        arrived = proof.arrived((origin, 0))
        for place, tables in proof.spread((origin, 0)).once.items():
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
                        known = found.setdefault((_place_in_file(loss.stopping), is_error), loss)
                        known.tables |= loss.tables
                        known.tags |= loss.tags
                        known.pairs[origin, hop.site] = None
    for loss in found.values():
        yield _told_of_loss(proof, loss)


def _loss(proof: Proof, origin: str, place: Place, hop: Hop, tables: int) -> _Loss:
    """A loss, with the client that does not take the changes: on a direct way if there is one, else where they stop behind others."""
    table = tables & -tables
    direct = next((each for each in proof.hops[origin] if each.site == hop.site), None)
    if direct is not None:
        stopping = _stopping(proof, direct, 0, table)
        return _Loss(tables=tables, origin=origin, hops=(), stopped=direct, stopping=stopping, is_error=True)
    hops = proof.path((origin, 0), table, lambda hop, _: (hop.site, hop.place) == place)
    return _Loss(
        tables=tables, origin=origin, hops=hops, stopped=hop, stopping=_stopping(proof, hop, place[1], table), is_error=True,
        tags={hops[-1].apply.tag: None},
    )


def _live(proof: Proof) -> dict[Place, int]:
    """The changes that are in the redo of sites without users who tag them: users' untagged ones, and those of apply processes."""
    live: dict[Place, int] = {(site, 0): proof.classes.untagged for site in proof.origins}
    for origin in proof.origins:
        for place, tables in proof.spread((origin, 0)).once.items():
            live[place] = live.get(place, 0) | tables
    return live


def _going_on(proof: Proof) -> dict[Hop, int]:
    """The tables of which a hop takes live changes."""
    going: dict[Hop, int] = {}
    for (site, tag), tables in _live(proof).items():
        for hop in proof.hops.get(site, ()):
            going[hop] = going.get(hop, 0) | hop.carried[tag] & tables
    return going


def _kept_back(proof: Proof) -> Iterator[Finding]:
    """Sites that send on what others write, and not what their own users write."""
    for hop, tables in _going_on(proof).items():
        arrived = proof.arrived((hop.source, 0))
        left = tables & ~hop.carried[0] & ~(arrived[hop.site].once if hop.site in arrived else 0)
        if left:
            client = next(client for client in _clients(hop) if left & ~_taken(proof, client))
            yield _finding(
                f"{_place_in_file(client)}.rules", f"changes of {_some(proof.names(left), 'tables')} made at {hop.source} never arrive at {hop.site}, "
                f"while those that {hop.source} gets from others do: {_place_in_file(client)} does not take untagged changes",
                "let its rules take untagged changes, too; nothing needs to be done if this is meant", is_error=False,
            )


def _writing_together(proof: Proof) -> dict[tuple[str, str], int]:
    """Tables that two sites write which get changes of each other, over other sites' writes too."""
    to = {(origin, site): each.once for origin in proof.origins for site, each in proof.arrived((origin, 0)).items()}
    for over in proof.origins:
        for origin in proof.origins:
            for site in proof.origins:
                more = to.get((origin, over), 0) & to.get((over, site), 0)
                if more:
                    to[origin, site] = to.get((origin, site), 0) | more
    return {(a, b): tables & to.get((b, a), 0) for (a, b), tables in to.items()}


def _stopping(proof: Proof, hop: Hop, tag: int, table: int) -> _Client:
    """The first client on a hop that does not take changes of a table."""
    return next(client for client in _clients(hop) if not proof.classes.with_tag(_taken(proof, client), tag) & table)


def _told_of_loss(proof: Proof, loss: _Loss) -> Finding:
    at, to, place = loss.stopped.source, loss.stopped.site, _place_in_file(loss.stopping)
    problem = f"changes of {_some(proof.names(loss.tables), 'tables')} made at {loss.origin} never arrive at {to}: "
    if loss.hops:
        tag = "changes without a tag" if loss.hops[-1].apply.tag is None else f"tag {loss.hops[-1].apply.tag.hex()}"
        problem += f"{_path(proof, loss.hops, with_last=True)}, and {place} does not take {tag} on to {to}"
    else:
        problem += f"on the direct way {place} does not take them, and no other site sends them on"
    if others := len(loss.pairs) - 1:
        problem += f" (and so between {others} other pair{'' if others == 1 else 's'} of sites)"
    problem += "; both write these tables, which become different" if loss.is_error else f"; {to} gets what users of {at} write, and not this"
    path, fix = _mended_loss(proof, loss)
    if not loss.is_error:
        fix += "; nothing needs to be done if this is meant"
    return _finding(path, problem, fix, is_error=loss.is_error)


def _mended_loss(proof: Proof, loss: _Loss) -> tuple[str, str]:
    at, to = loss.stopped.source, loss.stopped.site
    place = f"{_place_in_file(loss.stopping)}.rules"
    if not loss.hops:
        excluded = proof.classes.matched_by(_rules(loss.stopping).exclude) & loss.tables
        return place, "take them out of its exclude rules" if excluded else "let its include rules take them"
    written = loss.hops[-1].apply
    for hop in (hop for hops in proof.hops.values() for hop in hops):
        is_same = hop.site == at and hop.source == to and hop.place == loss.hops[-1].place and hop.apply is not written
        if is_same and loss.stopped.carried[-1] & loss.tables:  # another tag would pass
            return f"applies.{written.name}.tag", (
                f"applies.{hop.apply.name} has the same tag, by which the changes of {to} are kept from going home: give this one a tag of "
                f'its own, such as tag: "{loss.origin.encode().hex()}"'
            )
    tags = " and ".join("null" if tag is None else f'"{tag.hex()}"' for tag in loss.tags)
    if isinstance(loss.stopping, CaptureSpec):
        return place, (
            f"if {at} is to send on what others write: let its include rules take tag {tags} too (tagged: true takes all), and leave out on "
            f"the way to each neighbour what came from it; or replicate from {loss.origin} to {to} without {at} between"
        )
    return place, f"let its rules take tag {tags}, or replicate from {loss.origin} to {to} without {at} between"
