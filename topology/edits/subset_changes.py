"""Edits of a topology that change which rows of a replicated table belong to a destination, or what the table looks like there.

A destination's rows were copied as one subset, and its changes were cut to it. Another subset leaves rows there that no
change comes for any more, or lacks rows that were never copied. Likewise, rows were copied in one shape, and LCRs of
that shape may be in queues: behind another transformation they would be transformed twice, or not at all. So such an
edit is refused: it is made in two, and the table is copied anew between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from headrace.databases.ports import Finding
from headrace.lcr.table_name import TableName
from headrace.rules.conditions.condition import Condition
from headrace.rules.conditions.nodes import Image
from headrace.rules.conditions.spelling import where_true
from headrace.rules.rule import RuleSet
from headrace.rules.transformations.transformation import Transformation
from topology.routing.change_classes import ChangeClasses
from topology.routing.ways import Way, arriving, ways_to
from topology.spec import ApplySpec, CaptureSpec, PropagationSpec, TopologySpec

__all__ = [
    "ChangedShape",
    "changed_shapes",
    "counterpart",
    "leaves_tables",
    "shape_changes",
    "strangers_on_the_way",
    "subset_changes",
]


def subset_changes(before: TopologySpec, after: TopologySpec) -> Iterator[Finding]:
    """Tables whose subset at a destination would change.

    Args:
        before: what was prepared last.
        after: what is wanted. Both are routed.
    """
    known = {apply.name: apply for apply in before.applies}
    tables = [TableName(*table) for table in ChangeClasses.of(before, after).tables]
    for apply in after.applies:
        old = known.get(apply.name)
        if old is None or (old.source, old.site) != (apply.source, apply.site):
            continue
        ways_before, ways_after = ways_to(before, old), ways_to(after, apply)
        for table in tables if any(map(_has_subset, (*ways_before, *ways_after))) else ():
            was, wanted = _rows(ways_before, table), _rows(ways_after, table)
            if was is not None and wanted is not None and was != wanted:
                yield Finding(
                    path=f"applies.{apply.name}",
                    problem=f"the rows of {table} at {apply.site} would be {_text(wanted)}, and {_text(was)} were"
                    " copied: others would be left, or missing",
                    fix=f"take {table} out of the rules, run `headrace up` and `headrace wait FILE --caught-up`, then"
                    " give it the new subset and run `headrace up` again: it is copied anew",
                )
            elif wanted and (queue := _uncut_in(ways_before, ways_after, table)):
                yield Finding(
                    path=f"applies.{apply.name}",
                    problem=f"the subset of {table} would move to a client before queue {queue}, which has changes of"
                    " other rows, and no client behind it would leave them out",
                    fix="give the client before the subset, and leave it at the one behind, too; run `headrace up` and"
                    " `headrace wait FILE --caught-up`, then take it out there and run `headrace up` again",
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
            fix=f"take {found.table} out of the rules, run `headrace up` and `headrace wait FILE --caught-up`, then"
            " give it the new transformation and run `headrace up` again: it is copied anew",
        )
    for taken in _names_taken_over(before, after):
        yield Finding(
            path=f"applies.{taken.apply}",
            problem=f"{taken.table} would come {taken.wanted} on the way to {taken.site}, and that was {taken.was}:"
            " clients between could not tell their changes apart",
            fix="leave the name free first: run `headrace up` without it, then `headrace wait FILE --caught-up`, then"
            " `headrace up` with this file: it is copied anew."
            f" If it is that table, which was renamed at {taken.source}, give it its name back there instead, and leave"
            " the file as it was",
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
    if transforms(before) or transforms(after):
        yield from _first_of_each_apply(before, after, lambda was, wanted: was.transformed != wanted.transformed)


def strangers_on_the_way(earlier: TopologySpec, after: TopologySpec) -> Iterator[ChangedShape]:
    """The first table of each apply process of which rows that were sent by an earlier topology stop a client of another one.

    Its rows below the copy are discarded at the destination, but a client before that meets them.

    Args:
        earlier: a topology that the table left.
        after: one in which it is back, and copied anew. Both are routed.
    """
    if transforms(earlier) or any(client.rules.transforms or client.rules.looks_at_rows for client in _clients(after)):
        yield from _first_of_each_apply(earlier, after, _stops_at)
    yield from _names_taken_over(earlier, after)


def leaves_tables(before: TopologySpec, after: TopologySpec) -> bool:
    """Whether a table stops to arrive at an apply process whose source and site stay.

    LCRs of its shape may be on the way.

    Args:
        before: what was prepared last.
        after: what takes its place. Both are routed.
    """
    if _clients_rules(before) == _clients_rules(after):
        return False
    classes = ChangeClasses.of(before, after)

    def arrive(ways: Sequence[Way]) -> int:
        return reduce(or_, (classes.tables_of(classes.carried_by(way.clients)) for way in ways), 0)

    return any(arrive(ways_before) & ~arrive(ways_after) for ways_before, ways_after in _pairs(before, after))


def counterpart(apply: ApplySpec, others: Sequence[ApplySpec], stay: Collection[str] = ()) -> ApplySpec | None:
    """The apply process of another topology that gets the same source's changes at the same site, under its name if there is one.

    Args:
        apply: of one topology.
        others: those of the other one.
        stay: names of apply processes that are in both, which are nobody else's counterpart.
    """
    there = [each for each in others if (each.source, each.site) == (apply.source, apply.site)]
    return next(
        (each for each in there if each.name == apply.name),
        next((each for each in there if each.name not in stay), None),
    )


def _names_taken_over(before: TopologySpec, after: TopologySpec) -> Iterator[ChangedShape]:
    """The first table of each apply process that has a name in a queue which another table had there.

    A client behind would take its rows for the other's.

    Whoever got the other one: the queue is the same for all who read it.
    """
    if not any(client.rules.renames for spec in (before, after) for client in _clients(spec)):
        return
    tables = [TableName(*table) for table in ChangeClasses.of(before, after).tables]
    was: dict[tuple[str, str, TableName], dict[TableName, None]] = {}
    for apply in before.applies:
        for key, table in _names_in_queues(ways_to(before, apply), tables):
            was.setdefault(key, {})[table] = None
    for apply in after.applies:
        wanted = _names_in_queues(ways_to(after, apply), tables)
        found = next(((key, table) for key, table in wanted if key in was and table not in was[key]), None)
        if found is not None:
            key, table = found
            yield ChangedShape(
                apply=apply.name,
                source=apply.source,
                site=apply.site,
                table=table,
                was=f"the name of {next(iter(was[key]))}",
                wanted=f"as {key[2]}",
            )


def _names_in_queues(
    ways: Sequence[Way], tables: Sequence[TableName]
) -> Iterator[tuple[tuple[str, str, TableName], TableName]]:
    """The tables that arrive, each with its source, a queue that it comes through and its name there.

    Tags may tell two of one name apart.
    """
    for way in ways:
        for table in tables:
            if way.carry(table) is not None:
                yield from (
                    ((way.capture.source, queue, each.behind), table)
                    for queue, each in zip(_queues(way), way.passages(table), strict=False)
                )


def _clients(spec: TopologySpec) -> tuple[CaptureSpec | PropagationSpec | ApplySpec, ...]:
    return (*spec.captures, *spec.propagations, *spec.applies)


def _clients_rules(spec: TopologySpec) -> list[tuple[str, RuleSet]]:
    return [(client.name, client.rules) for client in _clients(spec)]


def _pairs(before: TopologySpec, after: TopologySpec) -> Iterator[tuple[tuple[Way, ...], tuple[Way, ...]]]:
    """The ways to each apply process of `after`, behind those to the one that it had the place of."""
    names = {apply.name for apply in before.applies} & {apply.name for apply in after.applies}
    for apply in after.applies:
        old = counterpart(apply, before.applies, names)
        if old is not None:
            yield ways_to(before, old), ways_to(after, apply)


def _first_of_each_apply(
    before: TopologySpec,
    after: TopologySpec,
    differ: Callable[[_OnTheWay, _OnTheWay], bool],
) -> Iterator[ChangedShape]:
    tables = [TableName(*table) for table in ChangeClasses.of(before, after).tables]
    for ways_before, ways_after in _pairs(before, after):
        for table in tables:  # the patterns of one rule have many examples
            was, wanted = _on_the_way(ways_before, table), _on_the_way(ways_after, table)
            if was is not None and wanted is not None and differ(was, wanted):
                apply = ways_after[0].apply
                yield ChangedShape(
                    apply=apply.name,
                    source=apply.source,
                    site=apply.site,
                    table=table,
                    was=was.text,
                    wanted=wanted.text,
                )
                break


@dataclass(frozen=True, slots=True)
class _OnTheWay:
    """What becomes of a table from client to client.

    Args:
        clients: of each client in order: where it is, its transformation of the table, what it asks of rows' old
            values, and the queue behind it.
    """

    clients: tuple[tuple[str, Transformation | None, tuple[Condition, ...], str], ...]

    @property
    def transformed(self) -> tuple[tuple[str, Transformation], ...]:
        """The transformations, and where."""
        return tuple((kind, each) for kind, each, _, _ in self.clients if each is not None)

    @property
    def asked(self) -> frozenset[tuple[str, Condition]]:
        """What is asked of old values, and where."""
        return frozenset((kind, each) for kind, _, asked, _ in self.clients for each in asked)

    @property
    def text(self) -> str:
        """It as words."""
        found = [
            *(f"{each} ({kind})" for kind, each in self.transformed),
            *(f"those for which {each.text} ({kind})" for kind, each in sorted(self.asked, key=str)),
        ]
        return "; ".join(found) or "as it is"

    def held(self) -> dict[str, tuple[tuple[str, Transformation], ...]]:
        """What the rows in each queue have become."""
        found: dict[str, tuple[tuple[str, Transformation], ...]] = {}
        so_far: tuple[tuple[str, Transformation], ...] = ()
        for kind, each, _, queue in self.clients:
            so_far = so_far if each is None else (*so_far, (kind, each))
            if queue:
                found[queue] = so_far
        return found


def _stops_at(was: _OnTheWay, wanted: _OnTheWay) -> bool:
    """Whether rows of one shape stop a client of the other way.

    It asks what they cannot answer, or transforms what they are not.
    """
    if was.transformed:
        return was.transformed != wanted.transformed or not wanted.asked <= was.asked
    held = wanted.held()
    # plain rows are there, and transformed ones are expected
    others = [queue for queue in was.held() if held.get(queue)]
    behind = [queue for *_, queue in wanted.clients]
    is_transformed = any(
        each is not None for queue in others for _, each, _, _ in wanted.clients[behind.index(queue) + 1 :]
    )
    return is_transformed or not wanted.asked <= was.asked


def transforms(spec: TopologySpec) -> bool:
    """Whether any client of a topology transforms."""
    return any(client.rules.transforms for client in _clients(spec))


def _on_the_way(ways: Sequence[Way], table: TableName) -> _OnTheWay | None:
    """What becomes of a table, and where; None: it does not arrive."""
    way = next((way for way in ways if way.carry(table) is not None), None)
    if way is None:
        return None
    # Between which queues, and not by whom: LCRs of the old shape may wait in any of them. A split stream is where its
    # queue is by the file.
    hops = (f"from {each.split_from or each.from_queue} to {each.to_queue}" for each in way.propagations)
    kinds = ("at capture", *hops, "at apply")
    found = []
    for kind, client, queue, (name, transformation, _) in zip(
        kinds, way.clients, (*_queues(way), ""), way.passages(table), strict=True
    ):
        rules = (*(client.rules.include or ()), *client.rules.exclude) if client.rules.looks_at_rows else ()
        asked = tuple(
            each
            for rule in rules
            if rule.dml and rule.matches_object(*name)
            for each in rule.conditions
            if _asks_old_values(each)
        )
        # Another version of a function is no other shape: what was copied stays, as the operator knows who runs `up`.
        found.append((kind, None if transformation is None else transformation.without_code(), asked, queue))
    return _OnTheWay(tuple(found))


def _asks_old_values(condition: Condition) -> bool:
    """Whether rows from before their old values were logged may be unable to answer."""
    return condition.form == "subset" or any(each.image is not Image.NEW for each in condition.columns)


def _has_subset(way: Way) -> bool:
    return any(rule.subset is not None for client in way.clients for rule in client.rules.include or ())


def _rows(ways: Sequence[Way], table: TableName) -> str | None:
    """The subset of a table that arrives; None: nothing of it arrives."""
    return next((each.rows for each in arriving(ways, [table])), None)


def _uncut_in(ways_before: Sequence[Way], ways_after: Sequence[Way], table: TableName) -> str:
    """A queue with changes of a table that were not cut to its whole subset, and would not be any more.

    Empty: there is none.

    An apply process evaluates the subsets of the clients before it once more, but not behind another name
    (`topology.routing.ways.rules_at_the_end`).
    """
    way = next((way for way in ways_after if way.carry(table) is not None), None)
    before = next((way for way in ways_before if way.carry(table) is not None), None)
    if way is None or before is None or not any(client.rules.renames for client in way.clients[:-1]):
        return ""
    cut, wanted = _subsets(before, table), _subsets(way, table)
    places = {queue: place for place, queue in enumerate(_queues(way), 1)}
    for place, queue in enumerate(_queues(before), 1):
        if queue in places and not set(filter(None, wanted)) <= {*cut[:place], *wanted[places[queue] :]}:
            return queue
    return ""


def _queues(way: Way) -> tuple[str, ...]:
    """The queues behind each client of a way but the last."""
    return (way.capture.queue, *(each.to_queue for each in way.propagations))


def _subsets(way: Way, table: TableName) -> tuple[str | None, ...]:
    """What each client of a way leaves of a table's rows, as a condition in SQL; None: all."""
    found = (client.rules.subset_of(*each.table) for client, each in zip(way.clients, way.passages(table), strict=True))
    return tuple(None if each is None else where_true(each) for each in found)


def _text(rows: str) -> str:
    return f"those for which {rows}" if rows else "all"
