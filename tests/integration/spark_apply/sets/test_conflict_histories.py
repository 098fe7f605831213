"""Random histories with conflicts on PostgreSQL: a real server, row by row and in groups, leaves the rows that the
memory database leaves row by row.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from headrace.databases.connectors import value_types
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.databases.postgres.destination.database import PostgresDestination
from tests.support.histories.conflict_histories import SITE, History, by_engine, described, one_by_one, random_history
from tests.support.histories.conflicts import COLUMNS, Shown, raw, shown
from tests.support.session.seeds import scaled, seeds

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

HISTORIES = scaled(6, 200)
FOUND = (
    37223000,  # a negative number decides
    3885635753,  # an INSERT meets two rows; it loses against one, and NULL in the other one decides nothing
)
_STATE = (
    "apply_process",
    "apply_progress",
    "apply_epoch",
    "apply_session",
    "apply_error",
    "apply_error_part",
    "apply_error_key",
    "conflict_history",
)


class _Server:
    """A database with table `c`, which is recreated for each history.

    Args:
        dsn: its connection string.
    """

    def __init__(self, dsn: str) -> None:
        self.admin = psycopg.connect(dsn, autocommit=True)
        self.destination = PostgresDestination(dsn, site=SITE)
        self.destination.prepare("t")

    def create(self, history: History) -> None:
        self.admin.execute(f"TRUNCATE {', '.join(f'headrace.{name}' for name in _STATE)}".encode())
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
        unique = ", UNIQUE (u)" if history.is_unique else ""
        self.admin.execute(f"DROP TABLE IF EXISTS c; CREATE TABLE c ({columns}, PRIMARY KEY (id){unique})".encode())
        for row in history.here:
            self.admin.execute(b"INSERT INTO c VALUES (%s, %s, %s, %s, %s, %s)", row)

    def rows(self) -> list[Shown]:
        return [tuple(row) for row in self.admin.execute("SELECT * FROM c ORDER BY id")]

    def close(self) -> None:
        self.destination.close()
        self.admin.close()


@pytest.mark.seeded
def test_groups_on_a_server_leave_the_rows_of_single_transactions(
    pg_destination: EmbeddedServer, prepared_database: Callable[[EmbeddedServer], str]
) -> None:
    server, met = _Server(prepared_database(pg_destination)), 0
    for seed in (*FOUND, *seeds("histories with conflicts", test=HISTORIES, soak=HISTORIES)):
        history = random_history(seed)
        store = MemoryStore(types=value_types())  # numbers may be negative
        columns = [destination_column(name, f"pg_catalog.{kind}", equality="bytes") for name, kind in COLUMNS]
        store.create_table("public", "c", columns, key=["id"], unique=[["u"]] if history.is_unique else [])
        store.insert("public", "c", [raw(row) for row in history.here])
        memory = MemoryDestination(store=store, site=SITE)
        expected = one_by_one(memory, "t", described(memory, history), history)
        rows = [shown(row) for row in store.rows("public", "c")]
        for is_grouped in (False, True):
            server.create(history)
            version = described(server.destination, history)
            if is_grouped:  # noqa: SIM108
                found = by_engine(server.destination, "t", version, history, seed)
            else:
                found = one_by_one(server.destination, "t", version, history)
            assert server.rows() == rows, (seed, is_grouped)
            assert found == expected, (seed, is_grouped)
        met += len(expected.met)
    server.close()
    assert met > HISTORIES
