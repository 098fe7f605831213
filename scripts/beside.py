"""Run two commands at once: the first has the machine, the second takes what the first leaves of it.

usage: python scripts/beside.py FIRST... -- SECOND...

`make test` uses it. Tests of whole topologies wait for processes to start for a quarter of their time, and other tests use it. What the second command
prints is shown when both have ended; the exit code is the first one of the two that is not 0.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# A tenth of the weight of a process as it usually starts: it yields to all of them, and yet goes on beside two busy ones, so that what it waits for comes in time.
NICENESS = 10
ENDED_S = 60.0  # servers that tests have started take a moment to end


def main(arguments: Sequence[str]) -> int:
    """Run both commands.

    Args:
        arguments: words of the first command, "--", words of the second one.

    Returns:
        The exit code: 0 if both ended well, else that of the first command, or of the second one if only that failed.
    """
    if "--" not in arguments[1:-1]:
        sys.stderr.write("usage: python scripts/beside.py FIRST... -- SECOND...\n")
        return 2
    at = arguments.index("--")
    # A job that a shell runs in the background ignores Ctrl-C, and all that it starts would: the second command could not be ended orderly.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what runs in another session is ended on the way
    with tempfile.TemporaryFile() as output:
        second = subprocess.Popen(arguments[at + 1 :], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        try:
            _yield_to_others(second.pid)
            first_code = subprocess.call(arguments[:at])
            second_code = second.wait()
        finally:
            _end(second)
            output.seek(0)
            sys.stdout.flush()
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
    return first_code or second_code


def _yield_to_others(pid: int) -> None:
    """Lower the priority of a session; Linux compares the priorities of sessions first, if it is built to."""
    os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(f"{NICENESS}\n", encoding="ascii")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt it if it still runs, as Ctrl-C does with the first command: pytest ends its servers then."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(ENDED_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
