"""Memory of the log writer's session at a source for transactions in flight, instead of spilling them to the server's
disk.
"""

from __future__ import annotations

import secrets
import time
from contextlib import closing

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.source.log_stream.decoding_memory import DEFAULT_BYTES_MAX, default_kb
from headrace.lcr.scn import FIRST_SCN
from tests.support.databases.log_reading import Reading
from tests.support.databases.postgres_site import ALL, Site, slot_of, wait_inactive
from tests.support.databases.statements import row_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

WAITED_S = 60.0  # for counters that come within a second on a quiet machine; the bound is for one that stalls
ROWS = 20_000  # about 5 MB in the decoder's memory: more than 1 MB, less than any server's shared_buffers


@pytest.fixture
def spilling(site: Site) -> Site:
    """Return a source whose own setting spills everything that is not tiny."""
    database = sql.Identifier(site.user.info.dbname)
    site.user.execute(sql.SQL("ALTER DATABASE {} SET logical_decoding_work_mem = '64kB'").format(database))
    site.run("CREATE TABLE t (id int PRIMARY KEY, note text)")
    site.prepare()
    return site


def _spilled(site: Site, source: PostgresSource) -> int:
    """Insert one large transaction, read it, and return how often the server spilled it."""
    site.run("SELECT pg_stat_reset_replication_slot(%s)", slot_of(site))
    site.run("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, %s) AS n", ROWS)
    end = site.mark()
    reading = Reading(source.open_stream("topo", FIRST_SCN))
    with closing(reading.stream):
        reading.through(end)
        deadline = time.monotonic() + WAITED_S
        while True:  # the server reports its counters a moment later
            found = row_of(
                site.run(
                    "SELECT total_txns, spill_txns FROM pg_stat_replication_slots WHERE slot_name = %s", slot_of(site)
                )
            )
            if int(found[0]):
                return int(found[1])
            assert time.monotonic() < deadline, "the slot has no counters"
            time.sleep(0.05)


def test_large_transaction_stays_in_memory_with_any_setting_of_the_server(spilling: Site):
    assert _spilled(spilling, spilling.source) == 0


def test_decoding_memory_of_the_file_bounds_the_session(spilling: Site):
    with closing(PostgresSource(spilling.dsn, decoding_memory=1 << 20)) as small:
        assert _spilled(spilling, small) == 1


def test_role_without_rights_on_the_parameter_can_set_it(spilling: Site):
    """The server lets every role set it, and ignores a REVOKE."""
    assert spilling.run("SELECT context FROM pg_settings WHERE name = 'logical_decoding_work_mem'").fetchone() == (
        "user",
    )
    role = f"plain_{secrets.token_hex(4)}"
    spilling.run(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'")
    try:
        spilling.run("REVOKE ALL ON PARAMETER logical_decoding_work_mem FROM PUBLIC")
        with closing(PostgresSource(make_conninfo(spilling.dsn, user=role, password="x"))) as plain:
            assert _spilled(spilling, plain) == 0
    finally:
        wait_inactive(spilling)
        spilling.run(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    ("server_kb", "shared_kb", "chosen_kb"),
    [
        (64 << 10, 128 << 10, 128 << 10),  # as much as shared_buffers
        (64 << 10, 8 << 20, DEFAULT_BYTES_MAX >> 10),  # a large server gives no more than measurements showed to help
        (64 << 10, 16 << 10, 64 << 10),  # never less than the server's own setting
        (2 << 20, 8 << 20, 2 << 20),
    ],
)
def test_default_equals_shared_buffers_within_bounds(server_kb: int, shared_kb: int, chosen_kb: int):
    assert default_kb(server_kb, shared_kb) == chosen_kb


def test_check_warns_of_memory_above_shared_buffers(spilling: Site):
    def said(size: int) -> list[str]:
        with closing(PostgresSource(spilling.dsn, site="a", decoding_memory=size)) as source:
            return [f.problem for f in source.preflight(ALL, streams=1) if f.path == "sites.a.database.decoding_memory"]

    shared = int(row_of(spilling.run("SELECT setting::int8 * 8192 FROM pg_settings WHERE name = 'shared_buffers'"))[0])
    assert said(0) == said(shared) == []
    (problem,) = said(shared * 2)
    assert "more than shared_buffers" in problem
