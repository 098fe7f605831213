"""A source with an `admin_dsn`: the administrator's role creates and changes the publication, and the role that
captures may only read.

Longer than 500 lines: all of it is about one database with its three roles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from actors.site.admin import (
    admin_findings,
    finish_as_admin,
    prepare_as_admin,
    publish_as_admin,
    remove_as_admin,
    retreat_as_admin,
)
from headrace.base.errors import CapturedNoMore, ConfigError, DatabaseError, DatabaseUnavailable
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import Finding
from headrace.databases.ports.operator import LEFT_TO_ADMIN
from headrace.databases.postgres.catalog.source_tables import slot_name
from headrace.databases.postgres.copying.table_copy import PostgresTableReader
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.admin import PostgresSourceAdmin
from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.source.publication import publication_found
from headrace.lcr.scn import FIRST_SCN
from headrace.rules.rule import Rule, RuleSet
from tests.support.apply.printed_fixes import granted
from topology.edits.stored import PREPARED_FILE
from topology.file.reading import read_topology
from topology.spec import TopologySpec

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

CAPTURES, ADMIN, OWNER = "headrace_test_captures", 'headrace source "admin"', "headrace_test_shopkeeper"
NAME = slot_name("top", "src")
RULES = (RuleSet(include=(Rule(owner="shop"),)),)
FORBIDDEN = (
    f"DROP PUBLICATION {NAME}",
    f"ALTER PUBLICATION {NAME} DROP TABLE shop.t",
    f"ALTER PUBLICATION {NAME} SET (publish = 'insert')",
    "CREATE PUBLICATION mine",
    "CREATE SCHEMA mine",
    "INSERT INTO shop.t VALUES (9)",
    "UPDATE shop.t SET v = 'x'",
    "DELETE FROM shop.t",
    "TRUNCATE shop.t",
    "ALTER TABLE shop.t REPLICA IDENTITY NOTHING",
    "ALTER TABLE shop.t ADD COLUMN mine int",
    "DROP TABLE shop.t",
    "CREATE TRIGGER mine BEFORE INSERT ON shop.t FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    'SET ROLE "headrace source ""admin"""',
)
FILE = """
topology: top
state_dir: state
sites:
  src: {{database: {{kind: postgres, dsn: "${{RUNS}}"{admin}}}}}
  dst: {{database: {{kind: embedded}}}}
replicate:
  - {{tables: [{tables}], from: src, to: [dst]}}
"""


@dataclass(frozen=True)
class Site:
    """One database: as its superuser, as the role that captures, as the administrator."""

    superuser: psycopg.Connection
    dsn: str
    admin_dsn: str

    def source(self, *, has_admin: bool = True) -> PostgresSource:
        return PostgresSource(self.dsn, site="src", has_admin=has_admin)

    def admin(self) -> PostgresSourceAdmin:
        return PostgresSourceAdmin(self.admin_dsn, self.dsn, site="src")

    def grant(self, find: Callable[[], tuple[Finding, ...]]) -> list[str]:
        """Run the printed fixes until no finding is left."""
        return granted(
            self.superuser, lambda: list(dict.fromkeys(finding.fix for finding in find() if finding.is_error))
        )

    def granted(self) -> list[str]:
        """Give both roles the printed rights."""
        with closing(self.source()) as source:
            given = self.grant(lambda: source.preflight(RULES, streams=2))
        return given + self.grant(lambda: self.admin().preflight("top", RULES))

    def prepared(self) -> None:
        self.granted()
        self.admin().prepare("top", RULES, was_source=False)
        with closing(self.source()) as source:
            source.prepare("top", RULES)

    def published(self) -> list[str]:
        return [
            name
            for (name,) in self.superuser.execute(
                "SELECT tablename FROM pg_publication_tables WHERE pubname = %s ORDER BY 1", (NAME,)
            ).fetchall()
        ]

    def entry(self, table: str) -> str:
        with closing(self.source()) as source:
            return next(each.identity for each in source.captured("top") if each.name == table)


def _quoted(role: str) -> str:
    return '"' + role.replace('"', '""') + '"'


def _drop_roles(superuser: psycopg.Connection) -> None:
    superuser.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = ANY (%s)",
        ([CAPTURES, ADMIN, OWNER],),
    )
    for role in (CAPTURES, ADMIN, OWNER):
        if superuser.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is not None:
            superuser.execute(f"DROP OWNED BY {_quoted(role)} CASCADE; DROP ROLE {_quoted(role)}".encode())


@pytest.fixture
def site(request: pytest.FixtureRequest, fresh_database: Callable[[EmbeddedServer], str]) -> Iterator[Site]:
    dsn = fresh_database(request.getfixturevalue(getattr(request, "param", "pg_source")))
    with psycopg.connect(dsn, autocommit=True) as superuser:
        _drop_roles(superuser)
        for role in (CAPTURES, ADMIN, OWNER):
            superuser.execute(f"CREATE ROLE {_quoted(role)} LOGIN PASSWORD 'secret'".encode())
        superuser.execute(
            "CREATE SCHEMA shop; CREATE TABLE shop.t (id int PRIMARY KEY, v text); INSERT INTO shop.t VALUES (1, 'one')"
        )
        superuser.execute(f"GRANT USAGE ON SCHEMA shop TO {OWNER}; ALTER TABLE shop.t OWNER TO {OWNER}".encode())
        yield Site(
            superuser, *(conninfo.make_conninfo(dsn, user=role, password="secret") for role in (CAPTURES, ADMIN))
        )
        superuser.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", (NAME,)
        )
        _drop_roles(superuser)


def _is_refused(connection: psycopg.Connection, statement: str) -> bool:
    try:
        connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


def _add(site: Site, table: str, columns: str = "id int PRIMARY KEY") -> None:
    site.superuser.execute(
        f"CREATE TABLE shop.{table} ({columns}); ALTER TABLE shop.{table} OWNER TO {OWNER}; GRANT SELECT ON"
        f" shop.{table} TO {CAPTURES}".encode()
    )


@pytest.mark.parametrize("site", ["pg_15", pytest.param("pg_16", marks=pytest.mark.soak), "pg_source"], indirect=True)
def test_printed_rights_suffice_and_the_capturing_role_can_change_nothing(site: Site) -> None:
    assert site.granted() == [
        f'ALTER ROLE "{CAPTURES}" REPLICATION;',
        f'GRANT USAGE ON SCHEMA "shop" TO "{CAPTURES}"; GRANT SELECT ON "shop"."t" TO "{CAPTURES}";',
        f'GRANT CREATE ON DATABASE "{site.superuser.info.dbname}" TO {_quoted(ADMIN)};',
        f'GRANT "{OWNER}" TO {_quoted(ADMIN)};',
    ]
    assert [statement.split(" FOR ")[0] for statement in site.admin().prepare("top", RULES, was_source=False)] == [
        f'CREATE PUBLICATION "{NAME}"'
    ]
    assert site.admin().prepare("top", RULES, was_source=False)[0] == f'DROP PUBLICATION "{NAME}"', (
        "no process used it yet: it is recreated"
    )
    with closing(site.source()) as source:
        (slot,) = source.prepare("top", RULES)
        assert "pg_create_logical_replication_slot" in slot
        assert source.prepare("top", RULES) == ()
        assert (
            site.admin().prepare("top", RULES, was_source=True)
            == site.admin().prepare("top", RULES, was_source=False)
            == ()
        )
        # All requests of a log writer, a capture process and a copy.
        assert source.uncaptured("top", RULES) == ()
        assert [table.name for table in source.captured("top")] == ["t"]
        assert source.row_marks("top")
        assert source.check_prepared("top", FIRST_SCN)
        assert source.dictionary_build("top") is not None
        assert source.table_versions(source.tables(RULES))
        with closing(source.open_stream("top", FIRST_SCN)) as stream:
            marker = source.write_marker(b"x")
            site.superuser.execute(
                "INSERT INTO shop.t VALUES (2, 'two'); UPDATE shop.t SET v = 'x'; DELETE FROM shop.t WHERE id = 1;"
                " TRUNCATE shop.t"
            )
            data = b""
            while b"two" not in data:
                chunk = stream.read(1.0)
                data += b"" if chunk is None else bytes(chunk.data)
            assert source.current_scn() > marker
        with closing(source.open_snapshot("top")) as snapshot, closing(PostgresTableReader(site.dsn)) as reader:
            assert (
                reader.plan("shop", "t", {"id": "pg_catalog.int4", "v": "pg_catalog.text"}, snapshot=snapshot.name)
                is not None
            )
    with psycopg.connect(site.dsn, autocommit=True) as captures:
        assert [statement for statement in FORBIDDEN if not _is_refused(captures, statement)] == []
    # `down --purge`: the site's own part, then the administrator's.
    assert site.admin().remove("top") == (), "its slot would be left without a publication"
    with closing(site.source()) as source:
        assert source.remove("top")[1:] == (LEFT_TO_ADMIN,)
    assert site.admin().remove("top") == (f'DROP PUBLICATION "{NAME}"',)
    with closing(site.source()) as source:
        assert source.remove("top") == ()


def test_recipe_of_the_manual_suffices(site: Site) -> None:
    manual = (
        (Path(__file__).parents[4] / "docs" / "tasks" / "grant-rights.md")
        .read_text()
        .partition("### An administrator of a source")[2]
    )
    recipe = manual.partition("```sql\n")[2].partition("```")[0]
    assert recipe.count("GRANT") == 5
    _drop_roles(site.superuser)
    site.superuser.execute(
        f"CREATE ROLE {OWNER}; CREATE TABLE shop.t (id int PRIMARY KEY); ALTER TABLE shop.t OWNER TO {OWNER}; GRANT"
        f" USAGE, CREATE ON SCHEMA shop TO {OWNER}".encode()
    )
    here = {
        "sales": str(site.superuser.info.dbname),
        "shop_owner": OWNER,
        "headrace_admin": _quoted(ADMIN),
        "headrace": CAPTURES,
        "LOGIN": "LOGIN PASSWORD 'secret'",
    }
    recipe = re.sub(r"\w+", lambda word: here.get(word.group(), word.group()), recipe)
    site.superuser.execute(recipe.encode())
    site.superuser.execute(f"SET ROLE {OWNER}; CREATE TABLE shop.later (id int PRIMARY KEY); RESET ROLE".encode())
    assert site.granted() == []
    site.prepared()
    assert site.published() == ["later", "t"]


def test_tables_are_published_before_their_use_and_removed_on_request(site: Site) -> None:
    site.prepared()
    entry = site.entry("t")
    _add(site, "u")
    site.superuser.execute('ALTER TABLE shop.u RENAME TO "u DROP TABLE y"')
    with closing(site.source()) as source:
        assert source.prepare("top", RULES) == (), "running processes do not change the publication"
    assert site.published() == ["t"]
    only = (RuleSet(include=(Rule(owner="shop", name="u DROP TABLE y"),)),)
    assert site.admin().prepare("top", only, was_source=True) == (
        f'ALTER PUBLICATION "{NAME}" ADD TABLE ONLY "shop"."u DROP TABLE y"',
    )
    assert site.published() == ["t", "u DROP TABLE y"], "removed tables stay until everything is settled"
    assert site.entry("t") == entry
    kept = {site.entry("u DROP TABLE y")}
    assert site.admin().take_out("top", kept) == (f'ALTER PUBLICATION "{NAME}" DROP TABLE "shop"."t"',)
    assert site.admin().take_out("top", kept) == ()
    assert site.published() == ["u DROP TABLE y"]
    # It is no longer a source: the running processes drop its slot first.
    assert site.admin().remove("top") == ()
    with closing(site.source()) as source:
        source.remove("top")
    assert site.admin().take_out("top", ()) == (f'DROP PUBLICATION "{NAME}"',)
    assert site.admin().take_out("top", ()) == ()


def test_stale_publication_is_recreated_but_not_that_of_a_lost_slot(site: Site) -> None:
    """A table's entry in it says since when the table's changes are in the log."""
    site.prepared()
    entry = site.entry("t")
    site.superuser.execute("SELECT pg_drop_replication_slot(%s)", (NAME,))
    assert site.admin().prepare("top", RULES, was_source=True) == ()
    assert site.entry("t") == entry
    assert site.admin().prepare("top", RULES, was_source=False)[0] == f'DROP PUBLICATION "{NAME}"'
    assert site.entry("t") != entry


def test_dropped_publication_is_not_recreated_silently(site: Site) -> None:
    site.prepared()
    site.superuser.execute(f"DROP PUBLICATION {NAME}")
    assert site.admin().prepare("top", RULES, was_source=True) == ()
    with closing(site.source()) as source, pytest.raises(CapturedNoMore, match="was dropped"):
        source.prepare("top", RULES)


def test_publication_that_skipped_changes_is_not_corrected_silently(site: Site) -> None:
    """The changes in between are not sent. The running processes refuse the publication, and must find it unchanged."""
    site.prepared()
    site.superuser.execute(f"ALTER PUBLICATION {NAME} SET (publish = 'insert')")
    assert site.admin().prepare("top", RULES, was_source=True) == ()
    with pytest.raises(CapturedNoMore, match="does not publish all kinds of changes"):
        publication_found(site.superuser, NAME)


def test_table_that_another_up_added_meanwhile_stays_in_the_log(site: Site) -> None:
    """That `up` determined the tables to remove before it waited for a lock; the record is read again under the lock."""
    site.prepared()
    _add(site, "u")
    site.prepared()
    assert site.published() == ["t", "u"]
    taken_up = {site.entry("u")}
    assert site.admin().take_out("top", {site.entry("t")}, recorded=lambda: taken_up) == ()
    assert site.published() == ["t", "u"]
    taken_up.clear()
    assert site.admin().take_out("top", (), among=set(), recorded=lambda: taken_up) == ()
    assert site.admin().take_out("top", (), among={site.entry("u")}, recorded=lambda: taken_up) != ()
    assert site.published() == ["t"]


def test_removal_changes_no_other_database(
    site: Site, pg_source: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str]
) -> None:
    """The file is read again at the end of `up`: it may name another server by then."""
    site.prepared()
    elsewhere = conninfo.make_conninfo(fresh_database(pg_source), user=CAPTURES, password="secret")
    other = PostgresSourceAdmin(site.admin_dsn, elsewhere, site="a")
    for change in (lambda: other.take_out("top", ()), lambda: other.remove("top")):
        with pytest.raises(DatabaseError, match="another database"):
            change()
    assert site.published() == ["t"]


def test_source_without_a_publication_names_up(site: Site) -> None:
    site.granted()
    with closing(site.source()) as source, pytest.raises(DatabaseError, match="there is no publication") as caught:
        source.prepare("top", RULES)
    assert "headrace up" in caught.value.hint
    assert site.superuser.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", (NAME,)
    ).fetchone() == (0,)


def test_publication_is_taken_over_and_returned_by_printed_fixes(site: Site) -> None:
    site.superuser.execute(f"GRANT {OWNER} TO {CAPTURES}")
    with closing(site.source(has_admin=False)) as source:
        site.grant(lambda: source.preflight(RULES, streams=2))
        source.prepare("top", RULES)
        entry = site.entry("t")
        findings = site.admin().preflight("top", RULES)
        assert any("belongs to" in found.problem and found.is_error for found in findings)
        assert any("can alter it and write it" in found.problem and not found.is_error for found in findings)
        with pytest.raises(DatabaseError, match="belongs to"):
            site.admin().prepare("top", RULES, was_source=True)
        for found in findings:
            site.superuser.execute(found.fix)
        site.superuser.execute(f"REVOKE CREATE ON DATABASE {site.superuser.info.dbname} FROM {CAPTURES}")
        assert site.admin().preflight("top", RULES) == ()
        assert site.admin().prepare("top", RULES, was_source=True) == ()
        assert source.check_prepared("top", FIRST_SCN), "the running processes continue"
        with psycopg.connect(site.dsn, autocommit=True) as captures:
            assert [statement for statement in FORBIDDEN if not _is_refused(captures, statement)] == []
        # Without an administrator again.
        with pytest.raises(DatabaseError, match="belongs to") as caught:
            source.prepare("top", RULES)
        site.superuser.execute(f"GRANT {OWNER} TO {CAPTURES}")
        site.superuser.execute(caught.value.hint)
        assert source.prepare("top", RULES) == ()
    assert site.entry("t") == entry


def test_publication_of_another_role_is_refused_until_the_admin_owns_it(site: Site) -> None:
    """Also if the administrator may act as that role."""
    site.granted()
    site.superuser.execute(
        f"GRANT CREATE ON DATABASE {site.superuser.info.dbname} TO {OWNER}; SET ROLE {OWNER};"
        f" CREATE PUBLICATION {NAME} FOR TABLE shop.t WITH (publish = 'insert'); RESET ROLE; GRANT {OWNER} TO"
        f" {_quoted(ADMIN)}"
    )
    try:
        (found,) = site.admin().preflight("top", RULES)
        assert (found.is_error, f'belongs to "{OWNER}"' in found.problem) == (True, True)
        with pytest.raises(DatabaseError, match="belongs to"):
            site.admin().prepare("top", RULES, was_source=False)
        site.superuser.execute(found.fix)
        assert site.admin().preflight("top", RULES) == ()
    finally:
        site.superuser.execute(f"REVOKE CREATE ON DATABASE {site.superuser.info.dbname} FROM {OWNER}")


def test_schema_that_the_administrator_may_not_use_is_found(site: Site) -> None:
    site.granted()
    site.superuser.execute(f"REVOKE USAGE ON SCHEMA shop FROM {OWNER}".encode())
    (found,) = site.admin().preflight("top", RULES)
    assert found.is_error
    site.superuser.execute(found.fix)
    assert site.admin().preflight("top", RULES) == ()
    assert site.admin().prepare("top", RULES, was_source=False)


def test_roles_that_are_not_separate_are_reported(site: Site) -> None:
    site.prepared()
    (same,) = PostgresSourceAdmin(site.dsn, site.dsn, site="src").preflight("top", RULES)
    assert "have one role" in same.problem
    elsewhere = conninfo.make_conninfo(site.admin_dsn, dbname="postgres")
    with pytest.raises(DatabaseError, match="another database"):
        PostgresSourceAdmin(elsewhere, site.dsn, site="src").prepare("top", RULES, was_source=True)
    for statement, problem in (
        (f"GRANT {_quoted(ADMIN)} TO {CAPTURES}", "keeps nothing from it"),
        (f"ALTER TABLE shop.t OWNER TO {CAPTURES}", "can alter it and write it"),
        (f"ALTER SCHEMA shop OWNER TO {CAPTURES}", "can drop its tables"),
        (
            f"CREATE ROLE headrace_test_team; GRANT headrace_test_team TO {CAPTURES};"
            " ALTER SCHEMA shop OWNER TO headrace_test_team",
            'of "headrace_test_team", as whom it can act',
        ),
        (
            "ALTER SCHEMA shop OWNER TO pg_database_owner; DROP ROLE headrace_test_team;"
            f" ALTER DATABASE {site.superuser.info.dbname} OWNER TO {CAPTURES}",
            "the database's, which is its own",
        ),
    ):
        site.superuser.execute(statement.encode())
        found = site.admin().preflight("top", RULES)
        assert any(problem in each.problem for each in found)
        for each in found:
            site.superuser.execute(each.fix)
    assert site.admin().preflight("top", RULES) == ()
    site.superuser.execute(f"ALTER DATABASE {site.superuser.info.dbname} OWNER TO CURRENT_USER".encode())


@pytest.mark.parametrize("site", ["pg_15", "pg_source"], indirect=True)
def test_role_that_may_grant_itself_the_administrator_is_not_separate(site: Site) -> None:
    site.prepared()
    site.superuser.execute(f"ALTER ROLE {CAPTURES} CREATEROLE".encode())
    attack = f"GRANT {_quoted(ADMIN)} TO {CAPTURES}"
    found = site.admin().preflight("top", RULES)
    with psycopg.connect(site.dsn, autocommit=True) as captures:
        assert bool(found) != _is_refused(captures, attack)
        for each in found:
            assert "can grant itself every role" in each.problem
            assert not each.is_error
            site.superuser.execute(each.fix)
            site.superuser.execute(f"REVOKE {_quoted(ADMIN)} FROM {CAPTURES}".encode())
        assert not found or _is_refused(captures, attack)
    assert site.admin().preflight("top", RULES) == ()


def test_event_trigger_that_refuses_the_publication_is_found_as_the_admin(site: Site) -> None:
    site.granted()
    site.superuser.execute(
        "CREATE FUNCTION shop.no() RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$BEGIN RAISE"
        " EXCEPTION 'no'; END$$;"
        "CREATE EVENT TRIGGER no_publications ON ddl_command_start WHEN TAG IN ('CREATE PUBLICATION') EXECUTE FUNCTION"
        " shop.no()"
    )
    with closing(site.source()) as source:
        assert not [each for each in source.preflight(RULES, streams=2) if each.is_error]
    (found,) = [each for each in site.admin().preflight("top", RULES) if each.is_error]
    assert "no_publications" in found.problem
    with pytest.raises(DatabaseError, match="no"):
        site.admin().prepare("top", RULES, was_source=False)
    site.superuser.execute("DROP EVENT TRIGGER no_publications")


def test_locked_table_is_not_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.databases.postgres.source.admin._LOCK_TIMEOUT", "100ms")
    site.prepared()
    _add(site, "u")
    with psycopg.connect(site.superuser.info.dsn, password=site.superuser.info.password) as other:
        other.execute("LOCK TABLE shop.u IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(DatabaseUnavailable):
            site.admin().prepare("top", RULES, was_source=True)
    assert site.published() == ["t"]
    assert site.admin().prepare("top", RULES, was_source=True)


def test_tables_added_for_a_refused_topology_are_removed_again(site: Site) -> None:
    site.granted()
    site.admin().prepare("top", RULES, was_source=False)
    assert site.admin().take_out("top", ()) == (f'DROP PUBLICATION "{NAME}"',), "there was no publication"
    site.prepared()
    kept = site.entry("t")
    _add(site, "u")
    site.admin().prepare("top", RULES, was_source=True)
    assert site.admin().take_out("top", {kept}) == (f'ALTER PUBLICATION "{NAME}" DROP TABLE "shop"."u"',)
    assert site.admin().take_out("top", {kept}) == ()
    assert site.published() == ["t"]
    assert site.entry("t") == kept


# ------------------------------------------------------------------ actions of the commands


def _file(folder: Path, tables: str = "shop.*", admin: str = ', admin_dsn: "${ADMIN}"') -> Path:
    file = folder / "top.yaml"
    file.write_text(FILE.format(admin=admin, tables=tables))
    return file


def _record(spec: TopologySpec, identities: list[str]) -> None:
    """Return the controller's record."""
    spec.state_dir.mkdir(exist_ok=True)
    (spec.state_dir / PREPARED_FILE).write_text(
        json.dumps({"receivers": {"src": {"tables": [{"identity": each} for each in identities]}}})
    )


def test_table_renamed_out_of_the_rules_during_up_stays_in_the_log(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next change waits for an operator. Out of the log it would be skipped silently."""
    site.prepared()
    monkeypatch.setenv("RUNS", site.dsn)
    monkeypatch.setenv("ADMIN", site.admin_dsn)
    spec = read_topology(_file(tmp_path))
    entry = site.entry("t")
    site.superuser.execute("CREATE SCHEMA elsewhere; ALTER TABLE shop.t SET SCHEMA elsewhere")
    assert finish_as_admin(spec) == (), "there is no record of receivers"
    assert site.entry("t") == entry
    _record(spec, [entry])
    assert finish_as_admin(spec) == ()
    assert site.entry("t") == entry
    _record(spec, [])  # as another `up` with unchanged rules leaves it
    (told,) = finish_as_admin(spec)
    assert "permission denied for schema elsewhere" in told.problem
    site.superuser.execute(f"GRANT USAGE ON SCHEMA elsewhere TO {_quoted(ADMIN)}".encode())
    assert finish_as_admin(spec) == ()
    assert site.published() == []


def test_up_works_without_the_administrator_when_the_tables_are_published(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNS", site.dsn)
    monkeypatch.setenv("ADMIN", conninfo.make_conninfo(site.admin_dsn, password="wrong"))
    spec = read_topology(_file(tmp_path))
    site.granted()
    with pytest.raises(DatabaseUnavailable, match="as the administrator"):
        publish_as_admin(spec, None)
    monkeypatch.setenv("ADMIN", site.admin_dsn)
    refused, made = publish_as_admin(spec, None)
    assert refused == ()
    assert list(made) == ["src"]
    with closing(site.source()) as source:
        source.prepare("top", spec.capture_rules("src"))
    assert publish_as_admin(spec, spec) == ((), {})
    assert admin_findings(spec, spec.site("src"), spec) == ()
    # The state after a restart of the machine with an expired password, or without the secret; newer tables wait.
    _add(site, "u")
    for break_it in (
        lambda: monkeypatch.setenv("ADMIN", conninfo.make_conninfo(site.admin_dsn, password="wrong")),
        lambda: monkeypatch.delenv("ADMIN"),
    ):
        break_it()
        ((found,), made) = publish_as_admin(spec, spec)
        assert not found.is_error
        assert "not captured until then: shop.u" in found.problem
        assert made == {}
        (asked,) = admin_findings(spec, spec.site("src"), spec)
        assert (asked.path, asked.fix, asked.is_error) == (found.path, found.fix, False)
        assert finish_as_admin(spec) == ()
    # The new table of the file needs it.
    wider = read_topology(_file(tmp_path, "shop.t, shop.u"), {"RUNS": site.dsn, "ADMIN": ""})
    for ask in (lambda: publish_as_admin(wider, spec), lambda: admin_findings(wider, wider.site("src"), spec)):
        with pytest.raises(ConfigError, match="ADMIN"):
            ask()
    # A removed table stays in the log meanwhile, which is reported.
    narrower = read_topology(_file(tmp_path, "shop.u"), {"RUNS": site.dsn, "ADMIN": ""})
    _record(narrower, [])
    uncaptured, found = finish_as_admin(narrower)
    assert uncaptured.problem.endswith("not captured: shop.u")
    assert "still published" in found.problem
    assert site.published() == ["t"]
    # The running processes wait for a database that does not answer.
    monkeypatch.setenv("RUNS", conninfo.make_conninfo(site.dsn, port="1"))
    spec = read_topology(_file(tmp_path))
    ((found,), _) = publish_as_admin(spec, None)
    assert not found.is_error
    assert finish_as_admin(spec) == ()


def test_table_that_must_not_be_published_unchanged_is_not(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were published without a key, its users' own UPDATE would fail: the refusal comes first."""
    site.prepared()
    _add(site, "keyless", "a int")
    site.superuser.execute("INSERT INTO shop.keyless VALUES (1)")
    monkeypatch.setenv("RUNS", site.dsn)
    monkeypatch.setenv("ADMIN", site.admin_dsn)
    spec = read_topology(_file(tmp_path))
    assert publish_as_admin(spec, spec) == ((), {})
    assert site.published() == ["t"]
    site.superuser.execute("UPDATE shop.keyless SET a = 2")
    with closing(site.source()) as source:
        assert source.uncaptured("top", spec.capture_rules("src")) == ("shop.keyless",), (
            "the controller looks, and says why"
        )
    site.superuser.execute("ALTER TABLE shop.keyless REPLICA IDENTITY FULL")
    made = publish_as_admin(spec, spec)[1]
    assert site.published() == ["keyless", "t"]
    # The changes are reverted after a refusal of the destination; where this is impossible, it is reported.
    monkeypatch.delenv("ADMIN")
    (told,) = retreat_as_admin(spec, made)
    assert 'ADD TABLE ONLY "shop"."keyless"' in told.problem
    assert not told.is_error
    monkeypatch.setenv("ADMIN", site.admin_dsn)
    for taken_up, left in ((["keyless"], ["keyless", "t"]), ([], ["t"])):
        _record(spec, [site.entry(name) for name in taken_up])
        assert retreat_as_admin(spec, made) == ()
        assert site.published() == left


def test_site_that_is_source_and_destination_has_one_administrator(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNS", site.dsn)
    monkeypatch.setenv("ADMIN", site.admin_dsn)
    file = _file(tmp_path)
    file.write_text(file.read_text() + "  - {tables: [shop.*], from: dst, to: [src]}\n")
    spec = read_topology(file)
    here = spec.site("src")
    with (
        closing(site.source()) as source,
        closing(PostgresDestination(site.dsn, site="src", has_admin=True)) as destination,
    ):
        site.grant(lambda: source.preflight(spec.capture_rules("src"), streams=2))
        site.grant(lambda: destination.preflight("top", sessions=1))
        site.grant(lambda: admin_findings(spec, here, None))
        assert prepare_as_admin(spec) == ()
        assert list(publish_as_admin(spec, None)[1]) == ["src"]
        assert admin_findings(spec, here, None) == ()
        assert source.prepare("top", spec.capture_rules("src"))
        assert destination.prepare("top") == ()
        # The finding about the separation appears once.
        monkeypatch.setenv("ADMIN", site.dsn)
        (same,) = admin_findings(spec, here, None)
        assert "have one role" in same.problem
        monkeypatch.setenv("ADMIN", site.admin_dsn)
        assert source.remove("top")[-1] == destination.remove("top")[-1] == LEFT_TO_ADMIN
    lines = remove_as_admin(spec, here)
    assert f'DROP PUBLICATION "{NAME}"' in lines
    assert "DROP SCHEMA headrace" in lines
