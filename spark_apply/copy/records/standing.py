"""The standing of an apply process's tables: the record of each, found by identity and not by name.

A name stands for many tables over time: tables are renamed, dropped and created again, swapped, and leave the topology
and come back. Instantiation concerns a table of a source (`headrace.databases.ports.CapturedTable.identity`).

    identity recorded, same name    as recorded
    identity recorded, other name   the table was renamed: its record moves with it, nothing is copied
    names swapped (a and b)         the destination does not show which is which: both are copied again
    a name passed on (a to c,       changes of both tables may be in flight under that name: both are copied again
    another table is a now)
    identity recorded, LEFT         changes are missing: the destination's rows are out of date, it is copied again
    identity not recorded, but a    the table replaces one that is no longer captured: it was created again, or was
    record has its name             not captured for a while; the destination's rows are out of date, it is copied again
    nothing recorded                a new table
    nothing recorded, but DDL made  its CREATE TABLE may still arrive, which records it: it waits until everything is
    the table                       applied that was committed when the driver asked for the tables
    recorded before, and not now    its DROP TABLE arrived and was applied
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.databases.ports import AWAITING, BEGUN, Finding, Instantiation, PartOf
from headrace.lcr.scn import FIRST_SCN
from headrace.lcr.table_name import TableName, argument, literal, quoted
from spark_apply.tables.arriving import TableStart
from spark_apply.tables.unsettled import recorded_table

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationDatabase, SourceTable
    from headrace.lcr.batch import TableVersion
    from headrace.lcr.scn import Scn
    from spark_apply.apply_config import TableToInstantiate

__all__ = [
    "Standing",
    "another_table",
    "brought_up",
    "correct_alone",
    "is_exchanged",
    "missing_rename",
    "names_passed_on",
    "occupied",
    "remade_problem",
    "rename_findings",
    "rename_fix",
    "rename_statement",
    "renamed",
    "smallest",
    "standings",
    "table_findings",
    "table_starts",
    "unlisted",
]

_FINISHED = frozenset({"DONE", "KEPT", "JOINING"})
# Tables copied alongside share a snapshot up to so many bytes, the smallest first. So they join sooner than a large
# table could be copied, and a snapshot, which keeps the source from vacuuming, gets no older than one large table
# requires.
_ROUND_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One table of an apply process, and the records that concern it.

    Args:
        table: the table.
        record: its record; None: not recorded.
        replaced: records of tables that had this name and are no longer captured; usually at most one.
        parts: identities of its partitions' records (`spark_apply.copy.records.parts`); a copy of the table removes
            them.
        occupant: another table of this apply process that is recorded under this name and now has another one: the
            destination table of this name may still hold its rows; None: no such table.
    """

    table: TableToInstantiate
    record: Instantiation | None = None
    replaced: tuple[Instantiation, ...] = ()
    parts: tuple[str, ...] = ()
    occupant: TableToInstantiate | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it is recorded as FAILED."""
        return self.record is not None and self.record.state == "FAILED"

    @property
    def part(self) -> PartOf | None:
        """The partition that it is; None: it is a table."""
        return PartOf.of(self.table.identity)

    @property
    def key(self) -> tuple[str, str]:
        """The key under which it is skipped and joins: its name at the destination, or `PartOf.key`."""
        return self.table.destination if self.part is None else self.part.key

    @property
    def is_finished(self) -> bool:
        """Whether it is at the destination and its changes are applied, so that no copy is needed."""
        return self.record is not None and self.record.state in _FINISHED

    @property
    def is_copied(self) -> bool:
        """Whether it is at the destination, and has not joined the others yet."""
        return self.record is not None and self.record.state == "COPIED"

    @property
    def is_awaiting(self) -> bool:
        """Whether it waits for the copy of another apply process (`spark_apply.copy.ways.shared_tables`)."""
        return self.record is not None and self.record.state == AWAITING

    @property
    def held_scn(self) -> Scn | None:
        """SCN behind which the queue must keep its changes although others are applied; None: not needed."""
        return self.record.scn if self.record is not None and (self.is_copied or self.is_awaiting) else None

    @property
    def is_joining(self) -> bool:
        """Whether it is copied and is catching up with the others."""
        return self.record is not None and self.record.state == "JOINING"

    @property
    def is_renamed(self) -> bool:
        """Whether it is recorded under another name."""
        record, table = self.record, self.table
        return record is not None and TableName.of(record) != table.destination

    @property
    def is_remade(self) -> bool:
        """Whether it was copied, and the destination has had another table of its name since then.

        Rows of the copy may be missing there.
        """
        return self.record is not None and self.is_finished and self.record.is_remade and not self.is_renamed

    @property
    def awaits_rename(self) -> bool:
        """Whether it is copied but cannot join, because its copy may still have the name that the source gave up."""
        return self.is_copied and self.is_renamed

    @property
    def is_begun(self) -> bool:
        """Whether its copy has begun: rows at the destination are part of it, even if others write there too."""
        record = self.record
        return record is not None and (record.state in BEGUN or (record.state == "FAILED" and record.scn > 0))

    @property
    def is_outdated(self) -> bool:
        """Whether the rows at the destination are an old copy that lacks changes."""
        if self.record is not None and self.record.state == "LEFT":
            return True
        return any(found.scn > 0 and found.state != AWAITING for found in self.replaced) and not any(
            found.is_kept for found in self.replaced
        )

    @property
    def has_left(self) -> bool:
        """Whether changes of this table itself, not of one that it replaced, did not arrive for a while."""
        return self.record is not None and self.record.state == "LEFT" and not self.replaced

    @property
    def replaced_identities(self) -> tuple[str, ...]:
        """The identities whose records are deleted when this table is recorded."""
        return (*(found.identity for found in self.replaced), *self.parts)

    def renamed_record(self) -> Instantiation:
        """Its record under its current name; only for a table that has a record."""
        assert self.record is not None
        return replace(self.record, owner=self.table.destination.owner, name=self.table.destination.name)


def standings(tables: Sequence[TableToInstantiate], recorded: Iterable[Instantiation]) -> tuple[Standing, ...]:
    """Determine the standing of each table.

    Args:
        tables: of the apply process, under their current names.
        recorded: all records of its source's tables, in any order.
    """
    by_identity = {record.identity: record for record in recorded}
    now = {table.identity: table for table in tables}
    replaced: dict[TableName, tuple[Instantiation, ...]] = {}
    occupants: dict[TableName, TableToInstantiate] = {}
    parts: dict[str, tuple[str, ...]] = {}
    names = {table.destination for table in tables}
    for record in by_identity.values():
        name, part = TableName.of(record), PartOf.of(record.identity)
        if part is not None:
            parts[part.table] = (*parts.get(part.table, ()), record.identity)
            if name not in names:  # otherwise it is a table by now
                continue
        if record.identity not in now:
            replaced[name] = (*replaced.get(name, ()), record)
        elif now[record.identity].destination != name:
            occupants[name] = now[record.identity]
    return tuple(
        Standing(
            table=table,
            record=by_identity.get(table.identity),
            replaced=replaced.get(table.destination, ()),
            occupant=occupants.get(table.destination),
            parts=parts.get(table.identity, ()),
        )
        for table in tables
    )


def is_exchanged(each: Standing, wanted: Mapping[TableName, Standing]) -> bool:
    """Return whether a table is part of a cycle of renames between recorded tables: a to b, b to a.

    The destination has tables of all these names before and after, so it does not show which is which.

    Args:
        each: one of the standings.
        wanted: every standing by its current name.
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
    """Return the identities involved in passing on a name: the recorded table that gave it up, and its new owner.

    Args:
        found: the standings.
        wanted: every standing by its current name.
    """
    identities: set[str] = set()
    for each in found:
        if each.record is not None and each.is_renamed and (taker := wanted.get(TableName.of(each.record))) is not None:
            identities |= {each.table.identity, taker.table.identity}
    return frozenset(identities)


def missing_rename(
    version: TableVersion, tables: Iterable[TableToInstantiate], recorded: Iterable[Instantiation]
) -> TableName | None:
    """Return the destination's name of a table whose changes arrive under a name that the destination does not have.

    If the operator created a second table with the new name, it would receive the next changes, while the first keeps
    the rows.

    Args:
        version: the arriving version.
        tables: of the apply process, under their names at the start of the driver.
        recorded: all records of its source's tables.

    Returns:
        The old name; None: no rename is known.
    """
    found = next((table for table in tables if int(version.table_number) in table.object_numbers), None)
    if found is None:
        return None
    record = next((record for record in recorded if record.identity == found.identity), None)
    old = found.destination if record is None else TableName.of(record)
    if old != TableName.of(version):
        return old
    # With DDL: it was renamed at the destination before the RENAME arrived, and rows from before that are on their way.
    return _elsewhere(found, record, old)


def another_table(
    version: TableVersion, tables: Iterable[TableToInstantiate], recorded: Iterable[Instantiation]
) -> str:
    """Return why changes that arrive under a new name must not be written to the destination's table of that name.

    Empty: it is the recorded table.

    Args:
        version: the arriving version.
        tables: of the apply process, under their names at the start of the driver.
        recorded: all records of its source's tables.
    """
    found = next((table for table in tables if int(version.table_number) in table.object_numbers), None)
    record = None if found is None else next((record for record in recorded if record.identity == found.identity), None)
    name = TableName.of(version)
    if record is None or found is None or record.may_be(*name):
        return ""
    if name == TableName.of(record):
        if (rows := _elsewhere(found, record, name)) is None:
            return ""  # it was made anew here (`Standing.is_remade`)
        return (
            f"the destination has its rows in {rows}, and another table has its name: give that other one another name,"
            f" then {rename_statement(rows, name)}: the RENAME of the source arrives later"
        )
    return occupied(record, name)


def _elsewhere(table: TableToInstantiate, record: Instantiation | None, name: TableName) -> TableName | None:
    """Return the name of a table with DDL at the destination, if it is another one; None: it is not, or is unknown."""
    if not table.takes_ddl or record is None or record.name_now in {None, name}:
        return None
    assert record.name_now is not None
    return TableName(*record.name_now)


def occupied(record: Instantiation, name: TableName) -> str:
    """Return what to do if a source renamed a table, and another table has the new name at the destination.

    That other table must not receive its changes.

    Args:
        record: of the table.
        name: its name at the source, as it would be at the destination.
    """
    if record.name_now is None:
        return (
            f"the source renamed {TableName.of(record)} to {name}: the destination's table of that name is not the one"
            " that was copied, which is gone;"
            " rename it at the source to a name that the destination does not have, then run `headrace up`, which"
            " creates and copies it there"
        )
    rows = TableName(*record.name_now)
    return (
        f"the source renamed {TableName.of(record)} to {name}: the destination has another table of that name, and the"
        f" rows are in {rows};"
        f" give that other table another name, then {rename_statement(rows, name)}; or undo the rename at the source"
    )


def renamed(identities: Mapping[TableName, str], recorded: Iterable[Instantiation]) -> dict[TableName, TableName]:
    """Return the tables that have another name than when they were recorded: current name here → recorded name.

    Args:
        identities: of the tables that arrive, by their current names at the destination.
        recorded: all records of their source's tables.
    """
    names = {record.identity: TableName.of(record) for record in recorded}
    return {name: old for name, identity in identities.items() if (old := names.get(identity, name)) != name}


def rename_findings(
    destination: DestinationDatabase,
    versions: Iterable[TableVersion],
    old_names: Mapping[TableName, TableName],
    site: str,
) -> dict[TableName, Finding]:
    """Return a finding with its fix for each table that only the source has renamed.

    Otherwise a second table would receive their changes, while the first keeps their rows.

    Args:
        destination: asked which of the names it has.
        versions: the tables that arrive, under their current names.
        old_names: from `renamed`.
        site: the destination's name, for the findings.
    """
    found = {}
    for version in versions:
        name = TableName.of(version)
        old = old_names.get(name)
        if (
            old is None
            or destination.is_reserved(name.owner)
            or destination.describe(*name) is not None
            or destination.describe(*old) is None
        ):
            continue
        found[name] = Finding(
            path=f"sites.{site} table {name}",
            problem=f"the table is still {old} here: the source has renamed it since it was copied",
            fix="",
        )
    moves = {name: old_names[name] for name in found}
    return {name: replace(each, fix=rename_fix(destination, moves[name], name, moves)) for name, each in found.items()}


def rename_fix(
    destination: DestinationDatabase,
    old: TableName,
    new: TableName,
    moves: Mapping[TableName, TableName],
) -> str:
    """Return the statements that rename a destination table, each with its semicolon; the new schema may be missing.

    Args:
        destination: asked for its schemas; the old schema is renamed if every table in it must move.
        old: the table's current name.
        new: the name it must have.
        moves: all tables that must be renamed: the old names by the new ones.
    """
    if old.owner == new.owner or destination.tables_in(new.owner) is not None:
        return f"{rename_statement(old, new)};"
    moved = {was.name for now, was in moves.items() if was.owner == old.owner and now == TableName(new.owner, was.name)}
    if (destination.tables_in(old.owner) or frozenset()) <= moved:
        return f"ALTER SCHEMA {quoted(old.owner)} RENAME TO {quoted(new.owner)};"
    return f"CREATE SCHEMA IF NOT EXISTS {quoted(new.owner)}; {rename_statement(old, new)};"


def table_findings(
    destination: DestinationDatabase,
    versions: Sequence[TableVersion],
    old_names: Mapping[TableName, TableName],
    site: str,
    *,
    at_source: Mapping[TableName, TableName] | None = None,
) -> tuple[Finding, ...]:
    """Return why arriving tables cannot be applied at a destination as it is now.

    For a table that only the source has renamed, the rename is the one fix.

    Args:
        destination: asked which of the names it has, and what does not fit.
        versions: the tables that arrive, under their current names.
        old_names: from `renamed`.
        site: the destination's name, for the findings.
        at_source: the tables' names at the source, by their names here; None: not known.
    """
    to_rename = rename_findings(destination, versions, old_names, site)
    named = [version for version in versions if TableName.of(version) not in to_rename]
    return (*to_rename.values(), *destination.preflight_tables(named, now=named, at_source=at_source))


def correct_alone(what: str = "INSERT, UPDATE or DELETE ...") -> str:
    """Return the statements that correct a table's rows at one site alone, although its changes go to others.

    The short forms of topologies do not capture this tag.
    """
    return f"BEGIN; SELECT headrace.set_tag('0e'); SET LOCAL session_replication_role = replica; {what}; COMMIT"


def brought_up(source: TableName, *, may_be_copied: bool) -> str:
    """Return how to bring the rows of a destination table up to date with the source.

    Args:
        source: the table, as commands name it.
        may_be_copied: nothing else writes the destination table; `headrace copy` refuses other tables.
    """
    if may_be_copied:
        return f"`headrace copy FILE {argument(source)}` copies the table again"
    return (
        f"others write the table too, so it is not copied again: `headrace verify FILE {argument(source)}` names the"
        f" rows that differ: correct them at the destination alone ({correct_alone()}); a hub sends such corrections on"
        " to its other sites"
    )


def remade_problem(table: TableName, *, source: TableName, may_be_copied: bool = True) -> str:
    """Return what to do about a destination table that is not the one that was copied (`Standing.is_remade`).

    Args:
        table: its name at the destination.
        source: its name at the source, by which commands know it.
        may_be_copied: as for `brought_up`.
    """
    name = f"{quoted(table.owner)}.{quoted(table.name)}"
    return (
        "the destination's table was dropped and created again, or exchanged, after it was copied: rows may be missing:"
        f" {brought_up(source, may_be_copied=may_be_copied)}; if `headrace verify FILE {argument(source)}` finds no"
        f" difference, keep it: UPDATE headrace.instantiation SET relation = {literal(name)}::regclass WHERE owner ="
        f" {literal(table.owner)} AND name = {literal(table.name)}"
    )


def rename_statement(old: TableName, new: TableName) -> str:
    """Return the statements that give a destination table its new name, for an operator.

    Args:
        old: its current name.
        new: the name it must have; its schema must exist.

    Returns:
        One or two ALTER TABLE in one line, schema first, without a semicolon at the end.
    """
    moved = f"{quoted(old.owner)}.{quoted(old.name)}"
    statements = []
    if old.owner != new.owner:
        statements.append(f"ALTER TABLE {moved} SET SCHEMA {quoted(new.owner)}")
        moved = f"{quoted(new.owner)}.{quoted(old.name)}"
    if old.name != new.name:
        statements.append(f"ALTER TABLE {moved} RENAME TO {quoted(new.name)}")
    return "; ".join(statements)


def table_starts(found: Sequence[Standing]) -> dict[tuple[str, str], TableStart]:
    """Return where apply starts in each table, under its recorded and its current name.

    Partitions that were copied alone are included, by `PartOf.key`. A skipped table is one that is not finished.
    """
    starts: dict[tuple[str, str], TableStart] = {
        each.key: TableStart(scn=None, is_awaited=each.record is None and each.table.as_of > FIRST_SCN)
        for each in found
    }
    finished = [(each, each.record) for each in found if each.record is not None and each.is_finished]
    for _, record in finished:
        starts[record.key] = TableStart(scn=record.scn, is_joining=record.state == "JOINING")
    for each, record in finished:
        starts[each.key] = TableStart(scn=record.scn, is_joining=record.state == "JOINING")
    for each in found:
        if each.part is not None:
            starts[each.key] = replace(starts[each.key], part=each.part)
    return starts


def unlisted(
    tables: Sequence[TableToInstantiate], recorded: Iterable[Instantiation]
) -> tuple[tuple[TableToInstantiate, TableStart], ...]:
    """Return the tables that are applied by their records although the source did not name them, and their starts.

    The source dropped them before it was asked, and changes from before that are on their way. Or DDL made them behind
    that, and the driver that applied it had not ended yet.

    Args:
        tables: of the apply process, as the source named them.
        recorded: all records of its source's tables.
    """
    identities = {table.identity for table in tables}
    found = []
    for record in recorded:
        number = record.identity.split(".")[-2:][0]
        is_applied = record.state in _FINISHED and not record.is_gone and PartOf.of(record.identity) is None
        if is_applied and record.identity not in identities and number.isdecimal():
            name = TableName.of(record)
            table = recorded_table(record.identity, name, int(number))
            found.append((table, TableStart(scn=record.scn, is_joining=record.state == "JOINING")))
    return tuple(found)


def smallest(
    pending: Sequence[Standing], facts: Mapping[TableName, SourceTable], *, waiting: Collection[TableName] = ()
) -> list[Standing]:
    """Choose the smallest tables up to the bytes that share a snapshot, at least one; failed tables come last.

    Args:
        pending: the tables to choose from.
        facts: the source's tables, by their names there.
        waiting: names at the destination of tables that wait for others' copies; they are always included, and take no
            other table's place.
    """
    looked_at = [each for each in pending if each.table.destination in waiting]
    ready = [each for each in pending if each.table.destination not in waiting]
    sizes = [facts[each.table.source].bytes if each.table.source in facts else 0 for each in ready]
    chosen: list[Standing] = []
    total = 0
    for place in sorted(range(len(ready)), key=lambda place: (ready[place].has_failed, sizes[place])):
        total += sizes[place]
        if chosen and total > _ROUND_BYTES:
            break
        chosen.append(ready[place])
    return chosen + looked_at
