"""The shape of a topology file: what keys there are, what they hold, and which of them are not built yet.

Longer than 500 lines: one class per section of the file.

pydantic stays inside this module: `read_shape` turns its errors into findings, and what it answers are these
models, which `topology.file.reading` turns into the frozen data of `topology.spec`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args
from zoneinfo import available_timezones

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from headrace.databases.ports import Finding
from headrace.lcr.scn import FIRST_SCN, Scn, parse_scn, scn_text
from headrace.lcr.tags import DEFAULT_APPLY_TAG, TAG_BYTES_MAX
from headrace.rules.conditions.condition import Condition
from headrace.rules.conditions.nodes import ConditionError
from headrace.rules.conflict_handlers import BY_COLUMN, METHODS_OF_KIND
from headrace.rules.transformations.transformation import RenameTable, Transformation
from headrace.rules.user_code.handlers import TIMEOUT_DEFAULT_S
from topology.file.document import Document, Path_
from topology.file.transformations import TransformProblem, transformation_of
from topology.patterns import parse_schema, parse_table
from topology.problems import nearest
from topology.schedule import DURATION_MAX_S, DURATION_MIN_S, HOUR_S, knows_time_zone

__all__ = [
    "AlertsModel",
    "ApplyModel",
    "CaptureModel",
    "ConflictHandlerModel",
    "PropagationModel",
    "QueueModel",
    "ReplicateModel",
    "RuleModel",
    "RulesModel",
    "ScheduleModel",
    "SiteModel",
    "SpokeModel",
    "TombstonesModel",
    "TopologyModel",
    "UncomparedModel",
    "read_shape",
    "valid_name",
]

NAME_LENGTH_MAX = 30  # several of them are joined in the names of objects that a database bounds to 63 characters
_NAME = re.compile(rf"^[a-z][a-z0-9_]{{0,{NAME_LENGTH_MAX - 1}}}$")
_SIZE = re.compile(r"^(\d+)\s*(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?$")
_POWER = {"": 0, "B": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
APPLY_TAG_BYTES_MAX = 128  # databases carry an apply process's tag inside the name of an object, which they bound
PARALLELISM_MAX = 64  # each apply server holds a session and an origin of the destination, both scarce
GROUP_TRANSACTIONS_MAX = 100_000  # a failing group is bisected: a larger one costs more retries than it saves commits
GROUP_ROWS_MAX = 1_000_000  # a group is held in the memory of an apply server
SIZE_MIN = 1 << 20  # one LCR batch
# Of one source session. Larger transactions are rare enough for the server's disk, and a mistyped unit would take the
# source's memory.
DECODING_MEMORY_MAX = 4 << 30
BANDWIDTH_MIN = 8 << 10  # bytes a second: two of the smallest pieces
# Seconds. Below ten, a process that restarts would be taken for a destination that is away; a week is longer than redo
# is kept anywhere.
SPLIT_THRESHOLD_MIN, SPLIT_THRESHOLD_MAX = 10, 7 * 86_400
MERGE_THRESHOLD_MIN = 1  # seconds: positions are observed once a second
HANDLER_TIMEOUT_MIN_S = 0.1  # less is no time for a round trip to a busy database
HANDLER_TIMEOUT_MAX_S = 3600.0  # a row that takes an hour is not replicated, it is worked on
HISTORY_COUNT_MAX = 100_000_000  # conflicts: what a database can hold beside its own tables
HISTORY_AGE_DAYS_MAX = 3660  # ten years
ALERT_TARGETS_MAX = 8  # each has a thread
WINDOWS_MAX = 50  # of one schedule: what a person writes; each costs a millisecond whenever one opens or closes
_MINUTE = re.compile(r"^(\*|[01]?\d|2[0-3]):([0-5]\d)$")
_DURATION = re.compile(r"^(\d{1,6})\s*(s|min|h)$")

_RETENTION = re.compile(r"^(\d{1,6})\s*(s|min|h|d)$")
# Seconds. Below ten, less than the site's own records lag behind; the manuals' default is the most: redo_bytes_max
# bounds it anyway.
RETENTION_MIN_S, RETENTION_MAX_S = 10, 60 * 86_400

_BUILT_LATER = "not yet"


def _problem(problem: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError("headrace", "{problem}: {fix}", {"problem": problem, "fix": fix})


def _not_yet(what: str, fix: str) -> PydanticCustomError:
    return _problem(f"{what} is known but {_BUILT_LATER} built", fix)


# --------------------------------------------------------------------------- values


def valid_name(name: str) -> bool:
    """Whether `name` may name a site or a component."""
    return _NAME.match(name) is not None


def _size(value: object) -> int:
    match = _SIZE.match(str(value).strip()) if isinstance(value, (str, int)) and not isinstance(value, bool) else None
    if match is None:
        raise _problem(f"{value!r} is not a size", "write bytes or a number with a unit, such as 256MB (1MB = 1024kB)")
    unit = match[2] or ""
    size = int(match[1]) << (10 * _POWER[unit[:1]])
    if size < SIZE_MIN:
        raise _problem(f"{value!r} is too small", "at least 1MB: one LCR batch must fit")
    return size


def _decoding_memory(value: object) -> int:
    size = _size(value)
    if size > DECODING_MEMORY_MAX:
        raise _problem(
            f"{value!r} is too large",
            "at most 4GB: it is memory of the source's server, which spills larger transactions to its disk",
        )
    return size


def _tag(value: object, bytes_max: int = TAG_BYTES_MAX) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise _problem(
            f"{value!r} is not a text", 'put hexadecimal digits in quotes, such as "00" (YAML reads 00 as a number)'
        )
    try:
        tag = bytes.fromhex(value)
    except ValueError:
        raise _problem(
            f"{value!r} is not hexadecimal", 'write pairs of hexadecimal digits, such as "00" or "1f"'
        ) from None
    if not tag:
        raise _problem("the tag is empty", 'write null for no tag, or a tag, such as "00"')
    if len(tag) > bytes_max:
        raise _problem(f"the tag has {len(tag)} bytes", f"at most {bytes_max}")
    return tag


def _apply_tag(value: object) -> bytes | None:
    return _tag(value, APPLY_TAG_BYTES_MAX)


def _table(value: object) -> tuple[str, str]:
    try:
        return parse_table(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        raise _problem(str(error), 'write schema.table, such as hr.employees or hr.* (or "Odd.Name".t)') from None


def _plain_table(value: object) -> tuple[str, str]:
    owner, name = _table(value)
    if set("*?") & set(owner + name):
        raise _problem(f"{value!r} is a pattern", "name one table: its columns decide")
    return owner, name


def _schema(value: object) -> str:
    try:
        return parse_schema(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        fix = "write a schema's name, such as hr (tables go under `tables` or `table`)"
        raise _problem(str(error), _quoted(value) or fix) from None


def _quoted(value: object) -> str:
    """How a name is written that has a blank or a quote, or "" where it has neither; a dot may have been meant as one."""
    if (
        not isinstance(value, str)
        or not value.strip('"')
        or not any(letter.isspace() or letter == '"' for letter in value)
    ):
        return ""
    inner = value.strip('"').replace('"', '""').replace("'", "''")
    return (
        f"""put double quotes around a name with a blank or a quote, and single ones around all for YAML: '"{inner}"'"""
    )


def _condition(value: object, form: str) -> Condition:
    if not isinstance(value, str):
        raise _problem(f"{value!r} is not a text", 'write a condition in SQL, in quotes, such as "department_id = 50"')
    from headrace.rules.conditions.condition import parse  # numpy: most files have no conditions

    try:
        return parse(value, form)
    except ConditionError as error:
        raise _problem(str(error), error.hint) from None


def _where(value: object) -> Condition:
    return _condition(value, "where")


def _lcr_condition(value: object) -> Condition:
    return _condition(value, "condition")


def _subset(value: object) -> Condition:
    return _condition(value, "subset")


def _transform(value: object) -> Transformation:
    try:
        return transformation_of(value)
    except TransformProblem as error:
        raise _problem(error.problem, error.fix) from None


def _no_ddl(value: object) -> object:
    if value is True:
        raise _not_yet("ddl: true", "leave it out, and run DDL at every site")
    return value


def _queue_kind(value: object) -> object:
    if value == "persistent":
        raise _not_yet("kind: persistent", "write kind: buffered")
    return value


def _bandwidth(value: object) -> int:
    text = value.removesuffix("/s").rstrip() if isinstance(value, str) else value
    match = _SIZE.match(str(text).strip()) if isinstance(text, (str, int)) and not isinstance(text, bool) else None
    if match is None:
        raise _problem(f"{value!r} is not a bandwidth", "write bytes a second, such as 500kB or 2MB (1MB = 1024kB)")
    unit = match[2] or ""
    size = int(match[1]) << (10 * _POWER[unit[:1]])
    if size < BANDWIDTH_MIN:
        raise _problem(
            f"{value!r} is too little", "at least 8kB a second: below that progress marks alone fill the line"
        )
    return size


def _minute(value: object) -> tuple[int | None, int]:
    match = _MINUTE.match(value) if isinstance(value, str) else None
    if match is None:
        fix = (
            'write hours and minutes in quotes, such as "22:00", or "*:50" for every hour (YAML reads 22:00 without'
            " quotes as a number)"
        )
        raise _problem(f"{value!r} is not a time of the day", fix)
    return None if match[1] == "*" else int(match[1]), int(match[2])


def _duration(value: object) -> int:
    match = _DURATION.match(value) if isinstance(value, str) else None
    seconds = 0 if match is None else int(match[1]) * {"s": 1, "min": 60, "h": 3600}[match[2]]
    if not DURATION_MIN_S <= seconds <= DURATION_MAX_S:
        raise _problem(f"{value!r} is not a duration of a window", "write one from 60s to 168h, such as 10min or 6h")
    return seconds


def _retention(value: object) -> float:
    match = _RETENTION.match(value) if isinstance(value, str) else None
    seconds = 0 if match is None else int(match[1]) * {"s": 1, "min": 60, "h": 3600, "d": 86_400}[match[2]]
    if not RETENTION_MIN_S <= seconds <= RETENTION_MAX_S:
        raise _problem(f"{value!r} is not a retention time", "write one from 10s to 60d, such as 12h or 3d")
    return float(seconds)


def _scn(value: object) -> Scn:
    try:
        scn = parse_scn(str(value)) if isinstance(value, (str, int)) and not isinstance(value, bool) else FIRST_SCN
    except ValueError:
        scn = FIRST_SCN
    if scn == FIRST_SCN:
        raise _problem(
            f"{value!r} is not an SCN", "write it as `headrace status` shows it, such as 0/016B3748, or as a number"
        )
    return scn


def _time_zone(value: object) -> object:
    if isinstance(value, str) and not knows_time_zone(value):
        raise _problem(f"there is no time zone {value!r}", nearest(value, available_timezones()))
    return value


def _no_latency(value: object) -> object:  # noqa: ARG001 - whatever it is
    raise _problem(
        "latency has no meaning here: a propagation sends changes as they come",
        "leave it out; schedule and bandwidth_max spare a line",
    )


# Values that are not built yet are refused field by field: what is checked on a whole entry is only told once the rest
# is right.
Ddl = Annotated[bool, BeforeValidator(_no_ddl)]
QueueKind = Annotated[Literal["buffered", "persistent"], BeforeValidator(_queue_kind)]
CommitSerialization = Literal["dependent_transactions", "full"]
ColumnMismatch = Literal["wait", "error"]
DetachedPartitions = Literal["ask", "keep", "follow"]
OnError = Literal["hold_dependents", "continue", "disable"]
Combined = Literal["auto", "never"]
Processes = Literal["shared", "apart"]
SplitMode = Literal["auto", "never"]
SplitThreshold = Annotated[float, Field(ge=SPLIT_THRESHOLD_MIN, le=SPLIT_THRESHOLD_MAX)]
MergeThreshold = Annotated[float, Field(ge=MERGE_THRESHOLD_MIN, le=SPLIT_THRESHOLD_MAX)]
Bandwidth = Annotated[int, BeforeValidator(_bandwidth)]
Minute = Annotated[tuple[int | None, int], BeforeValidator(_minute)]
Duration = Annotated[int, BeforeValidator(_duration)]
Retention = Annotated[float, BeforeValidator(_retention)]
ScnText = Annotated[int, BeforeValidator(_scn)]
TimeZone = Annotated[str, BeforeValidator(_time_zone)]
Size = Annotated[int, BeforeValidator(_size)]
DecodingMemory = Annotated[int, BeforeValidator(_decoding_memory)]
TagOrNull = Annotated[bytes | None, BeforeValidator(_tag)]
ApplyTag = Annotated[bytes | None, BeforeValidator(_apply_tag)]
Method = Literal["maximum", "minimum", "overwrite", "discard", "site_priority", "delta", "latest_timestamp"]
PlainTable = Annotated[tuple[str, str], BeforeValidator(_plain_table)]
Where = Annotated[Condition, BeforeValidator(_where)]
LcrCondition = Annotated[Condition, BeforeValidator(_lcr_condition)]
Subset = Annotated[Condition, BeforeValidator(_subset)]
Transform = Annotated[Transformation, BeforeValidator(_transform)]
TablePattern = Annotated[tuple[str, str], BeforeValidator(_table)]
SchemaPattern = Annotated[str, BeforeValidator(_schema)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)

    not_yet: ClassVar[dict[str, str]] = {}
    """Keys that are known but not built: key -> what to do meanwhile."""


# --------------------------------------------------------------------------- rules


class RuleModel(_Model):
    """One entry of `include` or `exclude`."""

    table: TablePattern | None = None
    schema_: SchemaPattern | None = Field(default=None, alias="schema")
    global_: bool | None = Field(default=None, alias="global")
    dml: bool = True
    ddl: Ddl = False
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
            raise _problem(
                "does not name what it speaks of", "give one of table, schema, global, or a condition that does"
            )
        self._check_conditions()
        if self.global_ is False:
            raise _problem("global: false says nothing", "write global: true, or a table or schema")
        if not self.dml:
            raise _problem("takes neither dml nor ddl", "leave out dml: false, or the whole rule")
        if sum(item is not None for item in (self.tagged, self.tags, self.not_tags)) > 1:
            raise _problem("says more than once which tags it takes", "keep one of tagged, tags, not_tags")
        if [] in (self.tags, self.not_tags):
            raise _problem("lists no tag", 'list tags, such as [null, "11"], or write tagged: true for every tag')
        self._check_transformation()
        return self

    def _check_transformation(self) -> None:
        if self.transform is None:
            return
        is_one = self.table is not None and not set("*?") & set("".join(self.table))
        if not is_one and any(isinstance(each, RenameTable) for each in self.transform.operations):
            raise _problem(
                "gives more than one table the same name", "give each table a rule of its own, or write rename_schema"
            )

    def _check_conditions(self) -> None:
        if self.where is not None and self.condition is not None:
            raise _problem(
                "has where and condition", "keep one: where takes lcr.ATTRIBUTE too, and condition takes new.COLUMN"
            )
        if self.subset is None:
            return
        if self.where is not None or self.condition is not None:
            raise _problem(
                "has a subset and another condition",
                "keep one of them: what the condition discards would be missing when a row leaves the subset",
            )
        if self.table is None or set("*?") & set("".join(self.table)):
            raise _problem("has a subset and names more than one table", "give each table a rule of its own")


def _no_subsets(rules: list[RuleModel]) -> list[RuleModel]:
    if any(rule.transform is not None for rule in rules):
        raise _problem("has a transformation", "put it under include: what a negative rule takes is discarded")
    if any(rule.subset is not None for rule in rules):
        raise _problem(
            "has a subset",
            "put it under include, with the condition the other way round: row migration is of positive rules",
        )
    return rules


class RulesModel(_Model):
    """`rules:` of a client."""

    include: list[RuleModel] | None = None
    exclude: Annotated[list[RuleModel], AfterValidator(_no_subsets)] = []


# --------------------------------------------------------------------------- sections


class DatabaseModel(_Model):
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
            raise _problem("has no dsn", 'give its connection string, such as dsn: "${DBS1_DSN}"')
        if self.kind != "postgres" and self.dsn is not None:
            raise _problem(f"kind: {self.kind} takes no dsn", "leave out dsn, or write kind: postgres")
        if self.kind != "postgres" and self.admin_dsn is not None:
            raise _problem(f"kind: {self.kind} takes no admin_dsn", "leave it out (it is for a server of your own)")
        if self.kind != "embedded" and self.version is not None:
            raise _problem(
                f"kind: {self.kind} takes no version", "leave out version (it chooses the embedded server's)"
            )
        if self.kind != "postgres" and self.allow_any_version:
            raise _problem(
                f"kind: {self.kind} takes no allow_any_version", "leave it out (it is for a server of your own)"
            )
        if self.kind == "none" and self.decoding_memory is not None:
            raise _problem("kind: none takes no decoding_memory", "leave it out (nothing is decoded here)")
        return self


class TlsModel(_Model):
    """`tls:` of the file or of a site; a site's keys override the file's, one by one."""

    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
    revoked: str | None = None


class AlertTargetModel(_Model):
    """One entry of `alerts.to:`."""

    command: Annotated[list[str], Field(min_length=1)] | None = None
    webhook: str | None = None
    token: str | None = None

    @model_validator(mode="after")
    def _is_one(self) -> AlertTargetModel:
        if (self.command is None) == (self.webhook is None):
            raise _problem("is not one target", "write command: [program, argument], or webhook: with the address")
        if self.token is not None and self.webhook is None:
            raise _problem(
                "a command takes no token", "leave it out: the command has an environment and files of its own"
            )
        return self


class BurstModel(_Model):
    """`alerts.conflicts:`."""

    count: Annotated[int, Field(ge=1, le=HISTORY_COUNT_MAX)]
    seconds: Annotated[float, Field(ge=5, le=86_400)]


class AlertsModel(_Model):
    """`alerts:`."""

    to: Annotated[list[AlertTargetModel], Field(min_length=1, max_length=ALERT_TARGETS_MAX)]
    error_transaction: bool = True
    conflicts: BurstModel | None = None
    lag_s: Annotated[float, Field(ge=5, le=7 * 86_400)] | None = None
    component: bool = True
    per_hour_max: Annotated[int, Field(ge=1, le=3600)] | None = None


class SiteModel(_Model):
    """One entry of `sites:`."""

    database: DatabaseModel
    node: dict[str, Annotated[float, Field(gt=0)]] = {}
    tls: TlsModel | None = None


class SpokeModel(_Model):
    """A spoke with spokes of its own."""

    site: str
    spokes: list[SpokeEntry] = []


def _spoke(value: object) -> object:
    return {"site": value} if isinstance(value, str) else value


SpokeEntry = Annotated[SpokeModel, BeforeValidator(_spoke)]


class ReplicateModel(_Model):
    """One entry of `replicate:`."""

    schemas: list[SchemaPattern] = []
    tables: list[TablePattern] = []
    from_: str | None = Field(default=None, alias="from")
    to: list[str] = []
    between: list[str] = []
    hub: str | None = None
    spokes: list[SpokeEntry] = []
    ddl: Ddl = False

    @model_validator(mode="after")
    def _is_whole(self) -> ReplicateModel:
        if not self.schemas and not self.tables:
            raise _problem("does not say what to replicate", "give schemas: [hr] or tables: [hr.*]")
        forms = {
            "between": bool(self.between),
            "from/to": self.from_ is not None or bool(self.to),
            "hub/spokes": self.hub is not None or bool(self.spokes),
        }
        found = [form for form, is_used in forms.items() if is_used]
        if len(found) > 1:
            raise _problem(f"has both {' and '.join(found)}", "keep one of them")
        whole = self.between or (self.from_ is not None and self.to) or (self.hub is not None and self.spokes)
        if not whole:
            raise _problem(
                "does not say where",
                "give from: SITE and to: [SITE], between: [SITE, SITE], or hub: SITE and spokes: [SITE]",
            )
        if self.between and len(set(self.between)) < 2:
            raise _problem("between names fewer than two sites", "name two or more")
        return self


class QueueModel(_Model):
    """One entry of `queues:`."""

    site: str
    kind: QueueKind = "buffered"
    memory: Size | None = None
    spill: Size | None = None


class CaptureModel(_Model):
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
            raise _problem(
                f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} of downstream capture, and this capture"
                " process is local",
                "leave it out, or name as site another one than the source",
            )
        if self.mode == "archived_log" and self.transport is not None:
            raise _problem("mode: archived_log takes no transport", "leave out transport, or write mode: real_time")
        if self.mode != "archived_log" and {"archive", "archive_lag_s"} & set(given):
            raise _problem(
                "archive and archive_lag_s are of archived logs", "write mode: archived_log, or leave them out"
            )
        if self.first_scn is not None and self.start_scn is not None and self.start_scn < self.first_scn:
            raise _problem(
                f"start_scn {scn_text(self.start_scn)} is below first_scn {scn_text(self.first_scn)}",
                "a capture process begins at its first SCN or above",
            )
        return self


class WindowModel(_Model):
    """One entry of `windows:`."""

    opens: Minute
    duration: Duration
    days: list[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]] | None = None

    @model_validator(mode="after")
    def _closes(self) -> WindowModel:
        if self.days == []:
            raise _problem("lists no day", "list days, such as [mon, fri], or leave days out for every day")
        if self.opens[0] is None and self.duration >= HOUR_S:
            raise _problem(
                "opens every hour for an hour or more, and so never closes",
                "leave the schedule out, or write a shorter duration",
            )
        return self


class ScheduleModel(_Model):
    """`schedule:` of a propagation."""

    windows: Annotated[list[WindowModel], Field(min_length=1, max_length=WINDOWS_MAX)]
    time_zone: TimeZone = "UTC"


class PropagationModel(_Model):
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
    latency: Annotated[None, BeforeValidator(_no_latency)] = None


def _function_name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", value):
        raise _problem(f"{_shown(value)} does not name a function", "write module:function, or package.module:function")
    return value


FunctionName = Annotated[str, BeforeValidator(_function_name)]
Operations = Annotated[list[Literal["insert", "update", "delete"]], Field(min_length=1)]


class ConflictHandlerModel(_Model):
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
            raise _problem(
                "latest_timestamp decides about the whole row, in every kind of conflict that time can decide",
                "leave out on, columns and resolution_column",
            )
        if self.method not in METHODS_OF_KIND[self.on]:
            # which takes no kind
            others = [method for method in METHODS_OF_KIND[self.on] if method != "latest_timestamp"]
            raise _problem(f"{self.method} is no method for {self.on}", f"write one of {', '.join(others)}")
        if self.method in BY_COLUMN and self.resolution_column is None:
            raise _problem(f"{self.method} has no resolution_column", "name the column whose values decide")
        if self.columns and len(set(self.columns)) < len(self.columns):
            raise _problem("columns names a column twice", "name every column once")
        if self.columns is not None and self.on != "update_differs":
            raise _problem(
                f"a column list is of update_differs, and this handler is of {self.on}",
                "leave columns out: it decides about the row",
            )
        if self.resolution_column and self.columns and self.resolution_column not in self.columns:
            raise _problem(
                f"the resolution column {self.resolution_column} is not in the column list", "add it to columns"
            )
        if self.resolution_column and self.on != "update_differs" and self.method not in BY_COLUMN:
            raise _problem(f"{self.method} on {self.on} takes no resolution_column", "leave it out")
        if self.method != "latest_timestamp" and (self.priority is not None) != (self.method == "site_priority"):
            raise _problem(
                *(
                    ("site_priority has no priority", "list the sites, the one that wins first: priority: [dbs1, dbs2]")
                    if self.priority is None
                    else (f"{self.method} takes no priority", "leave it out, or write method: site_priority")
                )
            )
        return self


class UncomparedModel(_Model):
    """One entry of `compare_old_values:`."""

    table: PlainTable
    columns: Annotated[list[str], Field(min_length=1)]
    operations: Annotated[list[Literal["update", "delete"]], Field(min_length=1)] = ["update", "delete"]
    compare: Literal[False] = False


class DmlHandlerModel(_Model):
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
            raise _problem(
                "has neither a function nor statements, or both",
                "write function: module:function, or statements: [...]",
            )
        if self.columns and self.function is None:
            raise _problem(
                "has columns, and statements", "leave columns out: the binds of the statements say which they need"
            )
        return self


class ErrorHandlerModel(_Model):
    """One entry of `error_handlers:`."""

    table: PlainTable
    function: FunctionName
    operations: Operations = ["insert", "update", "delete"]
    columns: list[str] = []


class KeyColumnsModel(_Model):
    """One entry of `key_columns:`."""

    table: PlainTable
    columns: Annotated[list[str], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_each_once(self) -> KeyColumnsModel:
        if len(set(self.columns)) < len(self.columns):
            raise _problem("columns names a column twice", "name every column once")
        return self


class TriggerModel(_Model):
    """One entry of `triggers:`."""

    table: PlainTable
    trigger: Annotated[str, Field(min_length=1)]
    fire: Literal["once", "always"]


class ConflictHistoryModel(_Model):
    """`conflict_history:`."""

    count: Annotated[int, Field(ge=1, le=HISTORY_COUNT_MAX)] | None = None
    age_days: Annotated[float, Field(gt=0, le=HISTORY_AGE_DAYS_MAX)] | None = None


class TombstonesModel(_Model):
    """`tombstones:`."""

    retention_days: Annotated[float, Field(gt=0, le=HISTORY_AGE_DAYS_MAX)] | None = None
    count: Annotated[int, Field(ge=1, le=HISTORY_COUNT_MAX)] | None = None


class ValueColumnsModel(_Model):
    """One table of an entry of `value_dependencies:`."""

    table: PlainTable
    columns: Annotated[list[str], Field(min_length=1)]


class ObjectDependencyModel(_Model):
    """One entry of `object_dependencies:`."""

    table: PlainTable
    parent: PlainTable


class ApplyModel(_Model):
    """One entry of `applies:`."""

    not_yet: ClassVar[dict[str, str]] = {
        "message_handler": "leave it out",
        "ddl_handler": "leave it out",
        "mode": "leave it out: apply is transactional",
        "disable_on_error": "write on_error: disable; without it other transactions go on",
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


class TopologyModel(_Model):
    """The top of the file; the sections' entries are read one by one, so that one bad entry hides no other."""

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


# --------------------------------------------------------------------------- from pydantic to findings

M = TypeVar("M", bound=_Model)


def read_shape(model: type[M], content: object, path: Path_, document: Document) -> M | None:
    """Check one part of the file against its shape; problems go to the document's findings.

    Args:
        model: the shape.
        content: the part, as plain data.
        path: where it stands in the file.
        document: the file.

    Returns:
        The part, or None when it has problems.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            inner = tuple(part for part in details["loc"] if not str(part).startswith("function-"))
            problem, fix = _describe(details, _model_at(model, inner[:-1]))
            document.findings.append(Finding(path=document.locate(path + inner), problem=problem, fix=fix))
        return None


def _describe(details: ErrorDetails, model: type[_Model] | None) -> tuple[str, str]:
    """What is wrong and how to fix it, from pydantic's error."""
    kind, context, value = details["type"], details.get("ctx", {}), details["input"]
    if kind == "headrace":
        return str(context["problem"]), str(context["fix"])
    if kind == "extra_forbidden":
        key = str(details["loc"][-1])
        if model is not None and key in model.not_yet:
            return f"this key is known but {_BUILT_LATER} built", model.not_yet[key]
        return "there is no such key", nearest(key, _keys(model) if model else ())
    if kind == "missing":
        return "is missing", "add it"
    if kind == "literal_error":
        return _describe_choice(value, str(context["expected"]))
    if kind.startswith(("greater_than", "less_than")):
        bound = next(iter(context.values()))
        words = {"greater_than": "more than", "greater_than_equal": "at least", "less_than_equal": "at most"}
        return f"{value!r} is out of range", f"write {words.get(kind, 'less than')} {bound:g}"
    if kind in {"too_short", "too_long", "string_too_short"}:
        return _describe_length(kind, context)
    return f"{_shown(value)} is not {_EXPECTED.get(kind, 'of the right kind')}", _EXAMPLES.get(kind, "see the README")


def _describe_length(kind: str, context: Mapping[str, Any]) -> tuple[str, str]:
    if kind == "too_long":
        return f"has {context['actual_length']} entries", f"write {context['max_length']} at most"
    if kind == "string_too_short" or not context["actual_length"]:
        return (
            "is empty",
            "write a name" if kind == "string_too_short" else f"write {_entries(context['min_length'])} at least",
        )
    return f"has {_entries(context['actual_length'])}", f"write {context['min_length']} at least"


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


_EXPECTED = {
    "string_type": "a text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}
_EXAMPLES = {
    "string_type": "write a word, in quotes if YAML reads it as something else",
    "bool_type": "write true or false",
    "int_type": "write digits, without quotes",
    "float_type": "write a number, without quotes",
    "list_type": "write [one, two]",
    "dict_type": "write {key: value}",
    "model_type": "write {key: value}",
    "model_attributes_type": "write {key: value}",
}
_DATABASES_LATER = ("mysql", "mariadb", "sqlite", "duckdb")


def _describe_choice(value: object, expected: str) -> tuple[str, str]:
    choices = [choice.strip().strip("'") for choice in re.split(r",| or ", expected) if choice.strip()]
    if value in _DATABASES_LATER:
        return f"{value!r} is known but {_BUILT_LATER} built", f"write one of {', '.join(choices)}"
    close = get_close_matches(str(value), choices, n=1)
    return (
        f"{_shown(value)} is not one of {', '.join(choices)}",
        f"did you mean {close[0]!r}?" if close else "write one of these",
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _keys(model: type[_Model]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(model: type[_Model], path: Path_) -> type[_Model] | None:
    """The model that the value at `path` below `model` has, if it is one."""
    current: type[_Model] | None = model
    for part in path:
        if isinstance(part, int):
            continue
        if current is None:
            return None
        by_key = {field.alias or name: field.annotation for name, field in current.model_fields.items()}
        current = _model_in(by_key.get(part))
    return current


def _model_in(annotation: object) -> type[_Model] | None:
    if isinstance(annotation, type) and issubclass(annotation, _Model):
        return annotation
    return next((found for argument in get_args(annotation) if (found := _model_in(argument))), None)
