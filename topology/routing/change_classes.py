"""Classes of changes: one example of every table and tag that the rules of a topology can tell apart.

Rules name tables by patterns, so a topology has no list of tables. But rules can tell only so many tables apart: all
names that match the same patterns are treated alike, and so are all tags that no rule lists. One example represents
each of these classes, and what holds for every example holds for every table and tag. A set of classes is an `int` with
one bit per class, so that rule sets along a path are combined with `&`, and paths with `|`.

Names that rules give to tables (`rename_table`, `rename_schema`) are examples, too, so that a table has a class
wherever it is. A `Naming` holds the names of tables at a client; `at_source` translates classes from those names to the
source's. So a way is still an `&` of what its clients take by the source's names.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar

from headrace.lcr.table_name import TableName
from headrace.rules.rule import UNKNOWN_TAG, Rule, RuleSet, TagCondition, TruthValue, tags_told_apart
from topology.patterns import examples

if TYPE_CHECKING:
    from topology.spec import TopologySpec

__all__ = ["ChangeClasses", "Naming"]

Naming = Mapping[int, int]
"""Names of tables at a client, as positions in `ChangeClasses.tables`, by the position of the source's name. Tables
with their own name are absent.
"""


class _Client(Protocol):
    @property
    def rules(self) -> RuleSet: ...


C = TypeVar("C", bound=_Client)


class ChangeClasses:
    """The classes of one topology's changes.

    Args:
        rule_sets: of every client; changes that they cannot tell apart are one class.
    """

    def __init__(self, rule_sets: Iterable[RuleSet]) -> None:
        known = tuple(dict.fromkeys(rule_sets))
        self.rules: tuple[Rule, ...] = tuple(
            dict.fromkeys(rule for each in known for rule in (*(each.include or ()), *each.exclude))
        )
        self._told_apart = _with_new_names(self.rules)
        self.tables: tuple[tuple[str, str], ...] = tuple(_tables(self._told_apart))
        self.tags: tuple[bytes | None, ...] = tags_told_apart(known)  # NULL first; last the tag that no rule lists
        self._places = {table: number for number, table in enumerate(self.tables)}
        self._named: dict[tuple[str, str], int] = {}
        patterns = dict.fromkeys((rule.owner, rule.name) for rule in self._told_apart)
        self._plain = frozenset(pattern for pattern in patterns if not set("*?") & set("".join(pattern)))
        self._wild = tuple(Rule(owner=owner, name=name) for owner, name in patterns if (owner, name) not in self._plain)
        self._alike: dict[tuple[object, ...], int] = {}
        # By identity, because hashing a rule set with hundreds of rules takes as long as this saves. The entries keep
        # the rule sets alive.
        self._taken: dict[int, tuple[RuleSet, int]] = {}
        self._renamed: dict[int, tuple[RuleSet, dict[int, int]]] = {}
        # the first table's changes with every tag
        self._every_tag = sum(1 << place * len(self.tables) for place in range(len(self.tags)))

    @classmethod
    def of(cls, *specs: TopologySpec) -> ChangeClasses:
        """Return the classes that the clients of topologies tell apart.

        Two topologies that are compared need common classes: `a*` and `*b` meet in `ab`.
        """
        return cls(
            client.rules
            for spec in specs
            for clients in (spec.captures, spec.propagations, spec.applies)
            for client in clients
        )

    @property
    def untagged(self) -> int:
        """Every class of changes with a NULL tag."""
        return (1 << len(self.tables)) - 1

    def named_by(self, rule: Rule) -> int:
        """Return the tables that one of the rules names, as a set of untagged changes."""
        key = rule.owner, rule.name
        if key not in self._named:
            if set("*?") & set(rule.owner + rule.name):
                matching = (number for number, table in enumerate(self.tables) if rule.matches_object(*table))
                self._named[key] = sum(1 << number for number in matching)
            else:
                self._named[key] = 1 << self._places[key]  # a plain name is an example of itself
        return self._named[key]

    def matched_by(self, rules: Iterable[Rule]) -> int:
        """Return the classes for which at least one of the rules is TRUE or, for a rule with a condition, may be."""
        return self._matched(rules, {TruthValue.TRUE, TruthValue.MAYBE})

    def _matched(self, rules: Iterable[Rule], answers: Container[TruthValue]) -> int:
        """Return the classes for which at least one of the rules has one of the answers."""
        by_tags: dict[tuple[TagCondition, Rule | None], int] = {}
        for rule in rules:
            if rule.dml:
                # Of a condition only the tag part: a class has many tables, and only one of their names.
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
        """Return the classes of which a rule set (one of the constructor's) may take changes.

        It agrees with `RuleSet.keeps` of each.
        """
        if id(rules) not in self._taken:
            taken = self._all if rules.include is None else self.matched_by(rules.include)
            self._taken[id(rules)] = rules, taken & ~self._matched(rules.exclude, {TruthValue.TRUE})
        return self._taken[id(rules)][1]

    def decided_by_rows(self, rules: RuleSet) -> int:
        """Return the classes of which the rule set takes only some changes, because of conditions or a subset."""
        if not rules.looks_at_rows:
            return 0
        surely = self._all if rules.include is None else self._matched(rules.include, {TruthValue.TRUE})
        return self.taken_by(rules) & ~(surely & ~self.matched_by(rules.exclude))

    @cached_property
    def spoken_of(self) -> tuple[TableName, ...]:
        """An example of each set of tables that the rules' patterns tell apart, without names that only renames give."""
        return tuple(TableName(*table) for table in _tables(self.rules))

    def renamed_by(self, rules: RuleSet) -> dict[int, int]:
        """Return the tables that a client renames, and their new names, as positions in `tables`."""
        if not rules.renames:
            return {}
        if id(rules) not in self._renamed:
            found: dict[int, int] = {}
            for rule in rules.include or ():
                if rule.transformation is None or not rule.transformation.renames:
                    continue
                for place in _places_of(self.named_by(rule)):
                    table = TableName(*self.tables[place])
                    other = rule.transformation.named(table)
                    if place in found or other == table or rule.answer(*table, UNKNOWN_TAG) is TruthValue.FALSE:
                        continue  # `check` reports rules that disagree
                    if becomes := self.class_of(*other):
                        found[place] = becomes.bit_length() - 1
            self._renamed[id(rules)] = rules, found
        return self._renamed[id(rules)][1]

    def behind(self, rules: RuleSet, names: Naming) -> Naming:
        """Return the names of tables behind a client.

        Args:
            rules: of the client.
            names: the tables' names at the client.
        """
        renamed = self.renamed_by(rules)
        if not renamed:
            return names
        found: dict[int, int] = {}
        for table in {**names, **renamed}:
            now = names.get(table, table)
            if (becomes := renamed.get(now, now)) != table:
                found[table] = becomes
        return found

    def named_along(self, clients: Iterable[C]) -> Iterator[tuple[C, Naming]]:
        """Yield several clients in a row, with the names of tables at each of them."""
        names: Naming = {}
        for client in clients:
            yield client, names
            names = self.behind(client.rules, names)

    def named_behind(self, clients: Iterable[_Client]) -> Naming:
        """Return the names of tables behind several clients in a row."""
        names: Naming = {}
        for client in clients:
            names = self.behind(client.rules, names)
        return names

    def at_source(self, classes: int, names: Naming) -> int:
        """Translate classes to the names at the source.

        Args:
            classes: by the names that the tables have at a client.
            names: of the tables there.
        """
        found = classes
        for table, now in names.items():
            found = found & ~(self._every_tag << table) | (classes >> now & self._every_tag) << table
        return found

    def by_name(self, classes: int, names: Naming) -> int:
        """Translate classes to their tables' names at a client: the reverse of `at_source`.

        Args:
            classes: by the names at the source.
            names: of the tables at the client.
        """
        found = classes
        for table in names:
            found &= ~(self._every_tag << table)
        for table, now in names.items():
            found |= (classes >> table & self._every_tag) << now
        return found

    @property
    def _all(self) -> int:
        return ~(-1 << len(self.tags) * len(self.tables))

    def carried_by(self, clients: Iterable[_Client]) -> int:
        """Return the classes that all clients on a way take, by the names at the source."""
        carried = self._all
        for client, names in self.named_along(clients):
            carried &= self.at_source(self.taken_by(client.rules), names)
        return carried

    def tables_of(self, classes: int) -> int:
        """Return the same tables' untagged changes: the canonical form of a set of tables."""
        found = 0
        while classes:
            found |= classes & self.untagged
            classes >>= len(self.tables)
        return found

    def class_of(self, owner: str, name: str) -> int:
        """Return the class of a table's untagged changes.

        Args:
            owner: the table's schema.
            name: the table's name.
        """
        if not self._alike:
            self._alike.update((self._matches(*table), 1 << number) for number, table in enumerate(self.tables))
        # A name that more wildcards match together than `examples` searches has no class: no rule set is known to treat
        # it differently.
        return self._alike.get(self._matches(owner, name), 0)

    def _matches(self, owner: str, name: str) -> tuple[object, ...]:
        """Return a table's key: its plain name or None, and whether it matches each pattern with wildcards."""
        return (owner, name) if (owner, name) in self._plain else None, *(
            rule.matches_object(owner, name) for rule in self._wild
        )

    def place_of(self, tag: bytes | None) -> int:
        """Return the position of a tag in `tags`; for a tag that no rule lists, the last one, which they all share."""
        return self.tags.index(tag) if tag in self.tags else len(self.tags) - 1

    def with_tag(self, classes: int, place: int) -> int:
        """Return the tables of a set whose changes have one tag, as a set of untagged changes.

        Args:
            classes: the set.
            place: position of the tag in `tags`.
        """
        return classes >> place * len(self.tables) & self.untagged

    def example(self, classes: int) -> str:
        """Name one table of a set that is not empty; untagged changes come before tagged ones."""
        place, number = divmod((classes & -classes).bit_length() - 1, len(self.tables))
        owner, name = self.tables[number]
        tag = self.tags[place]
        if tag is None:
            return f"{owner}.{name}"
        is_listed = place < len(self.tags) - 1
        return f"{owner}.{name} (changes with tag {tag.hex()})" if is_listed else f"{owner}.{name} (tagged changes)"


def _places_of(tables: int) -> Iterator[int]:
    """Yield the tables of a set of untagged changes, one by one."""
    while tables:
        yield (tables & -tables).bit_length() - 1
        tables &= tables - 1


def _tables(rules: tuple[Rule, ...]) -> Iterator[tuple[str, str]]:
    """Yield examples of tables.

    Only rules that name a table's schema tell its name apart: 300 tables stay 300 classes.
    """
    for owner in examples(rule.owner for rule in rules):
        for name in examples(rule.name for rule in rules if rule.matches_owner(owner)):
            yield owner, name


def _with_new_names(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Return the rules, and further ones that make every new name of a table an example.

    They tell tables apart that differ only under their new names.
    """
    renaming = [
        (rule, rule.transformation) for rule in rules if rule.transformation is not None and rule.transformation.renames
    ]
    if not renaming:
        return rules
    told = dict.fromkeys(
        (
            *rules,
            *(
                Rule(owner=each.new_name.owner, name=each.new_name.name)
                for _, each in renaming
                if each.new_name is not None
            ),
        )
    )
    moved = [(rule.owner, each.new_owner) for rule, each in renaming if each.new_owner]
    owners = examples((*(rule.owner for rule in told), *(owner for _, owner in moved)))
    links = [
        (owner, each.new_owner)
        for rule, each in renaming
        if each.new_owner
        for owner in owners
        if rule.matches_owner(owner)
    ]
    for group in _linked(links):
        names = dict.fromkeys(rule.name for rule in told if any(rule.matches_owner(owner) for owner in group))
        patterns = dict.fromkeys(pattern for pair in moved if pair[1] in group for pattern in pair)
        told |= dict.fromkeys(Rule(owner=owner, name=name) for owner in patterns for name in names)
    return tuple(told)


def _linked(links: Iterable[tuple[str, str]]) -> list[set[str]]:
    """Return groups of what is linked, directly or indirectly."""
    groups: list[set[str]] = []
    for link in links:
        mine = [group for group in groups if group & set(link)]
        groups = [*(group for group in groups if group not in mine), set(link).union(*mine)]
    return groups
