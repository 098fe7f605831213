"""The redo log of a source's site: the log writer, the stream of the source's log into it, and the service for readers.

Job
    Drain the source's log into the site's redo log. Keep redo for the capture processes and redo receivers that mine
    it, and report to them how far it is durable.

Main path
    SourceRedo.attach -> SourceRedo.step -> LogWriter.step -> ServingRedo.announce.

States
    the log writer's states  WRITING, IDLE, PAUSED: REDO IS FULL, PAUSED: DISK IS FULL (`headrace.redo.writing.log_writer`).

Durable when
    The log writer has synced it. `SourceRefusal` records durably what must not be taken for the old log's continuation.

Threads
    The site's own thread reads and writes. Calls and the sampler only read `writer`, which that thread may drop at any
    time, so they read the attribute once. Three calls do more: `remove` detaches, the end of the site stops and drops
    the writer, and `prepare` deletes what an earlier topology left.
"""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from actors.security.wire import callers_of
from actors.site.redo_keeper import RedoKeeper, register_captures
from headrace.base.errors import CapturedNoMore, DatabaseSetBack, DatabaseUnavailable, PropagationError, UnsupportedType
from headrace.databases.connectors import decoder_for, log_session_name
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.redo.writing.source_refusal import SourceRefusal
from topology.routing.downstream import receivers_from

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from actors.security.wire import MakeRedoLinks
    from actors.site.database import SiteDatabase
    from actors.site.sampling import PositionSampler
    from headrace.databases.ports import DictionaryBuild, LogStream, SourceDatabase
    from headrace.links.serving import ServingRedo
    from headrace.redo.writing.log_writer import LogWriter
    from headrace.status.sites import SiteStatus
    from topology.spec import TopologySpec

__all__ = ["BEHIND_S", "FULL_PAUSE_S", "READ_TIMEOUT_S", "SourceRedo"]

READ_TIMEOUT_S = 0.1  # an idle read waits this long: positions without data are due ten times a second
FULL_PAUSE_S = 0.5  # between checks of a full redo log or disk
# Pauses while a redo receiver's acknowledgement is awaited: first about as long as it takes, then, if it does not come,
# as long as an idle log writer pauses.
AWAIT_MIN_S, AWAIT_MAX_S = 0.004, READ_TIMEOUT_S
# A log writer that lacks log of this age goes for throughput: commits wait longer than it takes to fill a record.
BEHIND_S = 0.5


class SourceRedo(RedoKeeper):
    """Runs the log writer of a site, and serves its redo log.

    Args:
        database: the site's database.
        folder: folder of the redo log.
        make_links: makes the service.
        wake: called when work arrives before the pause requested by `step` is over.

    Attributes:
        answers: names of the methods that other components call.
        writer: the log writer; None: it was dropped, or is not open yet.
    """

    answers: ClassVar[frozenset[str]] = frozenset({"capture_scns", "oldest_scn", "set_first_scn", "set_start_scn"})

    def __init__(
        self,
        spec: TopologySpec,
        database: SiteDatabase,
        folder: Path,
        make_links: MakeRedoLinks,
        wake: Callable[[], None],
    ) -> None:
        self.name = f"site:{database.site.name}"
        self._spec, self._database, self._folder = spec, database, folder
        self._make_links, self._wake = make_links, wake
        self._refusal = SourceRefusal(folder, self.name)
        self.writer: LogWriter | None = None
        self._stream: LogStream | None = None
        self._source: SourceDatabase | None = None
        self._service: ServingRedo | None = None
        self._allow_binary = True
        self._awaiting_s = AWAIT_MIN_S

    # ------------------------------------------------------------------ state

    @property
    def is_attached(self) -> bool:
        """Whether a stream of the source's log is open."""
        return self.writer is not None and self._stream is not None

    @property
    def state(self) -> str:
        """The log writer's state; empty: no stream is open."""
        writer = self.writer
        return "" if writer is None or self._stream is None else writer.state

    @property
    def is_paused(self) -> bool:
        """Whether the redo log or the disk is full."""
        return self.state.startswith("PAUSED")

    @property
    def was_prepared(self) -> bool:
        """Whether the folder shows that the site was prepared as a source."""
        return self._refusal.was_prepared

    def kept_redo(self) -> LogWriter | None:
        """Return the log writer; None: it is not open."""
        return self.writer

    def endpoint(self) -> str:
        """Return the endpoint at which captures watch the redo log."""
        if self._service is None:
            raise PropagationError(f"{self.name} does not serve redo yet")
        return self._service.endpoint

    def shown(self, status: SiteStatus) -> SiteStatus:
        """Return the site's status with the log writer's statistics.

        Args:
            status: the status without them.
        """
        writer = self.writer
        status = replace(status, wire=None if self._service is None else self._service.wire_status())
        if writer is None:
            return status
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
        """Return, for the operator, why nothing is confirmed to the database; empty: it is confirmed."""
        away, stalled = writer.shipping.awaited_in_vain(), writer.shipping.stalled()
        if not away and not stalled:
            return ""
        session = log_session_name(self._database.site.database.kind, self._spec.name, self._database.site.name)
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

    # ------------------------------------------------------------------ the stream

    def attach(self) -> None:
        """Open the redo log if it is closed, and a stream that begins where redo ends.

        Raises:
            LogGone: the source does not have the log that follows redo, or was refused before.
            DatabaseUnavailable: the database does not answer.
        """
        self._source = self._database.open_source()
        writer = self.writer or self._open_writer()
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

    def step(self, sampler: PositionSampler) -> float:
        """Let the log writer read a gulp of the open stream.

        Args:
            sampler: knows the end of the source's log.

        Returns:
            Seconds until the next step.

        Raises:
            RedoError: redo cannot be written. If `is_paused`, the writer keeps what it has read, and the stream stays
                open until there is space again.
            DatabaseUnavailable: the stream broke, or must be opened again in another form.
        """
        writer = self.writer
        assert writer is not None
        # A commit may be waiting for an acknowledgement in flight. That wakes this thread, unless it is waiting for
        # data.
        is_awaiting = writer.is_awaiting
        try:
            wrote = writer.step(0.0 if is_awaiting else READ_TIMEOUT_S, behind_scn=_behind_scn(writer, sampler))
        except UnsupportedType as error:
            # The next stream begins where redo ends, in the other form: nothing is lost.
            self._allow_binary = False
            raise DatabaseUnavailable(error.message, hint=error.hint) from error
        if wrote and self._service is not None:
            self._service.announce()
        if self.is_paused:
            return FULL_PAUSE_S
        return self._await_pause_s(moved=wrote) if writer.is_awaiting else writer.pause_s

    def _await_pause_s(self, *, moved: bool) -> float:
        """Return how long to leave the stream unread while an acknowledgement is awaited.

        The acknowledgement wakes this thread; new data does not.
        """
        self._awaiting_s = AWAIT_MIN_S if moved else min(2 * self._awaiting_s, AWAIT_MAX_S)
        return self._awaiting_s

    def detach(self) -> None:
        """Close the stream; the log writer and its service stay, so that captures can mine the existing redo."""
        if self.writer is not None:
            self.writer.detach()
        for closable in (self._stream, self._source):
            if closable is not None:
                closable.close()
        self._stream = self._source = None

    def drop(self) -> None:
        """Drop the log writer; the next one reads its state from disk."""
        if self.writer is not None:
            writer, self.writer = self.writer, None
            writer.close()

    def stop(self) -> None:
        """Stop serving, and drop the log writer."""
        if self._service is not None:
            self._service.stop()
        self.drop()

    def adopt(self, spec: TopologySpec, *, is_source: bool) -> None:
        """Serve the capture processes and receivers of a changed topology.

        Args:
            spec: the topology.
            is_source: whether something is captured from the site; if not, its log writer ends.
        """
        self._spec = spec
        if self._service is not None:
            self._service.admit(callers_of(spec, self.name))
        if self.writer is not None and is_source:
            self._register_captures(self.writer)
        elif self.writer is not None:
            self.detach()
            self.drop()

    # ------------------------------------------------------------------ identity of the source

    def check(self, source: SourceDatabase) -> None:
        """Check that the source is still the one that was prepared, as far as that is known without the stream.

        This runs even while a full redo log stops the log writer: the growing log may cost us the slot.

        Raises:
            LogGone: the source is another one.
        """
        writer = self.writer
        if writer is not None:
            self._refusal.check_prepared(source.check_prepared(self._spec.name, writer.start_scn))

    def refuse(self, error: CapturedNoMore) -> None:
        """Refuse the source durably.

        Args:
            error: the reason.
        """
        self._refusal.record(error)

    def forget_earlier(self, *, is_known: bool) -> tuple[str, ...]:
        """Delete the redo of an earlier time as a source: the log has continued without it, and its slot is gone.

        Args:
            is_known: whether the site's file says that this time ended.

        Returns:
            Where redo without such a file is kept; only an operator may remove it.
        """
        kept: tuple[str, ...] = ()
        if not is_known and self._folder.is_dir() and any(self._folder.iterdir()):
            aside = next(
                path
                for number in itertools.count(1)
                if not (path := self._folder.with_name(f"{self._folder.name}.aside-{number}")).exists()
            )
            self._folder.rename(aside)
            kept = (
                f"-- redo of an earlier time, which no file of the site describes, is kept in {aside}: remove it"
                " when it is no longer needed",
            )
        shutil.rmtree(self._folder, ignore_errors=True)
        return kept

    def end_source(self) -> None:
        """Record that the site is no longer a source: its redo is useless."""
        self._refusal.end()

    # ------------------------------------------------------------------ inside

    def _open_writer(self) -> LogWriter:
        from headrace.redo.writing.log_writer import LogWriter

        site = self._database.site.name
        writer = LogWriter(
            self._folder,
            site,
            decoder_factory=decoder_for,
            dictionary_build=self._dictionary_build,
            segment_bytes=self._spec.segment_bytes,
            redo_bytes_max=self._spec.redo_bytes_max,
        )
        self._register_captures(writer)
        self.writer = writer
        if self._service is None:
            links = self._make_links(self._spec, site, self.name, self._wake)
            self._service = links.serve_redo(site, writer, writer.shipping, self._acknowledged)
        else:
            self._service.attach(writer, writer.shipping)
        return writer

    def _register_captures(self, writer: LogWriter) -> None:
        """Keep redo only for this site's capture processes and the redo receivers of other sites."""
        site = self._database.site.name
        receivers = receivers_from(self._spec, site)
        # Receivers first: a capture process that moves to another site needs the redo that it needed here.
        writer.shipping.register({each.name: each.is_sync for each in receivers})
        writer.switch_after_s = min((each.archive_lag_s for each in receivers if each.is_archived_log), default=None)
        captures = [each.name for each in self._spec.captures if each.source == each.site == site]
        register_captures(writer.required_checkpoints, self._spec, captures)

    def _acknowledged(self) -> None:
        """Confirm a redo receiver's acknowledgement at once if commits wait for it."""
        writer = self.writer
        if writer is not None and writer.waits_for_receivers:
            self._wake()

    def _dictionary_build(self, *, seeing: Collection[int] = ()) -> DictionaryBuild | None:
        assert self._source is not None
        return self._source.dictionary_build(self._spec.name, seeing=seeing)


def _behind_scn(writer: LogWriter, sampler: PositionSampler) -> Scn:
    """Return the end of the source's log if redo lacks what the source had `BEHIND_S` ago.

    FIRST_SCN: redo keeps up, or commits wait for a receiver.
    """
    if writer.waits_for_receivers:
        return FIRST_SCN
    return sampler.end_of_log_beyond(writer.position.scn, for_s=BEHIND_S)
