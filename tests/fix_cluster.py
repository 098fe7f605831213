"""One topology for the whole session: `one_way`, pgbench's tables from `src` to `dst`, on embedded servers, a private
Ray and Spark. Starting it takes half a minute, so every test shares it; a test leaves both sides equal.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from actors.local_cluster import LOOPBACK
from databases.embedded import EmbeddedServer
from streams.failpoints import FOLDER_ENVIRONMENT
from tests.support.system import System, running
from topology.reading import read_topology

# Before anything in this process imports ray.
os.environ.update(LOOPBACK)

ONE_WAY = """
topology: test_one_way
state_dir: state
sites:
  src: {database: {kind: embedded}}
  dst: {database: {kind: embedded}}
replicate:
  - {tables: [public.*], from: src, to: [dst]}
queues:  # so small that a minute of pgbench spills
  q_src: {site: src, memory: 4MB}
  q_dst_in: {site: dst, memory: 4MB}
"""

TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history", "notes")


def _pgbench_tables(servers: dict[str, EmbeddedServer]) -> None:
    for site, steps in (("src", "dtgvp"), ("dst", "dtp")):
        server = servers[site]
        subprocess.run(
            [str(server.binary("pgbench")), "-i", "-q", "-I", steps, "postgres"], env=server.environment(),
            check=True, capture_output=True,
        )
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("ALTER TABLE pgbench_history REPLICA IDENTITY FULL")
            connection.execute("CREATE TABLE notes (id bigint PRIMARY KEY, body text)")


@pytest.fixture(scope="session")
def one_way() -> Iterator[System]:
    """The shared topology; see the module."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-test-system-"))
    folder.chmod(0o711)
    # Every process of the topology inherits it: see `tests.support.faults`.
    (folder / "failpoints").mkdir()
    os.environ[FOLDER_ENVIRONMENT] = str(folder / "failpoints")
    try:
        file = folder / "one_way.yaml"
        file.write_text(textwrap.dedent(ONE_WAY))
        with running(read_topology(file), folder, _pgbench_tables) as system:
            yield system
    finally:
        del os.environ[FOLDER_ENVIRONMENT]
        shutil.rmtree(folder, ignore_errors=True)
