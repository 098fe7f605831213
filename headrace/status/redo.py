"""The status of a redo log, at its source or as a standby at another site."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.status.component import ComponentStatus

__all__ = ["CaptureScns", "RedoLogStatus", "RedoReceiverStatus", "ShippedRedo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureScns:
    """Two SCNs of a capture process, as who keeps its redo knows them.

    Args:
        first_scn: the lowest SCN from which it can capture.
        start_scn: it captures what is committed after this.
    """

    first_scn: int
    start_scn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedRedo:
    """How far one redo receiver of another site is.

    Args:
        receiver: its name.
        transport: "sync" or "async".
        state: "SHIPPING" or "AWAY".
        durable_scn: it has everything up to here durably.
        segment: in this segment.
    """

    receiver: str
    transport: str = "async"
    state: str = "AWAY"
    durable_scn: int = 0
    segment: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RedoLogStatus(ComponentStatus):
    """A component that keeps redo; every field is None as long as the redo is not open. `bytes_total`: redo written.

    Args:
        redo_bytes: what it takes on disk.
        redo_bytes_max: bound of that.
        redo_segments: in how many files.
        redo_scn: its end.
        redo_segment: the segment that is written.
        fsyncs_total: how often it was made durable.
        purged_bytes_total: bytes that were deleted because nothing needs them.
        required_checkpoint_scn: redo is needed from here on.
        captures: by capture process that mines here, its SCNs.
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
        source: the site whose redo it is.
        mode: "real_time" or "archived_log".
        transport: "sync" or "async"; None: files are copied by others.
        archive: where those put the files; None: redo is shipped.
        redo_at_source_scn: the end of the redo at the source, as it said last.
        duplicate_bytes_total: bytes that came again.
    """

    source: str = ""
    mode: str = ""
    transport: str | None = None
    archive: str | None = None
    redo_at_source_scn: int | None = None
    duplicate_bytes_total: int | None = None
