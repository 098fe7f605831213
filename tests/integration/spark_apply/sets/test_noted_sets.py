"""Notes about whole sets, where changes of a table with latest_timestamp come from several sites."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import HandlerSql
from headrace.databases.postgres.destination.row_times import noted_sets as module
from spark_apply.sets.collapse import plan_sets
from spark_apply.sets.conflicts import execute_steps
from spark_apply.tables.fits import HashedKey
from tests.support.databases.latest_timestamp import (
    HERE,
    MINUTE,
    ROWS,
    THERE,
    THREE,
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
from tests.support.histories.conflicts import Lcr, batch_of
from tests.support.session.bounds import STALL_S

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

LATER = 100  # microseconds between the changes of a group


@pytest.fixture
def site(pg_destination: EmbeddedServer, destination_database: str) -> Iterator[Site]:
    with site_on(pg_destination, destination_database, rows=ROWS, sites=THREE) as made:
        yield made


def group(
    site: Site,
    *lcrs: Lcr,
    at: int,
    source: str = "c",
    apart: int = LATER,
    sql: str = "",
    is_behind_savepoint: bool = False,
) -> None:
    """Apply transactions of one source, `apart` microseconds after each other, in one destination transaction, as sets."""
    batch = batch_of(
        site.version,
        lcrs,
        each=True,
        first_scn=site.scn,
        source=source,
        times_us=[at + apart * n for n in range(len(lcrs))],
    )
    site.scn += 10 * len(lcrs)
    site.session.begin()
    if is_behind_savepoint:
        site.session.savepoint()
    assert execute_steps(site.session, plan_sets([batch], site.fits.fit)) is not None
    if sql:
        site.session.run_sql([HandlerSql(sql=sql)], timeout_s=STALL_S)
    site.session.commit((), 0)


def count(site: Site, table: str) -> int:
    return int(row_of(site.harness._admin.execute(f"SELECT count(*) FROM headrace.{table}"))[0])


@pytest.mark.parametrize("is_behind_savepoint", [False, True], ids=["plain", "behind a savepoint"])
def test_each_row_of_a_set_has_its_own_time(site: Site, is_behind_savepoint: bool) -> None:
    at = now()
    group(site, *(update(row) for row in range(1, 6)), at=at, is_behind_savepoint=is_behind_savepoint)
    for row in range(1, 6):
        mine = at + LATER * (row - 1)
        if row % 2:
            assert apply(site, row, mine + 1) == "there"
        else:
            assert apply(site, row, mine - 1) == "here"


def test_change_later_than_a_whole_set_is_applied_as_a_set(site: Site) -> None:
    at = now() - MINUTE
    group(site, update(1), update(2), at=at)
    assert not tried(site, site.session, Lcr(old=changed(ROWS[0], a="here"), new=THERE), at=at + LATER)
    assert tried(site, site.session, Lcr(old=changed(ROWS[0], a="here"), new=THERE), at=at + LATER + 1)
    assert site.rows()[0] == THERE


def test_last_of_several_changes_of_a_key_in_a_transaction_counts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS_MAX", 2)
    at = now()
    site.session.begin()
    for number in range(3):
        batch = batch_of(
            site.version,
            [update(row, f"v{number}", "a" if number == 0 else f"v{number - 1}") for row in range(1, 6)],
            each=True,
            first_scn=site.scn,
            source="c",
            times_us=[at + 10 * number] * 5,
        )
        site.scn += 50
        assert execute_steps(site.session, plan_sets([batch], site.fits.fit)) is not None
    site.session.commit((), 0)
    assert count(site, "row_change_set_time") >= 9, "three parts each"
    assert apply(site, 1, at + 19) == "v2"
    assert apply(site, 5, at + 21) == "there"


def test_bounds_of_a_set_decide_when_its_rows_times_are_forgotten(site: Site) -> None:
    at = now() - MINUTE
    group(site, *(update(row) for row in range(1, 5)), at=at)
    site.harness._admin.execute("TRUNCATE headrace.row_change_set_time")
    assert apply(site, 1, at - 1) == "here"
    assert "is not noted (any more)" in str(apply(site, 2, at + 1))
    assert value(site, 2) == "here"
    assert apply(site, 3, at + 3 * LATER + 1) == "there"
    assert apply(site, 4, at + LATER, source="c") == "there", "a source's own changes come in order"


def test_newest_row_times_are_kept_up_to_the_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PER_NOTE", 1)
    at = now() - MINUTE
    for row in range(1, 5):
        group(site, update(row), update(row, "here too", "here"), at=at)
    site.session.forget_changes(age_s=86_400, count=4)
    assert count(site, "row_change_set_time") == 4
    assert apply(site, 4, at + LATER - 1) == "here too"
    site.session.forget_changes(age_s=86_400, count=2)
    assert count(site, "row_change_set") == 2
    assert site.session.forget_changes(age_s=0, count=2) == 2
    assert count(site, "row_change_set") == count(site, "row_change_set_time") == 0
    assert "is not noted (any more)" in str(apply(site, 3, at + LATER - 1))
    assert apply(site, 2, now()) == "there"


def test_handlers_writes_beside_sets_are_not_taken_for_theirs(site: Site) -> None:
    at = now() - MINUTE
    group(site, update(1), update(2), at=at, sql="UPDATE public.c SET a = 'handled' WHERE id = 3")
    assert "is not noted (any more)" in str(apply(site, 3, at + MINUTE // 2))
    assert apply(site, 1, at - 1) == "here"
    assert apply(site, 2, at + LATER + 1) == "there"
    site.harness._admin.execute("TRUNCATE headrace.row_change_set_time")
    assert "is not noted (any more)" in str(apply(site, 1, at - 1)), "its bounds are not those of the whole transaction"
    assert not tried(
        site, site.session, Lcr(old=changed(ROWS[2], a="handled"), new=changed(ROWS[2], a="there")), at=at + MINUTE // 2
    )


def test_transaction_without_sets_has_none_of_an_earlier_one(site: Site) -> None:
    at = now() - MINUTE
    group(site, update(1), at=at)
    site.session.begin()
    site.session.run_sql([HandlerSql(sql="UPDATE public.c SET a = 'handled' WHERE id = 1")], timeout_s=STALL_S)
    site.session.commit((), 0)
    assert "is not noted (any more)" in str(apply(site, 1, at + 1))
    assert value(site, 1) == "handled"


def test_moved_row_is_found_by_its_new_key_and_its_old_one_is_gone(site: Site) -> None:
    at = now()
    group(site, Lcr(old=ROWS[0], new=changed(HERE, id=9)), Lcr(old=ROWS[1], new=changed(HERE, id=8)), at=at)
    assert site.apply(Lcr(new=changed(THERE, id=9)), at=at - 1) is None
    assert site.apply(Lcr(new=changed(THERE, id=8)), at=at + LATER + 1) is None
    assert site.apply(Lcr(old=ROWS[0], new=changed(THERE, id=1)), at=at - 1) is None
    assert site.rows() == [*ROWS[2:], changed(THERE, id=8), changed(HERE, id=9)]


def test_insert_is_compared_with_a_noted_delete_and_a_delete_with_a_set(site: Site) -> None:
    at = now()
    group(site, Lcr(old=ROWS[0]), update(2), at=at, apart=0)
    assert site.apply(Lcr(new=THERE), at=at - 1) is None
    assert value(site, 1) is None
    assert site.apply(Lcr(new=THERE), at=at + 1) is None
    assert value(site, 1) == "there"
    assert site.apply(Lcr(old=ROWS[1]), at=at - 1) is None
    assert value(site, 2) == "here"
    assert site.apply(Lcr(old=ROWS[1]), at=at + 1) is None
    assert value(site, 2) is None


def test_sets_of_a_source_that_left_are_still_compared(site: Site) -> None:
    at = now()
    group(site, update(1), update(2), at=at)
    now_of(site, *TWO)
    assert apply(site, 1, at + 1) == "there"
    assert apply(site, 2, at + 1) == "here"


def test_bounds_decide_where_keys_in_another_form_do_not_compare(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    at = now() - MINUTE
    group(site, update(1), update(2), at=at)
    monkeypatch.setattr(HashedKey, "form", property(lambda key: 7))
    assert apply(site, 1, at - 1) == "here"
    assert "is not noted" in str(apply(site, 2, at + 1))


def test_sets_from_a_dump_are_ignored(site: Site) -> None:
    at = now() - MINUTE
    group(site, update(1), update(2), at=at)
    site.harness._admin.execute(
        "CREATE TEMP TABLE dump AS SELECT * FROM headrace.row_change_set; TRUNCATE headrace.row_change_set; INSERT INTO"
        " headrace.row_change_set SELECT * FROM dump",
    )
    assert "is not noted (any more)" in str(apply(site, 1, at - 1))
    assert apply(site, 1, now()) == "there"


def test_rows_of_one_site_at_one_time_are_distinguished_by_rank(site: Site) -> None:
    at = now()
    group(site, update(1), update(2), at=at, source="c", apart=0)
    assert apply(site, 1, at, source="a") == "there", "a comes before c in the priority"
    group(site, update(3), at=at, source="a")
    assert apply(site, 3, at, source="c") == "here"
