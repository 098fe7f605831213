"""Tables that are copied while others are applied: how they are skipped, and how they join.

Job
    Skip a table whose copy is not finished; keep the queue from discarding the changes that it needs; let it join when
    it is copied.

Main path
    hold -> (its snapshot, its copy) -> join -> the coordinator settles -> DestinationDatabase.join_tables -> the reader
    begins again at the copy's SCN, with only the joining tables' rows until it is back where it was.

States (of a table, recorded at the destination; see `spark_apply.copy.instantiation`)
    COPIED     its copy is equal. Its later changes are still skipped, and the queue has them.
    JOINING    its later changes are being applied; they are applied when the low watermark has reached `ahead_scn`.

Durable when
    One transaction records the low watermark that goes back, how far the other tables are ahead, and which tables join,
    while no group is unfinished. Until its outcome is known nothing else is recorded. A driver that dies before it
    leaves the table COPIED; one that dies after it leaves it JOINING. Both continue from the recorded low watermark.

Bounds
    While a table is held, the queue keeps everything after its copy's SCN: in memory, then on disk, up to the queue's
    `memory` and `spill`. When that is full, the queue is PAUSED FOR FLOW CONTROL: what it holds is applied, and later
    changes wait in the redo log until the copy ends. Nothing is lost, but nothing replicates meanwhile: give the queue
    more disk. One join runs at a time: the next begins when the tables of the last have caught up.

Worked flow
    hold: nothing above 90 is acknowledged to the queue; snapshot of T at 100 -> hold 100. The others continue; T's rows
      are dropped.
    T is copied, low watermark 170 -> join: low watermark 100, ahead 170, T JOINING -> dequeue from 100: only T's rows
    up to 170, everything above. A kill at 130: low watermark 130, ahead 170, T JOINING: only T's rows from 130 to 170,
    ...

Only the loop's thread uses this module; other threads use `spark_apply.driver.join_calls`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

from headrace.lcr.scn import Scn

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationDatabase, Instantiation, PartOf
    from spark_apply.driver.coordinator import ApplyCoordinator
    from spark_apply.driver.reader import ApplyReader

__all__ = ["TableJoins"]


@dataclass(slots=True)
class _Asked:
    leave_out: tuple[tuple[str, str], ...] = ()
    parts: tuple[PartOf, ...] = ()
    join: tuple[Instantiation, ...] = ()
    admit: Mapping[PartOf, Scn] = field(default_factory=dict)
    done: Event = field(default_factory=Event)


class TableJoins:
    """Skips tables and lets them join, for one apply process.

    Args:
        destination: where joins are recorded.
        reader: skips the rows.
        coordinator: settles before a join.
    """

    def __init__(
        self,
        topology: str,
        apply: str,
        *,
        epoch: int,
        destination: DestinationDatabase,
        reader: ApplyReader,
        coordinator: ApplyCoordinator,
    ) -> None:
        self._topology, self._apply, self._epoch = topology, apply, epoch
        self._destination, self._reader, self._coordinator = destination, reader, coordinator
        self._asked: deque[_Asked] = deque()
        # By `Instantiation.key`: tables that were asked to join, until they are skipped again.
        self._joins: dict[tuple[str, str], Event] = {}
        self._hold_scn: Scn | None = None
        self.is_uncertain = False
        """Whether a join has begun and its outcome is unknown: nothing else may be recorded."""

    # ------------------------------------------------------------------ calls from the copies

    def hold(self, scn: Scn | None) -> None:
        """Make the queue keep everything after `scn`; None: nothing is needed any more."""
        self._hold_scn = scn

    def bounded(self, durable: Scn) -> Scn:
        """Return the part of `durable` that may be acknowledged to the queue."""
        return durable if self._hold_scn is None else Scn(min(durable, self._hold_scn))

    def leave_out(self, tables: Collection[tuple[str, str]], parts: Collection[PartOf] = ()) -> Event:
        """Skip these tables. The event is set when none of their rows is in flight to the destination.

        Args:
            tables: names at the destination.
            parts: partitions that are copied alone.
        """
        for key in (*tables, *(part.key for part in parts)):
            self._joins.pop(key, None)
        self._asked.append(_Asked(leave_out=tuple(tables), parts=tuple(parts)))
        return self._asked[-1].done

    def admit(self, parts: Mapping[PartOf, Scn]) -> Event:
        """Apply skipped partitions again from a TRUNCATE of their tables; the event is set when that is in effect."""
        self._asked.append(_Asked(admit=dict(parts)))
        return self._asked[-1].done

    @property
    def truncated_parts(self) -> dict[PartOf, Scn]:
        """Copied partitions whose table waits to be truncated, and the order SCN of that TRUNCATE."""
        return self._reader.truncated_parts

    def join(self, tables: Sequence[Instantiation]) -> Event:
        """Let copied tables join. The event is set when that is recorded; `is_joined` tells when they have caught up.

        A copy joins once, so a caller that got no answer in time may ask again. A second join would apply its changes
        twice.
        """
        new = tuple(each for each in tables if each.key not in self._joins)
        if not new:
            return self._joins[tables[-1].key]
        self._asked.append(_Asked(join=new))
        self._joins |= {each.key: self._asked[-1].done for each in new}
        return self._asked[-1].done

    def emptied_scn(self, table: tuple[str, str]) -> Scn | None:
        """Return the SCN at which a skipped table was last emptied; None: it was not."""
        return self._reader.emptied_scn(table)

    @property
    def truncated_tables(self) -> dict[str, tuple[Scn, frozenset[int]]]:
        """By table identity: the order SCN of the last TRUNCATE of several partitions, and their numbers."""
        return self._reader.truncated_tables

    @property
    def applied_scn(self) -> Scn:
        """Everything below this is applied, except for tables that are skipped or joining."""
        return self._coordinator.watermarks.low

    @property
    def is_joined(self) -> bool:
        """Whether the tables that joined last have caught up."""
        return self._coordinator.watermarks.low >= self._coordinator.watermarks.progress.ahead_scn

    # ------------------------------------------------------------------ the loop's turn

    @property
    def is_due(self) -> bool:
        """Whether a request needs the coordinator settled or idle: offer and accept nothing, and call `advance`."""
        return bool(self._asked) and (
            not self._asked[0].join or (self._coordinator.watermarks.may_settle and self.is_joined)
        )

    def advance(self) -> bool:
        """Do the next request when the coordinator has settled; True: the caller must dequeue again.

        To skip tables, the coordinator only has to be idle: what is applied above the low watermark is not applied
        again. Joining tables set the low watermark back, and then a single SCN must tell what is applied.

        Raises:
            DatabaseUnavailable: the destination did not answer; call again.
            FencedError: a newer driver runs.
        """
        asked = self._asked[0]
        self._coordinator.settle(leaves_above=not asked.join)
        if not (self._coordinator.is_settled if asked.join else self._coordinator.is_idle):
            return False
        progress = self._coordinator.watermarks.progress
        if asked.join:
            self.is_uncertain = True
            progress = self._destination.join_tables(
                self._topology, self._apply, self._epoch, asked.join, through=self._coordinator.watermarks.low
            )
            self.is_uncertain = False
            self._reader.all_joined()
        self._reader.change_tables(leave_out=asked.leave_out, join=asked.join, parts=asked.parts, admit=asked.admit)
        self._coordinator.rewound(progress)
        self._reader.restart(progress)
        self._asked.popleft().done.set()
        return True
