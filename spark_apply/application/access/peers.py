"""Peers of loopback connections: PySpark's two Python servers serve only processes of the same user.

Both servers ask a caller for a secret, but they serve it before that. The worker daemon forks for each connection, and
its child waits for the secret forever. The accumulator server is single-threaded and waits forever, too. Meanwhile the
driver's JVM, which reports every finished task to it, waits in the only thread that schedules tasks. So another user of
the machine could fill it with processes, or stop all tasks with one silent connection. This module asks the kernel for
the owner of a connection before a server does anything for it.

Both servers listen on 127.0.0.1. Their callers are the executor's and the driver's JVM on the same machine, of the same
user.
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

# The TCP connections of this process's network namespace, each with the user of its process. Not below /proc/net: a
# service with `ProcSubset=pid` has no such link. The second file is absent on a machine without IPv6. Java connects to
# an IPv4 address with an IPv6 socket, so a caller can be in either.
_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
# Only an open connection counts: one that its process has closed is shown as root's.
_ESTABLISHED = "01"
# The kernel copies a table in parts: when a neighbouring connection closes meanwhile, a row can be skipped. Two misses
# are no accident.
_LOOKS = 2
_MAPPED = bytes(10) + b"\xff\xff"  # prefix of an IPv4 address in an IPv6 socket (RFC 4291)
_WORD_BYTES = 4  # the tables show addresses as numbers of 32 bits, in the machine's byte order

log = logging.getLogger("headrace.spark")


def is_own_peer(connection: socket.socket) -> bool:
    """Return whether a process of the same user on this machine has the other end of a TCP connection.

    A connection that is closed already has no owner. Where the system does not show its connections (it is not Linux,
    or forbids it, or its tables lack even our end), every connection counts as ours. The server's secret still protects
    its work, as it does without this check, and refusing all callers would stop the topology.

    Args:
        connection: result of `accept`.
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
    except OSError:  # the connection is closed, or the system is out of file descriptors: a caller tries again
        return False


def _user(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """Return the user whose process has the connection; None: there is no such open connection.

    Args:
        local: address and port of that process.
        remote: address and port of the process that it is connected to.

    Raises:
        OSError: the tables cannot be read.
    """
    rows = _rows()
    for ends in _ends(local, remote):
        _, found, rest = rows.partition(f"{ends}{_ESTABLISHED} ")
        if found:
            # The rest of the row: two queues, a timer, retransmissions, the user.
            return int(rest.split(maxsplit=4)[3])
    return None


@functools.cache  # one log line per user, however many connections it opens
def _tell_refused(user: int) -> None:
    log.warning("connections of user %d are refused", user)


def _is_shown(local: tuple[str, int], remote: tuple[str, int]) -> bool:
    """Return whether the tables have a connection, in any state."""
    rows = _rows()
    return any(ends in rows for ends in _ends(local, remote))


def _rows() -> str:
    first, second = _TABLES
    return first.read_text() + (second.read_text() if second.exists() else "")


def _ends(local: tuple[str, int], remote: tuple[str, int]) -> tuple[str, ...]:
    """Return both ends of a connection, as a row of either table begins with them."""
    return tuple(
        f" {_shown(local, is_mapped=is_mapped)} {_shown(remote, is_mapped=is_mapped)} " for is_mapped in (False, True)
    )


def _shown(address: tuple[str, int], *, is_mapped: bool) -> str:
    """Return an address and its port as the kernel's tables show them."""
    host, port = address[:2]
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    if is_mapped and len(packed) == _WORD_BYTES:
        packed = _MAPPED + packed
    words = (packed[at : at + _WORD_BYTES] for at in range(0, len(packed), _WORD_BYTES))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"


class _OwnPeersSocket(socket.socket):
    """A listening socket that returns only connections of the same user."""

    def accept(self) -> tuple[socket.socket, object]:
        """Accept a connection.

        Raises:
            InterruptedError: the connection was another user's and is closed. PySpark's daemon then continues.
        """
        connection, address = super().accept()
        if is_own_peer(connection):
            return connection, address
        connection.close()
        raise InterruptedError(errno.EINTR, "another user's connection")


def guard_worker_daemon() -> None:
    """Make PySpark's worker daemon fork only for connections of the same user; call before its `manager`."""
    import pyspark.daemon

    # `socket` is the only name that it uses of the module.
    pyspark.daemon.socket = types.SimpleNamespace(socket=_OwnPeersSocket)
    _warn_without_tables()


def guard_accumulator_server() -> None:
    """Make PySpark's accumulator server serve only the same user's connections; call before creating a SparkContext."""
    from pyspark import accumulators

    class Server(accumulators.AccumulatorServer):  # type: ignore[misc] # pyspark is untyped here
        """PySpark's server, for the same user only."""

        # It accepts nothing while it serves the driver's JVM. socketserver's backlog of 5 would then be full of others'
        # connections, and the JVM could not connect again.
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
