"""Named places where a fault test can make a process die, fail or stall.

A failpoint does nothing unless the environment variable `HEADRACE_FAILPOINTS` names it. Every process that inherits
the environment sees the variable (Ray actors get it through their runtime environment, Spark tasks through the
driver). Its value is a `;`-separated list of `name=action[@folder][*times]`:

    apply.after_commit=kill@.headrace/fp*1

A fault test arms and disarms failpoints of a running topology without a restart: `HEADRACE_FAILPOINT_FOLDER` names a
folder, and while that folder has a file `armed`, its content is such a list. Processes with this variable look for the
file at each failpoint. Without either variable a failpoint costs two comparisons.

Actions: `kill` (SIGKILL to the own process), `error` (raises OSError ENOSPC), `stall` (sleeps until the
marker file is removed). A firing is recorded by creating `<folder>/<name>.<n>` *before* the action, with
O_EXCL. So `times` holds across restarts and processes, and a test can assert that the fault fired.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ARMED_FILE", "ENVIRONMENT", "FAILPOINTS", "FOLDER_ENVIRONMENT", "failpoint", "fired_count"]

ENVIRONMENT = "HEADRACE_FAILPOINTS"
FOLDER_ENVIRONMENT = "HEADRACE_FAILPOINT_FOLDER"
ARMED_FILE = "armed"  # replaced atomically (written under another name, then renamed)

# Every failpoint with its place. Arming an unknown name is refused.
FAILPOINTS = {
    "log_writer.before_fsync": "redo written, not yet fsynced, not yet confirmed to the source",
    "log_writer.after_fsync": "redo fsynced, not yet confirmed to the source",
    "log_writer.write": "before a redo record is written (disk full)",
    "redo_receiver.write": "before received redo is written to the standby redo log (disk full)",
    "redo_receiver.before_fsync": "redo written to the standby redo log, not yet fsynced, not yet acknowledged to the"
    " source",
    "redo_receiver.after_fsync": "redo fsynced in the standby redo log, not yet acknowledged to the source",
    "capture.after_enqueue": "a batch was sent to the queue, its acceptance not yet seen",
    "queue.after_enqueue": "a batch is in the queue, its acceptance not yet sent",
    "queue.spill": "before a batch is spilled to disk (disk full)",
    "propagation.after_send": "a batch was sent to the destination queue, acceptance not yet seen",
    "apply.before_commit": "data and progress written, not yet committed",
    "apply.after_commit": "data and progress committed, not yet reported",
    "apply.conflict": "a conflict was met and a handler is about to decide, nothing of the row is written",
    "apply.error_queue_write": "the transaction is being written to the error queue, not yet committed",
    "apply.execute_error": "an error transaction is being executed again, not yet committed",
}

_STALL_POLL_S = 0.05  # poll interval of a stalled process
_STALL_MAX_S = 300.0  # no test waits longer; then the process continues


@dataclass(frozen=True, slots=True)
class _Armed:
    action: str
    folder: Path | None
    times: int


def _parse(text: str) -> dict[str, _Armed]:
    armed: dict[str, _Armed] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        name, _, rest = entry.partition("=")
        rest, _, times = rest.partition("*")
        action, _, folder = rest.partition("@")
        if name not in FAILPOINTS or action not in {"kill", "error", "stall"}:
            message = f"{ENVIRONMENT}: unknown failpoint or action in {entry!r}"
            raise ValueError(message)
        armed[name] = _Armed(action, Path(folder) if folder else None, int(times) if times else 1)
    return armed


class _ArmedFolder:
    """Failpoints armed by a file, which is read again only when it was replaced."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / ARMED_FILE
        self._seen: tuple[int, int] | None = None
        self._armed: dict[str, _Armed] = {}

    def armed(self) -> dict[str, _Armed]:
        try:
            found = self._file.stat()
            seen = (found.st_ino, found.st_mtime_ns)
            if seen != self._seen:
                self._armed, self._seen = _parse(self._file.read_text(encoding="utf-8")), seen
        except FileNotFoundError:
            self._armed, self._seen = {}, None
        return self._armed


_ARMED = _parse(os.environ.get(ENVIRONMENT, ""))
_FOLDER = _ArmedFolder(Path(os.environ[FOLDER_ENVIRONMENT])) if os.environ.get(FOLDER_ENVIRONMENT) else None


def failpoint(name: str) -> None:
    """Run the action that the environment arms for the failpoint `name`; do nothing when it is not armed.

    Raises:
        OSError: the armed action is `error` (ENOSPC).
    """
    if not _ARMED and _FOLDER is None:
        return
    armed = _ARMED.get(name)
    if armed is None and _FOLDER is not None:
        armed = _FOLDER.armed().get(name)
    if armed is None or not _take_turn(name, armed):
        return
    if armed.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif armed.action == "error":
        raise OSError(errno.ENOSPC, f"failpoint {name}")
    elif armed.folder is not None:
        _stall(armed.folder / f"{name}.hold")


def fired_count(folder: Path, name: str) -> int:
    """Return how often the failpoint `name` fired, over all processes and restarts.

    Args:
        folder: the folder after "@" in the armed entry, which records the firings.
        name: one of `FAILPOINTS`.
    """
    return len([p for p in folder.glob(f"{name}.*") if p.suffix != ".hold"])


def _take_turn(name: str, armed: _Armed) -> bool:
    if armed.folder is None:
        return True
    armed.folder.mkdir(parents=True, exist_ok=True)
    for turn in range(armed.times):
        try:
            os.close(os.open(armed.folder / f"{name}.{turn}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        return True
    return False


def _stall(hold: Path) -> None:
    hold.touch()
    deadline = time.monotonic() + _STALL_MAX_S
    while hold.exists() and time.monotonic() < deadline:
        time.sleep(_STALL_POLL_S)
