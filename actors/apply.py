"""Apply: hosts one apply process, its reader and its coordinator.

Job
    Keep exactly one driver of the apply process running in this process, and forward calls to it.

Main path
    ApplyHost.open -> ApplyDriver.start (`spark_apply.driver.apply_driver`) -> ApplyHost.step checks the driver. The
    apply servers are tasks of the site's Spark application (`actors.spark_application`).

States
    The driver's: INITIALIZING, INSTANTIATING, APPLYING, PAUSED: ..., SHUTTING DOWN CLEANLY
    (`spark_apply`). Memory only.

Durable when
    Nothing is stored here: progress is in the destination.

Worked flow
    this process is killed -> its connections break: the Spark application cancels its tasks, its queue waits -> Ray
    restarts the actor -> a driver with a higher epoch: the destination refuses what a lingering task still sends
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from actors.hosting.host import Host
from actors.records.files import LAST_CALL, component_file
from actors.records.kept_rows import KeptRows
from actors.security.wire import wire_status
from actors.site.connection import access_to
from headrace.base.errors import PropagationError
from headrace.databases.connectors import DatabaseAccess, open_destination
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.table_name import TableName
from headrace.rules.user_code.last_call import LastCall
from headrace.status.applies import ApplyServerStatus, ApplyStatus, IndexJobStatus, TableCopy
from topology.checks.transformations import refuse_one_name
from topology.routing.combined import capture_of, dequeued
from topology.routing.ways import arriving, is_sent_on, returned_by, rules_at_the_end, shared_by, ways_to, writes_alone

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from headrace.databases.ports import CapturedTable, DestinationDatabase
    from protos import apply_pb2 as pb
    from protos.wire.identity import Peer
    from spark_apply.application.task_runs import ApplicationAccess
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.driver.apply_driver import ApplyDriver
    from spark_apply.driver.control import ApplyControl
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["ApplyHost", "build"]

STATUS_INTERVAL_S = 0.5  # the displayed status is at most this old
# While `up` is probably waiting: with every table copied already, an apply process is ready two seconds after its process
# started.
STARTING_INTERVAL_S = 0.1
STARTING_S = 30.0  # later it waits for a copy, a database or an operator, and a tenth of a second does not matter
STOP_TIMEOUT_S = 20.0  # apply servers finish their current group
END_TIMEOUT_S = 10.0  # then a running statement has this long to return

log = logging.getLogger("headrace")


class ApplyHost(Host):
    """One apply process, its reader and coordinator.

    Args:
        keep_existing: identities of the tables whose rows instantiation keeps at the destination, until all of them are
            recorded there.
        keep_call: identifies the call of `up --keep-existing` that named them.
        known: identities of the source's tables in the controller's record. Other tables in the log are ignored: an
            administrator, or a preparation that will be repeated, added them ahead of the record. None: the log is not
            ahead of the record.
    """

    kind: ClassVar[str] = "apply"
    adopts_open: ClassVar[bool] = True

    def __init__(
        self,
        spec: TopologySpec,
        name: str,
        fingerprint: str,
        *,
        keep_existing: Collection[str] = (),
        keep_call: str = "",
        known: Collection[str] | None = None,
    ) -> None:
        super().__init__(f"apply:{name}", spec.state_dir)
        self._spec = spec
        self._apply: ApplySpec = spec.apply(name)
        self._fingerprint = fingerprint
        self._last_call = LastCall(component_file(spec.state_dir, self.name, LAST_CALL))
        self._kept_rows = KeptRows(spec.state_dir, self.name, keep_call)
        # identities of tables
        self._keep_existing = frozenset() if self._kept_rows.is_done() else frozenset(keep_existing)
        # Only of tables that have no rows here at the call: the rows that others bring later are not kept.
        self._is_said_to_rest = bool(keep_call) and not self._kept_rows.is_done()
        self._known = None if known is None else frozenset(known)
        self._to_keep: frozenset[tuple[str, str]] = frozenset()  # (owner, name) of the kept tables that the driver got
        self._driver: ApplyDriver | None = None
        self._latest = ApplyStatus(name=self.name)  # the driver's last status; without a state when no driver runs
        self._described: dict[str, Any] = {}  # the driver's configuration, as the views show it
        self._starting_until = 0.0

    # ------------------------------------------------------------------ hosting

    def open(self) -> None:
        """Start a driver."""
        from spark_apply.driver.apply_driver import ApplyDriver
        from spark_apply.driver.described import configuration_of

        self._starting_until = self._clock.monotonic() + STARTING_S
        self._latest = ApplyStatus(name=self.name, state="INITIALIZING")
        configuration = self._configuration()
        self._described = configuration_of(configuration)
        self._to_keep = frozenset(
            (each.destination.owner, each.destination.name) for each in configuration.tables if each.keep_existing
        )
        self._driver = ApplyDriver(
            configuration,
            queue=self._queue_endpoint,
            application=self._application,
            tracks=self.tracks,
            last_call=self._last_call,
        )
        self._driver.start()

    def step(self) -> float:
        """Check the driver; raise the error that ended it."""
        driver = self._driver
        assert driver is not None
        driver.outcome()
        asked_us = self._clock.time_us()
        status = driver.control.status()
        # A busy coordinator is shown as of its last answer.
        self._latest = replace(_status(self.name, status), answered_us=status.asked_us or asked_us)
        self._note_kept(self._latest)
        is_starting = not status.ready and self._clock.monotonic() < self._starting_until
        return STARTING_INTERVAL_S if is_starting else STATUS_INTERVAL_S

    def _note_kept(self, status: ApplyStatus) -> None:
        """Stop keeping rows when the destination has recorded every table of the call of `up --keep-existing`."""
        if not (self._keep_existing and status.ready):
            return
        recorded = {(each.owner, each.name) for each in status.instantiation if each.state in {"DONE", "KEPT"}}
        if self._to_keep <= recorded:
            self._kept_rows.save()
            self._keep_existing = frozenset()

    def close(self) -> None:
        """End the driver, orderly if possible; return when all of it has ended."""
        driver, self._driver = self._driver, None
        if driver is None:
            self._latest = ApplyStatus(name=self.name)
            return
        self._latest = ApplyStatus(name=self.name, state="SHUTTING DOWN CLEANLY")
        try:
            driver.stop(STOP_TIMEOUT_S)
            if not driver.join(END_TIMEOUT_S):
                # Two drivers must never run in one process. Ray restarts this process, and the next driver's higher
                # epoch fences the old one out.
                log.error("%s: its driver does not end: this process ends", self.name)
                _end_process()
        finally:
            self._latest = ApplyStatus(name=self.name)

    def detail_state(self) -> str:
        """The driver's own state."""
        return self._latest.state or "INITIALIZING"

    def details(self) -> ApplyStatus:
        """The driver's last status."""
        capture, queue, driver = capture_of(self._spec, self._apply), dequeued(self._spec, self._apply), self._driver
        return replace(
            self._latest,
            site=self._apply.site,
            fingerprint=self._fingerprint,
            wire=wire_status(None if driver is None else driver.admission),
            source=self._apply.source,
            combined_with="" if capture is None else capture.name,
            dequeues_from="" if queue == self._apply.queue else queue,
        )

    def late_call(self) -> str:
        """Return the warning about a user function that has not returned in time, or an empty string."""
        return self._last_call.late

    def adopt(self, spec: TopologySpec, fingerprint: str) -> None:
        """Adopt a topology in which only the origin of the batches has changed.

        The driver connects to the new origin when its current stream breaks.

        See `Host.adopt` for the arguments.
        """
        self._spec, self._apply, self._fingerprint = spec, spec.apply(self._apply.name), fingerprint

    # ------------------------------------------------------------------ what the command line asks

    def low_watermark(self) -> int:
        """Return the low watermark that survives a crash of the destination; asks the driver.

        Everything of the source up to it is applied or in the error queue.
        """
        return int(self._live().status().counters["kept_scn"])

    def caught_up_scn(self) -> int:
        """Return the SCN up to which every table is complete: below `low_watermark` while a table is copied.

        0: a table is not copied yet, or the driver is starting.
        """
        return int(self._live().status().caught_up_scn)

    def compare(self, tables: Sequence[tuple[str, str]], rechecks: int, recheck_delay_s: float) -> list[dict[str, Any]]:
        """Compare source and destination tables.

        Args:
            tables: (owner, name) at the source; empty: all tables of this apply process.
            rechecks: number of further comparisons of a table that differs.
            recheck_delay_s: pause before each of them, in seconds.
        """
        from protos import apply_pb2 as pb

        request = pb.CompareRequest(
            tables=[pb.TableName(owner=owner, name=name) for owner, name in tables],
            rechecks=rechecks,
            recheck_delay_s=recheck_delay_s,
        )
        return [_plain(answer) for answer in self._live().compare(request)]

    def copy_again(self, tables: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """Begin to empty tables at the destination and copy them again; return their states before."""
        from protos import apply_pb2 as pb

        names = [pb.TableName(owner=owner, name=name) for owner, name in tables]
        return [_plain(each) for each in self._live().copy_again(pb.CopyAgainRequest(tables=names)).tables]

    def look_at_tables(self) -> bool:
        """Check now the tables that could not be copied: an operator may have corrected the cause.

        Returns whether the check was made.
        """
        return self._live().look_at_tables()

    def begin_execution(
        self,
        execution: str,
        numbers: Sequence[int],
        role: str = "",
        handler: bytes = b"",
        stops: bool = False,  # noqa: FBT001, FBT002 - a call through Ray has no keywords
        besides: Sequence[int] = (),
    ) -> int:
        """Begin to execute error transactions again; return their number.

        Args:
            execution: name of the execution for `execution_outcomes` and `end_execution`; a second call with the same
                name begins nothing.
            numbers: numbers of the error transactions; empty: all that are in the queue now.
            role: role of the destination whose rights are checked; empty: the apply servers' own.
            handler: a function for their row LCRs (`headrace.rules.user_code.handlers.ExecutionHandler`); empty: they
                take the usual path.
            stops: whether the execution ends at the first failure.
            besides: transactions that are excluded from "all".
        """
        from protos import apply_pb2 as pb

        request = pb.ErrorsRequest(
            numbers=list(numbers), all=not numbers, role=role, handler=handler, stops=stops, besides=list(besides)
        )
        return self._live().begin_execution(execution, request)

    def execution_outcomes(self, execution: str, wait_s: float) -> dict[str, Any]:
        """Return the outcomes of an execution that no earlier call has returned.

        Args:
            execution: its name.
            wait_s: longest wait for an outcome, in seconds.

        Returns:
            `outcomes`, one per error transaction that was tried; and `is_over`. When it is over: how many transactions
            are `left` in the queue, and how many of these `arrived` since the execution began.
        """
        from spark_apply.driver.control import outcome_message

        page = self._live().execution_outcomes(execution, wait_s)
        outcomes = [_plain(outcome_message(outcome)) for outcome in page.outcomes]
        return {"outcomes": outcomes, "is_over": page.is_over, "left": page.left, "arrived": page.arrived}

    def end_execution(self, execution: str) -> None:
        """End an execution: what no apply server has begun is not executed."""
        self._live().end_execution(execution)

    def edit_error(
        self, number: int, edit: int, position: int, values: Sequence[Mapping[str, Any]], edited_by: str
    ) -> dict[str, Any]:
        """Edit one row LCR of an error transaction; return the recorded edit.

        Args:
            number: number of the error transaction.
            edit: which edit of the transaction this is, from 1.
            position: index of the row LCR, from 0.
            values: its new values, each with the fields of `spark_apply.driver.error_edits.ValueEdit`.
            edited_by: the user who edits.
        """
        from spark_apply.driver.error_edits import EditRequest, ValueEdit

        given = tuple(ValueEdit(**value) for value in values)
        return dataclasses.asdict(
            self._live().edit_error(
                EditRequest(number=number, edit=edit, position=position, values=given, edited_by=edited_by)
            )
        )

    def delete_errors(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Delete error transactions; all if `numbers` is empty."""
        from protos import apply_pb2 as pb

        request = pb.ErrorsRequest(numbers=list(numbers), all=not numbers)
        return [_plain(answer) for answer in self._live().delete_errors(request)]

    # ------------------------------------------------------------------ inside

    def _live(self) -> ApplyControl:
        driver = self._driver
        if driver is None:
            raise PropagationError(f"{self.name} does not run", hint="wait for it; see `headrace status`")
        return driver.control

    def _queue_endpoint(self) -> Peer:
        """Return where its batches come from.

        That is its queue, an earlier queue (direct dequeuing), or the capture process that it is combined with and that
        serves as its queue.
        """
        from actors.hosting.runtime import resolver
        from actors.security.wire import peers_of

        capture = capture_of(self._spec, self._apply)
        resolve = peers_of(self._spec, self._apply.site, resolver(self._spec.name, self._apply.site))
        if capture is not None:
            return resolve(f"capture:{capture.name}")
        queue = dequeued(self._spec, self._apply)
        return dataclasses.replace(resolve(f"queue:{queue}"), serves=queue)

    def _application(self) -> ApplicationAccess:
        from actors.hosting.runtime import actors_of
        from spark_apply.application.task_runs import ApplicationAccess

        return ApplicationAccess(**actors_of(self._spec.name).call(f"spark:{self._apply.site}", "access"))

    def _configuration(self) -> ApplyConfig:
        from actors.hosting.runtime import actors_of, own_host
        from actors.security.wire import identity_of
        from spark_apply.apply_config import ApplyConfig, TableToInstantiate
        from spark_apply.conversation.groups import OnError

        actors, apply = actors_of(self._spec.name), self._apply

        def access(site: str) -> DatabaseAccess:
            return access_to(self._spec.site(site), str(actors.call(f"site:{site}", "claimed_dsn")), apply.tables)

        ways = ways_to(self._spec, apply)
        captured: tuple[CapturedTable, ...] = actors.call(f"site:{apply.source}", "captured", timeout_s=60.0)
        with_ddl = {each.identity for each in captured if any(way.carries_ddl(TableName.of(each)) for way in ways)}
        made = {each.identity for each in captured if each.is_made and each.identity in with_ddl}
        # A table that DDL made is never ahead of the record: its rows arrive from the first on, whatever `up` prepares.
        known = None if self._known is None else self._known | made
        captured = tuple(each for each in captured if known is None or each.identity in known)
        refuse_one_name(self._spec, apply, captured)
        # Asked behind `captured`: everything committed before, and so every CREATE TABLE of these, is below.
        as_of = actors.call(f"site:{apply.source}", "write_marker", b"made", timeout_s=60.0) if made else FIRST_SCN
        tables = tuple(
            TableToInstantiate(
                identity=table.source.identity,
                source=TableName.of(table.source),
                destination=TableName.of(table.destination),
                rows=table.rows,
                keep_existing=table.source.identity in self._keep_existing,
                rests=self._is_said_to_rest and table.source.identity not in self._keep_existing,
                is_sent_on=is_sent_on(self._spec, apply.site, TableName.of(table.destination)),
                returned_by=returned_by(self._spec, apply, table),
                may_empty=writes_alone(self._spec, apply, TableName.of(table.destination)),
                shared_by=shared_by(self._spec, apply, table),
                object_numbers=tuple(int(number) for number in table.source.object_numbers),
                transformations=table.transformations,
                as_of=Scn(as_of) if table.source.identity in made else FIRST_SCN,
                takes_ddl=table.source.identity in with_ddl,
            )
            for table in arriving(ways, captured)
        )
        return ApplyConfig(
            topology=self._spec.name,
            apply=apply.name,
            source=access(apply.source),
            destination=access(apply.site),
            queue=apply.queue,
            tables=tables,
            tag=apply.tag or b"",
            parallelism=apply.parallelism,
            group_transactions=apply.group_transactions,
            group_rows=apply.group_rows,
            host=own_host(),
            identity=identity_of(self._spec, apply.site),
            rules=rules_at_the_end(ways),
            # Changes that an apply process made at the source come back to this site if they are captured there.
            returned_from=tuple(
                other.name for other in self._spec.applies if (other.site, other.source) == (apply.source, apply.site)
            ),
            beside=tuple(
                (here.name, there.name)
                for here in self._spec.applies
                for there in self._spec.applies
                if (here.site, there.site) == (apply.site, apply.source) and here.source == there.source
            ),
            conflicts=apply.conflicts,
            commits_in_order=apply.commits_in_order,
            dependencies=apply.dependencies,
            on_error=OnError[apply.on_error.upper()],
            handlers=apply.handlers,
            commits_lazily=apply.commits_lazily,
            goes_by_record=self._known is not None,
        )

    def configuration(self) -> dict[str, Any]:
        """Return its parameters, rules, transformations, handlers and keys, as the destination's views show them.

        Empty before the first driver.
        """
        return self._described

    def views(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of the destination's views by view name, except those of the error queue.

        They come from what the driver knows; the destination is not queried.
        """
        from headrace.databases.destination_views import rows_said

        said = self._driver.control.said() if self._driver is not None else {}
        return rows_said(
            said or {"topology": self._spec.name, "apply_name": self._apply.name, "configuration": self._described}
        )

    def errors(self) -> list[dict[str, Any]]:
        """The error queue of this apply process, read from the destination."""
        with self._destination() as destination:
            return [dataclasses.asdict(error) for error in destination.errors(self._spec.name, self._apply.name)]

    def first_errors(self) -> list[dict[str, Any]]:
        """Return the first `ERRORS_MAX` errors, without values.

        A queue may hold very many errors, and the driver works in this process.
        """
        from headrace.databases.destination_views import ERRORS_MAX

        with self._destination() as destination:
            found = destination.errors(self._spec.name, self._apply.name, first=ERRORS_MAX)
        return [{**dataclasses.asdict(error), "readable": ()} for error in found]

    def _destination(self) -> contextlib.closing[DestinationDatabase]:
        from actors.hosting.runtime import actors_of

        site = self._apply.site
        dsn = str(actors_of(self._spec.name).call(f"site:{site}", "database_dsn"))
        return contextlib.closing(open_destination(access_to(self._spec.site(site), dsn)))


def _end_process() -> None:
    os._exit(1)


def _plain(message: Any) -> dict[str, Any]:  # noqa: ANN401 - any generated message
    """Convert a protobuf message to plain data; field names as in the .proto file, integers as integers."""
    answer: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            answer[field.name] = dict(value)
        elif field.message_type is not None:
            answer[field.name] = [_plain(item) for item in value] if field.is_repeated else _plain(value)
        elif field.is_repeated:
            answer[field.name] = list(value)
        else:
            answer[field.name] = value
    return answer


def _status(name: str, status: pb.ApplyStatus) -> ApplyStatus:
    """Convert a driver's status.

    Args:
        name: full name of the apply process.
        status: the driver's answer.
    """
    counters = dict(status.counters)
    return ApplyStatus(
        name=name,
        state=status.state,
        detail=status.detail,
        hint=status.hint,
        rows_total=status.rows_applied,
        transactions_total=status.transactions_applied,
        reader_state=status.reader_state,
        epoch=status.epoch,
        low_watermark_scn=status.low_watermark_scn,
        high_watermark_scn=status.high_watermark_scn,
        received_scn=status.received_scn,
        recorded_scn=counters.get("durable_scn") or None,
        told_scn=counters.get("told_scn") or None,
        caught_up_scn=status.caught_up_scn,
        last_commit_time_us=status.last_commit_time_us,
        last_applied_us=status.last_applied_us,
        groups_total=status.groups_applied,
        transactions_received_total=status.transactions_received,
        rollbacks_total=status.rollbacks,
        # Without an epoch the driver has not read the error queue yet: unknown, not empty.
        errors=status.errors if status.epoch else None,
        ready=status.ready,
        servers=tuple(map(_server_status, status.servers)),
        instantiation=tuple(map(_table_copy, status.instantiation)),
        missing_tables=tuple(status.missing_tables),
        ddl_jobs=tuple(map(_index_job, status.ddl_jobs)),
        counters=counters,
    )


def _server_status(server: pb.ServerStatus) -> ApplyServerStatus:
    return ApplyServerStatus(
        server=server.server,
        state=server.state,
        detail=server.detail,
        pid=server.pid,
        host=server.host,
        attempts=server.attempts,
        group=server.group,
        commit_scn=server.commit_scn,
        waits_for_group=server.waits_for_group,
        waits_for_scn=server.waits_for_scn,
        waits_for_server=server.waits_for_server,
        groups_total=server.groups_applied,
        rows_total=server.rows_applied,
    )


def _table_copy(table: pb.InstantiationProgress) -> TableCopy:
    return TableCopy(
        owner=table.owner,
        name=table.name,
        state=table.state,
        rows=table.rows,
        rows_estimated=table.rows_estimated,
        instantiation_scn=table.instantiation_scn,
        problem=table.problem,
        bytes_done=table.bytes_done,
        bytes_total=table.bytes_total,
        obsolete_errors=table.obsolete_errors,
    )


def _index_job(job: pb.DdlJob) -> IndexJobStatus:
    return IndexJobStatus(
        number=job.number,
        owner=job.owner,
        name=job.name,
        index=job.index,
        state=job.state,
        attempts=job.attempts,
        problem=job.problem,
        fix=job.fix,
        since_us=job.since_us,
    )


def build(
    spec: TopologySpec,
    name: str,
    fingerprint: str,
    *,
    keep_existing: Collection[str] = (),
    keep_call: str = "",
    known: Collection[str] | None = None,
) -> ApplyHost:
    """Build the host of an apply process (`actors.hosting.runtime.Factory`).

    Args:
        spec: the topology.
        name: name of the apply process.
        fingerprint: fingerprint of the topology that brought this component's part; shown in its status.
        keep_existing: as for `ApplyHost`.
        keep_call: as for `ApplyHost`.
        known: as for `ApplyHost`.
    """
    return ApplyHost(spec, name, fingerprint, keep_existing=keep_existing, keep_call=keep_call, known=known)
