"""The status of a site."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.status.redo import RedoLogStatus, ShippedRedo

__all__ = ["RefusedChanges", "SiteStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedChanges:
    """A captured table, or a partition of one, in which the source refuses users' UPDATE and DELETE.

    Args:
        table: the table in a finding's words.
        problem: why the source refuses.
        fix: statement that allows changes again.
    """

    table: str
    problem: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteStatus(RedoLogStatus):
    """A site: its database, and, at a source, the redo log.

    Args:
        database: kind of the database; "none": queues only.
        ready: the database answers.
        is_source: its changes are captured; None: the site has no database.
        heartbeats_total: written heartbeats; None: the site has no database.
        source_scn: end of the database's log when it answered last; None: the site has no database.
        source_samples: (time in microseconds since the epoch, SCN) of the log's end; the controller keeps them.
        database_problem: why the database does not answer; empty: it does.
        database_fix: statement that makes it answer; empty: none is known.
        is_prepared: the objects that `up` prepared exist; None: the site is no source.
        source_retained_bytes: log that the database keeps for the redo log; None: the site is no source.
        uncaptured_tables: tables that the rules name, and that were created after `up`.
        strayed_tables: renamed tables that no rule names any more.
        strayed_renames: statements that rename the destinations' tables likewise; none for tables that no destination
            gets.
        lost_columns: columns that a transformation names, and that no longer exist.
        refused_changes: tables, and partitions, that lost the identification of a changed row.
        ddl_failed_total: DDL statements that it could not record, until `up` has recorded what they changed; None: not
            known, or no DDL is taken.
        last_failed_ddl: the last one, and why; empty: none, or not known.
        held_up_by: transactions that the preparation waits for.
        server_pid: process id of the embedded server, 0: it does not run; None: the database is not embedded.
        resumes_total: number of times the database's log was read again from the last durable position.
        redo_receivers: redo receivers at other sites; None: the redo is not open.
        stream_form: form in which the database sends values, "binary" or "text"; None: unknown yet.
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
    ddl_failed_total: int | None = None
    last_failed_ddl: str = ""
    held_up_by: tuple[str, ...] = ()
    server_pid: int | None = None
    resumes_total: int | None = None
    redo_receivers: tuple[ShippedRedo, ...] | None = None
    stream_form: str | None = None
