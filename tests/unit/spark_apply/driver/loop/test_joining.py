"""Tables copied while others are applied end equal to the source, whichever process dies at any step."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.simulation.observing.history import Source
from spark_apply.copy.records.standing import standings, table_starts
from spark_apply.tables.arriving import TableStart
from tests.support.apply.apply_engine import Engine, arm, table_of
from tests.support.copies.copies_beside import CopiesBeside, record_of
from tests.support.histories.apply_world import MemoryPlace, World
from tests.support.session.seeds import scaled

_SETTINGS = settings(
    max_examples=scaled(5, 100), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
_SEEDS = st.integers(0, 2**32)
LATE = ("plain", "history", "twice")


def begin(world: World, seed: int, *, again: int = 0, **options) -> tuple[Engine, CopiesBeside]:
    engine = world.engine(
        seed,
        instantiation={("public", name): TableStart(scn=None) for name in LATE},
        **options,
    )
    beside = CopiesBeside(world, LATE, seed, again=again)
    engine.beside = beside
    return engine, beside


def run(engine: Engine, beside: CopiesBeside) -> None:
    engine.run()
    for _ in range(40_000):
        if beside.is_done(engine) and engine.coordinator.is_idle:
            break
        engine.step()
    assert beside.is_done(engine)
    engine.run()


@pytest.mark.seeded
@_SETTINGS
@given(seed=_SEEDS, parallelism=st.integers(1, 3), again=st.integers(0, 2), large=st.sampled_from([0, 3]))
def test_tables_copied_beside_equal_the_source_after_joining(
    seed: int, parallelism: int, again: int, large: int
) -> None:
    world = World(seed, MemoryPlace(), count=40, conflicts=0, large=large)
    engine, beside = begin(world, seed, parallelism=parallelism, again=again)
    run(engine, beside)
    world.check()


@pytest.mark.seeded
@_SETTINGS
@given(seed=_SEEDS, parallelism=st.integers(1, 3), large=st.sampled_from([0, 3]))
def test_joins_survive_the_death_of_any_process(
    seed: int, parallelism: int, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(seed, MemoryPlace(), count=40, conflicts=0, large=large)
    arm(monkeypatch, random.Random(seed), 0.02)
    engine, beside = begin(world, seed, parallelism=parallelism, again=1, crash=0.006)
    run(engine, beside)
    world.check()


@pytest.mark.long
def test_join_tests_include_rewinds_and_deaths_during_joins() -> None:
    rewound = died = 0
    for seed in range(12):
        world = World(seed, MemoryPlace(), count=40, conflicts=0, large=2)
        engine, beside = begin(world, seed, again=1, crash=0.006)
        run(engine, beside)
        world.check()
        rewound, died = rewound + beside.rewound, died + beside.died
    assert rewound > 5
    assert died > 2


@pytest.mark.long
def test_tables_truncated_during_their_copy_join_at_the_truncate(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy contains the rows that a transaction changed before its TRUNCATE: none of them may count as missing, and
    no step may fail.
    """
    monkeypatch.setattr(Source, "truncate_share", 0.2)
    emptied = 0
    for seed in range(12):
        world = World(seed, MemoryPlace(), count=60, conflicts=0, large=2)
        engine, beside = begin(world, seed, again=2, crash=0.003)
        run(engine, beside)
        world.check()
        emptied += beside.emptied
    assert emptied > 2


def test_other_tables_continue_while_one_is_copied_and_the_queue_is_held() -> None:
    world = World(4, MemoryPlace(), count=30, conflicts=0)
    engine, _ = begin(world, 4)
    engine.beside = lambda engine: None
    engine.joins.hold(engine.told)
    engine.run()
    assert engine.coordinator.watermarks.low == world.batches[-1].through_scn
    assert engine.told == 0
    for table in world.tables:
        expected = world.start if table.name in LATE else world.reference.rows
        assert sorted(map(repr, world.place.rows(table))) == sorted(map(repr, expected[table.name])), table.name


def test_record_state_decides_where_applying_a_table_starts() -> None:
    states = ("DONE", "KEPT", "JOINING", "COPIED", "COPYING", "COMPARING", "FAILED", "PENDING", "LEFT")
    records = [record_of(state, 70, state) for state in states]
    new = record_of("new", 0, "PENDING")
    starts = table_starts(standings([table_of(each) for each in [*records, new]], records))
    assert starts["public", "new"] == TableStart(scn=None)
    assert {name for (_, name), start in starts.items() if start.scn is not None} == {"DONE", "KEPT", "JOINING"}
    assert starts["public", "JOINING"].is_joining
