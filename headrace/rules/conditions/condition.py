"""Conditions of rules: `where`, `condition` and `subset`, by their text (`headrace.rules.conditions.nodes`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from headrace.rules.conditions.nodes import Constant, Node, ValueOf, columns_of, operands_of

__all__ = ["LOG_WHOLE_ROWS", "Condition", "parse"]

# The client cannot get past the change, and waits for nothing: a copy or a comparison would wait for the client.
LOG_WHOLE_ROWS = (
    "let the source log whole old rows of the table (`headrace plan` prints the statement). The condition cannot be"
    " evaluated for changes that were logged before that:"
    " take the table out of the rules, `headrace up FILE`, then put it back and `headrace up FILE` again: it is copied"
    " anew"
)


@dataclass(frozen=True)
class Condition:
    """One condition, identified by its text: two with the same text are equal.

    Args:
        text: the condition in SQL.
        form: its key in the rule: "where", "condition" or "subset".
    """

    text: str
    form: str

    @cached_property
    def tree(self) -> Node:
        """The parsed condition; cached, and kept when it is sent to another process.

        Raises:
            ConditionError: the text is no condition, or one that cannot be evaluated as the source would.
        """
        from headrace.rules.conditions.parsing import parsed  # needs sqlglot; comparisons of conditions do not

        return parsed(self.text, self.form)

    @property
    def columns(self) -> tuple[ValueOf, ...]:
        """The values that it reads, without duplicates."""
        return columns_of(self.tree)

    @property
    def tags(self) -> frozenset[bytes]:
        """The tags that it names."""
        return frozenset(
            each.value
            for each in operands_of(self.tree)
            if isinstance(each, Constant) and isinstance(each.value, bytes)
        )

    def __str__(self) -> str:
        return self.text


def parse(text: str, form: str) -> Condition:
    """Parse a condition, so that errors are reported at once.

    Args:
        text: the condition in SQL.
        form: "where": a bare name is a column, `lcr.name` an attribute of the LCR; "condition": a bare name is an
            attribute, `new.name` and `old.name` are values; "subset": names are columns of a row, both before and after
            a change.

    Raises:
        ConditionError: the text is no condition, or one that cannot be evaluated as the source would.
    """
    from headrace.rules.conditions.parsing import spelled  # imports sqlglot

    condition = Condition(text=spelled(text), form=form)
    _ = condition.tree
    return condition
