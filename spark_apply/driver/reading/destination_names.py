"""Names of a batch's columns at the destination, for columns renamed on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.errors import UnfitTableError
from headrace.lcr.batch import LcrBatch, TableVersion, changed_table
from headrace.lcr.cutting import renamed
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.transformations.transformation import TransformationError
from spark_apply.driver.reading.pieces import order_scn_of
from spark_apply.tables.fits import TableVersions

if TYPE_CHECKING:
    from spark_apply.tables.arriving import ArrivingTables
    from spark_apply.tables.fits import TableFits

__all__ = ["DestinationNames", "Named"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A batch with the destination's names.

    Args:
        batch: the batch with these names, as far as its tables fit.
        unfit: index of its first transaction that does not fit; None: all fit.
        error: why that transaction does not fit.
    """

    batch: LcrBatch
    unfit: int | None = None
    error: UnfitTableError | None = None


class DestinationNames:
    """Gives batches the destination's column names. It outlives restarts of the reader, but not of the process.

    Args:
        rules: rules of the apply process; they may rename columns.
        tables: the tables that arrive.
    """

    def __init__(self, rules: RuleEvaluation, tables: ArrivingTables, fits: TableFits) -> None:
        self._rules, self._tables, self._fits = rules, tables, fits
        self._versions = TableVersions()

    def note(self, tables: Sequence[TableVersion]) -> None:
        """Record table versions as the apply process's rules shape them.

        A version that cannot be transformed is skipped; its rows raise the error when they arrive.

        Args:
            tables: tables of a batch, in order of arrival.
        """
        for table in tables:
            with contextlib.suppress(TransformationError):
                self._versions.note((self._rules.reshaped(table),))

    def named(self, batch: LcrBatch) -> Named:
        """Give a batch the destination's column names, up to its first transaction that does not fit.

        Rows written before a column was renamed can arrive after the destination was altered: in one transaction with
        the ALTER, or delayed behind it.

        Args:
            batch: the batch after rule evaluation.
        """
        used: list[tuple[int, int]] = [(int(group.row_numbers[0]), group.table) for group in batch.groups]
        truncated = _truncated(batch)
        used += truncated
        tables = list(batch.tables)
        for row, table in sorted(used):
            transaction = int(np.searchsorted(batch.transactions.first_row, row, side="right")) - 1
            order_scn = order_scn_of(batch, transaction)
            try:
                if (row, table) in truncated:
                    self._tables.check_truncate(tables[table], order_scn)
                tables[table] = self.fitting(tables[table], order_scn)
            except UnfitTableError as error:
                return Named(batch=renamed(batch, tables), unfit=transaction, error=error)
        return Named(batch=renamed(batch, tables))

    def misnamed(self, batch: LcrBatch) -> UnfitTableError | None:
        """Return why the tables of a DDL LCR, or of a part behind one, must not be written; None: they may.

        The destination is not asked. Only the session that makes the change sees how the tables fit behind it, and the
        driver's would wait for the locks that the change holds until the part that is asked about has been written.

        Args:
            batch: a part of one transaction.
        """
        truncated = {table for _, table in _truncated(batch)}
        used = [batch.tables[table] for table in sorted(truncated | {group.table for group in batch.groups})]
        if batch.ddl is not None and not batch.ddl.why_not_made:
            used.append(changed_table(batch.ddl))
        try:
            for table in sorted(truncated):
                self._tables.check_truncate(batch.tables[table], order_scn_of(batch, 0))
            for version in used:
                self._tables.check_name(version, order_scn_of(batch, 0))
        except UnfitTableError as error:
            return error
        return None

    def fitting(self, version: TableVersion, order_scn: Scn = FIRST_SCN) -> TableVersion:
        """Return the version with names that fit the destination.

        Args:
            version: the version.
            order_scn: of the first transaction that uses it.

        Raises:
            UnfitTableError: it fits under none of the names that its columns have had since.
        """
        self._tables.check_name(version, order_scn)
        candidates = [] if self._tables.lacks_columns(version) else list(self._versions.renamed(version))
        for found in candidates:
            # A column's old name can go to another column; when the destination has both, older rows would fit wrongly.
            if found.is_ambiguous and self._does_fit(found.newer) and self._does_fit(found.version):
                return found.version
        try:
            self._fits.fit(version)
        except UnfitTableError:
            for found in candidates:
                if self._does_fit(found.version):
                    return found.version
            self._fits.fit_or_error(version)
        return version

    def _does_fit(self, version: TableVersion) -> bool:
        with contextlib.suppress(UnfitTableError):
            self._fits.fit(version)
            return True
        return False


def _truncated(batch: LcrBatch) -> list[tuple[int, int]]:
    """Return (row, table) of each table that a TRUNCATE of a batch names."""
    return [(truncate.row_number, table) for truncate in batch.truncates for table in truncate.tables]
