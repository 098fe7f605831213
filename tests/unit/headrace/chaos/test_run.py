"""Chaos without a topology: the schedule of a seed, protected servers, invariants, and the verdict."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.chaos import run
from headrace.chaos.faults import ACTIONS, Fault
from headrace.chaos.invariants import Invariants
from headrace.chaos.report import Fired, Report, rendered
from headrace.chaos.run import keep_in_force, own_servers, refuse_others
from headrace.chaos.schedule import EVERY_FAULT, fault_kinds, schedule_of, seconds_of
from headrace.console.output import Output
from headrace.deployment.deployment import Deployment
from headrace.status.overview import Overview
from tests.support.actors.overviews import overview_from
from tests.support.topologies.files import example, read

ACTIONS_SHOWN = 100


# --------------------------------------------------------------------------- schedule


def test_seed_determines_the_faults():
    spec = example("hub_and_spoke")
    drawn = [list(islice(schedule_of(spec, seed, EVERY_FAULT), ACTIONS_SHOWN)) for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [each.number for each in drawn[0]] == list(range(1, ACTIONS_SHOWN + 1))


def test_every_possible_fault_is_drawn_before_any_repeats():
    spec = example("hub_and_spoke")
    possible = {action.name for action in ACTIONS if action.targets(spec)}
    assert possible == {action.name for action in ACTIONS} - {"kill redo"}  # this example has no downstream capture
    first = [each.action for each in islice(schedule_of(spec, 1, EVERY_FAULT), len(possible))]
    assert set(first) == possible
    downstream = example("downstream")
    assert "kill redo" in {each.action for each in islice(schedule_of(downstream, 1, EVERY_FAULT), len(ACTIONS))}


def test_only_requested_kinds_are_drawn_within_their_bounds():
    bounds = {action.name: action for action in ACTIONS}
    for planned in islice(schedule_of(example("n_way"), 3, frozenset({"partition", "disk"})), ACTIONS_SHOWN):
        action = bounds[planned.action]
        assert action.kind in {"partition", "disk"}
        assert planned.target in action.targets(example("n_way"))
        assert action.seconds[0] <= planned.seconds <= action.seconds[1]


def test_servers_that_are_not_embedded_are_never_stopped():
    for name in ("one_way", "two_way", "hub_and_spoke"):
        spec = example(name)
        own = tuple(
            replace(site, database=replace(site.database, kind="postgres", dsn="host=127.0.0.1")) for site in spec.sites
        )
        drawn = {each.action for each in islice(schedule_of(replace(spec, sites=own), 5, EVERY_FAULT), ACTIONS_SHOWN)}
        assert not {"database down", "database frozen"} & drawn


@pytest.mark.parametrize(
    ("text", "words"), [("crash,flood", "flood"), ("", "''"), ("clock", "headrace simulate"), ("none", "none")]
)
def test_unknown_faults_are_refused_with_the_known_ones(text: str, words: str):
    with pytest.raises(ConfigError) as caught:
        fault_kinds(text)
    assert words in f"{caught.value.message} {caught.value.hint}"
    assert "partition" in caught.value.hint


def test_faults_and_durations_are_read():
    assert fault_kinds("all") == EVERY_FAULT
    assert fault_kinds("crash, delay") == {"crash", "delay"}
    assert [seconds_of(text) for text in ("90", "90s", "5m", "1h", "0.5m")] == [90, 90, 300, 3600, 30]


@pytest.mark.parametrize("text", ["", "m", "0", "-3s", "5 d", "nan", "inf", "1e999s"])
def test_invalid_duration_is_refused(text: str):
    with pytest.raises(ConfigError, match="no duration"):
        seconds_of(text)


# --------------------------------------------------------------------------- protected servers


def test_own_servers_are_refused_unless_allowed(tmp_path: Path):
    spec = read(
        tmp_path,
        """
        topology: t
        sites:
          a: {database: {kind: postgres, dsn: "${A_DSN}"}}
          b: {database: {kind: postgres, dsn: "${B_DSN}"}}
          c: {database: {kind: embedded}}
        replicate:
          - {tables: [public.*], from: a, to: [b, c]}
    """,
        {"A_DSN": "host=127.0.0.1,::1 dbname=a", "B_DSN": "host=db.example.com dbname=b"},
    )
    assert list(own_servers(spec)) == ["a", "b"]  # a local address can lead anywhere
    with pytest.raises(ConfigError, match="databases of a, b are servers of your own") as caught:
        refuse_others(Deployment(spec), allow_servers=False)
    assert "--allow-servers" in caught.value.hint
    refuse_others(Deployment(spec), allow_servers=True)
    with pytest.raises(ConfigError, match=r"Ray cluster at 10\.0\.0\.1"):
        refuse_others(Deployment(spec, "10.0.0.1:6379"), allow_servers=True)


# --------------------------------------------------------------------------- invariants


def overview(at_us: int = 0, acknowledged: int = 0, **status: object) -> Overview:
    queue = {
        "name": "queue:q",
        "kind": "queue",
        "state": "ENABLED",
        "subscribers": [{"subscriber": "a", "acknowledged_scn": acknowledged}],
    }
    apply = {"name": "apply:a", "kind": "apply", "state": "ENABLED", **status}
    return overview_from({"at_us": at_us, "components": [apply, queue]})


def test_only_a_watermark_that_decreases_in_one_epoch_is_a_violation():
    found = Invariants()
    for epoch, watermark in ((1, 10), (1, 20), (1, 0), (1, None), (2, 15), (2, 30)):
        found.look(overview(low_watermark_scn=watermark, epoch=epoch))
    assert found.violated == []
    found.look(overview(low_watermark_scn=29, epoch=2))
    assert [(each.invariant, each.problem) for each in found.violated] == [
        ("watermarks", "the low watermark went back from 30 to 29 in epoch 2")
    ]
    assert found.checked["watermarks"] == 5


def test_status_older_than_an_earlier_one_is_ignored():
    """For example after a controller's death: the components are asked directly, then the new controller shows older
    answers.
    """
    found = Invariants()
    for answered_us, watermark in ((100, 10), (200, 20), (150, 15)):
        found.look(overview(low_watermark_scn=watermark, answered_us=answered_us))
    assert found.violated == []
    found.look(overview(low_watermark_scn=19, answered_us=300))
    assert len(found.violated) == 1


def test_newer_watermark_below_an_acknowledgement_is_a_violation():
    found = Invariants()
    found.look(overview(at_us=100, acknowledged=20, low_watermark_scn=19, answered_us=99, epoch=1))
    found.look(overview(at_us=200, acknowledged=20, low_watermark_scn=19, answered_us=99, epoch=1))
    assert found.violated == []
    found.look(overview(at_us=300, acknowledged=15, low_watermark_scn=19, answered_us=101, epoch=2))
    assert [each.problem for each in found.violated] == ["the low watermark is 19, and 20 was acknowledged"]


def test_only_new_errors_and_returned_changes_are_violations():
    found = Invariants()
    found.look(overview(errors=3, counters={"returned_changes": 2}))
    found.look(overview(errors=3, counters={"returned_changes": 0}))  # the process restarted
    assert found.violated == []
    found.during = "4: cut"
    found.look(overview(errors=4, counters={"returned_changes": 1}))
    assert [(each.invariant, each.during) for each in found.violated] == [("errors", "4: cut"), ("home", "4: cut")]


def test_aborted_component_and_refused_destination_are_reported_once():
    found = Invariants()
    for _ in range(3):
        refused = {"name": "queue:a", "subscribers": [{"subscriber": "s", "gone_scn": 7}]}
        stopped = {"name": "apply:a", "state": "ABORTED", "last_error": {"message": "no"}}
        found.look(overview_from({"components": [stopped, refused]}))
    assert [each.problem for each in found.violated] == ["aborted: no", "s is refused: its redo is gone"]


def report(**changes: object) -> Report:
    fired = Fired(number=1, action="cut", target="a", seconds=2.0, evidence="reset", healed_s=3.0)
    table = {
        "equal": True,
        "owner": "p",
        "name": "t",
        "source": "a",
        "destination": "b",
        "destination_owner": "p",
        "destination_name": "t",
        "source_rows": 1,
        "problem": "",
        "source_digest": "",
        "destination_digest": "",
        "destination_rows": 1,
    }
    return replace(Report(topology="t", seed=1, faults=[fired], comparisons=[table]), **changes)


def test_report_is_fine_only_if_faults_fired_and_every_check_passed():
    good = report()
    assert good.is_fine
    never = replace(good.faults[0], evidence="", problem="nothing passed")
    unhealed = replace(good.faults[0], healed_s=None, unhealed="x")
    invariants = Invariants()
    invariants.look(overview(state="ABORTED"))
    different = [{**good.comparisons[0], "equal": False}]
    for bad in (
        report(faults=[never]),
        report(faults=[unhealed]),
        report(violated=invariants.violated),
        report(comparisons=[]),
        report(comparisons=different),
        report(differences=["dbs1: 1 transactions are duplicated"]),
    ):
        assert not bad.is_fine
        assert bad.as_dict()["fine"] is False
        Output().result(rendered(bad))


class _MetLate(Fault):
    """A fault that takes effect only at a later look."""

    def __init__(self, looks: int) -> None:
        self.evidence, self.looks, self.seen = "", looks, 0

    def fire(self) -> None:
        pass

    def watch(self) -> None:
        self.seen += 1
        if self.seen == self.looks:
            self.evidence = "something passed"


def test_fault_stays_in_force_until_it_takes_effect(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "POLL_S", 0.0)
    met = _MetLate(looks=3)
    keep_in_force(met, 0.0, lambda: None)
    assert met.evidence
    assert met.seen == 3


def test_fault_that_never_takes_effect_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "EVIDENCE_TIMEOUT_S", 0.0)
    never = _MetLate(looks=0)
    keep_in_force(never, 0.0, lambda: None)
    assert not never.evidence
