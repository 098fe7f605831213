"""Advisory locks of the schema headrace that another role holds: the error names its session, and every wait is
bounded.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.advisory_locks import wait_transaction_lock
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.fencing import apply_lock_key, raise_epoch, take_apply_lock
from headrace.databases.postgres.destination.records import removal, schema
from headrace.databases.postgres.destination.records.removal import remove_rows
from headrace.databases.postgres.destination.records.schema import CLAIM_LOCK, PREPARE_LOCK, prepare_schema
from headrace.databases.postgres.destination.server_session.session import _SETTINGS
from tests.support.clusters.system import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def _removed(connection: psycopg.Connection[object]) -> object:
    return remove_rows(connection, "topo")


@pytest.mark.parametrize("call", [prepare_schema, _removed])
def test_lock_that_another_role_holds_is_named_with_its_session(
    source_database: str, monkeypatch: pytest.MonkeyPatch, call: Callable[[psycopg.Connection[object]], object]
) -> None:
    with (
        psycopg.connect(source_database, autocommit=True) as connection,
        psycopg.connect(source_database, autocommit=True, application_name="a report") as user,
    ):
        prepare_schema(connection)
        for module in (schema, removal):
            monkeypatch.setattr(module, "PREPARE_LOCK_TIMEOUT_S", 0.3)
        user.execute("SELECT pg_advisory_lock(%s)", (PREPARE_LOCK,))
        pid = user.info.backend_pid
        with pytest.raises(DatabaseUnavailable, match=f"session {pid} of role .*'a report' holds the lock for") as held:
            call(connection)
        assert f"SELECT pg_terminate_backend({pid})" in held.value.hint
        user.execute("SELECT pg_advisory_unlock_all()")
        call(connection)


def test_shared_lock_blocks_an_exclusive_request(source_database: str) -> None:
    with (
        psycopg.connect(source_database) as connection,
        psycopg.connect(source_database, autocommit=True) as user,
    ):
        user.execute("SELECT pg_advisory_lock_shared(%s)", (CLAIM_LOCK,))
        connection.execute("SELECT")
        with pytest.raises(DatabaseUnavailable, match=f"session {user.info.backend_pid} .*the lock for copies"):
            wait_transaction_lock(connection, CLAIM_LOCK, what="copies of tables", timeout_s=0.2)


def test_second_session_waits_for_the_first_and_sees_its_commit(source_database: str) -> None:
    with (
        psycopg.connect(source_database) as first,
        psycopg.connect(source_database) as second,
        ThreadPoolExecutor(max_workers=1) as pool,
    ):
        first.execute("CREATE TABLE seen (id int)")
        second.execute("SET lock_timeout = 1234")
        wait_transaction_lock(first, CLAIM_LOCK, what="copies of tables", timeout_s=60)
        waiting = pool.submit(wait_transaction_lock, second, CLAIM_LOCK, what="copies of tables", timeout_s=60)
        wait_until("it waits", lambda: second.info.transaction_status != psycopg.pq.TransactionStatus.IDLE)
        assert not waiting.done()
        first.commit()
        waiting.result()
        assert second.execute("SELECT count(*) FROM seen").fetchone() == (0,)
        assert second.execute("SHOW lock_timeout").fetchone() == ("1234ms",)


def test_waiting_session_is_not_overtaken_by_later_ones(source_database: str) -> None:
    """A session that just released the lock does not overtake waiting ones."""
    turns: list[str] = []

    def take(name: str, times: int) -> None:
        with psycopg.connect(source_database) as connection:
            for _ in range(times):
                connection.execute("SELECT")
                wait_transaction_lock(connection, CLAIM_LOCK, what="copies of tables", timeout_s=60)
                turns.append(name)
                connection.commit()

    with psycopg.connect(source_database) as first, ThreadPoolExecutor(max_workers=2) as pool:
        first.execute("SELECT pg_advisory_xact_lock(%s)", (CLAIM_LOCK,))
        waiting = [pool.submit(take, "again and again", 50), pool.submit(take, "once", 1)]
        wait_until("both wait", lambda: _waiting(source_database) == 2)
        first.commit()
        for each in waiting:
            each.result()
    assert turns.index("once") <= 1


def _waiting(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as looking:
        found = looking.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())"
        ).fetchone()
    assert found is not None
    return int(found[0])


def test_lock_of_a_prepared_transaction_is_named_as_such(postgres_folder: Path) -> None:
    server = EmbeddedServer(postgres_folder / "prepared", name="prepared")
    try:
        server.start()
        with psycopg.connect(server.dsn(), autocommit=True) as user:
            user.execute("ALTER SYSTEM SET max_prepared_transactions = 2")
        server.stop()
        server.start()
        with psycopg.connect(server.dsn(), autocommit=True) as user, psycopg.connect(server.dsn()) as connection:
            user.execute("BEGIN")
            user.execute("SELECT pg_advisory_xact_lock(%s)", (CLAIM_LOCK,))
            user.execute("PREPARE TRANSACTION 'x'")
            connection.execute("SELECT")
            with pytest.raises(DatabaseUnavailable, match="a prepared transaction holds the lock for copies") as held:
                wait_transaction_lock(connection, CLAIM_LOCK, what="copies of tables", timeout_s=0.2)
            assert "ROLLBACK PREPARED" in held.value.hint
            connection.rollback()
            user.execute("ROLLBACK PREPARED 'x'")
            connection.execute("SELECT")
            wait_transaction_lock(connection, CLAIM_LOCK, what="copies of tables", timeout_s=60)
    finally:
        server.destroy()


def test_two_ups_at_once_make_the_schema_once(source_database: str) -> None:
    def up() -> tuple[str, ...]:
        with psycopg.connect(source_database, autocommit=True) as connection:
            return prepare_schema(connection)

    with ThreadPoolExecutor(max_workers=4) as pool:
        made = [each.result() for each in [pool.submit(up) for _ in range(4)]]
    assert sorted(bool(statements) for statements in made) == [False, False, False, True]


@pytest.fixture
def limited(source_database: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A session that may use the schema and end only the sessions of its own role."""
    role = f"limited_{secrets.token_hex(4)}"
    with psycopg.connect(source_database, autocommit=True) as connection:
        prepare_schema(connection)
        connection.execute(
            f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA headrace TO {role};"
            f" GRANT ALL ON ALL TABLES IN SCHEMA headrace TO {role}"
        )
        connection.execute(f"SET ROLE {role}")
        yield connection
        connection.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")


def test_apply_process_names_the_holder_of_its_lock_that_it_cannot_end(
    source_database: str, limited: psycopg.Connection[tuple[object, ...]]
) -> None:
    epoch = raise_epoch(limited, "topo", "apply_1")
    with psycopg.connect(source_database, autocommit=True) as user:
        user.execute("SELECT pg_advisory_lock(%s)", (apply_lock_key("topo", "apply_1"),))
        with pytest.raises(DatabaseUnavailable, match=f"session {user.info.backend_pid} .*the lock for apply process"):
            take_apply_lock(limited, "topo", "apply_1", epoch)
        user.execute("SELECT pg_advisory_unlock_all()")
        assert take_apply_lock(limited, "topo", "apply_1", epoch) == apply_lock_key("topo", "apply_1")


def test_apply_server_names_the_holder_of_its_apply_processs_lock(
    source_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = PostgresDestination(source_database, site="b")
    with psycopg.connect(source_database, autocommit=True) as user, closing(destination):
        prepare_schema(user)
        epoch = raise_epoch(user, "topo", "apply_1")
        monkeypatch.setitem(_SETTINGS, "lock_timeout", "200")
        user.execute("SELECT pg_advisory_lock(%s)", (apply_lock_key("topo", "apply_1"),))
        with pytest.raises(DatabaseUnavailable, match=f"session {user.info.backend_pid} .*the lock for apply process"):
            destination.open_session("topo", "apply_1", server=0, epoch=epoch, tag=b"")
