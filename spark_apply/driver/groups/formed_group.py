"""A group that the coordinator has formed, until it is below the low watermark: what it writes, and how far it has come.

States
    FORMED          no server has it.
    ASSIGNED        a server prepares it; it may not write.
    WRITING         it may write: what it depends on is applied.
    IN DOUBT        its server died after the go, and may have committed.
    WITHDRAWN       to be dropped by a server that prepares it.
    ROLLING BACK    to be dropped by a server that may be writing it: nothing is read again before that has answered.
    DONE            everything of it is applied or in the error queue, or it is never read again.

    FORMED -> ASSIGNED -> WRITING -> DONE. A server that gives it back, or is found not to have committed it, makes it
    FORMED again; one that dies makes it FORMED (ASSIGNED) or IN DOUBT (WRITING).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headrace.lcr.scn import FIRST_SCN, Scn
from spark_apply.conversation.groups import PARTS_AHEAD, GroupMode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.databases.ports import ScnRange
    from spark_apply.conversation.groups import Failure
    from spark_apply.dependencies.hashes import KeyHashes
    from spark_apply.driver.groups.forming import FormedRun, Large, Part

__all__ = ["FormedGroup", "GroupState", "StreamedParts"]


class GroupState(enum.Enum):
    """See the module."""

    FORMED = enum.auto()
    ASSIGNED = enum.auto()
    WRITING = enum.auto()
    IN_DOUBT = enum.auto()
    WITHDRAWN = enum.auto()
    ROLLING_BACK = enum.auto()
    DONE = enum.auto()


_MAY_HAVE_WRITTEN = frozenset({GroupState.WRITING, GroupState.IN_DOUBT, GroupState.ROLLING_BACK})
_DROPPED = frozenset({GroupState.WITHDRAWN, GroupState.ROLLING_BACK})
_AT_A_SERVER = frozenset({GroupState.ASSIGNED, GroupState.WRITING})


@dataclass(slots=True)
class StreamedParts:
    """A large transaction whose parts are sent while they arrive.

    Args:
        large: it.
        sent: number of parts that were sent.
        done: number of parts that the server has prepared or written.
        unchecked: key hashes of parts that were sent before the go: they may depend on error transactions.
    """

    large: Large
    sent: int = 0
    done: int = 0
    unchecked: list[KeyHashes] = field(default_factory=list)

    def next_part(self) -> Part | None:
        """The part to send now, which counts as sent; None: none has arrived, or the server has enough."""
        if not self.large.unsent or self.sent - self.done >= PARTS_AHEAD:
            return None
        self.sent += 1
        return self.large.unsent.popleft()


@dataclass(slots=True, kw_only=True)
class FormedGroup:
    """See the module. One of `run`, `streamed` and `error_numbers` says what it writes.

    Args:
        number: groups are numbered in the order of the source.
        after_scn: it covers what follows this.
        through_scn: and ends here.
        mode: how its server applies it.
        run: whole transactions; None, too, once it is done.
        streamed: a large transaction; None, too, once it is done.
        error_numbers: EXECUTE_ERROR: those error transactions whose outcome is not known.
        error_number: ERROR_QUEUE: the error transaction behind which it waits.
        failure: ERROR_QUEUE: why it failed.
        waits: the unfinished groups that it depends on.
        server: that has it, or had it and is in doubt; -1: none.
        attempt: how often it was assigned before; -1: never.
        state: see the module.
        next_transaction: those before it are applied.
        applied: of attempts that did not finish.
        watermark_sent: the low watermark that its go recorded, if anything is committed.
    """

    number: int
    after_scn: Scn
    through_scn: Scn
    mode: GroupMode = GroupMode.SETS
    run: FormedRun | None = None
    streamed: StreamedParts | None = None
    error_numbers: tuple[int, ...] = ()
    error_number: int = 0
    failure: Failure | None = None
    waits: set[int] = field(default_factory=set)
    server: int = -1
    attempt: int = -1
    state: GroupState = GroupState.FORMED
    next_transaction: int = 0
    applied: list[ScnRange] = field(default_factory=list)
    watermark_sent: Scn = FIRST_SCN

    # ------------------------------------------------------------------ what it writes

    @property
    def large(self) -> Large | None:
        """The large transaction that it is; None: it is none, or done."""
        return None if self.streamed is None else self.streamed.large

    @property
    def batches(self) -> tuple[bytes, ...]:
        """Its transactions, serialized; empty: they are sent in parts, or it has none."""
        return () if self.run is None else self.run.batches

    @property
    def commit_scns(self) -> NDArray[np.int64]:
        """Commit SCN of each of its transactions; of a large one, once its last part has arrived."""
        if self.run is not None:
            return self.run.commit_scns
        large = self.large
        if large is not None and large.is_complete:
            return np.array([large.commit_scn], np.int64)
        return np.empty(0, np.int64)

    def completed(self) -> None:
        """Set the end of a large transaction after its last part has arrived."""
        large = self.large
        if large is not None and large.is_complete:
            self.through_scn = large.through_scn

    # ------------------------------------------------------------------ how far it has come

    @property
    def is_done(self) -> bool:
        """Whether nothing more happens to it."""
        return self.state is GroupState.DONE

    @property
    def is_dropped(self) -> bool:
        """Whether its server was told to drop it, and has not answered."""
        return self.state in _DROPPED

    @property
    def is_at_server(self) -> bool:
        """Whether a server prepares or writes it."""
        return self.state in _AT_A_SERVER

    @property
    def may_have_written(self) -> bool:
        """Whether commits of it may be there that are not reported."""
        return self.state in _MAY_HAVE_WRITTEN

    def assign(self, server: int) -> None:
        """A server prepares it."""
        self.server, self.state = server, GroupState.ASSIGNED
        self.attempt += 1

    def go(self, low_watermark: Scn) -> None:
        """Its server may write, and records this low watermark with what it commits."""
        self.state, self.watermark_sent = GroupState.WRITING, low_watermark

    def drop(self) -> None:
        """Its server is told to drop it."""
        self.state = GroupState.ROLLING_BACK if self.may_have_written else GroupState.WITHDRAWN

    def take_back(self) -> None:
        """No server has it any more; what is left of it is to be assigned again."""
        self.server, self.state = -1, GroupState.FORMED

    def forget(self, *, comes_again: bool) -> None:
        """Nothing of it is written. What its go would have recorded, no commit did.

        In a replay it is read again: until then it keeps its place, because the low watermark must not pass it.
        Otherwise it is done and covers nothing, not even what is below it.

        Args:
            comes_again: it is read again.
        """
        self.take_back()
        self.watermark_sent = FIRST_SCN
        if not comes_again:
            self.state, self.through_scn = GroupState.DONE, FIRST_SCN

    def release(self) -> None:
        """It is done: nobody asks for its rows any more."""
        self.run = self.streamed = None
        self.applied.clear()
