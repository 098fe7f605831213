"""`headrace audit`: the commands in the audit log, each with its beginning and its end."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.audit.log import FILE, AuditLog
from headrace.base.errors import counted
from headrace.console.exit_codes import DONE
from headrace.console.output import Output

__all__ = ["list_commands"]

_NO_END = "no end: it is running, or was killed"


def list_commands(output: Output, state_dir: Path, last: int) -> int:
    """Print the newest commands of the log, oldest first.

    Args:
        output: prints them.
        state_dir: the topology's state folder.
        last: maximum number of commands.

    Returns:
        The exit code.
    """
    lines = AuditLog(state_dir).lines()
    commands = _commands(lines.entries)[-last:]
    output.json({"commands": commands, "damaged_lines": lines.damaged})
    for command in commands:
        output.result(_line(command))
    if not commands:
        output.result("no command is recorded")
    if lines.damaged:
        output.say(f"warning: {counted(lines.damaged, 'line')} of {state_dir / FILE} cannot be read")
    return DONE


def _commands(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one document per command, in the order in which they began: its first line, and how it ended."""
    commands: dict[Any, dict[str, Any]] = {}
    for number, entry in enumerate(entries):
        command = commands.setdefault(entry.get("id", number), {"began": None, "ended": None, "outcome": None})
        event = "ended" if entry.get("event") == "ended" else "began"
        command |= {name: value for name, value in entry.items() if name not in {"at", "event"}} | {
            event: entry.get("at")
        }
    return list(commands.values())


def _line(command: Mapping[str, Any]) -> str:
    login = command.get("login")
    who = f"{command.get('user')}{f' (login {login})' if login not in {None, command.get('user')} else ''}@{command.get('host')}"
    code = f" {command['code']}" if command.get("code") else ""
    outcome = f"{command['outcome']}{code} at {command['ended']}" if command["outcome"] else _NO_END
    return f"{command['began'] or 'before this log'}  {who}  {command['verb']} {_words(command.get('arguments') or {})}: {outcome}".replace(
        " :", ":"
    )


def _words(arguments: Mapping[str, Any]) -> str:
    words = [
        f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}" for name, value in arguments.items()
    ]
    return shlex.join(words)
