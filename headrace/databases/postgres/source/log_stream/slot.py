"""The slot of a source: its creation, whether it has what redo needs, and how it survives a standby's promotion.

From PostgreSQL 17 on a slot is created with failover: a standby with `sync_replication_slots` keeps a copy of it, and
still has it after a promotion. The copy may be behind what the log writer confirmed. A stream begins where redo ends,
so nothing is duplicated.
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
# In pgoutput's commit message: the end of the transaction in the log, which is its commit SCN.
_COMMIT_END = slice(10, 18)
_BEHIND = """
SELECT named FROM unnest(string_to_array(replace(%s, ' ', ''), ',')) named
LEFT JOIN pg_replication_slots s ON s.slot_name = named WHERE s.restart_lsn IS NULL OR s.restart_lsn < %s::pg_lsn
"""


def slot_positions(connection: psycopg.Connection[Any], name: str, start: Scn) -> tuple[int, int]:
    """Return the slot's confirmed position, and the end of the log.

    Args:
        connection: to the source.
        name: of the slot.
        start: end of redo, for messages.

    Raises:
        LogGone: the slot is missing or was invalidated.
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
    """Return where the stream can begin.

    Args:
        connection: to the source.
        name: of the slot.
        start: end of redo; FIRST_SCN: no redo exists.

    Raises:
        LogGone: the slot does not have everything after `start`.
        DatabaseSetBack: the log ends below `start`.
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
    """Check that the server still has the last transaction of the redo log.

    A database that was restored to an older state has written other log since, perhaps beyond the end of redo:
    positions alone do not show it. It may also have given the transaction's number to another committed one; so the
    first refusal is kept (`headrace.redo.writing.source_refusal`).

    Args:
        connection: to the source.
        start: end of redo.
        transaction: the 32-bit number of its last transaction; 0: unknown.

    Raises:
        DatabaseSetBack: the server does not have it.
    """
    if not transaction:
        return
    whole = whole_number(connection, transaction)
    try:
        (status,) = connection.execute("SELECT pg_xact_status(%s::text::xid8)", (whole,)).fetchone() or (None,)
    except psycopg.errors.InvalidParameterValue:
        status = "in the future"
    # In progress: committed in the log and not visible yet, as while a synchronous standby is down. None: too old to be
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
    """Check that the server's log up to the end of redo ends with the same transaction as the redo log.

    The check reads from the slot's confirmed position on.

    When a database is restored to an older state, so is its slot, whose confirmed position is then below the end of
    redo. The same is true of a server that crashed, and of a log writer that ended before it confirmed; then the server
    still has the same transactions. The last transaction of both logs decides: its position in the log and its number.
    Logs that agree there also agree before.

    Args:
        connection: to the source.
        name: of the slot, which no session reads.
        publication: its name.
        start: end of redo.
        binary: the form in which values travel.
        last_commit_scn: commit SCN of the last transaction of redo; FIRST_SCN: unknown.
        transaction: its 32-bit number; 0: unknown.

    Raises:
        DatabaseSetBack: the server has other transactions.
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
    """Check that named standbys have the log up to an SCN: the server waits for them and sends nothing beyond them.

    Args:
        connection: to the source.
        standbys: names of their slots, as in `synchronized_standby_slots`.
        start: SCN up to which the log will be read.

    Raises:
        DatabaseUnavailable: a standby lacks a part of it, or does not exist.
    """
    behind = [str(name) for (name,) in connection.execute(_BEHIND, (standbys, format_lsn(start))).fetchall()]
    if behind:
        raise DatabaseUnavailable(
            f"the standbys of {', '.join(behind)} (synchronized_standby_slots) do not have the log up to"
            f" {scn_text(start)} yet, and the server shows nothing beyond them",
            hint="start these standbys, or take their slots out of synchronized_standby_slots; it goes on by itself",
        )


def continues(connection: psycopg.Connection[Any], dsn: str, site: str, *, timeline: int, start: Scn) -> int:
    """Check that a server's log continues a redo log that may end on an earlier timeline.

    Args:
        connection: to the server.
        dsn: of the server, which gives the history of its timelines to replication sessions only.
        site: name of the source site, for messages.
        timeline: of the redo log; 0: no redo log exists.
        start: end of the redo log.

    Returns:
        The current timeline of the server's log.

    Raises:
        LogGone: the log does not continue it.
    """
    now = _timeline(connection)
    if timeline not in {0, now}:
        check_timeline(site, redo=timeline, start=start, now=now, left=_timelines_left(dsn, now))
    return now


def _timeline(connection: psycopg.Connection[Any]) -> int:
    """Return the current timeline of the log.

    After a promotion, pg_control_checkpoint() returns the previous one until the first checkpoint.
    """
    (now,) = connection.execute("SELECT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)").fetchone() or ("1",)
    return int(now, 16)


def _why_no_slot(connection: psycopg.Connection[Any]) -> str:
    """Return why the slot of a promoted server was lost; empty: the server was not promoted."""
    if _timeline(connection) == 1:
        return ""
    if connection.info.server_version < _FAILOVER_SLOTS_FROM:
        return "where a standby was promoted: before PostgreSQL 17 no slot comes with it; "
    return (
        "where a standby was promoted: a slot comes with it that it had in step (sync_replication_slots = on,"
        " hot_standby_feedback = on, a primary_slot_name, and dbname in primary_conninfo); "
    )


def _timelines_left(dsn: str, timeline: int) -> dict[int, Scn]:
    """Return the earlier timelines of a server's log, with the SCN at which it left each.

    Args:
        dsn: of the server.
        timeline: its current timeline.

    Raises:
        DatabaseUnavailable: no connection.
        DatabaseError: the timeline's history file is gone.
    """
    if timeline == 1:
        return {}
    with contextlib.closing(connect(dsn, application_name="headrace timelines", replication="database")) as connection:
        return timelines_left(connection, timeline)


def timelines_left(connection: psycopg.Connection[Any], timeline: int) -> dict[int, Scn]:
    """Read the earlier timelines of a log, with the SCN at which it left each.

    Args:
        connection: a replication session of the server.
        timeline: its current timeline.

    Raises:
        DatabaseError: the timeline's history file is gone.
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
    """Let standbys synchronize a slot that was created without failover.

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
    """Return the statement that creates a slot, synchronized to standbys where possible.

    Args:
        name: of the slot.
        has_failover: the server has failover slots (version 17).
    """
    return f"{MAKES_SLOT}{literal(name)}, 'pgoutput'{', failover => true' if has_failover else ''})"


def slot_step(connection: psycopg.Connection[Any], name: str) -> PlannedStatement:
    """Return the step of `prepare` that creates the slot.

    Args:
        connection: to the source.
        name: of the slot.

    Raises:
        DatabaseError: another object has the name.
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
