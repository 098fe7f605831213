"""Conflict handlers that compare sites, where an LCR comes from a site that did not make the change.

If a capture process takes what an apply process wrote, the change counts as that site's: it has that site's name and
commit time. So behind a hub, `latest_timestamp` compares the hub's times with those of others, and `site_priority`
compares the hub with the spoke. The methods that compare values (`maximum`, `delta` and the rest) do not depend on who
made a change.

Worked example: hub h with spokes a and b; latest_timestamp
    a's UPDATE, t=20; b's UPDATE, t=30; h applies a's first and commits it at t=40
    at h, b's wins: 30 > 20; at b, a's arrives with t=40 and wins: h and b differ

A site that gets a table's changes from one site alone and makes none compares nothing: it follows that site, in its
order.

Source: Oracle Streams Replication Administrator's Guide, "Oracle Streams Conflict Resolution": the values compared are
those of the LCR.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.base.errors import counted
from headrace.databases.ports import Finding
from topology.proof.hops import OWN, Hop, Place, by_names, is_last
from topology.proof.reach import Proof
from topology.proof.words import as_far_as, finding_at, made_with, path_text, some

__all__ = ["neighbour_findings"]

_BY_SITE = ("latest_timestamp", "site_priority")  # methods that compare the origins of LCRs

_Sources = Mapping[str, Mapping[str, int]]
"""site -> source -> tables, by their names at the site. The site itself is a source of what its users write for others.
"""


def neighbour_findings(proof: Proof) -> Iterator[Finding]:
    """Yield findings where a handler compares a site that did not make the change.

    Args:
        proof: of the topology; it distinguishes every table with a handler.
    """
    if any(each.method in _BY_SITE for apply in proof.spec.applies for each in apply.conflicts.handlers):
        made = _made(proof)
        sources = _sources(proof, made)
        yield from _times_of_others(proof, made, sources)
        yield from _undecided(proof, sources)


def _made(proof: Proof) -> list[Place]:
    """Return the places of users' changes that are sent anywhere, untagged ones first.

    A tag that an apply process of the site writes with is not a user's.
    """
    written = {(hop.site, hop.place) for hops in proof.hops.values() for hop in hops}
    return [
        (site, tag)
        for tag in range(len(proof.classes.tags))
        for site in proof.origins
        if tag == 0 or (site, tag) not in written
    ]


def _sources(proof: Proof, made: Iterable[Place]) -> _Sources:
    live = dict.fromkeys(made, proof.classes.untagged)
    found: dict[str, dict[str, int]] = {}
    for site, tag in live:
        own = found.setdefault(site, {})
        for hop in proof.hops[site]:
            own[site] = own.get(site, 0) | hop.carried[tag]
    for place in tuple(live):
        for there, called in proof.spread(place).once.items():
            live[there] = live.get(there, 0) | by_names(called)
    for (source, tag), tables in live.items():
        for hop in proof.hops.get(source, ()):
            at = found.setdefault(hop.site, {})
            at[source] = at.get(source, 0) | by_names(hop.over({OWN: tables}, tag))
    return found


def _meet(sources: _Sources, site: str, table: int) -> bool:
    return sum(tables >> table & 1 for tables in sources[site].values()) > 1


# --------------------------------------------------------------------------- the time of another site's commit


@dataclass(slots=True)
class _Late:
    """Changes that reach a site with the time at which another site applied them."""

    place: Place  # where the first of them is made
    hops: tuple[Hop, ...]
    table: int  # the table's name at the end
    made_as: int  # its name where the change is made
    tables: int = 0
    sites: dict[str, None] = field(default_factory=dict)


def _times_of_others(proof: Proof, made: Iterable[Place], sources: _Sources) -> Iterator[Finding]:
    """Yield tables with latest_timestamp whose changes come over another site.

    The capture process that forwards them is named.
    """
    classes, found = proof.classes, dict[str, _Late]()
    timed = {
        apply.name: [
            each.bit_length() - 1
            for each in (classes.class_of(*table) for table in sorted(apply.conflicts.timed))
            if each
        ]
        for apply in proof.spec.applies
    }
    for place in made:
        for hop, table, made_as in _passed_on(proof, place, timed):
            if _meet(sources, hop.site, table):
                name = hop.way.capture.name
                if name not in found:
                    hops = proof.path(place, 1 << made_as, functools.partial(is_last, hop, table))
                    found[name] = _Late(place, hops, table, made_as)
                found[name].tables |= 1 << table
                found[name].sites[hop.site] = None
    for late in found.values():
        yield _told(proof, late)


def _passed_on(proof: Proof, place: Place, timed: Mapping[str, list[int]]) -> Iterator[tuple[Hop, int, int]]:
    """Yield the last hops of changes that another site forwards.

    Each has a timed table of its apply process, by its names there and at its origin.
    """
    for (site, tag), called in proof.spread(place).once.items():
        for hop in proof.hops.get(site, ()):
            if place[0] in (site, hop.site):  # returning changes are reported elsewhere
                continue
            arriving = hop.over(called, tag)
            for number in timed[hop.apply.name]:
                if arriving.get(OWN, 0) >> number & 1:
                    yield hop, number, number
                elif arriving.get(number):
                    yield hop, number, (arriving[number] & -arriving[number]).bit_length() - 1


def _told(proof: Proof, late: _Late) -> Finding:
    hub, site, origin = late.hops[-1].source, late.hops[-1].site, late.place[0]
    table, made_as = (".".join(proof.classes.tables[each]) for each in (late.table, late.made_as))
    changes = "its changes" if made_as == table else f"changes of {made_as}"
    others, more = [each for each in late.sites if each != site], late.tables.bit_count() - 1
    deciding = proof.conditions_on(late.hops, late.place[1], 1 << late.made_as)
    return finding_at(
        f"captures.{late.hops[-1].way.capture.name}.rules",
        f"{table} has latest_timestamp at {site}, and {changes} made at {origin}{made_with(proof, late.place)} arrive"
        f" there with the time of {hub}'s commit: "
        + path_text(proof, late.hops)
        + (f"; so they do at {some(others, 'sites')}" if others else "")
        + (f" (and so with {counted(more, 'other table')})" if more else "")
        + as_far_as(deciding)
        + ". They can win there against later changes, which win elsewhere: the sites become different",
        f"replicate {table} directly between the sites that write it, and let captures.{late.hops[-1].way.capture.name}"
        f" leave out what apply processes of {hub} write in it (tagged: false); or choose another conflict handler"
        " (docs/how/conflicts.md)",
        is_error=not deciding,
    )


# --------------------------------------------------------------------------- a priority without one of the two sites


def _undecided(proof: Proof, sources: _Sources) -> Iterator[Finding]:
    """Yield site_priority handlers that lack the source or the site of an apply process which meets conflicts."""
    found: dict[tuple[str, tuple[str, ...]], dict[Hop, tuple[str, ...]]] = {}
    for hop in (hop for hops in proof.hops.values() for hop in hops):
        for each in hop.apply.conflicts.handlers:
            lacking = (
                ()
                if each.method != "site_priority"
                else tuple(site for site in (hop.source, hop.site) if site not in each.priority)
            )
            number = proof.classes.class_of(each.owner, each.name).bit_length() - 1 if lacking else -1
            if number < 0:
                continue
            if sources[hop.site].get(hop.source, 0) >> number & 1 and _meet(sources, hop.site, number):
                found.setdefault((f"{each.owner}.{each.name}", each.priority), {})[hop] = lacking
    for (table, priority), hops in found.items():
        first, others = next(iter(hops)), len(hops) - 1
        lacking = tuple(dict.fromkeys(site for sites in hops.values() for site in sites))
        yield finding_at(
            "conflict_handlers",
            f"site_priority of {table} lists {', '.join(priority)}, and applies.{first.apply.name} has to decide"
            f" between {first.source} and {first.site}"
            + (f" (and {counted(others, 'other')} likewise)" if others else "")
            + ": no site wins there, and such a conflict goes into the error queue",
            f"list {some(lacking, 'sites')}, too: over a hub, the hub and a spoke are compared, whichever site made"
            " the change",
            is_error=False,
        )
