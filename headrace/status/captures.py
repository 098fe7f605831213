"""The status of a capture process (V$STREAMS_CAPTURE, DBA_CAPTURE)."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.status.component import ComponentStatus
from headrace.status.queues import QueueSubscriber

__all__ = ["CaptureStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus(ComponentStatus):
    """A capture process; the fields that only its miner knows are None while the miner is not open.

    Its `bytes_total` counts mined redo, `rows_total` rows that the rules take.

    Args:
        source: site whose redo it mines.
        queue: queue into which it enqueues.
        required_checkpoint_scn: redo is needed from here on; the last value that it reported.
        rewinds_total: requests for earlier changes by its queue or apply process.
        bytes_sent_total: bytes of enqueued batches.
        unmatched_rules: rules that match no table.
        combined_with: apply process with which it is combined; None: none.
        subscribers: the apply process of `combined_with`, in the form of a queue's subscriber.
        first_scn: lowest SCN from which it can capture; None: the keeper of its redo does not answer.
        start_scn: it captures what is committed after this; None: the keeper of its redo does not answer.
        applied_scn: everything up to here is durable at every destination.
        max_checkpoint_scn: its newest checkpoint.
        captured_scn: redo is mined up to here.
        sent_scn: everything up to here is enqueued.
        transactions_dropped_total: transactions of which the rules take nothing.
        rows_discarded_total: rows that the rules discard.
        batches_total: enqueued batches.
        marks_total: enqueued progress marks.
        full_evaluations_total: batches that prefiltering did not decide.
        last_commit_time_us: commit time of the newest transaction at the source, microseconds since the epoch.
        labels_left_out_total: labels of tracked transactions that did not fit into a batch.
        ddl_failed_total: DDL statements that the source could not record, so that no destination gets them.
        last_failed_ddl: the last one, and why; empty: none, or not known.
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
    ddl_failed_total: int | None = None
    last_failed_ddl: str = ""
