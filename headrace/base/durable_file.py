"""Small files that survive a crash of the machine."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["remove_file", "replace_file", "sync_folder"]


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically and durably: after any crash it is the old one or the new one.

    Args:
        path: the file; its folder must exist.
        text: the new content.

    Raises:
        OSError: the file could not be written; the old one is still there.
    """
    aside = _aside(path)
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_folder(path.parent)


def remove_file(path: Path) -> None:
    """Remove a file that `replace_file` writes, and the leftover of an interrupted replacement; idempotent."""
    for each in (path, _aside(path)):
        each.unlink(missing_ok=True)


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def sync_folder(folder: Path) -> None:
    """Make creations, renames and removals in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
