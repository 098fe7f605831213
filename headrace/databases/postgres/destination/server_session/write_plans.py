"""The statements that write a session's tables, planned once for each form of a write, and the types that they need.

An array of values travels as one of a composite type of the session's own (`writes.wrapper_name`). Such a type goes
with the transaction that made it where that is undone: then all of them get new names (`undone`), because a prepared
statement knows a type by its number.
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

# Plans kept: a table's version and the set of its changed columns have one each, and a table of n large columns has 2
# to the n such sets. A plan has one prepared statement at least, so more of them than those would seldom help.
PLANS_MAX = PREPARED_MAX


class WritePlans:
    """See the module.

    Args:
        dsn: of the destination, for the question whose event trigger refused a type.
        tables: of the session.
        transaction: of the session.
    """

    def __init__(self, dsn: str, tables: DescribedTables, transaction: SessionTransaction) -> None:
        self._dsn, self._tables, self._transaction = dsn, tables, transaction
        # And the description that each was made for; the one that was used last is last.
        self._plans: OrderedDict[Any, tuple[CatalogTable, WritePlan]] = OrderedDict()
        self._wrappers: set[str] = set()
        self._wrapped_in_transaction = False
        self.generation = 0
        """Which names the session's types have now; see `writes.wrapper_name`."""

    @property
    def own_type(self) -> str:
        """A type that the session has made; empty: none."""
        return next(iter(self._wrappers), "")

    def plan(self, write: Write) -> WritePlan:
        """How a write is written.

        Args:
            write: inside a transaction.

        Raises:
            UnfitTableError: its table does not fit.
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
        """Make the types that a plan needs and the session does not have yet.

        Args:
            plan: of this generation.
            write: what it writes, for messages.
        """
        missing = {
            name: form for form in plan.wrapped if (name := wrapper_name(form, self.generation)) not in self._wrappers
        }
        statements = [Statement(sql=f"CREATE TYPE {name} AS (f {form.type_name})") for name, form in missing.items()]
        if not statements:
            return
        try:
            if self._transaction.state is TransactionState.PENDING:
                # Before the transaction begins, so that its rollback does not take them away.
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
        """The transaction, or a part of it, was undone: a type that it made is gone."""
        if self._wrapped_in_transaction:
            self._wrapped_in_transaction = False
            self.generation += 1
            self._wrappers.clear()
            self._plans.clear()

    def committed(self) -> None:
        """The transaction was committed: the types that it made stay."""
        self._wrapped_in_transaction = False


def _counts_alone(write: Write, catalog: CatalogTable) -> bool:
    """Whether a write's count shows how many rows its one row finds.

    False as well if it does not fit, which is found out next.
    """
    if (
        write.row_count != 1
        or write.command is Command.INSERT
        or any(column.name not in catalog.positions for column in write.version.columns)
    ):
        return False
    return located(write, catalog).found is FoundRows.SINGLE
