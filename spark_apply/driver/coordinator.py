"""Apply coordinator: assign groups to the apply servers and track what is applied.

Job
    Form groups of consecutive transactions, assign each to an apply server, let it write when everything that it
    depends on is applied, and keep the low watermark.

Main path
    ApplyCoordinator.accept -> messages (form, assign, let go) -> ApplyServer -> report -> low_watermark.

States (V$STREAMS_APPLY_COORDINATOR.STATE)
    INITIALIZING            until a server has joined, memory only.
    IDLE                    nothing to apply, memory only.
    APPLYING                a group is unfinished, memory only.
    SHUTTING DOWN CLEANLY   what servers write is awaited, nothing more is handed out, memory only.

Durable when
    A group is done when its server reports it: data and progress are committed together at the destination.
    `durable_scn` is a lower bound of the position that the destination reports. Whether a crash can take the last
    commits is not known here: see `spark_apply.driver.flushes`.

Worked flow (two servers, low watermark 10)
    run 10..20, run 20..30 (other keys), run 30..40 (keys of the first)
    group 1 to A with go; group 2 to B with go; group 3 to A without go: it is prepared while A writes group 1
    B reports 2: applied above the low watermark: 20..30. A reports 1: low watermark 30; group 3 may go.

A group is formed only when a server can take one, from what has arrived by then: small when idle, large with
a backlog, and without waiting to fill. A group is assigned only when everything that it depends on is done or assigned
(see `groups` for why nothing can wait forever).

A streamed transaction is a barrier, and so is the execution of error transactions, many at a time. As long as some are
to be executed, what depends on one of them is not formed, and nothing behind it: it would join the error queue, which
would grow while it is executed. What was formed before, and may not write yet, is dropped and dequeued again. When a
streamed transaction fails, or its server dies, everything from it on is dropped and dequeued again from the low
watermark (`must_replay`), as after a restart; the second time the coordinator knows what to do with it.

Longer than 500 lines: every rule that moves the low watermark must be read together. The states of a group are in
`spark_apply.driver.formed_group`.
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
    AppliedRange,
    CoordinatorMessage,
    Failure,
    GroupAbandon,
    GroupAbandoned,
    GroupAssignment,
    GroupGo,
    GroupMode,
    GroupPart,
    GroupRetry,
    GroupStatistics,
    HeldTransaction,
    OnError,
    PartDone,
    Reopen,
    RetryReason,
    ServerMessage,
    TransactionError,
)
from spark_apply.dependencies.hashes import DependencyTracker
from spark_apply.dependencies.holds import ErrorHolds
from spark_apply.driver.executions import ErrorExecutions, ErrorOutcome, ExecutionRequest
from spark_apply.driver.formed_group import FormedGroup, GroupState, StreamedParts
from spark_apply.driver.forming import FormedRun, GroupFormer, Large, Part
from spark_apply.driver.labelled import LabelledTransactions
from spark_apply.driver.reader import LargeDropped, LargePart, Mark, Piece, Run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spark_apply.dependencies.hashes import KeyHashes

__all__ = ["ApplyCoordinator", "CoordinatorStatistics"]

# Groups that a server may hold: one being written, and one prepared meanwhile. More would be formed too early and
# be smaller than necessary.
_GROUPS_PER_SERVER = 2


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


@dataclass(frozen=True, slots=True)
class _Escalation:
    """Why a large transaction goes into the error queue when it is read again."""

    failure: Failure | None
    depends_on: int


class ApplyCoordinator:
    """Coordinates the apply servers of one apply process. See the module.

    Args:
        progress: the progress recorded at the destination.
        errors: (number, key hashes) of each error transaction.
        encode: serializes a batch.
        group_transactions: most source transactions in one group.
        group_rows: most rows in one group (a single transaction may have more).
        source: the site whose transactions are applied, for the notes of labelled ones.
        tracks: takes these notes.
        commits_in_order: a group is written when everything below it is committed; it is prepared before that.
        on_error: what becomes of others when a transaction enters the error queue.
    """

    def __init__(  # noqa: PLR0913 - what the file says of the apply process
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
        self._commits_in_order = commits_in_order
        self._labels = LabelledTransactions(source, tracks or TrackLog())
        self._new_former = functools.partial(
            GroupFormer,
            encode=encode,
            transactions_max=group_transactions,
            rows_max=group_rows,
        )
        self._holds, self._on_error = ErrorHolds(errors), on_error
        self._executions = ErrorExecutions(self._holds)
        self.is_draining = False
        """Nothing is handed out any more, because the apply process ends: set by the host."""
        self._epoch, self._number = progress.epoch, 0
        self._servers: dict[int, set[int]] = {}
        self._outbox: list[tuple[int, CoordinatorMessage]] = []
        self._escalations: dict[Scn, _Escalation] = {}
        # a server died while it wrote transactions up to here, of groups that may be formed otherwise now
        self._careful_through = FIRST_SCN
        self.statistics = CoordinatorStatistics()
        self._durable = progress.low_watermark
        self._ahead = progress.ahead_scn
        self._has_rewound = False
        self._reset(progress)

    def _reset(self, progress: ApplyProgress) -> None:
        self._groups: dict[int, FormedGroup] = {}  # in ascending order
        self._former = self._new_former()
        self._tracker = DependencyTracker()
        self._low_watermark = self._formed_through = self._received_through = progress.low_watermark
        self._above = list(progress.above)
        self._replay = False
        self._labels.clear()

    # ------------------------------------------------------------------ what the host asks

    @property
    def low_watermark(self) -> Scn:
        """The low watermark: everything up to it is applied or in the error queue."""
        return self._low_watermark

    @property
    def durable_scn(self) -> Scn:
        """The low watermark that is certainly recorded at the destination, on disk or not."""
        return self._durable

    @property
    def unrecorded_scn(self) -> Scn | None:
        """A low watermark that moved without data and should be recorded now, because no commit will.

        None: there is none.
        """
        idle = not self._groups and self._former.is_empty
        return self._low_watermark if idle and self._low_watermark > self._durable else None

    def recorded(self, scn: Scn) -> None:
        """`unrecorded_scn` was made durable."""
        self._durable = max(self._durable, scn)

    @property
    def high_watermark(self) -> Scn:
        """The high watermark: nothing above it is applied, by this incarnation or an earlier one."""
        return max([self._low_watermark, *(found.through for found in self.progress.above)])

    @property
    def wants(self) -> bool:
        """Whether another piece can be accepted."""
        return not self._replay and self._former.wants

    @property
    def is_idle(self) -> bool:
        """Whether everything accepted is applied or in the error queue."""
        return not self._groups and self._former.is_empty and not self._replay

    @property
    def must_replay(self) -> bool:
        """Whether everything from `progress` on must be dequeued again; then call `replayed`."""
        return self._replay and not any(group.may_have_written for group in self._groups.values())

    @property
    def is_settled(self) -> bool:
        """Nothing is accepted that is not applied, and nothing is applied above the low watermark."""
        return self.is_idle and not any(found.through > self._low_watermark for found in self._above)

    @property
    def may_settle(self) -> bool:
        """What earlier incarnations applied above the low watermark is reached.

        It can settle when nothing more is accepted.
        """
        return not any(found.through > self._received_through for found in self._above)

    def settle(self, *, leaves_above: bool = False) -> None:
        """Nothing more is accepted until it is settled.

        A streamed transaction whose end has not come is given up, and so is what an error keeps waiting.

        It comes again (`must_replay`), as everything that was not let go yet.

        Args:
            leaves_above: it is enough that it is idle: what is applied above the low watermark stays so. What an error
                keeps waiting may be below that.
        """
        unfinished = [group for group in self._groups.values() if not group.is_done]
        waits_for_errors = self.is_disabled and not unfinished and not self._former.is_empty
        if (
            waits_for_errors
            and not self._replay
            and (leaves_above or not any(found.through > self._low_watermark for found in self._above))
        ):
            self._start_replay()
        if len(unfinished) == 1 and not self._replay:
            large = unfinished[0].large
            if large is not None and not large.is_complete:
                self._start_replay(unfinished[0])

    @property
    def progress(self) -> ApplyProgress:
        """The progress from which the reader can restart."""
        above = [found for found in self._above if found.through > self._low_watermark]
        for group in self._groups.values():
            above += group.applied
            if group.is_done and group.through_scn > group.after_scn:
                above.append(ScnRange(after=group.after_scn, through=group.through_scn))
        above.sort(key=lambda found: found.after)
        return ApplyProgress(
            epoch=self._epoch, low_watermark=self._low_watermark, above=tuple(above), ahead_scn=self._ahead
        )

    @property
    def state(self) -> str:
        """The manuals' state."""
        if self.is_draining:
            return "SHUTTING DOWN CLEANLY"
        if not self._servers and not self.statistics.groups:
            return "INITIALIZING"
        return "IDLE" if not self._groups and self._former.is_empty else "APPLYING"

    @property
    def is_disabled(self) -> bool:
        """Nothing is applied but error transactions that an operator executes.

        There are some, and `on_error` is to disable.

        This follows from what the destination has, so no restart takes it back; it ends with the last error
        transaction.
        """
        return self._on_error is OnError.DISABLE and len(self._holds) > 0

    @property
    def error_numbers(self) -> tuple[int, ...]:
        """The numbers in the error queue, ascending."""
        return self._holds.numbers

    @property
    def first_error(self) -> int:
        """The lowest number in the error queue; 0: it is empty."""
        return min(self._holds.numbers, default=0)

    def take_outcomes(self) -> tuple[ErrorOutcome, ...]:
        """The outcomes of executed error transactions since the last call."""
        return self._executions.take_outcomes()

    def status(self) -> dict[str, int | str]:
        """State, positions and statistics by name."""
        totals = self.statistics
        return {
            "state": self.state,
            "low_watermark_scn": self._low_watermark,
            "high_watermark_scn": self.high_watermark,
            "durable_scn": self._durable,
            "received_scn": self._received_through,
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
            "unassigned_complete_txns": self._former.transactions,
            "active_server_count": len(self._servers),
            "groups_in_flight": len(self._groups),
            "error_transactions": len(self._holds),
            "last_commit_time_us": totals.last_commit_time_us,
            "total_conflicts": totals.conflicts,
        }

    def server_state(self, server: int, told: str) -> str:
        """The manuals' state of an apply server.

        Args:
            server: its number.
            told: what it says itself; it does not know why it must wait.
        """
        waits_for_order = self._commits_in_order and told == "WAIT DEPENDENCY" and self.waits_for(server) != (0, 0)
        return "WAIT COMMIT" if waits_for_order else told

    def waits_for(self, server: int) -> tuple[int, int]:
        """(group that a server holds and cannot write yet, group that it waits for); zeros if there is none."""
        for number in sorted(self._servers.get(server, ())):
            group = self._groups[number]
            if not group.may_have_written and group.waits:
                return number, min(group.waits)
        return 0, 0

    def dependency_of(self, server: int) -> dict[str, int]:
        """What an apply server holds, and whom it waits for; names of V$STREAMS_APPLY_SERVER.

        0: nothing, of a server -1.
        """
        held, awaited = self.waits_for(server)
        group = held or min(self._servers.get(server, ()), default=0)
        mine, other = self._groups.get(group), self._groups.get(awaited)
        return {
            "group_number": group,
            "commitscn": 0 if mine is None else int(mine.through_scn),
            "dep_group_number": awaited,
            "dep_commitscn": 0 if other is None else int(other.through_scn),
            "dep_server_id": -1 if other is None else other.server,
        }

    # ------------------------------------------------------------------ what the host tells

    def accept(self, piece: Piece) -> None:
        """Accept a piece from the reader, in order; call this only while `wants` is true."""
        if isinstance(piece, LargePart | Run) and piece.batch.labels:
            self._labels.accepted(piece.batch.labels)
        if isinstance(piece, LargePart):
            self._accept_part(piece)
        elif isinstance(piece, LargeDropped):
            dropped = self._former.drop_large(piece)
            for group in self._groups.values():
                if dropped is not None and group.large is dropped:
                    self._abandon(group)
        elif isinstance(piece, Mark):
            self._received_through = piece.through_scn
            self._former.extend(piece.through_scn)
        else:
            self._received_through = piece.through_scn
            self.statistics.received += len(piece.batch.transactions)
            self._former.add_run(piece)
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
            progress: read from the destination *after* the session was opened, when a dead
                predecessor can no longer commit.
            errors: the error queue, also read after that; needed when `has_doubts`.
        """
        self.server_lost(server)
        queued = set()
        for number, hashes in errors or ():
            queued.add(number)
            if number not in self._holds:
                self._hold(number, hashes)
        self._servers[server] = set()
        if self._has_rewound:
            # Its session may be older than the join, which removed what the session goes on from.
            self._outbox.append((server, Reopen()))
        for group in list(self._groups.values()):
            if group.state is GroupState.IN_DOUBT and group.server == server:
                self._settle(group, progress, queued)
        self._advance()

    def has_doubts(self, server: int) -> bool:
        """Whether a server may have commits that are not reported yet."""
        return any(group.server == server and group.may_have_written for group in self._groups.values())

    def server_lost(self, server: int) -> None:
        """A server is gone. Its possible commits stay in doubt until it joins again."""
        for number in sorted(self._servers.pop(server, set())):
            group = self._groups[number]
            if group.is_dropped:
                self._forget(group)
            elif group.state is GroupState.WRITING:
                group.state = GroupState.IN_DOUBT
                begun = group.after_scn + 1 if group.mode is not GroupMode.EXECUTE_ERROR else FIRST_SCN
                self._careful_through = Scn(
                    max(self._careful_through, begun, group.through_scn if begun else FIRST_SCN)
                )
            else:
                group.take_back()
                if group.streamed is not None and group.streamed.sent:
                    self._start_replay()
        self._outbox = [(to, message) for to, message in self._outbox if to != server]
        self._advance()

    def report(self, server: int, message: ServerMessage) -> None:
        """Process a server's report; reports about an earlier attempt are ignored.

        Args:
            server: its number.
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
        self._servers[server].discard(group.number)
        if isinstance(message, GroupAbandoned) or group.is_dropped:
            self._forget(group)  # also if it gave the group back before it heard: it may die before it answers
        else:
            self._count(message.statistics)
            self._add_errors(message.errors)
            self._labels.reported(server, message.applied, message.errors)
            if not message.statistics.commits:
                group.watermark_sent = FIRST_SCN  # nothing was committed that would have recorded it
            if isinstance(message, GroupRetry):
                self._give_back(group, message)
            else:
                if group.mode is GroupMode.EXECUTE_ERROR:
                    self._executions.finished(group.error_numbers, message)
                self._finish(group)
        self._advance()

    def execute_errors(self, numbers: Iterable[int], request: ExecutionRequest | None = None) -> None:
        """Execute error transactions again, in the order of the queue; see `take_outcomes`.

        Args:
            numbers: of the error transactions; those that are to be executed already stay as they were wanted.
            request: how.
        """
        self._executions.add(numbers, request or ExecutionRequest())

    def withdraw(self, numbers: Iterable[int], why: str) -> None:
        """See `ErrorExecutions.withdraw`."""
        self._executions.withdraw(numbers, why)

    def error_edited(self, number: int, hashes: NDArray[np.uint64]) -> None:
        """An error transaction was edited: it has these keys too.

        Args:
            number: of the error transaction.
            hashes: what was stored with the edit.
        """
        if number in self._holds:
            self._holds.add(number, hashes)

    def error_deleted(self, number: int) -> None:
        """An error transaction was deleted from the queue: no transaction waits behind it any more."""
        self._holds.remove(number)

    def rewound(self, progress: ApplyProgress) -> None:
        """Tables join or are left out.

        Everything from `progress` on comes again, and the servers open their sessions again.

        Args:
            progress: as `DestinationDatabase.join_tables` left it, after it was settled; or the coordinator's own,
                which is idle.
        """
        if not self.is_idle:
            raise BugError("copied tables join or are left out while groups are unfinished")
        self._ahead, self._durable = progress.ahead_scn, min(self._durable, progress.low_watermark)
        self._reset(progress)
        self._has_rewound = True
        self._outbox += [(server, Reopen()) for server in sorted(self._servers)]

    def replayed(self) -> None:
        """The caller restarts the reader from `progress`, as it was before this call."""
        if not self.must_replay:
            raise BugError("replayed without need")
        self.statistics.replays += 1
        # Their callers wait for outcomes, and these groups do not come from the queue.
        executions = [
            number
            for group in self._groups.values()
            if group.mode is GroupMode.EXECUTE_ERROR and not group.is_done
            for number in group.error_numbers
        ]
        self._reset(self.progress)
        self._executions.give_back(executions)
        for held in self._servers.values():
            held.clear()

    def messages(self) -> list[tuple[int, CoordinatorMessage]]:
        """Assign what can be assigned now. Returns (server, message) in the order to send."""
        while not self._replay and (self._assign() or self._form()):
            pass
        for group in self._groups.values():
            if group.is_at_server:
                self._let_go(group)
                self._send_parts(group)
        outbox, self._outbox = self._outbox, []
        return outbox

    # ------------------------------------------------------------------ forming and handing out

    def _form(self) -> bool:
        """Form the next group when a server can take it."""
        if not any(len(held) < _GROUPS_PER_SERVER for held in self._servers.values()):
            return False
        if any(group.state is GroupState.FORMED for group in self._groups.values()):
            return False
        # One at a time: the outcome of one decides what of the next can be executed.
        executing = any(group.mode is GroupMode.EXECUTE_ERROR and not group.is_done for group in self._groups.values())
        # A streamed transaction that is being written takes parts until it is whole; one that is not formed yet (an
        # apply process that an error disabled forms nothing) waits behind what is executed.
        is_streaming = any(
            group.large is not None and group.large is self._former.open for group in self._groups.values()
        )
        if self._executions.waits and not is_streaming and not executing:
            self._form_execution()
            return True
        if self.is_disabled:
            return False
        formed = self._former.take()
        if formed is None:
            return False
        if self._must_wait(formed):
            self._former.put_back(formed)
            return False
        # Not below the recorded position: the destination has folded that range in already.
        after = max(self._formed_through, self._durable)
        number = self._number + 1
        if isinstance(formed, FormedRun):
            group = FormedGroup(
                number=number,
                after_scn=after,
                through_scn=formed.through_scn,
                run=formed,
            )
            unfinished = self._unfinished()
            group.waits = (
                set(unfinished)
                if self._commits_in_order
                else self._tracker.add(number, formed.hashes.hashes, unfinished)
            )
        else:
            group = self._large_group(formed, number, after)
        self.statistics.wait_deps += bool(group.waits)
        self._add(group)
        return True

    def _large_group(self, large: Large, number: int, after: Scn) -> FormedGroup:
        escalation = self._escalations.get(large.order_scn)
        group = FormedGroup(number=number, after_scn=after, through_scn=after, streamed=StreamedParts(large))
        group.completed()
        # What it waited for may have been executed or deleted meanwhile: whether others hold it, its parts show.
        if escalation is not None and (escalation.failure is not None or escalation.depends_on in self._holds):
            group.mode = GroupMode.ERROR_QUEUE
            group.failure, group.error_number = escalation.failure, escalation.depends_on
        group.waits = set(self._unfinished())
        self._tracker.add_barrier(number)
        return group

    def _must_wait(self, formed: FormedRun | Large) -> bool:
        """Whether what would be formed next must not join the error queue now.

        It depends on an error transaction that is to be executed, or may.
        """
        if self._executions.is_empty or self._on_error is OnError.CONTINUE:
            return False
        return isinstance(formed, Large) or self._awaits_execution(self._holds.held(formed.hashes))

    def _awaits_execution(self, held: Iterable[HeldTransaction]) -> bool:
        return any(found.depends_on in self._executions for found in held)

    def _form_execution(self) -> None:
        numbers = self._executions.choose()
        if not numbers:
            return
        number = self._number + 1
        group = FormedGroup(
            number=number,
            after_scn=self._formed_through,
            through_scn=self._formed_through,
            mode=GroupMode.EXECUTE_ERROR,
            error_numbers=numbers,
            waits=set(self._unfinished()),
        )
        self._tracker.add_barrier(number)
        self._add(group)

    def _add(self, group: FormedGroup) -> None:
        self._number = group.number
        self._groups[group.number] = group
        self._formed_through = group.through_scn

    def _unfinished(self) -> list[int]:
        return [number for number, group in self._groups.items() if not group.is_done]

    def _assign(self) -> bool:
        """Assign the lowest group that can be assigned."""
        is_lowest = True
        for group in self._groups.values():
            if group.is_done:
                continue
            is_free = group.state is GroupState.FORMED
            if is_free and all(self._groups[number].server >= 0 for number in self._still(group)):
                server = min(self._servers, key=lambda number: (len(self._servers[number]), number), default=-1)
                if server < 0 or (not is_lowest and len(self._servers[server]) >= _GROUPS_PER_SERVER):
                    return False
                self._hand_out(group, server)
                return True
            is_lowest = False
        return False

    def _still(self, group: FormedGroup) -> set[int]:
        """The unfinished groups that it waits for."""
        groups = self._groups
        group.waits = {number for number in group.waits if number in groups and not groups[number].is_done}
        return group.waits

    def _hand_out(self, group: FormedGroup, server: int) -> None:
        group.assign(server)
        self._servers[server].add(group.number)
        self.statistics.assigned += group.commit_scns.shape[0] - group.next_transaction
        is_execution = group.mode is GroupMode.EXECUTE_ERROR
        request = self._executions.request_of(group.error_numbers[0]) if is_execution else ExecutionRequest()
        self._outbox.append(
            (
                server,
                GroupAssignment(
                    group=group.number,
                    attempt=group.attempt,
                    mode=group.mode,
                    streamed=group.streamed is not None,
                    batches=group.batches,
                    after_scn=group.after_scn,
                    through_scn=0 if group.streamed is not None else group.through_scn,
                    first_transaction=group.next_transaction,
                    error_number=group.error_number,
                    failure=request.failures.get(group.error_numbers[0]) if is_execution else group.failure,
                    role=request.role,
                    handler=request.handler,
                    error_numbers=group.error_numbers,
                    is_careful=bool(group.attempt) if is_execution else group.after_scn < self._careful_through,
                ),
            )
        )

    def _let_go(self, group: FormedGroup) -> None:
        if group.state is not GroupState.ASSIGNED or self._replay or self._still(group):
            return
        held: tuple[HeldTransaction, ...] = ()
        if group.run is not None and self._on_error is not OnError.CONTINUE:
            held = tuple(h for h in self._holds.held(group.run.hashes) if h.transaction >= group.next_transaction)
            if self._awaits_execution(held):
                self._start_replay()
                return
        if group.streamed is not None:
            for hashes in group.streamed.unchecked:
                if self._hold_large(group, hashes):
                    return
            group.streamed.unchecked.clear()
        group.go(self._low_watermark)
        self._outbox.append(
            (
                group.server,
                GroupGo(
                    group=group.number,
                    attempt=group.attempt,
                    low_watermark=self._low_watermark,
                    below_applied=self._unfinished()[0] == group.number,
                    held=held,
                    on_error=self._on_error,
                ),
            )
        )

    # ------------------------------------------------------------------ large transactions

    def _accept_part(self, piece: LargePart) -> None:
        part = self._former.add_part(piece)
        if part is None or not part.is_last:
            return
        self._received_through = part.through_scn
        self.statistics.received += 1
        for group in self._groups.values():
            if group.large is not None and group.large.order_scn == piece.order_scn and not group.is_done:
                group.completed()
                self._formed_through = group.through_scn

    def _send_parts(self, group: FormedGroup) -> None:
        streamed = group.streamed
        if streamed is None:
            return
        while group.is_at_server and (part := streamed.next_part()) is not None:
            if group.state is GroupState.ASSIGNED:
                streamed.unchecked.append(part.hashes)
            elif self._hold_large(group, part.hashes):
                return
            self._outbox.append((group.server, _part_message(group, part)))

    def _hold_large(self, group: FormedGroup, hashes: KeyHashes) -> bool:
        """Whether a part depends on an error transaction: the whole transaction must join the error queue."""
        holds = group.mode is GroupMode.SETS and self._on_error is not OnError.CONTINUE
        held = self._holds.held(hashes) if holds else ()
        if held and group.large is not None:
            self._escalations[group.large.order_scn] = _Escalation(None, max(h.depends_on for h in held))
            self._start_replay(group)
        return bool(held)

    def _start_replay(self, failed: FormedGroup | None = None) -> None:
        """Drop groups without permission to write, and roll back the writes of `failed`; the other groups finish."""
        self._replay = True
        for group in self._groups.values():
            if group.state is GroupState.ASSIGNED or (group is failed and group.state is GroupState.WRITING):
                self._abandon(group)

    def _abandon(self, group: FormedGroup) -> None:
        if group.server < 0 or group.server not in self._servers:
            self._forget(group)
            return
        group.drop()
        self._outbox.append((group.server, GroupAbandon(group=group.number, attempt=group.attempt)))

    def _forget(self, group: FormedGroup) -> None:
        """Nothing of the group is written. In a replay it is read again."""
        group.forget(comes_again=self._replay)

    # ------------------------------------------------------------------ what became of groups

    def _give_back(self, group: FormedGroup, retry: GroupRetry) -> None:
        group.applied += [_scn_range(found) for found in retry.applied]
        if retry.reason is RetryReason.REPLAY:
            if group.large is not None and retry.failure is not None:
                # Without a failure the environment was the cause: the transaction is assigned again in the same mode.
                self._escalations[group.large.order_scn] = _Escalation(retry.failure, 0)
            self._start_replay()
            self._forget(group)
            return
        group.take_back()
        group.next_transaction = retry.next_transaction
        group.waits = {number for number in self._unfinished() if number < group.number}

    def _settle(self, group: FormedGroup, progress: ApplyProgress, queued: set[int]) -> None:
        """Find out what a dead server had committed of a group.

        Args:
            group: the group in doubt.
            progress: read after the next session was opened.
            queued: numbers in the error queue, read after that too.
        """
        if group.mode is GroupMode.EXECUTE_ERROR:
            # Executed, or deleted meanwhile: it is unknown whether the low watermark of its go is recorded.
            group.watermark_sent = FIRST_SCN
            self._executions.executed(number for number in group.error_numbers if number not in queued)
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
            self._start_replay()
            self._forget(group)
        else:
            # Transactions of a group are committed in order: a prefix is applied.
            group.next_transaction = int(np.argmin(covered))
            if group.next_transaction:
                through = Scn(int(commit_scns[group.next_transaction - 1]))
                group.applied.append(ScnRange(after=group.after_scn, through=through))
            group.take_back()

    def _finish(self, group: FormedGroup) -> None:
        group.state = GroupState.DONE
        self.statistics.groups += 1
        if group.large is not None:
            self._escalations.pop(group.large.order_scn, None)

    def _add_errors(self, errors: Iterable[TransactionError]) -> None:
        for error in errors:
            self.statistics.errors += 1
            self._hold(error.number, np.frombuffer(error.key_hashes, np.uint64))

    def _hold(self, number: int, hashes: NDArray[np.uint64]) -> None:
        """A transaction is in the error queue.

        Where that disables, what has no permission to write is dropped, and read again later.
        """
        self._holds.add(number, hashes)
        if self._on_error is OnError.DISABLE:
            self._start_replay()

    def _count(self, found: GroupStatistics) -> None:
        totals = self.statistics
        totals.applied += found.transactions
        totals.rows += found.rows
        totals.rows_written += found.rows_written
        totals.commits += found.commits
        totals.rollbacks += found.rollbacks
        totals.retried += found.retried
        totals.conflicts += found.conflicts
        totals.last_commit_time_us = max(totals.last_commit_time_us, found.last_commit_time_us)

    def _advance(self) -> None:
        """Move the low watermark over finished groups."""
        for number in list(self._groups):
            group = self._groups[number]
            if not group.is_done:
                break
            self._low_watermark = max(self._low_watermark, group.through_scn)
            # The commit recorded the low watermark of its go, and its own range.
            self._durable = max(self._durable, group.watermark_sent)
            if group.after_scn <= self._durable:
                self._durable = max(self._durable, group.through_scn)
            del self._groups[number]
        self._join_done()
        if self.is_idle:
            self._low_watermark = max(self._low_watermark, self._received_through)

    def _join_done(self) -> None:
        """Keep of groups that are done what they cover, neighbours as one.

        A lower group may wait for hours, for a user's lock, while others come and go.
        """
        last: FormedGroup | None = None
        for group in list(self._groups.values()):
            if not group.is_done:
                last = None
                continue
            group.release()
            if last is None or group.after_scn > max(last.after_scn, last.through_scn):
                last = group
                continue
            last.through_scn = max(last.through_scn, group.through_scn)
            # Both were sent while the low watermark was below the first of them.
            last.watermark_sent = max(last.watermark_sent, group.watermark_sent)
            del self._groups[group.number]


def _scn_range(found: AppliedRange) -> ScnRange:
    return ScnRange(after=Scn(found.after_scn), through=Scn(found.through_scn))


def _part_message(group: FormedGroup, part: Part) -> GroupPart:
    return GroupPart(
        group=group.number,
        attempt=group.attempt,
        part=part.number,
        batch=part.data,
        is_last=part.is_last,
        through_scn=part.through_scn if part.is_last else 0,
    )
