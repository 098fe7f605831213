"""Proof of a change at a destination: every part that was to change has its new form, every other one has its old one.

Statements have effects that their text does not show: a column takes its indexes along, a primary key its NOT NULL. Such
an effect is accepted where it leads to what the source has. A part that only the destination has stays, or nothing is
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from headrace.databases.postgres.ddl.comparison import Work
from headrace.databases.postgres.ddl.refusals import ATTRIBUTES
from headrace.lcr.structure import ColumnPart, Part, PartKind, PartName, Structure, elements

__all__ = ["differences"]

_FIELDS: Mapping[str, Callable[[ColumnPart], dict[str, Any]]] = {
    "type": lambda column: {"type_name": column.type_name, "collation": column.collation},
    "NOT NULL": lambda column: {"not_null": column.not_null, "not_valid": column.not_valid},
    "default": lambda column: {"default": column.default},
    "identity": lambda column: {"identity": column.identity},
    "generated": lambda column: {"generated": column.generated},
}


def differences(work: Work, source: Structure, before: Structure, after: Structure) -> Iterator[str]:
    """Yield what a destination's table is not as it should be.

    Args:
        work: what was done.
        source: the source's table after the change.
        before: the destination's table before it.
        after: the destination's table now.
    """
    if _table(before) != _table(after):
        yield "the table itself changed"
    wanted, there, goal = _wanted(work, elements(before)), elements(after), elements(source)
    touched = _touched(work)
    for key in dict.fromkeys([*wanted, *there]):
        old, now, new = wanted.get(key), there.get(key), goal.get(key)
        if key in work.loose:
            continue
        if old is None:
            yield f"{key} is new"
        elif now is None:
            yield f"{key} is missing" if key in touched else f"{key}, which the change does not name, went with it"
        elif not _is_right(key, old, now, new, work=work, is_touched=key in touched):
            yield f"{key} is {now.definition}, not {old.definition}"


def _table(structure: Structure) -> Structure:
    return replace(structure, columns=(), constraints=(), indexes=())


def _touched(work: Work) -> set[PartName]:
    return {
        *(PartName(each.kind, each.new) for each in work.renames),
        *(column.key for column, _ in work.altered),
        *(column.key for column in work.added),
        *(part.key for part in work.built),
    }


def _wanted(work: Work, before: Mapping[PartName, Part]) -> dict[PartName, Part]:
    """Return the parts that the table should have, by their new names."""
    renamed = {PartName(each.kind, each.old): PartName(each.kind, each.new) for each in work.renames}
    found = {renamed.get(key, key): part for key, part in before.items() if key not in work.dropped}
    for column, attributes in work.altered:
        values = {name: value for each in attributes for name, value in _FIELDS[each](column).items()}
        found[column.key] = replace(found[column.key], **values)
    return {**found, **{part.key: part for part in (*work.added, *work.built)}}


def _is_right(key: PartName, old: Part, now: Part, new: Part | None, *, work: Work, is_touched: bool) -> bool:
    """Return whether a part is as it should be.

    Args:
        key: its name.
        old: as it should be.
        now: as it is.
        new: as the source has it.
        work: what was done.
        is_touched: it was to change.
    """
    if key.kind is not PartKind.COLUMN:
        is_expected = now.shape == old.shape or (new is not None and now.shape == new.shape)
        # The definition of a part of the destination's own follows the columns' names and types.
        return is_expected or (not is_touched and work.has_other_columns)
    assert isinstance(old, ColumnPart)
    assert isinstance(now, ColumnPart)
    for name, attribute in ATTRIBUTES.items():
        is_expected = attribute(now) == attribute(old)
        is_goal = isinstance(new, ColumnPart) and attribute(now) == attribute(new)
        follows = name == "default" and work.has_other_columns and _follows(work, now)
        if not (is_expected or is_goal or follows):
            return False
    return True


def _follows(work: Work, column: ColumnPart) -> bool:
    """Return whether a column's default or expression may have changed with the columns' names and types."""
    return bool(column.generated) or any(
        altered.key == column.key and "type" in attributes and "default" not in attributes
        for altered, attributes in work.altered
    )
