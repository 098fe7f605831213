"""Tables are copied one by one, including tables that cannot be copied and tables copied while others are applied.

Longer than 500 lines: all tests share the source, the destination and the copying between them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.base.errors import ApplyError, DatabaseError, DatabaseUnavailable, FencedError
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import destination_column
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from spark_apply.copy import instantiation as module
from spark_apply.copy.instantiation import TableInstantiation
from spark_apply.copy.pieces import rounds
from spark_apply.copy.records import standing
from spark_apply.copy.records.tables import TableProgress
from spark_apply.copy.ways.obstacles import refused
from tests.support.copies.copying_threads import FreezingTask
from tests.support.copies.table_copies import APPLY, TOPOLOGY, World
from tests.support.session.noted import noted


class Joins:
    """Replaces `JoinCalls`: records the calls in order."""

    def __init__(self, world: World) -> None:
        self.world, self.asked, self.is_joined = world, list[Any](), True
        self.emptied: dict[TableName, Scn] = {}
        self.truncated_parts: dict[tuple[str, str], Scn] = {}

    def emptied_scn(self, table) -> Scn | None:
        return self.emptied.get(table)

    def hold_now(self) -> None:
        self.asked.append(("hold now", self.world.source.opened))

    def hold(self, scn) -> None:
        self.asked.append(("hold", scn))

    def leave_out(self, tables, parts=()) -> bool:
        self.asked.append(("leave out", set(tables)))
        # If the driver dies now, the next one must find these tables as to be copied again: their rows are excluded.
        assert {each.state for each in self.world.recorded().values() if (each.owner, each.name) in tables} == {
            "COPYING"
        }
        return True

    def join(self, tables) -> bool:
        self.asked.append(("join", {each.name for each in tables}))
        destination = MemoryDestination(store=self.world.store)
        progress = destination.progress(TOPOLOGY, APPLY)
        destination.join_tables(TOPOLOGY, APPLY, progress.epoch, tables, through=progress.low_watermark)
        return True


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_RETRY_S", "_IDLE_S", "_LOOK_AGAIN_S"):
        monkeypatch.setattr(module, name, 0.01)


def beside(world: World, until: Callable[[], bool], *, copying: TableInstantiation | None = None) -> Joins:
    joins, looks = Joins(world), 0

    def should_end() -> bool:
        nonlocal looks
        looks += 1
        assert looks < 3000, world.states
        return until()

    world.should_end = should_end
    (copying or world.copying()).run_beside(joins)
    return joins


def test_tables_are_copied_and_verified_before_anything_is_applied():
    world = World("a", "b")
    world.copying().run_first()
    assert {name: each.state for name, each in world.recorded().items()} == {"a": "DONE", "b": "DONE"}
    assert world.recorded()["a"].row_count == 20
    assert world.source.opened == 1
    world.assert_same("a", "b")


def test_table_with_a_missing_column_is_refused_and_others_are_copied():
    world = World("a")
    world.create("nothing", columns=())
    copying = world.copying()
    copying.run_first()
    found = world.recorded()
    assert (found["a"].state, found["nothing"].state) == ("DONE", "FAILED")
    assert "no column" in found["nothing"].problem
    starts, hold_scn = copying.starts()
    assert starts["public", "nothing"].scn is None
    assert starts["public", "a"].scn == found["a"].scn
    assert hold_scn is None


def with_missing_table() -> World:
    """`a` is copied; the source also has a table `late` that the destination lacks."""
    world = World("a")
    world.copying().run_first()
    world.create("late")
    world.store.drop_table("public", "late")
    return world


@pytest.mark.parametrize("error", [DatabaseError("permission denied"), DatabaseUnavailable("it stays locked")])
def test_unreadable_table_does_not_block_other_tables(error: Exception):
    world = World("a", "sick", "z")
    world.broken["sick"] = error
    world.copying().run_first()
    found = world.recorded()
    assert (found["a"].state, found["z"].state) == ("DONE", "DONE")
    assert found["sick"].state in {"FAILED", "COPYING"}
    assert error.args[0] in found["sick"].problem
    world.assert_same("a", "z")


def test_corrected_table_is_checked_immediately_on_request(monkeypatch: pytest.MonkeyPatch):
    world = with_missing_table()
    monkeypatch.setattr(module, "_LOOK_AGAIN_S", 3600.0)
    copying = world.copying()
    copying.run_first()
    answers: list[bool] = []

    def operator() -> None:
        while world.recorded().get("late") is None or world.recorded()["late"].state != "FAILED":
            time.sleep(0.01)
        world.store.create_table("public", "late", [destination_column(column) for column in ("id", "v")], key=["id"])
        answers.append(copying.look_now(30.0))

    asking = threading.Thread(target=operator)
    asking.start()
    deadline = time.monotonic() + 60
    copying.should_end = world.should_end = lambda: (
        time.monotonic() > deadline or (bool(answers) and world.recorded()["late"].state == "DONE")
    )
    copying.run_beside(Joins(world))
    asking.join()
    assert answers == [True]
    world.assert_same("late")


def test_missing_destination_table_is_copied_beside_when_created():
    world = with_missing_table()
    copying = world.copying()
    copying.run_first()  # returns at once: a is being applied
    assert world.source.opened == 1
    columns = [destination_column(column) for column in ("id", "v")]
    looked = 0

    def until() -> bool:
        nonlocal looked
        looked += 1
        if looked == 20:
            assert world.recorded()["late"].state == "FAILED"
            assert world.source.opened == 1, "a snapshot is taken only to copy, not to check"
            world.store.create_table("public", "late", columns, key=["id"])
        return world.recorded().get("late") is not None and world.recorded()["late"].state == "DONE"

    joins = beside(world, until, copying=copying)
    world.assert_same("late")
    # Held before the snapshot is taken, then at the snapshot's SCN until the table has joined.
    held = [each for each in joins.asked if each != ("hold", None)]
    assert held == [("hold now", 1), ("hold", world.recorded()["late"].scn), ("join", {"late"})]
    assert joins.asked[-1] == ("hold", None)


@pytest.mark.parametrize("is_beside", [False, True])
def test_table_rewritten_during_its_copy_is_copied_again_completely(is_beside: bool):
    world = World("a", "b")
    copying = world.copying()
    rewritten: list[Any] = []

    def rewrite(piece: Any) -> None:
        if piece.table.name == "b" and not piece.is_digest and len(rewritten) < 2:
            rewritten.append(piece.place)
            if len(rewritten) == 2:
                world.source.rewrite("public.b")

    world.workers.before_piece = rewrite
    if is_beside:
        beside(world, lambda: {each.state for each in world.recorded().values()} == {"DONE"}, copying=copying)
    else:
        copying.run_first()
    assert len(rewritten) == 2
    assert {each.state for each in world.recorded().values()} == {"DONE"}
    assert world.recorded()["b"].scn >= world.recorded()["a"].scn
    world.assert_same("a", "b")


def rewritten_always(world: World) -> tuple[TableInstantiation, list[str]]:
    """The source always rewrites table b before one of its pieces is read, until "end" is in the list."""
    copying, rewritten = world.copying(), []

    def rewrite(piece: Any) -> None:
        if piece.table.name == "b" and not piece.is_digest and "end" not in rewritten:
            rewritten.append(piece.place)
            world.source.rewrite("public.b")

    world.workers.before_piece = rewrite
    return copying, rewritten


def test_constantly_rewritten_table_fails_alone_until_rewriting_ends(monkeypatch: pytest.MonkeyPatch):
    world, told = World("a", "b"), list[Any]()
    monkeypatch.setattr(world, "_moved", told.append)
    copying, rewritten = rewritten_always(world)
    copying.run_first()
    assert world.recorded()["a"].state == "DONE"
    assert "was rewritten" in world.recorded()["b"].problem
    failed_at: list[int] = []

    def until() -> bool:
        record = world.recorded()["b"]
        if record.state == "FAILED" and not failed_at:
            failed_at.append(world.source.opened)
        if failed_at and world.source.opened >= failed_at[0] + 3:  # the copy is retried
            rewritten.append("end")
        return bool(record.state == "DONE")

    joins = beside(world, until, copying=copying)
    assert failed_at == [5]
    problem = next(each.problem for each in told if each.name == "b" and each.state == "FAILED")
    assert "5 times in a row" in problem
    assert "do not run such statements there until it is copied" in problem
    world.assert_same("a", "b")
    assert joins.asked[-1] == ("hold", None)


def test_truncate_in_the_log_ends_the_copy_of_a_constantly_truncated_table(monkeypatch: pytest.MonkeyPatch):
    """Every copy finds the table rewritten. Copied rows are removed; from the TRUNCATE on the log has everything."""
    world = World("a", "b")
    copying, _ = rewritten_always(world)
    copying.run_first()
    joins = Joins(world)
    snapshots: list[Scn] = []
    hold = joins.hold

    def held(scn: Scn | None) -> None:
        hold(scn)
        if scn is not None:
            snapshots.append(scn)
            joins.emptied[TableName("public", "b")] = Scn(scn + 1)

    monkeypatch.setattr(joins, "hold", held)
    world.store.insert("public", "b", [(b"of the copy", None)])
    joins.emptied[TableName("public", "b")] = Scn(1)  # older than every snapshot: the queue may lack later changes
    looks = 0

    def should_end() -> bool:
        nonlocal looks
        looks += 1
        assert looks < 3000, world.states
        return bool(world.recorded()["b"].state == "DONE")

    world.should_end = should_end
    copying.run_beside(joins)
    assert world.recorded()["b"].scn == snapshots[0] + 1
    assert list(world.store.rows("public", "b")) == []
    assert world.recorded()["b"].row_count == 0
    assert ("join", {"b"}) in joins.asked


def with_frozen_task(world: World) -> tuple[TableInstantiation, FreezingTask]:
    """In the first round the task with session 1 freezes before it writes its first piece of `t`."""
    world.create("t", rows=8, is_keyed=False)  # one piece per task
    copying, task = world.copying(), FreezingTask(in_copy=False)
    task.workers = world.workers
    world.opened = lambda server, session: task.session(session, is_last=server == 1)
    return copying, task


def test_task_resuming_in_the_next_round_writes_no_row_twice():
    world = World()
    copying, task = with_frozen_task(world)

    def thaw_in_second_round(_: Any) -> None:
        if len(world.workers.jobs) == 2 and task.error is None:
            task.thaw()

    world.workers.before_piece = thaw_in_second_round
    copying.run_first()
    assert world.recorded()["t"].state == "DONE"
    assert isinstance(task.error, DatabaseUnavailable)
    world.assert_same("t")


@pytest.mark.parametrize("is_reopened", [False, True])
def test_task_of_the_first_copies_resuming_during_apply_writes_nothing(
    is_reopened: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    """Copies beside use other session numbers, and starting apply servers reuse the numbers of the first copies."""
    monkeypatch.setattr(module, "_FIRST_ROUNDS_MAX", 1)
    world = World()
    copying, task = with_frozen_task(world)
    copying.run_first()
    assert world.recorded()["t"].state == "COPYING"
    if is_reopened:
        with pytest.raises(FencedError):
            world.workers.jobs[0].places[1].session(copying.epoch, b"")
    task.thaw()
    assert isinstance(task.error, DatabaseUnavailable)
    beside(world, lambda: world.recorded()["t"].state == "DONE", copying=copying)
    world.assert_same("t")


def test_replicated_table_to_copy_again_is_excluded_emptied_and_joins():
    world = World("a", "b")
    copying = world.copying()
    copying.run_first()
    world.store.insert("public", "a", [(b"only here", None)])
    before = world.recorded()["b"]
    with world.source.transaction() as transaction:
        transaction.insert("public.a", id="new", v="x")
    copying.copy_again([TableName("public", "a")])
    assert copying._records.progress[TableName("public", "a")].state == "COPYING", "shown at once"
    copying._records.standings()
    assert copying._records.progress[TableName("public", "a")].problem == "to be copied again", (
        "even when checked before it is recorded"
    )
    joins = beside(
        world,
        lambda: world.recorded()["a"].state == "DONE" and world.recorded()["a"].row_count == 21,
        copying=copying,
    )
    assert joins.asked[0] == ("leave out", {("public", "a")})
    world.assert_same("a", "b")
    assert world.recorded()["b"] == before


def test_unverifiable_table_keeps_its_rows_when_a_new_copy_is_requested():
    world = World("a", "b")
    copying = world.copying()
    copying.run_first()
    before = list(world.store.rows("public", "b"))
    assert before

    kind: Any = type(copying.source_reader)

    class Unprovable(kind):  # type: ignore[misc]  # whatever the world reads with
        def prove_large(self, owner: str, name: str, *_: Any, **__: Any) -> None:
            if name == "b":
                raise DatabaseError("a value is too large")

    copying.source_reader.__class__ = Unprovable
    copying.copy_again([TableName("public", "a"), TableName("public", "b")])
    beside(
        world,
        lambda: world.recorded()["b"].state == "FAILED" and world.recorded()["a"].state == "DONE",
        copying=copying,
    )
    assert world.recorded()["b"].problem == "a value is too large. Its rows at the destination were not removed"
    assert list(world.store.rows("public", "b")) == before
    world.assert_same("a")


def test_copy_requested_while_the_destination_is_away_is_not_recorded():
    """Otherwise rows were excluded although the record still called the table finished."""
    world = World("a")
    copying = world.copying()
    copying.run_first()
    copying.copy_again([TableName("public", "a")])
    joins = Joins(world)
    world.store.is_reachable = False
    world.should_end = lambda: True
    copying._leave_out(joins)
    assert joins.asked == []
    world.store.is_reachable = True
    copying._leave_out(joins)
    assert joins.asked == [("leave out", {("public", "a")})]
    assert world.recorded()["a"].state == "COPYING"


def test_join_with_a_late_answer_releases_the_queue():
    """A loop busy with its destination performs a call later. Before, the queue was held until its disk was full."""
    world = with_missing_table()
    world.store.create_table("public", "late", [destination_column("id"), destination_column("v")], key=["id"])
    joins, late = Joins(world), True
    join = joins.join

    def join_late(tables: Any) -> bool:
        nonlocal late
        done, was_late, late = join(tables), late, False
        if was_late:
            raise ApplyError("apply a is busy with its destination: no answer within 30 s")
        return done

    joins.join = join_late  # type: ignore[method-assign]
    looks = 0

    def should_end() -> bool:
        nonlocal looks
        looks += 1
        assert looks < 1000, joins.asked
        return joins.asked[-1:] == [("hold", None)] and world.recorded()["late"].state == "DONE"

    world.should_end = should_end
    world.copying().run_beside(joins)
    assert not late
    world.assert_same("a", "late")


@pytest.mark.parametrize("is_first", [True, False])
def test_nothing_is_copied_before_redo_covers_the_snapshot(monkeypatch: pytest.MonkeyPatch, is_first: bool):
    """A standby promoted in between may lack it (`Snapshot.is_captured`)."""
    world = World("t")
    world.store.insert("public", "t", [])
    opened = world.source.open_snapshot

    def behind(topology: str):
        snapshot = opened(topology)
        world.source.confirmed_scn = Scn(snapshot.scn - 1)
        return snapshot

    monkeypatch.setattr(world.source, "open_snapshot", behind)
    monkeypatch.setattr(rounds, "_CAPTURED_TIMEOUT_S", 0.1)
    copying = world.copying()
    if is_first:
        copying.run_first()
    else:
        beside(world, lambda: world.source.opened >= 2 and bool(copying.problem), copying=copying)
    assert world.source.opened >= 2, "with a new snapshot each time"
    assert "log writer of site dbs1" in copying.problem
    assert world.recorded() == {}
    assert world.store.rows("public", "t") == []
    monkeypatch.setattr(world.source, "open_snapshot", opened)
    beside(world, lambda: [each.state for each in world.recorded().values()] == ["DONE"], copying=copying)
    assert not copying.problem
    world.assert_same("t")


def test_small_tables_copied_beside_do_not_wait_for_a_large_table(monkeypatch: pytest.MonkeyPatch):
    sizes = {"large": 10 << 30, "small": 10, "tiny": 1}
    world = World(*sizes)
    tables = world.source.tables
    monkeypatch.setattr(
        world.source,
        "tables",
        lambda rules: tuple(replace(table, bytes=sizes[table.name]) for table in tables(rules)),
    )
    joins = beside(world, lambda: [each.state for each in world.recorded().values()] == ["DONE"] * 3)
    assert [names for what, names in joins.asked if what == "join"] == [{"small", "tiny"}, {"large"}]


def test_recreated_destination_table_is_reported_until_it_is_copied_again():
    world = World("a", "b")
    world.may_empty = True
    copying = world.copying()
    copying.run_first()
    assert copying._records.progress[TableName("public", "a")].state == "DONE"
    world.store.drop_table("public", "a")
    world.store.create_table("public", "a", [destination_column("id"), destination_column("v")], key=["id"])

    def shown(name: str) -> TableProgress:
        return copying._records.progress[TableName("public", name)]

    beside(world, lambda: bool(shown("a").problem), copying=copying)
    assert shown("a").state == "DONE", "its changes are still applied"
    assert "was dropped and created again" in shown("a").problem
    assert "`headrace copy FILE public.a`" in shown("a").problem
    assert (shown("b").state, shown("b").problem) == ("DONE", "")
    again = world.copying()
    again.starts()
    assert again._records.progress[TableName("public", "a")].problem, "reported by every driver"
    again.copy_again([TableName("public", "a")])
    beside(world, lambda: world.recorded()["a"].state == "DONE" and not world.recorded()["a"].is_remade, copying=again)
    world.assert_same("a", "b")
    again._records.standings()
    assert again._records.progress[TableName("public", "a")].problem == ""


def test_table_dropped_at_the_source_before_its_copy_is_not_awaited():
    world = with_missing_table()
    copying = world.copying()
    looks = 0

    def until() -> bool:
        nonlocal looks
        looks += 1
        if looks == 20:
            assert ("late", "FAILED") in world.states
            world.source.drop_table("public.late")
        return looks >= 60

    beside(world, until, copying=copying)
    of_late = [state for name, state in world.states if name == "late"]
    assert of_late[-1] == "GONE"
    assert of_late.count("GONE") == 1


def test_table_no_longer_replicated_is_shown_until_dropped_here():
    world = World("a", "t")
    world.copying().run_first()
    destination = MemoryDestination(store=world.store)
    destination.leave_out(TOPOLOGY, APPLY, kept=[world.recorded()["a"].identity])
    world.source.drop_table("public.t")
    copying = world.copying()
    copying.run_first()
    assert ("t", "LEFT OUT") in world.states
    looks = 0

    def until() -> bool:
        nonlocal looks
        looks += 1
        if looks == 20:
            world.store.drop_table("public", "t")
        return looks >= 60

    beside(world, until, copying=copying)
    assert [state for name, state in world.states if name == "t"][-1] == "GONE"
    assert world.recorded()["t"].state == "LEFT"


def test_repeatedly_failing_copy_stays_visible_and_runs_after_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(standing, "_ROUND_BYTES", 0)  # one round per table
    world = World("a")
    world.copying().run_first()
    for name in ("sick", "z"):
        world.create(name)
    sizes = {"a": 1, "sick": 1, "z": 5}
    tables = world.source.tables
    monkeypatch.setattr(
        world.source,
        "tables",
        lambda rules: tuple(replace(table, bytes=sizes[table.name]) for table in tables(rules)),
    )
    copying = world.copying()

    def spoil(piece: Any) -> None:
        if piece.table.name == "sick" and not piece.is_digest and not list(world.store.rows("public", "sick")):
            world.store.insert("public", "sick", [(b"another writer", None)])

    world.workers.before_piece = spoil

    def until() -> bool:
        record = world.recorded().get("sick")
        return record is not None and record.state == "FAILED" and world.source.opened >= 6

    beside(world, until, copying=copying)
    first = world.states.index(("sick", "FAILED"))
    assert {state for name, state in world.states[first:] if name == "sick"} == {"FAILED"}
    assert world.recorded()["z"].state in {"DONE", "JOINING"}, "the larger table runs before the failed one"


def test_renamed_copied_table_visibly_waits_for_its_destination_name():
    """It joined under its old name without a start SCN: changes since the copy were skipped and then forgotten."""
    world = World("a", "t")
    world.copying().run_first()
    destination = MemoryDestination(store=world.store)
    record = replace(world.recorded()["t"], state="COPIED")
    destination.record_instantiation(TOPOLOGY, APPLY, destination.progress(TOPOLOGY, APPLY).epoch, record)
    world.source.rename_table("public.t", "t2")
    world.create("late")
    copying = world.copying()
    copying.run_first()
    assert copying.starts()[1] == record.scn
    joins, looks = Joins(world), 0

    def until() -> bool:
        nonlocal looks
        looks += 1
        assert looks < 3000, world.states
        late = world.recorded().get("late")
        if late is not None and late.state == "DONE" and ("public", "t") in world.store.tables:
            assert world.recorded()["t"] == record
            assert ("t2", "FAILED") in world.states
            assert {scn for what, scn in joins.asked if what == "hold"} == {record.scn}
            moved = world.store.tables.pop(("public", "t"))
            moved.table = replace(moved.table, name="t2")
            world.store.tables["public", "t2"] = moved
        return "t2" in world.recorded() and world.recorded()["t2"].state == "DONE"

    world.should_end = until
    copying.run_beside(joins)
    assert [names for what, names in joins.asked if what == "join"] == [{"late"}, {"t2"}]
    assert joins.asked[-1] == ("hold", None)
    world.assert_same("a", "late")


def passed_on(world: World) -> TableInstantiation:
    """`t` was copied, is empty and was renamed to t2 at the source, where another table is now `t`.

    The destination has neither change.
    """
    world.copying().run_first()
    world.source.rename_table("public.t", "t2")
    world.source.create_table("public.t", ("id", "v"), key=("id",))
    with world.source.transaction() as transaction:
        transaction.insert("public.t", id="7", v="new")
    return world.copying()


def test_table_is_not_copied_into_the_former_table_of_its_name(monkeypatch: pytest.MonkeyPatch):
    """Nothing is applied meanwhile: with a full redo log the copy would wait for redo that it holds itself."""
    world = World("a")
    world.create("t", rows=0)
    copying = passed_on(world)
    world.source.confirmed_scn = Scn(0)
    waited: list[object] = []
    monkeypatch.setattr(module, "wait_captured", lambda snapshot, site, should_end: not noted(waited, snapshot))
    looks = 0

    def end() -> bool:
        nonlocal looks
        looks += 1
        return looks > 20 or bool(waited)

    world.should_end = end
    copying.run_first()
    assert not waited
    assert ("t", "FAILED") in world.states
    assert [record.name for record in world.recorded().values()] == ["a", "t"]
    found = next(each for each in copying._standings(show=False) if each.occupant is not None)
    assert "Rename it here too" in refused(found)


def test_renamed_tables_are_copied_when_the_destination_has_the_new_names():
    world = World("a")
    world.create("t", rows=0)
    copying = passed_on(world)

    def renamed() -> bool:
        if ("t", "FAILED") in world.states and ("public", "t2") not in world.store.tables:
            moved = world.store.tables.pop(("public", "t"))
            moved.table = replace(moved.table, name="t2")
            world.store.tables["public", "t2"] = moved
            world.store.create_table("public", "t", [destination_column("id"), destination_column("v")], key=("id",))
        return False

    world.should_end = renamed
    copying.run_first()
    done = dict.fromkeys(("a", "t", "t2"), "DONE")
    beside(world, lambda: {name: record.state for name, record in world.recorded().items()} == done, copying=copying)
    world.assert_same("a", "t", "t2")
