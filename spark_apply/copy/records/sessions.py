"""The sessions of copies at the destination: every round of copies ends those of the rounds before it.

A task that is taken for dead may live on, frozen (SIGSTOP, a network that drops packets) between reading a piece and
writing it. So each round is an incarnation of the sessions that copy (`headrace.databases.postgres.destination.fencing`), a
higher one than the round before. Before a round empties a table, and before apply servers get these numbers, the driver
opens a session of every number that earlier rounds had. That ends theirs, and their tasks can open no other.

Worked flow
    round 1: sessions 0 and 1 of incarnation 1; the task of session 1 freezes with a piece of t; its executor is lost
    round 2: the driver opens session 1 of incarnation 2: the frozen task's COPY is rolled back; t is emptied and copied
    again the task thaws: its session is gone, and another of incarnation 1 is refused
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
    """See the module.

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
    _given: set[int] = field(default_factory=set)  # numbers that tasks of earlier rounds may have

    def begin_round(self) -> None:
        """End the sessions of earlier rounds: what their tasks have in hand was written before, or never will be."""
        self.incarnation += 1
        for server in sorted(self._given):
            self.open(server).close()

    def open(self, server: int) -> DestinationSession:
        """A session of this round for the driver itself."""
        config = self.config
        return self.destination.open_session(
            config.topology, config.apply, server=server, epoch=self.epoch, tag=config.tag, incarnation=self.incarnation
        )

    def give(self, servers: Iterable[int]) -> None:
        """Tasks of this round may open sessions of these numbers."""
        self._given |= set(servers)

    def hand_over(self) -> None:
        """Apply servers have the numbers of earlier rounds from now on."""
        self.begin_round()
        self._given.clear()
