"""New tables at a destination: their rows run nothing of roles that cannot act as the applying role anyway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from headrace.base.errors import DataError
from headrace.databases.ports import DDL_REFUSED, DdlOutcomeKind
from headrace.lcr.ddl import DdlChange
from tests.support.databases.created_pair import CreatedPair

pytestmark = [pytest.mark.postgres]

JOBS = "CREATE TABLE hr.jobs (id int PRIMARY KEY, title text)"
MALLORY = "headrace_test_mallory"


def refused(pair: CreatedPair, change: DdlChange) -> DataError:
    """Return the refusal of a change; it left no record."""
    with pytest.raises(DataError) as caught:
        pair.apply(change)
    assert DDL_REFUSED in caught.value.context
    assert pair.records() == {}
    return caught.value


@pytest.fixture
def mallory(created: CreatedPair) -> Iterator[psycopg.Connection[Any]]:
    """The destination as a role that may create tables in hr, and has a function of its own; the source has mal, too."""
    created.admin.execute(
        f"DROP ROLE IF EXISTS {MALLORY}; CREATE ROLE {MALLORY} LOGIN; CREATE SCHEMA mal AUTHORIZATION {MALLORY};"
        f" GRANT USAGE, CREATE ON SCHEMA hr TO {MALLORY}"
    )
    created.user.execute("CREATE SCHEMA mal")
    with psycopg.connect(created.admin.info.dsn, password=created.admin.info.password, autocommit=True) as other:
        other.execute(f"SET SESSION AUTHORIZATION {MALLORY}")
        other.execute("CREATE FUNCTION mal.f(text) RETURNS boolean LANGUAGE sql AS 'SELECT true'")
        yield other
    created.admin.execute(f"DROP OWNED BY {MALLORY} CASCADE; DROP ROLE {MALLORY}")


def test_table_that_another_role_made_in_advance_is_refused(
    created: CreatedPair, mallory: psycopg.Connection[Any]
) -> None:
    """Its owner could attach functions, which would run as the role that applies."""
    mallory.execute(JOBS.encode())
    change = created.created("jobs", JOBS)
    error = refused(created, change)
    assert f"belongs to {MALLORY}, and not to" in error.message
    created.admin.execute(error.hint[error.hint.index("ALTER TABLE") :].partition(";")[0].encode())
    assert created.apply(change)[0].kind is DdlOutcomeKind.PASSED_OVER


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t BEFORE INSERT ON hr.jobs FOR EACH ROW EXECUTE FUNCTION mal.t(); ALTER TABLE hr.jobs ENABLE ALWAYS TRIGGER t",
        "ALTER TABLE hr.jobs ADD CHECK (mal.f(title))",
    ],
)
def test_taken_over_table_that_runs_functions_of_others_is_refused(
    created: CreatedPair, mallory: psycopg.Connection[Any], statement: str
) -> None:
    mallory.execute("CREATE FUNCTION mal.t() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
    created.admin.execute(f"{JOBS}; {statement}".encode())
    assert f"of {MALLORY}" in refused(created, created.created("jobs", JOBS)).message


def test_type_that_runs_functions_of_others_is_refused(created: CreatedPair, mallory: psycopg.Connection[Any]) -> None:
    created.user.execute("CREATE DOMAIN mal.d AS text")
    mallory.execute("CREATE DOMAIN mal.d AS text CHECK (mal.f(VALUE))")
    change = created.created("jobs", "CREATE TABLE hr.jobs (id int PRIMARY KEY, title mal.d)")
    error = refused(created, change)
    assert f"mal.f(text) of {MALLORY}" in error.message
    assert not created.exists("jobs")
    created.admin.execute(error.hint[error.hint.index("ALTER FUNCTION") :].partition(";")[0].encode())
    assert created.apply(change)[0].kind is DdlOutcomeKind.APPLIED


def test_added_column_that_runs_functions_of_others_is_refused(
    created: CreatedPair, mallory: psycopg.Connection[Any]
) -> None:
    """Unless the table's rows ran them before: then an operator has decided."""
    created.user.execute("CREATE DOMAIN mal.d AS text")
    mallory.execute("CREATE DOMAIN mal.d AS text CHECK (mal.f(VALUE)); GRANT USAGE ON SCHEMA mal TO PUBLIC")
    created.apply(created.created("jobs", JOBS))
    change = created.altered("jobs", "ALTER TABLE hr.jobs ADD COLUMN more mal.d")
    with pytest.raises(DataError) as caught:
        created.apply(change)
    assert DDL_REFUSED in caught.value.context
    assert f"mal.f(text) of {MALLORY}" in caught.value.message
    created.admin.execute("ALTER TABLE hr.jobs ADD CHECK (mal.f(title))")
    assert created.apply(change)[0].kind is DdlOutcomeKind.APPLIED
