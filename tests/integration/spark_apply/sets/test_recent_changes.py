"""Whether a row was changed later here, on real servers: the notes with one source, and the conclusions from them when
a second one joins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pytest

from headrace.base.errors import DatabaseError, DatabaseUnavailable
from headrace.databases.conflict_lists import conflict_list_findings
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.destination.row_times.recent_changes import Horizon
from headrace.databases.postgres.destination.server_session import session_times
from headrace.databases.postgres.pipeline import Statement
from headrace.lcr.batch import OldImage
from spark_apply.sets.collapse import plan_sets
from spark_apply.sets.conflicts import execute_steps
from tests.support.databases.destination_contract import APPLY, TAG, TOPOLOGY, PostgresHarness
from tests.support.databases.latest_timestamp import (
    AHEAD_US,
    HERE,
    MINUTE,
    THERE,
    THREE,
    TRIES_MAX,
    TWO,
    WAS,
    Site,
    changed,
    now,
    now_of,
    site_on,
    tried,
)
from tests.support.databases.statements import row_of
from tests.support.histories.conflicts import Lcr, batch_of
from tests.support.redo.postgres_redo import wait_until
from tests.support.session.matrices import cases
from tests.support.values.writes import version_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def notes(site: Site) -> list[tuple[bool, str]]:
    return site.harness._admin.execute(
        "SELECT is_gone, source FROM headrace.row_change WHERE relation <> 0 ORDER BY 1, 2"
    ).fetchall()


def origins(site: Site) -> list[str]:
    return [
        name
        for (name,) in site.harness._admin.execute(
            "SELECT source FROM headrace.row_change WHERE relation = 0 AND key1 < 0 ORDER BY key2"
        ).fetchall()
    ]


@pytest.fixture
def site(pg_destination: EmbeddedServer, destination_database: str) -> Iterator[Site]:
    with site_on(pg_destination, destination_database, rows=[WAS, changed(WAS, id=2)], sites=TWO) as made:
        yield made


def test_with_one_source_only_deletes_and_old_keys_are_noted(site: Site) -> None:
    at = now() - MINUTE
    assert site.apply(Lcr(old=WAS, new=HERE), at=at) is None
    assert notes(site) == []
    assert site.apply(Lcr(old=HERE, new=changed(HERE, id=3)), at=at + 1) is None
    assert site.apply(Lcr(old=changed(WAS, id=2)), at=at + 2) is None
    assert notes(site) == [(True, "a"), (True, "a")]
    assert origins(site) == ["a"]
    now_of(site, *THREE)
    assert site.harness._admin.execute("SELECT count(*) FROM headrace.row_change_set").fetchone() == (0,)
    assert site.apply(Lcr(old=changed(HERE, id=3), new=THERE), at=at + 3) is None
    assert notes(site) == [(True, "a"), (True, "a"), (True, "a")], (
        "only the old key has a note; the set has one time for the new one"
    )
    assert site.harness._admin.execute(
        "SELECT source, row_count FROM headrace.row_change_set JOIN headrace.row_change_set_time USING (origin, number)"
    ).fetchall() == [("a", 1)]


def test_without_the_right_to_stamp_rows_are_noted(site: Site) -> None:
    site.session._progress.stamp = ""
    for sites in (TWO, THREE):
        now_of(site, *sites)
        assert site.apply(Lcr(old=WAS, new=HERE), at=now() - MINUTE) is None
        assert notes(site) == [(False, "a")]
    assert site.harness._admin.execute("SELECT count(*) FROM headrace.row_change_set").fetchone() == (0,)


@pytest.mark.parametrize("new", [THERE, None], ids=["update", "delete"])
def test_unnoted_changes_of_the_only_source_are_not_guessed_at_later(
    site: Site, new: tuple[object, ...] | None
) -> None:
    at = now() - MINUTE
    assert site.apply(Lcr(old=WAS, new=HERE), at=at) is None
    applied = now()
    now_of(site, *THREE)
    assert not tried(site, site.session, Lcr(old=HERE, new=new), at=at + 1, source="c")
    failure = site.apply(Lcr(old=HERE, new=new), source="c", at=at + 1)
    assert failure is not None
    assert "when a change of a was applied to the row here" in failure.message
    assert site.rows() == [HERE, changed(WAS, id=2)]
    assert site.apply(Lcr(old=HERE, new=new), source="c", at=applied) is None
    assert site.rows() == [*([] if new is None else [new]), changed(WAS, id=2)]


def test_first_source_continues_and_notes_its_changes_from_now_on(site: Site) -> None:
    at = now() - MINUTE
    assert site.apply(Lcr(old=WAS, new=HERE), at=at) is None
    now_of(site, *THREE)
    assert tried(site, site.session, Lcr(old=HERE, new=THERE), at=at + 10)
    assert site.apply(Lcr(old=THERE, new=changed(THERE, n=1)), source="c", at=at + 9) is None, (
        "its time is noted now, and later"
    )
    assert site.rows()[0] == THERE
    assert site.apply(Lcr(old=THERE, new=changed(THERE, n=1)), source="c", at=at + 11) is None
    assert site.rows()[0] == changed(THERE, n=1)


def test_notes_of_a_second_source_that_left_are_still_compared(site: Site) -> None:
    now_of(site, *THREE)
    at = now()
    assert site.apply(Lcr(old=WAS, new=HERE), source="c", at=at) is None
    now_of(site, *TWO)
    assert not tried(site, site.session, Lcr(old=HERE, new=THERE), at=at - 1)
    assert site.apply(Lcr(old=HERE, new=THERE), at=at - 1) is None
    assert site.rows()[0] == HERE
    assert site.apply(Lcr(old=HERE, new=THERE), at=at + 1) is None
    assert site.rows()[0] == THERE


def test_change_without_another_value_is_also_the_rows_last_change(site: Site) -> None:
    now_of(site, *THREE)
    at = now() - MINUTE
    assert tried(site, site.session, Lcr(old=WAS, new=WAS), at=at)
    assert site.apply(Lcr(old=WAS, new=HERE), source="c", at=at - 1) is None
    assert site.rows()[0] == WAS


def test_origin_stands_for_the_source_that_it_had_when_the_row_was_written(site: Site) -> None:
    at = now() - MINUTE
    assert site.apply(Lcr(old=WAS, new=HERE), at=at) is None
    # The session now serves another source, like one that has an earlier source's name.
    now_of(site, "b", "c")
    assert site.apply(Lcr(old=changed(WAS, id=2), new=changed(HERE, id=2)), source="c", at=now()) is None
    assert origins(site) == ["a", "c"]
    failure = site.apply(Lcr(old=HERE, new=THERE), source="c", at=at + 1)
    assert failure is not None
    assert "a change of a was applied" in failure.message
    assert site.apply(Lcr(old=changed(HERE, id=2), new=changed(THERE, id=2)), source="c", at=at) is None
    assert site.rows() == [HERE, changed(THERE, id=2)]


def test_origins_of_a_restored_dump_are_ignored(site: Site) -> None:
    assert site.apply(Lcr(old=WAS, new=HERE), at=now() - MINUTE) is None
    site.harness._admin.execute(
        "CREATE TEMP TABLE dump AS SELECT * FROM headrace.row_change; TRUNCATE headrace.row_change; INSERT INTO"
        " headrace.row_change SELECT * FROM dump"
    )
    now_of(site, "b", "c")
    assert site.apply(Lcr(old=HERE, new=THERE), source="c", at=now() - 2 * MINUTE) is None, (
        "a restored row has no known source"
    )
    assert site.rows()[0] == THERE
    assert origins(site) == ["a", "c"]


def as_set(site: Site, lcr: Lcr, at: int) -> bool:
    """Return whether an LCR succeeds as a set."""
    batch = batch_of(site.version, [lcr], first_scn=site.scn, times_us=[at])
    site.scn += 10
    site.session.begin()
    is_done = execute_steps(site.session, plan_sets([batch], site.fits.fit)) is not None
    if is_done:
        site.session.commit((), 0)
    else:
        site.session.rollback()
    return is_done


def at_once(site: Site, user: psycopg.Connection, apply: Callable[..., object]) -> tuple[list[object], int]:
    """Apply while the user's transaction holds the row; the user commits when apply waits for it.

    Returns the result, and when the user had committed.
    """
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(apply()))
    thread.start()
    wait_until(
        lambda: row_of(
            site.harness._admin.execute(
                "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            )
        )[0]
    )
    user.commit()
    committed = now()
    thread.join(60)
    return found, committed


WAITING = {
    f"{count} {'later' if is_later else 'earlier'}": (sites, is_later)
    for sites, count in ((TWO, "one source"), (THREE, "two sources"))
    for is_later in (False, True)
}
# A change that is later than the user's must arrive seconds after it: `make test` has one, an update.
EARLIER = {"one source earlier", "two sources earlier"}


@pytest.mark.parametrize(("sites", "is_later"), cases(WAITING, core={*EARLIER, "two sources later"}))
def test_users_commit_while_apply_waits_for_the_row_is_compared(
    site: Site, sites: tuple[str, ...], is_later: bool
) -> None:
    now_of(site, *sites)
    at = now() + (AHEAD_US if is_later else -1)
    with psycopg.connect(site.harness._dsn) as user:
        user.execute("UPDATE c SET a = 'here' WHERE id = 1")
        assert at_once(site, user, lambda: as_set(site, Lcr(old=WAS, new=THERE), at))[0] == [False]
    other, mine = changed(WAS, id=2), changed(WAS, id=2, a="here too")
    for _ in range(TRIES_MAX):
        at = now() + (AHEAD_US if is_later else -1)
        with psycopg.connect(site.harness._dsn) as user:
            user.execute("UPDATE c SET a = 'here too' WHERE id = 2")
            found, committed = at_once(
                site, user, lambda at=at: site.apply(Lcr(old=other, new=changed(THERE, id=2)), at=at)
            )
        assert found == [None]
        if (committed < at) == is_later:
            break
        site.user(site.rows()[1], other)
    assert site.rows()[1] == (changed(THERE, id=2) if is_later else mine)


@pytest.mark.parametrize(("sites", "is_later"), cases(WAITING, core=EARLIER))
def test_an_insert_that_waits_for_a_users_delete_is_compared_with_it(
    site: Site, sites: tuple[str, ...], is_later: bool
) -> None:
    now_of(site, *sites)
    for _ in range(TRIES_MAX):
        at = now() + (AHEAD_US if is_later else -1)
        with psycopg.connect(site.harness._dsn) as user:
            user.execute("DELETE FROM c WHERE id = 1")
            found, committed = at_once(site, user, lambda at=at: as_set(site, Lcr(new=THERE), at))
        if (committed < at) == is_later:
            break
        site.user(site.rows()[0] if len(site.rows()) == 2 else None, WAS)
    assert found == [is_later]
    assert site.rows() == [*([THERE] if is_later else []), changed(WAS, id=2)]


@pytest.mark.parametrize("is_later", [False, True])
def test_key_that_a_row_moves_to_may_have_been_deleted_later(site: Site, is_later: bool) -> None:
    before = site.user(WAS, None)
    moved = changed(WAS, id=1)
    assert site.apply(Lcr(old=changed(WAS, id=2), new=moved), at=now() if is_later else before - 1) is None
    assert site.rows() == ([moved] if is_later else [])


def test_transaction_that_ended_before_is_known_by_its_number(site: Site) -> None:
    horizon: Horizon = site.session._times.horizon
    row, number, later = WAS, 0, 0

    def has_ended() -> bool:
        """Return False while another transaction of the server runs, as autovacuum's do at times."""
        nonlocal row, number, later
        before, row = row, changed(HERE, n=row[4] + 1)
        assert site.apply(Lcr(old=before, new=row), at=now()) is None
        (number,) = row_of(site.harness._admin.execute("SELECT xmin::text::int8 FROM c WHERE id = 1"))
        later = now()
        return bool(horizon.ended_before(later) > number)

    wait_until(has_ended)
    site.user(row, WAS)
    (number,) = row_of(site.harness._admin.execute("SELECT xmin::text::int8 FROM c WHERE id = 1"))
    assert horizon.ended_before(later) <= number


def in_one_transaction(site: Site, *lcrs: tuple[Lcr, int], source: str = "a") -> None:
    """Apply LCRs with their times, each as its own set."""
    site.session.begin()
    for lcr, at in lcrs:
        batch = batch_of(site.version, [lcr], first_scn=site.scn, source=source, times_us=[at])
        site.scn += 10
        assert execute_steps(site.session, plan_sets([batch], site.fits.fit)) is not None
    site.session.commit((), 0)


@pytest.mark.parametrize("first", [Lcr(old=WAS, new=changed(WAS, id=3)), Lcr(old=WAS)], ids=["moved", "deleted"])
def test_note_of_a_delete_does_not_cover_the_row_reinserted_with_it(site: Site, first: Lcr) -> None:
    at = now() - MINUTE
    in_one_transaction(site, (first, at), (Lcr(new=HERE), at + 20))
    now_of(site, *THREE)
    assert not tried(site, site.session, Lcr(old=HERE, new=THERE), at=at + 10, source="c")
    failure = site.apply(Lcr(old=HERE, new=THERE), source="c", at=at + 10)
    assert failure is not None
    assert "when a change of a was applied to the row here" in failure.message
    assert site.rows()[0] == HERE


def test_origin_with_another_former_source_does_not_make_every_set_fail(site: Site) -> None:
    row = changed(WAS, id=2)
    for number, sites in enumerate((TWO, ("b", "c"), TWO)):
        now_of(site, *sites)
        at = now()
        assert site.apply(Lcr(old=row, new=changed(row, n=number)), source=sites[1], at=at) is None
        row = changed(row, n=number)
    assert origins(site) == ["a", "c", "a"]
    assert tried(site, site.session, Lcr(old=row, new=changed(row, n=9)), at=at + 1)


def test_commit_by_a_reassigned_origin_while_a_set_waits_is_compared(site: Site) -> None:
    first, at = site.session, now()
    identity = first._identity
    second = site.harness.destination().open_session(TOPOLOGY, APPLY, server=1, epoch=identity.epoch, tag=TAG)
    site.session = second
    now_of(site, *TWO)
    assert site.apply(Lcr(old=changed(WAS, id=2), new=changed(HERE, id=2)), at=at) is None
    earlier, later = at + 1, now()
    now_of(site, "b", "c")
    batch = batch_of(site.version, [Lcr(old=WAS, new=WAS)], first_scn=site.scn, source="c", times_us=[later])
    second.begin()
    assert execute_steps(second, plan_sets([batch], site.fits.fit)) is not None
    site.session, found = first, list[bool]()
    now_of(site, *TWO)
    thread = threading.Thread(target=lambda: found.append(as_set(site, Lcr(old=WAS, new=THERE), earlier)))
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
    second.close()
    assert found == [False]


@pytest.mark.parametrize("parts", [0, 3], ids=["plain", "partitioned"])
def test_under_a_long_transaction_sets_find_copied_and_applied_rows(
    pg_destination: EmbeddedServer, destination_database: str, parts: int
) -> None:
    if parts:
        with psycopg.connect(destination_database, autocommit=True) as admin:
            admin.execute(
                "CREATE TABLE c (id int4 PRIMARY KEY, a text, b text, t int4, n int4, u text) PARTITION BY HASH (id)"
            )
            for part in range(parts):
                admin.execute(
                    f"CREATE TABLE c_{part} PARTITION OF c FOR VALUES WITH (MODULUS {parts}, REMAINDER {part})"
                )
    with (
        site_on(pg_destination, destination_database, sites=TWO) as site,
        psycopg.connect(destination_database) as user,
    ):
        user.execute("SELECT pg_current_xact_id()")
        with psycopg.connect(destination_database, autocommit=True) as copy:
            copy.execute("SELECT pg_replication_origin_create('copy')")
            copy.execute("SELECT pg_replication_origin_session_setup('copy')")
            copy.execute("INSERT INTO c VALUES (%s, %s, %s, %s, %s, %s)", WAS)
            copy.execute("SELECT pg_replication_origin_session_reset()")
            copy.execute("SELECT pg_replication_origin_drop('copy')")
        at = now()
        assert tried(site, site.session, Lcr(old=WAS, new=HERE), at=at)
        assert tried(site, site.session, Lcr(old=HERE, new=THERE), at=at + 1)
        before = site.user(THERE, HERE)
        assert not tried(site, site.session, Lcr(old=HERE, new=THERE), at=before - 1)


def test_long_idle_session_asks_again_how_far_transactions_have_advanced(site: Site) -> None:
    """Otherwise a number that is 2^31 behind would count as a future one."""
    (number,) = row_of(site.harness._admin.execute("SELECT pg_current_xact_id()::text::int8"))
    horizon = site.session._times.horizon
    horizon._numbers, horizon._times = [number - 2**31 - 1000], [now() - MINUTE]
    site.session._times._horizon_until -= session_times._HORIZON_LASTS_S
    before = site.user(WAS, HERE)
    assert not as_set(site, Lcr(old=HERE, new=THERE), before - 1)
    assert site.apply(Lcr(old=HERE, new=THERE), at=before - 1) is None
    assert site.rows()[0] == HERE


def test_delete_that_is_earlier_only_by_its_clock_is_applied(site: Site) -> None:
    """The present row was inserted after the user's delete: only its source's clock was set back."""
    site.user(WAS, None)
    at = now()
    assert site.apply(Lcr(new=HERE), at=at) is None
    assert site.apply(Lcr(old=HERE), at=at - MINUTE) is None
    assert site.rows() == [changed(WAS, id=2)]


def test_session_interrupted_after_its_commit_has_committed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_times, "_HORIZON", Statement(sql="SELECT 1 / 0"))
    with pytest.raises(DatabaseUnavailable):
        site.apply(Lcr(old=WAS, new=HERE), at=now() - MINUTE)
    assert isinstance(site.harness, PostgresHarness)
    assert site.session.is_closed
    assert site.rows()[0] == HERE


def test_only_sources_change_is_unknown_where_the_server_has_lost_the_time(site: Site) -> None:
    """The cost of having no notes: without its time, a row has no origin either, and a user may have changed it."""
    at = now() - MINUTE
    assert site.apply(Lcr(old=WAS, new=HERE), at=at) is None
    after = site.sample()
    site.lose_times()
    failure = site.apply(Lcr(old=HERE, new=THERE), at=at + 1)
    assert failure is not None
    assert "does not know any more when the row was changed" in failure.message
    assert tried(site, site.session, Lcr(old=HERE, new=THERE), at=after + 1)


@pytest.mark.parametrize("sites", [TWO, THREE], ids=["one source", "two sources"])
def test_row_with_a_null_in_its_key_is_found_by_all_values_without_times(
    pg_destination: EmbeddedServer, destination_database: str, sites: tuple[str, ...]
) -> None:
    """No key distinguishes it from others, and no statement asks when it was changed. A change that does not find it as
    it was becomes an error, earlier or later.
    """
    with site_on(pg_destination, destination_database, sites=sites, tombstones=False) as site:
        site.harness._admin.execute("ALTER TABLE c DROP CONSTRAINT c_pkey, ADD UNIQUE (id, b)")
        table = site.session.describe("public", "c", fresh=True)
        assert table is not None
        assert [table.columns[place].name for place in table.key] == ["id", "b"]
        site.version = replace(version_of(table), old_image=OldImage.FULL)
        site.fits.forget()
        null, keyed = changed(WAS, b=None), changed(WAS, id=2)
        for row in (null, keyed):
            assert site.apply(Lcr(new=row), at=now() - 10 * MINUTE) is None
        before = now()
        for row in (null, keyed):
            site.harness._admin.execute("UPDATE c SET a = 'here' WHERE id = %s", (row[0],))
        assert site.apply(Lcr(old=keyed, new=changed(keyed, a="there")), at=before - 1) is None
        for at in (before - 1, now()):
            for lcr in (Lcr(old=null, new=changed(null, a="there")), Lcr(old=null)):
                failure = site.apply(lcr, at=at)
                assert failure is not None
                assert failure.conflict_type in {"update_missing", "delete_missing", "update_differs", "delete_differs"}
        assert sorted(site.rows()) == [changed(null, a="here"), changed(keyed, a="here")]
        assert site.apply(Lcr(old=changed(null, a="here"), new=changed(null, a="there")), at=now()) is None
        assert changed(null, a="there") in site.rows()


@pytest.mark.parametrize("has_tombstones", [True, False])
def test_missing_key_is_named_and_the_row_is_not_lost(
    pg_destination: EmbeddedServer, destination_database: str, has_tombstones: bool
) -> None:
    """The destination's table got its own primary key after `up` had checked it."""
    with site_on(pg_destination, destination_database, sites=THREE, tombstones=has_tombstones) as site:
        site.harness._admin.execute(
            "ALTER TABLE c DROP CONSTRAINT c_pkey, ADD UNIQUE (id), ADD own int GENERATED ALWAYS AS IDENTITY PRIMARY"
            " KEY"
        )
        table = site.session.describe("public", "c", fresh=True)
        assert table is not None
        site.version = replace(version_of(table, without=("own",)), old_image=OldImage.FULL)
        site.fits.forget()
        with pytest.raises(DatabaseError, match="own of it does not arrive"):
            site.apply(Lcr(new=WAS), at=now() - MINUTE)
        (finding,) = conflict_list_findings(APPLY, site.rules, site.version, table)
        assert "own of it does not arrive" in finding.problem
