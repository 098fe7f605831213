"""Error transactions that copies have made obsolete: the copies of their tables contain all their changes.

They are deleted when a table has joined, and when a driver starts, because the last driver may have ended between the
two. Transactions that were held behind them and did not fail themselves are executed: nothing else would retry them.

    tables t and u; error 1 (t) failed, 2 (t, u) is held behind 1, 3 (u) behind 2, 4 (t, u) failed because of its row of
    u, 5 (t) is held behind 4; a copy of t joins
    -> 1 and 5 are deleted; 2 and 3 are executed (of 2 only the row of u); 4 stays: executed later, it writes its row of
    u

For a partition that is copied alone, only rows changed in that partition count. No operator requested that copy. So an
error transaction that also has rows of other partitions, and blocked the copy, is executed without the rows that the
copy has.

An error transaction that stays holds later changes of all its rows, also those of the copied table. An operator
executes or deletes it.
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

_JOINED = frozenset({"JOINING", "DONE"})  # not KEPT: its rows are an operator's, and no copy contains these changes


@dataclass(slots=True, kw_only=True)
class ObsoleteErrors:
    """Deletes obsolete error transactions. One thread at a time.

    Args:
        config: of the apply process.
        destination: the destination database.
        records: of the tables; they show how many error transactions each made obsolete.
        is_due: a table has joined since the last look at the error queue.
        joined: the records of partitions that have joined.
    """

    config: ApplyConfig
    destination: DestinationDatabase
    records: TableRecords
    is_due: bool = True
    joined: list[Instantiation] = field(default_factory=list)

    def delete(self, joins: JoinCalls) -> None:
        """Delete obsolete error transactions, and have the transactions executed that were held behind them.

        Raises:
            DatabaseUnavailable: the destination does not answer; call again.
            ApplyError: the coordinator does not answer; call again.
        """
        errors = self.destination.errors(self.config.topology, self.config.apply)
        copied = self._copied() if errors else {}
        newest = max(copied.values(), default=0)
        # A transaction that is older than a copy was committed before the copy's SCN, so the others need not be read.
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
        self.is_due = len(deleted) < len(obsolete)  # one is being executed: the next look finds it in the copies
        if deleted:
            log.info(
                "%s: %s made obsolete by copies and deleted, %s executed that waited behind",
                self.config.apply,
                counted(len(deleted), "error transaction"),
                counted(len(held), "other"),
            )

    def _copied(self) -> Mapping[tuple[str, str], int]:
        """Return the SCNs of the source's tables that are copied and applied (`copied_scns`)."""
        return copied_scns(
            each
            for each in self.destination.instantiations(self.config.topology, self.config.apply)
            if each.source == self.config.source.site and each.state in _JOINED and not each.is_kept
        )

    def _has_copied(self, number: int, copied: Mapping[tuple[str, str], int]) -> bool:
        """Return whether copies contain rows of an error transaction, and it may be executed without those rows."""

        def parts() -> Iterator[LcrBatch]:  # a transaction of any size
            return map(codec.decode, self.destination.error_batches(number))

        try:
            return any(beyond_copies(part, copied).row_count < part.row_count for part in parts()) and not moved_before(
                parts(), copied
            )
        except ProtocolError:
            return False

    def _copied_last(self, number: int, copied: Mapping[tuple[str, str], int]) -> TableName | None:
        """Return the table of an error transaction that was copied last, if copies contain all its rows.

        None: they do not, or it has no rows.
        """
        tables: set[TableName] = set()
        for data in self.destination.error_batches(number):
            try:
                whole = codec.decode(data)
            except ProtocolError:  # unreadable: it is shown, and an operator deletes it; the copies continue
                return None
            if beyond_copies(whole, copied).row_count:
                return None
            used = {group.table for group in whole.groups} | {
                table for truncate in whole.truncates for table in truncate.tables
            }
            tables |= {TableName.of(whole.tables[table]) for table in used}
            if whole.ddl is not None:
                tables.add(whole.ddl.base_table)
        return max(tables, key=lambda table: (copied.get(table, 0), table), default=None)


def held_behind(deleted: Collection[int], errors: Iterable[ErrorTransaction]) -> tuple[int, ...]:
    """Return the error transactions that did not fail themselves and are held behind deleted ones, directly or not.

    Args:
        deleted: numbers of error transactions.
        errors: the queue as it was before, ascending.

    Returns:
        Their numbers, ascending.
    """
    gone, held = set(deleted), list[int]()
    for each in errors:
        if each.number not in gone and each.depends_on in gone:
            gone.add(each.number)
            held.append(each.number)
    return tuple(held)
