"""The overview of a topology: what its controller knows of all components at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.status.component import ComponentStatus

__all__ = ["Flow", "FoundProblem", "Overview", "SentAlerts", "SiteToClear", "SplitStream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """How far one apply process is behind its source.

    Args:
        apply: name of the apply process.
        source: site of the source.
        destination: site of the apply process.
        source_scn: end of the source's log; None: unknown.
        applied_scn: everything up to here is applied or in the error queue; None: unknown.
        scn_gap: bytes of log between the two; None: unknown.
        lag_s: age of the oldest change that is not applied, in seconds; None: unknown.
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
    """One finding of a preflight.

    Args:
        path: subject, such as "sites.dbs1".
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
        propagation: name of the propagation.
        queue: queue from which it is split off.
        phase: "splitting", "split", "merging", or "together": the split is pending.
        merges: it is merged when it is close enough; False: when an operator requests it.
        by: "threshold" or "operator".
        since_us: start of the phase, microseconds since the epoch; 0: not yet.
        split_queue: queue that it reads; empty: its own.
        captures: capture processes that fill that queue.
        connected: its destination is connected.
        behind_s: how far it is behind the others, in seconds; None: unknown.
        merge_threshold_s: largest distance at which it is merged, in seconds.
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
    """A site that left the file or is no longer a source, and whose cleanup is pending.

    Args:
        name: name of the site.
        kind: kind of its database.
        slot: slot that its database keeps; empty: it was no source.
        is_removed: the file no longer has the site; False: it is no longer a source.
        problem: why the cleanup failed; empty: not tried yet.
        is_running: the cleanup is retried every few seconds; False: no process has its connection string.
    """

    name: str
    kind: str
    slot: str = ""
    is_removed: bool = False
    problem: str = ""
    is_running: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAlerts:
    """Alerts for one target, since the controller began.

    Args:
        to: the target, without secrets.
        sent: sent alerts.
        waiting: pending alerts.
        left_out: alerts beyond the hour's limit, or without room in the queue.
        left_out_before_next: those of them that the next alert will mention.
        given_up: alerts that could not be sent.
        problem: why the last alert cannot be sent; empty: it was sent.
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
        topology: name of the topology.
        state: state of its controller; CONTROLLER UNREACHABLE: the components were asked without it.
        fingerprint: hash of the controller's current topology; None: unknown.
        problem: why the controller does not continue; empty: it does.
        fix: what to do about the problem.
        at_us: time when the components were asked, microseconds since the epoch; 0: not yet.
        findings: findings of the last preflight.
        statements: statements that were run to prepare each site, by site.
        components: status of each component.
        flows: how far each apply process is behind its source.
        splits: propagations that are split off, or are to be.
        left: sites whose databases need cleanup.
        calls: progress of the latest calls of `up`, by id; None: this controller does not record them.
        alerts: sent alerts, by target.
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
