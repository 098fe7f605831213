"""A connection pooler between Headrace and a server: `check` names a pooler that shares a session's process with
others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from headrace.databases.postgres.connection import connect
from headrace.databases.postgres.poolers import pooler_findings
from headrace.deployment.inspection import check_topology
from headrace.faults.proxy import Proxy
from tests.support.databases.pooler import Pooler

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

FILE = """
topology: pooled
state_dir: state
sites:
  a: {database: {kind: postgres, dsn: "${TEST_A_DSN}"}}
  b: {database: {kind: postgres, dsn: "${TEST_B_DSN}"}}
replicate:
  - {schemas: [public], from: a, to: [b]}
"""


def _said(dsn: str) -> list[str]:
    with connect(dsn, application_name="test") as connection:
        return [finding.problem for finding in pooler_findings(connection, dsn, "sites.a")]


@contextmanager
def _through_proxy(dsn: str) -> Iterator[str]:
    given = conninfo.conninfo_to_dict(dsn)
    with Proxy(f"127.0.0.1:{given['port']}") as proxy:
        host, _, port = proxy.endpoint.rpartition(":")
        yield conninfo.make_conninfo(dsn, host=host, port=port)


@pytest.mark.parametrize("is_round_robin", [False, True], ids=["the last one first", "the oldest one first"])
@pytest.mark.parametrize("idle", [0, 1, 4])
def test_pooler_that_lends_processes_for_transactions_is_named(
    source_database: str, idle: int, is_round_robin: bool
) -> None:
    with Pooler(source_database, mode="transaction", is_round_robin=is_round_robin) as pooler, ExitStack() as opened:
        with ExitStack() as others:  # their processes are idle then
            for _ in range(idle):
                others.enter_context(psycopg.connect(pooler.dsn)).execute("SELECT")
        assert pooler.processes == idle
        # Behind a proxy it is the same pooler.
        for dsn in (pooler.dsn, opened.enter_context(_through_proxy(pooler.dsn))):
            (problem,) = _said(dsn)
            assert "is a connection pooler that lends a process of the server for one transaction" in problem
            assert f":{conninfo.conninfo_to_dict(dsn)['port']} " in problem
        assert pooler.shared


def test_pooler_whose_processes_others_use_meanwhile_is_named(source_database: str) -> None:
    ended = threading.Event()

    def work(dsn: str) -> None:
        # not prepared: the next process of the pooler would not know the statement, or another one's of that name
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
            while not ended.is_set():
                connection.execute("SELECT pg_sleep(0.001)")

    with Pooler(source_database, mode="transaction", size=3) as pooler:
        others = [threading.Thread(target=work, args=(pooler.dsn,)) for _ in range(4)]
        for each in others:
            each.start()
        try:
            assert len(_said(pooler.dsn)) == 1
        finally:
            ended.set()
            for each in others:
                each.join()


def test_pooler_that_keeps_a_process_for_a_session_is_not_named(source_database: str) -> None:
    with Pooler(source_database, mode="session") as pooler, _through_proxy(source_database) as tunnel:
        assert _said(pooler.dsn) == _said(tunnel) == _said(source_database) == []
        assert pooler.processes > 1
        assert not pooler.shared


def test_full_pool_of_sessions_blocks_the_check_for_a_bounded_time(
    source_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.databases.postgres.poolers._ANSWER_S", 0.5)
    with Pooler(source_database, mode="session", size=2) as pooler:
        assert _said(pooler.dsn) == []
        assert pooler.processes == 2


@pytest.mark.parametrize("site", ["a", "b"])
def test_check_names_the_pooler_of_each_database_and_a_direct_dsn_ends_it(
    source_database: str, destination_database: str, site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsns = {"a": source_database, "b": destination_database}
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as user:
            user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    file = tmp_path / "pooled.yaml"
    file.write_text(FILE)

    def said() -> list[tuple[str, bool, str]]:
        found = check_topology(file, ask_databases=True).findings
        return [(each.path, each.is_error, each.fix) for each in found if "pooler" in each.problem]

    for name, dsn in dsns.items():
        monkeypatch.setenv(f"TEST_{name.upper()}_DSN", dsn)
    with Pooler(dsns[site], mode="transaction") as pooler:
        monkeypatch.setenv(f"TEST_{site.upper()}_DSN", pooler.dsn)
        ((path, is_error, fix),) = said()
        assert (path, is_error) == (f"sites.{site}", True)
        assert fix.startswith("let the connection string lead to the server itself")
    monkeypatch.setenv(f"TEST_{site.upper()}_DSN", dsns[site])
    assert said() == []
    with Pooler(dsns[site], mode="session") as pooler:
        monkeypatch.setenv(f"TEST_{site.upper()}_DSN", pooler.dsn)
        assert said() == []


@pytest.mark.parametrize("site", ["a", "b"])
def test_check_names_a_pooler_in_statement_mode_and_asks_nothing_else(
    source_database: str, destination_database: str, site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a pooler ends each session that begins a transaction: every other question would fail."""
    dsns = {"a": source_database, "b": destination_database}
    file = tmp_path / "pooled.yaml"
    file.write_text(FILE)
    for name, dsn in dsns.items():
        monkeypatch.setenv(f"TEST_{name.upper()}_DSN", dsn)
    with Pooler(dsns[site], mode="statement") as pooler:
        monkeypatch.setenv(f"TEST_{site.upper()}_DSN", pooler.dsn)
        found = [each for each in check_topology(file, ask_databases=True).findings if each.path == f"sites.{site}"]
    assert any("in statement mode" in each.problem and each.is_error for each in found), found


def test_lost_session_state_is_real(source_database: str) -> None:
    """As the finding says of such a pooler: another session has the first one's settings and locks."""
    with (
        Pooler(source_database, mode="transaction") as pooler,
        psycopg.connect(pooler.dsn, autocommit=True) as one,
        psycopg.connect(pooler.dsn) as other,
    ):
        one.execute("SET search_path = ''")
        one.execute("SELECT pg_advisory_lock(1)")
        assert other.execute("SHOW search_path").fetchone() == ('""',)
        assert other.execute("SELECT pg_try_advisory_lock(1)").fetchone() == (True,)
        assert one.execute("SHOW search_path").fetchone() != ('""',)
