"""Differing rows of two tables: found by digests of buckets, compared again until they are judged, and bounded."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest

from headrace.base.errors import ApplyError
from headrace.databases.memory.copying import MemoryTableReader, StoreTables
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.lcr.table_name import TableName
from spark_apply.copy.comparison import differing_rows as comparing
from spark_apply.copy.comparison.differing_rows import (
    STEADY_LOOKS,
    FoundRows,
    JudgedRows,
    Side,
    differing_rows,
    judged_rows,
)
from tests.support.session.seeds import scaled, seed_of

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
def test_differing_rows_are_named_with_their_difference(buckets: int):
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


def test_rows_are_named_by_the_destinations_column_names():
    there = side([row(1), row(2)])
    found = differing_rows([there, side([row(1), row(2, "changed")], ("number",), ("number", "w"))], 4)
    assert [(each.columns, each.key, each.what) for each in found.differences] == [(("number",), ("2",), "differs")]


def test_equal_tables_have_no_differing_rows():
    rows = [row(number) for number in range(50)]
    assert differing_rows([side(rows), side(reversed(rows))], 8) == FoundRows()


def test_duplicates_in_a_table_without_a_key_are_counted():
    found = differing_rows([side([row(1), row(1), row(2)], COLUMNS), side([row(1), row(2)], COLUMNS)], 4)
    assert [(each.key, each.what) for each in found.differences] == [(("1", "same"), "missing at the destination")]


def test_bucket_over_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch):
    """Equal rows of a table without a key all share one bucket."""
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


def test_rows_read_and_named_are_bounded(monkeypatch: pytest.MonkeyPatch):
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
    """A table whose changes reach the other side `lag` steps later; changes of the other side's users take `own_lag`.

    A look lasts a step at each side: the destination is read when it has the source's changes.
    """

    lag: int
    writes: Callable[[int], dict[int, str | None]] = lambda _step: {}
    has_versions: bool = True
    arrives: Callable[[int], bool] = lambda _number: True
    own: Callable[[int], dict[int, str | None]] = lambda _step: {}
    own_lag: int = 0
    waits_for_own: bool = True
    steps: int = 0
    waiting: list[tuple[int, dict[int, str | None]]] = field(default_factory=list)
    returning: list[tuple[int, dict[int, str | None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.there, self.here = (Rows((number, "same") for number in range(200)) for _ in range(2))

    def step(self) -> None:
        """Advance one step: users write at the source, and old enough changes arrive."""
        self.steps += 1
        written = self.writes(self.steps)
        self.there.write(written)
        self.waiting.append((self.steps, {number: value for number, value in written.items() if self.arrives(number)}))
        while self.waiting and self.waiting[0][0] <= self.steps - self.lag:
            self.here.write(self.waiting.pop(0)[1])
        own = self.own(self.steps)
        self.here.write(own)
        self.returning.append((self.steps, own))
        while self.returning and self.returning[0][0] <= self.steps - self.own_lag:
            self.there.write(self.returning.pop(0)[1])

    def caught_up(self) -> None:
        """Step until the destination has everything that the source has now; users keep writing meanwhile."""
        now = self.steps
        while self.waiting and self.waiting[0][0] <= now:
            self.step()
        self.step()

    def returned(self) -> None:
        """Step until the source has everything that the destination has now; users keep writing meanwhile."""
        now = self.steps
        while self.waits_for_own and self.returning and self.returning[0][0] <= now:
            self.step()

    def sides(self) -> list[Side]:
        return [
            Side(Now(rows, has_versions=self.has_versions), TableName("public", "t"), ("id",), COLUMNS)
            for rows in (self.there, self.here)
        ]

    def judged(self) -> JudgedRows:
        for _ in range(5):
            self.step()
        sides = self.sides()
        here = copy.deepcopy(self.here)  # the destination's snapshot is the older one
        self.returned()
        seen = [sides[0], Side(Now(here, has_versions=self.has_versions), TableName("public", "t"), ("id",), COLUMNS)]
        found = differing_rows(seen, 16, buckets_max=16)
        return judged_rows(sides, found, looks=LOOKS, catch_up=self.caught_up, returned=self.returned)


class Rows(dict[int, str]):
    """The values of a table's rows by key; each row has a version."""

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
    """A reader of a table's current content, with versions or without them as in some databases."""

    def __init__(self, rows: Rows, *, has_versions: bool) -> None:
        self._rows, self._has_versions = rows, has_versions

    def __getattr__(self, name: str):
        return getattr(side([row(number, value) for number, value in self._rows.items()]).reader, name)

    def keyed_rows(self, *arguments, **named):
        return self._with_versions(self.__getattr__("keyed_rows")(*arguments, **named))

    def bucket_rows(self, *arguments, **named):
        return self._with_versions(self.__getattr__("bucket_rows")(*arguments, **named))

    def _with_versions(self, found):
        return tuple(
            replace(each, version=str(self._rows.versions[int(each.key[0])]) if self._has_versions else "")
            for each in found
        )


def test_rows_in_flight_settle_and_the_table_is_equal():
    busy = Replica(
        lag=3, writes=lambda step: {step % 50: f"of step {step}", 50 + step % 7: None if step % 2 else "there again"}
    )
    found = busy.judged()
    assert (found.differences, found.in_flight) == ((), ())
    assert found.settled > 0


def test_differing_rows_are_found_among_rows_in_flight():
    busy = Replica(lag=3, writes=lambda step: {step % 50: f"of step {step}"})
    busy.here.write({60: "changed by hand", 61: None, 999: "only here"})
    found = busy.judged()
    assert [(each.key, each.what) for each in found.differences] == [
        (("60",), "differs"),
        (("61",), "missing at the destination"),
        (("999",), "only at the destination"),
    ]


def test_constantly_changed_row_is_in_flight_and_other_rows_are_judged():
    busy = Replica(lag=3, writes=lambda step: {7: f"of step {step}"})
    busy.here.write({60: "changed by hand"})
    found = busy.judged()
    assert [(each.key, each.what) for each in found.in_flight] == [(("7",), "changed at each look")]
    assert ([each.key for each in found.differences], found.looks) == ([("60",)], LOOKS)


def test_constantly_changed_row_that_is_static_at_the_destination_differs():
    """Its changes are in the error queue, for example: its row at the destination no longer changes."""
    stuck = Replica(lag=3, writes=lambda step: {7: f"of step {step}"}, arrives=lambda number: number != 7)
    found = stuck.judged()
    assert [(each.key, each.what) for each in found.differences] == [(("7",), "differs")]


def test_looks_are_bounded_and_end_when_every_row_is_judged():
    quiet = Replica(lag=0)
    quiet.here.write({60: "changed by hand"})
    assert quiet.judged().looks == STEADY_LOOKS
    assert Replica(lag=0).judged() == JudgedRows(differences=())


def test_stopped_comparison_judges_no_rows():
    sides = [side([row(1)]), side([row(1, "changed")])]

    def catch_up() -> None:
        raise ApplyError("it was stopped")

    with pytest.raises(ApplyError, match="stopped"):
        judged_rows(sides, differing_rows(sides, 1), looks=LOOKS, catch_up=catch_up)


def test_alternating_row_with_known_versions_is_not_reported_as_different():
    """Each look can see the row's current value at the source and its former value at the destination."""
    busy = Replica(lag=3, writes=lambda step: {7: "on" if step % 2 else "off"})
    assert busy.judged().differences == ()


@pytest.mark.seeded
@pytest.mark.parametrize("number", range(scaled(15, 300)))
def test_row_with_undelivered_changes_is_not_settled_by_a_chance_match(number: int):
    """At the source the row alternates between the destination's value and another: any look can match by chance."""
    dice = random.Random(seed_of(f"back and forth {number}"))
    stuck = Replica(
        lag=dice.randrange(4),
        writes=lambda step: {7: "other" if step <= 5 else dice.choice(["same", "other"])},
        arrives=lambda each: each != 7,
    )
    found = stuck.judged()
    assert found.settled == 0
    assert [each.key for each in (*found.differences, *found.in_flight)] == [("7",)]
    assert {each.what for each in found.differences} <= {"differs"}


def test_row_reverted_at_the_source_is_in_flight_with_that_reason():
    back = Replica(lag=1, writes=lambda step: {7: "other" if step <= 5 else "same"}, arrives=lambda each: each != 7)
    found = back.judged()
    assert not found.differences
    assert [(each.key, each.what) for each in found.in_flight] == [
        (("7",), "the same by now, and not written at the destination since it differed")
    ]


def test_deleted_rows_settle_when_neither_side_has_them():
    """A table of jobs: no remaining row can differ."""
    jobs = Replica(
        lag=3, writes=lambda step: {1000 + step: "a job", 1000 + step - 2: None}, arrives=lambda each: each != 1004
    )
    found = jobs.judged()
    assert (found.differences, found.in_flight) == ((), ())
    assert found.settled > 0


def test_destinations_own_changes_are_no_difference_until_they_return():
    def changed(*, waits: bool) -> JudgedRows:
        both_ways = Replica(lag=1, own=lambda step: {7: "here"} if step == 4 else {}, own_lag=100, waits_for_own=waits)
        return both_ways.judged()

    assert [each.key for each in changed(waits=False).differences] == [("7",)], "the return takes longer than all looks"
    found = changed(waits=True)
    assert (found.differences, found.in_flight, found.settled) == ((), (), 0)


@pytest.mark.seeded
@pytest.mark.parametrize("number", range(scaled(15, 300)))
def test_comparison_of_two_written_sides_finds_exactly_the_differing_rows(number: int):
    """Each side's users write different rows, so there are no conflicts."""
    dice = random.Random(seed_of(f"judged both ways {number}"))
    there, here = dice.sample(range(50), 10), dice.sample(range(50, 100), 10)

    def some(rows: list[int], step: int) -> dict[int, str | None]:
        return {
            each: dice.choice([f"of step {step}", "one of two", "the other"]) for each in rows if dice.random() < 0.3
        }

    both_ways = Replica(
        lag=dice.randrange(8),
        own_lag=dice.randrange(30),
        writes=lambda step: some(there, step),
        own=lambda step: some(here, step),
    )
    wrong = dice.sample(range(100, 200), dice.choice([0, 1, 5]))
    both_ways.here.write({each: dice.choice([None, "changed by hand"]) for each in wrong})
    found = both_ways.judged()
    assert {each.key for each in found.differences} == {(str(each),) for each in wrong}


@pytest.mark.seeded
@pytest.mark.parametrize("number", range(scaled(15, 300)))
def test_comparison_finds_exactly_the_differing_rows_under_load(number: int):
    """For any writes and any lag of the destination."""
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
