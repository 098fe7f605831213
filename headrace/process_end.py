"""How the command line's process ends when a verb does not: signals, closed pipes, and errors that are none of ours."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from typing import NoReturn

from headrace.console import DONE, FAILURE, WRONG_USE, Output
from streams.errors import ConfigError

__all__ = ["TERMINATED", "defect", "of_the_machine", "reader_left", "terminated", "wrong_use"]

TERMINATED = 143  # as shells report a program ended by SIGTERM


def terminated(number: int, frame: object) -> NoReturn:  # noqa: ARG001 - as Python calls it
    """End in order on SIGTERM: what a verb opened is closed on the way out."""
    sys.exit(TERMINATED)


def reader_left() -> int:
    """Whoever read our output has seen enough, as `headrace ... | head -1`: that is no error."""
    # Python flushes standard output once more when it ends, and would report the closed pipe then.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return DONE


def wrong_use(error: Exception) -> int:
    """Show a mistake in the arguments; 0 when it is something else."""
    # Typer brings click along under names that change between its versions; what can be shown stays the same.
    show = getattr(error, "show", None)
    if show is None or not hasattr(error, "exit_code"):
        return 0
    show()
    return WRONG_USE


def of_the_machine(output: Output, error: Exception) -> int:
    """Show what the operating system refused, of which file; 0 when it is something else."""
    if not isinstance(error, OSError) or not error.filename:
        return 0
    output.error(ConfigError(
        f"{error.filename}: {error.strerror}",
        hint="correct the rights or make room there, or name another place: `state_dir` in the file, --state-dir of the demo",
    ))
    return FAILURE


def defect(output: Output, error: Exception) -> int:
    """A defect: its traceback goes to a file, people get one line."""
    with tempfile.NamedTemporaryFile("w", prefix="headrace-traceback-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    output.say(f"error: unexpected {type(error).__name__}: {error}")
    output.say(f"fix: this is a defect of Headrace; its traceback is in {file.name}")
    return FAILURE
