"""What a destination lacks for replicated DDL: each finding comes with the statement that ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import conninfo

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import Finding
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.table_name import TableName
from tests.support.session.server_versions import DESTINATIONS

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

ROLE, OWNER = "headrace_test_ddl", "headrace_test_ddl_owner"
TABLES = [TableName("Shop", "orders"), TableName("Shop", "items"), TableName("Shop", "missing")]


@pytest.fixture(params=DESTINATIONS)
def dsn(request: pytest.FixtureRequest, fresh_database: Callable[[EmbeddedServer], str]) -> str:
    """Create an empty database; return its DSN as a superuser."""
    return fresh_database(request.getfixturevalue(request.param))


@pytest.fixture
def admin(dsn: str) -> Iterator[psycopg.Connection]:
    """A superuser's session in a database with two tables of a role without rights on their schema."""
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        for role in (ROLE, OWNER):
            connection.execute(f"DROP ROLE IF EXISTS {role}")
        connection.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'secret'")
        connection.execute(f"CREATE ROLE {OWNER}")
        connection.execute(f'CREATE SCHEMA "Shop"; GRANT USAGE ON SCHEMA "Shop" TO {ROLE}')
        for table in TABLES[:2]:
            connection.execute(
                f'CREATE TABLE "Shop".{table.name} (id int); ALTER TABLE "Shop".{table.name} OWNER TO {OWNER}'
            )
        yield connection
        connection.execute('DROP SCHEMA "Shop" CASCADE')
        for role in (ROLE, OWNER):
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.fixture
def destination(admin: psycopg.Connection, dsn: str) -> Iterator[PostgresDestination]:
    made = PostgresDestination(conninfo.make_conninfo(dsn, user=ROLE, password="secret"), site="b")
    yield made
    made.close()


def ours(admin: psycopg.Connection) -> int:
    return admin.info.server_version // 10000


def problems(destination: PostgresDestination, release: int) -> tuple[Finding, ...]:
    return destination.preflight_ddl(TABLES, release=release)


def test_printed_grants_let_the_role_change_the_tables_as_their_owner(
    admin: psycopg.Connection, destination: PostgresDestination, dsn: str
) -> None:
    found = problems(destination, ours(admin))
    assert [finding.path for finding in found] == ["sites.b table Shop.items"] * 2, "once for all tables of an owner"
    assert all(finding.is_error for finding in found)
    for finding in found:
        admin.execute(finding.fix.encode())
    assert problems(destination, ours(admin)) == ()
    with closing(
        psycopg.connect(conninfo.make_conninfo(dsn, user=ROLE, password="secret"), autocommit=True)
    ) as session:
        session.execute(f"SET ROLE {OWNER}")
        session.execute('ALTER TABLE "Shop".orders ADD COLUMN v int; CREATE INDEX ON "Shop".orders (v)')


def test_member_that_may_not_take_the_role_gets_the_option(
    admin: psycopg.Connection, destination: PostgresDestination
) -> None:
    if admin.info.server_version < 160000:
        pytest.skip("every member may take the role")
    admin.execute(f'GRANT {OWNER} TO {ROLE} WITH SET FALSE; GRANT USAGE, CREATE ON SCHEMA "Shop" TO {OWNER}')
    (found,) = problems(destination, ours(admin))
    assert found.fix == f'GRANT "{OWNER}" TO "{ROLE}" WITH SET TRUE;'
    admin.execute(found.fix.encode())
    assert problems(destination, ours(admin)) == ()


def test_table_of_a_superuser_changes_its_owner_and_gives_no_role(
    admin: psycopg.Connection, destination: PostgresDestination
) -> None:
    """Who may act as a superuser is one."""
    admin.execute(f'GRANT CREATE ON SCHEMA "Shop" TO {ROLE}')
    for table in TABLES[:2]:
        admin.execute(f'ALTER TABLE "Shop".{table.name} OWNER TO CURRENT_USER'.encode())
    found = problems(destination, ours(admin))
    assert [finding.fix for finding in found] == [
        f'ALTER TABLE "Shop"."{name}" OWNER TO "{ROLE}";' for name in ("items", "orders")
    ]
    for finding in found:
        assert f'"{admin.info.user}"' in finding.problem
        admin.execute(finding.fix.encode())
    assert problems(destination, ours(admin)) == ()


def test_source_of_another_release_is_refused(admin: psycopg.Connection, dsn: str) -> None:
    admin.execute(f'GRANT USAGE, CREATE ON SCHEMA "Shop" TO {OWNER}')
    with closing(PostgresDestination(dsn, site="b")) as superuser:
        assert superuser.preflight_ddl(TABLES, release=0) == ()
        (found,) = superuser.preflight_ddl(TABLES, release=14)
        assert superuser.preflight_ddl([], release=14) == ()
    assert (found.path, found.is_error) == ("sites.b", True)
    assert found.problem.startswith(
        f"is PostgreSQL {ours(admin)}, and the source whose DDL is applied here is PostgreSQL 14"
    )


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        ("CREATE TABLE {} (id int) PARTITION BY RANGE (id)", "is partitioned, or a partition,"),
        ('CREATE TABLE {} () INHERITS ("Shop".orders)', "inherits, or others inherit from it,"),
    ],
    ids=["partitioned", "inheriting"],
)
def test_tables_of_another_kind_are_refused_by_name(admin: psycopg.Connection, dsn: str, make: str, kind: str) -> None:
    admin.execute(make.format('"Shop".other').encode())
    with closing(PostgresDestination(dsn, site="b")) as superuser:
        (found,) = superuser.preflight_ddl([TableName("Shop", "other")], release=0)
    assert found.path == "sites.b table Shop.other"
    assert kind in found.problem
