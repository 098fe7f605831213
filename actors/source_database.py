"""Site with a database: its embedded server, its log writer, its redo for captures, its preparation.

Longer than 500 lines: an actor is called by method name, so what the controller and the command line ask stands at the
host.

Job
    Manage one site that has a database: keep the embedded server running (or connect to the user's server),
    drain the source's log into the site's redo log, report to captures how far redo is durable, and write
    heartbeats. A site without capture processes has no log writer.

Main path
    DatabaseSite.step -> LogWriter.step -> RedoService.announce; `actors.site.sampling` queries the source's position.

States
    STARTING DATABASE        the embedded server or the user's server does not answer yet. Memory only.
    DATABASE DOES NOT ANSWER it did before, and does not any more, whatever the log writer saw last. Memory only.
    WAITING FOR PREPARATION  the database answers, and `prepare` was not called yet. `prepared.json` persists that it was.
    READY                    a site without a log writer.
    the log writer's own     WRITING, IDLE, PAUSED: REDO IS FULL, PAUSED: DISK IS FULL; see `headrace.redo.writing.log_writer`.

Durable when
    See the log writer. The embedded server is a separate daemon: it survives this process, and the next one finds it.

Worked flow
    the source's server stops -> LogStream.read raises DatabaseUnavailable -> the host opens again with backoff, the
    embedded server is started by `open` -> LogWriter.attach at its own SCN -> nothing lost, nothing twice
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from actors.hosting.runtime import session_folder
from actors.security.links import ray_folder_findings
from actors.security.wire import callers_of, links_of
from actors.site.captured_tables import CapturedTables
from actors.site.claim import SiteClaim
from actors.site.connection import access_to, embedded_server, remove_from, source_findings
from actors.site.host import SiteHost
from actors.site.redo_keeper import RedoKeeper, register_captures
from actors.site.sampling import Heartbeats, PositionSampler
from actors.site.standby_folders import forget_standby_logs
from actors.staging.queue_host import forget_queues
from actors.state_folder import make_private, site_folder
from headrace.base.durable_file import replace_file
from headrace.base.errors import (
    CapturedNoMore,
    ConfigError,
    DatabaseSetBack,
    DatabaseUnavailable,
    HeadraceError,
    PropagationError,
    RedoError,
    RunsElsewhere,
    UnsupportedType,
)
from headrace.databases.conflict_lists import conflict_list_findings
from headrace.databases.connectors import decoder_for, log_session_name, open_destination, open_source
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.table_name import TableName
from headrace.redo.writing.source_refusal import SourceRefusal
from headrace.rules.conflict_handlers import NO_CONFLICT_RULES, ConflictRules
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings
from headrace.status.sites import SiteStatus
from spark_apply.apply_config import COPIES_BESIDE
from spark_apply.copy.standing import renamed, table_findings
from topology.routing.downstream import receivers_from

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from actors.security.wire import MakeRedoLinks
    from headrace.databases.embedded.servers import EmbeddedServer
    from headrace.databases.ports import (
        CapturedTable,
        DestinationDatabase,
        DictionaryBuild,
        Finding,
        Instantiation,
        LogStream,
        SourceDatabase,
        TableShape,
    )
    from headrace.lcr.batch import TableVersion
    from headrace.links.serving import ServingRedo
    from headrace.redo.mining.names import NameOfNow
    from headrace.redo.writing.log_writer import LogWriter
    from headrace.rules.rule import RuleSet
    from topology.edits.receivers import Receivers
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["DatabaseSite", "build"]

READ_TIMEOUT_S = 0.1  # an idle read waits this long: positions without data are due ten times a second
FULL_PAUSE_S = 0.5  # a full redo log or disk is checked again this often
WATCH_INTERVAL_S = 1.0  # a site without a log writer only monitors its server
# While a redo receiver's acknowledgement is awaited: about as long as it takes, then, when it does not come, as often
# as an idle log writer looks.
AWAIT_MIN_S, AWAIT_MAX_S = 0.004, READ_TIMEOUT_S
# a log writer that lacks what the source had so long ago goes for throughput, as commits wait for longer than it takes
# to fill a record
BEHIND_S = 0.5
UNCAPTURED_INTERVAL_S = 30.0  # how often new tables are looked for: a query over all names of the catalog
END_WRITER_S = 10.0  # a log writer's step ends within a second, a pause after an error within five


class DatabaseSite(RedoKeeper, SiteHost):
    """One site with a database; see the module.

    Args:
        spec: the topology.
        name: of the site in it.
        fingerprint: of the topology; shown in its status.
        make_links: serves its redo.
    """

    def __init__(self, spec: TopologySpec, name: str, fingerprint: str, make_links: MakeRedoLinks = links_of) -> None:
        super().__init__(f"site:{name}", spec.state_dir)
        self._make_links = make_links
        self._spec = spec
        self._site = spec.site(name)
        self._fingerprint = fingerprint
        self._is_source = _is_source(spec, name)
        self._folder = site_folder(spec, name)
        self._claim = SiteClaim(spec, self._site)
        self._refusal = SourceRefusal(self._folder / "redo", self.name)
        self._server: EmbeddedServer | None = (
            embedded_server(spec, self._site) if self._site.database.kind == "embedded" else None
        )
        self._writer: LogWriter | None = None
        self._stream: LogStream | None = None
        self._source: SourceDatabase | None = None
        self._service: ServingRedo | None = None
        self._allow_binary = True
        self._sampler = PositionSampler(
            self.name,
            self._clock,
            open_source=self._open_source,
            is_source=lambda: self._is_source,
            keep_claim=self._keep_claim,
            look=self._look,
        )
        self._heartbeats = Heartbeats(self._clock)
        self._retained_bytes: int | None = None
        self._tables = CapturedTables(name, self._folder, self._open_source, has_admin=self._site.database.has_admin)
        self._uncaptured_at = 0.0
        self._ends_source = False  # it is no source any more: its log writer ends, and its slot is dropped
        self._awaiting_s = AWAIT_MIN_S

    # ------------------------------------------------------------------ hosting

    def open(self) -> None:
        """Start the embedded server, serve the existing redo, and attach the log writer to a new stream."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._server is not None:
            self._server.folder.mkdir(exist_ok=True)
            make_private(self._spec.state_dir)  # the server's user must get through
        if self._ends_source:
            self._drop_writer()
        if self._server is not None:
            self._server.start()
        self._sampler.start()
        if self._writes_redo():
            self._attach()

    def start_component(self) -> None:
        """See `Host.start_component`; also checks the claim again."""
        self._claim.forget()
        super().start_component()

    def step(self) -> float:
        """Let the log writer read a gulp; without a log writer, check the server."""
        if self._claim.refused is not None and self._keeps_claim():
            raise self._claim.refused
        writer = self._writer
        if writer is None or self._stream is None:
            return self._watch()
        if self._sampler.gone is not None:
            error, self._sampler.gone = self._sampler.gone, None
            if isinstance(error, CapturedNoMore):
                self._refusal.record(error)
            raise error
        # A commit may wait for the acknowledgement that is on its way: it wakes this thread, unless that waits for
        # data.
        is_awaiting = writer.is_awaiting
        try:
            wrote = writer.step(0.0 if is_awaiting else READ_TIMEOUT_S, behind_scn=self._behind_scn(writer))
        except UnsupportedType as error:
            # The next stream begins where redo ends, in the other form: nothing is lost.
            self._allow_binary = False
            raise DatabaseUnavailable(error.message, hint=error.hint) from error
        except RedoError as error:
            if not writer.state.startswith("PAUSED"):
                self._drop_writer()
                raise
            # The writer keeps what it has read: the stream stays open until there is space again.
            self._note(error)
            return FULL_PAUSE_S
        if wrote and self._service is not None:
            self._service.announce()
        if writer.state.startswith("PAUSED"):
            return FULL_PAUSE_S
        return self._await_pause_s(moved=wrote) if writer.is_awaiting else writer.pause_s

    def _behind_scn(self, writer: LogWriter) -> Scn:
        """Where the source's log is, if redo lacks what it had `BEHIND_S` ago.

        FIRST_SCN: redo keeps up, or commits wait for a receiver.
        """
        if writer.waits_for_receivers:
            return FIRST_SCN
        return self._sampler.end_of_log_beyond(writer.position.scn, for_s=BEHIND_S)

    def _await_pause_s(self, *, moved: bool) -> float:
        """How long to leave the stream alone while an acknowledgement is awaited, which wakes this thread.

        New data does not.
        """
        self._awaiting_s = AWAIT_MIN_S if moved else min(2 * self._awaiting_s, AWAIT_MAX_S)
        return self._awaiting_s

    def close(self) -> None:
        """Close the stream; the log writer and its service stay, so that captures can mine the existing redo."""
        if self._writer is not None:
            self._writer.detach()
        for closable in (self._stream, self._source):
            if closable is not None:
                closable.close()
        self._stream = self._source = None

    def adopt(self, spec: TopologySpec, fingerprint: str) -> None:
        """See `Host.adopt`. Serves changed capture processes; a site that is no longer a source ends its log writer."""
        self._spec, self._site = spec, spec.site(self._site.name)
        self._is_source = _is_source(spec, self._site.name)
        if self._service is not None:
            self._service.admit(callers_of(spec, self.name))
        if self._writer is not None and self._is_source:
            self._register_captures(self._writer)
        elif self._writer is not None:
            self.close()
            self._drop_writer()
        self._fingerprint = fingerprint

    def end(self) -> bool:
        """End everything of this process; the embedded server goes on."""
        ended = super().end()
        self._sampler.stop()
        self._claim.close()
        if self._service is not None:
            self._service.stop()
        self._drop_writer()
        return ended

    def detail_state(self) -> str:
        """See the module."""
        if not self._sampler.has_answered:
            return "STARTING DATABASE"
        if not self._sampler.is_answering:
            return "DATABASE DOES NOT ANSWER"
        if not self._is_source:
            return "READY"
        writer = self._writer  # the component's own thread may drop it at any time
        return "WAITING FOR PREPARATION" if self._stream is None or writer is None else writer.state

    def details(self) -> SiteStatus:
        """The log writer's statistics and facts about the database."""
        writer = self._writer  # the component's own thread may drop it at any time
        status = SiteStatus(
            name=self.name,
            site=self._site.name,
            fingerprint=self._fingerprint,
            wire=None if self._service is None else self._service.wire_status(),
            database=self._site.database.kind,
            ready=self._sampler.is_answering,
            is_source=self._is_source,
            heartbeats_total=self._heartbeats.written,
            # Old facts about a source that does not answer say nothing about how far a destination is behind.
            source_scn=self._sampler.source_scn,
            source_samples=tuple(self._sampler.samples),
            database_problem=self._sampler.problem,
            database_fix=self._sampler.fix,
            server_pid=None if self._server is None else self._server.pid() or 0,
        )
        if self._is_source:
            status = replace(
                status,
                is_prepared=self._is_prepared(),
                source_retained_bytes=self._retained_bytes,
                uncaptured_tables=tuple(self._tables.uncaptured),
                strayed_tables=tuple(self._tables.strayed),
                strayed_renames=tuple(self._tables.renames),
                lost_columns=tuple(self._tables.lost_columns),
                refused_changes=self._tables.refused,
                held_up_by=tuple(self._sampler.held_up_by),
            )
        return status if writer is None else self._with_redo(status, writer)

    def _with_redo(self, status: SiteStatus, writer: LogWriter) -> SiteStatus:
        statistics, options = writer.statistics(), writer.options
        return replace(
            self.with_log(status, statistics),
            problem=statistics.problem or self._waits_in_vain(writer),
            bytes_total=statistics.data_bytes,
            resumes_total=statistics.resumes,
            redo_receivers=writer.shipping.status(),
            stream_form=None if options is None else "binary" if options.binary else "text",
        )

    def _waits_in_vain(self, writer: LogWriter) -> str:
        """Why nothing is confirmed to the database, for the operator; empty: it is."""
        away, stalled = writer.shipping.awaited_in_vain(), writer.shipping.stalled()
        if not away and not stalled:
            return ""
        session = log_session_name(self._site.database.kind, self._spec.name, self._site.name)
        if not away:
            return (
                f"confirms nothing to the database, because {', '.join(stalled)} is connected and takes nothing, and"
                " transport is sync: where "
                f"synchronous_standby_names names {session}, commits wait; see the problem of redo:{stalled[0]} and the"
                " disk there, or write transport: async and `headrace up`"
            )
        return (
            f"confirms nothing to the database, because {', '.join(away)} is away and transport is sync: where"
            " synchronous_standby_names "
            f"names {session}, commits wait; start it (`headrace start FILE redo:{away[0]}`), or write transport: async"
            " and `headrace up`"
        )

    def kept_redo(self) -> LogWriter | None:
        """See `RedoKeeper.kept_redo`."""
        return self._writer

    def endpoint(self) -> str:
        """Where captures watch the redo log."""
        if self._service is None:
            raise PropagationError(f"{self.name} does not serve redo yet")
        return self._service.endpoint

    # ------------------------------------------------------------------ what the controller and the command line ask

    def database_dsn(self) -> str:
        """The connection string, with the password: only for components, never displayed."""
        if self._server is None:
            return str(self._site.database.dsn)
        if not self._server.is_running:
            raise DatabaseUnavailable(f"{self.name}: the embedded server does not run yet")
        return str(self._server.dsn())

    def database_identity(self) -> str:
        """The identity of the site's database."""
        with closing(self._open_source() if self._is_source else self._open_destination()) as database:
            return database.database_identity()

    def claimed_dsn(self) -> str:
        """The connection string for components that write; see `database_dsn`.

        Raises:
            RunsElsewhere: another copy of the topology uses the database.
        """
        with suppress(DatabaseUnavailable):  # the writer waits for the database as well
            self._claim.hold()
        return self.database_dsn()

    def take_over(self) -> None:
        """End the claim of a copy of the topology elsewhere, and claim the database for this one; idempotent."""
        self._claim.hold(take_over=True)
        self._try_again()

    def preflight(self, spec: TopologySpec) -> tuple[Finding, ...]:
        """Claim the database, and check it for a topology that this site need not have adopted yet."""
        if refused := self._claim.findings():
            return refused
        findings: list[Finding] = []
        if (session := session_folder()) is not None:
            findings += ray_folder_findings(self._site, session)
        if _is_source(spec, self._site.name):
            with closing(self._open_source()) as source:
                findings += source_findings(spec, self._site, source)
        applies = _applies_at(spec, self._site.name)
        if applies:
            with closing(self._open_destination()) as destination:
                findings += destination.preflight(
                    spec.name,
                    sessions=sum(apply.parallelism for apply in applies),
                    applies=len(applies),
                    copies=COPIES_BESIDE * len(applies),
                )
        return tuple(findings)

    def prepare(self, spec: TopologySpec, new: Collection[str] = ()) -> tuple[str, ...]:
        """Create the objects that the database needs for its roles; idempotent. Returns the statements that were run.

        Args:
            spec: the wanted topology; this site need not have adopted it yet.
            new: components that the topology did not have before; what they left from an earlier time is deleted.
        """
        self._claim.hold()
        statements: list[str] = []
        forget_queues(spec, self._site.name, new)
        forget_standby_logs(spec, self._site.name, new)
        is_source, applies = _is_source(spec, self._site.name), _applies_at(spec, self._site.name)
        if is_source:
            statements += self._begin_as_source()
            with closing(self._open_source()) as source:
                statements += source.prepare(spec.name, self._rules(spec))
                self._tables.take_up(source, spec)
        if applies:
            with closing(self._open_destination()) as destination:
                statements += destination.prepare(spec.name)
                for apply in applies:
                    if apply.conflicts.with_tombstones:
                        statements += destination.keep_tombstones(apply.conflicts.with_tombstones)
                    if f"apply:{apply.name}" in new:
                        statements += destination.forget(spec.name, apply.name)
        self._tables.is_prepared()
        # Not before `end_source`: until this topology is valid, another `up` may go back to one in which it is a
        # source.
        self._note_prepared(is_source=is_source or self._is_prepared())
        self.wake()
        return tuple(statements)

    def end_source(self) -> tuple[str, ...]:
        """Drop what the database has of this site as a source, which it is no more; idempotent.

        Returns the statements that were run.

        The redo stays until the site is prepared as a source again.

        Raises:
            DatabaseUnavailable: the database does not answer, or the log writer has not ended yet: call again.
        """
        if not self._is_prepared():
            return ()
        self._claim.hold()
        self._ends_source = True
        self._try_again()  # whatever it ended with: it has only to let go of the redo log
        self.reopen()
        deadline = self._clock.monotonic() + END_WRITER_S
        while self._writer is not None:
            if self._clock.monotonic() > deadline:
                raise DatabaseUnavailable(
                    f"{self.name}: the log writer has not ended yet",
                    hint=f"`headrace start FILE {self.name}` if it is stopped",
                )
            time.sleep(READ_TIMEOUT_S)
        with closing(self._open_source()) as source:
            statements: tuple[str, ...] = source.remove(self._spec.name)
        self._refusal.end()
        self._note_prepared(is_source=False)
        return statements

    def stop_server(self) -> None:
        """End this component, and its database if that is embedded. Idempotent."""
        self.end()
        if self._server is not None:
            self._server.stop()

    def uncaptured(self, spec: TopologySpec, noted: Receivers | None = None) -> tuple[str, ...]:
        """Tables that `prepare` for a topology would add or remove now.

        They were created or renamed after the last `prepare`: the rules select tables that are not captured, or no rule
        selects a captured table any more.

        Args:
            spec: the topology.
            noted: see `CapturedTables.look`.
        """
        if not _is_source(spec, self._site.name):
            return ()
        with closing(self._open_source()) as source:
            return self._tables.look(source, spec, noted)

    def names_of_now(self) -> dict[int, NameOfNow]:
        """See `CapturedTables.names_of_now`."""
        return self._tables.names_of_now(self._spec)

    def captured(self) -> tuple[CapturedTable, ...]:
        """See `CapturedTables.captured`."""
        return self._tables.captured(self._spec.name)

    def note_receivers(self, noted: Receivers) -> None:
        """See `CapturedTables.note_receivers`."""
        self._tables.note_receivers(noted)

    def receivers(self) -> Receivers:
        """See `CapturedTables.receivers`."""
        return self._tables.receivers()

    def instantiations(self, apply: str) -> tuple[Instantiation, ...]:
        """What is recorded here about the instantiation of an apply process's tables.

        Args:
            apply: name of the apply process.
        """
        with closing(self._open_destination()) as destination:
            return destination.instantiations(self._spec.name, apply)

    def leave_out(self, apply: str, kept: Sequence[str]) -> tuple[str, ...]:
        """Record at this destination that an apply process receives only the changes of these tables from now on.

        Args:
            apply: name of the apply process.
            kept: identities of these tables.

        Returns:
            The names of the tables that left.

        Raises:
            RunsElsewhere: another copy of the topology uses the database: what is recorded there is of its apply
                processes.
        """
        self._claim.hold()
        with closing(self._open_destination()) as destination:
            return tuple(
                f"{table.owner}.{table.name}" for table in destination.leave_out(self._spec.name, apply, kept=kept)
            )

    def leave_out_others(self, applies: Collection[str]) -> tuple[str, ...]:
        """Record at this destination that nothing comes any more to apply processes that the topology does not have here; idempotent.

        Args:
            applies: the apply processes that it has here.

        Returns:
            The names of those that left.

        Raises:
            RunsElsewhere: as `leave_out`.
        """
        self._claim.hold()
        with closing(self._open_destination()) as destination:
            others = tuple(name for name in destination.recorded_applies(self._spec.name) if name not in applies)
            return tuple(name for name in others if destination.leave_out(self._spec.name, name, kept=()))

    def filled(self, apply: str, tables: Sequence[TableName]) -> tuple[TableName, ...]:
        """The tables here that have rows of which none is of an unfinished copy of another apply process.

        Args:
            apply: name of the apply process.
            tables: their names here.
        """
        with closing(self._open_destination()) as destination:
            return tuple(
                table
                for table in destination.filled(tables)
                if all(other.is_finished for other in destination.other_copies(self._spec.name, apply, *table))
            )

    def table_versions(self, rules: Sequence[RuleSet]) -> tuple[TableVersion, ...]:
        """The selected tables as the log will describe them."""
        with closing(self._open_source()) as source:
            return source.table_versions(source.tables(rules))

    def domain_shapes(self, tables: Sequence[TableName]) -> tuple[TableShape, ...]:
        """What the log does not say of the types of these tables' columns."""
        with closing(self._open_source()) as source:
            return source.domain_shapes(tables)

    def preflight_tables(
        self,
        versions: Sequence[TableVersion],
        apply: str = "",
        conflicts: ConflictRules = NO_CONFLICT_RULES,
        tables: TableSettings = NO_TABLE_SETTINGS,
        identities: Mapping[TableName, str] | None = None,
        domains: Sequence[TableShape] = (),
        at_source: Mapping[TableName, TableName] | None = None,
    ) -> tuple[Finding, ...]:
        """The reasons why these tables of a source, as they are now, cannot be applied here.

        Args:
            versions: the tables.
            apply: name of the apply process.
            conflicts: its conflict handlers, which must fit the tables.
            tables: what is set for its tables.
            identities: of those that are captured, by their names here.
            domains: from `domain_shapes` of the source, by their names here.
            at_source: the names that they have there, by their names here; None: not known.
        """
        with closing(self._open_destination(tables)) as destination:
            old_names = renamed(identities or {}, destination.instantiations(self._spec.name, apply))
            # What a column's type lacks comes before the ALTER that gives the type to the column.
            found = [
                *destination.preflight_domains(domains),
                *table_findings(destination, versions, old_names, self._site.name, at_source=at_source),
            ]
            if conflicts.times is not None:
                found += destination.preflight_times(conflicts.timed, has_tombstones=conflicts.times.has_tombstones)
            for version in versions if conflicts != NO_CONFLICT_RULES else ():
                table = destination.describe(version.owner, version.name)
                found += (
                    ()
                    if table is None
                    else conflict_list_findings(
                        apply,
                        conflicts,
                        version,
                        table,
                        at_source=(at_source or {}).get(TableName.of(version)),
                    )
                )
            return tuple(found)

    def write_marker(self, content: bytes) -> int:
        """Write a marker into the source's log; everything committed before has a commit SCN <= the returned one."""
        if not self._is_source:
            raise ConfigError(f"nothing is captured from site {self._site.name}")
        with closing(self._open_source()) as source:
            return source.write_marker(content)

    def remove(self) -> tuple[str, ...]:
        """Drop the topology's objects in the site's database (`down --purge`)."""
        self._claim.hold()
        self.close()
        return remove_from(self._spec, self._site, self.database_dsn())

    def clear_up(self, keep_server: bool = False) -> None:  # noqa: FBT001, FBT002 - called by position, through Ray
        """See `SiteHost.clear_up`."""
        self.end()
        if self._server is not None and not keep_server:
            self._server.destroy()
        super().clear_up(keep_server)

    # ------------------------------------------------------------------ inside

    def _open_source(self) -> SourceDatabase:
        return open_source(access_to(self._site, self.database_dsn()))

    def _open_destination(self, tables: TableSettings = NO_TABLE_SETTINGS) -> DestinationDatabase:
        return open_destination(access_to(self._site, self.database_dsn(), tables))

    def _rules(self, spec: TopologySpec) -> tuple[RuleSet, ...]:
        return spec.capture_rules(self._site.name)

    @property
    def _prepared_file(self) -> Any:  # noqa: ANN401 - a Path
        return self._folder / "prepared.json"

    def _note_prepared(self, *, is_source: bool) -> None:
        replace_file(self._prepared_file, json.dumps({"topology": self._spec.name, "is_source": is_source}) + "\n")

    def _begin_as_source(self) -> tuple[str, ...]:
        """Forget what an earlier time as a source left: the log has gone on without it, and its slot is gone.

        Returns:
            Where redo is kept of which no file says that it ended; it is nobody's but an operator's to remove.
        """
        kept: tuple[str, ...] = ()
        redo = self._folder / "redo"
        if not self._is_prepared() and self._writer is None:
            if not self._prepared_file.exists() and redo.is_dir() and any(redo.iterdir()):
                aside = next(
                    path
                    for number in itertools.count(1)
                    if not (path := self._folder / f"redo.aside-{number}").exists()
                )
                redo.rename(aside)
                kept = (
                    f"-- redo of an earlier time, which no file of the site knows, is kept in {aside}: remove it when"
                    " nothing of it is needed",
                )
            shutil.rmtree(redo, ignore_errors=True)
            self._tables.forget_receivers()
        self._ends_source = False
        return kept

    def _is_prepared(self) -> bool:
        """Whether it is prepared as a source: a site that was only a destination has no log stream yet.

        Without its file, redo says so.
        """
        try:
            return bool(json.loads(self._prepared_file.read_text(encoding="utf-8")).get("is_source"))
        except FileNotFoundError:
            return self._refusal.was_prepared

    def _writes_redo(self) -> bool:
        return self._is_source and self._is_prepared() and not self._ends_source

    def _watch(self) -> float:
        if self._server is not None and not self._server.is_running:
            raise DatabaseUnavailable(f"{self.name}: the embedded server does not run")
        if self._writes_redo():
            self._attach()
            return 0.0
        return WATCH_INTERVAL_S

    def _attach(self) -> None:
        """Open the redo log, if it is closed, and a stream that begins where redo ends."""
        self._claim.hold()
        self._source = self._open_source()
        writer = self._writer or self._open_writer()
        self._refusal.check()
        try:
            self._refusal.check_prepared(self._source.check_prepared(self._spec.name, writer.start_scn))
            stream = self._source.open_stream(
                self._spec.name,
                writer.start_scn,
                timeline=writer.timeline,
                allow_binary=self._allow_binary,
                last_transaction=writer.last_transaction,
                last_commit_scn=writer.last_commit_scn,
            )
        except (DatabaseSetBack, CapturedNoMore) as error:
            self._refusal.record(error)
            raise
        try:
            writer.attach(stream, partial(self._source.check_stream, stream.options))
        except BaseException:
            stream.close()
            raise
        self._stream = stream
        if self._service is not None:
            self._service.announce()

    def _open_writer(self) -> LogWriter:
        from headrace.redo.writing.log_writer import LogWriter

        writer = LogWriter(
            self._folder / "redo",
            self._site.name,
            decoder_factory=decoder_for,
            dictionary_build=self._dictionary_build,
            segment_bytes=self._spec.segment_bytes,
            redo_bytes_max=self._spec.redo_bytes_max,
        )
        self._register_captures(writer)
        self._writer = writer
        if self._service is None:
            links = self._make_links(self._spec, self._site.name, self.name, self.wake)
            self._service = links.serve_redo(self._site.name, writer, writer.shipping, self._acknowledged)
        else:
            self._service.attach(writer, writer.shipping)
        return writer

    def _register_captures(self, writer: LogWriter) -> None:
        """Keep redo for this site's capture processes and the redo receivers of others only."""
        receivers = receivers_from(self._spec, self._site.name)
        # Receivers first: a capture process that is to mine elsewhere needs the redo that it needed here.
        writer.shipping.register({each.name: each.is_sync for each in receivers})
        writer.switch_after_s = min((each.archive_lag_s for each in receivers if each.is_archived_log), default=None)
        captures = [each.name for each in self._spec.captures if each.source == each.site == self._site.name]
        register_captures(writer.required_checkpoints, self._spec, captures)

    def _acknowledged(self) -> None:
        """A redo receiver has more durably: confirm it at once where commits wait for that."""
        writer = self._writer
        if writer is not None and writer.waits_for_receivers:
            self.wake()

    def _dictionary_build(self, *, seeing: Collection[int] = ()) -> DictionaryBuild | None:
        assert self._source is not None
        return self._source.dictionary_build(self._spec.name, seeing=seeing)

    def _drop_writer(self) -> None:
        """Drop the log writer: the next one reads its state from disk."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def _keep_claim(self) -> None:
        """Keep the claim on a prepared database; `step` reports a lost claim."""
        if self._keeps_claim() and self._claim.refused is None:
            with suppress(RunsElsewhere):
                self._claim.hold()

    def _keeps_claim(self) -> bool:
        """Whether the database is prepared, as a source or for apply processes."""
        return self._is_prepared() or (self._prepared_file.exists() and bool(_applies_at(self._spec, self._site.name)))

    def _look(self, source: SourceDatabase) -> None:
        """Check what else may have changed in the database, while a stream is open."""
        if self._stream is None:
            return
        self._retained_bytes = source.retained_bytes(self._spec.name)
        writer = self._writer
        if writer is not None:
            # Also while a full redo log stops the log writer: the growing log may cost us the slot.
            self._refusal.check_prepared(source.check_prepared(self._spec.name, writer.start_scn))
        if self._clock.monotonic() >= self._uncaptured_at:
            self._uncaptured_at = self._clock.monotonic() + UNCAPTURED_INTERVAL_S
            self._tables.look(source, self._spec)
        if writer is not None:
            self._heartbeats.write_if_silent(source, writer.statistics().data_bytes, self._spec.heartbeat_s)

    def _note(self, error: HeadraceError) -> None:
        self._error, self._error_us = error, self._clock.time_us()
        self._errors_total += 1


def _is_source(spec: TopologySpec, site: str) -> bool:
    return any(capture.source == site for capture in spec.captures)


def _applies_at(spec: TopologySpec, site: str) -> tuple[ApplySpec, ...]:
    return tuple(apply for apply in spec.applies if apply.site == site)


def build(spec: TopologySpec, name: str, fingerprint: str) -> DatabaseSite:
    """Make the host of a site with a database; called by name, see `actors.hosting.runtime.Factory`.

    Args:
        spec: the topology.
        name: of the site in it.
        fingerprint: of the topology that brought this component's part; shown in its status.
    """
    return DatabaseSite(spec, name, fingerprint)
