"""Components that share a process, without Ray: each begins, fails, restarts and ends on its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.hosting.components import Components
from actors.records.wanted import Wanted
from headrace.base.errors import PropagationError
from tests.support.actors.components import RELEASE, FakeRecords, Part, goes_on, wait_for
from tests.support.topologies.files import ONE_WAY, read


@pytest.fixture
def records(tmp_path: Path) -> Iterator[FakeRecords]:
    RELEASE.clear()
    yield FakeRecords(tmp_path)
    RELEASE.set()


def ended(components: Components, records: FakeRecords, name: str) -> None:
    records.records[name] = None
    components.settle(name)


def is_ending(records: FakeRecords) -> tuple[Components, threading.Thread]:
    """A process whose component "slow" is ending until `RELEASE`, and the thread that waits for it."""
    records.create("slow", "hang")
    components = Components(records, end_process=lambda: None)
    components.settle_all()
    wait_for(lambda: components.call("slow", "status")["steps"] > 0)
    records.records["slow"] = None
    ending = threading.Thread(target=components.settle, args=("slow",))
    ending.start()
    return components, ending


@pytest.mark.parametrize(("say", "state"), [("raise", "RETRYING"), ("fail", "ABORTED"), ("hang", "ENABLED")])
def test_failed_or_hanging_component_leaves_its_neighbours_running(records, say, state):
    records.create("well")
    records.create("sick", say)
    components = Components(records)
    components.settle_all()
    wait_for(
        lambda: components.call("sick", "status")["steps"] > 0 and components.call("sick", "status")["state"] == state
    )
    goes_on(components, "well")


def test_component_is_stopped_and_started_alone(records):
    records.create("one")
    records.create("other")
    components = Components(records)
    components.settle_all()
    components.call("one", "stop_component")
    wait_for(lambda: components.call("one", "status")["state"] == "DISABLED")
    goes_on(components, "other")
    components.call("one", "start_component")
    wait_for(lambda: components.call("one", "status")["state"] == "ENABLED")


def test_added_or_ended_component_leaves_its_neighbours_running(records):
    records.create("stays")
    components = Components(records)
    components.settle_all()
    records.create("added")
    components.settle("added")
    goes_on(components, "added")
    goes_on(components, "stays")
    ended(components, records, "added")
    assert records.names() == ["stays"]
    with pytest.raises(PropagationError, match="added does not run"):
        components.call("added", "status")
    goes_on(components, "stays")


def test_recreated_component_runs_with_its_new_arguments(records):
    records.create("again", "fail")
    components = Components(records)
    components.settle_all()
    wait_for(lambda: components.call("again", "status")["state"] == "ABORTED")
    records.create("again", "run")
    components.settle("again")
    goes_on(components, "again")


def test_restarted_process_begins_recorded_components_and_no_ended_ones(records):
    records.create("one")
    records.create("two")
    records.records["ending"] = None
    components = Components(records)
    components.settle_all()
    goes_on(components, "one")
    goes_on(components, "two")
    assert records.names() == ["one", "two"]


def test_recorded_component_begins_at_its_first_call(records):
    components = Components(records)
    records.create("late")
    assert components.call("late", "status")["name"] == "late"
    goes_on(components, "late")


def test_component_whose_thread_ended_begins_again_at_the_next_call(records):
    """It would show its last state for ever."""
    records.create("left")
    components = Components(records)
    components.settle_all()
    components._running["left"].host.end()
    goes_on(components, "left")


def test_component_that_cannot_be_built_reports_why_and_is_retried(records):
    records.create("broken", "cannot be built")
    records.create("well")
    components = Components(records)
    components.settle_all()
    goes_on(components, "well")
    with pytest.raises(PropagationError, match="broken cannot be built: missing"):
        components.call("broken", "status")
    records.create("broken")
    goes_on(components, "broken")


def test_component_that_does_not_end_ends_the_process(records, monkeypatch):
    """Nothing else ends a hanging thread; the next process begins the recorded components."""
    monkeypatch.setattr("actors.hosting.host._JOIN_TIMEOUT_S", 0.05)
    ends: list[bool] = []
    records.create("hangs", "hang")
    components = Components(records, end_process=lambda: ends.append(True))
    components.settle_all()
    wait_for(lambda: components.call("hangs", "status")["steps"] > 0)
    ended(components, records, "hangs")
    assert ends == [True]


def test_call_to_an_ending_component_is_refused_at_once(records, monkeypatch):
    monkeypatch.setattr("actors.hosting.host._JOIN_TIMEOUT_S", 30.0)
    components, ending = is_ending(records)

    def refuses() -> bool:
        try:
            components.call("slow", "status")
        except PropagationError as error:
            return "about to begin or to end" in error.message
        return False

    wait_for(refuses)
    RELEASE.set()
    ending.join(30)
    assert not ending.is_alive()


def test_component_with_hanging_status_takes_no_threads_and_can_be_ended(records):
    """The process has 16 threads for calls, and a call that its caller gave up on is not cancelled."""
    records.create("hangs", "hang in status")
    records.create("well")
    components = Components(records)
    components.settle_all()
    polls = [threading.Thread(target=call_quietly, args=(components, "hangs"), daemon=True) for _ in range(20)]
    for poll in polls:
        poll.start()
    wait_for(lambda: sum(poll.is_alive() for poll in polls) <= 2)
    goes_on(components, "well")
    with pytest.raises(PropagationError, match="hangs does not answer: 2 calls of its status wait"):
        components.call("hangs", "status")
    ended(components, records, "hangs")
    assert records.names() == ["well"]


def call_quietly(components: Components, name: str) -> None:
    with contextlib.suppress(PropagationError):
        components.call(name, "status")


def test_component_is_settled_again_when_asked_while_it_ends(records):
    """The caller does not wait: one thread per attempt would take them all."""
    components, ending = is_ending(records)
    wait_for(lambda: "slow" not in components._running)
    records.create("slow")
    components.settle("slow")  # returns at once
    RELEASE.set()
    ending.join(30)
    assert not ending.is_alive()
    goes_on(components, "slow")


def test_concurrent_reconfigures_save_the_change_that_was_adopted_last(records, tmp_path, monkeypatch):
    """A process that was frozen can get the controller's calls twice, in any order. Otherwise it would restart with an
    edit that the controller considers superseded.
    """
    records.create("one")
    components, adopted, saved = Components(records), [], []
    components.settle("one")
    spec, entered = read(tmp_path, ONE_WAY), threading.Event()

    def adopt(_host: Part, _spec: Any, label: str) -> None:
        if label == "second":
            entered.set()
            time.sleep(0.2)
        adopted.append(label)

    monkeypatch.setattr(Part, "reconfigure", adopt)
    monkeypatch.setattr("actors.records.taken_over.TakenOver.save", lambda _self, _spec, label: saved.append(label))
    second = threading.Thread(target=components.call, args=("one", "reconfigure", spec, "second"))
    second.start()
    assert entered.wait(60.0)
    components.call("one", "reconfigure", spec, "first")
    second.join()
    assert saved[-1] == adopted[-1]
    ended(components, records, "one")


def test_concurrent_stop_and_start_save_the_state_that_holds(records, monkeypatch):
    """Otherwise the component would run now and stay stopped after the next restart of its process, or the reverse."""
    records.create("one")
    components, save, entered = Components(records), Wanted.save, threading.Event()
    components.settle("one")

    def slow(file: Wanted, *, enabled: bool) -> None:
        save(file, enabled=enabled)
        if not enabled:
            entered.set()
            time.sleep(0.2)

    monkeypatch.setattr(Wanted, "save", slow)
    stop = threading.Thread(target=components.call, args=("one", "stop_component"))
    stop.start()
    assert entered.wait(60.0)
    components.call("one", "start_component")
    stop.join()
    assert components.call("one", "status")["enabled"] == Wanted(records.state_dir, "one").is_enabled()
    ended(components, records, "one")


def test_stop_during_recreation_is_refused_or_holds(records):
    """The stop reached the old component, and the new one ran as long as its process did."""
    records.create("one")
    components = Components(records)
    components.settle("one")
    answers: list[Exception | None] = []

    def stop() -> None:
        try:
            answers.append(components.call("one", "stop_component"))
        except PropagationError as error:
            answers.append(error)

    records.create("one")
    stopping, settling = threading.Thread(target=stop), threading.Thread(target=components.settle, args=("one",))
    with components._changing["one"]:  # as if another change is being saved
        stopping.start()
        time.sleep(0.1)
        settling.start()
        settling.join(0.3)
    stopping.join()
    settling.join()
    assert (
        components.call("one", "status")["enabled"]
        == Wanted(records.state_dir, "one").is_enabled()
        == (answers != [None])
    )
    ended(components, records, "one")


@pytest.mark.parametrize("method", ["reconfigure", "stop_component"])
@pytest.mark.parametrize(("say", "times"), [("hang in a function", 1), ("hang", 0), ("run", 0)])
def test_change_ends_the_process_when_a_users_function_exceeds_its_time(records, tmp_path, method, say, times):
    """The step may never end; the request is recorded, and the next process follows it."""
    ends: list[bool] = []
    records.create("one", say)
    components = Components(records, end_process=lambda: ends.append(True))
    components.settle("one")
    components.call("one", method, *((read(tmp_path, ONE_WAY), "label") if method == "reconfigure" else ()))
    assert len(ends) == times
    RELEASE.set()
