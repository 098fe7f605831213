"""Who runs a command, as the system knows it; no variable of the environment is asked."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

__all__ = ["login_user", "named", "operator"]

_LOGIN = Path("/proc/self/loginuid")
_NO_LOGIN = 2**32 - 1  # of a process that no login has begun


def operator() -> str:
    """Who edits: the process's user, and who logged in where `sudo` made that another one."""
    user, login = os.getuid(), login_user()
    name = named(user) if login is None or login == user else f"{named(user)} (login {named(login)})"
    return f"{name}@{socket.gethostname()}"


def login_user() -> int | None:
    """The user who logged in, which stays what it is under `sudo` and `su`.

    None: nobody did, as in a service, or the system does not keep it.
    """
    try:
        found = int(_LOGIN.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if found == _NO_LOGIN else found


def named(user: int) -> str:
    """The name of a user; the number where there is no name."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
