"""The status of a propagation (V$PROPAGATION_SENDER)."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.status.component import ComponentStatus

__all__ = ["CompressionStatus", "PropagatedSource", "PropagationStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionStatus:
    """Effect and cost of compression, since the propagation's process began.

    Args:
        method: compression method.
        bytes_before: bytes of batches before compression.
        bytes_after: bytes of batches after compression.
        cpu_s: CPU time of the sender for compression, in seconds.
    """

    method: str
    bytes_before: int = 0
    bytes_after: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PropagatedSource:
    """One source's changes in a propagation.

    Args:
        sent_scn: everything up to here was sent (HIGH_WATER_MARK).
        acknowledged_scn: the destination queue, or its subscribers, has everything up to here durably
            (ACKNOWLEDGEMENT).
        accepted_scn: the destination queue accepted everything up to here.
        rows_total: sent rows.
        bytes_total: sent bytes, before compression.
        batches_total: sent batches.
        rows_discarded_total: rows that the rules discarded.
        rewinds_total: requests of the destination queue for earlier changes.
        last_lcr_latency_s: age of the newest transaction when it was sent, in seconds.
        last_sent_us: time of the last send, microseconds since the epoch.
    """

    sent_scn: int = 0
    acknowledged_scn: int = 0
    accepted_scn: int = 0
    rows_total: int = 0
    bytes_total: int = 0
    batches_total: int = 0
    rows_discarded_total: int = 0
    rewinds_total: int = 0
    last_lcr_latency_s: float = 0.0
    last_sent_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PropagationStatus(ComponentStatus):
    """A propagation that was opened.

    Args:
        propagation: its name in the topology.
        from_queue: queue from which it dequeues.
        to_queue: queue into which it enqueues.
        compression: effect of compression; None: it does not compress, or has sent nothing yet.
        bandwidth_max: allowed bytes per second; None: no bound.
        closed_until: its schedule closes it until then, on the clock of the schedule; None: it is open.
        sources: state per source, by site.
    """

    propagation: str = ""
    from_queue: str = ""
    to_queue: str = ""
    compression: CompressionStatus | None = None
    bandwidth_max: int | None = None
    closed_until: str | None = None
    sources: dict[str, PropagatedSource] = field(default_factory=dict)
