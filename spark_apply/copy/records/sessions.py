"""The sessions of copies at the destination: every round ends the sessions of earlier rounds.

A task that is considered dead may live on, frozen (SIGSTOP, a network that drops packets) between reading a piece and
writing it. So each round is an incarnation of the copying sessions (`headrace.databases.postgres.destination.fencing`),
one higher than the round before. The driver opens a session of every number that earlier rounds used. It does so before
a round empties a table, and before apply servers get these numbers. That ends the old sessions, and their tasks cannot
open others.

Worked flow
    round 1: sessions 0 and 1 of incarnation 1; the task of session 1 freezes while it has a piece of t; its executor is
    lost
    round 2: the driver opens session 1 of incarnation 2: the frozen task's COPY is rolled back; t is emptied and copied
    again
    the task thaws: its session is gone, and a new one of incarnation 1 is refused
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.databases.ports import ApplyRecords, DestinationSession
    from spark_apply.apply_config import ApplyConfig

__all__ = ["CopySessions"]


@dataclass(slots=True, kw_only=True)
class CopySessions:
    """Opens the copying sessions of one apply process.

    Args:
        config: of the apply process.
        destination: the destination database.
        epoch: of the driver.
        incarnation: of this round's sessions.
    """

    config: ApplyConfig
    destination: ApplyRecords
    epoch: int
    incarnation: int = 0
    _given: set[int] = field(default_factory=set)  # numbers that tasks of earlier rounds may use

    def begin_round(self) -> None:
        """End the sessions of earlier rounds: pieces that their tasks have are written already, or never will be."""
        self.incarnation += 1
        for server in sorted(self._given):
            self.open(server).close()

    def open(self, server: int) -> DestinationSession:
        """Open a session of this round for the driver itself."""
        config = self.config
        return self.destination.open_session(
            config.topology, config.apply, server=server, epoch=self.epoch, tag=config.tag, incarnation=self.incarnation
        )

    def give(self, servers: Iterable[int]) -> None:
        """Allow tasks of this round to open sessions of these numbers."""
        self._given |= set(servers)

    def hand_over(self) -> None:
        """Hand the numbers of earlier rounds over to apply servers."""
        self.begin_round()
        self._given.clear()
