"""Partitions that a source's table has no longer, and the destination's has.

What the operator wants to become of them (decision 75).

    ask     they stay, and `status` names them. A TRUNCATE of everything that the table had left empties them, too: the
            source's table had no row then.
    keep    they stay, and nothing names them but `verify`, which leaves them out (`RowMark.kept`).
    follow  they are detached here, too, and dropped if the source has dropped them, when everything before is applied.
            Where the source's table has another one of the name
            by now, only the rows are removed.

Nothing is removed while the source's table has rows that would be in such a partition: of another partition that took
its place, or of the default one. That is asked while nobody can write the destination's table, so that no row that is
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
    """What became of a table's partitions.

    Whether any is gone from it, why others are not, and whether to look again soon.
    """

    is_done: bool = False
    problem: str = ""
    is_early: bool = False


@dataclass(slots=True, kw_only=True)
class DetachedPartitions:
    """See the module. One thread at a time; nothing is durable: another driver finds the partitions again.

    Args:
        topology: its name.
        apply: the apply process.
        epoch: of its driver.
        source, destination: the databases.
        joins: says what is applied; None: nothing is yet.
    """

    topology: str
    apply: str
    epoch: int
    source: SourceDatabase
    destination: InstantiationRecords
    joins: JoinCalls | None = None
    # by table and number: they were gone at that position
    _since: dict[tuple[str, str], Scn] = field(default_factory=dict)
    # positions since, and what the table had from each on
    _seen: dict[tuple[str, str], list[tuple[Scn, frozenset[int]]]] = field(default_factory=dict)

    def keep(self, left: Mapping[str, Mapping[str, TableName]]) -> None:
        """Forget all partitions but these.

        Args:
            left: as `ChangedRows.left`.
        """
        keys = {(identity, number) for identity, parts in left.items() for number in parts}
        self._since = {key: scn for key, scn in self._since.items() if key in keys}
        self._seen = {key: seen for key, seen in self._seen.items() if key in keys}

    def settle(self, table: MarkedTable, left: Mapping[str, TableName], mark: RowMark, *, deadline: float) -> Outcome:
        """Do to a table's partitions what is wanted, as far as it can be done now.

        Args:
            table: which had them at the source.
            left: their names here, by their numbers at the source.
            mark: of the table now.
            deadline: until then wait for what was before to be applied, of the monotonic clock.

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
            # the source has another one there by now, whose changes need it
            how = "empty" if name in names_now else how
            if not self.is_applied(since, deadline=deadline):
                is_early = True
                continue
            problem = self._remove(table, number, name, how)
            is_done |= not problem
            problems += [f"partition {name}: {problem}"] if problem else []
        return Outcome(is_done=is_done, problem="; ".join(problems), is_early=is_early)

    def _how(self, joins: JoinCalls, table: MarkedTable, number: str, has: frozenset[int]) -> str:
        """What is to be done about a partition; empty: nothing."""
        if table.detached == "follow":
            return "detach" if self.source.has_part(number) else "drop"
        truncated, numbers = joins.truncated_tables.get(table.identity, (FIRST_SCN, frozenset[int]()))
        seen, applied = self._seen[table.identity, number], joins.applied_scn
        before = [others for scn, others in seen if scn <= truncated]
        self._seen[table.identity, number] = [
            each for place, each in enumerate(seen) if place + 1 == len(seen) or seen[place + 1][0] > applied
        ]
        # The table may have got one between a look and the TRUNCATE: then that was not of all of it. It has it still,
        # or the partition stays.
        return "empty" if before and before[-1] | has <= numbers else ""

    def _note(self, key: tuple[str, str], others: frozenset[int]) -> None:
        """Note what the table has now, without the partition.

        A TRUNCATE that is not applied yet is compared with what the table had at its time.
        """
        seen = self._seen.get(key, [])
        if not seen or seen[-1][1] != others:
            seen.append((self.source.current_scn(), others))
        self._since.setdefault(key, seen[0][0])
        self._seen[key] = seen

    def is_applied(self, scn: Scn, *, deadline: float) -> bool:
        """Whether everything before a position is applied.

        Args:
            scn: the position.
            deadline: until then wait for it, of the monotonic clock.
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
        """Why a partition was not removed; empty: it was."""

        def may(rows: str) -> bool:
            # By its name of now: another table may have the one that it had when the driver started.
            name = next(
                (TableName.of(each) for each in self.source.captured(self.topology) if each.identity == table.identity),
                None,
            )
            return name is not None and not self.source.partition_rows(number) and not self.source.holds(name, rows)

        try:
            # First without a lock: what may not be removed is looked at again and again.
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
            else "the source's table has rows that belong into it here: of another partition, or of its default"
            " partition"
        )
