"""Whether the sites have recorded which apply process gets which table by the running topology.

Durable when
    `receivers_noted` in `desired.json` is written after the last site has recorded it. Until then the sites' older
    records hold, even for a controller that started since.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from actors.site.receivers import note_receivers, receivers_of
from headrace.base.errors import HeadraceError
from headrace.base.plain_data import from_json
from topology.edits.receivers import Receivers

if TYPE_CHECKING:
    from actors.control.prepared_record import PreparedRecord
    from actors.hosting.runtime import ActorSystem
    from headrace.base.clock import Clock
    from topology.spec import TopologySpec

__all__ = ["NOTE_INTERVAL_S", "NotedReceivers"]

NOTE_INTERVAL_S = 5.0  # between two attempts to record which apply process gets which table, while a database is away


class NotedReceivers:
    """Lets the sites record which apply process gets which table.

    Args:
        clock: spaces the attempts.
    """

    def __init__(self, record: PreparedRecord, actors: ActorSystem, clock: Clock) -> None:
        self._record, self._actors, self._clock = record, actors, clock
        self._must_note = False
        self._note_at = 0.0

    def open(self) -> None:
        """Read the record; called again after the write that puts a topology in force."""
        self._must_note = not self._record.read().get("receivers_noted")

    def note(self, spec: TopologySpec) -> None:
        """Let the sites record it, if they have not yet; while a database is away, a later call retries.

        They get the state at the preparation of the databases, even from a controller that started since.

        Args:
            spec: the topology; every component has adopted it, and every site answers.
        """
        if not self._must_note or self._clock.monotonic() < self._note_at:
            return
        self._note_at = self._clock.monotonic() + NOTE_INTERVAL_S
        with contextlib.suppress(HeadraceError):
            stored = self._record.read().get("receivers")
            noted = (
                receivers_of(self._actors, spec, {})
                if stored is None  # an earlier version prepared them
                else {source: from_json(Receivers, document) for source, document in stored.items()}
            )
            note_receivers(self._actors, spec, noted)
            self._must_note = False
            self._record.update({"receivers_noted": True})
