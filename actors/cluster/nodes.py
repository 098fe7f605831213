"""The node of a cluster on which an actor runs: a node of its site, where the site's files are.

A component finds its redo, its spilled batches and its positions on the disk of its machine. So no component may run on
an arbitrary node: those of a site with `node` run where that resource is, all others on the cluster's head. When the
node is gone, Ray keeps the actor until a node with the resource is back, and starts it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["absence_of", "placement"]

HEAD = "node:__internal_head__"
"""The resource that Ray gives to the head of every cluster."""
# An actor's share of a resource. The resource only determines the place: a node that offers 1 of it has room for a
# thousand actors.
SHARE = 0.001


def placement(node: Mapping[str, float]) -> dict[str, float]:
    """Return the Ray resources that an actor of a site takes: `SHARE`, whatever amounts the file names.

    Args:
        node: resources of the site in the topology; empty: none.
    """
    return dict.fromkeys(node or (HEAD,), SHARE)


def absence_of(site: str, node: Mapping[str, float], offered: Iterable[Mapping[str, float]]) -> tuple[str, str] | None:
    """Return why nothing of a site can run, and what to do about it; None: a node for it exists.

    Args:
        site: name of the site.
        node: resources of the site in the topology.
        offered: the resources of each living node of the cluster.
    """
    if not node or any(node.keys() <= each.keys() for each in offered):
        return None
    resources = ", ".join(f"{name}: {amount:g}" for name, amount in node.items())
    return (
        f"the node of site {site} is missing: no living node of the cluster offers {{{resources}}}",
        "start Ray on that machine again, with this resource: the site then continues by itself where it stopped; the"
        " other sites keep running meanwhile",
    )
