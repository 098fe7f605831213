"""The desired state, as frozen data: what a topology file says after expansion, with every default filled in."""

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
# the manuals' split_threshold: a restart, a failover or a short night's work at the line is over by then
SPLIT_AFTER_DEFAULT_S = 1800.0
# the manuals' merge_threshold: so much the original queue holds while a stream comes back
MERGE_WITHIN_DEFAULT_S = 60.0
PARALLELISM_DEFAULT = 2  # apply servers: one prepares while the other waits for the database


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSpec:
    """A site's database.

    Args:
        kind: "postgres" (the user's own), "embedded" (a private server) or "none" (queues only).
        dsn: connection string with environment references resolved; empty unless kind is "postgres".
        version: major version wanted of an embedded server.
        environment: what the connection strings refer to: names of environment variables, files and programs.
        allow_any_version: take a server whose version was never tried.
        decoding_memory: bytes that the session which reads its log may hold of transactions in flight; 0: by the
            server's own settings (`headrace.databases.postgres.source.log_stream.decoding_memory`).
        has_admin: the file has an `admin_dsn`, whose role makes and drops what a destination needs, and a source's
            publication (`topology.file.admin`). It is not here: a topology gets into processes and files that must not
            have it.
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
    """A site's certificate files, absolute paths.

    The authority's certificate, the site's own and its key (`protos.wire.identity`).

    `revoked` lists certificates that are refused (`protos.wire.revoked`); None: the site has no such list.
    """

    authority: Path
    certificate: Path
    key: Path
    revoked: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSpec:
    """One site.

    Args:
        name: of the site.
        database: its database.
        node: Ray custom resources its actors need, as (name, amount) pairs.
        tls: its certificate (`topology.links`); None: its links are not encrypted, and nobody proves who he is.
    """

    name: str
    database: DatabaseSpec
    node: tuple[tuple[str, float], ...] = ()
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
        queue: at the same site.
        rules: what it takes.
        transport: of a downstream one: "sync" or "async" (`topology.routing.downstream.RedoReceiver`).
        mode: of a downstream one: "real_time" or "archived_log".
        archive: of an archived-log one: absolute path of the folder at its site into which complete segments are
            copied; empty: they are sent.
        archive_lag_s: of an archived-log one: after so many seconds the source completes a segment that is not full.
        first_scn: of one that is new: the lowest SCN that redo is kept from for it; FIRST_SCN: the oldest that is left.
        start_scn: of one that is new: it begins after this where nobody has less; FIRST_SCN: at the first SCN.
        checkpoint_retention_s: how long redo is kept that it does not need any more, seconds (`headrace.redo.checkpoints`).
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
        sources: the sites whose LCRs it forwards: those that an apply process behind it wants. Derived, never
            written in the file; one queue may hold the LCRs of several sources.
        compression: of what travels: "none" or "zstd".
        bandwidth_max: bytes a second on the wire; None: as fast as it goes.
        schedule: when it may use the line; None: always.
        split_after_s: it is split off when its queue has held something for it alone for so long (`topology.split`);
            None: never.
        merge_within_s: it is merged again when it is so close to the others.
        held_in: a queue that holds what this propagation has not acknowledged, though it reads another one. Derived,
            never written in the file.
        split_from: the queue that it reads by the file, while it is split off. Derived.
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
        queue: at the same site.
        tag: what its changes are tagged with; None: NULL, they look like users' changes.
        parallelism: apply servers.
        group_transactions: most source transactions in one destination transaction; 1: one to one.
        group_rows: most rows in one group.
        rules: what it takes.
        combined: combine it with its capture process where the conditions hold (`topology.routing.combined`); a file says so
            unless it says never.
        conflicts: its conflict handlers, and which old values it compares.
        commits_in_order: transactions are committed in the order of the source (`commit_serialization: full`); False:
            dependent ones are.
        dependencies: its virtual dependency definitions.
        on_error: what becomes of others when a transaction enters the error queue: "hold_dependents", "continue" or
            "disable" (`spark_apply.conversation.groups.OnError`).
        handlers: users' handlers, with the code they need.
        tables: substitute keys, and what becomes of rows that do not fit.
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
        file: where it was read.
        state_dir: absolute; one folder per site below it.
        redo_bytes_max: bound of each site's redo log.
        segment_bytes: size at which a redo segment is switched.
        heartbeat_s: how often an idle source writes a heartbeat into its log, seconds.
        allow_cycle: changes that come home, arrive twice or go round for ever are meant, and no error.
        alerts: what alerts are sent of, and where to; None: nobody is told.
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
        """The site called `name`; KeyError when there is none (checked when the topology was read)."""
        return {site.name: site for site in self.sites}[name]

    def queue(self, name: str) -> QueueSpec:
        """The queue called `name`; KeyError when there is none."""
        return {queue.name: queue for queue in self.queues}[name]

    def apply(self, name: str) -> ApplySpec:
        """The apply process called `name`; KeyError when there is none."""
        return {apply.name: apply for apply in self.applies}[name]

    def capture(self, name: str) -> CaptureSpec:
        """The capture process called `name`; KeyError when there is none."""
        return {capture.name: capture for capture in self.captures}[name]

    def propagation(self, name: str) -> PropagationSpec:
        """The propagation called `name`; KeyError when there is none."""
        return {propagation.name: propagation for propagation in self.propagations}[name]

    def capture_rules(self, source: str) -> tuple[RuleSet, ...]:
        """The rule sets of every capture process that mines `source`'s redo."""
        return tuple(capture.rules for capture in self.captures if capture.source == source)

    def subscribers(self, queue: str) -> tuple[str, ...]:
        """Names of the propagations and apply processes that dequeue from `queue`."""
        return tuple(p.name for p in self.propagations if p.from_queue == queue) + tuple(
            a.name for a in self.applies if a.queue == queue
        )
