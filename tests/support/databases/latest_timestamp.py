"""A destination for tests of latest_timestamp, with its users and their queries.

Rows are (id, a, b, t, n, u). Times are the machine's: changes by users of the site have their commit's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from headrace.databases.embedded.servers import EmbeddedServer
from spark_apply.sets.collapse import plan_resolvable, plan_sets
from spark_apply.sets.conflict_settings import ConflictSettings
from spark_apply.sets.conflicts import execute_steps
from spark_apply.tables.fits import TableFits
from tests.support.databases.destination_contract import APPLY, TAG, TOPOLOGY, MemoryHarness, PostgresHarness
from tests.support.databases.statements import row_of
from tests.support.histories.conflicts import Conflicts, Lcr, batch_of, by_time, raw

__all__ = [
    "AHEAD_US",
    "HERE",
    "MINUTE",
    "ROWS",
    "THERE",
    "THREE",
    "TRIES_MAX",
    "TWO",
    "WAS",
    "Site",
    "apply",
    "changed",
    "now",
    "now_of",
    "site_on",
    "tried",
    "update",
    "value",
]

AHEAD_US = 4_500_000  # ahead of our clock: up to 5 s are accepted, and a user's commit comes before it
TRIES_MAX = 5  # on a stalling machine, a user's commit sometimes comes after it
TWO, THREE = ("b", "a"), ("b", "a", "c")
WAS = (1, "a", "b", 10, 100, "u")
MINUTE = 60_000_000


def changed(row, **values):
    """Return the row with other values."""
    return tuple(values.get(name, value) for name, value in zip(("id", "a", "b", "t", "n", "u"), row, strict=True))


HERE, THERE = changed(WAS, a="here"), changed(WAS, a="there", b="x")
ROWS = [changed(WAS, id=number) for number in range(1, 6)]


def now() -> int:
    return time.time_ns() // 1000


class Site(Conflicts):
    """A destination with latest_timestamp, and its users."""

    session: Any  # tests look into PostgreSQL's

    def __init__(self, harness, session, *, rows=(), tombstones: bool = True, sites=("b", "a", "c")) -> None:
        handlers, times = by_time(*sites, tombstones=tombstones)
        super().__init__(harness, session, *handlers, times=times)
        self.is_memory = isinstance(harness, MemoryHarness)
        if tombstones and not self.is_memory:
            harness._admin.execute("SELECT headrace.keep_tombstones('c')")
        self.sampled_us = 0
        for row in rows:
            assert self.apply(Lcr(new=row), at=now() - 10 * MINUTE) is None

    def sample(self) -> int:
        """Return a time that bounds the site's earlier changes from above, even if their times are lost."""
        self.session.sample_times(age_s=7 * 86_400, every_s=0)
        if not self.is_memory:
            self.wait_sampled()
        self.sampled_us = now()
        return self.sampled_us

    def wait_sampled(self) -> None:
        """Wait until transactions older than the last sample have ended.

        Another transaction of the server, such as autovacuum's, may run.
        """
        asked = "SELECT count(*) FROM headrace.row_change WHERE relation = 0 AND key2 = 1 AND changed_at IS NULL"
        while row_of(self.harness._admin.execute(asked))[0]:
            self.session.sample_times(age_s=7 * 86_400, every_s=3600)

    def lose_times(self) -> None:
        self.harness.lose_times(self.sampled_us)

    def user(self, old, new) -> int:
        """Make a user's change and return a time before it."""
        before = now()
        if self.is_memory:
            store = self.harness._store
            table = store.tables["public", "c"]
            if old is not None:
                (number,) = [n for n, row in table.rows.items() if row[0] == raw(old)[0]]
                table.put(number, None)
                if new is None or new[0] != old[0]:
                    store.changed_here("public", "c", raw(old)[:1], now(), is_gone=True)
            if new is not None:
                store.insert("public", "c", [raw(new)])
                store.changed_here("public", "c", raw(new)[:1], now())
        elif old is None:
            self.harness._admin.execute("INSERT INTO c VALUES (%s, %s, %s, %s, %s, %s)", new)
        elif new is None:
            self.harness._admin.execute("DELETE FROM c WHERE id = %s", old[:1])
        else:
            self.harness._admin.execute(
                "UPDATE c SET (id, a, b, t, n, u) = (%s, %s, %s, %s, %s, %s) WHERE id = %s", (*new, old[0])
            )
        return before


@contextmanager
def site_on(server: EmbeddedServer, dsn: str, **made: object) -> Iterator[Site]:
    """Yield a site with latest_timestamp on its own server."""
    harness = PostgresHarness(dsn, server)
    destination = harness.destination()
    destination.prepare(TOPOLOGY)
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    session = destination.open_session(TOPOLOGY, APPLY, server=0, epoch=epoch, tag=TAG)
    try:
        yield Site(harness, session, **made)
    finally:
        session.close()
        harness.close()


def tried(site, session, *lcrs, at, source: str = "a") -> bool:
    """Return whether LCRs succeed as sets; `conflicting` must say the same of each."""
    batch = batch_of(site.version, lcrs, each=True, first_scn=site.scn, source=source, times_us=[at] * len(lcrs))
    site.scn += 10 * len(lcrs)
    session.begin()
    plan = plan_resolvable([batch], site.fits.fit)
    assert plan is not None
    found = plan.around(session.conflicting)
    is_done = execute_steps(session, plan_sets([batch], site.fits.fit)) is not None
    if is_done:
        session.commit((), 0)
    else:
        session.rollback()
    assert is_done == (found is None or not (found[1] >= 0).any())
    return is_done


def now_of(site: Site, *sites: str) -> None:
    """Let the site apply changes of other sites than before."""
    handlers, times = by_time(*sites)
    site.rules = replace(site.rules, handlers=handlers, times=replace(times, site="b"))
    site.settings = ConflictSettings(apply=APPLY, source="a", site="b", rules=site.rules)
    site.fits = TableFits(site.session.describe, site.session.missing_alter, site.rules)


def update(row: int, a: str = "here", was: str = "a") -> Lcr:
    return Lcr(old=changed(ROWS[row - 1], a=was), new=changed(ROWS[row - 1], a=a))


def value(site: Site, row: int) -> Any:
    return next((found[1] for found in site.rows() if found[0] == row), None)


def apply(site: Site, row: int, at: int, source: str = "a") -> str | None:
    """Apply an UPDATE of another site that saw the present row; return the row's value, or the failure."""
    failure = site.apply(update(row, "there"), source=source, at=at)
    return value(site, row) if failure is None else failure.message
