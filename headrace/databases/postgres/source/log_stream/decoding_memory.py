"""How many bytes of transactions in flight the session that reads a source's log may hold.

The server collects every transaction until its commit. What exceeds `logical_decoding_work_mem` (64 MB unless the
server's settings differ) is spilled to its disk and read back at the commit. A transaction of 500,000 rows took 119 MB;
held in memory it passed in 2.38 s instead of 3.29 s, with 1.49 s of the server's processor time instead of 2.65 s. The
memory is used only while such transactions run.

Every role may set the parameter for its own session: this needs no right, and a REVOKE cannot prevent it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.databases.ports import Finding
from headrace.databases.postgres.connection import translated

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

__all__ = ["DEFAULT_BYTES_MAX", "default_kb", "memory_findings", "set_decoding_memory"]

# Two million rows like the measured ones. More is the operator's choice: the server's owner was not asked.
DEFAULT_BYTES_MAX = 512 << 20


def default_kb(server_kb: int, shared_buffers_kb: int) -> int:
    """Return the memory to use where the topology file sets none.

    It is never below the server's own setting. `shared_buffers` is what the server's operator chose: by PostgreSQL's
    advice a quarter of the machine's memory, so the same amount again is available.

    Args:
        server_kb: `logical_decoding_work_mem` of the server, in kB.
        shared_buffers_kb: of the server, in kB.
    """
    return max(server_kb, min(shared_buffers_kb, DEFAULT_BYTES_MAX >> 10))


def memory_findings(connection: psycopg.Connection[Any], size: int, path: str) -> Iterator[Finding]:
    """Warn of more memory than the server's own settings suggest it can spare.

    Args:
        connection: to the source.
        size: bytes from the topology file; 0: not set.
        path: of the site in the topology.
    """
    shared_buffers = _settings_kb(connection)[1] << 10
    if size > shared_buffers:
        yield Finding(
            path=f"{path}.database.decoding_memory",
            is_error=False,
            problem=f"{size >> 20} MB is more than shared_buffers ({shared_buffers >> 20} MB): the log writer's session"
            " at the server may take it while large transactions are read",
            fix="no action needed where the server has the memory; else write a smaller size, or leave it out",
        )


def set_decoding_memory(connection: psycopg.Connection[Any], size: int) -> None:
    """Set the memory for a session that is about to stream.

    Args:
        connection: to the source, of kind `replication=database`; only the simple query protocol works there.
        size: bytes; 0: the default.

    Raises:
        DatabaseError: the server refused it.
    """
    with translated("setting the memory for decoding"):
        wanted = size >> 10 if size else default_kb(*_settings_kb(connection))
        connection.execute(f"SET logical_decoding_work_mem = {wanted}")


def _settings_kb(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    """Return the session's `logical_decoding_work_mem`, and the server's `shared_buffers`."""
    row = connection.execute(
        "SELECT pg_size_bytes(current_setting('logical_decoding_work_mem')) / 1024,"
        " pg_size_bytes(current_setting('shared_buffers')) / 1024"
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])
