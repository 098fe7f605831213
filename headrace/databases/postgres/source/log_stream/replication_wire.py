"""The bytes of a log stream: from the raw socket, bypassing libpq, or through libpq's own calls.

Why not libpq
    The server sends every message separately. A reader that wakes for each costs a context switch and a system call per
    row on both sides. Letting 64 KiB or some milliseconds of data accumulate halves the server's CPU time and cuts the
    client's to a tenth. libpq has no call for that. So the socket is duplicated after libpq has authenticated, the
    replication protocol is spoken on the duplicate, and libpq is used again only to close. Over TLS the bytes exist
    only inside libpq: there `get_copy_data` returns them message by message, and they are framed again.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path
from typing import Protocol

import numpy as np
from psycopg import pq

from headrace.base.errors import (
    INSTANTIATE_AGAIN,
    DatabaseError,
    DatabaseUnavailable,
    LogGone,
    ProtocolError,
    UnsupportedType,
)
from headrace.databases.postgres.connection import (
    NOT_UTF8,
    error_from_sqlstate,
    is_not_utf8,
    translated,
    without_values,
)
from headrace.databases.postgres.source.log_stream import pgoutput_kernels as kernels

__all__ = [
    "GULP_BYTES",
    "MESSAGE_BYTES_MAX",
    "Buffer",
    "LibpqWire",
    "RawWire",
    "Wire",
    "broken",
    "end_of_stream",
    "size_receive_buffer",
    "start_libpq",
    "start_raw",
]

GULP_BYTES = 4 << 20  # most bytes of a chunk, unless one message is larger
MESSAGE_BYTES_MAX = (1 << 30) + 4096  # PostgreSQL's limit of 1 GiB for a message, plus framing
RECEIVE_BUFFER_BYTES = 4 << 20  # over a network: holds what the server sends while we write and sync
# On one machine the server writes faster than we read, and each row is a packet. A small buffer is full after a few
# hundred of them, and the kernel keeps merging packets to make room, in the sender's processor time. A backlog of 45 MB
# cost it 1.4 to 1.7 s with 64 KiB, 0.9 s with 512 KiB (measured, with `ACCUMULATE_BYTES` of a quarter of it).
LOCAL_RECEIVE_BUFFER_BYTES = 512 << 10
HANDSHAKE_TIMEOUT_S = 60.0

_LENGTH = struct.Struct(">I")


class Buffer:
    """Received bytes: `[:taken]` belongs to the next chunk, `[taken:filled]` is still to be scanned."""

    def __init__(self) -> None:
        self._allocate(GULP_BYTES)
        self.taken = self.filled = 0

    def _allocate(self, size: int) -> None:
        self.data = bytearray(size)
        self.view = memoryview(self.data)
        self.array = np.frombuffer(self.data, np.uint8)

    @property
    def size(self) -> int:
        """Capacity in bytes."""
        return len(self.data)

    def reserve(self, size: int) -> None:
        """Provide room for `size` bytes in all."""
        if size > self.size:
            self._resize(max(size, min(2 * self.size, MESSAGE_BYTES_MAX)))

    def append(self, *parts: bytes) -> None:
        """Append bytes."""
        total = sum(len(part) for part in parts)
        self.reserve(self.filled + total)
        for part in parts:
            self.view[self.filled : self.filled + len(part)] = part
            self.filled += len(part)

    def drop(self, start: int, end: int) -> None:
        """Remove the bytes `[start:end]`; later bytes move up. `taken` is unchanged.

        Args:
            start: offset from the buffer's beginning; not below `taken`, except by `take`.
            end: offset after the last byte to remove; not above `filled`.
        """
        if start != end:
            rest = self.filled - end
            self.array[start : start + rest] = self.array[end : self.filled].copy()
            self.filled = start + rest

    def take(self) -> bytes:
        """Cut off and return the taken bytes."""
        taken = bytes(self.view[: self.taken])
        self.drop(0, self.taken)
        self.taken = 0
        if self.size > GULP_BYTES and self.filled < GULP_BYTES // 2:
            self._resize(GULP_BYTES)  # a huge message has passed
        return taken

    def _resize(self, size: int) -> None:
        held = self.data[: self.filled]
        self._allocate(size)
        self.data[: self.filled] = held


class Wire(Protocol):
    """Transport of bytes; use `socket` only to wait on it."""

    socket: socket.socket

    def fill(self, buffer: Buffer) -> bool:
        """Append what has arrived, without waiting; True: more may be available that the socket does not report."""
        ...

    def send(self, data: bytes) -> None:
        """Send a status, without waiting.

        A status that does not fit is dropped; the rest of a partly sent one goes out before the next.
        """
        ...

    def close(self) -> None:
        """Close the socket; libpq's own descriptor stays."""
        ...


class RawWire:
    """The replication protocol on the duplicated socket."""

    def __init__(self, duplicate: socket.socket) -> None:
        self.socket = duplicate
        self._rest = b""  # unsent end of a message that the socket accepted only in part

    def fill(self, buffer: Buffer) -> bool:
        """See `Wire.fill`."""
        buffer.reserve(buffer.filled + 1)
        try:
            count = self.socket.recv_into(buffer.view[buffer.filled :])
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise broken(str(error)) from error
        if count == 0:
            raise broken("the server closed the connection")
        buffer.filled += count
        return False

    def send(self, data: bytes) -> None:
        """See `Wire.send`."""
        begun = len(self._rest)
        unsent = self._rest + data
        try:
            sent = self.socket.send(unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            raise broken(str(error)) from error
        # A partly sent message must be completed, or the server could not read any later one. An unsent status is
        # dropped: the next one supersedes it.
        self._rest = unsent[sent:] if sent > begun else self._rest[sent:]

    def close(self) -> None:
        """See `Wire.close`."""
        self.socket.close()


class LibpqWire:
    """The same protocol through libpq, for TLS."""

    def __init__(self, duplicate: socket.socket, connection: pq.abc.PGconn) -> None:
        self.socket = duplicate
        self._connection = connection

    def fill(self, buffer: Buffer) -> bool:
        """See `Wire.fill`."""
        with _libpq_errors():
            self._connection.consume_input()
            came = False
            while buffer.filled < GULP_BYTES:
                count, data = self._connection.get_copy_data(1)
                if count == 0:
                    # TLS decrypts whole records: libpq may hold more than the socket reports.
                    return came
                if count < 0:
                    self._end(buffer)
                    return False
                came = True
                # 'w', its positions, then 'M': `scan` keeps nothing after these bytes.
                if count > kernels.MESSAGE_HEAD_BYTES and data[0] == ord("w") and data[25] == ord("M"):
                    count = kernels.MESSAGE_HEAD_BYTES
                buffer.append(b"d", _LENGTH.pack(count + 4), bytes(data[:count]))
            return True

    def _end(self, buffer: Buffer) -> None:
        """Append libpq's error report at the end of the stream, in the form the server would have sent."""
        result = self._connection.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            fields = (
                (b"C", pq.DiagnosticField.SQLSTATE),
                (b"M", pq.DiagnosticField.MESSAGE_PRIMARY),
                (b"H", pq.DiagnosticField.MESSAGE_HINT),
            )
            body = b"".join(key + (result.error_field(field) or b"") + b"\0" for key, field in fields) + b"\0"
            buffer.append(b"E", _LENGTH.pack(len(body) + 4), body)
        else:
            buffer.append(b"c", _LENGTH.pack(4))

    def send(self, data: bytes) -> None:
        """See `Wire.send`."""
        with _libpq_errors():
            self._connection.put_copy_data(data[5:])
            self._connection.flush()

    def close(self) -> None:
        """See `Wire.close`."""
        self.socket.close()


# --------------------------------------------------------------------------- opening


def start_libpq(pgconn: pq.abc.PGconn, command: bytes, slot: str) -> None:
    """Send START_REPLICATION through libpq and wait for the stream to open.

    Args:
        pgconn: a replication connection, idle; not blocking afterwards.
        command: START_REPLICATION with its options.
        slot: name of the slot, for errors.

    Raises:
        LogGone: the slot does not exist or was invalidated.
        DatabaseUnavailable: the connection broke, or another session reads the slot.
    """
    with _libpq_errors():
        result = pgconn.exec_(command)
        if result.status != pq.ExecStatus.COPY_BOTH:
            sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"XX000").decode()
            message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"no answer").decode(
                "utf-8", "replace"
            )
            raise _refused(sqlstate, message, slot=slot)
        pgconn.nonblocking = 1


def start_raw(wire: socket.socket, command: bytes, slot: str) -> bytes:
    """Send START_REPLICATION on the raw socket and wait for the stream to open.

    Args:
        wire: a duplicate of an authenticated replication connection's socket; not blocking afterwards.
        command: START_REPLICATION with its options, without the protocol's frame.
        slot: name of the slot, for errors.

    Returns:
        Bytes after the answer: the stream's first ones, perhaps not a whole message.

    Raises:
        LogGone: the slot does not exist or was invalidated.
        DatabaseUnavailable: the connection broke, nothing arrived for `HANDSHAKE_TIMEOUT_S`, or another session reads
            the slot.
        ProtocolError: the answer is not one that PostgreSQL gives.
    """
    wire.settimeout(HANDSHAKE_TIMEOUT_S)
    received = b""
    try:
        wire.sendall(b"Q" + _LENGTH.pack(len(command) + 5) + command + b"\0")
        while True:
            while len(received) < 5 or len(received) < 1 + _LENGTH.unpack_from(received, 1)[0]:
                more = wire.recv(65536)
                if not more:
                    raise broken("the server closed the connection")
                received += more
            length = 1 + int(_LENGTH.unpack_from(received, 1)[0])
            frame, received = received[:length], received[length:]
            if frame[:1] == b"W":
                break
            if frame[:1] == b"E":
                sqlstate, message, hint = _error_fields(frame)
                raise _refused(sqlstate, message, hint=hint, slot=slot)
            if frame[:1] not in {b"N", b"S", b"A"}:
                raise ProtocolError("the source answered START_REPLICATION with something else", kind=repr(frame[:1]))
    except OSError as error:
        raise broken(str(error)) from error
    # The flag belongs to the connection, not to the duplicate: libpq's own descriptor was non-blocking, too.
    wire.setblocking(False)
    return received


def size_receive_buffer(wire: socket.socket) -> None:
    """Set the socket's receive buffer by the distance to the server: large over a network, small on one machine.

    `LOCAL_RECEIVE_BUFFER_BYTES` gives the reason.
    """
    if wire.family == getattr(socket, "AF_UNIX", None):
        return
    with contextlib.suppress(OSError, ValueError):
        if wire.getpeername()[0] == wire.getsockname()[0]:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LOCAL_RECEIVE_BUFFER_BYTES)
        # A smaller fixed size would be worse than the system's own sizing.
        elif int(Path("/proc/sys/net/core/rmem_max").read_text(encoding="utf-8")) >= RECEIVE_BUFFER_BYTES:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)


# --------------------------------------------------------------------------- ends and errors

_TOO_LONG = "invalid memory alloc request size"  # an internal error (XX000): the server has no code for it
_TOO_LONG_HINT = (
    "the log has a value that is longer than 1 GB as text. Where changes travel in text form, `headrace check FILE`"
    " names the columns that make it so: take their tables out of the"
    " file, run `headrace up FILE`, and then `headrace start FILE site:S` with the name of this source: in binary form"
    " the value fits"
)

# The log cannot be read past this change, and the error does not name the table.
_NOT_UTF8_HINT = (
    "the log cannot be read past that change: correct the text at the source, and what writes it; then"
    f" {INSTANTIATE_AGAIN}"
)


def end_of_stream(frame: bytes) -> Exception | None:
    """Interpret a message other than CopyData; None: it does not matter."""
    kind = frame[:1]
    if kind == b"E":
        sqlstate, message, hint = _error_fields(frame)
        return _refused(sqlstate, message, hint=hint)
    if kind in {b"c", b"C", b"Z"}:
        return DatabaseUnavailable("the source ended the log stream: it is shutting down")
    if kind in {b"N", b"S", b"A"}:  # notice, parameter change, notification
        return None
    return ProtocolError("the source sent a message that does not belong into a log stream", kind=repr(kind))


def _error_fields(frame: bytes) -> tuple[str, str, str]:
    """Return SQLSTATE, message and hint of an ErrorResponse."""
    fields = {part[:1]: part[1:].decode("utf-8", "replace") for part in frame[5:].split(b"\0") if part}
    return fields.get(b"C", "XX000"), fields.get(b"M", "unknown error"), fields.get(b"H", "")


def _refused(sqlstate: str, message: str, *, hint: str = "", slot: str = "") -> DatabaseError:
    """Return the error for a log stream that the server refuses or ends."""
    text = f"reading the log: {without_values(sqlstate, message)}"
    context = {"slot": slot} if slot else {}
    # 42704 in answer to START_REPLICATION: the slot does not exist. Invalidated: "can no longer access replication
    # slot", before 18 "can no longer get changes from replication slot".
    if (slot and sqlstate == "42704") or (sqlstate == "55000" and "no longer" in message):
        return LogGone(text, hint=INSTANTIATE_AGAIN, **context)
    # 42883 on an open stream: a type without a send function, inside a value of a type that has one.
    if not slot and sqlstate == "42883":
        return UnsupportedType(text, hint="no action needed: changes travel in text form from now on")
    if _TOO_LONG in message:
        hint = _TOO_LONG_HINT
    if is_not_utf8(sqlstate, message):
        text, hint = f"{text}: {NOT_UTF8}", _NOT_UTF8_HINT
    return error_from_sqlstate(sqlstate, text, hint=hint, **context)


def broken(reason: str) -> DatabaseUnavailable:
    """Return the error for a broken connection."""
    return DatabaseUnavailable(f"reading the log: the connection broke: {reason}")


def _libpq_errors() -> contextlib.AbstractContextManager[None]:
    return translated("reading the log")
