"""A group that the coordinator has formed, until it is below the low watermark: what it writes, and its progress.

States
    FORMED          no server has it.
    ASSIGNED        a server prepares it; it may not write.
    WRITING         it may write: what it depends on is applied.
    IN DOUBT        its server died after the go, and may have committed.
    WITHDRAWN       dropped, at a server that prepares it.
    ROLLING BACK    dropped, at a server that may be writing it: nothing is read again until the server has answered.
    DONE            all of it is applied or in the error queue, or it is never read again.

    FORMED -> ASSIGNED -> WRITING -> DONE. A group that its server returns, or is found not to have committed, becomes
    FORMED again. When its server dies, it becomes FORMED (if ASSIGNED) or IN DOUBT (if WRITING).
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
    """State of a group; the module describes each."""

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
        large: the transaction.
        sent: number of parts sent.
        done: number of parts that the server has prepared or written.
        unchecked: key hashes of parts that were sent before the go: they may depend on error transactions.
    """

    large: Large
    sent: int = 0
    done: int = 0
    unchecked: list[KeyHashes] = field(default_factory=list)

    def next_part(self) -> Part | None:
        """Return the next part and count it as sent; None: none has arrived, or the server has enough."""
        if not self.large.unsent or self.sent - self.done >= PARTS_AHEAD:
            return None
        self.sent += 1
        return self.large.unsent.popleft()


@dataclass(slots=True, kw_only=True)
class FormedGroup:
    """A formed group. One of `run`, `streamed` and `error_numbers` says what it writes.

    Args:
        number: ascending in the order of the source.
        after_scn: it covers what follows this SCN.
        through_scn: the last SCN that it covers.
        mode: how its server applies it.
        run: whole transactions; also None when it is done.
        streamed: a large transaction; also None when it is done.
        error_numbers: EXECUTE_ERROR: the error transactions whose outcome is unknown.
        error_number: ERROR_QUEUE: the error transaction behind which it waits.
        failure: ERROR_QUEUE: why it failed.
        waits: the unfinished groups that it depends on.
        server: the server that has it, or had it and is in doubt; -1: none.
        attempt: number of earlier assignments; -1: never assigned.
        state: its state.
        next_transaction: index of the first transaction that is not applied.
        applied: durable ranges of attempts that did not finish.
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
        """Its large transaction; None: it has none, or is done."""
        return None if self.streamed is None else self.streamed.large

    @property
    def batches(self) -> tuple[bytes, ...]:
        """Its transactions, serialized; empty: they are sent in parts, or it has none."""
        return () if self.run is None else self.run.batches

    @property
    def commit_scns(self) -> NDArray[np.int64]:
        """Commit SCN of each of its transactions; of a large one, only after its last part has arrived."""
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

    # ------------------------------------------------------------------ progress

    @property
    def is_done(self) -> bool:
        """Whether it has reached its final state."""
        return self.state is GroupState.DONE

    @property
    def is_dropped(self) -> bool:
        """Whether its server was told to drop it and has not answered."""
        return self.state in _DROPPED

    @property
    def is_at_server(self) -> bool:
        """Whether a server prepares or writes it."""
        return self.state in _AT_A_SERVER

    @property
    def may_have_written(self) -> bool:
        """Whether it may have unreported commits."""
        return self.state in _MAY_HAVE_WRITTEN

    def assign(self, server: int) -> None:
        """Assign it to a server, which prepares it."""
        self.server, self.state = server, GroupState.ASSIGNED
        self.attempt += 1

    def go(self, low_watermark: Scn) -> None:
        """Let its server write; this low watermark is recorded with what it commits."""
        self.state, self.watermark_sent = GroupState.WRITING, low_watermark

    def drop(self) -> None:
        """Note that its server was told to drop it."""
        self.state = GroupState.ROLLING_BACK if self.may_have_written else GroupState.WITHDRAWN

    def take_back(self) -> None:
        """Take it back from its server; the rest of it is to be assigned again."""
        self.server, self.state = -1, GroupState.FORMED

    def forget(self, *, comes_again: bool) -> None:
        """Note that none of it is written. No commit recorded the low watermark of its go.

        A replay reads it again: until then it keeps its place, because the low watermark must not pass it. Otherwise it
        is done and covers nothing, not even what is below it.

        Args:
            comes_again: a replay reads it again.
        """
        self.take_back()
        self.watermark_sent = FIRST_SCN
        if not comes_again:
            self.state, self.through_scn = GroupState.DONE, FIRST_SCN

    def release(self) -> None:
        """Release its rows, which nothing needs when it is done."""
        self.run = self.streamed = None
        self.applied.clear()
