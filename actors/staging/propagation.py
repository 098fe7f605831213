"""Propagation: move LCR batches from one queue to another; credit and DURABLE travel back.

Job
    Send everything of the propagation's sources that the destination queue lacks, in order, filtered by its rules.

Main path
    PropagationRunner.open -> Publisher.connect (the destination queue says where to begin) -> Subscriber.subscribe
    PropagationRunner.step -> PropagationCore.step -> RuleEvaluation.filter -> Publisher.send_nowait -> Subscriber.grant

States (V$PROPAGATION_SENDER.STATE)
    WAITING FOR LCRS          nothing to send. Memory only.
    SENDING                   the last step sent something. Memory only.
    PAUSED FOR FLOW CONTROL   the destination queue gives no credit. Memory only.
    PAUSED FOR BANDWIDTH      the next piece waits for its turn within `bandwidth_max`. Memory only.
    CLOSED                    no window of the schedule is open: both streams are closed. Memory only.

Durable when
    Nothing is stored here. A batch stays in the source queue until the destination queue reports it as DURABLE, which
    the propagation forwards as its acknowledgement. After any break both streams are reopened, and the destination
    queue's position decides what is requested from the source queue.

Bounds
    At most `CREDIT_BYTES` of each source are in flight: the source queue gets its credit back only as the
    destination queue accepts batches. With a `bandwidth_max`, batches go out in pieces of at most a tenth of a second
    of it.

Windows
    When the last window closes, nothing more is dequeued, batches in flight are completed and accepted (`drain`), and
    both streams are closed. The source queue keeps everything that was not acknowledged, in memory or on disk. When the
    next window opens, the streams are opened as after any break. In between it does not matter whether the queues
    answer.

Worked flow
    Resume{30} -> subscribe{30} -> 30..50, 50..60 sent -> Accepted{60}: credit back -> Durable{50}: acknowledge{50}
    the connection breaks -> PropagationError -> open again: Resume{60} -> subscribe{60}
    the destination queue lost everything: Resume{50} -> subscribe{50}: the source queue still has 50..60
    the source queue no longer has them: LogGone{40} -> gone{40}: the destination queue refuses subscribers that need
    them and requests what the others need: Rewind{60} -> subscribe{60}
    a subscriber there needs older LCRs: Rewind{20} -> subscribe{20} -> the source queue rewinds its publisher, too
    a new destination queue: Resume{0} -> subscribe{0} -> the mark 0..30 (the source queue begins at 30 for it),
      30..50, ...

Hosting
    runner = PropagationRunner(propagation_spec, links)
    runner.open(); then runner.step() returns the seconds until the next step is worthwhile (0: at once). The links wake
    the runner if there is work sooner. After any error: runner.close(), then open() again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from actors.staging.pacing import Gate, Pacer
from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import LogGone, PropagationError, WouldBlock
from headrace.base.failpoints import failpoint
from headrace.databases.connectors import value_types
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.tracking import TrackLog
from headrace.links.ports import Delivery, Piece, Publisher, Subscriber, header_of
from headrace.links.serving import Links
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import RuleSet
from headrace.rules.user_code.last_call import LastCall
from headrace.status.propagations import CompressionStatus, PropagatedSource, PropagationStatus
from protos import codec
from protos.wire.compression import Compressor
from topology.spec import PropagationSpec

__all__ = ["PropagationCore", "PropagationRunner"]

# Covers 100 ms of round trip at 80 MB/s, and is small compared with a queue's memory.
CREDIT_BYTES = 8 << 20
STEP_BATCHES = 32  # after so many batches the runner's owner can stop it
IDLE_PAUSE_S = 1.0  # any change wakes the runner; this pause only shows that it is alive


class PropagationStatistics:
    """Counters of one source, kept across reconnects (V$PROPAGATION_SENDER)."""

    def __init__(self) -> None:
        self.rows_total = self.bytes_total = self.batches_total = self.rows_discarded_total = self.rewinds_total = 0
        self.sent_scn = self.acknowledged_scn = self.accepted_scn = FIRST_SCN
        self.last_commit_time_us = self.last_sent_us = 0


class PropagationCore:
    """Moves one source's batches from queue to queue. No threads; the clock only serves statistics and the pace.

    Args:
        rules: the rules; a rule set that takes everything costs nothing: bytes pass unchanged.
        destination: a stream into the destination queue, not yet connected.
        origin: makes a stream out of the source queue, not yet subscribed; called again after a rewind.
        statistics: counters to continue.
        pacer: the pace of the whole propagation; None: limited by credit alone.
        tracks: records labelled transactions.
        last_call: records calls of transformation functions, even those that end the process.
    """

    def __init__(  # noqa: PLR0913 - what a propagation of one source is made of
        self,
        source: str,
        rules: RuleSet,
        destination: Publisher,
        origin: Callable[[], Subscriber],
        *,
        statistics: PropagationStatistics,
        clock: Clock,
        pacer: Pacer | None = None,
        tracks: TrackLog | None = None,
        last_call: LastCall | None = None,
    ) -> None:
        self._tracks = tracks or TrackLog(clock)
        self._source, self._rules = source, RuleEvaluation(rules, types=value_types(), clock=clock, last_call=last_call)
        self._destination, self._make_origin = destination, origin
        self._origin: Subscriber | None = None
        self._statistics, self._clock, self._pacer = statistics, clock, pacer
        self._begun: Iterator[Piece] | None = None  # unsent pieces of the pending batch
        self._waiting: tuple[Delivery, int] | None = None  # the pending batch, filtered; its size before filtering
        # For each batch in flight: total bytes sent up to its end, and its share of the source queue's credit.
        self._in_flight: deque[tuple[int, int]] = deque()
        self._sent_bytes = 0
        self.sent_piece = False  # the last step sent something at the pace of the propagation
        self.state = "WAITING FOR LCRS"

    @property
    def is_sending(self) -> bool:
        """Whether a batch is sent in part: some of its pieces are still unsent."""
        return self._begun is not None

    def open(self) -> None:
        """Connect to the destination queue and subscribe to what it lacks."""
        needed = self._destination.connect().needed_scn
        try:
            self._subscribe(needed)
        except LogGone as error:
            self._pass_on(error)

    def step(self) -> bool:
        """Forward available batches, up to a bound; False: there is nothing to do until one of the clients wakes it.

        Raises:
            HeadraceError: one of the streams has ended; close and open a new core.
        """
        self.sent_piece = False
        try:
            return self._move()
        except LogGone as error:
            self._pass_on(error)
            return False

    def _move(self) -> bool:
        self._hear()
        for _ in range(STEP_BATCHES):
            if self._waiting is None:
                # None: the destination queue must say how to continue.
                delivery = None if self._origin is None else self._origin.poll()
                if delivery is None:
                    self.state = "WAITING FOR LCRS"
                    return False
                self._waiting = self._filtered(delivery), len(delivery.data)
            if not self._send(*self._waiting):
                return False
        return True

    def drain(self) -> bool:
        """Complete the batch that is sent in part, and take nothing new; True: everything that was sent is accepted.

        Raises:
            HeadraceError: one of the streams has ended: nothing is in flight any longer.
        """
        try:
            self._hear()
        except LogGone as error:
            self._pass_on(error)
            return False
        # A pending batch of which nothing is sent stays: if the gate opens again before this core is closed, it is sent
        # next.
        if self._begun is not None and self._waiting is not None:
            self._send(*self._waiting)
        return self._begun is None and (self._origin is None or not self._in_flight)

    def close(self) -> None:
        """Close both ends; idempotent."""
        if self._origin is not None:
            self._origin.close()
        self._destination.close()

    def _hear(self) -> None:
        """Process the answers of the destination queue."""
        progress = self._destination.poll()
        statistics = self._statistics
        if progress.rewind_scn is not None:
            statistics.rewinds_total += 1
            if self._begun is not None:
                # The other end has a part of a batch; only the end of the stream can withdraw it.
                raise PropagationError("the destination queue asked for earlier LCRs in the middle of a batch", hint="")
            self._subscribe(progress.rewind_scn)
        if progress.rewind_scn is not None or self._origin is None:
            return
        statistics.accepted_scn = progress.accepted_scn
        if progress.durable_scn > statistics.acknowledged_scn:
            statistics.acknowledged_scn = progress.durable_scn
            self._origin.acknowledge(self._source, progress.durable_scn)
        while self._in_flight and self._in_flight[0][0] <= progress.accepted_bytes:
            self._origin.grant(self._in_flight.popleft()[1])

    def _pass_on(self, error: LogGone) -> None:
        """Report to the destination queue what is gone.

        The queue refuses subscribers that need it, and requests what the others need.
        """
        if "first_scn" not in error.context:
            raise error
        if self._origin is not None:
            self._origin.close()
            self._origin = None
        self._waiting = None
        self._destination.gone(Scn(int(error.context["first_scn"])))

    def _subscribe(self, needed: Scn) -> None:
        # Batches in flight belong to the credit of the previous stream.
        self._waiting = None
        self._in_flight.clear()
        if self._origin is not None:
            self._origin.close()
        self._origin = self._make_origin()
        self._origin.subscribe({self._source: needed}, CREDIT_BYTES)
        # The source queue may have lost the acknowledgement, or never received it.
        self._statistics.acknowledged_scn = FIRST_SCN

    def _filtered(self, delivery: Delivery) -> Delivery:
        if delivery.header.row_count == 0 or self._rules.keeps_all:
            return delivery
        batch = codec.decode(delivery.data)
        kept = self._rules.filter(batch)
        if kept is batch:
            return delivery
        self._statistics.rows_discarded_total += batch.row_count - kept.row_count
        rows = {label.order_scn: label.rows for label in kept.labels} if batch.labels else {}
        for label in batch.labels:
            if (discarded := label.rows - rows.get(label.order_scn, 0)) > 0:
                self._tracks.note(
                    label, self._source, "DISCARDED", detail="by the rules of the propagation", rows=discarded
                )
        return Delivery(header=header_of(kept), data=codec.encode(kept))

    def _send(self, delivery: Delivery, size: int) -> bool:
        try:
            if self._pacer is None:
                self._destination.send_nowait(delivery.header, delivery.data)
            elif not self._send_pieces(delivery, self._pacer):
                self.state = "PAUSED FOR BANDWIDTH"
                return False
        except WouldBlock:
            self.state = "PAUSED FOR FLOW CONTROL"
            return False
        failpoint("propagation.after_send")
        self._waiting = None
        self._sent_bytes += len(delivery.data)
        self._in_flight.append((self._sent_bytes, size))
        self.state = "SENDING"
        statistics = self._statistics
        statistics.batches_total += 1
        statistics.bytes_total += len(delivery.data)
        statistics.rows_total += delivery.header.row_count
        statistics.sent_scn = delivery.header.through_scn
        for label in delivery.header.labels:
            self._tracks.note(label, self._source, "SENT")
        if delivery.header.last_commit_time_us:
            statistics.last_commit_time_us = delivery.header.last_commit_time_us
            statistics.last_sent_us = self._clock.time_us()
        return True

    def _send_pieces(self, delivery: Delivery, pacer: Pacer) -> bool:
        """Send as many pieces of a batch as the pace allows now; True: the last one was sent."""
        if pacer.pause_s(self._clock.monotonic()) > 0:
            return False
        if self._begun is None:
            self._begun = self._destination.begin_nowait(delivery.header, delivery.data, pacer.piece_bytes)
        for piece in self._begun:
            pacer.sent(piece.size, self._clock.monotonic())
            self.sent_piece = True
            if piece.is_last:
                self._begun = None
                return True
            if pacer.pause_s(self._clock.monotonic()) > 0:
                break
        return False


class PropagationRunner:
    """A propagation with its connections; the module's Hosting shows its use.

    Args:
        spec: the propagation; `sources` lists what it moves.
        links: makes its streams.
        clock: clock of the statistics, the pace and the schedule.
        tracks: records labelled transactions.
        last_call: makes, by source, the record of calls of transformation functions.
    """

    def __init__(
        self,
        spec: PropagationSpec,
        links: Links,
        *,
        clock: Clock | None = None,
        tracks: TrackLog | None = None,
        last_call: Callable[[str], LastCall] | None = None,
    ) -> None:
        self._last_calls = {} if last_call is None else {source: last_call(source) for source in spec.sources}
        self._spec, self._links = spec, links
        self._clock = clock or SystemClock()
        self._tracks = tracks or TrackLog(self._clock)
        self._gate = Gate(spec.schedule, self._clock)
        self._pacer = None if spec.bandwidth_max is None else Pacer(spec.bandwidth_max)
        self._is_closed = self._is_draining = False  # by the schedule
        self._statistics = {source: PropagationStatistics() for source in spec.sources}
        is_compressed = spec.compression != "none"
        self._compressors = {source: Compressor() for source in spec.sources} if is_compressed else {}
        self._cores: list[PropagationCore] = []

    def open(self) -> None:
        """Connect both ends of every source; while the schedule is closed, do nothing.

        Raises:
            HeadraceError: an end cannot be reached or refuses; `close`, wait, and open again.
        """
        self._is_closed = not self._gate.is_open()
        if self._is_closed:
            return
        spec, links = self._spec, self._links
        for source in spec.sources:
            core = PropagationCore(
                source,
                spec.rules,
                links.publisher(spec.to_queue, source, self._compressors.get(source)),
                lambda: links.subscriber(spec.from_queue),
                statistics=self._statistics[source],
                clock=self._clock,
                pacer=self._pacer,
                tracks=self._tracks,
                last_call=self._last_calls.get(source),
            )
            self._cores.append(core)
            core.open()

    def step(self) -> float:
        """Forward available batches; return the seconds until the next step is worthwhile (0: at once).

        Raises:
            HeadraceError: a stream has ended; `close`, wait, and open again.
        """
        if not self._gate.is_open():
            return self._close_window()
        self._is_draining = False
        if self._is_closed:
            self.open()
        busy = [core.step() for core in self._cores]  # every source gets its turn
        if self._pacer is None:
            return 0.0 if any(busy) else IDLE_PAUSE_S
        self._cores.sort(key=lambda core: core.sent_piece)  # the others send first when the pace allows it
        if any(core.state == "PAUSED FOR BANDWIDTH" for core in self._cores):
            return min(IDLE_PAUSE_S, self._pacer.pause_s(self._clock.monotonic()))
        return 0.0 if any(busy) else IDLE_PAUSE_S

    def _close_window(self) -> float:
        """Complete what is sent in part, then close; return the seconds until the next step is worthwhile."""
        self._is_draining = not self._is_closed
        drained = [core.drain() for core in self._cores]
        if all(drained):
            self.close()
            self._is_closed = True
            return min(IDLE_PAUSE_S, self._gate.pause_s())
        if self._pacer is None or not any(core.is_sending for core in self._cores):
            return IDLE_PAUSE_S  # an answer wakes the runner
        return min(IDLE_PAUSE_S, self._pacer.pause_s(self._clock.monotonic()))

    def close(self) -> None:
        """Close every connection; idempotent."""
        self._is_closed = self._is_draining = False
        cores, self._cores = self._cores, []
        for core in cores:
            core.close()

    @property
    def late_call(self) -> str:
        """Message about a transformation function that has overrun its time and not returned; empty: there is none."""
        return next((each.late for each in self._last_calls.values() if each.late), "")

    @property
    def state(self) -> str:
        """The busiest state among the sources; INITIALIZING while not open."""
        if self._is_closed:
            return "CLOSED"
        states = {core.state for core in self._cores}
        for state in ("PAUSED FOR FLOW CONTROL", "PAUSED FOR BANDWIDTH", "SENDING", "WAITING FOR LCRS"):
            if state in states:
                return state
        return "INITIALIZING" if self._spec.sources else "WAITING FOR LCRS"

    def status(self) -> PropagationStatus:
        """Return the statistics (V$PROPAGATION_SENDER). Callable from any thread."""
        return PropagationStatus(
            name=f"propagation:{self._spec.name}",
            kind="propagation",
            state=self.state,
            propagation=self._spec.name,
            from_queue=self._spec.from_queue,
            to_queue=self._spec.to_queue,
            rows_total=sum(each.rows_total for each in self._statistics.values()),
            bytes_total=sum(each.bytes_total for each in self._statistics.values()),
            compression=self._compression() if self._compressors else None,
            bandwidth_max=self._spec.bandwidth_max,
            closed_until=self._gate.until if self._is_closed or self._is_draining else None,
            sources={
                source: PropagatedSource(
                    sent_scn=each.sent_scn,
                    acknowledged_scn=each.acknowledged_scn,
                    accepted_scn=each.accepted_scn,
                    rows_total=each.rows_total,
                    bytes_total=each.bytes_total,
                    batches_total=each.batches_total,
                    rows_discarded_total=each.rows_discarded_total,
                    rewinds_total=each.rewinds_total,
                    last_lcr_latency_s=max(0.0, (each.last_sent_us - each.last_commit_time_us) / 1e6),
                    last_sent_us=each.last_sent_us,
                )
                for source, each in self._statistics.items()
            },
        )

    def _compression(self) -> CompressionStatus:
        """Return the gain and cost of compression since the propagation started here."""
        each = self._compressors.values()
        return CompressionStatus(
            method=self._spec.compression,
            bytes_before=sum(one.bytes_before for one in each),
            bytes_after=sum(one.bytes_after for one in each),
            cpu_s=sum(one.cpu_ns for one in each) / 1e9,
        )
