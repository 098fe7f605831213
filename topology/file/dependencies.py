"""Dependencies between the transactions of an apply process in a file.

These are the commit order and virtual dependency definitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.databases.ports import Finding
from headrace.rules.virtual_dependencies import ObjectDependency, ValueColumns, ValueDependency, VirtualDependencies
from topology.file.shape.models import ApplyModel

__all__ = ["dependency_findings", "virtual_dependencies"]


def virtual_dependencies(model: ApplyModel) -> VirtualDependencies:
    """Return the definitions of one apply process."""
    return VirtualDependencies(
        values=tuple(
            ValueDependency(
                name=name,
                tables=tuple(
                    ValueColumns(owner=each.table[0], name=each.table[1], columns=tuple(each.columns))
                    for each in entries
                ),
            )
            for name, entries in model.value_dependencies.items()
        ),
        objects=tuple(
            ObjectDependency(
                owner=each.table[0], name=each.table[1], parent_owner=each.parent[0], parent_name=each.parent[1]
            )
            for each in model.object_dependencies
        ),
    )


def dependency_findings(applies: Mapping[str, ApplyModel]) -> Iterator[Finding]:
    """Yield problems between definitions that are each correct.

    Args:
        applies: the apply processes of a file, as written.
    """
    for name, model in applies.items():
        for label, entries in model.value_dependencies.items():
            here = f"applies.{name}.value_dependencies.{label}"
            tables = [".".join(each.table) for each in entries]
            if not tables:
                yield Finding(
                    path=here,
                    problem="names no table",
                    fix="list tables and columns, such as {table: shop.orders, columns: [number]}",
                )
            for table in sorted({table for table in tables if tables.count(table) > 1}):
                yield Finding(path=here, problem=f"names {table} twice", fix="name every table once")
            counts = {table: len(each.columns) for table, each in zip(tables, entries, strict=True)}
            if len(set(counts.values())) > 1:
                found = ", ".join(f"{table} has {count}" for table, count in counts.items())
                yield Finding(
                    path=here,
                    problem=f"its tables have different numbers of columns: {found}",
                    fix="list equally many columns for each table: the first column of one is compared with the first"
                    " of the others",
                )
        seen = set()
        for number, each in enumerate(model.object_dependencies):
            here = f"applies.{name}.object_dependencies[{number}]"
            if each.table == each.parent:
                yield Finding(
                    path=here,
                    problem=f"{'.'.join(each.table)} is its own parent",
                    fix="name another table as parent, or parallelism: 1",
                )
            if (each.table, each.parent) in seen:
                yield Finding(path=here, problem="is a duplicate", fix="remove one of them")
            seen.add((each.table, each.parent))
