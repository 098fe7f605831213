"""Users of several sites who write at random, and continue after their server has stopped."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any

import psycopg

from tests.support.clusters.system import System, wait_until
from tests.support.session.background import in_background
from tests.support.session.seeds import seed_of

__all__ = ["random_users", "wait_writing"]

SITES = ("a", "b")  # sites with users
PAUSE_S = 0.02  # a user's pause between two changes: a small machine keeps up
WRITTEN_MIN = 50  # changes of each site before, during and after faults


@contextmanager
def random_users(
    system: System, changes: Sequence[str], values: Callable[[random.Random, str, int], Mapping[str, Any]], name: str
) -> Iterator[Counter[str]]:
    """Run one user of each site during the block; yield the number of changes of each.

    Args:
        system: with sites a and b.
        changes: statements, with the site for `{0}`.
        values: parameters of a statement, drawn for a site and the number of the change there.
        name: of the histories, which identifies their seeds.
    """
    done: Counter[str] = Counter()

    def use(site: str, ended: Event) -> None:
        rng = random.Random(seed_of(f"{name} {site}"))
        while not ended.is_set():
            try:
                with system.connection(site) as connection:
                    while not ended.wait(PAUSE_S):
                        change = rng.choice(changes).format(site).encode()
                        connection.execute(change, values(rng, site, done[site]))
                        done[site] += 1
            except psycopg.Error:
                ended.wait(PAUSE_S)  # the server is down

    with in_background(*(partial(use, site) for site in SITES)):
        yield done


def wait_writing(done: Counter[str]) -> None:
    """Wait until every site has some more changes.

    Args:
        done: of `random_users`.
    """
    before = dict(done)
    wait_until("both sites write", lambda: all(done[site] >= before.get(site, 0) + WRITTEN_MIN for site in SITES))
