"""The status of an apply process (V$STREAMS_APPLY_READER, _COORDINATOR and _SERVER)."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.status.component import ComponentStatus

__all__ = ["ApplyServerStatus", "ApplyStatus", "TableCopy", "apply_status"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyServerStatus:
    """One apply server.

    Args:
        server: its number, from 0.
        state: in the manuals' words.
        detail: why it waits or fails; empty: the state says it.
        pid: of its process; 0: unknown.
        host: where that runs.
        attempts: how often it was begun.
        group: the number of the group that it applies; 0: none.
        commit_scn: of the last transaction in that.
        waits_for_group: the group that it waits for; 0: none.
        waits_for_scn: of the last transaction in that.
        waits_for_server: who has that group; -1: nobody.
        groups_total: groups that it applied.
        rows_total: rows that it applied.
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
    """How far one table's copy is, with its changes.

    Args:
        owner: schema of the table at the destination.
        name: of the table there.
        state: PENDING, COPYING, COMPARING, COPIED, JOINING, DONE, KEPT, FAILED or LEFT OUT.
        rows: rows that are copied.
        rows_estimated: rows that the table has, about.
        instantiation_scn: the copy has everything up to here.
        problem: why it cannot be copied, or is not applied; empty: nothing.
        bytes_done: bytes of the source's table that are copied.
        bytes_total: bytes that it has; 0: unknown.
        obsolete_errors: error transactions that its last copy made obsolete, and that were deleted.
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
class ApplyStatus(ComponentStatus):
    """An apply process; what only its driver knows is None as long as that does not run.

    `rows_total` and `transactions_total` of it: what was applied.

    Args:
        source: the site whose changes it applies.
        combined_with: the capture process that it is combined with; empty: none.
        dequeues_from: the queue that it takes from, past its own; empty: its own.
        answered_us: when its driver was asked last, microseconds since the epoch.
        reader_state: of its reader, in the manuals' words.
        epoch: of its driver; a later one has a higher one.
        low_watermark_scn: everything up to here is applied or in the error queue.
        high_watermark_scn: nothing above this is applied.
        received_scn: everything up to here was dequeued.
        recorded_scn: the low watermark as the destination has it on disk; None: not yet.
        told_scn: what its queue may forget, which is less while a table is copied; None: not yet.
        caught_up_scn: every table has everything up to here; 0: one is not copied yet.
        last_commit_time_us: when the newest transaction below the low watermark was committed at the source.
        last_applied_us: when that became durable here, microseconds since the epoch.
        groups_total: groups that were applied.
        transactions_received_total: transactions that were dequeued.
        rollbacks_total: groups that were rolled back.
        errors: error transactions in the error queue; None: its driver has not read it yet.
        ready: every server has its session, and every table is copied.
        servers: its apply servers.
        instantiation: the copies of its tables.
        missing_tables: virtual dependency definitions name them, and the destination does not have them.
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
    counters: dict[str, int] | None = None


def apply_status(component: ComponentStatus | None) -> ApplyStatus:
    """The status of an apply process; of one that does not answer, everything is unknown.

    Args:
        component: its status as it was read; None: there is none.
    """
    if isinstance(component, ApplyStatus):
        return component
    return ApplyStatus(name="" if component is None else component.name)
