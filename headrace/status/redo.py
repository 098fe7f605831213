"""The status of a redo log, at its source or as a standby at another site."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.status.component import ComponentStatus

__all__ = ["CaptureScns", "RedoLogStatus", "RedoReceiverStatus", "ShippedRedo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureScns:
    """Two SCNs of a capture process, as the keeper of its redo knows them.

    Args:
        first_scn: lowest SCN from which it can capture.
        start_scn: it captures what is committed after this.
    """

    first_scn: int
    start_scn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedRedo:
    """Progress of one redo receiver of another site.

    Args:
        receiver: its name.
        transport: "sync" or "async".
        state: "SHIPPING" or "AWAY".
        durable_scn: it has everything up to here durably.
        segment: segment of that position.
    """

    receiver: str
    transport: str = "async"
    state: str = "AWAY"
    durable_scn: int = 0
    segment: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RedoLogStatus(ComponentStatus):
    """A component that keeps redo; every field is None while the redo is not open. `bytes_total`: redo written.

    Args:
        redo_bytes: size on disk.
        redo_bytes_max: bound of `redo_bytes`.
        redo_segments: number of segment files.
        redo_scn: end of the redo.
        redo_segment: segment that is written.
        fsyncs_total: number of fsyncs.
        purged_bytes_total: bytes that were purged.
        required_checkpoint_scn: redo is needed from here on.
        captures: SCNs of the capture processes that mine here, by name.
    """

    redo_bytes: int | None = None
    redo_bytes_max: int | None = None
    redo_segments: int | None = None
    redo_scn: int | None = None
    redo_segment: int | None = None
    fsyncs_total: int | None = None
    purged_bytes_total: int | None = None
    required_checkpoint_scn: int | None = None
    captures: dict[str, CaptureScns] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedoReceiverStatus(RedoLogStatus):
    """A redo receiver: keeps a copy of a source's redo at another site.

    Args:
        source: site of the source.
        mode: "real_time" or "archived_log".
        transport: "sync" or "async"; None: another tool copies the files.
        archive: folder into which that tool puts the files; None: redo is shipped.
        redo_at_source_scn: last reported end of the redo at the source.
        duplicate_bytes_total: duplicate bytes received.
    """

    source: str = ""
    mode: str = ""
    transport: str | None = None
    archive: str | None = None
    redo_at_source_scn: int | None = None
    duplicate_bytes_total: int | None = None
