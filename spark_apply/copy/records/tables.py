"""Records of an apply process's tables at the destination, and what operators see of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.databases.ports import AWAITING, BEGUN, Carried, Instantiation, PartOf
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.lcr.table_name import TableName
from spark_apply.copy.records.parts import begun_part, parts_of
from spark_apply.copy.records.renames_in_flight import parked_problem, with_recorded_names
from spark_apply.copy.records.restarts import TableRestarts
from spark_apply.copy.records.standing import Standing, remade_problem, rename_fix, standings

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationDatabase, OtherCopy
    from spark_apply.apply_config import ApplyConfig, TableToInstantiate

__all__ = ["TableProgress", "TableRecords", "to_be_copied_again"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress:
    """Progress of a table's instantiation, for operators.

    Args:
        owner, name: the table.
        state: one of those in `spark_apply.copy.instantiation`.
        rows, rows_estimated: copied, and estimated by the source.
        bytes_done, bytes_total: of the source's file.
        scn: the instantiation SCN.
        problem: why it is FAILED, or why the last attempt failed.
        obsolete_errors: how many error transactions its last copy made obsolete; they were deleted.
    """

    owner: str
    name: str
    state: str = "PENDING"
    rows: int = 0
    rows_estimated: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    scn: int = 0
    problem: str = ""
    obsolete_errors: int = 0

    @classmethod
    def of(cls, name: TableName, record: Instantiation) -> TableProgress:
        """Return what a record says of a table.

        Args:
            name: of the table at the destination.
            record: its record, which may have an earlier name.
        """
        return cls(
            owner=name.owner,
            name=name.name,
            state=record.state,
            rows=record.row_count,
            scn=record.scn,
            problem=record.problem,
        )


_NOTHING = TableProgress(owner="", name="")
_TO_BE_COPIED_AGAIN = "to be copied again"


def _awaits_ddl(until: Scn) -> str:
    return (
        "waits for its CREATE TABLE to arrive; if that has not come when everything up to SCN"
        f" {scn_text(until)} is applied, the table is copied: create it here, with the same columns, if it is missing then"
    )


def to_be_copied_again(record: Instantiation) -> Instantiation:
    """Return the record of a table that must be emptied and copied again, whoever wrote its rows."""
    return replace(record, state="COPYING", scn=max(record.scn, Scn(1)), problem=_TO_BE_COPIED_AGAIN)


@dataclass(slots=True, kw_only=True)
class TableRecords:
    """The records of an apply process's tables and their progress. One thread at a time.

    Args:
        config: of the apply process.
        destination: the destination database.
        epoch: of this driver.
        moved: called when a table's progress changes.
        progress: the progress shown last.
        twice: why a renamed table cannot continue, by its current name: the destination has tables of both names.
        gone: identities of tables that the source dropped before they were copied.
        failing: why the last copy of a table failed that is retried; shown until the copy is proved equal.
        left: names of tables that are shown although their changes no longer arrive.
        again: names of tables that must be copied again, and that this driver has not begun.
        changed: what to do about tables whose rows changed at the source without events, by identity
            (`spark_apply.copy.marks.row_marks`).
        waits: why tables wait for the copies of other apply processes, by name at the destination.
        restarts: tables whose last copy must be repeated for no fault of theirs.
        obsolete: how many error transactions the copies of this driver made obsolete, by the table that was copied
            last.
        applied_scn: everything below this is applied, apart from skipped and joining tables; it was read before the
            records, so that a new table (`TableToInstantiate.as_of`) whose CREATE TABLE is applied has its record.
        parked: new tables that are not in the list until their CREATE TABLE arrives, because a renamed table still has
            their name (`copy.records.renames_in_flight`).
    """

    config: ApplyConfig
    destination: DestinationDatabase
    epoch: int
    moved: Callable[[TableProgress], None]
    progress: dict[TableName, TableProgress] = field(default_factory=dict)
    twice: dict[TableName, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    failing: dict[TableName, str] = field(default_factory=dict)
    left: set[TableName] = field(default_factory=set)
    again: set[TableName] = field(default_factory=set)
    waits: dict[TableName, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    restarts: TableRestarts = field(default_factory=TableRestarts)
    obsolete: Counter[TableName] = field(default_factory=Counter)
    applied_scn: Scn = FIRST_SCN
    parked: tuple[TableToInstantiate, ...] = ()
    _recorded: set[str] = field(default_factory=set)  # identities of tables that had a record
    _shown: set[TableName] = field(default_factory=set)  # names of tables that were shown the last time
    _shown_parts: set[TableName] = field(default_factory=set)  # names of partitions that had a record the last time
    # partitions that have not joined, by the names of their tables at the source
    _parts: dict[TableName, str] = field(default_factory=dict)

    def standings(self, *, show: bool = True) -> tuple[Standing, ...]:
        """Return every table's standing, by the current records.

        Raises:
            DatabaseUnavailable: the destination does not answer.
        """
        ours = self._read()
        # The record may have a name already under which the loop's thread has not taken the table up.
        tables, _ = with_recorded_names(self.config.tables, ours)
        found = standings((*tables, *parts_of(tables, ours)), ours)
        for each in found:
            if each.is_finished or each.is_copied:  # another table's copy ended its wait
                self.waits.pop(each.table.destination, None)
        self._parts = {
            each.table.part_of: str(each.table.source)
            for each in found
            if each.table.part_of is not None and not (each.is_finished and not each.is_joining)
        }
        self._recorded |= {each.table.identity for each in found if each.record is not None}
        for name in self._shown_parts - {each.table.destination for each in found}:  # their table is copied again
            if name in self.progress:
                self._show_gone(name)
        self._shown_parts = {each.table.destination for each in found if each.table.part_of is not None}
        for each in found if show else ():
            if each.table.identity in self.gone or self._is_of_its_table(each):
                continue
            awaits = self.awaits_ddl(each)
            self.show_recorded(
                each.table.destination, each.record, awaits_ddl_until=each.table.as_of if awaits else None
            )
            if each.table.destination not in self.twice:
                self._show_changed(each)
        if show:
            self._show_dropped(found)
            self._show_left(ours)
            self._show_parked(found, ours)
        return found

    def _read(self) -> list[Instantiation]:
        """Return the records of the source's tables."""
        recorded = self.destination.instantiations(self.config.topology, self.config.apply)
        return [each for each in recorded if each.source == self.config.source.site]

    def take_recorded_names(self) -> None:
        """Take the tables as the destination calls them, before anything else reads them; for a driver that starts.

        Raises:
            DatabaseUnavailable: the destination does not answer.
        """
        ours = self._read()
        named, self.parked = with_recorded_names(self.config.tables, ours)
        for table in self.parked:
            self.config.replicated.remove(table.identity)
        self.config.replicated.put(*named)

    def _show_parked(self, found: Sequence[Standing], recorded: Sequence[Instantiation]) -> None:
        """Show the tables whose CREATE TABLE did not bring them back into the list, although it is applied."""
        known = {each.identity for each in recorded} | {each.table.identity for each in found}
        for table in self.parked:
            if table.identity in known or table.as_of > self.applied_scn:
                continue
            name = table.destination
            holder = next((each.table for each in found if each.table.destination == name), None)
            problem = parked_problem(table, holder)
            self.show(TableProgress(owner=name.owner, name=name.name, state="FAILED", problem=problem))

    def awaits_ddl(self, each: Standing) -> bool:
        """Return whether DDL decides about a table without a record: its CREATE TABLE may arrive, or its DROP did."""
        table = each.table
        return each.record is None and (table.as_of > self.applied_scn or table.identity in self._recorded)

    def _show_dropped(self, found: Sequence[Standing]) -> None:
        """Show that tables are gone which DDL dropped."""
        names = {each.table.destination for each in found if each.table.part_of is None}
        for name in self._shown - names - self._shown_parts - self.left:
            if name in self.progress:
                self._show_gone(name)
        self._shown = names

    def _is_of_its_table(self, each: Standing) -> bool:
        """Return whether it is a partition that has joined; such a partition is no longer shown."""
        if each.table.part_of is None or not each.is_finished or each.is_joining:
            return False
        if each.table.destination in self.progress:
            self._show_gone(each.table.destination)
        return True

    def part_of(self, table: TableToInstantiate) -> str:
        """Return a partition of a table that is copied alone and has not joined; empty: no such one."""
        return self._parts.get(table.source, "")

    def _show_gone(self, name: TableName) -> None:
        self.show(TableProgress(owner=name.owner, name=name.name, state="GONE"))
        del self.progress[name]

    def begin_parts(self, whole: Standing, parts: Mapping[str, TableName]) -> None:
        """Record and show partitions that are to be copied alone.

        Args:
            whole: their table.
            parts: their names here, by their numbers at the source.
        """
        assert whole.record is not None
        recorded = self.destination.instantiations(self.config.topology, self.config.apply)
        for number, name in parts.items():
            # Remove a partition that left and had this name: both would be shown as one.
            former = [
                each.identity
                for each in recorded
                if TableName.of(each) == name
                and (part := PartOf.of(each.identity)) is not None
                and part.table == whole.table.identity
            ]
            record = begun_part(whole.record, number, name)
            self.destination.record_instantiation(
                self.config.topology, self.config.apply, self.epoch, record, replaces=former
            )
            self.show_recorded(name, record)

    def rename_part(self, part: Standing, name: TableName) -> None:
        """Record a partition under its current name at the source, which it should have here too."""
        assert part.record is not None
        if part.table.destination in self.progress:
            self._show_gone(part.table.destination)
        self.put(replace(part.record, owner=name.owner, name=name.name))

    def forget_part(self, part: Standing, whole: Standing) -> None:
        """Remove the record of a partition that left its table while it was copied or pending."""
        assert whole.record is not None
        self.destination.record_instantiation(
            self.config.topology,
            self.config.apply,
            self.epoch,
            whole.record,
            replaces=[part.table.identity],
        )
        self._show_gone(part.table.destination)

    def _show_left(self, recorded: Sequence[Instantiation]) -> None:
        """Show the tables that were copied here and whose changes no longer arrive, while the destination has them.

        Not shown are partitions of a table that arrives, and tables that another apply process copied: their rows are
        replicated.
        """
        identities = {table.identity for table in self.config.tables}
        names = {table.destination for table in self.config.tables}
        left = {
            TableName.of(each): each
            for each in recorded
            if each.state == "LEFT"
            and each.identity not in identities
            and TableName.of(each) not in names
            and (found := self.destination.describe(each.owner, each.name)) is not None
            and not (found.above and TableName(*found.above) in names)
            and all(
                other.is_awaiting
                for other in self.destination.other_copies(
                    self.config.topology, self.config.apply, each.owner, each.name
                )
            )
        }
        for name in self.left - left.keys():
            self.show(TableProgress(owner=name.owner, name=name.name, state="GONE"))
        self.left = set(left)
        for name, record in left.items():
            self.show(
                TableProgress(owner=name.owner, name=name.name, state="LEFT OUT", rows=record.row_count, scn=record.scn)
            )

    def others(self, table: TableToInstantiate) -> tuple[OtherCopy, ...]:
        """Return the records of other apply processes for a table's destination table."""
        return self.destination.other_copies(self.config.topology, self.config.apply, *table.destination)

    def is_awaiting_now(self, table: TableToInstantiate) -> bool:
        """Return whether an AWAITING table still is: another table's copy may have ended its wait."""
        recorded = self.destination.instantiations(self.config.topology, self.config.apply)
        return any(each.identity == table.identity and each.state == AWAITING for each in recorded)

    def copy_again(self, tables: Collection[TableName]) -> None:
        """Note tables (named as at the destination) that must be copied again, and show that at once.

        May be called on any thread.
        """
        self.again |= set(tables)
        for table in tables:
            self.obsolete.pop(table, None)
        for table in tables:
            self.show_recorded(table, None)

    def wait(self, waits: Mapping[TableName, str]) -> None:
        """Show which tables wait for the copies of other apply processes, and why; all others stop waiting."""
        self.waits = dict(waits)
        for table in self.waits:
            self.show_recorded(table, None)

    def put(self, record: Instantiation) -> None:
        """Write a record as it is, without showing it."""
        self.destination.record_instantiation(self.config.topology, self.config.apply, self.epoch, record)

    def settle(self, record: Instantiation) -> None:
        """Write a record and show it."""
        self.put(record)
        self.show_recorded(TableName.of(record), record)

    def record(  # noqa: PLR0913 - the recorded values, and the condition for recording them
        self,
        table: TableToInstantiate,
        scn: Scn,
        state: str,
        *,
        rows: int = 0,
        estimated: int = 0,
        digest: str = "",
        problem: str = "",
        replaces: Collection[str] = (),
        beside: Collection[OtherCopy] | None = None,
        carries: Sequence[Carried] = (),
    ) -> bool:
        """Record a table's state, and show it.

        Args:
            table: the table.
            scn: of its snapshot.
            state: one of those in `spark_apply.copy.instantiation`.
            rows: copied.
            estimated: number of rows by the source's estimate.
            digest: of the rows.
            problem: why it is FAILED, or is copied again.
            replaces: identities of records that are removed with it.
            beside: as for `DestinationDatabase.record_instantiation`.
            carries: as for `DestinationDatabase.record_instantiation`.

        Returns:
            Whether it is recorded.
        """
        is_recorded = self.destination.record_instantiation(
            self.config.topology,
            self.config.apply,
            self.epoch,
            Instantiation(
                source=self.config.source.site,
                identity=table.identity,
                owner=table.destination.owner,
                name=table.destination.name,
                scn=scn,
                state=state,
                row_count=rows,
                digest=digest,
                problem=problem,
            ),
            replaces=replaces,
            beside=beside,
            carries=carries,
        )
        if not is_recorded:
            return False
        if state == AWAITING:
            self.show(TableProgress(owner=table.destination.owner, name=table.destination.name))
            return True
        failing = self.failing.get(table.destination, "") if state in BEGUN else ""
        self.show(
            TableProgress(
                owner=table.destination.owner,
                name=table.destination.name,
                state="FAILED" if failing else state,
                rows=rows,
                rows_estimated=estimated,
                scn=scn,
                problem=failing or problem,
            )
        )
        return True

    def fail_at_once(self, each: Standing, problem: str) -> None:
        """Report why the table cannot be copied; the record of its rows stays, because they have not changed."""
        table, record = each.table, each.record
        if record is not None and record.state == "LEFT":
            self.show(
                TableProgress(
                    owner=table.destination.owner, name=table.destination.name, state="FAILED", problem=problem
                )
            )
            return
        beside = None
        if each.is_awaiting:
            # Another table's copy may have ended its wait: `beside` contains that, or the next check sees it.
            beside = self.others(table)
            if any(other.is_copying for other in beside):  # its copy may be about to end the wait
                self.show(
                    TableProgress(
                        owner=table.destination.owner, name=table.destination.name, state="FAILED", problem=problem
                    )
                )
                return
            if not self.is_awaiting_now(table):
                return
        scn = record.scn if record is not None and each.is_begun else Scn(0)
        self.record(table, scn, "FAILED", problem=problem, beside=beside)

    def show_recorded(
        self, name: TableName, found: Instantiation | None, *, awaits_ddl_until: Scn | None = None
    ) -> None:
        """Show the record of a table.

        A failed copy stays on display if the record only says that the table left.

        Args:
            name: of the table at the destination.
            found: its record; None: it has none, and is shown as PENDING.
            awaits_ddl_until: it waits for its CREATE TABLE, which is not above this SCN.
        """
        if name in self.twice:
            self.show(TableProgress(owner=name.owner, name=name.name, state="FAILED", problem=self.twice[name]))
        elif name in self.again:
            self.show(TableProgress(owner=name.owner, name=name.name, state="COPYING", problem=_TO_BE_COPIED_AGAIN))
        elif found is None or name in self.waits or found.state == AWAITING:
            why = self.waits.get(name, "" if awaits_ddl_until is None else _awaits_ddl(awaits_ddl_until))
            self.show(TableProgress(owner=name.owner, name=name.name, problem=why))
        elif self.progress.get(name, _NOTHING).state != "FAILED" or found.state != "LEFT":
            self.show(TableProgress.of(name, found))

    def note_changed(self, found: Sequence[Standing], changed: Mapping[str, str]) -> None:
        """Show exactly the tables whose rows changed at the source without events.

        Args:
            found: the standing of every table.
            changed: what to do about them, by identity.
        """
        before, self.changed = self.changed, dict(changed)
        for each in found:
            if before.get(each.table.identity) != changed.get(each.table.identity):
                self.show_recorded(each.table.destination, each.record)
                self._show_changed(each)

    def _show_changed(self, each: Standing) -> None:
        """Show what happened to a copied table at the destination or at the source; its changes are still applied."""
        name, record = each.table.destination, each.record
        if record is None or not each.is_finished or name in self.again:
            return
        problems = (
            [remade_problem(name, source=each.table.source, may_be_copied=each.table.may_empty)]
            if each.is_remade
            else []
        )
        problems += [self.changed[each.table.identity]] if each.table.identity in self.changed else []
        if problems:
            self.show(
                TableProgress(
                    owner=name.owner,
                    name=name.name,
                    state=record.state,
                    rows=record.row_count,
                    scn=record.scn,
                    problem="; ".join(problems),
                )
            )

    def show_awaited(self, each: Standing) -> None:
        """Show that a copied table cannot join until an operator has renamed it at the destination."""
        assert each.record is not None
        old, new = TableName.of(each.record), each.table.destination
        self.show(
            TableProgress(
                owner=new.owner,
                name=new.name,
                state="FAILED",
                rows=each.record.row_count,
                scn=each.record.scn,
                problem=f"it is copied, and the source renamed it: {rename_fix(self.destination, old, new, {})} Then"
                " its changes are applied",
            )
        )

    def show(self, progress: TableProgress) -> None:
        """Report a table's progress."""
        name = TableName(progress.owner, progress.name)
        self.progress[name] = replace(progress, obsolete_errors=self.obsolete[name])
        self.moved(self.progress[name])
