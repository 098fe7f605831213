"""Downstream capture in a topology: accepted settings, the redo copies, and the components that an edit touches."""

from __future__ import annotations

import pytest

from actors.security.wire import callers_of
from protos.wire.admission import READ_REDO, RECEIVE_REDO
from tests.support.topologies.files import SITES, findings, read
from topology.callers import redo_readers_of, redo_receivers_of, site_of
from topology.edits.changes import changes, components_of
from topology.plan import make_plan
from topology.routing.downstream import receiver_at, receivers_at, receivers_from, redo_receivers
from topology.routing.ways import ways_to

DOWNSTREAM = (
    "combined: never\n"
    + SITES
    + """
queues:
  q3: {site: dbs3}
  q2: {site: dbs2}
captures:
  c1: {site: dbs3, source: dbs1, queue: q3, rules: {include: [{schema: hr}]}}
propagations:
  p: {from: q3, to: q2}
applies:
  a: {site: dbs2, source: dbs1, queue: q2}
"""
)
SECOND = (
    DOWNSTREAM.replace(
        "propagations:",
        "  c2: {site: dbs3, source: dbs1, queue: q3b, rules: {include: [{schema: crm}]}}\npropagations:",
    )
    .replace("  q2:", "  q3b: {site: dbs3}\n  q2:")
    .replace("applies:\n", "  pb: {from: q3b, to: q2b}\napplies:\n  ab: {site: dbs2, source: dbs1, queue: q2b}\n")
    .replace("  q2: {site: dbs2}", "  q2: {site: dbs2}\n  q2b: {site: dbs2}")
)
LOCAL = DOWNSTREAM.replace("q3: {site: dbs3}", "q3: {site: dbs1}").replace("c1: {site: dbs3", "c1: {site: dbs1")


def edit(folder, before, after):
    return {
        each.component: each.action
        for each in changes(read(folder, before), read(folder, after))
        if each.action != "same"
    }


def test_capture_at_another_site_defaults_to_real_time_and_async(tmp_path):
    spec = read(tmp_path, DOWNSTREAM)
    (receiver,) = redo_receivers(spec)
    assert (receiver.source, receiver.site, receiver.is_sync, receiver.captures) == ("dbs1", "dbs3", False, ("c1",))
    assert receiver.component == "redo:dbs1@dbs3"
    assert receiver_at(spec, spec.capture("c1")) == receiver
    assert receivers_from(spec, "dbs1") == receivers_at(spec, "dbs3") == (receiver,)
    assert redo_receivers(read(tmp_path, LOCAL)) == ()
    said = DOWNSTREAM.replace("source: dbs1, queue: q3,", "source: dbs1, mode: real_time, transport: async, queue: q3,")
    assert read(tmp_path, said).captures == spec.captures
    assert [way.components for way in ways_to(spec, spec.apply("a"))] == [("c1", "q3", "p", "q2", "a")]


def test_several_capture_processes_share_one_copy(tmp_path):
    (receiver,) = redo_receivers(read(tmp_path, SECOND))
    assert receiver.captures == ("c1", "c2")


PLANTED = {
    "mode of a local capture": (
        LOCAL.replace("source: dbs1, queue: q3,", "source: dbs1, mode: real_time, queue: q3,"),
        "captures.c1 (line 14): mode is only for downstream capture, and this capture process is local: leave it out, or"
        " name a site other than the source",
    ),
    "transport of a local capture": (
        LOCAL.replace("source: dbs1, queue: q3,", "source: dbs1, transport: sync, queue: q3,"),
        "transport is only for downstream capture",
    ),
    "an unknown transport": (
        DOWNSTREAM.replace("source: dbs1, queue: q3,", "source: dbs1, transport: sinc, queue: q3,"),
        "captures.c1.transport (line 14): 'sinc' is not one of sync, async: did you mean 'sync'?",
    ),
    "a second real-time source at one site": (
        SECOND.replace("c2: {site: dbs3, source: dbs1", "c2: {site: dbs3, source: dbs2")
        .replace("ab: {site: dbs2, source: dbs1, queue: q2b}", "ab: {site: dbs1, source: dbs2, queue: q2b}")
        .replace("q2b: {site: dbs2}", "q2b: {site: dbs1}"),
        "captures.c2.source (line 17): site dbs3 receives the redo of dbs1 in real time already, and takes one source's"
        " only: write mode: archived_log here, or capture the changes of dbs2 at dbs2 itself or at another site",
    ),
    "two transports of one copy": (
        SECOND.replace("source: dbs1, queue: q3b,", "source: dbs1, transport: sync, queue: q3b,"),
        "captures.c2.transport (line 17): is sync, and captures.c1, which mines the same copy of the redo, says async:"
        " write the same for all capture processes of one source at one site",
    ),
    "a queue at the source": (
        DOWNSTREAM.replace("q3: {site: dbs3}", "q3: {site: dbs1}"),
        "queue q3 is at site dbs1, not at dbs3",
    ),
    "transport of archived logs": (
        DOWNSTREAM.replace("source: dbs1, queue: q3,", "source: dbs1, mode: archived_log, transport: sync, queue: q3,"),
        "captures.c1 (line 14): mode: archived_log takes no transport: leave out transport, or write mode: real_time",
    ),
    "an archive in real time": (
        DOWNSTREAM.replace("source: dbs1, queue: q3,", "source: dbs1, archive: logs, queue: q3,"),
        "captures.c1 (line 14): archive and archive_lag_s are only for archived logs: write mode: archived_log, or leave"
        " them out",
    ),
    "two modes of one copy": (
        SECOND.replace("source: dbs1, queue: q3b,", "source: dbs1, mode: archived_log, queue: q3b,"),
        "captures.c2.mode (line 17): is archived_log, and captures.c1, which mines the same copy of the redo, says"
        " real_time",
    ),
    "one archive of two sources": (
        SECOND.replace("source: dbs1, queue: q3,", "source: dbs1, mode: archived_log, archive: logs, queue: q3,")
        .replace("c2: {site: dbs3, source: dbs1", "c2: {site: dbs3, source: dbs2, mode: archived_log, archive: ./logs")
        .replace("ab: {site: dbs2, source: dbs1, queue: q2b}", "ab: {site: dbs1, source: dbs2, queue: q2b}")
        .replace("q2b: {site: dbs2}", "q2b: {site: dbs1}"),
        "captures.c2.archive (line 17): is also where the redo of dbs1 is copied to: give every source a folder of its"
        " own",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_problem_is_reported_with_place_and_fix(tmp_path, name):
    text, said = PLANTED[name]
    _, found = findings(tmp_path, text)
    assert any(said in line for line in found), found


def test_receiver_is_a_component_of_the_downstream_site(tmp_path):
    found = {each.name: each.site for each in components_of(read(tmp_path, DOWNSTREAM))}
    assert found["redo:dbs1@dbs3"] == "dbs3"
    assert found["capture:c1"] == "dbs3"
    names = list(found)
    assert names.index("site:dbs1") < names.index("redo:dbs1@dbs3") < names.index("capture:c1")


def test_second_capture_of_a_redo_copy_restarts_nothing(tmp_path):
    touched = edit(tmp_path, DOWNSTREAM, SECOND)
    assert touched["redo:dbs1@dbs3"] == touched["site:dbs1"] == "takes over"
    assert "capture:c1" not in touched
    assert set(touched.values()) == {"takes over", "new"}


def test_changed_transport_is_taken_over_by_source_and_receiver_only(tmp_path):
    said = DOWNSTREAM.replace("source: dbs1, queue: q3,", "source: dbs1, transport: sync, queue: q3,")
    assert edit(tmp_path, DOWNSTREAM, said) == {"site:dbs1": "takes over", "redo:dbs1@dbs3": "takes over"}


def test_adding_or_removing_a_receiver_leaves_the_source_running(tmp_path):
    with_local = (
        DOWNSTREAM.replace(
            "captures:",
            "  q1: {site: dbs1}\n  q4: {site: dbs2}\ncaptures:\n  c9: {site: dbs1, source: dbs1, queue: q1, rules:"
            " {include: [{schema: crm}]}}",
        )
        .replace("propagations:", "propagations:\n  p9: {from: q1, to: q4}")
        .replace("applies:", "applies:\n  a9: {site: dbs2, source: dbs1, queue: q4}")
    )
    without = (
        with_local.replace("  c1: {site: dbs3, source: dbs1, queue: q3, rules: {include: [{schema: hr}]}}\n", "")
        .replace("  p: {from: q3, to: q2}\n", "")
        .replace("  a: {site: dbs2, source: dbs1, queue: q2}\n", "")
        .replace("  q3: {site: dbs3}\n", "")
        .replace("  q2: {site: dbs2}\n", "")
    )
    added, removed = edit(tmp_path, without, with_local), edit(tmp_path, with_local, without)
    assert added["redo:dbs1@dbs3"] == "new"
    assert removed["redo:dbs1@dbs3"] == "ends"
    assert added["site:dbs1"] == removed["site:dbs1"] == "takes over"
    assert "capture:c9" not in added | removed


def test_plan_names_the_session_that_commits_can_wait_for(tmp_path):
    said = DOWNSTREAM.replace("source: dbs1, queue: q3,", "source: dbs1, transport: sync, queue: q3,")
    plan = make_plan(read(tmp_path, said))
    assert "waits for the session headrace_t_dbs1" in plan.as_text()
    assert "asynchronously: a commit does not wait for it" in make_plan(read(tmp_path, DOWNSTREAM)).as_text()


def test_many_archived_log_sources_share_a_site_with_a_real_time_source(tmp_path):
    text = (
        SECOND.replace(
            "c2: {site: dbs3, source: dbs1",
            "c2: {site: dbs3, source: dbs2, mode: archived_log, archive: logs, archive_lag_s: 5",
        )
        .replace("ab: {site: dbs2, source: dbs1, queue: q2b}", "ab: {site: dbs1, source: dbs2, queue: q2b}")
        .replace("q2b: {site: dbs2}", "q2b: {site: dbs1}")
    )
    real_time, archived = redo_receivers(read(tmp_path, text))
    assert (real_time.is_archived_log, archived.is_archived_log) == (False, True)
    assert archived.archive == str(tmp_path / "logs")
    assert archived.archive_lag_s == 5
    plan = make_plan(read(tmp_path, text))
    work = {actor.name: actor.work for actor in plan.actors}
    assert (
        work["redo:dbs2@dbs3"]
        == f"redo receiver: takes the complete segments of dbs2 that are copied into {tmp_path / 'logs'}"
    )
    sent = make_plan(read(tmp_path, text.replace("archive: logs, ", "")))
    assert (
        "copies the complete segments of dbs2, at most 5 s old"
        in {actor.name: actor.work for actor in sent.actors}["redo:dbs2@dbs3"]
    )


def test_real_time_mode_and_archived_log_mode_switch_without_restarts(tmp_path):
    archived = DOWNSTREAM.replace("source: dbs1, queue: q3,", "source: dbs1, mode: archived_log, queue: q3,")
    for before, after in ((DOWNSTREAM, archived), (archived, DOWNSTREAM)):
        assert edit(tmp_path, before, after) == {"site:dbs1": "takes over", "redo:dbs1@dbs3": "takes over"}


def test_source_admits_its_receiver_and_receiver_its_sites_captures(tmp_path):
    spec = read(tmp_path, SECOND)
    assert redo_readers_of(spec, "dbs1") == {}
    assert redo_receivers_of(spec, "dbs1") == {"dbs1@dbs3": "dbs3"}
    assert site_of(spec, "redo:dbs1@dbs3") == "dbs3"
    assert callers_of(spec, "site:dbs1") == {READ_REDO: {}, RECEIVE_REDO: {"dbs1@dbs3": "dbs3"}}
    assert callers_of(spec, "redo:dbs1@dbs3") == {READ_REDO: {"c1": "dbs3", "c2": "dbs3"}}
    local = read(tmp_path, LOCAL)
    assert callers_of(local, "site:dbs1") == {READ_REDO: {"c1": "dbs1"}, RECEIVE_REDO: {}}
