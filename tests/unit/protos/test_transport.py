"""The wire format without a wire: errors, hellos, fragments."""

from __future__ import annotations

import inspect
import pickle
import random
import tracemalloc
from collections import deque
from collections.abc import Iterator

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base import errors
from headrace.base.errors import HeadraceError, PropagationError, ProtocolError
from headrace.lcr.lcr_value import LcrError
from protos import lcr_pb2, queue_pb2
from protos.wire import fragments, transport
from protos.wire.admission import Admission
from protos.wire.compression import PIECE_BYTES_MIN, Compressor
from protos.wire.fragments import FRAGMENT_BYTES, Reassembly
from protos.wire.transport import PROTOCOL_VERSION


def subclasses(kind: type[HeadraceError] = HeadraceError) -> Iterator[type[HeadraceError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__.startswith("headrace."):
            yield from subclasses(child)


class Ended(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    """The end of a call as gRPC reports it."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, bytes], ...] = ()) -> None:
        self._parts = code, details, metadata

    def code(self) -> grpc.StatusCode:
        return self._parts[0]

    def details(self) -> str:
        return self._parts[1]

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return self._parts[2]


def test_every_error_class_is_a_test_parameter() -> None:
    declared = {each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, HeadraceError)}
    assert declared | {LcrError} <= set(subclasses())


@pytest.mark.parametrize("kind", list(subclasses()), ids=lambda kind: kind.__name__)
def test_error_crosses_a_process_border_whole(kind: type[HeadraceError]) -> None:
    error = kind("what is wrong, naïve", hint="do this", scn=2**62, table="hr.employees")
    status = Ended(*transport.to_status(error))
    for copy in (pickle.loads(pickle.dumps(error)), transport.as_streams_error(status, "queue q")):
        assert type(copy) is kind
        assert (copy.message, copy.hint, copy.context) == (error.message, error.hint, error.context)
        assert (copy.code, copy.retry) == (kind.code, kind.retry)
    assert status.code() is not grpc.StatusCode.OK
    assert status.details() == error.message


def test_error_of_an_unknown_class_becomes_the_nearest_known_one() -> None:
    class NewerError(ProtocolError):
        """A class that only the peer has."""

    status = transport.to_status(NewerError("x"))
    content = status[2][0][1].replace(b'"NewerError"', b'"EvenNewerError"')
    copy = transport.as_streams_error(Ended(status[0], "x", ((status[2][0][0], content),)), "queue q")
    assert type(copy) is ProtocolError


def test_endless_error_stays_below_the_bound_of_metadata() -> None:
    error = ProtocolError("m" * 100_000, hint="h" * 100_000, **{f"k{n}": "v" * 100 for n in range(1000)})
    _, details, ((_, content),) = transport.to_status(error)
    assert len(details) + len(content) < 8192
    copy = transport.as_streams_error(Ended(grpc.StatusCode.INTERNAL, details, ((transport._ERROR_KEY, content),)), "q")
    assert copy.message.startswith("mmm")


def test_unreadable_error_is_a_protocol_error() -> None:
    for content in (b"{", b"[]", b'{"classes": ["Nobody"]}', b"\xff"):
        status = Ended(grpc.StatusCode.INTERNAL, "x", ((transport._ERROR_KEY, content),))
        with pytest.raises(ProtocolError, match="cannot be read"):
            transport.as_streams_error(status, "queue q")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, PropagationError),
        (grpc.StatusCode.CANCELLED, PropagationError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, PropagationError),
        (grpc.StatusCode.UNKNOWN, PropagationError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, PropagationError),
        (grpc.StatusCode.UNIMPLEMENTED, ProtocolError),
        (grpc.StatusCode.FAILED_PRECONDITION, ProtocolError),
    ],
)
def test_status_of_grpc_itself_names_the_peer_and_is_retried(code: grpc.StatusCode, expected: type) -> None:
    error = transport.as_streams_error(Ended(code, "socket closed"), "queue q at 127.0.0.1:1")
    assert type(error) is expected
    assert "queue q at 127.0.0.1:1" in error.message
    assert error.retry is errors.Retry.TIMED


def test_hello_of_another_version_is_refused_with_both_versions() -> None:
    hello = transport.make_hello("t", "capture", "q", "1")
    hello.protocol_version = PROTOCOL_VERSION + 1
    with pytest.raises(ProtocolError) as caught:
        transport.check_hello(hello, "t", "q")
    assert f"version {PROTOCOL_VERSION + 1}" in caught.value.message
    assert f"version {PROTOCOL_VERSION}" in caught.value.message
    assert "same Headrace version" in caught.value.hint


@pytest.mark.parametrize("change", [{"topology": "u"}, {"queue": "p"}, {"component": ""}, {"incarnation": ""}])
def test_hello_for_another_queue_or_without_a_name_is_refused(change: dict[str, str]) -> None:
    hello = transport.make_hello("t", "capture", "q", "1")
    transport.check_hello(hello, "t", "q")
    for name, value in change.items():
        setattr(hello, name, value)
    with pytest.raises(ProtocolError):
        transport.check_hello(hello, "t", "q")


def test_later_incarnation_compares_greater() -> None:
    assert transport.new_incarnation() < transport.new_incarnation()


HEADER = lcr_pb2.BatchHeader(source="dbs1")


@pytest.mark.seeded
@given(st.sampled_from([0, 1, 100, FRAGMENT_BYTES - 1, FRAGMENT_BYTES, FRAGMENT_BYTES + 1, 3 * FRAGMENT_BYTES + 7]))
def test_batch_of_any_size_is_cut_and_joined_unchanged(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    reassembly = Reassembly()
    for _ in range(2):  # a reassembly is reused
        pieces = list(fragments.fragments(HEADER, data))
        assert all(piece.ByteSize() < transport.MESSAGE_BYTES_MAX for piece in pieces)
        results = [reassembly.add(piece) for piece in pieces]
        assert results[:-1] == [None] * (len(pieces) - 1)
        assert results[-1] == (HEADER, data)


@pytest.mark.seeded
@given(
    st.sampled_from(
        [0, 1, PIECE_BYTES_MIN - 1, PIECE_BYTES_MIN, FRAGMENT_BYTES, FRAGMENT_BYTES + 1, 3 * FRAGMENT_BYTES + 7]
    ),
    st.sampled_from([4096, 100_000, FRAGMENT_BYTES]),
    st.booleans(),
)
def test_compressed_batch_of_any_size_is_joined_unchanged(size: int, piece_bytes: int, is_random: bool) -> None:
    data = (
        random.Random(size).randbytes(size) if is_random else (b"one value after the other, " * (size // 27 + 1))[:size]
    )
    compressor = Compressor()
    pieces = list(fragments.fragments(HEADER, data, compressor, piece_bytes=piece_bytes))
    assert len(pieces) == max(1, -(-size // piece_bytes))
    results = list(map(Reassembly().add, pieces))
    assert results == [None] * (len(pieces) - 1) + [(HEADER, data)]
    # Incompressible data travel as they are: compression never makes a piece larger.
    assert compressor.bytes_before == size
    assert compressor.bytes_after == sum(len(piece.data) for piece in pieces) <= size
    if not is_random and size >= FRAGMENT_BYTES:
        assert compressor.bytes_after < size // 10


def bombs() -> dict[str, queue_pb2.Fragment]:
    frame = Compressor().compress(memoryview(bytes(FRAGMENT_BYTES)))
    assert frame is not None
    assert len(frame) < 1000

    def first(data: bytes, whole_bytes: int, total_bytes: int, compression: int = queue_pb2.ZSTD) -> queue_pb2.Fragment:
        return queue_pb2.Fragment(
            header=HEADER,
            data=data,
            whole_bytes=whole_bytes,
            total_bytes=total_bytes,
            compression=compression,
            last=True,
        )

    return {
        "claims more than a fragment holds": first(frame, FRAGMENT_BYTES + 1, FRAGMENT_BYTES + 1),
        "claims four gigabytes": first(frame, 2**32 - 1, 1 << 30),
        "claims more than the batch has": first(frame, FRAGMENT_BYTES, 1000),
        "claims nothing": first(frame, 0, FRAGMENT_BYTES),
        "holds more than it claims": first(frame, 1000, 1000),
        "holds less than it claims": first(frame[:-3], FRAGMENT_BYTES, FRAGMENT_BYTES),
        "is no frame": first(b"x" * 600, 1000, 1000),
        "is compressed in an unknown way": first(frame, FRAGMENT_BYTES, FRAGMENT_BYTES, 7),
    }


@pytest.mark.parametrize("case", bombs())
def test_false_compressed_fragment_is_refused_in_bounded_memory(case: str) -> None:
    bomb = bombs()[case]
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            Reassembly().add(bomb)
        assert tracemalloc.get_traced_memory()[1] < 2 * FRAGMENT_BYTES
    finally:
        tracemalloc.stop()


def test_batch_larger_than_the_bound_is_refused_at_its_first_fragment() -> None:
    with pytest.raises(ProtocolError, match="larger than this side takes"):
        Reassembly(bytes_max=10).add(next(fragments.fragments(HEADER, bytes(11))))


def wrong_sequences() -> dict[str, list[queue_pb2.Fragment]]:
    first, second, third = fragments.fragments(HEADER, bytes(2 * FRAGMENT_BYTES + 5))
    short = queue_pb2.Fragment(data=b"x", last=True)
    return {
        "no beginning": [second],
        "a beginning inside": [first, first],
        "too short": [first, short],
        "too long": [first, second, queue_pb2.Fragment(data=bytes(6), last=True)],
        "an end that is not marked": [first, second, queue_pb2.Fragment(data=third.data)],
        "an empty batch that goes on": [queue_pb2.Fragment(header=HEADER, total_bytes=0), short],
    }


@pytest.mark.parametrize("case", wrong_sequences())
def test_fragments_that_do_not_make_a_batch_are_refused(case: str) -> None:
    reassembly = Reassembly()
    with pytest.raises(ProtocolError):
        deque(map(reassembly.add, wrong_sequences()[case]))


def test_hello_of_a_stranger_is_cut_and_escaped_in_messages() -> None:
    long = "x\x1b[31m\n" + "y" * 3_000_000
    with pytest.raises(ProtocolError) as caught:
        transport.check_hello(transport.make_hello("t", long, "q", "1"), "t", "another")
    assert len(caught.value.message) < 1000
    assert caught.value.message.isprintable()


def test_recorded_refusal_is_bounded_and_printable() -> None:
    class Context:
        def peer(self) -> str:
            return "ipv4:10.0.0.1:1"

    admission = Admission("queue q")
    with pytest.raises(ProtocolError), admission.opening(Context(), is_stream=False):
        raise ProtocolError("z\x1b\n" * 1_000_000)
    noted = admission.status().last_refusal
    assert len(noted) < 10_000
    assert noted.isprintable()
