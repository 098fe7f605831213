"""The condition that no row was changed here after an LCR's commit at its source, for tables with latest_timestamp.

A statement checks this for every row that it writes, so the cheap check comes first. A row's xmin names the transaction
that changed it last. At each commit, a session remembers the moment and a number below which every transaction had
ended (`Horizon`). Changes that ended before the LCR's commit are earlier than it. For a session of this site, the
commit's time is no later than its end. For an apply process, a commit waits until the clock has passed the times that
it applies. So the first check compares two numbers. The remaining rows were changed while the LCR was in flight. The
server knows the commit time and replication origin of such a row:

    no origin                            a session of this site: compare the times
    an origin of the same source         earlier: a source's changes come in its order
    an origin of another source          earlier, if it was committed here before the LCR; otherwise only notes decide
                                         (`noted_sets`, `row_changes`)
    no time                              `lost_times`

The check uses one time for all rows of a set, that of the earliest change. A row that was changed here between that
time and its own LCR's time is checked again separately. So a later change is never missed.

A row of `headrace.row_change` with relation 0 names the source of an origin. key1 is the negative number of the origin,
and source is the site. key2 is the transaction that wrote the row, the origin's first one with rows of such tables.
is_gone means that the session may not stamp its commits, which then have the time of its first one. Only one session at
a time uses an origin, so a later session's row has a higher key2. A restored dump has other numbers in its rows, which
reveals them, as it does for samples.

Worked flow (numbers of transactions; times of the day)
    9:00:00.2   the session commits, and remembers: below 730 everything has ended
    9:00:00.5   an UPDATE of row 1 is committed at the source
    9:00:00.6   a user of this site changes row 2, transaction 731
    9:00:00.9   apply writes the UPDATE: row 1 has xmin 512, which is below 730. An UPDATE of row 2 would find 731, and
                compare 0.6 with 0.5

Source: PostgreSQL 15, "Commit Timestamp Functions", "Replication Progress Tracking", "Transaction ID and Snapshot
Information Functions".
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from headrace.databases.postgres.destination.row_times.lost_times import (
    is_of_this_server,
    lost_until,
    microseconds,
    samples,
    was_earlier,
    was_lost,
    whole_number,
)
from headrace.databases.postgres.destination.row_times.noted_sets import is_earlier_set
from headrace.databases.postgres.pipeline import Statement
from headrace.lcr.table_name import literal

if TYPE_CHECKING:
    from headrace.databases.ports import WriteTimes
    from headrace.databases.postgres.catalog.destination_tables import CatalogTable

__all__ = [
    "MOMENT",
    "MOMENTS",
    "Horizon",
    "applied_from",
    "applied_until",
    "is_noted",
    "key_hashes",
    "not_later_here",
    "note_of",
    "note_origin",
    "older_operator",
]

_REMEMBERED = 512  # moments; older ones are further apart
_ENDED = "pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())"
_APART = 1 << 30  # transactions: the server compares 32-bit numbers, which is right up to 2^31 apart

MOMENT = f"SELECT {_ENDED}::pg_catalog.text, {microseconds('pg_catalog.clock_timestamp()')}"
"""Query for `Horizon.note`: a number below which all transactions have ended, and the moment in microseconds.

The moment counts from the epoch.
"""

MOMENTS = f"{samples()} UNION ALL {MOMENT} ORDER BY 2, 1"
"""Query for all recorded earlier moments, and the present one."""

_ORIGINS = (
    "headrace.row_change w WHERE w.relation OPERATOR(pg_catalog.=) 0 AND w.key1 OPERATOR(pg_catalog.<) 0 AND"
    f" {is_of_this_server('w', 'w.key2')}"
)


class Horizon:
    """Moments remembered by one session, each with a number below which all transactions had ended."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._numbers: list[int] = []

    def note(self, number: int, time_us: int) -> None:
        """Remember a moment.

        Args:
            number: number below which every transaction had ended.
            time_us: the moment, microseconds since the epoch. It counts as no earlier than the moments before, even
                when the clock was set back.
        """
        if self._numbers and number <= self._numbers[-1]:
            return  # an earlier moment has the same bound
        self._times.append(max([time_us, *self._times[-1:]]))
        self._numbers.append(number)
        if len(self._times) > _REMEMBERED:
            half = _REMEMBERED // 2
            self._times[:half], self._numbers[:half] = self._times[:half:2], self._numbers[:half:2]

    def ended_before(self, time_us: int) -> int:
        """Return a number below which every transaction had ended before a moment; 0 when unknown.

        Args:
            time_us: microseconds since the epoch.
        """
        place = bisect_left(self._times, time_us) - 1
        if place < 0 or self._numbers[-1] - self._numbers[place] > _APART:
            return 0
        return self._numbers[place]


def older_operator(times: WriteTimes) -> str:
    """Return the SQL operator between a change of this site and an LCR for which the LCR is the later one.

    Of two equal times, the one of the higher rank is later.
    """
    return "<=" if times.rank >= times.own_rank else "<"


def not_later_here(times: WriteTimes, catalog: CatalogTable, *, earliest: str, ended: str) -> str:
    """Return the condition that row `t` was not changed later here than a set's earliest change.

    An uncertain change counts as later.

    Args:
        times: times of the write.
        catalog: the destination table.
        earliest: time of the set's earliest change, as SQL.
        ended: `Horizon.ended_before` of that time, an xid, as SQL.
    """
    noted = _note(catalog, times)
    in_set, in_set_without_time = (
        "" if times.notes_rows else f" OR {is_earlier_set(catalog, earliest, has_time=has_time)}"
        for has_time in (True, False)
    )
    # An unlisted origin belongs to a copy, or to another tool.
    ours = f"COALESCE({applied_from('c.roident', 't.xmin')} OPERATOR(pg_catalog.=) {literal(times.source)}, true)"
    # An apply process may commit while this statement waits for it, with an origin row that the statement does not see.
    # The subquery avoids EXISTS, which the planner could turn into a hash of the whole table.
    seen = (
        f"(pg_catalog.age(t.xmin) OPERATOR(pg_catalog.>) pg_catalog.age(pg_catalog.xid({_ENDED}))"
        f" OR (SELECT true FROM {catalog.relation} x WHERE x.ctid OPERATOR(pg_catalog.=) t.ctid AND x.tableoid"
        " OPERATOR(pg_catalog.=) t.tableoid))"
    )
    return (
        f"(pg_catalog.age(t.xmin) OPERATOR(pg_catalog.>) (SELECT pg_catalog.age({ended}))"
        f' OR (SELECT CASE WHEN c."timestamp" IS NULL THEN {was_earlier("t.xmin", earliest)} OR NOT'
        f" ({was_lost('t.xmin')}) OR ({noted}){in_set_without_time}"
        f' WHEN c.roident OPERATOR(pg_catalog.=) 0 THEN c."timestamp" OPERATOR(pg_catalog.{older_operator(times)})'
        f" {earliest}"
        # Apply's commits wait for the clock.
        f' WHEN c."timestamp" OPERATOR(pg_catalog.<) {earliest} AND {_of_origin("w.is_gone", "c.roident", "t.xmin")} IS'
        " NOT TRUE THEN true"
        f" WHEN {seen} IS NOT TRUE THEN false"
        f" ELSE {ours}{f' OR ({noted})' if times.notes_rows else in_set} END"
        " FROM pg_catalog.pg_xact_commit_timestamp_origin(t.xmin) c))"
    )


def _note(catalog: CatalogTable, times: WriteTimes) -> str:
    """Return the query whether row `t` is still as the change in its note left it.

    When the write makes no notes for single rows, the note must also be of the same source.
    """
    key = ", ".join(f"t.{catalog.columns[place].name}" for place in sorted(catalog.table.key))
    ours = "" if times.notes_rows else f" AND r.source OPERATOR(pg_catalog.=) {literal(times.source)}"
    return f"SELECT {is_noted('r', 't')}{ours} FROM headrace.row_change r WHERE {note_of(catalog, key_hashes(key))}"


def key_hashes(values: str) -> tuple[str, str]:
    """Return SQL for two hashes of a key; two keys with the same pair are practically impossible.

    Args:
        values: values of the key's columns in the table's order, as SQL, with their collations.
    """
    return f"pg_catalog.hash_record_extended(ROW({values}), 0)", f"pg_catalog.hash_record_extended(ROW({values}), 1)"


def note_of(catalog: CatalogTable, hashes: tuple[str, str]) -> str:
    """Return the condition that `r`, of `headrace.row_change`, is the note of a key.

    Args:
        catalog: the destination table.
        hashes: SQL from `key_hashes`.
    """
    first, second = hashes
    return (
        f"r.relation OPERATOR(pg_catalog.=) {catalog.oid} AND r.key1 OPERATOR(pg_catalog.=) {first}"
        f" AND r.key2 OPERATOR(pg_catalog.=) {second}"
    )


def is_noted(note: str, row: str) -> str:
    """Return the condition that a row is as the apply process of a note left it; NULL without a note.

    Args:
        note: alias of `headrace.row_change`.
        row: alias of the table.
    """
    # When only deletes are noted, a key that one transaction deleted and inserted again has only the note of its delete.
    return (
        f"{note}.xmin OPERATOR(pg_catalog.=) {row}.xmin AND {note}.source OPERATOR(pg_catalog.<>) '' AND NOT"
        f" {note}.is_gone"
    )


def applied_from(origin: str, xmin: str) -> str:
    """Return SQL for the site whose changes the session of a replication origin applied.

    It is NULL when the session applied none, or the origin is not Headrace's.

    Args:
        origin: number of the origin, as SQL.
        xmin: xmin of a row that the session wrote, as SQL.
    """
    return _of_origin("w.source", origin, xmin)


def applied_until(commit: str, xmin: str) -> str:
    """Return SQL for the latest time at which the session of a replication origin can have committed a row.

    Args:
        commit: alias of the server's data of the commit.
        xmin: the row's xmin, as SQL.
    """
    until = f"COALESCE({lost_until(xmin)}, pg_catalog.clock_timestamp())"
    return f'CASE WHEN {_of_origin("w.is_gone", f"{commit}.roident", xmin)} THEN {until} ELSE {commit}."timestamp" END'


def _of_origin(found: str, origin: str, xmin: str) -> str:
    return (
        f"(SELECT {found} FROM {_ORIGINS} AND w.key1 OPERATOR(pg_catalog.=) (OPERATOR(pg_catalog.-)"
        f" ({origin})::pg_catalog.int8) AND w.key2 OPERATOR(pg_catalog.<=) {whole_number(xmin)} ORDER BY w.key2 DESC"
        " LIMIT 1)"
    )


def note_origin(origin: str, source: str, *, has_times: bool) -> Statement:
    """Return the statement that notes whose changes a session applies, unless it is noted already.

    It runs in the transaction of the session's first change.

    Args:
        origin: name of the session's replication origin.
        source: name of the site.
        has_times: the session stamps its commits, so that each has its own time.
    """
    is_untimed = "false" if has_times else "true"
    number = (
        "(SELECT OPERATOR(pg_catalog.-) o.roident::pg_catalog.int8 FROM pg_catalog.pg_replication_origin o"
        f" WHERE o.roname OPERATOR(pg_catalog.=) {literal(origin)})"
    )
    return Statement(
        sql=(
            "INSERT INTO headrace.row_change (relation, key1, key2, changed_at, rank, is_gone, source)"
            f" SELECT 0, {number}, pg_catalog.pg_current_xact_id()::pg_catalog.text::pg_catalog.int8, NULL, 0,"
            f" {is_untimed}, {literal(source)}"
            f" WHERE NOT COALESCE((SELECT w.source OPERATOR(pg_catalog.=) {literal(source)} AND w.is_gone"
            f" OPERATOR(pg_catalog.=) {is_untimed} FROM {_ORIGINS} AND w.key1 OPERATOR(pg_catalog.=) {number} ORDER BY"
            " w.key2 DESC LIMIT 1), false)"
            # a row of a restored dump may conflict
            " ON CONFLICT (relation, key1, key2) DO UPDATE SET source = excluded.source, is_gone = excluded.is_gone"
        )
    )
