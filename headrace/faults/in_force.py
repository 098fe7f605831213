"""Reversible faults in processes, recorded on disk so that they are undone even after their author was killed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from actors.cluster.known_process import KnownProcess, known_process, living
from headrace.base.durable_file import replace_file
from headrace.base.folder_place import is_copy
from headrace.faults.errors import NotFired

__all__ = ["ProcessesInForce"]


@dataclass(slots=True)
class ProcessesInForce:
    """Faults in processes that must be undone. Each is on disk before it takes effect.

    Args:
        file: the record on disk.
    """

    file: Path
    _frozen: list[psutil.Process] = field(default_factory=list)
    _limited: list[tuple[psutil.Process, tuple[int, int]]] = field(default_factory=list)

    def freeze(self, processes: list[psutil.Process]) -> None:
        """Stop processes (SIGSTOP) in this order; one that ends meanwhile is skipped."""
        self._frozen += processes
        self._save()
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.suspend()

    def limit_files(self, process: psutil.Process, size: int) -> None:
        """Limit the size of files that a process can write, as when its disk is full.

        Args:
            process: the process.
            size: size in bytes.

        Raises:
            NotFired: the system does not allow the limit.
        """
        try:
            before = process.rlimit(psutil.RLIMIT_FSIZE)
            self._limited.append((process, before))
            self._save()
            process.rlimit(psutil.RLIMIT_FSIZE, (size, before[1]))  # the soft limit: it can be raised again
        except (psutil.Error, OSError) as error:
            raise NotFired(f"the file size of process {process.pid} cannot be limited: {error}") from error

    def undo(self) -> None:
        """Continue frozen processes and lift every limit; idempotent."""
        for process in self._frozen:
            with contextlib.suppress(psutil.Error):
                process.resume()
        for process, before in self._limited:
            with contextlib.suppress(psutil.Error, OSError):
                process.rlimit(psutil.RLIMIT_FSIZE, before)
        self._frozen, self._limited = [], []
        self.file.unlink(missing_ok=True)

    def undo_earlier(self) -> bool:
        """Undo the faults of an earlier process that was killed; return whether there were any."""
        try:
            document: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        if is_copy(
            self.file.parent,
            document.get("folder", str(self.file.parent)),
            lambda original: (original / self.file.name).exists(),
        ):
            return False  # a copied state folder: the faults are the original's
        self._frozen = [process for each in document["frozen"] for process in _living(each)]
        self._limited = [
            (process, (int(soft), int(hard)))
            for *each, soft, hard in document["limited"]
            for process in _living(each[0] if len(each) == 1 else each)
        ]
        self.undo()
        return True

    def _save(self) -> None:
        frozen = [named for process in self._frozen for named in _named(process)]
        limited = [(named, *before) for process, before in self._limited for named in _named(process)]
        replace_file(
            self.file,
            json.dumps({"folder": str(self.file.parent.resolve()), "frozen": frozen, "limited": limited}) + "\n",
        )


def _named(process: psutil.Process) -> Iterator[dict[str, Any]]:
    """Identify a process so that a later one with the same id is not mistaken for it; nothing when it has ended."""
    with contextlib.suppress(psutil.Error):
        yield asdict(known_process(process))


def _living(named: Mapping[str, Any] | list[Any]) -> Iterator[psutil.Process]:
    """Return the process that `_named` identified, unless it has ended. Earlier versions wrote id and creation time."""
    known = (
        KnownProcess(**named)
        if isinstance(named, Mapping)
        else KnownProcess(pid=int(named[0]), created=float(named[1]))
    )
    process = living(known)
    if process is not None:
        yield process
