"""A simulation that cannot fail proves nothing: every defect that is planted in the product must be found.

Each is planted alone.
"""

from __future__ import annotations

import pytest

from headrace.simulation.run import Settings, simulate
from tests.support.topologies.planted_defects import PLANTED, Planted
from tests.support.topologies.simulated import example

UNFIT = ("an unexpected error: TypeError", "an unexpected error: AttributeError")

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize(
    "planted", [pytest.param(each, marks=pytest.mark.soak if each.is_slow else (), id=each.name) for each in PLANTED]
)
def test_planted_defect_is_found(monkeypatch: pytest.MonkeyPatch, planted: Planted) -> None:
    planted.plant(monkeypatch)
    for seed in range(planted.first, planted.first + planted.seeds):
        outcome = simulate(example(planted.example), seed, Settings())
        if not outcome.is_fine:
            print(f"{planted.name}: seed {seed} finds it: {outcome.invariant}: {outcome.place}: {outcome.problem}")
            assert outcome.trace
            # A planted defect that no longer fits the code raises an error: then nothing was found.
            assert not outcome.problem.startswith(UNFIT), outcome.problem
            return
    pytest.fail(f"{planted.name}: none of {planted.seeds} seeds from {planted.first} on finds it")
