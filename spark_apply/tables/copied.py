"""Skip the changes of a batch that the copies of its tables already contain.

A DDL LCR below the copy's SCN must not be made: the copy is of the table as it was at that SCN. But a copy brings rows
alone, no index and no default. So whoever applies it has the destination record it (`DdlChange.not_made`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.databases.ports import PartOf
from headrace.lcr.batch import Command, TableVersion, changed_table
from headrace.lcr.cutting import row_transactions, select_rows
from headrace.lcr.scn import Scn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.databases.ports import Instantiation
    from headrace.lcr.batch import LcrBatch
    from headrace.rules.evaluation import RuleEvaluation

__all__ = [
    "TABLE_NOT_MADE",
    "FirstScn",
    "beyond_copies",
    "copied_scns",
    "emptied_tables",
    "keys_of",
    "moved_before",
    "taken_over",
    "truncated_before",
    "without_copied",
    "without_tables",
]

TABLE_NOT_MADE = "its table was not made here"
"""Why DDL is only recorded that follows a CREATE TABLE in its transaction."""

_NEVER = 1 << 62  # above every SCN

FirstScn = Callable[["TableVersion"], int]
"""Returns the SCN below which a table's changes (by order SCN) are skipped."""


def copied_scns(recorded: Iterable[Instantiation]) -> dict[tuple[str, str], int]:
    """Return the instantiation SCNs of a source's tables by (owner, name).

    A partition that was copied alone is found by ("", number). The latest of a table's partitions is found by
    ("", the table's qualified name). Which table has a name is found by (its number, the qualified name).

    Args:
        recorded: the instantiation records of the tables and partitions.
    """
    records = {each.identity: each for each in recorded}
    found: dict[tuple[str, str], int] = {}
    for each in records.values():
        part, scn = PartOf.of(each.identity), int(each.scn)
        if part is None:
            found[each.key] = scn
            if (number := "".join(each.identity.split(".")[-2:-1])).isdecimal():
                found[number, f"{each.owner}.{each.name}"] = scn
            continue
        found[part.key] = scn
        if (whole := records.get(part.table)) is not None:
            key = "", f"{whole.owner}.{whole.name}"
            found[key] = max(scn, found.get(key, 0))
    return found


def truncated_before(batch: LcrBatch, copied: Mapping[tuple[str, str], int]) -> str:
    """Return a table that a batch truncates as a whole although one of its partitions was copied later.

    The partition would lose the rows it received since. Empty: no such table.

    Args:
        batch: rows in source order.
        copied: from `copied_scns`.
    """
    owners = row_transactions(batch.transactions) if batch.truncates else None
    for truncate in batch.truncates:
        assert owners is not None
        order_scn = int(batch.transactions.order_scn[owners[truncate.row_number]])
        for version in (batch.tables[table] for table in truncate.tables):
            if version.partition is None and order_scn < copied.get(("", version.qualified_name), 0):
                return version.qualified_name
    return ""


def taken_over(batch: LcrBatch, copied: Mapping[tuple[str, str], int]) -> str:
    """Return a table of a batch whose name another table has by now: DDL has renamed both. Empty: no such table.

    Args:
        batch: rows in source order.
        copied: from `copied_scns`.
    """
    used = {group.table for group in batch.groups} | {table for each in batch.truncates for table in each.tables}
    for version in (batch.tables[table] for table in sorted(used)):
        name, number = version.qualified_name, str(int(version.table_number))
        holders = {owner for owner, holder in copied if holder == name and owner.isdecimal()}
        if holders - {number} and any(owner == number for owner, _ in copied) and number not in holders:
            return name
    return ""


def moved_before(batches: Iterable[LcrBatch], copied: Mapping[tuple[str, str], int]) -> str:
    """Return a table whose error transaction removes other rows ahead of rows of a partition that was copied later.

    Empty: no such table.

    That transaction may have attached the partition and taken its rows out of another one. The partition has these rows
    here. After the partition's rows, no other partition can have rows within its bounds. An UPDATE over several
    partitions looks the same. Apart from such transactions, rows that are only changed or inserted ahead belong to
    other partitions, which have no copy of the partition's rows.

    Args:
        batches: all parts of one transaction, in order; not read if no partition was copied alone.
        copied: from `copied_scns`.
    """
    if not any(not owner for owner, _ in copied):
        return ""
    others, parts = set[int](), set[int]()
    for batch in batches:
        changes = [
            (int(group.row_numbers[0]), batch.tables[group.table], group.command is Command.DELETE)
            for group in batch.groups
        ]
        changes += [
            (truncate.row_number, batch.tables[table], True)
            for truncate in batch.truncates
            for table in truncate.tables
            if batch.tables[table].partition is not None
        ]  # `truncated_before` checks TRUNCATEs of whole tables
        for _, version, removes in sorted(changes, key=lambda change: change[0]):
            number, table = int(version.object_number), int(version.table_number)
            if int(batch.transactions.order_scn[0]) >= copied.get(("", str(number)), 0):
                others |= {table} if removes else set()
            elif number not in parts and table in others:
                return version.qualified_name
            else:
                parts.add(number)
    return ""


def keys_of(version: TableVersion) -> tuple[tuple[str, str], ...]:
    """Return the keys under which `copied_scns` has a table's rows."""
    return (version.owner, version.name), ("", str(int(version.object_number)))


def beyond_copies(batch: LcrBatch, copied: Mapping[tuple[str, str], int]) -> LcrBatch:
    """Remove rows that the copies of their tables or partitions contain.

    Args:
        batch: rows in source order.
        copied: from `copied_scns`.
    """
    return without_copied(batch, lambda version: max(copied.get(key, 0) for key in keys_of(version)))


def without_copied(batch: LcrBatch, first_scn: FirstScn) -> LcrBatch:
    """Remove rows, and DDL LCRs, below the first SCN that is applied to their table.

    Args:
        batch: LCRs in source order.
        first_scn: called once per table of the batch.

    Returns:
        The batch itself if no row is removed; transactions stay, even without rows.
    """
    kept = np.ones(batch.row_count, np.bool_)
    if batch.ddl is not None:
        kept[0] = int(batch.transactions.order_scn[0]) >= first_scn(changed_table(batch.ddl))
    owners: NDArray[np.int32] | None = None
    for group in batch.groups:
        scn = first_scn(batch.tables[group.table])
        if scn and int(batch.transactions.order_scn[0]) < scn:
            owners = row_transactions(batch.transactions) if owners is None else owners
            kept[group.row_numbers[batch.transactions.order_scn[owners[group.row_numbers]] < scn]] = False
    return _without_truncates(select_rows(batch, kept), first_scn)


def without_tables(batch: LcrBatch, numbers: Collection[int]) -> LcrBatch:
    """Remove the rows and TRUNCATEs of new tables that the destination has not made; their DDL is recorded only.

    Args:
        batch: LCRs in source order.
        numbers: of the tables at the source.
    """
    if not numbers:
        return batch
    if batch.ddl is not None:
        is_made = int(batch.ddl.object_number) not in numbers or batch.ddl.why_not_made
        return batch if is_made else replace(batch, ddl=batch.ddl.not_made(TABLE_NOT_MADE))
    return without_copied(batch, lambda version: _NEVER if int(version.table_number) in numbers else 0)


def _without_truncates(batch: LcrBatch, first_scn: FirstScn) -> LcrBatch:
    """Keep only TRUNCATEs of tables that were not copied after them."""
    if not batch.truncates:
        return batch
    owners = row_transactions(batch.transactions)
    truncates = []
    for truncate in batch.truncates:
        order_scn = int(batch.transactions.order_scn[owners[truncate.row_number]])
        tables = tuple(table for table in truncate.tables if order_scn >= first_scn(_truncated(batch.tables[table])))
        truncates.append(replace(truncate, tables=tables))
    if truncates == list(batch.truncates):
        return batch
    kept = np.ones(batch.row_count, np.bool_)
    for truncate in truncates:
        kept[truncate.row_number] = bool(truncate.tables)
    return select_rows(replace(batch, truncates=tuple(truncates)), kept)


def _truncated(version: TableVersion) -> TableVersion:
    """Return the version that a TRUNCATE means: a whole partitioned table arrives as one of its partitions."""
    return version if version.partition is not None else replace(version, object_number=version.table_number)


def emptied_tables(batch: LcrBatch, rules: RuleEvaluation) -> Iterator[tuple[TableVersion, Scn]]:
    """Find tables that a TRUNCATE of a batch empties before its transaction changes them in any other way.

    From its order SCN on, the log has all their rows. A TRUNCATE of single partitions does not count, nor does one that
    the rules discard.

    Args:
        batch: rows in source order.
        rules: of the apply process.

    Yields:
        A table, named as at the destination, and the order SCN.
    """
    if not batch.truncates:
        return
    owners = row_transactions(batch.transactions)
    is_first = np.zeros(batch.row_count, np.bool_)
    for truncate in batch.truncates:
        owner = int(owners[truncate.row_number])
        begins = int(batch.transactions.first_row[owner])
        # Rows of the transaction in an earlier batch are not known here.
        is_first[truncate.row_number] = not (owner == 0 and batch.continues) and not any(
            _is_of(batch.tables[group.table], batch, truncate.tables)
            and ((group.row_numbers >= begins) & (group.row_numbers < truncate.row_number)).any()
            for group in batch.groups
        )
    if not is_first.any():
        return
    kept = rules.filter(select_rows(batch, is_first))
    owners = row_transactions(kept.transactions)
    for truncate in kept.truncates:
        order_scn = Scn(int(kept.transactions.order_scn[owners[truncate.row_number]]))
        for table in truncate.tables:
            if kept.tables[table].partition is None:
                yield kept.tables[table], order_scn


def _is_of(version: TableVersion, batch: LcrBatch, tables: tuple[int, ...]) -> bool:
    """Return whether a version belongs to one of these tables of a batch."""
    return any(
        (version.table_number, version.owner, version.name) == (other.table_number, other.owner, other.name)
        for other in (batch.tables[table] for table in tables)
    )
