"""Two embedded servers, source and destination, and a pair of databases on them for each peer.

Each peer has its own databases on the *same* servers, so that both use the same programs, settings, caches and
disk, and neither reads the other's backlog. (A slot decodes the whole server's log, but skips other databases'
records early; both peers catch up, unmeasured, before each measured backlog is written.)
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from actors.cluster.local import LocalCluster
from headrace.databases.embedded.servers import EmbeddedServer

# Larger than a small machine's defaults, so that neither peer is measured while a checkpoint writes; the log of a
# whole run fits. Durability as shipped: fsync and synchronous_commit on.
SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "autovacuum": "off",  # could run during one peer's measurement only; VACUUM runs before each run
    "max_worker_processes": "32",
}


_PREFIX = "headrace-bench-"
_POLL_S = 0.005
_SLOTS_POLL_S, _SLOTS_TIMEOUT_S = 0.2, 120.0  # native's subscriptions confirm every ten seconds when idle


def _remove_dead() -> None:
    """Stop and remove the servers of a bench that was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            for state in folder.glob("*/state"):
                LocalCluster(state).stop()
            for place in folder.iterdir():
                if place.is_dir() and not (place / "state").is_dir():
                    EmbeddedServer(place).destroy()
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Pair:
    """One peer's databases: connection strings of source and destination."""

    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class Servers:
    """The two running servers."""

    folder: Path
    source: EmbeddedServer
    destination: EmbeddedServer

    def make_pair(self, name: str) -> Pair:
        """Create an empty database `name` on both servers."""
        for server in (self.source, self.destination):
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return Pair(self.source.dsn(name), self.destination.dsn(name))

    def move_slots(self) -> None:
        """Advance the restart positions of both servers' slots past everything written so far.

        The peers run and have caught up. A walsender begins at its slot's restart position, which moves only when the
        server logs its running transactions, every 15 seconds at most. Without this call it depends on chance which
        peer's walsender reads its last run's log again.
        """
        for server in (self.source, self.destination):
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                row = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
                assert row is not None
                behind = (
                    f"SELECT coalesce(bool_and(restart_lsn >= '{row[0]}'), true) FROM pg_replication_slots "
                    "WHERE active AND slot_type = 'logical'"
                )
                deadline = time.monotonic() + _SLOTS_TIMEOUT_S
                # A slot restarts from the snapshot before the last one that its reader confirmed.
                while connection.execute(behind).fetchone() != (True,):
                    if time.monotonic() > deadline:
                        message = (
                            f"the slots of {server.data_folder} still restart before {row[0]} after"
                            f" {_SLOTS_TIMEOUT_S:g} s"
                        )
                        raise TimeoutError(message)
                    connection.execute("SELECT pg_log_standby_snapshot()")
                    time.sleep(_SLOTS_POLL_S)

    def settle(self, *pairs: Pair) -> None:
        """Bring both servers into the same state before a run: vacuumed, no dirty pages."""
        self.settle_databases([dsn for pair in pairs for dsn in (pair.source, pair.destination)])

    def settle_databases(self, dsns: Iterable[str]) -> None:
        """As `settle`, by connection strings."""
        for dsn in dsns:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("VACUUM (ANALYZE)")
        for server in (self.source, self.destination):
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute("CHECKPOINT")


def wait_true(connection: psycopg.Connection, question: str, timeout_s: float = 600.0) -> None:
    """Repeat a query until its result is true.

    Args:
        connection: in autocommit mode.
        question: a query with one boolean.
        timeout_s: longest wait in seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        row = connection.execute(question).fetchone()
        if row is not None and row[0]:
            return
        if time.monotonic() > deadline:
            message = f"still not true after {timeout_s} s: {question}"
            raise TimeoutError(message)
        time.sleep(_POLL_S)


def wait_slot_free(connection: psycopg.Connection, slot: str, timeout_s: float = 600.0) -> None:
    """Wait until the slot is inactive. It must exist: backlogs are written behind it."""
    wait_true(connection, f"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{slot}'", timeout_s)


@contextmanager
def bench_servers() -> Iterator[Servers]:
    """Start both servers in a temporary folder, which is removed afterwards."""
    with running_servers(("source", "destination"), SETTINGS) as (folder, servers):
        yield Servers(folder, servers["source"], servers["destination"])


@contextmanager
def running_servers(
    names: Sequence[str], settings: Mapping[str, str]
) -> Iterator[tuple[Path, dict[str, EmbeddedServer]]]:
    """Start a server per name in a temporary folder, which is removed afterwards; yield the folder and the servers.

    Args:
        names: of the servers, and of their folders.
        settings: of each server.
    """
    _remove_dead()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    folder.chmod(0o711)  # the servers' own user passes through
    servers = {name: EmbeddedServer(folder / name, name=f"bench_{name}", settings=settings) for name in names}
    try:
        for server in servers.values():
            server.start()
        yield folder, servers
    finally:
        for server in servers.values():
            server.destroy()
        shutil.rmtree(folder, ignore_errors=True)
