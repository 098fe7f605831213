from protos import lcr_pb2 as _lcr_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Compression(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NONE: _ClassVar[Compression]
    ZSTD: _ClassVar[Compression]
NONE: Compression
ZSTD: Compression

class Hello(_message.Message):
    __slots__ = ("protocol_version", "topology", "component", "queue", "incarnation")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    topology: str
    component: str
    queue: str
    incarnation: str
    def __init__(self, protocol_version: _Optional[int] = ..., topology: _Optional[str] = ..., component: _Optional[str] = ..., queue: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class SourcePosition(_message.Message):
    __slots__ = ("source", "scn")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SCN_FIELD_NUMBER: _ClassVar[int]
    source: str
    scn: int
    def __init__(self, source: _Optional[str] = ..., scn: _Optional[int] = ...) -> None: ...

class Fragment(_message.Message):
    __slots__ = ("header", "data", "last", "total_bytes", "compression", "whole_bytes")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    WHOLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    header: _lcr_pb2.BatchHeader
    data: bytes
    last: bool
    total_bytes: int
    compression: Compression
    whole_bytes: int
    def __init__(self, header: _Optional[_Union[_lcr_pb2.BatchHeader, _Mapping]] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ..., total_bytes: _Optional[int] = ..., compression: _Optional[_Union[Compression, str]] = ..., whole_bytes: _Optional[int] = ...) -> None: ...

class EnqueueRequest(_message.Message):
    __slots__ = ("hello", "fragment", "source", "gone")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    fragment: Fragment
    source: str
    gone: SourcePosition
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., fragment: _Optional[_Union[Fragment, _Mapping]] = ..., source: _Optional[str] = ..., gone: _Optional[_Union[SourcePosition, _Mapping]] = ...) -> None: ...

class EnqueueReply(_message.Message):
    __slots__ = ("resume", "accepted", "durable", "rewind")
    RESUME_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    REWIND_FIELD_NUMBER: _ClassVar[int]
    resume: Resume
    accepted: Accepted
    durable: SourcePosition
    rewind: SourcePosition
    def __init__(self, resume: _Optional[_Union[Resume, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., durable: _Optional[_Union[SourcePosition, _Mapping]] = ..., rewind: _Optional[_Union[SourcePosition, _Mapping]] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("needed_scn", "credit_bytes", "compressions")
    NEEDED_SCN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPRESSIONS_FIELD_NUMBER: _ClassVar[int]
    needed_scn: int
    credit_bytes: int
    compressions: _containers.RepeatedScalarFieldContainer[Compression]
    def __init__(self, needed_scn: _Optional[int] = ..., credit_bytes: _Optional[int] = ..., compressions: _Optional[_Iterable[_Union[Compression, str]]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("through_scn", "credit_bytes", "accepted_bytes")
    THROUGH_SCN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    through_scn: int
    credit_bytes: int
    accepted_bytes: int
    def __init__(self, through_scn: _Optional[int] = ..., credit_bytes: _Optional[int] = ..., accepted_bytes: _Optional[int] = ...) -> None: ...

class DequeueRequest(_message.Message):
    __slots__ = ("hello", "subscribe", "credit_bytes", "durable")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    subscribe: Subscribe
    credit_bytes: int
    durable: SourcePosition
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., credit_bytes: _Optional[int] = ..., durable: _Optional[_Union[SourcePosition, _Mapping]] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("needed", "credit_bytes")
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    needed: _containers.RepeatedCompositeFieldContainer[SourcePosition]
    credit_bytes: int
    def __init__(self, needed: _Optional[_Iterable[_Union[SourcePosition, _Mapping]]] = ..., credit_bytes: _Optional[int] = ...) -> None: ...

class DequeueReply(_message.Message):
    __slots__ = ("fragment",)
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    fragment: Fragment
    def __init__(self, fragment: _Optional[_Union[Fragment, _Mapping]] = ...) -> None: ...
