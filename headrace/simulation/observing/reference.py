"""Reference evaluation of rules for one change, row by row in plain Python.

It determines what a simulated site must have, independently of the pipeline.

A client's rule sets are followed as in the manuals. A negative rule discards, a positive rule takes, a subset rule
makes rows migrate, and then the transformation of the rule that took the change runs. This module does not work on
batches, prefilter by name, or compile conditions. It evaluates conditions with `headrace.rules.conditions.rowwise`, the
reference of the compiled ones, and has its own implementation of the transformations.

Source: as `headrace.rules.row_evaluation`, `headrace.rules.subsetting` and
`headrace.rules.transformations.transformation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

from headrace.base.errors import ConfigError
from headrace.databases.connectors import python_values, value_types
from headrace.lcr.batch import Column, Command, OldImage, TableVersion, content_version
from headrace.lcr.building import batch_of_values
from headrace.lcr.row_lcr import RowLcr
from headrace.lcr.scn import NO_OBJECT
from headrace.lcr.values import NULL
from headrace.rules.conditions.condition import Condition
from headrace.rules.conditions.rowwise import is_true_of, truth_values
from headrace.rules.rule import Rule, RuleSet, TruthValue
from headrace.rules.transformations.calling import loaded_function
from headrace.rules.transformations.custom import CustomTransformation
from headrace.rules.transformations.transformation import (
    AddColumn,
    DeleteColumns,
    KeepColumns,
    RenameColumn,
    RenameSchema,
    RenameTable,
    Transformation,
)

__all__ = ["ANY_TIME", "RowChange", "Values", "evaluated", "followed"]

Values = Mapping[str, bytes | None]
"""A row by column name, in text form."""

ANY_TIME = b"2000-01-01 00:00:00.000000+00"
"""The value of an added `current_timestamp` here; it is never compared with a site's value."""

_FUNCTIONS_MAX = 256  # per topology


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """One change of one row, with the whole row before and after.

    Args:
        owner, name: the table's name at this point of the way.
        columns: the table's columns, in any order.
        command: INSERT, UPDATE or DELETE.
        old: the row before; None: INSERT.
        new: the row after; None: DELETE.
    """

    owner: str
    name: str
    columns: tuple[Column, ...]
    command: Command
    old: Values | None = None
    new: Values | None = None


def evaluated(rules: RuleSet, change: RowChange, tag: bytes | None, source: str) -> list[RowChange]:
    """Return what a client makes of a change.

    Args:
        rules: the client's rules.
        change: the change as it arrives at the client.
        tag: tag of its transaction.
        source: the site whose log has it.

    Returns:
        Empty: the change is discarded. Several: a function made several changes of it.

    Raises:
        ConfigError: a function cannot process it.
    """
    if any(_is_true(rule, change, tag, source) for rule in rules.exclude):
        return []
    if rules.include is None:
        return [change]
    takers = [rule for rule in rules.include if _is_true(rule, change, tag, source)]
    made = (
        change
        if any(rule.subset is None for rule in takers)
        else _migrated([rule.subset for rule in takers if rule.subset is not None], change)
    )
    if not takers or made is None:
        return []
    # `check` ensures that rules which take the same table transform it alike.
    transformation = takers[0].transformation
    return [made] if transformation is None else followed(transformation, made, source)


def _is_true(rule: Rule, change: RowChange, tag: bytes | None, source: str) -> bool:
    """Return whether a rule takes a change, apart from its subset."""
    if (
        not rule.dml
        or not rule.matches_object(change.owner, change.name)
        or rule.tags.answer(tag) is not TruthValue.TRUE
    ):
        return False
    return rule.condition is None or truth_values(rule.condition.tree, _lcr(change, tag, source), value_types()) == {
        True
    }


def _migrated(subsets: Sequence[Condition], change: RowChange) -> RowChange | None:
    """Return the change of the rows in one of the subsets; None: neither row is in one."""
    was, now = (
        row is not None
        and any(
            is_true_of(subset.tree, change.columns, [row[column.name] for column in change.columns], value_types())
            for subset in subsets
        )
        for row in (change.old, change.new)
    )
    if was and now:
        return change
    if now:
        return replace(change, command=Command.INSERT, old=None)
    return replace(change, command=Command.DELETE, new=None) if was else None


def followed(transformation: Transformation, change: RowChange, source: str) -> list[RowChange]:
    """Return a change after a transformation.

    Args:
        transformation: of the rule that took it.
        change: the change before it.
        source: the site whose log has it.

    Raises:
        ConfigError: its function cannot process the change.
    """
    for step in transformation.operations:
        match step:
            case RenameTable():
                change = replace(change, owner=step.owner, name=step.name)
            case RenameSchema():
                change = replace(change, owner=step.owner)
            case KeepColumns():
                change = _with(change, {c.name: c.name for c in change.columns if c.name in step.kept})
            case DeleteColumns():
                change = _with(change, {c.name: c.name for c in change.columns if c.name not in step.deleted})
            case RenameColumn():
                change = _with(
                    change, {c.name: step.after if c.name == step.before else c.name for c in change.columns}
                )
            case AddColumn():
                value = ANY_TIME if step.is_now else None if step.value is None else step.value.encode()
                change = replace(
                    change,
                    columns=(*change.columns, Column(name=step.name, type_name=step.type_name)),
                    old=None if change.old is None else {**change.old, step.name: value},
                    new=None if change.new is None else {**change.new, step.name: value},
                )
    return [change] if transformation.custom is None else _called(transformation.custom, change, source)


def _with(change: RowChange, names: Mapping[str, str]) -> RowChange:
    """Return the change with some of its columns, given their names before and after."""

    def row(values: Values | None) -> Values | None:
        return None if values is None else {after: values[before] for before, after in names.items()}

    columns = tuple(replace(column, name=names[column.name]) for column in change.columns if column.name in names)
    return replace(change, columns=columns, old=row(change.old), new=row(change.new))


def _called(custom: CustomTransformation, change: RowChange, source: str) -> list[RowChange]:
    try:
        found = _loaded(custom)(_lcr(change, None, source))
    except Exception as error:
        raise ConfigError(
            f"{custom.function.name} cannot process a simulated row of {change.owner}.{change.name}"
            f" ({', '.join(column.name for column in change.columns)}): {type(error).__name__}: {error}",
            hint="simulated tables have the columns that rules, transformations and functions name, as text unless the"
            " topology says otherwise; simulate the topology without this function: the ways are the same",
        ) from error
    lcrs = cast("list[RowLcr]", found if isinstance(found, list) else [found])
    return [replace(change, old=_seen(lcr, "old", change.old), new=_seen(lcr, "new", change.new)) for lcr in lcrs]


def _seen(lcr: RowLcr, image: str, before: Values | None) -> Values | None:
    """Return an LCR's old or new values, laid over those of the change."""
    return (
        None
        if before is None
        else {**before, **{name: value.raw for name, value in lcr.get_values(image, use_old=False).items()}}
    )


@lru_cache(maxsize=_FUNCTIONS_MAX)
def _loaded(custom: CustomTransformation):  # type: ignore[no-untyped-def]  # noqa: ANN202 - a user's function
    return loaded_function(custom)


def _lcr(change: RowChange, tag: bytes | None, source: str) -> RowLcr:
    """Return the change as conditions and functions see it."""
    described = TableVersion(
        object_number=NO_OBJECT,
        version=0,
        owner=change.owner,
        name=change.name,
        columns=change.columns,
        old_image=OldImage.FULL,
    )

    def rows(values: Values | None) -> list[list[bytes | int]] | None:
        return (
            None if values is None else [[NULL if (value := values[c.name]) is None else value for c in change.columns]]
        )

    batch = batch_of_values(
        replace(described, version=content_version(described)),
        change.command,
        new=rows(change.new),
        old=rows(change.old),
        source=source,
        tag=tag,
    )
    decode, encode = python_values()
    return RowLcr(batch, 0, decode=decode, encode=encode)
