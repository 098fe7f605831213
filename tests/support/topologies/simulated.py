"""Topologies that tests simulate, and what each run must leave."""

from __future__ import annotations

from headrace.simulation.run import Outcome, Settings, simulate
from tests.support.session.packages import ROOT
from tests.support.topologies import files
from topology.file.reading import read_topology
from topology.spec import TopologySpec

__all__ = ["example", "run"]

OWN = ROOT / "tests" / "simulation"  # what the examples do not have


def example(name: str) -> TopologySpec:
    """A topology of the examples, or of a file beside the tests of simulations."""
    own = OWN / f"{name}.yaml"
    return read_topology(own, {}) if own.exists() else files.example(name)


def run(topology: str | TopologySpec, seed: int, settings: Settings | None = None) -> Outcome:
    """Simulate one seed; every invariant must hold.

    Args:
        topology: the name of one, or one that no file has.
        seed: decides everything; it is printed.
        settings: none: as long as `headrace simulate` goes on, with every fault.
    """
    spec, settings = example(topology) if isinstance(topology, str) else topology, settings or Settings()
    print(f"headrace simulate {spec.file} --seed {seed} --seconds {settings.seconds:g}")
    outcome = simulate(spec, seed, settings)
    assert outcome.is_fine, "\n".join(
        [f"seed {seed}: {outcome.invariant}: {outcome.place}: {outcome.problem}", *outcome.trace]
    )
    return outcome
