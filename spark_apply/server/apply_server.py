"""Apply server: writes groups at the destination.

Job
    Apply each group that the coordinator assigns, in destination transactions that contain data and progress.

Main path
    receive -> step -> Work.step (sets, bisection, row by row, error queue) -> session.commit -> reports.

States (V$STREAMS_APPLY_SERVER.STATE), memory only
    INITIALIZING          no destination session yet.
    IDLE                  no group.
    WAIT DEPENDENCY       it has a group, and transactions that the group depends on are not applied yet.
    WAIT FOR NEXT CHUNK   a streamed transaction's next part has not arrived.
    EXECUTE TRANSACTION   a group is being written.
    ROLLBACK TRANSACTION  the database was unavailable: the server retries after a delay.
    PAUSED: WAITING FOR ALTER   the destination table does not fit.

Durable when
    The session's commit was answered. If the answer was lost, a new session of the same server finds the progress that
    the commit was to record.

Worked flow
    group 7 = T1 T2 T3 T4, T3 conflicts; everything below is applied
    T1..T4 as sets: counts differ -> rolled back; T1 T2 committed; T3 T4 -> rolled back; T3 -> rolled back
    T3 row by row: update_missing -> rolled back; T3 into the error queue, committed
    T4 does not depend on T3: committed. One GroupResult: applied T1..T4, one error.

Nothing here sleeps or reads a clock: `step` receives the time and returns when to call it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headrace.base.backoff import Backoff
from headrace.base.errors import BugError, DatabaseUnavailable, UnfitTableError
from headrace.databases.ports import ConflictSession, DestinationSession, DestinationTable
from headrace.lcr.batch import LcrBatch, TableVersion
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings
from headrace.rules.virtual_dependencies import NO_VIRTUAL_DEPENDENCIES, VirtualDependencies
from spark_apply.conversation.groups import (
    CoordinatorMessage,
    GroupAbandon,
    GroupAbandoned,
    GroupAssignment,
    GroupGo,
    GroupMode,
    Reopen,
    ServerMessage,
)
from spark_apply.handlers.crashes import Calls, CrashGuard, NoCalls
from spark_apply.handlers.loaded import NOTHING_LOADED, Handlers
from spark_apply.server.error_execution import ExecuteWork
from spark_apply.server.group_work import Work, WorkContext
from spark_apply.server.large_transactions import LargeErrorWork, LargeWork
from spark_apply.server.set_groups import SetsWork
from spark_apply.sets.conflict_settings import ConflictSettings
from spark_apply.tables.fits import TableFits

__all__ = ["ApplyServer", "ServerStep"]

_UNFIT_RETRY_S = 2.0  # an ALTER is noticed within this time
# Between checks for change times to forget: a check reads all of them, which takes seconds for millions.
FORGET_EVERY_S = 600.0
FORGET_AGAIN_S = 10.0  # after a check that found some: a check forgets only a part of them


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStep:
    """Result of a step.

    Args:
        reports: messages for the coordinator, in order.
        is_idle: nothing to do until a message arrives or `wake_at` is reached.
        wake_at: when to step again even if no message arrives; None: only when one arrives.
    """

    reports: tuple[ServerMessage, ...]
    is_idle: bool
    wake_at: float | None = None


class ApplyServer:
    """One apply server of one apply process.

    Args:
        source: the site whose transactions it applies.
        open_session: opens this server's destination session; ends a dead predecessor's.
        error_batches: reads an error transaction's parts.
        copied_scns: returns the recorded `spark_apply.tables.copied.copied_scns`.
        conflicts: settings for resolving conflicts and showing values; None: there are no conflict handlers.
        dependencies: virtual dependency definitions, which decide what waits behind an error transaction.
        handlers: users' handlers.
        calls: where calls of handlers are recorded after a server has died; None: nowhere.
        tables: settings for rows that do not fit their table.
    """

    def __init__(  # noqa: PLR0913 - the parts of a server
        self,
        *,
        apply: str,
        source: str,
        open_session: Callable[[], DestinationSession],
        decode: Callable[[bytes], LcrBatch],
        encode: Callable[[LcrBatch], bytes],
        error_batches: Callable[[int], Iterator[bytes]],
        copied_scns: Callable[[], Mapping[tuple[str, str], int]] = dict,
        conflicts: ConflictSettings | None = None,
        dependencies: VirtualDependencies = NO_VIRTUAL_DEPENDENCIES,
        handlers: Handlers = NOTHING_LOADED,
        calls: Calls | None = None,
        tables: TableSettings = NO_TABLE_SETTINGS,
    ) -> None:
        settings = conflicts or ConflictSettings(apply=apply, source=source)
        self._open_session = open_session
        self._new_context = functools.partial(
            WorkContext,
            apply=apply,
            source=source,
            decode=decode,
            encode=encode,
            error_batches=error_batches,
            copied_scns=copied_scns,
            conflicts=settings,
            handlers=handlers,
            guard=CrashGuard(calls or NoCalls()),
        )
        self._context: WorkContext | None = None
        self._is_connected = False
        self._fits = TableFits(
            self._describe, self._missing_alter, settings.rules, dependencies, handlers.rules, tables
        )
        self._work: dict[int, tuple[GroupAssignment, Work]] = {}
        self._backoff, self._has_failed = Backoff(), False
        self._wake_at: float | None = None
        self._times = settings.rules.times
        self._forget_at: float | None = None  # not until this server has worked for a while
        self._reports: list[ServerMessage] = []
        self.last_error = ""
        """The last failure of the environment, for `status`; it stays after recovery."""
        self.unfit: UnfitTableError | None = None
        """The table that does not fit, while the server waits for the ALTER."""
        self.rows_applied = 0
        self.groups_applied = 0

    # ------------------------------------------------------------------ calls of the host

    def connect(self) -> None:
        """Open the destination session if none is open; call before reporting that the server is ready.

        Raises:
            DatabaseUnavailable: try again later.
            FencedError: a newer incarnation exists; end.
        """
        if self._is_connected:
            return
        session = self._open_session()
        try:
            self._sample_times(session)
        except BaseException:
            session.close()
            raise
        if self._context is None:
            self._context = self._new_context(
                session=session, fit_of=self._fits.fit_or_error, forget_fits=self._fits.forget
            )
        self._context.session, self._is_connected = session, True
        self._fits.forget()
        for number in sorted(self._work):
            last = self._work[number][1].settle()
            if last is not None:
                self._end(number, last)

    @property
    def state(self) -> str:
        """The manuals' state; other threads may call this."""
        works = [work for _, work in list(self._work.values())]
        if self.unfit is not None:
            return "PAUSED: WAITING FOR ALTER"
        if self._has_failed:
            return "ROLLBACK TRANSACTION"
        if not self._is_connected:
            return "INITIALIZING"
        if not works:
            return "IDLE"
        if any(work.is_ready for work in works):
            return "EXECUTE TRANSACTION"
        streamed = any(work.is_begun for work in works)
        return "WAIT FOR NEXT CHUNK" if streamed else "WAIT DEPENDENCY"

    @property
    def group(self) -> int:
        """The lowest group that it holds; 0: none."""
        return min(self._work, default=0)

    def receive(self, message: CoordinatorMessage) -> None:
        """Accept a message of the coordinator."""
        if isinstance(message, Reopen):
            self.close()
            return
        if isinstance(message, GroupAssignment):
            if self._context is None:
                raise BugError("a group was assigned before the server was ready")
            self._work[message.group] = (message, _new_work(message, self._context))
            return
        found = self._work.get(message.group)
        if found is None or found[0].attempt != message.attempt:
            if isinstance(message, GroupAbandon):
                self._reports.append(GroupAbandoned(group=message.group, attempt=message.attempt))
            return
        work = found[1]
        if isinstance(message, GroupGo):
            work.let_go(message)
        elif isinstance(message, GroupAbandon):
            if work.is_begun and self._context is not None:
                self._context.session.rollback()
                work.broken(retried=False)
            del self._work[message.group]
            self._reports.append(GroupAbandoned(group=message.group, attempt=message.attempt))
        else:
            work.add_part(message)

    def step(self, now: float) -> ServerStep:
        """Do one bounded piece of work: at most one destination transaction, or one part of a streamed one.

        Args:
            now: seconds on a monotonic clock.

        Raises:
            FencedError: a newer incarnation exists; end.
            DatabaseError: the operator must act first (for example, grant a missing right).
            HandlersGrew: users' handlers take too much memory or too many threads; end. Everything reported before is
                durable.
        """
        if self._wake_at is not None and now < self._wake_at:
            return self._answer(is_idle=True)
        try:
            self._check_bounds()
            self.connect()
            is_idle = not self._advance()
            self._forget_changes(now)
        except UnfitTableError as error:
            self._pause(error, now)
            return self._answer(is_idle=True)
        except DatabaseUnavailable as error:
            self._back_off(error, now)
            return self._answer(is_idle=True)
        self._has_failed, self._wake_at, self.unfit = False, None, None
        self._backoff.reset()
        return self._answer(is_idle=is_idle)

    def check_calls(self, now: float) -> None:
        """Check that no user's function blocks the server; another thread calls this.

        Args:
            now: seconds on a monotonic clock.

        Raises:
            HandlersGrew: a function does; end the process.
        """
        context = self._context
        if context is not None:
            context.handlers.bounds.stuck(now)
            context.execution_bounds.stuck(now)

    def close(self) -> None:
        """Close the session; an open transaction is rolled back."""
        if self._context is not None:
            self._context.session.close()
        self._is_connected = False

    # ------------------------------------------------------------------ inside

    def _advance(self) -> bool:
        """Step the lowest group that may write, or prepare one that may not yet; False: nothing to do."""
        for number in sorted(self._work):
            assignment, work = self._work[number]
            if work.is_ready:
                if work.wants_new_fits:
                    # The group may arrive again because the reader waited for an ALTER in the middle of it. Its first
                    # rows are older than the ALTER: a statement prepared for the old definition could write the rows
                    # silently wrong, for example int into text without the operator's function. An operator who
                    # executes an error transaction has just dropped or added the cause of its failure: the attempt
                    # should not end with "altered meanwhile".
                    self._fits.forget()
                if self._context is not None:
                    self._context.guard.is_careful = assignment.is_careful
                done = work.step()
                if done is not None and done[1]:
                    self._end(number, done[0])
                elif done is not None:
                    self._reports.append(done[0])
                return True
        return any(self._work[number][1].prepare() for number in sorted(self._work))

    def _check_bounds(self) -> None:
        """End this process if users' handlers have filled it; called before a step, when the last one is reported.

        It does not end within a streamed transaction, which would only begin again; there only a call's bound ends it.
        """
        if self._context is not None and not any(work.is_begun for _, work in self._work.values()):
            self._context.handlers.bounds.check()
            self._context.execution_bounds.check()

    def _forget_changes(self, now: float) -> None:
        """At intervals, between destination transactions, forget change times that are older than needed."""
        times = self._times
        if times is None or self._context is None or any(work.is_begun for _, work in self._work.values()):
            return
        if self._forget_at is None:
            self._forget_at = now + FORGET_EVERY_S
        elif now >= self._forget_at:
            self._sample_times(self._context.session)
            forgotten = self._context.session.forget_changes(age_s=times.age_s, count=times.count)
            self._forget_at = now + (FORGET_AGAIN_S if forgotten else FORGET_EVERY_S)

    def _sample_times(self, session: ConflictSession) -> None:
        if self._times is not None:
            session.sample_times(age_s=self._times.age_s, every_s=FORGET_EVERY_S / 2)

    def _end(self, number: int, last: ServerMessage) -> None:
        _, work = self._work.pop(number)
        self.rows_applied += work.totals.rows
        self.groups_applied += 1
        self._reports.append(last)

    def _pause(self, error: UnfitTableError, now: float) -> None:
        """Return all groups, so that nothing stays locked.

        The reader, which knows the newer table versions, waits for the ALTER.
        """
        self._roll_back(lambda work: work.given_back())
        self._fits.forget()
        self.unfit, self._wake_at = error, now + _UNFIT_RETRY_S

    def _back_off(self, error: DatabaseUnavailable, now: float) -> None:
        in_doubt = any(work.has_doubt for _, work in self._work.values())
        # A handler's SQL runs before the commit, so a commit in doubt excludes a handler as the cause.
        if self._context is not None and self._context.session.is_closed and not in_doubt:
            self._context.guard.session_lost()
        self._roll_back(lambda work: work.broken(retried=True))
        # The first failure may be a lock or a deadlock, after which the session is still usable.
        is_closed = self._context is not None and self._context.session.is_closed
        if (in_doubt or self._has_failed or is_closed) and self._is_connected:
            self.close()
        self.last_error = f"{error.message} ({error.hint})" if error.hint else error.message
        self._wake_at = now + self._backoff.next_s()
        self._has_failed = True

    def _roll_back(self, tell: Callable[[Work], ServerMessage | None]) -> None:
        """Roll back, and notify every group's work.

        A group that cannot restart (a streamed transaction) is returned completely.

        Args:
            tell: notifies one work; returns the group's last message if that ends it.
        """
        if self._is_connected and self._context is not None:
            self._context.session.rollback()
        for number in sorted(self._work):
            last = tell(self._work[number][1])
            if last is not None:
                self._end(number, last)

    def _session(self) -> DestinationSession:
        if self._context is None:
            raise BugError("the server has no session yet")
        return self._context.session

    def _describe(self, owner: str, name: str) -> DestinationTable | None:
        return self._session().describe(owner, name, fresh=True)

    def _missing_alter(self, version: TableVersion) -> str:
        return self._session().missing_alter(version)

    def _answer(self, *, is_idle: bool) -> ServerStep:
        reports, self._reports = tuple(self._reports), []
        return ServerStep(reports=reports, is_idle=is_idle, wake_at=self._wake_at)


def _new_work(assignment: GroupAssignment, context: WorkContext) -> Work:
    if assignment.mode is GroupMode.EXECUTE_ERROR:
        return ExecuteWork(assignment, context)
    if not assignment.streamed:
        return SetsWork(assignment, context)
    if assignment.mode is GroupMode.ERROR_QUEUE:
        return LargeErrorWork(assignment, context)
    return LargeWork(assignment, context)
