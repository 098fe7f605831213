"""A schema headrace of which somebody dropped tables: the site and the way out are named, and `down --purge` removes
what is left.
"""

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
def test_a_dropped_table_is_named_with_the_site_and_what_is_printed_helps(
    destination: PostgresDestination, destination_database: str, table: str
) -> None:
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute(f"DROP TABLE headrace.{table} CASCADE")
        with pytest.raises(DatabaseError, match=f"site dst: .*headrace.{table} is not there") as failed:
            destination.prepare("topo")
        assert failed.value.hint == INSTANTIATE_AGAIN, "which begins with `headrace down --purge`"
        # Origins are the server's: what other databases of it left behind is dropped, too.
        assert "DROP SCHEMA headrace" in destination.remove("topo")
        destination.prepare("topo")
        assert destination.raise_epoch("topo", "apply_from_src").epoch > 0


def test_a_driver_that_finds_a_table_dropped_names_the_site_and_the_way_out(
    destination: PostgresDestination, destination_database: str
) -> None:
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("DROP TABLE headrace.instantiation CASCADE")
    with pytest.raises(DatabaseError, match=r"site dst: fencing out .*headrace.instantiation.*damaged") as failed:
        destination.raise_epoch("topo", "apply_from_src")
    assert failed.value.hint == INSTANTIATE_AGAIN


def test_what_users_built_on_the_schema_is_named_when_it_stays(
    destination: PostgresDestination, destination_database: str
) -> None:
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("CREATE VIEW public.my_errors AS SELECT number FROM headrace.apply_error")
        assert "my_errors" in next(line for line in destination.remove("topo") if "stays" in line)
