"""A role without rights applies a table after the statements that `check` prints, each of which is needed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest
from psycopg import conninfo

from headrace.base.errors import DatabaseError, DataError, FencedError
from headrace.databases.ports import TruncatedTable
from headrace.databases.postgres.catalog.destination_tables import describe_table, table_version
from headrace.databases.postgres.connection import connect, translated
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.table_name import TableName
from headrace.rules.table_settings import TableSettings
from tests.support.databases.statements import row_of
from tests.support.session.noted import noted
from tests.support.values.writes import delete, insert, update, version_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

ROLE = "headrace_test_rights"
LIBRARIES = """
CREATE SCHEMA shop; CREATE SCHEMA lib; CREATE SCHEMA "of arrays"; CREATE SCHEMA inside; CREATE SCHEMA closed;
CREATE TYPE lib.mood AS ENUM ('low', 'high'); CREATE TYPE "of arrays".size AS ENUM ('s', 'l');
CREATE TYPE closed.level AS ENUM ('a', 'b'); CREATE DOMAIN lib.level AS closed.level; CREATE TYPE lib.both AS (one closed.level, other text);
CREATE TYPE lib.levels AS RANGE (subtype = closed.level);
REVOKE USAGE ON TYPE lib.mood, "of arrays".size, closed.level, lib.level, lib.both, lib.levels FROM PUBLIC;
"""
COLUMNS = 'id int PRIMARY KEY, m lib.mood, sizes "of arrays".size[], lev lib.level, b lib.both, r lib.levels'
CALLED = """
CREATE FUNCTION lib.stamp() RETURNS text LANGUAGE sql AS 'SELECT \'\'now\'\'';
CREATE FUNCTION lib.twice(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 * 2; END';
CREATE FUNCTION inside.half(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 / 2; END';
CREATE FUNCTION inside.fine(int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN true; END';
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA lib, inside FROM PUBLIC;
"""
MORE = (
    "local_no bigserial, own int GENERATED ALWAYS AS IDENTITY, stamped text DEFAULT lib.stamp(),"
    " doubled int GENERATED ALWAYS AS (lib.twice(id)) STORED, CHECK (inside.fine(id))"
)
OLD, NEW = (b"1", b"low", b"{s,l}", b"a", b"(a,x)", b"[a,b)"), (b"1", b"high", b"{l}", b"b", b"(b,y)", b"empty")


@pytest.fixture
def admin(destination_database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute(
            LIBRARIES
            + CALLED
            + f"CREATE TABLE shop.here ({COLUMNS}); CREATE TABLE shop.t ({COLUMNS}, {MORE}); CREATE INDEX ON shop.t"
            " (inside.half(id))"
        )
        yield user


@pytest.fixture
def role(admin: psycopg.Connection, destination_database: str) -> Iterator[str]:
    """Return the connection string of a role that may only be an apply process without a table."""
    admin.execute(f"DROP ROLE IF EXISTS {ROLE}")
    admin.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'secret'")
    made = conninfo.make_conninfo(destination_database, user=ROLE, password="secret")
    with closing(PostgresDestination(made, site="dbs2")) as destination:
        for _ in range(2):
            for finding in destination.preflight("top", sessions=1):
                admin.execute(finding.fix)
    yield made
    admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", (ROLE,))
    admin.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")


def printed(admin: psycopg.Connection, dsn: str) -> list[str]:
    """Return the findings of `check` for the table, as the role."""
    source = describe_table(admin, "shop", "here")
    assert source is not None
    version = replace(table_version(source, is_binary=False), name="t")
    with closing(PostgresDestination(dsn, site="dbs2")) as destination:
        return [finding.fix for finding in destination.preflight_tables([version]) if finding.is_error]


def warnings(admin: psycopg.Connection, dsn: str) -> list[str]:
    """Return the findings of `check` for the table's sequences, as the role."""
    source = describe_table(admin, "shop", "here")
    assert source is not None
    with closing(PostgresDestination(dsn, site="dbs2")) as destination:
        found = destination.preflight_tables([replace(table_version(source, is_binary=False), name="t")])
    return [finding.fix for finding in found if "RESTART IDENTITY" in finding.problem and not finding.is_error]


def truncate(dsn: str, *, restart_identity: bool) -> None:
    """Run a TRUNCATE as apply does."""
    with closing(PostgresDestination(dsn, site="dbs2")) as destination:
        epoch = destination.raise_epoch("top", "a").epoch
        with closing(destination.open_session("top", "a", server=0, epoch=epoch, tag=b"\x00")) as session:
            table = session.describe("shop", "t")
            assert table is not None
            session.begin()
            session.truncate([TruncatedTable(table=table)], restart_identity=restart_identity)
            session.commit([], 0)


def write(dsn: str) -> None:
    """Run every statement of a table: INSERT, UPDATE, DELETE and TRUNCATE of apply, and a copy."""
    columns = ("id", "m", "sizes", "lev", "b", "r")
    with closing(PostgresDestination(dsn, site="dbs2")) as destination:
        epoch = destination.raise_epoch("top", "a").epoch
        with closing(destination.open_session("top", "a", server=0, epoch=epoch, tag=b"\x00")) as session:
            table = session.describe("shop", "t")
            assert table is not None
            version = version_of(
                table, is_binary=False, without=[c.name for c in table.columns if c.name not in columns]
            )
            # Where the log is binary, values of array types travel in a type of the session.
            version = replace(version, columns=tuple(replace(c, is_binary=c.name == "sizes") for c in version.columns))
            old, new = (
                tuple(_binary(dsn, value) if at == columns.index("sizes") else value for at, value in enumerate(row))
                for row in (OLD, NEW)
            )
            session.begin()
            assert session.write(
                [
                    insert(table, [old], version),
                    update(table, [old], [new], version=version),
                    delete(table, [new], version=version),
                ]
            ) == (1, 1, 1)
            session.truncate([TruncatedTable(table=table)], restart_identity=False)
            session.commit([], 0)
    with closing(connect(dsn, application_name="copies")) as copying, copying.cursor() as cursor, translated("copying"):
        with cursor.copy(f"COPY shop.t ({', '.join(columns)}) FROM STDIN") as copy:
            copy.write_row([value.decode() for value in OLD])
        cursor.execute("TRUNCATE shop.t")


def _binary(dsn: str, value: bytes) -> bytes:
    """Return the binary form of an array of sizes."""
    labels = value.strip(b"{}").split(b",")
    with psycopg.connect(dsn) as user:
        (kind,) = row_of(
            user.execute(
                "SELECT t.oid::int8 FROM pg_type t JOIN pg_namespace n ON n.oid = typnamespace WHERE (nspname, typname) ="
                " ('of arrays', 'size')"
            )
        )
    head = struct.pack("!iiIii", 1, 0, kind, len(labels), 1)
    return head + b"".join(struct.pack("!i", len(label)) + label for label in labels)


def test_rights_that_check_prints_suffice_and_each_is_needed(admin: psycopg.Connection, role: str) -> None:
    fixes = printed(admin, role)
    for fix in fixes:
        admin.execute(fix)
    assert printed(admin, role) == []
    write(role)
    for fix in fixes:
        admin.execute(fix.replace("GRANT", "REVOKE", 1).replace(" TO ", " FROM "))
        assert printed(admin, role) == [fix], "the hint of the error leads to it"
        with pytest.raises(DataError) as refused:
            write(role)
        assert (refused.value.context["sqlstate"], refused.value.message.endswith(f": {fix}")) == ("42501", True), (
            refused.value.message
        )
        admin.execute(fix)
    assert len(fixes) == len(set(fixes)) == 10


def test_role_that_does_not_own_the_sequences_is_warned_of_restarts(admin: psycopg.Connection, role: str) -> None:
    for fix in printed(admin, role):
        admin.execute(fix)
    (warning,) = warnings(admin, role)
    with pytest.raises(DataError) as refused:
        truncate(role, restart_identity=True)
    (owner,) = row_of(admin.execute("SELECT current_user"))
    assert warning == f'GRANT "{owner}" TO "{ROLE}"; -- or nothing, if the source never does that'
    assert (refused.value.context["sqlstate"], refused.value.message.endswith(f": {warning}")) == ("42501", True), (
        refused.value.message
    )
    admin.execute(warning)
    assert warnings(admin, role) == []
    truncate(role, restart_identity=True)
    admin.execute(f'REVOKE "{owner}" FROM {ROLE}')
    truncate(role, restart_identity=False)


def test_role_detaches_and_drops_partitions_after_the_printed_statements(admin: psycopg.Connection, role: str) -> None:
    admin.execute("CREATE TABLE shop.p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    for number in range(3):
        admin.execute(f"CREATE TABLE shop.p_{number} PARTITION OF shop.p FOR VALUES FROM ({number}) TO ({number} + 1)")
        admin.execute(f"INSERT INTO shop.p VALUES ({number})")
    source = describe_table(admin, "shop", "p")
    assert source is not None
    version, table = table_version(source, is_binary=False), TableName("shop", "p")
    with closing(
        PostgresDestination(role, site="dbs2", settings=TableSettings(detached_partitions="follow"))
    ) as destination:
        assert (
            destination.missing_grant(TableName("shop", "p_0"))
            == f'GRANT SELECT, INSERT, DELETE, TRUNCATE ON "shop"."p_0" TO "{ROLE}";'
        )
        findings = [finding for finding in destination.preflight_tables([version]) if "own" in finding.problem]
        for finding in destination.preflight_tables([version]):
            if "own" not in finding.problem:
                admin.execute(finding.fix)
        driver = "top", "a", destination.raise_epoch("top", "a").epoch
        with pytest.raises(DatabaseError, match="must be owner"):
            destination.remove_partition(*driver, table, TableName("shop", "p_0"), how="detach", may=lambda _: True)
        (fixes,) = [finding.fix.splitlines() for finding in findings]
        assert len(fixes) == 4
        for fix in fixes:
            assert destination.preflight_tables([version]) != ()
            admin.execute(fix)
        assert destination.preflight_tables([version]) == ()
        assert destination.missing_grant(TableName("shop", "p_0")) == ""
        for number, how in enumerate(("detach", "drop", "empty")):
            name, asked = TableName("shop", f"p_{number}"), list[str]()
            assert not destination.remove_partition(
                *driver,
                table,
                name,
                how=how,
                may=lambda rows: (noted(asked, rows), False)[1],  # noqa: B023
            )
            assert admin.execute("SELECT count(*) FROM shop.p").fetchone() == (3 - number,)
            assert destination.remove_partition(*driver, table, name, how=how, may=lambda _: True)
            assert admin.execute("SELECT count(*) FROM shop.p").fetchone() == (2 - number,)
            assert asked == [f"((id IS NOT NULL) AND (id >= {number}) AND (id < {number + 1}))"]
        newer = destination.raise_epoch("top", "a").epoch
        with pytest.raises(FencedError):
            destination.remove_partition(*driver, table, TableName("shop", "p_2"), how="drop", may=lambda _: True)
        assert newer > driver[2]
    assert admin.execute(
        "SELECT to_regclass('shop.p_0') IS NULL, to_regclass('shop.p_1') IS NULL, to_regclass('shop.p_2') IS NULL"
    ).fetchone() == (False, True, False)
    with closing(PostgresDestination(role, site="dbs2")) as destination:
        assert destination.preflight_tables([version]) == ()
