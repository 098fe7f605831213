"""`headrace conflicts`: the printed history."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from headrace.commands.conflicts import list_conflicts
from headrace.console.output import Output
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.ports import ConflictRecord

RECORD = ConflictRecord(
    apply="a1",
    source="dbs1",
    transaction_id=77,
    commit_scn=150,
    position=2,
    owner="hr",
    name="t",
    command="UPDATE",
    kind="update_differs",
    columns=("at", "v"),
    handler="maximum(at)",
    outcome="LCR APPLIED",
    applied_columns=("v", "at"),
    old=("id=1", "v=a"),
    new=("id=1", "v=b"),
    current=("id=1", "v=here"),
)
FAILED = ConflictRecord(
    apply="a1",
    source="dbs1",
    transaction_id=78,
    commit_scn=250,
    position=0,
    owner="hr",
    name="t",
    command="DELETE",
    kind="delete_missing",
    outcome="ERROR QUEUE",
    old=("id=2",),
    error_number=5,
)


class Queue:
    """A destination in memory instead of the topology's."""

    def __init__(self) -> None:
        self.destination = MemoryDestination()
        self.destination.store.clock.time_us = lambda: 1_700_000_000_000_000  # type: ignore[method-assign]
        epoch = self.destination.raise_epoch("t", "a1").epoch
        session = self.destination.open_session("t", "a1", server=0, epoch=epoch, tag=b"\0")
        session.begin()
        session.record_conflicts([RECORD, FAILED], count_max=10, age_max_s=1e12)
        session.commit((), 0)

    def conflicts(self, apply: str, last: int) -> tuple[ConflictRecord, ...]:
        return self.destination.conflicts("t", apply or None, last=last)


def test_list_shows_the_winner_and_the_values(capsys):
    assert list_conflicts(Queue(), Output(), "", 10) == 0
    shown = capsys.readouterr().out
    assert (
        "1 a1 from dbs1: update_differs in hr.t, 2023-11-14T22:13:20+00:00: LCR APPLIED by maximum(at); transaction 77"
        in shown
    )
    for line in (
        "conflicting: at, v",
        "written: v, at",
        "LCR old: id=1, v=a",
        "LCR new: id=1, v=b",
        "row: id=1, v=here",
    ):
        assert f"      {line}" in shown
    assert "2 a1 from dbs1: delete_missing in hr.t, 2023-11-14T22:13:20+00:00: ERROR QUEUE 5; transaction 78" in shown
    assert shown.rstrip().endswith("2 conflicts")


def test_list_is_json_on_request(capsys):
    assert list_conflicts(Queue(), Output(as_json=True), "a1", 1) == 0
    (found,) = json.loads(capsys.readouterr().out)["conflicts"]
    assert (found["number"], found["outcome"], found["error_number"], found["old"]) == (2, "ERROR QUEUE", 5, ["id=2"])


def test_newest_conflicts_of_all_apply_processes_are_listed_in_order(capsys):
    ends = {"a1": (1, 4, 5), "a2": (2, 3, 6)}
    found = [
        replace(RECORD, apply=apply, number=number, resolved_us=us)
        for apply, times in ends.items()
        for number, us in enumerate(times, 1)
    ]
    queue: Any = SimpleNamespace(
        conflicts=lambda _, last: [
            each for apply in ends for each in [one for one in found if one.apply == apply][-last:]
        ]
    )
    assert list_conflicts(queue, Output(as_json=True), "", 2) == 0
    told = json.loads(capsys.readouterr().out)["conflicts"]
    assert [(each["apply"], each["number"]) for each in told] == [("a1", 3), ("a2", 3)]
    list_conflicts(queue, Output(as_json=True), "", 100)
    assert [each["resolved_us"] for each in json.loads(capsys.readouterr().out)["conflicts"]] == [1, 2, 3, 4, 5, 6]
