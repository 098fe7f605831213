"""The verbs of the command line, as it registers them."""

from __future__ import annotations

from collections.abc import Iterator

import typer

__all__ = ["verbs"]


def verbs(command: typer.core.TyperCommand, *path: str) -> Iterator[tuple[str, typer.core.TyperCommand]]:
    """Yield every verb below a command, with its words."""
    for name, each in getattr(command, "commands", {}).items():
        yield from verbs(each, *path, name)
    if path and not hasattr(command, "commands"):
        yield " ".join(path), command
