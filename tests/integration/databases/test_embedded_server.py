"""The embedded server: created, started, crashed, moved and destroyed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.base import failpoints
from headrace.base.errors import ConfigError, DatabaseError, DatabaseUnavailable
from headrace.databases.embedded import place as embedded_place
from headrace.databases.embedded import servers as embedded
from headrace.databases.embedded.place import ServerFacts, write
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.faults.processes import kill, server_processes
from tests.fix_postgres import servers_place
from tests.support.databases.statements import row_of
from tests.support.session.matrices import values
from tests.support.session.packages import ROOT

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="headrace-test-embedded-", dir=servers_place()))
    path.chmod(0o711)
    yield path / "database"
    if (path / "database").exists():
        EmbeddedServer(path / "database").destroy()
    shutil.rmtree(path, ignore_errors=True)


def _one(server: EmbeddedServer, query: str) -> object:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        return row_of(connection.execute(query))[0]


@pytest.mark.parametrize("version", values([18, 16], 18))
def test_server_starts_with_logical_wal_and_fsync(folder: Path, version: int) -> None:
    server = EmbeddedServer(folder, version=version, name="dbs1")
    server.start()
    assert str(_one(server, "SHOW server_version")).startswith(str(version))
    assert _one(server, "SHOW wal_level") == "logical"
    assert _one(server, "SHOW fsync") == "on"
    assert _one(server, "SHOW data_checksums") == "on"
    assert _one(server, "SHOW server_encoding") == "UTF8"
    assert _one(server, "SHOW cluster_name") == "dbs1"
    pid = server.pid()
    server.start()
    assert server.pid() == pid, "a second start must find the running server"
    server.stop()
    server.stop()
    assert server.pid() is None


def test_shell_command_opens_a_shell_and_shows_no_password(folder: Path) -> None:
    with EmbeddedServer(folder / "a server") as server:
        command = server.shell_command()
        assert server.password not in command
        done = subprocess.run(f"{command} -Atc 'SELECT 1 + 1'", shell=True, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("2\n", "")


def test_data_and_port_survive_crashes_and_restarts(folder: Path) -> None:
    server = EmbeddedServer(folder)
    server.start()
    port = server.port
    with psycopg.connect(server.dsn()) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS a")
    server.restart(immediate=True)
    assert (_one(server, "SELECT a FROM t"), server.port) == (7, port)
    pid = server.pid()
    kill(server_processes(server)[:1])
    EmbeddedServer(folder).start()  # another instance, as after a crash of the whole process
    assert (_one(server, "SELECT a FROM t"), server.port) == (7, port)
    assert server.pid() != pid


def test_stop_is_bounded_with_a_stream_that_never_confirms(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_STOP_TIMEOUT_S", 1.0)
    server = EmbeddedServer(folder)
    server.start()
    _one(server, "SELECT count(*) FROM pg_create_logical_replication_slot('s', 'pgoutput')")
    with psycopg.connect(server.dsn(), autocommit=True) as user:
        user.execute("CREATE PUBLICATION p")
        stream = psycopg.connect(f"{server.dsn()} replication=database", autocommit=True)
        stream.pgconn.exec_(b"START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'p')")
        user.execute("SELECT pg_logical_emit_message(true, 'x', 'y')")
    server.stop()
    assert server.pid() is None
    server.start()
    assert _one(server, "SELECT 1") == 1


def test_pid_file_with_a_foreign_process_does_not_keep_the_server_down(folder: Path) -> None:
    server = EmbeddedServer(folder)
    server.start()
    server.stop(immediate=True)
    pid_file = server.data_folder / "postmaster.pid"
    lines = (
        pid_file.read_text().splitlines()
        if pid_file.exists()
        else ["0", str(server.data_folder), "0", "1", "", "", "", ""]
    )
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    assert server.pid() is None
    server.start()
    assert _one(server, "SELECT 1") == 1


def test_taken_port_is_replaced(folder: Path) -> None:
    server = EmbeddedServer(folder)
    server.start()
    server.stop()
    old = server.port
    with socket.create_server(("127.0.0.1", old)):
        server.start()
        assert server.port != old
        assert _one(server, "SELECT 1") == 1


def test_port_taken_between_check_and_start_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, looks, is_free = EmbeddedServer(folder), list[int](), embedded._port_is_free
    server.start()
    server.stop()
    old = server.port

    def looked_a_moment_before(port: int) -> bool:
        looks.append(port)
        return len(looks) == 1 or is_free(port)

    monkeypatch.setattr(embedded, "_port_is_free", looked_a_moment_before)
    with socket.create_server(("127.0.0.1", old)):
        server.start()
        assert looks[:2] == [old, old]
        assert server.port != old
        assert _one(server, "SELECT 1") == 1


def test_connections_without_the_password_are_refused(folder: Path) -> None:
    server = EmbeddedServer(folder)
    server.start()
    for database in ("dbname=postgres", "dbname=postgres replication=database"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"host=127.0.0.1 port={server.port} user=postgres {database} passfile=/nonexistent")
    assert stat.S_IMODE((folder / "password").stat().st_mode) == 0o600
    assert stat.S_IMODE(server.data_folder.stat().st_mode) == 0o700
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(f"host=/tmp port={server.port} user=postgres dbname=postgres")


def test_interrupted_initialisation_is_discarded(folder: Path) -> None:
    folder.mkdir()
    (folder / "data.initializing-dead").mkdir()
    (folder / "data.initializing-dead" / "PG_VERSION").write_text("18\n")
    (folder / "data").mkdir()  # renamed, but server.json was never written
    (folder / "data" / "PG_VERSION").write_text("18\n")
    server = EmbeddedServer(folder)
    server.start()
    assert _one(server, "SELECT 1") == 1
    assert not (folder / "data.initializing-dead").exists()


def test_data_folder_of_another_version_is_refused(folder: Path) -> None:
    EmbeddedServer(folder, version=18).start()
    with pytest.raises(ConfigError, match="is version 18, not 16"):
        EmbeddedServer(folder, version=16).start()
    with pytest.raises(ConfigError, match="no embedded PostgreSQL 9"):
        EmbeddedServer(folder, version=9)


def test_lost_data_folder_is_reported_and_not_replaced(folder: Path) -> None:
    server = EmbeddedServer(folder)
    with pytest.raises(DatabaseUnavailable, match="never started"):
        server.dsn()
    server.start()
    server.stop()
    shutil.rmtree(server.data_folder)
    with pytest.raises(DatabaseError, match="is gone"):
        server.start()
    server.destroy()
    assert not folder.exists()


def test_moved_folder_keeps_its_data_and_its_copy_is_another_server(folder: Path) -> None:
    before = EmbeddedServer(folder.with_name("before"))
    before.start()
    with psycopg.connect(before.dsn()) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS a")
    before.stop()
    server, copy = EmbeddedServer(before.folder.rename(folder)), EmbeddedServer(folder.with_name("copy"))
    server.start()
    assert _one(server, "SELECT a FROM t") == 7
    server.stop()
    subprocess.run(["cp", "-a", str(folder), str(copy.folder)], check=True)
    server.start()
    copy.start()
    try:
        assert copy.port != server.port
        _one(copy, "WITH x AS (UPDATE t SET a = 8 RETURNING a) SELECT a FROM x")
        assert (_one(server, "SELECT a FROM t"), _one(copy, "SELECT a FROM t")) == (7, 8)
    finally:
        copy.destroy()
    assert _one(server, "SELECT a FROM t") == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take files from their owner")
def test_copy_that_lost_its_owners_is_named_and_the_fix_works(folder: Path) -> None:
    server = EmbeddedServer(folder)
    server.start()
    with psycopg.connect(server.dsn(), autocommit=True) as user:
        user.execute("CREATE TABLE t (id int)")
    server.stop()
    shutil.copytree(folder, folder.with_name("copied"))  # as `cp -r`
    copied = EmbeddedServer(folder.with_name("copied"))
    try:
        with pytest.raises(ConfigError, match=r"belongs to user 0, and its server runs as user \d+") as refused:
            copied.start()
        subprocess.run(refused.value.hint.partition("   (")[0], shell=True, check=True)
        copied.start()
        with psycopg.connect(copied.dsn()) as user:
            assert user.execute("SELECT count(*) FROM t").fetchone() == (0,)
    finally:
        copied.destroy()


def test_wrong_setting_shows_the_servers_own_message(folder: Path) -> None:
    server = EmbeddedServer(folder, settings={"wal_level": "nonsense"})
    with pytest.raises(DatabaseUnavailable, match="wal_level"):
        server.start()


def test_bundled_programs_ignore_the_callers_environment_about_servers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedServer(folder)
    server.start()
    for name, value in {
        "PGSERVICE": "nosuch",
        "PGOPTIONS": "-c nonsense=1",
        "PGHOST": "elsewhere",
        "PGSSLMODE": "verify-full",
    }.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [server.binary("psql"), "-XAtc", "SELECT 40 + 2"],
        env=server.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "42\n"
    subprocess.run(
        [server.binary("pgbench"), "-i", "-s", "1", "-q"], env=server.environment(), capture_output=True, check=True
    )
    monkeypatch.undo()
    assert _one(server, "SELECT count(*) FROM pgbench_accounts") == 100_000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to change user")
def test_root_runs_the_server_as_an_unprivileged_user_without_a_name(folder: Path) -> None:
    server = EmbeddedServer(folder)
    server.start()
    owner = Path(f"/proc/{server.pid()}").stat().st_uid
    assert owner != 0
    assert server.data_folder.stat().st_uid == owner
    assert server.data_folder.parent == folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to change user")
@pytest.mark.parametrize(
    "name",
    values(
        ["headrace.conf", "headrace.folder", "pg_hba.conf", "server.log", "postmaster.pid"],
        "headrace.folder",
        "server.log",
    ),
)
def test_root_follows_no_link_that_a_superuser_of_the_server_makes(folder: Path, name: str) -> None:
    """Root starts the server, whose superuser can run programs as the server's user in its data folder."""
    target = folder.parent / "roots"
    target.write_text("root's secret\n")
    target.chmod(0o600)
    server = EmbeddedServer(folder)
    server.start()
    server.stop()
    access = (server.data_folder / "pg_hba.conf").read_text()
    server.start()
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"COPY (SELECT 1) TO PROGRAM 'cp pg_hba.conf kept; ln -sf {target} {name}'")
    facts = ServerFacts.read(folder)
    assert facts is not None
    if name == "postmaster.pid":  # the server sees it and stops by itself; root neither reads nor signals it
        assert server.pid() is None
        (server.data_folder / name).rename(server.data_folder / "link")
        deadline = time.monotonic() + 90
        while embedded._server_processes(server.data_folder):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    server.stop()
    if name == "headrace.folder":  # written if the data are elsewhere
        facts.note_owner(folder)
    if name == "pg_hba.conf":  # written at the first start alone
        write(server.data_folder / name, access, facts.user_number)
    if name == "server.log":
        assert "secret" not in embedded._tail(server.data_folder / name, 0)
        (server.data_folder / name).unlink()
    server.start()
    assert _one(server, "SELECT 1") == 1
    assert target.read_text() == "root's secret\n"
    assert (target.stat().st_uid, stat.S_IMODE(target.stat().st_mode)) == (0, 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to change user")
def test_private_home_stays_closed_and_the_server_runs_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Package and state folder are below a 0700 folder, like a clone in /root: both are moved to a place that the user
    can reach.
    """
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    installation = embedded_place._installation(18)
    package = installation.parent
    private = home / "site-packages" / package.name
    shutil.copytree(installation, private / installation.name, ignore=shutil.ignore_patterns("include"))
    shutil.copytree(package.with_name(f"{package.name}.libs"), private.with_name(f"{package.name}.libs"))
    monkeypatch.setattr(embedded_place, "_installation", lambda _version: private / installation.name)
    # A separate folder: the usual one is shared with all other servers on the machine.
    reachable = Path(tempfile.mkdtemp(prefix="headrace-test-reachable-"))
    reachable.chmod(0o755)
    monkeypatch.setattr(embedded_place, "_reachable_folder", lambda _user: reachable)
    server = EmbeddedServer(home / "clone" / ".headrace" / "database")
    server.start()
    try:
        assert _one(server, "SELECT 1") == 1
        assert home not in server.data_folder.parents
        assert json.loads((server.folder / "server.json").read_text())["data"] == str(server.data_folder)
        program = Path(f"/proc/{server.pid()}/exe").readlink()
        assert home not in program.parents
        copy = EmbeddedServer(Path(shutil.copytree(server.folder, home / "copy" / "database")))
        with pytest.raises(ConfigError, match="is a copy"):
            copy.start()
        copy.destroy()
        assert _one(server, "SELECT 1") == 1
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        # A cleaner removed one of the copied files: the next start copies again.
        server.stop()
        (program.parents[1] / "share" / "postgresql" / "timezonesets" / "Default").unlink()
        server.start()
        assert _one(server, "SELECT 1") == 1
    finally:
        data = server.data_folder
        server.destroy()
        shutil.rmtree(reachable)
    assert not data.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_normal_user_runs_the_server_in_place() -> None:
    program = (
        "import json, os, pathlib, signal, socket, subprocess, tempfile\n"
        "from headrace.databases.embedded.servers import EmbeddedServer\n"
        # The interpreter itself may be in a private home, so it is loaded before the user changes.
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "s = EmbeddedServer(pathlib.Path(tempfile.mkdtemp()) / 'db')\n"
        "s.start(); assert s.data_folder == s.folder / 'data'; s.restart(immediate=True); assert s.pid()\n"
        "s.destroy(); assert not s.folder.exists(); s.folder.parent.rmdir(); print('in place')\n"
    )
    if not embedded_place._can_run(embedded_place.client_binary("postgres"), 65534):
        pytest.skip("this clone lies where other users cannot enter")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(servers_place())}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "in place\n", done.stderr


def test_superuser_of_a_server_finds_no_secret_of_its_starter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It searches with programs that the server runs, and in the environments of the server's processes."""
    for name in ("HEADRACE_DBS1_DSN", "HEADRACE_ALERT_TOKEN", "PGPASSWORD", "DATABASE_URL"):
        monkeypatch.setenv(name, "postgresql://u:planted@host/d")
    for name in (failpoints.ENVIRONMENT, failpoints.FOLDER_ENVIRONMENT):  # these it does get
        monkeypatch.delenv(name, raising=False)
    server = EmbeddedServer(folder)
    for begin in (server.start, lambda: server.restart(immediate=True)):
        begin()
        with psycopg.connect(server.dsn(), autocommit=True) as attacker:
            attacker.execute("CREATE TEMPORARY TABLE told (line text); COPY told FROM PROGRAM 'env'")
            told = {str(line) for (line,) in attacker.execute("SELECT line FROM told")}
            found = [Path(f"/proc/{each.pid}/environ").read_bytes() for each in server_processes(server)]
        assert any(line.startswith("PATH=") for line in told)
        assert len(found) > 3, "the postmaster, its children, and the attacker's session"
        assert b"PATH=" in found[0]  # the others write their titles over it
        assert not [each for each in (*told, *map(str, found)) if "planted" in each or "HEADRACE_" in each]


def test_server_gets_no_secret_of_this_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "environment"
    monkeypatch.setenv("HEADRACE_DBS1_DSN", "postgresql://u:secret@host/d")
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv(failpoints.ENVIRONMENT, "a_point")
    embedded_place.run(["/bin/sh", "-c", f"env > {told}"], user_number=os.geteuid(), what="dbs1: env")
    names = {line.partition("=")[0] for line in told.read_text().splitlines()}
    assert {"PATH", failpoints.ENVIRONMENT} <= names
    assert not names & {"HEADRACE_DBS1_DSN", "PGPASSWORD"}
    assert "secret" not in told.read_text()
