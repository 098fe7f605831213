"""The error queue's tables: written in an apply server's transaction, listed and deleted from any session."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
from psycopg.rows import dict_row

from headrace.databases.ports import ErrorEdit, ErrorTransaction, TakenErrors, deleted_with
from headrace.databases.ports.error_queue import EDITS_AGE_MAX_S, EDITS_KEPT_MAX
from headrace.databases.postgres.connection import storable
from headrace.databases.postgres.destination.records.ddl_history import record_ddl
from headrace.databases.postgres.destination.records.schema import schema_version

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.databases.ports import DdlIn

__all__ = [
    "delete_errors",
    "edit_error",
    "list_edits",
    "list_errors",
    "note_failure",
    "put_error",
    "read_batches",
    "read_key_hashes",
    "take_errors",
]

EDITS_FROM = 9  # first schema version with edits; an older one has none until `up` upgrades it

_COLUMNS = (
    "topology, apply, source, transaction_id, commit_scn, commit_time, row_count, failed_position, depends_on,"
    " conflict_type, sqlstate, message, readable"
)
# Microseconds as an interval are exact; to_timestamp's double is not.
_VALUES = (
    "%(topology)s, %(apply)s, %(source)s, %(transaction_id)s, %(commit_scn)s,"
    " 'epoch'::timestamptz + %(commit_time_us)s * interval '1 microsecond', %(row_count)s, %(failed_position)s,"
    " %(depends_on)s, %(conflict_type)s, %(sqlstate)s, %(message)s, %(readable)s::text[]"
)
_LIST = """
SELECT number, apply, source, transaction_id, commit_scn, row_count, failed_position, depends_on, conflict_type,
       sqlstate, message, readable,
       (extract(epoch FROM commit_time) * 1000000)::bigint AS commit_time_us,
       (extract(epoch FROM created_at) * 1000000)::bigint AS created_us, {edits} AS edits
FROM headrace.apply_error e
WHERE topology = %s AND (%s::text IS NULL OR apply = %s) {only} ORDER BY number LIMIT %s
"""
_EDITS = "(SELECT count(*) FROM headrace.apply_error_edit d WHERE d.number = e.number)"
_LIST_EDITS = """
SELECT number, edit, apply, "position", owner, name, command, changes, edited_by, outcome,
       (extract(epoch FROM edited_at) * 1000000)::bigint AS edited_us
FROM headrace.apply_error_edit WHERE topology = %s AND (%s::bigint IS NULL OR number = %s) ORDER BY edited_at, number, edit
"""
_PUT_EDIT = """
INSERT INTO headrace.apply_error_edit (number, edit, topology, apply, "position", owner, name, command, changes, edited_by)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s::text[], %s)
"""
_FORGET_EDITS = """
DELETE FROM headrace.apply_error_edit WHERE outcome <> '' AND (
    edited_at < clock_timestamp() - make_interval(secs => %s)
    OR edited_at < (SELECT edited_at FROM headrace.apply_error_edit WHERE outcome <> '' ORDER BY edited_at DESC OFFSET %s LIMIT 1))
"""
_NOTE_FAILURE = """
UPDATE headrace.apply_error SET depends_on = 0, failed_position = %s, conflict_type = %s, sqlstate = %s, message = %s,
       readable = %s::text[]
WHERE topology = %s AND number = %s
"""
# Only the last part of a large transaction has its commit SCN and time; earlier parts have the order SCN instead.
_ADD_PART = """
UPDATE headrace.apply_error
SET row_count = row_count + %s, commit_scn = greatest(commit_scn, %s),
    commit_time = greatest(commit_time, 'epoch'::timestamptz + %s * interval '1 microsecond')
WHERE number = %s
"""


# Without decoding them all: these are in every record of DDL, and hardly ever in rows.
_MAY_BE_DDL = """
SELECT number, part FROM headrace.apply_error_part WHERE number = ANY (%s::bigint[])
  AND (pg_catalog."position"(batch, '"is_known"'::bytea) > 0 OR pg_catalog."position"(batch, '"not_made"'::bytea) > 0)
ORDER BY number, part
"""
# The server knows the length of a TOASTed value without reading it. The lock blocks edits until the transaction ends.
_LOCK = """
SELECT number, (SELECT coalesce(sum(octet_length(p.batch)), 0) FROM headrace.apply_error_part p WHERE p.number = e.number)::bigint
FROM headrace.apply_error e WHERE topology = %s AND number = ANY (%s::bigint[]) ORDER BY number FOR UPDATE OF e
"""


def put_error(
    connection: psycopg.Connection[Any],
    topology: str,
    transaction: ErrorTransaction,
    batch: bytes,
    key_hashes: NDArray[np.uint64],
    *,
    part: int,
    readable: Sequence[str],
) -> int:
    """Store one part of an error transaction; return its number.

    Part 0 under an existing number replaces all parts of that transaction.
    """
    number = transaction.number
    if number == 0 or part == 0:
        number = _put_row(connection, topology, transaction, [storable(connection, text) for text in readable])
    else:
        connection.execute(
            _ADD_PART,
            (
                transaction.row_count,
                transaction.commit_scn,
                transaction.commit_time_us,
                number,
            ),
        )
    hashes = np.ascontiguousarray(key_hashes, "<u8").tobytes()
    connection.execute("INSERT INTO headrace.apply_error_part VALUES (%b, %b, %b)", (number, part, batch))
    connection.execute("INSERT INTO headrace.apply_error_key VALUES (%b, %b, %b)", (number, part, hashes))
    return number


def _put_row(
    connection: psycopg.Connection[Any], topology: str, transaction: ErrorTransaction, readable: list[str]
) -> int:
    fields = (
        "apply",
        "source",
        "transaction_id",
        "commit_scn",
        "commit_time_us",
        "row_count",
        "failed_position",
        "depends_on",
        "conflict_type",
        "sqlstate",
        "number",
    )
    values = {
        **{name: getattr(transaction, name) for name in fields},
        "topology": topology,
        "message": storable(connection, transaction.message),
        "readable": readable,
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


def delete_errors(
    connection: psycopg.Connection[Any],
    topology: str,
    numbers: Collection[int],
    *,
    outcome: str,
    ddl_in: DdlIn | None = None,
) -> frozenset[int]:
    """Delete error transactions and their parts, inside the caller's transaction.

    Args:
        connection: connection to the destination, in a transaction.
        topology: name of the topology. Error transactions of other topologies are not touched.
        numbers: numbers of the error transactions.
        outcome: EXECUTED or DELETED, for the record of their edits.
        ddl_in: finds DDL LCRs, to record them as skipped; None: they need no record.

    Returns:
        The numbers of the deleted error transactions.
    """
    applies: dict[int, str] = dict(
        connection.execute(
            "DELETE FROM headrace.apply_error WHERE topology = %s AND number = ANY (%s::bigint[]) RETURNING number, apply",
            (topology, list(numbers)),
        ).fetchall()
    )
    there = list(applies)
    if there and ddl_in is not None:
        _record_skipped(connection, topology, applies, ddl_in)
    if there:
        for table in ("apply_error_part", "apply_error_key", "apply_error_original"):
            connection.execute(f"DELETE FROM headrace.{table} WHERE number = ANY (%s::bigint[])".encode(), (there,))
        connection.execute(
            "UPDATE headrace.apply_error_edit SET outcome = %s WHERE number = ANY (%s::bigint[])", (outcome, there)
        )
    return frozenset(there)


def _record_skipped(
    connection: psycopg.Connection[Any], topology: str, applies: Mapping[int, str], ddl_in: DdlIn
) -> None:
    """Record the DDL LCRs of error transactions that are being deleted.

    Args:
        connection: connection in the transaction that deletes them.
        topology: name of the topology.
        applies: number -> apply process.
        ddl_in: finds them.
    """
    for number, part in connection.execute(_MAY_BE_DDL, (list(applies),)).fetchall():
        row = connection.execute(
            "SELECT batch FROM headrace.apply_error_part WHERE number = %s AND part = %s", (number, part), binary=True
        ).fetchone()
        if row is not None and (found := ddl_in(bytes(row[0]))) is not None:
            record_ddl(connection, topology, applies[number], *found, deleted_with(number))


def take_errors(
    connection: psycopg.Connection[Any], topology: str, numbers: Sequence[int], *, bytes_max: int
) -> TakenErrors:
    """Take error transactions out of the queue, up to `bytes_max`, in the caller's transaction."""
    sizes: dict[int, int] = dict(connection.execute(_LOCK, (topology, list(numbers))).fetchall())
    total = count = 0
    for number in numbers:
        total += sizes.get(number, 0)
        if total > bytes_max:
            break
        count += 1
    taken = [number for number in numbers[:count] if number in sizes]
    if not taken:
        return TakenErrors(count=count, batches={})
    # A separate statement after the lock sees an edit that committed while the lock was pending.
    rows = connection.execute(
        "SELECT number, batch FROM headrace.apply_error_part WHERE number = ANY (%s::bigint[]) ORDER BY number, part",
        (taken,),
        binary=True,
    ).fetchall()
    batches: dict[int, tuple[bytes, ...]] = dict.fromkeys(taken, ())
    for number, batch in rows:
        batches[number] += (bytes(batch),)
    delete_errors(connection, topology, taken, outcome="EXECUTED")
    return TakenErrors(count=count, batches=batches)


def edit_error(
    connection: psycopg.Connection[Any],
    topology: str,
    edit: ErrorEdit,
    *,
    part: int,
    batch: bytes,
    key_hashes: NDArray[np.uint64],
) -> bool:
    """Replace one part of an error transaction, in the caller's transaction.

    The row lock blocks an execution of the error transaction meanwhile.
    """
    found = connection.execute(
        "SELECT FROM headrace.apply_error WHERE topology = %s AND number = %s FOR UPDATE", (topology, edit.number)
    ).fetchone()
    # A separate statement after the lock sees an edit that committed while the lock was pending.
    made = connection.execute(
        "SELECT count(*) FROM headrace.apply_error_edit WHERE number = %s", (edit.number,)
    ).fetchone()
    if found is None or made is None or edit.edit != made[0] + 1:
        return False
    connection.execute(
        "INSERT INTO headrace.apply_error_original SELECT number, part, batch FROM headrace.apply_error_part"
        " WHERE number = %s AND part = %s ON CONFLICT DO NOTHING",
        (edit.number, part),
    )
    hashes = np.ascontiguousarray(key_hashes, "<u8").tobytes()
    connection.execute(
        "UPDATE headrace.apply_error_part SET batch = %b WHERE number = %s AND part = %s", (batch, edit.number, part)
    )
    connection.execute(
        "UPDATE headrace.apply_error_key SET hashes = hashes || %b WHERE number = %s AND part = %s",
        (hashes, edit.number, part),
    )
    connection.execute(
        _PUT_EDIT,
        (
            edit.number,
            edit.edit,
            topology,
            edit.apply,
            edit.position,
            edit.owner,
            edit.name,
            edit.command,
            [storable(connection, text) for text in edit.changes],
            storable(connection, edit.edited_by),
        ),
    )
    connection.execute(_FORGET_EDITS, (EDITS_AGE_MAX_S, EDITS_KEPT_MAX))
    return True


def list_edits(connection: psycopg.Connection[Any], topology: str, number: int | None) -> tuple[ErrorEdit, ...]:
    """List the edits of one error transaction, or of all."""
    if schema_version(connection) < EDITS_FROM:
        return ()
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_LIST_EDITS, (topology, number, number)).fetchall()
    return tuple(ErrorEdit(**{**row, "changes": tuple(row["changes"])}) for row in rows)


def note_failure(connection: psycopg.Connection[Any], topology: str, found: ErrorTransaction) -> None:
    """Record why an error transaction failed again."""
    connection.execute(
        _NOTE_FAILURE,
        (
            found.failed_position,
            found.conflict_type,
            found.sqlstate,
            storable(connection, found.message),
            [storable(connection, text) for text in found.readable],
            topology,
            found.number,
        ),
    )


def list_errors(
    connection: psycopg.Connection[Any],
    topology: str,
    apply: str | None,
    *,
    number: int | None,
    first: int | None,
) -> tuple[ErrorTransaction, ...]:
    """List the error queue in order."""
    version = schema_version(connection)
    if not version:
        return ()
    statement = _LIST.format(
        edits=_EDITS if version >= EDITS_FROM else "0", only="" if number is None else "AND number = %s"
    )
    only = () if number is None else (number,)
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(statement.encode(), (topology, apply, apply, *only, first)).fetchall()
    return tuple(ErrorTransaction(**{**row, "readable": tuple(row["readable"])}) for row in rows)


def read_batches(connection: psycopg.Connection[Any], number: int, *, original: bool = False) -> Iterator[bytes]:
    """Yield the parts of an error transaction; only one is in memory at a time."""
    batch, join = "batch", ""
    if original and schema_version(connection) >= EDITS_FROM:
        batch, join = "coalesce(o.batch, p.batch)", " LEFT JOIN headrace.apply_error_original o USING (number, part)"
    query = f"SELECT part, {batch} FROM headrace.apply_error_part p{join} WHERE number = %s AND part > %s ORDER BY part LIMIT 1".encode()
    part = -1
    while True:
        row = connection.execute(query, (number, part), binary=True).fetchone()
        if row is None:
            return
        part = row[0]
        yield bytes(row[1])


def read_key_hashes(
    connection: psycopg.Connection[Any], topology: str, apply: str
) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Yield the number and key hashes of each error transaction; the hashes of all its parts form one array."""
    rows = connection.execute(
        "SELECT number, pg_catalog.string_agg(k.hashes, ''::bytea ORDER BY k.part) FROM headrace.apply_error"
        " JOIN headrace.apply_error_key k USING (number) WHERE topology = %s AND apply = %s"
        " GROUP BY number ORDER BY number",
        (topology, apply),
        binary=True,
    ).fetchall()
    for number, hashes in rows:
        yield number, np.frombuffer(hashes, "<u8").astype(np.uint64)
