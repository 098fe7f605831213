"""Acknowledged positions of a queue, kept across restarts, and to which sites those who acknowledged them bring the changes.

The next life may begin by another topology, in which others bring them there. One small JSON file, replaced atomically
(`streams.durable_file`): after a crash it is the old or the new one. A position can be lower than the last acknowledged
one, never higher.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from streams.durable_file import replace_file
from streams.errors import QueueError
from streams.scn import Scn

__all__ = ["Places", "PositionsFile"]

Places = Mapping[str, Mapping[str, frozenset[str]]]
"""By source and subscriber, the sites to which the subscriber brings the changes."""

_FORMAT = 1


class PositionsFile:
    """Positions by source and subscriber, in `acknowledged.json`.

    Args:
        folder: of the queue; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "acknowledged.json"

    def load(self) -> dict[str, dict[str, Scn]]:
        """Read them; empty when the queue never ran.

        Raises:
            QueueError: the file is damaged, which a crash cannot cause.
        """
        return self._read()[0]

    def places(self) -> Places:
        """Read the sites that each subscriber of the positions brings the changes to.

        Of those that an earlier version saved, they are not known.

        Raises:
            QueueError: the file is damaged.
        """
        return self._read()[1]

    def save(self, positions: Mapping[str, Mapping[str, Scn]], places: Places | None = None) -> None:
        """Write them; durable when it returns.

        Args:
            positions: by source and subscriber.
            places: to which sites the changes are brought; None: that is not known.

        Raises:
            OSError: they could not be written; the old ones are still there.
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
