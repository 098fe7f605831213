"""Conflict handling of an apply process, as frozen data: what happens if a row LCR and the destination's row disagree.

The compared old values define a conflict (`ConflictRules.uncompared`, `compare_key_only`); the handler for the kind of
conflict decides who wins. A handler belongs to a table of one apply process.

    kinds      insert_exists, update_exists     a unique key has the value already
               update_differs, delete_differs   the row exists, but a compared old value differs
               update_missing, delete_missing   no row has the key
    methods    maximum, minimum     the higher or lower value of the resolution column wins, with its whole column list
               overwrite, discard   the LCR wins, or the row
               site_priority        the site that comes first in a list wins: the LCR's source or the destination
               delta                the row gets what the LCR added: no column list loses anything
    latest_timestamp     the change that was committed later wins, with its whole row: set for a table, for all kinds

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
    from headrace.lcr.batch import Command  # imports numpy, which processes that see no rows do not need

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
"""Methods that compare the values of a resolution column by the order of its type.

So the file must name the column (`ConflictHandlerModel`); the database is asked for the order, and an equal or NULL
value decides nothing (`spark_apply.sets.decisions`); `check` refuses a type without an order and warns of a collation
(`headrace.databases.conflict_lists`); the LCR must have the whole column list, also where the row wins.
"""

METHODS_OF_KIND: dict[str, tuple[str, ...]] = {
    "update_differs": METHODS,
    "insert_exists": ("maximum", "minimum", "overwrite", "discard", "site_priority", "latest_timestamp"),
    "update_exists": ("overwrite", "discard", "site_priority"),
    # Without a row there is nothing to compare with. Overwriting creates the row from the LCR's new values.
    "update_missing": ("overwrite", "discard", "latest_timestamp"),
    "delete_differs": ("overwrite", "discard", "site_priority", "latest_timestamp"),
    "delete_missing": ("discard", "latest_timestamp"),
}
"""Methods available for each kind."""

TIMED_KINDS = tuple(kind for kind, methods in METHODS_OF_KIND.items() if "latest_timestamp" in methods)
"""Kinds that latest_timestamp decides. Not update_exists: a row that has another key's unique value is another row."""

KINDS = tuple(METHODS_OF_KIND)

HISTORY_COUNT_DEFAULT = 100_000  # conflicts: about 100 MB, and more than anybody reads
HISTORY_AGE_DEFAULT_S = 30 * 86_400.0  # a month: longer than it takes to ask where a value went
TOMBSTONES_AGE_DEFAULT_S = 7 * 86_400.0  # a week: longer than a site is away before it is copied anew
TOMBSTONES_COUNT_DEFAULT = 2_000_000  # about 300 MB with their index


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTimes:
    """How a site knows the time and site of a row's last change, for tables with latest_timestamp.

    Args:
        site: site of the rows: changes of its own sessions have their commit's time.
        sites: every site, the one that wins a tie first.
        has_tombstones: deletes count: an older change of a deleted row loses against the delete.
        age_s: seconds for which the times of changes and deletes are kept at least, unless there are too many.
        count: bound of their number.
    """

    site: str
    sites: tuple[str, ...]
    has_tombstones: bool = False
    age_s: float = TOMBSTONES_AGE_DEFAULT_S
    count: int = TOMBSTONES_COUNT_DEFAULT

    @property
    def has_one_source(self) -> bool:
        """Whether changes arrive from at most one other site."""
        return len(self.sites) <= 2

    def rank(self, site: str) -> int:
        """Return the rank of a site in a tie: the higher one wins; 0 for a site that is not listed."""
        return len(self.sites) - self.sites.index(site) if site in self.sites else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictHandler:
    """The handler for one kind of conflict in one table.

    Args:
        owner: schema of the table at the destination.
        name: name of the table in that schema.
        method: one of `METHODS`.
        kind: kind of the conflict.
        columns: the column list, only of update_differs; empty: every column outside the key.
        resolution_column: column whose values decide, for `BY_COLUMN`. Other methods of update_differs accept it,
            except latest_timestamp, and it decides nothing.
        priority: sites, the winner first; for site_priority, and for ties of latest_timestamp.
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
        """Whether it needs the values before a change: without them no conflict is detected, or no row can be made."""
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
        name: name of the table in that schema.
        columns: their names.
        operations: "update", "delete", or both.
    """

    owner: str
    name: str
    columns: tuple[str, ...]
    operations: tuple[str, ...] = ("update", "delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryBounds:
    """Bounds of the conflict history at the destination.

    Args:
        count: number of conflicts.
        age_s: age in seconds.
    """

    count: int = HISTORY_COUNT_DEFAULT
    age_s: float = HISTORY_AGE_DEFAULT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConflicts:
    """The conflict settings of one table.

    Args:
        handlers: the table's handlers.
        uncompared: names of columns that are not compared, by "update" and "delete".
        compare_key_only: no column outside the key is compared.
        times: how the last changes of its rows are known; None: it has no latest_timestamp.
    """

    handlers: tuple[ConflictHandler, ...] = ()
    uncompared: tuple[tuple[str, frozenset[str]], ...] = ()
    compare_key_only: bool = False
    times: RowTimes | None = None

    def compares(self, command: Command, column: str) -> bool:
        """Return whether the old value of a column outside the key is compared with the row's.

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
        """Return the handlers of one kind of conflict; only update_differs may have several, one per column list."""
        return tuple(handler for handler in self.handlers if handler.kind == kind)


NOTHING_SET = TableConflicts()
"""The settings of a table without any."""


@dataclass(frozen=True, kw_only=True)
class ConflictRules(SettingsAsBytes):
    """The conflict settings of an apply process.

    Args:
        handlers: handlers of all its tables.
        uncompared: uncompared columns of all its tables.
        compare_key_only: no column outside the key is compared, in every table.
        history: bounds of the history.
        times: settings for tables with latest_timestamp, whose handlers have the sites; None: there are none.
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
        """Return the settings of a table.

        Args:
            owner: schema of the table at the destination.
            name: name of the table in that schema.
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
        """Every table whose deletes are recorded."""
        return self.timed if self.times is not None and self.times.has_tombstones else frozenset()

    def _uncompared(self, owner: str, name: str) -> Iterator[tuple[str, frozenset[str]]]:
        for each in self.uncompared:
            if (each.owner, each.name) == (owner, name):
                yield from ((operation, frozenset(each.columns)) for operation in each.operations)


NO_CONFLICT_RULES = ConflictRules()
"""No handler; every old value in the log is compared."""
