"""Which session may apply: advisory locks, epochs and replication origins, and how dead sessions are ended."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any

import psycopg

from streams.errors import ConfigError, DatabaseUnavailable

__all__ = ["SessionIdentity", "apply_lock_key", "end_lock_holders", "origin_name", "take_origin", "take_server_lock"]

# PostgreSQL 18 refuses longer names of replication origins.
_ORIGIN_NAME_BYTES_MAX = 512
# A dead client's backend is ended at once, but a large transaction's locks and a slow disk take their time.
_PREDECESSOR_WAIT_S = 60.0
_PREDECESSOR_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionIdentity:
    """Which apply server of which incarnation a session is.

    Args:
        topology: name of the topology.
        apply: name of the apply process.
        server: number of the apply server; sessions of other kinds take numbers no apply server has.
        epoch: of the incarnation.
        tag: what the session's changes are tagged with.
    """

    topology: str
    apply: str
    server: int
    epoch: int
    tag: bytes

    @property
    def application_name(self) -> str:
        """What the session calls itself in pg_stat_activity."""
        return f"headrace {self.topology}/{self.apply}/{self.server}"

    @property
    def origin(self) -> str:
        """See `origin_name`."""
        return origin_name(self.topology, self.apply, self.server, self.tag)


def origin_name(topology: str, apply: str, server: int, tag: bytes) -> str:
    """Name of the replication origin that marks an apply server's changes in the log.

    Raises:
        ConfigError: it would be longer than PostgreSQL allows.
    """
    name = f"headrace:{topology}/{apply}/{server}:{tag.hex()}"
    length = len(name.encode())
    if length > _ORIGIN_NAME_BYTES_MAX:
        raise ConfigError(
            f"the replication origin of apply process {apply} would have a name of {length} bytes,"
            f" PostgreSQL allows {_ORIGIN_NAME_BYTES_MAX}", hint="use a shorter tag or shorter names",
        )
    return name


def apply_lock_key(topology: str, apply: str, server: int | None = None) -> int:
    """Number of the advisory lock of an apply process, or of one of its servers: a signed 64-bit hash."""
    text = f"headrace:{topology}/{apply}" + ("" if server is None else f"/{server}")
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def end_lock_holders(connection: psycopg.Connection[Any], key: int) -> int:
    """End every other session that holds the advisory lock `key`; how many there were."""
    high, low = (key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF
    return len(connection.execute(
        "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_locks"
        " WHERE locktype = 'advisory' AND granted AND classid = %s::oid AND objid = %s::oid AND objsubid = 1"
        " AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())"
        " AND pid <> pg_catalog.pg_backend_pid()", (high, low),
    ).fetchall())


def take_exclusive_lock(connection: psycopg.Connection[Any], key: int, what: str) -> None:
    """Take an advisory lock, ending whoever holds it.

    Args:
        connection: in autocommit mode; keeps the lock until it ends or unlocks.
        key: of the lock.
        what: whose sessions hold it, for messages.

    Raises:
        DatabaseUnavailable: they do not end.
    """
    deadline = time.monotonic() + _PREDECESSOR_WAIT_S
    while True:
        found = connection.execute("SELECT pg_catalog.pg_try_advisory_lock(%s)", (key,)).fetchone()
        if found is not None and found[0]:
            return
        if time.monotonic() > deadline:
            raise DatabaseUnavailable(f"older sessions of {what} do not end", hint="look for them in pg_stat_activity")
        end_lock_holders(connection, key)
        time.sleep(_PREDECESSOR_POLL_S)


def take_server_lock(connection: psycopg.Connection[Any], identity: SessionIdentity) -> None:
    """Become the only session of this apply server; a dead predecessor's session is ended."""
    key = apply_lock_key(identity.topology, identity.apply, identity.server)
    take_exclusive_lock(connection, key, f"apply server {identity.server} of {identity.apply}")


def take_origin(connection: psycopg.Connection[Any], name: str) -> None:
    """Mark everything the session will write with a replication origin, made if it is missing."""
    found = connection.execute("SELECT FROM pg_catalog.pg_replication_origin WHERE roname = %s", (name,)).fetchone()
    if found is None:
        connection.execute("SELECT pg_catalog.pg_replication_origin_create(%s)", (name,))
    deadline = time.monotonic() + _PREDECESSOR_WAIT_S
    while True:
        try:
            connection.execute("SELECT pg_catalog.pg_replication_origin_session_setup(%s)", (name,))
            return
        except psycopg.errors.ObjectInUse:
            # A backend that ends lets go of its locks first and of its origin last.
            if time.monotonic() > deadline:
                raise
            time.sleep(_PREDECESSOR_POLL_S)
