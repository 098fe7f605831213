"""Bounding a log that another process writes: it cannot be renamed under that process, so it is copied and emptied."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

__all__ = ["LOG_BYTES_MAX", "bound_log"]

LOG_BYTES_MAX = 16 << 20  # days of a driver that works; with the copy twice that on disk


def bound_log(file: Path, bytes_max: int = LOG_BYTES_MAX) -> bool:
    """Put a log aside as `<file>.1` once it is too large, in place of the one put aside before.

    Lines written between copying and emptying are lost: a few, of a log for people.

    Args:
        file: opened for appending by whoever writes it, so that it goes on at the beginning.
        bytes_max: larger ones are put aside.

    Returns:
        Whether it was.
    """
    try:
        if file.stat().st_size <= bytes_max:
            return False
    except FileNotFoundError:
        return False
    shutil.copyfile(file, file.with_name(f"{file.name}.1"))
    os.truncate(file, 0)
    return True
