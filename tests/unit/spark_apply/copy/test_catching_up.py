"""What a comparison waits for, and that it ends when nobody waits for it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import ApplyError, DatabaseError, DatabaseUnavailable
from headrace.databases.memory.destination import MemoryDestination
from headrace.lcr.scn import Scn
from spark_apply.copy.comparison import catching_up as module
from spark_apply.copy.comparison.catching_up import CatchingUp, WaysBack


class Log:
    """A source: each marker is behind the last one."""

    def __init__(self) -> None:
        self.written = 0

    def write_marker(self, content: bytes) -> Scn:
        self.written += 10
        return Scn(self.written)


@pytest.fixture
def late(monkeypatch):
    """What is behind stays so: a short wait shows it."""
    monkeypatch.setattr(module, "CATCH_UP_S", 0.3)
    monkeypatch.setattr(module, "_LATE_S", 0.05)


def waits(
    *,
    applied: Callable[[], int] = lambda: 0,
    back: WaysBack | None = None,
    is_active: Callable[[], bool] = lambda: True,
) -> CatchingUp:
    source: Any = Log()
    return CatchingUp("ap", is_active=is_active, source=source, applied=applied, back=back)


def test_destination_is_waited_for_until_it_has_applied_a_marker():
    applied = itertools.count()
    waits(applied=lambda: next(applied)).to_the_destination(0.0)
    assert next(applied) > 10


@pytest.mark.usefixtures("late")
def test_wait_is_bounded_and_shorter_for_the_next_table_until_something_catches_up():
    position = 0
    waiting = waits(applied=lambda: position)
    with pytest.raises(DatabaseError, match=r"the destination is more than 0\.3 s behind: what differs may be"):
        waiting.to_the_destination(0.0)
    with pytest.raises(DatabaseError, match=r"more than 0\.05 s behind"):
        waiting.to_the_destination(0.0)
    position = 1000
    waiting.to_the_destination(0.0)
    position = 0
    with pytest.raises(DatabaseError, match=r"more than 0\.3 s behind"):
        waiting.to_the_destination(0.0)


@pytest.mark.parametrize("asked", range(5))
def test_comparison_that_is_stopped_ends_at_the_next_pause(asked: int):
    asks = itertools.count()
    with pytest.raises(ApplyError, match="apply ap was stopped") as caught:
        waits(is_active=lambda: next(asks) < asked).to_the_destination(60.0)
    assert "headrace start FILE apply:ap" in caught.value.hint


class Endless:
    """A reader whose scan ends when it is interrupted."""

    def __init__(self) -> None:
        self.interrupted = threading.Event()

    def interrupt(self) -> None:
        self.interrupted.set()

    def scan(self) -> None:
        assert self.interrupted.wait(60.0), "nobody ended it"
        raise DatabaseUnavailable("canceling statement due to user request")


def test_scan_of_a_comparison_that_is_stopped_is_ended_and_is_not_why_the_table_was_not_compared():
    reader: Any = Endless()
    is_active = True
    waiting = waits(is_active=lambda: is_active)
    with waiting.reading([reader]):
        pass
    assert not reader.interrupted.is_set()
    is_active = False
    with pytest.raises(ApplyError, match="apply ap was stopped"), waiting.reading([reader]):
        reader.scan()
    assert not [each for each in threading.enumerate() if each.name == "compare-watch"]


# ------------------------------------------------------------------ the way back


def recorded(**applies: int) -> MemoryDestination:
    """A database with the low watermarks of apply processes."""
    found = MemoryDestination()
    for name, scn in applies.items():
        found.prepare("topo")
        found.record_low_watermark("topo", name, found.raise_epoch("topo", name).epoch, Scn(scn))
    return found


def way(here: MemoryDestination, there: MemoryDestination, *, position: int = 50, **named: Any) -> WaysBack:
    return WaysBack(topology="topo", here=here, there=there, position=lambda: Scn(position), **named)


def test_source_is_waited_for_until_it_has_what_the_destination_s_log_and_third_sites_gave():
    back = way(
        recorded(from_c=30), recorded(a_from_b=49, a_from_c=29), direct=["a_from_b"], beside=[("from_c", "a_from_c")]
    )
    positions = back.positions()
    assert positions == {"a_from_b": 50, "a_from_c": 30}
    assert back.behind(positions) == ["a_from_b", "a_from_c"]
    assert way(recorded(from_c=30), recorded(a_from_b=50), direct=["a_from_b"], beside=[]).behind(positions) == [
        "a_from_c"
    ]
    waits(back=way(recorded(), recorded(a_from_b=50), direct=["a_from_b"], beside=[])).back_to_the_source()


@pytest.mark.usefixtures("late")
def test_source_that_does_not_get_the_destination_s_changes_is_named_and_the_table_is_not_compared():
    back = way(recorded(), recorded(a_from_b=49), direct=["a_from_b"], beside=[])
    with pytest.raises(DatabaseError, match=r"a_from_b.* more than 0\.3 s behind: what differs may be in flight"):
        waits(back=back).back_to_the_source()


def test_nothing_comes_back_of_a_topology_of_one_way():
    waits().back_to_the_source()
