"""latest_timestamp at a destination into which a dump was restored: its rows and notes have the restore's transaction
numbers and commit times.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from tests.support.databases.latest_timestamp import HERE, MINUTE, THERE, WAS, Site, changed, now, site_on
from tests.support.histories.conflicts import Lcr
from tests.support.session.matrices import cases

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

OTHER = changed(WAS, id=2)
SITES = {"one source": ("b", "a"), "two sources": ("b", "a", "c")}
RESTORED = ("c", "headrace.row_change", "headrace.row_change_set", "headrace.row_change_set_time")


@pytest.fixture(params=list(SITES))
def site(request: pytest.FixtureRequest, pg_destination: EmbeddedServer, destination_database: str) -> Iterator[Site]:
    with site_on(
        pg_destination, destination_database, rows=[WAS, OTHER, changed(WAS, id=3)], sites=SITES[request.param]
    ) as made:
        yield made


def restore(site: Site) -> int:
    """Restore a dump as `pg_restore --single-transaction` does, then act as the apply process at its next start; return
    the moment of the dump.
    """
    dumped, admin = now(), site.harness._admin
    with admin.transaction():
        for name in RESTORED:
            admin.execute(
                f"CREATE TEMP TABLE dump ON COMMIT DROP AS SELECT * FROM {name}; TRUNCATE {name}; INSERT INTO {name}"
                " SELECT * FROM dump; DROP TABLE dump"
            )
    site.session.sample_times(age_s=7 * 86_400, every_s=600)
    site.wait_sampled()
    return dumped


def test_change_between_the_dump_and_its_restore_is_not_taken_as_earlier(site: Site) -> None:
    site.sample()
    assert site.apply(Lcr(old=WAS, new=HERE), at=now() - MINUTE) is None
    dumped = restore(site)
    failure = site.apply(Lcr(old=HERE, new=THERE), at=dumped)
    assert failure is not None, "the site had made it before the restore, and lacks it now"
    assert "does not know any more" in failure.message
    assert site.rows()[0] == HERE
    assert site.apply(Lcr(old=OTHER), at=dumped) is not None
    assert site.apply(Lcr(old=HERE, new=THERE), at=now()) is None
    assert site.rows()[0] == THERE


def test_delete_whose_note_was_restored_is_not_taken_as_later(site: Site) -> None:
    site.sample()
    site.user(OTHER, None)
    dumped = restore(site)
    failure = site.apply(Lcr(old=OTHER, new=changed(THERE, id=2)), at=dumped)
    assert failure is not None
    assert "may be forgotten" in failure.message
    assert site.apply(Lcr(old=OTHER, new=changed(THERE, id=2)), at=now()) is None
    assert changed(THERE, id=2) in site.rows()


def test_note_under_another_tables_number_before_the_dump_is_ignored(site: Site) -> None:
    """Tables have other numbers after a restore, and the numbers of a new server begin at the same one."""
    site.sample()
    site.harness._admin.execute(
        "INSERT INTO headrace.row_change SELECT 'c'::regclass, pg_catalog.hash_record_extended(ROW(9), 0),"
        " pg_catalog.hash_record_extended(ROW(9), 1), now(), 0, true, 'a'",
    )
    restore(site)
    assert site.apply(Lcr(new=changed(THERE, id=9)), at=now() - MINUTE) is None
    assert changed(THERE, id=9) in site.rows()


def test_users_changes_after_a_restore_are_compared_as_usual(site: Site) -> None:
    site.sample()
    restore(site)
    before = site.user(WAS, HERE)
    assert site.apply(Lcr(old=WAS, new=THERE), at=before - 1) is None
    assert site.rows()[0] == HERE
    assert site.apply(Lcr(old=WAS, new=THERE), at=now()) is None
    assert site.rows()[0] == THERE


def test_sets_from_a_dump_do_not_cover_the_rows_restored_with_them(site: Site) -> None:
    """Restored in one transaction, both have its number. Where the server loses their times, nothing else would
    distinguish them.
    """
    site.sample()
    assert site.apply(Lcr(old=WAS, new=HERE), at=now() - MINUTE) is None
    restore(site)
    for name in RESTORED[2:]:
        assert site.harness._admin.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,)


def test_each_restore_is_noticed(site: Site) -> None:
    site.sample()
    restore(site)
    site.session.sample_times(age_s=7 * 86_400, every_s=600)
    assert site.apply(Lcr(old=WAS, new=HERE), at=now()) is None
    dumped = restore(site)
    assert site.apply(Lcr(old=HERE, new=THERE), at=dumped) is not None
    assert site.harness._admin.execute(
        "SELECT count(*) FROM headrace.row_change WHERE relation = 0 AND key2 = 2"
    ).fetchone() == (1,)


@pytest.mark.parametrize(
    "options",
    # `restore` restores in one transaction
    cases({"table by table": [], "in one transaction": ["--single-transaction"]}, core=["table by table"]),
)
@pytest.mark.parametrize("sites", list(SITES.values()), ids=list(SITES))
def test_rows_from_pg_restore_into_another_database_have_no_time(
    pg_destination: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
    sites: tuple[str, ...],
    options: list[str],
) -> None:
    dsns = [fresh_database(pg_destination) for _ in range(2)]
    file = tmp_path / "dump"
    with site_on(pg_destination, dsns[0], rows=[WAS, OTHER], sites=sites) as site:
        site.sample()
        assert site.apply(Lcr(old=WAS, new=HERE), at=now() - MINUTE) is None
        site.user(OTHER, None)
        subprocess.run([pg_destination.binary("pg_dump"), "-Fc", "-f", file, dsns[0]], check=True)
        dumped = now()
    # its session predates the restore, and all its objects are dropped
    with site_on(pg_destination, dsns[1], sites=sites) as site:
        site.harness._admin.execute("DROP TABLE c; DROP SCHEMA headrace CASCADE")
        subprocess.run([pg_destination.binary("pg_restore"), *options, "-d", dsns[1], file], check=True)
        site.session.close()
    with site_on(pg_destination, dsns[1], sites=sites) as site:
        site.session.sample_times(age_s=7 * 86_400, every_s=600)
        site.wait_sampled()
        assert site.rows() == [HERE]
        assert site.apply(Lcr(old=HERE, new=THERE), at=dumped) is not None
        assert site.apply(Lcr(old=OTHER, new=changed(THERE, id=2)), at=dumped) is not None
        assert site.apply(Lcr(old=HERE, new=THERE), at=now()) is None
        assert site.rows() == [THERE]
