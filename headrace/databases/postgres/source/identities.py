"""Tables and partitions whose rows the log cannot identify: the server refuses users' own UPDATE and DELETE of them.

It does so for as long as the table is published. Before publication this is what capturing would break. Later it
happens with `REPLICA IDENTITY NOTHING`, a dropped index, a partition created or attached without an identity, or a
virtual generated column together with `REPLICA IDENTITY FULL`. Nothing is lost or differs: a refused change exists
nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from headrace.databases.ports import Finding
from headrace.databases.postgres.catalog.source_tables import CatalogTable, Leaf
from headrace.databases.postgres.connection import qualified
from headrace.lcr.table_name import TableName, remark

__all__ = ["identity_breaks", "identity_findings"]


def identity_breaks(table: CatalogTable) -> tuple[str, ...]:
    """Return users' statements that would start to fail when the table is published."""
    lines = []
    for leaf in table.leaves:
        name = qualified(leaf.owner, leaf.name)
        if not leaf.has_identity:
            lines.append(f"UPDATE and DELETE on {name}: it has no replica identity")
        elif leaf.identity == "f" and leaf.generated_virtual:
            columns = ", ".join(leaf.generated_virtual)
            lines.append(
                f"UPDATE and DELETE on {name}: REPLICA IDENTITY FULL with virtual generated columns ({columns})"
            )
    return tuple(lines)


def identity_findings(table: CatalogTable, path: str, whole: Collection[TableName]) -> Iterator[Finding]:
    """Report statements that users cannot run on a captured table or its partitions, and the fix.

    Args:
        table: the table.
        path: of the site.
        whole: tables and partitions for which a rule needs more of a row than its key.
    """
    where = f"{path} table {table.owner}.{table.name}"
    for leaf in table.leaves:
        leaf_where = where if leaf.number == table.number else f"{where} partition {leaf.owner}.{leaf.name}"
        refused = "your own UPDATE and DELETE on it fail while it is captured"
        if not leaf.has_identity:
            yield Finding(
                path=leaf_where,
                problem=f"{_why_no_identity(leaf.identity)}: {refused}",
                fix=_identified(leaf, needs_whole=TableName.of(leaf) in whole),
            )
        elif leaf.identity == "f" and leaf.generated_virtual:
            yield Finding(
                path=leaf_where,
                problem=f"has REPLICA IDENTITY FULL and virtual generated columns ({', '.join(leaf.generated_virtual)}):"
                f" {refused}",
                fix=_identified(leaf, needs_whole=TableName.of(leaf) in whole),
            )
        elif leaf.unlogged_identity:
            yield Finding(
                path=leaf_where,
                problem=f"its replica identity has generated columns ({', '.join(leaf.unlogged_identity)}), whose"
                " values are not in the log before version 18: changes would not tell which row they are of",
                fix=f"ALTER TABLE {qualified(leaf.owner, leaf.name)} REPLICA IDENTITY FULL;",
            )


def _identified(leaf: Leaf, *, needs_whole: bool) -> str:
    """Return how to give a table an identity. A primary key alone is not enough if another identity was set."""
    alter = f"ALTER TABLE {qualified(leaf.owner, leaf.name)} REPLICA IDENTITY"
    full, default = f"{alter} FULL;", f"{alter} DEFAULT;"
    if leaf.generated_virtual:
        # The server refuses FULL together with them.
        columns = ", ".join(leaf.generated_virtual)
        stored = f"make the virtual columns ({columns}) STORED{'' if leaf.identity == 'f' else f', and {full}'}"
        if needs_whole:
            return stored
        if leaf.has_primary_key:
            return f"{default} {remark(f'or {stored}')}"
        return f"give it a primary key{'' if leaf.identity == 'd' else f', and {default}'} or {stored}"
    if needs_whole:
        return full
    if leaf.has_primary_key:
        return default
    return f"{full} {remark('or give it a primary key' + ('' if leaf.identity == 'd' else f', and {default}'))}"


def _why_no_identity(identity: str) -> str:
    return {
        "n": "its replica identity is NOTHING",
        "i": "the index of its replica identity is gone",
    }.get(identity, "it has neither a primary key (not deferrable) nor another replica identity")
