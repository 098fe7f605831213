"""Time and site of rows' last changes: `headrace.row_change`, only for tables with latest_timestamp.

Apply processes note their changes there with the commit time at the source, by the hash of the key, in the transaction
of the data. Changes by sessions of this site are not noted. Their rows carry the number of the transaction (xmin); the
server knows its commit time (`track_commit_timestamp`), and that it has no origin. So users pay nothing, except for
deletes, which leave no row. The trigger that `headrace.keep_tombstones` makes notes deletes without a time; their time
is the commit time of the note itself. The server does not keep commit times for long: `lost_times` has bounds for rows
and notes without one.

A statement that writes rows skips those that were changed later here (`recent_changes`). The next statement notes their
times, unless a later time is noted. A session's DELETE uses the same order: it locks the row, then the note. The second
of two transactions waits at the row or at the note, and then sees the result of the first (READ COMMITTED evaluates the
conditions on `t.xmin` and on the note again).

When a site applies changes of several sites, the rows of a set share one note, and only deletes are noted here
(`noted_sets`). Each row has its own note when the session may not stamp its commits, or a key has no hash
(`WriteTimes.notes_rows`).

When a site applies changes of only one other site (`WriteTimes.has_one_source`), only deletes are noted. An existing row
was changed either by that site, whose changes come in order, or by a session of this site, whose time the server knows.
The missing notes matter when a second source is added: then the time of the row's commit here is the upper bound for
the first source's change (`LastChange.applied_us`).

A source's clock may be ahead. A transaction that noted such a time waits before its COMMIT until this server's clock has
passed it. So a later change of the row here commits at a later time, whatever the clocks say. `CLOCK_AHEAD_MAX_S`
bounds that wait.

Source: PostgreSQL 15, "Commit Timestamp Functions", "Replication Progress Tracking".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg

from headrace.base.errors import DatabaseError
from headrace.databases.ports import LastChange
from headrace.databases.postgres.catalog.destination_tables import CatalogTable
from headrace.databases.postgres.destination.fencing import MEETING_LOCKS
from headrace.databases.postgres.destination.row_times.lost_times import (
    PG_EPOCH_US,
    is_restored,
    keep_noted_times,
    lost_until,
    microseconds,
    was_lost,
)
from headrace.databases.postgres.destination.row_times.noted_sets import SetOfRow, forget_sets, set_of_row
from headrace.databases.postgres.destination.row_times.recent_changes import (
    applied_from,
    applied_until,
    is_noted,
    key_hashes,
    note_of,
    older_operator,
)
from headrace.databases.postgres.destination.writing.writes import (
    SetBuilder,
    WritePlan,
    keyed,
    located,
    numbered,
)
from headrace.databases.postgres.pipeline import Statement
from headrace.lcr.batch import Command
from headrace.lcr.cutting import select_values
from headrace.lcr.table_name import literal

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from headrace.databases.ports import Write, WriteTimes

__all__ = [
    "CLOCK_AHEAD_MAX_S",
    "QUOTED_SCHEMA",
    "SCHEMA",
    "forget_changes",
    "looks_at_notes",
    "meeting_point",
    "noted_later",
    "noted_writes",
    "plan_last_changes",
    "read_last_changes",
    "wait_for_clock",
    "with_notes",
]

CLOCK_AHEAD_MAX_S = 5.0
"""Limit by which a source's clock may be ahead of this server's; rows stay locked while a commit waits for it.

Time services keep clocks within a fraction of a second, so a larger difference means a wrong clock.
"""

_FORGOTTEN_MAX = 200_000  # notes per call: a second or two, in which the apply server applies nothing
_FORGOTTEN_KEY = "relation = 0 AND key1 = 0 AND key2 = 0"  # the note of the newest deleted note; no table has OID 0

SCHEMA = (
    # A key's note is updated repeatedly: free space in the page keeps the updates out of the index.
    """CREATE TABLE headrace.row_change (
    relation oid NOT NULL, key1 bigint NOT NULL, key2 bigint NOT NULL, changed_at timestamptz, rank smallint NOT NULL,
    is_gone boolean NOT NULL, source text NOT NULL, PRIMARY KEY (relation, key1, key2)
) WITH (fillfactor = 80)""",
    """CREATE FUNCTION headrace.keep_tombstones(of_table regclass) RETURNS void LANGUAGE plpgsql AS $made$
DECLARE
    old_key text; new_key text; named text := pg_catalog.format('headrace.note_gone_%s', of_table::oid::bigint);
BEGIN
    SELECT pg_catalog.string_agg(pg_catalog.format('OLD.%I', a.attname), ', ' ORDER BY a.attnum),
           pg_catalog.string_agg(pg_catalog.format('NEW.%I', a.attname), ', ' ORDER BY a.attnum) INTO old_key, new_key
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
    WHERE i.indrelid = of_table AND i.indisprimary;
    IF old_key IS NULL THEN
        RAISE EXCEPTION 'table % has no primary key', of_table USING ERRCODE = 'invalid_parameter_value';
    END IF;
    EXECUTE pg_catalog.format($text$CREATE OR REPLACE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = '' AS $body$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF ROW(%s) IS NOT DISTINCT FROM ROW(%s) THEN
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO headrace.row_change AS r (relation, key1, key2, changed_at, rank, is_gone, source)
    VALUES (%s, pg_catalog.hash_record_extended(ROW(%s), 0), pg_catalog.hash_record_extended(ROW(%s), 1), NULL, 0, true, '')
    ON CONFLICT (relation, key1, key2) DO UPDATE SET changed_at = NULL, rank = 0, is_gone = true, source = '';
    RETURN NULL;
END
$body$$text$, named, old_key, new_key, of_table::oid::bigint, old_key, old_key);
    EXECUTE pg_catalog.format('DROP TRIGGER IF EXISTS headrace_tombstones ON %s', of_table);
    EXECUTE pg_catalog.format('CREATE TRIGGER headrace_tombstones AFTER DELETE OR UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION %s()', of_table, named);
END
$made$""",
)

QUOTED_SCHEMA = (
    # The table's owner chooses the names of key columns, so the body is a literal that no name can end. The trigger
    # function has its creator's rights, so no other role may attach it to its own table. An existing trigger fires
    # without that right.
    """CREATE OR REPLACE FUNCTION headrace.keep_tombstones(of_table regclass) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $made$
DECLARE
    number text := of_table::oid::bigint::text; named text := 'headrace.note_gone_' || of_table::oid::bigint; old_key text; new_key text;
BEGIN
    SELECT string_agg(format('OLD.%I', a.attname), ', ' ORDER BY a.attnum), string_agg(format('NEW.%I', a.attname), ', ' ORDER BY a.attnum)
    INTO old_key, new_key
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
    WHERE i.indrelid = of_table AND i.indisprimary;
    IF old_key IS NULL THEN
        RAISE EXCEPTION 'table % has no primary key', of_table USING ERRCODE = 'invalid_parameter_value';
    END IF;
    EXECUTE format($text$CREATE OR REPLACE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = '' AS %L$text$, named, format($body$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF ROW(%1$s) IS NOT DISTINCT FROM ROW(%2$s) THEN
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO headrace.row_change AS r (relation, key1, key2, changed_at, rank, is_gone, source)
    VALUES (%3$s, pg_catalog.hash_record_extended(ROW(%1$s), 0), pg_catalog.hash_record_extended(ROW(%1$s), 1), NULL, 0, true, '')
    ON CONFLICT (relation, key1, key2) DO UPDATE SET changed_at = NULL, rank = 0, is_gone = true, source = '';
    RETURN NULL;
END
$body$, old_key, new_key, number));
    EXECUTE format('REVOKE ALL ON FUNCTION %s() FROM PUBLIC', named);
    EXECUTE format('DROP TRIGGER IF EXISTS headrace_tombstones ON %s', of_table);
    EXECUTE format('CREATE TRIGGER headrace_tombstones AFTER DELETE OR UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION %s()', of_table, named);
END
$made$""",
    "REVOKE ALL ON FUNCTION headrace.keep_tombstones(regclass) FROM PUBLIC",
)

_NOTED = "COALESCE(r.changed_at, pg_catalog.pg_xact_commit_timestamp(r.xmin))"
_LOST = (
    "CASE WHEN r.rank OPERATOR(pg_catalog.<) 0 THEN r.changed_at"
    f" WHEN r.relation IS NOT NULL AND {_NOTED} IS NULL THEN COALESCE({lost_until('r.xmin')},"
    " pg_catalog.clock_timestamp()) END"
)


def _key(write: Write, catalog: CatalogTable) -> list[int]:
    """Return the table's key as positions in a write's version, in the table's order, which the trigger uses.

    Raises:
        DatabaseError: the LCRs do not carry the whole key.
    """
    places = {column.name: place for place, column in enumerate(write.version.columns)}
    lacking = [name for place in catalog.table.key if (name := catalog.table.columns[place].name) not in places]
    if lacking:  # the key was altered since `up` checked it
        raise DatabaseError(
            f"latest_timestamp identifies rows of {write.version.qualified_name} by the key of the destination's table,"
            f" but {', '.join(lacking)} of it does not arrive",
            hint="define the destination's primary key on replicated columns, then start the apply process (`headrace start"
            " FILE apply:NAME`)",
            table=write.version.qualified_name,
        )
    return [places[catalog.table.columns[place].name] for place in sorted(catalog.table.key)]


def _hashes(write: Write, catalog: CatalogTable, *, new: frozenset[int] = frozenset()) -> tuple[str, str]:
    """Return `key_hashes` of a key in the set `u`.

    Args:
        write: the write of the set.
        catalog: the destination table.
        new: positions whose new values are used; the others use old values.
    """
    columns = {
        place: catalog.columns[catalog.positions[write.version.columns[place].name]] for place in _key(write, catalog)
    }
    # A hash depends on the collation. It must be that of the key's column, as in the trigger, so that equal keys match.
    return key_hashes(
        ", ".join(column.collated(f"u.{'n' if place in new else 'o'}{place}") for place, column in columns.items())
    )


def _note_is_older(times: WriteTimes, at: str, rank: str, *, has_row: bool = False) -> str:
    """Return the condition that note `r` is older than a change.

    Args:
        times: times of the write.
        at: time of the change, as SQL.
        rank: rank of the change, as SQL.
        has_row: the key has a row, which is locked.
    """
    gone = "" if times.has_tombstones else " OR r.is_gone"
    if has_row:
        gone += " OR r.source OPERATOR(pg_catalog.=) ''"  # a session's delete of an earlier row of this key
    own = (
        f"CASE WHEN r.rank OPERATOR(pg_catalog.<) 0 THEN r.changed_at OPERATOR(pg_catalog.<) {at}"
        f" ELSE COALESCE({_NOTED} OPERATOR(pg_catalog.{older_operator(times)}) {at}, {lost_until('r.xmin')}"
        f" OPERATOR(pg_catalog.<) {at}, false) END"
    )
    return (
        f"(r.source OPERATOR(pg_catalog.=) {literal(times.source)}{gone} OR CASE WHEN r.source OPERATOR(pg_catalog.=)"
        f" '' THEN {own}"
        f" ELSE r.changed_at OPERATOR(pg_catalog.<) {at} OR (r.changed_at OPERATOR(pg_catalog.=) {at} AND r.rank"
        f" OPERATOR(pg_catalog.<=) {rank}) END)"
    )


def with_notes(plan: WritePlan, write: Write, catalog: CatalogTable, generation: int) -> WritePlan:
    """Extend a plan by the notes of its write: first for keys that rows lose, then for keys that they have afterwards.

    Args:
        plan: plan of the write.
        write: write with `times`.
        catalog: the destination table; every column of the version fits.
        generation: generation of the session's types (`writes.wrapper_name`).
    """
    times = write.times
    assert times is not None
    key = _key(write, catalog)
    new = _new_key(write, key)
    is_moving = write.command is Command.UPDATE and bool(new)
    has_row = times.is_decided and write.command is not Command.INSERT
    kinds = []
    if (write.command is Command.DELETE or is_moving) and (times.has_tombstones or times.notes_rows):
        kinds.append((frozenset[int](), True))
    if write.command is not Command.DELETE and times.notes_rows:
        kinds.append((new, False))
    notes, wrapped = [], dict.fromkeys(plan.wrapped)
    for taken, is_gone in kinds:
        builder = SetBuilder(
            write, catalog, generation, old=[p for p in key if p not in taken], new=[p for p in key if p in taken]
        )
        hashes = ", ".join(_hashes(write, catalog, new=taken))
        sql = (
            f"INSERT INTO headrace.row_change AS r (relation, key1, key2, changed_at, rank, is_gone, source)"
            f" SELECT {catalog.oid}, {hashes}, u.at, {times.rank}, {'true' if is_gone else 'false'},"
            f" {literal(times.source)} FROM ({builder.select(timed=True)}) u"
            " ON CONFLICT (relation, key1, key2) DO UPDATE SET changed_at = excluded.changed_at, rank = excluded.rank,"
            " is_gone = excluded.is_gone, source = excluded.source"
            f" WHERE {_note_is_older(times, 'excluded.changed_at', 'excluded.rank', has_row=has_row)}"
        )
        notes.append(builder.statement(sql))
        wrapped |= dict.fromkeys(builder.wrapped.values())
    checks = []
    if not times.notes_rows and times.has_tombstones and new:
        builder = SetBuilder(
            write, catalog, generation, old=[p for p in key if p not in new], new=[p for p in key if p in new]
        )
        checks.append(
            builder.statement(
                f"SELECT FROM ({builder.select(timed=True)}) u WHERE {noted_later(write, catalog, new=new)}"
            )
        )
        wrapped |= dict.fromkeys(builder.wrapped.values())
    return replace(plan, notes=tuple(notes), checks=tuple(checks), wrapped=tuple(wrapped))


def _new_key(write: Write, key: list[int]) -> frozenset[int]:
    """Return the positions of key columns whose new values a write sets."""
    if write.command is Command.INSERT:
        return frozenset(key)
    if write.times is not None and write.times.keeps_key:
        return frozenset()
    return frozenset(place for place in key if write.command is Command.UPDATE and place in write.set_columns)


def noted_writes(write: Write) -> Iterator[Write]:
    """Yield the writes whose times must be noted, in order: all rows, then those with several changes.

    A later note wins over an earlier one. The first change of a row decides this, and the time of the last change is
    recorded, as if the changes came one by one.

    Args:
        write: the write; without `times` there is nothing to note.
    """
    if write.times is None:
        return
    yield write
    if write.times.noted_us is None:
        return
    several = np.flatnonzero(write.times.noted_us != write.times.times_us)
    if several.shape[0]:
        times = replace(write.times, times_us=write.times.noted_us[several], noted_us=None)
        yield replace(write, old=select_values(write.old, several), new=select_values(write.new, several), times=times)


def looks_at_notes(write: Write) -> bool:
    """Return whether notes by key can show that a write's rows were changed later.

    When only deletes have such notes, they do not matter for a write that finds rows.
    """
    times = write.times
    if times is None or times.notes_rows:
        return times is not None
    return times.has_tombstones and write.command is not Command.UPDATE


def noted_later(write: Write, catalog: CatalogTable, *, new: frozenset[int] | None = None) -> str:
    """Return the condition that a later change of a key in the set `u`, which has each row's time, is noted.

    Args:
        write: write with `times`.
        catalog: the destination table.
        new: positions of the key whose new values are used. None: new values for an INSERT, else old values.
    """
    assert write.times is not None
    if new is None:
        new = frozenset(_key(write, catalog)) if write.command is Command.INSERT else frozenset()
    return (
        f"EXISTS (SELECT FROM headrace.row_change r WHERE {note_of(catalog, _hashes(write, catalog, new=new))}"
        f" AND NOT {_note_is_older(write.times, 'u.at', str(write.times.rank))})"
    )


def plan_last_changes(write: Write, catalog: CatalogTable, generation: int) -> WritePlan:
    """Plan the statement that reads the last change of each row of a write.

    Args:
        write: the write, with any number of rows.
        catalog: the destination table; every column of the version fits.
        generation: generation of the session's types (`writes.wrapper_name`).
    """
    find = located(write, catalog).find
    builder = SetBuilder(write, catalog, generation, old=find, new=[])
    own = (
        f"SELECT {microseconds('c.timestamp')} FROM {catalog.relation} t,"
        " LATERAL pg_catalog.pg_xact_commit_timestamp_origin(t.xmin) c"
        f" WHERE {keyed(builder, find, [])} AND c.roident OPERATOR(pg_catalog.=) 0 AND NOT {is_restored('t.xmin')}"
    )
    # A row with the xmin of its note is as an apply process left it. A row of a process that notes only deletes has no
    # note.
    applied = (
        "SELECT {} FROM"
        f" {catalog.relation} t, LATERAL pg_catalog.pg_xact_commit_timestamp_origin(t.xmin) c WHERE"
        f" {keyed(builder, find, [])} AND c.roident OPERATOR(pg_catalog.<>) 0 AND ({is_noted('r', 't')}) IS NOT TRUE"
    )
    lost = (
        f'SELECT COALESCE(c."timestamp", {lost_until("t.xmin")}, pg_catalog.clock_timestamp()) FROM {catalog.relation} t,'
        f" LATERAL pg_catalog.pg_xact_commit_timestamp_origin(t.xmin) c WHERE {keyed(builder, find, [])} AND"
        f" ({is_noted('r', 't')}) IS NOT TRUE"
        f' AND CASE WHEN c."timestamp" IS NULL THEN {was_lost("t.xmin")} ELSE c.roident OPERATOR(pg_catalog.=) 0 AND'
        f" {is_restored('t.xmin')} END"
    )
    number = (
        f"SELECT {set_of_row(catalog)} FROM {catalog.relation} t, LATERAL"
        f" pg_catalog.pg_xact_commit_timestamp_origin(t.xmin) c WHERE {keyed(builder, find, [])} AND"
        f" ({is_noted('r', 't')}) IS NOT TRUE"
    )
    lost_note = _LOST if write.times is not None and write.times.has_tombstones else "NULL"
    forgotten = (
        f"SELECT {microseconds('f.changed_at')} FROM headrace.row_change f WHERE"
        f" f.{_FORGOTTEN_KEY.replace(' AND ', ' AND f.')}"
    )
    sql = (
        f"SELECT ({own}), CASE WHEN r.rank OPERATOR(pg_catalog.>=) 0 THEN {microseconds(_NOTED)} END, r.rank, r.source,"
        f" r.is_gone, ({forgotten}),"
        f" {microseconds(f'GREATEST(({lost}), {lost_note})')},"
        f" ({applied.format(microseconds(applied_until('c', 't.xmin')))}),"
        f" ({applied.format(applied_from('c.roident', 't.xmin'))}), ({number}) FROM {numbered(builder)} LEFT JOIN"
        f" headrace.row_change r ON {note_of(catalog, _hashes(write, catalog))} ORDER BY u.r"
    )
    return WritePlan(statements=(builder.statement(sql),), wrapped=tuple(builder.wrapped.values()))


def read_last_changes(result: PGresult) -> Iterator[tuple[LastChange, SetOfRow | None]]:
    """Read the result of `plan_last_changes`: each row's last change as known without noted sets, and its set."""
    for row in range(result.ntuples):
        own, noted, rank, source, gone, forgotten, lost, applied, applied_source, number = (
            result.get_value(row, place) for place in range(10)
        )
        found = LastChange(
            own_us=None if own is None else int(own), forgotten_us=int(forgotten or 0), lost_us=int(lost or 0)
        )
        of_row = None if number is None else SetOfRow(*map(int, number.split(b" ")))
        if applied is not None and applied_source is not None:  # the note is of an earlier change
            yield replace(found, applied_us=int(applied), applied_source=applied_source.decode()), of_row
        else:
            yield (
                replace(
                    found,
                    noted_us=None if noted is None else int(noted),
                    noted_rank=int(rank or 0),
                    noted_source=(source or b"").decode(),
                    is_gone=gone == b"t",
                ),
                of_row,
            )


def meeting_point(write: Write, catalog: CatalogTable) -> list[Statement]:
    """Return statements that order the creation of a row against the note of a delete that finds no row.

    The two transactions do not see each other before they commit, so the second one must wait.

    A transaction that creates rows holds its source's lock in share mode, and checks the notes after its write. A
    transaction that notes such a delete takes the other sources' locks exclusively, and then checks for a row. A session
    of this site holds no lock. If it is still running when the clock has passed the delete's time, it commits later
    than the delete.

    Args:
        write: a write that was not sent yet.
        catalog: the destination table.
    """
    times = write.times
    if times is None or not times.has_tombstones:
        return []
    if write.command is Command.DELETE:
        if times.awaited is None:
            return []
        locks = (
            []
            if times.has_one_source
            else [_lock(catalog, source, is_shared=False) for source in sorted(times.awaited)]
        )
        return [
            *locks,
            _clock(
                int(times.times_us.max()),
                f"pg_catalog.pg_sleep(LEAST(c.ahead, {CLOCK_AHEAD_MAX_S})::pg_catalog.float8 OPERATOR(pg_catalog.+)"
                " 0.001)::text",
            ),
        ]
    is_making = not times.has_one_source and _new_key(write, _key(write, catalog))
    return [_lock(catalog, times.source, is_shared=True)] if is_making else []


def _lock(catalog: CatalogTable, source: str, *, is_shared: bool) -> Statement:
    number = int.from_bytes(hashlib.sha256(f"{catalog.oid} {source}".encode()).digest()[:4], "big", signed=True)
    return Statement(
        sql=f"SELECT pg_catalog.pg_advisory_xact_lock{'_shared' if is_shared else ''}({MEETING_LOCKS}, {number})"
    )


def wait_for_clock(latest_us: int) -> Statement:
    """Return the statement that waits until the server's clock has passed a time.

    It fails with a division by zero when the wait would exceed `CLOCK_AHEAD_MAX_S`.

    Args:
        latest_us: latest time that the transaction noted, microseconds since the epoch.
    """
    return _clock(
        latest_us,
        (
            f"CASE WHEN c.ahead OPERATOR(pg_catalog.>) {CLOCK_AHEAD_MAX_S} THEN (1 / (c.ahead OPERATOR(pg_catalog.*)"
            " 0))::text ELSE pg_catalog.pg_sleep(c.ahead::pg_catalog.float8 OPERATOR(pg_catalog.+) 0.001)::text END"
        ),
    )


def _clock(latest_us: int, ahead: str) -> Statement:
    """Return the statement that evaluates the text expression `ahead` when a time is ahead of the clock by `c.ahead` s."""
    at = (latest_us - PG_EPOCH_US).to_bytes(8, "big", signed=True)
    return Statement(
        prepared=True,
        parameters=(at,),
        sql=(
            f"SELECT CASE WHEN c.ahead OPERATOR(pg_catalog.<) 0 THEN NULL ELSE {ahead} END"
            " FROM (SELECT EXTRACT(epoch FROM $1::pg_catalog.timestamptz OPERATOR(pg_catalog.-)"
            " pg_catalog.clock_timestamp()) AS ahead OFFSET 0) c"
        ),
    )


# Deletes notes in storage order: an index by time would cost every note an update. Skips notes that another session has
# locked.
_FORGET = f"""
WITH bound AS (
    SELECT GREATEST(pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => %s::double precision),
        (SELECT at FROM (SELECT {_NOTED} AS at FROM headrace.row_change r WHERE r.relation <> 0
                         ORDER BY 1 DESC NULLS LAST OFFSET %s LIMIT 1) x)) AS at OFFSET 0),
old AS MATERIALIZED (
    SELECT r.relation, r.key1, r.key2, {_NOTED} AS at FROM headrace.row_change r, bound
    WHERE {_NOTED} < bound.at AND r.relation <> 0 LIMIT {_FORGOTTEN_MAX} FOR UPDATE OF r SKIP LOCKED),
gone AS (DELETE FROM headrace.row_change r USING old WHERE (r.relation, r.key1, r.key2) = (old.relation, old.key1, old.key2) RETURNING old.at),
newest AS (SELECT max(at) AS at, count(*) AS gone FROM gone)
INSERT INTO headrace.row_change AS r (relation, key1, key2, changed_at, rank, is_gone, source)
SELECT 0, 0, 0, newest.at, 0, false, '' FROM newest WHERE newest.at IS NOT NULL
ON CONFLICT (relation, key1, key2) DO UPDATE SET changed_at = GREATEST(r.changed_at, excluded.changed_at)
RETURNING (SELECT gone FROM newest)
"""


def forget_changes(connection: psycopg.Connection[Any], *, age_s: float, count: int) -> int:
    """Delete old and surplus notes and sets; return the number of deleted ones.

    Args:
        connection: connection to the destination, outside a transaction.
        age_s: age up to which notes are kept, seconds.
        count: maximum number of notes to keep.
    """
    keep_noted_times(connection)
    sets = forget_sets(connection, age_s=age_s, count=count)
    row = connection.execute(_FORGET.encode(), (age_s, count)).fetchone()
    return sets + (int(row[0]) if row else 0)
