"""Upper bounds for change times whose commit timestamp the server has lost.

`pg_xact_commit_timestamp(xmin)` gives the time of a site's own change. The server keeps these times only back to the
oldest `datfrozenxid` of its databases. Autovacuum moves that limit forward by itself, sometimes from weeks ago to a
minute ago. pg_upgrade, and switching `track_commit_timestamp` off and on, lose all times. The numbers of transactions
stay, in the rows and in the samples.

From time to time a session notes a *sample*: the number of a transaction, and a moment at which every transaction with
a lower number had ended. A row whose time is lost was changed no later than the moment of the first sample above its
xmin. An arriving change that is later than that moment is the later one. Otherwise the order is unknown, and the change
goes to the error queue. Only rows without a time need samples, and only for changes that are not later than the newest
sample; changes that arrive in time cost nothing.

A row that an apply process wrote and noted has the xmin of its note. So no session of the site has changed it since,
whatever times are lost.

Samples are rows of `headrace.row_change` with relation 0, which no table has. key1 is the transaction, key2 is 1, and
changed_at is the moment (NULL while lower transactions still run). source is the number of the transaction that wrote
the sample.

A restored dump has other numbers in its rows; a mismatch in its samples reveals it. The restored notes refer to tables
with other OIDs, and are deleted. A row with relation 0 and key2 2 is the *mark*: transactions below key1 may be the
restore. A row that one of them wrote was changed at an unknown time up to the commit of the restore. So a change from
the time between, which the site must receive again, is not discarded as an earlier one.

Worked flow (numbers of transactions; times of the day)
    sample 500: all below had ended at 9:00     a user's UPDATE is 730, committed at 9:04     sample 900: 9:10
    autovacuum: everything below 2000 is lost   the row was changed at 9:10 or earlier
    an LCR of 9:11 is applied; one of 9:07 may be earlier or later: error queue

Source: PostgreSQL 15, "Commit Timestamp Functions", "Preventing Transaction ID Wraparound Failures".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

__all__ = [
    "PG_EPOCH_US",
    "is_of_this_server",
    "is_restored",
    "keep_noted_times",
    "lost_until",
    "microseconds",
    "sample_times",
    "samples",
    "was_earlier",
    "was_lost",
    "whole_number",
]

PG_EPOCH_US = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970: where the server's binary timestamps begin."""
_WINDOW = 64  # consecutive transactions without a time that count as lost, not as rolled back
# transactions searched for one with the time of this server's clock; apply sessions stamp their commits otherwise
_OWN_WINDOW = 10_000
_UNFROZEN_S = 86_400.0
"""Assumed duration of the longest transaction whose time was lost before the first sample; few run longer than a day."""
_KEPT_AT_ONCE = 200_000  # notes per call: a second or two, in which the apply server applies nothing

_IS_SAMPLE = "s.relation OPERATOR(pg_catalog.=) 0 AND s.key2 OPERATOR(pg_catalog.=) 1"
_IS_MARK = "s.relation OPERATOR(pg_catalog.=) 0 AND s.key2 OPERATOR(pg_catalog.=) 2"
_AT = "pg_catalog.pg_xact_commit_timestamp(pg_catalog.xid({}::pg_catalog.text::pg_catalog.xid8))"
# the xmin, as text, of rows that this transaction writes
_MINE = "pg_catalog.xid(pg_catalog.pg_current_xact_id())::pg_catalog.text"
# No (SELECT ...) around these, nor in any other part of a set's condition on a row: it could crash the server. When a
# set waits for several rows, PostgreSQL 15 to 18 (EvalPlanQualBegin) replace the result of such a SELECT inside another
# one that belongs to the row by zero or a null pointer.
# Number below which all transactions have ended.
_ENDED = "pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::pg_catalog.text::pg_catalog.int8"
# The statement's transaction can have a higher number than its snapshot, but hardly by a million.
_NEXT = (
    "(pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::pg_catalog.text::pg_catalog.int8"
    " OPERATOR(pg_catalog.+) 1000000)"
)


# The arguments and results of these functions are SQL; `xmin` is that of a row.


def microseconds(moment: str) -> str:
    """Return SQL for a moment in microseconds since the epoch.

    Args:
        moment: timestamptz, as SQL.
    """
    return f"(EXTRACT(epoch FROM {moment}) * 1000000)::pg_catalog.int8"


def whole_number(xmin: str) -> str:
    """Return SQL for the 64-bit number of a transaction: the newest one with these 32 bits.

    The true number may be lower, which makes the change only earlier.
    """
    behind = (
        f"(({_NEXT} OPERATOR(pg_catalog.-) {xmin}::pg_catalog.text::pg_catalog.int8) OPERATOR(pg_catalog.&) 4294967295)"
    )
    return f"({_NEXT} OPERATOR(pg_catalog.-) {behind})"


def lost_until(xmin: str) -> str:
    """Return SQL for a moment at which the transaction had ended; NULL when unknown."""
    return (
        f"(SELECT s.changed_at FROM headrace.row_change s WHERE {_IS_SAMPLE} AND s.key1 OPERATOR(pg_catalog.>)"
        f" {whole_number(xmin)} AND s.changed_at IS NOT NULL ORDER BY s.key1 LIMIT 1)"
    )


def was_lost(xmin: str) -> str:
    """Return the condition that a row without a commit time has lost it.

    A row of the present transaction has no commit time yet, and does not count as lost.
    """
    return f"{whole_number(xmin)} OPERATOR(pg_catalog.<) {_ENDED}"


def was_earlier(xmin: str, at: str) -> str:
    """Return the condition that a row with a lost commit time was changed before a moment; NULL when unknown."""
    return f"({at} OPERATOR(pg_catalog.>) {lost_until(xmin)})"


def is_of_this_server(row: str, number: str) -> str:
    """Return the condition that a row of `headrace.row_change` was written here, and not by the restore of a dump.

    Such a row contains the number of the transaction that wrote it.

    Args:
        row: alias of the table.
        number: the number in the row, int8, as SQL.
    """
    return f"{row}.xmin OPERATOR(pg_catalog.=) pg_catalog.xid({number}::pg_catalog.text::pg_catalog.xid8)"


def is_restored(xmin: str) -> str:
    """Return the condition that a row may have come with a dump, so that its commit time is that of the restore."""
    return (
        f"EXISTS (SELECT FROM headrace.row_change s WHERE {_IS_MARK} AND s.key1 OPERATOR(pg_catalog.>)"
        f" {whole_number(xmin)})"
    )


# ------------------------------------------------------------------ samples

_FOREIGN = f"DELETE FROM headrace.row_change s WHERE {_IS_SAMPLE} AND s.xmin::pg_catalog.text <> s.source"
_INSERT = "INSERT INTO headrace.row_change AS r (relation, key1, key2, changed_at, rank, is_gone, source)"
# Nothing was noted here before the first sample. The session that detects the restore first locks the foreign samples;
# other sessions then find them deleted.
_FORGET_RESTORED = (
    "DELETE FROM headrace.row_change_set_time",
    "DELETE FROM headrace.row_change_set",
    "DELETE FROM headrace.row_change",
    f"{_INSERT} VALUES (0, 0, 0, clock_timestamp(), 0, false, '')",
    f"{_INSERT} SELECT 0, pg_catalog.pg_current_xact_id()::pg_catalog.text::pg_catalog.int8, 2, NULL, 0, false,"
    f" {_MINE}",
)
_SAMPLE = f"""{_INSERT}
SELECT 0, pg_catalog.pg_current_xact_id()::pg_catalog.text::pg_catalog.int8, 1, NULL, 0, false, {_MINE}
WHERE NOT EXISTS (SELECT FROM headrace.row_change s WHERE {_IS_SAMPLE} AND pg_catalog.abs(EXTRACT(epoch FROM
    pg_catalog.clock_timestamp() - COALESCE(s.changed_at, {_AT.format("s.key1")}))) < %s)
ON CONFLICT DO NOTHING
"""
# Never earlier than the samples below it, even when the clock was set back.
_END = f"""UPDATE headrace.row_change s SET source = {_MINE},
changed_at = GREATEST(pg_catalog.clock_timestamp(), (SELECT pg_catalog.max(o.changed_at) FROM headrace.row_change o WHERE {_IS_SAMPLE.replace("s.", "o.")}))
WHERE {_IS_SAMPLE} AND s.changed_at IS NULL AND s.key1 < {_ENDED}
"""
# The newest of the samples that are too old stays: it bounds the times of all rows that were changed earlier.
_OLD = f"""DELETE FROM headrace.row_change s WHERE {_IS_SAMPLE} AND s.key1 < (
    SELECT pg_catalog.max(o.key1) FROM headrace.row_change o WHERE {_IS_SAMPLE.replace("s.", "o.")}
    AND o.changed_at < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => %s::double precision))
"""
_WHERE = """SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8,
(SELECT max(pg_catalog.age(d.datfrozenxid)) FROM pg_catalog.pg_database d)"""
# Numbers below 3 are not ordinary transactions; for 0 the server raises an error.
_KNOWN = f"""SELECT n, c."timestamp" FROM pg_catalog.generate_series(%s::int8, %s::int8) n,
LATERAL {_AT.format("CASE WHEN n & 4294967295 > 2 THEN n ELSE 3 END").replace("_timestamp", "_timestamp_origin")} c
WHERE c."timestamp" IS NOT NULL AND (c.roident = 0 OR %s) ORDER BY n LIMIT 1"""
_FIRST = f"""{_INSERT}
SELECT 0, LEAST(%s::int8, {_ENDED}), 1, LEAST(pg_catalog.clock_timestamp(), %s::timestamptz + pg_catalog.make_interval(secs => %s::double precision)), 0, false, {_MINE}
ON CONFLICT DO NOTHING"""


def samples() -> str:
    """Return a query for the samples: number below which all had ended, as text, and the moment in microseconds.

    The moment counts from the epoch. The first sample, a guess, is omitted.
    """
    taken = f"{_IS_SAMPLE} AND s.changed_at IS NOT NULL AND s.xmin::pg_catalog.text OPERATOR(pg_catalog.=) s.source"
    return (
        f"SELECT s.key1::pg_catalog.text, {microseconds('s.changed_at')} FROM headrace.row_change s"
        f" WHERE {taken} AND s.key1 OPERATOR(pg_catalog.>) (SELECT pg_catalog.min(s.key1) FROM headrace.row_change s"
        f" WHERE {taken})"
    )


def sample_times(connection: psycopg.Connection[Any], *, age_s: float, every_s: float) -> None:
    """Note a sample, complete earlier ones and delete old ones.

    Args:
        connection: connection to the destination, in autocommit mode, outside a transaction.
        age_s: age beyond which changes need not be ordered, seconds.
        every_s: minimum interval between samples, seconds.
    """
    with connection.transaction():
        if connection.execute(_FOREIGN.encode()).rowcount:
            for statement in _FORGET_RESTORED:
                connection.execute(statement.encode())
        row = connection.execute(
            f"SELECT EXISTS (SELECT FROM headrace.row_change s WHERE {_IS_SAMPLE})".encode()
        ).fetchone()
        if row is None or not row[0]:
            _begin(connection)
        connection.execute(_SAMPLE.encode(), (every_s,))
    connection.execute(_END.encode())
    connection.execute(_OLD.encode(), (age_s,))


def _begin(connection: psycopg.Connection[Any]) -> None:
    """Note the first sample: the oldest transaction with a known time, so that rows with earlier lost times count as old."""
    row = connection.execute(_WHERE.encode()).fetchone()
    assert row is not None
    end, frozen_age = row
    low, high = max(end - 2**31, 2), end
    while high - low > 1:
        middle = (low + high) // 2
        is_known = (
            connection.execute(_KNOWN.encode(), (middle, min(middle + _WINDOW, end) - 1, True)).fetchone() is not None
        )
        low, high = (low, middle) if is_known else (middle, high)
    found = connection.execute(_KNOWN.encode(), (high, min(high + _OWN_WINDOW, end) - 1, False)).fetchone()
    if found is None:
        return
    number, at = found
    # When more times are lost than are frozen, the server began to keep times at its start, when no transaction was
    # running. Transactions that began later and still run are not below the sample.
    is_frozen = high - (end - frozen_age) <= _WINDOW
    connection.execute(_FIRST.encode(), (number, at, _UNFROZEN_S if is_frozen else 0.0))


# ------------------------------------------------------------------ notes

# A note that has lost its time keeps a bound: `rank` -1 means that the change was made at `changed_at` or earlier.
_KEEP = f"""
WITH due AS MATERIALIZED (
    SELECT r.relation, r.key1, r.key2, pg_catalog.pg_xact_commit_timestamp(r.xmin) AS at, {lost_until("r.xmin")} AS until
    FROM headrace.row_change r WHERE r.relation <> 0 AND r.changed_at IS NULL LIMIT {_KEPT_AT_ONCE} FOR UPDATE OF r SKIP LOCKED)
UPDATE headrace.row_change r SET changed_at = COALESCE(due.at, due.until), rank = CASE WHEN due.at IS NULL THEN -1 ELSE r.rank END
FROM due WHERE (r.relation, r.key1, r.key2) = (due.relation, due.key1, due.key2) AND COALESCE(due.at, due.until) IS NOT NULL
"""


def keep_noted_times(connection: psycopg.Connection[Any]) -> None:
    """Write the times of deletes by sessions into their notes, so that the server cannot lose them.

    Args:
        connection: connection to the destination, in autocommit mode, outside a transaction.
    """
    connection.execute(_KEEP.encode())
