"""What apply noted of whole sets: when, at their source, the rows that a transaction wrote were changed.

Only of tables with latest_timestamp.

Of a row that is there its xmin tells which transaction changed it last, and the server knows that transaction's origin.
So where changes come from several sites, a row needs no note of its own: all rows that a statement wrote have one, in
`headrace.row_change_set`, with the earliest and the latest time, and all times in `headrace.row_change_set_time`, by a
hash of the key (`WriteTimes.keys`). What is gone has no xmin: deletes are noted one by one (`row_changes`).

A transaction is found by its origin and number. The number is that of the whole transaction, and a row that was written
behind a savepoint has a higher one; an origin is one session's at a time, so of its transactions that have sets the
newest one up to the row's xmin is the one, if it was committed at the same time, or it has none.

The times of the rows are kept for so many of them (`forget_sets`), the earliest and the latest for as long as
tombstones. Without the first, and where another source has its keys in another type, so that hashes do not compare, a
change that is between the two cannot be told from the row's. Where users' SQL ran in the transaction, it may have
written rows that no set has: then only the times of the rows count (`blur_sets`).

Worked flow (c: at dbs3, t: commit times at the sources)
    dbs1's group, transaction 730: row 1 t=20, row 2 t=26; committed at t=40: one set 20..26, times {hash of 1: 20, hash
    of 2: 26} dbs2's change of row 1, t=50     later than 40, so than 26: applied by the statement itself
    dbs2's change of row 1, t=30     later than 26: the same
    dbs2's change of row 1, t=23     looked at alone: row 1 was changed at 20, so it is the later one

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

_ROWS_MAX = 65_536  # in one set: a value of 1 MB
_PER_NOTE = 6
"""So many rows of sets take the room of one note of `row_change` with its index: 24 bytes and 150."""
_SETS_AT_ONCE = 1000  # that are asked for in one statement
_PARTS_AT_ONCE = 8  # of a transaction, whose times are read in one answer: 16 MB as text
_FORGOTTEN_MAX = 200_000  # in one call: a second or two, in which its server applies nothing

_TIME = np.dtype([("key", "<u8"), ("at", "<i8")])

SCHEMA = (
    """CREATE TABLE headrace.row_change_set (
    origin oid NOT NULL, number bigint NOT NULL, relation oid NOT NULL, part integer NOT NULL, earliest timestamptz, latest timestamptz,
    rank smallint NOT NULL, source text NOT NULL, key_form integer NOT NULL, noted_at timestamptz NOT NULL DEFAULT
        clock_timestamp(), PRIMARY KEY (origin, number, relation, part)
)""",
    # Little-endian pairs of 64 bits: the key's hash, and microseconds since the epoch. Apart, so that they can go and
    # the set's row stays as it was written.
    """CREATE TABLE headrace.row_change_set_time (
    origin oid NOT NULL, number bigint NOT NULL, relation oid NOT NULL, part integer NOT NULL, row_count integer NOT NULL, times bytea NOT NULL,
    PRIMARY KEY (origin, number, relation, part)
)""",
    "ALTER TABLE headrace.row_change_set_time ALTER COLUMN times SET STORAGE EXTERNAL",  # hashes do not become smaller
)

_CURRENT = "pg_catalog.pg_current_xact_id()::pg_catalog.text::pg_catalog.int8"


# ------------------------------------------------------------------ writing


def note_sets(write: Write, catalog: CatalogTable, *, origin: str, part: int) -> list[Statement]:
    """Note the times of the rows that a write leaves.

    Args:
        write: with `WriteTimes.keys`.
        catalog: the destination table.
        origin: name of the session's replication origin.
        part: higher than that of all sets of the transaction before; the others follow it.
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
        # of a restored dump
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
    """Of this transaction's sets, only the times of the rows count: others may have been written, at other times.

    Args:
        origin: name of the session's replication origin.
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
# The sets `s` of the transaction that wrote the row `t`, by its commit `c`; and where the server does not know that any
# more, by the numbers alone.
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
    """The origin and the number of the transaction that wrote the row `t`, if it noted sets of the table.

    As SQL: text, else NULL. The transaction is committed as `c` says.

    Args:
        catalog: the destination table.
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
    """The condition that all rows of the table that the writer of the row `t` wrote were changed before a moment, as SQL; NULL: not known.

    Args:
        catalog: the destination table.
        earliest: the moment.
        has_time: the server knows the row's commit, as `c`; else what is found is of the same part of the transaction.
    """
    return (
        f"(SELECT pg_catalog.bool_and(COALESCE(s.latest OPERATOR(pg_catalog.<) {earliest}, false))"
        f" {_BY_COMMIT if has_time else _BY_NUMBER} AND s.relation OPERATOR(pg_catalog.=) {catalog.oid})"
    )


@dataclass(frozen=True, slots=True)
class SetOfRow:
    """The transaction that wrote a row, and noted sets: its origin and number."""

    origin: int
    number: int


@dataclass(frozen=True, slots=True)
class _Noted:
    """What is noted of a transaction's rows of a table.

    `times` has the keys that are asked for, sorted, None: not kept any more; `earliest_us` None: others may have been
    written.
    """

    source: str
    rank: int
    key_form: int
    earliest_us: int | None
    latest_us: int | None
    times: NDArray[Any] | None

    def last_change(self, found: LastChange, times: WriteTimes, row: int) -> LastChange:
        """What is known of a row's last change; `found` itself if nothing is noted of it."""
        comparable = times.keys is not None and self.times is not None and self.key_form == times.key_form
        at = self._exact(times.keys[row]) if comparable and times.keys is not None else None
        if not comparable and self.earliest_us is not None and self.latest_us is not None:
            mine = int(times.times_us[row])
            at = self.latest_us if self.latest_us < mine else self.earliest_us if mine < self.earliest_us else None
        if at is None and self.source == times.source:
            at = int(times.times_us[row])  # or earlier: a source's changes come in its order
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
    """The last changes of rows by the sets that are noted.

    Args:
        ask: runs a statement in the session's transaction.
        catalog: the destination table.
        times: of the write; with the keys that are asked for.
        found: one for each row of the write: what is known without sets, and the row's set.
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


# number in its transaction, source, rank, form of the key, earliest, latest, whether the rows' times are there
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
    """The times of the rows with some keys, sorted by key; None: not all are kept any more, or hashes do not compare."""
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
    return every[np.argsort(every["key"], kind="stable")]  # of several of one key the last one counts


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
# Of a transaction all sets go or none: those that are left would be taken for all. Another session that forgets at the
# same time forgets the same.
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
    """Forget old sets, and the times of the rows of those that are too many.

    Args:
        connection: to the destination, in autocommit mode, in no transaction.
        age_s: what is younger stays, seconds.
        count: so many notes' room may be taken.

    Returns:
        How many sets were forgotten.
    """
    connection.execute(_FORGET_TIMES.encode(), (count * _PER_NOTE,))
    return connection.execute(_FORGET_SETS.encode(), (count, age_s)).rowcount
