"""Under which name the changes of a captured table go on: the one in the log, or the one that the source has now.

Rules name tables, and a table may be renamed while its changes are on their way. A rename must not leave rows out in
silence: not by the rules of the capture process, and not by those of a propagation or an apply process behind it.

    the rules keep the name in the log, and everyone who got the table gets it under this name    it goes on
    else, and that is so of the name it has now    its changes travel under the name of now, also the older ones
    else, and it is not captured any more          `up` took it out: it is left out
    else, and the rules of another capture process take it    it is theirs
    else                                           the capture process waits before its next change, until another `up`

Source: Oracle Streams Concepts and Administration 11.2, "Rule Set and Rule Evaluation"; decision 21.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.base.errors import HeadraceError, TableLeftRules
from headrace.lcr.batch import TableVersion
from headrace.redo.dictionary import KnownTable

__all__ = ["HIDDEN_OWNER", "NameOfNow", "NamesAtSource", "TableNames"]

HIDDEN_OWNER = "headrace"  # our own tables at a site: never captured, whatever the rules say


@dataclass(frozen=True, slots=True, kw_only=True)
class NameOfNow:
    """What the source calls a captured table now, whatever the log called it.

    Args:
        identity: see `headrace.databases.ports.CapturedTable`.
        owner: schema; of a partition: the schema of its root.
        name: of the table; of a partition: the name of its root.
        is_wanted: a capture process of the source has a rule for this name.
    """

    identity: str
    owner: str
    name: str
    is_wanted: bool


class NamesAtSource(Protocol):
    """What the source's site knows of the names of its captured tables."""

    def of_now(self) -> Mapping[int, NameOfNow]:
        """What the source calls them now, by object number; those of partitions, too.

        Raises:
            DatabaseUnavailable: the source does not answer.
        """
        ...

    def lost_by(self, object_number: int, owner: str, name: str) -> Collection[str]:
        """The apply processes that got the table when the topology was prepared, and do not get it under this name.

        Args:
            object_number: of the table or of a partition.
            owner: schema of the name to look at.
            name: the name to look at.

        Raises:
            DatabaseUnavailable: the source has to be asked, and does not answer.
        """
        ...

    def forget(self) -> None:
        """Ask again from here on: answers are kept until then."""
        ...


class TableNames:
    """Decides for every table that one capture process meets. See the module.

    Args:
        source: the site whose log is mined.
        keeps: whether the capture process's rules may keep row LCRs of a table, with some tag.
        asked: the source's site. None: names are what the log says.

    Attributes:
        left: a table that left the rules; nothing may be mined beyond it.
    """

    def __init__(self, source: str, keeps: Callable[[TableVersion], bool], asked: NamesAtSource | None) -> None:
        self._source, self._keeps, self._asked = source, keeps, asked
        # names in the log that were looked at already, by the table's number
        self._passed: dict[int, tuple[str, str]] = {}
        self.left: TableLeftRules | None = None

    def look_again(self) -> None:
        """What the source said before may be out of date: the log went on since."""
        if self._asked is not None:
            self._asked.forget()

    def at_source(self) -> set[tuple[str, str]]:
        """Names (owner, name) of the captured tables now, also of those whose first change is still to come.

        Empty: not known.
        """
        if self._asked is None:
            return set()
        try:
            return {(now.owner, now.name) for now in self._asked.of_now().values()}
        except HeadraceError:
            return set()

    def resolve(self, known: KnownTable) -> KnownTable:
        """Find the name under which a table's changes go on.

        Args:
            known: the table, under the name that the log has.

        Returns:
            The table under that name; `left` is set when there is none.

        Raises:
            DatabaseUnavailable: the source has to be asked, and does not answer.
        """
        table, asked = known.table, self._asked
        if asked is None or table.owner == HIDDEN_OWNER:
            return known
        number, logged = table.table_number, (table.owner, table.name)
        if self._keeps(table) and (self._passed.get(number) == logged or not asked.lost_by(number, *logged)):
            self._passed[number] = logged
            return known
        now = asked.of_now().get(number)
        if now is None:
            return known
        renamed = known.renamed(now.owner, now.name)
        if self._keeps(renamed.table):
            lost_by = asked.lost_by(number, now.owner, now.name)
            if not lost_by:
                return renamed
            self.left = self._left_rules(
                table, now, f"which the rules on the way to {', '.join(sorted(lost_by))} leave out"
            )
        elif not now.is_wanted:
            self.left = self._left_rules(table, now, "which no rule takes")
        return known

    def _left_rules(self, table: TableVersion, now: NameOfNow, why: str) -> TableLeftRules:
        name = f"{now.owner}.{now.name}"
        was = "" if name == table.qualified_name else f" (in its next change: {table.qualified_name})"
        return TableLeftRules(
            f"a captured table of {self._source} is called {name} now{was}, {why}: its next change waits, and"
            " everything after it",
            hint=f"to replicate it on, name {name} in the rules and rename it at the destinations; to leave it out,"
            " leave the rules as they are; then `headrace up`",
            source=self._source,
            table=name,
        )
