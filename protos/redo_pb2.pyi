from protos import queue_pb2 as _queue_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RedoPosition(_message.Message):
    __slots__ = ("segment", "offset", "scn")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SCN_FIELD_NUMBER: _ClassVar[int]
    segment: int
    offset: int
    scn: int
    def __init__(self, segment: _Optional[int] = ..., offset: _Optional[int] = ..., scn: _Optional[int] = ...) -> None: ...

class RequiredCheckpoint(_message.Message):
    __slots__ = ("hello", "scn", "again")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SCN_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    hello: _queue_pb2.Hello
    scn: int
    again: bool
    def __init__(self, hello: _Optional[_Union[_queue_pb2.Hello, _Mapping]] = ..., scn: _Optional[int] = ..., again: _Optional[bool] = ...) -> None: ...

class ShipRequest(_message.Message):
    __slots__ = ("begin", "durable", "credit_bytes")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    begin: BeginShipping
    durable: RedoPosition
    credit_bytes: int
    def __init__(self, begin: _Optional[_Union[BeginShipping, _Mapping]] = ..., durable: _Optional[_Union[RedoPosition, _Mapping]] = ..., credit_bytes: _Optional[int] = ...) -> None: ...

class BeginShipping(_message.Message):
    __slots__ = ("hello", "place", "fingerprint", "credit_bytes", "shipped")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHIPPED_FIELD_NUMBER: _ClassVar[int]
    hello: _queue_pb2.Hello
    place: RedoPosition
    fingerprint: int
    credit_bytes: int
    shipped: int
    def __init__(self, hello: _Optional[_Union[_queue_pb2.Hello, _Mapping]] = ..., place: _Optional[_Union[RedoPosition, _Mapping]] = ..., fingerprint: _Optional[int] = ..., credit_bytes: _Optional[int] = ..., shipped: _Optional[int] = ...) -> None: ...

class ShippedRedo(_message.Message):
    __slots__ = ("segment", "offset", "data", "source_scn")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SCN_FIELD_NUMBER: _ClassVar[int]
    segment: int
    offset: int
    data: bytes
    source_scn: int
    def __init__(self, segment: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., source_scn: _Optional[int] = ...) -> None: ...
