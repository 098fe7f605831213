"""Instantiation: copy the source's tables to the destination, consistent with the stream of changes.

Job
    Copy every table that the destination does not have yet, prove the copy equal, and record its instantiation SCN.

Main path
    TableInstantiation.run_first, run_beside -> a snapshot of the source -> `spark_apply.copy.pieces.rounds.CopyRound`:
    pieces on the CopyBoard, one Spark job whose tasks take them, digests of both sides
    -> DONE, or COPIED -> TableJoins.

    The first tables of an apply process are copied before it applies anything (`run_first`), so they hold up no other
    table. Every later table is copied alongside (`run_beside`): the others are applied meanwhile, and it joins them
    when its copy is finished.

Longer than 500 lines: it is one loop over the states below, and each step has to know all of them.

States (of a table; recorded at the destination)
    PENDING    not begun. Not recorded, or recorded by an earlier version; or DDL made the table, and its CREATE TABLE
               may still arrive (`spark_apply.apply_config.TableToInstantiate.as_of`).
    AWAITING   waits for the copy of another apply process (`spark_apply.copy.ways.shared_tables`); shown as PENDING.
    COPYING    set before the first row is written, with the snapshot's SCN: from then on the rows there are ours.
    COMPARING  every piece is copied; both sides are digested.
    COPIED     equal; later changes are skipped until it joins. Only for a table that is copied alongside.
    JOINING    catches up with the other tables (`spark_apply.driver.loop.joining`).
    DONE       equal; changes up to the instantiation SCN are in the copy, later ones are applied.
    KEPT       its rows were kept as they were; only the instantiation SCN was set.
    FAILED     an operator must act (`problem`); checked again periodically. With an SCN of 0, no rows are ours.
    LEFT       its changes stopped arriving (`headrace.databases.ports.Instantiation`).
    LEFT OUT   only shown: LEFT, and not a table of this apply process now; its rows at the destination are out of date.
    GONE       only shown: the source dropped it before it was copied; nothing waits for it.

Durable when
    A table is DONE or COPIED when that is recorded, after its digests were equal. A table that is COPYING or COMPARING
    when the driver starts is copied again under a new snapshot, with a later instantiation SCN; the others keep theirs.
    It is emptied first, if only this apply process has rows there. Nothing is copied before redo has everything that
    the snapshot has (`Snapshot.is_captured`). Before the snapshot of a table copied alongside, the queue begins to hold
    the changes that the snapshot needs.

Several apply processes in one table
    One of them copies (`spark_apply.copy.ways.neighbours`). A table in which another one has rows is never emptied.

One failing table
    A table that cannot be copied is FAILED alone: its changes are skipped, all others continue. The first tables are
    tried _FIRST_ROUNDS_MAX times before the others are applied; after that they are copied alongside, too.
    `spark_apply.copy.records.restarts` counts copies of tables that the source rewrites or truncates meanwhile.

Worked flow
    tables a, b; snapshot at 100. a: DONE at 100. b: its task is killed while it has a piece -> the outcome of the piece
    is unknown -> b is emptied, snapshot at 180, b: DONE at 180.
    The stream began below 100: the reader drops changes of a up to 100, of b up to 180.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.base.errors import (
    ApplyError,
    DatabaseError,
    DatabaseUnavailable,
    DestinationRestarted,
    FencedError,
    HeadraceError,
)
from headrace.databases.ports import PartOf
from headrace.databases.table_digest import TableDigest
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from spark_apply.apply_config import BY_RECORD_SCN
from spark_apply.copy.marks.table_marks import TableMarks
from spark_apply.copy.pieces.rounds import CopyRound, wait_captured
from spark_apply.copy.records.emptied import copy_of_emptied, emptied_tables
from spark_apply.copy.records.obsolete_errors import ObsoleteErrors
from spark_apply.copy.records.parts import part_facts
from spark_apply.copy.records.renames import RenamedTables
from spark_apply.copy.records.sessions import CopySessions
from spark_apply.copy.records.standing import smallest, table_starts
from spark_apply.copy.records.tables import TableProgress, TableRecords, to_be_copied_again
from spark_apply.copy.table_checks import TableChecks
from spark_apply.copy.ways.both_ways import BothWays, Found
from spark_apply.copy.ways.returned_tables import ReturnedTables
from spark_apply.copy.ways.shared_tables import SharedTables

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationDatabase, SourceDatabase
    from headrace.databases.ports.copying import TableReader
    from spark_apply.apply_config import ApplyConfig, TableToInstantiate
    from spark_apply.copy.pieces.rounds import TableCopy
    from spark_apply.copy.pieces.workers import CopyWorkers
    from spark_apply.copy.records.join_calls import JoinCalls
    from spark_apply.copy.records.standing import Standing
    from spark_apply.tables.arriving import TableStart

__all__ = ["TableInstantiation"]

_RETRY_S = 1.0  # after a problem that passes with time
_LOOK_AGAIN_S = 10.0  # at a table that needs an operator
_WAITING_S = 3.0  # at a table that another apply process copies
_GATHERING_S = 0.5  # at a table for which every way waits for the others' records: seconds in all
_LOOKED_POLL_S = 0.05  # how soon the end of a requested look is noticed
_IDLE_S = 0.5  # how soon a table that must be copied again is noticed
_FIRST_WAITS_MAX = 60  # a second each: drivers of the other apply processes start within a minute
# Ways of one site may wait for tables that other ways apply, and those in turn for tables that these deliver. So each
# starts to apply its other tables after a while.
_FIRST_GATHERINGS_MAX = 10  # half a second each
_FIRST_ROUNDS_MAX = 3  # a killed task or a rewritten table costs one; a longer problem must not hold up other tables


@dataclass(slots=True, kw_only=True)
class TableInstantiation:
    """Copies the tables of an apply process, first and alongside. One thread at a time; other threads may `copy_again`.

    Args:
        config: of the apply process.
        source: the source database.
        destination: the destination database.
        source_reader, destination_reader: read the same databases' tables.
        workers: run the copying tasks.
        epoch: of this driver.
        both_ways: decides about tables that return to their source.
        moved: called when a table's progress changes.
        should_end: checked between waits.
        problem: what blocks the copies now, for `status`.
        applied_scn: everything below this was applied when the driver began.
    """

    config: ApplyConfig
    source: SourceDatabase
    destination: DestinationDatabase
    source_reader: TableReader
    destination_reader: TableReader
    workers: CopyWorkers
    epoch: int
    both_ways: BothWays
    moved: Callable[[TableProgress], None]
    should_end: Callable[[], bool]
    problem: str = ""
    applied_scn: Scn = FIRST_SCN
    _joins: JoinCalls | None = None
    _records: TableRecords = field(init=False)
    _renames: RenamedTables = field(init=False)
    _sessions: CopySessions = field(init=False)
    _shared: SharedTables = field(init=False)
    _checks: TableChecks = field(init=False)
    _returned: ReturnedTables = field(init=False)
    _marks: TableMarks = field(init=False)
    _obsolete: ObsoleteErrors = field(init=False)
    _asked: int = 0  # number of looks requested
    _looked: int = 0  # number of these that are answered
    _left_out: set[tuple[str, str]] = field(default_factory=set)  # skipped tables (`Standing.key`)
    # lowest SCN that the queue must keep for copies that cannot join yet (`Standing.awaits_rename`), and for tables
    # that wait for others' copies
    _awaited_scn: Scn | None = None

    def __post_init__(self) -> None:
        self._records = TableRecords(
            config=self.config,
            destination=self.destination,
            epoch=self.epoch,
            moved=self.moved,
            applied_scn=self.applied_scn,
        )
        self._renames = RenamedTables(self._records)
        self._marks = TableMarks(records=self._records, source=self.source)
        self._sessions = CopySessions(config=self.config, destination=self.destination, epoch=self.epoch)
        self._shared = SharedTables(records=self._records, both_ways=self.both_ways)
        self._checks = TableChecks(
            config=self.config,
            source=self.source,
            destination=self.destination,
            source_reader=self.source_reader,
            both_ways=self.both_ways,
            records=self._records,
            shared=self._shared,
        )
        self._returned = ReturnedTables(both_ways=self.both_ways, should_end=self._round_ends)
        self._obsolete = ObsoleteErrors(config=self.config, destination=self.destination, records=self._records)

    # ------------------------------------------------------------------ before anything is applied

    def run_first(self) -> None:
        """Copy the tables of an apply process that has none yet; return when only an operator can help the rest.

        Raises:
            FencedError: a newer driver runs.
            DestinationRestarted: the destination may have lost commits: begin again.
        """
        if not self._persist(self._records.take_recorded_names):
            return
        self._copy_first()
        self._persist(self._sessions.hand_over)

    def _persist(self, ask: Callable[[], object]) -> bool:
        """Ask the destination until it answers; return False if the driver must end first."""
        while not self.should_end():
            try:
                ask()
            except DatabaseUnavailable as error:
                self.problem = error.message
                self._sleep(_RETRY_S)
            else:
                return True
        return False

    def _copy_first(self) -> None:
        if not self._follow_all_renames():
            return
        found = self._standings(show=False)
        if any(each.is_finished or each.is_copied for each in found):
            return
        rounds = waits = gatherings = 0
        while rounds < _FIRST_ROUNDS_MAX and waits < _FIRST_WAITS_MAX and gatherings < _FIRST_GATHERINGS_MAX:
            pending = [
                each
                for each in self._pending(found)
                if self._records.progress[each.table.destination].state != "FAILED" and not each.is_copied
            ]
            if not pending or self.should_end():
                return
            self._sleep(min(self._round(pending), _RETRY_S))
            if all(each.is_awaiting for each in pending):
                gatherings += 1
            elif all(each.table.destination in self._records.waits for each in pending):
                waits += 1
            else:
                rounds += 1
            found = self._standings(show=False)

    def _follow_all_renames(self) -> bool:
        """Wait until each name means the same table at both sites; return False if the driver must end first.

        Changes of two tables that arrive under one name cannot be distinguished, so nothing is applied before that.
        """
        found = self._standings()
        while not self.should_end():
            shared = [each for each in self._pending(found) if each.occupant is not None]
            try:
                followed, refused = self._renames.follow(found)
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
        """Return where apply starts in each table, and the lowest SCN behind which the queue must keep changes.

        The queue keeps them for tables that are copied and have not joined.
        """
        found = self._standings()
        return table_starts(found), min((each.held_scn for each in found if each.held_scn is not None), default=None)

    # ------------------------------------------------------------------ alongside the others

    def copy_again(self, tables: Collection[TableName]) -> None:
        """Empty these tables (named as at the destination) and copy them again; may be called on any thread."""
        self._records.copy_again(tables)

    def part_of(self, table: TableToInstantiate) -> str:
        """Return a partition of a table that is copied alone and has not joined, for the operator; empty: no such one.

        May be called on any thread.
        """
        return self._records.part_of(table)

    def look_now(self, timeout_s: float) -> bool:
        """Look at every unfinished table now; may be called on any thread.

        Args:
            timeout_s: longest wait for the look. A look that copies a table can take longer.

        Returns:
            Whether a look that began after this call has ended.
        """
        self._asked += 1
        wanted, deadline = self._asked, time.monotonic() + timeout_s
        while self._looked < wanted and time.monotonic() < deadline and not self.should_end():
            time.sleep(_LOOKED_POLL_S)
        return self._looked >= wanted

    def run_beside(self, joins: JoinCalls) -> None:
        """Copy pending tables while the others are applied, until the driver must end.

        Args:
            joins: makes the coordinator skip tables and let them join.

        Raises:
            FencedError: a newer driver runs.
            DestinationRestarted: the destination may have lost commits: begin again.
        """
        self._joins = self._marks.detached.joins = joins
        self._left_out = {each.key for each in self._standings(show=False) if not each.is_finished}
        look_at = 0.0
        while not self.should_end():
            try:
                if self._records.again:
                    self._leave_out(joins)
                    look_at = 0.0
                elif time.monotonic() >= look_at or self._asked > self._looked:
                    look_at = time.monotonic() + self._looked_at(joins)
            except (FencedError, DestinationRestarted):
                raise
            except HeadraceError as error:
                self.problem, look_at = error.message, time.monotonic() + _RETRY_S
            self._sleep(_IDLE_S)

    def _looked_at(self, joins: JoinCalls) -> float:
        asked = self._asked
        try:
            return self._look(joins)
        finally:
            self._looked = asked

    def _look(self, joins: JoinCalls) -> float:
        """Run one round over the pending tables; return the seconds until the next look."""
        found = self._standings()
        # Forget a partition that left, or whose table is copied: it may come back. And a table that DDL made: it is not
        # skipped any more, nor is the one that had its name skipped instead.
        self._left_out &= {each.key for each in found if not each.is_finished}
        followed, _ = self._renames.follow(found)
        if followed:
            return 0.0
        if self._obsolete.is_due:  # before a joined copy is DONE: a caller that waits for DONE gets their number
            self._obsolete.delete(joins)
        if self._end_truncated_parts(joins, found) or self._marks.look(found, is_asked=self._asked > self._looked):
            return 0.0
        self._awaited_scn = self._awaited(found)
        self._records.restarts.keep({each.table.destination for each in self._pending(found)})
        records = [each.record for each in found if each.record is not None and not each.awaits_rename]
        joining = [record for record in records if record.state == "JOINING"]
        if joining and joins.is_joined:
            for record in joining:
                self._records.settle(replace(record, state="KEPT" if record.is_kept else "DONE"))
            joining = []
        if copied := [record for record in records if record.state == "COPIED"]:
            if joins.join(copied):
                for record in copied:  # a caller that waits until everything is applied may ask for a comparison now
                    self._records.show_recorded(TableName.of(record), replace(record, state="JOINING"))
                self._left_out -= {record.key for record in copied}
                joins.hold(self._needed())
                self._obsolete.is_due = True
                self._obsolete.joined += [record for record in copied if PartOf.of(record.identity) is not None]
            return 0.0
        if pending := self._pending(found):
            pause_s = 0.0 if self._end_by_truncates(joins, pending) else self._round(pending)
            return 0.0 if self._hold(joins, self._standings(show=False)) else pause_s
        self.problem = ""
        self._hold(joins, found)
        return 0.0 if joining else _LOOK_AGAIN_S

    def _hold(self, joins: JoinCalls, found: Sequence[Standing]) -> bool:
        """Make the queue keep exactly the changes behind the copies that have not joined.

        Returns whether a table can join now.
        """
        can_join = any(each.is_copied and not each.awaits_rename for each in found)
        if found and not can_join:  # empty if the driver must end
            joins.hold(self._needed(*self._held(found)))
        return can_join

    def _needed(self, *scns: Scn) -> Scn | None:
        """Return the SCN behind which the queue must keep changes.

        It keeps them for these SCNs, the copies that cannot join yet, and copies that a TRUNCATE may end.
        """
        return min((*scns, *filter(None, [self._awaited_scn]), *self._records.restarts.needed_scns), default=None)

    def _end_by_truncates(self, joins: JoinCalls, pending: Sequence[Standing]) -> bool:
        """Take tables as copied that the source empties while they are copied (decision 71).

        Returns whether there were any.
        """
        if not (ended := emptied_tables(self._records, joins, pending)):
            return False
        self._sessions.begin_round()
        with contextlib.closing(self._sessions.open(self.config.parallelism)) as session:
            for each, scn in ended:
                try:
                    copy_of_emptied(self._records, session, each, scn)
                except (DatabaseUnavailable, DestinationRestarted):
                    raise
                except DatabaseError as error:
                    self._records.fail_at_once(each, error.message)
        return True

    def _end_truncated_parts(self, joins: JoinCalls, found: Sequence[Standing]) -> bool:
        """End the copies of partitions whose tables wait to be truncated (`spark_apply.copy.records.parts`).

        Returns whether there were any.
        """
        truncated = joins.truncated_parts
        if not truncated:
            return False
        self._sessions.begin_round()  # a piece that a task still has must not be written behind the TRUNCATE
        for each in found:
            if each.part is not None and (scn := truncated.get(each.part)) is not None and each.record is not None:
                self._records.settle(
                    replace(each.record, scn=scn, state="DONE", row_count=0, digest=str(TableDigest()), problem="")
                )
        if joins.admit(truncated):
            self._left_out -= {part.key for part in truncated}
        return True

    def _leave_out(self, joins: JoinCalls) -> None:
        """Begin to copy replicated tables again: from now on their changes are skipped, and their rows are ours."""
        again, found = set(self._records.again), self._standings(show=False)
        # Recorded first: if the driver dies after rows were skipped, the next one must not take the table as finished.
        for each in found:
            if each.table.destination in again and each.record is not None:
                self._records.settle(to_be_copied_again(each.record))
        if found and joins.leave_out(again):
            self._left_out |= again  # names only: an operator cannot have a partition copied again
            self._records.again -= again

    def _pending(self, found: Sequence[Standing]) -> list[Standing]:
        """Return the tables to copy.

        Not among them: tables that the source dropped, copied ones that wait for their name, and tables that DDL makes.
        """
        return [
            each
            for each in found
            if not each.is_finished
            and not each.awaits_rename
            and each.table.identity not in self._records.gone
            and not self._records.awaits_ddl(each)
        ]

    def _awaited(self, found: Sequence[Standing]) -> Scn | None:
        """Show the copied tables that the destination has under another name.

        Returns the SCN behind which the queue must keep changes for them, and for tables that wait for others' copies.
        """
        awaiting = [each for each in found if each.awaits_rename]
        for each in awaiting:
            if each.table.destination not in self._records.twice:
                self._records.show_awaited(each)
        return min(self._held([*awaiting, *(each for each in found if each.is_awaiting)]), default=None)

    def _held(self, found: Sequence[Standing]) -> list[Scn]:
        """Return the SCNs behind which the queue must keep changes, without those of tables that the source dropped."""
        there = [each for each in found if each.table.identity not in self._records.gone]
        return [each.held_scn for each in there if each.held_scn is not None]

    # ------------------------------------------------------------------ a round

    def _round(self, pending: Sequence[Standing]) -> float:
        """Make one pass; return the seconds to wait before the next."""
        try:
            pause_s = self._try_round(pending)
            self.problem = ""
        except DestinationRestarted:
            raise
        except DatabaseUnavailable as error:
            self.problem, pause_s = error.message, _RETRY_S
        except DatabaseError as error:
            # For example, a privilege is missing: none of them can be copied until an operator acts.
            self.problem, pause_s = error.message, _LOOK_AGAIN_S
            identities = {each.table.identity for each in pending}
            for each in self._pending(self._standings(show=False)):  # as this round left them
                if each.table.identity in identities and not each.is_copied:
                    self._records.fail_at_once(each, error.message)
        return pause_s

    def _try_round(self, pending: Sequence[Standing]) -> float:
        include = tuple(
            Rule(owner=name.owner, name=name.name)
            for name in {each.table.part_of or each.table.source for each in pending}
        )
        facts = {TableName.of(t): t for t in self.source.tables((RuleSet(include=include),))}
        # Read before the snapshot: a table that changes its identity afterwards counts as another table the next time.
        found = self.source.captured(self.config.topology)
        captured = {TableName.of(t): t.identity for t in found} | self._checks.captured_parts(pending)
        pending = self._checks.without_dropped(pending, self._standings(show=False), facts, captured)
        facts |= part_facts(pending, facts, captured, self.source_reader)
        chosen = list(pending) if self._joins is None else smallest(pending, facts, waiting=self._records.waits)
        self._records.failing = {
            each.table.destination: f"{each.record.problem}; it is being copied again"
            for each in chosen
            if each.record is not None and each.record.state == "FAILED" and each.is_begun
        }
        if self._joins is not None and not self._leave_out_first(self._joins, chosen):
            return 0.0
        self._sessions.begin_round()
        this = CopyRound(
            config=self.config,
            records=self._records,
            source_reader=self.source_reader,
            destination_reader=self.destination_reader,
            workers=self.workers,
            is_beside=self._joins is not None,
            incarnation=self._sessions.incarnation,
            should_end=self._round_ends,
            told=self._told,
        )
        with contextlib.closing(self._sessions.open(this.servers[0])) as session:
            for each in chosen:
                self._checks.check(this, session, each, facts, captured)
            self._checks.refuse_unlike(this, chosen)
            self._returned.empty(this, session)
        for each in chosen:
            if each.table.destination not in this.copies:
                self._records.restarts.end(each.table.destination)
        self._records.wait(this.waits)  # this round looked at the tables that waited before, too
        if this.copies or this.kept:
            if self._joins is not None:
                self._joins.hold_now()
            with contextlib.closing(self.source.open_snapshot(self.config.topology)) as snapshot:
                this.snapshot, this.scn = snapshot.name, snapshot.scn
                if self._joins is not None:
                    self._joins.hold(self._needed(snapshot.scn))
                if not wait_captured(snapshot, self.config.source.site, self._round_ends):
                    return 0.0
                self._checks.leave_moved_parts(this, chosen)
                self._checks.refuse_unlike(this, chosen)  # their types may have been altered just before the snapshot
                self._begin(this)
                self._marks.note(chosen, snapshot.name)
                if this.copies:
                    self._copy(this)
        if any(each not in chosen and not each.has_failed for each in pending):
            return 0.0
        if this.waits:
            return _GATHERING_S if this.is_gathering else _WAITING_S
        if this.needs_operator:
            return _LOOK_AGAIN_S
        return _RETRY_S if this.has_failed else 0.0

    def _leave_out_first(self, joins: JoinCalls, chosen: Sequence[Standing]) -> bool:
        """Make the coordinator skip the tables copied now, if it applied them when the driver started."""
        applied = [each for each in chosen if each.key not in self._left_out]
        tables = {each.table.destination for each in applied if each.part is None}
        if applied and not joins.leave_out(tables, [each.part for each in applied if each.part is not None]):
            return False
        self._left_out |= {each.key for each in applied}
        return True

    def _begin(self, this: CopyRound) -> None:
        """Record that the copies begin, and empty the tables whose rows are ours.

        Check again what other apply processes have claimed meanwhile.
        """
        for each, others in this.kept:
            # Asked again after the snapshot: others' changes at the source from before it do not arrive here, and they
            # record a table before they write it.
            if each.table.keep_existing or self.both_ways.found(each, has_rows=True) is Found.KEEP:
                this.claim_kept(each.table, beside=others, replaces=each.replaced_identities)
            else:
                this.has_failed = True
        with contextlib.closing(self._sessions.open(this.servers[0])) as session:
            for key, copy in list(this.copies.items()):
                copy.scn = this.scn
                is_claimed = key not in this.of_nothing and key not in this.to_await and self._claim(this, copy)
                if not is_claimed:
                    del this.copies[key]
                with this.failing_alone(copy):
                    if key in this.to_await:
                        this.claim_awaiting(copy, may_have_rows=self.both_ways.is_recorded_there(copy.table))
                    elif key in this.of_nothing:
                        this.claim_nothing(copy)
                    elif key in this.copies and key in this.to_find_empty:
                        this.find_empty(session, copy)
                    elif key in this.copies and key in this.to_empty and copy.target is not None:
                        this.empty(session, copy)

    def _claim(self, this: CopyRound, copy: TableCopy) -> bool:
        """Record that a copy begins; return False if it cannot under this snapshot."""
        if copy.key in this.for_all:
            copy.carries, why = self._shared.carries(copy, this.snapshot)
            if why:
                self._records.wait({**self._records.waits, copy.key: f"table {copy.key} waits for {why}"})
                this.has_failed = True
                return False
        return this.claim_copy(copy)

    def _copy(self, this: CopyRound) -> None:
        self._sessions.give(this.servers)
        this.copy()

    def _round_ends(self) -> bool:
        """Return whether a round ends: with the driver, or when the table of a partition waits to be truncated."""
        return self.should_end() or (self._joins is not None and bool(self._joins.truncated_parts))

    def _told(self, problem: str) -> None:
        self.problem = problem

    def _standings(self, *, show: bool = True) -> tuple[Standing, ...]:
        """Return every table's standing when the destination answers; empty if the driver must end."""
        while True:
            try:
                self._note_applied()
                return self._records.standings(show=show)
            except DatabaseUnavailable as error:
                self.problem = error.message
                if self.should_end():
                    return ()
                self._sleep(_RETRY_S)

    def _note_applied(self) -> None:
        """Find out what is applied, if a table waits for its CREATE TABLE; read the records only behind that."""
        known = self._records.applied_scn
        if self._joins is not None and any(
            known < each.as_of < BY_RECORD_SCN for each in (*self.config.tables, *self._records.parked)
        ):
            with contextlib.suppress(ApplyError):  # it is busy: the tables wait for the next look
                # What was applied once stays applied, although the low watermark goes back when another table joins.
                self._records.applied_scn = max(known, self._joins.applied_scn)

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.should_end():
            time.sleep(min(0.1, seconds))
