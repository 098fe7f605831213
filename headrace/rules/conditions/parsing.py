"""From SQL to conditions, through sqlglot.

What cannot be evaluated as the source would is refused, with place and reason.

Only this module imports sqlglot. sqlglot accepts more than SQL, so its tree is not trusted: every node, and every part
of one, that is not handled here is refused. Names follow PostgreSQL: lower case unless they are in double quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Final

from headrace.rules.conditions.attributes import ATTRIBUTES, COMMANDS, REFUSED_ATTRIBUTES, WITH_ORDER, instant
from headrace.rules.conditions.nodes import (
    And,
    Attribute,
    Compare,
    ConditionError,
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
    ValueOf,
    columns_of,
    operands_of,
)
from headrace.rules.conditions.values import Kind

__all__ = ["CONDITION_CHARACTERS_MAX", "parsed", "spelled"]

CONDITION_CHARACTERS_MAX = 10_000  # a list of a thousand keys; more belongs into a column of the table
NODES_MAX = 2_000  # comparisons, and entries of lists: each is a pass over the rows
DEPTH_MAX = 100  # of parentheses: evaluation is recursive
_WHERE_BLANKS_COUNT: Final = ("'", '"', "$")  # inside quotes, and PostgreSQL's dollar quotes
_QUOTED_OR_COMMENT: Final = re.compile(r"""'[^']*'|"[^"]*"|/\*.*?\*/|--""", re.DOTALL)
# PostgreSQL does not fold other letters of a name
_IN_SMALL_LETTERS: Final = str.maketrans(ascii_uppercase, ascii_lowercase)

_SqlNode = Any
"""A node of sqlglot's tree, identified by the name of its class."""

_IMAGES: Final = {"new": Image.NEW, "old": Image.OLD}
_OPERATORS: Final = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_REFUSED: Final = {
    "ILike": "ILIKE depends on the locale of the source; list the spellings with IN",
    "SimilarTo": "SIMILAR TO is not supported; write LIKE, or list the values with IN",
    "RegexpLike": "regular expressions depend on the source's locale and version; write LIKE, or list the values with IN",
    "Cast": "a cast may depend on the source's settings; write the literal alone: it takes the column's type",
    "TryCast": "a cast may depend on the source's settings; write the literal alone: it takes the column's type",
    "Select": "a rule sees one row, not other tables; put the value into a column of the table",
    "Subquery": "a rule sees one row, not other tables; put the value into a column of the table",
    "Exists": "a rule sees one row, not other tables; put the value into a column of the table",
    "Case": "write CASE as ANDs and ORs",
    "Any": "write IN (...) with the values",
    "Parameter": "a condition has no parameters; write the value",
    "Placeholder": "a condition has no parameters; write the value",
    "ByteString": "write the text without E and without escapes",
    "HexString": "write bytes as the text '\\x...', a tag as its hexadecimal digits in quotes",
    "Tuple": "compare the columns one by one, with AND",
    "Escape": "LIKE has the backslash as its escape; leave ESCAPE out",
}
_ARITHMETIC: Final = (
    "Add",
    "Sub",
    "Mul",
    "Div",
    "IntDiv",
    "Mod",
    "Pow",
    "DPipe",
    "Concat",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
)


def spelled(text: str) -> str:
    """Return the canonical text of a condition: two that differ only in whitespace become equal.

    Raises:
        ConditionError: the text has a comment that ends with its line.
    """
    text = text.strip() if any(each in text for each in _WHERE_BLANKS_COUNT) else " ".join(text.split())
    _refuse_line_comments(text)
    return text


def _refuse_line_comments(text: str) -> None:
    """Refuse comments that end with their line: YAML folds lines, and the next line would belong to the comment.

    Checked where a condition is written, not where one is read again: an earlier build accepted such comments, and no
    edit could replace a stored topology that cannot be read.
    """
    for found in _QUOTED_OR_COMMENT.finditer(text):
        if found[0] == "--":
            raise ConditionError(
                f"at '--' (character {found.start() + 1}): cannot be a condition",
                hint="write a comment as /* ... */: how far this one goes depends on the ends of lines, which YAML may"
                " remove",
            )


def parsed(text: str, form: str) -> Node:
    """Return the tree of a condition.

    Args:
        text: the condition in SQL.
        form: as for `parse`.
    """
    tree = _Reader(text, bare_is_attribute=form == "condition").read()
    if form == "subset":
        _check_subset(tree)
    return tree


def _check_subset(tree: Node) -> None:
    for operand in operands_of(tree):
        if isinstance(operand, Attribute):
            raise ConditionError(
                f"{operand} is no column", hint="a subset is of the table's rows: use where, or condition, for LCRs"
            )
        if isinstance(operand, ValueOf) and operand.image is not Image.ROW:
            raise ConditionError(
                f"{operand} says whether the new or the old row is meant",
                hint=f"write {operand.column}: a subset is asked of both",
            )
    if not columns_of(tree):
        raise ConditionError("names no column", hint="write which rows are meant, such as department_id = 50")


class _Reader:
    """Reads one condition.

    Args:
        text: the condition.
        bare_is_attribute: a name without a prefix is an attribute; False: a column.
    """

    def __init__(self, text: str, *, bare_is_attribute: bool) -> None:
        self._text, self._bare_is_attribute = text, bare_is_attribute
        self._nodes = 0

    def read(self) -> Node:
        return self._logical(self._parsed(), depth=0)

    # ----------------------------------------------------------------------- text

    def _parsed(self) -> _SqlNode:
        # A local import: a process without conditions does not pay for it (8 MB, a tenth of a second).
        import sqlglot
        from sqlglot.errors import ParseError, SqlglotError, TokenError

        if len(self._text) > CONDITION_CHARACTERS_MAX:
            raise ConditionError(
                f"has {len(self._text)} characters",
                hint=f"at most {CONDITION_CHARACTERS_MAX}: put what the list says into a column of the table",
            )
        try:
            if "==" in [token.text for token in sqlglot.tokenize(self._text, read="postgres")]:
                raise self._at("==", "SQL compares with =")
            found = sqlglot.parse(self._text, read="postgres")
        except ParseError as error:
            first = error.errors[0] if error.errors else {}
            token = str(first.get("highlight") or "the end")
            raise self._at(token, "write a condition in SQL, such as department_id = 50", at=first.get("col")) from None
        except TokenError:
            raise ConditionError(
                "a quote or a parenthesis does not end", hint="close it; a quote inside a text is written twice"
            ) from None
        except (RecursionError, SqlglotError):
            raise ConditionError("cannot be read", hint="write it with fewer parentheses") from None
        if len(found) != 1 or found[0] is None:
            raise ConditionError(
                "is empty" if not any(found) else "has several statements",
                hint="write one condition in SQL, such as department_id = 50",
            )
        return found[0]

    def _at(self, token: str, advice: str, *, at: object = None) -> ConditionError:
        if at is None:
            place = self._text.lower().find(token.lower())
            at = place + 1 if place >= 0 else None
        where = f" (character {at})" if at is not None else ""
        return ConditionError(f"at {token!r}{where}: cannot be a condition", hint=advice)

    def _refused(self, node: _SqlNode, why: str | None = None) -> ConditionError:
        kind = type(node).__name__
        spelled = node.sql(dialect="postgres")
        if why is None and kind in _ARITHMETIC:
            why = "compare the column itself; calculations may overflow or round differently than at the source"
        if why is None:
            why = _REFUSED.get(
                kind,
                "functions and other expressions are not evaluated as the source would; compare columns with values",
            )
        place = self._text.lower().find(spelled.lower())
        where = f" (character {place + 1})" if place >= 0 else ""
        return ConditionError(f"{spelled!r}{where} cannot be evaluated here", hint=why)

    # ----------------------------------------------------------------------- truth values

    def _count(self, node: _SqlNode, depth: int) -> None:
        self._nodes += 1
        if self._nodes > NODES_MAX or depth > DEPTH_MAX:
            raise self._refused(
                node, f"a condition has at most {NODES_MAX} comparisons and {DEPTH_MAX} levels of parentheses"
            )

    def _logical(self, node: _SqlNode, *, depth: int) -> Node:
        """Read an expression that is TRUE, FALSE or NULL."""
        self._count(node, depth)
        name = type(node).__name__
        deeper = depth + 1
        if type(node).__name__ == "Paren":
            self._only(node, "this")
            return self._logical(node.this, depth=deeper)
        if name in ("And", "Or"):
            self._only(node, "this", "expression")
            parts = tuple(self._logical(each, depth=deeper) for each in _flat(node))
            return And(parts) if name == "And" else Or(parts)
        if name == "Not":
            self._only(node, "this")
            return Not(self._logical(node.this, depth=deeper))
        if name == "Boolean":
            return Logical(Truth.TRUE if node.this else Truth.FALSE)
        if name == "Null":
            return Logical(Truth.NULL)
        if name == "Column":
            operand = self._operand(node)
            if isinstance(operand, Attribute):
                raise self._refused(node, f"{operand} is no truth value; compare it")
            return Compare("=", operand, Constant(value=True))
        found = self._comparison(node, depth=deeper)
        if found is None:
            raise self._refused(node)
        return Not(found) if node.args.get("negate") else found

    def _comparison(self, node: _SqlNode, *, depth: int) -> Node | None:
        name = type(node).__name__
        if name in _OPERATORS:
            self._only(node, "this", "expression")
            return self._compared(_OPERATORS[name], node)
        if name in ("NullSafeEQ", "NullSafeNEQ"):
            self._only(node, "this", "expression")
            left, right = self._operand(node.this), self._operand(node.expression)
            if isinstance(left, Constant) and isinstance(right, Constant):
                raise self._refused(node, "compares two constants; write TRUE or FALSE, or name a column")
            if Constant(value=None) in (left, right):
                distinct: Node = Not(IsNull(left if right == Constant(value=None) else right))
            else:
                left, right = (right, left) if isinstance(left, Constant) else (left, right)
                distinct = Distinct(left, self._of_attribute(left, right, node))
            return distinct if name == "NullSafeNEQ" else Not(distinct)
        if name == "Is":
            self._only(node, "this", "expression", "negate")
            return self._is(node, depth)
        if name == "In":
            self._only(node, "this", "expressions", "negate")
            return self._in(node)
        if name == "Between":
            self._only(node, "this", "low", "high", "negate")
            operand = self._operand(node.this)
            low, high = self._value(node.args["low"], node), self._value(node.args["high"], node)
            if isinstance(operand, Constant) or (
                isinstance(operand, Attribute) and ATTRIBUTES[operand.name] not in WITH_ORDER
            ):
                raise self._refused(node, "BETWEEN takes a column, or an attribute that is a number or a time")
            low, high = self._of_attribute(operand, low, node), self._of_attribute(operand, high, node)
            return And((Compare(">=", operand, low), Compare("<=", operand, high)))
        if name == "Like":
            self._only(node, "this", "expression", "negate")
            pattern = self._operand(node.expression)
            if not isinstance(pattern, Constant) or not isinstance(pattern.value, str):
                raise self._refused(node, "write the pattern as a text in quotes")
            if (len(pattern.value) - len(pattern.value.rstrip("\\"))) % 2:
                raise self._refused(node, "the pattern ends with an escape; write \\\\ for a backslash")
            operand = self._operand(node.this)
            if isinstance(operand, Constant) or (
                isinstance(operand, Attribute) and ATTRIBUTES[operand.name] is not Kind.TEXT
            ):
                raise self._refused(node, "LIKE takes a column or an attribute that is a text")
            return Like(operand, pattern.value)
        return None

    def _compared(self, operator: str, node: _SqlNode) -> Node:
        sides, bytewise = [], False
        for each in (node.this, node.expression):
            side = each
            if type(side).__name__ == "Collate":
                if side.expression.name != "C":
                    raise self._refused(node, 'only COLLATE "C" compares alike at every site')
                side, bytewise = side.this, True
            sides.append(self._value(side, node))
        left, right = sides
        if isinstance(left, Constant) and isinstance(right, Constant):
            raise self._refused(node, "compares two constants; write TRUE or FALSE, or name a column")
        if isinstance(left, Constant):
            left, right = right, left
            operator = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(operator, operator)
        right = self._of_attribute(left, right, node)
        if isinstance(left, Attribute) and ATTRIBUTES[left.name] not in WITH_ORDER and operator not in ("=", "<>"):
            raise self._refused(node, f"{left} has no order; compare it with =, <>, IN or LIKE")
        return Compare(operator, left, right, bytewise)

    def _is(self, node: _SqlNode, depth: int) -> Node:
        wanted = type(node.expression).__name__
        if wanted not in ("Null", "Boolean"):
            raise self._refused(node)
        truth = Truth.NULL if wanted == "Null" else Truth.TRUE if node.expression.this else Truth.FALSE
        inner = node.this
        while type(inner).__name__ == "Paren":
            inner = inner.this
        if type(inner).__name__ == "Column" and truth is Truth.NULL:
            return IsNull(self._operand(inner))
        return IsTruth(self._logical(inner, depth=depth), truth)

    def _in(self, node: _SqlNode) -> Node:
        operand, among = self._operand(node.this), []
        self._nodes += len(node.expressions)
        self._count(node, 0)
        for each in node.expressions:
            value = self._operand(each)
            if not isinstance(value, Constant):
                raise self._refused(node, "a list has values only; compare columns with = and OR")
            among.append(value)
        if isinstance(operand, Constant) or not among:
            raise self._refused(node, "write the column first, and a list of values: department_id IN (50, 60)")
        typed = (self._of_attribute(operand, each, node) for each in among)
        return In(operand, tuple(each for each in typed if isinstance(each, Constant)))

    # ----------------------------------------------------------------------- operands

    def _value(self, node: _SqlNode, around: _SqlNode) -> Operand:
        found = self._operand(node)
        if found == Constant(value=None):
            raise self._refused(around, "a comparison with NULL is never TRUE; write IS NULL or IS NOT NULL")
        return found

    def _operand(self, node: _SqlNode) -> Operand:
        name = type(node).__name__
        if type(node).__name__ == "Paren":
            return self._operand(node.this)
        if name == "Column":
            return self._named(node)
        if name == "Literal":
            return Constant(value=node.this if node.args.get("is_string") else self._number(node, node.this))
        if name == "Neg" and type(node.this).__name__ == "Literal" and not node.this.args.get("is_string"):
            number = self._number(node, node.this.this)
            # Not `-`: for a Decimal it rounds to the context's 28 digits.
            return Constant(value=number.copy_negate() if isinstance(number, Decimal) else -number)
        if name == "Boolean":
            return Constant(value=bool(node.this))
        if name == "Null":
            return Constant(value=None)
        if name in (*_OPERATORS, "Is", "In", "Between", "Like", "And", "Or", "Not"):
            raise self._refused(node, "put parentheses around what belongs together, and compare columns with values")
        raise self._refused(node)

    def _number(self, node: _SqlNode, text: str) -> int | Decimal:
        try:
            return int(text) if text.isdigit() else Decimal(text)
        except (InvalidOperation, ValueError):
            raise self._refused(node, "is not a number that SQL knows") from None

    def _named(self, node: _SqlNode) -> Operand:
        self._only(node, "this", "table")
        column, prefix = _folded(node.this), _folded(node.args.get("table"))
        if prefix in _IMAGES:
            return ValueOf(_IMAGES[prefix], column)
        if prefix == "lcr" or (prefix == "" and self._bare_is_attribute):
            return self._attribute(node, column)
        if prefix:
            raise self._refused(node, f"write new.{column}, old.{column} or lcr.ATTRIBUTE; the table is the rule's own")
        return ValueOf(Image.ROW, column)

    def _attribute(self, node: _SqlNode, name: str) -> Attribute:
        if name in ATTRIBUTES:
            return Attribute(name)
        if name in REFUSED_ATTRIBUTES:
            raise self._refused(node, REFUSED_ATTRIBUTES[name])
        near = get_close_matches(name, ATTRIBUTES, n=1, cutoff=0.5)
        meant = f"did you mean {near[0]}? " if near else ""
        raise self._refused(
            node,
            f"{meant}An LCR has the attributes {', '.join(sorted(ATTRIBUTES))}; a column is written new.{name} or"
            f" old.{name}",
        )

    def _of_attribute(self, operand: Operand, constant: Operand, node: _SqlNode) -> Operand:
        """Return a constant in the form of the attribute that it is compared with; refuse impossible values."""
        if not isinstance(operand, Attribute) or not isinstance(constant, Constant) or constant.value is None:
            return constant
        kind, value = ATTRIBUTES[operand.name], constant.value
        if kind is Kind.INTEGER:
            if isinstance(value, bool) or not isinstance(value, int):
                raise self._refused(node, f"{operand} is an integer: write it without quotes")
            return constant
        if not isinstance(value, str):
            raise self._refused(node, f"{operand} is {kind.value}: put it in quotes")
        if operand.name == "command_type" and value not in COMMANDS:
            raise self._refused(node, f"command_type is one of {', '.join(COMMANDS)}, in capital letters")
        if kind is Kind.INSTANT:
            try:
                return Constant(value=instant(value))
            except ValueError:
                raise self._refused(
                    node, f"{operand} is {kind.value}: write it with its offset from UTC, as '2026-01-31 08:30:00+00'"
                ) from None
        if kind is not Kind.TAG:
            return constant
        try:
            return Constant(value=bytes.fromhex(value))
        except ValueError:
            raise self._refused(node, "a tag is written as pairs of hexadecimal digits, such as '1f'") from None

    def _only(self, node: _SqlNode, *parts: str) -> None:
        """Refuse a node with parts that the caller does not handle."""
        extra = [name for name, value in node.args.items() if name not in parts and value not in (None, False, [], "")]
        if extra:
            raise self._refused(node)


def _flat(node: _SqlNode) -> Iterator[_SqlNode]:
    """Yield the parts of a chain of ANDs or ORs, so that a long one is not deep."""
    kind, stack = type(node), [node]
    while stack:
        each = stack.pop()
        if type(each) is kind:
            stack += [each.expression, each.this]
        else:
            yield each


def _folded(identifier: _SqlNode) -> str:
    if identifier is None:
        return ""
    return str(identifier.this) if identifier.args.get("quoted") else str(identifier.this).translate(_IN_SMALL_LETTERS)
