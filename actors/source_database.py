"""Site with a database: its embedded server, its log writer, its redo for captures, its preparation.

Job
    Manage one site that has a database. Keep the embedded server running (or connect to the user's server), and write
    heartbeats. Drain the source's log into the site's redo log, and report to captures how far redo is durable. A site
    without capture processes has no log writer.

Main path
    DatabaseSite.step -> SourceRedo.step -> LogWriter.step; `actors.site.sampling` queries the source's position.
    A call is answered by the site or by the part that is responsible for it: `DatabaseSite.answering`.

States
    STARTING DATABASE        the embedded server or the user's server does not answer yet. Memory only.
    DATABASE DOES NOT ANSWER it answered before and no longer does, whatever the log writer saw last. Memory only.
    WAITING FOR PREPARATION  the database answers, and `prepare` was not called yet. `prepared.json` persists the call.
    READY                    a site without a log writer.
    the log writer's states  listed in `actors.site.source_redo`.

Durable when
    The log writer has synced it. The embedded server is a separate daemon: it survives this process, and the next one finds it.

Worked flow
    the source's server stops -> LogStream.read raises DatabaseUnavailable -> the host opens again with backoff, the
    embedded server is started by `open` -> LogWriter.attach at its own SCN -> nothing lost, nothing duplicated
"""

from __future__ import annotations

import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from actors.hosting.runtime import session_folder
from actors.security.links import ray_folder_findings
from actors.security.wire import links_of
from actors.site.claim import SiteClaim
from actors.site.database import SiteDatabase
from actors.site.destination_role import DestinationRole, applies_at
from actors.site.host import SiteHost
from actors.site.prepared_note import PreparedNote
from actors.site.sampling import PositionSampler
from actors.site.source_redo import FULL_PAUSE_S, READ_TIMEOUT_S, SourceRedo
from actors.site.source_role import SourceRole, is_source
from actors.site.standby_folders import forget_standby_logs
from actors.staging.queue_host import forget_queues
from actors.state_folder import site_folder
from headrace.base.errors import CapturedNoMore, DatabaseUnavailable, RedoError, RunsElsewhere
from headrace.status.sites import SiteStatus

if TYPE_CHECKING:
    from collections.abc import Collection

    from actors.security.wire import MakeRedoLinks
    from headrace.databases.ports import Finding
    from topology.spec import TopologySpec

__all__ = ["DatabaseSite", "build"]

WATCH_INTERVAL_S = 1.0  # a site without a log writer only monitors its server
END_WRITER_S = 10.0  # a log writer's step ends within a second, its pause after an error within five


class DatabaseSite(SiteHost):
    """One site with a database.

    Args:
        fingerprint: fingerprint of the topology; shown in its status.
        make_links: serves its redo.

    More than 25 methods: half are those of every host, half are the controller's calls that concern both roles.

    Attributes:
        redo: its redo log.
        source: the site as a source.
        destination: the site as a destination.
    """

    def __init__(self, spec: TopologySpec, name: str, fingerprint: str, make_links: MakeRedoLinks = links_of) -> None:
        super().__init__(f"site:{name}", spec.state_dir)
        self._spec, self._fingerprint = spec, fingerprint
        self._folder = site_folder(spec, name)
        self._database = SiteDatabase(spec, name)
        self._claim = SiteClaim(spec, self._database.site)
        self._prepared = PreparedNote(self._folder, spec.name)
        self.redo = SourceRedo(spec, self._database, self._folder / "redo", make_links, self.wake)
        self.source = SourceRole(spec, self._database, self.redo, self._folder, self._clock)
        self.destination = DestinationRole(spec.name, self._database, self._claim)
        self._sampler = PositionSampler(
            self.name,
            self._clock,
            open_source=self._database.open_source,
            is_source=lambda: self.source.is_wanted,
            keep_claim=self._keep_claim,
            look=self.source.watch,
        )
        self._ends_source = False  # it is no longer a source: its log writer ends, and its slot is dropped

    # ------------------------------------------------------------------ hosting

    def open(self) -> None:
        """Start the embedded server, serve the existing redo, and attach the log writer to a new stream."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._ends_source:
            self.redo.drop()
        self._database.start()
        self._sampler.start()
        if self._writes_redo():
            self._attach()

    def start_component(self) -> None:
        """Start the component, and check the claim again."""
        self._claim.forget()
        super().start_component()

    def step(self) -> float:
        """Let the log writer read a gulp; without a log writer, check the server."""
        if self._claim.refused is not None and self._keeps_claim():
            raise self._claim.refused
        if not self.redo.is_attached:
            return self._watch()
        if self._sampler.gone is not None:
            error, self._sampler.gone = self._sampler.gone, None
            if isinstance(error, CapturedNoMore):
                self.redo.refuse(error)
            raise error
        try:
            return self.redo.step(self._sampler)
        except RedoError as error:
            if not self.redo.is_paused:
                self.redo.drop()
                raise
            # The writer keeps what it has read: the stream stays open until the redo log has space again.
            self.life.note_error(error)
            return FULL_PAUSE_S

    def close(self) -> None:
        """Close the stream; the log writer and its service stay, so that captures can mine the existing redo."""
        self.redo.detach()

    def adopt(self, spec: TopologySpec, fingerprint: str) -> None:
        """Serve changed capture processes; a site that is no longer a source ends its log writer.

        See `Host.adopt` for the arguments.
        """
        self._spec = spec
        self.source.adopt(spec)
        self.redo.adopt(spec, is_source=self.source.is_wanted)
        self._fingerprint = fingerprint

    def end(self) -> bool:
        """End everything in this process; the embedded server keeps running."""
        ended = super().end()
        self._sampler.stop()
        self._claim.close()
        self.redo.stop()
        return ended

    def answering(self, method: str) -> object:
        """Return the part whose `answers` contains the method, or the site itself."""
        parts = (self.redo, self.source, self.source.tables, self.destination)
        return next((part for part in parts if method in part.answers), self)

    def endpoint(self) -> str:
        """Return the endpoint at which captures watch the redo log."""
        return self.redo.endpoint()

    def detail_state(self) -> str:
        """Return the database's state while it does not answer, else READY or the log writer's state."""
        if not self._sampler.has_answered:
            return "STARTING DATABASE"
        if not self._sampler.is_answering:
            return "DATABASE DOES NOT ANSWER"
        if not self.source.is_wanted:
            return "READY"
        return self.redo.state or "WAITING FOR PREPARATION"

    def details(self) -> SiteStatus:
        """Return the log writer's statistics and facts about the database."""
        status = SiteStatus(
            name=self.name,
            site=self._database.site.name,
            fingerprint=self._fingerprint,
            database=self._database.site.database.kind,
            ready=self._sampler.is_answering,
            is_source=self.source.is_wanted,
            # Old facts about a source that does not answer do not show how far a destination is behind.
            source_scn=self._sampler.source_scn,
            source_samples=tuple(self._sampler.samples),
            database_problem=self._sampler.problem,
            database_fix=self._sampler.fix,
            server_pid=self._database.server_pid,
        )
        return self.redo.shown(self.source.shown(status, self._sampler, is_prepared=self._is_prepared))

    # ------------------------------------------------------------------ what the controller and the command line ask

    def database_dsn(self) -> str:
        """Return the connection string, with the password: only for components, never displayed."""
        return self._database.dsn()

    def database_identity(self) -> str:
        """Return the identity of the site's database."""
        connect = self._database.open_source if self.source.is_wanted else self._database.open_destination
        with closing(connect()) as database:
            return database.database_identity()

    def claimed_dsn(self) -> str:
        """Return the connection string for components that write, after claiming the database.

        Raises:
            RunsElsewhere: another copy of the topology uses the database.
        """
        with suppress(DatabaseUnavailable):  # the writer waits for the database as well
            self._claim.hold()
        return self._database.dsn()

    def take_over(self) -> None:
        """End the claim of a copy of the topology elsewhere, and claim the database for this one; idempotent."""
        self._claim.hold(take_over=True)
        self._try_again()

    def preflight(self, spec: TopologySpec) -> tuple[Finding, ...]:
        """Claim the database, and check it for a topology that this site may not have adopted yet."""
        if refused := self._claim.findings():
            return refused
        session = session_folder()
        return (
            *(() if session is None else ray_folder_findings(self._database.site, session)),
            *self.source.preflight(spec),
            *self.destination.preflight(spec),
        )

    def prepare(self, spec: TopologySpec, new: Collection[str] = ()) -> tuple[str, ...]:
        """Create the objects that the database needs for its roles; idempotent. Return the statements that were run.

        Args:
            spec: the wanted topology; this site may not have adopted it yet.
            new: components that the topology did not have before; leftovers of earlier components of these names are
                deleted.
        """
        site = self._database.site.name
        self._claim.hold()
        forget_queues(spec, site, new)
        forget_standby_logs(spec, site, new)
        will_be_source = is_source(spec, site)
        statements: list[str] = []
        if will_be_source:
            statements += self._begin_as_source()
            statements += self.source.prepare(spec)
        statements += self.destination.prepare(spec, new)
        self.source.tables.is_prepared()
        # Before `end_source`, the note still says source: until this topology is in force, another `up` may return to
        # one in which this site is a source.
        self._prepared.save(is_source=will_be_source or self._is_prepared())
        self.wake()
        return tuple(statements)

    def end_source(self) -> tuple[str, ...]:
        """Drop the database's objects of this site as a former source; idempotent.

        Returns the statements that were run. The redo stays until the site is prepared as a source again.

        Raises:
            DatabaseUnavailable: the database does not answer, or the log writer has not ended yet: retry.
        """
        if not self._is_prepared():
            return ()
        self._claim.hold()
        self._ends_source = True
        self._try_again()  # whatever error stopped it: it only has to release the redo log
        self.reopen()
        deadline = self._clock.monotonic() + END_WRITER_S
        while self.redo.writer is not None:
            if self._clock.monotonic() > deadline:
                raise DatabaseUnavailable(
                    f"{self.name}: the log writer has not ended yet",
                    hint=f"`headrace start FILE {self.name}` if it is stopped",
                )
            time.sleep(READ_TIMEOUT_S)
        statements = self.source.drop_objects()
        self.redo.end_source()
        self._prepared.save(is_source=False)
        return statements

    def stop_server(self) -> None:
        """End this component, and its database if that is embedded. Idempotent."""
        self.end()
        self._database.stop()

    def remove(self) -> tuple[str, ...]:
        """Drop the topology's objects in the site's database (`down --purge`)."""
        self._claim.hold()
        self.close()
        return self._database.remove(self._spec)

    def clear_up(self, keep_server: bool = False) -> None:  # noqa: FBT001, FBT002 - called by position, through Ray
        """End the component, destroy the embedded server unless it is kept, and delete the site's files."""
        self.end()
        if not keep_server:
            self._database.destroy()
        super().clear_up(keep_server)

    # ------------------------------------------------------------------ inside

    def _begin_as_source(self) -> tuple[str, ...]:
        """Delete the leftovers of an earlier time as a source; return where redo of an unknown end is kept."""
        kept: tuple[str, ...] = ()
        if not self._is_prepared() and self.redo.writer is None:
            kept = self.redo.forget_earlier(is_known=self._prepared.is_source is not None)
            self.source.tables.forget_receivers()
        self._ends_source = False
        return kept

    def _is_prepared(self) -> bool:
        """Return whether it is prepared as a source: a site that was only a destination has no log stream yet.

        Without the file of the note, the redo log decides.
        """
        noted = self._prepared.is_source
        return self.redo.was_prepared if noted is None else noted

    def _writes_redo(self) -> bool:
        return self.source.is_wanted and self._is_prepared() and not self._ends_source

    def _watch(self) -> float:
        self._database.check_running()
        if self._writes_redo():
            self._attach()
            return 0.0
        return WATCH_INTERVAL_S

    def _attach(self) -> None:
        self._claim.hold()
        self.redo.attach()

    def _keep_claim(self) -> None:
        """Keep the claim on a prepared database; `step` reports a lost claim."""
        if self._keeps_claim() and self._claim.refused is None:
            with suppress(RunsElsewhere):
                self._claim.hold()

    def _keeps_claim(self) -> bool:
        """Return whether the database is prepared, as a source or for apply processes."""
        is_noted = self._prepared.is_source is not None
        return self._is_prepared() or (is_noted and bool(applies_at(self._spec, self._database.site.name)))


def build(spec: TopologySpec, name: str, fingerprint: str) -> DatabaseSite:
    """Build the host of a site with a database (`actors.hosting.runtime.Factory`).

    Args:
        spec: the topology.
        name: name of the site.
        fingerprint: fingerprint of the topology that brought this component's part; shown in its status.
    """
    return DatabaseSite(spec, name, fingerprint)
