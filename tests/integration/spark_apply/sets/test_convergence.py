"""Sites on a real server that change the same rows at the same time: the results that docs/how/conflicts.md states for each
combination of handlers.

The histories are those of `tests/support/histories/concurrent_writes.py`. There they run by the thousand in memory;
here a few of each go through slots, redo logs, rules and apply engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from headrace.databases.embedded.servers import EmbeddedServer
from tests.support.histories.concurrent_writes import Combination, random_steps
from tests.support.histories.convergence import CONVERGENT, DIVERGENT, OVER_A_HUB, documented, named
from tests.support.session.seeds import is_soak, scaled, seeds
from tests.support.ways.postgres_network import PostgresNetwork
from tests.support.ways.real_sites import APART, RealSites, network_of, site_names

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

HISTORIES = scaled(2, 15)  # of each combination, one after the other, each with its own rows
WRITES = 14
# the product waits until the server's clock is ahead: no history of a real server shows it
CLOCK = "latest_timestamp, a clock is set back"

# The combinations that `make test` shows on servers: each kind of handler at two sites or over a hub. The database in
# memory shows all of them there. `test_latest_timestamp.py` shows latest_timestamp with tombstones at three sites.
CORE = {
    "maximum with insert_exists: maximum and update_missing: overwrite (2 sites)",
    "minimum, always falling (2 sites)",
    "delta of one list beside maximum of another (2 sites)",
    "latest_timestamp (2 sites)",
    "site_priority, a list for each column, values never come again (2 sites)",
    "maximum, delete wins, keys inserted once (3 sites)",
    "no handler (2 sites)",
    "maximum with key updates (2 sites)",
    "latest_timestamp without tombstones, deletes (2 sites)",
}


def core(combinations: Sequence[Combination]) -> list[ParameterSet]:
    """Return the combinations; those outside the core run only in `make soak`."""
    return [pytest.param(each, marks=() if named(each) in CORE else (pytest.mark.soak,)) for each in combinations]


@pytest.fixture
def sites_of(
    pg_source: EmbeddedServer, prepared_database: Callable[[EmbeddedServer], str], tmp_path: Path
) -> Iterator[Callable[[Combination], RealSites]]:
    """Return a function that makes the sites of a combination."""
    made: list[PostgresNetwork] = []

    def make(combination: Combination) -> RealSites:
        network = network_of(
            combination,
            {name: prepared_database(pg_source) for name in site_names(combination)},
            tmp_path,
            histories=HISTORIES,
        )
        made.append(network)
        return RealSites(combination, network)

    yield make
    for network in made:
        network.close()


@pytest.mark.seeded
@pytest.mark.parametrize("combination", [*core(CONVERGENT), *core(OVER_A_HUB)], ids=named)
def test_sites_end_equal_and_without_errors_as_documented(
    sites_of: Callable[[Combination], RealSites], combination: Combination
) -> None:
    sites = sites_of(combination)
    for history, seed in enumerate(seeds(named(combination), test=HISTORIES, soak=HISTORIES)):
        sites.base = APART * history
        steps = random_steps(combination, seed, WRITES)
        assert sites.run(steps), steps
    met = [
        record
        for site in sites.network.sites.values()
        for record in site.destination.conflicts("convergence", last=1000)
    ]
    # The known seeds show one in each history; new ones sometimes show fewer.
    assert len(met) >= (1 if is_soak() else HISTORIES), "hardly a conflict: the histories show nothing"


@pytest.mark.parametrize("combination", [each for each in core(DIVERGENT) if each.values[0].name != CLOCK], ids=named)
def test_the_documented_history_leaves_sites_different_or_an_error(
    sites_of: Callable[[Combination], RealSites], combination: Combination
) -> None:
    assert not sites_of(combination).run(documented()[named(combination)])
