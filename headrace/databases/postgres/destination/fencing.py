"""Fencing of apply sessions: epochs, incarnations, advisory locks, replication origins, and the end of dead sessions.

Three numbers order all writers of an apply process:

    epoch         Number of the driver, raised by each start. An epoch also ends when the destination's server may have
                  lost commits: it belongs to one run of the server (`headrace.apply_epoch`). A crash, a failover and a
                  restore from a base backup empty that unlogged table. A plain restart and a restored cold copy have
                  another start time, a restored dump another relation number. So a commit reported to an epoch stays
                  committed as long as the epoch lasts, and the next epoch reads what the server really has.
    incarnation   Number of an apply server's task within the epoch. The coordinator gives each task a higher one.
    sequence      Number of an apply server's progress row, moved by compare-and-set in each commit.

An older writer never ends a newer one's session: `claim` raises the number first, and a statement ends sessions only
while the number is still the caller's. Each of these statements is a separate transaction, so a process that is frozen
between two of them holds no row that its successor needs.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any, NoReturn

import psycopg

from headrace.base.errors import DatabaseError, DatabaseUnavailable, FencedError
from headrace.databases.ports import ROWS_THERE, LogPositions
from headrace.databases.postgres.advisory_locks import held_by_another
from headrace.databases.postgres.catalog.partitions import members_below
from headrace.databases.postgres.connection import translated
from headrace.databases.postgres.origins import origin_name
from headrace.databases.progress import check_epoch

__all__ = [
    "COMMIT_LAZILY",
    "EPOCH_LIVES",
    "MEETING_LOCKS",
    "STAMP_FUNCTION",
    "SessionIdentity",
    "apply_lock_key",
    "claim",
    "commit_durably",
    "log_positions",
    "raise_epoch",
    "refuse_epoch",
    "take_apply_lock",
    "take_origin",
    "take_over",
    "take_server_lock",
]

STAMP_FUNCTION = "pg_catalog.pg_replication_origin_xact_setup(pg_catalog.pg_lsn, pg_catalog.timestamptz)"

MEETING_LOCKS = 1_213_353_812
"""First number of the advisory locks that the session's statements hold until their transaction ends.

It keeps them apart from users' advisory locks.
"""

# A dead client's backend is ended at once, but a large transaction's locks and a slow disk take time to release.
_PREDECESSOR_WAIT_S = 60.0
_PREDECESSOR_POLL_S = 0.02
_NO_SUCH_TABLE = frozenset({"42P01", "3F000"})

_EMPTIED = (
    "the destination's server crashed or failed over, and the rows of this UNLOGGED table are lost."
    " The table is copied again"
)

# True when an epoch (a row p of apply_process) began in the present run of the server.
EPOCH_LIVES = """EXISTS (SELECT FROM headrace.apply_epoch e
    WHERE (e.topology, e.apply, e.epoch) = (p.topology, p.apply, p.epoch) AND e.relation = e.tableoid
    AND e.server_started_at = pg_catalog.pg_postmaster_start_time())"""

# Lets the open transaction's COMMIT return before the log is on disk. It changes nothing with synchronous standbys or
# the operator's `remote_apply`: the standby replaces a server that loses its machine, and `off` would not wait for it.
COMMIT_LAZILY = """pg_catalog.set_config('synchronous_commit', CASE WHEN pg_catalog.current_setting('synchronous_standby_names') = ''
    AND pg_catalog.current_setting('synchronous_commit') <> 'remote_apply' THEN 'off'
    ELSE pg_catalog.current_setting('synchronous_commit') END, true)"""

# The very first epoch, and the first one in each run of the server, is the time in milliseconds. A restore or a failover
# can move epochs back or remove the row, and an epoch whose driver may still run must not be assigned again.
#
# The event that emptied apply_epoch emptied every unlogged table: those with replicated rows must be copied again.
_RAISE = f"""WITH emptied AS (
    UPDATE headrace.instantiation i SET state = 'COPYING', scn = greatest(i.scn, 1), problem = %(emptied)s, changed_at = pg_catalog.clock_timestamp()
    WHERE i.topology = %(topology)s AND i.apply = %(apply)s AND i.state = ANY (%(rows_there)s)
      AND EXISTS (SELECT FROM headrace.apply_process p WHERE (p.topology, p.apply) = (i.topology, i.apply))
      AND NOT EXISTS (SELECT FROM headrace.apply_epoch e WHERE (e.topology, e.apply) = (i.topology, i.apply))
      AND EXISTS (SELECT FROM (SELECT pg_catalog.to_regclass(pg_catalog.format('%%I.%%I', i.owner, i.name))::oid) AS root (number)
          CROSS JOIN LATERAL {members_below("root.number")} AS member
          JOIN pg_catalog.pg_class c ON c.oid = member.number AND c.relkind = 'r' AND c.relpersistence = 'u')
    ), raised AS (
    INSERT INTO headrace.apply_process AS p (topology, apply, epoch)
    VALUES (%(topology)s, %(apply)s, (1000 * extract(epoch FROM pg_catalog.clock_timestamp()))::bigint)
    ON CONFLICT (topology, apply) DO UPDATE SET epoch_raised_at = pg_catalog.now(), epoch = CASE WHEN {EPOCH_LIVES}
        THEN p.epoch + 1
        ELSE greatest(p.epoch + 1, (1000 * extract(epoch FROM pg_catalog.clock_timestamp()))::bigint) END RETURNING epoch)
INSERT INTO headrace.apply_epoch
SELECT %(topology)s, %(apply)s, epoch, pg_catalog.pg_postmaster_start_time(), 'headrace.apply_epoch'::regclass FROM raised
ON CONFLICT (topology, apply) DO UPDATE SET epoch = excluded.epoch, server_started_at = excluded.server_started_at,
    relation = excluded.relation
RETURNING epoch"""

_CLAIM = f"""WITH current AS (
    SELECT FROM headrace.apply_process p WHERE topology = %(topology)s AND apply = %(apply)s AND epoch = %(epoch)s
    AND {EPOCH_LIVES} FOR SHARE)
INSERT INTO headrace.apply_session AS s
SELECT %(topology)s, %(apply)s, %(server)s, %(epoch)s, %(incarnation)s FROM current
ON CONFLICT (topology, apply, server) DO UPDATE SET epoch = excluded.epoch, incarnation = excluded.incarnation
    WHERE (s.epoch, s.incarnation) <= (excluded.epoch, excluded.incarnation)
RETURNING 1"""

# Rows that let a session act. FOR SHARE keeps writers with higher numbers from raising them while the statement runs.
_OWN_EPOCH = """SELECT FROM headrace.apply_process
    WHERE topology = %(topology)s AND apply = %(apply)s AND epoch = %(epoch)s FOR SHARE"""
_OWN_SESSION = """SELECT FROM headrace.apply_session WHERE topology = %(topology)s AND apply = %(apply)s
    AND server = %(server)s AND epoch = %(epoch)s AND incarnation = %(incarnation)s FOR SHARE"""

_TAKE_OVER = f"""WITH own AS ({_OWN_SESSION}), current AS ({_OWN_EPOCH})
INSERT INTO headrace.apply_progress AS p (topology, apply, server, epoch, sequence, low_watermark, applied)
SELECT %(topology)s, %(apply)s, %(server)s, %(epoch)s, 0, 0, '{{}}' FROM own, current
ON CONFLICT (topology, apply, server) DO UPDATE SET sequence = p.sequence + 1, epoch = excluded.epoch
RETURNING sequence, low_watermark, applied"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionIdentity:
    """Identity of a session: its apply server and incarnation.

    Args:
        topology: name of the topology.
        apply: name of the apply process.
        server: number of the apply server. Sessions of other kinds use numbers that no apply server has.
        epoch: epoch of the driver.
        incarnation: incarnation of the server within the epoch, counted by the coordinator.
        tag: tag of the session's changes; empty means a NULL tag.
        source: site whose changes the session applies; empty when it runs no user SQL.
    """

    topology: str
    apply: str
    server: int
    epoch: int
    incarnation: int
    tag: bytes
    source: str = ""

    @property
    def application_name(self) -> str:
        """The session's name in pg_stat_activity."""
        return f"headrace {self.topology}/{self.apply}/{self.server}"

    @property
    def origin(self) -> str:
        """Name of the session's replication origin."""
        return origin_name(self.topology, self.apply, self.server, self.tag)

    @property
    def origin_mark(self) -> str:
        """The LSN that commits under the replication origin record.

        It is a hash of the origin's name, by which the session recognizes its origin.
        """
        number = int.from_bytes(hashlib.sha256(self.origin.encode()).digest()[:8], "big") or 1
        return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"

    @property
    def stamp(self) -> str:
        """SQL expression that sets the commit time and `origin_mark` of the following transactions.

        Without it, PostgreSQL 15 to 18 (RecordTransactionCommit) read the clock only for the first transaction of a
        session with an origin. They log that transaction as of 2000-01-01, and all later ones with the time of the first.
        """
        return f"pg_catalog.pg_replication_origin_xact_setup('{self.origin_mark}', pg_catalog.clock_timestamp())"


def apply_lock_key(topology: str, apply: str, server: int | None = None) -> int:
    """Return the number of the advisory lock of an apply process, or of one of its servers.

    Args:
        topology: name of the topology.
        apply: name of the apply process.
        server: number of the apply server. None for the lock of the apply process, which all its sessions hold shared.

    Returns:
        A signed 64-bit hash, the same in every process.
    """
    text = f"headrace:{topology}/{apply}" + ("" if server is None else f"/{server}")
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def commit_durably(connection: psycopg.Connection[Any]) -> None:
    """Make each COMMIT wait for the log on disk, whatever the settings of server, role or database.

    The session reports its commits as durable.

    `remote_apply` stays, because it waits for more. `remote_write` and `local` are overridden: they do not wait until
    a standby that `synchronous_standby_names` demands has the log on disk.
    """
    connection.execute(
        "SELECT pg_catalog.set_config('synchronous_commit', 'on', false)"
        " WHERE pg_catalog.current_setting('synchronous_commit') <> 'remote_apply'"
    )


def raise_epoch(connection: psycopg.Connection[Any], topology: str, apply: str) -> int:
    """Raise the epoch of an apply process in the present run of the server; return the new epoch.

    UNLOGGED tables that the end of the previous run emptied are marked to be copied again.

    Args:
        connection: connection in autocommit mode, so that the epoch is durable before older sessions are ended.
        topology: name of the topology.
        apply: name of the apply process. Its row is created if missing.
    """
    values = {"topology": topology, "apply": apply, "rows_there": sorted(ROWS_THERE), "emptied": _EMPTIED}
    found = connection.execute(_RAISE, values).fetchone()
    assert found is not None
    return int(found[0])


def claim(connection: psycopg.Connection[Any], identity: SessionIdentity) -> None:
    """Raise the server's incarnation to this session's, before any older session is ended.

    Args:
        connection: connection of the session that is being opened, in autocommit mode.
        identity: identity of the same session.

    Raises:
        FencedError: a newer epoch or a newer incarnation exists.
        DestinationRestarted: the epoch has ended with the server's run.
    """
    try:
        with translated("claiming an apply server's session"):
            done = connection.execute(_CLAIM, _numbers(identity)).fetchone()
    except DatabaseError as error:
        if error.context.get("sqlstate") in _NO_SUCH_TABLE:
            check_epoch(0, apply=identity.apply, epoch=identity.epoch)
        raise
    if done is None:
        _refuse(connection, identity)


def take_over(connection: psycopg.Connection[Any], identity: SessionIdentity) -> tuple[int, int, list[int]]:
    """Take over the server's progress row, or create it.

    Args:
        connection: connection of the session that is being opened, in autocommit mode, after `take_server_lock`.
        identity: identity of the same session.

    Returns:
        The row's new sequence, its low watermark, and the applied ranges above it, as bounds
        (`headrace.databases.progress.ranges_from_bounds`).

    Raises:
        FencedError: a newer epoch or a newer incarnation exists.
        DestinationRestarted: the epoch has ended with the server's run.
    """
    found = connection.execute(_TAKE_OVER, _numbers(identity)).fetchone()
    if found is None:
        _refuse(connection, identity)
    return int(found[0]), int(found[1]), found[2]


def _numbers(identity: SessionIdentity) -> dict[str, str | int]:
    return {
        "topology": identity.topology,
        "apply": identity.apply,
        "server": identity.server,
        "epoch": identity.epoch,
        "incarnation": identity.incarnation,
    }


def refuse_epoch(connection: psycopg.Connection[Any], topology: str, apply: str, epoch: int) -> None:
    """Raise the reason why an epoch may not write; return normally if the epoch is still valid.

    Raises:
        FencedError: a newer epoch exists.
        DestinationRestarted: the epoch has ended with the server's run.
    """
    row = connection.execute(
        f"SELECT epoch, {EPOCH_LIVES} FROM headrace.apply_process p WHERE topology = %s AND apply = %s",
        (topology, apply),
    ).fetchone() or (0, False)
    check_epoch(row[0], apply=apply, epoch=epoch, lives=row[1])


def log_positions(connection: psycopg.Connection[Any], topology: str, apply: str, epoch: int) -> LogPositions:
    """Return up to where the server's log is written and flushed, as `DestinationDatabase.log_positions`.

    Raises:
        FencedError: a newer epoch exists.
        DestinationRestarted: the epoch has ended with the server's run.
        DatabaseUnavailable: the row of the apply process changed during the query; retry.
    """
    row = connection.execute(
        "SELECT pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), '0/0'),"
        " pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_flush_lsn(), '0/0') FROM headrace.apply_process p"
        f" WHERE topology = %s AND apply = %s AND epoch = %s AND {EPOCH_LIVES}",
        (topology, apply, epoch),
    ).fetchone()
    if row is None:
        refuse_epoch(connection, topology, apply, epoch)
        raise DatabaseUnavailable(f"the row of apply process {apply} changed while it was read")
    return LogPositions(written=int(row[0]), flushed=int(row[1]))


def _refuse(connection: psycopg.Connection[Any], identity: SessionIdentity) -> NoReturn:
    """Raise the reason why this session may not act."""
    refuse_epoch(connection, identity.topology, identity.apply, identity.epoch)
    raise FencedError(
        f"a newer session of apply server {identity.server} of {identity.apply} exists: this one is incarnation"
        f" {identity.incarnation}",
        apply=identity.apply,
        epoch=identity.epoch,
        incarnation=identity.incarnation,
    )


def _take_exclusive_lock(
    connection: psycopg.Connection[Any], key: int, own: str, numbers: dict[str, str | int], what: str
) -> bool:
    """Take an advisory lock and end the sessions that hold it; return False when the caller is no longer the newest.

    Args:
        connection: connection in autocommit mode. It keeps the lock until it closes or unlocks.
        key: number of the lock.
        own: query that finds a row as long as the caller is the newest.
        numbers: parameters of `own`.
        what: owner of the lock, for messages.

    Raises:
        DatabaseUnavailable: the holders do not end, or another role has the lock; the message names the session.
    """
    high, low = (key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF
    deadline = time.monotonic() + _PREDECESSOR_WAIT_S
    while True:
        found = connection.execute("SELECT pg_catalog.pg_try_advisory_lock(%s)", (key,)).fetchone()
        if found is not None and found[0]:
            return True
        if time.monotonic() > deadline:
            raise held_by_another(connection, key, what=what)
        query = (
            f"WITH own AS MATERIALIZED ({own}), ended AS MATERIALIZED ("
            " SELECT pg_catalog.pg_terminate_backend(pid) FROM own, pg_catalog.pg_locks"
            " WHERE locktype = 'advisory' AND granted AND classid = %(high)s::oid AND objid = %(low)s::oid AND objsubid"
            " = 1 AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())"
            " AND pid <> pg_catalog.pg_backend_pid())"
            " SELECT (SELECT count(*) FROM own), (SELECT count(*) FROM ended)"
        )
        try:
            done = connection.execute(query.encode(), {**numbers, "high": high, "low": low}).fetchone()
        except psycopg.errors.InsufficientPrivilege as error:  # another role holds the lock, not an older session
            raise held_by_another(connection, key, what=what) from error
        if done is not None and done[0] == 0:
            return False
        time.sleep(_PREDECESSOR_POLL_S)


def take_apply_lock(connection: psycopg.Connection[Any], topology: str, apply: str, epoch: int) -> int:
    """End every session of an apply process's older epochs and take its lock.

    Return the key, which the caller unlocks.

    Args:
        connection: connection in autocommit mode. It keeps the lock until it closes or unlocks.
        topology: name of the topology.
        apply: name of the apply process.
        epoch: epoch of the caller, from `raise_epoch`.

    Raises:
        FencedError: a newer epoch exists.
        DatabaseUnavailable: the older sessions do not end.
    """
    key = apply_lock_key(topology, apply)
    numbers: dict[str, str | int] = {"topology": topology, "apply": apply, "epoch": epoch}
    if not _take_exclusive_lock(connection, key, _OWN_EPOCH, numbers, f"apply process {apply}"):
        raise FencedError(f"a newer epoch of apply process {apply} than {epoch} exists", apply=apply, epoch=epoch)
    return key


def take_server_lock(connection: psycopg.Connection[Any], identity: SessionIdentity) -> None:
    """Become the only session of this apply server: end other sessions of this and older incarnations.

    Args:
        connection: connection of the session that is being opened, in autocommit mode. It keeps the lock for its
            lifetime.
        identity: identity of the same session, after its `claim`.

    Raises:
        FencedError: a newer epoch or a newer incarnation exists.
        DatabaseUnavailable: the older session does not end.
    """
    key = apply_lock_key(identity.topology, identity.apply, identity.server)
    what = f"apply server {identity.server} of {identity.apply}"
    if not _take_exclusive_lock(connection, key, _OWN_SESSION, _numbers(identity), what):
        _refuse(connection, identity)


def take_origin(connection: psycopg.Connection[Any], identity: SessionIdentity) -> bool:
    """Mark all writes of the session with its replication origin; create the origin if it is missing.

    Wait up to `_PREDECESSOR_WAIT_S` while another session has the origin.

    Args:
        connection: connection of the session that is being opened. It keeps the origin for its lifetime.
        identity: identity of the same session; `SessionIdentity.origin` names the origin.

    Returns:
        Whether the role may run `SessionIdentity.stamp`. Each transaction needs it to have its own commit time in the
        log and in pg_xact_commit_timestamp.
    """
    name = identity.origin
    found = connection.execute("SELECT FROM pg_catalog.pg_replication_origin WHERE roname = %s", (name,)).fetchone()
    if found is None:
        connection.execute("SELECT pg_catalog.pg_replication_origin_create(%s)", (name,))
    deadline = time.monotonic() + _PREDECESSOR_WAIT_S
    while True:
        try:
            connection.execute("SELECT pg_catalog.pg_replication_origin_session_setup(%s)", (name,))
            break
        except psycopg.errors.ObjectInUse:
            # An ending backend releases its locks first and its origin last.
            if time.monotonic() > deadline:
                raise
            time.sleep(_PREDECESSOR_POLL_S)
    may = connection.execute("SELECT pg_catalog.has_function_privilege(%s, 'EXECUTE')", (STAMP_FUNCTION,)).fetchone()
    if may is None or not may[0]:
        return False
    connection.execute(f"SELECT {identity.stamp}".encode())  # for transactions that commit without `commit`
    return True
