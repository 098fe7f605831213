"""Conversion of group messages (`spark_apply.conversation.groups`) and database accesses to and from protobuf.

A field has the same name on both sides, so the conversion needs no list of fields: a field that is added to both
`spark_apply.conversation.groups` and `protos/apply.proto` is converted. None is an unset message.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Hashable
from enum import IntEnum
from functools import cache
from typing import Any, cast

from headrace.base.errors import ProtocolError
from headrace.databases.connectors import DatabaseAccess
from headrace.rules.table_settings import TableSettings
from protos import apply_pb2 as pb
from spark_apply.conversation import groups

__all__ = [
    "access_from_wire",
    "access_to_wire",
    "coordinator_message_from_wire",
    "coordinator_message_to_wire",
    "server_message_from_wire",
    "server_message_to_wire",
]

# Name of each message's field in `CoordinatorMessage` and `ServerMessage` of apply.proto.
_COORDINATOR: dict[str, type[groups.CoordinatorMessage]] = {
    "assignment": groups.GroupAssignment,
    "part": groups.GroupPart,
    "go": groups.GroupGo,
    "abandon": groups.GroupAbandon,
    "reopen": groups.Reopen,
}
_SERVER: dict[str, type[groups.ServerMessage]] = {
    "result": groups.GroupResult,
    "retry": groups.GroupRetry,
    "part_done": groups.PartDone,
    "abandoned": groups.GroupAbandoned,
}


def access_to_wire(access: DatabaseAccess) -> pb.DatabaseAccess:
    """Convert a database access for a task. Its version was checked earlier."""
    return pb.DatabaseAccess(site=access.site, kind=access.kind, dsn=access.dsn, tables=access.tables.to_bytes())


def access_from_wire(message: pb.DatabaseAccess) -> DatabaseAccess:
    """Convert back to a database access."""
    return DatabaseAccess(
        site=message.site, kind=message.kind, dsn=message.dsn, tables=TableSettings.from_bytes(message.tables)
    )


def coordinator_message_to_wire(message: groups.CoordinatorMessage) -> pb.CoordinatorMessage:
    """Convert a message of the coordinator to protobuf."""
    wire = pb.CoordinatorMessage()
    _fill(wire, _place_of(message, _COORDINATOR), message)
    return wire


def coordinator_message_from_wire(message: pb.CoordinatorMessage) -> groups.CoordinatorMessage:
    """Convert a protobuf message to a message of the coordinator.

    Raises:
        ProtocolError: the message does not belong to the conversation about groups.
    """
    kind = message.WhichOneof("kind")
    if kind not in _COORDINATOR:
        raise ProtocolError(f"the coordinator sent {kind or 'something unknown'} to an apply server")
    return cast("groups.CoordinatorMessage", _read(_COORDINATOR[kind], getattr(message, kind)))


def server_message_to_wire(message: groups.ServerMessage) -> pb.ServerMessage:
    """Convert a message of an apply server to protobuf."""
    wire = pb.ServerMessage()
    _fill(wire, _place_of(message, _SERVER), message)
    return wire


def server_message_from_wire(message: pb.ServerMessage) -> groups.ServerMessage:
    """Convert a protobuf message to a message of an apply server.

    Raises:
        ProtocolError: the message does not belong to the conversation about groups.
    """
    kind = message.WhichOneof("kind")
    if kind not in _SERVER:
        raise ProtocolError(f"an apply server sent {kind or 'something unknown'}")
    return cast("groups.ServerMessage", _read(_SERVER[kind], getattr(message, kind)))


# --------------------------------------------------------------------------- inside


def _place_of(message: object, places: dict[str, Any]) -> str:
    return next(place for place, kind in places.items() if isinstance(message, kind))


def _fill(wire: Any, name: str, value: Any) -> None:  # noqa: ANN401 - any generated message, any field of a group's message
    """Set a field of a protobuf message."""
    if dataclasses.is_dataclass(value):
        inner = getattr(wire, name)
        inner.SetInParent()  # even when every field has its default
        for field in dataclasses.fields(value):
            _fill(inner, field.name, getattr(value, field.name))
    elif isinstance(value, tuple):
        repeated = getattr(wire, name)
        for item in value:
            if dataclasses.is_dataclass(item):
                added = repeated.add()
                for field in dataclasses.fields(item):
                    _fill(added, field.name, getattr(item, field.name))
            else:
                repeated.append(item)
    elif value is not None:
        setattr(wire, name, value)


def _read(kind: type[Any], wire: Any) -> Any:  # noqa: ANN401 - as above
    """Convert a protobuf message to a group's message."""
    return kind(**{name: read(wire, name) for name, read in _readers(cast("Hashable", kind))})


@cache
def _readers(kind: Hashable) -> tuple[tuple[str, Callable[[Any, str], Any]], ...]:
    """Return the reader of each field of a group's message."""
    hints = typing.get_type_hints(kind)
    return tuple((field.name, _reader(hints[field.name])) for field in dataclasses.fields(cast("type[Any]", kind)))


def _reader(hint: Any) -> Callable[[Any, str], Any]:  # noqa: ANN401 - a type or a generic alias
    members = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        item = members[0]
        if dataclasses.is_dataclass(item):
            return lambda wire, name: tuple(_read(cast("type[Any]", item), each) for each in getattr(wire, name))
        return lambda wire, name: tuple(getattr(wire, name))
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        inner = next(member for member in members if member is not types.NoneType)
        return lambda wire, name: _read(inner, getattr(wire, name)) if wire.HasField(name) else None
    if dataclasses.is_dataclass(hint):
        return lambda wire, name: _read(cast("type[Any]", hint), getattr(wire, name))
    if issubclass(hint, IntEnum):
        return lambda wire, name: hint(getattr(wire, name))
    return getattr
