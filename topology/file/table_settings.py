"""Table settings of a destination in a file: substitute keys, and rows that do not fit.

They are for all apply processes or for one. As with conflict handlers, a list under an apply process replaces the
file's own list for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.databases.ports import Finding
from headrace.rules.table_settings import KeyColumns, TableSettings, TriggerFiring
from topology.file.shape.models import (
    ApplyModel,
    ConflictHandlerModel,
    KeyColumnsModel,
    TopologyModel,
    TriggerModel,
)

__all__ = ["table_setting_findings", "table_settings"]


def table_settings(top: TopologyModel, own: ApplyModel | None) -> TableSettings:
    """Return the table settings of an apply process.

    Args:
        top: the file.
        own: its entry; None: the file has none.
    """
    keys = top.key_columns if own is None or own.key_columns is None else own.key_columns
    duplicates = (
        top.allow_duplicate_rows if own is None or own.allow_duplicate_rows is None else own.allow_duplicate_rows
    )
    mismatch = top.column_mismatch if own is None or own.column_mismatch is None else own.column_mismatch
    checked = top.check_foreign_keys if own is None or own.check_foreign_keys is None else own.check_foreign_keys
    detached = top.detached_partitions if own is None or own.detached_partitions is None else own.detached_partitions
    return TableSettings(
        key_columns=tuple(
            KeyColumns(owner=each.table[0], name=each.table[1], columns=tuple(each.columns)) for each in keys
        ),
        allow_duplicate_rows=duplicates,
        column_mismatch=mismatch,
        detached_partitions=detached,
        check_foreign_keys=bool(checked),
        foreign_keys_of=() if isinstance(checked, bool) else tuple((each[0], each[1]) for each in checked),
        triggers=tuple(
            TriggerFiring(owner=each.table[0], name=each.table[1], trigger=each.trigger, fire=each.fire)
            for each in (top.triggers if own is None or own.triggers is None else own.triggers)
        ),
    )


def table_setting_findings(top: TopologyModel, applies: Mapping[str, ApplyModel]) -> Iterator[Finding]:
    """Yield problems between entries that are each correct.

    Args:
        top: the file.
        applies: its apply processes, as written.
    """
    yield from _repeated("", top.key_columns, top.triggers)
    yield from _timed("key_columns", top.key_columns, top.conflict_handlers)
    for name, model in applies.items():
        yield from _repeated(f"applies.{name}.", model.key_columns or (), model.triggers or ())
        if model.key_columns is not None or model.conflict_handlers is not None:
            keys = top.key_columns if model.key_columns is None else model.key_columns
            handlers = top.conflict_handlers if model.conflict_handlers is None else model.conflict_handlers
            yield from _timed(
                "key_columns" if model.key_columns is None else f"applies.{name}.key_columns", keys, handlers
            )


def _timed(path: str, keys: Sequence[KeyColumnsModel], handlers: Sequence[ConflictHandlerModel]) -> Iterator[Finding]:
    """Yield substitute keys of tables with latest_timestamp.

    Commit times of their rows are recorded by the primary key, also by triggers.
    """
    timed = {tuple(each.table) for each in handlers if each.method == "latest_timestamp"}
    for place, model in enumerate(keys):
        if tuple(model.table) in timed:
            yield Finding(
                path=f"{path}[{place}]",
                problem=f"{'.'.join(model.table)} has the handler latest_timestamp, which needs the primary key",
                fix="remove the substitute key, or choose another conflict handler",
            )


def _repeated(path: str, keys: Sequence[KeyColumnsModel], triggers: Sequence[TriggerModel]) -> Iterator[Finding]:
    """Yield duplicate entries of both lists."""
    yield from _again(f"{path}key_columns", [tuple(each.table) for each in keys], "{} has a substitute key already, {}")
    yield from _again(
        f"{path}triggers", [(*each.table, each.trigger) for each in triggers], "the trigger {} is listed already, {}"
    )


def _again(path: str, names: Sequence[tuple[str, ...]], problem: str) -> Iterator[Finding]:
    seen: dict[tuple[str, ...], int] = {}
    for place, name in enumerate(names):
        if name in seen:
            yield Finding(
                path=f"{path}[{place}]",
                problem=problem.format(".".join(name), f"{path}[{seen[name]}]"),
                fix="keep one of them",
            )
        seen.setdefault(name, place)
