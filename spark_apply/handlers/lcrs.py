"""A handler's view: the row LCR that it may execute, the session for its SQL, and the error for an error handler."""

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
    """A row LCR in a handler: a `RowLcr` that can be executed. Only usable inside the call that it was given to.

    Args:
        batch: batch with the row.
        row: number of the row in the batch.
        execute: applies an LCR; its second argument says whether conflicts are resolved.
        column_at: returns a column at the destination, by schema, table and column name; None: there is none.
        decode, encode: convert values to Python objects and back.
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
        """Mark the call that got it as over, for its copies too."""
        self._call.has_ended = True

    def snapshot(self) -> HandledLcr:
        """Copy the LCR as it is now, for a write after the call: the copy outlives the call."""
        made = self.copy()
        made._call = _Call()  # noqa: SLF001 - another object of this class
        return made

    def execute(self, conflict_resolution: bool) -> None:  # noqa: FBT001 - the manuals' parameter
        """Apply the LCR as it is now, in the transaction of the handler. No other handler is called.

        Args:
            conflict_resolution: True: conflict handlers resolve conflicts; False: a conflict is an error.

        Raises:
            ConflictError: a conflict was not resolved; the transaction can continue without the LCR.
            HandlerError: the destination refuses the row; the transaction can continue without it.
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
        kind: conflict type ("insert_exists", "update_missing", ...); empty: another error.
        number: the database's error number (SQLSTATE); empty: none.
        message: description of the error.
        position: 0-based position of the failed LCR in its transaction; -1: none failed, or it is unknown.
    """

    kind: str
    number: str
    message: str
    position: int = -1


class ApplySession:
    """The destination transaction of the rows, for a handler's SQL. Only usable inside the call that it was given to.

    It cannot begin, commit or roll back: only the apply process does. `with session.savepoint():` undoes its content if
    it raises.

    Args:
        run: runs one statement.
        mark, undo, drop: set a savepoint, roll back to it, drop it; each savepoint has another number.
        site: the site where it applies.
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
        """Mark the call that got it as over."""
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
        """Run one SELECT, INSERT, UPDATE, DELETE or MERGE, and return its rows.

        Name tables with their schema: apply's sessions have an empty search_path.

        Args:
            sql: the statement, with values as $1, $2, ...
            values: Python objects, None for NULL; or values of the LCR (`lcr.get_value`), which are written unchanged.

        Raises:
            HandlerError: the database refuses the statement, or it is of another kind. The transaction can continue
                without it.
        """
        return list(self._asked(sql, values).rows)

    def execute_count(self, sql: str, *values: Any) -> int:  # noqa: ANN401 - what psycopg takes
        """Run one statement, like `execute`, and return how many rows it changed.

        Args:
            sql: the statement, with values as $1, $2, ...
            values: as `execute` takes them.
        """
        return self._asked(sql, values).row_count

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo everything done inside if it raises; the exception propagates."""
        self._check()
        mark = self._mark()
        try:
            yield
        except BaseException:
            if not self._has_ended:  # a savepoint kept and collected later was undone at the end of its call
                self._undo(mark)
            raise
        self._check()
        self._drop(mark)
