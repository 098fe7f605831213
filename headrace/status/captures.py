"""The status of a capture process (V$STREAMS_CAPTURE, DBA_CAPTURE)."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.status.component import ComponentStatus
from headrace.status.queues import QueueSubscriber

__all__ = ["CaptureStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus(ComponentStatus):
    """A capture process; what only its miner knows is None as long as that is not open.

    `bytes_total` of it: redo that was mined; `rows_total`: rows that the rules take.

    Args:
        source: the site whose redo it mines.
        queue: it enqueues here.
        required_checkpoint_scn: redo is needed from here on, as it told last.
        rewinds_total: how often its queue, or apply process, requested changes again.
        bytes_sent_total: bytes of batches that were enqueued.
        unmatched_rules: rules that no table matches.
        combined_with: the apply process that it is combined with; None: none.
        subscribers: the apply process that it is combined with, as a queue says it.
        first_scn: the lowest SCN from which it can capture; None: who keeps its redo does not answer.
        start_scn: it captures what is committed after this; None: likewise.
        applied_scn: everything up to here is durable at every destination.
        max_checkpoint_scn: its newest checkpoint.
        captured_scn: redo is mined up to here.
        sent_scn: everything up to here is enqueued.
        transactions_dropped_total: transactions of which the rules take nothing.
        rows_discarded_total: rows that the rules leave out.
        batches_total: batches that were enqueued.
        marks_total: positions without changes that were enqueued.
        full_evaluations_total: batches that prefiltering did not decide.
        last_commit_time_us: when the newest transaction was committed at the source, microseconds since the epoch.
        labels_left_out_total: labels of tracked transactions that did not fit into a batch.
    """

    source: str = ""
    queue: str = ""
    required_checkpoint_scn: int | None = None
    rewinds_total: int | None = None
    bytes_sent_total: int | None = None
    unmatched_rules: tuple[str, ...] = ()
    combined_with: str | None = None
    subscribers: tuple[QueueSubscriber, ...] = ()
    first_scn: int | None = None
    start_scn: int | None = None
    applied_scn: int | None = None
    max_checkpoint_scn: int | None = None
    captured_scn: int | None = None
    sent_scn: int | None = None
    transactions_dropped_total: int | None = None
    rows_discarded_total: int | None = None
    batches_total: int | None = None
    marks_total: int | None = None
    full_evaluations_total: int | None = None
    last_commit_time_us: int | None = None
    labels_left_out_total: int | None = None
