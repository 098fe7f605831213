"""latest_timestamp in groups of an apply server: sets, rows applied one by one, and times deleted between destination
transactions.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.memory.destination import MemoryDestination, MemorySession
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.rules.conflict_handlers import ConflictRules
from protos import codec
from spark_apply.conversation.groups import GroupGo, GroupResult
from spark_apply.server.apply_server import FORGET_AGAIN_S, FORGET_EVERY_S, ApplyServer
from spark_apply.sets.conflict_settings import ConflictSettings
from tests.support.apply.apply_engine import TOPOLOGY
from tests.support.apply.groups import whole_group
from tests.support.histories.conflicts import COLUMNS, Lcr, Shown, batch_of, by_time, raw, shown
from tests.support.session.seeds import is_soak, seeds
from tests.support.values.writes import version_of

SITES = ("b", "a", "c")  # the first one wins ties
KEYS = 4


def row(key: int, text: str) -> Shown:
    return (key, text, "b", 1, 100, "u")


class Destination:
    """Site b with table `c`, an apply server for each source, and a model with the latest change of each key."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.store.create_table(
            "public",
            "c",
            [destination_column(name, f"pg_catalog.{kind}", equality="bytes") for name, kind in COLUMNS],
            key=["id"],
        )
        self.database = MemoryDestination(store=self.store)
        handlers, times = by_time(*SITES)
        self.rules = ConflictRules(handlers=handlers, times=replace(times, site="b", age_s=100.0, count=50))
        self.servers = {source: self.server(source) for source in "ac"}
        table = self.database.describe("public", "c")
        assert table is not None
        self.version = version_of(table)
        self.scn, self.now = 100, 0.0
        self.latest: dict[int, tuple[int, int, Shown | None]] = {}

    def server(self, source: str) -> ApplyServer:
        epoch = self.database.raise_epoch(TOPOLOGY, source).epoch
        server = ApplyServer(
            apply=source,
            source=source,
            decode=codec.decode,
            encode=codec.encode,
            error_batches=self.database.error_batches,
            open_session=lambda: self.database.open_session(TOPOLOGY, source, server=0, epoch=epoch, tag=b"\0"),
            conflicts=ConflictSettings(apply=source, source=source, site="b", rules=self.rules),
        )
        server.connect()
        return server

    def group(self, source: str, lcrs: list[Lcr], times: list[int], *, may_fail: bool = False) -> GroupResult:
        """Apply one group in which each LCR is a transaction."""
        batch = batch_of(self.version, lcrs, each=True, first_scn=self.scn, source=source, times_us=times)
        server = self.servers[source]
        server.receive(
            whole_group(codec.encode(batch), group=self.scn, after_scn=self.scn - 10, through_scn=batch.through_scn)
        )
        server.receive(GroupGo(group=self.scn, attempt=0, low_watermark=self.scn - 10, below_applied=True))
        self.scn = int(batch.through_scn) + 10
        for _ in range(1000):
            done = server.step(self.now)
            if done.reports:
                (result,) = done.reports
                assert isinstance(result, GroupResult)
                assert may_fail or result.errors == ()
                return result
        raise AssertionError("no end")

    def note(self, site: str, time_us: int, key: int, found: Shown | None) -> None:
        mine = time_us, -SITES.index(site)
        if key not in self.latest or self.latest[key][:2] <= mine:
            self.latest[key] = (*mine, found)

    def user(self, key: int, text: str, *, may_delete: bool) -> None:
        """Change a row as a user of the site whose clock is not behind the applied changes."""
        clock_us = max((time for time, *_ in self.latest.values()), default=0) + 1
        table = self.store.tables["public", "c"]
        place = table.unique[0].get(raw((key,)))
        found = None if place is not None and may_delete else row(key, text)
        if place is not None:
            table.put(place, None)
        if found is not None:
            self.store.insert("public", "c", [raw(found)])
        self.store.changed_here("public", "c", raw((key,)), clock_us, is_gone=found is None)
        self.note("b", clock_us, key, found)

    def rows(self) -> list[Shown]:
        return [shown(found) for found in self.store.rows("public", "c")]


def concurrent(seed: int, *, one_by_one: bool) -> Destination:
    """Two independent sources and a user change the same keys; the result does not depend on the groups."""
    rng, at = random.Random(seed), Destination()
    known: dict[str, dict[int, Shown]] = {"a": {}, "c": {}}
    clock = {"a": 1, "c": 1}
    for number in range(30):
        source = rng.choice("ac")
        lcrs: list[Lcr] = []
        times: list[int] = []
        for place in range(rng.randrange(1, 8)):
            clock[source] += rng.randrange(3)
            key, rows = rng.randrange(KEYS), known[source]
            old, new, moved = rows.pop(key, None), row(key, f"{source}{number}.{place}"), rng.randrange(KEYS)
            if old is not None and rng.random() < 0.3:
                lcrs.append(Lcr(old=old))
                at.note(source, clock[source], key, None)
            else:
                if old is not None and rng.random() < 0.3 and moved not in rows:
                    at.note(source, clock[source], key, None)
                    new = (moved, *new[1:])
                number_of_row = new[0]
                assert isinstance(number_of_row, int)
                rows[number_of_row] = new
                lcrs.append(Lcr(old=old, new=new))
                at.note(source, clock[source], new[0], new)
            times.append(clock[source])
        size = 1 if one_by_one else len(lcrs)
        for first in range(0, len(lcrs), size):
            at.group(source, lcrs[first : first + size], times[first : first + size])
        assert at.rows() == sorted(found for *_, found in at.latest.values() if found is not None)
        if rng.random() < 0.3:
            at.user(rng.randrange(KEYS), f"b{number}", may_delete=rng.random() < 0.5)
    return at


@pytest.mark.long
@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("concurrent changes", test=3, soak=80))
def test_groups_keep_the_latest_commit_of_each_key(seed: int) -> None:
    """No history is collapsed wrongly, and a losing change is in the conflict history even if a later change of its
    group won.
    """
    groups, rows = concurrent(seed, one_by_one=False), concurrent(seed, one_by_one=True)
    found, expected = (
        [
            (
                each.source,
                each.command,
                each.kind,
                each.handler,
                each.outcome,
                each.columns,
                each.old,
                each.new,
                each.current,
            )
            for each in at.database.conflicts(TOPOLOGY, last=1000)
        ]
        for at in (groups, rows)
    )
    assert {each[3] for each in expected} == {"latest_timestamp"}
    assert Counter(found) == Counter(expected)
    assert groups.store.changes == rows.store.changes


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("concurrent changes", test=3, soak=80))
def test_change_with_lost_times_is_refused_or_correct(seed: int) -> None:
    """Each key has its latest change, unless a change of it is in the error queue."""
    rng, at = random.Random(seed), Destination()
    known: dict[str, dict[int, Shown]] = {"a": {}, "c": {}}
    clock, refused, applied = {"a": 1, "c": 1}, set[int](), 0
    for number in range(150):
        key, source, latest = (
            rng.randrange(25),
            rng.choice("ac"),
            max((time for time, *_ in at.latest.values()), default=1),
        )
        if rng.random() < 0.25:
            at.user(key, f"b{number}", may_delete=rng.random() < 0.5)
        elif rng.random() < 0.1:
            at.store.lose_times(latest)
        else:
            # One source lags.
            clock[source] = time = latest + 1 if source == "a" else clock[source] + rng.randrange(2)
            old, new = known[source].pop(key, None), row(key, f"{source}{number}")
            if old is not None and rng.random() < 0.3:
                lcr, found = Lcr(old=old), None
            else:
                lcr, found = Lcr(old=old, new=new), new
                known[source][key] = new
            if at.group(source, [lcr], [time], may_fail=True).errors:
                refused.add(key)
            else:
                applied += 1
            at.note(source, time, key, found)
        there = {found[0]: found for found in at.rows()}
        assert {key: there.get(key) for key in at.latest if key not in refused} == {
            key: last[2] for key, last in at.latest.items() if key not in refused
        }
    assert refused or is_soak()  # one seed in thousands refuses none
    assert applied > 20


def test_group_without_conflicts_is_sets_and_reads_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Destination()
    at.group("a", [Lcr(new=row(key, "first")) for key in range(50)], [10] * 50)
    session = at.servers["a"]._session()
    monkeypatch.setattr(session, "last_changes", lambda write: pytest.fail("asked for"))
    result = at.group("a", [Lcr(old=row(key, "first"), new=row(key, "second")) for key in range(50)], [20] * 50)
    assert (result.statistics.commits, result.statistics.rollbacks) == (1, 0)
    assert at.database.conflicts(TOPOLOGY, last=1) == ()


def test_servers_session_deletes_expired_times_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Destination()
    asked: list[tuple[float, int]] = []
    forgotten = iter([7, 0, 0])

    def forget(*, age_s: float, count: int) -> int:
        asked.append((age_s, count))
        return next(forgotten)

    monkeypatch.setattr(at.servers["a"]._session(), "forget_changes", forget)
    for moment, times in (
        (1.0, 0),
        (FORGET_EVERY_S, 0),
        (FORGET_EVERY_S + 1, 1),
        (FORGET_EVERY_S + 2, 1),
        (FORGET_EVERY_S + FORGET_AGAIN_S + 1, 2),
        (FORGET_EVERY_S + 3 * FORGET_AGAIN_S, 2),
        (2 * FORGET_EVERY_S + 2 * FORGET_AGAIN_S, 3),
    ):
        at.servers["a"].step(moment)
        assert len(asked) == times, moment
    assert asked[0] == (100.0, 50)


def test_retention_of_commit_times_is_sampled_per_session_and_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[float, float]] = []
    monkeypatch.setattr(
        MemorySession, "sample_times", lambda session, *, age_s, every_s: noted.append((age_s, every_s))
    )
    at = Destination()
    assert noted == [(100.0, FORGET_EVERY_S / 2)] * 2  # before the first group of each server
    for moment in (1.0, FORGET_EVERY_S, FORGET_EVERY_S + 1):
        at.servers["a"].step(moment)
    assert len(noted) == 3


def test_session_in_which_times_cannot_be_sampled_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[MemorySession] = []

    def fails(session: MemorySession, *, age_s: float, every_s: float) -> None:
        sessions.append(session)
        raise DatabaseUnavailable("gone")

    monkeypatch.setattr(MemorySession, "sample_times", fails)
    with pytest.raises(DatabaseUnavailable):
        Destination()
    assert [session.is_closed for session in sessions] == [True]
