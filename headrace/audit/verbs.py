"""Verbs of the command line that the audit log records, and what it records of them.

Each verb passes through `noting`, which records those that change something.

A recorded command has two lines: one when it has read its topology, before it does anything, and one when it ends. A
command that was killed has only the first. A command that cannot be recorded continues and says so: on a full disk,
`stop` and `down` are what an operator needs.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.audit.log import FILE, AuditLog
from headrace.audit.operator import login_user, named
from headrace.base.errors import HeadraceError
from headrace.console.exit_codes import DONE, FAILURE, FINDING, INTERRUPTED
from headrace.console.output import ReaderLeft, exit_code_of
from headrace.console.process_end import code_of_exit

__all__ = ["NOTED", "READ_ONLY", "Noted", "began", "noting", "written_arguments"]

NOTED: Mapping[str, frozenset[str]] = {
    "up": frozenset(),
    "down": frozenset(),
    "start": frozenset(),
    "stop": frozenset(),
    "split": frozenset(),
    "merge": frozenset(),
    "capture": frozenset({"first_scn", "start_scn"}),
    "copy": frozenset(),
    "sequences": frozenset({"advance"}),
    "chaos": frozenset(),
    "errors edit": frozenset(),
    "errors execute": frozenset(),
    "errors delete": frozenset(),
}
"""By verb, the options of which one must be given: without them it only shows something. Empty: always recorded."""

READ_ONLY = frozenset(
    {
        "check",
        "plan",
        "simulate",
        "doctor",
        "status",
        "wait",
        "track",
        "explain",
        "verify",
        "conflicts",
        "audit",
        "errors list",
        "errors show",
        "certs",  # writes files that nothing uses until they are named, and overwrites none
        "demo",  # has its own databases, and removes them
    }
)
_VALUES = frozenset({"sets"})  # column=value: row values must not enter any log
_ITEMS_MAX = 100  # of a list of numbers or tables: a readable line
_CHARACTERS_MAX = 300  # of one argument: a name has 63 bytes, a path seldom more than this


class Noted:
    """One command that is recorded.

    Args:
        verb: with its words, such as "errors edit".
        arguments: as parsed by the command line.
        say: prints a message.
    """

    def __init__(self, verb: str, arguments: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self._who = {
            "id": secrets.token_hex(8),
            "verb": verb,
            "uid": os.getuid(),
            "user": named(os.getuid()),
            **_login(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self._arguments = written_arguments(arguments)
        self._say = say
        self._log: AuditLog | None = None

    def begin(self, state_dir: Path) -> None:
        """Record that the command begins; at most once.

        Args:
            state_dir: its topology's state folder.
        """
        if self._log is None:
            self._log = AuditLog(state_dir)
            self._write(self._log, "began", {"arguments": self._arguments})

    def end(self, outcome: Mapping[str, Any]) -> None:
        """Record how the command ended, unless it ended before it had a topology.

        Args:
            outcome: with its exit code or error code.
        """
        if self._log is not None:
            self._write(self._log, "ended", outcome)

    def _write(self, log: AuditLog, event: str, more: Mapping[str, Any]) -> None:
        try:
            log.append(
                {
                    "at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                    "event": event,
                    **self._who,
                    **more,
                }
            )
        except OSError as error:
            self._say(
                f"warning: {log.state_dir / FILE} does not record that this command {event}: {error.strerror or error}"
            )


_running: ContextVar[Noted | None] = ContextVar("_running", default=None)


@contextmanager
def noting(verb: str, arguments: Mapping[str, Any], say: Callable[[str], None]) -> Iterator[Callable[[object], None]]:
    """Record a verb of the command line while the block runs it. The arguments are those of `Noted`.

    Yields:
        A function to call with the verb's return value.
    """
    needed = NOTED.get(verb)
    if needed is None or (needed and not any(arguments.get(option) for option in needed)):
        yield lambda _: None
        return
    noted, returned = Noted(verb, arguments, say), [DONE]
    token = _running.set(noted)
    try:
        yield lambda code: returned.append(code if isinstance(code, int) else DONE)
    except BaseException as error:
        noted.end(_outcome_of(error))
        raise
    else:
        noted.end(
            {
                "outcome": "finding" if returned[-1] == FINDING else "done" if returned[-1] == DONE else "failed",
                "exit_code": returned[-1],
            }
        )
    finally:
        _running.reset(token)


def began(state_dir: Path) -> None:
    """Record the running verb, which has read its topology, if it changes something.

    Args:
        state_dir: the topology's state folder.
    """
    noted = _running.get()
    if noted is not None:
        noted.begin(state_dir)


def _outcome_of(error: BaseException) -> dict[str, Any]:
    """Return how a command ended with an exception.

    It was refused before it changed anything, failed on the way, or was interrupted.
    """
    if isinstance(error, HeadraceError):
        code = exit_code_of(error)
        return {"outcome": "failed" if code == FAILURE else "refused", "exit_code": code, "code": error.code}
    # Typer vendors click under names that change between versions: its Abort is known by its name.
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        return {"outcome": "interrupted", "exit_code": INTERRUPTED}
    if isinstance(error, SystemExit):  # a signal
        return {"outcome": "interrupted", "exit_code": code_of_exit(error)}
    if isinstance(error, ReaderLeft):
        return {"outcome": "interrupted", "exit_code": DONE}
    return {"outcome": "failed", "exit_code": FAILURE, "code": type(error).__name__}


def _login() -> dict[str, Any]:
    """Return who logged in, if the system keeps it."""
    user = login_user()
    return {"login_uid": None, "login": None} if user is None else {"login_uid": user, "login": named(user)}


def written_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a command's arguments for the log: those that were given, bounded, without row values.

    Args:
        arguments: as parsed by the command line.
    """
    return {
        name: _written(name, given)
        for name, given in arguments.items()
        if given is not None and given is not False and given not in ("", (), [])
    }


def _written(name: str, given: object) -> object:
    if isinstance(given, (list, tuple)):
        shown = [_written(name, each) for each in given[:_ITEMS_MAX]]
        return [*shown, f"and {len(given) - _ITEMS_MAX} more"] if len(given) > _ITEMS_MAX else shown
    if isinstance(given, (bool, int, float)):
        return given
    text = str(given)
    if name in _VALUES:
        text = text.partition("=")[0]
    return text if len(text) <= _CHARACTERS_MAX else f"{text[:_CHARACTERS_MAX]}..."
