"""Queries of an apply server's session about the rows that conflict with a write, and their last changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.base.errors import DatabaseError
from headrace.databases.ports import LastChange, RowInTheWay, RowQuestion, Write
from headrace.databases.postgres.destination.row_times.noted_sets import exact_changes
from headrace.databases.postgres.destination.writing.row_changes import plan_last_changes, read_last_changes
from headrace.databases.postgres.destination.writing.rows_in_the_way import plan_conflicting, plan_find, read_rows
from headrace.databases.postgres.destination.writing.writes import WritePlan, parameters, row_chunks
from headrace.databases.postgres.pipeline import Statement

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from psycopg import pq

    from headrace.databases.postgres.destination.server_session.described_tables import DescribedTables
    from headrace.databases.postgres.destination.server_session.session_times import SessionTimes
    from headrace.databases.postgres.destination.server_session.transaction import SessionTransaction
    from headrace.databases.postgres.destination.server_session.write_plans import WritePlans

__all__ = ["RowFinder"]


class RowFinder:
    """Queries about rows, over the objects of one session."""

    def __init__(
        self, transaction: SessionTransaction, tables: DescribedTables, plans: WritePlans, times: SessionTimes
    ) -> None:
        self._transaction, self._tables, self._plans, self._times = transaction, tables, plans, times

    def find_rows(self, write: Write, question: RowQuestion) -> tuple[RowInTheWay, ...]:
        """Find and lock the rows that conflict with the rows of a write.

        Args:
            write: the write, with any number of rows; not `paired`.
            question: the data to read.
        """
        catalog = self._tables.fitting(write)
        plan = plan_find(write, catalog, question, self._plans.generation)
        if plan is None:
            return ()
        return tuple(
            row for first, result in self.ask(plan, write) for row in read_rows(result, catalog, question, first=first)
        )

    def last_changes(self, write: Write) -> tuple[LastChange, ...]:
        """Return the last change of each row of a write with `times`."""
        catalog = self._tables.fitting(write)
        plan = plan_last_changes(write, catalog, self._plans.generation)
        found = [each for _, result in self.ask(plan, write, is_own=True) for each in read_last_changes(result)]
        if write.times is None:
            return tuple(change for change, _ in found)
        return exact_changes(
            lambda asked: self._transaction.run_own(asked, "looking for rows in the way"), catalog, write.times, found
        )

    def conflicting(self, write: Write) -> NDArray[np.int64] | None:
        """Return the numbers of the rows of a write that would have a conflict; None when that is unknown."""
        write = self._times.timed(write)
        plan = plan_conflicting(write, self._tables.fitting(write), self._plans.generation)
        if plan is None:
            return None
        found: list[int] = []
        for first, result in self.ask(plan, write, is_own=True):
            found += [first + int(result.get_value(row, 0) or 0) for row in range(result.ntuples)]
        return np.array(sorted(found), np.int64)

    def ask(self, plan: WritePlan, write: Write, *, is_own: bool = False) -> list[tuple[int, pq.abc.PGresult]]:
        """Run a plan's only statement over the values of a write.

        Args:
            plan: a plan of the session's generation of types.
            write: the write with the values.
            is_own: the statement also reads Headrace's tables, on which a role taken for the transaction has no rights.

        Returns:
            For each chunk of rows, the number of its first row, and the result.
        """
        self._plans.make_types(plan, write)
        (statement,) = plan.statements
        results: list[tuple[int, pq.abc.PGresult]] = []
        for first, last in row_chunks(statement, write):
            asked = Statement(
                sql=statement.sql,
                parameters=parameters(statement, write, first, last, self._times.horizon),
                prepared=True,
            )
            try:
                what = "looking for rows in the way"
                results.append(
                    (
                        first,
                        self._transaction.run_own(asked, what) if is_own else self._transaction.run([asked], what)[-1],
                    )
                )
            except DatabaseError as error:
                self._tables.explain(error, [write.version], write.command.name)
                raise
        return results
