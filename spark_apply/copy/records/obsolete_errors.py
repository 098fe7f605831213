"""Error transactions that copies have made obsolete: the copies of their tables have all that they change.

They are deleted when a table has joined, and when a driver starts, because the last one may have ended between the two.
What waited behind them and did not fail itself is executed: nothing else would try it again.

    t and u; errors 1 (t) failed, 2 (t, u) waits behind 1, 3 (u) waits behind 2, 4 (t, u) failed for its row of u, 5 (t)
    waits behind 4 a copy of t joins -> 1 and 5 are deleted, 2 and 3 are executed (of 2 the row of u), 4 stays: executed
      later, it writes its row of u

Of a partition that is copied alone the rows count that were changed in it. Nobody asked for that copy: an error
transaction that has rows of others, too, and was in the way of the copy, is executed without those that the copy has.

An error transaction that stays holds later changes of all its rows, those of the copied table too: it is executed or
deleted by an operator.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.base.errors import ProtocolError, counted
from headrace.lcr.table_name import TableName
from protos import codec
from spark_apply.tables.copied import beyond_copies, copied_scns, moved_before

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from headrace.databases.ports import DestinationDatabase, ErrorTransaction, Instantiation
    from headrace.lcr.batch import LcrBatch
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.copy.records.join_calls import JoinCalls
    from spark_apply.copy.records.tables import TableRecords

__all__ = ["ObsoleteErrors", "held_behind"]

log = logging.getLogger("headrace.apply")

_JOINED = frozenset({"JOINING", "DONE"})  # not KEPT: its rows are an operator's, and no copy has these changes


@dataclass(slots=True, kw_only=True)
class ObsoleteErrors:
    """See the module. One thread at a time.

    Args:
        config: of the apply process.
        destination: the destination database.
        records: of the tables, which show how many they made obsolete.
        is_due: a table has joined since the error queue was looked at.
        joined: the records of partitions that have.
    """

    config: ApplyConfig
    destination: DestinationDatabase
    records: TableRecords
    is_due: bool = True
    joined: list[Instantiation] = field(default_factory=list)

    def delete(self, joins: JoinCalls) -> None:
        """Delete what is obsolete, and have executed what waited behind it.

        Args:
            joins: asks the coordinator.

        Raises:
            DatabaseUnavailable: the destination does not answer; call again.
            ApplyError: the coordinator does not; call again.
        """
        errors = self.destination.errors(self.config.topology, self.config.apply)
        copied = self._copied() if errors else {}
        newest = max(copied.values(), default=0)
        # A transaction that is older than a copy is committed before its SCN: the others need not be read.
        found = {each.number: self._copied_last(each.number, copied) for each in errors if each.commit_scn <= newest}
        obsolete = [number for number, table in found.items() if table is not None]
        deleted = joins.delete_obsolete(obsolete) if obsolete else frozenset()
        self.records.obsolete.update(
            table for number, table in found.items() if number in deleted and table is not None
        )
        partly = (
            [
                number
                for number, table in found.items()
                if table is None and self._has_copied(number, copied_scns(self.joined))
            ]
            if self.joined
            else []
        )
        if held := sorted({*partly, *held_behind({*deleted, *partly}, errors)}):
            joins.execute_held(held)
        self.joined = []
        self.is_due = len(deleted) < len(obsolete)  # one is being executed: that will say that the copies have it
        if deleted:
            log.info(
                "%s: %s made obsolete by copies and deleted, %s executed that waited behind",
                self.config.apply,
                counted(len(deleted), "error transaction"),
                counted(len(held), "other"),
            )

    def _copied(self) -> Mapping[tuple[str, str], int]:
        """The SCNs of the source's tables that are copied and apply (`copied_scns`)."""
        return copied_scns(
            each
            for each in self.destination.instantiations(self.config.topology, self.config.apply)
            if each.source == self.config.source.site and each.state in _JOINED and not each.is_kept
        )

    def _has_copied(self, number: int, copied: Mapping[tuple[str, str], int]) -> bool:
        """Whether an error transaction has rows that copies have, all of them or some, and may be executed without them."""

        def parts() -> Iterator[LcrBatch]:  # a transaction of any size
            return map(codec.decode, self.destination.error_batches(number))

        try:
            return any(beyond_copies(part, copied).row_count < part.row_count for part in parts()) and not moved_before(
                parts(), copied
            )
        except ProtocolError:
            return False

    def _copied_last(self, number: int, copied: Mapping[tuple[str, str], int]) -> TableName | None:
        """Of the tables of an error transaction, whose rows are all in copies, the one that was copied last.

        None: not all are, or it has none.
        """
        tables: set[TableName] = set()
        for data in self.destination.error_batches(number):
            try:
                whole = codec.decode(data)
            except ProtocolError:  # it is shown, and deleted by hand; the copies go on
                return None
            if beyond_copies(whole, copied).row_count:
                return None
            used = {group.table for group in whole.groups} | {
                table for truncate in whole.truncates for table in truncate.tables
            }
            tables |= {TableName.of(whole.tables[table]) for table in used}
        return max(tables, key=lambda table: (copied.get(table, 0), table), default=None)


def held_behind(deleted: Collection[int], errors: Iterable[ErrorTransaction]) -> tuple[int, ...]:
    """The error transactions that did not fail themselves and wait behind deleted ones, or behind others of these.

    Ascending.

    Args:
        deleted: numbers of error transactions.
        errors: the queue as it was before, ascending.
    """
    gone, held = set(deleted), list[int]()
    for each in errors:
        if each.number not in gone and each.depends_on in gone:
            gone.add(each.number)
            held.append(each.number)
    return tuple(held)
