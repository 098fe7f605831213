"""When a stream moves from one phase to the next, for facts that the test sets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from actors.records.requests import Requests
from actors.splitting.facts import required_of
from actors.splitting.phases import MERGE_MIN_S, Splitting
from headrace.base.clock import VirtualClock
from headrace.base.errors import ConfigError, PropagationError
from headrace.lcr.scn import Scn
from headrace.status.captures import CaptureStatus
from headrace.status.queues import QueueSource, QueueStatus, QueueSubscriber
from tests.support.actors.controllers import one_way_spec, with_another_destination
from topology.spec import TopologySpec
from topology.split import MERGING, SPLIT, SPLITTING, Split


@dataclass
class Known:
    """Facts; positions by queue and subscriber."""

    positions: dict[str, dict[str, int]] = field(default_factory=lambda: {"qa": {"p": 40, "p2": 90}, "qa.p": {"p": 35}})
    away: set[str] = field(default_factory=set)
    held_alone_s: float = 0.0
    connected: bool = True
    quiet: bool = True
    seconds_per_scn: float | None = 1.0
    required: int | None = 30
    stopped: set[str] = field(default_factory=set)
    unsaid: set[str] = field(default_factory=set)

    def is_quiet(self) -> bool:
        return self.quiet

    def is_current(self, component: str) -> bool:
        return component not in self.away

    def queue(self, name: str) -> QueueStatus | None:
        if f"queue:{name}" in self.away:
            return None
        subscribers = tuple(
            QueueSubscriber(
                subscriber=each,
                source="a",
                acknowledged_scn=scn,
                connected=self.connected,
                held_alone_s=self.held_alone_s if each == "p" else 0.0,
            )
            for each, scn in self.positions[name].items()
        )
        return QueueStatus(name=f"queue:{name}", subscribers=subscribers, sources={"a": QueueSource(position_scn=100)})

    def is_stopped(self, component: str) -> bool | None:
        return None if component in self.unsaid else component in self.stopped

    def required_scn(self, capture: str) -> int | None:
        return None if f"capture:{capture}" in self.away else self.required

    def behind_s(self, source: str, scn: Scn, other: Scn) -> float | None:
        return None if self.seconds_per_scn is None else self.seconds_per_scn * (other - scn)


@pytest.fixture
def spec(tmp_path) -> TopologySpec:
    """From site a to b by p, and to c by p2: two subscribers of one queue."""
    return with_another_destination(one_way_spec(tmp_path))


def recorded(phase: str, *, merges: bool = True) -> tuple[Split, ...]:
    return (Split(propagation="p", queue="qa", to_queue="qb", phase=phase, merges=merges, by="threshold", since_us=1),)


def phases(splitting: Splitting, facts: Known) -> list[str] | None:
    """Take the next wanted phases, and return them."""
    found = splitting.next(facts, 5)
    if found is None:
        return None
    splitting.take(found)
    return [each.phase for each in found]


def test_stream_split_by_operator_stays_split_until_merged_by_hand(spec):
    splitting, facts = Splitting(spec, clock=VirtualClock()), Known()
    assert phases(splitting, facts) is None
    splitting.ask("p", split=True)
    assert phases(splitting, facts) == [SPLITTING]
    assert phases(splitting, facts) == [SPLIT]
    assert splitting.splits[0] == Split(
        propagation="p", queue="qa", to_queue="qb", phase=SPLIT, merges=False, by="operator", since_us=5
    )
    facts.positions = {"qa": {"p2": 90}, "qa.p": {"p": 90}}
    assert phases(splitting, facts) is None
    splitting.ask("p", split=False)
    assert phases(splitting, facts) == [SPLIT]
    assert phases(splitting, facts) == [MERGING]
    facts.positions["qa"]["p"] = 90
    assert phases(splitting, facts) == []
    assert splitting.spec == spec


@pytest.mark.parametrize("away", ["site:a", "queue:qa.p"])
def test_split_waits_for_the_clone_queue_and_its_redo(spec, away):
    splitting, facts = Splitting(spec, recorded(SPLITTING), VirtualClock()), Known(away={away})
    assert phases(splitting, facts) is None
    facts.away.clear()
    assert phases(splitting, facts) == [SPLIT]


def test_receiver_keeps_downstream_redo_for_a_split(spec):
    captures = (replace(spec.captures[0], source="b"),)
    spec = replace(
        spec, captures=captures, propagations=tuple(replace(each, sources=("b",)) for each in spec.propagations)
    )
    splitting, facts = Splitting(spec, recorded(SPLITTING), VirtualClock()), Known(away={"redo:b@a"})
    assert phases(splitting, facts) is None
    facts.away.clear()
    assert phases(splitting, facts) == [SPLIT]


def test_nothing_begins_while_a_component_lacks_its_part_of_the_last_edit(spec):
    splitting, facts = Splitting(spec, recorded(SPLITTING), VirtualClock()), Known(quiet=False)
    assert phases(splitting, facts) is None


def test_stream_over_its_threshold_is_split_and_will_be_merged(spec):
    splitting, facts = Splitting(spec, clock=VirtualClock()), Known(held_alone_s=1799)
    assert phases(splitting, facts) is None
    facts.held_alone_s = 1800
    assert phases(splitting, facts) == [SPLITTING]
    assert (splitting.splits[0].by, splitting.splits[0].merges) == ("threshold", True)
    never = replace(spec, propagations=tuple(replace(each, split_after_s=None) for each in spec.propagations))
    assert phases(Splitting(never, clock=VirtualClock()), facts) is None


def test_stream_is_not_split_while_its_capture_process_is_stopped(spec):
    """Its clone would run, and deliver what the stop holds back."""
    splitting, facts = Splitting(spec, clock=VirtualClock()), Known(held_alone_s=1800.0, stopped={"capture:c"})
    assert phases(splitting, facts) is None
    facts.stopped = set()
    assert phases(splitting, facts) == [SPLITTING]


def test_stream_is_not_merged_while_its_own_capture_process_is_stopped(spec):
    """A merge would deliver what the stop holds back."""
    splitting, facts = (
        Splitting(spec, recorded(SPLIT), VirtualClock()),
        Known(positions={"qa": {"p2": 90}, "qa.p": {"p": 90}}, stopped={"capture:c.p"}),
    )
    assert phases(splitting, facts) is None
    facts.stopped = set()
    assert phases(splitting, facts) == [MERGING]
    facts.positions["qa"]["p"], facts.stopped = 90, {"capture:c.p"}
    assert phases(splitting, facts) == [SPLIT]
    facts.stopped = {"capture:c"}
    assert phases(splitting, facts) == [MERGING]
    assert phases(splitting, facts) == []


@pytest.mark.parametrize("component", ["queue:qa", "capture:c"])
def test_split_does_not_complete_while_a_component_is_stopped(spec, component):
    splitting, facts = Splitting(spec, recorded(SPLITTING), VirtualClock()), Known(stopped={component})
    assert phases(splitting, facts) is None
    assert splitting.described(facts)[0].stopped == (component,)
    facts.stopped, facts.unsaid = set(), {component}
    assert phases(splitting, facts) is None
    facts.unsaid = set()
    assert phases(splitting, facts) == [SPLIT]
    assert splitting.described(facts)[0].stopped == ()


def test_nothing_changes_while_a_site_does_not_report_stops(spec):
    """A silent component may be stopped: the stop would end with it, or its clone would run."""
    facts = Known(held_alone_s=1800.0, unsaid={"capture:c"})
    assert phases(Splitting(spec, clock=VirtualClock()), facts) is None
    clock = VirtualClock()
    merging, facts = (
        Splitting(spec, recorded(MERGING), clock),
        Known(positions={"qa": {"p": 90, "p2": 95}, "qa.p": {"p": 92}}, unsaid={"capture:c.p"}),
    )
    assert phases(merging, facts) is None
    clock.advance(MERGE_MIN_S + 1)
    assert phases(merging, facts) == [SPLIT], "the original queue must not wait for long"
    assert phases(merging, facts) is None
    facts.unsaid = set()
    assert phases(merging, facts) == [MERGING]


def test_redo_is_required_from_the_durable_scn_the_capture_process_heard():
    status = CaptureStatus(name="capture:c")
    assert required_of(status) is None
    assert required_of(replace(status, required_checkpoint_scn=900)) is None
    assert required_of(replace(status, required_checkpoint_scn=0, applied_scn=0)) == 0
    assert required_of(replace(status, required_checkpoint_scn=900, applied_scn=1000)) == 1000


@pytest.mark.parametrize(
    ("change", "is_close"),
    [
        ({}, True),
        ({"connected": False}, False),
        ({"seconds_per_scn": 7.0}, False),
        ({"seconds_per_scn": None}, False),
        ({"away": {"queue:qa"}}, False),
    ],
)
def test_stream_is_merged_when_it_is_connected_and_close(spec, change, is_close):
    splitting = Splitting(spec, recorded(SPLIT), VirtualClock())
    facts = replace(Known(positions={"qa": {"p2": 90}, "qa.p": {"p": 80}}), **change)  # 10 s behind, or 70 s
    assert phases(splitting, facts) == ([MERGING] if is_close else None)


def test_merge_completes_when_the_queue_holds_all_the_destination_lacks(spec):
    splitting, facts = (
        Splitting(spec, recorded(MERGING), VirtualClock()),
        Known(positions={"qa": {"p": 90, "p2": 95}, "qa.p": {"p": 89}}),
    )
    assert phases(splitting, facts) is None
    facts.positions["qa.p"]["p"] = 90
    for away in ("queue:qa", "capture:c"):
        facts.away = {away}
        assert phases(splitting, facts) is None
    # redo is no longer kept from 90 on: the most advanced subscriber stood there, and lost commits
    facts.away, facts.required = set(), 91
    assert phases(splitting, facts) is None
    facts.required = 90
    assert phases(splitting, facts) == []


def test_overlong_merge_is_abandoned_also_by_a_restarted_controller(spec):
    clock = VirtualClock()
    splitting, facts = (
        Splitting(spec, recorded(MERGING), clock),
        Known(positions={"qa": {"p": 90, "p2": 95}, "qa.p": {"p": 50}}),
    )
    assert phases(splitting, facts) is None
    clock.advance(MERGE_MIN_S + 1)
    assert phases(splitting, facts) == [SPLIT]


def test_split_request_during_a_merge_keeps_the_stream_split(spec):
    splitting, facts = Splitting(spec, recorded(MERGING), VirtualClock()), Known()
    splitting.ask("p", split=True)
    assert phases(splitting, facts) == [MERGING]
    assert phases(splitting, facts) == [SPLIT]
    assert not splitting.splits[0].merges


def test_impossible_requests_are_refused_at_once(spec, tmp_path):
    splitting = Splitting(spec, recorded(SPLIT), VirtualClock())
    with pytest.raises(ConfigError, match="no propagation 'p3'"):
        splitting.ask("p3", split=True)
    with pytest.raises(ConfigError, match="p2 is not split off"):
        splitting.ask("p2", split=False)
    with pytest.raises(ConfigError, match="nothing else reads qa"):
        Splitting(one_way_spec(tmp_path), clock=VirtualClock()).ask("p", split=True)


def test_edit_may_remove_a_split_stream_but_not_only_its_queue(spec, tmp_path):
    other = Splitting(
        replace(spec, propagations=tuple(replace(each, from_queue="qb") for each in spec.propagations)), recorded(SPLIT)
    )
    assert [finding.problem for finding in other.misfits] == [
        "is split off from queue qa, and in this file it reads qb"
    ]
    assert other.splits == ()
    without = replace(spec, propagations=spec.propagations[1:])
    assert Splitting(without, recorded(SPLIT)).misfits == ()
    assert Splitting(without, recorded(SPLIT)).spec == without
    alone = Splitting(one_way_spec(tmp_path), recorded(SPLIT))
    assert (alone.misfits, len(alone.splits)) == ((), 1)


def test_restarted_controller_executes_a_pending_request(spec, tmp_path):
    file = tmp_path / "split_requests.json"
    Splitting(spec, clock=VirtualClock(), requests=Requests(file)).ask("p", split=True)
    later = Splitting(spec, clock=VirtualClock(), requests=Requests(file))
    found = later.next(Known(), 5)
    assert found is not None
    assert (found[0].phase, found[0].by) == (SPLITTING, "operator")
    # It died before it recorded that.
    again = Splitting(spec, clock=VirtualClock(), requests=Requests(file))
    assert phases(again, Known()) == [SPLITTING]
    assert Requests(file).names() == ()


def test_merge_request_is_not_forgotten_before_it_is_recorded(spec, tmp_path):
    file, by_hand = tmp_path / "split_requests.json", recorded(SPLIT, merges=False)
    Splitting(spec, by_hand, VirtualClock(), Requests(file)).ask("p", split=False)
    far = Known(positions={"qa": {"p2": 90}, "qa.p": {"p": 35}}, seconds_per_scn=None)
    assert Splitting(spec, by_hand, VirtualClock(), Requests(file)).next(far, 5) is not None
    later = Splitting(spec, by_hand, VirtualClock(), Requests(file))
    assert phases(later, far) == [SPLIT]
    assert later.splits[0].merges
    assert Requests(file).names() == ()


def test_pending_split_request_can_be_withdrawn(spec):
    splitting, facts = Splitting(spec, clock=VirtualClock()), Known(quiet=False)
    splitting.ask("p", split=True)
    splitting.ask("p", split=False)
    facts.quiet = True
    assert phases(splitting, facts) is None
    with pytest.raises(ConfigError, match="p is not split off"):
        splitting.ask("p", split=False)


def test_split_request_withdrawn_while_it_is_recorded_is_merged_again(spec):
    """Between the two, the controller asks the site and writes; the operator was told that nothing is split off."""
    splitting, facts = Splitting(spec, clock=VirtualClock()), Known()
    splitting.ask("p", split=True)
    found = splitting.next(facts, 5)
    assert found is not None
    splitting.ask("p", split=False)
    splitting.take(found)
    facts.positions = {"qa": {"p2": 90, "p": 90}, "qa.p": {"p": 90}}
    while splitting.splits:
        assert phases(splitting, facts) is not None, "the stream must not stay split off"
    assert splitting._requests.names() == ()


def test_pending_split_is_shown_with_its_reason(spec):
    """A stop can last for days: the operator must see why nothing happens."""
    splitting, facts = Splitting(spec, clock=VirtualClock()), Known(stopped={"capture:c"})
    assert splitting.described(facts) == ()
    splitting.ask("p", split=True)
    assert phases(splitting, facts) is None
    (shown,) = splitting.described(facts)
    assert (shown.propagation, shown.phase, shown.stopped, shown.hindrance) == (
        "p",
        "together",
        ("capture:c",),
        "",
    )
    facts.away = {"queue:qa"}
    assert phases(splitting, facts) is None
    assert splitting.described(facts)[0].stopped == (), "stops are unknown while the queue is away"
    splitting.ask("p", split=False)
    assert splitting.described(facts) == ()


def test_stream_due_for_merge_stays_split_at_the_operators_request(spec):
    """For example before maintenance, even if the stream could be merged at that moment."""
    splitting, facts = (
        Splitting(spec, recorded(MERGING), VirtualClock()),
        Known(positions={"qa": {"p2": 90, "p": 90}, "qa.p": {"p": 90}}),
    )
    splitting.ask("p", split=True)
    assert phases(splitting, facts) == [MERGING]
    assert phases(splitting, facts) == [SPLIT]
    facts.positions = {"qa": {"p2": 90}, "qa.p": {"p": 90}}
    assert phases(splitting, facts) is None
    assert not splitting.splits[0].merges


@pytest.mark.parametrize("asked", [True, False])
def test_request_made_as_the_previous_one_completes_is_kept(spec, monkeypatch, asked):
    requests = Requests()
    splitting = Splitting(spec, recorded(SPLIT, merges=asked), VirtualClock(), requests)
    requests.put("p", split=asked)
    found = splitting.next(Known(), 5)
    assert found is not None
    is_done = Splitting._is_done

    def asks(each: Splitting, name: str, **arguments: bool) -> bool:
        answer = is_done(each, name, **arguments)
        each.ask("p", split=not asked)
        return answer

    monkeypatch.setattr(Splitting, "_is_done", asks)
    splitting.take(found)
    assert requests.get("p") is (not asked)


def test_request_for_a_removed_propagation_is_forgotten(spec, tmp_path):
    file = tmp_path / "split_requests.json"
    Requests(file).put("gone", split=True)
    Requests(file).put("p", split=True)
    splitting = Splitting(spec, clock=VirtualClock(), requests=Requests(file))
    assert set(Requests(file).names()) == {"gone", "p"}, "the file can still be refused, and the previous one return"
    splitting.in_force()
    assert Requests(file).names() == ("p",)


def test_request_that_cannot_be_stored_is_refused(spec, tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    damaged = tmp_path / "damaged.json"
    damaged.write_text("[1")
    assert Requests(damaged).names() == ()
    requests = Requests()
    requests._file = in_the_way / "split_requests.json"
    with pytest.raises(PropagationError, match="was not saved"):
        requests.put("p", split=True)
    assert requests.get("p") is None


def test_request_waits_until_the_queue_answers(spec):
    """At an absent site the clone could not begin, and would hold up the streams of other sites."""
    splitting, facts = Splitting(spec, clock=VirtualClock()), Known(away={"queue:qa"})
    splitting.ask("p", split=True)
    assert phases(splitting, facts) is None
    facts.away.clear()
    assert phases(splitting, facts) == [SPLITTING]
