"""The links between sites, routed through proxies in this process while chaos runs.

Each component that serves another site gets one proxy per site whose components connect to it. The cluster's records
route those components through the proxy (`RayActors.set_detour`). Without chaos there are no proxies and no detours. A
detour expires soon after this process dies: the components find their connections broken and connect directly.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actors.security.wire import callers_of
from headrace.base.errors import HeadraceError
from headrace.faults.errors import NotFired
from headrace.faults.proxy import Proxy
from protos.wire.admission import PUBLISH, READ_REDO, RECEIVE_REDO, SUBSCRIBE
from topology.callers import site_of
from topology.edits.changes import components_of, interests_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from actors.hosting.runtime import RayActors
    from topology.spec import TopologySpec

__all__ = ["Link", "Links", "links_of"]

LEASE_S = 30.0  # of a detour: several renewal intervals
RENEW_S = 5.0
# until every link goes through its proxy: a component's longest pause, plus the time of a loaded machine
THROUGH_TIMEOUT_S = 90.0
_SERVING = frozenset({"queue", "site", "redo", "capture"})
_PREFIX = {PUBLISH: ("capture", "propagation"), READ_REDO: ("capture",), RECEIVE_REDO: ("redo",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Connections from one site's components to a component of another site.

    Args:
        site: site of the components that connect.
        server: full name of the component that serves.
        server_site: site of that component.
        openers: components that renew these connections when they are reopened: those that connect or, where these
            would lose work by it, the one that serves.
    """

    site: str
    server: str
    server_site: str
    openers: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name for output and for the schedule."""
        return f"{self.site} -> {self.server}"


def links_of(spec: TopologySpec) -> tuple[Link, ...]:
    """Every link between two sites of a topology, in a fixed order."""
    names = {component.name for component in components_of(spec)}
    found = []
    for component in components_of(spec):
        if component.kind not in _SERVING:
            continue
        there = site_of(spec, component.name)
        by_site: dict[str, list[str]] = {}
        # Apply processes are admitted to every queue upstream of theirs, and dequeue from one.
        subscribers = interests_of(spec, component.name.partition(":")[2]) if component.kind == "queue" else None
        for role, callers in callers_of(spec, component.name).items():
            for caller, site in callers.items():
                if role == SUBSCRIBE and subscribers is not None and caller not in subscribers:
                    continue
                if site != there and (opener := _opener(role, caller, component.name, names)):
                    by_site.setdefault(site, []).append(opener)
        found += [
            Link(site=site, server=component.name, server_site=there, openers=tuple(dict.fromkeys(openers)))
            for site, openers in by_site.items()
        ]
    return tuple(found)


def _opener(role: str, caller: str, server: str, names: set[str]) -> str:
    """Return the component to reopen; empty: this caller does not run."""
    for kind in _PREFIX.get(role, ("propagation",)):
        if f"{kind}:{caller}" in names:
            return f"{kind}:{caller}"
    # Reopening an apply process would begin a new incarnation: the queue or capture process that serves it breaks the
    # connection instead.
    return server if f"apply:{caller}" in names else ""


@dataclass(slots=True)
class Links:
    """The proxies of a topology's links; after `close`, every component connects directly again.

    Args:
        spec: the topology.
        connect: connects to its actors.
        lease_s: lifetime of a detour that is not renewed, in seconds.
    """

    spec: TopologySpec
    connect: Callable[[], RayActors]
    lease_s: float = LEASE_S
    proxies: dict[str, Proxy] = field(default_factory=dict)
    """Proxies by name of the link."""
    _links: dict[str, Link] = field(default_factory=dict)
    _renewed_at: float = 0.0

    def lead_through(self, links: Iterable[Link], tell: Callable[[str], None] = lambda _: None) -> list[str]:
        """Route links through a proxy each, by reconnecting them; return the links that did not connect in time.

        Args:
            links: links from `links_of` of this topology.
            tell: receives progress lines.
        """
        for link in links:
            self._links[link.name] = link
            self.proxies[link.name] = Proxy(self._target(link))
        self.renew(now=True)
        for opener in dict.fromkeys(opener for link in self._links.values() for opener in link.openers):
            with contextlib.suppress(HeadraceError):  # it does not run now: it connects through the proxy when it runs
                self.connect().call(opener, "reopen")
        deadline = time.monotonic() + THROUGH_TIMEOUT_S
        while (
            missing := [name for name, proxy in self.proxies.items() if not proxy.connections]
        ) and time.monotonic() < deadline:
            tell(f"{len(self.proxies) - len(missing)} of {len(self.proxies)} links go through a proxy")
            self.renew()
            time.sleep(0.1)
        return missing

    def _target(self, link: Link) -> Callable[[], str]:
        return lambda: str(self.connect().call(link.server, "endpoint"))

    def renew(self, *, now: bool = False) -> None:
        """Renew the detours; call this at least every few seconds.

        Args:
            now: renew even if the interval has not passed.
        """
        if not now and time.monotonic() - self._renewed_at < RENEW_S:
            return
        self._renewed_at = time.monotonic()
        for name, link in self._links.items():
            with contextlib.suppress(HeadraceError):
                self.connect().set_detour(link.site, link.server, self.proxies[name].endpoint, self.lease_s)

    def close(self) -> None:
        """End the detours and the proxies: connections break, and components reconnect directly. Idempotent."""
        for link in self._links.values():
            with contextlib.suppress(HeadraceError):  # the cluster is gone, or the detour expires
                self.connect().set_detour(link.site, link.server, "", 0.0)
        for proxy in self.proxies.values():
            proxy.close()
        self._links, self.proxies = {}, {}

    def of(self, target: str) -> list[Proxy]:
        """Return the proxies of one link, or of every link of a site, for an immediate fault; renew the detours.

        Args:
            target: name of a link or of a site.

        Raises:
            NotFired: no connection goes through them now.
        """
        # A broken connection reconnects at once. Without this renewal it could bypass the proxy, if the lease has
        # expired meanwhile.
        self.renew(now=True)
        found = [
            self.proxies[name] for name, link in self._links.items() if target in {name, link.site, link.server_site}
        ]
        if not any(proxy.connections for proxy in found):
            raise NotFired(f"no connection of {target} goes through a proxy now")
        return found
