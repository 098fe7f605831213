"""Fixes for transactions that are lost for good, worded for the topology: which site's rows can be kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from headrace.base.errors import COPY_ONE_AGAIN, INSTANTIATE_AGAIN, LATER_BACKUP, LOST_AT_SOURCE
from headrace.status.overview import Flow

__all__ = ["for_component", "for_topology"]


def for_component(fix: str, name: str, flows: Sequence[Flow]) -> str:
    """Return `for_topology` for a component's fix.

    Args:
        fix: the fix of an error.
        name: name of the component, or of a subscriber of a queue.
        flows: flows of the overview.
    """
    kind, _, short = name.rpartition(":")
    at = short if kind == "site" else ""
    if kind in {"", "apply"}:
        at = next((flow.destination for flow in flows if flow.apply == short), "")
    return for_topology(fix, [(flow.source, flow.destination) for flow in flows], at=at)


def for_topology(fix: str, flows: Collection[tuple[str, str]], *, at: str = "") -> str:
    """Word `INSTANTIATE_AGAIN` and `COPY_ONE_AGAIN` in a fix for topologies whose sites write to each other.

    Each site is a destination, and the rows of one must stay.

    Args:
        fix: the fix of an error.
        flows: source and destination of each apply process.
        at: the site that lost something; empty: unknown.
    """
    if INSTANTIATE_AGAIN not in fix and COPY_ONE_AGAIN not in fix:
        return fix
    to: dict[str, set[str]] = {}
    for source, destination in flows:
        to.setdefault(source, set()).add(destination)
    beside = {site: sorted(other for other in others if site in to.get(other, ())) for site, others in to.items()}
    if not any(beside.values()):
        return fix
    if COPY_ONE_AGAIN in fix and not at:  # a propagation reports a refusal of the queue after it
        return f"{fix}. Where its site sends changes, too: see *When the log is gone* in docs/tasks/recover.md"
    if COPY_ONE_AGAIN in fix and (others := beside.get(at, [])):
        words = _with_one(at, others[0]) if len(others) == 1 else _from_one(to, beside, but=at)
        return fix.replace(COPY_ONE_AGAIN, f"{words}. {LATER_BACKUP}")
    return fix.replace(INSTANTIATE_AGAIN, _from_one(to, beside, but=at if LOST_AT_SOURCE in fix else ""))


def _with_one(at: str, other: str) -> str:
    """Word the fix that copies a site again from the only one with which it exchanges changes."""
    return (
        f"keep the rows of {other}; what {at} changed and had not sent to it is lost. Everything else continues: take"
        f" what goes to {at} and comes from it out of the topology file, leave its site there and run `headrace up`,"
        f" empty the replicated tables at {at}, and not at {other}, put it back and run `headrace up`: it gets the rows"
        f" of {other}"
    )


def _from_one(to: Mapping[str, Collection[str]], beside: Mapping[str, Collection[str]], *, but: str) -> str:
    """Word the fix that copies everything again from one site.

    Args:
        to: by site, the sites to which it sends.
        beside: by site, those of them from which it also gets changes.
        but: a site whose rows are older than those of the others; empty: none.
    """
    destinations = {site for others in to.values() for site in others}
    # Only a site that sends to all others can fill them: a hub, or either of two sites.
    able = [site for site, others in sorted(beside.items()) if others and destinations - {site} <= {*to[site]}]
    keepers = [site for site in able if site != but]
    if not keepers:
        return "do not empty the tables at every site: see *When the log is gone* in docs/tasks/recover.md"
    emptied = sorted(destinations - {keepers[0]})
    alike = f" ({' or '.join(keepers)} can be the one; here it is {keepers[0]})" if len(keepers) > 1 else ""
    last = "then `headrace up`: they get its rows"
    if len(destinations) > 2 and len(able) > 1:
        last = (
            "then as for a new site of an n-way topology (docs/tasks/add-a-site.md): `headrace up`, and `headrace up"
            " --keep-existing` once the copies are made"
        )
    return (
        f"keep the rows of one site{alike}; what the others changed and had not sent to it is lost. `headrace down"
        f" --purge --keep-servers`, empty the replicated tables at {', '.join(emptied)}, and not at {keepers[0]},"
        f" {last}"
    )
