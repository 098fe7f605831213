"""Conditions of rules: what `where`, `condition` and `subset` say, by their text; see `headrace.rules.conditions.nodes`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from headrace.rules.conditions.nodes import Constant, Node, ValueOf, columns_of, operands_of

__all__ = ["LOG_WHOLE_ROWS", "Condition", "parse"]

# Whoever evaluates the rule does not get past the change, and waits for nothing: a copy or a comparison would wait for
# it.
LOG_WHOLE_ROWS = (
    "let the source log whole old rows of the table (`headrace plan` prints the statement). Changes that were logged"
    " before it cannot be told:"
    " take the table out of the rules, `headrace up FILE`, then put it back and `headrace up FILE` again: it is copied"
    " anew"
)


@dataclass(frozen=True)
class Condition:
    """One condition, by its text: two that read alike are one.

    Args:
        text: in SQL.
        form: which key of a rule it stands under: "where", "condition" or "subset".
    """

    text: str
    form: str

    @cached_property
    def tree(self) -> Node:
        """What it says; found out once, and kept when it is sent to another process.

        Raises:
            ConditionError: it is no condition, or one that cannot be evaluated as the source would.
        """
        from headrace.rules.conditions.parsing import parsed  # sqlglot: who only compares conditions does without it

        return parsed(self.text, self.form)

    @property
    def columns(self) -> tuple[ValueOf, ...]:
        """The values it looks at, each once."""
        return columns_of(self.tree)

    @property
    def tags(self) -> frozenset[bytes]:
        """The tags it names."""
        return frozenset(
            each.value
            for each in operands_of(self.tree)
            if isinstance(each, Constant) and isinstance(each.value, bytes)
        )

    def __str__(self) -> str:
        return self.text


def parse(text: str, form: str) -> Condition:
    """Parse a condition, so that what is wrong with it is told now.

    Args:
        text: in SQL.
        form: "where": a bare name is a column, `lcr.name` an attribute of the LCR; "condition": a bare name is an
            attribute, `new.name` and `old.name` are values; "subset": it speaks of the columns of a row, before and
            after a change alike.

    Raises:
        ConditionError: it is no condition, or one that cannot be evaluated as the source would.
    """
    from headrace.rules.conditions.parsing import spelled  # sqlglot, as above

    condition = Condition(text=spelled(text), form=form)
    _ = condition.tree
    return condition
