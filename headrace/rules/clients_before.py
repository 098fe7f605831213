"""What the clients before an apply process let through, asked by the name that a table has behind them.

An apply process evaluates once more what the clients before it evaluated (`topology.routing.ways.rules_at_the_end`). Their
rules speak of tables as these were called there. So a name that arrives is followed back to the names that may have
become it; each is then followed forward, client by client, and the clients' rules are asked. What the file allows
decides, not which tables the source has: `check` refuses two tables that would arrive as one.

    capture takes hr.*, puts it into schema sales    sales.staff arrives: hr.staff passed
    a propagation calls sales.staff crm.staff        crm.staff arrives: sales.staff, hr.staff passed; sales.staff does not arrive any more
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from headrace.lcr.table_name import TableName
from headrace.rules.rule import KnownTag, Rule, RuleSet, passages
from headrace.rules.transformations.transformation import TransformationError

__all__ = ["ClientsBefore"]


@dataclass(frozen=True, kw_only=True)
class ClientsBefore:
    """See the module.

    Args:
        clients: their rule sets, in the order in which changes pass them.
        owners: examples of schemas, one for each set of the clients' patterns that a name can match: the schema that a
            table had before another one was given to it is one of them, as far as rules can tell.
    """

    clients: tuple[RuleSet, ...]
    owners: tuple[str, ...]

    @cached_property
    def at_most(self) -> tuple[RuleSet, ...]:
        """The rule sets without what looks at rows, and without transformations; see `RuleSet.without_conditions`."""
        return tuple(each.without_conditions() for each in self.clients)

    def keeps(self, owner: str, name: str, *, tag: KnownTag) -> bool:
        """Whether all of the clients may let row LCRs pass.

        Args:
            owner: the table's schema behind the last client.
            name: the table's name there.
            tag: of the LCRs.
        """
        known, at_most = TableName(owner, name), self.at_most
        for table in self._before(known):
            with suppress(TransformationError):  # two rules disagree about a table of this name: no such table comes
                found = tuple(passages(self.clients, table))
                if found[-1].behind == known and all(
                    rules.keeps(*passage.table, tag=tag) for rules, passage in zip(at_most, found, strict=True)
                ):
                    return True
        return False

    def _before(self, table: TableName) -> set[TableName]:
        """Names that a table may have had before the first client; some of them become another name."""
        found = {table}
        for rules in reversed(self.clients):
            for rule in rules.include or () if rules.renames else ():
                found |= {before for each in tuple(found) for before in self._given_by(rule, each)}
        return found

    def _given_by(self, rule: Rule, table: TableName) -> Iterator[TableName]:
        """The names of tables to which a rule may give a name."""
        if rule.transformation is None:
            return
        if rule.transformation.new_name == table:
            yield TableName(rule.owner, rule.name)  # such a rule is of one table
        elif rule.transformation.new_owner == table.owner:
            yield from (TableName(owner, table.name) for owner in self.owners if rule.matches_object(owner, table.name))
