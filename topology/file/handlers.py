"""Users' handlers in a file, for all apply processes or for one, with the code from the folder next to the file.

As with conflict handlers, a list under an apply process replaces the file's own list for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from headrace.base.errors import ConfigError
from headrace.rules.user_code.binds import read_statement
from headrace.rules.user_code.handlers import (
    NO_HANDLERS,
    TIMEOUT_DEFAULT_S,
    DmlHandler,
    ErrorHandler,
    ExecutionHandler,
    HandlerRules,
    HandlerStatement,
)
from headrace.rules.user_code.source import NO_CODE, UserCode, UserFunction, read_folder
from topology.file.document import Path_, read_document
from topology.file.shape.models import ApplyModel, DmlHandlerModel, ErrorHandlerModel, TopologyModel

__all__ = ["Problem", "execution_handler", "read_handlers"]

Problem = tuple[Path_, str, str]
"""Place in the file, problem, fix."""


def read_handlers(
    top: TopologyModel,
    applies: Mapping[str, ApplyModel],
    names: Sequence[str],
    code: UserCode,
) -> tuple[dict[str, HandlerRules], list[Problem]]:
    """Read the handlers of every apply process, and their code.

    Args:
        top: the file.
        applies: its apply processes, as written.
        names: names of all apply processes, including those that the shorthand makes.
        code: of the file's folder.

    Returns:
        The handlers by apply process, and their problems.
    """
    problems: list[Problem] = []
    shared = _Reading(code, top, problems).rules((), top, None)
    found = dict.fromkeys(names, shared)
    for name, model in applies.items():
        if name in found and (model.dml_handlers, model.error_handlers, model.precommit_handler) != (None, None, None):
            found[name] = _Reading(code, top, problems).rules(("applies", name), top, model)
    return found, problems


def execution_handler(file: Path, name: str) -> ExecutionHandler:
    """Return a function through which error transactions are executed, with its current code on disk.

    Args:
        file: the topology file, which names the folder and the time limit.
        name: `module:function`.

    Raises:
        ConfigError: the folder or a module of it cannot be read.
    """
    content = read_document(file).content
    folder, timeout_s = content.get("code"), content.get("handler_timeout_s", TIMEOUT_DEFAULT_S)
    code = NO_CODE if not isinstance(folder, str) else read_folder(file.parent / Path(folder).expanduser(), folder)
    function = UserFunction(name=name, version=code.version_of(name))
    return ExecutionHandler(
        function=function,
        code=code.needed_by([name]),
        timeout_s=float(timeout_s) if isinstance(timeout_s, int | float) else TIMEOUT_DEFAULT_S,
    )


class _Reading:
    """Reads the handlers of one apply process."""

    def __init__(self, code: UserCode, top: TopologyModel, problems: list[Problem]) -> None:
        self._code, self._top, self._problems = code, top, problems

    def rules(self, path: Path_, top: TopologyModel, own: ApplyModel | None) -> HandlerRules:
        """Return the handlers that a file or an apply process lists.

        Args:
            path: of the lists' parent.
            top: the file.
            own: the apply process; None: the file itself.
        """
        dml = top.dml_handlers if own is None or own.dml_handlers is None else own.dml_handlers
        errors = top.error_handlers if own is None or own.error_handlers is None else own.error_handlers
        precommit = top.precommit_handler if own is None or own.precommit_handler is None else own.precommit_handler
        dml_path = path if own is not None and own.dml_handlers is not None else ()
        errors_path = path if own is not None and own.error_handlers is not None else ()
        precommit_path = path if own is not None and own.precommit_handler is not None else ()
        self._problems += _excluded((*dml_path, "dml_handlers"), dml, (*errors_path, "error_handlers"), errors)
        found = HandlerRules(
            dml=tuple(self._dml((*dml_path, "dml_handlers", place), model) for place, model in enumerate(dml)),
            errors=tuple(
                self._error((*errors_path, "error_handlers", place), model) for place, model in enumerate(errors)
            ),
            precommit=None if precommit is None else self._function((*precommit_path, "precommit_handler"), precommit),
            timeout_s=top.handler_timeout_s,
        )
        names = [function.name for function in found.functions()]
        if not names and not found.dml:
            return NO_HANDLERS
        try:
            return HandlerRules(
                code=self._code.needed_by(names),
                dml=found.dml,
                errors=found.errors,
                precommit=found.precommit,
                timeout_s=found.timeout_s,
            )
        except ConfigError as error:
            self._problems.append((("code",), error.message, error.hint))
            return found

    def _dml(self, path: Path_, model: DmlHandlerModel) -> DmlHandler:
        owner, name = model.table
        statements: list[HandlerStatement] = []
        for place, text in enumerate(model.statements or ()):
            try:
                statements.append(read_statement(text))
            except ConfigError as error:
                self._problems.append(((*path, "statements", place), error.message, error.hint))
        return DmlHandler(
            owner=owner,
            name=name,
            operations=tuple(dict.fromkeys(model.operations)),
            statements=tuple(statements),
            function=None if model.function is None else self._function((*path, "function"), model.function),
            tables=tuple((table[0], table[1]) for table in model.tables),
            columns=tuple(dict.fromkeys(model.columns)),
        )

    def _error(self, path: Path_, model: ErrorHandlerModel) -> ErrorHandler:
        owner, name = model.table
        return ErrorHandler(
            owner=owner,
            name=name,
            operations=tuple(dict.fromkeys(model.operations)),
            function=self._function((*path, "function"), model.function),
            columns=tuple(dict.fromkeys(model.columns)),
        )

    def _function(self, path: Path_, name: str) -> UserFunction:
        try:
            return UserFunction(name=name, version=self._code.version_of(name))
        except ConfigError as error:
            self._problems.append((path, error.message, error.hint))
            return UserFunction(name=name, version="")


def _excluded(
    dml_path: Path_,
    dml: Sequence[DmlHandlerModel],
    errors_path: Path_,
    errors: Sequence[ErrorHandlerModel],
) -> Iterator[Problem]:
    """Yield handlers of one table and operation that exclude each other."""
    procedures: dict[tuple[tuple[str, ...], str], int] = {}
    for place, model in enumerate(dml):
        for operation in dict.fromkeys(model.operations):
            key = (tuple(model.table), operation)
            table = ".".join(model.table)
            others = [
                number
                for number, other in enumerate(dml[:place])
                if tuple(other.table) == key[0] and operation in other.operations and (model.function or other.function)
            ]
            if others:
                problem = f"{operation} of {table} has a DML handler already, entry {others[0]} of the list"
                yield (*dml_path, place), problem, "keep one procedure, or write statement handlers only"
            if model.function is not None:
                procedures[key] = place
    seen: dict[tuple[tuple[str, ...], str], int] = {}
    for place, error in enumerate(errors):
        for operation in dict.fromkeys(error.operations):
            key, table = (tuple(error.table), operation), ".".join(error.table)
            if key in procedures:
                problem = f"{operation} of {table} has a procedure DML handler, entry {procedures[key]} of dml_handlers"
                yield (
                    (*errors_path, place),
                    problem,
                    "handle the error in that procedure, and remove the error handler",
                )
            if key in seen:
                yield (
                    (*errors_path, place),
                    f"{operation} of {table} has an error handler already, entry {seen[key]} of the list",
                    "keep one of them",
                )
            seen.setdefault(key, place)
