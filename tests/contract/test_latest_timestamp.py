"""latest_timestamp at every destination database: the last commit wins, with its whole row, whoever made it.

Rows are (id, a, b, t, n, u). Times are the machine's: changes by users of the site have their commit's.
"""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.errors import DatabaseError
from headrace.databases.postgres.destination.server_session.session import PostgresSession
from spark_apply.sets.collapse import plan_resolvable, plan_sets
from spark_apply.sets.conflicts import execute_steps
from spark_apply.tables.fits import TableFits
from tests.support.databases.destination_contract import MemoryHarness, on_a_server_in_soak
from tests.support.databases.latest_timestamp import HERE, MINUTE, THERE, WAS, Site, changed, now, tried
from tests.support.histories.conflicts import Lcr, batch_of


@pytest.fixture(params=[("b", "a"), ("b", "a", "c"), None], ids=["one source", "two sources", "two sources by row"])
def any_site(request, harness, session):
    """A site among two, where only deletes are noted; among three, where sets are; or one whose role may not stamp.

    In the last case each row is noted.
    """
    if request.param is None:
        if isinstance(harness, MemoryHarness):
            pytest.skip("PostgreSQL's")
        session._progress.stamp = ""
    return Site(harness, session, rows=[WAS], sites=request.param or ("b", "a", "c"))


@pytest.fixture(params=[True, False], ids=["by set", "by row"])
def site(request, harness, session):
    """One of three sites."""
    if not request.param:
        if isinstance(harness, MemoryHarness):
            pytest.skip("PostgreSQL's")
        session._progress.stamp = ""
    return Site(harness, session, rows=[WAS])


def test_a_change_that_is_later_than_the_users_replaces_the_whole_row(any_site, destination):
    any_site.user(WAS, HERE)
    assert any_site.apply(Lcr(old=WAS, new=THERE), at=now()) is None
    assert any_site.rows() == [THERE]
    (record,) = any_site.history(destination)
    assert (record.kind, record.handler, record.outcome, record.columns) == (
        "update_differs",
        "latest_timestamp",
        "LCR APPLIED",
        ("a",),
    )


def test_change_earlier_than_the_users_loses_even_with_other_columns(any_site, destination):
    before = any_site.user(WAS, changed(WAS, t=11))
    assert any_site.apply(Lcr(old=WAS, new=changed(WAS, a="x")), at=before - 1) is None
    assert any_site.rows() == [changed(WAS, t=11)]
    (record,) = any_site.history(destination)
    assert (record.kind, record.outcome) == ("update_differs", "LCR DISCARDED")
    assert any(text.startswith("last changed=") and text.endswith("by this site") for text in record.current)


@on_a_server_in_soak
def test_values_that_came_back_do_not_hide_that_the_user_was_later(any_site):
    before = any_site.user(WAS, HERE)
    any_site.user(HERE, WAS)
    assert any_site.apply(Lcr(old=WAS, new=THERE), at=before - 1) is None
    assert any_site.rows() == [WAS]


def test_of_two_sources_the_later_one_wins_whoever_comes_first(site):
    at = now() - MINUTE
    assert site.apply(Lcr(old=WAS, new=changed(WAS, a="c")), source="c", at=at) is None
    assert site.apply(Lcr(old=WAS, new=changed(WAS, a="a")), source="a", at=at - 1) is None
    assert site.rows() == [changed(WAS, a="c")]
    assert site.apply(Lcr(old=WAS, new=THERE), source="a", at=at + 1) is None
    assert site.rows() == [THERE]


@on_a_server_in_soak
def test_row_applied_before_its_table_had_the_method_loses_like_a_copy(harness, session):
    """So no change may be in flight at that time: docs/how/conflicts.md."""
    site = Site(harness, session)
    timed, site.fits = site.fits, TableFits(session.describe, session.missing_alter)
    assert site.apply(Lcr(new=HERE), source="c", at=now()) is None
    site.fits = timed
    assert site.apply(Lcr(old=WAS, new=THERE), source="a", at=now() - MINUTE) is None
    assert site.rows() == [THERE]


def test_ties_are_decided_by_priority(site):
    at = now() - MINUTE
    assert site.apply(Lcr(old=WAS, new=changed(WAS, a="c")), source="c", at=at) is None
    assert site.apply(Lcr(old=WAS, new=THERE), source="a", at=at) is None
    assert site.rows() == [THERE]
    assert site.apply(Lcr(old=WAS, new=changed(WAS, a="c")), source="c", at=at) is None
    assert site.rows() == [THERE]


@on_a_server_in_soak
def test_a_clock_that_is_set_back_does_not_undo_what_one_source_did_later(any_site):
    at = now() - MINUTE
    assert any_site.apply(Lcr(old=WAS, new=HERE), at=at) is None
    assert any_site.apply(Lcr(old=HERE, new=THERE), at=at - 1000) is None
    assert any_site.rows() == [THERE]


def test_a_delete_by_a_user_is_remembered(site, destination):
    before = site.user(WAS, None)
    assert site.apply(Lcr(old=WAS, new=THERE), at=before - 1) is None
    assert site.rows() == []
    assert site.apply(Lcr(new=THERE), source="c", at=before - 1) is None
    assert site.rows() == []
    assert site.apply(Lcr(old=WAS, new=THERE), at=now()) is None
    assert site.rows() == [THERE]
    assert [(each.kind, each.outcome) for each in site.history(destination)] == [
        ("update_missing", "LCR DISCARDED"),
        ("insert_exists", "LCR DISCARDED"),
        ("update_missing", "LCR APPLIED"),
    ]
    assert "last deleted=" in site.history(destination)[0].current[-1]


def test_a_delete_that_was_applied_is_remembered(site):
    at = now() - MINUTE
    assert site.apply(Lcr(old=WAS), at=at) is None
    assert site.apply(Lcr(old=WAS, new=THERE), source="c", at=at - 1) is None
    assert site.rows() == []
    assert site.apply(Lcr(new=THERE), source="c", at=at + 1) is None
    assert site.rows() == [THERE]


def test_a_delete_that_is_earlier_than_the_last_change_loses(any_site, destination):
    before = any_site.user(WAS, HERE)
    assert any_site.apply(Lcr(old=WAS), at=before - 1) is None
    assert any_site.rows() == [HERE]
    assert any_site.apply(Lcr(old=WAS), at=now()) is None
    assert any_site.rows() == []
    assert [(each.kind, each.outcome) for each in any_site.history(destination)] == [
        ("delete_differs", "LCR DISCARDED"),
        ("delete_differs", "LCR APPLIED"),
    ]


@on_a_server_in_soak
def test_a_delete_of_a_row_that_is_gone_counts_as_the_last_change_if_it_is(site):
    at = now() - MINUTE
    assert site.apply(Lcr(old=WAS), at=at) is None
    assert site.apply(Lcr(old=WAS), source="c", at=at + 10) is None
    assert site.apply(Lcr(old=WAS, new=THERE), at=at + 5) is None
    assert site.rows() == []


def test_a_key_that_a_user_changed_is_gone_and_the_new_one_is_there(any_site):
    before = any_site.user(WAS, changed(WAS, id=2))
    assert any_site.apply(Lcr(old=WAS, new=THERE), at=before - 1) is None
    assert any_site.rows() == [changed(WAS, id=2)]
    assert any_site.apply(Lcr(new=changed(THERE, id=2)), at=before - 1) is None
    assert any_site.rows() == [changed(WAS, id=2)]


@on_a_server_in_soak
def test_key_update_replaces_earlier_changes_and_keeps_later_ones(site):
    before = site.user(WAS, HERE)
    assert site.apply(Lcr(old=WAS, new=changed(THERE, id=2)), at=before - 1) is None
    assert site.rows() == [HERE, changed(THERE, id=2)]
    assert site.apply(Lcr(old=HERE, new=changed(HERE, id=2)), source="c", at=now()) is None
    assert site.rows() == [changed(HERE, id=2)]
    assert site.apply(Lcr(old=HERE, new=THERE), at=before) is None
    assert site.rows() == [changed(HERE, id=2)]


def test_an_insert_of_a_row_that_is_there_is_decided_by_time(any_site):
    before = any_site.user(WAS, HERE)
    assert any_site.apply(Lcr(new=THERE), at=before - 1) is None
    assert any_site.rows() == [HERE]
    assert any_site.apply(Lcr(new=THERE), at=now()) is None
    assert any_site.rows() == [THERE]


@on_a_server_in_soak
def test_without_tombstones_a_row_that_is_gone_was_never_there(harness, session):
    site = Site(harness, session, rows=[WAS], tombstones=False)
    at = now() - MINUTE
    assert site.apply(Lcr(old=WAS), at=at) is None
    assert site.apply(Lcr(old=WAS, new=THERE), source="c", at=at - 1) is None
    assert site.rows() == [THERE]


def test_what_is_older_than_the_tombstones_that_are_kept_is_not_guessed(site, session):
    at = now() - 5 * MINUTE
    assert site.apply(Lcr(old=WAS), at=at) is None
    assert session.forget_changes(age_s=60, count=1000) == 1
    assert session.forget_changes(age_s=60, count=1000) == 0
    failure = site.apply(Lcr(old=WAS, new=THERE), source="c", at=at - 1)
    assert failure is not None
    assert failure.conflict_type == "update_missing"
    assert "may be forgotten (tombstones: retention_days, count)" in failure.message
    assert site.rows() == []
    assert site.apply(Lcr(old=WAS, new=THERE), source="c", at=at + MINUTE) is None
    assert site.rows() == [THERE]


@on_a_server_in_soak
def test_no_more_times_are_kept_than_the_count_and_the_oldest_go_first(site, session):
    at = now() - MINUTE
    for number in range(2, 6):
        assert site.apply(Lcr(new=changed(WAS, id=number)), at=at + number) is None
    assert session.forget_changes(age_s=86_400, count=3) in {1, 2}
    failure = site.apply(Lcr(old=HERE, new=THERE), source="c", at=at - 20 * MINUTE)
    assert failure is not None, "its time is forgotten"
    assert site.apply(Lcr(old=changed(HERE, id=5), new=changed(THERE, id=5)), source="c", at=at) is None
    assert changed(WAS, id=5) in site.rows()


def test_sets_find_the_rows_that_were_changed_later_and_write_all_others(harness, session):
    rows = [changed(WAS, id=number) for number in range(1, 9)]
    site = Site(harness, session, rows=rows)
    before = site.user(rows[0], changed(HERE, id=1))
    site.user(rows[1], None)
    at = before - 1000
    assert site.apply(Lcr(old=rows[2], new=changed(HERE, id=3)), source="c", at=at + 1) is None
    assert site.apply(Lcr(old=rows[3]), source="c", at=at + 1) is None
    lcrs = [Lcr(old=row, new=changed(row, a="set")) for row in rows]
    batch = batch_of(site.version, lcrs, each=True, first_scn=5000, times_us=[at] * len(lcrs))
    session.begin()
    plan = plan_resolvable([batch], site.fits.fit)
    assert plan is not None
    found = plan.around(session.conflicting)
    assert found is not None
    assert np.flatnonzero(found[1] >= 0).tolist() == [0, 1, 2, 3]
    assert execute_steps(session, plan_sets([batch], site.fits.fit)) is None
    session.rollback()
    session.begin()
    rest = batch_of(site.version, lcrs[4:], each=True, first_scn=5000, times_us=[at] * 4)
    assert execute_steps(session, plan_sets([rest], site.fits.fit)) == 4
    session.commit((), 0)
    assert site.apply(Lcr(old=changed(rows[4], a="set"), new=changed(rows[4], a="late")), source="c", at=at - 1) is None
    assert changed(rows[4], a="set") in site.rows()


@on_a_server_in_soak
@pytest.mark.parametrize("last", [THERE, None])
def test_first_change_of_a_row_in_a_set_decides_and_the_last_is_noted(harness, session, last):
    site = Site(harness, session, rows=[WAS, changed(WAS, id=2)])
    at = now() - MINUTE
    for row in site.rows():
        assert site.apply(Lcr(old=row, new=changed(row, t=11)), source="c", at=at + 10) is None
        assert site.apply(Lcr(old=changed(row, t=11), new=row), source="c", at=at + 20) is None
    lcrs = [Lcr(old=WAS, new=HERE), Lcr(old=HERE, new=last)]

    def planned(*times):
        return batch_of(site.version, lcrs, each=True, first_scn=5000, times_us=times)

    session.begin()
    lost = planned(at + 19, at + 30)
    assert execute_steps(session, plan_sets([lost], site.fits.fit)) is None
    session.rollback()
    session.begin()
    plan = plan_resolvable([lost], site.fits.fit)
    assert plan is not None
    found = plan.around(session.conflicting)
    assert found is not None
    assert found[1].tolist() == [0, 1]
    assert execute_steps(session, plan_sets([planned(at + 21, at + 30)], site.fits.fit)) is not None
    session.commit((), 0)
    rest = [changed(WAS, id=2)]
    assert site.rows() == ([last, *rest] if last is not None else rest)
    assert site.apply(Lcr(old=WAS, new=HERE), source="c", at=at + 29) is None
    assert site.rows() == ([last, *rest] if last is not None else rest)
    assert site.apply(Lcr(old=WAS, new=HERE), source="c", at=at + 31) is None
    assert site.rows() == [HERE, *rest]


# ------------------------------------------------------------------ times that the server has lost


@on_a_server_in_soak
@pytest.mark.parametrize("old", [WAS, HERE], ids=["differs", "as it was"])
@pytest.mark.parametrize("new", [THERE, None], ids=["update", "delete"])
def test_change_possibly_earlier_than_a_lost_time_is_not_guessed(any_site, session, old, new):
    any_site.sample()
    before = any_site.user(WAS, HERE)
    after = any_site.sample()
    any_site.lose_times()
    for at in (before - 1, before + 1):
        assert not tried(any_site, session, Lcr(old=old, new=new), at=at)
        failure = any_site.apply(Lcr(old=old, new=new), at=at)
        assert failure is not None
        assert failure.conflict_type == ("update_differs" if new else "delete_differs")
        assert "does not know any more when the row was changed" in failure.message
        assert any_site.rows() == [HERE]
    assert tried(any_site, session, Lcr(old=HERE, new=new), at=after + 1)
    assert any_site.rows() == ([THERE] if new else [])


def test_what_takes_the_key_of_a_row_whose_time_is_lost_is_not_guessed(any_site):
    any_site.sample()
    other = changed(WAS, id=2)
    assert any_site.apply(Lcr(new=other), at=now() - 2 * MINUTE) is None
    before = any_site.user(WAS, HERE)
    any_site.sample()
    any_site.lose_times()
    for lcr, kind in ((Lcr(new=THERE), "insert_exists"), (Lcr(old=other, new=THERE), "update_exists")):
        failure = any_site.apply(lcr, at=before - 1)
        assert failure is not None
        assert failure.conflict_type == kind
        assert "may be forgotten" in failure.message
        assert any_site.rows() == [HERE, other]


@on_a_server_in_soak
def test_users_change_before_a_sample_is_earlier_despite_its_lost_time(site, session):
    site.user(WAS, HERE)
    at = site.sample() + 1
    if not site.is_memory:
        site.harness._admin.execute("CREATE TABLE other (id int4)")
        site.session.sample_times(age_s=7 * 86_400, every_s=0)
    site.lose_times()
    assert tried(site, session, Lcr(old=HERE, new=THERE), at=at)
    assert site.apply(Lcr(old=WAS, new=changed(HERE, b="late")), source="c", at=at + 1) is None
    assert site.rows() == [changed(HERE, b="late")]


def test_rows_that_were_applied_are_known_though_the_server_lost_its_times(site, session):
    site.sample()
    at = now() - MINUTE
    assert site.apply(Lcr(old=WAS, new=HERE), source="c", at=at) is None
    site.sample()
    site.lose_times()
    assert not tried(site, session, Lcr(old=HERE, new=THERE), at=at - 1)
    assert site.apply(Lcr(old=HERE, new=THERE), at=at - 1) is None
    assert site.rows() == [HERE]
    assert tried(site, session, Lcr(old=HERE, new=THERE), at=at + 1)
    assert site.apply(Lcr(old=THERE, new=WAS), source="c", at=at + 2) is None
    assert site.rows() == [WAS]


def test_a_row_that_was_deleted_at_a_time_that_is_lost_does_not_come_back(any_site, session):
    any_site.sample()
    before = any_site.user(WAS, None)
    after = any_site.sample()
    any_site.lose_times()
    for lcr, kind in ((Lcr(old=WAS, new=THERE), "update_missing"), (Lcr(new=THERE), "insert_exists")):
        assert not tried(any_site, session, lcr, at=before - 1)
        failure = any_site.apply(lcr, at=before - 1)
        assert failure is not None
        assert failure.conflict_type == kind
        assert "may be forgotten" in failure.message
    assert any_site.apply(Lcr(old=WAS), at=before - 1) is None
    assert any_site.rows() == []
    assert tried(any_site, session, Lcr(new=THERE), at=after + 1)
    assert any_site.rows() == [THERE]


@on_a_server_in_soak
def test_without_tombstones_a_delete_whose_time_is_lost_counts_for_nothing(harness, session):
    site = Site(harness, session, rows=[WAS], tombstones=False)
    before = site.user(WAS, None)
    site.sample()
    site.lose_times()
    assert site.apply(Lcr(old=WAS, new=THERE), at=before - 1) is None
    assert site.rows() == [THERE]


@on_a_server_in_soak
def test_a_delete_that_is_looked_at_in_time_keeps_its_time(any_site, session):
    any_site.sample()
    before = any_site.user(WAS, None)
    after = now()
    assert session.forget_changes(age_s=60, count=1000) == 0
    any_site.sample()
    any_site.lose_times()
    assert any_site.apply(Lcr(old=WAS, new=THERE), at=before - 1) is None
    assert any_site.rows() == []
    assert any_site.apply(Lcr(old=WAS, new=THERE), at=after + 1) is None
    assert any_site.rows() == [THERE]


@on_a_server_in_soak
def test_a_delete_whose_time_is_lost_is_not_forgotten_without_a_mark(any_site, session):
    any_site.sample()
    before = any_site.user(WAS, None)
    after = any_site.sample()
    any_site.lose_times()
    assert session.forget_changes(age_s=3600, count=1000) == 0
    failure = any_site.apply(Lcr(old=WAS, new=THERE), at=before - 1)
    assert failure is not None
    assert "does not know any more when" in failure.message
    assert session.forget_changes(age_s=0, count=1000) >= 1  # also the set that made the row
    failure = any_site.apply(Lcr(old=WAS, new=THERE), at=before - 1)
    assert failure is not None
    assert "may be forgotten (tombstones: retention_days, count)" in failure.message
    assert any_site.apply(Lcr(old=WAS, new=THERE), at=after + 1) is None
    assert any_site.rows() == [THERE]


# ------------------------------------------------------------------ clocks


def test_change_ahead_of_the_clock_waits_until_the_clock_passes_it(any_site, session):
    if not isinstance(session, PostgresSession):
        pytest.skip("the database in memory has no clock of its own")
    at = now() + 300_000
    assert any_site.apply(Lcr(old=WAS, new=THERE), at=at) is None
    assert now() > at
    with pytest.raises(DatabaseError, match="clock of a source is more than 5 s ahead"):
        any_site.apply(Lcr(old=THERE, new=HERE), at=now() + 60 * MINUTE)
    session.rollback()
    assert any_site.rows() == [THERE]


def test_change_of_a_row_furthest_ahead_of_the_clock_counts_for_its_set(any_site, session):
    """A source's clock was set back between them: alone, the first one is refused."""
    if not isinstance(session, PostgresSession):
        pytest.skip("the database in memory has no clock of its own")
    batch = batch_of(
        any_site.version,
        [Lcr(old=WAS, new=HERE), Lcr(old=HERE, new=THERE)],
        each=True,
        first_scn=5000,
        times_us=[now() + 60 * MINUTE, now()],
    )
    session.begin()
    assert execute_steps(session, plan_sets([batch], any_site.fits.fit)) is not None
    with pytest.raises(DatabaseError, match="clock of a source is more than 5 s ahead"):
        session.commit((), 0)
    session.rollback()
    assert any_site.rows() == [WAS]
