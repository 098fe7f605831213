"""Single values of a topology file: their form, what is refused, and what to write instead.

A parser returns the value, or raises a problem with its fix. The types at the end are those of the models' fields.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal
from zoneinfo import available_timezones

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from headrace.lcr.scn import FIRST_SCN, Scn, parse_scn
from headrace.lcr.tags import TAG_BYTES_MAX
from headrace.rules.conditions.condition import Condition
from headrace.rules.conditions.nodes import ConditionError
from headrace.rules.transformations.transformation import Transformation
from topology.file.transformations import TransformProblem, transformation_of
from topology.patterns import parse_schema, parse_table
from topology.problems import nearest
from topology.schedule import DURATION_MAX_S, DURATION_MIN_S, knows_time_zone

__all__ = [
    "ApplyTag",
    "BUILT_LATER",
    "Bandwidth",
    "ColumnMismatch",
    "Combined",
    "CommitSerialization",
    "DdlOfRule",
    "DecodingMemory",
    "DetachedPartitions",
    "Duration",
    "FunctionName",
    "LcrCondition",
    "MergeThreshold",
    "Method",
    "Minute",
    "NoLatency",
    "OnError",
    "Operations",
    "PlainTable",
    "Processes",
    "QueueKind",
    "Retention",
    "SchemaPattern",
    "ScnText",
    "Size",
    "SplitMode",
    "SplitThreshold",
    "Subset",
    "TablePattern",
    "TagOrNull",
    "TimeZone",
    "Transform",
    "Where",
    "refusal",
    "shown",
    "valid_name",
]

NAME_LENGTH_MAX = 30  # several names are joined in the names of objects, which a database bounds to 63 characters
_NAME = re.compile(rf"^[a-z][a-z0-9_]{{0,{NAME_LENGTH_MAX - 1}}}$")
_SIZE = re.compile(r"^(\d+)\s*(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?$")
_POWER = {"": 0, "B": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
APPLY_TAG_BYTES_MAX = 128  # a database stores an apply process's tag in the name of an object, whose length it bounds
SIZE_MIN = 1 << 20  # one LCR batch
# Of one source session. Larger transactions are so rare that they may use the server's disk; a mistyped unit would
# exhaust the source's memory.
DECODING_MEMORY_MAX = 4 << 30
BANDWIDTH_MIN = 8 << 10  # bytes a second: two of the smallest pieces
# Seconds. Below ten, a restarting process would look like a destination that is away; redo is kept nowhere for as long
# as a week.
SPLIT_THRESHOLD_MIN, SPLIT_THRESHOLD_MAX = 10, 7 * 86_400
MERGE_THRESHOLD_MIN = 1  # seconds: positions are observed once a second
_MINUTE = re.compile(r"^(\*|[01]?\d|2[0-3]):([0-5]\d)$")
_DURATION = re.compile(r"^(\d{1,6})\s*(s|min|h)$")

_RETENTION = re.compile(r"^(\d{1,6})\s*(s|min|h|d)$")
# Seconds. The site's own records lag by up to ten; the maximum is the manuals' default: redo_bytes_max bounds it
# anyway.
RETENTION_MIN_S, RETENTION_MAX_S = 10, 60 * 86_400

BUILT_LATER = "not yet"


def refusal(problem: str, fix: str) -> PydanticCustomError:
    """Return the error that refuses a value or an entry of the file.

    Args:
        problem: what is wrong with it.
        fix: what to write instead.
    """
    return PydanticCustomError("headrace", "{problem}: {fix}", {"problem": problem, "fix": fix})


def _later(what: str, fix: str) -> PydanticCustomError:
    return refusal(f"{what} is known but {BUILT_LATER} built", fix)


def valid_name(name: str) -> bool:
    """Return whether `name` is valid for a site or a component."""
    return _NAME.match(name) is not None


def shown(value: object) -> str:
    """Format a value of the file for messages."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _size(value: object) -> int:
    match = _SIZE.match(str(value).strip()) if isinstance(value, (str, int)) and not isinstance(value, bool) else None
    if match is None:
        raise refusal(f"{value!r} is not a size", "write bytes or a number with a unit, such as 256MB (1MB = 1024kB)")
    unit = match[2] or ""
    size = int(match[1]) << (10 * _POWER[unit[:1]])
    if size < SIZE_MIN:
        raise refusal(f"{value!r} is too small", "at least 1MB: one LCR batch must fit")
    return size


def _decoding_memory(value: object) -> int:
    size = _size(value)
    if size > DECODING_MEMORY_MAX:
        raise refusal(
            f"{value!r} is too large",
            "at most 4GB: it is memory of the source's server, which spills larger transactions to its disk",
        )
    return size


def _tag(value: object, bytes_max: int = TAG_BYTES_MAX) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise refusal(
            f"{value!r} is not a text", 'put hexadecimal digits in quotes, such as "00" (YAML reads 00 as a number)'
        )
    try:
        tag = bytes.fromhex(value)
    except ValueError:
        raise refusal(
            f"{value!r} is not hexadecimal", 'write pairs of hexadecimal digits, such as "00" or "1f"'
        ) from None
    if not tag:
        raise refusal("the tag is empty", 'write null for no tag, or a tag, such as "00"')
    if len(tag) > bytes_max:
        raise refusal(f"the tag has {len(tag)} bytes", f"at most {bytes_max}")
    return tag


def _apply_tag(value: object) -> bytes | None:
    return _tag(value, APPLY_TAG_BYTES_MAX)


def _table(value: object) -> tuple[str, str]:
    try:
        return parse_table(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        raise refusal(str(error), 'write schema.table, such as hr.employees or hr.* (or "Odd.Name".t)') from None


def _plain_table(value: object) -> tuple[str, str]:
    owner, name = _table(value)
    if set("*?") & set(owner + name):
        raise refusal(f"{value!r} is a pattern", "name one table: its columns decide")
    return owner, name


def _schema(value: object) -> str:
    try:
        return parse_schema(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        fix = "write a schema's name, such as hr (tables go under `tables` or `table`)"
        raise refusal(str(error), _quoted(value) or fix) from None


def _quoted(value: object) -> str:
    """Return how to write a name with a blank or a quote; "" if it has neither. A dot may be meant as a separator."""
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
        raise refusal(f"{value!r} is not a text", 'write a condition in SQL, in quotes, such as "department_id = 50"')
    from headrace.rules.conditions.condition import parse  # numpy: most files have no conditions

    try:
        return parse(value, form)
    except ConditionError as error:
        raise refusal(str(error), error.hint) from None


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
        raise refusal(error.problem, error.fix) from None


def _no_ddl(value: object) -> object:
    if value is True:
        raise refusal(
            "ddl: true is for whole tables that go one way, and a rule can take a part of them",
            "write it in an entry of replicate: {tables: [...], from: SITE, to: [SITE], ddl: true}",
        )
    return value


def _queue_kind(value: object) -> object:
    if value == "persistent":
        raise _later("kind: persistent", "write kind: buffered")
    return value


def _bandwidth(value: object) -> int:
    text = value.removesuffix("/s").rstrip() if isinstance(value, str) else value
    match = _SIZE.match(str(text).strip()) if isinstance(text, (str, int)) and not isinstance(text, bool) else None
    if match is None:
        raise refusal(f"{value!r} is not a bandwidth", "write bytes a second, such as 500kB or 2MB (1MB = 1024kB)")
    unit = match[2] or ""
    size = int(match[1]) << (10 * _POWER[unit[:1]])
    if size < BANDWIDTH_MIN:
        raise refusal(f"{value!r} is too low", "at least 8kB a second: below that, progress marks alone fill the line")
    return size


def _minute(value: object) -> tuple[int | None, int]:
    match = _MINUTE.match(value) if isinstance(value, str) else None
    if match is None:
        fix = (
            'write hours and minutes in quotes, such as "22:00", or "*:50" for every hour (YAML reads 22:00 without'
            " quotes as a number)"
        )
        raise refusal(f"{value!r} is not a time of the day", fix)
    return None if match[1] == "*" else int(match[1]), int(match[2])


def _duration(value: object) -> int:
    match = _DURATION.match(value) if isinstance(value, str) else None
    seconds = 0 if match is None else int(match[1]) * {"s": 1, "min": 60, "h": 3600}[match[2]]
    if not DURATION_MIN_S <= seconds <= DURATION_MAX_S:
        raise refusal(f"{value!r} is not a duration of a window", "write one from 60s to 168h, such as 10min or 6h")
    return seconds


def _retention(value: object) -> float:
    match = _RETENTION.match(value) if isinstance(value, str) else None
    seconds = 0 if match is None else int(match[1]) * {"s": 1, "min": 60, "h": 3600, "d": 86_400}[match[2]]
    if not RETENTION_MIN_S <= seconds <= RETENTION_MAX_S:
        raise refusal(f"{value!r} is not a retention time", "write one from 10s to 60d, such as 12h or 3d")
    return float(seconds)


def _scn(value: object) -> Scn:
    try:
        scn = parse_scn(str(value)) if isinstance(value, (str, int)) and not isinstance(value, bool) else FIRST_SCN
    except ValueError:
        scn = FIRST_SCN
    if scn == FIRST_SCN:
        raise refusal(
            f"{value!r} is not an SCN", "write it as `headrace status` shows it, such as 0/016B3748, or as a number"
        )
    return scn


def _time_zone(value: object) -> object:
    if isinstance(value, str) and not knows_time_zone(value):
        raise refusal(f"there is no time zone {value!r}", nearest(value, available_timezones()))
    return value


def _no_latency(value: object) -> object:  # noqa: ARG001 - every value is refused
    raise refusal(
        "latency has no meaning here: a propagation sends changes as they arrive",
        "leave it out; schedule and bandwidth_max limit the load on a line",
    )


def _function_name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", value):
        raise refusal(f"{shown(value)} does not name a function", "write module:function, or package.module:function")
    return value


# Values that are not built yet are refused field by field: checks of a whole entry run only when its fields are valid.
DdlOfRule = Annotated[bool, BeforeValidator(_no_ddl)]
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
NoLatency = Annotated[None, BeforeValidator(_no_latency)]
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
FunctionName = Annotated[str, BeforeValidator(_function_name)]
Operations = Annotated[list[Literal["insert", "update", "delete"]], Field(min_length=1)]
