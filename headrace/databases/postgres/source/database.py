"""PostgreSQL as a source: publication and slot, log streams, snapshots, markers.

Everything `prepare` creates has one name, `headrace_<topology>_<site>`: the publication of this database and the slot
of this cluster. The publication is created before the slot: a slot older than its publication cannot read the changes
between.

Longer than 500 lines: it has every method of the port, and each is short.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg

from headrace.base.errors import DatabaseError, DatabaseUnavailable, UnsupportedType
from headrace.databases.ports import (
    CapturedTable,
    DictionaryBuild,
    Finding,
    LoggedTable,
    LogNeed,
    MissedDdl,
    PlannedStatement,
    SourceTable,
    StreamOptions,
)
from headrace.databases.ports.operator import AS_ADMIN, LEFT_TO_ADMIN
from headrace.databases.postgres.catalog.destination_tables import describe_table, table_version
from headrace.databases.postgres.catalog.older_values import older_values
from headrace.databases.postgres.catalog.partitions import members_below, partition_rows
from headrace.databases.postgres.catalog.source_tables import (
    CatalogTable,
    captured_tables,
    logged_generated,
    old_images,
    publication_tables,
    published_objects,
    published_relations,
    select_tables,
    slot_name,
    source_tables,
)
from headrace.databases.postgres.compared.columns import column_shapes
from headrace.databases.postgres.compared.shapes import table_shapes
from headrace.databases.postgres.connection import connect, database_identity, qualified, quote, translated
from headrace.databases.postgres.copying.table_copy import use_snapshot
from headrace.databases.postgres.event_triggers import own_ddl
from headrace.databases.postgres.poolers import lends_for_statements, pooler_findings
from headrace.databases.postgres.source.binary_types import FIRST_NUMBER_NOT_FIXED, binary_obstacles, type_obstacles
from headrace.databases.postgres.source.ddl.capture import (
    DdlStep,
    ddl_due,
    ddl_tables,
    install_step,
    is_published,
    log_tables,
    missed_ddl,
    removal_step,
    takes_ddl,
    trim_ddl,
    unrecorded,
    watch_step,
)
from headrace.databases.postgres.source.ddl.rules import rules_step
from headrace.databases.postgres.source.identities import identity_findings
from headrace.databases.postgres.source.log_stream.decoding_memory import memory_findings
from headrace.databases.postgres.source.log_stream.slot import (
    MAKES_SLOT,
    check_last_transaction,
    check_same_log,
    check_slot,
    continues,
    slot_positions,
    slot_step,
)
from headrace.databases.postgres.source.log_stream.transactions import are_visible
from headrace.databases.postgres.source.log_stream.waits import holding_up
from headrace.databases.postgres.source.preflight import preflight_source
from headrace.databases.postgres.source.publication import (
    owner_findings,
    publication_found,
    publication_steps,
)
from headrace.databases.postgres.source.row_marks import began_empty, computed_in, row_marks, was_written_anew
from headrace.databases.postgres.source.supplemental_logging import logged_tables, logging_findings, refused_conditions
from headrace.databases.postgres.values.comparable import PostgresValueTypes
from headrace.lcr.batch import TableVersion
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.lcr.table_name import TableName, literal

if TYPE_CHECKING:
    from headrace.databases.ports import ComputedColumn, RowMark, TableShape
    from headrace.databases.postgres.source.log_stream.replication_stream import PostgresLogStream

__all__ = ["MARKER_PREFIX", "PostgresSnapshot", "PostgresSource"]

MARKER_PREFIX = "headrace.marker"
# For a query over one partition's bounds: partitions outside them are skipped unread, except a default partition.
_HOLDS_TIMEOUT = "5s"
_LOCK_TIMEOUT = "10s"  # for the locks a publication needs: a busy table must not block sessions queued behind us
_RELEASE_TIMEOUT_S = 10.0  # how long a terminated session may still hold a slot
_POLL_S = 0.05
# How long to wait for a snapshot: a commit takes milliseconds to become visible, unless a synchronous standby is down.
_VISIBLE_TIMEOUT_S = 60.0
_VISIBLE_POLL_S = 0.002  # duration of a commit's flush
# Another session did the same, or the opposite, since the plan was made.
_PREPARED_TWICE = (psycopg.errors.DuplicateObject, psycopg.errors.UndefinedObject)
_INSTALLED_TWICE = (
    psycopg.errors.DuplicateSchema,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.UndefinedTable,
)
# No transaction running now is among those that the exported snapshot counts as committed.
_IS_VISIBLE = """
    SELECT pg_snapshot_xmax(present) >= pg_snapshot_xmax(%(exported)s::pg_snapshot) AND NOT EXISTS (
        SELECT FROM pg_snapshot_xip(present) AS running WHERE pg_visible_in_snapshot(running, %(exported)s::pg_snapshot)
    )
    FROM pg_current_snapshot() AS present
"""


class PostgresSnapshot:
    """A `headrace.databases.ports.Snapshot`: a temporary slot's snapshot, alive as long as its session."""

    def __init__(
        self, connection: psycopg.Connection[Any], session: psycopg.Connection[Any], *, slot: str, scn: Scn, name: str
    ) -> None:
        self._connection = connection
        self._session = session
        self._slot = slot
        self._scn = scn
        self._name = name

    @property
    def scn(self) -> Scn:
        """See `Snapshot.scn`."""
        return self._scn

    @property
    def name(self) -> str:
        """See `Snapshot.name`: for `SET TRANSACTION SNAPSHOT` in the same database."""
        return self._name

    def is_captured(self) -> bool:
        """See `Snapshot.is_captured`: compares with the confirmed position of the log writer's slot.

        Uses another session: a command on the snapshot's own would end it.
        """
        with translated("asking how far the log was read"):
            row = self._session.execute(
                "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
                (self._slot,),
            ).fetchone()
        return row is not None and row[0] is not None and int(row[0]) >= self._scn

    def close(self) -> None:
        """See `Snapshot.close`."""
        with contextlib.suppress(psycopg.Error):
            self._connection.close()


class PostgresSource:
    """A PostgreSQL `headrace.databases.ports.SourceDatabase`. Connects on first use, and reconnects after a break.

    Args:
        dsn: connection string.
        site: the site's name; by default the database's.
        allow_any_version: accept untested server versions.
        decoding_memory: bytes of transactions in flight that a log stream's session may hold; 0: the default of the
            module `decoding_memory`.
        has_admin: another role creates and alters the publication (`source.admin`).
    """

    def __init__(
        self,
        dsn: str,
        *,
        site: str = "",
        allow_any_version: bool = False,
        decoding_memory: int = 0,
        has_admin: bool = False,
    ) -> None:
        self._dsn = dsn
        self._site = site
        self._allow_any_version = allow_any_version
        self._decoding_memory = decoding_memory
        self._has_admin = has_admin
        self._connection: psycopg.Connection[Any] | None = None
        self._binary_types: set[int] = set()  # built-in types with a binary form: no user can alter them

    # ------------------------------------------------------------------ catalog

    def database_identity(self) -> str:
        """See `SourceDatabase.database_identity`."""
        with translated("asking for the database's identity"):
            return database_identity(self._session())

    def release(self) -> int:
        """Return the major version of the server."""
        with translated("asking for the server's version"):
            return self._session().info.server_version // 10000

    def tables(self, rules: Sequence[object]) -> tuple[SourceTable, ...]:
        """See `SourceDatabase.tables`. Excludes partitions, temporary, unlogged and system tables, and our own schema."""
        with translated("reading the catalog"):
            connection = self._session()
            return source_tables(connection, select_tables(connection, rules))

    def table_versions(self, tables: Sequence[SourceTable]) -> tuple[TableVersion, ...]:
        """See `SourceDatabase.table_versions`."""
        is_binary = self._is_binary(tables)
        with translated("describing the tables"):
            logged = logged_generated(self._session().info.server_version)
            catalogs = [describe_table(self._session(), table.owner, table.name) for table in tables]
            found = [
                table_version(catalog, is_binary=is_binary, logged=logged)
                for catalog in catalogs
                if catalog is not None
            ]
            numbers = [int(version.object_number) for version in found]
            older = older_values(self._session(), numbers)
            images = old_images(self._session(), numbers)
        return tuple(
            replace(
                version,
                old_image=images.get(int(version.object_number), version.old_image),
                columns=tuple(
                    replace(each, older_value=older.get((int(version.object_number), each.name)))
                    for each in version.columns
                ),
            )
            for version in found
        )

    def table_shapes(self, tables: Sequence[TableName]) -> tuple[TableShape, ...]:
        """See `SourceDatabase.table_shapes`."""
        with translated("reading the shapes of the tables"):
            return table_shapes(self._session(), tables)

    def domain_shapes(self, tables: Sequence[TableName]) -> tuple[TableShape, ...]:
        """See `SourceDatabase.domain_shapes`."""
        with translated("reading the types of the tables"):
            return column_shapes(self._session(), tables)

    def supplemental_logging(self, rules: Sequence[object], needs: Sequence[LogNeed]) -> tuple[LoggedTable, ...]:
        """See `SourceDatabase.supplemental_logging`."""
        with translated("asking what is logged"):
            connection = self._session()
            return logged_tables(connection, select_tables(connection, rules), needs) if needs else ()

    def preflight(
        self,
        rules: Sequence[object],
        *,
        streams: int,
        needs: Sequence[LogNeed] = (),
        may_be_copied: Callable[[TableName], bool] = bool,
        topology: str = "",
    ) -> tuple[Finding, ...]:
        """See `SourceDatabase.preflight`."""
        with translated("looking for a pooler"):
            pooled = tuple(pooler_findings(self._session(), self._dsn, f"sites.{self._site}"))
        if lends_for_statements(pooled):
            return pooled
        with translated("asking what is logged"):
            selected = select_tables(self._session(), rules) if needs else ()
            logged = logged_tables(self._session(), selected, needs) if needs else ()
        with translated("checking the source"):
            found = preflight_source(
                self._session(),
                rules,
                site=self._site,
                streams=streams,
                allow_any_version=self._allow_any_version,
                may_be_copied=may_be_copied,
                has_admin=self._has_admin,
                whole=_needed_whole(self._session(), selected, needs),
            ) + tuple(memory_findings(self._session(), self._decoding_memory, f"sites.{self._site}"))
            found += pooled
            if topology and not self._has_admin:
                found += tuple(owner_findings(self._session(), self._name(topology), f"sites.{self._site}"))
        if not needs:
            return found
        with translated("asking what is logged"):
            tables = source_tables(self._session(), selected)
        versions = self.table_versions(tables)
        with translated("checking conditions"):
            refused = tuple(refused_conditions(self._session(), versions, needs, PostgresValueTypes()))
        return (*found, *refused, *logging_findings(logged, f"sites.{self._site}"))

    def current_scn(self) -> Scn:
        """See `SourceDatabase.current_scn`: the flushed position, because only flushed log is sent."""
        return Scn(int(self._value("asking for the position", "SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn")))

    def retained_bytes(self, topology: str) -> int | None:
        """See `SourceDatabase.retained_bytes`."""
        query = """
            SELECT max(coalesce(pg_current_wal_lsn() - restart_lsn, 0))::int8
            FROM pg_replication_slots WHERE slot_name = %s
        """
        found = self._value("asking for the slot", query, (self._name(topology),))
        return None if found is None else int(found)

    def holding_up(self) -> tuple[str, ...]:
        """See `SourceDatabase.holding_up`: what Headrace's sessions in this database wait for."""
        with translated("asking who holds Headrace up"):
            return holding_up(self._session())

    # ------------------------------------------------------------------ publication and slot

    def check_prepared(self, topology: str, start: Scn) -> str:
        """See `SourceDatabase.check_prepared`.

        From version 18 on a missing publication raises no error: its changes are silently omitted.
        """
        name = self._name(topology)
        with translated("asking for the slot and the publication"):
            # The slot first: on another server both are missing, and this server's publication was not dropped.
            slot_positions(self._session(), name, start)
            return publication_found(self._session(), name)

    def uncaptured(self, topology: str, rules: Sequence[object]) -> tuple[str, ...]:
        """See `SourceDatabase.uncaptured`; the log of DDL is one of them while DDL is not recorded."""
        with translated("reading the catalog"):
            connection = self._session()
            name = self._name(topology)
            selected = select_tables(connection, rules)
            there = publication_tables(connection, name)  # afterwards: the event trigger may just publish a new table
            tables = tuple(f"{t.owner}.{t.name}" for t in selected if t.number not in there)
            return (*tables, *unrecorded(connection, name, rules))

    def refused_changes(
        self, topology: str, rules: Sequence[object], needs: Sequence[LogNeed], *, is_written: bool
    ) -> tuple[Finding, ...]:
        """See `SourceDatabase.refused_changes`."""
        with translated("reading the catalog"):
            connection = self._session()
            there = publication_tables(connection, self._name(topology))
            tables = [table for table in select_tables(connection, rules) if table.number in there]
            path = f"sites.{self._site}"
            whole = _needed_whole(connection, tables, needs, all_of_them=is_written)
            return tuple(finding for table in tables for finding in identity_findings(table, path, whole))

    def captures_ddl(self, topology: str) -> bool:
        """See `SourceDatabase.captures_ddl`."""
        with translated("reading the publication"):
            return is_published(self._session(), self._name(topology))

    def ddl_due(self, topology: str, rules: Sequence[object]) -> tuple[str, ...]:
        """See `SourceDatabase.ddl_due`."""
        if not takes_ddl(rules):
            return ()
        with translated("asking whether all DDL is recorded"):
            connection = self._session()
            due = ddl_due(connection, self._name(topology), rules, select_tables(connection, rules))
            return tuple(step.statement for step in due)

    def missed_ddl(self, topology: str) -> MissedDdl | None:
        """See `SourceDatabase.missed_ddl`."""
        with translated("asking which DDL was not recorded"):
            return missed_ddl(self._session(), self._name(topology))

    def trim_ddl_log(self) -> bool:
        """See `SourceDatabase.trim_ddl_log`."""
        with translated("removing old records of DDL"):
            return trim_ddl(self._session())

    def captured(self, topology: str) -> tuple[CapturedTable, ...]:
        """See `SourceDatabase.captured`: the tables that the publication names."""
        with translated("reading the publication"):
            return captured_tables(self._session(), self._name(topology))

    def row_marks(self, topology: str, *, snapshot: str = "") -> dict[str, RowMark]:
        """See `SourceDatabase.row_marks`."""
        with use_snapshot(self._session(), snapshot) as connection, translated("reading the marks of the tables"):
            return row_marks(connection, self._name(topology))

    def computed_columns(self, identity: str) -> dict[str, ComputedColumn]:
        """See `SourceDatabase.computed_columns`."""
        with translated("reading the expressions of a table"):
            return computed_in(self._session(), identity)

    def began_empty(self, part: str) -> bool:
        """See `SourceDatabase.began_empty`."""
        with translated("asking how a partition began"):
            return began_empty(self._session(), int(part))

    def was_written_anew(self, part: str, stamp: str = "") -> bool:
        """See `SourceDatabase.was_written_anew`."""
        with translated("asking how a partition was written"):
            return was_written_anew(self._session(), int(part), stamp)

    def partition_rows(self, part: str) -> str:
        """See `SourceDatabase.partition_rows`."""
        with translated("asking which rows a partition holds"):
            return partition_rows(self._session(), [int(part)]).get(int(part), "")

    def is_default_part(self, part: str) -> bool:
        """See `SourceDatabase.is_default_part`."""
        query = (
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_partition_ancestors(%s::oid::regclass) a JOIN"
            " pg_catalog.pg_partitioned_table p ON p.partdefid = a.relid)"
        )
        return bool(self._value("looking for a default partition", query, (part,)))

    def has_part(self, part: str) -> bool:
        """See `SourceDatabase.has_part`."""
        return bool(
            self._value(
                "looking for a table", "SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = %s::oid)", (part,)
            )
        )

    def holds(self, table: TableName, rows: str) -> bool:
        """See `SourceDatabase.holds`."""
        with translated("looking for rows"), self._session().transaction():
            # A session holds a lock at the destination meanwhile.
            self._session().execute(f"SET LOCAL statement_timeout = '{_HOLDS_TIMEOUT}'".encode())
            found = (
                self._session()
                .execute(f"SELECT EXISTS (SELECT FROM {qualified(*table)} WHERE {rows})".encode())
                .fetchone()
            )
        return found is not None and bool(found[0])

    def plan(self, topology: str, rules: Sequence[object]) -> tuple[PlannedStatement, ...]:
        """See `SourceDatabase.plan`."""
        with translated("planning the source"):
            connection = self._session()
            name = self._name(topology)
            with connection.transaction():
                # One snapshot: a table that the event trigger publishes while this runs is both wanted and there, or
                # neither. Else it would be taken out again.
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                tables = select_tables(connection, rules)
                log = log_tables(connection, rules)
                published = publication_steps(connection, name, tables, further=log, has_admin=self._has_admin)
                if log:
                    install = install_step(connection)
                    watch = watch_step(connection, name, ddl_tables(rules, tables))
                    taken = None if self._has_admin else rules_step(connection, name, topology, rules)
                    steps = [install, *([taken] if taken else []), *published, watch]
                else:
                    removal = removal_step(connection, name)
                    steps = [*published, *([removal] if removal else [])]
                return (*steps, slot_step(connection, name))

    def prepare(self, topology: str, rules: Sequence[object]) -> tuple[str, ...]:
        """See `SourceDatabase.prepare`. Creating a slot waits for every running transaction.

        With an administrator, the publication already exists.

        Raises:
            DatabaseUnavailable: a table stayed locked, or an earlier call continued and did the same meanwhile; nothing
                is half done; retry.
            DatabaseError: another object has our name, or a right is missing.
            LogGone: the publication of an existing slot is missing or was altered.
        """
        steps = self.plan(topology, rules)
        if steps[-1].is_done:
            # Changes made meanwhile are not sent: neither a missing nor an altered publication is repaired silently.
            with translated("asking for the publication"):
                publication_found(self._session(), self._name(topology))
        if self._has_admin:
            self._check_admins_work(topology, rules, steps)
            steps = steps[-1:]
        due = [step for step in steps if not step.is_done]
        expected = (*_PREPARED_TWICE, *_INSTALLED_TWICE) if takes_ddl(rules) else _PREPARED_TWICE
        with own_ddl(self._dsn, self._site), translated("preparing the source"):
            connection = self._session()
            for step in due:
                sent = step.sent if isinstance(step, DdlStep) else step.statement
                # No session queues behind the creation of a slot, so it may wait; every new attempt would wait for more
                # transactions.
                limit = "0" if sent.startswith(MAKES_SLOT) else _LOCK_TIMEOUT
                connection.execute(f"SET lock_timeout = '{limit}'")
                try:
                    connection.execute(sent.encode())
                except expected as error:
                    raise DatabaseUnavailable(
                        f"another session prepares the source, too: {error.diag.message_primary}",
                        sqlstate=str(error.sqlstate),
                    ) from error
                finally:
                    with contextlib.suppress(psycopg.Error):
                        connection.execute("SET lock_timeout = 0")
        return tuple(step.statement for step in due)

    def _check_admins_work(self, topology: str, rules: Sequence[object], steps: Sequence[PlannedStatement]) -> None:
        """Refuse to go on without what the administrator creates.

        Raises:
            DatabaseError: the publication does not exist; or nothing records DDL, and a rule takes it.
        """
        name = self._name(topology)
        if any(step.statement.startswith("CREATE PUBLICATION") and not step.is_done for step in steps):
            raise DatabaseError(f"site {self._site}: there is no publication {name}", hint=AS_ADMIN)
        with translated("asking whether DDL is recorded"):
            if unrecorded(self._session(), name, rules):
                raise DatabaseError(f"site {self._site}: DDL is not recorded", hint=AS_ADMIN)

    def remove(self, topology: str) -> tuple[str, ...]:
        """See `SourceDatabase.remove`. Ends the session that still reads the slot."""
        name = self._name(topology)
        statements = []
        with translated("removing the slot and the publication"):
            connection = self._session()
            statements += self._drop_slot(connection, name)
            has_publication = (
                connection.execute("SELECT FROM pg_publication WHERE pubname = %s", (name,)).fetchone() is not None
            )
            if has_publication and not self._has_admin:
                statement = f"DROP PUBLICATION {quote(name)}"
                # a role that may run it, if this one may not, needs the exact statement
                with own_ddl(self._dsn, self._site), translated(statement):
                    connection.execute(statement.encode())
                statements.append(statement)
            removal = None if self._has_admin else removal_step(connection, name)
            if removal is not None:
                with own_ddl(self._dsn, self._site), translated(removal.statement):
                    connection.execute(removal.sent.encode())
                statements.append(removal.statement)
        return (*statements, *([LEFT_TO_ADMIN] if has_publication and self._has_admin else []))

    def _drop_slot(self, connection: psycopg.Connection[Any], name: str) -> list[str]:
        """Drop the slot after ending its user, as often as another session takes it again.

        Returns the statement, if a slot existed.
        """
        statement = f"SELECT pg_drop_replication_slot({literal(name)})"
        deadline = time.monotonic() + _RELEASE_TIMEOUT_S
        while True:
            row = connection.execute(
                "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (name,)
            ).fetchone()
            if row is None:
                return []
            if row[0] is None:
                with translated(statement), contextlib.suppress(psycopg.errors.ObjectInUse):
                    connection.execute(statement.encode())
                    return [statement]
            if time.monotonic() > deadline:
                raise DatabaseUnavailable(
                    f"slot {name} is still in use", hint="stop the log writer first", pid=int(row[0] or 0)
                )
            connection.execute("SELECT pg_terminate_backend(%s)", (row[0],))
            time.sleep(_POLL_S)

    # ------------------------------------------------------------------ the log

    def open_stream(
        self,
        topology: str,
        start: Scn,
        *,
        timeline: int = 0,
        allow_binary: bool = True,
        last_transaction: int = 0,
        last_commit_scn: Scn = FIRST_SCN,
        force_libpq: bool = False,
    ) -> PostgresLogStream:
        """See `SourceDatabase.open_stream`; `force_libpq` reads through libpq, as over TLS.

        Raises:
            DatabaseUnavailable: the server changed, or was promoted, between the check and the stream.
            DatabaseSetBack: the database was restored to a state from before the end of the redo log.
            LogGone: the server does not have everything after `start`.
        """
        from headrace.databases.postgres.source.log_stream.replication_stream import open_log_stream

        name = self._name(topology)
        with translated("opening the log stream"):
            connection = self._session()
            checked = continues(
                connection, self._dsn, self._site or connection.info.dbname, timeline=timeline, start=start
            )
            begin = check_slot(connection, name, start)
            check_last_transaction(connection, start, last_transaction)
            publication_found(connection, name)
            binary = allow_binary and not binary_obstacles(connection, published_relations(connection, name))
            check_same_log(
                connection,
                name,
                name,
                start,
                binary=binary,
                last_commit_scn=last_commit_scn,
                transaction=last_transaction,
            )
        stream = open_log_stream(
            # Named like the slot: a name in synchronous_standby_names must belong to one site alone.
            self._dsn,
            slot=name,
            publication=name,
            start=begin,
            binary=binary,
            application_name=name,
            force_libpq=force_libpq,
            decoding_memory=self._decoding_memory,
        )
        # Another connection may reach another server of the dsn, which was not checked.
        if stream.options.timeline != checked:
            stream.close()
            self.close()
            raise DatabaseUnavailable(
                f"the log stream is on timeline {stream.options.timeline}, and the log that was checked is on timeline"
                f" {checked}: the dsn leads to another server now, or it was just promoted",
                hint="no action needed: it is checked again",
            )
        return stream

    def check_stream(
        self, options: StreamOptions, described: Sequence[TableVersion], *, describers: Collection[int]
    ) -> None:
        """See `SourceDatabase.check_stream`: ALTER TABLE may add types while a binary stream runs."""
        found = {column.type_number: (table, column.name) for table in described for column in table.columns}
        asked = found.keys() - self._binary_types
        if not options.binary or not asked:
            return
        with translated("reading the catalog"):
            connection = self._session()
            obstacles = type_obstacles(connection, asked, are_seen=are_visible(connection, describers))
        self._binary_types |= {number for number in asked - obstacles.keys() if number < FIRST_NUMBER_NOT_FIXED}
        if obstacles:
            number, reason = min(obstacles.items())
            table, column = found[number]
            raise UnsupportedType(
                f"column {column} of {table.owner}.{table.name} cannot travel in binary form: {reason}",
                hint="no action needed: changes travel in text form from now on",
            )

    def dictionary_build(self, topology: str, *, seeing: Collection[int] = ()) -> DictionaryBuild | None:
        """See `SourceDatabase.dictionary_build`."""
        with translated("reading the catalog"):
            connection = self._session()
            if not are_visible(connection, seeing):
                return None
            # First the position, then the tables: the log also describes a table created in between.
            scn = Scn(int(self._value("asking for the position", "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")))
            return DictionaryBuild(scn=scn, tables=published_objects(connection, self._name(topology)))

    def write_marker(self, content: bytes) -> Scn:
        """See `SourceDatabase.write_marker`: a transactional logical message, flushed before this returns."""
        query = "SELECT pg_logical_emit_message(true, %s, %s::bytea) - '0/0'::pg_lsn"
        return Scn(int(self._value("writing a marker", query, (MARKER_PREFIX, content))))

    def open_snapshot(self, topology: str) -> PostgresSnapshot:
        """See `SourceDatabase.open_snapshot`. Waits for every running transaction.

        The server builds an exported snapshot from the log, where a transaction's commit appears a moment before its
        rows are visible. A reader within this moment would not only miss them: it would mark them dead for everybody
        (in all versions so far). So the snapshot is returned when everything in it is visible.

        Raises:
            DatabaseUnavailable: something in the snapshot does not become visible, or the server is unreachable.
        """
        from headrace.databases.postgres.source.log_stream.lsn import parse_lsn

        connection = connect(self._dsn, application_name=f"headrace {topology} snapshot", replication="database")
        try:
            made = f"headrace_snapshot_{secrets.token_hex(8)}"
            command = f"CREATE_REPLICATION_SLOT {made} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"
            with translated("exporting a snapshot"):
                row = connection.execute(command).fetchone()
            assert row is not None
            slot = self._name(topology)
            snapshot = PostgresSnapshot(connection, self._session(), slot=slot, scn=parse_lsn(row[1]), name=row[2])
            self._wait_visible(snapshot)
            return snapshot
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """See `SourceDatabase.close`."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    # ------------------------------------------------------------------ internals

    def _session(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn, application_name="headrace source")
            # A marker must be in the flushed log when its call returns, whatever the role's default is.
            self._connection.execute("SET synchronous_commit = local")
        return self._connection

    def _is_binary(self, tables: Sequence[SourceTable]) -> bool:
        """Whether the changes of these tables can travel in binary form (`binary_types.binary_obstacles`)."""
        with translated("reading the catalog"):
            connection = self._session()
            rows = connection.execute(
                f"""
                SELECT c.oid::int8 FROM unnest(%s::text[], %s::text[]) AS wanted (owner, name)
                JOIN pg_namespace n ON n.nspname = wanted.owner
                JOIN pg_class root ON root.relnamespace = n.oid AND root.relname = wanted.name
                CROSS JOIN LATERAL {members_below("root.oid")} AS c (oid)
                """,
                ([table.owner for table in tables], [table.name for table in tables]),
            ).fetchall()
            return not binary_obstacles(connection, [int(row[0]) for row in rows])

    def _wait_visible(self, snapshot: PostgresSnapshot) -> None:
        """Wait until every transaction of the snapshot is visible: a commit is logged a moment before its rows are visible."""
        with translated("waiting for the snapshot's transactions"):
            session = self._session()
            with use_snapshot(session, snapshot.name):
                (exported,) = session.execute("SELECT pg_current_snapshot()::text").fetchone() or ("",)
            deadline = time.monotonic() + _VISIBLE_TIMEOUT_S
            while not (session.execute(_IS_VISIBLE, {"exported": exported}).fetchone() or (False,))[0]:
                if time.monotonic() > deadline:
                    raise DatabaseUnavailable(
                        f"a transaction that committed before SCN {scn_text(snapshot.scn)} is not visible after"
                        f" {_VISIBLE_TIMEOUT_S:.0f} s",
                        hint="see SELECT * FROM pg_stat_activity WHERE wait_event = 'SyncRep': is a synchronous standby"
                        " away?",
                    )
                time.sleep(_VISIBLE_POLL_S)

    def _name(self, topology: str) -> str:
        return slot_name(topology, self._site or self._session().info.dbname)

    def _value(self, what: str, query: str, parameters: Sequence[object] = ()) -> Any:  # noqa: ANN401 - one SQL value
        with translated(what):
            row = self._session().execute(query, parameters or None).fetchone()
            assert row is not None
            return row[0]


def _needed_whole(
    connection: psycopg.Connection[Any],
    tables: Sequence[CatalogTable],
    needs: Sequence[LogNeed],
    *,
    all_of_them: bool = False,
) -> frozenset[TableName]:
    """Return tables and partitions of which a client needs more of a row than its key, whatever they log now.

    Only tables that lack an identity are examined, each with a query.

    Args:
        connection: to the source.
        tables: tables to examine.
        needs: of the clients.
        all_of_them: others write them, too: detecting a differing row needs all of its old values.
    """
    broken = [table for table in tables if any(identity_findings(table, "", ()))]
    if all_of_them:
        return frozenset(TableName.of(leaf) for table in broken for leaf in table.leaves)
    bare = [replace(table, leaves=tuple(replace(leaf, identity="n") for leaf in table.leaves)) for table in broken]
    logged = logged_tables(connection, bare, needs)
    return frozenset(TableName.of(each) for each in logged if each.lacking or each.uncertain)
