"""The sources of a topology file's secrets: environment variables, files, and the output of programs.

A reference is `${NAME}`, `${file:/run/secrets/name}` or `${command:program argument ...}`. A program runs without a
shell, each time the file is read. This adds no risk: whoever can write a topology file can run code as its user anyway
(handlers, alerts).
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

__all__ = ["REFERENCE", "SecretError", "read_secrets", "references", "with_plain_names"]

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*|(?:file|command):[^}]+)\}")
_BYTES_MAX = 64 << 10  # a connection string has some hundred bytes
_COMMAND_TIMEOUT_S = 30.0  # a vault over a network answers within seconds; a command that asks at a terminal never does
_SHOWN = 200  # characters of a failed program's error output


class SecretError(ValueError):
    """A problem of a reference, and its fix."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem, fix)
        self.problem, self.fix = problem, fix


def references(text: str) -> tuple[str, ...]:
    """Return the references in `text`, as they stand between the braces, in order, without duplicates."""
    return tuple(dict.fromkeys(REFERENCE.findall(text)))


def with_plain_names(text: str) -> tuple[str, dict[str, str]]:
    """Replace each file or program reference in the text by a plain variable's name.

    Their blanks and slashes could be mistaken for parts of the text.

    Args:
        text: with references.

    Returns:
        The text, and the reference behind each name in it.
    """
    names = {name: name if name.isidentifier() else f"_{number}" for number, name in enumerate(references(text))}
    plain = REFERENCE.sub(lambda match: f"${{{names[match[1]]}}}", text)
    return plain, {plain_name: name for name, plain_name in names.items()}


def read_secrets(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the values of all references in `text`, by the text between the braces.

    Args:
        text: with references.
        environment: of the command; a variable with an empty value counts as missing. It can also define the value of a
            file or program reference, which is then not read or run.

    Raises:
        SecretError: a reference has no value.
    """
    return {name: _value(name, environment) for name in references(text)}


def _value(name: str, environment: Mapping[str, str]) -> str:
    kind, _, rest = name.partition(":")
    value = environment.get(name)
    if value:
        return value
    if not rest:
        raise SecretError(f"the environment variable {name} is not set", f"export {name}=... before the command")
    return _of_file(Path(rest)) if kind == "file" else _of_command(rest)


def _of_file(file: Path) -> str:
    if not file.is_absolute():
        raise SecretError(f"the file {file} is not named by its full path", "write ${file:/run/secrets/name}")
    try:
        with file.open("rb") as stream:
            content = stream.read(_BYTES_MAX + 1)
    except OSError as error:
        raise SecretError(
            f"the file {file} cannot be read: {error.strerror}",
            "write the secret into it, readable by the user of the command",
        ) from error
    return _text(content, f"the file {file}")


def _of_command(line: str) -> str:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise SecretError(
            f"the command has a quotation mark that is not closed: {error}", "write it as in a shell"
        ) from error
    if not words:
        raise SecretError("the command is empty", "write ${command:program argument ...}")
    name = words[0]  # only the program's name: an argument may be a secret
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SecretError(
            f"the command {name} did not end within {_COMMAND_TIMEOUT_S:.0f} s",
            "run it by hand as the same user: does it ask for something?",
        ) from error
    except OSError as error:
        raise SecretError(
            f"the command {name} cannot be run: {error.strerror}",
            "name an installed program, with its full path if it is not on PATH",
        ) from error
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[:_SHOWN]
        raise SecretError(
            f"the command {name} ended with {done.returncode}{': ' if said else ''}{said}",
            "run it by hand as the same user",
        )
    return _text(done.stdout, f"the command {name}")


def _text(content: bytes, source: str) -> str:
    """Return the value in the bytes of a source, without the trailing line end."""
    if len(content) > _BYTES_MAX:
        raise SecretError(f"{source} gives more than {_BYTES_MAX >> 10} KiB", "it must give only the secret")
    try:
        value = content.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise SecretError(f"{source} gives no UTF-8 text", "it must give only the secret, as text") from error
    if not value or "\n" in value or "\0" in value:
        raise SecretError(
            f"{source} gives {'nothing' if not value else 'more than a line'}",
            "it must give only the secret, in one line",
        )
    return value
