from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServerMessage(_message.Message):
    __slots__ = ("hello", "ready", "result", "wait", "failure", "parts_taken", "pause")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PARTS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    hello: ServerHello
    ready: ServerReady
    result: GroupResult
    wait: WaitRequest
    failure: ServerFailure
    parts_taken: PartsTaken
    pause: PauseReport
    def __init__(self, hello: _Optional[_Union[ServerHello, _Mapping]] = ..., ready: _Optional[_Union[ServerReady, _Mapping]] = ..., result: _Optional[_Union[GroupResult, _Mapping]] = ..., wait: _Optional[_Union[WaitRequest, _Mapping]] = ..., failure: _Optional[_Union[ServerFailure, _Mapping]] = ..., parts_taken: _Optional[_Union[PartsTaken, _Mapping]] = ..., pause: _Optional[_Union[PauseReport, _Mapping]] = ...) -> None: ...

class ServerHello(_message.Message):
    __slots__ = ("protocol_version", "topology", "apply", "server", "incarnation", "token", "pid", "host")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    APPLY_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    topology: str
    apply: str
    server: int
    incarnation: str
    token: str
    pid: int
    host: str
    def __init__(self, protocol_version: _Optional[int] = ..., topology: _Optional[str] = ..., apply: _Optional[str] = ..., server: _Optional[int] = ..., incarnation: _Optional[str] = ..., token: _Optional[str] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ...) -> None: ...

class ServerReady(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerFailure(_message.Message):
    __slots__ = ("error", "message", "hint", "fenced")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    error: str
    message: str
    hint: str
    fenced: bool
    def __init__(self, error: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ..., fenced: _Optional[bool] = ...) -> None: ...

class PartsTaken(_message.Message):
    __slots__ = ("group", "parts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    group: int
    parts: int
    def __init__(self, group: _Optional[int] = ..., parts: _Optional[int] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("welcome", "assignment", "fragment", "go", "cancel", "stop")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    GO_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    assignment: Assignment
    fragment: BatchFragment
    go: Go
    cancel: Cancel
    stop: StopServer
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., fragment: _Optional[_Union[BatchFragment, _Mapping]] = ..., go: _Optional[_Union[Go, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., stop: _Optional[_Union[StopServer, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "tag", "destination_dsn", "database_kind", "state_dir")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_DSN_FIELD_NUMBER: _ClassVar[int]
    DATABASE_KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_DIR_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    tag: bytes
    destination_dsn: str
    database_kind: str
    state_dir: str
    def __init__(self, epoch: _Optional[int] = ..., tag: _Optional[bytes] = ..., destination_dsn: _Optional[str] = ..., database_kind: _Optional[str] = ..., state_dir: _Optional[str] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("group", "source", "after_scn", "through_scn", "low_watermark_scn", "batch_count", "error_numbers", "skipped", "is_streaming")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    AFTER_SCN_FIELD_NUMBER: _ClassVar[int]
    THROUGH_SCN_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_SCN_FIELD_NUMBER: _ClassVar[int]
    BATCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    IS_STREAMING_FIELD_NUMBER: _ClassVar[int]
    group: int
    source: str
    after_scn: int
    through_scn: int
    low_watermark_scn: int
    batch_count: int
    error_numbers: bytes
    skipped: bytes
    is_streaming: bool
    def __init__(self, group: _Optional[int] = ..., source: _Optional[str] = ..., after_scn: _Optional[int] = ..., through_scn: _Optional[int] = ..., low_watermark_scn: _Optional[int] = ..., batch_count: _Optional[int] = ..., error_numbers: _Optional[bytes] = ..., skipped: _Optional[bytes] = ..., is_streaming: _Optional[bool] = ...) -> None: ...

class BatchFragment(_message.Message):
    __slots__ = ("group", "data", "last", "last_batch", "total_bytes")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LAST_BATCH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    group: int
    data: bytes
    last: bool
    last_batch: bool
    total_bytes: int
    def __init__(self, group: _Optional[int] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ..., last_batch: _Optional[bool] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class WaitRequest(_message.Message):
    __slots__ = ("group", "below_scn")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BELOW_SCN_FIELD_NUMBER: _ClassVar[int]
    group: int
    below_scn: int
    def __init__(self, group: _Optional[int] = ..., below_scn: _Optional[int] = ...) -> None: ...

class Go(_message.Message):
    __slots__ = ("group", "low_watermark_scn")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_SCN_FIELD_NUMBER: _ClassVar[int]
    group: int
    low_watermark_scn: int
    def __init__(self, group: _Optional[int] = ..., low_watermark_scn: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: int
    def __init__(self, group: _Optional[int] = ...) -> None: ...

class StopServer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScnRange(_message.Message):
    __slots__ = ("after", "through")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    after: int
    through: int
    def __init__(self, after: _Optional[int] = ..., through: _Optional[int] = ...) -> None: ...

class GroupResult(_message.Message):
    __slots__ = ("group", "applied", "transaction_count", "row_count", "errors", "last_commit_time_us", "commit_duration_us", "write_duration_us", "retried_transactions")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    COMMIT_DURATION_US_FIELD_NUMBER: _ClassVar[int]
    WRITE_DURATION_US_FIELD_NUMBER: _ClassVar[int]
    RETRIED_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    group: int
    applied: _containers.RepeatedCompositeFieldContainer[ScnRange]
    transaction_count: int
    row_count: int
    errors: _containers.RepeatedCompositeFieldContainer[FailedTransaction]
    last_commit_time_us: int
    commit_duration_us: int
    write_duration_us: int
    retried_transactions: int
    def __init__(self, group: _Optional[int] = ..., applied: _Optional[_Iterable[_Union[ScnRange, _Mapping]]] = ..., transaction_count: _Optional[int] = ..., row_count: _Optional[int] = ..., errors: _Optional[_Iterable[_Union[FailedTransaction, _Mapping]]] = ..., last_commit_time_us: _Optional[int] = ..., commit_duration_us: _Optional[int] = ..., write_duration_us: _Optional[int] = ..., retried_transactions: _Optional[int] = ...) -> None: ...

class FailedTransaction(_message.Message):
    __slots__ = ("number", "commit_scn", "key_hashes", "conflict_type", "message")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SCN_FIELD_NUMBER: _ClassVar[int]
    KEY_HASHES_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    number: int
    commit_scn: int
    key_hashes: bytes
    conflict_type: str
    message: str
    def __init__(self, number: _Optional[int] = ..., commit_scn: _Optional[int] = ..., key_hashes: _Optional[bytes] = ..., conflict_type: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class PauseReport(_message.Message):
    __slots__ = ("group", "message", "hint")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    group: int
    message: str
    hint: str
    def __init__(self, group: _Optional[int] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerStatus(_message.Message):
    __slots__ = ("server", "state", "group", "groups_applied", "rows_applied", "pid", "host", "attempts", "waits_for_scn")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUPS_APPLIED_FIELD_NUMBER: _ClassVar[int]
    ROWS_APPLIED_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_SCN_FIELD_NUMBER: _ClassVar[int]
    server: int
    state: str
    group: int
    groups_applied: int
    rows_applied: int
    pid: int
    host: str
    attempts: int
    waits_for_scn: int
    def __init__(self, server: _Optional[int] = ..., state: _Optional[str] = ..., group: _Optional[int] = ..., groups_applied: _Optional[int] = ..., rows_applied: _Optional[int] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., attempts: _Optional[int] = ..., waits_for_scn: _Optional[int] = ...) -> None: ...

class ApplyStatus(_message.Message):
    __slots__ = ("state", "reader_state", "detail", "hint", "epoch", "low_watermark_scn", "high_watermark_scn", "received_scn", "last_commit_time_us", "last_applied_us", "transactions_applied", "rows_applied", "groups_applied", "transactions_received", "errors", "rollbacks", "servers", "instantiation", "counters", "ready")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    STATE_FIELD_NUMBER: _ClassVar[int]
    READER_STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_SCN_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_SCN_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_SCN_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    LAST_APPLIED_US_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_APPLIED_FIELD_NUMBER: _ClassVar[int]
    ROWS_APPLIED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_APPLIED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    ROLLBACKS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    INSTANTIATION_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    state: str
    reader_state: str
    detail: str
    hint: str
    epoch: int
    low_watermark_scn: int
    high_watermark_scn: int
    received_scn: int
    last_commit_time_us: int
    last_applied_us: int
    transactions_applied: int
    rows_applied: int
    groups_applied: int
    transactions_received: int
    errors: int
    rollbacks: int
    servers: _containers.RepeatedCompositeFieldContainer[ServerStatus]
    instantiation: _containers.RepeatedCompositeFieldContainer[InstantiationProgress]
    counters: _containers.ScalarMap[str, int]
    ready: bool
    def __init__(self, state: _Optional[str] = ..., reader_state: _Optional[str] = ..., detail: _Optional[str] = ..., hint: _Optional[str] = ..., epoch: _Optional[int] = ..., low_watermark_scn: _Optional[int] = ..., high_watermark_scn: _Optional[int] = ..., received_scn: _Optional[int] = ..., last_commit_time_us: _Optional[int] = ..., last_applied_us: _Optional[int] = ..., transactions_applied: _Optional[int] = ..., rows_applied: _Optional[int] = ..., groups_applied: _Optional[int] = ..., transactions_received: _Optional[int] = ..., errors: _Optional[int] = ..., rollbacks: _Optional[int] = ..., servers: _Optional[_Iterable[_Union[ServerStatus, _Mapping]]] = ..., instantiation: _Optional[_Iterable[_Union[InstantiationProgress, _Mapping]]] = ..., counters: _Optional[_Mapping[str, int]] = ..., ready: _Optional[bool] = ...) -> None: ...

class InstantiationProgress(_message.Message):
    __slots__ = ("owner", "name", "state", "rows", "rows_estimated", "instantiation_scn", "problem")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    INSTANTIATION_SCN_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    owner: str
    name: str
    state: str
    rows: int
    rows_estimated: int
    instantiation_scn: int
    problem: str
    def __init__(self, owner: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., rows: _Optional[int] = ..., rows_estimated: _Optional[int] = ..., instantiation_scn: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class TableName(_message.Message):
    __slots__ = ("owner", "name")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    owner: str
    name: str
    def __init__(self, owner: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class CompareRequest(_message.Message):
    __slots__ = ("tables", "rechecks", "recheck_delay_s")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    RECHECKS_FIELD_NUMBER: _ClassVar[int]
    RECHECK_DELAY_S_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableName]
    rechecks: int
    recheck_delay_s: float
    def __init__(self, tables: _Optional[_Iterable[_Union[TableName, _Mapping]]] = ..., rechecks: _Optional[int] = ..., recheck_delay_s: _Optional[float] = ...) -> None: ...

class TableComparison(_message.Message):
    __slots__ = ("owner", "name", "equal", "source_rows", "destination_rows", "source_digest", "destination_digest", "checks", "problem")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EQUAL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ROWS_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_ROWS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    owner: str
    name: str
    equal: bool
    source_rows: int
    destination_rows: int
    source_digest: str
    destination_digest: str
    checks: int
    problem: str
    def __init__(self, owner: _Optional[str] = ..., name: _Optional[str] = ..., equal: _Optional[bool] = ..., source_rows: _Optional[int] = ..., destination_rows: _Optional[int] = ..., source_digest: _Optional[str] = ..., destination_digest: _Optional[str] = ..., checks: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class ErrorsRequest(_message.Message):
    __slots__ = ("numbers", "all")
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    all: bool
    def __init__(self, numbers: _Optional[_Iterable[int]] = ..., all: _Optional[bool] = ...) -> None: ...

class ErrorOutcome(_message.Message):
    __slots__ = ("number", "done", "problem")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    number: int
    done: bool
    problem: str
    def __init__(self, number: _Optional[int] = ..., done: _Optional[bool] = ..., problem: _Optional[str] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("timeout_s",)
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    def __init__(self, timeout_s: _Optional[float] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ("low_watermark_scn",)
    LOW_WATERMARK_SCN_FIELD_NUMBER: _ClassVar[int]
    low_watermark_scn: int
    def __init__(self, low_watermark_scn: _Optional[int] = ...) -> None: ...
