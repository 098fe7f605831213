"""A table that each of several sites sends to all others (`topology.routing.ways.shared_by`), and that is empty here.

Job
    It is filled once. Each way into it first keeps its changes. One of them copies, from a site that has applied what
    all others sent. The copy records for each other source up to which SCN it has that source's changes, and the other
    ways continue there.

Worked flow (a has 100 rows; b and c have none, and users begin to write there)
    at c, the way from a and the way from b each take a snapshot of their source, from which on their queue keeps
    everything: AWAITING at a:50, and at b:20 (b had no row)
      -> a has applied what b had sent by b:20, and copies: its snapshot at a:70 shows 100 rows, 3 that users wrote at
         b, and the progress of b's changes at a, b:28
      -> the way from a: COPIED at a:70, and in the same transaction the way from b, which it carries: COPIED at b:28
      -> both join: changes of b after b:28 come from b, and none of them twice.

What a way does (its state at the destination)
    no record    AWAITING under a snapshot, with the digest of nothing if the source has no row in it. If it has rows,
                 the way back is recorded first, so that users' changes here from then on are sent there.
    AWAITING     when each of the others has a record:
                 - this one and all others are of nothing     COPIED: nothing, at its own SCN
                 - this one's source has rows                 it copies, if its source has applied what the others no
                                                              longer keep, without an error transaction
                 - otherwise                                  it waits for the one that copies
    copying      like every copy; the changes that it carries are read under its snapshot, where progress is committed
                 with the rows. If it was interrupted, and all others still wait, the table may be emptied as if it were
                 alone.

Durable when
    AWAITING is recorded: from then on, also after a restart, the queue keeps the changes behind its SCN. The changes
    that a copy carries are stored only as the SCNs where the others continue. An interrupted copy is made again, and
    asks again.

Bounds
    A way without a record is waited for _MISSING_S. Then the others continue without it. It decides later by the rows
    that it finds; if its source has rows, it asks an operator. While no way copies, an AWAITING one renews its snapshot
    from time to time. So queue and redo hold no more than about the time that it has waited.

Other cases are decided elsewhere: a destination table with rows of another apply process is handled by
`spark_apply.copy.ways.neighbours`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from headrace.databases.ports import AWAITING, Carried
from headrace.lcr.scn import scn_text
from headrace.lcr.table_name import TableName
from spark_apply.copy.ways.both_ways import BothWays, Found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.databases.ports import ArrivalSeen, Instantiation, OtherCopy
    from spark_apply.copy.pieces.rounds import TableCopy
    from spark_apply.copy.records.standing import Standing
    from spark_apply.copy.records.tables import TableRecords

__all__ = ["Move", "SharedTables", "is_shared"]

# Drivers start within seconds of each other, on a busy machine within a minute or two. A driver may be away for days,
# while the others have rows for each other.
_MISSING_S = 180.0
# A snapshot waits for open transactions of its source, so not every second. Each is kept twice as long as the previous
# one, because a source that is always a little behind would never have what the others keep.
_KEPT_S = 60.0
_KEPT_MAX_S = 3600.0


class Move(Enum):
    """The next step for a shared table."""

    AS_EVERYWHERE = "it is judged as a table that is not shared"
    KEEP_CHANGES = "its changes are kept from a snapshot on"
    WAIT = "it waits for others"
    NOTHING = "no site had a row of it"
    COPY = "it is copied, for all"
    ASK = "an operator decides"


def is_shared(each: Standing) -> bool:
    """Return whether a table is shared, and nothing else is known of it that must be decided first."""
    record = each.record
    is_new = record is None or record.is_refused or record.state in {AWAITING, "LEFT"}
    is_plain = each.occupant is None and each.part is None and not each.is_renamed
    return bool(each.table.shared_by) and is_plain and (is_new or each.is_begun)


@dataclass(slots=True, kw_only=True)
class SharedTables:
    """Decides about shared tables. One thread at a time.

    Args:
        records: of the apply process's tables.
        both_ways: knows the records at the source.
    """

    records: TableRecords
    both_ways: BothWays
    _missing_since: dict[TableName, float] = field(default_factory=dict)  # on the monotonic clock
    # when a snapshot was taken, and for how many seconds it is kept
    _kept: dict[TableName, tuple[float, float]] = field(default_factory=dict)

    def turn(self, each: Standing, others: Sequence[OtherCopy], *, has_rows: bool) -> tuple[Move, str]:
        """Return the next step for a shared table, and why it waits, for the operator.

        Args:
            each: the table's standing (`is_shared`).
            others: records of others in its destination table; none of them copies.
            has_rows: the destination table has rows.

        Raises:
            DatabaseError: the source's records cannot be read.
        """
        is_ours = all(other.topology == self.records.config.topology for other in others)
        if not is_ours or (has_rows and each.table.keep_existing):
            return Move.AS_EVERYWHERE, ""
        if each.is_begun:  # its own copy was interrupted
            alone = others and all(other.is_awaiting for other in others)
            return self._copied(each, others) if alone else (Move.AS_EVERYWHERE, "")
        if each.record is None or not each.is_awaiting:
            are_empty = all(other.is_awaiting or other.is_of_nothing for other in others)
            return self._begun(each) if are_empty and not has_rows else (Move.AS_EVERYWHERE, "")
        move, why = self._awaiting(each, each.record, others, has_rows=has_rows)
        return self._keep(each) if move is Move.WAIT and self._is_old(each) else (move, why)

    def _awaiting(
        self, each: Standing, record: Instantiation, others: Sequence[OtherCopy], *, has_rows: bool
    ) -> tuple[Move, str]:
        if failed := [other.apply for other in others if other.state == "FAILED"]:
            return self._waits(each, f"{' and '.join(failed)}, whose copy failed: `headrace status` says why")
        if not all(other.is_awaiting or other.is_of_nothing for other in others):
            return self._beside_rows(each)
        known = {here for here, _ in each.table.shared_by}
        if strange := [other.apply for other in others if other.apply not in known]:
            return self._waits(each, f"its own driver, which does not know of {' and '.join(strange)} yet")
        if missing := self._missing(each, others):
            return self._waits(each, f"{' and '.join(missing)}: every one keeps its changes first, as soon as it runs")
        filled = [other.apply for other in others if not other.is_of_nothing]
        if record.digest:  # of nothing: the rows here now are users' rows, and stay
            return self._waits(each, f"the copy of {' or '.join(filled)}") if filled else (Move.NOTHING, "")
        if not has_rows and all(other.is_awaiting for other in others):
            return self._copied(each, others)
        if not has_rows and not each.table.rests:
            return Move.ASK, self._went_on([other.apply for other in others if not other.is_awaiting])
        return Move.AS_EVERYWHERE, ""

    def carries(self, copy: TableCopy, snapshot: str) -> tuple[tuple[Carried, ...], str]:
        """Return the others' changes that a copy from a snapshot contains, and why another snapshot is needed.

        Args:
            copy: begins now; the others in its table wait for it.
            snapshot: of the source.

        Returns:
            The changes, and the reason; empty: the snapshot suffices.

        Raises:
            DatabaseError: the source's progress cannot be read.
        """
        found = []
        for other, there in self._others(copy.table.shared_by, copy.beside):
            seen = self._seen(there, other, snapshot)
            if why := self._lacks(copy.table.source, other, there, seen):
                return (), why
            assert seen is not None
            if not seen.is_settled:
                return (), f"a moment in which apply process {there} at {self.both_ways.there} has nothing half applied"
            found.append(Carried(apply=other.apply, identity=other.identity, scn=seen.scn))
        return tuple(found), ""

    def _begun(self, each: Standing) -> tuple[Move, str]:
        """Decide about a table without rows whose record, if any, does not count."""
        if self.both_ways.has_none_there(each.table) or self.both_ways.is_recorded_there(each.table):
            self._missing_since.pop(each.table.destination, None)
            return self._keep(each)
        return Move.WAIT, self.both_ways.waits(each.table)

    def _keep(self, each: Standing) -> tuple[Move, str]:
        _, interval_s = self._kept.get(each.table.destination, (0.0, _KEPT_S / 2))
        self._kept[each.table.destination] = time.monotonic(), min(2 * interval_s, _KEPT_MAX_S)
        return Move.KEEP_CHANGES, ""

    def _is_old(self, each: Standing) -> bool:
        """Return whether a snapshot must be renewed."""
        at, interval_s = self._kept.setdefault(each.table.destination, (time.monotonic(), _KEPT_S))
        return time.monotonic() > at + interval_s

    def _beside_rows(self, each: Standing) -> tuple[Move, str]:
        """Decide if another way has rows: its copy has ended this one's wait, unless it did not know of this one."""
        if not self.records.is_awaiting_now(each.table):
            return self._waits(each, "its record, which has changed")
        return Move.AS_EVERYWHERE, ""

    def _missing(self, each: Standing, others: Sequence[OtherCopy]) -> list[str]:
        """Return the ways that have no record yet, while they are waited for."""
        here = {other.apply for other in others}
        missing = [apply for apply, _ in each.table.shared_by if apply not in here]
        if not missing:
            self._missing_since.pop(each.table.destination, None)
            return []
        since = self._missing_since.setdefault(each.table.destination, time.monotonic())
        return missing if time.monotonic() < since + _MISSING_S else []

    def _copied(self, each: Standing, others: Sequence[OtherCopy]) -> tuple[Move, str]:
        """Decide whether this way may copy: only if its source has what the others have sent."""
        found = Found.COPY if each.is_begun else self.both_ways.found(each, has_rows=False)
        if found is Found.WAIT:
            return Move.WAIT, self.both_ways.waits(each.table)
        if found is Found.NOTHING:  # the source's rows are gone again
            return self._keep(each)
        if found is not Found.COPY:
            return Move.AS_EVERYWHERE, ""
        for other, there in self._others(each.table.shared_by, others):
            if why := self._lacks(each.table.source, other, there, self._seen(there, other, "")):
                return self._waits(each, why)
        return Move.COPY, ""

    def _others(self, shared_by: Sequence[tuple[str, str]], others: Sequence[OtherCopy]) -> list[tuple[OtherCopy, str]]:
        """Return the waiting ways, each with the apply process that gets the same changes at the source."""
        known = {other.apply: other for other in others}
        return [(known[here], there) for here, there in shared_by if here in known]

    def _seen(self, there: str, other: OtherCopy, snapshot: str) -> ArrivalSeen | None:
        return self.both_ways.records.arrival_seen(
            self.records.config.topology, there, other.identity, snapshot=snapshot
        )

    def _lacks(self, table: TableName, other: OtherCopy, there: str, seen: ArrivalSeen | None) -> str:
        """Return what the source must still apply of another source's changes; empty: it has them all."""
        who = f"apply process {there} at {self.both_ways.there}"
        is_there = seen is not None and seen.record.state in {"DONE", "KEPT"} and not seen.record.is_remade
        if seen is None or not is_there or TableName.of(seen.record) != table:
            return f"{who}, which has not recorded the table yet"
        if seen.has_errors:
            return (
                f"{who}, which has error transactions: they may hold changes of the table. `headrace errors list FILE"
                f" --apply {there}` lists them"
            )
        return (
            "" if seen.scn >= other.scn else f"{who}, until it has applied everything up to SCN {scn_text(other.scn)}"
        )

    def _went_on(self, others: Sequence[str]) -> str:
        """Say why a late site's rows are not copied beside what others bring from everywhere else."""
        site = self.both_ways.there
        return (
            f"the destination table is empty, and {site} has rows. But {' and '.join(others)} began without {site}, and"
            f" what is in flight there may be among these rows, or be deleted already: a copy could double rows or bring"
            " deleted ones back. Let changes of the table rest at every site until everything has arrived everywhere, then"
            f" run `headrace up FILE --keep-existing`: the table is copied from {site}"
        )

    def _waits(self, each: Standing, what: str) -> tuple[Move, str]:
        return Move.WAIT, f"table {each.table.destination} waits for {what}"
