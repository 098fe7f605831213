"""Partitions that were attached with rows.

Each is copied alone, while its table goes on, and joins in order (decision 75).

Job
    Treat such a partition as a table of its own until it has joined: with a record, a snapshot, a copy, a join. Changes
    in the log have the number of the partition that they were made in, so that those of the others go on meanwhile.

Main path
    `TableMarks.look` finds it -> a record COPYING under `PartOf.identity`, then its table's mark names it -> left out,
    copied, joined as every table that is added later (`spark_apply.copy.instantiation`).

    Its record stays: what of an error transaction is older than the copy is known by it. A copy of the whole table
    removes it.

A TRUNCATE of the whole table
    empties the partition, too. The reader waits there until the copy has been ended; then the partition begins at the
    TRUNCATE, empty.

Worked flow
    copy of T at 100. ATTACH of P with 1,000 rows; UPDATE of one of them at 120 -> error transaction. Look: P is
    COPYING. Snapshot at 150, P is COPIED at 150. Low watermark 170 -> P joins: its changes from 150 on are applied,
    those of T's others from 170 on; and the error transaction is
    deleted, as the copy has its change.
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
_ROW_BYTES = 100  # of a row, as of a table that was never analyzed: for people


def parts_of(tables: Sequence[TableToInstantiate], recorded: Iterable[Instantiation]) -> tuple[TableToInstantiate, ...]:
    """The partitions that were copied alone, or are to be.

    Of a table that is not finished there are none: its copy has them.

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
        if TableName.of(record) in names:  # it left, and is a table by now, whose copy replaces it
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
    """Whether partitions of a table may be copied alone.

    Nothing else writes it here, nobody gets it from here, and its rows come whole and as they are at the source.

    A TRUNCATE of a subset would reach the partition, and a function is to see rows of the table.
    """
    return (
        table.may_empty
        and not table.is_sent_on
        and not table.rows
        and not any(each.custom is not None for each in table.transformations)
    )


def here(part: Named, source: TableName, destination: TableName) -> TableName:
    """What a partition is called at the destination.

    Args:
        part: of the source's table.
        source: the table's name there.
        destination: its name here.
    """
    return TableName(destination.owner if part.owner == source.owner else part.owner, part.name)


def begun_part(whole: Instantiation, number: str, name: TableName) -> Instantiation:
    """The record of a partition that is to be copied.

    Args:
        whole: the record of its table.
        number: the partition's, at the source.
        name: the partition's, at the destination.
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
    """What the source says of partitions that are to be copied, by their names there.

    Nothing of one that it calls otherwise by now.

    Args:
        pending: what is to be copied.
        facts: of the source's tables, by their names there.
        captured: identities of the source's tables and partitions, by their names there.
        reader: of the source's tables.

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
    """The identities of partitions that are to be copied, by the names that the source has for them, as long as their tables have them.

    One that left and came back since it was seen is another one: what was before the last ATTACH must be applied first.

    Args:
        pending: what is to be copied.
        source: the source database.
        recorded: marks of the tables, by identity.
        topology: its name.
        snapshot: as it sees them; empty: as they are now.
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
    """Why a partition cannot be copied into the destination's of its name; empty: it can.

    Emptied, that one must not have rows of others.

    Args:
        part: at the source.
        name: at the destination.
        whole: its table there.
        source: the source database.
        destination: the destination database.

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
