"""Bounds a log that another process writes.

Renaming would not redirect that process, so the log is copied and truncated.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

__all__ = ["LOG_BYTES_MAX", "bound_log"]

LOG_BYTES_MAX = 16 << 20  # days of normal operation; twice that on disk with the copy


def bound_log(file: Path, bytes_max: int = LOG_BYTES_MAX) -> bool:
    """Rotate a log to `<file>.1` if it is too large, replacing the previous one.

    A few lines that are written between copying and truncating are lost.

    Args:
        file: the log; its writer must have opened it for appending, so that it continues at the beginning.
        bytes_max: a larger log is rotated.

    Returns:
        Whether it was rotated.
    """
    try:
        if file.stat().st_size <= bytes_max:
            return False
    except FileNotFoundError:
        return False
    shutil.copyfile(file, file.with_name(f"{file.name}.1"))
    os.truncate(file, 0)
    return True
