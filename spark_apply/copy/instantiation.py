"""Instantiation: bring the source's tables to the destination, consistent with the stream of changes.

Job
    Copy every table that is not there yet, prove the copy equal, record its instantiation SCN.

Main path
    TableInstantiation.run_first, run_beside -> a snapshot of the source -> _begin_table -> pieces on the CopyBoard -> one
    Spark job whose tasks take them (`spark_apply.copy.tasks`) -> _copied -> digests of the destination -> _compared
    -> DONE, or COPIED -> TableJoins.

    The first tables of an apply process are copied before it applies anything (`run_first`): nothing can be held up.
    Every later one is copied beside (`run_beside`): the others are applied meanwhile, and it joins them when it is copied.

States (of a table; recorded at the destination)
    PENDING    nothing was done. Not recorded, or recorded by an earlier version.
    COPYING    set before the first row is written, with the snapshot's SCN: from then on the rows there are ours.
    COMPARING  every piece is copied; both sides are digested.
    COPIED     equal; later changes are left out until it joins. Only of a table that is copied beside.
    JOINING    see `spark_apply.driver.joining`.
    DONE       equal; changes up to the instantiation SCN are in the copy, later ones are applied.
    KEPT       its rows were kept as they were; only the instantiation SCN was set.
    FAILED     somebody must act (`problem`); looked at again now and then. With an SCN of 0 nothing of ours is there.
    LEFT       see `databases.ports.Instantiation`.
    GONE       only shown: the source dropped it before it was copied; nothing waits for it.

Durable when
    A table is DONE or COPIED when that is recorded, after its digests were equal. A table that is COPYING or COMPARING
    when the driver starts is emptied and copied again under a new snapshot, with a later instantiation SCN; the others
    keep theirs. What the snapshot of a table that is copied beside needs of the queue is held before the snapshot is taken.

One sick table
    A table that cannot be copied is FAILED alone: its rows are left out, everything else goes on. The first tables are
    tried _FIRST_ROUNDS_MAX times before the others are applied; after that they are copied beside, too.

Longer than 500 lines: the states of a table, and what is done in each, must be read together.

Worked flow
    tables a, b; snapshot at 100. a: DONE at 100. b: its task is killed with a piece in hand -> nobody knows whether
    the piece was committed -> b is emptied, snapshot at 180, b: DONE at 180.
    The stream began below 100: the reader drops changes of a up to 100, of b up to 180.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from databases.copying import TablePiece, copied_columns
from databases.ports import DestinationTable, Instantiation, SourceTable
from databases.table_digest import TableDigest
from protos import apply_pb2 as pb
from rules.rule import Rule, RuleSet
from spark_apply.application.spark import SEE_LOG, SparkUnavailable
from spark_apply.copy.board import CopyBoard, PieceOutcome
from spark_apply.copy.standing import Standing, is_exchanged, names_passed_on, rename_statement, standings
from spark_apply.driver.reader import TableStart
from streams.errors import DatabaseError, DatabaseUnavailable, DestinationRestarted, FencedError, StreamsError
from streams.scn import FIRST_SCN, Scn
from streams.table_name import TableName

if TYPE_CHECKING:
    from databases.copying import TableReader
    from databases.ports import DestinationDatabase, DestinationSession, SourceDatabase
    from spark_apply.copy.workers import CopyWorkers
    from spark_apply.driver.config import ApplyConfig, TableToInstantiate
    from spark_apply.driver.joining import JoinCalls

__all__ = ["TableInstantiation", "TableProgress", "table_starts"]

_OUTCOME_WAIT_S = 0.5  # how soon an end is noticed while nothing is reported
_RETRY_S = 1.0  # after something that time heals
_LOOK_AGAIN_S = 10.0  # at a table that needs somebody to act
_IDLE_S = 0.5  # how soon a table that is to be copied again is noticed
# No piece done and no task asking: the Spark job is stuck. A piece is 64 MiB of a table's own blocks, with what is stored
# out of line far more, and a destination with many indexes is slow.
_STALL_S = 1800.0
_FIRST_ROUNDS_MAX = 3  # a killed task or a rewritten table costs one; what lasts longer must not hold up the others
# Tables copied beside share a snapshot up to so many bytes, the smallest first: they join sooner than a large one is copied,
# and a snapshot that keeps the source from vacuuming is not older than one large table needs.
_ROUND_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress:
    """How far a table's instantiation is, for people.

    Args:
        owner, name: the table.
        state: see the module.
        rows, rows_estimated: copied, and what the source thinks it has.
        bytes_done, bytes_total: of the source's file.
        scn: the instantiation SCN.
        problem: why it is FAILED, or was last tried in vain.
    """

    owner: str
    name: str
    state: str = "PENDING"
    rows: int = 0
    rows_estimated: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    scn: int = 0
    problem: str = ""


_NOTHING = TableProgress(owner="", name="")


@dataclass(slots=True)
class _Copy:
    """One table being copied."""

    table: TableToInstantiate
    columns: dict[str, str]  # name -> type at the destination
    scn: Scn
    rows_estimated: int
    target: DestinationTable | None
    replaces: tuple[str, ...]
    pieces: int = 0  # not reported yet
    digests: int = 0  # of the destination, not reported yet
    bytes_done: int = 0
    bytes_total: int = 0
    copied: TableDigest = field(default_factory=TableDigest)
    found: TableDigest = field(default_factory=TableDigest)  # at the destination, afterwards
    problem: str = ""
    is_final: bool = False

    @property
    def key(self) -> TableName:
        """Its name at the destination: tables are told apart by it, as the changes that arrive are."""
        return self.table.destination


@dataclass(slots=True)
class _Round:
    """One pass over tables that are not finished, under one snapshot."""

    snapshot: str = ""
    scn: Scn = FIRST_SCN
    board: CopyBoard = field(default_factory=CopyBoard)
    copies: dict[TableName, _Copy] = field(default_factory=dict)
    kept: list[Standing] = field(default_factory=list)
    to_empty: set[TableName] = field(default_factory=set)
    needs_somebody: bool = False
    has_failed: bool = False


@dataclass(slots=True, kw_only=True)
class TableInstantiation:
    """See the module. One thread at a time; `copy_again` comes from others.

    Args:
        config: of the apply process.
        source: the source database.
        destination: the destination database.
        source_reader, destination_reader: of the same databases' tables.
        workers: who copies.
        epoch: this driver's.
        moved: told when a table's progress changes.
        should_end: asked between waits.
        problem: what keeps it from going on now; for status.
    """

    config: ApplyConfig
    source: SourceDatabase
    destination: DestinationDatabase
    source_reader: TableReader
    destination_reader: TableReader
    workers: CopyWorkers
    epoch: int
    moved: Callable[[TableProgress], None]
    should_end: Callable[[], bool]
    problem: str = ""
    _joins: JoinCalls | None = None
    _progress: dict[TableName, TableProgress] = field(default_factory=dict)
    _again: set[TableName] = field(default_factory=set)
    _twice: dict[TableName, str] = field(default_factory=dict)  # renamed tables that the destination has under both names
    _left_out: set[TableName] = field(default_factory=set)  # nothing of them is applied now
    _gone: set[str] = field(default_factory=set)  # identities of tables that the source dropped before they were copied
    _failing: dict[TableName, str] = field(default_factory=dict)  # why the last copy of a table failed that is tried again

    # ------------------------------------------------------------------ before anything is applied

    def run_first(self) -> None:
        """Copy the tables of an apply process that has none yet; returns when none is left that time alone would heal.

        Raises:
            FencedError: a newer driver runs.
            DestinationRestarted: the destination may have lost commits: begin again.
        """
        if not self._follow_all_renames():
            return
        found = self._standings(show=False)
        if any(each.is_finished or each.is_copied for each in found):
            return
        for _ in range(_FIRST_ROUNDS_MAX):
            pending = [each for each in self._pending(found) if self._progress[each.table.destination].state != "FAILED"]
            if not pending or self.should_end():
                return
            self._sleep(min(self._round(pending), _RETRY_S))
            found = self._standings(show=False)

    def _follow_all_renames(self) -> bool:
        """Return when each name is one table's at both sides; False: told to end before.

        Changes of two tables that come under one name cannot be told apart: nothing is applied before that.
        """
        found = self._standings()
        while not self.should_end():
            shared = [each for each in found if each.occupant is not None and not each.is_finished]
            try:
                followed, refused = self._follow_renames(found)
                if not (followed or refused or shared):
                    return True
                if not followed:
                    self._sleep(self._round(shared) if shared else _LOOK_AGAIN_S)
            except DatabaseUnavailable as error:
                self.problem = error.message
                self._sleep(_RETRY_S)
            found = self._standings(show=False)
        return False

    def starts(self) -> tuple[dict[tuple[str, str], TableStart], Scn | None]:
        """From where each table is applied, and what the queue must keep for tables that are copied and have not joined."""
        found = self._standings()
        copied = [each.record.scn for each in found if each.record is not None and each.is_copied]
        return table_starts(found), min(copied, default=None)

    # ------------------------------------------------------------------ beside the others

    def copy_again(self, tables: Collection[TableName]) -> None:
        """Have these tables (as the destination calls them) emptied and copied again; called on any thread."""
        self._again |= set(tables)

    def run_beside(self, joins: JoinCalls) -> None:
        """Copy what is pending while the others are applied, until told to end.

        Args:
            joins: how tables are left out, and join.

        Raises:
            FencedError: a newer driver runs.
            DestinationRestarted: the destination may have lost commits: begin again.
        """
        self._joins = joins
        self._left_out = {each.table.destination for each in self._standings(show=False) if not each.is_finished}
        look_at = 0.0
        while not self.should_end():
            try:
                if self._again:
                    self._leave_out(joins)
                    look_at = 0.0
                elif time.monotonic() >= look_at:
                    look_at = time.monotonic() + self._look(joins)
            except (FencedError, DestinationRestarted):
                raise
            except StreamsError as error:
                self.problem, look_at = error.message, time.monotonic() + _RETRY_S
            self._sleep(_IDLE_S)

    def _look(self, joins: JoinCalls) -> float:
        """One round over what is pending; seconds until the next look."""
        found = self._standings()
        followed, _ = self._follow_renames(found)
        if followed:
            return 0.0
        records = [each.record for each in found if each.record is not None]
        is_joining = any(record.state == "JOINING" for record in records)
        if is_joining and joins.is_joined:
            for record in records:
                if record.state == "JOINING":
                    self._settle(replace(record, state="DONE" if record.digest else "KEPT"))
            is_joining = False
        if copied := [record for record in records if record.state == "COPIED"]:
            if joins.join(copied):
                self._left_out -= {TableName.of(record) for record in copied}
                joins.hold(None)
            return 0.0
        pending = self._pending(found)
        if not pending:
            return 0.0 if is_joining else _LOOK_AGAIN_S
        pause_s = self._round(pending)
        if any(each.is_copied for each in self._standings(show=False)):
            return 0.0
        joins.hold(None)
        return pause_s

    def _leave_out(self, joins: JoinCalls) -> None:
        """Begin to copy tables again that are replicated: nothing of them is applied any more, and their rows are ours."""
        again = set(self._again)
        # Recorded first: a driver that dies when rows are left out already must not take the table for finished.
        for each in self._standings(show=False):
            if each.table.destination in again and each.record is not None:
                self._settle(replace(each.record, state="COPYING", scn=max(each.record.scn, Scn(1)), problem="to be copied again"))
        if joins.leave_out(again):
            self._left_out |= again
            self._again -= again

    def _pending(self, found: Sequence[Standing]) -> list[Standing]:
        """What is to be copied: not what the source dropped meanwhile."""
        return [each for each in found if not each.is_finished and each.table.identity not in self._gone]

    def _follow_renames(self, found: Sequence[Standing]) -> tuple[bool, bool]:
        """Record the new names of tables that have them at the destination too; tell whether there were any, and any refused.

        Until then the old name stays recorded: it says in which table of the destination the rows are. A table that was made
        under the new name, while the old one is still there, is not that table: nothing is applied before it is.
        """
        wanted = {each.table.destination: each for each in found}
        self._twice.clear()
        exchanged = [each for each in found if is_exchanged(each, wanted)]
        passed_on = names_passed_on(found, wanted)
        renamed = [self._doubt(each) for each in exchanged]
        for each in found:
            if each.record is None or not each.is_renamed or each in exchanged or not self._is_there(each.table.destination):
                continue
            if self._is_at_old_name(each, wanted):
                self._twice[each.table.destination] = _twice(each)
                self._show_recorded(each.table.destination, each.record)
            elif each.table.identity in passed_on:
                # Changes of both tables may still be on their way under the one name: nothing tells them apart by it.
                renamed.append(self._doubt(each))
            else:
                renamed.append(each.renamed_record())
        if renamed:
            self._doubt_takers(found, {record.identity for record in renamed}, passed_on)
        for record in renamed:
            self._put(record)
        return bool(renamed), bool(self._twice)

    def _doubt_takers(self, found: Sequence[Standing], renamed: Collection[str], passed_on: Collection[str]) -> None:
        """Copy those again, too, that take a name which another table gave up: before that one is recorded elsewhere."""
        for each in found:
            if each.record is not None and each.table.identity in passed_on and each.table.identity not in renamed:
                self._doubt(each)

    def _doubt(self, each: Standing) -> Instantiation:
        """Record first that a table is out of date, so that whoever ends here finds that again; answer the record under its new name."""
        assert each.record is not None
        self._put(replace(each.record, **_doubted(each.record)))
        return replace(each.renamed_record(), **_doubted(each.record))

    def _is_there(self, table: TableName) -> bool:
        return self.destination.describe(*table) is not None

    def _is_at_old_name(self, each: Standing, wanted: Mapping[TableName, Standing]) -> bool:
        """Whether the destination has the table still under its old name: what has that name is not one that took it since."""
        last: Standing | None = each
        for _ in range(len(wanted) + 1):
            if last is None:
                return True  # nobody takes the name: what has it is the old one
            if last.record is None or not last.is_renamed or not self._is_there(TableName.of(last.record)):
                return False
            last = wanted.get(TableName.of(last.record))  # has the name here too, unless it is at its own old one itself
        return False

    def _put(self, record: Instantiation) -> None:
        self.destination.record_instantiation(self.config.topology, self.config.apply, self.epoch, record)

    # ------------------------------------------------------------------ a round

    def _round(self, pending: Sequence[Standing]) -> float:
        """One pass; seconds to wait before the next."""
        try:
            pause_s = self._try_round(pending)
            self.problem = ""
        except DestinationRestarted:
            raise
        except DatabaseUnavailable as error:
            self.problem, pause_s = error.message, _RETRY_S
        except DatabaseError as error:
            # A right is missing, or the like: none of them can be copied until an operator acts.
            self.problem, pause_s = error.message, _LOOK_AGAIN_S
            for each in pending:
                self._fail_at_once(each, error.message)
        return pause_s

    def _try_round(self, pending: Sequence[Standing]) -> float:
        include = tuple(Rule(owner=each.table.source.owner, name=each.table.source.name) for each in pending)
        facts = {TableName.of(t): t for t in self.source.tables((RuleSet(include=include),))}
        # Before the snapshot: what is not the same afterwards is found to be another table the next time.
        captured = {TableName.of(t): t.identity for t in self.source.captured(self.config.topology)}
        pending = self._without_dropped(pending, facts, captured)
        chosen = list(pending) if self._joins is None else _smallest(pending, facts)
        self._failing = {
            each.table.destination: f"{each.record.problem}; it is being copied again" for each in chosen
            if each.record is not None and each.record.state == "FAILED" and each.is_begun
        }
        if self._joins is not None and not self._leave_out_first(self._joins, chosen):
            return 0.0
        this = _Round()
        with contextlib.closing(self._session()) as session:
            for each in chosen:
                self._check(this, session, each, facts, captured)
        if this.copies or this.kept:
            if self._joins is not None:
                self._joins.hold_now()
            with contextlib.closing(self.source.open_snapshot(self.config.topology)) as snapshot:
                this.snapshot, this.scn = snapshot.name, snapshot.scn
                if self._joins is not None:
                    self._joins.hold(snapshot.scn)
                self._begin(this)
                if this.copies:
                    self._copy(this)
        if any(each not in chosen and not _has_failed(each) for each in pending):
            return 0.0
        if this.needs_somebody:
            return _LOOK_AGAIN_S
        return _RETRY_S if this.has_failed else 0.0

    def _without_dropped(
        self, pending: Sequence[Standing], facts: Mapping[TableName, SourceTable], captured: Mapping[TableName, str],
    ) -> list[Standing]:
        """Those of the tables that the source has: nothing waits for one that was dropped before it was copied."""
        identities = set(captured.values())
        for each in pending:
            if each.table.source not in facts and each.table.identity not in identities:
                self._gone.add(each.table.identity)
                self._show(TableProgress(owner=each.table.destination.owner, name=each.table.destination.name, state="GONE"))
        return [each for each in pending if each.table.identity not in self._gone]

    def _leave_out_first(self, joins: JoinCalls, chosen: Sequence[Standing]) -> bool:
        """Let nothing be applied to tables that are copied now, although they were applied when the driver started."""
        applied = {each.table.destination for each in chosen} - self._left_out
        if applied and not joins.leave_out(applied):
            return False
        self._left_out |= applied
        return True

    def _session(self) -> DestinationSession:
        """A session of a number that no apply server has that may run now."""
        config = self.config
        server = 0 if self._joins is None else config.parallelism
        return self.destination.open_session(config.topology, config.apply, server=server, epoch=self.epoch, tag=config.tag)

    def _check(
        self, this: _Round, session: DestinationSession, each: Standing, facts: Mapping[TableName, SourceTable],
        captured: Mapping[TableName, str],
    ) -> None:
        """Find out whether a table can be copied, and put it into the round; records why it cannot."""
        table = each.table
        try:
            copy, problem = self._fit(session, each, facts)
            if captured.get(table.source) != table.identity:
                problem = "the source has no such table any more, or another one of its name: run `headrace up` again"
            # Rows of a copy that was begun are not the destination's own: they are never kept.
            may_empty = each.is_begun or (each.is_outdated and table.may_empty)
            if not problem and not may_empty and copy.target is not None and session.has_rows(copy.target):
                problem = _refused(each)
                if not problem:
                    this.kept.append(each)
                    return
        except (DatabaseUnavailable, DestinationRestarted):
            raise
        except DatabaseError as error:
            problem = error.message
        if problem:
            this.needs_somebody = True
            self._fail_at_once(each, problem)
            return
        this.copies[copy.key] = copy
        if may_empty:
            this.to_empty.add(copy.key)

    def _fail_at_once(self, each: Standing, problem: str) -> None:
        """Say why the table cannot be copied; what is recorded of its rows stays, for they are what they were."""
        table, record = each.table, each.record
        if record is not None and record.state == "LEFT":
            self._show(TableProgress(
                owner=table.destination.owner, name=table.destination.name, state="FAILED", problem=problem
            ))
            return
        self._record(table, record.scn if record is not None and each.is_begun else Scn(0), "FAILED", problem=problem)

    def _fit(
        self, session: DestinationSession, each: Standing, facts: Mapping[TableName, SourceTable],
    ) -> tuple[_Copy, str]:
        """What is to be copied and where to, and why it cannot be."""
        table = each.table
        there, target = facts.get(table.source), session.describe(*table.destination, fresh=True)
        copy = _Copy(table, {}, Scn(0), 0 if there is None else there.row_estimate, target, each.replaced_identities)
        if there is None:
            return copy, "the source has no such table any more"
        if target is None:
            return copy, "the destination has no such table: create it there, with the same columns"
        writable = set(copied_columns(target))
        missing = [name for name in there.columns if name not in {column.name for column in target.columns}]
        if missing:
            return copy, f"the destination table lacks columns of the source's: {', '.join(missing)}"
        types = {column.name: column.type_name for column in target.columns}
        copy.columns = {name: types[name] for name in there.columns if name in writable}
        if not copy.columns:
            return copy, "it has no column that can be copied: add one at both sides, or drop the table at the source"
        return copy, ""

    def _begin(self, this: _Round) -> None:
        """Record that the copies begin, and empty the tables whose rows are ours."""
        for each in this.kept:
            state = "KEPT" if self._joins is None else "COPIED"
            self._record(each.table, this.scn, state, replaces=each.replaced_identities)
        with contextlib.closing(self._session()) as session:
            for key, copy in list(this.copies.items()):
                copy.scn = this.scn
                self._record(copy.table, this.scn, "COPYING", estimated=copy.rows_estimated, replaces=copy.replaces)
                try:
                    if key in this.to_empty and copy.target is not None:
                        session.empty_tables([copy.target])
                except (DatabaseUnavailable, DestinationRestarted):
                    raise
                except DatabaseError as error:
                    copy.problem, copy.is_final = error.message, True
                    self._fail(this, this.copies.pop(key))

    def _copy(self, this: _Round) -> None:
        """Start who copies, and follow it."""
        self._offer_copies(this)
        job = self.workers.start(this.board, first_server=0 if self._joins is None else self.config.parallelism)
        try:
            heard_at = time.monotonic()
            while any(copy.pieces or copy.digests for copy in this.copies.values()) and not self.should_end():
                outcomes = this.board.take_outcomes(_OUTCOME_WAIT_S)
                for outcome in outcomes:
                    self._take(this, outcome)
                if outcomes or this.board.asked_at > heard_at:
                    heard_at = time.monotonic()
                if job.error is not None:
                    raise job.error
                self.problem = job.problem
                if time.monotonic() - heard_at > _STALL_S:
                    raise SparkUnavailable(
                        f"instantiation by {self.config.apply}: no copying task reported for {_STALL_S:g} s", hint=SEE_LOG
                    )
        finally:
            this.board.close()
            job.join()

    def _offer_copies(self, this: _Round) -> None:
        pieces: list[pb.CopyPiece] = []
        for copy in this.copies.values():
            plan = self._planned(this, copy)
            if plan is None:
                continue
            pieces += plan
            copy.pieces = len(plan)
            copy.bytes_total = sum(piece.bytes for piece in plan)
            self._show(replace(self._progress[copy.key], bytes_total=copy.bytes_total))
            if not plan:
                self._copied(this, copy)
        # Large pieces first: the last one to end is then a small one.
        pieces.sort(key=lambda piece: piece.bytes, reverse=True)
        this.board.add(pieces)

    def _planned(self, this: _Round, copy: _Copy) -> list[pb.CopyPiece] | None:
        """A table's pieces; None: it cannot be read."""
        try:
            plan = self.source_reader.plan(*copy.table.source, copy.columns, snapshot=this.snapshot)
        except DatabaseError as error:
            copy.problem, copy.is_final = error.message, not isinstance(error, DatabaseUnavailable)
            self._fail(this, copy)
            return None
        return [self._piece(copy, piece, snapshot=this.snapshot, form=plan.form) for piece in plan.pieces]

    def _piece(
        self, copy: _Copy, piece: TablePiece, *, snapshot: str = "", form: str = "", is_digest: bool = False,
    ) -> pb.CopyPiece:
        return pb.CopyPiece(
            is_digest=is_digest, table=pb.TableName(owner=copy.key[0], name=copy.key[1]),
            stored=pb.TableName(owner=piece.owner, name=piece.name), place=piece.place, bytes=piece.bytes,
            columns=list(copy.columns), form=form, snapshot=snapshot, epoch=self.epoch, tag=self.config.tag,
        )

    # ------------------------------------------------------------------ what tasks report

    def _take(self, this: _Round, outcome: PieceOutcome) -> None:
        copy = this.copies[TableName(outcome.piece.table.owner, outcome.piece.table.name)]
        if outcome.piece.is_digest:
            copy.digests -= 1
            copy.found += outcome.digest
        else:
            copy.pieces -= 1
            copy.copied += outcome.digest
            copy.bytes_done += outcome.piece.bytes
            self._show(replace(
                self._progress[copy.key], rows=copy.copied.row_count, bytes_done=copy.bytes_done, bytes_total=copy.bytes_total
            ))
        if outcome.problem and not copy.problem:
            copy.problem, copy.is_final = outcome.problem, outcome.is_final
            copy.pieces -= this.board.withdraw(*copy.key) if copy.pieces else 0
        if copy.pieces == 0 and copy.digests == 0:
            if copy.problem:
                self._fail(this, copy)
            elif outcome.piece.is_digest:
                self._compared(this, copy)
            else:
                self._copied(this, copy)

    def _copied(self, this: _Round, copy: _Copy) -> None:
        """Every piece is copied: have the destination's rows digested."""
        self._record(copy.table, copy.scn, "COMPARING", rows=copy.copied.row_count, estimated=copy.rows_estimated)
        try:
            pieces = self.destination_reader.plan(*copy.key, {}).pieces
        except DatabaseError as error:
            copy.problem, copy.is_final = error.message, not isinstance(error, DatabaseUnavailable)
            self._fail(this, copy)
            return
        copy.digests = len(pieces)
        this.board.add(self._piece(copy, piece, is_digest=True) for piece in pieces)
        if not pieces:
            self._compared(this, copy)

    def _compared(self, this: _Round, copy: _Copy) -> None:
        if copy.copied != copy.found:
            # Nothing of ours changes rows on their way: another copy would differ as well.
            copy.is_final = True
            copy.problem = (
                f"the copy differs: {copy.copied.row_count} rows at the source, {copy.found.row_count} at the destination, "
                f"digests {copy.copied} and {copy.found}: take away what changes its rows at the destination "
                "(a trigger that is ENABLE ALWAYS or REPLICA, a rule, another writer); then it is copied again"
            )
            self._fail(this, copy)
            return
        self._record(
            copy.table, copy.scn, "DONE" if self._joins is None else "COPIED", rows=copy.copied.row_count, digest=str(copy.copied), estimated=copy.rows_estimated
        )

    def _fail(self, this: _Round, copy: _Copy) -> None:
        """The table is copied again in the next round; at once when time heals it."""
        this.has_failed = True
        this.needs_somebody |= copy.is_final
        state = "FAILED" if copy.is_final else "COPYING"
        self._record(copy.table, copy.scn, state, problem=copy.problem, estimated=copy.rows_estimated)

    # ------------------------------------------------------------------ records

    def _standings(self, *, show: bool = True) -> tuple[Standing, ...]:
        """Where every table stands, by what is recorded now."""
        while True:
            try:
                recorded = self.destination.instantiations(self.config.topology, self.config.apply)
            except DatabaseUnavailable as error:
                self.problem = error.message
                if self.should_end():
                    return ()
                self._sleep(_RETRY_S)
            else:
                break
        found = standings(self.config.tables, (each for each in recorded if each.source == self.config.source.site))
        for each in found if show else ():
            if each.table.identity not in self._gone:
                self._show_recorded(each.table.destination, each.record)
        return found

    def _record(
        self, table: TableToInstantiate, scn: Scn, state: str, *, rows: int = 0, estimated: int = 0, digest: str = "",
        problem: str = "", replaces: Collection[str] = (),
    ) -> None:
        self.destination.record_instantiation(
            self.config.topology, self.config.apply, self.epoch,
            Instantiation(
                source=self.config.source.site, identity=table.identity, owner=table.destination.owner,
                name=table.destination.name, scn=scn, state=state, row_count=rows, digest=digest, problem=problem,
            ),
            replaces=replaces,
        )
        failing = self._failing.get(table.destination, "") if state in {"COPYING", "COMPARING"} else ""
        self._show(TableProgress(
            owner=table.destination.owner, name=table.destination.name, state="FAILED" if failing else state, rows=rows,
            rows_estimated=estimated, scn=scn, problem=failing or problem,
        ))

    def _settle(self, record: Instantiation) -> None:
        self.destination.record_instantiation(self.config.topology, self.config.apply, self.epoch, record)
        self._show_recorded(TableName.of(record), record)

    def _show_recorded(self, name: TableName, found: Instantiation | None) -> None:
        if name in self._twice:
            self._show(TableProgress(owner=name.owner, name=name.name, state="FAILED", problem=self._twice[name]))
        elif found is None:
            self._show(TableProgress(owner=name.owner, name=name.name))
        elif self._progress.get(name, _NOTHING).state != "FAILED" or found.state != "LEFT":
            self._show(TableProgress(
                owner=name.owner, name=name.name, state=found.state, rows=found.row_count, scn=found.scn, problem=found.problem,
            ))

    def _show(self, progress: TableProgress) -> None:
        self._progress[TableName(progress.owner, progress.name)] = progress
        self.moved(progress)

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.should_end():
            time.sleep(min(0.1, seconds))


def table_starts(found: Sequence[Standing]) -> dict[tuple[str, str], TableStart]:
    """From where each table is applied, under the name recorded and the name of now; left out: it is not finished."""
    starts: dict[tuple[str, str], TableStart] = {each.table.destination: TableStart(scn=None) for each in found}
    finished = [(each, each.record) for each in found if each.record is not None and each.is_finished]
    for _, record in finished:
        starts[TableName.of(record)] = TableStart(scn=record.scn, is_joining=record.state == "JOINING")
    for each, record in finished:
        starts[each.table.destination] = TableStart(scn=record.scn, is_joining=record.state == "JOINING")
    return starts


def _doubted(record: Instantiation) -> dict[str, Any]:
    """What becomes of the record of a table that changed names with another one: nothing tells whether both did so here."""
    if record.is_kept:
        # Rows that were kept are an operator's own: never removed, and not known to be this table's any more.
        return {"state": "FAILED", "scn": Scn(0)}
    return {"state": "LEFT"} if record.state in {"DONE", "JOINING", "COPIED"} else {}


def _twice(each: Standing) -> str:
    """Why a renamed table is not at the destination, though it has a table of the new name."""
    assert each.record is not None
    old, new = TableName.of(each.record), each.table.destination
    rename = rename_statement(old, new)
    if each.occupant is not None:
        return (
            f"its rows are in {old} at the destination, and {new} has those of the table that the source calls {each.occupant.source} "
            f"now: {rename_statement(new, each.occupant.destination)}; then {rename}; `headrace up` goes on with it"
        )
    return (
        f"the destination has it twice: its rows are in {old}, and the source renamed it: drop the other one, then {rename}; "
        "`headrace up` goes on with it"
    )


def _refused(each: Standing) -> str:
    """Why a destination table with rows that are not ours to remove cannot be copied to; empty: its rows are to be kept.

    No way out may skip changes: rows are only kept as an operator's own that were never copied.
    """
    table = each.table
    if each.occupant is not None:
        renamed = each.occupant
        return (
            f"the destination table holds the rows of a table that the source calls {renamed.source} now: rename "
            f"it as there: {rename_statement(table.destination, renamed.destination)}; then this one is copied"
        )
    if each.is_outdated:
        return (
            "the table was copied once, and is another one now, or its changes did not come for a while: the rows at the "
            "destination are out of date, and as other tables' changes or users may have written there as well, they are not "
            "removed unasked: empty the destination table, and it is copied again"
        )
    if table.keep_existing:
        return ""
    return (
        "the destination table is not empty: empty it; or, if it holds the rows of the source as they are now, keep them "
        "with `headrace up --keep-existing`: what was changed at the source before is not applied"
    )


def _has_failed(each: Standing) -> bool:
    return each.record is not None and each.record.state == "FAILED"


def _smallest(pending: Sequence[Standing], facts: Mapping[TableName, SourceTable]) -> list[Standing]:
    """The smallest tables, up to the bytes that share a snapshot; those that failed come after all others. At least one."""
    sizes = [facts[each.table.source].bytes if each.table.source in facts else 0 for each in pending]
    chosen: list[Standing] = []
    total = 0
    for place in sorted(range(len(pending)), key=lambda place: (_has_failed(pending[place]), sizes[place])):
        total += sizes[place]
        if chosen and total > _ROUND_BYTES:
            break
        chosen.append(pending[place])
    return chosen
