"""What to do when transactions are gone for good, in the words of the topology: which site's rows can be kept."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.base.errors import INSTANTIATE_AGAIN

__all__ = ["for_topology"]


def for_topology(fix: str, flows: Iterable[tuple[str, str]]) -> str:
    """Say in a fix what `INSTANTIATE_AGAIN` means where sites write to each other.

    Each is a destination, and the rows of one must stay.

    Args:
        fix: of an error.
        flows: source and destination of each apply process.
    """
    if INSTANTIATE_AGAIN not in fix:
        return fix
    to: dict[str, set[str]] = {}
    for source, destination in flows:
        to.setdefault(source, set()).add(destination)
    both = sorted(site for site, others in to.items() if any(site in to.get(other, ()) for other in others))
    if not both:
        return fix
    destinations = set().union(*to.values())
    # Only a site that sends to each of the others fills them all: a hub, or any of two.
    keepers = [site for site in both if destinations - {site} <= to[site]]
    if not keepers:
        return fix.replace(
            INSTANTIATE_AGAIN, "do not empty the tables at every site: see *When the log is gone* in docs/operations.md"
        )
    others = sorted(destinations - {keepers[0]})
    alike = f" ({' or '.join(keepers)} can be the one; here it is {keepers[0]})" if len(keepers) > 1 else ""
    last = "then `headrace up`: they get its rows"
    if len(destinations) > 2 and len(keepers) > 1:
        last = (
            "then as for a new site of an n-way topology (docs/operations.md): `headrace up`, and `headrace up"
            " --keep-existing` once the copies are made"
        )
    return fix.replace(
        INSTANTIATE_AGAIN,
        f"keep the rows of one site{alike}; what the others changed and had not sent to it is lost. `headrace down"
        f" --purge --keep-servers`, empty the replicated tables at {', '.join(others)}, and not at {keepers[0]},"
        f" {last}",
    )
