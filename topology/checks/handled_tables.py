"""Checks of the tables that handlers name: do their rows arrive at the apply process?

The file alone shows it of tables that no rule on the way can name, under any name. The preflight asks the same of the
tables that exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from headrace.databases.ports import Finding
from headrace.lcr.table_name import TableName
from headrace.rules.transformations.transformation import TransformationError
from headrace.rules.user_code.handlers import ErrorHandler
from topology.routing.ways import Way, ways_to
from topology.spec import ApplySpec, TopologySpec

__all__ = ["handlers_of_nothing", "unreachable_tables"]


def unreachable_tables(spec: TopologySpec) -> Iterator[Finding]:
    """Yield handlers of tables whose rows never arrive, because no rule can name them.

    Args:
        spec: routed, every apply process with a way, without `overlap_findings`.
    """
    for apply in spec.applies:
        yield from handlers_of_nothing(apply, partial(_may_arrive, ways_to(spec, apply)))


def handlers_of_nothing(apply: ApplySpec, arrives: Callable[[TableName], bool]) -> Iterator[Finding]:
    """Yield handlers of tables that do not arrive at their apply process.

    A conflict handler may be of a table into which DML handlers write: its `tables` name it. Rows of their own need not
    arrive there.

    Args:
        apply: the apply process.
        arrives: whether rows of a table, under its name at the destination, arrive there.
    """
    rules = apply.handlers
    listed = {TableName(*table) for each in rules.dml for table in each.tables}
    conflicts = {TableName(*table) for table in apply.conflicts.tables}
    handled = {TableName(*table) for table in rules.handled} | {
        TableName(each.owner, each.name) for each in rules.errors
    }
    lacks = "a table that it does not get from"
    for table in sorted(handled):
        if not arrives(table):
            yield Finding(
                path=f"applies.{apply.name}",
                problem=f"has a handler for {table}, {lacks} {apply.source}",
                fix="correct the name, or list the handler under the apply process that gets the table",
                is_error=False,
            )
    for entry, handler in rules.of_rows():
        named = () if isinstance(handler, ErrorHandler) else sorted(TableName(*table) for table in handler.tables)
        for table in named:
            if table not in conflicts and not arrives(table):
                yield Finding(
                    path=f"applies.{apply.name}.{entry}.tables",
                    problem=f"lists {table}, {lacks} {apply.source}: there are no rows whose order could be kept",
                    fix="correct the name, or remove it: list only tables that arrive",
                    is_error=False,
                )
    for table in sorted(conflicts - listed):
        if not arrives(table):
            written = "; if a DML handler writes LCRs into the table, list it under `tables` of that handler"
            yield Finding(
                path=f"applies.{apply.name}",
                problem=f"has a conflict handler for {table}, {lacks} {apply.source}",
                fix="correct the name, or list the handler under the apply process that gets the table"
                f"{written if rules.dml else ''}",
                is_error=False,
            )


def _may_arrive(ways: Sequence[Way], table: TableName) -> bool:
    return any(_may_carry(way, table) for way in ways)


def _may_carry(way: Way, table: TableName) -> bool:
    """Return whether a table of the source may arrive under a name; True if the file alone does not show it."""
    names = _earlier_names(way, table)
    try:
        return names is None or any(way.carry(name) == table for name in names)
    except TransformationError:  # reported elsewhere
        return True


def _earlier_names(way: Way, table: TableName) -> Sequence[TableName] | None:
    """Return every name that a table with this name behind the way may have before it; None: they cannot be listed."""
    names = [table]
    for client in reversed(way.clients):
        for rule in client.rules.include or ():
            change = rule.transformation
            if change is None or not change.renames:
                continue
            found = [
                TableName(rule.owner, rule.name if change.new_name else each.name)
                for each in names
                if (each == change.new_name if change.new_name else each.owner == change.new_owner)
            ]
            if any(set("*?") & set(f"{each.owner}{rule.name if change.new_name else ''}") for each in found):
                return None
            names += [each for each in found if each not in names]
    return names
