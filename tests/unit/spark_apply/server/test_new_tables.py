"""What an apply server writes of a table that DDL makes, and of one that the destination has not made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.databases.ports import DdlOutcomeKind, Instantiation
from headrace.lcr.batch import Command, LcrBatch, OldImage, Truncate
from headrace.lcr.ddl import DdlChange
from headrace.lcr.scn import Scn
from spark_apply.conversation.groups import (
    Failure,
    GroupMode,
    GroupResult,
    GroupRetry,
)
from spark_apply.tables.copied import TABLE_NOT_MADE
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY
from tests.support.apply.streaming_server import COMMIT_SCN, ORDER_SCN, StreamingServer
from tests.support.histories.apply_history import Change, Table, Transaction, batch_of
from tests.support.values.ddl_changes import column, ddl_change, structure

OTHER = Table(11, "plain", ("id", "v"), OldImage.KEY)
NEW = Table(12, "made", ("id", "v"), OldImage.KEY)
IDENTITY = f"7.1.{NEW.number}.9"
APPLIED, NOT_APPLIED, SKIPPED = DdlOutcomeKind.APPLIED, DdlOutcomeKind.NOT_APPLIED, DdlOutcomeKind.SKIPPED


def k(number: int) -> bytes:
    return number.to_bytes(4, "big")


def insert(table: Table, key: int) -> Change:
    return Change(table, Command.INSERT, new=(k(key), b"x"))


def missing() -> Change:
    """Return an update that finds no row."""
    return Change(OTHER, Command.UPDATE, old=(k(99), b"y"), new=(k(99), b"y"))


def shape(*names: str, table: str = NEW.name) -> dict[str, Any]:
    columns = [
        column(place + 1, name, "text" if place else "int4", not_null=not place) for place, name in enumerate(names)
    ]
    key = {"number": 9, "name": f"{table}_pkey", "type": "p", "definition": "PRIMARY KEY (id)", "calls": False}
    return structure(*columns, owner="public", name=table, constraints=[key])


def creation(*, topology: str = TOPOLOGY) -> DdlChange:
    made = {"identities": {topology: IDENTITY}, "why_not": "", "sequences": {}}
    return ddl_change(None, shape("id", "v"), relation=NEW.number, tag="CREATE TABLE", made=made)


def alteration() -> DdlChange:
    return ddl_change(shape("id", "v"), shape("id", "v", "w"), relation=NEW.number)


def truncation() -> LcrBatch:
    """A TRUNCATE of both tables."""
    batch = batch_of([Transaction(1, [insert(OTHER, 1), insert(NEW, 1)])], 50)
    truncate = Truncate(row_number=0, tables=(0, 1), cascade=False, restart_identity=False)
    found = replace(batch.transactions, first_row=batch.transactions.first_row // 2)
    return replace(batch, groups=(), truncates=(truncate,), transactions=found)


class Serving(StreamingServer):
    """A server at a destination with the table `plain`."""

    def __init__(self) -> None:
        super().__init__(OTHER)

    def skip(self) -> None:
        """The operator skips the CREATE TABLE, which is the transaction's second LCR."""
        self.store.ddl_skips.add((TOPOLOGY, APPLY, ORDER_SCN, 1))

    def keys(self, table: Table) -> list[int]:
        return [int.from_bytes(row[0] or b"", "big") for row in self.store.rows("public", table.name)]

    def has(self, table: Table) -> bool:
        return ("public", table.name) in self.store.tables

    def outcomes(self) -> list[DdlOutcomeKind]:
        return [each.outcome.kind for each in self.store.ddl_history]

    def records(self) -> list[tuple[str, int]]:
        return [(each.state, int(each.scn)) for each in self.database.instantiations(TOPOLOGY, APPLY)]


ROWS = ([insert(OTHER, 1)], creation(), [insert(NEW, 2), insert(OTHER, 3)])

# --------------------------------------------------------------------------- in order


def test_table_its_record_and_its_rows_are_one_commit() -> None:
    at = Serving()
    seen: list[tuple[int, list[tuple[str, int]]]] = []
    result = at.stream(*ROWS, before_part=lambda _: seen.append((at.store.commit_count, at.records())))
    assert isinstance(result, GroupResult)
    assert seen == [(0, []), (0, []), (0, [])]
    assert (at.store.commit_count, at.records()) == (1, [("DONE", ORDER_SCN)])
    assert (at.keys(OTHER), at.keys(NEW), at.outcomes()) == ([1, 3], [2], [APPLIED])


def test_rows_of_a_table_whose_creation_is_skipped_are_skipped() -> None:
    at = Serving()
    at.skip()
    result = at.stream(*ROWS, alteration(), [insert(OTHER, 4)])
    assert isinstance(result, GroupResult)
    assert (at.keys(OTHER), at.has(NEW), at.records()) == ([1, 3, 4], False, [])
    assert at.outcomes() == [SKIPPED, NOT_APPLIED]
    assert at.store.ddl_history[-1].outcome.reason == TABLE_NOT_MADE


def test_rows_are_skipped_by_number_and_not_by_name() -> None:
    """The name is another table's here, or becomes one's later in the transaction."""
    at = Serving()
    at.skip()
    renamed = Table(NEW.number, OTHER.name, NEW.columns, NEW.old_image)
    assert isinstance(at.stream(*ROWS, [insert(renamed, 7), insert(OTHER, 8)]), GroupResult)
    assert at.keys(OTHER) == [1, 3, 8]


def test_truncate_of_a_table_that_was_not_made_truncates_the_others() -> None:
    at = Serving()
    at.skip()
    assert isinstance(at.stream(*ROWS, truncation(), [insert(OTHER, 5)]), GroupResult)
    assert at.keys(OTHER) == [5]


def test_creation_without_an_identity_here_is_not_applied_and_its_rows_are_skipped() -> None:
    at = Serving()
    result = at.stream([insert(OTHER, 1)], creation(topology="another"), [insert(NEW, 2)])
    assert isinstance(result, GroupResult)
    assert (at.keys(OTHER), at.has(NEW), at.outcomes()) == ([1], False, [NOT_APPLIED])


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("is_skipped", [False, True])
def test_creation_with_a_lost_commit_answer_is_done_exactly_once(committed: bool, is_skipped: bool) -> None:
    at = Serving()
    if is_skipped:
        at.skip()
    at.store.lose_next_commit_answer(committed=committed)
    result = at.stream(*ROWS, steps=9)
    if not committed:
        assert isinstance(result, GroupRetry)
        result = at.stream(*ROWS, attempt=1)
    assert isinstance(result, GroupResult)
    assert (at.keys(OTHER), at.outcomes()) == ([1, 3], [SKIPPED if is_skipped else APPLIED])
    assert at.records() == ([] if is_skipped else [("DONE", ORDER_SCN)])


def test_refused_creation_that_is_skipped_when_it_is_tried_again_takes_its_rows_along() -> None:
    """The first attempt wrote parts; nothing of it is remembered."""
    at = Serving()
    result = at.stream(*ROWS, [missing()])
    assert isinstance(result, GroupRetry)
    assert not at.has(NEW)
    at.skip()
    result = at.stream(*ROWS, attempt=1)
    assert isinstance(result, GroupResult)
    assert (at.keys(OTHER), at.has(NEW)) == ([1, 3], False)


# --------------------------------------------------------------------------- from the error queue


def queued(at: Serving) -> int:
    failed = at.stream(*ROWS, [missing()])
    assert isinstance(failed, GroupRetry)
    assert isinstance(failed.failure, Failure)
    result = at.stream(*ROWS, [missing()], attempt=1, mode=GroupMode.ERROR_QUEUE, failure=failed.failure)
    assert isinstance(result, GroupResult)
    (error,) = result.errors
    assert (at.has(NEW), at.records(), at.outcomes()) == (False, [], [])
    at.store.insert("public", OTHER.name, [(k(99), b"y")])
    return error.number


def test_executed_creation_is_to_be_copied() -> None:
    at = Serving()
    number = queued(at)
    assert at.execute(number).failure is None
    assert (at.records(), at.outcomes()) == ([("COPYING", 1)], [APPLIED])
    assert at.keys(OTHER) == [1, 3, 99]
    assert not at.database.errors(TOPOLOGY, APPLY)


def test_executed_creation_that_is_skipped_takes_its_rows_along() -> None:
    at = Serving()
    number = queued(at)
    at.skip()
    assert at.execute(number).failure is None
    assert (at.keys(OTHER), at.has(NEW), at.records(), at.outcomes()) == ([1, 3, 99], False, [], [SKIPPED])


def test_executed_creation_of_a_table_that_was_copied_since_is_recorded_only() -> None:
    at = Serving()
    number = queued(at)
    NEW.create(at.store)
    (error,) = at.database.errors(TOPOLOGY, APPLY)
    copied = Instantiation(
        source=SOURCE, identity=IDENTITY, owner="public", name=NEW.name, scn=Scn(COMMIT_SCN + 1), state="DONE"
    )
    at.database.record_instantiation(TOPOLOGY, APPLY, at.epoch, copied)
    assert at.execute(error.number).failure is None
    assert number == error.number
    assert (at.keys(NEW), at.keys(OTHER), at.outcomes()) == ([], [1, 3, 99], [NOT_APPLIED])
    assert at.records() == [("DONE", COMMIT_SCN + 1)]


def test_failed_execution_makes_no_table() -> None:
    at = Serving()
    number = queued(at)
    at.store.tables["public", OTHER.name].rows.clear()
    assert at.execute(number).failure is not None
    assert (at.has(NEW), at.records(), at.outcomes()) == (False, [], [])
