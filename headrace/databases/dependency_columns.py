"""Findings about virtual dependency definitions that cannot work on the tables as they are.

They compare the definitions with the tables' columns and with what the log has of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from headrace.databases.ports import DestinationColumn, DestinationTable, Finding, are_comparable
from headrace.lcr.batch import OldImage, TableVersion
from headrace.lcr.table_name import TableName, quoted_name
from headrace.rules.virtual_dependencies import VirtualDependencies

__all__ = ["dependency_column_findings"]


def dependency_column_findings(
    apply: str,
    definitions: VirtualDependencies,
    versions: Sequence[TableVersion],
    describe: Callable[[str, str], DestinationTable | None],
    *,
    at_source: Mapping[TableName, TableName] | None = None,
) -> Iterator[Finding]:
    """Check the definitions of one apply process.

    Args:
        apply: its name.
        definitions: its definitions.
        versions: its tables, as their rows arrive, under the destination's names.
        describe: the destination's description of a table (owner, name).
        at_source: the tables' names at the source, by their names here; a missing table has the same name.
    """
    arriving = {(version.owner, version.name): version for version in versions}
    for owner, name in dict.fromkeys(definitions.tables()):
        if (owner, name) not in arriving:
            yield Finding(
                path=f"applies.{apply}",
                problem=f"has a virtual dependency definition for {owner}.{name}, a table that it does not get",
                fix="correct the name, or remove the table from the definition",
                is_error=False,
            )
    for value in definitions.values:
        here = f"applies.{apply}.value_dependencies.{value.name}"
        found: dict[str, list[DestinationColumn]] = {}
        for each in value.tables:
            version, table = arriving.get((each.owner, each.name)), describe(each.owner, each.name)
            if version is None or table is None:
                continue
            names = [column.name for column in version.columns]
            unknown = [column for column in each.columns if column not in names]
            for column in unknown:
                yield Finding(
                    path=here,
                    problem=f"{each.owner}.{each.name} has no column {column}",
                    fix=f"name one of {', '.join(names)}",
                )
            if unknown:
                continue
            there = {column.name: column for column in table.columns}
            found[f"{each.owner}.{each.name}"] = [there[column] for column in each.columns if column in there]
            key = {column.name for column in version.columns if column.is_key}
            lacking = [column for column in each.columns if column not in key]
            if lacking and version.old_image is not OldImage.FULL:
                yield Finding(
                    path=here,
                    is_error=False,
                    problem=f"the source's log has no old values of {', '.join(lacking)} of {each.owner}.{each.name}:"
                    " every UPDATE and DELETE of it waits for all others of this definition",
                    fix="at the source: ALTER TABLE"
                    f" {quoted_name((at_source or {}).get(TableName.of(version), TableName.of(version)))} REPLICA"
                    " IDENTITY FULL;",
                )
        if not are_comparable(list(found.values())):
            yield Finding(
                path=here,
                is_error=False,
                problem=f"the columns of {', '.join(found)} have types whose values cannot be compared by their bytes:"
                " all rows of these tables depend on each other",
                fix="give the columns the same type everywhere (integers of any size are the same)",
            )
