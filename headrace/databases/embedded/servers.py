"""The embedded server: a private PostgreSQL for a site, from the bundled binaries.

Job
    Give a site (`database: {kind: embedded}`), the demo and the tests a PostgreSQL without an installation.

Main path
    EmbeddedServer.start -> Place.find -> _initialize (once) -> pg_ctl start.

States
    No data folder, stopped, running. No state is in memory: the data folder, `postmaster.pid` and the files below
    say everything, so any process that names the same folder controls the same server.

Durable when
    `server.json` (version, port, data folder, operating-system user) is written after the data folder has its final
    name. The next start discards a folder whose creation was interrupted, but never one that was in use.

Copied and moved
    Data inside the folder move with it. External data name their folder (`headrace.folder`): they follow a folder that
    was moved, and a copy of it can neither start nor stop nor remove them.

Security
    PostgreSQL refuses to run as root. Started by root it runs under an otherwise unused user number, from places
    that user can reach anyway: no user is created and no folder's permissions are widened. It listens only on the
    loopback address and asks every client for a password (SCRAM), stored in a file that only its owner can read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import random
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

import psutil

from headrace.base.errors import ConfigError, DatabaseError, DatabaseUnavailable
from headrace.databases.embedded.place import (
    INSIDE,
    INSTALLATIONS,
    OUTPUT_BYTES_MAX,
    VERSIONS,
    Place,
    ServerFacts,
    client_binary,
    give,
    give_all,
    read,
    run,
    write,
)

__all__ = ["EmbeddedServer"]

_SUPERUSER = "postgres"
# Below the range of outgoing connections (32768 and up on Linux), so that a stopped server finds its port free again;
# above the range Ray gives to its workers (10002-19999).
_PORTS = range(20_000, 32_000)
_PORT_TRIES = 3  # one of 12,000 ports may be taken by chance; twice in a row has another cause
_START_TIMEOUT_S = 120  # crash recovery after an immediate stop included
_STOP_TIMEOUT_S = 30.0  # a fast stop waits for its checkpoint, and for log streams to confirm everything
_QUIT_TIMEOUT_S = 10.0  # an immediate stop waits for nothing
_ORPHANS_TIMEOUT_S = 30.0  # backends notice within seconds that their postmaster is gone
_POLL_S = 0.02
_LOG_BYTES_MAX = 16 << 20  # a larger log is rotated at the next start
_LOG = "server.log"  # in the data folder
_SINCE_FIRST_START = (_LOG, "postmaster.opts")  # a data folder with one of them was in use

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # a socket's path is limited to 107 bytes, state folders are not
    "password_encryption": "scram-sha-256",
    "wal_level": "logical",
    "track_commit_timestamp": "on",  # ten bytes a transaction: latest_timestamp asks when rows were committed
    # One stream and one snapshot per topology, one origin per apply server: room for dozens of each.
    "max_wal_senders": "40",
    "max_replication_slots": "64",
    "max_connections": "150",
    "fsync": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
    "max_wal_size": "2GB",
    "shared_buffers": "128MB",
}
_SETTINGS_FROM_18 = {"max_active_replication_origins": "64"}  # before 18, max_replication_slots bounds origins too

_ACCESS = """# Written by Headrace: everybody gives a password, nobody comes from another machine.
host all         all 127.0.0.1/32 scram-sha-256
host replication all 127.0.0.1/32 scram-sha-256
"""


class EmbeddedServer:
    """One private PostgreSQL server. Any process that can read the folder may call any method.

    Args:
        folder: the server's own folder; created when missing. It holds the data, unless root starts the server from a
            place other users cannot enter: then `server.json` points to the data.
        version: major version, one of `VERSIONS`.
        name: for messages and the process title.
        settings: additional server settings; they override the defaults.
    """

    def __init__(
        self, folder: Path, *, version: int = 18, name: str = "", settings: Mapping[str, str] | None = None
    ) -> None:
        if version not in INSTALLATIONS:
            known = ", ".join(str(v) for v in VERSIONS)
            raise ConfigError(
                f"no embedded PostgreSQL {version}", hint=f"use one of the bundled versions: {known}", version=version
            )
        self.folder = folder.absolute()
        self.version = version
        self.name = name or self.folder.name
        self._settings = dict(settings or {})

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start the server, creating its data folder the first time; returns when it accepts connections. Idempotent.

        Raises:
            ConfigError: the folder holds another major version, or is a copy whose data are the original's.
            DatabaseUnavailable: the server did not start; the message ends with its log.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            facts = self._facts()
            if facts is None:
                facts = self._initialize()
            self._own(facts)
            if facts.version != self.version:
                raise ConfigError(
                    f"{self.name}: the embedded server in {self.folder} is version {facts.version}, not {self.version}",
                    hint="name its version in the topology, or use another state_dir",
                )
            # Wait for a postmaster that is shutting down, or that another process started and that is still recovering.
            deadline = time.monotonic() + _START_TIMEOUT_S
            while self.pid() is not None:
                if self._answers():
                    return
                if time.monotonic() > deadline:
                    raise DatabaseUnavailable(f"{self.name}: the embedded PostgreSQL runs but does not answer")
                time.sleep(_POLL_S)
            self._start(facts)

    def stop(self, *, immediate: bool = False) -> None:
        """Stop the server; returns when its processes have ended. Idempotent.

        Args:
            immediate: without a checkpoint, like a crash of the server.
        """
        if not self.folder.exists():
            return
        with self._locked():
            self._stop(immediate=immediate)

    def restart(self, *, immediate: bool = False) -> None:
        """Stop the server and start it on the same port."""
        self.stop(immediate=immediate)
        self.start()

    def destroy(self) -> None:
        """Stop the server and remove all its files, including the folder. A copy removes nothing of the original. Idempotent.

        Raises:
            DatabaseError: the data's owner is unknown; they stay.
        """
        if not self.folder.exists():
            return
        with self._locked():
            facts = ServerFacts.read(self.folder)
            owner = None if facts is None else facts.owner(self.folder)
            if facts is not None and facts.is_own(self.folder):
                if (facts.place(self.folder) / "PG_VERSION").exists():  # else another program emptied its folder
                    self._stop(immediate=True)
                shutil.rmtree(facts.place(self.folder), ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        if facts is not None and owner is None:
            raise DatabaseError(
                f"{self.name}: the data folder {facts.data} stays: it was made for another folder than {self.folder},"
                " which was moved or copied since",
                hint="remove it if no other project has it: no `server.json` below another `state_dir` names it then",
            )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------------ facts

    @property
    def is_running(self) -> bool:
        """Whether the server runs."""
        return self.pid() is not None

    def pid(self) -> int | None:
        """Return the postmaster's process id, or None when the server does not run."""
        facts = self._facts()
        return None if facts is None or not facts.is_own(self.folder) else _postmaster(facts.place(self.folder))

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1; the same after a restart."""
        return self._known_facts().port

    @property
    def data_folder(self) -> Path:
        """PGDATA, inside or outside the server's folder."""
        return self._known_facts().place(self.folder)

    @property
    def password(self) -> str:
        """The superuser's password."""
        return (self.folder / "password").read_text(encoding="utf-8").strip()

    def dsn(self, database: str = "postgres") -> str:
        """Return the superuser's connection string, including the password: not for logs."""
        return (
            f"host=127.0.0.1 port={self.port} user={_SUPERUSER} password={self.password} "
            f"dbname={_quote_conninfo(database)} sslmode=disable"
        )

    def shell_command(self, database: str = "postgres") -> str:
        """Return a command that opens a shell on the server; it names the password file, not the password."""
        where = f"host=127.0.0.1 port={self.port} user={_SUPERUSER} dbname={database} sslmode=disable"
        password = shlex.quote(str(self.folder / "password"))
        return f"PGPASSWORD=$(cat {password}) {shlex.quote(str(self.binary('psql')))} {shlex.quote(where)}"

    def environment(self, database: str = "postgres") -> dict[str, str]:
        """Return this process's environment plus what libpq programs (`client_binary`) need, without other PG variables."""
        others = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return {
            **others,
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": _SUPERUSER,
            "PGPASSWORD": self.password,
            "PGDATABASE": database,
            "PGSSLMODE": "disable",
        }

    def binary(self, program: str) -> Path:
        """Return the path of a bundled program of this version: psql, pgbench, pg_dump, pg_waldump, ..."""
        return client_binary(program, version=self.version)

    # ------------------------------------------------------------------ inside

    def _facts(self) -> ServerFacts | None:
        facts = ServerFacts.read(self.folder)
        if facts is not None and not (facts.place(self.folder) / "PG_VERSION").exists():
            raise DatabaseError(
                f"{self.name}: the embedded server's data folder {facts.place(self.folder)} is gone",
                hint=f"restore it, or remove {self.folder} to begin with an empty server",
            )
        return facts

    def _known_facts(self) -> ServerFacts:
        facts = self._facts()
        if facts is None:
            raise DatabaseUnavailable(f"{self.name}: the embedded server in {self.folder} was never started")
        self._check_own(facts)
        return facts

    # ------------------------------------------------------------------ whose data they are

    def _check_own(self, facts: ServerFacts) -> None:
        if not facts.is_own(self.folder):
            raise ConfigError(
                f"{self.name}: the embedded server's data in {facts.data} belong to"
                f" {facts.owner(self.folder) or 'another folder'}, of which {self.folder} is a copy",
                hint=f"data outside of a project are not copied with it: remove {self.folder} to begin with an empty"
                " server here; nothing of the original is lost by that",
            )

    def _own(self, facts: ServerFacts) -> None:
        """Refuse another folder's data; adopt data that moved with this folder."""
        data = facts.place(self.folder)
        if data.parent == self.folder:
            return
        if facts.owner(self.folder) is not None:
            self._check_own(facts)
        elif _server_processes(data):
            raise ConfigError(
                f"{self.name}: the embedded server in {data} runs for another folder, of which {self.folder} is a copy"
                " or to which it was moved",
                hint=f"end it there, with `headrace down ITS_FILE`; if this is a copy, remove {self.folder} to begin"
                " with an empty server",
            )
        facts.note_owner(self.folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _initialize(self) -> ServerFacts:
        place = Place.find(self.folder, self.version)
        final = self._free_place(place)
        for leftover in place.data_parent.glob(f"{place.data_name}.initializing-*"):
            shutil.rmtree(leftover)
        data = place.data_parent / f"{place.data_name}.initializing-{secrets.token_hex(4)}"
        data.mkdir(mode=0o700)
        # initdb and single-user mode need a user with a name; the server itself only needs a number.
        named_user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else place.user_number
        give(data, named_user)
        locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if self.version >= 17 else []
        run(
            [
                place.program("initdb"),
                "-D",
                str(data),
                "-U",
                _SUPERUSER,
                "--encoding=UTF8",
                "--locale=C",
                *locale,
                "--auth=reject",
                "--data-checksums",
                "--no-instructions",
            ],
            user_number=named_user,
            what=f"{self.name}: initdb",
        )
        self._set_password(place.program("postgres"), data, named_user)
        # Run as the file's owner: root would append wherever a link leads.
        run(
            ["/bin/sh", "-c", 'cat >> "$1"', "sh", str(data / "postgresql.conf")],
            user_number=named_user,
            what=f"{self.name}: including headrace.conf",
            stdin="\ninclude_if_exists = 'headrace.conf'\n",
        )
        give_all(data, place.user_number, of=named_user)
        write(data / "pg_hba.conf", _ACCESS, place.user_number)
        data.rename(final)
        recorded = INSIDE if final.parent == self.folder else str(final)
        facts = ServerFacts(version=self.version, port=_free_port(), data=recorded, user_number=place.user_number)
        facts.save(self.folder)
        return facts

    def _free_place(self, place: Place) -> Path:
        """Return where new data can be created."""
        final = place.data_parent / place.data_name
        if not any((final / name).exists() for name in _SINCE_FIRST_START):
            if final.exists():  # from a start interrupted before it wrote server.json
                shutil.rmtree(final)
            return final
        if final.parent == self.folder:
            raise DatabaseError(
                f"{self.name}: the embedded server's folder {self.folder} has data that was in use, but not the file"
                " server.json",
                hint=f"restore that file; or put {final} aside to begin with an empty server",
            )
        # The data of another folder, which was at this path when they were created and has been moved since.
        return final.with_name(f"{final.name}-{secrets.token_hex(4)}")

    def _set_password(self, program: str, data: Path, named_user: int) -> None:
        password = secrets.token_hex(24)
        descriptor = os.open(self.folder / "password", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o600)
            file.write(password)
        # A server without connections, so that the password never passes through files of other users.
        run(
            [program, "--single", "-D", str(data), "-c", "password_encryption=scram-sha-256", "postgres"],
            user_number=named_user,
            what=f"{self.name}: setting the password",
            stdin=f"ALTER ROLE {_SUPERUSER} PASSWORD '{password}';\n",
        )

    def _start(self, facts: ServerFacts) -> None:
        for tries_left in reversed(range(_PORT_TRIES)):
            try:
                self._start_once(facts)
            except DatabaseUnavailable:
                # Another program starting at the same moment may have found the same port free.
                facts = self._known_facts()
                if tries_left == 0 or _port_is_free(facts.port):
                    raise
            else:
                return

    def _start_once(self, facts: ServerFacts) -> None:
        data = facts.place(self.folder)
        place = Place.find(self.folder, self.version)
        self._check_owner(data, facts.user_number)
        _forget_stale_postmaster(data, self.name)
        if not _port_is_free(facts.port):
            facts = replace(facts, port=_free_port())
            facts.save(self.folder)
        write(data / "headrace.conf", self._configuration(facts.port), facts.user_number)
        log = data / _LOG
        started_at = _size(log)
        if started_at > _LOG_BYTES_MAX:
            log.replace(data / f"{_LOG}.old")
            started_at = 0
        command = [
            place.program("pg_ctl"),
            "start",
            "-w",
            "-s",
            "-t",
            str(_START_TIMEOUT_S),
            "-D",
            str(data),
            "-l",
            str(log),
        ]
        try:
            run(command, user_number=facts.user_number, what=f"{self.name}: pg_ctl start", quiet=True)
        except DatabaseError as error:
            tail = _tail(log, started_at)
            raise DatabaseUnavailable(
                f"{self.name}: the embedded PostgreSQL did not start: {tail or error.message}"
            ) from error

    def _check_owner(self, data: Path, user_number: int) -> None:
        """Refuse data that the server's user does not own, such as a copy that root made without keeping owners.

        The server could neither read them nor report it.
        """
        owner = data.stat().st_uid
        if os.geteuid() == 0 and owner != user_number:
            raise ConfigError(
                f"{self.name}: {data} belongs to user {owner}, and its server runs as user {user_number}",
                hint=f"chown -R {user_number}:{user_number} {shlex.quote(str(data))}   (cp -a keeps the owners)",
            )

    def _answers(self) -> bool:
        command = [str(self.binary("pg_isready")), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-t", "3"]
        return (
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0
        )

    def _configuration(self, port: int) -> str:
        settings = {**_SETTINGS, **(_SETTINGS_FROM_18 if self.version >= 18 else {}), **self._settings}
        settings |= {"port": str(port), "cluster_name": self.name[:63]}
        lines = [f"{key} = '{value.replace(chr(39), chr(39) * 2)}'" for key, value in settings.items()]
        return "# Written by Headrace at every start.\n" + "\n".join(lines) + "\n"

    def _stop(self, *, immediate: bool) -> None:
        facts = self._facts()
        if facts is None or not facts.is_own(self.folder):
            return
        data = facts.place(self.folder)
        if not immediate:
            # A stream that never confirms would block an orderly stop for ever; a crash loses nothing either.
            immediate = not _end(data, signal.SIGINT, _STOP_TIMEOUT_S)
        if immediate and not _end(data, signal.SIGQUIT, _QUIT_TIMEOUT_S):
            raise DatabaseUnavailable(f"{self.name}: the embedded PostgreSQL does not stop")


# ------------------------------------------------------------------ processes, ports, files


def _postmaster(data: Path) -> int | None:
    """Return the live postmaster of `data`; a reused process id is recognized."""
    try:
        pid = int(read(data / "postmaster.pid").split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None
    # 0 and less mean process groups to `kill`; a single-user server writes its own number with a minus.
    return pid if pid > 0 and _works_in(pid, data) else None


def _works_in(pid: int, data: Path) -> bool:
    """Whether a process belongs to the server: it runs as the server's user in the data folder.

    The server's user writes `postmaster.pid`: it must not name a shell that root opened in that folder.
    """
    try:
        process = psutil.Process(pid)
        return (
            process.status() != psutil.STATUS_ZOMBIE
            and Path(process.cwd()) == data.resolve()
            and process.uids().real == data.stat().st_uid
        )
    except (psutil.Error, OSError):
        return False


def _end(data: Path, how: signal.Signals, timeout_s: float) -> bool:
    """Signal the postmaster and wait; True: every process of the server has ended."""
    pid = _postmaster(data)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
    deadline = time.monotonic() + timeout_s
    while _server_processes(data):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _server_processes(data: Path) -> list[int]:
    """Return every process of the server: they all work in the data folder."""
    return [pid for pid in psutil.pids() if _works_in(pid, data)]


def _forget_stale_postmaster(data: Path, name: str) -> None:
    """Clean up after a crash: wait for orphans, then remove the pid file, whose number may be another process's now."""
    deadline = time.monotonic() + _ORPHANS_TIMEOUT_S
    while _server_processes(data):
        if time.monotonic() > deadline:
            raise DatabaseUnavailable(f"{name}: processes of a dead server still work in {data}")
        time.sleep(_POLL_S)
    (data / "postmaster.pid").unlink(missing_ok=True)


def _free_port() -> int:
    for _ in range(1000):
        port = random.choice(_PORTS)
        if _port_is_free(port):
            return port
    raise DatabaseUnavailable(f"no free port between {_PORTS.start} and {_PORTS.stop}")


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _quote_conninfo(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _tail(log: Path, start: int) -> str:
    try:
        return read(log, start=start)[-OUTPUT_BYTES_MAX:].strip()
    except OSError as error:
        return f"no log ({error})"


def _size(path: Path) -> int:
    """Return the size of a file in bytes, of a link its own; 0: missing."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
