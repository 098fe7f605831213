"""What is done to processes and is to be undone, remembered on disk: it is undone even when the one who did it was killed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from actors.cluster.known_process import KnownProcess, known_process, living
from headrace.base.durable_file import replace_file
from headrace.base.folder_place import is_copy
from headrace.faults.errors import NotFired

__all__ = ["ProcessesInForce"]


@dataclass(slots=True)
class ProcessesInForce:
    """What is done to processes and is to be undone. It is on disk before it is done.

    Args:
        file: in which it is kept.
    """

    file: Path
    _frozen: list[psutil.Process] = field(default_factory=list)
    _limited: list[tuple[psutil.Process, tuple[int, int]]] = field(default_factory=list)

    def freeze(self, processes: list[psutil.Process]) -> None:
        """Stop processes (SIGSTOP), in this order; one that ends meanwhile makes no difference."""
        self._frozen += processes
        self._save()
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.suspend()

    def limit_files(self, process: psutil.Process, size: int) -> None:
        """Let a process write no file beyond a size, as when its disk is full.

        Args:
            process: it.
            size: in bytes.

        Raises:
            NotFired: the system does not allow it.
        """
        try:
            before = process.rlimit(psutil.RLIMIT_FSIZE)
            self._limited.append((process, before))
            self._save()
            process.rlimit(psutil.RLIMIT_FSIZE, (size, before[1]))  # the soft limit: it can be raised again
        except (psutil.Error, OSError) as error:
            raise NotFired(f"the file size of process {process.pid} cannot be limited: {error}") from error

    def undo(self) -> None:
        """Continue what is frozen, lift every limit; idempotent."""
        for process in self._frozen:
            with contextlib.suppress(psutil.Error):
                process.resume()
        for process, before in self._limited:
            with contextlib.suppress(psutil.Error, OSError):
                process.rlimit(psutil.RLIMIT_FSIZE, before)
        self._frozen, self._limited = [], []
        self.file.unlink(missing_ok=True)

    def undo_earlier(self) -> bool:
        """Undo what an earlier one left that was killed; whether there was anything."""
        try:
            document: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        if is_copy(
            self.file.parent,
            document.get("folder", str(self.file.parent)),
            lambda original: (original / self.file.name).exists(),
        ):
            return False  # a copied state folder: what is in force is the original's
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
    """A process, so that another one with its id is not taken for it; nothing when it has ended."""
    with contextlib.suppress(psutil.Error):
        yield asdict(known_process(process))


def _living(named: Mapping[str, Any] | list[Any]) -> Iterator[psutil.Process]:
    """The process that `_named` named, unless it has ended. Earlier versions wrote its number and time of day."""
    known = (
        KnownProcess(**named)
        if isinstance(named, Mapping)
        else KnownProcess(pid=int(named[0]), created=float(named[1]))
    )
    process = living(known)
    if process is not None:
        yield process
