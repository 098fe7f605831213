"""A user's own servers: 15 to 18, roles without superuser rights, every right granted as the preflight prints it."""

from __future__ import annotations

import io
import json
import os
import secrets
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo
from rich.console import Console

from actors.cluster.local import LocalCluster
from headrace.console.status_view import render
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.deployment.deployment import Deployment
from headrace.deployment.inspection import check_topology
from headrace.status.plain import overview_of
from tests.support.clusters.system import System
from tests.support.databases.statements import digest
from tests.support.wire.secrets import places_with
from topology.file.reading import read_topology

pytestmark = [pytest.mark.unit("drivers", order=9), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

ROLE, ADMIN = "headrace_plain_role", "headrace_plain_admin"
PASSWORD = f"planted-{secrets.token_hex(8)}"  # searched for at the end
OWN = """
topology: test_own
state_dir: state
sites:
  oldest: {database: {kind: postgres, dsn: "${TEST_OLDEST_DSN}"}}
  old: {database: {kind: postgres, dsn: "${TEST_OLD_DSN}"}}
  new: {database: {kind: postgres, dsn: "${TEST_NEW_DSN}", admin_dsn: "${TEST_NEW_ADMIN_DSN}"}}
replicate:
  - {tables: [public.t], from: oldest, to: [old]}
  - {tables: [public.u], from: old, to: [new]}
"""


@pytest.fixture
def plain_role() -> Iterator[Callable[..., str]]:
    """Return a function that makes a role without rights on any server and returns its DSN."""
    made: list[tuple[str, str]] = []

    def make(dsn: str, role: str = ROLE) -> str:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(f"DROP ROLE IF EXISTS {role}")
            admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
            admin.execute(f"REVOKE ALL ON DATABASE {admin.info.dbname} FROM PUBLIC")
            admin.execute(f"GRANT CONNECT ON DATABASE {admin.info.dbname} TO {role}")
        made.append((dsn, role))
        return conninfo.make_conninfo(dsn, user=role, password=PASSWORD)

    yield make
    for dsn, role in reversed(made):
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", (role,))
            admin.execute(f"REASSIGN OWNED BY {role} TO postgres")
            admin.execute(f"DROP OWNED BY {role}")
            admin.execute(f"REVOKE SET ON PARAMETER session_replication_role FROM {role}")
            for name in ("create(text)", "session_setup(text)", "xact_setup(pg_lsn, timestamptz)", "session_reset()"):
                admin.execute(f"REVOKE EXECUTE ON FUNCTION pg_catalog.pg_replication_origin_{name} FROM {role}")
            admin.execute(f"DROP ROLE {role}")


@pytest.mark.soak  # in `make test`: test_source_admin_running on Ray, and versions 15 to 18 on servers alone
def test_rights_that_the_preflight_prints_suffice_from_15_to_18(
    ray_cluster: LocalCluster,
    ray_address: str,
    pg_15: EmbeddedServer,
    pg_16: EmbeddedServer,
    pg_destination: EmbeddedServer,
    tmp_path: Path,
    fresh_database: Callable[[EmbeddedServer], str],
    plain_role: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
):
    """From 15 to 16, and another table from 16 to 18, whose schema an administrator makes."""
    servers = {"oldest": pg_15, "old": pg_16, "new": pg_destination}
    admins = {site: fresh_database(server) for site, server in servers.items()}
    ways = {"t": ("oldest", "old"), "u": ("old", "new")}
    for table, sites in ways.items():
        for site in sites:
            columns = "(id bigint PRIMARY KEY, v numeric, at timestamptz DEFAULT now(), tags text[])"
            _execute(admins[site], f"CREATE TABLE {table} {columns}")
        _execute(
            admins[sites[0]],
            f"INSERT INTO {table} SELECT n, n / 7.0, now(), ARRAY['a', NULL] FROM generate_series(1, 1000) n",
        )
    for site in servers:
        monkeypatch.setenv(f"TEST_{site.upper()}_DSN", plain_role(admins[site]))
    # `new` has an administrator: the role that applies there has fewer rights.
    monkeypatch.setenv("TEST_NEW_ADMIN_DSN", plain_role(admins["new"], ADMIN))
    file = tmp_path / "own.yaml"
    file.write_text(textwrap.dedent(OWN))

    given = _grant_what_is_printed(file, admins)
    assert {site for site, _ in given} == set(servers)
    assert [fix for site, fix in given if site == "new" and "CREATE ON DATABASE" in fix] == [
        f'GRANT CREATE ON DATABASE "{_execute(admins["new"], "SELECT current_database()")[0][0]}" TO "{ADMIN}";'
    ]

    deployment = Deployment(read_topology(file), ray_address)
    try:
        assert deployment.up().state == "RUNNING"
        system = System(deployment, {}, tmp_path)
        for table, (source, _) in ways.items():
            _execute(
                admins[source],
                f"UPDATE {table} SET v = 'NaN' WHERE id % 3 = 0",
                f"DELETE FROM {table} WHERE id % 5 = 0",
                f"INSERT INTO {table} VALUES (-1, NULL, '-infinity', '{{}}')",
            )
        system.wait_caught_up()
        for table, sites in ways.items():
            there, here = (digest(admins[site], table) for site in sites)
            assert there == here
            assert there[0] == 801
        assert all(answer["equal"] for answer in system.verify())
        _assert_nowhere(PASSWORD, system, ray_cluster)
        for statement in (
            "CREATE TABLE headrace.mine (id int)",
            "DROP TABLE headrace.apply_progress",
            "DROP SCHEMA headrace CASCADE",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                _execute(os.environ["TEST_NEW_DSN"], statement)
    finally:
        assert deployment.down() == []
        # No process runs any more that could do it: this process queries the databases.
        told: list[str] = []
        assert deployment.down(purge=True, progress=told.append) == []
    for site in ("oldest", "old"):
        assert _execute(
            admins[site], "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'headrace%own%'"
        ) == [(0,)]
        assert _execute(admins[site], "SELECT count(*) FROM pg_publication") == [(0,)]
    for site in ("old", "new"):
        assert _execute(admins[site], "SELECT to_regnamespace('headrace') IS NULL") == [(True,)]
    # Dropping origins needs more than the required rights: the statement is printed, and works.
    drops = [line.partition("as a superuser: ")[2] for line in told if "as a superuser: " in line]
    assert drops
    for drop in drops:
        _execute(admins["new" if "_at_new/" in drop else "old"], drop)
    for site in ("old", "new"):
        assert _execute(
            admins[site], "SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'headrace:test_own/%'"
        ) == [(0,)]


def _assert_nowhere(secret: str, system: System, cluster: LocalCluster) -> None:
    """Check that the secret is in no output, in no file of the topology or of Ray, and in no process list.

    The search is verified where the secret is known to be.
    """
    overview = system.wait_overview()
    console = Console(record=True, file=io.StringIO(), width=200)
    console.print(render(overview_of(overview), is_verbose=True))
    assert secret not in json.dumps(overview) + console.export_text()
    facts = cluster.facts()
    assert facts is not None
    folders = [system.spec.state_dir, cluster.state_dir / "logs", Path(facts.temporary)]
    assert places_with(secret, folders) == []
    planted = system.folder / "planted"
    planted.write_text(f"password={secret}")
    assert places_with(secret, [system.folder]) == [str(planted)]


def _execute(dsn: str, *statements: str) -> list[tuple[object, ...]]:
    """Run statements as the administrator; return the last one's rows."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        for statement in statements:
            cursor = admin.execute(statement)
        return cursor.fetchall() if cursor.description else []


def _grant_what_is_printed(file: Path, admins: dict[str, str]) -> set[tuple[str, str]]:
    """Run every fix as the administrator of the site it names, until no finding is left."""
    given: set[tuple[str, str]] = set()
    for _ in range(6):
        errors = [finding for finding in check_topology(file, ask_databases=True).findings if finding.is_error]
        if not errors:
            return given
        before = set(given)
        for finding in errors:
            site = finding.path.split()[0].removeprefix("sites.")
            assert (site, finding.fix) not in before, f"not enough: {finding}"
            with psycopg.connect(admins[site], autocommit=True) as admin:
                admin.execute(finding.fix)
            given.add((site, finding.fix))
    raise AssertionError(f"still refused after {len(given)} statements")
