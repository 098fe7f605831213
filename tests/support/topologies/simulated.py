"""Topologies that tests simulate, and the expected result of each run."""

from __future__ import annotations

from headrace.simulation.run import Outcome, Settings, simulate
from tests.support.session.packages import ROOT
from tests.support.topologies import files
from topology.file.reading import read_topology
from topology.spec import TopologySpec

__all__ = ["example", "run"]

OWN = ROOT / "tests" / "simulation"  # topologies that are not among the examples


def example(name: str) -> TopologySpec:
    """Return a topology of the examples, or of a file next to the simulation tests."""
    own = OWN / f"{name}.yaml"
    return read_topology(own, {}) if own.exists() else files.example(name)


def run(topology: str | TopologySpec, seed: int, settings: Settings | None = None) -> Outcome:
    """Simulate one seed; every invariant must hold.

    Args:
        topology: a name, or a topology that no file has.
        seed: determines everything; it is printed.
        settings: default: as long as `headrace simulate` runs, with every fault.
    """
    spec, settings = example(topology) if isinstance(topology, str) else topology, settings or Settings()
    print(f"headrace simulate {spec.file} --seed {seed} --seconds {settings.seconds:g}")
    outcome = simulate(spec, seed, settings)
    assert outcome.is_fine, "\n".join(
        [f"seed {seed}: {outcome.invariant}: {outcome.place}: {outcome.problem}", *outcome.trace]
    )
    return outcome
