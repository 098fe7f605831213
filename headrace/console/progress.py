"""Live progress: a changing line in a terminal; elsewhere a line per change, and at least one per minute.

Nothing is printed with `--json`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headrace.console.output import Output

__all__ = ["live_lines", "watch_forever"]

WATCH_INTERVAL_S = 1.0
QUIET_INTERVAL_S = 2.0  # without a terminal: do not flood a log with progress
# Then the same line is repeated, so that the end of a log shows that the command continues and what it waits for.
REPEAT_INTERVAL_S = 60.0


@contextmanager
def live_lines(output: Output, what: str) -> Iterator[Callable[[str], None]]:
    """Show progress while the block runs.

    Args:
        output: output of the command.
        what: name of the activity, at the beginning of every line.
    """
    if output.as_json:
        yield lambda _: None
        return
    console = output.progress_console
    began = time.monotonic()
    if console.is_terminal:
        from rich.text import Text

        with console.status(Text(f"{what} ...")) as status:
            yield lambda text: status.update(Text(f"{what} [{time.monotonic() - began:.0f} s]: {text}"))
        return
    last_text, last_at = "", -QUIET_INTERVAL_S

    def show(text: str) -> None:
        nonlocal last_text, last_at
        now = time.monotonic()
        if now - last_at >= (QUIET_INTERVAL_S if text != last_text else REPEAT_INTERVAL_S):
            last_text, last_at = text, now
            output.say(f"{what} [{now - began:.0f} s]: {text}")

    yield show


def watch_forever(output: Output, look: Callable[[], RenderableType]) -> NoReturn:
    """Refresh a view every second until Ctrl-C.

    Args:
        output: output of the command; a terminal shows one changing view, a file or a pipe one view after another.
        look: returns the current view.
    """
    from rich.live import Live

    if not sys.stdout.isatty():
        while True:
            output.result(look())
            output.result("")
            output.flush()
            time.sleep(WATCH_INTERVAL_S)
    console = output.result_console
    console.soft_wrap = False  # a live display would cut lines at the terminal's edge instead of folding them
    with Live(look(), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_INTERVAL_S)
            live.update(look(), refresh=True)
