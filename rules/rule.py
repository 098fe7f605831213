"""Rules and rule sets: what a client takes and what it leaves.

Evaluation: the negative rule set (`exclude`) first, any rule TRUE discards; then the positive set
(`include`), at least one rule TRUE keeps. Prefiltering asks the same with less knowledge and may answer MAYBE.

Source: Oracle Streams Concepts and Administration 11.2, "How Rules Are Used".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

__all__ = ["Rule", "RuleSet", "TruthValue"]


class TruthValue(Enum):
    """Three-valued logic of prefiltering."""

    FALSE = "false"
    MAYBE = "maybe"
    TRUE = "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. A table rule names owner and name, a schema rule owner only, a global rule neither.

    Args:
        owner: pattern of the table's schema (`*` and `?` match as in file names).
        name: pattern of the table's name.
        dml: takes row LCRs (TRUNCATE included).
        ddl: takes DDL LCRs.
        tagged: takes LCRs whatever their tag; False: only those with a NULL tag.
    """

    owner: str = "*"
    name: str = "*"
    dml: bool = True
    ddl: bool = False
    tagged: bool = False

    def matches_object(self, owner: str, name: str) -> bool:
        """Whether the rule speaks of the table `owner.name`."""
        return self.matches_owner(owner) and _pattern(self.name).match(name) is not None

    def matches_owner(self, owner: str) -> bool:
        """Whether the rule speaks of tables of the schema `owner`."""
        return _pattern(self.owner).match(owner) is not None

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """The positive and the negative rule set of one client.

    Args:
        include: positive rules. None: no positive rule set, everything passes; empty: nothing passes.
        exclude: negative rules.
    """

    include: tuple[Rule, ...] | None = None
    exclude: tuple[Rule, ...] = ()

    def prefilter(self, owner: str, name: str, *, tagged: bool | None = None) -> TruthValue:
        """Tell from the object alone (and the tag, if known) what the rules will say of its row LCRs.

        Args:
            owner: the table's schema.
            name: the table's name.
            tagged: whether the LCR has a tag; None: not known yet.

        Returns:
            FALSE: discard. TRUE: keep. MAYBE: evaluate again with what is missing.
        """
        negative = _any(self.exclude, owner, name, tagged=tagged)
        if negative is TruthValue.TRUE:
            return TruthValue.FALSE
        positive = TruthValue.TRUE if self.include is None else _any(self.include, owner, name, tagged=tagged)
        if positive is TruthValue.FALSE:
            return TruthValue.FALSE
        if negative is TruthValue.MAYBE:
            return TruthValue.MAYBE
        return positive

    def unmatched(self, tables: Iterable[tuple[str, str]]) -> tuple[Rule, ...]:
        """Return the positive rules that speak of none of `tables` (owner, name): probably a misspelt name."""
        known = tuple(tables)
        return tuple(
            rule for rule in self.include or () if not any(rule.matches_object(owner, name) for owner, name in known)
        )


@lru_cache(maxsize=4096)  # patterns of one topology; more only costs time
def _pattern(text: str) -> re.Pattern[str]:
    """`*` and `?` as in file names; everything else, brackets too, stands for itself."""
    special = {"*": ".*", "?": "."}
    return re.compile("".join(special.get(letter) or re.escape(letter) for letter in text) + r"\Z", re.DOTALL)


def _any(rules: tuple[Rule, ...], owner: str, name: str, *, tagged: bool | None) -> TruthValue:
    answer = TruthValue.FALSE
    for rule in rules:
        if not rule.dml or not rule.matches_object(owner, name):
            continue
        if rule.tagged or tagged is False:
            return TruthValue.TRUE
        if tagged is None:
            answer = TruthValue.MAYBE
    return answer
