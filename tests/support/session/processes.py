"""Processes of a test session, found through an inherited environment variable (Linux only)."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Programs that must not outlive a test session. Ray rewrites the titles of its Python workers to "ray::...", which also
# overwrites the environment that the kernel shows. But those end with their raylet, which is in the list.
SERVERS = ("postgres", "pg_ctl", "java", "raylet", "gcs_server", "headrace")


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    command: str


def left_over(marker: str) -> list[Process]:
    """Return live servers that inherited `NAME=value` in their environment; empty where there is no /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if pid == os.getpid():
            continue
        # A process may end meanwhile; another user's cannot be read, and is not ours.
        with suppress(OSError):
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            if not arguments[0]:  # a zombie or a kernel thread
                continue
            environment = (folder / "environ").read_bytes().split(b"\0")
            if marker.encode() in environment and is_server(arguments):
                found.append(Process(pid, b" ".join(arguments).decode(errors="replace").strip()[:200]))
    return found


def is_server(arguments: list[bytes]) -> bool:
    """Return whether a command line is that of a server: by its program, or by the script that Python runs."""
    names = {Path(os.fsdecode(argument)).name for argument in arguments[:2]}
    return any(name in SERVERS for name in names) or arguments[0].startswith(b"ray::")


def end(processes: list[Process]) -> None:
    """Kill the processes, each by its own id."""
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGKILL)
