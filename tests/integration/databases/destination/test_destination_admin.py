"""A destination with an `admin_dsn`: the administrator's role creates and drops the objects in the schema headrace. The
role that applies may only use the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from actors.site.admin import admin_findings, prepare_as_admin
from headrace.base.errors import ConfigError, DatabaseError, DatabaseUnavailable, DataError
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import DDL_REFUSED, DdlOutcomeKind, Finding
from headrace.databases.ports.operator import LEFT_TO_ADMIN
from headrace.databases.postgres.destination import admin as admin_module
from headrace.databases.postgres.destination.admin import PostgresAdmin
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.records import schema
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from tests.support.apply.printed_fixes import granted
from tests.support.databases.table_changes import change, place, recorded_at
from tests.support.values.writes import delete, insert, version_of
from topology.file.reading import read_topology

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

APPLIES, ADMIN, OWNER = "headrace_test_applies", 'headrace test "admin"', "headrace_test_owner"
TABLE = ("shop", "t")
FORBIDDEN = (
    "CREATE TABLE headrace.mine (id int)",
    "CREATE SCHEMA mine",
    "CREATE FUNCTION headrace.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "DROP TRIGGER headrace_tombstones ON shop.t",
    "ALTER TABLE shop.t DISABLE TRIGGER headrace_tombstones",
    "DROP TABLE headrace.apply_progress",
    "ALTER TABLE headrace.apply_progress ADD COLUMN mine int",
    "DROP SCHEMA headrace CASCADE",
    "ALTER SCHEMA headrace RENAME TO mine",
    "CREATE OR REPLACE FUNCTION headrace.track(label text) RETURNS void LANGUAGE sql AS ''",
    "SELECT headrace.keep_tombstones('shop.t')",
    "TRUNCATE headrace.apply_progress",
    'SET ROLE "headrace test ""admin"""',
)


@dataclass(frozen=True)
class Site:
    """One database: as its superuser, as the role that applies, as the administrator."""

    superuser: psycopg.Connection
    dsn: str
    admin_dsn: str

    def destination(self, *, has_admin: bool = True) -> PostgresDestination:
        return PostgresDestination(self.dsn, site="dst", has_admin=has_admin)

    def admin(self) -> PostgresAdmin:
        return PostgresAdmin(self.admin_dsn, self.dsn, site="dst")

    def grant(self, find: Callable[[], tuple[Finding, ...]]) -> list[str]:
        """Run the printed fixes until no finding is left."""
        return granted(self.superuser, lambda: [finding.fix for finding in find() if finding.is_error])

    def prepared(self) -> tuple[str, ...]:
        """Run the administrator's preparation after both roles have the printed rights."""
        with closing(self.destination()) as destination:
            self.grant(lambda: destination.preflight("top", sessions=1))
            shape = destination.describe(*TABLE)
            assert shape is not None
            self.grant(lambda: destination.preflight_tables([version_of(shape, is_binary=False)]))
        self.grant(lambda: self.admin().preflight([TABLE]))
        return self.admin().prepare([TABLE])


def _drop_roles(superuser: psycopg.Connection) -> None:
    superuser.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = ANY (%s)",
        ([APPLIES, ADMIN, OWNER],),
    )
    for role in (APPLIES, ADMIN, OWNER):
        name = psycopg.sql.Identifier(role)
        if superuser.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is not None:
            superuser.execute(psycopg.sql.SQL("DROP OWNED BY {} CASCADE").format(name))
            superuser.execute(psycopg.sql.SQL("DROP ROLE {}").format(name))


@pytest.fixture
def site(request: pytest.FixtureRequest, fresh_database: Callable[[EmbeddedServer], str]) -> Iterator[Site]:
    dsn = fresh_database(request.getfixturevalue(getattr(request, "param", "pg_destination")))
    with psycopg.connect(dsn, autocommit=True) as superuser:
        _drop_roles(superuser)
        for role in (APPLIES, ADMIN, OWNER):
            superuser.execute(
                psycopg.sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(psycopg.sql.Identifier(role))
            )
        superuser.execute(
            f"CREATE SCHEMA shop; CREATE TABLE shop.t (id int PRIMARY KEY, v text); ALTER TABLE shop.t OWNER TO {OWNER}"
        )
        superuser.execute(
            f"GRANT USAGE ON SCHEMA shop TO {OWNER}; REVOKE TEMP ON DATABASE {superuser.info.dbname} FROM PUBLIC"
        )
        yield Site(superuser, *(conninfo.make_conninfo(dsn, user=role, password="secret") for role in (APPLIES, ADMIN)))
        _drop_roles(superuser)


def _is_refused(connection: psycopg.Connection, statement: str) -> bool:
    try:
        connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


def _apply(site: Site) -> None:
    """Do the work of an apply process: epochs, changes with their times and notes, an error's record, the low
    watermark.
    """
    with closing(site.destination()) as destination:
        assert destination.prepare("top") == ()
        assert destination.keep_tombstones([TABLE]) == ()
        epoch = destination.raise_epoch("top", "a").epoch
        with closing(destination.open_session("top", "a", server=0, epoch=epoch, tag=b"\x00", source="src")) as session:
            table = session.describe(*TABLE)
            assert table is not None
            session.begin()
            version = version_of(table, is_binary=False)
            assert session.write(
                [
                    insert(table, [(b"1", b"one"), (b"2", b"two")], version),
                    delete(table, [(b"1", b"one")], version=version),
                ]
            ) == (2, 1)
            session.commit([], 7)
        destination.record_low_watermark("top", "a", epoch, 7)
        destination.describe_apply("top", "a", epoch, {"a": 1}, {"b": 2})
        number = destination.begin_handler_call("top", "a", 8, "f")
        destination.end_handler_calls("top", "a", [Scn(8)])
        assert number == 0
        assert destination.errors("top") == ()
        assert destination.conflicts("top", last=1) == ()


def test_ddl_needs_the_rights_of_the_tables_owner_and_nothing_else(site):
    site.prepared()
    statements = ("ALTER TABLE shop.t ADD COLUMN w text DEFAULT 'old' NOT NULL", "ALTER TABLE shop.t DROP COLUMN w")
    own = site.superuser.info
    source = conninfo.make_conninfo(own.dsn, password=own.password)
    found, dropped = recorded_at(source, TableName(*TABLE), *statements)
    with closing(site.destination()) as destination:
        destination.prepare("top")
        epoch = destination.raise_epoch("top", "a").epoch
        with closing(destination.open_session("top", "a", server=0, epoch=epoch, tag=b"\x00", source="src")) as session:
            session.begin()
            with pytest.raises(DataError) as caught:
                session.change_table(found, place())
            session.rollback()
            grant, skip = caught.value.hint.split("; or leave it out: ")
            assert DDL_REFUSED in caught.value.context
            site.superuser.execute(grant)
            assert [each.kind for each in change(session, found)] == [DdlOutcomeKind.APPLIED]
            assert session.describe(*TABLE).columns[-1].name == "w"
            site.superuser.execute("ALTER TABLE shop.t OWNER TO CURRENT_USER")
            session.begin()
            with pytest.raises(DataError) as caught:
                session.change_table(dropped, place(1))
            session.rollback()
            assert caught.value.hint.startswith(f'ALTER TABLE "shop"."t" OWNER TO "{APPLIES}"; or')
            with psycopg.connect(site.dsn, autocommit=True) as applies:
                applies.execute(skip)
                assert applies.execute("SELECT outcome FROM headrace.dba_apply_ddl").fetchall() == [("APPLIED",)]


@pytest.mark.parametrize(
    "site", ["pg_15", pytest.param("pg_16", marks=pytest.mark.soak), "pg_destination"], indirect=True
)
def test_printed_rights_suffice_and_the_applying_role_can_change_nothing(site: Site) -> None:
    made = site.prepared()
    assert any(statement.startswith("CREATE SCHEMA") for statement in made)
    assert any("keep_tombstones" in statement for statement in made)
    assert site.admin().prepare([TABLE]) == ()
    _apply(site)
    # The administrator's trigger records a user's DELETE.
    site.superuser.execute("DELETE FROM shop.t")
    assert site.superuser.execute("SELECT count(*) FROM headrace.row_change WHERE is_gone").fetchone() == (1,)
    with psycopg.connect(site.dsn, autocommit=True) as applies:
        assert [statement for statement in FORBIDDEN if not _is_refused(applies, statement)] == []
    # `down --purge`: the site's own part, then the administrator's.
    with closing(site.destination()) as destination:
        lines = destination.remove("top")
    assert lines[-1] == LEFT_TO_ADMIN
    assert "DROP SCHEMA headrace" in site.admin().remove("top")
    assert site.superuser.execute(
        "SELECT to_regnamespace('headrace') IS NULL, (SELECT count(*) FROM pg_trigger WHERE tgname ="
        " 'headrace_tombstones')"
    ).fetchone() == (True, 0)


def test_administrator_creates_a_later_schema_for_the_role_that_applies(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.prepared()
    later = ("CREATE TABLE headrace.later (id int GENERATED ALWAYS AS IDENTITY, v text)",)
    monkeypatch.setattr(schema, "VERSIONS", (*schema.VERSIONS, later))
    for module in (schema, admin_module):
        monkeypatch.setattr(module, "VERSION", schema.VERSION + 1 if module is schema else schema.VERSION)
    with closing(site.destination()) as destination:
        with pytest.raises(DatabaseError, match="this program needs") as caught:
            destination.prepare("top")
        assert "headrace up" in caught.value.hint
        made = site.admin().prepare([TABLE])
        assert later[0] in made
        destination.prepare("top")
    with psycopg.connect(site.dsn, autocommit=True) as applies:
        applies.execute("INSERT INTO headrace.later (v) VALUES ('x')")


def test_schema_of_the_role_that_applies_is_taken_over_by_printed_fixes(site: Site) -> None:
    site.superuser.execute(f"GRANT {OWNER} TO {APPLIES}")
    with closing(site.destination(has_admin=False)) as destination:
        site.grant(lambda: destination.preflight("top", sessions=1))
        destination.prepare("top")
        destination.keep_tombstones([TABLE])
    site.superuser.execute(
        f"REVOKE {OWNER} FROM {APPLIES}; REVOKE CREATE ON DATABASE {site.superuser.info.dbname} FROM {APPLIES}"
    )
    (found,) = site.admin().preflight([])
    assert f'belongs to "{APPLIES}", and not to the role of admin_dsn' in found.problem
    with pytest.raises(DatabaseError, match="belongs to"):
        site.admin().prepare([TABLE])
    site.prepared()
    assert site.admin().preflight([TABLE]) == ()
    _apply(site)
    with psycopg.connect(site.dsn, autocommit=True) as applies:
        assert [statement for statement in FORBIDDEN if not _is_refused(applies, statement)] == []


def test_administrator_that_separates_nothing_is_reported(
    site: Site, fresh_database: Callable[[EmbeddedServer], str]
) -> None:
    (same,) = PostgresAdmin(site.dsn, site.dsn, site="dst").preflight([])
    assert same.is_error
    assert "have one role" in same.problem
    site.superuser.execute(
        psycopg.sql.SQL("GRANT {} TO {}").format(psycopg.sql.Identifier(ADMIN), psycopg.sql.Identifier(APPLIES))
    )
    site.superuser.execute(
        psycopg.sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(
            psycopg.sql.Identifier(site.superuser.info.dbname),
            psycopg.sql.Identifier(ADMIN),
        )
    )
    (member,) = site.admin().preflight([])
    assert not member.is_error
    assert "keeps nothing from it" in member.problem
    site.superuser.execute(member.fix)
    assert site.admin().preflight([]) == ()
    elsewhere = conninfo.make_conninfo(site.admin_dsn, dbname="postgres")
    (other,) = PostgresAdmin(elsewhere, site.dsn, site="dst").preflight([])
    assert other.is_error
    assert "another database" in other.problem
    with pytest.raises(DatabaseError, match="another database"):
        PostgresAdmin(elsewhere, site.dsn, site="dst").prepare([])


def test_role_of_another_topology_gets_its_rights_from_up_or_from_check(site: Site) -> None:
    site.prepared()
    site.superuser.execute(
        f"REVOKE ALL ON SCHEMA headrace FROM {APPLIES}; GRANT CREATE ON SCHEMA headrace TO {APPLIES}"
    )
    site.superuser.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA headrace FROM {APPLIES}")
    found = site.admin().preflight([TABLE])
    assert len(found) == 3
    for each in found:
        site.superuser.execute(each.fix)
    assert site.admin().preflight([TABLE]) == ()
    _apply(site)
    site.superuser.execute(f"REVOKE ALL ON SCHEMA headrace FROM {APPLIES}")
    assert site.admin().prepare([TABLE]) == (f'GRANT USAGE ON SCHEMA headrace TO "{APPLIES}"',)


def test_table_that_came_after_up_is_named_with_up(site: Site) -> None:
    site.prepared()
    site.superuser.execute("CREATE TABLE shop.later (id int PRIMARY KEY)")
    with closing(site.destination()) as destination:
        with pytest.raises(DatabaseError, match=r"missing on shop\.later") as caught:
            destination.keep_tombstones([TABLE, ("shop", "later")])
        assert "headrace up" in caught.value.hint


def test_up_refuses_another_owners_table_with_the_missing_membership(site: Site) -> None:
    site.prepared()
    site.superuser.execute(f"DROP TRIGGER headrace_tombstones ON shop.t; REVOKE {OWNER} FROM {_quoted(ADMIN)}")
    with pytest.raises(DatabaseError, match="does not own it") as caught:
        site.admin().prepare([TABLE])
    site.superuser.execute(caught.value.hint)
    assert any("keep_tombstones" in statement for statement in site.admin().prepare([TABLE]))


def test_right_granted_to_public_is_revoked_from_public(site: Site) -> None:
    site.prepared()
    site.superuser.execute("GRANT CREATE ON SCHEMA headrace TO PUBLIC")
    (found,) = site.admin().preflight([TABLE])
    assert any("PUBLIC" in statement for statement in site.admin().prepare([TABLE])), found
    assert site.admin().preflight([TABLE]) == ()


def test_role_that_can_drop_the_triggers_is_reported(site: Site) -> None:
    site.prepared()
    site.superuser.execute(f"GRANT {OWNER} TO {APPLIES}")
    (found,) = site.admin().preflight([TABLE])
    assert not found.is_error
    assert "can drop the trigger" in found.problem
    site.superuser.execute(found.fix)
    assert site.admin().preflight([TABLE]) == ()


def test_apply_process_continues_while_the_schema_changes_hands(site: Site) -> None:
    site.superuser.execute(f"GRANT {OWNER} TO {APPLIES}")
    with closing(site.destination(has_admin=False)) as destination:
        site.grant(lambda: destination.preflight("top", sessions=1))
        destination.prepare("top")
        destination.keep_tombstones([TABLE])
        epoch = destination.raise_epoch("top", "a").epoch
        site.superuser.execute(f"REVOKE {OWNER} FROM {APPLIES}")
        (found,) = site.admin().preflight([])
        site.superuser.execute(found.fix)
        destination.record_low_watermark("top", "a", epoch, 7)
        # Without an administrator again, the printed fix returns everything, so that a later version can be created.
        (found,) = (each for each in destination.preflight("top", sessions=1) if "belongs to" in each.problem)
        site.superuser.execute(found.fix)
        destination.record_low_watermark("top", "a", epoch, 8)
        assert [each for each in destination.preflight("top", sessions=1) if each.is_error] == []
    owners = site.superuser.execute(
        "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = 'headrace'::regnamespace AND"
        " relkind IN ('r', 'v') UNION SELECT pg_get_userbyid(proowner) FROM pg_proc WHERE pronamespace ="
        " 'headrace'::regnamespace"
    ).fetchall()
    assert owners == [(APPLIES,)]


def test_wrong_password_of_the_administrator_is_reported_as_that(site: Site) -> None:
    admin = PostgresAdmin(conninfo.make_conninfo(site.admin_dsn, password="wrong"), site.dsn, site="dst")
    for ask in (lambda: admin.preflight([]), lambda: admin.prepare([]), lambda: admin.remove("top")):
        with pytest.raises(
            DatabaseUnavailable, match=r"as the administrator: .*password authentication failed"
        ) as caught:
            ask()
        assert "admin_dsn" in caught.value.hint


def test_topology_without_rights_is_purged_and_leaves_the_others_rows(site: Site) -> None:
    site.prepared()
    _apply(site)
    # the state of a second topology's role before its `up`
    site.superuser.execute(f"REVOKE ALL ON SCHEMA headrace FROM {APPLIES}")
    with closing(site.destination()) as destination:
        assert destination.remove("second") == (LEFT_TO_ADMIN,)
    assert site.admin().remove("second") == ()
    assert site.superuser.execute("SELECT count(*) FROM headrace.apply_process").fetchone() == (1,)
    # The administrator removes what the role cannot, and first ends all sessions that still write.
    assert any("apply_process" in line for line in site.admin().remove("top"))


def test_up_works_without_the_administrator_when_nothing_is_missing(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "top.yaml"
    file.write_text(
        'topology: top\nsites:\n  src: {database: {kind: embedded}}\n  dst: {database: {kind: postgres, dsn: "${RUNS}",'
        ' admin_dsn: "${ADMIN}"}}\n'
        "replicate:\n  - {tables: [shop.t], from: src, to: [dst]}\n"
        "conflict_handlers: [{table: shop.t, method: latest_timestamp}]\ntombstones: {retention_days: 7}\n"
    )
    monkeypatch.setenv("RUNS", site.dsn)
    monkeypatch.setenv("ADMIN", conninfo.make_conninfo(site.admin_dsn, password="wrong"))
    spec = read_topology(file)
    with pytest.raises(DatabaseUnavailable, match="site dst: as the administrator"):
        prepare_as_admin(spec)
    monkeypatch.setenv("ADMIN", site.admin_dsn)
    site.prepared()
    assert prepare_as_admin(spec) == ()
    # The state after a restart of the machine with an expired password, then on a machine without the password.
    monkeypatch.setenv("ADMIN", conninfo.make_conninfo(site.admin_dsn, password="wrong"))
    (found,) = prepare_as_admin(spec)
    assert not found.is_error
    assert "password authentication failed" in found.problem
    (asked,) = admin_findings(spec, spec.site("dst"), None)
    assert (asked.path, asked.fix, asked.is_error) == (found.path, found.fix, False)
    monkeypatch.delenv("ADMIN")
    (found,) = prepare_as_admin(spec)
    assert "ADMIN" in found.problem
    # Now it is needed.
    site.superuser.execute("DROP TRIGGER headrace_tombstones ON shop.t")
    for ask in (lambda: prepare_as_admin(spec), lambda: admin_findings(spec, spec.site("dst"), None)):
        with pytest.raises(ConfigError, match="ADMIN"):
            ask()
    # The running processes wait for a database that does not answer.
    monkeypatch.setenv("RUNS", conninfo.make_conninfo(site.dsn, port="1"))
    (found,) = prepare_as_admin(read_topology(file))
    assert not found.is_error


def _quoted(role: str) -> str:
    return '"' + role.replace('"', '""') + '"'
