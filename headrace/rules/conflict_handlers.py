"""What an apply process does where a row LCR and the destination's row do not agree, as frozen data.

Which old values are compared decides what a conflict is (`ConflictRules.uncompared`, `compare_key_only`); which handler
is set for the kind of the conflict decides who wins. A handler belongs to a table of one apply process.

    kinds      insert_exists, update_exists     a unique key has the value already
               update_differs, delete_differs   the row is there, but an old value that is compared differs
               update_missing, delete_missing   no row has the key
    methods    maximum, minimum     the higher or lower value of the resolution column wins, with its whole column list
               overwrite, discard   the LCR wins, or the row
               site_priority        the site that stands first in a list wins: the LCR's source or the destination
               delta                the row gets what the LCR added: no column list loses anything
    latest_timestamp     the change that was committed later wins, with its whole row, whatever the kind: of a table, not of a kind

Source: Oracle Streams Replication Administrator's Guide, "Prebuilt Update Conflict Handlers"; `site_priority`, `delta`,
    `latest_timestamp` and handlers of other kinds than update_differs go beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from headrace.base.plain_data import SettingsAsBytes

if TYPE_CHECKING:
    from headrace.lcr.batch import Command  # numpy: this module is also read where nobody sees a row

__all__ = [
    "BY_COLUMN",
    "HISTORY_AGE_DEFAULT_S",
    "HISTORY_COUNT_DEFAULT",
    "KINDS",
    "METHODS",
    "METHODS_OF_KIND",
    "NOTHING_SET",
    "NO_CONFLICT_RULES",
    "TIMED_KINDS",
    "TOMBSTONES_AGE_DEFAULT_S",
    "TOMBSTONES_COUNT_DEFAULT",
    "ConflictHandler",
    "ConflictRules",
    "HistoryBounds",
    "RowTimes",
    "TableConflicts",
    "UncomparedColumns",
]

METHODS = ("maximum", "minimum", "overwrite", "discard", "site_priority", "delta", "latest_timestamp")
BY_COLUMN = frozenset({"maximum", "minimum"})
"""Methods that need a resolution column."""

METHODS_OF_KIND: dict[str, tuple[str, ...]] = {
    "update_differs": METHODS,
    "insert_exists": ("maximum", "minimum", "overwrite", "discard", "site_priority", "latest_timestamp"),
    "update_exists": ("overwrite", "discard", "site_priority"),
    # Without a row there is nothing to compare with. To overwrite makes the row that the LCR's new values are.
    "update_missing": ("overwrite", "discard", "latest_timestamp"),
    "delete_differs": ("overwrite", "discard", "site_priority", "latest_timestamp"),
    "delete_missing": ("discard", "latest_timestamp"),
}
"""What a handler of each kind can do."""

TIMED_KINDS = tuple(kind for kind, methods in METHODS_OF_KIND.items() if "latest_timestamp" in methods)
"""Kinds that latest_timestamp decides. Not update_exists: a row that has another key's unique value is another row."""

KINDS = tuple(METHODS_OF_KIND)

HISTORY_COUNT_DEFAULT = 100_000  # conflicts: some 100 MB, and more than anybody reads
HISTORY_AGE_DEFAULT_S = 30 * 86_400.0  # a month: longer than it takes to ask where a value went
TOMBSTONES_AGE_DEFAULT_S = 7 * 86_400.0  # a week: longer than a site is away before it is copied anew
TOMBSTONES_COUNT_DEFAULT = 2_000_000  # some 300 MB with their index


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTimes:
    """How a site knows when a row was changed last, and where: for tables with latest_timestamp.

    Args:
        site: where the rows are: changes of its own sessions have their commit's time.
        sites: every site, the one that wins a tie first.
        has_tombstones: deletes count: an older change of a row that is gone loses against its delete.
        age_s: seconds for which the times of changes and deletes are kept at least, unless there are too many.
        count: so many are kept at most.
    """

    site: str
    sites: tuple[str, ...]
    has_tombstones: bool = False
    age_s: float = TOMBSTONES_AGE_DEFAULT_S
    count: int = TOMBSTONES_COUNT_DEFAULT

    @property
    def has_one_source(self) -> bool:
        """Changes come here from one other site at most."""
        return len(self.sites) <= 2

    def rank(self, site: str) -> int:
        """Who wins a tie: the higher rank; 0 for a site that is not listed."""
        return len(self.sites) - self.sites.index(site) if site in self.sites else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictHandler:
    """What happens on one kind of conflict in one table.

    Args:
        owner: schema of the table at the destination.
        name: of the table in that schema.
        method: of `METHODS`.
        kind: of the conflict.
        columns: the column list, only of update_differs; empty: every column outside the key.
        resolution_column: whose values decide; only of `BY_COLUMN`.
        priority: sites, the one that wins first; of site_priority, and of latest_timestamp for ties.
    """

    owner: str
    name: str
    method: str
    kind: str = "update_differs"
    columns: tuple[str, ...] = ()
    resolution_column: str = ""
    priority: tuple[str, ...] = ()

    @property
    def needs_old_values(self) -> bool:
        """Without the values before a change there is nothing to decide: no conflict is seen, or no row can be made."""
        return self.kind in ("update_differs", "delete_differs") or (self.kind, self.method) == (
            "update_missing",
            "overwrite",
        )

    def __str__(self) -> str:
        return f"{self.method}({self.resolution_column})" if self.resolution_column else self.method


@dataclass(frozen=True, slots=True, kw_only=True)
class UncomparedColumns:
    """Columns outside the key whose old values are not compared.

    Args:
        owner: schema of the table at the destination.
        name: of the table in that schema.
        columns: their names.
        operations: of "update" and "delete".
    """

    owner: str
    name: str
    columns: tuple[str, ...]
    operations: tuple[str, ...] = ("update", "delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryBounds:
    """How much of the conflict history is kept at the destination.

    Args:
        count: conflicts.
        age_s: seconds.
    """

    count: int = HISTORY_COUNT_DEFAULT
    age_s: float = HISTORY_AGE_DEFAULT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConflicts:
    """What holds for one table.

    Args:
        handlers: of the table.
        uncompared: by "update" and "delete": names of columns that are not compared.
        compare_key_only: no column outside the key is compared.
        times: how its rows' last changes are known; None: it has no latest_timestamp.
    """

    handlers: tuple[ConflictHandler, ...] = ()
    uncompared: tuple[tuple[str, frozenset[str]], ...] = ()
    compare_key_only: bool = False
    times: RowTimes | None = None

    def compares(self, command: Command, column: str) -> bool:
        """Whether the old value of a column outside the key is compared with the row's.

        Args:
            command: UPDATE or DELETE.
            column: its name.
        """
        return not self.compare_key_only and not any(
            operation == command.name.lower() and column in columns for operation, columns in self.uncompared
        )

    @property
    def compares_all(self) -> bool:
        """Whether every old value is compared."""
        return not self.compare_key_only and not self.uncompared

    def of_kind(self, kind: str) -> tuple[ConflictHandler, ...]:
        """The handlers of one kind of conflict; only update_differs may have several, with a column list each."""
        return tuple(handler for handler in self.handlers if handler.kind == kind)


NOTHING_SET = TableConflicts()
"""Of a table that nothing is set for."""


@dataclass(frozen=True, kw_only=True)
class ConflictRules(SettingsAsBytes):
    """What holds for an apply process.

    Args:
        handlers: of all its tables.
        uncompared: of all its tables.
        compare_key_only: of every table.
        history: bounds of the history.
        times: of tables with latest_timestamp, whose handlers have the sites; None: there are none.
    """

    handlers: tuple[ConflictHandler, ...] = ()
    uncompared: tuple[UncomparedColumns, ...] = ()
    compare_key_only: bool = False
    history: HistoryBounds = HistoryBounds()
    times: RowTimes | None = None

    @cached_property
    def tables(self) -> frozenset[tuple[str, str]]:
        """Every table with a handler."""
        return frozenset((handler.owner, handler.name) for handler in self.handlers)

    def of(self, owner: str, name: str) -> TableConflicts:
        """What holds for a table.

        Args:
            owner: schema of the table at the destination.
            name: of the table in that schema.
        """
        mine = tuple(each for each in self.handlers if (each.owner, each.name) == (owner, name))
        timed = next((each for each in mine if each.method == "latest_timestamp"), None)
        return TableConflicts(
            handlers=mine,
            uncompared=tuple(self._uncompared(owner, name)),
            compare_key_only=self.compare_key_only,
            times=None if timed is None or self.times is None else replace(self.times, sites=timed.priority),
        )

    @cached_property
    def timed(self) -> frozenset[tuple[str, str]]:
        """Every table with latest_timestamp."""
        return frozenset((each.owner, each.name) for each in self.handlers if each.method == "latest_timestamp")

    @property
    def with_tombstones(self) -> frozenset[tuple[str, str]]:
        """Every table whose deletes are noted."""
        return self.timed if self.times is not None and self.times.has_tombstones else frozenset()

    def _uncompared(self, owner: str, name: str) -> Iterator[tuple[str, frozenset[str]]]:
        for each in self.uncompared:
            if (each.owner, each.name) == (owner, name):
                yield from ((operation, frozenset(each.columns)) for operation in each.operations)


NO_CONFLICT_RULES = ConflictRules()
"""No handler; every old value in the log is compared."""
