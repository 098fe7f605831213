"""What became of DDL LCRs that make, drop or rename tables: the destination is asked, and the apply process's tables follow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from headrace.lcr.table_name import TableName
from spark_apply.copy.records.tables import TableProgress
from spark_apply.tables.unsettled import DdlFates, TableChanges

if TYPE_CHECKING:
    from headrace.databases.ports import DdlPlace, DestinationDatabase, Instantiation
    from spark_apply.apply_config import ApplyConfig

__all__ = ["DdlSettling"]


class DdlSettling:
    """Asks the destination, and changes `ApplyConfig.replicated`. Only the loop's thread uses it.

    Args:
        config: of the apply process.
        destination: asked for outcomes and records.
        moved: called when a table is replicated, is not any more, or has another name.
    """

    def __init__(
        self, config: ApplyConfig, destination: DestinationDatabase, moved: Callable[[TableProgress], None]
    ) -> None:
        self._config, self._destination, self._moved = config, destination, moved

    def fates(self, places: Collection[DdlPlace]) -> DdlFates:
        """Return what the destination knows of DDL LCRs, and of the source's tables.

        Args:
            places: of the LCRs.

        Raises:
            DatabaseUnavailable: the destination does not answer.
        """
        topology, apply, source = self._config.topology, self._config.apply, self._config.source.site
        outcomes = self._destination.ddl_outcomes(topology, apply, places)
        # Behind the outcomes: a table that was made meanwhile has its record, and one with an outcome has no other.
        recorded = self._destination.instantiations(topology, apply)
        return DdlFates(outcomes=outcomes, records={each.identity: each for each in recorded if each.source == source})

    def take_up(self, changes: TableChanges, records: Mapping[str, Instantiation]) -> None:
        """Change the tables of the apply process; only now the copies see a new one, which has its record.

        Args:
            changes: of its tables.
            records: of the source's tables, by identity.
        """
        for table in changes.removed:
            if any(each.identity == table.identity for each in self._config.tables):
                self._config.replicated.remove(table.identity)
                self._moved(TableProgress(owner=table.destination.owner, name=table.destination.name, state="GONE"))
        # First: a new table may have the name of a renamed one, and would take its place in the list.
        self._config.replicated.put(*(table for table, _ in changes.renamed))
        for table, record in changes.added:
            self._config.replicated.add(table)
            self._moved(TableProgress.of(TableName(record.owner, record.name), record))
        names = {each.destination for each in self._config.tables}
        for table, name in changes.renamed:
            if name not in names:
                self._moved(TableProgress(owner=name.owner, name=name.name, state="GONE"))
            if (known := records.get(table.identity)) is not None:
                self._moved(TableProgress.of(table.destination, known))
