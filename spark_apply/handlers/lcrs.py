"""What a handler sees: the row LCR that it may execute, the session for its SQL, and the error that an error handler gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.base.errors import HandlerError
from headrace.databases.ports import SqlResult
from headrace.lcr.lcr_value import DecodeHook, EncodeHook, LcrError, LcrValue
from headrace.lcr.row_lcr import RowLcr, ValueType

if TYPE_CHECKING:
    from headrace.lcr.batch import Column, LcrBatch

__all__ = ["ApplySession", "HandledLcr", "LcrFailure"]

_ENDED = "an LCR and its session can only be used inside the handler's call that got them"


class HandledLcr(RowLcr):
    """A row LCR in a handler: as `RowLcr`, and it can be executed. Only usable inside the call that it was given to.

    Args:
        batch: where the row is.
        row: its number in the batch.
        execute: applies an LCR; its second argument says whether conflicts are resolved.
        column_at: the column of a table at the destination, by the table's schema and name and its own; None: there is
            none.
        decode, encode: values to Python objects and back.
    """

    __slots__ = ("_call", "_column_at", "_execute")

    def __init__(
        self,
        batch: LcrBatch,
        row: int,
        execute: Callable[[HandledLcr, bool], None],
        *,
        column_at: Callable[[str, str, str], Column | None],
        decode: DecodeHook | None = None,
        encode: EncodeHook | None = None,
    ) -> None:
        super().__init__(batch, row, decode=decode, encode=encode)
        self._execute, self._column_at, self._call = execute, column_at, _Call()

    def end(self) -> None:
        """The call that got it is over, for its copies too."""
        self._call.has_ended = True

    def snapshot(self) -> HandledLcr:
        """The LCR as it is now, for what is written behind the call: the end of the call is not its own."""
        made = self.copy()
        made._call = _Call()  # noqa: SLF001 - its own
        return made

    def execute(self, conflict_resolution: bool) -> None:  # noqa: FBT001 - the manuals' parameter
        """Apply the LCR as it is now, in the transaction of the handler. No other handler is called.

        Args:
            conflict_resolution: conflict handlers decide what conflicts; False: a conflict is an error.

        Raises:
            ConflictError: a conflict that nobody resolved; the transaction can go on without it.
            HandlerError: the destination refuses the row; the transaction can go on without it.
            LcrError: `conflict_resolution` is neither True nor False, or the LCR does not fit its table.
        """
        if not isinstance(conflict_resolution, bool):
            raise LcrError(
                "execute needs conflict_resolution", hint="write lcr.execute(conflict_resolution=True), or False"
            )
        self._check()
        self._execute(self, conflict_resolution)

    def _values(self) -> dict[ValueType, dict[str, LcrValue]]:
        self._check()
        return super()._values()

    def _column(self, column_name: str) -> Column:
        found = super()._column(column_name)
        if found.type_name:
            return found
        at_destination = self._column_at(self.object_owner, self.object_name, column_name)
        if at_destination is None:
            raise LcrError(
                f"neither the LCR nor {self.object_owner}.{self.object_name} at the destination has a column"
                f" {column_name}",
                column=column_name,
                hint="correct the name; set object_owner and object_name before columns of another table are added",
            )
        return at_destination

    def _check(self) -> None:
        if self._call.has_ended:
            raise HandlerError(_ENDED)


class _Call:
    """The call of a handler that an LCR was made for."""

    __slots__ = ("has_ended",)

    def __init__(self) -> None:
        self.has_ended = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LcrFailure:
    """Why a row LCR failed, for an error handler.

    Args:
        kind: of the conflict ("insert_exists", "update_missing", ...); empty: another error.
        number: the database's own number of the error (SQLSTATE); empty: it has none.
        message: what happened.
        position: 0-based, of the LCR that failed, in its transaction; -1: none did, or it is not known which.
    """

    kind: str
    number: str
    message: str
    position: int = -1


class ApplySession:
    """The destination transaction of the rows, for a handler's SQL. Only usable inside the call that it was given to.

    It cannot begin, commit or roll back: that is the apply process's. `with session.savepoint():` undoes what is inside
    when it raises.

    Args:
        run: runs one statement.
        mark, undo, drop: set a savepoint, go back to it, forget it; each has another number.
        apply: the apply process.
        site: where it applies.
    """

    def __init__(
        self,
        *,
        run: Callable[[str, tuple[Any, ...]], SqlResult],
        mark: Callable[[], int],
        undo: Callable[[int], None],
        drop: Callable[[int], None],
        apply: str,
        site: str,
    ) -> None:
        self._run, self._mark, self._undo, self._drop = run, mark, undo, drop
        self.apply_name, self.site = apply, site
        self._has_ended = False

    def end(self) -> None:
        """The call that got it is over."""
        self._has_ended = True

    def _check(self) -> None:
        if self._has_ended:
            raise HandlerError(_ENDED)

    def _asked(self, sql: str, values: tuple[Any, ...]) -> SqlResult:
        self._check()
        if not isinstance(sql, str):
            raise HandlerError(
                f"a statement is a text, and not of type {type(sql).__name__}",
                hint="write SQL as a text, and values as $1, $2, ...",
            )
        return self._run(sql, values)

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401 - what psycopg takes
        """Run one SELECT, INSERT, UPDATE, DELETE or MERGE, and return the rows that it answers.

        Name tables with their schema: apply's sessions have an empty search_path.

        Args:
            sql: values stand as $1, $2, ...
            values: Python objects, None for NULL; or values of the LCR (`lcr.get_value`), which are written as they
                are.

        Raises:
            HandlerError: the database refuses it, or it is another kind of statement. The transaction can go on without
                it.
        """
        return list(self._asked(sql, values).rows)

    def execute_count(self, sql: str, *values: Any) -> int:  # noqa: ANN401 - what psycopg takes
        """Run one statement as `execute` does, and return how many rows it changed.

        Args:
            sql: values stand as $1, $2, ...
            values: as `execute` takes them.
        """
        return self._asked(sql, values).row_count

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """What is done inside is undone when it raises; the exception goes on."""
        self._check()
        mark = self._mark()
        try:
            yield
        except BaseException:
            if not self._has_ended:  # one that was kept and collected later: its call has undone it
                self._undo(mark)
            raise
        self._check()
        self._drop(mark)
