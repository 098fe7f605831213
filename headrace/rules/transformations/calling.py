"""Calling users' transformation functions with the rows of a batch, and checking the results.

Only rows of tables with a function are read. A function changes only values, so the other rows stay unchanged columns.

A function that raises, exceeds its time, leaves too many threads, or returns something forbidden is an error of the
client (`TransformationError`): nothing of the batch continues. The error names the function, its file and line, and the
LCR. It has no values: otherwise `headrace status` would reveal what a masking function hides. A function that ends the
process is not called for the same LCR for ever (`last_call`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.base.errors import ConfigError, HeadraceError
from headrace.lcr.batch import LcrBatch, RowGroup
from headrace.lcr.building import values_of_lcrs
from headrace.lcr.cutting import relabelled, without_unused
from headrace.lcr.lcr_value import DecodeHook
from headrace.lcr.row_lcr import RowLcr, ValueType
from headrace.lcr.scn import scn_text
from headrace.lcr.values import ABSENT, UNCHANGED
from headrace.rules.transformations.custom import CUSTOM_PARAMETERS, LCRS_MAX, CustomTransformation
from headrace.rules.transformations.transformation import TransformationError
from headrace.rules.user_code.last_call import CRASHES_MAX, LastCall
from headrace.rules.user_code.loading import (
    is_interruption,
    load,
    message_of,
    place_of,
    place_of_call,
    place_of_function,
    words_of,
)
from headrace.rules.user_code.threads import THREADS_MAX, threads_of
from headrace.rules.user_code.time_limit import TooLong, time_limit

if TYPE_CHECKING:
    from types import FrameType

    from numpy.typing import NDArray

    from headrace.rules.conditions.values import ValueTypes

__all__ = ["CustomCalls", "loaded_function", "which_lcr"]

_CORRECT = "correct the function and run `headrace up`; or take it out of the rule"
_END_THREADS = (
    "it must end the threads that it starts, or give what they do to one pool that its module makes; then"
    " run `headrace up`"
)
_NOT_VALUES = (ABSENT, UNCHANGED)


def loaded_function(custom: CustomTransformation) -> Callable[[RowLcr], object]:
    """Load a function.

    Raises:
        ConfigError: the function cannot be loaded (`headrace.rules.user_code.loading.load`).
    """
    return load(custom.function, custom.code, CUSTOM_PARAMETERS)


class CustomCalls:
    """Calls the functions of one client.

    Args:
        types: converts values to Python objects and back; None: functions see bytes.
        loaded: functions that are loaded already.
        last_call: outlives functions that end the process; None: no protection.
        decode: converts values to Python objects instead of `types`.
    """

    def __init__(
        self,
        types: ValueTypes | None,
        loaded: Mapping[CustomTransformation, Callable[[RowLcr], object]] | None = None,
        *,
        last_call: LastCall | None = None,
        decode: DecodeHook | None = None,
    ) -> None:
        self._last_call = last_call
        self._decode = decode or (None if types is None else types.decoded)
        self._encode = None if types is None else types.encoded
        self._functions: dict[CustomTransformation, Callable[[RowLcr], object]] = dict(loaded or {})

    def batch(self, batch: LcrBatch, customs: Mapping[int, CustomTransformation]) -> LcrBatch:
        """Apply the functions to a batch.

        Args:
            batch: the batch after the declarative transformations.
            customs: the functions, by index of the table.

        Raises:
            TransformationError: a function failed, or returned something forbidden.
        """
        counts = np.ones(batch.row_count, np.int32)
        made: dict[int, list[list[RowLcr]]] = {}
        for number, group in enumerate(batch.groups):
            custom = customs.get(group.table)
            if custom is not None:
                made[number] = [self._row(batch, row, custom) for row in group.row_numbers.tolist()]
                counts[group.row_numbers] = [len(each) for each in made[number]]
        numbers = np.zeros(batch.row_count + 1, np.int32)
        np.cumsum(counts, out=numbers[1:])
        groups = [
            _rebuilt(batch, group, made[number], numbers)
            if number in made
            else replace(group, row_numbers=numbers[group.row_numbers])
            for number, group in enumerate(batch.groups)
        ]
        changed = replace(batch, groups=tuple(group for group in groups if group.row_count))
        if bool((counts == 1).all()):
            return changed
        return without_unused(
            relabelled(
                replace(
                    changed,
                    truncates=tuple(
                        replace(each, row_number=int(numbers[each.row_number])) for each in batch.truncates
                    ),
                    transactions=replace(batch.transactions, first_row=numbers[batch.transactions.first_row]),
                )
            )
        )

    def _row(self, batch: LcrBatch, row: int, custom: CustomTransformation) -> list[RowLcr]:
        """Return the LCRs that a function makes of one."""
        lcr = RowLcr(batch, row, decode=self._decode, encode=self._encode)
        if self._last_call is None:
            return self._called(lcr, batch, row, custom)
        ends = self._last_call.begin(str(custom.function), lcr.scn, lcr.position)
        try:
            if ends >= CRASHES_MAX:
                raise _failure(
                    batch,
                    row,
                    f"{custom.function} is not called again: {ends} processes ended while it ran for this LCR",
                    _CORRECT,
                )
            return self._called(lcr, batch, row, custom)
        finally:
            self._last_call.end(refused=ends >= CRASHES_MAX)

    def _note_late(self, frame: FrameType, batch: LcrBatch, row: int, custom: CustomTransformation) -> None:
        """Record that a running call has exceeded its time; called by the watchdog's thread."""
        if self._last_call is not None:
            what = (
                f"{custom.function} has not ended within {custom.timeout_s:g} s, and waits at"
                f" {place_of_call(frame, custom.code)}"
            )
            self._last_call.late = _failure(batch, row, what, "").message

    def _called(self, lcr: RowLcr, batch: LcrBatch, row: int, custom: CustomTransformation) -> list[RowLcr]:
        function, threads = self._functions.get(custom), threads_of(str(custom.function))
        try:
            if function is None:
                function = self._functions[custom] = loaded_function(custom)
            with (
                threads.call(),
                time_limit(custom.timeout_s, _never, late=lambda frame: self._note_late(frame, batch, row, custom)),
            ):
                result = function(lcr)
            found = _lcrs(result, custom)
            for each in found:
                _check(each, batch, row, custom)
        except TooLong as error:
            raise _failure(
                batch,
                row,
                f"{custom.function} did not end within {custom.timeout_s:g} s; it was at"
                f" {place_of(error, custom.code)}",
                "make it shorter, or raise handler_timeout_s",
            ) from error
        except _ReturnedWrong as error:
            raise _failure(batch, row, f"{custom.function} {error}", error.hint) from error
        except ConfigError as error:
            raise TransformationError(error.message, hint=error.hint) from error
        except BaseException as error:  # SystemExit and KeyboardInterrupt, too, are errors of the transformation
            if is_interruption(error):
                raise
            text = words_of(error) if isinstance(error, HeadraceError) else message_of(error)
            raise _failure(
                batch,
                row,
                f"{custom.function} failed at {place_of(error, custom.code)}: {text}",
                _CORRECT,
            ) from error
        if (left := threads.count) > THREADS_MAX:
            raise _failure(
                batch,
                row,
                f"{custom.function} has left {left} threads running, and {THREADS_MAX} are allowed; it is at"
                f" {place_of_function(function)}",
                _END_THREADS,
            )
        return found


class _ReturnedWrong(Exception):  # noqa: N818 - what is wrong, and how to correct it
    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


def _never() -> bool:
    return False


def which_lcr(batch: LcrBatch, row: int) -> str:
    """Describe the LCR at which a transformation failed, for messages; without values.

    Args:
        batch: before the transformation.
        row: number of the row in it.
    """
    lcr = RowLcr(batch, row)
    return (
        f"LCR: {lcr.command_type} of {lcr.object_owner}.{lcr.object_name}, number {lcr.position + 1} of transaction"
        f" {lcr.transaction_id} of {lcr.source_database_name}, SCN {scn_text(lcr.scn)}"
    )


def _failure(batch: LcrBatch, row: int, what: str, hint: str) -> TransformationError:
    lcr = RowLcr(batch, row)
    return TransformationError(
        f"{what} ({which_lcr(batch, row)})", hint=hint, table=f"{lcr.object_owner}.{lcr.object_name}"
    )


def _lcrs(result: object, custom: CustomTransformation) -> list[RowLcr]:
    if isinstance(result, RowLcr):
        return [result]
    if result is None:
        raise _ReturnedWrong(
            "returned nothing",
            "end it with `return lcr`" + (", or `return []` to discard the change" if custom.is_at_capture else ""),
        )
    if not isinstance(result, list | tuple) or not all(isinstance(each, RowLcr) for each in result):
        raise _ReturnedWrong(f"returned a {type(result).__name__}, and not the LCR", "end it with `return lcr`")
    if not custom.is_at_capture:
        raise _ReturnedWrong(
            f"returned a list of {len(result)} LCRs, which only a capture process's function may",
            "return one LCR; or put it into a rule of the capture process",
        )
    if len(result) > LCRS_MAX:
        raise _ReturnedWrong(f"returned {len(result)} LCRs for one", f"return {LCRS_MAX} at most")
    return list(result)


def _check(lcr: RowLcr, batch: LcrBatch, row: int, custom: CustomTransformation) -> None:
    """Refuse an LCR that differs from the given one in more than values."""
    if lcr.batch is not batch or lcr.row != row:
        raise _ReturnedWrong("returned an LCR of another call", "return the LCR that it got, or copies of it")
    before = RowLcr(batch, row)
    if lcr.tag != before.tag:
        raise _ReturnedWrong(
            "changed the tag, which says who gets the change", "leave it; an apply process's `tag` sets another one"
        )
    if not lcr.is_changed:
        return
    if (lcr.command_type, lcr.object_owner, lcr.object_name) != (
        before.command_type,
        before.object_owner,
        before.object_name,
    ):
        raise _ReturnedWrong(
            f"made {lcr.command_type} of {lcr.object_owner}.{lcr.object_name} of it",
            "let it change values only; rename_table renames, and a DML handler makes other commands",
        )
    if (columns := lcr.table_version().columns) != before.table.columns:
        names = ", ".join(column.name for column in columns)
        raise _ReturnedWrong(
            f"gave it other columns, or in another order, or of other types ({names})",
            "let it change values with set_value; columns are for"
            " delete_columns, rename_column and add_column, which come before the function",
        )
    for kind in (ValueType.OLD, ValueType.NEW):
        _check_values(kind, lcr, before, custom)


def _check_values(kind: ValueType, lcr: RowLcr, before: RowLcr, custom: CustomTransformation) -> None:
    for column, was, value in zip(before.table.columns, before.stored(kind), lcr.stored(kind), strict=True):
        if was == value:
            continue
        if was == UNCHANGED:
            raise _ReturnedWrong(
                f"added the new value of {column.name}, which is stored out of line, and which the UPDATE left alone",
                f'leave it alone where lcr.is_unchanged("{column.name}"): the destination has its value',
            )
        if was in _NOT_VALUES or value in _NOT_VALUES:
            raise _ReturnedWrong(
                f"{'added' if was in _NOT_VALUES else 'deleted'} the {kind.value} value of {column.name}",
                "let it replace values that are there, with set_value",
            )
        if not custom.may_change(column.name):
            raise _ReturnedWrong(
                f"changed {column.name}, which is not among its columns",
                f"add {column.name} to `columns` in the topology file, or leave it as it is",
            )


def _rebuilt(batch: LcrBatch, group: RowGroup, made: Sequence[list[RowLcr]], numbers: NDArray[np.int32]) -> RowGroup:
    """Return a group of the LCRs that were made of each of its rows."""
    lcrs = [lcr for each in made for lcr in each]
    rows = [
        first + place
        for first, each in zip(numbers[group.row_numbers].tolist(), made, strict=True)
        for place in range(len(each))
    ]
    values: dict[ValueType, Any] = {ValueType.OLD: group.old, ValueType.NEW: group.new}
    if len(lcrs) != group.row_count or any(lcr.is_changed for lcr in lcrs) or any(len(each) != 1 for each in made):
        columns = len(batch.tables[group.table].columns)
        values = {
            kind: None if old is None or not lcrs else values_of_lcrs(batch, lcrs, kind, columns)
            for kind, old in values.items()
        }
    return replace(group, row_numbers=np.array(rows, np.int32), old=values[ValueType.OLD], new=values[ValueType.NEW])
