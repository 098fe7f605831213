"""Whether a folder is a copy.

Files in it that name what exists once (processes, a server's data) then speak of the original's.

What is copied and what is moved look the same from inside. The difference is that of a moved folder nothing is left at
its old place. So such a file names the folder that it was written in, and a folder is a copy when the original is there
and still has it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["is_copy"]


def is_copy(folder: Path, recorded: str, has_it: Callable[[Path], bool]) -> bool:
    """Whether what is recorded in a folder is another folder's.

    Args:
        folder: where the record was read.
        recorded: the folder that the record names as its own.
        has_it: whether a folder has the same record; asked of the recorded folder if that is another one.

    Returns:
        True: `folder` is a copy. False: it is the recorded one, also under another name, or it was moved or restored
            from a backup.
    """
    original = Path(recorded)
    try:
        return not (original == folder or original.samefile(folder)) and has_it(original)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # it is there, and others may not look into it
        return True
