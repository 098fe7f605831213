"""The name of a captured table's changes from here on: the name in the log, or the current one at the source.

Rules name tables, and a table may be renamed while its changes are in flight. After a rename, no rule may discard rows
silently: no rule of the capture process, and none of a propagation or an apply process behind it. The first case that
applies decides:

    the rules keep the logged name, and every apply process that got the table gets it under that name
                                          the changes keep the logged name
    the same holds for the current name   the changes get the current name, also the older ones
    the table is not captured any more    `up` removed it: its changes are discarded
    the rules of another capture process take it
                                          its changes are left to that capture process
    otherwise                             the capture process waits before its next change, until another `up`

Source: Oracle Streams Concepts and Administration 11.2, "Rule Set and Rule Evaluation"; decision 21.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.base.errors import HeadraceError, TableLeftRules
from headrace.lcr.batch import TableVersion
from headrace.lcr.ddl import DDL_LOG
from headrace.redo.dictionary import KnownTable

__all__ = ["HIDDEN_OWNERS", "NameOfNow", "NamesAtSource", "TableNames"]

# Schemas of Headrace's own tables at a site: no row of them becomes an LCR, whatever the rules say. The log of DDL is in
# the second one (`headrace.redo.mining.ddl_log`).
HIDDEN_OWNERS = frozenset({"headrace", DDL_LOG.owner})


@dataclass(frozen=True, slots=True, kw_only=True)
class NameOfNow:
    """The current name of a captured table at the source, whatever its name in the log.

    Args:
        identity: as in `headrace.databases.ports.CapturedTable`.
        owner: schema; for a partition: the schema of its root.
        name: name of the table; for a partition: the name of its root.
        is_wanted: a capture process of the source has a rule for this name.
    """

    identity: str
    owner: str
    name: str
    is_wanted: bool


class NamesAtSource(Protocol):
    """The source site's knowledge of the names of its captured tables."""

    def of_now(self) -> Mapping[int, NameOfNow]:
        """Return the current names at the source, by object number, including partitions.

        Raises:
            DatabaseUnavailable: the source does not answer.
        """
        ...

    def lost_by(self, object_number: int, owner: str, name: str) -> Collection[str]:
        """Return the apply processes that got the table when the topology was prepared, but not under this name.

        Args:
            object_number: number of the table or of a partition.
            owner: schema of the name.
            name: the name to check.

        Raises:
            DatabaseUnavailable: the source must be asked, and does not answer.
        """
        ...

    def forget(self) -> None:
        """Drop the cached answers, and ask again."""
        ...


class TableNames:
    """Decides on the name of every table that one capture process meets.

    Args:
        source: source site of the mined log.
        keeps: whether the capture process's rules may keep row LCRs of a table, with some tag.
        asked: the source's site. None: the log's names apply.

    Attributes:
        left: a table that left the rules; nothing may be mined beyond it.
    """

    def __init__(self, source: str, keeps: Callable[[TableVersion], bool], asked: NamesAtSource | None) -> None:
        self._source, self._keeps, self._asked = source, keeps, asked
        # names in the log that were checked already, by the table's number
        self._passed: dict[int, tuple[str, str]] = {}
        self.left: TableLeftRules | None = None

    def look_again(self) -> None:
        """Drop the source's answers, which may be stale: the log has advanced since."""
        if self._asked is not None:
            self._asked.forget()

    def at_source(self) -> set[tuple[str, str]]:
        """Return current names (owner, name) of the captured tables, also of those without a change so far.

        Empty: not known.
        """
        if self._asked is None:
            return set()
        try:
            return {(now.owner, now.name) for now in self._asked.of_now().values()}
        except HeadraceError:
            return set()

    def resolve(self, known: KnownTable) -> KnownTable:
        """Find the name under which a table's changes continue.

        Args:
            known: the table, under its name in the log.

        Returns:
            The table under that name; `left` is set when there is none.

        Raises:
            DatabaseUnavailable: the source must be asked, and does not answer.
        """
        table, asked = known.table, self._asked
        if asked is None or table.owner in HIDDEN_OWNERS:
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
                table,
                now,
                f"which the rules on the way to {', '.join(sorted(lost_by))} leave out or transform otherwise",
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
            hint=f"to keep replicating it, name {name} in the rules and rename it at the destinations; to stop"
            " replicating it, keep the rules as they are; then run `headrace up`",
            source=self._source,
            table=name,
        )
