"""Rules and rule sets: what a client takes and what it discards.

Evaluation: the negative rule set (`exclude`) comes first, and any rule that is TRUE discards. Then the positive set
(`include`): at least one rule that is TRUE keeps. Prefiltering asks the same with less knowledge and may answer MAYBE.

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
    """Facts that may be unknown when rules are evaluated."""

    TAG = "tag"


UNKNOWN_TAG: Final = Unknown.TAG

KnownTag = bytes | None | Unknown
"""A tag, None for NULL, or UNKNOWN_TAG."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagCondition:
    """The tags that a rule takes.

    Args:
        listed: tags, None for NULL.
        takes_listed: the rule takes only the listed tags; False: every tag but these.
    """

    listed: tuple[bytes | None, ...]
    takes_listed: bool = True

    def answer(self, tag: KnownTag) -> TruthValue:
        """Return whether the condition takes a tag; MAYBE: the tag is unknown and decides."""
        if not self.listed:
            return TruthValue.FALSE if self.takes_listed else TruthValue.TRUE
        if tag is UNKNOWN_TAG:
            return TruthValue.MAYBE
        return TruthValue.TRUE if (tag in self.listed) is self.takes_listed else TruthValue.FALSE


UNTAGGED: Final = TagCondition(listed=(None,))
"""Changes with a NULL tag: not written by an apply process."""

ANY_TAG: Final = TagCondition(listed=(), takes_listed=False)
"""Every change, whatever its tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. A table rule names owner and name, a schema rule owner only, a global rule neither.

    Args:
        owner: pattern of the table's schema (`*` and `?` match as in file names).
        name: pattern of the table's name.
        dml: takes row LCRs (TRUNCATE included).
        ddl: takes DDL LCRs; only a rule that takes all rows of a table, as they are, takes its DDL (`takes_ddl`).
        tags: takes LCRs with these tags.
        condition: takes LCRs for which it is TRUE; None: whatever their attributes and values.
        subset: takes the changes of the rows for which it is TRUE. It turns an UPDATE that moves a row in into an
            INSERT, and one that moves it out into a DELETE; positive rules only. None: no row migration.
        transformation: applied to the LCRs that it takes, after row migration; positive rules only. None: they stay
            unchanged.
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
        """Whether object and tag alone do not decide."""
        return self.condition is not None or self.subset is not None

    def answer(self, owner: str, name: str, tag: KnownTag) -> TruthValue:
        """Return the rule's verdict on row LCRs of a table, as far as it is known.

        Args:
            owner: the table's schema.
            name: the table's name.
            tag: the LCRs' tag.
        """
        if not self.dml or not self.matches_object(owner, name):
            return TruthValue.FALSE
        if not self.looks_at_rows:
            return self.tags.answer(tag)
        return self._answer({"object_owner": owner, "object_name": name}, tag)

    def takes_ddl(self, owner: str, name: str, tag: bytes | None) -> bool:
        """Return whether the rule takes DDL LCRs of a table.

        A condition on rows or a subset cannot be evaluated for them, and a transformation does not change them. So a rule
        that has one takes none.

        Args:
            owner: the table's schema.
            name: the table's name.
            tag: the LCRs' tag.
        """
        return (
            self.ddl
            and not self.looks_at_rows
            and self.transformation is None
            and self.matches_object(owner, name)
            and self.tags.answer(tag) is TruthValue.TRUE
        )

    def answer_of_tag(self, tag: KnownTag) -> TruthValue:
        """Return the rule's verdict on row LCRs of every table that it matches, as far as the tag decides it."""
        return self._answer({}, tag)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Conditions of both kinds, which are evaluated on rows."""
        return tuple(each for each in (self.condition, self.subset) if each is not None)

    def _answer(self, attributes: dict[str, str | bytes | int | None], tag: KnownTag) -> TruthValue:
        taken = self.tags.answer(tag)
        if taken is TruthValue.FALSE or not self.looks_at_rows:
            return taken
        if self.condition is not None:
            # A local import: numpy costs 14 MB in processes that see no rows, and most rules have no condition.
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
        """Return whether the rule concerns the table `owner.name`.

        Args:
            owner: schema of a table, under the name that the rule's client sees.
            name: name of the table in that schema.
        """
        # most of hundreds of rules have the schema and another name
        return _matching(self.name)(name) and self.matches_owner(owner)

    def matches_owner(self, owner: str) -> bool:
        """Return whether the rule concerns tables of the schema `owner`."""
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
        """Return the subset of a table's rows that passes; None: all, or none.

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
        """Return the positive rules that may take row LCRs of a table.

        Args:
            owner: the table's schema.
            name: the table's name.
        """
        return tuple(
            rule for rule in self.include or () if rule.answer(owner, name, UNKNOWN_TAG) is not TruthValue.FALSE
        )

    def transformation_of(self, owner: str, name: str) -> Transformation | None:
        """Return the transformation of the row LCRs of a table that pass; None: they stay unchanged.

        Args:
            owner: the table's schema.
            name: the table's name.

        Raises:
            TransformationError: several rules may take them, with different transformations.
        """
        if not self.transforms:
            return None
        takers = self.takers(owner, name)
        for other in takers[1:]:
            if other.transformation != takers[0].transformation:
                raise TransformationError(
                    f"the rules {takers[0]} and {other} both take {owner}.{name}, and transform it differently: which"
                    " of them applies is undefined",
                    hint="let one rule alone take the table",
                    table=f"{owner}.{name}",
                )
        return takers[0].transformation if takers else None

    def without_conditions(self) -> RuleSet:
        """Return the rules with the largest possible selection.

        Conditions of positive rules become TRUE, and negative rules with conditions are dropped.

        A client further downstream evaluates with these what upstream clients decided. Their conditions applied to the
        LCRs of that time, before row migration. Subsets stay: migrated rows pass them unchanged. Transformations have
        been applied.
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
        """Return the rules' verdict on an object's row LCRs from the object alone (and the tag, if known).

        Args:
            owner: the table's schema.
            name: the table's name.
            tag: the LCRs' tag.

        Returns:
            FALSE: discard. TRUE: keep. MAYBE: evaluate again with the missing knowledge: the tag, or the rows.
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
        """Return whether row LCRs of a table may pass, according to `prefilter`.

        Args:
            owner: the table's schema.
            name: the table's name.
            tag: the LCRs' tag.
        """
        return self.prefilter(owner, name, tag=tag) is not TruthValue.FALSE

    def keeps_ddl(self, owner: str, name: str, *, tag: bytes | None) -> bool:
        """Return whether DDL LCRs of a table pass.

        Args:
            owner: the table's schema before the statement; of a new table, after it.
            name: the table's name, likewise.
            tag: the LCRs' tag.
        """
        if any(rule.takes_ddl(owner, name, tag) for rule in self.exclude):
            return False
        return self.include is None or any(rule.takes_ddl(owner, name, tag) for rule in self.include)

    @property
    def names_ddl(self) -> bool:
        """Whether a positive rule takes DDL: then a source records it."""
        return any(rule.ddl for rule in self.include or ())

    @property
    def takes_ddl(self) -> bool:
        """Whether DDL LCRs of any table pass."""
        return self.include is None or self.names_ddl

    def unmatched(self, tables: Iterable[tuple[str, str]]) -> tuple[Rule, ...]:
        """Return the positive rules that match none of `tables` (owner, name): probably a misspelt name."""
        known = tuple(tables)
        return tuple(
            rule for rule in self.include or () if not any(rule.matches_object(owner, name) for owner, name in known)
        )


class Passage(NamedTuple):
    """A table at one client.

    Args:
        table: its name there, which the client's rules use.
        transformation: the client's transformation; None: the table stays unchanged.
        behind: its name behind the client.
    """

    table: TableName
    transformation: Transformation | None
    behind: TableName


def passages(clients: Iterable[RuleSet], table: Named) -> Iterator[Passage]:
    """Yield a table's name and transformation at each of several successive clients.

    The one place that follows names.

    Args:
        clients: their rule sets, in the order in which changes pass them.
        table: before the first one. Whether its changes pass is not checked.

    Raises:
        TransformationError: as for `RuleSet.transformation_of`.
    """
    name = TableName.of(table)
    for rules in clients:
        found = rules.transformation_of(*name)
        before, name = name, name if found is None else found.named(name)
        yield Passage(before, found, name)


def tags_told_apart(rule_sets: Iterable[RuleSet]) -> tuple[bytes | None, ...]:
    """Return one tag of each kind that rule sets distinguish: NULL, every listed tag, and last an unlisted one.

    What holds for each of these holds for every tag.
    """
    rules = [rule for rule_set in rule_sets for rule in (*(rule_set.include or ()), *rule_set.exclude)]
    listed = {tag for rule in rules for tag in rule.tags.listed if tag is not None}
    conditions = [rule.condition for rule in rules if rule.condition is not None]
    listed |= {tag for condition in conditions for tag in condition.tags}
    other = next(tag for number in range(len(listed) + 1) if (tag := number.to_bytes(4, "big")) not in listed)
    return None, *sorted(listed), other


@lru_cache(maxsize=4096)  # patterns of one topology; above that it is only slower
def _matching(text: str) -> Callable[[str], bool]:
    """Return a matcher for a pattern: `*` and `?` as in file names; all other characters, brackets too, are literal."""
    if not set("*?") & set(text):
        return text.__eq__
    special = {"*": ".*", "?": "."}
    pattern = re.compile("".join(special.get(letter) or re.escape(letter) for letter in text) + r"\Z", re.DOTALL)
    return lambda name: pattern.match(name) is not None


def _any(rules: tuple[Rule, ...], owner: str, name: str, *, tag: KnownTag) -> TruthValue:
    answer = TruthValue.FALSE
    for rule in rules:
        # A fast path: most rules concern other tables and have no conditions, and hundreds are evaluated per batch.
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
