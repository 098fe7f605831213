"""Required checkpoints: how much redo each capture process may still have to read.

Kept in memory exactly and on disk as a lower bound: what the file lags behind is kept longer, nothing more. A
capture process that is not registered keeps no redo, so the topology's are registered before anything is purged.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection
from pathlib import Path

from redo.segments import RedoFull, write_error
from streams.clock import Clock
from streams.durable_file import replace_file
from streams.errors import RedoError
from streams.scn import FIRST_SCN, Scn

__all__ = ["CHECKPOINT_SAVE_INTERVAL_S", "PurgeBounds", "RequiredCheckpoints"]

CHECKPOINT_SAVE_INTERVAL_S = 10.0  # what the file lags is mined again, nothing more
_FILE = "required_checkpoints.json"


class RequiredCheckpoints:
    """The required checkpoint SCNs of all captures that mine one redo folder. `record` may come from any thread.

    Args:
        folder: the redo folder; must exist.

    Raises:
        RedoError: the file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._required: dict[str, Scn] = {}
        if self._path.exists():
            try:
                self._required = {name: Scn(int(scn)) for name, scn in json.loads(self._path.read_text()).items()}
            except (ValueError, TypeError, AttributeError) as error:
                raise RedoError(
                    f"{_FILE} is damaged", hint="remove it: the captures tell again what they need", segment=_FILE
                ) from error
        self._saved = dict(self._required)

    @property
    def lowest(self) -> Scn | None:
        """The lowest of all captures; None when none is registered."""
        return min(list(self._required.values()), default=None)

    def register(self, capture: str) -> Scn:
        """Keep redo for a capture from now on; idempotent. Returns what is known of its need."""
        if capture not in self._required:
            self._required[capture] = FIRST_SCN
            self.save()
        return self._required[capture]

    def forget(self, capture: str) -> None:
        """Keep no redo for a capture that was dropped; idempotent."""
        if self._required.pop(capture, None) is not None:
            self.save()

    def forget_others(self, captures: Collection[str]) -> None:
        """Keep redo for these captures only: those of an older topology would keep all of it for ever."""
        for capture in [name for name in self._required if name not in captures]:
            self.forget(capture)

    def record(self, capture: str, scn: Scn) -> Scn:
        """Take note that a capture will never again mine below `scn`; it never moves back. Not yet on disk.

        Of a capture that is not registered nothing is kept: it was dropped, and only does not know yet.

        Args:
            capture: name of the capture process.
            scn: its required checkpoint SCN.

        Returns:
            What is on record for it; `scn` when it is not registered.
        """
        if capture not in self._required:
            return scn
        self._required[capture] = max(self._required[capture], scn)
        return self._required[capture]

    def save(self) -> None:
        """Make what is known durable.

        Raises:
            RedoFull: no space.
        """
        required = dict(self._required)
        if required == self._saved:
            return
        try:
            replace_file(self._path, json.dumps(required))
        except OSError as error:
            raise write_error(self._path, error) from error
        self._saved = required


class PurgeBounds:
    """Saves what bounds a purge: now and then, and before every purge.

    A capture process whose position was lost is taken for a new one, and waits for redo that is gone: so it is on disk before redo
    goes why it may.

    Args:
        saves: make the bounds durable; each may raise `RedoFull`.
        clock: of the interval.
    """

    def __init__(self, *saves: Callable[[], None], clock: Clock) -> None:
        self._saves, self._clock = saves, clock
        self._saved_at = clock.monotonic()

    def save(self, *, purges: bool) -> None:
        """Save when that is due. A full disk is no reason not to purge: what is on disk is a lower bound, whatever its age.

        Args:
            purges: redo is about to be removed.
        """
        now = self._clock.monotonic()
        if not purges and now - self._saved_at < CHECKPOINT_SAVE_INTERVAL_S:
            return
        self._saved_at = now
        with contextlib.suppress(RedoFull):
            for save in self._saves:
                save()
