"""Processes that serve gRPC start other programs."""

from __future__ import annotations

import os
import subprocess
import sys

_STARTS = """
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
import protos
import grpc
server = grpc.server(ThreadPoolExecutor(2))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
grpc.channel_ready_future(grpc.insecure_channel(f"127.0.0.1:{port}")).result(30)
for _ in range(40):
    # As another user, as a database server: such a child is made by fork.
    done = subprocess.run(["true"], user=os.geteuid(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert (done.returncode, done.stdout) == (0, b""), done
"""


def test_program_started_next_to_grpc_begins_without_warnings_of_forks() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run(
        [sys.executable, "-c", _STARTS], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
