"""Changes that arrive more than once: cycles, returning changes and duplicate delivery.

Each cause is reported once. Duplicates that follow from a duplicate are not reported, nor is the same hop for every
origin.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from headrace.databases.ports import Finding
from headrace.lcr.tags import DEFAULT_APPLY_TAG
from headrace.rules.rule import ANY_TAG
from topology.proof.hops import OWN, Hop, Place, is_last
from topology.proof.reach import Proof
from topology.proof.words import Client, as_far_as, finding_at, made_with, path_text, place_in_file, some
from topology.spec import CaptureSpec, PropagationSpec, TopologySpec

__all__ = ["Duplicates"]


@dataclass(slots=True)
class _Duplicate:
    """Changes that return to a site which has them, or that arrive twice.

    The same changes of other origins are added to it.
    """

    tables: int
    place: Place
    hops: tuple[Hop, ...]
    first: tuple[Hop, ...] = ()  # the path of their first arrival; empty: they were made there
    is_cycle: bool = False
    origins: dict[str, None] = field(default_factory=dict)


class Duplicates:
    """Finds cycles, returning changes and duplicate delivery."""

    def __init__(self, proof: Proof) -> None:
        self._proof = proof
        self._spec: TopologySpec = proof.spec
        # By cause: the hop that brings them, and the hop that wrote what it takes.
        self._found: dict[tuple[Hop, Hop | None], _Duplicate] = {}

    def findings(self) -> Iterator[Finding]:
        """Yield one finding per cause."""
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
            more = f" ({len(others)} more with the same fix)" if others else ""
            yield replace(first, problem=first.problem + more)

    def _find_cycles(self, places: list[Place]) -> None:
        """Find one cycle through every place on a cycle, with a user's changes that enter it, preferably untagged ones."""
        rounds: set[frozenset[Hop]] = set()
        for inside, tables in self._proof.cycles.items():
            left = tables
            while left:
                table = left & -left
                name = table.bit_length() - 1
                turn = self._proof.path(inside, table, functools.partial(_is_end, inside, name))
                common = self._proof.taking(inside, turn, left)
                left &= ~common
                if frozenset(turn) in rounds:
                    continue
                rounds.add(frozenset(turn))
                on_it = {hop.source for hop in turn}
                place, entry = next(
                    (place, entry)
                    for place in sorted(places, key=lambda place: (place[1], place[0] not in on_it))
                    if (entry := self._proof.path(place, table, functools.partial(_is_end, inside, name)))
                )
                # From its origin, once round: the hop that closes the cycle is the cycle's first one.
                hops = (*entry, *turn)
                hops = hops[: next((number for number, hop in enumerate(hops) if hop in hops[:number]), len(hops))]
                self._found[hops[-1], None] = _Duplicate(tables=common, place=place, hops=hops, is_cycle=True)

    def _find_homecomings(self, place: Place) -> None:
        origin, _ = place
        there = self._proof.arrived(place).get(origin)
        tables = self._proof.arrived_as_itself(place).get(origin, 0) & ~there.endless if there else 0
        while tables:
            name = (tables & -tables).bit_length() - 1
            hops = self._proof.path(place, tables & -tables, functools.partial(_is_home, origin, name))
            tables &= ~(
                self._proof.taking(place, hops, tables) if _is_behind_another(hops) else self._note(place, hops, tables)
            )

    def _find_second_arrivals(self, place: Place) -> None:
        origin, _ = place
        for site, there in self._proof.arrived(place).items():
            if site == origin:
                continue
            by = self._proof.arrivals(place, site)
            tables = there.twice & ~there.endless
            while tables:
                table = tables & -tables
                # If tables are renamed, each is followed alone: hops that write one table together need not do so with
                # another.
                alike = table if any(name != OWN for _, name in by) else tables
                by_name: dict[int, list[tuple[Hop, ...]]] = {}
                for (last, name), coming in by.items():
                    if coming & table:
                        end = table.bit_length() - 1 if name == OWN else name
                        path = self._proof.path(place, table, functools.partial(is_last, last, end))
                        by_name.setdefault(name, []).append(path)
                left = tables & ~table
                for paths in by_name.values():
                    # A single hop brings them twice only if its source site has them twice: the cause is there.
                    if len(paths) < 2:
                        continue
                    first, *others = sorted(paths, key=len)
                    for hops in others:
                        if not _is_behind_another(hops):
                            self._note(place, hops, alike, first)
                    left &= ~(self._proof.taking(place, first, alike) & self._proof.taking(place, others[-1], alike))
                tables = left

    def _note(self, place: Place, hops: tuple[Hop, ...], tables: int, first: tuple[Hop, ...] = ()) -> int:
        """Record a duplicate.

        Returns:
            Those of the tables that take the path.
        """
        common = self._proof.taking(place, hops, tables) & (
            self._proof.taking(place, first, tables) if first else tables
        )
        key = hops[-1], hops[-2] if len(hops) > 1 else None
        known = self._found.setdefault(key, _Duplicate(tables=0, place=place, hops=hops, first=first))
        known.tables |= common
        known.origins[place[0]] = None
        return common

    # --------------------------------------------------------------------- messages

    def _told(self, found: _Duplicate) -> Finding:
        proof = self._proof
        origin = found.place[0]
        tables = some(proof.names(found.tables), "tables")
        changes = f"changes of {tables} made at {origin}{made_with(proof, found.place)}"
        if found.is_cycle:
            problem = f"{changes} circulate for ever: {path_text(proof, found.hops)}, and so on"
        elif not found.first:
            problem = f"{changes} return there: {path_text(proof, found.hops)}"
        elif len(found.first) == len(found.hops) == 1:
            return self._told_of_two_applies(found)
        else:
            problem = (
                f"{changes} arrive at {found.hops[-1].site} twice: {path_text(proof, found.first)}; and"
                f" {path_text(proof, found.hops)}"
            )
        others = [site for site in found.origins if site != origin]
        if others and not found.is_cycle:
            problem += f"; so do those made at {some(others, 'sites')}"
        path, fix = self._mended(found)
        deciding = self._deciding(found)
        return finding_at(path, problem + as_far_as(deciding), fix, is_error=not (self._spec.allow_cycle or deciding))

    def _deciding(self, found: _Duplicate) -> tuple[str, ...]:
        """Return the clients whose conditions may stop a change from arriving once more."""
        tag = found.place[1]
        paths = (found.hops, found.first)
        return tuple(
            dict.fromkeys(name for path in paths for name in self._proof.conditions_on(path, tag, found.tables))
        )

    def _told_of_two_applies(self, found: _Duplicate) -> Finding:
        (first,), (last,) = found.first, found.hops
        deciding = self._deciding(found)
        return finding_at(
            f"applies.{last.apply.name}",
            f"applies.{first.apply.name} applies the same changes of {last.source} to {last.site}, "
            "such as those of"
            f" {self._proof.names(found.tables)[0]}{made_with(self._proof, found.place)}{as_far_as(deciding)}",
            "keep one of them, or let their rules include different tables",
            is_error=not (self._spec.allow_cycle or deciding),
        )

    def _mended(self, found: _Duplicate) -> tuple[str, str]:
        """Return the place and the fix by which the last hop no longer takes what the previous hop wrote."""
        before, last = self._pair_to_mend(found)
        client = self._where_to_leave_out(found, last, before.place)
        tag = before.apply.tag
        at = place_in_file(client)
        if tag is None:
            fix = f'give it a tag, such as tag: "{DEFAULT_APPLY_TAG.hex()}"'
            if last.carried[self._proof.classes.place_of(DEFAULT_APPLY_TAG)] & found.tables:
                fix += f", and leave that tag out at {at}: {_exclusion(DEFAULT_APPLY_TAG)}"
            return f"applies.{before.apply.name}.tag", fix
        sharing = self._needing_the_tag(found, before, last)
        if sharing is not None:
            own = before.source.encode()
            return f"applies.{before.apply.name}.tag", (
                f"{tag.hex()} is the tag of applies.{sharing.apply.name}, too, whose changes must go to {last.site}:"
                " give this one a tag "
                f'of its own, such as tag: "{own.hex()}", and leave that out at {at}: {_exclusion(own)}'
            )
        if isinstance(client, CaptureSpec) and self._takes_any_tag(client):
            return (
                f"{at}.rules",
                f"write tagged: false (the default) in its include rules: {last.source} then sends only what its users"
                " write",
            )
        return f"{at}.rules", f"leave out what {before.apply.name} wrote: {_exclusion(tag)}"

    def _pair_to_mend(self, found: _Duplicate) -> tuple[Hop, Hop]:
        pairs = list(zip(found.hops, found.hops[1:], strict=False))
        return next((pair for pair in pairs if pair[0].apply.tag is None), pairs[-1])

    def _takes_any_tag(self, capture: CaptureSpec) -> bool:
        return any(rule.tags == ANY_TAG for rule in capture.rules.include or ())

    def _needing_the_tag(self, found: _Duplicate, before: Hop, last: Hop) -> Hop | None:
        """Return another apply process of the same tag whose changes only the last hop sends on."""
        for hops in self._proof.hops.values():
            for other in hops:
                if (
                    other.site == last.source
                    and other.place == before.place
                    and other.source not in (before.source, last.site)
                ):
                    by = self._proof.last_hops((other.source, 0), last.site)
                    brought = 0
                    for hop, tables in by.items():
                        brought |= tables if hop is not last else 0
                    if by.get(last, 0) & found.tables & ~brought:
                        return other
        return None

    def _where_to_leave_out(self, found: _Duplicate, last: Hop, tag: int) -> Client:
        """Return the first client on the last hop that is needed by no other hop which carries the tag."""
        needed: set[str] = set()
        for hop in self._proof.hops[last.source]:
            if hop.site != last.site and hop.carried[tag] & found.tables and self._is_needed(hop, found.tables):
                needed.update(hop.way.components)
        clients: tuple[CaptureSpec | PropagationSpec, ...] = (last.way.capture, *last.way.propagations)
        return next((client for client in clients if client.name not in needed), last)

    def _is_needed(self, hop: Hop, tables: int) -> bool:
        """Return whether some changes reach the hop's site only by this hop."""
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
    """Return whether a path visits a site twice before its end: the cause is reported for that site."""
    sites = [hops[0].source, *(hop.site for hop in hops[:-1])]
    return len(set(sites)) < len(sites)


def _exclusion(tag: bytes) -> str:
    return f'exclude: [{{global: true, tags: ["{tag.hex()}"]}}]'


def _is_end(end: Place, name: int, hop: Hop, called: int) -> bool:
    """Return whether a hop brings a table to a place under this name."""
    return (hop.site, hop.place) == end and called == name


def _is_home(origin: str, name: int, hop: Hop, called: int) -> bool:
    """Return whether a hop brings a table back to its origin under its own name."""
    return hop.site == origin and called == name
