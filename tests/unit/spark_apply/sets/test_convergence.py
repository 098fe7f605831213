"""Sites that change the same rows concurrently: handlers that make them converge, and the failures of the others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from _pytest.mark import ParameterSet

from tests.support.histories.concurrent_writes import Combination, Sites, every_history, find_divergence, random_steps
from tests.support.histories.conflicts import Lcr
from tests.support.histories.convergence import CONVERGENT, DIVERGENT, DOCUMENT, OVER_A_HUB, documented, named
from tests.support.session.matrices import cases
from tests.support.session.seeds import seeds

WRITES = 14  # per history: several for each row and site
# per combination: 340 in total in `make test`, 7,000 in `make soak`
HISTORIES, MORE = 20, 200
# Differ from another combination only by the order of values or sites.
TWINS = ("minimum", "site_priority dbs2", "site_priority, a list for each column dbs2")
# Over a hub no more than what their parts show there.
COMPOSED = ("maximum with insert_exists", "delta of one list beside", "maximum, delete wins, keys inserted")


def without_twins(combinations: Sequence[Combination], *others: str) -> list[ParameterSet]:
    """Return the combinations; `make test` skips twins of three sites, and two sites where three have the same handlers.

    Args:
        combinations: all of them.
        others: beginnings of the names of more that it skips.
    """
    at_three = {each.name for each in combinations if each.sites == 3 and not each.name.startswith((*TWINS, *others))}
    return cases(
        {named(each): each for each in combinations},
        core=[named(each) for each in combinations if (each.sites == 3) == (each.name in at_three)],
    )


@pytest.mark.long
@pytest.mark.seeded
@pytest.mark.parametrize("combination", without_twins(CONVERGENT))
def test_sites_converge_without_errors_under_concurrent_changes(combination):
    """Three sites send each other their changes, in every order that keeps the order of each source."""
    applied = 0
    for seed in (histories := seeds(named(combination), test=HISTORIES, soak=MORE)):
        steps = random_steps(combination, seed, WRITES)
        sites = Sites(combination)
        assert sites.run(steps), f"seed {seed}: {find_divergence(combination, [seed], WRITES)} {sites.failures}"
        applied += sites.met
    assert applied > len(histories), "too few conflicts: the histories prove nothing"


@pytest.mark.long
@pytest.mark.seeded
@pytest.mark.parametrize("combination", without_twins(OVER_A_HUB, *COMPOSED))
def test_handlers_that_converge_two_sites_converge_sites_over_a_hub(combination):
    met = 0
    for seed in (histories := seeds(f"{named(combination)} over a hub", test=HISTORIES, soak=MORE)):
        steps, sites = random_steps(combination, seed, WRITES), Sites(combination)
        assert sites.run(steps), f"seed {seed}: {find_divergence(combination, [seed], WRITES)} {sites.failures}"
        met += sites.met
    assert met > len(histories), "too few conflicts: the histories prove nothing"


@pytest.mark.seeded
def test_receiving_spoke_follows_its_hub_under_latest_timestamp():
    """All its changes come from one site in that site's order, so no times are compared."""
    (combination,) = (each for each in DIVERGENT if each.hub)
    met = 0
    for seed in (histories := seeds("a spoke that only receives", test=HISTORIES, soak=MORE)):
        steps, sites = (
            [step for step in random_steps(combination, seed, WRITES) if not step.startswith("dbs3:")],
            Sites(combination),
        )
        assert sites.run(steps), steps
        met += sites.met
    assert met > len(histories)


class SubsetSites(Sites):
    """dbs2 has the rows of dbs1 with a number below 101, and sends back its users' changes."""

    def _write(self, name: str, kind: str, key: int, new_key: int) -> None:
        super()._write(name, kind, key, new_key)
        waiting = self._sites["dbs1"].sent["dbs2"]
        if name == "dbs1":
            ((change,), time_us) = waiting.pop()
            old, new = (row if row is not None and int(row[4] or 0) < 101 else None for row in (change.old, change.new))
            waiting.extend([] if old is None and new is None else [((Lcr(old=old, new=new),), time_us)])


def test_last_change_of_a_row_that_left_a_subset_does_not_reach_the_subset():
    """This is why `check` warns of a subset that several sites write (`topology.proof.meetings`)."""
    (combination,) = (
        each for each in CONVERGENT if each.name == "latest_timestamp with tombstones" and each.sites == 2
    )
    sites = SubsetSites(combination)
    for step in ("dbs1: add 1", "dbs2: update 1", "dbs2: update 1", "dbs1: update 1", "dbs1: update 1", "deliver"):
        sites.take(step)
    assert not sites.failures
    assert [row[4] for row in sites.rows("dbs1") if row[0] == 1] == [101]
    assert [row[4] for row in sites.rows("dbs2") if row[0] == 1] == [100]


@pytest.mark.parametrize(
    "combination",
    cases(
        {named(each): each for each in DIVERGENT},
        # The document's history of each one fails in `make test`, too: see below.
        core=("no handler (2 sites)", "maximum, values come again (2 sites)", "maximum with key updates (2 sites)"),
    ),
)
def test_search_finds_a_history_that_makes_a_combination_fail(combination):
    found = find_divergence(combination, range(200), writes=8)
    assert found is not None
    assert len(found) <= 5
    assert not Sites(combination).run(found)


def test_document_lists_every_failing_combination_with_a_failing_history():
    found = documented()
    assert sorted(found) == sorted(named(combination) for combination in DIVERGENT)
    for combination in DIVERGENT:
        assert not Sites(combination).run(found[named(combination)]), named(combination)


@pytest.mark.soak
@pytest.mark.parametrize("combination", DIVERGENT, ids=named)
def test_documented_history_is_the_shortest_failing_one(combination):
    shorter = [
        steps for count in range(len(documented()[named(combination)])) for steps in every_history(combination, count)
    ]
    assert shorter
    assert [steps for steps in shorter if not Sites(combination).run(steps)] == []


def test_document_lists_every_converging_combination():
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in {combination.name for combination in CONVERGENT}:
        sites = sorted(combination.sites for combination in CONVERGENT if combination.name == name)
        assert f"| {name} | {' and '.join(map(str, sites))} |" in text
