"""Logic with unknown values: which of TRUE, FALSE and NULL a condition may still become.

An outcome is a set of truth values as bits, in a number or in a uint8 array with one entry per row. A known outcome has
one bit; a value that is not known yet, or that the log lacks, leaves several. The same tables give SQL's three-valued
logic, the MAYBE of prefiltering and the certainty that a missing value does not matter.

Source: Oracle Streams Concepts and Administration 11.2, "Capture Process Rule Evaluation"; ISO/IEC 9075-2, "boolean
value expression".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.lcr.batch import Command
from headrace.rules.conditions.attributes import MAY_BE_NULL
from headrace.rules.conditions.nodes import (
    And,
    Attribute,
    Compare,
    Constant,
    Distinct,
    Image,
    In,
    IsNull,
    IsTruth,
    Like,
    Logical,
    Node,
    Not,
    Operand,
    Or,
    Truth,
)
from headrace.rules.conditions.values import OPERATORS, like_pattern

__all__ = [
    "ANY",
    "FALSE",
    "NULL",
    "TRUE",
    "Known",
    "Outcome",
    "both",
    "constant_outcome",
    "decided",
    "either",
    "evaluate",
    "negated",
    "possible",
    "settled",
]

TRUE, FALSE, NULL = 1, 2, 4
ANY: Final = TRUE | FALSE | NULL
_KNOWN_TO_BE_OR_NOT: Final = TRUE | FALSE  # of tests that are never NULL

Outcome = int | NDArray[np.uint8]


def _members(outcome: int) -> list[bool | None]:
    return [value for bit, value in ((TRUE, True), (FALSE, False), (NULL, None)) if outcome & bit]


def _outcome(values: Iterable[bool | None]) -> int:
    return sum({True: TRUE, False: FALSE, None: NULL}[value] for value in set(values))


def _and(one: bool | None, other: bool | None) -> bool | None:  # noqa: FBT001 - truth values
    return False if one is False or other is False else None if one is None or other is None else True


def _not(one: bool | None) -> bool | None:  # noqa: FBT001 - a truth value
    return None if one is None else not one


_AND: Final = np.array(
    [
        [_outcome(_and(a, b) for a, b in product(_members(left), _members(right))) for right in range(8)]
        for left in range(8)
    ],
    np.uint8,
)
_NOT: Final = np.array([_outcome(map(_not, _members(item))) for item in range(8)], np.uint8)
_OR: Final = np.array([[_NOT[_AND[_NOT[left], _NOT[right]]] for right in range(8)] for left in range(8)], np.uint8)
_IS: Final = {
    truth: np.array([_outcome(value is wanted for value in _members(item)) for item in range(8)], np.uint8)
    for truth, wanted in ((Truth.TRUE, True), (Truth.FALSE, False), (Truth.NULL, None))
}


def both(left: Outcome, right: Outcome) -> Outcome:
    """Return the AND of two outcomes.

    Args:
        left: outcome of some rows, or of all.
        right: outcome of the same rows, or of all.
    """
    return _looked_up(_AND, left, right)


def either(left: Outcome, right: Outcome) -> Outcome:
    """Return the OR of two outcomes.

    Args:
        left: outcome of some rows, or of all.
        right: outcome of the same rows, or of all.
    """
    return _looked_up(_OR, left, right)


def negated(item: Outcome) -> Outcome:
    """Return the NOT of an outcome."""
    return _looked_up(_NOT, item)


def settled(item: Outcome) -> Outcome:
    """Return a rule's verdict on its condition's outcome.

    The rule takes the LCR when the condition is TRUE; NULL counts as FALSE.
    """
    return _looked_up(_IS[Truth.TRUE], item)


def _looked_up(table: NDArray[np.uint8], *items: Outcome) -> Outcome:
    found = table[items if len(items) > 1 else items[0]]
    return found if isinstance(found, np.ndarray) else int(found)


def constant_outcome(truth: Truth) -> int:
    """Return the outcome with exactly this truth value."""
    return {Truth.TRUE: TRUE, Truth.FALSE: FALSE, Truth.NULL: NULL}[truth]


def evaluate(node: Node, leaf: Callable[[Node], Outcome]) -> Outcome:
    """Return the outcome of a condition; parts that cannot change it any more are not evaluated.

    Args:
        node: the condition's tree.
        leaf: returns the outcome of a comparison.
    """
    match node:
        case And() | Or():
            combine, end = (both, FALSE) if isinstance(node, And) else (either, TRUE)
            found = evaluate(node.items[0], leaf)
            for item in node.items[1:]:
                if isinstance(found, int) and found == end:
                    return end
                found = combine(found, evaluate(item, leaf))
            return found
        case Not():
            return negated(evaluate(node.item, leaf))
        case IsTruth():
            return _looked_up(_IS[node.truth], evaluate(node.item, leaf))
        case Logical():
            return constant_outcome(node.truth)
        case _:
            return leaf(node)


# --------------------------------------------------------------------------- what is known without rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Knowledge about LCRs before they are read.

    Args:
        attributes: attributes by name; a missing one is not known. A tag is bytes, or None for NULL.
        command: command of the LCRs; None: not known.
    """

    attributes: dict[str, str | bytes | int | None]
    command: Command | None = None


def possible(tree: Node, known: Known) -> int:
    """Return the truth values that a condition may have.

    Args:
        tree: the condition's tree.
        known: what is known of the LCRs.
    """
    found = evaluate(tree, lambda node: _possible(node, known))
    assert isinstance(found, int)
    return found


def decided(tree: Node, owner: str, name: str, command: Command) -> int | None:
    """Return a rule's verdict on its condition if table and command alone decide: TRUE or FALSE.

    Args:
        tree: the condition's tree.
        owner: the table's schema.
        name: the table's name.
        command: command of the LCRs.

    Returns:
        None: other attributes or values decide. Then the table must have every column that the condition names.
    """
    found = settled(possible(tree, Known(attributes={"object_owner": owner, "object_name": name}, command=command)))
    return found if isinstance(found, int) and found in (TRUE, FALSE) else None


_UNSEEN = object()


def _possible(node: Node, known: Known) -> int:
    match node:
        case IsNull():
            value = _seen(node.operand, known)
            if value is _UNSEEN:
                return (
                    FALSE
                    if isinstance(node.operand, Attribute) and node.operand.name not in MAY_BE_NULL
                    else _KNOWN_TO_BE_OR_NOT
                )
            return TRUE if value is None else FALSE
        case Distinct():
            left, right = _seen(node.left, known), _seen(node.right, known)
            if _UNSEEN in (left, right):
                return _KNOWN_TO_BE_OR_NOT
            return _truth(left != right)
        case Compare():
            left, right = _seen(node.left, known), _seen(node.right, known)
            if left is None or right is None:
                return NULL
            if _UNSEEN in (left, right):
                return ANY
            return _truth(bool(OPERATORS[node.operator](left, right)))
        case In():
            value = _seen(node.operand, known)
            if value is _UNSEEN or value is None:
                return ANY if value is _UNSEEN else NULL
            if value in [each.value for each in node.among if each.value is not None]:
                return TRUE
            return NULL if any(each.value is None for each in node.among) else FALSE
        case Like():
            value = _seen(node.operand, known)
            if value is _UNSEEN or value is None:
                return ANY if value is _UNSEEN else NULL
            return _truth(like_pattern(node.pattern).match(str(value)) is not None)
        case _:  # pragma: no cover - `evaluate` passes nothing else
            raise AssertionError(node)


def _truth(value: bool) -> int:  # noqa: FBT001 - a truth value
    return TRUE if value else FALSE


def _seen(operand: Operand, known: Known) -> object:
    if isinstance(operand, Constant):
        return operand.value
    if isinstance(operand, Attribute):
        if operand.name == "command_type" and known.command is not None:
            return known.command.name
        return known.attributes.get(operand.name, _UNSEEN)
    if known.command is Command.TRUNCATE:
        return None
    has_none = {Command.INSERT: Image.OLD, Command.DELETE: Image.NEW}
    return None if known.command is not None and has_none.get(known.command) is operand.image else _UNSEEN
