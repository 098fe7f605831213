"""The status of a site."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.status.redo import RedoLogStatus, ShippedRedo

__all__ = ["RefusedChanges", "SiteStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedChanges:
    """A captured table, or a partition of one, of which the source refuses users' UPDATE and DELETE.

    Args:
        table: as a finding names it.
        problem: why.
        fix: the statement that lets users change rows again.
    """

    table: str
    problem: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteStatus(RedoLogStatus):
    """A site: its database, and, at a source, the redo log.

    Args:
        database: the kind of database; "none": queues only.
        ready: the database answers.
        is_source: its changes are captured; None: it has no database.
        heartbeats_total: heartbeats that were written; None: it has no database.
        source_scn: the end of the database's log when it answered last; None: it has no database.
        source_samples: (time in microseconds since the epoch, SCN) of the log's end, for the controller, which keeps them.
        database_problem: why the database does not answer; empty: it does.
        database_fix: the statement that makes it answer; empty: none is known.
        is_prepared: what `up` prepared is there; None: it is no source.
        source_retained_bytes: log that the database keeps for the redo log; None: it is no source.
        uncaptured_tables: tables that the rules name, and that were created after `up`.
        strayed_tables: tables that were renamed, and that no rule names now.
        strayed_renames: statements that give tables of destinations their names; of those that destinations do not get, none.
        lost_columns: columns that a transformation names, and that are not there any more.
        refused_changes: tables, and partitions, that lost what identifies a changed row.
        held_up_by: transactions that the preparation waits for.
        server_pid: of the embedded server, 0: it does not run; None: it is not embedded.
        resumes_total: how often the database's log was read again from the last durable position.
        redo_receivers: who gets the redo at other sites; None: the redo is not open.
        stream_form: "binary" or "text": how values come from the database; None: unknown yet.
    """

    database: str = ""
    ready: bool = False
    is_source: bool | None = None
    heartbeats_total: int | None = None
    source_scn: int | None = None
    source_samples: tuple[tuple[int, int], ...] | None = None
    database_problem: str = ""
    database_fix: str = ""
    is_prepared: bool | None = None
    source_retained_bytes: int | None = None
    uncaptured_tables: tuple[str, ...] = ()
    strayed_tables: tuple[str, ...] = ()
    strayed_renames: tuple[str, ...] = ()
    lost_columns: tuple[str, ...] = ()
    refused_changes: tuple[RefusedChanges, ...] = ()
    held_up_by: tuple[str, ...] = ()
    server_pid: int | None = None
    resumes_total: int | None = None
    redo_receivers: tuple[ShippedRedo, ...] | None = None
    stream_form: str | None = None
