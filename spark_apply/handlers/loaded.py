"""Loaded handlers of an apply process: which rows go to them, and calls to them within a time limit."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.base.errors import HandlerError
from headrace.rules.user_code.handlers import (
    NO_HANDLERS,
    DmlHandler,
    ErrorHandler,
    ExecutionHandler,
    HandlerRules,
)
from headrace.rules.user_code.loading import is_interruption, load, place_of, place_of_function, words_of
from headrace.rules.user_code.time_limit import TooLong, time_limit
from spark_apply.handlers.process_bounds import ProcessBounds, TimedCall

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.lcr.batch import Command, LcrBatch
    from headrace.lcr.lcr_value import DecodeHook, EncodeHook
    from headrace.rules.user_code.source import UserFunction

__all__ = [
    "DML_PARAMETERS",
    "ERROR_PARAMETERS",
    "NOTHING_LOADED",
    "PRECOMMIT_PARAMETERS",
    "AttemptFailed",
    "ExecutionHandlers",
    "Handlers",
    "load_all",
    "loaded_handlers",
    "other_order",
]

DML_PARAMETERS = ("lcr", "session")
ERROR_PARAMETERS = ("lcr", "error", "session")
PRECOMMIT_PARAMETERS = ("commit_scn", "session")


_PROMISES = (Awaitable, Generator, AsyncGenerator)  # returned by a function before any of its code has run


class AttemptFailed(BaseException):
    """An assumption of an attempt is wrong or uncertain: roll everything back and redo it, one row at a time."""


def load_all(rules: HandlerRules) -> dict[str, Callable[..., Any]]:
    """Load every function, by name.

    Raises:
        ConfigError: a function cannot be loaded or called (`headrace.rules.user_code.loading`).
    """
    return {function.name: load(function, rules.code, parameters) for function, parameters in _called_with(rules)}


def other_order(rules: HandlerRules, functions: Mapping[str, Callable[..., Any]]) -> Iterator[tuple[str, str]]:
    """Yield functions whose parameters have the right names in another order: what is wrong, how to fix it.

    Args:
        rules: handlers as declared.
        functions: the loaded functions by name.
    """
    for function, parameters in _called_with(rules):
        try:
            names = list(inspect.signature(functions[function.name]).parameters)[: len(parameters)]
        except ValueError:  # a builtin without a signature
            continue
        if names != list(parameters) and sorted(names) == sorted(parameters):
            yield (
                f"{function.name} takes ({', '.join(names)}), and is called with ({', '.join(parameters)}), by position",
                f"write def {function.name.partition(':')[2]}({', '.join(parameters)})",
            )


def _called_with(rules: HandlerRules) -> Iterator[tuple[UserFunction, Sequence[str]]]:
    """Yield every function with the names of its parameters."""
    yield from ((each.function, DML_PARAMETERS) for each in rules.dml if each.function is not None)
    yield from ((each.function, ERROR_PARAMETERS) for each in rules.errors)
    if rules.precommit is not None:
        yield rules.precommit, PRECOMMIT_PARAMETERS


class Handlers:
    """The handlers of an apply process.

    Args:
        rules: handlers as declared.
        decode, encode: convert values of LCRs to Python objects and back.

    Raises:
        ConfigError: a function cannot be loaded.
    """

    def __init__(
        self, rules: HandlerRules = NO_HANDLERS, *, decode: DecodeHook | None = None, encode: EncodeHook | None = None
    ) -> None:
        self.rules, self.decode, self.encode = rules, decode, encode
        self._functions = load_all(rules)
        self._dml: dict[tuple[str, str, Command], tuple[DmlHandler, ...]] = {}
        self.bounds = ProcessBounds()
        self._places: dict[str, str] = {}  # of the functions called so far: name -> name and place
        self.has_asked = False
        """Whether a call for the last group ran SQL: the next call may too."""

    def dml_of(self, owner: str, name: str, command: Command) -> tuple[DmlHandler, ...]:
        """Return the DML handlers of a table's rows of one command.

        Args:
            owner: schema of the table at the destination.
            name: name of the table in that schema.
            command: command of the rows.
        """
        key = (owner, name, command)
        found = self._dml.get(key)
        if found is None:
            found = self._dml[key] = self.rules.dml_of(owner, name, command.name.lower())
        return found

    def error_of(self, owner: str, name: str, command: Command) -> ErrorHandler | None:
        """Return the error handler of a table's rows of one command; None: none.

        Args:
            owner: schema of the table at the destination.
            name: name of the table in that schema.
            command: command of the rows.
        """
        return self.rules.error_of(owner, name, command.name.lower())

    def handled(self, batch: LcrBatch) -> NDArray[np.bool_] | None:
        """Return which rows of a batch go to DML handlers: bool, one per row; None: none does."""
        found: NDArray[np.bool_] | None = None
        for group in batch.groups if self.rules.dml else ():
            version = batch.tables[group.table]
            if self.dml_of(version.owner, version.name, group.command):
                found = np.zeros(batch.row_count, np.bool_) if found is None else found
                found[group.row_numbers] = True
        return found

    def named(self, batch: LcrBatch) -> tuple[str, ...]:
        """Return the handlers for a batch's rows and its transactions, as messages name them."""
        keys = {
            (batch.tables[group.table].owner, batch.tables[group.table].name, group.command) for group in batch.groups
        }
        found = [handler for key in sorted(keys) for handler in self.dml_of(*key)]
        precommit = [] if self.rules.precommit is None else [str(self.rules.precommit)]
        texts = [
            text
            for each in found
            for text in ([str(each.function)] if each.function else [repr(one.text) for one in each.statements])
        ]
        return tuple(dict.fromkeys([*texts, *precommit]))

    def call(self, function: UserFunction, *arguments: object, holds: Callable[[], bool]) -> None:
        """Call a user's function.

        Args:
            function: the function.
            arguments: its arguments.
            holds: whether it waits for the database now. A statement has its own bound and must not be interrupted.

        Raises:
            HandlerError: it raised, timed out, left too many threads, or returned without running (a coroutine or a
                generator). The message names the place.
            AttemptFailed: an assumption of the attempt failed during the call.
        """
        called = self._places.get(function.name) or self._place(function.name)
        self.bounds.timed = timed = TimedCall(called, self.rules.code, self.rules.timeout_s, holds)
        try:
            with self.bounds.call(called), time_limit(self.rules.timeout_s, timed.holds):
                returned = self._functions[function.name](*arguments)
        except AttemptFailed:
            raise
        except TooLong as error:
            raise HandlerError(
                f"{function} did not end within {self.rules.timeout_s:g} s; it was at"
                f" {place_of(error, self.rules.code)}",
                hint="make it shorter, or raise handler_timeout_s",
            ) from error
        except BaseException as error:
            # Anything that a user's code raises, even SystemExit and KeyboardInterrupt, is the transaction's error.
            if is_interruption(error):
                raise
            raise HandlerError(f"{function} failed at {place_of(error, self.rules.code)}: {words_of(error)}") from error
        finally:
            self.bounds.timed = None
        if returned is not None and isinstance(returned, _PROMISES):
            if isinstance(returned, Coroutine):
                returned.close()  # else Python warns of it later, without the function's name
            raise HandlerError(
                f"{function} returned a {type(returned).__name__}, and nothing of it ran",
                hint="write the function without async and yield, and call what it calls",
            )
        self.bounds.check_transaction(called)

    def check_time(self) -> None:
        """End the running call if it timed out while it waited for the database; called after a statement.

        Raises:
            TooLong: it timed out.
        """
        if self.bounds.timed is not None:
            self.bounds.timed.check()

    def _place(self, name: str) -> str:
        self._places[name] = f"{name} ({place_of_function(self._functions[name])})"
        return self._places[name]


class ExecutionHandlers(Handlers):
    """Sends every row LCR to one function, which an operator has named.

    Args:
        wanted: the function.
        bounds: shared by all executions in this process; each execution loads the function anew.
        decode, encode: convert values of LCRs to Python objects and back.

    Raises:
        ConfigError: the function cannot be loaded, or cannot be called with the LCR, the error and the session.
    """

    def __init__(
        self,
        wanted: ExecutionHandler,
        bounds: ProcessBounds,
        *,
        decode: DecodeHook | None = None,
        encode: EncodeHook | None = None,
    ) -> None:
        super().__init__(HandlerRules(code=wanted.code, timeout_s=wanted.timeout_s), decode=decode, encode=encode)
        self.bounds = bounds
        self._functions = {wanted.function.name: load(wanted.function, wanted.code, ERROR_PARAMETERS)}
        self._every = (DmlHandler(owner="", name="", function=wanted.function),)

    def dml_of(self, owner: str, name: str, command: Command) -> tuple[DmlHandler, ...]:  # noqa: ARG002 - every table's
        """Return the function, for every table and command. See `Handlers.dml_of`."""
        return self._every

    def handled(self, batch: LcrBatch) -> NDArray[np.bool_] | None:
        """Return every row but a TRUNCATE: bool, one per row; None: there is none."""
        found = batch.row_places[0] >= 0
        return found if found.any() else None


NOTHING_LOADED = Handlers()
"""No handlers: every row is applied as it arrives."""


def loaded_handlers(rules: HandlerRules, decode: DecodeHook, encode: EncodeHook) -> Handlers:
    """Return the handlers of an apply process; `NOTHING_LOADED` if none are declared.

    Args:
        rules: handlers as declared.
        decode: converts values of LCRs to Python objects.
        encode: converts them back.

    Raises:
        ConfigError: a function cannot be loaded.
    """
    return NOTHING_LOADED if rules == NO_HANDLERS else Handlers(rules, decode=decode, encode=encode)
