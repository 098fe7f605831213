"""Shared resources of tests: created once, lent to one test after another, and recreated after a test breaks them."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.session.shared import FAILED, Shared, end_unit, sort_by_unit


class Things:
    """Records resources that were made and ended, in order; `illness` marks the last one as broken."""

    def __init__(self) -> None:
        self.made, self.ended, self.illness = list[Any](), list[Any](), ""
        self.shared = Shared(self.open, illness=lambda _: self.illness)

    def open(self, stack: ExitStack, _: pytest.Config) -> int:
        number = len(self.made)
        stack.callback(lambda: self.ended.append(number))
        self.made.append(number)
        return number


class Item(SimpleNamespace):
    """A test of a unit."""

    def __init__(
        self, config: SimpleNamespace, unit: str = "one_way", order: int = 0, name: str = "a.py::test_a"
    ) -> None:
        mark = pytest.mark.unit(unit, order=order).mark if unit else None
        super().__init__(config=config, stash=pytest.Stash(), nodeid=name, get_closest_marker=lambda _: mark)


@pytest.fixture
def config() -> Any:
    return SimpleNamespace(stash=pytest.Stash())


def used(things: Things, item: Any, illness: str = "") -> int:
    """Lend a resource to a test that leaves it with this illness; return the resource's number."""
    with things.shared.lend(item) as thing:
        things.illness = illness
    return int(thing)


def test_healthy_resource_is_lent_to_the_next_test(config):
    things = Things()
    assert [used(things, Item(config)) for _ in range(3)] == [0, 0, 0]
    assert things.ended == []


def test_test_that_breaks_the_resource_fails_alone(config):
    things = Things()
    assert used(things, Item(config)) == 0
    with pytest.raises(pytest.fail.Exception, match="left what it shares with others sick: it is stopped"):
        used(things, Item(config), "it is stopped")
    assert things.ended == [0]
    things.illness = ""
    assert used(things, Item(config)) == 1


def test_failed_test_is_not_failed_again_for_a_broken_resource(config):
    things, item = Things(), Item(config)
    item.stash[FAILED] = True
    assert used(things, item, "it is stopped") == 0
    assert things.ended == [0]


def test_failing_health_check_counts_as_broken(config):
    things = Things()
    things.shared.illness = lambda _: str(1 / 0)
    with pytest.raises(pytest.fail.Exception, match="ZeroDivisionError"):
        used(things, Item(config))
    assert things.ended == [0]


def test_failed_creation_leaves_nothing_and_is_retried(config):
    things = Things()
    things.shared.open = lambda stack, config: things.open(stack, config) // 0
    with pytest.raises(ZeroDivisionError):
        used(things, Item(config))
    assert things.ended == [0]
    things.shared.open = things.open
    assert used(things, Item(config)) == 1


def test_resource_ends_with_the_last_test_of_its_unit(config):
    first, second = Things(), Things()
    last, of_another = Item(config), Item(config, unit="sites")
    used(first, last)
    used(second, last)
    end_unit(last, last)
    assert (first.ended, second.ended) == ([], [])
    end_unit(last, of_another)
    assert (first.ended, second.ended) == ([0], [0])
    assert used(first, of_another) == 1
    end_unit(of_another, None)
    assert first.ended == [0, 1]


def test_units_run_in_order_and_their_modules_by_number(config):
    items = [
        Item(config, unit="", name="z.py::test_z"),
        Item(config, unit="sites", order=2, name="b.py::test_b"),
        Item(config, unit="sites", order=1, name="c.py::test_c"),
        Item(config, unit="one_way", name="d.py::test_d"),
        Item(config, unit="", name="y.py::test_y"),
    ]
    sort_by_unit(items)
    assert [item.nodeid[0] for item in items] == ["d", "c", "b", "y", "z"]
    lost = [Item(config, unit="x")]
    with pytest.raises(AssertionError, match="there is no unit x"):
        sort_by_unit(lost)
