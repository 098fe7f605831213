"""What an apply server writes of a table behind its RENAME: into the renamed table, or nowhere."""

from __future__ import annotations

from typing import Any

from headrace.databases.ports import Instantiation
from headrace.lcr.batch import Command, OldImage
from headrace.lcr.ddl import DdlChange
from headrace.lcr.scn import Scn
from spark_apply.conversation.groups import GroupResult, GroupRetry
from spark_apply.tables.copied import copied_scns, taken_over
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY
from tests.support.apply.streaming_server import ORDER_SCN, StreamingServer
from tests.support.histories.apply_history import Change, Table, Transaction, batch_of
from tests.support.values.ddl_changes import column, ddl_change, structure

PLAIN = Table(11, "plain", ("id", "v"), OldImage.KEY)
LATER = Table(11, "later", ("id", "v"), OldImage.KEY)
OTHER = Table(12, "later", ("id", "v"), OldImage.KEY)


def k(number: int) -> bytes:
    return number.to_bytes(4, "big")


def insert(table: Table, key: int) -> Change:
    return Change(table, Command.INSERT, new=(k(key), b"x"))


def shape(name: str) -> dict[str, Any]:
    return structure(column(1, "id", not_null=True), column(2, "v", "text"), owner="public", name=name)


def rename() -> DdlChange:
    return ddl_change(shape("plain"), shape("later"), relation=PLAIN.number)


def serving() -> StreamingServer:
    at = StreamingServer(PLAIN)
    at.database.record_instantiation(TOPOLOGY, APPLY, at.epoch, record("plain", PLAIN.number))
    return at


def record(name: str, number: int) -> Instantiation:
    return Instantiation(
        source=SOURCE, identity=f"7.1.{number}.9", owner="public", name=name, scn=Scn(5), state="DONE", digest="0"
    )


def keys(at: StreamingServer, name: str) -> list[int]:
    return [int.from_bytes(row[0] or b"", "big") for row in at.store.rows("public", name)]


ROWS = ([insert(PLAIN, 1)], rename(), [insert(LATER, 2)])


def test_rows_behind_a_rename_are_in_the_renamed_table() -> None:
    at = serving()
    assert isinstance(at.stream(*ROWS), GroupResult)
    assert keys(at, "later") == [1, 2]
    assert [each.name for each in at.database.instantiations(TOPOLOGY, APPLY)] == ["later"]


def test_rows_behind_a_rename_that_was_left_out_reach_no_other_table() -> None:
    at = serving()
    OTHER.create(at.store)
    at.store.ddl_skips.add((TOPOLOGY, APPLY, ORDER_SCN, 1))
    assert isinstance(at.stream(*ROWS), GroupRetry)
    assert at.server.unfit is not None
    assert "come behind the RENAME of the table in one transaction" in at.server.unfit.message
    assert (keys(at, "plain"), keys(at, "later"), at.store.commit_count) == ([], [], 0)
    at.store.drop_table("public", "later")
    at.store.ddl_skips.clear()  # as the hint says
    at.work()
    assert isinstance(at.stream(*ROWS, attempt=1), GroupResult)
    assert keys(at, "later") == [1, 2]


def test_error_rows_of_a_table_whose_name_is_another_ones_are_found() -> None:
    batch = batch_of([Transaction(1, [insert(PLAIN, 1)])], 50)
    assert taken_over(batch, copied_scns([record("plain", 11), record("later", 12)])) == ""
    assert taken_over(batch, copied_scns([record("plain", 12), record("later", 11)])) == "public.plain"
    assert taken_over(batch, copied_scns([record("later", 11)])) == ""  # there is no such table
    assert taken_over(batch, copied_scns([record("plain", 12)])) == ""  # not one that DDL renamed
