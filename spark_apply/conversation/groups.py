"""Messages between the coordinator and its apply servers: frozen data of bytes, integers and tuples.

A *group* is a run of consecutive source transactions that an apply server applies as one destination
transaction. Groups are numbered in source order, from 1 in each incarnation of the coordinator.

Conversation about one group (`attempt` counts how often it was assigned; both sides ignore late reports of an
older attempt):

    coordinator -> server   Reopen                reopen the session: its progress was changed (server holds no group)
                            GroupAssignment       the server may decode and prepare, but not write
                            GroupPart ...         parts of a streamed transaction, at most PARTS_AHEAD not yet done
                            GroupGo               all that the group depends on is applied: write
                            GroupAbandon          roll back what was written and forget the group
    server -> coordinator   PartDone              a part is written (not committed): send another
                            GroupResult           the group is done; everything in `applied` is durable
                            GroupRetry            part of it may be done; the rest must be assigned again
                            GroupAbandoned        answers GroupAbandon

Inside a group, a server never waits for another group: instead it returns the rest of the group with GroupRetry and
continues with other work. Every group that a server holds waits only for lower-numbered groups. The lowest unfinished
group is assigned regardless of the server's load, so there is no deadlock. Of the groups that may write, a server runs
the lowest-numbered one.

A streamed transaction is a barrier: it waits for everything below it, and everything above waits for it. Nothing above
it exists while it arrives, so the barrier costs only the time to finish what is in flight. A transaction that holds
locks never waits for another group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

__all__ = [
    "PARTS_AHEAD",
    "AppliedRange",
    "CoordinatorMessage",
    "Failure",
    "GroupAbandon",
    "GroupAbandoned",
    "GroupAssignment",
    "GroupGo",
    "GroupMode",
    "GroupPart",
    "GroupResult",
    "GroupRetry",
    "GroupStatistics",
    "HeldTransaction",
    "OnError",
    "PartDone",
    "Reopen",
    "RetryReason",
    "ServerMessage",
    "TransactionError",
]

PARTS_AHEAD = 3  # parts a server may hold: one being written, one prepared, one in flight


class GroupMode(IntEnum):
    """How to apply a group."""

    SETS = 1  # collapsed into sets; bisected on failure, finally row by row
    ERROR_QUEUE = 3  # into the error queue without applying anything (a streamed transaction that failed or is held)
    EXECUTE_ERROR = 4  # apply error transactions again and delete them from the error queue


class OnError(IntEnum):
    """Fate of the other transactions when one enters the error queue because it failed itself."""

    HOLD_DEPENDENTS = 0  # dependent transactions join the error queue behind it; all others continue
    CONTINUE = 1  # all others continue, even dependent ones, which may fail by themselves
    DISABLE = 2  # nothing is applied until the error queue is empty


class RetryReason(IntEnum):
    """Why a server returns a group."""

    BELOW = 1  # the next transaction failed while lower groups were unfinished: assign it again when they are applied
    # A streamed transaction failed, a table no longer fits, or nothing more is applied after an error: the transaction
    # must be read from the queue again.
    REPLAY = 2


@dataclass(frozen=True, slots=True)
class Reopen:
    """Reopen the destination session; sent while the server holds no group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedRange:
    """Transactions with `after_scn < commit_scn <= through_scn` are durable: applied or in the error queue."""

    after_scn: int
    through_scn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a transaction cannot be applied. It has no row values except in `readable`.

    Args:
        position: 0-based position of the failing LCR in its transaction; -1: the transaction is held behind another.
        conflict_type: "insert_exists", "update_missing", ...; empty for other errors.
        sqlstate: SQLSTATE of the database's error, if any.
        message: description of the failure.
        readable: the failing LCR's values, "column=value", shown only by `errors show`.
    """

    position: int
    conflict_type: str
    sqlstate: str
    message: str
    readable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTransaction:
    """A transaction that depends on an error transaction: it joins the error queue behind it.

    Args:
        transaction: index of the transaction in the group as it was first formed.
        depends_on: number of the error transaction.
    """

    transaction: int
    depends_on: int


# --------------------------------------------------------------------------- coordinator -> server


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAssignment:
    """A group for one server. Wait for its `GroupGo` before writing.

    Args:
        group: number of the group; ascending in source order.
        attempt: number of earlier assignments.
        mode: how to apply it.
        streamed: one transaction that arrives as `GroupPart`s; `batches` is empty.
        batches: serialized LcrBatches in order, already filtered: everything in them is applied.
        after_scn: `through_scn` of the previous group.
        through_scn: the last SCN that the group covers; 0 while a streamed transaction is open.
        first_transaction: index of the first transaction that is not done; an earlier attempt committed those before
            it.
        error_number: ERROR_QUEUE: the error transaction that it depends on; 0: it failed itself.
        failure: ERROR_QUEUE: the failure. EXECUTE_ERROR with a handler: why the error transaction is in the error
            queue.
        role: EXECUTE_ERROR: the role whose rights the destination checks; empty: the session's own.
        is_careful: a server died while it wrote this group or one that it was formed from; a user's handler may be the
            cause.
        handler: EXECUTE_ERROR: a function for its row LCRs (`headrace.rules.user_code.handlers.ExecutionHandler`);
            empty: they are applied as usual.
        error_numbers: EXECUTE_ERROR: the error transactions, ascending. Each may depend on those before it, but on no
            other in the error queue.
    """

    group: int
    attempt: int
    mode: GroupMode
    streamed: bool
    batches: tuple[bytes, ...]
    after_scn: int
    through_scn: int
    first_transaction: int = 0
    error_number: int = 0
    failure: Failure | None = None
    role: str = ""
    is_careful: bool = False
    handler: bytes = b""
    error_numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPart:
    """The next part of a streamed transaction.

    Args:
        group: number of the group.
        attempt: as in `GroupAssignment`.
        part: 0, 1, 2, ... in order.
        batch: serialized LcrBatch of this part's rows.
        is_last: the transaction is complete with this part.
        through_scn: the last SCN that the group covers; 0 unless `is_last`.
    """

    group: int
    attempt: int
    part: int
    batch: bytes
    is_last: bool
    through_scn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGo:
    """Everything that the group depends on is applied, so it may write. A streamed transaction writes parts on arrival.

    Args:
        group: number of the group.
        attempt: as in `GroupAssignment`.
        low_watermark: the coordinator's low watermark, recorded with the data.
        below_applied: every group below is done, so a failure is final.
        held: transactions that must join the error queue behind another.
        on_error: fate of the rest of the group when one of its transactions fails.
    """

    group: int
    attempt: int
    low_watermark: int
    below_applied: bool
    held: tuple[HeldTransaction, ...] = ()
    on_error: OnError = OnError.HOLD_DEPENDENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAbandon:
    """Roll back what was written of the group and forget it. The server answers with `GroupAbandoned`."""

    group: int
    attempt: int


CoordinatorMessage: TypeAlias = Reopen | GroupAssignment | GroupPart | GroupGo | GroupAbandon

# --------------------------------------------------------------------------- server -> coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionError:
    """A transaction of the group that entered the error queue.

    Args:
        number: its number in the error queue.
        transaction: index of the transaction in the group as it was first formed.
        commit_scn: its commit SCN.
        depends_on: number of the error transaction that holds it; 0: it failed itself.
        key_hashes: uint64 little-endian; later transactions must be checked against them.
        conflict_type: as in `Failure`.
        message: as in `Failure`.
    """

    number: int
    transaction: int
    commit_scn: int
    depends_on: int
    key_hashes: bytes
    conflict_type: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Counters of applying a group; the coordinator sums them.

    Args:
        transactions: source transactions applied (not those in the error queue).
        rows: row LCRs applied.
        rows_written: rows that the destination wrote for them (fewer when changes of a key collapse).
        commits: destination transactions committed.
        rollbacks: destination transactions rolled back.
        retried: destination transactions repeated because the database was unavailable.
        last_commit_time_us: source commit time of the last transaction, microseconds since the epoch; 0: none.
        conflicts: conflicts met, resolved or not.
        ddl_applied: DDL LCRs that changed a table.
        ddl_passed_over: DDL LCRs whose table had all of the change already.
        ddl_not_applied: DDL LCRs that were recorded only, without those that an operator skipped.
    """

    transactions: int = 0
    rows: int = 0
    rows_written: int = 0
    commits: int = 0
    rollbacks: int = 0
    retried: int = 0
    last_commit_time_us: int = 0
    conflicts: int = 0
    ddl_applied: int = 0
    ddl_passed_over: int = 0
    ddl_not_applied: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """The group is done; everything in `applied` is durable at the destination.

    EXECUTE_ERROR: the first `executed` error transactions are applied and deleted. `failure` says why the next one
    stays; None: no further one was tried.
    """

    group: int
    attempt: int
    applied: tuple[AppliedRange, ...]
    errors: tuple[TransactionError, ...] = ()
    statistics: GroupStatistics = field(default_factory=GroupStatistics)
    failure: Failure | None = None
    executed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRetry:
    """The rest of the group must be assigned again; none of it is written.

    Args:
        group: number of the group.
        attempt: as in `GroupAssignment`.
        reason: why it is returned.
        next_transaction: index of the first transaction that is not done.
        applied: durable ranges of this attempt.
        errors: transactions of this attempt that are in the error queue.
        statistics: counters of this attempt.
        failure: why a streamed transaction failed (it is assigned again in mode ERROR_QUEUE).
    """

    group: int
    attempt: int
    reason: RetryReason
    next_transaction: int
    applied: tuple[AppliedRange, ...] = ()
    errors: tuple[TransactionError, ...] = ()
    statistics: GroupStatistics = field(default_factory=GroupStatistics)
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartDone:
    """A part of a streamed transaction is written, not committed: the coordinator may send another."""

    group: int
    attempt: int
    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAbandoned:
    """Answers `GroupAbandon`: nothing of the group is written."""

    group: int
    attempt: int


ServerMessage: TypeAlias = GroupResult | GroupRetry | PartDone | GroupAbandoned
