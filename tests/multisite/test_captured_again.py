"""Changes that are captured again, in virtual time: one destination lost them, or an operator set a start SCN back.

The other destinations drop what they have.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.simulation.world import Simulation
from tests.support.session.seeds import seed_of
from tests.support.topologies.simulated_scripts import Step, captured_again, killed, played, restored
from topology.file.reading import read_topology
from topology.spec import TopologySpec

pytestmark = [pytest.mark.slow, pytest.mark.long]

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 20.0  # virtual seconds; redo of the first ones is purged by the end
ROOM_BYTES = 1 << 20  # room for all redo of a run: redo is purged only because it is no longer needed
HOUR_S = 3600.0  # virtual seconds; longer than a run


def fan_out(retention_s: float, *, is_direct: bool) -> TopologySpec:
    """Return one source with three destinations, on the smallest redo segments."""
    spec = read_topology(EXAMPLES / "fan_out.yaml", {})
    spec = replace(spec, applies=tuple(replace(each, combined=is_direct) for each in spec.applies))
    return replace(spec, captures=tuple(replace(each, checkpoint_retention_s=retention_s) for each in spec.captures))


def run(folder: Path, retention_s: float, *steps: Step, seed: int = 1, is_direct: bool = True) -> Simulation:
    sim, not_fired = played(
        fan_out(retention_s, is_direct=is_direct), seed, folder, steps, SECONDS, redo_bytes_max=ROOM_BYTES
    )
    assert not_fired == []
    assert {step.name for step in steps} <= set(sim.fired)
    return sim


@pytest.mark.fault("a backup that is restored")
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 6))])
def test_restored_destination_catches_up_without_duplicates_elsewhere(tmp_path: Path, seed: int) -> None:
    """The observers see every commit at every site, so they would find a duplicate."""
    sim = run(
        tmp_path,
        HOUR_S,
        *restored(2.0, 12.0, "dbs3"),
        killed(14.0, "capture", "queue"),
        seed=seed if seed == 1 else seed_of(f"restored {seed}"),
    )
    assert sim.fired["copied again"] == 0
    assert all(apply.refused is None for apply in sim.running.applies.values())


@pytest.mark.fault("a backup that is restored")
def test_without_a_retention_time_it_is_refused_by_name_and_copied_again(tmp_path: Path) -> None:
    sim = run(tmp_path, 0.0, *restored(2.0, 12.0, "dbs3"))
    assert sim.fired["copied again"] == 1


@pytest.mark.fault("an operator who captures everything again")
@pytest.mark.parametrize(("is_direct", "between"), [(True, "queue"), (False, "propagation")])
def test_what_an_operator_has_captured_again_is_dropped_everywhere(
    tmp_path: Path, is_direct: bool, between: str
) -> None:
    sim = run(tmp_path, HOUR_S, captured_again(8.0), killed(9.0, between), captured_again(12.0), is_direct=is_direct)
    assert sim.fired["copied again"] == 0
