"""Redo receiver: keeps a copy of another site's redo log, for the capture processes of its own site.

Job
    Receive what the source's log writer ships, write it into the standby redo log, fsync, and only then acknowledge it;
    serve the capture processes as the source's site would.

Main path
    RedoReceiver.open -> RedoReception.connect (the source continues where the standby redo log ends)
    RedoReceiver.step -> RedoReception.take_nowait -> StandbyLog.take -> StandbyLog.sync -> acknowledge, and
    ServingRedo.announce to the capture processes; their required checkpoints -> StandbyLog.purge.
    Archived logs arrive the same way, complete segments only, or as files
    (`headrace.redo.standby.archive_folder.ArchiveFolder`): then the source only learns how far the copy reaches.

States
    RECEIVING               the last step wrote redo. Memory only.
    WAITING FOR REDO        everything durable at the source is durable here. Memory only.
    PAUSED: REDO IS FULL    the standby redo log has reached its bound. Ends when the captures here need less of it. Memory only.
    The capture processes are served in every state: what is durable here can be mined even if the source never
    returns.

Durable when
    `headrace.redo.standby.standby_log` has synced it. What is acknowledged is durable here, so the source may remove it,
    and with `transport: sync` confirm it to its database. `receivers.json` beside the standby redo log is a copy of the
    source's: which apply process gets which table.

Worked flow
    connect at (2, 500) -> frames up to (2, 900) -> fsync -> acknowledge (2, 900); (2, 900) is announced to the captures
    killed -> the standby redo log ends at (2, 900) -> connect at (2, 900)
    the source's machine is gone: RETRYING, and the captures mine up to (2, 900)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from actors.hosting.host import Host
from actors.security.wire import callers_of, links_of
from actors.site.connection import redo_folder
from actors.site.redo_keeper import RedoKeeper, register_captures
from headrace.base.backoff import Backoff
from headrace.base.durable_file import replace_file
from headrace.base.errors import HeadraceError, PropagationError, RedoError, Retry
from headrace.base.plain_data import as_json, from_json
from headrace.lcr.scn import scn_text
from headrace.links.standby import Shipped
from headrace.status.redo import RedoReceiverStatus
from topology.edits.receivers import Receivers
from topology.routing.downstream import receiver_of

if TYPE_CHECKING:
    from actors.security.wire import MakeRedoLinks
    from headrace.base.clock import Clock
    from headrace.links.serving import RedoLinks, ServingRedo
    from headrace.links.standby import RedoReception
    from headrace.redo.mining.names import NameOfNow
    from headrace.redo.standby.archive_folder import ArchiveFolder
    from headrace.redo.standby.standby_log import StandbyLog, StandbyStatistics
    from topology.spec import TopologySpec

__all__ = ["RedoReceiver", "build"]

IDLE_PAUSE_S = 1.0  # a frame wakes the receiver; this pause only shows that it is alive, and purges
FULL_PAUSE_S = 0.5  # the same as the log writer's
STEP_BYTES_MAX = 8 << 20  # of redo per step and fsync; bounds what may be in flight
NAMES_TIMEOUT_S = 30.0  # the same as a capture process's


class RedoReceiver(RedoKeeper, Host):
    """One redo receiver.

    Args:
        name: name of the receiver, such as dbs1@dbs3.
        fingerprint: fingerprint of the topology; shown in its status.
        make_links: makes its stream, and serves the capture processes of its site.
        clock: clock of periods and statistics.
    """

    kind: ClassVar[str] = "redo"
    adopts_open: ClassVar[bool] = True

    def __init__(
        self,
        spec: TopologySpec,
        name: str,
        fingerprint: str,
        make_links: MakeRedoLinks = links_of,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(f"redo:{name}", spec.state_dir, clock=clock)
        self._make_links = make_links
        self._spec = spec
        self._receiver = receiver_of(spec, name)
        self._fingerprint = fingerprint
        self._folder = redo_folder(spec, source=self._receiver.source, site=self._receiver.site)
        self._log: StandbyLog | None = None
        self._service: ServingRedo | None = None
        self._client: RedoReception | None = None
        self._files: ArchiveFolder | None = None  # where complete segments arrive as files
        self._held = -1  # descriptor of the folder's lock while this process writes there
        self._must_reopen = False
        self._connect_at, self._connecting = 0.0, Backoff()
        self._receiver_state = "WAITING FOR REDO"

    # ------------------------------------------------------------------ hosting

    def open(self) -> None:
        """Read the standby redo log, serve it, and ask the source to continue from its end."""
        from headrace.redo.standby.archive_folder import ArchiveFolder

        # Always from disk: the folder may have been restored or removed meanwhile, and only what is on disk counts as
        # acknowledged.
        self._hold_folder()
        log = self._open_log()
        self._must_reopen = False
        self._receiver_state = "WAITING FOR REDO"
        if self._receiver.archive:
            self._files = ArchiveFolder(Path(self._receiver.archive), self._receiver.source)
        else:
            self._client = self._connected(log)

    def step(self) -> float:
        """Take what arrived, make it durable, acknowledge it; purge what no capture process here needs."""
        if self._must_reopen:
            self.close()
            self.open()
        log = self._log
        assert log is not None
        log.purge()
        if log.is_full:
            self._receiver_state = "PAUSED: REDO IS FULL"
            return FULL_PAUSE_S
        if self._files is not None:
            return self._take_file(log, self._files)
        assert self._client is not None
        return self._take_frames(log, self._client)

    def _connected(self, log: StandbyLog) -> RedoReception:
        receiver = self._receiver
        client = self._links().reception(receiver.source)
        shipped = (
            Shipped.NOTHING if receiver.archive else Shipped.ARCHIVED if receiver.is_archived_log else Shipped.REDO
        )
        client.connect(log.place, shipped=shipped)
        return client

    def _take_file(self, log: StandbyLog, files: ArchiveFolder) -> float:
        """Take the next segment that was copied here; the source need not be reachable."""
        has_moved = files.take(log)
        if has_moved and self._service is not None:
            self._service.announce()
        self._tell_source(log, has_moved=has_moved)
        self._receiver_state = "RECEIVING" if has_moved else "WAITING FOR REDO"
        return 0.0 if has_moved else IDLE_PAUSE_S

    def _tell_source(self, log: StandbyLog, *, has_moved: bool) -> None:
        """Report to the source what it may purge here; retried until the source answers."""
        try:
            if self._client is not None:
                self._client.take_nowait()  # raises if the stream is broken; nothing else arrives on it
                if has_moved:
                    self._client.acknowledge(log.place)
            elif self._clock.monotonic() >= self._connect_at:
                self._client = self._connected(log)
                self._connecting.reset()
        except HeadraceError as error:
            if error.retry is not Retry.TIMED:
                raise
            self._connect_at = self._clock.monotonic() + self._connecting.next_s()
            client, self._client = self._client, None
            if client is not None:
                client.close()

    def _take_frames(self, log: StandbyLog, client: RedoReception) -> float:
        """Take what the source sent."""
        taken, before = 0, log.place
        while taken < STEP_BYTES_MAX and (frame := client.take_nowait()) is not None:
            log.take(frame)
            taken += len(frame.data)
        if not taken:
            self._receiver_state = "WAITING FOR REDO"
            return IDLE_PAUSE_S
        log.sync()
        if log.place != before:  # also when only the end of a segment is complete: taking the next one has synced it
            client.acknowledge(log.place)
            if self._service is not None:
                self._service.announce()
        client.grant(taken)
        self._receiver_state = "RECEIVING"
        return 0.0

    def close(self) -> None:
        """End the stream and release the files; what is durable is still served to the capture processes."""
        client, self._client, self._files = self._client, None, None
        if client is not None:
            client.close()
        if self._log is not None:
            with contextlib.suppress(OSError, RedoError):  # checkpoints that could not be saved are only a lower bound
                self._log.close()
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def adopt(self, spec: TopologySpec, fingerprint: str) -> None:
        """Serve changed capture processes, and reopen if the way in which redo arrives has changed.

        Only the source decides whether its commits wait (`transport: sync`).

        See `Host.adopt` for the arguments.
        """
        before, self._receiver = self._receiver, receiver_of(spec, self._receiver.name)
        self._spec = spec
        self._must_reopen = (before.is_archived_log, before.archive) != (
            self._receiver.is_archived_log,
            self._receiver.archive,
        )
        if self._service is not None:
            self._service.admit(callers_of(spec, self.name))
        if self._log is not None:
            self._register_captures(self._log)
        # Last: capture processes begin when they see it, and their redo must be kept by then.
        self._fingerprint = fingerprint

    def end(self) -> bool:
        """End everything; what is durable stays."""
        ended = super().end()
        if self._service is not None:
            self._service.stop()
        return ended

    def detail_state(self) -> str:
        """Return RECEIVING, WAITING FOR REDO or PAUSED: REDO IS FULL."""
        return self._receiver_state

    def details(self) -> RedoReceiverStatus:
        """Return the standby redo log's statistics."""
        receiver, files, log = self._receiver, self._files, self._log
        transport = "sync" if receiver.is_sync else "async"
        status = RedoReceiverStatus(
            name=self.name,
            site=receiver.site,
            fingerprint=self._fingerprint,
            problem="" if files is None else files.problem,
            wire=None if self._service is None else self._service.wire_status(),
            source=receiver.source,
            mode="archived_log" if receiver.is_archived_log else "real_time",
            transport=None if receiver.is_archived_log else transport,
            archive=None if files is None else receiver.archive,
        )
        if log is None:
            return status
        statistics = log.statistics()
        is_full = self._receiver_state == "PAUSED: REDO IS FULL"
        return replace(
            self.with_log(status, statistics),
            problem=self._full(statistics) if is_full else status.problem,
            bytes_total=statistics.received_bytes,
            redo_at_source_scn=statistics.source_scn,
            duplicate_bytes_total=statistics.duplicate_bytes,
        )

    def _full(self, statistics: StandbyStatistics) -> str:
        """Return the problem text for the operator: why nothing is taken, and how that ends."""
        source, bound = self._receiver.source, f"redo_bytes_max ({statistics.redo_bytes_max} bytes)"
        if statistics.is_one_transaction:
            problem = (
                f"one transaction fills {bound} of the copy of the redo of {source}, which ends at SCN"
                f" {scn_text(statistics.position.scn)}; "
                "the source keeps the rest: raise redo_bytes_max above the size of that transaction, then"
                " `headrace up`"
            )
        else:
            problem = (
                f"the copy of the redo of {source} has reached {bound} at SCN {scn_text(statistics.position.scn)}, the"
                " source keeps the rest: it continues by itself when the captures here need less of the copy; to keep"
                " more, raise redo_bytes_max and run `headrace up`"
            )
        waits = f"; transport is sync: commits at {source} that wait for the log writer wait until then"
        return problem + (waits if self._receiver.is_sync else "")

    def kept_redo(self) -> StandbyLog | None:
        """Return the standby redo log while it is open."""
        return self._log

    def endpoint(self) -> str:
        """Return the endpoint at which the capture processes of this site watch the copy."""
        if self._service is None:
            raise PropagationError(f"{self.name} does not serve redo yet")
        return self._service.endpoint

    # ------------------------------------------------------------------ what capture processes and the controller ask

    def receivers(self) -> Receivers:
        """Return which apply process got which table at the last preparation; only the first call asks the source."""
        try:
            return from_json(Receivers, json.loads(self._receivers_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            found: Receivers = self._ask_source("receivers")
            if found != Receivers():
                self.note_receivers(found)
            return found

    def note_receivers(self, noted: Receivers) -> None:
        """Record durably which apply process gets which table from now on."""
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._receivers_file, json.dumps(as_json(noted)) + "\n")

    def names_of_now(self) -> dict[int, NameOfNow]:
        """Return the current names of the source's captured tables."""
        names: dict[int, NameOfNow] = self._ask_source("names_of_now")
        return names

    # ------------------------------------------------------------------ inside

    @property
    def _receivers_file(self) -> Any:  # noqa: ANN401 - a Path
        return self._folder / "receivers.json"

    def _ask_source(self, method: str) -> Any:  # noqa: ANN401 - the method's answer
        from actors.hosting.runtime import actors_of

        return actors_of(self._spec.name).call(f"site:{self._receiver.source}", method, timeout_s=NAMES_TIMEOUT_S)

    def _hold_folder(self) -> None:
        """Lock the folder, so that only this process writes in it.

        An orphaned earlier process would cut off what its successor has acknowledged.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise PropagationError(
                f"another process writes the standby redo log in {self._folder}: an earlier process of {self.name}"
                " that still runs",
                hint="it continues by itself when that process has ended; if it stays, find it with `lslocks` and end it",
            ) from error
        self._held = descriptor

    def _open_log(self) -> StandbyLog:
        from headrace.redo.standby.standby_log import StandbyLog

        log = StandbyLog(
            self._folder, self._receiver.source, redo_bytes_max=self._spec.redo_bytes_max, clock=self._clock
        )
        self._register_captures(log)
        if self._service is None:
            self._service = self._links().serve_redo(self._receiver.source, log)
        else:
            self._service.attach(log)
        self._log = log
        return log

    def _links(self) -> RedoLinks:
        return self._make_links(self._spec, self._receiver.site, self.name, self.wake)

    def _register_captures(self, log: StandbyLog) -> None:
        """Keep redo only for the capture processes of the topology."""
        register_captures(log.required_checkpoints, self._spec, self._receiver.captures)


def build(spec: TopologySpec, name: str, fingerprint: str) -> RedoReceiver:
    """Build the host of a redo receiver (`actors.hosting.runtime.Factory`).

    Args:
        spec: the topology.
        name: name of the receiver, such as dbs1@dbs3.
        fingerprint: fingerprint of the topology that brought this component's part; shown in its status.
    """
    return RedoReceiver(spec, name, fingerprint)
