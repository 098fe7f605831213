"""The status of an apply process (V$STREAMS_APPLY_READER, _COORDINATOR and _SERVER)."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.status.component import ComponentStatus

__all__ = ["ApplyServerStatus", "ApplyStatus", "IndexJobStatus", "TableCopy", "apply_status"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyServerStatus:
    """One apply server.

    Args:
        server: number, from 0.
        state: state in the manuals' words.
        detail: why it waits or fails; empty: the state says it.
        pid: process id; 0: unknown.
        host: host of that process.
        attempts: number of starts.
        group: number of the group that it applies; 0: none.
        commit_scn: commit SCN of the last transaction in that group.
        waits_for_group: number of the group that it waits for; 0: none.
        waits_for_scn: commit SCN of the last transaction in that group.
        waits_for_server: number of the server that applies that group; -1: none.
        groups_total: applied groups.
        rows_total: applied rows.
    """

    server: int
    state: str = ""
    detail: str = ""
    pid: int = 0
    host: str = ""
    attempts: int = 0
    group: int = 0
    commit_scn: int = 0
    waits_for_group: int = 0
    waits_for_scn: int = 0
    waits_for_server: int = -1
    groups_total: int = 0
    rows_total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCopy:
    """Progress of one table's copy, including its changes.

    Args:
        owner: schema of the table at the destination.
        name: name of the table there.
        state: PENDING, COPYING, COMPARING, COPIED, JOINING, DONE, KEPT, FAILED or LEFT OUT.
        rows: copied rows.
        rows_estimated: rows of the table, roughly.
        instantiation_scn: SCN up to which the copy has all changes.
        problem: why the table cannot be copied or is not applied; empty: none.
        bytes_done: copied bytes of the source's table.
        bytes_total: bytes of that table; 0: unknown.
        obsolete_errors: error transactions that the last copy made obsolete, and that were deleted.
    """

    owner: str
    name: str
    state: str = ""
    rows: int = 0
    rows_estimated: int = 0
    instantiation_scn: int = 0
    problem: str = ""
    bytes_done: int = 0
    bytes_total: int = 0
    obsolete_errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexJobStatus:
    """An index that is made outside the transactions of the data.

    Args:
        number: of the job.
        owner: schema of the table and of the index.
        name: the table at the destination.
        index: the index.
        state: WAITING, RUNNING, FAILED (it is tried again) or CANCELLED (what it has left is cleared away).
        attempts: how often it began.
        problem: why the last attempt failed; empty: it did not.
        fix: what to do about that.
        since_us: when its change was recorded here, microseconds since the epoch.
    """

    number: int
    owner: str = ""
    name: str = ""
    index: str = ""
    state: str = ""
    attempts: int = 0
    problem: str = ""
    fix: str = ""
    since_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyStatus(ComponentStatus):
    """An apply process; the fields that only its driver knows are None while the driver does not run.

    Its `rows_total` and `transactions_total` count what was applied.

    Args:
        source: site whose changes it applies.
        combined_with: capture process with which it is combined; empty: none.
        dequeues_from: upstream queue from which it dequeues directly; empty: its own queue.
        answered_us: last answer of its driver, microseconds since the epoch.
        reader_state: state of its reader, in the manuals' words.
        epoch: epoch of its driver; a later driver has a higher one.
        low_watermark_scn: everything up to here is applied or in the error queue.
        high_watermark_scn: nothing above this is applied.
        received_scn: everything up to here was dequeued.
        recorded_scn: low watermark that the destination has on disk; None: not yet.
        told_scn: position up to which its queue may discard, lower while a table is copied; None: not yet.
        caught_up_scn: every table has everything up to here; 0: a table is not copied yet.
        last_commit_time_us: commit time at the source of the newest transaction below the low watermark.
        last_applied_us: time when that became durable here, microseconds since the epoch.
        groups_total: applied groups.
        transactions_received_total: dequeued transactions.
        rollbacks_total: groups that were rolled back.
        errors: error transactions in the error queue; None: its driver has not read it yet.
        ready: whether every server has its session, and every table is copied.
        servers: its apply servers.
        instantiation: the copies of its tables.
        missing_tables: tables in virtual dependency definitions that the destination lacks.
        ddl_jobs: indexes that are made outside the transactions of the data.
        counters: the views' statistics of its reader and coordinator, by name.
    """

    source: str = ""
    combined_with: str = ""
    dequeues_from: str = ""
    answered_us: int = 0
    reader_state: str | None = None
    epoch: int | None = None
    low_watermark_scn: int | None = None
    high_watermark_scn: int | None = None
    received_scn: int | None = None
    recorded_scn: int | None = None
    told_scn: int | None = None
    caught_up_scn: int | None = None
    last_commit_time_us: int | None = None
    last_applied_us: int | None = None
    groups_total: int | None = None
    transactions_received_total: int | None = None
    rollbacks_total: int | None = None
    errors: int | None = None
    ready: bool | None = None
    servers: tuple[ApplyServerStatus, ...] = ()
    instantiation: tuple[TableCopy, ...] = ()
    missing_tables: tuple[str, ...] = ()
    ddl_jobs: tuple[IndexJobStatus, ...] = ()
    counters: dict[str, int] | None = None


def apply_status(component: ComponentStatus | None) -> ApplyStatus:
    """Return the status of an apply process; if it does not answer, every field is unknown.

    Args:
        component: its status as read; None: no answer.
    """
    if isinstance(component, ApplyStatus):
        return component
    return ApplyStatus(name="" if component is None else component.name)
