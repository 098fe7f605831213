"""Answers the apply actor and the command line: status, comparison, the error queue, stopping.

The calls run on the actor's threads. State of the cores is read on the coordinator's thread (`LoopInbox.call`). While
that thread is busy with its destination, status answers with the last known state.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.base.errors import NOT_REPLICATED, ApplyError, ConfigError, DatabaseUnavailable, HeadraceError
from headrace.databases.connectors import open_destination, open_source
from headrace.lcr.table_name import TableName, argument
from protos import apply_pb2 as pb
from spark_apply.conversation.groups import Failure
from spark_apply.copy.comparison.catching_up import WaysBack
from spark_apply.copy.comparison.differing_rows import RowDifference
from spark_apply.copy.comparison.jobs import Comparison, TableComparison, tables_of_now
from spark_apply.copy.instantiation import TableInstantiation
from spark_apply.copy.marks.marked_columns import paired
from spark_apply.copy.marks.row_marks import columns_here, marked_table
from spark_apply.copy.records.standing import correct_alone
from spark_apply.copy.records.tables import TableProgress, to_be_copied_again
from spark_apply.driver.error_edits import edited_part
from spark_apply.driver.groups.executions import ExecutionRequest
from spark_apply.driver.join_calls import DELETED_AT_ONCE
from spark_apply.driver.operator_executions import ExecutionPage, OperatorExecutions
from spark_apply.tables.arriving import restart_hint

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationDatabase, DestinationSetUp, ErrorEdit, InstantiationRecords, RowMark
    from headrace.lcr.batch import TableVersion
    from spark_apply.application.task_runs import TaskRun, TaskRunner
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.driver.coordinator import ApplyCoordinator
    from spark_apply.driver.error_edits import EditRequest
    from spark_apply.driver.groups.executions import ErrorOutcome
    from spark_apply.driver.loop.host import CoordinatorHost
    from spark_apply.driver.reader import ApplyReader

__all__ = ["ApplyControl", "Cores", "outcome_message"]

_STATUS_WAIT_S = 1.0  # status is asked twice a second and must not queue up behind a slow destination
_DRAIN_POLL_S = 0.01
_RECHECK_DELAY_S = 1.0
_COPIED = frozenset({"DONE", "KEPT"})
_FAILING_HINT = (
    "fix what it names at the destination (a server that takes no connections, a lock that a session"
    " holds, a full disk); it then continues by itself"
)
_SETTLED = _COPIED | {"LEFT OUT"}  # nothing waits for these tables
_COMPARABLE = _COPIED | {"JOINING"}  # a joining table differs until it has caught up, which `verify` waits for
_BOUNDED = _SETTLED | {"COPIED", "JOINING"}  # what these tables lack is above the SCN acknowledged to the queue
_STRANGER = (
    "it appeared under this name after the apply process started and was never copied here; its changes are skipped"
)
_LOOK_TIMEOUT_S = 5.0  # a look takes a few queries; longer means that it found a table to copy, which the status shows
_DIGEST_TASKS = 2  # of a comparison: one reads the source while the other reads the destination


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """The cores, which exist while the apply process applies."""

    host: CoordinatorHost
    reader: ApplyReader
    coordinator: ApplyCoordinator
    epoch: int
    servers: TaskRun | None = None


@dataclass(slots=True)
class ApplyControl:
    """Answers questions about one apply process, and stops it.

    Args:
        runner: starts runs of tasks when the coordinator serves.
    """

    config: ApplyConfig
    runner: TaskRunner | None = None
    state: str = "INITIALIZING"
    detail: str = ""
    hint: str = ""
    tables: dict[tuple[str, str], TableProgress] = field(default_factory=dict)
    instantiation: TableInstantiation | None = None
    cores: Cores | None = None
    stopped: threading.Event = field(default_factory=threading.Event)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _latest: pb.ApplyStatus = field(default_factory=pb.ApplyStatus)
    _asking: threading.Lock = field(default_factory=threading.Lock)
    _executions: OperatorExecutions = field(default_factory=OperatorExecutions)

    # ------------------------------------------------------------------ the driver's main thread

    @property
    def should_end(self) -> bool:
        """Whether the driver was told to end."""
        return self.stopped.is_set()

    def enter(self, state: str, detail: str = "", hint: str = "") -> None:
        """Set the state to show before the coordinator runs.

        Args:
            state: the state for `status`.
            detail: what it waits for.
            hint: what the operator can do about it.
        """
        self.state, self.detail, self.hint = state, detail, hint

    def table_moved(self, progress: TableProgress) -> None:
        """Record progress of a table's instantiation; any thread may call this."""
        if progress.state == "GONE":
            self.tables.pop((progress.owner, progress.name), None)
        else:
            self.tables[progress.owner, progress.name] = progress

    # ------------------------------------------------------------------ control

    def status(self) -> pb.ApplyStatus:
        """Return the current state."""
        cores = self.cores
        copying = self.instantiation.problem if self.instantiation is not None else ""
        status = pb.ApplyStatus(state=self.state, detail=self.detail or copying, hint=self.hint)
        if cores is not None and not self.stopped.is_set():
            status = self._core_status(cores)
            status.detail = status.detail or copying
        status.instantiation.extend(_progress_message(table) for table in list(self.tables.values()))
        return status

    def said(self) -> dict[str, Any]:
        """Return the content of the views (`described.said_of`); empty: it does not apply yet."""
        return self.cores.host.views.said if self.cores is not None else {}

    def compare(self, request: pb.CompareRequest) -> Iterator[pb.TableComparison]:
        """Compare source and destination tables; yield one result per table when it is known."""
        runner = self.runner
        if runner is None:
            raise ApplyError(f"apply {self.config.apply} is {self.state}: it cannot compare yet")
        wanted = {TableName(table.owner, table.name) for table in request.tables}
        with contextlib.ExitStack() as opened:
            source = opened.enter_context(contextlib.closing(open_source(self.config.source)))
            found, problems = tables_of_now(source, self.config)
            tables = [table for table in found if not wanted or table.source in wanted]
            for name in wanted - {table.source for table in found} - problems.keys():
                problems[name] = f"apply process {self.config.apply} {NOT_REPLICATED}"
            for table in tables:
                progress = self.tables.get(table.destination)
                if progress is not None and progress.state not in _COMPARABLE:
                    problems[table.source] = (
                        f"it is not replicated yet ({progress.state}): {progress.problem or 'it is being copied'}"
                    )
                part = self.instantiation.part_of(table) if self.instantiation is not None else ""
                if part:
                    problems[table.source] = f"its partition {part} is being copied"
            tables = [table for table in tables if table.source not in problems]
            for name in sorted(problems.keys() & wanted if wanted else problems):
                yield pb.TableComparison(
                    owner=name.owner,
                    name=name.name,
                    destination_owner=name.owner,
                    destination_name=name.name,
                    problem=problems[name],
                )
            destination = opened.enter_context(contextlib.closing(open_destination(self.config.destination)))
            comparison = Comparison(
                runner=runner,
                config=self.config,
                source=source,
                destination=destination,
                tasks=_DIGEST_TASKS,
                # A failed driver has no runner any more, and a restarted one has another runner.
                is_active=lambda: self.runner is runner and not self._stopping.is_set() and not self.should_end,
                applied=self._kept_scn if self.cores is not None else None,
                back=self._ways_back(opened, destination),
            )
            delay_s = request.recheck_delay_s or _RECHECK_DELAY_S
            equal: dict[str, RowMark] = {}
            for answer in comparison.run(tables, rechecks=request.rechecks, recheck_delay_s=delay_s):
                if answer.is_equal and not answer.in_flight_rows and answer.mark is not None:
                    equal[answer.table.identity] = answer.mark
                yield _comparison_message(answer)
            self._note_equal(destination, equal)

    def _ways_back(self, opened: contextlib.ExitStack, destination: DestinationDatabase) -> WaysBack | None:
        """Return the ways by which changes of others at the destination reach the source; None: there is none."""
        config = self.config
        if not config.returned_from and not config.beside:
            return None
        log = opened.enter_context(contextlib.closing(open_source(config.destination)))
        return WaysBack(
            topology=config.topology,
            direct=config.returned_from,
            beside=config.beside,
            here=destination,
            there=opened.enter_context(contextlib.closing(open_destination(config.source))),
            position=lambda: log.write_marker(b"compared"),
        )

    def _kept_scn(self) -> int:
        """Return the SCN of the source up to which the destination has everything."""
        return int(self.status().counters["kept_scn"])

    def _note_equal(self, destination: InstantiationRecords, marks: Mapping[str, RowMark]) -> None:
        """Record that both sides have the same rows, whatever changed at the source without events.

        The problems of these tables are no longer reported.
        """
        if self.cores is None or not marks:
            return
        recorded = destination.row_marks(self.config.topology, self.config.apply, self.config.source.site)
        tables = [marked_table(table) for table in self.config.tables if table.identity in marks]
        here = columns_here(destination, tables)
        equal = {
            table.identity: paired(
                marks[table.identity], here.get(table.destination, {}), recorded.get(table.identity), is_copy=False
            )
            for table in tables
        }
        destination.record_row_marks(
            self.config.topology, self.config.apply, self.cores.epoch, self.config.source.site, equal
        )
        if any(
            self.tables[table.destination].problem
            for table in self.config.tables
            if table.identity in marks and table.destination in self.tables
        ):
            self.look_at_tables()

    def copy_again(self, request: pb.CopyAgainRequest) -> pb.CopyAgainReply:
        """Begin to empty tables at the destination and copy them again; return their earlier progress.

        Raises:
            ApplyError: nothing is applied yet, a table is not written by this apply process alone, or the source has
                renamed it meanwhile.
        """
        copying = self.instantiation
        if copying is None or self.cores is None:
            raise ApplyError(f"apply {self.config.apply} is {self.state}: it does not apply yet")
        wanted = {TableName(table.owner, table.name) for table in request.tables}
        self._refuse_renamed(wanted)
        found = {table.source: table for table in self.config.tables if table.source in wanted}
        if missing := wanted - found.keys():
            raise ApplyError(
                f"{', '.join(map(str, sorted(missing)))}: apply process {self.config.apply} {NOT_REPLICATED}"
            )
        topology, apply = self.config.topology, self.config.apply
        with contextlib.closing(open_destination(self.config.destination)) as destination:
            # Also copies of other topologies, and copies of tables under an earlier name.
            shared = [
                str(name)
                for name, table in found.items()
                if not table.may_empty or destination.other_copies(topology, apply, *table.destination)
            ]
            recorded = {
                each.identity: each
                for each in destination.instantiations(topology, apply)
                if each.source == self.config.source.site
            }
            # Record it now: this driver may end before the current copies do, and the next one must know about these.
            for name, table in found.items() if not shared else ():
                record = recorded.get(table.identity)
                if record is not None and not destination.record_instantiation(
                    topology, apply, self.cores.epoch, to_be_copied_again(record), beside=()
                ):
                    shared.append(str(name))
        if shared:
            raise ApplyError(
                f"{', '.join(sorted(shared))}: not emptied, because other apply processes write the same destination"
                " table",
                hint="headrace verify FILE names the rows that differ: correct them at the destination alone:"
                f" {correct_alone()}",
            )
        names = [table.destination for table in found.values()]
        before = [_progress_message(self.tables[name]) for name in names if name in self.tables]
        copying.copy_again(names)
        return pb.CopyAgainReply(tables=before)

    def _refuse_renamed(self, wanted: set[TableName]) -> None:
        """Check that tables still have the names that they had when the driver started.

        Under another name they would be skipped and never copied.

        Raises:
            ApplyError: a table has another name now.
        """
        try:
            with contextlib.closing(open_source(self.config.source)) as source:
                names = {table.identity: TableName.of(table) for table in source.captured(self.config.topology)}
        except DatabaseUnavailable:
            return  # the copy starts when the source answers
        for table in self.config.tables:
            now = names.get(table.identity, table.source)
            if now != table.source and wanted & {now, table.source}:
                raise ApplyError(
                    f"{table.source} is called {now} at {self.config.source.site} since apply process"
                    f" {self.config.apply} was started: it is not copied before a restart",
                    hint=f"{restart_hint(self.config.apply)}. Then headrace copy FILE {argument(now)}",
                )

    def look_at_tables(self) -> bool:
        """Look now at the tables that could not be copied.

        False: the look took too long, or nothing is applied yet.
        """
        copying = self.instantiation
        return copying is not None and self.cores is not None and copying.look_now(_LOOK_TIMEOUT_S)

    def begin_execution(self, name: str, request: pb.ErrorsRequest) -> int:
        """Begin to execute error transactions again, and return how many there are.

        Args:
            name: name of the execution.
            request: which error transactions, and how to execute them.
        """
        cores = self._running()
        numbers = None if request.all else list(request.numbers)
        # A handler gets the reason of each failure, which is read first.
        if request.handler and numbers is None:
            numbers = sorted(set(cores.host.inbox.call(lambda: cores.host.errors.queued)).difference(request.besides))
        failures = self._failures(numbers) if request.handler and numbers else {}
        wanted = ExecutionRequest(role=request.role, handler=request.handler, failures=failures, stops=request.stops)
        return self._executions.begin(cores.host, name, numbers, wanted, besides=request.besides)

    def execution_outcomes(self, name: str, wait_s: float) -> ExecutionPage:
        """Return outcomes of an execution that were not returned before.

        Args:
            name: name under which it was begun.
            wait_s: how long to wait for the first outcome.
        """
        return self._executions.outcomes(self._running().host, name, wait_s)

    def end_execution(self, name: str) -> None:
        """Withdraw what no server has begun of an execution."""
        self._executions.end(self._running().host, name)

    def _failures(self, numbers: Sequence[int]) -> dict[int, Failure]:
        """Return why error transactions are in the error queue."""
        config, wanted = self.config, set(numbers)
        with contextlib.closing(open_destination(config.destination)) as destination:
            one = numbers[0] if len(numbers) == 1 else None
            found = [
                each for each in destination.errors(config.topology, config.apply, number=one) if each.number in wanted
            ]
        return {
            each.number: Failure(
                position=each.failed_position,
                conflict_type=each.conflict_type,
                sqlstate=each.sqlstate,
                message=each.message,
            )
            for each in found
        }

    def edit_error(self, request: EditRequest) -> ErrorEdit:
        """Edit one row LCR of an error transaction; the transaction stays in the error queue.

        Raises:
            ConfigError: the transaction was edited, executed or deleted meanwhile, or has no such row or column.
            ApplyError: it is being executed, nothing is applied yet, or one of its tables does not fit the LCRs.
        """
        from spark_apply.tables.fits import TableFits  # it compiles kernels, which no other answer needs

        cores = self._running()
        config = self.config
        # Read off the coordinator's thread, which must not be blocked by a large transaction.
        with contextlib.closing(open_destination(config.destination)) as destination:
            fits = TableFits.of(config, destination.describe, partial(_missing_alter, destination))
            made = edited_part(request, config.apply, destination.error_batches(request.number), fits.fit_or_error)
        done = cores.host.inbox.call(
            lambda: cores.host.errors.edit(made.edit, part=made.part, batch=made.batch, key_hashes=made.key_hashes)
        )
        if not done:
            raise ConfigError(
                f"error transaction {request.number} has changed meanwhile: it was edited, executed or deleted",
                hint="headrace errors show FILE N shows its current state",
            )
        return made.edit

    def delete_errors(self, request: pb.ErrorsRequest) -> Iterator[pb.ErrorOutcome]:
        """Delete error transactions; yield one outcome each."""
        cores = self._running()
        numbers = self._numbers(cores, request)
        for first in range(0, len(numbers), DELETED_AT_ONCE):
            problems = cores.host.inbox.call(
                partial(cores.host.errors.delete, numbers[first : first + DELETED_AT_ONCE])
            )
            yield from (
                pb.ErrorOutcome(number=number, done=not problem, problem=problem)
                for number, problem in problems.items()
            )

    def stop(self, timeout_s: float) -> None:
        """End the driver in order: servers may finish their current group within `timeout_s` seconds."""
        cores = self.cores
        self._stopping.set()
        if cores is not None:
            deadline = time.monotonic() + timeout_s
            try:
                cores.host.inbox.call(cores.host.drain)
                while not cores.host.inbox.call(cores.host.is_drained) and time.monotonic() < deadline:
                    time.sleep(_DRAIN_POLL_S)
                cores.host.inbox.call(cores.host.servers.stop)
            except HeadraceError as error:
                # It ends all the same: the next start reads unreported commits back from the destination.
                self.detail = error.message
        self.stopped.set()
        if cores is not None:
            cores.host.inbox.wake()

    # ------------------------------------------------------------------ inside

    def _running(self) -> Cores:
        if self.cores is None:
            raise ApplyError(f"apply {self.config.apply} is {self.state}: it does not apply yet")
        return self.cores

    @staticmethod
    def _numbers(cores: Cores, request: pb.ErrorsRequest) -> list[int]:
        if request.all:
            return list(cores.host.inbox.call(cores.host.errors.numbers))
        return sorted(set(request.numbers))

    def _core_status(self, cores: Cores) -> pb.ApplyStatus:
        """Query the cores; if they do not answer soon, return their last status, with its age in `asked_us`."""
        if self._asking.acquire(blocking=False):
            try:
                # Read the time before: this process may stall between any two lines.
                asked_us = time.time_ns() // 1000
                answer = cores.host.inbox.call_within(lambda: self._read(cores), _STATUS_WAIT_S)
                if answer is not None:
                    answer[0].asked_us = asked_us
                    self._latest = answer[0]
            finally:
                self._asking.release()
        status = pb.ApplyStatus()
        status.CopyFrom(self._latest)
        if not status.state:
            status.state = self.state
        return status

    def _caught_up_scn(self, cores: Cores) -> int:
        """Return the SCN up to which all tables are complete; 0: one is not copied yet. On the coordinator's thread."""
        if cores.reader.strangers or any(table.state not in _BOUNDED for table in list(self.tables.values())):
            return 0
        return int(cores.host.joins.bounded(cores.host.progress.kept_scn))

    def _read(self, cores: Cores) -> pb.ApplyStatus:
        """Read the status, on the coordinator's thread."""
        facts, reader = cores.host.servers.facts(), cores.reader
        numbers = {name: value for name, value in cores.coordinator.status().items() if isinstance(value, int)}
        seen = reader.statistics
        numbers |= {
            "batches_received": seen.batches,
            "rows_received": seen.rows,
            "returned_changes": seen.returned_changes,
            "rows_applied_before": seen.rows_applied_before,
            "rows_instantiated": seen.rows_instantiated,
            "rows_discarded": seen.rows_discarded,
            "told_scn": int(cores.host.dequeuing.told_scn),
            "durable_scn": int(cores.host.progress.recorded_scn),
            "kept_scn": int(cores.host.progress.kept_scn),
        }
        status = pb.ApplyStatus(
            state=cores.coordinator.state,
            reader_state=reader.state,
            detail=cores.host.problem,
            epoch=cores.epoch,
            low_watermark_scn=cores.coordinator.watermarks.low,
            high_watermark_scn=cores.coordinator.watermarks.high,
            received_scn=numbers.get("received_scn", 0),
            last_commit_time_us=numbers.get("last_commit_time_us", 0),
            last_applied_us=cores.host.progress.last_applied_us,
            transactions_applied=numbers.get("total_applied", 0),
            rows_applied=numbers.get("total_rows", 0),
            groups_applied=numbers.get("total_groups", 0),
            transactions_received=seen.transactions,
            errors=numbers.get("error_transactions", 0),
            rollbacks=numbers.get("total_rollbacks", 0),
            counters=numbers,
            ready=all(server.has_joined for server in facts)
            and all(t.state in _SETTLED for t in list(self.tables.values())),
            caught_up_scn=self._caught_up_scn(cores),
            missing_tables=reader.missing_tables,
        )
        for server in facts:
            waits = cores.coordinator.dependency_of(server.server)
            status.servers.append(
                pb.ServerStatus(
                    server=server.server,
                    state=server.state,
                    detail=server.detail,
                    pid=server.pid,
                    host=server.host,
                    attempts=server.attempts,
                    group=waits["group_number"],
                    commit_scn=waits["commitscn"],
                    waits_for_group=waits["dep_group_number"],
                    waits_for_scn=waits["dep_commitscn"],
                    waits_for_server=waits["dep_server_id"],
                )
            )
        if reader.unfit is not None and cores.coordinator.is_idle:
            status.state, status.detail, status.hint = reader.state, reader.unfit.message, reader.unfit.hint
        elif not any(server.has_joined for server in facts):
            status.state = "INITIALIZING"
            why = cores.servers.problem if cores.servers is not None else ""
            status.detail = status.detail or why or next((server.detail for server in facts if server.detail), "")
        elif not status.detail:
            # It returns its groups again and again while the reader sees nothing wrong with the table.
            paused = next((server for server in facts if server.state.startswith("PAUSED")), cores.host.servers.refusal)
            if paused is not None:
                status.state = paused.state
                status.detail = f"apply server {paused.server}: {paused.detail}"
                status.hint = "" if paused.hint in paused.detail else paused.hint  # it may end with the missing ALTER
            # The server of a DDL change begins anew with each attempt, so it never fails for long.
            failing = next(
                (each for each in facts if each.is_failing or each.server == cores.coordinator.ddl_retried_by), None
            )
            replaced = next((server for server in facts if server.failure), None)
            if not status.detail and failing is not None:
                status.detail, status.hint = (
                    f"apply server {failing.server} fails and tries again: {failing.detail}",
                    _FAILING_HINT,
                )
            elif not status.detail and replaced is not None:
                status.detail, status.hint = (
                    f"apply server {replaced.server} was replaced: {replaced.failure}",
                    replaced.failure_hint,
                )
        # When the log is ahead of what runs, a restarted driver takes no more tables than the controller's record has.
        what_to_do = "headrace up FILE takes it up" if self.config.goes_by_record else restart_hint(self.config.apply)
        for name in sorted(reader.strangers):
            status.instantiation.append(
                pb.InstantiationProgress(
                    owner=name.owner,
                    name=name.name,
                    state="FAILED",
                    problem=f"{_STRANGER}: {what_to_do}",
                )
            )
        if cores.coordinator.errors.disables:
            number = cores.coordinator.first_error
            status.state = "PAUSED: DISABLED BY ERROR"
            status.detail = (
                f"nothing is applied while error transaction {number} is in the error queue (on_error: disable)"
            )
            status.hint = (
                f"headrace errors show FILE {number}, correct what it names, then headrace errors execute FILE --all (or"
                " edit or delete some): it continues by itself when the error queue is empty; or set another on_error,"
                " then headrace up FILE"
            )
        if self._stopping.is_set():
            status.state = "SHUTTING DOWN CLEANLY"
        return status


def _missing_alter(destination: DestinationSetUp, version: TableVersion) -> str:
    """Return what must be done before rows of `version` fit the destination's table; empty: they fit."""
    return "; ".join(finding.fix for finding in destination.preflight_tables((version,)) if finding.is_error)


def _progress_message(table: TableProgress) -> pb.InstantiationProgress:
    return pb.InstantiationProgress(
        owner=table.owner,
        name=table.name,
        state=table.state,
        rows=table.rows,
        rows_estimated=table.rows_estimated,
        instantiation_scn=table.scn,
        problem=table.problem,
        bytes_done=table.bytes_done,
        bytes_total=table.bytes_total,
        obsolete_errors=table.obsolete_errors,
    )


def _difference_message(found: RowDifference) -> pb.RowDifference:
    return pb.RowDifference(
        columns=found.columns,
        values=[value or "" for value in found.key],
        nulls=[value is None for value in found.key],
        what=found.what,
    )


def outcome_message(outcome: ErrorOutcome) -> pb.ErrorOutcome:
    """Convert the outcome of an error transaction to a message."""
    found = outcome.failure
    message = pb.ErrorOutcome(number=outcome.number, done=found is None, problem="" if found is None else found.message)
    if found is not None:
        message.failure.CopyFrom(
            pb.Failure(
                position=found.position,
                conflict_type=found.conflict_type,
                sqlstate=found.sqlstate,
                message=found.message,
                readable=found.readable,
            )
        )
    return message


def _comparison_message(found: TableComparison) -> pb.TableComparison:
    return pb.TableComparison(
        owner=found.table.source.owner,
        name=found.table.source.name,
        destination_owner=found.table.destination.owner,
        destination_name=found.table.destination.name,
        equal=found.is_equal,
        source_rows=found.source.rows,
        differences=[_difference_message(each) for each in found.differences],
        has_more_differences=found.has_more_differences,
        destination_rows=found.destination.rows,
        source_digest=found.source.digest,
        destination_digest=found.destination.digest,
        checks=found.checks,
        problem=found.problem,
        left_out=found.left_out,
        computed=found.computed,
        settled=found.settled,
        in_flight=[_difference_message(each) for each in found.in_flight],
        in_flight_rows=found.in_flight_rows,
        padded=found.padded,
    )
