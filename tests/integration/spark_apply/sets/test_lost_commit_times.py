"""Servers lose commit times by themselves, earlier than latest_timestamp needs them; changes that arrive afterwards are
not decided by a guess.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.base.errors import DatabaseError
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.destination.row_times import lost_times
from headrace.databases.postgres.destination.row_times.lost_times import lost_until, sample_times
from tests import fix_postgres
from tests.support.databases.destination_contract import APPLY, TAG, TOPOLOGY, PostgresHarness
from tests.support.databases.latest_timestamp import HERE, THERE, WAS, Site, changed, now, site_on, tried
from tests.support.databases.statements import row_of
from tests.support.histories.conflicts import Lcr
from tests.support.redo.postgres_redo import wait_until
from tests.support.session.matrices import values

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

WEEK_S = 7 * 86_400


@pytest.fixture
def freezing(postgres_folder: Path) -> Iterator[EmbeddedServer]:
    """Return a server that freezes rows after 100,000 transactions instead of 200 million."""
    server = EmbeddedServer(
        postgres_folder / "freezing",
        version=18,
        name="freezing",
        settings={
            **fix_postgres.SETTINGS,
            "autovacuum_freeze_max_age": "100000",
            "autovacuum_naptime": "1s",
        },
    )
    server.start()
    try:
        yield server
    finally:
        server.destroy()


def is_known(site: Site) -> bool:
    """Return whether the server knows when its row was written."""
    asked = "SELECT pg_xact_commit_timestamp(xmin) IS NOT NULL FROM c WHERE id = 1"
    return bool(row_of(site.harness._admin.execute(asked))[0])


def test_users_change_stays_when_autovacuum_has_lost_its_time(freezing: EmbeddedServer) -> None:
    other = changed(WAS, id=2)
    with site_on(freezing, freezing.dsn(), rows=[WAS, other]) as site:
        site.sample()
        before = site.user(WAS, HERE)
        site.user(other, None)
        after = site.sample()
        until = time.monotonic() + 300  # a busy machine takes longer
        while is_known(site):
            assert time.monotonic() < until, "autovacuum did not run"
            site.harness._admin.execute(
                "DO $$ BEGIN FOR i IN 1..20000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
            )
            time.sleep(0.2)
        for lcr in (
            Lcr(old=WAS, new=THERE),
            Lcr(old=HERE, new=THERE),
            Lcr(old=HERE),
            Lcr(old=other, new=changed(THERE, id=2)),
            Lcr(new=changed(THERE, id=2)),
        ):
            assert not tried(site, site.session, lcr, at=before - 1)
            failure = site.apply(lcr, at=before - 1)
            assert failure is not None
            assert "may be forgotten" in failure.message
        assert site.rows() == [HERE]
        assert tried(site, site.session, Lcr(old=HERE, new=THERE), at=after + 1)
        assert tried(site, site.session, Lcr(new=other), at=after + 1)
        assert site.rows() == [THERE, other]


@pytest.mark.soak
def test_changes_from_before_a_gap_in_commit_times_are_not_guessed_at(freezing: EmbeddedServer) -> None:
    with site_on(freezing, freezing.dsn(), rows=[WAS, changed(WAS, id=2)]) as site:
        site.user(changed(WAS, id=2), changed(HERE, id=2))
        early = site.sample()
        before = site.user(WAS, HERE)
        for value in ("off", "on"):
            site.harness._admin.execute(f"ALTER SYSTEM SET track_commit_timestamp = {value}")
            freezing.restart()
            site.harness._admin = psycopg.connect(freezing.dsn(), autocommit=True)
        assert not is_known(site)
        destination = site.harness.destination()
        epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
        site = Site(site.harness, destination.open_session(TOPOLOGY, APPLY, server=0, epoch=epoch, tag=TAG))  # noqa: PLW2901 - the server's next life
        failure = site.apply(Lcr(old=HERE, new=THERE), at=before - 1)
        assert failure is not None, "without a sample since then, every change may be later"
        after = site.sample()
        failure = site.apply(Lcr(old=HERE, new=THERE), at=before - 1)
        assert failure is not None
        # The numbers of transactions stay, and so do the conclusions from them.
        assert site.apply(Lcr(old=changed(HERE, id=2), new=changed(THERE, id=2)), at=early + 1) is None
        assert site.apply(Lcr(old=HERE, new=THERE), at=after + 1) is None
        assert site.rows() == [THERE, changed(THERE, id=2)]
        site.session.close()


def restarted(server: EmbeddedServer, harness: PostgresHarness) -> None:
    """Restart the server without any commit times."""
    for value in ("off", "on"):
        harness._admin.execute(f"ALTER SYSTEM SET track_commit_timestamp = {value}")
        server.restart()
        harness._admin = psycopg.connect(server.dsn(), autocommit=True)


def opened(harness: PostgresHarness) -> Site:
    """Open a site with another epoch."""
    destination = harness.destination()
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    return Site(harness, destination.open_session(TOPOLOGY, APPLY, server=0, epoch=epoch, tag=TAG), tombstones=False)


@pytest.mark.parametrize("is_lost", values([False, True], True))
def test_first_sample_gives_no_bound_for_transactions_still_running(freezing: EmbeddedServer, is_lost: bool) -> None:
    with site_on(freezing, freezing.dsn(), rows=[WAS]) as site:
        harness = site.harness
        restarted(freezing, harness)
        with psycopg.connect(freezing.dsn()) as user:
            user.execute("UPDATE c SET a = 'here' WHERE id = 1")
            site.user(None, changed(WAS, id=2))  # the first transaction whose time the server knows
            site = opened(harness)  # noqa: PLW2901 - the server's next life
            harness._admin.execute("DELETE FROM headrace.row_change")
            site.session.sample_times(age_s=WEEK_S, every_s=0)
            at = now()
        site.session.sample_times(age_s=WEEK_S, every_s=0)
        if is_lost:
            restarted(freezing, harness)
            site = opened(harness)  # noqa: PLW2901
        assert not tried(site, site.session, Lcr(old=HERE, new=THERE), at=at)
        assert (site.apply(Lcr(old=HERE, new=THERE), at=at) is not None) == is_lost
        assert site.rows()[0] == HERE
        site.session.close()


@pytest.mark.parametrize("name", values(["pg_15", "pg_16"], "pg_15"))
def test_older_servers_also_lose_times(
    request: pytest.FixtureRequest, prepared_database: Callable[[EmbeddedServer], str], name: str
) -> None:
    server = request.getfixturevalue(name)
    with site_on(server, prepared_database(server), rows=[WAS]) as site:
        before = site.user(WAS, HERE)
        after = site.sample()
        site.lose_times()
        assert not tried(site, site.session, Lcr(old=HERE, new=THERE), at=before - 1)
        assert site.apply(Lcr(old=HERE, new=THERE), at=before - 1) is not None
        assert tried(site, site.session, Lcr(old=HERE, new=THERE), at=after + 1)


# ------------------------------------------------------------------ samples


@pytest.fixture
def site(pg_destination: EmbeddedServer, destination_database: str) -> Iterator[Site]:
    with site_on(pg_destination, destination_database, rows=[WAS]) as made:
        yield made


def samples(site: Site) -> list[tuple[int, float | None]]:
    """Return numbers of transactions, and the time in seconds since the epoch when all lower ones had ended."""
    return site.harness._admin.execute(
        "SELECT key1, extract(epoch FROM changed_at)::float8 FROM headrace.row_change WHERE relation = 0 AND key2 = 1"
        " ORDER BY 1"
    ).fetchall()


def test_sample_gives_no_bound_before_earlier_transactions_have_ended(site: Site, destination_database: str) -> None:
    """A transaction that began before the sample can commit long after it."""
    site.sample()
    with psycopg.connect(destination_database) as user:
        user.execute("UPDATE c SET a = 'here'")
        site.session.sample_times(age_s=WEEK_S, every_s=0)
        assert samples(site)[-1][1] is None
        at = now()
        user.commit()
    site.lose_times()
    assert not tried(site, site.session, Lcr(old=HERE, new=THERE), at=at)
    assert site.apply(Lcr(old=HERE, new=THERE), at=at) is not None
    after = site.sample()
    assert all(ended is not None for _, ended in samples(site))
    assert site.apply(Lcr(old=HERE, new=THERE), at=at) is not None
    assert tried(site, site.session, Lcr(old=HERE, new=THERE), at=after + 1)


def test_samples_are_taken_periodically_and_kept_while_they_are_useful(site: Site) -> None:
    site.session.sample_times(age_s=WEEK_S, every_s=0)
    count = len(samples(site))
    site.session.sample_times(age_s=WEEK_S, every_s=300)
    assert len(samples(site)) == count
    for _ in range(3):
        site.sample()
    assert len(samples(site)) == count + 3
    ends: list[Any] = [ended for _, ended in samples(site)]
    assert ends == sorted(ends)
    site.session.sample_times(age_s=0, every_s=300)
    assert len(samples(site)) == 1
    assert site.session.forget_changes(age_s=0, count=0) == 1
    assert len(samples(site)) == 1, "samples are no notes"


def test_clock_that_is_set_back_makes_no_sample_earlier_than_the_last(site: Site) -> None:
    site.sample()
    number, _ = samples(site)[-1]
    ahead = time.time() + 3600
    site.harness._admin.execute(
        "UPDATE headrace.row_change SET changed_at = to_timestamp(%s), source = pg_current_xact_id()::xid::text WHERE"
        " relation = 0 AND key1 = %s",
        (ahead, number),
    )
    site.sample()
    assert samples(site)[-1][0] > number
    assert samples(site)[-1][1] == pytest.approx(ahead, abs=0.001)


def test_full_number_of_a_transaction_is_the_newest_with_its_low_bits(site: Site) -> None:
    (end,) = row_of(site.harness._admin.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8"))
    for xmin, whole in (
        (3, 3),
        (end - 1, end - 1),
        (end + 1000, end + 1000),
        (end + 2_000_000, end + 2_000_000 - 2**32),
        (2**32 - 1, -1),
    ):
        expression = lost_times.whole_number(f"'{xmin}'::xid")
        assert site.harness._admin.execute(f"SELECT {expression}").fetchone() == (whole,)


def test_samples_of_a_restored_dump_are_dropped(site: Site) -> None:
    site.sample()
    site.harness._admin.execute("VACUUM (FULL, FREEZE) headrace.row_change")
    earlier = samples(site)
    site.session.sample_times(age_s=WEEK_S, every_s=3600)
    assert samples(site) == earlier
    site.harness._admin.execute(
        "CREATE TEMP TABLE dump AS SELECT * FROM headrace.row_change; TRUNCATE headrace.row_change; INSERT INTO"
        " headrace.row_change SELECT * FROM dump"
    )
    assert samples(site) == earlier
    site.sample()
    assert not {ended for _, ended in earlier} & {ended for _, ended in samples(site)[1:]}


def test_losses_before_the_first_sample_precede_the_oldest_known_time(freezing: EmbeddedServer) -> None:
    """Times are kept since the server started with them: older rows count as older than present changes."""
    admin = psycopg.connect(freezing.dsn(), autocommit=True)
    for value in ("off", "on"):
        admin.execute(f"ALTER SYSTEM SET track_commit_timestamp = {value}")
        freezing.restart()
        admin = psycopg.connect(freezing.dsn(), autocommit=True)
        if value == "off":
            admin.execute("CREATE TABLE c (id int PRIMARY KEY, a text, b text, t int, n int, u text)")
            admin.execute("INSERT INTO c VALUES (1, 'a', 'b', 10, 100, 'u')")
            admin.execute("DO $$ BEGIN FOR i IN 1..200 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
        else:
            admin.execute("SELECT pg_current_xact_id()")
    admin.close()
    time.sleep(1.1)
    at = now() - 1_000_000
    with site_on(freezing, freezing.dsn()) as site:
        site.sample()
        assert not is_known(site)
        (bound,) = row_of(
            site.harness._admin.execute(f"SELECT extract(epoch FROM {lost_until('c.xmin')})::float8 FROM c")
        )
        assert bound < at / 1_000_000, "the first sample's time was used"
        assert tried(site, site.session, Lcr(old=WAS, new=THERE), at=at)


def test_role_with_rights_on_the_table_alone_takes_samples(site: Site, destination_database: str) -> None:
    admin = site.harness._admin
    admin.execute(
        "DROP ROLE IF EXISTS headrace_sampler; CREATE ROLE headrace_sampler; GRANT USAGE ON SCHEMA headrace TO"
        " headrace_sampler"
    )
    admin.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON headrace.row_change TO headrace_sampler")
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("SET ROLE headrace_sampler")
        sample_times(user, age_s=WEEK_S, every_s=0)
    assert samples(site)
    admin.execute("DROP OWNED BY headrace_sampler; DROP ROLE headrace_sampler")


def test_samples_need_commit_times(fresh_database: Callable[[EmbeddedServer], str], postgres_folder: Path) -> None:
    server = EmbeddedServer(
        postgres_folder / "timeless",
        version=18,
        name="timeless",
        settings={"shared_buffers": "16MB", "track_commit_timestamp": "off"},
    )
    server.start()
    try:
        with (
            site_on(server, server.dsn(), tombstones=False) as site,
            pytest.raises(DatabaseError, match="commit timestamp"),
        ):
            site.session.sample_times(age_s=WEEK_S, every_s=0)
    finally:
        server.destroy()


def test_first_samples_of_several_sessions_do_not_conflict(site: Site, destination_database: str) -> None:
    """All servers of an apply process begin at the same time."""
    with (
        psycopg.connect(destination_database) as first,
        psycopg.connect(destination_database, autocommit=True) as second,
    ):
        lost_times._begin(first)
        thread = threading.Thread(target=sample_times, args=(second,), kwargs={"age_s": WEEK_S, "every_s": 0})
        thread.start()
        wait_until(
            lambda: row_of(
                site.harness._admin.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
                )
            )[0]
        )
        first.commit()
        thread.join(30)
        assert not thread.is_alive()
    assert len(samples(site)) == 2


def test_tie_with_a_delete_whose_time_is_kept_is_decided_as_before(site: Site) -> None:
    site.user(WAS, None)
    assert site.session.forget_changes(age_s=WEEK_S, count=1000) == 0
    (at,) = row_of(
        site.harness._admin.execute(
            "SELECT (extract(epoch FROM changed_at) * 1000000)::int8 FROM headrace.row_change WHERE is_gone"
        )
    )
    assert not tried(site, site.session, Lcr(new=THERE), at=at)
    assert site.apply(Lcr(new=THERE), at=at) is None
    assert site.rows() == []
    assert tried(site, site.session, Lcr(new=THERE), at=at + 1)
