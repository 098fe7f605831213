"""The program `headrace`: loads the command line.

That takes a second on a slow machine, in which Ctrl-C is no defect, either.
"""

from __future__ import annotations

import os
import sys

from headrace.console.exit_codes import INTERRUPTED

__all__ = ["main"]

# what a command and its children write is its user's alone; components do the same (`actors.state_folder`)
UMASK = 0o077


def main() -> None:
    """Entry point; see `headrace.cli.app.main`."""
    os.umask(UMASK)
    try:
        from headrace.cli.app import main as command_line
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    command_line()
