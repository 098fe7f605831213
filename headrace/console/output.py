"""Terminal output: messages, errors with their fix, JSON. The only module that writes to the terminal."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.base.errors import ConfigError, HeadraceError
from headrace.console.exit_codes import FAILURE, FINDING, WRONG_USE
from headrace.lcr.scn import scn_text as position_text
from headrace.status.overview import FoundProblem
from topology.printed_commands import commands_with_file, with_file

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

    from headrace.databases.ports import Finding

__all__ = [
    "Output",
    "ReaderLeft",
    "exit_code_of",
    "printable",
    "scn_text",
    "seconds_text",
]

PIPE_WIDTH = 200
OF_A_KIND_MIN = 3  # findings of one kind from which on they are merged
PLACES_MAX = 8  # listed for merged findings: about a line; `--verbose` lists all
# Names of single things in a sentence: without them, sentences of one kind are equal.
_NAMES = re.compile(r'"(?:[^"]|"")*"|\'[^\']*\'|\b[\w$]+(?:\.[\w$]+)+|\b\d+\b')


# Control characters, and characters that change the direction of text; line feeds and tabs are text.
_ORDERS = {
    **{code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)},
    0x7F: "\u2421",
    **dict.fromkeys((*range(0x80, 0xA0), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd"),
}


def printable(text: str) -> str:
    """Return a text without terminal controls, which names and messages of databases may contain."""
    return text.translate(_ORDERS)


class ReaderLeft(Exception):  # noqa: N818 - not an error
    """The reader of our output closed the pipe. Not a BrokenPipeError: click and rich exit with 1 on that."""


def exit_code_of(error: HeadraceError) -> int:
    """Return the exit code for an error."""
    if error.is_finding:
        return FINDING
    return WRONG_USE if isinstance(error, ConfigError) else FAILURE


def _kind(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what findings of one kind have in common: the site, and the sentence without names."""
    return row["is_error"], row["path"].partition(" ")[0], _NAMES.sub("", row["problem"])


def _with_file(text: Text) -> Text:
    """Return a text whose commands name the user's file."""
    shown = text.copy()
    for start, end, command in reversed(commands_with_file(text.plain, Output.file)):
        shown = shown[:start].append(command).append(shown[end:])
    return shown


class Output:
    """Output of a command: results to standard output, everything else to standard error.

    Args:
        as_json: results are JSON; nothing else goes to standard output.
        in_lines: one JSON document per line, for a command that prints several.
    """

    file: ClassVar[Path | str] = ""
    """The topology's file, as named on the command line; it is inserted into printed commands.

    Empty: the verb has no file.
    """

    def __init__(self, *, as_json: bool = False, in_lines: bool = False) -> None:
        self.as_json = as_json
        self._indent = None if in_lines else 2
        self._consoles: dict[bool, Console] = {}

    def _console(self, *, err: bool) -> Console:
        if err not in self._consoles:
            from rich.console import Console
            from rich.segment import Segment
            from rich.text import Text

            class PipedConsole(Console):
                def on_broken_pipe(self) -> None:
                    raise ReaderLeft

                # The file is inserted before lines are wrapped and cells are cut.
                def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - as Rich has them
                    return _with_file(super().render_str(text, **options))

                def render(
                    self, renderable: RenderableType, options: ConsoleOptions | None = None
                ) -> Iterable[Segment]:
                    for each in super().render(
                        _with_file(renderable) if isinstance(renderable, Text) else renderable, options
                    ):
                        yield each if each.control else Segment(printable(each.text), each.style)

            stream = sys.stderr if err else sys.stdout
            # A file or a pipe has no width: do not wrap lines.
            width = None if stream.isatty() else PIPE_WIDTH
            # Names and messages are printed, which contain brackets and colons: `[a]` is no markup, and `site:a:` no
            # emoji.
            self._consoles[err] = PipedConsole(
                stderr=err, highlight=False, markup=False, emoji=False, soft_wrap=True, width=width
            )
        return self._consoles[err]

    @property
    def progress_console(self) -> Console:
        """The console for live displays: standard error, so that results can be piped."""
        return self._console(err=True)

    @property
    def result_console(self) -> Console:
        """The console for live displays that are results: standard output."""
        return self._console(err=False)

    def say(self, text: str) -> None:
        """Print a message that is not a result."""
        self._console(err=True).print(text)

    def result(self, text: object) -> None:
        """Print a readable result (a renderable of rich, or text); print nothing with `--json`."""
        if not self.as_json:
            self.result_console.print(text)

    def json(self, document: object) -> None:
        """Print the result as one JSON document, with `--json`."""
        if self.as_json:
            try:
                text = json.dumps(document, indent=self._indent, default=_encode)
                sys.stdout.write(with_file(text, Output.file, in_json=True) + "\n")
            except BrokenPipeError as error:
                raise ReaderLeft from error
            self.flush()

    def flush(self) -> None:
        """Flush standard output.

        Raises:
            ReaderLeft: the reader closed the pipe.
        """
        try:
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise ReaderLeft from error

    def error(self, error: HeadraceError) -> None:
        """Print an error and its fix, without a traceback."""
        findings = [asdict(finding) for finding in getattr(error, "findings", ())]
        self.json(
            {
                "error": type(error).__name__,
                "code": error.code,
                "message": error.message,
                "hint": error.hint,
                "context": error.context,
                **({"findings": findings} if findings else {}),
            }
        )
        self._console(err=True).print(f"error: {error.message}", style="red")
        if error.hint:
            self._console(err=True).print(f"fix: {error.hint}")

    def findings(
        self, findings: Iterable[Finding | FoundProblem | Mapping[str, Any]], *, is_verbose: bool = False
    ) -> None:
        """List findings where the verdict goes, errors first.

        With `--json`, where they are in the document, they go to standard error.

        Args:
            findings: all of them.
            is_verbose: list each one; otherwise several of one kind are merged, errors with every fix.
        """
        rows = sorted(
            (each if isinstance(each, Mapping) else asdict(each) for each in findings),
            key=lambda row: not row["is_error"],
        )
        count = Counter(map(_kind, rows))
        kinds: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for number, row in enumerate(rows):
            kind = _kind(row)
            kinds.setdefault((number,) if is_verbose or count[kind] < OF_A_KIND_MIN else kind, []).append(row)
        for of_a_kind in kinds.values():
            self._findings_of_a_kind(of_a_kind)

    def _findings_of_a_kind(self, rows: Sequence[Mapping[str, Any]]) -> None:
        console, (first, *others) = self._console(err=self.as_json), rows
        style, word = ("red", "error") if first["is_error"] else ("yellow", "warning")
        console.print(f"{word}: {first['path']}: {first['problem']}", style=style)
        for fix in dict.fromkeys(row["fix"] for row in (rows if first["is_error"] else rows[:1])):
            console.print(f"  fix: {fix}")
        if others:
            places = ", ".join(row["path"].rpartition(" ")[2] for row in others[:PLACES_MAX])
            more = f", and {len(others) - PLACES_MAX} more" if len(others) > PLACES_MAX else ""
            console.print(f"  {len(others)} more of this kind: {places}{more}; --verbose lists each", style=style)


def scn_text(scn: int | None) -> str:
    """Return an SCN in readable form; "unknown" for None."""
    return position_text(scn) if scn else "unknown"


def seconds_text(seconds: float | None) -> str:
    """Return a duration in readable form; "unknown" for None."""
    if seconds is None:
        return "unknown"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36_000 else f"{seconds / 3600:.1f} h"


def bytes_text(count: int | None) -> str:
    """Return a size in readable form; "unknown" for None."""
    if count is None:
        return "unknown"
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _encode(value: object) -> object:
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    return str(value)
