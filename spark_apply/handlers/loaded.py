"""The handlers of an apply process, loaded: which rows go to them, and calling them within a bound of time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
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
]

DML_PARAMETERS = ("lcr", "session")
ERROR_PARAMETERS = ("lcr", "error", "session")
PRECOMMIT_PARAMETERS = ("commit_scn", "session")


_PROMISES = (Awaitable, Generator, AsyncGenerator)  # what returns when nothing of a function has run yet


class AttemptFailed(BaseException):
    """What was taken for done is not, or not for sure: everything is rolled back and done again, one row at a time."""


def load_all(rules: HandlerRules) -> dict[str, Callable[..., Any]]:
    """Load every function, by name.

    Raises:
        ConfigError: one of them cannot be loaded or called (`headrace.rules.user_code.loading`).
    """
    wanted: list[tuple[UserFunction, Sequence[str]]] = [
        (each.function, DML_PARAMETERS) for each in rules.dml if each.function is not None
    ]
    wanted += [(each.function, ERROR_PARAMETERS) for each in rules.errors]
    if rules.precommit is not None:
        wanted.append((rules.precommit, PRECOMMIT_PARAMETERS))
    return {function.name: load(function, rules.code, parameters) for function, parameters in wanted}


class Handlers:
    """What an apply process does with rows besides applying them.

    Args:
        rules: as declared.
        decode, encode: values of LCRs to Python objects and back.

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
        self._places: dict[str, str] = {}  # of the functions that were called, by name: name and place
        self.has_asked = False
        """A call for the last group has run SQL: the next one may too."""

    def dml_of(self, owner: str, name: str, command: Command) -> tuple[DmlHandler, ...]:
        """The DML handlers of a table's rows of one command.

        Args:
            owner: schema of the table at the destination.
            name: of the table in that schema.
            command: of the rows.
        """
        key = (owner, name, command)
        found = self._dml.get(key)
        if found is None:
            found = self._dml[key] = self.rules.dml_of(owner, name, command.name.lower())
        return found

    def error_of(self, owner: str, name: str, command: Command) -> ErrorHandler | None:
        """The error handler of a table's rows of one command.

        Args:
            owner: schema of the table at the destination.
            name: of the table in that schema.
            command: of the rows.
        """
        return self.rules.error_of(owner, name, command.name.lower())

    def handled(self, batch: LcrBatch) -> NDArray[np.bool_] | None:
        """Which rows of a batch go to DML handlers: bool, one per row; None: none does."""
        found: NDArray[np.bool_] | None = None
        for group in batch.groups if self.rules.dml else ():
            version = batch.tables[group.table]
            if self.dml_of(version.owner, version.name, group.command):
                found = np.zeros(batch.row_count, np.bool_) if found is None else found
                found[group.row_numbers] = True
        return found

    def named(self, batch: LcrBatch) -> tuple[str, ...]:
        """The handlers that rows of a batch, and its transactions, are given to, as messages name them."""
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
            function: which one.
            arguments: what it gets.
            holds: whether it waits for the database just now: a statement has a bound of its own, and must not be
                interrupted.

        Raises:
            HandlerError: it raised, had its time, left too many threads, or only returned what would do something; says
                where.
            AttemptFailed: see there.
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
        except (
            BaseException
        ) as error:  # what a user's code raises, SystemExit and KeyboardInterrupt among it, is the transaction's error
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
        """End the call that runs, if its time was over while it waited for the database: behind a statement.

        Raises:
            TooLong: it was.
        """
        if self.bounds.timed is not None:
            self.bounds.timed.check()

    def _place(self, name: str) -> str:
        self._places[name] = f"{name} ({place_of_function(self._functions[name])})"
        return self._places[name]


class ExecutionHandlers(Handlers):
    """Every row LCR goes to one function, which an operator has named.

    Args:
        wanted: the function.
        bounds: of all executions in this process: each has the function loaded anew.
        decode, encode: values of LCRs to Python objects and back.

    Raises:
        ConfigError: the function cannot be loaded, or called with the LCR, the error and the session.
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
        """The function.

        Args:
            owner: of any table.
            name: of any table.
            command: any.
        """
        return self._every

    def handled(self, batch: LcrBatch) -> NDArray[np.bool_] | None:
        """Every row but a TRUNCATE: bool, one per row; None: there is none."""
        found = batch.row_places[0] >= 0
        return found if found.any() else None


NOTHING_LOADED = Handlers()
"""Every row is applied as it comes."""


def loaded_handlers(rules: HandlerRules, decode: DecodeHook, encode: EncodeHook) -> Handlers:
    """The handlers of an apply process; `NOTHING_LOADED` where there are none.

    Args:
        rules: as declared.
        decode: values of LCRs to Python objects.
        encode: and back.

    Raises:
        ConfigError: a function cannot be loaded.
    """
    return NOTHING_LOADED if rules == NO_HANDLERS else Handlers(rules, decode=decode, encode=encode)
