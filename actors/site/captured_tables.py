"""A source site's knowledge of its captured tables: current names, receivers, and what `up` would change.

Durable
    `receivers.json` in the site's folder: which apply process got which table when the topology was last prepared
    (`topology.edits.receivers.Receivers`). A site without the file reports no renames.
    `taken_up.json`, at a site with an administrator: the tables with which `up` got as far as preparing the site. The
    administrator publishes tables before that, so the log may contain others. These are strangers: every running
    component ignores their changes as if the tables were not captured (decision 95).
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, ClassVar

from headrace.base.durable_file import replace_file
from headrace.base.plain_data import as_json, from_json
from headrace.lcr.table_name import TableName
from headrace.redo.mining.names import NameOfNow
from headrace.status.sites import RefusedChanges
from spark_apply.copy.records.standing import rename_statement
from topology.checks.logging_needs import listed_needs
from topology.checks.transformations import lost_columns
from topology.edits.receivers import Receivers

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from actors.site.database import SiteDatabase
    from headrace.databases.ports import CapturedTable, SourceDatabase
    from topology.spec import TopologySpec

__all__ = ["CapturedTables"]


class CapturedTables:
    """Caches what the site knows of its captured tables. Called from several threads; results are replaced atomically.

    Args:
        spec: the topology that the site has adopted.
        database: the site's database.
        folder: the site's folder.

    Attributes:
        answers: names of the methods that other components call.
        uncaptured: tables that were created since `up` and are not captured.
        strayed: captured tables that were renamed since `up`, so that an apply process no longer gets them.
        renames: statements that give the destination tables of strayed tables the current names.
        lost_columns: columns that transformations name, and that were renamed or dropped since `up`.
        refused: tables on which users' UPDATE and DELETE fail while the tables are captured.
    """

    answers: ClassVar[frozenset[str]] = frozenset({"captured", "names_of_now", "note_receivers", "receivers"})

    def __init__(self, spec: TopologySpec, database: SiteDatabase, folder: Path) -> None:
        self._spec, self._database, self._site = spec, database, database.site.name
        self._file, self._taken_file = folder / "receivers.json", folder / "taken_up.json"
        self._has_admin = database.site.database.has_admin  # the administrator decides whose changes are in the log
        self.uncaptured: tuple[str, ...] = ()
        self.strayed: tuple[str, ...] = ()
        self.renames: tuple[str, ...] = ()
        self.lost_columns: tuple[str, ...] = ()
        self.refused: tuple[RefusedChanges, ...] = ()
        self._told = 0  # number of updates: the result of an older query does not replace a newer one

    def adopt(self, spec: TopologySpec) -> None:
        """Adopt a changed topology."""
        self._spec = spec

    def captured(self) -> tuple[CapturedTable, ...]:
        """Return every table of the source whose changes are in the log, under its current name."""
        with closing(self._database.open_source()) as source:
            return source.captured(self._spec.name)

    def names_of_now(self) -> dict[int, NameOfNow]:
        """Return the current name of each captured table, by the object numbers of the table and its partitions.

        Strangers are excluded.
        """
        spec = self._spec  # one for the whole answer: the site's thread may adopt another one meanwhile
        taken = self._taken_up() if self._has_admin else None
        names = (
            {} if taken is None else {table.identity: (table.owner, table.name) for table in self.receivers().tables}
        )
        found: dict[int, NameOfNow] = {}
        for table in self.captured():
            is_wanted = self._is_selected(spec, table)
            # An edit took it out of the rules under its existing name: it stays in the log until everything has
            # settled.
            is_left_out = not is_wanted and names.get(table.identity) == (table.owner, table.name)
            if taken is None or (table.identity in taken and not is_left_out):
                now = NameOfNow(identity=table.identity, owner=table.owner, name=table.name, is_wanted=is_wanted)
                found |= {int(number): now for number in table.object_numbers}
        return found

    def note_receivers(self, noted: Receivers) -> None:
        """Record durably which apply process gets which table from now on."""
        replace_file(self._file, json.dumps(as_json(noted)) + "\n")
        if self._has_admin:
            self._take_up(each.identity for each in noted.tables)
        else:
            self._taken_file.unlink(missing_ok=True)  # from a time with an administrator; no longer maintained

    def forget_receivers(self) -> None:
        """Remove the record: the site was no source in the meantime."""
        self._file.unlink(missing_ok=True)
        self._taken_file.unlink(missing_ok=True)

    def receivers(self) -> Receivers:
        """Return which apply process got which table when the topology was last prepared."""
        try:
            return from_json(Receivers, json.loads(self._file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return Receivers()

    def take_up(self, source: SourceDatabase, spec: TopologySpec) -> None:
        """Record durably the tables that components will use, where an administrator publishes tables ahead of them.

        These are the tables that the wanted topology selects and that are in the log now, and those recorded before.

        Args:
            source: connection to the database.
            spec: the wanted topology.
        """
        if self._has_admin:
            selected = {table.identity for table in source.captured(spec.name) if self._is_selected(spec, table)}
            self._take_up(selected | (self._taken_up() or {each.identity for each in self.receivers().tables}))

    def is_prepared(self) -> None:
        """Note that `prepare` has added or removed all uncaptured and strayed tables.

        No columns are lost either: a topology whose transformations name other columns is refused.
        """
        self._tell((), (), (), (), ())

    def look(self, source: SourceDatabase, spec: TopologySpec, noted: Receivers | None = None) -> tuple[str, ...]:
        """Query the database for tables that `prepare` would add or remove.

        Args:
            source: connection to the database.
            spec: the wanted topology.
            noted: the tables in the controller's record, where an administrator may be ahead of it; None: the record of
                this site decides.

        Returns:
            Tables that the rules select and that are not captured or not taken up, then tables that were renamed out of
            the rules.
        """
        told = self._told
        receivers = self.receivers()
        uncaptured, captured = source.uncaptured(spec.name, spec.capture_rules(self._site)), source.captured(spec.name)
        taken = (
            ({each.identity for each in noted.tables} if noted is not None else self._taken_up())
            if self._has_admin
            else None
        )
        if taken is not None:
            uncaptured += tuple(
                f"{each.owner}.{each.name}"
                for each in captured
                if each.identity not in taken and self._is_selected(spec, each)
            )
            captured = tuple(each for each in captured if each.identity in taken)
        left = [table for table in captured if not self._is_selected(spec, table) or receivers.is_strayed(table)]
        strayed = tuple(f"{table.owner}.{table.name}" for table in left)
        renames = tuple(
            rename_statement(old, TableName.of(table))
            for table in left
            if (old := receivers.name_at_destinations(table)) is not None
        )
        lost = lost_columns(
            spec, self._site, lambda: source.table_versions(source.tables(spec.capture_rules(self._site)))
        )
        prefix = f"sites.{self._site} "
        refused = tuple(
            RefusedChanges(table=each.path.removeprefix(prefix), problem=each.problem, fix=each.fix)
            for each in source.refused_changes(
                spec.name,
                spec.capture_rules(self._site),
                listed_needs(spec, self._site),
                is_written=any(apply.site == self._site for apply in spec.applies),
            )
        )
        if told == self._told:
            self._tell(uncaptured, strayed, lost, renames, refused)
        return (*uncaptured, *strayed)

    def _tell(
        self,
        uncaptured: tuple[str, ...],
        strayed: tuple[str, ...],
        lost: tuple[str, ...],
        renames: tuple[str, ...],
        refused: tuple[RefusedChanges, ...],
    ) -> None:
        self.uncaptured, self.strayed, self.lost_columns, self.renames = uncaptured, strayed, lost, renames
        self.refused = refused
        self._told += 1

    def _taken_up(self) -> set[str] | None:
        """Return the identities of the tables that `up` has taken up; None: they are not recorded."""
        try:
            return set(json.loads(self._taken_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def _take_up(self, identities: Iterable[str]) -> None:
        replace_file(self._taken_file, json.dumps(sorted(identities)) + "\n")

    def _is_selected(self, spec: TopologySpec, table: CapturedTable) -> bool:
        return any(each.keeps(table.owner, table.name) for each in spec.capture_rules(self._site))
