"""The proof: for every possible change at every site, the sites it reaches, how often, and along which path.

A change is a site, a table and a tag, as recorded in the site's redo. The proof follows it over the ways of
`topology.routing.ways`: each way that carries it makes a change at the way's end, with the apply process's tag, and so
on.

Every change
    Tables and tags are those that the rules can tell apart (`topology.routing.change_classes`). So the answer holds for
    every table, for untagged changes, for the tag of every apply process, and for every tag that a user may give a
    transaction.

Together, not one by one
    A set of tables is one integer, so all tables that take the same way are followed in one step. Where changes with
    several tags leave a site over the same ways, they are followed once.

How often
    Arrivals are counted up to two: a site gets a change never, once or twice (that is, more than once). Where a change
    returns to a place with the tag it had there, it circulates for ever: a cycle.

Other names
    A set of tables is encoded by the names at the origin of a change, whatever their later names: `Called` has one set
    for each changed name. Arrivals are counted by name: one table under two names at a site is not a second arrival,
    but one name written twice is. A change that returns under another name is a change of another table.

Conditions
    The proof does not evaluate conditions on rows. Where one decides, the proof says who gets a change at most
    (`ReachedSite.conditions`), and duplicates or returning changes that may occur are warnings.

Worked example: hub h with spokes a and b; h captures all, sends a what is not tagged a, b what is not tagged b
    a, NULL -> h, tag a -> b, tag 00 -> nothing      a's change reaches h and b once
    h forgets `not_tags` towards a: h, tag a -> a, tag 00: it returns

Source: Oracle Streams Replication Administrator's Guide, "Oracle Streams Tags": a change is never sent back to where it
originated, and every change reaches every other database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from headrace.rules.rule import Rule, RuleSet
from topology.proof.hops import OWN, Called, Hop, Place, Spread, by_names, together
from topology.routing.change_classes import ChangeClasses
from topology.routing.ways import Way, ways_to
from topology.spec import TopologySpec

__all__ = ["Proof", "Reach", "ReachedSite", "applies_in_a_row", "tag_text"]

CYCLE, TWICE, ONCE = "in a cycle", "twice", "once"


@dataclass(slots=True)
class _Arrived:
    """Tables whose changes arrive at a site, with any tag and under any name; the fields are those of `Spread`."""

    once: int = 0
    twice: int = 0
    endless: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedSite:
    """A site that gets changes.

    Args:
        site: the site; the origin itself for returning changes.
        times: "once", "twice" (or more often) or "in a cycle".
        sites: every site on the shortest path, also those without a database.
        components: those on the same path, in order.
        conditions: those of the components whose conditions pass some of the changes and not others; empty: all changes
            arrive.
        names: names of the tables there; empty: as at the origin.
    """

    site: str
    times: str
    sites: tuple[str, ...]
    components: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Who gets what: one line of the proof.

    Args:
        origin: the site where the changes are made.
        tables: patterns of the file for the changed tables.
        tags: tags of the changes: "none", hexadecimal, "any other".
        is_forwarding: apply processes of the origin write with all of these tags: the line shows how it forwards
            others' changes.
        reached: sites that get the changes; all other sites never do.
    """

    origin: str
    tables: tuple[str, ...]
    tags: tuple[str, ...]
    is_forwarding: bool
    reached: tuple[ReachedSite, ...]


class Proof:
    """The proof of a topology.

    Args:
        spec: routed, with one publisher per queue and source.
        classes: of `spec`.
    """

    def __init__(self, spec: TopologySpec, classes: ChangeClasses | None = None) -> None:
        self.spec = spec
        self.classes = classes or ChangeClasses.of(spec)
        self.hops: dict[str, list[Hop]] = {}
        for apply in spec.applies:
            for way in ways_to(spec, apply):
                self.hops.setdefault(apply.source, []).append(self._hop(way))
        self._spreads: dict[tuple[str, tuple[int, ...]], Spread] = {}
        self._arrived: dict[Place, dict[str, _Arrived]] = {}

    def _hop(self, way: Way) -> Hop:
        classes = self.classes
        carried = classes.carried_by(way.clients)
        by_tag = tuple(classes.with_tag(carried, place) for place in range(len(classes.tags)))
        by_rows = 0
        for client, named in classes.named_along(way.clients):
            by_rows |= classes.at_source(classes.decided_by_rows(client.rules), named) & carried
        rows_by_tag = tuple(classes.with_tag(by_rows, place) for place in range(len(classes.tags)))
        names = classes.named_behind(way.clients)
        return Hop(way, by_tag, classes.place_of(way.apply.tag), rows_by_tag, names, sum(1 << table for table in names))

    def telling_apart(self, tables: Iterable[tuple[str, str]]) -> Proof:
        """Return the proof in which each given table is distinguished, even where the rules name only its schema.

        Args:
            tables: schema and name; empty: the result is this proof.
        """
        named = tuple(Rule(owner=owner, name=name) for owner, name in sorted(set(tables)))
        if not named:
            return self
        own = (
            client.rules
            for clients in (self.spec.captures, self.spec.propagations, self.spec.applies)
            for client in clients
        )
        return Proof(self.spec, ChangeClasses([*own, RuleSet(include=named)]))

    @property
    def origins(self) -> tuple[str, ...]:
        """The sites whose changes are sent anywhere."""
        return tuple(self.hops)

    def spread(self, place: Place) -> Spread:
        """Return where the changes made at a place arrive."""
        site, tag = place
        key = site, tuple(hop.carried[tag] for hop in self.hops.get(site, ()))
        if key not in self._spreads:
            spread = self._spreads[key] = self._followed(place)
            self._mark_endless(spread)
        return self._spreads[key]

    def arrived(self, place: Place) -> dict[str, _Arrived]:
        """Return the arrivals of `spread` by site: a change that arrives with two tags arrives twice."""
        if place not in self._arrived:
            found = self._arrived[place] = {}
            spread = self.spread(place)
            known: dict[tuple[str, int], int] = {}
            for there, called in spread.once.items():
                at = found.setdefault(there[0], _Arrived())
                at.endless |= spread.endless.get(there, 0)
                for name, tables in called.items():
                    before = known.get((there[0], name), 0)
                    at.twice |= spread.twice[there][name] | before & tables
                    at.once |= tables
                    known[there[0], name] = before | tables
        return self._arrived[place]

    @cached_property
    def cycles(self) -> dict[Place, int]:
        """The tables whose changes return to a place that they left."""
        places = {(hop.site, hop.place) for hops in self.hops.values() for hop in hops}
        found = {place: self._followed(place).as_themselves.get(place, 0) for place in sorted(places)}
        return {place: tables for place, tables in found.items() if tables}

    def arrived_as_itself(self, place: Place) -> dict[str, int]:
        """Return the tables whose changes arrive under their own names, by site."""
        found: dict[str, int] = {}
        for (site, _), tables in self.spread(place).as_themselves.items():
            found[site] = found.get(site, 0) | tables
        return found

    def written_at(self, place: Place) -> dict[str, int]:
        """Return the names of tables where their changes arrive, by site."""
        found: dict[str, int] = {}
        for (site, _), called in self.spread(place).once.items():
            found[site] = found.get(site, 0) | by_names(called)
        return found

    def path(self, place: Place, table: int, is_end: Callable[[Hop, int], bool]) -> tuple[Hop, ...]:
        """Return the shortest path that a change takes.

        Args:
            place: its origin.
            table: one table, as a bit.
            is_end: whether the path may end with a hop at whose end the table has a name (a position in
                `ChangeClasses.tables`).

        Returns:
            Its hops; empty: no such path exists.
        """
        start = place, table.bit_length() - 1
        paths: dict[tuple[Place, int], tuple[Hop, ...]] = {start: ()}
        pending = [start]
        for here in pending:
            (site, tag), name = here
            for hop in self.hops.get(site, ()):
                if not hop.carries(name, tag):
                    continue
                there = (hop.site, hop.place), hop.names.get(name, name)
                if is_end(hop, there[1]):
                    return (*paths[here], hop)
                if there not in paths:
                    paths[there] = (*paths[here], hop)
                    pending.append(there)
        return ()

    def taking(self, place: Place, hops: tuple[Hop, ...], tables: int) -> int:
        """Return those of some tables whose changes take a path.

        Args:
            place: their origin.
            hops: the path.
            tables: any.
        """
        called: Called = {OWN: tables}
        tag = place[1]
        for hop in hops:
            called, tag = hop.over(called, tag), hop.place
        return together(called)

    def arrivals(self, place: Place, site: str) -> dict[tuple[Hop, int], int]:
        """Return the last hops of changes to a site, each with a name of tables at its end, and those tables.

        Args:
            place: origin of the changes.
            site: where they arrive.
        """
        here = dict(self.spread(place).once)
        here[place] = here.get(place, {}) | {OWN: self.classes.untagged}
        found: dict[tuple[Hop, int], int] = {}
        for (at, tag), called in here.items():
            for hop in self.hops.get(at, ()):
                for name, tables in hop.over(called, tag).items() if hop.site == site else ():
                    found[hop, name] = found.get((hop, name), 0) | tables
        return found

    def last_hops(self, place: Place, site: str) -> dict[Hop, int]:
        """Return the last hops of changes to a site, with the tables that arrive by each, under any name.

        Args:
            place: origin of the changes.
            site: where they arrive.
        """
        found: dict[Hop, int] = {}
        for (hop, _), tables in self.arrivals(place, site).items():
            found[hop] = found.get(hop, 0) | tables
        return found

    def sites_of(self, hops: tuple[Hop, ...]) -> tuple[str, ...]:
        """Return every site on a path, also those without a database."""
        site_of = {queue.name: queue.site for queue in self.spec.queues}
        sites: list[str] = []
        for hop in hops:
            queues = (hop.way.capture.queue, *(each.to_queue for each in hop.way.propagations))
            for site in (hop.source, *(site_of[queue] for queue in queues), hop.site):
                if sites[-1:] != [site]:
                    sites.append(site)
        return tuple(sites)

    def writers(self, owner: str, name: str) -> tuple[str, ...]:
        """Return the sites whose users share a table: rows of each meet another's at some site.

        Args:
            owner: the table's schema.
            name: the table's name.
        """
        table = self.classes.class_of(owner, name)
        at: dict[str, set[str]] = {}
        for origin in self.origins:
            sites = {site for site, tables in self.arrived_as_itself((origin, 0)).items() if tables & table}
            if sites:
                at[origin] = sites | {origin}
        return tuple(origin for origin in at if any(at[origin] & at[other] for other in at if other != origin))

    # ----------------------------------------------------------------------- for people

    def reach(self) -> tuple[Reach, ...]:
        """Return who gets what, in as few lines as possible: tables with equal answers share a line, and so do tags."""
        lines = []
        listed = set(range(1, len(self.classes.tags) - 1))
        for tables in self._tables_alike():
            example = tables & -tables
            names = self.names(tables)
            for origin in self.origins:
                by_reached: dict[tuple[ReachedSite, ...], list[int]] = {}
                for tag in range(len(self.classes.tags)):
                    reached = tuple(self._reached((origin, tag), example))
                    if reached:
                        by_reached.setdefault(reached, []).append(tag)
                written = {hop.place for hops in self.hops.values() for hop in hops if hop.site == origin} & listed
                lines += [
                    Reach(
                        origin=origin,
                        tables=names,
                        tags=tuple(self.tag_name(tag) for tag in tags),
                        is_forwarding=written >= set(tags),
                        reached=reached,
                    )
                    for reached, tags in by_reached.items()
                ]
        return tuple(lines)

    def tag_name(self, tag: int) -> str:
        """Format a tag by its position."""
        if tag == len(self.classes.tags) - 1:
            return "any other" if tag > 1 else "any"
        return tag_text(self.classes.tags[tag])

    def names(self, tables: int) -> tuple[str, ...]:
        """Return names of tables for people: the most exact patterns of the rules."""
        found: dict[str, None] = {}
        while tables:
            bit = tables & -tables
            found[self._name(bit)] = None
            tables ^= bit
        return tuple(found)

    def _name(self, table: int) -> str:
        naming = [(rule, tables) for rule, tables in self._patterns if tables & table]
        if not naming:
            return "other tables"
        rule, tables = min(naming, key=lambda each: (each[1].bit_count(), -len(str(each[0]))))
        are_named_apart = tables != table and any(0 != others & tables != tables for _, others in self._patterns)
        return f"{rule} (others)" if are_named_apart else _pattern_text(rule)

    @cached_property
    def _patterns(self) -> tuple[tuple[Rule, int], ...]:
        """One rule per table pattern of the file, and the tables it names."""
        known = {(rule.owner, rule.name): rule for rule in self.classes.rules}
        return tuple((rule, self.classes.named_by(rule)) for rule in known.values())

    def _reached(self, place: Place, table: int) -> Iterator[ReachedSite]:
        for site, there in self.arrived(place).items():
            if there.once & table:
                hops = self.path(place, table, lambda hop, _, site=site: hop.site == site)  # type: ignore[misc]
                yield ReachedSite(
                    site=site,
                    times=CYCLE if there.endless & table else TWICE if there.twice & table else ONCE,
                    sites=self.sites_of(hops),
                    components=tuple(name for hop in hops for name in hop.way.components),
                    conditions=self.conditions_on(hops, place[1], table),
                    names=self._names_at(place, site, table),
                )

    def _names_at(self, place: Place, site: str, table: int) -> tuple[str, ...]:
        """Return a table's names at a site where its changes arrive; empty: its own name."""
        found: set[int] = set()
        for (there, _), called in self.spread(place).once.items():
            found |= {name for name, tables in called.items() if there == site and tables & table}
        if found == {OWN}:
            return ()
        pattern = self._name(table)
        texts = {name: ".".join(self.classes.tables[name]) for name in found if name != OWN}
        if pattern.endswith(".*"):  # a renamed schema: the tables keep their names
            texts = {name: f"{text.partition('.')[0]}.*" for name, text in texts.items()}
        return tuple(sorted({pattern if name == OWN else texts[name] for name in found}))

    def conditions_on(self, hops: tuple[Hop, ...], tag: int, tables: int) -> tuple[str, ...]:
        """Return the clients on a path whose conditions decide about changes of some tables.

        Args:
            hops: the path.
            tag: position of the changes' tag at the start of the path.
            tables: which tables.
        """
        names: list[str] = []
        called: Called = {OWN: tables}
        for hop in hops:
            here = by_names(called)
            if hop.decided_by_rows[tag] & here:
                names += [
                    client.name
                    for client, named in self.classes.named_along(hop.way.clients)
                    if self.classes.with_tag(
                        self.classes.at_source(self.classes.decided_by_rows(client.rules), named), tag
                    )
                    & here
                ]
            called, tag = hop.over(called, tag), hop.place
        return tuple(names)

    def _tables_alike(self) -> list[int]:
        """Return the tables that are sent anywhere, as sets that no arrival distinguishes."""
        going = 0
        told_apart: set[int] = set()
        for origin in self.origins:
            for hop in self.hops[origin]:
                for tables in hop.carried:
                    going |= tables
            for tag in range(len(self.classes.tags)):
                for there in self.arrived((origin, tag)).values():
                    told_apart |= {there.once, there.twice, there.endless}
                spread = self.spread((origin, tag))
                told_apart.update(spread.as_themselves.values())
                told_apart |= {
                    tables for called in spread.once.values() for name, tables in called.items() if name != OWN
                }
        parts = [going] if going else []
        for tables in told_apart:
            parts = [part for whole in parts for part in (whole & tables, whole & ~tables) if part]
        return sorted(parts, key=lambda part: part & -part)

    # ----------------------------------------------------------------------- following

    def _followed(self, start: Place) -> Spread:
        """Follow the changes made at a place until every place has each of them twice, or never gets it."""
        spread = Spread()
        pending: list[tuple[Place, Called, int]] = [(start, {OWN: self.classes.untagged}, 0)]
        for (site, tag), called, hops in pending:  # shortest paths first: the loop appends to `pending`
            for hop in self.hops.get(site, ()):
                place = hop.site, hop.place
                new: dict[int, int] = {}
                for name, tables in hop.over(called, tag).items():
                    first, again = spread.add(place, name, tables)
                    spread.hops = max(spread.hops, hops + 1) if first else spread.hops
                    # First and second arrivals continue; further ones make no difference.
                    new |= {name: first | again} if first | again else {}
                if new:
                    pending.append((place, new, hops + 1))
        return spread

    def _mark_endless(self, spread: Spread) -> None:
        for place, circling in self.cycles.items():
            # A change that enters a cycle under another name continues as a change of the table of that name.
            called = spread.once.get(place, {})
            entering = {name: tables for name, tables in called.items() if name != OWN and circling >> name & 1}
            own = called.get(OWN, 0) & circling
            if not entering and not own:
                continue
            for behind, arriving in self._followed(place).once.items():
                reached = together(arriving)
                endless = reached & own
                for name, tables in entering.items():
                    endless |= tables if reached >> name & 1 else 0
                if endless:
                    spread.endless[behind] = spread.endless.get(behind, 0) | endless


def tag_text(tag: bytes | None) -> str:
    """Format a tag."""
    return "none" if tag is None else tag.hex()


def applies_in_a_row(spec: TopologySpec) -> int:
    """Return the largest number of apply processes that a change passes in a row.

    It exceeds one where sites forward others' changes.
    """
    proof = Proof(spec)
    return max(
        (proof.spread((origin, tag)).hops for origin in proof.origins for tag in range(len(proof.classes.tags))),
        default=0,
    )


def _pattern_text(rule: Rule) -> str:
    return "every table" if (rule.owner, rule.name) == ("*", "*") else str(rule)
