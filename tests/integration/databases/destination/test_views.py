"""The views of a destination on a real server: filled by a driver's own description, upgraded from the previous
version, and dropped with the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg.rows import dict_row

from headrace.commands.described import with_descriptions
from headrace.databases.connectors import DatabaseAccess
from headrace.databases.destination_views import LEFT_OUT, VIEWS, rows_said
from headrace.databases.ports import ApplyProgress
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.records.schema import VERSION, VERSIONS, schema_version
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.rules.conditions.condition import Condition, parse
from headrace.rules.conflict_handlers import ConflictHandler, ConflictRules, HistoryBounds
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from headrace.rules.table_settings import KeyColumns, TableSettings
from headrace.rules.transformations.custom import CustomTransformation
from headrace.rules.transformations.transformation import (
    CURRENT_TIMESTAMP,
    AddColumn,
    DeleteColumns,
    KeepColumns,
    RenameColumn,
    RenameSchema,
    RenameTable,
    Transformation,
)
from headrace.rules.user_code.binds import read_statement
from headrace.rules.user_code.handlers import DmlHandler, ErrorHandler, HandlerRules
from headrace.rules.user_code.source import UserFunction
from protos import codec
from spark_apply.apply_config import ApplyConfig, TableToInstantiate
from spark_apply.conversation.groups import OnError
from spark_apply.driver.coordinator import ApplyCoordinator
from spark_apply.driver.described import configuration_of, said_of, state_of
from spark_apply.driver.reading.row_selection import ReaderStatistics
from spark_apply.driver.server_streams import ServerFacts
from tests.support.actors.overviews import overview_from
from tests.support.databases.destination_contract import error_transaction

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

BEFORE, EPOCH = 9, 1


HANDLERS = HandlerRules(
    dml=(
        DmlHandler(owner="hr", name="t", operations=("insert",), function=UserFunction(name="own:run", version="v1")),
        DmlHandler(
            owner="hr",
            name="t",
            operations=("update",),
            statements=(
                read_statement("DELETE FROM hr.x WHERE id = :new.id"),
                read_statement("lcr.execute true"),
            ),
        ),
    ),
    errors=(
        ErrorHandler(
            owner="hr", name="x", operations=("delete",), function=UserFunction(name="own:mend", version="v1")
        ),
    ),
    precommit=UserFunction(name="own:last", version="v2"),
)


def config(**changed: Any) -> ApplyConfig:
    access = DatabaseAccess(site="dbs1", kind="postgres", dsn="host=secret-host password=secret")
    where: Condition = parse("new.id > 5", "where")
    return ApplyConfig(
        **{
            "topology": "top",
            "apply": "a",
            "source": access,
            "destination": access,
            "queue": "q2",
            "tag": b"\x11",
            "parallelism": 3,
            "rules": (
                RuleSet(
                    include=(Rule(owner="hr", name="*"), Rule(owner="hr", name="t", condition=where)),
                    exclude=(Rule(owner="hr", name="x", tags=ANY_TAG),),
                ),
            ),
            "conflicts": ConflictRules(
                handlers=(
                    ConflictHandler(
                        owner="hr", name="t", method="maximum", columns=("v", "at"), resolution_column="at"
                    ),
                )
            ),
            "on_error": OnError.DISABLE,
            "handlers": HANDLERS,
            **changed,
        }
    )


READER: Any = SimpleNamespace(
    state="DEQUEUE MESSAGES", statistics=ReaderStatistics(rows=7, transactions=3, batches=2, rows_discarded=1)
)
SERVERS = (ServerFacts(server=0, state="IDLE", detail="", hint="", pid=4711, host="here", attempts=1, has_joined=True),)


def state(errors: Any = ()) -> dict[str, Any]:
    coordinator = ApplyCoordinator(
        progress=ApplyProgress(epoch=1, low_watermark=Scn(0), above=()),
        errors=errors,
        encode=codec.encode,
        group_transactions=1,
        group_rows=1,
        on_error=OnError.DISABLE,
    )
    return state_of("ENABLED", coordinator, READER, SERVERS)


@pytest.fixture
def database(destination_database: str) -> Iterator[PostgresDestination]:
    with closing(PostgresDestination(destination_database)) as found:
        found.prepare("top")
        found.raise_epoch("top", "a")
        yield found


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as user:
        return user.execute(query.encode()).fetchall()


def test_views_show_an_apply_processs_own_description(database: PostgresDestination, destination_database: str):
    database.describe_apply("top", "a", EPOCH, configuration_of(config()), state())

    def shown(columns: str, view: str) -> list[tuple[Any, ...]]:
        return rows(destination_database, f"SELECT {columns} FROM headrace.{view}")

    assert shown(
        "topology, apply_name, queue_name, source_database, apply_tag, status, error_message", "dba_apply"
    ) == [
        ("top", "a", "q2", "dbs1", "11", "ENABLED", None),
    ]
    assert dict(shown("parameter, value", "dba_apply_parameters")) == {
        "allow_duplicate_rows": "N",
        "check_foreign_keys": "N",
        "column_mismatch": "WAIT",
        "commit_serialization": "DEPENDENT_TRANSACTIONS",
        "compare_key_only": "N",
        "conflict_history_age_s": "2592000",
        "conflict_history_count": "100000",
        "detached_partitions": "ASK",
        "disable_on_error": "Y",
        "group_rows": "10000",
        "group_transactions": "1000",
        "handler_timeout_s": "30",
        "on_error": "DISABLE",
        "parallelism": "3",
        "synchronous_commit": "off",
    }
    assert shown(
        "rule_set_type, schema_name, object_name, include_tagged_lcr, rule_condition", "dba_streams_rules"
    ) == [
        ("POSITIVE", "hr", "*", "NO", None),
        ("POSITIVE", "hr", "t", "NO", "new.id > 5"),
        ("NEGATIVE", "hr", "x", "YES", None),
    ]
    assert shown(
        "object_owner, object_name, conflict_type, method_name, resolution_column, column_name",
        "dba_apply_conflict_columns",
    ) == [
        ("hr", "t", "update_differs", "maximum", "at", "v"),
        ("hr", "t", "update_differs", "maximum", "at", "at"),
    ]
    names = (
        "object_owner, object_name, operation_name, user_procedure, code_version, error_handler, handler_type,"
        " handler_name, statement_number, statement"
    )
    assert shown(names, "dba_apply_dml_handlers") == [
        ("hr", "t", "INSERT", "own:run", "v1", "N", "PROCEDURE HANDLER", None, None, None),
        (
            "hr",
            "t",
            "UPDATE",
            None,
            None,
            "N",
            "STMT HANDLER",
            "dml_handlers[1]",
            1,
            "DELETE FROM hr.x WHERE id = :new.id",
        ),
        ("hr", "t", "UPDATE", None, None, "N", "STMT HANDLER", "dml_handlers[1]", 2, "lcr.execute true"),
        ("hr", "x", "DELETE", "own:mend", "v1", "Y", "ERROR HANDLER", None, None, None),
        (None, None, None, "own:last", "v2", "N", "PRECOMMIT HANDLER", None, None, None),
    ]
    assert shown("state, total_messages_dequeued", "v_streams_apply_reader") == [("DEQUEUE MESSAGES", 7)]
    assert shown("state, total_applied, lwm_message_number", "v_streams_apply_coordinator") == [("INITIALIZING", 0, 0)]
    assert shown("server_id, state, pid, dep_group_number, dep_server_id", "v_streams_apply_server") == [
        (0, "IDLE", 4711, 0, -1)
    ]
    assert shown("source_database, applied_message_number, oldest_message_number", "dba_apply_progress") == [
        ("dbs1", 0, 0)
    ]
    progress = database.progress("top", "a")
    assert progress is not None
    database.record_low_watermark("top", "a", progress.epoch, Scn(500))
    assert shown("applied_message_number, oldest_message_number", "dba_apply_progress") == [(500, 500)]
    assert "secret" not in str(
        rows(destination_database, "SELECT configuration::text, state::text FROM headrace.apply_state")
    )


class Answering:
    """The apply process as `status --json` calls it."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def call_all(self, names: Any, method: str, *, timeout_s: float) -> dict[str, Any]:
        return dict.fromkeys(names, self.answers[method])


def shown_as_json(value: Any) -> Any:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def test_status_as_json_has_the_rows_of_the_views_under_their_columns(
    database: PostgresDestination, destination_database: str
):
    """The apply process has something in every view. The short list of destination-only columns is the same here and in
    docs/reference/views.md.
    """
    table = TableToInstantiate(
        identity="1",
        source=TableName("hr", "t"),
        destination=TableName("old", "staff"),
        object_numbers=(1,),
        transformations=(
            Transformation(operations=(DeleteColumns(deleted=("ssn",)), RenameTable(owner="old", name="staff"))),
        ),
    )
    keys = TableSettings(key_columns=(KeyColumns(owner="hr", name="t", columns=("a", "b")),))
    described = config(tables=(table,), destination=replace(config().destination, tables=keys))
    nothing = np.empty(0, np.uint64)
    epoch = database.raise_epoch("top", "a").epoch
    session = database.open_session("top", "a", server=0, epoch=epoch, tag=b"")
    session.begin()
    number = session.put_error(error_transaction(apply="a"), b"x", nothing, part=0, readable=["id=1"])
    session.commit([], 0)
    session.close()
    said = state([(number, nothing)])
    database.describe_apply("top", "a", epoch, configuration_of(described), said)
    answers = {
        "configuration": configuration_of(described),
        "first_errors": [asdict(error) for error in database.errors("top", "a")],
        "views": rows_said(said_of(described, epoch, configuration_of(described), said, observed_us=5, applied_us=0)),
    }
    overview = overview_from({"topology": "top", "components": [{"name": "apply:a", "errors": 1}]})
    views = json.loads(json.dumps(with_descriptions(overview, lambda: Answering(**answers))["components"][0]["views"]))  # type: ignore[return-value]  # Answering stands in for a session
    assert {view.name for view in VIEWS} - set(views) == {
        "dba_apply_error_edits",
        "dba_apply_conflict_history",
        "dba_apply_ddl",
        "dba_ddl_not_applied",
        "dba_ddl_jobs",
        "dba_apply_instantiated_objects",
    }
    other = {"observed_time", "apply_time", "servers"}  # of the driver's own view
    with psycopg.connect(destination_database, autocommit=True, row_factory=dict_row) as user:
        for name, found in views.items():
            cursor = user.execute(f"SELECT * FROM headrace.{name}".encode())
            assert cursor.description is not None
            columns = [column.name for column in cursor.description]
            expected = cursor.fetchall()
            assert expected, name
            assert [list(row) for row in found] == [columns] * len(expected), name
            left_out = [column for column in columns if (name, column) in LEFT_OUT]
            assert all(row[column] is None for row in found for column in left_out), name
            rest = [column for column in columns if column not in other and column not in left_out]
            shown = [[shown_as_json(row[column]) for column in rest] for row in expected]
            assert sorted(map(str, shown)) == sorted(str([row[column] for column in rest]) for row in found), name


def test_set_parameters_are_shown_unchanged(database: PostgresDestination, destination_database: str):
    tables = TableSettings(
        allow_duplicate_rows=True,
        column_mismatch="error",
        check_foreign_keys=True,
        foreign_keys_of=(("hr", "t"), ("hr", "x")),
        key_columns=(KeyColumns(owner="hr", name="t", columns=("a", "b")),),
        detached_partitions="follow",
    )
    changed = config(
        commits_in_order=True,
        commits_lazily=False,
        conflicts=ConflictRules(compare_key_only=True, history=HistoryBounds(count=5, age_s=60.0)),
        on_error=OnError.CONTINUE,
        destination=replace(config().destination, tables=tables),
    )
    database.describe_apply("top", "a", EPOCH, configuration_of(changed), state())
    shown = dict(rows(destination_database, "SELECT parameter, value FROM headrace.dba_apply_parameters"))
    assert {
        name: shown[name]
        for name in (
            "allow_duplicate_rows",
            "check_foreign_keys",
            "column_mismatch",
            "commit_serialization",
            "compare_key_only",
            "conflict_history_age_s",
            "conflict_history_count",
            "detached_partitions",
            "disable_on_error",
            "on_error",
            "synchronous_commit",
        )
    } == {
        "allow_duplicate_rows": "Y",
        "check_foreign_keys": "hr.t, hr.x",
        "column_mismatch": "ERROR",
        "commit_serialization": "FULL",
        "compare_key_only": "Y",
        "conflict_history_age_s": "60",
        "conflict_history_count": "5",
        "detached_partitions": "FOLLOW",
        "disable_on_error": "N",
        "on_error": "CONTINUE",
        "synchronous_commit": "on",
    }
    assert rows(
        destination_database, "SELECT object_owner, object_name, column_name FROM headrace.dba_apply_key_columns"
    ) == [("hr", "t", "a"), ("hr", "t", "b")]


def test_view_of_transformations_shows_each_step(database: PostgresDestination, destination_database: str):
    steps = (
        Transformation(
            operations=(DeleteColumns(deleted=("ssn",)),),
            custom=CustomTransformation(
                function=UserFunction(name="masks:mask", version="abc123"),
                columns=("email", "phone"),
            ),
        ),
        Transformation(
            operations=(
                KeepColumns(kept=("id",)),
                RenameColumn(before="id", after="number"),
                AddColumn(name="region", type_name="pg_catalog.text", value="EMEA"),
                AddColumn(name="at", type_name=CURRENT_TIMESTAMP, is_now=True),
                RenameTable(owner="sales", name="staff"),
                RenameSchema(owner="old"),
            )
        ),
    )
    table = TableToInstantiate(
        identity="1",
        source=TableName("hr", "t"),
        destination=TableName("old", "staff"),
        object_numbers=(1,),
        transformations=steps,
    )
    database.describe_apply("top", "a", EPOCH, configuration_of(replace(config(), tables=(table,))), state())
    shown = rows(
        destination_database,
        (
            "SELECT client_number, step_number, transform_type, declarative_type, from_column_name, to_column_name,"
            " column_value, column_type, column_function,"
            " user_function_name, version FROM headrace.dba_streams_transformations WHERE rule_owner = 'hr' AND"
            " rule_name = 't'"
        ),
    )
    declared, custom, added = "DECLARATIVE TRANSFORMATION", "CUSTOM TRANSFORMATION", "ADD COLUMN"
    assert shown == [
        (1, 1, declared, "DELETE COLUMN", "ssn", *[None] * 6),
        (1, 2, custom, None, "email", *[None] * 4, "masks:mask", "abc123"),
        (1, 3, custom, None, "phone", *[None] * 4, "masks:mask", "abc123"),
        (2, 1, declared, "KEEP COLUMNS", "id", "id", *[None] * 5),
        (2, 2, declared, "RENAME COLUMN", "id", "number", *[None] * 5),
        (2, 3, declared, added, None, "region", "EMEA", "pg_catalog.text", None, None, None),
        (2, 4, declared, added, None, "at", None, CURRENT_TIMESTAMP, "CURRENT_TIMESTAMP", None, None),
        (2, 5, declared, "RENAME TABLE", *[None] * 7),
        (2, 6, declared, "RENAME SCHEMA", *[None] * 7),
    ]
    assert rows(
        destination_database,
        (
            "SELECT from_schema_name, from_table_name, to_schema_name, to_table_name, precedence FROM"
            " headrace.dba_streams_transformations WHERE declarative_type LIKE 'RENAME %' AND client_number = 2 AND"
            " to_schema_name IS NOT NULL"
        ),
    ) == [("hr", "t", "sales", "staff", 4), ("sales", None, "old", None, 5)]


def test_process_disabled_by_an_error_is_aborted_and_a_silent_one_unknown(
    database: PostgresDestination, destination_database: str
):
    database.describe_apply("top", "a", EPOCH, configuration_of(config()), state([(5, np.array([2], np.uint64))]))
    query = "SELECT status, error_message FROM headrace.dba_apply"
    assert rows(destination_database, query) == [
        ("ABORTED", "error transaction 5 is in the error queue (on_error: disable)")
    ]
    database.describe_apply("top", "a", EPOCH, configuration_of(config()), state())
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("UPDATE headrace.apply_state SET observed_at = observed_at - interval '10 minutes'")
    assert rows(destination_database, query) == [("UNKNOWN", None)]


def test_overtaken_driver_reports_nothing_more(database: PostgresDestination, destination_database: str):
    database.describe_apply("top", "a", 7, configuration_of(config(queue="new")), state())
    database.describe_apply("top", "a", 6, configuration_of(config(queue="old")), state())
    assert rows(destination_database, "SELECT queue_name, epoch FROM headrace.dba_apply") == [("new", 7)]


def test_views_show_an_error_transaction_with_its_message_and_edits(
    database: PostgresDestination, destination_database: str
):
    session = database.open_session("top", "a", server=0, epoch=database.raise_epoch("top", "a").epoch, tag=b"")
    session.begin()
    nothing = np.empty(0, np.uint64)
    first = session.put_error(error_transaction(apply="a"), b"x", nothing, part=0, readable=["id=1"])
    session.put_error(error_transaction(apply="a", failed_position=-1, depends_on=first), b"y", nothing, part=0)
    session.commit([], 0)
    session.close()
    assert rows(destination_database, "SELECT message_number, depends_on, edits FROM headrace.dba_apply_error") == [
        (2, 0, 0),
        (0, first, 0),
    ]
    assert rows(
        destination_database,
        "SELECT local_transaction_id, transaction_message_number, conflict_type, message FROM"
        " headrace.dba_apply_error_messages",
    ) == [(first, 2, "update_missing", ["id=1"])]


def test_columns_have_comments_and_the_previous_version_is_upgraded(unprepared_database: str):
    with (
        psycopg.connect(unprepared_database, autocommit=True) as admin,
        closing(PostgresDestination(unprepared_database)) as found,
    ):
        for statement in (statement for version in VERSIONS[:BEFORE] for statement in version):
            admin.execute(statement.encode())
        admin.execute(f"UPDATE headrace.schema_version SET version = {BEFORE}".encode())
        admin.execute(
            "INSERT INTO headrace.apply_process (topology, apply, epoch, low_watermark) VALUES ('top', 'a', 3, 77)"
        )
        admin.execute("CREATE VIEW mine AS SELECT topology, applied_message_number FROM headrace.dba_apply_progress")
        found.prepare("top")
        assert schema_version(admin) == VERSION
        assert admin.execute("SELECT * FROM mine").fetchall() == [("top", 77)]
        assert admin.execute(
            "SELECT apply_name, epoch, applied_message_number, source_database FROM headrace.dba_apply_progress"
        ).fetchall() == [
            ("a", 3, 77, None),
        ]
        without = admin.execute(
            "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0"
            " WHERE c.relnamespace = 'headrace'::regnamespace AND c.relname = ANY (%s) AND col_description(c.oid,"
            " a.attnum) IS NULL",
            ([view.name for view in VIEWS],),
        ).fetchall()
        assert without == []
        admin.execute("DROP VIEW mine")
        found.remove("top")
        assert schema_version(admin) == 0
