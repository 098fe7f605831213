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
    __slots__ = ("hello", "scn")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SCN_FIELD_NUMBER: _ClassVar[int]
    hello: _queue_pb2.Hello
    scn: int
    def __init__(self, hello: _Optional[_Union[_queue_pb2.Hello, _Mapping]] = ..., scn: _Optional[int] = ...) -> None: ...
