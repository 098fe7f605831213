"""Users' code in an apply process, as frozen data.

    procedure DML handler   a function that gets a row LCR instead of the destination; it may execute it, changed or not
    statement DML handler   SQL statements that run in order instead of a row LCR; "lcr.execute true" is one of them
    error handler           a function that gets a row LCR that failed, with the error; after the conflict handlers
    precommit handler       a function that is called once for each source transaction, before the commit

All of it runs inside the destination transaction of the rows. A table and operation has a procedure DML handler, or
statement DML handlers, or neither; an error handler only where there is no procedure DML handler.

Source: Oracle Streams Replication Administrator's Guide, "Handlers and Row LCR Processing"; Streams Concepts, "Message
    Processing Options for an Apply Process".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from headrace.base.errors import counted
from headrace.base.plain_data import AsBytes, SettingsAsBytes
from headrace.rules.user_code.source import NO_CODE, UserCode, UserFunction

__all__ = [
    "EXECUTE_FALSE",
    "EXECUTE_TRUE",
    "NO_HANDLERS",
    "OPERATIONS",
    "TIMEOUT_DEFAULT_S",
    "DmlHandler",
    "ErrorHandler",
    "ExecutionHandler",
    "HandlerRules",
    "HandlerStatement",
]

OPERATIONS = ("insert", "update", "delete")
TIMEOUT_DEFAULT_S = 30.0
"""Limit of one call: far longer than a row should take, and shorter than a lag that nobody notices."""

EXECUTE_TRUE = "lcr.execute true"
EXECUTE_FALSE = "lcr.execute false"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStatement:
    """One statement of a statement DML handler.

    Args:
        sql: one SELECT, INSERT, UPDATE, DELETE or MERGE with binds as $1, $2, ...; or `EXECUTE_TRUE`, `EXECUTE_FALSE`.
        binds: meaning of each: `old.<column>`, `new.<column>` or an attribute of the LCR.
        text: the text in the file.
    """

    sql: str
    binds: tuple[str, ...] = ()
    text: str = ""

    @property
    def executes(self) -> bool | None:
        """Whether it executes the LCR with conflict resolution (True) or without (False); None: it is SQL."""
        return {EXECUTE_TRUE: True, EXECUTE_FALSE: False}.get(self.sql)


@dataclass(frozen=True, slots=True, kw_only=True)
class DmlHandler:
    """The handling of some row LCRs of a table instead of applying them.

    Args:
        owner: schema of the table at the destination.
        name: name of the table in that schema.
        operations: some of `OPERATIONS`.
        function: a procedure DML handler; None: it has statements.
        statements: its statements, in the order in which they run.
        tables: other tables that its SQL reads or writes, (owner, name): their rows keep their order with its own.
        columns: columns of the table whose old and new values its function needs, even where an UPDATE did not touch
            them.
    """

    owner: str
    name: str
    operations: tuple[str, ...] = OPERATIONS
    function: UserFunction | None = None
    statements: tuple[HandlerStatement, ...] = ()
    tables: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def binds(self) -> tuple[tuple[str, str], ...]:
        """Values that its statements bind: "old" or "new", and the column."""
        found = (bind.partition(".") for statement in self.statements for bind in statement.binds)
        return tuple(dict.fromkeys((image, column) for image, dot, column in found if dot))

    def __str__(self) -> str:
        what = str(self.function) if self.function else counted(len(self.statements), "statement")
        return f"{what} for {', '.join(self.operations)} of {self.owner}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorHandler:
    """The function that is called with a failed row LCR of a table.

    Args:
        owner: schema of the table at the destination.
        name: name of the table in that schema.
        function: called with the LCR, the error and the session.
        operations: some of `OPERATIONS`.
        columns: as for `DmlHandler`.
    """

    owner: str
    name: str
    function: UserFunction
    operations: tuple[str, ...] = OPERATIONS
    columns: tuple[str, ...] = ()

    @property
    def binds(self) -> tuple[tuple[str, str], ...]:
        """Always empty: it has no statements."""
        return ()

    def __str__(self) -> str:
        return f"{self.function} for errors on {', '.join(self.operations)} of {self.owner}.{self.name}"


@dataclass(frozen=True, kw_only=True)
class HandlerRules(SettingsAsBytes):
    """All handlers of an apply process.

    Args:
        code: the modules that its functions need.
        dml: its DML handlers; several for one table and operation have statements, and run in this order.
        errors: its error handlers.
        precommit: its precommit handler.
        timeout_s: limit of one call, seconds.
    """

    code: UserCode = NO_CODE
    dml: tuple[DmlHandler, ...] = ()
    errors: tuple[ErrorHandler, ...] = ()
    precommit: UserFunction | None = None
    timeout_s: float = TIMEOUT_DEFAULT_S

    def dml_of(self, owner: str, name: str, operation: str) -> tuple[DmlHandler, ...]:
        """Return the DML handlers of a table and operation, in order.

        Args:
            owner: schema of the table at the destination.
            name: name of the table in that schema.
            operation: one of `OPERATIONS`.
        """
        return tuple(
            each for each in self.dml if (each.owner, each.name) == (owner, name) and operation in each.operations
        )

    def error_of(self, owner: str, name: str, operation: str) -> ErrorHandler | None:
        """Return the error handler of a table and operation.

        Args:
            owner: schema of the table at the destination.
            name: name of the table in that schema.
            operation: one of `OPERATIONS`.
        """
        return next(
            (each for each in self.errors if (each.owner, each.name) == (owner, name) and operation in each.operations),
            None,
        )

    @cached_property
    def handled(self) -> frozenset[tuple[str, str]]:
        """Tables with a DML handler."""
        return frozenset((each.owner, each.name) for each in self.dml)

    @cached_property
    def ordered(self) -> frozenset[tuple[str, str]]:
        """Tables whose rows keep their order with handled rows: those with a DML handler, and their `tables`."""
        return self.handled | frozenset(table for each in self.dml for table in each.tables)

    def of_rows(self) -> Iterator[tuple[str, DmlHandler | ErrorHandler]]:
        """Yield DML handlers and error handlers, with their places in the topology file."""
        yield from ((f"dml_handlers[{number}]", each) for number, each in enumerate(self.dml))
        yield from ((f"error_handlers[{number}]", each) for number, each in enumerate(self.errors))

    def functions(self) -> Iterator[UserFunction]:
        """Yield every named function."""
        yield from (each.function for each in self.dml if each.function is not None)
        yield from (each.function for each in self.errors)
        if self.precommit is not None:
            yield self.precommit

    def __str__(self) -> str:
        found = [*map(str, self.dml), *map(str, self.errors)]
        return "; ".join([*found, f"{self.precommit} before each commit"] if self.precommit else found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionHandler(AsBytes):
    """A function through which an operator executes error transactions: it gets each of their row LCRs.

    Source: Oracle Database PL/SQL Packages and Types Reference, DBMS_APPLY_ADM.EXECUTE_ERROR, `user_procedure`.

    Args:
        function: called with the LCR, the error and the session.
        code: the modules that it needs.
        timeout_s: limit of one call, seconds.
    """

    function: UserFunction
    code: UserCode = NO_CODE
    timeout_s: float = TIMEOUT_DEFAULT_S


NO_HANDLERS = HandlerRules()
"""No handler: every row is applied unchanged."""
