"""Looks for a planted secret in every place where it must not be."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

FILE_BYTES_MAX = 64 << 20  # logs are bounded below that


def places_with(secret: str, folders: Iterable[Path]) -> list[str]:
    """Return the command lines and environments of processes, and the files below folders, that hold the secret.

    Args:
        secret: the planted text.
        folders: searched recursively.
    """
    wanted = secret.encode()
    return [place for place, content in (*_processes(), *_files(folders)) if wanted in content]


def _processes() -> Iterator[tuple[str, bytes]]:
    for folder in Path("/proc").glob("[0-9]*"):
        for kind in ("cmdline", "environ"):
            with contextlib.suppress(OSError):  # the process has ended, or is another user's
                yield f"{folder / kind} ({_name(folder)})", (folder / kind).read_bytes()


def _name(folder: Path) -> str:
    return (folder / "comm").read_text().strip()


def _files(folders: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    seen: set[Path] = set()
    for top in folders:
        for folder, _, names in os.walk(top, followlinks=True):
            real = Path(folder).resolve()
            if real in seen:
                continue
            seen.add(real)
            for path in (Path(folder) / name for name in names):
                with contextlib.suppress(OSError):
                    if path.is_file():  # reading a socket would block
                        with path.open("rb") as file:
                            yield str(path), file.read(FILE_BYTES_MAX)
