"""Sites whose users change the same rows under random faults: with converging handlers, all end with the winning rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.simulation.contested import Contested
from headrace.simulation.run import Settings, simulate
from tests.support.session.seeds import seeds
from tests.support.topologies.files import read
from tests.support.topologies.simulated import example, run
from topology.proof.reach import Proof
from topology.spec import TopologySpec

pytestmark = pytest.mark.slow

MOMENT_S = 5.0  # virtual seconds in which users write: most contested rows are changed several times
SEEDS = 6  # of each topology, in `make soak`
CONFLICTS_MIN = 3  # resolved in one run; some dozens are usual
_SITES = (
    "sites: {dbs1: {database: {kind: embedded}}, dbs2: {database: {kind: embedded}}, dbs3: {database: {kind:"
    " embedded}}}\n"
)
HUB = f"""
topology: hub
{_SITES}
replicate: [{{tables: [shop.*], hub: dbs1, spokes: [dbs2, dbs3]}}]
conflict_handlers:
  - {{table: shop.a, method: maximum, columns: [v, t], resolution_column: t}}
  - {{table: shop.a, on: insert_exists, method: maximum, resolution_column: t}}
  - {{table: shop.a, on: update_missing, method: overwrite}}
  - {{table: shop.b, method: delta, columns: [n]}}
"""
PAIR = """
topology: pair
sites: {dbs1: {database: {kind: embedded}}, dbs2: {database: {kind: embedded}}}
replicate: [{tables: [shop.*], between: [dbs1, dbs2]}]
conflict_handlers:
  - {table: shop.a, method: site_priority, columns: [v, w], priority: [dbs2, dbs1]}
  - {table: shop.b, method: latest_timestamp, priority: [dbs1, dbs2]}
"""
BETWEEN = "topology: t\n" + _SITES + "replicate: [{tables: [shop.a], between: [dbs1, dbs2, dbs3]}]\n"
OVERWRITE = BETWEEN + "conflict_handlers: [{table: shop.a, method: overwrite}]\n"
THREE_PRIORITIES = (
    BETWEEN + "conflict_handlers: [{table: shop.a, method: site_priority, priority: [dbs1, dbs2, dbs3]}]\n"
)
ONE_WRITER = (
    "topology: t\n"
    + _SITES
    + "replicate: [{tables: [shop.a], from: dbs1, to: [dbs2, dbs3]}]\nconflict_handlers: [{table: shop.a, method:"
    " overwrite}]\n"
)


def contested(spec: TopologySpec) -> Contested:
    proof = Proof(spec)
    return Contested(spec, proof.classes, proof, 1)


@pytest.mark.long
@pytest.mark.seeded
@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=pytest.mark.soak) for name in ("latest_timestamp", "conflicts")), "conflicting_sites"],
)
def test_sites_end_with_the_changes_that_win_whatever_breaks(name: str) -> None:
    """`tests.simulation.test_topology` runs these examples briefly, as all others."""
    resolved = [
        run(name, seed, Settings(seconds=MOMENT_S)).seen.get("conflicts resolved", 0)
        for seed in seeds(name, test=1, soak=SEEDS)
    ]
    assert max(resolved) >= CONFLICTS_MIN, "hardly a conflict: these runs prove nothing"


@pytest.mark.long
@pytest.mark.seeded
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(HUB, id="a hub and two spokes"),
        pytest.param(PAIR, id="two sites with priorities, and with times but no tombstones"),
    ],
)
def test_sites_of_other_topologies_end_with_the_changes_that_win(text: str, tmp_path: Path) -> None:
    spec = read(tmp_path, text)
    assert {each.key for each in contested(spec).tables} == {("shop", "a"), ("shop", "b")}
    resolved = [
        run(spec, seed, Settings(seconds=MOMENT_S)).seen.get("conflicts resolved", 0)
        for seed in seeds(spec.name, test=1, soak=SEEDS)
    ]
    assert max(resolved) >= CONFLICTS_MIN, "hardly a conflict: these runs prove nothing"


def test_users_do_what_the_handlers_of_a_table_resolve() -> None:
    writes = {each.table.name: set(each.writes) for each in contested(example("conflicting_sites")).tables}
    assert writes == {
        "late": {"update", "insert", "delete", "move"},
        "high": {"update", "insert"},
        "low": {"update"},
        "gone": {"update", "delete"},
        "sums": {"update"},
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (OVERWRITE, r"shop\.a \(overwrite\) do not make dbs1, dbs2, dbs3 equal"),
        (THREE_PRIORITIES, r"shop\.a \(site_priority\) do not make"),
    ],
    ids=["overwrite", "site_priority at three sites"],
)
def test_handlers_that_leave_sites_different_are_refused_by_name(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        simulate(read(tmp_path, text), 1, Settings())


def test_handlers_that_differ_between_apply_processes_are_refused_by_name(tmp_path: Path) -> None:
    spec = read(tmp_path, PAIR)
    first, *others = spec.applies
    turned = tuple(replace(each, priority=each.priority[::-1]) for each in first.conflicts.handlers)
    with pytest.raises(ConfigError, match="differ between"):
        simulate(
            replace(spec, applies=(replace(first, conflicts=replace(first.conflicts, handlers=turned)), *others)),
            1,
            Settings(),
        )


def test_table_that_one_site_writes_is_not_contested(tmp_path: Path) -> None:
    assert contested(read(tmp_path, ONE_WRITER)).tables == []
