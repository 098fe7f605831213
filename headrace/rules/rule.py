"""Rules and rule sets: what a client takes and what it leaves.

Evaluation: the negative rule set (`exclude`) first, any rule TRUE discards; then the positive set
(`include`), at least one rule TRUE keeps. Prefiltering asks the same with less knowledge and may answer MAYBE.

Source: Oracle Streams Concepts and Administration 11.2, "How Rules Are Used"; Replication Administrator's Guide,
"Oracle Streams Tags".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from headrace.lcr.table_name import Named, TableName
from headrace.rules.conditions.condition import Condition
from headrace.rules.transformations.transformation import Transformation, TransformationError

__all__ = [
    "ANY_TAG",
    "UNKNOWN_TAG",
    "UNTAGGED",
    "KnownTag",
    "Passage",
    "Rule",
    "RuleSet",
    "TagCondition",
    "TruthValue",
    "Unknown",
    "passages",
    "tags_told_apart",
]


class TruthValue(Enum):
    """Three-valued logic of prefiltering."""

    FALSE = "false"
    MAYBE = "maybe"
    TRUE = "true"


class Unknown(Enum):
    """What is not known yet when rules are asked."""

    TAG = "tag"


UNKNOWN_TAG: Final = Unknown.TAG

KnownTag = bytes | None | Unknown
"""A tag, None for NULL, or that it is not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagCondition:
    """Which tags a rule takes.

    Args:
        listed: tags, None for NULL.
        takes_listed: the rule takes the listed tags and no other; False: every tag but these.
    """

    listed: tuple[bytes | None, ...]
    takes_listed: bool = True

    def answer(self, tag: KnownTag) -> TruthValue:
        """Whether the condition takes a tag; MAYBE: that depends on a tag which is not known."""
        if not self.listed:
            return TruthValue.FALSE if self.takes_listed else TruthValue.TRUE
        if tag is UNKNOWN_TAG:
            return TruthValue.MAYBE
        return TruthValue.TRUE if (tag in self.listed) is self.takes_listed else TruthValue.FALSE


UNTAGGED: Final = TagCondition(listed=(None,))
"""Changes with a NULL tag: what no apply process wrote."""

ANY_TAG: Final = TagCondition(listed=(), takes_listed=False)
"""Every change, whatever its tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. A table rule names owner and name, a schema rule owner only, a global rule neither.

    Args:
        owner: pattern of the table's schema (`*` and `?` match as in file names).
        name: pattern of the table's name.
        dml: takes row LCRs (TRUNCATE included).
        ddl: takes DDL LCRs.
        tags: takes LCRs with these tags.
        condition: takes LCRs for which it is TRUE; None: whatever their attributes and values.
        subset: takes the changes of the rows for which it is TRUE, and makes of an UPDATE that moves a row in an
            INSERT, of one that moves it out a DELETE; of positive rules only. None: no row migration.
        transformation: what becomes of the LCRs that it takes, behind row migration; of positive rules only. None: they
            stay as they are.
    """

    owner: str = "*"
    name: str = "*"
    dml: bool = True
    ddl: bool = False
    tags: TagCondition = UNTAGGED
    condition: Condition | None = None
    subset: Condition | None = None
    transformation: Transformation | None = None

    @property
    def looks_at_rows(self) -> bool:
        """Object and tag alone do not decide."""
        return self.condition is not None or self.subset is not None

    def answer(self, owner: str, name: str, tag: KnownTag) -> TruthValue:
        """What the rule says of row LCRs of a table, as far as that is known.

        Args:
            owner: the table's schema.
            name: the table's name.
            tag: of the LCRs.
        """
        if not self.dml or not self.matches_object(owner, name):
            return TruthValue.FALSE
        if not self.looks_at_rows:
            return self.tags.answer(tag)
        return self._answer({"object_owner": owner, "object_name": name}, tag)

    def answer_of_tag(self, tag: KnownTag) -> TruthValue:
        """What the rule says of row LCRs of every table that it matches, as far as the tag decides it."""
        return self._answer({}, tag)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Of both kinds: what the rule looks at rows for."""
        return tuple(each for each in (self.condition, self.subset) if each is not None)

    def _answer(self, attributes: dict[str, str | bytes | int | None], tag: KnownTag) -> TruthValue:
        taken = self.tags.answer(tag)
        if taken is TruthValue.FALSE or not self.looks_at_rows:
            return taken
        if self.condition is not None:
            # Here, not at the head: numpy costs 14 MB in processes that see no rows, and most rules have no condition.
            from headrace.rules.conditions.logic import TRUE, Known, possible

            if tag is not UNKNOWN_TAG:
                attributes["tag"] = tag
            found = possible(self.condition.tree, Known(attributes=attributes))
            if not found & TRUE:
                return TruthValue.FALSE
            if found != TRUE:
                return TruthValue.MAYBE
        return TruthValue.MAYBE if self.subset is not None else taken

    def matches_object(self, owner: str, name: str) -> bool:
        """Whether the rule speaks of the table `owner.name`.

        Args:
            owner: schema of a table, under the name that the rule's client sees.
            name: of the table in that schema.
        """
        # of hundreds of rules most have the schema and another name
        return _matching(self.name)(name) and self.matches_owner(owner)

    def matches_owner(self, owner: str) -> bool:
        """Whether the rule speaks of tables of the schema `owner`."""
        return _matching(self.owner)(owner)

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

    @property
    def looks_at_rows(self) -> bool:
        """Whether some rule needs more than object and tag."""
        return any(rule.looks_at_rows for rule in (*(self.include or ()), *self.exclude))

    def subset_of(self, owner: str, name: str) -> Condition | None:
        """Which rows of a table pass; None: all, or none.

        Args:
            owner: the table's schema.
            name: the table's name.
        """
        matching = [rule for rule in self.include or () if rule.dml and rule.matches_object(owner, name)]
        return matching[0].subset if matching and all(rule.subset is not None for rule in matching) else None

    @property
    def transforms(self) -> bool:
        """Whether some rule has a transformation."""
        return any(rule.transformation is not None for rule in self.include or ())

    @property
    def renames(self) -> bool:
        """Whether some rule gives tables other names."""
        return any(rule.transformation is not None and rule.transformation.renames for rule in self.include or ())

    def takers(self, owner: str, name: str) -> tuple[Rule, ...]:
        """The positive rules that may take row LCRs of a table.

        Args:
            owner: the table's schema.
            name: the table's name.
        """
        return tuple(
            rule for rule in self.include or () if rule.answer(owner, name, UNKNOWN_TAG) is not TruthValue.FALSE
        )

    def transformation_of(self, owner: str, name: str) -> Transformation | None:
        """What becomes of the row LCRs of a table that pass; None: they stay as they are.

        Args:
            owner: the table's schema.
            name: the table's name.

        Raises:
            TransformationError: several rules may take them, and make different LCRs of them.
        """
        if not self.transforms:
            return None
        takers = self.takers(owner, name)
        for other in takers[1:]:
            if other.transformation != takers[0].transformation:
                raise TransformationError(
                    f"the rules {takers[0]} and {other} both take {owner}.{name}, and transform it differently: which"
                    " of them is followed is not told",
                    hint="let one rule alone take the table",
                    table=f"{owner}.{name}",
                )
        return takers[0].transformation if takers else None

    def without_conditions(self) -> RuleSet:
        """What the rules take at most.

        Conditions of positive rules are TRUE, negative rules with conditions are not there.

        So a client further on evaluates once more what clients before it decided: their conditions speak of LCRs as
        they were then, before rows migrated. Subsets stay: what has migrated passes them as it is. Transformations are
        done.
        """
        if not self.looks_at_rows and not self.transforms:
            return self
        return RuleSet(
            include=None
            if self.include is None
            else tuple(replace(rule, condition=None, transformation=None) for rule in self.include),
            exclude=tuple(rule for rule in self.exclude if rule.condition is None),
        )

    def prefilter(self, owner: str, name: str, *, tag: KnownTag = UNKNOWN_TAG) -> TruthValue:
        """Tell from the object alone (and the tag, if known) what the rules will say of its row LCRs.

        Args:
            owner: the table's schema.
            name: the table's name.
            tag: of the LCRs.

        Returns:
            FALSE: discard. TRUE: keep. MAYBE: evaluate again with what is missing: the tag, or the rows.
        """
        negative = _any(self.exclude, owner, name, tag=tag)
        if negative is TruthValue.TRUE:
            return TruthValue.FALSE
        positive = TruthValue.TRUE if self.include is None else _any(self.include, owner, name, tag=tag)
        if positive is TruthValue.FALSE:
            return TruthValue.FALSE
        if negative is TruthValue.MAYBE:
            return TruthValue.MAYBE
        return positive

    def keeps(self, owner: str, name: str, *, tag: KnownTag = UNKNOWN_TAG) -> bool:
        """Whether row LCRs of a table may pass, as far as `prefilter` tells.

        Args:
            owner: the table's schema.
            name: the table's name.
            tag: of the LCRs.
        """
        return self.prefilter(owner, name, tag=tag) is not TruthValue.FALSE

    def unmatched(self, tables: Iterable[tuple[str, str]]) -> tuple[Rule, ...]:
        """Return the positive rules that speak of none of `tables` (owner, name): probably a misspelt name."""
        known = tuple(tables)
        return tuple(
            rule for rule in self.include or () if not any(rule.matches_object(owner, name) for owner, name in known)
        )


class Passage(NamedTuple):
    """A table at one client.

    Args:
        table: what it is called there: what the client's rules speak of.
        transformation: of the client; None: the table stays as it is.
        behind: what it is called behind the client.
    """

    table: TableName
    transformation: Transformation | None
    behind: TableName


def passages(clients: Iterable[RuleSet], table: Named) -> Iterator[Passage]:
    """What a table is called at each of several clients in a row, and what becomes of it.

    The one place that follows names.

    Args:
        clients: their rule sets, in the order in which changes pass them.
        table: before the first one. Whether its changes pass is not asked.

    Raises:
        TransformationError: see `RuleSet.transformation_of`.
    """
    name = TableName.of(table)
    for rules in clients:
        found = rules.transformation_of(*name)
        before, name = name, name if found is None else found.named(name)
        yield Passage(before, found, name)


def tags_told_apart(rule_sets: Iterable[RuleSet]) -> tuple[bytes | None, ...]:
    """One of each kind of tag that rule sets can tell apart: NULL, every tag they list, and last one that they do not.

    What holds for each of these holds for every tag.
    """
    rules = [rule for rule_set in rule_sets for rule in (*(rule_set.include or ()), *rule_set.exclude)]
    listed = {tag for rule in rules for tag in rule.tags.listed if tag is not None}
    conditions = [rule.condition for rule in rules if rule.condition is not None]
    listed |= {tag for condition in conditions for tag in condition.tags}
    other = next(tag for number in range(len(listed) + 1) if (tag := number.to_bytes(4, "big")) not in listed)
    return None, *sorted(listed), other


@lru_cache(maxsize=4096)  # patterns of one topology; more only costs time
def _matching(text: str) -> Callable[[str], bool]:
    """Whether a name matches a pattern: `*` and `?` as in file names; everything else, brackets too, stands for itself."""
    if not set("*?") & set(text):
        return text.__eq__
    special = {"*": ".*", "?": "."}
    pattern = re.compile("".join(special.get(letter) or re.escape(letter) for letter in text) + r"\Z", re.DOTALL)
    return lambda name: pattern.match(name) is not None


def _any(rules: tuple[Rule, ...], owner: str, name: str, *, tag: KnownTag) -> TruthValue:
    answer = TruthValue.FALSE
    for rule in rules:
        # Most rules are of other tables, and have no conditions: hundreds of them are asked for each batch.
        if not rule.dml or not rule.matches_object(owner, name):
            continue
        taken = (
            rule.tags.answer(tag) if rule.condition is None and rule.subset is None else rule.answer(owner, name, tag)
        )
        if taken is TruthValue.TRUE:
            return taken
        if taken is TruthValue.MAYBE:
            answer = taken
    return answer
