"""The program `headrace`: loads the command line.

Loading takes a second on a slow machine; Ctrl-C during that time is no defect either.
"""

from __future__ import annotations

import os
import sys

from headrace.console.exit_codes import INTERRUPTED

__all__ = ["main"]

# Files of a command and its children are readable by its user only; components do the same (`actors.state_folder`).
UMASK = 0o077


def main() -> None:
    """Entry point of the program; calls `headrace.cli.app.main`."""
    os.umask(UMASK)
    try:
        from headrace.cli.app import main as command_line
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    command_line()
