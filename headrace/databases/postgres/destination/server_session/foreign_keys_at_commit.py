"""The check of foreign keys before an apply server's session commits; `ForeignKeyChecks` has the values to check.

A violated foreign key is no error while one of its tables is being copied, or has joined and is still behind the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headrace.databases.ports import ScnRange
from headrace.databases.postgres.destination.server_session.server_progress import int8
from headrace.databases.postgres.destination.writing.foreign_keys import (
    ForeignKeyChecks,
    ValueCheck,
    value_statement,
    violation,
    whole_check,
)
from headrace.databases.postgres.destination.writing.writes import WritePlan
from headrace.databases.postgres.pipeline import Statement
from headrace.lcr.scn import Scn
from headrace.rules.table_settings import TableSettings

if TYPE_CHECKING:
    from headrace.databases.ports import DdlPlace
    from headrace.databases.postgres.catalog.destination_tables import CheckedKey
    from headrace.databases.postgres.destination.fencing import SessionIdentity
    from headrace.databases.postgres.destination.server_session.described_tables import DescribedTables
    from headrace.databases.postgres.destination.server_session.row_finder import RowFinder
    from headrace.databases.postgres.destination.server_session.transaction import SessionTransaction
    from headrace.databases.postgres.destination.server_session.write_plans import WritePlans
    from headrace.lcr.table_name import TableName

__all__ = ["ForeignKeysAtCommit"]

# Tables of a foreign key that are being copied, so that their rows are skipped, or that have joined and are still behind.
_NOT_LEVEL = """SELECT FROM headrace.instantiation i JOIN headrace.apply_process p USING (topology, apply)
WHERE topology = $1::text AND apply = $2::text AND ((owner, name) = ($3::text, $4::text) OR (owner, name) = ($5::text, $6::text))
  AND (state NOT IN ('DONE', 'KEPT', 'LEFT', 'JOINING') OR (state = 'JOINING' AND $7::int8 < ahead)) LIMIT 1"""
_AHEAD_OF_ALL = Scn((1 << 63) - 1)  # an executed error transaction counts as later than everything applied


class ForeignKeysAtCommit:
    """Checks of the foreign keys that the open transaction changed.

    The settings of the apply process say which foreign keys are checked. The other arguments belong to the session.
    """

    def __init__(
        self,
        settings: TableSettings,
        *,
        identity: SessionIdentity,
        transaction: SessionTransaction,
        tables: DescribedTables,
        plans: WritePlans,
        finder: RowFinder,
    ) -> None:
        self.noted = ForeignKeyChecks(settings)
        """Values of foreign keys that the open transaction changed."""
        self._identity, self._transaction = identity, transaction
        self._tables, self._plans, self._finder = tables, plans, finder

    def check(self, applied: Sequence[ScnRange]) -> None:
        """Look for rows that reference a missing row.

        Args:
            applied: SCN ranges that the transaction is about to record.

        Raises:
            DataError: a foreign key is violated; the caller must roll back.
        """
        self._check(self.noted.whole, self.noted.values, applied)
        self.noted.clear()

    def check_table(self, table: TableName, place: DdlPlace) -> None:
        """Look for such rows in the foreign keys of a table that is about to be altered: its values fit its present form.

        The source has altered it between the same rows, which it does only when no check is pending.

        Args:
            table: name of the table.
            place: of the DDL LCR in the source's log.

        Raises:
            DataError: as for `check`.
        """

        def is_of_it(key: CheckedKey) -> bool:
            return tuple(table) in {(key.owner, key.name), (key.referred_owner, key.referred_name)}

        whole = [(key, is_referred) for key, is_referred in self.noted.whole if is_of_it(key)]
        values = [check for check in self.noted.values if is_of_it(check.key)]
        scn = Scn(place.order_scn)
        self._check(whole, values, [ScnRange(after=scn, through=Scn(scn + 1))])
        self.noted.forget(is_of_it)

    def _check(
        self, whole: Iterable[tuple[CheckedKey, bool]], values: Iterable[ValueCheck], applied: Sequence[ScnRange]
    ) -> None:
        for key, is_referred in whole:
            result = self._transaction.run(
                [Statement(sql=whole_check(key, is_referred=is_referred))], "checking a foreign key"
            )[-1]
            if result.ntuples and self._is_level(key, applied):
                raise violation(key)
        for check in values:
            statement, builder = value_statement(check, self._tables.fitting(check.write), self._plans.generation)
            plan = WritePlan(statements=(statement,), wrapped=tuple(builder.wrapped.values()))
            is_missing = any(result.ntuples for _, result in self._finder.ask(plan, check.write))
            if is_missing and self._is_level(check.key, applied):
                raise violation(check.key)

    def _is_level(self, key: CheckedKey, applied: Sequence[ScnRange]) -> bool:
        """Return whether both tables of a foreign key show the same moment: none is being copied or still behind."""
        identity = self._identity
        names = (identity.topology, identity.apply, key.owner, key.name, key.referred_owner, key.referred_name)
        parameters = (
            *(name.encode() for name in names),
            int8(min((each.after for each in applied), default=_AHEAD_OF_ALL)),
        )
        asked = Statement(sql=_NOT_LEVEL, parameters=parameters)
        return not self._transaction.run([asked], "asking which tables are copied")[-1].ntuples
