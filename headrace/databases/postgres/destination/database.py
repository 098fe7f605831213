"""PostgreSQL as a destination: catalog, progress and fencing, error queue, instantiation.

Longer than 500 lines: it has one method for each method of the port, and nothing else.

Fencing, in the order that makes it safe (`raise_epoch`):

    1. Raise and commit the epoch: older incarnations can open no more sessions.
    2. While the epoch is the newest, end every session of the apply process; all hold its advisory lock in share mode.
    3. Take the lock exclusively: the sessions are gone, and their commits are final.
    4. Only then read the progress, fold it, and write it to the row of the apply process, if the epoch still is the
       newest. Delete the servers' rows.

Each step is a statement in its own transaction. So a driver that is frozen between two steps holds no row that its
successor needs, and when it thaws it finds that it is not the newest.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg

from headrace.base.errors import INSTANTIATE_AGAIN, DatabaseError, DatabaseUnavailable, FencedError
from headrace.databases.ports import (
    ApplyProgress,
    ArrivalSeen,
    Carried,
    ComputedColumn,
    ComputedDifference,
    ConflictRecord,
    DdlIn,
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
)
from headrace.databases.ports.operator import LEFT_TO_ADMIN
from headrace.databases.postgres.advisory_locks import wait_transaction_lock
from headrace.databases.postgres.catalog.destination_tables import describe_table, is_reserved
from headrace.databases.postgres.catalog.partitions import rows_of_partition, without_children
from headrace.databases.postgres.compared.columns import column_findings
from headrace.databases.postgres.compared.computed_columns import computed_as, computed_differences
from headrace.databases.postgres.compared.enum_labels import enum_labels
from headrace.databases.postgres.compared.marked_columns import marked_columns_of
from headrace.databases.postgres.compared.shapes import (
    encoding_findings,
    shape_findings,
    standalone_tables,
    table_shapes,
)
from headrace.databases.postgres.connection import NOT_FOUND, connect, database_identity, translated
from headrace.databases.postgres.copying.table_copy import use_snapshot
from headrace.databases.postgres.destination.ddl_findings import ddl_findings
from headrace.databases.postgres.destination.fencing import (
    EPOCH_LIVES,
    SessionIdentity,
    commit_durably,
    log_positions,
    raise_epoch,
    refuse_epoch,
    take_apply_lock,
)
from headrace.databases.postgres.destination.partitions import missing_grant, nested_tables, remove_partition
from headrace.databases.postgres.destination.planning import plan_destination
from headrace.databases.postgres.destination.preflight import ADMINISTRATIVE_NAME, has_rows, preflight, preflight_tables
from headrace.databases.postgres.destination.records import error_queue as destination_errors
from headrace.databases.postgres.destination.records.conflict_history import conflicts as conflict_history
from headrace.databases.postgres.destination.records.ddl_history import read_outcomes
from headrace.databases.postgres.destination.records.removal import may_use_schema, remove_origins, remove_rows
from headrace.databases.postgres.destination.records.schema import (
    CLAIM_LOCK,
    CLAIM_LOCK_TIMEOUT_S,
    HISTORY_FROM,
    MARKS_FROM,
    check_schema,
    missing_tables,
    prepare_schema,
    schema_version,
)
from headrace.databases.postgres.destination.records.table_records import (
    COLUMNS,
    IS_GONE,
    IS_REMADE,
    NAME_NOW,
    instantiation_of,
    is_current,
    let_go_on,
    may_hold,
    other_copies,
    read_arrival,
    read_row_marks,
    recorded_applies,
    write_row_marks,
)
from headrace.databases.postgres.destination.row_times.row_triggers import check_triggers, make_triggers, times_findings
from headrace.databases.postgres.destination.server_session.session import PostgresSession
from headrace.databases.postgres.event_triggers import own_ddl
from headrace.databases.postgres.poolers import lends_for_statements, pooler_findings
from headrace.databases.progress import fold_ranges, ranges_from_bounds, ranges_to_bounds
from headrace.lcr.batch import TableVersion
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PostgresDestination"]


_DESCRIBE = """
INSERT INTO headrace.apply_state AS s (topology, apply, epoch, configuration, state) VALUES (%s, %s, %s, %s::jsonb, %s::jsonb)
ON CONFLICT (topology, apply) DO UPDATE
SET epoch = excluded.epoch, configuration = excluded.configuration, state = excluded.state, observed_at = clock_timestamp()
WHERE s.epoch <= excluded.epoch
"""


class PostgresDestination:
    """PostgreSQL as `headrace.databases.ports.DestinationDatabase`. One per process; not shared between threads.

    More than 25 methods: one for each method of the ports, over the same connection.
    """

    def __init__(
        self,
        dsn: str,
        *,
        site: str = "",
        allow_any_version: bool = False,
        settings: TableSettings = NO_TABLE_SETTINGS,
        has_admin: bool = False,
    ) -> None:
        """Store the settings; the first call connects.

        Args:
            dsn: libpq connection string or URI.
            site: name of the site, for messages.
            allow_any_version: accept untested server versions.
            settings: table settings of the calling apply process.
            has_admin: an administrator sets up this destination (`DatabaseAccess`).
        """
        self._dsn, self._settings = dsn, settings
        self._allow_any_version, self._has_admin = allow_any_version, has_admin
        self._site = site
        self._connection: psycopg.Connection[Any] | None = None

    # ------------------------------------------------------------------ set-up

    def database_identity(self) -> str:
        """Return the database's identity."""
        with self._use("asking for the database's identity") as connection:
            return database_identity(connection)

    def preflight(self, topology: str, *, sessions: int, applies: int = 1, copies: int = 0) -> tuple[Finding, ...]:
        """Check whether this database can be a destination."""
        with self._use("checking the destination") as connection:
            pooled = tuple(pooler_findings(connection, self._dsn, f"sites.{self._site}"))
            if lends_for_statements(pooled):
                return pooled
            return (
                *preflight(
                    connection,
                    topology,
                    site=self._site,
                    sessions=sessions,
                    applies=applies,
                    copies=copies,
                    allow_any_version=self._allow_any_version,
                    has_admin=self._has_admin,
                ),
                *pooled,
            )

    def preflight_times(self, tables: Collection[tuple[str, str]], *, has_tombstones: bool) -> tuple[Finding, ...]:
        """Check the prerequisites of latest_timestamp."""
        described = [found for owner, name in sorted(tables) if (found := self.describe(owner, name)) is not None]
        with self._use("asking for what latest_timestamp needs") as connection:
            return tuple(
                times_findings(
                    connection, self._site, tables, described, has_tombstones=has_tombstones, has_admin=self._has_admin
                )
            )

    def keep_tombstones(self, tables: Collection[tuple[str, str]]) -> tuple[str, ...]:
        """Create the triggers that note deletes; with an administrator, only check them."""
        with own_ddl(self._dsn, self._site), self._use("making the triggers that note deletes") as connection:
            if self._has_admin:
                check_triggers(connection, tables)
                return ()
            return make_triggers(connection, tables)

    def preflight_ddl(self, tables: Collection[TableName], *, release: int) -> tuple[Finding, ...]:
        """Check whether the tables' owners can change them for the role, and whether the releases are the same."""
        with self._use("asking who may alter tables") as connection:
            return tuple(ddl_findings(connection, self._site, tables, release))

    def filled(self, tables: Collection[TableName]) -> tuple[TableName, ...]:
        """Return those of the tables that have a row."""
        with self._use("looking whether tables are empty") as connection:
            return tuple(table for table in tables if has_rows(connection, table))

    def tables_in(self, owner: str) -> frozenset[str] | None:
        """Return the names of a schema's tables."""
        with self._use("looking into a schema") as connection:
            rows = connection.execute(
                "SELECT c.relname FROM pg_catalog.pg_namespace n LEFT JOIN pg_catalog.pg_class c ON c.relnamespace ="
                " n.oid AND c.relkind IN ('r', 'p') WHERE n.nspname = %s",
                (owner,),
            ).fetchall()
        return frozenset(str(row[0]) for row in rows if row[0] is not None) if rows else None

    def nested_tables(self, tables: Collection[TableName]) -> Mapping[TableName, TableName]:
        """Return the partitions among the tables, each with the table above it."""
        with self._use("looking for partitions") as connection:
            return nested_tables(connection, tables)

    def is_reserved(self, owner: str) -> bool:
        """Return whether a schema belongs to the server or to Headrace."""
        return is_reserved(owner)

    def how_to_empty(self, table: TableName) -> str:
        """Return the statements that empty a table.

        The server would refuse a TRUNCATE of a table that a foreign key references.
        """
        with self._use("looking at a table") as connection:
            relation = without_children(connection, table.owner, table.name)
        return f"BEGIN; SET LOCAL session_replication_role = replica; DELETE FROM {relation}; COMMIT;"

    def preflight_shapes(
        self,
        shapes: Sequence[TableShape],
        versions: Sequence[TableVersion],
        earlier_labels: Mapping[TableName, Mapping[str, str]],
    ) -> tuple[Finding, ...]:
        """Compare the shapes of the tables with the source's."""
        columns = {TableName.of(version): frozenset(column.name for column in version.columns) for version in versions}
        wanted = {TableName.of(shape): shape for shape in shapes}
        with self._use("comparing the shapes of the tables") as connection:
            here = table_shapes(connection, list(wanted))
            taken = standalone_tables(connection, [TableName.of(each) for shape in shapes for each in shape.partitions])
        return (
            *encoding_findings(f"sites.{self._site}", shapes, here),
            *(
                finding
                for shape in here
                for name in [TableName.of(shape)]
                for finding in shape_findings(
                    f"sites.{self._site} table {name}",
                    wanted[name],
                    shape,
                    columns[name],
                    taken,
                    earlier_labels=earlier_labels.get(name),
                )
            ),
        )

    def preflight_domains(self, shapes: Sequence[TableShape]) -> tuple[Finding, ...]:
        """Report columns that would change values of the source without an error."""
        with self._use("comparing the types of the tables") as connection:
            return column_findings(connection, self._site, shapes)

    def preflight_tables(
        self,
        versions: Sequence[TableVersion],
        *,
        now: Sequence[TableVersion] = (),
        at_source: Mapping[TableName, TableName] | None = None,
    ) -> tuple[Finding, ...]:
        """Check whether the tables fit the source's rows."""
        with self._use("checking the destination's tables") as connection:
            return preflight_tables(connection, self._site, versions, now, self._settings, at_source=at_source or {})

    def prepare(self, topology: str) -> tuple[str, ...]:  # noqa: ARG002 - one schema serves every topology
        """Create or upgrade the schema headrace; with an administrator, only check it."""
        with own_ddl(self._dsn, self._site), self._use("preparing the destination") as connection:
            if self._has_admin:
                check_schema(connection)
                return ()
            return prepare_schema(connection)

    def plan(self, topology: str, applies: Sequence[PlannedApply] = ()) -> tuple[PlannedStatement, ...]:
        """Return the statements that would be run."""
        with self._use("planning the destination") as connection:
            return plan_destination(connection, topology, applies)

    def describe(self, owner: str, name: str) -> DestinationTable | None:
        """Describe a table from the catalog."""
        with self._use("reading the catalog") as connection:
            catalog = describe_table(connection, owner, name, self._settings)
        return catalog.table if catalog else None

    # ------------------------------------------------------------------ progress

    def raise_epoch(self, topology: str, apply: str) -> ApplyProgress:
        """Raise the epoch and fence out older incarnations, in the order that the module describes.

        Raises:
            DatabaseUnavailable: an older session does not end, although the epoch is raised. Call again.
            FencedError: another driver raised the epoch meanwhile.
        """
        with self._use("fencing out older apply servers") as connection:
            epoch = raise_epoch(connection, topology, apply)
            key = take_apply_lock(connection, topology, apply, epoch)
            try:
                return _fold_progress(connection, topology, apply, epoch)
            finally:
                if not connection.closed:
                    connection.execute("SELECT pg_catalog.pg_advisory_unlock(%s)", (key,))

    def progress(self, topology: str, apply: str) -> ApplyProgress | None:
        """Read the progress without fencing."""
        with self._use("reading the apply progress") as connection:
            return _read_progress(connection, topology, apply) if schema_version(connection) else None

    def record_low_watermark(self, topology: str, apply: str, epoch: int, scn: Scn) -> None:
        """Record a low watermark that moved without data.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: the epoch has ended with the server's run.
        """
        with self._use("recording the low watermark") as connection:
            done = connection.execute(
                "UPDATE headrace.apply_process p SET low_watermark = greatest(low_watermark, %s), applied_at ="
                f" clock_timestamp() WHERE topology = %s AND apply = %s AND epoch = %s AND {EPOCH_LIVES}",
                (scn, topology, apply, epoch),
            )
            if done.rowcount == 0:
                _refuse(connection, topology, apply, epoch)

    def log_positions(self, topology: str, apply: str, epoch: int) -> LogPositions:
        """Return up to where the server's log is written and on disk."""
        with self._use("asking what is on disk") as connection:
            return log_positions(connection, topology, apply, epoch)

    def describe_apply(
        self, topology: str, apply: str, epoch: int, configuration: Mapping[str, Any], state: Mapping[str, Any]
    ) -> None:
        """Store an apply process's description of itself."""
        with self._use("describing an apply process") as connection, connection.transaction():
            # Nothing depends on this record, so its commit waits for neither disk nor standby, which may be down.
            connection.execute("SET LOCAL synchronous_commit TO off")
            connection.execute(_DESCRIBE, (topology, apply, epoch, json.dumps(configuration), json.dumps(state)))

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
    ) -> PostgresSession:
        """Return a session of one apply server."""
        identity = SessionIdentity(
            topology=topology, apply=apply, server=server, epoch=epoch, incarnation=incarnation, tag=tag, source=source
        )
        return PostgresSession(self._dsn, identity, self._settings, is_lazy=is_lazy)

    # ------------------------------------------------------------------ error queue

    def errors(
        self,
        topology: str,
        apply: str | None = None,
        *,
        number: int | None = None,
        first: int | None = None,
    ) -> tuple[ErrorTransaction, ...]:
        """List the error queue."""
        with self._use("listing the error queue") as connection:
            return destination_errors.list_errors(connection, topology, apply, number=number, first=first)

    def conflicts(self, topology: str, apply: str | None = None, *, last: int) -> tuple[ConflictRecord, ...]:
        """List the newest conflicts."""
        with self._use("reading the history of conflicts") as connection:
            # `up` upgrades the schema; until then there is no history.
            return (
                conflict_history(connection, topology, apply, last)
                if schema_version(connection) >= HISTORY_FROM
                else ()
            )

    def error_batches(self, number: int, *, original: bool = False) -> Iterator[bytes]:
        """Yield the parts of an error transaction."""
        with self._use("reading an error transaction") as connection:
            yield from destination_errors.read_batches(connection, number, original=original)

    def begin_handler_call(self, topology: str, apply: str, scn: Scn, function: str) -> int:
        """Record the start of a handler call; return the number of earlier unfinished calls."""
        with self._use("recording a handler's call") as connection:
            connection.execute(_FORGET_CALLS)
            row = connection.execute(_BEGIN_CALL, (topology, apply, scn, function)).fetchone()
        assert row is not None
        return int(row[0]) - 1

    def end_handler_calls(self, topology: str, apply: str, scns: Collection[Scn]) -> None:
        """Forget the handler calls of transactions."""
        with self._use("forgetting handlers' calls") as connection:
            connection.execute(
                "DELETE FROM headrace.handler_call WHERE topology = %s AND apply = %s AND scn = ANY (%s)",
                (topology, apply, [int(scn) for scn in scns]),
            )

    def edit_error(
        self, topology: str, edit: ErrorEdit, *, part: int, batch: bytes, key_hashes: NDArray[np.uint64]
    ) -> bool:
        """Replace one part of an error transaction."""
        with self._use("editing an error transaction") as connection, connection.transaction():
            return destination_errors.edit_error(
                connection, topology, edit, part=part, batch=batch, key_hashes=key_hashes
            )

    def error_edits(self, topology: str, number: int | None = None) -> tuple[ErrorEdit, ...]:
        """List the edits of error transactions."""
        with self._use("reading the edits of error transactions") as connection:
            return destination_errors.list_edits(connection, topology, number)

    def note_failure(self, topology: str, found: ErrorTransaction) -> None:
        """Record why an error transaction failed again."""
        with self._use("recording why an error transaction failed again") as connection:
            destination_errors.note_failure(connection, topology, found)

    def error_key_hashes(self, topology: str, apply: str) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        """Yield the key hashes of each error transaction."""
        with self._use("reading the error queue's keys") as connection:
            yield from destination_errors.read_key_hashes(connection, topology, apply)

    def delete_errors(self, topology: str, numbers: Collection[int], *, ddl_in: DdlIn | None = None) -> frozenset[int]:
        """Delete error transactions."""
        with self._use("deleting error transactions") as connection, connection.transaction():
            return destination_errors.delete_errors(connection, topology, numbers, outcome="DELETED", ddl_in=ddl_in)

    def ddl_outcomes(self, topology: str, apply: str, places: Collection[DdlPlace]) -> dict[DdlPlace, DdlOutcomeKind]:
        """Return what became of DDL changes."""
        if not places:
            return {}
        with self._use("asking what became of DDL changes") as connection:
            return read_outcomes(connection, topology, apply, places)

    # ------------------------------------------------------------------ instantiation

    def instantiations(self, topology: str, apply: str) -> tuple[Instantiation, ...]:
        """Return the recorded instantiations of an apply process's tables."""
        with self._use("reading the instantiations") as connection:
            if schema_version(connection) == 0:
                return ()
            rows = connection.execute(
                f"SELECT {COLUMNS}, {IS_REMADE}, {NAME_NOW}, {IS_GONE} FROM headrace.instantiation WHERE topology = %s"
                " AND apply = %s ORDER BY source, owner, name, identity",
                (topology, apply),
            ).fetchall()
        return tuple(instantiation_of(row) for row in rows)

    def arrival_seen(self, topology: str, apply: str, identity: str, *, snapshot: str) -> ArrivalSeen | None:
        """Return a table's state as a snapshot shows it."""
        with (
            self._use("reading in a snapshot what is applied of a table") as connection,
            use_snapshot(connection, snapshot),
        ):
            progress = _read_progress(connection, topology, apply)
            return read_arrival(connection, topology, apply, identity, progress)

    def other_copies(self, topology: str, apply: str, owner: str, name: str) -> tuple[OtherCopy, ...]:
        """Return other apply processes' copies of a table."""
        with self._use("asking which copies a table has") as connection:
            if schema_version(connection) == 0:
                return ()
            return other_copies(connection, topology, apply, owner, name)

    def recorded_applies(self, topology: str) -> tuple[str, ...]:
        """Return the apply processes with recorded tables."""
        with self._use("asking whose tables are recorded") as connection:
            return recorded_applies(connection, topology) if schema_version(connection) else ()

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
        """Record a table's instantiation."""
        values = {"topology": topology, "apply": apply, "epoch": epoch, **asdict(instantiation)}
        with self._use("recording an instantiation") as connection, connection.transaction():
            if beside is not None:
                # The next statement sees the commits of all earlier holders of the lock.
                wait_transaction_lock(connection, CLAIM_LOCK, what="copies of tables", timeout_s=CLAIM_LOCK_TIMEOUT_S)
                if set(beside) != set(
                    other_copies(connection, topology, apply, instantiation.owner, instantiation.name)
                ):
                    return False
            done = connection.execute(
                "WITH current AS (SELECT FROM headrace.apply_process p WHERE topology = %(topology)s AND apply ="
                f" %(apply)s AND epoch = %(epoch)s AND {EPOCH_LIVES} FOR SHARE),"
                " gone AS (DELETE FROM headrace.instantiation USING current WHERE topology = %(topology)s AND apply ="
                " %(apply)s AND source = %(source)s AND identity = ANY (%(replaces)s) AND identity <> %(identity)s)"
                " INSERT INTO headrace.instantiation AS recorded (topology, apply, changed_at, relation, recorded_in,"
                f" {COLUMNS})"
                " SELECT %(topology)s, %(apply)s, clock_timestamp(), to_regclass(format('%%I.%%I', %(owner)s::text,"
                " %(name)s::text)), 'headrace.instantiation'::regclass, %(source)s, %(identity)s, %(owner)s, %(name)s,"
                " %(scn)s, %(state)s, %(row_count)s, %(digest)s, %(problem)s FROM current"
                " ON CONFLICT (topology, apply, source, identity) DO UPDATE SET owner = excluded.owner,"
                " name = excluded.name, scn = excluded.scn, state = excluded.state, row_count = excluded.row_count,"
                " digest = excluded.digest, problem = excluded.problem, changed_at = excluded.changed_at,"
                " relation = CASE WHEN %(is_remade)s THEN recorded.relation ELSE excluded.relation END,"
                " recorded_in = CASE WHEN %(is_remade)s THEN recorded.recorded_in ELSE excluded.recorded_in END",
                {**values, "replaces": list(replaces)},
            )
            if done.rowcount == 0:
                _refuse(connection, topology, apply, epoch)
            let_go_on(connection, topology, carries)
        return True

    def row_marks(self, topology: str, apply: str, source: str) -> dict[str, RowMark]:
        """Return the recorded marks of the source's tables."""
        with self._use("reading the marks of tables") as connection:
            return (
                read_row_marks(connection, topology, apply, source) if schema_version(connection) >= MARKS_FROM else {}
            )

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
        """Record the marks of tables."""
        with self._use("recording the marks of tables") as connection, connection.transaction():
            if not write_row_marks(connection, topology, apply, epoch, source, marks, was):
                _refuse(connection, topology, apply, epoch)

    def marked_columns(self, tables: Sequence[TableName]) -> dict[TableName, dict[str, MarkedColumn]]:
        """Return the columns of tables."""
        with self._use("reading the columns of tables") as connection:
            return marked_columns_of(connection, tables)

    def enum_labels(self, table: TableName) -> tuple[EnumLabels, ...]:
        """Return the enumerated types of a table's columns."""
        with self._use("reading the labels of types") as connection:
            return enum_labels(connection, table)

    def computed_differences(
        self,
        table: TableName,
        wanted: Sequence[ComputedColumn],
        among: Mapping[str, Collection[TableName]],
        accepted: Collection[str] = (),
    ) -> dict[str, ComputedDifference]:
        """Compare the expressions of computed columns with the source's."""
        with self._use("comparing the expressions of a table") as connection:
            return computed_differences(connection, table, wanted, computed_as(connection, table), among, accepted)

    def may_hold(self, table: TableName, part: TableName) -> bool:
        """Return whether a table may have rows of a removed partition."""
        with self._use("looking for rows of a partition") as connection:
            return may_hold(connection, table, part)

    def join_tables(
        self, topology: str, apply: str, epoch: int, joining: Sequence[Instantiation], *, through: Scn
    ) -> ApplyProgress:
        """Let copied tables join the apply process."""
        values = {
            "topology": topology,
            "apply": apply,
            "epoch": epoch,
            "through": through,
            "low_watermark": min([through, *(each.scn for each in joining)]),
        }
        of_apply = "topology = %(topology)s AND apply = %(apply)s"
        with self._use("letting copied tables join") as connection:
            with connection.transaction():
                moved = connection.execute(
                    "UPDATE headrace.apply_process p SET low_watermark = %(low_watermark)s, ahead = %(through)s,"
                    f" applied = '{{}}' WHERE {of_apply} AND epoch = %(epoch)s AND {EPOCH_LIVES}",
                    values,
                )
                if moved.rowcount == 1:
                    # A session that was not reopened finds no progress row, and cannot commit.
                    connection.execute(f"DELETE FROM headrace.apply_progress WHERE {of_apply}", values)
                    connection.execute(
                        "UPDATE headrace.instantiation SET state = CASE digest WHEN '' THEN 'KEPT' ELSE 'DONE' END"
                        f" WHERE {of_apply} AND state = 'JOINING'",
                        values,
                    )
                    connection.execute(
                        "UPDATE headrace.instantiation SET state = 'JOINING', changed_at = clock_timestamp()"
                        # Skip tables that must be copied again meanwhile. (A table that joined in a call whose answer was
                        # lost is DONE by now.)
                        f" WHERE {of_apply} AND identity = ANY (%(identities)s) AND state NOT IN ('COPYING',"
                        " 'COMPARING', 'FAILED', 'LEFT', 'AWAITING')",
                        {**values, "identities": [each.identity for each in joining]},
                    )
            if moved.rowcount == 0:
                _refuse(connection, topology, apply, epoch)
            progress = _read_progress(connection, topology, apply)
        assert progress is not None
        return progress

    def partition_rows(self, table: TableName, part: TableName) -> str:
        """Return the condition of a partition's rows."""
        with self._use("asking which rows a partition holds") as connection:
            return rows_of_partition(connection, table, part)

    def missing_grant(self, part: TableName) -> str:
        """Return the GRANT that copying into a partition needs."""
        with self._use("asking for rights") as connection:
            return missing_grant(connection, part)

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
        """Detach, drop or empty a partition."""
        with self._use("removing a partition") as connection, connection.transaction():
            if not is_current(connection, topology, apply, epoch):
                _refuse(connection, topology, apply, epoch)
            return remove_partition(connection, table, part, how=how, may=may)

    def leave_out(self, topology: str, apply: str, *, kept: Collection[str]) -> tuple[Instantiation, ...]:
        """Record the tables that are no longer replicated."""
        with self._use("looking for tables that left") as connection:
            if schema_version(connection) == 0:
                return ()
            which = (
                "topology = %(t)s AND apply = %(a)s AND state <> 'LEFT' AND NOT split_part(identity, '/', 1) ="
                " ANY (%(kept)s)"
            )
            values = {"t": topology, "a": apply, "kept": list(kept)}
            left = connection.execute(f"SELECT {COLUMNS} FROM headrace.instantiation WHERE {which}", values).fetchall()
        if not left:
            return ()
        self.raise_epoch(topology, apply)  # a driver that is still stopping must not record anything after this
        with self._use("recording which tables left") as connection, connection.transaction():
            # A copied table without a digest is one whose rows were kept (`Instantiation.is_kept`).
            nothing_of_ours = (
                "(scn = 0 OR state IN ('KEPT', 'AWAITING') OR (state IN ('COPIED', 'JOINING') AND digest = ''))"
            )
            connection.execute(f"DELETE FROM headrace.instantiation WHERE {which} AND {nothing_of_ours}", values)
            connection.execute(
                f"UPDATE headrace.instantiation SET state = 'LEFT', changed_at = clock_timestamp() WHERE {which}",
                values,
            )
        return tuple(sorted((instantiation_of(row) for row in left), key=lambda found: (found.owner, found.name)))

    def remove(self, topology: str) -> tuple[str, ...]:
        """Remove the topology's rows, origins and schema."""
        with self._use("asking for the topology's apply processes") as connection:
            if self._has_admin and not may_use_schema(connection):
                return (LEFT_TO_ADMIN,)  # another topology's `up` made the schema; this one's has granted no rights yet
            query = "SELECT apply FROM headrace.apply_process WHERE topology = %s ORDER BY 1"
            is_damaged = bool(missing_tables(connection))
            applies = (
                connection.execute(query, (topology,)).fetchall()
                if schema_version(connection) and not is_damaged
                else []
            )
        for (apply,) in applies:
            self.raise_epoch(topology, apply)  # stops all writers, also an apply server that outlived its driver
        with own_ddl(self._dsn, self._site), self._use("removing what the topology made") as connection:
            if self._has_admin:
                return (*remove_rows(connection, topology, keeps_schema=True), LEFT_TO_ADMIN)
            return (*remove_rows(connection, topology), *remove_origins(connection, topology))

    def forget(self, topology: str, apply: str) -> tuple[str, ...]:
        """Remove the records of one apply process."""
        if self.progress(topology, apply) is not None:
            self.raise_epoch(topology, apply)
        with self._use("forgetting an apply process") as connection:
            return tuple(remove_rows(connection, topology, apply))

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _use(self, what: str) -> Iterator[psycopg.Connection[Any]]:
        """Provide the administrative connection; open it if it is missing or broken."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn, application_name=ADMINISTRATIVE_NAME)
            with translated(what, site=self._site):
                commit_durably(self._connection)
        try:
            with translated(what, site=self._site):
                yield self._connection
        except DatabaseError as error:
            self.close()
            if error.context.get("sqlstate") in NOT_FOUND and error.hint == INSTANTIATE_AGAIN:
                raise DatabaseError(f"site {self._site}: {error.message}", hint=error.hint, **error.context) from error
            raise
        except BaseException:
            # The connection's state is unknown: the next call opens a new one.
            self.close()
            raise


_BEGIN_CALL = """
INSERT INTO headrace.handler_call AS c (topology, apply, scn, function, calls) VALUES (%s, %s, %s, %s, 1)
ON CONFLICT (topology, apply, scn, function) DO UPDATE SET calls = c.calls + 1, called_at = clock_timestamp() RETURNING calls
"""
# Old calls remain when a process dies after it applied the transaction, or when the apply process was removed.
_FORGET_CALLS = "DELETE FROM headrace.handler_call WHERE called_at < clock_timestamp() - interval '30 days'"


def _refuse(connection: psycopg.Connection[Any], topology: str, apply: str, epoch: int) -> NoReturn:
    """Raise the reason why nothing was recorded for this epoch."""
    refuse_epoch(connection, topology, apply, epoch)
    raise DatabaseUnavailable(f"the row of apply process {apply} changed while something was recorded for it")


def _read_progress(connection: psycopg.Connection[Any], topology: str, apply: str) -> ApplyProgress | None:
    # One statement has one snapshot: between two statements, a raised epoch could fold rows that neither would show.
    rows = connection.execute(
        "SELECT epoch, low_watermark, applied, ahead FROM headrace.apply_process WHERE topology = %(t)s AND apply ="
        " %(a)s UNION ALL SELECT 0, low_watermark, applied, 0 FROM headrace.apply_progress"
        " WHERE topology = %(t)s AND apply = %(a)s",
        {"t": topology, "a": apply},
    ).fetchall()
    epoch = max((row[0] for row in rows), default=0)
    if epoch == 0:
        return None
    low_watermark, above = fold_ranges(
        max(row[1] for row in rows), [found for row in rows for found in ranges_from_bounds(row[2])]
    )
    ahead = Scn(max(row[3] for row in rows))
    return ApplyProgress(epoch=epoch, low_watermark=low_watermark, above=above, ahead_scn=ahead)


def _fold_progress(connection: psycopg.Connection[Any], topology: str, apply: str, epoch: int) -> ApplyProgress:
    """Fold the progress of the servers' rows into the row of the apply process; no other session writes these rows."""
    progress = _read_progress(connection, topology, apply)
    assert progress is not None  # the caller has just written the row
    done = connection.execute(
        "WITH folded AS (UPDATE headrace.apply_process SET low_watermark = %(scn)s, applied = %(applied)s"
        " WHERE topology = %(topology)s AND apply = %(apply)s AND epoch = %(epoch)s RETURNING 1),"
        " gone AS (DELETE FROM headrace.apply_progress USING folded WHERE topology = %(topology)s AND apply ="
        " %(apply)s) SELECT FROM folded",
        {
            "scn": progress.low_watermark,
            "applied": ranges_to_bounds(progress.above),
            "topology": topology,
            "apply": apply,
            "epoch": epoch,
        },
    )
    if done.rowcount == 0:
        raise FencedError(f"a newer epoch of apply process {apply} than {epoch} exists", apply=apply, epoch=epoch)
    return progress
