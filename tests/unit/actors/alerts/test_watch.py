"""Which alerts are sent, when, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from actors.alerts.watch import COMPONENT_AFTER_S, ERRORS_APART_S, STARTING_AFTER_S, STEADY_S, Alert, AlertWatch
from tests.support.actors.overviews import overview_from
from topology.alerts import AlertsSpec, AlertTarget

TO = (AlertTarget(name="command true", command=("true",)),)


class World:
    """One apply process and one queue, as an overview shows them."""

    def __init__(self, **wanted: Any) -> None:
        self.watch = AlertWatch(AlertsSpec(to=TO, **wanted), "t.yaml")
        self.now, self.lag_s = 0.0, 0.1
        self.apply: dict[str, Any] = {
            "name": "apply:a",
            "kind": "apply",
            "state": "IDLE",
            "errors": 0,
            "counters": {"total_errors": 0, "total_conflicts": 0},
        }
        self.queue: dict[str, Any] = {"name": "queue:q", "kind": "queue", "state": "ENABLED"}
        self.topology: dict[str, Any] = {"state": "RUNNING", "findings": []}

    def look(self, after_s: float = 1.0) -> list[Alert]:
        self.now += after_s
        overview = {
            **self.topology,
            "at_us": int(self.now * 1e6),
            "components": [self.apply, self.queue],
            "flows": [{"apply": "a", "source": "dbs1", "destination": "dbs2", "lag_s": self.lag_s}],
        }
        return self.watch.look(overview_from(overview), self.now)

    def conflicts(self, total: int) -> list[Alert]:
        self.apply["counters"] = {"total_errors": 0, "total_conflicts": total}
        return self.look()

    def error(self, there: int, total: int) -> None:
        self.apply |= {"errors": there, "counters": {"total_errors": total, "total_conflicts": 0}}


def test_each_new_error_transaction_is_alerted_once():
    world = World()
    assert world.look() == []
    world.error(1, 1)
    (told,) = world.look()
    assert (told.kind, told.subject, told.fix) == ("error_transaction", "apply:a", "headrace errors list t.yaml")
    assert told.message == "1 new error transaction: 1 in the error queue"
    assert world.look() == []
    world.error(4, 4)
    assert world.look(ERRORS_APART_S)[0].message == "3 new error transactions: 4 in the error queue"
    world.error(0, 4)
    assert world.look(ERRORS_APART_S) == []


def test_error_storm_is_alerted_at_once_then_in_summaries():
    world = World()
    world.look()
    told = []
    for total in range(1, 601):  # one per second, for ten minutes
        world.error(total, total)
        told += world.look()
    assert [each.message for each in told] == [
        "1 new error transaction: 1 in the error queue",
        "300 new error transactions: 301 in the error queue",
    ]
    assert [each.message for each in world.look(1.0)] == ["299 new error transactions: 600 in the error queue"]
    assert world.look(ERRORS_APART_S) == []


def test_error_storm_at_several_apply_processes_leaves_room_for_others():
    world = World()
    world.queue = world.apply | {"name": "apply:b"}
    world.look()
    told: list[tuple[float, str]] = []
    for total in range(1, 3 * 3600 + 1):  # one per second at each, for three hours
        world.error(total, total)
        world.queue |= {"errors": total, "counters": world.apply["counters"]}
        told += [(world.now, each.subject) for each in world.look()]
    for begin in range(0, 3 * 3600, 60):
        within = [subject for at, subject in told if begin <= at < begin + 3600]
        assert len(within) <= 12  # of the limit of 20
    assert [subject for at, subject in told if at < 10] == ["apply:a", "apply:b"]
    assert [sum(subject == name for _, subject in told) for name in ("apply:a", "apply:b")] == [18, 18]


def test_errors_of_many_apply_processes_stay_within_share_of_hourly_limit():
    world = World()
    world.watch.spec = AlertsSpec(per_hour_max=5)
    world.look()
    world.error(1, 1)
    world.queue = world.apply | {"name": "apply:b"}
    more = [world.apply | {"name": f"apply:{name}"} for name in "cdef"]
    told: list[str] = []
    for _ in range(4000):
        world.now += 1.0
        overview = {**world.topology, "at_us": 1, "components": [world.apply, world.queue, *more], "flows": ()}
        told += [each.subject for each in world.watch.look(overview_from(overview), world.now)]
        assert len(told) <= 3 or world.now > 3600
    assert sorted(told) == [f"apply:{name}" for name in "abcdef"]


def test_new_error_is_alerted_while_another_is_executed_and_never_twice():
    world = World()
    world.error(1, 1)
    world.look()
    world.error(1, 2)  # one left and one arrived between two looks
    assert len(world.look(ERRORS_APART_S)) == 1
    world.error(1, 0)  # a new driver counts from zero
    assert world.look(ERRORS_APART_S) == []
    world.error(1, 1)
    assert len(world.look()) == 1


def test_first_look_alerts_queued_errors_and_not_executed_ones():
    world = World()
    world.error(0, 5)
    assert world.look() == []
    other = World()
    other.error(2, 5)
    assert other.look()[0].message == "2 error transactions in the error queue"  # whether they are new is unknown


def test_unreachable_apply_process_does_not_reset_its_error_count():
    world = World(component=False)
    world.error(2, 2)
    world.look()
    world.apply = {"name": "apply:a", "kind": "apply", "state": "UNREACHABLE"}
    assert world.look() == []
    world.apply = {"name": "apply:a", "kind": "apply", "state": "IDLE"}
    world.error(2, 0)
    assert world.look() == []


def test_new_error_after_driver_restart_is_alerted():
    world = World()
    world.error(1, 5)
    world.look()
    world.error(1, 1)  # a new driver counts from zero: this error is new, and the old one was executed
    assert world.look(ERRORS_APART_S)[0].message == "1 new error transaction: 1 in the error queue"


@pytest.mark.parametrize("state", ["INITIALIZING", "INSTANTIATING"])
def test_errors_are_not_repeated_while_new_driver_reads_its_error_queue(state: str):
    world = World(component=False)
    world.error(2, 2)
    world.look()
    world.apply |= {"state": state, "errors": 0, "counters": {}}  # as `ApplyHost.status` shows it at that time
    assert world.look() == []
    world.error(2, 0)
    assert world.look() == []


def test_conflict_burst_is_alerted_at_its_beginning_and_end():
    world = World(conflicts_count=10, conflicts_seconds=20.0)
    for total in (0, 5, 9):
        world.apply["counters"] = {"total_errors": 0, "total_conflicts": total}
        assert world.look() == []
    world.apply["counters"] = {"total_errors": 0, "total_conflicts": 12}
    (told,) = world.look()
    assert (told.kind, told.message, told.is_over) == ("conflicts", "12 conflicts within 20 s", False)
    assert world.look() == []
    (over,) = world.look(25.0)
    assert (over.kind, over.is_over) == ("conflicts", True)


def test_slow_conflicts_and_driver_restart_are_no_burst():
    world = World(conflicts_count=10, conflicts_seconds=20.0)
    for total in range(0, 60, 3):
        world.apply["counters"] = {"total_errors": 0, "total_conflicts": total}
        assert world.look(10.0) == []
    world.apply["counters"] = {"total_errors": 0, "total_conflicts": 0}
    assert world.look() == []


def test_burst_across_driver_restart_adds_counts_of_both_drivers():
    world = World(conflicts_count=10, conflicts_seconds=20.0)
    assert world.conflicts(60) == []
    assert world.conflicts(50)[0].message == "50 conflicts within 20 s"
    other = World(conflicts_count=10, conflicts_seconds=20.0)
    for total in (60, 66, 0):
        assert other.conflicts(total) == []
    assert other.conflicts(6)[0].message == "12 conflicts within 20 s"


def test_burst_stays_open_while_conflict_count_is_unknown():
    world = World(conflicts_count=10, conflicts_seconds=20.0, component=False)
    world.conflicts(0)
    assert len(world.conflicts(50)) == 1
    for unknown in ({"state": "UNREACHABLE"}, {"state": "INITIALIZING", "errors": 0, "counters": {}}):
        world.apply = {"name": "apply:a", "kind": "apply", **unknown}
        assert world.look(60.0) == []
    assert [each.is_over for each in world.conflicts(0)] == [True]


def test_lag_alert_stays_open_while_lag_is_unknown():
    world = World(lag_s=30.0)
    world.lag_s = 31.0
    assert len(world.look()) == 1
    world.lag_s = None  # type: ignore[assignment]
    assert world.look() == world.look(31.0) == world.look() == []
    world.lag_s = 0.1
    assert world.look()[0].is_over


def test_lag_is_alerted_when_too_long_or_unknown():
    world = World(lag_s=30.0)
    assert world.look() == []
    world.lag_s = 31.0
    assert world.look()[0].message == "dbs2 is more than 30 s behind dbs1"
    world.lag_s = 60.0
    assert world.look() == []
    world.lag_s = 0.5
    assert world.look()[0].is_over
    world.lag_s = None  # type: ignore[assignment]
    assert world.look() == []
    assert "unknown how far dbs2 is behind dbs1" in world.look(31.0)[0].message


def test_component_is_alerted_after_restart_time_and_at_once_when_aborted():
    world = World()
    world.queue["state"] = "UNREACHABLE"
    assert world.look() == []
    world.queue["state"] = "ENABLED"
    assert world.look(COMPONENT_AFTER_S) == []
    world.queue["state"] = "DISABLED"
    world.look()
    (stopped,) = world.look(COMPONENT_AFTER_S)
    assert (stopped.kind, stopped.subject, stopped.message) == ("component", "queue:q", "DISABLED")
    world.apply |= {"state": "ABORTED", "last_error": {"message": "no right", "hint": "GRANT it"}}
    (gave_up,) = world.look()
    assert (gave_up.subject, gave_up.message, gave_up.fix) == ("apply:a", "ABORTED: no right", "GRANT it")
    world.queue["state"] = "ENABLED"
    assert [(each.subject, each.is_over) for each in world.look()] == [("queue:q", True)]


def test_apply_process_disabled_by_error_is_alerted_with_its_hint():
    world = World()
    world.apply |= {
        "state": "PAUSED: DISABLED BY ERROR",
        "detail": "error transaction 3 is in the error queue",
        "hint": "execute it",
    }
    world.look()
    (told,) = world.look(COMPONENT_AFTER_S)
    assert (told.message, told.fix) == (
        "PAUSED: DISABLED BY ERROR: error transaction 3 is in the error queue",
        "execute it",
    )


def test_kinds_that_are_turned_off_are_not_alerted():
    world = World(error_transaction=False, component=False)
    world.error(3, 3)
    world.apply["state"], world.lag_s = "ABORTED", 1e6
    assert world.look() == world.look(1e4) == []


STOPPED = (
    "DISABLED",
    "UNREACHABLE",
    "RETRYING",
    "NOT CREATED",
    "DATABASE DOES NOT ANSWER",
    "WAITING FOR DATABASE",
    "PAUSED: DISK IS FULL",
    "PAUSED: WAITING FOR ALTER",
)
STARTING = ("INITIALIZING", "STARTING DATABASE", "STARTING SPARK", "WAITING FOR PREPARATION", "SHUTTING DOWN CLEANLY")
WORKING = (
    "ENABLED",
    "READY",
    "RUNNING",
    "IDLE",
    "WRITING",
    "RECEIVING",
    "WAITING FOR REDO",
    "CAPTURING CHANGES",
    "WAITING FOR 1 SUBSCRIBER(S) INITIALIZING",
    "WAITING FOR LCRS",
    "SENDING",
    "PAUSED FOR FLOW CONTROL",
    "PAUSED FOR BANDWIDTH",
    "CLOSED",
    "APPLYING",
    "INSTANTIATING",
    "BYPASSED",
)


@pytest.mark.parametrize("state", STOPPED + STARTING + WORKING)
def test_each_state_is_alerted_after_its_time_limit(state: str):
    world = World()
    world.queue["state"] = state
    assert world.look() == []
    assert bool(world.look(COMPONENT_AFTER_S)) == (state in STOPPED)
    assert bool(world.look(STARTING_AFTER_S)) == (state in STARTING)
    world.queue["state"] = "ENABLED"
    assert [each.is_over for each in world.look(STEADY_S)] == [True] * (state not in WORKING)


def test_component_that_keeps_retrying_is_alerted_once():
    world = World()
    told = []
    for state in ("RETRYING", "INITIALIZING", "ENABLED", "RETRYING") * 10:
        world.queue["state"] = state
        told += world.look(3.0)
    assert [(each.message, each.is_over) for each in told] == [("RETRYING", False)]
    world.queue["state"] = "ENABLED"
    assert world.look(STEADY_S)[0].is_over


def test_aborted_component_stays_open_while_unreachable_or_starting():
    world = World()
    world.queue["state"] = "ABORTED"
    assert len(world.look()) == 1
    for state in ("UNREACHABLE", "INITIALIZING"):
        world.queue["state"] = state
        assert world.look() == []
    world.queue["state"] = "ENABLED"
    assert world.look()[0].is_over


def test_waiting_site_is_alerted_with_reason_and_fix():
    world = World()
    world.queue |= {
        "name": "site:dbs2",
        "kind": "site",
        "state": "WAITING FOR PREPARATION",
        "problem": "its redo is not there",
        "fix": "mount the disk",
    }
    world.look()
    (told,) = world.look(STARTING_AFTER_S)
    assert (told.message, told.fix) == ("WAITING FOR PREPARATION: its redo is not there", "mount the disk")
    world = World()
    world.queue |= {
        "name": "site:dbs2",
        "kind": "site",
        "state": "DATABASE DOES NOT ANSWER",
        "database_problem": "connection refused",
    }
    world.look()
    assert world.look(COMPONENT_AFTER_S)[0].message == "DATABASE DOES NOT ANSWER: connection refused"


def test_capture_process_that_waits_for_first_copy_is_not_alerted():
    world = World()
    world.queue = {"name": "capture:c", "kind": "capture", "state": "INITIALIZING", "combined_with": "a"}
    world.look()
    assert world.look(10 * STARTING_AFTER_S) == []


def test_controller_alert_replaces_those_of_components_it_did_not_create():
    world = World()
    finding = {"path": "site dbs1", "problem": "wal_level is replica", "fix": "set it to logical", "is_error": True}
    world.topology = {
        "state": "REFUSED",
        "findings": [{**finding, "is_error": False, "problem": "a warning"}, finding, finding],
    }
    world.queue["state"] = "NOT CREATED"
    assert world.look() == []
    (told,) = world.look(COMPONENT_AFTER_S)
    assert (told.kind, told.subject, told.fix) == ("component", "controller", "set it to logical")
    assert told.message == "REFUSED: site dbs1: wal_level is replica (and 1 more)"
    world.topology = {"state": "STARTING SITES", "findings": []}
    assert world.look() == []
    world.topology, world.queue["state"] = {"state": "RUNNING", "findings": []}, "ENABLED"
    assert [(each.subject, each.is_over) for each in world.look()] == [("controller", True)]
    world.topology = {"state": "RETRYING", "findings": [], "problem": "no answer", "fix": "start it"}
    world.look()
    (told,) = world.look(COMPONENT_AFTER_S)
    assert (told.message, told.fix) == ("RETRYING: no answer", "start it")


def test_component_held_up_by_preparation_gets_its_start_time_later():
    world = World()
    world.queue["state"] = "WAITING FOR PREPARATION"
    world.look()
    world.topology["state"] = "PREPARING"
    world.look()
    world.topology["state"] = "RUNNING"
    assert world.look(10 * STARTING_AFTER_S) == []  # an open transaction at the source can hold it up for as long


def test_returning_component_is_timed_anew_and_refused_edit_ends_no_alert():
    world = World()
    queue = world.queue
    queue["state"] = "DISABLED"
    world.look()
    world.queue = {"name": "queue:other", "kind": "queue", "state": "ENABLED"}
    world.look(COMPONENT_AFTER_S)
    world.queue = {**queue, "state": "NOT CREATED"}
    assert world.look() == []
    assert [each.subject for each in world.look(COMPONENT_AFTER_S)] == ["queue:q"]
    world.topology = {"state": "REFUSED", "findings": []}
    assert world.look() == []
