"""How the process of the command line ends abnormally: signals, closed pipes, and errors that are not Headrace's."""

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

_SIGNALLED = 128  # shells add it to the number of the signal that ended a program
TERMINATED = _SIGNALLED + signal.SIGTERM

_ended_with: int | None = None


def terminated(number: int, frame: object) -> NoReturn:  # noqa: ARG001 - as Python calls it
    """Exit in an orderly way on SIGTERM or SIGHUP: resources of the running verb are closed.

    See `signal.signal` for the arguments.
    """
    global _ended_with
    _ended_with = _SIGNALLED + number
    sys.exit(_ended_with)


def code_of_exit(error: SystemExit) -> object:
    """The code to exit with: while it waits for an actor, Ray makes 1 of the code of `terminated`.

    Args:
        error: that ends the process.
    """
    return error.code if _ended_with is None else _ended_with


@contextmanager
def goes_on(output: Output, what: str) -> Iterator[None]:
    """Say what goes on when Ctrl-C or SIGTERM ends the block.

    Args:
        output: where it is printed.
        what: goes on, and which command shows it.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        output.say(what)
        raise


def terminal_is_gone(error: BaseException) -> bool:
    """Whether an error is that of writing to a terminal that was closed: that is no defect.

    Args:
        error: that ended a verb.
    """
    return isinstance(error, OSError) and error.errno == errno.EIO and any(_is_hung_up(number) for number in (1, 2))


def _is_hung_up(number: int) -> bool:
    try:
        termios.tcgetattr(number)
    except termios.error as error:  # of a file or a pipe another one
        return bool(error.args[0] == errno.EIO)
    return False


def unread() -> object:
    """The code to exit with when the terminal is gone: of the signal that said so, if it did."""
    _silence(1, 2)
    return FAILURE if _ended_with is None else _ended_with


def reader_left() -> int:
    """The reader of our output closed the pipe, as in `headrace ... | head -1`: that is not an error."""
    _silence(1)
    return DONE


def _silence(*numbers: int) -> None:
    """Let nobody read these files.

    Python flushes its outputs at exit, and would then report that they are closed and exit with another code.
    """
    for number in numbers:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def wrong_use(error: Exception) -> int:
    """Show a mistake in the arguments; 0 when it is something else."""
    # Typer vendors click under names that change between versions; the error's methods stay the same.
    show = getattr(error, "show", None)
    if show is None or not hasattr(error, "exit_code"):
        return 0
    show()
    return WRONG_USE


def of_the_machine(output: Output, error: Exception) -> int:
    """Show an error of the operating system with its file.

    Args:
        output: where it is printed.
        error: any that ended a verb.

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
        output: where it is printed.
        error: that nothing else explains.

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

    Under `nohup` a closed terminal stays ignored.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with _handling(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let the clean-up finish: a Ctrl-C in the middle would leave things as they must not stay.

    It takes effect after the block.

    Raises:
        KeyboardInterrupt: behind the block, if SIGINT, SIGTERM or SIGHUP came during it.
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
    """Handle these signals during the block, in the main thread (no other may), but for those that the process ignores.

    `nohup` and scripts' background jobs start programs that ignore SIGHUP and SIGINT.
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
