"""A connection pooler as a client sees one: it speaks the protocol itself, and lends processes of the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import struct
import threading
from collections import deque
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Literal, Self

import psycopg

__all__ = ["Pooler"]

_SSL_REQUEST, _GSS_REQUEST, _CANCEL_REQUEST = 80877103, 80877104, 80877102
_PARAMETERS = (
    "server_version", "server_encoding", "client_encoding", "DateStyle", "IntervalStyle", "TimeZone", "integer_datetimes",
    "standard_conforming_strings", "is_superuser", "session_authorization",
)  # fmt: skip
_ANSWERED = frozenset(b"QSF")  # messages of a client that the server ends with ReadyForQuery


class _Server:
    """A process of the server, in a session that the pooler has opened."""

    def __init__(
        self, connection: psycopg.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connection, self.reader, self.writer = connection, reader, writer
        self.waits = 0  # answers that are still to come
        self.client: asyncio.StreamWriter | None = None  # who had it last, and is still there


class Pooler:
    """Listens on a free port of the loopback address. Use it as a context manager.

    Args:
        dsn: of the server, as whose role everybody comes.
        mode: for how long a client has a process of the server, as PgBouncer calls it.
        is_round_robin: the process that was idle for longest is lent first, not the one that was used last.
        size: processes at most; a client waits for one.
    """

    def __init__(
        self, dsn: str, *, mode: Literal["session", "transaction"], is_round_robin: bool = False, size: int = 20
    ) -> None:
        self._dsn, self._mode, self._is_round_robin, self._size = dsn, mode, is_round_robin, size
        self._idle: deque[_Server] = deque()
        self._all: list[_Server] = []
        self._clients: set[asyncio.Task[None]] = set()
        self._opening: set[asyncio.Task[_Server]] = set()
        self.shared = 0  # times that a client got a process that another one had, and may come back to
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pooler", daemon=True)
        self._thread.start()
        self._freed = asyncio.Condition()
        with psycopg.connect(dsn) as connection:
            self._greeting = b"".join(
                _message(b"S", name.encode() + b"\0" + (connection.info.parameter_status(name) or "").encode() + b"\0")
                for name in _PARAMETERS
            )
        self._listener = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.dsn = psycopg.conninfo.make_conninfo(
            dsn, host="127.0.0.1", port=self._listener.sockets[0].getsockname()[1], sslmode="disable"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def processes(self) -> int:
        """Processes of the server that were opened."""
        return len(self._all)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _close(self) -> None:
        self._listener.close()
        for task in list(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await asyncio.gather(*self._opening, return_exceptions=True)
        for server in self._all:
            server.writer.close()
            with contextlib.suppress(OSError):
                await server.writer.wait_closed()
            server.connection.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                if await _started(reader, writer):
                    number = secrets.randbits(31).to_bytes(4, "big")  # its own, as the key is
                    greeting = (
                        _message(b"R", struct.pack(">i", 0)) + self._greeting + _message(b"K", number + b"\0" * 4)
                    )
                    writer.write(greeting + _message(b"Z", b"I"))
                    await self._serve(reader, writer)
        finally:
            self._clients.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server: _Server | None = None
        answers: asyncio.Task[None] | None = None
        try:
            while (message := await _read(reader))[:1] != b"X":
                if server is None or (answers is not None and answers.done()):
                    if server is None or self._mode == "transaction":
                        server = await self._take()
                        self.shared += server.client not in {None, writer}
                        server.client = writer
                    answers = self._loop.create_task(self._answers(server, writer))
                server.waits += message[0] in _ANSWERED
                server.writer.write(message)
        finally:
            if answers is not None and not answers.done():
                answers.cancel()  # it is in the middle of something
                assert server is not None
                server.writer.close()
            elif server is not None and self._mode == "session":
                server.client = None
                await self._free(server)
            for each in self._all:
                each.client = None if each.client is writer else each.client

    async def _answers(self, server: _Server, writer: asyncio.StreamWriter) -> None:
        """Pass answers on until the server is idle, outside of a transaction."""
        while True:
            message = await _read(server.reader)
            is_ready = message[:1] == b"Z"
            server.waits -= is_ready
            is_idle = is_ready and not server.waits and message[5:6] == b"I"
            if is_idle and self._mode == "transaction":
                await self._free(server)
            writer.write(message)
            if is_idle:
                return

    async def _take(self) -> _Server:
        async with self._freed:
            while not self._idle and len(self._all) >= self._size:
                await self._freed.wait()
            if self._idle:
                return self._idle.popleft() if self._is_round_robin else self._idle.pop()
            opening = self._loop.create_task(self._open())
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
            return await asyncio.shield(opening)  # a client that is ended meanwhile leaves no open session

    async def _open(self) -> _Server:
        connection = await self._loop.run_in_executor(None, psycopg.connect, self._dsn)
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=os.dup(connection.fileno())))
        self._all.append(_Server(connection, reader, writer))
        return self._all[-1]

    async def _free(self, server: _Server) -> None:
        async with self._freed:
            self._idle.append(server)
            self._freed.notify()


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


async def _read(reader: asyncio.StreamReader) -> bytes:
    """A message, whole."""
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack(">i", head[1:])[0] - 4)


async def _started(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether a client begins a session; it is asked for no password."""
    while True:
        size = struct.unpack(">i", await reader.readexactly(4))[0]
        body = await reader.readexactly(size - 4)
        code = struct.unpack(">i", body[:4])[0]
        if code in {_SSL_REQUEST, _GSS_REQUEST}:
            writer.write(b"N")
        else:
            return code != _CANCEL_REQUEST
