"""The `headrace` schema at a destination: progress, error queue, instantiation.

The schema is versioned: `VERSIONS[n]` upgrades version n to n + 1. All statements of an upgrade run in one transaction
with the new version number, under an advisory lock, so that `prepare` can be called from any process at any time. A
schema newer than this program is refused.

The tables

    apply_process     One row per apply process: its epoch (fencing), a low watermark that moved without data, the ranges
                      that the previous incarnation applied above it, and how far all but joining tables are ahead of it.
    apply_progress    One row per apply server of the current epoch, moved by compare-and-set (`sequence`) in the
                      transaction of the data. `applied` holds ranges above the low watermark as
                      {after, through, after, through, ...}.
    apply_epoch       UNLOGGED: the run of the server in which an epoch began. A crash, a failover and a restore from a
                      backup empty it or leave another run in it, which ends the epoch (`fencing`).
    apply_session     UNLOGGED: the newest incarnation of each apply server of an epoch, raised before it ends the older
                      incarnation's session.
    apply_error       The error queue, one row per source transaction. The LCRs are in apply_error_part (LcrBatch
                      messages), the hashes of their keys in apply_error_key. apply_error_original has the original of
                      each edited part. apply_error_edit has what was edited, by whom and when; it stays for a while
                      after the transaction was executed.
    apply_state       Configuration and state of an apply process, written a few times a minute, fenced by its epoch.
    conflict_history  One row per conflict, whatever its outcome; writers trim it.
    row_change        Time and site of a key's last change, defined in `row_changes`. Rows of relation 0 describe
                      forgotten times, and samples (`lost_times`).
    row_change_set    Times and site of changes of a set of rows, defined in `noted_sets`; row_change_set_time has each
                      row's time.
    instantiation     One row per table (`CapturedTable.identity`, not its name) and apply process. `relation` is the
                      OID of the table here, `recorded_in` the OID of this table when that was recorded.
    row_mark          The source catalog's state of an instantiated table when its rows were copied, kept or found equal
                      (`headrace.databases.ports.row_marks`).
    ddl_history       What became of each DDL change, written in its transaction; the writer trims it.
    ddl_skip          An operator's wish not to apply a DDL change; the transaction that leaves it out deletes the row.
    ddl_job           One row per index that is being made outside the transactions of the data.

The views `dba_*` and `v_streams_*` are for users and have the manuals' names and columns; `views` defines them.

Source: Oracle Streams Concepts and Administration 11.2, "Monitoring Apply" (DBA_APPLY_PROGRESS, DBA_APPLY_ERROR,
    DBA_APPLY_INSTANTIATED_OBJECTS).
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.abc import Query

from headrace.base.errors import INSTANTIATE_AGAIN, DatabaseError
from headrace.databases.ports.operator import AS_ADMIN
from headrace.databases.postgres.advisory_locks import wait_transaction_lock
from headrace.databases.postgres.connection import translated
from headrace.databases.postgres.destination.records.views import statements as view_statements
from headrace.databases.postgres.destination.row_times.noted_sets import SCHEMA as NOTED_SETS
from headrace.databases.postgres.destination.writing.row_changes import QUOTED_SCHEMA
from headrace.databases.postgres.destination.writing.row_changes import SCHEMA as ROW_CHANGES

__all__ = [
    "CLAIM_LOCK",
    "CLAIM_LOCK_TIMEOUT_S",
    "HISTORY_FROM",
    "MARKS_FROM",
    "PREPARE_LOCK",
    "PREPARE_LOCK_TIMEOUT_S",
    "SCHEMA",
    "VERSION",
    "VERSIONS",
    "check_schema",
    "missing_tables",
    "prepare_schema",
    "schema_version",
]

SCHEMA = "headrace"
_TABLE = re.compile(r"CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?(headrace\.\w+)")

# "headrace" in hexadecimal, a number that another program's advisory lock is unlikely to have.
PREPARE_LOCK = 0x68656164_72616365
# Two concurrent `up`s wait for each other. An upgrade of the schema takes seconds when error queues are large.
PREPARE_LOCK_TIMEOUT_S = 60.0
# Held for a moment while any table is claimed for a copy (`record_instantiation` with `beside`). The number is "he"
# followed by "claims" in hexadecimal.
CLAIM_LOCK = 0x6865636C_61696D73
CLAIM_LOCK_TIMEOUT_S = 15.0  # enough for dozens of apply processes that claim at once, each with a slow commit

_VERSION_1 = (
    "CREATE SCHEMA IF NOT EXISTS headrace",
    "CREATE TABLE headrace.schema_version (version integer NOT NULL)",
    "INSERT INTO headrace.schema_version VALUES (0)",
    """CREATE TABLE headrace.apply_process (
    topology text NOT NULL, apply text NOT NULL, epoch bigint NOT NULL,
    low_watermark bigint NOT NULL DEFAULT 0, applied bigint[] NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(), epoch_raised_at timestamptz NOT NULL DEFAULT now(),
    applied_at timestamptz, PRIMARY KEY (topology, apply)
) WITH (fillfactor = 50)""",
    # Every transaction updates these small rows: free space in the page keeps the updates out of the index.
    """CREATE TABLE headrace.apply_progress (
    topology text NOT NULL, apply text NOT NULL, server integer NOT NULL, epoch bigint NOT NULL,
    sequence bigint NOT NULL, low_watermark bigint NOT NULL, applied bigint[] NOT NULL,
    applied_at timestamptz, PRIMARY KEY (topology, apply, server)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000)""",
    """CREATE TABLE headrace.apply_error (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topology text NOT NULL, apply text NOT NULL, source text NOT NULL, transaction_id bigint NOT NULL,
    commit_scn bigint NOT NULL, commit_time timestamptz NOT NULL, row_count bigint NOT NULL,
    failed_position bigint NOT NULL, depends_on bigint NOT NULL, conflict_type text NOT NULL,
    sqlstate text NOT NULL, message text NOT NULL, readable text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
)""",
    "CREATE INDEX apply_error_process ON headrace.apply_error (topology, apply, number)",
    """CREATE TABLE headrace.apply_error_part (
    number bigint NOT NULL, part integer NOT NULL,
    batch bytea NOT NULL, PRIMARY KEY (number, part)
)""",
    # No foreign keys: apply's sessions would not check them (session_replication_role = replica).
    # Hashes are little-endian uint64, one row per part, because readers always read all of them.
    """CREATE TABLE headrace.apply_error_key (
    number bigint NOT NULL, part integer NOT NULL,
    hashes bytea NOT NULL, PRIMARY KEY (number, part)
)""",
    """CREATE TABLE headrace.instantiation (
    topology text NOT NULL, apply text NOT NULL, source text NOT NULL, owner text NOT NULL, name text NOT NULL,
    scn bigint NOT NULL, state text NOT NULL, row_count bigint NOT NULL, digest text NOT NULL, problem text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (topology, apply, source, owner, name)
)""",
    """CREATE VIEW headrace.dba_apply_progress AS
SELECT p.topology, p.apply AS apply_name, p.epoch,
       greatest(p.low_watermark, coalesce(max(s.low_watermark), 0)) AS applied_message_number,
       greatest(p.applied_at, max(s.applied_at)) AS apply_time, count(s.server) AS servers
FROM headrace.apply_process p LEFT JOIN headrace.apply_progress s USING (topology, apply)
GROUP BY p.topology, p.apply""",
    """CREATE VIEW headrace.dba_apply_error AS
SELECT topology, apply AS apply_name, number AS local_transaction_id, source AS source_database,
       transaction_id AS source_transaction_id, commit_scn AS source_commit_scn,
       commit_time AS source_commit_time, failed_position + 1 AS message_number, row_count AS message_count,
       sqlstate AS error_number, message AS error_message, conflict_type, depends_on,
       created_at AS error_creation_time, readable AS failed_message
FROM headrace.apply_error ORDER BY number""",
    """CREATE VIEW headrace.dba_apply_instantiated_objects AS
SELECT topology, apply AS apply_name, source AS source_database, owner AS source_object_owner,
       name AS source_object_name, scn AS instantiation_scn, state, row_count, digest, problem, changed_at
FROM headrace.instantiation""",
)

# Version 1 recorded tables by name. Such a record matches no known table, so the table is copied again.
_VERSION_2 = (
    "ALTER TABLE headrace.instantiation ADD COLUMN identity text NOT NULL DEFAULT ''",
    "UPDATE headrace.instantiation SET identity = 'by name: ' || owner || '.' || name",
    """ALTER TABLE headrace.instantiation ALTER COLUMN identity DROP DEFAULT,
    DROP CONSTRAINT instantiation_pkey, ADD PRIMARY KEY (topology, apply, source, identity)""",
    """CREATE OR REPLACE VIEW headrace.dba_apply_instantiated_objects AS
SELECT topology, apply AS apply_name, source AS source_database, owner AS source_object_owner,
       name AS source_object_name, scn AS instantiation_scn, state, row_count, digest, problem, changed_at, identity
FROM headrace.instantiation""",
)

_VERSION_3 = (
    """CREATE UNLOGGED TABLE headrace.apply_epoch (
    topology text NOT NULL, apply text NOT NULL, epoch bigint NOT NULL,
    server_started_at timestamptz NOT NULL, relation oid NOT NULL, PRIMARY KEY (topology, apply)
)""",
    """CREATE UNLOGGED TABLE headrace.apply_session (
    topology text NOT NULL, apply text NOT NULL, server integer NOT NULL, epoch bigint NOT NULL,
    incarnation bigint NOT NULL, PRIMARY KEY (topology, apply, server)
)""",
)


def _set_tag(create: str, alone: str = "") -> str:
    """Return the statement that creates `headrace.set_tag`.

    Args:
        create: first words of the statement.
        alone: additional condition for the warning about a call outside a transaction; may be empty.
    """
    return f"""{create} headrace.set_tag(tag text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF tag IS NULL OR tag !~ '^([0-9a-fA-F]{{2}})+$' OR pg_catalog.length(tag) > 4000 THEN
        RAISE EXCEPTION 'a tag is 1 to 2000 bytes in hexadecimal, such as 11' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'to take a tag back, roll back to a savepoint before it; the next transaction has none';
    END IF;
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'a transaction is tagged before its first change, once' USING ERRCODE = 'active_sql_transaction',
            HINT = 'call headrace.set_tag right behind BEGIN';
    END IF;
    IF pg_catalog.statement_timestamp() = pg_catalog.transaction_timestamp(){alone} THEN
        RAISE WARNING 'headrace.set_tag tags the transaction it is in: call it between BEGIN and COMMIT';
    END IF;
    PERFORM pg_catalog.pg_logical_emit_message(true, 'headrace.tag', pg_catalog.decode(tag, 'hex'));
END
$$"""


def _track(create: str, alone: str = "") -> str:
    """Return the statement that creates `headrace.track`.

    Args:
        create: first words of the statement.
        alone: additional condition for the warning about a call outside a transaction; may be empty.
    """
    return f"""{create} headrace.track(label text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF label IS NULL OR pg_catalog.length(pg_catalog.convert_to(label, 'UTF8')) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'a label has 1 to 200 bytes' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'to take a label back, roll back to a savepoint before it; the next transaction has none';
    END IF;
    IF pg_catalog.statement_timestamp() = pg_catalog.transaction_timestamp(){alone} THEN
        RAISE WARNING 'headrace.track labels the transaction it is in: call it between BEGIN and COMMIT';
    END IF;
    PERFORM pg_catalog.pg_logical_emit_message(true, 'headrace.track', pg_catalog.convert_to(label, 'UTF8'));
END
$$"""


# Users' tags (`headrace.databases.postgres.origins`). A transaction without an id has changed nothing yet.
_VERSION_4 = (_set_tag("CREATE FUNCTION"),)

_VERSION_5 = ("ALTER TABLE headrace.apply_process ADD COLUMN ahead bigint NOT NULL DEFAULT 0",)

# Users' labels (`headrace.lcr.tracking`).
_VERSION_6 = (_track("CREATE FUNCTION"),)

# A record belongs to the table with this OID, not to its name (`headrace.databases.ports.Instantiation.is_remade`).
_VERSION_7 = (
    "ALTER TABLE headrace.instantiation ADD COLUMN relation oid, ADD COLUMN recorded_in oid",
    """UPDATE headrace.instantiation SET relation = to_regclass(format('%I.%I', owner, name)),
    recorded_in = 'headrace.instantiation'::regclass""",
)

_VERSION_8 = (
    """CREATE TABLE headrace.conflict_history (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topology text NOT NULL, apply text NOT NULL, source text NOT NULL, transaction_id bigint NOT NULL,
    commit_scn bigint NOT NULL, "position" bigint NOT NULL, owner text NOT NULL, name text NOT NULL, command text NOT NULL,
    kind text NOT NULL, "columns" text[] NOT NULL, handler text NOT NULL, outcome text NOT NULL, applied_columns text[] NOT NULL,
    "old" text[] NOT NULL, "new" text[] NOT NULL, "current" text[] NOT NULL, error_number bigint NOT NULL,
    resolved_at timestamptz NOT NULL DEFAULT clock_timestamp()
)""",
    "CREATE INDEX conflict_history_age ON headrace.conflict_history (resolved_at)",
    """CREATE VIEW headrace.dba_apply_conflict_history AS
SELECT topology, apply AS apply_name, number AS conflict_number, source AS source_database, transaction_id AS source_transaction_id,
       commit_scn AS source_commit_scn, "position" + 1 AS message_number, owner AS object_owner, name AS object_name,
       command AS command_type, kind AS conflict_type, "columns" AS conflicting_columns, handler AS method_name, outcome,
       applied_columns, "old" AS old_values, "new" AS new_values, "current" AS current_values,
       nullif(error_number, 0) AS local_transaction_id, resolved_at AS resolution_time
FROM headrace.conflict_history ORDER BY number""",
)

_VERSION_9 = (
    """CREATE TABLE headrace.apply_error_original (
    number bigint NOT NULL, part integer NOT NULL, batch bytea NOT NULL, PRIMARY KEY (number, part)
)""",
    """CREATE TABLE headrace.apply_error_edit (
    number bigint NOT NULL, edit integer NOT NULL, topology text NOT NULL, apply text NOT NULL, "position" bigint NOT NULL,
    owner text NOT NULL, name text NOT NULL, command text NOT NULL, changes text[] NOT NULL, edited_by text NOT NULL,
    edited_at timestamptz NOT NULL DEFAULT clock_timestamp(), outcome text NOT NULL DEFAULT '', PRIMARY KEY (number, edit)
)""",
)

# Rows are updated repeatedly: free space in the page keeps the updates out of the index.
_VERSION_10 = (
    """CREATE TABLE headrace.apply_state (
    topology text NOT NULL, apply text NOT NULL, epoch bigint NOT NULL, configuration jsonb NOT NULL, state jsonb NOT NULL,
    observed_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (topology, apply)
) WITH (fillfactor = 20)""",
    *view_statements(10),
)

_VERSION_11 = view_statements(11)
_VERSION_12 = view_statements(12)

# A row remains only from an apply server's death in a handler until the next server's success
# (`spark_apply.handlers.crashes`).
_VERSION_13 = (
    """CREATE TABLE headrace.handler_call (
    topology text NOT NULL, apply text NOT NULL, scn bigint NOT NULL, function text NOT NULL, calls integer NOT NULL,
    called_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (topology, apply, scn, function)
)""",
    *view_statements(13),
)

_VERSION_15 = view_statements(15)

_ALONE = r"""
       AND pg_catalog.current_query() ~* '^[[:space:]]*select[[:space:]][^;]*[[:<:]]{function}[[:>:]][^;]*;?[[:space:]]*$'"""

# A string of several statements, as psql -c sends it, has one time for all of them. The warning is only for a call that
# is the whole string.
_VERSION_17 = (
    _set_tag("CREATE OR REPLACE FUNCTION", _ALONE.format(function="set_tag")),
    _track("CREATE OR REPLACE FUNCTION", _ALONE.format(function="track")),
)

# Marks are in a separate table, because they are read a few times a minute and the records much more often.
_VERSION_18 = (
    """CREATE TABLE headrace.row_mark (
    topology text NOT NULL, apply text NOT NULL, source text NOT NULL, identity text NOT NULL, mark text NOT NULL,
    marked_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (topology, apply, source, identity)
)""",
)

# `position` is the place of the DDL LCR in its transaction, from 0; the views count from 1.
_VERSION_20 = (
    """CREATE TABLE headrace.ddl_history (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topology text NOT NULL, apply text NOT NULL, source text NOT NULL, transaction_id bigint NOT NULL,
    order_scn bigint NOT NULL, "position" bigint NOT NULL, command text NOT NULL, owner text NOT NULL, name text NOT NULL,
    ddl_text text NOT NULL, statements text[] NOT NULL, outcome text NOT NULL, reason text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)""",
    "CREATE INDEX ddl_history_process ON headrace.ddl_history (topology, apply, number)",
    """CREATE TABLE headrace.ddl_skip (
    topology text NOT NULL, apply text NOT NULL, order_scn bigint NOT NULL, "position" bigint NOT NULL,
    PRIMARY KEY (topology, apply, order_scn, "position")
)""",
    *view_statements(20),
)

# The driver's worker deletes a row when the index is made, or left out. `source_relation` and `source_index` are the
# source's numbers, `relation` is the table's here.
_VERSION_21 = (
    """CREATE TABLE headrace.ddl_job (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topology text NOT NULL, apply text NOT NULL, source text NOT NULL, transaction_id bigint NOT NULL,
    order_scn bigint NOT NULL, "position" bigint NOT NULL, source_relation bigint NOT NULL, source_index bigint NOT NULL,
    owner text NOT NULL, name text NOT NULL, index_name text NOT NULL, definition text NOT NULL, relation oid,
    state text NOT NULL DEFAULT 'WAITING', attempts integer NOT NULL DEFAULT 0, problem text NOT NULL DEFAULT '',
    fix text NOT NULL DEFAULT '', added_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
)""",
    *view_statements(21),
)

VERSIONS: tuple[tuple[str, ...], ...] = (
    _VERSION_1,
    _VERSION_2,
    _VERSION_3,
    _VERSION_4,
    _VERSION_5,
    _VERSION_6,
    _VERSION_7,
    _VERSION_8,
    _VERSION_9,
    _VERSION_10,
    _VERSION_11,
    _VERSION_12,
    _VERSION_13,
    ROW_CHANGES,
    _VERSION_15,
    NOTED_SETS,
    _VERSION_17,
    _VERSION_18,
    QUOTED_SCHEMA,
    _VERSION_20,
    _VERSION_21,
)
VERSION = len(VERSIONS)
HISTORY_FROM = 8  # the first version with the history of conflicts
MARKS_FROM = 18  # the first version with the marks of tables


def schema_version(connection: psycopg.Connection[Any]) -> int:
    """Return the version of the schema in the database; 0 when the schema does not exist."""
    with translated("reading the version of the schema headrace"):
        exists = connection.execute("SELECT pg_catalog.to_regclass('headrace.schema_version') IS NOT NULL").fetchone()
        if exists is None or not exists[0]:
            return 0
        found = connection.execute("SELECT version FROM headrace.schema_version").fetchone()
    return int(found[0]) if found else 0


def missing_tables(connection: psycopg.Connection[Any]) -> tuple[str, ...]:
    """Return the tables of the schema headrace that were dropped: the rest cannot be used or repaired."""
    version = schema_version(connection)
    made = [
        found[1] for number in range(version or VERSION) for text in VERSIONS[number] if (found := _TABLE.match(text))
    ]
    there = {
        row[0]
        for row in connection.execute(
            "SELECT t FROM pg_catalog.unnest(%s::text[]) t WHERE pg_catalog.to_regclass(t) IS NOT NULL", (made,)
        )
    }
    return tuple(name for name in made if name not in there) if version or there else ()


def check_schema(connection: psycopg.Connection[Any]) -> None:
    """Check a schema that another role creates, and refuse it when it does not suit this program.

    Args:
        connection: session of the applying role.

    Raises:
        DatabaseError: the schema does not exist, is damaged or has another version.
    """
    with translated("looking at the schema headrace"):
        version = schema_version(connection)
    if version > VERSION:
        raise DatabaseError(
            f"the schema headrace has version {version}, this program knows {VERSION}",
            hint="use the newer Headrace that made it",
            version=version,
        )
    if version < VERSION:
        raise DatabaseError(
            f"the schema headrace has version {version}, this program needs {VERSION}"
            if version
            else "the schema headrace does not exist",
            hint=AS_ADMIN,
            version=version,
        )
    if missing := missing_tables(connection):
        raise DatabaseError(
            f"the schema headrace is damaged: {', '.join(missing)} is not there", hint=INSTANTIATE_AGAIN
        )


def prepare_schema(connection: psycopg.Connection[Any]) -> tuple[str, ...]:
    """Create or upgrade the schema.

    Args:
        connection: connection in autocommit mode.

    Returns:
        The statements that were run; empty when the schema is up to date.

    Raises:
        DatabaseError: the role may not create the schema, a newer Headrace made it, or it is damaged.
        DatabaseUnavailable: another session keeps the schema locked.
    """
    run: list[str] = []
    with translated("preparing the schema headrace"), connection.transaction():
        wait_transaction_lock(connection, PREPARE_LOCK, what="the schema headrace", timeout_s=PREPARE_LOCK_TIMEOUT_S)
        version = schema_version(connection)
        if version > VERSION:
            raise DatabaseError(
                f"the schema headrace has version {version}, this program knows {VERSION}",
                hint="use the newer Headrace that made it",
                version=version,
            )
        if missing := missing_tables(connection):
            raise DatabaseError(
                f"the schema headrace is damaged: {', '.join(missing)} is not there", hint=INSTANTIATE_AGAIN
            )
        for number in range(version, VERSION):
            for statement in (*VERSIONS[number], f"UPDATE headrace.schema_version SET version = {number + 1}"):
                if statement.startswith("CREATE SCHEMA") and _has_schema(connection):
                    continue  # IF NOT EXISTS would still require the right to create a schema
                text: Query = statement.encode()
                connection.execute(text)
                run.append(statement)
    return tuple(run)


def _has_schema(connection: psycopg.Connection[Any]) -> bool:
    return connection.execute("SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'headrace'").fetchone() is not None
