"""SQL conditions of rules, evaluated on in-memory databases."""

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
    """Compile a condition into a predicate that says whether it is TRUE for a row.

    Args:
        text: as `headrace.rules.conditions.spelling` writes it.
        columns: of the table.

    Returns:
        A function of a row's values, in the order of the columns.

    Raises:
        DataError: it is not a condition, or uses other columns.
    """
    types = value_types()
    try:
        tree = parsed(text, "where")
        is_true_of(tree, columns, [None] * len(columns), types)
    except (ConditionError, ValueError) as error:
        raise DataError(f"the condition {text!r} cannot be evaluated here: {error}", sqlstate="42601") from error
    return lambda row: is_true_of(tree, columns, row, types)
