"""Every service against callers that break the rules: nothing crashes, memory stays bounded, and other callers are
served as before.

`make test` always has the same examples, two hundred per test; `make soak` continues with new ones for some seconds.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import logging
import socket
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from headrace.links.ports import header_of
from protos import apply_pb2 as pb
from protos import codec, queue_pb2, redo_pb2
from protos.links.redo_link import RedoServer
from protos.wire import admission as admission_module
from protos.wire import transport
from protos.wire.admission import Admission
from protos.wire.fragments import FRAGMENT_BYTES
from tests.support.clusters.system import wait_until
from tests.support.session.bounds import STALL_S
from tests.support.session.matrices import cases, values
from tests.support.session.seeds import is_soak, scaled, seed_of
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.certificates import Certificates
from tests.support.wire.wire_world import TOKEN, World, Writer

pytestmark = pytest.mark.long

SEED = seed_of("fuzzed wires")
PORTIONS = 10  # of examples, in each fuzzing test
SOAK_S = 30.0  # of each in `make soak`: afterwards its remaining examples are skipped
ENOUGH_S = 120.0  # of one that has not yet seen all outcomes, as a busy machine does not answer in time
# of this process, with both ends: after 300 or 2,000 calls it was 100 to 160 MB, which the allocators keep
GROWTH_BYTES_MAX = 300 << 20
# The allowed ends of the fuzzer's calls: refused, cancelled by us, or the stream's ordinary end. UNKNOWN is not
# allowed: it is an error in our code.
ENDS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,  # gRPC's own answer to a call without its one message
}
METHODS: dict[str, Any] = {
    "/headrace.v1.Queue/Enqueue": queue_pb2.EnqueueRequest,
    "/headrace.v1.Queue/Dequeue": queue_pb2.DequeueRequest,
    "/headrace.v1.Redo/Watch": queue_pb2.Hello,
    "/headrace.v1.Redo/Checkpoint": redo_pb2.RequiredCheckpoint,
    "/headrace.v1.RedoTransport/Ship": redo_pb2.ShipRequest,
    "/headrace.v1.Coordinator/Serve": pb.ServerMessage,
    "/headrace.v1.Coordinator/Access": pb.AccessRequest,
    "/headrace.v1.Coordinator/NextCopy": pb.CopyRequest,
    "/headrace.v1.SparkTasks/Run": pb.RunRequest,
    "/headrace.v1.SparkTasks/Health": pb.HealthRequest,
}
fuzzing = settings(
    max_examples=20,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


# --------------------------------------------------------------------------- set-up


def _resident_bytes() -> int:
    """Return the memory of this process without free blocks: the allocator keeps some for each thread."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


@pytest.fixture
def world(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    world = World(tmp_path)
    try:
        world.serves()
        before = _resident_bytes()
        yield world
        world.serves()
        assert _resident_bytes() - before < GROWTH_BYTES_MAX
        # gRPC logs exceptions of our handlers, which must not occur.
        assert [
            each.getMessage()
            for each in caplog.records
            if each.name.startswith("grpc") and each.levelno >= logging.ERROR
        ] == []
    finally:
        world.close()


def _fuzz(
    strategy: st.SearchStrategy[Any], example: Callable[[Any], None], is_enough: Callable[[], bool] = lambda: True
) -> None:
    """Run an example in portions: in `make soak` as often as a test's time allows, as hypothesis counts examples, not
    seconds.

    Continue until `is_enough` is true.
    """
    began = time.monotonic()
    for number in itertools.count():
        seed(SEED + number)(fuzzing(given(strategy)(example)))()
        seconds = time.monotonic() - began
        is_over = seconds > SOAK_S if is_soak() else number + 1 >= PORTIONS
        if seconds > ENOUGH_S or (is_over and is_enough()):
            return


# --------------------------------------------------------------------------- bytes

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def _frames() -> st.SearchStrategy[bytes]:
    """Return HTTP/2 frames with any type, flags, stream and declared length."""
    header = st.tuples(st.integers(0, 2**24 - 1), st.integers(0, 12), st.integers(0, 255), st.integers(0, 2**32 - 1))
    return st.tuples(header, st.binary(max_size=64)).map(
        lambda each: each[0][0].to_bytes(3, "big") + bytes(each[0][1:3]) + each[0][3].to_bytes(4, "big") + each[1]
    )


RAW = st.one_of(
    st.binary(max_size=2000),
    st.builds(lambda cut, rest: (PREFACE + SETTINGS)[:cut] + rest, st.integers(0, 40), st.binary(max_size=200)),
    st.lists(_frames(), max_size=10).map(lambda frames: PREFACE + SETTINGS + b"".join(frames)),
    st.binary(max_size=300).map(lambda rest: b"\x16\x03\x01\x02\x00\x01" + rest),  # looks like the beginning of TLS
)


def _throw(endpoint: str, data: bytes) -> None:
    host, _, port = endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=STALL_S) as sender:
        try:
            sender.sendall(data)
            sender.settimeout(0.01)
            sender.recv(1000)
        except OSError:
            pass  # closed by the server, or nothing to read yet


@pytest.mark.seeded
def test_bytes_that_are_no_http_2_do_no_harm(world: World) -> None:
    _fuzz(st.tuples(st.sampled_from(sorted(world.endpoints.values())), RAW), lambda drawn: _throw(*drawn))


@pytest.mark.seeded
def test_bytes_on_a_port_with_tls_do_no_harm_and_are_counted(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "HANDSHAKE_TIMEOUT_S", 1.0)
    admission = Admission("redo", Certificates(tmp_path / "certs", "t", "dbs1").of("dbs1"))
    server = RedoServer("t", "dbs1", Writer(), admission=admission)
    thrown = 0

    def example(data: bytes) -> None:
        nonlocal thrown
        _throw(server.endpoint, data)
        thrown += 1

    try:
        _fuzz(RAW, example)
        wait_until("all are counted", lambda: admission.status().refused_connections == thrown, 60)
    finally:
        server.stop()


# --------------------------------------------------------------------------- messages

NUMBERS = (0, 1, -1, 2, 99, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63), 2**64 - 1)
TEXTS = (
    "t",
    "q_dbs1",
    "dbs1",
    "fuzz",
    "capture_fuzz",
    "apply_fuzz",
    "apply_a",
    "nobody",
    "",
    "1",
    TOKEN,
    "x" * 3000,
    "\0\n\u202e",
)
_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def _scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.cpp_type in _BOUNDS:
        low, high = _BOUNDS[field.cpp_type]
        return st.sampled_from([number for number in NUMBERS if low <= number <= high])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return st.sampled_from([0.0, -1.0, 1e300])
    if field.type == FieldDescriptor.TYPE_STRING:
        return st.sampled_from(TEXTS)
    return st.one_of(st.binary(max_size=40), st.just(bytes(FRAGMENT_BYTES)))


@cache
def _messages(descriptor: Descriptor, depth: int = 3) -> st.SearchStrategy[Message]:
    """Return any message of a type, with some of its fields set to extreme or plausible values."""
    fields = [
        field
        for field in descriptor.fields
        if field.message_type is None or (depth and not field.message_type.GetOptions().map_entry)
    ]

    @st.composite
    def made(draw: st.DrawFn) -> Message:
        message = GetMessageClass(descriptor)()
        for field in draw(st.lists(st.sampled_from(fields), unique_by=lambda each: each.name)) if fields else ():
            inner = _scalar(field) if field.message_type is None else _messages(field.message_type, depth - 1)
            if field.is_repeated:
                getattr(message, field.name).extend(draw(st.lists(inner, max_size=3)))
            elif field.message_type is None:
                setattr(message, field.name, draw(inner))
            else:
                getattr(message, field.name).CopyFrom(draw(inner))
        return message

    return made()


HELLO = queue_pb2.Hello(protocol_version=1, topology="t", queue="q_dbs1", incarnation="9")
BEGINNINGS: dict[str, list[list[Message]]] = {
    "/headrace.v1.Queue/Enqueue": [
        [
            queue_pb2.EnqueueRequest(hello=queue_pb2.Hello(**_fields, component="capture_fuzz")),
            queue_pb2.EnqueueRequest(source="fuzz"),
        ]
        for _fields in [{field.name: value for field, value in HELLO.ListFields()}]
    ],
    "/headrace.v1.Queue/Dequeue": [
        [
            queue_pb2.DequeueRequest(hello=queue_pb2.Hello(**_fields, component="apply_fuzz")),
            queue_pb2.DequeueRequest(
                subscribe=queue_pb2.Subscribe(needed=[queue_pb2.SourcePosition(source="fuzz")], credit_bytes=1000)
            ),
        ]
        for _fields in [{field.name: value for field, value in HELLO.ListFields()}]
    ],
    "/headrace.v1.Coordinator/Serve": [
        [pb.ServerMessage(hello=pb.ServerHello(protocol_version=1, topology="t", apply="apply_a", token=TOKEN))]
    ],
}


@st.composite
def _calls(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """Draw a method and the bytes sent to it: often a valid beginning, then anything."""
    method = draw(st.sampled_from(sorted(METHODS)))
    begun = draw(st.sampled_from([*BEGINNINGS.get(method, []), []]))
    rest = draw(st.lists(_messages(METHODS[method].DESCRIPTOR), max_size=6))
    sent = [message.SerializeToString() for message in (*begun, *rest)]
    if draw(st.booleans()) and sent:  # bytes that are no message, or half of one
        place = draw(st.integers(0, len(sent) - 1))
        sent[place] = draw(st.one_of(st.binary(max_size=100), st.just(sent[place][: len(sent[place]) // 2])))
    return method, sent


def _send(
    channel: grpc.Channel, method: str, messages: Iterator[bytes], timeout_s: float = 0.3
) -> tuple[grpc.StatusCode, str]:
    call = channel.stream_stream(method)(messages, timeout=timeout_s)
    try:
        for _ in call:
            pass
    except grpc.RpcError:
        pass
    return call.code(), call.details() or ""


@pytest.mark.seeded
def test_arbitrary_messages_to_any_method_are_answered_or_refused(world: World) -> None:
    ended: dict[str, int] = {}

    def example(call: tuple[str, list[bytes]]) -> None:
        method, messages = call
        channel = transport.Channel(world.endpoints[method.split(".")[-1].partition("/")[0]])
        try:
            code, details = _send(channel.grpc, method, iter(messages))
        finally:
            channel.close()
        assert code in ENDS, (method, code, details)
        assert "unforeseen" not in details
        ended[code.name] = ended.get(code.name, 0) + 1

    seen = {"FAILED_PRECONDITION", "OK"}  # it reached our code, and passed it
    _fuzz(_calls(), example, lambda: seen <= set(ended))
    assert seen <= set(ended), ended


@pytest.mark.seeded  # it was a race: more repetitions are as good as other bytes
@pytest.mark.parametrize(
    "method", values(sorted(BEGINNINGS), "/headrace.v1.Coordinator/Serve", "/headrace.v1.Queue/Enqueue")
)
def test_invalid_bytes_on_an_open_stream_do_not_stop_a_server_from_ending(world: World, method: str) -> None:
    """gRPC alone ended such a call twice, and its server could then never be stopped; `World.close` stops it."""
    beginning = [message.SerializeToString() for message in BEGINNINGS[method][0]]
    # An apply server's stream cannot report a reason and need not end; its driver is informed. The others end by
    # themselves, later on a busy machine.
    is_told = not method.endswith("/Serve")
    for _ in range(scaled(5, 50)):
        channel = transport.Channel(world.endpoints[method.rsplit(".", maxsplit=1)[-1].partition("/")[0]])
        code, details = _send(channel.grpc, method, iter([*beginning, b"\xff\xff\xff"]), 30.0 if is_told else 0.3)
        channel.close()
        assert code is grpc.StatusCode.FAILED_PRECONDITION or not is_told
        assert "no message of this protocol" in details or not is_told


@pytest.mark.parametrize("declared", values([2**40, 1_200_000_000], 2**40))
@pytest.mark.parametrize(
    "piece", cases({"empty": b"", "tiny": b"x", "whole": bytes(FRAGMENT_BYTES)}, core=("empty", "whole"))
)
def test_endless_fragments_cost_no_more_than_their_content(world: World, declared: int, piece: bytes) -> None:
    """Every piece is valid by itself; the one that would complete the batch never arrives."""
    sent = 0

    def messages() -> Iterator[bytes]:
        nonlocal sent
        yield from (message.SerializeToString() for message in BEGINNINGS["/headrace.v1.Queue/Enqueue"][0])
        header = codec.header_to_message(header_of(insert_batch([10], source="fuzz")))
        first = queue_pb2.Fragment(header=header, data=b"x", total_bytes=declared)
        yield queue_pb2.EnqueueRequest(fragment=first).SerializeToString()
        ends_at = time.monotonic() + 1.0
        while time.monotonic() < ends_at and sent < 50:
            sent += 1
            yield queue_pb2.EnqueueRequest(fragment=queue_pb2.Fragment(data=piece)).SerializeToString()

    channel = transport.Channel(world.queue.endpoint)
    call = channel.grpc.stream_stream("/headrace.v1.Queue/Enqueue")(messages(), timeout=STALL_S)
    try:
        for _ in call:
            pass
    except grpc.RpcError:
        pass
    channel.close()
    if declared == 2**40 or not piece:
        assert call.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture(params=[2.0, pytest.param(admission_module.HANDSHAKE_TIMEOUT_S, marks=pytest.mark.soak)])
def handshake_s(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Set the bound of a server, which is fixed when it starts; the shipped one is ten seconds."""
    bound = ("grpc.server_handshake_timeout_ms", int(request.param * 1000))
    monkeypatch.setattr(
        transport,
        "_SERVER_OPTIONS",
        [bound if name == bound[0] else (name, value) for name, value in transport._SERVER_OPTIONS],
    )
    return float(request.param)


def test_silent_connections_end_in_time(handshake_s: float, world: World) -> None:
    began = time.monotonic()
    host, _, port = world.redo.endpoint.rpartition(":")
    silent = [socket.create_connection((host, int(port)), timeout=STALL_S) for _ in range(20)]
    half = [socket.create_connection((host, int(port)), timeout=STALL_S) for _ in range(5)]
    for each in half:
        each.sendall(PREFACE[:10])
    world.serves()
    for each in (*silent, *half):
        while each.recv(1000):
            pass
        each.close()
    assert time.monotonic() - began > handshake_s / 2, "another bound ended them"
