"""A process that a file names, identified so that another process with its number is never taken for it.

The system reuses process numbers. The time of day at which a process started does not identify it either. The system
derives it from its clock at every query: a step of the clock (time service, a resumed virtual machine) moves it for all
running processes. The number of clock ticks between the start of the system and that of the process is constant,
within one run of the system.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["KnownProcess", "known_process", "living"]

_STARTED = 19  # index in the words behind the name in /proc/PID/stat: "starttime", in clock ticks
_ROUNDING_S = 0.05  # a start time is a multiple of a clock tick of 0.01 s


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProcess:
    """One process.

    Args:
        pid: process number.
        created: time of day at which it started, as the system reported it; decides only if `boot` is empty.
        name: name of its program, for people.
        boot: identity of the system's run; empty: the system has none, or an earlier version wrote this.
        ticks: clock ticks from the start of the system to that of the process.
    """

    pid: int
    created: float
    name: str = "?"
    boot: str = ""
    ticks: int = 0


def known_process(process: psutil.Process) -> KnownProcess:
    """Return the facts that identify a process, for a record.

    Raises:
        psutil.Error: the process has ended.
    """
    boot, ticks = _boot(), _ticks(process.pid)
    name = "?"
    with contextlib.suppress(psutil.Error):
        name = str(process.name())
    return KnownProcess(
        pid=process.pid,
        created=process.create_time(),
        name=name,
        boot=boot if ticks is not None else "",
        ticks=ticks or 0,
    )


def living(known: KnownProcess) -> psutil.Process | None:
    """Return the recorded process; None: it ended, even if another process has its number now."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(known.pid)
        if known.boot:  # noqa: SIM108
            is_same = (known.boot, known.ticks) == (_boot(), _ticks(known.pid))
        else:
            is_same = abs(process.create_time() - known.created) < _ROUNDING_S
        if is_same and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _ticks(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # the name may contain anything, and ends with the last bracket
        return int(text.rpartition(")")[2].split()[_STARTED])
    except (OSError, IndexError, ValueError):
        return None
