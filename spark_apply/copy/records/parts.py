"""Partitions that were attached with rows.

Each one is copied alone, while its table continues, and joins in order (decision 75).

Job
    Treat such a partition like a table until it has joined: with a record, a snapshot, a copy and a join. Changes in
    the log carry the number of their partition, so changes of the other partitions continue meanwhile.

Main path
    `TableMarks.look` finds it -> a record COPYING under `PartOf.identity`, then its table's mark names it -> skipped,
    copied and joined like every table that is added later (`spark_apply.copy.instantiation`).

    Its record stays, because it tells which changes of an error transaction are older than the copy. A copy of the
    whole table removes it.

A TRUNCATE of the whole table
    empties the partition, too. The reader waits there until the copy has been ended; then the partition starts empty,
    at the TRUNCATE.

Worked flow
    copy of T at 100. ATTACH of P with 1,000 rows; UPDATE of one of them at 120 -> error transaction. Look: P is
    COPYING. Snapshot at 150, P is COPIED at 150. Low watermark 170 -> P joins: its changes are applied from 150 on,
    those of T's other partitions from 170 on. The error transaction is deleted, because the copy has its change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.databases.ports import Instantiation, PartOf, RowMark
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import Named, TableName
from spark_apply.apply_config import TableToInstantiate

if TYPE_CHECKING:
    from headrace.databases.ports import InstantiationRecords, SourceDatabase, SourceTable
    from headrace.databases.ports.copying import TableReader
    from spark_apply.copy.records.standing import Standing

__all__ = ["begun_part", "captured_parts", "copies_parts", "here", "other_bounds", "part_facts", "parts_of"]

_FINISHED = frozenset({"DONE", "KEPT", "JOINING"})
_TO_BE_COPIED = "attached at the source with rows that are not in the log: to be copied"
_ROW_BYTES = 100  # assumed size of a row, as for a table that was never analyzed; only for display


def parts_of(tables: Sequence[TableToInstantiate], recorded: Iterable[Instantiation]) -> tuple[TableToInstantiate, ...]:
    """Return the partitions that were copied alone, or will be.

    A table that is not finished has none: its copy includes them.

    Args:
        tables: of the apply process.
        recorded: all records of its source's tables.
    """
    by_identity = {record.identity: record for record in recorded}
    wholes, names = {table.identity: table for table in tables}, {table.destination for table in tables}
    found = []
    for record in by_identity.values():
        part = PartOf.of(record.identity)
        whole, above = (None, None) if part is None else (wholes.get(part.table), by_identity.get(part.table))
        if part is None or whole is None or above is None or above.state not in _FINISHED or record.state == "LEFT":
            continue
        if TableName.of(record) in names:  # it left and is now a table, whose copy replaces it
            continue
        owner = whole.source.owner if record.owner == whole.destination.owner else record.owner
        found.append(
            replace(
                whole,
                identity=record.identity,
                source=TableName(owner, record.name),
                destination=TableName.of(record),
                object_numbers=(part.number,),
                keep_existing=False,
                returned_by="",
                part_of=whole.source,
            )
        )
    return tuple(found)


def copies_parts(table: TableToInstantiate) -> bool:
    """Return whether partitions of a table may be copied alone.

    Nothing else may write the table here, no other site may receive it from here, and its rows must arrive complete and
    as they are at the source. A TRUNCATE of a subset would reach the partition, and a custom transformation must see
    the table's rows.
    """
    return (
        table.may_empty
        and not table.is_sent_on
        and not table.rows
        and not any(each.custom is not None for each in table.transformations)
    )


def here(part: Named, source: TableName, destination: TableName) -> TableName:
    """Return a partition's name at the destination.

    Args:
        part: the partition, of the source's table.
        source: the table's name there.
        destination: the table's name here.
    """
    return TableName(destination.owner if part.owner == source.owner else part.owner, part.name)


def begun_part(whole: Instantiation, number: str, name: TableName) -> Instantiation:
    """Return the record of a partition that is to be copied.

    Args:
        whole: the record of its table.
        number: the partition's number at the source.
        name: the partition's name at the destination.
    """
    return Instantiation(
        source=whole.source,
        identity=PartOf(table=whole.identity, number=int(number)).identity,
        owner=name.owner,
        name=name.name,
        scn=Scn(1),
        state="COPYING",
        problem=_TO_BE_COPIED,
    )


def part_facts(
    pending: Sequence[Standing],
    facts: Mapping[TableName, SourceTable],
    captured: Mapping[TableName, str],
    reader: TableReader,
) -> dict[TableName, SourceTable]:
    """Return the source's descriptions of partitions that are to be copied, by their names there.

    A partition that the source has renamed since is omitted.

    Args:
        pending: the tables and partitions to copy.
        facts: of the source's tables, by their names there.
        captured: identities of the source's tables and partitions, by their names there.
        reader: reads the source's tables.

    Raises:
        DatabaseError: the source does not answer.
    """
    found = {}
    for each in pending:
        table = each.table
        if table.part_of is None or table.part_of not in facts or captured.get(table.source) != table.identity:
            continue
        size = sum(piece.bytes for piece in reader.plan(*table.source, {}).pieces)
        found[table.source] = replace(
            facts[table.part_of],
            owner=table.source.owner,
            name=table.source.name,
            is_partitioned=False,
            bytes=size,
            row_estimate=size // _ROW_BYTES,
        )
    return found


def captured_parts(
    pending: Sequence[Standing],
    source: SourceDatabase,
    recorded: Mapping[str, RowMark],
    topology: str,
    *,
    snapshot: str = "",
) -> dict[TableName, str]:
    """Return the identities of partitions that are to be copied, by their current names at the source.

    A partition is omitted if its table no longer has it. One that left and came back since it was seen counts as
    another partition, because changes from before the last ATTACH must be applied first.

    Args:
        pending: the tables and partitions to copy.
        source: the source database.
        recorded: marks of the tables, by identity.
        topology: name of the topology.
        snapshot: the snapshot to read under; empty: the current state.
    """
    wanted = [each.part for each in pending if each.part is not None]
    marks = source.row_marks(topology, snapshot=snapshot) if wanted else {}
    found = {}
    for each in wanted:
        now, seen = (known.get(each.table, RowMark()).parts.get(str(each.number)) for known in (marks, recorded))
        if now is not None and seen is not None and now.joined == seen.joined:
            found[TableName(now.owner, now.name)] = each.identity
    return found


def other_bounds(
    part: PartOf, name: TableName, whole: TableName, source: SourceDatabase, destination: InstantiationRecords
) -> str:
    """Return why a partition cannot be copied into the destination's partition of its name; empty: it can.

    That partition is emptied first, so it must not have rows of others.

    Raises:
        DatabaseUnavailable: one of them does not answer.
    """
    rows = source.partition_rows(str(part.number))
    if rows and rows == destination.partition_rows(whole, name):
        return ""
    return (
        f"{name} is no partition of {whole} here with the bounds that it has at the source: make it one, as"
        " `headrace check` says; then its rows come"
    )
