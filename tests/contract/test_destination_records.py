"""The records of every destination database: progress and fencing, the error queue, instantiations; and its set-up.

One suite over the memory database and PostgreSQL 18, like `test_destination`. Longer than 500 lines: all of it shares
the harness and its records.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from headrace.base.errors import DatabaseUnavailable, DataError, FencedError
from headrace.databases.ports import (
    ApplyProgress,
    ErrorEdit,
    Instantiation,
    MarkedColumn,
    MarkedField,
    MarkedLabel,
    MarkedPart,
    OtherCopy,
    RowMark,
)
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from tests.support.databases.destination_contract import (
    APPLY,
    TAG,
    TOPOLOGY,
    commit,
    error_transaction,
    keyed,
    ranges,
)
from tests.support.values.writes import insert, int4

# --------------------------------------------------------------------------- progress and fencing


def test_progress_is_none_before_the_first_run(destination):
    assert destination.progress(TOPOLOGY, APPLY) is None


def test_raising_the_epoch_counts_up_and_starts_at_nothing(destination):
    first = destination.raise_epoch(TOPOLOGY, APPLY)
    assert first == ApplyProgress(epoch=first.epoch, low_watermark=0, above=())
    assert first.epoch > 0
    assert destination.raise_epoch(TOPOLOGY, APPLY).epoch == first.epoch + 1
    assert destination.raise_epoch(TOPOLOGY, "another").epoch > 0


def test_commit_records_ranges_with_the_data(destination, session):
    commit(session, applied=ranges((100, 140), (160, 180)), low_watermark=90)
    found = destination.progress(TOPOLOGY, APPLY)
    assert (found.low_watermark, found.above) == (90, tuple(ranges((100, 140), (160, 180))))


def test_rolled_back_transaction_records_nothing(destination, session):
    session.begin()
    session.rollback()
    assert destination.progress(TOPOLOGY, APPLY).low_watermark == 0


def test_progress_folds_ranges_of_all_servers_into_the_low_watermark(destination, open_session):
    one, two = open_session(0), open_session(1)
    commit(one, applied=ranges((0, 10)))
    commit(two, applied=ranges((10, 20)))
    commit(one, applied=ranges((30, 40)))
    found = destination.progress(TOPOLOGY, APPLY)
    assert (found.low_watermark, found.above) == (20, tuple(ranges((30, 40))))
    commit(two, applied=ranges((20, 30)), low_watermark=10)
    assert destination.progress(TOPOLOGY, APPLY) == dataclasses.replace(found, low_watermark=40, above=())


def test_progress_survives_the_next_epoch(destination, open_session):
    commit(open_session(0), applied=ranges((0, 10), (20, 30)))
    commit(open_session(1), applied=ranges((40, 50)), low_watermark=10)
    progress = destination.raise_epoch(TOPOLOGY, APPLY)
    assert (progress.low_watermark, progress.above) == (10, tuple(ranges((20, 30), (40, 50))))
    commit(open_session(0, epoch=progress.epoch), applied=ranges((10, 20)), low_watermark=10)
    assert destination.progress(TOPOLOGY, APPLY) == dataclasses.replace(
        progress, low_watermark=30, above=tuple(ranges((40, 50)))
    )


def test_low_watermark_can_move_without_data(destination):
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    destination.record_low_watermark(TOPOLOGY, APPLY, epoch, 500)
    destination.record_low_watermark(TOPOLOGY, APPLY, epoch, 400)
    assert destination.progress(TOPOLOGY, APPLY).low_watermark == 500


def test_low_watermark_of_an_older_epoch_is_refused(destination):
    older = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    destination.raise_epoch(TOPOLOGY, APPLY)
    with pytest.raises(FencedError):
        destination.record_low_watermark(TOPOLOGY, APPLY, older, 500)
    assert destination.progress(TOPOLOGY, APPLY).low_watermark == 0


def test_session_of_an_older_epoch_cannot_be_opened(destination, open_session):
    older = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    destination.raise_epoch(TOPOLOGY, APPLY)
    with pytest.raises(FencedError):
        open_session(0, epoch=older)


def test_new_epoch_ends_open_transactions_of_the_old_one(harness, destination, open_session):
    """Two live appliers: the older one's transaction is ended, and it can neither commit nor open again."""
    old = open_session(0)
    table = keyed(harness, old)
    old.begin()
    old.write([insert(table, [(int4(1), b"old", None)])])
    newer = harness.destination()
    progress = newer.raise_epoch(TOPOLOGY, APPLY)
    with pytest.raises((DatabaseUnavailable, FencedError)):
        old.commit(ranges((0, 10)), 0)
    with pytest.raises(FencedError):
        destination.open_session(TOPOLOGY, APPLY, server=0, epoch=progress.epoch - 1, tag=TAG)
    new = newer.open_session(TOPOLOGY, APPLY, server=0, epoch=progress.epoch, tag=TAG)
    assert commit(new, insert(table, [(int4(1), b"new", None)]), applied=ranges((0, 10))) == (1,)
    new.close()
    assert harness.rows("t") == [(int4(1), b"new", None)]


def test_new_epoch_leaves_other_apply_processes_alone(harness, destination, session):
    table = keyed(harness, session)
    session.begin()
    session.write([insert(table, [(int4(1), b"x", None)])])
    destination.raise_epoch(TOPOLOGY, "another")
    session.commit(ranges((0, 10)), 0)
    assert destination.progress(TOPOLOGY, APPLY).low_watermark == 10


def test_second_session_of_a_server_ends_the_first(harness, open_session):
    first = open_session(0)
    table = keyed(harness, first)
    first.begin()
    first.write([insert(table, [(int4(1), b"first", None)])])
    second = open_session(0)
    with pytest.raises(DatabaseUnavailable):
        first.commit(ranges((0, 10)), 0)
    assert commit(second, insert(table, [(int4(1), b"second", None)])) == (1,)
    assert harness.rows("t") == [(int4(1), b"second", None)]


@pytest.mark.parametrize("committed", [True, False])
def test_outcome_of_a_commit_whose_answer_was_lost_is_known_afterwards(harness, open_session, committed):
    first = open_session(0)
    table = keyed(harness, first)
    commit(first, applied=ranges((0, 10), (90, 95)))
    first.begin()
    first.write([insert(table, [(int4(1), b"x", None)])])
    harness.lose_next_commit_answer(first, committed=committed)
    with pytest.raises(DatabaseUnavailable):
        first.commit(ranges((10, 20)), 10)
    second = open_session(0)
    assert second.ask_outcome(ranges((10, 20))) is committed
    assert second.ask_outcome(ranges((0, 10)))
    assert len(harness.rows("t")) == int(committed)
    commit(second, applied=ranges((20, 30)), low_watermark=10)


# --------------------------------------------------------------------------- error queue


def test_error_transaction_is_listed_with_its_batches_and_hashes(destination, session):
    session.begin()
    hashes = np.array([1, 2**64 - 1], np.uint64)
    number = session.put_error(error_transaction(), b"part 0", hashes, part=0, readable=["id=1", "a=x"])
    last = error_transaction(number=number)
    last = dataclasses.replace(
        last, row_count=7, commit_scn=last.commit_scn + 5, commit_time_us=last.commit_time_us + 9
    )
    assert session.put_error(last, b"part 1", hashes[:1], part=1) == number
    session.commit(ranges((0, 150)), 0)
    (listed,) = destination.errors(TOPOLOGY, APPLY)
    assert listed.created_us > 1_700_000_000_000_000
    # Rows of all parts; place and time of its commit, from the last one.
    assert listed == error_transaction(
        number=number,
        readable=("id=1", "a=x"),
        created_us=listed.created_us,
        row_count=error_transaction().row_count + 7,
        commit_scn=last.commit_scn,
        commit_time_us=last.commit_time_us,
    )
    assert list(destination.error_batches(number)) == [b"part 0", b"part 1"]
    ((found, keys),) = list(destination.error_key_hashes(TOPOLOGY, APPLY))
    assert found == number
    assert keys.dtype == np.uint64
    assert keys.tolist() == [1, 2**64 - 1, 1]


def test_error_queue_is_written_only_by_commit(destination, session):
    session.begin()
    session.put_error(error_transaction(), b"x", np.empty(0, np.uint64), part=0)
    session.rollback()
    assert destination.errors(TOPOLOGY) == ()


def test_errors_are_listed_in_order_and_by_apply_process(destination, session):
    session.begin()
    nothing = np.empty(0, np.uint64)
    first = session.put_error(error_transaction(), b"1", nothing, part=0)
    second = session.put_error(
        error_transaction(failed_position=-1, depends_on=first, commit_scn=160), b"2", nothing, part=0
    )
    session.commit([], 0)
    assert first < second
    assert [error.number for error in destination.errors(TOPOLOGY)] == [first, second]
    assert destination.errors(TOPOLOGY, "another") == ()
    assert destination.errors("another") == ()
    assert [error.number for error in destination.errors(TOPOLOGY, number=second)] == [second]
    assert [error.number for error in destination.errors(TOPOLOGY, first=1)] == [first]
    assert (
        destination.errors(TOPOLOGY, number=second + 1) == destination.errors(TOPOLOGY, "another", number=second) == ()
    )


def test_error_transaction_written_again_replaces_its_parts(destination, session):
    nothing = np.empty(0, np.uint64)
    session.begin()
    number = session.put_error(error_transaction(), b"a", nothing, part=0)
    session.put_error(error_transaction(number=number), b"b", nothing, part=1)
    session.commit([], 0)
    session.begin()
    session.put_error(error_transaction(number=number, message="again"), b"c", nothing, part=0)
    session.commit([], 0)
    assert list(destination.error_batches(number)) == [b"c"]
    assert destination.errors(TOPOLOGY)[0].message == "again"


def test_error_is_deleted_together_with_the_data_that_mends_it(harness, destination, session):
    table = keyed(harness, session)
    session.begin()
    number = session.put_error(error_transaction(), b"x", np.empty(0, np.uint64), part=0)
    session.commit([], 0)
    session.begin()
    assert session.delete_error(number)
    session.rollback()
    assert len(destination.errors(TOPOLOGY)) == 1
    session.begin()
    session.write([insert(table, [(int4(1), b"x", None)])])
    assert session.delete_error(number)
    assert not session.delete_error(number)
    session.commit([], 0)
    assert destination.errors(TOPOLOGY) == ()
    assert list(destination.error_batches(number)) == []
    assert list(destination.error_key_hashes(TOPOLOGY, APPLY)) == []


def test_errors_are_taken_out_with_their_contents_up_to_a_bound(destination, session):
    session.begin()
    nothing = np.empty(0, np.uint64)
    first, second, third = (
        session.put_error(error_transaction(), batch, nothing, part=0) for batch in (b"one", b"two", b"three")
    )
    session.put_error(error_transaction(number=second), b"and more", nothing, part=1)
    session.commit([], 0)
    assert destination.delete_errors(TOPOLOGY, [first])
    session.begin()
    taken = session.take_errors([first, second, third, third + 1], bytes_max=len(b"two" + b"and more" + b"three") - 1)
    assert (taken.count, dict(taken.batches)) == (2, {second: (b"two", b"and more")})
    session.rollback()
    assert [error.number for error in destination.errors(TOPOLOGY)] == [second, third]
    session.begin()
    assert session.take_errors([second, third], bytes_max=2).count == 0
    taken = session.take_errors([first, second, third, third + 1], bytes_max=1000)
    assert (taken.count, dict(taken.batches)) == (4, {second: (b"two", b"and more"), third: (b"three",)})
    session.commit([], 0)
    assert destination.errors(TOPOLOGY) == ()
    assert list(destination.error_batches(second)) == list(destination.error_batches(third)) == []
    assert list(destination.error_key_hashes(TOPOLOGY, APPLY)) == []


def test_errors_of_another_topology_are_not_taken_out(harness, destination, session):
    session.begin()
    number = session.put_error(error_transaction(), b"x", np.empty(0, np.uint64), part=0)
    session.commit([], 0)
    epoch = destination.raise_epoch("another", APPLY).epoch
    other = destination.open_session("another", APPLY, server=0, epoch=epoch, tag=b"")
    try:
        other.begin()
        assert dict(other.take_errors([number], bytes_max=1000).batches) == {}
        other.commit([], 0)
    finally:
        other.close()
    assert [error.number for error in destination.errors(TOPOLOGY)] == [number]


def test_error_can_be_deleted_from_outside(destination, session):
    session.begin()
    number = session.put_error(error_transaction(), b"x", np.empty(0, np.uint64), part=0)
    session.commit([], 0)
    assert not destination.delete_errors("another", [number])
    assert destination.delete_errors(TOPOLOGY, [number])
    assert not destination.delete_errors(TOPOLOGY, [number])


def test_deleting_several_errors_names_those_that_existed(destination, session):
    one, two, three = (put_parts(session, batch) for batch in (b"a", b"b", b"c"))
    assert destination.delete_errors(TOPOLOGY, [three, one, three + 1]) == {one, three}
    assert [error.number for error in destination.errors(TOPOLOGY)] == [two]
    assert [number for number, _ in destination.error_key_hashes(TOPOLOGY, APPLY)] == [two]
    assert destination.delete_errors(TOPOLOGY, []) == frozenset()


def put_parts(session, *parts: bytes) -> int:
    """Write an error transaction with these parts, each with the hash of its position; return its number."""
    session.begin()
    number = 0
    for part, batch in enumerate(parts):
        number = session.put_error(
            error_transaction(number=number), batch, np.array([10 + 2 * part], np.uint64), part=part
        )
    session.commit([], 0)
    return number


def edit_of(number: int, edit: int = 1, **changed) -> ErrorEdit:
    fields = {
        "number": number,
        "edit": edit,
        "apply": APPLY,
        "position": 3,
        "owner": "hr",
        "name": "t",
        "command": "UPDATE",
        "changes": ("new.v: 1 -> 2", "new.w: NULL -> (absent)"),
        "edited_by": "ada@desk",
    }
    return ErrorEdit(**{**fields, **changed})


def test_edit_replaces_one_part_keeps_its_original_and_says_who_did_what(destination, session):
    number, other = put_parts(session, b"a", b"b"), put_parts(session, b"c")
    assert destination.edit_error(TOPOLOGY, edit_of(number), part=1, batch=b"B", key_hashes=np.array([40], np.uint64))
    assert destination.edit_error(
        TOPOLOGY, edit_of(number, 2), part=1, batch=b"BB", key_hashes=np.array([50], np.uint64)
    )
    assert list(destination.error_batches(number)) == [b"a", b"BB"]
    assert list(destination.error_batches(number, original=True)) == [b"a", b"b"]
    assert list(destination.error_batches(other)) == list(destination.error_batches(other, original=True)) == [b"c"]
    assert [found.edits for found in destination.errors(TOPOLOGY)] == [2, 0]
    keys = dict(destination.error_key_hashes(TOPOLOGY, APPLY))
    assert sorted(keys[number].tolist()) == [10, 12, 40, 50]
    first, second = destination.error_edits(TOPOLOGY, number)
    assert first == edit_of(number, edited_us=first.edited_us)
    assert second.edit == 2
    assert 0 < first.edited_us <= second.edited_us
    assert destination.error_edits(TOPOLOGY, other) == destination.error_edits("another") == ()


def test_edit_that_is_not_the_next_one_or_of_nothing_changes_nothing(destination, session):
    number = put_parts(session, b"a")
    nothing = np.empty(0, np.uint64)
    assert not destination.edit_error(TOPOLOGY, edit_of(number, 2), part=0, batch=b"x", key_hashes=nothing)
    assert not destination.edit_error("another", edit_of(number), part=0, batch=b"x", key_hashes=nothing)
    assert not destination.edit_error(TOPOLOGY, edit_of(number + 1), part=0, batch=b"x", key_hashes=nothing)
    assert destination.edit_error(TOPOLOGY, edit_of(number), part=0, batch=b"x", key_hashes=nothing)
    assert not destination.edit_error(TOPOLOGY, edit_of(number), part=0, batch=b"y", key_hashes=nothing)
    assert list(destination.error_batches(number)) == [b"x"]
    assert len(destination.error_edits(TOPOLOGY)) == 1


def test_edits_record_their_outcome_and_the_original_is_deleted(destination, session):
    executed, deleted = put_parts(session, b"a"), put_parts(session, b"b")
    for number in (executed, deleted):
        assert destination.edit_error(TOPOLOGY, edit_of(number), part=0, batch=b"x", key_hashes=np.empty(0, np.uint64))
    session.begin()
    assert session.delete_error(executed)
    session.rollback()
    assert [edit.outcome for edit in destination.error_edits(TOPOLOGY)] == ["", ""]
    session.begin()
    assert session.delete_error(executed)
    session.commit([], 0)
    assert destination.delete_errors(TOPOLOGY, [deleted])
    assert [edit.outcome for edit in destination.error_edits(TOPOLOGY)] == ["EXECUTED", "DELETED"]
    assert (
        list(destination.error_batches(executed, original=True))
        == list(destination.error_batches(deleted, original=True))
        == []
    )


def test_error_that_failed_again_says_why_and_waits_behind_nobody(destination, session):
    session.begin()
    number = session.put_error(
        error_transaction(failed_position=-1, depends_on=9), b"x", np.empty(0, np.uint64), part=0
    )
    session.commit([], 0)
    again = error_transaction(
        number=number,
        failed_position=0,
        conflict_type="",
        sqlstate="23514",
        message="refused",
        readable=("id=1",),
        apply=APPLY,
    )
    destination.note_failure("another", again)
    assert destination.errors(TOPOLOGY)[0].depends_on == 9
    destination.note_failure(TOPOLOGY, again)
    (found,) = destination.errors(TOPOLOGY)
    assert found == dataclasses.replace(again, created_us=found.created_us)
    destination.note_failure(TOPOLOGY, dataclasses.replace(again, number=number + 1))


def test_missing_role_is_refused_and_the_transaction_can_be_rolled_back(harness, destination, session):
    table = keyed(harness, session)
    session.begin()
    with pytest.raises(DataError):
        session.as_role("nobody who is known")
    session.rollback()
    session.begin()
    session.as_role("")
    session.write([insert(table, [(int4(1), b"x", None)])])
    session.commit([], 0)


# --------------------------------------------------------------------------- instantiation


def test_instantiation_is_recorded_and_replaced(destination):
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    first = Instantiation(source="a", identity="1.t", owner="public", name="t", scn=0, state="PENDING")
    done = Instantiation(
        source="a", identity="1.t", owner="public", name="t", scn=120, state="DONE", row_count=5, digest="ab"
    )
    other = Instantiation(
        source="a", identity="1.b", owner="public", name="b", scn=0, state="FAILED", problem="no room"
    )
    for record in (first, other, done):
        destination.record_instantiation(TOPOLOGY, APPLY, epoch, record)
    assert destination.instantiations(TOPOLOGY, APPLY) == (other, done)
    assert destination.instantiations(TOPOLOGY, "another") == ()


def recorded(destination, *tables, epoch: int = 0):
    """Record tables as (identity, name, scn, state), for this epoch or the present one."""
    epoch = epoch or destination.progress(TOPOLOGY, APPLY).epoch
    for identity, name, scn, state in tables:
        record = Instantiation(source="a", identity=identity, owner="public", name=name, scn=scn, state=state)
        destination.record_instantiation(TOPOLOGY, APPLY, epoch, record)


def states(destination):
    return [
        (table.identity, table.name, table.scn, table.state) for table in destination.instantiations(TOPOLOGY, APPLY)
    ]


def test_instantiation_knows_the_table_that_it_was_recorded_of(harness, destination):
    harness.create_table("made", [("id", "int4")], key=["id"])
    destination.raise_epoch(TOPOLOGY, APPLY)
    recorded(destination, ("1", "made", 120, "DONE"), ("2", "not_there", 0, "FAILED"))

    def remade() -> list[str]:
        return [found.identity for found in destination.instantiations(TOPOLOGY, APPLY) if found.is_remade]

    assert remade() == []
    harness.drop_table("made")
    assert remade() == [], "there is no other one"
    harness.create_table("made", [("id", "int4")], key=["id"])
    harness.create_table("not_there", [("id", "int4")], key=["id"])
    assert remade() == ["1"]
    (found,) = (each for each in destination.instantiations(TOPOLOGY, APPLY) if each.identity == "1")
    epoch = destination.progress(TOPOLOGY, APPLY).epoch
    destination.record_instantiation(TOPOLOGY, APPLY, epoch, replace(found, state="KEPT"))
    assert remade() == ["1"], "a record that is moved on stays of the earlier table"
    recorded(destination, ("1", "made", 130, "COPYING"))
    assert remade() == []


def test_instantiation_says_which_table_may_get_its_changes(harness, destination):
    """A rename of the source's table must not reach another table of the destination."""
    for name in ("t", "of_the_destination_alone"):
        harness.create_table(name, [("id", "int4")], key=["id"])
    destination.raise_epoch(TOPOLOGY, APPLY)
    recorded(destination, ("1", "t", 120, "DONE"), ("2", "not_there", 0, "FAILED"))

    def may_be(name: str, identity: str = "1") -> bool:
        records = {each.identity: each for each in destination.instantiations(TOPOLOGY, APPLY)}
        return bool(records[identity].may_be("public", name))

    assert (may_be("t"), may_be("u"), may_be("of_the_destination_alone")) == (True, False, False)
    harness.rename_table("t", "u")
    assert (may_be("t"), may_be("u"), may_be("of_the_destination_alone")) == (False, True, False)
    harness.drop_table("u")
    assert (may_be("t"), may_be("u"), may_be("of_the_destination_alone")) == (False, False, False)
    assert may_be("of_the_destination_alone", "2"), "nothing was recorded, and nothing was applied"


def test_instantiation_is_of_a_table_and_not_of_its_name(destination):
    destination.raise_epoch(TOPOLOGY, APPLY)
    recorded(destination, ("1", "t", 120, "DONE"), ("2", "u", 130, "DONE"))
    recorded(destination, ("1", "u", 120, "DONE"), ("2", "t", 130, "DONE"))  # they exchanged their names
    assert states(destination) == [("2", "t", 130, "DONE"), ("1", "u", 120, "DONE")]


def test_table_that_takes_the_place_of_another_replaces_its_record(destination):
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    recorded(destination, ("1", "t", 120, "DONE"), ("2", "u", 130, "DONE"))
    again = Instantiation(source="a", identity="3", owner="public", name="t", scn=200, state="COPYING")
    destination.record_instantiation(TOPOLOGY, APPLY, epoch, again, replaces=["1"])
    assert states(destination) == [("3", "t", 200, "COPYING"), ("2", "u", 130, "DONE")]


def test_tables_without_changes_are_left_and_uncopied_ones_forgotten(destination):
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    recorded(
        destination,
        ("1", "done", 120, "DONE"),
        ("2", "failed", 0, "FAILED"),
        ("3", "half", 130, "FAILED"),
        ("4", "kept", 140, "KEPT"),
        ("5", "stays", 150, "KEPT"),
        ("5/77", "stays_1", 155, "DONE"),
        ("1/78", "done_1", 125, "DONE"),
    )
    left = destination.leave_out(TOPOLOGY, APPLY, kept=["5"])
    assert [(table.name, table.state) for table in left] == [
        ("done", "DONE"),
        ("done_1", "DONE"),
        ("failed", "FAILED"),
        ("half", "FAILED"),
        ("kept", "KEPT"),
    ]
    assert states(destination) == [
        ("1", "done", 120, "LEFT"),
        ("1/78", "done_1", 125, "LEFT"),
        ("3", "half", 130, "LEFT"),
        ("5", "stays", 150, "KEPT"),
        ("5/77", "stays_1", 155, "DONE"),
    ]
    assert destination.leave_out(TOPOLOGY, APPLY, kept=["5"]) == ()
    with pytest.raises(FencedError):  # a driver that still runs
        recorded(destination, ("1", "done", 120, "DONE"), epoch=epoch)
    assert destination.leave_out("another", APPLY, kept=[]) == ()
    assert (destination.recorded_applies(TOPOLOGY), destination.recorded_applies("another")) == ((APPLY,), ())
    destination.leave_out(TOPOLOGY, APPLY, kept=[])
    assert destination.recorded_applies(TOPOLOGY) == (), "what is LEFT keeps nobody from a table"


def test_instantiation_of_an_older_epoch_is_refused(destination):
    older = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    destination.raise_epoch(TOPOLOGY, APPLY)
    with pytest.raises(FencedError):
        destination.record_instantiation(
            TOPOLOGY,
            APPLY,
            older,
            Instantiation(source="a", identity="1.t", owner="public", name="t", scn=1, state="DONE"),
        )


# --------------------------------------------------------------------------- claims

OTHER = "apply_from_b"


def claim(destination, apply, *, beside, topology=TOPOLOGY, name="t", state="COPYING", epoch=0) -> bool:
    record = Instantiation(
        source=apply[-1], identity=f"{apply}.{name}", owner="public", name=name, scn=100, state=state
    )
    epoch = epoch or destination.progress(topology, apply).epoch
    return bool(destination.record_instantiation(topology, apply, epoch, record, beside=beside))


def others(destination, apply=APPLY, *, topology=TOPOLOGY, name="t") -> list[tuple[str, str, str]]:
    return [
        (each.topology, each.apply, each.state) for each in destination.other_copies(topology, apply, "public", name)
    ]


def test_second_claim_of_a_table_is_granted_only_beside_the_first(destination):
    for apply in (APPLY, OTHER):
        destination.raise_epoch(TOPOLOGY, apply)
    assert claim(destination, APPLY, beside=())
    assert not claim(destination, OTHER, beside=())
    assert destination.instantiations(TOPOLOGY, OTHER) == ()
    seen = destination.other_copies(TOPOLOGY, OTHER, "public", "t")
    assert seen == (
        OtherCopy(topology=TOPOLOGY, apply=APPLY, source="a", state="COPYING", scn=Scn(100), identity=f"{APPLY}.t"),
    )
    assert claim(destination, APPLY, beside=(), state="DONE"), "its own record is none of others"
    assert not claim(destination, OTHER, beside=seen), "it has changed since"
    assert claim(destination, OTHER, beside=destination.other_copies(TOPOLOGY, OTHER, "public", "t"))
    assert claim(destination, OTHER, beside=(), name="u"), "another table"


def test_claims_at_the_same_time_are_granted_to_one(harness, destination):
    applies = [f"apply_from_{letter}" for letter in "abcdef"]
    epochs = {apply: destination.raise_epoch(TOPOLOGY, apply).epoch for apply in applies}
    opened = {apply: harness.destination() for apply in applies}
    try:
        with ThreadPoolExecutor(len(applies)) as pool:
            for turn in range(5):
                got = list(
                    pool.map(
                        lambda apply: claim(opened[apply], apply, beside=(), name=f"t{turn}", epoch=epochs[apply]),  # noqa: B023
                        applies,
                    )
                )
                assert got.count(True) == 1
    finally:
        for each in opened.values():
            each.close()


def test_only_records_with_rows_count_as_copies_in_every_topology(destination):
    for topology, apply in ((TOPOLOGY, APPLY), (TOPOLOGY, OTHER), ("another", APPLY)):
        destination.raise_epoch(topology, apply)
    epoch = destination.progress(TOPOLOGY, OTHER).epoch
    for state, scn, counts in (
        ("PENDING", 0, False),
        ("COPYING", 1, True),
        ("COMPARING", 1, True),
        ("COPIED", 1, True),
        ("JOINING", 1, True),
        ("DONE", 1, True),
        ("KEPT", 1, True),
        ("FAILED", 1, True),
        ("FAILED", 0, False),
        ("LEFT", 1, False),
    ):
        record = Instantiation(source="b", identity="1", owner="public", name="t", scn=scn, state=state)
        assert destination.record_instantiation(TOPOLOGY, OTHER, epoch, record)
        assert others(destination) == ([(TOPOLOGY, OTHER, state)] if counts else [])
    assert others(destination, topology="another") == []
    assert claim(destination, APPLY, topology="another", beside=())
    assert others(destination) == [("another", APPLY, "COPYING")]
    assert others(destination, name="u") == []


def test_copy_of_a_table_that_has_another_name_now_is_in_it_still(harness, destination):
    harness.create_table("t", [("id", "int4")], key=["id"])
    for apply in (APPLY, OTHER):
        destination.raise_epoch(TOPOLOGY, apply)
    assert claim(destination, OTHER, beside=(), state="DONE")
    harness.rename_table("t", "u")
    assert others(destination, name="u") == [(TOPOLOGY, OTHER, "DONE")]
    assert others(destination, name="t") == [(TOPOLOGY, OTHER, "DONE")], "its changes still come under that name"


def test_claim_of_an_older_epoch_is_refused(destination):
    older = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    destination.raise_epoch(TOPOLOGY, APPLY)
    with pytest.raises(FencedError):
        claim(destination, APPLY, beside=(), epoch=older)


# --------------------------------------------------------------------------- set-up


def test_prepare_is_idempotent(destination):
    destination.raise_epoch(TOPOLOGY, APPLY)
    assert destination.prepare(TOPOLOGY) == ()
    assert destination.progress(TOPOLOGY, APPLY) is not None


def test_database_that_is_ready_has_no_findings(destination):
    assert destination.preflight("top", sessions=4) == ()


def test_removing_a_topology_leaves_only_the_others(destination, session):
    session.begin()
    session.put_error(error_transaction(), b"x", np.array([7], np.uint64), part=0)
    session.commit(ranges((0, 150)), 0)
    for topology in (TOPOLOGY, "another"):
        epoch = destination.raise_epoch(topology, APPLY).epoch
        table = Instantiation(source="a", identity="1.t", owner="public", name="t", scn=120, state="DONE")
        destination.record_instantiation(topology, APPLY, epoch, table)
    destination.remove(TOPOLOGY)
    assert destination.progress(TOPOLOGY, APPLY) is None
    assert destination.errors(TOPOLOGY) == ()
    assert destination.instantiations(TOPOLOGY, APPLY) == ()
    assert destination.progress("another", APPLY) is not None
    assert len(destination.instantiations("another", APPLY)) == 1
    destination.remove("another")
    destination.remove("another")
    assert destination.progress("another", APPLY) is None


def test_session_that_outlived_its_driver_cannot_write_after_the_removal(harness, destination, session):
    table = keyed(harness, session)
    session.begin()
    session.write([insert(table, [(int4(1), b"a", b"b")])])
    destination.remove(TOPOLOGY)
    with pytest.raises((DatabaseUnavailable, FencedError)):
        session.commit(ranges((0, 10)), 0)
    assert harness.rows("t") == []


def test_topology_begins_anew_after_it_was_removed(destination):
    destination.record_low_watermark(TOPOLOGY, APPLY, destination.raise_epoch(TOPOLOGY, APPLY).epoch, 500)
    destination.remove(TOPOLOGY)
    destination.prepare(TOPOLOGY)
    assert destination.raise_epoch(TOPOLOGY, APPLY).low_watermark == 0


def test_apply_process_that_is_forgotten_begins_anew_and_the_others_go_on(destination, session):
    session.begin()
    session.put_error(error_transaction(), b"x", np.array([7], np.uint64), part=0)
    session.commit(ranges((0, 150)), 0)
    for apply in (APPLY, "other"):
        epoch = destination.raise_epoch(TOPOLOGY, apply).epoch
        destination.record_low_watermark(TOPOLOGY, apply, epoch, 500)
        table = Instantiation(source="a", identity="1.t", owner="public", name="t", scn=120, state="DONE")
        destination.record_instantiation(TOPOLOGY, apply, epoch, table)
    destination.forget(TOPOLOGY, APPLY)
    destination.forget(TOPOLOGY, APPLY)
    assert destination.progress(TOPOLOGY, APPLY) is None
    assert destination.errors(TOPOLOGY) == ()
    assert destination.instantiations(TOPOLOGY, APPLY) == ()
    assert destination.raise_epoch(TOPOLOGY, APPLY).low_watermark == 0
    assert destination.raise_epoch(TOPOLOGY, "other").low_watermark == 500
    assert len(destination.instantiations(TOPOLOGY, "other")) == 1


def test_session_of_a_forgotten_apply_process_cannot_write(harness, destination, session):
    table = keyed(harness, session)
    session.begin()
    session.write([insert(table, [(int4(1), b"a", b"b")])])
    destination.forget(TOPOLOGY, APPLY)
    with pytest.raises((DatabaseUnavailable, FencedError)):
        session.commit(ranges((0, 10)), 0)
    assert harness.rows("t") == []


def test_nothing_is_forgotten_where_nothing_was_prepared(destination):
    destination.remove(TOPOLOGY)
    assert destination.forget(TOPOLOGY, APPLY) == ()


def test_joining_copies_move_the_low_watermark_back_to_the_oldest(destination, open_session, harness):
    session = open_session()
    table = keyed(harness, session)
    assert table is not None
    epoch = destination.progress(TOPOLOGY, APPLY).epoch

    def record(name: str, scn: int, state: str) -> Instantiation:
        return Instantiation(
            source="a",
            identity=f"1.{name}",
            owner="public",
            name=name,
            scn=scn,
            state=state,
            row_count=3,
            digest="ab",
        )

    for name, scn, state in (
        ("old", 50, "JOINING"),
        ("done", 50, "DONE"),
        ("first", 120, "COPIED"),
        ("second", 150, "COPIED"),
    ):
        destination.record_instantiation(TOPOLOGY, APPLY, epoch, record(name, scn, state))
    session.begin()
    session.commit(ranges((0, 200)), 0)
    joining = [record("first", 120, "COPIED"), record("second", 150, "COPIED")]
    for _ in range(2):  # the answer was lost, so the call is repeated
        progress = destination.join_tables(TOPOLOGY, APPLY, epoch, joining, through=200)
        assert (progress.low_watermark, progress.above, progress.ahead_scn) == (120, (), 200)
        assert destination.progress(TOPOLOGY, APPLY) == progress
    states = {each.name: (each.state, each.scn) for each in destination.instantiations(TOPOLOGY, APPLY)}
    assert states == {
        "old": ("DONE", 50),
        "done": ("DONE", 50),
        "first": ("JOINING", 120),
        "second": ("JOINING", 150),
    }
    # The session's progress is outdated: it must not commit before it is reopened.
    session.begin()
    with pytest.raises(FencedError):
        session.commit(ranges((200, 300)), 200)
    session.rollback()
    again = open_session()
    again.begin()
    again.commit(ranges((120, 130)), 120)
    progress = destination.progress(TOPOLOGY, APPLY)
    assert (progress.low_watermark, progress.above, progress.ahead_scn) == (130, (), 200)
    # The next driver still knows the others' progress.
    assert destination.raise_epoch(TOPOLOGY, APPLY).ahead_scn == 200


def test_table_that_is_to_be_copied_again_does_not_join_any_more(destination):
    """An earlier copy asked before, and was answered late."""
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    recorded(destination, ("1", "a", 120, "COPIED"), ("2", "b", 120, "COPIED"))
    joining = destination.instantiations(TOPOLOGY, APPLY)
    recorded(destination, ("1", "a", 120, "COPYING"))
    destination.join_tables(TOPOLOGY, APPLY, epoch, joining, through=200)
    assert states(destination) == [("1", "a", 120, "COPYING"), ("2", "b", 120, "JOINING")]


def test_only_the_current_epoch_lets_tables_join(destination):
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    destination.raise_epoch(TOPOLOGY, APPLY)
    with pytest.raises(FencedError):
        destination.join_tables(TOPOLOGY, APPLY, epoch, (), through=10)


def test_fatal_handler_calls_are_counted_until_they_are_forgotten(destination):
    def begin(scn: int, function: str = "m:f (1)", apply: str = "a") -> int:
        return int(destination.begin_handler_call("top", apply, Scn(scn), function))

    assert [begin(5), begin(5), begin(5), begin(6), begin(5, "m:f (2)"), begin(5, apply="b")] == [0, 1, 2, 0, 0, 0]
    destination.end_handler_calls("top", "a", [Scn(5)])
    assert [begin(5), begin(6), begin(5, "m:f (2)"), begin(5, apply="b")] == [0, 1, 0, 1]
    destination.forget("top", "a")
    assert [begin(5), begin(5, apply="b")] == [0, 2], "an apply process of its name that comes later has called nothing"


def mark_of(stamp: str) -> RowMark:
    return RowMark(
        columns={'odd "name"': MarkedColumn(number=2, stamp=stamp)},
        parts={"7": MarkedPart(owner="public", name="t", file=1)},
        labels={"9": MarkedLabel(type_name="app.st", label="open")},
        fields={"8.zip": MarkedField(type_name="app.addr", name="zip", place="1 text")},
    )


def test_marks_are_recorded_of_known_tables_only_over_the_seen_ones(destination):
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    for identity in ("1", "2"):
        destination.record_instantiation(
            TOPOLOGY,
            APPLY,
            epoch,
            Instantiation(
                source="src", identity=identity, owner="public", name=f"t{identity}", scn=Scn(1), state="DONE"
            ),
        )
    assert destination.row_marks(TOPOLOGY, APPLY, "src") == {}
    first = {"1": mark_of("a"), "2": mark_of("a"), "of no record": mark_of("a")}
    destination.record_row_marks(TOPOLOGY, APPLY, epoch, "src", first)
    assert destination.row_marks(TOPOLOGY, APPLY, "src") == first
    assert destination.row_marks(TOPOLOGY, APPLY, "another") == destination.row_marks(TOPOLOGY, "another", "src") == {}
    destination.record_row_marks(TOPOLOGY, APPLY, epoch, "src", {"1": mark_of("b")}, was=first)
    # mark 1 has changed by now
    destination.record_row_marks(TOPOLOGY, APPLY, epoch, "src", {"1": mark_of("c"), "2": mark_of("c")}, was=first)
    assert destination.row_marks(TOPOLOGY, APPLY, "src") == {"1": mark_of("b"), "2": mark_of("c")}
    destination.raise_epoch(TOPOLOGY, APPLY)
    with pytest.raises(FencedError):
        destination.record_row_marks(TOPOLOGY, APPLY, epoch, "src", {"1": mark_of("d")})
    destination.forget(TOPOLOGY, APPLY)
    assert destination.row_marks(TOPOLOGY, APPLY, "src") == {}


def test_an_empty_table_holds_no_rows_of_a_former_partition(harness, destination, session):
    keyed(harness, session)
    assert not destination.may_hold(TableName("public", "t"), TableName("public", "part"))
