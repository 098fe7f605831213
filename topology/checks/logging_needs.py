"""Supplemental logging: the columns that a source's log must have, derived from everything that a topology configures.

Each kind of configuration that needs values in the log has one function in `NEEDS` or `LISTED`. It names the tables,
the client and the reason.

Source: Oracle Streams Replication Administrator's Guide, "Specifying Supplemental Logging".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from headrace.databases.ports import LogNeed
from headrace.rules.rule import Rule
from topology.routing.ways import ways_to
from topology.spec import TopologySpec

__all__ = ["listed_needs", "log_needs"]


def log_needs(spec: TopologySpec, source: str) -> tuple[LogNeed, ...]:
    """Return everything that clients of a source's changes need in its log beyond keys, which are always logged.

    Args:
        spec: routed.
        source: site name.
    """
    return tuple(dict.fromkeys(need for needing in NEEDS for need in needing(spec, source)))


def listed_needs(spec: TopologySpec, source: str) -> tuple[LogNeed, ...]:
    """Return what `plan` lists: `log_needs`, and the needs of conflict handlers and dependencies.

    Args:
        spec: routed.
        source: site name.
    """
    return tuple(dict.fromkeys(need for needing in (*NEEDS, *LISTED) for need in needing(spec, source)))


def _conditions(spec: TopologySpec, source: str) -> Iterator[LogNeed]:
    """Yield the needs of rules with conditions and subsets, of every client that the changes pass."""
    for apply in spec.applies:
        for way in ways_to(spec, apply) if apply.source == source else ():
            kinds = ("captures", *("propagations" for _ in way.propagations), "applies")
            for place, (kind, client) in enumerate(zip(kinds, way.clients, strict=True)):
                before = tuple(each.rules for each in way.clients[:place] if each.rules.transforms)
                for section, rules in (("include", client.rules.include or ()), ("exclude", client.rules.exclude)):
                    for number, rule in enumerate(rules):
                        if rule.dml and rule.looks_at_rows:
                            key = (
                                "subset"
                                if rule.subset is not None
                                else rule.condition.form
                                if rule.condition is not None
                                else ""
                            )
                            yield LogNeed(
                                place=f"{kind}.{client.name}.rules.{section}[{number}].{key}", rule=rule, before=before
                            )


def _handlers(spec: TopologySpec, source: str) -> Iterator[LogNeed]:
    """Yield binds of statement DML handlers, and the columns that functions are declared to need."""
    for apply in spec.applies:
        for way in ways_to(spec, apply) if apply.source == source else ():
            before = tuple(each.rules for each in way.clients)
            for entry, handler in apply.handlers.of_rows():
                has_old = not {"update", "delete"}.isdisjoint(handler.operations)
                needed = dict.fromkeys(("old", column) for column in handler.columns if has_old)
                if "update" in handler.operations:
                    needed |= dict.fromkeys(("new", column) for column in handler.columns)
                for image, column in handler.binds:
                    if "update" in handler.operations or (image == "old" and "delete" in handler.operations):
                        needed[image, column] = None
                if needed:
                    yield LogNeed(
                        place=f"applies.{apply.name}.{entry}",
                        rule=Rule(owner=handler.owner, name=handler.name),
                        before=before,
                        old=tuple(column for image, column in needed if image == "old"),
                        new=tuple(column for image, column in needed if image == "new"),
                    )


def _keys(spec: TopologySpec, source: str) -> Iterator[LogNeed]:
    """Yield substitute keys: the log must have old values of the columns that find a row."""
    for apply in spec.applies:
        for way in ways_to(spec, apply) if apply.source == source else ():
            before = tuple(each.rules for each in way.clients)
            for each in apply.tables.key_columns:
                yield LogNeed(
                    place=f"applies.{apply.name}.key_columns",
                    rule=Rule(owner=each.owner, name=each.name),
                    before=before,
                    old=each.columns,
                )


def _functions(spec: TopologySpec, source: str) -> Iterator[LogNeed]:
    """Yield the needs of functions in rules, which read new values of the columns that they can change."""
    for apply in spec.applies:
        for way in ways_to(spec, apply) if apply.source == source else ():
            kinds = ("captures", *("propagations" for _ in way.propagations), "applies")
            for place, (kind, client) in enumerate(zip(kinds, way.clients, strict=True)):
                before = tuple(each.rules for each in way.clients[: place + 1] if each.rules.transforms)
                for number, rule in enumerate(client.rules.include or ()):
                    custom = None if rule.transformation is None else rule.transformation.custom
                    if custom is not None:
                        yield LogNeed(
                            place=f"{kind}.{client.name}.rules.include[{number}].transform",
                            rule=Rule(owner=rule.owner, name=rule.name),
                            before=before,
                            new=custom.columns or (),
                            function=custom.function.name,
                        )


def _conflicts(spec: TopologySpec, source: str) -> Iterator[LogNeed]:
    """Yield the needs of conflict handlers: old values detect a conflict, new ones of the whole column list resolve it."""
    for apply in spec.applies:
        for way in ways_to(spec, apply) if apply.source == source else ():
            before = tuple(each.rules for each in way.clients)
            for each in apply.conflicts.handlers:
                if each.needs_old_values:
                    columns = tuple(
                        dict.fromkeys((*each.columns, *([each.resolution_column] if each.resolution_column else ())))
                    )
                    is_list = bool(each.columns) and each.kind == "update_differs"
                    yield LogNeed(
                        place=f"applies.{apply.name}.conflict_handlers ({each} on {each.kind})",
                        rule=Rule(owner=each.owner, name=each.name),
                        before=before,
                        old=columns if is_list else (),
                        new=columns if each.kind == "update_differs" and each.method != "discard" else (),
                        every_old=not is_list,
                    )


def _dependencies(spec: TopologySpec, source: str) -> Iterator[LogNeed]:
    """Yield the needs of value dependencies: rows also depend on each other by the values before a change."""
    for apply in spec.applies:
        for way in ways_to(spec, apply) if apply.source == source else ():
            before = tuple(each.rules for each in way.clients)
            for definition in apply.dependencies.values:
                for each in definition.tables:
                    yield LogNeed(
                        place=f"applies.{apply.name}.value_dependencies.{definition.name}",
                        rule=Rule(owner=each.owner, name=each.name),
                        before=before,
                        old=each.columns,
                    )


LISTED: Final[tuple[Callable[[TopologySpec, str], Iterator[LogNeed]], ...]] = (_conflicts, _dependencies)
"""Needs that only `plan` lists.

The checks of a table find whether it lacks them: `headrace.databases.conflict_lists`,
`headrace.databases.dependency_columns`.
"""

NEEDS: Final[tuple[Callable[[TopologySpec, str], Iterator[LogNeed]], ...]] = (_conditions, _handlers, _keys, _functions)
