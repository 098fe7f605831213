"""A source site's knowledge of its captured tables: current names, receivers, and what `up` would change.

Durable
    `receivers.json` in the site's folder: which apply process got which table when the topology was last prepared
    (`topology.edits.receivers.Receivers`). A site without the file reports no renames.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

from redo.names import NameOfNow
from streams.durable_file import replace_file
from streams.plain_data import as_json, from_json
from topology.edits.receivers import Receivers
from topology.transformations import lost_columns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from databases.ports import CapturedTable, SourceDatabase
    from topology.spec import TopologySpec

__all__ = ["CapturedTables"]


class CapturedTables:
    """See the module. Called from several threads; every result is replaced atomically.

    Args:
        site: its name.
        folder: of the site.
        open_source: connects to its database.
    """

    def __init__(self, site: str, folder: Path, open_source: Callable[[], SourceDatabase]) -> None:
        self._site, self._file, self._open_source = site, folder / "receivers.json", open_source
        # Created since `up` and not captured; captured, and renamed since `up` so that an apply process no longer gets them.
        self.uncaptured: tuple[str, ...] = ()
        self.strayed: tuple[str, ...] = ()
        self.lost_columns: tuple[str, ...] = ()  # that transformations name, and that were renamed or dropped since `up`
        self._told = 0  # how often it was set: an answer to an older query does not replace a newer one

    def captured(self, topology: str) -> tuple[CapturedTable, ...]:
        """Every table of the source whose changes are in the log, under its current name."""
        with closing(self._open_source()) as source:
            return source.captured(topology)

    def names_of_now(self, spec: TopologySpec) -> dict[int, NameOfNow]:
        """The current name of each captured table, by the object numbers of the table and its partitions."""
        return {
            int(number): NameOfNow(
                identity=table.identity, owner=table.owner, name=table.name, is_wanted=self._is_selected(spec, table),
            )
            for table in self.captured(spec.name) for number in table.object_numbers
        }

    def note_receivers(self, noted: Receivers) -> None:
        """Record durably which apply process gets which table from now on."""
        replace_file(self._file, json.dumps(as_json(noted)) + "\n")

    def forget_receivers(self) -> None:
        """Remove the record: the site was no source meanwhile."""
        self._file.unlink(missing_ok=True)

    def receivers(self) -> Receivers:
        """Which apply process got which table when the topology was last prepared."""
        try:
            return from_json(Receivers, json.loads(self._file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return Receivers()

    def is_prepared(self) -> None:
        """`prepare` has added or removed all uncaptured and strayed tables, and a topology whose transformations name other columns is refused."""
        self._tell((), (), ())

    def look(self, source: SourceDatabase, spec: TopologySpec) -> tuple[str, ...]:
        """Query the database for tables that `prepare` would add or remove.

        Args:
            source: connected.
            spec: the topology that is wanted.

        Returns:
            Those that the rules select and that are not captured, then those that were renamed out of the rules.
        """
        told = self._told
        receivers = self.receivers()
        uncaptured = source.uncaptured(spec.name, spec.capture_rules(self._site))
        strayed = tuple(
            f"{table.owner}.{table.name}" for table in source.captured(spec.name)
            if not self._is_selected(spec, table) or receivers.is_strayed(table)
        )
        lost = lost_columns(spec, self._site, lambda: source.table_versions(source.tables(spec.capture_rules(self._site))))
        if told == self._told:
            self._tell(uncaptured, strayed, lost)
        return (*uncaptured, *strayed)

    def _tell(self, uncaptured: tuple[str, ...], strayed: tuple[str, ...], lost: tuple[str, ...]) -> None:
        self.uncaptured, self.strayed, self.lost_columns = uncaptured, strayed, lost
        self._told += 1

    def _is_selected(self, spec: TopologySpec, table: CapturedTable) -> bool:
        return any(each.keeps(table.owner, table.name) for each in spec.capture_rules(self._site))
