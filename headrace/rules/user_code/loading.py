"""Loading users' functions, the same way in every process: `headrace check`, apply servers, capture processes, tests.

Modules of the folder are loaded from the text in the topology, under a separate name ("headrace_code_<version>.masks").
So two versions, or the folders of two topologies, can be in one process. Inside the folder `import masks` means the
folder's `masks`, before any other module of that name. Everything else is imported as usual.

An error names the file, the line and the function of the user's code, wherever it was raised.
"""

from __future__ import annotations

import builtins
import dis
import importlib
import importlib.abc
import importlib.machinery
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any

from headrace.base.errors import ConfigError, HeadraceError
from headrace.rules.user_code.source import CodeFile, UserCode, UserFunction

__all__ = ["is_interruption", "load", "message_of", "place_of", "place_of_call", "place_of_function", "words_of"]

_RAISE = dis.opmap["RAISE_VARARGS"]
_ROOT = "headrace_code_"
_imported: dict[str, str] = {}  # imported modules of the Python path, with their versions at that time
# bound of the characters of a user's error message: it is sent, and kept with each error transaction
_WORDS_MAX = 4_000


def load(function: UserFunction, code: UserCode, parameters: Sequence[str]) -> Callable[..., Any]:
    """Import a function and check that it can be called.

    Args:
        function: the function; another version than the one found here is refused.
        code: the folder's modules.
        parameters: names of its parameters, for the message.

    Returns:
        The function.

    Raises:
        ConfigError: the module or function does not exist, the module raises while it is imported, the function does
            not accept so many arguments, or another version is installed here.
    """
    module_name, colon, attribute = function.name.partition(":")
    if not colon or not module_name or not attribute.isidentifier():
        raise ConfigError(f"{function.name!r} does not name a function", hint="write package.module:function")
    module = _import(module_name, code)
    found = getattr(module, attribute, None)
    if found is None:
        raise ConfigError(
            f"{_file_of(module, code)} has no function {attribute}",
            hint=f"it has {', '.join(_functions(module)) or 'none'}",
        )
    _check_call(found, f"{_file_of(module, code)}, line {_line_of(found)}: {attribute}", parameters)
    here = code.version_of(function.name)
    if function.version and here != function.version:
        raise ConfigError(
            f"{function.name} has the version {here} here, and {function.version} where the topology was read",
            hint="install the same version on every node, or put the module into the code folder",
        )
    return found  # type: ignore[no-any-return]


def place_of(error: BaseException, code: UserCode) -> str:
    """Return where users' code raised an error, or called what raised it: "handlers/masks.py, line 12, in mask".

    Args:
        error: the error, with its traceback.
        code: the folder's modules; for code from the Python path the innermost place is named.
    """
    return _place(traceback.extract_tb(error.__traceback__), code)


def place_of_call(frame: FrameType, code: UserCode) -> str:
    """Return where running users' code is, or what it has called, in the form of `place_of`.

    Args:
        frame: the innermost one of its thread.
        code: the folder's modules.
    """
    return _place(traceback.extract_stack(frame), code)


def place_of_function(found: Callable[..., Any]) -> str:
    """Return where a function begins, in the form of `place_of`.

    Args:
        found: function from `load`.
    """
    code = getattr(inspect.unwrap(found), "__code__", None)
    return (
        f"{code.co_filename}, line {code.co_firstlineno}, in {code.co_name}"
        if isinstance(code, CodeType)
        else "an unknown place"
    )


def _place(frames: traceback.StackSummary, code: UserCode) -> str:
    own = {_filename(code, file) for file in code.files}
    users = [frame for frame in frames if frame.filename in own] or frames[-1:]
    if not users:
        return code.folder or "the user's code"
    return f"{users[-1].filename}, line {users[-1].lineno}, in {users[-1].name}"


def is_interruption(error: BaseException) -> bool:
    """Return whether an error is an operator's Ctrl-C, not a `raise KeyboardInterrupt` of users' code.

    Ctrl-C ends the process.

    Args:
        error: the error, with its traceback. A signal interrupts any line; users' code raises by a `raise`.
    """
    if not isinstance(error, KeyboardInterrupt):
        return False
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is None or place.tb_frame.f_code.co_code[place.tb_lasti] != _RAISE


def words_of(error: BaseException) -> str:
    """Return an error of users' code, type and message, as text that every log, wire, database and terminal accepts.

    Its exception may fail to describe itself, or its text may have characters that UTF-8 lacks, or half a gigabyte.

    Args:
        error: error of any class.
    """
    try:
        said = error.message_and_hint if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
        said = said[:_WORDS_MAX].rstrip() + (f" ... ({len(said):,} characters)" if len(said) > _WORDS_MAX else "")
    except BaseException as second:  # noqa: BLE001 - its own `__str__` is users' code, too
        said = f"{type(error).__name__} (its message cannot be read: {type(second).__name__})"
    return "".join(each if each == "\n" or each.isprintable() else ascii(each)[1:-1] for each in said)


def message_of(error: BaseException) -> str:
    """Describe an error of users' code without values of rows.

    The text is its type, and its message if that is a literal in the code. `int("ada@example.org")` and `raise
    ValueError(f"not {value}")` quote their input, which the function may have to hide.

    Args:
        error: the error, with its traceback.
    """
    kind = type(error).__name__
    if isinstance(error, AttributeError | NameError):  # these name identifiers in the code
        return words_of(error)
    said = {
        each
        for frame, _ in traceback.walk_tb(error.__traceback__)
        for each in frame.f_code.co_consts
        if isinstance(each, str)
    }
    if error.args and not all(isinstance(each, str) and each in said for each in error.args):
        return f"{kind} (its message is not shown: it may hold values of the row)"
    return words_of(error)


# --------------------------------------------------------------------------- inside


def _import(name: str, code: UserCode) -> ModuleType:
    modules = code.modules()
    is_own = name.partition(".")[0] in {each.partition(".")[0] for each in modules}
    if is_own:
        _Finder.register(code)
    else:
        _forget_earlier(name, code.version_of(name))
    try:
        return importlib.import_module(f"{_ROOT}{code.version}.{name}" if is_own else name)
    except ImportError as error:
        if _is_missing(error, name, code):
            where = (
                f"in {code.folder} or on the Python path"
                if code.folder
                else "on the Python path; the topology file names no code folder"
            )
            raise ConfigError(
                f"there is no module {name} {where}", hint="write package.module:function, without .py"
            ) from error
        raise _broken(name, error, code) from error
    except SyntaxError as error:
        raise ConfigError(f"{error.filename}, line {error.lineno}: {error.msg}", hint="fix the file") from error
    except BaseException as error:  # SystemExit, too: a module that is a program would end the command that loads it
        if is_interruption(error):
            raise
        raise _broken(name, error, code) from error


def _forget_earlier(name: str, version: str) -> None:
    """Forget a module of the Python path before its import if its version changed, with its top-level package.

    A process outlives an `up` (Spark's Python workers, a site's actors): otherwise newly installed code would run in
    the old version under the new version's name. Functions that were loaded before keep their modules.
    """
    if _imported.get(name, version) != version:
        parts = name.split(".")
        above = (".".join(parts[: count + 1]) for count in range(len(parts)))
        # not a namespace package, which has others' packages, too
        own = next((each for each in above if getattr(sys.modules.get(each), "__file__", None)), name)
        for each in [each for each in sys.modules if each == own or each.startswith(f"{own}.")]:
            sys.modules.pop(each, None)
        importlib.invalidate_caches()
    _imported[name] = version


def _is_missing(error: ImportError, name: str, code: UserCode) -> bool:
    """Return whether the module itself is missing, not one that it imports."""
    missing = (error.name or "").removeprefix(f"{_ROOT}{code.version}.")
    return isinstance(error, ModuleNotFoundError) and (name == missing or name.startswith(f"{missing}."))


def _broken(name: str, error: BaseException, code: UserCode) -> ConfigError:
    text = str(error).replace(f"{_ROOT}{code.version}.", "")
    return ConfigError(
        f"importing {name} failed at {place_of(error, code)}: {type(error).__name__}: {text}",
        hint="the module must be importable where the topology is read and at every site that runs it",
    )


def _check_call(found: object, place: str, parameters: Sequence[str]) -> None:
    wanted = f"({', '.join(parameters)})"
    if not callable(found):
        raise ConfigError(f"{place} is no function", hint=f"name a function that takes {wanted}")
    if inspect.iscoroutinefunction(found):
        raise ConfigError(f"{place} is an async function", hint="write def, without async")
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise ConfigError(
            f"{place} is a generator: nothing of it runs when it is called", hint="write it without yield"
        )
    try:
        inspect.signature(found).bind(*parameters)
    except TypeError as error:
        raise ConfigError(
            f"{place} cannot be called with {wanted}: {error}", hint=f"write def {place.rpartition(' ')[2]}{wanted}"
        ) from error
    except ValueError:  # a builtin without a signature: the call will show
        pass


def _file_of(module: ModuleType, code: UserCode) -> str:
    return getattr(module, "__file__", None) or f"{code.folder}/{module.__name__}"


def _line_of(found: object) -> int:
    code = getattr(inspect.unwrap(found) if callable(found) else found, "__code__", None)
    return code.co_firstlineno if isinstance(code, CodeType) else 1


def _functions(module: ModuleType) -> list[str]:
    return sorted(name for name, each in vars(module).items() if inspect.isfunction(each) and not name.startswith("_"))


def _filename(code: UserCode, file: CodeFile) -> str:
    return f"{code.folder}/{file.path}"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of one folder in one version."""

    _known: dict[str, _Finder] = {}  # noqa: RUF012 - by version; a process sees few

    def __init__(self, code: UserCode) -> None:
        self._root = f"{_ROOT}{code.version}"
        self._code, self._modules = code, code.modules()
        self._tops = {name.partition(".")[0] for name in self._modules}
        self._builtins = {**vars(builtins), "__import__": self._import}

    @classmethod
    def register(cls, code: UserCode) -> None:
        """Make a folder's modules importable; idempotent."""
        if code.version not in cls._known:
            cls._known[code.version] = finder = cls(code)
            sys.meta_path.append(finder)

    def find_spec(
        self,
        fullname: str,
        path: object = None,  # noqa: ARG002
        target: object = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module of the folder; None: it is not the folder's."""
        if fullname == self._root:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if not fullname.startswith(f"{self._root}."):
            return None
        name = fullname.removeprefix(f"{self._root}.")
        file = self._modules.get(name)
        is_package = (
            file.path.endswith("__init__.py") if file else any(each.startswith(f"{name}.") for each in self._modules)
        )
        if file is None and not is_package:
            return None
        return importlib.machinery.ModuleSpec(
            fullname, self, origin=_filename(self._code, file) if file else None, is_package=is_package
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:  # noqa: ARG002
        """Use the default module object."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's text."""
        file = self._modules.get(module.__name__.removeprefix(f"{self._root}."))
        if file is None or module.__name__ == self._root:
            return
        filename = _filename(self._code, file)
        module.__file__ = filename
        vars(module)["__builtins__"] = self._builtins
        # Tracebacks show the line of the text that ran.
        linecache.cache[filename] = (len(file.text), None, file.text.splitlines(keepends=True), filename)
        exec(compile(file.text, filename, "exec", dont_inherit=True), vars(module))  # noqa: S102 - its purpose

    def _import(self, name: str, globals_: Any = None, locals_: Any = None, fromlist: Any = (), level: int = 0) -> Any:  # noqa: ANN401
        """Import inside the folder: the folder's modules come first."""
        if level == 0 and name.partition(".")[0] in self._tops:
            found = builtins.__import__(f"{self._root}.{name}", globals_, locals_, fromlist or (), 0)
            return found if fromlist else getattr(found, name.partition(".")[0])
        return builtins.__import__(name, globals_, locals_, fromlist or (), level)
