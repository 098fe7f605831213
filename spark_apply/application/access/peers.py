"""Who is at the other end of a loopback connection: PySpark's two Python servers serve processes of our user alone.

Both servers ask a caller for a secret, but they serve it before that. The worker daemon forks for each connection, and
its child waits for the secret for ever. The accumulator server is single-threaded, and it waits for ever, too; meanwhile
the driver's JVM, which reports every finished task to it, waits in the only thread that schedules tasks. So another
user of the machine could fill it with processes, or stop all tasks with one silent connection. Here the kernel says
whose a connection is, before a server does anything for it.

Both servers listen on 127.0.0.1, and their callers are the executor's and the driver's JVM beside them, of our user.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import socket
import sys
import types
from pathlib import Path

__all__ = ["guard_accumulator_server", "guard_worker_daemon", "is_own_peer"]

# The connections of this process's network, each with the user of the process that has it. Not below /proc/net: a
# service with `ProcSubset=pid` has no such link. The second one is absent on a machine without IPv6. Java connects to an
# IPv4 address with an IPv6 socket, so a caller can stand in either.
_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
# Only an open connection counts: one that its process has closed is shown as root's.
_ESTABLISHED = "01"
# The kernel copies a table in parts: where a neighbour closes meanwhile, a row can be skipped. Twice is no chance.
_LOOKS = 2
_MAPPED = bytes(10) + b"\xff\xff"  # what an IPv6 socket has before an IPv4 address (RFC 4291)
_WORD_BYTES = 4  # the tables show addresses as numbers of 32 bits, in the machine's byte order

log = logging.getLogger("headrace.spark")


def is_own_peer(connection: socket.socket) -> bool:
    """Return whether a process of our user has the other end of a TCP connection, on this machine.

    A connection that is closed already is nobody's. Where the system does not show its connections (it is no Linux, or
    forbids it, or its tables lack even our end), every connection counts as ours: the server's secret protects what it
    does, as it does without this, and refusing all would stop the topology.

    Args:
        connection: as `accept` returns it.
    """
    try:
        peer, own = connection.getpeername(), connection.getsockname()
        for _ in range(_LOOKS):
            user = _user(peer, own)
            if user is not None:
                if user != os.geteuid():
                    _tell_refused(user)
                return user == os.geteuid()
        return not _is_shown(own, peer)
    except (FileNotFoundError, PermissionError):
        return True
    except OSError:  # it is closed, or the system has no file descriptor left: a caller tries again
        return False


def _user(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """The user whose process has the connection; None: there is no such open connection.

    Args:
        local: address and port of that process.
        remote: of the process that it is connected to.

    Raises:
        OSError: the tables cannot be read.
    """
    rows = _rows()
    for ends in _ends(local, remote):
        _, found, rest = rows.partition(f"{ends}{_ESTABLISHED} ")
        if found:
            # What follows: two queues, a timer, retransmissions, the user.
            return int(rest.split(maxsplit=4)[3])
    return None


@functools.cache  # a line for each user, however many connections they open
def _tell_refused(user: int) -> None:
    log.warning("connections of user %d are refused", user)


def _is_shown(local: tuple[str, int], remote: tuple[str, int]) -> bool:
    """Whether the tables have a connection, in whatever state."""
    rows = _rows()
    return any(ends in rows for ends in _ends(local, remote))


def _rows() -> str:
    first, second = _TABLES
    return first.read_text() + (second.read_text() if second.exists() else "")


def _ends(local: tuple[str, int], remote: tuple[str, int]) -> tuple[str, ...]:
    """Both ends of a connection as a row of either table begins with them."""
    return tuple(
        f" {_shown(local, is_mapped=is_mapped)} {_shown(remote, is_mapped=is_mapped)} " for is_mapped in (False, True)
    )


def _shown(address: tuple[str, int], *, is_mapped: bool) -> str:
    """An address and its port as the kernel's tables show them."""
    host, port = address[:2]
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    if is_mapped and len(packed) == _WORD_BYTES:
        packed = _MAPPED + packed
    words = (packed[at : at + _WORD_BYTES] for at in range(0, len(packed), _WORD_BYTES))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"


class _OwnPeersSocket(socket.socket):
    """A listening socket that hands out connections of our user alone."""

    def accept(self) -> tuple[socket.socket, object]:
        """Accept a connection.

        Raises:
            InterruptedError: it is another user's, and was closed. PySpark's daemon then goes on.
        """
        connection, address = super().accept()
        if is_own_peer(connection):
            return connection, address
        connection.close()
        raise InterruptedError(errno.EINTR, "another user's connection")


def guard_worker_daemon() -> None:
    """Have PySpark's worker daemon fork for connections of our user alone; before its `manager` is called."""
    import pyspark.daemon

    # All that it takes from the module.
    pyspark.daemon.socket = types.SimpleNamespace(socket=_OwnPeersSocket)
    _warn_without_tables()


def guard_accumulator_server() -> None:
    """Have PySpark's accumulator server serve connections of our user alone; before its SparkContext exists."""
    from pyspark import accumulators

    class Server(accumulators.AccumulatorServer):  # type: ignore[misc] # pyspark is untyped here
        """PySpark's, for our user."""

        # It accepts nothing while it serves the driver's JVM. socketserver's 5 would then be full of others' connections,
        # and the JVM could not connect again.
        request_queue_size = socket.SOMAXCONN

        def verify_request(self, request: socket.socket, client_address: object) -> bool:  # noqa: ARG002 - socketserver's
            return is_own_peer(request)

    accumulators.AccumulatorServer = Server
    _warn_without_tables()


def _warn_without_tables() -> None:
    if not os.access(_TABLES[0], os.R_OK):
        log.warning(
            "%s cannot be read: other users of this machine can open connections to Spark's Python processes, which"
            " wait for their secret",
            _TABLES[0],
        )
