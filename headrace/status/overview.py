"""The overview of a topology: what its controller knows of all components at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.status.component import ComponentStatus

__all__ = ["Flow", "FoundProblem", "Overview", "SentAlerts", "SiteToClear", "SplitStream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """How far one apply process is behind its source.

    Args:
        apply: its name.
        source: the source's site.
        destination: its own site.
        source_scn: the end of the source's log; None: unknown.
        applied_scn: everything up to here is applied or in the error queue; None: unknown.
        scn_gap: bytes of log between the two; None: unknown.
        lag_s: how old the oldest change is that is not applied, in seconds; None: unknown.
        errors: error transactions in the error queue; None: unknown.
    """

    apply: str
    source: str
    destination: str
    source_scn: int | None = None
    applied_scn: int | None = None
    scn_gap: int | None = None
    lag_s: float | None = None
    errors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProblem:
    """One thing that a preflight found.

    Args:
        path: what it is about, such as "sites.dbs1".
        problem: what is wrong.
        fix: what to do.
        is_error: replication cannot begin; False: a warning.
    """

    path: str = ""
    problem: str = ""
    fix: str = ""
    is_error: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStream:
    """A propagation that is split off, or is to be (DBA_STREAMS_SPLIT_MERGE).

    Args:
        propagation: its name.
        queue: the queue that it is split off from.
        phase: "splitting", "split", "merging", or "together": it is to be split off.
        merges: it is merged once it is close enough; False: when an operator asks for it.
        by: "threshold" or "operator".
        since_us: since when, microseconds since the epoch; 0: it is not yet.
        split_queue: the queue that it reads; empty: its own.
        captures: the capture processes that fill that.
        connected: its destination is connected.
        behind_s: how far it is behind the others, in seconds; None: unknown.
        merge_threshold_s: at most so far it is merged, in seconds.
        stopped: stopped components that it waits for.
        hindrance: why it cannot be split off; empty: it can.
    """

    propagation: str
    queue: str
    phase: str
    merges: bool = False
    by: str = "operator"
    since_us: int = 0
    split_queue: str = ""
    captures: tuple[str, ...] = ()
    connected: bool = False
    behind_s: float | None = None
    merge_threshold_s: float = 0.0
    stopped: tuple[str, ...] = ()
    hindrance: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteToClear:
    """A site that left the file, or is no source any more, and whose database was not cleared yet.

    Args:
        name: of the site.
        kind: of its database.
        slot: the slot that its database keeps; empty: it was no source.
        is_removed: it is gone from the file; False: it is no source any more.
        problem: why it could not be cleared; empty: it was not tried yet.
        is_running: it is tried every few seconds; False: nobody has its connection string.
    """

    name: str
    kind: str
    slot: str = ""
    is_removed: bool = False
    problem: str = ""
    is_running: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAlerts:
    """What was sent to one target of alerts, since the controller began.

    Args:
        to: the target, without secrets.
        sent: alerts that were sent.
        waiting: alerts that are to be sent.
        left_out: alerts beyond the hour's limit, or that the queue had no room for.
        left_out_before_next: those of them that the next alert tells of.
        given_up: alerts that could not be sent.
        problem: why the last one cannot be sent; empty: it was.
    """

    to: str
    sent: int = 0
    waiting: int = 0
    left_out: int = 0
    left_out_before_next: int = 0
    given_up: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of a whole topology.

    Args:
        topology: its name.
        state: of its controller; CONTROLLER UNREACHABLE: the components were asked without it.
        fingerprint: of the topology that the controller works by; None: unknown.
        problem: why the controller does not go on; empty: it does.
        fix: what to do about that.
        at_us: when the components were asked, microseconds since the epoch; 0: not yet.
        findings: of the last preflight.
        statements: by site, what was run there to prepare it.
        components: the status of each.
        flows: by apply process, how far it is behind its source.
        splits: propagations that are split off, or are to be.
        left: sites whose databases are to be cleared.
        calls: the latest calls of `up` by what identifies them, and how far each is; None: this controller does not know.
        alerts: by target, what was sent.
    """

    topology: str
    state: str
    fingerprint: str | None = None
    problem: str = ""
    fix: str = ""
    at_us: int = 0
    findings: tuple[FoundProblem, ...] = ()
    statements: dict[str, tuple[str, ...]] = field(default_factory=dict)
    components: tuple[ComponentStatus, ...] = ()
    flows: tuple[Flow, ...] = ()
    splits: tuple[SplitStream, ...] = ()
    left: tuple[SiteToClear, ...] = ()
    calls: dict[str, str] | None = None
    alerts: tuple[SentAlerts, ...] = ()
