"""Columns whose values a rule needs in the log, beyond what the log always has: supplemental logging."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.lcr.batch import Command, TableVersion
from headrace.rules.conditions.compiled import check_types
from headrace.rules.conditions.logic import TRUE, Known, decided, possible
from headrace.rules.conditions.nodes import ConditionError, Image, Node, columns_of, of_image
from headrace.rules.conditions.values import ValueTypes
from headrace.rules.rule import Rule

__all__ = ["NeededColumns", "commands_taken", "needed_columns", "refusals"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededColumns:
    """Needed columns of one table.

    Args:
        old: columns whose values before an UPDATE or DELETE must be in the log.
        new: columns whose values after an UPDATE must be in the log, even untouched ones.
        whole_row: all of both: a row may have to be inserted elsewhere.
    """

    old: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    whole_row: bool = False


def needed_columns(rule: Rule, owner: str, name: str) -> NeededColumns:
    """Return what a rule needs of a table that it matches.

    Args:
        rule: any.
        owner: the table's schema.
        name: the table's name.
    """
    old: dict[str, None] = {}
    new: dict[str, None] = {}
    for tree in _trees(rule):
        for command in (Command.UPDATE, Command.DELETE):
            if decided(tree, owner, name, command) is not None:  # no value decides
                continue
            for value in columns_of(tree):
                image = value.image
                if image is Image.ROW:
                    image = Image.OLD if command is Command.DELETE else Image.NEW
                if image is Image.OLD:
                    old[value.column] = None
                elif command is Command.UPDATE:
                    new[value.column] = None
    return NeededColumns(old=tuple(old), new=tuple(new), whole_row=rule.subset is not None)


def commands_taken(rule: Rule) -> tuple[Command, ...]:
    """Return the commands of which a rule may take an LCR, whatever its values are."""
    if rule.condition is None:
        return tuple(Command)
    return tuple(
        command for command in Command if possible(rule.condition.tree, Known(attributes={}, command=command)) & TRUE
    )


def refusals(rule: Rule, table: TableVersion, types: ValueTypes) -> list[ConditionError]:
    """Return why a rule cannot be evaluated for a table that it matches; empty: it can.

    Args:
        rule: any.
        table: the table in the log's description.
        types: types of its database.
    """
    found = []
    for condition in rule.conditions:
        if all(decided(condition.tree, table.owner, table.name, command) is not None for command in Command):
            continue
        try:
            check_types(condition.tree, table, types)
        except ConditionError as error:
            found.append(error)
    return found


def _trees(rule: Rule) -> list[Node]:
    trees = [rule.condition.tree] if rule.condition is not None else []
    if rule.subset is not None:
        trees += [of_image(rule.subset.tree, Image.OLD), of_image(rule.subset.tree, Image.NEW)]
    return trees
