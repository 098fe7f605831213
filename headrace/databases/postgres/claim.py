"""One copy of a topology per database: a session that holds an advisory lock while the copy runs.

A second copy of the same file, started in another folder or on another machine, would read the same slot and fence out
the first one's apply processes; both would be stuck. It is refused instead, with the place of the first. Another
file is refused too if its topology has the same name and calls the database by another site's name. The database keeps
its records by topology and apply process, so each `up` would mark the other one's tables as left and copy its own
again. A second lock, shared by all topologies of one name, makes them visible to each other. (An edit that renames a
site briefly holds both, from one place.)

States
    held       the session is open and has the lock. It ends with the process, or when the server notices that the
               other end vanished (`_KEEPALIVES`), so a crash leaves nothing to clean up.
    elsewhere  another place's session has the lock, or one of the same place that began later.

The holder describes itself in a comment of its session's last statement, which `pg_stat_activity` shows: no table is
needed, so nothing is written to a source.

Of two holders of the same place, the one that began later gets the lock: it is the next run of the same process, which
cannot begin before the previous one. It may be a second copy that looks the same (containers with one host name and
path, and a copied state folder). Then the first one stops, so that they do not take the lock from each other for ever.
Start times are of the database's clock, the only one they share.

Worked flow
    host A runs, holds the lock -> the same file on host B: `RunsElsewhere`, nothing is changed -> A's machine dies ->
    its session ends after 35 s -> B may start. Or A is unreachable and its session stays: B takes over, which ends that
    session; A, if alive, finds the lock taken when it reconnects, and stops.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import time
from typing import Any

import psycopg

from headrace.base.errors import DatabaseUnavailable, RunsElsewhere
from headrace.databases.postgres.advisory_locks import held_by_another
from headrace.databases.postgres.connection import connect, translated

__all__ = ["PostgresClaim", "claim_name"]

_SITE_CHARACTERS_MAX = 100  # with the place, as below
_PLACE_CHARACTERS_MAX = 300  # pg_stat_activity shows 1,024 bytes of a statement by default
# The server notices a vanished machine after 20 + 3 * 5 s; its own defaults take two hours.
_KEEPALIVES = "SET tcp_keepalives_idle = 20; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
_ENDED_TIMEOUT_S = 10.0  # for a terminated session to end
_POLL_S = 0.02
_COMMENT = re.compile(r"/\* headrace claim (\{.*?\}) \*/")
_HOLDER = """
SELECT l.pid, a.query, a.client_addr::text, a.usename FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.classid = {0}::oid AND l.objid = {1}::oid AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
"""


def claim_name(topology: str) -> str:
    """Return the application name of the session of a topology's claim."""
    return f"headrace claim {topology}"


class PostgresClaim:
    """A `headrace.databases.ports.operator.TopologyClaim`. Connects when it is first held; calls must not overlap.

    Args:
        dsn: of the database.
        topology: its name.
        site: the site that owns the database.
        place: "host:folder" where this copy keeps its state, for people.
        identity: of the state folder: distinguishes two places of the same name.
    """

    def __init__(self, dsn: str, *, topology: str, site: str, place: str, identity: str) -> None:
        self._dsn = dsn
        self._topology = topology
        self._site = site
        self._key, self._shared_key = _lock_number(f"{topology}/{site}"), _lock_number(topology)
        self._place, self._identity = place[:_PLACE_CHARACTERS_MAX], identity
        self._since = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        self._began_us = 0  # by the database's clock, at the first connection
        self._connection: psycopg.Connection[Any] | None = None

    def hold(self, *, take_over: bool = False, spares_own: bool = False) -> None:
        """See `TopologyClaim.hold`."""
        try:
            with translated("claiming the database for this topology"):
                if self._is_held():
                    return
                self._connection = connect(self._dsn, application_name=claim_name(self._topology))
                self._connection.execute(_KEEPALIVES)
                if take_over or not self._began_us:  # a takeover is a new start: the other copy must not retake it
                    self._began_us = _now_us(self._connection)
                self._take(self._connection, take_over=take_over, spares_own=spares_own)
        except BaseException:
            self.close()  # the next call reconnects
            raise

    def _is_held(self) -> bool:
        """Whether the session is open and has the lock.

        A session that has ended does not decide: the next session finds out.
        """
        if self._connection is None or self._connection.closed:
            return False
        try:
            self._connection.execute(f"{self._comment} SELECT 1".encode())
        except psycopg.OperationalError:
            self.close()
            return False
        return True

    @property
    def _comment(self) -> str:
        document = json.dumps(
            {
                "site": self._site[:_SITE_CHARACTERS_MAX],
                "place": self._place,
                "identity": self._identity,
                "since": self._since,
                "began_us": self._began_us,
            }
        )
        # A folder's name must not contain the beginning or the end of a comment.
        return f"/* headrace claim {document.replace('*', chr(92) + 'u002a')} */"

    def close(self) -> None:
        """See `TopologyClaim.close`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _take(self, connection: psycopg.Connection[Any], *, take_over: bool, spares_own: bool) -> None:
        deadline = time.monotonic() + _ENDED_TIMEOUT_S
        # No session of ours takes this lock exclusively. Another role can, because it can compute the number.
        while not self._tries(connection, f"pg_try_advisory_lock_shared({self._shared_key})"):
            if time.monotonic() > deadline:
                what = f"all copies of topology {self._topology}"
                raise held_by_another(connection, self._shared_key, what=what, shared=True)
            time.sleep(_POLL_S)
        while True:
            is_taken = self._tries(connection, f"pg_try_advisory_lock({self._key})")
            holder = next(iter(self._others(connection) if is_taken else self._holders(connection, self._key)), None)
            if is_taken and holder is None:
                return
            if holder is not None:
                told = _told(holder[1])
                is_own = self._is_own(told)
                if is_own and spares_own:
                    return
                is_later = is_own and int(told.get("began_us", 0)) > self._began_us
                if (is_later or not is_own) and not take_over:
                    # The session ends a moment after it is closed; locks it still held would refuse the copy that it
                    # gave way to.
                    connection.execute("SELECT pg_catalog.pg_advisory_unlock_all()")
                    raise self._elsewhere(holder, told, is_later=is_later)
                # an earlier run of this process, or a session to be taken over
                connection.execute("SELECT pg_catalog.pg_terminate_backend(%s)", (holder[0],))
            if time.monotonic() > deadline:
                raise DatabaseUnavailable(
                    "the session that claimed the database before does not end", pid=holder[0] if holder else 0
                )
            time.sleep(_POLL_S)

    def _tries(self, connection: psycopg.Connection[Any], call: str) -> bool:
        # This becomes the session's last statement, which shows who has the lock.
        row = connection.execute(f"{self._comment} SELECT pg_catalog.{call}".encode()).fetchone()
        return row is not None and bool(row[0])

    def _holders(self, connection: psycopg.Connection[Any], key: int) -> list[tuple[Any, ...]]:
        """Return process id, last statement, address and role of each holder of an advisory lock."""
        # This becomes the session's last statement, too.
        return connection.execute(
            f"{self._comment} {_HOLDER.format((key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF)}".encode()
        ).fetchall()

    def _others(self, connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
        """Return the holders of claims on the database for another file's topology of this name."""
        return [
            holder
            for holder in self._holders(connection, self._shared_key)
            if holder[0] != connection.info.backend_pid and not self._is_own(_told(holder[1]))
        ]

    def _is_own(self, told: dict[str, str]) -> bool:
        return (told.get("place"), told.get("identity")) == (self._place, self._identity)

    def _elsewhere(self, holder: tuple[Any, ...], told: dict[str, str], *, is_later: bool) -> RunsElsewhere:
        pid, _, client, role = holder
        where = (
            f"from {told['place']} since {told['since']}"
            if {"place", "since"} <= told.keys()
            else f"elsewhere (session {pid}{f' of role {role}' if role else ''}{f' from {client}' if client else ''})"
        )
        site = told.get("site", self._site)
        if site != self._site:
            return RunsElsewhere(
                f"a topology {self._topology} runs already {where}, and calls this database {site} instead of"
                f" {self._site}",
                hint="give one of the two another name (`topology:` in its file): the database keeps its records by"
                " that name; if it is the same topology, "
                "with the site renamed, end it there with `headrace down ITS_FILE`, or `headrace up FILE --take-over`"
                " here, which copies the tables again",
                pid=int(pid),
            )
        if is_later:
            return RunsElsewhere(
                f"topology {self._topology} was started again {where}, in a second copy of the same place",
                hint="two copies run, on two Ray clusters or in two containers with the same host name and path: end"
                " one there with `headrace down ITS_FILE`; `headrace up FILE --take-over` gives the database to this"
                " one",
                pid=int(pid),
            )
        return RunsElsewhere(
            f"topology {self._topology} runs already {where}",
            hint="end it there with `headrace down ITS_FILE`; if that machine is gone for good, `headrace up FILE"
            " --take-over` here",
            pid=int(pid),
        )


def _lock_number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"headrace:claim:{name}".encode()).digest()[:8], "big", signed=True)


def _now_us(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint").fetchone()
    return int(row[0]) if row is not None else 0


def _told(query: str | None) -> dict[str, str]:
    """Return what a holder's last statement says about it; empty: not visible to this role."""
    found = _COMMENT.match(query or "")
    try:
        document = json.loads(found.group(1)) if found else {}
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in document.items()}
