"""Edits of a topology that change which rows of a replicated table belong to a destination.

A destination's rows were copied as one subset, and its changes were cut to it. Another subset leaves rows there that no change comes for any
more, or lacks rows that were never copied. So such an edit is refused: it is made in two, and the table is copied anew between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from databases.ports import Finding
from streams.table_name import TableName
from topology.spec import TopologySpec
from topology.ways import Way, arriving, ways_to

__all__ = ["subset_changes"]


def subset_changes(before: TopologySpec, after: TopologySpec) -> Iterator[Finding]:
    """Tables whose subset at a destination would change.

    Args:
        before: what was prepared last.
        after: what is wanted. Both are routed.
    """
    known = {apply.name: apply for apply in before.applies}
    for apply in after.applies:
        old = known.get(apply.name)
        if old is None or (old.source, old.site) != (apply.source, apply.site):
            continue
        ways_before, ways_after = ways_to(before, old), ways_to(after, apply)
        for table in dict.fromkeys(table for way in (*ways_before, *ways_after) for table in _subset_tables(way)):
            was, wanted = _rows(ways_before, table), _rows(ways_after, table)
            if was is not None and wanted is not None and was != wanted:
                yield Finding(
                    path=f"applies.{apply.name}",
                    problem=f"the rows of {table} at {apply.site} would be {_text(wanted)}, and {_text(was)} were copied: others would be left, or missing",
                    fix=f"take {table} out of the rules, run `headrace up`, then give it the new subset and run `headrace up` again: it is copied anew",
                )


def _subset_tables(way: Way) -> Iterator[TableName]:
    for client in way.clients:
        yield from (TableName(rule.owner, rule.name) for rule in client.rules.include or () if rule.subset is not None)


def _rows(ways: Sequence[Way], table: TableName) -> str | None:
    """The subset of a table that arrives; None: nothing of it arrives."""
    return next((each.rows for each in arriving(ways, [table])), None)


def _text(rows: str) -> str:
    return f"those for which {rows}" if rows else "all"
