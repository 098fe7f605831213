"""`headrace copy`: which apply processes are asked, and when the copy has succeeded or failed."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import ApplyError, ConfigError
from headrace.commands import table_copies
from headrace.commands.table_copies import copied_line, copy_again, different_tables, wait_copied
from headrace.status.overview import Overview
from tests.support.actors.overviews import overview_from

SPEC: Any = SimpleNamespace(applies=(SimpleNamespace(name="to_b", site="b"), SimpleNamespace(name="to_c", site="c")))


T = ("public", "t")


class Actors:
    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked = answers, list[Any]()

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        self.asked.append((name, method, *arguments))
        answer = self.answers[name.removeprefix("apply:")]
        if isinstance(answer, Exception):
            raise answer
        return answer


def table(state: str = "DONE", scn: int = 100, **more: Any) -> dict[str, Any]:
    return {"owner": "public", "name": "t", "state": state, "instantiation_scn": scn, "problem": "", "rows": 1, **more}


def test_only_apply_processes_that_replicate_the_table_copy_it_again():
    actors: Any = Actors(to_b=[table()], to_c=ApplyError("public.t: apply process to_c does not replicate it"))
    assert [each["apply"] for each in copy_again(SPEC, actors, {T: []})] == ["to_b"]
    actors = Actors(to_b=[table()], to_c=[table()])
    copy_again(SPEC, actors, {T: ["to_c"]})
    assert [name for name, *_ in actors.asked] == ["apply:to_c"]


def test_refusal_of_one_destination_is_reported_although_another_begins():
    actors: Any = Actors(to_b=[table()], to_c=ApplyError("public.t: not emptied", hint="correct the rows"))
    with pytest.raises(ApplyError, match=r"not emptied \(begun: public\.t at b\)"):
        copy_again(SPEC, actors, {T: []})


def test_unknown_table_or_apply_process_is_wrong_use():
    nobody = ApplyError("public.t: apply process x does not replicate it")
    with pytest.raises(ConfigError, match=r"no apply process replicates public\.t"):
        copy_again(SPEC, Actors(to_b=nobody, to_c=nobody), {T: []})
    with pytest.raises(ConfigError, match="no apply process 'to_x'"):
        copy_again(SPEC, Actors(), {T: ["to_x"]})


def test_error_transactions_made_obsolete_by_this_copy_are_counted():
    before = copy_again(SPEC, Actors(to_b=[table(obsolete_errors=7)], to_c=[]), {T: ["to_b"]})
    assert copied_line(before[0]) == "public.t at b: done, 1 rows"
    copied = {"name": "apply:to_b", "instantiation": [table(scn=200, obsolete_errors=2)]}
    looks = overview_from({"components": [copied]})
    after = wait_copied(lambda: looks, before, progress=lambda text: None)
    assert (
        copied_line(after[0])
        == "public.t at b: done, 1 rows; 2 error transactions were made obsolete by the copy and deleted"
    )
    assert copied_line({**after[0], "obsolete_errors": 1}).endswith(
        "; 1 error transaction was made obsolete by the copy and deleted"
    )


def test_each_table_is_followed_by_its_own_scn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_copies, "POLL_S", 0.0)
    begun = [
        {"apply": "to_b", "destination": "b", **table(scn=100)},
        {"apply": "to_b", "destination": "b", **table(scn=300, name="u")},
    ]
    looks = iter([[table(scn=200), table(scn=300, name="u")], [table(scn=200), table(scn=400, name="u")]])
    found = wait_copied(
        lambda: overview_from({"components": [{"name": "apply:to_b", "instantiation": next(looks)}]}),
        begun,
        progress=lambda text: None,
    )
    assert [each["instantiation_scn"] for each in found] == [200, 400]
    assert next(looks, None) is None


def test_only_tables_that_differ_are_copied():
    def compared(name: str, apply: str, *, equal: bool = False, problem: str = "") -> dict[str, Any]:
        return {"owner": "public", "name": name, "apply": apply, "equal": equal, "problem": problem}

    found = different_tables(
        [
            compared("t", "to_b"),
            compared("t", "to_c", equal=True),
            compared("u", "to_b", problem="a value is too large"),
            compared("v", "to_b"),
            compared("v", "to_c"),
        ]
    )
    assert found == {("public", "t"): ["to_b"], ("public", "v"): ["to_b", "to_c"]}
    actors: Any = Actors(to_b=[table()], to_c=[table()])
    copy_again(SPEC, actors, found)
    assert [(name, tables) for name, _, tables in actors.asked] == [
        ("apply:to_b", (("public", "t"),)),
        ("apply:to_b", (("public", "v"),)),
        ("apply:to_c", (("public", "v"),)),
    ]


def test_copy_is_complete_when_the_table_joined_with_a_later_scn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_copies, "POLL_S", 0.0)
    states = iter([table(), table("COPYING", 150), table("COPIED", 150), table("JOINING", 150), table("DONE", 150)])
    found = wait_copied(
        lambda: overview_from({"components": [{"name": "apply:to_b", "instantiation": [next(states)]}]}),
        [{"apply": "to_b", "destination": "b", **table()}],
        progress=lambda text: None,
    )
    assert [(each["state"], each["instantiation_scn"]) for each in found] == [("DONE", 150)]
    assert next(states, None) is None


def test_earlier_failure_is_not_taken_for_one_of_this_copy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_copies, "POLL_S", 0.0)
    states = iter([table("FAILED", problem="of before"), table("DONE", 150)])
    begun = [{"apply": "to_b", "destination": "b", **table("FAILED")}]

    def overview() -> Overview:
        return overview_from({"components": [{"name": "apply:to_b", "instantiation": [next(states)]}]})

    assert wait_copied(overview, begun, progress=lambda text: None)[0]["state"] == "DONE"
    monkeypatch.setattr(table_copies, "FAILED_AFTER_S", -1.0)
    states = iter([table("FAILED", problem="a row was refused")])
    with pytest.raises(ApplyError, match="a row was refused"):
        wait_copied(overview, begun, progress=lambda text: None)


@pytest.mark.parametrize(("state", "error"), [("ABORTED", {"message": "no space left"}), ("DISABLED", None)])
def test_stopped_or_aborted_apply_process_ends_the_wait(state: str, error: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_copies, "POLL_S", 0.0)
    component = {"name": "apply:to_b", "state": state, "last_error": error, "instantiation": [table("COPYING", 150)]}
    looks = []

    def overview() -> Overview:
        looks.append(1)
        if len(looks) == 3:  # it may only just have begun
            monkeypatch.setattr(table_copies, "FAILED_AFTER_S", -1.0)
        return overview_from({"components": [component]})

    with pytest.raises(ApplyError, match=f"apply:to_b is {state}") as stopped:
        wait_copied(overview, [{"apply": "to_b", "destination": "b", **table()}], progress=lambda text: None)
    assert len(looks) == 3
    assert ("no space left" in stopped.value.message) == (error is not None)


def test_copy_without_progress_is_not_awaited_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_copies, "POLL_S", 0.0)
    monkeypatch.setattr(table_copies, "STALLED_S", 100.0)
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    done = 0

    def overview() -> Overview:
        nonlocal done
        clock[0] += 90.0
        done = min(done + 1, 5)
        copying = table("COPYING", 150, bytes_done=done, bytes_total=9)
        return overview_from({"components": [{"name": "apply:to_b", "state": "IDLE", "instantiation": [copying]}]})

    with pytest.raises(ApplyError, match="nothing has moved"):
        wait_copied(overview, [{"apply": "to_b", "destination": "b", **table()}], progress=lambda text: None)
    assert clock[0] == 7 * 90.0
