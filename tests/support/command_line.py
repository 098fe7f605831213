"""The command line in the test's own process: what it imports and connects to, which takes seconds, is there already."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from collections.abc import Iterator
from unittest import mock

from headrace.entry import main

__all__ = ["run"]

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def run(*words: str) -> tuple[int, str, str]:
    """Run `headrace` with these words: exit code, standard output, standard error."""
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


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """It takes them over, as a program may."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
