"""Which table the changes that arrive belong to: by the source's object number, and not by what it is called.

The number is that of the table as of the change (`TableVersion.table_number`): a partition's changes have their
table's, also of a partition that was made since the driver began, or that is dropped by now.

    number known, its own name         the table
    number known, a free name          it was renamed: the destination is asked to rename it (`spark_apply.copy.records.standing`)
    number known, another one's name   the source exchanged names: nothing fits until the apply process starts again and asks which is which
    number unknown                     the table was not copied here: its rows are left out, `status` says so, and the next start copies it

Batches of an earlier version have the numbers of partitions instead. Of such a number that is unknown the source is
asked, once: a new partition is its table's. The changes of that table wait for the answer, and everything behind them.

From where a table is applied is kept by its identity, too: its record may still have the name of before a rename.

A partition that is copied alone (`spark_apply.copy.records.parts`) has a start of its own; its changes come with its number. A
TRUNCATE of the whole table would empty a partition that is being copied. The table waits there until the partition is
admitted: it is empty then, and the log has all its rows. Without a list of tables (simulations) names are all that is
known. A list that is empty is one: then everything that arrives is a stranger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.base.errors import UnfitTableError
from headrace.databases.ports import PartOf
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    from headrace.databases.ports import Instantiation
    from headrace.lcr.batch import TableVersion
    from spark_apply.apply_config import TableToInstantiate

__all__ = ["ArrivingTables", "TableStart", "restart_hint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStart:
    """From where a table's changes are applied.

    Args:
        scn: its instantiation SCN; None: it is left out, its copy is not finished.
        is_joining: its changes up to `ApplyProgress.ahead_scn` were left out before, and are applied now.
        part: which partition it is; None: a table.
    """

    scn: Scn | None
    is_joining: bool = False
    part: PartOf | None = None


_FROM_THE_START = TableStart(scn=FIRST_SCN)
_LEFT_OUT = TableStart(scn=None)
_NEVER = 1 << 62  # above every SCN
_SOURCE_HINT = "nothing to do where the source is up; else start it: apply goes on as soon as it answers"


def _first_scn(start: TableStart, ahead_scn: int) -> int:
    if start.scn is None:
        return _NEVER
    return start.scn if start.is_joining else max(start.scn, ahead_scn)


def restart_hint(apply: str) -> str:
    """How an apply process finds out which tables it replicates now."""
    return (
        f"headrace stop FILE apply:{apply}, then headrace start FILE apply:{apply}: it asks the source which table is"
        " which, and copies what has to be copied"
    )


class ArrivingTables:
    """See the module.

    Args:
        starts: from where each (owner, name) of the destination is applied, and each `PartOf.key`; what is not in it,
            from the start.
        tables: what the apply process replicates; None: names are all that is known.
        apply: name of the apply process, for messages.
        identity_of: the identity of the captured table that an object number belongs to now at the source; empty: of
            none. None: the source was asked and has not answered yet.
    """

    def __init__(
        self,
        starts: Mapping[tuple[str, str], TableStart],
        tables: Sequence[TableToInstantiate] | None = None,
        identity_of: Callable[[int], str | None] = lambda number: "",  # noqa: ARG005
        *,
        apply: str = "",
    ) -> None:
        self._identity_of, self._apply = identity_of, apply
        self._has_list, tables = tables is not None, tables or ()
        self._by_name = {table.destination: table for table in tables}
        self._by_identity = {table.identity: table for table in tables}
        self._by_number: dict[int, TableToInstantiate | None] = {
            int(number): table for table in tables for number in table.object_numbers
        }
        # By identity; by name where the list has no table of that name.
        self._starts: dict[str | tuple[str, str], TableStart] = {
            self._key(name): start for name, start in starts.items()
        }
        # with a start of their own
        self._parts = {start.part.number: start.part for start in starts.values() if start.part is not None}
        self.truncated_parts: dict[PartOf, Scn] = {}
        """Partitions that are copied and whose table waits to be truncated, and the order SCN of that TRUNCATE."""
        self.truncated: dict[str, tuple[Scn, frozenset[int]]] = {}
        """Which partitions of a table were truncated together last, by the table's identity: their numbers, and the
        order SCN.
        """
        self.strangers: set[TableName] = set()
        """Names of tables whose rows are left out because they were never copied here."""
        self._emptied: dict[str | tuple[str, str], Scn] = {}

    def note_emptied(self, version: TableVersion, scn: Scn) -> None:
        """Note that a table is empty at `scn`, and that the log has every row that it gets from there on, if it is left out now.

        Args:
            version: under its name here.
            scn: the order SCN of the transaction that empties it before it changes it in another way.
        """
        name, number = TableName.of(version), int(version.table_number)
        table = self._by_number.get(number, self._by_name.get(name))
        if table is None and (self._has_list or number in self._by_number):
            return  # it was never copied here
        key = name if table is None else table.identity
        if self._starts.get(key, _FROM_THE_START).scn is None:
            self._emptied[key] = scn

    def note_truncated(self, versions: Iterable[TableVersion], scn: Scn) -> None:
        """Note which partitions are truncated together.

        Args:
            versions: that one TRUNCATE is of.
            scn: its order SCN.
        """
        numbers: dict[str, set[int]] = {}
        for version in versions:
            table = self._by_number.get(int(version.table_number))
            if version.partition is not None and table is not None:
                numbers.setdefault(table.identity, set()).add(int(version.object_number))
        self.truncated |= {identity: (scn, frozenset(found)) for identity, found in numbers.items()}

    def emptied_scn(self, name: tuple[str, str]) -> Scn | None:
        """Where a table (as the destination calls it) was emptied last while it was left out (`note_emptied`)."""
        return self._emptied.get(self._key(name))

    def leave_out(self, names: Collection[tuple[str, str]], parts: Collection[PartOf] = ()) -> None:
        """Apply nothing more of these tables, as the destination calls them.

        Args:
            names: of the tables.
            parts: partitions that are copied alone.
        """
        self._parts |= {part.number: part for part in parts}
        keys = {self._key(name) for name in (*names, *(part.key for part in parts))}
        # The copy of a table has its partitions, also those that were to be copied alone.
        for number, part in list(self._parts.items()):
            if part.table in keys:
                del self._parts[number]
                self._starts.pop(part.key, None)
                self.truncated_parts.pop(part, None)
        self._starts |= dict.fromkeys(keys, _LEFT_OUT)

    def admit(self, parts: Mapping[PartOf, Scn]) -> None:
        """Apply these partitions from a TRUNCATE of their tables on, which empties them.

        Args:
            parts: the order SCNs.
        """
        for part, scn in parts.items():
            self._starts[part.key] = TableStart(scn=scn)
            self.truncated_parts.pop(part, None)

    def check_truncate(self, version: TableVersion, scn: Scn) -> None:
        """See that no partition of a table that is truncated as a whole is being copied, or was copied later.

        Args:
            version: of the table, under its name here.
            scn: the order SCN of the TRUNCATE.

        Raises:
            UnfitTableError: one is; it is among `truncated_parts` until it is admitted.
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
                f"TRUNCATE of {version.qualified_name} waits for the copy of a partition of it to end",
                hint="nothing to do: it ends by itself, as the TRUNCATE empties it",
                table=version.qualified_name,
            )

    def join(self, copied: Sequence[Instantiation]) -> None:
        """Apply these tables from their copies' SCNs on, whatever names they were recorded under."""
        for each in copied:
            key = each.identity if each.identity in self._by_identity else each.key
            self._starts[key] = TableStart(scn=each.scn, is_joining=True)
        self._parts |= {part.number: part for each in copied if (part := PartOf.of(each.identity)) is not None}

    def all_joined(self) -> None:
        """Every table that was joining is where the others are."""
        joined = {key: replace(start, is_joining=False) for key, start in self._starts.items() if start.is_joining}
        self._starts.update(joined)

    def first_scn(self, version: TableVersion, ahead_scn: int) -> int:
        """Changes of a table below this are in its copy, or applied, or left out until it has joined.

        Args:
            version: as it arrives; of an unknown number its name counts, until `resolve`.
            ahead_scn: up to here every table but those that are joining is applied.
        """
        name, number = TableName.of(version), int(version.table_number)
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

    def lacks_columns(self, version: TableVersion) -> bool:
        """Whether transformations on the way leave out columns of a table.

        The order of the others then does not tell which one was renamed.

        Args:
            version: under its name here.
        """
        table = self._by_number.get(int(version.table_number)) or self._by_name.get(TableName.of(version))
        return table is not None and any(each.leaves_out for each in table.transformations)

    def _key(self, name: tuple[str, str]) -> str | tuple[str, str]:
        table = self._by_name.get(TableName(*name))
        return name if table is None else table.identity

    def is_unknown(self, version: TableVersion) -> bool:
        """Nobody has found out yet which table it is."""
        return self._has_list and int(version.table_number) not in self._by_number

    def resolve(self, version: TableVersion) -> None:
        """Find out which table an unknown one is; only for changes that the rules want.

        It stays unknown until the source has answered.
        """
        name, number = TableName.of(version), int(version.table_number)
        table: TableToInstantiate | None = None
        if not version.root_number:
            identity = self._identity_of(number)
            if identity is None:
                return
            # What is captured no more was dropped since: a partition, as long as its name is known.
            table = self._by_identity.get(identity) if identity else self._by_name.get(name)
        self._by_number[number] = table
        if table is None:
            self.strangers.add(name)

    def check_name(self, version: TableVersion) -> None:
        """See that it is known which table arrives, and that its name is not another one's at the destination.

        Raises:
            UnfitTableError: it is not known yet, or the name is.
        """
        if self.is_unknown(version):
            raise UnfitTableError(
                f"rows of {version.qualified_name} come from a partition that apply does not know, and its source does"
                " not answer which table it belongs to",
                hint=_SOURCE_HINT,
                table=version.qualified_name,
            )
        table, holder = self._by_number.get(int(version.table_number)), self._by_name.get(TableName.of(version))
        if table is not None and holder is not None and holder is not table:
            raise UnfitTableError(
                f"the source calls {table.source} now {TableName.of(version)}, which is another table's name at the"
                " destination: their changes would be mixed up",
                hint=restart_hint(self._apply),
                table=version.qualified_name,
            )
