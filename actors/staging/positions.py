"""Acknowledged positions of a queue across restarts, with the sites to which each subscriber brings the changes.

The sites are needed because the queue may restart with another topology, in which other subscribers serve them. The
storage is one small JSON file, replaced atomically (`headrace.base.durable_file`): after a crash it is the old or the
new one. A saved position can be lower than the last acknowledged one, never higher.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from headrace.base.clock import Clock
from headrace.base.durable_file import replace_file
from headrace.base.errors import QueueError
from headrace.lcr.scn import Scn

__all__ = ["SAVE_PERIOD_S", "Places", "Positions", "PositionsFile", "SavedPositions"]

Positions = Mapping[str, Mapping[str, Scn]]
"""Acknowledged positions, by source and subscriber."""

Places = Mapping[str, Mapping[str, frozenset[str]]]
"""Sites to which each subscriber brings the changes, by source and subscriber."""

_FORMAT = 1

SAVE_PERIOD_S = 1.0  # between saves of positions: an fsync a second costs nothing, and purging is not urgent


class PositionsFile:
    """Positions by source and subscriber, in `acknowledged.json`.

    Args:
        folder: the queue's folder; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "acknowledged.json"

    def load(self) -> dict[str, dict[str, Scn]]:
        """Read the positions; empty when the queue never ran.

        Raises:
            QueueError: the file is damaged, which a crash cannot cause.
        """
        return self._read()[0]

    def places(self) -> Places:
        """Read the sites to which each subscriber brings the changes.

        They are missing for positions that an earlier version saved.

        Raises:
            QueueError: the file is damaged.
        """
        return self._read()[1]

    def save(self, positions: Mapping[str, Mapping[str, Scn]], places: Places | None = None) -> None:
        """Write the positions; durable when this returns.

        Args:
            positions: the positions, by source and subscriber.
            places: the sites to which the changes are brought; None: unknown.

        Raises:
            OSError: the file could not be written; the old one still exists.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        sites = {
            source: {subscriber: sorted(there) for subscriber, there in each.items()}
            for source, each in (places or {}).items()
        }
        replace_file(self._path, json.dumps({"format": _FORMAT, "acknowledged": positions, "places": sites}, indent=1))

    def _read(self) -> tuple[dict[str, dict[str, Scn]], Places]:
        try:
            content = json.loads(self._path.read_bytes())
            if content["format"] != _FORMAT:
                raise QueueError(
                    f"{self._path.name} has format {content['format']}, this version knows {_FORMAT}",
                    hint="start the version of Headrace that wrote it",
                )
            positions = {
                source: {subscriber: Scn(int(scn)) for subscriber, scn in subscribers.items()}
                for source, subscribers in content["acknowledged"].items()
            }
            return positions, {
                source: {subscriber: frozenset(map(str, sites)) for subscriber, sites in each.items()}
                for source, each in content.get("places", {}).items()
            }
        except FileNotFoundError:
            return {}, {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise QueueError(
                f"{self._path.name} of queue {self._folder.name} is damaged",
                hint="remove the file: the queue then asks for everything that is still in the redo log",
            ) from error


class SavedPositions:
    """Decides when an open queue saves its positions, and which save counts.

    The queue computes positions under its lock (`begin`), has them saved without it (`save`), and records the outcome
    under the lock again (`ended`). A queue that adopts another topology, or closes, saves at once (`save_now`): positions
    that it computed before are then outdated, and `save` ignores them.

    Args:
        file: the file, with one writer at a time.
        places: the sites to which the subscribers bring the changes.

    Attributes:
        places: as given; those of another topology after the queue has adopted it.
        problem: why the last save failed; empty: it succeeded.
    """

    def __init__(self, file: PositionsFile, places: Places, clock: Clock) -> None:
        self._file, self.places, self._clock = file, places, clock
        self._saving = threading.Lock()
        self._asked: Positions | None = None  # the argument of the last `begin`
        self._due_at = 0.0
        self.problem = ""

    @property
    def is_due(self) -> bool:
        """Whether a period has passed since the last save began."""
        return self._clock.monotonic() >= self._due_at

    def begin(self, positions: Positions) -> Positions:
        """Register positions that are to be saved; `save` gets the same object."""
        self._due_at = self._clock.monotonic() + SAVE_PERIOD_S
        self._asked = positions
        return positions

    def save(self, positions: Positions) -> None:
        """Make positions durable, unless they are outdated.

        Raises:
            OSError: the file could not be written; the old one still exists.
        """
        with self._saving:
            if positions is self._asked:
                self._file.save(positions, self.places)

    def ended(self, positions: Positions, problem: OSError | None) -> bool:
        """Record the outcome of `save`.

        Args:
            positions: the positions that were to be saved.
            problem: why that failed; None: it succeeded.

        Returns:
            Whether they are on disk; False also if they are outdated.
        """
        if positions is not self._asked:
            return False
        self.problem = "" if problem is None else f"positions cannot be saved: {problem.strerror}"
        return problem is None

    def save_now(self, positions: Positions, places: Places) -> None:
        """Save after any save in progress; a save that was requested but has not begun is cancelled.

        Args:
            positions: the positions, by source and subscriber.
            places: the sites by the topology of these positions.

        Raises:
            OSError: the file could not be written; the old one still exists.
        """
        with self._saving:
            self._asked = None
            self._file.save(positions, places)
