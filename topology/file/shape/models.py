"""The shape of a topology file: its keys, their values, and keys that are not built yet.

Longer than 500 lines: one class per section of the file.

`findings` reads a part of the file into one of these models, which `topology.file.reading` turns into the frozen data
of `topology.spec`. `values` defines single values.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from headrace.lcr.scn import scn_text
from headrace.lcr.tags import DEFAULT_APPLY_TAG
from headrace.rules.conflict_handlers import BY_COLUMN, METHODS_OF_KIND
from headrace.rules.transformations.transformation import RenameTable
from headrace.rules.user_code.handlers import TIMEOUT_DEFAULT_S
from topology.file.shape.values import (
    ApplyTag,
    Bandwidth,
    ColumnMismatch,
    Combined,
    CommitSerialization,
    DdlOfRule,
    DecodingMemory,
    DetachedPartitions,
    Duration,
    FunctionName,
    LcrCondition,
    MergeThreshold,
    Method,
    Minute,
    NoLatency,
    OnError,
    Operations,
    PlainTable,
    Processes,
    QueueKind,
    Retention,
    SchemaPattern,
    ScnText,
    Size,
    SplitMode,
    SplitThreshold,
    Subset,
    TablePattern,
    TagOrNull,
    TimeZone,
    Transform,
    Where,
    refusal,
)
from topology.schedule import HOUR_S
from topology.spec import EXECUTORS_DEFAULT, EXECUTORS_MAX

__all__ = [
    "AlertsModel",
    "ApplyModel",
    "CaptureModel",
    "ConflictHandlerModel",
    "DmlHandlerModel",
    "ErrorHandlerModel",
    "Model",
    "PropagationModel",
    "QueueModel",
    "ReplicateModel",
    "RuleModel",
    "RulesModel",
    "ScheduleModel",
    "SiteModel",
    "SpokeModel",
    "TlsModel",
    "TombstonesModel",
    "TopologyModel",
    "UncomparedModel",
]

PARALLELISM_MAX = 64  # each apply server holds a session and an origin of the destination, both scarce
GROUP_TRANSACTIONS_MAX = 100_000  # a failing group is bisected: a larger one costs more retries than it saves commits
GROUP_ROWS_MAX = 1_000_000  # a group is held in the memory of an apply server
HANDLER_TIMEOUT_MIN_S = 0.1  # less is no time for a round trip to a busy database
HANDLER_TIMEOUT_MAX_S = 3600.0  # a row that takes an hour is a job, not replication
HISTORY_COUNT_MAX = 100_000_000  # conflicts: what a database can hold besides its own tables
HISTORY_AGE_DAYS_MAX = 3660  # ten years
ALERT_TARGETS_MAX = 8  # each has a thread
WINDOWS_MAX = 50  # of one schedule: more than anyone writes; each costs a millisecond whenever one opens or closes


class Model(BaseModel):
    """Base of every entry of the file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)

    not_yet: ClassVar[dict[str, str]] = {}
    """Keys that are known but not built: key -> alternative for the time being."""


# --------------------------------------------------------------------------- rules


class RuleModel(Model):
    """One entry of `include` or `exclude`."""

    table: TablePattern | None = None
    schema_: SchemaPattern | None = Field(default=None, alias="schema")
    global_: bool | None = Field(default=None, alias="global")
    dml: bool = True
    ddl: DdlOfRule = False
    tagged: bool | None = None
    tags: list[TagOrNull] | None = None
    not_tags: list[TagOrNull] | None = None
    where: Where | None = None
    condition: LcrCondition | None = None
    subset: Subset | None = None
    transform: Transform | None = None

    @model_validator(mode="after")
    def _one_object(self) -> RuleModel:
        objects = sum(item is not None for item in (self.table, self.schema_, self.global_))
        if objects > 1 or (objects == 0 and self.condition is None):
            raise refusal(
                "names no object, or more than one", "write one of table, schema, global, or a condition that names it"
            )
        self._check_conditions()
        if self.global_ is False:
            raise refusal("global: false has no meaning", "write global: true, or a table or schema")
        if not self.dml:
            raise refusal("takes neither dml nor ddl", "leave out dml: false, or the whole rule")
        if sum(item is not None for item in (self.tagged, self.tags, self.not_tags)) > 1:
            raise refusal("says more than once which tags it takes", "keep one of tagged, tags, not_tags")
        if [] in (self.tags, self.not_tags):
            raise refusal("lists no tag", 'list tags, such as [null, "11"], or write tagged: true for every tag')
        self._check_transformation()
        return self

    def _check_transformation(self) -> None:
        if self.transform is None:
            return
        is_one = self.table is not None and not set("*?") & set("".join(self.table))
        if not is_one and any(isinstance(each, RenameTable) for each in self.transform.operations):
            raise refusal(
                "gives more than one table the same name", "give each table a rule of its own, or write rename_schema"
            )

    def _check_conditions(self) -> None:
        if self.where is not None and self.condition is not None:
            raise refusal(
                "has where and condition", "keep one: where takes lcr.ATTRIBUTE too, and condition takes new.COLUMN"
            )
        if self.subset is None:
            return
        if self.where is not None or self.condition is not None:
            raise refusal(
                "has a subset and another condition",
                "keep one of them: what the condition discards would be missing when a row leaves the subset",
            )
        if self.table is None or set("*?") & set("".join(self.table)):
            raise refusal("has a subset and names more than one table", "give each table a rule of its own")


def _no_subsets(rules: list[RuleModel]) -> list[RuleModel]:
    if any(rule.transform is not None for rule in rules):
        raise refusal("has a transformation", "put it under include: what a negative rule takes is discarded")
    if any(rule.subset is not None for rule in rules):
        raise refusal(
            "has a subset",
            "put it under include, with the opposite condition: only positive rules have row migration",
        )
    return rules


class RulesModel(Model):
    """`rules:` of a client."""

    include: list[RuleModel] | None = None
    exclude: Annotated[list[RuleModel], AfterValidator(_no_subsets)] = []


# --------------------------------------------------------------------------- sections


class DatabaseModel(Model):
    """`database:` of a site."""

    kind: Literal["postgres", "embedded", "none"]
    dsn: str | None = None
    admin_dsn: str | None = None
    version: Literal[16, 18] | None = None
    allow_any_version: bool = False
    decoding_memory: DecodingMemory | None = None

    @model_validator(mode="after")
    def _fits_kind(self) -> DatabaseModel:
        if self.kind == "postgres" and self.dsn is None:
            raise refusal("has no dsn", 'give its connection string, such as dsn: "${DBS1_DSN}"')
        if self.kind != "postgres" and self.dsn is not None:
            raise refusal(f"kind: {self.kind} takes no dsn", "leave out dsn, or write kind: postgres")
        if self.kind != "postgres" and self.admin_dsn is not None:
            raise refusal(f"kind: {self.kind} takes no admin_dsn", "leave it out (it is for a server of your own)")
        if self.kind != "embedded" and self.version is not None:
            raise refusal(f"kind: {self.kind} takes no version", "leave out version (it chooses the embedded server's)")
        if self.kind != "postgres" and self.allow_any_version:
            raise refusal(
                f"kind: {self.kind} takes no allow_any_version", "leave it out (it is for a server of your own)"
            )
        if self.kind == "none" and self.decoding_memory is not None:
            raise refusal("kind: none takes no decoding_memory", "leave it out (nothing is decoded here)")
        return self


class TlsModel(Model):
    """`tls:` of the file or of a site; each key of a site overrides the file's."""

    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
    revoked: str | None = None


class AlertTargetModel(Model):
    """One entry of `alerts.to:`."""

    command: Annotated[list[str], Field(min_length=1)] | None = None
    webhook: str | None = None
    token: str | None = None

    @model_validator(mode="after")
    def _is_one(self) -> AlertTargetModel:
        if (self.command is None) == (self.webhook is None):
            raise refusal("is not one target", "write command: [program, argument], or webhook: with the address")
        if self.token is not None and self.webhook is None:
            raise refusal(
                "a command takes no token", "leave it out: the command has an environment and files of its own"
            )
        return self


class BurstModel(Model):
    """`alerts.conflicts:`."""

    count: Annotated[int, Field(ge=1, le=HISTORY_COUNT_MAX)]
    seconds: Annotated[float, Field(ge=5, le=86_400)]


class AlertsModel(Model):
    """`alerts:`."""

    to: Annotated[list[AlertTargetModel], Field(min_length=1, max_length=ALERT_TARGETS_MAX)]
    error_transaction: bool = True
    conflicts: BurstModel | None = None
    lag_s: Annotated[float, Field(ge=5, le=7 * 86_400)] | None = None
    component: bool = True
    per_hour_max: Annotated[int, Field(ge=1, le=3600)] | None = None


class SiteModel(Model):
    """One entry of `sites:`."""

    database: DatabaseModel
    node: dict[str, Annotated[float, Field(gt=0)]] = {}
    executors: Annotated[int, Field(ge=1, le=EXECUTORS_MAX)] = EXECUTORS_DEFAULT
    tls: TlsModel | None = None


class SpokeModel(Model):
    """A spoke with spokes of its own."""

    site: str
    spokes: list[SpokeEntry] = []


def _spoke(value: object) -> object:
    return {"site": value} if isinstance(value, str) else value


SpokeEntry = Annotated[SpokeModel, BeforeValidator(_spoke)]


class ReplicateModel(Model):
    """One entry of `replicate:`."""

    schemas: list[SchemaPattern] = []
    tables: list[TablePattern] = []
    from_: str | None = Field(default=None, alias="from")
    to: list[str] = []
    between: list[str] = []
    hub: str | None = None
    spokes: list[SpokeEntry] = []
    exclude: list[TablePattern] = []
    ddl: bool = False

    @model_validator(mode="after")
    def _is_whole(self) -> ReplicateModel:
        if not self.schemas and not self.tables:
            raise refusal("does not say what to replicate", "give schemas: [hr] or tables: [hr.*]")
        forms = {
            "between": bool(self.between),
            "from/to": self.from_ is not None or bool(self.to),
            "hub/spokes": self.hub is not None or bool(self.spokes),
        }
        found = [form for form, is_used in forms.items() if is_used]
        if len(found) > 1:
            raise refusal(f"has both {' and '.join(found)}", "keep one of them")
        whole = self.between or (self.from_ is not None and self.to) or (self.hub is not None and self.spokes)
        if not whole:
            raise refusal(
                "does not say where",
                "give from: SITE and to: [SITE], between: [SITE, SITE], or hub: SITE and spokes: [SITE]",
            )
        if self.between and len(set(self.between)) < 2:
            raise refusal("between names fewer than two sites", "name two or more")
        if self.ddl and self.from_ is None:
            raise refusal(
                f"ddl: true goes one way so far, and this entry has {'hub' if self.hub is not None else 'between'}",
                "leave out ddl, and run DDL at every site; or write from: SITE and to: [SITE]",
            )
        return self


class QueueModel(Model):
    """One entry of `queues:`."""

    site: str
    kind: QueueKind = "buffered"
    memory: Size | None = None
    spill: Size | None = None


class CaptureModel(Model):
    """One entry of `captures:`."""

    not_yet: ClassVar[dict[str, str]] = dict.fromkeys(
        ("parallelism", "transform"),
        "leave it out",
    )

    site: str
    source: str
    queue: str
    mode: Literal["real_time", "archived_log"] | None = None
    transport: Literal["sync", "async"] | None = None
    archive: str | None = None
    archive_lag_s: Annotated[float, Field(ge=1, le=86_400)] | None = None
    first_scn: ScnText | None = None
    start_scn: ScnText | None = None
    checkpoint_retention_time: Retention | None = None
    rules: RulesModel

    @model_validator(mode="after")
    def _fits_place(self) -> CaptureModel:
        given = [key for key in ("mode", "transport", "archive", "archive_lag_s") if getattr(self, key) is not None]
        if self.site == self.source and given:
            raise refusal(
                f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} only for downstream capture, and this"
                " capture process is local",
                "leave it out, or name a site other than the source",
            )
        if self.mode == "archived_log" and self.transport is not None:
            raise refusal("mode: archived_log takes no transport", "leave out transport, or write mode: real_time")
        if self.mode != "archived_log" and {"archive", "archive_lag_s"} & set(given):
            raise refusal(
                "archive and archive_lag_s are only for archived logs", "write mode: archived_log, or leave them out"
            )
        if self.first_scn is not None and self.start_scn is not None and self.start_scn < self.first_scn:
            raise refusal(
                f"start_scn {scn_text(self.start_scn)} is below first_scn {scn_text(self.first_scn)}",
                "a capture process begins at its first SCN or above",
            )
        return self


class WindowModel(Model):
    """One entry of `windows:`."""

    opens: Minute
    duration: Duration
    days: list[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]] | None = None

    @model_validator(mode="after")
    def _closes(self) -> WindowModel:
        if self.days == []:
            raise refusal("lists no day", "list days, such as [mon, fri], or leave days out for every day")
        if self.opens[0] is None and self.duration >= HOUR_S:
            raise refusal(
                "opens every hour for an hour or more, so it never closes",
                "leave the schedule out, or write a shorter duration",
            )
        return self


class ScheduleModel(Model):
    """`schedule:` of a propagation."""

    windows: Annotated[list[WindowModel], Field(min_length=1, max_length=WINDOWS_MAX)]
    time_zone: TimeZone = "UTC"


class PropagationModel(Model):
    """One entry of `propagations:`."""

    from_: str = Field(alias="from")
    to: str
    rules: RulesModel = RulesModel()
    compression: Literal["none", "zstd"] = "none"
    bandwidth_max: Bandwidth | None = None
    schedule: ScheduleModel | None = None
    split: SplitMode | None = None
    split_threshold: SplitThreshold | None = None
    merge_threshold: MergeThreshold | None = None
    latency: NoLatency = None


class ConflictHandlerModel(Model):
    """One entry of `conflict_handlers:`."""

    table: PlainTable
    method: Method
    on: Literal[
        "insert_exists", "update_exists", "update_differs", "update_missing", "delete_differs", "delete_missing"
    ] = "update_differs"
    columns: Annotated[list[str], Field(min_length=1)] | None = None
    resolution_column: str | None = None
    priority: Annotated[list[str], Field(min_length=2)] | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> ConflictHandlerModel:
        if self.method == "latest_timestamp" and (self.model_fields_set & {"on", "columns", "resolution_column"}):
            raise refusal(
                "latest_timestamp decides about the whole row, in every kind of conflict that time can decide",
                "leave out on, columns and resolution_column",
            )
        if self.method not in METHODS_OF_KIND[self.on]:
            # latest_timestamp takes no kind
            others = [method for method in METHODS_OF_KIND[self.on] if method != "latest_timestamp"]
            raise refusal(f"{self.method} is no method for {self.on}", f"write one of {', '.join(others)}")
        if self.method in BY_COLUMN and self.resolution_column is None:
            raise refusal(f"{self.method} has no resolution_column", "name the column whose values decide")
        if self.columns and len(set(self.columns)) < len(self.columns):
            raise refusal("columns names a column twice", "name every column once")
        if self.columns is not None and self.on != "update_differs":
            raise refusal(
                f"only a handler of update_differs has a column list, and this one is of {self.on}",
                "leave columns out: it decides about the row",
            )
        if self.resolution_column and self.columns and self.resolution_column not in self.columns:
            raise refusal(
                f"the resolution column {self.resolution_column} is not in the column list", "add it to columns"
            )
        if self.resolution_column and self.on != "update_differs" and self.method not in BY_COLUMN:
            raise refusal(f"{self.method} on {self.on} takes no resolution_column", "leave it out")
        if self.method != "latest_timestamp" and (self.priority is not None) != (self.method == "site_priority"):
            raise refusal(
                *(
                    ("site_priority has no priority", "list the sites, the one that wins first: priority: [dbs1, dbs2]")
                    if self.priority is None
                    else (f"{self.method} takes no priority", "leave it out, or write method: site_priority")
                )
            )
        return self


class UncomparedModel(Model):
    """One entry of `compare_old_values:`."""

    table: PlainTable
    columns: Annotated[list[str], Field(min_length=1)]
    operations: Annotated[list[Literal["update", "delete"]], Field(min_length=1)] = ["update", "delete"]
    compare: Literal[False] = False


class DmlHandlerModel(Model):
    """One entry of `dml_handlers:`."""

    table: PlainTable
    operations: Operations = ["insert", "update", "delete"]
    function: FunctionName | None = None
    statements: Annotated[list[str], Field(min_length=1)] | None = None
    tables: list[PlainTable] = []
    columns: list[str] = []

    @model_validator(mode="after")
    def _is_whole(self) -> DmlHandlerModel:
        if (self.function is None) == (self.statements is None):
            raise refusal(
                "has neither a function nor statements, or both",
                "write function: module:function, or statements: [...]",
            )
        if self.columns and self.function is None:
            raise refusal(
                "has columns and statements", "leave columns out: the binds of the statements determine the columns"
            )
        return self


class ErrorHandlerModel(Model):
    """One entry of `error_handlers:`."""

    table: PlainTable
    function: FunctionName
    operations: Operations = ["insert", "update", "delete"]
    columns: list[str] = []


class KeyColumnsModel(Model):
    """One entry of `key_columns:`."""

    table: PlainTable
    columns: Annotated[list[str], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_each_once(self) -> KeyColumnsModel:
        if len(set(self.columns)) < len(self.columns):
            raise refusal("columns names a column twice", "name every column once")
        return self


class TriggerModel(Model):
    """One entry of `triggers:`."""

    table: PlainTable
    trigger: Annotated[str, Field(min_length=1)]
    fire: Literal["once", "always"]


class ConflictHistoryModel(Model):
    """`conflict_history:`."""

    count: Annotated[int, Field(ge=1, le=HISTORY_COUNT_MAX)] | None = None
    age_days: Annotated[float, Field(gt=0, le=HISTORY_AGE_DAYS_MAX)] | None = None


class TombstonesModel(Model):
    """`tombstones:`."""

    retention_days: Annotated[float, Field(gt=0, le=HISTORY_AGE_DAYS_MAX)] | None = None
    count: Annotated[int, Field(ge=1, le=HISTORY_COUNT_MAX)] | None = None


class ValueColumnsModel(Model):
    """One table of an entry of `value_dependencies:`."""

    table: PlainTable
    columns: Annotated[list[str], Field(min_length=1)]


class ObjectDependencyModel(Model):
    """One entry of `object_dependencies:`."""

    table: PlainTable
    parent: PlainTable


class ApplyModel(Model):
    """One entry of `applies:`."""

    not_yet: ClassVar[dict[str, str]] = {
        "message_handler": "leave it out",
        "ddl_handler": "leave it out",
        "mode": "leave it out: apply is transactional",
        "disable_on_error": "write on_error: disable; without it other transactions continue",
        "maximum_scn": "leave it out",
        "transform": "keep names and columns equal on both sides",
    }

    site: str
    source: str
    queue: str
    tag: ApplyTag = DEFAULT_APPLY_TAG
    parallelism: Annotated[int, Field(ge=1, le=PARALLELISM_MAX)] | None = None
    group_transactions: Annotated[int, Field(ge=1, le=GROUP_TRANSACTIONS_MAX)] | None = None
    group_rows: Annotated[int, Field(ge=1, le=GROUP_ROWS_MAX)] | None = None
    commit_serialization: CommitSerialization = "dependent_transactions"
    synchronous_commit: bool | None = None
    value_dependencies: dict[str, list[ValueColumnsModel]] = {}
    object_dependencies: list[ObjectDependencyModel] = []
    combined: Combined = "auto"
    conflict_handlers: list[ConflictHandlerModel] | None = None
    dml_handlers: list[DmlHandlerModel] | None = None
    error_handlers: list[ErrorHandlerModel] | None = None
    precommit_handler: FunctionName | None = None
    compare_old_values: list[UncomparedModel] | None = None
    compare_key_only: bool | None = None
    key_columns: list[KeyColumnsModel] | None = None
    allow_duplicate_rows: bool | None = None
    column_mismatch: ColumnMismatch | None = None
    detached_partitions: DetachedPartitions | None = None
    triggers: list[TriggerModel] | None = None
    check_foreign_keys: bool | list[PlainTable] | None = None
    on_error: OnError | None = None
    rules: RulesModel = RulesModel()


class TopologyModel(Model):
    """The top of the file. Entries of sections are read one by one, so that a bad entry hides no other."""

    topology: str
    state_dir: str | None = None
    redo_bytes_max: Size | None = None
    segment_bytes: Size | None = None
    heartbeat_s: Annotated[float, Field(ge=0.1, le=3600)] | None = None
    combined: Combined = "auto"
    processes: Processes = "shared"
    synchronous_commit: bool | None = None
    split: SplitMode = "auto"
    split_threshold: SplitThreshold | None = None
    merge_threshold: MergeThreshold | None = None
    allow_cycle: bool = False
    conflict_handlers: list[ConflictHandlerModel] = []
    code: str | None = None
    dml_handlers: list[DmlHandlerModel] = []
    error_handlers: list[ErrorHandlerModel] = []
    precommit_handler: FunctionName | None = None
    handler_timeout_s: Annotated[float, Field(ge=HANDLER_TIMEOUT_MIN_S, le=HANDLER_TIMEOUT_MAX_S)] = TIMEOUT_DEFAULT_S
    compare_old_values: list[UncomparedModel] = []
    compare_key_only: bool = False
    conflict_history: ConflictHistoryModel = ConflictHistoryModel()
    key_columns: list[KeyColumnsModel] = []
    allow_duplicate_rows: bool | None = None
    column_mismatch: ColumnMismatch = "wait"
    detached_partitions: DetachedPartitions = "ask"
    triggers: list[TriggerModel] = []
    check_foreign_keys: bool | list[PlainTable] = False
    tombstones: TombstonesModel | None = None
    on_error: OnError | None = None
    alerts: Any = None
    tls: Any = None
    sites: dict[str, Any]
    replicate: list[Any] = []
    queues: dict[str, Any] = {}
    captures: dict[str, Any] = {}
    propagations: dict[str, Any] = {}
    applies: dict[str, Any] = {}
