"""Errors of handlers' statements: errors of the statement, and errors of the environment."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.pq import DiagnosticField

from headrace.base.errors import DatabaseUnavailable, DataError
from headrace.databases.postgres.connection import translate
from headrace.databases.postgres.destination.server_session.handler_sql import refused_sql


@pytest.mark.parametrize(
    ("severity", "kind"), [("ERROR", DataError), ("FATAL", DatabaseUnavailable), ("PANIC", DatabaseUnavailable)]
)
@pytest.mark.parametrize("translated_as", ["FATAL", "FEHLER", None])
def test_ambiguous_error_class_is_decided_by_whether_the_session_ended(severity, kind, translated_as):
    """A server uses 08P01 for too few values, and a pooler for a lost connection to its server: PgBouncer uses it in a
    single field, which a server translates.
    """
    fields = (
        {DiagnosticField.SEVERITY: severity}
        if translated_as is None
        else {
            DiagnosticField.SEVERITY: translated_as,
            DiagnosticField.SEVERITY_NONLOCALIZED: severity,
        }
    )
    found = psycopg.errors.ProtocolViolation(
        "x", info={**{field: text.encode() for field, text in fields.items()}, DiagnosticField.SQLSTATE: b"08P01"}
    )
    assert type(refused_sql(_translated(found))) is kind


def test_lost_dblink_session_behind_a_pooler_is_an_environment_error():
    fields = {
        DiagnosticField.SEVERITY_NONLOCALIZED: b"ERROR",
        DiagnosticField.SQLSTATE: b"08P01",
        DiagnosticField.CONTEXT: b'while executing query on dblink connection named "far"',
    }
    assert (
        type(refused_sql(_translated(psycopg.errors.ProtocolViolation("server conn crashed?", info=fields))))
        is DatabaseUnavailable
    )


def _translated(error: psycopg.Error):
    try:
        raise translate(error, "SQL of a handler") from error
    except (DatabaseUnavailable, DataError) as translated:
        return translated
