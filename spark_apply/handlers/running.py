"""Handlers inside one destination transaction: the LCRs they execute, the SQL they run, and their errors.

Longer than 500 lines: rows, calls, savepoints and pending writes share the state of one transaction.

Two ways, one result:

- An *attempt* assumes that everything succeeds. Executed LCRs, rows without handlers between them, and statements are
  pending; they are written as sets and in one round trip before the next action that must see them. A handler never
  sees an error from them. Any wrong assumption undoes the whole attempt.
- *One by one*, when everything below is applied: each execute and each statement is written at once behind a savepoint,
  conflict handlers decide, and the handler gets the errors.

So a handler can be called more than once for an LCR. Its effects in the database are committed once; its effects
elsewhere (a file, a message) happen as often as it is called.

Errors of the environment (a lost connection, a lock) are not for handlers: whatever a handler does with them, they undo
the transaction, and it is tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headrace.base.errors import (
    ConflictError,
    DataError,
    HandlerError,
    HeadraceError,
    UnfitTableError,
)
from headrace.databases.ports import HandlerSql, SqlResult
from headrace.lcr.batch import Column, Command, LcrBatch
from headrace.lcr.lcr_value import LcrError
from headrace.lcr.scn import Scn
from headrace.rules.user_code.handlers import HandlerStatement
from headrace.rules.user_code.time_limit import TooLong
from spark_apply.conversation.groups import Failure
from spark_apply.handlers.lcrs import ApplySession, HandledLcr, LcrFailure
from spark_apply.handlers.loaded import AttemptFailed
from spark_apply.handlers.waiting import Rows, Waiting, batches_of
from spark_apply.sets.resolution import handled_conflict
from spark_apply.sets.row_images import RowImages

if TYPE_CHECKING:
    from headrace.databases.ports import ConflictRecord, DestinationSession, DestinationTable
    from headrace.rules.user_code.source import UserFunction
    from spark_apply.handlers.crashes import CrashGuard
    from spark_apply.handlers.loaded import Handlers
    from spark_apply.sets.resolution import Resolution

__all__ = ["Handling", "Writer"]

T = TypeVar("T")


class Writer(Protocol):
    """Writes rows (`spark_apply.sets.conflicts`)."""

    def sets(self, batches: Sequence[LcrBatch]) -> bool:
        """Write rows as sets; False: roll back."""
        ...

    def row(self, batch: LcrBatch, resolution: Resolution, *, resolves: bool) -> Failure | None:
        """Write the one row of a batch behind the session's savepoint; roll back to it if the row fails.

        Args:
            batch: a batch with one row.
            resolution: resolves conflicts, and records their outcomes.
            resolves: whether conflict handlers are asked.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Mark:
    """A savepoint.

    Its own number is unique; the session's number is reused later. It also has the number of conflicts recorded when it
    was set.
    """

    number: int
    place: int
    records: int


class Handling:
    """The handlers of an apply process in one destination transaction.

    Args:
        session: in the transaction.
        handlers: the loaded handlers.
        resolution: resolves conflicts, and records their outcomes.
        writer: writes rows.
        attempts: True: an attempt; False: one by one (the module explains both).
        guard: knows the functions that ended their process or session.
        told: why the executed error transaction failed, passed to DML handlers; None: no error transaction is executed
            through a function.
    """

    def __init__(
        self,
        session: DestinationSession,
        handlers: Handlers,
        resolution: Resolution,
        writer: Writer,
        *,
        attempts: bool,
        guard: CrashGuard,
        told: LcrFailure | None = None,
    ) -> None:
        self._session, self.handlers, self._resolution, self._writer, self._attempts = (
            session,
            handlers,
            resolution,
            writer,
            attempts,
        )
        self._guard, self._told = guard, told
        self._waiting = Waiting()
        self.late_scn: Scn | None = None
        """Commit SCN of the transaction in which a call timed out; None: none."""
        self._is_late = False  # the call timed out while it waited for the database
        self._broken: BaseException | None = None  # the environment's error, whatever the handler did with it
        self._is_calling = False
        self._has_asked = False  # a handler has run SQL: the next one may too
        self._waits = 0  # depth of nested calls to the database
        self._thread = threading.get_ident()
        self._by = ""  # the function being called
        self._dealt_with: list[ConflictRecord] = []  # conflicts met by one row LCR's call that it has not raised
        self._marks: list[_Mark] = []
        self._marked = 0  # number of marks set so far
        # The exception of the last refused LCR, and the row in its way.
        self._refused: tuple[BaseException | None, tuple[str, ...]] = (None, ())
        self._users = self._new_session()
        self._ahead: Callable[[], int | None] | None = None
        guard.begin()

    def _new_session(self) -> ApplySession:
        settings = self._resolution.settings
        return ApplySession(
            run=self._run, mark=self._mark, undo=self._undo, drop=self._drop, apply=settings.apply, site=settings.site
        )

    # ------------------------------------------------------------------ rows

    def follow(self, ahead: Callable[[], int | None]) -> None:
        """Let handled rows follow rows in flight, in an attempt.

        The rows in flight are awaited before any action that must see them.

        Args:
            ahead: waits for the rows in flight (`spark_apply.sets.conflicts.execute_ahead`).

        Raises:
            DataError: raised by `ahead`.
        """
        asked, self.handlers.has_asked = self.handlers.has_asked, False
        if asked:
            ahead()  # now, so that the wait does not count as a handler's call
        self._ahead = ahead

    def plain(self, batch: LcrBatch, numbers: Sequence[int]) -> None:
        """In an attempt, note rows without handlers as written; they are written before any action that must see them.

        Args:
            batch: batch with the rows.
            numbers: numbers of the rows, ascending.

        Raises:
            AttemptFailed: as `flush`.
        """
        if self._waiting.statements:
            self.flush()
        self._waiting.lcrs.append(Rows(batch, numbers))
        if self._has_asked:
            self.flush()  # now, so that the time does not count as a handler's call

    def dml(self, batch: LcrBatch, number: int) -> Failure | None:
        """Pass a row to its DML handlers instead of writing it.

        Args:
            batch: batch with the row.
            number: number of the row.

        Returns:
            None: it is done. Otherwise the transaction must be rolled back.

        Raises:
            AttemptFailed: as `flush`.
        """
        lcr = self._lcr(batch, number)
        mark = None if self._attempts else self._mark()
        self._dealt_with.clear()
        failure = None
        for handler in self.handlers.dml_of(lcr.object_owner, lcr.object_name, Command[lcr.command_type]):
            if handler.function is not None:
                arguments = (lcr, self._users) if self._told is None else (lcr, self._told, self._users)
                failure = self._call(handler.function, *arguments, at=lcr)
            else:
                failure = self._statements(handler.statements, lcr)
            if failure is not None:
                break
        if mark is not None and failure is None:
            self._drop(mark)
        elif mark is not None:
            self._undo(mark)
        if failure is None:
            self._resolution.records += self._dealt_with
            return None
        images, show = RowImages.of(batch, number), self._resolution.settings.show
        readable = [
            f"{kind}.{text}"
            for kind, values in (("old", images.old), ("new", images.new))
            for text in images.texts(values, show)
        ]
        return self.error(batch, number, replace(failure, readable=(*readable, *failure.readable)))

    def error(self, batch: LcrBatch, number: int, failure: Failure) -> Failure | None:
        """Pass a failed row to the error handler of its table.

        Args:
            batch: batch with the row.
            number: number of the row; nothing of it is written.
            failure: its failure.

        Returns:
            None: the handler has dealt with it. Otherwise the transaction must be rolled back.
        """
        groups, _ = batch.row_places
        group = int(groups[number])
        if group < 0 or self._attempts:
            return failure
        version, command = batch.tables[batch.groups[group].table], batch.groups[group].command
        handler = self.handlers.error_of(version.owner, version.name, command)
        if handler is None:
            return failure
        lcr = self._lcr(batch, number)
        mark = self._mark()
        self._dealt_with.clear()
        told = LcrFailure(kind=failure.conflict_type, number=failure.sqlstate, message=failure.message)
        again = self._call(handler.function, lcr, told, self._users, at=lcr)
        if again is None:
            self._drop(mark)
            met = handled_conflict(self._resolution.settings, failure, batch, number, str(handler.function))
            self._resolution.records += [*([] if met is None else [met]), *self._dealt_with]
            return None
        self._undo(mark)
        return replace(failure, message=f"{failure.message}; {again.message}")

    def precommit(self, commit_scns: Sequence[int]) -> Failure | None:
        """Call the precommit handler for source transactions, in order."""
        function = self.handlers.rules.precommit
        for scn in commit_scns if function is not None else ():
            assert function is not None
            failure = self._call(function, scn, self._users, at=None)
            if failure is not None:
                return failure
        return None

    def flush(self) -> None:
        """Write everything pending.

        Raises:
            AttemptFailed: an assumption about a pending write was wrong; roll back.
            UnfitTableError: a table was altered meanwhile; roll back.
        """
        waiting, self._waiting = self._waiting, Waiting()
        ahead, self._ahead = self._ahead, None
        self._waits += 1
        try:
            if ahead is not None and ahead() is None:
                raise AttemptFailed
            if waiting.lcrs and not self._writer.sets(batches_of(waiting.lcrs)):
                raise AttemptFailed
            if waiting.statements:
                self._session.run_sql(waiting.statements, timeout_s=self.handlers.rules.timeout_s)
        except (DataError, LcrError) as error:
            raise AttemptFailed from error
        except UnfitTableError as error:
            if _is_altered(error):
                raise
            raise AttemptFailed from error
        finally:
            self._waits -= 1

    # ------------------------------------------------------------------ calls from handlers

    def _execute(self, lcr: HandledLcr, resolves: bool) -> None:  # noqa: FBT001 - see `HandledLcr`
        self._check_caller()
        if self._attempts:
            if self._waiting.statements:
                self._guarded(self.flush)
            # Later changes by the handler must not affect the executed LCR.
            self._waiting.lcrs.append(lcr.snapshot() if lcr.is_changed else Rows(lcr.batch, (lcr.row,)))
            return
        (one,) = batches_of([lcr])
        try:
            failure = self._guarded(lambda: self._writer.row(one, self._resolution, resolves=resolves))
        except UnfitTableError as error:
            if _is_altered(error):
                raise
            hint = "" if error.hint in error.message else error.hint  # not twice
            raise LcrError(f"the LCR does not fit its table: {error.message}", hint=hint) from error
        if failure is None:
            return
        raised: HeadraceError = (
            ConflictError(failure.message, conflict_type=failure.conflict_type, sqlstate=failure.sqlstate)
            if failure.conflict_type
            else HandlerError(failure.message, sqlstate=failure.sqlstate)
        )
        if met := handled_conflict(self._resolution.settings, failure, one, 0, self._by):
            self._dealt_with.append(replace(met, position=lcr.position))
        # The executed LCR's values are omitted: the error transaction has the LCR as it arrived.
        self._refused = raised, tuple(text for text in failure.readable if not text.startswith(("old.", "new.")))
        raise raised

    def _run(self, sql: str, values: tuple[Any, ...]) -> SqlResult:
        self._check_caller()
        self._has_asked = self.handlers.has_asked = True
        statement = HandlerSql(sql=sql, values=values)
        if self._attempts:

            def attempt() -> SqlResult:
                self.flush()
                try:
                    return self._session.run_sql([statement], timeout_s=self.handlers.rules.timeout_s)[0]
                except DataError as error:
                    raise AttemptFailed from error

            return self._guarded(attempt)
        mark = self._mark()
        try:
            (result,) = self._guarded(
                lambda: self._session.run_sql([statement], timeout_s=self.handlers.rules.timeout_s)
            )
        except DataError as error:
            self._undo(mark)
            raise HandlerError(
                error.message, hint=error.hint, sqlstate=str(error.context.get("sqlstate", ""))
            ) from error
        self._drop(mark)
        return result

    def _mark(self) -> int:
        self._check_caller(outside=True)
        self._has_asked = self.handlers.has_asked = True
        if self._attempts:  # pending writes must not be undone together with what follows the mark
            self._guarded(self.flush)

        def set_mark() -> int:
            self._marked += 1
            self._marks.append(_Mark(self._marked, self._session.mark(), len(self._resolution.records)))
            return self._marked

        return self._guarded(set_mark)

    def _undo(self, mark: int) -> None:
        self._check_caller(outside=True)
        at = self._known(mark)
        self._waiting = Waiting()

        def undo() -> None:
            self._session.undo_to_mark(at.place)
            self._forget(at)
            del self._resolution.records[at.records :]

        self._guarded(undo, is_error=True)

    def _drop(self, mark: int) -> None:
        self._check_caller(outside=True)
        at = self._known(mark)
        if self._attempts:
            self._guarded(self.flush)

        def drop() -> None:
            self._session.drop_mark(at.place)
            self._forget(at)

        self._guarded(drop)

    def _known(self, mark: int) -> _Mark:
        """Return a mark that still stands.

        Raises:
            HandlerError: it ended together with a mark set before it.
        """
        found = next((each for each in self._marks if each.number == mark), None)
        if found is None:
            raise HandlerError(
                "a savepoint ended after the one that encloses it",
                hint="end the savepoint that was begun last first, as nested `with` does",
            )
        return found

    def _forget(self, mark: _Mark) -> None:
        """Forget a mark and all later ones."""
        del self._marks[self._marks.index(mark) :]

    # ------------------------------------------------------------------ inside

    def _lcr(self, batch: LcrBatch, number: int) -> HandledLcr:
        return HandledLcr(
            batch,
            number,
            self._execute,
            column_at=self._column_at,
            decode=self.handlers.decode,
            encode=self.handlers.encode,
        )

    def _column_at(self, owner: str, name: str, column_name: str) -> Column | None:
        """Return a column of the destination, as a source would describe a value that is written into it."""
        self._check_caller()
        table = self._guarded(lambda: self._described(owner, name))
        found = (
            None if table is None else next((column for column in table.columns if column.name == column_name), None)
        )
        if found is None:
            return None
        return Column(
            name=column_name,
            type_name=found.base_type or found.type_name,
            type_number=found.type_number,
            type_modifier=found.type_modifier,
        )

    def _described(self, owner: str, name: str) -> DestinationTable | None:
        try:
            return self._session.describe(owner, name)
        except (DataError, UnfitTableError) as error:
            if self._ahead is None:
                raise
            raise AttemptFailed from error  # an error of the rows in flight, which were awaited

    def _statements(self, statements: Sequence[HandlerStatement], lcr: HandledLcr) -> Failure | None:
        """Run the statements of one statement DML handler; each gets the LCR as it arrived."""
        for statement in statements:
            self._is_calling = True
            try:
                if statement.executes is not None:
                    lcr.execute(statement.executes)
                elif self._attempts:
                    if self._waiting.lcrs:
                        self._guarded(self.flush)
                    self._waiting.statements.append(self._bound(statement, lcr))
                else:
                    self._run(statement.sql, self._bound(statement, lcr).values)
            except (LcrError, ConflictError, HandlerError) as error:
                return self._failure(f"statement handler {statement.text!r}: {error.message_and_hint}", error, lcr)
            finally:
                self._is_calling = False
            self._raise_broken()
        return None

    def _bound(self, statement: HandlerStatement, lcr: HandledLcr) -> HandlerSql:
        return HandlerSql(sql=statement.sql, values=tuple(_value(bind, lcr) for bind in statement.binds))

    def _call(self, function: UserFunction, *arguments: object, at: HandledLcr | None) -> Failure | None:
        scn = Scn(int(arguments[0])) if at is None else at.commit_scn or at.scn  # type: ignore[call-overload]
        if problem := self._guarded(lambda: self._guard.problem(function, scn)):
            return self._failure(problem, None, at)
        self._is_calling, self._by, self._is_late = True, str(function), False
        depth = len(self._marks)
        try:
            self.handlers.call(function, *arguments, holds=self._holds)
        except AttemptFailed as error:
            if self._is_late:
                self.late_scn = scn
            self._end_marks(depth)
            self._raise_broken(error)
            raise
        except HandlerError as error:
            if isinstance(error.__cause__, TooLong):
                self.late_scn = scn
            self._end_marks(depth)
            self._raise_broken(error)
            return self._failure(error.message_and_hint, error, at)
        finally:
            self._is_calling = False
            if at is not None:
                at.end()
            self._users.end()  # a session that the handler kept does nothing later
            self._users = self._new_session()
        is_open = self._end_marks(depth)
        self._raise_broken()
        if is_open:
            return self._failure(f"{function} left a savepoint open", None, at)
        return None

    def _holds(self) -> bool:
        """Return whether a call that timed out waits for the database, which must not be interrupted."""
        is_waiting = self._waits > 0
        self._is_late = self._is_late or is_waiting
        return is_waiting

    def _end_marks(self, depth: int) -> bool:
        """Undo everything after marks that a call left open; return whether there were any."""
        if len(self._marks) <= depth:
            return False
        mark = self._marks[depth]
        if self._broken is None or isinstance(self._broken, AttemptFailed):
            self._waiting = Waiting()
            self._session.undo_to_mark(mark.place)
        self._forget(mark)
        del self._resolution.records[mark.records :]
        return True

    def _failure(self, message: str, error: HeadraceError | None, lcr: HandledLcr | None) -> Failure:
        cause: BaseException | None = error
        while cause is not None and not (
            isinstance(cause, HeadraceError) and (cause.context.get("conflict_type") or cause.context.get("sqlstate"))
        ):
            cause = cause.__cause__
        context = cause.context if isinstance(cause, HeadraceError) else {}
        return Failure(
            position=-1 if lcr is None else lcr.position,
            conflict_type=str(context.get("conflict_type", "")),
            sqlstate=str(context.get("sqlstate", "")),
            message=message,
            readable=self._refused[1] if cause is self._refused[0] else (),
        )

    def _guarded(self, call: Callable[[], T], *, is_error: bool = False) -> T:
        """Call the database; remember an error that is due neither to data nor to the handler, even if it is caught.

        `is_error`: another error is already to be reported.
        """
        self._waits += 1
        try:
            result = call()
        except (DataError, LcrError, HandlerError):
            raise
        except UnfitTableError as error:
            if _is_altered(error):
                self._broken = self._broken or error
            raise
        except TooLong as error:
            # It came between two lines of this code, not in the database's protocol; what it interrupted is undone.
            if not self._attempts:
                raise
            self._broken = self._broken or AttemptFailed()
            raise AttemptFailed from error
        except BaseException as error:
            self._broken = self._broken or error
            raise
        finally:
            self._waits -= 1
        if not is_error:
            # Otherwise a function that repeats statements would hardly ever be interrupted between two of them.
            self.handlers.check_time()
        return result

    def _raise_broken(self, instead_of: BaseException | None = None) -> None:
        if self._broken is not None:
            broken, self._broken = self._broken, None
            raise broken from instead_of

    def _check_caller(self, *, outside: bool = False) -> None:
        if not self._is_calling and not outside:
            raise HandlerError("an LCR and its session can only be used inside the handler's call that got them")
        if threading.get_ident() != self._thread:
            raise HandlerError(
                "a handler used its session in another thread", hint="use it in the thread that called the handler"
            )
        if self._broken is not None:
            raise AttemptFailed


def _is_altered(error: UnfitTableError) -> bool:
    """Return whether a table has changed since it was described.

    That is not a handler's error: everything is redone after all tables are described anew. Their old descriptions
    would also serve to plan the next groups.
    """
    return bool(error.context.get("altered"))


def _value(bind: str, lcr: HandledLcr) -> object:
    """Return the value of a statement's bind. A column that the LCR does not carry is NULL, as in the manuals."""
    image, dot, column = bind.partition(".")
    if dot:
        return lcr.get_value(image, column)
    if bind == "source_time":
        return lcr.source_time
    value = getattr(lcr, bind)
    return int(value) if bind in ("scn", "commit_scn", "transaction_id") and value is not None else value
