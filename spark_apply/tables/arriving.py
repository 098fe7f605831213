"""Resolve which table arriving changes belong to: by the source's object number, not by the table's name.

The number is that of the table as of the change (`TableVersion.table_number`). A partition's changes carry its table's
number, even if the partition was created after the driver started or is dropped by now.

    number known, its own name         the table
    number known, a free name          it was renamed without DDL: the operator is asked to rename it at the destination
                                       (`copy.records.standing`)
    number known, another's name       the source swapped names without DDL: nothing fits until the operator has done so,
                                       and the apply process restarts
    number unknown                     not copied here: its rows are skipped, `status` says so, the next start copies it

Batches of an earlier format version carry the numbers of partitions instead. The source is asked once about such an
unknown number: a new partition belongs to its table. The table's changes, and everything behind them, wait for the
answer.

Where apply starts in a table is also recorded by the table's identity, because the record may hold a name from before a
rename.

A partition that is copied alone (`copy.records.parts`) has its own start, and its changes carry its number. A TRUNCATE
of the whole table would empty a partition whose copy is in progress. So the table waits at the TRUNCATE until the
partition is admitted: it is empty then, and the log has all its later rows.

Without a list of tables (simulations), tables are known by name only. With an empty list every arriving table is a
stranger.

Tables that DDL makes, drops and renames (`spark_apply.tables.unsettled`)
    From its CREATE TABLE on, a new table's rows pass. What the destination made of it decides the rest (`settle`): with
    a record the table is replicated, without one it is a stranger. Until then later transactions with its rows wait. A
    table that is in the list without a record is skipped, and so it stays if its CREATE TABLE is not made.
    A table has the name that the destination records for it. Behind a RENAME, the rows of the same transaction have the
    new one: its apply server has renamed the table, or refuses them. Later transactions wait until that is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.base.errors import UnfitTableError
from headrace.databases.ports import DdlOutcomeKind, DdlPlace, PartOf
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.table_name import TableName
from spark_apply.tables.unsettled import DdlFates, TableChanges, Unsettled, UnsettledDdl, recorded_table

if TYPE_CHECKING:
    from headrace.databases.ports import Instantiation
    from headrace.lcr.batch import TableVersion
    from headrace.lcr.ddl import DdlChange
    from spark_apply.apply_config import TableToInstantiate

__all__ = ["BEING_COPIED", "OLDER_THAN_COPY", "ArrivingTables", "TableStart", "restart_hint"]

BEING_COPIED = (
    "the table has no finished copy yet: a change that is older than the copy is not made, a later one is made when the"
    " table joins"
)
OLDER_THAN_COPY = "it is older than the table's copy, which brings rows alone: compare the tables"
"""Why a DDL LCR is only recorded; its rows are skipped in silence because the copy has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStart:
    """Where apply starts in a table's changes.

    Args:
        scn: the table's instantiation SCN; None: the copy is not finished, so the table is skipped.
        is_joining: changes up to `ApplyProgress.ahead_scn` were skipped before and are applied now.
        part: the partition; None: a table.
        is_awaited: DDL made the table, and nothing is recorded of it: its CREATE TABLE may still arrive.
    """

    scn: Scn | None
    is_joining: bool = False
    part: PartOf | None = None
    is_awaited: bool = False


_MADE = (DdlOutcomeKind.APPLIED, DdlOutcomeKind.PASSED_OVER)
_FROM_THE_START = TableStart(scn=FIRST_SCN)
_LEFT_OUT = TableStart(scn=None)
_NEVER = 1 << 62  # above every SCN
_UNRENAMED_HINT = (
    "`headrace errors FILE` shows the transaction: correct its cause and execute it, or delete it: then rename the table at"
    " the destination by hand"
)
_SOURCE_HINT = "nothing to do if the source is up; otherwise start it: apply continues when the source answers"
_UNSETTLED_HINT = (
    "`headrace errors FILE` shows the transaction: correct its cause and execute it, or delete it: then the table's rows"
    " are skipped, and the next `headrace up` copies the table"
)


def _first_scn(start: TableStart, ahead_scn: int) -> int:
    if start.scn is None:
        return _NEVER
    return start.scn if start.is_joining else max(start.scn, ahead_scn)


def restart_hint(apply: str) -> str:
    """Return the hint that makes an apply process find out which tables it replicates now."""
    return (
        f"headrace stop FILE apply:{apply}, then headrace start FILE apply:{apply}: the apply process then asks the"
        " source which table is which, and copies what is missing"
    )


class ArrivingTables:
    """Map arriving table versions to the tables of an apply process, and to where apply starts in each.

    Args:
        starts: the start of each (owner, name) at the destination and of each `PartOf.key`; a table without an entry is
            applied from the beginning.
        tables: the tables that the apply process replicates; None: tables are known by name only.
        apply: name of the apply process, for messages.
        topology: its name, under which records of new tables have their identity.
        unlisted: further tables that are applied, and the start of each (`copy.records.standing.unlisted`).
        identity_of: returns the identity of the captured table that now has an object number at the source. Empty: no
            table has it. None: the source was asked and has not answered yet.
    """

    def __init__(
        self,
        starts: Mapping[tuple[str, str], TableStart],
        tables: Sequence[TableToInstantiate] | None = None,
        identity_of: Callable[[int], str | None] = lambda number: "",  # noqa: ARG005
        *,
        apply: str = "",
        topology: str = "",
        unlisted: Iterable[tuple[TableToInstantiate, TableStart]] = (),
    ) -> None:
        self._identity_of, self._apply, self._topology = identity_of, apply, topology
        self._has_list, tables = tables is not None, tables or ()
        self._by_name = {table.destination: table for table in tables}
        self._by_identity = {table.identity: table for table in tables}
        self._by_number: dict[int, TableToInstantiate | None] = {
            int(number): table for table in tables for number in table.object_numbers
        }
        # By identity; by name if the list has no table of that name.
        self._starts: dict[str | tuple[str, str], TableStart] = {
            self._key(name): start for name, start in starts.items()
        }
        for table, start in unlisted:
            self._by_identity[table.identity], self._starts[table.identity] = table, start
            self._by_name.setdefault(table.destination, table)
            for number in table.object_numbers:
                self._by_number.setdefault(number, table)
        # Partitions with their own start, by number.
        self._parts = {start.part.number: start.part for start in starts.values() if start.part is not None}
        self.truncated_parts: dict[PartOf, Scn] = {}
        """Partitions whose copy is in progress while their table waits to be truncated → order SCN of the TRUNCATE."""
        self.truncated: dict[str, tuple[Scn, frozenset[int]]] = {}
        """The last TRUNCATE of partitions per table, by table identity: order SCN and partition numbers."""
        self.strangers: set[TableName] = set()
        """Names of tables whose rows are skipped because they were never copied here."""
        self._emptied: dict[str | tuple[str, str], Scn] = {}
        self.unsettled = Unsettled()
        """DDL LCRs that make or drop tables, until it is known what became of them."""
        self._called: dict[int, TableName] = {}  # by number: names that tables of the list have got since
        self.has_revoked = False
        """Whether a table was settled whose rows must not pass, so that rows selected before must be looked at again."""

    def note_emptied(self, version: TableVersion, scn: Scn) -> None:
        """Note that a skipped table is empty at `scn`, so that the log has all its later rows.

        Does nothing if the table is not skipped.

        Args:
            version: named as at the destination.
            scn: order SCN of the transaction that empties the table before any other change of it.
        """
        name, number = TableName.of(version), int(version.table_number)
        table = self._by_number.get(number, self._by_name.get(name))
        if number in self.unsettled.made or (table is None and (self._has_list or number in self._by_number)):
            return  # its rows pass, or it was never copied here
        key = name if table is None else table.identity
        if self._starts.get(key, _FROM_THE_START).scn is None:
            self._emptied[key] = scn

    def note_truncated(self, versions: Iterable[TableVersion], scn: Scn) -> None:
        """Note which partitions are truncated together.

        Args:
            versions: the versions that one TRUNCATE names.
            scn: its order SCN.
        """
        numbers: dict[str, set[int]] = {}
        for version in versions:
            table = self._by_number.get(int(version.table_number))
            if version.partition is not None and table is not None:
                numbers.setdefault(table.identity, set()).add(int(version.object_number))
        self.truncated |= {identity: (scn, frozenset(found)) for identity, found in numbers.items()}

    def emptied_scn(self, name: tuple[str, str]) -> Scn | None:
        """Return where a skipped table, named as at the destination, was last emptied (`note_emptied`)."""
        return self._emptied.get(self._key(name))

    def leave_out(self, names: Collection[tuple[str, str]], parts: Collection[PartOf] = ()) -> None:
        """Skip all further changes of these tables, named as at the destination."""
        self._parts |= {part.number: part for part in parts}
        keys = {self._key(name) for name in (*names, *(part.key for part in parts))}
        # The copy of a table includes its partitions, also those that were to be copied alone.
        for number, part in list(self._parts.items()):
            if part.table in keys:
                del self._parts[number]
                self._starts.pop(part.key, None)
                self.truncated_parts.pop(part, None)
        self._starts |= dict.fromkeys(keys, _LEFT_OUT)

    def admit(self, parts: Mapping[PartOf, Scn]) -> None:
        """Apply these partitions from the TRUNCATE on that empties them.

        Args:
            parts: partition → order SCN of the TRUNCATE of its table.
        """
        for part, scn in parts.items():
            self._starts[part.key] = TableStart(scn=scn)
            self.truncated_parts.pop(part, None)

    def check_truncate(self, version: TableVersion, scn: Scn) -> None:
        """Check that no partition of a table truncated as a whole is being copied, or was copied later.

        Args:
            version: the table's version, named as at the destination.
            scn: the order SCN of the TRUNCATE.

        Raises:
            UnfitTableError: a partition is; it stays in `truncated_parts` until it is admitted.
        """
        table = self._by_number.get(int(version.table_number))
        if version.partition is not None or table is None:
            return
        waits = False
        for part in self._parts.values():
            start = self._starts.get(part.key, _FROM_THE_START)
            if part.table == table.identity and (start.scn is None or start.scn > scn):
                self.truncated_parts[part] = scn
                waits = True
        if waits:
            raise UnfitTableError(
                f"TRUNCATE of {version.qualified_name} waits for the copy of a partition of the table to end",
                hint="nothing to do: the copy ends by itself, because the TRUNCATE empties the partition",
                table=version.qualified_name,
            )

    def join(self, copied: Sequence[Instantiation]) -> None:
        """Apply these tables from the SCNs of their copies on, whatever name each was recorded under."""
        for each in copied:
            key = each.identity if each.identity in self._by_identity else each.key
            self._starts[key] = TableStart(scn=each.scn, is_joining=True)
        self._parts |= {part.number: part for each in copied if (part := PartOf.of(each.identity)) is not None}

    def all_joined(self) -> None:
        """Note that every joining table has caught up with the others."""
        joined = {key: replace(start, is_joining=False) for key, start in self._starts.items() if start.is_joining}
        self._starts.update(joined)

    def first_scn(self, version: TableVersion, ahead_scn: int) -> int:
        """Return the SCN below which changes of a table are skipped.

        They are in its copy, applied already, or skipped until the table has joined.

        Args:
            version: as it arrives; a table with an unknown number counts by its name, until `resolve`.
            ahead_scn: every table is applied up to here, except joining ones.
        """
        name, number = TableName.of(version), int(version.table_number)
        if (made := self.unsettled.made.get(number)) is not None:
            return max(made.place.order_scn, ahead_scn)
        table = self._by_number.get(number, self._by_name.get(name))
        if table is None and number in self._by_number:
            return _NEVER
        first = _first_scn(self._starts.get(name if table is None else table.identity, _FROM_THE_START), ahead_scn)
        part = self._parts.get(int(version.object_number))
        if part is None or first == _NEVER:
            return first
        start = self._starts.get(part.key, _FROM_THE_START)
        own = _first_scn(start, ahead_scn)
        return own if start.is_joining else max(first, own)

    def ddl_refusal(self, version: TableVersion, scn: int, ahead_scn: int) -> str | None:
        """Return why a DDL LCR of a table is only recorded; empty: it is made.

        None: it is dropped, because it was handled before, or its table was never copied here.

        Args:
            version: the table, named as at the destination.
            scn: order SCN of the DDL LCR.
            ahead_scn: every table is applied up to here, except joining ones.
        """
        name, number = TableName.of(version), int(version.table_number)
        if number in self.unsettled.made:
            return "" if scn >= ahead_scn else None
        table = self._by_number.get(number, self._by_name.get(name))
        if table is None and number in self._by_number:
            return None
        start = self._starts.get(name if table is None else table.identity, _FROM_THE_START)
        is_new = start.is_joining and start.scn is not None and scn >= start.scn
        if scn < ahead_scn and not is_new:
            return None  # made, or recorded while the table was skipped
        if start.scn is None:
            return BEING_COPIED
        return OLDER_THAN_COPY if scn < start.scn else ""

    def lacks_columns(self, version: TableVersion) -> bool:
        """Return whether transformations on the way drop columns of a table.

        The order of the other columns then does not show which one was renamed.

        Args:
            version: named as at the destination.
        """
        number = int(version.table_number)
        table = self._by_number.get(number) or self._by_name.get(TableName.of(version))
        return (
            table is not None
            and number not in self.unsettled.made
            and any(each.leaves_out for each in table.transformations)
        )

    def _key(self, name: tuple[str, str]) -> str | tuple[str, str]:
        table = self._by_name.get(TableName(*name))
        return name if table is None else table.identity

    def is_unknown(self, version: TableVersion) -> bool:
        """Return whether it is not known yet which table a version belongs to."""
        number = int(version.table_number)
        return self._has_list and number not in self._by_number and number not in self.unsettled.made

    def resolve(self, version: TableVersion) -> None:
        """Find out which table an unknown version belongs to; only for changes that the rules take.

        It stays unknown until the source has answered.
        """
        name, number = TableName.of(version), int(version.table_number)
        table: TableToInstantiate | None = None
        if not version.root_number:
            identity = self._identity_of(number)
            if identity is None:
                return
            # A number that is not captured any more was dropped since: a partition, if the table's name is known.
            table = self._by_identity.get(identity) if identity else self._by_name.get(name)
        self._by_number[number] = table
        if table is None:
            self.strangers.add(name)

    def check_name(self, version: TableVersion, order_scn: Scn = FIRST_SCN) -> None:
        """Check that the arriving table is known, and that its name is not another table's at the destination.

        Args:
            version: named as at the destination.
            order_scn: of the transaction with its changes.

        Raises:
            UnfitTableError: the table is not known yet, or its name is another table's. Or DDL made it in an earlier
                transaction, and it is not settled: nobody knows whether its rows belong here.
        """
        if self.is_unknown(version):
            raise UnfitTableError(
                f"rows of {version.qualified_name} come from a partition that apply does not know, and its source does"
                " not answer which table it belongs to",
                hint=_SOURCE_HINT,
                table=version.qualified_name,
            )
        number, name = int(version.table_number), TableName.of(version)
        made, renaming = self.unsettled.made.get(number), self.unsettled.renaming(number)
        if made is not None and order_scn > made.place.order_scn:
            raise UnfitTableError(
                f"changes of {version.qualified_name} wait for the CREATE TABLE of the table, whose transaction is in"
                " the error queue",
                hint=_UNSETTLED_HINT,
                table=version.qualified_name,
            )
        if renaming is not None and order_scn > renaming.place.order_scn:
            raise UnfitTableError(
                f"changes of {version.qualified_name} wait for the RENAME of {renaming.name}, whose transaction is in"
                " the error queue",
                hint=_UNRENAMED_HINT,
                table=version.qualified_name,
            )
        if made is not None:
            self._check_former(made.name, order_scn)
        table = self._by_number.get(number) if made is None else made.table
        if made is None and renaming is None and table is not None and name != table.destination:
            self._called[number] = name
        moved = self._moved(order_scn)
        holder = moved.get(name, self.unsettled.names.get(name))
        known = self._by_name.get(name) if holder is None and name not in moved else None
        # While a table of the list is not made, its name may be the former holder's.
        if known is not None and not (
            self._is_awaited(known) and (order_scn < known.as_of or (table is not None and table.destination == name))
        ):
            holder = known
        if table is not None and holder is not None and holder is not table:
            raise UnfitTableError(
                f"the source calls {table.source} now {TableName.of(version)}, which is another table's name at the"
                " destination: their changes would be mixed up",
                hint=f"give the tables their new names at the destination, too; {restart_hint(self._apply)}"
                if table.takes_ddl
                else restart_hint(self._apply),
                table=version.qualified_name,
            )

    def _moved(self, order_scn: int) -> dict[TableName, TableToInstantiate | None]:
        """Return who has a name behind the DDL LCRs of a transaction that is not settled; None: nobody any more.

        Empty if it renames no table. The apply server makes each of its changes, or refuses what comes behind it.
        """
        found: dict[TableName, TableToInstantiate | None] = {}
        for each in self.unsettled.of_transaction(order_scn):
            made = self.unsettled.made.get(each.number)
            table = self._by_number.get(each.number) if made is None else made.table
            if each.table is not None:
                found[each.name] = each.table
                continue
            if not each.leaves and found.get(each.name, table) is table:
                found[each.name] = None
            if each.name_after is not None:
                found[each.name_after] = table
        return found

    def _check_former(self, name: TableName, order_scn: int) -> None:
        """Check that no replicated table that the source has renamed still holds the name of a new one.

        The list has it under its former name. With that name gone to the new table, its later changes would be a
        stranger's.

        Raises:
            UnfitTableError: one holds it. The next driver's list has it under its name of then.
        """
        former = self._by_name.get(name)
        if former is None or self._is_awaited(former):
            return
        if any(
            each.name_after is not None and each.number in former.object_numbers
            for each in self.unsettled.of_transaction(order_scn)
        ):
            return  # the destination refuses the new table if it does not rename this one before
        called = {self._called[number] for number in former.object_numbers if number in self._called} - {name}
        if called:
            other = min(called)
            raise UnfitTableError(
                f"the source has a new table {name}, and calls the former one {other} now: apply would take the changes"
                " of the one for the other's",
                hint=f"rename the former one at the destination, too, to {other}; {restart_hint(self._apply)}",
                table=str(name),
            )

    # ------------------------------------------------------------------ tables that DDL makes and drops

    def passes_uncopied(self, change: DdlChange, name: TableName) -> bool:
        """Return whether a DDL LCR goes to the destination although its table has no copy here.

        That is a new table, which gets its record there; one that is not in the log, to be recorded as such; and the
        DROP of a table that was dropped at the source before the driver started, so that its list lacks it.

        Args:
            change: as it arrives.
            name: of its table at the destination.
        """
        number = int(change.object_number)
        known = self._by_number.get(number)
        if (creation := change.creation) is not None:
            identity = creation.identities.get(self._topology)
            if identity is None:
                return known is None
            # Under another identity it was taken out of the log since, and put back: it is copied.
            return (
                number in self.unsettled.made
                or (known is None and identity not in self._by_identity)
                or (known is not None and known.identity == identity and self._is_awaited(known))
            )
        if not change.drops or known is not None or number in self.unsettled.made:
            return False
        # The name's holder is not this table, and so the destination's table of that name is not this table's either,
        # unless the holder is still to be made.
        holder = self._by_name.get(name)
        return holder is None or self._is_awaited(holder)

    def _is_awaited(self, table: TableToInstantiate) -> bool:
        return self._starts.get(table.identity, _FROM_THE_START).is_awaited

    def note_ddl(self, change: DdlChange, place: DdlPlace) -> None:
        """Note a DDL LCR that goes to the destination: from now on the rows of a table that it makes pass.

        Args:
            change: named as at the destination; one that is only recorded there is not noted.
            place: its own.
        """
        number, creation = int(change.object_number), change.creation
        known = self._by_number.get(number)
        if known is None and number not in self.unsettled.made and not self.passes_uncopied(change, change.base_table):
            return  # an unknown table's
        if change.leaves_rules:
            self.unsettled.add(UnsettledDdl(place=place, name=change.base_table, number=number, leaves=True))
        called = change.name_after
        if known is not None and called is not None:
            self._called[number] = called
        if creation is not None:
            identity = creation.identities.get(self._topology)
            if identity is None:
                self._by_number.setdefault(number, None)
            elif known is None or self._is_awaited(known):
                table = recorded_table(identity, change.base_table, number) if known is None else known
                self.unsettled.add(UnsettledDdl(place=place, name=change.base_table, number=number, table=table))
        elif change.drops:
            if number not in self.unsettled.made:
                self._by_number.setdefault(number, None)
            self.unsettled.add(UnsettledDdl(place=place, name=change.base_table, number=number))
        elif called is not None and called != change.base_table:
            self.unsettled.add(UnsettledDdl(place=place, name=change.base_table, number=number, name_after=called))

    def settle(self, fates: DdlFates) -> TableChanges:
        """Take up what the destination made of DDL LCRs; one of which nothing is known yet stays unsettled.

        Args:
            fates: of all unsettled ones.

        Returns:
            The tables that are replicated from now on, those that are not any more, and those that were renamed.
        """
        names = {table.identity: table.destination for table in self._by_identity.values()}
        added: list[tuple[TableToInstantiate, Instantiation]] = []
        removed: list[TableToInstantiate] = []
        for each in self.unsettled:
            outcome = fates.outcomes.get(each.place)
            record = None if each.table is None else fates.records.get(each.table.identity)
            if each.table is not None and record is not None:
                removed += self._made(each, each.table, record, fates)
                added.append((each.table, record))
            elif outcome is None:
                continue
            elif each.leaves:
                if (table := self._by_number.get(each.number)) is not None:
                    self._starts[table.identity] = _LEFT_OUT
                    self.has_revoked = True
            elif each.name_after is not None:
                if outcome in _MADE and (table := self._by_number.get(each.number)) is not None:
                    # The driver may have started behind it: then the source's name is a later one already.
                    self._renamed(
                        table, each.name_after, each.name_after if table.source == each.name else table.source
                    )
            elif each.table is not None:
                # Made, and without a record: dropped since.
                self._not_made(each, each.table, is_gone=outcome in _MADE)
            elif outcome in _MADE:
                removed += self._dropped(each)
            self.unsettled.remove(each.place)
        still = {table.identity: table for table in self._by_identity.values()}
        return TableChanges(
            added=tuple((still[each.identity], record) for each, record in added if each.identity in still),
            removed=tuple(table for table in removed if table.identity not in still),
            renamed=tuple(
                (still[identity], name)
                for identity, name in names.items()
                if identity in still and still[identity].destination != name
            ),
        )

    def _made(
        self, ddl: UnsettledDdl, table: TableToInstantiate, record: Instantiation, fates: DdlFates
    ) -> Sequence[TableToInstantiate]:
        """Apply a table from its CREATE TABLE on, or from its copy if the record demands one.

        Returns the holder of its name in the list: it is gone, or it is made later, and is new again until then. One that
        the destination calls otherwise by now is neither: it was renamed there by hand.
        """
        is_listed, is_done = table.identity in self._by_identity, record.state == "DONE"
        former = self._by_name.get(ddl.name)
        gone: Sequence[TableToInstantiate] = ()
        if former is not None and former.identity != table.identity:
            has_moved = fates.records.get(former.identity)
            if has_moved is not None and has_moved.name_now is not None and has_moved.name_now != ddl.name:
                self._renamed(former, TableName(*has_moved.name_now), former.source)
            else:
                gone = self._forgotten(former)
        if is_listed and table.destination != ddl.name:
            table = self._renamed(table, ddl.name, table.source)  # the list has it as it is called later
        if not is_listed:
            self._by_identity[table.identity] = self._by_name[ddl.name] = table
        self._by_number[ddl.number] = table
        if not is_listed or self._is_awaited(table):
            self._starts[table.identity] = TableStart(scn=record.scn) if is_done else _LEFT_OUT
        self.has_revoked |= not is_done
        self.strangers.discard(ddl.name)
        return gone

    def _renamed(self, table: TableToInstantiate, name: TableName, source: TableName) -> TableToInstantiate:
        """Give a table the name that it has at the destination now; return it.

        Args:
            table: the table.
            name: its name.
            source: its name at the source.
        """
        new = replace(table, destination=name, source=source)
        if self._by_name.get(table.destination) is table:
            del self._by_name[table.destination]
        self._by_name[name] = new
        self._by_identity[table.identity] = new
        for number, known in list(self._by_number.items()):
            if known is table:
                self._by_number[number] = new
                self._called.pop(number, None)
        self.strangers.discard(name)
        return new

    def _not_made(self, ddl: UnsettledDdl, table: TableToInstantiate, *, is_gone: bool) -> None:
        """Skip the rows of a table that the destination does not have; one of the list is copied when it can be."""
        self.has_revoked = True
        if table.identity in self._by_identity:
            if self._is_awaited(table):
                self._starts[table.identity] = _LEFT_OUT
            return
        self._by_number[ddl.number] = None
        if not is_gone:
            self.strangers.add(ddl.name)

    def _dropped(self, ddl: UnsettledDdl) -> Sequence[TableToInstantiate]:
        table = self._by_number.get(ddl.number)
        self._by_number[ddl.number] = None
        self.strangers.discard(ddl.name)
        return () if table is None else self._forgotten(table)

    def _forgotten(self, table: TableToInstantiate) -> Sequence[TableToInstantiate]:
        """Forget a table that is gone at both sites, or not made yet; return it."""
        numbers = [number for number, known in self._by_number.items() if known is table]
        for number in numbers:
            if self._is_awaited(table):
                del self._by_number[number]
            else:
                self._by_number[number] = None
        self._by_identity.pop(table.identity, None)
        if self._by_name.get(table.destination) is table:
            del self._by_name[table.destination]
        for number, part in list(self._parts.items()):
            if part.table == table.identity:
                del self._parts[number]
                self._starts.pop(part.key, None)
                self.truncated_parts.pop(part, None)
        self._starts.pop(table.identity, None)
        self._emptied.pop(table.identity, None)
        self.truncated.pop(table.identity, None)
        return (table,)
