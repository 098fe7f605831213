"""The multiversioned dictionary: name and columns of each table at the time of a change.

Redo holds object numbers and column positions only. Two kinds of records supply the rest, both in redo order. Table
descriptions (in the log stream, right before the first change to which they apply) give columns and the stored table's
name. Dictionary builds (read from the source's catalog) say which partition belongs to which table.

The catalog shows a transaction later than the log does. So descriptions become durable first, behind a record that
announces an awaited build. The build is written when it reflects what they describe. A description is resolved against
the first build after that record (in redo of earlier versions: against the builds before it). So every reader of the
same redo gets the same versions, from any restart point. `headrace.redo.mining.build_search` finds that build for a
capture process, which mines no row before it.

All versions are in redo, and each segment's head has those in force at its beginning. A reader holds the version in
force at its own place: a capture process that is behind, or mines again from an older SCN, has the older one. Other
capture processes and the current catalog do not matter.

Source: Oracle Streams Concepts and Administration 11.2, "Data Dictionary Duplication During Capture Process Creation"
and "The Streams Data Dictionary".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from headrace.databases.ports import DictionaryBuild, DictionaryTable
from headrace.lcr.batch import Partition, TableVersion, content_version
from headrace.lcr.scn import FIRST_SCN, NO_OBJECT, ObjectNumber, Scn
from headrace.redo.records import (
    AwaitedBuild,
    DictionarySnapshot,
    RecordHeader,
    RecordType,
    UnchangedBuild,
    decode_dictionary,
)

__all__ = ["Dictionary", "KnownTable", "read_dictionary_record"]

_Root: TypeAlias = "ObjectNumber | tuple[str, str]"
"""A table that LCRs name: its number, or its name if only redo of an earlier version has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """A table version as LCRs name it, with the stored table's own name (a partition's) and its first SCN.

    `rows`: for a partition, which rows of the table it holds (`headrace.lcr.batch.Partition`); else empty.
    """

    table: TableVersion
    stored_owner: str
    stored_name: str
    from_scn: Scn
    rows: str = ""

    @property
    def is_partition(self) -> bool:
        """Whether the rows are stored in a partition of the table that LCRs name."""
        return (self.stored_owner, self.stored_name) != (self.table.owner, self.table.name)

    def renamed(self, owner: str, name: str) -> KnownTable:
        """Return the same table with another name for its LCRs; its version changes with the name.

        A partition keeps its own name.

        Args:
            owner: schema for LCRs.
            name: name of the table in that schema.
        """
        table = replace(self.table, owner=owner, name=name)
        table = replace(table, version=content_version(table))
        if self.is_partition:
            return replace(self, table=table)
        return replace(self, table=table, stored_owner=owner, stored_name=name)


class Dictionary:
    """The table version in force by object number, at the current place in redo; one owner, fed in redo order."""

    def __init__(self) -> None:
        # Entries of older builds stay: redo may still hold changes of a dropped partition.
        self._tables: dict[int, DictionaryTable] = {}
        self._build = DictionaryBuild(scn=FIRST_SCN, tables=())
        self._partitions: dict[_Root, set[int]] = {}  # of each table, every one that any build named
        # of partitioned tables, by name in the latest build
        self._numbers: dict[tuple[str, str], ObjectNumber] = {}
        self._bounds: dict[ObjectNumber, Scn] = {}  # partitions that held other rows in builds before that SCN
        self._current: dict[int, KnownTable] = {}
        self._roots: dict[int, _Root] = {}  # the table of each object in force, according to the builds
        self._awaited: tuple[int, ...] | None = None
        self._unresolved: set[int] = set()  # objects in force whose descriptions wait for the awaited build

    @property
    def build(self) -> DictionaryBuild:
        """The latest build."""
        return self._build

    def names(self) -> Iterable[tuple[str, str]]:
        """Return owner and name of every known table, as LCRs name them."""
        known = {(table.owner, table.name) for table in self._tables.values()}
        known.update((current.table.owner, current.table.name) for current in self._current.values())
        return sorted(known)

    @property
    def awaited(self) -> tuple[int, ...] | None:
        """Numbers of the transactions that the next build must reflect; None: no build is awaited."""
        return self._awaited

    def await_build(self, describers: Iterable[int]) -> None:
        """Note that descriptions from here on apply with the next build.

        Args:
            describers: numbers of the transactions that make the descriptions.
        """
        self._awaited = tuple(sorted({*(self._awaited or ()), *describers}))

    def add_found(self, found: DictionarySnapshot | UnchangedBuild) -> None:
        """Take in the build of a DICTIONARY record."""
        self.add_build(found.build if isinstance(found, DictionarySnapshot) else replace(self._build, scn=found.scn))

    def add_build(self, build: DictionaryBuild) -> None:
        """Take in a dictionary build.

        It applies to descriptions that come after it in redo, and to those that await it.
        """
        self._build = build
        for table in build.tables:
            known = self._tables.get(table.object_number)
            if known is not None and known.rows != table.rows:
                self._bounds[table.object_number] = build.scn
        self._tables.update((table.object_number, table) for table in build.tables)
        self._note_partitions(build.tables)
        self._awaited = None
        unresolved, self._unresolved = self._unresolved, set()
        for waiting in [self._current[number] for number in sorted(unresolved)]:
            self.describe(
                replace(waiting.table, owner=waiting.stored_owner, name=waiting.stored_name), waiting.from_scn
            )

    def _note_partitions(self, tables: Iterable[DictionaryTable]) -> None:
        for table in tables:
            if _is_partition(table):
                if table.root_number:
                    self._number((table.owner, table.name), table.root_number)
                self._partitions.setdefault(self._root_of(table), set()).add(table.object_number)

    def _number(self, name: tuple[str, str], number: ObjectNumber) -> None:
        """Take in the number of a partitioned table, of which redo of an earlier version may have only the name."""
        self._numbers[name] = number
        if name in self._partitions:
            self._partitions.setdefault(number, set()).update(self._partitions.pop(name))
            self._roots.update({stored: number for stored, root in self._roots.items() if root == name})

    def _root_of(self, table: DictionaryTable | TableVersion) -> _Root:
        name = (table.owner, table.name)
        return table.root_number or self._numbers.get(name, name)

    def describe(self, description: TableVersion, scn: Scn) -> KnownTable:
        """Take in a table description from the log; it is in force from here on.

        Args:
            description: as the log gives it, under the stored table's name.
            scn: progress of the redo where it was found.

        Returns:
            The table version for the changes that follow.
        """
        if self._awaited is not None:
            self._unresolved.add(description.object_number)
        entry = self._tables.get(description.object_number)
        if entry is not None:
            description = _with_computed(description, entry.computed)
        # The log has a plain table's name at the time of the change; the build may be newer. The log has no roots and
        # no computed columns.
        if entry is None:
            table = replace(description, root_number=NO_OBJECT)
        elif _is_partition(entry):
            table = replace(description, owner=entry.owner, name=entry.name, root_number=entry.root_number)
        else:
            table = replace(description, root_number=description.object_number)
        self._roots[description.object_number] = self._root_of(table)
        table = replace(table, version=content_version(table))
        known = KnownTable(
            table=table,
            stored_owner=description.owner,
            stored_name=description.name,
            from_scn=scn,
            rows=entry.rows if entry is not None else "",
        )
        current = self._current.get(description.object_number)
        if current is not None and replace(current, from_scn=scn) == known:
            return current
        self._current[description.object_number] = known
        return known

    def current(self, object_number: ObjectNumber) -> KnownTable | None:
        """Return the version in force; None: the redo read so far never described the object."""
        return self._current.get(object_number)

    def current_tables(self) -> Iterable[KnownTable]:
        """Return the version in force of every object described so far."""
        return tuple(self._current.values())

    def rename(self, known: KnownTable) -> None:
        """Put another name in force for an object (`KnownTable.renamed`), until the log describes it again."""
        self._current[known.table.object_number] = known

    def covers_all_partitions(self, object_number: int, objects: Iterable[int]) -> bool:
        """Return whether `objects` contains every partition that a partition's table may have.

        A partition that the latest build lacks may have been detached and attached again since; the log does not show
        that. So every partition that any build named counts, dropped ones too. If one is missing, a TRUNCATE of the
        others counts as one TRUNCATE per partition, which keeps the destination's rows of the missing partition.

        The table is that of the description in force, as for `KnownTable.is_partition`: a later build may already show
        the partition as a separate table. If no partition of the table is known, the result is False.

        Args:
            object_number: number of a partition.
            objects: objects that were truncated together.
        """
        root = self._roots.get(object_number)
        partitions = self._partitions.get(root, set()) if root is not None else set()
        return bool(partitions) and partitions <= set(objects)

    def truncated(self, known: KnownTable, scn: Scn) -> TableVersion:
        """Return the version for a TRUNCATE of one partition, with the rows that it held then, if known.

        A build reads the catalog at the time when redo is written, which may be later than the changes. A partition
        with new bounds, and the default partition when another one is created, is described again before its next
        change, which brings another build. So the rows are those of the build before the partition's last description.
        But if that build gives other bounds than the one before it, the bounds may have changed after this TRUNCATE.

        Args:
            known: the partition version in force.
            scn: SCN of the TRUNCATE; from the build's SCN on the catalog was certainly read before it.
        """
        number = known.table.object_number
        entry = self._tables.get(number)
        is_told_later = entry is not None and entry.rows == known.rows and scn < self._bounds.get(number, FIRST_SCN)
        rows = "" if is_told_later else known.rows
        partition = Partition(owner=known.stored_owner, name=known.stored_name, rows=rows)
        named = replace(known.table, partition=partition)
        return replace(named, version=content_version(named))

    def snapshot(self) -> DictionarySnapshot:
        """Return the dictionary for the head of a segment, so that its redo is readable without its predecessors."""
        versions = tuple(
            (known.table, known.stored_owner, known.stored_name, known.from_scn, known.rows)
            for _, known in sorted(self._current.items())
        )
        living = {table.object_number for table in self._build.tables}
        dropped = tuple(table for number, table in sorted(self._tables.items()) if number not in living)
        bounds = tuple(sorted(self._bounds.items()))
        detached = tuple(
            sorted(
                (*self._named(root), ObjectNumber(number))
                for root, numbers in self._partitions.items()
                for number in numbers
                if self._root_of(self._tables[number]) != root
            )
        )
        return DictionarySnapshot(
            build=self._build,
            dropped=dropped,
            detached=detached,
            bounds=bounds,
            versions=versions,
            awaited=None if self._awaited is None else AwaitedBuild(describers=self._awaited),
            unresolved=tuple(ObjectNumber(number) for number in sorted(self._unresolved)),
        )

    def _named(self, root: _Root) -> tuple[str, str, ObjectNumber]:
        """Return owner, name and number of a partitioned table, as far as they are known."""
        if isinstance(root, tuple):
            return *root, NO_OBJECT
        entry = self._tables.get(root)
        return ("", "", root) if entry is None else (entry.owner, entry.name, root)

    @classmethod
    def from_snapshot(cls, snapshot: DictionarySnapshot) -> Dictionary:
        """Rebuild the dictionary from a segment's head."""
        dictionary = cls()
        dictionary.add_build(snapshot.build)
        dictionary._tables.update((table.object_number, table) for table in snapshot.dropped)
        dictionary._note_partitions(snapshot.dropped)
        for owner, name, root, number in snapshot.detached:
            dictionary._partitions.setdefault(root or dictionary._numbers.get((owner, name), (owner, name)), set()).add(
                number
            )
        dictionary._bounds.update(snapshot.bounds)
        for table, stored_owner, stored_name, scn, rows in snapshot.versions:
            dictionary._roots[table.object_number] = dictionary._root_of(table)
            dictionary._current[table.object_number] = KnownTable(
                table=table,
                stored_owner=stored_owner,
                stored_name=stored_name,
                from_scn=scn,
                rows=rows,
            )
        if snapshot.awaited is not None:
            dictionary._awaited, dictionary._unresolved = snapshot.awaited.describers, set(snapshot.unresolved)
        return dictionary


def _with_computed(description: TableVersion, computed: Collection[str] | None) -> TableVersion:
    """Return a description with its computed columns marked; None: nothing is known, and any column may be computed."""
    found = [computed is None or column.name in computed for column in description.columns]
    if found == [column.is_computed for column in description.columns]:
        return description
    columns = zip(description.columns, found, strict=True)
    return replace(
        description, columns=tuple(replace(column, is_computed=is_computed) for column, is_computed in columns)
    )


def _is_partition(table: DictionaryTable) -> bool:
    return (table.stored_owner, table.stored_name) != (table.owner, table.name)


def read_dictionary_record(
    dictionary: Dictionary,
    header: RecordHeader,
    payload: bytes,
    describe: Callable[[bytes], tuple[TableVersion, ...]],
) -> Dictionary:
    """Apply one redo record to the dictionary, without decoding row changes.

    Args:
        dictionary: the dictionary at the record.
        header: header of the record.
        payload: payload of the record, or its relevant prefix.
        describe: finds the table descriptions in DATA (`LogDecoder.describe`).

    Returns:
        The dictionary after the record: a new one at a segment's head, else the same.
    """
    if header.type is RecordType.DICTIONARY:
        snapshot = decode_dictionary(payload)
        if isinstance(snapshot, AwaitedBuild):
            dictionary.await_build(snapshot.describers)
        elif header.number == 1 and isinstance(snapshot, DictionarySnapshot):  # the head's, which is a full snapshot
            return Dictionary.from_snapshot(snapshot)
        else:
            dictionary.add_found(snapshot)
    elif header.type is RecordType.DATA and header.has_descriptions:
        for description in describe(payload):
            dictionary.describe(description, header.last_commit_scn)
    return dictionary
