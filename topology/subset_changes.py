"""Edits of a topology that change which rows of a replicated table belong to a destination, or what the table looks like there.

A destination's rows were copied as one subset, and its changes were cut to it. Another subset leaves rows there that no change comes for any
more, or lacks rows that were never copied. Likewise, rows were copied in one shape, and LCRs of that shape may be in queues: behind another
transformation they would be transformed twice, or not at all. So such an edit is refused: it is made in two, and the table is copied anew
between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from databases.ports import Finding
from rules.transformation import Transformation
from streams.table_name import TableName
from topology.change_classes import ChangeClasses
from topology.spec import TopologySpec
from topology.ways import Way, arriving, ways_to

__all__ = ["ChangedShape", "changed_shapes", "leaves_shapes", "shape_changes", "subset_changes"]


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
                    fix=f"take {table} out of the rules, run `headrace up` and `headrace wait FILE --caught-up`, then give it the new subset and run `headrace up` again:"
                    " it is copied anew",
                )


def shape_changes(before: TopologySpec, after: TopologySpec) -> Iterator[Finding]:
    """Tables that would arrive at a destination in another shape, or would be transformed elsewhere on the way.

    Args:
        before: what was prepared last.
        after: what is wanted. Both are routed.
    """
    for found in changed_shapes(before, after):
        yield Finding(
            path=f"applies.{found.apply}",
            problem=f"{found.table} would arrive at {found.site} {found.wanted}, and was copied {found.was}",
            fix=f"take {found.table} out of the rules, run `headrace up` and `headrace wait FILE --caught-up`, then give it the new transformation and run"
            " `headrace up` again: it is copied anew",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedShape:
    """A table that arrives otherwise in one topology than in another.

    Args:
        apply: name of the apply process.
        source, site: its source's site, and its own.
        table: an example of those that change alike, as the source calls it.
        was, wanted: what becomes of it on the way, in words.
    """

    apply: str
    source: str
    site: str
    table: TableName
    was: str
    wanted: str


def changed_shapes(before: TopologySpec, after: TopologySpec) -> Iterator[ChangedShape]:
    """The first table of each apply process whose shape, or the place where it gets it, differs.

    Args:
        before: one topology.
        after: the other one. Both are routed.
    """
    if not (transforms(before) or transforms(after)):
        return
    known = {apply.name: apply for apply in before.applies}
    tables = [TableName(*table) for table in ChangeClasses.of(before, after).tables]
    for apply in after.applies:
        old = known.get(apply.name)
        if old is None or (old.source, old.site) != (apply.source, apply.site):
            continue
        ways_before, ways_after = ways_to(before, old), ways_to(after, apply)
        for table in tables:
            was, wanted = _on_the_way(ways_before, table), _on_the_way(ways_after, table)
            if was is not None and wanted is not None and was != wanted:
                yield ChangedShape(
                    apply=apply.name, source=apply.source, site=apply.site, table=table, was=_shape_text(was), wanted=_shape_text(wanted),
                )
                break  # the patterns of one rule have many examples


def leaves_shapes(before: TopologySpec, after: TopologySpec) -> bool:
    """Whether a table that a client transforms stops to arrive at an apply process that stays: LCRs of its shape may be on the way.

    Args:
        before: what was prepared last.
        after: what takes its place. Both are routed.
    """
    if not transforms(before):
        return False
    known = {apply.name: apply for apply in after.applies}
    tables = [TableName(*table) for table in ChangeClasses.of(before, after).tables]
    for old in before.applies:
        apply = known.get(old.name)
        if apply is None or (old.source, old.site) != (apply.source, apply.site):
            continue
        ways_before, ways_after = ways_to(before, old), ways_to(after, apply)
        if any(_on_the_way(ways_before, table) and _on_the_way(ways_after, table) is None for table in tables):
            return True
    return False


def transforms(spec: TopologySpec) -> bool:
    """Whether any client of a topology transforms."""
    return any(client.rules.transforms for clients in (spec.captures, spec.propagations, spec.applies) for client in clients)


def _on_the_way(ways: Sequence[Way], table: TableName) -> tuple[tuple[str, Transformation], ...] | None:
    """What becomes of a table, and where; None: it does not arrive."""
    way = next((way for way in ways if way.carry(table) is not None), None)
    if way is None:
        return None
    # Between which queues, and not by whom: LCRs of the old shape may wait in any of them. A split stream is where its queue is by the file.
    hops = (f"from {each.split_from or each.from_queue} to {each.to_queue}" for each in way.propagations)
    kinds = ("at capture", *hops, "at apply")
    found = ((kind, client.rules.transformation_of(*table)) for kind, client in zip(kinds, way.clients, strict=True))
    # Another version of a function is no other shape: what was copied stays, as the operator knows who runs `up`.
    return tuple((kind, each.without_code()) for kind, each in found if each is not None)


def _shape_text(found: tuple[tuple[str, Transformation], ...]) -> str:
    return "; ".join(f"{each} ({kind})" for kind, each in found) or "as it is"


def _subset_tables(way: Way) -> Iterator[TableName]:
    for client in way.clients:
        yield from (TableName(rule.owner, rule.name) for rule in client.rules.include or () if rule.subset is not None)


def _rows(ways: Sequence[Way], table: TableName) -> str | None:
    """The subset of a table that arrives; None: nothing of it arrives."""
    return next((each.rows for each in arriving(ways, [table])), None)


def _text(rows: str) -> str:
    return f"those for which {rows}" if rows else "all"
