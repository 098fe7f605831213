"""A user's Ray cluster that takes work from any caller is reported; one that asks for a token is not.

Only the control service answers, as in a cluster.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

from actors.cluster.openness import takes_work_from_anybody
from actors.security.links import ray_findings
from spark_apply.application.environment import LOOPBACK
from tests.support.session.bounds import STALL_S

pytestmark = [pytest.mark.cluster]


def wait_listens(address: str) -> None:
    host, _, port = address.partition(":")
    until = time.monotonic() + STALL_S
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)


@contextmanager
def control_service(folder: Path, **access: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = Path(ray.__file__).parent / "core" / "src" / "ray" / "gcs" / "gcs_server"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | LOOPBACK | access
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(program),
                f"--log_dir={folder}",
                f"--gcs_server_port={port}",
                "--node-ip-address=127.0.0.1",
                "--session-name=s",
                f"--session-dir={folder}",
                "--config_list=e30=",
            ],
            env=environment,
            stdout=log,
            stderr=log,
            cwd="/",
        )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_the_check_asks_without_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    token = tmp_path / "token"
    token.write_text("5" * 64)
    # The token of the user who asks must not open a cluster that is closed to others.
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    with control_service(tmp_path, RAY_AUTH_MODE="disabled") as address:
        wait_listens(address)
        assert takes_work_from_anybody(address)
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("RAY_ADDRESS", address)  # where Ray looks for "auto" before it looks at running clusters
            (found,) = ray_findings("auto")
        assert "takes work from anybody" in found.problem
        assert not found.is_error
    with control_service(tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token)) as address:
        wait_listens(address)
        assert not takes_work_from_anybody(address)
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert not takes_work_from_anybody("auto")
    assert list(ray_findings("")) == []
