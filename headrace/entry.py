"""The program `headrace`: loads the command line. That takes a second on a slow machine, in which Ctrl-C is no defect, either."""

from __future__ import annotations

import sys

__all__ = ["INTERRUPTED", "main"]

INTERRUPTED = 130  # as shells report a program ended by Ctrl-C


def main() -> None:
    """Entry point; see `headrace.cli.main`."""
    try:
        from headrace.cli import main as command_line
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    command_line()
