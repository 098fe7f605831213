"""DDL LCRs that make, drop or rename tables, from their arrival until it is known what became of them at the destination.

The destination decides (`spark_apply.tables.arriving`): it makes a table and records it in the transaction of the DDL
LCR, or it records why not. The reader learns that when the transaction is applied.

    CREATE TABLE arrives       noted: the rows behind it, which have its order SCN, pass
    it leaves the rules        noted: its rows, should it come back, are skipped until it is copied again
    RENAME arrives             noted: the rows behind it, which have its order SCN, pass under the new name
    the transaction is applied the outcome and the table's record are asked for: the table is replicated, or a stranger;
                               it has the name that is recorded
    the transaction is sent    forgotten: it arrives again, and the rows before it belong to the tables of then
      again
    it is in the error queue   there is no outcome yet: it stays unsettled until an operator executes or deletes it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.lcr.table_name import TableName
from spark_apply.apply_config import BY_RECORD_SCN, TableToInstantiate

if TYPE_CHECKING:
    from headrace.databases.ports import DdlOutcomeKind, DdlPlace, Instantiation

__all__ = ["DdlFates", "TableChanges", "Unsettled", "UnsettledDdl", "recorded_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsettledDdl:
    """A DDL LCR that makes, drops or renames a table.

    Args:
        place: its own.
        name: of the table at the destination; of a renamed one, before.
        number: of the table at the source.
        table: the table that it makes; None: it drops or renames one.
        name_after: the name that it gives a table; None: it makes or drops one.
        leaves: it takes the table out of the rules.
    """

    place: DdlPlace
    name: TableName
    number: int
    table: TableToInstantiate | None = None
    name_after: TableName | None = None
    leaves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlFates:
    """What the destination knows of DDL LCRs and tables.

    Args:
        outcomes: of the LCRs that were asked for, as far as there are any.
        records: of the source's tables, by identity; read after the outcomes.
    """

    outcomes: Mapping[DdlPlace, DdlOutcomeKind] = field(default_factory=dict)
    records: Mapping[str, Instantiation] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """How the tables of an apply process change.

    Args:
        added: tables that are replicated from now on, with their records.
        removed: tables that are not any more.
        renamed: tables that have another name, with the one that they had.
    """

    added: tuple[tuple[TableToInstantiate, Instantiation], ...] = ()
    removed: tuple[TableToInstantiate, ...] = ()
    renamed: tuple[tuple[TableToInstantiate, TableName], ...] = ()


class Unsettled:
    """The unsettled DDL LCRs, in the order of their arrival.

    Attributes:
        made: those that make a table, by the table's number at the source.
        names: the tables that they make, by name at the destination; the last one of a name.
    """

    def __init__(self) -> None:
        self._of: dict[DdlPlace, UnsettledDdl] = {}
        self._nameless: set[DdlPlace] = set()  # in the error queue, while a later table has the name
        self.made: dict[int, UnsettledDdl] = {}
        self.names: dict[TableName, TableToInstantiate] = {}

    def __iter__(self) -> Iterator[UnsettledDdl]:
        return iter(tuple(self._of.values()))

    def __len__(self) -> int:
        return len(self._of)

    @property
    def places(self) -> tuple[DdlPlace, ...]:
        """The places of all."""
        return tuple(self._of)

    def of_transaction(self, order_scn: int) -> tuple[UnsettledDdl, ...]:
        """Return those of one transaction, in the order of their arrival; none if it renames no table."""
        found = tuple(each for each in self._of.values() if each.place.order_scn == order_scn)
        return found if any(each.name_after is not None for each in found) else ()

    def renaming(self, number: int) -> UnsettledDdl | None:
        """Return the first one that renames a table; None: no such one.

        Args:
            number: of the table at the source.
        """
        return next((each for each in self._of.values() if each.number == number and each.name_after is not None), None)

    def add(self, ddl: UnsettledDdl) -> None:
        """Note an LCR; one that arrives again is noted once."""
        self._of.pop(ddl.place, None)
        self._of[ddl.place] = ddl
        self._sort()

    def remove(self, place: DdlPlace) -> None:
        """Forget a settled LCR. An earlier table of the name of one that it makes has that name no more."""
        settled = self._of.pop(place, None)
        if settled is not None and settled.table is not None:
            self._nameless |= {
                each.place for each in self if each.name == settled.name and each.place.order_scn < place.order_scn
            }
        self._sort()

    def withdraw(self, is_sent_again: Callable[[int], bool]) -> None:
        """Forget LCRs that arrive again.

        Args:
            is_sent_again: returns whether the transaction of an order SCN does.
        """
        for place in [place for place in self._of if is_sent_again(place.order_scn)]:
            del self._of[place]
        self._sort()

    def _sort(self) -> None:
        made = [(each, each.table) for each in self._of.values() if each.table is not None]
        self.made = {each.number: each for each, _ in made}
        self._nameless &= self._of.keys()
        self.names = {each.name: table for each, table in made if each.place not in self._nameless}


def recorded_table(identity: str, name: TableName, number: int) -> TableToInstantiate:
    """Return a table that the source was not asked for, as an apply process replicates it because of its record.

    DDL travels of whole tables that have one name at both sites, and whose destination nobody else writes
    (`topology.checks.ddl`).

    Args:
        identity: of the table.
        name: at both sites.
        number: of the table at the source.
    """
    return TableToInstantiate(
        identity=identity,
        source=name,
        destination=name,
        object_numbers=(number,),
        may_empty=True,
        as_of=BY_RECORD_SCN,
        takes_ddl=True,
    )
