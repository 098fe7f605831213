"""A running topology whose source has an administrator. The role that captures may only read the log and the tables."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from actors.cluster.local import LocalCluster
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.deployment.deployment import Deployment
from headrace.deployment.inspection import check_topology
from tests.support.clusters.system import System, wait_until
from tests.support.databases.statements import digest, execute
from tests.support.wire.secrets import places_with
from topology.file.reading import read_topology

pytestmark = [pytest.mark.unit("drivers"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

EARLIER, CAPTURES, ADMIN, OWNER = (
    "headrace_up_earlier",
    "headrace_up_captures",
    "headrace_up_admin",
    "headrace_up_owner",
)
PASSWORD = f"planted-{secrets.token_hex(8)}"  # the administrator's password; searched for at the end
FILE = """
topology: test_admin
state_dir: state
sites:
  src: {{database: {{kind: postgres, dsn: "${{TEST_SRC_DSN}}"{admin}}}}}
  dst: {{database: {{kind: postgres, dsn: "${{TEST_DST_DSN}}"}}, executors: 1}}
replicate:
  - {{tables: [{tables}], from: src, to: [dst]}}
"""
ADMINISTERED = ', admin_dsn: "${TEST_SRC_ADMIN_DSN}"'
FORBIDDEN = (
    "ALTER PUBLICATION {0} DROP TABLE shop.t",
    "ALTER PUBLICATION {0} ADD TABLE shop.t",
    "DROP PUBLICATION {0}",
    "CREATE PUBLICATION mine",
    "ALTER TABLE shop.t ADD COLUMN mine int",
    "INSERT INTO shop.t VALUES (-1)",
    "UPDATE shop.t SET v = 'x'",
    "DELETE FROM shop.t",
    "TRUNCATE shop.t",
    "DROP TABLE shop.t",
    "CREATE SCHEMA mine",
)


class Died(BaseException):
    """The command's process died."""


class Pair:
    """A source, a destination, and the topology file between them."""

    def __init__(
        self, source: str, destination: str, folder: Path, address: str, environment: pytest.MonkeyPatch
    ) -> None:
        self.source, self.destination, self.environment = source, destination, environment
        self.file, self._address = folder / "top.yaml", address
        self.database = conninfo.conninfo_to_dict(source)["dbname"]
        self.at(source, f"CREATE SCHEMA shop AUTHORIZATION {OWNER}; CREATE SCHEMA other AUTHORIZATION {OWNER}")
        self.at(destination, "CREATE SCHEMA shop; CREATE SCHEMA other")
        environment.setenv("TEST_DST_DSN", destination)

    def at(self, dsn: str, statement: str) -> list[tuple[Any, ...]]:
        return execute(dsn, statement)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as a user of the source."""
        return self.at(self.source, statement)

    def make(self, table: str, *, there: bool = True) -> None:
        """Create a table with rows that are in no log stream."""
        definition = f"CREATE TABLE {table} (id int PRIMARY KEY, v text)"
        self.run(
            f"{definition}; ALTER TABLE {table} OWNER TO {OWNER}; INSERT INTO {table} SELECT n, 'copied' FROM"
            " generate_series(1, 50) n"
        )
        self.run(f"GRANT SELECT ON {table} TO {CAPTURES}")
        if there:
            self.at(self.destination, definition)

    def write(self, tables: str, *, admin: str = ADMINISTERED) -> None:
        self.file.write_text(FILE.format(tables=tables, admin=admin))

    def deployment(self) -> Deployment:
        return Deployment(read_topology(self.file), self._address)

    def up(self, state: str = "RUNNING") -> list[str]:
        """Run `up` and return its further findings."""
        overview = self.deployment().up(timeout_s=300.0)
        assert overview.state == state, overview.findings
        return [finding.problem for finding in overview.findings]

    def system(self) -> System:
        return System(self.deployment(), {}, self.file.parent)

    def rows(self, table: str) -> tuple[Any, Any]:
        return digest(self.source, table), digest(self.destination, table)

    def same(self, *tables: str) -> None:
        self.system().wait_caught_up()
        for table in tables:
            there, here = self.rows(table)
            assert there == here, table

    def goes_on(self, table: str) -> None:
        """Wait for one table alone: others may not be replicated, or not yet."""

        def is_level() -> bool:
            there, here = self.rows(table)
            return bool(there == here)

        wait_until(f"{table} is level", is_level)

    def published(self) -> list[str]:
        return [
            f"{schema}.{name}"
            for schema, name in self.run("SELECT schemaname, tablename FROM pg_publication_tables ORDER BY 1, 2")
        ]

    def copied(self) -> dict[str, int]:
        """Map each table to the SCN of its copy; the SCN changes when the table is copied again."""
        (apply,) = self.deployment().spec.applies
        return {
            f"{each['owner']}.{each['name']}": each["instantiation_scn"]
            for each in self.system().status(f"apply:{apply.name}")["instantiation"]
            if each["state"] in {"DONE", "KEPT"}
        }

    def change(self, table: str, value: str) -> None:
        self.run(
            f"INSERT INTO {table} SELECT coalesce(max(id), 0) + 1, '{value}' FROM {table}; UPDATE {table} SET v ="
            f" '{value}' WHERE id % 7 = 0; DELETE FROM {table} WHERE id % 11 = 0"
        )

    def grant_what_is_printed(self) -> list[str]:
        given: list[str] = []
        for _ in range(5):
            errors = [finding for finding in check_topology(self.file, ask_databases=True).findings if finding.is_error]
            before = tuple(given)
            for finding in errors:
                assert finding.path.startswith("sites.src"), finding
                assert finding.fix not in before, f"not enough: {finding}"
                if finding.fix not in given:  # both tables have one owner
                    self.run(finding.fix)
                    given.append(finding.fix)
            if not errors:
                return given
        raise AssertionError(f"still refused after {given}")


@pytest.fixture
def pair(
    ray_address: str,
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Pair]:
    source, destination = fresh_database(pg_source), fresh_database(pg_destination)
    roles = (EARLIER, CAPTURES, ADMIN, OWNER)
    with psycopg.connect(source, autocommit=True) as superuser:
        for role in roles:
            superuser.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    monkeypatch.setenv("TEST_SRC_ADMIN_DSN", conninfo.make_conninfo(source, user=ADMIN, password=PASSWORD))
    made = Pair(source, destination, tmp_path, ray_address, monkeypatch)
    yield made
    problems = made.deployment().down(purge=True)
    with psycopg.connect(source, autocommit=True) as superuser:
        superuser.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = ANY (%s)", (list(roles),)
        )
        for role in roles:
            superuser.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
    assert problems == []


def _name(pair: Pair) -> str:
    ((name,),) = pair.run("SELECT pubname FROM pg_publication")
    return str(name)


def test_running_topology_gets_an_administrator_and_captures_read_only(pair: Pair, ray_cluster: LocalCluster) -> None:
    # The role that runs today owns the publication and may act as the tables' owner.
    pair.make("shop.t")
    pair.environment.setenv("TEST_SRC_DSN", conninfo.make_conninfo(pair.source, user=EARLIER, password=PASSWORD))
    pair.write("shop.*", admin="")
    pair.grant_what_is_printed()
    pair.up()
    pair.same("shop.t")
    before = pair.copied()

    # The environment names another role and an administrator; the rest of the file stays the same.
    pair.environment.setenv("TEST_SRC_DSN", conninfo.make_conninfo(pair.source, user=CAPTURES, password="other"))
    pair.run(f"ALTER ROLE {CAPTURES} PASSWORD 'other'; REVOKE SELECT ON shop.t FROM {CAPTURES}")
    pair.write("shop.*")
    name = _name(pair)
    with pytest.raises(Exception, match="belongs to"):
        pair.up()
    assert pair.grant_what_is_printed() == [
        f'ALTER ROLE "{CAPTURES}" REPLICATION;',
        f'GRANT USAGE ON SCHEMA "shop" TO "{CAPTURES}"; GRANT SELECT ON "shop"."t" TO "{CAPTURES}";',
        f'ALTER PUBLICATION "{name}" OWNER TO "{ADMIN}";',
        f'GRANT "{OWNER}" TO "{ADMIN}";',
    ]
    assert pair.up() == []
    pair.run("TRUNCATE shop.t; INSERT INTO shop.t SELECT n, 'later' FROM generate_series(1, 100) n")
    pair.change("shop.t", "changed")
    pair.same("shop.t")
    assert pair.copied() == before, "nothing was copied again"
    assert all(answer["equal"] for answer in pair.system().verify())

    # Add a table.
    pair.make("shop.u")
    assert pair.up() == []
    assert pair.published() == ["shop.t", "shop.u"]
    pair.change("shop.u", "changed")
    pair.same("shop.t", "shop.u")
    assert pair.copied()["shop.t"] == before["shop.t"]

    captures = conninfo.make_conninfo(pair.source, user=CAPTURES, password="other")
    for statement in FORBIDDEN:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            pair.at(captures, statement.format(name))
    facts = ray_cluster.facts()
    assert facts is not None
    assert PASSWORD not in json.dumps(pair.system().wait_overview())
    assert places_with(PASSWORD, [pair.file.parent, ray_cluster.state_dir / "logs", Path(facts.temporary)]) == []
    lines: list[str] = []
    assert pair.deployment().down(purge=True, progress=lines.append) == []
    assert f'src: DROP PUBLICATION "{name}"' in lines
    assert pair.run(
        "SELECT (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE"
        " 'headrace%admin%')"
    ) == [(0, 0)]


@pytest.mark.soak
def test_tables_leave_and_return_and_running_needs_no_administrator(pair: Pair) -> None:
    pair.environment.setenv("TEST_SRC_DSN", conninfo.make_conninfo(pair.source, user=CAPTURES, password=PASSWORD))
    pair.run(f"GRANT USAGE ON SCHEMA shop TO {CAPTURES}")
    pair.make("shop.t")
    pair.make("shop.u")
    pair.write("shop.*")
    pair.grant_what_is_printed()
    pair.up()
    pair.same("shop.t", "shop.u")
    copied = pair.copied()

    pair.write("shop.t")
    assert pair.up() == []
    assert pair.published() == ["shop.t"], "the administrator takes it out when everything is settled"
    pair.change("shop.u", "unseen")
    pair.change("shop.t", "seen")
    pair.same("shop.t")
    pair.write("shop.t, shop.u")
    assert pair.up() == []
    pair.change("shop.u", "seen again")
    pair.same("shop.t", "shop.u")
    assert pair.copied()["shop.u"] > copied["shop.u"], "it is copied again"

    # Restart the machine with an expired administrator's password, then without the secret.
    assert pair.deployment().down() == []
    pair.environment.setenv("TEST_SRC_ADMIN_DSN", conninfo.make_conninfo(pair.source, user=ADMIN, password="expired"))
    pair.make("shop.w")
    (told,) = pair.up()
    assert "password authentication failed" in told
    pair.environment.setenv("TEST_SRC_ADMIN_DSN", conninfo.make_conninfo(pair.source, user=ADMIN, password="expired"))
    pair.environment.delenv("TEST_SRC_ADMIN_DSN")
    (told,) = pair.up()
    assert "TEST_SRC_ADMIN_DSN" in told
    pair.change("shop.u", "without")
    pair.same("shop.t", "shop.u")
    pair.environment.setenv("TEST_SRC_ADMIN_DSN", conninfo.make_conninfo(pair.source, user=ADMIN, password=PASSWORD))


@pytest.mark.soak
def test_failed_up_after_publishing_blocks_nothing_and_loses_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publication names tables unknown to the running processes: tables of the running rules, then tables of the
    next file.
    """
    pair.environment.setenv("TEST_SRC_DSN", conninfo.make_conninfo(pair.source, user=CAPTURES, password=PASSWORD))
    pair.run(f"GRANT USAGE ON SCHEMA shop, other TO {CAPTURES}")
    pair.make("shop.t")
    pair.write("shop.*")
    pair.grant_what_is_printed()
    pair.up()
    pair.same("shop.t")
    before = pair.copied()
    (apply,) = (f"apply:{each.name}" for each in pair.deployment().spec.applies)

    # The command dies before it has sent anything to the controller.
    pair.make("shop.u")
    pair.make("other.x")
    pair.write("shop.*, other.x")

    def dies(*_: object, **__: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Deployment, "_ensure_controller", dies)
        with pytest.raises(Died):
            pair.deployment().up()
    assert pair.published() == ["other.x", "shop.t", "shop.u"]
    pair.write("shop.*")  # the file of the running topology
    for table in ("shop.u", "other.x", "shop.t"):
        pair.change(table, "ahead")
    pair.goes_on("shop.t")
    # A driver that begins now knows the tables of the topology, not those of the publication.
    system = pair.system()
    old = system.kill(apply)
    system.wait_restarted(apply, old)
    for table in ("shop.u", "other.x", "shop.t"):
        pair.change(table, "still ahead")
    pair.goes_on("shop.t")
    assert pair.copied() == before
    assert [pair.rows(table)[1][0] for table in ("shop.u", "other.x")] == [0, 0]
    assert wait_until("status names it", lambda: pair.system().status("site:src")["uncaptured_tables"]) == ["shop.u"]
    # The next `up` does all of it, and every row arrives.
    pair.write("shop.*, other.x")
    assert pair.up() == []
    for table in ("shop.u", "other.x", "shop.t"):
        pair.change(table, "known")
    pair.same("shop.t", "shop.u", "other.x")
    assert pair.copied()["shop.t"] == before["shop.t"]

    # The destination refuses: nothing is blocked, and the work is rolled back.
    pair.make("other.y", there=False)
    pair.write("shop.*, other.*")
    problems = pair.up("REFUSED")
    assert not any("before the refusal" in problem for problem in problems)
    assert pair.published() == ["other.x", "shop.t", "shop.u"]
    pair.write("shop.*, other.x")
    pair.change("other.y", "refused")
    pair.change("shop.t", "refused")
    pair.same("shop.t")
    assert pair.up() == []
    assert pair.published() == ["other.x", "shop.t", "shop.u"]
    pair.same("shop.t", "shop.u", "other.x")

    # A table that is renamed out of the rules blocks until `up` takes it out of the topology.
    pair.run("ALTER TABLE shop.u SET SCHEMA other")
    pair.change("other.u", "left")
    pair.change("shop.t", "behind it")
    wait_until(
        "the capture process waits",
        lambda: any(
            pair.system().status(f"capture:{each.name}")["state"] == "PAUSED: A TABLE LEFT THE RULES"
            for each in pair.deployment().spec.captures
        ),
    )
    pair.up()
    pair.same("shop.t", "other.x")
    assert pair.published() == ["other.x", "shop.t"]
