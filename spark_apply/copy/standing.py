"""Where the tables of an apply process stand: what is recorded of each, by what it is and not by what it is called.

A name stands for many tables over time: tables are renamed, dropped and made again, swapped, and leave the topology and
come back. What was instantiated is a table of a source (`databases.ports.CapturedTable.identity`).

    identity recorded, same name    as it is recorded
    identity recorded, other name   the table was renamed: its record goes with it, nothing is copied
    names exchanged (a and b)       which is which at the destination cannot be told: both are copied again
    a name passed on (a to c,       changes of both tables may be on their way under that name: both are copied again
    another table is a now)
    identity recorded, LEFT         its changes did not come for a while: what is there is out of date, it is copied again
    identity not recorded, but a    the table takes the place of one that is not captured any more: it was made again, or was
    record has its name             not captured for a while; what is there is out of date, it is copied again
    nothing recorded                a new table
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from databases.ports import Instantiation
from streams.table_name import TableName

if TYPE_CHECKING:
    from spark_apply.driver.config import TableToInstantiate
    from streams.lcr_batch import TableVersion

__all__ = ["Standing", "is_exchanged", "missing_rename", "names_passed_on", "rename_statement", "standings"]

_FINISHED = frozenset({"DONE", "KEPT", "JOINING"})
_BEGUN = frozenset({"COPYING", "COMPARING"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One table of an apply process, and the records that concern it.

    Args:
        table: the table.
        record: its own; None: there is none.
        replaced: records of tables that were called so and are captured no more; usually one or none.
        occupant: another table of this apply process that is recorded under this name and has another one now, so that its
            rows may still be in the destination table of this name; None: there is none.
    """

    table: TableToInstantiate
    record: Instantiation | None = None
    replaced: tuple[Instantiation, ...] = ()
    occupant: TableToInstantiate | None = None

    @property
    def is_finished(self) -> bool:
        """It is at the destination, and its changes are applied; nothing is to be copied."""
        return self.record is not None and self.record.state in _FINISHED

    @property
    def is_copied(self) -> bool:
        """It is at the destination, and has not joined the others yet."""
        return self.record is not None and self.record.state == "COPIED"

    @property
    def is_renamed(self) -> bool:
        """It is recorded under another name."""
        record, table = self.record, self.table
        return record is not None and TableName.of(record) != table.destination

    @property
    def is_begun(self) -> bool:
        """Its copy was begun: the rows at the destination are part of it, whoever else writes there."""
        record = self.record
        return record is not None and (record.state in _BEGUN or (record.state == "FAILED" and record.scn > 0))

    @property
    def is_outdated(self) -> bool:
        """The rows at the destination were copied once, and changes are missing there since."""
        if self.record is not None and self.record.state == "LEFT":
            return True
        return any(found.scn > 0 for found in self.replaced) and not any(found.is_kept for found in self.replaced)

    @property
    def replaced_identities(self) -> tuple[str, ...]:
        """What is recorded no more once this table is."""
        return tuple(found.identity for found in self.replaced)

    def renamed_record(self) -> Instantiation:
        """Its record under the name it has now; only of a table that has one."""
        assert self.record is not None
        return replace(self.record, owner=self.table.destination.owner, name=self.table.destination.name)


def standings(tables: Sequence[TableToInstantiate], recorded: Iterable[Instantiation]) -> tuple[Standing, ...]:
    """Find out where each table stands.

    Args:
        tables: of the apply process, as they are called now.
        recorded: everything that is recorded of its source's tables, in any order.
    """
    by_identity = {record.identity: record for record in recorded}
    now = {table.identity: table for table in tables}
    replaced: dict[TableName, tuple[Instantiation, ...]] = {}
    occupants: dict[TableName, TableToInstantiate] = {}
    for record in by_identity.values():
        name = TableName.of(record)
        if record.identity not in now:
            replaced[name] = (*replaced.get(name, ()), record)
        elif now[record.identity].destination != name:
            occupants[name] = now[record.identity]
    return tuple(
        Standing(
            table=table, record=by_identity.get(table.identity), replaced=replaced.get(table.destination, ()),
            occupant=occupants.get(table.destination),
        )
        for table in tables
    )


def is_exchanged(each: Standing, wanted: Mapping[TableName, Standing]) -> bool:
    """Whether a table changed names with others that are recorded too, all around: a to b, b to a.

    The destination has tables of all these names before and after: nothing tells which is which.

    Args:
        each: one of the standings.
        wanted: every standing by the name it has now.
    """
    last = each
    for _ in wanted:
        if last.record is None or not last.is_renamed:
            return False
        following = wanted.get(TableName.of(last.record))
        if following is None or following is each:
            return following is each
        last = following
    return False


def names_passed_on(found: Iterable[Standing], wanted: Mapping[TableName, Standing]) -> frozenset[str]:
    """The identities of recorded tables of which one gave up a name that the other one, recorded or new, has now.

    Args:
        found: the standings.
        wanted: every standing by the name it has now.
    """
    identities: set[str] = set()
    for each in found:
        if each.record is not None and each.is_renamed and (taker := wanted.get(TableName.of(each.record))) is not None:
            identities |= {each.table.identity, taker.table.identity}
    return frozenset(identities)


def missing_rename(
    version: TableVersion, tables: Iterable[TableToInstantiate], recorded: Iterable[Instantiation]
) -> TableName | None:
    """The name under which the destination has a table that arrives under a name it does not have.

    A second table, made under the new name, would get the next changes, and the first one would keep the rows.

    Args:
        version: as it arrives.
        tables: of the apply process, under the names they had when the driver started.
        recorded: everything that is recorded of its source's tables.

    Returns:
        The old name; None: it is not known to have been renamed.
    """
    found = next((table for table in tables if int(version.object_number) in table.object_numbers), None)
    if found is None:
        return None
    record = next((record for record in recorded if record.identity == found.identity), None)
    old = found.destination if record is None else TableName.of(record)
    return None if old == TableName.of(version) else old


def rename_statement(old: TableName, new: TableName) -> str:
    """What gives a table of the destination its new name."""

    def quoted(name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    moved = f"{quoted(old.owner)}.{quoted(old.name)}"
    statements = []
    if old.owner != new.owner:
        statements.append(f"ALTER TABLE {moved} SET SCHEMA {quoted(new.owner)}")
        moved = f"{quoted(new.owner)}.{quoted(old.name)}"
    if old.name != new.name:
        statements.append(f"ALTER TABLE {moved} RENAME TO {quoted(new.name)}")
    return "; ".join(statements)
