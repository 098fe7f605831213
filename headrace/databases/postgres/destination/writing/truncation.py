"""TRUNCATE of tables that one source statement truncated, and of one partition of the source's table.

A partition has the name of its table all the way from the log to the destination, plus the partition's own. So its
TRUNCATE is ordered with the table's rows, waits for their errors and passes the same rules. Effect at the destination:

    a partition of that name, of the same table, with the same condition   TRUNCATE of it
    anything else (partitioned in another way, or not at all)              DELETE of the rows of the condition
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

_REFERRED_TO = "0A000"  # of a TRUNCATE: a table outside the statement references a truncated one
_COPY_IT = (
    f"{COPY_THE_TABLE}. Where others write that table, too, it is not copied: delete the rows yourself, at the destination"
    " alone; write the changes of other tables that `headrace errors show FILE N` lists to the destination yourself,"
    " then run `headrace errors delete FILE N`"
)


def same_partition(connection: psycopg.Connection[Any], truncated: TruncatedTable) -> str:
    """Find the destination's partition that holds the same rows under the same name.

    Args:
        connection: connection to the destination; may be in a transaction.
        truncated: the destination's table, and the source's partition.

    Returns:
        The partition, quoted and qualified; empty when it does not exist or holds other rows.

    Raises:
        DataError: it is unknown which rows the source's partition held.
    """
    table, partition = truncated.table, truncated.partition
    assert partition is not None
    if not partition.rows:
        raise DataError(
            f"TRUNCATE of partition {partition.qualified_name} alone: it is unknown which rows of its table it held:"
            " its bounds were changed before the log was read",
            hint=_COPY_IT,
            table=f"{table.owner}.{table.name}",
            command="TRUNCATE",
        )
    if rows_of_partition(connection, (table.owner, table.name), (partition.owner, partition.name)) != partition.rows:
        return ""
    return qualified(partition.owner, partition.name)


def delete_partition(relation: str, truncated: TruncatedTable) -> str:
    """Return the statement that deletes the rows of a source's partition."""
    assert truncated.partition is not None
    # A NULL condition counts as true for a partition, as for any constraint.
    return f"DELETE FROM {relation} WHERE ({truncated.partition.rows}) IS NOT FALSE"


def explain_referred(error: DatabaseError, names: Sequence[str]) -> None:
    """Explain a TRUNCATE that was refused because another table of the destination references a truncated one.

    Args:
        error: error of the TRUNCATE.
        names: names of the tables, as `owner.name`.

    Raises:
        DataError: another table references one of them.
    """
    if error.context.get("sqlstate") != _REFERRED_TO:
        return
    diagnostics = error.__cause__.diag if isinstance(error.__cause__, psycopg.Error) else None
    # Here the server's DETAIL names two tables, never a row.
    detail = (diagnostics.message_detail if diagnostics else None) or "a foreign key refers to it"
    raise DataError(
        f"{error.message}: {detail.rstrip('.')}, and did not travel in the same TRUNCATE",
        # The hint does not suggest deleting the rows by hand: ON DELETE CASCADE would remove the referencing rows.
        hint="drop the foreign key at the destination, then `headrace errors execute FILE --all`",
        **{**error.context, "table": ", ".join(names), "command": "TRUNCATE"},
    ) from error


def explain_undescribed(error: DatabaseError, found: TruncatedTable) -> None:
    """Explain that this destination cannot identify the rows of a source's partition.

    Raises:
        DataError: the condition needs something that this destination lacks: a function, a type, or, for a hash
            partition, a parent that is partitioned by hash. (The table's columns were checked before.)
    """
    assert found.partition is not None
    state = str(error.context.get("sqlstate", ""))
    # 22: the parent of a hash partition is not partitioned by hash here.
    if state[:2] in {"22", "42"} and state != NO_RIGHT:
        raise DataError(
            f"TRUNCATE of partition {found.partition.qualified_name} alone: the destination is partitioned in another"
            f" way and cannot identify its rows ({found.partition.rows}): {error.message}",
            hint=_COPY_IT,
            **{**error.context, "table": f"{found.table.owner}.{found.table.name}", "command": "TRUNCATE"},
        ) from error
