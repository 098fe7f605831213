"""Connections: identifiers, dsns and the classes of PostgreSQL's errors."""

from __future__ import annotations

import pickle
import re
import traceback
from pathlib import Path

import psycopg
import psycopg.errors
import pytest

from headrace.base.errors import INSTANTIATE_AGAIN, ConfigError, DatabaseError, DatabaseUnavailable, DataError, Retry
from headrace.databases.postgres import connection
from headrace.databases.postgres.connection import (
    connect,
    connection_string,
    error_from_sqlstate,
    qualified,
    quote,
    translate,
    translated,
)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://user:{}@ss@host/db",  # libpq would take "ss@host" for the host, and name it
        "postgresql://user:{}/ss@host/db",  # libpq would take "user" for the host and the password for the port
        "postgresql://user:{}%zz@host/db",
        "host=here password={} and more",
        "password='{}",
        "postgresql://user@host:{}/db",
        # libpq would take its beginning for the host and the rest for the database
        "postgresql://user:my@{}/x@127.0.0.1:7801/db",
        "postgresql://user:my@{}?x=1@127.0.0.1:7801/db",
        "postgresql://user:my?{}@127.0.0.1:1/db",
    ],
)
def test_unusable_dsn_is_refused_without_showing_any_part_of_it(dsn: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connect(dsn.format("planted"), application_name="test")
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value.described())
    assert "planted" not in told.replace('dsn.format("planted")', "")


@pytest.mark.parametrize(
    "dsn",
    [
        "host=one,two port=5432,5433",
        "host=@abstract",
        "postgresql://u:p%40ss@[::1]:5432/db",
        "host=/run/postgresql",
        "dbname=x",
        "postgresql://u@h/d?application_name=a%40b",
    ],
)
def test_dsn_with_hosts_ports_and_sockets_of_every_kind_is_accepted(dsn: str) -> None:
    assert "application_name=test" in connection_string(dsn, application_name="test")


@pytest.mark.parametrize(
    "sqlstate",
    [
        "08006",
        "40001",
        "40003",
        "40P01",
        "53100",
        "53300",
        "55000",
        "55P03",
        "55006",
        "57P01",
        "57014",
        "58P01",
        "25006",
    ],
)
def test_errors_of_the_environment_are_retried(sqlstate: str) -> None:
    error = error_from_sqlstate(sqlstate, "writing: no")
    assert type(error) is DatabaseUnavailable
    assert error.retry is Retry.TIMED
    assert error.context["sqlstate"] == sqlstate


@pytest.mark.parametrize(
    "message",
    [
        "could not find tuple for parent of relation 16486",
        "cache lookup failed for type 16390",
        "could not open relation with OID 16390",
        "tuple concurrently updated",
    ],
)
def test_internal_error_of_a_statement_during_ddl_is_retried(message: str) -> None:
    assert type(error_from_sqlstate("XX000", f"reading the catalog: {message}")) is DatabaseUnavailable


@pytest.mark.parametrize("sqlstate", ["21000", "22P02", "22003", "23505", "23503", "23P01", "44000"])
def test_errors_of_the_data_are_candidates_for_the_error_queue(sqlstate: str) -> None:
    error = error_from_sqlstate(sqlstate, "writing: no")
    assert type(error) is DataError
    assert error.context["sqlstate"] == sqlstate


@pytest.mark.parametrize(
    "sqlstate", ["42P01", "42501", "0A000", "25P02", "40000", "40002", "55P02", "55P04", "XX000", "28P01"]
)
def test_other_errors_wait_for_an_operator(sqlstate: str) -> None:
    error = error_from_sqlstate(sqlstate, "writing: no")
    assert type(error) is DatabaseError
    assert error.retry is Retry.MANUAL


def test_translated_error_keeps_the_cause_and_survives_pickling() -> None:
    cause = psycopg.errors.UniqueViolation("duplicate key")
    with pytest.raises(DataError, match="inserting: UniqueViolation") as caught, translated("inserting", apply="a1"):
        raise cause
    assert caught.value.__cause__ is cause
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.args, copy.context) == (
        DataError,
        caught.value.args,
        {"apply": "a1", "sqlstate": "23505", "violates": "unique"},
    )


def test_text_of_class_22_is_omitted_because_it_quotes_values() -> None:
    error = psycopg.errors.InvalidTextRepresentation('invalid input syntax for type integer: "secret"')
    assert "secret" not in str(translate(error, "inserting"))


class _Said:
    """A server's description of an error."""

    def __init__(self, message: str) -> None:
        self.message_primary = message

    def __getattr__(self, name: str) -> None:
        return None


@pytest.mark.parametrize(
    ("state", "said", "text"),
    [
        ("22P02", 'invalid input syntax for type integer: "se"cret"', 'invalid input syntax for type integer: "..."'),
        (
            "22P02",
            "ungültige Eingabesyntax für Typ integer: »secret«",
            'ungültige Eingabesyntax für Typ integer: "..."',
        ),
        ("22001", "value too long for type character varying(3)", "value too long for type character varying(3)"),
        ("22003", 'value "secret" is out of range for type smallint', 'value "..." is out of range for type smallint'),
        (
            "22P05",
            'character with byte sequence 0xc5 0x81 in encoding "UTF8" has no equivalent in encoding "LATIN1"',
            'character with byte sequence 0x... in encoding "UTF8" has no equivalent in encoding "LATIN1"',
        ),
        (
            "22021",
            'invalid byte sequence for encoding "UTF8": 0xff',
            'invalid byte sequence for encoding "UTF8": 0x...: a text is not UTF-8, and a database with the encoding'
            " SQL_ASCII keeps none out: correct it, and what writes it",
        ),
        (
            "22021",
            'invalid byte sequence for encoding "UTF8": 0x00',
            'invalid byte sequence for encoding "UTF8": 0x...',
        ),
        (
            "23505",
            'duplicate key value violates unique constraint "t_pkey"',
            'duplicate key value violates unique constraint "t_pkey"',
        ),
    ],
)
def test_errors_have_the_servers_own_words_without_values(
    monkeypatch: pytest.MonkeyPatch, state: str, said: str, text: str
) -> None:
    error = psycopg.errors.lookup(state)()
    monkeypatch.setattr(psycopg.Error, "diag", property(lambda _: _Said(said)))
    found = translate(error, "inserting")
    assert str(found) == f"inserting: {text}"
    assert found.detail == (said if said != text else ""), "the text that `errors show` prints"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), DatabaseUnavailable),
        (psycopg.InterfaceError("the connection is closed"), DatabaseUnavailable),
        (psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"), DataError),
        (psycopg.ProgrammingError("the query has 1 placeholder but 2 parameters were passed"), DatabaseError),
    ],
)
def test_errors_without_sqlstate_are_classified_by_kind(error: psycopg.Error, kind: type[DatabaseError]) -> None:
    found = translate(error, "x")
    assert type(found) is kind
    assert ("takes connections as the dsn says" in found.hint) == (kind is DatabaseUnavailable)


def test_identifiers_are_quoted() -> None:
    assert quote('we"ird') == '"we""ird"'
    assert qualified("S", "t.x") == '"S"."t.x"'


def test_dsn_keeps_its_own_parameters_and_wins_over_defaults() -> None:
    text = connection_string("host=h connect_timeout=3 application_name=mine", application_name="headrace", dbname="d")
    assert "connect_timeout=3" in text
    assert "application_name=headrace" in text
    assert "dbname=d" in text


def test_wrong_dsn_is_refused_without_showing_its_password() -> None:
    with pytest.raises(ConfigError) as caught:
        connection_string("password=hunter2 nonsense", application_name="x")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("sqlstate", "message", "is_ours"),
    [
        ("42P01", 'relation "headrace.apply_progress" does not exist', True),
        ("42P01", "Relation »headrace.row_mark« existiert nicht", True),
        ("3F000", 'schema "headrace" does not exist', True),
        ("42P01", 'relation "headrace.mine" does not exist', False),
        ("42P01", 'relation "headrace" does not exist', False),
        ("42883", "function headrace.set_tag(integer) does not exist", False),
        ("42704", 'role "headrace" does not exist', False),
    ],
)
def test_only_a_missing_table_of_ours_is_a_reason_to_copy_everything(sqlstate, message, is_ours):
    """A wrong call in a user's trigger or handler is the user's error: the fix here empties tables."""
    error = error_from_sqlstate(sqlstate, f"writing: {message}", hint="the general one")
    assert (error.hint == INSTANTIATE_AGAIN, error.hint == "the general one") == (is_ours, not is_ours)


def test_every_table_of_schema_headrace_is_one_of_ours():
    folder = Path(connection.__file__).parent
    made = {
        name
        for file in folder.rglob("*.py")
        for name in re.findall(r"CREATE (?:UNLOGGED )?TABLE (headrace\.\w+)", file.read_text(encoding="utf-8"))
    }
    assert len(made) > 10
    for name in made:
        error = error_from_sqlstate("42P01", f'relation "{name}" does not exist')
        assert error.hint == INSTANTIATE_AGAIN, name


def test_closed_database_is_reported_with_the_statement_that_opens_it() -> None:
    refused = psycopg.OperationalError(
        'connection failed: FATAL:  database "it"s mine" is not currently accepting connections'
    )
    found = translate(refused, "connecting")
    assert isinstance(found, DatabaseUnavailable)
    assert found.hint.startswith('ALTER DATABASE "it""s mine" ALLOW_CONNECTIONS true; -- ')
    other = translate(psycopg.OperationalError("connection failed: Connection refused"), "connecting")
    assert other.hint.startswith("see that the server runs")
