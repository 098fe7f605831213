"""Rows in which two tables differ: found by digests of buckets, compared again until they are judged, and bounded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest

from databases.memory.copying import MemoryTableReader, StoreTables
from databases.memory.store import MemoryStore, destination_column
from spark_apply.copy import differing_rows as comparing
from spark_apply.copy.differing_rows import (
    STEADY_LOOKS,
    FoundRows,
    JudgedRows,
    Side,
    differing_rows,
    judged_rows,
)
from streams.errors import DatabaseUnavailable
from streams.table_name import TableName
from tests.support.seeds import scaled, seed_of

COLUMNS = ("id", "v")
LOOKS = 6


def side(rows, key=("id",), columns=COLUMNS) -> Side:
    store = MemoryStore()
    store.create_table("public", "t", [destination_column(column) for column in columns])
    store.insert("public", "t", rows)
    return Side(MemoryTableReader(StoreTables(store), {}, ()), TableName("public", "t"), key, columns)


def row(number: int, value: str = "same") -> tuple[bytes, bytes]:
    return str(number).encode(), value.encode()


@pytest.mark.parametrize("buckets", [1, 16, 1000])
def test_rows_that_differ_are_named_with_what_is_wrong(buckets: int):
    there = [row(number) for number in range(500)]
    here = [row(number) for number in range(1, 500) if number != 7] + [row(7, "changed"), row(9999)]
    random.Random(1).shuffle(here)
    found = differing_rows([side(there), side(here)], buckets, buckets_max=buckets)
    assert {(each.key, each.what) for each in found.differences} == {
        (("7",), "differs"),
        (("0",), "missing at the destination"),
        (("9999",), "only at the destination"),
    }
    assert not found.unread


def test_rows_are_named_as_the_destination_calls_their_columns():
    there = side([row(1), row(2)])
    found = differing_rows([there, side([row(1), row(2, "changed")], ("number",), ("number", "w"))], 4)
    assert [(each.columns, each.key, each.what) for each in found.differences] == [(("number",), ("2",), "differs")]


def test_equal_tables_have_no_row_to_name():
    rows = [row(number) for number in range(50)]
    assert differing_rows([side(rows), side(reversed(rows))], 8) == FoundRows()


def test_without_a_key_duplicates_are_counted():
    found = differing_rows([side([row(1), row(1), row(2)], COLUMNS), side([row(1), row(2)], COLUMNS)], 4)
    assert [(each.key, each.what) for each in found.differences] == [(("1", "same"), "missing at the destination")]


def test_bucket_that_alone_is_too_large_stays_unread(monkeypatch: pytest.MonkeyPatch):
    """Equal rows of a table without a key are all in one bucket."""
    monkeypatch.setattr(comparing, "_BUCKET_ROWS_MAX", 300)
    there, here = ([row(1)] * count + [row(2, value)] for count, value in ((400, "here"), (401, "there")))
    found = differing_rows([side(there, COLUMNS), side(here, COLUMNS)], 1000)
    assert {(each.key, each.what) for each in found.differences} == {
        (("2", "here"), "missing at the destination"),
        (("2", "there"), "only at the destination"),
    }
    assert len(found.unread) == 1
    assert differing_rows([side([row(1)] * 400, COLUMNS), side([row(1)] * 401, COLUMNS)], 1) == FoundRows(
        unread=frozenset({0})
    )


def test_what_is_read_and_named_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparing, "_ROWS_READ_MAX", 100)
    there, here = side([row(number) for number in range(5000)]), side([])
    read = []
    original = there.reader.bucket_rows

    def counted(*arguments, **named):
        answer = original(*arguments, **named)
        read.append(len(answer))
        return answer

    monkeypatch.setattr(there.reader, "bucket_rows", counted)
    found = differing_rows([there, here], 50)
    assert len(found.differences) == read[0] <= 200
    assert len(found.unread) >= 48
    assert not differing_rows([there, here], 50, among=[]).unread


@dataclass
class Replica:
    """A table whose changes arrive at another one `lag` steps later.

    A look lasts a step at each side: the destination is read when it has what the source had.
    """

    lag: int
    writes: Callable[[int], dict[int, str | None]] = lambda _step: {}
    has_versions: bool = True
    arrives: Callable[[int], bool] = lambda _number: True
    steps: int = 0
    waiting: list[tuple[int, dict[int, str | None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.there, self.here = (Rows((number, "same") for number in range(200)) for _ in range(2))

    def step(self) -> bool:
        """A moment: users write at the source, and what is old enough arrives."""
        self.steps += 1
        written = self.writes(self.steps)
        self.there.write(written)
        self.waiting.append((self.steps, {number: value for number, value in written.items() if self.arrives(number)}))
        while self.waiting and self.waiting[0][0] <= self.steps - self.lag:
            self.here.write(self.waiting.pop(0)[1])
        return True

    def caught_up(self) -> bool:
        """Until the destination has what the source has now; it is written on meanwhile."""
        now = self.steps
        while self.waiting and self.waiting[0][0] <= now:
            self.step()
        return self.step()

    def sides(self) -> list[Side]:
        return [
            Side(Now(rows, has_versions=self.has_versions), TableName("public", "t"), ("id",), COLUMNS)
            for rows in (self.there, self.here)
        ]

    def judged(self) -> JudgedRows:
        for _ in range(5):
            self.step()
        sides = self.sides()
        found = differing_rows(sides, 16, buckets_max=16)
        return judged_rows(sides, found.differences, looks=LOOKS, catch_up=self.caught_up)


class Rows(dict[int, str]):
    """A table: the values of its rows, each of which has a version."""

    def __init__(self, values: Iterable[tuple[int, str]]) -> None:
        super().__init__(values)
        self.versions = dict.fromkeys(self, 0)

    def write(self, written: dict[int, str | None]) -> None:
        for number, value in written.items():
            self.versions[number] = self.versions.get(number, 0) + 1
            if value is None:
                self.pop(number, None)
            else:
                self[number] = value


class Now:
    """A reader of what a table has at the moment; with versions, or as a database that has none."""

    def __init__(self, rows: Rows, *, has_versions: bool) -> None:
        self._rows, self._has_versions = rows, has_versions

    def __getattr__(self, name: str):
        return getattr(side([row(number, value) for number, value in self._rows.items()]).reader, name)

    def keyed_rows(self, *arguments, **named):
        found = self.__getattr__("keyed_rows")(*arguments, **named)
        return tuple(
            replace(each, version=str(self._rows.versions[int(each.key[0])]) if self._has_versions else "")
            for each in found
        )


def test_rows_that_are_on_their_way_settle_and_the_table_is_equal():
    busy = Replica(
        lag=3, writes=lambda step: {step % 50: f"of step {step}", 50 + step % 7: None if step % 2 else "there again"}
    )
    found = busy.judged()
    assert (found.differences, found.in_flight) == ((), ())
    assert found.settled > 0


def test_row_that_differs_among_rows_on_their_way_is_found_whatever_is_wrong_with_it():
    busy = Replica(lag=3, writes=lambda step: {step % 50: f"of step {step}"})
    busy.here.write({60: "changed by hand", 61: None, 999: "only here"})
    found = busy.judged()
    assert [(each.key, each.what) for each in found.differences] == [
        (("60",), "differs"),
        (("61",), "missing at the destination"),
        (("999",), "only at the destination"),
    ]


def test_row_that_is_changed_all_the_time_is_in_flight_and_the_others_are_judged():
    busy = Replica(lag=3, writes=lambda step: {7: f"of step {step}"})
    busy.here.write({60: "changed by hand"})
    found = busy.judged()
    assert (found.in_flight, [each.key for each in found.differences], found.looks) == ((("7",),), [("60",)], LOOKS)


def test_row_that_is_changed_all_the_time_and_stays_as_it_was_at_the_destination_differs():
    """Its changes are in the error queue, for example: what the destination shows moves no more."""
    stuck = Replica(lag=3, writes=lambda step: {7: f"of step {step}"}, arrives=lambda number: number != 7)
    found = stuck.judged()
    assert [(each.key, each.what) for each in found.differences] == [(("7",), "differs")]


def test_looks_are_bounded_and_end_as_soon_as_every_row_is_judged():
    quiet = Replica(lag=0)
    quiet.here.write({60: "changed by hand"})
    assert quiet.judged().looks == STEADY_LOOKS
    assert Replica(lag=0).judged() == JudgedRows(differences=())


def test_comparison_that_is_stopped_says_nothing_of_the_rows():
    sides = [side([row(1)]), side([row(1, "changed")])]
    with pytest.raises(DatabaseUnavailable, match="stopped"):
        judged_rows(sides, differing_rows(sides, 1).differences, looks=LOOKS, catch_up=lambda: False)


def test_row_that_goes_back_and_forth_is_not_called_different_where_its_versions_are_known():
    """Each look can find it as it was at the source, and as it is no longer at the destination."""
    busy = Replica(lag=3, writes=lambda step: {7: "on" if step % 2 else "off"})
    assert busy.judged().differences == ()


@pytest.mark.seeded
@pytest.mark.parametrize("number", range(scaled(30, 300)))
def test_equal_tables_are_never_called_different_and_rows_that_differ_are_always_found(number: int):
    """Whatever is written, however far the destination is behind."""
    dice = random.Random(seed_of(f"judged rows {number}"))
    hot = dice.sample(range(100), dice.randrange(1, 40))
    busy = Replica(
        lag=dice.randrange(8),
        writes=lambda step: {
            each: dice.choice([f"of step {step}", "one of two", "the other"])
            for each in dice.sample(hot, dice.randrange(len(hot)) + 1)
        },
    )
    wrong = dice.sample(range(100, 200), dice.choice([0, 0, 1, 5]))
    busy.here.write({each: dice.choice([None, "changed by hand"]) for each in wrong})
    found = busy.judged()
    assert {each.key for each in found.differences} == {(str(each),) for each in wrong}
