"""Whether a row was changed here after an LCR was committed at its source: only of tables with latest_timestamp.

A statement that writes rows asks this of every row, so it asks what is cheap first. A row's xmin says which transaction
changed it last, and a session remembers, at each commit, a number below which every transaction had ended, and the
moment (`Horizon`). Whatever ended before the LCR's commit was changed earlier: by a session of this site, because its
commit's time is no later than its end, and by an apply process, because a commit waits until the clock has passed the
times that it applies. That is a comparison of two numbers. What is left was changed while the LCR was on its way. Of
such a row the server knows the commit's time and its replication origin:

    no origin                            a session of this site: the times are compared
    an origin of the same source         earlier: a source's changes come in its order
    an origin of another source          earlier, if it was committed here before; else only what is noted tells
                                         (`noted_sets`, `row_changes`)
    no time                              `lost_times`

A set has one time for all of its rows here, that of the earliest change. So a row that was changed between that and its
own change is looked at once more, alone, and it never happens that a later change is overlooked.

Which source an origin stands for is a row of `headrace.row_change` of relation 0: key1 is the origin's number,
negative, key2 the transaction that wrote the row, which is the origin's first one with rows of such tables, and source
the site; is_gone says that its session may not stamp its commits, which then have the time of its first one. An origin
is one session's at a time, so a later one's row has a higher key2. A restored dump has other numbers in its rows: they
are taken for what they are, as those of samples are.

Worked flow (numbers of transactions; times of the day)
    9:00:00.2   the session commits, and remembers: below 730 everything has ended
    9:00:00.5   an UPDATE of row 1 is committed at the source
    9:00:00.6   a user of this site changes row 2, transaction 731
    9:00:00.9   the UPDATE is applied: row 1 has xmin 512, which is below 730; an UPDATE of row 2 would find 731, and compare 0.6 with 0.5

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

_REMEMBERED = 512  # moments; the older ones are further apart
_ENDED = "pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())"
_APART = 1 << 30  # transactions: numbers are compared as 32 bits, which tells what is less than 2^31 apart

MOMENT = f"SELECT {_ENDED}::pg_catalog.text, {microseconds('pg_catalog.clock_timestamp()')}"
"""A number below which all transactions have ended, and the moment, microseconds since the epoch: `Horizon.note` takes
both.
"""

MOMENTS = f"{samples()} UNION ALL {MOMENT} ORDER BY 2, 1"
"""All that the server knows of earlier moments, and the present one."""

_ORIGINS = (
    "headrace.row_change w WHERE w.relation OPERATOR(pg_catalog.=) 0 AND w.key1 OPERATOR(pg_catalog.<) 0 AND"
    f" {is_of_this_server('w', 'w.key2')}"
)


class Horizon:
    """How far back transactions had ended at which moment, as one session knows it."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._numbers: list[int] = []

    def note(self, number: int, time_us: int) -> None:
        """Remember a moment.

        Args:
            number: every transaction with a lower one had ended.
            time_us: microseconds since the epoch; taken for no earlier than what is remembered, also where the clock
                was set back.
        """
        if self._numbers and number <= self._numbers[-1]:
            return  # an earlier moment says as much
        self._times.append(max([time_us, *self._times[-1:]]))
        self._numbers.append(number)
        if len(self._times) > _REMEMBERED:
            half = _REMEMBERED // 2
            self._times[:half], self._numbers[:half] = self._times[:half:2], self._numbers[:half:2]

    def ended_before(self, time_us: int) -> int:
        """A number below which every transaction had ended before a moment; 0: none is known.

        Args:
            time_us: microseconds since the epoch.
        """
        place = bisect_left(self._times, time_us) - 1
        if place < 0 or self._numbers[-1] - self._numbers[place] > _APART:
            return 0
        return self._numbers[place]


def older_operator(times: WriteTimes) -> str:
    """The operator between the time of a change of this site and the LCR's, if the LCR is the later one.

    Of two equal times that of the higher rank.
    """
    return "<=" if times.rank >= times.own_rank else "<"


def not_later_here(times: WriteTimes, catalog: CatalogTable, *, earliest: str, ended: str) -> str:
    """The condition that the row `t` was not changed later here than a set's earliest change.

    What is not sure is taken for later.

    Args:
        times: of the write.
        catalog: the destination table.
        earliest: that change's time, as SQL.
        ended: `Horizon.ended_before` of it, as SQL: an xid.
    """
    noted = _note(catalog, times)
    in_set, in_set_without_time = (
        "" if times.notes_rows else f" OR {is_earlier_set(catalog, earliest, has_time=has_time)}"
        for has_time in (True, False)
    )
    # An origin that is not listed is a copy's, or another tool's.
    ours = f"COALESCE({applied_from('c.roident', 't.xmin')} OPERATOR(pg_catalog.=) {literal(times.source)}, true)"
    # What an apply process committed while this statement waited for it can have an origin that the statement does not
    # see. A subquery without EXISTS: of that one the planner could make a hash of the whole table.
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
        # A commit of apply waits for the clock.
        f' WHEN c."timestamp" OPERATOR(pg_catalog.<) {earliest} AND {_of_origin("w.is_gone", "c.roident", "t.xmin")} IS'
        " NOT TRUE THEN true"
        f" WHEN {seen} IS NOT TRUE THEN false"
        f" ELSE {ours}{f' OR ({noted})' if times.notes_rows else in_set} END"
        " FROM pg_catalog.pg_xact_commit_timestamp_origin(t.xmin) c))"
    )


def _note(catalog: CatalogTable, times: WriteTimes) -> str:
    """Whether the row `t` is as the change left it that its note is of.

    Where the write notes none that could be refused, a change of the same source.
    """
    key = ", ".join(f"t.{catalog.columns[place].name}" for place in sorted(catalog.table.key))
    ours = "" if times.notes_rows else f" AND r.source OPERATOR(pg_catalog.=) {literal(times.source)}"
    return f"SELECT {is_noted('r', 't')}{ours} FROM headrace.row_change r WHERE {note_of(catalog, key_hashes(key))}"


def key_hashes(values: str) -> tuple[str, str]:
    """Two hashes of a key, as SQL: nobody meets two keys with the same pair.

    Args:
        values: of the key's columns in the table's order, as SQL, with their collations.
    """
    return f"pg_catalog.hash_record_extended(ROW({values}), 0)", f"pg_catalog.hash_record_extended(ROW({values}), 1)"


def note_of(catalog: CatalogTable, hashes: tuple[str, str]) -> str:
    """The condition that `r`, of `headrace.row_change`, is the note of a key.

    Args:
        catalog: the destination table.
        hashes: see `key_hashes`.
    """
    first, second = hashes
    return (
        f"r.relation OPERATOR(pg_catalog.=) {catalog.oid} AND r.key1 OPERATOR(pg_catalog.=) {first}"
        f" AND r.key2 OPERATOR(pg_catalog.=) {second}"
    )


def is_noted(note: str, row: str) -> str:
    """The condition that a row is as an apply process left it that made this note, as SQL; NULL: there is no note.

    Args:
        note: alias of `headrace.row_change`.
        row: alias of the table.
    """
    # A key that was deleted and made again in one transaction has a note of its delete alone, where only deletes are
    # noted.
    return (
        f"{note}.xmin OPERATOR(pg_catalog.=) {row}.xmin AND {note}.source OPERATOR(pg_catalog.<>) '' AND NOT"
        f" {note}.is_gone"
    )


def applied_from(origin: str, xmin: str) -> str:
    """The site whose changes the session of a replication origin applied, as SQL.

    NULL: it did not apply any, or is not ours.

    Args:
        origin: its number.
        xmin: of a row that it wrote.
    """
    return _of_origin("w.source", origin, xmin)


def applied_until(commit: str, xmin: str) -> str:
    """When the session of a replication origin had committed a row at the latest, as SQL.

    Args:
        commit: alias of what the server knows of the commit.
        xmin: of the row.
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
    """Note whose changes a session applies, in the transaction of the first of them; nothing where it is noted.

    Args:
        origin: name of the session's replication origin.
        source: the site.
        has_times: its commits have times of their own.
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
            # of a restored dump
            " ON CONFLICT (relation, key1, key2) DO UPDATE SET source = excluded.source, is_gone = excluded.is_gone"
        )
    )
