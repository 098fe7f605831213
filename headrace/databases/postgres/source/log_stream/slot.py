"""The slot of a source: how it is made, whether it has what redo needs, and how it survives the promotion of a standby.

From PostgreSQL 17 on a slot is made for failover: a standby with `sync_replication_slots` keeps a copy of it, and has
it when it is promoted. The copy may be behind what the log writer confirmed; a stream begins where redo ends, so
nothing comes twice.
"""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg

from headrace.base.errors import (
    INSTANTIATE_AGAIN,
    LOST_AT_SOURCE,
    DatabaseError,
    DatabaseSetBack,
    DatabaseUnavailable,
    LogGone,
)
from headrace.databases.ports import PlannedStatement
from headrace.databases.postgres.connection import connect, quote, translated
from headrace.databases.postgres.source.log_stream.lsn import format_lsn, parse_lsn
from headrace.databases.postgres.source.log_stream.transactions import whole_number
from headrace.databases.timelines import check_timeline
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.lcr.table_name import literal

__all__ = [
    "MAKES_SLOT",
    "check_last_transaction",
    "check_same_log",
    "check_slot",
    "check_standbys",
    "continues",
    "keep_at_standbys",
    "slot_positions",
    "slot_statement",
    "slot_step",
    "timelines_left",
]

MAKES_SLOT = "SELECT pg_create_logical_replication_slot("
_FAILOVER_SLOTS_FROM = 170000
# of pgoutput's commit message: where the transaction ends in the log, which is its commit SCN
_COMMIT_END = slice(10, 18)
_BEHIND = """
SELECT named FROM unnest(string_to_array(replace(%s, ' ', ''), ',')) named
LEFT JOIN pg_replication_slots s ON s.slot_name = named WHERE s.restart_lsn IS NULL OR s.restart_lsn < %s::pg_lsn
"""


def slot_positions(connection: psycopg.Connection[Any], name: str, start: Scn) -> tuple[int, int]:
    """What the slot was confirmed up to, and where the log ends.

    Args:
        connection: to the source.
        name: of the slot.
        start: how far redo is, for messages.

    Raises:
        LogGone: the slot is not there, or was invalidated.
    """
    reason = "invalidation_reason" if connection.info.server_version >= 170000 else "NULL"
    row = connection.execute(
        f"""
        SELECT confirmed_flush_lsn - '0/0'::pg_lsn, wal_status, pg_current_wal_insert_lsn() - '0/0'::pg_lsn,
               database = current_database() AND plugin = 'pgoutput', {reason}
        FROM pg_replication_slots WHERE slot_name = %s
        """,
        (name,),
    ).fetchone()
    if row is None:
        raise LogGone(
            f"slot {name} does not exist: everything after SCN {scn_text(start)} is gone",
            after_scn=start,
            hint=f"{_why_no_slot(connection)}{INSTANTIATE_AGAIN}",
        )
    if not row[3]:
        raise LogGone(f"slot {name} belongs to another database or plugin", hint="drop it, or rename the topology")
    confirmed = int(row[0] or 0)
    if row[1] == "lost":
        setting = {"idle_timeout": "idle_replication_slot_timeout", "wal_level_insufficient": "wal_level"}.get(
            row[4] or "", "max_slot_wal_keep_size"
        )
        raise LogGone(
            f"slot {name} was invalidated (see {setting}): its WAL after SCN {scn_text(max(start, confirmed))} is gone",
            hint=f"fix {setting} as `headrace check` says; then {INSTANTIATE_AGAIN}",
            after_scn=max(start, confirmed),
        )
    return confirmed, int(row[2])


def check_slot(connection: psycopg.Connection[Any], name: str, start: Scn) -> Scn:
    """Where the stream can begin.

    Args:
        connection: to the source.
        name: of the slot.
        start: where redo ends; FIRST_SCN: there is none.

    Raises:
        LogGone: the slot has not everything after `start`.
        DatabaseSetBack: the log ends below it.
    """
    confirmed, end = slot_positions(connection, name, start)
    if start != FIRST_SCN and confirmed > start:
        raise LogGone(
            f"slot {name} is ahead of the redo log: transactions that committed after SCN {scn_text(start)} and up to"
            f" SCN {scn_text(confirmed)} are missing ({confirmed - start} bytes of log)",
            hint=f"the slot was made again, or advanced by another client: {INSTANTIATE_AGAIN}",
            after_scn=start,
            through_scn=confirmed,
        )
    if start > end:
        raise DatabaseSetBack(
            f"the log ends at SCN {scn_text(end)}, the redo log at SCN {scn_text(start)}: the database was set back to"
            " an older state",
            hint=f"{LOST_AT_SOURCE}: {INSTANTIATE_AGAIN}",
            after_scn=end,
            through_scn=start,
        )
    return start if start != FIRST_SCN else Scn(confirmed)


def check_last_transaction(connection: psycopg.Connection[Any], start: Scn, transaction: int) -> None:
    """See that the server still has the last transaction of the redo log.

    One that was set back has written other log since, perhaps beyond the end of redo: positions alone do not tell. It
    may also have given the transaction's number to another one that committed; so the first refusal is kept
    (`headrace.redo.writing.source_refusal`).

    Args:
        connection: to the source.
        start: where redo ends.
        transaction: the 32-bit number of its last transaction; 0: not known.

    Raises:
        DatabaseSetBack: it has not.
    """
    if not transaction:
        return
    whole = whole_number(connection, transaction)
    try:
        (status,) = connection.execute("SELECT pg_xact_status(%s::text::xid8)", (whole,)).fetchone() or (None,)
    except psycopg.errors.InvalidParameterValue:
        status = "in the future"
    # In progress: committed in the log and not visible yet, as while a synchronous standby is away. None: too old to be
    # known.
    if status in {"in the future", "aborted"}:
        raise DatabaseSetBack(
            f"the redo log ends at SCN {scn_text(start)} with transaction {transaction}, which the database does not"
            f" have (it is {status}): the database was set back to an older state",
            hint=f"{LOST_AT_SOURCE}: {INSTANTIATE_AGAIN}",
            through_scn=start,
        )


def check_same_log(
    connection: psycopg.Connection[Any],
    name: str,
    publication: str,
    start: Scn,
    *,
    binary: bool,
    last_commit_scn: Scn,
    transaction: int,
) -> None:
    """See that what the server has committed up to the end of the redo log is what the log ends with.

    It is asked from the slot's confirmed position on.

    The slot of a database that was set back was set back with it: it is confirmed up to less than redo has. So is the
    slot of a server that crashed, and of a log writer that ended before it confirmed; then the server still has the
    same transactions. The transaction with which both end says which it is: its place in the log and its number. A log
    that is the same there is the same before.

    Args:
        connection: to the source.
        name: of the slot, which nobody reads.
        publication: its name.
        start: where redo ends.
        binary: the form in which values travel.
        last_commit_scn: commit SCN of the last transaction of redo; FIRST_SCN: not known.
        transaction: its 32-bit number; 0: not known.

    Raises:
        DatabaseSetBack: it has others.
        DatabaseUnavailable: a standby that the server waits for lacks a part of the log.
    """
    if FIRST_SCN in {start, last_commit_scn}:
        return
    confirmed, _ = slot_positions(connection, name, start)
    if confirmed >= start or (last_commit_scn > confirmed and not transaction):
        return
    with connection.transaction():
        (standbys,) = connection.execute(
            "SELECT coalesce(current_setting('synchronized_standby_slots', true), '')"
        ).fetchone() or ("",)
        if standbys:
            check_standbys(connection, str(standbys), start)
        found = connection.execute(
            "SELECT xid::text::int8, data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, NULL,"
            " 'proto_version', '1', 'messages', 'true', 'binary', %s, 'publication_names', %s) WHERE get_byte(data, 0)"
            " = ascii('C')",
            (name, format_lsn(start), str(binary).lower(), quote(publication)),
        ).fetchall()
    commits = [
        (scn, number) for number, data in found if (scn := int.from_bytes(bytes(data)[_COMMIT_END], "big")) <= start
    ]
    ours = [(int(last_commit_scn), transaction)] if last_commit_scn > confirmed else []
    if commits[-1:] == ours:
        return
    words = [
        f"transaction {number} that committed at SCN {scn_text(Scn(scn))}" if number else "no transaction"
        for scn, number in (*(ours or [(0, 0)]), *(commits[-1:] or [(0, 0)]))
    ]
    raise DatabaseSetBack(
        f"up to SCN {scn_text(start)} the redo log ends with {words[0]}, and the database's log with {words[1]}, both"
        f" behind SCN {scn_text(Scn(confirmed))}: the database was set back to an older state, and has written other"
        " transactions since",
        hint=f"{LOST_AT_SOURCE}, and lack others: {INSTANTIATE_AGAIN}",
        after_scn=confirmed,
        through_scn=start,
    )


def check_standbys(connection: psycopg.Connection[Any], standbys: str, start: Scn) -> None:
    """See that named standbys have the log up to an SCN: the server shows nothing beyond them, and waits for them.

    Args:
        connection: to the source.
        standbys: names of their slots, as `synchronized_standby_slots` has them.
        start: up to where the log is to be read.

    Raises:
        DatabaseUnavailable: one lacks a part of it, or is not there.
    """
    behind = [str(name) for (name,) in connection.execute(_BEHIND, (standbys, format_lsn(start))).fetchall()]
    if behind:
        raise DatabaseUnavailable(
            f"the standbys of {', '.join(behind)} (synchronized_standby_slots) do not have the log up to"
            f" {scn_text(start)} yet, and the server shows nothing beyond them",
            hint="start these standbys, or take their slots out of synchronized_standby_slots; it goes on by itself",
        )


def continues(connection: psycopg.Connection[Any], dsn: str, site: str, *, timeline: int, start: Scn) -> int:
    """See that a server's log continues a redo log that may end on an earlier timeline.

    Args:
        connection: to the server.
        dsn: of the server, which tells the history of its timelines to replication sessions only.
        site: name of the source site, for messages.
        timeline: of the redo log; 0: there is none.
        start: where it ends.

    Returns:
        The timeline that the server's log is on now.

    Raises:
        LogGone: it does not.
    """
    now = _timeline(connection)
    if timeline not in {0, now}:
        check_timeline(site, redo=timeline, start=start, now=now, left=_timelines_left(dsn, now))
    return now


def _timeline(connection: psycopg.Connection[Any]) -> int:
    """The timeline of the log now.

    Pg_control_checkpoint() tells the one of before until the first checkpoint after a promotion.
    """
    (now,) = connection.execute("SELECT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)").fetchone() or ("1",)
    return int(now, 16)


def _why_no_slot(connection: psycopg.Connection[Any]) -> str:
    """On a server that was promoted: why its slot did not come with it; else empty."""
    if _timeline(connection) == 1:
        return ""
    if connection.info.server_version < _FAILOVER_SLOTS_FROM:
        return "where a standby was promoted: before PostgreSQL 17 no slot comes with it; "
    return (
        "where a standby was promoted: a slot comes with it that it had in step (sync_replication_slots = on,"
        " hot_standby_feedback = on, a primary_slot_name, and dbname in primary_conninfo); "
    )


def _timelines_left(dsn: str, timeline: int) -> dict[int, Scn]:
    """The timelines that a server's log was on before this one, with the SCN at which it left each.

    Args:
        dsn: of the server.
        timeline: that it is on.

    Raises:
        DatabaseUnavailable: no connection.
        DatabaseError: the file of the timeline's history is gone.
    """
    if timeline == 1:
        return {}
    with contextlib.closing(connect(dsn, application_name="headrace timelines", replication="database")) as connection:
        return timelines_left(connection, timeline)


def timelines_left(connection: psycopg.Connection[Any], timeline: int) -> dict[int, Scn]:
    """See `_timelines_left`.

    Args:
        connection: a replication session of the server.
        timeline: that it is on.

    Raises:
        DatabaseError: the file of the timeline's history is gone.
    """
    if timeline == 1:
        return {}
    with translated("asking for the history of the log's timelines"):
        row = connection.execute(f"TIMELINE_HISTORY {timeline}").fetchone()
    assert row is not None
    text = row[1].decode() if isinstance(row[1], bytes) else str(row[1])
    # "1<tab>0/3000060<tab>no recovery target specified"
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return {int(line[0]): parse_lsn(line[1]) for line in lines}


def keep_at_standbys(connection: psycopg.Connection[Any], slot: str) -> None:
    """Let standbys keep a slot in step that was made without it.

    Args:
        connection: a replication session of the slot's database; it does not use the slot yet.
        slot: its name.
    """
    if connection.info.server_version < _FAILOVER_SLOTS_FROM:
        return
    with translated("opening the log stream"):
        row = connection.execute(
            "SELECT failover OR active FROM pg_replication_slots WHERE slot_name = '{}'".format(slot.replace("'", "''"))
        ).fetchone()
        if row is not None and not row[0]:
            connection.execute(f"ALTER_REPLICATION_SLOT {quote(slot)} (FAILOVER true)")


def slot_statement(name: str, *, has_failover: bool) -> str:
    """The statement that makes a slot, for standbys to keep in step with where they can.

    Args:
        name: of the slot.
        has_failover: the server has failover slots (version 17).
    """
    return f"{MAKES_SLOT}{literal(name)}, 'pgoutput'{', failover => true' if has_failover else ''})"


def slot_step(connection: psycopg.Connection[Any], name: str) -> PlannedStatement:
    """The step of `prepare` that makes the slot.

    Args:
        connection: to the source.
        name: of the slot.

    Raises:
        DatabaseError: something else has the name.
    """
    row = connection.execute(
        "SELECT database = current_database() AND plugin = 'pgoutput' FROM pg_replication_slots WHERE slot_name = %s",
        (name,),
    ).fetchone()
    if row is not None and not row[0]:
        raise DatabaseError(
            f"slot {name} belongs to another database or plugin",
            hint=f"drop it (SELECT pg_drop_replication_slot({literal(name)})), or give the topology another name",
            slot=name,
        )
    return PlannedStatement(
        statement=slot_statement(name, has_failover=connection.info.server_version >= _FAILOVER_SLOTS_FROM),
        effect="makes the server keep its log until Headrace has written it to its own redo log",
        lock="none, but it waits until every transaction that is running now has ended",
        is_done=row is not None,
    )
