"""Conditions in SQL, for databases in memory: those that rules can have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.base.errors import DataError
from headrace.databases.connectors import value_types
from headrace.lcr.batch import Column
from headrace.rules.conditions.nodes import ConditionError
from headrace.rules.conditions.parsing import parsed
from headrace.rules.conditions.rowwise import is_true_of

__all__ = ["condition_in_memory"]


def condition_in_memory(text: str, columns: Sequence[Column]) -> Callable[[Sequence[bytes | None]], bool]:
    """Make of a condition what says of a row whether it is TRUE.

    Args:
        text: as `headrace.rules.conditions.spelling` writes it.
        columns: of the table.

    Returns:
        Takes a row, values in the order of the columns.

    Raises:
        DataError: it is no condition, or one over other columns.
    """
    types = value_types()
    try:
        tree = parsed(text, "where")
        is_true_of(tree, columns, [None] * len(columns), types)
    except (ConditionError, ValueError) as error:
        raise DataError(f"the condition {text!r} cannot be evaluated here: {error}", sqlstate="42601") from error
    return lambda row: is_true_of(tree, columns, row, types)
