"""The Spark driver of one apply process: `python -m spark_apply.application.job`, started and held by the apply actor.

Job
    Run Spark, bring the tables there, then read, coordinate and apply until told to end.

Main path
    main -> one line of configuration from standard input -> ApplyDriver.run: SparkApplication.start beside
    PostgresDestination.prepare and raise_epoch -> serve_apply (its endpoint is the line on standard output)
    -> the first time: ask_beginning -> TableInstantiation.run_first -> apply servers as one long Spark job
    -> CoordinatorHost.run, and on a thread of its own TableInstantiation.run_beside.

States
    INITIALIZING    Spark starts, the destination is prepared. Memory only.
    INSTANTIATING   tables are being copied; each table's state is recorded at the destination.
    then the coordinator's: see `coordinator` and `reader`.

Durable when
    Everything durable is at the destination. This process can be killed at any time: the next one raises the epoch,
    which ends whatever is left of this one there, and goes on from the progress it reads. Where an apply process begins
    is its first low watermark, recorded before a table is copied: the queue keeps everything after it, and every
    instantiation SCN is later, so nothing is missing between the two.

Ends when
    Standard input closes (the actor ended or wants it so), control says so, a newer driver took over, or nothing can
    go on. Then everything of its Spark application ends with it: see `application`. The reason is the last line on
    standard error and on standard output, as JSON; exit code 0: told to, 1: anything else.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import IO, TYPE_CHECKING, TypeVar

from databases.connectors import open_destination, open_source
from spark_apply.application.job_config import ApplyJobConfig, describe_failure
from spark_apply.application.spark import SparkApplication
from streams.backoff import Backoff
from streams.errors import BugError, DatabaseUnavailable, StreamsError
from streams.scn import FIRST_SCN

if TYPE_CHECKING:
    from databases.ports import ApplyProgress, DestinationDatabase
    from spark_apply.copy.instantiation import TableInstantiation
    from spark_apply.driver.control import ApplyControl, Cores
    from spark_apply.driver.gate import Gate
    from spark_apply.driver.loop import CoordinatorHost
    from spark_apply.driver.reader import TableStart
    from streams.lcr_batch import TableVersion

__all__ = ["ApplyDriver", "main"]

_END_TIMEOUT_S = 5.0  # Spark's orderly end takes a second; after this the process ends anyway
_PREPARING_POLL_S = 0.05

log = logging.getLogger("headrace.apply")

_Found = TypeVar("_Found")


class ApplyDriver:
    """See the module.

    Args:
        config: of the apply process.
        announce: called once with the endpoint, when it serves.
    """

    def __init__(self, config: ApplyJobConfig, announce: Callable[[str], None]) -> None:
        self._config, self._announce = config, announce
        self._token = secrets.token_hex(16)
        self._should_end: Callable[[], bool] = lambda: False
        self._problem = ""

    def run(self) -> None:
        """Run until control says stop.

        Raises:
            StreamsError: it cannot go on.
        """
        destination = open_destination(self._config.destination)
        preparation = _Preparation(lambda: self._prepare(destination))
        application = SparkApplication(self._config)
        application.start()
        try:
            self._serve(application, destination, preparation)
        finally:
            ending = threading.Thread(target=application.stop, name="end-spark", daemon=True)
            ending.start()
            ending.join(_END_TIMEOUT_S)

    # ------------------------------------------------------------------ inside

    def _serve(
        self, application: SparkApplication, destination: DestinationDatabase, preparation: _Preparation,
    ) -> None:
        # Only now: gRPC must not exist in the process when Spark's gateway forks.
        from protos.apply_link import serve_apply
        from spark_apply.driver.control import ApplyControl
        from spark_apply.driver.gate import Gate
        from spark_apply.server.task import TaskAccess, start_apply_servers

        control = ApplyControl(self._config, application)
        self._should_end = lambda: control.should_end
        gate = Gate(self._config, self._token)
        server = serve_apply(self._config.host, gate, control, servers=self._config.parallelism)
        control.access = access = TaskAccess(endpoint=server.endpoint, token=self._token)
        self._announce(server.endpoint)
        try:
            while (progress := preparation.outcome(_PREPARING_POLL_S)) is None:
                if control.should_end:
                    return
                control.enter("INITIALIZING", self._problem)
            if progress.low_watermark == FIRST_SCN:
                progress = self._begin(application, control, destination, progress)
            with self._copying(application, control, gate, progress) as copying:
                control.enter("INSTANTIATING")
                copying.run_first()
                if control.should_end:
                    return
                starts, hold_scn = copying.starts()
                cores = self._make_cores(application, destination, progress, starts)
                cores.host.joins.hold(hold_scn)
                gate.host, control.cores, control.copying = cores.host, cores, copying
                start_apply_servers(application.context, self._config, access, failed=cores.host.fail)
                beside = threading.Thread(target=self._copy_beside, args=(copying, cores.host), name="copy-beside", daemon=True)
                beside.start()
                cores.host.run(self._should_end)
                beside.join(_END_TIMEOUT_S)
        finally:
            server.stop()

    def _begin(
        self, application: SparkApplication, control: ApplyControl, destination: DestinationDatabase, progress: ApplyProgress,
    ) -> ApplyProgress:
        """The first time: record where the queue begins for this apply process."""
        from spark_apply.driver.feed import ask_beginning

        config = self._config
        scn = ask_beginning(
            config, application.queue_endpoint, should_end=self._should_end,
            problem=lambda problem: control.enter("INITIALIZING", problem),
        )
        self._persist(lambda: destination.record_low_watermark(config.topology, config.apply, progress.epoch, scn))
        return replace(progress, low_watermark=scn)

    @contextlib.contextmanager
    def _copying(
        self, application: SparkApplication, control: ApplyControl, gate: Gate, progress: ApplyProgress,
    ) -> Iterator[TableInstantiation]:
        """What copies tables, on connections of its own."""
        from databases.connectors import open_reader
        from spark_apply.copy.instantiation import TableInstantiation
        from spark_apply.copy.workers import SparkCopyWorkers

        config = self._config
        assert control.access is not None
        name = "headrace instantiation"
        with contextlib.ExitStack() as opened:
            source = opened.enter_context(contextlib.closing(open_source(config.source)))
            destination = opened.enter_context(contextlib.closing(open_destination(config.destination)))
            readers = [
                opened.enter_context(contextlib.closing(open_reader(access, application_name=name)))
                for access in (config.source, config.destination)
            ]
            yield TableInstantiation(
                config=config, source=source, destination=destination, source_reader=readers[0],
                destination_reader=readers[1], epoch=progress.epoch, moved=control.table_moved,
                workers=SparkCopyWorkers(application, config, control.access, gate), should_end=self._should_end,
            )

    def _copy_beside(self, copying: TableInstantiation, host: CoordinatorHost) -> None:
        """Copy tables while the others are applied; on a thread of its own."""
        from spark_apply.driver.joining import JoinCalls

        try:
            copying.run_beside(JoinCalls(host, self._should_end))
        except StreamsError as error:
            host.fail(error)
        except Exception as error:
            log.exception("copying tables")
            host.fail(BugError(f"copying tables: {type(error).__name__}: {error}", hint="see the driver's log; report it"))

    def _make_cores(
        self, application: SparkApplication, destination: DestinationDatabase, progress: ApplyProgress,
        starts: Mapping[tuple[str, str], TableStart],
    ) -> Cores:
        """Reader, coordinator and their host."""
        from protos import codec
        from rules.evaluation import RuleEvaluation
        from spark_apply.driver.control import Cores
        from spark_apply.driver.coordinator import ApplyCoordinator
        from spark_apply.driver.feed import QueueFeed
        from spark_apply.driver.loop import CoordinatorHost
        from spark_apply.driver.reader import ApplyReader
        from spark_apply.tables import TableFits

        config = self._config
        fits = TableFits(
            lambda owner, name: self._persist(lambda: destination.describe(owner, name)),
            lambda version: self._persist(lambda: _missing_alter(destination, version)),
        )
        errors = self._persist(lambda: list(destination.error_key_hashes(config.topology, config.apply)))
        reader = ApplyReader(
            source=config.source.site, progress=progress, rules=RuleEvaluation(config.rules), fits=fits,
            instantiation=starts, returned_from=config.returned_from,
        )
        coordinator = ApplyCoordinator(
            progress=progress, errors=errors, encode=codec.encode, group_transactions=config.group_transactions,
            group_rows=config.group_rows,
        )
        feed = QueueFeed(config, application.queue_endpoint)
        host = CoordinatorHost(
            config, epoch=progress.epoch, destination=destination, reader=reader, coordinator=coordinator, fits=fits,
            feed=feed,
        )
        feed.listener = host
        return Cores(host=host, reader=reader, coordinator=coordinator, epoch=progress.epoch)

    def _prepare(self, destination: DestinationDatabase) -> ApplyProgress:
        """Make the destination ready and fence out older drivers; on a thread beside Spark's start."""
        config = self._config
        self._persist(lambda: destination.prepare(config.topology))
        return self._persist(lambda: destination.raise_epoch(config.topology, config.apply))

    def _persist(self, ask: Callable[[], _Found]) -> _Found:
        """Ask a database until it answers, or the driver shall end.

        Raises:
            DatabaseError: it answered with an error that time does not heal.
        """
        backoff = Backoff()
        while True:
            try:
                found = ask()
            except DatabaseUnavailable as error:
                self._problem = error.message
                if self._should_end():
                    raise
                time.sleep(backoff.next_s())
            else:
                self._problem = ""
                return found


def _missing_alter(destination: DestinationDatabase, version: TableVersion) -> str:
    """What must be done before rows of `version` can be applied; empty: they fit."""
    return "\n".join(finding.fix for finding in destination.preflight_tables((version,)) if finding.is_error)


class _Preparation:
    """What is done beside Spark's start, and what came of it."""

    def __init__(self, prepare: Callable[[], ApplyProgress]) -> None:
        self._progress: ApplyProgress | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(prepare,), name="prepare-destination", daemon=True)
        self._thread.start()

    def outcome(self, timeout_s: float) -> ApplyProgress | None:
        """The progress; None when it is not known yet. Raises what the preparation raised."""
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        return self._progress

    def _run(self, prepare: Callable[[], ApplyProgress]) -> None:
        try:
            self._progress = prepare()
        except BaseException as error:  # noqa: BLE001 - raised again on the main thread
            self._error = error


# --------------------------------------------------------------------------- the process


def _end_with_standard_input() -> None:
    """Wait until standard input closes, then end at once: Ray and Spark end what belongs to this process."""
    while sys.stdin.readline():
        pass
    os._exit(0)


def _own_standard_output() -> IO[str]:
    """Keep standard output for ourselves: Spark's JVM inherits descriptor 1 and would write its log there."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def main() -> None:
    """Read the configuration, run, and say why it ended."""
    output = _own_standard_output()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("headrace").setLevel(logging.INFO)

    def tell(document: dict[str, object]) -> None:
        output.write(json.dumps(document) + "\n")
        output.flush()

    failure: StreamsError | None = None
    try:
        config = ApplyJobConfig.from_json(sys.stdin.readline())
        threading.Thread(target=_end_with_standard_input, name="standard-input", daemon=True).start()
        ApplyDriver(config, lambda endpoint: tell({"endpoint": endpoint, "pid": os.getpid()})).run()
    except StreamsError as error:
        failure = error
    except Exception as error:
        log.exception("unexpected error")
        failure = BugError(f"the apply driver: {type(error).__name__}: {error}", hint="see its log; report it")
    if failure is not None:
        line = describe_failure(failure)
        sys.stderr.write(json.dumps(line) + "\n")
        sys.stderr.flush()
        tell(line)
    # Threads of Ray, Spark and gRPC may still run: nothing of them is worth waiting for.
    os._exit(0 if failure is None else 1)


if __name__ == "__main__":
    main()
