"""A schema headrace with dropped tables: the error names the site and the remedy, and `down --purge` removes the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from headrace.base.errors import INSTANTIATE_AGAIN, DatabaseError
from headrace.databases.postgres.destination.database import PostgresDestination

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def destination(destination_database: str) -> Iterator[PostgresDestination]:
    with closing(PostgresDestination(destination_database, site="dst")) as made:
        made.prepare("topo")
        made.raise_epoch("topo", "apply_from_src")
        yield made


@pytest.mark.parametrize("table", ["instantiation", "schema_version", "apply_process", "apply_error_part"])
def test_dropped_table_is_named_with_the_site_and_the_remedy_works(
    destination: PostgresDestination, destination_database: str, table: str
) -> None:
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute(f"DROP TABLE headrace.{table} CASCADE")
        with pytest.raises(DatabaseError, match=f"site dst: .*headrace.{table} is not there") as failed:
            destination.prepare("topo")
        assert failed.value.hint == INSTANTIATE_AGAIN, "the hint begins with `headrace down --purge`"
        # Origins belong to the server: those left behind by other databases are also dropped.
        assert "DROP SCHEMA headrace" in destination.remove("topo")
        destination.prepare("topo")
        assert destination.raise_epoch("topo", "apply_from_src").epoch > 0


def test_driver_that_misses_a_table_names_the_site_and_the_remedy(
    destination: PostgresDestination, destination_database: str
) -> None:
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("DROP TABLE headrace.instantiation CASCADE")
    with pytest.raises(DatabaseError, match=r"site dst: fencing out .*headrace.instantiation.*damaged") as failed:
        destination.raise_epoch("topo", "apply_from_src")
    assert failed.value.hint == INSTANTIATE_AGAIN


def test_users_objects_on_a_remaining_schema_are_named(
    destination: PostgresDestination, destination_database: str
) -> None:
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("CREATE VIEW public.my_errors AS SELECT number FROM headrace.apply_error")
        assert "my_errors" in next(line for line in destination.remove("topo") if "stays" in line)
