"""Between `spark_apply.groups` and the wire, and between a database's access and the wire: one function pair per direction."""

from __future__ import annotations

from collections.abc import Iterable

from databases.connectors import DatabaseAccess
from protos import apply_pb2 as pb
from spark_apply import groups
from streams.errors import ProtocolError

__all__ = [
    "access_from_wire", "access_to_wire", "coordinator_message_from_wire", "coordinator_message_to_wire", "server_message_from_wire", "server_message_to_wire",
]


def access_to_wire(access: DatabaseAccess) -> pb.DatabaseAccess:
    """How a task reaches a database; its version was checked before."""
    return pb.DatabaseAccess(site=access.site, kind=access.kind, dsn=access.dsn)


def access_from_wire(message: pb.DatabaseAccess) -> DatabaseAccess:
    """The other way round."""
    return DatabaseAccess(site=message.site, kind=message.kind, dsn=message.dsn)


# --------------------------------------------------------------------------- coordinator -> server


def coordinator_message_to_wire(message: groups.CoordinatorMessage) -> pb.CoordinatorMessage:
    """Turn what the coordinator says into its message."""
    if isinstance(message, groups.GroupAssignment):
        assignment = pb.GroupAssignment(
            group=message.group, attempt=message.attempt, mode=int(message.mode), streamed=message.streamed,
            batches=message.batches, after_scn=message.after_scn, through_scn=message.through_scn,
            first_transaction=message.first_transaction, error_number=message.error_number,
            failure=_failure_to_wire(message.failure),
        )
        return pb.CoordinatorMessage(assignment=assignment)
    if isinstance(message, groups.GroupPart):
        part = pb.GroupPart(
            group=message.group, attempt=message.attempt, part=message.part, batch=message.batch,
            is_last=message.is_last, through_scn=message.through_scn,
        )
        return pb.CoordinatorMessage(part=part)
    if isinstance(message, groups.GroupGo):
        held = [pb.HeldTransaction(transaction=h.transaction, depends_on=h.depends_on) for h in message.held]
        go = pb.GroupGo(
            group=message.group, attempt=message.attempt, low_watermark=message.low_watermark,
            below_applied=message.below_applied, held=held,
        )
        return pb.CoordinatorMessage(go=go)
    if isinstance(message, groups.Reopen):
        return pb.CoordinatorMessage(reopen=pb.Reopen())
    return pb.CoordinatorMessage(abandon=pb.GroupAbandon(group=message.group, attempt=message.attempt))


def coordinator_message_from_wire(message: pb.CoordinatorMessage) -> groups.CoordinatorMessage:
    """Turn a message into what the coordinator said.

    Raises:
        ProtocolError: it is none of the conversation about groups.
    """
    kind = message.WhichOneof("kind")
    if kind == "assignment":
        a = message.assignment
        return groups.GroupAssignment(
            group=a.group, attempt=a.attempt, mode=groups.GroupMode(a.mode), streamed=a.streamed,
            batches=tuple(a.batches), after_scn=a.after_scn, through_scn=a.through_scn,
            first_transaction=a.first_transaction, error_number=a.error_number,
            failure=_failure_from_wire(a.failure) if a.HasField("failure") else None,
        )
    if kind == "part":
        p = message.part
        return groups.GroupPart(
            group=p.group, attempt=p.attempt, part=p.part, batch=p.batch, is_last=p.is_last, through_scn=p.through_scn,
        )
    if kind == "go":
        g = message.go
        held = tuple(groups.HeldTransaction(transaction=h.transaction, depends_on=h.depends_on) for h in g.held)
        return groups.GroupGo(
            group=g.group, attempt=g.attempt, low_watermark=g.low_watermark, below_applied=g.below_applied, held=held,
        )
    if kind == "reopen":
        return groups.Reopen()
    if kind == "abandon":
        return groups.GroupAbandon(group=message.abandon.group, attempt=message.abandon.attempt)
    raise ProtocolError(f"the coordinator sent {kind or 'something unknown'} to an apply server")


# --------------------------------------------------------------------------- server -> coordinator


def server_message_to_wire(message: groups.ServerMessage) -> pb.ServerMessage:
    """Turn what an apply server says into its message."""
    if isinstance(message, groups.GroupResult):
        result = pb.GroupResult(
            group=message.group, attempt=message.attempt, applied=_ranges_to_wire(message.applied),
            errors=_errors_to_wire(message.errors), statistics=_statistics_to_wire(message.statistics),
            failure=_failure_to_wire(message.failure),
        )
        return pb.ServerMessage(result=result)
    if isinstance(message, groups.GroupRetry):
        retry = pb.GroupRetry(
            group=message.group, attempt=message.attempt, reason=int(message.reason),
            next_transaction=message.next_transaction, applied=_ranges_to_wire(message.applied),
            errors=_errors_to_wire(message.errors), statistics=_statistics_to_wire(message.statistics),
            failure=_failure_to_wire(message.failure),
        )
        return pb.ServerMessage(retry=retry)
    if isinstance(message, groups.PartDone):
        return pb.ServerMessage(part_done=pb.PartDone(group=message.group, attempt=message.attempt, part=message.part))
    return pb.ServerMessage(abandoned=pb.GroupAbandoned(group=message.group, attempt=message.attempt))


def server_message_from_wire(message: pb.ServerMessage) -> groups.ServerMessage:
    """Turn a message into what an apply server said.

    Raises:
        ProtocolError: it is none of the conversation about groups.
    """
    kind = message.WhichOneof("kind")
    if kind == "result":
        r = message.result
        return groups.GroupResult(
            group=r.group, attempt=r.attempt, applied=_ranges_from_wire(r.applied), errors=_errors_from_wire(r.errors),
            statistics=_statistics_from_wire(r.statistics),
            failure=_failure_from_wire(r.failure) if r.HasField("failure") else None,
        )
    if kind == "retry":
        t = message.retry
        return groups.GroupRetry(
            group=t.group, attempt=t.attempt, reason=groups.RetryReason(t.reason), next_transaction=t.next_transaction,
            applied=_ranges_from_wire(t.applied), errors=_errors_from_wire(t.errors),
            statistics=_statistics_from_wire(t.statistics),
            failure=_failure_from_wire(t.failure) if t.HasField("failure") else None,
        )
    if kind == "part_done":
        p = message.part_done
        return groups.PartDone(group=p.group, attempt=p.attempt, part=p.part)
    if kind == "abandoned":
        return groups.GroupAbandoned(group=message.abandoned.group, attempt=message.abandoned.attempt)
    raise ProtocolError(f"an apply server sent {kind or 'something unknown'}")


def _ranges_to_wire(ranges: Iterable[groups.AppliedRange]) -> list[pb.AppliedRange]:
    return [pb.AppliedRange(after_scn=r.after_scn, through_scn=r.through_scn) for r in ranges]


def _ranges_from_wire(ranges: Iterable[pb.AppliedRange]) -> tuple[groups.AppliedRange, ...]:
    return tuple(groups.AppliedRange(after_scn=r.after_scn, through_scn=r.through_scn) for r in ranges)


def _failure_to_wire(failure: groups.Failure | None) -> pb.Failure | None:
    if failure is None:
        return None
    return pb.Failure(
        position=failure.position, conflict_type=failure.conflict_type, sqlstate=failure.sqlstate,
        message=failure.message, readable=failure.readable,
    )


def _failure_from_wire(failure: pb.Failure) -> groups.Failure:
    return groups.Failure(
        position=failure.position, conflict_type=failure.conflict_type, sqlstate=failure.sqlstate,
        message=failure.message, readable=tuple(failure.readable),
    )


def _errors_to_wire(errors: Iterable[groups.TransactionError]) -> list[pb.TransactionError]:
    return [
        pb.TransactionError(
            number=e.number, transaction=e.transaction, commit_scn=e.commit_scn, depends_on=e.depends_on,
            key_hashes=e.key_hashes, conflict_type=e.conflict_type, message=e.message,
        )
        for e in errors
    ]


def _errors_from_wire(errors: Iterable[pb.TransactionError]) -> tuple[groups.TransactionError, ...]:
    return tuple(
        groups.TransactionError(
            number=e.number, transaction=e.transaction, commit_scn=e.commit_scn, depends_on=e.depends_on,
            key_hashes=e.key_hashes, conflict_type=e.conflict_type, message=e.message,
        )
        for e in errors
    )


_STATISTICS = ("transactions", "rows", "rows_written", "commits", "rollbacks", "retried", "last_commit_time_us")


def _statistics_to_wire(statistics: groups.GroupStatistics) -> pb.GroupStatistics:
    return pb.GroupStatistics(**{name: getattr(statistics, name) for name in _STATISTICS})


def _statistics_from_wire(statistics: pb.GroupStatistics) -> groups.GroupStatistics:
    return groups.GroupStatistics(**{name: getattr(statistics, name) for name in _STATISTICS})
