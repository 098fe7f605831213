"""The status of a propagation (V$PROPAGATION_SENDER)."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.status.component import ComponentStatus

__all__ = ["CompressionStatus", "PropagatedSource", "PropagationStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionStatus:
    """What compression brings and costs, since the propagation's process began.

    Args:
        method: of the compression.
        bytes_before: bytes of batches before it.
        bytes_after: and after it.
        cpu_s: what it cost the sender, in seconds of its CPU.
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
        acknowledged_scn: the destination queue has everything up to here durably, or its subscribers do (ACKNOWLEDGEMENT).
        accepted_scn: it took everything up to here.
        rows_total: rows that were sent.
        bytes_total: bytes that were sent, before compression.
        batches_total: batches that were sent.
        rows_discarded_total: rows that the rules left out.
        rewinds_total: how often the destination queue requested changes again.
        last_lcr_latency_s: how old the newest transaction was when it was sent, in seconds.
        last_sent_us: when something was sent last, microseconds since the epoch.
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
        from_queue: it takes from this queue.
        to_queue: and brings to this one.
        compression: what that brings; None: it does not compress, or has sent nothing yet.
        bandwidth_max: bytes a second that it may send; None: no bound.
        closed_until: it is closed by its schedule until then, on the clock of the schedule; None: it is open.
        sources: by site, whose changes it brings.
    """

    propagation: str = ""
    from_queue: str = ""
    to_queue: str = ""
    compression: CompressionStatus | None = None
    bandwidth_max: int | None = None
    closed_until: str | None = None
    sources: dict[str, PropagatedSource] = field(default_factory=dict)
