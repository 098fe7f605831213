"""A value that a function reads from a row and writes back is the same to PostgreSQL, for every type and both forms, or
it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.pq import ExecStatus
from psycopg.types.range import Range

from headrace.databases.connectors import value_types
from headrace.databases.ports import HandlerSql
from headrace.databases.postgres.connection import connect
from headrace.databases.postgres.copying.table_copy import PostgresTableReader
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.values.python_values import decoded, decoded_of_copy, encoded
from headrace.lcr.batch import Column
from headrace.lcr.lcr_value import LcrError
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.custom import CustomTransformation
from headrace.rules.transformations.transformation import Transformation
from headrace.rules.user_code.source import UserFunction
from spark_apply.copy.pieces.reshaped import ReshapedPiece, ReshapedTable
from tests.support.apply.handlers import code_of
from tests.support.session.bounds import STALL_S
from tests.support.session.matrices import cases
from tests.support.values.type_literals import LITERALS, NO_BINARY, NO_INPUT, without_exceptions

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

MORE = {
    "interval": [
        "25:00:00",
        "1 day -01:00:00",
        "-1 days +02:03:04.5",
        "-00:00:00.000001",
        "3 days",
        "00:00:00",
        "1 year",
    ],
    "json": [
        '{"a": 1.10}',
        '{"a":1,"a":2}',
        "12345678901234567890.123",
        "1e400",
        "0.1234567890123456789",
        "1E2",
        '[{"a": [0.10, null, "\\u0000"]}]',
    ],
    "jsonb": [
        "12345678901234567890.123",
        "0.1234567890123456789",
        "1e400",
        "1e-400",
        '{"a": {"b": [1.0, 1e22, true]}}',
    ],
    "_int4": ["{1,NULL}", "{}", "[0:1]={1,2}", "[-1:0][2:3]={{1,2},{3,4}}", "{{1,2},{3,4}}"],
    "_text": ['{a,"b c",NULL,"NULL",""}', "[2:2]={x}"],
    "_interval": ["{1 mon}", "{25:00:00,1 day}"],
    "_numeric": ["{1.50,NaN,0.00}"],
    "_float4": ["{0.1,NaN,-0}"],
    "_jsonb": [
        '{"{\\"a\\": 0.1234567890123456789}"}',
        "{1.12345678901234567890,NULL,-1}",
        '{"[1, 2]","[3, 4]"}',
        '{"null"}',
        '{"\\"x\\"","\\"null\\"","\\"\\""}',
        "{{1,2},{3,4}}",
    ],
    "_json": ["{1.10}", '{"[1, 2]","[3, 4]"}', '{"null",NULL}', '{"\\"x\\""}'],
    "_bytea": ['{"\\\\x00ff5c","\\\\x616263",NULL,"\\\\x"}'],
    "_timestamptz": ['{"2026-01-31 08:30:00+05:30"}', "{infinity}"],
    "numeric": ["1.50", "100", "1e10", "0.0000001", "10000", "100000000.0000", "0.00010"],
    "float8": ["1e22", "123456789.123456789"],
    "time": ["24:00:00", "23:59:59.999999"],
    "timetz": ["08:30:00.5+05:30", "24:00:00+00"],
    "timestamptz": ["1880-01-01 00:00+00", "infinity"],
    "timestamp": ["9999-12-31 23:59:59.999999", "0044-03-15 BC"],
    "inet": ["1.2.3.4/32", "1.2.3.0/24"],
}
# As Python writes it back: another text, the same JSON.
SAME_BUT_FOR_BLANKS = ("json",)


@pytest.fixture(scope="module")
def server(pg_source: Any) -> Iterator[psycopg.Connection[Any]]:
    pg_source.start()
    connection = connect(pg_source.dsn(), application_name="test values")
    yield connection
    connection.close()


@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "text"])
def test_value_that_a_function_writes_back_is_unchanged(server: psycopg.Connection[Any], is_binary: bool) -> None:
    numbers = dict(
        server.execute(
            "SELECT typname::text, oid::int8 FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace"
        ).fetchall()
    )
    others, kept = [], 0
    for name in sorted({*LITERALS, *MORE} - {*NO_INPUT, *(NO_BINARY if is_binary else ())}):
        found = LITERALS.get(name, [])
        for literal in [*(without_exceptions(name, found) if is_binary else found), *MORE.get(name, [])]:

            def asked(value: bytes, form: int, answer: int, name: str = name) -> bytes:
                result = server.pgconn.exec_params(
                    f'SELECT $1::pg_catalog."{name}"'.encode(), [value], [0], [form], answer
                )
                assert result.status == ExecStatus.TUPLES_OK, (name, value, result.error_message)
                return result.get_value(0, 0) or b""

            column = Column(name="c", type_name=f"pg_catalog.{name}", type_number=numbers[name], is_binary=is_binary)
            try:
                written = encoded(column, decoded(column, asked(literal.encode(), 0, int(is_binary))))
            except LcrError:
                continue
            texts = asked(literal.encode(), 0, 0), asked(written, int(is_binary), 0)
            if name in SAME_BUT_FOR_BLANKS:
                texts = (texts[0].replace(b" ", b""), texts[1].replace(b" ", b""))
            kept += 1
            others += [(name, *texts)] if texts[0] != texts[1] else []
    assert not others
    assert kept > 60


NO_ZONE = datetime.fromisoformat("2026-01-31T08:30:00")


@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "text"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timestamptz", NO_ZONE),
        ("timetz", time(8, 30)),
        ("_timestamptz", [NO_ZONE]),
        ("tstzrange", Range(NO_ZONE, None)),
        ("_jsonb", {"a": 1}),
        ("_bytea", ["a"]),
    ],
)
def test_object_that_lacks_a_part_of_the_value_is_refused(name: str, value: object, is_binary: bool) -> None:
    """A time without a zone would be read in the session's zone."""
    column = Column(name="c", type_name=f"pg_catalog.{name}", type_number=0, is_binary=is_binary)
    with pytest.raises(LcrError):
        encoded(column, value)


def test_function_sees_the_same_object_of_a_copied_row_as_of_a_change(server: psycopg.Connection[Any]) -> None:
    """Otherwise it would mask copied rows differently from changes."""
    server.execute("CREATE TYPE pg_temp.mood AS ENUM ('sad', 'happy'); CREATE DOMAIN pg_temp.price AS numeric(9, 2)")
    numbers = dict(
        server.execute(
            "SELECT typname::text, oid::int8 FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace"
        ).fetchall()
    )
    own = {"mood": ("public.mood", 70000, ["sad"]), "price": ("pg_catalog.numeric", 70001, ["1.50", "NaN"])}
    types = own | {
        name: (f"pg_catalog.{name}", numbers[name], [*LITERALS.get(name, []), *MORE.get(name, [])])
        for name in {*LITERALS, *MORE} - {*NO_INPUT, *NO_BINARY}
    }
    seen = 0
    for name, (type_name, number, literals) in sorted(types.items()):
        for literal in literals if name in own else without_exceptions(name, literals):
            spelled = f"pg_temp.{name}" if name in own else f'pg_catalog."{name}"'
            forms = []
            for form in (0, 1):
                result = server.pgconn.exec_params(
                    f"SELECT $1::{spelled}".encode(), [literal.encode()], result_format=form
                )
                assert result.status == ExecStatus.TUPLES_OK, result.error_message
                forms.append(result.get_value(0, 0) or b"")
            column = Column(name="c", type_name=type_name, type_number=number, is_binary=True)
            try:
                copied, changed = (
                    decoded_of_copy(replace(column, is_binary=False), forms[0], {"public.mood"}),
                    decoded(column, forms[1]),
                )
            except LcrError:
                continue  # a value of one form alone, such as a "char" byte that is no letter, stops the function
            assert repr(copied) == repr(changed), name
            seen += 1
    assert seen > 80


def test_copied_rows_show_functions_only_texts_of_user_defined_types(source_database: str) -> None:
    """For the others the log has different bytes, and a function would mask them differently."""
    with psycopg.connect(source_database, autocommit=True) as connection:
        connection.execute(
            "CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TYPE pair AS (a int, b text); CREATE DOMAIN price AS"
            " numeric; CREATE TYPE float_range AS RANGE (subtype = float8);CREATE TABLE t (m mood, p pair, r"
            " float_range, d price, t text);INSERT INTO t VALUES ('sad', '(1,x)', '[1,2)', 1.50, 'x')"
        )
    source, reader = (
        PostgresSource(source_database, site="a"),
        PostgresTableReader(source_database, application_name="test values"),
    )
    with closing(source), closing(reader):
        (version,) = source.table_versions(source.tables((RuleSet(include=(Rule(owner="public", name="t"),)),)))
        assert all(column.is_binary for column in version.columns)
        (piece,) = reader.plan("public", "t", {column.name: column.type_name for column in version.columns}).pieces
        with reader.open_piece(piece) as opened:
            texts = opened.texts_of_log({column.type_name for column in version.columns})
            ((row,),) = opened.values([column.name for column in version.columns])
    found: dict[str, object] = {}
    for column, value in zip(version.columns, row, strict=True):
        with suppress(LcrError):
            found[column.name] = decoded_of_copy(replace(column, is_binary=False), value or b"", texts)
    assert found == {"m": b"sad", "d": Decimal("1.50"), "t": "x"}


@pytest.mark.parametrize(
    "literal", ["25:00:00", "1 day -01:00:00", "-00:00:00.000001", "3 days", "-1 days +02:03:04.5"]
)
@pytest.mark.parametrize("is_binary", cases({"binary": True, "text": False}, {"binary"}))
def test_sql_of_a_handler_gets_the_interval_that_was_read(
    destination_database: str, literal: str, is_binary: bool
) -> None:
    with (
        closing(PostgresDestination(destination_database, site="b")) as destination,
        psycopg.connect(destination_database) as user,
    ):
        raw = user.pgconn.exec_params(
            b"SELECT $1::interval", [literal.encode()], result_format=int(is_binary)
        ).get_value(0, 0)
        value: Any = decoded(
            Column(name="c", type_name="pg_catalog.interval", type_number=1186, is_binary=is_binary), raw or b""
        )
        destination.prepare("top")
        with closing(
            destination.open_session("top", "a", server=0, epoch=destination.raise_epoch("top", "a").epoch, tag=b"")
        ) as session:
            session.begin()
            (found,) = session.run_sql(
                [
                    HandlerSql(
                        sql="SELECT $1::interval::text, ($2::interval[])[2]::text",
                        values=(value, [timedelta(1), value]),
                    )
                ],
                timeout_s=STALL_S,
            )
            session.rollback()
    assert found.rows == ((literal, literal),)


MASK = """
def mask(lcr):
    lcr.set_value("new", "b", lcr.get_value("new", "b").decoded[::-1])
    return lcr
"""


def test_function_writes_bytes_into_copied_rows_as_into_changes(source_database: str) -> None:
    """Copied rows are text, in which bytes are hexadecimal digits."""
    values = [b"abc", b"\x00\xff", b"101\\"]
    with psycopg.connect(source_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (b bytea)")
        connection.cursor().executemany("INSERT INTO t VALUES (%s)", [(value,) for value in values])
    code = code_of(MASK)
    custom = CustomTransformation(
        function=UserFunction(name="own:mask", version=code.version_of("own:mask")), code=code
    )
    source, reader = (
        PostgresSource(source_database, site="a"),
        PostgresTableReader(source_database, application_name="test values"),
    )
    with closing(source), closing(reader):
        (version,) = source.table_versions(source.tables((RuleSet(include=(Rule(owner="public", name="t"),)),)))
        table = ReshapedTable(
            source="a",
            owner="public",
            name="t",
            columns=version.columns,
            transformations=(Transformation(operations=(), custom=custom),),
        )
        (piece,) = reader.plan("public", "t", {"b": "pg_catalog.bytea"}).pieces
        with reader.open_piece(piece) as opened:
            packed = b"".join(ReshapedPiece(opened, table, value_types()).rows(["b"]))
            digest = ReshapedPiece(opened, table, value_types()).digest(["b"])
    with psycopg.connect(source_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE masked (b bytea)")
        with connection.cursor().copy("COPY masked FROM STDIN") as copy:
            copy.write(packed)
        assert [value for (value,) in connection.execute("SELECT b FROM masked").fetchall()] == [
            value[::-1] for value in values
        ]
    assert digest.row_count == len(values)
