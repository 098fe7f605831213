"""The fix for a purged log names the sites whose tables are emptied, and never all sites that write to each other."""

from __future__ import annotations

from itertools import permutations

from headrace.base.errors import COPY_ONE_AGAIN, INSTANTIATE_AGAIN, LATER_BACKUP, LOST_AT_SOURCE
from headrace.console.remedies import for_topology
from headrace.console.status_view import notes
from headrace.deployment.failures import _found
from tests.support.actors.overviews import overview_from


def test_one_way_empties_the_destinations():
    assert for_topology(INSTANTIATE_AGAIN, [("a", "b"), ("a", "c")]) == INSTANTIATE_AGAIN


def test_other_fixes_are_unchanged():
    assert for_topology("make room", [("a", "b"), ("b", "a")]) == "make room"


def test_one_of_two_sites_keeps_its_rows():
    fix = for_topology(f"fix the slot; then {INSTANTIATE_AGAIN}", [("a", "b"), ("b", "a")])
    assert fix.startswith("fix the slot; then keep the rows of one site (a or b can be the one")
    assert "tables at b, and not at a, then `headrace up`" in fix
    assert "is lost" in fix


def test_hub_keeps_its_rows_and_all_others_are_emptied():
    hub = [(one, other) for spoke in "abc" for one, other in (("hub", spoke), (spoke, "hub"))]
    fix = for_topology(INSTANTIATE_AGAIN, hub)
    assert "tables at a, b, c, and not at hub, then `headrace up`: they get its rows" in fix


def test_sites_that_all_write_to_each_other_need_the_steps_of_a_new_site():
    fix = for_topology(INSTANTIATE_AGAIN, [*permutations("abc", 2)])
    assert "tables at b, c, and not at a" in fix
    assert "--keep-existing" in fix


def test_no_site_is_named_when_none_fills_all_others():
    chain = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "b"), ("c", "d"), ("d", "c")]
    assert "do not empty the tables at every site" in for_topology(INSTANTIATE_AGAIN, chain)


def test_only_partner_of_a_restored_site_keeps_its_rows():
    fix = for_topology(COPY_ONE_AGAIN, [("a", "b"), ("b", "a"), ("b", "c"), ("c", "b"), ("a", "d")], at="a")
    assert fix.startswith("keep the rows of b; what a changed and had not sent to it is lost")
    assert "empty the replicated tables at a, and not at b" in fix
    assert fix.endswith(LATER_BACKUP)


def test_fix_for_a_restored_site_that_sends_nothing_is_unchanged():
    assert for_topology(COPY_ONE_AGAIN, [("a", "b"), ("b", "a"), ("b", "c")], at="c") == COPY_ONE_AGAIN


def test_fix_for_an_unknown_restored_site_refers_to_the_guide():
    assert for_topology(COPY_ONE_AGAIN, [("a", "b")]) == COPY_ONE_AGAIN
    assert "*When the log is gone*" in for_topology(COPY_ONE_AGAIN, [("a", "b"), ("b", "a")])


def test_another_partner_of_a_restored_site_keeps_its_rows():
    fix = for_topology(COPY_ONE_AGAIN, [*permutations("abc", 2)], at="a")
    assert "(b or c can be the one; here it is b)" in fix
    assert "tables at a, c, and not at b" in fix
    assert "--keep-existing" in fix
    hub = [(one, other) for spoke in "abc" for one, other in (("hub", spoke), (spoke, "hub"))]
    assert "do not empty the tables at every site" in for_topology(COPY_ONE_AGAIN, hub, at="hub")


def test_rows_of_a_source_that_was_set_back_are_not_kept():
    flows = [("a", "b"), ("b", "a")]
    assert "tables at a, and not at b" in for_topology(f"{LOST_AT_SOURCE}: {INSTANTIATE_AGAIN}", flows, at="a")
    assert "tables at b, and not at a" in for_topology(f"{LOST_AT_SOURCE}: {INSTANTIATE_AGAIN}", flows, at="b")
    assert "tables at b, and not at a" in for_topology(INSTANTIATE_AGAIN, flows, at="a")


def test_fix_of_a_queue_names_the_site_of_its_refused_subscriber():
    flows = [{"apply": "x", "source": "a", "destination": "b"}, {"apply": "y", "source": "b", "destination": "a"}]
    subscriber = {"subscriber": "x", "source": "a", "acknowledged_scn": 1, "gone_scn": 3}
    queue = {"name": "queue:q", "kind": "queue", "site": "a", "state": "ENABLED", "subscribers": [subscriber]}
    (note,) = notes(overview_from({"flows": flows, "components": [queue]}))
    assert "tables at b, and not at a" in note.fix


def test_status_and_up_give_the_same_fix():
    error = {"error": "LogGone", "message": "slot headrace_t does not exist", "hint": INSTANTIATE_AGAIN}
    flows = [{"apply": "x", "source": "a", "destination": "b"}, {"apply": "y", "source": "b", "destination": "a"}]
    components = [{"name": "site:a", "state": "ABORTED", "last_error": error}]
    overview = overview_from({"flows": flows, "components": components})
    (note,), ((_, failure),) = notes(overview), _found(overview).values()
    assert "tables at b, and not at a" in note.fix
    assert note.fix == failure.hint
