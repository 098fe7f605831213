from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_KIND_UNSPECIFIED: _ClassVar[TaskKind]
    TASK_KIND_APPLY_SERVER: _ClassVar[TaskKind]
    TASK_KIND_COPY: _ClassVar[TaskKind]
    TASK_KIND_DIGEST: _ClassVar[TaskKind]
TASK_KIND_UNSPECIFIED: TaskKind
TASK_KIND_APPLY_SERVER: TaskKind
TASK_KIND_COPY: TaskKind
TASK_KIND_DIGEST: TaskKind

class ServerMessage(_message.Message):
    __slots__ = ("hello", "state", "failure", "result", "retry", "part_done", "abandoned", "piece")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    PART_DONE_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    hello: ServerHello
    state: ServerState
    failure: ServerFailure
    result: GroupResult
    retry: GroupRetry
    part_done: PartDone
    abandoned: GroupAbandoned
    piece: Piece
    def __init__(self, hello: _Optional[_Union[ServerHello, _Mapping]] = ..., state: _Optional[_Union[ServerState, _Mapping]] = ..., failure: _Optional[_Union[ServerFailure, _Mapping]] = ..., result: _Optional[_Union[GroupResult, _Mapping]] = ..., retry: _Optional[_Union[GroupRetry, _Mapping]] = ..., part_done: _Optional[_Union[PartDone, _Mapping]] = ..., abandoned: _Optional[_Union[GroupAbandoned, _Mapping]] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("welcome", "stop", "assignment", "part", "go", "abandon", "reopen", "piece")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    GO_FIELD_NUMBER: _ClassVar[int]
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    REOPEN_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    stop: StopServer
    assignment: GroupAssignment
    part: GroupPart
    go: GroupGo
    abandon: GroupAbandon
    reopen: Reopen
    piece: Piece
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., stop: _Optional[_Union[StopServer, _Mapping]] = ..., assignment: _Optional[_Union[GroupAssignment, _Mapping]] = ..., part: _Optional[_Union[GroupPart, _Mapping]] = ..., go: _Optional[_Union[GroupGo, _Mapping]] = ..., abandon: _Optional[_Union[GroupAbandon, _Mapping]] = ..., reopen: _Optional[_Union[Reopen, _Mapping]] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("data", "last")
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    last: bool
    def __init__(self, data: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

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

class Welcome(_message.Message):
    __slots__ = ("epoch", "tag", "destination", "source", "group_rows", "incarnation", "conflicts", "dependencies", "handlers", "commits_lazily")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ROWS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    DEPENDENCIES_FIELD_NUMBER: _ClassVar[int]
    HANDLERS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_LAZILY_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    tag: bytes
    destination: DatabaseAccess
    source: str
    group_rows: int
    incarnation: int
    conflicts: bytes
    dependencies: bytes
    handlers: bytes
    commits_lazily: bool
    def __init__(self, epoch: _Optional[int] = ..., tag: _Optional[bytes] = ..., destination: _Optional[_Union[DatabaseAccess, _Mapping]] = ..., source: _Optional[str] = ..., group_rows: _Optional[int] = ..., incarnation: _Optional[int] = ..., conflicts: _Optional[bytes] = ..., dependencies: _Optional[bytes] = ..., handlers: _Optional[bytes] = ..., commits_lazily: _Optional[bool] = ...) -> None: ...

class ServerState(_message.Message):
    __slots__ = ("state", "detail", "hint", "has_session")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    HAS_SESSION_FIELD_NUMBER: _ClassVar[int]
    state: str
    detail: str
    hint: str
    has_session: bool
    def __init__(self, state: _Optional[str] = ..., detail: _Optional[str] = ..., hint: _Optional[str] = ..., has_session: _Optional[bool] = ...) -> None: ...

class ServerFailure(_message.Message):
    __slots__ = ("error", "message", "hint", "fenced", "final", "destination_restarted", "replaced")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_RESTARTED_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    error: str
    message: str
    hint: str
    fenced: bool
    final: bool
    destination_restarted: bool
    replaced: bool
    def __init__(self, error: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ..., fenced: _Optional[bool] = ..., final: _Optional[bool] = ..., destination_restarted: _Optional[bool] = ..., replaced: _Optional[bool] = ...) -> None: ...

class StopServer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Reopen(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DatabaseAccess(_message.Message):
    __slots__ = ("site", "kind", "dsn", "tables")
    SITE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DSN_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    site: str
    kind: str
    dsn: str
    tables: bytes
    def __init__(self, site: _Optional[str] = ..., kind: _Optional[str] = ..., dsn: _Optional[str] = ..., tables: _Optional[bytes] = ...) -> None: ...

class AccessRequest(_message.Message):
    __slots__ = ("protocol_version", "token")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    token: str
    def __init__(self, protocol_version: _Optional[int] = ..., token: _Optional[str] = ...) -> None: ...

class AccessReply(_message.Message):
    __slots__ = ("source", "destination")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    source: DatabaseAccess
    destination: DatabaseAccess
    def __init__(self, source: _Optional[_Union[DatabaseAccess, _Mapping]] = ..., destination: _Optional[_Union[DatabaseAccess, _Mapping]] = ...) -> None: ...

class CopyRequest(_message.Message):
    __slots__ = ("protocol_version", "token", "worker", "incarnation", "outcome")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    token: str
    worker: int
    incarnation: str
    outcome: CopyOutcome
    def __init__(self, protocol_version: _Optional[int] = ..., token: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[str] = ..., outcome: _Optional[_Union[CopyOutcome, _Mapping]] = ...) -> None: ...

class CopyOutcome(_message.Message):
    __slots__ = ("piece", "rows", "digest", "problem", "is_final", "sqlstate")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    SQLSTATE_FIELD_NUMBER: _ClassVar[int]
    piece: int
    rows: int
    digest: bytes
    problem: str
    is_final: bool
    sqlstate: str
    def __init__(self, piece: _Optional[int] = ..., rows: _Optional[int] = ..., digest: _Optional[bytes] = ..., problem: _Optional[str] = ..., is_final: _Optional[bool] = ..., sqlstate: _Optional[str] = ...) -> None: ...

class CopyReply(_message.Message):
    __slots__ = ("piece", "wait", "done")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    piece: CopyPiece
    wait: bool
    done: bool
    def __init__(self, piece: _Optional[_Union[CopyPiece, _Mapping]] = ..., wait: _Optional[bool] = ..., done: _Optional[bool] = ...) -> None: ...

class CopyPiece(_message.Message):
    __slots__ = ("piece", "is_digest", "table", "stored", "place", "bytes", "columns", "form", "snapshot", "epoch", "tag", "source_columns", "added", "reshaped")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    IS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    SOURCE_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    RESHAPED_FIELD_NUMBER: _ClassVar[int]
    piece: int
    is_digest: bool
    table: TableName
    stored: TableName
    place: str
    bytes: int
    columns: _containers.RepeatedScalarFieldContainer[str]
    form: str
    snapshot: str
    epoch: int
    tag: bytes
    source_columns: _containers.RepeatedScalarFieldContainer[str]
    added: _containers.RepeatedCompositeFieldContainer[AddedValue]
    reshaped: ReshapedTable
    def __init__(self, piece: _Optional[int] = ..., is_digest: _Optional[bool] = ..., table: _Optional[_Union[TableName, _Mapping]] = ..., stored: _Optional[_Union[TableName, _Mapping]] = ..., place: _Optional[str] = ..., bytes: _Optional[int] = ..., columns: _Optional[_Iterable[str]] = ..., form: _Optional[str] = ..., snapshot: _Optional[str] = ..., epoch: _Optional[int] = ..., tag: _Optional[bytes] = ..., source_columns: _Optional[_Iterable[str]] = ..., added: _Optional[_Iterable[_Union[AddedValue, _Mapping]]] = ..., reshaped: _Optional[_Union[ReshapedTable, _Mapping]] = ...) -> None: ...

class AddedValue(_message.Message):
    __slots__ = ("text", "is_null")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IS_NULL_FIELD_NUMBER: _ClassVar[int]
    text: str
    is_null: bool
    def __init__(self, text: _Optional[str] = ..., is_null: _Optional[bool] = ...) -> None: ...

class AppliedRange(_message.Message):
    __slots__ = ("after_scn", "through_scn")
    AFTER_SCN_FIELD_NUMBER: _ClassVar[int]
    THROUGH_SCN_FIELD_NUMBER: _ClassVar[int]
    after_scn: int
    through_scn: int
    def __init__(self, after_scn: _Optional[int] = ..., through_scn: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("position", "conflict_type", "sqlstate", "message", "readable")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SQLSTATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    READABLE_FIELD_NUMBER: _ClassVar[int]
    position: int
    conflict_type: str
    sqlstate: str
    message: str
    readable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, position: _Optional[int] = ..., conflict_type: _Optional[str] = ..., sqlstate: _Optional[str] = ..., message: _Optional[str] = ..., readable: _Optional[_Iterable[str]] = ...) -> None: ...

class HeldTransaction(_message.Message):
    __slots__ = ("transaction", "depends_on")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    DEPENDS_ON_FIELD_NUMBER: _ClassVar[int]
    transaction: int
    depends_on: int
    def __init__(self, transaction: _Optional[int] = ..., depends_on: _Optional[int] = ...) -> None: ...

class GroupAssignment(_message.Message):
    __slots__ = ("group", "attempt", "mode", "streamed", "batches", "after_scn", "through_scn", "first_transaction", "error_number", "failure", "role", "is_careful", "handler", "error_numbers")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    STREAMED_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    AFTER_SCN_FIELD_NUMBER: _ClassVar[int]
    THROUGH_SCN_FIELD_NUMBER: _ClassVar[int]
    FIRST_TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    ERROR_NUMBER_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    IS_CAREFUL_FIELD_NUMBER: _ClassVar[int]
    HANDLER_FIELD_NUMBER: _ClassVar[int]
    ERROR_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    group: int
    attempt: int
    mode: int
    streamed: bool
    batches: _containers.RepeatedScalarFieldContainer[bytes]
    after_scn: int
    through_scn: int
    first_transaction: int
    error_number: int
    failure: Failure
    role: str
    is_careful: bool
    handler: bytes
    error_numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group: _Optional[int] = ..., attempt: _Optional[int] = ..., mode: _Optional[int] = ..., streamed: _Optional[bool] = ..., batches: _Optional[_Iterable[bytes]] = ..., after_scn: _Optional[int] = ..., through_scn: _Optional[int] = ..., first_transaction: _Optional[int] = ..., error_number: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., role: _Optional[str] = ..., is_careful: _Optional[bool] = ..., handler: _Optional[bytes] = ..., error_numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class GroupPart(_message.Message):
    __slots__ = ("group", "attempt", "part", "batch", "is_last", "through_scn")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    THROUGH_SCN_FIELD_NUMBER: _ClassVar[int]
    group: int
    attempt: int
    part: int
    batch: bytes
    is_last: bool
    through_scn: int
    def __init__(self, group: _Optional[int] = ..., attempt: _Optional[int] = ..., part: _Optional[int] = ..., batch: _Optional[bytes] = ..., is_last: _Optional[bool] = ..., through_scn: _Optional[int] = ...) -> None: ...

class GroupGo(_message.Message):
    __slots__ = ("group", "attempt", "low_watermark", "below_applied", "held", "on_error")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    BELOW_APPLIED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ON_ERROR_FIELD_NUMBER: _ClassVar[int]
    group: int
    attempt: int
    low_watermark: int
    below_applied: bool
    held: _containers.RepeatedCompositeFieldContainer[HeldTransaction]
    on_error: int
    def __init__(self, group: _Optional[int] = ..., attempt: _Optional[int] = ..., low_watermark: _Optional[int] = ..., below_applied: _Optional[bool] = ..., held: _Optional[_Iterable[_Union[HeldTransaction, _Mapping]]] = ..., on_error: _Optional[int] = ...) -> None: ...

class GroupAbandon(_message.Message):
    __slots__ = ("group", "attempt")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    group: int
    attempt: int
    def __init__(self, group: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class TransactionError(_message.Message):
    __slots__ = ("number", "transaction", "commit_scn", "depends_on", "key_hashes", "conflict_type", "message")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SCN_FIELD_NUMBER: _ClassVar[int]
    DEPENDS_ON_FIELD_NUMBER: _ClassVar[int]
    KEY_HASHES_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    number: int
    transaction: int
    commit_scn: int
    depends_on: int
    key_hashes: bytes
    conflict_type: str
    message: str
    def __init__(self, number: _Optional[int] = ..., transaction: _Optional[int] = ..., commit_scn: _Optional[int] = ..., depends_on: _Optional[int] = ..., key_hashes: _Optional[bytes] = ..., conflict_type: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class GroupStatistics(_message.Message):
    __slots__ = ("transactions", "rows", "rows_written", "commits", "rollbacks", "retried", "last_commit_time_us", "conflicts", "ddl_applied", "ddl_passed_over", "ddl_not_applied")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    ROLLBACKS_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    DDL_APPLIED_FIELD_NUMBER: _ClassVar[int]
    DDL_PASSED_OVER_FIELD_NUMBER: _ClassVar[int]
    DDL_NOT_APPLIED_FIELD_NUMBER: _ClassVar[int]
    transactions: int
    rows: int
    rows_written: int
    commits: int
    rollbacks: int
    retried: int
    last_commit_time_us: int
    conflicts: int
    ddl_applied: int
    ddl_passed_over: int
    ddl_not_applied: int
    def __init__(self, transactions: _Optional[int] = ..., rows: _Optional[int] = ..., rows_written: _Optional[int] = ..., commits: _Optional[int] = ..., rollbacks: _Optional[int] = ..., retried: _Optional[int] = ..., last_commit_time_us: _Optional[int] = ..., conflicts: _Optional[int] = ..., ddl_applied: _Optional[int] = ..., ddl_passed_over: _Optional[int] = ..., ddl_not_applied: _Optional[int] = ...) -> None: ...

class GroupResult(_message.Message):
    __slots__ = ("group", "attempt", "applied", "errors", "statistics", "failure", "executed")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    EXECUTED_FIELD_NUMBER: _ClassVar[int]
    group: int
    attempt: int
    applied: _containers.RepeatedCompositeFieldContainer[AppliedRange]
    errors: _containers.RepeatedCompositeFieldContainer[TransactionError]
    statistics: GroupStatistics
    failure: Failure
    executed: int
    def __init__(self, group: _Optional[int] = ..., attempt: _Optional[int] = ..., applied: _Optional[_Iterable[_Union[AppliedRange, _Mapping]]] = ..., errors: _Optional[_Iterable[_Union[TransactionError, _Mapping]]] = ..., statistics: _Optional[_Union[GroupStatistics, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., executed: _Optional[int] = ...) -> None: ...

class GroupRetry(_message.Message):
    __slots__ = ("group", "attempt", "reason", "next_transaction", "applied", "errors", "statistics", "failure")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NEXT_TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    group: int
    attempt: int
    reason: int
    next_transaction: int
    applied: _containers.RepeatedCompositeFieldContainer[AppliedRange]
    errors: _containers.RepeatedCompositeFieldContainer[TransactionError]
    statistics: GroupStatistics
    failure: Failure
    def __init__(self, group: _Optional[int] = ..., attempt: _Optional[int] = ..., reason: _Optional[int] = ..., next_transaction: _Optional[int] = ..., applied: _Optional[_Iterable[_Union[AppliedRange, _Mapping]]] = ..., errors: _Optional[_Iterable[_Union[TransactionError, _Mapping]]] = ..., statistics: _Optional[_Union[GroupStatistics, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class PartDone(_message.Message):
    __slots__ = ("group", "attempt", "part")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    group: int
    attempt: int
    part: int
    def __init__(self, group: _Optional[int] = ..., attempt: _Optional[int] = ..., part: _Optional[int] = ...) -> None: ...

class GroupAbandoned(_message.Message):
    __slots__ = ("group", "attempt")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    group: int
    attempt: int
    def __init__(self, group: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("protocol_version", "application_token", "kind", "topology", "apply", "epoch", "endpoint", "token", "tasks", "items")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    APPLY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    application_token: str
    kind: TaskKind
    topology: str
    apply: str
    epoch: int
    endpoint: str
    token: str
    tasks: int
    items: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, protocol_version: _Optional[int] = ..., application_token: _Optional[str] = ..., kind: _Optional[_Union[TaskKind, str]] = ..., topology: _Optional[str] = ..., apply: _Optional[str] = ..., epoch: _Optional[int] = ..., endpoint: _Optional[str] = ..., token: _Optional[str] = ..., tasks: _Optional[int] = ..., items: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("accepted", "results")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    results: RunResults
    def __init__(self, accepted: _Optional[bool] = ..., results: _Optional[_Union[RunResults, _Mapping]] = ...) -> None: ...

class RunResults(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, results: _Optional[_Iterable[bytes]] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ("application_token",)
    APPLICATION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    application_token: str
    def __init__(self, application_token: _Optional[str] = ...) -> None: ...

class HealthReply(_message.Message):
    __slots__ = ("executors", "runs", "refusals")
    EXECUTORS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    executors: int
    runs: int
    refusals: Refusals
    def __init__(self, executors: _Optional[int] = ..., runs: _Optional[int] = ..., refusals: _Optional[_Union[Refusals, _Mapping]] = ...) -> None: ...

class Refusals(_message.Message):
    __slots__ = ("tls", "refused_calls", "refused_connections", "last_refusal", "last_refusal_us", "last_refused_connection_us", "held_back", "last_held_back", "last_held_back_us", "revoked_problem")
    TLS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_CALLS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    LAST_REFUSAL_FIELD_NUMBER: _ClassVar[int]
    LAST_REFUSAL_US_FIELD_NUMBER: _ClassVar[int]
    LAST_REFUSED_CONNECTION_US_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    LAST_HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    LAST_HELD_BACK_US_FIELD_NUMBER: _ClassVar[int]
    REVOKED_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    tls: bool
    refused_calls: int
    refused_connections: int
    last_refusal: str
    last_refusal_us: int
    last_refused_connection_us: int
    held_back: int
    last_held_back: str
    last_held_back_us: int
    revoked_problem: str
    def __init__(self, tls: _Optional[bool] = ..., refused_calls: _Optional[int] = ..., refused_connections: _Optional[int] = ..., last_refusal: _Optional[str] = ..., last_refusal_us: _Optional[int] = ..., last_refused_connection_us: _Optional[int] = ..., held_back: _Optional[int] = ..., last_held_back: _Optional[str] = ..., last_held_back_us: _Optional[int] = ..., revoked_problem: _Optional[str] = ...) -> None: ...

class ServerStatus(_message.Message):
    __slots__ = ("server", "state", "group", "groups_applied", "rows_applied", "pid", "host", "attempts", "waits_for_group", "detail", "commit_scn", "waits_for_scn", "waits_for_server")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUPS_APPLIED_FIELD_NUMBER: _ClassVar[int]
    ROWS_APPLIED_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_GROUP_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SCN_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_SCN_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_SERVER_FIELD_NUMBER: _ClassVar[int]
    server: int
    state: str
    group: int
    groups_applied: int
    rows_applied: int
    pid: int
    host: str
    attempts: int
    waits_for_group: int
    detail: str
    commit_scn: int
    waits_for_scn: int
    waits_for_server: int
    def __init__(self, server: _Optional[int] = ..., state: _Optional[str] = ..., group: _Optional[int] = ..., groups_applied: _Optional[int] = ..., rows_applied: _Optional[int] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., attempts: _Optional[int] = ..., waits_for_group: _Optional[int] = ..., detail: _Optional[str] = ..., commit_scn: _Optional[int] = ..., waits_for_scn: _Optional[int] = ..., waits_for_server: _Optional[int] = ...) -> None: ...

class ApplyStatus(_message.Message):
    __slots__ = ("state", "reader_state", "detail", "hint", "epoch", "low_watermark_scn", "high_watermark_scn", "received_scn", "last_commit_time_us", "last_applied_us", "transactions_applied", "rows_applied", "groups_applied", "transactions_received", "errors", "rollbacks", "servers", "instantiation", "counters", "ready", "caught_up_scn", "asked_us", "missing_tables", "ddl_jobs")
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
    CAUGHT_UP_SCN_FIELD_NUMBER: _ClassVar[int]
    ASKED_US_FIELD_NUMBER: _ClassVar[int]
    MISSING_TABLES_FIELD_NUMBER: _ClassVar[int]
    DDL_JOBS_FIELD_NUMBER: _ClassVar[int]
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
    caught_up_scn: int
    asked_us: int
    missing_tables: _containers.RepeatedScalarFieldContainer[str]
    ddl_jobs: _containers.RepeatedCompositeFieldContainer[DdlJob]
    def __init__(self, state: _Optional[str] = ..., reader_state: _Optional[str] = ..., detail: _Optional[str] = ..., hint: _Optional[str] = ..., epoch: _Optional[int] = ..., low_watermark_scn: _Optional[int] = ..., high_watermark_scn: _Optional[int] = ..., received_scn: _Optional[int] = ..., last_commit_time_us: _Optional[int] = ..., last_applied_us: _Optional[int] = ..., transactions_applied: _Optional[int] = ..., rows_applied: _Optional[int] = ..., groups_applied: _Optional[int] = ..., transactions_received: _Optional[int] = ..., errors: _Optional[int] = ..., rollbacks: _Optional[int] = ..., servers: _Optional[_Iterable[_Union[ServerStatus, _Mapping]]] = ..., instantiation: _Optional[_Iterable[_Union[InstantiationProgress, _Mapping]]] = ..., counters: _Optional[_Mapping[str, int]] = ..., ready: _Optional[bool] = ..., caught_up_scn: _Optional[int] = ..., asked_us: _Optional[int] = ..., missing_tables: _Optional[_Iterable[str]] = ..., ddl_jobs: _Optional[_Iterable[_Union[DdlJob, _Mapping]]] = ...) -> None: ...

class DdlJob(_message.Message):
    __slots__ = ("number", "owner", "name", "index", "state", "attempts", "problem", "fix", "since_us")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    number: int
    owner: str
    name: str
    index: str
    state: str
    attempts: int
    problem: str
    fix: str
    since_us: int
    def __init__(self, number: _Optional[int] = ..., owner: _Optional[str] = ..., name: _Optional[str] = ..., index: _Optional[str] = ..., state: _Optional[str] = ..., attempts: _Optional[int] = ..., problem: _Optional[str] = ..., fix: _Optional[str] = ..., since_us: _Optional[int] = ...) -> None: ...

class InstantiationProgress(_message.Message):
    __slots__ = ("owner", "name", "state", "rows", "rows_estimated", "instantiation_scn", "problem", "bytes_done", "bytes_total", "obsolete_errors")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    INSTANTIATION_SCN_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    OBSOLETE_ERRORS_FIELD_NUMBER: _ClassVar[int]
    owner: str
    name: str
    state: str
    rows: int
    rows_estimated: int
    instantiation_scn: int
    problem: str
    bytes_done: int
    bytes_total: int
    obsolete_errors: int
    def __init__(self, owner: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., rows: _Optional[int] = ..., rows_estimated: _Optional[int] = ..., instantiation_scn: _Optional[int] = ..., problem: _Optional[str] = ..., bytes_done: _Optional[int] = ..., bytes_total: _Optional[int] = ..., obsolete_errors: _Optional[int] = ...) -> None: ...

class TableName(_message.Message):
    __slots__ = ("owner", "name")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    owner: str
    name: str
    def __init__(self, owner: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ReshapedTable(_message.Message):
    __slots__ = ("document",)
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    document: bytes
    def __init__(self, document: _Optional[bytes] = ...) -> None: ...

class DigestItem(_message.Message):
    __slots__ = ("table", "is_source", "stored", "place", "bytes", "columns", "snapshot", "reshaped")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    IS_SOURCE_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    RESHAPED_FIELD_NUMBER: _ClassVar[int]
    table: int
    is_source: bool
    stored: TableName
    place: str
    bytes: int
    columns: _containers.RepeatedScalarFieldContainer[str]
    snapshot: str
    reshaped: ReshapedTable
    def __init__(self, table: _Optional[int] = ..., is_source: _Optional[bool] = ..., stored: _Optional[_Union[TableName, _Mapping]] = ..., place: _Optional[str] = ..., bytes: _Optional[int] = ..., columns: _Optional[_Iterable[str]] = ..., snapshot: _Optional[str] = ..., reshaped: _Optional[_Union[ReshapedTable, _Mapping]] = ...) -> None: ...

class DigestResult(_message.Message):
    __slots__ = ("table", "is_source", "rows", "digest", "problem", "is_final")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    IS_SOURCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    table: int
    is_source: bool
    rows: int
    digest: bytes
    problem: str
    is_final: bool
    def __init__(self, table: _Optional[int] = ..., is_source: _Optional[bool] = ..., rows: _Optional[int] = ..., digest: _Optional[bytes] = ..., problem: _Optional[str] = ..., is_final: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("owner", "name", "equal", "source_rows", "destination_rows", "source_digest", "destination_digest", "checks", "problem", "destination_owner", "destination_name", "differences", "has_more_differences", "left_out", "computed", "settled", "in_flight", "in_flight_rows", "padded")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EQUAL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ROWS_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_ROWS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_OWNER_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_NAME_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_ROWS_FIELD_NUMBER: _ClassVar[int]
    PADDED_FIELD_NUMBER: _ClassVar[int]
    owner: str
    name: str
    equal: bool
    source_rows: int
    destination_rows: int
    source_digest: str
    destination_digest: str
    checks: int
    problem: str
    destination_owner: str
    destination_name: str
    differences: _containers.RepeatedCompositeFieldContainer[RowDifference]
    has_more_differences: bool
    left_out: _containers.RepeatedScalarFieldContainer[str]
    computed: _containers.RepeatedScalarFieldContainer[str]
    settled: int
    in_flight: _containers.RepeatedCompositeFieldContainer[RowDifference]
    in_flight_rows: int
    padded: str
    def __init__(self, owner: _Optional[str] = ..., name: _Optional[str] = ..., equal: _Optional[bool] = ..., source_rows: _Optional[int] = ..., destination_rows: _Optional[int] = ..., source_digest: _Optional[str] = ..., destination_digest: _Optional[str] = ..., checks: _Optional[int] = ..., problem: _Optional[str] = ..., destination_owner: _Optional[str] = ..., destination_name: _Optional[str] = ..., differences: _Optional[_Iterable[_Union[RowDifference, _Mapping]]] = ..., has_more_differences: _Optional[bool] = ..., left_out: _Optional[_Iterable[str]] = ..., computed: _Optional[_Iterable[str]] = ..., settled: _Optional[int] = ..., in_flight: _Optional[_Iterable[_Union[RowDifference, _Mapping]]] = ..., in_flight_rows: _Optional[int] = ..., padded: _Optional[str] = ...) -> None: ...

class RowDifference(_message.Message):
    __slots__ = ("columns", "values", "nulls", "what")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NULLS_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedScalarFieldContainer[str]
    values: _containers.RepeatedScalarFieldContainer[str]
    nulls: _containers.RepeatedScalarFieldContainer[bool]
    what: str
    def __init__(self, columns: _Optional[_Iterable[str]] = ..., values: _Optional[_Iterable[str]] = ..., nulls: _Optional[_Iterable[bool]] = ..., what: _Optional[str] = ...) -> None: ...

class CopyAgainRequest(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableName]
    def __init__(self, tables: _Optional[_Iterable[_Union[TableName, _Mapping]]] = ...) -> None: ...

class CopyAgainReply(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[InstantiationProgress]
    def __init__(self, tables: _Optional[_Iterable[_Union[InstantiationProgress, _Mapping]]] = ...) -> None: ...

class ErrorsRequest(_message.Message):
    __slots__ = ("numbers", "all", "role", "handler", "stops", "besides")
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    HANDLER_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    BESIDES_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    all: bool
    role: str
    handler: bytes
    stops: bool
    besides: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, numbers: _Optional[_Iterable[int]] = ..., all: _Optional[bool] = ..., role: _Optional[str] = ..., handler: _Optional[bytes] = ..., stops: _Optional[bool] = ..., besides: _Optional[_Iterable[int]] = ...) -> None: ...

class ErrorOutcome(_message.Message):
    __slots__ = ("number", "done", "problem", "failure")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    number: int
    done: bool
    problem: str
    failure: Failure
    def __init__(self, number: _Optional[int] = ..., done: _Optional[bool] = ..., problem: _Optional[str] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...
