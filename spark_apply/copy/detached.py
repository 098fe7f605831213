"""Partitions that a source's table has no longer, and the destination's has: what the operator wants to become of them (decision 75).

    ask     they stay, and `status` names them. A TRUNCATE of everything that the table had left empties them, too: the source's table had no row then.
    keep    they stay, and nothing names them but `verify`, which leaves them out (`RowMark.kept`).
    follow  they are detached here, too, and dropped if the source has dropped them, when everything before is applied.

Nothing is removed while the source's table has rows that would be in such a partition: of another partition that took its place, or of the default one. That is
asked while nobody can write the destination's table, so that no row that is applied meanwhile is removed with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streams.errors import DatabaseError, DatabaseUnavailable, DestinationRestarted, FencedError

if TYPE_CHECKING:
    from databases.ports import DestinationDatabase, RowMark, SourceDatabase
    from spark_apply.copy.row_marks import MarkedTable
    from spark_apply.driver.joining import JoinCalls
    from streams.scn import Scn
    from streams.table_name import TableName

__all__ = ["DetachedPartitions", "Outcome"]

# Apply is behind the source's position by a progress record or two, 0.2 s; who asked for a look waits for it, up to five seconds (`driver.control`).
_APPLIED_WAIT_S = 3.0
_APPLIED_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a table's partitions: whether any is gone from it, why others are not, and whether to look again soon."""

    is_done: bool = False
    problem: str = ""
    is_early: bool = False


@dataclass(slots=True, kw_only=True)
class DetachedPartitions:
    """See the module. One thread at a time; nothing is durable: another driver finds the partitions again.

    Args:
        source, destination: the databases.
        joins: says what is applied; None: nothing is yet.
    """

    source: SourceDatabase
    destination: DestinationDatabase
    joins: JoinCalls | None = None
    _since: dict[tuple[str, str], Scn] = field(default_factory=dict)  # by table and number: they were gone at that position
    _others: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)  # what the table had then

    def keep(self, left: Mapping[str, Mapping[str, TableName]]) -> None:
        """Forget all partitions but these.

        Args:
            left: as `ChangedRows.left`.
        """
        keys = {(identity, number) for identity, parts in left.items() for number in parts}
        self._since = {key: scn for key, scn in self._since.items() if key in keys}
        self._others = {key: parts for key, parts in self._others.items() if key in keys}

    def settle(self, table: MarkedTable, left: Mapping[str, TableName], mark: RowMark, *, waits: bool) -> Outcome:
        """Do to a table's partitions what is wanted, as far as it can be done now.

        Args:
            table: which had them at the source.
            left: their names here, by their numbers at the source.
            mark: of the table now.
            waits: wait a moment until what was before is applied.

        Raises:
            DatabaseUnavailable: a database does not answer.
        """
        joins = self.joins
        if joins is None or not table.may_be_copied or table.is_reshaped:
            return Outcome()
        for number in left:
            if (key := (table.identity, number)) not in self._since:
                self._since[key], self._others[key] = self.source.current_scn(), frozenset(mark.parts)
        is_done, problems, is_early = False, [], False
        for number, name in left.items():
            how = self._how(joins, table, number, mark)
            if not how:
                continue
            if how != "empty" and not self._is_applied(joins, self._since[table.identity, number], waits=waits):
                is_early = True
                continue
            problem = self._remove(table, number, name, how)
            is_done |= not problem
            problems += [f"partition {name}: {problem}"] if problem else []
        return Outcome(is_done=is_done, problem="; ".join(problems), is_early=is_early)

    def _how(self, joins: JoinCalls, table: MarkedTable, number: str, mark: RowMark) -> str:
        """What is to be done about a partition; empty: nothing."""
        if table.detached == "follow":
            return "detach" if self.source.has_part(number) else "drop"
        found = joins.truncated_tables.get(table.identity)
        if found is None:
            return ""
        scn, numbers = found
        others = {int(each) for each in self._others[table.identity, number] if each in mark.parts}
        return "empty" if scn >= self._since[table.identity, number] and others <= numbers and joins.applied_scn >= scn else ""

    def _is_applied(self, joins: JoinCalls, scn: Scn, *, waits: bool) -> bool:
        deadline = time.monotonic() + (_APPLIED_WAIT_S if waits else 0.0)
        while joins.applied_scn < scn or not joins.is_joined:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_APPLIED_POLL_S)
        return True

    def _remove(self, table: MarkedTable, number: str, name: TableName, how: str) -> str:
        """Why a partition was not removed; empty: it was."""
        def may(rows: str) -> bool:
            return not self.source.partition_rows(number) and not self.source.holds(table.source, rows)

        try:
            is_done = self.destination.remove_partition(table.destination, name, how=how, may=may)
        except (FencedError, DestinationRestarted, DatabaseUnavailable):
            raise
        except DatabaseError as error:
            return error.message
        return "" if is_done else "the source's table has rows that belong into it here: of another partition, or of its default partition"
