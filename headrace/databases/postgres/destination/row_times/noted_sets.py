"""Notes of whole sets: the source's change times of the rows that a transaction of apply wrote.

Only for tables with latest_timestamp.

The xmin of an existing row names the transaction that changed it last, and the server knows that transaction's origin.
So when changes come from several sites, a row needs no separate note: all rows that a statement wrote share one. The
note in `headrace.row_change_set` has the earliest and the latest time. `headrace.row_change_set_time` has all times, by
a hash of the key (`WriteTimes.keys`). A deleted row has no xmin, so deletes are noted one by one (`row_changes`).

A transaction is found by its origin and number. The number is that of the whole transaction; a row written after a
savepoint has a higher xmin. Only one session at a time uses an origin. So the row's set belongs to the newest transaction
of the origin that has sets and a number up to the row's xmin, if both committed at the same time; otherwise the row has
no set.

The times of single rows are kept for a limited number of rows (`forget_sets`), the earliest and the latest time for as
long as tombstones. Without single times, a change between the earliest and the latest cannot be ordered against the
row. The same holds when another source has keys of another type, so that hashes are not comparable. User SQL in the
transaction may have written rows that are in no set: then only the times of single rows count (`blur_sets`).

Worked flow (at dbs3; t: commit times)
    dbs1's group, transaction 730: row 1 t=20, row 2 t=26; committed here at t=40: one set 20..26, times {hash of 1: 20,
    hash of 2: 26}
    dbs2's change of row 1, t=50     later than 40, so later than 26: the statement itself applies it
    dbs2's change of row 1, t=30     later than 26: the same
    dbs2's change of row 1, t=23     checked separately: row 1 was changed at 20, so dbs2's change is later

Source: PostgreSQL 15, "Commit Timestamp Functions", "Replication Progress Tracking".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.databases.ports import LastChange
from headrace.databases.postgres.destination.fencing import MEETING_LOCKS
from headrace.databases.postgres.destination.row_times.lost_times import PG_EPOCH_US, microseconds, whole_number
from headrace.databases.postgres.pipeline import Statement
from headrace.lcr.table_name import literal

if TYPE_CHECKING:
    import psycopg
    from numpy.typing import NDArray
    from psycopg.pq.abc import PGresult

    from headrace.databases.ports import Write, WriteTimes
    from headrace.databases.postgres.catalog.destination_tables import CatalogTable

__all__ = [
    "SCHEMA",
    "SetOfRow",
    "blur_sets",
    "exact_changes",
    "forget_sets",
    "is_earlier_set",
    "note_sets",
    "set_of_row",
]

_ROWS_MAX = 65_536  # rows per set: a value of 1 MB
_PER_NOTE = 6
"""Rows of sets that take the space of one `row_change` note with its index: 24 bytes against 150."""
_SETS_AT_ONCE = 1000  # sets per query
_PARTS_AT_ONCE = 8  # parts of a transaction whose times one answer has: 16 MB as text
_FORGOTTEN_MAX = 200_000  # rows per call: a second or two, in which the apply server applies nothing

_TIME = np.dtype([("key", "<u8"), ("at", "<i8")])

SCHEMA = (
    """CREATE TABLE headrace.row_change_set (
    origin oid NOT NULL, number bigint NOT NULL, relation oid NOT NULL, part integer NOT NULL, earliest timestamptz, latest timestamptz,
    rank smallint NOT NULL, source text NOT NULL, key_form integer NOT NULL, noted_at timestamptz NOT NULL DEFAULT
        clock_timestamp(), PRIMARY KEY (origin, number, relation, part)
)""",
    # Little-endian pairs of 64 bits: the key's hash, and microseconds since the epoch. A separate table, so that times
    # can be deleted without rewriting the set's row, whose xmin matters.
    """CREATE TABLE headrace.row_change_set_time (
    origin oid NOT NULL, number bigint NOT NULL, relation oid NOT NULL, part integer NOT NULL, row_count integer NOT NULL, times bytea NOT NULL,
    PRIMARY KEY (origin, number, relation, part)
)""",
    "ALTER TABLE headrace.row_change_set_time ALTER COLUMN times SET STORAGE EXTERNAL",  # hashes do not compress
)

_CURRENT = "pg_catalog.pg_current_xact_id()::pg_catalog.text::pg_catalog.int8"


# ------------------------------------------------------------------ writing


def note_sets(write: Write, catalog: CatalogTable, *, origin: str, part: int) -> list[Statement]:
    """Return the statements that note the times of the rows of a write.

    Args:
        write: write with `WriteTimes.keys`.
        catalog: the destination table.
        origin: name of the session's replication origin.
        part: number of the first set, higher than all earlier ones of the transaction; further sets count up from it.
    """
    times = write.times
    assert times is not None
    assert times.keys is not None
    sql = (
        "WITH s AS (INSERT INTO headrace.row_change_set (origin, number, relation, part, earliest, latest, rank,"
        " source, key_form)"
        f" SELECT o.roident, {_CURRENT}, {catalog.oid}, $1::pg_catalog.int4, $2::pg_catalog.timestamptz,"
        f" $3::pg_catalog.timestamptz, {times.rank},"
        f" {literal(times.source)}, {times.key_form} FROM pg_catalog.pg_replication_origin o WHERE o.roname"
        f" OPERATOR(pg_catalog.=) {literal(origin)}"
        # rows of a restored dump may conflict
        " ON CONFLICT (origin, number, relation, part) DO UPDATE SET earliest = excluded.earliest, latest ="
        " excluded.latest, rank = excluded.rank,"
        " source = excluded.source, key_form = excluded.key_form, noted_at = excluded.noted_at RETURNING origin,"
        " number, relation, part)"
        " INSERT INTO headrace.row_change_set_time (origin, number, relation, part, row_count, times) SELECT s.*,"
        " $4::pg_catalog.int4, $5::pg_catalog.bytea FROM s"
        " ON CONFLICT (origin, number, relation, part) DO UPDATE SET row_count = excluded.row_count, times ="
        " excluded.times"
    )
    found = []
    for number, first in enumerate(range(0, write.row_count, _ROWS_MAX)):
        noted = np.empty(min(_ROWS_MAX, write.row_count - first), _TIME)
        noted["key"], noted["at"] = (each[first : first + noted.shape[0]] for each in (times.keys, times.last_us))
        bounds = [
            (int(each) - PG_EPOCH_US).to_bytes(8, "big", signed=True) for each in (noted["at"].min(), noted["at"].max())
        ]
        counts = [each.to_bytes(4, "big") for each in (part + number, noted.shape[0])]
        found.append(
            Statement(sql=sql, prepared=True, parameters=(counts[0], *bounds, counts[1], noted.view(np.uint8)))
        )
    return found


def blur_sets(origin: str) -> Statement:
    """Clear the bounds of this transaction's sets: other rows may have been written at other times.

    Only the times of single rows count then.
    """
    return Statement(
        sql=(
            "UPDATE headrace.row_change_set s SET earliest = NULL, latest = NULL FROM pg_catalog.pg_replication_origin o"
            f" WHERE o.roname OPERATOR(pg_catalog.=) {literal(origin)} AND s.origin OPERATOR(pg_catalog.=) o.roident"
            f" AND s.number OPERATOR(pg_catalog.=) {_CURRENT}"
        )
    )


# ------------------------------------------------------------------ asking

_NEWEST = (
    "SELECT x.number, x.xmin AS written_by FROM headrace.row_change_set x WHERE x.origin OPERATOR(pg_catalog.=) {}"
    f" AND x.number OPERATOR(pg_catalog.<=) {whole_number('t.xmin')} ORDER BY x.number DESC LIMIT 1"
)
# The sets `s` of the transaction that wrote the row `t`: found by its commit `c`, or by the numbers alone when the
# server no longer knows the commit.
_BY_COMMIT = (
    f"FROM ({_NEWEST.format('c.roident')}) n, headrace.row_change_set s WHERE s.origin OPERATOR(pg_catalog.=) c.roident"
    " AND s.number OPERATOR(pg_catalog.=) n.number"
    ' AND pg_catalog.pg_xact_commit_timestamp(n.written_by) OPERATOR(pg_catalog.=) c."timestamp"'
)
_BY_NUMBER = (
    f"FROM pg_catalog.pg_replication_origin o, LATERAL ({_NEWEST.format('o.roident')}) n, headrace.row_change_set s"
    " WHERE s.origin OPERATOR(pg_catalog.=) o.roident AND s.number OPERATOR(pg_catalog.=) n.number AND s.xmin"
    " OPERATOR(pg_catalog.=) t.xmin"
)


def set_of_row(catalog: CatalogTable) -> str:
    """Return SQL for origin and number, as text, of the transaction that wrote row `t` and noted sets of the table.

    It is NULL when there is no such transaction. `c` is the commit of the row's transaction.
    """
    found = (
        "(SELECT s.origin::pg_catalog.text OPERATOR(pg_catalog.||) ' ' OPERATOR(pg_catalog.||)"
        f" s.number::pg_catalog.text {{}} AND s.relation OPERATOR(pg_catalog.=) {catalog.oid} LIMIT 1)"
    )
    return (
        f'CASE WHEN c."timestamp" IS NULL THEN {found.format(_BY_NUMBER)} WHEN c.roident OPERATOR(pg_catalog.<>) 0'
        f" THEN {found.format(_BY_COMMIT)} END"
    )


def is_earlier_set(catalog: CatalogTable, earliest: str, *, has_time: bool) -> str:
    """Return the SQL condition that all rows in the set of row `t` were changed before a moment; NULL when unknown.

    Args:
        catalog: the destination table.
        earliest: the moment, as SQL.
        has_time: the server knows the row's commit, as `c`. Otherwise a set must have the row's xmin, and so be from
            the same part of the transaction.
    """
    return (
        f"(SELECT pg_catalog.bool_and(COALESCE(s.latest OPERATOR(pg_catalog.<) {earliest}, false))"
        f" {_BY_COMMIT if has_time else _BY_NUMBER} AND s.relation OPERATOR(pg_catalog.=) {catalog.oid})"
    )


@dataclass(frozen=True, slots=True)
class SetOfRow:
    """Origin and number of the transaction that wrote a row and noted sets."""

    origin: int
    number: int


@dataclass(frozen=True, slots=True)
class _Noted:
    """Notes of one transaction's rows in a table.

    `times` has the requested keys, sorted; None when the times are no longer kept. `earliest_us` is None when other
    rows may have been written.
    """

    source: str
    rank: int
    key_form: int
    earliest_us: int | None
    latest_us: int | None
    times: NDArray[Any] | None

    def last_change(self, found: LastChange, times: WriteTimes, row: int) -> LastChange:
        """Return a row's last change; `found` itself when the notes do not cover the row."""
        comparable = times.keys is not None and self.times is not None and self.key_form == times.key_form
        at = self._exact(times.keys[row]) if comparable and times.keys is not None else None
        if not comparable and self.earliest_us is not None and self.latest_us is not None:
            mine = int(times.times_us[row])
            at = self.latest_us if self.latest_us < mine else self.earliest_us if mine < self.earliest_us else None
        if at is None and self.source == times.source:
            at = int(times.times_us[row])  # an upper bound: a source's changes come in its order
        if at is None:
            return found
        return replace(
            found,
            noted_us=at,
            noted_rank=self.rank,
            noted_source=self.source,
            is_gone=False,
            lost_us=0,
            applied_us=None,
            applied_source="",
        )

    def _exact(self, key: np.uint64) -> int | None:
        assert self.times is not None
        place = int(np.searchsorted(self.times["key"], key, side="right")) - 1
        return int(self.times["at"][place]) if place >= 0 and self.times["key"][place] == key else None


def exact_changes(
    ask: Callable[[Statement], PGresult],
    catalog: CatalogTable,
    times: WriteTimes,
    found: Sequence[tuple[LastChange, SetOfRow | None]],
) -> tuple[LastChange, ...]:
    """Return the last changes of rows, completed from the noted sets.

    Args:
        ask: runs a statement in the session's transaction.
        catalog: the destination table.
        times: times of the write, with the keys of its rows.
        found: for each row of the write, its last change as known without sets, and its set.
    """
    keys: dict[SetOfRow, list[np.uint64]] = {}
    for row, (_, each) in enumerate(found):
        if each is not None:
            keys.setdefault(each, []).extend([] if times.keys is None else [times.keys[row]])
    noted: dict[SetOfRow, _Noted] = {}
    wanted = list(keys)
    for first in range(0, len(wanted), _SETS_AT_ONCE):
        parts = _parts(ask(_question(catalog, wanted[first : first + _SETS_AT_ONCE])))
        noted |= {each: _joined(mine, _times(ask, catalog, each, mine, keys[each])) for each, mine in parts.items()}
    return tuple(
        noted[each].last_change(change, times, row) if each is not None and each in noted else change
        for row, (change, each) in enumerate(found)
    )


# number in its transaction, source, rank, form of the key, earliest, latest, whether the rows' times are still kept
_Part = tuple[bytes | None, ...]


def _question(catalog: CatalogTable, wanted: Sequence[SetOfRow]) -> Statement:
    values = ", ".join(f"({each.origin}::pg_catalog.oid, {each.number}::pg_catalog.int8)" for each in wanted)
    return Statement(
        sql=(
            f"SELECT s.origin, s.number, s.part, s.source, s.rank, s.key_form, {microseconds('s.earliest')},"
            f" {microseconds('s.latest')}, t.part IS NOT NULL FROM (VALUES {values}) w(origin, number) JOIN"
            " headrace.row_change_set s USING (origin, number) LEFT JOIN headrace.row_change_set_time t USING (origin,"
            f" number, relation, part) WHERE s.relation OPERATOR(pg_catalog.=) {catalog.oid} ORDER BY s.origin,"
            " s.number, s.part"
        )
    )


def _parts(result: PGresult) -> dict[SetOfRow, list[_Part]]:
    parts: dict[SetOfRow, list[_Part]] = {}
    for row in range(result.ntuples):
        origin, number, *rest = (result.get_value(row, place) for place in range(9))
        parts.setdefault(SetOfRow(int(origin or 0), int(number or 0)), []).append(tuple(rest))
    return parts


def _times(
    ask: Callable[[Statement], PGresult],
    catalog: CatalogTable,
    of: SetOfRow,
    parts: Sequence[_Part],
    keys: Sequence[np.uint64],
) -> NDArray[Any] | None:
    """Return the times of the rows with some keys, sorted by key.

    None when not all times are kept any more, or hashes are not comparable.
    """
    if any(part[6] != b"t" or part[3] != parts[0][3] for part in parts):
        return None
    found = [np.empty(0, _TIME)]
    for first in range(0, len(parts), _PARTS_AT_ONCE):
        numbers = ", ".join(str(int(part[0] or 0)) for part in parts[first : first + _PARTS_AT_ONCE])
        result = ask(
            Statement(
                sql=(
                    "SELECT pg_catalog.encode(t.times, 'hex') FROM headrace.row_change_set_time t WHERE t.origin"
                    f" OPERATOR(pg_catalog.=) {of.origin}"
                    f" AND t.number OPERATOR(pg_catalog.=) {of.number} AND t.relation OPERATOR(pg_catalog.=)"
                    f" {catalog.oid} AND t.part IN ({numbers}) ORDER BY t.part"
                )
            )
        )
        for row in range(result.ntuples):
            times = np.frombuffer(bytes.fromhex((result.get_value(row, 0) or b"").decode()), _TIME)
            found.append(times[np.isin(times["key"], keys)])
    every = np.concatenate(found)
    return every[np.argsort(every["key"], kind="stable")]  # stable: the last time of a key counts


def _joined(parts: Sequence[_Part], times: NDArray[Any] | None) -> _Noted:
    _, source, rank, key_form, *_ = parts[0]
    earliest, latest = ([part[place] for part in parts] for place in (4, 5))
    is_known = None not in earliest and None not in latest
    return _Noted(
        source=(source or b"").decode(),
        rank=int(rank or 0),
        key_form=int(key_form or 0),
        times=times,
        earliest_us=min(int(each or 0) for each in earliest) if is_known else None,
        latest_us=max(int(each or 0) for each in latest) if is_known else None,
    )


# ------------------------------------------------------------------ forgetting

_FORGET_TIMES = f"""
WITH old AS MATERIALIZED (
    SELECT t.origin, t.number, t.relation, t.part FROM headrace.row_change_set_time t JOIN (
        SELECT origin, number, relation, part, sum(row_count) OVER (ORDER BY number DESC, origin, relation, part DESC) AS kept
        FROM headrace.row_change_set_time) x USING (origin, number, relation, part)
    WHERE x.kept > %s LIMIT {_FORGOTTEN_MAX} FOR UPDATE OF t SKIP LOCKED)
DELETE FROM headrace.row_change_set_time t USING old
WHERE (t.origin, t.number, t.relation, t.part) = (old.origin, old.number, old.relation, old.part)
"""
# A transaction's sets are deleted together, because remaining ones would pass for all of them. The lock skips the work
# when another session does the same at the same time.
_FORGET_SETS = f"""
WITH bound AS MATERIALIZED (
    SELECT (SELECT s.number FROM headrace.row_change_set s ORDER BY s.number DESC OFFSET %s LIMIT 1) AS number,
           clock_timestamp() - make_interval(secs => %s::double precision) AS at, pg_try_advisory_xact_lock({MEETING_LOCKS}, 0) AS is_alone),
old AS MATERIALIZED (
    SELECT s.origin, s.number FROM headrace.row_change_set s CROSS JOIN bound WHERE bound.is_alone
    GROUP BY s.origin, s.number HAVING max(s.noted_at) < min(bound.at) OR s.number <= min(bound.number) LIMIT {_FORGOTTEN_MAX}),
times AS (DELETE FROM headrace.row_change_set_time t USING old WHERE (t.origin, t.number) = (old.origin, old.number))
DELETE FROM headrace.row_change_set s USING old WHERE (s.origin, s.number) = (old.origin, old.number)
"""


def forget_sets(connection: psycopg.Connection[Any], *, age_s: float, count: int) -> int:
    """Delete old sets, and the single times of surplus rows.

    Args:
        connection: connection to the destination, in autocommit mode, outside a transaction.
        age_s: age up to which sets are kept, seconds.
        count: number of notes of `row_change` whose space the sets may take.

    Returns:
        The number of deleted sets.
    """
    connection.execute(_FORGET_TIMES.encode(), (count * _PER_NOTE,))
    return connection.execute(_FORGET_SETS.encode(), (count, age_s)).rowcount
