from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Column(_message.Message):
    __slots__ = ("name", "type_name", "type_number", "type_modifier", "is_key", "is_binary", "is_computed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    TYPE_MODIFIER_FIELD_NUMBER: _ClassVar[int]
    IS_KEY_FIELD_NUMBER: _ClassVar[int]
    IS_BINARY_FIELD_NUMBER: _ClassVar[int]
    IS_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    type_name: str
    type_number: int
    type_modifier: int
    is_key: bool
    is_binary: bool
    is_computed: bool
    def __init__(self, name: _Optional[str] = ..., type_name: _Optional[str] = ..., type_number: _Optional[int] = ..., type_modifier: _Optional[int] = ..., is_key: _Optional[bool] = ..., is_binary: _Optional[bool] = ..., is_computed: _Optional[bool] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("owner", "name", "rows")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    owner: str
    name: str
    rows: str
    def __init__(self, owner: _Optional[str] = ..., name: _Optional[str] = ..., rows: _Optional[str] = ...) -> None: ...

class TableVersion(_message.Message):
    __slots__ = ("object_number", "version", "owner", "name", "columns", "old_image", "partition", "root_number")
    OBJECT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    OLD_IMAGE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ROOT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    object_number: int
    version: int
    owner: str
    name: str
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    old_image: int
    partition: Partition
    root_number: int
    def __init__(self, object_number: _Optional[int] = ..., version: _Optional[int] = ..., owner: _Optional[str] = ..., name: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., old_image: _Optional[int] = ..., partition: _Optional[_Union[Partition, _Mapping]] = ..., root_number: _Optional[int] = ...) -> None: ...

class ColumnValues(_message.Message):
    __slots__ = ("column_count", "row_count", "lengths", "data")
    COLUMN_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    column_count: int
    row_count: int
    lengths: bytes
    data: bytes
    def __init__(self, column_count: _Optional[int] = ..., row_count: _Optional[int] = ..., lengths: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class RowGroup(_message.Message):
    __slots__ = ("table", "command", "row_numbers", "old", "new")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ROW_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    table: int
    command: int
    row_numbers: bytes
    old: ColumnValues
    new: ColumnValues
    def __init__(self, table: _Optional[int] = ..., command: _Optional[int] = ..., row_numbers: _Optional[bytes] = ..., old: _Optional[_Union[ColumnValues, _Mapping]] = ..., new: _Optional[_Union[ColumnValues, _Mapping]] = ...) -> None: ...

class Truncate(_message.Message):
    __slots__ = ("row_number", "tables", "cascade", "restart_identity")
    ROW_NUMBER_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    CASCADE_FIELD_NUMBER: _ClassVar[int]
    RESTART_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    row_number: int
    tables: _containers.RepeatedScalarFieldContainer[int]
    cascade: bool
    restart_identity: bool
    def __init__(self, row_number: _Optional[int] = ..., tables: _Optional[_Iterable[int]] = ..., cascade: _Optional[bool] = ..., restart_identity: _Optional[bool] = ...) -> None: ...

class DdlLcr(_message.Message):
    __slots__ = ("command_type", "object_type", "object_owner", "object_name", "base_table_owner", "base_table_name", "object_number", "ddl_text", "logon_user", "current_schema", "content")
    COMMAND_TYPE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_TYPE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_OWNER_FIELD_NUMBER: _ClassVar[int]
    OBJECT_NAME_FIELD_NUMBER: _ClassVar[int]
    BASE_TABLE_OWNER_FIELD_NUMBER: _ClassVar[int]
    BASE_TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    OBJECT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    DDL_TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGON_USER_FIELD_NUMBER: _ClassVar[int]
    CURRENT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    command_type: str
    object_type: str
    object_owner: str
    object_name: str
    base_table_owner: str
    base_table_name: str
    object_number: int
    ddl_text: str
    logon_user: str
    current_schema: str
    content: str
    def __init__(self, command_type: _Optional[str] = ..., object_type: _Optional[str] = ..., object_owner: _Optional[str] = ..., object_name: _Optional[str] = ..., base_table_owner: _Optional[str] = ..., base_table_name: _Optional[str] = ..., object_number: _Optional[int] = ..., ddl_text: _Optional[str] = ..., logon_user: _Optional[str] = ..., current_schema: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Tag(_message.Message):
    __slots__ = ("value", "topology", "apply")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    APPLY_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    topology: str
    apply: str
    def __init__(self, value: _Optional[bytes] = ..., topology: _Optional[str] = ..., apply: _Optional[str] = ...) -> None: ...

class Transactions(_message.Message):
    __slots__ = ("transaction_id", "order_scn", "commit_scn", "commit_time_us", "tag", "first_row")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    ORDER_SCN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SCN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    transaction_id: bytes
    order_scn: bytes
    commit_scn: bytes
    commit_time_us: bytes
    tag: bytes
    first_row: bytes
    def __init__(self, transaction_id: _Optional[bytes] = ..., order_scn: _Optional[bytes] = ..., commit_scn: _Optional[bytes] = ..., commit_time_us: _Optional[bytes] = ..., tag: _Optional[bytes] = ..., first_row: _Optional[bytes] = ...) -> None: ...

class Label(_message.Message):
    __slots__ = ("text", "transaction_id", "order_scn", "commit_scn", "rows")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    ORDER_SCN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SCN_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    text: str
    transaction_id: int
    order_scn: int
    commit_scn: int
    rows: int
    def __init__(self, text: _Optional[str] = ..., transaction_id: _Optional[int] = ..., order_scn: _Optional[int] = ..., commit_scn: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class BatchHeader(_message.Message):
    __slots__ = ("source", "previous_scn", "through_scn", "continues", "is_open", "transaction_count", "row_count", "last_commit_time_us", "labels")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_SCN_FIELD_NUMBER: _ClassVar[int]
    THROUGH_SCN_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    IS_OPEN_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    source: str
    previous_scn: int
    through_scn: int
    continues: bool
    is_open: bool
    transaction_count: int
    row_count: int
    last_commit_time_us: int
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    def __init__(self, source: _Optional[str] = ..., previous_scn: _Optional[int] = ..., through_scn: _Optional[int] = ..., continues: _Optional[bool] = ..., is_open: _Optional[bool] = ..., transaction_count: _Optional[int] = ..., row_count: _Optional[int] = ..., last_commit_time_us: _Optional[int] = ..., labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ...) -> None: ...

class LcrBatch(_message.Message):
    __slots__ = ("header", "first_position", "tables", "tags", "transactions", "groups", "truncates", "ddl")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATES_FIELD_NUMBER: _ClassVar[int]
    DDL_FIELD_NUMBER: _ClassVar[int]
    header: BatchHeader
    first_position: int
    tables: _containers.RepeatedCompositeFieldContainer[TableVersion]
    tags: _containers.RepeatedCompositeFieldContainer[Tag]
    transactions: Transactions
    groups: _containers.RepeatedCompositeFieldContainer[RowGroup]
    truncates: _containers.RepeatedCompositeFieldContainer[Truncate]
    ddl: DdlLcr
    def __init__(self, header: _Optional[_Union[BatchHeader, _Mapping]] = ..., first_position: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableVersion, _Mapping]]] = ..., tags: _Optional[_Iterable[_Union[Tag, _Mapping]]] = ..., transactions: _Optional[_Union[Transactions, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[RowGroup, _Mapping]]] = ..., truncates: _Optional[_Iterable[_Union[Truncate, _Mapping]]] = ..., ddl: _Optional[_Union[DdlLcr, _Mapping]] = ...) -> None: ...
