"""The multiversioned dictionary: what a table was called and looked like when a change was made.

Redo holds object numbers and column positions only. Two kinds of records tell the rest, both in redo order:
table descriptions (in the log stream, right before the first change they hold for) give columns and the stored
table's name; dictionary builds (read from the source's catalog) say which partition belongs to which table.

The catalog shows a transaction a while after the log does. So descriptions become durable first, behind a record that
says that a build is awaited, and the build is written when it reflects what they describe. A description is resolved
against the first build after that record (in redo of earlier versions: against the builds before it), so that whoever
reads the same redo, from whichever restart point, gets the same versions. `headrace.redo.mining.build_search` finds that build for a
capture process, which mines no row before it.

All versions are in redo, and each segment's head has those in force where it begins. A reader holds the version in
force at its own place: a capture process that is behind, or mines again from an older SCN, has the older one, whatever
another one next to it or the source's catalog has by now.

Source: Oracle Streams Concepts and Administration 11.2, "Data Dictionary Duplication During Capture Process
Creation" and "The Streams Data Dictionary".
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
"""A table that LCRs name: its number, or its name where only redo of an earlier version told of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """A table version as LCRs name it, with the stored table's own name (a partition's) and where it begins.

    `rows`: of a partition, which rows of the table it holds (`headrace.lcr.batch.Partition`); else empty.
    """

    table: TableVersion
    stored_owner: str
    stored_name: str
    from_scn: Scn
    rows: str = ""

    @property
    def is_partition(self) -> bool:
        """The rows are stored in a partition of the table LCRs name."""
        return (self.stored_owner, self.stored_name) != (self.table.owner, self.table.name)

    def renamed(self, owner: str, name: str) -> KnownTable:
        """Return the same table with another name for its LCRs; its version changes with the name.

        Args:
            owner: schema that LCRs are to name.
            name: of the table in that schema. A partition's own name stays.
        """
        table = replace(self.table, owner=owner, name=name)
        table = replace(table, version=content_version(table))
        if self.is_partition:
            return replace(self, table=table)
        return replace(self, table=table, stored_owner=owner, stored_name=name)


class Dictionary:
    """The table version in force by object number, as of where redo was read to; one owner, fed in redo order."""

    def __init__(self) -> None:
        # Entries of older builds stay: redo may hold changes of a partition that is dropped by now.
        self._tables: dict[int, DictionaryTable] = {}
        self._build = DictionaryBuild(scn=FIRST_SCN, tables=())
        self._partitions: dict[_Root, set[int]] = {}  # of each table, every one that any build named
        # of partitioned tables, by the name of the latest build
        self._numbers: dict[tuple[str, str], ObjectNumber] = {}
        self._bounds: dict[ObjectNumber, Scn] = {}  # partitions that held other rows in builds before that SCN
        self._current: dict[int, KnownTable] = {}
        self._roots: dict[int, _Root] = {}  # the table of each object in force, as the builds tell it
        self._awaited: tuple[int, ...] | None = None
        self._unresolved: set[int] = set()  # objects in force whose descriptions wait for the awaited build

    @property
    def build(self) -> DictionaryBuild:
        """The latest build."""
        return self._build

    def names(self) -> Iterable[tuple[str, str]]:
        """Owner and name of every table known, as LCRs name them."""
        known = {(table.owner, table.name) for table in self._tables.values()}
        known.update((current.table.owner, current.table.name) for current in self._current.values())
        return sorted(known)

    @property
    def awaited(self) -> tuple[int, ...] | None:
        """Numbers of the transactions that the next build must reflect; None: no build is awaited."""
        return self._awaited

    def await_build(self, describers: Iterable[int]) -> None:
        """What is described from here on holds with the next build.

        Args:
            describers: numbers of the transactions that describe it.
        """
        self._awaited = tuple(sorted({*(self._awaited or ()), *describers}))

    def add_found(self, found: DictionarySnapshot | UnchangedBuild) -> None:
        """Take in the build of a DICTIONARY record; see `add_build`."""
        self.add_build(found.build if isinstance(found, DictionarySnapshot) else replace(self._build, scn=found.scn))

    def add_build(self, build: DictionaryBuild) -> None:
        """Take in a dictionary build.

        It holds for descriptions that come after it in redo, and for those that await it.
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
        """Take in the number of a partitioned table, of which redo of an earlier version may have told the name only."""
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
            The table version that changes from now on refer to.
        """
        if self._awaited is not None:
            self._unresolved.add(description.object_number)
        entry = self._tables.get(description.object_number)
        if entry is not None:
            description = _with_computed(description, entry.computed)
        # The log knows a plain table's name as of the change; the build may be newer. It knows no roots, and no
        # computed columns.
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
        """Tell whether `objects` holds every partition that a partition's table may have.

        A partition that the latest build lacks may have been detached, and attached again since, of which the log says
        nothing. So every partition counts that any build named, dropped ones, too: without them a TRUNCATE of the
        others is one of each of them, which leaves the destination's rows of the missing one as they are.

        The table is the one of the description in force, as `KnownTable.is_partition` is: a later build may say that
        the partition is a table of its own by now. Where nothing is known of the table's partitions, they are not all
        there.

        Args:
            object_number: of a partition.
            objects: what was truncated together.
        """
        root = self._roots.get(object_number)
        partitions = self._partitions.get(root, set()) if root is not None else set()
        return bool(partitions) and partitions <= set(objects)

    def truncated(self, known: KnownTable, scn: Scn) -> TableVersion:
        """Return the version for a TRUNCATE of one partition alone, with the rows the partition held then, if they are known.

        A build reads the catalog as it is when redo is written, which may be later than the changes it is written for.
        A partition that gets other bounds, and the default partition when another one is made, is described again
        before its next change, and brings another build. So the rows are those of the build before the partition's last
        description; but when that build gives other bounds than the one before it, the bounds may have changed after
        this TRUNCATE.

        Args:
            known: the partition, as it is in force.
            scn: of the TRUNCATE; from the build's SCN on it is known that the catalog was read before.
        """
        number = known.table.object_number
        entry = self._tables.get(number)
        is_told_later = entry is not None and entry.rows == known.rows and scn < self._bounds.get(number, FIRST_SCN)
        rows = "" if is_told_later else known.rows
        partition = Partition(owner=known.stored_owner, name=known.stored_name, rows=rows)
        named = replace(known.table, partition=partition)
        return replace(named, version=content_version(named))

    def snapshot(self) -> DictionarySnapshot:
        """Return what the head of a segment must say, so that its redo can be read without what came before."""
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
        """Owner, name and number of a partitioned table, as far as they are known."""
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
    """A description with what the dictionary knows of its columns; None: nothing is known, and any may be computed."""
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
    """Take from one redo record what it says of the dictionary, without decoding row changes.

    Args:
        dictionary: as of the record.
        header: the record's.
        payload: the record's, or as much of it as shall count.
        describe: finds the table descriptions in DATA (`LogDecoder.describe`).

    Returns:
        The dictionary after the record: a new one at a segment's head, else the same.
    """
    if header.type is RecordType.DICTIONARY:
        snapshot = decode_dictionary(payload)
        if isinstance(snapshot, AwaitedBuild):
            dictionary.await_build(snapshot.describers)
        elif header.number == 1 and isinstance(snapshot, DictionarySnapshot):  # the head's, which says everything
            return Dictionary.from_snapshot(snapshot)
        else:
            dictionary.add_found(snapshot)
    elif header.type is RecordType.DATA and header.has_descriptions:
        for description in describe(payload):
            dictionary.describe(description, header.last_commit_scn)
    return dictionary
