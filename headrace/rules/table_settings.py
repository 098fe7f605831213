"""How an apply process treats the tables at its destination, as frozen data.

The settings say how to find a row, and how to treat rows that do not fit.

    key_columns           a table's substitute key: it finds rows in place of the primary or unique key
    allow_duplicate_rows  True: of several rows that one row LCR finds, one is changed. False: that is an error.
                          None: an error, except that one of several completely equal rows is changed
    column_mismatch       where a table does not fit its LCRs: "wait" for an ALTER, or "error": into the error queue
    check_foreign_keys    the destination's foreign keys are checked at the end of each transaction of apply
    triggers              whether a trigger fires for changes that apply makes: "once" (it does not) or "always"

Source: Oracle Streams Replication Administrator's Guide, "Substitute Key Columns", "Apply Process Behavior for Column
    Discrepancies", "Trigger Firing Property"; apply process parameter allow_duplicate_rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.plain_data import SettingsAsBytes

__all__ = ["NO_TABLE_SETTINGS", "KeyColumns", "TableSettings", "TriggerFiring"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumns:
    """A table's substitute key.

    Args:
        owner: schema of the table at the destination.
        name: name of the table in that schema.
        columns: their names, in any order; not empty.
    """

    owner: str
    name: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.owner}.{self.name} ({', '.join(self.columns)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerFiring:
    """Whether a trigger fires for changes that apply makes.

    Args:
        owner: schema of the table at the destination.
        name: name of the table in that schema.
        trigger: its name.
        fire: "once": only where the change was first made, not here; "always": here, too.
    """

    owner: str
    name: str
    trigger: str
    fire: str

    def __str__(self) -> str:
        return f"{self.trigger} on {self.owner}.{self.name} fires {self.fire}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings(SettingsAsBytes):
    """The table settings of an apply process, as listed in the module docstring."""

    key_columns: tuple[KeyColumns, ...] = ()
    allow_duplicate_rows: bool | None = None
    column_mismatch: str = "wait"
    triggers: tuple[TriggerFiring, ...] = ()
    check_foreign_keys: bool = False
    foreign_keys_of: tuple[tuple[str, str], ...] = ()  # referring tables (owner, name); empty: all
    detached_partitions: str = "ask"  # treatment of partitions that the source no longer has: ask, keep or follow

    def checks_foreign_keys(self, owner: str, name: str) -> bool:
        """Return whether the foreign keys of a referring table are checked.

        Args:
            owner: its schema at the destination.
            name: its name in that schema.
        """
        return self.check_foreign_keys and (not self.foreign_keys_of or (owner, name) in self.foreign_keys_of)

    def key_of(self, owner: str, name: str) -> tuple[str, ...]:
        """Return the names of a table's substitute key columns; empty: it has none.

        Args:
            owner: schema of the table at the destination.
            name: name of the table in that schema.
        """
        return next((each.columns for each in self.key_columns if (each.owner, each.name) == (owner, name)), ())


NO_TABLE_SETTINGS = TableSettings()
"""No setting."""
