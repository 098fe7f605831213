"""Writer of sets of row changes and of the notes of their rows, with as many as possible in one round trip.

Main path
    SetWriter.write -> WritePlans.plan -> parameters -> SessionTransaction.send -> the answers, read later.

A write has statements for its rows. With latest_timestamp, it also has statements that look for later notes, and
statements that note its own times. A large set of new rows is written by COPY. Chunks have the size of one round trip;
the last one is in flight when `write` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from headrace.base.errors import DatabaseError
from headrace.databases.ports import DestinationTable, TruncatedTable, Write
from headrace.databases.postgres.destination.writing.row_changes import meeting_point, noted_writes
from headrace.databases.postgres.destination.writing.rows_in_the_way import remove_statement
from headrace.databases.postgres.destination.writing.truncation import (
    delete_partition,
    explain_referred,
    explain_undescribed,
    same_partition,
)
from headrace.databases.postgres.destination.writing.writes import (
    COPY_ROWS_MIN,
    SetStatement,
    WritePlan,
    copy_blocks,
    parameters,
    row_chunks,
)
from headrace.databases.postgres.pipeline import Statement

if TYPE_CHECKING:
    from headrace.databases.postgres.destination.server_session.described_tables import DescribedTables
    from headrace.databases.postgres.destination.server_session.session_times import SessionTimes
    from headrace.databases.postgres.destination.server_session.transaction import SessionTransaction
    from headrace.databases.postgres.destination.server_session.users_sql import UsersSql
    from headrace.databases.postgres.destination.server_session.write_plans import WritePlans
    from headrace.databases.postgres.destination.writing.foreign_keys import ForeignKeyChecks

__all__ = ["SetWriter"]

_NO_LOOPS = Statement(sql="SET LOCAL enable_nestloop = off")
_LOOPS = Statement(sql="SET LOCAL enable_nestloop = on")


class _Batch:
    """The writes of one call, their unsent statements, and the counts.

    Args:
        rows: the writes. `writes` and `counts` have three parts of this length and order: for the rows, for their
            notes, and for later notes.
    """

    def __init__(self, rows: Sequence[Write]) -> None:
        self.rows = rows
        self.writes = [*rows, *rows, *rows]
        self.counts = [0] * len(self.writes)  # rows affected
        self.notes = [0] * len(rows)  # number of notes that each write must make
        self.statements: list[tuple[int, Statement]] = []  # with the number of the write, or -1 for none
        self.locks: set[str] = set()  # SQL of the lock statements

    def add(self, statements: Iterable[Statement], *, counted: Statement | None = None, number: int = -1) -> None:
        """Add statements; the affected rows of `counted`, one of them, count for the write with this number."""
        self.statements += [(number if each is counted else -1, each) for each in statements]

    def is_of_rows(self, number: int) -> bool:
        """Return whether statements of this number write rows, and not Headrace's notes of them."""
        return 0 <= number < len(self.rows)

    def answer(self) -> tuple[int, ...]:
        """Return the result of `DestinationSession.write`: affected rows, or -1 when a later change is noted."""
        found, notes, later = (self.counts[place * len(self.rows) : (place + 1) * len(self.rows)] for place in range(3))
        return tuple(
            count if notes[number] == self.notes[number] and not later[number] else -1
            for number, count in enumerate(found)
        )


class SetWriter:
    """Writer of one session, over the session's objects; `foreign_keys` collects the checks of the open transaction."""

    def __init__(
        self,
        transaction: SessionTransaction,
        tables: DescribedTables,
        plans: WritePlans,
        *,
        times: SessionTimes,
        users_sql: UsersSql,
        foreign_keys: ForeignKeyChecks,
    ) -> None:
        self._transaction, self._tables, self._plans = transaction, tables, plans
        self._times, self._users_sql, self._foreign_keys = times, users_sql, foreign_keys

    def write(self, writes: Sequence[Write]) -> Callable[[], tuple[int, ...]]:
        """Send writes; the last round trip is in flight on return.

        Args:
            writes: the writes; rows of one write differ in their keys.

        Returns:
            A function that waits, and returns the result of `DestinationSession.write`.
        """
        self._transaction.require_open()
        batch = _Batch([self._times.timed(write) for write in writes])
        self._users_sql.note_fired(write.version for write in batch.rows if write.row_count)
        for number, write in enumerate(batch.rows):
            if write.row_count:
                self._add_write(batch, number, write)
        read = self._send(batch)

        def counted() -> tuple[int, ...]:
            read()
            if self._foreign_keys.settings.check_foreign_keys:
                for write in batch.rows:
                    self._foreign_keys.note(write, self._tables.fitting(write))
            return batch.answer()

        return counted

    def _add_write(self, batch: _Batch, number: int, write: Write) -> None:
        plan = self._plans.plan(write)
        meeting = [] if write.times is None else meeting_point(write, self._tables.fitting(write))
        batch.add(each for each in meeting if each.parameters or each.sql not in batch.locks)
        batch.locks |= {each.sql for each in meeting}
        if plan.copy and write.row_count >= COPY_ROWS_MIN:
            self._send(batch)()
            batch.counts[number] += self._copy(plan, write)
        else:
            self._add(batch, number, plan.statements, is_paired=plan.paired)
        if write.times is not None:
            self._times.note(write)
            self._add(batch, 2 * len(batch.rows) + number, plan.checks, is_own=True)
        for timed in noted_writes(write) if plan.notes else ():
            batch.notes[number] += len(plan.notes) * timed.row_count
            batch.writes[len(batch.rows) + number] = timed
            self._add(batch, len(batch.rows) + number, plan.notes, is_own=True)
        batch.add(self._transaction.guard.with_own_rights(self._times.set_notes(write)))

    def _add(
        self,
        batch: _Batch,
        number: int,
        planned: Sequence[SetStatement],
        *,
        is_paired: bool = False,
        is_own: bool = False,
    ) -> None:
        """Add a write's statements, and send full chunks.

        Args:
            batch: the batch of the call.
            number: number of the write in the batch.
            planned: statements of the plan.
            is_paired: the statements must run without nested loops.
            is_own: the statements are on Headrace's tables.
        """
        write = batch.writes[number]
        for statement in planned:
            for first, last in row_chunks(statement, write):
                values = parameters(statement, write, first, last, self._times.horizon)
                planned_one = Statement(sql=statement.sql, parameters=values, prepared=True)
                around = [_NO_LOOPS, planned_one, _LOOPS] if is_paired else [planned_one]
                around = self._transaction.guard.with_own_rights(around) if is_own else around
                batch.add(around, counted=planned_one, number=number)
                if last < write.row_count:
                    self._send(batch)()

    def _send(self, batch: _Batch, *, unchecked: Sequence[int] = ()) -> Callable[[], None]:
        """Send a batch's statements, with checks that their tables still have the described form.

        Args:
            batch: the batch; it has no unsent statements afterwards.
            unchecked: numbers of writes whose statement has already run (COPY).

        Returns:
            A function that reads the answers into the batch.
        """
        statements, batch.statements = batch.statements, []
        numbers = dict.fromkeys([*unchecked, *(number for number, _ in statements if number >= 0)])
        tables = self._tables.unchecked([batch.writes[number] for number in numbers])
        checks = self._tables.form_checks(tables)
        if not statements and not checks:
            return lambda: None
        before = self._transaction.pending_count
        send = self._transaction.send([*(statement for _, statement in statements), *checks], "writing")

        def read() -> None:
            try:
                results = send()
            except DatabaseError as error:
                place = error.context.get("statement", -1)
                if isinstance(place, int) and place >= before + len(statements):
                    self._tables.raise_altered(tables, error)
                number = -1
                if isinstance(place, int) and before <= place < before + len(statements):
                    number = statements[place - before][0]
                if batch.is_of_rows(number):
                    write = batch.writes[number]
                    self._tables.explain(error, [write.version], write.command.name)
                raise
            self._tables.checked(tables)
            for (number, _), result in zip(statements, results[: len(statements)], strict=True):
                if number >= 0:
                    batch.counts[number] += result.command_tuples or 0

        return read

    def _copy(self, plan: WritePlan, write: Write) -> int:
        self._transaction.send_pending()
        try:
            chunks = list(row_chunks(plan.statements[0], write))
            copied = self._transaction.pipeline.copy_in(plan.copy, copy_blocks(plan, write, chunks), "writing")
            self._send(_Batch([write]), unchecked=[0])()
            return copied
        except DatabaseError as error:
            self._transaction.fail()
            self._tables.explain(error, [write.version], write.command.name)
            raise
        except BaseException:
            self._transaction.fail()
            raise

    # ------------------------------------------------------------------ rows without their values

    def truncate(self, tables: Sequence[TruncatedTable], *, restart_identity: bool) -> None:
        """Truncate tables together.

        Args:
            tables: tables and partitions of one TRUNCATE of the source.
            restart_identity: restart the sequences that their columns own.
        """
        self._transaction.require_open()
        self._users_sql.note_fired(found.table for found in tables)
        names: list[str] = []
        for found in tables:
            relation = self._tables.relation(found.table) if found.partition is None else self._partition(found)
            if relation:
                names.append(relation)
            else:
                self._delete_partition(found)
        if not names:
            return
        restart = " RESTART IDENTITY" if restart_identity else ""
        truncated = [found.table for found in tables]
        statement = Statement(sql=f"TRUNCATE {', '.join(dict.fromkeys(names))}{restart} RESTRICT")
        try:
            self._transaction.run([statement], "truncating")
        except DatabaseError as error:
            explain_referred(error, [f"{table.owner}.{table.name}" for table in truncated])
            self._tables.explain(error, truncated, "TRUNCATE")
            raise

    def _partition(self, found: TruncatedTable) -> str:
        with self._transaction.own_statements("looking for a partition"):
            return same_partition(self._transaction.connection, found)

    def _delete_partition(self, found: TruncatedTable) -> None:
        statement = delete_partition(self._tables.relation(found.table), found)
        try:
            self._transaction.run([Statement(sql=statement)], "deleting the rows of a truncated partition")
        except DatabaseError as error:
            explain_undescribed(error, found)
            self._tables.explain(error, [found.table], "TRUNCATE")
            raise
        if (catalog := self._tables.catalog(found.table.owner, found.table.name)) is not None:
            self._foreign_keys.note_removed(catalog)

    def remove_row(self, table: DestinationTable, number: str) -> None:
        """Delete a row that `find_rows` found.

        Args:
            table: table of the row.
            number: place of the row (`RowInTheWay.number`).
        """
        catalog = self._tables.catalog(table.owner, table.name)
        assert catalog is not None
        self._users_sql.note_fired([table])
        values = tuple(part.encode() for part in number.split(" "))
        try:
            self._transaction.run(
                [Statement(sql=remove_statement(catalog), parameters=values, prepared=True)],
                "deleting a row that is in the way",
            )
        except DatabaseError as error:
            self._tables.explain(error, [table], "DELETE")
            raise
        self._foreign_keys.note_removed(catalog)
