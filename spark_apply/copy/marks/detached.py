"""Partitions that the source's table no longer has, but the destination's table has.

The operator configures what happens to them (decision 75).

    ask     they stay, and `status` names them. A TRUNCATE of everything that the table still had empties them, too: the
            source's table had no row then.
    keep    they stay. Only `verify` names them, and it excludes them from the comparison (`RowMark.kept`).
    follow  they are detached here, too, when all earlier changes are applied, and dropped if the source has dropped
    them.
            If the source's table has another partition of that name by now, only the rows are removed.

Nothing is removed while the source's table has rows that would belong to such a partition: in another partition that
replaced it, or in the default one. That is checked while no session can write the destination's table, so that no row
applied meanwhile is removed with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.base.errors import DatabaseError, DatabaseUnavailable, DestinationRestarted, FencedError
from headrace.lcr.scn import FIRST_SCN
from headrace.lcr.table_name import TableName
from spark_apply.copy.records.parts import here

if TYPE_CHECKING:
    from headrace.databases.ports import InstantiationRecords, RowMark, SourceDatabase
    from headrace.lcr.scn import Scn
    from spark_apply.copy.marks.row_marks import MarkedTable
    from spark_apply.copy.records.join_calls import JoinCalls

__all__ = ["DetachedPartitions", "Outcome"]

_APPLIED_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome for a table's partitions: whether any was removed, why others were not, whether to look again soon."""

    is_done: bool = False
    problem: str = ""
    is_early: bool = False


@dataclass(slots=True, kw_only=True)
class DetachedPartitions:
    """Removes partitions that the source no longer has. One thread at a time.

    Nothing is durable: the next driver finds the partitions again.

    Args:
        topology: name of the topology.
        apply: name of the apply process.
        epoch: of its driver.
        source, destination: the databases.
        joins: tells what is applied; None: nothing is applied yet.
    """

    topology: str
    apply: str
    epoch: int
    source: SourceDatabase
    destination: InstantiationRecords
    joins: JoinCalls | None = None
    # by table and number: position at which the partition was gone
    _since: dict[tuple[str, str], Scn] = field(default_factory=dict)
    # by table and number: positions since then, and the table's partitions from each on
    _seen: dict[tuple[str, str], list[tuple[Scn, frozenset[int]]]] = field(default_factory=dict)

    def keep(self, left: Mapping[str, Mapping[str, TableName]]) -> None:
        """Forget all partitions but these.

        Args:
            left: from `ChangedRows.left`.
        """
        keys = {(identity, number) for identity, parts in left.items() for number in parts}
        self._since = {key: scn for key, scn in self._since.items() if key in keys}
        self._seen = {key: seen for key, seen in self._seen.items() if key in keys}

    def settle(self, table: MarkedTable, left: Mapping[str, TableName], mark: RowMark, *, deadline: float) -> Outcome:
        """Handle a table's partitions as configured, as far as possible now.

        Args:
            table: had them at the source.
            left: their names here, by their numbers at the source.
            mark: of the table now.
            deadline: until then, by the monotonic clock, wait for earlier changes to be applied.

        Raises:
            DatabaseUnavailable: a database does not answer.
        """
        joins = self.joins
        if joins is None or not table.may_be_copied or table.is_reshaped:
            return Outcome()
        has = frozenset(map(int, mark.parts))
        for number in left:
            self._note((table.identity, number), has)
        is_done, problems, is_early = False, [], False
        names_now = {here(part, table.source, table.destination) for part in mark.parts.values()}
        for number, name in left.items():
            how = self._how(joins, table, number, has)
            if not how:
                continue
            since = joins.truncated_tables[table.identity][0] if how == "empty" else self._since[table.identity, number]
            # The source has another partition of this name by now, whose changes need it.
            how = "empty" if name in names_now else how
            if not self.is_applied(since, deadline=deadline):
                is_early = True
                continue
            problem = self._remove(table, number, name, how)
            is_done |= not problem
            problems += [f"partition {name}: {problem}"] if problem else []
        return Outcome(is_done=is_done, problem="; ".join(problems), is_early=is_early)

    def _how(self, joins: JoinCalls, table: MarkedTable, number: str, has: frozenset[int]) -> str:
        """Return what to do about a partition; empty: nothing."""
        if table.detached == "follow":
            return "detach" if self.source.has_part(number) else "drop"
        truncated, numbers = joins.truncated_tables.get(table.identity, (FIRST_SCN, frozenset[int]()))
        seen, applied = self._seen[table.identity, number], joins.applied_scn
        before = [others for scn, others in seen if scn <= truncated]
        self._seen[table.identity, number] = [
            each for place, each in enumerate(seen) if place + 1 == len(seen) or seen[place + 1][0] > applied
        ]
        # The table may have got a partition between a look and the TRUNCATE, which does not cover it. Either the
        # table still has it, and `has` shows it, or it left, and the partition stays.
        return "empty" if before and before[-1] | has <= numbers else ""

    def _note(self, key: tuple[str, str], others: frozenset[int]) -> None:
        """Note the table's current partitions, which lack this one.

        A TRUNCATE that is not applied yet is compared with the partitions at its time.
        """
        seen = self._seen.get(key, [])
        if not seen or seen[-1][1] != others:
            seen.append((self.source.current_scn(), others))
        self._since.setdefault(key, seen[0][0])
        self._seen[key] = seen

    def is_applied(self, scn: Scn, *, deadline: float) -> bool:
        """Return whether everything before a position is applied.

        Args:
            scn: the position.
            deadline: until then, by the monotonic clock, wait for it.
        """
        joins = self.joins
        if joins is None:
            return False
        while joins.applied_scn < scn or not joins.is_joined:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_APPLIED_POLL_S)
        return True

    def _remove(self, table: MarkedTable, number: str, name: TableName, how: str) -> str:
        """Remove a partition; return why it was not removed, or an empty text."""

        def may(rows: str) -> bool:
            # By its current name: another table may have the name that it had when the driver started.
            name = next(
                (TableName.of(each) for each in self.source.captured(self.topology) if each.identity == table.identity),
                None,
            )
            return name is not None and not self.source.partition_rows(number) and not self.source.holds(name, rows)

        try:
            # Check without a lock first, because a partition that may not be removed is checked repeatedly.
            rows = self.destination.partition_rows(table.destination, name)
            is_done = not rows or (
                may(rows)
                and self.destination.remove_partition(
                    self.topology,
                    self.apply,
                    self.epoch,
                    table.destination,
                    name,
                    how=how,
                    may=may,
                )
            )
        except (FencedError, DestinationRestarted, DatabaseUnavailable):
            raise
        except DatabaseError as error:
            return error.message
        return (
            ""
            if is_done
            else "the source's table has rows that belong to it here: in another partition, or in its default partition"
        )
