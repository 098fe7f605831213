"""Instantiation: copy the source's tables to the destination, consistent with the stream of changes.

Job
    Copy every table that is not at the destination yet, prove the copy equal, and record its instantiation SCN.

Main path
    Instantiation.run -> a snapshot of the source -> _begin_table -> pieces on the CopyBoard -> one Spark job whose
    tasks take them (`copying`) -> _copied -> digests of the destination -> _compared -> DONE.

States (of a table; recorded at the destination)
    PENDING    not begun. Not recorded, or recorded by an earlier version.
    COPYING    set before the first row is written, with the snapshot's SCN: from then on the rows there are ours.
    COMPARING  every piece is copied; both sides are digested.
    DONE       equal; changes up to the instantiation SCN are in the copy.
    KEPT       its rows were kept as they were; only the instantiation SCN was set.
    FAILED     an operator must act (`problem`); checked again periodically. With an SCN of 0, no rows are ours.

Durable when
    A table is DONE when that is recorded, after its digests were equal. A table that is COPYING or COMPARING when
    the driver starts is emptied and copied again under a new snapshot, with a later instantiation SCN; the others keep
    theirs.

Longer than 500 lines: the states of a table, and what is done in each, must be read together.

Worked flow
    tables a, b; snapshot at 100. a: DONE at 100. b: its task is killed while it copies a piece -> it is unknown
    whether the piece was committed -> b is emptied, snapshot at 180, b: DONE at 180. The same when b was rewritten (VACUUM FULL,
    TRUNCATE) between two pieces: the reader refuses the next one.
    The stream began below 100: the reader drops changes of a up to 100, of b up to 180.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from databases.connectors import open_reader
from databases.copying import TablePiece, copied_columns
from databases.ports import DestinationTable, Instantiation, SourceTable
from databases.table_digest import TableDigest
from protos import apply_pb2 as pb
from rules.rule import Rule, RuleSet
from spark_apply.application.spark import SEE_LOG, SparkUnavailable
from spark_apply.copy.board import CopyBoard, PieceOutcome
from spark_apply.copy.standing import Standing, is_exchanged, names_passed_on, rename_statement, standings
from streams.errors import DatabaseError, DatabaseUnavailable
from streams.scn import Scn
from streams.table_name import TableName

if TYPE_CHECKING:
    from databases.ports import DestinationDatabase, DestinationSession, SourceDatabase
    from spark_apply.driver.config import ApplyConfig, TableToInstantiate
    from spark_apply.driver.gate import Gate
    from spark_apply.driver.runs import TaskRunner

__all__ = ["TableInstantiation", "TableProgress"]

# Copying tasks: at least two, so that one reads while the other writes, at most as many as apply servers, whose
# numbers and replication origins they use before those start.
_WORKERS_MIN = 2
_OUTCOME_WAIT_S = 0.5  # an end is noticed within this time while nothing is reported
_RETRY_S = 1.0  # after a transient error
_LOOK_AGAIN_S = 10.0  # how often a table that needs an operator is checked again
# If no piece is finished and no task calls for this long, the Spark job is stuck. A piece is 64 MiB of a table's own blocks,
# far more with values that are stored out of line, and a destination with many indexes is slow.
_STALL_S = 1800.0
_END_S = 300.0  # for tasks to see that there are no more pieces: they finish their current one first


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress:
    """Progress of a table's instantiation, for display."""

    owner: str
    name: str
    state: str = "PENDING"
    rows: int = 0
    rows_estimated: int = 0
    scn: int = 0
    problem: str = ""


@dataclass(slots=True)
class _Copy:
    """One table being copied."""

    table: TableToInstantiate
    columns: dict[str, str]  # name -> type at the destination
    scn: Scn
    rows_estimated: int
    pieces: int = 0  # not reported yet
    digests: int = 0  # not reported yet
    copied: TableDigest = field(default_factory=TableDigest)
    found: TableDigest = field(default_factory=TableDigest)  # at the destination, afterwards
    problem: str = ""
    is_final: bool = False

    @property
    def key(self) -> TableName:
        """Its name at the destination, which identifies tables and arriving changes."""
        return self.table.destination


@dataclass(slots=True)
class _Round:
    """One pass over the tables that are not finished, under one snapshot."""

    snapshot: str
    scn: Scn
    board: CopyBoard = field(default_factory=CopyBoard)
    copies: dict[TableName, _Copy] = field(default_factory=dict)
    needs_somebody: bool = False
    has_failed: bool = False


@dataclass(slots=True, kw_only=True)
class TableInstantiation:
    """See the module. `run` is called on the driver's thread and returns when every table is instantiated.

    Args:
        runner: starts the copying tasks.
        config: of the apply process.
        gate: passes the tasks' requests to the board of the round.
        source: the source database.
        destination: the destination database.
        epoch: this driver's.
        moved: called when a table's progress changes.
        should_end: checked between waits.
        problem: what stops it now, for `status`.
    """

    runner: TaskRunner
    config: ApplyConfig
    gate: Gate
    source: SourceDatabase
    destination: DestinationDatabase
    epoch: int
    moved: Callable[[TableProgress], None]
    should_end: Callable[[], bool]
    problem: str = ""
    _progress: dict[tuple[str, str], TableProgress] = field(default_factory=dict)

    def run(self) -> Mapping[tuple[str, str], Scn]:
        """Instantiate pending tables; returns instantiation SCNs by (owner, name): fewer when it must end before.

        Raises:
            FencedError: a newer driver runs.
            DatabaseError: an operator must act, for example grant a right.
        """
        while True:
            found = standings(self.config.tables, self._recorded())
            if self.should_end():
                return _scns(found)
            for each in found:
                self._show_recorded(each)
            pending = [each for each in found if not each.is_finished]
            if not (pending or any(each.is_renamed for each in found)):
                return _scns(found)
            try:
                followed, refused = self._follow_renames(found)
                if followed:
                    continue
                if not (pending or refused):
                    return _scns(found)
                pause_s = self._round(pending) if pending else _LOOK_AGAIN_S
                self.problem = ""
            except DatabaseUnavailable as error:
                self.problem, pause_s = error.message, _RETRY_S
            self._sleep(pause_s)

    # ------------------------------------------------------------------ a round

    def _follow_renames(self, found: Sequence[Standing]) -> tuple[bool, bool]:
        """Record the new names of tables that have them at the destination too; returns whether there were any, and any refused.

        Until then the old name stays recorded: it identifies the destination table that holds the rows. If the destination has
        both names, the table with the new name is another one: nothing is applied until the operator has renamed.
        """
        wanted = {each.table.destination: each for each in found}
        refused = False
        exchanged = [each for each in found if is_exchanged(each, wanted)]
        passed_on = names_passed_on(found, wanted)
        renamed = [self._doubt(each) for each in exchanged]
        for each in found:
            if each.record is None or not each.is_renamed or each in exchanged or not self._is_there(each.table.destination):
                continue
            if self._is_at_old_name(each, wanted):
                refused = True
                self._show(TableProgress(
                    owner=each.table.destination.owner, name=each.table.destination.name, state="FAILED", problem=_twice(each),
                ))
            elif each.table.identity in passed_on:
                # Changes of both tables may still be in flight under one name, which cannot distinguish them.
                renamed.append(self._doubt(each))
            else:
                renamed.append(each.renamed_record())
        if renamed:
            self._doubt_takers(found, {record.identity for record in renamed}, passed_on)
        for record in renamed:
            self._put(record)
        return bool(renamed), refused

    def _doubt_takers(self, found: Sequence[Standing], renamed: Collection[str], passed_on: Collection[str]) -> None:
        """Also copy tables again that take a name which another table gave up, before that one is recorded elsewhere."""
        for each in found:
            if each.record is not None and each.table.identity in passed_on and each.table.identity not in renamed:
                self._doubt(each)

    def _doubt(self, each: Standing) -> Instantiation:
        """Record first that a table is out of date, so that a restart finds it; returns the record under its new name."""
        assert each.record is not None
        self._put(replace(each.record, **_doubted(each.record)))
        return replace(each.renamed_record(), **_doubted(each.record))

    def _is_there(self, table: TableName) -> bool:
        return self.destination.describe(*table) is not None

    def _is_at_old_name(self, each: Standing, wanted: Mapping[TableName, Standing]) -> bool:
        """Whether the destination still has the table under its old name, and no other table has taken that name."""
        last: Standing | None = each
        for _ in range(len(wanted) + 1):
            if last is None:
                return True  # no other table takes the name: the table that has it is the old one
            if last.record is None or not last.is_renamed or not self._is_there(TableName.of(last.record)):
                return False
            last = wanted.get(TableName.of(last.record))  # has the name at the destination too, unless it is still under its own old name
        return False

    def _put(self, record: Instantiation) -> None:
        self.destination.record_instantiation(self.config.topology, self.config.apply, self.epoch, record)

    def _round(self, pending: Sequence[Standing]) -> float:
        """Make one pass; returns the seconds to wait before the next."""
        include = tuple(Rule(owner=each.table.source.owner, name=each.table.source.name) for each in pending)
        facts = {TableName.of(t): t for t in self.source.tables((RuleSet(include=include),))}
        # Before the snapshot: what is not the same afterwards is found to be another table the next time.
        captured = {TableName.of(t): t.identity for t in self.source.captured(self.config.topology)}
        with contextlib.closing(self.source.open_snapshot(self.config.topology)) as snapshot:
            this = _Round(snapshot.name, snapshot.scn)
            self._begin(this, pending, facts, captured)
            if this.copies:
                self._copy(this)
        if this.needs_somebody:
            return _LOOK_AGAIN_S
        return _RETRY_S if this.has_failed else 0.0

    def _begin(
        self, this: _Round, pending: Sequence[Standing], facts: Mapping[TableName, SourceTable],
        captured: Mapping[TableName, str],
    ) -> None:
        """Check the tables, empty those whose rows are ours, and record the beginning of their copies."""
        config = self.config
        begun: list[DestinationTable] = []
        session = self.destination.open_session(
            config.topology, config.apply, server=0, epoch=self.epoch, tag=config.tag
        )
        with contextlib.closing(session):
            for each in pending:
                table = each.table
                found, target, problem = self._fit(session, table, facts)
                if captured.get(table.source) != table.identity:
                    problem = "the source has no such table any more, or another one of its name: run `headrace up` again"
                # Rows of an unfinished copy are not the destination's own: they are never kept.
                may_empty = each.is_begun or (each.is_outdated and table.may_empty)
                if not problem and target is not None and not may_empty and session.has_rows(target):
                    problem = _refused(each)
                    if not problem:
                        self._record(table, this.scn, "KEPT", replaces=each.replaced_identities)
                        continue
                if problem or target is None:
                    this.needs_somebody = True
                    self._fail_at_once(each, problem)
                    continue
                this.copies[found.key] = found
                found.scn = this.scn
                self._record(
                    table, this.scn, "COPYING", estimated=found.rows_estimated, replaces=each.replaced_identities
                )
                if may_empty:
                    begun.append(target)
            if begun:
                session.empty_tables(begun)

    def _fail_at_once(self, each: Standing, problem: str) -> None:
        """Report why the table cannot be copied; the record of its rows stays, because they have not changed."""
        table, record = each.table, each.record
        if record is not None and record.state == "LEFT":
            self._show(TableProgress(
                owner=table.destination.owner, name=table.destination.name, state="FAILED", problem=problem
            ))
            return
        self._record(table, record.scn if record is not None and each.is_begun else Scn(0), "FAILED", problem=problem)

    def _fit(
        self, session: DestinationSession, table: TableToInstantiate, facts: Mapping[TableName, SourceTable],
    ) -> tuple[_Copy, DestinationTable | None, str]:
        """The copy, its target, and why it is impossible (empty: it is possible)."""
        there = facts.get(table.source)
        target = session.describe(*table.destination, fresh=True)
        copy = _Copy(table, {}, Scn(0), 0 if there is None else there.row_estimate)
        if there is None:
            return copy, target, "the source has no such table any more"
        if target is None:
            return copy, None, "the destination has no such table: create it there, with the same columns"
        writable = set(copied_columns(target))
        missing = [name for name in there.columns if name not in {column.name for column in target.columns}]
        if missing:
            return copy, target, f"the destination table lacks columns of the source's: {', '.join(missing)}"
        types = {column.name: column.type_name for column in target.columns}
        copy.columns = {name: types[name] for name in there.columns if name in writable}
        return copy, target, ""

    def _copy(self, this: _Round) -> None:
        """Run the copying Spark job, and process its reports."""
        self._offer_copies(this)
        self.gate.board = this.board
        run = self.runner.start(pb.TASK_KIND_COPY, max(_WORKERS_MIN, self.config.parallelism))
        try:
            heard_at = time.monotonic()
            while any(copy.pieces or copy.digests for copy in this.copies.values()) and not self.should_end():
                outcomes = this.board.take_outcomes(_OUTCOME_WAIT_S)
                for outcome in outcomes:
                    self._take(this, outcome)
                if outcomes or this.board.asked_at > heard_at:
                    heard_at = time.monotonic()
                if run.error is not None:
                    raise run.error
                self.problem = run.problem
                if time.monotonic() - heard_at > _STALL_S:
                    raise SparkUnavailable(
                        f"instantiation by {self.config.apply}: no copying task reported for {_STALL_S:g} s", hint=SEE_LOG
                    )
        finally:
            this.board.close()
            if not self.should_end():
                run.join(_END_S)
            run.close()
            self.gate.board = None

    def _offer_copies(self, this: _Round) -> None:
        pieces: list[pb.CopyPiece] = []
        with contextlib.closing(open_reader(self.config.source, application_name="headrace instantiation")) as source:
            for copy in this.copies.values():
                try:
                    plan = source.plan(*copy.table.source, copy.columns, snapshot=this.snapshot)
                except DatabaseError as error:
                    copy.problem, copy.is_final = error.message, not isinstance(error, DatabaseUnavailable)
                    self._fail(this, copy)
                    continue
                copy.pieces = len(plan.pieces)
                pieces += [self._piece(copy, piece, snapshot=this.snapshot, form=plan.form) for piece in plan.pieces]
                if not plan.pieces:
                    self._copied(this, copy)
        # Large pieces first, so that a small one ends last.
        pieces.sort(key=lambda piece: piece.bytes, reverse=True)
        this.board.add(pieces)

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
            self._show(replace(self._progress[copy.key], rows=copy.copied.row_count))
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
        """Every piece is copied: digest the destination's rows."""
        self._record(copy.table, copy.scn, "COMPARING", rows=copy.copied.row_count, estimated=copy.rows_estimated)
        with contextlib.closing(open_reader(self.config.destination, application_name="headrace instantiation")) as reader:
            pieces = reader.plan(*copy.key, {}).pieces
        copy.digests = len(pieces)
        this.board.add(self._piece(copy, piece, is_digest=True) for piece in pieces)
        if not pieces:
            self._compared(this, copy)

    def _compared(self, this: _Round, copy: _Copy) -> None:
        if copy.copied != copy.found:
            # Headrace never changes rows of a copy, so another copy would differ too.
            copy.is_final = True
            copy.problem = (
                f"the copy differs: {copy.copied.row_count} rows at the source, {copy.found.row_count} at the destination, "
                f"digests {copy.copied} and {copy.found}: take away what changes its rows at the destination "
                "(a trigger that is ENABLE ALWAYS or REPLICA, a rule, another writer); then it is copied again"
            )
            self._fail(this, copy)
            return
        self._record(
            copy.table, copy.scn, "DONE", rows=copy.copied.row_count, digest=str(copy.copied), estimated=copy.rows_estimated
        )

    def _fail(self, this: _Round, copy: _Copy) -> None:
        """The table is copied again in the next round; at once after a transient error."""
        this.has_failed = True
        this.needs_somebody |= copy.is_final
        state = "FAILED" if copy.is_final else "COPYING"
        self._record(copy.table, copy.scn, state, problem=copy.problem, estimated=copy.rows_estimated)

    # ------------------------------------------------------------------ records

    def _recorded(self) -> tuple[Instantiation, ...]:
        while True:
            try:
                found = self.destination.instantiations(self.config.topology, self.config.apply)
            except DatabaseUnavailable as error:
                self.problem = error.message
                if self.should_end():
                    return ()
                self._sleep(_RETRY_S)
            else:
                return tuple(each for each in found if each.source == self.config.source.site)

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
        self._show(TableProgress(
            owner=table.destination.owner, name=table.destination.name, state=state, rows=rows, rows_estimated=estimated, scn=scn, problem=problem,
        ))

    def _show_recorded(self, each: Standing) -> None:
        table, found = each.table, each.record
        if found is None:
            self._show(TableProgress(owner=table.destination.owner, name=table.destination.name))
        else:
            self._show(TableProgress(
                owner=table.destination.owner, name=table.destination.name, state=found.state, rows=found.row_count, scn=found.scn,
                problem=found.problem,
            ))

    def _show(self, progress: TableProgress) -> None:
        self._progress[progress.owner, progress.name] = progress
        self.moved(progress)

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.should_end():
            time.sleep(min(0.1, seconds))


def _scns(found: Sequence[Standing]) -> dict[tuple[str, str], Scn]:
    """Instantiation SCN of each finished table by (owner, name), under its recorded and its current name."""
    scns: dict[tuple[str, str], Scn] = {}
    for each in found:
        if each.record is not None and each.is_finished:
            scns.setdefault(TableName.of(each.record), each.record.scn)
    for each in found:
        if each.record is not None and each.is_finished:
            scns[each.table.destination] = each.record.scn
    return scns


def _doubted(record: Instantiation) -> dict[str, Any]:
    """The changed record fields of a table that exchanged names with another one; the destination may not have done so."""
    if record.state == "DONE":
        return {"state": "LEFT"}
    # Kept rows are an operator's own: never remove them; whether they are this table's is no longer known.
    return {"state": "FAILED", "scn": Scn(0)} if record.state == "KEPT" else {}


def _twice(each: Standing) -> str:
    """Why a renamed table is not at the destination, although the destination has a table of the new name."""
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
    """Why a table cannot be copied into a destination table with rows that are not ours to remove; empty: keep them.

    No advice may skip changes: only rows that Headrace never copied may be kept as an operator's own.
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
