"""The controller's bookkeeping: all parts of its record, each kept by the object that acts on it.

Durable when
    `save` has returned: one write of `desired.json` puts a prepared topology in force, with everything that belongs to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from actors.control.earlier_shapes import EarlierShapes
from actors.control.kept_call import KeptCall
from actors.control.leaving import LeavingSites
from actors.control.noted_receivers import NotedReceivers
from actors.control.prepared_record import PreparedRecord
from actors.control.unrecorded import Unrecorded
from headrace.base.plain_data import as_json
from topology.edits.known_columns import TableColumns, names_columns, with_known_columns

if TYPE_CHECKING:
    from actors.control.desired import DesiredTopology
    from actors.hosting.runtime import ActorSystem
    from headrace.base.clock import Clock
    from topology.edits.receivers import Receivers
    from topology.spec import TopologySpec

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
        columns: by source, the columns of its tables of which a transformation names some; as of the preparation.
    """

    def __init__(self, state_dir: Path, actors: ActorSystem, clock: Clock, *, keep_call: str) -> None:
        self.record = PreparedRecord(state_dir)
        self.kept = KeptCall(self.record, keep_call)
        self.unrecorded = Unrecorded(self.record, actors, clock)
        self.left = LeavingSites(self.record, actors, clock)
        self.shapes = EarlierShapes(self.record, actors, clock)
        self.receivers = NotedReceivers(self.record, actors, clock)
        self.columns: dict[str, tuple[TableColumns, ...]] = {}

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
        self.columns = self.record.columns

    def lacks_columns(self, spec: TopologySpec) -> bool:
        """Return whether an earlier version prepared the topology, and recorded no columns for its transformations."""
        return "columns" not in self.record.read() and names_columns(spec)

    def informed(self, spec: TopologySpec) -> TopologySpec:
        """Return the topology as its clients get it: their transformations know the columns of their tables."""
        return with_known_columns(spec, self.columns)

    def save(
        self,
        desired: DesiredTopology,
        *,
        identities: Mapping[str, str],
        receivers: Mapping[str, Receivers],
        columns: Mapping[str, Sequence[TableColumns]],
    ) -> None:
        """Record that a topology is prepared.

        Args:
            desired: the topology.
            identities: identities of its databases, by site.
            receivers: which apply process gets which table, by source.
            columns: the columns of its tables, by source.
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
                "columns": {source: [as_json(each) for each in tables] for source, tables in columns.items()},
                "unseen": [],
            }
        )
        self.left.open()
        self.unrecorded.open()
        self.receivers.open()
        self.columns = self.record.columns
