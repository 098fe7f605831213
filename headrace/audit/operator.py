"""Who runs a command, as the system knows it; environment variables are not trusted."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

__all__ = ["login_user", "named", "operator"]

_LOGIN = Path("/proc/self/loginuid")
_NO_LOGIN = 2**32 - 1  # of a process that no login has started


def operator() -> str:
    """Return the process's user, and the login user if `sudo` changed it, with the host's name."""
    user, login = os.getuid(), login_user()
    name = named(user) if login is None or login == user else f"{named(user)} (login {named(login)})"
    return f"{name}@{socket.gethostname()}"


def login_user() -> int | None:
    """Return the user who logged in, who stays the same under `sudo` and `su`.

    None: nobody logged in, as in a service, or the system does not keep it.
    """
    try:
        found = int(_LOGIN.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if found == _NO_LOGIN else found


def named(user: int) -> str:
    """Return a user's name, or the number if there is no name."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
