"""Classes of changes: every table that the rules of a topology can tell apart, tagged and untagged, one of each.

Rules speak of tables by patterns, so a topology has no list of tables. But rules can tell only so many tables apart: all
names that match the same patterns are treated alike. One example stands for each of these classes, and what is true of every
example is true of every table. A set of classes is an `int` with one bit per class, so that rule sets along a path are
combined with `&`, and paths with `|`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from rules.rule import Rule, RuleSet, TruthValue
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
                1 << (number + tagged * len(self.tables))
                for number, (owner, name) in enumerate(self.tables) for tagged in (False, True)
                if rules.prefilter(owner, name, tagged=tagged) is not TruthValue.FALSE
            )
        return taken

    def carried_by(self, clients: Iterable[_Client]) -> int:
        """The classes that all of the clients on a way take."""
        carried = ~(-1 << 2 * len(self.tables))
        for client in clients:
            carried &= self.taken_by(client.rules)
        return carried

    def tables_of(self, classes: int) -> int:
        """The same tables' untagged changes: what tells sets of tables apart."""
        return (classes | classes >> len(self.tables)) & self.untagged

    def tagged(self, classes: int) -> int:
        """The same tables' changes with a tag: what captures see of them once they are applied."""
        return self.tables_of(classes) << len(self.tables)

    def example(self, classes: int) -> str:
        """One table of a set that is not empty, for people; untagged changes are named before tagged ones."""
        number = (classes & -classes).bit_length() - 1
        owner, name = self.tables[number % len(self.tables)]
        return f"{owner}.{name}" if number < len(self.tables) else f"{owner}.{name} (tagged changes)"


def _tables(rules: list[Rule]) -> Iterator[tuple[str, str]]:
    """Examples of tables. Names are told apart only by the rules that speak of their schema: 300 tables stay 300 classes."""
    for owner in examples(rule.owner for rule in rules):
        for name in examples(rule.name for rule in rules if rule.matches_owner(owner)):
            yield owner, name
