"""The log stream on a socket pair: chunks, answers, errors and ends, without a server."""

from __future__ import annotations

import dataclasses
import itertools
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import DatabaseError, DatabaseUnavailable, LogGone, ProtocolError
from headrace.databases.ports import LogChunk, StreamOptions
from headrace.databases.postgres.source.log_stream import pgoutput_kernels as kernels
from headrace.databases.postgres.source.log_stream import replication_stream
from headrace.databases.postgres.source.log_stream.lsn import format_lsn, parse_lsn
from headrace.databases.postgres.source.log_stream.replication_stream import (
    REMINDERS_S,
    WINDOW_MIN_S,
    PostgresLogStream,
)
from headrace.databases.postgres.source.log_stream.replication_wire import (
    GULP_BYTES,
    LOCAL_RECEIVE_BUFFER_BYTES,
    RECEIVE_BUFFER_BYTES,
    Buffer,
    LibpqWire,
    RawWire,
    end_of_stream,
    size_receive_buffer,
)
from headrace.lcr.scn import Scn
from tests.support.values import pgoutput_messages as pg

OPTIONS = StreamOptions(
    database_kind="postgres", system_identifier="1", timeline=1, binary=False, encoding="UTF8", server_version=18
)
TRANSACTION = pg.stream(pg.begin(90, 1), pg.insert(5, [b"1"]), pg.commit(90, 98))
STUCK_S = 60.0  # without any progress; no machine is that slow
PIECE_BYTES = 64 << 10  # a few fit into a socket's buffer, so each one sent is progress


class NoConnection:
    def close(self) -> None: ...


class Pair:
    """A stream and the server's end of its socket."""

    def __init__(self, options: StreamOptions = OPTIONS) -> None:
        server, client = socket.socketpair()
        client.setblocking(False)
        self.server = server
        self.server.settimeout(STUCK_S)
        connection: Any = NoConnection()
        self.stream = PostgresLogStream(connection, RawWire(client), options=options, start_scn=Scn(7))

    def send(self, data: bytes) -> None:
        # The socket's limit applies to a whole `sendall`, however much of it was taken: a slow machine needs longer for
        # megabytes.
        for at in range(0, len(data), PIECE_BYTES):
            self.server.sendall(data[at : at + PIECE_BYTES])

    def chunks(self, data: bytes) -> list[LogChunk]:
        """Send, while reading, more than a socket's buffer holds; return the chunks once all have arrived."""
        came: list[LogChunk] = []
        with ThreadPoolExecutor(max_workers=1) as pool:
            sending = pool.submit(self.send, data)
            try:
                while sum(len(chunk.data) for chunk in came) < len(data):
                    chunk = self.stream.read(STUCK_S)
                    assert chunk is not None
                    came.append(chunk)
            except BaseException:
                self.stream.close()  # nobody reads any more, so the sender ends
                raise
            sending.result()
        return came

    def status(self) -> tuple[int, int, int]:
        """Return (received, flushed, applied) of the next status update."""
        frame = self.server.recv(39, socket.MSG_WAITALL)
        kind, length, inner, received, flushed, applied, _, reply = struct.unpack(">cIcQQQqB", frame)
        assert (kind, length, inner, reply) == (b"d", 38, b"r", 0)
        return received, flushed, applied


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.stream.close()
    made.server.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read megabytes without ten milliseconds of rest between two buffers of the socket."""
    monkeypatch.setattr(replication_stream, "WINDOW_MAX_S", WINDOW_MIN_S)


def error(sqlstate: str, message: str) -> bytes:
    body = b"SERROR\0C" + sqlstate.encode() + b"\0M" + message.encode() + b"\0Hdo something\0\0"
    return b"E" + struct.pack(">I", len(body) + 4) + body


def test_whole_transaction_is_one_chunk(pair: Pair) -> None:
    pair.send(TRANSACTION)
    chunk = pair.stream.read(1.0)
    assert chunk is not None
    assert (chunk.data, chunk.commit_scn, chunk.end_scn, chunk.is_open) == (TRANSACTION, 98, 98, False)
    assert chunk.commit_end == len(TRANSACTION)
    assert pair.stream.read(0.0) is None


def test_frames_cut_anywhere_are_joined(pair: Pair) -> None:
    for at in range(1, len(TRANSACTION), 7):
        pair.send(TRANSACTION[:at])
        chunks = [pair.stream.read(0.01)]
        pair.send(TRANSACTION[at:])
        while chunks[-1] is None or chunks[-1].is_open:
            chunks.append(pair.stream.read(1.0))
        came = [chunk for chunk in chunks if chunk is not None]
        assert b"".join(chunk.data for chunk in came) == TRANSACTION
        assert came[-1].commit_scn == 98
        assert all(chunk.end_scn == chunk.commit_scn == 0 for chunk in came[:-1])


def test_keepalive_moves_the_position_without_data_and_is_answered(pair: Pair) -> None:
    pair.stream.confirm(Scn(50))
    assert pair.status() == (50, 50, 50)
    pair.send(pg.keepalive(200, reply=True))
    chunk = pair.stream.read(1.0)
    assert chunk is not None
    assert (chunk.data, chunk.end_scn, chunk.commit_scn, chunk.commit_end) == (b"", 200, 0, 0)
    assert pair.status() == (50, 50, 50), "received is neither durable nor written, and a COMMIT can wait for either"
    pair.send(pg.keepalive(200))
    assert pair.stream.read(0.01) is None, "an unchanged position is not reported"


@pytest.mark.parametrize("version", [15, 16])
def test_server_that_may_have_missed_a_commit_is_reminded_a_few_times(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the last interval is one second, for which the test would wait
    monkeypatch.setattr(replication_stream, "REMINDERS_S", (*REMINDERS_S[:-1], 0.2))
    pair = Pair(dataclasses.replace(OPTIONS, server_version=version))
    reminders = len(REMINDERS_S) if version >= 16 else 0
    for _ in range(2):
        pair.send(TRANSACTION)
        assert pair.stream.read(1.0) is not None
        assert pair.stream.read(0.4) is None
        assert [pair.status()[1] for _ in range(reminders)] == [0] * reminders, "a reminder confirms nothing"
    pair.server.settimeout(0.05)
    with pytest.raises(TimeoutError):
        pair.status()
    pair.stream.close()
    pair.server.close()


def test_reminder_on_a_broken_connection_ends_the_stream(pair: Pair) -> None:
    pair.server.shutdown(socket.SHUT_RD)
    assert pair.stream.read(2 * REMINDERS_S[0]) is None
    with pytest.raises(DatabaseUnavailable):
        pair.stream.read(0.0)


def test_keepalive_in_an_open_transaction_is_answered_and_moves_nothing(pair: Pair) -> None:
    pair.send(pg.stream(pg.begin(90, 1)) + pg.keepalive(500, reply=True))
    chunk = pair.stream.read(1.0)
    assert chunk is not None
    assert (chunk.is_open, chunk.end_scn) == (True, 0)
    assert pair.status()[1] == 0
    pair.send(pg.stream(pg.commit(90, 98)))
    chunk = pair.stream.read(1.0)
    assert chunk is not None
    assert (chunk.end_scn, chunk.commit_scn, chunk.is_open) == (98, 98, False)


def test_confirmed_position_never_goes_back(pair: Pair) -> None:
    pair.stream.confirm(Scn(100))
    pair.stream.confirm(Scn(60))
    assert [pair.status()[1] for _ in range(2)] == [100, 100]


@pytest.mark.long
@pytest.mark.usefixtures("hasty")
def test_message_larger_than_the_buffer_passes(pair: Pair) -> None:
    value = b"x" * (3 * GULP_BYTES)
    data = pg.stream(pg.begin(1, 1), pg.insert(5, [value]), pg.commit(1, 2))
    assert b"".join(chunk.data for chunk in pair.chunks(data)) == data
    assert pair.stream._buffer.size == GULP_BYTES


@pytest.mark.long
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("prefix", ["other", "headrace.x"])
def test_huge_foreign_message_takes_no_memory_and_reaches_no_chunk(pair: Pair, prefix: str) -> None:
    begun, ended = pg.stream(pg.begin(1, 1)), pg.stream(pg.insert(5, [b"1"]), pg.commit(1, 2))
    message = pg.frame(pg.message(prefix, b"x" * (8 * GULP_BYTES)))
    sizes: list[int] = []
    with ThreadPoolExecutor(max_workers=1) as pool:
        sending = pool.submit(pair.send, begun + message + ended)
        came = b""
        try:
            while not came.endswith(ended):
                chunk = pair.stream.read(STUCK_S)
                assert chunk is not None
                came += chunk.data
                sizes.append(pair.stream._buffer.size)
        except BaseException:
            pair.stream.close()
            raise
        sending.result()
    cut = b"" if prefix == "other" else pg.frame(pg.message(prefix, b"x" * 8192))
    assert came == begun + cut + ended
    assert set(sizes) == {GULP_BYTES}, "its buffer never grew"


@pytest.mark.parametrize("timeout_s", [0.0, 5.0])
def test_reading_ends_in_time_while_skipped_data_keep_arriving(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    """One huge message, or many; each look takes a second here."""
    now = itertools.count()
    monkeypatch.setattr(pair.stream, "_monotonic", lambda: float(next(now)))
    received: list[float] = []

    def receive(deadline: float) -> bool:
        received.append(deadline)
        assert len(received) < 20
        return True

    monkeypatch.setattr(pair.stream, "_receive", receive)
    assert pair.stream.read(timeout_s) is None
    assert 1 <= len(received) <= 6


class Libpq:
    """Libpq's answers for one message, given once."""

    def __init__(self, message: bytes) -> None:
        self.messages = [message]

    def consume_input(self) -> None: ...

    def get_copy_data(self, _: int) -> tuple[int, memoryview]:
        message = self.messages.pop() if self.messages else b""
        return len(message), memoryview(message)


@pytest.mark.parametrize(("prefix", "kept"), [("other", None), ("headrace.track", 8192)])
def test_huge_message_is_cut_before_libpq_returns_it(prefix: str, kept: int | None) -> None:
    connection: Any = Libpq(pg.frame(pg.message(prefix, b"x" * (2 * GULP_BYTES)))[5:])
    buffer = Buffer()
    with socket.socket() as wire:
        LibpqWire(wire, connection).fill(buffer)
    assert buffer.filled < 10_000
    state, numbers = np.zeros(kernels.SCAN_STATE_SIZE, np.int64), np.zeros(10, np.int64)
    assert kernels.scan(buffer.array, 0, buffer.filled, state, numbers, numbers.copy()) == buffer.filled
    expected = b"" if kept is None else pg.frame(pg.message(prefix, b"x" * kept))
    assert bytes(buffer.view[: state[kernels.SCAN_KEPT]]) == expected
    assert state[kernels.SCAN_SKIP] == 0


@pytest.mark.long
@pytest.mark.usefixtures("hasty")
def test_chunks_are_bounded(pair: Pair) -> None:
    data = pg.stream(pg.begin(1, 1)) + pg.frame(pg.insert(5, [b"x" * 1000])) * 20_000 + pg.stream(pg.commit(1, 2))
    came = [chunk.data for chunk in pair.chunks(data)]
    assert max(map(len, came)) <= GULP_BYTES
    assert b"".join(came) == data


@pytest.mark.parametrize(
    ("tail", "kind", "words"),
    [
        (b"", DatabaseUnavailable, "closed the connection"),
        (error("57P01", "terminating connection"), DatabaseUnavailable, "terminating"),
        (error("42704", 'publication "p" does not exist'), DatabaseError, "publication"),
        (error("55000", "can no longer access replication slot"), LogGone, "no longer"),
        (b"c\0\0\0\4", DatabaseUnavailable, "shutting down"),
        (b"T\0\0\0\4", ProtocolError, "does not belong"),
        (b"d\0\0\0\5q", ProtocolError, "not what was asked for"),
    ],
)
def test_data_before_the_end_are_delivered_first(pair: Pair, tail: bytes, kind: type[Exception], words: str) -> None:
    pair.send(TRANSACTION + tail)
    pair.server.shutdown(socket.SHUT_WR)
    chunk = pair.stream.read(1.0)
    assert chunk is not None
    assert chunk.data == TRANSACTION
    for _ in range(2):
        with pytest.raises(kind, match=words):
            pair.stream.read(1.0)


def test_part_of_a_transaction_is_delivered_before_the_break(pair: Pair) -> None:
    pair.send(pg.stream(pg.begin(90, 1), pg.insert(5, [b"1"])) + b"d\0")
    pair.server.shutdown(socket.SHUT_WR)
    chunk = pair.stream.read(1.0)
    assert chunk is not None
    assert chunk.is_open
    with pytest.raises(DatabaseUnavailable):
        pair.stream.read(1.0)


def test_notices_and_parameter_changes_are_skipped(pair: Pair) -> None:
    half = len(pg.stream(pg.begin(90, 1)))
    notice = b"N\0\0\0\x0bMhello\0" + b"S\0\0\0\x08a\0b\0"
    pair.send(TRANSACTION[:half] + notice + TRANSACTION[half:])
    chunk = pair.stream.read(1.0)
    assert chunk is not None
    assert chunk.data == TRANSACTION


def test_more_described_tables_than_a_chunk_can_name_fill_several_chunks(pair: Pair) -> None:
    one = pg.relation(1, "s", "t", [("a", 23, True)])
    data = pg.stream(pg.begin(1, 1)) + pg.frame(one) * 5000 + pg.stream(pg.commit(1, 2))
    came = pair.chunks(data)
    assert b"".join(chunk.data for chunk in came) == data
    assert sum(len(chunk.objects) for chunk in came) == 5000


def test_server_that_does_not_read_does_not_block_the_stream(pair: Pair) -> None:
    for number in range(20_000):
        pair.stream.confirm(Scn(number))
    assert len(pair.stream._wire._rest) < 39  # type: ignore[attr-defined]


def test_lsns_are_printed_as_postgresql_does() -> None:
    assert parse_lsn("16/B374D848") == 0x16B374D848
    assert format_lsn(0x16B374D848) == "16/B374D848"
    assert format_lsn(0) == "0/0"


class NarrowSocket:
    """A socket that takes as many bytes as it has room for."""

    def __init__(self) -> None:
        self.room = 0
        self.taken = b""

    def send(self, data: bytes) -> int:
        if not self.room:
            raise BlockingIOError
        taken = data[: self.room]
        self.room -= len(taken)
        self.taken += taken
        return len(taken)


@pytest.mark.parametrize("room", range(0, 120, 7))
def test_server_that_did_not_read_for_long_gets_whole_statuses_later(room: int):
    server: Any = NarrowSocket()
    wire = RawWire(server)

    def status(number: int) -> bytes:
        return struct.pack(">cI", b"d", 38) + struct.pack(">Q", number) * 4 + b".!"

    for number in range(300):
        if number == 100:
            server.room = room  # part of a message, or a few messages and a part
        wire.send(status(number))
    server.room = 100_000
    wire.send(status(300))
    wire.send(status(301))
    numbers = [struct.unpack(">Q", server.taken[at + 5 : at + 13])[0] for at in range(0, len(server.taken), 39)]
    assert server.taken == b"".join(status(number) for number in numbers)
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 301
    assert len(numbers) < 10


class _ElsewhereSocket(socket.socket):
    """A socket whose server seems to be on another machine."""

    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.1", 5432


def test_receive_buffer_is_small_on_one_machine_and_large_over_a_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        size_receive_buffer(near)
        # The system adds as much again for its own records.
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in {
            LOCAL_RECEIVE_BUFFER_BYTES,
            2 * LOCAL_RECEIVE_BUFFER_BYTES,
        }
        with _ElsewhereSocket() as far:
            far.connect(server.getsockname())
            before = far.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            size_receive_buffer(far)
            assert far.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in {
                before,
                RECEIVE_BUFFER_BYTES,
                2 * RECEIVE_BUFFER_BYTES,
            }


def test_value_too_long_as_text_names_the_fix_that_makes_it_binary() -> None:
    body = b"SERROR\0CXX000\0Minvalid memory alloc request size 1120000003\0\0"
    error = end_of_stream(b"E" + (len(body) + 4).to_bytes(4, "big") + body)
    assert isinstance(error, DatabaseError)
    assert "headrace start FILE site:S" in error.hint
    assert "take their tables out of the file" in error.hint
