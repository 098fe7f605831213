"""Conflicts at every destination database: their detection, and the decisions of the prebuilt handlers.

Every rule of the manual's column lists and resolution columns has its own test, named after it. Rows are (id, a, b, t,
n, u). Longer than 500 lines: one suite, and its cases share one table.

Source: Oracle Streams Replication Administrator's Guide, "Conflict Detection", "Prebuilt Update Conflict Handlers",
"Column Lists", "Resolution Columns".
"""

from __future__ import annotations

import pytest

from headrace.lcr.batch import OldImage
from headrace.rules.conflict_handlers import METHODS_OF_KIND, HistoryBounds, UncomparedColumns
from spark_apply.sets.collapse import plan_sets
from tests.support.histories.conflicts import Conflicts, Lcr, batch_of, handler

# The original row at both sites, and the destination's present row.
WAS = (1, "a", "b", 10, 100, "u")
HERE = (1, "here", "b", 15, 100, "u")
ALL = ("a", "b", "t", "n", "u")
# Methods of update_differs that do not need the whole column list; each has tests of its own.
PARTIAL = ("discard", "site_priority", "delta", "latest_timestamp")


def changed(row, **values):
    """Return the row with other values."""
    return tuple(values.get(name, value) for name, value in zip(("id", "a", "b", "t", "n", "u"), row, strict=True))


def lcr(**values) -> Lcr:
    """Return an UPDATE of the original row."""
    return Lcr(old=WAS, new=changed(WAS, **values))


# --------------------------------------------------------------------------- detection


@pytest.mark.parametrize(
    ("change", "rows", "kind"),
    [
        (Lcr(new=WAS), [HERE], "insert_exists"),
        (Lcr(new=changed(WAS, id=2)), [HERE], "insert_exists"),  # conflict in the second unique key
        (Lcr(old=WAS, new=changed(WAS, u="v")), [WAS, changed(WAS, id=2, u="v")], "update_exists"),
        (Lcr(old=WAS, new=changed(WAS, id=2)), [WAS, changed(WAS, id=2, u="v")], "update_exists"),
        (Lcr(old=WAS, new=changed(WAS, a="x")), [], "update_missing"),
        (Lcr(old=WAS, new=changed(WAS, a="x")), [HERE], "update_differs"),
        (Lcr(old=WAS), [], "delete_missing"),
        (Lcr(old=WAS), [HERE], "delete_differs"),
    ],
)
def test_every_kind_of_conflict_is_detected_and_kept_with_all_values(harness, session, destination, change, rows, kind):
    there = Conflicts(harness, session, rows=rows, unique=True)
    failure = there.apply(change)
    assert failure is not None
    assert failure.conflict_type == kind
    (record,) = there.history(destination)
    assert (record.kind, record.outcome, record.error_number) == (kind, "ERROR QUEUE", 1)
    assert (record.owner, record.name, record.command) == ("public", "c", change.command.name)
    assert bool(record.current) == bool(rows)
    assert bool(record.old) == (change.old is not None)
    assert bool(record.new) == (change.new is not None)
    assert there.rows() == sorted(rows)


def test_duplicate_rows_of_a_table_without_a_key_are_changed_one_at_a_time(harness, session):
    there = Conflicts(harness, session, rows=[WAS, WAS], key=())
    assert there.apply(lcr(a="x")) is None
    assert there.rows() == [WAS, changed(WAS, a="x")]


def test_columns_that_did_not_change_are_not_compared(harness, session, destination):
    there = Conflicts(harness, session, rows=[HERE])
    assert there.apply(lcr(b="x")) is None
    assert there.rows() == [changed(HERE, b="x")]
    assert there.history(destination) == ()


def test_column_set_to_its_old_value_never_conflicts(harness, session):
    there = Conflicts(harness, session, rows=[HERE])
    assert there.apply(Lcr(old=WAS, new=changed(WAS, n=101))) is None
    assert there.rows() == [changed(HERE, n=101)]


def test_a_delete_compares_every_old_value(harness, session):
    there = Conflicts(harness, session, rows=[changed(WAS, b="other")])
    failure = there.apply(Lcr(old=WAS))
    assert failure is not None
    assert failure.conflict_type == "delete_differs"
    assert "DIFFERS: b" in failure.readable


def test_old_values_of_the_key_only_are_not_compared(harness, session):
    there = Conflicts(harness, session, rows=[HERE], old_image=OldImage.KEY)
    assert there.apply(lcr(a="x")) is None
    assert there.apply(Lcr(old=WAS)) is None
    assert there.rows() == []


@pytest.mark.parametrize(
    ("operations", "kinds"),
    [
        (("update", "delete"), ["", ""]),
        (("update",), ["", "delete_differs"]),
        (("delete",), ["update_differs", ""]),
    ],
)
def test_old_values_are_not_compared_where_that_is_switched_off(harness, session, operations, kinds):
    off = UncomparedColumns(owner="public", name="c", columns=("a", "t"), operations=operations)
    there = Conflicts(harness, session, rows=[HERE], uncompared=[off])
    failures = [there.apply(lcr(a="x")), there.apply(Lcr(old=changed(WAS, a="else")))]
    assert [failure.conflict_type if failure else "" for failure in failures] == kinds


def test_switching_off_one_column_leaves_the_others_compared(harness, session):
    off = UncomparedColumns(owner="public", name="c", columns=("t",))
    there = Conflicts(harness, session, rows=[HERE], uncompared=[off])
    failure = there.apply(lcr(a="x", t=20))
    assert failure is not None
    assert "DIFFERS: a" in failure.readable


def test_compare_key_only_compares_no_column_outside_the_key(harness, session):
    there = Conflicts(harness, session, rows=[HERE], compare_key_only=True)
    assert there.apply(lcr(a="x")) is None
    assert there.rows() == [changed(HERE, a="x")]
    assert there.apply(Lcr(old=WAS)) is None
    failure = there.apply(Lcr(old=WAS))
    assert failure is not None
    assert failure.conflict_type == "delete_missing"


# --------------------------------------------------------------------------- maximum, minimum, overwrite, discard


@pytest.mark.parametrize(
    ("method", "time", "wins"),
    [
        ("maximum", 20, True),
        ("maximum", 12, False),
        ("minimum", 12, True),
        ("minimum", 20, False),
        ("overwrite", 12, True),
        ("overwrite", 15, True),
        ("discard", 20, False),
        ("discard", 15, False),
    ],
)
def test_the_method_decides_who_wins(harness, session, destination, method, time, wins):
    there = Conflicts(harness, session, handler(method, *ALL, by="t"), rows=[HERE])
    assert there.apply(lcr(a="lcr", t=time)) is None
    assert there.rows() == [(1, "lcr", "b", time, 100, "u") if wins else HERE]
    (record,) = there.history(destination)
    assert (record.kind, record.handler) == ("update_differs", f"{method}(t)")
    assert record.outcome == ("LCR APPLIED" if wins else "LCR DISCARDED")
    assert set(record.columns) == ({"a", "t"})
    assert "a=here" in record.current
    assert "t=15" in record.current
    assert record.resolved_us > 0


@pytest.mark.parametrize("method", ["maximum", "minimum"])
@pytest.mark.parametrize(("here", "there"), [(15, 15), (None, 20), (15, None)])
def test_equal_or_null_values_of_the_resolution_column_resolve_nothing(harness, session, method, here, there):
    row = changed(HERE, t=here)
    conflicts = Conflicts(harness, session, handler(method, *ALL, by="t"), rows=[row])
    failure = conflicts.apply(lcr(a="lcr", t=there))
    assert failure is not None
    assert failure.conflict_type == "update_differs"
    assert ("the same value" if here == there else "is NULL") in failure.message
    assert conflicts.rows() == [row]


def test_a_resolution_column_that_did_not_change_decides_all_the_same(harness, session):
    """The LCR carries its old and new value; the column itself need not conflict."""
    there = Conflicts(harness, session, handler("maximum", *ALL, by="t"), rows=[changed(HERE, t=5)])
    assert there.apply(lcr(a="lcr")) is None
    assert there.rows() == [(1, "lcr", "b", 10, 100, "u")]


def test_winner_takes_the_whole_column_list_with_unchanged_columns(harness, session):
    there = Conflicts(harness, session, handler("maximum", *ALL, by="t"), rows=[changed(HERE, b="only here", n=7)])
    assert there.apply(lcr(a="lcr", t=20)) is None
    assert there.rows() == [(1, "lcr", "b", 20, 100, "u")]


def test_unlisted_columns_without_conflict_are_written_whoever_wins(harness, session, destination):
    there = Conflicts(harness, session, handler("maximum", "a", "t", by="t"), rows=[HERE])
    assert there.apply(lcr(a="lcr", t=12, b="also")) is None
    assert there.rows() == [changed(HERE, b="also")]
    (record,) = there.history(destination)
    assert (record.outcome, record.applied_columns) == ("MERGED", ("b",))


def test_a_conflict_in_a_column_of_no_list_calls_no_handler(harness, session):
    there = Conflicts(harness, session, handler("overwrite", "a", "t", by="t"), rows=[changed(HERE, b="other")])
    failure = there.apply(lcr(a="lcr", t=20, b="also"))
    assert failure is not None
    assert failure.conflict_type == "update_differs"
    assert "b conflicts, and is in no column list" in failure.message
    assert there.rows() == [changed(HERE, b="other")]


def test_several_lists_are_decided_apart_and_leave_a_mixed_row(harness, session, destination):
    handlers = (handler("maximum", "a", "t", by="t"), handler("minimum", "b", "n", by="n"))
    there = Conflicts(harness, session, *handlers, rows=[(1, "here", "here", 15, 50, "u")])
    assert there.apply(lcr(a="lcr", t=20, b="lcr", n=60)) is None
    assert there.rows() == [(1, "lcr", "here", 20, 50, "u")]
    (record,) = there.history(destination)
    assert (record.outcome, record.applied_columns, record.handler) == ("MERGED", ("a", "t"), "maximum(t), minimum(n)")


def test_a_list_without_a_conflict_is_applied_while_another_is_discarded(harness, session):
    handlers = (handler("discard", "a", "t", by="t"), handler("discard", "b", "n", by="n"))
    there = Conflicts(harness, session, *handlers, rows=[HERE])
    assert there.apply(lcr(a="lcr", t=20, b="lcr", n=60)) is None
    assert there.rows() == [(1, "here", "lcr", 15, 60, "u")]


def test_a_list_of_several_that_cannot_be_decided_leaves_all_of_them(harness, session):
    handlers = (handler("overwrite", "a", by="a"), handler("maximum", "b", "t", by="t"))
    row = (1, "here", "here", 20, 100, "u")
    there = Conflicts(harness, session, *handlers, rows=[row])
    assert there.apply(lcr(a="lcr", b="lcr", t=20)) is not None
    assert there.rows() == [row]


@pytest.mark.parametrize("time", [12, 20])  # below and above the row's value: the winner would not matter
@pytest.mark.parametrize("method", [each for each in METHODS_OF_KIND["update_differs"] if each not in PARTIAL])
def test_an_lcr_that_lacks_a_column_of_the_list_resolves_nothing(harness, session, method, time):
    there = Conflicts(harness, session, handler(method, *ALL, by="t"), rows=[HERE])
    failure = there.apply(Lcr(old=WAS, new=changed(WAS, a="lcr", t=time), carried=(0, 1, 3, 4, 5)))
    assert failure is not None
    assert "lacks b of the column list" in failure.message
    assert there.rows() == [HERE]


def test_discard_needs_no_column_of_the_list(harness, session):
    there = Conflicts(harness, session, handler("discard", *ALL, by="t"), rows=[HERE])
    assert there.apply(Lcr(old=WAS, new=changed(WAS, a="lcr"), carried=(0, 1))) is None
    assert there.rows() == [HERE]


def test_unchanged_large_value_counts_as_carried_if_the_log_has_its_old(harness, session):
    there = Conflicts(harness, session, handler("overwrite", *ALL, by="t"), rows=[changed(HERE, b="only here")])
    assert there.apply(Lcr(old=WAS, new=changed(WAS, a="lcr"), unchanged=(2,))) is None
    assert there.rows() == [(1, "lcr", "b", 10, 100, "u")]


def test_without_a_column_list_every_column_outside_the_key_is_in_it(harness, session):
    there = Conflicts(harness, session, handler("maximum", by="t"), rows=[changed(HERE, b="only here")])
    assert there.apply(lcr(a="lcr", t=20)) is None
    assert there.rows() == [(1, "lcr", "b", 20, 100, "u")]


def test_a_handler_of_updates_resolves_no_other_kind(harness, session):
    there = Conflicts(harness, session, handler("overwrite", *ALL, by="t"), rows=[HERE])
    for change, kind in (
        (Lcr(new=WAS), "insert_exists"),
        (Lcr(old=WAS), "delete_differs"),
        (Lcr(old=changed(WAS, id=2)), "delete_missing"),
    ):
        failure = there.apply(change)
        assert failure is not None
        assert failure.conflict_type == kind
        assert f"no conflict handler is set for {kind}" in failure.message
        assert ("no row has" in failure.message) == (kind == "delete_missing")
    assert there.rows() == [HERE]


def test_refused_decision_of_a_handler_leaves_nothing(harness, session):
    there = Conflicts(
        harness, session, handler("overwrite", *ALL, by="t"), rows=[HERE, changed(HERE, id=2, u="taken")], unique=True
    )
    failure = there.apply(lcr(a="lcr", u="taken"))
    assert failure is not None
    assert "the resolution was refused" in failure.message
    assert there.rows() == [HERE, changed(HERE, id=2, u="taken")]


def test_the_other_rows_of_a_transaction_are_applied_with_the_resolved_one(harness, session):
    there = Conflicts(harness, session, handler("discard", *ALL, by="t"), rows=[HERE, changed(WAS, id=2)])
    assert (
        there.apply(
            lcr(a="lcr"),
            Lcr(old=changed(WAS, id=2), new=changed(WAS, id=2, a="x")),
            Lcr(new=changed(WAS, id=3)),
        )
        is None
    )
    assert there.rows() == [HERE, changed(WAS, id=2, a="x"), changed(WAS, id=3)]


def test_failure_after_a_resolved_row_leaves_neither_row_nor_history(harness, session, destination):
    there = Conflicts(harness, session, handler("overwrite", *ALL, by="t"), rows=[HERE])
    failure = there.apply(lcr(a="lcr"), Lcr(old=changed(WAS, id=9)))
    assert failure is not None
    assert failure.conflict_type == "delete_missing"
    assert there.rows() == [HERE]
    assert [(record.kind, record.outcome, record.position) for record in there.history(destination)] == [
        ("delete_missing", "ERROR QUEUE", 1)
    ]


# --------------------------------------------------------------------------- beyond the manuals


def test_delta_adds_what_the_lcr_added_to_what_is_there(harness, session, destination):
    there = Conflicts(harness, session, handler("delta", "n"), rows=[changed(WAS, n=130)])
    assert there.apply(lcr(n=95)) is None
    assert there.rows() == [changed(WAS, n=125)]
    (record,) = there.history(destination)
    assert (record.outcome, record.handler, record.applied_columns) == ("MERGED", "delta", ("n",))


@pytest.mark.parametrize(("here", "new"), [(None, 95), (130, None)])
def test_delta_cannot_add_to_null(harness, session, here, new):
    there = Conflicts(harness, session, handler("delta", "n"), rows=[changed(WAS, n=here)])
    failure = there.apply(lcr(n=new))
    assert failure is not None
    assert "NULL" in failure.message


@pytest.mark.parametrize(("priority", "wins"), [(("a", "b"), True), (("b", "a"), False), (("c", "b", "a"), False)])
def test_site_priority_prefers_the_source_or_the_destination(harness, session, priority, wins):
    there = Conflicts(harness, session, handler("site_priority", *ALL, priority=priority), rows=[HERE])
    assert there.apply(lcr(a="lcr")) is None
    assert there.rows() == [(1, "lcr", "b", 10, 100, "u") if wins else HERE]


OTHER = (2, "x", "y", 30, 1, "taken")


@pytest.mark.parametrize(
    ("kind", "change", "rows", "lcr_wins"),
    [
        ("insert_exists", Lcr(new=changed(WAS, a="lcr")), [HERE], [changed(WAS, a="lcr")]),
        ("update_exists", lcr(u="taken"), [WAS, OTHER], [changed(WAS, u="taken")]),
        ("delete_differs", Lcr(old=WAS), [HERE], []),
    ],
)
@pytest.mark.parametrize(("priority", "wins"), [(("a", "b"), True), (("b", "a"), False)])
def test_site_priority_decides_every_kind_in_which_two_sites_meet(
    harness, session, destination, kind, change, rows, lcr_wins, priority, wins
):
    there = Conflicts(harness, session, handler("site_priority", priority=priority, on=kind), rows=rows, unique=True)
    assert there.apply(change) is None
    assert there.rows() == (lcr_wins if wins else rows)
    (record,) = there.history(destination)
    assert (record.kind, record.outcome) == (kind, "LCR APPLIED" if wins else "LCR DISCARDED")


def test_site_priority_without_one_of_the_sites_resolves_nothing(harness, session):
    there = Conflicts(harness, session, handler("site_priority", *ALL, priority=("a", "c")), rows=[HERE])
    failure = there.apply(lcr(a="lcr"))
    assert failure is not None
    assert "not both a and b" in failure.message


@pytest.mark.parametrize(
    ("method", "by", "time", "wins"),
    [
        ("overwrite", "", 1, True),
        ("discard", "", 20, False),
        ("maximum", "t", 20, True),
        ("maximum", "t", 1, False),
        ("minimum", "t", 1, True),
    ],
)
def test_insert_exists_is_decided_for_the_whole_row(harness, session, destination, method, by, time, wins):
    there = Conflicts(harness, session, handler(method, by=by, on="insert_exists"), rows=[HERE])
    assert there.apply(Lcr(new=changed(WAS, a="lcr", t=time))) is None
    assert there.rows() == [changed(WAS, a="lcr", t=time) if wins else HERE]
    (record,) = there.history(destination)
    assert (record.kind, record.outcome) == ("insert_exists", "LCR APPLIED" if wins else "LCR DISCARDED")


def test_insert_of_an_equal_existing_row_is_discarded_without_a_winner(harness, session):
    there = Conflicts(harness, session, handler("maximum", by="t", on="insert_exists"), rows=[HERE])
    assert there.apply(Lcr(new=HERE)) is None
    assert there.rows() == [HERE]


def test_insert_exists_must_win_against_every_row_in_its_way(harness, session):
    rows = [HERE, (2, "x", "y", 30, 1, "taken")]
    there = Conflicts(harness, session, handler("maximum", by="t", on="insert_exists"), rows=rows, unique=True)
    assert there.apply(Lcr(new=(1, "lcr", "b", 20, 100, "taken"))) is None
    assert there.rows() == rows
    assert there.apply(Lcr(new=(1, "lcr", "b", 40, 100, "taken"))) is None
    assert there.rows() == [(1, "lcr", "b", 40, 100, "taken")]


def test_insert_exists_by_another_unique_key_replaces_the_row(harness, session):
    there = Conflicts(harness, session, handler("overwrite", on="insert_exists"), rows=[HERE], unique=True)
    assert there.apply(Lcr(new=(7, "lcr", "b", 1, 1, "u"))) is None
    assert there.rows() == [(7, "lcr", "b", 1, 1, "u")]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("overwrite", [(1, "a", "b", 10, 100, "taken")]),
        ("discard", [WAS, (2, "x", "y", 30, 1, "taken")]),
    ],
)
def test_update_exists_removes_the_other_row_or_keeps_both(harness, session, method, expected):
    rows = [WAS, (2, "x", "y", 30, 1, "taken")]
    there = Conflicts(harness, session, handler(method, on="update_exists"), rows=rows, unique=True)
    assert there.apply(lcr(u="taken")) is None
    assert there.rows() == expected


def test_update_missing_makes_the_row_or_forgets_the_change(harness, session):
    there = Conflicts(harness, session, handler("overwrite", on="update_missing"))
    assert there.apply(lcr(a="lcr")) is None
    assert there.rows() == [changed(WAS, a="lcr")]


def test_update_missing_needs_every_column_to_make_the_row(harness, session):
    there = Conflicts(harness, session, handler("overwrite", on="update_missing"), old_image=OldImage.KEY)
    failure = there.apply(Lcr(old=WAS, new=changed(WAS, a="lcr"), unchanged=(2,)))
    assert failure is not None
    assert "lacks b" in failure.message


@pytest.mark.parametrize(
    ("kind", "change"), [("update_missing", Lcr(old=WAS, new=changed(WAS, a="x"))), ("delete_missing", Lcr(old=WAS))]
)
def test_a_change_of_a_row_that_is_gone_can_be_discarded(harness, session, destination, kind, change):
    there = Conflicts(harness, session, handler("discard", on=kind))
    assert there.apply(change) is None
    assert there.rows() == []
    assert [(record.kind, record.outcome) for record in there.history(destination)] == [(kind, "LCR DISCARDED")]


@pytest.mark.parametrize(("method", "expected"), [("overwrite", []), ("discard", [HERE])])
def test_delete_differs_deletes_the_row_or_keeps_it(harness, session, method, expected):
    there = Conflicts(harness, session, handler(method, on="delete_differs"), rows=[HERE])
    assert there.apply(Lcr(old=WAS)) is None
    assert there.rows() == expected


def test_a_table_without_a_key_has_no_row_to_decide_about(harness, session):
    there = Conflicts(harness, session, handler("overwrite", *ALL, by="t"), rows=[HERE], key=())
    failure = there.apply(lcr(a="x"))
    assert failure is not None
    assert "need a key" in failure.message


# --------------------------------------------------------------------------- sets and history


def test_conflicting_names_the_rows_of_a_set_that_would_conflict(harness, session):
    there = Conflicts(harness, session, rows=[HERE, changed(WAS, id=2), changed(WAS, id=3)])

    def found(*lcrs):
        (step,) = plan_sets([batch_of(there.version, lcrs)], there.fits.fit)
        session.begin()
        answer = session.conflicting(step.write)
        session.rollback()
        return answer.tolist()

    ids = (1, 2, 3, 4)
    assert found(*(Lcr(old=changed(WAS, id=i), new=changed(WAS, id=i, a="x")) for i in ids)) == [0, 3]
    assert found(*(Lcr(old=changed(WAS, id=i)) for i in ids)) == [0, 3]
    assert found(*(Lcr(new=changed(WAS, id=i)) for i in ids)) == [0, 1, 2]


def test_the_history_is_bounded_by_count(harness, session, destination):
    there = Conflicts(harness, session, handler("discard", *ALL, by="t"), rows=[HERE], history=HistoryBounds(count=3))
    for number in range(6):
        assert there.apply(lcr(a=f"lcr {number}")) is None
    assert [record.commit_scn for record in there.history(destination)] == [130, 140, 150]
    assert [record.commit_scn for record in there.history(destination, last=2)] == [140, 150]


def test_the_history_is_bounded_by_age(harness, session, destination):
    there = Conflicts(
        harness, session, handler("discard", *ALL, by="t"), rows=[HERE], history=HistoryBounds(age_s=1e-6)
    )
    for number in range(3):
        assert there.apply(lcr(a=f"lcr {number}")) is None
    assert len(there.history(destination)) < 3


def test_the_history_is_gone_with_a_rollback(harness, session, destination):
    there = Conflicts(harness, session, handler("discard", *ALL, by="t"), rows=[HERE])
    assert there.apply(lcr(a="lcr")) is None
    (kept,) = there.history(destination)
    session.begin()
    session.record_conflicts([kept], count_max=10, age_max_s=1000.0)
    session.rollback()
    assert len(there.history(destination)) == 1
