"""The desired state as frozen data: a topology file after expansion, with every default filled in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.tags import DEFAULT_APPLY_TAG
from headrace.rules.conflict_handlers import NO_CONFLICT_RULES, ConflictRules
from headrace.rules.rule import RuleSet
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings
from headrace.rules.user_code.handlers import NO_HANDLERS, HandlerRules
from headrace.rules.virtual_dependencies import NO_VIRTUAL_DEPENDENCIES, VirtualDependencies
from topology.alerts import AlertsSpec
from topology.schedule import Schedule

__all__ = [
    "ApplySpec",
    "CaptureSpec",
    "DatabaseSpec",
    "PropagationSpec",
    "QueueSpec",
    "SiteSpec",
    "TlsSpec",
    "TopologySpec",
]

MEMORY_BYTES_DEFAULT = 256 << 20  # of a queue: seconds of work at full speed, small next to a node
SPILL_BYTES_DEFAULT = 16 << 30  # of a queue: an outage of an hour at a few MB/s
REDO_BYTES_DEFAULT = 16 << 30  # of a site's redo log: as much as a queue may spill, for the same outage
SEGMENT_BYTES_DEFAULT = 64 << 20  # a redo segment: small enough to purge early, large enough to be few
# the delay of archived-log capture of a quiet source, and 1,440 small segments a day at most
ARCHIVE_LAG_DEFAULT_S = 60.0
# the manuals' split_threshold: a restart, a failover or a short maintenance of the line is over by then
SPLIT_AFTER_DEFAULT_S = 1800.0
# the manuals' merge_threshold: the amount that the original queue holds while a stream merges back
MERGE_WITHIN_DEFAULT_S = 60.0
EXECUTORS_DEFAULT = 2  # of a Spark application: one continues while Ray replaces the other (5.7 s measured)
EXECUTORS_MAX = 8  # 270 MB each; the apply servers of a site wait for its database much more than they compute
PARALLELISM_DEFAULT = 2  # apply servers: one prepares while the other waits for the database


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSpec:
    """A site's database.

    Args:
        kind: "postgres" (the user's own), "embedded" (a private server) or "none" (queues only).
        dsn: connection string with environment references resolved; empty unless kind is "postgres".
        version: wanted major version of an embedded server.
        environment: names of the environment variables, files and programs that the connection strings refer to.
        allow_any_version: accept a server of an untested version.
        decoding_memory: bytes of transactions in flight that the session which reads its log may hold; 0: the server's
            settings decide (`headrace.databases.postgres.source.log_stream.decoding_memory`).
        has_admin: the file has an `admin_dsn`. Its role creates and drops the objects of a destination and the
            publication of a source (`topology.file.admin`). The string itself is not stored here: a topology reaches
            processes and files that must not have it.
    """

    kind: str
    dsn: str = field(default="", repr=False)  # may hold a password
    version: int = 18
    environment: tuple[str, ...] = ()
    allow_any_version: bool = False
    decoding_memory: int = 0
    has_admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSpec:
    """A site's certificate files, as absolute paths: the authority's certificate, the site's certificate and its key.

    `protos.wire.identity` reads them. `revoked` lists certificates that are refused (`protos.wire.revoked`); None: the
    site has no such list.
    """

    authority: Path
    certificate: Path
    key: Path
    revoked: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSpec:
    """One site.

    Args:
        name: unique in the topology.
        database: its database.
        node: Ray custom resources that its actors need, as (name, amount) pairs.
        executors: of its Spark application, if changes are applied there.
        tls: its certificate (`topology.links`); None: its links are neither encrypted nor authenticated.
    """

    name: str
    database: DatabaseSpec
    node: tuple[tuple[str, float], ...] = ()
    executors: int = EXECUTORS_DEFAULT
    tls: TlsSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """A buffered queue at a site; bounds in bytes."""

    name: str
    site: str
    memory_bytes_max: int = MEMORY_BYTES_DEFAULT
    spill_bytes_max: int = SPILL_BYTES_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSpec:
    """A capture process at `site`, mining the redo of `source` into `queue`.

    Args:
        name: unique in the topology.
        site: where it mines.
        source: whose redo it mines; another site: downstream capture (`topology.routing.downstream`).
        queue: a queue of the same site.
        rules: what it takes.
        transport: of a downstream capture: "sync" or "async" (`topology.routing.downstream.RedoReceiver`).
        mode: of a downstream capture: "real_time" or "archived_log".
        archive: of archived-log capture: absolute path of the folder at its site into which complete segments are
            copied; empty: they are sent.
        archive_lag_s: of archived-log capture: the source completes a partly filled segment after this many seconds.
        first_scn: of a new capture process: the lowest SCN from which redo is kept for it; FIRST_SCN: the oldest redo
            left.
        start_scn: of a new capture process: it captures what follows this SCN, unless a destination needs earlier
            changes; FIRST_SCN: what follows the first SCN.
        checkpoint_retention_s: how long redo is kept after it is no longer needed, seconds
            (`headrace.redo.checkpoints`).
    """

    name: str
    site: str
    source: str
    queue: str
    rules: RuleSet
    transport: str = "async"
    mode: str = "real_time"
    archive: str = ""
    archive_lag_s: float = ARCHIVE_LAG_DEFAULT_S
    first_scn: Scn = FIRST_SCN
    start_scn: Scn = FIRST_SCN
    checkpoint_retention_s: float = 0.0

    @property
    def is_downstream(self) -> bool:
        """Whether it mines a copy of the redo, at another site than the source."""
        return self.site != self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class PropagationSpec:
    """A propagation between two queues.

    Args:
        name: unique in the topology.
        from_queue: the source queue.
        to_queue: the destination queue.
        rules: what it takes.
        sources: the sites whose LCRs it forwards: those that an apply process behind it wants. Derived, never written
            in the file; one queue can hold the LCRs of several sources.
        compression: of the data on the wire: "none" or "zstd".
        bandwidth_max: bytes a second on the wire; None: unlimited.
        schedule: when it may use the line; None: always.
        split_after_s: it is split off when its queue has held changes for it alone for this many seconds
            (`topology.split`); None: never.
        merge_within_s: it is merged again when it is within this many seconds of the others.
        held_in: a queue that holds what this propagation has not acknowledged, although it reads another one. Derived,
            never written in the file.
        split_from: the queue that it reads according to the file, while it is split off. Derived.
    """

    name: str
    from_queue: str
    to_queue: str
    rules: RuleSet = field(default_factory=RuleSet)
    sources: tuple[str, ...] = ()
    compression: str = "none"
    bandwidth_max: int | None = None
    schedule: Schedule | None = None
    split_after_s: float | None = SPLIT_AFTER_DEFAULT_S
    merge_within_s: float = MERGE_WITHIN_DEFAULT_S
    held_in: str = ""
    split_from: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplySpec:
    """An apply process at `site`, dequeuing the LCRs of `source` from `queue`.

    Args:
        name: unique in the topology.
        site: where it applies.
        source: whose LCRs it applies.
        queue: a queue of the same site.
        tag: tag of its changes; None: NULL, they look like users' changes.
        parallelism: number of apply servers.
        group_transactions: most source transactions in one destination transaction; 1: one to one.
        group_rows: most rows in one group.
        rules: what it takes.
        combined: combine it with its capture process where the conditions hold (`topology.routing.combined`); True in a
            file unless it says `never`.
        conflicts: its conflict handlers, and the old values that it compares.
        commits_in_order: transactions commit in the order of the source (`commit_serialization: full`); False: only
            dependent ones do.
        dependencies: its virtual dependency definitions.
        on_error: effect on other transactions when one enters the error queue: "hold_dependents", "continue" or
            "disable" (`spark_apply.conversation.groups.OnError`).
        handlers: users' handlers, with the code they need.
        tables: substitute keys, and the treatment of rows that do not fit.
        commits_lazily: commits of rows do not wait for the destination's disk (`synchronous_commit: off`).
    """

    name: str
    site: str
    source: str
    queue: str
    tag: bytes | None = DEFAULT_APPLY_TAG
    parallelism: int = PARALLELISM_DEFAULT
    group_transactions: int = 1000
    group_rows: int = 10_000
    rules: RuleSet = field(default_factory=RuleSet)
    combined: bool = False
    conflicts: ConflictRules = NO_CONFLICT_RULES
    commits_in_order: bool = False
    dependencies: VirtualDependencies = NO_VIRTUAL_DEPENDENCIES
    on_error: str = "hold_dependents"
    handlers: HandlerRules = NO_HANDLERS
    tables: TableSettings = NO_TABLE_SETTINGS
    commits_lazily: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySpec:
    """A whole topology.

    Args:
        name: `topology:` of the file.
        file: the file it was read from.
        state_dir: absolute; one folder per site below it.
        redo_bytes_max: bound of each site's redo log.
        segment_bytes: size at which a redo segment is switched.
        heartbeat_s: how often an idle source writes a heartbeat into its log, seconds.
        allow_cycle: duplicate delivery, returning changes and cycles are intended, not errors.
        alerts: what triggers alerts, and where they go; None: no alerts.
        processes_apart: each component has a process of its own (`actors.hosting.processes`).
    """

    name: str
    file: Path
    state_dir: Path
    sites: tuple[SiteSpec, ...]
    queues: tuple[QueueSpec, ...]
    captures: tuple[CaptureSpec, ...]
    propagations: tuple[PropagationSpec, ...]
    applies: tuple[ApplySpec, ...]
    redo_bytes_max: int = REDO_BYTES_DEFAULT
    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    heartbeat_s: float = 10.0
    allow_cycle: bool = False
    alerts: AlertsSpec | None = None
    processes_apart: bool = False

    def site(self, name: str) -> SiteSpec:
        """Return the site called `name`; KeyError when it does not exist (checked when the topology was read)."""
        return {site.name: site for site in self.sites}[name]

    def queue(self, name: str) -> QueueSpec:
        """Return the queue called `name`; KeyError when it does not exist."""
        return {queue.name: queue for queue in self.queues}[name]

    def apply(self, name: str) -> ApplySpec:
        """Return the apply process called `name`; KeyError when it does not exist."""
        return {apply.name: apply for apply in self.applies}[name]

    def capture(self, name: str) -> CaptureSpec:
        """Return the capture process called `name`; KeyError when it does not exist."""
        return {capture.name: capture for capture in self.captures}[name]

    def propagation(self, name: str) -> PropagationSpec:
        """Return the propagation called `name`; KeyError when it does not exist."""
        return {propagation.name: propagation for propagation in self.propagations}[name]

    def capture_rules(self, source: str) -> tuple[RuleSet, ...]:
        """Return the rule sets of every capture process that mines `source`'s redo."""
        return tuple(capture.rules for capture in self.captures if capture.source == source)

    def subscribers(self, queue: str) -> tuple[str, ...]:
        """Return the names of the propagations and apply processes that dequeue from `queue`."""
        return tuple(p.name for p in self.propagations if p.from_queue == queue) + tuple(
            a.name for a in self.applies if a.queue == queue
        )
