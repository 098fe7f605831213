"""A TCP proxy that breaks networks: cut, stall, swallow, delay. It runs on its own thread and counts what it broke."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from headrace.base.errors import HeadraceError

__all__ = ["Proxy"]

_CHUNK_BYTES = 1 << 16
_DELAYED_CHUNKS_MAX = 1024  # in flight in one direction: 64 MiB


class _Connection:
    """One connection through the proxy: two pipes."""

    def __init__(self, proxy: Proxy, tasks: list[asyncio.Task[None]], writers: list[asyncio.StreamWriter]) -> None:
        self.proxy, self.tasks, self.writers = proxy, tasks, writers
        self.is_swallowed = False

    def abort(self) -> None:
        """Reset both ends, like a dying process."""
        for writer in self.writers:
            writer.transport.abort()


class Proxy:
    """Forwards connections to a target until a fault is switched on. A context manager.

    Args:
        target: "host:port", or a callable that returns it for each new connection (a restarted server has another
            port).
    """

    def __init__(self, target: str | Callable[[], str]) -> None:
        self._target = target if callable(target) else lambda: target
        self._connections: set[_Connection] = set()
        self._is_cut = self._is_swallowing = False
        self._flows = threading.Event()
        self._flows.set()
        self.delay_s = 0.0
        self.accepted = 0  # connections so far
        self.refused = 0  # connections since the cut
        self.forwarded_bytes = self.swallowed_bytes = self.delayed_bytes = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    def cut(self) -> None:
        """Reset every connection and refuse new ones until `heal`."""
        self._is_cut = True
        self.reset()

    def reset(self) -> None:
        """Reset every connection; new ones are accepted."""
        self._run(self._abort_all())

    def swallow(self) -> None:
        """Make connections half-open, new ones too: they stay open, and all data is lost for good."""
        self._is_swallowing = True
        for connection in list(self._connections):
            connection.is_swallowed = True

    def stall(self) -> None:
        """Hold everything back until `heal`, then deliver it."""
        self._flows.clear()

    def heal(self) -> None:
        """Forward again; swallowed connections stay dead, new ones work."""
        self._is_cut = self._is_swallowing = False
        self._flows.set()

    def close(self) -> None:
        """Reset all connections and stop the proxy; idempotent."""
        if self._loop.is_closed():
            return
        self._flows.set()
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - whatever the work answers
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _refuses(self) -> bool:
        return self._is_cut

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses():
            self.refused += 1
            writer.transport.abort()
            return
        self.accepted += 1
        try:
            # The target callable may be slow, and must not block the other connections.
            host, _, port = (await self._loop.run_in_executor(None, self._target)).rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except (OSError, HeadraceError):
            writer.transport.abort()
            return
        connection = _Connection(self, [], [writer, far_writer])
        if self._refuses():  # meanwhile
            connection.abort()
            return
        connection.is_swallowed = self._is_swallowing
        connection.tasks += [
            self._loop.create_task(self._pump(connection, reader, far_writer)),
            self._loop.create_task(self._pump(connection, far_reader, writer)),
        ]
        self._connections.add(connection)

    async def _pump(self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_DELAYED_CHUNKS_MAX)
        deliver = self._loop.create_task(self._deliver(connection, waiting, writer))
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await reader.read(_CHUNK_BYTES):
                self.delayed_bytes += len(data) if self.delay_s else 0
                await waiting.put((time.monotonic() + self.delay_s, data))
        with contextlib.suppress(asyncio.CancelledError):
            await waiting.put((time.monotonic() + self.delay_s, b""))
            await deliver
        if not connection.is_swallowed:
            connection.abort()
            self._connections.discard(connection)

    async def _deliver(
        self, connection: _Connection, waiting: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                while not self._flows.is_set():
                    await asyncio.sleep(0.01)
                if not data:
                    break
                if connection.is_swallowed:
                    self.swallowed_bytes += len(data)
                else:
                    self.forwarded_bytes += len(data)
                    writer.write(data)
                    await writer.drain()

    async def _abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()
            for task in connection.tasks:
                task.cancel()
            self._connections.discard(connection)

    async def _close(self) -> None:
        self._server.close()
        await self._abort_all()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
