"""Which links there are between the sites of a topology."""

from __future__ import annotations

from headrace.faults.links import links_of
from tests.support.topologies import example
from topology.edits.changes import components_of


def test_links_are_what_passes_between_sites():
    spec = example("hub_and_spoke")
    links = links_of(spec)
    running = {component.name for component in components_of(spec)}
    assert links
    for link in links:
        assert link.site != link.server_site
        assert link.server in running
        assert set(link.openers) <= running
    # The hub sends to its spokes and each of them to the hub, and nobody else to anybody.
    assert {frozenset((link.site, link.server_site)) for link in links} == {
        frozenset(("dbs1", spoke)) for spoke in ("dbs2", "dbs3", "dbs4")
    }


def test_link_of_combined_capture_and_apply_leads_to_the_capture_process_and_that_of_redo_to_the_source():
    (combined,) = links_of(example("one_way"))
    assert (combined.site, combined.server.partition(":")[0]) == ("dbs2", "capture")
    assert combined.openers == (combined.server,)  # the apply process keeps its incarnation
    redo = [link for link in links_of(example("downstream")) if link.server.startswith("site:")]
    assert redo
    assert all(opener.startswith("redo:") for link in redo for opener in link.openers)
