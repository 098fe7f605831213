"""One pass over tables that are to be copied, under one snapshot: pieces for the tasks, and the tasks' outcomes.

Main path
    CopyRound.copy -> pieces on the `CopyBoard` -> tasks (`spark_apply.copy.pieces.tasks`) -> _take -> _copied ->
    digests of the destination -> _compared -> DONE or COPIED.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.base.clock import SystemClock
from headrace.base.errors import DatabaseError, DatabaseUnavailable, DestinationRestarted
from headrace.databases.ports import AWAITING, Carried
from headrace.databases.ports.copying import PORTABLE
from headrace.databases.table_digest import TableDigest
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.lcr.table_name import TableName, argument
from protos import apply_pb2 as pb
from spark_apply.application.spark import SEE_LOG, SparkUnavailable
from spark_apply.apply_config import COPIES_BESIDE
from spark_apply.copy.pieces.board import CopyBoard, PieceOutcome
from spark_apply.copy.pieces.padded_columns import why_padded
from spark_apply.copy.pieces.reshaped import ReshapedTable, has_function, timestamp_text
from spark_apply.copy.records.restarts import LET_IT_REST, RESTARTS_MAX

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationSession, DestinationTable, OtherCopy, Snapshot
    from headrace.databases.ports.copying import TablePiece, TableReader
    from headrace.lcr.batch import Column
    from headrace.rules.transformations.transformation import AddColumn
    from spark_apply.apply_config import ApplyConfig, TableToInstantiate
    from spark_apply.copy.pieces.workers import CopyWorkers
    from spark_apply.copy.records.standing import Standing
    from spark_apply.copy.records.tables import TableRecords

__all__ = ["CopyRound", "TableCopy", "has_no_rows", "is_still_empty", "wait_captured", "what_changes_a_copy"]

_OUTCOME_WAIT_S = 0.5  # how soon the end of the driver is noticed while no outcome arrives
# No piece done and no task asking: the Spark job is stuck. A piece is 64 MiB of a table's own blocks, far more with
# values stored out of line, and a destination with many indexes is slow.
_STALL_S = 1800.0
# Redo is a progress record or two behind, 0.2 s. A snapshot that stays open keeps the source from vacuuming. So for a
# paused log writer, for example one that waits until something is applied, the next round takes a new snapshot.
_CAPTURED_TIMEOUT_S = 60.0
_CAPTURED_POLL_S = 0.02
_TOO_LONG = "22001"
_TASKS_MIN = 2  # one reads while another writes


@dataclass(slots=True)
class TableCopy:
    """One table being copied."""

    table: TableToInstantiate
    columns: dict[str, str]  # name at the destination -> type there
    scn: Scn
    rows_estimated: int
    target: DestinationTable | None
    replaces: tuple[str, ...]
    beside: tuple[OtherCopy, ...] = ()  # records of others in the destination table
    carries: tuple[Carried, ...] = ()  # others' changes that it contains (`spark_apply.copy.ways.shared_tables`)
    mark: str = ""  # of the emptied table (`TableWriter.files_mark`)
    keeps_rows: bool = False  # the destination's rows are not a copy: they stay, and the source has none
    sources: tuple[str, ...] = ()  # the source's names of `columns`, one for each
    added: tuple[AddColumn, ...] = ()  # by transformations
    log_columns: tuple[Column, ...] = ()  # of the source, if a function must see the rows
    pieces: int = 0  # without outcome so far
    digests: int = 0  # of the destination, without outcome so far
    bytes_done: int = 0
    bytes_total: int = 0
    copied: TableDigest = field(default_factory=TableDigest)
    found: TableDigest = field(default_factory=TableDigest)  # at the destination, afterwards
    problem: str = ""
    is_final: bool = False
    is_doubtful: bool = False  # it is unknown whether some piece was committed

    @property
    def has_written(self) -> bool:
        """Whether rows of this copy may be at the destination."""
        return self.is_doubtful or self.copied.row_count > 0

    @property
    def beside_rows(self) -> tuple[OtherCopy, ...]:
        """Records of others that may have rows in the table, without those that wait for a copy of it."""
        return tuple(other for other in self.beside if not other.is_awaiting)

    @property
    def key(self) -> TableName:
        """Its name at the destination, which identifies tables and arriving changes."""
        return self.table.destination


@dataclass(slots=True, kw_only=True)
class CopyRound:
    """One round of copies under one snapshot.

    Args:
        config: of the apply process.
        records: of its tables.
        source_reader, destination_reader: read the tables.
        workers: run the copying tasks.
        is_beside: apply servers run meanwhile.
        incarnation: of the sessions of this round (`spark_apply.copy.records.sessions`).
        should_end: asked between waits.
        told: called with the reason why no task runs now.
        time_us: microseconds since the Unix epoch, UTC; the time that transformations add.
        snapshot: its name.
        scn: of the snapshot.
        copies: by name at the destination.
        kept: tables whose rows are kept, and the records of others in them.
        to_empty: names of tables whose rows are removed first.
        to_find_empty: names of tables whose rows were removed before the snapshot.
        of_nothing: names of tables that others have copied; the source must have no row to copy.
        to_await: names of tables whose changes are kept from the snapshot on, for a copy of another apply process.
        for_all: names of tables whose copies must contain what the others have sent
            (`spark_apply.copy.ways.shared_tables`).
        waits: why tables wait for the copies of others, by name at the destination.
        is_gathering: one of the waiting tables is a shared table, whose ways look at each other often.
        needs_operator: a table cannot be copied before an operator acts.
        has_failed: a table must be copied again.
    """

    config: ApplyConfig
    records: TableRecords
    source_reader: TableReader
    destination_reader: TableReader
    workers: CopyWorkers
    is_beside: bool
    incarnation: int
    should_end: Callable[[], bool]
    told: Callable[[str], None]
    time_us: Callable[[], int] = field(default_factory=lambda: SystemClock().time_us)
    snapshot: str = ""
    scn: Scn = FIRST_SCN
    board: CopyBoard = field(default_factory=CopyBoard)
    copies: dict[TableName, TableCopy] = field(default_factory=dict)
    kept: list[tuple[Standing, tuple[OtherCopy, ...]]] = field(default_factory=list)
    to_empty: set[TableName] = field(default_factory=set)
    to_find_empty: set[TableName] = field(default_factory=set)
    of_nothing: set[TableName] = field(default_factory=set)
    to_await: set[TableName] = field(default_factory=set)
    for_all: set[TableName] = field(default_factory=set)
    waits: dict[TableName, str] = field(default_factory=dict)
    is_gathering: bool = False
    needs_operator: bool = False
    has_failed: bool = False

    @property
    def servers(self) -> range:
        """Numbers of the sessions, one for each task; no apply server that may run now uses them."""
        if self.is_beside:
            return range(self.config.parallelism, self.config.parallelism + COPIES_BESIDE)
        return range(max(_TASKS_MIN, self.config.parallelism))

    @property
    def copied_state(self) -> str:
        """State of a table whose copy is equal."""
        return "COPIED" if self.is_beside else "DONE"

    def claim(
        self,
        table: TableToInstantiate,
        state: str,
        *,
        beside: Collection[OtherCopy],
        estimated: int = 0,
        digest: str = "",
        replaces: Collection[str] = (),
    ) -> bool:
        """Record a table under the snapshot, unless another apply process has claimed it since it was checked.

        In that case the next round checks again.

        Args:
            table: the table.
            state: one of those in `spark_apply.copy.instantiation`.
            beside: records of others in its destination table at the check.
            estimated: number of rows by the source's estimate.
            digest: of the rows.
            replaces: identities of records that are removed with it.

        Returns:
            Whether this apply process has the table.
        """
        is_ours = self.records.record(
            table,
            self.scn,
            state,
            estimated=estimated,
            digest=digest,
            replaces=replaces,
            beside=beside,
        )
        self.has_failed |= not is_ours
        return is_ours

    def claim_copy(self, copy: TableCopy) -> bool:
        """Record that a copy begins, by `claim`."""
        return self.claim(
            copy.table,
            "COPYING",
            beside=copy.beside,
            estimated=copy.rows_estimated,
            replaces=copy.replaces,
        )

    def claim_awaiting(self, copy: TableCopy, *, may_have_rows: bool) -> None:
        """Record that the queue keeps a table's changes from the snapshot on, by `claim`.

        Args:
            copy: of the table.
            may_have_rows: users' changes here already flow to the source. Otherwise a table with rows is not claimed:
                it may be the one that fills the table, which would never receive those changes.
        """
        is_of_nothing = has_no_rows(self.source_reader, copy, snapshot=self.snapshot)
        if not (is_of_nothing or may_have_rows):
            self.has_failed = True
            return
        digest = str(copy.copied) if is_of_nothing else ""
        self.claim(copy.table, AWAITING, beside=copy.beside, digest=digest, replaces=copy.replaces)

    def claim_nothing(self, copy: TableCopy) -> None:
        """Record a copy of no row, or that the existing rows stay, if the snapshot has no row; by `claim`.

        A copy of no row is equal whatever others apply.
        """
        if not has_no_rows(self.source_reader, copy, snapshot=self.snapshot):
            self.has_failed = True
        elif copy.keeps_rows:
            self.claim_kept(copy.table, beside=copy.beside, replaces=copy.replaces)
        else:
            self.claim(
                copy.table, self.copied_state, beside=copy.beside, digest=str(copy.copied), replaces=copy.replaces
            )

    def claim_kept(
        self, table: TableToInstantiate, *, beside: Collection[OtherCopy], replaces: Collection[str]
    ) -> None:
        """Record that the destination's rows stay as they are, by `claim`.

        Args:
            table: the table.
            beside: records of others in its destination table.
            replaces: identities of records that are removed with it.
        """
        self.claim(table, "COPIED" if self.is_beside else "KEPT", beside=beside, replaces=replaces)

    @contextlib.contextmanager
    def failing_alone(self, copy: TableCopy) -> Iterator[None]:
        """Take a table out of the round if a database refuses it; the others continue.

        Raises:
            DatabaseUnavailable: a database does not answer.
            DestinationRestarted: the destination may have lost commits: begin again.
        """
        try:
            yield
        except (DatabaseUnavailable, DestinationRestarted):
            raise
        except DatabaseError as error:
            copy.problem, copy.is_final = error.message, True
            self.copies.pop(copy.key, None)
            self.fail(copy)

    def empty(self, session: DestinationSession, copy: TableCopy) -> None:
        """Remove a table's rows after checking that the source's rows can be read and proved.

        A table that cannot be copied keeps its rows.

        Args:
            session: of the destination.
            copy: of the table, which the destination has.

        Raises:
            DatabaseError: the source's rows cannot be proved (`TableReader.prove_large`), or the rows cannot be
                removed.
        """
        assert copy.target is not None
        types = dict(zip(copy.sources, copy.columns.values(), strict=True))
        try:
            self.source_reader.prove_large(*copy.table.source, types, snapshot=self.snapshot, rows=copy.table.rows)
        except DatabaseUnavailable as error:  # it was rewritten meanwhile, or is locked
            del self.copies[copy.key]
            self._cannot_read(copy, error)
        except DatabaseError as error:
            raise DatabaseError(
                f"{error.message}. Its rows at the destination were not removed", hint=error.hint, **error.context
            ) from error
        else:
            copy.mark = session.empty_marked(copy.target)

    def find_empty(self, session: DestinationSession, copy: TableCopy) -> None:
        """Check that no other session has written into a table since its rows were removed.

        A copy beside such rows would differ or fail at its end. Rows that are gone again count too: the source may have
        them in the snapshot, and their deletion is not sent back.
        """
        if not is_still_empty(session, copy):
            copy.problem, copy.is_final = (
                f"rows were written into the table before it was copied: {what_changes_a_copy(copy.table)}",
                True,
            )
            del self.copies[copy.key]
            self.fail(copy)

    def copy(self) -> None:
        """Start the copying tasks, and follow them."""
        self._offer_copies()
        job = self.workers.start(self.board, servers=self.servers, incarnation=self.incarnation)
        try:
            heard_at = time.monotonic()
            while any(copy.pieces or copy.digests for copy in self.copies.values()) and not self.should_end():
                outcomes = self.board.take_outcomes(_OUTCOME_WAIT_S)
                for outcome in outcomes:
                    self._take(outcome)
                if outcomes or self.board.asked_at > heard_at:
                    heard_at = time.monotonic()
                if job.error is not None:
                    raise job.error
                self.told(job.problem)
                if time.monotonic() - heard_at > _STALL_S:
                    raise SparkUnavailable(
                        f"instantiation by {self.config.apply}: no copying task reported for {_STALL_S:g} s",
                        hint=SEE_LOG,
                    )
        finally:
            self.board.close()
            job.join()

    def _offer_copies(self) -> None:
        pieces: list[pb.CopyPiece] = []
        for copy in self.copies.values():
            plan = self._planned(copy)
            if plan is None:
                continue
            pieces += plan
            copy.pieces = len(plan)
            copy.bytes_total = sum(piece.bytes for piece in plan)
            self.records.show(replace(self.records.progress[copy.key], bytes_total=copy.bytes_total))
            if not plan:
                self._copied(copy)
        # Large pieces first, so that the last ones to end are small.
        pieces.sort(key=lambda piece: piece.bytes, reverse=True)
        self.board.add(pieces)

    def _planned(self, copy: TableCopy) -> list[pb.CopyPiece] | None:
        """Return a table's pieces; None: it cannot be read."""
        try:
            types = dict(zip(copy.sources, copy.columns.values(), strict=True))
            plan = self.source_reader.plan(*copy.table.source, types, snapshot=self.snapshot, rows=copy.table.rows)
        except DatabaseError as error:
            self._cannot_read(copy, error)
            return None
        now_us = self.time_us()
        now = timestamp_text(now_us) if copy.added else ""
        added = [now if each.is_now else each.value for each in copy.added]
        reshaped = _reshaped(copy, self.config.source.site, now_us)
        form = PORTABLE if added or reshaped else plan.form  # every type reads its values as text
        pieces = [self._piece(copy, piece, snapshot=self.snapshot, form=form) for piece in plan.pieces]
        for piece in pieces:
            if reshaped:
                piece.reshaped.document = reshaped
            piece.columns.extend(each.name for each in copy.added)
            piece.added.extend(pb.AddedValue(text=value or "", is_null=value is None) for value in added)
        return pieces

    def _piece(
        self,
        copy: TableCopy,
        piece: TablePiece,
        *,
        snapshot: str = "",
        form: str = "",
        is_digest: bool = False,
    ) -> pb.CopyPiece:
        return pb.CopyPiece(
            is_digest=is_digest,
            table=pb.TableName(owner=copy.key[0], name=copy.key[1]),
            stored=pb.TableName(owner=piece.owner, name=piece.name),
            place=piece.place,
            bytes=piece.bytes,
            columns=list(copy.columns),
            source_columns=[] if is_digest else list(copy.sources),
            form=form,
            snapshot=snapshot,
            epoch=self.records.epoch,
            tag=self.config.tag,
        )

    # ------------------------------------------------------------------ what tasks report

    def _take(self, outcome: PieceOutcome) -> None:
        copy = self.copies[TableName(outcome.piece.table.owner, outcome.piece.table.name)]
        if outcome.piece.is_digest:
            copy.digests -= 1
            copy.found += outcome.digest
        else:
            copy.pieces -= 1
            copy.copied += outcome.digest
            copy.bytes_done += outcome.piece.bytes
            self.records.show(
                replace(
                    self.records.progress[copy.key],
                    rows=copy.copied.row_count,
                    bytes_done=copy.bytes_done,
                    bytes_total=copy.bytes_total,
                )
            )
        copy.is_doubtful |= bool(outcome.problem) and not outcome.is_final
        if outcome.problem and not copy.problem:
            copy.problem, copy.is_final = outcome.problem, outcome.is_final
            if outcome.sqlstate == _TOO_LONG and (why := self._why_padded(copy)):
                copy.problem += f": {why}"
            copy.pieces -= self.board.withdraw(*copy.key) if copy.pieces else 0
        if copy.pieces == 0 and copy.digests == 0:
            if copy.problem:
                self.fail(copy)
            elif outcome.piece.is_digest:
                self._compared(copy)
            else:
                self._copied(copy)

    def _copied(self, copy: TableCopy) -> None:
        """Digest the destination's rows after every piece is copied."""
        self.records.record(
            copy.table,
            copy.scn,
            "COMPARING",
            rows=copy.copied.row_count,
            estimated=copy.rows_estimated,
        )
        try:
            pieces = self.destination_reader.plan(*copy.key, {}, rows=copy.table.rows).pieces
        except DatabaseError as error:
            self._cannot_read(copy, error)
            return
        copy.digests = len(pieces)
        self.board.add(self._piece(copy, piece, is_digest=True) for piece in pieces)
        if not pieces:
            self._compared(copy)

    def _compared(self, copy: TableCopy) -> None:
        if copy.copied != copy.found:
            # Headrace never changes rows of a copy, so another copy would differ too.
            copy.is_final = True
            copy.problem = (
                f"the copy differs: {copy.copied.row_count} rows at the source, {copy.found.row_count} at the"
                f" destination, digests {copy.copied} and {copy.found}: "
                + (f"{why}. If that is not it, " if (why := self._why_padded(copy)) else "")
                + what_changes_a_copy(copy.table)
            )
            self.fail(copy)
            return
        self.records.restarts.end(copy.key)
        self.records.record(
            copy.table,
            copy.scn,
            self.copied_state,
            rows=copy.copied.row_count,
            digest=str(copy.copied),
            estimated=copy.rows_estimated,
            carries=copy.carries,
        )

    def _why_padded(self, copy: TableCopy) -> str:
        """Return how `char(n)` explains a difference (`spark_apply.copy.pieces.padded_columns`); empty: it does not."""
        table = copy.table
        try:
            there, here = self.source_reader.seen(*table.source), self.destination_reader.seen(*copy.key)
        except DatabaseError:
            return ""  # another call reports the error
        columns = zip(copy.sources, copy.columns, strict=True)
        return why_padded(there, here, columns, source=table.source, destination=copy.key)

    def _cannot_read(self, copy: TableCopy, error: DatabaseError) -> None:
        copy.problem, copy.is_final = error.message, not isinstance(error, DatabaseUnavailable)
        self.fail(copy)

    def fail(self, copy: TableCopy) -> None:
        """Have a table copied again in the next round; at once after a transient error, unless it keeps recurring."""
        self.has_failed = True
        if copy.key in self.to_await:  # its record stays: another table's copy may end its wait
            self.needs_operator |= copy.is_final
            self.records.show(replace(self.records.progress[copy.key], state="FAILED", problem=copy.problem))
            return
        if copy.is_final:
            self.records.restarts.end(copy.key)
        elif (count := self.records.restarts.note(copy.key, copy.scn)) >= RESTARTS_MAX:
            copy.is_final = True
            copy.problem += f" ({count} times in a row). {LET_IT_REST}"
        self.needs_operator |= copy.is_final
        state = "FAILED" if copy.is_final else "COPYING"
        # Beside another apply process's rows the table is no longer emptied: whether any of the rows are ours decides
        # what an operator can do.
        scn = copy.scn if copy.has_written or not (copy.beside_rows and copy.is_final) else Scn(0)
        self.records.record(copy.table, scn, state, problem=copy.problem, estimated=copy.rows_estimated)


def what_changes_a_copy(table: TableToInstantiate) -> str:
    """Return what to do if a copy differs from what was read at the source.

    The table is copied again: rows that users wrote into it meanwhile are removed with the copy.
    """
    remedy = (
        "remove whatever changes its rows at the destination (a trigger that is ENABLE ALWAYS or REPLICA, a rule,"
        " another writer); then it is copied again"
    )
    if not table.is_sent_on:
        return remedy
    if table.returned_by:
        return (
            f"{remedy}. What users write there goes to the source first, and comes with the next copy: have them stop"
            " writing until the table is DONE"
        )
    return (
        f"{remedy}. What users write there before that is removed, and stays only if the source has it by then: have"
        f" them stop writing until the table is DONE, then `headrace verify FILE {argument(table.source)}`"
    )


def _reshaped(copy: TableCopy, source: str, time_us: int) -> bytes:
    """Return what a task needs to make a table's rows; empty: no function makes them.

    Args:
        copy: of the table.
        source: name of the source's site.
        time_us: of the copy, microseconds since the Unix epoch, UTC.
    """
    table = copy.table
    if not has_function(table.transformations):
        return b""
    return ReshapedTable(
        source=source,
        owner=table.source.owner,
        name=table.source.name,
        columns=copy.log_columns,
        transformations=table.transformations,
        time_us=time_us,
    ).to_bytes()


def wait_captured(snapshot: Snapshot, site: str, should_end: Callable[[], bool]) -> bool:
    """Wait until redo has everything that is copied (`Snapshot.is_captured`); return False if the driver must end.

    Args:
        snapshot: under which tables are to be copied.
        site: of the source.
        should_end: asked between looks.

    Raises:
        DatabaseUnavailable: the log writer does not get there, or the source is gone.
    """
    deadline = time.monotonic() + _CAPTURED_TIMEOUT_S
    while not should_end():
        if snapshot.is_captured():
            return True
        if time.monotonic() > deadline:
            raise DatabaseUnavailable(
                f"the log writer of site {site} has not made redo durable up to SCN {scn_text(snapshot.scn)}, which the"
                f" copy would hold, for {_CAPTURED_TIMEOUT_S:.0f} s",
                hint="`headrace status` says whether it is stopped, its redo log is full, or a receiver that it waits"
                " for is away",
            )
        time.sleep(_CAPTURED_POLL_S)
    return False


def has_no_rows(reader: TableReader, copy: TableCopy, *, snapshot: str = "") -> bool:
    """Return whether the source has no row of a table to copy.

    Args:
        reader: of the source.
        copy: of the table.
        snapshot: under which it would be copied; empty: the current state.

    Raises:
        DatabaseError: it cannot be read.
    """
    types = dict(zip(copy.sources, copy.columns.values(), strict=True))
    for piece in reader.plan(*copy.table.source, types, snapshot=snapshot, rows=copy.table.rows).pieces:
        with reader.open_piece(piece, snapshot=snapshot) as opened:
            if opened.digest(copy.sources).row_count:
                return False
    return True


def is_still_empty(session: DestinationSession, copy: TableCopy) -> bool:
    """Return whether no session has written into a table since it was emptied."""
    assert copy.target is not None
    return not session.has_rows(copy.target) and (not copy.mark or session.files_mark(copy.target) == copy.mark)
