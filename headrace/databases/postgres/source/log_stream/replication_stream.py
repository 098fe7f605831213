"""The log stream of PostgreSQL: START_REPLICATION read in gulps from the raw socket.

Job
    Take pgoutput messages from a slot as fast as the server can produce them, and report to it what is durable here.

Main path
    open_log_stream (libpq authenticates) -> PostgresLogStream.read -> Wire.fill -> pgoutput_kernels.scan -> LogChunk.

When it reads
    Idle: at once, when the first byte has arrived. The rest of a transaction that has begun is awaited for up to a
    millisecond, so that a small transaction is one chunk. Behind (data had arrived before the call): not before a
    window since the last read has passed or 128 KiB have arrived; the window doubles up to 10 ms and ends with the
    backlog.

When nothing comes
    From 16 on, a server's sender can miss the notification of a commit that arrives just as it goes to sleep. It looks
    at the log's end first and registers for the next notification after that. Measured on an idle version 18: once in
    some thousand transactions, and the transaction waits for the next commit or for half of `wal_sender_timeout` (30
    s). Any message of ours makes the sender look again, so a status goes out 10 ms, 0.1 s and 1 s after the last data.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg

from headrace.base.errors import (
    DatabaseError,
    DatabaseUnavailable,
    ProtocolError,
)
from headrace.databases.ports import LogChunk, StreamOptions
from headrace.databases.postgres.connection import connect, connection_parameters, quote, translated
from headrace.databases.postgres.source.log_stream import pgoutput_kernels as kernels
from headrace.databases.postgres.source.log_stream.decoding_memory import set_decoding_memory
from headrace.databases.postgres.source.log_stream.lsn import format_lsn, parse_lsn
from headrace.databases.postgres.source.log_stream.replication_wire import (
    MESSAGE_BYTES_MAX,
    Buffer,
    LibpqWire,
    RawWire,
    Wire,
    broken,
    end_of_stream,
    size_receive_buffer,
    start_libpq,
    start_raw,
)
from headrace.databases.postgres.source.log_stream.slot import keep_at_standbys, timelines_left
from headrace.lcr.scn import FIRST_SCN, ObjectNumber, Scn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PostgresLogStream", "format_lsn", "open_log_stream", "parse_lsn"]

ACCUMULATE_BYTES = 128 << 10  # enough for one read to be cheap per row
WINDOW_MIN_S = 0.000_25
WINDOW_MAX_S = 0.010  # measured: more gains nothing
IDLE_S = 0.002  # a wait this long for the first byte means that the reader keeps up
TRANSACTION_GRACE_S = 0.001  # a begun transaction's rest follows within microseconds if it is small
# Seconds after the last data at which the server is reminded to look at its log again. A missed commit arrived within
# microseconds of the last sent data; later reminders only help if a reminder, too, met such a moment.
REMINDERS_S = (0.010, 0.1, 1.0)
OBJECTS_MAX = 4096  # table descriptions in one chunk; a chunk ends early at more

_LENGTH = struct.Struct(">I")
_STATUS = struct.Struct(">cIcQQQqB")
_EPOCH_S = 946_684_800  # of PostgreSQL: 2000-01-01


class PostgresLogStream:
    """PostgreSQL's `headrace.databases.ports.LogStream`. Not shared between threads.

    Args:
        connection: authenticated replication connection, already streaming.
        wire: transport of its bytes.
        options: how to read them.
        start_scn: start of the stream.
        received: bytes that arrived together with the server's answer.
        monotonic: clock, seconds.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        wire: Wire,
        *,
        options: StreamOptions,
        start_scn: Scn,
        received: bytes = b"",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._wire = wire
        self._options = options
        self._start_scn = start_scn
        self._monotonic = monotonic
        # Unix sockets wake the reader for every byte, regardless of the low-water mark.
        self._has_low_water = wire.socket.family != getattr(socket, "AF_UNIX", None)
        self._buffer = Buffer()
        self._buffer.append(received)
        self._is_scanned = not received
        self._may_have_more = False
        self._state = np.zeros(kernels.SCAN_STATE_SIZE, np.int64)
        self._objects = np.zeros(OBJECTS_MAX, np.int64)
        self._describers = np.zeros(OBJECTS_MAX, np.int64)
        self._ended: Exception | None = None
        self._is_closed = False
        self._window_s = 0.0
        self._received_at = -1.0
        self._first_at = 0.0
        self._news_at = monotonic()
        self._reminders = 0
        self._told_scn = FIRST_SCN
        self._confirmed_scn = FIRST_SCN

    @property
    def options(self) -> StreamOptions:
        """See `LogStream.options`."""
        return self._options

    @property
    def start_scn(self) -> Scn:
        """See `LogStream.start_scn`."""
        return self._start_scn

    def read(self, timeout_s: float) -> LogChunk | None:
        """See `LogStream.read`.

        Raises:
            DatabaseUnavailable: the connection broke; open a new stream.
            LogGone: the slot was invalidated during reading.
            UnsupportedType: a value cannot be sent in binary form; open a new stream.
            DatabaseError: the server refused to continue, e.g. the publication is gone.
        """
        if self._is_closed:
            raise broken("it was closed here")
        deadline, has_received = self._monotonic() + timeout_s, False
        while True:
            if not self._is_scanned:
                self._scan()
            chunk = self._take()
            if chunk is not None:
                return chunk
            if self._ended is not None:
                raise self._ended
            # Dropped data, a gigabyte or messages without a pause, forms no chunk: the deadline still holds.
            if has_received and self._monotonic() >= deadline:
                return None
            if not self._receive(deadline):
                return None
            has_received = True

    def confirm(self, scn: Scn) -> None:
        """See `LogStream.confirm`. Also shows the server that this reader is alive; call it every few seconds when not reading.

        Raises:
            DatabaseUnavailable: the connection broke.
        """
        self._confirmed_scn = max(self._confirmed_scn, scn)
        if self._ended is None and not self._is_closed:
            self._send_status()

    def close(self) -> None:
        """See `LogStream.close`."""
        self._is_closed = True
        self._wire.close()
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    # ------------------------------------------------------------------ chunks

    def _scan(self) -> None:
        """Take the whole messages that arrived, answer what must be answered, record an end of the stream."""
        buffer, state = self._buffer, self._state
        self._is_scanned = True
        while True:
            at = int(kernels.scan(buffer.array, buffer.taken, buffer.filled, state, self._objects, self._describers))
            buffer.taken = int(state[kernels.SCAN_KEPT])
            buffer.drop(buffer.taken, at)
            if state[kernels.SCAN_WANTS_ANSWER]:
                state[kernels.SCAN_WANTS_ANSWER] = 0
                self._send_status()
            if state[kernels.SCAN_FOLLOWS] == kernels.DAMAGED:
                self._ended = ProtocolError("the source's log stream is not what was asked for")
                return
            if state[kernels.SCAN_FOLLOWS] != kernels.OTHER:
                break
            length = self._frame_length()
            if buffer.filled - buffer.taken < length:
                break
            frame = bytes(buffer.view[buffer.taken : buffer.taken + length])
            buffer.drop(buffer.taken, buffer.taken + length)
            self._ended = end_of_stream(frame)
            if self._ended is not None:
                return
        # A message larger than the buffer needs a larger buffer; but a large one may turn out to be dropped.
        length = self._frame_length()
        if length > MESSAGE_BYTES_MAX:
            self._ended = ProtocolError("a message of the source's log stream is longer than any can be")
        elif buffer.filled - buffer.taken < kernels.MESSAGE_HEAD_BYTES:
            buffer.reserve(buffer.taken + min(length, kernels.MESSAGE_HEAD_BYTES))
        else:
            buffer.reserve(buffer.taken + length)
        # The scan stopped because its list of tables was full: the rest waits for the next chunk.
        self._is_scanned = max(int(state[kernels.SCAN_OBJECTS]), int(state[kernels.SCAN_DESCRIBERS])) < OBJECTS_MAX

    def _frame_length(self) -> int:
        buffer = self._buffer
        if buffer.filled - buffer.taken < 5:
            return 0
        return 1 + int(_LENGTH.unpack_from(buffer.data, buffer.taken + 1)[0])

    def _take(self) -> LogChunk | None:
        """Return the next chunk, if one should not wait for more."""
        state, taken = self._state, self._buffer.taken
        end_scn, is_open = Scn(int(state[kernels.SCAN_END_SCN])), bool(state[kernels.SCAN_OPEN])
        if taken == 0 and end_scn <= self._told_scn:
            return None
        if 0 < taken < ACCUMULATE_BYTES and is_open and self._ended is None and self._monotonic() < self._grace_ends():
            return None
        chunk = LogChunk(
            data=self._buffer.take(),
            end_scn=end_scn,
            commit_scn=Scn(int(state[kernels.SCAN_COMMIT_SCN])),
            is_open=is_open,
            objects=tuple(ObjectNumber(int(n)) for n in self._objects[: state[kernels.SCAN_OBJECTS]]),
            commit_end=int(state[kernels.SCAN_COMMIT_END]),
            has_truncates=bool(state[kernels.SCAN_TRUNCATES]),
            describers=tuple(self._describers[: state[kernels.SCAN_DESCRIBERS]].tolist()),
            transaction=int(state[kernels.SCAN_COMMITTED]),
        )
        self._told_scn = max(self._told_scn, end_scn)
        self._news_at, self._reminders = self._monotonic(), 0
        kept = [kernels.SCAN_OPEN, kernels.SCAN_TOLD, kernels.SCAN_TRANSACTION, kernels.SCAN_SKIP]
        keep = state[kept]
        state[:] = 0
        state[kept] = keep
        return chunk

    def _grace_ends(self) -> float:
        return self._first_at + TRANSACTION_GRACE_S

    # ------------------------------------------------------------------ bytes

    def _receive(self, deadline: float) -> bool:
        """Wait for bytes as the module describes and append them; False: the deadline came first."""
        limit = min(deadline, self._grace_ends()) if self._buffer.taken else deadline
        now = self._monotonic()
        if not self._may_have_more:
            gulp_at = self._received_at + self._window_s
            if now < gulp_at and not self._accumulate(min(gulp_at, limit) - now):
                now = self._monotonic()
                if now < gulp_at:
                    return now < deadline
            if not self._wait_and_remind(limit):
                return limit < deadline
            waited_s = self._monotonic() - now
            if waited_s > IDLE_S:
                self._window_s = 0.0
            else:
                self._window_s = min(WINDOW_MAX_S, max(WINDOW_MIN_S, 2 * self._window_s))
        try:
            self._may_have_more = self._wire.fill(self._buffer)
        except DatabaseUnavailable as error:
            self._ended = error
        self._is_scanned = False
        self._received_at = self._monotonic()
        if self._buffer.taken == 0:
            self._first_at = self._received_at
        return True

    def _accumulate(self, seconds: float) -> bool:
        """Wait until enough for a gulp has arrived (True) or the time is over."""
        if seconds <= 0:
            return False
        # poll has a resolution of whole milliseconds, and within two hardly anything arrives.
        if not self._has_low_water or seconds < IDLE_S:
            time.sleep(seconds)
            return False
        wire = self._wire.socket
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, ACCUMULATE_BYTES)
        try:
            return self._wait(seconds)
        finally:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def _wait_and_remind(self, limit: float) -> bool:
        """Wait for bytes until `limit`, on the clock, sending reminders ("When nothing comes")."""
        # Up to 15 the notification sets a latch and cannot be missed.
        count = len(REMINDERS_S) if self._options.server_version >= 16 else 0
        while self._ended is None and self._reminders < count:
            due = self._news_at + REMINDERS_S[self._reminders]
            if due > limit:
                break
            if self._wait(max(0.0, due - self._monotonic())):
                return True
            self._reminders += 1
            self._send_status()
        return self._wait(max(0.0, limit - self._monotonic()))

    def _wait(self, seconds: float) -> bool:
        ready = select.poll()
        ready.register(self._wire.socket, select.POLLIN)
        return bool(ready.poll(seconds * 1000))

    def _send_status(self) -> None:
        """Send a standby status update: everything up to the confirmed SCN is durable here.

        What is only in memory is not "written" either: with `synchronous_commit = remote_write` a COMMIT would return
        for it. Before the first confirmation everything received is reported as written: the server then uses it to end
        an orderly shutdown, and lets no COMMIT return for it.
        """
        now_us = int((time.time() - _EPOCH_S) * 1e6)
        written = self._confirmed_scn or int(self._state[kernels.SCAN_TOLD])
        body = (written, self._confirmed_scn, self._confirmed_scn, now_us, 0)
        try:
            self._wire.send(_STATUS.pack(b"d", _STATUS.size - 1, b"r", *body))
        except DatabaseUnavailable as error:
            # Data from before the break still counts; the next read raises the error.
            self._ended = error


# --------------------------------------------------------------------------- opening


def open_log_stream(
    dsn: str,
    *,
    slot: str,
    publication: str,
    start: Scn,
    binary: bool,
    application_name: str,
    force_libpq: bool = False,
    decoding_memory: int = 0,
) -> PostgresLogStream:
    """Authenticate, start replication and take over the socket.

    Args:
        dsn: of the source.
        slot: name of a logical slot for pgoutput.
        publication: name.
        start: SCN after which transactions are wanted; not below the slot's confirmed position.
        binary: request values in binary form where their type has one.
        application_name: of the session.
        force_libpq: read through libpq even where the raw socket would work.
        decoding_memory: bytes of transactions in flight that the server may hold; 0: the default of the module
            `decoding_memory`.

    Raises:
        DatabaseUnavailable: no connection, or the slot is in use.
        LogGone: the slot does not exist or was invalidated.
    """
    parameters = {}
    given = connection_parameters(dsn).get("gssencmode") or os.environ.get("PGGSSENCMODE")
    if given is None:
        parameters["gssencmode"] = "disable"
    connection = connect(dsn, application_name=application_name, autocommit=True, replication="database", **parameters)
    try:
        pgconn = connection.pgconn
        is_raw = not force_libpq and not pgconn.ssl_in_use and given in {None, "disable"}
        duplicate = socket.socket(fileno=os.dup(pgconn.socket))
        size_receive_buffer(duplicate)
        options = _identify(connection, binary=binary)
        keep_at_standbys(connection, slot)
        set_decoding_memory(connection, decoding_memory)
        command = _start_command(slot, publication, start, options)
        received = b""
        wire: Wire
        try:
            if is_raw:
                received = start_raw(duplicate, command, slot)
                wire = RawWire(duplicate)
            else:
                start_libpq(pgconn, command, slot)
                wire = LibpqWire(duplicate, pgconn)
        except BaseException:
            duplicate.close()
            raise
    except BaseException:
        connection.close()
        raise
    return PostgresLogStream(connection, wire, options=options, start_scn=start, received=received)


def _identify(connection: psycopg.Connection[Any], *, binary: bool) -> StreamOptions:
    """Ask the server for its identity, over the very connection that will stream."""
    with translated("opening the log stream"):
        row = connection.execute("IDENTIFY_SYSTEM").fetchone()
    assert row is not None
    timeline = int(row[1])
    try:
        switches = tuple(sorted(timelines_left(connection, timeline).items()))
    except DatabaseUnavailable:
        raise
    except DatabaseError:
        switches = ()  # the history file was removed: an unknown history contradicts nothing
    # Text in such a database has no known encoding, so the server does not convert it.
    is_raw = connection.info.parameter_status("server_encoding") == "SQL_ASCII"
    return StreamOptions(
        database_kind="postgres",
        system_identifier=str(row[0]),
        timeline=timeline,
        binary=binary,
        encoding="SQL_ASCII" if is_raw else "UTF8",
        server_version=connection.info.server_version // 10000,
        switches=switches,
    )


def _start_command(slot: str, publication: str, start: Scn, options: StreamOptions) -> bytes:
    names = quote(publication).replace("'", "''")
    parts = ["proto_version '1'", f"publication_names '{names}'", "messages 'true'"]
    if options.binary:
        parts.append("binary 'true'")
    if options.server_version >= 16:
        parts.append("origin 'any'")
    command = f"START_REPLICATION SLOT {quote(slot)} LOGICAL {format_lsn(start)} ({', '.join(parts)})"
    return command.encode()
