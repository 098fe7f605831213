"""Tables whose rows changed without events: current marks compared with recorded ones (`databases.ports.row_marks`).

Job
    Name every table whose shape fits and whose rows are not equal: rewritten, renamed or replaced values, partitions
    that arrived or left with rows. The log has no LCR for any of these.

Durable
    A mark is recorded when a table is copied or kept, and when a comparison finds both sides equal, as the respective
    snapshot sees it. A change that left all rows as they were updates the mark. So a finding lasts until a copy or a
    clean comparison, across restarts. A table without a mark (an earlier version copied it) gets the current mark.

Worked flow
    copy under a snapshot at 100: column amount has stamp x700, the table file 5.
    VACUUM FULL -> file 6, stamp x700: the mark is updated. ALTER amount TYPE int USING amount * 100 -> file 7, stamp
      x740: a finding.
    headrace copy -> under its snapshot file 7, stamp x740: recorded, no finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.databases.ports import MarkedPart, RowMark
from headrace.databases.ports.row_marks import OF_TRANSACTION
from headrace.lcr.table_name import TableName, argument, quoted, quoted_name, remark
from headrace.lcr.type_name import type_parts
from spark_apply.copy.marks.computed_columns import Computed, both_compute, compare_computed
from spark_apply.copy.marks.marked_columns import earlier_column, replaced_columns, taken_over
from spark_apply.copy.marks.marked_parts import (
    kept_parts,
    logged_again,
    may_be_one_alter,
    noted_unlogged,
    rewritten_columns,
    rewritten_parts,
    unlogged_parts,
    written_by_alter,
)
from spark_apply.copy.marks.relabelled import Relabelled, RelabelledTypes
from spark_apply.copy.records.parts import here
from spark_apply.copy.records.standing import brought_up

if TYPE_CHECKING:
    from headrace.databases.ports import ComputedDifference, InstantiationRecords, MarkedColumn, SourceDatabase
    from spark_apply.apply_config import TableToInstantiate

__all__ = [
    "ChangedRows",
    "ChangedTable",
    "MarkedTable",
    "Readiness",
    "columns_here",
    "compare_marks",
    "follows",
    "marked_table",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedTable:
    """A replicated table.

    Args:
        identity: as in `CapturedTable.identity`.
        source, destination: its names.
        may_be_copied: it can be copied again: nothing else writes it at the destination.
        copies_parts: the rows of an attached partition are copied automatically, if the destination has the same
            partition.
        detached: what happens to partitions that the source no longer has (`spark_apply.copy.marks.detached`).
        is_reshaped: its rows differ from the source's, so a condition of one database means nothing in the other.
        numbers: of the table and its partitions, as in the log.
    """

    identity: str
    source: TableName
    destination: TableName
    may_be_copied: bool = True
    copies_parts: bool = False
    detached: str = "ask"
    is_reshaped: bool = False
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether an attached partition can be copied alone now.

    All earlier changes must be applied, and no error transaction may concern rows that the partition took over.
    """

    is_applied: bool = True
    held_by: tuple[int, ...] = ()


def marked_table(table: TableToInstantiate) -> MarkedTable:
    """Return a table of an apply process, without knowledge of its partitions."""
    return MarkedTable(
        identity=table.identity,
        source=table.source,
        destination=table.destination,
        may_be_copied=table.may_empty,
        is_reshaped=bool(table.transformations),
        numbers=frozenset(map(int, table.object_numbers)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedTable:
    """A table whose rows changed without events, and what the operator must do about it."""

    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.problem}; fix: {self.fix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRows:
    """What the marks show for some tables.

    Args:
        problems: findings for tables whose rows changed without events, by identity.
        settled: marks to record for tables without such changes, by identity; only those that differ from the recorded
            ones.
        attached: names here of partitions whose rows are copied automatically, by their numbers, by identity of the
            table; `settled` has them.
        left: names here of partitions that the source no longer has, unless they are kept, by their numbers, by
            identity of the table.
    """

    problems: Mapping[str, ChangedTable]
    settled: Mapping[str, RowMark]
    attached: Mapping[str, Mapping[str, TableName]] = field(default_factory=dict)
    left: Mapping[str, Mapping[str, TableName]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """The changes of one table.

    `rows` describes what changed its values. `computed` are columns that the destination computes differently.
    `altered` and `logged` are statements that must precede a copy, here and at the source. `came` and `left` are
    partitions; `removable` are names here of those that left, if the table here has them. `grants` are privileges
    missing to copy partitions that came; `held_by` are error transactions that block their copy.
    """

    rows: tuple[str, ...]
    relabelled: Relabelled | None
    came: Mapping[str, MarkedPart]
    left: Mapping[str, MarkedPart]
    removable: Mapping[str, TableName] = field(default_factory=dict)
    grants: tuple[str, ...] = ()
    held_by: tuple[int, ...] = ()
    computed: tuple[ComputedDifference, ...] = ()
    altered: tuple[str, ...] = ()
    logged: tuple[str, ...] = ()

    @property
    def is_of_all(self) -> bool:
        """Whether the finding concerns the whole table."""
        return bool(self.rows or self.relabelled is not None or self.computed)


def compare_marks(
    source: SourceDatabase,
    destination: InstantiationRecords,
    tables: Sequence[MarkedTable],
    recorded: Mapping[str, RowMark],
    now: Mapping[str, RowMark],
    readiness: Callable[[MarkedTable, str, MarkedPart], Readiness] = lambda table, number, part: Readiness(),  # noqa: ARG005
) -> ChangedRows:
    """Find the tables whose rows changed without events since their marks were recorded.

    Args:
        source: asked how new partitions began.
        destination: asked whether rows of former partitions are there.
        tables: whose rows are at the destination.
        recorded: marks, by identity.
        now: marks, by identity; a table without a mark is skipped.
        readiness: asked about an attached partition, by its number.

    Raises:
        DatabaseUnavailable: one of them does not answer.
    """
    # A partition that is replicated as a table here, too, was copied with its rows.
    copied = {
        number
        for table in tables
        for number, part in recorded.get(table.identity, RowMark()).parts.items()
        if not part.joined
    }
    problems: dict[str, ChangedTable] = {}
    settled: dict[str, RowMark] = {}
    attached: dict[str, dict[str, TableName]] = {}
    departed: dict[str, dict[str, TableName]] = {}
    columns, labels = columns_here(destination, tables), RelabelledTypes(destination)
    for table in tables:
        present, was, here = now.get(table.identity), recorded.get(table.identity), columns.get(table.destination, {})
        if present is None:
            continue
        if was is None:
            settled[table.identity] = taken_over(RowMark(), present, here)
            continue
        computed = compare_computed(
            source, destination, (table.source, table.destination), table.identity, (was, present), here
        )
        renamed = labels.found(was, present, table.source, table.destination)
        found = _changes(source, was, present, here, computed, renamed)
        came = {
            number: part
            for number, part in found.came.items()
            if number in was.parts or (number not in copied and not source.began_empty(number))
        }
        if table.copies_parts and any(source.is_default_part(number) for number in came):
            table = replace(table, copies_parts=False)  # noqa: PLW2901 - its bounds are not its own: others that come or leave move them while it is copied
        left, kept, gone = _departed(destination, table, found.left, present)
        if gone:
            departed[table.identity] = gone
        if kept or follows(table):
            left = {number: part for number, part in left.items() if number not in kept and number not in gone}
        # If all rows changed in another way, the table must be copied, which includes its partitions.
        alone, grants = ({}, ()) if found.is_of_all else _copied_alone(source, destination, table, came)
        alone, came, early, held_by = _beginning(
            alone, came, {number: readiness(table, number, part) for number, part in alone.items()}
        )
        if alone:
            attached[table.identity] = {number: _here(part, table) for number, part in alone.items()}
            gone, left, was = _without_replaced(table, alone, gone, left, was, present)
            departed, settled[table.identity] = (
                {identity: parts for identity, parts in {**departed, table.identity: gone}.items() if parts},
                was,
            )
        has_problem = bool(found.is_of_all or came or left)
        if not has_problem and (early or (follows(table) and departed.get(table.identity))):
            continue  # the mark stays as recorded until these begin, and the others are gone
        if has_problem:
            problems[table.identity] = _problem(
                table, replace(found, came=came, left=left, removable=gone, grants=grants, held_by=held_by)
            )
        if has_problem and (found.rows or found.relabelled or came or left or departed.get(table.identity)):
            now_known = noted_unlogged(was, present)
        else:  # only columns that are computed differently stay in doubt
            now_known = replace(taken_over(was, present, here, computed), kept=kept)
        if now_known != recorded[table.identity]:
            settled[table.identity] = now_known
    return ChangedRows(problems=problems, settled=settled, attached=attached, left=departed)


def _beginning(
    alone: Mapping[str, MarkedPart], came: Mapping[str, MarkedPart], ready: Mapping[str, Readiness]
) -> tuple[dict[str, MarkedPart], dict[str, MarkedPart], list[str], tuple[int, ...]]:
    """Decide which of the partitions to be copied alone begin now.

    Returns those; the ones that came and do not begin; the numbers of those for which it is too early; and the error
    transactions that block some.
    """
    stay = {number: part for number, part in came.items() if number not in ready or ready[number].held_by}
    early = [number for number, each in ready.items() if not each.is_applied]
    held_by = tuple(sorted({error for each in ready.values() for error in each.held_by}))
    begin = {number: part for number, part in alone.items() if number not in stay and number not in early}
    return begin, stay, early, held_by


def _departed(
    destination: InstantiationRecords,
    table: MarkedTable,
    parts: Mapping[str, MarkedPart],
    present: RowMark,
) -> tuple[dict[str, MarkedPart], dict[str, MarkedPart], dict[str, TableName]]:
    """Classify partitions that the source no longer has.

    Returns those whose rows may be here, those of them that are kept, and the names here of those to be removed.
    """
    left = {
        number: part for number, part in parts.items() if destination.may_hold(table.destination, _here(part, table))
    }
    if table.detached == "keep":
        return left, dict(left), {}
    # If another partition has replaced it, only the rows must go.
    names_now = {_here(part, table) for part in present.parts.values()}
    return (
        left,
        {},
        {
            number: name
            for number, part in parts.items()
            if destination.partition_rows(table.destination, name := _here(part, table))
            and (number in left or name not in names_now)
        },
    )


def _without_replaced(
    table: MarkedTable,
    alone: Mapping[str, MarkedPart],
    gone: Mapping[str, TableName],
    left: Mapping[str, MarkedPart],
    was: RowMark,
    present: RowMark,
) -> tuple[dict[str, TableName], dict[str, MarkedPart], RowMark]:
    """Return the removed partitions, those that left, and the mark, adjusted to partitions that are copied alone.

    A former partition with the name of one that came has no rows here any more: the copy empties that partition.
    """
    names = {_here(part, table) for part in alone.values()}
    before = {
        number: part for number, part in was.parts.items() if number in present.parts or _here(part, table) not in names
    }
    return (
        {number: name for number, name in gone.items() if name not in names},
        {number: part for number, part in left.items() if _here(part, table) not in names},
        replace(was, parts=before | dict(alone)),
    )


def follows(table: MarkedTable) -> bool:
    """Return whether partitions that the source no longer has are detached here, too."""
    return table.detached == "follow" and table.may_be_copied and not table.is_reshaped


def _copied_alone(
    source: SourceDatabase,
    destination: InstantiationRecords,
    table: MarkedTable,
    came: Mapping[str, MarkedPart],
) -> tuple[dict[str, MarkedPart], tuple[str, ...]]:
    """Return attached partitions that the destination's table has with the same bounds, and missing grants.

    The grants are statements that are needed to copy further ones of these.
    """
    found, grants = dict[str, MarkedPart](), list[str]()
    for number, part in came.items() if table.copies_parts else ():
        rows, name = source.partition_rows(number), _here(part, table)
        if not rows or rows != destination.partition_rows(table.destination, name):
            continue
        if grant := destination.missing_grant(name):
            grants.append(grant)
        else:
            found[number] = part
    return found, tuple(grants)


def columns_here(
    destination: InstantiationRecords, tables: Sequence[MarkedTable]
) -> dict[TableName, dict[str, MarkedColumn]]:
    """Return the destination's columns of tables.

    Tables reshaped by a transformation are omitted: their columns may have other names there.

    Raises:
        DatabaseUnavailable: it does not answer.
    """
    return destination.marked_columns([table.destination for table in tables if not table.is_reshaped])


def _changes(
    source: SourceDatabase,
    was: RowMark,
    now: RowMark,
    here: Mapping[str, MarkedColumn],
    computed: Computed,
    relabelled: Relabelled | None,
) -> _Changes:
    fields = list(_replaced_fields(was, now))
    rewritten = dict(_rewritten(was, now, here, source.was_written_anew))
    in_parts = [
        f"column {name} was rewritten in partition {part} (SET EXPRESSION)"
        for name, part in rewritten_columns(was, now, here)
        if name not in rewritten
    ]
    return _Changes(
        rows=(
            *replaced_columns(was, now, here),
            *(said for said, _ in fields),
            *rewritten.values(),
            *in_parts,
            *unlogged_parts(was, now),
            *rewritten_parts(was, now, here, source.was_written_anew),
        ),
        computed=computed.differences,
        logged=tuple(logged_again(now)),
        relabelled=relabelled,
        altered=tuple(dict.fromkeys(first for _, first in fields if first)),
        came={
            number: part
            for number, part in now.parts.items()
            if number not in was.parts or was.parts[number].joined != part.joined
        },
        left={number: part for number, part in (was.kept | was.parts).items() if number not in now.parts},
    )


def _replaced_fields(was: RowMark, now: RowMark) -> Iterator[tuple[str, str]]:
    """Describe names that now mean another field of a composite type, each with the step before a copy.

    The step is a statement for the destination; empty: none.
    """
    for key, now_field in now.fields.items():
        earlier = was.fields.get(key)
        if earlier is not None and earlier.place != now_field.place:
            yield f"field {now_field.name} of type {now_field.type_name} is another one of that name", ""
    types = {key.partition(".")[0] for key in now.fields}
    places = {(key.partition(".")[0], each.place): each.name for key, each in now.fields.items()}
    for key, gone in was.fields.items():
        number = key.partition(".")[0]
        if number in types and key not in now.fields:
            called = places.get((number, gone.place))
            owner, type_name = type_parts(gone.type_name)
            shown = quoted_name(TableName(owner, type_name))
            if called:
                yield (
                    f"field {gone.name} of type {gone.type_name} is called {called} now",
                    f"ALTER TYPE {shown} RENAME ATTRIBUTE {quoted(gone.name)} TO {quoted(called)}",
                )
            else:
                yield (
                    f"field {gone.name} of type {gone.type_name} was dropped",
                    f"the ALTER TYPE {shown} that `headrace check` prints",
                )


def _rewritten(
    was: RowMark, now: RowMark, here: Mapping[str, MarkedColumn], was_written_anew: Callable[[str, str], bool]
) -> Iterator[tuple[str, str]]:
    """Return columns whose values an ALTER TABLE rewrote, each with its description.

    It rewrote all files, and the definitions of these columns. If all partitions are new, `began_empty` tells instead.
    """
    kept = kept_parts(was, now)
    if not kept or any(earlier.file == part.file for earlier, part in kept.values()):
        return
    columns = {name: column for name, column in now.columns.items() if not both_compute(column, here.get(name))}
    known = {column.number for column in was.columns.values()}
    new = {name: column for name, column in columns.items() if column.number not in known and name not in was.columns}
    # Next to a default that differs per row, a constant default is written into the rows, too. If the default was
    # dropped since, its kind is unknown.
    for name in [name for name, column in new.items() if column.has_own_values] or new:
        yield name, f"column {name} was added with a default that is not the same for all rows"
    if not may_be_one_alter(kept.values()):
        return
    for name, column in columns.items():
        before = earlier_column(was, name, column)
        if (
            before is not None
            and before.stamp != column.stamp
            and not _is_only_forgotten(before, column, kept, was_written_anew)
        ):
            yield name, f"column {name} was rewritten (ALTER COLUMN ... TYPE ... USING, or the like)"


def _is_only_forgotten(
    before: MarkedColumn,
    column: MarkedColumn,
    kept: Mapping[str, tuple[MarkedPart, MarkedPart]],
    was_written_anew: Callable[[str, str], bool],
) -> bool:
    """Return whether a stamp changed only because the server forgot the values of older rows, without an ALTER TABLE.

    VACUUM FULL does that to a table that has rows itself, and to columns without a default. Only ALTER TABLE stamps the
    columns of a partitioned table.
    """
    if not before.keeps_older or column.keeps_older or not column.stamp.startswith(OF_TRANSACTION):
        return False
    return all(
        not part.joined and not (written_by_alter(earlier, part) or was_written_anew(number, column.stamp))
        for number, (earlier, part) in kept.items()
    )


def _here(part: MarkedPart, table: MarkedTable) -> TableName:
    """Return a partition's name at the destination."""
    return here(part, table.source, table.destination)


def _problem(table: MarkedTable, found: _Changes) -> ChangedTable:
    verify = f"headrace verify FILE {argument(table.source)}"
    again = brought_up(table.source, may_be_copied=table.may_be_copied)
    copy = f"`headrace copy FILE {argument(table.source)}`" if table.may_be_copied else again
    ends = (
        f"this stays until then, or until `{verify}` finds no difference"
        if table.may_be_copied
        else "this stays until it finds no difference"
    )
    came, left = (
        ", ".join(sorted(f"{part.owner}.{part.name}" for part in parts.values())) for parts in (found.came, found.left)
    )
    if found.relabelled is not None and not (found.rows or found.computed or came or left):
        return ChangedTable(
            problem="labels of its enumerated types were renamed at the source: its rows changed without events",
            fix=found.relabelled.fix(copy=copy, verify=verify),
        )
    if found.computed and not (found.rows or found.relabelled is not None or came or left):
        return ChangedTable(
            problem="columns that both sides compute have another expression or type at the source since"
            f" ({'; '.join(map(_computed_here, found.computed))}): rows differ here, and a copy does not change that",
            fix=" ".join(
                (
                    *(f"{statement};" for each in found.computed for statement in each.statements),
                    remark(
                        "; ".join(
                            (
                                *(each.obstacle for each in found.computed if each.obstacle),
                                "at the destination, which then recomputes them for all rows."
                                f" `{verify}` also ends this finding if it finds no difference",
                            )
                        )
                    ),
                )
            ),
        )
    if left and not (found.is_of_all or came):
        # If the table here lacks such a partition, nothing shows here which rows were its own.
        names = ", ".join(str(found.removable[number]) for number in found.left if number in found.removable)
        remove = (
            f"drop or detach {names} at the destination too{', or delete its rows' if table.may_be_copied else ''}; or "
            if found.left.keys() <= found.removable.keys()
            else ""
        )
        return ChangedTable(
            problem=f"the source has no partition {left} of it any more (dropped or detached), and its rows are still"
            " here",
            fix=f"{remove}{again}; {ends}",
        )
    if found.grants and not (found.is_of_all or left):
        return ChangedTable(
            problem=f"partition {came} has rows that are not in the log, and the role may not copy them",
            fix=f"{' '.join(found.grants)} then its rows come; or {again}; {ends}",
        )
    # A partition that left is reported after these are gone: the other one may have replaced it.
    if found.held_by and not found.is_of_all:
        numbers = " ".join(map(str, found.held_by))
        return ChangedTable(
            problem=f"partition {came} has rows that are not in the log, and error transactions that may"
            f" be older ({numbers}) may be of rows that it took over",
            fix=f"`headrace errors execute FILE {numbers}`: when none is left, its rows come; or {again}; {ends}",
        )
    if came and table.copies_parts and not (found.is_of_all or left):
        lacking = ", ".join(str(_here(part, table)) for part in found.came.values())
        return ChangedTable(
            problem=f"partition {came} has rows that are not in the log, and is no partition of the table here",
            fix=f"create {lacking} with the same bounds here, as `headrace check` says: then its rows come; or {again};"
            f" {ends}",
        )
    if came and not table.may_be_copied and not (found.is_of_all or left):
        statements = "; ".join(map(_written_again, found.came.values()))
        return ChangedTable(
            problem=f"partition {came} has rows that are not in the log, and others write the table, too",
            fix="at the source, while no site writes the partition, and when every site has it:"
            f" `{statements}`: then its rows are in the log, and reach every site; or {again}; {ends}",
        )
    what = [*found.rows]
    what += [f"partition {came} has rows that are not in the log"] if came else []
    what += [f"partition {left} was dropped or detached"] if left else []
    if found.relabelled is not None:
        first = found.relabelled.first
        what += [f"labels were renamed{f' (first, {first})' if first else ''}"]
    what += (
        [
            "columns that both sides compute have another expression or type (first, at the destination:"
            f" {'; '.join(done for each in found.computed for done in each.statements or (each.obstacle,))};)"
        ]
        if found.computed
        else []
    )
    first = f"first, at the source: {'; '.join(found.logged)}; then " if found.logged else ""
    first += f"first, at the destination: {'; '.join(found.altered)}; then " if found.altered else ""
    return ChangedTable(
        problem=f"rows changed without events, and may differ here: {'; '.join(what)}",
        fix=f"{first}{again}; {ends}",
    )


def _computed_here(each: ComputedDifference) -> str:
    hanging = f", and on it hang {', '.join(each.hanging)}" if each.hanging else ""
    return f"{each.column}: {each.there}, here {each.here}{hanging}"


def _written_again(part: MarkedPart) -> str:
    """Return statements after which the log has the rows of a partition."""
    name = quoted_name(part)
    return (
        f"BEGIN; CREATE TEMPORARY TABLE attached ON COMMIT DROP AS TABLE {name}; TRUNCATE {name}; INSERT INTO"
        f" {name} OVERRIDING SYSTEM VALUE TABLE attached; COMMIT"
    )
