"""The controller's bookkeeping: all parts of its record, each kept by the object that acts on it.

Durable when
    `save` has returned: one write of `desired.json` puts a prepared topology in force, with everything that belongs to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from actors.control.earlier_shapes import EarlierShapes
from actors.control.kept_call import KeptCall
from actors.control.leaving import LeavingSites
from actors.control.noted_receivers import NotedReceivers
from actors.control.prepared_record import PreparedRecord
from actors.control.unrecorded import Unrecorded
from headrace.base.plain_data import as_json

if TYPE_CHECKING:
    from actors.control.desired import DesiredTopology
    from actors.hosting.runtime import ActorSystem
    from headrace.base.clock import Clock
    from topology.edits.receivers import Receivers

__all__ = ["Bookkeeping"]


class Bookkeeping:
    """The parts of the record. They share one file, so they are opened together.

    Args:
        state_dir: state folder of the topology, with the record.
        clock: spaces attempts to reach them.
        keep_call: as for `KeptCall`.

    Attributes:
        record: the file.
        kept: what a call of `up --keep-existing` keeps.
        unrecorded: sources whose preparation is not recorded.
        left: sites that an edit left and that are not cleared.
        shapes: earlier shapes of tables.
        receivers: whether the sites have recorded which apply process gets which table.
    """

    def __init__(self, state_dir: Path, actors: ActorSystem, clock: Clock, *, keep_call: str) -> None:
        self.record = PreparedRecord(state_dir)
        self.kept = KeptCall(self.record, keep_call)
        self.unrecorded = Unrecorded(self.record, actors, clock)
        self.left = LeavingSites(self.record, actors, clock)
        self.shapes = EarlierShapes(self.record, actors, clock)
        self.receivers = NotedReceivers(self.record, actors, clock)

    def open(self) -> None:
        """Read the record.

        Raises:
            ConfigError: the file is damaged.
        """
        self.kept.open()
        self.unrecorded.open()
        self.left.open()
        self.shapes.open()
        self.receivers.open()

    def save(
        self, desired: DesiredTopology, *, identities: Mapping[str, str], receivers: Mapping[str, Receivers]
    ) -> None:
        """Record that a topology is prepared.

        Args:
            desired: the topology.
            identities: identities of its databases, by site.
            receivers: which apply process gets which table, by source.
        """
        self.record.update(
            {
                "topology": desired.spec.name,
                "file": str(desired.spec.file),
                **desired.recorded(),
                "earlier_shapes": self.shapes.take(desired.spec),
                "identities": identities,
                "left": [as_json(each) for each in self.left.with_edit(desired.edit.before, desired.spec)],
                "receivers_noted": False,
                "receivers": {source: as_json(each) for source, each in receivers.items()},
                "unseen": [],
            }
        )
        self.left.open()
        self.unrecorded.open()
        self.receivers.open()
