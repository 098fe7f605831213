"""Sites that change the same rows at the same time: which handlers make them equal again, and where the others fail.

HEADRACE_SIMULATION_SECONDS (as for the simulated topologies) lets the random histories go on for so long, all together.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.support.concurrent_writes import Sites, every_history, find_divergence, random_steps
from tests.support.convergence import CONVERGENT, DIVERGENT, DOCUMENT, OVER_A_HUB, documented, named

WRITES = 14  # in a history: several for each row and site
SECONDS = float(os.environ.get("HEADRACE_SIMULATION_SECONDS", "0")) / len(CONVERGENT)
HISTORIES = 100 if SECONDS else 25  # of each combination; `make test` has thousands of all together, the quick gate half a thousand


@pytest.mark.long
@pytest.mark.parametrize("combination", CONVERGENT, ids=named)
def test_sites_end_equal_and_without_errors_whatever_happens_at_the_same_time(combination):
    """Three sites send each other what they did, in every order that keeps each source's own."""
    begun, seed, applied = time.monotonic(), 0, 0
    while seed < HISTORIES or time.monotonic() - begun < SECONDS:
        steps = random_steps(combination, seed, WRITES)
        sites = Sites(combination)
        assert sites.run(steps), f"seed {seed}: {find_divergence(combination, [seed], WRITES)} {sites.failures}"
        applied += sites.met
        seed += 1
    assert applied > seed, "hardly a conflict: the histories show nothing"


@pytest.mark.parametrize("combination", OVER_A_HUB, ids=named)
def test_what_makes_two_sites_equal_makes_sites_over_a_hub_equal(combination):
    met = 0
    for seed in range(HISTORIES):
        steps, sites = random_steps(combination, seed, WRITES), Sites(combination)
        assert sites.run(steps), f"seed {seed}: {find_divergence(combination, [seed], WRITES)} {sites.failures}"
        met += sites.met
    assert met > HISTORIES, "hardly a conflict: the histories show nothing"


def test_a_spoke_that_only_receives_follows_its_hub_under_latest_timestamp():
    """Everything comes to it from one site, in that site's order: no times are compared."""
    (combination,) = (each for each in DIVERGENT if each.hub)
    met = 0
    for seed in range(HISTORIES):
        steps, sites = [step for step in random_steps(combination, seed, WRITES) if not step.startswith("dbs3:")], Sites(combination)
        assert sites.run(steps), steps
        met += sites.met
    assert met > HISTORIES


@pytest.mark.parametrize("combination", DIVERGENT, ids=named)
def test_a_history_is_found_at_which_a_combination_fails(combination):
    found = find_divergence(combination, range(200), writes=8)
    assert found is not None
    assert len(found) <= 5
    assert not Sites(combination).run(found)


def test_the_document_has_every_combination_that_fails_with_a_history_that_shows_it():
    found = documented()
    assert sorted(found) == sorted(named(combination) for combination in DIVERGENT)
    for combination in DIVERGENT:
        assert not Sites(combination).run(found[named(combination)]), named(combination)


@pytest.mark.parametrize("combination", DIVERGENT, ids=named)
def test_no_shorter_history_than_the_documented_one_shows_that_a_combination_fails(combination):
    shorter = [steps for count in range(len(documented()[named(combination)])) for steps in every_history(combination, count)]
    assert shorter
    assert [steps for steps in shorter if not Sites(combination).run(steps)] == []


def test_the_document_has_every_combination_that_converges():
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in {combination.name for combination in CONVERGENT}:
        sites = sorted(combination.sites for combination in CONVERGENT if combination.name == name)
        assert f"| {name} | {' and '.join(map(str, sites))} |" in text
