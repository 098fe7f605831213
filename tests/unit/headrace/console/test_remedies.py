"""What is printed when a log is gone names the sites whose tables are emptied: never all of those that write to each
other.
"""

from __future__ import annotations

from itertools import permutations

from headrace.base.errors import INSTANTIATE_AGAIN
from headrace.console.remedies import for_topology
from headrace.console.status_view import notes
from headrace.deployment.failures import _found


def test_one_way_empties_the_destinations():
    assert for_topology(INSTANTIATE_AGAIN, [("a", "b"), ("a", "c")]) == INSTANTIATE_AGAIN


def test_other_fixes_stay_as_they_are():
    assert for_topology("make room", [("a", "b"), ("b", "a")]) == "make room"


def test_of_two_sites_one_keeps_its_rows_and_either_can():
    fix = for_topology(f"fix the slot; then {INSTANTIATE_AGAIN}", [("a", "b"), ("b", "a")])
    assert fix.startswith("fix the slot; then keep the rows of one site (a or b can be the one")
    assert "tables at b, and not at a, then `headrace up`" in fix
    assert "is lost" in fix


def test_a_hub_keeps_its_rows_and_all_others_are_emptied():
    hub = [(one, other) for spoke in "abc" for one, other in (("hub", spoke), (spoke, "hub"))]
    fix = for_topology(INSTANTIATE_AGAIN, hub)
    assert "tables at a, b, c, and not at hub, then `headrace up`: they get its rows" in fix


def test_sites_that_all_write_to_each_other_need_the_steps_of_a_new_site():
    fix = for_topology(INSTANTIATE_AGAIN, permutations("abc", 2))
    assert "tables at b, c, and not at a" in fix
    assert "--keep-existing" in fix


def test_nothing_is_emptied_by_name_where_no_site_fills_all_others():
    chain = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "b"), ("c", "d"), ("d", "c")]
    assert "do not empty the tables at every site" in for_topology(INSTANTIATE_AGAIN, chain)


def test_status_and_up_say_it_in_the_words_of_the_topology():
    error = {"error": "LogGone", "message": "slot headrace_t does not exist", "hint": INSTANTIATE_AGAIN}
    flows = [{"source": "a", "destination": "b"}, {"source": "b", "destination": "a"}]
    overview = {
        "state": "RUNNING",
        "flows": flows,
        "components": [{"name": "site:a", "state": "ABORTED", "last_error": error}],
    }
    (note,), ((_, failure),) = notes(overview), _found(overview).values()
    assert "tables at b, and not at a" in note.fix
    assert note.fix == failure.hint
