"""Conditions as SQL again, for queries to a database and for the LCRs of a TRUNCATE.

The SQL is generated from the tree, not copied from the user's text: a database gets only what was understood.
"""

from __future__ import annotations

from headrace.rules.conditions.condition import Condition
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
)

__all__ = ["spelled", "spelled_tree", "where_true"]


def spelled(condition: Condition) -> str:
    """Return a subset's condition in SQL, over the columns of its table; it uses columns only."""
    return spelled_tree(condition.tree)


def where_true(condition: Condition) -> str:
    """Return SQL for a subset's rows: those for which the condition is true, not those for which it is unknown.

    Args:
        condition: on columns only.
    """
    return f"({spelled(condition)}) IS TRUE"


def spelled_tree(node: Node) -> str:
    """Return a tree on columns only in SQL."""
    match node:
        case And() | Or():
            return "(" + (" AND " if isinstance(node, And) else " OR ").join(map(spelled_tree, node.items)) + ")"
        case Not():
            return f"(NOT {spelled_tree(node.item)})"
        case IsTruth():
            return f"({spelled_tree(node.item)} IS {node.truth.value.upper()})"
        case Logical():
            return {"true": "TRUE", "false": "FALSE", "unknown": "NULL"}[node.truth.value]
        case IsNull():
            return f"({_operand(node.operand)} IS NULL)"
        case Compare():
            collation = ' COLLATE "C"' if node.bytewise else ""
            return f"({_operand(node.left)} {node.operator} {_operand(node.right)}{collation})"
        case Distinct():
            return f"({_operand(node.left)} IS DISTINCT FROM {_operand(node.right)})"
        case In():
            return f"({_operand(node.operand)} IN ({', '.join(map(_operand, node.among))}))"
        case Like():
            return f"({_operand(node.operand)} LIKE {_operand(Constant(value=node.pattern))})"


def _operand(operand: Operand) -> str:
    if isinstance(operand, Constant):
        return str(operand)
    if isinstance(operand, Attribute):
        raise TypeError(f"{operand} is no column")
    quoted = operand.column.replace('"', '""')
    prefix = "" if operand.image is Image.ROW else f"{operand.image.value}."
    return f'{prefix}"{quoted}"'
