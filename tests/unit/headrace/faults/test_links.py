"""The links between the sites of a topology."""

from __future__ import annotations

import pytest

from headrace.faults.errors import NotFired
from headrace.faults.links import Links, links_of
from headrace.faults.proxy import Proxy
from tests.support.topologies.files import example
from topology.edits.changes import components_of


def test_links_connect_different_sites_through_running_components():
    spec = example("hub_and_spoke")
    links = links_of(spec)
    running = {component.name for component in components_of(spec)}
    assert links
    for link in links:
        assert link.site != link.server_site
        assert link.server in running
        assert set(link.openers) <= running
    # The hub sends to its spokes, each spoke to the hub, and nothing else is sent.
    assert {frozenset((link.site, link.server_site)) for link in links} == {
        frozenset(("dbs1", spoke)) for spoke in ("dbs2", "dbs3", "dbs4")
    }


def test_combined_link_leads_to_the_capture_process_and_redo_to_the_source():
    (combined,) = links_of(example("one_way"))
    assert (combined.site, combined.server.partition(":")[0]) == ("dbs2", "capture")
    assert combined.openers == (combined.server,)  # the apply process keeps its incarnation
    redo = [link for link in links_of(example("downstream")) if link.server.startswith("site:")]
    assert redo
    assert all(opener.startswith("redo:") for link in redo for opener in link.openers)


class _Deployment:
    """The targets of the links; it answers where a component serves."""

    def __init__(self) -> None:
        self.detours: list[str] = []

    def call(self, component: str, method: str) -> str:
        return "127.0.0.1:1"

    def set_detour(self, site: str, server: str, endpoint: str, lease_s: float) -> None:
        self.detours.append(endpoint)


def test_detours_are_renewed_before_a_link_breaks():
    """Detours that nobody has renewed for a while end, and new connections would bypass the proxies."""
    deployment = _Deployment()
    links = Links(example("one_way"), lambda: deployment)  # type: ignore[return-value]  # it stands in for a session
    (link,) = links_of(example("one_way"))
    with Proxy("127.0.0.1:1") as proxy:
        links._links[link.name], links.proxies[link.name] = link, proxy
        with pytest.raises(NotFired):
            links.of(link.name)
        assert deployment.detours == [proxy.endpoint]
