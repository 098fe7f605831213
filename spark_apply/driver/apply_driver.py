"""One incarnation of an apply process: copies the tables, then reads, coordinates and applies until it is stopped.

Job
    Be the only coordinator of its apply process, on threads of the process that hosts it.

Main path
    ApplyDriver.start -> prepare and raise_epoch at the destination -> serve_apply (the coordinator's endpoint) -> the
    first time: ask_beginning -> TableInstantiation.run_first -> a run of apply servers at the site's Spark application
    -> CoordinatorHost.run, and TableInstantiation.run_beside on a separate thread.

States
    INITIALIZING    it prepares the destination and asks the queue where to begin. Memory only.
    INSTANTIATING   tables are being copied; each table's state is recorded at the destination.
    then the coordinator's: see `coordinator` and `reader`.

Durable when
    Everything durable is at the destination. The process can be killed at any time: the next incarnation raises the
    epoch, which ends this one's sessions there, and continues from the recorded progress. An apply process begins at
    its first low watermark, which is recorded before a table is copied. The queue keeps everything after it, and every
    instantiation SCN is later, so nothing is missing in between.

Ends when
    `stop` is called, a newer incarnation took over, or it cannot continue; then `outcome` raises the reason. Its calls
    to the Spark application end with it, and so do its tasks.

Worked flow
    epoch 7, progress 400 -> servers 0 and 1 of apply/7 join -> the application is killed: both are lost, two groups in
    doubt -> another application runs servers 0 and 1, still under epoch 7 -> one group was committed, the other is
    assigned again
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial, reduce
from itertools import permutations
from typing import TYPE_CHECKING, TypeVar

from headrace.base.backoff import Backoff
from headrace.base.errors import BugError, DatabaseUnavailable, HeadraceError
from headrace.databases.connectors import open_destination, open_reader, open_source, value_types
from headrace.lcr.scn import FIRST_SCN
from headrace.lcr.table_name import TableName
from headrace.lcr.tracking import TrackLog
from protos import apply_pb2 as pb
from protos.links.apply_link import serve_apply
from protos.links.grpc_links import GrpcLinks
from protos.wire.admission import Admission
from protos.wire.transport import epoch_incarnation
from spark_apply.application.task_runs import ApplicationAccess, TaskRunner
from spark_apply.copy.instantiation import TableInstantiation
from spark_apply.copy.pieces.workers import SparkCopyWorkers
from spark_apply.copy.ways.both_ways import BothWays
from spark_apply.driver.control import ApplyControl, Cores
from spark_apply.driver.gate import Gate
from spark_apply.driver.index_jobs import IndexJobs
from spark_apply.driver.join_calls import LoopJoinCalls

if TYPE_CHECKING:
    from headrace.databases.ports import ApplyProgress, DestinationDatabase
    from headrace.lcr.batch import TableVersion
    from headrace.lcr.scn import Scn
    from headrace.rules.user_code.last_call import LastCall
    from protos.wire.identity import Peer
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.copy.pieces.board import BoardSlot
    from spark_apply.driver.loop.host import CoordinatorHost
    from spark_apply.driver.source_questions import TablesOfNow
    from spark_apply.tables.arriving import TableStart

__all__ = ["ApplyDriver"]

_ORDERLY_END_TIMEOUT_S = 2.0  # for stopped servers to close their sessions
_RUN_END_TIMEOUT_S = 5.0  # an ended call returns within milliseconds

log = logging.getLogger("headrace.apply")

_Found = TypeVar("_Found")


class ApplyDriver:
    """One incarnation of an apply process.

    Args:
        queue: returns the current endpoint of its queue.
        application: returns the current endpoint of the site's Spark application; raises a HeadraceError while none
            runs.
        tracks: receives notes on labelled transactions.
        last_call: record of transformation calls that outlives a function that ends the process.
    """

    def __init__(
        self,
        config: ApplyConfig,
        *,
        queue: Callable[[], Peer | str],
        application: Callable[[], ApplicationAccess],
        tracks: TrackLog | None = None,
        last_call: LastCall | None = None,
    ) -> None:
        self._tracks, self._last_call = tracks, last_call
        self._config, self._queue, self._application = config, queue, application
        self.control = ApplyControl(config)
        self.admission = Admission(f"apply {config.apply}", config.identity)
        self._failure: HeadraceError | None = None
        self._has_stopped_applying = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"apply-{config.apply}", daemon=True)

    # ------------------------------------------------------------------ its owner

    def start(self) -> None:
        """Start; returns at once."""
        self._thread.start()

    def outcome(self) -> None:
        """Raise the reason if it has ended with an error.

        Raises:
            HeadraceError: it cannot continue.
        """
        if not self._thread.is_alive() and self._failure is not None:
            raise self._failure

    def stop(self, timeout_s: float) -> None:
        """End in order: servers may finish their current group within `timeout_s` seconds."""
        if self._thread.is_alive():
            self.control.stop(timeout_s)

    def join(self, timeout_s: float) -> bool:
        """Wait until it has ended completely; return False on time-out."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ------------------------------------------------------------------ the driver's thread

    def _run(self) -> None:
        try:
            with contextlib.closing(open_destination(self._config.destination)) as destination:
                self._drive(destination)
        except HeadraceError as error:
            if not self._should_end():
                self._failure = error
        except Exception as error:
            log.exception("%s: unexpected error", self._config.apply)
            self._failure = BugError(
                f"apply {self._config.apply}: {type(error).__name__}: {error}",
                hint="see the log of its process; report it",
            )

    def _drive(self, destination: DestinationDatabase) -> None:
        config, control = self._config, self.control
        self._persist(lambda: destination.prepare(config.topology))
        progress = self._persist(lambda: destination.raise_epoch(config.topology, config.apply))
        gate = Gate(config)
        server = serve_apply(config.host, gate, servers=config.parallelism, admission=self.admission)
        try:
            runner = TaskRunner(
                config=config,
                find=self._application,
                tokens=gate.tokens,
                endpoint=server.endpoint,
                epoch=int(progress.epoch),
            )
            control.runner = runner
            if progress.low_watermark == FIRST_SCN:
                progress = self._begin(destination, progress)
            with self._copying(runner, gate.boards, progress) as copying:
                control.enter("INSTANTIATING")
                control.instantiation = copying
                copying.run_first()
                if not self._should_end():
                    self._apply(runner, gate, destination, progress, copying)
        finally:
            control.runner = None
            server.stop()

    def _begin(self, destination: DestinationDatabase, progress: ApplyProgress) -> ApplyProgress:
        """Record, on the first start, where the queue begins for this apply process."""
        from spark_apply.driver.loop.dequeuing import ask_beginning

        config, control = self._config, self.control
        scn = ask_beginning(
            config,
            self._links(progress.epoch),
            should_end=self._should_end,
            problem=lambda problem: control.enter("INITIALIZING", problem),
        )
        self._persist(lambda: destination.record_low_watermark(config.topology, config.apply, progress.epoch, scn))
        return replace(progress, low_watermark=scn)

    def _links(self, epoch: int, wake: Callable[[], None] | None = None) -> GrpcLinks:
        """Return the links to the queue, or to the capture process that serves in its place."""
        config = self._config
        return GrpcLinks(
            config.topology, config.apply, lambda _: self._queue(), wake=wake, incarnation=epoch_incarnation(epoch)
        )

    @contextlib.contextmanager
    def _copying(self, runner: TaskRunner, boards: BoardSlot, progress: ApplyProgress) -> Iterator[TableInstantiation]:
        """Yield the table instantiation, on its own connections."""
        config, control = self._config, self.control
        with contextlib.ExitStack() as opened:
            source = opened.enter_context(contextlib.closing(open_source(config.source)))
            destination = opened.enter_context(contextlib.closing(open_destination(config.destination)))
            source_reader, destination_reader = (
                opened.enter_context(contextlib.closing(open_reader(*each, application_name="headrace instantiation")))
                for each in permutations((config.source, config.destination))
            )
            there = opened.enter_context(contextlib.closing(open_destination(config.source)))
            yield TableInstantiation(
                config=config,
                source=source,
                destination=destination,
                source_reader=source_reader,
                both_ways=BothWays(
                    topology=config.topology,
                    here=config.destination.site,
                    there=config.source.site,
                    records=there,
                    captured=self._captured_here,
                    position=self._position_here,
                ),
                destination_reader=destination_reader,
                epoch=progress.epoch,
                moved=control.table_moved,
                workers=SparkCopyWorkers(runner, boards, should_end=self._copies_end),
                should_end=self._copies_end,
                applied_scn=max(progress.low_watermark, progress.ahead_scn),
            )

    def _captured_here(self) -> dict[TableName, str]:
        """Return the identities of the destination's captured tables, by name."""
        with contextlib.closing(open_source(self._config.destination)) as database:
            return {TableName.of(each): each.identity for each in database.captured(self._config.topology)}

    def _position_here(self) -> Scn:
        """Return an SCN of the destination above every earlier commit there."""
        with contextlib.closing(open_source(self._config.destination)) as database:
            return database.write_marker(b"returned")

    def _apply(
        self,
        runner: TaskRunner,
        gate: Gate,
        destination: DestinationDatabase,
        progress: ApplyProgress,
        copying: TableInstantiation,
    ) -> None:
        """Run the coordinator with the apply servers, and the copies on a separate thread."""
        starts, hold_scn = copying.starts()
        cores = self._make_cores(destination, progress, starts)
        host = cores.host
        gate.inbox = host.inbox
        host.joins.hold(hold_scn)
        servers = runner.start(
            pb.TASK_KIND_APPLY_SERVER,
            self._config.parallelism,
            is_kept=True,
            moved=lambda is_accepted: host.inbox.post(lambda: host.servers.accepted(is_accepted=is_accepted)),
        )
        self.control.cores = replace(cores, servers=servers)
        joins = LoopJoinCalls(host, self._copies_end)
        beside = self._beside("copying tables", lambda: copying.run_beside(joins), host)
        jobs = IndexJobs(self._config, progress.epoch, self._copies_end)
        self.control.jobs = jobs
        making = self._beside("making indexes", jobs.run, host)
        try:
            host.run(self._should_end)
        finally:
            self._has_stopped_applying.set()
            jobs.end()
            if self._should_end():
                servers.join(_ORDERLY_END_TIMEOUT_S)
            servers.close()
            servers.join(_RUN_END_TIMEOUT_S)
            making.join()
            beside.join()  # two of them must never live in one process; the waiting caller ends the process

    def _beside(self, what: str, work: Callable[[], None], host: CoordinatorHost) -> threading.Thread:
        """Start a thread that works while rows are applied; an error there ends the loop.

        Args:
            what: it does, for messages.
            work: returns when the driver ends.
            host: of the loop.
        """

        def run() -> None:
            try:
                work()
            except HeadraceError as error:
                host.inbox.fail(error)
            except Exception as error:
                log.exception("%s: %s", self._config.apply, what)
                message = f"{what}: {type(error).__name__}: {error}"
                host.inbox.fail(BugError(message, hint="see the component's log; report it"))

        thread = threading.Thread(target=run, name=what, daemon=True)
        thread.start()
        return thread

    def _copies_end(self) -> bool:
        """Return whether copying must stop: the driver ends, or its coordinator has ended."""
        return self._should_end() or self._has_stopped_applying.is_set()

    def _make_cores(
        self,
        destination: DestinationDatabase,
        progress: ApplyProgress,
        starts: Mapping[tuple[str, str], TableStart],
    ) -> Cores:
        """Make the reader, the coordinator and their host."""
        from headrace.rules.evaluation import RuleEvaluation
        from protos import codec
        from spark_apply.copy.records.standing import unlisted
        from spark_apply.driver.coordinator import ApplyCoordinator
        from spark_apply.driver.loop.host import CoordinatorHost
        from spark_apply.driver.reader import ApplyReader
        from spark_apply.driver.settling import DdlSettling
        from spark_apply.driver.source_questions import SourceQuestions, TablesOfNow
        from spark_apply.tables.arriving import ArrivingTables
        from spark_apply.tables.fits import TableFits

        config = self._config
        of_now = TablesOfNow(lambda name: _table_of_now(name, config))
        fits = TableFits.of(
            config,
            lambda owner, name: self._persist(lambda: destination.describe(owner, name)),
            lambda version: self._persist(lambda: _missing_alter(destination, version, config, of_now)),
        )
        errors = self._persist(lambda: list(destination.error_key_hashes(config.topology, config.apply)))
        questions = SourceQuestions(self._identities, self.control.stopped)
        recorded = self._persist(lambda: destination.instantiations(config.topology, config.apply))
        ours = [each for each in recorded if each.source == config.source.site]
        reader = ApplyReader(
            source=config.source.site,
            progress=progress,
            rules=RuleEvaluation(*config.rules, types=value_types(), last_call=self._last_call),
            fits=fits,
            tables=ArrivingTables(
                starts,
                config.tables,
                questions.identity_of,
                apply=config.apply,
                topology=config.topology,
                unlisted=unlisted(config.tables, ours) if config.takes_ddl else (),
            ),
            returned_from=config.returned_from,
            tracks=self._tracks,
            settling=DdlSettling(config, destination, self.control.table_moved),
        )
        coordinator = ApplyCoordinator(
            progress=progress,
            errors=errors,
            encode=codec.encode,
            group_transactions=config.group_transactions,
            group_rows=config.group_rows,
            source=config.source.site,
            tracks=self._tracks,
            commits_in_order=config.commits_in_order,
            on_error=config.on_error,
        )
        host = CoordinatorHost(
            config,
            epoch=progress.epoch,
            destination=destination,
            reader=reader,
            coordinator=coordinator,
            fits=fits,
            make_links=partial(self._links, progress.epoch),
        )
        return Cores(host=host, reader=reader, coordinator=coordinator, epoch=progress.epoch)

    def _identities(self) -> dict[int, str]:
        """Return each captured table's identity at the source, by object number of the table and its partitions."""
        config = self._config
        with contextlib.closing(open_source(config.source)) as source:
            captured = source.captured(config.topology)
        return {int(number): table.identity for table in captured for number in table.object_numbers}

    def _should_end(self) -> bool:
        return self.control.should_end

    def _persist(self, ask: Callable[[], _Found]) -> _Found:
        """Ask a database until it answers or the driver ends.

        Raises:
            DatabaseError: it answered with a permanent error.
        """
        backoff = Backoff()
        while True:
            try:
                found = ask()
            except DatabaseUnavailable as error:
                self.control.detail = error.message
                if self.control.stopped.wait(backoff.next_s()):
                    raise
            else:
                self.control.detail = ""
                return found


def _missing_alter(
    destination: DestinationDatabase, version: TableVersion, config: ApplyConfig, of_now: TablesOfNow
) -> str:
    """Return what the operator must do before rows of `version` can be applied; empty: they fit.

    Args:
        destination: the destination, asked synchronously.
        version: table version of the arriving rows.
        config: configuration of the apply process.
        of_now: the source's current tables, asked in the background; the next look has a better answer.
    """
    from headrace.lcr.table_name import TableName
    from spark_apply.copy.records.standing import another_table, missing_rename, rename_fix

    if destination.describe(version.owner, version.name) is None:
        recorded = destination.instantiations(config.topology, config.apply)
        old = missing_rename(version, config.tables, recorded)
        if old is not None and destination.describe(*old) is not None and not destination.is_reserved(version.owner):
            return rename_fix(destination, old, TableName.of(version), {})
    elif TableName.of(version) not in {each.destination for each in config.tables if not each.takes_ddl} and (
        hint := another_table(version, config.tables, destination.instantiations(config.topology, config.apply))
    ):
        return hint
    if not any(finding.is_error for finding in destination.preflight_tables((version,))):
        return ""
    names = {table.destination: table.source for table in config.tables}
    found = destination.preflight_tables((version,), now=of_now.of(version), at_source=names)
    return "\n".join(finding.fix for finding in found if finding.is_error)


def _table_of_now(name: TableName, config: ApplyConfig) -> tuple[TableVersion, ...]:
    """Return the source's current version of a table, with its name and columns here; empty: no such table.

    Raises:
        DatabaseError: the source does not answer, or answers with an error.
    """
    from headrace.rules.rule import Rule, RuleSet

    table = next((each for each in config.tables if each.destination == name), None)
    owner, source_name = name if table is None else table.source
    rules = RuleSet(include=(Rule(owner=owner, name=source_name),))
    with contextlib.closing(open_source(config.source)) as source:
        versions = source.table_versions(source.tables((rules,)))
    if table is None or not table.transformations:
        return versions
    from headrace.rules.transformations.reshaping import transformed_version
    from headrace.rules.transformations.transformation import TransformationError

    try:
        return tuple(
            reduce(lambda found, each: transformed_version(found, each)[0], table.transformations, version)
            for version in versions
        )
    except TransformationError:
        return ()  # the change at the source raises its error when its rows arrive
