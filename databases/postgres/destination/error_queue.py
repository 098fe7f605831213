"""The error queue's tables: written inside an apply server's transaction, listed and deleted from anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
from psycopg.rows import dict_row

from databases.ports import ErrorTransaction

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["delete_error", "list_errors", "put_error", "read_batches", "read_key_hashes"]

_COLUMNS = (
    "topology, apply, source, transaction_id, commit_scn, commit_time, row_count, failed_position, depends_on,"
    " conflict_type, sqlstate, message, readable"
)
# Microseconds as an interval: exact, which to_timestamp's double is not.
_VALUES = (
    "%(topology)s, %(apply)s, %(source)s, %(transaction_id)s, %(commit_scn)s,"
    " 'epoch'::timestamptz + %(commit_time_us)s * interval '1 microsecond', %(row_count)s, %(failed_position)s,"
    " %(depends_on)s, %(conflict_type)s, %(sqlstate)s, %(message)s, %(readable)s::text[]"
)
_LIST = """
SELECT number, apply, source, transaction_id, commit_scn, row_count, failed_position, depends_on, conflict_type,
       sqlstate, message, readable,
       (extract(epoch FROM commit_time) * 1000000)::bigint AS commit_time_us,
       (extract(epoch FROM created_at) * 1000000)::bigint AS created_us
FROM headrace.apply_error
WHERE topology = %s AND (%s::text IS NULL OR apply = %s) ORDER BY number
"""
# Only the last part of a large transaction knows where and when it committed; before, its order SCN stands there.
_ADD_PART = """
UPDATE headrace.apply_error
SET row_count = row_count + %s, commit_scn = greatest(commit_scn, %s),
    commit_time = greatest(commit_time, 'epoch'::timestamptz + %s * interval '1 microsecond')
WHERE number = %s
"""


def put_error(
    connection: psycopg.Connection[Any], topology: str, transaction: ErrorTransaction, batch: bytes,
    key_hashes: NDArray[np.uint64], *, part: int, readable: Sequence[str],
) -> int:
    """See `DestinationSession.put_error`; part 0 under an existing number replaces all its parts."""
    number = transaction.number
    if number == 0 or part == 0:
        number = _put_row(connection, topology, transaction, [text.replace("\0", "") for text in readable])
    else:
        connection.execute(_ADD_PART, (
            transaction.row_count, transaction.commit_scn, transaction.commit_time_us, number,
        ))
    hashes = np.ascontiguousarray(key_hashes, "<u8").tobytes()
    connection.execute("INSERT INTO headrace.apply_error_part VALUES (%b, %b, %b)", (number, part, batch))
    connection.execute("INSERT INTO headrace.apply_error_key VALUES (%b, %b, %b)", (number, part, hashes))
    return number


def _put_row(
    connection: psycopg.Connection[Any], topology: str, transaction: ErrorTransaction, readable: list[str]
) -> int:
    fields = (
        "apply", "source", "transaction_id", "commit_scn", "commit_time_us", "row_count", "failed_position",
        "depends_on", "conflict_type", "sqlstate", "number",
    )
    values = {
        **{name: getattr(transaction, name) for name in fields}, "topology": topology,
        "message": transaction.message.replace("\0", ""), "readable": readable,
    }
    if transaction.number == 0:
        row = connection.execute(
            f"INSERT INTO headrace.apply_error ({_COLUMNS}) VALUES ({_VALUES}) RETURNING number".encode(), values
        ).fetchone()
        assert row is not None
        return int(row[0])
    for table in ("apply_error_part", "apply_error_key"):
        connection.execute(f"DELETE FROM headrace.{table} WHERE number = %(number)s".encode(), values)
    connection.execute(
        f"UPDATE headrace.apply_error SET ({_COLUMNS}) = ROW({_VALUES}) WHERE number = %(number)s".encode(), values
    )
    return transaction.number


def delete_error(connection: psycopg.Connection[Any], topology: str, number: int) -> bool:
    """Delete an error transaction and its parts, inside the caller's transaction; False when it is not there.

    Args:
        connection: to the destination, in a transaction.
        topology: whose error queue; an error transaction of another topology counts as not there.
        number: of the error transaction.
    """
    deleted = connection.execute(
        "DELETE FROM headrace.apply_error WHERE topology = %s AND number = %s", (topology, number)
    ).rowcount
    if deleted == 0:
        return False
    for table in ("apply_error_part", "apply_error_key"):
        connection.execute(f"DELETE FROM headrace.{table} WHERE number = %s".encode(), (number,))
    return True


def list_errors(connection: psycopg.Connection[Any], topology: str, apply: str | None) -> tuple[ErrorTransaction, ...]:
    """See `DestinationDatabase.errors`."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_LIST, (topology, apply, apply)).fetchall()
    return tuple(ErrorTransaction(**{**row, "readable": tuple(row["readable"])}) for row in rows)


def read_batches(connection: psycopg.Connection[Any], number: int) -> Iterator[bytes]:
    """See `DestinationDatabase.error_batches`; one part in memory at a time."""
    part = -1
    while True:
        row = connection.execute(
            "SELECT part, batch FROM headrace.apply_error_part WHERE number = %s AND part > %s ORDER BY part LIMIT 1",
            (number, part), binary=True,
        ).fetchone()
        if row is None:
            return
        part = row[0]
        yield bytes(row[1])


def read_key_hashes(
    connection: psycopg.Connection[Any], topology: str, apply: str
) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """See `DestinationDatabase.error_key_hashes`; the parts of one transaction come as one array."""
    rows = connection.execute(
        "SELECT number, pg_catalog.string_agg(k.hashes, ''::bytea ORDER BY k.part) FROM headrace.apply_error"
        " JOIN headrace.apply_error_key k USING (number) WHERE topology = %s AND apply = %s"
        " GROUP BY number ORDER BY number", (topology, apply), binary=True,
    ).fetchall()
    for number, hashes in rows:
        yield number, np.frombuffer(hashes, "<u8").astype(np.uint64)
