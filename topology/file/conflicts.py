"""Conflict handlers and compared values in a file, for all apply processes or for one.

A handler belongs to a table at a destination, and only the same handlers at every site make replicas converge. So the
file lists them once, at its top, for every apply process. An apply process with its own list uses that list alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.databases.ports import Finding
from headrace.rules.conflict_handlers import (
    HISTORY_AGE_DEFAULT_S,
    HISTORY_COUNT_DEFAULT,
    TIMED_KINDS,
    TOMBSTONES_AGE_DEFAULT_S,
    TOMBSTONES_COUNT_DEFAULT,
    ConflictHandler,
    ConflictRules,
    HistoryBounds,
    RowTimes,
    UncomparedColumns,
)
from topology.file.shape.models import ApplyModel, ConflictHandlerModel, TombstonesModel, TopologyModel, UncomparedModel
from topology.problems import nearest

__all__ = ["conflict_findings", "conflict_rules"]

_DAY_S = 86_400.0


def conflict_rules(top: TopologyModel, own: ApplyModel | None, site: str = "") -> ConflictRules:
    """Return the conflict rules of an apply process.

    Args:
        top: the file.
        own: its entry; None: the file has none.
        site: where it applies.
    """
    handlers = top.conflict_handlers if own is None or own.conflict_handlers is None else own.conflict_handlers
    uncompared = top.compare_old_values if own is None or own.compare_old_values is None else own.compare_old_values
    history, tombstones = top.conflict_history, top.tombstones or TombstonesModel()
    is_timed = any(each.method == "latest_timestamp" for each in handlers)
    return ConflictRules(
        handlers=tuple(found for each in handlers for found in _handlers(each, sorted(top.sites))),
        uncompared=tuple(_uncompared(each) for each in uncompared),
        compare_key_only=top.compare_key_only if own is None or own.compare_key_only is None else own.compare_key_only,
        history=HistoryBounds(
            count=history.count or HISTORY_COUNT_DEFAULT,
            age_s=HISTORY_AGE_DEFAULT_S if history.age_days is None else history.age_days * _DAY_S,
        ),
        times=None
        if not is_timed
        else RowTimes(
            site=site,
            sites=tuple(sorted(top.sites)),
            has_tombstones=top.tombstones is not None,
            age_s=TOMBSTONES_AGE_DEFAULT_S if tombstones.retention_days is None else tombstones.retention_days * _DAY_S,
            count=tombstones.count or TOMBSTONES_COUNT_DEFAULT,
        ),
    )


def conflict_findings(top: TopologyModel, applies: Mapping[str, ApplyModel]) -> Iterator[Finding]:
    """Yield problems between handlers that are each correct.

    Args:
        top: the file.
        applies: its apply processes, as written.
    """
    sites = list(top.sites)  # also those that have problems of their own
    yield from _listed("conflict_handlers", top.conflict_handlers, sites)
    for name, model in applies.items():
        yield from _listed(f"applies.{name}.conflict_handlers", model.conflict_handlers or (), sites)


def _listed(path: str, models: Sequence[ConflictHandlerModel], sites: Sequence[str]) -> Iterator[Finding]:
    for number, model in enumerate(models):
        here = f"{path}[{number}]"
        for place, earlier in enumerate(models[:number]):
            if earlier.table == model.table and "latest_timestamp" in {model.method, earlier.method}:
                yield Finding(
                    path=here,
                    problem=f"{'.'.join(model.table)} has the handler {path}[{place}] already, and latest_timestamp"
                    " decides about the whole row",
                    fix="keep one of them",
                )
                continue
            if (earlier.table, earlier.on) != (model.table, model.on):
                continue
            table = ".".join(model.table)
            both = sorted(set(model.columns or ()) & set(earlier.columns or ()))
            if model.on != "update_differs":
                yield Finding(
                    path=here,
                    problem=f"{table} has a handler for {model.on} already, {path}[{place}]",
                    fix="keep one of them",
                )
            elif both or model.columns is None or earlier.columns is None:
                what = f"{', '.join(both)} of {table}" if both else f"every column of {table} outside its key"
                yield Finding(
                    path=here,
                    problem=f"{what} is in the column list of {path}[{place}] already",
                    fix="put a column into one column list only",
                )
        for site in model.priority or ():
            if site not in sites:
                yield Finding(path=f"{here}.priority", problem=f"there is no site {site!r}", fix=nearest(site, sites))
        lacking = [site for site in sites if model.priority and site not in model.priority]
        if model.method == "latest_timestamp" and lacking:
            yield Finding(
                path=f"{here}.priority",
                problem=f"lacks {', '.join(lacking)}: latest_timestamp decides ties between all sites",
                fix="list every site, or remove priority (then the site whose name sorts first wins a tie)",
            )
        if model.priority and len(set(model.priority)) < len(model.priority):
            yield Finding(path=f"{here}.priority", problem="names a site twice", fix="name every site once")


def _handlers(model: ConflictHandlerModel, sites: Sequence[str]) -> Iterator[ConflictHandler]:
    """Yield the handlers of an entry: latest_timestamp becomes a handler of every kind that time can decide."""
    if model.method != "latest_timestamp":
        yield _handler(model)
        return
    owner, name = model.table
    for kind in TIMED_KINDS:
        yield ConflictHandler(
            owner=owner, name=name, method=model.method, kind=kind, priority=tuple(model.priority or sites)
        )


def _handler(model: ConflictHandlerModel) -> ConflictHandler:
    owner, name = model.table
    return ConflictHandler(
        owner=owner,
        name=name,
        method=model.method,
        kind=model.on,
        columns=tuple(model.columns or ()),
        resolution_column=model.resolution_column or "",
        priority=tuple(model.priority or ()),
    )


def _uncompared(model: UncomparedModel) -> UncomparedColumns:
    owner, name = model.table
    return UncomparedColumns(
        owner=owner, name=name, columns=tuple(model.columns), operations=tuple(dict.fromkeys(model.operations))
    )
