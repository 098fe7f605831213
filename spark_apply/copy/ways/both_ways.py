"""A table that goes both ways between two sites: which of them has the rows, and what of it need not be copied.

Job
    One site has rows and the other one has none: they are copied one way. The other way there is nothing to copy, and
    the rows that are there stay.

Of the two ways the one from the site without rows is recorded first, and under a snapshot in which that site has none:
whatever users write there from then on is in the log behind the snapshot. Only then are rows copied into that site.

    here   there   what is recorded of the way from there to here
    none   none    a copy of nothing
    none   rows    nothing yet: it waits until the other way is recorded; then the rows are copied, if they are no copy of
                   the table that is here
                   (its rows were deleted meanwhile, and the deletions are on their way: KEPT)
    rows   none    KEPT: the rows that are here are nobody's copy, and stay
    rows   rows    KEPT, if what is there is the copy that the other way has made, or makes again, of the table that is
                   here, and no other site's rows are there (a topology
                   of one way becomes one of two); else an operator says what they are

A copy that is out of date (LEFT: the way to it ended, and comes back) is kept where the other site has no row: it has
the only rows there are, and the other site gets a copy of them once that is recorded.

Worked flow
    a has 100 rows of t, b has none; both ways are new -> the driver at b finds rows at a and no record there: it waits
      -> the driver at a takes a
    snapshot of b, which has no row of t: KEPT at SCN 50 of b -> the driver at b copies 100 rows: DONE -> a row that a
    user then writes at b comes to a from the log. (One that is written before DONE makes the copy differ: b is emptied,
    and copied again once a has applied what was written at b until then.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from headrace.databases.ports import AWAITING, BEGUN
from headrace.lcr.scn import Scn, scn_text
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationDatabase, Instantiation
    from spark_apply.copy.records.standing import Standing

__all__ = ["BothWays", "Found", "TwoWayTable"]


class Found(Enum):
    """What becomes of a table that goes both ways; see the module."""

    COPY = "its rows are copied, as those of a table of one way"
    NOTHING = "there is nothing to copy; the rows that are here are kept"
    KEEP = "the rows that are here are kept"
    WAIT = "it waits for the other way"
    ASK = "an operator says what the rows are"


class TwoWayTable(Protocol):
    """What `spark_apply.apply_config.TableToInstantiate` says of a table."""

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
        """See `spark_apply.apply_config.TableToInstantiate`."""
        ...


@dataclass(slots=True, kw_only=True)
class BothWays:
    """See the module.

    Args:
        topology: its name.
        here: the apply process's site.
        there: its source.
        records: what is recorded at the source, which is the destination of the other way.
        captured: asked for the identities of this site's tables that are captured, by their names.
        position: asked for an SCN of this site that is behind everything that was committed before
            (`SourceDatabase.write_marker`).
    """

    topology: str
    here: str
    there: str
    records: DestinationDatabase
    captured: Callable[[], Mapping[TableName, str]]
    position: Callable[[], Scn]

    def found(self, each: Standing, *, has_rows: bool) -> Found:
        """What becomes of a table that is not at the destination yet.

        Args:
            each: where the table stands.
            has_rows: the destination table has rows, or may get some of another copy.

        Raises:
            DatabaseError: the source does not say what is there.
        """
        if each.has_left and each.occupant is None:
            return self._of_left(each.table, has_rows=has_rows)
        if each.is_begun or each.is_outdated or each.occupant is not None:
            return Found.ASK if has_rows else Found.COPY
        found = self.of_new(each.table, has_rows=has_rows)
        # The source's table took the place of another one, and was not captured at first: what users wrote there is in
        # no log, and not here.
        return Found.ASK if found is Found.KEEP and each.replaced else found

    def _of_left(self, table: TwoWayTable, *, has_rows: bool) -> Found:
        """What becomes of a table whose changes did not arrive for a while: its copy here is out of date."""
        if not has_rows:
            waits = table.returned_by and self._has_left(self._record(table)) and self._is_filled_there(table)
            return Found.WAIT if waits else Found.COPY
        return Found.NOTHING if self.has_only_rows(table) else Found.ASK

    def has_only_rows(self, table: TwoWayTable) -> bool:
        """Whether the source has no row of a table that goes back to it, and is to get a copy: what is here is all there is.

        Args:
            table: with rows here, whose changes did not arrive for a while.

        Raises:
            DatabaseError: the source does not say what is there.
        """
        # Where what was copied from here is still replicated, rows were deleted there.
        return (
            bool(table.returned_by) and not self._is_recorded(self._record(table)) and not self._is_filled_there(table)
        )

    def of_new(self, table: TwoWayTable, *, has_rows: bool) -> Found:
        """What becomes of a table of which no copy has begun here.

        Args:
            table: that comes, and may go back.
            has_rows: the destination table has rows, or may get some of another copy.

        Raises:
            DatabaseError: the source does not say what is there.
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
        """Whether what users write here is on its way to the source.

        Args:
            table: that comes, and goes back.

        Raises:
            DatabaseError: the source does not say what is recorded.
        """
        record = self._record(table)
        return record is not None and self._is_recorded(record) and self._is_of(table, record)

    def has_none_there(self, table: TwoWayTable) -> bool:
        """Whether the source has no row of a table now; raises as `is_recorded_there`."""
        return not self._is_filled_there(table)

    def waits(self, table: TwoWayTable) -> str:
        """Why a table waits, for people."""
        return (
            f"table {table.destination} waits for the other way: apply process {table.returned_by} at {self.there}"
            f" records the table first, as soon as it runs and has a snapshot of {self.here}"
        )

    def awaited_returns(self, wanted: Mapping[TableName, tuple[TwoWayTable, Scn]]) -> dict[TableName, str]:
        """Why copies that are made now may lack what users wrote into their tables here, for people.

        Left out: those of which the source has applied all.

        Args:
            wanted: tables that come, and go back, each with an SCN of this site: what was committed up to it is asked
                for.

        Raises:
            DatabaseError: the source does not say what is there.
        """
        if not wanted:
            return {}
        applies = {table.returned_by for table, _ in wanted.values()}
        applied = {apply: self.records.progress(self.topology, apply) for apply in applies}
        recorded = {apply: self._recorded(apply) for apply in applies}
        captured = self.captured()
        # Behind the progress: what failed up to there is in the queue. What fails there and is executed later stays
        # there alone.
        failed = {apply for apply in applies if self.records.errors(self.topology, apply, first=1)}
        found: dict[TableName, str] = {}
        for name, (table, scn) in wanted.items():
            progress, record = applied[table.returned_by], recorded[table.returned_by].get(table.source)
            who = f"apply process {table.returned_by} at {self.there}"
            # Of a table that took this one's place nothing is applied before it has a record of its own.
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
        """What is recorded at the source of tables that an apply process there gets from here, by their names there.

        Of a name the first.
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
        """Whether the other way's destination has the table, as far as the record says."""
        return record is not None and not record.is_refused and record.state not in {"LEFT", AWAITING}

    def _record(self, table: TwoWayTable) -> Instantiation | None:
        return self._recorded(table.returned_by).get(table.source)

    def _kept(self, table: TwoWayTable, record: Instantiation) -> Found:
        """Whether what the source has is a copy of what is here, and no other site's rows are among them."""
        others = self.records.other_copies(self.topology, table.returned_by, *table.source)
        if not self._is_copy(table, record) or not all(other.is_awaiting for other in others):
            return Found.ASK
        # A copy that is made again waits until the other way is recorded: it is not waited for.
        return Found.KEEP if record.state == "DONE" or record.state in BEGUN else Found.WAIT

    def _is_copy(self, table: TwoWayTable, record: Instantiation | None) -> bool:
        """Whether the other way has copied, or copies, the table that is here.

        Rows of it, so that the source was empty before.
        """
        if record is None or record.is_remade:
            return False
        is_one = record.state in BEGUN or (record.state in _COPIED and record.row_count > 0)
        return is_one and self._is_of(table, record)

    def _is_of(self, table: TwoWayTable, record: Instantiation) -> bool:
        """Whether a record of the other way is of the table that is here."""
        return self.captured().get(table.destination) == record.identity


_COPIED = frozenset({"COPIED", "JOINING", "DONE"})
_APPLIED = frozenset({"DONE", "KEPT"})
