"""Error transactions that may be older than an ATTACH and affect rows of the attached partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.databases.ports import ErrorTransaction
from headrace.lcr.batch import LcrBatch, Partition, Truncate
from headrace.lcr.scn import ObjectNumber, Scn
from headrace.lcr.table_name import TableName
from protos import codec
from spark_apply.copy.marks.older_errors import OlderErrors
from spark_apply.copy.marks.row_marks import MarkedTable
from tests.support.values.lcr_batches import insert_batch, table_version

TABLE, NEW, BACK, OTHER = 16384, 16390, 16391, 16392
MARKED = MarkedTable(
    identity="t", source=TableName("public", "t"), destination=TableName("public", "t"), numbers=frozenset({TABLE})
)


def changing(*numbers: int, name: str = "t", root: int = TABLE) -> list[LcrBatch]:
    """Parts of a transaction, each with a row of another partition."""
    version = replace(table_version(name), root_number=ObjectNumber(root))
    return [
        replace(insert_batch([50], previous=0), tables=(replace(version, object_number=ObjectNumber(number)),))
        for number in numbers
    ]


def truncating(number: int, *, is_whole: bool = False) -> list[LcrBatch]:
    (batch,) = changing(number)
    version = replace(
        batch.tables[0], partition=None if is_whole else Partition(owner="public", name="t_1", rows="true")
    )
    return [
        replace(
            batch,
            groups=(),
            tables=(version,),
            truncates=(Truncate(row_number=0, tables=(0,), cascade=False, restart_identity=False),),
        )
    ]


class Queue:
    """A destination with an error queue that counts reads."""

    def __init__(self, *transactions: list[LcrBatch], commit_scn: int = 50) -> None:
        self.transactions, self.commit_scn, self.read = list(transactions), commit_scn, 0

    def errors(self, topology: str, apply: str) -> tuple[ErrorTransaction, ...]:
        return tuple(
            ErrorTransaction(
                number=number,
                apply=apply,
                source="dbs1",
                transaction_id=number,
                commit_scn=Scn(self.commit_scn),
                commit_time_us=0,
                row_count=1,
                failed_position=0,
                depends_on=0,
                conflict_type="",
                sqlstate="",
                message="",
                created_us=0,
            )
            for number, _ in enumerate(self.transactions, 1)
        )

    def error_batches(self, number: int) -> Iterator[bytes]:
        self.read += 1
        yield from map(codec.encode, self.transactions[number - 1])


def held_by(queue: Any, seen: int = 100) -> tuple[int, ...]:
    older = OlderErrors(topology="topo", apply="a", destination=queue)
    return older.first_of(MARKED, attached={str(NEW), str(BACK)}, never_before={str(NEW)}, seen=Scn(seen))


@pytest.mark.parametrize(
    ("transaction", "is_held"),
    [
        (changing(OTHER), True),
        (changing(NEW), False),
        (changing(OTHER, NEW), False),
        (changing(BACK), False),
        (changing(OTHER, BACK), True),
        (truncating(OTHER), True),
        (truncating(NEW), False),
        (truncating(OTHER, is_whole=True), False),
        (changing(OTHER, name="u", root=TABLE + 1), False),
        (changing(OTHER, name="renamed_since"), True),
    ],
    ids=[
        "another",
        "it",
        "both",
        "one that was here before",
        "that and another",
        "truncated",
        "it truncated",
        "the whole table truncated",
        "another table",
        "renamed since",
    ],
)
def test_error_transactions_of_other_partitions_may_be_older(transaction: list[LcrBatch], is_held: bool) -> None:
    assert held_by(Queue(transaction)) == ((1,) if is_held else ())


def test_error_committed_after_the_partition_was_seen_is_not_older() -> None:
    queue = Queue(changing(OTHER), commit_scn=101)
    assert held_by(queue) == ()
    assert queue.read == 0


def test_error_queue_is_read_once() -> None:
    queue: Any = Queue(*[changing(NEW)] * 100, changing(OTHER))
    older = OlderErrors(topology="topo", apply="a", destination=queue)
    for _ in range(3):
        older.look_again()
        assert older.first_of(MARKED, attached={str(NEW)}, never_before={str(NEW)}, seen=Scn(100)) == (101,)
        assert queue.read == 101
    queue.transactions[-1:] = []
    older.look_again()
    assert older.first_of(MARKED, attached={str(NEW)}, never_before={str(NEW)}, seen=Scn(100)) == ()
