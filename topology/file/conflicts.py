"""What a file says of conflicts: handlers and compared values, of all apply processes or of one.

A handler belongs to a table at a destination, and the same handlers at every site make replicas equal again: so the file says it
once, at its top, for every apply process. An apply process that lists its own has these alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from databases.ports import Finding
from rules.conflict_handlers import (
    HISTORY_AGE_DEFAULT_S,
    HISTORY_COUNT_DEFAULT,
    ConflictHandler,
    ConflictRules,
    HistoryBounds,
    UncomparedColumns,
)
from topology.file.models import ApplyModel, ConflictHandlerModel, TopologyModel, UncomparedModel
from topology.problems import nearest
from topology.spec import TopologySpec

__all__ = ["conflict_findings", "conflict_rules"]

_DAY_S = 86_400.0


def conflict_rules(top: TopologyModel, own: ApplyModel | None) -> ConflictRules:
    """What holds for an apply process.

    Args:
        top: the file.
        own: its entry; None: the file has none.
    """
    handlers = top.conflict_handlers if own is None or own.conflict_handlers is None else own.conflict_handlers
    uncompared = top.compare_old_values if own is None or own.compare_old_values is None else own.compare_old_values
    history = top.conflict_history
    return ConflictRules(
        handlers=tuple(_handler(each) for each in handlers), uncompared=tuple(_uncompared(each) for each in uncompared),
        compare_key_only=top.compare_key_only if own is None or own.compare_key_only is None else own.compare_key_only,
        history=HistoryBounds(
            count=history.count or HISTORY_COUNT_DEFAULT,
            age_s=HISTORY_AGE_DEFAULT_S if history.age_days is None else history.age_days * _DAY_S,
        ),
    )


def conflict_findings(top: TopologyModel, applies: Mapping[str, ApplyModel], spec: TopologySpec) -> Iterator[Finding]:
    """What is wrong with handlers that are well by themselves.

    Args:
        top: the file.
        applies: its apply processes, as written.
        spec: what it was read as.
    """
    sites = [site.name for site in spec.sites]
    yield from _listed("conflict_handlers", top.conflict_handlers, sites)
    for name, model in applies.items():
        yield from _listed(f"applies.{name}.conflict_handlers", model.conflict_handlers or (), sites)


def _listed(path: str, models: Sequence[ConflictHandlerModel], sites: Sequence[str]) -> Iterator[Finding]:
    for number, model in enumerate(models):
        here = f"{path}[{number}]"
        for place, earlier in enumerate(models[:number]):
            if (earlier.table, earlier.on) != (model.table, model.on):
                continue
            table = ".".join(model.table)
            both = sorted(set(model.columns or ()) & set(earlier.columns or ()))
            if model.on != "update_differs":
                yield Finding(path=here, problem=f"{table} has a handler for {model.on} already, {path}[{place}]", fix="keep one of them")
            elif both or model.columns is None or earlier.columns is None:
                what = f"{', '.join(both)} of {table}" if both else f"every column of {table} outside its key"
                yield Finding(
                    path=here, problem=f"{what} is in the column list of {path}[{place}] already", fix="put a column into one column list only",
                )
        for site in model.priority or ():
            if site not in sites:
                yield Finding(path=f"{here}.priority", problem=f"there is no site {site!r}", fix=nearest(site, sites))
        if model.priority and len(set(model.priority)) < len(model.priority):
            yield Finding(path=f"{here}.priority", problem="names a site twice", fix="name every site once")


def _handler(model: ConflictHandlerModel) -> ConflictHandler:
    owner, name = model.table
    return ConflictHandler(
        owner=owner, name=name, method=model.method, kind=model.on, columns=tuple(model.columns or ()),
        resolution_column=model.resolution_column or "", priority=tuple(model.priority or ()),
    )


def _uncompared(model: UncomparedModel) -> UncomparedColumns:
    owner, name = model.table
    return UncomparedColumns(owner=owner, name=name, columns=tuple(model.columns), operations=tuple(dict.fromkeys(model.operations)))
