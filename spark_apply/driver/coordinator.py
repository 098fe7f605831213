"""Apply coordinator: assigns groups to the apply servers and tracks what is applied.

Job
    Form groups of consecutive transactions, assign each to an apply server, let it write when everything that it
    depends on is applied, and keep the low watermark.

Main path
    ApplyCoordinator.accept -> messages (NextGroup.form, GroupHandout.assign, GroupHandout.let_go) -> ApplyServer
    -> report -> Watermarks.advance.

Parts
    GroupFormer, NextGroup    arrived transactions, and the next group formed from them.
    UnfinishedGroups          the groups above the low watermark; `FormedGroup` has each group's state.
    GroupHandout              assignment of groups to servers, and permission to write.
    ServerSlots               the servers, and the messages to send to each.
    KnownErrors               the error queue: transactions held behind it, and executions of error transactions.
    Replay                    dropping groups that may not write, to dequeue them again.
    Watermarks                the positions, and the rules that move them.

States (V$STREAMS_APPLY_COORDINATOR.STATE)
    INITIALIZING            until a server has joined, memory only.
    IDLE                    nothing to apply, memory only.
    APPLYING                a group is unfinished, memory only.
    SHUTTING DOWN CLEANLY   waits for what servers write and assigns nothing more, memory only.

Durable when
    A group is done when its server reports it: data and progress are committed together at the destination.
    `Watermarks.durable` is a lower bound of the position that the destination reports. The coordinator does not
    know whether a crash can take back the last commits; `spark_apply.driver.loop.flushes` does.

Worked flow (two servers, low watermark 10)
    run 10..20, run 20..30 (other keys), run 30..40 (keys of the first)
    group 1 to A with go; group 2 to B with go; group 3 to A without go: it is prepared while A writes group 1
    B reports 2: applied above the low watermark: 20..30. A reports 1: low watermark 30; group 3 may go.

A group is formed only when a server can take one, from what has arrived by then: small when idle, large with a backlog,
and without waiting to fill. A group is assigned only when everything that it depends on is done or assigned
(`spark_apply.conversation.groups` explains why nothing can wait forever).

A streamed transaction is a barrier, and so is a transaction with DDL LCRs, which is streamed whatever its size, and the
execution of error transactions, many at a time. While some are to be executed, no group is formed of transactions that
depend on them, nor of anything behind: they would join the error queue, which would grow during the execution. Groups
formed earlier that may not write yet are dropped and dequeued again. When a streamed transaction fails, or its server
dies, everything from it on is dropped and dequeued again from the low watermark (`must_replay`), as after a restart.
The second time, the coordinator knows how to handle it.

DDL LCRs change tables that servers and reader have described. The reader passes on nothing behind a transaction with
DDL LCRs until it is applied. Behind an execution with DDL LCRs, groups may be formed already: they are dropped and
dequeued again. In both cases every server reopens its session before it gets the next group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.errors import BugError
from headrace.databases.ports import ApplyProgress, ScnRange
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.tracking import TrackLog
from spark_apply.conversation.groups import (
    CoordinatorMessage,
    GroupAbandoned,
    GroupMode,
    GroupRetry,
    GroupStatistics,
    OnError,
    PartDone,
    RetryReason,
    ServerMessage,
)
from spark_apply.driver.groups.formed_group import FormedGroup, GroupState
from spark_apply.driver.groups.forming import GroupFormer
from spark_apply.driver.groups.handout import GroupHandout
from spark_apply.driver.groups.known_errors import KnownErrors
from spark_apply.driver.groups.labelled import LabelledTransactions
from spark_apply.driver.groups.next_group import NextGroup
from spark_apply.driver.groups.replay import Replay
from spark_apply.driver.groups.server_slots import ServerSlots
from spark_apply.driver.groups.unfinished_groups import UnfinishedGroups
from spark_apply.driver.groups.watermarks import Watermarks
from spark_apply.driver.reading.pieces import LargeDropped, LargePart, Mark, Piece, Run

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ApplyCoordinator", "CoordinatorStatistics"]


@dataclass(slots=True)
class CoordinatorStatistics:
    """Totals since the start; source transactions unless a comment says otherwise."""

    received: int = 0
    assigned: int = 0
    applied: int = 0
    errors: int = 0
    wait_deps: int = 0  # groups that waited for another
    groups: int = 0  # groups done
    rows: int = 0
    rows_written: int = 0
    commits: int = 0  # destination transactions
    rollbacks: int = 0  # destination transactions
    retried: int = 0  # destination transactions
    replays: int = 0
    last_commit_time_us: int = 0
    conflicts: int = 0  # resolved or not
    ddl_applied: int = 0  # DDL LCRs
    ddl_passed_over: int = 0  # DDL LCRs whose table was changed already
    ddl_not_applied: int = 0  # DDL LCRs that were only recorded

    def add(self, found: GroupStatistics) -> None:
        """Add a server's counters for a group."""
        self.applied += found.transactions
        self.rows += found.rows
        self.rows_written += found.rows_written
        self.commits += found.commits
        self.rollbacks += found.rollbacks
        self.retried += found.retried
        self.conflicts += found.conflicts
        if found.commits:  # a DDL LCR that was rolled back has changed nothing, and is counted when it comes again
            self.ddl_applied += found.ddl_applied
            self.ddl_passed_over += found.ddl_passed_over
            self.ddl_not_applied += found.ddl_not_applied
        self.last_commit_time_us = max(self.last_commit_time_us, found.last_commit_time_us)


class ApplyCoordinator:
    """Coordinates the apply servers of one apply process.

    It has more than 25 methods: seven only report what its parts hold, and the others decide how each event changes all
    of them.

    Args:
        progress: the progress recorded at the destination.
        errors: (number, key hashes) of each error transaction.
        group_transactions: most source transactions in one group.
        group_rows: most rows in one group (a single transaction may have more).
        source: the site whose transactions are applied, for notes on labelled transactions.
        tracks: receives these notes.
        commits_in_order: a group is written only when everything below it is committed; it is prepared before that.
        on_error: fate of the other transactions when one enters the error queue.

    Attributes:
        watermarks: the positions; the host reads them.
        errors: the known error queue; the host executes error transactions here and reports edited and deleted ones.
        statistics: totals.
        ddl_retried_by: the server that could not make a DDL change when it last tried, because of a lock, for example;
            -1: none. Each attempt is a new one, from the transaction's beginning.
        is_draining: no group is assigned any more because the apply process ends; set by the host.
    """

    def __init__(  # noqa: PLR0913 - the apply process's settings in the file
        self,
        *,
        progress: ApplyProgress,
        errors: Iterable[tuple[int, NDArray[np.uint64]]],
        encode: Callable[[LcrBatch], bytes],
        group_transactions: int,
        group_rows: int,
        source: str = "",
        tracks: TrackLog | None = None,
        commits_in_order: bool = False,
        on_error: OnError = OnError.HOLD_DEPENDENTS,
    ) -> None:
        self._groups = UnfinishedGroups(in_order=commits_in_order)
        self._slots = ServerSlots()
        self._replay = Replay(self._groups, self._slots)
        self.watermarks = Watermarks(progress, self._groups)
        self.errors = KnownErrors(errors, on_error)
        self._next = NextGroup(
            functools.partial(
                GroupFormer,
                encode=encode,
                transactions_max=group_transactions,
                rows_max=group_rows,
            ),
            groups=self._groups,
            watermarks=self.watermarks,
            errors=self.errors,
        )
        self._handout = GroupHandout(
            groups=self._groups,
            slots=self._slots,
            watermarks=self.watermarks,
            errors=self.errors,
            replay=self._replay,
            next_group=self._next,
        )
        self._labels = LabelledTransactions(source, tracks or TrackLog())
        self.statistics = CoordinatorStatistics()
        self.is_draining = False
        self.ddl_retried_by = -1
        self._has_executed_ddl = False  # groups were formed, and sessions know the tables, as before the execution

    # ------------------------------------------------------------------ questions of the host

    @property
    def unrecorded_scn(self) -> Scn | None:
        """A low watermark that moved without data and should be recorded now, because no commit will record it.

        None: there is nothing to record.
        """
        marks = self.watermarks
        return marks.low if self._has_nothing and marks.low > marks.durable else None

    @property
    def wants(self) -> bool:
        """Whether another piece can be accepted."""
        return not self._replay.is_wanted and self._next.former.wants

    @property
    def is_idle(self) -> bool:
        """Whether everything accepted is applied or in the error queue."""
        return self._has_nothing and not self._replay.is_wanted

    @property
    def _has_nothing(self) -> bool:
        return not self._groups and self._next.former.is_empty

    @property
    def must_replay(self) -> bool:
        """Whether everything from `Watermarks.progress` on must be dequeued again; then call `replayed`."""
        return self._replay.is_due

    @property
    def is_settled(self) -> bool:
        """Whether everything accepted is applied, and nothing is applied above the low watermark."""
        return self.is_idle and not self.watermarks.has_above

    @property
    def state(self) -> str:
        """The manuals' state."""
        if self.is_draining:
            return "SHUTTING DOWN CLEANLY"
        if not self._slots and not self.statistics.groups:
            return "INITIALIZING"
        return "IDLE" if self._has_nothing else "APPLYING"

    @property
    def first_error(self) -> int:
        """The lowest number in the error queue; 0: the queue is empty."""
        return min(self.errors.numbers, default=0)

    def status(self) -> dict[str, int | str]:
        """Return state, positions and statistics by name."""
        totals, marks = self.statistics, self.watermarks
        return {
            "state": self.state,
            "low_watermark_scn": marks.low,
            "high_watermark_scn": marks.high,
            "durable_scn": marks.durable,
            "received_scn": marks.received,
            "total_received": totals.received,
            "total_assigned": totals.assigned,
            "total_applied": totals.applied,
            "total_errors": totals.errors,
            "total_wait_deps": totals.wait_deps,
            "total_rollbacks": totals.rollbacks,
            "total_rows": totals.rows,
            "total_rows_written": totals.rows_written,
            "total_commits": totals.commits,
            "total_groups": totals.groups,
            "total_retried": totals.retried,
            "total_replays": totals.replays,
            "unassigned_complete_txns": self._next.former.transactions,
            "active_server_count": len(self._slots),
            "groups_in_flight": len(self._groups),
            "error_transactions": len(self.errors),
            "last_commit_time_us": totals.last_commit_time_us,
            "total_conflicts": totals.conflicts,
            "ddl_applied": totals.ddl_applied,
            "ddl_passed_over": totals.ddl_passed_over,
            "ddl_not_applied": totals.ddl_not_applied,
        }

    def server_state(self, server: int, told: str) -> str:
        """Return the manuals' state of an apply server.

        Args:
            server: its number.
            told: the state that it reports; it does not know why it must wait.
        """
        waits_for_order = self._groups.in_order and told == "WAIT DEPENDENCY" and self.waits_for(server) != (0, 0)
        return "WAIT COMMIT" if waits_for_order else told

    def waits_for(self, server: int) -> tuple[int, int]:
        """Return (the group that a server holds and cannot write yet, the group it waits for); zeros if none."""
        for number in self._slots.of(server):
            group = self._groups[number]
            if not group.may_have_written and group.waits:
                return number, min(group.waits)
        return 0, 0

    def dependency_of(self, server: int) -> dict[str, int]:
        """Return what an apply server holds and waits for, by the column names of V$STREAMS_APPLY_SERVER.

        0 means none; for a server it is -1.
        """
        held, awaited = self.waits_for(server)
        group = held or min(self._slots.of(server), default=0)
        mine, other = self._groups.get(group), self._groups.get(awaited)
        return {
            "group_number": group,
            "commitscn": 0 if mine is None else int(mine.through_scn),
            "dep_group_number": awaited,
            "dep_commitscn": 0 if other is None else int(other.through_scn),
            "dep_server_id": -1 if other is None else other.server,
        }

    def has_doubts(self, server: int) -> bool:
        """Return whether a server may have unreported commits."""
        return any(group.server == server and group.may_have_written for group in self._groups)

    # ------------------------------------------------------------------ events from the host

    def accept(self, piece: Piece) -> None:
        """Accept a piece from the reader, in order; call only while `wants` is true."""
        former = self._next.former
        if isinstance(piece, LargePart | Run) and piece.batch.labels:
            self._labels.accepted(piece.batch.labels)
        if isinstance(piece, LargePart):
            self._accept_part(piece)
        elif isinstance(piece, LargeDropped):
            dropped = former.drop_large(piece)
            for group in self._groups:
                if dropped is not None and group.large is dropped:
                    self._replay.abandon(group)
        elif isinstance(piece, Mark):
            self.watermarks.received = piece.through_scn
            former.extend(piece.through_scn)
        else:
            self.watermarks.received = piece.through_scn
            self.statistics.received += len(piece.batch.transactions)
            former.add_run(piece)
        self._advance()

    def server_joined(
        self,
        server: int,
        progress: ApplyProgress,
        errors: Iterable[tuple[int, NDArray[np.uint64]]] | None = None,
    ) -> None:
        """Register a server that has its destination session and waits for work.

        Args:
            server: its number.
            progress: read from the destination *after* the session was opened, when a dead predecessor can no longer
                commit.
            errors: the error queue, also read after that; needed when `has_doubts`.
        """
        self.server_lost(server)
        queued = set()
        for number, hashes in errors or ():
            queued.add(number)
            if number not in self.errors:
                self._hold(number, hashes)
        self._slots.join(server)
        for group in self._groups:
            if group.state is GroupState.IN_DOUBT and group.server == server:
                self._settle_doubt(group, progress, queued)
        self._advance()

    def server_lost(self, server: int) -> None:
        """Note that a server is gone. Its possible commits stay in doubt until it joins again."""
        for number in self._slots.lose(server):
            group = self._groups[number]
            if group.is_dropped:
                self._replay.forget(group)
            elif group.state is GroupState.WRITING:
                self._handout.put_in_doubt(group)
            else:
                group.take_back()
                if group.streamed is not None and group.streamed.sent:
                    self._replay.start()
        self._advance()

    def report(self, server: int, message: ServerMessage) -> None:
        """Process a server's report; reports about an earlier attempt are ignored.

        Args:
            server: number of the server.
            message: the report.
        """
        group = self._groups.get(message.group)
        if group is None or group.server != server or group.attempt != message.attempt:
            return
        if group.state is GroupState.IN_DOUBT:
            return
        if isinstance(message, PartDone):
            if group.streamed is not None:
                group.streamed.done = message.part + 1
            return
        if isinstance(message, GroupAbandoned) and not group.is_dropped:
            return
        self._slots.free(server, group.number)
        if isinstance(message, GroupAbandoned) or group.is_dropped:
            # Also if it returned the group before it read the abandon: it may die before it answers.
            self._replay.forget(group)
        else:
            self.statistics.add(message.statistics)
            for error in message.errors:
                self.statistics.errors += 1
                self._hold(error.number, np.frombuffer(error.key_hashes, np.uint64))
            self._labels.reported(server, message.applied, message.errors)
            if not message.statistics.commits:
                group.watermark_sent = FIRST_SCN  # no commit recorded it
            if isinstance(message, GroupRetry):
                self._give_back(group, message)
            else:
                if group.mode is GroupMode.EXECUTE_ERROR:
                    self.errors.executions.finished(group.error_numbers, message)
                self._finish(group)
                changed = message.statistics.ddl_applied or message.statistics.ddl_passed_over  # may be a new table
                if group.mode is GroupMode.EXECUTE_ERROR and changed:
                    self._has_executed_ddl = True
                    self._replay.start()
        self._advance()

    def settle(self, *, leaves_above: bool = False) -> None:
        """Prepare to settle; the caller accepts nothing more until the coordinator is settled.

        Give up a streamed transaction whose end has not arrived, and transactions that an error blocks. They are
        replayed (`must_replay`), like everything without permission to write.

        Args:
            leaves_above: it is enough to be idle: transactions applied above the low watermark stay. The ones that an
                error blocks may be below them.
        """
        unfinished = self._groups.unfinished
        waits_for_errors = self.errors.disables and not unfinished and not self._next.former.is_empty
        if waits_for_errors and not self._replay.is_wanted and (leaves_above or not self.watermarks.has_above):
            self._replay.start()
        if len(unfinished) == 1 and not self._replay.is_wanted:
            group = self._groups[unfinished[0]]
            if group.large is not None and not group.large.is_complete:
                self._replay.start(group)

    def rewound(self, progress: ApplyProgress) -> None:
        """Restart from `progress`, because tables join or are skipped.

        Everything from `progress` on is replayed, and the servers reopen their sessions.

        Args:
            progress: the progress that `DestinationDatabase.join_tables` left after settling, or the coordinator's own
                while it is idle.
        """
        if not self.is_idle:
            raise BugError("copied tables join or are skipped while groups are unfinished")
        self._forget_accepted()
        self.watermarks.set_back(progress)
        self._slots.reopen()

    def replayed(self) -> None:
        """Note that the caller restarts the reader from `Watermarks.progress` as it was before this call."""
        if not self.must_replay:
            raise BugError("replayed without need")
        self.statistics.replays += 1
        # Their callers wait for outcomes, and these groups do not come from the queue.
        executions, progress = self._groups.executing, self.watermarks.progress
        self._forget_accepted()
        self.watermarks.restart(progress)
        self.errors.executions.give_back(executions)
        self._slots.free_all()
        if self._has_executed_ddl:
            self._has_executed_ddl = False
            self._slots.reopen()

    def messages(self) -> list[tuple[int, CoordinatorMessage]]:
        """Assign what can be assigned now. Return (server, message) pairs in the order to send."""
        while not self._replay.is_wanted and (self._assign() or self._form()):
            pass
        self._handout.let_go()
        return self._slots.take()

    # ------------------------------------------------------------------ inside

    def _forget_accepted(self) -> None:
        """Forget everything accepted and not applied; it is replayed."""
        self._groups.clear()
        self._next.restart()
        self._labels.clear()
        self._replay.is_wanted = False

    def _assign(self) -> bool:
        group = self._handout.assign()
        if group is not None:
            self.statistics.assigned += group.commit_scns.shape[0] - group.next_transaction
        return group is not None

    def _form(self) -> bool:
        """Form the next group if a server can take it."""
        if not self._slots.has_room or self._groups.has_unassigned:
            return False
        group = self._next.form()
        if group is not None and group.mode is not GroupMode.EXECUTE_ERROR:
            self.statistics.wait_deps += bool(group.waits)
        return group is not None

    def _accept_part(self, piece: LargePart) -> None:
        part = self._next.former.add_part(piece)
        if part is None or not part.is_last:
            return
        self.watermarks.received = part.through_scn
        self.statistics.received += 1
        for group in self._groups.of_large(piece.order_scn):
            group.completed()
            self.watermarks.formed = group.through_scn

    def _give_back(self, group: FormedGroup, retry: GroupRetry) -> None:
        group.applied += [ScnRange(after=Scn(each.after_scn), through=Scn(each.through_scn)) for each in retry.applied]
        if retry.reason is RetryReason.REPLAY:
            if group.large is not None and group.large.has_ddl:
                self.ddl_retried_by = group.server if retry.statistics.retried else -1
            if group.large is not None and retry.failure is not None:
                # Without a failure the environment was the cause: the transaction is assigned again in the same mode.
                self._next.escalate(group.large, retry.failure)
            self._replay.start()
            self._replay.forget(group)
            return
        group.take_back()
        group.next_transaction = retry.next_transaction
        group.waits = {number for number in self._groups.unfinished if number < group.number}

    def _settle_doubt(self, group: FormedGroup, progress: ApplyProgress, queued: set[int]) -> None:
        """Find out what a dead server committed of a group.

        Args:
            group: the group in doubt.
            progress: read after the next session was opened.
            queued: numbers in the error queue, also read after that.
        """
        if group.mode is GroupMode.EXECUTE_ERROR:
            # Executed, or deleted meanwhile: whether the low watermark of its go is recorded is unknown.
            group.watermark_sent = FIRST_SCN
            gone = [number for number in group.error_numbers if number not in queued]
            self.errors.executions.executed(gone)
            if gone:
                # Its report is lost, which would have said whether it had DDL LCRs.
                self._has_executed_ddl = True
                self._replay.start()
            group.error_numbers = tuple(number for number in group.error_numbers if number in queued)
            if group.error_numbers:
                group.take_back()
            else:
                self._finish(group)
            return
        commit_scns = group.commit_scns
        covered = commit_scns <= progress.low_watermark
        for found in progress.above:
            covered |= (commit_scns > found.after) & (commit_scns <= found.through)
        self._labels.settled(group.server, commit_scns[covered])
        if covered.shape[0] and covered.all():
            self._finish(group)
        elif group.streamed is not None:
            self._replay.start()
            self._replay.forget(group)
        else:
            # Transactions of a group commit in order, so a prefix is applied.
            group.next_transaction = int(np.argmin(covered))
            if group.next_transaction:
                through = Scn(int(commit_scns[group.next_transaction - 1]))
                group.applied.append(ScnRange(after=group.after_scn, through=through))
            group.take_back()

    def _finish(self, group: FormedGroup) -> None:
        group.state = GroupState.DONE
        self.statistics.groups += 1
        self._next.done(group)
        if group.large is not None and group.large.has_ddl:
            self.ddl_retried_by = -1
            if group.mode is not GroupMode.ERROR_QUEUE:
                self._slots.reopen()

    def _hold(self, number: int, hashes: NDArray[np.uint64]) -> None:
        """Add a transaction to the known error queue.

        With `on_error: disable`, groups without permission to write are dropped and read again later.
        """
        self.errors.add(number, hashes)
        if self.errors.on_error is OnError.DISABLE:
            self._replay.start()

    def _advance(self) -> None:
        """Move the low watermark over finished groups."""
        self.watermarks.advance()
        self._groups.join_done()
        if self.is_idle:
            self.watermarks.catch_up()
