"""Classes of changes: every table that the rules of a topology can tell apart, with every tag they can, one of each.

Rules speak of tables by patterns, so a topology has no list of tables. But rules can tell only so many tables apart: all
names that match the same patterns are treated alike, and so are all tags that no rule lists. One example stands for each of
these classes, and what is true of every example is true of every table and tag. A set of classes is an `int` with one bit per class, so that rule sets along a path are
combined with `&`, and paths with `|`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from rules.rule import Rule, RuleSet, tags_told_apart
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
        self._taken: dict[RuleSet, int] = dict.fromkeys(rule_sets, -1)
        rules = list(dict.fromkeys(rule for each in self._taken for rule in (*(each.include or ()), *each.exclude)))
        self.tables: tuple[tuple[str, str], ...] = tuple(_tables(rules))
        self.tags: tuple[bytes | None, ...] = tags_told_apart(self._taken)  # NULL first, the one that no rule lists last

    @classmethod
    def of(cls, spec: TopologySpec) -> ChangeClasses:
        """The classes that the clients of `spec` tell apart."""
        return cls(client.rules for clients in (spec.captures, spec.propagations, spec.applies) for client in clients)

    @property
    def untagged(self) -> int:
        """Every class of changes with a NULL tag."""
        return (1 << len(self.tables)) - 1

    def taken_by(self, rules: RuleSet) -> int:
        """The classes that one of the rule sets given to the constructor takes."""
        taken = self._taken[rules]
        if taken < 0:
            taken = self._taken[rules] = sum(
                1 << (number + place * len(self.tables))
                for number, (owner, name) in enumerate(self.tables) for place, tag in enumerate(self.tags)
                if rules.keeps(owner, name, tag=tag)
            )
        return taken

    def carried_by(self, clients: Iterable[_Client]) -> int:
        """The classes that all of the clients on a way take."""
        carried = ~(-1 << len(self.tags) * len(self.tables))
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

    def tagged(self, classes: int, tag: bytes | None) -> int:
        """The same tables' changes with one tag: what captures see of them once an apply process with that tag applied them.

        Args:
            classes: a set of classes; which tags they have does not matter.
            tag: of the apply process; None: it sets the NULL tag.

        Returns:
            A set of classes; a tag that no rule lists stands for all such tags.
        """
        place = self.tags.index(tag) if tag in self.tags else len(self.tags) - 1
        return self.tables_of(classes) << place * len(self.tables)

    def example(self, classes: int) -> str:
        """One table of a set that is not empty, for people; untagged changes are named before tagged ones."""
        place, number = divmod((classes & -classes).bit_length() - 1, len(self.tables))
        owner, name = self.tables[number]
        tag = self.tags[place]
        if tag is None:
            return f"{owner}.{name}"
        is_listed = place < len(self.tags) - 1
        return f"{owner}.{name} (changes with tag {tag.hex()})" if is_listed else f"{owner}.{name} (tagged changes)"


def _tables(rules: list[Rule]) -> Iterator[tuple[str, str]]:
    """Examples of tables. Names are told apart only by the rules that speak of their schema: 300 tables stay 300 classes."""
    for owner in examples(rule.owner for rule in rules):
        for name in examples(rule.name for rule in rules if rule.matches_owner(owner)):
            yield owner, name
