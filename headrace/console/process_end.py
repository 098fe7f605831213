"""Abnormal ends of the command line's process: signals, closed pipes, and errors that are not Headrace's."""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
import termios
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from headrace.base.errors import ConfigError
from headrace.console.exit_codes import DONE, FAILURE, WRONG_USE
from headrace.console.output import Output

__all__ = [
    "TERMINATED",
    "code_of_exit",
    "defect",
    "goes_on",
    "of_the_machine",
    "reader_left",
    "terminal_is_gone",
    "terminated",
    "terminated_as_interrupt",
    "uninterrupted",
    "unread",
    "wrong_use",
]

_SIGNALLED = 128  # shells add this to the number of the signal that ended a program
TERMINATED = _SIGNALLED + signal.SIGTERM

_ended_with: int | None = None


def terminated(number: int, frame: object) -> NoReturn:  # noqa: ARG001 - as Python calls it
    """Exit in an orderly way on SIGTERM or SIGHUP: resources of the running verb are closed.

    The arguments are those of a handler of `signal.signal`.
    """
    global _ended_with
    _ended_with = _SIGNALLED + number
    sys.exit(_ended_with)


def code_of_exit(error: SystemExit) -> object:
    """Return the code to exit with: while Ray waits for an actor, it replaces the code of `terminated` by 1.

    Args:
        error: the error that ends the process.
    """
    return error.code if _ended_with is None else _ended_with


@contextmanager
def goes_on(output: Output, what: str) -> Iterator[None]:
    """Print what continues when Ctrl-C or SIGTERM ends the block.

    Args:
        output: prints it.
        what: what continues, and which command shows it.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        output.say(what)
        raise


def terminal_is_gone(error: BaseException) -> bool:
    """Return whether an error came from writing to a closed terminal, which is no defect.

    Args:
        error: the error that ended a verb.
    """
    return isinstance(error, OSError) and error.errno == errno.EIO and any(_is_hung_up(number) for number in (1, 2))


def _is_hung_up(number: int) -> bool:
    try:
        termios.tcgetattr(number)
    except termios.error as error:  # a file or a pipe has another error
        return bool(error.args[0] == errno.EIO)
    return False


def unread() -> object:
    """Return the exit code when the terminal is gone: the signal's, if one reported it."""
    _silence(1, 2)
    return FAILURE if _ended_with is None else _ended_with


def reader_left() -> int:
    """Return the exit code when the reader closed the pipe, as in `headrace ... | head -1`, which is no error."""
    _silence(1)
    return DONE


def _silence(*numbers: int) -> None:
    """Redirect these files to /dev/null.

    Python flushes its outputs at exit; it would report closed files and exit with another code.
    """
    for number in numbers:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def wrong_use(error: Exception) -> int:
    """Show a mistake in the arguments; return 0 if the error is something else."""
    # Typer vendors click under names that change between versions; the error's methods stay the same.
    show = getattr(error, "show", None)
    if show is None or not hasattr(error, "exit_code"):
        return 0
    show()
    return WRONG_USE


def of_the_machine(output: Output, error: Exception) -> int:
    """Show an error of the operating system with its file.

    Args:
        output: prints it.
        error: the error that ended a verb.

    Returns:
        The exit code; 0: it is another error, or one without a file, and nothing was printed.
    """
    if not isinstance(error, OSError) or not error.filename:
        return 0
    output.error(
        ConfigError(
            f"{error.filename}: {error.strerror}",
            hint="correct the rights, free space, or choose another folder: `state_dir` in the file, --state-dir of the"
            " demo",
        )
    )
    return FAILURE


def defect(output: Output, error: Exception) -> int:
    """Report a defect: write the traceback to a temporary file and print its path.

    Args:
        output: prints it.
        error: an unexplained error.

    Returns:
        The exit code.
    """
    with tempfile.NamedTemporaryFile("w", prefix="headrace-traceback-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    output.say(f"error: unexpected {type(error).__name__}: {error}")
    output.say(f"fix: this is a defect of Headrace; its traceback is in {file.name}")
    return FAILURE


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the block like Ctrl-C, with a complete clean-up.

    Under `nohup`, a closed terminal stays ignored.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with _handling(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let the clean-up finish: Ctrl-C takes effect after the block, because a half-done clean-up would do harm.

    Raises:
        KeyboardInterrupt: after the block, if SIGINT, SIGTERM or SIGHUP arrived during it.
    """
    came: list[int] = []
    try:
        with _handling(lambda number, _: came.append(number), signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            yield
    finally:
        if came:
            raise KeyboardInterrupt


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals during the block, in the main thread only, except signals that the process ignores.

    `nohup` and background jobs of scripts start programs that ignore SIGHUP and SIGINT.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, handler) for number in numbers if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
