"""Answers of a driver's control while its coordinator is busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import ApplyError, DatabaseUnavailable
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore
from headrace.databases.ports import Instantiation
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from protos import apply_pb2 as pb
from spark_apply.copy.records.tables import TableProgress
from spark_apply.driver import control as module
from spark_apply.driver.control import ApplyControl
from tests.support.session.noted import noted


class Coordinator:
    """Returns a low watermark unless it is busy."""

    def __init__(self) -> None:
        self.is_busy, self.low_watermark = False, 10

    def call_within(self, read: Callable[[], pb.ApplyStatus], seconds: float) -> tuple[pb.ApplyStatus] | None:
        return None if self.is_busy else (read(),)


def test_status_of_a_busy_coordinator_shows_its_age(monkeypatch: Any) -> None:
    """The lag, and the watermark checks of `headrace chaos`, depend on the time at which a position was read."""
    coordinator = Coordinator()
    monkeypatch.setattr(
        ApplyControl, "_read", lambda self, cores: pb.ApplyStatus(low_watermark_scn=coordinator.low_watermark)
    )
    control = ApplyControl(config=SimpleNamespace(), cores=SimpleNamespace(host=SimpleNamespace(inbox=coordinator)))
    before_us = time.time_ns() // 1000
    first = control.status()
    coordinator.is_busy, coordinator.low_watermark = True, 20
    later = control.status()
    assert before_us <= first.asked_us <= time.time_ns() // 1000
    assert (later.low_watermark_scn, later.asked_us) == (10, first.asked_us)
    coordinator.is_busy = False
    again = control.status()
    assert again.low_watermark_scn == 20
    assert again.asked_us >= first.asked_us


@pytest.mark.parametrize(
    ("state", "is_bounded"),
    [
        ("PENDING", False),
        ("COPYING", False),
        ("COMPARING", False),
        ("FAILED", False),
        ("LEFT", False),
        ("COPIED", True),
        ("JOINING", True),
        ("DONE", True),
        ("KEPT", True),
    ],
)
def test_nothing_is_caught_up_while_a_table_is_copied(state: str, is_bounded: bool) -> None:
    """The snapshot of a table copied beside can be later than the target of `headrace wait`, with the table empty."""
    cores = SimpleNamespace(
        reader=SimpleNamespace(strangers=()),
        host=SimpleNamespace(
            progress=SimpleNamespace(kept_scn=Scn(70)), joins=SimpleNamespace(bounded=lambda scn: min(scn, 50))
        ),
    )
    control = ApplyControl(config=SimpleNamespace())
    control.table_moved(TableProgress(owner="public", name="a", state="DONE"))
    control.table_moved(TableProgress(owner="public", name="t", state=state))
    assert control._caught_up_scn(cores) == (50 if is_bounded else 0)


def unanswered(_access: Any) -> Any:
    raise DatabaseUnavailable("the source does not answer")


@pytest.mark.parametrize("asked", ["rooms", "halls"])
def test_renamed_table_is_not_excluded_for_a_copy_before_a_restart(monkeypatch: Any, asked: str) -> None:
    """The driver knows the table by its old name, under which the source has nothing to copy: it would become FAILED
    with its changes excluded.
    """
    now = (
        SimpleNamespace(identity="7", owner="shop", name="halls"),
        SimpleNamespace(identity="8", owner="shop", name="other"),
    )
    monkeypatch.setattr(
        module, "open_source", lambda access: SimpleNamespace(captured=lambda topology: now, close=lambda: None)
    )
    monkeypatch.setattr(module, "open_destination", lambda access: pytest.fail("nothing is recorded"))
    tables = [
        SimpleNamespace(source=TableName("shop", name), identity=identity)
        for name, identity in (("rooms", "7"), ("other", "8"))
    ]
    config = SimpleNamespace(topology="t", apply="a", source=SimpleNamespace(site="s"), tables=tables)
    control = ApplyControl(config=config, cores=SimpleNamespace(), instantiation=SimpleNamespace())
    with pytest.raises(ApplyError, match=r"shop\.rooms is called shop\.halls at s since") as refused:
        control.copy_again(pb.CopyAgainRequest(tables=[pb.TableName(owner="shop", name=asked)]))
    assert "headrace start FILE apply:a" in refused.value.hint
    assert "headrace copy FILE shop.halls" in refused.value.hint


def test_table_with_rows_of_another_topology_is_not_emptied_for_a_copy(monkeypatch: Any) -> None:
    """`headrace copy` begins with a record that all rows of the table belong to this copy."""
    store, asked, looked = MemoryStore(), list[Any](), list[int]()
    destination = MemoryDestination(store=store)
    monkeypatch.setattr(module, "open_destination", lambda access: destination)
    monkeypatch.setattr(module, "open_source", unanswered)
    name = TableName("shop", "rooms")
    config = SimpleNamespace(
        topology="t",
        apply="a",
        source=SimpleNamespace(site="s"),
        destination=None,
        tables=[SimpleNamespace(source=name, destination=name, may_empty=True, identity="7")],
    )
    epoch = destination.raise_epoch("t", "a").epoch
    done = Instantiation(source="s", identity="7", owner="shop", name="rooms", scn=Scn(3), state="DONE", row_count=4)
    destination.record_instantiation("t", "a", epoch, done)
    copying = SimpleNamespace(copy_again=asked.append)
    control = ApplyControl(config=config, cores=SimpleNamespace(epoch=epoch), instantiation=copying)
    request = pb.CopyAgainRequest(tables=[pb.TableName(owner="shop", name="rooms")])
    control.copy_again(request)
    assert asked == [[name]]
    # The driver may copy another table for hours and then die: the next driver must know of the request.
    assert [(each.state, each.scn, each.problem) for each in destination.instantiations("t", "a")] == [
        ("COPYING", 3, "to be copied again")
    ]
    destination.record_instantiation("t", "a", epoch, done)
    other = Instantiation(source="s", identity="1", owner="shop", name="rooms", scn=Scn(5), state="DONE")
    destination.record_instantiation("another", "a", destination.raise_epoch("another", "a").epoch, other)
    with pytest.raises(ApplyError, match="other apply processes write the same destination table"):
        control.copy_again(request)
    look = destination.other_copies
    monkeypatch.setattr(
        destination,
        "other_copies",
        lambda topology, apply, *table: [(), look(topology, apply, *table)][len(looked) > 0 or not noted(looked, 1)],
    )
    with pytest.raises(ApplyError, match="other apply processes write the same destination table"):
        control.copy_again(request)  # the other topology's record came between the check and this record
    assert looked
    assert len(asked) == 1
    assert destination.instantiations("t", "a") == (done,)


def test_obstacle_to_copying_is_shown_while_other_tables_are_applied(monkeypatch: Any) -> None:
    monkeypatch.setattr(ApplyControl, "_read", lambda self, cores: pb.ApplyStatus(state="IDLE", detail=cores.detail))
    copying, cores = (
        SimpleNamespace(problem="the log writer is stopped"),
        SimpleNamespace(host=SimpleNamespace(inbox=Coordinator()), detail=""),
    )
    control = ApplyControl(config=SimpleNamespace(), cores=cores, instantiation=copying)
    assert control.status().detail == "the log writer is stopped"
    cores.detail = "the destination does not answer"
    assert control.status().detail == "the destination does not answer"
    cores.detail = copying.problem = ""
    assert control.status().detail == ""
