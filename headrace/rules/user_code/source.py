"""The text of users' code: the modules of a function, and its version.

A topology file names a folder (`code: ./handlers`) and functions in it (`masks:mask`, `package.module:function`). When
the file is read, the modules that a function needs are read too: its own, and their imports from the folder. They are
sent with the topology. So every process of every site runs the same text, whatever is on its disk, and a change takes
effect with `headrace up` alone.

A module outside the folder is imported from the Python path of the process that runs it. Its version covers its own
file only. Without that file the version is unknown ("installed").
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headrace.base.errors import ConfigError

__all__ = ["CODE_BYTES_MAX", "NO_CODE", "CodeFile", "UserCode", "UserFunction", "read_folder"]

# CPython 3.11 counts the depth of a syntax tree for all threads together: two threads that parse at once may get a
# SystemError (threads that copy tables load the same function at the same time).
_PARSING = threading.Lock()

# bound of all modules of one apply process: they are sent in one message, whose bound is 4 MB
CODE_BYTES_MAX = 1_000_000
_FILES_MAX = 1000  # a larger folder is no folder of handlers, but a home directory named by mistake
_INSTALLED = "installed"
_VERSION_CHARACTERS = 12  # of a SHA-256: enough to distinguish versions, short enough for a listing


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFile:
    """One module of the folder.

    Args:
        path: below the folder, with slashes: `masks.py`, `shop/orders.py`.
        text: its source.
    """

    path: str
    text: str

    @property
    def module(self) -> str:
        """The name for its import."""
        parts = PurePosixPath(self.path).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """Modules of one folder.

    Args:
        folder: its name in messages.
        files: ascending by path; parents of packages without `__init__.py` are not included.
    """

    folder: str = ""
    files: tuple[CodeFile, ...] = ()

    @property
    def version(self) -> str:
        """Version of all files together."""
        return _version((file.path, file.text) for file in self.files)

    def modules(self) -> dict[str, CodeFile]:
        """Return the files by their import names."""
        return {file.module: file for file in self.files}

    def needed_by(self, names: Iterable[str]) -> UserCode:
        """Return the files that functions need.

        Args:
            names: names of functions, in the form of `UserFunction.name`.

        Raises:
            ConfigError: a module cannot be parsed, or together they are larger than `CODE_BYTES_MAX`.
        """
        modules = self.modules()
        found: dict[str, CodeFile] = {}
        for name in names:
            found |= _closure(self.folder, modules, name.partition(":")[0])
        files = tuple(sorted(found.values(), key=lambda file: file.path))
        size = sum(len(file.text.encode()) for file in files)
        if size > CODE_BYTES_MAX:
            raise ConfigError(
                f"the code in {self.folder} has {size:,} bytes, and {CODE_BYTES_MAX:,} at most can be sent",
                hint="install large modules as packages on the sites' nodes, and import them",
            )
        return UserCode(folder=self.folder, files=files)

    def version_of(self, name: str) -> str:
        """Return the version of a function: of its module, and of everything that this imports from the folder.

        Args:
            name: name of the function.
        """
        module = name.partition(":")[0]
        modules = self.modules()
        if module.partition(".")[0] not in {each.partition(".")[0] for each in modules}:
            return _installed_version(module)
        return _version((file.path, file.text) for _, file in sorted(_closure(self.folder, modules, module).items()))


NO_CODE = UserCode()
"""No folder: functions come from the Python path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFunction:
    """A function that a user wrote.

    Args:
        name: `package.module:function`.
        version: its version when the topology was read.
    """

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} ({self.version})" if self.version else self.name


def read_folder(folder: Path, shown: str) -> UserCode:
    """Read the Python files of a folder.

    Args:
        folder: the folder.
        shown: its name in messages, such as the text in the topology file.

    Raises:
        ConfigError: the folder does not exist, or a file in it is no UTF-8 text.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {shown}", hint="name the folder with the Python files, relative to the topology file"
        )
    found: list[CodeFile] = []
    for path in _python_files(folder):
        place = path.relative_to(folder).as_posix()
        if len(found) >= _FILES_MAX:
            raise ConfigError(
                f"{shown} has more than {_FILES_MAX} Python files", hint="name the folder that has the handlers alone"
            )
        try:
            found.append(CodeFile(path=place, text=path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{shown}/{place} cannot be read ({error})", hint="write it as UTF-8, readable for this user"
            ) from error
    return UserCode(folder=shown.rstrip("/"), files=tuple(found))


def _python_files(folder: Path) -> Iterator[Path]:
    """Yield modules in a fixed order; hidden folders and those that cannot be part of a module's name are skipped."""
    for path in sorted(folder.rglob("*.py")):
        if all(part.isidentifier() for part in path.relative_to(folder).with_suffix("").parts):
            yield path


def _version(files: Iterable[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    for path, text in files:
        # Lengths first, so that two files never hash like one.
        digest.update(f"{len(path)} {path} {len(text)} ".encode())
        digest.update(text.encode())
    return digest.hexdigest()[:_VERSION_CHARACTERS]


def _installed_version(module: str) -> str:
    try:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            return _INSTALLED
        return _version([(module, Path(spec.origin).read_text(encoding="utf-8"))])
    except (ImportError, OSError, ValueError):
        return _INSTALLED


def _closure(folder: str, modules: Mapping[str, CodeFile], module: str) -> dict[str, CodeFile]:
    """Return the files of a module, of its parent packages, and of their imports from the folder, by module name."""
    found: dict[str, CodeFile] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = modules.get(name)
        if name in found:
            continue
        parent = name.rpartition(".")[0]
        if parent:
            waiting.append(parent)
        if file is not None:
            found[name] = file
            waiting += (
                each
                for each in _imports(folder, file)
                if each in modules or any(m.startswith(f"{each}.") for m in modules)
            )
    return found


def _imports(folder: str, file: CodeFile) -> Iterator[str]:
    """Yield every name that a module may import, wherever the statement is."""
    try:
        with _PARSING:
            tree = ast.parse(file.text, filename=file.path)
    except SyntaxError as error:
        raise ConfigError(
            f"{folder}/{file.path}, line {error.lineno}: {error.msg}",
            hint="fix the file",
        ) from error
    is_package = file.path.endswith("__init__.py")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = file.module.split(".") if file.module else []
                kept = parts[: len(parts) - node.level + int(is_package)]
                base = ".".join([*kept, *([base] if base else [])])
            if base:
                yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)
