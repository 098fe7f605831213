"""The statements that write a session's tables, planned once for each form of a write, and the types that they need.

Values of array types are sent in a composite type that the session creates (`writes.wrapper_name`). A rollback of the
transaction that created such a type removes it. Then all types get new names (`undone`), because a prepared statement
identifies a type by its number.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from headrace.base.errors import DatabaseError, DataError
from headrace.databases.ports import FoundRows, Write
from headrace.databases.postgres.catalog.destination_tables import CatalogTable
from headrace.databases.postgres.destination.server_session.described_tables import DescribedTables
from headrace.databases.postgres.destination.server_session.transaction import SessionTransaction, TransactionState
from headrace.databases.postgres.destination.writing.row_changes import with_notes
from headrace.databases.postgres.destination.writing.write_errors import is_right
from headrace.databases.postgres.destination.writing.writes import (
    WritePlan,
    identity_may_change,
    located,
    plan_write,
    wrapper_name,
)
from headrace.databases.postgres.event_triggers import failed_in
from headrace.databases.postgres.pipeline import PREPARED_MAX, Statement
from headrace.lcr.batch import Command

__all__ = ["PLANS_MAX", "WritePlans"]

# Number of cached plans. Each combination of a table's version and changed columns has one, and a table with n large
# columns has 2 to the n combinations. A plan has at least one prepared statement, so more plans than those seldom help.
PLANS_MAX = PREPARED_MAX


class WritePlans:
    """Cache of plans, and the types that they need.

    Args:
        dsn: connection string of the destination, to find the event trigger that refused a type.
        tables: tables of the session.
        transaction: transaction of the session.
    """

    def __init__(self, dsn: str, tables: DescribedTables, transaction: SessionTransaction) -> None:
        self._dsn, self._tables, self._transaction = dsn, tables, transaction
        # Each plan with the description it was made for, least recently used first.
        self._plans: OrderedDict[Any, tuple[CatalogTable, WritePlan]] = OrderedDict()
        self._wrappers: set[str] = set()
        self._wrapped_in_transaction = False
        self.generation = 0
        """Generation of the session's types, which is part of their names (`writes.wrapper_name`)."""

    @property
    def own_type(self) -> str:
        """Name of a type that the session has created; empty for none."""
        return next(iter(self._wrappers), "")

    def plan(self, write: Write) -> WritePlan:
        """Return the plan of a write, inside a transaction.

        Raises:
            UnfitTableError: the table does not fit.
        """
        version = write.version
        catalog = self._tables.catalog(version.owner, version.name)
        columns = catalog.table.columns if catalog else ()
        moves = (
            write.command is Command.UPDATE
            and any(column.is_identity_always for column in columns)
            and catalog is not None
            and identity_may_change(write, catalog)
        )
        key = (
            version.owner,
            version.name,
            version.version or version.columns,
            write.command,
            write.match_columns,
            write.compare_columns,
            write.set_columns,
            write.paired,
            moves,
            catalog is not None and _counts_alone(write, catalog),
            None
            if (times := write.times) is None
            else (
                times.source,
                times.has_one_source,
                times.keys is None,
                times.is_decided,
                times.awaited is None,
                times.keeps_key,
            ),
        )
        planned_for, plan = self._plans.get(key, (None, None))
        if plan is not None and planned_for is catalog:
            self._plans.move_to_end(key)
            return plan
        self._plans.pop(key, None)
        catalog = self._tables.fitting(write)
        plan = plan_write(write, catalog, generation=self.generation, moves=moves)
        if write.times is not None:
            plan = with_notes(plan, write, catalog, self.generation)
        self.make_types(plan, write)
        if len(self._plans) >= PLANS_MAX:
            self._plans.popitem(last=False)
        self._plans[key] = catalog, plan
        return plan

    def make_types(self, plan: WritePlan, write: Write) -> None:
        """Create the types that a plan needs and the session does not have yet.

        Args:
            plan: a plan of this generation.
            write: the plan's write, for messages.
        """
        missing = {
            name: form for form in plan.wrapped if (name := wrapper_name(form, self.generation)) not in self._wrappers
        }
        statements = [Statement(sql=f"CREATE TYPE {name} AS (f {form.type_name})") for name, form in missing.items()]
        if not statements:
            return
        try:
            if self._transaction.state is TransactionState.PENDING:
                # Created before the transaction begins, so that its rollback does not remove them.
                self._transaction.pipeline.run(statements, "making types for array values")
            else:
                self._wrapped_in_transaction = True
                self._transaction.run(statements, "making types for array values")
        except DatabaseError as error:
            what, fix = failed_in(self._dsn, error)
            if what and is_right(error):
                named = f"{write.command.name} of {write.version.qualified_name}"
                raise DataError(f"{named}: {error.message}: {what}. {fix}", hint=fix, **error.context) from error
            self._tables.explain(error, [write.version], write.command.name)
            raise
        self._wrappers |= missing.keys()

    def undone(self) -> None:
        """Forget types and plans after a rollback, if the transaction created types."""
        if self._wrapped_in_transaction:
            self._wrapped_in_transaction = False
            self.generation += 1
            self._wrappers.clear()
            self._plans.clear()

    def committed(self) -> None:
        """Keep the types that the committed transaction created."""
        self._wrapped_in_transaction = False


def _counts_alone(write: Write, catalog: CatalogTable) -> bool:
    """Return whether the count of a one-row write is the number of rows that it finds.

    It is also False for a write that does not fit, which the caller checks next.
    """
    if (
        write.row_count != 1
        or write.command is Command.INSERT
        or any(column.name not in catalog.positions for column in write.version.columns)
    ):
        return False
    return located(write, catalog).found is FoundRows.SINGLE
