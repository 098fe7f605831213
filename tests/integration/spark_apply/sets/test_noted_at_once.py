"""latest_timestamp with several sources, where sessions of apply processes work at the same time, or lack rights or
sources that they had.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pytest

from headrace.base.errors import DatabaseUnavailable, DataError
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import DestinationSession, HandlerSql, RowQuestion, Write
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.row_times import noted_sets
from headrace.lcr.batch import LcrBatch
from headrace.lcr.cutting import slice_transactions
from headrace.rules.conflict_handlers import ConflictRules
from spark_apply.sets.collapse import plan_resolvable, plan_sets
from spark_apply.sets.conflict_settings import ConflictSettings
from spark_apply.sets.conflicts import apply_rows, execute_steps, resolve_rows
from spark_apply.sets.resolution import Resolution
from spark_apply.tables.fits import TableFits
from tests.support.databases.destination_contract import APPLY, TAG, TOPOLOGY
from tests.support.databases.latest_timestamp import (
    AHEAD_US,
    HERE,
    MINUTE,
    ROWS,
    THREE,
    TRIES_MAX,
    TWO,
    Site,
    apply,
    changed,
    now,
    now_of,
    site_on,
    tried,
    update,
    value,
)
from tests.support.databases.statements import row_of
from tests.support.histories.conflicts import Lcr, batch_of, by_time
from tests.support.redo.postgres_redo import wait_until
from tests.support.session.bounds import STALL_S
from tests.support.session.matrices import cases, values
from tests.support.session.seeds import seeds
from tests.support.values.writes import version_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def site(pg_destination: EmbeddedServer, destination_database: str) -> Iterator[Site]:
    with site_on(pg_destination, destination_database, rows=ROWS, sites=THREE) as made:
        yield made


@contextmanager
def another(site: Site) -> Iterator[DestinationSession]:
    """Open a session of another apply server, for another source."""
    made = site.harness.destination().open_session(
        TOPOLOGY, APPLY, server=1, epoch=site.session._identity.epoch, tag=TAG
    )
    try:
        yield made
    finally:
        made.close()


def write(site: Site, session: DestinationSession, *lcrs: Lcr, at: int, source: str = "c") -> bool:
    batch = batch_of(site.version, lcrs, each=True, first_scn=site.scn, source=source, times_us=[at] * len(lcrs))
    site.scn += 10 * len(lcrs)
    return execute_steps(session, plan_sets([batch], site.fits.fit)) is not None


def apply_while(
    site: Site, commit: Callable[[], object], lcr: Lcr, *, at: int, waits_for: str = "Lock"
) -> list[object]:
    """Apply an LCR of site a while another transaction is in progress, which ends when this one waits, or when it is
    done.
    """
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(site.apply(lcr, source="a", at=at)))
    thread.start()
    asked = (
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = %s AND (wait_event_type = %s OR"
        " wait_event = %s)"
    )
    named = site.session._identity.application_name
    wait_until(lambda: bool(found) or row_of(site.harness._admin.execute(asked, (named, waits_for, waits_for)))[0])
    commit()
    thread.join(60)
    return found


@pytest.mark.parametrize("is_moved", [False, True], ids=["inserted", "moved"])
@pytest.mark.parametrize("apart", [-10, 10], ids=["earlier", "later"])
def test_delete_waits_for_a_row_that_another_source_is_inserting(site: Site, is_moved: bool, apart: int) -> None:
    at, new = now() - MINUTE, changed(HERE, id=9)
    with another(site) as second:
        second.begin()
        assert write(site, second, Lcr(old=ROWS[0] if is_moved else None, new=new), at=at)
        assert apply_while(site, lambda: second.commit((), 0), Lcr(old=new), at=at + apart) == [None]
    assert value(site, 9) == (None if apart > 0 else "here")


@pytest.mark.parametrize("unstamped", ["none", "its maker", "its delete"])
@pytest.mark.parametrize("apart", [-10, 10], ids=["earlier", "later"])
def test_row_inserted_between_the_look_and_its_delete_is_examined_again(
    site: Site, apart: int, unstamped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own time is recorded, but a statement asks only for the time of the set. Rows of a session that may not stamp
    have no time.
    """
    at, new, look = now(), changed(HERE, id=9), site.session.last_changes
    with another(site) as second:
        if unstamped != "none":
            may_not_stamp(second if unstamped == "its maker" else site.session)

        def looks(asked: Write) -> object:
            found = look(asked)
            if value(site, 9) is None:
                second.begin()
                assert write(site, second, Lcr(new=new), at=at)
                assert write(site, second, update(2), at=at + 20)
                second.commit((), 0)
            return found

        monkeypatch.setattr(site.session, "last_changes", looks)
        assert site.apply(Lcr(old=new), source="a", at=at + apart) is None
        monkeypatch.undo()
    assert value(site, 9) == (None if apart > 0 else "here")
    assert site.apply(Lcr(old=new, new=changed(new, a="there")), source="a", at=at + 15) is None
    assert value(site, 9) == "there"


def test_unrecorded_row_written_during_the_look_gives_no_later_delete(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = site.session.find_rows
    with another(site) as second:

        def finds(asked: Write, question: RowQuestion) -> object:
            found = find(asked, question)
            if value(site, 9) is None:
                second.begin()
                assert write(site, second, update(5), at=now())  # its origin stands for c from here on
                second.run_sql([HandlerSql(sql="INSERT INTO public.c VALUES (9, 'handled')")], timeout_s=STALL_S)
                second.commit((), 0)
            return found

        monkeypatch.setattr(site.session, "find_rows", finds)
        failure = site.apply(Lcr(old=changed(HERE, id=9)), source="a", at=now())
        monkeypatch.undo()
    assert failure is not None
    assert "is not noted (any more)" in failure.message
    assert value(site, 9) == "handled"


@pytest.mark.parametrize("sites", cases({"one source": (TWO,), "two sources": (THREE,)}, core=("two sources",)))
def test_users_uncommitted_row_is_deleted_if_the_deletes_clock_is_ahead(site: Site, sites: tuple[str, ...]) -> None:
    now_of(site, *sites)
    new = changed(HERE, id=9)
    for _ in range(TRIES_MAX):
        at, committed = now() + AHEAD_US, list[int]()
        with psycopg.connect(site.harness._dsn) as user:
            user.execute("INSERT INTO c VALUES (%s, %s, %s, %s, %s, %s)", new)

            def commit(user: psycopg.Connection = user, committed: list[int] = committed) -> None:
                user.commit()
                committed.append(now())

            assert apply_while(site, commit, Lcr(old=new), at=at, waits_for="PgSleep") == [None]
        if committed[0] < at:
            break
        site.user(new, None)
    assert value(site, 9) is None


def test_row_that_a_user_is_inserting_when_its_delete_arrives_is_later(site: Site) -> None:
    new = changed(HERE, id=9)
    with psycopg.connect(site.harness._dsn) as user:
        user.execute("INSERT INTO c VALUES (%s, %s, %s, %s, %s, %s)", new)
        assert apply_while(site, user.commit, Lcr(old=new), at=now()) == [None]
    assert value(site, 9) == "here"


@pytest.mark.parametrize("new", ["there", None], ids=["update", "delete"])
@pytest.mark.parametrize(
    ("sites", "stamps"), [(TWO, True), (THREE, True), (THREE, False)], ids=["one source", "by set", "by row"]
)
def test_set_that_waits_for_another_sources_rows_finds_them_changed_later(
    site: Site, sites: tuple[str, ...], stamps: bool, new: str | None
) -> None:
    """PostgreSQL evaluates each of them again; with an uncorrelated subquery inside a correlated one it crashes at the
    second or the third.
    """
    first, at, found = site.session, now(), list[bool]()
    if not stamps:
        may_not_stamp(first)
    now_of(site, *sites)
    assert site.apply(update(5), source="a", at=at) is None
    rows = ROWS[:4]
    with another(site) as second:
        second.begin()
        assert write(site, second, Lcr(old=changed(ROWS[4], a="here"), new=ROWS[4]), at=now())
        second.commit((), 0)
        assert site.apply(update(5), source="a", at=now()) is None
        early = now()
        second.begin()
        assert write(site, second, *(Lcr(old=row, new=row) for row in rows), at=now())
        lcrs = [Lcr(old=row, new=None if new is None else changed(row, a=new)) for row in rows]
        first.begin()
        thread = threading.Thread(target=lambda: found.append(write(site, first, *lcrs, at=early, source="a")))
        thread.start()
        wait_until(
            lambda: row_of(
                site.harness._admin.execute(
                    "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
                )
            )[0]
        )
        second.commit((), 0)
        thread.join(60)
        first.rollback()
    assert found == [False]
    assert site.rows()[:4] == rows


def may_not_stamp(session: Any) -> None:
    """Behave as a role without the right: its commits have the time of the first one."""
    session._progress.stamp = ""


def test_rows_of_a_session_that_could_not_stamp_have_no_own_times(site: Site) -> None:
    with another(site) as second:
        may_not_stamp(second)
        first, site.session = site.session, second
        assert site.apply(update(5), source="c", at=now() - MINUTE) is None
        early = now()
        assert site.apply(update(1), source="c", at=early + 1000) is None
        assert site.apply(update(2), source="c", at=early + 1000) is None
        site.session = first
        assert not tried(site, first, update(1, "there", "here"), at=early + 500)
        assert site.apply(update(1, "there", "here"), source="a", at=early + 500) is None
        assert value(site, 1) == "here"
        assert site.apply(update(2, "there", "here"), source="a", at=early + 1500) is None
        assert value(site, 2) == "there"


def test_unstamped_write_of_a_handler_is_not_dated_to_the_first_commit(site: Site) -> None:
    with another(site) as second:
        may_not_stamp(second)
        first, site.session = site.session, second
        assert site.apply(update(5), source="c", at=now() - MINUTE) is None
        early = now()
        second.begin()
        second.run_sql([HandlerSql(sql="UPDATE public.c SET a = 'handled' WHERE id = 1")], timeout_s=STALL_S)
        second.commit((), 0)
        site.session = first
        assert "is not noted (any more)" in str(apply(site, 1, early))
        after = site.sample()
        assert apply(site, 1, after + 1) == "there"


@pytest.mark.parametrize("is_first_the_later_one", [True, False])
def test_sets_of_a_transaction_are_forgotten_together(site: Site, is_first_the_later_one: bool) -> None:
    at = now()
    site.session.begin()
    assert write(site, site.session, update(1), at=at + 1000 * is_first_the_later_one)
    assert write(site, site.session, update(2), at=at + 1000 * (not is_first_the_later_one))
    site.session.commit((), 0)
    site.harness._admin.execute(
        "UPDATE headrace.row_change_set SET noted_at = noted_at - interval '1 day' WHERE part = 0"
    )
    site.session.forget_changes(age_s=3600, count=1000)
    late = 1 if is_first_the_later_one else 2
    assert not tried(site, site.session, update(late, "there", "here"), at=at + 500)
    assert apply(site, late, at + 500) == "here"
    assert apply(site, 3 - late, at + 500) == "there"


# ------------------------------------------------------------------ groups of several sources and users, against an
# oracle

SITES = ("b", "a", "c", "d")
KEYS = 8
ROUNDS = 60
OVERTAKEN_MAX = 1000  # of a source: a busy machine needs some


@dataclass
class Changes:
    """The commits and their times, by key; None: the key was deleted."""

    of_key: dict[int, list[tuple[int, int, str | None]]] = field(default_factory=dict)

    def note(self, key: int, at: int, site: str, text: str | None) -> None:
        self.of_key.setdefault(key, []).append((at, -SITES.index(site), text))

    def latest(self) -> dict[int, str]:
        found = {key: max(changes, key=lambda each: each[:2])[2] for key, changes in self.of_key.items()}
        return {key: text for key, text in found.items() if text is not None}


class Source:
    """An apply process of one source, which applies groups of transactions as apply servers do."""

    def __init__(self, database: PostgresDestination, name: str, rng: random.Random, dsn: str) -> None:
        handlers, times = by_time(*SITES)
        epoch = database.raise_epoch(TOPOLOGY, name).epoch
        self.session = database.open_session(TOPOLOGY, name, server=0, epoch=epoch, tag=TAG)
        rules = ConflictRules(handlers=handlers, times=replace(times, site="b"))
        self.fits = TableFits(self.session.describe, self.session.missing_alter, rules)
        self.settings = ConflictSettings(apply=name, source=name, site="b", rules=rules)
        table = self.session.describe("public", "c")
        assert table is not None
        self.version, self.name, self.rng, self.dsn, self.scn, self.last = version_of(table), name, rng, dsn, 100, 0
        self.ways: Counter[str] = Counter()
        self.overtaken = 0

    def group(self, number: int) -> tuple[list[Lcr], list[int]]:
        """Return changes of a few keys, mostly of rows in their present state, so that many are applied as sets."""
        with psycopg.connect(self.dsn, autocommit=True) as asking:
            there = {row[0]: row for row in asking.execute("SELECT id, a, b, t, n, u FROM c")}
        lcrs, times = list[Lcr](), list[int]()
        for step in range(self.rng.randrange(1, 6)):
            key, text, kind = self.rng.randrange(KEYS), f"{self.name}{number}.{step}", self.rng.random()
            old = there.get(key, (key, "other", "other", 1, 1, "other"))
            new = (key, text, text, number, step, text)
            if kind < 0.2:
                lcr = Lcr(old=old)
            elif kind < 0.3 or (kind < 0.7 and key not in there):
                lcr = Lcr(new=new)
            elif kind < 0.4 and (free := sorted(set(range(KEYS)) - set(there))):
                lcr = Lcr(old=old, new=(self.rng.choice(free), *new[1:]))
            else:
                lcr = Lcr(old=old, new=new)
            if lcr.old is not None:
                there.pop(key, None)
            if lcr.new is not None:
                there[int(lcr.new[0] or 0)] = lcr.new
            self.last = max(self.last + 1, now() - self.rng.randrange(-5_000, 30_000))
            lcrs.append(lcr)
            times.append(self.last)
        return lcrs, times

    def apply(self, lcrs: Sequence[Lcr], times: Sequence[int]) -> None:
        batch = batch_of(self.version, lcrs, each=True, first_scn=self.scn, source=self.name, times_us=times)
        self.scn += 10 * len(lcrs)
        for attempt in (self._as_sets, self._around):
            if self._tried(lambda attempt=attempt: attempt(batch)):
                self.ways[attempt.__name__] += 1
                return
        for place in range(len(lcrs)):
            while not self._tried(lambda place=place: self._by_row(slice_transactions(batch, place, place + 1))):
                self.session.rollback()
            self.ways["_by_row"] += 1

    def _tried(self, attempt: Callable[..., bool]) -> bool:
        self.session.begin()
        try:
            if attempt():
                time.sleep(self.rng.random() / 100)
                self.session.commit((), 0)
                return True
        except (DataError, DatabaseUnavailable):
            assert not self.session.is_closed
        self.session.rollback()
        return False

    def _as_sets(self, batch: LcrBatch) -> bool:
        return execute_steps(self.session, plan_sets([batch], self.fits.fit)) is not None

    def _around(self, batch: LcrBatch) -> bool:
        plan = plan_resolvable([batch], self.fits.fit)
        found = None if plan is None else plan.around(self.session.conflicting)
        if found is None:
            return False
        return execute_steps(self.session, found[0]) is not None and resolve_rows(
            self.session, [batch], found[1], self.fits.fit, Resolution(self.settings)
        )

    def _by_row(self, batch: LcrBatch) -> bool:
        failure = apply_rows(self.session, batch, self.fits.fit, Resolution(self.settings))
        # Others change the few rows all the time, so it is retried, as an error transaction would be.
        self.overtaken += failure is not None and "kept changing the row" in failure.message
        assert failure is None or self.overtaken < OVERTAKEN_MAX, failure
        assert failure is None or "kept changing the row" in failure.message, failure
        return failure is None


def user_changes(dsn: str, rng: random.Random, done: list[tuple[str, dict[int, str | None]]], rounds: int) -> None:
    """Run transactions of a user of this site; record by number what each left of its keys."""
    with psycopg.connect(dsn) as own:
        for number in range(rounds):
            left: dict[int, str | None] = {}
            try:
                for key in rng.sample(range(KEYS), rng.randrange(1, 3)):
                    text = f"b{number}"
                    if rng.random() < 0.3:
                        if own.execute("DELETE FROM c WHERE id = %s RETURNING 1", (key,)).fetchone():
                            left[key] = None
                    else:
                        own.execute(
                            "INSERT INTO c VALUES (%s, %s, '', 1, 1, '') ON CONFLICT (id) DO UPDATE SET a = excluded.a",
                            (key, text),
                        )
                        left[key] = text
                    time.sleep(rng.random() / 200)
                (xact,) = own.execute("SELECT pg_current_xact_id()::text").fetchone() or ("",)
                own.commit()
                done.append((xact, left))
            except psycopg.OperationalError:  # a deadlock
                own.rollback()
            time.sleep(rng.random() / 100)


@pytest.mark.seeded
@pytest.mark.parametrize("stamps", values([True, False], True))
@pytest.mark.parametrize("seed", seeds("groups of three sources", test=1, soak=12))
def test_groups_of_three_sources_and_a_user_leave_each_keys_latest_change(
    destination_database: str, seed: int, stamps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noted_sets, "_ROWS_MAX", 2)
    with psycopg.connect(destination_database, autocommit=True) as admin:
        admin.execute("CREATE TABLE c (id int4 PRIMARY KEY, a text, b text, t int4, n int4, u text)")
        database = PostgresDestination(destination_database, site="b")
        database.prepare(TOPOLOGY)
        database.keep_tombstones([("public", "c")])
        sources = [Source(database, name, random.Random(f"{seed} {name}"), destination_database) for name in SITES[1:]]
        if not stamps:
            may_not_stamp(sources[0].session)
        changes, failures, own = Changes(), list[BaseException](), list[tuple[str, dict[int, str | None]]]()

        def sends(source: Source) -> None:
            try:
                for number in range(ROUNDS):
                    lcrs, times = source.group(number)
                    source.apply(lcrs, times)
                    for lcr, at in zip(lcrs, times, strict=True):
                        if lcr.old is not None and (lcr.new is None or lcr.new[0] != lcr.old[0]):
                            changes.note(int(lcr.old[0] or 0), at, source.name, None)
                        if lcr.new is not None:
                            changes.note(int(lcr.new[0] or 0), at, source.name, str(lcr.new[1]))
            except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
                failures.append(error)
                source.session.close()  # otherwise the others would wait for its rows

        threads = [threading.Thread(target=sends, args=(source,)) for source in sources]
        threads.append(
            threading.Thread(target=user_changes, args=(destination_database, random.Random(f"{seed}"), own, ROUNDS))
        )
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
        assert failures == []
        for xact, left in own:
            (at,) = admin.execute(
                "SELECT (extract(epoch FROM pg_xact_commit_timestamp(xid(%s::xid8))) * 1000000)::int8", (xact,)
            ).fetchone() or (0,)
            for key, text in left.items():
                changes.note(key, at, "b", text)
        assert dict(admin.execute("SELECT id, a FROM c").fetchall()) == changes.latest()
        ways = sum((source.ways for source in sources), Counter[str]())
        assert min(ways["_as_sets"], ways["_around"], ways["_by_row"]) > 5, ways
        for source in sources:
            source.session.close()
        database.close()


def test_handlers_write_counts_for_its_source_without_its_own_times(site: Site) -> None:
    made = site.harness.destination().open_session(
        TOPOLOGY, APPLY, server=1, epoch=site.session._identity.epoch, tag=TAG, source="a"
    )
    early = now()
    for value_of in ("first", "handled"):
        made.begin()
        made.run_sql([HandlerSql(sql=f"UPDATE public.c SET a = '{value_of}' WHERE id = 1")], timeout_s=STALL_S)
        made.commit((), 0)
    made.close()
    failure = site.apply(update(1, "there"), source="c", at=early)
    assert failure is not None
    assert "is not noted (any more)" in failure.message
    assert value(site, 1) == "handled"
    assert site.apply(update(1, "there"), source="c", at=now()) is None
    assert value(site, 1) == "there"


def test_look_for_conflicts_waits_for_rows_that_were_written_ahead(site: Site) -> None:
    (step,) = plan_sets(
        [batch_of(site.version, [Lcr(new=changed(HERE, id=8))], first_scn=site.scn, source="c", times_us=[now()])],
        site.fits.fit,
    )
    site.session.begin()
    ahead = site.session.write_ahead([replace(step.write, times=None)])
    site.session._times._horizon_until = 0.0  # the server is asked how far transactions have advanced
    found = site.session.conflicting(step.write)
    assert (ahead(), found.tolist()) == ((1,), [0])
    site.session.rollback()
