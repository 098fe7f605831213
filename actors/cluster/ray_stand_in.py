"""Small replacements for three of Ray's processes, each of which imports all of Ray (50 MB, half a second of CPU time).

    watch   Ray's first process (`ray start --block`), when the node is up: it ends all others when GCS or raylet has ended, and
            both when it is ended itself
    agent   the node's dashboard agent, which does nothing in a cluster without a dashboard, and without which the raylet ends
    java    the start of a Java worker: it becomes the JVM

A program run by its path, for a Python that imports nothing else (`actors.cluster.ray_head`).
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
_CONTEXT = "--serialized-runtime-env-context="
_UNUSED_PORT = "-1"  # as Ray's own agent writes it for services that it does not offer
_ORDERLY_S = 4.0  # a raylet ends its workers in 1 to 3 s
_LOOK_S = 1.0  # an agent whose raylet was killed ends within this time
_POLL_S = 0.05


def watch(raylet: int, gcs: int) -> int:
    """Wait until one of the two ends, or this process is told to end; then end the rest.

    Args:
        raylet: process id of the raylet, a child of this process.
        gcs: process id of Ray's control service, also a child.

    Returns:
        The exit status: 0 when told to end, 1 when one of them ended by itself.
    """
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sys.exit(0))
        while os.wait()[0] not in {raylet, gcs}:
            pass
    except SystemExit:
        # The raylet first: it notifies its workers and the control service.
        for pid in (raylet, gcs):
            _end(pid, signal.SIGTERM)
            _wait(pid)
        return 0
    finally:
        for pid in (raylet, gcs):
            _end(pid, signal.SIGKILL)
    return 1


def agent(session: Path, node: str) -> None:
    """Report to the raylet that no port is served here; end with the raylet.

    Args:
        session: Ray's folder of the session, in which a node's processes leave their ports.
        node: hexadecimal id of the node.
    """
    raylet = os.getppid()
    for name in _PORTS:
        file = session / f"{name}_{node}"
        unfinished = file.with_name(f"{file.name}.unfinished")
        unfinished.write_text(_UNUSED_PORT)
        unfinished.replace(file)
    while os.getppid() == raylet:
        time.sleep(_LOOK_S)


def java_command(arguments: list[str]) -> list[str]:
    """Return the command that the process of a Java worker becomes.

    Args:
        arguments: Ray's program that sets a worker up, the folder of Ray's jars, and the raylet's arguments for that
            program.
    """
    program, jars, *given = arguments
    own = [each for each in given if each.startswith(("--language=", _CONTEXT))]
    if any(each.startswith(_CONTEXT) and each != f"{_CONTEXT}{{}}" for each in own):
        # A runtime environment, which a topology does not have: only Ray can interpret it.
        return [sys.executable, program, *given]
    return ["java", "-cp", f"{jars}/*:", *(each for each in given if each not in own)]


def _end(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait(pid: int) -> None:
    deadline = time.monotonic() + _ORDERLY_S
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def _value(name: str) -> str:
    return next(each.partition("=")[2] for each in sys.argv if each.startswith(f"--{name}="))


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        sys.exit(watch(int(_value("raylet")), int(_value("gcs"))))
    if sys.argv[1] == "java":
        command = java_command(sys.argv[2:])
        os.execvp(command[0], command)  # noqa: S606 - the raylet's arguments, which are ours
    agent(Path(_value("session-dir")), _value("node-id"))
