"""Which node of a cluster an actor runs on: a node of its site, where the site's files are.

A component finds its redo, its spilled batches and its positions on the disk of the machine that it runs on. So nothing
may run just anywhere: what belongs to a site with `node` runs where that resource is, all else on the cluster's head.
When the node is gone, Ray keeps the actor until a node with the resource is there again, and starts it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["absence_of", "placement"]

HEAD = "node:__internal_head__"
"""The resource that Ray gives to the head of every cluster."""
# What an actor takes of a resource. The resource only says where: a node that offers 1 of it has room for a thousand
# actors.
SHARE = 0.001


def placement(node: Mapping[str, float]) -> dict[str, float]:
    """The Ray resources that an actor of a site takes; of any amount that the file names it takes `SHARE`.

    Args:
        node: of the site in the topology, by resource; empty: it has none.
    """
    return dict.fromkeys(node or (HEAD,), SHARE)


def absence_of(site: str, node: Mapping[str, float], offered: Iterable[Mapping[str, float]]) -> tuple[str, str] | None:
    """Why nothing of a site can run, and what to do about it; None: a node for it is there.

    Args:
        site: name of the site.
        node: of the site in the topology, by resource.
        offered: the resources of each living node of the cluster.
    """
    if not node or any(node.keys() <= each.keys() for each in offered):
        return None
    resources = ", ".join(f"{name}: {amount:g}" for name, amount in node.items())
    return (
        f"the node of site {site} is not there: no living node of the cluster offers {{{resources}}}",
        "start Ray on that machine again, with this resource: the site goes on by itself where it stopped; the other"
        " sites go on meanwhile",
    )
