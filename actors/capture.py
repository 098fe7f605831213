"""Capture process: mine the redo at its site, the source's own or a copy, and enqueue the changes that its rules take.

Job
    Send everything that the queue does not have yet, in order, when it is durable in redo. Where the topology allows
    it, batches go straight to the one apply process behind the queue (`actors.combined`).

Main path
    CaptureHost.open -> Publisher.connect (the queue says where to begin) -> Miner
    CaptureHost.step -> Miner.next_batch -> encode -> Publisher.send_nowait; durable SCN -> RedoWatch.checkpoint.
    Combined, the capture process mounts a small queue (`MountedQueue`), and the apply process says where to begin.

States (V$STREAMS_CAPTURE.STATE)
    INITIALIZING              connecting to site and queue, and finding the restart point in redo. Memory only.
    CAPTURING CHANGES         the last step sent something. Memory only.
    WAITING FOR REDO          all durable redo is mined. Memory only.
    PAUSED FOR FLOW CONTROL   the queue gives no credit. Memory only.
    PAUSED: A TABLE LEFT THE RULES   a captured table was renamed to a name outside the rules, here or on the way to an
                              apply process that received it. Its changes are not dropped until an operator decides.
                              Checked again periodically. Memory only: a restarted process finds the same change in redo.

Durable when
    Nothing is stored here, except the refusal of a combined apply process (`actors.combined`). What the queue reports
    as durable is committed at every destination: the site may purge its redo up to there. A restart begins where the
    queue says. For FIRST_SCN it begins at the SCN from which the site keeps redo for this capture process. If the
    capture process never reported a checkpoint, it begins with the oldest redo left.

Worked flow
    connect: Resume{30} -> Miner(30) -> 30..50 sent, 50..60 sent -> killed -> again: Resume{50} -> 50..60
    the queue loses everything: Rewind{20} -> Miner(20) -> 20..50, ...
    a destination was restored from an old backup: Rewind{20} -> the site keeps redo from 20 on -> Miner(20): the queue
    drops what it and the other destinations have; or redo begins at 40 -> gone{40}: the queue refuses that destination
    alone -> Rewind{60}: Miner(60)
    the operator sets the start SCN to 20: checked by the site -> the queue answers Rewind{20} -> Miner(20): queue and
      destinations drop duplicates
    a new queue: Resume{0} -> Miner(0), redo begins at 15 -> the mark 0..15, 15..50, ...
    a new queue, and the site has 30 on record: Resume{0} -> the mark 0..30, Miner(30) -> 30..50, ...
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from actors.capture_checkpoint import CaptureCheckpoint
from actors.hosting.host import Host
from actors.records.files import LAST_CALL, component_file
from actors.security.wire import links_of
from actors.site.asked_names import AskedNames
from actors.site.connection import redo_folder
from headrace.base.errors import ConfigError, LogGone, PropagationError, TableLeftRules, WouldBlock
from headrace.base.failpoints import failpoint
from headrace.databases.connectors import decoder_for
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.rules.user_code.last_call import LastCall
from headrace.status.captures import CaptureStatus
from topology.routing.combined import apply_of
from topology.routing.downstream import keeper_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.combined import MountedQueue
    from actors.security.wire import MakeLinks
    from headrace.base.clock import Clock
    from headrace.links.ports import BatchHeader, Outlet, RedoPosition, RedoWatch
    from headrace.links.serving import Links
    from headrace.redo.mining.key_search import SearchedRedo
    from headrace.redo.mining.mined_labels import MinedLabel
    from headrace.redo.mining.miner import Miner
    from topology.spec import ApplySpec, CaptureSpec, TopologySpec

    MakeMiner = Callable[[TopologySpec, CaptureSpec, Scn, LastCall], Miner]

__all__ = ["CaptureHost", "build", "miner_of"]

log = logging.getLogger("headrace")

NAMES_TIMEOUT_S = 30.0  # a catalog with very many tables, on a busy server
IDLE_PAUSE_S = 1.0  # any change wakes the idle process; this pause only shows that it is alive
LEFT_INTERVAL_S = 2.0  # between checks of a table that left the rules; each check searches the redo for the change


def miner_of(spec: TopologySpec, capture: CaptureSpec, start_scn: Scn, last_call: LastCall) -> Miner:
    """Make the miner of the redo at a capture process's site; the keeper of the redo supplies table names.

    Args:
        spec: the topology.
        capture: the capture process.
        start_scn: everything committed up to here was captured before.
        last_call: records transformation functions that end the process.
    """
    from actors.hosting.runtime import actors_of
    from headrace.redo.mining.miner import Miner

    def ask(method: str) -> Any:  # noqa: ANN401 - the method's answer
        keeper = keeper_of(capture.source, capture.site)
        return actors_of(spec.name).call(keeper, method, timeout_s=NAMES_TIMEOUT_S)

    return Miner(
        redo_folder(spec, source=capture.source, site=capture.site),
        capture.source,
        start_scn,
        capture.rules,
        decoder_for,
        names=AskedNames(ask),
        last_call=last_call,
    )


class CaptureHost(Host):
    """One capture process.

    Args:
        fingerprint: fingerprint of the topology; shown in its status.
        make_links: makes its streams, and serves the apply process with which it is combined.
        make_miner: makes the miner of the redo.
        clock: clock of periods and statistics.

    Attributes:
        checkpoint: how far its changes are durable.

    More than 15 fields: each step decides from the miner, the pending batch and the reason for a pause together.
    """

    kind: ClassVar[str] = "capture"

    def __init__(
        self,
        spec: TopologySpec,
        name: str,
        fingerprint: str,
        make_links: MakeLinks = links_of,
        *,
        make_miner: MakeMiner = miner_of,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(f"capture:{name}", spec.state_dir, clock=clock)
        self._make_links, self._make_miner = make_links, make_miner
        self._spec = spec
        self._capture = spec.capture(name)
        self._fingerprint = fingerprint
        self._last_call = LastCall(component_file(spec.state_dir, self.name, LAST_CALL))
        self._redo: RedoWatch | None = None
        self._queue: Outlet | None = None
        self._combined: MountedQueue | None = None  # the same object when it is combined with an apply process
        self._miner: Miner | None = None
        self._waiting: tuple[BatchHeader, bytes] | None = None
        self._capture_state = "INITIALIZING"
        self.checkpoint = CaptureCheckpoint(self._clock)
        self._rewinds = self._bytes_sent = 0
        self._unmatched: tuple[str, ...] = ()
        self._left: TableLeftRules | None = None
        self._left_at = 0.0
        self._redo_end: RedoPosition | None = None  # end of the redo that may be read, as last reported

    # ------------------------------------------------------------------ hosting

    def open(self) -> None:
        """Connect to site and queue, and begin where the queue says; combined, wait for the apply process's position."""
        links = self._make_links(self._spec, self._capture.site, self.name, self.wake)
        self._capture_state = "INITIALIZING"
        self._redo = links.redo(self._redo_component, self._capture.source)
        self._redo.connect()
        self.checkpoint.open(self._redo)
        if (apply := apply_of(self._spec, self._capture)) is not None:
            self._mount(apply, links)
            return
        self._forget_refusal()
        queue = links.publisher(self._capture.queue, self._capture.source)
        self._queue = queue
        self._begin(queue.connect().needed_scn)

    def step(self) -> float:
        """Send one batch, or determine why that is not possible."""
        queue, redo, miner = self._queue, self._redo, self._miner
        assert queue is not None
        assert redo is not None
        progress = queue.poll()
        if progress.rewind_scn is not None:
            self._rewinds += 1
            self.checkpoint.durable_scn = progress.durable_scn
            self._begin(progress.rewind_scn)
            return 0.0
        self._tell_checkpoint(redo, progress.durable_scn)
        # No miner: the queue knows that the redo it asked for is gone, or the combined apply process has not asked yet.
        if miner is None:
            return IDLE_PAUSE_S
        if self._left is not None:
            wait_s = self._left_at + LEFT_INTERVAL_S - self._clock.monotonic()
            if wait_s > 0:
                return wait_s
            # Mine the waiting change again: the table may have another name by now, or may no longer be captured.
            miner = self._mine_from(miner.sent_scn)
        if self._waiting is None:
            try:
                self._waiting = self._mine(miner, redo)
                self._left = None
            except LogGone as error:
                return self._pass_on(error, queue, miner)
            except TableLeftRules as error:
                self._left, self._left_at = error, self._clock.monotonic()
                self._capture_state = "PAUSED: A TABLE LEFT THE RULES"
                return LEFT_INTERVAL_S
        if self._waiting is None:
            self._capture_state = "WAITING FOR REDO"
            due_at = miner.mark_due_at
            return IDLE_PAUSE_S if due_at is None else max(0.001, min(IDLE_PAUSE_S, due_at - self._clock.monotonic()))
        try:
            queue.send_nowait(*self._waiting)
        except WouldBlock:
            self._capture_state = "PAUSED FOR FLOW CONTROL"
            return IDLE_PAUSE_S
        failpoint("capture.after_enqueue")
        self._bytes_sent += len(self._waiting[1])
        for label in self._waiting[0].labels:
            self.tracks.note(
                label, self._capture.source, "ENQUEUED" if self._combined is None else "SENT", peer=self._receiver
            )
        self._waiting = None
        self._capture_state = "CAPTURING CHANGES"
        return 0.0

    def close(self) -> None:
        """Close both connections and the redo."""
        queue, redo, miner = self._queue, self._redo, self._miner
        self._queue = self._combined = self._redo = self._miner = self._waiting = self._left = None
        self.checkpoint.close()
        for closable in (queue, redo, miner):
            if closable is not None:
                closable.close()

    def late_call(self) -> str:
        """Return the warning about a user function that has not returned in time, or an empty string."""
        return self._last_call.late

    def adopt(self, spec: TopologySpec, fingerprint: str) -> None:
        """Adopt changed rules or another queue; mining begins at the queue's position.

        See `Host.adopt` for the arguments.
        """
        self._spec, self._capture, self._fingerprint = spec, spec.capture(self._capture.name), fingerprint

    def detail_state(self) -> str:
        """Return the state within ENABLED, or that the combined apply process is not connected."""
        combined = self._combined
        return (
            self._capture_state
            if combined is None or combined.is_connected
            else "WAITING FOR 1 SUBSCRIBER(S) INITIALIZING"
        )

    def endpoint(self) -> str:
        """Return the endpoint for the apply process that it is combined with."""
        combined = self._combined
        if combined is None:
            raise PropagationError(
                f"{self.name} serves no apply process now", hint="its batches go through the queue, or it is starting"
            )
        return combined.endpoint

    def details(self) -> CaptureStatus:
        """Return the miner's statistics and the queue's answers."""
        left, miner, combined = self._left, self._miner, self._combined
        status = CaptureStatus(
            name=self.name,
            site=self._capture.site,
            fingerprint=self._fingerprint,
            detail="" if left is None else left.message,
            hint="" if left is None else left.hint,
            source=self._capture.source,
            queue=self._capture.queue,
            required_checkpoint_scn=self.checkpoint.told_scn,
            rewinds_total=self._rewinds,
            bytes_sent_total=self._bytes_sent,
            unmatched_rules=tuple(self._unmatched),
        )
        if combined is not None:
            subscriber = combined.status()
            status = replace(
                status, wire=combined.wire_status(), combined_with=subscriber.subscriber, subscribers=(subscriber,)
            )
        if miner is None:
            return status
        statistics = miner.statistics()
        return replace(
            status,
            bytes_total=statistics.redo_bytes,
            transactions_total=statistics.transactions,
            rows_total=statistics.rows_kept,
            applied_scn=self.checkpoint.durable_scn,
            max_checkpoint_scn=statistics.max_checkpoint_scn,
            captured_scn=statistics.captured_scn,
            sent_scn=statistics.sent_scn,
            transactions_dropped_total=statistics.transactions_dropped,
            rows_discarded_total=statistics.rows_discarded,
            batches_total=statistics.batches,
            marks_total=statistics.marks,
            full_evaluations_total=statistics.full_evaluations,
            last_commit_time_us=statistics.last_commit_time_us,
            labels_left_out_total=statistics.labels_left_out,
            ddl_failed_total=statistics.ddl_failed,
            last_failed_ddl=statistics.last_failed_ddl,
        )

    def capture_again(self, start_scn: int) -> None:
        """Set the start SCN and capture everything after it again; queues and destinations drop duplicates.

        Runs on the caller's thread.

        Args:
            start_scn: at least the first SCN, and at most what every destination has applied.

        Raises:
            ConfigError: the start SCN is not allowed, the capture process does not run, or it is combined with an apply
                process.
            HeadraceError: the keeper of the redo, or the queue, does not answer; nothing is captured again: retry.
        """
        from actors.hosting.runtime import actors_of

        name = self._capture.name
        if self._combined is not None:
            apply = apply_of(self._spec, self._capture)
            raise ConfigError(
                f"capture process {name} is combined with apply process {apply.name if apply else ''}, which decides"
                " where to begin: a start SCN would change nothing",
                hint="a restored destination requests what it lost on its own; with `combined: never` changes go"
                " through queues",
            )
        if self._queue is None:
            raise ConfigError(
                f"capture process {name} does not run",
                hint=f"start it (`headrace start FILE capture:{name}`), then set its start SCN",
            )
        actors = actors_of(self._spec.name)
        actors.call(self._redo_component, "set_start_scn", name, start_scn, timeout_s=NAMES_TIMEOUT_S)
        actors.call(f"queue:{self._capture.queue}", "capture_again", name, start_scn, timeout_s=NAMES_TIMEOUT_S)

    def find_changes(
        self, owner: str, name: str, key: Sequence[tuple[str, str, bytes]], start_scn: int
    ) -> SearchedRedo:
        """Search the redo kept here for changes of one row, one piece per call; runs on the caller's thread.

        Args:
            owner: schema of the table in the log.
            name: name of the table in the log.
            key: for each key column its name, and its value in text and in binary form.
            start_scn: `through_scn` of the previous piece; 0: begin with the oldest redo.

        Raises:
            PropagationError: the readable end of redo is not known yet.
            LogGone: redo was purged during the search: begin again with 0.
        """
        from headrace.redo.mining.key_search import KeyPart, KeySearch

        end = self._redo_end
        if end is None:
            raise PropagationError(f"{self.name} has not read redo yet", hint="wait for it; see `headrace status`")
        search = KeySearch(
            folder=redo_folder(self._spec, source=self._capture.source, site=self._capture.site),
            source=self._capture.source,
            decoder_factory=decoder_for,
            owner=owner,
            name=name,
            key=tuple(KeyPart(column=column, text=text, binary=binary) for column, text, binary in key),
        )
        return search.run(end, Scn(start_scn))

    # ------------------------------------------------------------------ inside

    def _begin(self, start_scn: Scn) -> None:
        """Mine from `start_scn` on; a pending batch is dropped and mined again."""
        from headrace.links.ports import header_of
        from protos.codec import encode

        # The new miner finds again the change at which the earlier one paused. Waiting for the next check would drop
        # the mark below.
        self._left = self._waiting = None
        if self._redo is not None:
            self.checkpoint.mine_again(self._redo, start_scn)
        if start_scn == FIRST_SCN:
            # Not the oldest redo left: that may be purged at any moment, and would be while a new subscriber copies.
            start_scn = self.checkpoint.begin_scn
            if start_scn > FIRST_SCN:
                mark = LcrBatch(source=self._capture.source, previous_scn=FIRST_SCN, through_scn=start_scn)
                self._waiting = header_of(mark), encode(mark)
        self._mine_from(start_scn)

    def _mine_from(self, start_scn: Scn) -> Miner:
        if self._miner is not None:
            self._miner.close()
        miner = self._miner = self._make_miner(self._spec, self._capture, start_scn, self._last_call)
        return miner

    def _mount(self, apply: ApplySpec, links: Links) -> None:
        from actors.combined import MountedQueue, mounted_core

        capture = self._capture
        core = mounted_core(self._spec, capture, apply, acknowledged=self.checkpoint.told_scn, clock=self._clock)
        self._queue = self._combined = MountedQueue(
            core, capture.name, capture.source, links.serve, wake=self.wake, clock=self._clock
        )

    def _forget_refusal(self) -> None:
        """Forget a refusal before enqueuing, so that an apply process copied through queues can be combined again."""
        from actors.combined import forget_refusal

        forget_refusal(self._spec, self._capture)

    @property
    def _redo_component(self) -> str:
        """The component that writes the redo mined here: the source's site, or a redo receiver of this site."""
        return keeper_of(self._capture.source, self._capture.site)

    def _pass_on(self, error: LogGone, queue: Outlet, miner: Miner) -> float:
        """Report to the queue that redo was purged.

        The queue refuses subscribers that need it, and requests what the others need.
        """
        log.warning("%s: %s", self.name, error.message)
        if "first_scn" not in error.context:
            # Redo was purged while it was read: redo that was durable before a destination lost commits is purged late.
            # A new miner finds where redo begins.
            self._begin(miner.sent_scn)
            return 0.0
        miner.close()
        self._miner = None
        queue.gone(Scn(int(error.context["first_scn"])))
        return IDLE_PAUSE_S

    def _mine(self, miner: Miner, redo: RedoWatch) -> tuple[BatchHeader, bytes] | None:
        from headrace.links.ports import header_of
        from protos.codec import encode

        durable = self._redo_end = redo.poll()
        batch = miner.next_batch(durable)
        for mined in miner.take_labelled():
            self._note(mined)
        if batch is None:
            self._unmatched = tuple(str(rule) for rule in miner.unmatched_rules)
            return None
        return header_of(batch), encode(batch)

    @property
    def _receiver(self) -> str:
        """The receiver of its batches: its queue, or the apply process that it is combined with."""
        apply = apply_of(self._spec, self._capture)
        return f"queue:{self._capture.queue}" if apply is None else f"apply:{apply.name}"

    def _note(self, mined: MinedLabel) -> None:
        """Record what happened to a labelled transaction."""
        label, source = mined.label, self._capture.source
        if label.rows:
            self.tracks.note(label, source, "CAPTURED")
        if mined.rows_discarded:
            self.tracks.note(
                label, source, "DISCARDED", detail="by the rules of the capture process", rows=mined.rows_discarded
            )
        if not mined.rows_found:
            self.tracks.note(label, source, "DISCARDED", detail="it changed no row of a captured table")

    def _tell_checkpoint(self, redo: RedoWatch, durable_scn: Scn) -> None:
        mined_scn = None if self._miner is None or self._waiting is not None else self._miner.captured_scn
        self.checkpoint.tell(redo, durable_scn, mined_scn=mined_scn)


def build(spec: TopologySpec, name: str, fingerprint: str) -> CaptureHost:
    """Build the host of a capture process (`actors.hosting.runtime.Factory`).

    Args:
        spec: the topology.
        name: name of the capture process.
        fingerprint: fingerprint of the topology that brought this component's part; shown in its status.
    """
    return CaptureHost(spec, name, fingerprint)
