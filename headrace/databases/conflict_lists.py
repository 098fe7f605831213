"""Findings about conflict handlers that cannot work on a table as it is.

They compare the handlers with its columns, their types, its key, and what the log has of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.databases.ports import DestinationTable, Finding
from headrace.lcr.batch import Command, OldImage, TableVersion
from headrace.lcr.table_name import Named, quoted, quoted_name, whole_rows
from headrace.rules.conflict_handlers import BY_COLUMN, ConflictHandler, ConflictRules, TableConflicts

__all__ = ["conflict_list_findings"]

_COMPARING = {"update_differs": Command.UPDATE, "delete_differs": Command.DELETE}
"""Kinds of conflicts detected by comparing old values."""


def conflict_list_findings(
    apply: str,
    rules: ConflictRules,
    version: TableVersion,
    table: DestinationTable,
    *,
    at_source: Named | None = None,
) -> Iterator[Finding]:
    """Check the conflict settings of one table of an apply process.

    Args:
        apply: name of the apply process.
        rules: its handlers.
        version: the table as its rows arrive, under the destination's name.
        table: the destination's table.
        at_source: the table under its name at the source; None: the same.
    """
    path = f"applies.{apply} table {version.qualified_name}"
    mine = rules.of(version.owner, version.name)
    names = [column.name for column in version.columns]
    if mine.handlers and not table.key:
        yield Finding(
            path=path,
            problem="has conflict handlers, and no key that identifies a row",
            fix="add a primary key at the destination, or remove the handlers",
        )
    for handler in mine.handlers:
        yield from _handler_findings(f"{path} {handler} on {handler.kind}", handler, version, table)
    key = {table.columns[place].name for place in table.key}
    for operation, columns in mine.uncompared:
        for name in sorted(columns):
            here = f"{path} compare_old_values ({operation})"
            if name not in names:
                yield _unknown(here, name, names)
            elif name in key:
                yield Finding(
                    path=here,
                    problem=f"{name} is in the key, which finds the row",
                    fix="leave it out: only columns outside the key are compared",
                )
    if mine.times is not None and not mine.compares_all:
        yield Finding(
            path=path,
            problem="latest_timestamp lets the last change win with its whole row, and compare_old_values or"
            " compare_key_only leaves columns out",
            fix="compare every column of the table, or use other handlers",
        )
    yield from () if mine.times is not None else _unseen(path, mine, [name for name in names if name not in key])
    lacking = sorted(name for name in key if name not in names) if mine.times is not None else []
    if lacking:
        yield Finding(
            path=path,
            problem=f"latest_timestamp knows the rows by the key of the destination's table, and {', '.join(lacking)}"
            " of it does not arrive",
            fix="let the destination's primary key be of columns that arrive, or use other handlers",
        )
    if version.old_image is not OldImage.FULL and (needed := _needing_old_values(mine.handlers)):
        yield Finding(
            path=path,
            problem=f"the source's log has no old values of the table outside its key, and {', '.join(needed)} needs"
            " them",
            fix=f"at the source: {whole_rows(at_source or version)}",
        )


def _unseen(path: str, mine: TableConflicts, names: list[str]) -> Iterator[Finding]:
    """Report handlers that are never called, because the values that would differ are not compared.

    `names`: columns outside the key.
    """
    for handler in mine.handlers:
        command = _COMPARING.get(handler.kind)
        listed = [name for name in handler.columns or names if name in names]
        unseen = [name for name in listed if command is not None and not mine.compares(command, name)]
        if not unseen or (len(unseen) < len(listed) and handler.method != "delta"):
            continue
        what = (
            "puts the LCR's number in place of the row's, without a conflict, where"
            if handler.method == "delta"
            else "is never asked, because"
        )
        yield Finding(
            path=f"{path} {handler} on {handler.kind}",
            problem=f"{what} compare_old_values or compare_key_only leaves {', '.join(unseen)} out",
            fix="compare them, or remove the handler",
        )


def _needing_old_values(handlers: tuple[ConflictHandler, ...]) -> list[str]:
    return sorted({f"{each} on {each.kind}" for each in handlers if each.needs_old_values})


def _handler_findings(
    path: str, handler: ConflictHandler, version: TableVersion, table: DestinationTable
) -> Iterator[Finding]:
    names = [column.name for column in version.columns]
    key = {table.columns[place].name for place in table.key}
    outside = tuple(name for name in names if name not in key)
    there = {column.name: column for column in table.columns}
    resolution = (handler.resolution_column,) if handler.resolution_column else ()
    for name in dict.fromkeys((*handler.columns, *resolution)):
        if name not in names:
            yield _unknown(path, name, names)
        elif name in key:
            yield Finding(
                path=path, problem=f"{name} is in the key, and a key column is in no column list", fix="leave it out"
            )
    if (
        (handler.method, handler.kind) == ("site_priority", "update_differs")
        and not handler.columns
        and len(outside) > 1
    ):
        yield Finding(
            path=path,
            is_error=False,
            problem="has every column outside the key in one list: where an UPDATE changes some of them alone, and the"
            " other site others of them at the same time, the sites can differ, without an error",
            fix="give each column, or columns that always change together, an entry of their own with `columns`"
            " (docs/how/conflicts.md), unless every UPDATE changes all of them",
        )
    of_sums = handler.columns or outside
    types = {column.name: column.type_name for column in version.columns}
    for name in [each for each in of_sums if each in there] if handler.method == "delta" else ():
        if not there[name].is_number:
            yield Finding(
                path=path,
                problem=f"delta cannot add values of {name}, which is"
                f" {there[name].type_name.removeprefix('pg_catalog.')}",
                fix="list columns of whole numbers or numeric only (floating point adds up to something else in another"
                " order)",
            )
        if types.get(name) in there[name].converted:
            yield Finding(
                path=path,
                problem=f"delta cannot add values of {name}, which a function of the schema headrace converts from"
                f" {types[name].removeprefix('pg_catalog.')}",
                fix="give the column its source's type, or use another handler",
            )
    decides = there.get(handler.resolution_column)
    if handler.method in BY_COLUMN and decides is not None and not decides.is_ordered:
        yield Finding(
            path=path,
            problem=f"the resolution column {decides.name} is {decides.type_name.removeprefix('pg_catalog.')}, whose"
            " values have no order",
            fix="name a column with a number, a time or a text",
        )
    elif handler.method in BY_COLUMN and decides is not None and not decides.has_one_order:
        yield Finding(
            path=path,
            is_error=False,
            problem=f"texts of the resolution column {decides.name} have the order of a collation: a site with another"
            " one, or another version of it, decides otherwise, and the sites differ",
            fix=f"name a column with a number or a time; or at every site: ALTER TABLE {quoted_name(version)} ALTER"
            f' COLUMN {quoted(decides.name)} TYPE ... COLLATE "C";',
        )


def _unknown(path: str, name: str, names: list[str]) -> Finding:
    return Finding(path=path, problem=f"the table has no column {name}", fix=f"name one of {', '.join(names)}")
