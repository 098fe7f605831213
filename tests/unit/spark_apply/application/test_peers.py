"""PySpark's Python servers refuse connections of other users."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark import accumulators

from spark_apply.application.access import peers
from spark_apply.application.access.peers import guard_accumulator_server, is_own_peer
from tests.support.wire.attackers import silent_connections

ROOT = Path(__file__).resolve().parents[4]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user's connection: only root can make one")
LOOPBACKS = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]


@contextlib.contextmanager
def listening(family: int = socket.AF_INET, host: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind((host, 0))
        server.listen()
        server.settimeout(10)
        yield server


@pytest.mark.parametrize(("family", "host"), LOOPBACKS)
def test_connection_of_the_same_user_is_accepted(family: int, host: str):
    with (
        listening(family, host) as server,
        socket.create_connection(server.getsockname()[:2]),
        server.accept()[0] as connection,
    ):
        assert is_own_peer(connection)


def test_ipv6_socket_connection_to_an_ipv4_address_is_accepted():
    with listening() as server, socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as client:
        client.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        with server.accept()[0] as connection:
            assert is_own_peer(connection)


@pytest.mark.parametrize("end", ["close", "reset"])
def test_closed_connection_is_not_accepted(end: str):
    """The kernel shows a closed connection as root's, whoever closed it."""
    with listening() as server, socket.create_connection(server.getsockname()) as client:
        if end == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        with server.accept()[0] as connection:
            assert not is_own_peer(connection)


@as_root
@pytest.mark.parametrize(("family", "host"), LOOPBACKS)
def test_connection_of_another_user_is_not_accepted(family: int, host: str):
    with listening(family, host) as server, silent_connections([server.getsockname()[:2]]) as opened:
        assert len(opened) == 1
        with server.accept()[0] as connection:
            assert not is_own_peer(connection)


def test_all_connections_are_accepted_with_a_warning_without_kernel_tables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(peers, "_TABLES", (tmp_path / "tcp", tmp_path / "tcp6"))
    monkeypatch.setattr(accumulators, "AccumulatorServer", accumulators.AccumulatorServer)
    with (
        listening() as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as connection,
    ):
        assert is_own_peer(connection)
    guard_accumulator_server()
    assert "cannot be read" in caplog.text


def test_all_connections_are_accepted_when_tables_lack_our_own_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Some sandboxes show an empty table."""
    table = tmp_path / "tcp"
    table.write_text("  sl  local_address rem_address   st\n")
    monkeypatch.setattr(peers, "_TABLES", (table, tmp_path / "tcp6"))
    with (
        listening() as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as connection,
    ):
        assert is_own_peer(connection)


def test_machine_without_ipv6_has_one_connection_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(peers, "_TABLES", (Path("/proc/self/net/tcp"), tmp_path / "tcp6"))
    with (
        listening() as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as connection,
    ):
        assert is_own_peer(connection)


@contextlib.contextmanager
def worker_daemon() -> Iterator[tuple[psutil.Process, int]]:
    """PySpark's daemon, started as by an executor, and its port."""
    environment = {
        "OMP_NUM_THREADS": "1",
        "PATH": "",
        "PYTHONPATH": str(ROOT),
        "PYTHON_WORKER_FACTORY_SECRET": "secret",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "spark_apply.application.daemon"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        try:
            yield psutil.Process(daemon.pid), struct.unpack("!i", daemon.stdout.read(4))[0]
        finally:
            daemon.stdin.close()  # as at the end of an executor


def read(link: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        piece = link.recv(length - len(found))
        assert piece
        found += piece
    return found


@as_root
def test_worker_daemon_forks_only_for_its_executors_user():
    with worker_daemon() as (daemon, port), silent_connections([("127.0.0.1", port)] * 50) as opened:
        assert len(opened) == 50
        with socket.create_connection(("127.0.0.1", port), timeout=30) as link:
            (worker,) = struct.unpack("!i", read(link, 4))
            link.sendall(struct.pack("!i", 6) + b"secret")
            assert read(link, 6) == struct.pack("!i", 2) + b"ok"
            assert [child.pid for child in daemon.children()] == [worker]


@as_root
def test_accumulator_server_answers_the_driver_despite_a_silent_other_user(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accumulators, "AccumulatorServer", accumulators.AccumulatorServer)
    guard_accumulator_server()
    server = accumulators._start_update_server("token")
    try:
        with silent_connections([server.server_address] * 50) as opened:
            assert len(opened) == 50
            with socket.create_connection(server.server_address, timeout=10) as link:
                link.sendall(b"token" + struct.pack("!i", 0))
                assert read(link, 1) == b"\x01"
    finally:
        server.shutdown()
