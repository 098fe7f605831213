"""Distinguishing a copied folder from a moved one.

Files that name unique things (processes, a server's data) are invalid in a copy: they refer to those of the original.

A copied folder and a moved one look the same from inside, but a moved folder leaves nothing at its old place. So such a
file names the folder in which it was written. A folder is a copy when that original exists and still has the file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["is_copy"]


def is_copy(folder: Path, recorded: str, has_it: Callable[[Path], bool]) -> bool:
    """Return whether a record in a folder belongs to another folder.

    Args:
        folder: where the record was read.
        recorded: the folder that the record names as its own.
        has_it: whether a folder has the same record; called with the recorded folder if it differs from `folder`.

    Returns:
        True: `folder` is a copy. False: it is the recorded folder, perhaps under another name, or it was moved or
        restored from a backup.
    """
    original = Path(recorded)
    try:
        return not (original == folder or original.samefile(folder)) and has_it(original)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # it exists, and this user may not read it
        return True
