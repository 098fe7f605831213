"""Operators' requests for split streams (`headrace split | merge`), kept until they are fulfilled.

A restarted controller continues with them.
"""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

from headrace.base.durable_file import replace_file
from headrace.base.errors import PropagationError

__all__ = ["REQUESTS_FILE", "Requests"]

REQUESTS_FILE = "split_requests.json"  # in the state folder, beside the record of the topology

log = logging.getLogger("headrace")


class Requests:
    """The requests of one topology, by propagation: split off, or merge. Callable from any thread.

    Args:
        file: the file of the requests; None: they are kept in memory.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file, self._lock = file, threading.Lock()
        self._wanted = self._read()

    def get(self, propagation: str) -> bool | None:
        """Return whether a propagation is to be split off (True) or merged (False); None: no request."""
        return self._wanted.get(propagation)

    def names(self) -> tuple[str, ...]:
        """Return the propagations with a request."""
        return tuple(self._wanted)

    def put(self, propagation: str, *, split: bool) -> None:
        """Store a request, replacing an earlier one; durable when this returns.

        Args:
            propagation: name of the propagation.
            split: whether to split it off; False: merge it.

        Raises:
            PropagationError: the file could not be written; the earlier request holds.
        """
        with self._lock:
            self._save({**self._wanted, propagation: split})

    def drop(self, propagation: str, *, split: bool | None) -> None:
        """Drop a request that is fulfilled or obsolete. Idempotent; durable when this returns.

        Args:
            propagation: name of the propagation.
            split: value of the request; a newer request with another value stays.

        Raises:
            PropagationError: the file could not be written.
        """
        with self._lock:
            if propagation in self._wanted and self._wanted[propagation] == split:
                self._save({name: wanted for name, wanted in self._wanted.items() if name != propagation})

    def _save(self, wanted: dict[str, bool]) -> None:
        try:
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self._file, json.dumps(wanted) + "\n")
        except OSError as error:
            raise PropagationError(
                f"{self._file}: {error.strerror or error}: the request was not saved",
                hint="free space there, and try again",
            ) from error
        self._wanted = wanted

    def _read(self) -> dict[str, bool]:
        if self._file is None:
            return {}
        try:
            document = json.loads(self._file.read_text(encoding="utf-8"))
            return {str(name): bool(split) for name, split in document.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError) as error:
            log.warning("%s is damaged and is ignored: %s", self._file, error)  # the operator asks again
            return {}
