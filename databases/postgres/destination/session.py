"""One apply server's session at a PostgreSQL destination.

Longer than 500 lines: each method is a promise of `DestinationSession` over the state of one connection and
transaction.

Job
    Write sets of row changes and the progress they mean in one transaction, tagged and fenced.

Main path
    PostgresSession.describe -> begin -> write (plan_write, parameters, Pipeline.run) -> commit.

States (memory only; the database has the durable truth)
    IDLE      no transaction.
    PENDING   `begin` was called, nothing was sent: BEGIN travels with the first write.
    OPEN      in a transaction.
    FAILED    a statement failed: only `rollback` or `rollback_to_savepoint` go on.
    CLOSED    `close` was called, or the connection broke: every call raises DatabaseUnavailable.

Durable when
    COMMIT was answered, with the log on disk whatever `synchronous_commit` the server, the role or the database has
    (`fencing.commit_durably`). A session that was opened with `is_lazy` does not wait for the disk in the COMMIT of
    rows alone: these are durable when the server's flushed position says so (`DestinationDatabase.log_positions`), and
    a crash before takes rows and progress together. What is told to an operator or read by other processes is always
    waited for: a transaction that writes or takes error transactions, and all that is no `commit`. `commit` moves the
    server's row in headrace.apply_progress by compare-and-set (epoch, sequence) in the transaction of the data: of two
    sessions that believe to be the same server at most one commits, and after a newer epoch none of the older ones. An
    epoch ends with the server's life in which it began (`fencing`): what a crash, a failover or a restore took back is
    not hidden below what later commits record.

Who holds what
    Two session-level advisory locks: the apply process's in share mode (`raise_epoch` finds and ends all its sessions
    by it, and knows by an exclusive lock that they are gone), the server's own exclusively (a successor finds and
    ends the dead session of the same server). And the replication origin `headrace:<topology>/<apply>/<server>:<tag>`,
    which marks every change of this session in the log.

Worked flow
    server 0 commits {100..140} with low watermark 90; the answer is lost -> DatabaseUnavailable
    new session of server 0: waits until the old backend is gone, reads its row
    ask_outcome({100..140}) -> True: it was made; False: it was not and never will be
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
from psycopg import pq

from databases.applied_tables import missing_key, unfit_error
from databases.ports import (
    ConflictRecord,
    DestinationTable,
    ErrorTransaction,
    FoundRows,
    HandlerSql,
    LastChange,
    RowInTheWay,
    RowQuestion,
    ScnRange,
    SqlResult,
    TakenErrors,
    TruncatedTable,
    Write,
)
from databases.postgres.conflict_history import record_conflicts
from databases.postgres.connection import connect, qualified, quote, translated
from databases.postgres.destination.catalog import FIRST_USER_TYPE, SAME_FORM, CatalogTable, CheckedKey, describe_table
from databases.postgres.destination.error_queue import delete_errors, put_error, take_errors
from databases.postgres.destination.fencing import (
    COMMIT_LAZILY,
    SessionIdentity,
    apply_lock_key,
    claim,
    commit_durably,
    take_origin,
    take_over,
    take_server_lock,
)
from databases.postgres.destination.handler_sql import checks_of, refused_sql, run_statements
from databases.postgres.destination.kept_session import KEPT, NO_TIMEOUT, SETTLE, SessionGuard, timeout_of
from databases.postgres.destination.lost_times import sample_times
from databases.postgres.destination.noted_sets import blur_sets, exact_changes, note_sets
from databases.postgres.destination.recent_changes import MOMENT, MOMENTS, Horizon, note_origin
from databases.postgres.destination.rights import missing_grants
from databases.postgres.destination.row_changes import (
    CLOCK_AHEAD_MAX_S,
    forget_changes,
    meeting_point,
    noted_writes,
    plan_last_changes,
    read_last_changes,
    wait_for_clock,
    with_notes,
)
from databases.postgres.destination.rows_in_the_way import plan_conflicting, plan_find, read_rows, remove_statement
from databases.postgres.destination.writing.foreign_keys import (
    ForeignKeyChecks,
    value_statement,
    violation,
    whole_check,
)
from databases.postgres.destination.writing.pipeline import PREPARED_MAX, Pipeline, Statement
from databases.postgres.destination.writing.truncation import (
    delete_partition,
    explain_referred,
    explain_undescribed,
    same_partition,
)
from databases.postgres.destination.writing.write_errors import (
    explain,
    is_outdated,
    is_right,
    is_stale,
    raise_refused,
    raise_refused_at_end,
)
from databases.postgres.destination.writing.writes import (
    COPY_ROWS_MIN,
    SetStatement,
    WritePlan,
    copy_blocks,
    identity_may_change,
    located,
    parameters,
    plan_write,
    row_chunks,
    wrapper_name,
)
from databases.postgres.event_triggers import failed_in
from databases.postgres.partitions import files_of
from databases.postgres.table_copy import copy_in, has_rows
from databases.postgres.types import missing_alter
from databases.progress import covers, merge_ranges, ranges_from_bounds, ranges_to_bounds
from databases.written_ahead import WrittenAhead
from rules.table_settings import NO_TABLE_SETTINGS, TableSettings
from streams.errors import (
    BugError,
    DatabaseError,
    DatabaseUnavailable,
    DataError,
    DestinationRestarted,
    FencedError,
    UnfitTableError,
)
from streams.lcr_batch import Command, TableVersion
from streams.scn import Scn
from streams.tracking import TRACK_PREFIX

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PostgresSession"]

# A transaction that waits this long for a row lock gives up and is tried again: it may wait for a transaction that
# waits in the coordinator for it, which PostgreSQL's deadlock detector cannot see.
_LOCK_TIMEOUT_MS = 5000
_SETTINGS = {
    "session_replication_role": "replica",
    "lock_timeout": str(_LOCK_TIMEOUT_MS),
    # One plan per statement, made once, whatever the statistics say at that moment: rows are found by index, once
    # per row of the set. Left to itself the planner scans a table it takes for small.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_mergejoin": "off",
    # Before 18 a switched-off scan that is needed all the same has a huge cost, which would start the compiler.
    "jit": "off",
}

# Plans kept: a table's version and the set of its changed columns have one each, and a table of n large columns has 2
# to the n such sets. A plan has one prepared statement at least, so more of them than those would seldom help.
PLANS_MAX = PREPARED_MAX

_DIVISION_BY_ZERO = "22012"
_UNTRANSLATABLE = "22P05"

_BEGIN = Statement(sql="BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
_COMMIT = Statement(sql="COMMIT")
# A session that writes no such table for so long asks again how far transactions are: a number that is 2^31 behind
# would be taken for one to come.
_HORIZON_LASTS_S = 600.0
_HORIZON = Statement(sql=MOMENT, prepared=True)  # behind a COMMIT, whose transaction has ended then
# What is deferred runs before the checks of the session, and not behind them in the COMMIT.
_ALL_NOW = Statement(sql="SET CONSTRAINTS ALL IMMEDIATE")
_NO_LOOPS = Statement(sql="SET LOCAL enable_nestloop = off")
_LOOPS = Statement(sql="SET LOCAL enable_nestloop = on")

# Fails when the row is not as this session left it: a division by zero stops the transaction before its COMMIT,
# without a round trip in between.
# As bytes: this database's encoding may lack a letter of the source's, and data must not fail for the label's sake.
_LABEL = f"SELECT pg_catalog.pg_logical_emit_message(true, '{TRACK_PREFIX}', $1::bytea)"
_MAY_LABEL = (
    "SELECT pg_catalog.bool_and(pg_catalog.has_function_privilege(oid, 'EXECUTE')) FROM pg_catalog.pg_proc"
    " WHERE proname = 'pg_logical_emit_message'"
)

# Tables of a foreign key whose rows are left out while they are copied, or that have joined the others and are behind
# them yet.
_NOT_LEVEL = """SELECT FROM headrace.instantiation i JOIN headrace.apply_process p USING (topology, apply)
WHERE topology = $1::text AND apply = $2::text AND ((owner, name) = ($3::text, $4::text) OR (owner, name) = ($5::text, $6::text))
  AND (state NOT IN ('DONE', 'KEPT', 'LEFT', 'JOINING') OR (state = 'JOINING' AND $7::int8 < ahead)) LIMIT 1"""
_AHEAD_OF_ALL = Scn((1 << 63) - 1)  # an error transaction that is executed comes behind everything that is applied

_ADVANCE = """WITH moved AS (
    UPDATE headrace.apply_progress
    SET sequence = $5 + 1, low_watermark = $6, applied = $7, applied_at = pg_catalog.clock_timestamp()
    WHERE topology = $1 AND apply = $2 AND server = $3 AND epoch = $4 AND sequence = $5 RETURNING 1)
SELECT 1 / pg_catalog.count(*) FROM moved"""


class _State(Enum):
    IDLE = "idle"
    PENDING = "pending"
    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"


class PostgresSession:
    """See the module, and `databases.ports.DestinationSession`. Used by one thread."""

    def __init__(
        self, dsn: str, identity: SessionIdentity, settings: TableSettings = NO_TABLE_SETTINGS, *, is_lazy: bool = False
    ) -> None:
        """Open the session; ends a predecessor's that is still there.

        Args:
            dsn: of the destination.
            identity: which server of which incarnation.
            settings: of its apply process: how it sees the tables.
            is_lazy: its transactions of rows alone do not wait for the disk; see the module.

        Raises:
            FencedError: a newer epoch or a newer incarnation of the server exists.
            DestinationRestarted: the server's life in which the epoch began has ended.
            DatabaseUnavailable: no connection, or the predecessor cannot be ended.
            DatabaseError: a right is missing (`headrace check` names it).
        """
        self._dsn, self._identity, self._settings, self._is_lazy = dsn, identity, settings, is_lazy
        self._open()

    def _open(self) -> None:
        self._connection = connect(self._dsn, application_name=self._identity.application_name)
        try:
            self._pipeline = Pipeline(self._connection)
            self._tables: dict[tuple[str, str], CatalogTable] = {}
            self._plans: OrderedDict[Any, WritePlan] = OrderedDict()  # the one that was used last is last
            self._generation = 0
            self._wrappers: set[str] = set()
            self._wrapped_in_transaction = False
            self._state = _State.IDLE
            self._pending: list[Statement] = []
            self._ahead = WrittenAhead()
            self._waits_for_disk = False  # the open transaction holds what is told to an operator
            self._is_changed = False  # by users' SQL; that does not all go with a rollback
            self._guard = SessionGuard(self._connection, self._identity, _SETTINGS)
            self._sets = 0  # that are noted of this transaction
            self._latest_us = 0  # of the times that this transaction has written, microseconds since the epoch
            self._source = ""  # whose changes this transaction has written with their times
            self._noted_source = ""  # for which the origin is noted
            self._horizon = Horizon()
            self._horizon_until = 0.0  # by the monotonic clock: then the server is asked again
            self._checked_sql: set[str] = set()  # texts of handlers that the server's parser has taken
            self._has_savepoint = self._has_timeout = self._had_timeout = False
            self._foreign_keys = ForeignKeyChecks(self._settings)
            self._marks: list[bool] = []  # whether there was a savepoint when each was set
            self._writes_labels: bool | None = None  # not asked yet
            # tables that have the form they were described with, and are locked
            self._checked: set[tuple[str, str]] = set()
            with translated("opening an apply server's session"):
                self._settle()
            self._read_progress()
        except BaseException:
            self._connection.close()
            raise

    # ------------------------------------------------------------------ opening

    def _settle(self) -> None:
        connection, identity = self._connection, self._identity
        connection.execute(SETTLE, ([*_SETTINGS, *KEPT], [*_SETTINGS.values(), *(None for _ in KEPT)]))
        commit_durably(connection)
        claim(connection, identity)
        connection.execute(
            "SELECT pg_catalog.pg_advisory_lock_shared(%s)", (apply_lock_key(identity.topology, identity.apply),)
        )
        take_server_lock(connection, identity)
        self._may_stamp = take_origin(connection, identity)
        self._advance = (
            _ADVANCE.replace(" FROM moved", f", {identity.stamp} FROM moved") if self._may_stamp else _ADVANCE
        )
        self._advance_lazily = self._advance.replace(" FROM moved", f", {COMMIT_LAZILY} FROM moved")

    def _read_progress(self) -> None:
        """Take over the server's row; see `take_over` for the errors."""
        with translated("taking over an apply server's progress"):
            self._sequence, self._low_watermark, applied = take_over(self._connection, self._identity)
        self._applied = ranges_from_bounds(applied)

    # ------------------------------------------------------------------ tables

    def describe(self, owner: str, name: str, *, fresh: bool = False) -> DestinationTable | None:
        """See `DestinationSession.describe`."""
        catalog = self._catalog(owner, name, fresh=fresh)
        return catalog.table if catalog else None

    def missing_alter(self, version: TableVersion) -> str:
        """See `DestinationSession.missing_alter`."""
        return missing_alter(version, self._catalog(version.owner, version.name)) or missing_key(
            version, self._settings
        )

    def _catalog(self, owner: str, name: str, *, fresh: bool = False) -> CatalogTable | None:
        found = self._tables.get((owner, name))
        if found is not None and not fresh:
            return found
        self._live()
        self._send_pending()
        catalog = describe_table(self._connection, owner, name, self._settings)
        if catalog == found and found is not None:
            return found  # plans stay good
        self._forget(owner, name)
        if catalog is not None:
            self._tables[owner, name] = catalog
        return catalog

    def _forget(self, owner: str, name: str) -> None:
        self._tables.pop((owner, name), None)
        self._pipeline.forget()
        self._plans = OrderedDict((key, plan) for key, plan in self._plans.items() if key[:2] != (owner, name))

    # ------------------------------------------------------------------ transactions

    def begin(self) -> None:
        """See `DestinationSession.begin`."""
        self._live()
        if self._state is not _State.IDLE:
            raise BugError(f"begin in a session that is {self._state.value}")
        self._state = _State.PENDING
        self._waits_for_disk = False
        self._pending = [_BEGIN]
        self._end_handlers()
        self._checked.clear()

    def savepoint(self) -> None:
        """See `DestinationSession.savepoint`. Travels with the next statement."""
        self._in_transaction()
        if self._has_savepoint:
            self._pending.append(Statement(sql="RELEASE SAVEPOINT headrace"))
        self._pending.append(Statement(sql="SAVEPOINT headrace"))
        self._has_savepoint = True

    def rollback_to_savepoint(self) -> None:
        """See `DestinationSession.rollback_to_savepoint`. Travels with the next statement."""
        self._ahead.forget()
        self._live()
        if not self._has_savepoint:
            raise BugError("there is no savepoint to go back to")
        self._pending.append(Statement(sql="ROLLBACK TO SAVEPOINT headrace"))
        self._checked.clear()  # a table's lock goes with what locked it
        self._has_timeout = self._had_timeout
        if self._state is _State.FAILED:
            self._state = _State.OPEN
        self._forget_wrappers()

    def rollback(self) -> None:
        """See `DestinationSession.rollback`."""
        self._ahead.forget()
        if self._state in {_State.OPEN, _State.FAILED}:
            try:
                self._pipeline.run([Statement(sql="ROLLBACK")], "rolling back")
            except DatabaseError:
                # Then the server rolls back by itself: it ends the transaction with the connection.
                self._close()
        if self._state is not _State.CLOSED:
            self._state = _State.IDLE
        self._pending = []
        self._end_handlers()
        self._forget_wrappers()
        if self._is_changed:
            self._renew()

    def _renew(self) -> None:
        """A new connection in place of one that a handler changed: not all of it goes with a rollback."""
        self._close()
        with contextlib.suppress(DatabaseUnavailable):  # then the next call says so
            self._open()

    def commit(self, applied: Sequence[ScnRange], low_watermark: Scn, labels: Sequence[str] = ()) -> None:
        """See `DestinationSession.commit`: one round trip for progress and COMMIT."""
        self._in_transaction()
        self._check_foreign_keys(applied)
        identity = self._identity
        watermark = max(self._low_watermark, low_watermark)
        ranges = merge_ranges([*self._applied, *applied], watermark)
        advance = Statement(
            sql=self._advance_lazily if self._is_lazy and not self._waits_for_disk else self._advance,
            prepared=True,
            parameters=(
                identity.topology.encode(),
                identity.apply.encode(),
                _int4(identity.server),
                _int8(identity.epoch),
                _int8(self._sequence),
                _int8(watermark),
                _int8_array(ranges_to_bounds(ranges)),
            ),
        )
        written = [Statement(sql=_LABEL, parameters=(label.encode(),)) for label in labels if self._may_label()]
        checks = (
            [*self._guard.check(next(iter(self._wrappers), "")), self._guard.owner_check()]
            if self._guard.is_needed
            else []
        )
        deferred = [_ALL_NOW] if checks else []
        waits = [wait_for_clock(self._latest_us)] if self._latest_us else []
        if checks:  # what users' SQL wrote may be rows of tables with latest_timestamp
            self._source = self._source or identity.source
        names = self._origin_notes() if self._source != self._noted_source else []
        if checks and self._sets:
            names.append(blur_sets(identity.origin))
        ended = [_HORIZON] if self._latest_us else []
        statements = [*self._pending, *written, *deferred, *checks, *names, *waits, advance, _COMMIT, *ended]
        commit = len(statements) - len(ended) - 1
        try:
            results = self._pipeline.run(statements, "committing")
        except DatabaseError as error:
            self._fail()
            self._explain_commit(error, statements, commit, checks=checks, waits=bool(waits))
            raise
        self._pending = []
        if results[commit].command_status != b"COMMIT":
            self._fail()
            raise BugError("a transaction that had failed was committed")
        self._state = _State.IDLE
        self._noted_source = self._source
        if self._latest_us:
            self._note_moments(results[-1])
        if checks and self._guard.has_rest(results[statements.index(checks[-1])]):
            self._take_back()
        self._end_handlers()
        self._wrapped_in_transaction = False
        self._sequence += 1
        self._low_watermark = watermark
        self._applied = ranges

    def _explain_commit(
        self,
        error: DatabaseError,
        statements: Sequence[Statement],
        commit: int,
        *,
        checks: Sequence[Statement],
        waits: bool,
    ) -> None:
        place, identity = error.context.get("statement"), self._identity
        if isinstance(place, int) and place > commit:
            self._close()  # it is committed, and the next session finds that
            raise DatabaseUnavailable("the session was interrupted behind a COMMIT") from error
        self._raise_changed(error, is_check=isinstance(place, int) and statements[place] in checks)
        if error.context.get("sqlstate") == _DIVISION_BY_ZERO and waits and place == commit - 2:
            raise DatabaseError(
                f"the clock of a source is more than {CLOCK_AHEAD_MAX_S:g} s ahead of this server's: with"
                " latest_timestamp nothing is applied until it has passed",
                hint="set the clocks of all sites by one time service, then start the apply process (`headrace"
                " start FILE apply:NAME`)",
            ) from error
        if error.context.get("sqlstate") == _DIVISION_BY_ZERO and place == commit - 1:
            raise FencedError(
                f"apply server {identity.server} of {identity.apply} is not the owner of its progress any more",
                apply=identity.apply,
                epoch=identity.epoch,
            ) from error
        if isinstance(place, int) and statements[place] in {_ALL_NOW, _COMMIT}:
            raise_refused_at_end(error)  # by a trigger that runs at the end of the transaction

    def _origin_notes(self) -> list[Statement]:
        """See `note_origin`; outside of all savepoints, within which a row would not have the transaction's own number."""
        is_set = self._marks[0] if self._marks else self._has_savepoint
        released = [*(["headrace_mark_1"] if self._marks else []), *(["headrace"] if is_set else [])]
        return [
            *(Statement(sql=f"RELEASE SAVEPOINT {name}") for name in released),
            note_origin(self._identity.origin, self._source, has_times=self._may_stamp),
        ]

    def _take_back(self) -> None:
        """Let go of what users' SQL has left behind; the transaction is committed, whatever becomes of the session."""
        try:
            with translated("taking back what handlers left in the session"):
                is_done = self._guard.take_back()
        except DatabaseError:
            is_done = False
        if not is_done:
            self._close()

    def _check_foreign_keys(self, applied: Sequence[ScnRange]) -> None:
        """See `foreign_keys`.

        Args:
            applied: what the transaction is about to record.

        Raises:
            DataError: a row refers to one that is not there; roll back.
        """
        found = self._foreign_keys
        for key, is_referred in found.whole:
            result = self._run([Statement(sql=whole_check(key, is_referred=is_referred))], "checking a foreign key")[-1]
            if result.ntuples and self._is_level(key, applied):
                raise violation(key)
        for check in found.values:
            statement, builder = value_statement(check, self._fitting(check.write), self._generation)
            plan = WritePlan(statements=(statement,), wrapped=tuple(builder.wrapped.values()))
            if any(result.ntuples for _, result in self._ask(plan, check.write)) and self._is_level(check.key, applied):
                raise violation(check.key)
        found.clear()

    def _is_level(self, key: CheckedKey, applied: Sequence[ScnRange]) -> bool:
        """Whether both tables of a foreign key are as of one moment.

        None is left out for its copy, or still behind the others.
        """
        identity = self._identity
        names = (identity.topology, identity.apply, key.owner, key.name, key.referred_owner, key.referred_name)
        parameters = (
            *(name.encode() for name in names),
            _int8(min((each.after for each in applied), default=_AHEAD_OF_ALL)),
        )
        return not self._run([Statement(sql=_NOT_LEVEL, parameters=parameters)], "asking which tables are copied")[
            -1
        ].ntuples

    def ask_outcome(self, applied: Sequence[ScnRange]) -> bool:
        """See `DestinationSession.ask_outcome`."""
        if not applied:
            raise BugError("a commit that recorded nothing has no outcome to ask for")
        return all(covers(self._low_watermark, self._applied, wanted) for wanted in applied)

    # ------------------------------------------------------------------ writing

    def write(self, writes: Sequence[Write]) -> tuple[int, ...]:
        """See `DestinationSession.write`. Sends as much as possible in one round trip."""
        return self._begin_write(writes)()

    def write_ahead(self, writes: Sequence[Write]) -> Callable[[], tuple[int, ...]]:
        """See `DestinationSession.write_ahead`: the last round trip is under way."""
        return self._ahead.expect(self._begin_write(writes))

    def _begin_write(self, writes: Sequence[Write]) -> Callable[[], tuple[int, ...]]:
        self._in_transaction()
        writes = [self._timed(write) for write in writes]
        # rows affected in the tables, what is noted of them, and what was noted that is later
        every = [*writes, *writes, *writes]
        counts = [0] * len(every)
        noted = [0] * len(writes)
        statements: list[tuple[int, Statement]] = []
        held: set[str] = set()  # locks, by their statements
        self._note_fired(write.version for write in writes if write.row_count)
        for number, write in enumerate(writes):
            if write.row_count == 0:
                continue
            plan = self._plan(write)
            meeting = [] if write.times is None else meeting_point(write, self._fitting(write))
            statements += [(-1, each) for each in meeting if each.parameters or each.sql not in held]
            held |= {each.sql for each in meeting}
            if plan.copy and write.row_count >= COPY_ROWS_MIN:
                self._run_writes(every, statements, counts)
                statements = []
                counts[number] += self._copy(plan, write)
            else:
                statements = self._add(every, number, plan.statements, counts, statements, is_paired=plan.paired)
            if write.times is not None:
                self._latest_us = max(self._latest_us, int(write.times.times_us.max()), int(write.times.last_us.max()))
                self._source = write.times.source
                statements = self._add(every, 2 * len(writes) + number, plan.checks, counts, statements, is_own=True)
            for timed in noted_writes(write) if plan.notes else ():
                noted[number] += len(plan.notes) * timed.row_count
                every[len(writes) + number] = timed
                statements = self._add(every, len(writes) + number, plan.notes, counts, statements, is_own=True)
            statements += [(-1, note) for note in self._with_own_rights(self._set_notes(write))]
        read = self._send_writes(every, statements, counts)

        def counted() -> tuple[int, ...]:
            read()
            if self._settings.check_foreign_keys:
                for write in writes:
                    self._foreign_keys.note(write, self._fitting(write))
            found, notes, later = (counts[place * len(writes) : (place + 1) * len(writes)] for place in range(3))
            return tuple(
                count if notes[number] == noted[number] and not later[number] else -1
                for number, count in enumerate(found)
            )

        return counted

    def _with_own_rights(self, statements: list[Statement]) -> list[Statement]:
        """Statements of what Headrace notes beside the rows.

        A role that was taken for these (`as_role`) has no rights on it, and needs none.
        """
        role = self._guard.role
        return (
            [Statement(sql="RESET ROLE"), *statements, Statement(sql=f"SET LOCAL ROLE {quote(role)}")]
            if role and statements
            else statements
        )

    def _run_own(self, statement: Statement, what: str) -> pq.abc.PGresult:
        """Run one statement of what Headrace notes; its result."""
        statements = self._with_own_rights([statement])
        return self._run(statements, what)[statements.index(statement) - len(statements)]

    def _set_notes(self, write: Write) -> list[Statement]:
        """See `note_sets`."""
        times = write.times
        if times is None or times.keys is None or times.has_one_source or write.command is Command.DELETE:
            return []
        notes = note_sets(write, self._fitting(write), origin=self._identity.origin, part=self._sets)
        self._sets += len(notes)
        return notes

    def _note_moments(self, result: pq.abc.PGresult) -> None:
        for row in range(result.ntuples):
            self._horizon.note(int(result.get_value(row, 0) or 0), int(result.get_value(row, 1) or 0))
        self._horizon_until = time.monotonic() + _HORIZON_LASTS_S

    def _timed(self, write: Write) -> Write:
        """A write as this session can tell which changes are later."""
        if write.times is None:
            return write
        if time.monotonic() >= self._horizon_until:
            self._note_moments(self._run_own(Statement(sql=MOMENTS), "asking how far transactions are"))
        # Without the right to stamp, the server has one commit time for all transactions of the session: rows need
        # notes.
        return write if self._may_stamp else replace(write, times=replace(write.times, has_one_source=False, keys=None))

    def _add(
        self,
        writes: Sequence[Write],
        number: int,
        planned: Sequence[SetStatement],
        counts: list[int],
        statements: list[tuple[int, Statement]],
        *,
        is_paired: bool = False,
        is_own: bool = False,
    ) -> list[tuple[int, Statement]]:
        """Add a write's statements to those that were not sent yet; answers those that are not sent yet.

        `is_own`: they are of Headrace's tables.
        """
        write = writes[number]
        for statement in planned:
            for first, last in row_chunks(statement, write):
                values = parameters(statement, write, first, last, self._horizon)
                planned_one = Statement(sql=statement.sql, parameters=values, prepared=True)
                around = [_NO_LOOPS, planned_one, _LOOPS] if is_paired else [planned_one]
                around = self._with_own_rights(around) if is_own else around
                statements += [(number if each is planned_one else -1, each) for each in around]
                if last < write.row_count:
                    # Chunks are as large as one round trip should be.
                    self._run_writes(writes, statements, counts)
                    statements = []
        return statements

    def truncate(self, tables: Sequence[TruncatedTable], *, restart_identity: bool) -> None:
        """See `DestinationSession.truncate`."""
        self._in_transaction()
        self._note_fired(found.table for found in tables)
        names: list[str] = []
        for found in tables:
            relation = self._relation(found.table) if found.partition is None else self._partition(found)
            if relation:
                names.append(relation)
            else:
                self._delete_partition(found)
        if not names:
            return
        restart = " RESTART IDENTITY" if restart_identity else ""
        truncated = [found.table for found in tables]
        try:
            self._run([Statement(sql=f"TRUNCATE {', '.join(dict.fromkeys(names))}{restart} RESTRICT")], "truncating")
        except DatabaseError as error:
            explain_referred(error, [f"{table.owner}.{table.name}" for table in truncated])
            self._explain(error, truncated, "TRUNCATE")
            raise

    def _relation(self, table: DestinationTable) -> str:
        """How statements name a table: without the tables that inherit from it, which are tables of their own."""
        catalog = self._catalog(table.owner, table.name)
        return catalog.relation if catalog else qualified(table.owner, table.name)

    def _partition(self, found: TruncatedTable) -> str:
        with self._own_statements("looking for a partition"):
            return same_partition(self._connection, found)

    def _delete_partition(self, found: TruncatedTable) -> None:
        statement = delete_partition(self._relation(found.table), found)
        try:
            self._run([Statement(sql=statement)], "deleting the rows of a truncated partition")
        except DatabaseError as error:
            explain_undescribed(error, found)
            self._explain(error, [found.table], "TRUNCATE")
            raise
        if (catalog := self._catalog(found.table.owner, found.table.name)) is not None:
            self._foreign_keys.note_removed(catalog)

    def _plan(self, write: Write) -> WritePlan:
        version = write.version
        catalog = self._catalog(version.owner, version.name)
        columns = catalog.table.columns if catalog else ()
        moves = (
            write.command is Command.UPDATE
            and any(column.is_identity_always for column in columns)
            and catalog is not None
            and identity_may_change(write, catalog)
        )
        key = (
            version.owner,
            version.name,
            version.version or version.columns,
            write.command,
            write.match_columns,
            write.compare_columns,
            write.set_columns,
            write.paired,
            moves,
            catalog is not None and _counts_alone(write, catalog),
            None
            if (times := write.times) is None
            else (
                times.source,
                times.has_one_source,
                times.keys is None,
                times.is_decided,
                times.awaited is None,
                times.keeps_key,
            ),
        )
        plan = self._plans.get(key)
        if plan is None:
            catalog = self._fitting(write)
            plan = plan_write(write, catalog, generation=self._generation, moves=moves)
            if write.times is not None:
                plan = with_notes(plan, write, catalog, self._generation)
            self._make_wrappers(plan, write)
            if len(self._plans) >= PLANS_MAX:
                self._plans.popitem(last=False)
            self._plans[key] = plan
        else:
            self._plans.move_to_end(key)
        return plan

    def _make_wrappers(self, plan: WritePlan, write: Write) -> None:
        missing = {
            name: form for form in plan.wrapped if (name := wrapper_name(form, self._generation)) not in self._wrappers
        }
        statements = [Statement(sql=f"CREATE TYPE {name} AS (f {form.type_name})") for name, form in missing.items()]
        if not statements:
            return
        try:
            if self._state is _State.PENDING:
                # Before the transaction begins, so that its rollback does not take them away.
                self._pipeline.run(statements, "making types for array values")
            else:
                self._wrapped_in_transaction = True
                self._run(statements, "making types for array values")
        except DatabaseError as error:
            what, fix = failed_in(self._dsn, error)
            if what and is_right(error):
                named = f"{write.command.name} of {write.version.qualified_name}"
                raise DataError(f"{named}: {error.message}: {what}. {fix}", hint=fix, **error.context) from error
            self._explain(error, [write.version], write.command.name)
            raise
        self._wrappers |= missing.keys()

    def _forget_wrappers(self) -> None:
        if self._wrapped_in_transaction:
            self._wrapped_in_transaction = False
            self._generation += 1
            self._wrappers.clear()
            self._plans.clear()

    def _run_writes(
        self,
        writes: Sequence[Write],
        statements: list[tuple[int, Statement]],
        counts: list[int],
        *,
        unchecked: Sequence[int] = (),
    ) -> None:
        """Run statements, and see that their tables have the form they were written for.

        Args:
            writes: what statements belong to.
            statements: number of the write, -1 for none; and the statement.
            counts: rows affected, by write; added to.
            unchecked: writes whose statement ran before (COPY).
        """
        self._send_writes(writes, statements, counts, unchecked=unchecked)()

    def _send_writes(
        self,
        writes: Sequence[Write],
        statements: list[tuple[int, Statement]],
        counts: list[int],
        *,
        unchecked: Sequence[int] = (),
    ) -> Callable[[], None]:
        """As `_run_writes`, but only send; the answer reads what came of it."""
        numbers = dict.fromkeys([*unchecked, *(number for number, _ in statements if number >= 0)])
        tables = {(w.version.owner, w.version.name) for w in (writes[number] for number in numbers)} - self._checked
        check = self._check(tables)
        if not statements and not check:
            return lambda: None
        before = len(self._pending)
        send = self._send([*(statement for _, statement in statements), *check], "writing")

        def read() -> None:
            try:
                results = send()
            except DatabaseError as error:
                place = error.context.get("statement", -1)
                if isinstance(place, int) and place >= before + len(statements):
                    self._raise_altered(tables, error)
                number = statements[place - before][0] if isinstance(place, int) and place >= before else -1
                # What is noted of rows comes behind the rows' own writes (`_begin_write`), and is in tables of
                # Headrace.
                if 0 <= number < max(1, len(writes) // 3):
                    self._explain(error, [writes[number].version], writes[number].command.name)
                raise
            self._checked.update(tables)
            for (number, _), result in zip(statements, results[: len(statements)], strict=True):
                if number >= 0:
                    counts[number] += result.command_tuples or 0

        return read

    def _check(self, tables: set[tuple[str, str]]) -> list[Statement]:
        """Whether tables that were just written, and so are locked, still are what they were described as.

        A statement that was made for another form often works all the same, through an assignment cast or because two
        types have values of one length: it would write something else.
        """
        described = [catalog for catalog in (self._tables.get(key) for key in sorted(tables)) if catalog is not None]
        return [
            Statement(sql=SAME_FORM, parameters=(_int8(catalog.oid), _int8(catalog.form)), prepared=True)
            for catalog in described
        ]

    def _raise_altered(self, tables: set[tuple[str, str]], error: DatabaseError) -> None:
        if error.context.get("sqlstate") != _DIVISION_BY_ZERO:
            return
        for key in tables:
            self._forget(*key)
        names = ", ".join(".".join(key) for key in sorted(tables))
        raise UnfitTableError(
            f"the destination table {names} was altered meanwhile",
            hint="it is described again at the next attempt",
            table=names,
            altered="meanwhile",
        ) from error

    def _explain(self, error: DatabaseError, tables: Sequence[TableVersion | DestinationTable], command: str) -> None:
        """Raise what an error means for these tables.

        Raises:
            UnfitTableError: one was altered since it was described: it is described again at the next attempt.
            DataError: the destination refused the rows, or the statement.
        """
        names, types = [f"{table.owner}.{table.name}" for table in tables], list[str]()
        if is_stale(error) and (altered := self._altered(tables)):
            raise UnfitTableError(
                f"the destination table {', '.join(altered)} is not as it was described: {error.message}",
                hint="it is described again at the next attempt",
                table=", ".join(altered),
                altered="meanwhile",
            ) from error
        for table in tables:
            found = self._tables.get((table.owner, table.name))
            types += (
                [details.form.type_name for details in found.columns if details.form.type_number >= FIRST_USER_TYPE]
                if found
                else []
            )
        grants: Sequence[str] = ()
        if is_right(error):  # in another session, as `_altered` asks
            catalogs = [
                (catalog, table)
                for table in tables
                if (catalog := self._tables.get((table.owner, table.name))) is not None
            ]
            grants = missing_grants(self._dsn, self._identity.application_name, self._guard.role, catalogs, command)
        explain(error, names, command, list(dict.fromkeys(types)), grants)

    def _altered(self, tables: Sequence[TableVersion | DestinationTable]) -> list[str]:
        """Those tables that are not as they were described, which is forgotten.

        Asked in another session: nothing can be asked in a transaction that has failed.
        """
        with contextlib.closing(connect(self._dsn, application_name=self._identity.application_name)) as connection:
            with translated("preparing a look at altered tables"):
                # What is altered right now may wait for this session's transaction.
                connection.execute(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}")
            altered = {
                (table.owner, table.name): None
                for table in tables
                if describe_table(connection, table.owner, table.name, self._settings)
                != self._tables.get((table.owner, table.name))
            }
        for key in altered:
            self._forget(*key)
        return [".".join(key) for key in altered]

    def _copy(self, plan: WritePlan, write: Write) -> int:
        self._send_pending()
        try:
            chunks = list(row_chunks(plan.statements[0], write))
            copied = self._pipeline.copy_in(plan.copy, copy_blocks(plan, write, chunks), "writing")
            self._run_writes([write], [], [0], unchecked=[0])
            return copied
        except DatabaseError as error:
            self._fail()
            self._explain(error, [write.version], write.command.name)
            raise
        except BaseException:
            self._fail()
            raise

    # ------------------------------------------------------------------ conflicts

    def find_rows(self, write: Write, question: RowQuestion) -> tuple[RowInTheWay, ...]:
        """See `DestinationSession.find_rows`."""
        catalog = self._fitting(write)
        plan = plan_find(write, catalog, question, self._generation)
        if plan is None:
            return ()
        return tuple(
            row for first, result in self._ask(plan, write) for row in read_rows(result, catalog, question, first=first)
        )

    def last_changes(self, write: Write) -> tuple[LastChange, ...]:
        """See `DestinationSession.last_changes`."""
        catalog = self._fitting(write)
        plan = plan_last_changes(write, catalog, self._generation)
        found = [each for _, result in self._ask(plan, write, is_own=True) for each in read_last_changes(result)]
        if write.times is None:
            return tuple(change for change, _ in found)
        return exact_changes(
            lambda asked: self._run_own(asked, "looking for rows in the way"), catalog, write.times, found
        )

    def forget_changes(self, *, age_s: float, count: int) -> int:
        """See `DestinationSession.forget_changes`."""
        self._live()
        if self._state is not _State.IDLE:
            raise BugError(
                f"changes are forgotten in a transaction of their own, and the session is {self._state.value}"
            )
        with translated("forgetting the times of old changes"):
            return forget_changes(self._connection, age_s=age_s, count=count)

    def sample_times(self, *, age_s: float, every_s: float) -> None:
        """See `DestinationSession.sample_times`."""
        self._live()
        if self._state is not _State.IDLE:
            raise BugError(f"times are sampled in a transaction of their own, and the session is {self._state.value}")
        with translated("noting how far commit times go back"):
            sample_times(self._connection, age_s=age_s, every_s=every_s)

    def conflicting(self, write: Write) -> NDArray[np.int64] | None:
        """See `DestinationSession.conflicting`."""
        write = self._timed(write)
        plan = plan_conflicting(write, self._fitting(write), self._generation)
        if plan is None:
            return None
        found: list[int] = []
        for first, result in self._ask(plan, write, is_own=True):
            found += [first + int(result.get_value(row, 0) or 0) for row in range(result.ntuples)]
        return np.array(sorted(found), np.int64)

    # ------------------------------------------------------------------ handlers

    def run_sql(self, statements: Sequence[HandlerSql], *, timeout_s: float) -> tuple[SqlResult, ...]:
        """See `DestinationSession.run_sql`."""
        self._in_transaction()
        self._note_session()
        unknown = [text for text in dict.fromkeys(each.sql for each in statements) if text not in self._checked_sql]
        try:
            self._run([*checks_of(unknown), timeout_of(timeout_s)], "SQL of a handler")
            self._has_timeout = self._had_timeout = True
            if len(self._checked_sql) + len(unknown) > PREPARED_MAX:
                self._checked_sql.clear()
            self._checked_sql.update(unknown)
            self._guard.ran_handlers = True
            results = run_statements(self._connection, statements)
        except DatabaseError as error:
            self._fail()
            self._raise_changed(error, is_check=False)
            self._raise_outdated(error)
            refused = refused_sql(error)
            if refused is error:
                raise
            raise refused from error
        except BaseException:
            self._fail()
            raise
        if self._connection.pgconn.transaction_status != pq.TransactionStatus.INTRANS:
            self._close()
            raise BugError("a handler's SQL ended the transaction", hint="report the statement")
        self._check_session()
        return results

    def _note_session(self) -> None:
        """Before the first SQL of users, and before another role is taken; most sessions never need it."""
        if not self._guard.is_noted:
            with self._own_statements("preparing the checks behind a handler"):
                self._guard.note()

    def _note_fired(self, tables: Iterable[TableVersion | DestinationTable]) -> None:
        """Before tables are written: their triggers and rules may change the session."""
        for table in tables:
            catalog = self._catalog(table.owner, table.name)
            if catalog is not None and catalog.table.fires:
                self._note_session()
                self._guard.fired(f"{table.owner}.{table.name}")

    def _check_session(self) -> None:
        try:
            self._run(self._guard.check(next(iter(self._wrappers), "")), "checking the session behind a handler")
        except DatabaseError as error:
            self._raise_changed(error, is_check=True)
            raise

    def _raise_changed(self, error: DatabaseError, *, is_check: bool) -> None:
        changed = self._guard.changed(error, is_check=is_check)
        if changed is not None:
            self._is_changed = True  # for good: see `rollback`
            raise changed from error

    def _raise_outdated(self, error: DatabaseError) -> None:
        """What is prepared goes with the session; the rows, or the handler, are not at fault."""
        if is_outdated(error):
            self._close()
            raise DatabaseUnavailable(
                f"{error.message}: a table was altered", hint="the statement is prepared again, in another session"
            ) from error

    def mark(self) -> int:
        """See `DestinationSession.mark`. Travels with the next statement."""
        self._in_transaction()
        # A savepoint of the outer level is not released behind the mark: that would release the mark with it.
        self._marks.append(self._has_savepoint)
        self._has_savepoint = False
        self._pending.append(Statement(sql=f"SAVEPOINT headrace_mark_{len(self._marks)}"))
        return len(self._marks)

    def undo_to_mark(self, mark: int) -> None:
        """See `DestinationSession.undo_to_mark`. Travels with the next statement."""
        self._ahead.forget()
        self._live()
        self._forget_marks(mark)
        self._pending += [
            Statement(sql=f"ROLLBACK TO SAVEPOINT headrace_mark_{mark}"),
            Statement(sql=f"RELEASE SAVEPOINT headrace_mark_{mark}"),
        ]
        self._checked.clear()  # a table's lock goes with what locked it
        self._has_timeout = self._had_timeout  # as it was at the mark, for all that is known
        if self._state is _State.FAILED:
            self._state = _State.OPEN
        self._forget_wrappers()

    def drop_mark(self, mark: int) -> None:
        """See `DestinationSession.drop_mark`. Travels with the next statement."""
        self._in_transaction()
        self._forget_marks(mark)
        self._pending.append(Statement(sql=f"RELEASE SAVEPOINT headrace_mark_{mark}"))

    def _forget_marks(self, mark: int) -> None:
        if not 1 <= mark <= len(self._marks):
            raise BugError(f"there is no mark {mark} to go back to")
        self._has_savepoint = self._marks[mark - 1]
        del self._marks[mark - 1 :]

    def remove_row(self, table: DestinationTable, number: str) -> None:
        """See `DestinationSession.remove_row`."""
        catalog = self._catalog(table.owner, table.name)
        assert catalog is not None
        self._note_fired([table])
        parameters = tuple(part.encode() for part in number.split(" "))
        try:
            self._run(
                [Statement(sql=remove_statement(catalog), parameters=parameters, prepared=True)],
                "deleting a row that is in the way",
            )
        except DatabaseError as error:
            self._explain(error, [table], "DELETE")
            raise
        self._foreign_keys.note_removed(catalog)

    def record_conflicts(self, records: Sequence[ConflictRecord], *, count_max: int, age_max_s: float) -> None:
        """See `DestinationSession.record_conflicts`."""
        with self._own_statements("writing the history of conflicts"):
            record_conflicts(
                self._connection, self._identity.topology, records, count_max=count_max, age_max_s=age_max_s
            )

    def _fitting(self, write: Write) -> CatalogTable:
        """The table of a write, which must fit."""
        self._in_transaction()
        version = write.version
        catalog = self._catalog(version.owner, version.name)
        missing = missing_alter(version, catalog) or missing_key(version, self._settings)
        if missing or catalog is None:
            raise unfit_error(version, missing, self._settings)
        return catalog

    def _ask(self, plan: WritePlan, write: Write, *, is_own: bool = False) -> list[tuple[int, pq.abc.PGresult]]:
        """Run a plan's only statement over the values of a write.

        For each chunk of its rows the first one's number, and the result. `is_own`: see `_add`.
        """
        self._make_wrappers(plan, write)
        (statement,) = plan.statements
        results: list[tuple[int, pq.abc.PGresult]] = []
        for first, last in row_chunks(statement, write):
            asked = Statement(
                sql=statement.sql, parameters=parameters(statement, write, first, last, self._horizon), prepared=True
            )
            try:
                what = "looking for rows in the way"
                results.append((first, self._run_own(asked, what) if is_own else self._run([asked], what)[-1]))
            except DatabaseError as error:
                self._explain(error, [write.version], write.command.name)
                raise
        return results

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
        self._waits_for_disk = True
        with self._own_statements("writing to the error queue"):
            return put_error(
                self._connection,
                self._identity.topology,
                transaction,
                batch,
                key_hashes,
                part=part,
                readable=readable or transaction.readable,
            )

    def delete_error(self, number: int) -> bool:
        """See `DestinationSession.delete_error`."""
        self._waits_for_disk = True
        with self._own_statements("deleting an error transaction"):
            return bool(delete_errors(self._connection, self._identity.topology, (number,), outcome="EXECUTED"))

    def take_errors(self, numbers: Sequence[int], *, bytes_max: int) -> TakenErrors:
        """See `DestinationSession.take_errors`."""
        self._waits_for_disk = True
        with self._own_statements("deleting error transactions"):
            return take_errors(self._connection, self._identity.topology, numbers, bytes_max=bytes_max)

    def as_role(self, role: str) -> None:
        """See `DestinationSession.as_role`."""
        self._note_session()
        statement = f"SET LOCAL ROLE {quote(role)}" if role else "RESET ROLE"
        with self._own_statements("taking a role"):
            try:
                if self._guard.ran_handlers:
                    self._check_session()
                self._connection.execute(statement.encode())
                self._guard.role = role
            except (psycopg.errors.InvalidParameterValue, psycopg.errors.InsufficientPrivilege) as error:
                raise DataError(
                    f"the session cannot take the role {role!r}: {error.diag.message_primary}",
                    sqlstate=error.sqlstate or "",
                ) from error

    @property
    def is_closed(self) -> bool:
        """See `DestinationSession.is_closed`."""
        return self._state is _State.CLOSED or bool(self._connection.closed)

    def close(self) -> None:
        """See `DestinationSession.close`."""
        self._close()

    # ------------------------------------------------------------------ copies

    def copy_rows(self, owner: str, name: str, columns: Sequence[str], rows: Iterable[bytes], *, form: str) -> int:
        """See `databases.copying.TableWriter.copy_rows`."""
        self._live()
        if self._may_stamp:
            with translated("copying rows", table=f"{owner}.{name}"):
                self._connection.execute(f"SELECT {self._identity.stamp}".encode())
        try:
            return copy_in(self._connection, owner, name, columns, rows, form=form)
        except DatabaseError as error:
            if error.context.get("sqlstate") == _UNTRANSLATABLE:
                error.context["lacking_encoding"] = self._connection.info.parameter_status("server_encoding") or ""
            raise_refused(error)
            raise

    def has_rows(self, table: DestinationTable) -> bool:
        """See `databases.copying.TableWriter.has_rows`."""
        self._live()
        return has_rows(self._connection, table)

    def empty_tables(self, tables: Sequence[DestinationTable]) -> None:
        """See `databases.copying.TableWriter.empty_tables`."""
        self._empty(tables)

    def empty_marked(self, table: DestinationTable) -> str:
        """See `databases.copying.TableWriter.empty_marked`."""
        return self._empty([table])

    def files_mark(self, table: DestinationTable) -> str:
        """See `databases.copying.TableWriter.files_mark`."""
        self._live()
        with translated("measuring a table", table=f"{table.owner}.{table.name}"):
            return files_of(self._connection, table.owner, table.name)

    def _empty(self, tables: Sequence[DestinationTable]) -> str:
        """Empty tables; returns the mark of the first one, empty if rows of others may be in it."""
        try:
            self.begin()
            self.truncate([TruncatedTable(table=table) for table in tables], restart_identity=False)
            # Under the lock of the TRUNCATE: who waits for it writes as soon as this commits.
            with self._own_statements("measuring a table"):
                found = files_of(self._connection, tables[0].owner, tables[0].name)
            self.commit([], Scn(0))
        except (DatabaseUnavailable, DestinationRestarted):
            raise
        except DatabaseError:
            # A table that another one refers to cannot be truncated alone.
            self.rollback()
            for table in tables:
                with translated("emptying a table", table=f"{table.owner}.{table.name}"):
                    self._connection.execute(f"DELETE FROM {self._relation(table)}".encode())
            return ""
        return found

    # ------------------------------------------------------------------ below

    @contextlib.contextmanager
    def _own_statements(self, what: str) -> Iterator[None]:
        """Statements through psycopg inside the transaction; an error fails it."""
        self._in_transaction()
        self._send_pending()
        try:
            with translated(what):
                yield
        except BaseException:
            self._fail()
            raise

    def _may_label(self) -> bool:
        """Whether this role may write labels into this database's log; without the right they end here."""
        if self._writes_labels is None:
            (found,) = self._run([Statement(sql=_MAY_LABEL)], "asking for the right to write labels")
            self._writes_labels = found.get_value(0, 0) == b"t"
        return self._writes_labels

    def _run(self, statements: Sequence[Statement], what: str) -> list[pq.abc.PGresult]:
        return self._send(statements, what)()

    def _send(self, statements: Sequence[Statement], what: str) -> Callable[[], list[pq.abc.PGresult]]:
        """Send what is pending and these.

        A function reads the answers of these, and must be called before anything else is sent.
        """
        self._ahead.settle()
        pending, self._pending = self._pending, []
        with self._failing():
            send = self._pipeline.send([*pending, *statements], what)
        self._state = _State.OPEN

        def read() -> list[pq.abc.PGresult]:
            with self._failing():
                return send()[len(pending) :]

        return read

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Whatever is raised inside fails the transaction."""
        try:
            yield
        except DatabaseError as error:
            self._fail()
            self._raise_changed(error, is_check=False)
            self._raise_outdated(error)
            raise
        except BaseException:
            self._fail()
            raise

    def _send_pending(self) -> None:
        if self._pending:
            self._run([], "beginning a transaction")

    def _fail(self) -> None:
        """After any error: what was pending was sent, and the transaction cannot go on."""
        self._pending = []
        if self._connection.closed or self._connection.pgconn.status != pq.ConnStatus.OK:
            self._close()
        elif self._state is not _State.CLOSED:
            self._state = _State.FAILED

    def _close(self) -> None:
        self._state = _State.CLOSED
        self._connection.close()

    def _live(self) -> None:
        if self._state is _State.CLOSED or self._connection.closed:
            self._close()
            raise DatabaseUnavailable("the session at the destination is closed: open a new one")
        self._ahead.settle()

    def _in_transaction(self) -> None:
        self._live()
        if self._state not in {_State.PENDING, _State.OPEN}:
            raise BugError(f"a transaction is needed, the session is {self._state.value}")
        if self._has_timeout:
            # The bound is of handlers' statements, and not of the product's own.
            self._pending.append(NO_TIMEOUT)
            self._has_timeout = False

    def _end_handlers(self) -> None:
        """No transaction, or a new one: no savepoint, no mark, no bound of time."""
        self._has_savepoint = self._has_timeout = self._had_timeout = False
        self._marks = []
        self._guard.begin()
        self._sets, self._latest_us, self._source = 0, 0, self._noted_source
        self._foreign_keys.clear()


def _counts_alone(write: Write, catalog: CatalogTable) -> bool:
    """Whether a write's count shows how many rows its one row finds.

    False as well if it does not fit, which is found out next.
    """
    if (
        write.row_count != 1
        or write.command is Command.INSERT
        or any(column.name not in catalog.positions for column in write.version.columns)
    ):
        return False
    return located(write, catalog).found is FoundRows.SINGLE


def _int4(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def _int8(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def _int8_array(values: Sequence[int]) -> bytes:
    int8 = 20
    if not values:
        return _int4(0) + _int4(0) + _int4(int8)
    header = _int4(1) + _int4(0) + _int4(int8) + _int4(len(values)) + _int4(1)
    return header + b"".join(_int4(8) + _int8(value) for value in values)
