"""The subscribers that a queue refuses, stored for the restarted queue.

A refused apply process aborts and does not subscribe again before an operator acts. A restarted queue learns of the
refusal only from this file. Without it, everything would be held for the apply process until the queue and the redo log
are full, for all other subscribers too. The queue that a combined capture process mounts also has such a file
(`actors.combined`).

One small JSON file, replaced atomically (`headrace.base.durable_file`): after a crash it is the old or the new one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from headrace.base.durable_file import replace_file
from headrace.base.errors import QueueError
from headrace.lcr.scn import Scn

__all__ = ["Refusals"]

log = logging.getLogger("headrace")


class Refusals:
    """The file `refused.json` of one queue.

    By source and subscriber, it contains the SCN up to which changes that the subscriber lacks are gone.

    Args:
        folder: the queue's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "refused.json"
        self._gone = self._read()

    def gone_scn(self, source: str, subscriber: str) -> Scn | None:
        """Return the SCN up to which changes that a refused subscriber lacks are gone; None: it is not refused.

        Args:
            source: source of the changes.
            subscriber: name of the subscriber.
        """
        return self._gone.get(source, {}).get(subscriber)

    def everyone(self) -> Mapping[str, Collection[str]]:
        """Return the refused subscribers by source."""
        return self._gone

    def record(self, source: str, gone: Mapping[str, Scn | None]) -> None:
        """Record subscribers that are refused from now on, or no longer; durable when this returns.

        Args:
            source: source of the changes.
            gone: by subscriber, the SCN up to which changes that it lacks are gone; None: it is no longer refused.

        Raises:
            QueueError: the file could not be written; the earlier record holds.
        """
        changed = {**self._gone.get(source, {}), **gone}
        self._write({**self._gone, source: {subscriber: scn for subscriber, scn in changed.items() if scn is not None}})

    def forget_others(self, interests: Mapping[str, Collection[str]]) -> None:
        """Remove the refusals of former subscribers: one that is added again is not refused for its earlier need.

        Args:
            interests: sources by subscriber, of all current subscribers.

        Raises:
            QueueError: the file could not be written; the earlier record holds.
        """
        self._write(
            {
                source: {subscriber: scn for subscriber, scn in each.items() if source in interests.get(subscriber, ())}
                for source, each in self._gone.items()
            }
        )

    def _write(self, gone: Mapping[str, Mapping[str, Scn]]) -> None:
        wanted = {source: dict(each) for source, each in gone.items() if each}
        if wanted == self._gone:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps({"refused": wanted}, indent=1))
        except OSError as error:
            raise QueueError(
                f"{self._path.name} of queue {self._path.parent.name} cannot be written: {error.strerror or error}",
                hint="check the disk; once there is space, retrying is automatic",
            ) from error
        self._gone = wanted

    def _read(self) -> dict[str, dict[str, Scn]]:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            return {
                source: {name: Scn(int(scn)) for name, scn in each.items()}
                for source, each in document["refused"].items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # The queue then holds what follows for the subscriber, and refuses it again when it subscribes.
            log.warning("%s is damaged and is ignored: %s", self._path, error)
            return {}
