"""TRUNCATE of what travelled together, and of one partition of the source's table.

A partition has one name from the log to the destination: its table's, with the partition beside it. So a TRUNCATE of it
is ordered with the rows of the table, waits behind their errors and passes the same rules. What it means here:

    a partition of that name, of the same table, with the same condition   TRUNCATE of it
    anything else (partitioned in another way, or not at all)              DELETE of the rows the condition describes
    the condition is not known, or cannot be evaluated here                an error transaction
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from headrace.base.errors import COPY_THE_TABLE, DatabaseError, DataError
from headrace.databases.postgres.catalog.partitions import rows_of_partition
from headrace.databases.postgres.connection import qualified
from headrace.databases.postgres.destination.writing.write_errors import NO_RIGHT

if TYPE_CHECKING:
    from headrace.databases.ports import TruncatedTable

__all__ = ["delete_partition", "explain_referred", "explain_undescribed", "same_partition"]

_REFERRED_TO = "0A000"  # of a TRUNCATE: a table that is not truncated with it refers to it
_COPY_IT = (
    f"{COPY_THE_TABLE}. Where others write that table, too, it is not copied: delete the rows at the destination alone"
    " yourself, write what `headrace errors show FILE N` has of other tables, then `headrace errors delete FILE N`"
)


def same_partition(connection: psycopg.Connection[Any], truncated: TruncatedTable) -> str:
    """Find the destination's partition that holds the same rows under the same name.

    Args:
        connection: may be in a transaction.
        truncated: the destination's table, and the source's partition.

    Returns:
        Its relation, quoted and qualified; empty: there is none, or it holds other rows.

    Raises:
        DataError: it is not known which rows the source's partition held.
    """
    table, partition = truncated.table, truncated.partition
    assert partition is not None
    if not partition.rows:
        raise DataError(
            f"TRUNCATE of partition {partition.qualified_name} alone: which rows of its table it held then is not"
            " known: its bounds were changed before the log was read",
            hint=_COPY_IT,
            table=f"{table.owner}.{table.name}",
            command="TRUNCATE",
        )
    if rows_of_partition(connection, (table.owner, table.name), (partition.owner, partition.name)) != partition.rows:
        return ""
    return qualified(partition.owner, partition.name)


def delete_partition(relation: str, truncated: TruncatedTable) -> str:
    """The statement that deletes the rows of a source's partition.

    Args:
        relation: the destination's table, quoted and qualified.
        truncated: which partition.
    """
    assert truncated.partition is not None
    # A condition that is neither true nor false counts as true for a partition, as for any constraint.
    return f"DELETE FROM {relation} WHERE ({truncated.partition.rows}) IS NOT FALSE"


def explain_referred(error: DatabaseError, names: Sequence[str]) -> None:
    """Say of a refused TRUNCATE which table of the destination refers to one of those that travelled, and what to do.

    Args:
        error: caught while tables were truncated.
        names: the tables, as `owner.name`.

    Raises:
        DataError: another table refers to one of them.
    """
    if error.context.get("sqlstate") != _REFERRED_TO:
        return
    diagnostics = error.__cause__.diag if isinstance(error.__cause__, psycopg.Error) else None
    # The server's DETAIL names two tables here, never a row.
    detail = (diagnostics.message_detail if diagnostics else None) or "a foreign key refers to it"
    raise DataError(
        f"{error.message}: {detail.rstrip('.')}, and did not travel in the same TRUNCATE",
        # Deleting the rows by hand would remove those that refer to them, by ON DELETE CASCADE.
        hint="drop the foreign key at the destination, then `headrace errors execute FILE --all`",
        **{**error.context, "table": ", ".join(names), "command": "TRUNCATE"},
    ) from error


def explain_undescribed(error: DatabaseError, found: TruncatedTable) -> None:
    """Say that the rows of a source's partition cannot be told at this destination.

    Args:
        error: caught while they were deleted.
        found: the destination's table, and the source's partition.

    Raises:
        DataError: the condition names what this destination does not have: a function, a type, or, of a hash partition,
            a parent that is partitioned by hash. (That the table has its columns was checked before.)
    """
    assert found.partition is not None
    state = str(error.context.get("sqlstate", ""))
    # 22: the parent of a hash partition is another kind of table here.
    if state[:2] in {"22", "42"} and state != NO_RIGHT:
        raise DataError(
            f"TRUNCATE of partition {found.partition.qualified_name} alone: the destination is partitioned in another"
            f" way and cannot tell which rows it holds ({found.partition.rows}): {error.message}",
            hint=_COPY_IT,
            **{**error.context, "table": f"{found.table.owner}.{found.table.name}", "command": "TRUNCATE"},
        ) from error
