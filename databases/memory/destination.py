"""A database in memory that can be a destination: tables, transactions, progress, fencing, error queue.

Longer than 500 lines: one method for each promise of the ports, and nothing else.

For unit tests and simulations; verified by the same contract suite as the real connector (`tests/contract`). It
behaves like the real thing where apply could notice: unique and NOT NULL violations fail the transaction with the
real SQLSTATEs, a set is matched against the state its statement began with, rows without a key are paired one to one,
a row that another open transaction has written cannot be written (the real one waits, then says lock_not_available),
a rollback undoes everything, a newer epoch ends older sessions, the end of the store's life every epoch. Values are
bytes and equal when their bytes are.

Several `MemoryDestination`s on one `MemoryStore` are several processes at one database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from databases.applied_tables import missing_key, unfit_error, with_settings
from databases.memory.conflicts import conflicting, find_rows, found_rows, targets
from databases.memory.copying import unpacked
from databases.memory.store import (
    MemoryStore,
    Row,
    StoredChange,
    StoredCommit,
    StoredError,
    StoredProcess,
    StoredServer,
    StoredTable,
    missing_alter,
    row_condition,
    rows_of,
)
from databases.ports import (
    ROWS_THERE,
    ApplyProgress,
    ConflictRecord,
    DestinationTable,
    ErrorEdit,
    ErrorTransaction,
    Finding,
    FoundRows,
    HandlerSql,
    Instantiation,
    LastChange,
    LogPositions,
    MarkedColumn,
    OtherCopy,
    PlannedApply,
    PlannedStatement,
    RowInTheWay,
    RowMark,
    RowQuestion,
    ScnRange,
    SqlResult,
    TableShape,
    TakenErrors,
    TruncatedTable,
    Write,
    WriteTimes,
)
from databases.progress import check_epoch, covers, fold_ranges, merge_ranges
from databases.written_ahead import WrittenAhead
from rules.table_settings import NO_TABLE_SETTINGS, TableSettings
from streams.errors import BugError, DatabaseError, DatabaseUnavailable, DataError, FencedError, UnfitTableError
from streams.lcr import LcrValue
from streams.lcr_batch import Command, TableVersion
from streams.scn import Scn
from streams.table_name import TableName

__all__ = ["MemoryDestination", "MemorySession", "MemoryStore"]

_UNIQUE_VIOLATION = "23505"
_NOT_NULL_VIOLATION = "23502"
_LOCK_NOT_AVAILABLE = "55P03"


class MemoryDestination:
    """See the module, and `databases.ports.DestinationDatabase`."""

    def __init__(
        self,
        *,
        store: MemoryStore | None = None,
        site: str = "memory",
        settings: TableSettings = NO_TABLE_SETTINGS,
    ) -> None:
        """A process's access to `store`, or to a new one; `settings`: of the apply process that asks."""
        self.store = store or MemoryStore()
        self._site, self._settings = site, settings

    def database_identity(self) -> str:
        """See `DestinationDatabase.database_identity`."""
        return f"memory {id(self.store)}"

    def preflight(
        self,
        topology: str,
        *,
        sessions: int,
        applies: int = 1,
        copies: int = 0,
    ) -> tuple[Finding, ...]:
        """See `DestinationDatabase.preflight`."""
        self._reach()
        return ()

    def filled(self, tables: Collection[TableName]) -> tuple[TableName, ...]:
        """See `DestinationDatabase.filled`."""
        self._reach()
        there = self.store.tables
        return tuple(table for table in tables if tuple(table) in there and there[table.owner, table.name].rows)

    def tables_in(self, owner: str) -> frozenset[str] | None:
        """See `DestinationDatabase.tables_in`: a schema is there with its name."""
        return frozenset(name for of, name in self.store.tables if of == owner)

    def nested_tables(self, tables: Collection[TableName]) -> Mapping[TableName, TableName]:
        """See `DestinationDatabase.nested_tables`: it has no partitions."""
        return {}

    def is_reserved(self, owner: str) -> bool:
        """See `DestinationDatabase.is_reserved`: what is recorded is in no table here."""
        return owner == "headrace"

    def how_to_empty(self, table: TableName) -> str:
        """See `DestinationDatabase.how_to_empty`."""
        return f"DELETE FROM ONLY {table}"

    def preflight_tables(
        self,
        versions: Sequence[TableVersion],
        *,
        now: Sequence[TableVersion] = (),
        at_source: Mapping[TableName, TableName] | None = None,
    ) -> tuple[Finding, ...]:
        """See `DestinationDatabase.preflight_tables`."""
        found = [
            (
                version,
                missing_alter(version, self.describe(version.owner, version.name))
                or missing_key(version, self._settings, (at_source or {}).get(TableName.of(version))),
            )
            for version in versions
        ]
        return tuple(
            Finding(
                path=f"sites.{self._site} table {version.qualified_name}",
                fix=fix,
                problem="the table does not exist here or does not fit the source's rows",
            )
            for version, fix in found
            if fix
        )

    def preflight_shapes(
        self,
        shapes: Sequence[TableShape],
        versions: Sequence[TableVersion],
    ) -> tuple[Finding, ...]:
        """See `DestinationDatabase.preflight_shapes`."""
        self._reach()
        return ()

    def preflight_domains(self, shapes: Sequence[TableShape]) -> tuple[Finding, ...]:
        """See `DestinationDatabase.preflight_domains`."""
        self._reach()
        return ()

    def plan(self, topology: str, applies: Sequence[PlannedApply]) -> tuple[PlannedStatement, ...]:
        """See `DestinationDatabase.plan`: there is nothing to create."""
        self._reach()
        return ()

    def prepare(self, topology: str) -> tuple[str, ...]:
        """See `DestinationDatabase.prepare`."""
        self._reach()
        return ()

    def preflight_times(self, tables: Collection[tuple[str, str]], *, has_tombstones: bool) -> tuple[Finding, ...]:
        """See `DestinationDatabase.preflight_times`: who changes rows here says when (`MemoryStore.changed_here`)."""
        return ()

    def keep_tombstones(self, tables: Collection[tuple[str, str]]) -> tuple[str, ...]:
        """See `DestinationDatabase.keep_tombstones`."""
        return ()

    def describe(self, owner: str, name: str) -> DestinationTable | None:
        """See `DestinationDatabase.describe`."""
        found = self._reach().tables.get((owner, name))
        return with_settings(found.table, self._settings, is_hidden=False) if found else None

    def raise_epoch(self, topology: str, apply: str) -> ApplyProgress:
        """See `DestinationDatabase.raise_epoch`."""
        process = self._reach().processes.setdefault((topology, apply), StoredProcess())
        process.epoch, process.life, process.incarnations = self.store.next_epoch(process.epoch), self.store.life, {}
        for session in list(process.sessions.values()):
            session.close()
        self.store.flush()
        progress = self.progress(topology, apply)
        assert progress is not None
        process.low_watermark, process.applied, process.servers = progress.low_watermark, progress.above, {}
        return progress

    def progress(self, topology: str, apply: str) -> ApplyProgress | None:
        """See `DestinationDatabase.progress`."""
        process = self._reach().processes.get((topology, apply))
        if process is None:
            return None
        parts = [(process.low_watermark, process.applied)]
        parts += [(server.low_watermark, server.applied) for server in process.servers.values()]
        low_watermark, above = fold_ranges(max(part[0] for part in parts), [r for part in parts for r in part[1]])
        return ApplyProgress(epoch=process.epoch, low_watermark=low_watermark, above=above, ahead_scn=process.ahead_scn)

    def record_low_watermark(self, topology: str, apply: str, epoch: int, scn: Scn) -> None:
        """See `DestinationDatabase.record_low_watermark`."""
        process = self._process(topology, apply, epoch)
        process.low_watermark = Scn(max(process.low_watermark, scn))
        self.store.flush()

    def log_positions(self, topology: str, apply: str, epoch: int) -> LogPositions:
        """See `DestinationDatabase.log_positions`."""
        self._process(topology, apply, epoch)
        written = self.store.commit_count
        return LogPositions(written=written, flushed=written - len(self.store.unflushed))

    def describe_apply(
        self, topology: str, apply: str, epoch: int, configuration: Mapping[str, Any], state: Mapping[str, Any]
    ) -> None:
        """See `DestinationDatabase.describe_apply`."""
        described = self._reach().described
        if described.get((topology, apply), (0,))[0] <= epoch:
            described[topology, apply] = epoch, dict(configuration), dict(state)

    def open_session(
        self,
        topology: str,
        apply: str,
        *,
        server: int,
        epoch: int,
        tag: bytes,
        incarnation: int = 1,
        source: str = "",
        is_lazy: bool = False,
    ) -> MemorySession:
        """See `DestinationDatabase.open_session`."""
        process = self._process(topology, apply, epoch)
        if incarnation < process.incarnations.get(server, 0):
            raise FencedError(f"a newer session of apply server {server} of {apply} exists", apply=apply, epoch=epoch)
        process.incarnations[server] = incarnation
        if server in process.sessions:
            process.sessions[server].close()
        self.store.flush()
        session = MemorySession(
            self.store, process, (topology, apply, server, epoch), tag, self._settings, is_lazy=is_lazy
        )
        process.sessions[server] = session
        return session

    def errors(
        self,
        topology: str,
        apply: str | None = None,
        *,
        number: int | None = None,
        first: int | None = None,
    ) -> tuple[ErrorTransaction, ...]:
        """See `DestinationDatabase.errors`."""
        return tuple(
            error.transaction
            for _, error in sorted(self._reach().errors.items())
            if error.topology == topology
            and apply in {None, error.transaction.apply}
            and number in {None, error.transaction.number}
        )[:first]

    def conflicts(self, topology: str, apply: str | None = None, *, last: int) -> tuple[ConflictRecord, ...]:
        """See `DestinationDatabase.conflicts`."""
        found = [
            record
            for _, (of, record) in sorted(self._reach().conflicts.items())
            if of == topology and apply in {None, record.apply}
        ]
        return tuple(found[-last:])

    def error_batches(self, number: int, *, original: bool = False) -> Iterator[bytes]:
        """See `DestinationDatabase.error_batches`."""
        error = self._reach().errors.get(number)
        for part, (batch, _) in sorted(error.parts.items()) if error else ():
            yield error.originals.get(part, batch) if error is not None and original else batch

    def edit_error(
        self, topology: str, edit: ErrorEdit, *, part: int, batch: bytes, key_hashes: NDArray[np.uint64]
    ) -> bool:
        """See `DestinationDatabase.edit_error`."""
        store = self._reach()
        error = store.errors.get(edit.number)
        if error is None or error.topology != topology or edit.edit != error.transaction.edits + 1:
            return False
        store.flush()
        before, hashes = error.parts[part]
        error.originals.setdefault(part, before)
        error.parts[part] = batch, np.concatenate([hashes, np.asarray(key_hashes, np.uint64)])
        error.transaction = replace(error.transaction, edits=edit.edit)
        store.edits.append((topology, replace(edit, edited_us=store.clock.time_us())))
        return True

    def error_edits(self, topology: str, number: int | None = None) -> tuple[ErrorEdit, ...]:
        """See `DestinationDatabase.error_edits`; nothing is forgotten here."""
        return tuple(edit for of, edit in self._reach().edits if of == topology and number in {None, edit.number})

    def note_failure(self, topology: str, found: ErrorTransaction) -> None:
        """See `DestinationDatabase.note_failure`."""
        error = self._reach().errors.get(found.number)
        if error is not None and error.topology == topology:
            error.transaction = replace(
                error.transaction,
                depends_on=0,
                failed_position=found.failed_position,
                conflict_type=found.conflict_type,
                sqlstate=found.sqlstate,
                message=found.message,
                readable=found.readable,
            )

    def error_key_hashes(self, topology: str, apply: str) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        """See `DestinationDatabase.error_key_hashes`."""
        for transaction in self.errors(topology, apply):
            parts = sorted(self.store.errors[transaction.number].parts.items())
            yield transaction.number, np.concatenate([np.empty(0, np.uint64), *(hashes for _, (_, hashes) in parts)])

    def begin_handler_call(self, topology: str, apply: str, scn: Scn, function: str) -> int:
        """See `DestinationDatabase.begin_handler_call`."""
        self._reach().flush()
        calls, key = self._reach().handler_calls, (topology, apply, int(scn), function)
        calls[key] = calls.get(key, 0) + 1
        return calls[key] - 1

    def end_handler_calls(self, topology: str, apply: str, scns: Collection[Scn]) -> None:
        """See `DestinationDatabase.end_handler_calls`."""
        self._reach().flush()
        calls = self._reach().handler_calls
        for key in [key for key in calls if key[:2] == (topology, apply) and key[2] in scns]:
            del calls[key]

    def delete_errors(self, topology: str, numbers: Collection[int]) -> frozenset[int]:
        """See `DestinationDatabase.delete_errors`."""
        errors = self._reach().errors
        self.store.flush()
        there = frozenset(number for number in numbers if number in errors and errors[number].topology == topology)
        for number in there:
            self.store.end_error(number, "DELETED")
        return there

    def instantiations(self, topology: str, apply: str) -> tuple[Instantiation, ...]:
        """See `DestinationDatabase.instantiations`."""
        store = self._reach()
        names = {table.number: name for name, table in store.tables.items()}
        found = (
            self._as_it_is(table, store.recorded.get(key, 0), names)
            for key, table in store.instantiations.items()
            if key[:2] == (topology, apply)
        )
        return tuple(sorted(found, key=lambda table: (table.source, table.owner, table.name, table.identity)))

    def other_copies(self, topology: str, apply: str, owner: str, name: str) -> tuple[OtherCopy, ...]:
        """See `DestinationDatabase.other_copies`."""
        store = self._reach()
        stored = store.tables.get((owner, name))
        number = 0 if stored is None else stored.number
        return tuple(
            OtherCopy(
                topology=key[0],
                apply=key[1],
                source=found.source,
                state=found.state,
                row_count=found.row_count,
                digest=found.digest,
                identity=found.identity,
            )
            for key, found in sorted(store.instantiations.items())
            if key[:2] != (topology, apply)
            and ((found.owner, found.name) == (owner, name) or (number and store.recorded.get(key) == number))
            and (found.state in ROWS_THERE or (found.state == "FAILED" and found.scn > 0))
        )

    def record_instantiation(
        self,
        topology: str,
        apply: str,
        epoch: int,
        instantiation: Instantiation,
        *,
        replaces: Collection[str] = (),
        beside: Collection[OtherCopy] | None = None,
    ) -> bool:
        """See `DestinationDatabase.record_instantiation`."""
        self._process(topology, apply, epoch)
        if beside is not None and set(beside) != set(
            self.other_copies(topology, apply, instantiation.owner, instantiation.name)
        ):
            return False
        for identity in replaces:
            self.store.instantiations.pop((topology, apply, instantiation.source, identity), None)
        key = topology, apply, instantiation.source, instantiation.identity
        self.store.instantiations[key] = instantiation
        if not instantiation.is_remade:
            self.store.recorded[key] = self._number(instantiation)
        self.store.flush()
        return True

    def row_marks(self, topology: str, apply: str, source: str) -> dict[str, RowMark]:
        """See `DestinationDatabase.row_marks`."""
        return {key[3]: mark for key, mark in self._reach().row_marks.items() if key[:3] == (topology, apply, source)}

    def record_row_marks(
        self,
        topology: str,
        apply: str,
        epoch: int,
        source: str,
        marks: Mapping[str, RowMark],
        *,
        was: Mapping[str, RowMark] | None = None,
    ) -> None:
        """See `DestinationDatabase.record_row_marks`."""
        self._process(topology, apply, epoch)
        found = self.row_marks(topology, apply, source)
        changed = {
            identity: mark
            for identity, mark in marks.items()
            if was is None or found.get(identity) == was.get(identity)
        }
        kept = {
            key: mark
            for key, mark in self.store.row_marks.items()
            if key in self.store.instantiations or key[:3] != (topology, apply, source)
        }
        self.store.row_marks = kept | {
            (topology, apply, source, identity): mark
            for identity, mark in (found | changed).items()
            if identity in marks
        }

    def marked_columns(self, tables: Sequence[TableName]) -> dict[TableName, dict[str, MarkedColumn]]:
        """See `DestinationDatabase.marked_columns`: columns have no numbers."""
        return {}

    def computed_columns(self, table: TableName) -> dict[str, str]:
        """See `DestinationDatabase.computed_columns`: nothing is computed."""
        return {}

    def may_hold(self, table: TableName, part: TableName) -> bool:
        """See `DestinationDatabase.may_hold`."""
        return bool(self.filled([table]))

    def partition_rows(self, table: TableName, part: TableName) -> str:
        """See `DestinationDatabase.partition_rows`: it has no partitions."""
        return ""

    def missing_grant(self, part: TableName) -> str:
        """See `DestinationDatabase.missing_grant`: there are no rights."""
        return ""

    def remove_partition(
        self,
        topology: str,
        apply: str,
        epoch: int,
        table: TableName,
        part: TableName,
        *,
        how: str,
        may: Callable[[str], bool],
    ) -> bool:
        """See `DestinationDatabase.remove_partition`: it has no partitions."""
        return True

    def leave_out(self, topology: str, apply: str, *, kept: Collection[str]) -> tuple[Instantiation, ...]:
        """See `DestinationDatabase.leave_out`."""
        left = [
            found
            for found in self.instantiations(topology, apply)
            if found.identity.partition("/")[0] not in kept and found.state != "LEFT"
        ]
        if left:
            self.raise_epoch(topology, apply)
        for found in left:
            key = topology, apply, found.source, found.identity
            if found.is_kept or not found.scn:
                del self.store.instantiations[key]
            else:
                self.store.instantiations[key] = replace(found, state="LEFT")
        return tuple(left)

    def recorded_applies(self, topology: str) -> tuple[str, ...]:
        """See `DestinationDatabase.recorded_applies`."""
        return tuple(
            sorted(
                {
                    key[1]
                    for key, found in self.store.instantiations.items()
                    if key[0] == topology and found.state != "LEFT"
                }
            )
        )

    def join_tables(
        self, topology: str, apply: str, epoch: int, joining: Sequence[Instantiation], *, through: Scn
    ) -> ApplyProgress:
        """See `DestinationDatabase.join_tables`."""
        process = self._process(topology, apply, epoch)
        for key, found in self.store.instantiations.items():
            if key[:2] == (topology, apply) and found.state == "JOINING":
                self.store.instantiations[key] = replace(found, state="KEPT" if found.is_kept else "DONE")
        for each in joining:
            key = (topology, apply, each.source, each.identity)
            if self.store.instantiations[key].state not in {"COPYING", "COMPARING", "FAILED", "LEFT"}:
                self.store.instantiations[key] = replace(self.store.instantiations[key], state="JOINING")
        process.low_watermark = min([through, *(each.scn for each in joining)])
        process.applied, process.ahead_scn, process.servers = (), through, {}
        self.store.flush()
        progress = self.progress(topology, apply)
        assert progress is not None
        return progress

    def remove(self, topology: str) -> tuple[str, ...]:
        """See `DestinationDatabase.remove`."""
        for found, apply in list(self._reach().processes):
            if found == topology:
                self.forget(topology, apply)
        return ()

    def forget(self, topology: str, apply: str) -> tuple[str, ...]:
        """See `DestinationDatabase.forget`."""
        store = self._reach()
        if (topology, apply) in store.processes:
            self.raise_epoch(topology, apply)
            del store.processes[topology, apply]
        for error in self.errors(topology, apply):
            del store.errors[error.number]
        store.conflicts = {
            n: each for n, each in store.conflicts.items() if each[0] != topology or each[1].apply != apply
        }
        store.instantiations = {
            key: value for key, value in store.instantiations.items() if key[:2] != (topology, apply)
        }
        store.row_marks = {key: mark for key, mark in store.row_marks.items() if key[:2] != (topology, apply)}
        store.handler_calls = {key: calls for key, calls in store.handler_calls.items() if key[:2] != (topology, apply)}
        return ()

    def close(self) -> None:
        """See `DestinationDatabase.close`."""

    def _as_it_is(self, record: Instantiation, number: int, names: Mapping[int, tuple[str, str]]) -> Instantiation:
        """A record with what became of its table: of this number when it was recorded; 0: there was none."""
        return replace(
            record,
            is_remade=bool(number) and self._number(record) not in {0, number},
            name_now=names.get(number) if number else None,
            is_gone=bool(number) and number not in names,
        )

    def _number(self, of: Instantiation) -> int:
        """Of the table that has its name now; 0: there is none."""
        stored = self.store.tables.get((of.owner, of.name))
        return 0 if stored is None else stored.number

    def _reach(self) -> MemoryStore:
        if not self.store.is_reachable:
            raise DatabaseUnavailable(f"the database of {self._site} is not reachable")
        return self.store

    def _process(self, topology: str, apply: str, epoch: int) -> StoredProcess:
        process = self._reach().processes.get((topology, apply), StoredProcess())
        check_epoch(process.epoch, apply=apply, epoch=epoch, lives=process.life == self.store.life)
        return process


class MemorySession:
    """See `databases.ports.DestinationSession`."""

    def __init__(
        self,
        store: MemoryStore,
        process: StoredProcess,
        identity: tuple[str, str, int, int],
        tag: bytes,
        settings: TableSettings = NO_TABLE_SETTINGS,
        *,
        is_lazy: bool = False,
    ) -> None:
        self._settings = settings
        self._store, self._process, self._tag = store, process, tag
        self._topology, self._apply, self._number, self._epoch = identity
        self._server = process.servers.setdefault(self._number, StoredServer())
        self._server.sequence += 1
        self._sequence = self._server.sequence
        self._is_closed, self._is_lazy = False, is_lazy
        self._state = "idle"
        self._ahead = WrittenAhead()
        self._undo: list[Callable[[], object]] = []
        self._changes: list[tuple[int, StoredChange]] = []  # and how long `_undo` was then; empty while nobody listens
        self._savepoint: int | None = None
        self._at_commit: list[Callable[[], object]] = []
        self._commit_savepoint = 0
        self._deleted_errors: set[int] = set()
        # lengths of `_undo` and `_at_commit`, and the savepoint then
        self._marks: list[tuple[int, int, int | None, int]] = []

    # ------------------------------------------------------------------ tables

    def describe(self, owner: str, name: str, *, fresh: bool = False) -> DestinationTable | None:
        """See `DestinationSession.describe`; nothing is cached here."""
        self._live()
        found = self._store.tables.get((owner, name))
        return with_settings(found.table, self._settings, is_hidden=False) if found else None

    def missing_alter(self, version: TableVersion) -> str:
        """See `DestinationSession.missing_alter`."""
        return missing_alter(version, self.describe(version.owner, version.name)) or missing_key(
            version, self._settings
        )

    # ------------------------------------------------------------------ transactions

    def begin(self) -> None:
        """See `DestinationSession.begin`."""
        self._live()
        if self._state != "idle":
            raise BugError(f"begin in a session that is {self._state}")
        self._state = "open"

    def savepoint(self) -> None:
        """See `DestinationSession.savepoint`."""
        self._in_transaction()
        self._savepoint, self._commit_savepoint = len(self._undo), len(self._at_commit)

    def rollback_to_savepoint(self) -> None:
        """See `DestinationSession.rollback_to_savepoint`."""
        self._ahead.forget()
        self._live()
        if self._savepoint is None:
            raise BugError("there is no savepoint to go back to")
        self._undo_to(self._savepoint)
        del self._at_commit[self._commit_savepoint :]
        self._state = "open"

    def rollback(self) -> None:
        """See `DestinationSession.rollback`."""
        self._ahead.forget()
        self._undo_to(0)
        self._end()

    def commit(self, applied: Sequence[ScnRange], low_watermark: Scn, labels: Sequence[str] = ()) -> None:
        """See `DestinationSession.commit`."""
        self._in_transaction()
        store = self._store
        lost = store.lost_answers.popleft() if store.lost_answers else None
        if lost is False:
            self.close()
            raise DatabaseUnavailable("the connection broke before COMMIT")
        is_owner = self._process.servers.get(self._number) is self._server and self._server.sequence == self._sequence
        if self._process.epoch != self._epoch or not is_owner:
            self._state = "failed"
            raise FencedError(f"apply server {self._number} does not own its progress any more", apply=self._apply)
        for action in self._at_commit:
            action()
        taken_back = self._taken_back() if self._is_lazy and not self._at_commit else None
        self._server.low_watermark = Scn(max(self._server.low_watermark, low_watermark))
        self._server.applied = merge_ranges([*self._server.applied, *applied], self._server.low_watermark)
        self._server.sequence += 1
        self._sequence = self._server.sequence
        store.commit_count += 1
        store.tags.append(self._tag)
        commit = StoredCommit(
            self._topology, self._apply, self._tag, tuple(change for _, change in self._changes), tuple(labels)
        )
        self._undo.clear()
        self._changes.clear()
        self._end()
        if store.on_commit is not None:
            store.on_commit(commit)
        if taken_back is None:
            store.flush()
            store.is_durable(commit)
        else:
            store.unflushed.append((taken_back, commit))
        if lost:
            self.close()
            raise DatabaseUnavailable("the connection broke after COMMIT")

    def _taken_back(self) -> Callable[[], None]:
        """What a crash does to the open transaction, once it is committed and not flushed.

        Rows and progress are as before it.
        """
        server, before, undo = self._server, (self._server.low_watermark, self._server.applied), list(self._undo)

        def take_back() -> None:
            while undo:
                undo.pop()()
            server.low_watermark, server.applied = before

        return take_back

    def ask_outcome(self, applied: Sequence[ScnRange]) -> bool:
        """See `DestinationSession.ask_outcome`."""
        self._live()
        if not applied:
            raise BugError("a commit that recorded nothing has no outcome to ask for")
        return all(covers(self._server.low_watermark, self._server.applied, wanted) for wanted in applied)

    # ------------------------------------------------------------------ writing

    def write(self, writes: Sequence[Write]) -> tuple[int, ...]:
        """See `DestinationSession.write`."""
        self._in_transaction()
        try:
            return tuple(self._write_timed(write) for write in writes)
        except (DatabaseError, UnfitTableError):
            self._state = "failed"
            raise

    def write_ahead(self, writes: Sequence[Write]) -> Callable[[], tuple[int, ...]]:
        """See `DestinationSession.write_ahead`: they are written when they are waited for."""
        self._in_transaction()
        return self._ahead.expect(lambda: self.write(writes))

    def truncate(self, tables: Sequence[TruncatedTable], *, restart_identity: bool) -> None:
        """See `DestinationSession.truncate`; there are no foreign keys, no sequences and no partitions here."""
        self._in_transaction()
        for truncated in tables:
            found = self._store.tables[truncated.table.owner, truncated.table.name]
            holds = row_condition(found, truncated.partition)
            noted = len(self._changes)
            for number in [number for number, row in found.rows.items() if holds(row)]:
                self._change(found, number, None)
            if truncated.partition is None:
                del self._changes[noted:]
                self._undo.append(lambda: None)  # an empty table leaves nothing else to undo
                self._note(found, Command.TRUNCATE, None, None)

    def _table(self, write: Write) -> StoredTable:
        version = write.version
        found = self._store.tables.get((version.owner, version.name))
        missing = missing_alter(version, found.table if found else None) or missing_key(version, self._settings)
        if missing or found is None:
            raise unfit_error(version, missing, self._settings)
        return found

    def _write_timed(self, write: Write) -> int:
        if write.times is None or not write.row_count:
            return self._write(write)
        found = self._table(write)
        known = self._store.changes.setdefault((write.version.owner, write.version.name), {})
        notes = list(_notes_of(found, write))
        # As the real one: a row that was changed later here is not found, and what is noted is looked at behind the
        # write.
        if any(
            (there := known.get(key)) is not None
            and (there.own_us is not None or there.lost_us)
            and _stays(there, write.times, n)
            for n, key, _ in notes
        ):
            return -1
        count = self._write(write)
        for number, key, is_gone in notes:
            before = known.get(key)
            if before is not None and _stays(before, write.times, number):
                return -1
            self._note_change(
                found,
                known,
                key,
                LastChange(
                    noted_us=int(write.times.last_us[number]),
                    noted_rank=write.times.rank,
                    noted_source=write.times.source,
                    is_gone=is_gone,
                ),
            )
        return count

    def _note_change(self, found: StoredTable, known: dict[Row, LastChange], key: Row, change: LastChange) -> None:
        self._lock((id(found), "time", key))
        before = known.get(key)
        known[key] = change
        self._undo.append(lambda: known.pop(key) if before is None else known.__setitem__(key, before))

    def _write(self, write: Write) -> int:
        found = self._table(write)
        target = targets(found, write)
        writable = [p for p in write.set_columns if not found.table.columns[target[p]].is_generated]
        if write.command is Command.INSERT:
            assert write.new is not None
            for values in rows_of(write.new, writable, write):
                row: list[bytes | None] = [None] * len(found.table.columns)
                for position, value in zip(writable, values, strict=True):
                    row[target[position]] = value
                self._store.next_row += 1
                self._change(found, self._store.next_row, tuple(row))
            return write.row_count
        matches = self._matches(found, write, target)
        news = rows_of(write.new, writable, write) if write.new is not None else iter([()] * write.row_count)
        count = 0
        for numbers, values in zip(matches, list(news), strict=True):
            for number in numbers:
                changed: Row | None = None
                if write.command is Command.UPDATE:
                    updated = list(found.rows[number])
                    for position, value in zip(writable, values, strict=True):
                        updated[target[position]] = value
                    changed = tuple(updated)
                self._change(found, number, changed)
                count += 1
        return count

    def _matches(self, found: StoredTable, write: Write, target: list[int]) -> list[list[int]]:
        """Numbers of the rows that each of the write's rows changes, as of now."""
        assert write.old is not None
        compared = [
            p
            for p in dict.fromkeys((*write.match_columns, *write.compare_columns))
            if not found.table.columns[target[p]].is_generated
        ]
        index: dict[Row, list[int]] = {}
        for number, row in reversed(found.rows.items()):
            index.setdefault(tuple(row[target[p]] for p in compared), []).append(number)
        rows = found_rows(self._seen(found), write)
        by_key = (
            Counter(tuple(row[target[p]] for p in write.match_columns) for row in found.rows.values())
            if rows is FoundRows.SINGLE
            else Counter()
        )
        matches: list[list[int]] = []
        for number, values in enumerate(rows_of(write.old, compared, write)):
            numbers = index.get(values, [])
            if rows is not FoundRows.SINGLE:
                matches.append([numbers.pop()] if numbers else [])
            elif write.row_count == 1:
                matches.append(numbers)
            else:
                key = next(islice(rows_of(write.old, write.match_columns, write), number, None))
                matches.append(numbers if by_key[key] == 1 else [])
            if not matches[-1]:
                self._wait_for_key(found, write, target, dict(zip(compared, values, strict=True)))
        return matches

    def _seen(self, found: StoredTable) -> DestinationTable:
        return with_settings(found.table, self._settings, is_hidden=False)

    def _wait_for_key(
        self, found: StoredTable, write: Write, target: list[int], values: dict[int, bytes | None]
    ) -> None:
        """A row that is not there may be one that another open transaction has changed: that would be waited for."""
        by_target = {target[p]: value for p, value in values.items() if p in write.match_columns}
        key = self._seen(found).key
        if key and all(column in by_target for column in key):
            self._lock((id(found), 0, tuple(by_target[column] for column in key)), take=False)
        elif any(lock[0] == id(found) and owner is not self for lock, owner in self._store.locks.items()):
            raise _locked()

    def _change(self, found: StoredTable, number: int, row: Row | None) -> None:
        table = found.table
        old = found.rows.get(number)
        self._lock((id(found), "row", number))
        for image in (old, row):
            if image is not None:
                for lock in found.keys_of(image):
                    self._lock((id(found), *lock))
        if row is not None:
            for value, column in zip(row, table.columns, strict=True):
                if value is None and column.not_null and not column.is_generated:
                    raise DataError(
                        f"null value in column {column.name}",
                        sqlstate=_NOT_NULL_VIOLATION,
                        table=f"{table.owner}.{table.name}",
                    )
            for index, key in found.keys_of(row):
                if found.unique[index].get(key, number) != number:
                    raise DataError(
                        f"duplicate key in unique key {index}",
                        sqlstate=_UNIQUE_VIOLATION,
                        violates="unique",
                        table=f"{table.owner}.{table.name}",
                    )
        found.put(number, row)
        self._undo.append(lambda: found.put(number, old))
        self._note(
            found, Command.INSERT if old is None else Command.DELETE if row is None else Command.UPDATE, old, row
        )

    def _note(self, found: StoredTable, command: Command, old: Row | None, new: Row | None) -> None:
        if self._store.on_commit is not None:
            self._changes.append(
                (len(self._undo), StoredChange(found.table.owner, found.table.name, command, old, new))
            )

    def _lock(self, lock: tuple[Any, ...], *, take: bool = True) -> None:
        owner = self._store.locks.get(lock)
        if owner is not None and owner is not self:
            raise _locked()
        if take:
            self._store.locks[lock] = self

    # ------------------------------------------------------------------ copies

    def copy_rows(self, owner: str, name: str, columns: Sequence[str], rows: Iterable[bytes], *, form: str) -> int:
        """See `databases.copying.TableWriter.copy_rows`."""
        self._live()
        found = self._store.tables.get((owner, name))
        if found is None:
            raise DatabaseError(f"there is no table {owner}.{name}")
        names = [column.name for column in found.table.columns]
        places = [names.index(column) for column in columns]
        count = 0
        self.begin()
        try:
            for values in (values for block in rows for values in unpacked(block)):
                row: list[bytes | None] = [None] * len(names)
                for place, value in zip(places, values, strict=True):
                    row[place] = value
                self._store.next_row += 1
                self._change(found, self._store.next_row, tuple(row))
                count += 1
            self.commit([], Scn(0))
        except BaseException:
            self.rollback()
            raise
        return count

    def has_rows(self, table: DestinationTable) -> bool:
        """See `databases.copying.TableWriter.has_rows`."""
        self._live()
        return bool(self._store.tables[table.owner, table.name].rows)

    def empty_tables(self, tables: Sequence[DestinationTable]) -> None:
        """See `databases.copying.TableWriter.empty_tables`."""
        self.begin()
        self.truncate([TruncatedTable(table=table) for table in tables], restart_identity=False)
        self.commit([], Scn(0))

    def empty_marked(self, table: DestinationTable) -> str:
        """See `databases.copying.TableWriter.empty_marked`."""
        self.empty_tables([table])
        return self.files_mark(table)

    def files_mark(self, table: DestinationTable) -> str:
        """See `databases.copying.TableWriter.files_mark`."""
        self._live()
        return ""

    # ------------------------------------------------------------------ conflicts

    def find_rows(self, write: Write, question: RowQuestion) -> tuple[RowInTheWay, ...]:
        """See `DestinationSession.find_rows`."""
        self._in_transaction()
        found = self._table(write)
        rows = find_rows(found, write, question, self._store.types)
        for number, _ in rows:
            self._lock((id(found), "row", number))
        if question.by_key and write.old is not None:
            target, there = targets(found, write), {row.of for _, row in rows}
            for number, values in enumerate(rows_of(write.old, write.match_columns, write)):
                if number not in there:  # another open transaction has deleted or moved it: the real one waits for it
                    self._wait_for_key(found, write, target, dict(zip(write.match_columns, values, strict=True)))
        return tuple(row for _, row in rows)

    def conflicting(self, write: Write) -> NDArray[np.int64] | None:
        """See `DestinationSession.conflicting`."""
        self._in_transaction()
        found = self._table(write)
        numbers = conflicting(found, write, self._seen(found))
        if numbers is None:
            return None
        known = self._store.changes.get((write.version.owner, write.version.name), {})
        if write.times is not None:
            later = [n for n, key, _ in _notes_of(found, write) if key in known and _stays(known[key], write.times, n)]
            numbers = sorted({*numbers, *later})
        return np.array(numbers, np.int64)

    def last_changes(self, write: Write) -> tuple[LastChange, ...]:
        """See `DestinationSession.last_changes`."""
        self._in_transaction()
        found = self._table(write)
        assert write.old is not None
        known = self._store.changes.get((write.version.owner, write.version.name), {})
        changes = (known.get(key, LastChange()) for key in rows_of(write.old, _key_places(found, write), write))
        return tuple(
            replace(
                change,
                forgotten_us=self._store.forgotten_us,
                lost_us=_lost_us(change, write.times) if write.times is not None else 0,
            )
            for change in changes
        )

    def sample_times(self, *, age_s: float, every_s: float) -> None:
        """See `DestinationSession.sample_times`: `MemoryStore.lose_times` says itself how late what it loses was."""
        self._live()

    def forget_changes(self, *, age_s: float, count: int) -> int:
        """See `DestinationSession.forget_changes`."""
        self._live()
        store, oldest = self._store, self._store.clock.time_us() - int(age_s * 1e6)
        noted = sorted(
            (each.noted_us or each.own_us or each.lost_us, table, key)
            for table, keys in store.changes.items()
            for key, each in keys.items()
        )
        gone = [each for place, each in enumerate(noted) if each[0] < oldest or place < len(noted) - count]
        for time_us, table, key in gone:
            del store.changes[table][key]
            store.forgotten_us = max(store.forgotten_us, time_us)
        store.kept_times.update((table, key) for table, keys in store.changes.items() for key in keys)
        return len(gone)

    def run_sql(self, statements: Sequence[HandlerSql], *, timeout_s: float) -> tuple[SqlResult, ...]:
        """See `DestinationSession.run_sql`. There is no SQL here: `MemoryStore.sql` says what each text does."""
        self._in_transaction()
        results = []
        for statement in statements:
            answer = self._store.sql.get(" ".join(statement.sql.split()))
            if answer is None:
                self._state = "failed"
                raise DataError(
                    f"the database in memory does not know the statement {statement.sql!r}",
                    sqlstate="42601",
                    hint="say what it answers (MemoryStore.sql)",
                )
            try:
                values = (value.decoded if isinstance(value, LcrValue) else value for value in statement.values)
                rows = tuple(answer(self, tuple(values)))
            except (DatabaseError, UnfitTableError):
                self._state = "failed"
                raise
            # A statement without RETURNING changes rows, and answers none.
            results.append(SqlResult(rows=tuple(row for row in rows if row), row_count=len(rows)))
        return tuple(results)

    def put_row(self, owner: str, name: str, row: Row, *, instead_of: int | None = None) -> None:
        """Insert a row, or replace one, inside the transaction: for `MemoryStore.sql`.

        Args:
            owner: schema of the table.
            name: of the table in that schema.
            row: its values in the table's order.
            instead_of: number of the row (`StoredTable.rows`) that it replaces.
        """
        number = instead_of
        if number is None:
            self._store.next_row += 1
            number = self._store.next_row
        self._change(self._store.tables[owner, name], number, row)

    def mark(self) -> int:
        """See `DestinationSession.mark`."""
        self._in_transaction()
        self._marks.append((len(self._undo), len(self._at_commit), self._savepoint, self._commit_savepoint))
        self._savepoint = None
        return len(self._marks)

    def undo_to_mark(self, mark: int) -> None:
        """See `DestinationSession.undo_to_mark`."""
        self._ahead.forget()
        self._live()
        undo, at_commit = self._forget_marks(mark)
        self._undo_to(undo)
        del self._at_commit[at_commit:]
        self._state = "open"

    def drop_mark(self, mark: int) -> None:
        """See `DestinationSession.drop_mark`."""
        self._in_transaction()
        self._forget_marks(mark)

    def _forget_marks(self, mark: int) -> tuple[int, int]:
        if not 1 <= mark <= len(self._marks):
            raise BugError(f"there is no mark {mark} to go back to")
        undo, at_commit, self._savepoint, self._commit_savepoint = self._marks[mark - 1]
        del self._marks[mark - 1 :]
        return undo, at_commit

    def remove_row(self, table: DestinationTable, number: str) -> None:
        """See `DestinationSession.remove_row`."""
        self._in_transaction()
        self._change(self._store.tables[table.owner, table.name], int(number), None)

    def record_conflicts(self, records: Sequence[ConflictRecord], *, count_max: int, age_max_s: float) -> None:
        """See `DestinationSession.record_conflicts`."""
        self._in_transaction()
        store, records = self._store, tuple(records)

        def record() -> None:
            for each in records:
                store.conflicts[store.next_conflict] = (
                    self._topology,
                    replace(each, number=store.next_conflict, resolved_us=store.clock.time_us()),
                )
                store.next_conflict += 1
            oldest = store.clock.time_us() - age_max_s * 1e6
            for number in [
                n
                for n, (_, kept) in store.conflicts.items()
                if n < store.next_conflict - count_max or kept.resolved_us < oldest
            ]:
                del store.conflicts[number]

        self._at_commit.append(record)

    # ------------------------------------------------------------------ error queue

    def put_error(
        self,
        transaction: ErrorTransaction,
        batch: bytes,
        key_hashes: NDArray[np.uint64],
        *,
        part: int,
        readable: Sequence[str] = (),
    ) -> int:
        """See `DestinationSession.put_error`."""
        self._in_transaction()
        store = self._store
        number = transaction.number
        if number == 0:
            number = store.next_error
            store.next_error += 1
        described = replace(
            transaction,
            number=number,
            readable=tuple(readable) or transaction.readable,
            created_us=store.clock.time_us(),
        )

        def put() -> None:
            if part == 0:
                store.errors[number] = StoredError(self._topology, described)
            else:
                first = store.errors[number].transaction
                store.errors[number].transaction = replace(
                    first,
                    row_count=first.row_count + described.row_count,
                    commit_scn=max(first.commit_scn, described.commit_scn),
                    commit_time_us=max(first.commit_time_us, described.commit_time_us),
                )
            store.errors[number].parts[part] = (batch, np.array(key_hashes, np.uint64))

        self._at_commit.append(put)
        return number

    def delete_error(self, number: int) -> bool:
        """See `DestinationSession.delete_error`."""
        self._in_transaction()
        error = self._store.errors.get(number)
        if error is None or error.topology != self._topology or number in self._deleted_errors:
            return False
        self._deleted_errors.add(number)
        self._at_commit.append(lambda: self._store.end_error(number, "EXECUTED"))
        return True

    def take_errors(self, numbers: Sequence[int], *, bytes_max: int) -> TakenErrors:
        """See `DestinationSession.take_errors`."""
        batches: dict[int, tuple[bytes, ...]] = {}
        size = 0
        for count, number in enumerate(numbers):
            error = self._store.errors.get(number)
            mine = () if error is None else tuple(batch for _, (batch, _) in sorted(error.parts.items()))
            size += sum(map(len, mine))
            if size > bytes_max:
                return TakenErrors(count=count, batches=batches)
            if self.delete_error(number):
                batches[number] = mine
        return TakenErrors(count=len(numbers), batches=batches)

    def as_role(self, role: str) -> None:
        """See `DestinationSession.as_role`; a role has every right here."""
        self._in_transaction()
        if role and role not in self._store.roles:
            self._state = "failed"
            raise DataError(f"role {role!r} does not exist", sqlstate="22023")

    @property
    def is_closed(self) -> bool:
        """See `DestinationSession.is_closed`."""
        return self._is_closed

    def close(self) -> None:
        """See `DestinationSession.close`."""
        if self._is_closed:
            return
        self.rollback()
        self._is_closed = True
        if self._process.sessions.get(self._number) is self:
            del self._process.sessions[self._number]

    # ------------------------------------------------------------------ below

    def _undo_to(self, length: int) -> None:
        while len(self._undo) > length:
            self._undo.pop()()
        while self._changes and self._changes[-1][0] > length:
            self._changes.pop()

    def _end(self) -> None:
        self._state, self._savepoint = "idle", None
        self._marks.clear()
        self._at_commit.clear()
        self._deleted_errors.clear()
        for lock in [lock for lock, owner in self._store.locks.items() if owner is self]:
            del self._store.locks[lock]

    def _live(self) -> None:
        if not self._store.is_reachable:
            self.close()
        if self._is_closed:
            raise DatabaseUnavailable("the session at the destination is closed: open a new one")
        self._ahead.settle()

    def _in_transaction(self) -> None:
        self._live()
        if self._state != "open":
            raise BugError(f"a transaction is needed, the session is {self._state}")


def _lost_us(change: LastChange, times: WriteTimes) -> int:
    """`LastChange.lost_us`; without tombstones a delete counts for nothing."""
    return 0 if change.is_gone and not times.has_tombstones else change.lost_us


def _stays(change: LastChange, times: WriteTimes, row: int) -> bool:
    """Whether a change is later than a row of a write, or may be."""
    return change.is_later_than(times, row) or replace(change, lost_us=_lost_us(change, times)).may_be_later_than(
        times, row
    )


def _key_places(found: StoredTable, write: Write) -> tuple[int, ...]:
    """The table's key as positions in a write's version."""
    places = {column.name: place for place, column in enumerate(write.version.columns)}
    return tuple(places[found.table.columns[place].name] for place in found.table.key)


def _notes_of(found: StoredTable, write: Write) -> Iterator[tuple[int, Row, bool]]:
    """What a write leaves of its rows: number of the row, a key, and whether that is gone; a key that is left first."""
    key = _key_places(found, write)
    if write.command is Command.INSERT:
        assert write.new is not None
        yield from ((number, values, False) for number, values in enumerate(rows_of(write.new, key, write)))
        return
    assert write.old is not None
    before = list(rows_of(write.old, key, write))
    if write.command is Command.DELETE:
        yield from ((number, values, True) for number, values in enumerate(before))
        return
    after = before
    moved = [place for place in key if place in write.set_columns]
    if moved:
        assert write.new is not None
        found_new = list(rows_of(write.new, moved, write))
        after = [
            tuple(found_new[n][moved.index(p)] if p in moved else before[n][i] for i, p in enumerate(key))
            for n in range(write.row_count)
        ]
        yield from ((number, values, True) for number, values in enumerate(before) if values != after[number])
    yield from ((number, values, False) for number, values in enumerate(after))


def _locked() -> DatabaseUnavailable:
    return DatabaseUnavailable("another transaction holds the row", sqlstate=_LOCK_NOT_AVAILABLE)
