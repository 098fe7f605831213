"""The command line in the test's process, which already has its imports and connections: these take seconds."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from unittest import mock

from headrace.cli.entry import main
from headrace.console.exit_codes import DONE

__all__ = ["commands_in", "run", "typed"]

# Ends where the sentence continues; a name with such a character is quoted.
_COMMAND = re.compile(
    r"headrace (?:check|copy|errors execute|errors delete|down|up|wait|verify|start|stop)"
    r"(?: (?!(?:brings|copies|copy|compares|shows|says|again|with|which|then|and|or)\b)(?:'[^']*'|[^\s`;,():]|:(?=\S))+)+"
)

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def run(*words: str) -> tuple[int, str, str]:
    """Run `headrace` with these words; return exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["headrace", *words]),
        _signals_kept(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0), out.getvalue(), err.getvalue()
    raise AssertionError("the command line did not exit")


def commands_in(printed: str) -> list[str]:
    """Return the commands in the printed text, in order, without duplicates."""
    return list(dict.fromkeys(found.strip() for found in _COMMAND.findall(printed)))


def typed(command: str, *, code: int = DONE) -> tuple[str, str]:
    """Run a printed command without a terminal to ask; return standard output and standard error.

    Args:
        command: as it is printed.
        code: expected exit code.
    """
    words = shlex.split(command)[1:]
    asks = words[0] == "copy" or "--purge" in words or words[:2] == ["errors", "delete"]
    found, out, err = run(*words, *(["--yes"] if asks else []))
    assert found == code, (command, out, err)
    return out, err


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore signal handlers, which the command may replace."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
