"""An in-memory database that can be a destination: tables, transactions, progress, fencing, error queue.

Longer than 500 lines: it has one method per method of the ports, and nothing else.

For unit tests and simulations; verified by the same contract suite as the real connector (`tests/contract`). It behaves
like the real one where apply could notice a difference:

- Unique and NOT NULL violations fail the transaction with the real SQLSTATEs.
- A set is matched against the state at the start of its statement; rows without a key are paired one to one.
- A row that another open transaction has written cannot be written (the real one waits, then reports
  lock_not_available).
- A rollback undoes everything; a newer epoch ends older sessions; the end of the store's life ends every epoch.

Values are bytes and equal when their bytes are.

Several `MemoryDestination`s on one `MemoryStore` stand for several processes at one database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import DatabaseUnavailable, FencedError
from headrace.databases.memory.rows import misfit, seen
from headrace.databases.memory.session import MemorySession
from headrace.databases.memory.store import (
    MemoryStore,
    StoredDdl,
    StoredProcess,
)
from headrace.databases.ports import (
    AWAITING,
    ROWS_THERE,
    ApplyProgress,
    ArrivalSeen,
    Carried,
    ComputedColumn,
    ComputedDifference,
    ConflictRecord,
    DdlIn,
    DdlJob,
    DdlOutcomeKind,
    DdlPlace,
    DestinationTable,
    EnumLabels,
    ErrorEdit,
    ErrorTransaction,
    Finding,
    Instantiation,
    LogPositions,
    MarkedColumn,
    OtherCopy,
    PlannedApply,
    PlannedStatement,
    RowMark,
    TableShape,
    deleted_with,
)
from headrace.databases.progress import check_epoch, fold_ranges
from headrace.lcr.batch import TableVersion
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings

__all__ = ["MemoryDestination", "MemorySession", "MemoryStore"]


class MemoryDestination:
    """An in-memory `headrace.databases.ports.DestinationDatabase`.

    More than 25 methods: one per method of the port, over one store.
    """

    def __init__(
        self,
        *,
        store: MemoryStore | None = None,
        site: str = "memory",
        settings: TableSettings = NO_TABLE_SETTINGS,
    ) -> None:
        """Open a process's access to `store`, or to a new one; `settings`: of the apply process that uses it."""
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
        """See `DestinationDatabase.tables_in`: every schema exists."""
        return frozenset(name for of, name in self.store.tables if of == owner)

    def nested_tables(self, tables: Collection[TableName]) -> Mapping[TableName, TableName]:
        """See `DestinationDatabase.nested_tables`: no table has partitions."""
        return {}

    def is_reserved(self, owner: str) -> bool:
        """See `DestinationDatabase.is_reserved`: records are in no table here."""
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
                misfit(
                    version,
                    self.describe(version.owner, version.name),
                    self._settings,
                    (at_source or {}).get(TableName.of(version)),
                ),
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
        earlier_labels: Mapping[TableName, Mapping[str, str]],
    ) -> tuple[Finding, ...]:
        """See `DestinationDatabase.preflight_shapes`."""
        self._reach()
        return ()

    def preflight_domains(self, shapes: Sequence[TableShape]) -> tuple[Finding, ...]:
        """See `DestinationDatabase.preflight_domains`."""
        self._reach()
        return ()

    def plan(self, topology: str, applies: Sequence[PlannedApply]) -> tuple[PlannedStatement, ...]:
        """See `DestinationDatabase.plan`: nothing needs creating."""
        self._reach()
        return ()

    def prepare(self, topology: str) -> tuple[str, ...]:
        """See `DestinationDatabase.prepare`."""
        self._reach()
        return ()

    def preflight_times(self, tables: Collection[tuple[str, str]], *, has_tombstones: bool) -> tuple[Finding, ...]:
        """See `DestinationDatabase.preflight_times`: tests record the times of users' changes (`MemoryStore.changed_here`)."""
        return ()

    def keep_tombstones(self, tables: Collection[tuple[str, str]]) -> tuple[str, ...]:
        """See `DestinationDatabase.keep_tombstones`."""
        return ()

    def preflight_ddl(self, tables: Collection[TableName], *, release: int) -> tuple[Finding, ...]:
        """See `DestinationDatabase.preflight_ddl`: tables have no owners."""
        self._reach()
        return ()

    def describe(self, owner: str, name: str) -> DestinationTable | None:
        """See `DestinationDatabase.describe`."""
        found = self._reach().tables.get((owner, name))
        return seen(found, self._settings) if found else None

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

    def ddl_outcomes(self, topology: str, apply: str, places: Collection[DdlPlace]) -> dict[DdlPlace, DdlOutcomeKind]:
        """See `DestinationDatabase.ddl_outcomes`."""
        history = self._reach().ddl_history
        return {
            each.place: each.outcome.kind
            for each in history
            if (each.topology, each.apply) == (topology, apply) and each.place in places
        }

    def ddl_jobs(self, topology: str, apply: str) -> tuple[DdlJob, ...]:
        """See `DestinationDatabase.ddl_jobs`."""
        self._reach()
        return ()

    def run_ddl_job(
        self, topology: str, apply: str, epoch: int, number: int, *, should_end: Callable[[], bool]
    ) -> None:
        """See `DestinationDatabase.run_ddl_job`: there is none."""

    def delete_errors(self, topology: str, numbers: Collection[int], *, ddl_in: DdlIn | None = None) -> frozenset[int]:
        """See `DestinationDatabase.delete_errors`."""
        errors = self._reach().errors
        self.store.flush()
        there = frozenset(number for number in numbers if number in errors and errors[number].topology == topology)
        for number in sorted(there):
            of, parts = errors[number].transaction, errors[number].parts
            for part in sorted(parts) if ddl_in is not None else ():
                if ddl_in is not None and (found := ddl_in(parts[part][0])) is not None:
                    change, place = found
                    self.store.record_ddl(StoredDdl(topology, of.apply, change.base_table, place, deleted_with(number)))
            self.store.end_error(number, "DELETED")
        return there

    def instantiations(self, topology: str, apply: str) -> tuple[Instantiation, ...]:
        """See `DestinationDatabase.instantiations`."""
        store = self._reach()
        names = {table.number: name for name, table in (store.tables | store.leaving).items()}
        found = (
            self._as_it_is(table, store.recorded.get(key, 0), names)
            for key, table in store.instantiations.items()
            if key[:2] == (topology, apply)
        )
        return tuple(sorted(found, key=lambda table: (table.source, table.owner, table.name, table.identity)))

    def arrival_seen(self, topology: str, apply: str, identity: str, *, snapshot: str) -> ArrivalSeen | None:
        """See `DestinationDatabase.arrival_seen`: nothing is committed while a snapshot is in use."""
        progress = self.progress(topology, apply)
        record = next((each for each in self.instantiations(topology, apply) if each.identity == identity), None)
        if progress is None or record is None:
            return None
        return ArrivalSeen(record=record, progress=progress, has_errors=bool(self.errors(topology, apply)))

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
                scn=found.scn,
                row_count=found.row_count,
                digest=found.digest,
                identity=found.identity,
            )
            for key, found in sorted(store.instantiations.items())
            if key[:2] != (topology, apply)
            and ((found.owner, found.name) == (owner, name) or (number and store.recorded.get(key) == number))
            and (found.state in {*ROWS_THERE, AWAITING} or (found.state == "FAILED" and found.scn > 0))
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
        carries: Sequence[Carried] = (),
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
        self._let_go_on(topology, carries)
        self.store.flush()
        return True

    def _let_go_on(self, topology: str, carries: Sequence[Carried]) -> None:
        for carried in carries:
            for key, found in self.store.instantiations.items():
                of_it = (key[0], key[1], found.identity) == (topology, carried.apply, carried.identity)
                if of_it and found.state == AWAITING and found.scn <= carried.scn:
                    self.store.instantiations[key] = replace(
                        found, state="COPIED", scn=carried.scn, row_count=0, digest=""
                    )

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
        """See `DestinationDatabase.marked_columns`: columns have no numbers here."""
        return {}

    def enum_labels(self, table: TableName) -> tuple[EnumLabels, ...]:
        """See `DestinationDatabase.enum_labels`: enumerated types do not exist here."""
        return ()

    def computed_differences(
        self,
        table: TableName,
        wanted: Sequence[ComputedColumn],
        among: Mapping[str, Collection[TableName]],
        accepted: Collection[str] = (),
    ) -> dict[str, ComputedDifference]:
        """See `DestinationDatabase.computed_differences`: nothing is computed."""
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
            if found.is_kept or found.state == AWAITING or not found.scn:
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
            if self.store.instantiations[key].state not in {"COPYING", "COMPARING", "FAILED", "LEFT", AWAITING}:
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
        """Complete a record with its table's present state; `number`: of its table when recorded; 0: no table existed."""
        return replace(
            record,
            is_remade=bool(number) and self._number(record) not in {0, number},
            name_now=names.get(number) if number else None,
            is_gone=bool(number) and number not in names,
        )

    def _number(self, of: Instantiation) -> int:
        """Return the number of the table that has the record's name now; 0: no such table."""
        stored = (self.store.tables | self.store.leaving).get((of.owner, of.name))
        return 0 if stored is None else stored.number

    def _reach(self) -> MemoryStore:
        if not self.store.is_reachable:
            raise DatabaseUnavailable(f"the database of {self._site} is not reachable")
        return self.store

    def _process(self, topology: str, apply: str, epoch: int) -> StoredProcess:
        process = self._reach().processes.get((topology, apply), StoredProcess())
        check_epoch(process.epoch, apply=apply, epoch=epoch, lives=process.life == self.store.life)
        return process
