"""A table replicated both ways between two sites: which site has the rows, and which way needs no copy.

Job
    One site has rows and the other one has none: they are copied one way. The other way has nothing to copy, and the
    existing rows stay.

Of the two ways, the one from the site without rows is recorded first, under a snapshot in which that site has none. So
the log behind the snapshot has everything that users write there from then on. Only then are rows copied into that
site.

    here   there   record of the way from there to here
    none   none    a copy of nothing
    none   rows    nothing yet: it waits until the other way is recorded. Then the rows are copied, unless they are a
                   copy of the table here (its rows were deleted meanwhile, and the deletions are in flight: KEPT)
    rows   none    KEPT: the rows here are no copy, and stay
    rows   rows    KEPT, if the other way made the rows there, or makes them again, as a copy of the table here, and no
                   other site's rows are there (a topology of one way becomes one of two); otherwise the operator
                   decides

A copy that is out of date (LEFT: the way to it ended, and comes back) is kept if the other site has no row. It then has
the only rows, and the other site gets a copy of them when that is recorded.

Worked flow
    a has 100 rows of t, b has none; both ways are new -> the driver at b finds rows at a and no record there: it waits
      -> the driver at a takes a snapshot of b, which has no row of t: KEPT at SCN 50 of b -> the driver at b copies 100
    rows: DONE -> a row that a user then writes at b comes to a from the log. (A row written before DONE makes the copy
    differ: b is emptied, and copied again after a has applied what was written at b until then.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from headrace.databases.ports import AWAITING, BEGUN
from headrace.lcr.scn import Scn, scn_text
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationDatabase, Instantiation, OtherCopy
    from spark_apply.copy.records.standing import Standing

__all__ = ["BothWays", "Found", "TwoWayTable"]


class Found(Enum):
    """What to do with a table that is replicated both ways."""

    COPY = "its rows are copied, as those of a table of one way"
    NOTHING = "there is nothing to copy; the rows that are here are kept"
    KEEP = "the rows that are here are kept"
    WAIT = "it waits for the other way"
    ASK = "an operator says what the rows are"


class TwoWayTable(Protocol):
    """The properties of a `spark_apply.apply_config.TableToInstantiate` that this module uses."""

    @property
    def source(self) -> TableName:
        """Its name at the source."""
        ...

    @property
    def destination(self) -> TableName:
        """Its name at the destination."""
        ...

    @property
    def returned_by(self) -> str:
        """Name of the apply process at the source that returns the table's changes there; empty: none."""
        ...

    @property
    def shared_by(self) -> tuple[tuple[str, str], ...]:
        """Of each further source of a shared table, the apply process here and the one at the source."""
        ...


@dataclass(slots=True, kw_only=True)
class BothWays:
    """Decides about tables that are replicated both ways.

    Args:
        topology: name of the topology.
        here: the apply process's site.
        there: its source.
        records: records at the source, which is the destination of the other way.
        captured: returns the identities of this site's captured tables, by their names.
        position: returns an SCN of this site that is behind everything committed before
            (`SourceDatabase.write_marker`).
    """

    topology: str
    here: str
    there: str
    records: DestinationDatabase
    captured: Callable[[], Mapping[TableName, str]]
    position: Callable[[], Scn]

    def found(self, each: Standing, *, has_rows: bool) -> Found:
        """Decide about a table that is not at the destination yet.

        Args:
            each: the table's standing.
            has_rows: the destination table has rows, or may get some from another copy.

        Raises:
            DatabaseError: the source's state cannot be read.
        """
        if each.has_left and each.occupant is None:
            return self._of_left(each.table, has_rows=has_rows)
        if each.is_begun or each.is_outdated or each.occupant is not None:
            return Found.ASK if has_rows else Found.COPY
        found = self.of_new(each.table, has_rows=has_rows)
        # The source's table replaced another one, and was not captured at first: rows that users wrote there meanwhile
        # are neither in the log nor here.
        return Found.ASK if found is Found.KEEP and each.replaced else found

    def _of_left(self, table: TwoWayTable, *, has_rows: bool) -> Found:
        """Decide about a table whose changes did not arrive for a while: its copy here is out of date."""
        if not has_rows:
            waits = table.returned_by and self._has_left(self._record(table)) and self._is_filled_there(table)
            return Found.WAIT if waits else Found.COPY
        return Found.NOTHING if self.has_only_rows(table) else Found.ASK

    def has_only_rows(self, table: TwoWayTable) -> bool:
        """Return whether a table has its only rows here: the source has none, and will get a copy.

        Args:
            table: a returning table with rows here, whose changes did not arrive for a while.

        Raises:
            DatabaseError: the source's state cannot be read.
        """
        # If the copy made from here is still replicated, the source has no row because rows were deleted there.
        return (
            bool(table.returned_by) and not self._is_recorded(self._record(table)) and not self._is_filled_there(table)
        )

    def of_new(self, table: TwoWayTable, *, has_rows: bool) -> Found:
        """Decide about a table of which no copy has begun here.

        Args:
            table: the arriving table, which may also be returned.
            has_rows: the destination table has rows, or may get some from another copy.

        Raises:
            DatabaseError: the source's state cannot be read.
        """
        if not table.returned_by:
            return Found.ASK if has_rows else Found.COPY
        record = self._record(table)
        is_recorded = self._is_recorded(record)
        if not has_rows and is_recorded and not self._is_copy(table, record):
            return Found.COPY
        if not self._is_filled_there(table):
            return Found.NOTHING
        if not has_rows and not is_recorded:
            return Found.WAIT
        if record is None:
            return Found.ASK
        return self._kept(table, record)

    def is_recorded_there(self, table: TwoWayTable) -> bool:
        """Return whether the changes that users write here are sent to the source.

        Args:
            table: an arriving table that is also returned.

        Raises:
            DatabaseError: the source's records cannot be read.
        """
        record = self._record(table)
        return record is not None and self._is_recorded(record) and self._is_of(table, record)

    def has_none_there(self, table: TwoWayTable) -> bool:
        """Return whether the source has no row of a table now; raises like `is_recorded_there`."""
        return not self._is_filled_there(table)

    def common_source(self, table: TwoWayTable, others: Sequence[OtherCopy]) -> str:
        """Return a third site that sends a table to this site and to the source; empty: there is none.

        Both sites have its rows, so `headrace verify` compares them with each other by comparing each with that site.

        Args:
            table: a table with rows here and at the source, whose copy has not begun here.
            others: records of others in the destination table.

        Raises:
            DatabaseError: the source's records cannot be read.
        """
        if not all(other.is_finished and other.topology == self.topology for other in others):
            return ""
        here = {other.apply: other for other in others if other.state in _APPLIED}
        for apply, there in table.shared_by:
            if (other := here.get(apply)) is None:
                continue
            for record in self.records.instantiations(self.topology, there):
                if record.state in _APPLIED and (record.source, record.identity) == (other.source, other.identity):
                    return other.source
        return ""

    def waits(self, table: TwoWayTable) -> str:
        """Return why a table waits, for the operator."""
        return (
            f"table {table.destination} waits for the other way: apply process {table.returned_by} at {self.there}"
            f" records the table first, as soon as it runs and has a snapshot of {self.here}"
        )

    def awaited_returns(self, wanted: Mapping[TableName, tuple[TwoWayTable, Scn]]) -> dict[TableName, str]:
        """Return why copies made now may lack rows that users wrote into their tables here, for the operator.

        Tables whose rows the source has all applied are omitted.

        Args:
            wanted: tables that arrive and are returned, each with an SCN of this site up to which the source must have
                applied.

        Raises:
            DatabaseError: the source's state cannot be read.
        """
        if not wanted:
            return {}
        applies = {table.returned_by for table, _ in wanted.values()}
        applied = {apply: self.records.progress(self.topology, apply) for apply in applies}
        recorded = {apply: self._recorded(apply) for apply in applies}
        captured = self.captured()
        # Read after the progress: an error up to there is in the queue. A transaction that fails there and is executed
        # later stays there alone.
        failed = {apply for apply in applies if self.records.errors(self.topology, apply, first=1)}
        found: dict[TableName, str] = {}
        for name, (table, scn) in wanted.items():
            progress, record = applied[table.returned_by], recorded[table.returned_by].get(table.source)
            who = f"apply process {table.returned_by} at {self.there}"
            # If another table replaced this one, nothing is applied before that table has its own record.
            is_recorded = (
                record is not None and record.state in _APPLIED and captured.get(table.destination) == record.identity
            )
            if not is_recorded or progress is None or progress.low_watermark < scn:
                found[name] = (
                    f"table {table.destination} is copied again as soon as {who} has applied what was written into it"
                    f" here, up to SCN {scn_text(scn)}: `headrace status` says what holds it up"
                )
            elif table.returned_by in failed:
                found[name] = (
                    f"table {table.destination} is copied again as soon as {who} has no error transaction: one may hold"
                    f" what was written into the table here. `headrace errors list FILE --apply {table.returned_by}`"
                    " lists them"
                )
        return found

    def _recorded(self, apply: str) -> dict[TableName, Instantiation]:
        """Return the records at the source of tables that an apply process there gets from here, by name there.

        If a name has several records, the first counts.
        """
        found: dict[TableName, Instantiation] = {}
        for each in self.records.instantiations(self.topology, apply):
            if each.source == self.here:
                found.setdefault(TableName.of(each), each)
        return found

    def _is_filled_there(self, table: TwoWayTable) -> bool:
        return table.source in self.records.filled([table.source])

    def _has_left(self, record: Instantiation | None) -> bool:
        return record is not None and record.state == "LEFT"

    def _is_recorded(self, record: Instantiation | None) -> bool:
        """Return whether the other way's destination has the table, according to the record."""
        return record is not None and not record.is_refused and record.state not in {"LEFT", AWAITING}

    def _record(self, table: TwoWayTable) -> Instantiation | None:
        return self._recorded(table.returned_by).get(table.source)

    def _kept(self, table: TwoWayTable, record: Instantiation) -> Found:
        """Decide about rows at both sites: they are kept if the source's are a copy of those here, and only that."""
        others = self.records.other_copies(self.topology, table.returned_by, *table.source)
        if not self._is_copy(table, record) or not all(other.is_awaiting for other in others):
            return Found.ASK
        # A repeated copy waits until the other way is recorded, so this way must not wait for it.
        return Found.KEEP if record.state == "DONE" or record.state in BEGUN else Found.WAIT

    def _is_copy(self, table: TwoWayTable, record: Instantiation | None) -> bool:
        """Return whether the other way copies or has copied rows of the table here, so that the source was empty."""
        if record is None or record.is_remade:
            return False
        is_one = record.state in BEGUN or (record.state in _COPIED and record.row_count > 0)
        return is_one and self._is_of(table, record)

    def _is_of(self, table: TwoWayTable, record: Instantiation) -> bool:
        """Return whether a record of the other way belongs to the table here."""
        return self.captured().get(table.destination) == record.identity


_COPIED = frozenset({"COPIED", "JOINING", "DONE"})
_APPLIED = frozenset({"DONE", "KEPT"})
