"""Named scenarios over three to five sites, in virtual time: real cores, and a script of faults over time.

After every commit, and at the end, `headrace.simulation.checking.observer` checks the invariants of every site: no
loss, no duplicates, order, watermarks, convergence. The seed determines everything that a script leaves open; in `make
soak` seeds are new, and printed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.simulation.world import Simulation
from tests.support.session.seeds import scaled, seed_of
from tests.support.topologies.files import read
from tests.support.topologies.simulated_scripts import (
    Step,
    cut_all,
    database_down,
    killed,
    lost_answers,
    parted,
    played,
    second_drivers,
    slow,
    twice,
)
from topology.file.reading import read_topology
from topology.spec import TopologySpec

pytestmark = [pytest.mark.slow, pytest.mark.long]

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 10.0  # virtual seconds in which users write: thirty transactions, before, during and after faults
SEEDS = 6  # of each scenario, in `make soak`
_SITES = "\n".join(f"  s{number}: {{database: {{kind: embedded}}}}" for number in range(1, 6))
FIVE: dict[str, str] = {
    "five n-way": f"topology: five\nsites:\n{_SITES}\nreplicate:\n  - {{tables: [t.*], between: [s1, s2, s3, s4,"
    " s5]}\n",
    "four spokes": f"topology: four\nsites:\n{_SITES}\nreplicate:\n  - {{tables: [t.*], hub: s1, spokes: [s2, s3, s4,"
    " s5]}\n",
}
_DOWNSTREAM = """
topology: downstreams
sites: {s1: {database: {kind: embedded}}, s2: {database: {kind: embedded}}, s3: {database: {kind: embedded}}}
queues: {q1: {site: s3}, q2: {site: s1}, q3: {site: s2}, q1_in: {site: s2}, q2_in: {site: s3}, q3_in: {site: s1}}
captures:
  c1: {site: s3, source: s1, queue: q1, rules: {include: [{schema: t}]}}
  c2: {site: s1, source: s2, queue: q2, rules: {include: [{schema: t}]}}
  c3: {site: s2, source: s3, queue: q3, rules: {include: [{schema: t}]}}
propagations: {p1: {from: q1, to: q1_in}, p2: {from: q2, to: q2_in}, p3: {from: q3, to: q3_in}}
applies:
  s1_at_3: {site: s3, source: s1, queue: q1}
  s1_at_2: {site: s2, source: s1, queue: q1_in}
  s2_at_1: {site: s1, source: s2, queue: q2}
  s2_at_3: {site: s3, source: s2, queue: q2_in}
  s3_at_2: {site: s2, source: s3, queue: q3}
  s3_at_1: {site: s1, source: s3, queue: q3_in}
"""
_LATEST = """
conflict_handlers:
  - {table: t.a, method: latest_timestamp, priority: [s1, s2, s3]}
tombstones: {}
"""
_MAXIMUM = """
conflict_handlers:
  - {table: t.a, method: maximum, columns: [v, at], resolution_column: at}
  - {table: t.b, method: delta, columns: [n]}
"""
FIVE |= {
    # The redo of each site is mined at the next one; all three write.
    "downstream": _DOWNSTREAM,
    "downstream, same rows": _DOWNSTREAM + _LATEST,
    "five hub, same rows": FIVE["four spokes"] + _MAXIMUM,
}
Scenario = tuple[str, tuple[Step, ...]]

SCENARIOS: dict[str, Scenario] = {
    # three sites that all write
    "one of three sites is cut off for most of the time": ("n_way", (parted(1, 6, "dbs2"), parted(7.5, 2, "dbs2"))),
    "all three capture processes die together, twice": ("n_way", (killed(2, "capture"), killed(5, "capture"))),
    "three sites restart one after the other": (
        "n_way",
        (killed(1, site="dbs1"), killed(4, site="dbs2"), killed(7, site="dbs3")),
    ),
    "the answers to COMMIT are lost at all three sites": (
        "n_way",
        (lost_answers(1, "dbs1", "dbs2", "dbs3"), lost_answers(4, "dbs3", "dbs2", "dbs1")),
    ),
    "a database comes back while the next one goes": (
        "n_way",
        (database_down(1, 3, "dbs1"), database_down(3, 3, "dbs2"), database_down(5, 3, "dbs3")),
    ),
    # a hub and its spokes
    "the hub loses all its processes": ("hub_and_spoke", (killed(2, site="dbs1"), killed(6, site="dbs1"))),
    "the hub is parted from all its spokes": ("hub_and_spoke", (parted(1, 4, "dbs1"), parted(6, 2, "dbs1"))),
    "the hub's database is down, and its log writer dies meanwhile": (
        "hub_and_spoke",
        (killed(2, "site", site="dbs1"), database_down(2.1, 4, "dbs1")),
    ),
    "two spokes are cut off, then the third": ("hub_and_spoke", (parted(1, 3, "dbs2", "dbs3"), parted(5, 3, "dbs4"))),
    "every apply process of the hub runs twice": (
        "hub_and_spoke",
        (second_drivers(2, 3, "dbs1"), second_drivers(7, 2, "dbs1")),
    ),
    # a primary with extended secondaries: the site in the middle is a hub and a spoke
    "the site in the middle dies and is parted when it is back": (
        "extended_secondaries",
        (killed(2, site="dbs2"), parted(4, 3, "dbs2")),
    ),
    "the outermost site is away, and its database is down when it is back": (
        "extended_secondaries",
        (parted(1, 4, "dbs4"), database_down(5.5, 2, "dbs4")),
    ),
    # one source, many destinations
    "one of three destinations is down while the others are restarted": (
        "fan_out",
        (database_down(1, 7, "dbs3"), killed(4, "apply", site="dbs2"), killed(5, "apply", site="dbs4")),
    ),
    "the source of three destinations dies with its queue": (
        "fan_out",
        (killed(2, "site", "capture", "queue", site="dbs1"), killed(6, site="dbs1")),
    ),
    # over a relay
    "the relay dies again and again": (
        "relay",
        (killed(1, "queue", "propagation"), killed(4, "queue", "propagation"), killed(7, "queue", "propagation")),
    ),
    "everything on the way over the relay comes twice and late": ("relay", (twice(2), slow(4, 3), twice(7))),
    # several sources into one destination
    "the common destination of two sources loses its database and its apply processes": (
        "several_sources",
        (killed(2, "apply", site="dbs3"), database_down(3, 4, "dbs3")),
    ),
    # downstream capture among three sites that all write
    "a site that mines another one's redo is cut off, and dies meanwhile": (
        "downstream",
        (parted(1, 4, "s3"), killed(3, site="s3"), killed(7, "redo")),
    ),
    "a source of downstream capture dies with its database while the other one is parted": (
        "downstream",
        (parted(1, 4, "s2"), killed(2, site="s1"), database_down(2.1, 3, "s1")),
    ),
    # the same rows written everywhere, and several faults at once
    "same rows at three sites: capture dies while another site is cut off and a third one's database restarts": (
        "latest_timestamp",
        (
            parted(1, 5, "dbs1"),
            killed(2, "capture", site="dbs2"),
            database_down(2.1, 2, "dbs3"),
            killed(2.2, "apply", site="dbs3"),
            lost_answers(7, "dbs1", "dbs2", "dbs3"),
        ),
    ),
    "same rows at three sites, each away in its turn while the others meet": (
        "latest_timestamp",
        (parted(0.5, 3, "dbs1"), parted(4, 2, "dbs2"), second_drivers(4.5, 2, "dbs1"), parted(7, 3, "dbs3"), twice(8)),
    ),
    "same rows over a hub: the hub dies while two spokes are cut off and a third one's database is down": (
        "five hub, same rows",
        (parted(1, 6, "s4", "s5"), database_down(2, 3, "s2"), killed(3, site="s1"), killed(6, "capture")),
    ),
    "same rows and downstream capture: the mining site is cut off, then dies with the apply processes of the others": (
        "downstream, same rows",
        (
            parted(1, 3, "s3"),
            killed(2, "apply", site="s1"),
            killed(5, site="s3"),
            killed(5.1, "apply", site="s2"),
            twice(8),
        ),
    ),
    # five sites
    "five sites: every link breaks at once, three times": ("five n-way", (cut_all(1), cut_all(4), cut_all(7))),
    "five sites: two are parted from three": ("five n-way", (parted(1, 4, "s1", "s2"), parted(6, 3, "s2", "s3"))),
    "five sites: the hub dies while two of four spokes are cut off": (
        "four spokes",
        (parted(1, 6, "s4", "s5"), killed(3, site="s1")),
    ),
}

# Variants, for `make soak`: the same fault at another time, at another site, or in another topology.
VARIANTS = {
    "one of three sites is cut off for most of the time",
    "three sites restart one after the other",
    "a database comes back while the next one goes",
    "the hub is parted from all its spokes",
    "the hub's database is down, and its log writer dies meanwhile",
    "two spokes are cut off, then the third",
    "the outermost site is away, and its database is down when it is back",
    "the source of three destinations dies with its queue",
    "the relay dies again and again",
    "a source of downstream capture dies with its database while the other one is parted",
    "same rows at three sites, each away in its turn while the others meet",
    "same rows over a hub: the hub dies while two spokes are cut off and a third one's database is down",
    "same rows and downstream capture: the mining site is cut off, then dies with the apply processes of the others",
    "five sites: every link breaks at once, three times",
}


def topology(name: str, folder: Path) -> TopologySpec:
    return read(folder, FIVE[name]) if name in FIVE else read_topology(EXAMPLES / f"{name}.yaml", {})


@pytest.mark.fault("what the script of the scenario says")
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, marks=pytest.mark.soak if each in VARIANTS else pytest.mark.seeded) for each in SCENARIOS],
)
def test_nothing_is_lost_doubled_or_reordered_when(scenario: str, tmp_path: Path):
    name, steps = SCENARIOS[scenario]
    for number in range(scaled(1, SEEDS)):
        seed = seed_of(f"{scenario} {number}")
        print(f"{scenario}: seed {seed}")
        (folder := tmp_path / str(number)).mkdir()
        sim, not_fired = played(topology(name, tmp_path), seed, folder, steps, SECONDS)
        assert_all_is_well(sim, not_fired, steps)


def assert_all_is_well(sim: Simulation, not_fired: list[str], steps: tuple[Step, ...]) -> None:
    assert not_fired == []
    assert {step.name for step in steps} <= set(sim.fired)
    databases = sum(site.database.kind != "none" for site in sim.topology.sites)
    assert databases >= 3
    assert sum(stream.counts for stream in sim.workload.streams) >= SECONDS
    assert all(apply.observer.low_watermark for apply in sim.running.applies.values())
    assert not sim.workload.contested.tables or sim.seen["conflicts resolved"]
    assert not any(store.errors for store in (database.store for database in sim.databases.values()))
