"""Edits that change which rows of a replicated table belong to a destination, or the table's shape there.

A destination's rows were copied as one subset, and its changes were cut to it. Another subset leaves rows there that no
change reaches any more, or lacks rows that were never copied. Likewise, rows were copied in one shape, and LCRs of that
shape may be in queues: behind another transformation they would be transformed twice, or not at all. So Headrace
refuses such an edit. The operator makes it in two steps, and the table is copied anew between them.
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
    """Yield tables whose subset at a destination would change.

    Args:
        before: the topology prepared last.
        after: the wanted topology. Both are routed.
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
                    " copied: rows would be left over, or missing",
                    fix=f"take {table} out of the rules, run `headrace up` and `headrace wait FILE --caught-up`, then"
                    " give it the new subset and run `headrace up` again: it is copied anew",
                )
            elif wanted and (queue := _uncut_in(ways_before, ways_after, table)):
                yield Finding(
                    path=f"applies.{apply.name}",
                    problem=f"the subset of {table} would move to a client before queue {queue}, which has changes of"
                    " other rows, and no client behind it would discard them",
                    fix="give the subset to the client before the queue, and keep it at the client behind it; run"
                    " `headrace up` and `headrace wait FILE --caught-up`, then remove it from the client behind and run"
                    " `headrace up` again",
                )


def shape_changes(before: TopologySpec, after: TopologySpec) -> Iterator[Finding]:
    """Yield tables that would arrive at a destination in another shape, or would be transformed elsewhere on the way.

    Args:
        before: the topology prepared last.
        after: the wanted topology. Both are routed.
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
            fix="free the name first: run `headrace up` without the table, then `headrace wait FILE --caught-up`, then"
            " `headrace up` with this file: it is copied anew."
            f" If it is that table, renamed at {taken.source}, restore its name there instead, and keep the previous"
            " file",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedShape:
    """A table that arrives differently in two topologies.

    Args:
        apply: name of the apply process.
        source, site: its source's site, and its own.
        table: an example of the tables that change alike, as the source calls it.
        was, wanted: its treatment on the way, in words.
    """

    apply: str
    source: str
    site: str
    table: TableName
    was: str
    wanted: str


def changed_shapes(before: TopologySpec, after: TopologySpec) -> Iterator[ChangedShape]:
    """Yield each apply process's first table whose shape differs, or the place where it gets that shape.

    Args:
        before: one topology.
        after: the other one. Both are routed.
    """
    if transforms(before) or transforms(after):
        yield from _first_of_each_apply(before, after, lambda was, wanted: was.transformed != wanted.transformed)


def strangers_on_the_way(earlier: TopologySpec, after: TopologySpec) -> Iterator[ChangedShape]:
    """Yield each apply process's first table whose rows from an earlier topology would stop a client of the new one.

    The destination discards rows older than its copy, but a client on the way meets them first.

    Args:
        earlier: a topology that the table left.
        after: one in which it is back, and copied anew. Both are routed.
    """
    if transforms(earlier) or any(client.rules.transforms or client.rules.looks_at_rows for client in _clients(after)):
        yield from _first_of_each_apply(earlier, after, _stops_at)
    yield from _names_taken_over(earlier, after)


def leaves_tables(before: TopologySpec, after: TopologySpec) -> bool:
    """Return whether a table no longer arrives at an apply process whose source and site stay.

    LCRs of its shape may be in flight.

    Args:
        before: the topology prepared last.
        after: its successor. Both are routed.
    """
    if _clients_rules(before) == _clients_rules(after):
        return False
    classes = ChangeClasses.of(before, after)

    def arrive(ways: Sequence[Way]) -> int:
        return reduce(or_, (classes.tables_of(classes.carried_by(way.clients)) for way in ways), 0)

    return any(arrive(ways_before) & ~arrive(ways_after) for ways_before, ways_after in _pairs(before, after))


def counterpart(apply: ApplySpec, others: Sequence[ApplySpec], stay: Collection[str] = ()) -> ApplySpec | None:
    """Return another topology's apply process from the same source at the same site, preferably of the same name.

    Args:
        apply: of one topology.
        others: those of the other one.
        stay: names of apply processes in both topologies; they are the counterpart only of themselves.
    """
    there = [each for each in others if (each.source, each.site) == (apply.source, apply.site)]
    return next(
        (each for each in there if each.name == apply.name),
        next((each for each in there if each.name not in stay), None),
    )


def _names_taken_over(before: TopologySpec, after: TopologySpec) -> Iterator[ChangedShape]:
    """Yield each apply process's first table whose name in a queue belonged to another table there.

    A later client would take its rows for the other's. The receivers of the other table do not matter: the queue is the
    same for all its readers.
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
    """Yield the tables that arrive, each with its source, a queue on its way and its name there.

    Tags can distinguish two tables of one name.
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
    """Yield the ways to each apply process of `after`, after those to its counterpart in `before`."""
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
        for table in tables:  # one is enough: the patterns of one rule have many examples
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
    """The treatment of a table from client to client.

    Args:
        clients: of each client in order: its place, its transformation of the table, its conditions on rows' old
            values, and the queue behind it.
    """

    clients: tuple[tuple[str, Transformation | None, tuple[Condition, ...], str], ...]

    @property
    def transformed(self) -> tuple[tuple[str, Transformation], ...]:
        """The transformations with their places."""
        return tuple((kind, each) for kind, each, _, _ in self.clients if each is not None)

    @property
    def asked(self) -> frozenset[tuple[str, Condition]]:
        """The conditions on old values with their places."""
        return frozenset((kind, each) for kind, _, asked, _ in self.clients for each in asked)

    @property
    def text(self) -> str:
        """The treatment in words."""
        found = [
            *(f"{each} ({kind})" for kind, each in self.transformed),
            *(f"those for which {each.text} ({kind})" for kind, each in sorted(self.asked, key=str)),
        ]
        return "; ".join(found) or "as it is"

    def held(self) -> dict[str, tuple[tuple[str, Transformation], ...]]:
        """Return the transformations that the rows in each queue have passed."""
        found: dict[str, tuple[tuple[str, Transformation], ...]] = {}
        so_far: tuple[tuple[str, Transformation], ...] = ()
        for kind, each, _, queue in self.clients:
            so_far = so_far if each is None else (*so_far, (kind, each))
            if queue:
                found[queue] = so_far
        return found


def _stops_at(was: _OnTheWay, wanted: _OnTheWay) -> bool:
    """Return whether rows of one shape stop a client of the other way.

    That client asks for values that they lack, or transforms rows of another shape.
    """
    if was.transformed:
        return was.transformed != wanted.transformed or not wanted.asked <= was.asked
    held = wanted.held()
    # queues with plain rows in which transformed rows are expected
    others = [queue for queue in was.held() if held.get(queue)]
    behind = [queue for *_, queue in wanted.clients]
    is_transformed = any(
        each is not None for queue in others for _, each, _, _ in wanted.clients[behind.index(queue) + 1 :]
    )
    return is_transformed or not wanted.asked <= was.asked


def transforms(spec: TopologySpec) -> bool:
    """Return whether any client of a topology transforms."""
    return any(client.rules.transforms for client in _clients(spec))


def _on_the_way(ways: Sequence[Way], table: TableName) -> _OnTheWay | None:
    """Return the treatment of a table on its way; None: it does not arrive."""
    way = next((way for way in ways if way.carry(table) is not None), None)
    if way is None:
        return None
    # The place is a pair of queues, not a propagation: LCRs of the old shape can be in any of them. A split stream has
    # the place of its queue in the file.
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
        # Another version of a function is not another shape: the copied rows stay, and the operator who runs `up` knows
        # that.
        found.append((kind, None if transformation is None else transformation.without_code(), asked, queue))
    return _OnTheWay(tuple(found))


def _asks_old_values(condition: Condition) -> bool:
    """Return whether the condition may need old values that earlier rows were logged without."""
    return condition.form == "subset" or any(each.image is not Image.NEW for each in condition.columns)


def _has_subset(way: Way) -> bool:
    return any(rule.subset is not None for client in way.clients for rule in client.rules.include or ())


def _rows(ways: Sequence[Way], table: TableName) -> str | None:
    """Return the subset of a table that arrives; None: nothing of it arrives."""
    return next((each.rows for each in arriving(ways, [table])), None)


def _uncut_in(ways_before: Sequence[Way], ways_after: Sequence[Way], table: TableName) -> str:
    """Return a queue with changes of a table that were not cut to its whole subset, and no longer would be.

    Empty if no queue has such changes. An apply process evaluates the subsets of the clients before it once more, but
    not behind another name (`topology.routing.ways.rules_at_the_end`).
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
    """Return the queue behind each client of a way except the last."""
    return (way.capture.queue, *(each.to_queue for each in way.propagations))


def _subsets(way: Way, table: TableName) -> tuple[str | None, ...]:
    """Return the condition in SQL by which each client of a way cuts a table's rows; None: it takes all."""
    found = (client.rules.subset_of(*each.table) for client, each in zip(way.clients, way.passages(table), strict=True))
    return tuple(None if each is None else where_true(each) for each in found)


def _text(rows: str) -> str:
    return f"those for which {rows}" if rows else "all"
