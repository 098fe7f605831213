"""Messages between coordinator and apply servers survive the wire unchanged at any size."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import ProtocolError
from protos import apply_pb2 as pb
from protos.links.apply_link import PIECE_BYTES, Joiner, split
from spark_apply.conversation import groups, messages


def _strategy(kind: object) -> st.SearchStrategy[object]:
    """Every value of a field of the given type (counts: unsigned 31 bit, which all fields accept)."""
    origin = typing.get_origin(kind)
    if origin is tuple:
        return st.lists(_strategy(typing.get_args(kind)[0]), max_size=3).map(tuple)
    if origin in {typing.Union, types.UnionType}:
        return st.one_of([_strategy(member) for member in typing.get_args(kind)])
    if kind is type(None):
        return st.none()
    if kind is bool:
        return st.booleans()
    if isinstance(kind, type) and issubclass(kind, enum.IntEnum):
        return st.sampled_from(list(kind))
    if kind is int:
        return st.integers(0, 2**31 - 1)
    if kind is str:
        return st.text(max_size=20)
    if kind is bytes:
        return st.binary(max_size=50)
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: _strategy(hints[field.name]) for field in dataclasses.fields(kind)})


def _over_the_wire(message: typing.Any) -> typing.Any:
    joiner, whole = Joiner(), list[typing.Any]()
    for piece in split(message):
        assert piece.ByteSize() <= PIECE_BYTES + 100
        joined = joiner.add(type(message).FromString(piece.SerializeToString()))
        whole += [joined] if joined is not None else []
    assert len(whole) == 1
    return whole[0]


@pytest.mark.seeded
@given(_strategy(groups.CoordinatorMessage))
def test_every_coordinator_message_survives_the_wire(message: groups.CoordinatorMessage) -> None:
    wire = messages.coordinator_message_to_wire(message)
    assert messages.coordinator_message_from_wire(_over_the_wire(wire)) == message


@pytest.mark.seeded
@given(_strategy(groups.ServerMessage))
def test_every_server_message_survives_the_wire(message: groups.ServerMessage) -> None:
    wire = messages.server_message_to_wire(message)
    assert messages.server_message_from_wire(_over_the_wire(wire)) == message


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES])
def test_group_of_any_size_is_sent_in_pieces_within_the_transport_limit(size: int) -> None:
    assignment = groups.GroupAssignment(
        group=1,
        attempt=0,
        mode=groups.GroupMode.SETS,
        streamed=False,
        batches=(b"x" * size, b"y"),
        after_scn=0,
        through_scn=1,
    )
    wire = messages.coordinator_message_to_wire(assignment)
    assert messages.coordinator_message_from_wire(_over_the_wire(wire)) == assignment


def test_message_between_the_pieces_of_another_is_refused() -> None:
    joiner = Joiner()
    assert joiner.add(pb.ServerMessage(piece=pb.Piece(data=b"x"))) is None
    with pytest.raises(ProtocolError):
        joiner.add(pb.ServerMessage(state=pb.ServerState()))


def test_message_outside_the_conversation_is_refused() -> None:
    with pytest.raises(ProtocolError):
        messages.server_message_from_wire(pb.ServerMessage())
    with pytest.raises(ProtocolError):
        messages.coordinator_message_from_wire(pb.CoordinatorMessage(stop=pb.StopServer()))
