"""DDL changes in an in-memory database: tables, their columns, and unique keys by their columns.

Checks and other indexes do not exist here, and primary and unique keys have no names. What the source changed of these
is passed over. Foreign keys are described: a dropped table loses those of the other copied tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace.base.errors import DataError
from headrace.databases.memory.store import MemoryStore, StoredDdl, StoredTable
from headrace.databases.memory.table_form import TableForm, refused
from headrace.databases.memory.transaction import OpenTransaction, RecordKey
from headrace.databases.ports import BEGUN, DdlOutcome, DdlOutcomeKind, DdlPlace, Instantiation
from headrace.databases.table_digest import TableDigest
from headrace.lcr.ddl import DdlChange
from headrace.lcr.ddl_record import DdlRecord
from headrace.lcr.scn import Scn
from headrace.lcr.structure import Structure
from headrace.lcr.table_name import TableName

__all__ = ["change_table"]

_NEW_VALUES = 2 | 4  # the source gave old rows new values (`headrace.databases.postgres.ddl.refusals`)
_AGAIN = Scn(1)  # below every SCN of a copy, and not FIRST_SCN, which says that no row is there


def change_table(
    store: MemoryStore,
    transaction: OpenTransaction,
    process: tuple[str, str],
    change: DdlChange,
    place: DdlPlace,
    *,
    is_in_order: bool,
) -> DdlOutcome:
    """Change a table and record the outcome, as `DestinationSession.change_table` says.

    Args:
        store: owner of the table.
        transaction: what undoes the change.
        process: topology and apply process.
        change: what the source recorded.
        place: of the change in the source's log.
        is_in_order: False: of an error transaction.

    Raises:
        DataError: the table is neither as before nor as after, or its rows refuse the change.
    """
    skip = (*process, place.order_scn, place.position)
    try:
        asked = _Change(store, transaction, process, change, place, is_in_order)
        if change.leaves_rules and is_in_order:
            asked.leave()
        outcome = DdlOutcome(kind=DdlOutcomeKind.SKIPPED) if skip in store.ddl_skips else asked.made()
    except DataError as error:
        error.hint = f"repair the cause, or make the same change here; or leave it out: ddl_skips.add({skip})"
        raise
    made = StoredDdl(*process, change.base_table, place, outcome)

    def record() -> None:
        store.ddl_skips.discard(skip)
        store.record_ddl(made)

    transaction.do_at_commit(record)
    return outcome


@dataclass(frozen=True, slots=True)
class _Change:
    """A change that is to be made; arguments as for `change_table`."""

    store: MemoryStore
    transaction: OpenTransaction
    process: tuple[str, str]
    change: DdlChange
    place: DdlPlace
    is_in_order: bool

    def made(self) -> DdlOutcome:
        """Make it, and return what became of it."""
        change = self.change
        if change.why_not_made:
            return DdlOutcome.not_applied(change.why_not_made)
        record = DdlRecord.of(change.content)
        if record.after is None:
            return self._dropped()
        if record.before is None and record.is_known:
            return self._created(record.after)
        if record.before is not None and TableName.of(record.before) != TableName.of(record.after):
            return self._renamed(record, TableName.of(record.before), TableName.of(record.after))
        found = self._found()
        reason = _refusal(record, found)
        if reason or found is None:
            return DdlOutcome.not_applied(reason)
        return self._altered(record, found)

    def _found(self) -> StoredTable | None:
        return self.store.tables.get((self.change.base_table_owner, self.change.base_table_name))

    # ------------------------------------------------------------------ ALTER

    def _altered(self, record: DdlRecord, found: StoredTable) -> DdlOutcome:
        form = TableForm.of(found)
        for pair in record.delta.altered:
            form.alter(pair)
        for part in record.delta.dropped:
            form.drop(part)
        for part in record.delta.added:
            form.add(part, record.older.get(part.name))
        if form.conflicts:
            raise refused("; ".join(form.conflicts))
        if not form.done:
            return DdlOutcome(kind=DdlOutcomeKind.PASSED_OVER)
        self._lock(found)
        form.store(found, self.transaction)
        return DdlOutcome(kind=DdlOutcomeKind.APPLIED, statements=tuple(form.done))

    def _lock(self, found: StoredTable) -> None:
        self.transaction.require_unlocked(found)
        for number in found.rows:
            self.transaction.lock((id(found), "row", number))

    # ------------------------------------------------------------------ RENAME

    def _renamed(self, record: DdlRecord, before: TableName, after: TableName) -> DdlOutcome:
        """Rename the table that the record of the source's table is about, wherever it is."""
        own = [(key, number) for key, number in self._recorded() if self._is_own(key)]
        names = {table.number: TableName(*name) for name, table in self.store.tables.items()}
        there = [(key, names[number]) for key, number in own if number in names]
        if len(there) != 1:
            return DdlOutcome.not_applied(f"no table was copied or made for it: {before} is not renamed")
        ((key, name),) = there
        if not record.is_known or _columns(record.before) != _columns(record.after):
            return DdlOutcome.not_applied("it also changes columns, or the table before the change is not known")
        known = dict(self._records())[key]
        if known.state in BEGUN and known.scn > _AGAIN:
            return DdlOutcome.not_applied("the table is being copied")
        if others := [each[1] for each, number in self._recorded() if names.get(number) == name and each != key]:
            return DdlOutcome.not_applied(f"it has rows of {', '.join(others)}, too")
        if name not in {before, after}:
            raise refused(f"the destination's table is called {name}, not {before}")
        found = self.store.tables[name]
        if name != after:
            if after in self.store.tables:
                raise refused(f"there is a table {after}", "42P07")
            self._lock(found)
            self._move(name, after, found)
        for each, other in list(self._records()):
            if each[:3] == key[:3] and each != key and TableName.of(other) == after:
                self.transaction.record(each, None)
        self.transaction.record(key, (replace(known, owner=after.owner, name=after.name), found.number))
        if name == after:
            return DdlOutcome(kind=DdlOutcomeKind.PASSED_OVER)
        return DdlOutcome(kind=DdlOutcomeKind.APPLIED, statements=(f"ALTER TABLE {before} RENAME TO {after}",))

    def leave(self) -> None:
        """Record that the table's later rows do not arrive."""
        records = dict(self._records())
        for key, number in [each for each in self._recorded() if self._is_own(each[0])]:
            self.transaction.record(key, (replace(records[key], state="LEFT"), number))

    def _move(self, name: TableName, after: TableName, found: StoredTable) -> None:
        """Give the table its new name for this transaction; others see the old one in the records until the COMMIT."""
        self._remove((name.owner, name.name), found)
        was, key = found.table, (after.owner, after.name)
        found.table = replace(was, owner=after.owner, name=after.name)
        self.store.tables[key] = found

        def undo() -> None:
            del self.store.tables[key]
            found.table = was

        self.transaction.did(undo)

    # ------------------------------------------------------------------ CREATE

    def _created(self, after: Structure) -> DdlOutcome:
        creation = self.change.creation
        identity = "" if creation is None else creation.identities.get(self.process[0], "")
        if not identity:
            why_not = creation.why_not if creation is not None else ""
            return DdlOutcome.not_applied(f"{why_not or 'its rows are not in the log'}; the next headrace up copies it")
        found = self._found()
        if found is None:
            outcome = self._made(after)
        elif ((*self.process, self.place.source, identity), found.number) in self._recorded():
            return DdlOutcome(kind=DdlOutcomeKind.PASSED_OVER, reason="it is recorded already")
        else:
            self._check_taken_over(found, after)
            outcome = DdlOutcome(kind=DdlOutcomeKind.PASSED_OVER)
        if not self.is_in_order:
            outcome = replace(outcome, reason="made from the error queue: the table is copied")
        self._record(identity)
        return outcome

    def _made(self, after: Structure) -> DdlOutcome:
        name = (after.owner, after.name)
        found = self.store.add_table(*name)
        self.transaction.did(lambda: self.store.tables.pop(name))
        form = TableForm.of(found)
        for part in after.parts:
            form.add(part, None)
        form.store(found, self.transaction)
        return DdlOutcome(
            kind=DdlOutcomeKind.APPLIED, statements=(f"CREATE TABLE {self.change.base_table}", *form.done)
        )

    def _check_taken_over(self, found: StoredTable, after: Structure) -> None:
        """Raise a DataError unless a table that is here already can be the new one."""
        others = [key for key, number in self._recorded() if number == found.number]
        if others:
            raise refused(f"the destination's table of that name is recorded for apply process {others[0][1]}")
        form = TableForm.of(found)
        for part in after.parts:
            form.add(part, None)
        if form.done or form.conflicts:
            raise refused("; ".join(["the destination has another table of that name", *form.conflicts]))
        if found.rows:
            raise refused("the destination has a table of that name with rows: TRUNCATE it, or drop it")
        self._lock(found)

    def _record(self, identity: str) -> None:
        owner, name = self.change.base_table
        process, source = self.process, self.place.source
        for key, record in list(self._records()):
            if (*key[:3], record.owner, record.name) == (*process, source, owner, name):
                self.transaction.record(key, None)
        made = Instantiation(
            source=source,
            identity=identity,
            owner=owner,
            name=name,
            scn=Scn(self.place.order_scn) if self.is_in_order else _AGAIN,
            state="DONE" if self.is_in_order else "COPYING",
            digest=str(TableDigest()) if self.is_in_order else "",
            problem="" if self.is_in_order else "to be copied again",
        )
        number = self.store.tables[owner, name].number
        self.transaction.record((*process, source, identity), (made, number))

    # ------------------------------------------------------------------ DROP

    def _dropped(self) -> DdlOutcome:
        name, found = self.change.base_table, self._found()
        if found is None:
            return self._gone()
        keys = [key for key, number in self._recorded() if number == found.number]
        own = [key for key in keys if self._is_own(key)]
        if not own:
            return DdlOutcome.not_applied("the destination's table of that name is not the one that was copied")
        if others := [key[1] for key in keys if key not in own]:
            return DdlOutcome.not_applied(
                f"it is dropped at one of its sources only: it has rows of {', '.join(others)}, too"
            )
        statements = [f"DROP TABLE {name}"]
        copied = {number for key, number in self._recorded() if key[:3] == own[0][:3]}
        for other in self.store.tables.values():
            if other is not found and any((each.owner, each.name) == tuple(name) for each in other.table.references):
                if other.number not in copied:
                    raise refused(f"{other.table.owner}.{other.table.name} refers to {name}", "2BP01")
                self._lose_references(other, found)
                statements.insert(0, f"ALTER TABLE {other.table.owner}.{other.table.name} DROP CONSTRAINT")
        self._lock(found)
        self._remove((name.owner, name.name), found)
        self.transaction.record(own[0], None)
        return DdlOutcome(kind=DdlOutcomeKind.APPLIED, statements=tuple(statements))

    def _gone(self) -> DdlOutcome:
        """Delete the record of a table that is gone; if only its name is, the table stays."""
        names = {table.number: f"{owner}.{name}" for (owner, name), table in self.store.tables.items()}
        for key, number in [each for each in self._recorded() if self._is_own(each[0])]:
            if number in names:
                return DdlOutcome.not_applied(
                    f"the table is called {names[number]} here: drop it by hand if nobody needs it"
                )
            self.transaction.record(key, None)
        return DdlOutcome(kind=DdlOutcomeKind.PASSED_OVER)

    def _remove(self, name: tuple[str, str], found: StoredTable) -> None:
        """Remove the table for this transaction; others see it in the records until the COMMIT."""
        store, leaving = self.store, self.store.leaving
        # Nobody else has seen a name that the table got in this transaction.
        is_first = name not in leaving and not any(each is found for each in leaving.values())
        del store.tables[name]
        if is_first:
            leaving[name] = found

        def undo() -> None:
            store.tables[name] = found
            if is_first:
                store.leaving.pop(name, None)  # gone already when a crash takes the commit back

        self.transaction.did(undo)
        if is_first:
            self.transaction.do_at_commit(lambda: store.leaving.pop(name, None))

    def _is_own(self, key: RecordKey) -> bool:
        """Whether a record is of the table that the change is about, which may have a later namesake."""
        number = str(self.change.object_number)
        return key[:3] == (*self.process, self.place.source) and key[3].split(".")[-2:-1] == [number]

    def _lose_references(self, other: StoredTable, found: StoredTable) -> None:
        before, gone = other.table, (found.table.owner, found.table.name)
        kept = tuple(each for each in before.references if (each.owner, each.name) != gone)
        other.table = replace(before, references=kept)
        self.transaction.did(lambda: setattr(other, "table", before))

    # ------------------------------------------------------------------ records

    def _records(self) -> Iterator[tuple[RecordKey, Instantiation]]:
        """Yield the instantiation records as the transaction sees them."""
        own = self.transaction.records
        for key, record in self.store.instantiations.items():
            if key not in own:
                yield key, record
        for key, made in own.items():
            if made is not None:
                yield key, made[0]

    def _recorded(self) -> Iterator[tuple[RecordKey, int]]:
        """Yield the number of the table that each record is about; 0: none existed."""
        own = self.transaction.records
        for key, _ in self._records():
            made = own.get(key)
            yield key, self.store.recorded.get(key, 0) if made is None else made[1]


def _columns(structure: Structure | None) -> tuple[tuple[str, object], ...]:
    return () if structure is None else tuple((column.name, column.shape) for column in structure.columns)


def _refusal(record: DdlRecord, found: StoredTable | None) -> str:
    before = record.before
    if before is None:
        return "the table before the change is not known"
    if record.rewritten & _NEW_VALUES:
        return "it gives old rows new values, which are not in the source's log"
    return "the destination has no such table" if found is None else ""
