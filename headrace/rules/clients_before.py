"""Whether the clients upstream of an apply process let a table through, by the table's name behind them.

An apply process evaluates once more what the upstream clients evaluated (`topology.routing.ways.rules_at_the_end`).
Their rules use the table's name at that client. So an arriving name is traced back to its possible earlier names. Each
of those is then traced forward, client by client, and checked against the clients' rules. The topology file decides,
not the tables of the source: `check` refuses two tables that would arrive under one name.

    capture takes hr.*, puts it into schema sales    sales.staff arrives: hr.staff passed
    a propagation renames sales.staff to crm.staff   crm.staff arrives: sales.staff, hr.staff passed;
                                                     sales.staff does not arrive any more
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
    """The upstream clients of an apply process.

    Args:
        clients: their rule sets, in the order in which changes pass them.
        owners: example schemas, one for each set of the clients' patterns that a name can match. As far as rules can
            distinguish schemas, a renamed table's earlier schema is one of them.
    """

    clients: tuple[RuleSet, ...]
    owners: tuple[str, ...]

    @cached_property
    def at_most(self) -> tuple[RuleSet, ...]:
        """The rule sets without row conditions and transformations (`RuleSet.without_conditions`)."""
        return tuple(each.without_conditions() for each in self.clients)

    def keeps(self, owner: str, name: str, *, tag: KnownTag) -> bool:
        """Return whether all of the clients may let row LCRs pass.

        Args:
            owner: the table's schema behind the last client.
            name: the table's name there.
            tag: the LCRs' tag.
        """
        known, at_most = TableName(owner, name), self.at_most
        for table in self._before(known):
            with suppress(TransformationError):  # two rules disagree about a table of this name: no such table arrives
                found = tuple(passages(self.clients, table))
                if found[-1].behind == known and all(
                    rules.keeps(*passage.table, tag=tag) for rules, passage in zip(at_most, found, strict=True)
                ):
                    return True
        return False

    def keeps_ddl(self, owner: str, name: str, *, tag: bytes | None) -> bool:
        """Return whether all of the clients let DDL LCRs pass: none does under another name (`Rule.takes_ddl`).

        Args:
            owner: the table's schema.
            name: the table's name.
            tag: the LCRs' tag.
        """
        return all(rules.keeps_ddl(owner, name, tag=tag) for rules in self.clients)

    @property
    def takes_ddl(self) -> bool:
        """Whether DDL LCRs of any table pass."""
        return all(rules.takes_ddl for rules in self.clients)

    def _before(self, table: TableName) -> set[TableName]:
        """Return possible names of a table before the first client; some of them turn out to become another name."""
        found = {table}
        for rules in reversed(self.clients):
            for rule in rules.include or () if rules.renames else ():
                found |= {before for each in tuple(found) for before in self._given_by(rule, each)}
        return found

    def _given_by(self, rule: Rule, table: TableName) -> Iterator[TableName]:
        """Yield the tables to which a rule may give this name."""
        if rule.transformation is None:
            return
        if rule.transformation.new_name == table:
            yield TableName(rule.owner, rule.name)  # such a rule names one table
        elif rule.transformation.new_owner == table.owner:
            yield from (TableName(owner, table.name) for owner in self.owners if rule.matches_object(owner, table.name))
