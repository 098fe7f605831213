"""Whether a row was changed later here, on real servers: what is noted where there is one source, and what is known of it when a second one comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pytest

from databases.embedded import EmbeddedServer
from databases.postgres.destination.recent_changes import Horizon
from spark_apply.server.collapse import plan_sets
from spark_apply.server.conflicts import execute_steps
from spark_apply.server.resolution import ConflictSettings
from spark_apply.tables import TableFits
from tests.contract.test_latest_timestamp import HERE, MINUTE, THERE, WAS, Site, changed, now, tried
from tests.integration.test_lost_commit_times import site_on
from tests.support.conflicts import Lcr, batch_of, by_time
from tests.support.destination_contract import APPLY
from tests.support.postgres_redo import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TWO, THREE = ("b", "a"), ("b", "a", "c")


def now_of(site: Site, *sites: str) -> None:
    """The site applies changes of other sites than before."""
    handlers, times = by_time(*sites)
    site.rules = replace(site.rules, handlers=handlers, times=replace(times, site="b"))
    site.settings = ConflictSettings(apply=APPLY, source="a", site="b", rules=site.rules)
    site.fits = TableFits(site.session.describe, site.session.missing_alter, site.rules)


def notes(site: Site) -> list[tuple[bool, str]]:
    return site.harness._admin.execute("SELECT is_gone, source FROM headrace.row_change WHERE relation <> 0 ORDER BY 1, 2").fetchall()


def origins(site: Site) -> list[str]:
    return [name for (name,) in site.harness._admin.execute("SELECT source FROM headrace.row_change WHERE relation = 0 AND key1 < 0 ORDER BY key2").fetchall()]


@pytest.fixture
def site(pg_destination: EmbeddedServer, destination_database: str) -> Iterator[Site]:
    with site_on(pg_destination, destination_database, rows=[WAS, changed(WAS, id=2)], sites=TWO) as made:
        yield made


def test_where_there_is_one_source_only_deletes_and_old_keys_are_noted(site: Site) -> None:
    at = now() - MINUTE
    assert site.apply(Lcr(old=WAS, new=HERE), at=at) is None
    assert notes(site) == []
    assert site.apply(Lcr(old=HERE, new=changed(HERE, id=3)), at=at + 1) is None
    assert site.apply(Lcr(old=changed(WAS, id=2)), at=at + 2) is None
    assert notes(site) == [(True, "a"), (True, "a")]
    assert origins(site) == ["a"]
    now_of(site, *THREE)
    assert site.apply(Lcr(old=changed(HERE, id=3), new=THERE), at=at + 3) is None
    assert notes(site) == [(False, "a"), (True, "a"), (True, "a")]


def test_without_the_right_to_stamp_rows_are_noted(site: Site) -> None:
    site.session._may_stamp = False
    assert site.apply(Lcr(old=WAS, new=HERE), at=now() - MINUTE) is None
    assert notes(site) == [(False, "a")]


@pytest.mark.parametrize("new", [THERE, None], ids=["update", "delete"])
def test_what_the_only_source_changed_without_a_note_is_not_guessed_at_when_a_second_one_comes(site: Site, new: tuple[object, ...] | None) -> None:
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


def test_the_first_source_goes_on_where_it_was_and_notes_what_it_changes_now(site: Site) -> None:
    at = now() - MINUTE
    assert site.apply(Lcr(old=WAS, new=HERE), at=at) is None
    now_of(site, *THREE)
    assert tried(site, site.session, Lcr(old=HERE, new=THERE), at=at + 10)
    assert site.apply(Lcr(old=THERE, new=changed(THERE, n=1)), source="c", at=at + 9) is None, "its time is noted now, and later"
    assert site.rows()[0] == THERE
    assert site.apply(Lcr(old=THERE, new=changed(THERE, n=1)), source="c", at=at + 11) is None
    assert site.rows()[0] == changed(THERE, n=1)


def test_where_the_second_source_goes_its_notes_are_compared(site: Site) -> None:
    now_of(site, *THREE)
    at = now()
    assert site.apply(Lcr(old=WAS, new=HERE), source="c", at=at) is None
    now_of(site, *TWO)
    assert not tried(site, site.session, Lcr(old=HERE, new=THERE), at=at - 1)
    assert site.apply(Lcr(old=HERE, new=THERE), at=at - 1) is None
    assert site.rows()[0] == HERE
    assert site.apply(Lcr(old=HERE, new=THERE), at=at + 1) is None
    assert site.rows()[0] == THERE


def test_a_change_without_another_value_is_the_rows_last_change_too(site: Site) -> None:
    now_of(site, *THREE)
    at = now() - MINUTE
    assert tried(site, site.session, Lcr(old=WAS, new=WAS), at=at)
    assert site.apply(Lcr(old=WAS, new=HERE), source="c", at=at - 1) is None
    assert site.rows()[0] == WAS


def test_an_origin_stands_for_the_source_that_it_had_when_the_row_was_written(site: Site) -> None:
    at = now() - MINUTE
    assert site.apply(Lcr(old=WAS, new=HERE), at=at) is None
    # The session goes on for another source, as one does that has an earlier one's name.
    now_of(site, "b", "c")
    assert site.apply(Lcr(old=changed(WAS, id=2), new=changed(HERE, id=2)), source="c", at=now()) is None
    assert origins(site) == ["a", "c"]
    failure = site.apply(Lcr(old=HERE, new=THERE), source="c", at=at + 1)
    assert failure is not None
    assert "a change of a was applied" in failure.message
    assert site.apply(Lcr(old=changed(HERE, id=2), new=changed(THERE, id=2)), source="c", at=at) is None
    assert site.rows() == [HERE, changed(THERE, id=2)]


def test_origins_of_a_restored_dump_say_nothing(site: Site) -> None:
    assert site.apply(Lcr(old=WAS, new=HERE), at=now() - MINUTE) is None
    site.harness._admin.execute("CREATE TEMP TABLE dump AS SELECT * FROM headrace.row_change; TRUNCATE headrace.row_change; INSERT INTO headrace.row_change SELECT * FROM dump")
    now_of(site, "b", "c")
    assert site.apply(Lcr(old=HERE, new=THERE), source="c", at=now() - 2 * MINUTE) is None, "nobody knows of a row that was restored"
    assert site.rows()[0] == THERE
    assert origins(site) == ["a", "c"]


def as_set(site: Site, lcr: Lcr, at: int) -> bool:
    """Whether an LCR succeeds as a set."""
    batch = batch_of(site.version, [lcr], first_scn=site.scn, times_us=[at])
    site.scn += 10
    site.session.begin()
    is_done = execute_steps(site.session, plan_sets([batch], site.fits.fit)) is not None
    if is_done:
        site.session.commit((), 0)
    else:
        site.session.rollback()
    return is_done


def at_once(site: Site, user: psycopg.Connection, apply: Callable[[], object]) -> list[object]:
    """Apply while the user's transaction holds what is applied; the user commits when apply waits for it."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(apply()))
    thread.start()
    wait_until(lambda: site.harness._admin.execute("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'").fetchone()[0])
    user.commit()
    thread.join(60)
    return found


@pytest.mark.parametrize("sites", [TWO, THREE], ids=["one source", "two sources"])
@pytest.mark.parametrize("is_later", [False, True])
def test_what_a_user_commits_while_apply_waits_for_the_row_is_compared(site: Site, sites: tuple[str, ...], is_later: bool) -> None:
    now_of(site, *sites)
    at = now() + (2_000_000 if is_later else -1)
    with psycopg.connect(site.harness._dsn) as user:
        user.execute("UPDATE c SET a = 'here' WHERE id = 1")
        assert at_once(site, user, lambda: as_set(site, Lcr(old=WAS, new=THERE), at)) == [False]
    with psycopg.connect(site.harness._dsn) as user:
        user.execute("UPDATE c SET a = 'here too' WHERE id = 2")
        other = changed(WAS, id=2)
        assert at_once(site, user, lambda: site.apply(Lcr(old=other, new=changed(THERE, id=2)), at=at)) == [None]
    assert site.rows()[1] == (changed(THERE, id=2) if is_later else changed(WAS, id=2, a="here too"))


@pytest.mark.parametrize("sites", [TWO, THREE], ids=["one source", "two sources"])
@pytest.mark.parametrize("is_later", [False, True])
def test_an_insert_that_waits_for_a_users_delete_is_compared_with_it(site: Site, sites: tuple[str, ...], is_later: bool) -> None:
    now_of(site, *sites)
    at = now() + (2_000_000 if is_later else -1)
    with psycopg.connect(site.harness._dsn) as user:
        user.execute("DELETE FROM c WHERE id = 1")
        assert at_once(site, user, lambda: as_set(site, Lcr(new=THERE), at)) == [is_later]
    assert site.rows() == [*([THERE] if is_later else []), changed(WAS, id=2)]


@pytest.mark.parametrize("is_later", [False, True])
def test_a_key_that_a_row_moves_to_may_have_been_deleted_later(site: Site, is_later: bool) -> None:
    before = site.user(WAS, None)
    moved = changed(WAS, id=1)
    assert site.apply(Lcr(old=changed(WAS, id=2), new=moved), at=now() if is_later else before - 1) is None
    assert site.rows() == ([moved] if is_later else [])


def test_what_ended_before_is_known_by_its_number(site: Site) -> None:
    horizon: Horizon = site.session._horizon
    assert site.apply(Lcr(old=WAS, new=HERE), at=now()) is None
    (number,) = site.harness._admin.execute("SELECT xmin::text::int8 FROM c WHERE id = 1").fetchone()
    later = now()
    assert horizon.ended_before(later) > number
    site.user(HERE, WAS)
    (number,) = site.harness._admin.execute("SELECT xmin::text::int8 FROM c WHERE id = 1").fetchone()
    assert horizon.ended_before(later) <= number
