"""Classes of changes: every table that the rules of a topology can tell apart, with every tag they can, one of each.

Rules speak of tables by patterns, so a topology has no list of tables. But rules can tell only so many tables apart: all
names that match the same patterns are treated alike, and so are all tags that no rule lists. One example stands for each of
these classes, and what is true of every example is true of every table and tag. A set of classes is an `int` with one bit per class, so that rule sets along a path are
combined with `&`, and paths with `|`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from rules.rule import Rule, RuleSet, TagCondition, TruthValue, tags_told_apart
from streams.table_name import TableName
from topology.patterns import examples

if TYPE_CHECKING:
    from topology.spec import TopologySpec

__all__ = ["ChangeClasses"]


class _Client(Protocol):
    @property
    def rules(self) -> RuleSet: ...


class ChangeClasses:
    """The classes of one topology's changes.

    Args:
        rule_sets: of every client; what they cannot tell apart is one class.
    """

    def __init__(self, rule_sets: Iterable[RuleSet]) -> None:
        known = tuple(dict.fromkeys(rule_sets))
        self.rules: tuple[Rule, ...] = tuple(dict.fromkeys(rule for each in known for rule in (*(each.include or ()), *each.exclude)))
        self.tables: tuple[tuple[str, str], ...] = tuple(_tables(self.rules))
        self.tags: tuple[bytes | None, ...] = tags_told_apart(known)  # NULL first, the one that no rule lists last
        self._places = {table: number for number, table in enumerate(self.tables)}
        self._named: dict[tuple[str, str], int] = {}
        self._alike: dict[tuple[bool, ...], int] = {}
        # By identity, because the hash of a rule set with hundreds of rules takes as long as this saves. The rule sets are kept.
        self._taken: dict[int, tuple[RuleSet, int]] = {}

    @classmethod
    def of(cls, *specs: TopologySpec) -> ChangeClasses:
        """The classes that the clients of topologies tell apart; of two that are compared, both together: `a*` and `*b` meet in `ab`."""
        return cls(client.rules for spec in specs for clients in (spec.captures, spec.propagations, spec.applies) for client in clients)

    @property
    def untagged(self) -> int:
        """Every class of changes with a NULL tag."""
        return (1 << len(self.tables)) - 1

    def named_by(self, rule: Rule) -> int:
        """The tables that one of the rules speaks of, as a set of untagged changes."""
        key = rule.owner, rule.name
        if key not in self._named:
            if set("*?") & set(rule.owner + rule.name):
                matching = (number for number, table in enumerate(self.tables) if rule.matches_object(*table))
                self._named[key] = sum(1 << number for number in matching)
            else:
                self._named[key] = 1 << self._places[key]  # a plain name is an example of itself
        return self._named[key]

    def matched_by(self, rules: Iterable[Rule]) -> int:
        """The classes for which at least one of the rules is TRUE, or, of a rule with a condition, may be."""
        return self._matched(rules, {TruthValue.TRUE, TruthValue.MAYBE})

    def _matched(self, rules: Iterable[Rule], answers: Container[TruthValue]) -> int:
        """The classes for which at least one of the rules has one of the answers."""
        by_tags: dict[tuple[TagCondition, Rule | None], int] = {}
        for rule in rules:
            if rule.dml:
                # Of a condition only what the tag decides: a class has many tables, and one name of them.
                kind = rule.tags, rule if rule.looks_at_rows else None
                by_tags[kind] = by_tags.get(kind, 0) | self.named_by(rule)
        matched = 0
        for (condition, conditional), tables in by_tags.items():
            for place, tag in enumerate(self.tags):
                answer = condition.answer(tag) if conditional is None else conditional.answer_of_tag(tag)
                if answer in answers:
                    matched |= tables << place * len(self.tables)
        return matched

    def taken_by(self, rules: RuleSet) -> int:
        """The classes of which one of the rule sets given to the constructor may take changes; as `RuleSet.keeps` of each."""
        if id(rules) not in self._taken:
            taken = self._all if rules.include is None else self.matched_by(rules.include)
            self._taken[id(rules)] = rules, taken & ~self._matched(rules.exclude, {TruthValue.TRUE})
        return self._taken[id(rules)][1]

    def decided_by_rows(self, rules: RuleSet) -> int:
        """The classes of which the rule set takes some changes, and not others: conditions decide, or a subset."""
        if not rules.looks_at_rows:
            return 0
        surely = self._all if rules.include is None else self._matched(rules.include, {TruthValue.TRUE})
        return self.taken_by(rules) & ~(surely & ~self.matched_by(rules.exclude))

    def renamed_by(self, rules: RuleSet) -> dict[TableName, int]:
        """The tables that a rule set gives another name, as sets of untagged changes by that name."""
        renamed: dict[TableName, int] = {}
        if not rules.transforms:
            return renamed
        for number, (owner, name) in enumerate(self.tables):
            takers = rules.takers(owner, name)  # where several disagree `check` says so
            names = (each.transformation.named(TableName(owner, name)) for each in takers if each.transformation is not None)
            if (other := next((each for each in names if each != (owner, name)), None)) is not None:
                renamed[other] = renamed.get(other, 0) | 1 << number
        return renamed

    @property
    def _all(self) -> int:
        return ~(-1 << len(self.tags) * len(self.tables))

    def carried_by(self, clients: Iterable[_Client]) -> int:
        """The classes that all of the clients on a way take."""
        carried = self._all
        for client in clients:
            carried &= self.taken_by(client.rules)
        return carried

    def tables_of(self, classes: int) -> int:
        """The same tables' untagged changes: what tells sets of tables apart."""
        found = 0
        while classes:
            found |= classes & self.untagged
            classes >>= len(self.tables)
        return found

    def class_of(self, owner: str, name: str) -> int:
        """The class of a table's untagged changes.

        Args:
            owner: the table's schema.
            name: the table's name.
        """
        if not self._alike:
            matched = ((tuple(rule.matches_object(*table) for rule in self.rules), number) for number, table in enumerate(self.tables))
            self._alike.update((matches, 1 << number) for matches, number in matched)
        # A name that more wildcards match together than `examples` looks for has no class: no rule set is known to treat it apart.
        return self._alike.get(tuple(rule.matches_object(owner, name) for rule in self.rules), 0)

    def place_of(self, tag: bytes | None) -> int:
        """Where a tag stands in `tags`; one that no rule lists: the last place, as all of those are alike."""
        return self.tags.index(tag) if tag in self.tags else len(self.tags) - 1

    def with_tag(self, classes: int, place: int) -> int:
        """The tables of which a set has the changes with one tag, as a set of untagged changes.

        Args:
            classes: the set.
            place: of the tag in `tags`.
        """
        return classes >> place * len(self.tables) & self.untagged

    def example(self, classes: int) -> str:
        """One table of a set that is not empty, for people; untagged changes are named before tagged ones."""
        place, number = divmod((classes & -classes).bit_length() - 1, len(self.tables))
        owner, name = self.tables[number]
        tag = self.tags[place]
        if tag is None:
            return f"{owner}.{name}"
        is_listed = place < len(self.tags) - 1
        return f"{owner}.{name} (changes with tag {tag.hex()})" if is_listed else f"{owner}.{name} (tagged changes)"


def _tables(rules: tuple[Rule, ...]) -> Iterator[tuple[str, str]]:
    """Examples of tables. Names are told apart only by the rules that speak of their schema: 300 tables stay 300 classes."""
    for owner in examples(rule.owner for rule in rules):
        for name in examples(rule.name for rule in rules if rule.matches_owner(owner)):
            yield owner, name
